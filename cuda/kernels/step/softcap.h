// softcap: values = softcap * tanh(values / softcap), in place: logits of some families.
#pragma once

#include <cstdint>

#include "kernels/ptx/launch.h"

namespace wcuda::kernels {

// values (count) f32; softcap above 0. Reads and writes 4 bytes a value.
cudaError_t softcap(float* values, uint64_t count, float softcap, const Launch& launch);

}  // namespace wcuda::kernels
