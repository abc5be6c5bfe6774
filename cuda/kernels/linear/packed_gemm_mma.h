// packed_gemm for code without WGMMA: on compute capability 8.0 to 8.9, 10.0 and 12.0, and in
// builds for one of these that run on a later device.
#pragma once

#include "kernels/linear/half_input.h"
#include "kernels/linear/linear.h"
#include "kernels/linear/token_groups.h"
#include "kernels/ptx/launch.h"

namespace wcuda::kernels {

constexpr uint32_t kMmaTokens = 64;  // per tile

// A launch computes one matrix.
struct GemmMmaParams {
  uint32_t tokens;
  uint32_t rows;
  uint32_t token_tiles;
  uint32_t k_tile_count;
  uint64_t m_tile_bytes;
  Epilogue epilogue;            // kStore, kAdd, kSiluTimes or kGeluTanhTimes
  const uint16_t* h;            // (token_tiles, k_tile_count * 4, kMmaTokens, 64)
  const float* scales;          // (tokens)
  const TokenTile* groups;      // (token_tiles) of a grouped launch, else null
  const uint8_t* packed_tiles;  // (rows / 16, m_tile_bytes)
  float scale_factor;
  const float* bias;  // (rows); may be null
  float* output;      // (tokens, rows)
};

// The kernel of a type, and what its launcher needs to know.
struct GemmMmaKernel {
  InputOrder order;
  uint32_t warps;  // per CTA; each has one M-tile
  uint32_t shared_bytes;
  void (*kernel)(const GemmMmaParams params);
};

// The tiles of kMmaTokens tokens of a grouped launch (token_tiles.h).
struct TokenTiles {
  const TokenTile* tiles = nullptr;  // device memory; null: all tokens have the same matrices
  uint32_t count = 0;
};

// As packed_gemm, but a token's bits depend only on its own x and matrices. `half` has all but
// tile_tokens and order.
cudaError_t packed_gemm_mma(const LinearArgs& args, HalfInputArgs half, const TokenTiles& tiles,
                            const Launch& launch);

}  // namespace wcuda::kernels
