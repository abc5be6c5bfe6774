// attention_decode: out[h] = sum over p of w[p] * v[p], w = softmax(scale * q[h]·k[p]).
//
// A block takes a run of units of the plan (attention_plan.h): for one row and key-value head after
// the other some positions. Its warps take 16 positions each in turn, from a ring of their own in
// shared memory that only they fill: no barrier of the block while data streams. Scores are K·q,
// positions by query heads, so that up to 8 heads of a group cost one product; the sums are V·w,
// elements by heads, and lie in the registers of one warp until its positions are through.
// Softmax is online in f32; queries and weights enter the products as f16. With at most 4 heads the
// other columns carry what f16 leaves of the queries.
// Masked positions are never read: their keys and values are 0 in shared memory, their weight 0.
// Bytes moved: the keys and values that the rows see, once; queries and results.
#include "kernels/attention_decode.h"
#include "kernels/attention_tile.h"
#include "kernels/dependent_launch.h"

namespace wcuda::kernels {
namespace {

constexpr int kWarps = 4;
constexpr int kBlockThreads = kWarps * 32;
constexpr int kStepRows = 16;  // positions of a warp's step
constexpr int kColumns = 8;    // query heads of a product

// Shared memory by length: stages of a warp's ring. One block of 4 warps of length 128 in f16
// takes 96 + 16.5 KiB, so that two fit.
template <int kLength>
constexpr int kStages = kLength <= 128 ? 3 : 2;

struct Sizes {
  uint32_t stage_bytes;  // keys and values of a step as they lie in the pool
  uint32_t tile_bytes;   // the same as f16 tiles; 0 where the stages are tiles
  uint32_t warp_bytes;
  uint32_t shared_bytes;
};

template <int kLength>
constexpr uint32_t kSumStride = kLength + 4;  // floats from head to head: lanes in other banks

template <int kLength, KvFormat kFormat>
__host__ __device__ inline Sizes sizes_of(uint32_t row_bytes) {
  constexpr uint32_t kTileBytes = 2 * kStepRows * kLength * 2;
  Sizes sizes{};
  sizes.stage_bytes = kFormat == KvFormat::kF16 ? kTileBytes : 2 * kStepRows * row_bytes;
  sizes.tile_bytes = kFormat == KvFormat::kF16 ? 0 : kTileBytes;
  sizes.warp_bytes = (kStages<kLength> * sizes.stage_bytes + sizes.tile_bytes + 127) / 128 * 128;
  sizes.shared_bytes =
      kWarps * sizes.warp_bytes + kWarps * kColumns * (kSumStride<kLength> + 2) * sizeof(float);
  return sizes;
}

// Blocks whose shared memory fits a multiprocessor of Hopper: 227 KiB, 1 KiB of each reserved.
template <int kLength, KvFormat kFormat>
uint32_t blocks_per_sm(uint32_t row_bytes) {
  const uint32_t blocks =
      (228 * 1024) / (sizes_of<kLength, kFormat>(row_bytes).shared_bytes + 1024);
  return blocks == 0 ? 1 : blocks > 2 ? 2 : blocks;
}

// Positions of one row and head that a block works on in one go.
struct Segment {
  uint32_t row = 0;
  uint32_t head = 0;        // head tile
  uint32_t unit_begin = 0;  // of this segment, within the units of its row and head
  uint32_t unit_end = 0;
  uint32_t row_units = 0;  // of the row and head
  uint32_t row_first = 0;  // unit of the whole line where the row and head begin
  uint32_t position = 0;   // of the row's token
  uint32_t begin = 0;      // positions
  uint32_t end = 0;
};

// Walks the segments of a block.
class Segments {
 public:
  __device__ Segments(const AttentionKernelArgs& args, uint32_t row, uint32_t unit, uint32_t end)
      : args_(args), row_(row), unit_(unit), end_(end) {
    row_begin_ = __ldcg(args.plan.row_units + row);
    row_end_ = __ldcg(args.plan.row_units + row + 1);
    position_ = __ldcg(&args.step.rows[row].first_position);
  }
  __device__ bool next(Segment* segment) {
    if (unit_ == end_) return false;
    const AttentionPlan& plan = args_.plan;
    if (unit_ >= row_end_ * plan.head_tiles) {
      do {
        ++row_;
        row_begin_ = row_end_;
        row_end_ = __ldcg(plan.row_units + row_ + 1);
      } while (row_end_ == row_begin_);
      position_ = __ldcg(&args_.step.rows[row_].first_position);
    }
    const uint32_t units = row_end_ - row_begin_;
    const uint32_t within = unit_ - row_begin_ * plan.head_tiles;
    segment->row = row_;
    segment->head = within / units;
    segment->unit_begin = within - segment->head * units;
    const bool is_fixed = plan.fixed_unit_pages != 0;
    segment->unit_end =
        is_fixed ? segment->unit_begin + 1 : min(units, segment->unit_begin + end_ - unit_);
    segment->row_units = units;
    segment->row_first = unit_ - segment->unit_begin;
    segment->position = position_;
    const uint32_t unit_positions = (is_fixed ? plan.fixed_unit_pages : 1) * kPagePositions;
    const uint32_t first = first_visible(position_, args_.window);
    // The plan's window may be wider than this layer's: the first units may see nothing.
    const uint32_t first_unit = plan_first_unit(unit_positions, units);
    segment->begin = max(first, (first_unit + segment->unit_begin) * unit_positions);
    segment->end = min(position_ + 1, (first_unit + segment->unit_end) * unit_positions);
    unit_ += segment->unit_end - segment->unit_begin;
    return true;
  }

