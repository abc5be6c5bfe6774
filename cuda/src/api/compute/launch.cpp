// Section 18 of the header: wcuda_kernel_launch. Everything is checked before anything is queued.
#include <algorithm>
#include <cinttypes>
#include <cstdio>

#include "api/base/guard.h"
#include "api/base/stream.h"
#include "api/compute/arguments.h"
#include "api/compute/kernel.h"
#include "core/backend/table_backend.h"
#include "core/base/callback.h"
#include "core/base/text.h"

namespace wcuda::api {
namespace {

constexpr uint64_t kArgumentCountMax = 65536;

Status run_on_host(const KernelObject& kernel, const wcuda_launch& launch,
                   const Arguments& arguments) {
  const std::vector<wcuda_host_argument>& given = arguments.for_host();
  int32_t answer = 0;
  {
    const InCallback inside;
    answer = kernel.host(kernel.host_user, &launch, given.data(), given.size());
  }
  if (answer == 0) return {};
  return Status::native_error(WCUDA_DEVICE_ERROR, answer,
                              "kernel '%s': its host function returned %d",
                              printable(kernel.name).c_str(), answer);
}

Result<uint64_t> threads_of(const wcuda_launch& launch) {
  uint64_t threads = 1;
  for (const uint32_t* const dims : {launch.grid, launch.block})
    for (int i = 0; i < 3; ++i)
      if (__builtin_mul_overflow(threads, uint64_t{dims[i]}, &threads))
        return Status::error(WCUDA_OUT_OF_RANGE,
                             "threads: grid %u x %u x %u of blocks %u x %u x %u are more than 2^64",
                             launch.grid[0], launch.grid[1], launch.grid[2], launch.block[0],
                             launch.block[1], launch.block[2]);
  return threads;
}

}  // namespace

Result<LaunchDims> read_dims(const wcuda_launch& launch) {
  WCUDA_TRY(check_flags(launch.flags, WCUDA_LAUNCH_COOPERATIVE, "flags"));
  LaunchDims dims;
  std::copy_n(launch.grid, 3, dims.grid);
  std::copy_n(launch.block, 3, dims.block);
  std::copy_n(launch.cluster, 3, dims.cluster);
  dims.shared_bytes = launch.shared_bytes;
  dims.is_cooperative = launch.flags & WCUDA_LAUNCH_COOPERATIVE;
  return dims;
}

Status launch_kernel(const KernelObject& kernel, const wcuda_argument* arguments, uint64_t count,
                     wcuda_stream stream, const LaunchPlan& plan) {
  WCUDA_TRY(check_runs_here(kernel));
  WCUDA_TRY(check_count(arguments, count));
  WCUDA_ASSIGN(const UsedStream on, use_stream(stream, *kernel.memory));
  Arguments given;
  WCUDA_TRY(given.read(arguments, count, *kernel.memory));
  return launch_read(kernel, &given, {on.stream, stream}, plan);
}

Status launch_read(const KernelObject& kernel, Arguments* given, const LaunchStream& on,
                   const LaunchPlan& plan) {
  Backend& backend = kernel.backend();
  WCUDA_ASSIGN(const LaunchDims dims, plan(*given));
  WCUDA_TRY(jit::check_dims(dims, kernel.limits));
  if (kernel.signature) WCUDA_TRY(jit::check_arguments(*kernel.signature, given->described()));
  if (kernel.module)
    WCUDA_TRY(jit::check_parameters(kernel.attributes.parameters, given->shapes()));
  given->used_on(on.stream);
  if (!backend.is_host())
    return backend.kernel_launch(kernel.kernel, dims, given->values(), on.stream);
  struct {
    const KernelObject& kernel;
    wcuda_launch shown;
    const Arguments& given;
  } work{kernel, launch_of(dims), *given};
  work.shown.stream = on.handle;
  // One capture: more would make the function allocate.
  return backend.host_launch(on.stream,
                             [&work] { return run_on_host(work.kernel, work.shown, work.given); });
}

Status check_runs_here(const KernelObject& kernel) {
  if (kernel.runs_here()) return {};
  return Status::error(WCUDA_UNSUPPORTED_KERNEL, "kernel '%s': has no %s",
                       printable(kernel.name).c_str(),
                       kernel.backend().is_host() ? "host function" : "device code");
}

Status check_count(const wcuda_argument* arguments, uint64_t count) {
  if (count != 0) WCUDA_TRY(check_not_null(arguments, "arguments"));
  if (count > kArgumentCountMax)
    return Status::error(WCUDA_ARGUMENT_COUNT, "arguments: %" PRIu64 " given, at most %" PRIu64,
                         count, kArgumentCountMax);
  return {};
}

}  // namespace wcuda::api

using namespace wcuda;
using namespace wcuda::api;

wcuda_status wcuda_kernel_launch(wcuda_kernel kernel, const wcuda_launch* launch,
                                 const wcuda_argument* arguments, uint64_t argument_count,
                                 wcuda_error* error) {
  return guarded(error, [&]() -> Status {
    WCUDA_ASSIGN(const auto object, resolve(kernel, "kernel"));
    WCUDA_ASSIGN(const wcuda_launch checked, read_struct(launch, "launch"));
    return launch_kernel(*object, arguments, argument_count, checked.stream,
                         [&](const Arguments&) { return read_dims(checked); });
  });
}

wcuda_status wcuda_launch_threads_get(const wcuda_launch* launch, uint64_t* threads,
                                      wcuda_error* error) {
  return guarded(error, [&]() -> Status {
    WCUDA_ASSIGN(const wcuda_launch checked, read_struct(launch, "launch"));
    WCUDA_TRY(check_not_null(threads, "threads"));
    WCUDA_ASSIGN(*threads, threads_of(checked));
    return {};
  });
}
