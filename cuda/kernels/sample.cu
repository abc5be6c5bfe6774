// sample: a cluster of blocks a row; each warp owns a run of consecutive tokens.
//
// Shapes: logits (…, vocabulary) f32. Bytes moved: the row's logits once; they stay in shared
// memory (kernels of older devices and of odd sizes read them again from global memory).
// Every sum is of integers and every choice is by (key, id), so that any split of the row gives the
// same bits. Rankings are cut by a radix histogram: first of the key in steps of 1/64, which
// spreads logits evenly, then of the bits of the keys in the chosen step, 11 at a time.
#include "kernels/dependent_launch.h"
#include "kernels/sample.h"
#include "kernels/sampling_math.h"
#include "kernels/step.h"

namespace wcuda::kernels {
namespace {

namespace math = wcuda::sampling;

constexpr uint32_t kBlockThreads = 512;
constexpr uint32_t kWarps = kBlockThreads / 32;
constexpr uint32_t kBlocksMax = 16;
constexpr uint32_t kAllLanes = 0xffffffffu;

constexpr uint32_t kBins = 2048;
constexpr uint32_t kBinBits = 11;
constexpr float kStepsPerUnit = 64.0f;  // of the first histogram

constexpr uint32_t kInfinityBits = 0x7f800000u;
constexpr uint32_t kNoToken = UINT32_MAX;

struct SampleParams {
  SampleArgs args;
  uint32_t segment;  // tokens a warp owns, a multiple of 4
};

// A sum of 64 bits that grows by 32-bit atomics.
struct Bin {
  uint32_t low, high;
};

// What blocks of a cluster tell each other.
struct Item {
  uint64_t sum;
  uint64_t other;
};

struct Shared {
  Item warps[kWarps];
  Item blocks[2][kBlocksMax];  // by turn: one barrier an exchange suffices
  uint64_t segments[kWarps];   // of locate
  uint64_t top[kSampleTopLogprobsMax];
  uint64_t found_before;
  uint32_t found_bin;
  uint32_t found_token;
  uint32_t top_count;
  uint32_t window_count;
};

// Dynamic shared memory: Shared, then the histograms or the penalty window, then the logits.
constexpr uint32_t kSharedBytes = (sizeof(Shared) + 127) / 128 * 128;
constexpr uint32_t kHistogramBytes = 2 * kBins * sizeof(Bin);
constexpr uint32_t kWindowBytes = kSamplePenaltyWindowMax * sizeof(uint32_t);
static_assert(kWindowBytes <= kHistogramBytes);

// ---- the cluster ----

__device__ __forceinline__ uint32_t cluster_rank() {
#if __CUDA_ARCH__ >= 900
  uint32_t rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
#else
  return 0;
#endif
}

__device__ __forceinline__ uint32_t cluster_size() {
#if __CUDA_ARCH__ >= 900
  uint32_t size;
  asm volatile("mov.u32 %0, %%cluster_nctarank;" : "=r"(size));
  return size;
#else
  return 1;
#endif
}

// Every thread of every block of the cluster; what was written to shared memory before is seen
// after.
__device__ __forceinline__ void cluster_barrier() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
#else
  __syncthreads();
#endif
}

// The same shared variable in block `rank` of the cluster.
template <class T>
__device__ __forceinline__ T* in_block(T* variable, uint32_t rank) {
#if __CUDA_ARCH__ >= 900
  uint64_t address;
  asm volatile("mapa.u64 %0, %1, %2;"
               : "=l"(address)
               : "l"(reinterpret_cast<uint64_t>(variable)), "r"(rank));
  return reinterpret_cast<T*>(address);
#else
  return variable;
#endif
}

// ---- numbers ----

// Orders floats as integers: -infinity < … < -0 < 0 < … < infinity < NaN.
__device__ __forceinline__ int32_t order(float value) {
  const int32_t bits = __float_as_int(value);
  return bits ^ ((bits >> 31) & 0x7fffffff);
}
__device__ __forceinline__ float unorder(int32_t key) {
  return __int_as_float(key ^ ((key >> 31) & 0x7fffffff));
}

// math::weight(p) in one conversion: p * 2^38 is exact.
__device__ __forceinline__ uint64_t weight(float p) { return __float2ull_rn(p * 0x1p38f); }

__device__ __forceinline__ uint64_t warp_sum(uint64_t value) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) value += __shfl_xor_sync(kAllLanes, value, step);
  return value;
}
// The sum of values below 2^39 over the warp, faster.
__device__ __forceinline__ uint64_t warp_sum_small(uint64_t value) {
#if __CUDA_ARCH__ >= 800
  const uint32_t low = __reduce_add_sync(kAllLanes, static_cast<uint32_t>(value) & 0x3ffffffu);
  const uint32_t high = __reduce_add_sync(kAllLanes, static_cast<uint32_t>(value >> 26));
  return (uint64_t{high} << 26) + low;
#else
  return warp_sum(value);
#endif
}

// ---- a row ----