 private:
  __device__ uint32_t plan_first_unit(uint32_t unit_positions, uint32_t units) const {
    return position_ / unit_positions + 1 - units;
  }

  const AttentionKernelArgs& args_;
  uint32_t row_, unit_, end_, row_begin_, row_end_, position_;
};

// The 16 positions that a warp loads next.
template <int kLength, KvFormat kFormat>
class Loader {
 public:
  __device__ Loader(const AttentionKernelArgs& args, const Segments& segments, uint32_t warp,
                    uint32_t lane, uint32_t ring)
      : args_(args), segments_(segments), warp_(warp), lane_(lane), ring_(ring) {
    stage_bytes_ = sizes_of<kLength, kFormat>(args.pages.row_bytes).stage_bytes;
    step_ = step_end_ = 0;
    find_step();
  }
  __device__ bool has_step() const { return has_step_; }
  // Whether it holds the newest position, which this step's kernels have written.
  __device__ bool is_newest() const { return segment_.position / kStepRows == step_; }
  // Begins the copy and goes to the next; without one an empty group, so that groups count steps.
  __device__ void issue() {
    if (has_step_) {
      const uint32_t first = step_ * kStepRows;
      const RowRange valid{segment_.begin > first ? segment_.begin - first : 0,
                           min(segment_.end - first, uint32_t{kStepRows})};
      const uint32_t groups = args_.plan.head_tiles / args_.pages.head_count;
      const uint32_t slot = first % kPagePositions * args_.pages.row_bytes;
      const uint32_t target = ring_ + stage_ * stage_bytes_;
      const uint8_t* keys =
          page_rows(args_.pages, args_.layer, page_, segment_.head / groups, false) + slot;
      const uint8_t* values =
          page_rows(args_.pages, args_.layer, page_, segment_.head / groups, true) + slot;
      if constexpr (kFormat == KvFormat::kF16) {
        const uint32_t n = args_.pages.head_length;
        copy_half_rows<kLength, kStepRows, 32>(target, keys, n, valid, lane_);
        copy_half_rows<kLength, kStepRows, 32>(target + stage_bytes_ / 2, values, n, valid, lane_);
      } else {
        const uint32_t row_bytes = args_.pages.row_bytes;
        copy_raw_rows<kStepRows, 32>(target, keys, row_bytes, valid, lane_);
        copy_raw_rows<kStepRows, 32>(target + stage_bytes_ / 2, values, row_bytes, valid, lane_);
      }
      step_ += kWarps;
      find_step();
    }
    copy_async_commit();
    stage_ = stage_ + 1 == kStages<kLength> ? 0 : stage_ + 1;
  }

 private:
  __device__ void find_step() {
    while (step_ >= step_end_) {
      has_step_ = segments_.next(&segment_);
      if (!has_step_) return;
      step_ = segment_.begin / kStepRows + warp_;
      step_end_ = segment_.begin < segment_.end ? (segment_.end + kStepRows - 1) / kStepRows : 0;
    }
    page_ = __ldcg(args_.step.page_tables + uint64_t{segment_.row} * args_.step.page_table_stride +
                   step_ / (kPagePositions / kStepRows));
  }

