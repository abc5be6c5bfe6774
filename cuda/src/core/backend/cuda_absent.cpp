// The answers of a build without CUDA.
#include "core/backend/cuda_backend.h"

namespace wcuda {
namespace {

Status absent() { return Status::error(WCUDA_NOT_AVAILABLE, "no CUDA device: built without CUDA"); }

}  // namespace

Result<int32_t> cuda_device_count() { return absent(); }
Result<wcuda_device_caps> cuda_device_caps(int32_t) { return absent(); }
Result<std::shared_ptr<Backend>> open_cuda_backend(int32_t) { return absent(); }

}  // namespace wcuda
