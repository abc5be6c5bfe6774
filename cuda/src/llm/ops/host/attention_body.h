// Attention over pages, the same in every instruction set: included by kernels_body.h.
//
// A tile is up to 16 tokens of one row times the query heads of one key-value head. Each page is
// expanded to f32 once for the tile, its keys transposed so that one vector holds the same element
// of several slots: scores need no sums across lanes. Softmax is online, page after page.
#pragma once

#include <type_traits>

#include "llm/ops/host/kernels.h"
#include "llm/ops/host/vector.h"

namespace {

using wcuda::ops::host::AttentionTile;

constexpr uint32_t kPageSlots = 64;
// Queries that share one load of keys or values; 4 vectors each stay in registers.
constexpr uint32_t kQueryBlock = kLanes == 16 ? 4 : 2;

WCUDA_INLINE float half_value(const uint8_t* p) {
  uint16_t bits;
  __builtin_memcpy(&bits, p, sizeof bits);
#if defined(__F16C__)
  return _cvtsh_ss(bits);
#else
  const uint32_t sign = (bits & 0x8000u) << 16;
  const uint32_t exponent = (bits >> 10) & 31;
  const uint32_t mantissa = bits & 0x3ff;
  uint32_t word = (exponent == 31 ? 0x7f800000u : (exponent + 112) << 23) | mantissa << 13;
  float value = static_cast<float>(mantissa) * 0x1p-24f;
  if (exponent == 0) __builtin_memcpy(&word, &value, sizeof word);
  word |= sign;
  __builtin_memcpy(&value, &word, sizeof value);
  return value;
#endif
}

WCUDA_INLINE void expand_halves(const uint8_t* row, uint32_t n, float* out) {
  uint32_t i = 0;
#if defined(__F16C__)
  for (; i + kLanes <= n; i += kLanes) store(out + i, load_halves(row + 2 * i));
#endif
  for (; i < n; ++i) out[i] = half_value(row + 2 * i);
}

WCUDA_INLINE ByteVec load_bytes(const uint8_t* p) {
  ByteVec v;
  __builtin_memcpy(&v, p, sizeof v);
  return v;
}

// Blocks of an f16 scale and 32 signed bytes.
WCUDA_INLINE void expand_q8_0(const uint8_t* row, uint32_t n, float* out) {
  for (uint32_t block = 0; block < n; block += 32, row += 34) {
    const Vec scale = broadcast(half_value(row));
    for (uint32_t i = 0; i < 32; i += kLanes)
      store(out + block + i, __builtin_convertvector(load_bytes(row + 2 + i), Vec) * scale);
  }
}

// Sign, 4 bits of exponent (bias 7), 3 of mantissa: shifted into place it is an f32 2^120 too
// small.
WCUDA_INLINE Vec e4m3_values(ByteVec codes) {
  const IntVec code = __builtin_convertvector(codes, IntVec);
  const IntVec magnitude = code & 0x7f;
  const Vec value = (Vec)(magnitude << 20) * 0x1p120f;
  const Vec checked = select(magnitude == 0x7f, broadcast(__builtin_nanf("")), value);
  return (Vec)((IntVec)checked | (code & (int32_t)0x80000000));
}
WCUDA_INLINE void expand_e4m3(const uint8_t* row, uint32_t n, float* out) {
  uint32_t i = 0;
  for (; i + kLanes <= n; i += kLanes) store(out + i, e4m3_values(load_bytes(row + i)));
  if (i == n) return;
  uint8_t codes[kLanes] = {};
  float values[kLanes];
  for (uint32_t j = i; j < n; ++j) codes[j - i] = row[j];
  store(values, e4m3_values(load_bytes(codes)));
  for (uint32_t j = i; j < n; ++j) out[j] = values[j - i];
}

struct SlotRange {
  uint32_t begin;
  uint32_t end;
};

WCUDA_INLINE uint32_t larger(uint32_t a, uint32_t b) { return a > b ? a : b; }
WCUDA_INLINE uint32_t smaller(uint32_t a, uint32_t b) { return a < b ? a : b; }

// Slots of page `page` among positions first … last; empty where there are none.
WCUDA_INLINE SlotRange slots_of(uint32_t page, uint32_t first, uint32_t last) {
  const uint32_t base = page * kPageSlots;
  if (last < base || first >= base + kPageSlots) return {0, 0};
  return {first > base ? first - base : 0, last - base < kPageSlots ? last - base + 1 : kPageSlots};
}

// First position that a token at `position` attends to.
WCUDA_INLINE uint32_t first_visible(const AttentionTile& tile, uint32_t position) {
  return tile.window != 0 && position >= tile.window ? position - tile.window + 1 : 0;
}

WCUDA_INLINE void expand_row(const AttentionTile& tile, const uint8_t* row, float* out) {
  if (tile.kv_type == 0)
    expand_halves(row, tile.head_length, out);
  else if (tile.kv_type == 1)
    expand_q8_0(row, tile.head_length, out);
  else
    expand_e4m3(row, tile.head_length, out);
}

// Keys or values of one head in a page, and the page that comes after it.
struct PageRows {
  const uint8_t* rows;
  const uint8_t* next;
};

// Brings near what the next page has at this slot: at one token a step this is bound by memory.
WCUDA_INLINE void prefetch_next(const AttentionTile& tile, const PageRows& page, uint32_t slot) {
  for (uint32_t byte = 0; byte < tile.row_bytes; byte += 64)
    __builtin_prefetch(page.next + slot * tile.row_bytes + byte);
}

// out (64, head_length) = the rows of some slots. Other slots are not read.
WCUDA_INLINE void expand_rows(const AttentionTile& tile, const PageRows& page, SlotRange slots,
                              float* out) {
  for (uint32_t s = slots.begin; s < slots.end; ++s) {
    prefetch_next(tile, page, s);
    expand_row(tile, page.rows + s * tile.row_bytes, out + s * tile.head_length);
  }
}

// columns (head_length, 64) = rows (64, head_length) for some slots; 0 for the others.
void transpose_rows(const float* rows, uint32_t n, SlotRange slots, float* columns) {
  for (uint32_t s = 0; s < kPageSlots; s += kLanes) {
    uint32_t d = 0;
    for (; d + kLanes <= n; d += kLanes) {
      Vec square[kLanes];
      WCUDA_UNROLL
      for (uint32_t i = 0; i < kLanes; ++i) {
        const bool is_stored = s + i >= slots.begin && s + i < slots.end;
        square[i] = is_stored ? load(rows + (s + i) * n + d) : Vec{};
      }
      transpose(square);
      WCUDA_UNROLL
      for (uint32_t i = 0; i < kLanes; ++i) store(columns + (d + i) * kPageSlots + s, square[i]);
    }
    for (; d < n; ++d)
      for (uint32_t i = s; i < s + kLanes; ++i)
        columns[d * kPageSlots + i] = i >= slots.begin && i < slots.end ? rows[i * n + d] : 0.0f;
  }
}

// scores (kQueries, 64) = scale * query · key, at least for the slots stored. columns (n, 64).
template <uint32_t kQueries>
WCUDA_INLINE void score(const float* const* queries, const float* columns, uint32_t n, float scale,
                        SlotRange stored, float* scores) {
  constexpr uint32_t kWidth = 4 * kLanes;
  for (uint32_t s = stored.begin / kWidth * kWidth; s < stored.end; s += kWidth) {
    Vec sums[kQueries][4] = {};
    for (uint32_t d = 0; d < n; ++d) {
      Vec keys[4];
      WCUDA_UNROLL
      for (uint32_t i = 0; i < 4; ++i) keys[i] = load(columns + d * kPageSlots + s + i * kLanes);
      WCUDA_UNROLL
      for (uint32_t q = 0; q < kQueries; ++q) {
        const Vec element = broadcast(queries[q][d]);
        WCUDA_UNROLL
        for (uint32_t i = 0; i < 4; ++i) sums[q][i] = multiply_add(keys[i], element, sums[q][i]);
      }
    }
    WCUDA_UNROLL
    for (uint32_t q = 0; q < kQueries; ++q) {
      WCUDA_UNROLL
      for (uint32_t i = 0; i < 4; ++i)
        store(scores + q * kPageSlots + s + i * kLanes, sums[q][i] * scale);
    }
  }
}

// Turns the scores of `slots` into e^(score - maximum) and those around them into 0. Returns the
// factor of what was gathered with the maximum before.
WCUDA_INLINE float soften(SlotRange slots, float* scores, float* maximum, float* weight) {
  const auto is_visible = [slots](uint32_t s) {
    const IntVec slot = lane_numbers() + static_cast<int32_t>(s);
    return (slot >= static_cast<int32_t>(slots.begin)) & (slot < static_cast<int32_t>(slots.end));
  };
  const uint32_t begin = slots.begin / kLanes * kLanes;
  Vec maxima = broadcast(*maximum);
  for (uint32_t s = begin; s < slots.end; s += kLanes)
    maxima = larger(maxima, select(is_visible(s), load(scores + s), maxima));
  float largest = largest_lane(maxima);
  if (largest == -__builtin_inff()) largest = 0.0f;  // nothing but -infinity: weights near 0
  const float kept =
      *maximum == -__builtin_inff() ? 0.0f : exp_vec(broadcast(*maximum - largest))[0];
  Vec total = {};
  for (uint32_t s = begin; s < slots.end; s += kLanes) {
    const Vec weights = select(is_visible(s), exp_vec(load(scores + s) - largest), Vec{});
    total += weights;
    store(scores + s, weights);
  }
  *maximum = largest;
  *weight = *weight * kept + sum(total);
  return kept;
}

// A query's sum of weights · values over `slots`, continued: sum = sum * kept + ….
struct Gather {
  SlotRange slots;
  const float* weights;  // (64)
  float* sum;            // (head_length)
  float kept;
};

// kVectors vectors of columns from column d, of slots that all the queries have. values (64, n).
template <uint32_t kQueries, uint32_t kVectors>
WCUDA_INLINE void gather_columns(const Gather* gathers, SlotRange slots, const float* values,
                                 uint32_t n, uint32_t d) {
  Vec totals[kQueries][kVectors];
  WCUDA_UNROLL
  for (uint32_t q = 0; q < kQueries; ++q) {
    WCUDA_UNROLL
    for (uint32_t i = 0; i < kVectors; ++i)
      totals[q][i] = load(gathers[q].sum + d + i * kLanes) * gathers[q].kept;
  }
  for (uint32_t s = slots.begin; s < slots.end; ++s) {
    Vec rows[kVectors];
    WCUDA_UNROLL
    for (uint32_t i = 0; i < kVectors; ++i) rows[i] = load(values + s * n + d + i * kLanes);
    WCUDA_UNROLL
    for (uint32_t q = 0; q < kQueries; ++q) {
      const Vec weight = broadcast(gathers[q].weights[s]);
      WCUDA_UNROLL
      for (uint32_t i = 0; i < kVectors; ++i)
        totals[q][i] = multiply_add(rows[i], weight, totals[q][i]);
    }
  }
  WCUDA_UNROLL
  for (uint32_t q = 0; q < kQueries; ++q) {
    WCUDA_UNROLL
    for (uint32_t i = 0; i < kVectors; ++i) store(gathers[q].sum + d + i * kLanes, totals[q][i]);
  }
}

template <uint32_t kQueries>
WCUDA_INLINE void gather(Gather* gathers, SlotRange slots, const float* values, uint32_t n) {
  if (slots.begin >= slots.end) return;
  uint32_t d = 0;
  for (; d + 4 * kLanes <= n; d += 4 * kLanes)
    gather_columns<kQueries, 4>(gathers, slots, values, n, d);
  for (; d + kLanes <= n; d += kLanes) gather_columns<kQueries, 1>(gathers, slots, values, n, d);
  for (; d < n; ++d)
    for (uint32_t q = 0; q < kQueries; ++q) {
      const Gather& g = gathers[q];
      float total = g.sum[d] * g.kept;
      for (uint32_t s = slots.begin; s < slots.end; ++s) total += g.weights[s] * values[s * n + d];
      g.sum[d] = total;
    }
  for (uint32_t q = 0; q < kQueries; ++q) gathers[q].kept = 1.0f;
}

// The pieces of tile.work.
struct AttentionWork {
  float* scores;   // (kQueryBlock, 64)
  float* rows;     // (64, n) keys of a page
  float* columns;  // (n, 64) the same, transposed
  float* values;   // (64, n)
  float* sums;     // (queries, n)
  float* maxima;   // (queries)
  float* weights;  // (queries)
};

// Calls function(std::integral_constant) with `count`, which is in 1 … kQueryBlock.
template <class Function>
WCUDA_INLINE void with_count(uint32_t count, const Function& function) {
  if (count == 1) return function(std::integral_constant<uint32_t, 1>{});
  if (count == 2) return function(std::integral_constant<uint32_t, 2>{});
  if constexpr (kQueryBlock > 2) {
    if (count == 3) return function(std::integral_constant<uint32_t, 3>{});
    function(std::integral_constant<uint32_t, 4>{});
  }
}

// The queries of one block: at most kQueryBlock, one after the other in the tile.
struct QueryBlock {
  uint32_t first;
  uint32_t count;
  const float* queries[kQueryBlock];
  Gather gathers[kQueryBlock];
  SlotRange common;  // slots that all of them have
};

WCUDA_INLINE QueryBlock find_block(const AttentionTile& tile, const AttentionWork& work,
                                   uint32_t page, uint32_t first, uint32_t count) {
  const uint32_t n = tile.head_length;
  QueryBlock block;
  block.first = first;
  block.count = count;
  block.common = {0, kPageSlots};
  for (uint32_t q = 0; q < count; ++q) {
    const uint32_t token = (first + q) / tile.group_size;
    const uint32_t position = tile.first_position + token;
    Gather& gather = block.gathers[q];
    block.queries[q] = tile.query + token * tile.token_stride + (first + q) % tile.group_size * n;
    gather.slots = slots_of(page, first_visible(tile, position), position);
    gather.weights = work.scores + q * kPageSlots;
    gather.sum = work.sums + uint64_t{first + q} * n;
    block.common = {larger(block.common.begin, gather.slots.begin),
                    smaller(block.common.end, gather.slots.end)};
  }
  return block;
}

// Scores are in work.scores, values in work.values: adds this page to the block's sums.
WCUDA_INLINE void add_page(const AttentionTile& tile, const AttentionWork& work,
                           QueryBlock* block) {
  for (uint32_t q = 0; q < block->count; ++q)
    if (block->gathers[q].slots.end != 0)
      block->gathers[q].kept =
          soften(block->gathers[q].slots, work.scores + q * kPageSlots,
                 work.maxima + block->first + q, work.weights + block->first + q);
  // Each query's slots in order: its own first ones, those that all have, its own last ones.
  const SlotRange common = block->common;
  const bool has_common = common.begin < common.end;
  for (uint32_t q = 0; q < block->count; ++q) {
    const SlotRange slots = block->gathers[q].slots;
    gather<1>(block->gathers + q, {slots.begin, has_common ? common.begin : slots.end}, work.values,
              tile.head_length);
  }
  if (!has_common) return;
  with_count(block->count, [&](auto count) {
    gather<decltype(count)::value>(block->gathers, common, work.values, tile.head_length);
  });
  for (uint32_t q = 0; q < block->count; ++q)
    gather<1>(block->gathers + q, {common.end, block->gathers[q].slots.end}, work.values,
              tile.head_length);
}

// scores (query_count, 64) = softcap * tanh(scores / softcap), at least for the slots stored.
WCUDA_INLINE void cap_scores(uint32_t query_count, float softcap, SlotRange stored, float* scores) {
  const Vec factor = broadcast(2.0f / softcap);
  for (uint32_t q = 0; q < query_count; ++q)
    for (uint32_t s = stored.begin / kLanes * kLanes; s < stored.end; s += kLanes) {
      // tanh(x) = 1 - 2 / (e^(2x) + 1)
      const Vec power = exp_vec(load(scores + q * kPageSlots + s) * factor) + 1.0f;
      store(scores + q * kPageSlots + s, (1.0f - 2.0f / power) * softcap);
    }
}

void attend(const AttentionTile& tile) {
  const uint32_t n = tile.head_length;
  const uint32_t query_count = tile.token_count * tile.group_size;
  AttentionWork work;
  work.scores = tile.work;
  work.rows = work.scores + kQueryBlock * kPageSlots;
  work.columns = work.rows + kPageSlots * n;
  work.values = work.columns + kPageSlots * n;
  work.sums = work.values + kPageSlots * n;
  work.maxima = work.sums + uint64_t{query_count} * n;
  work.weights = work.maxima + query_count;
  for (uint64_t i = 0; i < uint64_t{query_count} * n; ++i) work.sums[i] = 0.0f;
  for (uint32_t i = 0; i < query_count; ++i) {
    work.maxima[i] = tile.sinks == nullptr ? -__builtin_inff() : tile.sinks[i % tile.group_size];
    work.weights[i] = tile.sinks == nullptr ? 0.0f : 1.0f;
  }
  const uint32_t first = first_visible(tile, tile.first_position);
  const uint32_t last = tile.first_position + tile.token_count - 1;
  for (uint32_t page = first / kPageSlots; page <= last / kPageSlots; ++page) {
    const SlotRange stored = slots_of(page, first, last);
    const uint64_t offset = tile.page_table[page] * tile.page_bytes;
    const uint32_t next_page = page < last / kPageSlots ? page + 1 : page;
    const uint64_t next = tile.page_table[next_page] * tile.page_bytes;
    const PageRows keys = {tile.keys + offset, tile.keys + next};
    expand_rows(tile, {tile.values + offset, tile.values + next}, stored, work.values);
    expand_rows(tile, keys, stored, work.rows);
    transpose_rows(work.rows, n, stored, work.columns);
    for (uint32_t q = 0; q < query_count; q += kQueryBlock) {
      const uint32_t rest = query_count - q;
      QueryBlock block = find_block(tile, work, page, q, rest < kQueryBlock ? rest : kQueryBlock);
      with_count(block.count, [&](auto count) {
        score<decltype(count)::value>(block.queries, work.columns, n, tile.scale, stored,
                                      work.scores);
      });
      if (tile.softcap != 0.0f) cap_scores(block.count, tile.softcap, stored, work.scores);
      add_page(tile, work, &block);
    }
  }
  for (uint32_t q = 0; q < query_count; ++q) {
    float* out = tile.out + q / tile.group_size * tile.token_stride + q % tile.group_size * n;
    for (uint32_t i = 0; i < n; ++i) out[i] = work.sums[uint64_t{q} * n + i] / work.weights[q];
  }
}

}  // namespace
