// What this processor can do, the operating system saving the registers included, up to what the
// environment variable WCUDA_MAX_ISA names: portable, avx2, avxvnni or avx512.
#pragma once

namespace wcuda {

// With FMA, and with F16C, which every processor that has AVX2 has.
bool cpu_has_avx2();
// AVX-VNNI besides.
bool cpu_has_avx_vnni();
// AVX-512 F, BW, VL and DQ, besides AVX2.
bool cpu_has_avx512();
// VNNI besides.
bool cpu_has_avx512_vnni();

}  // namespace wcuda
