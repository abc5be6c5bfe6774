// The arithmetic of sampling, shared by host and device so that both draw the same token.
//
// Every operation is one IEEE operation, rounded to nearest. Multiply-adds are fused only where
// written, and no library function is called. Host files that include this are compiled with
// -ffp-contract=off. Probabilities are integers (multiples of 2^-38 of the best token's), so their
// sums are exact and do not depend on their order.
#pragma once

#include <cstdint>
#include <cstring>

#ifdef __CUDACC__
#define WCUDA_HD __host__ __device__ __forceinline__
#else
#define WCUDA_HD inline __attribute__((always_inline))
#endif

namespace wcuda::sampling {

#ifdef __CUDA_ARCH__
WCUDA_HD float add(float a, float b) { return __fadd_rn(a, b); }
WCUDA_HD float sub(float a, float b) { return __fsub_rn(a, b); }
WCUDA_HD float mul(float a, float b) { return __fmul_rn(a, b); }
WCUDA_HD float div(float a, float b) { return __fdiv_rn(a, b); }
WCUDA_HD float multiply_add(float a, float b, float c) { return __fmaf_rn(a, b, c); }
WCUDA_HD double add(double a, double b) { return __dadd_rn(a, b); }
WCUDA_HD double sub(double a, double b) { return __dsub_rn(a, b); }
WCUDA_HD double mul(double a, double b) { return __dmul_rn(a, b); }
WCUDA_HD double div(double a, double b) { return __ddiv_rn(a, b); }
WCUDA_HD uint64_t mul_high(uint64_t a, uint64_t b) { return __umul64hi(a, b); }
#else
WCUDA_HD float add(float a, float b) { return a + b; }
WCUDA_HD float sub(float a, float b) { return a - b; }
WCUDA_HD float mul(float a, float b) { return a * b; }
WCUDA_HD float div(float a, float b) { return a / b; }
WCUDA_HD float multiply_add(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
WCUDA_HD double add(double a, double b) { return a + b; }
WCUDA_HD double sub(double a, double b) { return a - b; }
WCUDA_HD double mul(double a, double b) { return a * b; }
WCUDA_HD double div(double a, double b) { return a / b; }
WCUDA_HD uint64_t mul_high(uint64_t a, uint64_t b) {
  __extension__ typedef unsigned __int128 Wide;
  return static_cast<uint64_t>(static_cast<Wide>(a) * b >> 64);
}
#endif

template <class To, class From>
WCUDA_HD To bit_cast(From from) {
  static_assert(sizeof(To) == sizeof(From), "bit_cast keeps the size");
  To to;
  memcpy(&to, &from, sizeof(to));
  return to;
}

// Returns exp(-kScale * y) for y from 0 to 87 / kScale, within 2 ulp. kScale is a power of two,
// which changes no bit of the result.
template <int kScale>
WCUDA_HD float exp_bounded(float y) {
  constexpr float kLog2E = 1.44269504f * kScale;
  constexpr float kLn2High = 0.693359375f / kScale;  // 9 bits: multiples up to 2^15 are exact
  constexpr float kLn2Low = -2.12194440e-4f / kScale;
  constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer
  constexpr float k2 = kScale * kScale, k4 = k2 * k2;
  const float x = -y;
  const float shifted = multiply_add(x, kLog2E, kRound);
  const float n = sub(shifted, kRound);
  // |r| <= ln 2 / 2 / kScale
  const float r = multiply_add(-n, kLn2Low, multiply_add(-n, kLn2High, x));
  // Minimax polynomial for exp(r) with p(0) = 1 and float coefficients: error below 2e-8.
  float p = 0x1.6ae6dep-10f * k4 * k2;
  p = multiply_add(p, r, 0x1.1267d8p-7f * k4 * kScale);
  p = multiply_add(p, r, 0x1.555824p-5f * k4);
  p = multiply_add(p, r, 0x1.555418p-3f * k2 * kScale);
  p = multiply_add(p, r, 0x1.fffffcp-2f * k2);
  p = multiply_add(p, r, 1.0f * kScale);
  p = multiply_add(p, r, 1.0f);
  const uint32_t exponent = bit_cast<uint32_t>(shifted) - bit_cast<uint32_t>(kRound);
  return bit_cast<float>(bit_cast<uint32_t>(p) + (exponent << 23));
}
// Returns exp(-y) for y >= 0, infinity included, within 2 ulp; exp(-40) for y > 40.
WCUDA_HD float exp_negative(float y) {
  // Non-negative floats are ordered like their bits as integers. With an integer minimum, compilers
  // vectorise the loops around this.
  const int32_t bits = bit_cast<int32_t>(y), limit = 0x42200000;  // 40
  return exp_bounded<1>(bit_cast<float>(bits < limit ? bits : limit));
}

constexpr double kWeightOne = 274877906944.0;  // 2^38
// A vocabulary may have at most this many tokens, so that a sum of weights stays below 2^63.
constexpr uint32_t kMaxVocabulary = 1u << 24;

// Returns round(p * 2^38), ties to even, for p in [0, 1]; weight_biased returns that plus
// kWeightBias.
constexpr uint64_t kWeightBias = 0x40d8000000000000u;  // the double 1.5 * 2^14, whose ulp is 2^-38
WCUDA_HD uint64_t weight_biased(float p) {
  return bit_cast<uint64_t>(add(static_cast<double>(p), 24576.0));
}
WCUDA_HD uint64_t weight(float p) { return weight_biased(p) - kWeightBias; }
// weight(p) > 0.
WCUDA_HD bool has_weight(float p) { return p > 0x1p-39f; }

// Returns the natural logarithm of a finite v >= 1 within 1e-15 * (1 + log v).
WCUDA_HD double log_above_one(double v) {
  uint64_t bits = bit_cast<uint64_t>(v);
  int64_t exponent = static_cast<int64_t>(bits >> 52) - 1023;
  double m = bit_cast<double>((bits & 0x000fffffffffffffu) | 0x3ff0000000000000u);  // [1, 2)
  if (m > 1.4142135623730951) {
    m = mul(m, 0.5);
    exponent += 1;
  }
  const double t = div(sub(m, 1.0), add(m, 1.0));  // log m = 2 atanh t, |t| < 0.172
  const double u = mul(t, t), u2 = mul(u, u), u4 = mul(u2, u2), u8 = mul(u4, u4);
  // sum of u^k / (2 k + 1), k = 0 … 11, as a tree: few dependent operations
  const auto pair = [u](int k) { return add(1.0 / (2 * k + 1), mul(u, 1.0 / (2 * k + 3))); };
  const auto four = [u2, &pair](int k) { return add(pair(k), mul(u2, pair(k + 2))); };
  const double sum = add(add(four(0), mul(u4, four(4))), mul(u8, four(8)));
  return add(mul(mul(2.0, t), sum), mul(static_cast<double>(exponent), 0.6931471805599453));
}

// Returns the log probability of a logit, given the largest logit and log_of_weights of all.
WCUDA_HD float log_probability(float logit, float max, double log_sum) {
  return static_cast<float>(sub(static_cast<double>(sub(logit, max)), log_sum));
}
// Returns the logarithm of a sum of weights relative to the weight of the best token.
WCUDA_HD double log_of_weights(uint64_t sum) {
  return log_above_one(mul(static_cast<double>(sum), 1.0 / kWeightOne));
}

// Returns max(1, floor(share * total)), with share in (0, 1] truncated to 32 binary places.
WCUDA_HD uint64_t share_of(float share, uint64_t total) {
  const uint64_t fixed = static_cast<uint64_t>(mul(static_cast<double>(share), 4294967296.0));
  const uint64_t part = (total >> 32) * fixed + ((total & 0xffffffffu) * fixed >> 32);
  return part ? part : 1;
}

// Philox4x32-10 (Salmon, Moraes, Dror, Shaw: Parallel random numbers, as easy as 1, 2, 3; 2011).
struct Philox {
  uint32_t word[4];
};
WCUDA_HD Philox philox(Philox counter, uint32_t key0, uint32_t key1) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t a = uint64_t{0xD2511F53u} * counter.word[0];
    const uint64_t b = uint64_t{0xCD9E8D57u} * counter.word[2];
    counter = {{static_cast<uint32_t>(b >> 32) ^ counter.word[1] ^ key0, static_cast<uint32_t>(b),
                static_cast<uint32_t>(a >> 32) ^ counter.word[3] ^ key1, static_cast<uint32_t>(a)}};
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
  return counter;
}

// 64 random bits, a function of (seed, position) alone: counter (position, 0, 0, 0), key = seed.
WCUDA_HD uint64_t random_bits(uint64_t seed, uint32_t position) {
  const Philox out =
      philox({{position, 0, 0, 0}}, static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32));
  return uint64_t{out.word[0]} << 32 | out.word[1];
}

}  // namespace wcuda::sampling
