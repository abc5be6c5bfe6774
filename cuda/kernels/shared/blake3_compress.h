// BLAKE3's compression function, once for host and device, on a word type that may be a vector: one
// lane a chunk. Source: the BLAKE3 paper (O'Connor, Aumasson, Neves, Wilcox-O'Hearn), section 2.
#pragma once

#include <stddef.h>
#include <stdint.h>

#ifdef __CUDACC__
#define WCUDA_HOST_DEVICE_INLINE __host__ __device__ __forceinline__
#else
#define WCUDA_HOST_DEVICE_INLINE inline __attribute__((always_inline))
#endif
// Every index into the state must be a constant; otherwise the state is in memory, not in
// registers.
#if defined(__CUDA_ARCH__) || defined(__clang__)
#define WCUDA_UNROLL_ALL _Pragma("unroll")
#elif defined(__CUDACC__)
#define WCUDA_UNROLL_ALL  // the host half of a CUDA file does not hash
#else
#define WCUDA_UNROLL_ALL _Pragma("GCC unroll 16")
#endif

namespace wcuda::blake3 {

constexpr uint32_t kDigestBytes = 32;
constexpr uint32_t kBlockBytes = 64;
constexpr uint32_t kChunkBytes = 1024;

constexpr uint32_t kChunkStart = 1, kChunkEnd = 2, kParent = 4, kRoot = 8;

// Returns the initial chaining value of chunks and parents; `zero` is a zero of the word type.
template <class Word>
WCUDA_HOST_DEVICE_INLINE void set_initial_chain(Word chain[8], Word zero) {
  chain[0] = zero + 0x6a09e667u;
  chain[1] = zero + 0xbb67ae85u;
  chain[2] = zero + 0x3c6ef372u;
  chain[3] = zero + 0xa54ff53au;
  chain[4] = zero + 0x510e527fu;
  chain[5] = zero + 0x9b05688cu;
  chain[6] = zero + 0x1f83d9abu;
  chain[7] = zero + 0x5be0cd19u;
}

template <class Word>
WCUDA_HOST_DEVICE_INLINE Word rotate_right(Word x, int bits) {
  return (x >> bits) | (x << (32 - bits));
}

// The addition of a compression; a device may substitute another instruction.
struct PlainSum {
  template <class Word>
  WCUDA_HOST_DEVICE_INLINE Word operator()(Word a, Word b) const {
    return a + b;
  }
};

template <class Word, class Sum>
WCUDA_HOST_DEVICE_INLINE void mix(Word& a, Word& b, Word& c, Word& d, Word x, Word y, Sum sum) {
  a = sum(sum(a, x), b);
  d = rotate_right(d ^ a, 16);
  c = sum(c, d);
  b = rotate_right(b ^ c, 12);
  a = sum(sum(a, y), b);
  d = rotate_right(d ^ a, 8);
  c = sum(c, d);
  b = rotate_right(b ^ c, 7);
}

// Compresses message (16) under chain (8); chain becomes the first half of the output. Overwrites
// message.
// `counter_low`, `counter_high`: index of the chunk, 0 for parents. `length`: bytes of the block.
template <class Word, class Sum = PlainSum>
WCUDA_HOST_DEVICE_INLINE void compress(Word chain[8], Word message[16], Word counter_low,
                                       Word counter_high, Word length, Word flags,
                                       Sum sum = Sum()) {
  Word v[16];
  WCUDA_UNROLL_ALL
  for (int i = 0; i < 8; ++i) v[i] = chain[i];
  // The third row is the first half of the initial chain.
  Word initial[8];
  set_initial_chain<Word>(initial, counter_low ^ counter_low);
  WCUDA_UNROLL_ALL
  for (int i = 0; i < 4; ++i) v[8 + i] = initial[i];
  v[12] = counter_low;
  v[13] = counter_high;
  v[14] = length;
  v[15] = flags;
  WCUDA_UNROLL_ALL
  for (int round = 0; round < 7; ++round) {
    mix(v[0], v[4], v[8], v[12], message[0], message[1], sum);
    mix(v[1], v[5], v[9], v[13], message[2], message[3], sum);
    mix(v[2], v[6], v[10], v[14], message[4], message[5], sum);
    mix(v[3], v[7], v[11], v[15], message[6], message[7], sum);
    mix(v[0], v[5], v[10], v[15], message[8], message[9], sum);
    mix(v[1], v[6], v[11], v[12], message[10], message[11], sum);
    mix(v[2], v[7], v[8], v[13], message[12], message[13], sum);
    mix(v[3], v[4], v[9], v[14], message[14], message[15], sum);
    const Word old[16] = {message[0],  message[1],  message[2],  message[3],
                          message[4],  message[5],  message[6],  message[7],
                          message[8],  message[9],  message[10], message[11],
                          message[12], message[13], message[14], message[15]};
    constexpr int kPermutation[16] = {2, 6, 3, 10, 7, 0, 4, 13, 1, 11, 12, 5, 9, 14, 15, 8};
    WCUDA_UNROLL_ALL
    for (int i = 0; i < 16; ++i) message[i] = old[kPermutation[i]];
  }
  WCUDA_UNROLL_ALL
  for (int i = 0; i < 8; ++i) chain[i] = v[i] ^ v[i + 8];
}

// Pieces: ranges of 2^10 chunks of an input, whose chaining values are nodes of its tree.
constexpr uint64_t kPieceChunks = 1024;
constexpr uint64_t kPieceBytes = kPieceChunks * kChunkBytes;
constexpr uint64_t piece_count(uint64_t bytes) {
  return bytes / kPieceBytes + (bytes % kPieceBytes != 0);
}

}  // namespace wcuda::blake3
