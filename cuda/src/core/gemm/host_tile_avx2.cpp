// The inner loop of matrix products for AVX2 with FMA.
#define WCUDA_TILE_LANES 8
#define WCUDA_TILE_ROWS 6
#include "core/gemm/host_tile_body.h"

namespace wcuda::compute {
extern const HostTile kAvx2Tile;
const HostTile kAvx2Tile = {"avx2", kRows, kCols, multiply};

}  // namespace wcuda::compute
