#!/usr/bin/env python3
"""Golden vectors for the operations of a forward pass: ops/ops.h, written again in float64 numpy.

Writes cuda/tests/data/ops.bin: named arrays, each a name of 24 bytes, a count and that many f32 (names
that end in ".q4_1": bytes). Weights of the feed-forward part are Q4_1, by the gguf package's quantizer.
Usage: tools/golden/ops.py [output]
"""
import struct
import sys
from pathlib import Path

import gguf
import numpy as np

EPSILON = 1e-5


def rms_norm(x, gain):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + EPSILON) * gain


def rope(x, positions, frequencies, magnitude, adjacent):
    """x (tokens, heads, length): turns the first 2 * len(frequencies) elements of each head."""
    half = len(frequencies)
    angle = positions[:, None, None] * frequencies[None, None, :]
    c, s = np.cos(angle) * magnitude, np.sin(angle) * magnitude
    out = x.copy()
    first = np.arange(0, 2 * half, 2) if adjacent else np.arange(half)
    second = first + (1 if adjacent else half)
    a, b = x[..., first], x[..., second]
    out[..., first], out[..., second] = a * c - b * s, a * s + b * c
    return out


def attention(q, k, v, positions, scale, window):
    """q (tokens, heads, length), k and v (positions, kv heads, length); all positions up to one's own."""
    group = q.shape[1] // k.shape[1]
    out = np.zeros_like(q)
    for t, p in enumerate(positions):
        first = max(0, p - window + 1) if window else 0
        for h in range(q.shape[1]):
            score = k[first : p + 1, h // group] @ q[t, h] * scale
            weight = np.exp(score - score.max())
            out[t, h] = (weight / weight.sum()) @ v[first : p + 1, h // group]
    return out


def silu(x):
    return x / (1 + np.exp(-x))


def gelu_tanh(x):
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def int10_row(head, slot):
    """The bytes of a row in int10 (kernels/shared/int10_row.h): head (length) f32, in blocks of 64."""
    blocks = head.astype(np.float32).reshape(-1, 64)
    scales = (np.abs(blocks).max(-1) / np.float32(511)).astype(np.float16)
    inverse = np.float32(1) / scales.astype(np.float32)[:, None]
    codes = (np.clip(np.rint(blocks * inverse), -511, 511) + 512).astype(np.uint16)
    low = (codes & 255).astype(np.uint8).ravel()
    quarters = (codes >> 8).astype(np.uint8).reshape(-1, 4, 16)
    high = sum(quarters[:, i] << 2 * i for i in range(4)).ravel()
    parts = [low, high]
    parts.insert(0 if slot % 2 else 2, scales.view(np.uint8))
    return np.concatenate(parts)


def main():
    random = np.random.default_rng(20)
    arrays = {}

    def normal(name, *shape, scale=1.0):
        arrays[name] = (random.standard_normal(shape) * scale).astype(np.float32)
        return arrays[name].astype(np.float64)

    def q4_1(name, *shape):
        data = random.standard_normal(shape).astype(np.float32) * np.float32(0.2)
        arrays[name + ".q4_1"] = packed = gguf.quants.quantize(data, gguf.GGMLQuantizationType.Q4_1)
        return gguf.quants.dequantize(packed, gguf.GGMLQuantizationType.Q4_1).astype(np.float64)

    tokens, dim, heads, kv_heads, length, hidden = 5, 64, 4, 2, 16, 48
    positions = np.arange(62, 62 + tokens)
    x, norm = normal("x", tokens, dim, scale=3.0), normal("norm", dim)
    wq = normal("wq", heads * length, dim, scale=0.1)
    wk = normal("wk", kv_heads * length, dim, scale=0.1)
    wv = normal("wv", kv_heads * length, dim, scale=0.1)
    bq, bk, bv = normal("bq", len(wq)), normal("bk", len(wk)), normal("bv", len(wv))
    nq, nk = normal("nq", length), normal("nk", length)
    frequencies = (1000.0 ** (-np.arange(6) / 6)).astype(np.float32)
    arrays["frequencies"] = frequencies
    h = rms_norm(x, norm)
    q = rms_norm((h @ wq.T + bq).reshape(tokens, heads, length), nq)
    k = rms_norm((h @ wk.T + bk).reshape(tokens, kv_heads, length), nk)
    v = (h @ wv.T + bv).reshape(tokens, kv_heads, length)
    for name, adjacent in (("adjacent", True), ("halves", False)):
        turn = lambda y: rope(y, positions, frequencies.astype(np.float64), 1.2, adjacent)
        arrays["q." + name], arrays["k." + name] = turn(q), turn(k)
    arrays["v"] = v

    query = normal("query", tokens, heads, length)
    keys, values = normal("keys", 67, kv_heads, length), normal("values", 67, kv_heads, length)
    keys, values = (a.astype(np.float16).astype(np.float64) for a in (keys, values))
    for window in (0, 20):
        arrays[f"attention.{window}"] = attention(query, keys, values, positions, 0.7, window)

    gate, up = q4_1("gate", hidden, dim), q4_1("up", hidden, dim)
    bias = normal("gate.bias", hidden)
    for name, activation in (("silu", silu), ("gelu", gelu_tanh)):
        arrays["hidden." + name] = activation(h @ gate.T + bias) * (h @ up.T)
    arrays["projected"] = x[:, :hidden] + h @ gate.T  # residual: the first columns of x
    arrays["h"] = h

    heads = normal("int10.heads", 4, 128, scale=[[0.01], [1.0], [30.0], [1000.0]])
    arrays["int10.rows"] = np.stack([int10_row(head, slot) for slot, head in enumerate(heads)])
    hadamard = np.ones((1, 1))
    while len(hadamard) < 64:
        hadamard = np.block([[hadamard, hadamard], [hadamard, -hadamard]])
    arrays["int10.hadamard"] = heads.reshape(-1, 64) @ hadamard / 8

    default = Path(__file__).resolve().parents[2] / "cuda/tests/data/ops.bin"
    with open(sys.argv[1] if len(sys.argv) > 1 else default, "wb") as file:
        for name, array in arrays.items():
            data = array if name.endswith(".q4_1") else array.astype("<f4")
            file.write(struct.pack("<24sI", name.encode(), data.size) + data.tobytes())


if __name__ == "__main__":
    main()
