// What bounds the host backend on this machine: bytes read per second from memory and multiply-adds
// per second between registers, of 16-bit integers and of f32, by instruction set, the best of
// several runs.
//
//   host_limits_bench [threads]
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <thread>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>

#include "core/base/cpu.h"

namespace {

using wcuda::cpu_has_avx2;
using wcuda::cpu_has_avx512_vnni;
using wcuda::cpu_has_avx_vnni;

constexpr uint64_t kBytes = uint64_t{192} << 20;  // a thread's
constexpr uint64_t kSteps = 20'000'000;
constexpr int kChains = 10;

volatile int sink;

// `amount` a second of one thread, times the threads, all at once.
double best_rate(unsigned threads, double amount, const std::function<void(unsigned)>& work) {
  double best = 0.0;
  for (int run = 0; run < 8; ++run) {
    const auto begin = std::chrono::steady_clock::now();
    std::vector<std::thread> others;
    for (unsigned t = 0; t < threads; ++t) others.emplace_back(work, t);
    for (std::thread& other : others) other.join();
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
    best = std::max(best, amount * threads / seconds.count());
  }
  return best;
}

__attribute__((target("avx2"))) void read_all(const uint8_t* bytes) {
  __m256i sums[4] = {};
  for (uint64_t i = 0; i < kBytes; i += 128) {
    __builtin_prefetch(bytes + i + 4096);
    __builtin_prefetch(bytes + i + 4160);
    for (uint64_t k = 0; k < 4; ++k)
      sums[k] = _mm256_xor_si256(
          sums[k], _mm256_loadu_si256(reinterpret_cast<const __m256i*>(bytes + i + k * 32)));
  }
  sums[0] =
      _mm256_xor_si256(_mm256_xor_si256(sums[0], sums[1]), _mm256_xor_si256(sums[2], sums[3]));
  sink = _mm256_extract_epi32(sums[0], 0);
}

// Defines NAME, a thread's kSteps steps of kChains chains of EXPRESSION, which adds products of w
// to `sum`. A function for each instruction set: templates cannot have the attribute of one.
#define WCUDA_MULTIPLY(NAME, TARGET, VECTOR, W, EXPRESSION, FIRST)         \
  __attribute__((target(TARGET))) void NAME(unsigned) {                    \
    VECTOR sums[kChains] = {};                                             \
    VECTOR w = W;                                                          \
    for (uint64_t step = 0; step < kSteps; ++step) {                       \
      asm("" : "+v"(w));                                                   \
      _Pragma("GCC unroll 16") for (VECTOR & sum : sums) sum = EXPRESSION; \
    }                                                                      \
    for (const VECTOR& sum : sums) sink = static_cast<int>(FIRST(sum));    \
  }

// 16, 16 and 32 multiply-adds of 16-bit integers a chain and step, in two instructions or one.
WCUDA_MULTIPLY(multiply_avx2, "avx2", __m256i, _mm256_set1_epi16(3),
               _mm256_add_epi32(sum, _mm256_madd_epi16(w, sum)), _mm256_cvtsi256_si32)
WCUDA_MULTIPLY(multiply_avxvnni, "avx2,avxvnni", __m256i, _mm256_set1_epi16(3),
               _mm256_dpwssd_avx_epi32(sum, w, w), _mm256_cvtsi256_si32)
WCUDA_MULTIPLY(multiply_avx512, "avx512f,avx512bw,avx512vnni", __m512i, _mm512_set1_epi16(3),
               _mm512_dpwssd_epi32(sum, w, w), _mm512_cvtsi512_si32)
// 8 and 16 of f32.
WCUDA_MULTIPLY(multiply_avx2_f32, "avx2,fma", __m256, _mm256_set1_ps(0.5f),
               _mm256_fmadd_ps(sum, w, w), _mm256_cvtss_f32)
WCUDA_MULTIPLY(multiply_avx512_f32, "avx512f", __m512, _mm512_set1_ps(0.5f),
               _mm512_fmadd_ps(sum, w, w), _mm512_cvtss_f32)

}  // namespace

int main(int argc, char** argv) {
  const unsigned wanted = argc > 1 ? static_cast<unsigned>(std::atoi(argv[1])) : 0;
  const unsigned threads = wanted > 0 ? wanted : std::thread::hardware_concurrency();
  if (!cpu_has_avx2()) return 0;
  const std::vector<uint8_t> bytes(kBytes * threads, 1);
  std::printf("read %.1f GB/s\n",
              1e-9 * best_rate(threads, kBytes, [&](unsigned t) { read_all(&bytes[t * kBytes]); }));
  const double products = double{kSteps} * kChains * 1e-9;
  std::printf("avx2 %.1f GMAC/s\n", best_rate(threads, products * 16, multiply_avx2));
  std::printf("avx2-f32 %.1f GMAC/s\n", best_rate(threads, products * 8, multiply_avx2_f32));
  if (cpu_has_avx_vnni())
    std::printf("avxvnni %.1f GMAC/s\n", best_rate(threads, products * 16, multiply_avxvnni));
  if (cpu_has_avx512_vnni()) {
    std::printf("avx512 %.1f GMAC/s\n", best_rate(threads, products * 32, multiply_avx512));
    std::printf("avx512-f32 %.1f GMAC/s\n", best_rate(threads, products * 16, multiply_avx512_f32));
  }
  return 0;
}
#else
int main() { return 0; }
#endif
