// Pieces of weights, chunks of columns.
#include "llm/ops/cuda/wide_linear.h"

#include <algorithm>

#include "kernels/linear/dequantize.h"
#include "llm/ops/cuda/check_launch.h"

namespace wcuda::ops {
namespace {

using kernels::Epilogue;
using kernels::Launch;
using kernels::LinearArgs;
using kernels::Matrix;
using kernels::WideInputArgs;

constexpr uint32_t kGranularity = 128;  // of pieces and chunks: a tile of a product

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

// `total` in equal parts of at most `most`, whole granules where those fit.
uint32_t even_part(uint32_t total, uint64_t most) {
  if (total <= most) return total;
  const auto granule = static_cast<uint32_t>(most >= kGranularity ? kGranularity : 1);
  const auto limit = static_cast<uint32_t>(most / granule * granule);
  const uint32_t parts = (total + limit - 1) / limit;
  return (total + parts * granule - 1) / (parts * granule) * granule;
}

}  // namespace

Status WideLinear::prepare(const Memory& memory, compute::HalfGemm* gemm) {
  memory_ = memory;
  gemm_ = gemm;
  WCUDA_TRY(check_launch(cudaStreamCreateWithFlags(&side_, cudaStreamNonBlocking), "stream"));
  for (cudaEvent_t* event : {&read_[0], &read_[1], &made_})
    WCUDA_TRY(check_launch(cudaEventCreateWithFlags(event, cudaEventDisableTiming), "event"));
  return {};
}

WideLinear::~WideLinear() {
  for (const cudaEvent_t event : {read_[0], read_[1], made_})
    if (event != nullptr) (void)cudaEventDestroy(event);
  if (side_ != nullptr) (void)cudaStreamDestroy(side_);
}

bool WideLinear::fits(const LinearArgs& args) {
  const auto is_aligned = [](const void* address) {
    return reinterpret_cast<uintptr_t>(address) % 16 == 0;
  };
  const uint32_t cols = args.matrices[0].cols;
  if (cols % 8 != 0 || cols > kernels::kWideInputsMax || !is_aligned(args.x) ||
      !is_aligned(args.norm))
    return false;
  for (uint32_t m = 0; m < args.matrix_count; ++m)
    if (args.matrices[m].rows % 8 != 0 || !is_aligned(args.outputs[m])) return false;
  return true;
}

WideInputArgs WideLinear::input_of(const LinearArgs& args) const {
  WideInputArgs input;
  input.columns = args.columns;
  input.cols = args.matrices[0].cols;
  input.x = args.x;
  input.x_rows = args.x_rows;
  input.norm = args.norm;
  input.epsilon = args.epsilon;
  input.rule = kernels::ScaleRule::kRarely;
  input.h = memory_.input;
  input.scales = memory_.scales;
  return input;
}

Status WideLinear::run(const LinearArgs& args, const Launch& launch) {
  Layer layer;
  layer.input = input_of(args);
  layer.output.is_added = args.epilogue == Epilogue::kAdd;
  if (sums_.outputs[0] != nullptr && args.x == sums_.outputs[0]) {
    WCUDA_CHECK(args.norm == nullptr && args.x_rows == nullptr && args.columns == sums_.columns &&
                args.matrices[0].cols == sums_.matrices[0].rows);
    layer.input.x = nullptr;
    layer.input.gate = reinterpret_cast<const uint16_t*>(args.x);
    layer.input.gate_scales = memory_.sum_scales;
    layer.input.gate_bias = sums_.biases[0];
    layer.input.up_bias = sums_.biases[1];
    layer.input.activation = sums_.epilogue;
    sums_ = {};
  }
  if (half_x_ != nullptr && args.x == half_x_) {
    WCUDA_CHECK(args.norm == nullptr && args.x_rows == nullptr);
    layer.half = reinterpret_cast<const uint16_t*>(args.x);
  }
  half_x_ = nullptr;
  for (uint32_t m = 0; m < args.matrix_count; ++m) {
    layer.matrices = args.matrices + m;
    layer.biases = args.biases + m;
    layer.matrix_count = 1;
    layer.output.y = args.outputs[m];
    if (layer.output.is_added) {
      layer.input.residual = args.outputs[m];
      layer.input.residual_rows = args.matrices[m].rows;
    }
    WCUDA_TRY(multiply(layer, launch));
  }
  return {};
}

Status WideLinear::run_joined(const LinearArgs& args, float* output, const Launch& launch) {
  Layer layer;
  layer.input = input_of(args);
  layer.matrices = args.matrices;
  layer.biases = args.biases;
  layer.matrix_count = args.matrix_count;
  layer.output.y = output;
  return multiply(layer, launch);
}

Status WideLinear::run_sums(const LinearArgs& args, const Launch& launch) {
  WCUDA_CHECK(args.columns <= memory_.columns_max && args.matrix_count == 2);
  sums_ = args;
  Layer layer;
  layer.input = input_of(args);
  layer.input.rule = kernels::ScaleRule::kAlways;
  layer.input.scales = memory_.sum_scales;
  layer.matrices = args.matrices;
  layer.matrix_count = args.matrix_count;
  layer.output.y_half = reinterpret_cast<uint16_t*>(args.outputs[0]);
  return multiply(layer, launch);
}

Status WideLinear::multiply(const Layer& layer, const Launch& launch) {
  Status status = queue(layer, launch);
  // What comes next may not know of a piece that nothing waits for.
  if (!status.ok()) (void)cudaStreamSynchronize(side_);
  return status;
}

Status WideLinear::queue(const Layer& layer, const Launch& launch) {
  const uint32_t cols = layer.input.cols, columns = layer.input.columns;
  const uint64_t column_bytes = 2ull * cols;
  Piece piece;
  for (uint32_t m = 0; m < layer.matrix_count; ++m) piece.all_rows += layer.matrices[m].rows;
  const uint32_t piece_rows = even_part(piece.all_rows, memory_.weight_bytes / column_bytes);
  const uint32_t chunk = even_part(
      columns, std::min<uint64_t>(memory_.input_bytes / column_bytes, memory_.columns_max));
  WCUDA_CHECK(piece_rows > 0 && chunk > 0);
  // A captured step may run between others, whose events would not be its own.
  cudaStreamCaptureStatus capture{};
  WCUDA_TRY(check_launch(cudaStreamIsCapturing(launch.stream, &capture), "capture status"));
  piece.is_beside = capture == cudaStreamCaptureStatusNone;
  for (; piece.first_row < piece.all_rows; piece.first_row += piece_rows) {
    piece.rows = std::min(piece_rows, piece.all_rows - piece.first_row);
    buffer_ = 1 - buffer_;
    WCUDA_TRY(piece.is_beside ? make_weights_beside(layer, piece, launch)
                              : make_weights(layer, piece, launch));
    for (uint32_t first = 0; first < columns; first += chunk)
      WCUDA_TRY(multiply_columns(layer, piece, first, std::min(chunk, columns - first),
                                 piece.first_row > 0 && chunk == columns, launch));
    is_marked_[buffer_] = piece.is_beside;
    if (piece.is_beside)
      WCUDA_TRY(check_launch(cudaEventRecord(read_[buffer_], launch.stream), "event record"));
  }
  return {};
}

Status WideLinear::make_weights(const Layer& layer, const Piece& piece, const Launch& launch) {
  const uint64_t cols = layer.input.cols;
  return for_each_run(
      layer.matrices, layer.matrix_count, piece.first_row, piece.rows,
      [&](uint32_t m, uint32_t row, uint32_t rows, uint32_t place) {
        return check_launch(
            kernels::dequantize(layer.matrices[m], row, rows, kernels::ElementType::kF16,
                                memory_.weights[buffer_] + place * cols, launch),
            "dequantize");
      });
}

// The host is ahead of the device: by the time that the product before the last has ended, and the
// buffer is free, this is queued.
Status WideLinear::make_weights_beside(const Layer& layer, const Piece& piece,
                                       const Launch& launch) {
  if (!is_marked_[buffer_])
    WCUDA_TRY(check_launch(cudaEventRecord(read_[buffer_], launch.stream), "event record"));
  WCUDA_TRY(check_launch(cudaStreamWaitEvent(side_, read_[buffer_], 0), "stream wait"));
  Launch side = launch;
  side.stream = side_;
  side.is_dependent = false;
  WCUDA_TRY(make_weights(layer, piece, side));
  return check_launch(cudaEventRecord(made_, side_), "event record");
}

// has_input: the columns lie there already.
Status WideLinear::multiply_columns(const Layer& layer, const Piece& piece, uint32_t first,
                                    uint32_t columns, bool has_input, const Launch& launch) {
  WideInputArgs input = layer.input;
  const uint64_t cols = input.cols;
  const bool is_half = layer.output.y_half != nullptr;
  input.columns = columns;
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
    WCUDA_TRY(check_launch(kernels::wide_input(input, launch), "wide_input"));

  kernels::GemmArgs product;
  product.rows = piece.rows;
  product.columns = columns;
  product.depth = input.cols;
  product.w = memory_.weights[buffer_];
  product.h = layer.half != nullptr ? layer.half + first * cols : input.h;
  product.h_stride = input.cols;
  product.y_stride = piece.all_rows;
  product.is_added = layer.output.is_added;
  const uint64_t place = uint64_t{first} * piece.all_rows + piece.first_row;
  if (is_half)
    product.y_half = layer.output.y_half + place;
  else
    product.y = layer.output.y + place;
  if (piece.is_beside)
    WCUDA_TRY(check_launch(cudaStreamWaitEvent(launch.stream, made_, 0), "stream wait"));
  WCUDA_TRY(gemm_->run(product, launch));
  if (is_half) return {};

  kernels::WideFinishArgs finish;
  finish.columns = columns;
  finish.stride = piece.all_rows;
  finish.scales = layer.half != nullptr ? nullptr : input.scales;
  const bool has_bias = std::any_of(layer.biases, layer.biases + layer.matrix_count,
                                    [](const float* bias) { return bias != nullptr; });
  if (!has_bias) {
    if (layer.half != nullptr) return {};
    finish.rows = piece.rows;
    finish.y = product.y;
    return check_launch(kernels::wide_finish(finish, launch), "wide_finish");
  }
  return for_each_run(layer.matrices, layer.matrix_count, piece.first_row, piece.rows,
                      [&](uint32_t m, uint32_t row, uint32_t rows, uint32_t at) {
                        finish.rows = rows;
                        finish.y = product.y + at;
                        finish.bias = layer.biases[m] != nullptr ? layer.biases[m] + row : nullptr;
                        return check_launch(kernels::wide_finish(finish, launch), "wide_finish");
                      });
}

}  // namespace wcuda::ops
