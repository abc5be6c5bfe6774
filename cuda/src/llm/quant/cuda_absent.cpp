// The answer of a build without CUDA.
#include "llm/quant/repack.h"

namespace wcuda::quant {

Status repack_on_cuda(Backend&, const Repack&, Stream) {
  return Status::error(WCUDA_NOT_AVAILABLE, "built without CUDA");
}

}  // namespace wcuda::quant
