// The catalogue on the host: the formulas of point_ops.h and row_ops.h in plain loops.
#include <algorithm>
#include <vector>

#include "compute/catalogue.h"
#include "kernels/row_ops.h"

namespace wcuda::compute {
namespace {

using namespace kernels;

constexpr int64_t kSumBlock = 256;  // elements added one by one before sums are joined

template <class Op, class T>
void point_typed(const CatalogueArgs& args, int64_t count) {
  for (int64_t i = 0; i < count; ++i) store<T>(args.out[0], i, Op::template at<T>(args, i));
}

// Pairs of halves down to kSumBlock elements: the error grows with the logarithm of the count.
template <class Op, class T>
float reduce_range(const CatalogueArgs& args, int64_t begin, int64_t end) {
  using Join = typename Op::Join;
  if (end - begin > kSumBlock) {
    const int64_t middle = begin + (end - begin) / 2;
    return Join::join(reduce_range<Op, T>(args, begin, middle),
                      reduce_range<Op, T>(args, middle, end));
  }
  float value = Join::start();
  for (int64_t i = begin; i < end; ++i)
    value = Join::join(value, Op::Each::template at<T>(args, i));
  return value;
}

template <class Op, class T>
void reduce_typed(const CatalogueArgs& args, int64_t) {
  store<T>(args.out[0], 0, reduce_range<Op, T>(args, 0, args.dim[0]));
}

struct OneWorker {
  int64_t first = 0, step = 1;
  template <class Join>
  float join(float value) const {
    return value;
  }
};

template <class Op, class T>
void rows_typed(const CatalogueArgs& args, int64_t) {
  if (args.dim[1] == 0) return;
  for (int64_t row = 0; row < args.dim[0]; ++row) Op::template run<T>(args, row, OneWorker());
}

template <class T>
void matmul_typed(CatalogueOp op, const CatalogueArgs& args) {
  const bool is_plain = op == CatalogueOp::kMatmul;
  const int64_t* const dim = is_plain ? args.dim + 1 : args.dim;
  const int64_t batches = is_plain ? args.dim[0] : 1, m = dim[0], k = dim[1], n = dim[2];
  const void* const bias = is_plain || op == CatalogueOp::kMatmulRelu ? nullptr : args.in[2];
  // A strip of b as f32 serves all rows of a.
  constexpr int64_t kStrip = 256;
  std::vector<float> strip(static_cast<size_t>(k * std::min(n, kStrip)));
  std::vector<float> sum(static_cast<size_t>(std::min(n, kStrip)));
  for (int64_t batch = 0; batch < batches; ++batch)
    for (int64_t col0 = 0; col0 < n; col0 += kStrip) {
      const int64_t width = std::min(kStrip, n - col0);
      for (int64_t depth = 0; depth < k; ++depth)
        for (int64_t col = 0; col < width; ++col)
          strip[static_cast<size_t>(depth * width + col)] =
              load<T>(args.in[1], (batch * k + depth) * n + col0 + col);
      for (int64_t row = 0; row < m; ++row) {
        std::fill(sum.begin(), sum.end(), 0.0f);
        for (int64_t depth = 0; depth < k; ++depth) {
          const float a = load<T>(args.in[0], (batch * m + row) * k + depth);
          const float* const from = strip.data() + depth * width;
          for (int64_t col = 0; col < width; ++col) sum[static_cast<size_t>(col)] += a * from[col];
        }
        for (int64_t col = 0; col < width; ++col) {
          float value = sum[static_cast<size_t>(col)];
          if (bias) value += load<T>(bias, col0 + col);
          if (op == CatalogueOp::kLinearGelu) value = gelu(value);
          if (op == CatalogueOp::kLinearRelu || op == CatalogueOp::kMatmulRelu)
            value = value > 0.0f ? value : (value == value ? 0.0f : value);
          store<T>(args.out[0], (batch * m + row) * n + col0 + col, value);
        }
      }
    }
}

}  // namespace

void run_on_host(CatalogueOp op, const CatalogueArgs& args, int64_t count) {
#define WCUDA_BY_TYPE(function, Op)                                 \
  {                                                                 \
    if (args.type == Dtype::kF32) function<Op, float>(args, count); \
    if (args.type == Dtype::kF16) function<Op, Half>(args, count);  \
    if (args.type == Dtype::kBf16) function<Op, Bf16>(args, count); \
    return;                                                         \
  }
  switch (op) {
    case CatalogueOp::kNoop:
      return;
#define WCUDA_OP(name)       \
  case CatalogueOp::k##name: \
    WCUDA_BY_TYPE(point_typed, point::name)
      WCUDA_POINT_OPS(WCUDA_OP)
#undef WCUDA_OP
#define WCUDA_OP(name)       \
  case CatalogueOp::k##name: \
    WCUDA_BY_TYPE(reduce_typed, reduce::name)
      WCUDA_REDUCE_OPS(WCUDA_OP)
#undef WCUDA_OP
#define WCUDA_OP(name)       \
  case CatalogueOp::k##name: \
    WCUDA_BY_TYPE(rows_typed, row::name)
      WCUDA_ROW_OPS(WCUDA_OP)
#undef WCUDA_OP
#define WCUDA_OP(name) case CatalogueOp::k##name:
      WCUDA_RANDOM_OPS(WCUDA_OP)
      return draw_on_host(op, args, count);
#undef WCUDA_OP
    default:
      if (args.type == Dtype::kF32) matmul_typed<float>(op, args);
      if (args.type == Dtype::kF16) matmul_typed<Half>(op, args);
      if (args.type == Dtype::kBf16) matmul_typed<Bf16>(op, args);
  }
}

}  // namespace wcuda::compute
