// Linear layers of many tokens. The kernels read weights as packed tiles, convert them to f16
// operands in registers once for up to 256 tokens, and multiply on tensor cores with WGMMA. Code
// without WGMMA uses packed_gemm_mma.h.
#pragma once

#include "kernels/linear/linear.h"
#include "kernels/linear/packed_gemm_params.h"
#include "kernels/linear/token_groups.h"
#include "kernels/ptx/launch.h"

namespace wcuda::kernels {

// Returns whether packed_gemm computes this layer on this device. The types need a tile. Code for
// WGMMA runs only on compute capability 9.0 and needs gate and up of the same type.
bool packed_gemm_supports(const LinearArgs& args, const Launch& launch);

// Returns the bytes for the activations of any layer of up to `cols` inputs and `tokens` tokens.
uint64_t packed_gemm_input_bytes(uint32_t cols, uint32_t tokens);
// Returns the bytes of launch.scratch that any layer needs.
uint64_t packed_gemm_scratch_bytes(const Launch& launch);

// tokens must not be 0. `input` has packed_gemm_input_bytes(cols, tokens) bytes, aligned to 256.
// Returns cudaErrorInvalidValue for arguments that violate this. The same arguments give the same
// bits. With WGMMA, the bits of a token also depend on the number of tokens. With `is_invariant`
// they do not, and equal those of linear_batch. Weights are converted to f16 as in linear_batch.
// With an operand, gate and up write f16 activations there instead of outputs[0]; they have no
// biases, and rows in whole K-tiles. If args.x is null, `input` holds activations that another
// kernel wrote to the place that packed_gemm_operand returned.
cudaError_t packed_gemm(const LinearArgs& args, bool is_invariant, void* input,
                        const Launch& launch, const GemmOperand& operand = {});

// Sets where a launch of packed_gemm with these arguments reads activations in `input`. Returns
// false if another kernel cannot write it: without WGMMA, for several matrices, or if the inputs do
// not fill whole groups of 32. Those past the end, up to the operand's depth, must be 0.
bool packed_gemm_operand(const LinearArgs& args, bool is_invariant, void* input,
                         const Launch& launch, HalfOperand* operand);

// Returns the bytes for the activations of a grouped layer.
uint64_t packed_gemm_grouped_input_bytes(uint32_t cols, uint32_t tokens, uint32_t groups);

// A layer whose groups of tokens each multiply matrices of their own, as experts do: one launch for
// all, and only the device need know the sizes of the groups. matrices[m] is the first of
// groups.count matrices of one type, shape and scale factor that follow each other in memory, and
// biases[m] is (groups.count, rows). `input` has packed_gemm_grouped_input_bytes() bytes, aligned
// to 256; launch.scratch is not used. Outputs of tokens without a group stay as they are. A token's
// bits depend only on its own x and matrices. Errors as of packed_gemm, and for no group or more
// than kTokenGroupsMax.
cudaError_t packed_gemm_grouped(const LinearArgs& args, const TokenGroups& groups, void* input,
                                const Launch& launch);

}  // namespace wcuda::kernels
