// Linear layers of more than 8 tokens: weights are read as packed tiles and turned to f16 operands
// in registers.
#pragma once

#include "kernels/linear/linear.h"
#include "kernels/ptx/launch.h"

namespace wcuda::kernels {

// Whether linear_batch can make this layer on this device: compute capability 9.0 and types that
// have a tile; gate and up of the same type.
bool linear_batch_supports(const LinearArgs& args, const Launch& launch);

// Scratch memory of any layer with up to `cols` inputs and `tokens` tokens, to the byte.
uint64_t linear_batch_scratch_bytes(uint32_t cols, uint32_t tokens);

// tokens is not 0. `scratch` has linear_batch_scratch_bytes(cols, tokens) bytes, aligned to 256.
// cudaErrorInvalidValue for arguments outside of the contract. With `is_invariant` a token's
// bits depend on its own x, the shapes and types of the matrices and the device, not on how many
// tokens there are, and are those of packed_gemm.
//
// Weights become f16: magnitudes from 2^-16 on keep 11 bits, those below 2^-27 vanish; 16384 and
// above (of F16: none) overflow.
cudaError_t linear_batch(const LinearArgs& args, bool is_invariant, void* scratch,
                         const Launch& launch);

}  // namespace wcuda::kernels
