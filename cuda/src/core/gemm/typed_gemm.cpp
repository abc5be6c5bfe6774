// Checks of shapes, strides and sizes of a product.
#include "core/gemm/typed_gemm.h"

#include <cinttypes>

#include "core/base/checked.h"

namespace wcuda::compute {
namespace {

constexpr uint64_t kBytesMax = uint64_t{1} << 56;

// Bytes from the first element to the end of the last.
Status check_matrix(const char* name, const GemmMatrix& matrix, int64_t batch, int64_t rows,
                    int64_t cols, uint64_t window_bytes, uint64_t* used_bytes) {
  const int64_t stored_rows = matrix.is_transposed ? cols : rows;
  const int64_t stored_cols = matrix.is_transposed ? rows : cols;
  if (matrix.row_stride < stored_cols)
    return invalid_argument("%s: a row stride of %" PRId64 ", rows have %" PRId64 " elements", name,
                            matrix.row_stride, stored_cols);
  *used_bytes = 0;
  if (batch == 0 || stored_rows == 0 || stored_cols == 0) return {};
  const auto element = static_cast<uint64_t>(gemm_element_bytes(matrix.element));
  uint64_t rows_before = 0, one = 0, batches_before = 0, all = 0, bytes = 0;
  const bool fits = checked_mul(static_cast<uint64_t>(stored_rows - 1),
                                static_cast<uint64_t>(matrix.row_stride), &rows_before) &&
                    checked_add(rows_before, static_cast<uint64_t>(stored_cols), &one) &&
                    checked_mul(static_cast<uint64_t>(batch - 1),
                                static_cast<uint64_t>(matrix.batch_stride), &batches_before) &&
                    checked_add(batches_before, one, &all) && checked_mul(all, element, &bytes);
  if (!fits || bytes > kBytesMax) return invalid_argument("%s: its extent overflows", name);
  if (name[0] == 'c' && batch > 1 && static_cast<uint64_t>(matrix.batch_stride) < one)
    return invalid_argument("c: a batch stride of %" PRId64 ", a matrix has %" PRIu64 " elements",
                            matrix.batch_stride, one);
  if (window_bytes < bytes)
    return invalid_argument("%s: has %" PRIu64 " bytes, the product needs %" PRIu64, name,
                            window_bytes, bytes);
  if (reinterpret_cast<uintptr_t>(matrix.data) % element != 0)
    return invalid_argument("%s: begins inside an element", name);
  *used_bytes = bytes;
  return {};
}

}  // namespace

int64_t gemm_element_bytes(GemmElement element) {
  switch (element) {
    case GemmElement::kF32:
      return 4;
    case GemmElement::kE4m3:
      return 1;
    default:
      return 2;
  }
}

Status check_gemm(const TypedGemm& gemm, const GemmWindows& windows) {
  if (gemm.k == 0) return invalid_argument("k: 0, at least 1");
  uint64_t a_bytes = 0, b_bytes = 0, c_bytes = 0;
  WCUDA_TRY(check_matrix("a", gemm.a, gemm.batch, gemm.m, gemm.k, windows.a, &a_bytes));
  WCUDA_TRY(check_matrix("b", gemm.b, gemm.batch, gemm.k, gemm.n, windows.b, &b_bytes));
  WCUDA_TRY(check_matrix("c", gemm.c, gemm.batch, gemm.m, gemm.n, windows.c, &c_bytes));
  const auto bias_element = static_cast<uint64_t>(gemm_element_bytes(gemm.bias_element));
  const uint64_t bias_bytes = gemm.bias ? static_cast<uint64_t>(gemm.n) * bias_element : 0;
  if (windows.bias < bias_bytes)
    return invalid_argument("bias: has %" PRIu64 " bytes, the product needs %" PRIu64, windows.bias,
                            bias_bytes);
  if (reinterpret_cast<uintptr_t>(gemm.bias) % bias_element != 0)
    return invalid_argument("bias: begins inside an element");
  const struct {
    const char* name;
    const uint8_t* data;
    uint64_t bytes;
  } inputs[] = {
      {"a", gemm.a.data, a_bytes}, {"b", gemm.b.data, b_bytes}, {"bias", gemm.bias, bias_bytes}};
  for (const auto& input : inputs)
    if (input.bytes != 0 && c_bytes != 0 && input.data < gemm.c.data + c_bytes &&
        gemm.c.data < input.data + input.bytes)
      return invalid_argument("c: overlaps %s", input.name);
  return {};
}

Status run_gemm(const TypedGemm& gemm, vram::Memory& memory, Stream stream) {
  if (gemm.batch == 0 || gemm.m == 0 || gemm.n == 0) return {};
  Backend& backend = memory.backend();
  if (backend.is_registered())
    return Status::error(WCUDA_UNSUPPORTED_KERNEL, "gemm: runs on CUDA and HOST");
  if (backend.is_host())
    return backend.host_launch(stream, [&] { return run_gemm_on_host(gemm, memory); });
  return run_gemm_on_device(gemm, memory, stream);
}

}  // namespace wcuda::compute
