// attention_decode_group: attention_decode for steps of few rows, where latency matters.
//
// Each row and key-value head has its own group of blocks, and each block handles a run of its
// pages; all pages of a short row go to one block. If all groups have the same size, each group is
// a cluster, and each block owns some elements of the result. It receives the partial sums of these
// elements from the other blocks through distributed shared memory, adds them in block order, and
// writes the result. For example, with 3 blocks and one query head of 128 elements:
//
//   block 0   pages 0 … 2   sums of all elements ─┬─→ block 0 adds and writes elements 0 … 43
//   block 1   pages 3 … 5   sums of all elements ─┼─→ block 1 adds and writes elements 44 … 87
//   block 2   pages 6 … 8   sums of all elements ─┴─→ block 2 adds and writes elements 88 … 127
//
// If the sizes differ, the partial results go through global memory, and the last block of the
// group to finish adds them in block order. Blocks are small enough to start on an SM that still
// runs linear_vector. The bytes moved are those of attention_decode.
#include <algorithm>

#include "kernels/attention/attention_decode_group.h"
#include "kernels/attention/attention_decode_step.cuh"
#include "kernels/attention/attention_instance.cuh"
#include "kernels/ptx/cluster.cuh"
#include "kernels/ptx/launch.h"

namespace wcuda::kernels {
namespace {

constexpr uint32_t kPartialBytes = 32;  // one Float4Partial between blocks

// Rings of 96 KiB per block; 104 with q8_0, for three stages of a warp.
constexpr int group_ring_bytes(int length, KvFormat format) {
  return (length > 128 ? 24 : format == KvFormat::kQ8_0 ? 13 : 12) * 1024;
}
template <int kLength, KvFormat kFormat>
using GroupShape =
    DecodeShape<kLength, kFormat, true, kLength <= 128 ? 8 : 4, group_ring_bytes(kLength, kFormat),
                true, tile_positions(kLength, kFormat)>;

template <class S>
struct SharedLayout {
  // After its last tile, a warp writes its sums into its own ring. The memory after the rings holds
  // NewKv first, and later the partial results received from other blocks.
  static_assert(S::kSumBytes <= S::kStages * S::kStageBytes);
  static constexpr uint32_t kReceived = S::kRingsBytes;
  static constexpr uint32_t kReceivedBytes =
      (kMmaHeads * (S::kLength / 4) + kDecodeClusterBlocksMax - 1) * kPartialBytes;
  static constexpr uint32_t kNewKvBytes = NewKv<S::kLength>::kBytes;
  static constexpr uint32_t kBytes =
      kReceived + (kReceivedBytes > kNewKvBytes ? kReceivedBytes : kNewKvBytes);
  static_assert(2 * (kBytes + 1024) <= 228 * 1024);
};

// Iterates over the single segment of a block. All warps of the block form its team.
template <class S>
class OneSegment {
 public:
  __device__ OneSegment(const AttentionKernelArgs& args, const DecodeStart& start) {
    const uint32_t spans = start.spans_to_end - start.spans_before;
    segment_.row = start.row;
    segment_.head = start.head;
    segment_.kv_head = args.plan.group_tiles == 1 ? start.head : start.head / args.plan.group_tiles;
    segment_.row_first = start.spans_before * args.plan.head_tiles + start.head * spans;
    segment_.span_begin = start.begin - segment_.row_first;
    segment_.span_end = start.end - segment_.row_first;
    segment_.row_spans = spans;
    segment_.token = start.token;
    segment_.position = start.position;
    segment_.team = {threadIdx.x / 32, S::kWarps};
    const uint32_t first_span = start.position / kPagePositions + 1 - spans;
    segment_.first_page = first_span + segment_.span_begin;
    // The plan's window may be wider than this layer's; then the first spans have no visible
    // position.
    segment_.begin =
        max(first_visible(start.position, args.window), segment_.first_page * kPagePositions);
    segment_.end = min(start.position + 1, (first_span + segment_.span_end) * kPagePositions);
  }
  __device__ __forceinline__ bool next(Segment* segment) {
    *segment = segment_;
    const bool was_next = is_next_;
    is_next_ = false;
    return was_next;
  }

