// attention_decode: out[h] = sum over p of w[p] * v[p], w = softmax(scale * q[h]·k[p]).
//
// The plan (attention_plan.h) gives each block a run of spans, which may cover several rows and
// key-value heads. A block handles its run as a series of segments (attention_decode_step.cuh),
// each in one row and head. If the rest of the run begins with several complete heads of a row, the
// warps are divided into teams, and each team handles one of these heads; otherwise all warps form
// one team. The warps of a team take the tiles of 16 or 32 positions in turn. Each warp loads its
// tiles through its own ring in shared memory, so the loop over the tiles needs no barrier between
// warps.
//
// In steps with many rows of few positions, most of the time goes into loading the queries and the
// new key and value of each head. A team of one warp therefore copies those of its next head while
// it computes the current one:
//
//   copies in flight   tiles of head 0, q k v of head 1 | tiles of head 1, q k v of head 2 | …
//   computation        K·q, softmax, V·w of head 0      | K·q, softmax, V·w of head 1      | …
//
// For each tile, the scores K·q have the shape (positions, query heads); one MMA serves up to 8
// query heads. Softmax is online, in f32. The sums V·w have the shape (elements, query heads) and
// stay in the registers of the warp. Queries and numerators enter the MMAs as f16. With at most 4
// query heads, half of the 8 columns of the MMA are unused; they hold what rounding to f16 removed
// from the queries, which makes the scores more precise.
//
// If a row and head has several segments, each segment yields a partial result in global memory,
// and the last block to finish adds these in a fixed order. Positions after the end of a segment
// are never read; in shared memory their keys and values are 0.
//
// Bytes moved: the visible keys and values once for each group of up to 8 query heads, the queries,
// the results, and the partial results (at most two per block, or one per span of fixed length).
#include <algorithm>

#include "kernels/attention/attention.h"
#include "kernels/attention/attention_decode_group.h"
#include "kernels/attention/attention_decode_step.cuh"
#include "kernels/attention/attention_instance.cuh"
#include "kernels/ptx/launch.h"

