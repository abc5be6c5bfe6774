// HalfGemm: products of f16 matrices, summed in f32, by cuBLASLt where the machine has it, else by
// a tensor-core kernel of ours.
#pragma once

#include <cstdint>
#include <memory>

#include "core/base/status.h"
#include "kernels/linear/gemm.h"

namespace wcuda::compute {

// Not thread-safe: one object per engine.
class HalfGemm {
 public:
  static constexpr uint64_t kWorkspaceBytes = 32ull << 20;

  enum class Library {
    kWhereFound,  // cuBLASLt if it can be opened; otherwise logs that once at level info
    kNone,
  };

  // Opens the library and creates its handle on the current device. `workspace`: kWorkspaceBytes of
  // device memory, aligned to 256 bytes.
  HalfGemm(Library library, void* workspace);
  ~HalfGemm();
  HalfGemm(const HalfGemm&) = delete;
  HalfGemm& operator=(const HalfGemm&) = delete;

  bool has_library() const { return lt_ != nullptr; }

  // Chooses and caches the algorithm of a shape (its sizes, y_stride and kind of output). Without
  // it, run() does so at the first call for a shape, which must not be during graph capture.
  Status prepare(const kernels::GemmArgs& shape);

  // Queues the product. The same shape gives the same bits every time.
  Status run(const kernels::GemmArgs& args, const kernels::Launch& launch);

 private:
  class Lt;
  std::unique_ptr<Lt> lt_;
};

}  // namespace wcuda::compute
