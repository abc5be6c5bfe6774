// Repacking by the kernels of kernels/memory.
#include "core/backend/cuda_launch.h"
#include "kernels/memory/repack.h"
#include "kernels/memory/scale_bound.h"
#include "kernels/shared/scale_factor.h"
#include "llm/quant/repack.h"

namespace wcuda::quant {

Status repack_on_cuda(Backend& device, const Repack& weight, Stream stream) {
  bool is_refused = false;
  const auto* const source = static_cast<const uint8_t*>(weight.source);
  const Status status = cuda_launch(device, stream, "repack", [&](cudaStream_t on) {
    const cudaError_t error =
        weight.is_vector ? kernels::expand_vector(weight.type, weight.rows, source,
                                                  static_cast<float*>(weight.target), on)
                         : kernels::repack(weight.type, weight.rows, weight.cols, 0, weight.rows,
                                           source, static_cast<uint8_t*>(weight.target), on);
    is_refused = error == cudaErrorInvalidValue;
    if (error != cudaSuccess) return is_refused ? cudaSuccess : error;
    if (weight.scale_bound == nullptr || !kernels::has_scale_factor(weight.type)) return error;
    return kernels::scale_bound(source, superblock_count(weight), weight.scale_bound, on);
  });
  if (!is_refused) return status;
  return invalid_argument("no order on the device for tensor type %u, %u rows of %u", weight.type,
                          weight.rows, weight.cols);
}

}  // namespace wcuda::quant
