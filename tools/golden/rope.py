#!/usr/bin/env python3
"""Golden rotary frequencies: the formulas of transformers' modeling_rope_utils, in float64 numpy.

Writes cuda/tests/data/rope.txt, one case a line: metadata of a GGUF file (after the architecture's name)
and what follows from it. Usage: tools/golden/rope.py [output]
"""
import math
import sys
from pathlib import Path

import numpy as np


def default(base, dim):
    return 1.0 / base ** (np.arange(0, dim, 2, dtype=np.float64) / dim)


def yarn(base, dim, factor, original, beta_fast=32.0, beta_slow=1.0):
    """Inverse frequencies and attention factor, as _compute_yarn_parameters has them."""

    def correction_dim(rotations):
        return dim * math.log(original / (rotations * 2 * math.pi)) / (2 * math.log(base))

    low = max(math.floor(correction_dim(beta_fast)), 0)
    high = min(math.ceil(correction_dim(beta_slow)), dim - 1)
    if low == high:
        high += 0.001
    ramp = np.clip((np.arange(dim // 2) - low) / (high - low), 0, 1)
    extrapolation = default(base, dim)
    kept = 1 - ramp
    frequencies = extrapolation / factor * (1 - kept) + extrapolation * kept
    return frequencies, 0.1 * math.log(factor) + 1.0 if factor > 1 else 1.0


def main():
    target = Path(__file__).resolve().parents[2] / "cuda/tests/data/rope.txt"
    if len(sys.argv) > 1:
        target = Path(sys.argv[1])
    cases = []
    for base, dim in ((10000.0, 64), (500000.0, 128), (1e6, 128), (10000.0, 2), (1e6, 80)):
        cases.append((dict(base=base, dim=dim), default(base, dim), 1.0))
        for factor in (2.0, 8.0):
            cases.append((dict(base=base, dim=dim, type="linear", factor=factor),
                          default(base, dim) / factor, 1.0))
    for base, dim, factor, original in ((10000.0, 128, 4.0, 4096), (1e6, 128, 4.0, 32768),
                                        (1e6, 64, 40.0, 4096), (10000.0, 16, 4.0, 64),
                                        (10000.0, 64, 1.0, 2048)):
        frequencies, magnitude = yarn(base, dim, factor, original)
        cases.append((dict(base=base, dim=dim, type="yarn", factor=factor, original=original),
                      frequencies, magnitude))
    frequencies, magnitude = yarn(1e6, 128, 4.0, 32768, 24.0, 2.0)
    cases.append((dict(base=1e6, dim=128, type="yarn", factor=4.0, original=32768, beta_fast=24.0,
                       beta_slow=2.0, attn_factor=0.5), frequencies, magnitude * 0.5))
    lines = ["# tools/golden/rope.py: metadata, then the magnitude and the frequencies"]
    for metadata, frequencies, magnitude in cases:
        words = [f"{key}={value}" for key, value in metadata.items()]
        words.append(f"magnitude={magnitude:.9g}")
        lines.append(" ".join(words) + " : " + " ".join(f"{f:.9g}" for f in frequencies))
    target.write_text("\n".join(lines) + "\n")
    print(f"{target}: {len(cases)} cases, {target.stat().st_size} bytes")


if __name__ == "__main__":
    main()
