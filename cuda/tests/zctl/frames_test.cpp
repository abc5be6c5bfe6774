// Frames of ZCTL/1 as bytes: checksums, headers, and what is refused.
#include "zctl/frames.h"

#include <gtest/gtest.h>

#include "support/zctl_guest.h"

namespace wcuda::zctl {
namespace {

using testing::bytes_of;

uint32_t crc_of(const std::string& text) {
  return crc32({reinterpret_cast<const uint8_t*>(text.data()), text.size()});
}

TEST(ZctlFrames, crc32_is_that_of_zlib) {
  EXPECT_EQ(crc_of(""), 0u);
  EXPECT_EQ(crc_of("123456789"), 0xcbf43926u);
  EXPECT_EQ(crc_of("The quick brown fox jumps over the lazy dog"), 0x414fa339u);
}

TEST(ZctlFrames, crc32_continues_at_every_cut) {
  const std::string text = "The quick brown fox jumps over the lazy dog";
  const auto* const data = reinterpret_cast<const uint8_t*>(text.data());
  for (size_t cut = 0; cut <= text.size(); ++cut)
    EXPECT_EQ(crc32({data + cut, text.size() - cut}, crc32({data, cut})), 0x414fa339u) << cut;
}

TEST(ZctlFrames, request_fields_are_read_from_their_places) {
  const auto frame =
      bytes_of("5a43544c 0100 0201 01000000 02000000 04000000 03000000 05000000 ffffffff 0a0b0c0d");
  Request request;
  ASSERT_TRUE(read_request({frame.data(), frame.size()}, &request));
  EXPECT_EQ(request.op, kKernelRun);
  EXPECT_EQ(request.flags, 1u);
  EXPECT_EQ(request.req_id, 2u);
  EXPECT_EQ(request.payload_bytes, 4u);
  EXPECT_EQ(request.timeout_ms, 3u);
  EXPECT_EQ(request.crc32, 5u);
  EXPECT_EQ(request.payload.bytes, 4u);
  EXPECT_EQ(request.payload.data[0], 10);
}

TEST(ZctlFrames, every_prefix_and_every_other_magic_and_version_is_no_frame) {
  const auto frame = testing::zctl_frame(1, {});
  Request request;
  for (size_t bytes = 0; bytes < frame.size(); ++bytes) {
    const std::vector<uint8_t> prefix(frame.begin(), frame.begin() + bytes);
    EXPECT_FALSE(read_request({prefix.data(), bytes}, &request)) << bytes;
  }
  for (size_t at = 0; at < 6; ++at)
    for (int bit = 0; bit < 8; ++bit) {
      auto changed = frame;
      changed[at] ^= static_cast<uint8_t>(1 << bit);
      EXPECT_FALSE(read_request({changed.data(), changed.size()}, &request)) << at << "." << bit;
    }
}

TEST(ZctlFrames, lengths_flags_and_checksum_make_a_frame_well_formed) {
  const auto is_good = [](const std::vector<uint8_t>& frame, uint32_t most = 100) {
    Request request;
    EXPECT_TRUE(read_request({frame.data(), frame.size()}, &request));
    return is_well_formed({frame.data(), frame.size()}, request, most);
  };
  auto frame = testing::zctl_frame(1, {1, 2, 3});
  EXPECT_TRUE(is_good(frame));
  EXPECT_TRUE(is_good(frame, 3));
  EXPECT_FALSE(is_good(frame, 2));
  auto longer = frame;
  longer.push_back(0);
  EXPECT_FALSE(is_good(longer));
  auto flagged = frame;
  flagged[11] = 0x80;
  EXPECT_FALSE(is_good(flagged));
  auto summed =
      bytes_of("5a43544c 0100 0100 00000000 01000000 00000000 00000000 1307b523 00000000");
  EXPECT_TRUE(is_good(summed));
  for (size_t at = 6; at < summed.size(); ++at) {
    auto changed = summed;
    changed[at] ^= 1;
    EXPECT_FALSE(is_good(changed)) << at;
  }
}

}  // namespace
}  // namespace wcuda::zctl
