// WGMMA: matrix multiply-accumulate of a warpgroup (four warps, the first a multiple of 4) on
// Hopper: D (64 x N) += A (64 x 16) * B (16 x N), f16 operands and f32 sums. Only for .cu files.
//
// B is in shared memory. A is there too, or in registers with the layout of operand A in mma.cuh
// (warp w of the group has rows 16w …). D: of every 8 columns, lane 4g + t of warp w holds columns
// 2t and 2t + 1 of rows 16w + g and 16w + g + 8. The instructions run asynchronously:
//
//   wgmma_fence()             earlier writes to operand and sum registers are complete
//   wgmma_…()                 any number
//   wgmma_commit()            closes a group
//   wgmma_wait<n>()           waits until at most n groups are in flight
//   accumulator_fence(sums)   keeps the compiler from moving uses of the sums across
//
// Shared operands are panels of 64 elements: a row is 128 bytes; its 16-byte chunk c is stored at
// chunk c ^ (row % 8) (the 128-byte swizzle). Groups of 8 rows are 1024 bytes and aligned to that.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

// WGMMA and setmaxnreg exist only with architecture-specific features (sm_90a).
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define WCUDA_HAS_WARPGROUPS 1
#else
#define WCUDA_HAS_WARPGROUPS 0
#endif

namespace wcuda::kernels {

#if WCUDA_HAS_WARPGROUPS

__device__ __forceinline__ void wgmma_fence() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void wgmma_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
template <int kPending>
__device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}
template <int kCount>
__device__ __forceinline__ void accumulator_fence(float (&sums)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(sums[i])::"memory");
}

// Lower or raise the registers per thread of the whole warpgroup.
template <uint32_t kRegisters>
__device__ __forceinline__ void registers_release() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <uint32_t kRegisters>
__device__ __forceinline__ void registers_acquire() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

// Returns the descriptor of a shared operand at `address` with the 128-byte swizzle. panel_bytes:
// distance of panels (16 if only one is read). Offsets added to a descriptor count 16 bytes.
__device__ __forceinline__ uint64_t wgmma_descriptor(uint32_t address, uint32_t panel_bytes) {
  return (uint64_t{address & 0x3ffff} >> 4) | uint64_t{panel_bytes >> 4} << 16 |
         uint64_t{1024 >> 4} << 32 | uint64_t{1} << 62;
}

#define WCUDA_SUMS_8(d, i)                                                              \
  "+f"((d)[i]), "+f"((d)[i + 1]), "+f"((d)[i + 2]), "+f"((d)[i + 3]), "+f"((d)[i + 4]), \
      "+f"((d)[i + 5]), "+f"((d)[i + 6]), "+f"((d)[i + 7])
#define WCUDA_SUMS_16(d, i) WCUDA_SUMS_8(d, i), WCUDA_SUMS_8(d, i + 8)
#define WCUDA_SUMS_32(d, i) WCUDA_SUMS_16(d, i), WCUDA_SUMS_16(d, i + 16)
#define WCUDA_SUMS_64(d, i) WCUDA_SUMS_32(d, i), WCUDA_SUMS_32(d, i + 32)
#define WCUDA_SUMS_128(d, i) WCUDA_SUMS_64(d, i), WCUDA_SUMS_64(d, i + 64)
#define WCUDA_LIST_8 "%0, %1, %2, %3, %4, %5, %6, %7"
#define WCUDA_LIST_16 WCUDA_LIST_8 ", %8, %9, %10, %11, %12, %13, %14, %15"
#define WCUDA_LIST_32 \
  WCUDA_LIST_16       \
  ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define WCUDA_LIST_64                                                                     \
  WCUDA_LIST_32                                                                           \
  ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48" \
  ", %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"

#define WCUDA_LIST_128                                                             \
  WCUDA_LIST_64                                                                    \
  ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76"              \
  ", %77, %78, %79, %80, %81, %82, %83, %84, %85, %86, %87, %88, %89"              \
  ", %90, %91, %92, %93, %94, %95, %96, %97, %98, %99, %100, %101, %102"           \
  ", %103, %104, %105, %106, %107, %108, %109, %110, %111, %112, %113, %114, %115" \
  ", %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"

// sums += a * b with A in registers. kTransposed: B is stored as (16, kN) with N contiguous;
// otherwise as (kN, 16) with k contiguous.
#define WCUDA_WGMMA_REGISTERS(n, list, operands, a0, a1, a2, a3, d, t)                            \
  asm volatile("wgmma.mma_async.sync.aligned.m64n" n "k16.f32.f16.f16 {" list "}, {%" a0 ", %" a1 \
               ", %" a2 ", %" a3 "}, %" d ", 1, 1, 1, %" t ";"                                    \
               : operands                                                                         \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "n"(kTransposed ? 1 : 0))
template <uint32_t kN, bool kTransposed>
__device__ __forceinline__ void wgmma(float (&sums)[kN / 2], const uint32_t* a, uint64_t b) {
  static_assert(kN == 16 || kN == 32 || kN == 64 || kN == 128 || kN == 256);
  if constexpr (kN == 16)
    WCUDA_WGMMA_REGISTERS("16", WCUDA_LIST_8, WCUDA_SUMS_8(sums, 0), "8", "9", "10", "11", "12",
                          "13");
  else if constexpr (kN == 32)
    WCUDA_WGMMA_REGISTERS("32", WCUDA_LIST_16, WCUDA_SUMS_16(sums, 0), "16", "17", "18", "19", "20",
                          "21");
  else if constexpr (kN == 64)
    WCUDA_WGMMA_REGISTERS("64", WCUDA_LIST_32, WCUDA_SUMS_32(sums, 0), "32", "33", "34", "35", "36",
                          "37");
  else if constexpr (kN == 128)
    WCUDA_WGMMA_REGISTERS("128", WCUDA_LIST_64, WCUDA_SUMS_64(sums, 0), "64", "65", "66", "67",
                          "68", "69");
  else
    WCUDA_WGMMA_REGISTERS("256", WCUDA_LIST_128, WCUDA_SUMS_128(sums, 0), "128", "129", "130",
                          "131", "132", "133");
}

// sums (64, 128) = or += a * b, both in shared memory with k contiguous.
__device__ __forceinline__ void wgmma_shared_128(float (&sums)[64], uint64_t a, uint64_t b,
                                                 bool adds) {
  asm volatile(
      "{\n"
      ".reg .pred adds;\n"
      "setp.ne.b32 adds, %66, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 {" WCUDA_LIST_64
      "}, %64, %65, adds, 1, 1, 0, 0;\n"
      "}\n"
      : WCUDA_SUMS_64(sums, 0)
      : "l"(a), "l"(b), "r"(static_cast<uint32_t>(adds)));
}

#undef WCUDA_WGMMA_REGISTERS
#undef WCUDA_SUMS_8
#undef WCUDA_SUMS_16
#undef WCUDA_SUMS_32
#undef WCUDA_SUMS_64
#undef WCUDA_SUMS_128
#undef WCUDA_LIST_8
#undef WCUDA_LIST_16
#undef WCUDA_LIST_32
#undef WCUDA_LIST_64
#undef WCUDA_LIST_128

#endif  // WCUDA_HAS_WARPGROUPS

}  // namespace wcuda::kernels
