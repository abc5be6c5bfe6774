// The catalogue's reductions over all elements and over rows. Over all elements: blocks reduce
// contiguous ranges to partial results in scratch memory, then one block reduces those. Over rows:
// one block per row. A thread takes every 256th element, and threads are joined by a tree, so that
// the order depends on the sizes alone.
#include "kernels/catalogue/catalogue_launch.h"
#include "kernels/shared/transformer_ops.h"

namespace wcuda::kernels {
namespace {

constexpr uint32_t kBlockThreads = 256;
constexpr uint32_t kWarps = kBlockThreads / 32;
constexpr int64_t kBlockElementsMin = 4096;  // fewer do not justify another block
constexpr int64_t kRowBlocksMax = 65536;

template <class Join, class V>
__device__ V block_join(V value) {
  __shared__ V of_warp[kWarps];
  for (int step = 16; step > 0; step /= 2)
    value = Join::join(value, __shfl_xor_sync(0xffffffffu, value, step));
  if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = value;
  __syncthreads();
  V result = of_warp[0];
  for (uint32_t warp = 1; warp < kWarps; ++warp) result = Join::join(result, of_warp[warp]);
  __syncthreads();
  return result;
}

struct BlockTeam {
  int64_t first, step;
  template <class Join, class V>
  __device__ V join(V value) const {
    return block_join<Join>(value);
  }
};

template <class Op, class T>
__global__ void __launch_bounds__(kBlockThreads)
    reduce_kernel(const CatalogueArgs args, const int64_t block_elements) {
  using Join = typename Op::Join;
  const int64_t begin = blockIdx.x * block_elements;
  const int64_t end = min(begin + block_elements, args.dim[0]);
  float value = Join::start();
  for (int64_t i = begin + threadIdx.x; i < end; i += kBlockThreads)
    value = Join::join(value, Op::Each::template at<T>(args, i));
  value = block_join<Join>(value);
  if (threadIdx.x == 0) args.scratch[blockIdx.x] = value;
}

template <class Op, class T>
__global__ void __launch_bounds__(kBlockThreads)
    reduce_end_kernel(const CatalogueArgs args, const int64_t block_count) {
  using Join = typename Op::Join;
  float value = Join::start();
  for (int64_t i = threadIdx.x; i < block_count; i += kBlockThreads)
    value = Join::join(value, args.scratch[i]);
  value = block_join<Join>(value);
  if (threadIdx.x == 0) store<T>(args.out[0], 0, value);
}

template <class Op, class T>
cudaError_t reduce_typed(const CatalogueArgs& args, cudaStream_t stream) {
  const int64_t count = args.dim[0];
  int64_t block_elements = (count + kReduceBlocksMax - 1) / kReduceBlocksMax;
  if (block_elements < kBlockElementsMin) block_elements = kBlockElementsMin;
  const int64_t blocks = (count + block_elements - 1) / block_elements;
  if (blocks != 0)
    reduce_kernel<Op, T>
        <<<static_cast<uint32_t>(blocks), kBlockThreads, 0, stream>>>(args, block_elements);
  reduce_end_kernel<Op, T><<<1, kBlockThreads, 0, stream>>>(args, blocks);
  return cudaPeekAtLastError();
}

template <class Op, class T>
__global__ void __launch_bounds__(kBlockThreads) row_kernel(const CatalogueArgs args) {
  const BlockTeam team{threadIdx.x, kBlockThreads};
  const int64_t rows = RowCount<Op>::of(args);
  for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) Op::template run<T>(args, row, team);
}

template <class Op, class T>
cudaError_t rows_typed(const CatalogueArgs& args, cudaStream_t stream) {
  const int64_t rows = RowCount<Op>::of(args);
  if (rows == 0) return cudaSuccess;
  const int64_t blocks = rows < kRowBlocksMax ? rows : kRowBlocksMax;
  row_kernel<Op, T><<<static_cast<uint32_t>(blocks), kBlockThreads, 0, stream>>>(args);
  return cudaPeekAtLastError();
}

struct Lowest {
  __device__ static int64_t join(int64_t a, int64_t b) { return a < b ? a : b; }
};

__global__ void __launch_bounds__(kBlockThreads)
    unknown_id_kernel(const int32_t* ids, int64_t count, int64_t vocab, int64_t* place) {
  int64_t lowest = count;
  for (int64_t i = threadIdx.x; i < count && lowest == count; i += kBlockThreads)
    if (ids[i] < 0 || ids[i] >= vocab) lowest = i;
  lowest = block_join<Lowest>(lowest);
  if (threadIdx.x == 0) *place = lowest;
}

#define WCUDA_BY_TYPE(function, Op)                                     \
  return args.type == Dtype::kF32   ? function<Op, float>(args, stream) \
         : args.type == Dtype::kF16 ? function<Op, Half>(args, stream)  \
                                    : function<Op, Bf16>(args, stream)

}  // namespace

cudaError_t catalogue_reduce(CatalogueOp op, const CatalogueArgs& args, cudaStream_t stream) {
  switch (op) {
#define WCUDA_OP(name)       \
  case CatalogueOp::k##name: \
    WCUDA_BY_TYPE(reduce_typed, reduce::name);
    WCUDA_REDUCE_OPS(WCUDA_OP)
#undef WCUDA_OP
    default:
      return cudaErrorInvalidValue;
  }
}

cudaError_t catalogue_rows(CatalogueOp op, const CatalogueArgs& args, cudaStream_t stream) {
  switch (op) {
#define WCUDA_OP(name)       \
  case CatalogueOp::k##name: \
    WCUDA_BY_TYPE(rows_typed, row::name);
    WCUDA_ROW_OPS(WCUDA_OP)
#undef WCUDA_OP
    default:
      return cudaErrorInvalidValue;
  }
}

cudaError_t catalogue_unknown_id(const int32_t* ids, int64_t count, int64_t vocab, int64_t* place,
                                 cudaStream_t stream) {
  unknown_id_kernel<<<1, kBlockThreads, 0, stream>>>(ids, count, vocab, place);
  return cudaPeekAtLastError();
}

}  // namespace wcuda::kernels
