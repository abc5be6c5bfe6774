// sample: many rows. A cluster of blocks samples one row after another and meanwhile loads the next
// ones.
//
//   row      k + 2   loading, warp by warp, into the memory that row k - 1 frees
//            k + 1   loading or loaded
//            k       each warp finds its largest logit, and sends it to the cluster
//            k - 1   its weights are summed, once the cluster's largest logits have arrived
//
// In this pipeline a warp waits only for its own logits and for the largest logits of the others.
// Blocks have no barriers except where bias, mask or penalties apply. Sums and lists of candidates
// go to global memory. At the end each block completes every eighth row of the cluster: from the
// sums, by ranking the row's list, or by rereading the logits of the warp that has the token. Rows
// that need another method are marked and left to sample_kernel.
#pragma once

#include "kernels/ptx/bulk_copy.cuh"
#include "kernels/sampling/sample_changes.cuh"
#include "kernels/sampling/sample_list.cuh"
#include "kernels/sampling/sample_select.cuh"

namespace wcuda::kernels {
namespace {

using sample_plan::kPartFloat4s;
using sample_plan::kStreamBlocks;
using sample_plan::kStreamRowsMax;
using sample_plan::kStreamSlotsMax;
constexpr uint32_t kStreamWarps = kStreamBlocks * kWarps;
constexpr uint32_t kItemsPerLane = kStreamWarps / 32;
constexpr uint32_t kStreamListPerThread = 8;  // this and the next 3: kList… for longer lists
constexpr uint32_t kStreamListMax = kStreamListPerThread * kBlockThreads;
constexpr uint32_t kStreamListForTopP = 2100;
constexpr uint32_t kStreamListWantedMax = 2400;
constexpr uint32_t kGatherSlots = 4;  // a warp may be two rows ahead of another

// Device memory of a row. `items` has one item per warp of the cluster, in which `count` is rank_of
// the row's largest logit and `unused` holds the bits of the list's threshold.
struct StreamScratch {
  Item items[kStreamWarps];
  uint64_t list[kStreamListMax];
};

// What the warps read of a row while its logits are in shared memory.
struct __align__(16) StreamRow {
  uint32_t index;
  uint32_t logits_row;
  float temperature;
  float min_p_distance;
  // Each warp proposes a threshold that at least `lanes` of its lanes reach. Warps form groups of
  // kItemsPerLane. In `groups` groups or more, all proposals reach the list's threshold. 0: none.
  uint32_t lanes, groups;
  bool has_changes, has_list;
  NeededSums sums;
};

struct StreamShared {
  uint64_t loaded[kStreamSlotsMax][kWarps];  // barriers
  uint64_t gathered[kGatherSlots];           // barriers
  // The largest logit of each warp and the threshold that it proposes, both as rank_of values.
  __align__(16) uint64_t reached[kGatherSlots][kStreamWarps];
  StreamRow rows[kStreamRowsMax];
  uint32_t row_count;
  uint32_t list_counts[kStreamRowsMax / kStreamBlocks];  // of the rows that this block completes
};
constexpr uint32_t kStreamSharedBytes =
    kSharedBytes + (sizeof(StreamShared) + 127) / 128 * 128 + kAccumulatorBytes;

// Returns the `count`-th largest value of the warp.
__device__ __forceinline__ uint32_t warp_threshold(uint32_t value, uint32_t count) {
  const uint32_t lane = threadIdx.x % 32;
#pragma unroll
  for (uint32_t run = 2; run <= 32; run *= 2) {
#pragma unroll
    for (uint32_t step = run / 2; step > 0; step /= 2) {  // a bitonic sort, the largest first
      const uint32_t other = __shfl_xor_sync(kAllLanes, value, step);
      const bool keeps_max = ((lane & step) == 0) == ((lane & run) == 0);
      value = keeps_max ? max(value, other) : min(value, other);
    }
  }
  return __shfl_sync(kAllLanes, value, count - 1);
}

#if __CUDA_ARCH__ >= 900 || !defined(__CUDA_ARCH__)

template <bool kHasFilters>
struct Stream {
  Row<true> r;
  StreamShared* shared;
  StreamScratch* scratch;  // (row_count)
  float* slots;            // (params.slots, chunk)
  uint32_t chunk;          // floats
  uint32_t count;          // rows of the cluster to stream