// A warp's view of the row. Values are in shared memory, or in global memory: the logits, or the
// scratch row where bias, mask and penalties go.
template <bool kIsShared>
struct Row {
  const SampleParams* params;
  SampleRow row;
  Shared* shared;
  Bin* histograms;                  // (2, kBins)
  uint32_t* window;                 // (kSamplePenaltyWindowMax) in place of the histograms
  float* values;                    // of the block's tokens, at id - block_begin
  uint32_t block_begin, block_end;  // ids
  uint32_t warp_begin, warp_end;    // ids
  uint32_t rank, size;
  uint32_t turn;       // of Shared::blocks
  uint32_t histogram;  // the one that is zero

  __device__ uint32_t warp() const { return threadIdx.x / 32; }
  __device__ uint32_t lane() const { return threadIdx.x % 32; }
  __device__ float value(uint32_t id) const { return values[id - block_begin]; }

  // visit(id, logit) for the warp's tokens, a lane each.
  template <class Visit>
  __device__ __forceinline__ void for_each(Visit visit) const {
#pragma unroll 4
    for (uint32_t id = warp_begin + lane(); id < warp_end; id += 32) visit(id, value(id));
  }

  // Every block's item, on every block: (size). `item` counts on thread 0.
  __device__ const Item* exchange(Item item) {
    turn ^= 1;
    if (warp() == 0) {
      item.sum = __shfl_sync(kAllLanes, item.sum, 0);
      item.other = __shfl_sync(kAllLanes, item.other, 0);
      if (lane() < size) *in_block(&shared->blocks[turn][rank], lane()) = item;
    }
    cluster_barrier();
    return shared->blocks[turn];
  }

  // Combines an item a warp (that of lane 0) over the cluster.
  template <class Join>
  __device__ Item reduce(Item item, Item neutral, Join join) {
    if (lane() == 0) shared->warps[warp()] = item;
    __syncthreads();
    if (warp() == 0) {
      item = lane() < kWarps ? shared->warps[lane()] : neutral;
      item = warp_join(item, join);
    }
    const Item* const items = exchange(item);
    return warp_join(lane() < size ? items[lane()] : neutral, join);
  }
  template <class Join>
  __device__ Item warp_join(Item item, Join join) const {
#pragma unroll
    for (int step = 16; step > 0; step /= 2) {
      Item from;
      from.sum = __shfl_xor_sync(kAllLanes, item.sum, step);
      from.other = __shfl_xor_sync(kAllLanes, item.other, step);
      item = join(item, from);
    }
    return item;
  }
};

// The largest of what threads have seen, as order(value); INT32_MAX where one was NaN or +infinity.
struct Largest {
  float max = -__builtin_inff();
  bool is_bad = false;
  __device__ __forceinline__ void see(float value) {
    max = fmaxf(max, value);
    is_bad |= !(value < __builtin_inff());
  }
  __device__ int32_t key() const { return is_bad ? INT32_MAX : order(max); }
};

template <bool kIsShared>
__device__ int32_t cluster_largest(Row<kIsShared>& r, const Largest& seen) {
  int32_t key = seen.key();
#if __CUDA_ARCH__ >= 800
  key = __reduce_max_sync(kAllLanes, key);
#else
  for (int step = 16; step > 0; step /= 2) key = max(key, __shfl_xor_sync(kAllLanes, key, step));
#endif
  // Shifted to be unsigned; -NaN is never among them.
  const Item item{0, static_cast<uint64_t>(static_cast<int64_t>(key) + (int64_t{1} << 31))};
  const Item largest = r.reduce(item, Item{0, 0}, [](const Item& a, const Item& b) {
    return Item{0, a.other > b.other ? a.other : b.other};
  });
  return static_cast<int32_t>(static_cast<int64_t>(largest.other) - (int64_t{1} << 31));
}

// Reads the warp's logits into place.
template <bool kIsShared>
__device__ Largest load_logits(const Row<kIsShared>& r, const float* logits, bool copies) {
  Largest seen;
  if (r.params->args.vocabulary % 4 == 0) {
    const auto* const source = reinterpret_cast<const float4*>(logits);
    auto* const target = reinterpret_cast<float4*>(r.values);
    const uint32_t begin = r.block_begin / 4;
#pragma unroll 8
    for (uint32_t i = r.warp_begin / 4 + r.lane(); i < r.warp_end / 4; i += 32) {
      const float4 four = source[i];
      seen.see(four.x);
      seen.see(four.y);
      seen.see(four.z);
      seen.see(four.w);
      if (copies) target[i - begin] = four;
    }
    return seen;
  }
#pragma unroll 4
  for (uint32_t id = r.warp_begin + r.lane(); id < r.warp_end; id += 32) {
    const float value = logits[id];
    seen.see(value);
    if (copies) r.values[id - r.block_begin] = value;
  }
  return seen;
}

// ---- rules 2 and 3: bias, mask, penalties ----

