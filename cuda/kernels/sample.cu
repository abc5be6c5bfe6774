// sample: a cluster of blocks a row; each warp owns a run of consecutive tokens.
//
// Shapes: logits (…, vocabulary) f32. Bytes moved: the row's logits once; they stay in shared
// memory (kernels of older devices and of odd sizes read them again from global memory).
// Every sum is of integers and every choice is by (key, id), so that any split of the row gives the
// same bits.
//
// Rows that are greedy and unchanged, in a launch without filters, stay in registers
// (sample_greedy).
//
// Rankings come in two ways. Where few tokens decide (top-k, top-p, log probabilities), every block
// names a logit that enough of its threads have reached; the tokens from the least of these on go
// to the first block, which ranks them alone. Where that list would be too long or too short, a
// radix histogram over all tokens finds the cut: first of the key in steps of 1/64, which spreads
// logits evenly, then of the bits of the keys in the chosen step, 11 at a time.
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
struct __align__(16) Item {
  uint64_t sum;
  uint64_t other;
  uint32_t token;
  uint32_t count;
  uint64_t unused;
};
static_assert(sizeof(Item) == 32);

struct Shared {
  Item warps[kWarps];
  Item blocks[2][kBlocksMax];  // by turn, as the barriers
  uint64_t barriers[3];        // two of exchanges, one of the list
  uint64_t segments[kWarps];   // a sum a warp
  uint64_t top[kSampleTopLogprobsMax];
  uint64_t found_before;
  uint32_t found_bin;
  uint32_t found_token;
  uint32_t top_count;
  uint32_t window_count;
  uint32_t list_count;
};

// Dynamic shared memory: Shared, then the histograms or the penalty window, then the logits.
constexpr uint32_t kSharedBytes = (sizeof(Shared) + 127) / 128 * 128;
constexpr uint32_t kHistogramBytes = 2 * kBins * sizeof(Bin);
constexpr uint32_t kWindowBytes = kSamplePenaltyWindowMax * sizeof(uint32_t);
static_assert(kWindowBytes <= kHistogramBytes);
// The list takes the place of one histogram; another is needed to rank it.
constexpr uint32_t kListMax = kBins * sizeof(Bin) / sizeof(uint64_t);
constexpr uint32_t kListEach = kListMax / kBlockThreads;  // tokens a thread
constexpr uint32_t kBinsEach = kBins / kBlockThreads;     // bins a thread
static_assert(kListEach * kBlockThreads == kListMax && kBinsEach == 4);
constexpr uint32_t kListForTopP = 1400;    // tokens to try where top-p alone decides
constexpr uint32_t kListWantedMax = 1500;  // leaves room for those that come with the last

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
__device__ __forceinline__ void cluster_arrive() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
#endif
}
// The same, but nothing written before need be seen after.
__device__ __forceinline__ void cluster_arrive_relaxed() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
#endif
}
__device__ __forceinline__ void cluster_wait() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
#else
  __syncthreads();
#endif
}
__device__ __forceinline__ void cluster_barrier() {
  cluster_arrive();
  cluster_wait();
}

#if __CUDA_ARCH__ >= 900
__device__ __forceinline__ uint32_t shared_address(const void* variable) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(variable));
}
__device__ __forceinline__ uint32_t shared_address_in(uint32_t address, uint32_t rank) {
  uint32_t result;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(result) : "r"(address), "r"(rank));
  return result;
}
// Writes 16 bytes into another block's shared memory and counts them on its barrier.
__device__ __forceinline__ void send(uint32_t target, uint64_t a, uint64_t b, uint32_t barrier) {
  asm volatile(
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v2.b64 [%0], {%1, %2}, [%3];" ::
          "r"(target),
      "l"(a), "l"(b), "r"(barrier)
      : "memory");
}
// The same, 8 bytes.
__device__ __forceinline__ void send(uint32_t target, uint64_t a, uint32_t barrier) {
  asm volatile(
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.b64 [%0], %1, [%2];" ::"r"(
          target),
      "l"(a), "r"(barrier)
      : "memory");
}
// The one arrival of a phase that ends when `bytes` have come too.
__device__ __forceinline__ void expect_bytes(uint32_t barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
               : "memory");
}
__device__ __forceinline__ void wait_bytes(uint32_t barrier, uint32_t parity) {
  uint32_t is_done = 0;
  while (!is_done)
    asm volatile(
        "{\n .reg .pred p;\n"
        " mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], %2;\n"
        " selp.u32 %0, 1, 0, p;\n}"
        : "=r"(is_done)
        : "r"(barrier), "r"(parity)
        : "memory");
}
#endif

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

// Sums of math::weight(p) of up to 8191 values, in 32-bit arithmetic alone: p is taken apart into a
// multiple of 2^-19 and a rest of at most 2^-20, rounded to 2^-38. The bits of a float near
// 1.5 * 2^n count units of 2^(n - 23).
struct WeightSum {
  uint32_t high = 0, low = 0;
  __device__ __forceinline__ void add(float p) {
    constexpr float kHigh = 24.0f, kLow = 0x1.8p-15f;
    const float shifted = __fadd_rn(p, kHigh);
    const float rest = __fsub_rn(p, __fsub_rn(shifted, kHigh));
    high += __float_as_uint(shifted) - 0x41c00000u;
    low += __float_as_uint(__fadd_rn(rest, kLow)) - 0x38400000u;
  }
  __device__ uint64_t total() const {
    return (uint64_t{high} << 19) + static_cast<uint64_t>(int64_t{static_cast<int32_t>(low)});
  }
  // Of the warp, if it has added up to 8191 values.
  __device__ uint64_t warp_total() const {
    WeightSum all;
    all.high = __reduce_add_sync(kAllLanes, high);
    all.low = __reduce_add_sync(kAllLanes, low);
    return all.total();
  }
};
// The same of any number of values.
struct LongWeightSum {
  uint64_t sum = 0;
  __device__ __forceinline__ void add(float p) { sum += weight(p); }
  __device__ uint64_t total() const { return sum; }
};
template <bool kIsShared>
struct SumOf {
  using Type = WeightSum;
};
template <>
struct SumOf<false> {
  using Type = LongWeightSum;
};