  __device__ const SampleArgs& args() const { return r.params->args; }
  __device__ StreamScratch& scratch_of(uint32_t k) const { return scratch[shared->rows[k].index]; }
  __device__ uint32_t loaded_barrier(uint32_t slot) const {
    return shared_address(&shared->loaded[slot][r.warp()]);
  }

  // Lists the rows of the cluster to stream, and completes or marks the others. Called by a warp.
  __device__ void list_rows() const {
    uint32_t listed = 0;
    for (uint32_t first = blockIdx.y; first < args().row_count; first += 32 * gridDim.y) {
      const uint32_t index = first + r.lane() * gridDim.y;
      bool is_listed = false;
      StreamRow own;
      if (index < args().row_count) {
        const SampleRow row = args().rows[index];
        const int32_t status = args().statuses[index];
        const bool is_sampled = row.is_sampled != 0 && status == kRowOk;
        const ListPlan plan = list_plan<kHasFilters>(row, kStreamListForTopP, kStreamListWantedMax);
        is_listed = is_sampled && !plan.needs_all;
        // Of 128,256 normally distributed logits, 1.1 to 1.5 times as many as wanted are listed.
        own = {index,
               row.logits_row,
               row.temperature,
               plan.min_p_distance,
               (plan.wanted + 159) / 160,
               min((plan.wanted + 3) / 4, 16u),
               has_changes(row),
               plan.has_list,
               NeededSums(row, plan.has_list)};
        if (r.rank == 0) {
          r.params->pending[index] = is_sampled && plan.needs_all;
          if (!is_sampled) args().outputs[index] = SampleOutput{status, -1, 0.0f, 0};
        }
      }
      const uint32_t lanes = __ballot_sync(kAllLanes, is_listed);
      if (is_listed) shared->rows[listed + __popc(lanes & ((1u << r.lane()) - 1))] = own;
      listed += __popc(lanes);
    }
    if (r.lane() == 0) shared->row_count = listed;
  }

  // Prefetches the warp's logits of the first rows into L2, on the assumption that row i samples
  // from logits i. Called by one lane.
  __device__ void prefetch() const {
    const auto bytes = static_cast<uint32_t>((r.warp_end - r.warp_begin) * sizeof(float));
    for (uint32_t k = 0; k < r.params->slots && bytes > 0; ++k) {
      const uint32_t index = blockIdx.y + k * gridDim.y;
      if (index < args().logits_count)
        bulk_prefetch(args().logits + uint64_t{index} * args().vocabulary + r.warp_begin, bytes);
    }
  }

  // Loads the warp's logits of row k. Called by one lane.
  __device__ void load(uint32_t k, uint32_t slot) const {
    if (k >= count) return;
    const uint32_t barrier = loaded_barrier(slot);
    const auto bytes = static_cast<uint32_t>((r.warp_end - r.warp_begin) * sizeof(float));
    mbarrier_expect_tx(barrier, bytes);
    if (bytes == 0) return;
    const float* const logits =
        args().logits + uint64_t{shared->rows[k].logits_row} * args().vocabulary;
    float* const to = slots + slot * chunk + (r.warp_begin - r.block_begin);
    bulk_copy(shared_address(to), logits + r.warp_begin, bytes, barrier);
  }

  // Makes row k the current row of `r`.
  __device__ void begin_row(uint32_t k) {
    r.index = shared->rows[k].index;
    r.row = args().rows[r.index];
  }

