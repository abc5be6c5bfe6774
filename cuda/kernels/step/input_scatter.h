// input_scatter: copies the inputs of a step from the block in which they came over the bus to
// their arrays. Their sizes and places lie in the block, so that a captured launch serves every
// step.
#pragma once

#include "kernels/ptx/launch.h"
#include "kernels/shared/step_inputs.h"

namespace wcuda::kernels {

cudaError_t input_scatter(const InputScatterArgs& args, const Launch& launch);

}  // namespace wcuda::kernels
