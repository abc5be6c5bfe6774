// Pieces of weights, parts of the columns.
#include "llm/ops/cuda/dequantize_gemm.h"

#include <algorithm>

#include "kernels/linear/dequantize.h"
#include "llm/ops/cuda/check_launch.h"
#include "llm/ops/linear_plan.h"

namespace wcuda::ops {
namespace {

using kernels::DequantGemmInputArgs;
using kernels::Epilogue;
using kernels::Launch;
using kernels::LinearArgs;
using kernels::Matrix;

// Calls visit(matrix, row, rows, place) for the runs of rows that lie in first … first + rows - 1
// of the matrices one after the other.
template <class Visit>
Status for_each_run(const Matrix* matrices, uint32_t count, uint32_t first, uint32_t rows,
                    Visit&& visit) {
  uint32_t before = 0;
  for (uint32_t m = 0; m < count; ++m) {
    const uint32_t begin = std::max(first, before);
    const uint32_t end = std::min(first + rows, before + matrices[m].rows);
    if (begin < end) WCUDA_TRY(visit(m, begin - before, end - begin, begin - first));
    before += matrices[m].rows;
  }
  return {};
}

bool is_aligned(const void* address) { return reinterpret_cast<uintptr_t>(address) % 16 == 0; }

}  // namespace

Status DequantizeGemm::prepare(const Memory& memory, Backend* backend, Stream stream,
                               compute::HalfGemm* gemm) {
  memory_ = memory;
  backend_ = backend;
  stream_ = stream;
  gemm_ = gemm;
  WCUDA_ASSIGN(second_, backend->stream_create(0));
  for (Event* event : {&read_[0], &read_[1], &written_}) {
    WCUDA_ASSIGN(*event, backend->event_create());
  }
  return {};
}

DequantizeGemm::~DequantizeGemm() {
  for (const Event event : {read_[0], read_[1], written_})
    if (event.id != 0) (void)backend_->event_destroy(event);
  if (second_.id != 0) (void)backend_->stream_destroy(second_);
}

DequantGemmInputArgs DequantizeGemm::input_of(const Node& node, const LinearArgs& args,
                                              const GateSums& sums) const {
  DequantGemmInputArgs input;
  input.tokens = args.tokens;
  input.cols = args.matrices[0].cols;
  input.x_rows = args.x_rows;
  input.norm = args.norm;
  input.epsilon = args.epsilon;
  input.rule = kernels::ScaleRule::kRarely;
  input.h = memory_.input;
  input.scales = memory_.scales;
  if (node.input != Form::kGateSums) {
    input.x = args.x;
    return input;
  }
  input.gate = reinterpret_cast<const uint16_t*>(args.x);
  input.gate_scales = memory_.sum_scales;
  input.gate_bias = sums.gate_bias;
  input.up_bias = sums.up_bias;
  input.activation = sums.activation;
  return input;
}

Status DequantizeGemm::run(const Node& node, const LinearArgs& args, const GateSums& sums,
                           const Launch& launch) {
  WCUDA_CHECK(is_aligned(args.x) && is_aligned(args.norm) && args.matrices[0].cols % 8 == 0);
  WCUDA_CHECK(node.input == Form::kF32 || node.input == Form::kResidual ||
              (args.norm == nullptr && args.x_rows == nullptr));
  Layer layer;
  layer.input = input_of(node, args, sums);
  if (node.input == Form::kF16) layer.half = reinterpret_cast<const uint16_t*>(args.x);
  Buffers buffers{node.first_buffer, node.ordered_buffers, node.has_second_stream};
  layer.matrices = args.matrices;
  layer.biases = args.biases;
  layer.matrix_count = args.matrix_count;
  if (node.output == Form::kGateSums) {
    WCUDA_CHECK(args.tokens <= memory_.columns_max && args.matrix_count == 2);
    layer.input.rule = kernels::ScaleRule::kAlways;
    layer.input.scales = memory_.sum_scales;
    layer.biases = nullptr;  // added to the sums by what reads them
    layer.output.y_half = reinterpret_cast<uint16_t*>(args.outputs[0]);
    return multiply(layer, &buffers, launch);
  }
  if (node.output == Form::kJoined) {
    layer.output.y = args.outputs[0];
    return multiply(layer, &buffers, launch);
  }
  layer.output.is_added = args.epilogue == Epilogue::kAdd;
  layer.matrix_count = 1;
  for (uint32_t m = 0; m < args.matrix_count; ++m) {
    layer.matrices = args.matrices + m;
    layer.biases = args.biases + m;
    layer.output.y = args.outputs[m];
    WCUDA_CHECK(is_aligned(args.outputs[m]));
    if (layer.output.is_added) {
      layer.input.residual = args.outputs[m];
      layer.input.residual_rows = args.matrices[m].rows;
    }
    WCUDA_TRY(multiply(layer, &buffers, launch));
  }
  return {};
}

Status DequantizeGemm::multiply(const Layer& layer, Buffers* buffers, const Launch& launch) {
  Status status = queue(layer, buffers, launch);
  // What comes next may not know of a piece that nothing waits for.
  if (!status.ok()) (void)backend_->synchronize(second_);
  return status;
}

Status DequantizeGemm::queue(const Layer& layer, Buffers* buffers, const Launch& launch) {
  const uint32_t cols = layer.input.cols, columns = layer.input.tokens;
  const uint64_t column_bytes = 2ull * cols;
  Piece piece;
  for (uint32_t m = 0; m < layer.matrix_count; ++m) piece.all_rows += layer.matrices[m].rows;
  const uint32_t piece_rows = gemm_piece_rows(piece.all_rows, cols, memory_.weight_bytes);
  const uint32_t part = even_part(
      columns, std::min<uint64_t>(memory_.input_bytes / column_bytes, memory_.columns_max));
  WCUDA_CHECK(piece_rows > 0 && part > 0);
  piece.has_second_stream = buffers->has_second_stream;
  for (; piece.first_row < piece.all_rows; piece.first_row += piece_rows) {
    piece.rows = std::min(piece_rows, piece.all_rows - piece.first_row);
    piece.buffer = buffers->next;
    const uint32_t bit = 1u << piece.buffer;
    WCUDA_TRY(piece.has_second_stream
                  ? dequantize_on_second_stream(layer, piece, (buffers->ordered & bit) != 0, launch)
                  : dequantize(layer, piece, launch));
    for (uint32_t first = 0; first < columns; first += part)
      WCUDA_TRY(multiply_columns(layer, piece, first, std::min(part, columns - first),
                                 piece.first_row > 0 && part == columns, launch));
    if (piece.has_second_stream) {
      WCUDA_TRY(backend_->event_record(read_[piece.buffer], stream_));
      buffers->ordered |= bit;
    }
    buffers->next ^= 1;
  }
  return {};
}

Status DequantizeGemm::dequantize(const Layer& layer, const Piece& piece, const Launch& launch) {
  const uint64_t cols = layer.input.cols;
  return for_each_run(
      layer.matrices, layer.matrix_count, piece.first_row, piece.rows,
      [&](uint32_t m, uint32_t row, uint32_t rows, uint32_t place) {
        return check_launch(
            kernels::dequantize(layer.matrices[m], row, rows, kernels::ElementType::kF16,
                                memory_.weights[piece.buffer] + place * cols, launch),
            "dequantize");
      });
}

// The host is ahead of the device: by the time that the product before the last has ended, and the
// buffer is free, this is queued.
Status DequantizeGemm::dequantize_on_second_stream(const Layer& layer, const Piece& piece,
                                                   bool is_ordered, const Launch& launch) {
  const Event read = read_[piece.buffer];
  if (!is_ordered) WCUDA_TRY(backend_->event_record(read, stream_));
  WCUDA_TRY(backend_->stream_wait(second_, read));
  Launch second = launch;
  second.stream = static_cast<cudaStream_t>(backend_->native_stream(second_));
  second.is_dependent = false;
  WCUDA_TRY(dequantize(layer, piece, second));
  return backend_->event_record(written_, second_);
}

// has_input: the columns lie there already.
Status DequantizeGemm::multiply_columns(const Layer& layer, const Piece& piece, uint32_t first,
                                        uint32_t columns, bool has_input, const Launch& launch) {
  DequantGemmInputArgs input = layer.input;
  const uint64_t cols = input.cols;
  const bool is_half = layer.output.y_half != nullptr;
  input.tokens = columns;
  if (input.gate != nullptr) {
    input.gate += first * 2 * cols;
    input.gate_scales += first;
  } else if (input.x_rows != nullptr) {
    input.x_rows += first;
  } else {
    input.x += first * cols;
  }
  if (is_half) input.scales += first;
  // Once a layer.
  if (input.residual != nullptr)
    input.residual =
        piece.first_row == 0 ? input.residual + uint64_t{first} * input.residual_rows : nullptr;
  if (layer.half == nullptr && !has_input)
    WCUDA_TRY(check_launch(kernels::dequant_gemm_input(input, launch), "dequant_gemm_input"));

  kernels::GemmArgs product;
  product.rows = piece.rows;
  product.tokens = columns;
  product.depth = input.cols;
  product.w = memory_.weights[piece.buffer];
  product.h = layer.half != nullptr ? layer.half + first * cols : input.h;
  product.h_stride = input.cols;
  product.y_stride = piece.all_rows;
  product.is_added = layer.output.is_added;
  const uint64_t place = uint64_t{first} * piece.all_rows + piece.first_row;
  if (is_half)
    product.y_half = layer.output.y_half + place;
  else
    product.y = layer.output.y + place;
  if (piece.has_second_stream) WCUDA_TRY(backend_->stream_wait(stream_, written_));
  WCUDA_TRY(gemm_->run(product, launch));
  if (is_half) return {};

  kernels::DequantGemmFinishArgs finish;
  finish.tokens = columns;
  finish.stride = piece.all_rows;
  finish.scales = layer.half != nullptr ? nullptr : input.scales;
  const bool has_bias =
      layer.biases != nullptr && std::any_of(layer.biases, layer.biases + layer.matrix_count,
                                             [](const float* bias) { return bias != nullptr; });
  if (!has_bias) {
    if (layer.half != nullptr) return {};
    finish.rows = piece.rows;
    finish.y = product.y;
    return check_launch(kernels::dequant_gemm_finish(finish, launch), "dequant_gemm_finish");
  }
  return for_each_run(layer.matrices, layer.matrix_count, piece.first_row, piece.rows,
                      [&](uint32_t m, uint32_t row, uint32_t rows, uint32_t at) {
                        finish.rows = rows;
                        finish.y = product.y + at;
                        finish.bias = layer.biases[m] != nullptr ? layer.biases[m] + row : nullptr;
                        return check_launch(kernels::dequant_gemm_finish(finish, launch),
                                            "dequant_gemm_finish");
                      });
}

}  // namespace wcuda::ops
