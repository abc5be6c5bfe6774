// The loops that are the same in every instruction set, written over Vec. Included once by each
// kernels_….cpp, which compiles them with its own flags.
#pragma once

#include "ops/host/kernels.h"
#include "ops/host/vector.h"

namespace {

using wcuda::ops::host::AttentionTile;

template <uint32_t kTokens>
WCUDA_INLINE void dot_tile(const float* w, uint32_t n, const float* x, uint64_t x_stride,
                           float* out, uint64_t out_stride) {
  Vec even[kTokens] = {};
  Vec odd[kTokens] = {};
  uint32_t i = 0;
  for (; i + 2 * kLanes <= n; i += 2 * kLanes) {
    const Vec w0 = load(w + i);
    const Vec w1 = load(w + i + kLanes);
    for (uint32_t t = 0; t < kTokens; ++t) {
      even[t] += w0 * load(x + t * x_stride + i);
      odd[t] += w1 * load(x + t * x_stride + i + kLanes);
    }
  }
  for (uint32_t t = 0; t < kTokens; ++t) {
    float total = sum(even[t] + odd[t]);
    for (uint32_t j = i; j < n; ++j) total += w[j] * x[t * x_stride + j];
    out[t * out_stride] = total;
  }
}

void dot(const float* w, uint32_t n, const float* x, uint64_t x_stride, uint32_t token_count,
         float* out, uint64_t out_stride) {
  uint32_t t = 0;
  for (; t + 4 <= token_count; t += 4)
    dot_tile<4>(w, n, x + t * x_stride, x_stride, out + t * out_stride, out_stride);
  for (; t < token_count; ++t)
    dot_tile<1>(w, n, x + t * x_stride, x_stride, out + t * out_stride, out_stride);
}

void rms_norm(const float* x, const float* gain, uint32_t n, float epsilon, float* out) {
  float square_sum;
  dot_tile<1>(x, n, x, 0, &square_sum, 0);
  const float factor = 1.0f / __builtin_sqrtf(square_sum / static_cast<float>(n) + epsilon);
  uint32_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    const Vec scaled = load(x + i) * factor;
    store(out + i, gain ? scaled * load(gain + i) : scaled);
  }
  for (; i < n; ++i) out[i] = gain ? x[i] * factor * gain[i] : x[i] * factor;
}

// Applies `function` to vectors of gate and up; the rest through a padded copy.
template <class Function>
WCUDA_INLINE void map_pairs(const float* gate, const float* up, uint32_t n, float* out,
                            const Function& function) {
  uint32_t i = 0;
  for (; i + kLanes <= n; i += kLanes) store(out + i, function(load(gate + i), load(up + i)));
  if (i == n) return;
  float rest[2][kLanes] = {};
  for (uint32_t j = i; j < n; ++j) {
    rest[0][j - i] = gate[j];
    rest[1][j - i] = up[j];
  }
  store(rest[0], function(load(rest[0]), load(rest[1])));
  for (uint32_t j = i; j < n; ++j) out[j] = rest[0][j - i];
}

// x / (1 + e^-x)
void silu_multiply(const float* gate, const float* up, uint32_t n, float* out) {
  map_pairs(gate, up, n, out, [](Vec g, Vec u) { return g / (exp_vec(-g) + 1.0f) * u; });
}

// x / 2 * (1 + tanh(y)) = x / (1 + e^-2y), y = sqrt(2 / pi) * (x + 0.044715 x^3)
void gelu_multiply(const float* gate, const float* up, uint32_t n, float* out) {
  map_pairs(gate, up, n, out, [](Vec g, Vec u) {
    const Vec y = g * (g * g * 0.044715f + 1.0f) * 0.7978845608f;
    return g / (exp_vec(y * -2.0f) + 1.0f) * u;
  });
}

// ---- attention ----

constexpr uint32_t kPageSlots = 64;

WCUDA_INLINE float half_value(uint16_t bits) {
#if defined(__F16C__)
  return _cvtsh_ss(bits);
#else
  const uint32_t sign = (bits & 0x8000u) << 16;
  const uint32_t exponent = (bits >> 10) & 31;
  const uint32_t mantissa = bits & 0x3ff;
  float value;
  uint32_t word = sign | (exponent == 31 ? 0x7f800000u : (exponent + 112) << 23) | mantissa << 13;
  if (exponent == 0) {
    value = static_cast<float>(mantissa) * 0x1p-24f;
    __builtin_memcpy(&word, &value, sizeof word);
    word |= sign;
  }
  __builtin_memcpy(&value, &word, sizeof value);
  return value;
#endif
}

WCUDA_INLINE uint16_t load_u16(const uint8_t* p) {
  uint16_t value;
  __builtin_memcpy(&value, p, sizeof value);
  return value;
}

// One key or value row of n elements as f32.
WCUDA_INLINE void decode_row(const AttentionTile& tile, const uint8_t* row, float* out) {
  const uint32_t n = tile.head_length;
  if (tile.kv_type == 0) {
    uint32_t i = 0;
#if defined(__AVX512F__)
    for (; i + 16 <= n; i += 16)
      _mm512_storeu_ps(
          out + i,
          _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(row + 2 * i))));
#elif defined(__F16C__)
    for (; i + 8 <= n; i += 8)
      _mm256_storeu_ps(
          out + i, _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(row + 2 * i))));