  // Sends the warp's largest logit of row k to the cluster. Returns the thread's running maximum.
  __device__ RunningMax reach(uint32_t k, uint32_t slot) {
    const StreamRow row = shared->rows[k];
    r.values = slots + slot * chunk;
    RunningMax seen;
    for_each_part([&](float logit) { seen.see(logit); }, [] {});
    if (row.has_changes) {
      begin_row(k);
      seen = apply_changes(r, seen);
      fence_proxy_async();  // before later bulk copies into this memory
      __syncthreads();
    }
    const uint32_t rank = rank_of(seen.key());
    const uint32_t max_rank = __reduce_max_sync(kAllLanes, rank);
    const uint32_t threshold_rank =
        kHasFilters && row.lanes > 1 ? warp_threshold(rank, row.lanes) : max_rank;
    const uint32_t at = k % kGatherSlots;
    const uint32_t barrier = shared_address(&shared->gathered[at]);
    if (threadIdx.x == 0) mbarrier_expect_tx(barrier, sizeof(shared->reached[at]));
    if (r.lane() < kStreamBlocks)
      cluster_store_async(
          cluster_address(shared_address(&shared->reached[at][r.rank * kWarps + r.warp()]),
                          r.lane()),
          uint64_t{max_rank} << 32 | threshold_rank, cluster_address(barrier, r.lane()));
    return seen;
  }

  // Sums the weights of row k, and loads row k + slots into its place. `seen` is what reach()
  // returned for row k.
  __device__ void weigh(uint32_t k, uint32_t slot, const RunningMax& seen) {
    const StreamRow row = shared->rows[k];
    r.values = slots + slot * chunk;
    const uint32_t at = k % kGatherSlots;
    // The data arrives in this block's shared memory, so the wait needs no acquire at cluster
    // scope, which would invalidate the L1 cache.
    mbarrier_wait(shared_address(&shared->gathered[at]), k / kGatherSlots % 2);
    uint32_t max_rank = 0, threshold_rank = UINT32_MAX;
#pragma unroll
    for (uint32_t i = 0; i < kItemsPerLane; ++i) {
      const uint64_t reached = shared->reached[at][kItemsPerLane * r.lane() + i];
      max_rank = max(max_rank, static_cast<uint32_t>(reached >> 32));
      threshold_rank = min(threshold_rank, static_cast<uint32_t>(reached));
    }
    max_rank = __reduce_max_sync(kAllLanes, max_rank);
    const bool has_threshold = kHasFilters && row.groups > 0;
    threshold_rank = has_threshold ? warp_threshold(threshold_rank, row.groups) : UINT32_MAX;
    const float max_logit = unorder(key_of(max_rank));
    const float threshold = list_threshold(threshold_rank, row.min_p_distance, max_logit);
    const bool is_good = status_of(max_rank) == kRowOk;
    const bool has_list = kHasFilters && row.has_list && is_good;
    uint64_t found = 0;
    uint32_t before = 0, first = 0;  // places in the list, see reserve()
    if (has_list) {
      if (seen.max >= threshold) found = find_listed(threshold);
      before = reserve(k, found, &first);
    }

    uint32_t best = kNoToken;
    if (seen.max == max_logit)
      r.for_each([&](uint32_t id, float logit) {
        if (logit == max_logit) best = min(best, id);
      });
    const bool has_sums = is_good && row.sums.any();
    WeightSum sum, tempered_sum;
    const auto leave = [&] {
      __syncwarp();
      if (r.lane() == 0) load(k + r.params->slots, slot);
    };
    if (has_sums)
      add_weights(Candidates(max_logit, row.temperature), row.sums, &sum, &tempered_sum,
                  [&](auto, auto visit) {
                    for_each_part(visit, [&] {
                      if (!has_list) leave();
                    });
                  });
    if (has_list) write_list(k, found, __shfl_sync(kAllLanes, first, 31) + before);
    if (has_list || !has_sums) leave();
    if (row.temperature == 1.0f) tempered_sum = sum;
    const Item item{sum.warp_total(), tempered_sum.warp_total(), __reduce_min_sync(kAllLanes, best),
                    max_rank, __float_as_uint(threshold)};
    if (r.lane() == 0) scratch_of(k).items[r.rank * kWarps + r.warp()] = item;
  }