  const AttentionKernelArgs& args_;
  Segments segments_;
  Segment segment_;
  uint32_t warp_, lane_, ring_, stage_bytes_;
  uint32_t step_, step_end_, page_ = 0, stage_ = 0;
  bool has_step_ = false;
};

// Sums of one warp over its positions: largest score, weights and weighted values by head. A lane
// 4g + t holds heads 2t, 2t + 1 of elements g and g + 8 of each 16.
template <int kLength>
struct WarpSums {
  float largest[2];
  float weight[2];  // of this lane's positions
  float values[kLength / 16][4];

  __device__ void clear() {
    largest[0] = largest[1] = -INFINITY;
    weight[0] = weight[1] = 0.0f;
#pragma unroll
    for (int i = 0; i < kLength / 16; ++i)
#pragma unroll
      for (int j = 0; j < 4; ++j) values[i][j] = 0.0f;
  }
};

// Query heads of one head tile as columns of products: lane 4g + t holds elements 2t, 2t + 1,
// 2t + 8, 2t + 9 of each 16 of head g.
template <int kLength>
struct Queries {
  uint32_t halves[kLength / 16][2];
  bool is_split;  // columns 4 … 7 hold what is left of columns 0 … 3

  __device__ void load(const AttentionKernelArgs& args, uint32_t token, uint32_t first_head,
                       uint32_t head_count, uint32_t lane) {
    const uint32_t n = args.pages.head_length;
    is_split = head_count <= 4;
    const uint32_t column = lane / 4;
    const uint32_t head = is_split ? column % 4 : column;
    const bool is_rest = is_split && column >= 4;
    const float factor = args.scale * kLog2E;
    const float* query = args.query + (uint64_t{token} * args.head_count + first_head + head) * n;
#pragma unroll
    for (int i = 0; i < kLength / 16; ++i)
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const uint32_t element = i * 16 + j * 8 + lane % 4 * 2;
        float a = 0.0f, b = 0.0f;
        if (head < head_count) {
          if (element < n) a = __ldcg(query + element) * factor;
          if (element + 1 < n) b = __ldcg(query + element + 1) * factor;
        }
        if (is_rest) {
          a -= __half2float(__float2half_rn(a));
          b -= __half2float(__float2half_rn(b));
        }
        halves[i][j] = pack_halves(a, b);
      }
  }
};

// Adds 16 positions, `first` … of which `segment` holds some.
template <int kLength>
__device__ __forceinline__ void add_step(const AttentionKernelArgs& args,
                                         const Queries<kLength>& queries, const Segment& segment,
                                         uint32_t first, uint32_t keys, uint32_t values,
                                         uint32_t lane, WarpSums<kLength>* sums) {
  float scores[4] = {0.0f, 0.0f, 0.0f, 0.0f};
  {
    const uint32_t row = lane % 8 + lane / 8 % 2 * 8;
#pragma unroll
    for (int i = 0; i < kLength / 16; ++i) {
      uint32_t k[4];
      load_tiles(k, keys + tile_offset<kLength>(row, 2 * i + lane / 16));
      multiply_tiles(scores, k, queries.halves[i][0], queries.halves[i][1]);
    }
  }
  if (queries.is_split) {
#pragma unroll
    for (int j = 0; j < 4; ++j) scores[j] += __shfl_xor_sync(~0u, scores[j], 2);
  }
  if (args.softcap != 0.0f) {
#pragma unroll
    for (int j = 0; j < 4; ++j) scores[j] = cap_score(scores[j], args.softcap);
  }
  if (first < segment.begin || first + kStepRows > segment.end) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const uint32_t position = first + lane / 4 + j / 2 * 8;
      if (position < segment.begin || position >= segment.end) scores[j] = -INFINITY;
    }
  }
  float factors[2];
