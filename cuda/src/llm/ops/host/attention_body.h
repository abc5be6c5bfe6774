// Attention over pages, the same in every instruction set: included by kernels_body.h.
//
// A tile is some tokens of one row times the query heads of one key-value head. Each page is
// expanded to f32 once for the tile. Its keys are transposed, so that a vector has the same element
// of several slots and scores need no sums across lanes. Softmax is online, page after page. All
// queries use one part of the keys or values, while it is in the first-level cache, before the next
// part.
#pragma once

#include <type_traits>

#include "llm/ops/host/kernels.h"
#include "llm/ops/host/vector.h"

namespace {

using wcuda::ops::host::AttentionTile;

constexpr uint32_t kPageSlots = 64;
// Queries that use one load of keys or values; 4 vectors of each query stay in registers.
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

// Expands blocks of an f16 scale and 32 signed bytes.
WCUDA_INLINE void expand_q8_0(const uint8_t* row, uint32_t n, float* out) {
  for (uint32_t block = 0; block < n; block += 32, row += 34) {
    const Vec scale = broadcast(half_value(row));
    for (uint32_t i = 0; i < 32; i += kLanes)
      store(out + block + i, __builtin_convertvector(load_bytes(row + 2 + i), Vec) * scale);
  }
}

// Expands codes of a sign, 4 bits of exponent (bias 7) and 3 of mantissa. Shifted into place, these
// bits are an f32 that is too small by 2^120.
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

// Expands elements first … first + n - 1, a multiple of 16 each, of a row of int10, whose layout
// int10_row.h describes.
WCUDA_INLINE void expand_int10(const AttentionTile& tile, const uint8_t* row, bool is_odd_slot,
                               uint32_t first, uint32_t n, float* out) {
  const uint32_t length = tile.head_length;
  const uint8_t* low = row + (is_odd_slot ? length / 32 : 0);
  const uint8_t* high = low + length;
  const uint8_t* scales = is_odd_slot ? row : high + length / 4;
  for (uint32_t i = first; i < first + n; i += kLanes) {
    const IntVec low_bits = __builtin_convertvector(load_bytes(low + i), IntVec) & 0xff;
    const IntVec four = __builtin_convertvector(load_bytes(high + i / 64 * 16 + i % 16), IntVec);
    const IntVec high_bits = four >> static_cast<int32_t>(i / 16 % 4 * 2) & 3;
    const IntVec code = (low_bits | high_bits << 8) - 512;
    const Vec scale = broadcast(half_value(scales + i / 64 * 2));
    store(out + (i - first), __builtin_convertvector(code, Vec) * scale);
  }
}

struct SlotRange {
  uint32_t begin;
  uint32_t end;
};

WCUDA_INLINE uint32_t larger(uint32_t a, uint32_t b) { return a > b ? a : b; }
WCUDA_INLINE uint32_t smaller(uint32_t a, uint32_t b) { return a < b ? a : b; }

// Returns the slots of page `page` at positions first … last, or an empty range.
WCUDA_INLINE SlotRange slots_of(uint32_t page, uint32_t first, uint32_t last) {
  const uint32_t base = page * kPageSlots;
  if (last < base || first >= base + kPageSlots) return {0, 0};
  return {first > base ? first - base : 0, last - base < kPageSlots ? last - base + 1 : kPageSlots};
}

// Returns the first position that a token at `position` attends to.
WCUDA_INLINE uint32_t first_visible(const AttentionTile& tile, uint32_t position) {
  return tile.window != 0 && position >= tile.window ? position - tile.window + 1 : 0;
}

// out (n) = elements first … first + n - 1 of the row of a slot: whole blocks if the type has
// blocks of 32.
WCUDA_INLINE void expand_row(const AttentionTile& tile, const uint8_t* rows, uint32_t slot,
                             uint32_t first, uint32_t n, float* out) {
  const uint8_t* row = rows + slot * tile.row_bytes;
  if (tile.kv_type == 0)
    expand_halves(row + uint64_t{2} * first, n, out);
  else if (tile.kv_type == 1)
    expand_q8_0(row + first / 32 * 34, n, out);
  else if (tile.kv_type == 3)
    expand_int10(tile, row, slot % 2 == 1, first, n, out);
  else
    expand_e4m3(row + first, n, out);
}

// Keys or values of one head in a page, and the page that comes after it.
struct PageRows {
  const uint8_t* rows;
  const uint8_t* next;
};

// Prefetches this slot of the next page, because with one token per step memory is the bottleneck.
WCUDA_INLINE void prefetch_next(const AttentionTile& tile, const PageRows& page, uint32_t slot) {
  for (uint32_t byte = 0; byte < tile.row_bytes; byte += 64)
    __builtin_prefetch(page.next + slot * tile.row_bytes + byte);
}

// out (64, head_length) = the rows of some slots. Other slots are not read.
WCUDA_INLINE void expand_keys(const AttentionTile& tile, const PageRows& page, SlotRange slots,
                              float* out) {
  for (uint32_t s = slots.begin; s < slots.end; ++s) {
    prefetch_next(tile, page, s);
    expand_row(tile, page.rows, s, 0, tile.head_length, out + s * tile.head_length);
  }
}

// Columns of values that a query gathers at a time; those of a page are contiguous.
constexpr uint32_t kGatherCols = 4 * kLanes < 32 ? 32 : 4 * kLanes;

// out has (64, columns) for each kGatherCols columns; the last part may have fewer columns.
WCUDA_INLINE void expand_values(const AttentionTile& tile, const PageRows& page, SlotRange slots,
                                float* out) {
  for (uint32_t s = slots.begin; s < slots.end; ++s) {
    prefetch_next(tile, page, s);
    for (uint32_t d = 0; d < tile.head_length; d += kGatherCols) {
      const uint32_t cols = smaller(kGatherCols, tile.head_length - d);
      expand_row(tile, page.rows, s, d, cols, out + d * kPageSlots + s * cols);
    }
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

// Slots whose scores are computed at a time, and elements of keys that stay in the cache meanwhile.
constexpr uint32_t kScoreSlots = 4 * kLanes, kScoreElements = 64;

// scores (kQueries, 64) += query · key over elements first … end - 1 of n, for slots from `s` on.
// They are 0 before if `first` is 0, and multiplied by `scale` if `end` is n. columns (n, 64).
template <uint32_t kQueries>
WCUDA_INLINE void score(const float* const* queries, const float* columns, uint32_t n,
                        uint32_t first, uint32_t s, float scale, float* scores) {
  const uint32_t end = smaller(first + kScoreElements, n);
  Vec sums[kQueries][4] = {};
  const auto for_sums = [&](const auto& function) {
    WCUDA_UNROLL
    for (uint32_t q = 0; q < kQueries; ++q) {
      WCUDA_UNROLL
      for (uint32_t i = 0; i < 4; ++i)
        function(sums[q][i], scores + q * kPageSlots + s + i * kLanes);
    }
  };
  if (first != 0) for_sums([](Vec& sum, const float* score) { sum = load(score); });
  for (uint32_t d = first; d < end; ++d) {
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
  const float factor = end == n ? scale : 1.0f;
  for_sums([factor](Vec& sum, float* score) { store(score, sum * factor); });
}

// The sum of weights · values of a query over `slots`. The new sum is sum * kept + ….
struct Gather {
  SlotRange slots;
  const float* weights;  // (64)
  float* sum;            // (head_length)
  float kept;
};

// Gathers kVectors vectors of columns from column d on, of slots that all queries have. `values`
// points to column d; slots are `stride` floats apart.
template <uint32_t kQueries, uint32_t kVectors>
WCUDA_INLINE void gather_columns(const Gather* gathers, SlotRange slots, const float* values,
                                 uint32_t stride, uint32_t d) {
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
    for (uint32_t i = 0; i < kVectors; ++i) rows[i] = load(values + s * stride + i * kLanes);
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

// Gathers columns d … d + cols - 1, at most kGatherCols, of some slots. values (64, cols).
template <uint32_t kQueries>
WCUDA_INLINE void gather(Gather* gathers, SlotRange slots, const float* values, uint32_t d,
                         uint32_t cols) {
  if (slots.begin >= slots.end) return;
  uint32_t i = 0;
  for (; i + 4 * kLanes <= cols; i += 4 * kLanes)
    gather_columns<kQueries, 4>(gathers, slots, values + i, cols, d + i);
  for (; i + kLanes <= cols; i += kLanes)
    gather_columns<kQueries, 1>(gathers, slots, values + i, cols, d + i);
  for (; i < cols; ++i)
    for (uint32_t q = 0; q < kQueries; ++q) {
      const Gather& g = gathers[q];
      float total = g.sum[d + i] * g.kept;
      for (uint32_t s = slots.begin; s < slots.end; ++s)
        total += g.weights[s] * values[s * cols + i];
      g.sum[d + i] = total;
    }
  for (uint32_t q = 0; q < kQueries; ++q) gathers[q].kept = 1.0f;
}

// The pieces of tile.work.
struct AttentionWork {
  float* scores;   // (queries, 64)
  float* rows;     // (64, n) keys of a page, then its values, as expand_values has them
  float* columns;  // (n, 64) the keys, transposed
  float* sums;     // (queries, n)
  float* maxima;   // (queries)
  float* weights;  // (queries)
  float* kept;     // (queries) factors of the sums before this page's
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
  SlotRange all;     // from the first to the last that one of them has
};

WCUDA_INLINE QueryBlock find_block(const AttentionTile& tile, const AttentionWork& work,
                                   uint32_t page, uint32_t first, uint32_t count) {
  const uint32_t n = tile.head_length;
  QueryBlock block;
  block.first = first;
  block.count = count;
  block.common = {0, kPageSlots};
  block.all = {kPageSlots, 0};
  for (uint32_t q = 0; q < count; ++q) {
    const uint32_t token = (first + q) / tile.group_size;
    const uint32_t position = tile.first_position + token;
    Gather& gather = block.gathers[q];
    block.queries[q] = tile.query + token * tile.token_stride + (first + q) % tile.group_size * n;
    gather.slots = slots_of(page, first_visible(tile, position), position);
    gather.weights = work.scores + uint64_t{first + q} * kPageSlots;
    gather.sum = work.sums + uint64_t{first + q} * n;
    gather.kept = work.kept[first + q];
    if (gather.slots.end != 0)
      block.all = {smaller(block.all.begin, gather.slots.begin),
                   larger(block.all.end, gather.slots.end)};
    block.common = {larger(block.common.begin, gather.slots.begin),
                    smaller(block.common.end, gather.slots.end)};
  }
  return block;
}

// Calls function(s, visible_or) for the vectors of a page that have some of `slots`: s is the first
// slot of one, visible_or(a, b) is a in the lanes of `slots` and b in the others.
template <class Function>
WCUDA_INLINE void for_visible(SlotRange slots, const Function& function) {
  if (slots.begin == 0 && slots.end == kPageSlots) {
    WCUDA_UNROLL
    for (uint32_t s = 0; s < kPageSlots; s += kLanes) function(s, [](Vec a, Vec) { return a; });
    return;
  }
  for (uint32_t s = slots.begin / kLanes * kLanes; s < slots.end; s += kLanes) {
    const IntVec slot = lane_numbers() + static_cast<int32_t>(s);
    const IntVec is_visible =
        (slot >= static_cast<int32_t>(slots.begin)) & (slot < static_cast<int32_t>(slots.end));
    function(s, [is_visible](Vec a, Vec b) { return select(is_visible, a, b); });
  }
}

// Replaces the scores of each query's slots by e^(score - maximum) and the scores around them by 0,
// and sets the factor for the sums that were gathered with the previous maximum.
WCUDA_INLINE void soften(const AttentionWork& work, const QueryBlock* block) {
  float* page_scores = work.scores + uint64_t{block->first} * kPageSlots;
  float* maxima = work.maxima + block->first;
  float* weights = work.weights + block->first;
  float changes[kLanes] = {};  // of the maxima: maximum before - maximum
  for (uint32_t q = 0; q < block->count; ++q) {
    if (block->gathers[q].slots.end == 0) continue;
    float* scores = page_scores + q * kPageSlots;
    Vec largest_of = broadcast(maxima[q]);
    for_visible(block->gathers[q].slots, [&](uint32_t s, const auto& visible_or) {
      largest_of = larger(largest_of, visible_or(load(scores + s), largest_of));
    });
    float largest = largest_lane(largest_of);
    if (largest == -__builtin_inff()) largest = 0.0f;  // nothing but -infinity: weights near 0
    changes[q] = maxima[q] - largest;
    maxima[q] = largest;
  }
  float kept[kLanes];
  store(kept, exp_vec(load(changes)));
  for (uint32_t q = 0; q < block->count; ++q) {
    const SlotRange slots = block->gathers[q].slots;
    if (slots.end == 0) continue;
    float* scores = page_scores + q * kPageSlots;
    const float largest = maxima[q];
    Vec total = {};
    for_visible(slots, [&](uint32_t s, const auto& visible_or) {
      const Vec softened = visible_or(exp_vec(load(scores + s) - largest), Vec{});
      total += softened;
      store(scores + s, softened);
    });
    if (changes[q] == -__builtin_inff()) kept[q] = 0.0f;
    weights[q] = weights[q] * kept[q] + sum(total);
    work.kept[block->first + q] = kept[q];
  }
}

// Adds columns d … d + cols - 1 of this page's values, (64, cols), to the block's sums.
WCUDA_INLINE void add_values(QueryBlock* block, const float* values, uint32_t d, uint32_t cols) {
  // A query takes its slots in order: its own first ones, those that all have, its own last ones.
  const SlotRange common = block->common;
  const bool has_common = common.begin < common.end;
  for (uint32_t q = 0; q < block->count; ++q) {
    const SlotRange slots = block->gathers[q].slots;
    gather<1>(block->gathers + q, {slots.begin, has_common ? common.begin : slots.end}, values, d,
              cols);
  }
  if (!has_common) return;
  with_count(block->count, [&](auto count) {
    gather<decltype(count)::value>(block->gathers, common, values, d, cols);
  });
  for (uint32_t q = 0; q < block->count; ++q)
    gather<1>(block->gathers + q, {common.end, block->gathers[q].slots.end}, values, d, cols);
}

// scores (query_count, 64) = softcap * tanh(scores / softcap), at least for `slots`.
WCUDA_INLINE void cap_scores(uint32_t query_count, float softcap, SlotRange slots, float* scores) {
  const Vec factor = broadcast(2.0f / softcap);
  for (uint32_t q = 0; q < query_count; ++q)
    for (uint32_t s = slots.begin / kLanes * kLanes; s < slots.end; s += kLanes) {
      // tanh(x) = 1 - 2 / (e^(2x) + 1)
      const Vec power = exp_vec(load(scores + q * kPageSlots + s) * factor) + 1.0f;
      store(scores + q * kPageSlots + s, (1.0f - 2.0f / power) * softcap);
    }
}

// Adds a page to the sums of all queries. Its keys are in work.columns, its values in work.rows.
void add_page(const AttentionTile& tile, const AttentionWork& work, uint32_t page,
              uint32_t query_count) {
  const uint32_t n = tile.head_length;
  const auto for_blocks = [&](const auto& function) {
    for (uint32_t q = 0; q < query_count; q += kQueryBlock) {
      QueryBlock block = find_block(tile, work, page, q, smaller(kQueryBlock, query_count - q));
      function(&block, work.scores + uint64_t{q} * kPageSlots);
    }
  };
  for (uint32_t s = 0; s < kPageSlots; s += kScoreSlots)
    for (uint32_t d = 0; d < n; d += kScoreElements)
      for_blocks([&](QueryBlock* block, float* scores) {
        if (block->all.begin >= s + kScoreSlots || block->all.end <= s) return;
        with_count(block->count, [&](auto count) {
          score<decltype(count)::value>(block->queries, work.columns, n, d, s, tile.scale, scores);
        });
      });
  for_blocks([&](QueryBlock* block, float* scores) {
    if (tile.softcap != 0.0f) cap_scores(block->count, tile.softcap, block->all, scores);
    soften(work, block);
  });
  for (uint32_t d = 0; d < n; d += kGatherCols)
    for_blocks([&](QueryBlock* block, float*) {
      add_values(block, work.rows + d * kPageSlots, d, smaller(kGatherCols, n - d));
    });
}

void attend(const AttentionTile& tile) {
  const uint32_t n = tile.head_length;
  const uint32_t query_count = tile.token_count * tile.group_size;
  AttentionWork work;
  work.scores = tile.work;
  work.rows = work.scores + uint64_t{query_count} * kPageSlots;
  work.columns = work.rows + kPageSlots * n;
  work.sums = work.columns + kPageSlots * n;
  work.maxima = work.sums + uint64_t{query_count} * n;
  work.weights = work.maxima + query_count;
  work.kept = work.weights + query_count;
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
    const PageRows values = {tile.values + offset, tile.values + next};
    expand_keys(tile, keys, stored, work.rows);
    transpose_rows(work.rows, n, stored, work.columns);
    expand_values(tile, values, stored, work.rows);
    add_page(tile, work, page, query_count);
  }
  for (uint32_t q = 0; q < query_count; ++q) {
    float* out = tile.out + q / tile.group_size * tile.token_stride + q % tile.group_size * n;
    for (uint32_t i = 0; i < n; ++i) out[i] = work.sums[uint64_t{q} * n + i] / work.weights[q];
  }
}

}  // namespace
