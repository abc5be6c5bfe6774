// The catalogue on a CUDA device.
#include "backend/cuda_device.h"
#include "compute/catalogue.h"
#include "kernels/catalogue_launch.h"

namespace wcuda::compute {

Status run_on_device(kernels::CatalogueOp op, const kernels::CatalogueArgs& args, int64_t count,
                     Backend& backend, Stream stream) {
  return backend.queue(stream, [&]() -> Status {
    int device = 0;  // the backend's: it is current
    const cudaError_t found = cudaGetDevice(&device);
    WCUDA_TRY(check_cuda(found, "cudaGetDevice", device));
    auto* const on = static_cast<cudaStream_t>(backend.native_stream(stream));
    const cudaError_t error = kernels::catalogue_launch(op, args, count, on);
    const Status status = check_cuda(error, "the launch of a catalogue's kernel", device);
    if (status.code() != WCUDA_DEVICE_ERROR) return status;
    return Status::native_error(WCUDA_LAUNCH_FAILED, error, "%s", status.message());
  });
}

}  // namespace wcuda::compute
