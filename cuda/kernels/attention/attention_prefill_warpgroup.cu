// attention_prefill with WGMMA, for head lengths up to 128 that are a multiple of 8. It is about
// twice as fast as attention_prefill.cu and computes the same result except for the summation
// order.
//
// The kernel is persistent: in each round a block takes one item, a (tile, head) pair
// (PrefillItems). If whole items would keep some blocks busy much longer than others, each block
// takes an equal run of the work of all items instead. An item that is divided is finished by the
// last of its blocks, which adds their partial results in order. A producer warpgroup loads 128
// keys and 128 values at a time into two stages each in shared memory: f16 by tensor maps, or by
// cp.async for head lengths other than 64 and 128 and where some keys of a block may not be read;
// other formats are copied raw and converted to f16 there, unless attention_expand has converted
// them. Two consumer warpgroups read the queries of 64 tokens each and compute their results. For
// head lengths above 64 they take turns: while the tensor cores compute scores and sums for one,
// the ALUs convert the scores of the other to numerators. A token's result depends only on its own
// query, position and pages; of a divided item it also depends on where the partitions end, so
// there are none with batch invariance. In shared memory, a panel has 64 elements (128 bytes) of
// each row r; its 16-byte chunk c is in place c ^ (r % 8).
#include <atomic>

#include "kernels/attention/attention_instance.cuh"
#include "kernels/attention/attention_operand.cuh"
#include "kernels/attention/attention_prefill.h"
#include "kernels/attention/attention_prefill_items.cuh"
#include "kernels/attention/attention_tile.cuh"
#include "kernels/ptx/bulk_copy.cuh"
#include "kernels/ptx/code.h"
#include "kernels/ptx/dependent_launch.cuh"
#include "kernels/ptx/launch.h"
#include "kernels/ptx/mbarrier.cuh"
#include "kernels/ptx/named_barrier.cuh"
#include "kernels/ptx/pipeline.cuh"
#include "kernels/ptx/tensor_map.h"
#include "kernels/ptx/wgmma.cuh"

namespace wcuda::kernels {
namespace {

[[maybe_unused]] constexpr uint32_t kLoadThreads = 128;
constexpr uint32_t kStages = 2;
// Of a consumer warpgroup.
[[maybe_unused]] constexpr uint32_t kGroupThreads = 128, kGroupTokens = 64;
// Registers per thread: the three warpgroups use 72 + 2 * 216 = 504 of the SM's 65,536 / 128 = 512.
[[maybe_unused]] constexpr uint32_t kLoadRegisters = 72;
[[maybe_unused]] constexpr uint32_t kWorkRegisters = 216;

constexpr uint32_t kPanelBytes = 128 * 128;  // 128 rows of 64 elements

template <int kLength>
struct SharedLayout {
  static constexpr uint32_t kBytes = kLength / 64 * kPanelBytes;  // 128 queries, keys or values
  static constexpr uint32_t kQueries = 0;
  static constexpr uint32_t kKeys = kQueries + kBytes;
  static constexpr uint32_t kValues = kKeys + kStages * kBytes;
  static constexpr uint32_t kBarriers = kValues + kStages * kBytes;
  static constexpr uint32_t kRaw = kBarriers + 128;
};

template <int kLength, KvFormat kFormat>
uint32_t shared_bytes(uint32_t row_bytes) {
  constexpr uint32_t kAlignment = 1024;
  const uint32_t raw = kFormat == KvFormat::kF16 ? 0 : 2 * kPrefillBlockKeys * row_bytes;
  return SharedLayout<kLength>::kRaw + raw + kAlignment;
}

#if WCUDA_HAS_WARPGROUPS

// Barriers, 8 bytes each.
struct Barriers {
  uint32_t base;
  __device__ uint32_t keys_full(uint32_t stage) const { return base + stage * 8; }
  __device__ uint32_t keys_empty(uint32_t stage) const { return base + 16 + stage * 8; }
  __device__ uint32_t values_full(uint32_t stage) const { return base + 32 + stage * 8; }
  __device__ uint32_t values_empty(uint32_t stage) const { return base + 48 + stage * 8; }
};

// Indices of the named barriers: of the producer, and of consumer warpgroup 0 for itself and for
// its turn; warpgroup 1 uses the next index of each.
constexpr uint32_t kLoadBarrier = 1, kGroupBarrier = 2, kPingPongBarrier = 4;

using StageCounter = PipelineCounter<kStages>;

__device__ __forceinline__ uint32_t panel_offset(uint32_t row, uint32_t chunk) {
  return chunk / 8 * kPanelBytes + row * 128 + ((chunk % 8 ^ row % 8) << 4);
}

// The rows of the two pages of a block of keys or values; the second might not exist.
template <bool kIsF16>
struct BlockRows {
  const uint8_t* pages[2];

