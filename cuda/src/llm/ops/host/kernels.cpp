// Chooses the table of inner loops for this processor.
#include "llm/ops/host/kernels.h"

#include <array>
#include <initializer_list>

#include "core/base/cpu.h"
#include "kernels/shared/iq_tables.h"

namespace wcuda::ops::host {

extern const Kernels kPortableKernels;
#if defined(__x86_64__)
extern const Kernels kAvx2Kernels;
extern const Kernels kAvxVnniKernels;
extern const Kernels kAvx512Kernels;
#endif

const Kernels* find_kernels(Isa isa) {
  if (isa == Isa::kPortable) return &kPortableKernels;
#if defined(__x86_64__)
  if (isa == Isa::kAvx2 && cpu_has_avx2()) return &kAvx2Kernels;
  if (isa == Isa::kAvxVnni && cpu_has_avx_vnni()) return &kAvxVnniKernels;
  if (isa == Isa::kAvx512 && cpu_has_avx512_vnni()) return &kAvx512Kernels;
#endif
  return nullptr;
}

const uint16_t* iq3_s_codes() { return quant::iq3_s_grid(); }

const uint32_t* iq3_s_levels() {
  static const std::array<uint32_t, 512> levels = [] {
    std::array<uint32_t, 512> table{};
    for (uint32_t i = 0; i < table.size(); ++i)
      for (uint32_t k = 0; k < 4; ++k)
        table[i] |= ((iq3_s_codes()[i] >> (4 * k) & 15u) * 2 + 1) << (8 * k);
    return table;
  }();
  return levels.data();
}

const Kernels& best_kernels() {
  for (const Isa isa : {Isa::kAvx512, Isa::kAvxVnni, Isa::kAvx2})
    if (const Kernels* kernels = find_kernels(isa)) return *kernels;
  return kPortableKernels;
}

}  // namespace wcuda::ops::host
