#include "core/base/cpu.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace wcuda {

#if defined(__x86_64__)
// clang 14 cannot ask for F16C.
bool cpu_has_avx2() { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"); }
// Compilers cannot ask for AVX-VNNI everywhere. Its registers are those of AVX2.
bool cpu_has_avx_vnni() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  return cpu_has_avx2() && __get_cpuid_count(7, 1, &a, &b, &c, &d) != 0 && (a >> 4 & 1) != 0;
}
bool cpu_has_avx512() {
  return cpu_has_avx2() && __builtin_cpu_supports("avx512f") &&
         __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
         __builtin_cpu_supports("avx512dq");
}
bool cpu_has_avx512_vnni() { return cpu_has_avx512() && __builtin_cpu_supports("avx512vnni"); }
#else
bool cpu_has_avx2() { return false; }
bool cpu_has_avx_vnni() { return false; }
bool cpu_has_avx512() { return false; }
bool cpu_has_avx512_vnni() { return false; }
#endif

}  // namespace wcuda
