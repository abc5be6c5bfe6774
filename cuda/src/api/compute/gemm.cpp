// Section 20 of the header: matrix products.
#include <cinttypes>

#include "api/base/context.h"
#include "api/base/stream.h"
#include "api/compute/arguments.h"
#include "core/gemm/typed_gemm.h"
#include "worker_cuda/compute.h"

using namespace wcuda;
using namespace wcuda::api;

namespace {

using compute::GemmElement;
using compute::GemmMatrix;
using compute::TypedGemm;

constexpr uint64_t kSizeMax = INT32_MAX;
constexpr uint64_t kStrideMax = uint64_t{1} << 56;

Result<GemmElement> input_element(int32_t type) {
  switch (type) {
    case WCUDA_GEMM_F32:
    case WCUDA_GEMM_TF32:
      return GemmElement::kF32;
    case WCUDA_GEMM_F16:
      return GemmElement::kF16;
    case WCUDA_GEMM_BF16:
      return GemmElement::kBf16;
    case WCUDA_GEMM_FP8:
      return GemmElement::kE4m3;
    case WCUDA_GEMM_F64:
      return Status::error(WCUDA_NOT_AVAILABLE, "type: products of f64 are not available");
    case WCUDA_GEMM_INT8:
      return Status::error(WCUDA_NOT_AVAILABLE, "type: products of int8 are not available");
    default:
      return invalid_argument("type: %d is not one of WCUDA_GEMM_…", type);
  }
}

Result<GemmElement> output_element(int32_t type, GemmElement input) {
  GemmElement output = GemmElement::kF32;
  switch (type) {
    case 0:
      return input == GemmElement::kE4m3 ? GemmElement::kBf16 : input;
    case WCUDA_ARG_F32:
      return output;
    case WCUDA_ARG_F16:
      output = GemmElement::kF16;
      break;
    case WCUDA_ARG_BF16:
      output = GemmElement::kBf16;
      break;
    default:
      return invalid_argument("output_type: %d is not 0, WCUDA_ARG_F32, _F16 or _BF16", type);
  }
  if (input != output && input != GemmElement::kE4m3)
    return invalid_argument("output_type: %d, these inputs give f32 or their own type", type);
  return output;
}

Status check_sizes(const wcuda_gemm& from) {
  const struct {
    const char* name;
    uint64_t value;
    uint64_t most;
  } sizes[] = {{"m", from.m, kSizeMax},
               {"n", from.n, kSizeMax},
               {"k", from.k, kSizeMax},
               {"batch", from.batch, kSizeMax},
               {"row_stride_a", from.row_stride_a, kStrideMax},
               {"row_stride_b", from.row_stride_b, kStrideMax},
               {"row_stride_c", from.row_stride_c, kStrideMax},
               {"batch_stride_a", from.batch_stride_a, kStrideMax},
               {"batch_stride_b", from.batch_stride_b, kStrideMax},
               {"batch_stride_c", from.batch_stride_c, kStrideMax}};
  for (const auto& size : sizes)
    if (size.value > size.most)
      return invalid_argument("%s: %" PRIu64 ", at most %" PRIu64, size.name, size.value,
                              size.most);
  return {};
}

// A stride of 0 means contiguous rows or matrices.
GemmMatrix matrix_of(GemmElement element, bool is_transposed, uint64_t rows, uint64_t cols,
                     uint64_t row_stride, uint64_t batch_stride) {
  GemmMatrix matrix;
  matrix.element = element;
  matrix.is_transposed = is_transposed;
  const uint64_t stored_rows = is_transposed ? cols : rows;
  matrix.row_stride = static_cast<int64_t>(row_stride ? row_stride : is_transposed ? rows : cols);
  const uint64_t tight = stored_rows * static_cast<uint64_t>(matrix.row_stride);
  matrix.batch_stride =
      static_cast<int64_t>(batch_stride ? batch_stride : std::min(tight, kStrideMax));
  return matrix;
}

Result<TypedGemm> read_gemm(const wcuda_gemm& from) {
  WCUDA_TRY(check_flags(from.flags, WCUDA_GEMM_TRANSPOSE_A | WCUDA_GEMM_TRANSPOSE_B, "flags"));
  if (from.activation < WCUDA_ACTIVATION_NONE || from.activation > WCUDA_ACTIVATION_GELU)
    return invalid_argument("activation: %d is not one of WCUDA_ACTIVATION_…", from.activation);
  WCUDA_TRY(check_sizes(from));
  WCUDA_ASSIGN(const GemmElement input, input_element(from.type));
  WCUDA_ASSIGN(const GemmElement output, output_element(from.output_type, input));
  TypedGemm gemm;
  gemm.is_tf32 = from.type == WCUDA_GEMM_TF32;
  gemm.act = static_cast<compute::GemmAct>(from.activation);
  gemm.alpha = from.alpha;
  gemm.beta = from.beta;
  gemm.batch = from.batch ? static_cast<int64_t>(from.batch) : 1;
  gemm.m = static_cast<int64_t>(from.m);
  gemm.n = static_cast<int64_t>(from.n);
  gemm.k = static_cast<int64_t>(from.k);
  gemm.a = matrix_of(input, from.flags & WCUDA_GEMM_TRANSPOSE_A, from.m, from.k, from.row_stride_a,
                     from.batch_stride_a);
  gemm.b = matrix_of(input, from.flags & WCUDA_GEMM_TRANSPOSE_B, from.k, from.n, from.row_stride_b,
                     from.batch_stride_b);
  gemm.c = matrix_of(output, false, from.m, from.n, from.row_stride_c, from.batch_stride_c);
  gemm.bias_element =
      input == GemmElement::kE4m3 && output == GemmElement::kF32 ? GemmElement::kBf16 : output;
  return gemm;
}

Status run(const Context& context, const wcuda_gemm& options, const wcuda_argument* arguments,
           uint64_t count, wcuda_stream stream) {
  WCUDA_ASSIGN(TypedGemm gemm, read_gemm(options));
  if (count != 3 && count != 4)
    return Status::error(WCUDA_ARGUMENT_COUNT,
                         "arguments: %" PRIu64 " given, a product takes 3, or 4 with a bias",
                         count);
  vram::Memory& memory = *context.memory;
  WCUDA_ASSIGN(const UsedStream on, use_stream(stream, memory));
  Arguments given;
  WCUDA_TRY(given.read(arguments, count, memory));
  static const char* const names[] = {"a", "b", "c", "bias"};
  for (uint64_t i = 0; i < count; ++i)
    if (given.shapes()[i].kind != WCUDA_ARG_BUFFER)
      return invalid_argument("argument %" PRIu64 " ('%s') is no buffer", i, names[i]);
  const uint32_t access = given.shapes()[2].access;
  if (access != 0 && (access & WCUDA_ACCESS_WRITE) == 0)
    return invalid_argument("argument 2 ('c') is written, only reading is granted");
  const std::vector<wcuda_host_argument>& windows = given.for_host();
  const auto data = [&](size_t i) { return static_cast<uint8_t*>(windows[i].data); };
  gemm.a.data = data(0);
  gemm.b.data = data(1);
  gemm.c.data = data(2);
  if (count == 4) gemm.bias = data(3);
  WCUDA_TRY(compute::check_gemm(gemm, {windows[0].bytes, windows[1].bytes, windows[2].bytes,
                                       count == 4 ? windows[3].bytes : 0}));
  WCUDA_TRY(memory.backend().fault());
  given.used_on(on.stream);
  return compute::run_gemm(gemm, memory, on.stream);
}

}  // namespace

wcuda_status wcuda_gemm_run(wcuda_context context, const wcuda_gemm* gemm,
                            const wcuda_argument* arguments, uint64_t argument_count,
                            wcuda_stream stream, wcuda_error* error) {
  return guarded(error, [&]() -> Status {
    WCUDA_ASSIGN(const auto parent, resolve(context, "context"));
    WCUDA_ASSIGN(const wcuda_gemm options, read_struct(gemm, "gemm"));
    return run(*parent, options, arguments, argument_count, stream);
  });
}

wcuda_status wcuda_gemm_library_check(wcuda_error* error) {
  return guarded(error, [] { return compute::gemm_library(); });
}
