// fused_layers: computes consecutive linear layers of one token in one persistent kernel. Each
// layer reads the output of the previous one: output projection of attention, gate and up, down,
// and queries, keys and values of the next layer. fused_layers.cu and fused_params.cuh describe the
// algorithm.
#pragma once

#include "kernels/linear/linear.h"
#include "kernels/ptx/launch.h"

namespace wcuda::kernels {

constexpr uint32_t kFusedLayersMax = 4;

// Returns whether fused_layers supports these consecutive layers. There must be 2 to
// kFusedLayersMax, of one token. The x of each but the first must be the only output of the
// previous one. Types and shapes must be those that plan_persistent_layers() accepts, and the
// device of compute capability 9.0.
bool fused_layers_supports(const LinearArgs* layers, uint32_t count, const Launch& launch);

// Returns whether all CTAs of the kernel can be resident at once on the current device, which the
// kernel requires. They cannot if other processes may use the SMs (MPS).
bool fused_layers_has_device(const Launch& launch);

// Returns the bytes of scratch memory for layers of up to rows_max inputs and outputs. Layers that
// add to their output have up to sum_rows_max outputs.
uint64_t fused_layers_scratch_bytes(uint32_t rows_max, uint32_t sum_rows_max);
// Initialises the scratch memory, once. Each launch restores its initial state.
cudaError_t fused_layers_prepare(void* scratch, uint64_t scratch_bytes, const Launch& launch);

// Queues the layers. Results equal those of linear_vector for each layer, except for the order of
// sums in layers of more than 4096 inputs. Returns cudaErrorInvalidValue for layers that
// fused_layers_supports() rejects, and for too little scratch memory.
cudaError_t fused_layers(const LinearArgs* layers, uint32_t count, void* scratch,
                         uint64_t scratch_bytes, const Launch& launch);

}  // namespace wcuda::kernels