namespace wcuda::kernels {
namespace {

template <int kLength>
constexpr int kSmBlocks = decode_sm_blocks(kLength);

constexpr int run_ring_bytes(int length, KvFormat format, bool is_exact) {
  if (format == KvFormat::kF16) return (length > 128 ? 32 : is_exact ? 24 : 16) * 1024;
  return (format == KvFormat::kInt10 && is_exact ? 24 : 18) * 1024;
}
// Kernels compiled for one head length (kExact) need up to 164 KiB of shared memory. The others
// serve any length up to kLength with the 99 KiB that a block can have on every device.
template <int kLength, KvFormat kFormat, bool kExact>
using RunShape = DecodeShape<kLength, kFormat, kExact, kExact || kLength <= 128 ? 4 : 2,
                             run_ring_bytes(kLength, kFormat, kExact), false,
                             kExact ? tile_positions(kLength, kFormat) : kSubTilePositions>;

template <class S>
struct SharedLayout {
  static constexpr uint32_t kReduction = S::kRingsBytes;
  static constexpr uint32_t kBytes = kReduction + S::kWarps * S::kSumBytes;
  // A team uses the kSumBytes of all its warps: one warp has room for kMmaHeads / 2 heads.
  static_assert(NewKv<S::kLength>::bytes(kMmaHeads) <= 2 * S::kSumBytes);
  static_assert(NewKv<S::kLength>::bytes(kMmaHeads / 2) <= S::kSumBytes);
  // Hopper has 228 KiB of shared memory per SM, of which the system reserves 1 KiB per block.
  static_assert(kSmBlocks<S::kLength> * (kBytes + 1024) <= 228 * 1024);
  static_assert(S::kExact || kBytes + 1024 <= 100 * 1024);
};

// Iterates over the segments that a warp works on.
template <class S>
class Segments {
 public:
  __device__ Segments(const AttentionKernelArgs& args, const DecodeStart& start, uint32_t warp)
      : args_(args),
        warp_(warp),
        span_(start.begin),
        end_(start.end),
        row_(start.row),
        row_begin_(start.spans_before),
        row_end_(start.spans_to_end),
        token_(start.token),
        position_(start.position),
        head_(start.head) {}
  __device__ __forceinline__ bool next(Segment* segment) {
    if (span_ == end_) return false;
    const AttentionPlan& plan = args_.plan;
    if (span_ >= row_end_ * plan.head_tiles) {
      do {
        ++row_;
        row_begin_ = row_end_;
        row_end_ = __ldcg(plan.row_spans + row_ + 1);
      } while (row_end_ == row_begin_);
      token_ = __ldcg(&args_.step.rows[row_].first_token);
      position_ = __ldcg(&args_.step.rows[row_].first_position);
      head_ = 0;
    }
    const uint32_t spans = row_end_ - row_begin_;
    const bool is_fixed = plan.fixed_span_pages != 0;
    segment->row = row_;
    segment->span_begin = span_ - (row_begin_ * plan.head_tiles + head_ * spans);
    uint32_t team_bits = S::kWarpBits;
    if (segment->span_begin == 0 && !is_fixed) {
      team_bits =
          team_warp_bits(team_bits, plan.group_heads, plan.head_tiles - head_, spans, end_ - span_);
    }
    const uint32_t teams = S::kWarps >> team_bits;
    segment->team.count = 1 << team_bits;
    segment->team.rank = warp_ & (segment->team.count - 1);
    segment->head = head_ + (warp_ >> team_bits);
    segment->kv_head = plan.group_tiles == 1 ? segment->head : segment->head / plan.group_tiles;
    segment->row_first = row_begin_ * plan.head_tiles + segment->head * spans;
    segment->span_end =
        is_fixed ? segment->span_begin + 1 : min(spans, segment->span_begin + end_ - span_);
    segment->row_spans = spans;
    segment->token = token_;
    segment->position = position_;
    const uint32_t span_positions = (is_fixed ? plan.fixed_span_pages : 1) * kPagePositions;
    // The plan's window may be wider than this layer's; then the first spans have no visible
    // position.
    const uint32_t first_span =
        (is_fixed ? position_ / span_positions : position_ / kPagePositions) + 1 - spans;
    segment->first_page = (first_span + segment->span_begin) * (span_positions / kPagePositions);
    segment->begin = max(first_visible(position_, args_.window),
                         (first_span + segment->span_begin) * span_positions);
    segment->end = min(position_ + 1, (first_span + segment->span_end) * span_positions);
    if (segment->span_end == spans) head_ += teams;
    span_ += teams * (segment->span_end - segment->span_begin);
    return true;
  }

