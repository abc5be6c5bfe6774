// Plain loops, which the compiler vectorizes for each instruction set. Results are the same for
// all, because sums are sums of integers and no operations are contracted.
#include "llm/ops/sampling_scan.h"

#include <algorithm>

#include "core/base/cpu.h"
#include "kernels/shared/sampling_math.h"

namespace wcuda::ops {
namespace {

namespace math = wcuda::sampling;

// Orders floats as integers: -NaN < -infinity < … < -0 < 0 < … < infinity < NaN.
inline __attribute__((always_inline)) int32_t order(float value) {
  const int32_t bits = math::bit_cast<int32_t>(value);
  return bits ^ ((bits >> 31) & 0x7fffffff);
}
inline float unorder(int32_t key) {
  return math::bit_cast<float>(key ^ ((key >> 31) & 0x7fffffff));
}
constexpr int32_t kInfinity = 0x7f800000;
constexpr int32_t kMinusInfinity = static_cast<int32_t>(0x807fffff);

struct Range {
  int32_t low, high;
};

inline __attribute__((always_inline)) Range range_body(const float* logits, uint32_t n) {
  int32_t low = kInfinity, high = kMinusInfinity;
  for (uint32_t i = 0; i < n; ++i) {
    const int32_t key = order(logits[i]);
    low = key < low ? key : low;
    high = key > high ? key : high;
  }
  return {low, high};
}

inline __attribute__((always_inline)) uint64_t weight_sum_body(const float* logits, uint32_t n,
                                                               float max) {
  uint64_t sum = 0;
  for (uint32_t i = 0; i < n; ++i)
    sum += math::weight_biased(math::exp_negative(math::sub(max, logits[i])));
  return sum - n * math::kWeightBias;
}

inline __attribute__((always_inline)) void probabilities_body(const float* __restrict logits,
                                                              uint32_t n, float max,
                                                              float temperature,
                                                              float* __restrict y,
                                                              float* __restrict p) {
  for (uint32_t i = 0; i < n; ++i) {
    // fabs: -0 must order as 0.
    const float distance = __builtin_fabsf(math::div(math::sub(max, logits[i]), temperature));
    y[i] = distance;
    p[i] = math::exp_negative(distance);
  }
}

// The same body compiled for one instruction set.
struct Variant {
  Range (*range)(const float*, uint32_t);
  uint64_t (*weight_sum)(const float*, uint32_t, float);
  void (*probabilities)(const float*, uint32_t, float, float, float*, float*);
};

#define WCUDA_SCAN_VARIANT(name, attribute)                                                     \
  attribute Range range_##name(const float* l, uint32_t n) { return range_body(l, n); }         \
  attribute uint64_t weight_sum_##name(const float* l, uint32_t n, float max) {                 \
    return weight_sum_body(l, n, max);                                                          \
  }                                                                                             \
  attribute void probabilities_##name(const float* l, uint32_t n, float max, float t, float* y, \
                                      float* p) {                                               \
    probabilities_body(l, n, max, t, y, p);                                                     \
  }                                                                                             \
  constexpr Variant k_##name{range_##name, weight_sum_##name, probabilities_##name};

WCUDA_SCAN_VARIANT(plain, )
#if defined(__x86_64__)
#ifdef __clang__
#define WCUDA_SCAN_AVX512 "avx512f,avx512dq,fma"
#else
#define WCUDA_SCAN_AVX512 "avx512f,avx512dq,fma,prefer-vector-width=512"
#endif
WCUDA_SCAN_VARIANT(avx2, __attribute__((target("avx2,fma"))))
WCUDA_SCAN_VARIANT(avx512, __attribute__((target(WCUDA_SCAN_AVX512))))
#endif
#undef WCUDA_SCAN_VARIANT

const Variant& variant() {
  static const Variant chosen = [] {
#if defined(__x86_64__)
    if (cpu_has_avx512()) return k_avx512;
    if (cpu_has_avx2()) return k_avx2;
#endif
    return k_plain;
  }();
  return chosen;
}

}  // namespace

bool scan_max(const float* logits, uint32_t n, float* max) {
  const Range range = variant().range(logits, n);
  *max = unorder(range.high);
  return range.high < kInfinity && range.low >= kMinusInfinity;
}

uint64_t scan_weight_sum(const float* logits, uint32_t n, float max) {
  return variant().weight_sum(logits, n, max);
}

void scan_probabilities(const float* logits, uint32_t n, float max, float temperature, float* y,
                        float* p) {
  variant().probabilities(logits, n, max, temperature, y, p);
}

uint32_t scan_find(const float* logits, uint32_t n, float value) {
  constexpr uint32_t kBlock = 256;
  for (uint32_t first = 0; first < n; first += kBlock) {
    const uint32_t end = std::min(n - first, kBlock) + first;
    uint32_t any = 0;
    for (uint32_t i = first; i < end; ++i) any |= logits[i] == value;
    if (!any) continue;
    for (uint32_t i = first; i < end; ++i)
      if (logits[i] == value) return i;
  }
  return n;
}

}  // namespace wcuda::ops