#endif
    for (; i < n; ++i) out[i] = half_value(load_u16(row + 2 * i));
  } else if (tile.kv_type == 1) {
    for (uint32_t block = 0; block < n / 32; ++block, row += 34, out += 32) {
      const float scale = half_value(load_u16(row));
      for (uint32_t i = 0; i < 32; ++i)
        out[i] = scale * static_cast<float>(static_cast<int8_t>(row[2 + i]));
    }
  } else {
    for (uint32_t i = 0; i < n; ++i) out[i] = tile.e4m3_values[row[i]];
  }
}

struct SlotRange {
  uint32_t begin;
  uint32_t end;
};

// Slots of page `page` among positions first … last.
WCUDA_INLINE SlotRange slots_of(uint32_t page, uint32_t first, uint32_t last) {
  const uint32_t base = page * kPageSlots;
  return {first > base ? first - base : 0, last - base < kPageSlots ? last - base + 1 : kPageSlots};
}

// First position that a token at `position` attends to.
WCUDA_INLINE uint32_t first_visible(const AttentionTile& tile, uint32_t position) {
  return tile.window != 0 && position >= tile.window ? position - tile.window + 1 : 0;
}

// What one query has gathered so far.
struct Gathered {
  float* sum;  // (head_length) of e^(score - maximum) * value
  float* maximum;
  float* weight;  // sum of e^(score - maximum)
};

// Adds one page's slots to a query's sums: online softmax. scores (64) are scaled.
WCUDA_INLINE void gather_page(uint32_t head_length, SlotRange slots, float* scores,
                              const float* values, const Gathered& gathered) {
  float maximum = *gathered.maximum;
  for (uint32_t s = slots.begin; s < slots.end; ++s)
    maximum = scores[s] > maximum ? scores[s] : maximum;
  if (maximum == -__builtin_inff()) maximum = 0.0f;  // nothing but -infinity: weights of 0
  const float rescale = exp_vec(broadcast(*gathered.maximum - maximum))[0];
  const float kept = *gathered.maximum == -__builtin_inff() ? 0.0f : rescale;
  float weight = *gathered.weight * kept;
  for (uint32_t s = slots.begin / kLanes * kLanes; s < slots.end; s += kLanes)
    store(scores + s, exp_vec(load(scores + s) - maximum));
  for (uint32_t s = slots.begin; s < slots.end; ++s) weight += scores[s];
  *gathered.maximum = maximum;
  *gathered.weight = weight;
  uint32_t d = 0;
  for (; d + 4 * kLanes <= head_length; d += 4 * kLanes) {
    float* target = gathered.sum + d;
    Vec sums[4];
    for (uint32_t i = 0; i < 4; ++i) sums[i] = load(target + i * kLanes) * kept;
    for (uint32_t s = slots.begin; s < slots.end; ++s)
      for (uint32_t i = 0; i < 4; ++i)
        sums[i] += load(values + s * head_length + d + i * kLanes) * scores[s];
    for (uint32_t i = 0; i < 4; ++i) store(target + i * kLanes, sums[i]);
  }
  for (; d < head_length; ++d) {
    float total = gathered.sum[d] * kept;
    for (uint32_t s = slots.begin; s < slots.end; ++s)
      total += scores[s] * values[s * head_length + d];
    gathered.sum[d] = total;
  }
}

void attend(const AttentionTile& tile) {
  const uint32_t n = tile.head_length;
  const uint32_t query_count = tile.token_count * tile.group_size;
  float* scores = tile.work;
  float* keys = scores + kPageSlots;
  float* values = keys + kPageSlots * n;
  float* sums = values + kPageSlots * n;
  float* maxima = sums + uint64_t{query_count} * n;
  float* weights = maxima + query_count;
  for (uint64_t i = 0; i < uint64_t{query_count} * n; ++i) sums[i] = 0.0f;
  for (uint32_t i = 0; i < query_count; ++i) {
    maxima[i] = -__builtin_inff();
    weights[i] = 0.0f;
  }
  const uint32_t first = first_visible(tile, tile.first_position);
  const uint32_t last = tile.first_position + tile.token_count - 1;
  for (uint32_t page = first / kPageSlots; page <= last / kPageSlots; ++page) {
    const SlotRange stored = slots_of(page, first, last);
    const uint64_t offset = tile.page_table[page] * tile.page_bytes;
    for (uint32_t s = stored.begin; s < stored.end; ++s) {
      decode_row(tile, tile.keys + offset + s * tile.row_bytes, keys + s * n);
      decode_row(tile, tile.values + offset + s * tile.row_bytes, values + s * n);
    }
    for (uint32_t q = 0; q < query_count; ++q) {
      const uint32_t token = q / tile.group_size;
      const uint32_t position = tile.first_position + token;
      const uint32_t visible = first_visible(tile, position);
      if (position < page * kPageSlots || visible >= (page + 1) * kPageSlots) continue;
      const SlotRange slots = slots_of(page, visible, position);
      const float* query = tile.query + token * tile.token_stride + q % tile.group_size * n;
      for (uint32_t s = 0; s < kPageSlots; ++s) scores[s] = 0.0f;
      dot(query, n, keys + slots.begin * n, n, slots.end - slots.begin, scores + slots.begin, 1);
      for (uint32_t s = slots.begin; s < slots.end; ++s) scores[s] *= tile.scale;
      gather_page(n, slots, scores, values, {sums + uint64_t{q} * n, maxima + q, weights + q});
    }
  }
  for (uint32_t q = 0; q < query_count; ++q) {
    float* out = tile.out + q / tile.group_size * tile.token_stride + q % tile.group_size * n;
    for (uint32_t i = 0; i < n; ++i) out[i] = sums[uint64_t{q} * n + i] / weights[q];
  }
}

}  // namespace
