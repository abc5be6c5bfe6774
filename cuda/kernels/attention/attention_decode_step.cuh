// Device code of all decode kernels: the ring of tiles that a warp loads, the queries as MMA
// operands, softmax over a tile of 16 or 32 positions, and the merging of partial results. Included
// only by .cu files.
//
// A segment is a range of consecutive positions of one row and one group of query heads. A team is
// the warps of a block that work on one segment: all of them, or some of them if the block works on
// several segments at once. The warps of a team take the tiles in turn, and each warp loads its
// tiles through its own ring of stages in shared memory. With a team of 4 warps:
//
//   warp 0   tile 0 | tile 4 | tile 8  …       for each tile: load → scores = K·q → softmax →
//   warp 1   tile 1 | tile 5 | tile 9  …       sums += V·numerators
//   warp 2   tile 2 | tile 6 | tile 10 …
//   warp 3   tile 3 | tile 7 | tile 11 …
//
// A ring of 3 stages while warp 0 computes tile 4:
//
//   stage 0: tile 12, in flight | stage 1: tile 4, in use | stage 2: tile 8, in flight
//
// After the last tile, the results of a team's warps are merged in shared memory. If several blocks
// handle the same row and head, their results are merged through global memory or, in a cluster,
// through distributed shared memory.
#pragma once

#include "kernels/attention/attention.h"
#include "kernels/attention/attention_decode_tile.cuh"
#include "kernels/attention/attention_operand.cuh"
#include "kernels/ptx/dependent_launch.cuh"
#include "kernels/ptx/memory_order.cuh"
#include "kernels/ptx/named_barrier.cuh"
#include "kernels/shared/rope_head.cuh"

namespace wcuda::kernels {

// Drafts before a row are in the tile of its position, or in the one before.
static_assert(kDecodeDraftsMax < kSubTilePositions);

// Positions of a tile of heads of exactly `head_length` elements: 32 if a row has at most some 128
// bytes, because a tile's waits and branches take as long whatever its bytes.
constexpr int tile_positions(int head_length, KvFormat format) {
  return head_length <= (format == KvFormat::kF16 ? 64 : 128) ? 2 * kSubTilePositions
                                                              : kSubTilePositions;
}

constexpr int kMmaHeads = 8;  // query heads per MMA: its N dimension
static_assert(kMmaHeads == kDecodeGroupMax);

// Stride, in floats, between the sums of two heads in shared memory. The padding avoids bank
// conflicts.
template <int kLength>
constexpr uint32_t kSumStride = kLength + 4;

// Compile-time parameters of a kernel. With kExact, heads have exactly kLength elements; otherwise
// they have at most kLength. With kSeparateKv, the keys and the values of a tile are in two
// consecutive stages; otherwise they are in one.
template <int kLength_, KvFormat kFormat_, bool kExact_, int kWarps_, int kRingBytes,
          bool kSeparateKv_ = false, int kTilePositions_ = kSubTilePositions>
struct DecodeShape {
  static constexpr int kLength = kLength_;
  static constexpr KvFormat kFormat = kFormat_;
  static constexpr bool kExact = kExact_;
  static constexpr bool kSeparateKv = kSeparateKv_;
  static constexpr int kWarps = kWarps_;
  static constexpr int kThreads = kWarps * 32;
  static constexpr uint32_t kWarpBits = kWarps == 8 ? 3 : kWarps == 4 ? 2 : 1;
  static_assert(kWarps == 1 << kWarpBits);
  static constexpr int kTilePositions = kTilePositions_,
                       kSubTiles = kTilePositions / kSubTilePositions;
  using Tile = DecodeTile<kLength, kFormat, kExact, kTilePositions>;

  // Stages of a warp's ring: at most 6, and no more than fit into kRingBytes.
  static constexpr uint32_t kStageBytes = (kSeparateKv ? 1 : 2) * Tile::kBytes;
  static constexpr int kFitting = kRingBytes / kStageBytes;
  static constexpr int kStages = kFitting > 6 ? 6 : kFitting;
  static_assert(kStages >= 1);
  // A vector load of quantized values may read past the end, hence 16 bytes of padding.
  static constexpr uint32_t kWarpBytes = kStages * kStageBytes + 16;
  static constexpr uint32_t kRingsBytes = (kWarps * kWarpBytes + 127) / 128 * 128;
  // Shared memory for a warp's sums, running maxima and denominators.
  static constexpr uint32_t kSumBytes = kMmaHeads * (kSumStride<kLength> + 2) * sizeof(float);
};

// A group of consecutive warps of a block that work on one segment.
struct Team {
  uint32_t rank;   // of this warp within the team
  uint32_t count;  // number of warps, a power of two