__device__ __forceinline__ uint64_t warp_sum(uint64_t value) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) value += __shfl_xor_sync(kAllLanes, value, step);
  return value;
}
// The sum of values below 2^53 over the warp, faster.
__device__ __forceinline__ uint64_t warp_sum_small(uint64_t value) {
  const uint32_t low = __reduce_add_sync(kAllLanes, static_cast<uint32_t>(value) & 0x3ffffffu);
  const uint32_t high = __reduce_add_sync(kAllLanes, static_cast<uint32_t>(value >> 26));
  return (uint64_t{high} << 26) + low;
}
// The sum of the values of this lane and those before.
__device__ __forceinline__ uint64_t warp_prefix(uint64_t value) {
#pragma unroll
  for (uint32_t step = 1; step < 32; step *= 2) {
    const uint64_t from = __shfl_up_sync(kAllLanes, value, step);
    if (threadIdx.x % 32 >= step) value += from;
  }
  return value;
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
  uint32_t exchanges;  // so far
  uint32_t histogram;  // the one that is zero
  bool is_aligned;     // rows in global memory begin at multiples of 16 bytes

  __device__ uint32_t warp() const { return threadIdx.x / 32; }
  __device__ uint32_t lane() const { return threadIdx.x % 32; }
  __device__ float value(uint32_t id) const { return values[id - block_begin]; }
  // Gathered tokens, bits of the logit above the id; and the histogram that ranks them.
  __device__ uint64_t* list() const { return reinterpret_cast<uint64_t*>(histograms); }
  __device__ Bin* list_bins() const { return histograms + kBins; }

  // Four tokens from one that is a multiple of 4 away from the row's first.
  __device__ __forceinline__ float4 quad(const float* from) const {
    if (kIsShared || is_aligned) return *reinterpret_cast<const float4*>(from);
    return make_float4(from[0], from[1], from[2], from[3]);
  }
  // visit(id, logit) for the warp's tokens; a lane meets the same ones each time, by ascending id.
  template <uint32_t kUnroll = 1, class Visit>
  __device__ __forceinline__ void for_each(Visit visit) const {
    const float* const run = values + (warp_begin - block_begin);
    const uint32_t count = warp_end - warp_begin, quads = count / 4;
#pragma unroll kUnroll
    for (uint32_t i = lane(); i < quads; i += 32) {
      const float4 four = quad(run + 4 * i);
      const uint32_t id = warp_begin + 4 * i;
      visit(id, four.x);
      visit(id + 1, four.y);
      visit(id + 2, four.z);
      visit(id + 3, four.w);
    }
    const uint32_t last = 4 * quads + lane();  // of the vocabulary's last, at most 3
    if (last < count) visit(warp_begin + last, run[last]);
  }

  // The same tokens one by one, a quarter of the code; by other lanes.
  template <class Visit>
  __device__ __forceinline__ void for_each_singly(Visit visit) const {
#pragma unroll 1
    for (uint32_t id = warp_begin + lane(); id < warp_end; id += 32) visit(id, value(id));
  }

  // Every block's item, on every block: (size). `item` is the same in all lanes of warp 0. A block
  // barrier lies between two exchanges. kIsHalf: `sum` and `other` alone.
  template <bool kIsHalf = false>
  __device__ __forceinline__ const Item* exchange(const Item& item) {
    const uint32_t turn = exchanges % 2;
    [[maybe_unused]] const uint32_t parity = exchanges / 2 % 2;
    ++exchanges;
    Item* const items = shared->blocks[turn];
#if __CUDA_ARCH__ >= 900
    const uint32_t barrier = shared_address(&shared->barriers[turn]);
    if (warp() == 0) {
      if (lane() == 0)
        expect_bytes(barrier, static_cast<uint32_t>(size * sizeof(Item) / (kIsHalf ? 2 : 1)));
      if (lane() < size) {
        const uint32_t target = shared_address_in(shared_address(items + rank), lane());
        const uint32_t target_barrier = shared_address_in(barrier, lane());
        send(target, item.sum, item.other, target_barrier);
        if (!kIsHalf) send(target + 16, uint64_t{item.count} << 32 | item.token, 0, target_barrier);
      }
    }
    wait_bytes(barrier, parity);
#else
    if (threadIdx.x == 0) items[0] = item;
    __syncthreads();
#endif
    return items;
  }
  // Every block's `sum` and `other`, on the first block alone; only warp 0 calls, and nothing is
  // exchanged after it.
  __device__ __forceinline__ const Item* exchange_first(const Item& item) {
    const uint32_t turn = exchanges % 2;
    [[maybe_unused]] const uint32_t parity = exchanges / 2 % 2;
    Item* const items = shared->blocks[turn];
#if __CUDA_ARCH__ >= 900
    const uint32_t barrier = shared_address(&shared->barriers[turn]);
    if (lane() == 0) {
      if (rank == 0) expect_bytes(barrier, static_cast<uint32_t>(size * sizeof(Item) / 2));
      send(shared_address_in(shared_address(items + rank), 0), item.sum, item.other,
           shared_address_in(barrier, 0));
    }
    if (rank == 0) wait_bytes(barrier, parity);
#else
    if (lane() == 0) items[0] = item;
    __syncwarp();
#endif
    return items;
  }

  // Sums of `sum` and `other` and the least token over the block, in warp 0.
  __device__ Item block_join(uint64_t sum, uint64_t other, uint32_t token) const {
    Item item{};
    item.sum = warp_sum(sum);
    item.other = warp_sum(other);
    item.token = __reduce_min_sync(kAllLanes, token);
    if (lane() == 0) shared->warps[warp()] = item;
    __syncthreads();
    if (warp() == 0) {
      item = lane() < kWarps ? shared->warps[lane()] : Item{0, 0, kNoToken, 0, 0};
      item.sum = warp_sum(item.sum);
      item.other = warp_sum(item.other);
      item.token = __reduce_min_sync(kAllLanes, item.token);
    }
    return item;
  }
  // The same over the cluster; counts are added.
  __device__ Item joined(const Item* items) const {
    Item all{0, 0, kNoToken, 0, 0};
    for (uint32_t i = 0; i < size; ++i) {
      all.sum += items[i].sum;
      all.other += items[i].other;
      all.token = min(all.token, items[i].token);
      all.count += items[i].count;
    }
    return all;
  }
};

// The largest of what threads have seen, as order(value); INT32_MAX where one was NaN or +infinity.
struct Largest {
  float max = -__builtin_inff();
  __device__ __forceinline__ void see(float value) {
    asm("max.NaN.f32 %0, %0, %1;" : "+f"(max) : "f"(value));
  }
  __device__ int32_t key() const { return max < __builtin_inff() ? order(max) : INT32_MAX; }
};

// order() without a sign.
__device__ __forceinline__ uint32_t rank_of(int32_t key) {
  return static_cast<uint32_t>(key) ^ 0x80000000u;
}
__device__ __forceinline__ int32_t key_of(uint32_t rank) {
  return static_cast<int32_t>(rank ^ 0x80000000u);
}

// A value that at least `count` of the block's threads have reached: the largest such, but for its
// last bits. Every thread calls.
__device__ inline uint32_t block_threshold(uint32_t reached, uint32_t count) {
  constexpr uint32_t kLastBit = 14;
  uint32_t threshold = 0;
#pragma unroll 1
  for (uint32_t bit = 31; bit >= kLastBit; --bit) {
    const uint32_t candidate = threshold | 1u << bit;
    if (static_cast<uint32_t>(__syncthreads_count(reached >= candidate)) >= count)
      threshold = candidate;
  }
  return threshold;
}

