// What this processor can do, the operating system saving the registers included.
#pragma once

namespace wcuda {

// Tests and benches call it before anything else: nothing wider than portable, avx2 or avxvnni is
// used from then on. NULL or another name: no limit.
void limit_isa(const char* name);

// With FMA, and with F16C, which every processor that has AVX2 has.
bool cpu_has_avx2();
// AVX-VNNI besides.
bool cpu_has_avx_vnni();
// AVX-512 F, BW, VL and DQ, besides AVX2.
bool cpu_has_avx512();
// VNNI besides.
bool cpu_has_avx512_vnni();

}  // namespace wcuda
