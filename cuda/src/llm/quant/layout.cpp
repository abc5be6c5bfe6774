#include "llm/quant/layout.h"

#include <cinttypes>

#include "core/base/cpu.h"
#include "llm/quant/layout_gpu.h"
#include "llm/quant/layout_host.h"

namespace wcuda::quant {

Result<LayoutChoice> weight_layout(bool is_host, uint32_t type, uint32_t rows, uint32_t cols) {
  if (is_host) return host_weight_layout(cpu_has_avx2(), type, rows, cols);
  WCUDA_ASSIGN(const uint64_t bytes, gpu_layout_bytes(type, rows, cols));
  return LayoutChoice{Layout::kGpu16, bytes};
}

Result<LayoutChoice> host_weight_layout(bool has_vectors, uint32_t type, uint32_t rows,
                                        uint32_t cols) {
  const bool has_tiles = has_vectors && find_host_tile_layout(type) != nullptr;
  const Layout layout = has_tiles ? Layout::kHost16 : Layout::kRows;
  WCUDA_ASSIGN(const uint64_t bytes, host_layout_bytes(type, layout, rows, cols));
  return LayoutChoice{layout, bytes};
}

Status check_rows(uint32_t rows, uint32_t first_row, uint32_t row_count) {
  if (first_row > rows || row_count > rows - first_row)
    return Status::error(WCUDA_OUT_OF_RANGE, "rows %u to %" PRIu64 " of a matrix of %u", first_row,
                         uint64_t{first_row} + row_count, rows);
  return {};
}

}  // namespace wcuda::quant
