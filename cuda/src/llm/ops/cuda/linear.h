// CudaLinear: the linear layers of a step on a CUDA device, by the kernel family that suits the
// number of tokens.
#pragma once

#include <cstdint>
#include <memory>

#include "core/base/status.h"
#include "core/gemm/gemm.h"
#include "kernels/linear/linear.h"
#include "llm/ops/cuda/wide_linear.h"
#include "llm/ops/ops.h"

namespace wcuda::ops {

// One object an engine; not thread-safe. Deterministic: the same arguments give the same bits.
class CudaLinear {
 public:
  // Columns up to which linear_batch makes a layer; above, weights go to f16 rows for one product.
  static constexpr uint32_t kBatchColumnsMax = 128;

  // Tests and benches choose otherwise.
  explicit CudaLinear(compute::HalfGemm::Library library = compute::HalfGemm::Library::kWhereFound,
                      uint32_t batch_columns_max = kBatchColumnsMax)
      : library_(library), batch_columns_max_(batch_columns_max) {}

  // Device memory that run() needs, to the byte. Pure; of `launch` the device's figures count.
  static uint64_t scratch_bytes(const Limits& limits, const kernels::Launch& launch);

  // `scratch` has scratch_bytes(limits, launch) bytes, aligned to 256. The device is current; part
  // of the memory is cleared on launch.stream.
  Status prepare(const Limits& limits, const kernels::Launch& launch, void* scratch);

  // Queues the layer. Sizes are within the limits that prepare() was given. Under batch_invariant a
  // token's bits depend on nothing but its own x.
  Status run(const kernels::LinearArgs& args, const kernels::Launch& launch);
  // Whether run_joined() takes a layer of these columns: many of them.
  bool joins(const kernels::LinearArgs& args) const { return is_wide(args); }
  // The outputs of all matrices one after the other: output (columns, rows of all).
  Status run_joined(const kernels::LinearArgs& args, float* output, const kernels::Launch& launch) {
    return wide_.run_joined(args, output, launch);
  }
  // Before the layers of a step.
  void begin_step() { wide_.forget(); }
  // Whether a run() that makes so many embeddings of `cols` values each takes those as f16,
  // unscaled: x that half_input() has named.
  bool takes_half(uint32_t columns, uint32_t cols) const;
  void half_input(const float* x) { wide_.half_input(x); }
  // As run(), of a gate whose output only a run() with as many columns will read: it may be left in
  // a form that only that understands.
  Status run_hidden(const kernels::LinearArgs& args, const kernels::Launch& launch);

 private:
  // Offsets into the scratch memory.
  struct Scratch {
    uint64_t workspace = 0;    // of cuBLASLt
    uint64_t weights[2] = {};  // f16 rows of matrices
    uint64_t weight_bytes = 0;
    uint64_t input = 0;   // f16 columns and their scales
    uint64_t vector = 0;  // of linear_vector
    uint64_t vector_bytes = 0;
    uint64_t sums = 0;
    uint64_t sum_bytes = 0;
    uint64_t scales = 0;  // of f16 columns and of sums
    uint64_t bytes = 0;
    uint32_t columns = 0;  // that are worked on at once
    uint32_t all_columns = 0;
  };
  static Scratch layout(const Limits& limits, const kernels::Launch& launch);
  bool uses_vector(const kernels::LinearArgs& args) const;
  bool uses_batch(const kernels::LinearArgs& args, const kernels::Launch& launch) const;
  bool is_wide(const kernels::LinearArgs& args) const;
  bool has_many(uint32_t columns) const;
  Status run_gemm(const kernels::LinearArgs& args, const kernels::Launch& launch);

  template <class T>
  T* at(uint64_t offset) const {
    return reinterpret_cast<T*>(static_cast<uint8_t*>(memory_) + offset);
  }

  compute::HalfGemm::Library library_;
  uint32_t batch_columns_max_;
  bool is_batch_invariant_ = false;
  uint32_t embedding_length_ = 0;
  Scratch scratch_;
  void* memory_ = nullptr;
  std::unique_ptr<compute::HalfGemm> gemm_;
  WideLinear wide_;
};

}  // namespace wcuda::ops
