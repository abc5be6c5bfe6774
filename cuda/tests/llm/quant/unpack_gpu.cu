// The unpackers and conversions as device code.
#include <cuda_runtime_api.h>

#include "kernels/shared/numeric.h"
#include "kernels/shared/quant_unpack_iq.h"
#include "llm/quant/unpack_gpu.h"

namespace wcuda::testing {
namespace {

using namespace wcuda::quant;

constexpr uint32_t kBlockThreads = 64;
constexpr uint32_t kCodes = 65536;

// Device memory that frees itself.
class DeviceArray {
 public:
  explicit DeviceArray(size_t bytes) : bytes_(bytes), status_(cudaMalloc(&data_, bytes)) {}
  ~DeviceArray() { cudaFree(data_); }
  DeviceArray(const DeviceArray&) = delete;
  DeviceArray& operator=(const DeviceArray&) = delete;

  template <class T>
  T* as() const {
    return static_cast<T*>(data_);
  }
  cudaError_t from(const void* source) {
    if (status_ != cudaSuccess) return status_;
    return cudaMemcpy(data_, source, bytes_, cudaMemcpyHostToDevice);
  }
  cudaError_t to(void* target) const {
    if (status_ != cudaSuccess) return status_;
    return cudaMemcpy(target, data_, bytes_, cudaMemcpyDeviceToHost);
  }

 private:
  void* data_ = nullptr;
  size_t bytes_;
  cudaError_t status_;
};

template <class Block>
__global__ void unpack_kernel(const uint8_t* blocks, uint64_t part_count, float* out) {
  constexpr uint32_t kParts = Block::kElements / kSubBlockElements;
  const uint64_t part = uint64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (part >= part_count) return;
  const Block& block = reinterpret_cast<const Block*>(blocks)[part / kParts];
  unpack32(block, static_cast<uint32_t>(part % kParts), out + part * kSubBlockElements);
}

using Launch = void (*)(const uint8_t* blocks, uint64_t part_count, float* out);
template <class Block>
void launch(const uint8_t* blocks, uint64_t part_count, float* out) {
  unpack_kernel<Block>
      <<<static_cast<uint32_t>((part_count + 63) / 64), 64>>>(blocks, part_count, out);
}

Launch launch_of(uint32_t id) {
  switch (id) {
    case 2:
      return launch<BlockQ4_0>;
    case 3:
      return launch<BlockQ4_1>;
    case 6:
      return launch<BlockQ5_0>;
    case 7:
      return launch<BlockQ5_1>;
    case 8:
      return launch<BlockQ8_0>;
    case 10:
      return launch<BlockQ2_K>;
    case 11:
      return launch<BlockQ3_K>;
    case 12:
      return launch<BlockQ4_K>;
    case 13:
      return launch<BlockQ5_K>;
    case 14:
      return launch<BlockQ6_K>;
    case 16:
      return launch<BlockIQ2_XXS>;
    case 17:
      return launch<BlockIQ2_XS>;
    case 18:
      return launch<BlockIQ3_XXS>;
    case 19:
      return launch<BlockIQ1_S>;
    case 20:
      return launch<BlockIQ4_NL>;
    case 21:
      return launch<BlockIQ3_S>;
    case 22:
      return launch<BlockIQ2_S>;
    case 23:
      return launch<BlockIQ4_XS>;
    case 29:
      return launch<BlockIQ1_M>;
    case 34:
      return launch<BlockTQ1_0>;
    case 35:
      return launch<BlockTQ2_0>;
    case 39:
      return launch<BlockMXFP4>;
    case 40:
      return launch<BlockNVFP4>;
    case 41:
      return launch<BlockQ1_0>;
    case 42:
      return launch<BlockQ2_0>;
    default:
      return nullptr;
  }
}

__global__ void convert_kernel(float* from_half, const float* values, uint16_t* codes) {
  const uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
  from_half[i] = half_to_float(static_cast<uint16_t>(i));
  codes[3 * i] = float_to_half(values[i]);
  codes[3 * i + 1] = float_to_bf16(values[i]);
  codes[3 * i + 2] = float_to_e4m3(values[i]);
}

}  // namespace

int unpack_on_device(uint32_t type, const uint8_t* blocks, uint64_t bytes, uint64_t element_count,
                     float* values) {
  const Launch launch = launch_of(type);
  if (launch == nullptr) return -1;
  DeviceArray device_blocks(bytes), out(element_count * sizeof(float));
  if (const cudaError_t status = device_blocks.from(blocks)) return status;
  launch(device_blocks.as<uint8_t>(), element_count / kSubBlockElements, out.as<float>());
  if (const cudaError_t status = cudaGetLastError()) return status;
  return out.to(values);
}

int convert_on_device(const float* values, float* from_half, uint16_t* codes) {
  DeviceArray device_values(kCodes * sizeof(float)), halves(kCodes * sizeof(float)),
      device_codes(3 * kCodes * sizeof(uint16_t));
  if (const cudaError_t status = device_values.from(values)) return status;
  convert_kernel<<<kCodes / kBlockThreads, kBlockThreads>>>(
      halves.as<float>(), device_values.as<float>(), device_codes.as<uint16_t>());
  if (const cudaError_t status = cudaGetLastError()) return status;
  if (const cudaError_t status = halves.to(from_half)) return status;
  return device_codes.to(codes);
}

}  // namespace wcuda::testing