// Reads the warp's logits, and into place where they are copied.
template <bool kIsShared>
__device__ Largest load_logits(const Row<kIsShared>& r, const float* logits, bool copies) {
  Largest seen;
  const float* const from = logits + r.warp_begin;
  float* const to = r.values + (r.warp_begin - r.block_begin);
  const uint32_t count = r.warp_end - r.warp_begin, quads = count / 4;
  const auto load = [&](uint32_t i, const float4& four) {
    seen.see(four.x);
    seen.see(four.y);
    seen.see(four.z);
    seen.see(four.w);
    if (!copies) return;
    if (kIsShared || r.is_aligned) {
      reinterpret_cast<float4*>(to)[i] = four;
    } else {
      to[4 * i] = four.x;
      to[4 * i + 1] = four.y;
      to[4 * i + 2] = four.z;
      to[4 * i + 3] = four.w;
    }
  };
  if (r.is_aligned) {
#pragma unroll 8
    for (uint32_t i = r.lane(); i < quads; i += 32)
      load(i, reinterpret_cast<const float4*>(from)[i]);
  } else {
#pragma unroll 4
    for (uint32_t i = r.lane(); i < quads; i += 32)
      load(i, make_float4(from[4 * i], from[4 * i + 1], from[4 * i + 2], from[4 * i + 3]));
  }
  const uint32_t last = 4 * quads + r.lane();
  if (last < count) {
    seen.see(from[last]);
    if (copies) to[last] = from[last];
  }
  return seen;
}

// ---- rules 2 and 3: bias, mask, penalties ----

__device__ inline bool has_filter(const SampleRow& row) {
  return row.top_k != 0 || row.min_p != 0.0f || (row.top_p != 0.0f && row.top_p < 1.0f) ||
         (row.typical_p != 0.0f && row.typical_p < 1.0f);
}

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

