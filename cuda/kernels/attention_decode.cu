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
#include "kernels/attention_decode_tile.h"
#include "kernels/dependent_launch.h"

namespace wcuda::kernels {
namespace {

constexpr int kWarps = 4;
constexpr int kBlockThreads = kWarps * 32;
constexpr int kColumns = 8;  // query heads of a product
static_assert(kColumns == kDecodeGroupMax);

// Floats from head to head of the sums that warps exchange: lanes write to different banks.
template <int kLength>
constexpr uint32_t kSumStride = kLength + 4;

template <int kLength, KvFormat kFormat>
struct Places {
  static constexpr uint32_t kStageBytes = 2 * StepTile<kLength, kFormat>::kBytes;
  // Stages of a warp's ring: about 24 KiB, which two blocks of four warps find room for. All but
  // one are under way: 128 KiB a multiprocessor keep its share of the memory busy.
  static constexpr int kFitting = 24 * 1024 / kStageBytes;
  static constexpr int kStages = kFitting < 2 ? 2 : kFitting > 6 ? 6 : kFitting;
  // 16 bytes more: a load of codes may pass the end.
  static constexpr uint32_t kWarpBytes = kStages * kStageBytes + 16;
  static constexpr uint32_t kExchange = (kWarps * kWarpBytes + 127) / 128 * 128;
  static constexpr uint32_t kExchangeFloats = kWarps * kColumns * (kSumStride<kLength> + 2);
  static constexpr uint32_t kBytes = kExchange + kExchangeFloats * sizeof(float);
};

// Positions of one row and head that a block works on in one go.
struct Segment {
  uint32_t row;
  uint32_t head;        // head tile
  uint32_t unit_begin;  // of this segment, within the units of its row and head
  uint32_t unit_end;
  uint32_t row_units;  // of the row and head
  uint32_t row_first;  // unit of the whole line where the row and head begin
  uint32_t begin;      // positions
  uint32_t end;
};

// Walks the segments of a block.
class Segments {
 public:
  __device__ Segments(const AttentionKernelArgs& args, const DecodeStart& start)
      : args_(args),
        unit_(start.begin),
        end_(start.end),
        row_(start.row),
        row_begin_(start.units_before),
        row_end_(start.units_to_end),
        position_(start.position) {}
  __device__ __forceinline__ bool next(Segment* segment) {
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
    const bool is_fixed = plan.fixed_unit_pages != 0;
    segment->row = row_;
    segment->head = within / units;
    segment->unit_begin = within - segment->head * units;
    segment->unit_end =
        is_fixed ? segment->unit_begin + 1 : min(units, segment->unit_begin + end_ - unit_);
    segment->row_units = units;
    segment->row_first = unit_ - segment->unit_begin;
    const uint32_t unit_positions = (is_fixed ? plan.fixed_unit_pages : 1) * kPagePositions;
    // The plan's window may be wider than this layer's: the first units may see nothing.
    const uint32_t first_unit = position_ / unit_positions + 1 - units;
    segment->begin = max(first_visible(position_, args_.window),
                         (first_unit + segment->unit_begin) * unit_positions);
    segment->end = min(position_ + 1, (first_unit + segment->unit_end) * unit_positions);
    unit_ += segment->unit_end - segment->unit_begin;
    return true;
  }
  // Of the row of the last segment.
  __device__ uint32_t position() const { return position_; }

