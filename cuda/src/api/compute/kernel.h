// The objects behind wcuda_module and wcuda_kernel.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "api/base/context.h"
#include "api/base/handles.h"
#include "api/compute/arguments.h"
#include "compute/jit/descriptor.h"
#include "compute/jit/launch.h"
#include "compute/registry/registry.h"
#include "core/vram/memory.h"
#include "worker_cuda/compute.h"

namespace wcuda::api {

// Unloaded with the last reference.
struct ModuleObject {
  std::shared_ptr<vram::Memory> memory;
  vram::Account account;  // closed after the unload
  Module module;
  std::map<std::string, std::string> names;  // of expressions, in the code
  ~ModuleObject();
};

// Immutable once its handle is returned. Its destruction may run a callback of the caller, so the
// last reference must be released outside every lock.
struct KernelObject : compute::Runnable {
  KernelObject() = default;
  KernelObject(const KernelObject&) = delete;
  KernelObject& operator=(const KernelObject&) = delete;
  ~KernelObject() override;

  std::shared_ptr<vram::Memory> memory;
  std::string name;
  std::shared_ptr<ModuleObject> module;  // null: no device code
  Kernel kernel;
  KernelAttributes attributes;  // of the device code
  jit::LaunchLimits limits{};
  wcuda_host_kernel host = nullptr;
  void* host_user = nullptr;
  void (*host_release)(void* user) = nullptr;  // null: none
  std::optional<jit::Signature> signature;

  Backend& backend() const { return memory->backend(); }
  bool runs_here() const override {
    return backend().is_host() ? host != nullptr : module != nullptr;
  }
};

template <>
struct HandleOf<wcuda_module> : HandleTo<Kind::kModule, ModuleObject> {};
template <>
struct HandleOf<wcuda_kernel> : HandleTo<Kind::kKernel, KernelObject> {};

// Loads device code.
Result<std::shared_ptr<ModuleObject>> load_module(std::shared_ptr<vram::Memory> memory,
                                                  const void* code, uint64_t bytes,
                                                  std::map<std::string, std::string> names);
// A kernel of a module, by its name in the code; WCUDA_NOT_FOUND.
Result<std::shared_ptr<KernelObject>> find_kernel(std::shared_ptr<ModuleObject> module,
                                                  std::string_view name);
// Creates a kernel from code that is loaded for it alone. `names`: names of expressions in the
// code.
Result<std::shared_ptr<KernelObject>> make_kernel(std::shared_ptr<vram::Memory> memory,
                                                  const void* code, uint64_t bytes,
                                                  std::map<std::string, std::string> names,
                                                  std::string name);

// Returns the dimensions of a launch; checks its flags, but not its numbers.
Result<LaunchDims> read_dims(const wcuda_launch& launch);
// Checks a launch whose arguments are live and of this context.
using LaunchPlan = std::function<Result<LaunchDims>(const Arguments&)>;

// Reads a signature from `count` parameters of a caller, for kernels and for descriptors.
Result<std::vector<wcuda_parameter>> read_parameters(const wcuda_parameter* parameters,
                                                     uint64_t count);

// Checks everything and launches.
Status launch_kernel(const KernelObject& kernel, const wcuda_argument* arguments, uint64_t count,
                     wcuda_stream stream, const LaunchPlan& plan);
// The same with arguments that were read, of a kernel that runs here.
struct LaunchStream {
  Stream stream;
  wcuda_stream handle;  // as a host function sees it
};
Status launch_read(const KernelObject& kernel, Arguments* given, const LaunchStream& on,
                   const LaunchPlan& plan);
// WCUDA_UNSUPPORTED_KERNEL without code for the kernel's backend.
Status check_runs_here(const KernelObject& kernel);
// Checks an array of arguments: not null if its count is not 0, and a plausible count.
Status check_count(const wcuda_argument* arguments, uint64_t count);

}  // namespace wcuda::api