__device__ inline bool has_penalty(const SampleRow& row) {
  return (row.repetition_penalty != 0.0f && row.repetition_penalty != 1.0f) ||
         row.frequency_penalty != 0.0f || row.presence_penalty != 0.0f;
}

template <bool kIsShared>
__device__ void apply_bias_and_mask(const Row<kIsShared>& r) {
  const SampleArgs& args = r.params->args;
  for (uint32_t i = threadIdx.x; i < r.row.bias_count; i += kBlockThreads) {
    const auto id = static_cast<uint32_t>(args.bias_tokens[r.row.bias_first + i]);
    if (id < r.block_begin || id >= r.block_end) continue;
    float& value = r.values[id - r.block_begin];
    value = math::add(value, args.bias_values[r.row.bias_first + i]);
  }
  __syncthreads();
  if (r.row.mask_row == kNoMask) return;
  const uint32_t* const mask =
      args.masks + uint64_t{r.row.mask_row} * ((args.vocabulary + 31) / 32);
  for (uint32_t id = r.warp_begin + r.lane(); id < r.warp_end; id += 32)
    if (!(mask[id / 32] >> (id % 32) & 1)) r.values[id - r.block_begin] = -__builtin_inff();
  __syncthreads();
}

// Sorts window[0 … count - 1]; count is a power of two.
__device__ inline void block_sort(uint32_t* window, uint32_t count) {
  for (uint32_t run = 2; run <= count; run *= 2) {
    for (uint32_t step = run / 2; step > 0; step /= 2) {
      for (uint32_t pair = threadIdx.x; pair < count / 2; pair += kBlockThreads) {
        const uint32_t low = pair / step * step * 2 + pair % step;
        const uint32_t high = low + step;
        const uint32_t a = window[low], b = window[high];
        if ((a > b) == ((low & run) == 0)) {
          window[low] = b;
          window[high] = a;
        }
      }
      __syncthreads();
    }
  }
}

template <bool kIsShared>
__device__ void apply_penalties(const Row<kIsShared>& r) {
  const SampleRow& row = r.row;
  const SampleArgs& args = r.params->args;
  const uint32_t last_n =
      min(row.penalty_last_n ? row.penalty_last_n : 64u, kSamplePenaltyWindowMax);
  const uint32_t first = max(row.penalty_from, row.position - min(row.position, last_n));
  const float repetition = row.repetition_penalty != 0.0f ? row.repetition_penalty : 1.0f;
  const int32_t* const history = args.history + uint64_t{row.sequence_slot} * args.history_stride;

  if (threadIdx.x == 0) r.shared->window_count = 0;
  __syncthreads();
  for (uint32_t i = first + threadIdx.x; i < row.position; i += kBlockThreads) {
    const auto id = static_cast<uint32_t>(history[i]);
    if (id >= r.block_begin && id < r.block_end)
      r.window[atomicAdd(&r.shared->window_count, 1u)] = id;
  }
  __syncthreads();
  const uint32_t count = r.shared->window_count;
  uint32_t sorted = 1;
  while (sorted < count) sorted *= 2;
  for (uint32_t i = count + threadIdx.x; i < sorted; i += kBlockThreads) r.window[i] = kNoToken;
  __syncthreads();
  block_sort(r.window, sorted);
  for (uint32_t i = threadIdx.x; i < count; i += kBlockThreads) {
    const uint32_t id = r.window[i];
    if (i > 0 && r.window[i - 1] == id) continue;
    uint32_t low = i + 1, high = count;  // the first that differs is in low … high
    while (low < high) {
      const uint32_t middle = (low + high) / 2;
      if (r.window[middle] == id)
        low = middle + 1;
      else
        high = middle;
    }
    float logit = r.values[id - r.block_begin];
    logit = logit > 0.0f ? math::div(logit, repetition) : math::mul(logit, repetition);
    const float frequency = math::mul(static_cast<float>(low - i), row.frequency_penalty);
    r.values[id - r.block_begin] = math::sub(math::sub(logit, frequency), row.presence_penalty);
  }
  __syncthreads();
}

// ---- rankings ----

// What a ranking keeps: keys below `key`, and those equal to it up to `id`.
struct Cutoff {
  uint32_t key = UINT32_MAX;
  uint32_t id = UINT32_MAX;
  __device__ bool keeps(uint32_t other_key, uint32_t other_id) const {
    return other_key < key || (other_key == key && other_id <= id);
  }
};

__device__ __forceinline__ void add_to(Bin* bin, uint64_t amount) {
  const auto low = static_cast<uint32_t>(amount);
  auto high = static_cast<uint32_t>(amount >> 32);
  const uint32_t before = atomicAdd(&bin->low, low);
  high += before + low < before;
  if (high != 0) atomicAdd(&bin->high, high);
}

__device__ __forceinline__ uint64_t total_of(const Bin& bin) {
  return (uint64_t{bin.high} << 32) + bin.low;
}

