// Chooses the inner loop of host matrix products for this processor.
#include "core/gemm/host_tile.h"

#include <string_view>

#include "core/base/cpu.h"

namespace wcuda::compute {

extern const HostTile kPortableTile;
#if defined(__x86_64__)
extern const HostTile kAvx2Tile;
extern const HostTile kAvx512Tile;
#endif

const HostTile* find_host_tile(const char* name) {
  const std::string_view wanted(name);
  if (wanted == kPortableTile.name) return &kPortableTile;
#if defined(__x86_64__)
  if (wanted == kAvx2Tile.name && cpu_has_avx2()) return &kAvx2Tile;
  if (wanted == kAvx512Tile.name && cpu_has_avx512()) return &kAvx512Tile;
#endif
  return nullptr;
}

const HostTile& best_host_tile() {
  for (const char* const name : {"avx512", "avx2"})
    if (const HostTile* const tile = find_host_tile(name)) return *tile;
  return kPortableTile;
}

}  // namespace wcuda::compute