  __device__ uint32_t thread() const { return rank * 32 + threadIdx.x % 32; }
  __device__ uint32_t threads() const { return count * 32; }
  // Waits for all warps of the team. Two barrier ids suffice, because at most two teams of a block
  // have more than one warp. When the team size changes from one segment to the next, the kernel
  // synchronizes the whole block first.
  __device__ __forceinline__ void sync() const {
    if (count == 1)
      __syncwarp();
    else if (threadIdx.x / 32 == rank)
      named_barrier_sync<1>(threads());
    else
      named_barrier_sync<2>(threads());
  }
};

// Consecutive positions of one row and one group of query heads, which one team works on.
struct Segment {
  uint32_t row;
  uint32_t head;  // index of the group of query heads, counted over all KV heads
  uint32_t kv_head;
  uint32_t span_begin;  // first span (attention_plan.h), counted within the row and head
  uint32_t span_end;    // one past the last span
  uint32_t row_spans;   // number of spans of the row and head
  uint32_t row_first;   // index of the first of these spans in the list of all spans
  uint32_t token;       // index of the row's token in the step
  uint32_t position;    // of that token
  Team team;
  uint32_t first_page;  // index of the segment's first page in the row's page table
  uint32_t begin;       // first position
  uint32_t end;         // one past the last position
};

// A block's DecodeStart in registers. Lane l holds word l % 16.
class StartWords {
 public:
  __device__ StartWords(const AttentionPlan& plan, uint32_t lane)
      : word_(__ldcg(reinterpret_cast<const uint32_t*>(plan.starts + blockIdx.x) + lane % 16)) {}
  __device__ __forceinline__ DecodeStart all() const {
    DecodeStart start;
    auto* const words = reinterpret_cast<uint32_t*>(&start);
#pragma unroll
    for (int i = 0; i < kPagesWord; ++i) words[i] = __shfl_sync(~0u, word_, i);
    return start;  // without the pages
  }
  __device__ __forceinline__ uint32_t page(uint32_t index) const {
    return __shfl_sync(~0u, word_, kPagesWord + index);
  }

 private:
  static_assert(sizeof(DecodeStart) == 64);
  static constexpr int kPagesWord = 16 - kStartPages;
  uint32_t word_;
};

// Returns the page at `index` of a row's page table.
__device__ __forceinline__ uint32_t page_of(const AttentionKernelArgs& args, uint32_t row,
                                            uint32_t index) {
  return __ldcg(args.step.page_tables + uint64_t{row} * args.step.page_table_stride + index);
}

// The tiles of a segment that one warp works on. The warps of the team take the tiles in turn.
template <class S>
struct TileRange {
  uint32_t next = 0;
  uint32_t end = 0;
  __device__ void begin(const Segment& segment) {
    constexpr uint32_t kPositions = S::kTilePositions;
    next = segment.begin / kPositions + segment.team.rank;
    end = segment.begin < segment.end ? (segment.end + kPositions - 1) / kPositions : 0;
  }
};

// Loads a warp's tiles into its ring before they are used. Walk::next() returns the segments of the
// warp one after the other.
template <class S, class Walk>
class Loader {
 public:
  using Tile = typename S::Tile;
  static constexpr uint32_t kTilePositions = S::kTilePositions;
  __device__ Loader(const AttentionKernelArgs& args, const Walk& segments, const StartWords& start,
                    uint32_t lane, uint32_t ring)
      : args_(args), segments_(segments), start_(start), lane_(lane), ring_(ring) {
    find_tile();
  }
  // Returns true if the next tile has the newest position of its row, or if there is no next tile.
  __device__ bool has_newest_next() const {
    return !has_tile_ || segment_.position / kTilePositions == tiles_.next;
  }
  // Returns true if this step may store keys and values of the next tile, or if there is no next
  // tile.
  __device__ bool may_be_stored() const {
    return !has_tile_ || tiles_.next + args_.stored_tiles >= segment_.position / kTilePositions;
  }
  // Starts the copy of the next tile or, with kSeparateKv, of its keys or values, into stage
  // `stage`, and commits it as one cp.async group. If no tile is left, the group is empty, so that
  // the number of committed groups always equals the number of calls.
  //
  // `stored` is the number of the warp's segments whose new keys and values this kernel has
  // already written. In later segments the copy skips the newest position, because it is not in the
  // page yet. If rope_kv writes the new keys and values, `stored` has no effect.
  __device__ __forceinline__ void issue(uint32_t stage, uint32_t stored) {
    if (has_tile_) {
      const KvPages& pages = args_.pages;
      const uint32_t first = tiles_.next * kTilePositions;
      RowRange valid{segment_.begin > first ? segment_.begin - first : 0,
                     min(segment_.end - first, kTilePositions)};
      if (has_newest_next() && args_.key != nullptr && segment_count_ > stored) --valid.end;
      const uint8_t* keys = page_rows(pages, args_.layer, page_, segment_.kv_head, false) +
                            first % kPagePositions * pages.row_bytes;
      const uint8_t* values = keys + uint64_t{pages.head_count} * kPagePositions * pages.row_bytes;
      const uint32_t target = ring_ + stage * S::kStageBytes;
      if constexpr (S::kSeparateKv) {
        Tile::copy(target, has_values_next_ ? values : keys, pages, valid, lane_);
        has_values_next_ = !has_values_next_;
      } else {
        Tile::copy(target, keys, pages, valid, lane_);
        Tile::copy(target + Tile::kBytes, values, pages, valid, lane_);
      }
      if (!S::kSeparateKv || !has_values_next_) {
        tiles_.next += segment_.team.count;
        find_tile();
      }
    }
    copy_async_commit();
  }

 private:
  __device__ __forceinline__ void find_tile() {
    while (tiles_.next >= tiles_.end) {
      has_tile_ = segments_.next(&segment_);
      if (!has_tile_) return;
      if (++segment_count_ == 1) first_row_ = segment_.row, first_page_ = segment_.first_page;
      tiles_.begin(segment_);
    }
    const uint32_t index = tiles_.next / (kPagePositions / kTilePositions);
    if (segment_.row == first_row_ && index - first_page_ < kStartPages) {
      page_ = start_.page(index - first_page_);
    } else if (S::kSeparateKv) {
      page_ = page_of(args_, segment_.row, index);
    } else {
      if (segment_.row != pages_row_ || index - pages_first_ >= 32) {
        pages_row_ = segment_.row;
        pages_first_ = index;
        pages_ =
            page_of(args_, segment_.row, min(index + lane_, segment_.position / kPagePositions));
      }
      page_ = __shfl_sync(~0u, pages_, index - pages_first_);
    }
  }