  __device__ BlockRows(const AttentionKernelArgs& args, const PrefillItem& item, uint32_t block,
                       bool is_value) {
#pragma unroll
    for (uint32_t i = 0; i < 2; ++i) {
      const uint32_t page = block * 2 + i;
      const bool is_seen =
          page * kPagePositions < item.end && (page + 1) * kPagePositions > item.first_key;
      pages[i] = is_seen ? page_rows(args.pages, args.layer, item.page_at<kIsF16>(args, page),
                                     item.kv_head, is_value)
                         : args.pages.data;
    }
  }
};

template <int kLength>
__device__ __forceinline__ void copy_block(const AttentionKernelArgs& args, const PrefillItem& item,
                                           uint32_t block, bool is_value, uint32_t target) {
  constexpr uint32_t kChunks = kLength / 8;
  constexpr uint32_t kRowStep = kLoadThreads / kChunks;
  const BlockRows<true> rows(args, item, block, is_value);
  const RowRange valid = item.valid(block);
  const uint32_t thread = threadIdx.x % kLoadThreads;
  const uint32_t chunk = thread % kChunks;
  const uint32_t row_bytes = args.pages.row_bytes;
  const bool has_chunk = chunk * 16 < row_bytes;
#pragma unroll
  for (uint32_t i = 0; i < kPrefillBlockKeys / kRowStep; ++i) {
    const uint32_t row = i * kRowStep + thread / kChunks;
    const uint8_t* source =
        rows.pages[row / kPagePositions] + row % kPagePositions * row_bytes + chunk * 16;
    const bool is_valid = has_chunk && row >= valid.begin && row < valid.end;
    copy_async_16(target + panel_offset(row, chunk), is_valid ? source : args.pages.data,
                  is_valid ? 16 : 0);
  }
}

// Copies a block whose rows may all be read, by one thread. `map` describes the layer's rows; the
// block's two pages are given.
template <int kLength>
__device__ __forceinline__ void copy_whole_block(const AttentionKernelArgs& args,
                                                 const CUtensorMap& map, const PrefillItem& item,
                                                 const uint32_t (&pages)[2], bool is_value,
                                                 uint32_t target, uint32_t barrier) {
  static_assert(kPanelBytes == 2 * kPagePositions * 128);
  fence_proxy_async();  // the stage may have been written by the other way of copying
  mbarrier_expect_tx(barrier, SharedLayout<kLength>::kBytes);
#pragma unroll
  for (uint32_t i = 0; i < 2; ++i) {
    const uint32_t plane = pages[i] * 2 + (is_value ? 1 : 0);
    const uint32_t row = (plane * args.pages.head_count + item.kv_head) * kPagePositions;
#pragma unroll
    for (uint32_t panel = 0; panel < kLength / kBoxElements; ++panel)
      tensor_copy(target + panel * kPanelBytes + i * (kPanelBytes / 2), map, panel * kBoxElements,
                  row, barrier);
  }
}

__device__ __forceinline__ void copy_raw_block(const AttentionKernelArgs& args,
                                               const PrefillItem& item, uint32_t block,
                                               bool is_value, uint32_t target) {
  const BlockRows<false> rows(args, item, block, is_value);
  const RowRange valid = item.valid(block);
  const uint32_t page_bytes = kPagePositions * args.pages.row_bytes;
#pragma unroll
  for (uint32_t i = 0; i < 2; ++i) {
    const uint32_t first = i * kPagePositions;
    const RowRange part{0, valid.end > first ? min(valid.end - first, kPagePositions) : 0};
    // A page before the first visible key is not read.
    const bool is_hidden = valid.begin >= first + kPagePositions;
    copy_raw_rows<kPagePositions, kLoadThreads>(
        target + i * page_bytes, rows.pages[i], args.pages.row_bytes,
        is_hidden ? RowRange{0, 0} : part, threadIdx.x % kLoadThreads);
  }
}

template <int kLength, KvFormat kFormat>
__device__ __forceinline__ void expand_block(uint8_t* target, const uint8_t* raw,
                                             uint32_t row_bytes, uint32_t n) {
  constexpr uint32_t kChunks = kLength / 8;
  const uint32_t thread = threadIdx.x % kLoadThreads;
#pragma unroll 4
  for (uint32_t i = 0; i < kPrefillBlockKeys * kChunks / kLoadThreads; ++i) {
    const uint32_t index = i * kLoadThreads + thread;
    const uint32_t row = index / kChunks;
    const uint32_t chunk = index % kChunks;
    *reinterpret_cast<uint4*>(target + panel_offset(row, chunk)) =
        expand_chunk<kFormat>(raw, row_bytes, row, chunk, n);
  }
}

// expand_block for q8_0 and heads of exactly kLength elements. Each thread expands one row, so that
// eight neighbouring threads read and write different banks.
template <int kLength>
__device__ __forceinline__ void expand_whole_q8_0(uint8_t* target, const uint8_t* raw) {
  static_assert(kLoadThreads == kPrefillBlockKeys);
  constexpr uint32_t kPairWords = 17;  // of two blocks
  const uint32_t row = threadIdx.x % kLoadThreads;
  const uint8_t* source = raw + row * (kLength / 64 * kPairWords * 4);
  uint32_t words[kLength / 64 * kPairWords];
  if constexpr (kLength == 128) {
#pragma unroll
    for (uint32_t i = 0; i < kPairWords; ++i) {
      const uint2 two = reinterpret_cast<const uint2*>(source)[i];
      words[2 * i] = two.x;
      words[2 * i + 1] = two.y;
    }
  } else {
#pragma unroll
    for (uint32_t i = 0; i < kPairWords; ++i)
      words[i] = reinterpret_cast<const uint32_t*>(source)[i];
  }
#pragma unroll
  for (uint32_t block = 0; block < kLength / 32; ++block) {
    // Every other block begins in the middle of a word.
    const bool is_odd = block % 2 == 1;
    const uint32_t first = block / 2 * kPairWords + (is_odd ? 8 : 0);
    const uint32_t scales = __byte_perm(words[first], 0, is_odd ? 0x3232 : 0x1010);
    const __half2 scale = *reinterpret_cast<const __half2*>(&scales);
#pragma unroll
    for (uint32_t c = 0; c < 4; ++c) {
      uint4 out;
      auto* const halves = reinterpret_cast<__half2*>(&out);
#pragma unroll
      for (uint32_t i = 0; i < 2; ++i) {
        const uint32_t at = first + c * 2 + i;
        const uint32_t codes =
            is_odd ? words[at + 1] : __byte_perm(words[at], words[at + 1], 0x5432);
        halves[2 * i] = __hmul2(signed_bytes_to_halves(codes), scale);
        halves[2 * i + 1] = __hmul2(signed_bytes_to_halves(codes >> 16), scale);
      }
      *reinterpret_cast<uint4*>(target + panel_offset(row, block * 4 + c)) = out;
    }
  }
}

template <int kLength>
__device__ __forceinline__ void expand_whole_e4m3(uint8_t* target, const uint8_t* raw) {
  constexpr uint32_t kPieces = kLength / 16;  // of a row
  const uint32_t thread = threadIdx.x % kLoadThreads;
  const uint32_t piece = thread % kPieces;
  // Of eight neighbouring threads, four write the second chunk first, to access different banks.
  const uint32_t swap = piece / 4 % 2;
#pragma unroll 4
  for (uint32_t i = 0; i < kPrefillBlockKeys * kPieces / kLoadThreads; ++i) {
    const uint32_t row = i * (kLoadThreads / kPieces) + thread / kPieces;
    const uint4 codes = *reinterpret_cast<const uint4*>(raw + row * kLength + piece * 16);
    uint4 chunks[2];
    const uint32_t words[4] = {codes.x, codes.y, codes.z, codes.w};
#pragma unroll
    for (uint32_t w = 0; w < 4; ++w) {
      auto* const halves = reinterpret_cast<__half2*>(&chunks[w / 2]) + w % 2 * 2;
#pragma unroll
      for (uint32_t j = 0; j < 2; ++j) {
        const auto pair = static_cast<__nv_fp8x2_storage_t>(words[w] >> (16 * j));
        halves[j] = __half2(__nv_cvt_fp8x2_to_halfraw2(pair, __NV_E4M3));
      }
    }
    const uint4 first = swap != 0 ? chunks[1] : chunks[0];
    const uint4 second = swap != 0 ? chunks[0] : chunks[1];
    *reinterpret_cast<uint4*>(target + panel_offset(row, piece * 2 + swap)) = first;
    *reinterpret_cast<uint4*>(target + panel_offset(row, piece * 2 + (swap ^ 1))) = second;
  }
}

// Copies the queries of a consumer warpgroup, scaled, as f16; tokens and elements that do not exist
// become 0. All are requested before the first is stored. For shared pages, attention_decode has
// scaled and converted them.
template <int kLength>
__device__ __forceinline__ void load_queries(const AttentionKernelArgs& args,
                                             const PrefillItem& item, uint32_t group_row,
                                             uint8_t* target) {
  constexpr uint32_t kChunks = kLength / 8;
  constexpr uint32_t kRowStep = kGroupThreads / kChunks;
  constexpr uint32_t kCount = kGroupTokens / kRowStep;
  const uint32_t n = args.pages.head_length;
  const uint32_t first_row = group_row + threadIdx.x % kGroupThreads / kChunks;
  const uint32_t chunk = threadIdx.x % kChunks;
  const auto has_row = [&](uint32_t row) { return row < item.token_count && chunk * 8 < n; };
  if (args.is_shared) {
    uint4 halves[kCount];
#pragma unroll
    for (uint32_t i = 0; i < kCount; ++i) {
      const uint32_t row = first_row + i * kRowStep;
      halves[i] = make_uint4(0, 0, 0, 0);
      if (has_row(row))
        halves[i] = __ldcg(reinterpret_cast<const uint4*>(args.plan.shared_queries +
                                                          item.place(args, row) * n + chunk * 8));
    }
#pragma unroll
    for (uint32_t i = 0; i < kCount; ++i)
      *reinterpret_cast<uint4*>(target + panel_offset(first_row + i * kRowStep, chunk)) = halves[i];
    return;
  }
  float4 values[kCount][2];
#pragma unroll
  for (uint32_t i = 0; i < kCount; ++i) {
    const uint32_t row = first_row + i * kRowStep;
    const bool is_there = has_row(row);
    const auto* const source = reinterpret_cast<const float4*>(
        args.query + (is_there ? item.place(args, row) * n + chunk * 8 : 0));
    const float4 zero = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    values[i][0] = is_there ? __ldcg(source) : zero;
    values[i][1] = is_there ? __ldcg(source + 1) : zero;
  }
  const float factor = args.scale * kLog2E;
#pragma unroll
  for (uint32_t i = 0; i < kCount; ++i) {
    const float4 a = values[i][0], b = values[i][1];
    uint4 halves;
    halves.x = pack_halves(a.x * factor, a.y * factor);
    halves.y = pack_halves(a.z * factor, a.w * factor);
    halves.z = pack_halves(b.x * factor, b.y * factor);
    halves.w = pack_halves(b.z * factor, b.w * factor);
    *reinterpret_cast<uint4*>(target + panel_offset(first_row + i * kRowStep, chunk)) = halves;
  }
}

// The work of the producer warpgroup for all items of the block. It reads keys and values of
// earlier steps before its dependent wait.
template <int kLength, KvFormat kFormat, bool kHasPartitions>
__device__ __forceinline__ void load_items(const AttentionKernelArgs& args, const CUtensorMap& map,
                                           uint32_t item_count, const PrefillPartitions* partitions,
                                           uint8_t* shared, const Barriers& barriers) {
  using At = SharedLayout<kLength>;
  const uint32_t base = shared_address(shared);
  StageCounter counter;
  PrefillItems<kHasPartitions> items(args, item_count, partitions);
  bool has_waited = false;
  const auto wait_for_stored = [&](const PrefillItem& item, uint32_t block) {
    if (has_waited || !item.is_stored(block)) return;
    dependent_wait();
    has_waited = true;
  };
  for (PrefillItem item; items.next(&item);) {
    if constexpr (kFormat != KvFormat::kF16) {
      wait_for_stored(item, item.block_begin);
      copy_raw_block(args, item, item.block_begin, false, base + At::kRaw);
      copy_async_commit();
    }
    for (uint32_t block = item.block_begin; block < item.block_end; ++block, ++counter.count) {
      bool is_whole = false;
      uint32_t pages[2] = {};
      if constexpr (kFormat == KvFormat::kF16) {
        const RowRange valid = item.valid(block);
        is_whole =
            valid.begin == 0 && valid.end == kPrefillBlockKeys && args.pages.head_length == kLength;
        if (is_whole && threadIdx.x == 0) {
          pages[0] = item.page_at<true>(args, block * 2);
          pages[1] = item.page_at<true>(args, block * 2 + 1);
        }
      }
#pragma unroll
      for (uint32_t is_value = 0; is_value < 2; ++is_value) {
        const uint32_t stage = counter.stage();
        const uint32_t full = is_value ? barriers.values_full(stage) : barriers.keys_full(stage);
        const uint32_t empty = is_value ? barriers.values_empty(stage) : barriers.keys_empty(stage);
        const uint32_t place = (is_value ? At::kValues : At::kKeys) + stage * At::kBytes;
        if constexpr (kFormat == KvFormat::kF16) {
          wait_for_stored(item, block);
          mbarrier_wait(empty, counter.parity() ^ 1);
          if (!is_whole) {
            copy_block<kLength>(args, item, block, is_value, base + place);
            mbarrier_arrive_after_copies(full);
          } else if (threadIdx.x == 0) {
            copy_whole_block<kLength>(args, map, item, pages, is_value, base + place, full);
          } else {
            mbarrier_arrive(full);
          }
        } else {
          const uint32_t row_bytes = args.pages.row_bytes;
          const uint32_t raw_bytes = kPrefillBlockKeys * row_bytes;
          copy_async_wait<0>();
          named_barrier_sync<kLoadBarrier>(kLoadThreads);
          const uint32_t next = block + is_value;
          if (next < item.block_end) {
            wait_for_stored(item, next);
            copy_raw_block(args, item, next, !is_value,
                           base + At::kRaw + (is_value ? 0 : raw_bytes));
          }
          copy_async_commit();
          mbarrier_wait(empty, counter.parity() ^ 1);
          const uint8_t* raw = shared + At::kRaw + (is_value ? raw_bytes : 0);
          if (kFormat == KvFormat::kInt10 || args.pages.head_length != kLength)
            expand_block<kLength, kFormat>(shared + place, raw, row_bytes, args.pages.head_length);
          else if constexpr (kFormat == KvFormat::kQ8_0)
            expand_whole_q8_0<kLength>(shared + place, raw);
          else if constexpr (kFormat == KvFormat::kFp8E4m3)
            expand_whole_e4m3<kLength>(shared + place, raw);
          fence_proxy_async();
          mbarrier_arrive(full);
        }
      }
    }
    if constexpr (kFormat != KvFormat::kF16) {
      // The last raw values are converted before the next item's copies overwrite them.
      named_barrier_sync<kLoadBarrier>(kLoadThreads);
    }
  }
  copy_async_wait<0>();
}

// State for a warp's 16 tokens. Lane 4g + t holds rows g and g + 8 and, of every 8 columns of
// scores and sums, columns 2t and 2t + 1.
struct Softmax {
  float running_max[2] = {-INFINITY, -INFINITY};
  float denominator[2] = {0.0f, 0.0f};  // over this lane's keys
  float factor[2] = {1.0f, 1.0f};       // by which the sums so far must be scaled
};

// Turns scores into numerators.
__device__ __forceinline__ void softmax_scores(const AttentionKernelArgs& args, uint32_t position,
                                               uint32_t last_position, uint32_t first_position,
                                               uint32_t first_key, uint32_t lane,
                                               float (&scores)[64], Softmax* softmax) {
  if (args.softcap != 0.0f) {
#pragma unroll
    for (int i = 0; i < 64; ++i) scores[i] = cap_score(scores[i], args.softcap);
  }
  if (first_key + kPrefillBlockKeys - 1 > first_position ||
      first_visible(last_position, args.window) > first_key) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const uint32_t own = position + r * 8;
      const uint32_t first = first_visible(own, args.window);
#pragma unroll
      for (int i = 0; i < 16; ++i)
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          const uint32_t key = first_key + i * 8 + lane % 4 * 2 + j;
          if (key > own || key < first) scores[i * 4 + r * 2 + j] = -INFINITY;
        }
    }
  }
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    float running_max = softmax->running_max[r];
#pragma unroll
    for (int i = 0; i < 16; ++i)
      running_max = fmaxf(running_max, fmaxf(scores[i * 4 + r * 2], scores[i * 4 + r * 2 + 1]));
    running_max = quad_max(running_max);
    // All of a token's keys so far may be masked.
    const float base = running_max == -INFINITY ? 0.0f : running_max;
    softmax->factor[r] = exp2_fast(softmax->running_max[r] - base);
    softmax->running_max[r] = running_max;
    float denominator = 0.0f;
