// input_scatter: copies the inputs of a step from the one block that the host sent to their arrays.
// The block's header holds their sizes and offsets, so that one captured launch serves every step.
#pragma once

#include "kernels/ptx/launch.h"
#include "kernels/shared/step_inputs.h"

namespace wcuda::kernels {

cudaError_t input_scatter(const InputScatterArgs& args, const Launch& launch);

}  // namespace wcuda::kernels
