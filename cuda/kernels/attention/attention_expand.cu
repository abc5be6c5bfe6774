// attention_expand: converts the pages of rows of more than one token to f16, for some key-value
// heads, so that attention_prefill_warpgroup copies them by tensor maps. Its own producer would
// convert a page again for each tile of tokens and query head.
//
// A block takes the 64 keys or values of a page and head at a time; a thread converts 8 elements.
// Bytes moved: the pages once, and their f16 values, which are mostly read from L2.
#include <algorithm>

#include "kernels/attention/attention_prefill.h"
#include "kernels/attention/attention_tile.cuh"
#include "kernels/attention/find_row.cuh"
#include "kernels/ptx/dependent_launch.cuh"
#include "kernels/ptx/launch.h"
#include "kernels/ptx/wgmma.cuh"

namespace wcuda::kernels {
namespace {

constexpr uint32_t kBlockThreads = 256;
constexpr uint32_t kSmBlocks = 8;
constexpr uint32_t kSharedRowsMax = 8191;  // whose pages are counted in shared memory

struct ExpandArgs {
  StepRows step;
  const uint32_t* row_pages;  // (row_count + 1)
  KvPages pages;
  uint32_t layer, first_head, window;
  KvPages target;  // of one layer; its head 0 is first_head
};

// Pages of long rows before each row. Reads of what an earlier kernel wrote bypass L1.
struct RowPages {
  const uint32_t* shared;  // null: too many rows
  const uint32_t* global;
  __device__ uint32_t operator[](uint32_t row) const {
    return shared != nullptr ? shared[row] : __ldcg(global + row);
  }
};

// Other devices do not run the kernel, and an SM of some has no room for as many blocks.
template <KvFormat kFormat>
__global__ void __launch_bounds__(kBlockThreads, WCUDA_HAS_WARPGROUPS ? kSmBlocks : 1)
    attention_expand_kernel(const ExpandArgs args) {
  extern __shared__ uint32_t shared_pages[];
  dependent_trigger();
  const uint32_t row_count = args.step.row_count;
  const bool is_in_shared = row_count <= kSharedRowsMax;
  const RowPages row_pages{is_in_shared ? shared_pages : nullptr, args.row_pages};
  // attention_plan has ended: it does not trigger early.
  for (uint32_t i = threadIdx.x; is_in_shared && i <= row_count; i += kBlockThreads)
    shared_pages[i] = __ldcg(args.row_pages + i);
  __syncthreads();
  dependent_wait();
  // The host chose the step's heads so that all pages have room.
  const uint32_t page_count = min(row_pages[row_count], args.target.page_count);
  const uint32_t planes = args.target.head_count * 2;
  const uint32_t n = args.target.head_length, chunks = n / 8;
  for (uint32_t item = blockIdx.x; item < page_count * planes; item += gridDim.x) {
    const uint32_t page = item / planes;
    const uint32_t head = item % planes / 2;
    const bool is_value = item % 2 == 1;
    const uint32_t row = find_row(row_pages, row_count, page);
    const uint32_t index = page - row_pages[row];
    const StepRow* const step_row = args.step.rows + row;
    const uint32_t first_position = __ldcg(&step_row->first_position);
    const uint32_t end = first_position + __ldcg(&step_row->token_count);
    const uint32_t first_key = first_visible(first_position, args.window);
    if ((index + 1) * kPagePositions <= first_key) continue;
    const uint32_t number =
        __ldcg(args.step.page_tables + uint64_t{row} * args.step.page_table_stride + index);
    const uint8_t* const source =
        page_rows(args.pages, args.layer, number, args.first_head + head, is_value);
    auto* const target = reinterpret_cast<uint4*>(
        const_cast<uint8_t*>(page_rows(args.target, 0, page, head, is_value)));
    const uint32_t count = min(end - index * kPagePositions, kPagePositions) * chunks;
#pragma unroll 4
    for (uint32_t i = threadIdx.x; i < count; i += kBlockThreads)
      target[i] = expand_chunk<kFormat>(source, args.pages.row_bytes, i / chunks, i % chunks, n);
  }
}

cudaError_t expand(const ExpandArgs& args, const Launch& launch) {
  auto* const kernel =
      args.pages.format == KvFormat::kQ8_0    ? attention_expand_kernel<KvFormat::kQ8_0>
      : args.pages.format == KvFormat::kInt10 ? attention_expand_kernel<KvFormat::kInt10>
                                              : attention_expand_kernel<KvFormat::kFp8E4m3>;
  const uint32_t rows = args.step.row_count;
  const uint32_t bytes = rows <= kSharedRowsMax ? (rows + 1) * sizeof(uint32_t) : 0;
  const uint32_t blocks = static_cast<uint32_t>(launch.sm_count) * kSmBlocks;
  return launch_kernel(launch, dim3(blocks), dim3(kBlockThreads), bytes, 0, kernel, args);
}

}  // namespace

cudaError_t attention_prefill_expanded(const AttentionKernelArgs& args, const Launch& launch) {
  const AttentionPlan& plan = args.plan;
  const KvPages& pages = args.pages;
  if (!attention_prefill_has_warpgroup(pages.head_length, launch) ||
      pages.format == KvFormat::kF16 || plan.expanded_heads == 0 || plan.row_pages == nullptr)
    return cudaErrorInvalidValue;
  AttentionKernelArgs call = args;
  call.row_pages = plan.row_pages;
  call.layer = 0;
  call.pages.data = plan.expanded;
  call.pages.format = KvFormat::kF16;
  call.pages.row_bytes = pages.head_length * sizeof(uint16_t);
  for (uint32_t first = 0; first < pages.head_count; first += plan.expanded_heads) {
    const uint32_t heads = std::min(plan.expanded_heads, pages.head_count - first);
    call.pages.head_count = heads;
    call.pages.page_count = static_cast<uint32_t>(plan.expanded_bytes /
                                                  (heads * expanded_page_bytes(pages.head_length)));
    call.first_head = first * plan.group_heads;
    call.item_heads = heads * plan.group_heads;
    cudaError_t status = expand(
        {args.step, plan.row_pages, pages, args.layer, first, args.window, call.pages}, launch);
    if (status != cudaSuccess) return status;
    status = attention_prefill_warpgroup(call, launch);
    if (status != cudaSuccess) return status;
  }
  return cudaSuccess;
}

}  // namespace wcuda::kernels
