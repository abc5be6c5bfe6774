// digest: BLAKE3 of device memory. A thread hashes a chunk of 1024 bytes. A block joins the
// chaining values of its 128 chunks into one; further launches join 256 of these per block (picture
// in digest.h).
//
// Neighbours are joined level by level; an odd last one moves up unchanged. Because groups start at
// multiples of their size, left subtrees are the largest powers of two, as in the paper.
#include "kernels/memory/digest.h"
#include "kernels/shared/blake3_compress.h"

namespace wcuda::kernels {
namespace {

using blake3::kBlockBytes;
using blake3::kChunkBytes;

constexpr uint32_t kChunkThreads = 128;  // chunks that a block joins
constexpr uint32_t kJoinThreads = 128;
constexpr uint32_t kJoinInputs = 2 * kJoinThreads;

constexpr uint32_t kPieceBlocks = blake3::kPieceChunks / kChunkThreads;  // blocks per piece

// Data is hashed in segments whose chaining values are then joined, which keeps the scratch small.
constexpr uint64_t kSegmentBlocks = 8192;
constexpr uint64_t kSegmentBytes = kSegmentBlocks * kChunkThreads * kChunkBytes;  // 1 GiB
constexpr uint64_t kSegmentsMax = kDigestBytesMax / kSegmentBytes;

// Computes a + b as a * 1 + b on the multipliers, which leaves the integer ALUs, the bottleneck of
// the kernel, to rotations and xors. `one` is a 1 that the compiler cannot see.
__constant__ uint32_t one = 1;
struct MultiplierSum {
  __device__ __forceinline__ uint32_t operator()(uint32_t a, uint32_t b) const {
    uint32_t result;
    asm("mad.lo.u32 %0, %1, %2, %3;" : "=r"(result) : "r"(a), "r"(one), "r"(b));
    return result;
  }
};

struct Chain {
  uint32_t words[8];
};
// Scratch: the result, chains of the segments, then two levels of one segment.
constexpr uint64_t kSegmentChains = 1;
constexpr uint64_t kLevelChains = kSegmentChains + kSegmentsMax;
constexpr uint64_t kNextLevelChains = kLevelChains + kSegmentBlocks;
constexpr uint64_t kScratchChains = kNextLevelChains + kSegmentBlocks / kJoinInputs;
static_assert(kScratchChains * sizeof(Chain) <= kDigestScratchBytes);
__device__ __align__(32) Chain own_scratch[kDigestScratchBytes / sizeof(Chain)];
// digest_pieces processes one segment; its result fits before the level that it is computed from.
static_assert(kDigestPiecesBytesMax == kSegmentBytes);
static_assert(kSegmentBytes / blake3::kPieceBytes <= kLevelChains);

// Loads up to 64 bytes as message (16); the rest is zero.
__device__ inline void load_block(const uint8_t* data, uint32_t bytes, bool is_aligned,
                                  uint32_t message[16]) {
  if (bytes == kBlockBytes && is_aligned) {
    const auto* vectors = reinterpret_cast<const uint4*>(data);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint4 vector = vectors[i];
      message[4 * i] = vector.x;
      message[4 * i + 1] = vector.y;
      message[4 * i + 2] = vector.z;
      message[4 * i + 3] = vector.w;
    }
    return;
  }
#pragma unroll
  for (uint32_t i = 0; i < 16; ++i) {
    uint32_t word = 0;
    for (uint32_t j = 0; j < 4; ++j)
      if (4 * i + j < bytes) word |= uint32_t{data[4 * i + j]} << (8 * j);
    message[i] = word;
  }
}

__device__ inline void hash_chunk(const uint8_t* data, uint32_t bytes, bool is_aligned,
                                  uint64_t counter, bool is_root, uint32_t chain[8]) {
  blake3::set_initial_chain<uint32_t>(chain, 0);
  uint32_t flags = blake3::kChunkStart;
  for (uint32_t done = 0;;) {
    const uint32_t length = bytes - done < kBlockBytes ? bytes - done : kBlockBytes;
    uint32_t message[16];
    load_block(data + done, length, is_aligned, message);
    done += length;
    const bool is_last = done == bytes;
    if (is_last) flags |= blake3::kChunkEnd | (is_root ? blake3::kRoot : 0);
    blake3::compress<uint32_t, MultiplierSum>(chain, message, static_cast<uint32_t>(counter),
                                              static_cast<uint32_t>(counter >> 32), length, flags);
    if (is_last) return;
    flags = 0;
  }
}

// chains[0] = join of chains[0 … count - 1], in shared memory. Called by all threads of the block.
// `is_root`: the last join is the root of the whole tree.
__device__ inline void block_join(Chain* chains, uint32_t count, bool is_root) {
  while (count > 1) {
    const uint32_t pairs = count / 2;
    Chain result = {};
    const bool joins = threadIdx.x < pairs;
    if (joins) {
      uint32_t message[16];
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        message[i] = chains[2 * threadIdx.x].words[i];
        message[8 + i] = chains[2 * threadIdx.x + 1].words[i];
      }
      blake3::set_initial_chain<uint32_t>(result.words, 0);
      const uint32_t flags = blake3::kParent | (is_root && count == 2 ? blake3::kRoot : 0);
      blake3::compress<uint32_t, MultiplierSum>(result.words, message, 0, 0, kBlockBytes, flags);
    } else if (threadIdx.x == pairs && count % 2 == 1) {
      result = chains[count - 1];
    }
    __syncthreads();
    if (joins || (threadIdx.x == pairs && count % 2 == 1)) chains[threadIdx.x] = result;
    __syncthreads();
    count = pairs + count % 2;
  }
}