#pragma unroll
  for (int j = 0; j < 2; ++j) {
    float largest = fmaxf(scores[j], scores[j + 2]);
#pragma unroll
    for (int lanes = 4; lanes < 32; lanes *= 2)
      largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, lanes));
    largest = fmaxf(largest, sums->largest[j]);
    factors[j] = exp2_fast(sums->largest[j] - largest);
    sums->largest[j] = largest;
    scores[j] = exp2_fast(scores[j] - largest);
    scores[j + 2] = exp2_fast(scores[j + 2] - largest);
    sums->weight[j] = sums->weight[j] * factors[j] + (scores[j] + scores[j + 2]);
  }
  const uint32_t w0 = transpose_tile(pack_halves(scores[0], scores[1]));
  const uint32_t w1 = transpose_tile(pack_halves(scores[2], scores[3]));
  const uint32_t row = lane % 8 + lane / 16 * 8;
#pragma unroll
  for (int i = 0; i < kLength / 16; ++i) {
    uint32_t v[4];
    load_tiles_transposed(v, values + tile_offset<kLength>(row, 2 * i + lane / 8 % 2));
    float(&sum)[4] = sums->values[i];
    sum[0] *= factors[0];
    sum[1] *= factors[1];
    sum[2] *= factors[0];
    sum[3] *= factors[1];
    multiply_tiles(sum, v, w0, w1);
  }
}

// What a block's warps hand to each other. `sums` is also where the last block keeps factors.
template <int kLength>
struct Exchange {
  float (*sums)[kColumns][kSumStride<kLength>];  // (warps)
  float (*largest)[kColumns];                    // (warps)
  float (*weight)[kColumns];
};

// A part: largest score and weight of each head, then the sums (heads, kLength).
template <int kLength>
struct PartOf {
  float* data;
  __device__ float* largest(uint32_t head) const { return data + head; }
  __device__ float* weight(uint32_t head) const { return data + kColumns + head; }
  __device__ float* sums() const { return data + 2 * kColumns; }
};

__device__ __forceinline__ float sink_of(const AttentionKernelArgs& args, uint32_t head) {
  return args.sinks == nullptr ? -INFINITY : args.sinks[head] * kLog2E;
}

// Which parts a row and head has, and which is this block's.
struct PartList {
  uint32_t count;
  uint32_t own;     // index of this block's part among them
  uint32_t first;   // place of part 0
  uint32_t second;  // of part 1
  uint32_t stride;  // from part 1 on
  uint32_t counter;
  __device__ uint32_t place(uint32_t index) const {
    return index == 0 ? first : second + (index - 1) * stride;
  }
};

__device__ inline PartList part_list(const AttentionKernelArgs& args, const Segment& segment,
                                     uint32_t unit_count, uint32_t block_count) {
  if (args.plan.fixed_unit_pages != 0)
    return {segment.row_units,
            segment.unit_begin,
            segment.row_first,
            segment.row_first + 1,
            1,
            segment.row * args.plan.head_tiles + segment.head};
  // The block of a unit is the last b with b * unit_count / block_count <= unit.
  const auto block_of = [&](uint32_t unit) {
    return static_cast<uint32_t>(((uint64_t{unit} + 1) * block_count - 1) / unit_count);
  };
  const uint32_t first = block_of(segment.row_first);
  const uint32_t last = block_of(segment.row_first + segment.row_units - 1);
  // Two places a block: the end of one row and head, and the beginning of another.
  return {last - first + 1, blockIdx.x - first, 2 * first + 1, 2 * (first + 1), 2, first};
}

// The last block to end adds the parts in their order.
template <int kLength>
__device__ inline void finish_parts(const AttentionKernelArgs& args, const PartList& parts,
                                    uint32_t part_floats, uint32_t heads, uint32_t token,
                                    uint32_t first_head, float* factors) {
  const uint32_t n = args.pages.head_length;
  const uint32_t lane = threadIdx.x % 32;
  const auto part = [&](uint32_t index) {
    return PartOf<kLength>{args.plan.parts + uint64_t{parts.place(index)} * part_floats};
  };
  for (uint32_t h = threadIdx.x / 32; h < heads; h += kWarps) {
    const float sink = sink_of(args, first_head + h);
    float largest = -INFINITY;
    for (uint32_t i = lane; i < parts.count; i += 32)
      largest = fmaxf(largest, __ldcg(part(i).largest(h)));
#pragma unroll
    for (int lanes = 16; lanes > 0; lanes /= 2)
      largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, lanes));
    largest = fmaxf(largest, sink);
    float weight = 0.0f;
    for (uint32_t i = lane; i < parts.count; i += 32) {
      const float factor = exp2_fast(__ldcg(part(i).largest(h)) - largest);
      factors[i * kColumns + h] = factor;
      weight += factor * __ldcg(part(i).weight(h));
    }