// The first token, by ascending id, at which the sum of measure(id, logit) reaches goal(total),
// which is 1 … total; and the total. Every warp of the cluster learns the block that holds it; the
// token is known to its finder alone, which calls found(id, logit) in one thread.
template <bool kIsShared, class Measure, class Goal, class Found>
__device__ void locate(Row<kIsShared>& r, Measure measure, Goal goal_of, Found found) {
  uint64_t sum = 0;
  r.for_each([&](uint32_t id, float logit) { sum += measure(id, logit); });
  sum = warp_sum(sum);
  if (r.lane() == 0) r.shared->segments[r.warp()] = sum;
  __syncthreads();
  uint64_t block_sum = 0;
  if (r.warp() == 0) block_sum = warp_sum(r.lane() < kWarps ? r.shared->segments[r.lane()] : 0);
  const Item* const items = r.exchange(Item{block_sum, 0});
  uint64_t before = 0, total = 0;
  for (uint32_t i = 0; i < r.size; ++i) {
    if (i == r.rank) before = total;
    total += items[i].sum;
  }
  const uint64_t goal = goal_of(total);
  for (uint32_t i = 0; i < r.warp(); ++i) before += r.shared->segments[i];
  if (before >= goal || before + sum < goal) return;
  for (uint32_t first = r.warp_begin; first < r.warp_end; first += 32) {
    const uint32_t id = first + r.lane();
    const bool is_in = id < r.warp_end;
    const float logit = is_in ? r.value(id) : 0.0f;
    const uint64_t own = is_in ? measure(id, logit) : 0;
    const uint64_t step_sum = warp_sum_small(own);
    if (before + step_sum < goal) {
      before += step_sum;
      continue;
    }
    uint64_t prefix = own;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
      const uint64_t from = __shfl_up_sync(kAllLanes, prefix, step);
      if (r.lane() >= static_cast<uint32_t>(step)) prefix += from;
    }
    prefix += before;
    if (prefix >= goal && prefix - own < goal) found(id, logit);
    return;
  }
}

// The bin of the cluster's histogram in which the running sum reaches needed_of(total), and the sum
// before it. Leaves the histogram of the next turn zero.
template <bool kIsShared, class Needed>
__device__ uint64_t find_bin(Row<kIsShared>& r, Needed needed_of, uint32_t* bin, uint64_t* before,
                             uint64_t* in_bin) {
  Bin* const own = r.histograms + r.histogram * kBins;
  r.histogram ^= 1;
  Bin* const next = r.histograms + r.histogram * kBins;
  cluster_barrier();
  for (uint32_t i = threadIdx.x; i < kBins; i += kBlockThreads) next[i] = Bin{0, 0};

  // Each block adds up its share of the bins, in place: no other block reads that share here.
  const uint32_t share = kBins / r.size;
  uint64_t sum = 0;
  for (uint32_t i = threadIdx.x; i < share; i += kBlockThreads) {
    Bin* const mine = own + r.rank * share + i;
    uint64_t bin_sum = 0;
#pragma unroll 4
    for (uint32_t other = 0; other < r.size; ++other) bin_sum += total_of(*in_block(mine, other));
    *mine = Bin{static_cast<uint32_t>(bin_sum), static_cast<uint32_t>(bin_sum >> 32)};
    sum += bin_sum;
  }
  sum = warp_sum(sum);
  if (r.lane() == 0) r.shared->segments[r.warp()] = sum;
  __syncthreads();
  if (r.warp() == 0) sum = warp_sum(r.lane() < kWarps ? r.shared->segments[r.lane()] : 0);
  const Item* const items = r.exchange(Item{sum, 0});

  uint64_t total = 0;
  for (uint32_t i = 0; i < r.size; ++i) total += items[i].sum;
  const uint64_t needed = needed_of(total);
  if (needed == 0 || needed > total) return total;  // nothing to cut, the same for all
  if (r.warp() == 0) {
    uint64_t passed = 0;
    uint32_t owner = 0;
    while (passed + items[owner].sum < needed) passed += items[owner++].sum;
    const Bin* const bins = in_block(own + owner * share, owner);
    const uint32_t part = share / 32;  // bins a lane
    uint64_t part_sum = 0;
    for (uint32_t i = 0; i < part; ++i) part_sum += total_of(bins[r.lane() * part + i]);
    uint64_t prefix = part_sum;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
      const uint64_t from = __shfl_up_sync(kAllLanes, prefix, step);
      if (r.lane() >= static_cast<uint32_t>(step)) prefix += from;
    }
    passed += prefix - part_sum;
    if (passed < needed && passed + part_sum >= needed) {
      uint32_t at = r.lane() * part;
      while (passed + total_of(bins[at]) < needed) passed += total_of(bins[at++]);
      r.shared->found_bin = owner * share + at;
      r.shared->found_before = passed;
      r.shared->top[0] = total_of(bins[at]);
    }
  }
  __syncthreads();
  *bin = r.shared->found_bin;
  *before = r.shared->found_before;
  *in_bin = r.shared->top[0];
  __syncthreads();
  return total;
}