  const AttentionKernelArgs& args_;
  Walk segments_;
  const StartWords& start_;
  Segment segment_;
  TileRange<S> tiles_;
  uint32_t lane_, ring_;
  uint32_t segment_count_ = 0;               // number of segments begun so far
  uint32_t first_row_ = 0, first_page_ = 0;  // of the first segment
  // Entries of the page table of row pages_row_: lane l holds entry pages_first_ + l. One load
  // fetches 32 entries, because a load that queues behind the tile loads takes microseconds.
  uint32_t pages_ = 0, pages_row_ = UINT32_MAX, pages_first_ = 0;
  uint32_t page_ = 0;  // of the next tile
  bool has_tile_ = false;
  bool has_values_next_ = false;  // with kSeparateKv
};

// Fills a warp's ring, if possible before the dependent wait. A tile with positions that rope_kv
// writes can be copied only after the wait. For such a tile the function waits, and returns true.
template <class S, class Walk>
__device__ __forceinline__ bool fill_ring(const AttentionKernelArgs& args,
                                          Loader<S, Walk>* loader) {
  bool has_waited = false;
#pragma unroll 1
  for (uint32_t stage = 0; stage < S::kStages; ++stage) {
    if (!has_waited && args.key == nullptr && loader->may_be_stored()) {
      dependent_wait();
      has_waited = true;
    }
    loader->issue(stage, 0);
  }
  return has_waited;
}

// Ends a block that has no work. Block 0 still waits for the previous kernel, so that this kernel
// cannot end before it. The next kernel waits only for this one and assumes that all earlier
// kernels have ended.
__device__ __forceinline__ void leave_idle() {
  if (blockIdx.x == 0) dependent_wait();
}

// The query heads of a segment.
struct Heads {
  uint32_t token;
  uint32_t first;  // index of the first query head
  uint32_t count;

  __device__ Heads(const AttentionKernelArgs& args, const Segment& segment) {
    const uint32_t tile = segment.head - segment.kv_head * args.plan.group_tiles;
    token = segment.token;
    first = segment.kv_head * args.plan.group_heads + tile * kDecodeGroupMax;
    count = min(args.plan.group_heads - tile * kDecodeGroupMax, kDecodeGroupMax);
  }
};

// A warp's sums over its tiles of a segment. Lane 4g + t holds sums of heads 2t and 2t + 1.
template <int kLength>
struct WarpSums {
  float running_max[2];
  float denominator[2];  // summed over this lane's positions only
  float values[kLength / 16][4];

  __device__ __forceinline__ void clear() {
    running_max[0] = running_max[1] = -INFINITY;
    denominator[0] = denominator[1] = 0.0f;
#pragma unroll
    for (int i = 0; i < kLength / 16; ++i)
#pragma unroll
      for (int j = 0; j < 4; ++j) values[i][j] = 0.0f;
  }
};

// Shared memory for the heads of a segment. It holds the new key and the new value in the format of
// the pages, then the queries, the new key and the new value in f32.
template <int kLength>
struct NewKv {
  static constexpr uint32_t kStride = kLength + 8;  // padded, so that lanes read different banks
  static constexpr uint32_t kRowBytes = kLength * 2 + 16;
  static constexpr uint32_t bytes(uint32_t heads) {
    return 2 * kRowBytes + (heads + 2) * kStride * sizeof(float);
  }
  static constexpr uint32_t kBytes = bytes(kMmaHeads);
  uint8_t* base;

  __device__ float* head(uint32_t index) const {
    return reinterpret_cast<float*>(base + 2 * kRowBytes) + index * kStride;
  }
  __device__ uint8_t* row(bool is_value) const { return base + (is_value ? kRowBytes : 0); }
};

// The cosine and sine of a position for the element pairs with index lane, lane + 32, … of a head.
template <int kLength>
struct Rotations {
  float frequencies[kLength / 64];
  float2 values[kLength / 64];

