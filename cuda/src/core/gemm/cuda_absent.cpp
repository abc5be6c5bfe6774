// Matrix products in a build without CUDA: not available.
#include "core/gemm/typed_gemm.h"

namespace wcuda::compute {

Status gemm_library() {
  return Status::error(WCUDA_NOT_AVAILABLE, "no CUDA device: built without CUDA");
}

Status run_gemm_on_device(const TypedGemm&, vram::Memory&, Stream) { return gemm_library(); }

}  // namespace wcuda::compute
