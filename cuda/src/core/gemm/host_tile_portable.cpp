// The inner loop of matrix products for any processor.
#define WCUDA_TILE_LANES 4
#define WCUDA_TILE_ROWS 4
#include "core/gemm/host_tile_body.h"

namespace wcuda::compute {
extern const HostTile kPortableTile;
const HostTile kPortableTile = {"portable", kRows, kCols, multiply};

}  // namespace wcuda::compute
