// continue_drafts: one thread a row. A kernel of its own, so that other steps begin as before;
// their graphs serve steps that continue drafts too.
#include "kernels/ptx/dependent_launch.cuh"
#include "kernels/shared/accepted_drafts.h"
#include "kernels/step/continue_drafts.h"

namespace wcuda::kernels {
namespace {

constexpr uint32_t kBlockThreads = 128;

template <class T>
__device__ inline T* segment(const ContinueDraftsArgs& args, uint32_t index) {
  const auto* const header = reinterpret_cast<const InputHeader*>(args.block);
  return reinterpret_cast<T*>(args.block + header->segments[index].offset);
}

__global__ void __launch_bounds__(kBlockThreads)
    continue_drafts_kernel(const ContinueDraftsArgs args, const uint32_t row_count) {
  dependent_wait();
  const uint32_t index = blockIdx.x * kBlockThreads + threadIdx.x;
  if (index >= row_count) return;
  StepRow& row = segment<StepRow>(args, args.rows)[index];
  if (row.drafts_before() == 0) return;
  // The drafts follow the row's own tokens and the row's own status, and it and they have drawn a
  // token for each position from here on.
  const StepRow before = args.previous_rows[row.depends_on];
  const uint32_t accepted = accepted_drafts(
      row.drafts_before(), args.previous_tokens + before.first_token + before.token_count,
      args.history + uint64_t{row.sequence_slot} * args.history_stride + row.first_position,
      args.previous_statuses + row.depends_on + 1);
  row.first_position += accepted;
  segment<uint32_t>(args, args.positions)[row.first_token] += accepted;
  segment<SampleRow>(args, args.sample_rows)[index].position += accepted;
}

__global__ void __launch_bounds__(kBlockThreads)
    place_late_samples_kernel(const StepRow* rows, SampleRow* samples, const uint32_t row_count) {
  dependent_wait();
  const uint32_t index = blockIdx.x * kBlockThreads + threadIdx.x;
  if (index >= row_count || rows[index].drafts_before() == 0) return;
  samples[index].position = rows[index].first_position + rows[index].token_count;
}

dim3 row_blocks(uint32_t row_count) {
  return dim3((row_count + kBlockThreads - 1) / kBlockThreads);
}

}  // namespace

cudaError_t continue_drafts(const ContinueDraftsArgs& args, uint32_t row_count,
                            const Launch& launch) {
  if (row_count == 0) return cudaSuccess;
  return launch_kernel(launch, row_blocks(row_count), dim3(kBlockThreads), 0, 0,
                       continue_drafts_kernel, args, row_count);
}

cudaError_t place_late_samples(const StepRow* rows, SampleRow* samples, uint32_t row_count,
                               const Launch& launch) {
  if (row_count == 0) return cudaSuccess;
  return launch_kernel(launch, row_blocks(row_count), dim3(kBlockThreads), 0, 0,
                       place_late_samples_kernel, rows, samples, row_count);
}

}  // namespace wcuda::kernels
