// ingest: deals the inputs of a step out, from the block in which they came over the bus. Their
// sizes and places lie in the block, so that a captured launch serves every step.
#pragma once

#include "kernels/ptx/launch.h"
#include "kernels/shared/step_inputs.h"

namespace wcuda::kernels {

cudaError_t ingest(const IngestArgs& args, const Launch& launch);

}  // namespace wcuda::kernels
