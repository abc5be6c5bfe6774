// What a backend answers that has no run-time kernels.
#include "backend/backend.h"

namespace wcuda {
namespace {

Status no_kernels() {
  return Status::error(WCUDA_NOT_AVAILABLE, "run-time kernels are not available yet");
}

}  // namespace

Result<Module> Backend::compile(const std::string&, const std::string&) { return no_kernels(); }
Status Backend::launch(Module, const std::string&, const LaunchDims&, void* const*, Stream) {
  return no_kernels();
}
Status Backend::destroy(Module) { return no_kernels(); }

}  // namespace wcuda