// Sorts values[0 … count - 1]; count is a power of two.
template <class T>
__device__ void block_sort(T* values, uint32_t count) {
  for (uint32_t run = 2; run <= count; run *= 2) {
    for (uint32_t step = run / 2; step > 0; step /= 2) {
      for (uint32_t pair = threadIdx.x; pair < count / 2; pair += kBlockThreads) {
        const uint32_t low = 2 * pair - (pair & (step - 1));
        const uint32_t high = low + step;
        const T a = values[low], b = values[high];
        if ((a > b) == ((low & run) == 0)) {
          values[low] = b;
          values[high] = a;
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
// which is 1 … total. Its finder calls found(id, logit) in one thread. `sum`: of the warp's own
// measures, the same in all lanes.
template <bool kIsShared, class Measure, class Goal, class Found>
__device__ __forceinline__ void locate_in(Row<kIsShared>& r, uint64_t sum, const Item* items,
                                          Measure measure, Goal goal_of, Found found) {
  uint64_t before = 0, total = 0;
  for (uint32_t i = 0; i < r.size; ++i) {
    if (i == r.rank) before = total;
    total += items[i].other;
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
    const uint64_t prefix = before + warp_prefix(own);
    if (prefix >= goal && prefix - own < goal) found(id, logit);
    return;
  }
}
template <bool kIsShared, class Measure, class Goal, class Found>
__device__ void locate(Row<kIsShared>& r, Measure measure, Goal goal_of, Found found) {
  uint64_t sum = 0;
  r.for_each_singly([&](uint32_t id, float logit) { sum += measure(id, logit); });
  sum = warp_sum(sum);
  if (r.lane() == 0) r.shared->segments[r.warp()] = sum;
  __syncthreads();
  Item item{};
  if (r.warp() == 0) item.other = warp_sum(r.lane() < kWarps ? r.shared->segments[r.lane()] : 0);
  locate_in(r, sum, r.exchange(item), measure, goal_of, found);
}

// How much of a ranking to keep: a sum, or a share of all.
struct Needed {
  uint64_t sum;
  float share;  // 0: the sum
  __device__ uint64_t of(uint64_t total) const {
    return share != 0.0f ? math::share_of(share, total) : sum;
  }
};

// A bin of the cluster's histogram.
struct Found {
  uint64_t total;   // of all bins
  uint64_t needed;  // of the total; 0: more than there is, and nothing was looked for
  uint64_t before;  // of the bins before
  uint64_t in_bin;
  uint32_t bin;
};

// The bin in which the running sum reaches what is needed. Leaves the histogram of the next turn
// zero.
template <bool kIsShared>
__device__ __noinline__ Found find_bin(Row<kIsShared>& r, Needed needs) {
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
  Item item{};
  if (r.warp() == 0) item.sum = warp_sum(r.lane() < kWarps ? r.shared->segments[r.lane()] : 0);
  cluster_arrive();
  const Item* const items = r.exchange(item);
  cluster_wait();  // the sums of bins are seen by all

  uint64_t total = 0;
  for (uint32_t i = 0; i < r.size; ++i) total += items[i].sum;
  const uint64_t needed = needs.of(total);
  if (needed > total) return {total, 0, 0, 0, 0};  // the same for all
  if (r.warp() == 0) {
    uint64_t passed = 0;
    uint32_t owner = 0;
    while (passed + items[owner].sum < needed) passed += items[owner++].sum;
    const Bin* const bins = in_block(own + owner * share, owner);
    const uint32_t part = share / 32;  // bins a lane
    uint64_t part_sum = 0;
    for (uint32_t i = 0; i < part; ++i) part_sum += total_of(bins[r.lane() * part + i]);
    const uint64_t prefix = warp_prefix(part_sum);
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
  const Found found{total, needed, r.shared->found_before, r.shared->top[0], r.shared->found_bin};
  __syncthreads();
  return found;
}

// The shortest beginning of the ranking by ascending (key, id) whose measure reaches what is
// needed; everything where that is above the total. rank.key(id, logit): bits of a float >= 0, or
// kNotRanked. rank.measure(logit): at least 1. rank.tie(key): the measure that all of this key
// have, 0 if they differ. Returns the total.
constexpr uint32_t kNotRanked = UINT32_MAX;
template <bool kIsShared, class Rank>
__device__ __noinline__ uint64_t select(Row<kIsShared>& r, const Rank& rank, Needed needs,
                                        Cutoff* cutoff) {
  *cutoff = Cutoff{};
  Bin* histogram = r.histograms + r.histogram * kBins;
  r.for_each_singly([&](uint32_t id, float logit) {
    const uint32_t key = rank.key(id, logit);
    if (key == kNotRanked) return;
    const uint32_t bin = __float2uint_rz(__uint_as_float(key) * kStepsPerUnit);
    add_to(&histogram[min(bin, kBins - 1)], rank.measure(logit));
  });
  Found found = find_bin(r, needs);
  if (found.needed == 0) return found.total;

  const uint64_t total = found.total, needed = found.needed;
  uint64_t before = found.before;
  uint32_t low = __float_as_uint(static_cast<float>(found.bin) / kStepsPerUnit);
  uint32_t high = found.bin + 1 == kBins
                      ? kInfinityBits
                      : __float_as_uint(static_cast<float>(found.bin + 1) / kStepsPerUnit) - 1;
  while (low < high) {
    const uint32_t bits = 32 - __clz(high - low);
    const uint32_t shift = bits > kBinBits ? bits - kBinBits : 0;
    histogram = r.histograms + r.histogram * kBins;
    r.for_each_singly([&](uint32_t id, float logit) {
      const uint32_t key = rank.key(id, logit);
      if (key < low || key > high) return;
      add_to(&histogram[(key - low) >> shift], rank.measure(logit));
    });
    found = find_bin(r, Needed{needed - before, 0.0f});
    before += found.before;
    low += found.bin << shift;
    high = min(high, low + (1u << shift) - 1);
  }
  cutoff->key = low;
  if (needed - before + rank.tie(low) > found.in_bin) return total;  // all of this key
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
  float mean = -1.0f;    // of y, for typical; negative: that filter is off
  float floor = 0.0f;    // of min-p
  float inverse = 0.0f;  // 1 / temperature where quotient() may use it

  __device__ Candidates(float max_logit, float t) : max(max_logit), temperature(t) {
    // No step of quotient() may overflow or lose bits: no distance but 0 is below 2^-54 then.
    const bool is_safe = t > 0x1p-20f && t < 0x1p20f && fabsf(max) > 0x1p-30f &&
                         (__float_as_uint(t) & 0x7fffffu) != 0x7fffffu;
    if (is_safe) inverse = __frcp_rn(t);
  }

  // distance / temperature, rounded to nearest: an estimate put right by its exact remainder, twice
  // (Markstein, Computation of elementary functions on the IBM RISC System/6000, 1990; it excepts
  // divisors of all ones). Beyond 2^60, where no token has weight, the result is only large.
  __device__ __forceinline__ float quotient(float distance) const {
    const float limited = fminf(distance, 0x1p60f);
    const float estimate = __fmul_rn(limited, inverse);
    const float closer = __fmaf_rn(__fmaf_rn(-temperature, estimate, limited), inverse, estimate);
    return __fmaf_rn(__fmaf_rn(-temperature, closer, limited), inverse, closer);
  }
  __device__ __forceinline__ float y(float logit) const {
    const float distance = math::sub(max, logit);
    return fabsf(inverse != 0.0f ? quotient(distance) : math::div(distance, temperature));
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

// Rule 6.
template <bool kIsShared>
__device__ void apply_filters(Row<kIsShared>& r, Candidates* candidates) {
  const SampleRow& row = r.row;
  if (row.top_k != 0) {
    Cutoff cutoff;
    select(r, RankByCount{*candidates}, Needed{row.top_k, 0.0f}, &cutoff);
    candidates->by_y = cutoff;
  }
  if (row.typical_p != 0.0f && row.typical_p < 1.0f) {
    uint64_t sum = 0, product_sum = 0;  // of p and of y * p
    r.for_each_singly([&](uint32_t id, float logit) {
      const float y = candidates->y(logit);
      if (!candidates->holds(id, y)) return;
      const float p = math::exp_negative(y);
      sum += weight(p);
      product_sum += weight(math::mul(y, p));
    });
    const Item sums = r.joined(r.exchange(r.block_join(sum, product_sum, kNoToken)));
    candidates->mean = static_cast<float>(
        math::div(static_cast<double>(sums.other), static_cast<double>(sums.sum)));
    Cutoff cutoff;
    select(r, RankByTypical{*candidates}, Needed{0, row.typical_p}, &cutoff);
    candidates->by_typical = cutoff;
  }
  if (row.top_p != 0.0f && row.top_p < 1.0f) {
    Cutoff cutoff;
    select(r, RankByWeight{*candidates}, Needed{0, row.top_p}, &cutoff);
    // Where the two rankings cut at one key, all that top-p found there is what top-k left.
    if (cutoff.key == candidates->by_y.key) cutoff.id = min(cutoff.id, candidates->by_y.id);
    candidates->by_y = cutoff;
  }
  if (row.min_p != 0.0f && candidates->mean < 0.0f) {
    candidates->floor = row.min_p;  // the best token is still there, and its p is 1
  } else if (row.min_p != 0.0f) {
    uint32_t largest = 0;  // bits of a float >= 0
    r.for_each_singly([&](uint32_t id, float logit) {
      const float y = candidates->y(logit);
      if (candidates->holds(id, y)) largest = max(largest, __float_as_uint(math::exp_negative(y)));
    });
    // The least complement is that of the largest.
    const Item all = r.joined(r.exchange(r.block_join(0, 0, ~largest)));
    candidates->floor = math::mul(row.min_p, __uint_as_float(~all.token));
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

// Orders the `count` gathered alternatives and writes them; one block.
template <bool kIsShared>
__device__ void write_top(const Row<kIsShared>& r, uint32_t count) {
  const SampleArgs& args = r.params->args;
  if (threadIdx.x < count) {
    const uint64_t own = r.shared->top[threadIdx.x];
    uint32_t place = 0;
    for (uint32_t i = 0; i < count; ++i) place += r.shared->top[i] < own;
    const uint64_t at = uint64_t{blockIdx.y} * args.top_stride + place;
    args.top_tokens[at] = static_cast<int32_t>(static_cast<uint32_t>(own));
    args.top_logprobs[at] = 0.0f - __uint_as_float(static_cast<uint32_t>(own >> 32));
  }
}

// Rule 4's alternatives; returns how many.
template <bool kIsShared>
__device__ uint32_t report_top(Row<kIsShared>& r, float max, double log_sum) {
  const SampleArgs& args = r.params->args;
  const uint32_t wanted = min(min(r.row.top_logprobs, args.top_stride), kSampleTopLogprobsMax);
  const RankByLogprob rank{max, log_sum};
  Cutoff cutoff;
  const uint64_t total = select(r, rank, Needed{wanted, 0.0f}, &cutoff);
  const uint32_t count = wanted < total ? wanted : static_cast<uint32_t>(total);
  if (threadIdx.x == 0) r.shared->top_count = 0;
  cluster_barrier();
  uint32_t* const counter = in_block(&r.shared->top_count, 0);
  uint64_t* const list = in_block(&r.shared->top[0], 0);
  r.for_each_singly([&](uint32_t id, float logit) {
    const uint32_t key = rank.key(id, logit);
    if (key == kNotRanked || !cutoff.keeps(key, id)) return;
    list[atomicAdd(counter, 1u)] = uint64_t{key} << 32 | id;
  });
  cluster_barrier();
  if (r.rank == 0) write_top(r, count);
  __syncthreads();  // the list's place is used again
  return count;
}

// ---- the list ----

// How many of the largest logits decide about the row; 0: no list helps.
__device__ inline uint32_t tokens_wanted(const SampleRow& row) {
  uint32_t wanted = row.top_logprobs;
  if (row.temperature == 0.0f) return wanted;
  if (row.top_k != 0) return max(wanted, row.top_k);
  if (row.typical_p != 0.0f && row.typical_p < 1.0f) return wanted;
  return row.top_p != 0.0f && row.top_p < 1.0f ? max(wanted, kListForTopP) : wanted;
}

// Min-p decides alone about what may be drawn.
__device__ inline bool is_min_p_alone(const SampleRow& row) {
  return row.temperature != 0.0f && row.min_p != 0.0f && row.top_k == 0 &&
         (row.top_p == 0.0f || row.top_p >= 1.0f) &&
         (row.typical_p == 0.0f || row.typical_p >= 1.0f);
}
// A logit below all that min-p leaves.
__device__ inline float min_p_threshold(const SampleRow& row, float max) {
  return max - (0.01f - __logf(row.min_p)) * 1.001f * row.temperature;
}

// Tokens from logit `threshold` on go to the list; counts them.
template <bool kIsShared>
__device__ void gather(const Row<kIsShared>& r, float threshold, const Largest& seen) {
  if (seen.max >= threshold)
    r.for_each([&](uint32_t id, float logit) {
      if (!(logit >= threshold)) return;
      const uint32_t at = atomicAdd(&r.shared->list_count, 1u);
      if (at < kListMax) r.list()[at] = uint64_t{__float_as_uint(logit)} << 32 | id;
    });
}

// Moves the blocks' lists behind that of the first block, which waits for them.
template <bool kIsShared>
__device__ void send_list(const Row<kIsShared>& r, const Item* items, uint32_t count) {
#if __CUDA_ARCH__ >= 900
  const uint32_t barrier = shared_address(&r.shared->barriers[2]);
  if (r.rank == 0) {
    if (threadIdx.x == 0)
      expect_bytes(barrier, static_cast<uint32_t>((count - items[0].count) * sizeof(uint64_t)));
    wait_bytes(barrier, 0);
    return;
  }
  uint32_t before = 0;
  for (uint32_t i = 0; i < r.rank; ++i) before += items[i].count;
  const uint32_t target = shared_address_in(shared_address(r.list() + before), 0);
  const uint32_t target_barrier = shared_address_in(barrier, 0);
  for (uint32_t i = threadIdx.x; i < items[r.rank].count; i += kBlockThreads)
    send(target + static_cast<uint32_t>(i * sizeof(uint64_t)), r.list()[i], target_barrier);
#endif
}

// Something of each of a thread's tokens of the list.
template <class T>
struct Each {
  T at[kListEach];
};
using Values = Each<uint32_t>;
using Measures = Each<uint64_t>;  // 0: the token is not there, or a filter has dropped it

// map(slot) of each slot.
template <class T, class Map>
__device__ __forceinline__ Each<T> each(Map map) {
  Each<T> result;
#pragma unroll
  for (uint32_t slot = 0; slot < kListEach; ++slot) result.at[slot] = map(slot);
  return result;
}

// The sum of `own` over the block, and of the threads before. Every thread calls; ends with a block
// barrier. Nobody reads segments meanwhile.
__device__ __forceinline__ uint64_t block_sum(Shared* shared, uint64_t own, uint64_t* before) {
  const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const uint64_t prefix = warp_prefix(own);
  if (lane == 31) shared->segments[warp] = prefix;
  __syncthreads();
  const uint64_t segment = lane < kWarps ? shared->segments[lane] : 0;
  *before = warp_sum_small(lane < warp ? segment : 0) + prefix - own;
  const uint64_t total = warp_sum_small(segment);
  __syncthreads();
  return total;
}
__device__ inline uint64_t total_of(Shared* shared, const Measures& measures) {
  uint64_t own = 0, before;
#pragma unroll
  for (const uint64_t measure : measures.at) own += measure;
  return block_sum(shared, own, &before);
}
__device__ inline Measures ones(const Measures& measures) {
  return each<uint64_t>([&](uint32_t slot) { return measures.at[slot] != 0 ? 1 : 0; });
}

struct Selected {
  uint32_t value;
  uint64_t before;  // the measure below that value
};

// The least value up to which the measures sum up to `needed`, which is at least 1 and at most the
// sum of all. Values are at most `high`. The bins are zero, before and after.
__device__ __noinline__ Selected select_in_list(Shared* shared, Bin* bins, Values values,
                                                Measures measures, uint32_t high, uint64_t needed) {
  Selected selected{0, 0};
#pragma unroll 1
  while (selected.value < high) {
    const uint32_t low = selected.value;
    const uint32_t bits = 32 - __clz(high - low);
    const uint32_t shift = bits > kBinBits ? bits - kBinBits : 0;
#pragma unroll
    for (uint32_t slot = 0; slot < kListEach; ++slot) {
      const uint32_t own = values.at[slot];
      if (measures.at[slot] != 0 && own >= low && own <= high)
        add_to(&bins[(own - low) >> shift], measures.at[slot]);
    }
    __syncthreads();
    uint64_t part[kBinsEach], sum = 0;
    auto* const mine = reinterpret_cast<uint4*>(bins + kBinsEach * threadIdx.x);
#pragma unroll
    for (uint32_t i = 0; i < kBinsEach / 2; ++i) {
      const uint4 two = mine[i];
      mine[i] = make_uint4(0, 0, 0, 0);
      part[2 * i] = total_of(Bin{two.x, two.y});
      part[2 * i + 1] = total_of(Bin{two.z, two.w});
      sum += part[2 * i] + part[2 * i + 1];
    }
    uint64_t passed;
    block_sum(shared, sum, &passed);
    passed += selected.before;
    if (passed < needed && passed + sum >= needed) {
      uint32_t at = 0;
#pragma unroll
      for (uint32_t i = 0; i < kBinsEach - 1; ++i) {
        if (at == i && passed + part[i] < needed) {
          passed += part[i];
          ++at;
        }
      }
      shared->found_bin = kBinsEach * threadIdx.x + at;
      shared->found_before = passed;
    }
    __syncthreads();
    selected.value = low + (shared->found_bin << shift);
    selected.before = shared->found_before;
    high = min(high, selected.value + (1u << shift) - 1);
  }
  return selected;
}

// A thread's tokens of the list.
struct Listed {
  Shared* shared;
  Bin* bins;
  uint32_t id_max;
  Each<float> logits;
  Values ids;
  Each<bool> is_in;

  // Drops from `kept` what comes after the beginning of the ranking by (value, id) whose measure
  // reaches `needed`; returns the last value left.
  __device__ uint32_t cut(const Values& values, const Measures& measures, uint64_t needed,
                          Measures* kept) const {
    const Selected last = select_in_list(shared, bins, values, measures, kInfinityBits, needed);
    const Measures ties = each<uint64_t>(
        [&](uint32_t slot) { return values.at[slot] == last.value ? measures.at[slot] : 0; });
    const uint32_t last_id =
        select_in_list(shared, bins, ids, ties, id_max, needed - last.before).value;
    *kept = each<uint64_t>([&](uint32_t slot) {
      const bool is_kept = values.at[slot] < last.value ||
                           (values.at[slot] == last.value && ids.at[slot] <= last_id);
      return is_kept ? kept->at[slot] : 0;
    });
    return last.value;
  }
};

template <bool kIsShared>
__device__ Listed read_list(const Row<kIsShared>& r, uint32_t count) {
  Listed listed{r.shared, r.list_bins(), r.params->args.vocabulary - 1, {}, {}, {}};
#pragma unroll
  for (uint32_t slot = 0; slot < kListEach; ++slot) {
    const uint32_t i = slot * kBlockThreads + threadIdx.x;
    const uint64_t token = i < count ? r.list()[i] : 0;
    listed.logits.at[slot] = __uint_as_float(static_cast<uint32_t>(token >> 32));
    listed.ids.at[slot] = static_cast<uint32_t>(token);
    listed.is_in.at[slot] = i < count;
  }
  auto* const bins = reinterpret_cast<uint4*>(r.list_bins());
  for (uint32_t i = threadIdx.x; i < kBins / 2; i += kBlockThreads) bins[i] = {0, 0, 0, 0};
  __syncthreads();
  return listed;
}

// Rule 4's alternatives from the list. False: the list may lack some.
template <bool kIsShared>
__device__ bool report_top_of_list(const Row<kIsShared>& r, const Listed& listed, float threshold,
                                   const RankByLogprob& rank, uint32_t* top_count) {
  const SampleArgs& args = r.params->args;
  const uint32_t wanted = min(min(r.row.top_logprobs, args.top_stride), kSampleTopLogprobsMax);
  const uint32_t limit = rank.key(0, threshold);  // of tokens outside; kNotRanked: there are none
  const Values keys =
      each<uint32_t>([&](uint32_t slot) { return rank.key(0, listed.logits.at[slot]); });
  Measures kept = each<uint64_t>(
      [&](uint32_t slot) { return listed.is_in.at[slot] && keys.at[slot] != kNotRanked ? 1 : 0; });
  const uint64_t ranked = total_of(r.shared, kept);
  if (ranked < wanted && limit != kNotRanked) return false;
  if (ranked >= wanted && wanted > 0) {
    const uint32_t last = listed.cut(keys, kept, wanted, &kept);
    if (limit != kNotRanked && last >= limit) return false;
  }
  if (threadIdx.x == 0) r.shared->top_count = 0;
  __syncthreads();
#pragma unroll
  for (uint32_t slot = 0; slot < kListEach; ++slot)
    if (kept.at[slot] != 0)
      r.shared->top[atomicAdd(&r.shared->top_count, 1u)] =
          uint64_t{keys.at[slot]} << 32 | listed.ids.at[slot];
  __syncthreads();
  *top_count = r.shared->top_count;
  write_top(r, *top_count);
  return true;
}

// Rules 6 and 7 on the list; `total` is the weight of all candidates, known unless there is a
// top-k. Calls found(id, logit) in one thread. False: the list may lack candidates.
template <bool kIsShared, class Found>
__device__ bool draw_from_list(const Row<kIsShared>& r, const Listed& listed, float threshold,
                               const Candidates& candidates, uint64_t total, Found found) {
  const SampleRow& row = r.row;
  const float outside = candidates.y(threshold);  // no token outside is nearer to the best
  const bool is_complete =
      outside > 27.1f || (is_min_p_alone(row) && math::exp_negative(outside) * 1.001f < row.min_p);
  const uint32_t limit = is_complete ? kNotRanked : __float_as_uint(outside);
  const bool has_top_p = row.top_p != 0.0f && row.top_p < 1.0f;
  const bool has_typical = row.typical_p != 0.0f && row.typical_p < 1.0f;
  if (row.top_k == 0 && !is_complete && (has_typical || !has_top_p)) return false;

  const auto y = [&](uint32_t slot) { return candidates.y(listed.logits.at[slot]); };
  const Values keys = each<uint32_t>([&](uint32_t slot) { return __float_as_uint(y(slot)); });
  const auto p = [&](uint32_t slot) { return math::exp_negative(__uint_as_float(keys.at[slot])); };
  Measures kept =
      each<uint64_t>([&](uint32_t slot) { return listed.is_in.at[slot] ? weight(p(slot)) : 0; });
  if (row.top_k != 0) {
    const Measures counts = ones(kept);
    const uint64_t count = total_of(r.shared, counts);
    if (count < row.top_k && !is_complete) return false;
    if (count >= row.top_k && listed.cut(keys, counts, row.top_k, &kept) >= limit && !is_complete)
      return false;
  }
  if (has_typical) {
    const uint64_t sum = total_of(r.shared, kept);
    const uint64_t product_sum =
        total_of(r.shared, each<uint64_t>([&](uint32_t slot) {
                   return kept.at[slot] != 0 ? weight(math::mul(y(slot), p(slot))) : 0;
                 }));
    const float mean =
        static_cast<float>(math::div(static_cast<double>(product_sum), static_cast<double>(sum)));
    const Values distances = each<uint32_t>(
        [&](uint32_t slot) { return __float_as_uint(fabsf(math::sub(y(slot), mean))); });
    listed.cut(distances, kept, math::share_of(row.typical_p, sum), &kept);
  }
  if (has_top_p) {
    const uint64_t sum = total_of(r.shared, kept);
    const bool is_whole = row.top_k != 0 || is_complete;
    const uint64_t needed = math::share_of(row.top_p, is_whole ? sum : total);
    if (sum < needed) return false;
    if (listed.cut(keys, kept, needed, &kept) >= limit && !is_whole) return false;
  }
  if (row.min_p != 0.0f) {
    uint32_t largest = 0;
#pragma unroll
    for (uint32_t slot = 0; slot < kListEach; ++slot)
      if (kept.at[slot] != 0) largest = max(largest, __float_as_uint(p(slot)));
    largest = __reduce_max_sync(kAllLanes, largest);
    if (r.lane() == 0) r.shared->segments[r.warp()] = largest;
    __syncthreads();
    largest = __reduce_max_sync(
        kAllLanes, static_cast<uint32_t>(r.lane() < kWarps ? r.shared->segments[r.lane()] : 0));
    __syncthreads();
    const float floor = math::mul(row.min_p, __uint_as_float(largest));
    kept = each<uint64_t>([&](uint32_t slot) { return p(slot) >= floor ? kept.at[slot] : 0; });
  }

  const uint64_t sum = total_of(r.shared, kept);
  const uint64_t goal = math::mul_high(math::random_bits(row.seed, row.position), sum) + 1;
  const uint32_t token =
      select_in_list(r.shared, listed.bins, listed.ids, kept, listed.id_max, goal).value;
#pragma unroll
  for (uint32_t slot = 0; slot < kListEach; ++slot)
    if (kept.at[slot] != 0 && listed.ids.at[slot] == token) found(token, listed.logits.at[slot]);
  return true;
}

// What is left to do after the list.
enum class Left : uint32_t { kNothing, kDraw, kAll };

// What the list decides, in the first block; others wait. Left::kDraw: the alternatives are
// written, top_count of them.
template <bool kIsShared>
__device__ Left sample_from_list(Row<kIsShared>& r, const Item* items, const Item& all,
                                 float threshold, const Candidates& candidates, double log_sum,
                                 uint32_t* top_count) {
  send_list(r, items, all.count);
  Left left = Left::kNothing;
  if (r.rank == 0) {
    const float max = candidates.max;
    const Listed listed = read_list(r, all.count);
    if (r.row.top_logprobs > 0 &&
        !report_top_of_list(r, listed, threshold, RankByLogprob{max, log_sum}, top_count)) {
      left = Left::kAll;
    } else if (r.row.temperature == 0.0f) {
      if (threadIdx.x == 0)
        finish(r, kRowOk, all.token, math::log_probability(max, max, log_sum), *top_count);
    } else if (!draw_from_list(
                   r, listed, threshold, candidates, all.other, [&](uint32_t id, float logit) {
                     finish(r, kRowOk, id, math::log_probability(logit, max, log_sum), *top_count);
                   })) {
      left = Left::kDraw;
    }
  }
  Item verdict{};
  verdict.count = static_cast<uint32_t>(left);
  verdict.token = *top_count;
  __syncthreads();
  const Item* const verdicts = r.exchange(verdict);
  *top_count = verdicts[0].token;
  return static_cast<Left>(verdicts[0].count);
}

// ---- greedy rows ----

// A thread's part of a row; what is not there is -infinity.
constexpr uint32_t kGreedyQuads = 4;
struct Quads {
  float4 at[kGreedyQuads];
};

template <bool kIsShared>
__device__ __forceinline__ bool fits_quads(const Row<kIsShared>& r) {
  return r.is_aligned && r.params->segment <= 32 * 4 * kGreedyQuads;
}
template <bool kIsShared>
__device__ __forceinline__ Quads load_quads(const Row<kIsShared>& r, const float* logits) {
  const auto* const from = reinterpret_cast<const float4*>(logits + r.warp_begin);
  const uint32_t count = (r.warp_end - r.warp_begin) / 4;
  Quads quads;
#pragma unroll
  for (uint32_t i = 0; i < kGreedyQuads; ++i) {
    const float absent = -__builtin_inff();
    quads.at[i] = make_float4(absent, absent, absent, absent);
    if (r.lane() + 32 * i < count) quads.at[i] = from[r.lane() + 32 * i];
  }
  return quads;
}

// The first exchange gives every block the largest logit, the second gives the first block the sum
// of weights and the lowest id of that logit.
template <bool kIsShared>
__device__ __forceinline__ void sample_greedy(Row<kIsShared>& r, const Quads& quads) {
  Largest seen;
#pragma unroll
  for (const float4& four : quads.at) {
    seen.see(four.x);
    seen.see(four.y);
    seen.see(four.z);
    seen.see(four.w);
  }
  const int32_t warp_key = __reduce_max_sync(kAllLanes, seen.key());
  if (r.lane() == 0) r.shared->segments[r.warp()] = rank_of(warp_key);
  __syncthreads();
  Item item{};
  if (r.warp() == 0)
    item.sum = __reduce_max_sync(
        kAllLanes, static_cast<uint32_t>(r.lane() < kWarps ? r.shared->segments[r.lane()] : 0));
  cluster_wait();
  const Item* items = r.template exchange<true>(item);
  const int32_t key = key_of(__reduce_max_sync(
      kAllLanes, static_cast<uint32_t>(r.lane() < r.size ? items[r.lane()].sum : 0)));
  const bool is_first = r.rank == 0 && threadIdx.x == 0;
  const float max_logit = unorder(key);
  if (key >= static_cast<int32_t>(kInfinityBits) || max_logit == -__builtin_inff()) {
    const bool is_bad = key >= static_cast<int32_t>(kInfinityBits);
    if (is_first) finish(r, is_bad ? kRowNotFinite : kRowEmptyMask, 0, 0.0f, 0);
    return;
  }

  WeightSum sum;
#pragma unroll
  for (const float4& four : quads.at) {
    sum.add(math::exp_negative(math::sub(max_logit, four.x)));
    sum.add(math::exp_negative(math::sub(max_logit, four.y)));
    sum.add(math::exp_negative(math::sub(max_logit, four.z)));
    sum.add(math::exp_negative(math::sub(max_logit, four.w)));
  }
  uint32_t token = kNoToken;
  if (seen.max == max_logit) {
#pragma unroll
    for (uint32_t i = kGreedyQuads; i-- > 0;) {
      const uint32_t id = r.warp_begin + 4 * (r.lane() + 32 * i);
      const float4 four = quads.at[i];
      if (four.w == max_logit) token = id + 3;
      if (four.z == max_logit) token = id + 2;
      if (four.y == max_logit) token = id + 1;
      if (four.x == max_logit) token = id;
    }
  }
  item.sum = sum.warp_total();
  item.token = __reduce_min_sync(kAllLanes, token);
  if (r.lane() == 0) r.shared->warps[r.warp()] = item;
  __syncthreads();
  if (r.warp() != 0) return;
  item = r.lane() < kWarps ? r.shared->warps[r.lane()] : Item{0, 0, kNoToken, 0, 0};
  item.other = __reduce_min_sync(kAllLanes, item.token);
  item.sum = warp_sum_small(item.sum);
  const Item* const joined = r.exchange_first(item);
  if (r.rank != 0) return;
  const bool is_block = r.lane() < r.size;
  const uint64_t total = warp_sum_small(is_block ? joined[r.lane()].sum : 0);
  token = __reduce_min_sync(kAllLanes,
                            is_block ? static_cast<uint32_t>(joined[r.lane()].other) : kNoToken);
  if (r.lane() == 0)
    finish(r, kRowOk, token,
           math::log_probability(max_logit, max_logit, math::log_of_weights(total)), 0);
}

// ---- all tokens ----

// What the list does not decide: the alternatives where they are still wanted, then rules 6 and 7.
// A function of its own, as it is large and seldom needed.
template <bool kIsShared>
__device__ __noinline__ void sample_from_all(Row<kIsShared> r, Candidates candidates,
                                             double log_sum, uint32_t best, bool wants_top,
                                             uint32_t top_count) {
  const float max = candidates.max;
  __syncthreads();
  for (uint32_t i = threadIdx.x; i < kBins; i += kBlockThreads) r.histograms[i] = Bin{0, 0};
  __syncthreads();
  if (wants_top) top_count = report_top(r, max, log_sum);
  const auto found = [&](uint32_t id, float logit) {
    finish(r, kRowOk, id, math::log_probability(logit, max, log_sum), top_count);
  };
  if (candidates.temperature == 0.0f) {
    if (r.rank == 0 && threadIdx.x == 0) found(best, max);
    return;
  }
  apply_filters(r, &candidates);
  locate(
      r,
      [&](uint32_t id, float logit) -> uint64_t {
        const float y = candidates.y(logit);
        if (!candidates.holds(id, y)) return 0;
        const float p = math::exp_negative(y);
        return p >= candidates.floor ? weight(p) : 0;
      },
      [&](uint64_t total) {
        return math::mul_high(math::random_bits(r.row.seed, r.row.position), total) + 1;
      },
      found);
}

template <bool kHasFilters, bool kIsShared>
__global__ void __launch_bounds__(kBlockThreads, 2)
    sample_kernel(const __grid_constant__ SampleParams params) {
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
  r.exchanges = 0;
  r.histogram = 0;
  r.is_aligned = args.vocabulary % 4 == 0;
  const uint32_t chunk = kWarps * params.segment;
  r.block_begin = min(r.rank * chunk, args.vocabulary);
  r.block_end = min(r.block_begin + chunk, args.vocabulary);
  r.warp_begin = min(r.block_begin + r.warp() * params.segment, args.vocabulary);
  r.warp_end = min(r.warp_begin + params.segment, args.vocabulary);
  if (threadIdx.x == 0) {
    r.shared->list_count = 0;
#if __CUDA_ARCH__ >= 900
    for (uint64_t& barrier : r.shared->barriers)
      asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(shared_address(&barrier))
                   : "memory");
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#endif
  }
  __syncwarp();
  cluster_arrive_relaxed();
  dependent_wait();

  const uint32_t index = blockIdx.y;
  // Mostly, a row's logits are where the row is: reading begins before the row says so.
  constexpr bool kHasGreedy = kIsShared && !kHasFilters;
  const bool is_early = kHasGreedy && fits_quads(r) && index < args.logits_count;
  Quads quads;
  if (is_early) quads = load_quads(r, args.logits + uint64_t{index} * args.vocabulary);
  r.row = args.rows[index];
  const int32_t status = args.statuses[index];
  if (r.row.is_sampled == 0 || status != kRowOk) {  // the same for the whole cluster
    if (r.rank == 0 && threadIdx.x == 0) args.outputs[index] = SampleOutput{status, -1, 0.0f, 0};
    cluster_wait();
    return;
  }
  const float* const logits = args.logits + uint64_t{r.row.logits_row} * args.vocabulary;
  const bool is_penalized = has_penalty(r.row);
  const bool is_changed = is_penalized || r.row.bias_count > 0 || r.row.mask_row != kNoMask;
  if (kHasGreedy && r.row.temperature == 0.0f && !is_changed && fits_quads(r)) {
    if (!is_early || r.row.logits_row != index) quads = load_quads(r, logits);
    sample_greedy(r, quads);
    return;
  }
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
    const bool was_bad = seen.key() == INT32_MAX;
    __syncthreads();
    apply_bias_and_mask(r);
    if (is_penalized) apply_penalties(r);
    seen = Largest{};
    r.for_each([&](uint32_t, float logit) { seen.see(logit); });
    if (was_bad) seen.see(__builtin_nanf(""));
  }

  // The largest logit, and one that enough tokens reach.
  const uint32_t reached = rank_of(seen.key());
  Item item{};
  const uint32_t warp_reached = __reduce_max_sync(kAllLanes, reached);
  if (r.lane() == 0) r.shared->segments[r.warp()] = warp_reached;
  const uint32_t wanted = kHasFilters ? tokens_wanted(r.row) : 0;
  const bool is_by_min_p = kHasFilters && is_min_p_alone(r.row);
  const bool has_list = (wanted > 0 || is_by_min_p) && wanted <= kListWantedMax;
  const uint32_t block_wanted = min(wanted / r.size + 1, kBlockThreads * 3 / 4);
  const bool is_by_warps = block_wanted <= kWarps / 2;
  uint32_t threshold_rank = UINT32_MAX;
  if (has_list && wanted > 0 && !is_by_warps)
    threshold_rank = block_threshold(reached, block_wanted);
  else
    __syncthreads();
  if (r.warp() == 0) {
    const auto own = static_cast<uint32_t>(r.lane() < kWarps ? r.shared->segments[r.lane()] : 0);
    item.count = __reduce_max_sync(kAllLanes, own);
    if (has_list && wanted > 0 && is_by_warps) {  // what enough warps have reached
      uint32_t place = 0;
      for (uint32_t i = 0; i < kWarps; ++i) {
        const uint32_t other = __shfl_sync(kAllLanes, own, i);
        place += other > own || (other == own && i < r.lane());
      }
      threshold_rank = __reduce_max_sync(kAllLanes, place + 1 == block_wanted ? own : 0);
    }
  }
  item.token = threshold_rank;
  cluster_wait();
  const Item* items = r.exchange(item);
  uint32_t max_rank = 0;
  threshold_rank = UINT32_MAX;
  for (uint32_t i = 0; i < r.size; ++i) {
    max_rank = max(max_rank, items[i].count);
    threshold_rank = min(threshold_rank, items[i].token);
  }
  const float max_logit = unorder(key_of(max_rank));
  const bool is_first = r.rank == 0 && threadIdx.x == 0;
  if (key_of(max_rank) >= static_cast<int32_t>(kInfinityBits)) {
    if (is_first) finish(r, kRowNotFinite, 0, 0.0f, 0);
    return;
  }
  if (max_logit == -__builtin_inff()) {
    if (is_first) finish(r, kRowEmptyMask, 0, 0.0f, 0);
    return;
  }
  const float lowest = -__builtin_inff();
  float threshold = -lowest;
  if (wanted > 0)
    threshold = threshold_rank > rank_of(order(lowest)) ? unorder(key_of(threshold_rank)) : lowest;
  if (is_by_min_p) threshold = fminf(threshold, min_p_threshold(r.row, max_logit));

  // The sums of weights at temperature 1 and at the row's, and the lowest id of the largest logit.
  Candidates candidates(max_logit, r.row.temperature);
  const bool is_tempered = r.row.temperature != 0.0f;
  typename SumOf<kIsShared>::Type sum, tempered_sum;
  const auto add_weight = [&](float logit) {
    sum.add(math::exp_negative(math::sub(max_logit, logit)));
  };
  // The list of a top-k needs no sum at the row's temperature.
  if (!is_tempered || (has_list && r.row.top_k != 0)) {
    r.template for_each<2>([&](uint32_t, float logit) { add_weight(logit); });
  } else if (candidates.inverse != 0.0f) {
    r.for_each([&](uint32_t, float logit) {
      add_weight(logit);
      const float y = candidates.quotient(math::sub(max_logit, logit));
      tempered_sum.add(math::exp_negative(fabsf(y)));
    });
  } else {
    r.for_each([&](uint32_t, float logit) {
      add_weight(logit);
      tempered_sum.add(math::exp_negative(candidates.y(logit)));
    });
  }
  uint32_t best = kNoToken;
  if (seen.max == max_logit)
    r.for_each([&](uint32_t id, float logit) {
      if (logit == max_logit) best = min(best, id);
    });
  if (has_list) gather(r, threshold, seen);
  const uint64_t warp_tempered_sum = is_tempered ? warp_sum(tempered_sum.total()) : 0;
  if (r.lane() == 0) r.shared->segments[r.warp()] = warp_tempered_sum;
  item = r.block_join(sum.total(), tempered_sum.total(), best);
  item.count = has_list ? r.shared->list_count : 0;
  items = r.exchange(item);
  const Item all = r.joined(items);
  const double log_sum = math::log_of_weights(all.sum);

  uint32_t top_count = 0;
  Left left = Left::kAll;
  if (has_list && all.count <= kListMax)
    left = sample_from_list(r, items, all, threshold, candidates, log_sum, &top_count);
  if (left == Left::kNothing) return;
  if (kHasFilters) {
    const bool wants_top = left == Left::kAll && r.row.top_logprobs > 0;
    if (wants_top || (is_tempered && has_filter(r.row))) {
      sample_from_all(r, candidates, log_sum, all.token, wants_top, top_count);
      return;
    }
  }
  const auto found = [&](uint32_t id, float logit) {
    finish(r, kRowOk, id, math::log_probability(logit, max_logit, log_sum), top_count);
  };
  if (!is_tempered) {
    if (is_first) found(all.token, max_logit);
    return;
  }
  if (kHasFilters) {  // the list has used their place
    if (r.lane() == 0) r.shared->segments[r.warp()] = warp_tempered_sum;
    __syncthreads();
  }
  locate_in(
      r, warp_tempered_sum, items,
      [&](uint32_t, float logit) { return weight(math::exp_negative(candidates.y(logit))); },
      [&](uint64_t total) {
        return math::mul_high(math::random_bits(r.row.seed, r.row.position), total) + 1;
      },
      found);
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
  // As much as there is: else one block of two might not fit beside the first.
  if (status == cudaSuccess)
    status = cudaFuncSetAttribute(entry, cudaFuncAttributePreferredSharedMemoryCarveout,
                                  cudaSharedmemCarveoutMaxShared);
  if (status == cudaSuccess && blocks > 8)
    status = cudaFuncSetAttribute(entry, cudaFuncAttributeNonPortableClusterSizeAllowed, 1);
  if (status != cudaSuccess) return status;
  return launch_kernel(launch, dim3(blocks, args.row_count), dim3(kBlockThreads),
                       shape.shared_bytes, has_clusters ? blocks : 0, kernel,
                       SampleParams{args, shape.segment});
}

}  // namespace wcuda::kernels
