// ingest: brings the inputs of a step from pinned host memory into device memory. The sizes lie
// with the inputs, so that a captured launch serves every step.
#pragma once

#include "kernels/linear.h"

namespace wcuda::kernels {

constexpr uint32_t kIngestSegmentsMax = 12;

// In pinned memory. Rows of a segment have equal lengths; a multiple of 16 bytes is read of each.
struct IngestHeader {
  struct Segment {
    uint32_t row_count;
    uint32_t row_bytes;  // to copy; rows lie at multiples of align_up(row_bytes, 16) in the source
  };
  Segment segments[kIngestSegmentsMax];
};

// Sources and targets are aligned to 16; rows of a target lie at multiples of its stride (bytes, a
// multiple of 4).
struct IngestArgs {
  const IngestHeader* header = nullptr;
  uint32_t segment_count = 0;
  const uint8_t* sources[kIngestSegmentsMax] = {};
  uint8_t* targets[kIngestSegmentsMax] = {};
  uint64_t target_strides[kIngestSegmentsMax] = {};
};

cudaError_t ingest(const IngestArgs& args, const Launch& launch);

}  // namespace wcuda::kernels
