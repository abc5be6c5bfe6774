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

// 16 multiply-adds a chain and step.
__attribute__((target("avx2"))) void multiply_avx2(unsigned) {
  __m256i sums[kChains] = {};
  __m256i w = _mm256_set1_epi16(3);
  for (uint64_t step = 0; step < kSteps; ++step) {
    asm("" : "+x"(w));
#pragma GCC unroll 16
    for (__m256i& sum : sums) sum = _mm256_add_epi32(sum, _mm256_madd_epi16(w, sum));
  }
  for (const __m256i& sum : sums) sink = _mm256_extract_epi32(sum, 0);
}

// Likewise, with one instruction.
__attribute__((target("avx2,avxvnni"))) void multiply_avxvnni(unsigned) {
  __m256i sums[kChains] = {};
  __m256i w = _mm256_set1_epi16(3);
  for (uint64_t step = 0; step < kSteps; ++step) {
    asm("" : "+x"(w));
#pragma GCC unroll 16
    for (__m256i& sum : sums) sum = _mm256_dpwssd_avx_epi32(sum, w, w);
  }
  for (const __m256i& sum : sums) sink = _mm256_extract_epi32(sum, 0);
}

// 32 multiply-adds a chain and step.
__attribute__((target("avx512f,avx512bw,avx512vnni"))) void multiply_avx512(unsigned) {
  __m512i sums[kChains] = {};
  __m512i w = _mm512_set1_epi16(3);
  for (uint64_t step = 0; step < kSteps; ++step) {
    asm("" : "+v"(w));
#pragma GCC unroll 16
    for (__m512i& sum : sums) sum = _mm512_dpwssd_epi32(sum, w, w);
  }
  for (const __m512i& sum : sums) sink = _mm512_cvtsi512_si32(sum);
}

// 8 multiply-adds a chain and step.
__attribute__((target("avx2,fma"))) void multiply_avx2_f32(unsigned) {
  __m256 sums[kChains] = {};
  __m256 w = _mm256_set1_ps(0.5f);
  for (uint64_t step = 0; step < kSteps; ++step) {
    asm("" : "+x"(w));
#pragma GCC unroll 16
    for (__m256& sum : sums) sum = _mm256_fmadd_ps(sum, w, w);
  }
  for (const __m256& sum : sums) sink = static_cast<int>(_mm256_cvtss_f32(sum));
}

// 16 multiply-adds a chain and step.
__attribute__((target("avx512f"))) void multiply_avx512_f32(unsigned) {
  __m512 sums[kChains] = {};
  __m512 w = _mm512_set1_ps(0.5f);
  for (uint64_t step = 0; step < kSteps; ++step) {
    asm("" : "+v"(w));
#pragma GCC unroll 16
    for (__m512& sum : sums) sum = _mm512_fmadd_ps(sum, w, w);
  }
  for (const __m512& sum : sums) sink = static_cast<int>(_mm512_cvtss_f32(sum));
}

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
