// sample: many rows. A cluster of blocks samples one row after the other, and loads the next ones
// meanwhile.
//
//   row      k + 2   loading, warp by warp, into the memory that row k - 1 leaves
//            k + 1   loading or loaded
//            k       its largest logit is found, sent to the cluster
//            k - 1   its weights are summed, since the cluster's largest logit has arrived
//
// Sums and lists of candidates go to global memory. At the end each block completes every eighth
// row of the cluster: from the sums, or by ranking the row's list. Rows for which a list will not
// do are marked, and left to sample_kernel.
#pragma once

#include "kernels/ptx/bulk_copy.cuh"
#include "kernels/sampling/sample_changes.cuh"
#include "kernels/sampling/sample_list.cuh"
#include "kernels/sampling/sample_select.cuh"

namespace wcuda::kernels {
namespace {

constexpr uint32_t kStreamBlocks = 8;         // of a cluster
constexpr uint32_t kStreamRowsMax = 64;       // that a block completes
constexpr uint32_t kStreamSlotsMax = 3;       // rows of logits in shared memory
constexpr uint32_t kStreamListPerThread = 8;  // as kListPerThread and so on, for longer lists
constexpr uint32_t kStreamListMax = kStreamListPerThread * kBlockThreads;
constexpr uint32_t kStreamListForTopP = 1900;
constexpr uint32_t kStreamListWantedMax = 2400;
constexpr uint32_t kGatherSlots = 4;  // a block may be two rows ahead of another
constexpr uint32_t kPartFloat4s = 64;

// One warp's part of a row: `count` is rank_of the row's largest logit, `unused` the bits of the
// threshold of its list.
using StreamItems = Item[kStreamBlocks * kWarps];
// Device memory of a row.
struct StreamScratch {
  StreamItems items;
  uint64_t list[kStreamListMax];
};

struct StreamShared {
  uint64_t loaded[kStreamSlotsMax][kWarps];  // barriers
  uint64_t gathered[kGatherSlots];           // barriers
  uint64_t reached[kGatherSlots][kStreamBlocks];
  uint32_t list_counts[kStreamRowsMax];  // of the rows that this block completes
};
constexpr uint32_t kStreamSharedBytes =
    kSharedBytes + (sizeof(StreamShared) + 127) / 128 * 128 + kAccumulatorBytes;
// The list that a block ranks, and its bins, lie where the logits were.
constexpr uint32_t kStreamRankBytes = kStreamListMax * sizeof(uint64_t) + kBins * sizeof(Bin);

#if __CUDA_ARCH__ >= 900 || !defined(__CUDA_ARCH__)

struct Stream {
  Row<true> r;
  StreamShared* shared;
  StreamScratch* scratch;  // (row_count)
  float* slots;            // (params.slots, chunk)
  uint32_t chunk;          // floats
  uint32_t count;          // rows of the cluster

  __device__ const SampleArgs& args() const { return r.params->args; }
  __device__ uint32_t index_of(uint32_t k) const { return blockIdx.y + k * gridDim.y; }
  __device__ float* values_of(uint32_t k) const { return slots + k % r.params->slots * chunk; }
  __device__ uint32_t loaded_barrier(uint32_t k) const {
    return shared_address(&shared->loaded[k % r.params->slots][r.warp()]);
  }

  // What says where the logits of row k are, loaded ahead.
  struct Source {
    uint32_t is_sampled, logits_row;
    int32_t status;
    __device__ bool is_sampled_well() const { return is_sampled != 0 && status == kRowOk; }
  };
  __device__ Source source_of(uint32_t k) const {
    if (k >= count) return {0, 0, kRowOk};
    const SampleRow& row = args().rows[index_of(k)];
    return {row.is_sampled, row.logits_row, args().statuses[index_of(k)]};
  }

  // Loads float4s first … first + part - 1 of the warp's logits of row k; with the first ones, says
  // how many bytes will come. Called by one lane.
  __device__ void load(uint32_t k, const Source& source, uint32_t first, uint32_t part) const {
    if (k >= count) return;
    const uint32_t barrier = loaded_barrier(k);
    const uint32_t float4s = source.is_sampled_well() ? (r.warp_end - r.warp_begin) / 4 : 0;
    if (first == 0) mbarrier_expect_tx(barrier, float4s * sizeof(float4));
    if (first >= float4s) return;
    const float* const from =
        args().logits + uint64_t{source.logits_row} * args().vocabulary + r.warp_begin;
    float* const to = values_of(k) + (r.warp_begin - r.block_begin);
    bulk_copy(shared_address(to + 4 * first), from + 4 * first,
              static_cast<uint32_t>(min(part, float4s - first) * sizeof(float4)), barrier);
  }