  // Calls visit(logit) for the warp's tokens, and leave() when all have been read.
  template <class Visit, class Leave>
  __device__ __forceinline__ void for_each_part(Visit visit, Leave leave) const {
    const auto* const run =
        reinterpret_cast<const float4*>(r.values + (r.warp_begin - r.block_begin)) + r.lane();
    const uint32_t float4s = (r.warp_end - r.warp_begin) / 4;
    for (uint32_t first = 0; first == 0 || first < float4s; first += kPartFloat4s) {
      float4 fours[kPartFloat4s / 32];
      if (first + kPartFloat4s <= float4s) {
#pragma unroll
        for (uint32_t i = 0; i < kPartFloat4s / 32; ++i) fours[i] = run[first + 32 * i];
      } else {
        const float absent = -__builtin_inff();
#pragma unroll
        for (uint32_t i = 0; i < kPartFloat4s / 32; ++i) {
          fours[i] = make_float4(absent, absent, absent, absent);
          if (first + 32 * i + r.lane() < float4s) fours[i] = run[first + 32 * i];
        }
      }
      if (first + kPartFloat4s >= float4s) leave();
#pragma unroll
      for (const float4& four : fours) {
        visit(four.x);
        visit(four.y);
        visit(four.z);
        visit(four.w);
      }
    }
  }

  // Returns which of the lane's logits reach the threshold: bit 16p + 4i + c for component c of
  // float4 i of part p.
  __device__ __forceinline__ uint64_t find_listed(float threshold) const {
    static_assert(kPartFloat4s == 4 * 32);
    const auto* const run =
        reinterpret_cast<const float4*>(r.values + (r.warp_begin - r.block_begin));
    const uint32_t float4s = (r.warp_end - r.warp_begin) / 4;
    uint64_t found = 0;
    for (uint32_t part = 0; part * kPartFloat4s < float4s; ++part) {
      uint32_t bits = 0;
#pragma unroll
      for (uint32_t i = 0; i < 4; ++i) {
        const uint32_t at = part * kPartFloat4s + 32 * i + r.lane();
        const float4 four = run[min(at, float4s - 1)];
        if (four.x >= threshold) bits |= 1u << (4 * i);
        if (four.y >= threshold) bits |= 2u << (4 * i);
        if (four.z >= threshold) bits |= 4u << (4 * i);
        if (four.w >= threshold) bits |= 8u << (4 * i);
      }
      found |= uint64_t{bits} << (16 * part);
    }
    const uint32_t count = (float4s + 31 - r.lane()) / 32;  // float4s of the lane
    return count < 16 ? found & ((uint64_t{1} << (4 * count)) - 1) : found;
  }
  // Reserves places in the list of row k for the tokens that the warp's lanes found. Returns how
  // many of them are in lower lanes. Sets *first, in lane 31 only, to the warp's first place.
  __device__ uint32_t reserve(uint32_t k, uint64_t found, uint32_t* first) const {
    const auto own = static_cast<uint32_t>(__popcll(found));
    uint32_t sum = own;
#pragma unroll
    for (uint32_t step = 1; step < 32; step *= 2) {
      const uint32_t from = __shfl_up_sync(kAllLanes, sum, step);
      if (r.lane() >= step) sum += from;
    }
    if (r.lane() == 31 && sum > 0)
      *first = atomicAdd(
          cluster_pointer(&shared->list_counts[k / kStreamBlocks], k % kStreamBlocks), sum);
    return sum - own;
  }
  // Writes these tokens to the list, starting at place `at`.
  __device__ void write_list(uint32_t k, uint64_t found, uint32_t at) const {
    uint64_t* const list = scratch_of(k).list;
    uint32_t first_id = r.warp_begin + 4 * r.lane();
    for (; found != 0; found >>= 32, first_id += 2 * 4 * kPartFloat4s) {
      for (auto word = static_cast<uint32_t>(found); word != 0; word &= word - 1, ++at) {
        const auto bit = static_cast<uint32_t>(__ffs(static_cast<int32_t>(word)) - 1);
        const uint32_t id =
            first_id + bit / 16 * (4 * kPartFloat4s) + bit % 16 / 4 * (4 * 32) + bit % 4;
        if (at < kStreamListMax) list[at] = uint64_t{__float_as_uint(r.value(id))} << 32 | id;
      }
    }
  }