  __device__ __forceinline__ void load(const HeadRope& rope, uint32_t lane) {
#pragma unroll
    for (uint32_t j = 0; j < kLength / 64; ++j)
      frequencies[j] =
          lane + 32 * j < rope.rope_dimensions / 2 ? rope.rope_frequencies[lane + 32 * j] : 0.0f;
  }
  __device__ __forceinline__ void find(const HeadRope& rope, uint32_t position) {
#pragma unroll
    for (uint32_t j = 0; j < kLength / 64; ++j)
      values[j] = rope_cos_sin(position, frequencies[j], rope.rope_magnitude);
  }
};

// Returns the source of head `index`. The queries come first, then the new key and the new value.
template <class S>
__device__ __forceinline__ const float* head_source(const AttentionKernelArgs& args,
                                                    const Heads& heads, uint32_t kv_head,
                                                    uint32_t index) {
  const uint32_t n = S::kExact ? S::kLength : args.pages.head_length;
  if (index < heads.count)
    return args.query + (uint64_t{heads.token} * args.head_count + heads.first + index) * n;
  return (index == heads.count ? args.key : args.value) +
         (uint64_t{heads.token} * args.pages.head_count + kv_head) * n;
}

// Starts copies of the heads of a later segment whose team is this warp alone; load_heads then uses
// the copies. They are part of the next cp.async group that the warp commits.
template <class S>
__device__ __forceinline__ void copy_heads(const AttentionKernelArgs& args, const Segment& segment,
                                           const NewKv<S::kLength>& new_kv, uint32_t lane) {
  const Heads heads(args, segment);
  const uint32_t count = heads.count + (args.key != nullptr ? 2 : 0);
#pragma unroll 1
  for (uint32_t index = 0; index < count; ++index) {
    const float* source = head_source<S>(args, heads, segment.kv_head, index);
    for (uint32_t i = lane * 4; i < S::kLength; i += 128)
      copy_async_16(shared_address(new_kv.head(index) + i), source + i);
  }
}

// In a step with shared pages, stores a query for attention_shared, once for each row.
template <uint32_t kValues>
__device__ __forceinline__ void store_shared_query(const AttentionKernelArgs& args,
                                                   const Segment& segment, uint32_t query_head,
                                                   const float* query, uint32_t n, uint32_t lane) {
  if (args.plan.shared_splits == 0 || segment.end != segment.position + 1) return;
  const float factor = args.scale * kLog2E;
  auto* const target = reinterpret_cast<uint32_t*>(
      args.plan.shared_queries + (uint64_t{segment.token} * args.head_count + query_head) * n);
#pragma unroll
  for (uint32_t i = lane; i < kValues * 16; i += 32)
    if (2 * i < n) target[i] = pack_halves(query[2 * i] * factor, query[2 * i + 1] * factor);
}

// Loads the heads of a segment into shared memory, one warp per head, unless copy_heads has copied
// them (is_copied). If this kernel replaces rope_kv, the function also applies norm and rope.
// Called by all threads of the team.
template <class S>
__device__ __forceinline__ void load_heads(const AttentionKernelArgs& args, const Heads& heads,
                                           const Segment& segment, bool has_newest, bool is_copied,
                                           const Rotations<S::kLength>& rotations,
                                           const NewKv<S::kLength>& new_kv) {
  constexpr uint32_t kValues = S::kLength / 32;
  const Team team = segment.team;
  const uint32_t lane = threadIdx.x % 32;
  const uint32_t n = S::kExact ? S::kLength : args.pages.head_length;
  const uint32_t count = heads.count + (has_newest ? 2 : 0);
  float next[kValues];
  const auto load = [&](uint32_t index) {
    const float* source = head_source<S>(args, heads, segment.kv_head, index);
#pragma unroll
    for (uint32_t j = 0; j < kValues; ++j)
      next[j] = lane + 32 * j < n ? __ldcg(source + lane + 32 * j) : 0.0f;
  };
  uint32_t index = team.rank;
  if (index < count && !is_copied) load(index);
#pragma unroll 1
  for (; index < count; index += team.count) {
    const bool is_query = index < heads.count;
    float* const head = new_kv.head(index);
    if (!is_copied) {
#pragma unroll
      for (uint32_t j = 0; j < kValues; ++j) head[lane + 32 * j] = next[j];
      if (index + team.count < count) load(index + team.count);
    }
    __syncwarp();
    if (args.key != nullptr && index <= heads.count) {
      const float* gain = is_query ? args.rope.query_norm : args.rope.key_norm;
      if (gain != nullptr) norm_head<kValues>(head, n, gain, args.rope.epsilon, lane);
      rope_head<kValues>(
          head, args.rope, [&](uint32_t j) { return rotations.values[j]; }, lane);
      if (S::kFormat == KvFormat::kInt10) hadamard_head<kValues>(head, n, lane);
    }
    if (is_query)
      store_shared_query<kValues>(args, segment, heads.first + index, head, n, lane);
    else
      write_row(S::kFormat, head, n, segment.position, new_kv.row(index > heads.count), lane);
  }
  team.sync();
}

// Queries times scale * log2(e), as operand B of the MMA. Of every 16 elements of head g,
// lane 4g + t holds two pairs.
template <class S>
struct Queries {
  static constexpr int kLength = S::kLength;
  uint32_t halves[kLength / 16][2];
  // True with at most 4 heads. Then columns 4 to 7 hold what rounding to f16 removed from columns 0
  // to 3, which makes the scores more precise.
  bool is_split;

  __device__ __forceinline__ void load(const AttentionKernelArgs& args, uint32_t head_count,
                                       const NewKv<kLength>& new_kv, uint32_t lane) {
    const uint32_t column = lane / 4;
    is_split = head_count <= 4;
    const uint32_t head = is_split ? column % 4 : column;
    const float factor = head < head_count ? args.scale * kLog2E : 0.0f;
    const float* query = new_kv.head(min(head, head_count - 1));
    const bool is_rest = is_split && column >= 4;
#pragma unroll
    for (int i = 0; i < kLength / 16; ++i)
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const auto pair =
            *reinterpret_cast<const float2*>(query + S::Tile::query_element(i, j, lane));
        float a = pair.x * factor;
        float b = pair.y * factor;
        if (is_rest) {
          a -= __half2float(__float2half_rn(a));
          b -= __half2float(__float2half_rn(b));
        }
        halves[i][j] = pack_halves(a, b);
      }
  }
};

