// sample: ranks all tokens of a row by histograms over the cluster, for rows whose result a short
// list of the largest logits does not determine.
#pragma once

#include "kernels/sampling/sample_candidates.cuh"

namespace wcuda::kernels {
namespace {

// Finds the first of the warp's tokens, by ascending id, at which the running sum of
// measure(id, logit), which begins at `before`, reaches `goal`. One thread calls found(id, logit).
template <bool kIsShared, class Measure, class Found>
__device__ __forceinline__ void locate_in_warp(const Row<kIsShared>& r, uint64_t before,
                                               uint64_t goal, Measure measure, Found found) {
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
    const uint64_t prefix = before + warp_prefix(own, r.lane());
    if (prefix >= goal && prefix - own < goal) found(id, logit);
    return;
  }
}
// The same for the tokens of the row, from 0 to goal_of(total), which is 1 … total. `sum`: the sum
// of the warp's measures, the same in all lanes. `items`: `other` of each block is the sum of its
// measures.
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
  if (before < goal && before + sum >= goal) locate_in_warp(r, before, goal, measure, found);
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
  locate_in(r, sum, r.all_gather(item), measure, goal_of, found);
}

// How much of a ranking to keep: a sum of measures, or a fraction of their total.
struct Needed {
  uint64_t sum;
  float share;  // 0: `sum` applies
  __device__ uint64_t of(uint64_t total) const {
    return share != 0.0f ? math::share_of(share, total) : sum;
  }
};

// A bin of the cluster's histogram.
struct Found {
  uint64_t total;   // of all bins
  uint64_t needed;  // 0: more than the total was asked for; the fields below are not set
  uint64_t before;  // sum of the bins before `bin`
  uint64_t in_bin;
  uint32_t bin;
};

// Finds the bin at which the running sum reaches what is needed. Clears the other histogram for the
// next round.
template <bool kIsShared>
__device__ __noinline__ Found find_bin(Row<kIsShared>& r, Needed needs) {
  Bin* const own = r.histograms + r.histogram * kBins;
  r.histogram ^= 1;
  Bin* const next = r.histograms + r.histogram * kBins;
  cluster_sync();
  for (uint32_t i = threadIdx.x; i < kBins; i += kBlockThreads) next[i] = Bin{0, 0};

  // Each block sums a range of the bins over the cluster, in place: nobody else reads this range.
  const uint32_t part_bins = kBins / r.size;
  uint64_t sum = 0;
  for (uint32_t i = threadIdx.x; i < part_bins; i += kBlockThreads) {
    Bin* const mine = own + r.rank * part_bins + i;
    uint64_t bin_sum = 0;
#pragma unroll 4
    for (uint32_t other = 0; other < r.size; ++other)
      bin_sum += total_of(*cluster_pointer(mine, other));
    *mine = Bin{static_cast<uint32_t>(bin_sum), static_cast<uint32_t>(bin_sum >> 32)};
    sum += bin_sum;
  }
  sum = warp_sum(sum);
  if (r.lane() == 0) r.shared->segments[r.warp()] = sum;
  __syncthreads();
  Item item{};
  if (r.warp() == 0) item.sum = warp_sum(r.lane() < kWarps ? r.shared->segments[r.lane()] : 0);
  cluster_arrive();
  const Item* const items = r.all_gather(item);
  cluster_wait();  // the sums of bins are visible to all blocks

  uint64_t total = 0;
  for (uint32_t i = 0; i < r.size; ++i) total += items[i].sum;
  const uint64_t needed = needs.of(total);
  if (needed > total) return {total, 0, 0, 0, 0};  // the same for all
  if (r.warp() == 0) {
    uint64_t passed = 0;
    uint32_t owner = 0;
    while (passed + items[owner].sum < needed) passed += items[owner++].sum;
    const Bin* const bins = cluster_pointer(own + owner * part_bins, owner);
    const uint32_t part = part_bins / 32;  // bins per lane
    uint64_t part_sum = 0;
    for (uint32_t i = 0; i < part; ++i) part_sum += total_of(bins[r.lane() * part + i]);
    const uint64_t prefix = warp_prefix(part_sum, r.lane());
    passed += prefix - part_sum;
    if (passed < needed && passed + part_sum >= needed) {
      uint32_t at = r.lane() * part;
      while (passed + total_of(bins[at]) < needed) passed += total_of(bins[at++]);
      r.shared->found_bin = owner * part_bins + at;
      r.shared->found_before = passed;
      r.shared->top[0] = total_of(bins[at]);
    }
  }
  __syncthreads();
  const Found found{total, needed, r.shared->found_before, r.shared->top[0], r.shared->found_bin};
  __syncthreads();
  return found;
}

