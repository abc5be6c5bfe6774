// Warpgroup products of Hopper (sm_90a): operands in shared memory, rows of 128 bytes with the
// 16-byte chunks of row r in order c ^ (r % 8). Only for .cu files.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

// wgmma and setmaxnreg are there only under the architecture's own features.
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define WCUDA_HAS_WARPGROUPS 1
#else
#define WCUDA_HAS_WARPGROUPS 0
#endif

namespace wcuda::kernels {

#if WCUDA_HAS_WARPGROUPS

// ---- barriers in shared memory ----

__device__ __forceinline__ void barrier_init(uint32_t barrier, uint32_t arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}
__device__ __forceinline__ void barrier_arrive(uint32_t barrier) {
  asm volatile("mbarrier.arrive.release.cta.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
// Arrives once this thread's copies so far have ended.
__device__ __forceinline__ void barrier_arrive_after_copies(uint32_t barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}
__device__ __forceinline__ void barrier_wait(uint32_t barrier, uint32_t parity) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "again:\n"
      "mbarrier.try_wait.parity.acquire.cta.shared::cta.b64 done, [%0], %1;\n"
      "@done bra end;\n"
      "bra again;\n"
      "end:\n"
      "}\n" ::"r"(barrier),
      "r"(parity)
      : "memory");
}

// What other threads stored in shared memory may now be read by products.
__device__ __forceinline__ void fence_shared_for_products() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// ---- products ----

__device__ __forceinline__ void products_begin() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void products_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
template <int kPending>
__device__ __forceinline__ void products_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}
// Keeps the compiler from moving what reads or writes the sums across a wait.
template <int kCount>
__device__ __forceinline__ void products_settle(float (&sums)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(sums[i])::"memory");
}

// Describes a matrix at `address` (its 8-row groups aligned to 1024 bytes) of 64-element panels
// `panel_bytes` apart.
__device__ __forceinline__ uint64_t describe(uint32_t address, uint32_t panel_bytes) {
  return (uint64_t{address & 0x3ffff} >> 4) | uint64_t{panel_bytes >> 4} << 16 |
         uint64_t{1024 >> 4} << 32 | uint64_t{1} << 62;
}

// sums (64, 128) = or += a (64, 16) * b, both with their 16 columns contiguous: b is (128, 16).
__device__ __forceinline__ void add_product_128(float (&sums)[64], uint64_t a, uint64_t b,
                                                bool adds) {
  asm volatile(
      "{\n"
      ".reg .pred adds;\n"
      "setp.ne.b32 adds, %66, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, "
      "%8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, "
      "%24, %25, %26, %27, %28, %29, %30, %31, "
      "%32, %33, %34, %35, %36, %37, %38, %39, "
      "%40, %41, %42, %43, %44, %45, %46, %47, "
      "%48, %49, %50, %51, %52, %53, %54, %55, "
      "%56, %57, %58, %59, %60, %61, %62, %63}, "
      "%64, %65, adds, 1, 1, 0, 0;\n"
      "}\n"
      : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3]), "+f"(sums[4]), "+f"(sums[5]),
        "+f"(sums[6]), "+f"(sums[7]), "+f"(sums[8]), "+f"(sums[9]), "+f"(sums[10]), "+f"(sums[11]),
        "+f"(sums[12]), "+f"(sums[13]), "+f"(sums[14]), "+f"(sums[15]), "+f"(sums[16]),
        "+f"(sums[17]), "+f"(sums[18]), "+f"(sums[19]), "+f"(sums[20]), "+f"(sums[21]),
        "+f"(sums[22]), "+f"(sums[23]), "+f"(sums[24]), "+f"(sums[25]), "+f"(sums[26]),
        "+f"(sums[27]), "+f"(sums[28]), "+f"(sums[29]), "+f"(sums[30]), "+f"(sums[31]),
        "+f"(sums[32]), "+f"(sums[33]), "+f"(sums[34]), "+f"(sums[35]), "+f"(sums[36]),
        "+f"(sums[37]), "+f"(sums[38]), "+f"(sums[39]), "+f"(sums[40]), "+f"(sums[41]),
        "+f"(sums[42]), "+f"(sums[43]), "+f"(sums[44]), "+f"(sums[45]), "+f"(sums[46]),
        "+f"(sums[47]), "+f"(sums[48]), "+f"(sums[49]), "+f"(sums[50]), "+f"(sums[51]),
        "+f"(sums[52]), "+f"(sums[53]), "+f"(sums[54]), "+f"(sums[55]), "+f"(sums[56]),
        "+f"(sums[57]), "+f"(sums[58]), "+f"(sums[59]), "+f"(sums[60]), "+f"(sums[61]),
        "+f"(sums[62]), "+f"(sums[63])
      : "l"(a), "l"(b), "r"(static_cast<uint32_t>(adds)));
}

