#include "core/base/cpu.h"

#include <cstring>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace wcuda {

#if defined(__x86_64__)
namespace {

enum Isa { kPortable, kAvx2, kAvxVnni, kAvx512 };

Isa largest_isa = kAvx512;

bool allows(Isa isa) { return isa <= largest_isa; }

}  // namespace

void limit_isa(const char* name) {
  const char* const names[] = {"portable", "avx2", "avxvnni"};
  for (int isa = kPortable; name != nullptr && isa < kAvx512; ++isa)
    if (std::strcmp(name, names[isa]) == 0) largest_isa = static_cast<Isa>(isa);
}

// clang 14 cannot ask for F16C.
bool cpu_has_avx2() {
  return allows(kAvx2) && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
}
// Compilers cannot ask for AVX-VNNI everywhere. Its registers are those of AVX2.
bool cpu_has_avx_vnni() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  return allows(kAvxVnni) && cpu_has_avx2() && __get_cpuid_count(7, 1, &a, &b, &c, &d) != 0 &&
         (a >> 4 & 1) != 0;
}
bool cpu_has_avx512() {
  return allows(kAvx512) && cpu_has_avx2() && __builtin_cpu_supports("avx512f") &&
         __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
         __builtin_cpu_supports("avx512dq");
}
bool cpu_has_avx512_vnni() { return cpu_has_avx512() && __builtin_cpu_supports("avx512vnni"); }
#else
void limit_isa(const char*) {}
bool cpu_has_avx2() { return false; }
bool cpu_has_avx_vnni() { return false; }
bool cpu_has_avx512() { return false; }
bool cpu_has_avx512_vnni() { return false; }
#endif

}  // namespace wcuda
