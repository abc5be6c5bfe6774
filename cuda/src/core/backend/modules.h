// Modules: device code that is loaded at run time, of backends that have such.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "core/base/status.h"

namespace wcuda {

struct Stream;

// Loaded device code: kernels and globals. id 0: none.
struct Module {
  uint64_t id = 0;
};

// A kernel of a module; ends with it. id 0: none.
struct Kernel {
  uint64_t id = 0;
};

struct LaunchDims {
  uint32_t grid[3] = {1, 1, 1};
  uint32_t block[3] = {1, 1, 1};
  uint32_t cluster[3] = {0, 0, 0};  // blocks; all 0: none, or what the kernel was compiled with
  uint32_t shared_bytes = 0;        // dynamic
  bool is_cooperative = false;      // all blocks run at once and may wait for each other
};

struct KernelParameter {
  uint64_t offset;
  uint64_t bytes;
};

struct KernelAttributes {
  std::string name;  // as in the code, mangled unless it has C linkage
  std::vector<KernelParameter> parameters;
  uint32_t max_threads_per_block = 0;
  uint32_t register_count = 0;  // a thread
  uint64_t static_shared_bytes = 0;
  uint64_t dynamic_shared_bytes_max = 0;  // that a launch may ask for
  uint64_t local_bytes = 0;               // a thread
  uint64_t constant_bytes = 0;
  uint32_t required_cluster[3] = {0, 0, 0};  // all 0: none
  int32_t ptx_version = 0;                   // major * 10 + minor
  int32_t binary_version = 0;
};

struct Occupancy {
  uint32_t blocks_per_multiprocessor;  // at once
  uint32_t best_block_threads;         // block size that fills a multiprocessor most
};

// Called by the functions of Backend that have these names after `module_` and `kernel_`, which say
// what they do.
class Modules {
 public:
  virtual ~Modules() = default;
  virtual Result<Module> load(const void* code, uint64_t bytes) = 0;
  virtual Status unload(Module module) = 0;
  virtual Result<std::pair<void*, uint64_t>> global(Module module, const std::string& name) = 0;
  virtual Result<Kernel> find(Module module, const std::string& name) = 0;
  virtual Result<KernelAttributes> attributes(Kernel kernel) = 0;
  virtual Result<Occupancy> occupancy(Kernel kernel, uint32_t block_threads,
                                      uint64_t shared_bytes) = 0;
  virtual Status launch(Kernel kernel, const LaunchDims& dims, void* const* arguments,
                        Stream stream) = 0;
};

}  // namespace wcuda