  // Makes row k the row of `r`; returns whether it is sampled.
  __device__ bool begin_row(uint32_t k) {
    r.index = index_of(k);
    r.row = args().rows[r.index];
    r.values = values_of(k);
    return r.row.is_sampled != 0 && args().statuses[r.index] == kRowOk;
  }
  __device__ ListPlan plan() const {
    return list_plan<true>(r.row, kStreamListForTopP, kStreamListWantedMax);
  }

  // Sends the block's largest logit of the row to the cluster. Returns what the thread has seen.
  __device__ RunningMax reach(uint32_t gather) {
    RunningMax seen;
    r.template for_each<2>([&](uint32_t, float logit) { seen.see(logit); });
    if (has_changes(r.row)) {
      seen = apply_changes(r, seen);
      fence_proxy_async();  // later loads into this memory
    }
    const Reached own = block_reached(r, r.shared->ranks[gather % 2], seen, plan());
    if (r.warp() != 0) return seen;
    const uint32_t at = gather % kGatherSlots;
    const uint32_t barrier = shared_address(&shared->gathered[at]);
    if (r.lane() == 0) mbarrier_expect_tx(barrier, sizeof(shared->reached[at]));
    if (r.lane() < kStreamBlocks)
      cluster_store_async(cluster_address(shared_address(&shared->reached[at][r.rank]), r.lane()),
                          uint64_t{own.max_rank} << 32 | own.threshold_rank,
                          cluster_address(barrier, r.lane()));
    return seen;
  }

  // Appends the thread's tokens that reach the threshold to the row's list.
  __device__ void list_tokens(uint32_t k, float threshold, const RunningMax& seen) const {
    uint32_t own = 0;
    if (seen.max >= threshold)
      r.for_each([&](uint32_t, float logit) { own += logit >= threshold; });
    uint32_t at = own;
#pragma unroll
    for (uint32_t step = 1; step < 32; step *= 2) {
      const uint32_t from = __shfl_up_sync(kAllLanes, at, step);
      if (r.lane() >= step) at += from;
    }
    uint32_t first = 0;
    if (r.lane() == 31 && at > 0)
      first = atomicAdd(cluster_pointer(&shared->list_counts[k / kStreamBlocks], k % kStreamBlocks),
                        at);
    at += __shfl_sync(kAllLanes, first, 31) - own;
    if (own == 0) return;
    uint64_t* const list = scratch[r.index].list;
    r.for_each([&](uint32_t id, float logit) {
      if (!(logit >= threshold)) return;
      if (at < kStreamListMax) list[at] = uint64_t{__float_as_uint(logit)} << 32 | id;
      ++at;
    });
  }

  // Sums the weights of row k, and draws from it where no filter applies. Meanwhile loads row
  // k + slots. `source`: of that row.
  __device__ void weigh(uint32_t k, uint32_t gather, const RunningMax& seen, const Source& source) {
    const uint32_t at = gather % kGatherSlots, next = k + r.params->slots;
    mbarrier_wait_cluster(shared_address(&shared->gathered[at]), gather / kGatherSlots % 2);
    uint32_t max_rank = 0, threshold_rank = UINT32_MAX;
#pragma unroll
    for (const uint64_t reached : shared->reached[at]) {
      max_rank = max(max_rank, static_cast<uint32_t>(reached >> 32));
      threshold_rank = min(threshold_rank, static_cast<uint32_t>(reached));
    }
    const float max_logit = unorder(key_of(max_rank));
    const ListPlan plan = this->plan();
    Item item{};
    item.count = max_rank;
    const auto store = [&] {
      if (r.lane() == 0) scratch[r.index].items[r.rank * kWarps + r.warp()] = item;
    };
    if (key_of(max_rank) >= static_cast<int32_t>(kInfinityBits) || max_logit == -__builtin_inff() ||
        plan.needs_all) {
      store();
      if (r.lane() == 0) load(next, source, 0, UINT32_MAX);
      return;
    }
    if (plan.has_list) {
      const float threshold = list_threshold(r.row, plan, threshold_rank, max_logit);
      item.unused = __float_as_uint(threshold);
      list_tokens(k, threshold, seen);
    }
    uint32_t best = kNoToken;
    if (seen.max == max_logit)
      r.for_each([&](uint32_t id, float logit) {
        if (logit == max_logit) best = min(best, id);
      });
    const Candidates candidates(max_logit, r.row.temperature);
    const bool is_tempered = r.row.temperature != 0.0f;
    const bool is_drawn = is_tempered && !plan.has_list;
    WeightSum sum, tempered_sum;
    __syncwarp();
    add_weights(candidates, is_tempered && !(plan.has_list && r.row.top_k != 0), &sum,
                &tempered_sum, [&](auto, auto visit) {
                  for_each_part(visit, [&](uint32_t first) {
                    if (!is_drawn) load(next, source, first, kPartFloat4s);
                  });
                });
    item.token = __reduce_min_sync(kAllLanes, best);
    item.sum = sum.warp_total();
    item.other = is_tempered ? tempered_sum.warp_total() : 0;
    store();
    if (!is_drawn) return;
    draw(candidates, item);
    __syncwarp();
    if (r.lane() == 0) load(next, source, 0, UINT32_MAX);
  }

