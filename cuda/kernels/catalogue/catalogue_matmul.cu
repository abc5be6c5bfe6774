// c (batch, m, n) = act(a (batch, m, k) * b (batch, k, n) + bias (n)), row-major, any sizes, f32
// sums in ascending k. A block of 256 threads computes a tile of 128 x 128, each thread 8 x 8 of
// it, so that 16 loads from shared memory serve 64 multiplications. Bytes moved: at least a, b and
// c.
#include "kernels/catalogue/catalogue_launch.h"
#include "kernels/shared/point_ops.h"

namespace wcuda::kernels {
namespace {

constexpr int kTile = 128;
constexpr int kDepth = 16;
constexpr int kEach = 8;
constexpr int kSide = kTile / kEach;  // 16 x 16 threads
constexpr int kBlockThreads = kSide * kSide;
constexpr int64_t kGridMax = 65535;

enum class Act { kNone, kRelu, kGelu };

struct MatmulParams {
  const void* a;
  const void* b;
  const void* bias;  // may be null
  void* c;
  int64_t batch, m, k, n;
  int64_t b_stride;  // between the matrices of consecutive batches
};

template <class T, Act kAct>
__global__ void __launch_bounds__(kBlockThreads) matmul_kernel(const MatmulParams p) {
  __shared__ float a_tile[kDepth][kTile + 4];
  __shared__ float b_tile[kDepth][kTile];
  const int tx = threadIdx.x % kSide, ty = threadIdx.x / kSide;
  const int64_t col0 = int64_t{blockIdx.x} * kTile;
  for (int64_t batch = blockIdx.z; batch < p.batch; batch += gridDim.z)
    for (int64_t row0 = int64_t{blockIdx.y} * kTile; row0 < p.m;
         row0 += int64_t{gridDim.y} * kTile) {
      const T* const a = static_cast<const T*>(p.a) + batch * p.m * p.k;
      const T* const b = static_cast<const T*>(p.b) + batch * p.b_stride;
      float sum[kEach][kEach] = {};
      for (int64_t depth0 = 0; depth0 < p.k; depth0 += kDepth) {
#pragma unroll
        for (int e = 0; e < kTile * kDepth / kBlockThreads; ++e) {
          const int at = e * kBlockThreads + threadIdx.x;
          const int64_t row = row0 + at / kDepth, depth = depth0 + at % kDepth;
          a_tile[at % kDepth][at / kDepth] =
              row < p.m && depth < p.k ? to_float(a[row * p.k + depth]) : 0.0f;
          const int64_t b_depth = depth0 + at / kTile, col = col0 + at % kTile;
          b_tile[at / kTile][at % kTile] =
              b_depth < p.k && col < p.n ? to_float(b[b_depth * p.n + col]) : 0.0f;
        }
        __syncthreads();
#pragma unroll
        for (int depth = 0; depth < kDepth; ++depth) {
          float x[kEach], y[kEach];
#pragma unroll
          for (int i = 0; i < kEach; i += 4) {
            const float4 four = *reinterpret_cast<const float4*>(&a_tile[depth][ty * kEach + i]);
            x[i] = four.x, x[i + 1] = four.y, x[i + 2] = four.z, x[i + 3] = four.w;
          }
          // Two halves of 4 columns each: threads of a quarter warp access different banks.
#pragma unroll
          for (int i = 0; i < kEach; i += 4) {
            const float4 four =
                *reinterpret_cast<const float4*>(&b_tile[depth][i / 4 * kTile / 2 + tx * 4]);
            y[i] = four.x, y[i + 1] = four.y, y[i + 2] = four.z, y[i + 3] = four.w;
          }
#pragma unroll
          for (int i = 0; i < kEach; ++i)
#pragma unroll
            for (int j = 0; j < kEach; ++j) sum[i][j] = fmaf(x[i], y[j], sum[i][j]);
        }
        __syncthreads();
      }
#pragma unroll
      for (int i = 0; i < kEach; ++i)
#pragma unroll
        for (int j = 0; j < kEach; ++j) {
          const int64_t row = row0 + ty * kEach + i;
          const int64_t col = col0 + j / 4 * kTile / 2 + tx * 4 + j % 4;
          if (row >= p.m || col >= p.n) continue;
          float value = sum[i][j];
          if (p.bias) value += load<T>(p.bias, col);
          if (kAct == Act::kRelu) value = value > 0.0f ? value : (value == value ? 0.0f : value);
          if (kAct == Act::kGelu) value = gelu(value);
          store<T>(p.c, (batch * p.m + row) * p.n + col, value);
        }
    }
}

template <Act kAct>
cudaError_t matmul(const MatmulParams& params, Dtype type, cudaStream_t stream) {
  if (params.batch == 0 || params.m == 0 || params.n == 0) return cudaSuccess;
  const auto tiles = [](int64_t count) { return (count + kTile - 1) / kTile; };
  const auto capped = [](int64_t count) {
    return static_cast<uint32_t>(count < kGridMax ? count : kGridMax);
  };
  const dim3 grid(static_cast<uint32_t>(tiles(params.n)), capped(tiles(params.m)),
                  capped(params.batch));
  if (type == Dtype::kF32)
    matmul_kernel<float, kAct><<<grid, kBlockThreads, 0, stream>>>(params);
  else if (type == Dtype::kF16)
    matmul_kernel<Half, kAct><<<grid, kBlockThreads, 0, stream>>>(params);
  else
    matmul_kernel<Bf16, kAct><<<grid, kBlockThreads, 0, stream>>>(params);
  return cudaPeekAtLastError();
}

}  // namespace

cudaError_t catalogue_matmul(CatalogueOp op, const CatalogueArgs& args, cudaStream_t stream) {
  const int64_t* const dim = args.dim;
  if (op == CatalogueOp::kMatmul)
    return matmul<Act::kNone>({args.in[0], args.in[1], nullptr, args.out[0], dim[0], dim[1], dim[2],
                               dim[3], dim[2] * dim[3]},
                              args.type, stream);
  const MatmulParams params{
      args.in[0],  args.in[1], op == CatalogueOp::kMatmulRelu ? nullptr : args.in[2],
      args.out[0], 1,          dim[0],
      dim[1],      dim[2],     0};
  switch (op) {
    case CatalogueOp::kLinear:
      return matmul<Act::kNone>(params, args.type, stream);
    case CatalogueOp::kLinearRelu:
    case CatalogueOp::kMatmulRelu:
      return matmul<Act::kRelu>(params, args.type, stream);
    case CatalogueOp::kLinearGelu:
      return matmul<Act::kGelu>(params, args.type, stream);
    default:
      return cudaErrorInvalidValue;
  }
}

}  // namespace wcuda::kernels