// chains[block] = join of the block's chunks. `first_chunk` is the index of chunk 0 in the whole
// input.
__global__ void __launch_bounds__(kChunkThreads)
    hash_chunks_kernel(const uint8_t* data, uint64_t bytes, uint64_t first_chunk, bool is_whole,
                       Chain* chains) {
  __shared__ Chain shared[kChunkThreads];
  const uint64_t chunk_count = bytes == 0 ? 1 : (bytes + kChunkBytes - 1) / kChunkBytes;
  const uint64_t block_first = uint64_t{blockIdx.x} * kChunkThreads;
  const uint64_t left = chunk_count - block_first;
  const auto count = static_cast<uint32_t>(left < kChunkThreads ? left : kChunkThreads);
  const uint64_t chunk = block_first + threadIdx.x;
  const bool is_aligned = reinterpret_cast<uintptr_t>(data) % 16 == 0;
  if (threadIdx.x < count) {
    const uint64_t offset = chunk * kChunkBytes;
    const uint64_t rest = bytes - offset;
    hash_chunk(data + offset, static_cast<uint32_t>(rest < kChunkBytes ? rest : kChunkBytes),
               is_aligned, first_chunk + chunk, is_whole && chunk_count == 1,
               shared[threadIdx.x].words);
  }
  __syncthreads();
  block_join(shared, count, is_whole && gridDim.x == 1);
  if (threadIdx.x == 0) chains[blockIdx.x] = shared[0];
}

// to[block] = join of from[block * kJoinInputs …].
__global__ void __launch_bounds__(kJoinThreads)
    join_kernel(const Chain* from, uint32_t count, bool is_whole, Chain* to) {
  __shared__ Chain shared[kJoinInputs];
  const uint32_t first = blockIdx.x * kJoinInputs;
  const uint32_t inputs = min(count - first, kJoinInputs);
  for (uint32_t i = threadIdx.x; i < inputs; i += kJoinThreads) shared[i] = from[first + i];
  __syncthreads();
  block_join(shared, inputs, is_whole && gridDim.x == 1);
  if (threadIdx.x == 0) to[blockIdx.x] = shared[0];
}

// pieces[block] = join of the chains of one piece.
__global__ void __launch_bounds__(kPieceBlocks)
    join_pieces_kernel(const Chain* from, uint32_t count, Chain* pieces) {
  __shared__ Chain shared[kPieceBlocks];
  const uint32_t first = blockIdx.x * kPieceBlocks;
  const uint32_t inputs = min(count - first, kPieceBlocks);
  if (threadIdx.x < inputs) shared[threadIdx.x] = from[first + threadIdx.x];
  __syncthreads();
  block_join(shared, inputs, false);
  if (threadIdx.x == 0) pieces[blockIdx.x] = shared[0];
}

