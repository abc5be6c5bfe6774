// Section 15 of the header through the C interface, on the host backend and (Gpu…) on CUDA.
#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "support/context.h"
#include "support/fault_context.h"

namespace wcuda::testing {
namespace {

class DigestBase {
 protected:
  explicit DigestBase(int32_t backend) : context_(0, backend) {}

  void pieces_join_to_the_digest_and_name_a_changed_mib();

  TestContext context_;
  wcuda_error error_{};
};

void DigestBase::pieces_join_to_the_digest_and_name_a_changed_mib() {
  constexpr uint64_t kBytes = (uint64_t{6} << 20) + 4321;
  const TestBuffer buffer(context_.handle(), kBytes + 1);
  std::vector<uint8_t> data(kBytes + 1);
  for (uint64_t i = 0; i < data.size(); ++i) data[i] = static_cast<uint8_t>(i * 2654435761u >> 9);
  ASSERT_EQ(wcuda_buffer_write(buffer.handle(), 0, data.data(), data.size(), &error_), WCUDA_OK);
  uint8_t pieces[7 * 32], digest[32], joined[32];

  ASSERT_EQ(wcuda_buffer_digest_pieces(buffer.handle(), 1, kBytes, 0, pieces, 7, &error_), WCUDA_OK)
      << error_.message;
  ASSERT_EQ(wcuda_buffer_digest(buffer.handle(), 1, kBytes, digest, &error_), WCUDA_OK);
  ASSERT_EQ(wcuda_digest_join(pieces, 7, joined, &error_), WCUDA_OK);
  EXPECT_EQ(std::memcmp(joined, digest, 32), 0);

  data[1 + (4 << 20)] ^= 0x10;
  ASSERT_EQ(wcuda_buffer_write(buffer.handle(), 0, data.data(), data.size(), &error_), WCUDA_OK);
  uint8_t changed[7 * 32];
  ASSERT_EQ(wcuda_buffer_digest_pieces(buffer.handle(), 1, kBytes, 0, changed, 7, &error_),
            WCUDA_OK);
  for (int piece = 0; piece < 7; ++piece)
    EXPECT_EQ(std::memcmp(pieces + 32 * piece, changed + 32 * piece, 32) != 0, piece == 4);
}

class DigestApi : public ::testing::Test, protected DigestBase {
 protected:
  DigestApi() : DigestBase(WCUDA_BACKEND_HOST) {}
};
TEST_F(DigestApi, pieces_join_to_the_digest_and_name_a_changed_mib) {
  pieces_join_to_the_digest_and_name_a_changed_mib();
}

class GpuDigestApi : public ::testing::Test, protected DigestBase {
 protected:
  GpuDigestApi() : DigestBase(WCUDA_BACKEND_CUDA) {}
};
TEST_F(GpuDigestApi, pieces_join_to_the_digest_and_name_a_changed_mib) {
  pieces_join_to_the_digest_and_name_a_changed_mib();
}

TEST_F(DigestApi, misuse_is_refused_and_leaves_the_output) {
  const TestBuffer buffer(context_.handle(), 100);
  uint8_t pieces[32], digest[32];
  std::memset(pieces, 0x5a, 32);
  const wcuda_buffer handle = buffer.handle();
  EXPECT_EQ(wcuda_buffer_digest_pieces(handle, 0, 0, 0, pieces, 1, nullptr),
            WCUDA_INVALID_ARGUMENT);
  EXPECT_EQ(wcuda_buffer_digest_pieces(handle, 0, 100, 0, nullptr, 1, nullptr),
            WCUDA_INVALID_ARGUMENT);
  EXPECT_EQ(wcuda_buffer_digest_pieces(handle, 1, 100, 0, pieces, 1, nullptr), WCUDA_OUT_OF_RANGE);
  EXPECT_EQ(wcuda_buffer_digest_pieces(handle, 0, 100, UINT64_MAX, pieces, 1, nullptr),
            WCUDA_OUT_OF_RANGE);
  EXPECT_EQ(wcuda_buffer_digest_pieces(handle, 0, 100, 0, pieces, 0, &error_),
            WCUDA_BUFFER_TOO_SMALL);
  EXPECT_STREQ(error_.message, "piece_capacity: 0, 1 pieces are needed");
  EXPECT_EQ(wcuda_buffer_digest_pieces(wcuda_buffer{1}, 0, 100, 0, pieces, 1, nullptr),
            WCUDA_INVALID_HANDLE);
  for (const uint64_t count : {0, 1})
    EXPECT_EQ(wcuda_digest_join(pieces, count, digest, nullptr), WCUDA_INVALID_ARGUMENT);
  EXPECT_EQ(wcuda_digest_join(nullptr, 2, digest, nullptr), WCUDA_INVALID_ARGUMENT);
  for (const uint8_t byte : pieces) EXPECT_EQ(byte, 0x5a);
}

TEST_F(DigestApi, a_failing_device_leaves_the_output) {
  const FaultContext context;
  const TestBuffer buffer(context.handle(), 100);
  uint8_t pieces[32] = {9};
  context.faults().fail(CallKind::kLaunch, 1);
  EXPECT_EQ(wcuda_buffer_digest_pieces(buffer.handle(), 0, 100, 0, pieces, 1, nullptr),
            WCUDA_DEVICE_ERROR);
  EXPECT_EQ(pieces[0], 9);
}

}  // namespace
}  // namespace wcuda::testing
