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

class ModuleDevice final : public WrapperBackend, private Modules {
 public:
  explicit ModuleDevice(uint64_t capacity = uint64_t{64} << 20)
      : WrapperBackend(open_host_backend(capacity, 1).take()) {
    wcuda_device_caps& caps = description_.caps;
    caps.backend = WCUDA_BACKEND_CUDA;
    for (int i = 0; i < 3; ++i) caps.max_grid_dims[i] = caps.max_block_dims[i] = 1024;
    caps.max_grid_dims[0] = 1 << 16;
    caps.max_threads_per_block = 1024;
    caps.max_threads_per_multiprocessor = 2048;
  }
  Modules* modules() override { return this; }
  int live_modules() const { return live_modules_; }
  int found_kernels() const { return found_kernels_; }
  // While set, no event is done, but the first ones that are asked for: work that takes long.
  void hold_events(bool holds, int first = 0) {
    events_left_ = first;
    holds_events_ = holds;
  }
  Result<bool> event_done(Event event) override {
    if (holds_events_ && events_left_-- <= 0) return false;
    return WrapperBackend::event_done(event);
  }

 private:
  Result<Module> load(const void*, uint64_t) override {
    ++live_modules_;
    return Module{++last_module_};
  }
  Result<std::pair<void*, uint64_t>> global(Module, const std::string& name) override {
    return Status::error(WCUDA_NOT_FOUND, "global '%s'", name.c_str());
  }
  Result<Occupancy> occupancy(Kernel, uint32_t, uint64_t) override {
    return Status::error(WCUDA_UNSUPPORTED_KERNEL, "this device has no occupancy");
  }
  Status unload(Module) override {
    --live_modules_;
    return {};
  }
  Result<Kernel> find(Module module, const std::string& name) override {
    if (name != "add_one") return Status::error(WCUDA_NOT_FOUND, "kernel '%s'", name.c_str());
    ++found_kernels_;
    return Kernel{module.id};
  }
  Result<KernelAttributes> attributes(Kernel) override {
    KernelAttributes known;
    known.name = "add_one";
    known.parameters = {{0, 8}, {8, 4}};
    known.max_threads_per_block = 1024;
    return known;
  }
  Status launch(Kernel, const LaunchDims&, void* const* arguments, Stream) override {
    float* const x = *static_cast<float* const*>(arguments[0]);
    const uint32_t n = *static_cast<const uint32_t*>(arguments[1]);
    for (uint32_t i = 0; i < n; ++i) x[i] += 1.0f;
    return {};
  }

  std::atomic<bool> holds_events_{false};
  std::atomic<int> live_modules_{0}, found_kernels_{0};
  std::atomic<int> events_left_{0};
  std::atomic<uint64_t> last_module_{0};
};

}  // namespace wcuda::testing