  // Calls visit(logit) for the warp's tokens, and release(first) in one lane for each part that has
  // been read.
  template <class Visit, class Release>
  __device__ __forceinline__ void for_each_part(Visit visit, Release release) const {
    const auto* const run =
        reinterpret_cast<const float4*>(r.values + (r.warp_begin - r.block_begin));
    const uint32_t float4s = (r.warp_end - r.warp_begin) / 4;
    for (uint32_t first = 0; first == 0 || first < float4s; first += kPartFloat4s) {
      const float absent = -__builtin_inff();
      float4 fours[kPartFloat4s / 32];
#pragma unroll
      for (uint32_t i = 0; i < kPartFloat4s / 32; ++i) {
        const uint32_t at = first + 32 * i + r.lane();
        fours[i] = make_float4(absent, absent, absent, absent);
        if (at < float4s) fours[i] = run[at];
      }
      __syncwarp();
      if (r.lane() == 0) release(first);
#pragma unroll
      for (const float4& four : fours) {
        visit(four.x);
        visit(four.y);
        visit(four.z);
        visit(four.w);
      }
    }
  }

  // Draws from all tokens (rule 7). `item`: the warp's.
  __device__ void draw(const Candidates& candidates, const Item& item) {
    const bool is_first = r.lane() == 0;
    if (is_first) r.shared->segments[r.warp()] = item.other;
    const Item own = r.block_join(is_first ? item.sum : 0, is_first ? item.other : 0, item.token);
    const Item* const items = r.all_gather(own);
    const double log_sum = math::log_of_weights(r.joined(items).sum);
    locate_in(
        r, item.other, items,
        [&](uint32_t, float logit) { return weight(math::exp_negative(candidates.y(logit))); },
        [&](uint64_t total) {
          return math::mul_high(math::random_bits(r.row.seed, r.row.position), total) + 1;
        },
        [&](uint32_t id, float logit) {
          finish(r, kRowOk, id, math::log_probability(logit, candidates.max, log_sum), 0);
        });
    __syncthreads();  // all have read the items
  }

  // The warps' parts of the row together. Called by a whole warp.
  __device__ Item joined_items() const {
    const Item* const items = scratch[r.index].items;
    Item all{0, 0, kNoToken, 0, 0};
#pragma unroll
    for (uint32_t i = 0; i < kStreamBlocks * kWarps; i += 32) {
      const Item& item = items[i + r.lane()];
      all.sum += __ldcg(&item.sum);
      all.other += __ldcg(&item.other);
      all.token = min(all.token, __ldcg(&item.token));
      all.count = __ldcg(&item.count);
      all.unused = __ldcg(&item.unused);
    }
    all.sum = warp_sum(all.sum);
    all.other = warp_sum(all.other);
    all.token = __reduce_min_sync(kAllLanes, all.token);
    return all;
  }

  // Completes row k, unless its list is needed. Called by a whole warp.
  __device__ void complete(uint32_t k) {
    const bool is_sampled = begin_row(k);
    bool is_pending = false;
    if (is_sampled) {
      const Item all = joined_items();
      const float max = unorder(key_of(all.count));
      const ListPlan plan = this->plan();
      int32_t status = kRowOk;
      if (max == -__builtin_inff()) status = kRowEmptyMask;
      if (key_of(all.count) >= static_cast<int32_t>(kInfinityBits)) status = kRowNotFinite;
      is_pending = status == kRowOk && plan.needs_all;
      const bool is_greedy = r.row.temperature == 0.0f && !plan.has_list && !is_pending;
      if ((status != kRowOk || is_greedy) && r.lane() == 0)
        finish(r, status, all.token, math::log_probability(max, max, math::log_of_weights(all.sum)),
               0);
    } else if (r.lane() == 0) {
      args().outputs[r.index] = SampleOutput{args().statuses[r.index], -1, 0.0f, 0};
    }
    if (r.lane() == 0) r.params->pending[r.index] = is_pending;
  }

