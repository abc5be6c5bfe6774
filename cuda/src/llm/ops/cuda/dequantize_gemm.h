// DequantizeGemm: linear layers of many tokens. Weights become f16 rows piece by piece, once a
// layer; each piece has one product with all tokens, which writes or adds to the outputs itself.
// Products are bound by the tensor cores and pieces by memory, so a piece is written on a stream of
// its own, while the product ahead runs (8B, 2,048 tokens, H200: 27 us for 102). What a token's f16
// column had to be scaled by is undone afterwards, in the few columns where it is not 1
// (kernels/linear/dequant_gemm_io.h).
#pragma once

#include <cstdint>

#include "core/backend/backend.h"
#include "core/base/status.h"
#include "core/gemm/gemm.h"
#include "kernels/linear/dequant_gemm_io.h"
#include "kernels/linear/linear.h"
#include "llm/ops/step_plan.h"

namespace wcuda::ops {

// What becomes of the f16 sums of a gate: activation(gate + gate_bias) * (up + up_bias).
struct GateSums {
  const float* gate_bias = nullptr;
  const float* up_bias = nullptr;
  kernels::Epilogue activation = kernels::Epilogue::kSiluGate;
};

class DequantizeGemm {
 public:
  // Device memory, aligned to 256 bytes.
  struct Memory {
    uint16_t* weights[2] = {};
    uint64_t weight_bytes = 0;  // of each: at least one row
    uint16_t* input = nullptr;
    uint64_t input_bytes = 0;     // at least one column
    float* scales = nullptr;      // (columns_max)
    float* sum_scales = nullptr;  // (columns_max) of gate sums, from one node to the next
    uint32_t columns_max = 0;     // of gate sums; others go in parts
  };

  DequantizeGemm() = default;
  ~DequantizeGemm();
  DequantizeGemm(const DequantizeGemm&) = delete;
  DequantizeGemm& operator=(const DequantizeGemm&) = delete;

  // `stream` is the one of the launches. Both outlive this object.
  Status prepare(const Memory& memory, Backend* backend, Stream stream, compute::HalfGemm* gemm);
  // Input and output in the forms of the node: f32 or f16; of gate sums `sums` says what becomes of
  // them. Epilogues kStore and kAdd; a gate leaves its sums in outputs[0]. All sizes are multiples
  // of 8, and addresses of 16 bytes.
  Status run(const Node& node, const kernels::LinearArgs& args, const GateSums& sums,
             const kernels::Launch& launch);

 private:
  struct Output {
    float* y = nullptr;
    uint16_t* y_half = nullptr;
    bool is_added = false;
  };
  struct Layer {
    kernels::DequantGemmInputArgs input;  // of all columns
    const uint16_t* half = nullptr;       // in place of input: columns as f16, unscaled
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
    uint32_t buffer = 0;
    bool has_second_stream = false;  // which writes its weights
  };
  // The buffers of a node's pieces.
  struct Buffers {
    uint32_t next;
    uint32_t ordered;  // bit b: read_[b] is of the last product that reads buffer b
    bool has_second_stream;
  };
  kernels::DequantGemmInputArgs input_of(const Node& node, const kernels::LinearArgs& args,
                                         const GateSums& sums) const;
  Status multiply(const Layer& layer, Buffers* buffers, const kernels::Launch& launch);
  Status queue(const Layer& layer, Buffers* buffers, const kernels::Launch& launch);
  Status dequantize(const Layer& layer, const Piece& piece, const kernels::Launch& launch);
  Status dequantize_on_second_stream(const Layer& layer, const Piece& piece, bool is_ordered,
                                     const kernels::Launch& launch);
  Status multiply_columns(const Layer& layer, const Piece& piece, uint32_t first, uint32_t columns,
                          bool has_input, const kernels::Launch& launch);

  Memory memory_;
  Backend* backend_ = nullptr;
  Stream stream_, second_;
  Event read_[2];  // a buffer's piece has had its products
  Event written_;
  compute::HalfGemm* gemm_ = nullptr;
};

}  // namespace wcuda::ops
