// attention_decode for steps of few rows: each row and key-value head has its own group of blocks.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/attention/attention.h"

namespace wcuda::kernels {

// Must be called once for each format and head length that has groups, before a graph is captured.
cudaError_t attention_decode_group_prepare(KvFormat format, uint32_t head_length);
// Serves plans with groups; called by attention_decode.
cudaError_t attention_decode_group(const AttentionKernelArgs& args, const Launch& launch);

}  // namespace wcuda::kernels
