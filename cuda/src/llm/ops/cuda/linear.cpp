// Calls the kernels of linear layers, for parts of the tokens, so that scratch memory is bounded.
#include "llm/ops/cuda/linear.h"

#include <algorithm>

#include "kernels/linear/fused_layers.h"
#include "kernels/linear/linear_batch.h"
#include "kernels/linear/linear_vector.h"
#include "kernels/linear/packed_gemm.h"
#include "kernels/shared/arena.h"
#include "kernels/shared/rounding.h"

namespace wcuda::ops {
namespace {

using kernels::Epilogue;
using kernels::Launch;
using kernels::LinearArgs;

static_assert(kVectorTokensMax == kernels::kLinearVectorTokensMax);

// f16 activations of one launch of linear_batch or packed_gemm, unless 2,048 tokens need more.
constexpr uint32_t kInputBytesMax = 64u << 20;

uint32_t cols_max(const Limits& limits) {
  return std::max({limits.embedding_length, limits.feed_forward_length,
                   limits.head_count * limits.head_length, limits.head_cols_max});
}

// Returns the most tokens of one launch. Small models need many, so that there are tiles for all
// SMs.
uint32_t tokens_max(const Limits& limits) {
  const uint32_t wanted = std::max(limits.max_batch_tokens, limits.max_logits_rows);
  return std::clamp(wanted, 1u,
                    std::max(kInputBytesMax / 2 / std::max(cols_max(limits), 1u), 2048u));
}

// Returns WCUDA_DEVICE_ERROR with the call's name and the runtime's text, unless it succeeded.
Status check_launch(cudaError_t error, const char* call) {
  if (error == cudaSuccess) return {};
  return Status::native_error(WCUDA_DEVICE_ERROR, error, "%s: %s", call, cudaGetErrorString(error));
}

// Returns the scratch of linear_vector for the layers of a model of these limits, for all types.
uint64_t vector_scratch_bytes(const Limits& limits, const Launch& launch) {
  const uint32_t attention = limits.head_count * limits.head_length;
  const uint32_t key = limits.kv_head_count * limits.head_length;
  const auto layer = [](Epilogue epilogue, std::initializer_list<uint32_t> rows) {
    LinearArgs args;
    args.tokens = kernels::kLinearVectorTokensMax;
    args.epilogue = epilogue;
    for (const uint32_t count : rows) {
      // Matrices of different types take the most scratch.
      args.matrices[args.matrix_count] = {nullptr, args.matrix_count, count, 0};
      ++args.matrix_count;
    }
    return args;
  };
  uint64_t bytes = 0;
  for (const LinearArgs& args :
       {layer(Epilogue::kStore, {attention, key, key}),
        layer(Epilogue::kAdd, {limits.embedding_length}),
        layer(Epilogue::kStore, {limits.embedding_length}),
        layer(Epilogue::kSiluGate, {limits.feed_forward_length, limits.feed_forward_length}),
        layer(Epilogue::kStore, {limits.vocabulary_size})})
    bytes = std::max(bytes, kernels::linear_vector_scratch_bytes(args, launch));
  return bytes;
}

// Returns the arguments for tokens first … first + count - 1.
LinearArgs tokens_of(const LinearArgs& args, uint32_t first, uint32_t count) {
  LinearArgs part = args;
  part.tokens = count;
  if (args.x_rows != nullptr)
    part.x_rows += first;
  else
    part.x += uint64_t{first} * args.matrices[0].cols;
  const uint32_t outputs = is_gate(args.epilogue) ? 1 : args.matrix_count;
  for (uint32_t m = 0; m < outputs; ++m) part.outputs[m] += uint64_t{first} * args.matrices[m].rows;
  return part;
}

// Returns the arguments for matrix `m` of a gated layer, with the output of the layer.
LinearArgs half_of(const LinearArgs& gate, uint32_t m, Epilogue epilogue) {
  LinearArgs half = gate;
  half.matrix_count = 1;
  half.matrices[0] = gate.matrices[m];
  half.biases[0] = gate.biases[m];
  half.epilogue = epilogue;
  return half;
}

}  // namespace

CudaLinear::Scratch CudaLinear::layout(const Limits& limits, const Launch& launch) {
  const uint32_t cols = cols_max(limits);
  Scratch scratch;
  Arena arena;
  scratch.input =
      arena.reserve(std::max(kernels::linear_batch_scratch_bytes(cols, tokens_max(limits)),
                             kernels::packed_gemm_input_bytes(cols, tokens_max(limits))));
  scratch.vector_bytes = vector_scratch_bytes(limits, launch);
  scratch.vector = arena.reserve(scratch.vector_bytes);
  scratch.gemm_bytes = kernels::packed_gemm_scratch_bytes(launch);
  scratch.gemm = arena.reserve(scratch.gemm_bytes);
  scratch.persistent_bytes = kernels::fused_layers_scratch_bytes(cols, limits.embedding_length);
  scratch.persistent = arena.reserve(scratch.persistent_bytes);
  scratch.bytes = arena.bytes();
  return scratch;
}

uint64_t CudaLinear::scratch_bytes(const Limits& limits, const Launch& launch) {
  return layout(limits, launch).bytes;
}

cudaError_t CudaLinear::prepare(const Limits& limits, const Launch& launch, void* scratch) {
  tokens_max_ = tokens_max(limits);
  scratch_ = layout(limits, launch);
  memory_ = scratch;
  is_batch_invariant_ = limits.batch_invariant;
  // The scratch of linear_vector and of packed_gemm is contiguous. Its counters start at zero.
  if (const cudaError_t status =
          cudaMemsetAsync(at(scratch_.vector), 0,
                          scratch_.gemm + scratch_.gemm_bytes - scratch_.vector, launch.stream))
    return status;
  return kernels::fused_layers_prepare(at(scratch_.persistent), scratch_.persistent_bytes, launch);
}

uint32_t CudaLinear::launch_tokens(uint32_t tokens) const {
  // As equal as whole tiles allow.
  const uint32_t launches = kernels::divide_up(std::max(tokens, 1u), tokens_max_);
  return std::min(kernels::round_up(kernels::divide_up(tokens, launches), 256), tokens_max_);
}

Status CudaLinear::write_operand(const LinearArgs& args, const kernels::Matrix& reader,
                                 float gate_norm, float up_norm, const Launch& launch) {
  WCUDA_CHECK(memory_ != nullptr && args.matrix_count == 2 && reader.cols == args.matrices[0].rows);
  Launch gemm = launch;
  gemm.scratch = at(scratch_.gemm);
  gemm.scratch_bytes = scratch_.gemm_bytes;
  auto* half = reinterpret_cast<uint8_t*>(args.outputs[0]);
  const uint32_t tokens = launch_tokens(args.tokens);
  for (uint32_t first = 0; first < args.tokens; first += tokens) {
    const LinearArgs part = tokens_of(args, first, std::min(args.tokens - first, tokens));
    LinearArgs read;  // the launch that will read these tokens
    read.tokens = part.tokens;
    read.matrix_count = 1;
    read.matrices[0] = reader;
    read.epilogue = Epilogue::kAdd;
    kernels::GemmOperand operand;
    WCUDA_CHECK(kernels::packed_gemm_operand(read, is_batch_invariant_, half, gemm, &operand.out));
    operand.gate_norm = gate_norm;
    operand.up_norm = up_norm;
    WCUDA_TRY(check_launch(
        kernels::packed_gemm(part, is_batch_invariant_, at(scratch_.input), gemm, operand),
        "packed_gemm"));
    half += kernels::packed_gemm_input_bytes(reader.cols, part.tokens);
  }
  return {};
}

Result<kernels::HalfOperand> CudaLinear::operand_of(Form form, const kernels::Matrix& reader,
                                                    uint32_t tokens, void* memory,
                                                    const Launch& launch) const {
  LinearArgs read;
  read.tokens = tokens;
  read.matrix_count = 1;
  read.matrices[0] = reader;
  read.epilogue = Epilogue::kAdd;
  kernels::HalfOperand operand;
  WCUDA_CHECK(
      form == Form::kBatchHalf
          ? kernels::linear_batch_operand(read, memory, launch, &operand)
          : kernels::packed_gemm_operand(read, is_batch_invariant_, memory, launch, &operand));
  return operand;
}

Status CudaLinear::run(const Node& node, const LinearArgs& args, const Launch& launch) {
  WCUDA_CHECK(memory_ != nullptr && args.matrix_count > 0 &&
              args.matrix_count <= kernels::kLinearMatricesMax);
  WCUDA_CHECK(!is_gate(args.epilogue) ||
              (args.matrix_count == 2 && args.matrices[0].rows == args.matrices[1].rows));
  for (uint32_t m = 1; m < args.matrix_count; ++m)
    WCUDA_CHECK(args.matrices[m].cols == args.matrices[0].cols);
  if (node.kernel == Kernel::kLinearVector) {
    Launch vector = launch;
    vector.scratch = at(scratch_.vector);
    vector.scratch_bytes = scratch_.vector_bytes;
    return check_launch(kernels::linear_vector(args, vector), "linear_vector");
  }
  if (is_gate(args.epilogue) && args.matrices[0].type != args.matrices[1].type) {
    WCUDA_TRY(run(node, half_of(args, 1, Epilogue::kStore), launch));
    return run(node, half_of(args, 0, kernels::times_of(args.epilogue)), launch);
  }
  Launch gemm = launch;
  gemm.scratch = at(scratch_.gemm);
  gemm.scratch_bytes = scratch_.gemm_bytes;
  void* const input = at(scratch_.input);
  const bool is_half = node.input == Form::kHalf || node.input == Form::kBatchHalf;
  auto* half = reinterpret_cast<uint8_t*>(const_cast<float*>(args.x));
  // The operand that attention wrote is one for all tokens.
  const uint32_t tokens = is_half && node.operation == Operation::kAttentionOutput
                              ? args.tokens
                              : launch_tokens(args.tokens);
  for (uint32_t first = 0; first < args.tokens; first += tokens) {
    LinearArgs part = tokens_of(args, first, std::min(args.tokens - first, tokens));
    if (is_half) part.x = nullptr;
    void* const converted = is_half ? half : input;
    if (node.kernel == Kernel::kLinearBatch) {
      WCUDA_TRY(check_launch(kernels::linear_batch(part, is_batch_invariant_, converted, launch),
                             "linear_batch"));
    } else {
      WCUDA_CHECK(node.kernel == Kernel::kPackedGemm);
      WCUDA_TRY(check_launch(kernels::packed_gemm(part, is_batch_invariant_, converted, gemm),
                             "packed_gemm"));
      half += kernels::packed_gemm_input_bytes(args.matrices[0].cols, part.tokens);
    }
  }
  return {};
}

Status CudaLinear::run_persistent(const LinearArgs* layers, uint32_t count, const Launch& launch) {
  return check_launch(kernels::fused_layers(layers, count, at(scratch_.persistent),
                                            scratch_.persistent_bytes, launch),
                      "persistent_layers");
}

}  // namespace wcuda::ops
