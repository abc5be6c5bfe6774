// Arithmetic on sizes that reports overflow instead of wrapping.
#pragma once

#include <cstdint>

namespace wcuda {

// Each returns false, leaving `result` unspecified, when the exact value does not fit.
inline bool checked_add(uint64_t a, uint64_t b, uint64_t* result) {
  return !__builtin_add_overflow(a, b, result);
}
inline bool checked_mul(uint64_t a, uint64_t b, uint64_t* result) {
  return !__builtin_mul_overflow(a, b, result);
}
// Rounds up to a multiple of `alignment`, a power of two.
inline bool checked_align_up(uint64_t value, uint64_t alignment, uint64_t* result) {
  if (!checked_add(value, alignment - 1, result)) return false;
  *result &= ~(alignment - 1);
  return true;
}

constexpr uint64_t ceil_div(uint64_t a, uint64_t b) { return a / b + (a % b != 0); }
constexpr uint64_t align_up(uint64_t value, uint64_t alignment) {
  return (value + alignment - 1) & ~(alignment - 1);
}
constexpr bool is_power_of_two(uint64_t value) { return value && (value & (value - 1)) == 0; }

}  // namespace wcuda
