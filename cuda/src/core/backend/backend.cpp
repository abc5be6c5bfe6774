// What a backend answers that has no run-time kernels or no queue of kernels.
#include "core/backend/backend.h"

namespace wcuda {
namespace {

Status no_kernels() {
  return Status::error(WCUDA_UNSUPPORTED_KERNEL, "this backend runs no device code");
}

Status no_queue() { return Status::error(WCUDA_NOT_AVAILABLE, "this backend has no graphs"); }

}  // namespace

const char* place_name(MemoryPlace place) {
  switch (place) {
    case MemoryPlace::kDevice:
      return "device memory";
    case MemoryPlace::kOtherDevice:
      return "memory of another device";
    case MemoryPlace::kManaged:
      return "managed memory";
    case MemoryPlace::kPinned:
      return "pinned host memory";
    case MemoryPlace::kMapped:
      return "mapped host memory";
    case MemoryPlace::kHost:
      return "host memory";
  }
  return "unknown memory";
}

Result<Module> Backend::module_load(const void*, uint64_t) { return no_kernels(); }
Status Backend::module_unload(Module) { return no_kernels(); }
Result<std::pair<void*, uint64_t>> Backend::module_global(Module, const std::string&) {
  return no_kernels();
}
Result<Kernel> Backend::kernel_find(Module, const std::string&) { return no_kernels(); }
Result<KernelAttributes> Backend::kernel_attributes(Kernel) { return no_kernels(); }
Result<Occupancy> Backend::kernel_occupancy(Kernel, uint32_t, uint64_t) { return no_kernels(); }
Status Backend::kernel_launch(Kernel, const LaunchDims&, void* const*, Stream) {
  return no_kernels();
}
Status Backend::host_launch(Stream, const std::function<Status()>&) {
  return Status::error(WCUDA_UNSUPPORTED_KERNEL, "this backend runs no functions of the host");
}
Status Backend::compile(uint64_t, const std::function<Status()>& work) { return work(); }
Result<Kernel> Backend::source_compile(const std::string&, const std::string&) {
  return no_kernels();
}
Status Backend::source_launch(Kernel, const LaunchDims&, const std::vector<wcuda_host_argument>&,
                              Stream) {
  return no_kernels();
}
Status Backend::source_destroy(Kernel) { return no_kernels(); }
Result<Stream> Backend::stream_borrow(void*) {
  return Status::error(WCUDA_UNSUPPORTED, "this backend's streams are not a driver's");
}
Status Backend::queue(Stream, const std::function<Status()>&) { return no_queue(); }
Result<Graph> Backend::graph_capture(Stream, const std::function<Status()>&) { return no_queue(); }
Status Backend::graph_launch(Graph, Stream) { return no_queue(); }
Status Backend::graph_destroy(Graph) { return no_queue(); }

}  // namespace wcuda
