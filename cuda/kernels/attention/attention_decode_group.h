// attention_decode for steps of few rows: each row and key-value head has its own group of blocks.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/attention/attention.h"

namespace wcuda::kernels {

// Once for each format and head length that has groups, before a capture.
cudaError_t attention_decode_group_prepare(KvFormat format, uint32_t head_length);
// For plans with groups; attention_decode calls it.
cudaError_t attention_decode_group(const AttentionKernelArgs& args, const Launch& launch);

}  // namespace wcuda::kernels
