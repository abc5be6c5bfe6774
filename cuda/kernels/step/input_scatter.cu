// ingest: targets[s] (rows, stride) = block + segments[s].offset (rows, align_up(row_bytes, 16)).
//
// Bytes moved: the inputs once in device memory, a few KB for a decode step. The block comes over
// the bus in one copy before: reads of pinned memory by threads took 300 us a step, a few hundred
// of them at 0.4 us each, where the copy of the same bytes takes 3.
#include "kernels/ptx/dependent_launch.cuh"
#include "kernels/shared/step_start.cuh"
#include "kernels/step/input_scatter.h"

namespace wcuda::kernels {
namespace {

constexpr uint32_t kIngestThreads = 256;
constexpr uint32_t kIngestBlocks = 4;  // of a segment; page tables of long contexts take several

__global__ void __launch_bounds__(kIngestThreads) ingest_kernel(const IngestArgs args) {
  dependent_trigger();
  dependent_wait();  // the step before may still read the targets
  ingest_part(args, blockIdx.x, blockIdx.y * kIngestThreads + threadIdx.x,
              kIngestBlocks * kIngestThreads);
}

}  // namespace

cudaError_t ingest(const IngestArgs& args, const Launch& launch) {
  static_assert(sizeof(IngestHeader::Segment) == sizeof(uint4), "read as one");
  return launch_kernel(launch, dim3(args.segment_count, kIngestBlocks), dim3(kIngestThreads), 0, 0,
                       ingest_kernel, args);
}

}  // namespace wcuda::kernels
