// attention_join: adds up the partial results of rows that share pages.
//
// A warp takes one row and query head: the results for the splits of the shared pages, in f16, and
// that for the row's other pages, in f32. Each is normalized; its factor in the sum is 2^lse, where
// lse is its base-2 log-sum-exp (attention_plan.h). Lane l reads the lse of partial result l, and
// elements 4l to 4l + 3 of all of them, all in flight at once. A row without shared pages is
// copied.
//
// Bytes moved: 2 * head_length for each split, 4 * head_length for the row's own, and the result.
#include <cuda_fp16.h>

#include "kernels/attention/attention.h"
#include "kernels/attention/attention_operand.cuh"
#include "kernels/ptx/dependent_launch.cuh"
#include "kernels/ptx/launch.h"
#include "kernels/shared/rope_head.cuh"
#include "kernels/shared/rounding.h"

namespace wcuda::kernels {
namespace {

constexpr uint32_t kJoinWarps = 8;  // of a block
// A lane for each partial result and the row's own; four elements of a head for each lane.
static_assert(kSharedSplitsMax < 32 && kPrefillWarpgroupHeadMax <= 128);

__global__ void __launch_bounds__(kJoinWarps * 32)
    attention_join_kernel(const __grid_constant__ AttentionKernelArgs args) {
  dependent_trigger();
  const AttentionPlan& plan = args.plan;
  const uint32_t lane = threadIdx.x % 32, n = args.pages.head_length;
  const uint32_t index = blockIdx.x * kJoinWarps + threadIdx.x / 32;
  const uint32_t row = index / args.head_count, head = index - row * args.head_count;
  const bool is_row = row < args.step.row_count;
  // attention_plan has ended: it does not trigger early.
  const StepRow* const rows = args.step.rows + (is_row ? row : 0);
  const uint32_t token = __ldcg(&rows->first_token);
  const bool is_there = is_row && __ldcg(&rows->token_count) == 1;
  const uint32_t count = shared_splits(__ldcg(&rows->shared_pages), plan.shared_splits).count;
  const uint64_t place = uint64_t{token} * args.head_count + head;
  const uint16_t* const results = plan.shared_results + place * plan.shared_splits * n + lane * 4;
  dependent_wait();
  if (!is_there) return;  // the whole warp

  const float lse = lane < count    ? __ldcg(plan.shared_lse + place * plan.shared_splits + lane)
                    : lane == count ? __ldcg(plan.own_lse + place)
                                    : -INFINITY;
  const bool has_elements = lane * 4 < n;
  uint2 splits[kSharedSplitsMax];
#pragma unroll
  for (uint32_t s = 0; s < kSharedSplitsMax; ++s)
    splits[s] = s < count && has_elements ? __ldcg(reinterpret_cast<const uint2*>(results + s * n))
                                          : make_uint2(0, 0);
  const float4 own =
      has_elements ? __ldcg(reinterpret_cast<const float4*>(plan.own_results + place * n) + lane)
                   : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
  const float factor = exp2_fast(lse - head_max(lse));
  const float total = head_sum(factor);
  const float own_share = __shfl_sync(~0u, factor, count);
  float4 sums =
      make_float4(own_share * own.x, own_share * own.y, own_share * own.z, own_share * own.w);
#pragma unroll
  for (uint32_t s = 0; s < kSharedSplitsMax; ++s) {
    const float share = __shfl_sync(~0u, factor, s) * (1.0f / kOperandFactor);
    if (s >= count) break;
    const float2 low = __half22float2(*reinterpret_cast<const __half2*>(&splits[s].x));
    const float2 high = __half22float2(*reinterpret_cast<const __half2*>(&splits[s].y));
    sums.x = fmaf(share, low.x, sums.x);
    sums.y = fmaf(share, low.y, sums.y);
    sums.z = fmaf(share, high.x, sums.z);
    sums.w = fmaf(share, high.y, sums.w);
  }
  const bool has_operand = args.operand.h != nullptr;
  const float inverse = (has_operand ? kOperandFactor : 1.0f) / total;
  const float4 result =
      make_float4(sums.x * inverse, sums.y * inverse, sums.z * inverse, sums.w * inverse);
  if (!has_elements) return;
  if (!has_operand) {
    reinterpret_cast<float4*>(args.out + place * n)[lane] = result;
    return;
  }
  if (head == 0 && lane == 0) store_operand_scale(args.operand, token);
  const OperandRow operand(args.operand, token);
  operand.store_quarter(head * n + lane * 4, result);
  if (head + 1 == args.head_count)
    operand.clear_rest(args.head_count * n, args.operand.depth, lane, n / 4);
}

}  // namespace

cudaError_t attention_join(const AttentionKernelArgs& args, const Launch& launch) {
  // attention_shared needs the same of a head.
  if (args.plan.shared_splits == 0 || args.pages.head_length % 8 != 0 ||
      args.pages.head_length > kPrefillWarpgroupHeadMax)
    return cudaErrorInvalidValue;
  if (args.step.row_count == 0) return cudaSuccess;
  return launch_kernel(launch, dim3(divide_up(args.step.row_count * args.head_count, kJoinWarps)),
                       dim3(kJoinWarps * 32), 0, 0, attention_join_kernel, args);
}

}  // namespace wcuda::kernels