#pragma unroll
    for (int i = 0; i < 16; ++i)
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        float& score = scores[i * 4 + r * 2 + j];
        score = exp2_fast(score - base);
        denominator += score;
      }
    softmax->denominator[r] = softmax->denominator[r] * softmax->factor[r] + denominator;
  }
}

__device__ __forceinline__ void pack_numerators(const float (&scores)[64],
                                                uint32_t (&numerators)[8][4]) {
#pragma unroll
  for (int k = 0; k < 8; ++k)
#pragma unroll
    for (int j = 0; j < 4; ++j)
      numerators[k][j] = pack_halves(scores[k * 8 + j * 2], scores[k * 8 + j * 2 + 1]);
}

// scores (64, 128) = queries (64, kLength) * keys (128, kLength).
template <int kLength>
__device__ __forceinline__ void multiply_keys(uint64_t queries, uint64_t keys,
                                              float (&scores)[64]) {
#pragma unroll
  for (int k = 0; k < kLength / 16; ++k) {
    const uint64_t step = (k / 4 * kPanelBytes + k % 4 * 32) >> 4;
    wgmma_shared_128(scores, queries + step, keys + step, k != 0);
  }
}

// sums (64, kLength) += numerators (64, 128) * values (128, kLength).
template <int kLength>
__device__ __forceinline__ void multiply_values(const uint32_t (&numerators)[8][4], uint64_t values,
                                                float (&sums)[kLength / 2]) {
#pragma unroll
  for (int k = 0; k < 8; ++k) {
    const uint64_t step = k * 2048 >> 4;
    wgmma<kLength, true>(sums, numerators[k], values + step);
  }
}

