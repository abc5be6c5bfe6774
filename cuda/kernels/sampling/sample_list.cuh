// sample: ranks a short list of a row's largest logits, in the first block of the cluster alone.
#pragma once

#include "kernels/sampling/sample_candidates.cuh"

namespace wcuda::kernels {
namespace {

// Returns how many of the largest logits determine the result, or 0 if a list does not help.
// `for_top_p` is the number for a sum of probabilities.
__device__ inline uint32_t tokens_wanted(const SampleRow& row, uint32_t for_top_p) {
  uint32_t wanted = row.top_logprobs;
  if (row.temperature == 0.0f) return wanted;
  if (row.top_k != 0) return max(wanted, row.top_k);
  if (row.typical_p != 0.0f && row.typical_p < 1.0f) return wanted;
  return row.top_p != 0.0f && row.top_p < 1.0f ? max(wanted, for_top_p) : wanted;
}

// Returns whether min-p is the only filter.
__device__ inline bool is_min_p_alone(const SampleRow& row) {
  return row.temperature != 0.0f && row.min_p != 0.0f && row.top_k == 0 &&
         (row.top_p == 0.0f || row.top_p >= 1.0f) &&
         (row.typical_p == 0.0f || row.typical_p >= 1.0f);
}
// Returns how far below the largest logit a token must be so that min-p certainly removes it.
__device__ inline float min_p_distance(const SampleRow& row) {
  return (0.01f - __logf(row.min_p)) * 1.001f * row.temperature;
}

// How a row is ranked.
struct ListPlan {
  uint32_t wanted;       // see tokens_wanted()
  float min_p_distance;  // of the tokens to list; -infinity: this does not matter
  bool has_list;
  bool needs_all;  // only a ranking of all tokens will do
};
template <bool kHasFilters>
__device__ __forceinline__ ListPlan list_plan(const SampleRow& row, uint32_t for_top_p,
                                              uint32_t wanted_max) {
  if (!kHasFilters) return {};
  ListPlan plan;
  const bool is_by_min_p = is_min_p_alone(row);
  plan.wanted = tokens_wanted(row, for_top_p);
  plan.min_p_distance = is_by_min_p ? min_p_distance(row) : -__builtin_inff();
  plan.has_list = (plan.wanted > 0 || is_by_min_p) && plan.wanted <= wanted_max;
  plan.needs_all =
      !plan.has_list && (row.top_logprobs > 0 || (row.temperature != 0.0f && has_filter(row)));
  return plan;
}

// A block's largest logit, and a logit that enough of its tokens reach, both as rank_of.
struct Reached {
  uint32_t max_rank;
  uint32_t threshold_rank;
};
// Returns them in warp 0. `seen`: the thread's. Called by all threads.
template <bool kIsShared>
__device__ __forceinline__ Reached block_reached(const Row<kIsShared>& r, uint32_t* ranks,
                                                 const RunningMax& seen, const ListPlan& plan) {
  const uint32_t reached = rank_of(seen.key());
  const uint32_t warp_reached = __reduce_max_sync(kAllLanes, reached);
  if (r.lane() == 0) ranks[r.warp()] = warp_reached;
  const bool has_threshold = plan.has_list && plan.wanted > 0;
  const uint32_t block_wanted = min(plan.wanted / r.size + 1, kBlockThreads * 3 / 4);
  const bool is_by_warps = block_wanted <= kWarps / 2;
  Reached own{0, UINT32_MAX};
  if (has_threshold && !is_by_warps)
    own.threshold_rank = block_threshold(reached, block_wanted);
  else
    __syncthreads();
  if (r.warp() != 0) return own;
  const uint32_t rank = r.lane() < kWarps ? ranks[r.lane()] : 0;
  own.max_rank = __reduce_max_sync(kAllLanes, rank);
  if (has_threshold && is_by_warps) {  // a logit that enough warps have reached
    uint32_t place = 0;
    for (uint32_t i = 0; i < kWarps; ++i) {
      const uint32_t other = __shfl_sync(kAllLanes, rank, i);
      place += other > rank || (other == rank && i < r.lane());
    }
    own.threshold_rank = __reduce_max_sync(kAllLanes, place + 1 == block_wanted ? rank : 0);
  }
  return own;
}
// Returns the least logit of the list. `rank`: rank_of the logit that enough tokens reach;
// UINT32_MAX if no number of tokens is wanted: that of a NaN, which fminf ignores.
__device__ __forceinline__ float list_threshold(uint32_t rank, float min_p_distance, float max) {
  const float lowest = -__builtin_inff();
  const float threshold = rank > rank_of(order(lowest)) ? unorder(key_of(rank)) : lowest;
  return fminf(threshold, max - min_p_distance);
}

// Appends the tokens whose logit is at least `threshold` to the list, and counts them.
template <bool kIsShared>
__device__ void gather(const Row<kIsShared>& r, float threshold, const RunningMax& seen) {
  if (seen.max >= threshold)
    r.for_each([&](uint32_t id, float logit) {
      if (!(logit >= threshold)) return;
      const uint32_t at = atomicAdd(&r.shared->list_count, 1u);
      if (at < kListMax) r.list()[at] = uint64_t{__float_as_uint(logit)} << 32 | id;
    });
}

// Appends the lists of the other blocks to that of the first block, which waits for them.
template <bool kIsShared>
__device__ void send_list(const Row<kIsShared>& r, const Item* items, uint32_t count) {
#if __CUDA_ARCH__ >= 900
  const uint32_t barrier = shared_address(&r.shared->barriers[2]);
  if (r.rank == 0) {
    if (threadIdx.x == 0)
      mbarrier_expect_tx(barrier,
                         static_cast<uint32_t>((count - items[0].count) * sizeof(uint64_t)));
    mbarrier_wait_cluster(barrier, 0);
    return;
  }
  uint32_t before = 0;
  for (uint32_t i = 0; i < r.rank; ++i) before += items[i].count;
  const uint32_t target = cluster_address(shared_address(r.list() + before), 0);
  const uint32_t target_barrier = cluster_address(barrier, 0);
  for (uint32_t i = threadIdx.x; i < items[r.rank].count; i += kBlockThreads)
    cluster_store_async(target + static_cast<uint32_t>(i * sizeof(uint64_t)), r.list()[i],
                        target_barrier);
#endif
}

// One value for each of a thread's tokens of the list, of which there are at most
// kSlots * kBlockThreads.
template <class T, uint32_t kSlots>
struct Each {
  T at[kSlots];
};
template <uint32_t kSlots>
using Values = Each<uint32_t, kSlots>;
template <uint32_t kSlots>
using Measures = Each<uint64_t, kSlots>;  // 0: no token here, or a filter has removed it

// Returns map(slot) for each slot.
template <class T, uint32_t kSlots, class Map>
__device__ __forceinline__ Each<T, kSlots> each(Map map) {
  Each<T, kSlots> result;
#pragma unroll
  for (uint32_t slot = 0; slot < kSlots; ++slot) result.at[slot] = map(slot);
  return result;
}

// Returns the sum of `own` over the block; *before receives the sum over earlier threads. Called by
// all threads; overwrites `segments`; ends with a block barrier.
__device__ __forceinline__ uint64_t block_sum(Shared* shared, uint64_t own, uint64_t* before) {
  const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const uint64_t prefix = warp_prefix(own, lane);
  if (lane == 31) shared->segments[warp] = prefix;
  __syncthreads();
  const uint64_t segment = lane < kWarps ? shared->segments[lane] : 0;
  *before = warp_sum_small(lane < warp ? segment : 0) + prefix - own;
  const uint64_t total = warp_sum_small(segment);
  __syncthreads();
  return total;
}
template <uint32_t kSlots>
__device__ inline uint64_t total_of(Shared* shared, const Measures<kSlots>& measures) {
  uint64_t own = 0, before;
#pragma unroll
  for (const uint64_t measure : measures.at) own += measure;
  return block_sum(shared, own, &before);
}
template <uint32_t kSlots>
__device__ inline Measures<kSlots> ones(const Measures<kSlots>& measures) {
  return each<uint64_t, kSlots>([&](uint32_t slot) { return measures.at[slot] != 0 ? 1 : 0; });
}

struct Selected {
  uint32_t value;
  uint64_t before;  // sum of the measures of smaller values
  bool is_alone;    // one token alone has this value
};

// Finds the least value such that the measures of all values up to it sum to at least `needed`,
// which is at least 1 and at most the sum of all. Values are at most `high`. The bins must be zero,
// and are zero afterwards.
template <uint32_t kSlots>
__device__ __noinline__ Selected select_in_list(Shared* shared, Bin* bins, Values<kSlots> values,
                                                Measures<kSlots> measures, uint32_t high,
                                                uint64_t needed) {
  Selected selected{0, 0, false};
#pragma unroll 1
  while (selected.value < high && !selected.is_alone) {
    const uint32_t low = selected.value;
    const uint32_t bits = 32 - __clz(high - low);
    const uint32_t shift = bits > kBinBits ? bits - kBinBits : 0;
#pragma unroll
    for (uint32_t slot = 0; slot < kSlots; ++slot) {
      const uint32_t own = values.at[slot];
      if (measures.at[slot] != 0 && own >= low && own <= high)
        add_to(&bins[(own - low) >> shift], measures.at[slot]);
    }
    __syncthreads();
    uint64_t part[kBinsPerThread], sum = 0;
    auto* const mine = reinterpret_cast<uint4*>(bins + kBinsPerThread * threadIdx.x);
#pragma unroll
    for (uint32_t i = 0; i < kBinsPerThread / 2; ++i) {
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
      for (uint32_t i = 0; i < kBinsPerThread - 1; ++i) {
        if (at == i && passed + part[i] < needed) {
          passed += part[i];
          ++at;
        }
      }
      shared->found_bin = kBinsPerThread * threadIdx.x + at;
      shared->found_before = passed;
    }
    __syncthreads();
    selected.value = low + (shared->found_bin << shift);
    selected.before = shared->found_before;
    high = min(high, selected.value + (1u << shift) - 1);
    // If the bin has one token alone, the value is that token's.
    uint32_t own_count = 0, own_value = 0;
#pragma unroll
    for (uint32_t slot = 0; slot < kSlots; ++slot) {
      const uint32_t own = values.at[slot];
      if (measures.at[slot] == 0 || own < selected.value || own > high) continue;
      ++own_count;
      own_value = own;
    }
    if (__syncthreads_count(own_count != 0) != 1) continue;
    if (own_count != 0) shared->found_token = own_count == 1 ? own_value : kNotRanked;
    __syncthreads();
    selected.is_alone = shared->found_token != kNotRanked;
    if (selected.is_alone) selected.value = shared->found_token;
  }
  return selected;
}

// A thread's tokens of the list.
template <uint32_t kSlots>
struct Listed {
  Shared* shared;
  Bin* bins;
  uint32_t id_max;
  Each<float, kSlots> logits;
  Values<kSlots> ids;
  Each<bool, kSlots> is_in;

