// Which kernel computes a linear layer, by types, tokens and device: without a GPU.
#include "llm/ops/linear_plan.h"

#include <gtest/gtest.h>

namespace wcuda::ops {
namespace {

constexpr uint32_t kF32 = 0, kF16 = 1, kQ4_K = 12, kIQ2_XXS = 16, kBF16 = 30;

DeviceTraits hopper() {
  DeviceTraits device;
  device.is_host = false;
  device.compute_capability = 90;
  device.sm_count = 132;
  device.has_warpgroup_code = true;
  return device;
}

// One layer, all of a type but the down projection.
model::Weights weights_of(uint32_t type, uint32_t down_type) {
  model::Weights weights;
  weights.layers.resize(1);
  model::LayerWeights& w = weights.layers[0];
  for (model::Weight* weight :
       {&w.query, &w.key, &w.value, &w.attention_output, &w.gate, &w.up, &w.down}) {
    weight->type = type;
    weight->rows = weight->cols = 4096;
  }
  w.down.type = down_type;
  return weights;
}

Kernel kernel_of(uint32_t type, uint32_t tokens, const DeviceTraits& device, bool is_gate = false,
                 bool is_invariant = false) {
  LinearShape shape;
  shape.token_count = tokens;
  shape.matrix_count = is_gate ? 2 : 1;
  shape.types[0] = shape.types[1] = type;
  shape.rows[0] = shape.rows[1] = shape.cols = 4096;
  shape.is_gate = is_gate;
  Limits limits{};
  limits.max_batch_tokens = 8192;
  limits.embedding_length = limits.feed_forward_length = 4096;
  limits.batch_invariant = is_invariant;
  return linear_kernel(shape, limits, device, linear_switches(weights_of(type, type), device));
}

TEST(LinearPlan, kernels_change_at_the_measured_numbers_of_tokens) {
  for (const uint32_t type : {kQ4_K, kIQ2_XXS, kF16, kBF16}) {
    SCOPED_TRACE(type);
    EXPECT_EQ(kernel_of(type, 8, hopper()), Kernel::kLinearVector);
    EXPECT_EQ(kernel_of(type, 9, hopper()), Kernel::kLinearBatch);
    EXPECT_EQ(kernel_of(type, 64, hopper()), Kernel::kLinearBatch);
    EXPECT_EQ(kernel_of(type, 65, hopper()), Kernel::kPackedGemm);
    EXPECT_EQ(kernel_of(type, 704, hopper()), Kernel::kPackedGemm);
    const bool is_half = type == kF16 || type == kBF16;
    for (const uint32_t tokens : {705u, 8192u})
      EXPECT_EQ(kernel_of(type, tokens, hopper(), true),
                is_half ? Kernel::kDequantizeGemm : Kernel::kPackedGemm);
  }
}

TEST(LinearPlan, f32_matrices_are_dequantized) {
  EXPECT_EQ(kernel_of(kF32, 128, hopper()), Kernel::kLinearBatch);
  EXPECT_EQ(kernel_of(kF32, 129, hopper(), true), Kernel::kDequantizeGemm);
}

TEST(LinearPlan, batch_invariance_keeps_one_kernel) {
  for (const uint32_t tokens : {1u, 64u, 65u, 2048u})
    EXPECT_EQ(kernel_of(kQ4_K, tokens, hopper(), false, true), Kernel::kLinearBatch);
}

TEST(LinearPlan, devices_without_warpgroups_dequantize) {
  DeviceTraits ampere = hopper();
  ampere.compute_capability = 80;
  ampere.has_warpgroup_code = false;
  EXPECT_EQ(kernel_of(kQ4_K, 9, ampere), Kernel::kDequantizeGemm);
  EXPECT_EQ(kernel_of(kQ4_K, 128, ampere, true), Kernel::kDequantizeGemmF32);
  EXPECT_EQ(kernel_of(kQ4_K, 129, ampere, true), Kernel::kDequantizeGemm);
}

// What one layer hands to the next has one form in a step, so the switch is that of the model.
TEST(LinearPlan, one_quantized_matrix_makes_a_model_quantized) {
  EXPECT_EQ(linear_switches(weights_of(kF16, kBF16), hopper()).packed_gemm_tokens_max,
            kPackedGemmHalfTokensMax);
  EXPECT_EQ(linear_switches(weights_of(kF16, kQ4_K), hopper()).packed_gemm_tokens_max, UINT32_MAX);
  EXPECT_EQ(linear_switches(weights_of(kF16, kF32), hopper()).packed_gemm_tokens_max, 0u);
}

}  // namespace
}  // namespace wcuda::ops