template <int kLength>
__device__ __forceinline__ void write_results(const AttentionKernelArgs& args,
                                              const PrefillItem& item, uint32_t first_row,
                                              uint32_t lane, const Softmax& softmax,
                                              const float (&sums)[kLength / 2]) {
  const uint32_t n = args.pages.head_length;
  const float sink = args.sinks != nullptr ? args.sinks[item.head] * kLog2E : -INFINITY;
  const bool has_operand = args.operand.h != nullptr;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const float denominator = quad_sum(softmax.denominator[r]);
    const uint32_t row = first_row + r * 8;
    const float running_max = fmaxf(softmax.running_max[r], sink);
    const float factor = exp2_fast(softmax.running_max[r] - running_max);
    const float inverse = factor / (denominator * factor + exp2_fast(sink - running_max));
    if (has_operand) {
      const bool is_row = row < item.token_count;
      const uint32_t token = item.first_token + row;
      const OperandRow operand(args.operand, token);
      if (is_row && item.head == 0 && lane % 4 == 0) store_operand_scale(args.operand, token);
      constexpr int kGroups = kLength / 32;
      uint32_t words[kGroups][4];
#pragma unroll
      for (int i = 0; i < kLength / 8; ++i)
        words[i / 4][i % 4] = pack_halves(sums[i * 4 + r * 2] * inverse * kOperandFactor,
                                          sums[i * 4 + r * 2 + 1] * inverse * kOperandFactor);
      operand.store_groups<kGroups>(item.head * n, n / 32, words, lane, is_row);
      if (is_row && item.head + 1 == args.head_count)
        operand.clear_rest(args.head_count * n, args.operand.depth, lane % 4, 4);
      continue;
    }
    if (row >= item.token_count) continue;
    const uint64_t place = item.place(args, row) * n;
#pragma unroll
    for (int i = 0; i < kLength / 8; ++i) {
      const uint32_t element = i * 8 + lane % 4 * 2;
      if (element >= n) continue;
      const float low = sums[i * 4 + r * 2] * inverse, high = sums[i * 4 + r * 2 + 1] * inverse;
      *reinterpret_cast<float2*>(args.out + place + element) = make_float2(low, high);
    }
  }
}