 private:
  const AttentionKernelArgs& args_;
  uint32_t warp_, span_, end_, row_, row_begin_, row_end_, token_, position_, head_;
};

// Returns where the partial results of a segment's row and head are.
__device__ __forceinline__ PartialList find_partials(const AttentionKernelArgs& args,
                                                     const Segment& segment,
                                                     const DecodeStart& start) {
  PartialList list;
  list.partials = args.plan.partials;
  list.partial_floats = args.plan.partial_floats;
  if (args.plan.fixed_span_pages != 0) {
    list.count = segment.row_spans;
    list.own = segment.span_begin;
    list.first = segment.row_first;
    list.second = segment.row_first + 1;
    list.stride = 1;
    list.counter = segment.row * args.plan.head_tiles + segment.head;
    return list;
  }
  const uint32_t larger_end = start.larger_count * (start.block_spans + 1);
  const auto block_of = [&](uint32_t span) {
    return span < larger_end ? span / (start.block_spans + 1)
                             : start.larger_count + (span - larger_end) / start.block_spans;
  };
  const uint32_t first_block = block_of(segment.row_first);
  list.count = block_of(segment.row_first + segment.row_spans - 1) - first_block + 1;
  list.own = blockIdx.x - first_block;
  // Block b writes at most two partials: partial 2b for a head that an earlier block began, and
  // partial 2b + 1 for a head that a later block continues.
  list.first = 2 * first_block + 1;
  list.second = 2 * (first_block + 1);
  list.stride = 2;
  list.counter = first_block;
  return list;
}

// Merges the sums of the team's warps, then writes the result, or a partial result if the segment
// covers only a part of its row and head.
template <class S>
__device__ __forceinline__ void finish_segment(const AttentionKernelArgs& args,
                                               const Segment& segment, const Heads& heads,
                                               const DecodeStart& start,
                                               const ReductionBuffer<S::kLength>& reduction,
                                               const WarpSums<S::kLength>& warp_sums) {
  const bool is_whole = segment.span_end - segment.span_begin == segment.row_spans;
  if (segment.team.count == 1) {
    write_sums<S>(args, heads, warp_sums, threadIdx.x % 32);
    return;
  }
  put_sums<S>(warp_sums, segment.team.rank, reduction);
  segment.team.sync();
  // If the segment covers only a part of its row and head, all warps of the block form the team.
  if (is_whole || merge_blocks<S>(args, find_partials(args, segment, start), heads, reduction))
    write_merged<S>(args, heads, segment.team, reduction);
  segment.team.sync();  // the reduction buffer may be overwritten
}

template <class S>
__global__ void __launch_bounds__(S::kThreads, kSmBlocks<S::kLength>)
    attention_decode_kernel(const __grid_constant__ AttentionKernelArgs args) {
  extern __shared__ __align__(128) uint8_t shared[];
  dependent_trigger();
  const uint32_t lane = threadIdx.x % 32;
  const uint32_t warp = threadIdx.x / 32;
  const StartWords start_words(args.plan, lane);
  Rotations<S::kLength> rotations;
  if (args.key != nullptr) rotations.load(args.rope, lane);
  const DecodeStart start = start_words.all();
  if (start.begin == start.end) {
    leave_idle();
    return;
  }

  const uint32_t ring = shared_address(shared + warp * S::kWarpBytes);
  Segments<S> segments(args, start, warp);
  Loader<S, Segments<S>> loader(args, segments, start_words, lane, ring);
  bool has_waited = fill_ring<S>(args, &loader);
  Segment segment, next;
  bool has_next = segments.next(&next), is_copied = false;
  WarpSums<S::kLength> sums;
  Queries<S> queries;
  uint32_t stage = 0;
  // The row of `rotations` and `page`; `page` is the page of the row's newest position.
  uint32_t row = UINT32_MAX;
  uint32_t page = 0, next_page = 0;
  segment.team.count = next.team.count;
  for (uint32_t count = 1; has_next; ++count) {
    if (segment.team.count != next.team.count) __syncthreads();
    segment = next;
    has_next = segments.next(&next);
    uint8_t* const memory =
        shared + SharedLayout<S>::kReduction + (warp - segment.team.rank) * S::kSumBytes;
    const NewKv<S::kLength> new_kv{memory};
    const ReductionBuffer<S::kLength> reduction{memory, S::kSumBytes};
    TileRange<S> tiles;
    tiles.begin(segment);
    sums.clear();
    const Heads heads(args, segment);
    if (args.key != nullptr && segment.row != row) {
      row = segment.row;
      rotations.find(args.rope, segment.position);
      page = is_copied ? next_page : page_of(args, row, segment.position / kPagePositions);
    }
    if (!has_waited) dependent_wait();
    has_waited = true;
    if (segment.begin < segment.end)
      prepare_segment<S>(args, segment, heads, is_copied, page, rotations, new_kv, ring, stage,
                         tiles.next, &queries);
    is_copied = S::kExact && has_next && segment.team.count == 1 && next.team.count == 1;
    if (is_copied) {
      copy_heads<S>(args, next, new_kv, lane);
      if (args.key != nullptr && next.row != row)
        next_page = page_of(args, next.row, next.position / kPagePositions);
    }
    const bool has_few_tiles = tiles.next + S::kStages > tiles.end;
    add_tiles<S>(args, segment, queries, ring, count, &tiles, &stage, &loader, &sums);
    finish_segment<S>(args, segment, heads, start, reduction, sums);
    if (is_copied) {
      // The copies of the next heads belong to the first group that the loop committed. After at
      // least kStages iterations, this group is not among the last kStages - 1.
      if (has_few_tiles)
        copy_async_wait<0>();
      else
        copy_async_wait<S::kStages - 1>();
    }
  }
  copy_async_wait<0>();
}

// ---- choice of the instance ----

struct Instance {
  void (*kernel)(AttentionKernelArgs);
  uint32_t bytes;  // of shared memory
  uint32_t threads;
  uint32_t sm_blocks;
};

template <bool kExact>
struct Instances {
  static constexpr int kLengthMax = 256;
  template <int kLength, KvFormat kFormat>
  static Instance version() {
    using S = RunShape<kLength, kFormat, kExact>;
    return {attention_decode_kernel<S>, SharedLayout<S>::kBytes, S::kThreads, kSmBlocks<kLength>};
  }
};

Instance find_instance(KvFormat format, uint32_t head_length, const Launch& launch) {
  return decode_has_exact(head_length, launch.compute_capability)
             ? find_version<Instances<true>>(format, head_length)
             : find_version<Instances<false>>(format, head_length);
}

uint32_t padded_length(uint32_t head_length) {
  return head_length <= 64 ? 64 : head_length <= 128 ? 128 : 256;
}

}  // namespace

uint32_t decode_blocks_max(uint32_t sm_count) {
  uint32_t most = 0;
  for (const DecodeBlocks& row : kDecodeBlocks) most = std::max(most, row.sm_blocks);
  return sm_count * most;
}

uint32_t decode_block_count(KvFormat format, uint32_t head_length, const Launch& launch) {
  return static_cast<uint32_t>(launch.sm_count) *
         find_instance(format, head_length, launch).sm_blocks;
}

uint32_t decode_partial_floats(uint32_t head_count, uint32_t kv_head_count, uint32_t head_length) {
  const uint32_t group = head_count / kv_head_count;
  return 2 * kMmaHeads +
         (group < kDecodeGroupMax ? group : kDecodeGroupMax) * padded_length(head_length);
}

cudaError_t attention_decode_prepare(KvFormat format, uint32_t head_length, const Launch& launch) {
  if (head_length == 0 || head_length > kAttentionHeadLengthMax) return cudaErrorInvalidValue;
  for (const Instance& instance : {find_version<Instances<false>>(format, head_length),
                                   find_instance(format, head_length, launch)}) {
    const cudaError_t status =
        cudaFuncSetAttribute(instance.kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             static_cast<int>(instance.bytes));
    if (status != cudaSuccess) return status;
  }
  if (!decode_has_groups(head_length, launch.compute_capability)) return cudaSuccess;
  return attention_decode_group_prepare(format, head_length);
}

cudaError_t attention_decode(const AttentionKernelArgs& args, const Launch& launch) {
  if (args.pages.head_length == 0 || args.pages.head_length > kAttentionHeadLengthMax)
    return cudaErrorInvalidValue;
  if (args.step.row_count == 0) return cudaSuccess;
  if (args.plan.has_groups) return attention_decode_group(args, launch);
  const Instance instance = find_instance(args.pages.format, args.pages.head_length, launch);
  return launch_kernel(launch, dim3(args.plan.max_blocks), dim3(instance.threads), instance.bytes,
                       0, instance.kernel, args);
}

}  // namespace wcuda::kernels