 private:
  const AttentionKernelArgs& args_;
  uint32_t unit_, end_, row_, row_begin_, row_end_, position_;
};

// The steps of one warp in a segment: every kWarps-th 16 positions.
struct Steps {
  uint32_t next = 0;
  uint32_t end = 0;
  __device__ void begin(const Segment& segment, uint32_t warp) {
    next = segment.begin / kStepRows + warp;
    end = segment.begin < segment.end ? (segment.end + kStepRows - 1) / kStepRows : 0;
  }
};

// Copies a warp's steps, ahead of the work on them.
template <int kLength, KvFormat kFormat>
class Loader {
 public:
  using Tile = StepTile<kLength, kFormat>;
  __device__ Loader(const AttentionKernelArgs& args, const Segments& segments, uint32_t warp,
                    uint32_t lane, uint32_t ring)
      : args_(args), segments_(segments), warp_(warp), lane_(lane), ring_(ring) {
    find_step();
  }
  // Whether the next step holds the newest position, which kernels of this step have written, or
  // there is none.
  __device__ bool must_wait() const {
    return !has_step_ || segments_.position() / kStepRows == steps_.next;
  }
  // Begins the next copy; without one an empty group, so that groups count steps.
  __device__ __forceinline__ void issue(uint32_t stage) {
    if (has_step_) {
      const KvPages& pages = args_.pages;
      const uint32_t first = steps_.next * kStepRows;
      const RowRange valid{segment_.begin > first ? segment_.begin - first : 0,
                           min(segment_.end - first, uint32_t{kStepRows})};
      const uint32_t head = segment_.head / (args_.plan.head_tiles / pages.head_count);
      const uint8_t* keys = page_rows(pages, args_.layer, page_, head, false) +
                            first % kPagePositions * pages.row_bytes;
      const uint8_t* values = keys + uint64_t{pages.head_count} * kPagePositions * pages.row_bytes;
      const uint32_t target = ring_ + stage * (2 * Tile::kBytes);
      Tile::copy(target, keys, pages, valid, lane_);
      Tile::copy(target + Tile::kBytes, values, pages, valid, lane_);
      steps_.next += kWarps;
      find_step();
    }
    copy_async_commit();
  }

 private:
  __device__ __forceinline__ void find_step() {
    while (steps_.next >= steps_.end) {
      has_step_ = segments_.next(&segment_);
      if (!has_step_) return;
      steps_.begin(segment_, warp_);
    }
    page_ = __ldcg(args_.step.page_tables + uint64_t{segment_.row} * args_.step.page_table_stride +
                   steps_.next / (kPagePositions / kStepRows));
  }

  const AttentionKernelArgs& args_;
  Segments segments_;
  Segment segment_;
  Steps steps_;
  uint32_t warp_, lane_, ring_;
  uint32_t page_ = 0;
  bool has_step_ = false;
};

// The query heads of a segment.
struct Heads {
  uint32_t token;
  uint32_t first;  // query head
  uint32_t count;

  __device__ Heads(const AttentionKernelArgs& args, const Segment& segment) {
    const uint32_t group = args.head_count / args.pages.head_count;
    const uint32_t tiles = args.plan.head_tiles / args.pages.head_count;
    const uint32_t tile = segment.head % tiles;
    token = __ldcg(&args.step.rows[segment.row].first_token);
    first = segment.head / tiles * group + tile * kDecodeGroupMax;
    count = min(group - tile * kDecodeGroupMax, kDecodeGroupMax);
  }
};

// What a warp keeps of a segment. A lane 4g + t holds heads 2t, 2t + 1 of the sums.
template <int kLength>
struct WarpSums {
  float largest[2];  // scores
  float weight[2];   // of this lane's positions
  float values[kLength / 16][4];

  __device__ __forceinline__ void clear() {
    largest[0] = largest[1] = -INFINITY;
    weight[0] = weight[1] = 0.0f;
#pragma unroll
    for (int i = 0; i < kLength / 16; ++i)
#pragma unroll
      for (int j = 0; j < 4; ++j) values[i][j] = 0.0f;
  }
};

// Queries as columns of products: lane 4g + t holds two pairs of elements of head g of each 16.
template <int kLength, KvFormat kFormat>
struct Queries {
  uint32_t halves[kLength / 16][2];
  bool is_split;  // columns 4 … 7 hold what is left of columns 0 … 3

