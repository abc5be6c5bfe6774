// scale_bound: each thread takes some superblocks. The maximum does not depend on the order of the
// atomic operations. Bytes moved: a sector of 32 bytes of each superblock of 144.
#include "kernels/memory/scale_bound.h"
#include "kernels/shared/quant_blocks.h"
#include "kernels/shared/scale_factor.h"

namespace wcuda::kernels {
namespace {

constexpr uint32_t kBlockThreads = 256, kBlocksMax = 1024;

__global__ void __launch_bounds__(kBlockThreads)
    scale_bound_kernel(const uint8_t* blocks, uint64_t count, float* bound) {
  const uint64_t step = uint64_t{gridDim.x} * kBlockThreads;
  float most = 0.0f;
  for (uint64_t i = uint64_t{blockIdx.x} * kBlockThreads + threadIdx.x; i < count; i += step) {
    const auto* const scales =
        reinterpret_cast<const uint16_t*>(blocks + i * sizeof(quant::BlockQ4_K));
    most = fmaxf(most, scale_bound(scales[0], scales[1]));
  }
#pragma unroll
  for (uint32_t distance = 16; distance > 0; distance /= 2)
    most = fmaxf(most, __shfl_xor_sync(~0u, most, distance));
  // Numbers that are not negative have the order of their bits.
  if (threadIdx.x % 32 == 0) atomicMax(reinterpret_cast<int32_t*>(bound), __float_as_int(most));
}

}  // namespace

cudaError_t scale_bound(const uint8_t* blocks, uint64_t count, float* bound, cudaStream_t stream) {
  if (const cudaError_t status = cudaMemsetAsync(bound, 0, sizeof *bound, stream)) return status;
  if (count == 0) return cudaSuccess;
  const uint64_t whole = (count + kBlockThreads - 1) / kBlockThreads;
  const auto grid = static_cast<uint32_t>(whole < kBlocksMax ? whole : kBlocksMax);
  scale_bound_kernel<<<grid, kBlockThreads, 0, stream>>>(blocks, count, bound);
  return cudaGetLastError();
}

}  // namespace wcuda::kernels
