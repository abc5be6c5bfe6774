#include "kernels/ptx/tensor_map.h"

#include <cudaTypedefs.h>

namespace wcuda::kernels {
namespace {

PFN_cuTensorMapEncodeTiled_v12000 find_encoder() {
  constexpr unsigned kVersion = 12000;  // of the driver, which has the function
  void* function = nullptr;
  cudaDriverEntryPointQueryResult result{};
  const cudaError_t status = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function,
                                                              kVersion, cudaEnableDefault, &result);
  if (status == cudaSuccess && result == cudaDriverEntryPointSuccess)
    return reinterpret_cast<PFN_cuTensorMapEncodeTiled_v12000>(function);
  (void)cudaGetLastError();  // the caller reports the failure
  return nullptr;
}

}  // namespace

cudaError_t make_tensor_map(const void* data, uint64_t rows, uint32_t row_elements,
                            uint32_t box_rows, CUtensorMap* map) {
  static const PFN_cuTensorMapEncodeTiled_v12000 encode = find_encoder();
  if (encode == nullptr) return cudaErrorNotSupported;
  const cuuint64_t sizes[2] = {row_elements, rows};
  const cuuint64_t row_bytes = uint64_t{row_elements} * sizeof(uint16_t);
  const cuuint32_t box[2] = {kBoxElements, box_rows}, steps[2] = {1, 1};
  const CUresult result =
      encode(map, CU_TENSOR_MAP_DATA_TYPE_FLOAT16, 2, const_cast<void*>(data), sizes, &row_bytes,
             box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
             CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  return result == CUDA_SUCCESS ? cudaSuccess : cudaErrorInvalidValue;
}

}  // namespace wcuda::kernels