  __device__ __forceinline__ void load(const AttentionKernelArgs& args, const Heads& heads,
                                       uint32_t lane) {
    const uint32_t n = args.pages.head_length;
    const uint32_t column = lane / 4;
    is_split = heads.count <= 4;
    const uint32_t head = is_split ? column % 4 : column;
    const float factor = head < heads.count ? args.scale * kLog2E : 0.0f;
    const float* query =
        args.query +
        (uint64_t{heads.token} * args.head_count + heads.first + min(head, heads.count - 1)) * n;
    const bool is_rest = is_split && column >= 4;
    // A batch of loads before the first use: they take one passage to L2 together.
    constexpr int kBatch = kLength / 16 < 8 ? kLength / 16 : 8;
#pragma unroll
    for (int begin = 0; begin < kLength / 16; begin += kBatch) {
      float2 values[kBatch][2];
#pragma unroll
      for (int i = 0; i < kBatch; ++i)
#pragma unroll
        for (int j = 0; j < 2; ++j)
          values[i][j] = load_pair(query, Tile::query_element(begin + i, j, lane), n);
#pragma unroll
      for (int i = 0; i < kBatch; ++i)
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          const uint32_t element = Tile::query_element(begin + i, j, lane);
          float a = element < n ? values[i][j].x * factor : 0.0f;
          float b = element + 1 < n ? values[i][j].y * factor : 0.0f;
          if (is_rest) {
            a -= __half2float(__float2half_rn(a));
            b -= __half2float(__float2half_rn(b));
          }
          halves[begin + i][j] = pack_halves(a, b);
        }
    }
  }

 private:
  using Tile = StepTile<kLength, kFormat>;
  // Elements past the end stand for any others.
  __device__ static __forceinline__ float2 load_pair(const float* query, uint32_t element,
                                                     uint32_t n) {
    if (n % 2 == 0) return __ldcg(reinterpret_cast<const float2*>(query + min(element, n - 2)));
    return make_float2(__ldcg(query + min(element, n - 1)),
                       __ldcg(query + min(element + 1, n - 1)));
  }
};

// Adds the 16 positions from `first` on, of which `segment` holds some.
template <int kLength, KvFormat kFormat>
__device__ __forceinline__ void add_step(const AttentionKernelArgs& args,
                                         const Queries<kLength, kFormat>& queries,
                                         const Segment& segment, uint32_t first, uint32_t stage,
                                         uint32_t lane, WarpSums<kLength>* sums) {
  using Tile = StepTile<kLength, kFormat>;
  float scores[4] = {0.0f, 0.0f, 0.0f, 0.0f};
  Tile::score(stage, args.pages, queries.halves, lane, scores);
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
#pragma unroll
  for (int i = 0; i < kLength / 16; ++i)
#pragma unroll
    for (int j = 0; j < 4; ++j) sums->values[i][j] *= factors[j % 2];
  const uint32_t w0 = transpose_tile(pack_halves(scores[0], scores[1]));
  const uint32_t w1 = transpose_tile(pack_halves(scores[2], scores[3]));
  Tile::add(stage + Tile::kBytes, args.pages, w0, w1, lane, sums->values);
}

// What a block's warps hand to each other.
template <int kLength>
struct Exchange {
  float (*sums)[kColumns][kSumStride<kLength>];  // (warps)
  float (*largest)[kColumns];                    // (warps)
  float (*weight)[kColumns];

  __device__ explicit Exchange(uint8_t* shared) {
    auto* const floats = reinterpret_cast<float*>(shared);
    constexpr uint32_t kSumFloats = kWarps * kColumns * kSumStride<kLength>;
    sums = reinterpret_cast<float(*)[kColumns][kSumStride<kLength>]>(floats);
    largest = reinterpret_cast<float(*)[kColumns]>(floats + kSumFloats);
    weight = reinterpret_cast<float(*)[kColumns]>(floats + kSumFloats + kWarps * kColumns);
  }
};

// A part: largest score and weight of each head, then the sums (heads, kLength).
struct Part {
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
  uint32_t part_floats;
  float* parts;

