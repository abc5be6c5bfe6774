// attention_decode: out[h] = sum over p of w[p] * v[p], w = softmax(scale * q[h]·k[p]).
//
// A block takes a run of units of the plan (attention_plan.h): for one row and key-value head after
// the other some positions. Its warps take 16 positions each in turn, from a ring of their own in
// shared memory that only they fill: no barrier of the block while data streams. Scores are K·q,
// positions by query heads, so that up to 8 heads of a group cost one product; the sums are V·w,
// elements by heads, and lie in the registers of one warp until its positions are through.
// Softmax is online in f32; queries and weights enter the products as f16. With at most 4 heads the
// other columns carry what f16 leaves of the queries.
// Parts of a row and head that several blocks share go through the shared memory of a cluster, or
// through global memory, where the last block to end adds them; always in the same order.
// Masked positions are never read: their keys and values are 0 in shared memory, their weight 0.
// Bytes moved: the keys and values that the rows see, once; queries and results.
#include "kernels/attention_decode.h"
#include "kernels/attention_decode_tile.h"
#include "kernels/dependent_launch.h"
#include "kernels/turn_head.h"

namespace wcuda::kernels {
namespace {

constexpr int kWarps = 4;
constexpr int kBlockThreads = kWarps * 32;
constexpr int kColumns = 8;  // query heads of a product
static_assert(kColumns == kDecodeGroupMax);

// Floats from head to head of the sums that warps exchange: lanes write to different banks.
template <int kLength>
constexpr uint32_t kSumStride = kLength + 4;

template <int kLength, KvFormat kFormat, bool kExact>
struct Places {
  static constexpr uint32_t kStageBytes = 2 * StepTile<kLength, kFormat, kExact>::kBytes;
  // Blocks of a multiprocessor: those of codes have more to compute, which more warps hide.
  static constexpr int kSmBlocks = kLength > 128 ? 1 : kFormat == KvFormat::kF16 ? 2 : 3;
  // Stages of a warp's ring, all but one under way: as many as the blocks find room for. 64 KiB a
  // multiprocessor under way keep its share of the memory busy.
  static constexpr int kRingBytes = (kFormat == KvFormat::kF16 ? 24 : 13) * 1024;
  static constexpr int kFitting = kRingBytes / kStageBytes;
  static constexpr int kStages = kFitting < 2 ? 2 : kFitting > 6 ? 6 : kFitting;
  // 16 bytes more: a load of codes may pass the end.
  static constexpr uint32_t kWarpBytes = kStages * kStageBytes + 16;
  static constexpr uint32_t kExchange = (kWarps * kWarpBytes + 127) / 128 * 128;
  static constexpr uint32_t kExchangeBytes =  // of a warp
      kColumns * (kSumStride<kLength> + 2) * sizeof(float);
  static constexpr uint32_t kBytes = kExchange + kWarps * kExchangeBytes;
  // What a cluster exchanges finds room too, and before that what Newcomers says.
  static_assert(kExchangeBytes <= kStages * kStageBytes);
  static_assert((kColumns * (kLength / 4) + 15) * 32 <= kWarps * kExchangeBytes);
  // Hopper has 228 KiB a multiprocessor, of which each block takes 1 KiB besides.
  static_assert(kSmBlocks * (kBytes + 1024) <= 228 * 1024);
};

// Positions of one row and head that a block works on in one go.
struct Segment {
  uint32_t row;
  uint32_t head;  // head tile
  uint32_t kv_head;
  uint32_t unit_begin;  // of this segment, within the units of its row and head
  uint32_t unit_end;
  uint32_t row_units;   // of the row and head
  uint32_t row_first;   // unit of the whole line where the row and head begin
  uint32_t token;       // of the row
  uint32_t first_page;  // of the row's, where its first unit begins
  uint32_t begin;       // positions
  uint32_t end;
};

// A block's DecodeStart: lane l has word l % 16.
class Start {
 public:
  __device__ Start(const AttentionPlan& plan, uint32_t lane)
      : word_(__ldcg(reinterpret_cast<const uint32_t*>(plan.starts + blockIdx.x) + lane % 16)) {}
  __device__ __forceinline__ DecodeStart all() const {
    DecodeStart start;
    auto* const words = reinterpret_cast<uint32_t*>(&start);
#pragma unroll
    for (int i = 0; i < 10; ++i) words[i] = __shfl_sync(~0u, word_, i);
    return start;  // but for the pages
  }
  __device__ __forceinline__ uint32_t page(uint32_t index) const {
    return __shfl_sync(~0u, word_, 10 + index);
  }

