// The factory of backends.
#include "core/backend/open.h"

#include "core/backend/backend_types.h"
#include "core/backend/cuda_backend.h"
#include "core/backend/host_backend.h"
#include "core/backend/table_backend.h"

namespace wcuda {
namespace {

Status check_host_ordinal(int32_t ordinal) {
  if (ordinal == 0) return {};
  return Status::error(WCUDA_NO_DEVICE, "ordinal: %d, HOST has one device, 0", ordinal);
}

Result<Opened> open_host(const OpenOptions& options) {
  WCUDA_ASSIGN(auto backend, open_host_backend(options.host_capacity, options.host_thread_count));
  return Opened{std::move(backend), ""};
}

Result<Opened> open_auto(const OpenOptions& options) {
  auto cuda = open_cuda_backend(options.ordinal);
  if (cuda.ok()) return Opened{cuda.take(), ""};
  const Status& why = cuda.status();
  if (!means_no_device(why.code())) return why;
  WCUDA_ASSIGN(Opened host, open_host(options));
  host.fallback_reason = why.message();
  return host;
}

}  // namespace

bool means_no_device(Code code) { return code == WCUDA_NOT_AVAILABLE || code == WCUDA_NO_DEVICE; }

Result<Opened> open_backend(const OpenOptions& options) {
  if (options.ordinal < 0) return invalid_argument("ordinal: %d is negative", options.ordinal);
  switch (resolve_backend_type(options.backend)) {
    case WCUDA_BACKEND_AUTO:
      return open_auto(options);
    case WCUDA_BACKEND_CUDA: {
      WCUDA_ASSIGN(auto backend, open_cuda_backend(options.ordinal));
      return Opened{std::move(backend), ""};
    }
    case WCUDA_BACKEND_HOST:
      WCUDA_TRY(check_host_ordinal(options.ordinal));
      return open_host(options);
    default: {
      auto registration = find_registration(options.backend);
      if (!registration) return backend_not_available(options.backend);
      WCUDA_ASSIGN(auto backend, TableBackend::open(std::move(registration), options.ordinal));
      return Opened{std::move(backend), ""};
    }
  }
}

Result<int32_t> device_count(int32_t backend) {
  const int32_t type = resolve_backend_type(backend);
  if (type == WCUDA_BACKEND_CUDA) return cuda_device_count();
  if (type == WCUDA_BACKEND_HOST) return 1;
  const auto registration = find_registration(type);
  if (!registration) return backend_not_available(type);
  return TableBackend::device_count(*registration);
}

Result<wcuda_device_caps> device_caps(int32_t backend, int32_t ordinal) {
  if (ordinal < 0) return invalid_argument("ordinal: %d is negative", ordinal);
  const int32_t type = resolve_backend_type(backend);
  if (type == WCUDA_BACKEND_CUDA) return cuda_device_caps(ordinal);
  if (type == WCUDA_BACKEND_HOST) {
    WCUDA_TRY(check_host_ordinal(ordinal));
    WCUDA_ASSIGN(const auto host, open_host_backend(0, 0));
    return host->caps();
  }
  const auto registration = find_registration(type);
  if (!registration) return backend_not_available(type);
  return TableBackend::device_caps(*registration, ordinal);
}

}  // namespace wcuda