// Writes a warp's results for a split of shared pages, which begin at row `first_row` of the tile.
// Each block does this once, so the time is that of instructions that are not in the SM's cache:
// the results pass through the memory of the warp's queries, for a short loop to store them.
template <int kLength>
__device__ __forceinline__ void write_split(const AttentionKernelArgs& args,
                                            const PrefillItem& item, uint32_t first_row,
                                            uint32_t lane, uint8_t* queries, const Softmax& softmax,
                                            const float (&sums)[kLength / 2]) {
  constexpr uint32_t kChunks = kLength / 8;
  const uint32_t n = args.pages.head_length, splits = args.plan.shared_splits;
  const auto place_of = [&](uint32_t row) { return item.place(args, row) * splits + item.split; };
  float factor[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const float denominator = quad_sum(softmax.denominator[r]);
    factor[r] = __fdividef(kOperandFactor, denominator);
    const uint32_t row = first_row + lane / 4 + r * 8;
    if (lane % 4 == 0 && row < item.token_count)
      args.plan.shared_lse[place_of(row)] = softmax.running_max[r] + __log2f(denominator);
  }
#pragma unroll
  for (uint32_t i = 0; i < kChunks; i += 2) {
    uint32_t words[4];
#pragma unroll
    for (uint32_t j = 0; j < 4; ++j) {
      const float* const pair = sums + (i + j / 2) * 4 + j % 2 * 2;
      words[j] = pack_halves(pair[0] * factor[j % 2], pair[1] * factor[j % 2]);
    }
    store_tiles(shared_address(queries) + panel_offset(first_row + lane % 16, i + lane / 16),
                words);
  }
  __syncwarp();
#pragma unroll 1
  for (uint32_t index = lane; index < 16 * kChunks; index += 32) {
    const uint32_t row = first_row + index / kChunks, chunk = index % kChunks;
    if (row < item.token_count && chunk * 8 < n)
      *reinterpret_cast<uint4*>(args.plan.shared_results + place_of(row) * n + chunk * 8) =
          *reinterpret_cast<const uint4*>(queries + panel_offset(row, chunk));
  }
}

