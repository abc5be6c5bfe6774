// The catalogue's matrix products, computed by core/gemm or by the catalogue's own kernel.
#include "compute/catalogue/catalogue.h"
#include "core/gemm/typed_gemm.h"

namespace wcuda::compute {
namespace {

using kernels::CatalogueOp;
using kernels::Dtype;

// Below this size our own kernel finishes before a cuBLASLt call would be queued; cuBLASLt also
// takes 500 MB.
constexpr double kLibraryProductsMin = 1 << 22;

GemmElement element_of(Dtype type) {
  return type == Dtype::kF32   ? GemmElement::kF32
         : type == Dtype::kF16 ? GemmElement::kF16
                               : GemmElement::kBf16;
}

TypedGemm gemm_of(CatalogueOp op, const kernels::CatalogueArgs& args) {
  const bool is_plain = op == CatalogueOp::kMatmul;
  const int64_t* const dim = is_plain ? args.dim + 1 : args.dim;
  TypedGemm gemm;
  gemm.batch = is_plain ? args.dim[0] : 1;
  gemm.m = dim[0];
  gemm.k = dim[1];
  gemm.n = dim[2];
  const GemmElement element = element_of(args.type);
  const auto matrix = [&](const void* data, int64_t rows, int64_t cols) {
    auto* const bytes = const_cast<uint8_t*>(static_cast<const uint8_t*>(data));
    return GemmMatrix{bytes, element, false, cols, rows * cols};
  };
  gemm.a = matrix(args.in[0], gemm.m, gemm.k);
  gemm.b = matrix(args.in[1], gemm.k, gemm.n);
  gemm.c = matrix(args.out[0], gemm.m, gemm.n);
  if (!is_plain && op != CatalogueOp::kMatmulRelu) {
    gemm.bias = static_cast<const uint8_t*>(args.in[2]);
    gemm.bias_element = element;
  }
  if (op == CatalogueOp::kLinearGelu) gemm.act = GemmAct::kGelu;
  if (op == CatalogueOp::kLinearRelu || op == CatalogueOp::kMatmulRelu) gemm.act = GemmAct::kRelu;
  return gemm;
}

}  // namespace

bool is_product(CatalogueOp op) {
  return op == CatalogueOp::kMatmul || op == CatalogueOp::kLinear ||
         op == CatalogueOp::kLinearRelu || op == CatalogueOp::kLinearGelu ||
         op == CatalogueOp::kMatmulRelu;
}

Status run_product(CatalogueOp op, const kernels::CatalogueArgs& args, int64_t count,
                   vram::Memory& memory, Stream stream) {
  const TypedGemm gemm = gemm_of(op, args);
  if (gemm.batch == 0 || gemm.m == 0 || gemm.n == 0) return {};
  const double products = double(gemm.batch) * double(gemm.m) * double(gemm.n) * double(gemm.k);
  // The ReLU of cuBLASLt turns NaN into 0; ours propagates it.
  const bool by_library = products >= kLibraryProductsMin && gemm.act != GemmAct::kRelu;
  if (memory.backend().is_host() || by_library) {
    const Status status = run_gemm(gemm, memory, stream);
    if (status.code() != WCUDA_NOT_AVAILABLE) return status;
  }
  return run_on_device(op, args, count, memory.backend(), stream);
}

}  // namespace wcuda::compute
