// Headers and checksums of ZCTL/1.
#include "zctl/frames.h"

#include <array>

#include "core/base/bytes.h"

namespace wcuda::zctl {
namespace {

constexpr uint64_t kCrcOffset = 24;

using CrcTables = std::array<std::array<uint32_t, 256>, 8>;

// Table 0 is that of one byte; table k continues over k more bytes of 0, so that eight are taken at
// once.
constexpr CrcTables make_crc_tables() {
  CrcTables tables{};
  for (uint32_t i = 0; i < 256; ++i) {
    uint32_t value = i;
    for (int bit = 0; bit < 8; ++bit) value = value >> 1 ^ (value & 1 ? 0xedb88320u : 0);
    tables[0][i] = value;
  }
  for (size_t k = 1; k < tables.size(); ++k)
    for (size_t i = 0; i < 256; ++i)
      tables[k][i] = tables[k - 1][i] >> 8 ^ tables[0][tables[k - 1][i] & 0xff];
  return tables;
}
constexpr CrcTables kCrc = make_crc_tables();

// Of a frame whose crc32 counts as 0.
uint32_t frame_crc32(Bytes frame) {
  uint8_t header[kHeaderBytes];
  std::memcpy(header, frame.data, kHeaderBytes);
  store_le<uint32_t>(header + kCrcOffset, 0);
  return crc32({frame.data + kHeaderBytes, frame.bytes - kHeaderBytes},
               crc32({header, kHeaderBytes}));
}

}  // namespace

uint32_t crc32(Bytes bytes, uint32_t before) {
  uint32_t value = ~before;
  const uint8_t* data = bytes.data;
  uint64_t left = bytes.bytes;
  for (; left >= 8; left -= 8, data += 8) {
    const uint32_t low = value ^ load_le<uint32_t>(data);
    const auto high = load_le<uint32_t>(data + 4);
    value = kCrc[7][low & 0xff] ^ kCrc[6][low >> 8 & 0xff] ^ kCrc[5][low >> 16 & 0xff] ^
            kCrc[4][low >> 24] ^ kCrc[3][high & 0xff] ^ kCrc[2][high >> 8 & 0xff] ^
            kCrc[1][high >> 16 & 0xff] ^ kCrc[0][high >> 24];
  }
  for (; left != 0; --left, ++data) value = value >> 8 ^ kCrc[0][(value ^ *data) & 0xff];
  return ~value;
}

bool read_request(Bytes frame, Request* request) {
  if (frame.bytes < kHeaderBytes || load_le<uint32_t>(frame.data) != kMagic ||
      load_le<uint16_t>(frame.data + 4) != kVersion)
    return false;
  request->op = load_le<uint16_t>(frame.data + 6);
  request->flags = load_le<uint32_t>(frame.data + 8);
  request->req_id = load_le<uint32_t>(frame.data + 12);
  request->payload_bytes = load_le<uint32_t>(frame.data + 16);
  request->timeout_ms = load_le<uint32_t>(frame.data + 20);
  request->crc32 = load_le<uint32_t>(frame.data + kCrcOffset);
  request->payload = {frame.data + kHeaderBytes, frame.bytes - kHeaderBytes};
  return true;
}

bool is_well_formed(Bytes frame, const Request& request, uint32_t payload_bytes_max) {
  return request.payload.bytes == request.payload_bytes &&
         request.payload_bytes <= payload_bytes_max && request.flags == 0 &&
         (request.crc32 == 0 || request.crc32 == frame_crc32(frame));
}

Bytes Fields::bytes() {
  const uint32_t length = u32();
  if (has_failed_ || length > left_.bytes) {
    has_failed_ = true;
    return {};
  }
  const Bytes result{left_.data, length};
  left_ = {left_.data + length, left_.bytes - length};
  return result;
}

std::string_view Fields::text() {
  const Bytes all = bytes();
  return {reinterpret_cast<const char*>(all.data), all.bytes};
}

uint64_t Fields::number(uint64_t width) {
  if (has_failed_ || width > left_.bytes) {
    has_failed_ = true;
    return 0;
  }
  uint64_t value = 0;
  std::memcpy(&value, left_.data, width);
  left_ = {left_.data + width, left_.bytes - width};
  return value;
}

void Response::finish_capability(uint16_t op, uint32_t request_id) {
  uint8_t* const header = bytes_.data();
  std::memset(header, 0, kCapabilityResponseBytes);
  store_le(header, kCapabilityMagic);
  store_le(header + 4, kVersion);
  store_le(header + 6, op);
  store_le(header + 8, request_id);
  store_le(header + 16, static_cast<uint32_t>(bytes_.size() - kCapabilityResponseBytes));
}

void Response::finish(const Request& request, uint32_t status) {
  uint8_t* const header = bytes_.data();
  std::memset(header, 0, kHeaderBytes);
  store_le(header, kMagic);
  store_le(header + 4, kVersion);
  store_le(header + 6, request.op);
  store_le(header + 12, request.req_id);
  store_le(header + 16, status);
  store_le(header + 20, static_cast<uint32_t>(bytes_.size() - kHeaderBytes));
  if (request.crc32 != 0) store_le(header + kCrcOffset, frame_crc32({header, bytes_.size()}));
}

}  // namespace wcuda::zctl
