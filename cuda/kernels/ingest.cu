// ingest: targets[s] (rows, stride) = block + segments[s].offset (rows, align_up(row_bytes, 16)).
//
// Bytes moved: the inputs once in device memory, a few KB for a decode step. The block comes over
// the bus in one copy before: reads of pinned memory by threads took 300 us a step, a few hundred
// of them at 0.4 us each, where the copy of the same bytes takes 3.
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
  const uint4 segment = __ldcg(reinterpret_cast<const uint4*>(args.block) + s);
  const uint32_t row_count = segment.x, row_words = segment.y / 4;
  const uint32_t source_words = (row_words + 3) / 4 * 4;
  const auto* const source = reinterpret_cast<const uint32_t*>(args.block + segment.z);
  for (uint32_t i = blockIdx.y * kIngestThreads + threadIdx.x; i < row_count * row_words;
       i += kIngestBlocks * kIngestThreads) {
    const uint32_t row = i / row_words, word = i % row_words;
    auto* const target =
        reinterpret_cast<uint32_t*>(args.targets[s] + row * args.target_strides[s]);
    target[word] = __ldcg(source + row * source_words + word);
  }
}

}  // namespace

cudaError_t ingest(const IngestArgs& args, const Launch& launch) {
  static_assert(sizeof(IngestHeader::Segment) == sizeof(uint4), "read as one");
  return launch_kernel(launch, dim3(args.segment_count, kIngestBlocks), dim3(kIngestThreads), 0, 0,
                       ingest_kernel, args);
}

}  // namespace wcuda::kernels
