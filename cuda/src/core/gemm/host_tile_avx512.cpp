// The inner loop of matrix products for AVX-512.
#define WCUDA_TILE_LANES 16
#define WCUDA_TILE_ROWS 12
#include "core/gemm/host_tile_body.h"

namespace wcuda::compute {
extern const HostTile kAvx512Tile;
const HostTile kAvx512Tile = {"avx512", kRows, kCols, multiply};

}  // namespace wcuda::compute