#pragma unroll
    for (int lanes = 16; lanes > 0; lanes /= 2) weight += __shfl_xor_sync(~0u, weight, lanes);
    weight += exp2_fast(sink - largest);
    __syncwarp();
    const float inverse = 1.0f / weight;
    for (uint32_t i = lane; i < parts.count; i += 32) factors[i * kColumns + h] *= inverse;
  }
  __syncthreads();
  float* const out = args.out + (uint64_t{token} * args.head_count + first_head) * n;
  for (uint32_t i = threadIdx.x; i < heads * (kLength / 4); i += kBlockThreads) {
    const uint32_t h = i / (kLength / 4);
    const uint32_t element = i % (kLength / 4) * 4;
    float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll 8
    for (uint32_t p = 0; p < parts.count; ++p) {
      const float factor = factors[p * kColumns + h];
      const float4 v =
          __ldcg(reinterpret_cast<const float4*>(part(p).sums() + h * kLength + element));
      sum.x += factor * v.x;
      sum.y += factor * v.y;
      sum.z += factor * v.z;
      sum.w += factor * v.w;
    }
    const float sums[4] = {sum.x, sum.y, sum.z, sum.w};
#pragma unroll
    for (uint32_t j = 0; j < 4; ++j)
      if (element + j < n) out[h * n + element + j] = sums[j];
  }
}

// Adds up the block's warps; writes the result, or a part of it.
template <int kLength>
__device__ inline void finish_segment(const AttentionKernelArgs& args, const Segment& segment,
                                      uint32_t unit_count, uint32_t block_count,
                                      const Exchange<kLength>& exchange,
                                      WarpSums<kLength>* warp_sums) {
  __shared__ bool is_last;
  const uint32_t lane = threadIdx.x % 32;
  const uint32_t warp = threadIdx.x / 32;
  const uint32_t n = args.pages.head_length;
  const uint32_t group = args.head_count / args.pages.head_count;
  const uint32_t tiles = args.plan.head_tiles / args.pages.head_count;
  const uint32_t tile = segment.head % tiles;
  const uint32_t first_head = segment.head / tiles * group + tile * kDecodeGroupMax;
  const uint32_t heads = min(group - tile * kDecodeGroupMax, kDecodeGroupMax);
  const uint32_t token = __ldcg(&args.step.rows[segment.row].first_token);
  const bool is_whole = segment.unit_end - segment.unit_begin == segment.row_units;

#pragma unroll
  for (int j = 0; j < 2; ++j) {
    float weight = warp_sums->weight[j];
#pragma unroll
    for (int lanes = 4; lanes < 32; lanes *= 2) weight += __shfl_xor_sync(~0u, weight, lanes);
    if (lane < 4) {
      exchange.largest[warp][lane * 2 + j] = warp_sums->largest[j];
      exchange.weight[warp][lane * 2 + j] = weight;
    }
  }
#pragma unroll
  for (int i = 0; i < kLength / 16; ++i)
#pragma unroll
    for (int j = 0; j < 4; ++j)
      exchange.sums[warp][lane % 4 * 2 + j % 2][i * 16 + j / 2 * 8 + lane / 4] =
          warp_sums->values[i][j];
  __syncthreads();

  const PartList parts = is_whole ? PartList{} : part_list(args, segment, unit_count, block_count);
  const uint32_t part_floats = 2 * kColumns + min(group, kDecodeGroupMax) * kLength;
  const PartOf<kLength> part{args.plan.parts +
                             uint64_t{is_whole ? 0 : parts.place(parts.own)} * part_floats};
  for (uint32_t i = threadIdx.x; i < heads * kLength; i += kBlockThreads) {
    const uint32_t h = i / kLength;
    const uint32_t element = i % kLength;
    float largest = is_whole ? sink_of(args, first_head + h) : -INFINITY;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) largest = fmaxf(largest, exchange.largest[w][h]);
    // A unit that this layer's window hides has no positions: all its sums are 0.
    const float base = largest == -INFINITY ? 0.0f : largest;
    float weight = 0.0f, sum = 0.0f;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) {
      const float factor = exp2_fast(exchange.largest[w][h] - base);
      weight += factor * exchange.weight[w][h];
      sum += factor * exchange.sums[w][h][element];
    }
    if (is_whole) {
      weight += exp2_fast(sink_of(args, first_head + h) - base);
      if (element < n)
        args.out[(uint64_t{token} * args.head_count + first_head + h) * n + element] = sum / weight;
    } else {
      part.sums()[i] = sum;
      if (element == 0) {
        *part.largest(h) = largest;
        *part.weight(h) = weight;
      }
    }
  }
  if (!is_whole) {
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) {
      is_last = atomicAdd(args.plan.counters + parts.counter, 1u) == parts.count - 1;
      if (is_last) args.plan.counters[parts.counter] = 0;
      __threadfence();
    }
    __syncthreads();
    if (is_last)
      finish_parts<kLength>(args, parts, part_floats, heads, token, first_head,
                            &exchange.sums[0][0][0]);
  }
  __syncthreads();
}

