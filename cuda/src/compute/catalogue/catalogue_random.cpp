// The catalogue's random draws on the host.
#include "compute/catalogue/catalogue.h"
#include "kernels/shared/random_ops.h"

namespace wcuda::compute {
namespace {

using namespace kernels;

template <class Op, class T>
void draw_typed(const CatalogueArgs& args, int64_t count) {
  for (int64_t i = 0; i < count; ++i) Op::template put<T>(args, i);
}

template <class Op>
void draw_all(const CatalogueArgs& args, int64_t count) {
  if (args.type == Dtype::kF32) draw_typed<Op, float>(args, count);
  if (args.type == Dtype::kF16) draw_typed<Op, Half>(args, count);
  if (args.type == Dtype::kBf16) draw_typed<Op, Bf16>(args, count);
}

}  // namespace

void draw_on_host(CatalogueOp op, const CatalogueArgs& args, int64_t count) {
  switch (op) {
#define WCUDA_OP(name)       \
  case CatalogueOp::k##name: \
    return draw_all<draw::name>(args, count);
    WCUDA_RANDOM_OPS(WCUDA_OP)
#undef WCUDA_OP
    default:
      return;
  }
}

}  // namespace wcuda::compute