// The shortest beginning of the ranking by ascending (key, id) whose measure reaches
// needed_of(total); everything where that is 0 or above the total. rank.key(id, logit): bits of a
// float >= 0, or kNotRanked. rank.measure(logit): at least 1. rank.tie(key): the measure that all
// of this key have, 0 if they differ. Returns the total.
constexpr uint32_t kNotRanked = UINT32_MAX;
template <bool kIsShared, class Rank, class Needed>
__device__ uint64_t select(Row<kIsShared>& r, const Rank& rank, Needed needed_of, Cutoff* cutoff) {
  *cutoff = Cutoff{};
  Bin* histogram = r.histograms + r.histogram * kBins;
  r.for_each([&](uint32_t id, float logit) {
    const uint32_t key = rank.key(id, logit);
    if (key == kNotRanked) return;
    const uint32_t bin = __float2uint_rz(__uint_as_float(key) * kStepsPerUnit);
    add_to(&histogram[min(bin, kBins - 1)], rank.measure(logit));
  });
  uint32_t bin = 0;
  uint64_t before = 0, in_bin = 0, needed = 0;
  const uint64_t total = find_bin(
      r, [&](uint64_t sum) { return needed = needed_of(sum); }, &bin, &before, &in_bin);
  if (needed == 0 || needed > total) return total;

  uint32_t low = __float_as_uint(static_cast<float>(bin) / kStepsPerUnit);
  uint32_t high = bin + 1 == kBins
                      ? kInfinityBits
                      : __float_as_uint(static_cast<float>(bin + 1) / kStepsPerUnit) - 1;
  while (low < high) {
    const uint32_t bits = 32 - __clz(high - low);
    const uint32_t shift = bits > kBinBits ? bits - kBinBits : 0;
    histogram = r.histograms + r.histogram * kBins;
    r.for_each([&](uint32_t id, float logit) {
      const uint32_t key = rank.key(id, logit);
      if (key < low || key > high) return;
      add_to(&histogram[(key - low) >> shift], rank.measure(logit));
    });
    uint64_t passed = 0;
    find_bin(
        r, [&](uint64_t) { return needed - before; }, &bin, &passed, &in_bin);
    before += passed;
    low += bin << shift;
    high = min(high, low + (1u << shift) - 1);
  }
  cutoff->key = low;
  if (needed - before + rank.tie(low) > in_bin) return total;  // all of this key
  if (threadIdx.x == 0) r.shared->found_token = 0;
  __syncthreads();
  locate(
      r,
      [&](uint32_t id, float logit) {
        return rank.key(id, logit) == low ? rank.measure(logit) : 0;
      },
      [&](uint64_t) { return needed - before; },
      [&](uint32_t id, float) {
        for (uint32_t i = 0; i < r.size; ++i) *in_block(&r.shared->found_token, i) = id;
      });
  cluster_barrier();
  cutoff->id = r.shared->found_token;
  return total;
}

// Tokens that may still be drawn.
struct Candidates {
  float max;
  float temperature;
  Cutoff by_y;
  Cutoff by_typical;
  float mean = -1.0f;  // of y, for typical; negative: that filter is off
  float floor = 0.0f;  // of min-p

  __device__ __forceinline__ float y(float logit) const {
    const float distance = math::sub(max, logit);
    return fabsf(temperature == 1.0f ? distance : math::div(distance, temperature));
  }
  __device__ __forceinline__ uint32_t typical_key(float y_value) const {
    return __float_as_uint(fabsf(math::sub(y_value, mean)));
  }
  // math::has_weight(exp_negative(y)); ln 2^39 = 27.03.
  __device__ __forceinline__ static bool has_weight(float y_value) {
    if (y_value < 27.0f) return true;
    if (!(y_value < 27.1f)) return false;
    return math::has_weight(math::exp_negative(y_value));
  }
  // All but min-p, which comes last.
  __device__ __forceinline__ bool holds(uint32_t id, float y_value) const {
    if (!has_weight(y_value) || !by_y.keeps(__float_as_uint(y_value), id)) return false;
    return mean < 0.0f || by_typical.keeps(typical_key(y_value), id);
  }
};

struct RankByCount {  // top-k
  Candidates candidates;
  __device__ __forceinline__ uint32_t key(uint32_t id, float logit) const {
    const float y = candidates.y(logit);
    return candidates.holds(id, y) ? __float_as_uint(y) : kNotRanked;
  }
  __device__ uint64_t measure(float) const { return 1; }
  __device__ uint64_t tie(uint32_t) const { return 1; }
};

struct RankByWeight {  // top-p
  Candidates candidates;
  __device__ __forceinline__ uint32_t key(uint32_t id, float logit) const {
    const float y = candidates.y(logit);
    return candidates.holds(id, y) ? __float_as_uint(y) : kNotRanked;
  }
  __device__ __forceinline__ uint64_t measure(float logit) const {
    return weight(math::exp_negative(candidates.y(logit)));
  }
  __device__ uint64_t tie(uint32_t key) const {
    return weight(math::exp_negative(__uint_as_float(key)));
  }
};