  __device__ PartList(const AttentionKernelArgs& args, const Segment& segment,
                      const DecodeStart& start) {
    parts = args.plan.parts;
    part_floats = args.plan.part_floats;
    if (args.plan.fixed_unit_pages != 0) {
      count = segment.row_units;
      own = segment.unit_begin;
      first = segment.row_first;
      second = segment.row_first + 1;
      stride = 1;
      counter = segment.row * args.plan.head_tiles + segment.head;
      return;
    }
    const uint32_t share = start.unit_count / start.block_count;
    const uint32_t rest = start.unit_count - share * start.block_count;
    const uint32_t larger_end = rest * (share + 1);
    const auto block_of = [&](uint32_t unit) {
      return unit < larger_end ? unit / (share + 1) : rest + (unit - larger_end) / share;
    };
    const uint32_t first_block = block_of(segment.row_first);
    count = block_of(segment.row_first + segment.row_units - 1) - first_block + 1;
    own = blockIdx.x - first_block;
    // Two places a block: the end of one row and head, and the beginning of another.
    first = 2 * first_block + 1;
    second = 2 * (first_block + 1);
    stride = 2;
    counter = first_block;
  }
  __device__ Part part(uint32_t index) const {
    const uint32_t place = index == 0 ? first : second + (index - 1) * stride;
    return {parts + uint64_t{place} * part_floats};
  }
};

// The last block to end adds the parts in their order.
template <int kLength>
__device__ __forceinline__ void finish_parts(const AttentionKernelArgs& args, const PartList& parts,
                                             const Heads& heads) {
  constexpr uint32_t kBatch = 8;  // parts whose loads are under way together
  const uint32_t n = args.pages.head_length;
  float* const out = args.out + (uint64_t{heads.token} * args.head_count + heads.first) * n;
  for (uint32_t i = threadIdx.x; i < heads.count * (kLength / 4); i += kBlockThreads) {
    const uint32_t h = i / (kLength / 4);
    const uint32_t element = i % (kLength / 4) * 4;
    float largest = sink_of(args, heads.first + h);
    float weight = args.sinks == nullptr ? 0.0f : 1.0f;
    float sums[4] = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll 1
    for (uint32_t begin = 0; begin < parts.count; begin += kBatch) {
      float part_largest[kBatch], part_weight[kBatch];
      float4 part_sums[kBatch];
#pragma unroll
      for (uint32_t b = 0; b < kBatch; ++b) {
        const Part part = parts.part(min(begin + b, parts.count - 1));
        part_largest[b] = __ldcg(part.largest(h));
        part_weight[b] = __ldcg(part.weight(h));
        part_sums[b] = __ldcg(reinterpret_cast<const float4*>(part.sums() + i * 4));
      }
      float base = largest;
#pragma unroll
      for (uint32_t b = 0; b < kBatch; ++b) base = fmaxf(base, part_largest[b]);
      const float known = exp2_fast(largest - base);
      largest = base;
      weight *= known;
#pragma unroll
      for (float& sum : sums) sum *= known;
#pragma unroll
      for (uint32_t b = 0; b < kBatch; ++b) {
        const float factor = begin + b < parts.count ? exp2_fast(part_largest[b] - base) : 0.0f;
        weight += factor * part_weight[b];
        sums[0] += factor * part_sums[b].x;
        sums[1] += factor * part_sums[b].y;
        sums[2] += factor * part_sums[b].z;
        sums[3] += factor * part_sums[b].w;
      }
    }
    const float inverse = 1.0f / weight;
#pragma unroll
    for (uint32_t j = 0; j < 4; ++j)
      if (element + j < n) out[h * n + element + j] = sums[j] * inverse;
  }
}

// The old value; what this block wrote before can be seen by who sees the new one.
__device__ __forceinline__ uint32_t add_to_counter(uint32_t* counter) {
  uint32_t old;
  asm volatile("atom.add.acq_rel.gpu.global.u32 %0, [%1], 1;"
               : "=r"(old)
               : "l"(counter)
               : "memory");
  return old;
}

// Adds up the block's warps; writes the result, or a part of it.
template <int kLength, KvFormat kFormat>
__device__ __forceinline__ void finish_segment(const AttentionKernelArgs& args,
                                               const Segment& segment, const Heads& heads,
                                               const DecodeStart& start,
                                               const Exchange<kLength>& exchange,
                                               const WarpSums<kLength>& warp_sums) {
  __shared__ bool is_last;
  const uint32_t lane = threadIdx.x % 32;
  const uint32_t warp = threadIdx.x / 32;
  const uint32_t n = args.pages.head_length;
  const bool is_whole = segment.unit_end - segment.unit_begin == segment.row_units;

#pragma unroll
  for (int j = 0; j < 2; ++j) {
    float weight = warp_sums.weight[j];
#pragma unroll
    for (int lanes = 4; lanes < 32; lanes *= 2) weight += __shfl_xor_sync(~0u, weight, lanes);
    if (lane < 4) {
      exchange.largest[warp][lane * 2 + j] = warp_sums.largest[j];
      exchange.weight[warp][lane * 2 + j] = weight;
    }
  }
#pragma unroll
  for (int i = 0; i < kLength / 16; ++i)
#pragma unroll
    for (int j = 0; j < 4; ++j)
      exchange.sums[warp][lane % 4 * 2 + j % 2][StepTile<kLength, kFormat>::sum_element(
          i, j / 2, lane)] = warp_sums.values[i][j];
  __syncthreads();

  const PartList parts(args, segment, start);
  const Part part = parts.part(parts.own);
#pragma unroll 1
  for (uint32_t i = threadIdx.x; i < heads.count * kLength; i += kBlockThreads) {
    const uint32_t h = i / kLength;
    const uint32_t element = i % kLength;
    const float sink = is_whole ? sink_of(args, heads.first + h) : -INFINITY;
    float largest = sink;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) largest = fmaxf(largest, exchange.largest[w][h]);
    // A unit that this layer's window hides has no positions: all its sums are 0.
    const float base = largest == -INFINITY ? 0.0f : largest;
    float weight = exp2_fast(sink - base);
    float sum = 0.0f;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) {
      const float factor = exp2_fast(exchange.largest[w][h] - base);
      weight += factor * exchange.weight[w][h];
      sum += factor * exchange.sums[w][h][element];
    }
    if (is_whole) {
      if (element < n)
        args.out[(uint64_t{heads.token} * args.head_count + heads.first + h) * n + element] =
            sum / weight;
    } else {
      part.sums()[i] = sum;
      if (element == 0) {
        *part.largest(h) = largest;
        *part.weight(h) = weight;
      }
    }
  }
  __syncthreads();  // the exchange is free; the part is written
  if (is_whole) return;
  if (threadIdx.x == 0) {
    is_last = add_to_counter(args.plan.counters + parts.counter) == parts.count - 1;
    if (is_last) args.plan.counters[parts.counter] = 0;
  }
  __syncthreads();
  if (is_last) finish_parts<kLength>(args, parts, heads);
}