// Stores a consumer warpgroup's partial result of an item. In the last one to do so, replaces it by
// the sum over all parts, in order, and returns true.
template <int kLength>
__device__ __forceinline__ bool join_parts(const AttentionKernelArgs& args, const PrefillItem& item,
                                           uint32_t group, uint32_t* is_last, Softmax* softmax,
                                           float (&sums)[kLength / 2]) {
  constexpr uint32_t kVectors = prefill_partial_floats(kLength) / 4;
  static_assert(kPrefillConsumerThreads == 2 * kGroupThreads);
  const uint32_t thread = threadIdx.x % kGroupThreads;
  // A block has at most two parts: number 1 of an item that it begins, and number 0 of one that an
  // earlier block began. The float4s of the threads of a warpgroup are interleaved.
  const auto part_at = [&](uint32_t part) {
    const uint64_t index = (item.first_part + part) * 2 + (part == 0 ? 1 : 0);
    return args.plan.prefill_partials + (index * 2 + group) * (kVectors * kGroupThreads) + thread;
  };
  float4* const own = part_at(blockIdx.x - item.first_part);
  __stcg(own, make_float4(softmax->running_max[0], softmax->running_max[1], softmax->denominator[0],
                          softmax->denominator[1]));
#pragma unroll
  for (uint32_t i = 0; i < kVectors - 1; ++i)
    __stcg(own + (i + 1) * kGroupThreads,
           make_float4(sums[4 * i], sums[4 * i + 1], sums[4 * i + 2], sums[4 * i + 3]));
  __threadfence();
  named_barrier_sync(kGroupBarrier + group, kGroupThreads);
  if (thread == 0) {
    uint32_t* const counter = args.plan.prefill_counters + item.first_part * 2 + group;
    const bool is_end = atomicAdd(counter, 1) == item.part_count - 1;
    if (is_end) *counter = 0;
    *is_last = is_end ? 1 : 0;
  }
  named_barrier_sync(kGroupBarrier + group, kGroupThreads);
  if (*is_last == 0) return false;
  __threadfence();
  *softmax = Softmax();
#pragma unroll
  for (int i = 0; i < kLength / 2; ++i) sums[i] = 0.0f;
#pragma unroll 1
  for (uint32_t part = 0; part < item.part_count; ++part) {
    const float4* const from = part_at(part);
    const float4 state = __ldcg(from);
    float4 values[kVectors - 1];
#pragma unroll
    for (uint32_t i = 0; i < kVectors - 1; ++i) values[i] = __ldcg(from + (i + 1) * kGroupThreads);
    const float maxima[2] = {state.x, state.y}, denominators[2] = {state.z, state.w};
    float factor[2];  // of the part
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float running_max = fmaxf(softmax->running_max[r], maxima[r]);
      // A token may see no key of the parts so far.
      const float base = running_max == -INFINITY ? 0.0f : running_max;
      softmax->factor[r] = exp2_fast(softmax->running_max[r] - base);
      factor[r] = exp2_fast(maxima[r] - base);
      softmax->running_max[r] = running_max;
      softmax->denominator[r] =
          softmax->denominator[r] * softmax->factor[r] + denominators[r] * factor[r];
    }
#pragma unroll
    for (uint32_t i = 0; i < kVectors - 1; ++i) {
      sums[4 * i] = sums[4 * i] * softmax->factor[0] + values[i].x * factor[0];
      sums[4 * i + 1] = sums[4 * i + 1] * softmax->factor[0] + values[i].y * factor[0];
      sums[4 * i + 2] = sums[4 * i + 2] * softmax->factor[1] + values[i].z * factor[1];
      sums[4 * i + 3] = sums[4 * i + 3] * softmax->factor[1] + values[i].w * factor[1];
    }
  }
  return true;
}

