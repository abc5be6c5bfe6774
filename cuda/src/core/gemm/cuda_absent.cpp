// Matrix products in a build without CUDA: not available.
#include "core/gemm/typed_gemm.h"

namespace wcuda::compute {

Status run_gemm_on_device(const TypedGemm&, vram::Memory&, Stream) {
  return Status::error(WCUDA_NOT_AVAILABLE, "no CUDA device: built without CUDA");
}

}  // namespace wcuda::compute
