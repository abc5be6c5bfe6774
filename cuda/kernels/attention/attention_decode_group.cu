// attention_decode_group: attention_decode for steps of few rows, where latency counts.
//
// Each row and key-value head has a group of blocks of its own, of which each takes a run of the
// pages. Where all groups have as many blocks, they are clusters: each block sends every other its
// part of the elements, by stores into the other's shared memory, adds what it got in the order of
// the blocks, and writes its part. Else parts go through global memory, and the last block to end
// adds them in their order. A row of few pages is left to one block, which needs no other.
// Blocks are small enough to begin beside those of linear_vector, before these end.
#include <algorithm>

#include "kernels/attention/attention_decode_group.h"
#include "kernels/attention/attention_decode_step.cuh"
#include "kernels/attention/attention_instance.cuh"
#include "kernels/ptx/cluster.cuh"
#include "kernels/ptx/launch.h"

namespace wcuda::kernels {
namespace {

// Of a block of short heads alone: too much to begin beside a product, which it would delay more
// than it gains (1B at 0, H200: 2,294 tokens a second beside it, 2,336 after it).
constexpr uint32_t kLoneBytes = 114 * 1024;
constexpr uint32_t kPartialBytes = 32;  // that a block is sent: sums, running max, denominator

// Rings of 96 KiB a block.
template <int kLength, KvFormat kFormat>
using GroupShape = DecodeShape<kLength, kFormat, true, kLength <= 128 ? 8 : 4,
                               (kLength <= 128 ? 12 : 24) * 1024, true>;

template <class S>
struct Places {
  // A warp's sums lie in its own ring, which is free by then; after the rings is what blocks send,
  // and before that what NewKv says.
  static_assert(S::kSumBytes <= S::kStages * S::kStageBytes);
  static constexpr uint32_t kReceived = S::kRingsBytes;
  static constexpr uint32_t kReceivedBytes =
      (kColumns * (S::kLength / 4) + kDecodeClusterBlocks - 1) * kPartialBytes;
  static constexpr uint32_t kNewcomersBytes = NewKv<S::kLength>::kBytes;
  static constexpr uint32_t kBytes =
      kReceived + (kReceivedBytes > kNewcomersBytes ? kReceivedBytes : kNewcomersBytes);
  static_assert(2 * (kBytes + 1024) <= 228 * 1024);
};

// The one segment of a block.
class OneSegment {
 public:
  __device__ OneSegment(const AttentionKernelArgs& args, const DecodeStart& start) {
    const uint32_t units = start.units_to_end - start.units_before;
    position_ = start.position;
    segment_.row = start.row;
    segment_.head = start.head;
    segment_.kv_head = args.plan.group_tiles == 1 ? start.head : start.head / args.plan.group_tiles;
    segment_.row_first = start.units_before * args.plan.head_tiles + start.head * units;
    segment_.unit_begin = start.begin - segment_.row_first;
    segment_.unit_end = start.end - segment_.row_first;
    segment_.row_units = units;
    segment_.token = start.token;
    const uint32_t first_unit = position_ / kPagePositions + 1 - units;
    segment_.first_page = first_unit + segment_.unit_begin;
    // The plan's window may be wider than this layer's: the first units may see nothing.
    segment_.begin =
        max(first_visible(position_, args.window), segment_.first_page * kPagePositions);
    segment_.end = min(position_ + 1, (first_unit + segment_.unit_end) * kPagePositions);
  }
  __device__ __forceinline__ bool next(Segment* segment) {
    *segment = segment_;
    const bool was_next = is_next_;
    is_next_ = false;
    return was_next;
  }
  __device__ uint32_t position() const { return position_; }

