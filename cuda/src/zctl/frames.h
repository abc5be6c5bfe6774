// ZCTL/1 frames (docs/FORMATS.md): headers from bytes and to bytes. Pure: no memory of a guest, no
// device.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

namespace wcuda::zctl {

constexpr uint32_t kMagic = 0x4c54435a;  // "ZCTL"
constexpr uint16_t kVersion = 1;
constexpr uint64_t kHeaderBytes = 32;
constexpr uint64_t kRunHeaderBytes = 16;
constexpr uint64_t kWireArgumentBytes = 16;
constexpr uint64_t kRunResponseBytes = kHeaderBytes + 12;  // without a message

enum Code : uint32_t {
  kOk = 0,
  kMalformed = 1,
  kUnsupported = 2,
  kDenied = 3,
  kTimeout = 4,
  kNoMemory = 5,
  kBackend = 6,
  kBadArguments = 7,
};

enum Op : uint16_t {
  kCapsList = 0x0001,
  kKernelList = 0x0101,
  kKernelRun = 0x0102,
  kFirstRemoteOp = 0x8000,  // from here on for connections only
  kMemWrite = 0x8001,
  kMemRead = 0x8002,
  kMemInfo = 0x8003,
  kHandleRead = 0x8011,
  kHandleWrite = 0x8012,
  kHandleEnd = 0x8013,
  kKernelDescribe = 0x8021,
};

// Bytes that the caller owns.
struct Bytes {
  const uint8_t* data = nullptr;
  uint64_t bytes = 0;
};

struct Request {
  uint16_t op = 0;
  uint32_t flags = 0;
  uint32_t req_id = 0;
  uint32_t payload_bytes = 0;  // as the header states it
  uint32_t timeout_ms = 0;
  uint32_t crc32 = 0;  // 0: none
  Bytes payload;       // what follows the header
};

// False for fewer than 32 bytes, another magic or another version.
bool read_request(Bytes frame, Request* request);
// Whether the lengths agree, flags are 0, and crc32 is 0 or right.
bool is_well_formed(Bytes frame, const Request& request, uint32_t payload_bytes_max);

// zlib's CRC-32, continued from that of the bytes before; of none 0.
uint32_t crc32(Bytes bytes, uint32_t before = 0);

// A response under construction; keeps its memory from one to the next.
class Response {
 public:
  // Discards what there is, and leaves room for the header.
  void begin(uint64_t header_bytes = kHeaderBytes) {
    header_bytes_ = header_bytes;
    bytes_.resize(header_bytes);
  }
  void put_u32(uint32_t value) { put(&value, sizeof(value)); }
  // Overwrites four bytes; of what is there already.
  void set_u32(uint64_t offset, uint32_t value) {
    std::memcpy(bytes_.data() + offset, &value, sizeof(value));
  }
  void put_u64(uint64_t value) { put(&value, sizeof(value)); }
  // A length of 32 bits, and the text.
  void put_text(std::string_view text) {
    put_u32(static_cast<uint32_t>(text.size()));
    put(text.data(), text.size());
  }
  void put(const void* data, uint64_t bytes) {
    const auto* const first = static_cast<const uint8_t*>(data);
    bytes_.insert(bytes_.end(), first, first + bytes);
  }
  // Where so many bytes go; valid until anything else is put.
  uint8_t* put_room(uint64_t bytes) {
    bytes_.resize(bytes_.size() + bytes);
    return bytes_.data() + bytes_.size() - bytes;
  }
  // Discards the payload behind its first `bytes` bytes.
  void cut_payload(uint64_t bytes) { bytes_.resize(header_bytes_ + bytes); }
  // Writes the header, once the payload is complete.
  void finish(const Request& request, uint32_t status);
  // The same of a response of ZCL1.
  void finish_capability(uint16_t op, uint32_t request_id);

  const uint8_t* data() const { return bytes_.data(); }
  uint64_t bytes() const { return bytes_.size(); }

 private:
  uint64_t header_bytes_ = kHeaderBytes;
  std::vector<uint8_t> bytes_;
};

// ZCL1, the framing of capabilities.
constexpr uint32_t kCapabilityMagic = 0x314c435a;  // "ZCL1"
constexpr uint64_t kCapabilityIdBytes = 12;        // what an answer needs of a request
constexpr uint64_t kCapabilityHeaderBytes = 24;    // of a request
constexpr uint64_t kCapabilityResponseBytes = 20;  // of a response's header

enum CapabilityOp : uint16_t { kList = 1, kDescribe = 2, kOpen = 3 };

// Reads the fields of a payload in their order. A missing byte makes all that follow 0 and empty.
class Fields {
 public:
  explicit Fields(Bytes bytes) : left_(bytes) {}
  uint8_t u8() { return static_cast<uint8_t>(number(1)); }
  uint16_t u16() { return static_cast<uint16_t>(number(2)); }
  uint32_t u32() { return static_cast<uint32_t>(number(4)); }
  uint64_t u64() { return number(8); }
  // A length of 32 bits, and so many bytes.
  Bytes bytes();
  std::string_view text();
  bool has_failed() const { return has_failed_; }
  // Whether exactly all bytes were read.
  bool is_complete() const { return !has_failed_ && left_.bytes == 0; }

 private:
  uint64_t number(uint64_t width);

  Bytes left_;
  bool has_failed_ = false;
};

}  // namespace wcuda::zctl
