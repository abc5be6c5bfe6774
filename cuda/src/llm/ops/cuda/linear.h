// CudaLinear: the linear layers of a step on a CUDA device, each by the kernel that its node names.
#pragma once

#include <cstdint>
#include <memory>

#include "core/base/status.h"
#include "core/gemm/gemm.h"
#include "kernels/linear/linear.h"
#include "llm/ops/cuda/dequantize_gemm.h"
#include "llm/ops/linear_plan.h"

namespace wcuda::ops {

// One object an engine; not thread-safe. Deterministic: the same arguments give the same bits.
class CudaLinear {
 public:
  // Tests and benches choose otherwise.
  explicit CudaLinear(compute::HalfGemm::Library library = compute::HalfGemm::Library::kWhereFound)
      : library_(library) {}

  // Device memory that run() needs, to the byte. Pure; of `launch` the device's figures count.
  static uint64_t scratch_bytes(const Limits& limits, const kernels::Launch& launch);

  // `scratch` has scratch_bytes(limits, launch) bytes, aligned to 256. `stream` is launch.stream,
  // on which part of the memory is cleared; the backend outlives this object. The device is
  // current.
  Status prepare(const Limits& limits, Backend* backend, Stream stream,
                 const kernels::Launch& launch, void* scratch);

  // Queues the layer by the kernel of `node`, in its forms. Sizes are within the limits that
  // prepare() was given. Under batch_invariant a token's bits depend on nothing but its own x.
  // `sums` is read where the node's input is gate sums.
  Status run(const Node& node, const kernels::LinearArgs& args, const GateSums& sums,
             const kernels::Launch& launch);
  // Layers of one token as one kernel.
  Status run_persistent(const kernels::LinearArgs* layers, uint32_t count,
                        const kernels::Launch& launch);

 private:
  // Offsets into the scratch memory.
  struct Scratch {
    uint64_t workspace = 0;    // of cuBLASLt
    uint64_t weights[2] = {};  // f16 rows of matrices
    uint64_t input = 0;        // f16 columns and their scales
    uint64_t vector = 0;       // of linear_vector
    uint64_t vector_bytes = 0;
    uint64_t gemm = 0;  // of packed_gemm
    uint64_t gemm_bytes = 0;
    uint64_t sums = 0;
    uint64_t scales = 0;  // of f16 columns and of sums
    uint64_t persistent = 0;
    uint64_t persistent_bytes = 0;
    uint64_t bytes = 0;
  };
  static Scratch layout(const Limits& limits, const GemmMemory& memory,
                        const kernels::Launch& launch);
  Status run_in_parts(const Node& node, const kernels::LinearArgs& args,
                      const kernels::Launch& launch);
  Status run_gemm_f32(const kernels::LinearArgs& args, const kernels::Launch& launch);

  template <class T>
  T* at(uint64_t offset) const {
    return reinterpret_cast<T*>(static_cast<uint8_t*>(memory_) + offset);
  }

  compute::HalfGemm::Library library_;
  bool is_batch_invariant_ = false;
  GemmMemory gemm_memory_;
  Scratch scratch_;
  void* memory_ = nullptr;
  std::unique_ptr<compute::HalfGemm> gemm_;
  DequantizeGemm dequantize_gemm_;
};

}  // namespace wcuda::ops
