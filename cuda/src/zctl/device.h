// What the capabilities of ZCL1 need of a device: an interface that api/zctl implements over a
// context. Everything is queued in one order, that of stream 0; other streams stay empty.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/status.h"
#include "zctl/frames.h"
#include "zctl/kernels.h"

namespace wcuda::zctl {

struct DeviceInfo {
  std::string_view backend;  // "cuda", "host"; empty: neither
  std::string id;            // the ordinal, in decimal
  std::string name;
  uint64_t memory_bytes = 0;
  uint32_t compute_units = 0;
  uint32_t flags = 0;  // b0 fp16, b1 tensor cores, b2 unified memory
};

// Memory, all 0 at first. Freed with the last reference, after the work that uses it.
class DeviceBuffer {
 public:
  virtual ~DeviceBuffer() = default;
};

// A loaded module.
class DeviceModule {
 public:
  virtual ~DeviceModule() = default;
};

// A point in the order of what was queued.
class DevicePoint {
 public:
  virtual ~DevicePoint() = default;
};

struct SubmitArgument {
  Bytes value;                           // without a buffer
  std::shared_ptr<DeviceBuffer> buffer;  // null: a value
  uint64_t buffer_bytes = 0;
  uint32_t access = 0;  // WCUDA_ACCESS_… that the kernel is granted
};

struct Submit {
  const Kernel* kernel = nullptr;  // of the registry; null: of a module
  std::shared_ptr<DeviceModule> module;
  std::string_view entry;  // of the module
  uint32_t grid[3] = {}, block[3] = {};
  uint32_t shared_bytes = 0;
  std::vector<SubmitArgument> arguments;
};

// Calls do not overlap. A deadline in the past: does not wait.
class Device {
 public:
  virtual ~Device() = default;

  virtual DeviceInfo info() const = 0;
  // Frees what ended work has used and nothing else refers to.
  virtual void collect() {}

  virtual Result<std::shared_ptr<DeviceBuffer>> allocate(uint64_t bytes) = 0;
  // After the work that was queued. WCUDA_TIMEOUT at the deadline, with nothing copied.
  virtual Status write(DeviceBuffer& target, uint64_t offset, Bytes source,
                       Clock::time_point deadline) = 0;
  virtual Status read(DeviceBuffer& source, uint64_t offset, uint8_t* target, uint64_t bytes,
                      Clock::time_point deadline) = 0;
  // Queued.
  virtual Status copy(std::shared_ptr<DeviceBuffer> target, std::shared_ptr<DeviceBuffer> source,
                      uint64_t bytes) = 0;

  // Checks everything and queues. WCUDA_NOT_FOUND without such a kernel.
  virtual Result<std::shared_ptr<DevicePoint>> submit(const Submit& what) = 0;
  // The point behind what was queued so far.
  virtual Result<std::shared_ptr<DevicePoint>> mark() = 0;
  // WCUDA_TIMEOUT when the point has not been passed at the deadline; else how the work that was
  // submitted before it ended.
  virtual Status wait(DevicePoint& point, Clock::time_point deadline) = 0;

  // WCUDA_UNSUPPORTED_KERNEL where no code can be loaded.
  virtual Result<std::shared_ptr<DeviceModule>> load(Bytes code) = 0;
};

}  // namespace wcuda::zctl
