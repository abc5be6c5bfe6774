// input_scatter: targets[s] (rows, stride) = block + segments[s].offset (rows, align_up(row_bytes,
// 16)).
//
// Bytes moved: the inputs once in device memory, a few KB for a decode step. An earlier copy brings
// the block over the bus. It takes 3 us; a few hundred reads of pinned memory by threads, of 0.4 us
// each, took 300 us per step.
#include "kernels/ptx/dependent_launch.cuh"
#include "kernels/ptx/launch.h"
#include "kernels/shared/step_start.cuh"
#include "kernels/step/input_scatter.h"

namespace wcuda::kernels {
namespace {

constexpr uint32_t kScatterThreads = 256;
constexpr uint32_t kScatterBlocks = 4;  // per segment, for page tables of long contexts

__global__ void __launch_bounds__(kScatterThreads)
    input_scatter_kernel(const InputScatterArgs args) {
  dependent_trigger();
  dependent_wait();  // the previous step may still read the targets
  scatter_segment(args, blockIdx.x, blockIdx.y * kScatterThreads + threadIdx.x,
                  kScatterBlocks * kScatterThreads);
}

}  // namespace

cudaError_t input_scatter(const InputScatterArgs& args, const Launch& launch) {
  static_assert(sizeof(InputHeader::Segment) == sizeof(uint4), "read as one");
  return launch_kernel(launch, dim3(args.segment_count, kScatterBlocks), dim3(kScatterThreads), 0,
                       0, input_scatter_kernel, args);
}

}  // namespace wcuda::kernels