  // Keeps in `kept` only the shortest beginning of the ranking by (value, id) whose measures sum to
  // at least `needed`; returns the last value kept.
  __device__ uint32_t cut(const Values<kSlots>& values, const Measures<kSlots>& measures,
                          uint64_t needed, Measures<kSlots>* kept) const {
    const Selected last = select_in_list(shared, bins, values, measures, kInfinityBits, needed);
    uint32_t last_id = id_max;
    if (!last.is_alone) {
      const Measures<kSlots> ties = each<uint64_t, kSlots>(
          [&](uint32_t slot) { return values.at[slot] == last.value ? measures.at[slot] : 0; });
      last_id = select_in_list(shared, bins, ids, ties, id_max, needed - last.before).value;
    }
    *kept = each<uint64_t, kSlots>([&](uint32_t slot) {
      const bool is_kept = values.at[slot] < last.value ||
                           (values.at[slot] == last.value && ids.at[slot] <= last_id);
      return is_kept ? kept->at[slot] : 0;
    });
    return last.value;
  }
};

// Reads the `count` tokens of `list`. `bins`: (kBins).
template <uint32_t kSlots, bool kIsShared>
__device__ Listed<kSlots> read_list(const Row<kIsShared>& r, const uint64_t* list, uint32_t count,
                                    Bin* bins) {
  Listed<kSlots> listed{r.shared, bins, r.params->args.vocabulary - 1, {}, {}, {}};
#pragma unroll
  for (uint32_t slot = 0; slot < kSlots; ++slot) {
    const uint32_t i = slot * kBlockThreads + threadIdx.x;
    const uint64_t token = i < count ? list[i] : 0;
    listed.logits.at[slot] = __uint_as_float(static_cast<uint32_t>(token >> 32));
    listed.ids.at[slot] = static_cast<uint32_t>(token);
    listed.is_in.at[slot] = i < count;
  }
  for (uint32_t i = threadIdx.x; i < kBins; i += kBlockThreads) bins[i] = {0, 0};
  __syncthreads();
  return listed;
}

// Writes the alternatives (rule 4) from the list. Returns false if the list may lack some.
template <bool kIsShared, uint32_t kSlots>
__device__ bool report_top_of_list(const Row<kIsShared>& r, const Listed<kSlots>& listed,
                                   float threshold, const RankByLogprob& rank,
                                   uint32_t* top_count) {
  const SampleArgs& args = r.params->args;
  const uint32_t wanted = min(min(r.row.top_logprobs, args.top_stride), kSampleTopLogprobsMax);
  // The least key of tokens outside the list; kNotRanked: there are none.
  const uint32_t limit = rank.key(0, threshold);
  const Values<kSlots> keys =
      each<uint32_t, kSlots>([&](uint32_t slot) { return rank.key(0, listed.logits.at[slot]); });
  Measures<kSlots> kept = each<uint64_t, kSlots>(
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
  for (uint32_t slot = 0; slot < kSlots; ++slot)
    if (kept.at[slot] != 0)
      r.shared->top[atomicAdd(&r.shared->top_count, 1u)] =
          uint64_t{keys.at[slot]} << 32 | listed.ids.at[slot];
  __syncthreads();
  *top_count = r.shared->top_count;
  write_top(r, *top_count);
  return true;
}

// Filters and draws (rules 6 and 7) from the list. `total` is the weight of all candidates; it is
// not needed with top-k. Calls found(id, logit) in one thread. Returns false if the list may lack
// candidates.
template <bool kIsShared, uint32_t kSlots, class Found>
__device__ bool draw_from_list(const Row<kIsShared>& r, const Listed<kSlots>& listed,
                               float threshold, const Candidates& candidates, uint64_t total,
                               Found found) {
  const SampleRow& row = r.row;
  const float outside = candidates.y(threshold);  // lower bound of y for tokens outside the list
  const bool is_complete =
      outside > 27.1f || (is_min_p_alone(row) && math::exp_negative(outside) * 1.001f < row.min_p);
  const uint32_t limit = is_complete ? kNotRanked : __float_as_uint(outside);
  const bool has_top_p = row.top_p != 0.0f && row.top_p < 1.0f;
  const bool has_typical = row.typical_p != 0.0f && row.typical_p < 1.0f;
  if (row.top_k == 0 && !is_complete && (has_typical || !has_top_p)) return false;

  const auto y = [&](uint32_t slot) { return candidates.y(listed.logits.at[slot]); };
  const Values<kSlots> keys =
      each<uint32_t, kSlots>([&](uint32_t slot) { return __float_as_uint(y(slot)); });
  const auto p = [&](uint32_t slot) { return math::exp_negative(__uint_as_float(keys.at[slot])); };
  Measures<kSlots> kept = each<uint64_t, kSlots>(
      [&](uint32_t slot) { return listed.is_in.at[slot] ? weight(p(slot)) : 0; });
  if (row.top_k != 0) {
    const Measures<kSlots> counts = ones(kept);
    const uint64_t count = total_of(r.shared, counts);
    if (count < row.top_k && !is_complete) return false;
    if (count >= row.top_k && listed.cut(keys, counts, row.top_k, &kept) >= limit && !is_complete)
      return false;
  }
  if (has_typical) {
    const uint64_t sum = total_of(r.shared, kept);
    const uint64_t product_sum =
        total_of(r.shared, each<uint64_t, kSlots>([&](uint32_t slot) {
                   return kept.at[slot] != 0 ? weight(math::mul(y(slot), p(slot))) : 0;
                 }));
    const float mean =
        static_cast<float>(math::div(static_cast<double>(product_sum), static_cast<double>(sum)));
    const Values<kSlots> distances = each<uint32_t, kSlots>(
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
    for (uint32_t slot = 0; slot < kSlots; ++slot)
      if (kept.at[slot] != 0) largest = max(largest, __float_as_uint(p(slot)));
    largest = __reduce_max_sync(kAllLanes, largest);
    if (r.lane() == 0) r.shared->segments[r.warp()] = largest;
    __syncthreads();
    largest = __reduce_max_sync(
        kAllLanes, static_cast<uint32_t>(r.lane() < kWarps ? r.shared->segments[r.lane()] : 0));
    __syncthreads();
    const float floor = math::mul(row.min_p, __uint_as_float(largest));
    kept =
        each<uint64_t, kSlots>([&](uint32_t slot) { return p(slot) >= floor ? kept.at[slot] : 0; });
  }

  const uint64_t sum = total_of(r.shared, kept);
  const uint64_t goal = math::mul_high(math::random_bits(row.seed, row.position), sum) + 1;
  const uint32_t token =
      select_in_list(r.shared, listed.bins, listed.ids, kept, listed.id_max, goal).value;
#pragma unroll
  for (uint32_t slot = 0; slot < kSlots; ++slot)
    if (kept.at[slot] != 0 && listed.ids.at[slot] == token) found(token, listed.logits.at[slot]);
  return true;
}

// The work that remains after the list.
enum class Left : uint32_t { kNothing, kDraw, kAll };

// Samples from the list, in one block. `all`: sums of weights and the best token of the row. After
// Left::kDraw the alternatives are already written, *top_count of them.
template <bool kIsShared, uint32_t kSlots>
__device__ Left sample_from(const Row<kIsShared>& r, const Listed<kSlots>& listed, const Item& all,
                            float threshold, const Candidates& candidates, double log_sum,
                            uint32_t* top_count) {
  const float max = candidates.max;
  if (r.row.top_logprobs > 0 &&
      !report_top_of_list(r, listed, threshold, RankByLogprob{max, log_sum}, top_count))
    return Left::kAll;
  const auto found = [&](uint32_t id, float logit) {
    finish(r, kRowOk, id, math::log_probability(logit, max, log_sum), *top_count);
  };
  if (r.row.temperature == 0.0f) {
    if (threadIdx.x == 0) found(all.token, max);
    return Left::kNothing;
  }
  const bool is_drawn = draw_from_list(r, listed, threshold, candidates, all.other, found);
  return is_drawn ? Left::kNothing : Left::kDraw;
}

// Samples from the list in the first block, while the others wait.
template <bool kIsShared>
__device__ Left sample_from_list(Row<kIsShared>& r, const Item* items, const Item& all,
                                 float threshold, const Candidates& candidates, double log_sum,
                                 uint32_t* top_count) {
  send_list(r, items, all.count);
  Left left = Left::kNothing;
  if (r.rank == 0) {
    const auto listed = read_list<kListPerThread>(r, r.list(), all.count, r.list_bins());
    left = sample_from(r, listed, all, threshold, candidates, log_sum, top_count);
  }
  Item verdict{};
  verdict.count = static_cast<uint32_t>(left);
  verdict.token = *top_count;
  __syncthreads();
  const Item* const verdicts = r.all_gather(verdict);
  *top_count = verdicts[0].token;
  return static_cast<Left>(verdicts[0].count);
}

}  // namespace
}  // namespace wcuda::kernels
