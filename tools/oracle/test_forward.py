#!/usr/bin/env python3
"""Checks forward.py against the logits of `transformers` for tiny models of each family. With --write, also
writes its hidden states for the same tokens: NAME.hidden, f32 (tokens, embedding length) after the final norm.

Run: python tools/oracle/test_forward.py [--write]   (needs numpy and gguf==0.19.0)
"""

import pathlib
import sys

import numpy as np

import forward

MODELS = pathlib.Path(__file__).resolve().parents[2] / "cuda" / "tests" / "data" / "models"
# Both compute in f32 with other orders of summation; measured: at most 1.6e-5 on logits within ±7.
TOLERANCE = 5e-5


def read_golden(path):
    """tokens (n), logits (n, vocabulary)"""
    data = path.read_bytes()
    count, vocabulary = np.frombuffer(data, np.uint32, 2)
    tokens = np.frombuffer(data, np.int32, count, 8)
    return tokens, np.frombuffer(data, np.float32, offset=8 + 4 * count).reshape(count, vocabulary)


def main():
    failed = 0
    paths = sorted(MODELS.glob("*.gguf"))
    for path in paths:
        tokens, expected = read_golden(path.with_suffix(".golden"))
        model = forward.Model(path)
        error = np.abs(model.logits(tokens) - expected).max()
        good = error <= TOLERANCE
        if good and "--write" in sys.argv[1:]:
            path.with_suffix(".hidden").write_bytes(
                model.hidden_states(tokens).astype(np.float32).tobytes())
        failed += not good
        print(f"{'ok  ' if good else 'FAIL'} {path.stem}: largest error {error:.2e}")
    print(f"{len(paths) - failed} passed, {failed} failed")
    sys.exit(1 if failed or not paths else 0)


if __name__ == "__main__":
    main()