 private:
  Segment segment_;
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

// Sends each block of the cluster this block's partial sums of the elements that the other block
// owns. Then adds the partial sums of the elements that this block owns, and writes the result.
template <class S>
__device__ __forceinline__ void merge_cluster(const AttentionKernelArgs& args, const Heads& heads,
                                              const ReductionBuffer<S::kLength>& reduction,
                                              const DecodeStart& start, const uint8_t* received) {
  const uint32_t blocks = start.group_blocks;
  const uint32_t partial_count = heads.count * (S::kLength / 4);
  const uint32_t own_count = (partial_count + blocks - 1) / blocks;
  const uint32_t rank = cluster_rank();
  cluster_wait();  // all blocks have started and no longer use new_kv
#pragma unroll 1
  for (uint32_t i = threadIdx.x; i < partial_count; i += S::kThreads) {
    const Float4Partial partial = merge_warps<S>(reduction, S::kWarps, i, -INFINITY);
    const uint32_t owner = i / own_count;
    store_cluster(cluster_address(shared_address(received), owner) +
                      (rank * own_count + i - owner * own_count) * kPartialBytes,
                  partial);
  }
  cluster_arrive();
  cluster_wait();
  constexpr uint32_t kBatch = 8;  // partial sums that are loaded together
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
    write_float4<S::kLength>(args, heads, i, sum);
  }
}

template <class S>
__global__ void __launch_bounds__(S::kThreads, 2)
    attention_decode_group_kernel(const __grid_constant__ AttentionKernelArgs args) {
  extern __shared__ __align__(128) uint8_t shared[];
  if (args.triggers_early) dependent_trigger();
  const uint32_t lane = threadIdx.x % 32;
  const uint32_t warp = threadIdx.x / 32;
  const StartWords start_words(args.plan, lane);
  Rotations<S::kLength> rotations;
  if (args.key != nullptr) rotations.load(args.rope, lane);
  const DecodeStart start = start_words.all();
  const bool is_alone = start.group_blocks == 1;
  if (start.group_blocks == 0) {
    leave_idle();
    return;
  }

  const uint32_t ring = shared_address(shared + warp * S::kWarpBytes);
  const NewKv<S::kLength> new_kv{shared + SharedLayout<S>::kReceived};
  const ReductionBuffer<S::kLength> reduction{shared, S::kWarpBytes};
  OneSegment<S> walk(args, start);
  Loader<S, OneSegment<S>> loader(args, walk, start_words, lane, ring);
  const bool has_waited = fill_ring<S>(args, &loader);
  Segment segment;
  walk.next(&segment);
  TileRange<S> tiles;
  tiles.begin(segment);
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
    prepare_segment<S>(args, segment, heads, false, page, rotations, new_kv, ring, 0, tiles.next,
                       &queries);
  const bool has_cluster = args.plan.cluster_blocks != 0 && !is_alone;
  if (has_cluster) cluster_arrive();  // from here on, other blocks may overwrite new_kv
  uint32_t stage = 0;
  add_tiles<S>(args, segment, queries, ring, 1, &tiles, &stage, &loader, &sums);
  copy_async_wait<0>();
  __syncwarp();
  put_sums<S>(sums, warp, reduction);
  __syncthreads();
  if (has_cluster) {
    merge_cluster<S>(args, heads, reduction, start, shared + SharedLayout<S>::kReceived);
    return;
  }
  if (!is_alone) {
    PartialList partials;
    partials.partials = args.plan.partials;
    partials.partial_floats = args.plan.partial_floats;
    partials.count = start.group_blocks;
    partials.own = blockIdx.x - start.group_first;
    partials.first = start.group_first;
    partials.second = start.group_first + 1;
    partials.stride = 1;
    partials.counter = start.group_first;
    if (!merge_blocks<S>(args, partials, heads, reduction)) return;
  }
  write_merged<S>(args, heads, segment.team, reduction);
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
    return {attention_decode_group_kernel<S>, SharedLayout<S>::kBytes, S::kThreads};
  }
};

uint32_t lone_bytes_max() {
  uint32_t bytes = 0;
  for (const DecodeGroupStart& row : kDecodeGroupStart) bytes = std::max(bytes, row.lone_bytes);
  return bytes;
}

}  // namespace

cudaError_t attention_decode_group_prepare(KvFormat format, uint32_t head_length) {
  const Instance instance = find_version<Instances>(format, head_length);
  return cudaFuncSetAttribute(instance.kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                              static_cast<int>(std::max(instance.bytes, lone_bytes_max())));
}

cudaError_t attention_decode_group(const AttentionKernelArgs& args, const Launch& launch) {
  const uint32_t head_length = args.pages.head_length;
  if (!decode_has_groups(head_length, launch.compute_capability)) return cudaErrorInvalidValue;
  const Instance instance = find_version<Instances>(args.pages.format, head_length);
  const auto sm_count = static_cast<uint32_t>(launch.sm_count);
  AttentionKernelArgs call = args;
  // With an early trigger, blocks of the next kernel start while the matrix product before this
  // kernel still runs. If that product occupies most SMs, they slow it down.
  call.triggers_early |=
      decode_triggers_early(args.head_count, head_length, launch.compute_capability, sm_count);
  uint32_t bytes = instance.bytes;
  const bool is_lone = args.plan.cluster_blocks == 0 && args.plan.max_blocks <= sm_count;
  if (is_lone && !call.triggers_early)
    bytes = std::max(bytes, decode_lone_bytes(head_length, launch.compute_capability));
  return launch_kernel(launch, dim3(args.plan.max_blocks), dim3(instance.threads), bytes,
                       args.plan.cluster_blocks, instance.kernel, call);
}

}  // namespace wcuda::kernels