// Loads the queries of a segment that is not empty, after the dependent wait. If this kernel writes
// the new key and value, the function stores them in `page`. If the ring of this warp already holds
// the tile of the new position, the function also stores them there. `next_tile` is the next tile
// of the warp, which is in stage `stage`. Called by all threads of the team.
template <class S>
__device__ __forceinline__ void prepare_segment(
    const AttentionKernelArgs& args, const Segment& segment, const Heads& heads, bool is_copied,
    uint32_t page, const Rotations<S::kLength>& rotations, const NewKv<S::kLength>& new_kv,
    uint32_t ring, uint32_t stage, uint32_t next_tile, Queries<S>* queries) {
  using Tile = typename S::Tile;
  constexpr uint32_t kTilePositions = S::kTilePositions;
  const Team team = segment.team;
  const uint32_t lane = threadIdx.x % 32, position = segment.position;
  const bool has_newest = args.key != nullptr && segment.end == position + 1;
  load_heads<S>(args, heads, segment, has_newest, is_copied, rotations, new_kv);
  queries->load(args, heads.count, new_kv, lane);
  if (has_newest) {
    const uint32_t step = position / kTilePositions;
    const uint32_t ahead = (step - next_tile) >> (__ffs(static_cast<int32_t>(team.count)) - 1);
    const uint32_t first = S::kSeparateKv ? 2 * ahead : ahead;  // stages from `stage` to the tile
    if (step >= next_tile && ((step - next_tile) & (team.count - 1)) == 0 && first < S::kStages) {
      copy_async_wait<0>();
      __syncwarp();
      const uint32_t keys = ring + (stage + first) % S::kStages * S::kStageBytes;
      const uint32_t values = S::kSeparateKv
                                  ? ring + (stage + first + 1) % S::kStages * S::kStageBytes
                                  : keys + Tile::kBytes;
      Tile::put_row(keys, position % kTilePositions, new_kv.row(false), args.pages, lane);
      if (!S::kSeparateKv || first + 1 < S::kStages)
        Tile::put_row(values, position % kTilePositions, new_kv.row(true), args.pages, lane);
    }
#pragma unroll 1
    for (uint32_t i = 0; i < 2; ++i) {
      const bool is_value = i == 1;
      if (team.rank != (is_value ? team.count - 1 : (team.count - 1) / 2 * 2)) continue;
      const uint32_t row_bytes = Tile::row_bytes(args.pages);
      auto* const target =
          const_cast<uint8_t*>(page_rows(args.pages, args.layer, page, segment.kv_head, is_value)) +
          position % kPagePositions * row_bytes;
      const uint8_t* source = new_kv.row(is_value);
      if (S::kExact && Tile::row_bytes(args.pages) % 4 == 0) {
        for (uint32_t b = lane * 4; b < row_bytes; b += 128)
          *reinterpret_cast<uint32_t*>(target + b) = *reinterpret_cast<const uint32_t*>(source + b);
      } else {
        for (uint32_t b = lane; b < row_bytes; b += 32) target[b] = source[b];
      }
    }
  }
  team.sync();  // from here on, new_kv may be overwritten
}

// The softmax numerators of a tile, as operand B of the MMAs with the values of the tile.
template <class S>
struct TileNumerators {
  uint32_t words[S::kSubTiles][2];
};

// Computes the softmax numerators of the tile that begins at position `first` from its scores, and
// updates the running maximum and the denominator. The running maximum changes only if a score
// exceeds it by more than kSlack, so that the sums are rarely rescaled; a numerator is therefore at
// most 2^kSlack. Positions outside the segment have the score -infinity.
template <class S>
__device__ __forceinline__ TileNumerators<S> softmax_scores(
    const AttentionKernelArgs& args, const Queries<S>& queries, const Segment& segment,
    uint32_t first, uint32_t lane, float (&scores)[S::kSubTiles][4], WarpSums<S::kLength>* sums) {
  constexpr float kSlack = 8.0f;
  const bool is_partial = first < segment.begin || first + S::kTilePositions > segment.end;
#pragma unroll
  for (int sub_tile = 0; sub_tile < S::kSubTiles; ++sub_tile) {
    float(&own)[4] = scores[sub_tile];
    if (queries.is_split) {
#pragma unroll
      for (int j = 0; j < 4; ++j) own[j] += __shfl_xor_sync(~0u, own[j], 2);
    }
    if (args.softcap != 0.0f) {
#pragma unroll
      for (int j = 0; j < 4; ++j) own[j] = cap_score(own[j], args.softcap);
    }
    if (is_partial) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const uint32_t position = first + sub_tile * kSubTilePositions + lane / 4 + j / 2 * 8;
        if (position < segment.begin || position >= segment.end) own[j] = -INFINITY;
      }
    }
  }
  float running_max[2];
#pragma unroll
  for (int j = 0; j < 2; ++j) {
    running_max[j] = fmaxf(scores[0][j], scores[0][j + 2]);
#pragma unroll
    for (int sub_tile = 1; sub_tile < S::kSubTiles; ++sub_tile)
      running_max[j] = fmaxf(running_max[j], fmaxf(scores[sub_tile][j], scores[sub_tile][j + 2]));
  }
  if (__any_sync(~0u, running_max[0] > sums->running_max[0] + kSlack ||
                          running_max[1] > sums->running_max[1] + kSlack)) {
    float factors[2];
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      float base = running_max[j];
#pragma unroll
      for (int lanes = 4; lanes < 32; lanes *= 2)
        base = fmaxf(base, __shfl_xor_sync(~0u, base, lanes));
      base = fmaxf(base, sums->running_max[j]);
      factors[j] = exp2_fast(sums->running_max[j] - base);
      sums->running_max[j] = base;
      sums->denominator[j] *= factors[j];
    }
#pragma unroll
    for (int i = 0; i < S::kLength / 16; ++i)
#pragma unroll
      for (int j = 0; j < 4; ++j) sums->values[i][j] *= factors[j % 2];
  }
  TileNumerators<S> numerators;
#pragma unroll
  for (int sub_tile = 0; sub_tile < S::kSubTiles; ++sub_tile) {
    float(&own)[4] = scores[sub_tile];
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      own[j] = exp2_fast(own[j] - sums->running_max[j]);
      own[j + 2] = exp2_fast(own[j + 2] - sums->running_max[j]);
      sums->denominator[j] += own[j] + own[j + 2];
    }
    numerators.words[sub_tile][0] = transpose_tile(pack_halves(own[0], own[1]));
    numerators.words[sub_tile][1] = transpose_tile(pack_halves(own[2], own[3]));
  }
  return numerators;
}