// The work of a consumer warpgroup for all items of the block.
template <int kLength, bool kHasPartitions>
__device__ __forceinline__ void work_on_items(const AttentionKernelArgs& args, uint32_t item_count,
                                              PrefillPartitions* partitions, uint8_t* shared,
                                              const Barriers& barriers) {
  using At = SharedLayout<kLength>;
  const uint32_t base = shared_address(shared);
  const uint32_t lane = threadIdx.x % 32;
  const uint32_t group = threadIdx.x / 128 - 1;
  const uint32_t group_row = group * kGroupTokens;
  const uint32_t first_row = group_row + threadIdx.x % 128 / 32 * 16 + lane / 4;
  const uint64_t queries = wgmma_descriptor(base + At::kQueries + group_row * 128, kPanelBytes);
  const auto keys_at = [&](uint32_t stage) {
    return wgmma_descriptor(base + At::kKeys + stage * At::kBytes, kPanelBytes);
  };
  const auto values_at = [&](uint32_t stage) {
    return wgmma_descriptor(base + At::kValues + stage * At::kBytes, kPanelBytes);
  };
  const auto release = [&](uint32_t barrier) {
    if (lane == 0) mbarrier_arrive(barrier);
  };
  // Shorter heads lose by taking turns: 1 % of a 1B model's time for 4,096 tokens.
  constexpr bool kIsPingPong = kLength > 64;
  const auto wait_for_turn = [&] {
    if constexpr (kIsPingPong) named_barrier_sync(kPingPongBarrier + group, 2 * kGroupThreads);
  };
  const auto give_turn = [&] {
    if constexpr (kIsPingPong)
      named_barrier_arrive(kPingPongBarrier + (group ^ 1), 2 * kGroupThreads);
  };

  StageCounter key_counter, value_counter;
  PrefillItems<kHasPartitions> items(args, item_count, partitions);
  PrefillItem item, next;
  bool has_item = items.next(&item);
  // For the queries. Block 0 waits in any case: when this kernel has ended, so have those before
  // it. Other blocks without items leave their SM to the next kernel.
  if (has_item || blockIdx.x == 0) dependent_wait();
  if (group == 1) give_turn();
  while (has_item) {
    load_queries<kLength>(args, item, group_row, shared + At::kQueries);
    fence_proxy_async();
    named_barrier_sync(kGroupBarrier + group, kGroupThreads);
    const uint32_t group_position = item.first_position + group_row;
    const uint32_t position = item.first_position + first_row;
    float scores[64];
    float sums[kLength / 2];
    uint32_t numerators[8][4];
    Softmax softmax;
#pragma unroll
    for (int i = 0; i < kLength / 2; ++i) sums[i] = 0.0f;

    mbarrier_wait(barriers.keys_full(key_counter.stage()), key_counter.parity());
    fence_proxy_async();
    wgmma_fence();
    multiply_keys<kLength>(queries, keys_at(key_counter.stage()), scores);
    wgmma_commit();
    has_item = items.next(&next);
    wgmma_wait<0>();
    accumulator_fence(scores);
    release(barriers.keys_empty(key_counter.stage()));
    ++key_counter.count;
    softmax_scores(args, position, group_position + kGroupTokens - 1, group_position,
                   item.block_begin * kPrefillBlockKeys, lane, scores, &softmax);
    pack_numerators(scores, numerators);

    for (uint32_t block = item.block_begin + 1; block < item.block_end; ++block) {
      mbarrier_wait(barriers.keys_full(key_counter.stage()), key_counter.parity());
      mbarrier_wait(barriers.values_full(value_counter.stage()), value_counter.parity());
      fence_proxy_async();
      wait_for_turn();
      wgmma_fence();
      multiply_keys<kLength>(queries, keys_at(key_counter.stage()), scores);
      wgmma_commit();
      multiply_values<kLength>(numerators, values_at(value_counter.stage()), sums);
      wgmma_commit();
      give_turn();
      wgmma_wait<1>();
      accumulator_fence(scores);
      release(barriers.keys_empty(key_counter.stage()));
      ++key_counter.count;
      softmax_scores(args, position, group_position + kGroupTokens - 1, group_position,
                     block * kPrefillBlockKeys, lane, scores, &softmax);
      wgmma_wait<0>();
      accumulator_fence(sums);
      release(barriers.values_empty(value_counter.stage()));
      ++value_counter.count;
      if (__any_sync(~0u, softmax.factor[0] != 1.0f || softmax.factor[1] != 1.0f)) {
#pragma unroll
        for (int i = 0; i < kLength / 2; ++i) sums[i] *= softmax.factor[i / 2 % 2];
      }
      pack_numerators(scores, numerators);
    }
    mbarrier_wait(barriers.values_full(value_counter.stage()), value_counter.parity());
    fence_proxy_async();
    wgmma_fence();
    multiply_values<kLength>(numerators, values_at(value_counter.stage()), sums);
    wgmma_commit();
    wgmma_wait<0>();
    accumulator_fence(sums);
    release(barriers.values_empty(value_counter.stage()));
    ++value_counter.count;
    if (args.is_shared) {
      named_barrier_sync(kGroupBarrier + group, kGroupThreads);  // all are done with the queries
      write_split<kLength>(args, item, first_row - lane / 4, lane, shared + At::kQueries, softmax,
                           sums);
    } else if (!kHasPartitions || item.part_count == 1 ||
               join_parts<kLength>(args, item, group, partitions->is_last + group, &softmax,
                                   sums)) {
      write_results<kLength>(args, item, first_row, lane, softmax, sums);
    }
    item = next;
    // All threads are done with the queries before one overwrites them.
    named_barrier_sync(kGroupBarrier + group, kGroupThreads);
  }
  if (group == 0) wait_for_turn();
}

#endif  // WCUDA_HAS_WARPGROUPS

template <int kLength, KvFormat kFormat, bool kHasPartitions>
__global__ void __launch_bounds__(kPrefillThreads, 1)
    attention_warpgroup_kernel(const __grid_constant__ AttentionKernelArgs args,
                               const __grid_constant__ CUtensorMap map) {
#if WCUDA_HAS_WARPGROUPS
  extern __shared__ uint8_t unaligned[];
  uint8_t* const shared = unaligned + (1024 - shared_address(unaligned) % 1024) % 1024;
  const uint32_t base = shared_address(shared);
  const Barriers barriers{base + SharedLayout<kLength>::kBarriers};
  dependent_trigger();
  if (threadIdx.x == 0) {
    constexpr uint32_t kWorkWarps = 8;
    for (uint32_t stage = 0; stage < kStages; ++stage) {
      mbarrier_init(barriers.keys_full(stage), kLoadThreads);
      mbarrier_init(barriers.values_full(stage), kLoadThreads);
      mbarrier_init(barriers.keys_empty(stage), kWorkWarps);
      mbarrier_init(barriers.values_empty(stage), kWorkWarps);
    }
    mbarrier_init_fence();
  }
  __syncthreads();
  // attention_plan has ended: it does not trigger early. Reads of data that it or earlier kernels
  // wrote bypass L1.
  const uint32_t tile_count =
      __ldcg(args.is_shared ? args.plan.shared_tile_count : args.plan.tile_count);
  const uint32_t item_count =
      tile_count *
      (args.is_shared ? args.pages.head_count * args.plan.shared_splits : args.item_heads);
  PrefillPartitions* partitions = nullptr;
  if constexpr (kHasPartitions) {
    __shared__ PrefillPartitions key_partitions;
    if (choose_partitions(args, tile_count, &key_partitions)) partitions = &key_partitions;
  }
  if (threadIdx.x < kLoadThreads) {
    registers_release<kLoadRegisters>();
    load_items<kLength, kFormat, kHasPartitions>(args, map, item_count, partitions, shared,
                                                 barriers);
  } else {
    registers_acquire<kWorkRegisters>();
    work_on_items<kLength, kHasPartitions>(args, item_count, partitions, shared, barriers);
  }
#endif
}

