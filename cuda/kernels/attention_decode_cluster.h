// attention_decode for steps of few rows, whose blocks hand parts to each other in clusters.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/attention_decode.h"

namespace wcuda::kernels {

// Clusters need compute capability 9.0 and a head length that is compiled.
bool decode_has_clusters(uint32_t head_length, const Launch& launch);
// Once for each format and head length that has clusters, before a capture.
cudaError_t attention_decode_cluster_prepare(KvFormat format, uint32_t head_length);
// For plans whose cluster_blocks is not 0; attention_decode calls it.
cudaError_t attention_decode_cluster(const AttentionKernelArgs& args, const Launch& launch);

}  // namespace wcuda::kernels
