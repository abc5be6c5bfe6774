// The host posing as a device that loads code: any module has one kernel, "add_one" (buffer of f32,
// u32 n), which adds 1 to n elements. What launches and modules go through runs on it without a
// GPU.
#pragma once

#include <atomic>
#include <memory>
#include <set>
#include <string>

#include "core/backend/host_backend.h"
#include "core/backend/wrapper_backend.h"

namespace wcuda::testing {

class ModuleDevice final : public WrapperBackend {
 public:
  explicit ModuleDevice(uint64_t capacity = uint64_t{64} << 20)
      : WrapperBackend(HostBackend::open(capacity, 1).take()), caps_(WrapperBackend::caps()) {
    caps_.backend = WCUDA_BACKEND_CUDA;
    for (int i = 0; i < 3; ++i) caps_.max_grid_dims[i] = caps_.max_block_dims[i] = 1024;
    caps_.max_threads_per_block = 1024;
    caps_.max_threads_per_multiprocessor = 2048;
  }
  const wcuda_device_caps& caps() const override { return caps_; }
  int live_modules() const { return live_modules_; }

  Result<Module> module_load(const void*, uint64_t) override {
    ++live_modules_;
    return Module{++last_module_};
  }
  Status module_unload(Module) override {
    --live_modules_;
    return {};
  }
  Result<Kernel> kernel_find(Module module, const std::string& name) override {
    if (name != "add_one") return Status::error(WCUDA_NOT_FOUND, "kernel '%s'", name.c_str());
    return Kernel{module.id};
  }
  Result<KernelAttributes> kernel_attributes(Kernel) override {
    KernelAttributes attributes;
    attributes.name = "add_one";
    attributes.parameters = {{0, 8}, {8, 4}};
    attributes.max_threads_per_block = 1024;
    return attributes;
  }
  Status kernel_launch(Kernel, const LaunchDims&, void* const* arguments, Stream) override {
    float* const x = *static_cast<float* const*>(arguments[0]);
    const uint32_t n = *static_cast<const uint32_t*>(arguments[1]);
    for (uint32_t i = 0; i < n; ++i) x[i] += 1.0f;
    return {};
  }

 private:
  wcuda_device_caps caps_;
  std::atomic<int> live_modules_{0};
  std::atomic<uint64_t> last_module_{0};
};

}  // namespace wcuda::testing
