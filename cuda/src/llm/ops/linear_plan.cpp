#include "llm/ops/linear_plan.h"

#include <algorithm>

#include "kernels/attention/attention_choice.h"
#include "kernels/shared/rounding.h"

namespace wcuda::ops {
namespace {

bool uses_vector(const LinearShape& shape, const Limits& limits) {
  if (limits.batch_invariant || shape.token_count > kVectorTokensMax) return false;
  const bool is_plain = std::all_of(shape.types, shape.types + shape.matrix_count, is_plain_type);
  return shape.cols % (is_plain ? 4 : 32) == 0;
}

bool has_batch(const DeviceTraits& device) {
  return device.compute_capability == 90 && device.has_warpgroup_code;
}

// Returns whether linear_batch computes a layer of more than kBatchTokensMax tokens faster: so few
// tiles of packed_gemm that most SMs have no work.
bool is_small(const LinearShape& shape, const Limits& limits) {
  if (limits.batch_invariant || shape.cols > kSmallInputsMax) return false;
  uint64_t rows = 0;
  for (uint32_t m = 0; m < shape.matrix_count; ++m) rows += shape.rows[m];
  return rows * kernels::round_up(shape.token_count, kBatchTokensMax) *
             std::max(shape.cols, kFewInputs) <
         kSmallOutputs * kFewInputs;
}

// The operand fills whole tiles of tokens and of 256 inputs. So it fits into the memory of f32
// outputs of as many tokens.
constexpr uint32_t kOperandTokensMin = 512;
bool operand_fits(uint32_t cols, uint32_t tokens) {
  constexpr uint32_t kTileTokens = 256, kTileInputs = 256, kScaleBytes = 2 * sizeof(float);
  const uint64_t token_bytes =
      kernels::round_up(cols, kTileInputs) * sizeof(uint16_t) + kScaleBytes;
  return tokens >= kOperandTokensMin && kernels::round_up(tokens, kTileTokens) * token_bytes <=
                                            uint64_t{tokens} * cols * sizeof(float);
}
// Tokens of a decode step from which on attention writes an operand for linear_batch. packed_gemm
// loads its first weights while another kernel converts; without one they are waited for. One H200,
// 2026-11-23, tokens/s of 8B Q4_K_M with the operand in all steps: 16 sequences 0.992 of those
// without, 32 1.008, 64 1.014, 128 0.984, 256 0.992 (2026-11-23-h200/attention_operand.txt).
constexpr uint32_t kDecodeOperandTokensMin = 17;

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

bool attention_writes_operand(const LinearShape& output, bool is_decode, const Limits& limits,
                              const DeviceTraits& device) {
  if (!device.has_warpgroup_code || !operand_fits(output.cols, limits.max_batch_tokens) ||
      limits.kv_type != kernels::KvFormat::kF16 || limits.head_length % 32 != 0 ||
      !kernels::prefill_has_warpgroup(limits.head_length, device.compute_capability))
    return false;
  const Kernel kernel = linear_kernel(output, limits, device);
  if (kernel == Kernel::kLinearVector) return false;
  return !is_decode || limits.batch_invariant ||
         (kernel == Kernel::kLinearBatch && output.token_count >= kDecodeOperandTokensMin);
}

Kernel linear_kernel(const LinearShape& shape, const Limits& limits, const DeviceTraits& device) {
  return linear_kernel(shape, limits, device,
                       is_small(shape, limits) ? UINT32_MAX : kBatchTokensMax);
}

Kernel linear_kernel(const LinearShape& shape, const Limits& limits, const DeviceTraits& device,
                     uint32_t batch_tokens_max) {
  if (device.is_host) return Kernel::kHost;
  if (uses_vector(shape, limits)) return Kernel::kLinearVector;
  return has_batch(device) && shape.token_count <= batch_tokens_max ? Kernel::kLinearBatch
                                                                    : Kernel::kPackedGemm;
}

}  // namespace wcuda::ops
