// Which kernel computes a linear layer, by types, tokens and device: without a GPU.
#include "llm/ops/linear_plan.h"

#include <gtest/gtest.h>

namespace wcuda::ops {
namespace {

using namespace tensor_type;

DeviceTraits hopper() {
  DeviceTraits device;
  device.is_host = false;
  device.compute_capability = 90;
  device.sm_count = 132;
  device.has_warpgroup_code = true;
  return device;
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
  return linear_kernel(shape, limits, device);
}

TEST(LinearPlan, kernels_change_at_the_measured_numbers_of_tokens) {
  for (const uint32_t type : {kF32, kF16, kQ4_K, kIQ2_XXS, kBF16}) {
    SCOPED_TRACE(type);
    EXPECT_EQ(kernel_of(type, 8, hopper()), Kernel::kLinearVector);
    EXPECT_EQ(kernel_of(type, 9, hopper()), Kernel::kLinearBatch);
    EXPECT_EQ(kernel_of(type, 64, hopper()), Kernel::kLinearBatch);
    for (const uint32_t tokens : {65u, 8192u})
      EXPECT_EQ(kernel_of(type, tokens, hopper(), true), Kernel::kPackedGemm);
  }
}

TEST(LinearPlan, small_layers_of_many_tokens_have_the_kernel_with_small_tiles) {
  const auto kernel = [](uint32_t rows, uint32_t cols, uint32_t tokens, bool is_invariant = false) {
    LinearShape shape;
    shape.token_count = tokens;
    shape.matrix_count = 2;  // the rows of all matrices count
    shape.types[0] = shape.types[1] = kQ4_K;
    shape.rows[0] = rows - 192;
    shape.rows[1] = 192;
    shape.cols = cols;
    Limits limits{};
    limits.batch_invariant = is_invariant;
    return linear_kernel(shape, limits, hopper());
  };
  EXPECT_EQ(kernel(960, 576, 1024), Kernel::kLinearBatch);
  EXPECT_EQ(kernel(1024, 576, 1024), Kernel::kPackedGemm);
  EXPECT_EQ(kernel(1024, 576, 961), Kernel::kPackedGemm);  // in tiles of 64
  EXPECT_EQ(kernel(4096, 2048, 192), Kernel::kLinearBatch);
  EXPECT_EQ(kernel(4096, 3072, 192), Kernel::kPackedGemm);
  EXPECT_EQ(kernel(4096, 3072, 128), Kernel::kLinearBatch);
  EXPECT_EQ(kernel(256, 3080, 65), Kernel::kPackedGemm);
  EXPECT_EQ(kernel(960, 576, 128, true), Kernel::kPackedGemm);
}

TEST(LinearPlan, gate_and_up_write_an_operand_where_packed_gemm_reads_it) {
  LinearShape gate_up;
  gate_up.token_count = 65;
  gate_up.matrix_count = 2;
  gate_up.is_gate = true;
  gate_up.types[0] = gate_up.types[1] = kQ4_K;
  gate_up.rows[0] = gate_up.rows[1] = 14336;
  Limits limits{};
  limits.max_batch_tokens = 512;
  const DeviceTraits device = hopper();
  EXPECT_TRUE(gate_writes_operand(gate_up, limits, device));

  LinearShape few = gate_up, biased = gate_up, mixed = gate_up, odd = gate_up;
  few.token_count = 64;
  biased.has_bias = true;
  mixed.types[1] = kQ6_K;
  odd.rows[0] = odd.rows[1] = 14336 + 64;
  for (const LinearShape& shape : {few, biased, mixed, odd})
    EXPECT_FALSE(gate_writes_operand(shape, limits, device));
  Limits invariant = limits, small = limits;
  invariant.batch_invariant = true;
  small.max_batch_tokens = 511;
  for (const Limits& other : {invariant, small}) {
    EXPECT_FALSE(gate_writes_operand(gate_up, other, device));
    EXPECT_FALSE(needs_gate_norms(other, device));
  }
  DeviceTraits ampere = device;
  ampere.has_warpgroup_code = false;
  for (const DeviceTraits& other : {ampere, DeviceTraits{}}) {
    EXPECT_FALSE(gate_writes_operand(gate_up, limits, other));
    EXPECT_FALSE(needs_gate_norms(limits, other));
  }
}

TEST(LinearPlan, attention_writes_an_operand_where_tensor_cores_read_it) {
  LinearShape output;
  output.token_count = 9;
  output.matrix_count = 1;
  output.types[0] = kQ4_K;
  output.rows[0] = output.cols = 4096;
  output.is_added = true;
  Limits limits{};
  limits.max_batch_tokens = 512;
  limits.head_length = 128;
  const DeviceTraits device = hopper();
  Limits invariant = limits;
  invariant.batch_invariant = true;
  for (const uint32_t tokens : {1u, 8u, 9u, 16u, 17u, 64u, 65u, 4096u}) {
    output.token_count = tokens;
    EXPECT_EQ(attention_writes_operand(output, false, limits, device), tokens > 8);
    EXPECT_EQ(attention_writes_operand(output, true, limits, device), tokens > 16 && tokens <= 64);
    // The scale that attention takes must not depend on the step.
    for (const bool is_decode : {false, true})
      EXPECT_TRUE(attention_writes_operand(output, is_decode, invariant, device));
  }
  // Inputs that are not whole tiles of 256 take more memory, and so do tokens.
  LinearShape odd = output;
  odd.cols = 576;
  EXPECT_TRUE(attention_writes_operand(odd, false, limits, device));
  Limits odd_tokens = limits;
  odd_tokens.max_batch_tokens = 513;
  EXPECT_TRUE(attention_writes_operand(output, false, odd_tokens, device));
  EXPECT_FALSE(attention_writes_operand(odd, false, odd_tokens, device));
  Limits small = limits, quantized = limits, long_heads = limits, odd_heads = limits;
  small.max_batch_tokens = 511;
  quantized.kv_type = kernels::KvFormat::kQ8_0;
  long_heads.head_length = 256;
  odd_heads.head_length = 80;
  for (const Limits& other : {small, quantized, long_heads, odd_heads})
    EXPECT_FALSE(attention_writes_operand(output, false, other, device));
  DeviceTraits ampere = device;
  ampere.has_warpgroup_code = false;
  for (const DeviceTraits& other : {ampere, DeviceTraits{}})
    EXPECT_FALSE(attention_writes_operand(output, false, limits, other));
}

// linear_batch and packed_gemm then give the same bits.
TEST(LinearPlan, batch_invariance_leaves_out_the_vector_kernel) {
  for (const uint32_t tokens : {1u, 8u, 64u})
    EXPECT_EQ(kernel_of(kQ4_K, tokens, hopper(), false, true), Kernel::kLinearBatch);
  for (const uint32_t tokens : {65u, 2048u})
    EXPECT_EQ(kernel_of(kQ4_K, tokens, hopper(), false, true), Kernel::kPackedGemm);
}

TEST(LinearPlan, devices_without_warpgroups_have_one_kernel_above_8_tokens) {
  for (const int32_t capability : {80, 90, 120}) {
    DeviceTraits device = hopper();
    device.compute_capability = capability;
    device.has_warpgroup_code = false;
    EXPECT_EQ(kernel_of(kQ4_K, 8, device), Kernel::kLinearVector);
    for (const uint32_t tokens : {9u, 64u, 65u, 8192u})
      EXPECT_EQ(kernel_of(kQ4_K, tokens, device, true), Kernel::kPackedGemm);
    EXPECT_EQ(kernel_of(kQ4_K, 1, device, false, true), Kernel::kPackedGemm) << "batch-invariant";
  }
}

}  // namespace
}  // namespace wcuda::ops
