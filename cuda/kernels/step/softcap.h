// softcap: values = softcap * tanh(values / softcap) in place, for the logits of some families.
#pragma once

#include <cstdint>

#include "kernels/ptx/launch.h"

namespace wcuda::kernels {

// values (count) f32; softcap > 0. Bytes moved: 4 read and 4 written per value.
cudaError_t softcap(float* values, uint64_t count, float softcap, const Launch& launch);

}  // namespace wcuda::kernels