// Adds the tiles of a segment that the warp works on to its sums, and requests further tiles.
// `stored` is that of Loader::issue.
template <class S, class Walk>
__device__ __forceinline__ void add_tiles(const AttentionKernelArgs& args, const Segment& segment,
                                          const Queries<S>& queries, uint32_t ring, uint32_t stored,
                                          TileRange<S>* tiles, uint32_t* stage,
                                          Loader<S, Walk>* loader, WarpSums<S::kLength>* sums) {
  using Tile = typename S::Tile;
  const uint32_t lane = threadIdx.x % 32;
  for (; tiles->next < tiles->end; tiles->next += segment.team.count) {
    // Waits for the oldest stage, uses it, and refills it when all lanes are done with it.
    const auto use_stage = [&](const auto& use) {
      copy_async_wait<S::kStages - 1>();
      __syncwarp();
      use(ring + *stage * S::kStageBytes);
      __syncwarp();
      loader->issue(*stage, stored);
      *stage = *stage + 1 == S::kStages ? 0 : *stage + 1;
    };
    TileNumerators<S> numerators;
    float scores[S::kSubTiles][4] = {};
    const auto use_keys = [&](uint32_t keys) {
#pragma unroll
      for (int sub_tile = 0; sub_tile < S::kSubTiles; ++sub_tile)
        Tile::score(keys, sub_tile, args.pages, queries.halves, lane, scores[sub_tile]);
    };
    const auto find_numerators = [&] {
      numerators = softmax_scores<S>(args, queries, segment, tiles->next * S::kTilePositions, lane,
                                     scores, sums);
    };
    const auto use_values = [&](uint32_t values) {
#pragma unroll
      for (int sub_tile = 0; sub_tile < S::kSubTiles; ++sub_tile)
        Tile::add(values, sub_tile, args.pages, numerators.words[sub_tile][0],
                  numerators.words[sub_tile][1], lane, sums->values);
    };
    if constexpr (S::kSeparateKv) {
      use_stage(use_keys);
      find_numerators();
      use_stage(use_values);
    } else {
      use_stage([&](uint32_t keys) {
        use_keys(keys);
        find_numerators();
        use_values(keys + Tile::kBytes);
      });
    }
  }
}

// Shared memory to which the warps of a team write their results: for each warp the sums of each
// head, then the running maxima, then the denominators.
template <int kLength>
struct ReductionBuffer {
  uint8_t* base;
  uint32_t warp_bytes;  // bytes from one warp to the next

  __device__ float* sums(uint32_t warp, uint32_t head) const {
    return reinterpret_cast<float*>(base + warp * warp_bytes) + head * kSumStride<kLength>;
  }
  __device__ float* running_max(uint32_t warp) const { return sums(warp, kMmaHeads); }
  __device__ float* denominator(uint32_t warp) const { return running_max(warp) + kMmaHeads; }
};

template <class S>
__device__ __forceinline__ void put_sums(const WarpSums<S::kLength>& warp_sums, uint32_t warp,
                                         const ReductionBuffer<S::kLength>& reduction) {
  const uint32_t lane = threadIdx.x % 32;
#pragma unroll
  for (int j = 0; j < 2; ++j) {
    float denominator = warp_sums.denominator[j];
#pragma unroll
    for (int lanes = 4; lanes < 32; lanes *= 2)
      denominator += __shfl_xor_sync(~0u, denominator, lanes);
    if (lane < 4) {
      reduction.running_max(warp)[lane * 2 + j] = warp_sums.running_max[j];
      reduction.denominator(warp)[lane * 2 + j] = denominator;
    }
  }
#pragma unroll
  for (int i = 0; i < S::kLength / 16; ++i)
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const uint32_t element = S::Tile::sum_element(i, j / 2, lane);
      reduction.sums(warp, lane % 4 * 2 + j % 2)[element] = warp_sums.values[i][j];
    }
}

__device__ __forceinline__ float sink_of(const AttentionKernelArgs& args, uint32_t head) {
  return args.sinks == nullptr ? -INFINITY : args.sinks[head] * kLog2E;
}

// Four elements of a head's sums, with the running maximum and the denominator of the head.
struct Float4Partial {
  float4 sums;
  float running_max;
  float denominator;

  __device__ __forceinline__ void clear(float score) {
    sums = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    running_max = score;
    denominator = score == -INFINITY ? 0.0f : 1.0f;
  }
  // Adds kCount other partial results in one call, so that their loads overlap.
  template <int kCount>
  __device__ __forceinline__ void add(const Float4Partial (&others)[kCount]) {
    const float known = running_max;
#pragma unroll
    for (int i = 0; i < kCount; ++i) running_max = fmaxf(running_max, others[i].running_max);
    // A partial result without a visible position has the running maximum -infinity and sums of 0.
    const float base = running_max == -INFINITY ? 0.0f : running_max;
    const float factor = exp2_fast(known - base);
    denominator *= factor;
    sums.x *= factor;
    sums.y *= factor;
    sums.z *= factor;
    sums.w *= factor;
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const float other = exp2_fast(others[i].running_max - base);
      denominator += other * others[i].denominator;
      sums.x += other * others[i].sums.x;
      sums.y += other * others[i].sums.y;
      sums.z += other * others[i].sums.z;
      sums.w += other * others[i].sums.w;
    }
  }
};