template <int kLength, KvFormat kFormat>
__global__ void __launch_bounds__(kBlockThreads)
    attention_decode_kernel(const __grid_constant__ AttentionKernelArgs args) {
  extern __shared__ __align__(128) uint8_t shared[];
  using At = Places<kLength, kFormat>;
  constexpr int kStages = At::kStages;
  constexpr int kAhead = kStages - 1;
  dependent_trigger();
  DecodeStart start;
  {
    const auto* source = reinterpret_cast<const uint4*>(args.plan.starts + blockIdx.x);
    reinterpret_cast<uint4*>(&start)[0] = __ldcg(source);
    reinterpret_cast<uint4*>(&start)[1] = __ldcg(source + 1);
  }
  if (start.begin == start.end) {
    // One block waits even when there is nothing to do: whoever waits for this kernel must know
    // those ahead of it ended too.
    if (blockIdx.x == 0) dependent_wait();
    return;
  }

  const uint32_t lane = threadIdx.x % 32;
  const uint32_t warp = threadIdx.x / 32;
  const uint32_t ring = shared_address(shared + warp * At::kWarpBytes);
  const Exchange<kLength> exchange(shared + At::kExchange);
  Segments segments(args, start);
  Loader<kLength, kFormat> loader(args, segments, warp, lane, ring);
  Segment segment;
  segments.next(&segment);
  Steps steps;
  steps.begin(segment, warp);
  WarpSums<kLength> sums;
  sums.clear();
  Queries<kLength, kFormat> queries;
  bool has_queries = false, has_waited = false;
  uint32_t issued = 0;
  for (uint32_t issue_stage = 0, stage = 0;;) {
    if (!has_waited && (issued == kAhead || loader.must_wait())) {
      dependent_wait();
      has_waited = true;
    }
    __syncwarp();  // all lanes are done with the stage that is filled next
    loader.issue(issue_stage);
    issue_stage = issue_stage + 1 == kStages ? 0 : issue_stage + 1;
    if (issued < kAhead) {
      ++issued;
      continue;
    }
    while (steps.next >= steps.end) {
      const Heads heads(args, segment);
      finish_segment<kLength, kFormat>(args, segment, heads, start, exchange, sums);
      if (!segments.next(&segment)) {
        copy_async_wait<0>();
        return;
      }
      steps.begin(segment, warp);
      sums.clear();
      has_queries = false;
    }
    if (!has_queries) {
      queries.load(args, Heads(args, segment), lane);
      has_queries = true;
    }
    copy_async_wait<kAhead>();
    __syncwarp();
    add_step<kLength, kFormat>(args, queries, segment, steps.next * kStepRows,
                               ring + stage * At::kStageBytes, lane, &sums);
    stage = stage + 1 == kStages ? 0 : stage + 1;
    steps.next += kWarps;
  }
}

