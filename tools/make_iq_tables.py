#!/usr/bin/env python3
"""Writes cuda/kernels/shared/iq_tables.h: the codebooks of the IQ formats, taken from the `gguf` package (MIT).

Run: python tools/make_iq_tables.py [--check]   (needs gguf==0.19.0)
With --check nothing is written; the exit status is 1 if the file differs from what would be.
"""

import argparse
import pathlib
import sys

import numpy as np
from gguf import quants

TARGET = pathlib.Path(__file__).resolve().parent.parent / "cuda" / "kernels" / "shared" / "iq_tables.h"

HEAD = """\
// Codebooks of the IQ formats: data of the file format. Made by tools/make_iq_tables.py from the
// Python package gguf (MIT, see NOTICE); do not edit. Each entry packs the codes of one group of
// weights, the first in the lowest bits; quant_unpack_iq.h turns codes into values.
#pragma once

#include "kernels/shared/numeric.h"

namespace wcuda::quant {
// clang-format off
"""

TAIL = """
// clang-format on
}  // namespace wcuda::quant
"""


def packed_grid(cls):
    """(entries) integers: codes of a row of the grid, `bits` each, the first in the lowest bits."""
    levels = len(cls.grid_map)
    bits = 2 if levels == 3 else 4
    cls.init_grid()
    grid = cls.grid.reshape(cls.grid_shape)
    codes = np.searchsorted(np.array(cls.grid_map, dtype=np.float32), grid)
    assert (np.array(cls.grid_map, dtype=np.float32)[codes] == grid).all()
    shifts = np.arange(grid.shape[1]) * bits
    return (codes.astype(np.int64) << shifts).sum(axis=1), bits


def table(name, comment, values):
    lines = [f"\n// {comment}", f"WCUDA_HD inline const uint16_t* {name}() {{",
             f"  static const uint16_t kTable[{len(values)}] = {{"]
    for i in range(0, len(values), 12):
        lines.append("    " + ", ".join(f"0x{v:04x}" for v in values[i:i + 12]) + ",")
    lines += ["  };", "  return kTable;", "}"]
    return "\n".join(lines) + "\n"


def render():
    text = HEAD
    for cls in (quants.IQ2_XXS, quants.IQ2_XS, quants.IQ2_S, quants.IQ3_XXS, quants.IQ3_S,
                quants.IQ1_S):
        values, bits = packed_grid(cls)
        name = cls.__name__.lower()
        comment = f"{cls.__name__}: {cls.grid_shape[0]} groups of {cls.grid_shape[1]} codes of {bits} bits"
        text += table(name + "_grid", comment, values)
    return text + TAIL


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    args = parser.parse_args()
    text = render()
    if args.check:
        same = TARGET.exists() and TARGET.read_text() == text
        print("iq_tables.h is " + ("up to date" if same else "out of date"))
        sys.exit(0 if same else 1)
    TARGET.write_text(text)


if __name__ == "__main__":
    main()
