#include "llm/ops/linear_plan.h"

#include <algorithm>

#include "core/base/checked.h"

namespace wcuda::ops {
namespace {

// Tokens of a product whose sums go through memory.
constexpr uint32_t kTokensMax = 2048;
// Bounds of the f16 weights of a product, gate and up of 8B in one, and of such sums: what the two
// have besides weights also bounds the f16 columns of other products.
constexpr uint64_t kWeightBytesMax = 256ull << 20;
constexpr uint64_t kSumBytesMax = 64ull << 20;
// Rows of a product that must fit whatever the inputs: two matrices of a gate, 128 each.
constexpr uint32_t kRowsMin = 256;
constexpr uint32_t kGranularity = 128;  // of pieces and chunks: a tile of a product

// The ggml types that linear_vector, linear_batch and packed_gemm have kernels for.
constexpr uint32_t kPackedTypes[] = {0,  1,  2,  3,  6,  7,  8,  10, 11, 12, 13, 14, 16, 17,
                                     18, 19, 20, 21, 22, 23, 29, 30, 34, 35, 39, 40, 41, 42};

bool has_kernels(uint32_t type) {
  return std::find(std::begin(kPackedTypes), std::end(kPackedTypes), type) !=
         std::end(kPackedTypes);
}
bool is_plain_type(uint32_t type) { return type == 0 || type == 1 || type == 30; }

bool uses_vector(const LinearShape& shape, const Limits& limits) {
  if (limits.batch_invariant || shape.token_count > kVectorTokensMax) return false;
  bool is_plain = true;
  for (uint32_t m = 0; m < shape.matrix_count; ++m) {
    if (!has_kernels(shape.types[m])) return false;
    is_plain = is_plain && is_plain_type(shape.types[m]);
  }
  return shape.cols % (is_plain ? 4 : 32) == 0;
}

bool has_warpgroups(const DeviceTraits& device) {
  return device.compute_capability == 90 && device.has_warpgroup_code;
}
// Whether linear_batch and packed_gemm can take the matrices as they lie.
bool takes_packed(const LinearShape& shape, const DeviceTraits& device) {
  for (uint32_t m = 0; m < shape.matrix_count; ++m)
    if (!has_kernels(shape.types[m])) return false;
  return !has_warpgroups(device) || !shape.is_gate || shape.types[0] == shape.types[1];
}

}  // namespace

GemmMemory gemm_memory(const Limits& limits) {
  const uint32_t attention = limits.head_count * limits.head_length;
  GemmMemory memory;
  memory.cols_max = static_cast<uint32_t>(
      align_up(std::max({limits.embedding_length, limits.feed_forward_length, attention}), 8));
  const uint64_t rows = std::max<uint64_t>(
      {limits.vocabulary_size, uint64_t{limits.feed_forward_length} * 2, limits.embedding_length,
       attention + uint64_t{limits.kv_head_count} * limits.head_length * 2, kRowsMin});
  memory.all_tokens = std::max({limits.max_batch_tokens, limits.max_logits_rows, 1u});
  memory.tokens = std::min(memory.all_tokens, kTokensMax);
  const uint64_t row_bytes = 2ull * memory.cols_max, sum_row_bytes = 4ull * memory.tokens;
  // Of a layer: what is computed from an embedding, or added to one. The output matrix may take
  // several pieces.
  const uint64_t layer_rows =
      std::max<uint64_t>(2 * uint64_t{limits.feed_forward_length},
                         attention + uint64_t{limits.kv_head_count} * limits.head_length * 2);
  memory.weight_bytes = std::max(
      std::min(layer_rows * limits.embedding_length * 2, kWeightBytesMax), kRowsMin * row_bytes);
  memory.sum_bytes = std::max(std::min((rows + 3) / 4 * 4 * sum_row_bytes, kSumBytesMax),
                              kRowsMin * sum_row_bytes);
  return memory;
}

LinearSwitches linear_switches(const DeviceTraits& device) {
  return has_warpgroups(device) ? LinearSwitches{} : LinearSwitches{0, UINT32_MAX};
}

Kernel linear_kernel(const LinearShape& shape, const Limits& limits, const DeviceTraits& device,
                     const LinearSwitches& switches) {
  if (device.is_host) return Kernel::kHost;
  if (uses_vector(shape, limits)) return Kernel::kLinearVector;
  if (takes_packed(shape, device)) {
    // Under batch_invariant by the matrices alone.
    if (has_warpgroups(device) &&
        (limits.batch_invariant || shape.token_count <= switches.batch_tokens_max))
      return Kernel::kLinearBatch;
    if (shape.token_count <= switches.packed_gemm_tokens_max) return Kernel::kPackedGemm;
  }
  if (!fits_gemm(shape)) return Kernel::kDequantizeGemmF32;
  // Of a gate the sums are f16, which takes a down projection of the same kernel.
  if (shape.is_gate &&
      (!is_gemm_step(shape.token_count, limits, switches) || shape.rows[0] > kGemmInputsMax))
    return Kernel::kDequantizeGemmF32;
  return Kernel::kDequantizeGemm;
}

bool is_gemm_step(uint32_t token_count, const Limits& limits, const LinearSwitches& switches) {
  return !limits.batch_invariant &&
         token_count > std::max({switches.packed_gemm_tokens_max, switches.batch_tokens_max,
                                 kVectorTokensMax}) &&
         token_count <= gemm_memory(limits).all_tokens;
}

bool fits_gemm(const LinearShape& shape) {
  if (shape.cols % 8 != 0 || shape.cols > kGemmInputsMax) return false;
  for (uint32_t m = 0; m < shape.matrix_count; ++m)
    if (shape.rows[m] % 8 != 0) return false;
  return true;
}

uint32_t even_part(uint32_t total, uint64_t most) {
  if (total <= most) return total;
  const auto granule = static_cast<uint32_t>(most >= kGranularity ? kGranularity : 1);
  const auto limit = static_cast<uint32_t>(most / granule * granule);
  const uint32_t parts = (total + limit - 1) / limit;
  return (total + parts * granule - 1) / (parts * granule) * granule;
}

uint32_t gemm_piece_rows(uint32_t rows, uint32_t cols, uint64_t weight_bytes) {
  return even_part(rows, weight_bytes / (2ull * cols));
}

uint32_t gemm_piece_count(uint32_t rows, uint32_t cols, uint64_t weight_bytes) {
  return static_cast<uint32_t>(ceil_div(rows, gemm_piece_rows(rows, cols, weight_bytes)));
}

}  // namespace wcuda::ops
