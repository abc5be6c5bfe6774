// Which table of inner loops this processor runs.
#include "llm/ops/host/kernels.h"

namespace wcuda::ops::host {

extern const Kernels kPortableKernels;
#if defined(__x86_64__)
extern const Kernels kAvx2Kernels;
extern const Kernels kAvx512Kernels;
#endif

const Kernels* find_kernels(Isa isa) {
  if (isa == Isa::kPortable) return &kPortableKernels;
#if defined(__x86_64__)
  // These also ask whether the operating system saves the registers. F16C, of which clang 14 cannot
  // ask, is in every processor that has AVX2.
  const bool has_avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  if (isa == Isa::kAvx2 && has_avx2) return &kAvx2Kernels;
  const bool has_avx512 =
      has_avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512vnni");
  if (isa == Isa::kAvx512 && has_avx512) return &kAvx512Kernels;
#endif
  return nullptr;
}

const Kernels& best_kernels() {
  if (const Kernels* kernels = find_kernels(Isa::kAvx512)) return *kernels;
  if (const Kernels* kernels = find_kernels(Isa::kAvx2)) return *kernels;
  return kPortableKernels;
}

}  // namespace wcuda::ops::host
