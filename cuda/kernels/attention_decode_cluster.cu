// attention_decode_cluster: attention_decode for steps of few rows, where latency counts.
//
// A cluster of blocks serves one row and key-value head; a block takes a run of its pages, and has
// a multiprocessor for itself. Each block then sends every other its share of the elements, by
// stores into the other's shared memory, adds what it got in the order of the blocks, and writes
// its share. A row of at most kDecodeLoneUnits pages is left to one block, which needs no other.
#include "kernels/attention_decode_cluster.h"
#include "kernels/attention_decode_step.h"
#include "kernels/cluster.h"

namespace wcuda::kernels {
namespace {

constexpr uint32_t kQuadBytes = 32;  // that a block is sent: sums, largest score, weight

template <int kLength, KvFormat kFormat>
using ClusterShape =
    DecodeShape<kLength, kFormat, true, kLength <= 128 ? 8 : 4, (kLength <= 128 ? 24 : 48) * 1024>;

template <class S>
struct Places {
  // A warp's sums lie in its own ring, which is free by then; after the rings is what blocks send,
  // and before that what Newcomers says.
  static_assert(S::kSumBytes <= S::kStages * S::kStageBytes);
  static constexpr uint32_t kReceived = S::kRingsBytes;
  static constexpr uint32_t kReceivedBytes =
      (kColumns * (S::kLength / 4) + kDecodeClusterBlocksMax - 1) * kQuadBytes;
  static constexpr uint32_t kNewcomersBytes = Newcomers<S::kLength>::kBytes;
  static constexpr uint32_t kBytes =
      kReceived + (kReceivedBytes > kNewcomersBytes ? kReceivedBytes : kNewcomersBytes);
  static_assert(kBytes <= 227 * 1024);
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

__device__ __forceinline__ void store_cluster(uint32_t address, const Quad& quad) {
#if __CUDA_ARCH__ >= 900
  asm volatile("st.shared::cluster.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(address), "f"(quad.sums.x),
               "f"(quad.sums.y), "f"(quad.sums.z), "f"(quad.sums.w)
               : "memory");
  asm volatile("st.shared::cluster.v2.f32 [%0], {%1, %2};" ::"r"(address + 16), "f"(quad.largest),
               "f"(quad.weight)
               : "memory");
#else
  (void)address, (void)quad;
#endif
}

// Each block of a row gets a share of the quads from all, and adds and writes those.
template <class S>
__device__ __forceinline__ void merge_cluster(const AttentionKernelArgs& args, const Heads& heads,
                                              const Exchange<S::kLength>& exchange,
                                              const DecodeStart& start, const uint8_t* received) {
  const uint32_t blocks = start.group_blocks;
  const uint32_t quads = heads.count * (S::kLength / 4);
  const uint32_t share = (quads + blocks - 1) / blocks;
  const uint32_t rank = cluster_rank() - start.group_first;
  cluster_wait();  // all have begun, and are done with their newcomers
#pragma unroll 1
  for (uint32_t i = threadIdx.x; i < quads; i += S::kThreads) {
    const Quad quad = merge_warps<S>(exchange, i, -INFINITY);
    const uint32_t owner = i / share;
    store_cluster(cluster_address(shared_address(received), start.group_first + owner) +
                      (rank * share + i - owner * share) * kQuadBytes,
                  quad);
  }
  cluster_arrive();
  cluster_wait();
  constexpr uint32_t kBatch = 8;  // parts whose loads are under way together
#pragma unroll 1
  for (uint32_t own = threadIdx.x; own < share && rank * share + own < quads; own += S::kThreads) {
    const uint32_t i = rank * share + own;
    Quad sum;
    sum.clear(sink_of(args, heads.first + i / (S::kLength / 4)));
#pragma unroll 1
    for (uint32_t begin = 0; begin < blocks; begin += kBatch) {
      Quad others[kBatch];
#pragma unroll
      for (uint32_t b = 0; b < kBatch; ++b) {
        const auto* from = reinterpret_cast<const float4*>(
            received + (min(begin + b, blocks - 1) * share + own) * kQuadBytes);
        const float4 rest = from[1];
        others[b].sums = from[0];
        others[b].largest = begin + b < blocks ? rest.x : -INFINITY;
        others[b].weight = rest.y;
      }
      sum.add(others);
    }
    write_quad<S::kLength>(args, heads, i, sum);
  }
}

template <class S>
__global__ void __launch_bounds__(S::kThreads, 1)
    attention_decode_cluster_kernel(const __grid_constant__ AttentionKernelArgs args) {
  extern __shared__ __align__(128) uint8_t shared[];
  dependent_trigger();
  const uint32_t lane = threadIdx.x % 32;
  const uint32_t warp = threadIdx.x / 32;
  const Start start_words(args.plan, lane);
  Turns<S::kLength> turns;
  if (args.key != nullptr) turns.load(args.turn, lane);
  const DecodeStart start = start_words.all();
  const bool is_alone = start.group_blocks == 1;
  if (start.group_blocks == 0) {
    // One block waits even when there is nothing to do: whoever waits for this kernel must know
    // those ahead of it ended too.
    if (blockIdx.x == 0) dependent_wait();
    return;
  }

  const uint32_t ring = shared_address(shared + warp * S::kWarpBytes);
  const Newcomers<S::kLength> newcomers{shared + Places<S>::kReceived};
  const Exchange<S::kLength> exchange{shared, S::kWarpBytes};
  OneSegment walk(args, start);
  Loader<S, OneSegment> loader(args, walk, start_words, warp, lane, ring);
  bool has_waited = false;
#pragma unroll 1
  for (uint32_t stage = 0; stage < S::kStages; ++stage) {
    if (!has_waited && args.key == nullptr && loader.has_newest_next()) {
      // rope_kv has written that one.
      dependent_wait();
      has_waited = true;
    }
    loader.issue(stage, 0);
  }
  Segment segment;
  walk.next(&segment);
  Steps steps;
  steps.begin(segment, warp);
  WarpSums<S::kLength> sums;
  sums.clear();
  const Heads heads(args, segment);
  uint32_t page = 0;
  if (args.key != nullptr) {
    turns.find(args.turn, start.position);
    page = __ldcg(args.step.page_tables + uint64_t{segment.row} * args.step.page_table_stride +
                  start.position / kPagePositions);
  }
  if (!has_waited) dependent_wait();
  Queries<S> queries;
  if (segment.begin < segment.end)
    ready_segment<S>(args, segment, heads, start.position, page, turns, newcomers, ring, 0,
                     steps.next, &queries);
  if (!is_alone) cluster_arrive();  // others may write where newcomers lay
  for (uint32_t stage = 0; steps.next < steps.end; steps.next += S::kWarps) {
    copy_async_wait<S::kStages - 1>();
    __syncwarp();
    add_step<S>(args, queries, segment, steps.next * kStepRows, ring + stage * S::kStageBytes, lane,
                &sums);
    __syncwarp();  // all lanes are done with the stage
    loader.issue(stage, 1);
    stage = stage + 1 == S::kStages ? 0 : stage + 1;
  }
  copy_async_wait<0>();
  __syncwarp();
  put_sums<S>(sums, exchange);
  __syncthreads();
  if (!is_alone) {
    merge_cluster<S>(args, heads, exchange, start, shared + Places<S>::kReceived);
    return;
  }
  constexpr uint32_t kQuads = S::kLength / 4;
#pragma unroll 1
  for (uint32_t i = threadIdx.x; i < heads.count * kQuads; i += S::kThreads) {
    const float sink = sink_of(args, heads.first + i / kQuads);
    write_quad<S::kLength>(args, heads, i, merge_warps<S>(exchange, i, sink));
  }
}

// ---- choice of the instance ----

struct Instance {
  void (*kernel)(AttentionKernelArgs);
  uint32_t bytes;  // of shared memory
  uint32_t threads;
};

template <int kLength, KvFormat kFormat>
Instance instance() {
  using S = ClusterShape<kLength, kFormat>;
  return {attention_decode_cluster_kernel<S>, Places<S>::kBytes, S::kThreads};
}

template <int kLength>
Instance instance_of(KvFormat format) {
  switch (format) {
    case KvFormat::kQ8_0:
      return instance<kLength, KvFormat::kQ8_0>();
    case KvFormat::kFp8E4m3:
      return instance<kLength, KvFormat::kFp8E4m3>();
    default:
      return instance<kLength, KvFormat::kF16>();
  }
}

Instance find_instance(KvFormat format, uint32_t head_length) {
  if (head_length == 64) return instance_of<64>(format);
  if (head_length == 128) return instance_of<128>(format);
  return instance_of<256>(format);
}

}  // namespace

bool decode_has_clusters(uint32_t head_length, const Launch& launch) {
  return launch.compute_capability >= 90 &&
         (head_length == 64 || head_length == 128 || head_length == 256);
}

cudaError_t attention_decode_cluster_prepare(KvFormat format, uint32_t head_length) {
  const Instance instance = find_instance(format, head_length);
  const cudaError_t status =
      cudaFuncSetAttribute(instance.kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                           static_cast<int>(instance.bytes));
  if (status != cudaSuccess) return status;
  return cudaFuncSetAttribute(instance.kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1);
}

cudaError_t attention_decode_cluster(const AttentionKernelArgs& args, const Launch& launch) {
  if (!decode_has_clusters(args.pages.head_length, launch)) return cudaErrorInvalidValue;
  const Instance instance = find_instance(args.pages.format, args.pages.head_length);
  return launch_kernel(launch, dim3(args.plan.max_blocks), dim3(instance.threads), instance.bytes,
                       args.plan.cluster_blocks, instance.kernel, args);
}

}  // namespace wcuda::kernels