template <int kLength, KvFormat kFormat>
__global__ void __launch_bounds__(kBlockThreads)
    attention_decode_kernel(const AttentionKernelArgs args) {
  extern __shared__ __align__(128) uint8_t shared[];
  dependent_trigger();
  const uint32_t unit_count = __ldcg(&args.plan.head->unit_count);
  const uint32_t block_count = __ldcg(&args.plan.head->decode_blocks);
  if (blockIdx.x >= block_count) {
    // One block waits even when there is nothing to do: whoever waits for this kernel must know
    // those ahead of it ended too.
    if (blockIdx.x == 0) dependent_wait();
    return;
  }

  const uint32_t lane = threadIdx.x % 32;
  const uint32_t warp = threadIdx.x / 32;
  const Sizes sizes = sizes_of<kLength, kFormat>(args.pages.row_bytes);
  uint8_t* const ring = shared + warp * sizes.warp_bytes;
  auto* const floats = reinterpret_cast<float*>(shared + kWarps * sizes.warp_bytes);
  constexpr uint32_t kSumFloats = kWarps * kColumns * kSumStride<kLength>;
  const Exchange<kLength> exchange{
      reinterpret_cast<float(*)[kColumns][kSumStride<kLength>]>(floats),
      reinterpret_cast<float(*)[kColumns]>(floats + kSumFloats),
      reinterpret_cast<float(*)[kColumns]>(floats + kSumFloats + kWarps * kColumns)};

  const auto begin = static_cast<uint32_t>(uint64_t{blockIdx.x} * unit_count / block_count);
  const auto end = static_cast<uint32_t>((uint64_t{blockIdx.x} + 1) * unit_count / block_count);
  Segments segments(args, __ldcg(args.plan.block_rows + blockIdx.x), begin, end);
  Loader<kLength, kFormat> loader(args, segments, warp, lane, shared_address(ring));
  constexpr int kAhead = kStages<kLength> - 1;
  int issued = 0;
  for (; issued < kAhead && loader.has_step() && !loader.is_newest(); ++issued) loader.issue();
  dependent_wait();
  for (; issued < kAhead; ++issued) loader.issue();

  const uint32_t group = args.head_count / args.pages.head_count;
  const uint32_t tiles = args.plan.head_tiles / args.pages.head_count;
  uint32_t stage = 0;
  Segment segment;
  while (segments.next(&segment)) {
    const uint32_t tile = segment.head % tiles;
    Queries<kLength> queries;
    queries.load(args, __ldcg(&args.step.rows[segment.row].first_token),
                 segment.head / tiles * group + tile * kDecodeGroupMax,
                 min(group - tile * kDecodeGroupMax, kDecodeGroupMax), lane);
    WarpSums<kLength> sums;
    sums.clear();
    const uint32_t step_end =
        segment.begin < segment.end ? (segment.end + kStepRows - 1) / kStepRows : 0;
    for (uint32_t step = segment.begin / kStepRows + warp; step < step_end; step += kWarps) {
      copy_async_wait<kAhead - 1>();
      __syncwarp();
      loader.issue();
      uint8_t* keys = ring + stage * sizes.stage_bytes;
      uint8_t* values = keys + sizes.stage_bytes / 2;
      if constexpr (kFormat != KvFormat::kF16) {
        uint8_t* const tile_keys = ring + kStages<kLength> * sizes.stage_bytes;
        uint8_t* const tile_values = tile_keys + sizes.tile_bytes / 2;
        const uint32_t row_bytes = args.pages.row_bytes;
        const uint32_t n = args.pages.head_length;
        expand_rows<kFormat, kLength, kStepRows, 32>(tile_keys, keys, row_bytes, n, lane);
        expand_rows<kFormat, kLength, kStepRows, 32>(tile_values, values, row_bytes, n, lane);
        __syncwarp();
        keys = tile_keys;
        values = tile_values;
      }
      add_step<kLength>(args, queries, segment, step * kStepRows, shared_address(keys),
                        shared_address(values), lane, &sums);
      stage = stage + 1 == kStages<kLength> ? 0 : stage + 1;
    }
    finish_segment<kLength>(args, segment, unit_count, block_count, exchange, &sums);
  }
  copy_async_wait<0>();
}

