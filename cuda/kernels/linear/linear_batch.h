// Linear layers of more than 8 tokens. Packed tiles are converted to f16 operands in registers.
#pragma once

#include "kernels/linear/linear.h"
#include "kernels/ptx/launch.h"
#include "kernels/shared/input_order.h"

namespace wcuda::kernels {

// Returns whether linear_batch can compute this layer on this device. The compute capability must
// be 9.0, the types must have a tile, and gate and up must have the same type.
bool linear_batch_supports(const LinearArgs& args, const Launch& launch);

// Returns the bytes of scratch memory for any layer with up to `cols` inputs and `tokens` tokens.
uint64_t linear_batch_scratch_bytes(uint32_t cols, uint32_t tokens);

// tokens must not be 0. `scratch` has linear_batch_scratch_bytes(cols, tokens) bytes, aligned to
// 256. Returns cudaErrorInvalidValue for arguments that violate this. With `is_invariant`, a
// token's bits depend on its own x, the shapes and types of the matrices and the device, but not on
// the number of tokens, and equal those of packed_gemm.
//
// Weights are converted to f16. Magnitudes of at least 2^-16 keep 11 bits, and those below 2^-27
// become 0. Magnitudes of at least 16384 overflow, except in F16.
// If args.x is null, `scratch` holds activations that another kernel wrote to the place that
// linear_batch_operand returned.
cudaError_t linear_batch(const LinearArgs& args, bool is_invariant, void* scratch,
                         const Launch& launch);

// Sets where linear_batch with these arguments reads activations in `scratch`. Returns false if
// another kernel cannot write them: for several matrices, or if the inputs do not fill whole groups
// of 32. Those past the end, up to the operand's depth, must be 0.
bool linear_batch_operand(const LinearArgs& args, void* scratch, const Launch& launch,
                          HalfOperand* operand);

}  // namespace wcuda::kernels
