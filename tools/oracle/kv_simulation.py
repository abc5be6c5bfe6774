#!/usr/bin/env python3
"""What other types of the KV cache would cost in fidelity: forward.py with rounded keys and values, in numpy. All else
is f32, so that only this rounding counts; no kernel of the engine takes part.

Run: python tools/oracle/kv_simulation.py --model F [--tokens T.json] [--positions N] [--reference R.npy] FORM …
FORM is KEYS or KEYS,VALUES, each of them f32, f16, e4m3, or
  int8/32  codes of so many bits, and an f16 scale for so many elements of a head (amax / 127); int8/32 is q8_0
  …r       of heads that are rotated by a Hadamard matrix before, and back after
The other options are those of fidelity.py compare, and so is the output. Needs numpy and gguf==0.19.0.
"""

import re
import time

import numpy as np

import fidelity
import forward
from fp8_simulation import e4m3, read_arguments


def hadamard(size):
    """Orthogonal and symmetric, for a power of two."""
    matrix = np.ones((1, 1), np.float32)
    while len(matrix) < size:
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    return (matrix / np.sqrt(np.float32(size))).astype(np.float32)


def bytes_of(form):
    """Bytes of an element."""
    if form in ("f32", "f16", "e4m3"):
        return {"f32": 4, "f16": 2, "e4m3": 1}[form]
    bits, block = map(int, re.match(r"int(\d+)/(\d+)", form).groups())
    return bits / 8 + 2 / block


def rounded(x, form):
    """x (n, heads, head_dim) f32 as the cache returns it."""
    if form in ("f32", "f16"):
        return x.astype({"f32": np.float32, "f16": np.float16}[form]).astype(np.float32, copy=False)
    if form == "e4m3":
        return e4m3(np.ascontiguousarray(x))
    bits, block, is_rotated = re.fullmatch(r"int(\d+)/(\d+)(r?)", form).groups()
    rotation = hadamard(x.shape[-1]) if is_rotated else None
    y = x @ rotation if is_rotated else x
    blocks = y.reshape(*y.shape[:-1], -1, int(block))
    largest = 2 ** (int(bits) - 1) - 1
    scale = np.abs(blocks).max(axis=-1, keepdims=True) / np.float32(largest)
    inverse = np.divide(1, scale, out=np.zeros_like(scale), where=scale != 0)
    codes = np.clip(np.rint(blocks * inverse), -largest, largest)
    y = (codes * scale.astype(np.float16).astype(np.float32)).reshape(y.shape)
    return y @ rotation if is_rotated else y


class Model(forward.Model):
    """forward.Model whose cache has one form for keys and one for values."""

    forms = ("f32", "f32")

    def cached(self, k, v):
        return rounded(k, self.forms[0]), rounded(v, self.forms[1])


def main():
    args, sequences, reference = read_arguments(__doc__)
    model = Model(args.model)
    for form in args.forms:
        model.forms = (form.split(",") * 2)[:2]
        begin = time.time()
        logits = iter([model.logits(tokens) for tokens in sequences.values()])
        size = sum(map(bytes_of, model.forms)) / 2
        print(f"== {form}, {size:.3f} bytes an element ({time.time() - begin:.0f} s)")
        fidelity.compare(reference, sequences, lambda _: next(logits))


if __name__ == "__main__":
    main()
