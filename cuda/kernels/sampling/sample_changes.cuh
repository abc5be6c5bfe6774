// sample: applies bias, mask and penalties in place (rules 2 and 3 of ops/sampling.h).
#pragma once

#include "kernels/sampling/sample_row.cuh"

namespace wcuda::kernels {
namespace {

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

__device__ inline bool has_changes(const SampleRow& row) {
  return has_penalty(row) || row.bias_count > 0 || row.mask_row != kNoMask;
}
// Applies all of it. `seen`: the thread's logits before; returns those after, or NaN if one was
// bad.
template <bool kIsShared>
__device__ __forceinline__ RunningMax apply_changes(const Row<kIsShared>& r, RunningMax seen) {
  const bool was_bad = seen.key() == INT32_MAX;
  __syncthreads();
  apply_bias_and_mask(r);
  if (has_penalty(r.row)) apply_penalties(r);
  seen = RunningMax{};
  r.for_each([&](uint32_t, float logit) { seen.see(logit); });
  if (was_bad) seen.see(__builtin_nanf(""));
  return seen;
}

}  // namespace
}  // namespace wcuda::kernels
