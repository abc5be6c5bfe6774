#include "llm/ops/cuda/chained_layers.h"

#include <algorithm>
#include <atomic>

#include "llm/ops/cuda/check_launch.h"

namespace wcuda::ops {
namespace {

// Of smaller models layers are too brief (H200, 1B Q4_K_M: 2,355 tokens a second at 0, 2,335
// without; 1,911 and 1,987 at 4,096).
constexpr uint32_t kEmbeddingLengthMin = 4096;

constexpr int kDevicesMax = 64;
std::atomic<bool> is_taken[kDevicesMax];

}  // namespace

uint64_t ChainedLayers::scratch_bytes(const Limits& limits) {
  const uint32_t rows_max = std::max({limits.embedding_length, limits.feed_forward_length,
                                      limits.head_count * limits.head_length});
  return kernels::layer_chain_scratch_bytes(rows_max, limits.embedding_length);
}

ChainedLayers::~ChainedLayers() {
  if (device_ >= 0) is_taken[device_] = false;
}

Status ChainedLayers::prepare(const Limits& limits, int device, void* scratch, CudaLinear* linear,
                              const kernels::Launch& launch) {
  linear_ = linear;
  scratch_ = scratch;
  scratch_bytes_ = scratch_bytes(limits);
  // Under batch_invariant a layer is made as it is of many tokens.
  if (limits.batch_invariant || limits.embedding_length < kEmbeddingLengthMin ||
      device >= kDevicesMax || !kernels::layer_chain_has_device(launch) ||
      is_taken[device].exchange(true))
    return {};
  device_ = device;
  return check_launch(kernels::layer_chain_prepare(scratch_, scratch_bytes_, launch),
                      "layer_chain");
}

void ChainedLayers::begin_step() {
  count_ = 0;
  has_chained_ = false;
}

Status ChainedLayers::queue(const kernels::LinearArgs& args, const kernels::Launch& launch) {
  WCUDA_CHECK(args.columns == 1 && count_ < kernels::kChainMax);
  layers_[count_++] = args;
  return count_ == kernels::kChainMax ? flush(launch) : Status{};
}

Status ChainedLayers::run(const kernels::LinearArgs& args, const kernels::Launch& launch) {
  if (count_ == 0) return linear_->run(args, launch);
  WCUDA_TRY(queue(args, launch));
  return flush(launch);
}

Status ChainedLayers::flush(const kernels::Launch& launch) {
  uint32_t first = 0;
  has_chained_ = false;
  if (device_ >= 0) {
    uint32_t count = count_;
    while (count >= 2 && !kernels::layer_chain_takes(layers_, count, launch)) --count;
    if (count >= 2) {
      WCUDA_TRY(check_launch(kernels::layer_chain(layers_, count, scratch_, scratch_bytes_, launch),
                             "layer_chain"));
      first = count;
      has_chained_ = true;
    }
  }
  for (; first < count_; ++first) WCUDA_TRY(linear_->run(layers_[first], launch));
  count_ = 0;
  return {};
}

}  // namespace wcuda::ops
