// Matrix products of any element type, row-major:
// c (m, n) = act(alpha * op(a) (m, k) * op(b) (k, n) + beta * c + bias (n)), `batch` times.
// CUDA uses cuBLASLt, the host a blocked product on several threads.
#pragma once

#include <cstdint>
#include <memory>

#include "core/base/status.h"
#include "core/vram/memory.h"

namespace wcuda::compute {

enum class GemmElement : int32_t { kF32, kF16, kBf16, kE4m3 };
enum class GemmAct : int32_t { kNone, kRelu, kGelu };

int64_t gemm_element_bytes(GemmElement element);

// One matrix per batch entry, as stored.
struct GemmMatrix {
  uint8_t* data = nullptr;  // aligned to its elements
  GemmElement element = GemmElement::kF32;
  bool is_transposed = false;  // stored (columns, rows); never c
  int64_t row_stride = 0;      // elements from one stored row to the next
  int64_t batch_stride = 0;    // from one matrix to the next
};

struct TypedGemm {
  GemmMatrix a, b, c;  // a and b of one element; c no kE4m3, and in memory of its own
  const uint8_t* bias = nullptr;
  GemmElement bias_element = GemmElement::kF32;
  bool is_tf32 = false;  // f32 operands may be rounded to 10 bits of fraction
  int64_t batch = 1, m = 0, n = 0, k = 0;
  float alpha = 1.0f, beta = 0.0f;  // 0: c is not read
  GemmAct act = GemmAct::kNone;
};

// Checks shapes and strides, that the sizes (bytes available to a, b, c and bias) hold them, and
// that c overlaps none of them: WCUDA_INVALID_ARGUMENT with the numbers.
struct GemmWindows {
  uint64_t a = 0, b = 0, c = 0, bias = 0;
};
Status check_gemm(const TypedGemm& gemm, const GemmWindows& windows);

// Queues a product. The same shapes, strides and alignments give the same bits every time.
// WCUDA_NOT_AVAILABLE on CUDA without cuBLASLt, with the library's name, and for what it has no
// algorithm.
Status run_gemm(const TypedGemm& gemm, vram::Memory& memory, Stream stream);

// WCUDA_NOT_AVAILABLE with the reason where CUDA has no cuBLASLt. The first call opens it.
Status gemm_library();

// Implementations of run_gemm.
Status run_gemm_on_host(const TypedGemm& gemm, vram::Memory& memory);
Status run_gemm_on_device(const TypedGemm& gemm, vram::Memory& memory, Stream stream);

// Whether the device needs padded copies in scratch for an fp8 product, and the product with them.
bool needs_padding(const TypedGemm& gemm);
Status run_gemm_padded(const TypedGemm& gemm, vram::Memory& memory, Stream stream);

}  // namespace wcuda::compute