// ---- choice of the instance ----

struct Instance {
  void (*kernel)(AttentionKernelArgs);
  uint32_t bytes;  // of shared memory
};

template <int kLength, KvFormat kFormat>
Instance instance() {
  return {attention_decode_kernel<kLength, kFormat>, Places<kLength, kFormat>::kBytes};
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

uint32_t padded_length(uint32_t head_length) {
  return head_length <= 64 ? 64 : head_length <= 128 ? 128 : 256;
}

}  // namespace

uint32_t decode_head_tiles(uint32_t head_count, uint32_t kv_head_count) {
  const uint32_t group = head_count / kv_head_count;
  return kv_head_count * ((group + kDecodeGroupMax - 1) / kDecodeGroupMax);
}

uint32_t decode_block_count(KvFormat format, uint32_t head_length, uint32_t sm_count) {
  // Two blocks a multiprocessor where Hopper's 228 KiB hold them, 1 KiB of each reserved.
  const uint32_t bytes = find_instance(format, head_length).bytes + 1024;
  return sm_count * (2 * bytes <= 228 * 1024 ? 2 : 1);
}

uint32_t decode_part_floats(uint32_t head_count, uint32_t kv_head_count, uint32_t head_length) {
  const uint32_t group = head_count / kv_head_count;
  return 2 * kColumns +
         (group < kDecodeGroupMax ? group : kDecodeGroupMax) * padded_length(head_length);
}

cudaError_t attention_decode_prepare(KvFormat format, uint32_t head_length) {
  if (head_length == 0 || head_length > kAttentionHeadLengthMax) return cudaErrorInvalidValue;
  const Instance instance = find_instance(format, head_length);
  return cudaFuncSetAttribute(instance.kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                              static_cast<int>(instance.bytes));
}

cudaError_t attention_decode(const AttentionKernelArgs& args, const Launch& launch) {
  if (args.pages.head_length == 0 || args.pages.head_length > kAttentionHeadLengthMax)
    return cudaErrorInvalidValue;
  if (args.step.row_count == 0) return cudaSuccess;
  const Instance instance = find_instance(args.pages.format, args.pages.head_length);
  return launch_kernel(launch, dim3(args.plan.max_blocks), dim3(kBlockThreads), instance.bytes, 0,
                       instance.kernel, args);
}

}  // namespace wcuda::kernels
