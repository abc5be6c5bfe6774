// BLAKE3 of 16 inputs at a time, compiled for AVX-512.
#include "core/base/blake3_lanes.h"

namespace wcuda::blake3 {

void hash_many_avx512(const ManyArgs& args) {
  typedef uint32_t Vector __attribute__((vector_size(64)));
  hash_lanes<Vector>(args);
}

}  // namespace wcuda::blake3
