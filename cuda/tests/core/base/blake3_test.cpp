#include "core/base/blake3.h"

#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "support/blake3_vectors.h"

namespace wcuda::blake3 {
namespace {

std::string hash_in_pieces(const std::vector<uint8_t>& data, uint64_t bytes, uint64_t piece) {
  Hasher hasher;
  for (uint64_t done = 0; done < bytes; done += piece)
    hasher.update(data.data() + done, std::min(piece, bytes - done));
  uint8_t digest[kDigestBytes];
  hasher.finish(digest);
  return testing::hex(digest);
}

TEST(Blake3, equals_the_reference_implementation) {
  const auto vectors = testing::blake3_vectors();
  const auto data = testing::blake3_input(vectors.back().bytes);
  ASSERT_GE(vectors.size(), 80u);

  for (const auto& vector : vectors) {
    uint8_t digest[kDigestBytes];
    hash(data.data(), vector.bytes, digest);
    EXPECT_EQ(testing::hex(digest), vector.digest) << vector.bytes << " bytes";
  }
}

TEST(Blake3, pieces_do_not_matter) {
  const auto vectors = testing::blake3_vectors();
  const auto data = testing::blake3_input(vectors.back().bytes);

  for (const auto& vector : vectors) {
    for (const uint64_t piece : {1023, 1024, 1025, 65536, 65537, 300001})
      EXPECT_EQ(hash_in_pieces(data, vector.bytes, piece), vector.digest)
          << vector.bytes << " bytes in pieces of " << piece;
    if (vector.bytes < 70000) {
      EXPECT_EQ(hash_in_pieces(data, vector.bytes, 1), vector.digest) << vector.bytes;
    }
  }
}

TEST(Blake3, finish_may_be_called_midway) {
  const auto data = testing::blake3_input(200000);
  Hasher hasher;
  uint8_t midway[kDigestBytes], expected[kDigestBytes], digest[kDigestBytes];

  hasher.update(data.data(), 70000);
  hasher.finish(midway);
  hasher.update(data.data() + 70000, 130000);
  hasher.finish(digest);

  hash(data.data(), 70000, expected);
  EXPECT_EQ(std::memcmp(midway, expected, kDigestBytes), 0);
  hash(data.data(), 200000, expected);
  EXPECT_EQ(std::memcmp(digest, expected, kDigestBytes), 0);
}

using HashMany = void (*)(const ManyArgs&);

void expect_equal_to_scalar(HashMany candidate) {
  const auto data = testing::blake3_input(70 * kChunkBytes);
  for (uint32_t count = 0; count <= 35; ++count)
    for (const uint64_t counter : {uint64_t{0}, uint64_t{0xfffffff0}, uint64_t{1} << 40}) {
      std::vector<uint32_t> expected(8 * count + 8, 7), chains(8 * count + 8, 7);
      ManyArgs args{data.data() + 3, 2 * kChunkBytes, count,          16, counter, 1, 0,
                    kChunkStart,     kChunkEnd,       expected.data()};
      hash_many_scalar(args);
      args.chains = chains.data();
      candidate(args);
      EXPECT_EQ(chains, expected) << count << " inputs, counter " << counter;
    }
}

#if defined(__x86_64__)
TEST(Blake3, avx2_equals_scalar) {
  if (!__builtin_cpu_supports("avx2")) GTEST_SKIP() << "this processor has no AVX2";
  expect_equal_to_scalar(hash_many_avx2);
}

TEST(Blake3, avx512_equals_scalar) {
  if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512vl") ||
      !__builtin_cpu_supports("avx512bw") || !__builtin_cpu_supports("avx512dq"))
    GTEST_SKIP() << "this processor has no AVX-512";
  expect_equal_to_scalar(hash_many_avx512);
}
#endif

// Sizes around every border of chunks, groups and pieces.
std::vector<uint64_t> piece_sizes() {
  std::vector<uint64_t> sizes = {1, 63, 64, 65, 1023, 1024, 1025};
  for (const uint64_t mib : {1, 2, 3, 4, 5, 7, 8, 9})
    for (const int64_t more : {-1025, -1, 0, 1, 1024})
      sizes.push_back((mib << 20) + static_cast<uint64_t>(more));
  return sizes;
}

TEST(Blake3, pieces_join_to_the_digest_of_the_whole) {
  std::vector<uint8_t> data(10 << 20);
  for (size_t i = 0; i < data.size(); ++i) data[i] = static_cast<uint8_t>(i * 2654435761u >> 13);
  for (const uint64_t bytes : piece_sizes()) {
    const uint64_t count = piece_count(bytes);
    std::vector<uint8_t> pieces(count * 32);
    uint8_t expected[32], joined[32];
    hash_pieces(data.data() + 3, bytes, 0, pieces.data());
    hash(data.data() + 3, bytes, expected);
    if (count < 2) continue;

    join_pieces(pieces.data(), count, joined);

    EXPECT_EQ(std::memcmp(joined, expected, 32), 0) << bytes;
  }
}

TEST(Blake3, a_piece_is_the_same_alone_and_in_its_range) {
  std::vector<uint8_t> data((3 << 20) + 777, 5);
  std::vector<uint8_t> pieces(4 * 32), alone(32);
  hash_pieces(data.data(), data.size(), 7, pieces.data());
  for (uint64_t piece = 0; piece < 4; ++piece) {
    const uint64_t offset = piece << 20;
    hash_pieces(data.data() + offset, std::min<uint64_t>(1 << 20, data.size() - offset), 7 + piece,
                alone.data());
    EXPECT_EQ(std::memcmp(alone.data(), pieces.data() + piece * 32, 32), 0) << piece;
  }
  // Equal data, other places: other values.
  EXPECT_NE(std::memcmp(pieces.data(), pieces.data() + 32, 32), 0);

  data[(1 << 20) + 5] ^= 1;
  std::vector<uint8_t> changed(4 * 32);
  hash_pieces(data.data(), data.size(), 7, changed.data());
  for (uint64_t piece = 0; piece < 4; ++piece)
    EXPECT_EQ(std::memcmp(changed.data() + piece * 32, pieces.data() + piece * 32, 32) != 0,
              piece == 1);
}

}  // namespace
}  // namespace wcuda::blake3