// Merges the results of the team's warps for float4 `i` of its heads.
template <class S>
__device__ __forceinline__ Float4Partial merge_warps(const ReductionBuffer<S::kLength>& reduction,
                                                     uint32_t warp_count, uint32_t i, float sink) {
  constexpr uint32_t kFloat4s = S::kLength / 4;
  Float4Partial warps[S::kWarps];
#pragma unroll
  for (uint32_t w = 0; w < S::kWarps; ++w) {
    const uint32_t from = min(w, warp_count - 1);
    warps[w].sums =
        *reinterpret_cast<const float4*>(reduction.sums(from, i / kFloat4s) + i % kFloat4s * 4);
    warps[w].running_max = w < warp_count ? reduction.running_max(from)[i / kFloat4s] : -INFINITY;
    warps[w].denominator = reduction.denominator(from)[i / kFloat4s];
  }
  Float4Partial partial;
  partial.clear(sink);
  partial.add(warps);
  return partial;
}

// In a step with shared pages, writes the log-sum-exp of a head's scores for attention_join.
__device__ __forceinline__ void write_lse(const AttentionKernelArgs& args, const Heads& heads,
                                          uint32_t head, float running_max, float denominator) {
  if (args.plan.shared_splits == 0) return;
  args.plan.own_lse[uint64_t{heads.token} * args.head_count + heads.first + head] =
      running_max + log2f(denominator);
}

// Divides the sums of float4 `i` of the team's heads by the denominator, and writes the result.
template <int kLength>
__device__ __forceinline__ void write_float4(const AttentionKernelArgs& args, const Heads& heads,
                                             uint32_t i, const Float4Partial& partial) {
  constexpr uint32_t kFloat4s = kLength / 4;
  const uint32_t n = args.pages.head_length;
  const uint32_t element = i % kFloat4s * 4, head = heads.first + i / kFloat4s;
  const bool has_operand = args.operand.h != nullptr;
  if (element == 0) write_lse(args, heads, i / kFloat4s, partial.running_max, partial.denominator);
  const float inverse = (has_operand ? kOperandFactor : 1.0f) / partial.denominator;
  const float4 sums = make_float4(partial.sums.x * inverse, partial.sums.y * inverse,
                                  partial.sums.z * inverse, partial.sums.w * inverse);
  if (has_operand) {
    if (element >= n) return;
    if (head == 0 && element == 0) store_operand_scale(args.operand, heads.token);
    const OperandRow operand(args.operand, heads.token);
    operand.store_quarter(head * n + element, sums);
    if (head + 1 == args.head_count)
      operand.clear_rest(args.head_count * n, args.operand.depth, element / 4, n / 4);
    return;
  }
  float* const out = args.out + (uint64_t{heads.token} * args.head_count + head) * n + element;
  if (n % 4 == 0) {
    if (element < n) *reinterpret_cast<float4*>(out) = sums;
    return;
  }
  const float values[4] = {sums.x, sums.y, sums.z, sums.w};
#pragma unroll
  for (uint32_t j = 0; j < 4; ++j)
    if (element + j < n) out[j] = values[j];
}

// A partial result in global memory: the running maximum of each head, then the denominator of each
// head, then the sums (heads, kLength).
struct KvPartial {
  float* data;
  __device__ float* running_max(uint32_t head) const { return data + head; }
  __device__ float* denominator(uint32_t head) const { return data + kMmaHeads + head; }
  __device__ float* sums() const { return data + 2 * kMmaHeads; }
};

// The partial results of a row and head.
struct PartialList {
  uint32_t count;
  uint32_t own;      // index of this block's partial
  uint32_t first;    // position of partial 0 in `partials`
  uint32_t second;   // position of partial 1
  uint32_t stride;   // from one partial to the next, beginning with partial 1
  uint32_t counter;  // index in AttentionPlan::counters
  uint32_t partial_floats;
  float* partials;

  __device__ KvPartial at(uint32_t index) const {
    const uint32_t place = index == 0 ? first : second + (index - 1) * stride;
    return {partials + uint64_t{place} * partial_floats};
  }
};

// Adds the partial results of a row and head, and writes the sums to the reduction buffer. Warp w
// adds partials w, w + S::kWarps, …. Each wait for loads costs about 0.3 us, or more while the next
// kernel already loads weights, so a lane has those of several float4s in flight.
template <class S>
__device__ __forceinline__ void add_partials(const PartialList& partials, const Heads& heads,
                                             const ReductionBuffer<S::kLength>& reduction) {
  // Partials and float4s of each that a lane loads together.
  constexpr uint32_t kBatch = 16 / S::kWarps, kColumns = S::kWarps / 2;
  constexpr uint32_t kFloat4s = S::kLength / 4;
  const uint32_t lane = threadIdx.x % 32;
  const uint32_t warp = threadIdx.x / 32;
  const uint32_t float4s = heads.count * kFloat4s;
#pragma unroll 1
  for (uint32_t first = lane; first < float4s; first += kColumns * 32) {
    Float4Partial sums[kColumns];
#pragma unroll
    for (Float4Partial& sum : sums) sum.clear(-INFINITY);
#pragma unroll 1
    for (uint32_t begin = warp; begin < partials.count; begin += S::kWarps * kBatch) {
      Float4Partial batch[kColumns][kBatch];
#pragma unroll
      for (uint32_t b = 0; b < kBatch; ++b) {
        const uint32_t index = begin + b * S::kWarps;
        const KvPartial source = partials.at(min(index, partials.count - 1));
#pragma unroll
        for (uint32_t c = 0; c < kColumns; ++c) {
          const uint32_t i = min(first + c * 32, float4s - 1), h = i / kFloat4s;
          const float running_max = __ldcg(source.running_max(h));
          batch[c][b].running_max = index < partials.count ? running_max : -INFINITY;
          batch[c][b].denominator = __ldcg(source.denominator(h));
          batch[c][b].sums = __ldcg(reinterpret_cast<const float4*>(source.sums() + i * 4));
        }
      }
#pragma unroll
      for (uint32_t c = 0; c < kColumns; ++c) sums[c].add(batch[c]);
    }
#pragma unroll
    for (uint32_t c = 0; c < kColumns; ++c) {
      const uint32_t i = first + c * 32, h = i / kFloat4s;
      if (i >= float4s) break;
      *reinterpret_cast<float4*>(reduction.sums(warp, h) + i % kFloat4s * 4) = sums[c].sums;
      if (i % kFloat4s == 0) {
        reduction.running_max(warp)[h] = sums[c].running_max;
        reduction.denominator(warp)[h] = sums[c].denominator;
      }
    }
  }
}

