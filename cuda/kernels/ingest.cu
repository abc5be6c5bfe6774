// ingest: targets[s] (rows, stride) = sources[s] (rows, row_bytes).
//
// Bytes moved: the inputs once over the bus, a few KB for a decode step: latency, not bandwidth,
// counts, so every thread has its loads in flight at once.
#include "kernels/dependent_launch.h"
#include "kernels/ingest.h"

namespace wcuda::kernels {
namespace {

constexpr uint32_t kIngestThreads = 256;
constexpr uint32_t kIngestBlocks = 4;  // of a segment; page tables of long contexts take several

__global__ void __launch_bounds__(kIngestThreads) ingest_kernel(const IngestArgs args) {
  dependent_trigger();
  dependent_wait();  // the step before may still read the targets
  const uint32_t s = blockIdx.x;
  const volatile IngestHeader::Segment& segment = args.header->segments[s];
  const uint32_t row_count = segment.row_count, row_words = segment.row_bytes / 4;
  const uint32_t source_words = (row_words + 3) / 4 * 4;
  const auto* source = reinterpret_cast<const volatile uint32_t*>(args.sources[s]);
  for (uint32_t i = blockIdx.y * kIngestThreads + threadIdx.x; i < row_count * row_words;
       i += kIngestBlocks * kIngestThreads) {
    const uint32_t row = i / row_words, word = i % row_words;
    auto* const target =
        reinterpret_cast<uint32_t*>(args.targets[s] + row * args.target_strides[s]);
    target[word] = source[row * source_words + word];
  }
}

}  // namespace

cudaError_t ingest(const IngestArgs& args, const Launch& launch) {
  return launch_kernel(launch, dim3(args.segment_count, kIngestBlocks), dim3(kIngestThreads), 0, 0,
                       ingest_kernel, args);
}

}  // namespace wcuda::kernels
