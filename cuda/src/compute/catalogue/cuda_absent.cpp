// The CUDA functions of a build without CUDA: each returns an error.
#include "compute/catalogue/catalogue.h"

namespace wcuda::compute {

Status run_on_device(kernels::CatalogueOp, const kernels::CatalogueArgs&, int64_t, Backend&,
                     Stream) {
  return Status::error(WCUDA_NOT_AVAILABLE, "no CUDA device: built without CUDA");
}

Status find_unknown_id(const int32_t*, int64_t, int64_t, int64_t*, Backend&, Stream) {
  return Status::error(WCUDA_NOT_AVAILABLE, "no CUDA device: built without CUDA");
}

}  // namespace wcuda::compute
