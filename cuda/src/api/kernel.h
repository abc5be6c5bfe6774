// What stands behind wcuda_module and wcuda_kernel.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "api/context.h"
#include "api/handles.h"
#include "jit/launch.h"
#include "vram/memory.h"

namespace wcuda::api {

// Unloaded when the last reference goes.
struct ModuleObject {
  std::shared_ptr<vram::Memory> memory;
  Module module;
  std::map<std::string, std::string> names;  // of expressions, in the code
  ~ModuleObject();
};

// Nothing in it changes once its handle is out.
struct KernelObject {
  std::shared_ptr<vram::Memory> memory;
  std::string name;
  std::shared_ptr<ModuleObject> module;  // null: no device code
  Kernel kernel;
  KernelAttributes attributes;  // of the device code
  jit::LaunchLimits limits{};
  wcuda_host_kernel host = nullptr;
  void* host_user = nullptr;
  std::optional<std::vector<jit::Parameter>> signature;

  Backend& backend() const { return memory->backend(); }
};

inline Result<std::shared_ptr<KernelObject>> resolve_kernel(wcuda_kernel kernel) {
  return resolve<KernelObject>(Kind::kKernel, kernel.id, "kernel");
}

}  // namespace wcuda::api
