// softcap: values (count) f32 = softcap * tanh(values / softcap), in place, in a grid-stride loop.
// Bytes moved: 4 read and 4 written per value. Alignment: 4 bytes.
#include <algorithm>

#include "kernels/ptx/dependent_launch.cuh"
#include "kernels/step/softcap.h"

namespace wcuda::kernels {
namespace {

constexpr uint32_t kBlockThreads = 256;

__global__ void softcap_kernel(float* values, uint64_t count, float softcap) {
  dependent_trigger();
  dependent_wait();
  const uint64_t stride = uint64_t{gridDim.x} * kBlockThreads;
  for (uint64_t i = uint64_t{blockIdx.x} * kBlockThreads + threadIdx.x; i < count; i += stride)
    values[i] = softcap * tanhf(values[i] / softcap);
}

}  // namespace

cudaError_t softcap(float* values, uint64_t count, float softcap, const Launch& launch) {
  if (values == nullptr || !(softcap > 0.0f) || launch.sm_count < 1) return cudaErrorInvalidValue;
  if (count == 0) return cudaSuccess;
  const uint64_t blocks = std::min<uint64_t>((count + kBlockThreads - 1) / kBlockThreads,
                                             uint64_t{8} * static_cast<uint32_t>(launch.sm_count));
  return launch_kernel(launch, dim3(static_cast<uint32_t>(blocks)), dim3(kBlockThreads), 0, 0,
                       softcap_kernel, values, count, softcap);
}

}  // namespace wcuda::kernels
