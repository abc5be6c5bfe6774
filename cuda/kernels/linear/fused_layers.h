// fused_layers: consecutive linear layers of one token as one persistent kernel; each reads the
// output of the one before: the output projection of attention, gate and up, down, and the next
// layer's queries, keys and values. How it works: fused_layers.cu, fused_params.cuh.
#pragma once

#include "kernels/linear/linear.h"
#include "kernels/ptx/launch.h"

namespace wcuda::kernels {

constexpr uint32_t kFusedLayersMax = 4;

// Whether fused_layers supports these consecutive layers: 2 to kFusedLayersMax of one token each,
// the x of each but the first being the only output of the one before, of types and shapes that
// plan_persistent_layers() accepts, on a device of compute capability 9.0.
bool fused_layers_supports(const LinearArgs* layers, uint32_t count, const Launch& launch);

// Whether all CTAs of the kernel can be resident at once on the current device, as they must be.
// They cannot where other processes may use its multiprocessors (MPS).
bool fused_layers_has_device(const Launch& launch);

// Scratch memory for layers of up to rows_max inputs and outputs; those that add to their output
// have up to sum_rows_max outputs.
uint64_t fused_layers_scratch_bytes(uint32_t rows_max, uint32_t sum_rows_max);
// Initialises the scratch memory, once. Each launch in the stream leaves it as it found it.
cudaError_t fused_layers_prepare(void* scratch, uint64_t scratch_bytes, const Launch& launch);

// Queues the layers. Results are those of linear_vector for each layer, but for the order of sums
// where a layer has more than 4096 inputs. cudaErrorInvalidValue for layers that
// fused_layers_supports() rejects and for too little scratch memory.
cudaError_t fused_layers(const LinearArgs* layers, uint32_t count, void* scratch,
                         uint64_t scratch_bytes, const Launch& launch);

}  // namespace wcuda::kernels
