// ingest: deals the inputs of a step out, from the block in which they came over the bus. Their
// sizes and places lie in the block, so that a captured launch serves every step.
#pragma once

#include "kernels/ptx/launch.h"

namespace wcuda::kernels {

constexpr uint32_t kIngestSegmentsMax = 12;

// At the start of the block. Rows of a segment have equal lengths.
struct IngestHeader {
  struct Segment {
    uint32_t row_count;
    uint32_t row_bytes;  // a multiple of 4; rows lie at multiples of align_up(row_bytes, 16)
    uint32_t offset;     // of the first row, from the block; a multiple of 16
    uint32_t reserved;
  };
  Segment segments[kIngestSegmentsMax];
};

// All in device memory, aligned to 16; rows of a target lie at multiples of its stride (bytes, a
// multiple of 4).
struct IngestArgs {
  const uint8_t* block = nullptr;
  uint32_t segment_count = 0;
  uint8_t* targets[kIngestSegmentsMax] = {};
  uint64_t target_strides[kIngestSegmentsMax] = {};
};

cudaError_t ingest(const IngestArgs& args, const Launch& launch);

}  // namespace wcuda::kernels