// Writes this block's partial result. The last block of a row and head to arrive adds all partial
// results into the reduction buffer and returns true. The other blocks return false. Called by all
// threads.
template <class S>
__device__ __forceinline__ bool merge_blocks(const AttentionKernelArgs& args,
                                             const PartialList& partials, const Heads& heads,
                                             const ReductionBuffer<S::kLength>& reduction) {
  __shared__ bool is_last;
  constexpr uint32_t kFloat4s = S::kLength / 4;
  const KvPartial target = partials.at(partials.own);
#pragma unroll 1
  for (uint32_t i = threadIdx.x; i < heads.count * kFloat4s; i += S::kThreads) {
    const uint32_t h = i / kFloat4s;
    const Float4Partial partial = merge_warps<S>(reduction, S::kWarps, i, -INFINITY);
    *reinterpret_cast<float4*>(target.sums() + i * 4) = partial.sums;
    if (i % kFloat4s == 0) {
      *target.running_max(h) = partial.running_max;
      *target.denominator(h) = partial.denominator;
    }
  }
  __syncthreads();  // the partial result is written; the reduction buffer may be overwritten
  if (threadIdx.x == 0) {
    is_last = increment_acq_rel(args.plan.counters + partials.counter) == partials.count - 1;
    if (is_last) args.plan.counters[partials.counter] = 0;
  }
  __syncthreads();
  if (!is_last) return false;
  add_partials<S>(partials, heads, reduction);
  __syncthreads();
  return true;
}

// Writes the results of a team's heads, merged from the reduction buffer.
template <class S>
__device__ __forceinline__ void write_merged(const AttentionKernelArgs& args, const Heads& heads,
                                             const Team& team,
                                             const ReductionBuffer<S::kLength>& reduction) {
  constexpr uint32_t kFloat4s = S::kLength / 4;
#pragma unroll 1
  for (uint32_t i = team.thread(); i < heads.count * kFloat4s; i += team.threads()) {
    const float sink = sink_of(args, heads.first + i / kFloat4s);
    write_float4<S::kLength>(args, heads, i, merge_warps<S>(reduction, team.count, i, sink));
  }
}

// Writes the results of a one-warp team directly from its registers.
template <class S>
__device__ __forceinline__ void write_sums(const AttentionKernelArgs& args, const Heads& heads,
                                           const WarpSums<S::kLength>& sums, uint32_t lane) {
  const uint32_t n = S::kExact ? S::kLength : args.pages.head_length;
#pragma unroll
  for (uint32_t j = 0; j < 2; ++j) {
    const uint32_t head = lane % 4 * 2 + j;
    const bool is_head = head < heads.count;
    const float sink = is_head ? sink_of(args, heads.first + head) : -INFINITY;
    float denominator = sums.denominator[j];
#pragma unroll
    for (int lanes = 4; lanes < 32; lanes *= 2)
      denominator += __shfl_xor_sync(~0u, denominator, lanes);
    const float base = fmaxf(sink, sums.running_max[j]);
    const float factor = exp2_fast(sums.running_max[j] - base);
    denominator = denominator * factor + exp2_fast(sink - base);
    if (is_head && lane < 4) write_lse(args, heads, head, base, denominator);
    const float own = factor / denominator;
    float results[S::kLength / 16][2];
#pragma unroll
    for (int i = 0; i < S::kLength / 16; ++i)
#pragma unroll
      for (int k = 0; k < 2; ++k) results[i][k] = sums.values[i][k * 2 + j] * own;
    if (S::kFormat == KvFormat::kF16 && args.operand.h != nullptr) {
      const OperandRow operand(args.operand, heads.token);
      if (heads.first + head == 0 && lane < 4) store_operand_scale(args.operand, heads.token);
#pragma unroll
      for (int i = 0; i < S::kLength / 16; i += 2) {
        if (!S::kExact && i * 16 >= n) continue;
        const uint32_t words[2] = {
            pack_halves(results[i][0] * kOperandFactor, results[i][1] * kOperandFactor),
            pack_halves(results[i + 1][0] * kOperandFactor, results[i + 1][1] * kOperandFactor)};
        operand.store_columns((heads.first + head) * n + i * 16, words, lane, is_head);
      }
      if (is_head && heads.first + head + 1 == args.head_count)
        operand.clear_rest(args.head_count * n, args.operand.depth, lane / 4, 8);
      continue;
    }
    float* const out =
        args.out + (uint64_t{heads.token} * args.head_count + heads.first + head) * n;
#pragma unroll
    for (int i = 0; i < S::kLength / 16; ++i)
#pragma unroll
      for (int k = 0; k < 2; ++k) {
        const uint32_t element = S::Tile::sum_element(i, k, lane);
        if (is_head && (S::kExact || element < n)) out[element] = results[i][k];
      }
  }
}

}  // namespace wcuda::kernels