struct Instance {
  void (*kernel)(AttentionKernelArgs, CUtensorMap);
  uint32_t (*bytes)(uint32_t row_bytes);
  uint32_t bytes_max;  // for its longest heads
};

template <bool kHasPartitions>
struct Instances {
  static constexpr int kLengthMax = 128;
  template <int kLength, KvFormat kFormat>
  static Instance version() {
    return {attention_warpgroup_kernel<kLength, kFormat, kHasPartitions>,
            shared_bytes<kLength, kFormat>,
            shared_bytes<kLength, kFormat>(bytes_of_row(kFormat, kLength))};
  }
};

bool has_instance(uint32_t head_length) {
  static_assert(kPrefillWarpgroupHeadMax == Instances<false>::kLengthMax);
  return prefill_has_warpgroup(head_length, 90);
}

}  // namespace

// Without code for sm_90a the kernels are empty and need few registers.
bool has_warpgroup_code(int32_t* error) {
  constexpr int kEmptyRegistersMax = 64;
  enum : int32_t { kUnknown, kHasCode, kHasNone };
  static std::atomic<int32_t> known{kUnknown};
  if (error != nullptr) *error = cudaSuccess;
  if (const int32_t answer = known.load(std::memory_order_relaxed); answer != kUnknown)
    return answer == kHasCode;
  cudaFuncAttributes attributes{};
  const cudaError_t status =
      cudaFuncGetAttributes(&attributes, attention_warpgroup_kernel<128, KvFormat::kF16, false>);
  if (status != cudaSuccess) (void)cudaGetLastError();
  if (status != cudaSuccess && !means_no_code(status)) {
    if (error != nullptr) *error = status;
    return false;
  }
  const bool has = status == cudaSuccess && attributes.numRegs > kEmptyRegistersMax;
  known.store(has ? kHasCode : kHasNone, std::memory_order_relaxed);
  return has;
}

cudaError_t attention_prefill_warpgroup_prepare(KvFormat format, uint32_t head_length) {
  if (!has_instance(head_length)) return cudaSuccess;
  for (const Instance& instance : {find_version<Instances<false>>(format, head_length),
                                   find_version<Instances<true>>(format, head_length)}) {
    // The limit holds for the process: engines with heads of another length may use the instance.
    if (const cudaError_t status =
            cudaFuncSetAttribute(instance.kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                 static_cast<int>(instance.bytes_max)))
      return status;
  }
  return cudaSuccess;
}

bool attention_prefill_has_warpgroup(uint32_t head_length, const Launch& launch) {
  return launch.compute_capability == 90 && has_instance(head_length) && has_warpgroup_code();
}

cudaError_t attention_prefill_warpgroup(const AttentionKernelArgs& args, const Launch& launch) {
  const uint32_t tiles = prefill_tiles_max(args.step.token_count, args.step.row_count);
  const auto sm_count = static_cast<uint32_t>(launch.sm_count);
  // Steps of long prompts have enough items, of which each block takes several.
  const uint32_t least_items =
      divide_up(args.step.token_count, kPrefillTileTokens) * args.item_heads;
  const bool has_partitions = !args.is_shared && args.plan.prefill_partials != nullptr &&
                              least_items <= kPartitionRoundsMax * sm_count;
  const Instance instance =
      has_partitions ? find_version<Instances<true>>(args.pages.format, args.pages.head_length)
                     : find_version<Instances<false>>(args.pages.format, args.pages.head_length);
  const uint32_t items =
      args.is_shared ? sm_count : tiles * args.item_heads * (has_partitions ? kItemBlocks : 1);
  CUtensorMap map = {};  // of the layer's rows
  if (args.pages.format == KvFormat::kF16 && args.pages.head_length % kBoxElements == 0) {
    const uint64_t rows =
        uint64_t{args.pages.page_count} * 2 * args.pages.head_count * kPagePositions;
    const cudaError_t status =
        make_tensor_map(args.pages.data + args.layer * rows * args.pages.row_bytes, rows,
                        args.pages.head_length, kPagePositions, &map);
    if (status != cudaSuccess) return status;
  }
  return launch_kernel(launch, dim3(items < sm_count ? items : sm_count), dim3(kPrefillThreads),
                       instance.bytes(args.pages.row_bytes), 0, instance.kernel, args, map);
}

cudaError_t attention_shared(const AttentionKernelArgs& args, const Launch& launch) {
  if (!attention_prefill_has_warpgroup(args.pages.head_length, launch) || args.window != 0 ||
      args.plan.shared_splits == 0 || args.plan.group_heads > kDecodeSharedHeadsMax)
    return cudaErrorInvalidValue;
  AttentionKernelArgs call = args;
  call.is_shared = true;
  return attention_prefill_warpgroup(call, launch);
}

}  // namespace wcuda::kernels
