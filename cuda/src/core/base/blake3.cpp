// The BLAKE3 tree on the host: chunks in groups, chaining values on a stack.
#include "core/base/blake3.h"

#include <algorithm>
#include <cstring>

#include "core/base/cpu.h"

namespace wcuda::blake3 {
namespace {

// Chunks hashed at a time, a power of two: enough to fill the lanes and most of those of the
// parents.
constexpr uint32_t kGroupLevel = 6;
constexpr uint32_t kGroupChunks = 1u << kGroupLevel;

// The last block of a chunk, or a parent: compressed only when it is known whether it is the root.
struct Output {
  uint32_t chain[8];
  uint32_t message[16];
  uint64_t counter;
  uint32_t length;
  uint32_t flags;

  void finish(uint32_t extra_flags, uint32_t result[8]) const {
    uint32_t words[16];
    std::memcpy(words, message, sizeof(words));
    std::memcpy(result, chain, sizeof(chain));
    compress<uint32_t>(result, words, static_cast<uint32_t>(counter),
                       static_cast<uint32_t>(counter >> 32), length, flags | extra_flags);
  }
};

Output chunk_output(const uint8_t* data, uint32_t bytes, uint64_t counter) {
  Output output{};
  set_initial_chain<uint32_t>(output.chain, 0);
  output.counter = counter;
  output.flags = kChunkStart;
  for (; bytes > kBlockBytes; data += kBlockBytes, bytes -= kBlockBytes) {
    std::memcpy(output.message, data, kBlockBytes);
    output.length = kBlockBytes;
    uint32_t next[8];
    output.finish(0, next);
    std::memcpy(output.chain, next, sizeof(next));
    output.flags = 0;
  }
  std::memset(output.message, 0, sizeof(output.message));
  std::memcpy(output.message, data, bytes);
  output.length = bytes;
  output.flags |= kChunkEnd;
  return output;
}

Output parent_output(const uint32_t left[8], const uint32_t right[8]) {
  Output output{};
  set_initial_chain<uint32_t>(output.chain, 0);
  std::memcpy(output.message, left, 32);
  std::memcpy(output.message + 8, right, 32);
  output.length = kBlockBytes;
  output.flags = kParent;
  return output;
}

// Chain of the subtree over kGroupChunks whole chunks.
void hash_group(const uint8_t* data, uint64_t first_chunk, uint32_t chain[8]) {
  uint32_t level[kGroupChunks][8], next[kGroupChunks / 2][8];
  hash_many({data, kChunkBytes, kGroupChunks, kChunkBytes / kBlockBytes, first_chunk, 1, 0,
             kChunkStart, kChunkEnd, level[0]});
  for (uint32_t count = kGroupChunks / 2; count > 0; count /= 2) {
    hash_many({reinterpret_cast<const uint8_t*>(level), kBlockBytes, count, 1, 0, 0, kParent, 0, 0,
               next[0]});
    std::memcpy(level, next, count * sizeof(next[0]));
  }
  std::memcpy(chain, level[0], 32);
}

using HashMany = void (*)(const ManyArgs&);

HashMany choose_hash_many() {
#if defined(__x86_64__)
  if (cpu_has_avx512()) return hash_many_avx512;
  if (cpu_has_avx2()) return hash_many_avx2;
#endif
  return hash_many_scalar;
}

}  // namespace

void hash_many_scalar(const ManyArgs& args) {
  for (uint32_t i = 0; i < args.count; ++i) {
    uint32_t* const chain = args.chains + 8 * i;
    const uint8_t* const data = args.data + i * args.stride;
    const uint64_t counter = args.counter + uint64_t{i} * args.counter_step;
    uint32_t value[8];
    set_initial_chain<uint32_t>(value, 0);
    for (uint32_t block = 0; block < args.block_count; ++block) {
      uint32_t message[16];
      std::memcpy(message, data + block * kBlockBytes, kBlockBytes);
      const uint32_t flags = args.flags | (block == 0 ? args.start_flags : 0) |
                             (block + 1 == args.block_count ? args.end_flags : 0);
      compress<uint32_t>(value, message, static_cast<uint32_t>(counter),
                         static_cast<uint32_t>(counter >> 32), kBlockBytes, flags);
    }
    std::memcpy(chain, value, sizeof(value));
  }
}

void hash_many(const ManyArgs& args) {
  static const HashMany best = choose_hash_many();
  best(args);
}

Hasher::Hasher(uint64_t first_chunk) : first_chunk_(first_chunk) {}

// Adds a subtree of 2^level chunks that ends at chunk_count_; there is more data after it. Subtrees
// of equal size are joined, following the binary digits of chunk_count_.
void Hasher::push(const uint32_t chain[8], uint32_t level) {
  uint32_t joined[8];
  std::memcpy(joined, chain, sizeof(joined));
  for (uint64_t rest = chunk_count_ >> level; (rest & 1) == 0; rest >>= 1) {
    const Output parent = parent_output(stack_[stack_size_ - 1], joined);
    parent.finish(0, joined);
    --stack_size_;
  }
  std::memcpy(stack_[stack_size_], joined, sizeof(joined));
  ++stack_size_;
}

void Hasher::end_chunk() {
  uint32_t chain[8];
  chunk_output(chunk_, kChunkBytes, first_chunk_ + chunk_count_).finish(0, chain);
  ++chunk_count_;
  chunk_bytes_ = 0;
  push(chain, 0);
}

void Hasher::update(const void* data, uint64_t bytes) {
  const auto* next = static_cast<const uint8_t*>(data);
  while (bytes > 0) {
    if (chunk_bytes_ == kChunkBytes) end_chunk();
    // A group is known not to be the root only if more data follows.
    if (chunk_bytes_ == 0 && chunk_count_ % kGroupChunks == 0 &&
        bytes > kGroupChunks * kChunkBytes) {
      uint32_t chain[8];
      hash_group(next, first_chunk_ + chunk_count_, chain);
      chunk_count_ += kGroupChunks;
      push(chain, kGroupLevel);
      next += kGroupChunks * kChunkBytes;
      bytes -= kGroupChunks * kChunkBytes;
      continue;
    }
    const auto take = static_cast<uint32_t>(std::min<uint64_t>(bytes, kChunkBytes - chunk_bytes_));
    std::memcpy(chunk_ + chunk_bytes_, next, take);
    chunk_bytes_ += take;
    next += take;
    bytes -= take;
  }
}

void Hasher::finish_node(uint32_t flags, uint8_t result[kDigestBytes]) const {
  Output output = chunk_output(chunk_, chunk_bytes_, first_chunk_ + chunk_count_);
  for (uint32_t i = stack_size_; i > 0; --i) {
    uint32_t right[8];
    output.finish(0, right);
    output = parent_output(stack_[i - 1], right);
  }
  uint32_t chain[8];
  output.finish(flags, chain);
  std::memcpy(result, chain, kDigestBytes);  // little-endian hosts only, as all of this library
}

void Hasher::finish(uint8_t digest[kDigestBytes]) const { finish_node(kRoot, digest); }
void Hasher::finish_chain(uint8_t chain[kDigestBytes]) const { finish_node(0, chain); }

void hash(const void* data, uint64_t bytes, uint8_t digest[kDigestBytes]) {
  Hasher hasher;
  hasher.update(data, bytes);
  hasher.finish(digest);
}

void hash_pieces(const void* data, uint64_t bytes, uint64_t first_piece, uint8_t* pieces) {
  const auto* next = static_cast<const uint8_t*>(data);
  for (uint64_t piece = 0; bytes > 0; ++piece) {
    const uint64_t take = std::min(bytes, kPieceBytes);
    Hasher hasher((first_piece + piece) * kPieceChunks);
    hasher.update(next, take);
    hasher.finish_chain(pieces + piece * kDigestBytes);
    next += take;
    bytes -= take;
  }
}

void join_pieces(const uint8_t* pieces, uint64_t count, uint8_t digest[kDigestBytes]) {
  constexpr uint32_t kPieceLevel = 10;
  static_assert(uint64_t{1} << kPieceLevel == kPieceChunks);
  Hasher tree;  // as if it had hashed all pieces but the last
  uint32_t chain[8];
  for (uint64_t piece = 0; piece + 1 < count; ++piece) {
    std::memcpy(chain, pieces + piece * kDigestBytes, sizeof(chain));
    tree.chunk_count_ += kPieceChunks;
    tree.push(chain, kPieceLevel);
  }
  std::memcpy(chain, pieces + (count - 1) * kDigestBytes, sizeof(chain));
  for (uint32_t i = tree.stack_size_; i > 0; --i) {
    const Output parent = parent_output(tree.stack_[i - 1], chain);
    parent.finish(i == 1 ? kRoot : 0, chain);
  }
  std::memcpy(digest, chain, kDigestBytes);
}

}  // namespace wcuda::blake3
