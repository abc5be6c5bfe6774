// fp8 products of any size and order: cuBLASLt takes only a plain a and a transposed b with sizes
// that are multiples of 16 bytes. Other operands are copied into zero-padded scratch first, and c
// out of it.
#include "core/gemm/typed_gemm.h"
#include "kernels/memory/pad_matrix.h"
#include "kernels/shared/arena.h"

namespace wcuda::compute {
namespace {

constexpr int64_t kMultiple = 16;

int64_t padded(int64_t size) { return (size + kMultiple - 1) / kMultiple * kMultiple; }

bool is_whole(const GemmMatrix& matrix, int64_t batch) {
  const int64_t bytes = gemm_element_bytes(matrix.element);
  return matrix.row_stride * bytes % kMultiple == 0 &&
         (batch == 1 || matrix.batch_stride * bytes % kMultiple == 0) &&
         reinterpret_cast<uintptr_t>(matrix.data) % kMultiple == 0;
}

// Appends a packed matrix to the scratch layout.
void lay_out(GemmMatrix* matrix, int64_t rows, int64_t columns, int64_t batch, Arena* arena) {
  const uint64_t offset = arena->reserve(
      {static_cast<uint64_t>(rows), static_cast<uint64_t>(columns), static_cast<uint64_t>(batch),
       static_cast<uint64_t>(gemm_element_bytes(matrix->element))});
  matrix->row_stride = columns;
  matrix->batch_stride = static_cast<int64_t>(static_cast<uint64_t>(rows) * columns);
  matrix->data = reinterpret_cast<uint8_t*>(offset);  // until scratch is allocated
}

// Copies one stored matrix to another; `rows` and `columns` are those of the source as used.
kernels::PadMatrixArgs copy_of(const GemmMatrix& from, int64_t rows, int64_t columns,
                               const GemmMatrix& to, int64_t to_rows, int64_t to_columns,
                               int64_t batch) {
  kernels::PadMatrixArgs args;
  args.source = from.data;
  args.target = to.data;
  args.element_bytes = static_cast<uint32_t>(gemm_element_bytes(from.element));
  args.is_transposed = from.is_transposed;
  args.source_rows = rows, args.source_columns = columns;
  args.rows = to_rows, args.columns = to_columns;
  args.batch = batch;
  args.source_stride = from.row_stride, args.source_batch_stride = from.batch_stride;
  args.target_stride = to.row_stride, args.target_batch_stride = to.batch_stride;
  return args;
}

}  // namespace

bool needs_padding(const TypedGemm& g) {
  if (g.a.element != GemmElement::kE4m3) return false;
  return g.a.is_transposed || !g.b.is_transposed || g.k % kMultiple != 0 ||
         g.n * gemm_element_bytes(g.c.element) % kMultiple != 0 || !is_whole(g.a, g.batch) ||
         !is_whole(g.b, g.batch) || !is_whole(g.c, g.batch) ||
         reinterpret_cast<uintptr_t>(g.bias) % kMultiple != 0;
}

Status run_gemm_padded(const TypedGemm& g, vram::Memory& memory, Stream stream) {
  TypedGemm whole = g;
  whole.n = padded(g.n), whole.k = padded(g.k);
  whole.a.is_transposed = false;
  whole.b.is_transposed = true;
  GemmMatrix bias{const_cast<uint8_t*>(g.bias), g.bias_element, false, g.n, 0}, whole_bias = bias;
  Arena arena;
  lay_out(&whole.a, whole.m, whole.k, g.batch, &arena);
  lay_out(&whole.b, whole.n, whole.k, g.batch, &arena);
  lay_out(&whole.c, whole.m, whole.n, g.batch, &arena);
  lay_out(&whole_bias, 1, whole.n, 1, &arena);
  if (!arena.ok())
    return Status::error(WCUDA_OUT_OF_MEMORY, "gemm: its copies in scratch are past 2^62 bytes");
  WCUDA_ASSIGN(const vram::Buffer scratch, memory.scratch(arena.bytes(), "gemm", stream));
  for (GemmMatrix* each : {&whole.a, &whole.b, &whole.c, &whole_bias})
    each->data = scratch.data() + reinterpret_cast<uintptr_t>(each->data);
  if (g.bias) whole.bias = whole_bias.data;

  // b is stored (n, k): its rows there are the columns of the product.
  GemmMatrix b = g.b;
  b.is_transposed = !b.is_transposed;
  Backend& backend = memory.backend();
  const auto copy = [&](const kernels::PadMatrixArgs& args) {
    return backend.queue(stream, [&]() -> Status {
      const cudaError_t error =
          kernels::pad_matrix(args, static_cast<cudaStream_t>(backend.native_stream(stream)));
      if (error == cudaSuccess) return {};
      return Status::native_error(WCUDA_LAUNCH_FAILED, error, "gemm: copying into scratch: %s",
                                  cudaGetErrorString(error));
    });
  };
  WCUDA_TRY(copy(copy_of(g.a, g.m, g.k, whole.a, whole.m, whole.k, g.batch)));
  WCUDA_TRY(copy(copy_of(b, g.n, g.k, whole.b, whole.n, whole.k, g.batch)));
  if (g.beta != 0.0f) WCUDA_TRY(copy(copy_of(g.c, g.m, g.n, whole.c, whole.m, whole.n, g.batch)));
  if (g.bias) WCUDA_TRY(copy(copy_of(bias, 1, g.n, whole_bias, 1, whole.n, 1)));
  WCUDA_TRY(run_gemm_on_device(whole, memory, stream));
  return copy(copy_of(whole.c, whole.m, whole.n, g.c, g.m, g.n, g.batch));
}

}  // namespace wcuda::compute