 private:
  Segment segment_;
  uint32_t position_;
  bool is_next_ = true;
};

// ---- clusters ----

__device__ __forceinline__ void store_cluster(uint32_t address, const Float4Partial& partial) {
#if __CUDA_ARCH__ >= 900
  cluster_store(address, partial.sums);
  cluster_store(address + 16, make_float2(partial.running_max, partial.denominator));
#else
  (void)address, (void)partial;
#endif
}

// Each block of a row gets some of the partial_count from all, and adds and writes those.
template <class S>
__device__ __forceinline__ void merge_cluster(const AttentionKernelArgs& args, const Heads& heads,
                                              const ReductionBuffer<S::kLength>& reduction,
                                              const DecodeStart& start, const uint8_t* received) {
  const uint32_t blocks = start.group_blocks;
  const uint32_t partial_count = heads.count * (S::kLength / 4);
  const uint32_t own_count = (partial_count + blocks - 1) / blocks;
  const uint32_t rank = cluster_rank();
  cluster_wait();  // all have begun, and are done with their new keys and values
#pragma unroll 1
  for (uint32_t i = threadIdx.x; i < partial_count; i += S::kThreads) {
    const Float4Partial partial = merge_warps<S>(reduction, i, -INFINITY);
    const uint32_t owner = i / own_count;
    store_cluster(cluster_address(shared_address(received), owner) +
                      (rank * own_count + i - owner * own_count) * kPartialBytes,
                  partial);
  }
  cluster_arrive();
  cluster_wait();
  constexpr uint32_t kBatch = 8;  // parts whose loads are under way together
#pragma unroll 1
  for (uint32_t own = threadIdx.x; own < own_count && rank * own_count + own < partial_count;
       own += S::kThreads) {
    const uint32_t i = rank * own_count + own;
    Float4Partial sum;
    sum.clear(sink_of(args, heads.first + i / (S::kLength / 4)));
#pragma unroll 1
    for (uint32_t begin = 0; begin < blocks; begin += kBatch) {
      Float4Partial others[kBatch];
#pragma unroll
      for (uint32_t b = 0; b < kBatch; ++b) {
        const auto* from = reinterpret_cast<const float4*>(
            received + (min(begin + b, blocks - 1) * own_count + own) * kPartialBytes);
        const float4 rest = from[1];
        others[b].sums = from[0];
        others[b].running_max = begin + b < blocks ? rest.x : -INFINITY;
        others[b].denominator = rest.y;
      }
      sum.add(others);
    }
    write_quad<S::kLength>(args, heads, i, sum);
  }
}

template <class S>
__global__ void __launch_bounds__(S::kThreads, 2)
    attention_decode_group_kernel(const __grid_constant__ AttentionKernelArgs args) {
  extern __shared__ __align__(128) uint8_t shared[];
  if (args.triggers_early) dependent_trigger();
  const uint32_t lane = threadIdx.x % 32;
  const uint32_t warp = threadIdx.x / 32;
  const Start start_words(args.plan, lane);
  Rotations<S::kLength> rotations;
  if (args.key != nullptr) rotations.load(args.rope, lane);
  const DecodeStart start = start_words.all();
  const bool is_alone = start.group_blocks == 1;
  if (start.group_blocks == 0) {
    leave_idle();
    return;
  }

  const uint32_t ring = shared_address(shared + warp * S::kWarpBytes);
  const NewKv<S::kLength> new_kv{shared + Places<S>::kReceived};
  const ReductionBuffer<S::kLength> reduction{shared, S::kWarpBytes};
  OneSegment walk(args, start);
  Loader<S, OneSegment> loader(args, walk, start_words, warp, lane, ring);
  const bool has_waited = fill_ring<S>(args, &loader);
  Segment segment;
  walk.next(&segment);
  Steps steps;
  steps.begin(segment, warp);
  WarpSums<S::kLength> sums;
  sums.clear();
  const Heads heads(args, segment);
  uint32_t page = 0;
  if (args.key != nullptr) {
    rotations.find(args.rope, start.position);
    page = page_of(args, segment.row, start.position / kPagePositions);
  }
  if (!has_waited) dependent_wait();
  if (!args.triggers_early) dependent_trigger();
  Queries<S> queries;
  if (segment.begin < segment.end)
    ready_segment<S>(args, segment, heads, start.position, page, rotations, new_kv, ring, 0,
                     steps.next, &queries);
  const bool has_cluster = args.plan.cluster_blocks != 0 && !is_alone;
  if (has_cluster) cluster_arrive();  // others may write where the new keys and values lay
  using Tile = typename S::Tile;
  for (uint32_t stage = 0; steps.next < steps.end; steps.next += S::kWarps) {
    // Waits for the oldest stage, and fills it once all lanes are done with it.
    const auto use_stage = [&](const auto& use) {
      copy_async_wait<S::kStages - 1>();
      __syncwarp();
      use(ring + stage * S::kStageBytes);
      __syncwarp();
      loader.issue(stage, 1);
      stage = stage + 1 == S::kStages ? 0 : stage + 1;
    };
    float scores[4] = {0.0f, 0.0f, 0.0f, 0.0f};
    use_stage([&](uint32_t keys) { Tile::score(keys, args.pages, queries.halves, lane, scores); });
    const StepNumerators numerators =
        softmax_scores<S>(args, queries, segment, steps.next * kStepRows, lane, scores, &sums);
    use_stage([&](uint32_t values) {
      Tile::add(values, args.pages, numerators.words[0], numerators.words[1], lane, sums.values);
    });
  }
  copy_async_wait<0>();
  __syncwarp();
  put_sums<S>(sums, reduction);
  __syncthreads();
  if (has_cluster) {
    merge_cluster<S>(args, heads, reduction, start, shared + Places<S>::kReceived);
    return;
  }
  if (!is_alone) {
    PartList parts;
    parts.parts = args.plan.parts;
    parts.part_floats = args.plan.part_floats;
    parts.count = start.group_blocks;
    parts.own = blockIdx.x - start.group_first;
    parts.first = start.group_first;
    parts.second = start.group_first + 1;
    parts.stride = 1;
    parts.counter = start.group_first;
    if (!share_part<S>(args, parts, heads, reduction)) return;
  }
  write_merged<S>(args, heads, reduction);
}

// ---- choice of the instance ----

struct Instance {
  void (*kernel)(AttentionKernelArgs);
  uint32_t bytes;  // of shared memory
  uint32_t threads;
};

struct Instances {
  static constexpr int kLengthMax = 256;
  template <int kLength, KvFormat kFormat>
  static Instance version() {
    using S = GroupShape<kLength, kFormat>;
    return {attention_decode_group_kernel<S>, Places<S>::kBytes, S::kThreads};
  }
};

}  // namespace

cudaError_t attention_decode_group_prepare(KvFormat format, uint32_t head_length) {
  const Instance instance = find_version<Instances>(format, head_length);
  return cudaFuncSetAttribute(instance.kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                              static_cast<int>(std::max(instance.bytes, kLoneBytes)));
}

cudaError_t attention_decode_group(const AttentionKernelArgs& args, const Launch& launch) {
  const uint32_t head_length = args.pages.head_length;
  if (!decode_has_groups(head_length, launch.compute_capability)) return cudaErrorInvalidValue;
  const Instance instance = find_version<Instances>(args.pages.format, head_length);
  const auto sm_count = static_cast<uint32_t>(launch.sm_count);
  AttentionKernelArgs call = args;
  // Blocks of the next kernels compete with the product before, where that has most
  // multiprocessors (H200, at 0: 8B 626 tokens a second with an early trigger, 636 with a late one;
  // 135M 2,722 and 2,651).
  call.triggers_early |= args.head_count * head_length / 16 < sm_count / 2;
  uint32_t bytes = instance.bytes;
  const bool is_lone = args.plan.cluster_blocks == 0 && args.plan.max_blocks <= sm_count;
  if (head_length == 64 && is_lone && !call.triggers_early && bytes < kLoneBytes)
    bytes = kLoneBytes;
  return launch_kernel(launch, dim3(args.plan.max_blocks), dim3(instance.threads), bytes,
                       args.plan.cluster_blocks, instance.kernel, call);
}

}  // namespace wcuda::kernels