  // Ranks the list of row k, if it has one. Called by the block.
  __device__ void rank(uint32_t k) {
    if (!begin_row(k) || !plan().has_list) return;
    const Item all = joined_items();
    const float max = unorder(key_of(all.count));
    if (key_of(all.count) >= static_cast<int32_t>(kInfinityBits) || max == -__builtin_inff())
      return;
    const uint32_t listed_count = shared->list_counts[k / kStreamBlocks];
    Left left = Left::kAll;
    if (listed_count <= kStreamListMax) {
      auto* const list = reinterpret_cast<uint64_t*>(slots);
      for (uint32_t i = threadIdx.x; i < listed_count; i += kBlockThreads)
        list[i] = __ldcg(&scratch[r.index].list[i]);
      const auto listed = read_list<kStreamListPerThread>(
          r, list, listed_count, reinterpret_cast<Bin*>(list + kStreamListMax));
      uint32_t top_count = 0;
      left = sample_from(r, listed, all, __uint_as_float(static_cast<uint32_t>(all.unused)),
                         Candidates(max, r.row.temperature), math::log_of_weights(all.sum),
                         &top_count);
    }
    __syncthreads();
    if (left != Left::kNothing && threadIdx.x == 0) r.params->pending[r.index] = 1;
  }
};

#endif

__global__ void __launch_bounds__(kBlockThreads, 1)
    sample_stream_kernel([[maybe_unused]] const __grid_constant__ SampleParams params) {
#if __CUDA_ARCH__ >= 900
  extern __shared__ __align__(128) uint8_t memory[];
  dependent_trigger();
  Stream stream;
  Row<true>& r = stream.r;
  r = begin_block<true>(params, memory);
  r.window = reinterpret_cast<uint32_t*>(memory + kStreamSharedBytes - kAccumulatorBytes);
  stream.shared = reinterpret_cast<StreamShared*>(memory + kSharedBytes);
  stream.scratch = static_cast<StreamScratch*>(params.args.scratch);
  stream.slots = reinterpret_cast<float*>(memory + kStreamSharedBytes);
  stream.chunk = kWarps * params.segment;
  stream.count = (params.args.row_count - blockIdx.y + gridDim.y - 1) / gridDim.y;
  if (threadIdx.x == 0) {
    for (auto& barriers : stream.shared->loaded)
      for (uint64_t& barrier : barriers) mbarrier_init(shared_address(&barrier), 1);
    for (uint64_t& barrier : stream.shared->gathered) mbarrier_init(shared_address(&barrier), 1);
    mbarrier_init_fence();
  }
  if (threadIdx.x < kStreamRowsMax) stream.shared->list_counts[threadIdx.x] = 0;
  cluster_sync();
  dependent_wait();

  if (r.lane() == 0)
    for (uint32_t k = 0; k < params.slots; ++k) stream.load(k, stream.source_of(k), 0, UINT32_MAX);
  auto source = stream.source_of(params.slots);
  RunningMax seen, seen_before;
  uint32_t gathers = 0;      // of rows before k
  bool was_sampled = false;  // row k - 1
  for (uint32_t k = 0; k <= stream.count; ++k) {
    bool is_sampled = false;
    if (k < stream.count) {
      is_sampled = stream.begin_row(k);
      mbarrier_wait(stream.loaded_barrier(k), k / params.slots % 2);
      if (is_sampled) seen = stream.reach(gathers);
    }
    if (k > 0) {
      const auto next = stream.source_of(k + params.slots);
      if (was_sampled) {
        stream.begin_row(k - 1);
        stream.weigh(k - 1, gathers - 1, seen_before, source);
      } else if (r.lane() == 0) {
        stream.load(k - 1 + params.slots, source, 0, UINT32_MAX);
      }
      source = next;
    }
    gathers += is_sampled;
    was_sampled = is_sampled;
    seen_before = seen;
  }

  cluster_sync();  // sums and lists of all blocks are visible
  for (uint32_t k = r.rank + kStreamBlocks * r.warp(); k < stream.count;
       k += kStreamBlocks * kWarps)
    stream.complete(k);
  __syncthreads();
  for (uint32_t k = r.rank; k < stream.count; k += kStreamBlocks) stream.rank(k);
#endif
}

}  // namespace
}  // namespace wcuda::kernels