// Finds the shortest beginning of the ranking by ascending (key, id) whose measures sum to what is
// needed, or everything if the total is less; returns the total. rank.key(id, logit): the bits
// of a float that is not negative, or kNotRanked. rank.measure(logit): at least 1. rank.tie(key):
// the measure that all tokens of this key have, 0 if they differ.
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
  if (needed - before + rank.tie(low) > found.in_bin) return total;  // keeps all with this key
  if (threadIdx.x == 0) r.shared->found_token = 0;
  __syncthreads();
  locate(
      r,
      [&](uint32_t id, float logit) {
        return rank.key(id, logit) == low ? rank.measure(logit) : 0;
      },
      [&](uint64_t) { return needed - before; },
      [&](uint32_t id, float) {
        for (uint32_t i = 0; i < r.size; ++i) *cluster_pointer(&r.shared->found_token, i) = id;
      });
  cluster_sync();
  cutoff->id = r.shared->found_token;
  return total;
}

// Applies the filters (rule 6).
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
    const Item sums = r.joined(r.all_gather(r.block_join(sum, product_sum, kNoToken)));
    candidates->mean = static_cast<float>(
        math::div(static_cast<double>(sums.other), static_cast<double>(sums.sum)));
    Cutoff cutoff;
    select(r, RankByTypical{*candidates}, Needed{0, row.typical_p}, &cutoff);
    candidates->by_typical = cutoff;
  }
  if (row.top_p != 0.0f && row.top_p < 1.0f) {
    Cutoff cutoff;
    select(r, RankByWeight{*candidates}, Needed{0, row.top_p}, &cutoff);
    // If top-k and top-p cut at the same key, top-p saw there only the tokens that top-k kept.
    if (cutoff.key == candidates->by_y.key) cutoff.id = min(cutoff.id, candidates->by_y.id);
    candidates->by_y = cutoff;
  }
  if (row.min_p != 0.0f && candidates->mean < 0.0f) {
    candidates->floor = row.min_p;  // the best token is still a candidate, and its p is 1
  } else if (row.min_p != 0.0f) {
    uint32_t largest = 0;  // bits of a float >= 0
    r.for_each_singly([&](uint32_t id, float logit) {
      const float y = candidates->y(logit);
      if (candidates->holds(id, y)) largest = max(largest, __float_as_uint(math::exp_negative(y)));
    });
    // block_join takes a minimum: of the complements.
    const Item all = r.joined(r.all_gather(r.block_join(0, 0, ~largest)));
    candidates->floor = math::mul(row.min_p, __uint_as_float(~all.token));
  }
}

// Writes the alternatives (rule 4); returns their number.
template <bool kIsShared>
__device__ uint32_t report_top(Row<kIsShared>& r, float max, double log_sum) {
  const SampleArgs& args = r.params->args;
  const uint32_t wanted = min(min(r.row.top_logprobs, args.top_stride), kSampleTopLogprobsMax);
  const RankByLogprob rank{max, log_sum};
  Cutoff cutoff;
  const uint64_t total = select(r, rank, Needed{wanted, 0.0f}, &cutoff);
  const uint32_t count = wanted < total ? wanted : static_cast<uint32_t>(total);
  if (threadIdx.x == 0) r.shared->top_count = 0;
  cluster_sync();
  uint32_t* const counter = cluster_pointer(&r.shared->top_count, 0);
  uint64_t* const list = cluster_pointer(&r.shared->top[0], 0);
  r.for_each_singly([&](uint32_t id, float logit) {
    const uint32_t key = rank.key(id, logit);
    if (key == kNotRanked || !cutoff.keeps(key, id)) return;
    list[atomicAdd(counter, 1u)] = uint64_t{key} << 32 | id;
  });
  cluster_sync();
  if (r.rank == 0) write_top(r, count);
  __syncthreads();  // shared->top may be overwritten
  return count;
}

// Samples a row that the list did not: writes the alternatives if still wanted, then filters and
// draws (rules 6 and 7). Not inlined, since it is large and rarely needed.
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

}  // namespace
}  // namespace wcuda::kernels
