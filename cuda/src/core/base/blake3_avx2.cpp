// BLAKE3 of 8 inputs at a time, compiled for AVX2.
#include "core/base/blake3_lanes.h"

namespace wcuda::blake3 {

void hash_many_avx2(const ManyArgs& args) {
  typedef uint32_t Vector __attribute__((vector_size(32)));
  hash_lanes<Vector>(args);
}

}  // namespace wcuda::blake3
