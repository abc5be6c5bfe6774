// Division and multiples, rounded up.
#pragma once

#include <cstdint>

namespace wcuda::kernels {

constexpr uint32_t divide_up(uint32_t value, uint32_t by) { return (value + by - 1) / by; }
constexpr uint32_t round_up(uint32_t value, uint32_t granule) {
  return divide_up(value, granule) * granule;
}

}  // namespace wcuda::kernels