 private:
  static_assert(sizeof(DecodeStart) == 64);
  uint32_t word_;
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
        token_(start.token),
        position_(start.position),
        head_(start.head) {}
  __device__ __forceinline__ bool next(Segment* segment) {
    if (unit_ == end_) return false;
    const AttentionPlan& plan = args_.plan;
    if (unit_ >= row_end_ * plan.head_tiles) {
      do {
        ++row_;
        row_begin_ = row_end_;
        row_end_ = __ldcg(plan.row_units + row_ + 1);
      } while (row_end_ == row_begin_);
      token_ = __ldcg(&args_.step.rows[row_].first_token);
      position_ = __ldcg(&args_.step.rows[row_].first_position);
      head_ = 0;
    }
    const uint32_t units = row_end_ - row_begin_;
    const bool is_fixed = plan.fixed_unit_pages != 0;
    segment->row = row_;
    segment->head = head_;
    segment->kv_head = plan.group_tiles == 1 ? head_ : head_ / plan.group_tiles;
    segment->row_first = row_begin_ * plan.head_tiles + head_ * units;
    segment->unit_begin = unit_ - segment->row_first;
    segment->unit_end =
        is_fixed ? segment->unit_begin + 1 : min(units, segment->unit_begin + end_ - unit_);
    segment->row_units = units;
    segment->token = token_;
    const uint32_t unit_positions = (is_fixed ? plan.fixed_unit_pages : 1) * kPagePositions;
    // The plan's window may be wider than this layer's: the first units may see nothing.
    const uint32_t first_unit =
        (is_fixed ? position_ / unit_positions : position_ / kPagePositions) + 1 - units;
    segment->first_page = (first_unit + segment->unit_begin) * (unit_positions / kPagePositions);
    segment->begin = max(first_visible(position_, args_.window),
                         (first_unit + segment->unit_begin) * unit_positions);
    segment->end = min(position_ + 1, (first_unit + segment->unit_end) * unit_positions);
    if (segment->unit_end == units) ++head_;
    unit_ += segment->unit_end - segment->unit_begin;
    return true;
  }
  // Of the row of the last segment.
  __device__ uint32_t position() const { return position_; }

 private:
  const AttentionKernelArgs& args_;
  uint32_t unit_, end_, row_, row_begin_, row_end_, token_, position_, head_;
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
template <int kLength, KvFormat kFormat, bool kExact>
class Loader {
 public:
  using Tile = StepTile<kLength, kFormat, kExact>;
  __device__ Loader(const AttentionKernelArgs& args, const Segments& segments, const Start& start,
                    uint32_t warp, uint32_t lane, uint32_t ring)
      : args_(args), segments_(segments), start_(start), warp_(warp), lane_(lane), ring_(ring) {
    find_step();
  }
  // Whether the next step holds the newest position, or there is none.
  __device__ bool has_newest_next() const {
    return !has_step_ || segments_.position() / kStepRows == steps_.next;
  }
  // Begins the next copy; without one an empty group, so that groups count steps. The newest
  // position of a row is left out where this kernel stores it and has not done so yet: only that of
  // the first `stored` segments is in the pages.
  __device__ __forceinline__ void issue(uint32_t stage, uint32_t stored) {
    if (has_step_) {
      const KvPages& pages = args_.pages;
      const uint32_t first = steps_.next * kStepRows;
      RowRange valid{segment_.begin > first ? segment_.begin - first : 0,
                     min(segment_.end - first, uint32_t{kStepRows})};
      if (has_newest_next() && args_.key != nullptr && segment_count_ > stored) --valid.end;
      const uint8_t* keys = page_rows(pages, args_.layer, page_, segment_.kv_head, false) +
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
      ++segment_count_;
      steps_.begin(segment_, warp_);
    }
    const uint32_t index = steps_.next / (kPagePositions / kStepRows);
    if (segment_count_ == 1 && index - segment_.first_page < kStartPages)
      page_ = start_.page(index - segment_.first_page);
    else
      page_ = __ldcg(args_.step.page_tables +
                     uint64_t{segment_.row} * args_.step.page_table_stride + index);
  }

