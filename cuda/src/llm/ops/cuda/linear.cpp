// Calls of the kernels of linear layers, and the path of many tokens and any sizes: weights to f16
// rows, one product with f32 sums, epilogue; in pieces that bound the scratch memory.
#include "llm/ops/cuda/linear.h"

#include <algorithm>

#include "kernels/linear/dequantize.h"
#include "kernels/linear/fused_layers.h"
#include "kernels/linear/half_input.h"
#include "kernels/linear/linear_batch.h"
#include "kernels/linear/linear_finish.h"
#include "kernels/linear/linear_vector.h"
#include "kernels/linear/packed_gemm.h"
#include "kernels/shared/arena.h"
#include "kernels/shared/packed_tile.h"
#include "llm/ops/cuda/check_launch.h"

namespace wcuda::ops {
namespace {

using kernels::Epilogue;
using kernels::Launch;
using kernels::LinearArgs;

static_assert(kVectorTokensMax == kernels::kLinearVectorTokensMax);
static_assert(kGemmInputsMax == kernels::kDequantGemmInputsMax);

constexpr uint32_t kRowsMin = 256;  // of a product: two matrices of a gate, 128 each
constexpr uint32_t kRowGranularity = 128;
// The columns' scales take a whole number of 256 bytes.
constexpr uint32_t kColumnGranularity = 64;

uint64_t scale_bytes(uint32_t columns) { return (columns * 4ull + 255) / 256 * 256; }

uint32_t round_up(uint32_t value, uint32_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

bool is_gate(Epilogue epilogue) {
  return epilogue == Epilogue::kSiluGate || epilogue == Epilogue::kGeluTanhGate;
}

// A run of rows of one matrix (of a gate: of both) within a product.
struct Segment {
  uint32_t matrix;
  uint32_t first_row;
  uint32_t rows;
  uint32_t offset;  // its first row in the product
};

// Of the layers of a model of these limits, whatever their types.
uint64_t vector_scratch_bytes(const Limits& limits, const Launch& launch) {
  const uint32_t attention = limits.head_count * limits.head_length;
  const uint32_t key = limits.kv_head_count * limits.head_length;
  const auto layer = [](Epilogue epilogue, std::initializer_list<uint32_t> rows) {
    LinearArgs args;
    args.tokens = kernels::kLinearVectorTokensMax;
    args.epilogue = epilogue;
    for (const uint32_t count : rows) {
      // Of different types: what takes most.
      args.matrices[args.matrix_count] = {nullptr, args.matrix_count, count, 0};
      ++args.matrix_count;
    }
    return args;
  };
  uint64_t bytes = 0;
  for (const LinearArgs& args :
       {layer(Epilogue::kStore, {attention, key, key}),
        layer(Epilogue::kAdd, {limits.embedding_length}),
        layer(Epilogue::kSiluGate, {limits.feed_forward_length, limits.feed_forward_length}),
        layer(Epilogue::kStore, {limits.vocabulary_size})})
    bytes = std::max(bytes, kernels::linear_vector_scratch_bytes(args, launch));
  return bytes;
}

// The columns from `first` on.
LinearArgs columns_of(const LinearArgs& args, uint32_t first, uint32_t columns) {
  LinearArgs part = args;
  part.tokens = columns;
  if (args.x_rows != nullptr)
    part.x_rows += first;
  else
    part.x += uint64_t{first} * args.matrices[0].cols;
  const uint32_t outputs = is_gate(args.epilogue) ? 1 : args.matrix_count;
  for (uint32_t m = 0; m < outputs; ++m) part.outputs[m] += uint64_t{first} * args.matrices[m].rows;
  return part;
}

}  // namespace

CudaLinear::Scratch CudaLinear::layout(const Limits& limits, const GemmMemory& memory,
                                       const Launch& launch) {
  Scratch scratch;
  Arena arena;
  scratch.workspace = arena.reserve(compute::HalfGemm::kWorkspaceBytes);
  for (uint64_t& weights : scratch.weights) weights = arena.reserve(memory.weight_bytes);
  // Of either family: linear_batch, packed_gemm, or the columns of a product and their scales.
  scratch.input = arena.reserve(
      std::max<uint64_t>({kernels::linear_batch_scratch_bytes(memory.cols_max, memory.tokens),
                          kernels::packed_gemm_input_bytes(memory.cols_max, memory.tokens),
                          4ull * round_up(memory.tokens, kColumnGranularity) +
                              2ull * memory.cols_max * memory.tokens}));
  // Of kDequantizeGemm the input may take both.
  scratch.sums = arena.reserve(memory.sum_bytes);
  scratch.scales = arena.reserve(2 * scale_bytes(memory.all_tokens));
  scratch.vector_bytes = vector_scratch_bytes(limits, launch);
  scratch.vector = arena.reserve(scratch.vector_bytes);
  scratch.gemm_bytes = kernels::packed_gemm_scratch_bytes(launch);
  scratch.gemm = arena.reserve(scratch.gemm_bytes);
  const uint32_t rows_max = std::max({limits.embedding_length, limits.feed_forward_length,
                                      limits.head_count * limits.head_length});
  scratch.persistent_bytes = kernels::fused_layers_scratch_bytes(rows_max, limits.embedding_length);
  scratch.persistent = arena.reserve(scratch.persistent_bytes);
  scratch.bytes = arena.bytes();
  return scratch;
}

uint64_t CudaLinear::scratch_bytes(const Limits& limits, const Launch& launch) {
  return layout(limits, gemm_memory(limits), launch).bytes;
}

Status CudaLinear::prepare(const Limits& limits, Backend* backend, Stream stream,
                           const Launch& launch, void* scratch) {
  gemm_memory_ = gemm_memory(limits);
  scratch_ = layout(limits, gemm_memory_, launch);
  memory_ = scratch;
  // Both lie one behind the other; their counters start at zero.
  const uint64_t counters_end = scratch_.gemm + scratch_.gemm_bytes;
  if (counters_end > scratch_.vector)
    WCUDA_TRY(check_launch(cudaMemsetAsync(at<uint8_t>(scratch_.vector), 0,
                                           counters_end - scratch_.vector, launch.stream),
                           "memset"));
  WCUDA_TRY(check_launch(kernels::fused_layers_prepare(at<uint8_t>(scratch_.persistent),
                                                       scratch_.persistent_bytes, launch),
                         "memset"));
  is_batch_invariant_ = limits.batch_invariant;
  gemm_ = std::make_unique<compute::HalfGemm>(
      is_batch_invariant_ ? compute::HalfGemm::Library::kNone : library_,
      at<uint8_t>(scratch_.workspace));
  DequantizeGemm::Memory memory;
  for (int i = 0; i < 2; ++i) memory.weights[i] = at<uint16_t>(scratch_.weights[i]);
  memory.weight_bytes = gemm_memory_.weight_bytes;
  memory.input = at<uint16_t>(scratch_.input);
  memory.input_bytes = scratch_.sums + gemm_memory_.sum_bytes - scratch_.input;
  memory.scales = at<float>(scratch_.scales);
  memory.sum_scales = at<float>(scratch_.scales + scale_bytes(gemm_memory_.all_tokens));
  memory.columns_max = gemm_memory_.all_tokens;
  return dequantize_gemm_.prepare(memory, backend, stream, gemm_.get());
}

Status CudaLinear::run(const Node& node, const LinearArgs& args, const GateSums& sums,
                       const Launch& launch) {
  WCUDA_CHECK(memory_ != nullptr && args.matrix_count > 0 &&
              args.matrix_count <= kernels::kLinearMatricesMax);
  WCUDA_CHECK(!is_gate(args.epilogue) ||
              (args.matrix_count == 2 && args.matrices[0].rows == args.matrices[1].rows));
  for (uint32_t m = 1; m < args.matrix_count; ++m)
    WCUDA_CHECK(args.matrices[m].cols == args.matrices[0].cols);
  if (node.kernel == Kernel::kDequantizeGemm) return dequantize_gemm_.run(node, args, sums, launch);
  WCUDA_CHECK(node.input != Form::kF16 && node.input != Form::kGateSums);
  WCUDA_CHECK(node.output != Form::kJoined && node.output != Form::kGateSums);
  if (node.kernel != Kernel::kLinearVector) return run_in_parts(node, args, launch);
  Launch vector = launch;
  vector.scratch = at<uint8_t>(scratch_.vector);
  vector.scratch_bytes = scratch_.vector_bytes;
  return check_launch(kernels::linear_vector(args, vector), "linear_vector");
}

Status CudaLinear::run_in_parts(const Node& node, const LinearArgs& args, const Launch& launch) {
  Launch gemm = launch;
  gemm.scratch = at<uint8_t>(scratch_.gemm);
  gemm.scratch_bytes = scratch_.gemm_bytes;
  for (uint32_t first = 0; first < args.tokens; first += gemm_memory_.tokens) {
    const LinearArgs part =
        columns_of(args, first, std::min(args.tokens - first, gemm_memory_.tokens));
    if (node.kernel == Kernel::kLinearBatch) {
      WCUDA_TRY(check_launch(
          kernels::linear_batch(part, is_batch_invariant_, at<uint8_t>(scratch_.input), launch),
          "linear_batch"));
    } else if (node.kernel == Kernel::kPackedGemm) {
      WCUDA_TRY(check_launch(kernels::packed_gemm(part, at<uint8_t>(scratch_.input), gemm),
                             "packed_gemm"));
    } else {
      WCUDA_CHECK(node.kernel == Kernel::kDequantizeGemmF32);
      WCUDA_TRY(run_gemm_f32(part, launch));
    }
  }
  return {};
}

Status CudaLinear::run_persistent(const LinearArgs* layers, uint32_t count, const Launch& launch) {
  return check_launch(kernels::fused_layers(layers, count, at<uint8_t>(scratch_.persistent),
                                            scratch_.persistent_bytes, launch),
                      "persistent_layers");
}

Status CudaLinear::run_gemm_f32(const LinearArgs& args, const Launch& launch) {
  const uint32_t cols = args.matrices[0].cols;
  const bool gate = is_gate(args.epilogue);
  kernels::HalfInputArgs input;
  input.tokens = args.tokens;
  input.cols = cols;
  input.depth = round_up(cols, 8);
  input.x = args.x;
  input.x_rows = args.x_rows;
  input.norm = args.norm;
  input.epsilon = args.epsilon;
  input.scales = at<float>(scratch_.input);
  input.h = reinterpret_cast<uint16_t*>(input.scales + round_up(args.tokens, kColumnGranularity));
  WCUDA_TRY(check_launch(kernels::half_input(input, launch), "half_input"));

  // Rows of a product; of a gate half are gate's, half up's.
  const uint32_t parts = gate ? 2 : 1;
  const uint64_t rows_max = std::min(gemm_memory_.weight_bytes / (2ull * cols),
                                     gemm_memory_.sum_bytes / (4ull * args.tokens));
  const auto row_limit = static_cast<uint32_t>(
      std::min<uint64_t>(rows_max / kRowGranularity * kRowGranularity, 1u << 30));
  WCUDA_CHECK(row_limit >= kRowsMin);

  const uint32_t matrix_count = gate ? 1 : args.matrix_count;
  uint32_t matrix = 0, row = 0;
  while (matrix < matrix_count) {
    // As many rows as fit, matrix after matrix.
    Segment segments[kernels::kLinearMatricesMax];
    uint32_t segment_count = 0, rows = 0;
    while (matrix < matrix_count && rows < row_limit) {
      const uint32_t count =
          std::min(args.matrices[matrix].rows - row,
                   (row_limit - rows) / parts / quant::kMTileRows * quant::kMTileRows);
      if (count == 0) break;
      segments[segment_count++] = {matrix, row, count, rows};
      rows += count * parts;
      row += count;
      if (row < args.matrices[matrix].rows) break;
      ++matrix;
      row = 0;
    }

    auto* const weights = at<uint16_t>(scratch_.weights[0]);
    for (uint32_t s = 0; s < segment_count; ++s)
      for (uint32_t part = 0; part < parts; ++part) {
        const Segment& segment = segments[s];
        const uint64_t offset = uint64_t{segment.offset + part * segment.rows} * cols;
        WCUDA_TRY(check_launch(
            kernels::dequantize(args.matrices[segment.matrix + part], segment.first_row,
                                segment.rows, kernels::ElementType::kF16, weights + offset, launch),
            "dequantize"));
      }

    kernels::GemmArgs product;
    product.rows = rows;
    product.tokens = args.tokens;
    product.depth = cols;
    product.w = weights;
    product.h = input.h;
    product.h_stride = input.depth;
    product.y = at<float>(scratch_.sums);
    product.y_stride = round_up(rows, 4);
    WCUDA_TRY(gemm_->run(product, launch));

    for (uint32_t s = 0; s < segment_count; ++s) {
      const Segment& segment = segments[s];
      kernels::LinearFinishArgs finish;
      finish.tokens = args.tokens;
      finish.rows = segment.rows;
      finish.sums = product.y + segment.offset;
      finish.sums_stride = product.y_stride;
      finish.up_offset = segment.rows;
      finish.scales = input.scales;
      if (args.biases[segment.matrix] != nullptr)
        finish.bias = args.biases[segment.matrix] + segment.first_row;
      if (gate && args.biases[1] != nullptr) finish.up_bias = args.biases[1] + segment.first_row;
      finish.output = args.outputs[segment.matrix] + segment.first_row;
      finish.output_stride = args.matrices[segment.matrix].rows;
      finish.epilogue = args.epilogue;
      WCUDA_TRY(check_launch(kernels::linear_finish(finish, launch), "linear_finish"));
    }
  }
  return {};
}

}  // namespace wcuda::ops
