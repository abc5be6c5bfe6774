// The catalogue on the host: the formulas of point_ops.h and row_ops.h in plain loops.
#include "compute/catalogue/catalogue.h"
#include "kernels/shared/transformer_ops.h"

namespace wcuda::compute {
namespace {

using namespace kernels;

constexpr int64_t kSumBlock = 256;  // elements added one by one before sums are joined

template <class Op, class T>
void point_typed(const CatalogueArgs& args, int64_t count) {
  for (int64_t i = 0; i < count; ++i) store<T>(args.out[0], i, Op::template at<T>(args, i));
}

// Pairwise summation down to kSumBlock elements: the error grows with the logarithm of the count.
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
  template <class Join, class V>
  V join(V value) const {
    return value;
  }
};

template <class Op, class T>
void rows_typed(const CatalogueArgs& args, int64_t) {
  const int64_t rows = RowCount<Op>::of(args);
  for (int64_t row = 0; row < rows; ++row) Op::template run<T>(args, row, OneWorker());
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
      return;  // a matrix product: run_product
  }
}

}  // namespace wcuda::compute
