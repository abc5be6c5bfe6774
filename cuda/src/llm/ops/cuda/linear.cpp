// Which kernel family makes a linear layer, and the path of many tokens: weights to f16 rows, one
// product, epilogue; in pieces that bound the scratch memory.
#include "llm/ops/cuda/linear.h"

#include <algorithm>

#include "kernels/linear/dequantize.h"
#include "kernels/linear/half_input.h"
#include "kernels/linear/linear_batch.h"
#include "kernels/linear/linear_finish.h"
#include "kernels/linear/linear_vector.h"
#include "kernels/shared/arena.h"
#include "kernels/shared/records.h"
#include "llm/ops/cuda/check_launch.h"

namespace wcuda::ops {
namespace {

using kernels::Epilogue;
using kernels::Launch;
using kernels::LinearArgs;

// Tokens of a product whose sums go through memory.
constexpr uint32_t kColumnsMax = 2048;
// Bounds of the f16 weights of a product, gate and up of 8B in one, and of such sums: what the two
// have besides weights also bounds the f16 columns of other products.
constexpr uint64_t kWeightBytesMax = 256ull << 20;
constexpr uint64_t kSumBytesMax = 64ull << 20;
// Rows of a product that must fit whatever the inputs: two matrices of a gate, 128 each.
constexpr uint32_t kRowsMin = 256;
constexpr uint32_t kRowGranularity = 128;
// The columns' scales take a whole number of 256 bytes.
constexpr uint32_t kColumnGranularity = 64;

uint64_t scale_bytes(uint32_t columns) { return (columns * 4ull + 255) / 256 * 256; }

uint32_t round_up(uint32_t value, uint32_t unit) { return (value + unit - 1) / unit * unit; }

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

bool is_plain_type(uint32_t type) { return type == 0 || type == 1 || type == 30; }

// Of the layers of a model of these limits, whatever their types.
uint64_t vector_scratch_bytes(const Limits& limits, const Launch& launch) {
  const uint32_t attention = limits.head_count * limits.head_length;
  const uint32_t key = limits.kv_head_count * limits.head_length;
  const auto layer = [](Epilogue epilogue, std::initializer_list<uint32_t> rows) {
    LinearArgs args;
    args.columns = kernels::kLinearVectorColumnsMax;
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
  part.columns = columns;
  if (args.x_rows != nullptr)
    part.x_rows += first;
  else
    part.x += uint64_t{first} * args.matrices[0].cols;
  const uint32_t outputs = is_gate(args.epilogue) ? 1 : args.matrix_count;
  for (uint32_t m = 0; m < outputs; ++m) part.outputs[m] += uint64_t{first} * args.matrices[m].rows;
  return part;
}

}  // namespace

CudaLinear::Scratch CudaLinear::layout(const Limits& limits, const Launch& launch) {
  const uint32_t attention = limits.head_count * limits.head_length;
  const uint32_t cols =
      round_up(std::max({limits.embedding_length, limits.feed_forward_length, attention}), 8);
  const uint64_t rows = std::max<uint64_t>(
      {limits.vocabulary_size, uint64_t{limits.feed_forward_length} * 2, limits.embedding_length,
       attention + uint64_t{limits.kv_head_count} * limits.head_length * 2, kRowsMin});
  Scratch scratch;
  scratch.all_columns = std::max({limits.max_batch_tokens, limits.max_logits_rows, 1u});
  scratch.columns = std::min(scratch.all_columns, kColumnsMax);
  const uint64_t row_bytes = 2ull * cols, sum_row_bytes = 4ull * scratch.columns;
  // Of a layer: what is made of an embedding, or made into one. The output matrix may take several
  // pieces.
  const uint64_t layer_rows =
      std::max<uint64_t>(2 * uint64_t{limits.feed_forward_length},
                         attention + uint64_t{limits.kv_head_count} * limits.head_length * 2);
  scratch.weight_bytes = std::max(
      std::min(layer_rows * limits.embedding_length * 2, kWeightBytesMax), kRowsMin * row_bytes);
  scratch.sum_bytes = std::max(std::min((rows + 3) / 4 * 4 * sum_row_bytes, kSumBytesMax),
                               kRowsMin * sum_row_bytes);

  Arena arena;
  scratch.workspace = arena.reserve(compute::HalfGemm::kWorkspaceBytes);
  for (uint64_t& weights : scratch.weights) weights = arena.reserve(scratch.weight_bytes);
  // Of either family: linear_batch, or the columns of a product and their scales.
  scratch.input = arena.reserve(std::max<uint64_t>(
      kernels::linear_batch_scratch_bytes(cols, scratch.columns),
      4ull * round_up(scratch.columns, kColumnGranularity) + 2ull * cols * scratch.columns));
  // Of wide layers the input may take both.
  scratch.sums = arena.reserve(scratch.sum_bytes);
  scratch.scales = arena.reserve(2 * scale_bytes(scratch.all_columns));
  scratch.vector_bytes = vector_scratch_bytes(limits, launch);
  scratch.vector = arena.reserve(scratch.vector_bytes);
  scratch.bytes = arena.bytes();
  return scratch;
}

uint64_t CudaLinear::scratch_bytes(const Limits& limits, const Launch& launch) {
  return layout(limits, launch).bytes;
}

Status CudaLinear::prepare(const Limits& limits, const Launch& launch, void* scratch) {
  scratch_ = layout(limits, launch);
  memory_ = scratch;
  if (scratch_.vector_bytes > 0)
    WCUDA_TRY(check_launch(
        cudaMemsetAsync(at<uint8_t>(scratch_.vector), 0, scratch_.vector_bytes, launch.stream),
        "memset"));
  is_batch_invariant_ = limits.batch_invariant;
  embedding_length_ = limits.embedding_length;
  gemm_ = std::make_unique<compute::HalfGemm>(
      is_batch_invariant_ ? compute::HalfGemm::Library::kNone : library_,
      at<uint8_t>(scratch_.workspace));
  WideLinear::Memory wide;
  for (int i = 0; i < 2; ++i) wide.weights[i] = at<uint16_t>(scratch_.weights[i]);
  wide.weight_bytes = scratch_.weight_bytes;
  wide.input = at<uint16_t>(scratch_.input);
  wide.input_bytes = scratch_.sums + scratch_.sum_bytes - scratch_.input;
  wide.scales = at<float>(scratch_.scales);
  wide.sum_scales = at<float>(scratch_.scales + scale_bytes(scratch_.all_columns));
  wide.columns_max = scratch_.all_columns;
  return wide_.prepare(wide, gemm_.get());
}

Status CudaLinear::run(const LinearArgs& args, const Launch& launch) {
  WCUDA_CHECK(memory_ != nullptr && args.matrix_count > 0 &&
              args.matrix_count <= kernels::kLinearMatricesMax);
  WCUDA_CHECK(!is_gate(args.epilogue) ||
              (args.matrix_count == 2 && args.matrices[0].rows == args.matrices[1].rows));
  for (uint32_t m = 1; m < args.matrix_count; ++m)
    WCUDA_CHECK(args.matrices[m].cols == args.matrices[0].cols);

  if (uses_vector(args)) {
    Launch vector = launch;
    vector.scratch = at<uint8_t>(scratch_.vector);
    vector.scratch_bytes = scratch_.vector_bytes;
    return check_launch(kernels::linear_vector(args, vector), "linear_vector");
  }
  const bool is_batch = uses_batch(args, launch);
  if (!is_batch && !is_gate(args.epilogue) && WideLinear::fits(args))
    return wide_.run(args, launch);
  for (uint32_t first = 0; first < args.columns; first += scratch_.columns) {
    const LinearArgs part =
        columns_of(args, first, std::min(args.columns - first, scratch_.columns));
    if (is_batch)
      WCUDA_TRY(check_launch(
          kernels::linear_batch(part, is_batch_invariant_, at<uint8_t>(scratch_.input), launch),
          "linear_batch"));
    else
      WCUDA_TRY(run_gemm(part, launch));
  }
  return {};
}

bool CudaLinear::uses_vector(const LinearArgs& args) const {
  if (is_batch_invariant_ || args.columns > kernels::kLinearVectorColumnsMax) return false;
  bool is_plain = true;
  for (uint32_t m = 0; m < args.matrix_count; ++m) {
    if (!kernels::has_linear_vector(args.matrices[m].type)) return false;
    is_plain = is_plain && is_plain_type(args.matrices[m].type);
  }
  return args.matrices[0].cols % (is_plain ? 4 : 32) == 0;
}

// Under batch_invariant by the matrices alone.
bool CudaLinear::uses_batch(const LinearArgs& args, const Launch& launch) const {
  return (is_batch_invariant_ || args.columns <= batch_columns_max_) &&
         kernels::linear_batch_supports(args, launch);
}

Status CudaLinear::run_hidden(const LinearArgs& args, const Launch& launch) {
  const bool is_sums = is_wide(args) && args.matrices[0].rows <= kernels::kWideInputsMax;
  return is_sums ? wide_.run_sums(args, launch) : run(args, launch);
}

// Any layer of as many columns, all its sizes multiples of 8, takes the same way.
bool CudaLinear::is_wide(const LinearArgs& args) const {
  return has_many(args.columns) && WideLinear::fits(args);
}

bool CudaLinear::has_many(uint32_t columns) const {
  return !is_batch_invariant_ &&
         columns > std::max(batch_columns_max_, kernels::kLinearVectorColumnsMax) &&
         columns <= scratch_.all_columns;
}

bool CudaLinear::takes_half(uint32_t columns, uint32_t cols) const {
  return has_many(columns) && embedding_length_ % 8 == 0 && cols % 8 == 0 &&
         cols <= kernels::kWideInputsMax;
}

Status CudaLinear::run_gemm(const LinearArgs& args, const Launch& launch) {
  wide_.forget();
  const uint32_t cols = args.matrices[0].cols;
  const bool gate = is_gate(args.epilogue);
  kernels::HalfInputArgs input;
  input.columns = args.columns;
  input.cols = cols;
  input.depth = round_up(cols, 8);
  input.x = args.x;
  input.x_rows = args.x_rows;
  input.norm = args.norm;
  input.epsilon = args.epsilon;
  input.scales = at<float>(scratch_.input);
  input.h = reinterpret_cast<uint16_t*>(input.scales + round_up(args.columns, kColumnGranularity));
  WCUDA_TRY(check_launch(kernels::half_input(input, launch), "half_input"));

  // Rows of a product; of a gate half are gate's, half up's.
  const uint32_t parts = gate ? 2 : 1;
  const uint64_t rows_max =
      std::min(scratch_.weight_bytes / (2ull * cols), scratch_.sum_bytes / (4ull * args.columns));
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
                   (row_limit - rows) / parts / quant::kRecordRows * quant::kRecordRows);
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
    product.columns = args.columns;
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
      finish.columns = args.columns;
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
