// ChainedLayers: the linear layers of a step of one token between two attentions as one kernel.
#pragma once

#include <cstdint>

#include "core/base/status.h"
#include "kernels/linear/layer_chain.h"
#include "llm/ops/cuda/linear.h"
#include "llm/ops/ops.h"

namespace wcuda::ops {

// One object an engine; not thread-safe. A layer that is queued runs with the next ones that are,
// at the latest at flush(): as kernels::layer_chain where that takes them and is faster, else one
// by one. CTAs of a chain wait for each other: two chains at once may each have half of the
// multiprocessors and wait for ever. So one engine of a device has them, the first that is there.
class ChainedLayers {
 public:
  ChainedLayers() = default;
  ~ChainedLayers();
  ChainedLayers(const ChainedLayers&) = delete;
  ChainedLayers& operator=(const ChainedLayers&) = delete;

  static uint64_t scratch_bytes(const Limits& limits);
  // `scratch` has so many bytes, aligned to 256, and is cleared on launch.stream. device: CUDA's
  // ordinal.
  Status prepare(const Limits& limits, int device, void* scratch, CudaLinear* linear,
                 const kernels::Launch& launch);

  // Drops what a step that failed may have left.
  void begin_step();
  // args.columns is 1; the layer reads what the one queued before makes.
  Status queue(const kernels::LinearArgs& args, const kernels::Launch& launch);
  // As queue() and flush(); where nothing is queued, any number of columns.
  Status run(const kernels::LinearArgs& args, const kernels::Launch& launch);
  Status flush(const kernels::Launch& launch);
  // Whether the layers before the last flush() of this step were one kernel.
  bool has_chained() const { return has_chained_; }

 private:
  CudaLinear* linear_ = nullptr;
  int device_ = -1;  // whose chains this engine has; -1: of none
  bool has_chained_ = false;
  void* scratch_ = nullptr;
  uint64_t scratch_bytes_ = 0;
  kernels::LinearArgs layers_[kernels::kChainMax];
  uint32_t count_ = 0;
};

}  // namespace wcuda::ops
