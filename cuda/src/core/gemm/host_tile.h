// The inner loop of host matrix products, one per instruction set, chosen at run time.
//
// The files that hold them (host_tile_avx2.cpp, …) are compiled with flags that this processor may
// not understand elsewhere: they include nothing whose inline functions other files share.
#pragma once

#include <cstdint>

namespace wcuda::compute {

struct HostTile {
  const char* name;
  int64_t rows;
  int64_t cols;
  // sum (rows, cols), rows `stride` apart, += a (depth, rows) transposed * b (depth, cols), in
  // ascending depth. b and sum are aligned to 64 bytes, stride is a multiple of 16.
  void (*multiply)(const float* a, const float* b, int64_t depth, float* sum, int64_t stride);
};

// The fastest that this processor supports.
const HostTile& best_host_tile();
// By name ("portable", "avx2", "avx512"); null if this processor or this build lacks it.
const HostTile* find_host_tile(const char* name);

}  // namespace wcuda::compute
