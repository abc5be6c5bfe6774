// What a session knows of kernels: an interface to whatever runs them. api/zctl implements it over
// a registry.
#pragma once

#include <chrono>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <string_view>
#include <vector>

#include "compute/jit/descriptor.h"
#include "core/base/status.h"

namespace wcuda::zctl {

using Clock = std::chrono::steady_clock;

struct KernelInfo {
  uint32_t id = 0;
  uint32_t flags = 0;      // WCUDA_KERNEL_…
  uint32_t budget_ms = 0;  // 0: none
  uint64_t sig_hash = 0;
  std::string_view name;
};

struct Kernel {
  KernelInfo info;
  const jit::Signature* signature = nullptr;
  std::shared_ptr<const void> entry;  // keeps what the others point to
};

// One argument, for the parameter of the same index and of its kind.
struct RunArgument {
  uint64_t offset = 0;          // of a buffer: in the block
  uint64_t bytes = 0;           // of a buffer, of bytes by value
  const void* value = nullptr;  // of a scalar and of bytes; valid until the run returns
};

// The buffers of a run, in one block: those that are only read, then those that are read and
// written, then those that are only written.
struct RunBlock {
  uint64_t bytes = 0;
  uint64_t upload_end = 0;      // the kernel reads [0, upload_end)
  uint64_t download_begin = 0;  // and writes [download_begin, bytes)
  // Of a guest's memory: where [download_begin, download_begin + target_bytes) go, if that is the
  // only output, and has no strides; else null.
  uint8_t* target = nullptr;
  uint64_t target_bytes = 0;
};

class Device;

// Calls do not overlap.
class Kernels {
 public:
  virtual ~Kernels() = default;

  // By id, ascending.
  virtual void list(const std::function<void(const KernelInfo&)>& each) = 0;
  // False if there is none.
  virtual bool find(uint32_t id, Kernel* kernel) = 0;
  virtual bool find_name(std::string_view name, Kernel* kernel) = 0;
  // Of a module of device code that the descriptor names, by its name there.
  virtual bool find_entry(std::string_view module, std::string_view entry, Kernel* kernel) {
    (void)module, (void)entry, (void)kernel;
    return false;
  }
  // Whether a run can begin. Otherwise the reason, which is sent as it is.
  virtual Status check_ready(const Kernel& kernel) = 0;
  // Host memory for a block, contents undefined; valid until the next call of this function.
  virtual Result<uint8_t*> stage(uint64_t bytes) = 0;
  // Bytes [0, end) of the staged block are what the run reads: its upload may begin.
  virtual void staged(uint64_t end) { (void)end; }
  // Copies from a guest's memory to `begin` of the staged block, where bytes [0, begin) are staged.
  virtual void copy_in(uint8_t* block, uint64_t begin, const uint8_t* source, uint64_t bytes) {
    std::memcpy(block + begin, source, bytes);
  }
  // Copies from the staged block to a guest's memory.
  virtual void copy_out(uint8_t* target, const uint8_t* source, uint64_t bytes) {
    std::memcpy(target, source, bytes);
  }
  // Uploads, runs, and downloads into the staged block. Bytes of [upload_end, bytes) that the
  // kernel does not write are 0. WCUDA_TIMEOUT when it has not finished at the deadline; nothing is
  // downloaded then. True: the output is at block.target already, which otherwise is as it was.
  virtual Result<bool> run(const Kernel& kernel, const std::vector<RunArgument>& arguments,
                           const RunBlock& block, Clock::time_point deadline) = 0;
  // For the capabilities of ZCL1; null: none.
  virtual Device* device() { return nullptr; }
};

}  // namespace wcuda::zctl
