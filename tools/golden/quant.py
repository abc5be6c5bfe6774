#!/usr/bin/env python3
"""Writes cuda/tests/data/quant: blocks of every weight format with the f32 values they stand for.

Run: python tools/golden/quant.py [--ggml libggml-base.so]   (needs gguf==0.19.0)

The values come from the numpy dequantizers of `gguf`; those of Q1_0 and Q2_0, which it lacks, from
libggml-base of llama-cpp-python 0.3.36. Without --ggml these two are left as they are. Files:
  NAME.bin     uint32 block count, the blocks, then the f32 values
  digests.txt  per format: name, block count, offsets of the high bytes of f16 scales (or -), CRC-32 of the
               f32 values of that many blocks of splitmix64 bytes (see random_blocks)
"""

import argparse
import ctypes
import pathlib
import zlib

import numpy as np
from gguf import quants
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

TARGET = pathlib.Path(__file__).resolve().parents[2] / "cuda" / "tests" / "data" / "quant"
DIGEST_BLOCKS = 1024

# name: offsets of the f16 scales in a block; all other bytes may take any value.
SCALES = {
    "F32": [], "F16": [0], "BF16": [], "Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2],
    "Q8_0": [0], "Q2_K": [80, 82], "Q3_K": [108], "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208],
    "IQ2_XXS": [0], "IQ2_XS": [0], "IQ3_XXS": [0], "IQ1_S": [0], "IQ4_NL": [0], "IQ3_S": [0],
    "IQ2_S": [0], "IQ4_XS": [0], "IQ1_M": [54], "TQ1_0": [52], "TQ2_0": [64], "MXFP4": [],
    "NVFP4": [], "Q1_0": [0], "Q2_0": [0],
}
FROM_GGML = {"Q1_0": (128, 18), "Q2_0": (64, 18)}
# subnormals, zeros, the largest finite values, one
SPECIAL_SCALES = [0x3C00, 0x0001, 0x8000, 0x7BFF, 0x83FF, 0x0000, 0xFBFF]


def sizes(name):
    return FROM_GGML.get(name) or GGML_QUANT_SIZES[GGMLQuantizationType[name]]


def splitmix64(counters):
    z = (counters.astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def random_blocks(name, count):
    """(count, block bytes): little-endian splitmix64 of 0, 1, …; bit 14 of each f16 scale is cleared."""
    size = sizes(name)[1]
    data = splitmix64(np.arange((count * size + 7) // 8)).view(np.uint8)[:count * size]
    data = data.reshape(count, size).copy()
    for offset in SCALES[name]:
        data[:, offset + 1] &= 0xBF
    return data


def special_blocks(name, count, rng):
    """(count, block bytes): random bytes, the first block all ones, with scales at their limits."""
    data = rng.integers(0, 256, (count, sizes(name)[1]), dtype=np.uint8)
    data[0] = 0xFF
    for i, offset in enumerate(SCALES[name]):
        if name == "IQ1_M":  # the scale is spread over the top nibbles of four words
            for row in range(count):
                scale = SPECIAL_SCALES[row] if row < len(SPECIAL_SCALES) else int(rng.integers(0x7C00))
                words = data[row, 48:56].view(np.uint16)
                words[:] = (words & 0x0FFF) | [(scale >> 4 * k & 15) << 12 for k in range(4)]
            continue
        scales = rng.normal(size=count).astype(np.float16)
        special = np.roll(np.array(SPECIAL_SCALES, np.uint16), i).view(np.float16)
        scales[:len(special)] = special
        data[:, offset:offset + 2] = scales.view(np.uint8).reshape(count, 2)
    if name in ("F32", "BF16"):
        width = sizes(name)[1]
        values = rng.normal(size=count).astype(np.float32)
        values[:4] = [np.float32(1e-45), -0.0, np.inf, np.finfo(np.float32).max]
        data = values.view(np.uint8).reshape(count, 4)[:, 4 - width:].copy()
    return data


def dequantize(name, blocks, ggml):
    """f32 (blocks * block elements)"""
    if name not in FROM_GGML:
        with np.errstate(over="ignore"):
            values = quants.dequantize(blocks.reshape(-1), GGMLQuantizationType[name])
        return np.ascontiguousarray(values, dtype=np.float32)
    out = np.empty(blocks.shape[0] * sizes(name)[0], np.float32)
    function = getattr(ggml, "dequantize_row_" + name.lower())
    function(blocks.ctypes.data_as(ctypes.c_void_p), out.ctypes.data_as(ctypes.c_void_p),
             ctypes.c_int64(out.size))
    return out


def old_digest_line(name):
    path = TARGET / "digests.txt"
    lines = path.read_text().splitlines() if path.exists() else []
    return next(line for line in lines if line.split()[0] == name)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ggml", help="libggml-base.so of llama-cpp-python 0.3.36")
    args = parser.parse_args()
    ggml = ctypes.CDLL(args.ggml) if args.ggml else None
    TARGET.mkdir(parents=True, exist_ok=True)
    digests = []
    for index, name in enumerate(SCALES):
        if name in FROM_GGML and ggml is None:
            print(f"{name}: kept as it is (no --ggml)")
            digests.append(old_digest_line(name))
            continue
        rng = np.random.default_rng(index)
        count = 8 if sizes(name)[0] == 256 else 16
        blocks = special_blocks(name, count, rng)
        values = dequantize(name, blocks, ggml)
        data = np.uint32(count).tobytes() + blocks.tobytes() + values.tobytes()
        (TARGET / f"{name}.bin").write_bytes(data)
        if name in ("F32", "BF16"):
            continue
        offsets = ",".join(str(offset + 1) for offset in SCALES[name]) or "-"
        crc = zlib.crc32(dequantize(name, random_blocks(name, DIGEST_BLOCKS), ggml).tobytes())
        digests.append(f"{name} {DIGEST_BLOCKS} {offsets} {crc:08x}")
    (TARGET / "digests.txt").write_text("\n".join(digests) + "\n")


if __name__ == "__main__":
    main()