struct RankByTypical {
  Candidates candidates;  // with the mean, before this filter cuts
  __device__ __forceinline__ uint32_t key(uint32_t id, float logit) const {
    const float y = candidates.y(logit);
    return candidates.holds(id, y) ? candidates.typical_key(y) : kNotRanked;
  }
  __device__ __forceinline__ uint64_t measure(float logit) const {
    return weight(math::exp_negative(candidates.y(logit)));
  }
  __device__ uint64_t tie(uint32_t) const { return 0; }
};

struct RankByLogprob {
  float max;
  double log_sum;
  __device__ __forceinline__ uint32_t key(uint32_t, float logit) const {
    if (!(logit > -__builtin_inff())) return kNotRanked;
    return __float_as_uint(fabsf(math::log_probability(logit, max, log_sum)));
  }
  __device__ uint64_t measure(float) const { return 1; }
  __device__ uint64_t tie(uint32_t) const { return 1; }
};

__device__ inline Item join_sums(const Item& a, const Item& b) {
  return Item{a.sum + b.sum, a.other + b.other};
}

// Rule 6.
template <bool kIsShared>
__device__ void apply_filters(Row<kIsShared>& r, Candidates* candidates) {
  const SampleRow& row = r.row;
  if (row.top_k != 0) {
    Cutoff cutoff;
    select(
        r, RankByCount{*candidates},
        [&](uint64_t total) { return row.top_k < total ? row.top_k : uint64_t{0}; }, &cutoff);
    candidates->by_y = cutoff;
  }
  if (row.typical_p != 0.0f && row.typical_p < 1.0f) {
    Item sums{0, 0};  // of p and of y * p
    r.for_each([&](uint32_t id, float logit) {
      const float y = candidates->y(logit);
      if (!candidates->holds(id, y)) return;
      const float p = math::exp_negative(y);
      sums.sum += weight(p);
      sums.other += weight(math::mul(y, p));
    });
    sums = r.warp_join(sums, join_sums);
    sums = r.reduce(sums, Item{0, 0}, join_sums);
    candidates->mean = static_cast<float>(
        math::div(static_cast<double>(sums.other), static_cast<double>(sums.sum)));
    Cutoff cutoff;
    select(
        r, RankByTypical{*candidates},
        [&](uint64_t total) { return math::share_of(row.typical_p, total); }, &cutoff);
    candidates->by_typical = cutoff;
  }
  if (row.top_p != 0.0f && row.top_p < 1.0f) {
    Cutoff cutoff;
    select(
        r, RankByWeight{*candidates},
        [&](uint64_t total) { return math::share_of(row.top_p, total); }, &cutoff);
    candidates->by_y = cutoff;
  }
  if (row.min_p != 0.0f) {
    uint32_t largest = 0;  // bits of a float >= 0
    r.for_each([&](uint32_t id, float logit) {
      const float y = candidates->y(logit);
      if (candidates->holds(id, y)) largest = max(largest, __float_as_uint(math::exp_negative(y)));
    });
    const auto join = [](const Item& a, const Item& b) {
      return Item{a.sum > b.sum ? a.sum : b.sum, 0};
    };
    const Item item = r.warp_join(Item{largest, 0}, join);
    const Item all = r.reduce(item, Item{0, 0}, join);
    candidates->floor = math::mul(row.min_p, __uint_as_float(static_cast<uint32_t>(all.sum)));
  }
}

// ---- results ----

// One thread of the cluster, when nobody reads the row's status or history any more.
template <bool kIsShared>
__device__ void finish(const Row<kIsShared>& r, int32_t status, uint32_t token, float logprob,
                       uint32_t top_count) {
  const SampleArgs& args = r.params->args;
  const uint32_t index = blockIdx.y;
  const bool is_ok = status == kRowOk;
  args.statuses[index] = status;
  args.outputs[index] = SampleOutput{status, is_ok ? static_cast<int32_t>(token) : -1,
                                     is_ok ? logprob : 0.0f, is_ok ? top_count : 0};
  if (is_ok)
    args.history[uint64_t{r.row.sequence_slot} * args.history_stride + r.row.position] =
        static_cast<int32_t>(token);
}

