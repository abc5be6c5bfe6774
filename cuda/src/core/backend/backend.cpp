// The calls that are made of Backend::run.
#include "core/backend/backend.h"

#include <iterator>
#include <optional>

namespace wcuda {

const char* place_name(MemoryPlace place) {
  constexpr const char* kNames[] = {
      "unknown memory", "device memory",      "memory of another device",
      "managed memory", "pinned host memory", "mapped host memory",
      "host memory"};
  static_assert(WCUDA_PLACE_HOST == 6 && WCUDA_PLACE_MANAGED == 3);
  const auto index = static_cast<uint32_t>(place);
  return kNames[index < std::size(kNames) ? index : 0];
}

Status Backend::queue(Stream stream, const std::function<Status()>& work) {
  return run({"queue", CallKind::kLaunch, 0, stream}, [&](Backend& device) {
    if (!device.is_host() && !device.is_registered()) return work();
    return Status::error(WCUDA_NOT_AVAILABLE, "this backend has no queues of kernels");
  });
}

Status Backend::host_launch(Stream stream, const std::function<Status()>& work) {
  return run({"host_launch", CallKind::kLaunch, 0, stream}, [&](Backend& device) {
    if (device.is_host()) return work();
    return Status::error(WCUDA_UNSUPPORTED_KERNEL, "this backend runs no functions of the host");
  });
}

Status Backend::compile(uint64_t source_bytes, const std::function<Status()>& work) {
  return run({"compile_kernel", CallKind::kCompile, source_bytes},
             [&](Backend&) { return work(); });
}

template <class Answer, class Ask>
Answer Backend::ask_modules(const Call& call, Ask&& ask) {
  // One reference is what a std::function holds without allocating.
  struct {
    Modules* all;
    Ask& ask;
    std::optional<Answer> answer;
  } state{modules(), ask, {}};
  Status ran = run(call, [&state](Backend&) -> Status {
    if (state.all == nullptr)
      return Status::error(WCUDA_UNSUPPORTED_KERNEL, "this backend runs no device code");
    state.answer.emplace(state.ask(*state.all));
    return status_of(*state.answer);
  });
  if (state.answer.has_value() && ran.ok()) return std::move(*state.answer);
  return ran;
}

Result<Module> Backend::module_load(const void* code, uint64_t bytes) {
  return ask_modules<Result<Module>>({"module_load", CallKind::kAllocate, bytes},
                                     [&](Modules& all) { return all.load(code, bytes); });
}

Status Backend::module_unload(Module module) {
  return ask_modules<Status>({"module_unload", CallKind::kEnd},
                             [&](Modules& all) { return all.unload(module); });
}

Result<std::pair<void*, uint64_t>> Backend::module_global(Module module, const std::string& name) {
  return ask_modules<Result<std::pair<void*, uint64_t>>>(
      {"module_global", CallKind::kOther}, [&](Modules& all) { return all.global(module, name); });
}

Result<Kernel> Backend::kernel_find(Module module, const std::string& name) {
  return ask_modules<Result<Kernel>>({"kernel_find", CallKind::kOther},
                                     [&](Modules& all) { return all.find(module, name); });
}

Result<KernelAttributes> Backend::kernel_attributes(Kernel kernel) {
  return ask_modules<Result<KernelAttributes>>(
      {"kernel_attributes", CallKind::kOther},
      [&](Modules& all) { return all.attributes(kernel); });
}

Result<Occupancy> Backend::kernel_occupancy(Kernel kernel, uint32_t block_threads,
                                            uint64_t shared_bytes) {
  return ask_modules<Result<Occupancy>>({"kernel_occupancy", CallKind::kOther}, [&](Modules& all) {
    return all.occupancy(kernel, block_threads, shared_bytes);
  });
}

Status Backend::kernel_launch(Kernel kernel, const LaunchDims& dims, void* const* arguments,
                              Stream stream) {
  return ask_modules<Status>({"kernel_launch", CallKind::kLaunch, 0, stream}, [&](Modules& all) {
    return all.launch(kernel, dims, arguments, stream);
  });
}

Result<Stream> Backend::stream_borrow(void*) {
  return unsupported("this backend's streams are not a driver's");
}

}  // namespace wcuda
