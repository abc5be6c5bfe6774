// WideLinear: linear layers of many tokens. Weights become f16 rows piece by piece, once a layer;
// each piece has one product with all tokens, which writes or adds to the outputs itself. Products
// are bound by the tensor cores and pieces by memory, so a piece is made on a stream of its own,
// beside the product ahead (8B, 2,048 tokens, H200: 27 us for 102). What a token's f16 column had
// to be scaled by is undone afterwards, in the few columns where it is not 1
// (kernels/linear/wide_input.h).
#pragma once

#include <cstdint>

#include "core/base/status.h"
#include "core/gemm/gemm.h"
#include "kernels/linear/linear.h"
#include "kernels/linear/wide_input.h"

namespace wcuda::ops {

class WideLinear {
 public:
  // Device memory, aligned to 256 bytes.
  struct Memory {
    uint16_t* weights[2] = {};
    uint64_t weight_bytes = 0;  // of each: at least one row
    uint16_t* input = nullptr;
    uint64_t input_bytes = 0;     // at least one column
    float* scales = nullptr;      // (columns_max)
    float* sum_scales = nullptr;  // (columns_max) of run_sums
    uint32_t columns_max = 0;     // of run_sums; others go in parts
  };

  WideLinear() = default;
  ~WideLinear();
  WideLinear(const WideLinear&) = delete;
  WideLinear& operator=(const WideLinear&) = delete;

  // Whether its sizes are such as run() and the others take: all of 8, 16 bytes aligned.
  static bool fits(const kernels::LinearArgs& args);

  Status prepare(const Memory& memory, compute::HalfGemm* gemm);
  // Others have used the memory: what comes waits for all that is queued.
  void forget() { is_marked_[0] = is_marked_[1] = false; }

  // x of the next run() holds f16 in place of f32.
  void half_input(const float* x) { half_x_ = x; }
  // Epilogues kStore and kAdd. Where args.x is what run_sums was given, the input is the activation
  // of those sums.
  Status run(const kernels::LinearArgs& args, const kernels::Launch& launch);
  // Stores the outputs of all matrices one after the other: output (columns, rows of all).
  Status run_joined(const kernels::LinearArgs& args, float* output, const kernels::Launch& launch);
  // A gate without its end: args.outputs[0] holds the f16 sums of both matrices, for run().
  Status run_sums(const kernels::LinearArgs& args, const kernels::Launch& launch);

 private:
  struct Output {
    float* y = nullptr;
    uint16_t* y_half = nullptr;
    bool is_added = false;
  };
  struct Layer {
    kernels::WideInputArgs input;    // of all columns
    const uint16_t* half = nullptr;  // in place of input: columns as f16, unscaled
    const kernels::Matrix* matrices = nullptr;
    const float* const* biases = nullptr;
    uint32_t matrix_count = 0;
    Output output;
  };
  // The piece of the matrices' rows, one after the other, from first_row on.
  struct Piece {
    uint32_t first_row = 0;
    uint32_t rows = 0;
    uint32_t all_rows = 0;
    bool is_beside = false;  // its weights are made on the other stream
  };
  kernels::WideInputArgs input_of(const kernels::LinearArgs& args) const;
  Status multiply(const Layer& layer, const kernels::Launch& launch);
  Status queue(const Layer& layer, const kernels::Launch& launch);
  Status make_weights(const Layer& layer, const Piece& piece, const kernels::Launch& launch);
  Status make_weights_beside(const Layer& layer, const Piece& piece, const kernels::Launch& launch);
  Status multiply_columns(const Layer& layer, const Piece& piece, uint32_t first, uint32_t columns,
                          bool has_input, const kernels::Launch& launch);

  Memory memory_;
  uint32_t buffer_ = 0;  // of the piece that is worked on
  cudaStream_t side_ = nullptr;
  cudaEvent_t read_[2] = {};  // a buffer's piece has had its products
  cudaEvent_t made_ = nullptr;
  bool is_marked_[2] = {};  // read_ is of the last piece
  compute::HalfGemm* gemm_ = nullptr;
  const float* half_x_ = nullptr;
  kernels::LinearArgs sums_;  // of the last run_sums; outputs[0] null: none
};

}  // namespace wcuda::ops