// ---- choice of the instance ----

struct Instance {
  void (*kernel)(AttentionKernelArgs);
  uint32_t (*blocks)(uint32_t row_bytes);
  Sizes (*sizes)(uint32_t row_bytes);
};

template <int kLength, KvFormat kFormat>
Instance instance() {
  return {attention_decode_kernel<kLength, kFormat>, blocks_per_sm<kLength, kFormat>,
          sizes_of<kLength, kFormat>};
}

template <int kLength>
Instance instance_of(KvFormat format) {
  switch (format) {
    case KvFormat::kQ8_0:
      return instance<kLength, KvFormat::kQ8_0>();
    case KvFormat::kFp8E4m3:
      return instance<kLength, KvFormat::kFp8E4m3>();
    default:
      return instance<kLength, KvFormat::kF16>();
  }
}

Instance find_instance(KvFormat format, uint32_t head_length) {
  if (head_length <= 64) return instance_of<64>(format);
  if (head_length <= 128) return instance_of<128>(format);
  return instance_of<256>(format);
}

uint32_t row_bytes_of(KvFormat format, uint32_t head_length) {
  if (format == KvFormat::kQ8_0) return head_length / 32 * 34;
  return head_length * (format == KvFormat::kF16 ? 2 : 1);
}

uint32_t padded_length(uint32_t head_length) {
  return head_length <= 64 ? 64 : head_length <= 128 ? 128 : 256;
}

}  // namespace

uint32_t decode_head_tiles(uint32_t head_count, uint32_t kv_head_count) {
  const uint32_t group = head_count / kv_head_count;
  return kv_head_count * ((group + kDecodeGroupMax - 1) / kDecodeGroupMax);
}

uint32_t decode_block_count(KvFormat format, uint32_t head_length, uint32_t sm_count) {
  const uint32_t blocks =
      find_instance(format, head_length).blocks(row_bytes_of(format, head_length)) * sm_count;
  // finish_parts keeps a factor of each part where the warps' sums were.
  const uint32_t parts_max = kWarps * (padded_length(head_length) + 4);
  return blocks < parts_max ? blocks : parts_max;
}

uint32_t decode_part_floats(uint32_t head_count, uint32_t kv_head_count, uint32_t head_length) {
  const uint32_t group = head_count / kv_head_count;
  return 2 * kColumns +
         (group < kDecodeGroupMax ? group : kDecodeGroupMax) * padded_length(head_length);
}

cudaError_t attention_decode_prepare(KvFormat format, uint32_t head_length) {
  if (head_length == 0 || head_length > kAttentionHeadLengthMax) return cudaErrorInvalidValue;
  const Instance instance = find_instance(format, head_length);
  const uint32_t bytes = instance.sizes(row_bytes_of(format, head_length)).shared_bytes;
  return cudaFuncSetAttribute(instance.kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                              static_cast<int>(bytes));
}

cudaError_t attention_decode(const AttentionKernelArgs& args, const Launch& launch) {
  if (args.pages.head_length == 0 || args.pages.head_length > kAttentionHeadLengthMax)
    return cudaErrorInvalidValue;
  if (args.step.row_count == 0) return cudaSuccess;
  const Instance instance = find_instance(args.pages.format, args.pages.head_length);
  const uint32_t bytes = instance.sizes(args.pages.row_bytes).shared_bytes;
  return launch_kernel(launch, dim3(args.plan.max_blocks), dim3(kBlockThreads), bytes, 0,
                       instance.kernel, args);
}

}  // namespace wcuda::kernels