  // Returns the combined items of all warps for row k. Called by a whole warp.
  __device__ Item joined_items(uint32_t k) const {
    Item all{0, 0, kNoToken, 0, 0};
#pragma unroll
    for (uint32_t i = 0; i < kItemsPerLane; ++i) {
      const Item& item = scratch_of(k).items[32 * i + r.lane()];
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

  // Completes row k if it failed, or if it is greedy and has no list. Called by a whole warp.
  __device__ void complete(uint32_t k) {
    begin_row(k);
    const Item all = joined_items(k);
    const float max = unorder(key_of(all.count));
    const int32_t status = status_of(all.count);
    const bool is_drawn = r.row.temperature != 0.0f || shared->rows[k].has_list;
    if ((status != kRowOk || !is_drawn) && r.lane() == 0)
      finish(r, status, all.token, math::log_probability(max, max, math::log_of_weights(all.sum)),
             0);
  }

  // Draws row k from its list or from all tokens, unless complete() has completed it. Called by the
  // block.
  __device__ void draw(uint32_t k) {
    begin_row(k);
    if (r.row.temperature == 0.0f && !shared->rows[k].has_list) return;
    const Item all = joined_items(k);
    if (status_of(all.count) != kRowOk) return;
    const Candidates candidates(unorder(key_of(all.count)), r.row.temperature);
    const double log_sum = math::log_of_weights(all.sum);
    if (kHasFilters && shared->rows[k].has_list)
      rank_list(k, all, candidates, log_sum);
    else
      locate_again(k, all, candidates, log_sum);
    __syncthreads();
  }

  // Ranks the list of row k.
  __device__ void rank_list(uint32_t k, const Item& all, const Candidates& candidates,
                            double log_sum) {
    const uint32_t listed_count = shared->list_counts[k / kStreamBlocks];
    Left left = Left::kAll;
    if (listed_count <= kStreamListMax) {
      auto* const list = reinterpret_cast<uint64_t*>(slots);  // its bins follow
      for (uint32_t i = threadIdx.x; i < listed_count; i += kBlockThreads)
        list[i] = __ldcg(&scratch_of(k).list[i]);
      const auto listed = read_list<kStreamListPerThread>(
          r, list, listed_count, reinterpret_cast<Bin*>(list + kStreamListMax));
      uint32_t top_count = 0;
      left = sample_from(r, listed, all, __uint_as_float(static_cast<uint32_t>(all.unused)),
                         candidates, log_sum, &top_count);
    }
    if (left != Left::kNothing && threadIdx.x == 0) r.params->pending[r.index] = 1;
  }

  // Draws row k from all tokens (rule 7 of ops/sampling.h). From the sums of weights, finds the
  // warp that has the token. Rereads its logits, or its whole block's if bias, mask or penalties
  // apply.
  __device__ void locate_again(uint32_t k, const Item& all, const Candidates& candidates,
                               double log_sum) {
    const uint64_t goal =
        math::mul_high(math::random_bits(r.row.seed, r.row.position), all.other) + 1;
    uint64_t sums[kItemsPerLane], own = 0;
#pragma unroll
    for (uint32_t i = 0; i < kItemsPerLane; ++i)
      own += sums[i] = __ldcg(&scratch_of(k).items[kItemsPerLane * r.lane() + i].other);
    const uint64_t prefix = warp_prefix(own, r.lane());
    const int32_t lane = __ffs(__ballot_sync(kAllLanes, prefix >= goal)) - 1;
    uint64_t before = prefix - own;
    uint32_t at = 0;
#pragma unroll
    for (uint32_t i = 0; i < kItemsPerLane - 1; ++i) {
      if (at == i && before + sums[i] < goal) {
        before += sums[i];
        ++at;
      }
    }
    before = __shfl_sync(kAllLanes, before, lane);
    const uint32_t warp = __shfl_sync(kAllLanes, kItemsPerLane * r.lane() + at, lane);

    r.view(warp / kWarps);
    r.values = slots;
    const bool is_changed = shared->rows[k].has_changes, is_owner = r.warp() == warp % kWarps;
    if (is_changed || is_owner)
      load_logits(r, args().logits + uint64_t{r.row.logits_row} * args().vocabulary, true);
    if (is_changed) apply_changes(r, RunningMax{});
    __syncwarp();
    if (is_owner)
      locate_in_warp(
          r, before, goal,
          [&](uint32_t, float logit) { return weight(math::exp_negative(candidates.y(logit))); },
          [&](uint32_t id, float logit) {
            finish(r, kRowOk, id, math::log_probability(logit, candidates.max, log_sum), 0);
          });
  }
};

#endif

template <bool kHasFilters>
__global__ void __launch_bounds__(kBlockThreads, 1)
    sample_stream_kernel([[maybe_unused]] const __grid_constant__ SampleParams params) {
#if __CUDA_ARCH__ >= 900
  extern __shared__ __align__(128) uint8_t memory[];
  dependent_trigger();
  Stream<kHasFilters> stream;
  Row<true>& r = stream.r;
  r = begin_block<true>(params, memory);
  r.window = reinterpret_cast<uint32_t*>(memory + kStreamSharedBytes - kAccumulatorBytes);
  stream.shared = reinterpret_cast<StreamShared*>(memory + kSharedBytes);
  stream.scratch = static_cast<StreamScratch*>(params.args.scratch);
  stream.slots = reinterpret_cast<float*>(memory + kStreamSharedBytes);
  stream.chunk = kWarps * params.segment;
  if (threadIdx.x == 0) {
    for (auto& barriers : stream.shared->loaded)
      for (uint64_t& barrier : barriers) mbarrier_init(shared_address(&barrier), 1);
    for (uint64_t& barrier : stream.shared->gathered) mbarrier_init(shared_address(&barrier), 1);
    for (uint32_t& list_count : stream.shared->list_counts) list_count = 0;
    mbarrier_init_fence();
  }
  cluster_sync();
  dependent_wait();

  if (r.lane() == 0) stream.prefetch();
  if (r.warp() == 0) stream.list_rows();
  __syncthreads();
  stream.count = stream.shared->row_count;
  if (r.lane() == 0)
    for (uint32_t k = 0; k < params.slots; ++k) stream.load(k, k);
  RunningMax seen;
  uint32_t slot = 0, parity = 0, slot_before = 0;
  for (uint32_t k = 0; k <= stream.count; ++k) {
    const RunningMax seen_before = seen;
    if (k < stream.count) {
      mbarrier_wait(stream.loaded_barrier(slot), parity);
      seen = stream.reach(k, slot);
    }
    if (k > 0) stream.weigh(k - 1, slot_before, seen_before);
    slot_before = slot;
    if (++slot == params.slots) {
      slot = 0;
      parity ^= 1;
    }
  }

  cluster_sync();  // sums and lists of all blocks are visible
  const uint32_t rank = r.rank;
  for (uint32_t k = rank + kStreamBlocks * r.warp(); k < stream.count; k += kStreamWarps)
    stream.complete(k);
  for (uint32_t k = rank; k < stream.count; k += kStreamBlocks) stream.draw(k);
#endif
}

}  // namespace
}  // namespace wcuda::kernels
