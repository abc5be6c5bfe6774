// BLAKE3 hashing on the host.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "kernels/shared/blake3_compress.h"

namespace wcuda::blake3 {

// Hashes data that arrives in pieces; copies only an unfinished chunk.
class Hasher {
 public:
  // `first_chunk`: index of the first chunk, where the data is part of a longer input.
  explicit Hasher(uint64_t first_chunk = 0);
  void update(const void* data, uint64_t bytes);
  // Digest of the data so far.
  void finish(uint8_t digest[kDigestBytes]) const;
  // Its chaining value as a node that is not the root.
  void finish_chain(uint8_t chain[kDigestBytes]) const;

 private:
  friend void join_pieces(const uint8_t* pieces, uint64_t count, uint8_t digest[kDigestBytes]);
  void finish_node(uint32_t flags, uint8_t result[kDigestBytes]) const;
  void push(const uint32_t chain[8], uint32_t level);
  void end_chunk();

  const uint64_t first_chunk_;
  uint64_t chunk_count_ = 0;  // whole chunks hashed
  uint32_t chunk_bytes_ =
      0;  // in chunk_; a full block is kept until more data shows that it is not the last
  uint8_t chunk_[kChunkBytes];
  uint32_t stack_size_ = 0;
  uint32_t stack_[56][8];  // chaining values of whole subtrees, largest first
};

// Hashes all data in one call.
void hash(const void* data, uint64_t bytes, uint8_t digest[kDigestBytes]);

// Chaining values (piece_count, 32) of the pieces of at least one byte of data that begins at piece
// `first_piece` of its input.
void hash_pieces(const void* data, uint64_t bytes, uint64_t first_piece, uint8_t* pieces);
// Digest of an input of at least two pieces from all its chaining values (count, 32).
void join_pieces(const uint8_t* pieces, uint64_t count, uint8_t digest[kDigestBytes]);

// Hashes `count` equally long inputs of whole blocks: input i starts at data + i * stride and its
// chain goes to chains + 8 * i. `counter` is that of the first; the next have counter + 1, … where
// `counter_step` is 1. Flags of the first and the last block are added to `flags`.
struct ManyArgs {
  const uint8_t* data;
  uint64_t stride;
  uint32_t count;
  uint32_t block_count;
  uint64_t counter;
  uint32_t counter_step;  // 1: chunks, 0: parents
  uint32_t flags, start_flags, end_flags;
  uint32_t* chains;
};
// Scalar, AVX2 (8 lanes) and AVX-512 (16 lanes); the last two take any count.
void hash_many_scalar(const ManyArgs& args);
void hash_many_avx2(const ManyArgs& args);
void hash_many_avx512(const ManyArgs& args);
// The fastest that this processor supports.
void hash_many(const ManyArgs& args);

}  // namespace wcuda::blake3
