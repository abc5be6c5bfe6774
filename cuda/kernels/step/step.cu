// begin_step: one block per row. Bytes moved: 4 read and 4 written per token.
// copy_page, poison_page: 16 bytes per thread and iteration. Bytes moved: the page, read and
// written.
#include <algorithm>

#include "kernels/ptx/dependent_launch.cuh"
#include "kernels/ptx/launch.h"
#include "kernels/shared/step_start.cuh"
#include "kernels/step/step.h"

namespace wcuda::kernels {
namespace {

constexpr uint32_t kBlockThreads = 256;
// Blocks per page and layer: 16 of them copy a megabyte in few iterations.
constexpr uint32_t kPageBlocks = 16;

__global__ void __launch_bounds__(kBlockThreads) begin_step_kernel(const BeginStepArgs args) {
  dependent_trigger();
  dependent_wait();
  const uint32_t index = blockIdx.x;
  const StepRow row = args.rows[index];
  if (threadIdx.x == 0) begin_row(args, row, index);
  if (!is_row_history_written(args, row)) return;
  int32_t* const history = row_history(args, row);
  for (uint32_t i = threadIdx.x; i < row.token_count; i += kBlockThreads)
    history[i] = args.tokens[row.first_token + i];
}

// Copies page `from` to page `to`, or sets all bits of it if `from` is kNoDependency.
__global__ void __launch_bounds__(kBlockThreads)
    page_kernel(const PagePool pool, const uint32_t from, const uint32_t to) {
  dependent_trigger();
  dependent_wait();
  const uint64_t page_bytes = 2 * pool.plane_bytes;
  uint8_t* const layer = pool.data + uint64_t{blockIdx.y} * pool.page_count * page_bytes;
  auto* const target = reinterpret_cast<uint4*>(layer + to * page_bytes);
  const auto* const source = reinterpret_cast<const uint4*>(layer + from * page_bytes);
  const uint64_t count = page_bytes / sizeof(uint4);
  const uint4 ones = make_uint4(~0u, ~0u, ~0u, ~0u);
  for (uint64_t i = uint64_t{blockIdx.x} * kBlockThreads + threadIdx.x; i < count;
       i += uint64_t{gridDim.x} * kBlockThreads)
    target[i] = from == kNoDependency ? ones : source[i];
}

__global__ void __launch_bounds__(kBlockThreads)
    copy_history_kernel(const int32_t* source, int32_t* target, const uint32_t count) {
  dependent_trigger();
  dependent_wait();
  const uint32_t i = blockIdx.x * kBlockThreads + threadIdx.x;
  if (i < count) target[i] = source[i];
}

struct HistoryTokens {
  int32_t tokens[kHistoryChunk];
};

__global__ void __launch_bounds__(kBlockThreads)
    write_history_kernel(const HistoryTokens source, int32_t* target, const uint32_t count) {
  dependent_trigger();
  dependent_wait();
  const uint32_t i = blockIdx.x * kBlockThreads + threadIdx.x;
  if (i < count) target[i] = source.tokens[i];
}

bool has_page(const PagePool& pool, uint32_t page) {
  return pool.data != nullptr && page < pool.page_count && pool.plane_bytes % sizeof(uint4) == 0;
}

cudaError_t launch_page(const PagePool& pool, uint32_t from, uint32_t to, const Launch& launch) {
  if (pool.layer_count == 0 || pool.plane_bytes == 0) return cudaSuccess;
  return launch_kernel(launch, dim3(kPageBlocks, pool.layer_count), dim3(kBlockThreads), 0, 0,
                       page_kernel, pool, from, to);
}

}  // namespace

cudaError_t begin_step(const BeginStepArgs& args, const Launch& launch) {
  if (args.row_count == 0) return cudaSuccess;
  return launch_kernel(launch, dim3(args.row_count), dim3(kBlockThreads), 0, 0, begin_step_kernel,
                       args);
}

cudaError_t copy_page(const PagePool& pool, uint32_t from, uint32_t to, const Launch& launch) {
  if (!has_page(pool, from) || !has_page(pool, to) || from == to) return cudaErrorInvalidValue;
  return launch_page(pool, from, to, launch);
}

cudaError_t poison_page(const PagePool& pool, uint32_t to, const Launch& launch) {
  if (!has_page(pool, to)) return cudaErrorInvalidValue;
  return launch_page(pool, kNoDependency, to, launch);
}

cudaError_t copy_history(int32_t* history, uint32_t history_stride, uint32_t from, uint32_t to,
                         uint32_t count, const Launch& launch) {
  if (count > history_stride || from == to) return cudaErrorInvalidValue;
  if (count == 0) return cudaSuccess;
  const int32_t* const source = history + uint64_t{from} * history_stride;
  int32_t* const target = history + uint64_t{to} * history_stride;
  return launch_kernel(launch, dim3((count + kBlockThreads - 1) / kBlockThreads),
                       dim3(kBlockThreads), 0, 0, copy_history_kernel, source, target, count);
}

cudaError_t write_history(int32_t* history, const int32_t* tokens, uint32_t count,
                          const Launch& launch) {
  for (uint32_t first = 0; first < count; first += kHistoryChunk) {
    const uint32_t chunk = std::min(kHistoryChunk, count - first);
    HistoryTokens source = {};
    std::copy_n(tokens + first, chunk, source.tokens);
    const cudaError_t error = launch_kernel(
        launch, dim3((chunk + kBlockThreads - 1) / kBlockThreads), dim3(kBlockThreads), 0, 0,
        write_history_kernel, source, history + first, chunk);
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

}  // namespace wcuda::kernels
