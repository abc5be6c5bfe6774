// Linear layers of many tokens: weights are read as packed tiles, turned to f16 operands in
// registers once for up to 256 tokens, and multiplied on tensor cores: with WGMMA, or where there
// is no code for it by packed_gemm_mma.h.
#pragma once

#include "kernels/linear/linear.h"
#include "kernels/ptx/launch.h"

namespace wcuda::kernels {

// Whether packed_gemm computes this layer on this device: types that have a tile; gate and up of
// the same type where there is code for WGMMA, which runs on compute capability 9.0 alone.
bool packed_gemm_supports(const LinearArgs& args, const Launch& launch);

// Memory for the activations of any layer of up to `cols` inputs and `tokens` tokens, to the byte.
uint64_t packed_gemm_input_bytes(uint32_t cols, uint32_t tokens);
// launch.scratch of any layer.
uint64_t packed_gemm_scratch_bytes(const Launch& launch);

// tokens is not 0. `input` has packed_gemm_input_bytes(cols, tokens) bytes, aligned to 256.
// cudaErrorInvalidValue for arguments outside of the contract. The same arguments give the same
// bits; those of a token depend on how many there are, with WGMMA. Weights become f16 as in
// linear_batch.
cudaError_t packed_gemm(const LinearArgs& args, void* input, const Launch& launch);

}  // namespace wcuda::kernels
