// The catalogue's operations and their arguments.
#pragma once

#include <cstdint>

namespace wcuda::kernels {

enum class Dtype : int32_t { kF32, kF16, kBf16 };

// Element-wise, by a formula of point_ops.h.
#define WCUDA_POINT_OPS(X) \
  X(VectorAdd)             \
  X(VectorSub)             \
  X(VectorMul)             \
  X(VectorDiv)             \
  X(VectorScale)           \
  X(Saxpy)                 \
  X(Copy)                  \
  X(Fill)                  \
  X(Relu)                  \
  X(Sigmoid)               \
  X(Tanh)                  \
  X(Gelu)                  \
  X(GeluFast)              \
  X(Silu)                  \
  X(Swiglu)                \
  X(Exp)                   \
  X(BroadcastAdd)          \
  X(BatchNorm)             \
  X(BatchNorm2d)           \
  X(Transpose) X(Conv2d) X(MaxPool2d) X(AvgPool2d) X(Im2col) X(Col2im) X(Rope) X(Embedding)
// Reductions of all elements to one number.
#define WCUDA_REDUCE_OPS(X) X(Sum) X(Max) X(Min) X(Product) X(Dot) X(Entropy)
// Row operations: a row of output, or one number, for each row of input.
#define WCUDA_ROW_OPS(X) \
  X(Softmax) X(Normalize) X(LayerNorm) X(RmsNorm) X(AddNorm) X(Cosine) X(Attention) X(TopK)
// Random draws, from formulas of random_ops.h.
#define WCUDA_RANDOM_OPS(X) X(Uniform) X(Normal) X(Categorical)

enum class CatalogueOp : int32_t {
  kNoop,
#define WCUDA_OP(name) k##name,
  WCUDA_POINT_OPS(WCUDA_OP) WCUDA_REDUCE_OPS(WCUDA_OP) WCUDA_ROW_OPS(WCUDA_OP)
      WCUDA_RANDOM_OPS(WCUDA_OP)
#undef WCUDA_OP
          kMatmul,  // in (batch, m, k) (batch, k, n); dims batch, m, k, n
  kLinear,          // in (m, k) (k, n) (n); dims m, k, n; no activation
  kLinearRelu,
  kLinearGelu,
  kMatmulRelu,
};

// Buffers, integers and factors, each in the order of the operation's signature. Buffers of one
// call do not overlap, except that an element-wise operation may write where it reads the same
// element.
struct CatalogueArgs {
  const void* in[5] = {};
  void* out[2] = {};
  int64_t dim[12] = {};
  float factor[2] = {};
  Dtype type = Dtype::kF32;
  float* scratch = nullptr;  // kReduceBlocksMax numbers, for the reductions
};

constexpr int64_t kReduceBlocksMax = 512;

}  // namespace wcuda::kernels
