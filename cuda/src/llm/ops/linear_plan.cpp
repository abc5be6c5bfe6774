#include "llm/ops/linear_plan.h"

#include <algorithm>

namespace wcuda::ops {
namespace {

bool uses_vector(const LinearShape& shape, const Limits& limits) {
  if (limits.batch_invariant || shape.token_count > kVectorTokensMax) return false;
  const bool is_plain = std::all_of(shape.types, shape.types + shape.matrix_count, is_plain_type);
  return shape.cols % (is_plain ? 4 : 32) == 0;
}

bool uses_batch(const LinearShape& shape, const DeviceTraits& device, uint32_t tokens_max) {
  return shape.token_count <= tokens_max && device.compute_capability == 90 &&
         device.has_warpgroup_code;
}

// The operand fills whole tiles of tokens. So it fits into the memory of f32 outputs of as many
// tokens.
constexpr uint32_t kOperandTokensMin = 512;

}  // namespace

bool needs_gate_norms(const Limits& limits, const DeviceTraits& device) {
  return device.has_warpgroup_code && !limits.batch_invariant &&
         limits.max_batch_tokens >= kOperandTokensMin;
}

bool gate_writes_operand(const LinearShape& gate_up, const Limits& limits,
                         const DeviceTraits& device) {
  return needs_gate_norms(limits, device) && !gate_up.has_bias &&
         gate_up.types[0] == gate_up.types[1] && gate_up.rows[0] % 256 == 0 &&
         linear_kernel(gate_up, limits, device) == Kernel::kPackedGemm;
}

Kernel linear_kernel(const LinearShape& shape, const Limits& limits, const DeviceTraits& device,
                     uint32_t batch_tokens_max) {
  if (device.is_host) return Kernel::kHost;
  if (uses_vector(shape, limits)) return Kernel::kLinearVector;
  return uses_batch(shape, device, batch_tokens_max) ? Kernel::kLinearBatch : Kernel::kPackedGemm;
}

}  // namespace wcuda::ops
