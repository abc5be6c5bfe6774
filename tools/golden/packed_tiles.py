#!/usr/bin/env python3
"""Writes cuda/tests/data/quant/packed_tiles.txt: digests of matrices as packed weight tiles (docs/FORMATS.md).

Run: python tools/golden/packed_tiles.py   (needs numpy)

The fields of each format are restated here by name, and the order is made by numpy's reshape and transpose
over whole matrices: nothing is shared with kernels/shared/packed_tile.h. The file's bytes are little-endian splitmix64
of 0, 1, …. A line: ggml type id, rows, columns, bytes of the packed tiles, CRC-32 of them.
"""

import pathlib
import zlib

import numpy as np

TARGET = pathlib.Path(__file__).resolve().parents[2] / "cuda" / "tests" / "data" / "quant" / "packed_tiles.txt"

# type id: (elements of a block, bytes of a block, blocks of a row in a tile, parts in the tile's order);
# a part: (first byte, last byte + 1, bytes of a piece, order)
FORMATS = {
    0: (1, 4, 64, None), 1: (1, 2, 64, None), 30: (1, 2, 64, None),
    2: (32, 18, 2, [(2, 18, 4, "lanes"), (0, 2, 2, "rows")]),
    3: (32, 20, 2, [(4, 20, 4, "lanes"), (0, 4, 4, "rows")]),
    6: (32, 22, 2, [(6, 22, 4, "lanes"), (2, 6, 4, "rows"), (0, 2, 2, "rows")]),
    7: (32, 24, 2, [(8, 24, 4, "lanes"), (4, 8, 4, "rows"), (0, 4, 4, "rows")]),
    8: (32, 34, 2, [(2, 34, 8, "lanes"), (0, 2, 2, "rows")]),
    10: (256, 84, 1, [(16, 80, 8, "lanes"), (0, 16, 8, "rows"), (80, 84, 4, "rows")]),
    11: (256, 110, 1, [(32, 96, 8, "lanes"), (0, 32, 8, "lanes"), (96, 108, 4, "rows"), (108, 110, 2, "rows")]),
    12: (256, 144, 1, [(16, 144, 8, "lanes"), (0, 16, 16, "rows")]),
    13: (256, 176, 1, [(48, 176, 8, "lanes"), (16, 48, 8, "lanes"), (0, 16, 16, "rows")]),
    14: (256, 210, 1, [(0, 128, 8, "lanes"), (128, 192, 8, "lanes"), (192, 208, 8, "rows"), (208, 210, 2, "rows")]),
    34: (256, 54, 1, [(0, 32, 8, "lanes"), (32, 48, 16, "rows"), (48, 52, 4, "rows"), (52, 54, 2, "rows")]),
    35: (256, 66, 1, [(0, 64, 8, "lanes"), (64, 66, 2, "rows")]),
    16: (256, 66, 1, [(2, 66, 16, "rows"), (0, 2, 2, "rows")]),
    17: (256, 74, 1, [(2, 66, 16, "rows"), (66, 74, 4, "rows"), (0, 2, 2, "rows")]),
    22: (256, 82, 1, [(2, 34, 16, "rows"), (34, 66, 16, "rows"), (66, 74, 4, "rows"), (74, 82, 4, "rows"),
                      (0, 2, 2, "rows")]),
    18: (256, 98, 1, [(2, 66, 16, "rows"), (66, 98, 16, "rows"), (0, 2, 2, "rows")]),
    21: (256, 110, 1, [(2, 66, 16, "rows"), (74, 106, 16, "rows"), (66, 74, 4, "rows"), (106, 110, 2, "rows"),
                       (0, 2, 2, "rows")]),
    19: (256, 50, 1, [(2, 34, 16, "rows"), (34, 50, 8, "rows"), (0, 2, 2, "rows")]),
    29: (256, 56, 1, [(0, 32, 16, "rows"), (32, 48, 8, "rows"), (48, 56, 8, "rows")]),
    20: (32, 18, 2, [(2, 18, 4, "lanes"), (0, 2, 2, "rows")]),
    23: (256, 136, 1, [(8, 136, 4, "lanes"), (0, 8, 8, "rows")]),
    39: (32, 17, 2, [(1, 17, 4, "lanes"), (0, 1, 1, "rows")]),
    40: (64, 36, 1, [(4, 36, 4, "lanes"), (0, 4, 4, "rows")]),
    41: (128, 18, 1, [(2, 18, 16, "rows"), (0, 2, 2, "rows")]),
    42: (64, 18, 1, [(2, 18, 16, "rows"), (0, 2, 2, "rows")]),
}


def splitmix64_bytes(count):
    z = (np.arange((count + 7) // 8, dtype=np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return (z ^ (z >> np.uint64(31))).view(np.uint8)[:count]


def order_part(part, piece, order):
    """(m_tiles, tiles, bytes) from (m_tiles, 16 rows, tiles, blocks, bytes of the part)."""
    m_tiles, _, tiles, blocks, size = part.shape
    if order == "rows":
        pieces = part.reshape(m_tiles, 16, tiles, blocks * size // piece, piece)
        return pieces.transpose(0, 2, 3, 1, 4).reshape(m_tiles, tiles, -1)
    #                      m_tile, half, g, tile, run, lane of a quad, byte
    runs = part.reshape(m_tiles, 2, 8, tiles, blocks * size // (4 * piece), 4, piece)
    if piece == 16:
        ordered = runs.transpose(0, 3, 4, 1, 2, 5, 6)
    elif piece == 8:
        ordered = runs.transpose(0, 3, 4, 2, 5, 1, 6)
    else:  #              m_tile, half, g, tile, pair of runs, run of the pair, lane, byte
        pairs = runs.reshape(m_tiles, 2, 8, tiles, -1, 2, 4, piece)
        ordered = pairs.transpose(0, 3, 4, 2, 6, 5, 1, 7)
    return np.ascontiguousarray(ordered).reshape(m_tiles, tiles, -1)


def pack(type_id, data):
    """Records of a matrix given as (rows, bytes of a row)."""
    elements, block_bytes, blocks, parts = FORMATS[type_id]
    if elements == 1:  # 64 elements count as a block
        block_bytes, blocks, parts = 64 * block_bytes, 1, [(0, 64 * block_bytes, 16, "lanes")]
    rows, row_bytes = data.shape
    tiles = -(-row_bytes // (blocks * block_bytes))
    m_tiles = -(-rows // 16)
    padded = np.zeros((m_tiles * 16, tiles * blocks * block_bytes), np.uint8)
    padded[:rows, :row_bytes] = data
    fields = padded.reshape(m_tiles, 16, tiles, blocks, block_bytes)
    return np.concatenate([order_part(fields[..., first:end], piece, order)
                           for first, end, piece, order in parts], axis=2)


def main():
    lines = []
    for type_id, (elements, block_bytes, blocks, _) in FORMATS.items():
        for rows, tiles in ((37, 3), (16, 1), (1, 9)):
            cols = elements * (blocks * tiles - (tiles > 1))  # the last tile is not full, if it can be
            if elements == 1:
                cols -= 26 if tiles > 1 else 0
            row_bytes = cols // elements * block_bytes
            packed = pack(type_id, splitmix64_bytes(rows * row_bytes).reshape(rows, row_bytes))
            lines.append(f"{type_id} {rows} {cols} {packed.size} {zlib.crc32(packed.tobytes()):08x}")
    TARGET.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
