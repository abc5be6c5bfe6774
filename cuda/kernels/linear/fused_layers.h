// fused_layers: linear layers of one token, each of which reads what the one ahead made, as one
// kernel: the output projection of attention, gate and up, down, and what follows them.
#pragma once

#include "kernels/linear/linear.h"
#include "kernels/ptx/launch.h"

namespace wcuda::kernels {

constexpr uint32_t kFusedLayersMax = 4;

// Whether these layers, one after the other, are layers that fused_layers supports:
// 2 to kFusedLayersMax of one token each, x of each but the first the only output of the one
// ahead, of types and shapes that it has kernels for, on a device of compute capability 9.0.
bool fused_layers_supports(const LinearArgs* layers, uint32_t count, const Launch& launch);

// Whether all CTAs of the kernel can be resident at once on the current device, as
// they must be: not where other processes may take multiprocessors of it.
bool fused_layers_has_device(const Launch& launch);

// Scratch memory of fused layers whose layers have up to rows_max inputs and outputs, and those
// that add to their outputs up to sum_rows_max outputs.
uint64_t fused_layers_scratch_bytes(uint32_t rows_max, uint32_t sum_rows_max);
// Sets the scratch memory up, once. Every launch of fused layers of the stream then leaves it as it
// was.
cudaError_t fused_layers_prepare(void* scratch, uint64_t scratch_bytes, const Launch& launch);

// Queues the layers; as linear_vector of each layer in turn, but for the order of
// sums where a layer has more than 4096 inputs. fused_layers_supports() them; cudaErrorInvalidValue
// where the scratch memory is too little.
cudaError_t fused_layers(const LinearArgs* layers, uint32_t count, void* scratch,
                         uint64_t scratch_bytes, const Launch& launch);

}  // namespace wcuda::kernels