// sums (64, 128) += a (64, 16) * b; b is (16, 128) with its columns contiguous.
__device__ __forceinline__ void add_product_128(float (&sums)[64], const uint32_t (&a)[4],
                                                uint64_t b) {
  asm volatile(
      "{\n"
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, "
      "%8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, "
      "%24, %25, %26, %27, %28, %29, %30, %31, "
      "%32, %33, %34, %35, %36, %37, %38, %39, "
      "%40, %41, %42, %43, %44, %45, %46, %47, "
      "%48, %49, %50, %51, %52, %53, %54, %55, "
      "%56, %57, %58, %59, %60, %61, %62, %63}, "
      "{%64, %65, %66, %67}, %68, 1, 1, 1, 1;\n"
      "}\n"
      : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3]), "+f"(sums[4]), "+f"(sums[5]),
        "+f"(sums[6]), "+f"(sums[7]), "+f"(sums[8]), "+f"(sums[9]), "+f"(sums[10]), "+f"(sums[11]),
        "+f"(sums[12]), "+f"(sums[13]), "+f"(sums[14]), "+f"(sums[15]), "+f"(sums[16]),
        "+f"(sums[17]), "+f"(sums[18]), "+f"(sums[19]), "+f"(sums[20]), "+f"(sums[21]),
        "+f"(sums[22]), "+f"(sums[23]), "+f"(sums[24]), "+f"(sums[25]), "+f"(sums[26]),
        "+f"(sums[27]), "+f"(sums[28]), "+f"(sums[29]), "+f"(sums[30]), "+f"(sums[31]),
        "+f"(sums[32]), "+f"(sums[33]), "+f"(sums[34]), "+f"(sums[35]), "+f"(sums[36]),
        "+f"(sums[37]), "+f"(sums[38]), "+f"(sums[39]), "+f"(sums[40]), "+f"(sums[41]),
        "+f"(sums[42]), "+f"(sums[43]), "+f"(sums[44]), "+f"(sums[45]), "+f"(sums[46]),
        "+f"(sums[47]), "+f"(sums[48]), "+f"(sums[49]), "+f"(sums[50]), "+f"(sums[51]),
        "+f"(sums[52]), "+f"(sums[53]), "+f"(sums[54]), "+f"(sums[55]), "+f"(sums[56]),
        "+f"(sums[57]), "+f"(sums[58]), "+f"(sums[59]), "+f"(sums[60]), "+f"(sums[61]),
        "+f"(sums[62]), "+f"(sums[63])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

// sums (64, 64) += a (64, 16) * b; b is (16, 64) with its columns contiguous.
__device__ __forceinline__ void add_product_64(float (&sums)[32], const uint32_t (&a)[4],
                                               uint64_t b) {
  asm volatile(
      "{\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, "
      "%8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, "
      "%24, %25, %26, %27, %28, %29, %30, %31}, "
      "{%32, %33, %34, %35}, %36, 1, 1, 1, 1;\n"
      "}\n"
      : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3]), "+f"(sums[4]), "+f"(sums[5]),
        "+f"(sums[6]), "+f"(sums[7]), "+f"(sums[8]), "+f"(sums[9]), "+f"(sums[10]), "+f"(sums[11]),
        "+f"(sums[12]), "+f"(sums[13]), "+f"(sums[14]), "+f"(sums[15]), "+f"(sums[16]),
        "+f"(sums[17]), "+f"(sums[18]), "+f"(sums[19]), "+f"(sums[20]), "+f"(sums[21]),
        "+f"(sums[22]), "+f"(sums[23]), "+f"(sums[24]), "+f"(sums[25]), "+f"(sums[26]),
        "+f"(sums[27]), "+f"(sums[28]), "+f"(sums[29]), "+f"(sums[30]), "+f"(sums[31])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

#endif  // WCUDA_HAS_WARPGROUPS

}  // namespace wcuda::kernels
