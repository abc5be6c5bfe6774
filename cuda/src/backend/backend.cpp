// What a backend answers that has no run-time kernels or no queue of kernels.
#include "backend/backend.h"

namespace wcuda {
namespace {

Status no_kernels() {
  return Status::error(WCUDA_NOT_AVAILABLE, "run-time kernels are not available yet");
}

Status no_queue() { return Status::error(WCUDA_NOT_AVAILABLE, "this backend has no graphs"); }

}  // namespace

Result<Module> Backend::compile(const std::string&, const std::string&) { return no_kernels(); }
Status Backend::launch(Module, const std::string&, const LaunchDims&, void* const*, Stream) {
  return no_kernels();
}
Status Backend::destroy(Module) { return no_kernels(); }
Status Backend::queue(Stream, const std::function<Status()>&) { return no_queue(); }
Result<Graph> Backend::graph_capture(Stream, const std::function<Status()>&) { return no_queue(); }
Status Backend::graph_launch(Graph, Stream) { return no_queue(); }
Status Backend::graph_destroy(Graph) { return no_queue(); }

}  // namespace wcuda