// Joins `count` chains of level `from` into *result; `spare` is scratch.
cudaError_t join(Chain* from, uint32_t count, bool is_whole, Chain* spare, Chain* result,
                 cudaStream_t stream) {
  while (count > 1) {
    const uint32_t blocks = (count + kJoinInputs - 1) / kJoinInputs;
    join_kernel<<<blocks, kJoinThreads, 0, stream>>>(from, count, is_whole,
                                                     blocks == 1 ? result : spare);
    Chain* const read = from;
    from = spare;
    spare = read;
    count = blocks;
  }
  return cudaPeekAtLastError();
}

}  // namespace

cudaError_t digest(const void* data, uint64_t bytes, void* result, void* scratch,
                   cudaStream_t stream) {
  if (bytes > kDigestBytesMax) return cudaErrorInvalidValue;
  auto* const root = static_cast<Chain*>(result);
  auto* const chains = static_cast<Chain*>(scratch);
  const uint64_t segment_count = bytes == 0 ? 1 : (bytes + kSegmentBytes - 1) / kSegmentBytes;
  for (uint64_t segment = 0; segment < segment_count; ++segment) {
    const uint64_t offset = segment * kSegmentBytes;
    const uint64_t rest = bytes - offset;
    const uint64_t segment_bytes = rest < kSegmentBytes ? rest : kSegmentBytes;
    const uint64_t per_block = uint64_t{kChunkThreads} * kChunkBytes;
    const auto blocks =
        static_cast<uint32_t>(segment_bytes == 0 ? 1 : (segment_bytes + per_block - 1) / per_block);
    const bool is_whole = segment_count == 1;
    Chain* const segment_root = is_whole ? root : chains + kSegmentChains + segment;
    hash_chunks_kernel<<<blocks, kChunkThreads, 0, stream>>>(
        static_cast<const uint8_t*>(data) + offset, segment_bytes, offset / kChunkBytes, is_whole,
        blocks == 1 ? segment_root : chains + kLevelChains);
    const cudaError_t launched = cudaPeekAtLastError();
    if (launched != cudaSuccess) return launched;
    const cudaError_t joined = join(chains + kLevelChains, blocks, is_whole,
                                    chains + kNextLevelChains, segment_root, stream);
    if (joined != cudaSuccess) return joined;
  }
  if (segment_count == 1) return cudaSuccess;
  return join(chains + kSegmentChains, static_cast<uint32_t>(segment_count), true,
              chains + kNextLevelChains, root, stream);
}

cudaError_t digest_scratch(void** address) { return cudaGetSymbolAddress(address, own_scratch); }

cudaError_t digest_pieces(const void* data, uint64_t bytes, uint64_t first_piece, void* pieces,
                          void* scratch, cudaStream_t stream) {
  if (bytes == 0 || bytes > kDigestPiecesBytesMax) return cudaErrorInvalidValue;
  Chain* const level = static_cast<Chain*>(scratch) + kLevelChains;
  constexpr uint64_t kBlockChunkBytes = uint64_t{kChunkThreads} * kChunkBytes;
  const auto blocks = static_cast<uint32_t>((bytes + kBlockChunkBytes - 1) / kBlockChunkBytes);
  hash_chunks_kernel<<<blocks, kChunkThreads, 0, stream>>>(
      static_cast<const uint8_t*>(data), bytes, first_piece * blake3::kPieceChunks, false, level);
  const cudaError_t launched = cudaPeekAtLastError();
  if (launched != cudaSuccess) return launched;
  join_pieces_kernel<<<(blocks + kPieceBlocks - 1) / kPieceBlocks, kPieceBlocks, 0, stream>>>(
      level, blocks, static_cast<Chain*>(pieces));
  return cudaPeekAtLastError();
}

}  // namespace wcuda::kernels