  const AttentionKernelArgs& args_;
  Segments segments_;
  const Start& start_;
  Segment segment_;
  Steps steps_;
  uint32_t warp_, lane_, ring_;
  uint32_t segment_count_ = 0;  // the step's included
  uint32_t page_ = 0;
  bool has_step_ = false;
};

// The query heads of a segment.
struct Heads {
  uint32_t token;
  uint32_t first;  // query head
  uint32_t count;

  __device__ Heads(const AttentionKernelArgs& args, const Segment& segment) {
    const uint32_t tile = segment.head - segment.kv_head * args.plan.group_tiles;
    token = segment.token;
    first = segment.kv_head * args.plan.group_heads + tile * kDecodeGroupMax;
    count = min(args.plan.group_heads - tile * kDecodeGroupMax, kDecodeGroupMax);
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

// Heads of a segment in shared memory: queries, then the newest key and value; then these two as
// rows of the pages. They lie where the warps' sums will.
template <int kLength>
struct Newcomers {
  static constexpr uint32_t kStride = kLength + 8;  // lanes read different banks
  static constexpr uint32_t kRowBytes = kLength * 2 + 16;
  static constexpr uint32_t kBytes = (kColumns + 2) * kStride * sizeof(float) + 2 * kRowBytes;
  uint8_t* base;

  __device__ float* head(uint32_t index) const {
    return reinterpret_cast<float*>(base) + index * kStride;
  }
  __device__ uint8_t* row(bool is_value) const {
    return base + (kColumns + 2) * kStride * sizeof(float) + (is_value ? kRowBytes : 0);
  }
};

// cos and sin of a position for the pairs lane, lane + 32, … of a head.
template <int kLength>
struct Turns {
  float frequencies[kLength / 64];
  float2 values[kLength / 64];

  __device__ __forceinline__ void load(const HeadTurn& turn, uint32_t lane) {
#pragma unroll
    for (uint32_t j = 0; j < kLength / 64; ++j)
      frequencies[j] =
          lane + 32 * j < turn.rope_dimensions / 2 ? turn.rope_frequencies[lane + 32 * j] : 0.0f;
  }
  __device__ __forceinline__ void find(const HeadTurn& turn, uint32_t position) {
#pragma unroll
    for (uint32_t j = 0; j < kLength / 64; ++j)
      values[j] = turn_of(position, frequencies[j], turn.rope_magnitude);
  }
};

// Loads the heads of a segment, each by a warp; turns them where that is left to this kernel, and
// stores the newest key and value in `page`. All threads of the block come here.
template <int kLength, KvFormat kFormat, bool kExact>
__device__ __forceinline__ void load_heads(const AttentionKernelArgs& args, const Heads& heads,
                                           uint32_t kv_head, bool has_newest, uint32_t position,
                                           uint32_t page, const Turns<kLength>& turns,
                                           const Newcomers<kLength>& newcomers) {
  constexpr uint32_t kValues = kLength / 32;
  const uint32_t lane = threadIdx.x % 32;
  const uint32_t n = args.pages.head_length;
  const uint32_t count = heads.count + (has_newest ? 2 : 0);
  const auto source_of = [&](uint32_t index) -> const float* {
    if (index < heads.count)
      return args.query + (uint64_t{heads.token} * args.head_count + heads.first + index) * n;
    return (index == heads.count ? args.key : args.value) +
           (uint64_t{heads.token} * args.pages.head_count + kv_head) * n;
  };
  float next[kValues];
  const auto load = [&](uint32_t index) {
    const float* source = source_of(index);
#pragma unroll
    for (uint32_t j = 0; j < kValues; ++j)
      next[j] = lane + 32 * j < n ? __ldcg(source + lane + 32 * j) : 0.0f;
  };
  uint32_t index = threadIdx.x / 32;
  if (index < count) load(index);
#pragma unroll 1
  for (; index < count; index += kWarps) {
    const bool is_query = index < heads.count;
    float* const head = newcomers.head(is_query ? index : kColumns + index - heads.count);
#pragma unroll
    for (uint32_t j = 0; j < kValues; ++j) head[lane + 32 * j] = next[j];
    if (index + kWarps < count) load(index + kWarps);
    __syncwarp();
    if (args.key == nullptr) continue;
    if (index <= heads.count) {
      const float* gain = is_query ? args.turn.query_norm : args.turn.key_norm;
      if (gain != nullptr) norm_head<kValues>(head, n, gain, args.turn.epsilon, lane);
      turn_head<kValues>(
          head, args.turn, [&](uint32_t j) { return turns.values[j]; }, lane);
    }
    if (is_query) continue;
    const bool is_value = index > heads.count;
    write_row(kFormat, head, n, newcomers.row(is_value), lane);
    write_row(kFormat, head, n,
              const_cast<uint8_t*>(page_rows(args.pages, args.layer, page, kv_head, is_value)) +
                  position % kPagePositions * args.pages.row_bytes,
              lane);
  }
  __syncthreads();
}

// Queries as columns of products: lane 4g + t holds two pairs of elements of head g of each 16.
template <int kLength, KvFormat kFormat, bool kExact>
struct Queries {
  uint32_t halves[kLength / 16][2];
  bool is_split;  // columns 4 … 7 hold what is left of columns 0 … 3

  __device__ __forceinline__ void load(const AttentionKernelArgs& args, uint32_t head_count,
                                       const Newcomers<kLength>& newcomers, uint32_t lane) {
    const uint32_t column = lane / 4;
    is_split = head_count <= 4;
    const uint32_t head = is_split ? column % 4 : column;
    const float factor = head < head_count ? args.scale * kLog2E : 0.0f;
    const float* query = newcomers.head(min(head, head_count - 1));
    const bool is_rest = is_split && column >= 4;
#pragma unroll
    for (int i = 0; i < kLength / 16; ++i)
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const auto pair = *reinterpret_cast<const float2*>(
            query + StepTile<kLength, kFormat, kExact>::query_element(i, j, lane));
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

// Adds the 16 positions from `first` on, of which `segment` holds some.
template <int kLength, KvFormat kFormat, bool kExact>
__device__ __forceinline__ void add_step(const AttentionKernelArgs& args,
                                         const Queries<kLength, kFormat, kExact>& queries,
                                         const Segment& segment, uint32_t first, uint32_t stage,
                                         uint32_t lane, WarpSums<kLength>* sums) {
  using Tile = StepTile<kLength, kFormat, kExact>;
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
  if (__any_sync(~0u, factors[0] != 1.0f || factors[1] != 1.0f)) {
#pragma unroll
    for (int i = 0; i < kLength / 16; ++i)
#pragma unroll
      for (int j = 0; j < 4; ++j) sums->values[i][j] *= factors[j % 2];
  }
  const uint32_t w0 = transpose_tile(pack_halves(scores[0], scores[1]));
  const uint32_t w1 = transpose_tile(pack_halves(scores[2], scores[3]));
  Tile::add(stage + Tile::kBytes, args.pages, w0, w1, lane, sums->values);
}

// What a block's warps hand to each other. In a cluster a warp's sums lie in its own ring, which is
// free by then, and `received` holds what the blocks send each other.
template <int kLength>
struct Exchange {
  uint8_t* base;
  uint32_t warp_bytes;  // from warp to warp
  float* received;

  __device__ float* sums(uint32_t warp, uint32_t head) const {
    return reinterpret_cast<float*>(base + warp * warp_bytes) + head * kSumStride<kLength>;
  }
  __device__ float* largest(uint32_t warp) const { return sums(warp, kColumns); }
  __device__ float* weight(uint32_t warp) const { return largest(warp) + kColumns; }
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
    const uint32_t larger_end = start.larger_count * (start.share + 1);
    const auto block_of = [&](uint32_t unit) {
      return unit < larger_end ? unit / (start.share + 1)
                               : start.larger_count + (unit - larger_end) / start.share;
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

// Four elements of a head's sums, with the largest score and the weight that they go with.
struct Quad {
  float4 sums;
  float largest;
  float weight;

  __device__ __forceinline__ void clear(float score) {
    sums = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    largest = score;
    weight = score == -INFINITY ? 0.0f : 1.0f;
  }
  // Adds kCount others, whose loads should be under way together.
  template <int kCount>
  __device__ __forceinline__ void add(const Quad (&others)[kCount]) {
    const float known = largest;
#pragma unroll
    for (int i = 0; i < kCount; ++i) largest = fmaxf(largest, others[i].largest);
    // Positions that this layer's window hides leave parts of nothing: all their sums are 0.
    const float base = largest == -INFINITY ? 0.0f : largest;
    const float factor = exp2_fast(known - base);
    weight *= factor;
    sums.x *= factor;
    sums.y *= factor;
    sums.z *= factor;
    sums.w *= factor;
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const float other = exp2_fast(others[i].largest - base);
      weight += other * others[i].weight;
      sums.x += other * others[i].sums.x;
      sums.y += other * others[i].sums.y;
      sums.z += other * others[i].sums.z;
      sums.w += other * others[i].sums.w;
    }
  }
};

// Quad i of a block's heads, from what its warps have put into the exchange.
template <int kLength>
__device__ __forceinline__ Quad merge_warps(const Exchange<kLength>& exchange, uint32_t i,
                                            float sink) {
  constexpr uint32_t kQuads = kLength / 4;
  Quad warps[kWarps];
#pragma unroll
  for (int w = 0; w < kWarps; ++w) {
    warps[w].sums = *reinterpret_cast<const float4*>(exchange.sums(w, i / kQuads) + i % kQuads * 4);
    warps[w].largest = exchange.largest(w)[i / kQuads];
    warps[w].weight = exchange.weight(w)[i / kQuads];
  }
  Quad quad;
  quad.clear(sink);
  quad.add(warps);
  return quad;
}

// The result of quad i.
template <int kLength>
__device__ __forceinline__ void write_quad(const AttentionKernelArgs& args, const Heads& heads,
                                           uint32_t i, const Quad& quad) {
  constexpr uint32_t kQuads = kLength / 4;
  const uint32_t n = args.pages.head_length;
  const uint32_t element = i % kQuads * 4;
  const float inverse = 1.0f / quad.weight;
  const float4 sums = make_float4(quad.sums.x * inverse, quad.sums.y * inverse,
                                  quad.sums.z * inverse, quad.sums.w * inverse);
  float* const out =
      args.out + (uint64_t{heads.token} * args.head_count + heads.first + i / kQuads) * n + element;
  if (n % 4 == 0) {
    if (element < n) *reinterpret_cast<float4*>(out) = sums;
    return;
  }
  const float values[4] = {sums.x, sums.y, sums.z, sums.w};
#pragma unroll
  for (uint32_t j = 0; j < 4; ++j)
    if (element + j < n) out[j] = values[j];
}

// The block's warps add the parts of a row and head, each every kWarps-th, into the exchange.
template <int kLength>
__device__ __forceinline__ void gather_parts(const PartList& parts, const Heads& heads,
                                             const Exchange<kLength>& exchange) {
  constexpr uint32_t kBatch = 4;  // parts whose loads are under way together
  constexpr uint32_t kQuads = kLength / 4;
  const uint32_t lane = threadIdx.x % 32;
  const uint32_t warp = threadIdx.x / 32;
#pragma unroll 2
  for (uint32_t i = lane; i < heads.count * kQuads; i += 32) {
    const uint32_t h = i / kQuads;
    Quad sum;
    sum.clear(-INFINITY);
#pragma unroll 1
    for (uint32_t begin = warp; begin < parts.count; begin += kWarps * kBatch) {
      Quad batch[kBatch];
#pragma unroll
      for (uint32_t b = 0; b < kBatch; ++b) {
        const Part part = parts.part(min(begin + b * kWarps, parts.count - 1));
        batch[b].largest = __ldcg(part.largest(h));
        batch[b].weight = __ldcg(part.weight(h));
        batch[b].sums = __ldcg(reinterpret_cast<const float4*>(part.sums() + i * 4));
      }
#pragma unroll
      for (uint32_t b = 0; b < kBatch; ++b)
        if (begin + b * kWarps >= parts.count) batch[b].largest = -INFINITY;
      sum.add(batch);
    }
    *reinterpret_cast<float4*>(exchange.sums(warp, h) + i % kQuads * 4) = sum.sums;
    if (i % kQuads == 0) {
      exchange.largest(warp)[h] = sum.largest;
      exchange.weight(warp)[h] = sum.weight;
    }
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

// ---- clusters ----

__device__ __forceinline__ uint32_t cluster_rank() {
  uint32_t rank = 0;
#if __CUDA_ARCH__ >= 900
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
#endif
  return rank;
}
// All threads of the cluster come to both; what they wrote before one's arrival can be seen after
// the other's wait.
__device__ __forceinline__ void cluster_arrive() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
#endif
}
__device__ __forceinline__ void cluster_wait() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
#endif
}
// What block `rank` of the cluster has where this block has `address`.
__device__ __forceinline__ uint32_t cluster_address(uint32_t address, uint32_t rank) {
  uint32_t other = address;
#if __CUDA_ARCH__ >= 900
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(other) : "r"(address), "r"(rank));
#endif
  return other;
}
__device__ __forceinline__ void store_cluster(uint32_t address, const Quad& quad) {
#if __CUDA_ARCH__ >= 900
  asm volatile("st.shared::cluster.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(address), "f"(quad.sums.x),
               "f"(quad.sums.y), "f"(quad.sums.z), "f"(quad.sums.w)
               : "memory");
  asm volatile("st.shared::cluster.v2.f32 [%0], {%1, %2};" ::"r"(address + 16), "f"(quad.largest),
               "f"(quad.weight)
               : "memory");
#else
  (void)address, (void)quad;
#endif
}

constexpr uint32_t kQuadStride = 8;  // floats of a quad in `received`

// Each block of the cluster gets a share of the quads from all, and adds and writes those.
template <int kLength>
__device__ __forceinline__ void merge_cluster(const AttentionKernelArgs& args, const Heads& heads,
                                              const Exchange<kLength>& exchange) {
  const uint32_t blocks = args.plan.cluster_blocks;
  const uint32_t quads = heads.count * (kLength / 4);
  const uint32_t share = (quads + blocks - 1) / blocks;
  const uint32_t rank = cluster_rank();
  const uint32_t received = shared_address(exchange.received);
  __syncthreads();
  cluster_wait();  // all have begun
#pragma unroll 1
  for (uint32_t i = threadIdx.x; i < quads; i += kBlockThreads) {
    const Quad quad = merge_warps<kLength>(exchange, i, -INFINITY);
    store_cluster(cluster_address(received, i / share) +
                      (rank * share + i % share) * (kQuadStride * sizeof(float)),
                  quad);
  }
  cluster_arrive();
  cluster_wait();
  const uint32_t i = rank * share + threadIdx.x;
  if (threadIdx.x >= share || i >= quads) return;
  Quad sum;
  sum.clear(sink_of(args, heads.first + i / (kLength / 4)));
  constexpr uint32_t kBatch = 8;
#pragma unroll 1
  for (uint32_t begin = 0; begin < blocks; begin += kBatch) {
    Quad batch[kBatch];
#pragma unroll
    for (uint32_t b = 0; b < kBatch; ++b) {
      const float* from =
          exchange.received + (min(begin + b, blocks - 1) * share + threadIdx.x) * kQuadStride;
      batch[b].sums = *reinterpret_cast<const float4*>(from);
      batch[b].largest = begin + b < blocks ? from[4] : -INFINITY;
      batch[b].weight = from[5];
    }
    sum.add(batch);
  }
  write_quad<kLength>(args, heads, i, sum);
}

// Adds up the block's warps; writes the result, or a part of it.
template <int kLength, KvFormat kFormat, bool kExact>
__device__ __forceinline__ void finish_segment(const AttentionKernelArgs& args,
                                               const Segment& segment, const Heads& heads,
                                               const DecodeStart& start,
                                               const Exchange<kLength>& exchange,
                                               const WarpSums<kLength>& warp_sums) {
  __shared__ bool is_last;
  constexpr uint32_t kQuads = kLength / 4;
  const uint32_t lane = threadIdx.x % 32;
  const uint32_t warp = threadIdx.x / 32;

#pragma unroll
  for (int j = 0; j < 2; ++j) {
    float weight = warp_sums.weight[j];
#pragma unroll
    for (int lanes = 4; lanes < 32; lanes *= 2) weight += __shfl_xor_sync(~0u, weight, lanes);
    if (lane < 4) {
      exchange.largest(warp)[lane * 2 + j] = warp_sums.largest[j];
      exchange.weight(warp)[lane * 2 + j] = weight;
    }
  }
#pragma unroll
  for (int i = 0; i < kLength / 16; ++i)
#pragma unroll
    for (int j = 0; j < 4; ++j)
      exchange.sums(
          warp,
          lane % 4 * 2 + j % 2)[StepTile<kLength, kFormat, kExact>::sum_element(i, j / 2, lane)] =
          warp_sums.values[i][j];
  if (args.plan.cluster_blocks != 0) {
    merge_cluster<kLength>(args, heads, exchange);
    return;
  }
  const bool is_whole = segment.unit_end - segment.unit_begin == segment.row_units;
  const PartList parts(args, segment, start);
  const Part part = parts.part(parts.own);
  __syncthreads();

#pragma unroll 1
  for (uint32_t i = threadIdx.x; i < heads.count * kQuads; i += kBlockThreads) {
    const uint32_t h = i / kQuads;
    const float sink = is_whole ? sink_of(args, heads.first + h) : -INFINITY;
    const Quad quad = merge_warps<kLength>(exchange, i, sink);
    if (is_whole) {
      write_quad<kLength>(args, heads, i, quad);
      continue;
    }
    *reinterpret_cast<float4*>(part.sums() + i * 4) = quad.sums;
    if (i % kQuads == 0) {
      *part.largest(h) = quad.largest;
      *part.weight(h) = quad.weight;
    }
  }
  __syncthreads();  // the exchange is free; the part is written
  if (is_whole) return;
  if (threadIdx.x == 0) {
    is_last = add_to_counter(args.plan.counters + parts.counter) == parts.count - 1;
    if (is_last) args.plan.counters[parts.counter] = 0;
  }
  __syncthreads();
  if (!is_last) return;
  gather_parts<kLength>(parts, heads, exchange);
  __syncthreads();
#pragma unroll 1
  for (uint32_t i = threadIdx.x; i < heads.count * kQuads; i += kBlockThreads)
    write_quad<kLength>(args, heads, i,
                        merge_warps<kLength>(exchange, i, sink_of(args, heads.first + i / kQuads)));
  __syncthreads();
}

template <int kLength, KvFormat kFormat, bool kExact>
__global__ void __launch_bounds__(kBlockThreads, Places<kLength, kFormat, kExact>::kSmBlocks)
    attention_decode_kernel(const __grid_constant__ AttentionKernelArgs args) {
  extern __shared__ __align__(128) uint8_t shared[];
  using At = Places<kLength, kFormat, kExact>;
  constexpr int kStages = At::kStages;
  dependent_trigger();
  const uint32_t lane = threadIdx.x % 32;
  const uint32_t warp = threadIdx.x / 32;
  const Start start_words(args.plan, lane);
  Turns<kLength> turns;
  if (args.key != nullptr) turns.load(args.turn, lane);
  const DecodeStart start = start_words.all();
  const bool is_in_cluster = args.plan.cluster_blocks != 0 && start.units_to_end != 0;
  if (start.begin == start.end && !is_in_cluster) {
    // One block waits even when there is nothing to do: whoever waits for this kernel must know
    // those ahead of it ended too.
    if (blockIdx.x == 0) dependent_wait();
    return;
  }

  const uint32_t ring = shared_address(shared + warp * At::kWarpBytes);
  const Newcomers<kLength> newcomers{shared + At::kExchange};
  static_assert(Newcomers<kLength>::kBytes <= kWarps * At::kExchangeBytes);
  const Exchange<kLength> exchange{is_in_cluster ? shared : shared + At::kExchange,
                                   is_in_cluster ? At::kWarpBytes : At::kExchangeBytes,
                                   reinterpret_cast<float*>(shared + At::kExchange)};
  Segments segments(args, start);
  Loader<kLength, kFormat, kExact> loader(args, segments, start_words, warp, lane, ring);
  bool has_waited = false;
#pragma unroll 1
  for (uint32_t stage = 0; stage < kStages; ++stage) {
    if (!has_waited && args.key == nullptr && loader.has_newest_next()) {
      // rope_kv has written that one.
      dependent_wait();
      has_waited = true;
    }
    loader.issue(stage, 0);
  }
  Segment segment;
  if (!segments.next(&segment)) {
    // A block of a cluster that has nothing to add.
    segment = Segment{};
    segment.row = start.row;
    segment.head = start.head;
    segment.kv_head = start.head / args.plan.group_tiles;
    segment.token = start.token;
  }
  WarpSums<kLength> sums;
  Queries<kLength, kFormat, kExact> queries;
  uint32_t stage = 0;
  for (uint32_t count = 1;; ++count) {
    Steps steps;
    steps.begin(segment, warp);
    sums.clear();
    const Heads heads(args, segment);
    const uint32_t position = segments.position();
    const bool is_newest_here = args.key != nullptr && segment.end == position + 1;
    uint32_t newest_page = 0;
    if (args.key != nullptr && segment.begin < segment.end) {
      turns.find(args.turn, position);
      if (is_newest_here)
        newest_page =
            __ldcg(args.step.page_tables + uint64_t{segment.row} * args.step.page_table_stride +
                   position / kPagePositions);
    }
    if (!has_waited) dependent_wait();
    has_waited = true;
    if (segment.begin < segment.end) {
      load_heads<kLength, kFormat, kExact>(args, heads, segment.kv_head, is_newest_here, position,
                                           newest_page, turns, newcomers);
      queries.load(args, heads.count, newcomers, lane);
      const uint32_t ahead = (position / kStepRows - steps.next) / kWarps;
      if (is_newest_here && position / kStepRows >= steps.next &&
          (position / kStepRows - steps.next) % kWarps == 0 && ahead < kStages) {
        // The newest row was left out when its step was copied.
        copy_async_wait<0>();
        __syncwarp();
        const uint32_t target = ring + (stage + ahead) % kStages * At::kStageBytes;
        using Tile = StepTile<kLength, kFormat, kExact>;
        Tile::put_row(target, position % kStepRows, newcomers.row(false), args.pages, lane);
        Tile::put_row(target + Tile::kBytes, position % kStepRows, newcomers.row(true), args.pages,
                      lane);
      }
      __syncthreads();  // the exchange is free
    }
    if (is_in_cluster) cluster_arrive();  // others may write there
    for (; steps.next < steps.end; steps.next += kWarps) {
      copy_async_wait<kStages - 1>();
      __syncwarp();
      add_step<kLength, kFormat, kExact>(args, queries, segment, steps.next * kStepRows,
                                         ring + stage * At::kStageBytes, lane, &sums);
      __syncwarp();  // all lanes are done with the stage
      loader.issue(stage, count);
      stage = stage + 1 == kStages ? 0 : stage + 1;
    }
    finish_segment<kLength, kFormat, kExact>(args, segment, heads, start, exchange, sums);
    if (!segments.next(&segment)) break;
  }
  copy_async_wait<0>();
}

// ---- choice of the instance ----

struct Instance {
  void (*kernel)(AttentionKernelArgs);
  uint32_t bytes;  // of shared memory
  uint32_t sm_blocks;
};

template <int kLength, KvFormat kFormat, bool kExact>
Instance instance() {
  return {attention_decode_kernel<kLength, kFormat, kExact>,
          Places<kLength, kFormat, kExact>::kBytes, Places<kLength, kFormat, kExact>::kSmBlocks};
}

template <int kLength, bool kExact>
Instance instance_of(KvFormat format) {
  switch (format) {
    case KvFormat::kQ8_0:
      return instance<kLength, KvFormat::kQ8_0, kExact>();
    case KvFormat::kFp8E4m3:
      return instance<kLength, KvFormat::kFp8E4m3, kExact>();
    default:
      return instance<kLength, KvFormat::kF16, kExact>();
  }
}
template <int kLength>
Instance instance_of(KvFormat format, uint32_t head_length) {
  return head_length == kLength ? instance_of<kLength, true>(format)
                                : instance_of<kLength, false>(format);
}

Instance find_instance(KvFormat format, uint32_t head_length) {
  if (head_length <= 64) return instance_of<64>(format, head_length);
  if (head_length <= 128) return instance_of<128>(format, head_length);
  return instance_of<256>(format, head_length);
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
  return sm_count * find_instance(format, head_length).sm_blocks;
}

uint32_t decode_part_floats(uint32_t head_count, uint32_t kv_head_count, uint32_t head_length) {
  const uint32_t group = head_count / kv_head_count;
  return 2 * kColumns +
         (group < kDecodeGroupMax ? group : kDecodeGroupMax) * padded_length(head_length);
}

cudaError_t attention_decode_prepare(KvFormat format, uint32_t head_length, const Launch& launch) {
  if (head_length == 0 || head_length > kAttentionHeadLengthMax) return cudaErrorInvalidValue;
  const Instance instance = find_instance(format, head_length);
  const cudaError_t status =
      cudaFuncSetAttribute(instance.kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                           static_cast<int>(instance.bytes));
  if (status != cudaSuccess || launch.compute_capability < 90) return status;
  return cudaFuncSetAttribute(instance.kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1);
}

cudaError_t attention_decode(const AttentionKernelArgs& args, const Launch& launch) {
  if (args.pages.head_length == 0 || args.pages.head_length > kAttentionHeadLengthMax)
    return cudaErrorInvalidValue;
  if (args.step.row_count == 0) return cudaSuccess;
  const Instance instance = find_instance(args.pages.format, args.pages.head_length);
  return launch_kernel(launch, dim3(args.plan.max_blocks), dim3(kBlockThreads), instance.bytes,
                       args.plan.cluster_blocks, instance.kernel, args);
}

}  // namespace wcuda::kernels
