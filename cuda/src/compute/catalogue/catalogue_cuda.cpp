// The catalogue on a CUDA device.
#include "compute/catalogue/catalogue.h"
#include "core/backend/cuda_device.h"
#include "kernels/catalogue/catalogue_launch.h"

namespace wcuda::compute {

namespace {

// Calls launch(stream) with the backend's device current.
template <class Launch>
Status launch_on(Backend& backend, Stream stream, const Launch& launch) {
  return backend.queue(stream, [&]() -> Status {
    int device = 0;  // the backend's: it is current
    const cudaError_t found = cudaGetDevice(&device);
    WCUDA_TRY(check_cuda(found, "cudaGetDevice", device));
    const cudaError_t error = launch(static_cast<cudaStream_t>(backend.native_stream(stream)));
    const Status status = check_cuda(error, "the launch of a catalogue's kernel", device);
    if (status.code() != WCUDA_DEVICE_ERROR) return status;
    return Status::native_error(WCUDA_LAUNCH_FAILED, error, "%s", status.message());
  });
}

}  // namespace

Status run_on_device(kernels::CatalogueOp op, const kernels::CatalogueArgs& args, int64_t count,
                     Backend& backend, Stream stream) {
  return launch_on(backend, stream,
                   [&](cudaStream_t on) { return kernels::catalogue_launch(op, args, count, on); });
}

Status find_unknown_id(const int32_t* ids, int64_t count, int64_t vocab, int64_t* place,
                       Backend& backend, Stream stream) {
  return launch_on(backend, stream, [&](cudaStream_t on) {
    return kernels::catalogue_unknown_id(ids, count, vocab, place, on);
  });
}

}  // namespace wcuda::compute
