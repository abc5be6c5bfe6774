// Sizes of the tiles into which kernels and host loops divide a matrix: constants, and no
// functions.
#pragma once

#include <cstdint>

namespace wcuda::quant {

constexpr uint32_t kMTileRows = 16;  // rows of a packed tile and of an M-tile
// Kernels process an M-tile by K-tiles of 256 inputs: one packed tile of 256, two of 128 or four
// of 64. A half is four groups of 32 inputs.
constexpr uint32_t kKTileInputs = 256;
constexpr uint32_t kHalfKTileInputs = 128;

}  // namespace wcuda::quant