// Rule 4's alternatives; returns how many.
template <bool kIsShared>
__device__ uint32_t report_top(Row<kIsShared>& r, float max, double log_sum) {
  const SampleArgs& args = r.params->args;
  const uint32_t wanted = min(min(r.row.top_logprobs, args.top_stride), kSampleTopLogprobsMax);
  const RankByLogprob rank{max, log_sum};
  Cutoff cutoff;
  const uint64_t total = select(
      r, rank, [&](uint64_t sum) { return wanted < sum ? wanted : uint64_t{0}; }, &cutoff);
  const uint32_t count = wanted < total ? wanted : static_cast<uint32_t>(total);
  if (threadIdx.x == 0) r.shared->top_count = 0;
  cluster_barrier();
  uint32_t* const counter = in_block(&r.shared->top_count, 0);
  uint64_t* const list = in_block(&r.shared->top[0], 0);
  r.for_each([&](uint32_t id, float logit) {
    const uint32_t key = rank.key(id, logit);
    if (key == kNotRanked || !cutoff.keeps(key, id)) return;
    list[atomicAdd(counter, 1u)] = uint64_t{key} << 32 | id;
  });
  cluster_barrier();
  if (r.rank == 0 && threadIdx.x < count) {
    const uint64_t own = r.shared->top[threadIdx.x];
    uint32_t place = 0;
    for (uint32_t i = 0; i < count; ++i) place += r.shared->top[i] < own;
    const uint64_t at = uint64_t{blockIdx.y} * args.top_stride + place;
    args.top_tokens[at] = static_cast<int32_t>(static_cast<uint32_t>(own));
    args.top_logprobs[at] = 0.0f - __uint_as_float(static_cast<uint32_t>(own >> 32));
  }
  __syncthreads();  // the list's place is used again
  return count;
}

template <bool kHasFilters, bool kIsShared>
__global__ void __launch_bounds__(kBlockThreads, 2) sample_kernel(const SampleParams params) {
  extern __shared__ __align__(128) uint8_t memory[];
  dependent_trigger();
  const SampleArgs& args = params.args;
  Row<kIsShared> r;
  r.params = &params;
  r.shared = reinterpret_cast<Shared*>(memory);
  r.histograms = reinterpret_cast<Bin*>(memory + kSharedBytes);
  r.window = reinterpret_cast<uint32_t*>(memory + kSharedBytes);
  r.rank = cluster_rank();
  r.size = cluster_size();
  r.turn = 0;
  r.histogram = 0;
  const uint32_t chunk = kWarps * params.segment;
  r.block_begin = min(r.rank * chunk, args.vocabulary);
  r.block_end = min(r.block_begin + chunk, args.vocabulary);
  r.warp_begin = min(r.block_begin + r.warp() * params.segment, args.vocabulary);
  r.warp_end = min(r.warp_begin + params.segment, args.vocabulary);
  dependent_wait();

  const uint32_t index = blockIdx.y;
  r.row = args.rows[index];
  const int32_t status = args.statuses[index];
  if (r.row.is_sampled == 0 || status != kRowOk) {  // the same for the whole cluster
    if (r.rank == 0 && threadIdx.x == 0) args.outputs[index] = SampleOutput{status, -1, 0.0f, 0};
    return;
  }
  const float* const logits = args.logits + uint64_t{r.row.logits_row} * args.vocabulary;
  const bool is_penalized = has_penalty(r.row);
  const bool is_changed = is_penalized || r.row.bias_count > 0 || r.row.mask_row != kNoMask;
  if (kIsShared)
    r.values = reinterpret_cast<float*>(memory + kSharedBytes +
                                        (kHasFilters ? kHistogramBytes : kWindowBytes));
  else if (is_changed)
    r.values =
        static_cast<float*>(args.scratch) + uint64_t{index} * args.vocabulary + r.block_begin;
  else
    r.values = const_cast<float*>(logits) + r.block_begin;  // only read

  Largest seen = load_logits(r, logits, kIsShared || is_changed);
  if (is_changed) {
    const bool was_bad = seen.is_bad;
    __syncthreads();
    apply_bias_and_mask(r);
    if (is_penalized) apply_penalties(r);
    seen = Largest{};
    seen.is_bad = was_bad;
    r.for_each([&](uint32_t, float logit) { seen.see(logit); });
  }
  if (kHasFilters)
    for (uint32_t i = threadIdx.x; i < kBins; i += kBlockThreads) r.histograms[i] = Bin{0, 0};
  // Also the block's barrier after the writes above.
  const int32_t max_key = cluster_largest(r, seen);
  const float max = unorder(max_key);
  const bool is_first = r.rank == 0 && threadIdx.x == 0;
  if (max_key >= static_cast<int32_t>(kInfinityBits)) {
    if (is_first) finish(r, kRowNotFinite, 0, 0.0f, 0);
    return;
  }
  if (max == -__builtin_inff()) {
    if (is_first) finish(r, kRowEmptyMask, 0, 0.0f, 0);
    return;
  }

  // The sum of all weights, and the lowest id of the largest logit.
  uint64_t sum = 0;
  uint32_t best = kNoToken;
  r.for_each([&](uint32_t id, float logit) {
    const float distance = math::sub(max, logit);
    sum += weight(math::exp_negative(distance));
    if (distance == 0.0f) best = min(best, id);
  });
  const auto join = [](const Item& a, const Item& b) {
    return Item{a.sum + b.sum, a.other < b.other ? a.other : b.other};
  };
  const Item item = r.warp_join(Item{sum, best}, join);
  const Item all = r.reduce(item, Item{0, kNoToken}, join);
  const double log_sum = math::log_of_weights(all.sum);

  uint32_t top_count = 0;
  if (kHasFilters && r.row.top_logprobs > 0) top_count = report_top(r, max, log_sum);
  if (r.row.temperature == 0.0f) {
    if (is_first)
      finish(r, kRowOk, static_cast<uint32_t>(all.other), math::log_probability(max, max, log_sum),
             top_count);
    return;
  }
  Candidates candidates{max, r.row.temperature, {}, {}};
  if (kHasFilters) apply_filters(r, &candidates);
  locate(
      r,
      [&](uint32_t id, float logit) -> uint64_t {
        const float y = candidates.y(logit);
        if (kHasFilters && !candidates.holds(id, y)) return 0;
        const float p = math::exp_negative(y);
        return p >= candidates.floor ? weight(p) : 0;
      },
      [&](uint64_t total) {
        return math::mul_high(math::random_bits(r.row.seed, r.row.position), total) + 1;
      },
      [&](uint32_t id, float logit) {
        finish(r, kRowOk, id, math::log_probability(logit, max, log_sum), top_count);
      });
}

// ---- the launcher ----

// Shared memory a block may have, by compute capability (CUDA programming guide, table of
// technical specifications).
uint32_t shared_bytes_max(int32_t compute_capability) {
  switch (compute_capability) {
    case 80:
    case 87:
      return 163 * 1024;
    case 90:
    case 100:
    case 103:
      return 227 * 1024;
    default:
      return 99 * 1024;
  }
}

struct Shape {
  uint32_t blocks;  // a row
  uint32_t segment;
  uint32_t shared_bytes;  // a block
  bool is_shared;
};

Shape shape_for(uint32_t vocabulary, bool has_filters, uint32_t blocks, int32_t capability) {
  Shape shape;
  shape.blocks = blocks;
  const uint32_t warps = blocks * kWarps;
  shape.segment = ((vocabulary + warps - 1) / warps + 3) / 4 * 4;
  const uint64_t base = kSharedBytes + (has_filters ? kHistogramBytes : kWindowBytes);
  const uint64_t values = uint64_t{kWarps} * shape.segment * sizeof(float);
  shape.is_shared = base + values <= shared_bytes_max(capability);
  shape.shared_bytes = static_cast<uint32_t>(shape.is_shared ? base + values : base);
  return shape;
}

// Few rows leave room for 16 blocks each; many fill the device with 8, of which two fit an SM up to
// a vocabulary of 131072. Devices without clusters have one block a row.
uint32_t default_blocks(uint32_t row_count, uint32_t vocabulary, int32_t capability) {
  if (capability < 90) return 1;
  if (capability != 90) return 8;  // 16 is an extension of that one
  return row_count <= 8 || vocabulary > 160 * 1024 ? 16 : 8;
}

}  // namespace

uint64_t sample_scratch_bytes(uint32_t max_rows, uint32_t vocabulary, int32_t compute_capability) {
  const uint32_t blocks = default_blocks(UINT32_MAX, vocabulary, compute_capability);
  const bool fits = shape_for(vocabulary, true, blocks, compute_capability).is_shared;
  return fits ? 0 : uint64_t{max_rows} * vocabulary * sizeof(float);
}

cudaError_t sample(const SampleArgs& args, const Launch& launch) {
  if (args.row_count == 0) return cudaSuccess;
  if (args.vocabulary == 0 || args.vocabulary > math::kMaxVocabulary) return cudaErrorInvalidValue;
  const uint32_t blocks = args.blocks_per_row != 0 ? args.blocks_per_row
                                                   : default_blocks(args.row_count, args.vocabulary,
                                                                    launch.compute_capability);
  const bool has_clusters = launch.compute_capability >= 90;
  if (blocks > kBlocksMax || (blocks & (blocks - 1)) != 0 || (blocks > 1 && !has_clusters))
    return cudaErrorInvalidValue;
  const Shape shape =
      shape_for(args.vocabulary, args.has_filters, blocks, launch.compute_capability);
  if (!shape.is_shared && args.scratch == nullptr) return cudaErrorInvalidValue;

  using Kernel = void (*)(SampleParams);
  const Kernel kernel =
      shape.is_shared
          ? (args.has_filters ? sample_kernel<true, true> : sample_kernel<false, true>)
          : (args.has_filters ? sample_kernel<true, false> : sample_kernel<false, false>);
  const auto* const entry = reinterpret_cast<const void*>(kernel);
  cudaError_t status = cudaFuncSetAttribute(entry, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                            static_cast<int>(shape.shared_bytes));
  if (status == cudaSuccess && blocks > 8)
    status = cudaFuncSetAttribute(entry, cudaFuncAttributeNonPortableClusterSizeAllowed, 1);
  if (status != cudaSuccess) return status;
  return launch_kernel(launch, dim3(blocks, args.row_count), dim3(kBlockThreads),
                       shape.shared_bytes, has_clusters ? blocks : 0, kernel,
                       SampleParams{args, shape.segment});
}

}  // namespace wcuda::kernels
