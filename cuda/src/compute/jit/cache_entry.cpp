// Keys and entries of the cache of compiled programs.
#include "compute/jit/cache_entry.h"

#include <algorithm>
#include <cstring>

#include "core/base/blake3.h"
#include "core/base/bytes.h"

namespace wcuda::jit {
namespace {

constexpr char kMagic[] = "WCUDAKC1";
constexpr uint64_t kMagicBytes = 8, kDigestBytes = blake3::kDigestBytes;
constexpr uint64_t kHeadBytes = kMagicBytes + 2 * kDigestBytes;

class Writer {
 public:
  void raw(const void* data, uint64_t bytes) {
    const auto* const from = static_cast<const uint8_t*>(data);
    bytes_.insert(bytes_.end(), from, from + bytes);
  }
  template <class T>
  void number(T value) {
    uint8_t out[sizeof(T)];
    store_le(out, value);
    raw(out, sizeof(T));
  }
  void text(std::string_view text) {
    number<uint64_t>(text.size());
    raw(text.data(), text.size());
  }
  void texts(const std::vector<std::string>& list) {
    number<uint64_t>(list.size());
    for (const std::string& each : list) text(each);
  }
  std::vector<uint8_t>& bytes() { return bytes_; }

 private:
  std::vector<uint8_t> bytes_;
};

bool read_text(ByteReader& reader, std::string_view* text) {
  uint64_t bytes = 0;
  return reader.read(&bytes) && reader.take(bytes, text);
}

// Options with which NVRTC reads or writes files.
bool names_files(const std::string& option) {
  const size_t dashes = std::min(option.find_first_not_of('-'), option.size());
  const std::string word = option.substr(dashes);
  for (const char* start :
       {"I", "include-path", "pre-include", "include", "pch", "create-pch", "use-pch",
        "fdevice-time-trace", "device-time-trace", "optix", "gen-opt-lto", "dlto"})
    if (word.compare(0, std::strlen(start), start) == 0) return true;
  return dashes == 0;  // the value of an option before it
}

}  // namespace

std::optional<CacheKey> cache_key(const nvrtc::Request& request, const std::string& compiler,
                                  std::string* why) {
  if (!request.include_folders.empty()) {
    *why = "include folders: what they hold may change";
    return {};
  }
  for (const std::string& extra : request.extras) {
    if (!names_files(extra)) continue;
    *why = "extra option '" + extra + "': may read files";
    return {};
  }
  Writer writer;
  writer.text(kMagic);
  writer.text(compiler);
  writer.texts(nvrtc::options_of(request));
  writer.text(request.name);
  writer.text(request.source);
  writer.texts(request.expressions);
  writer.number<uint64_t>(request.headers.size());
  for (const nvrtc::Header& header : request.headers) {
    writer.text(header.name);
    writer.text(header.text);
  }
  CacheKey key;
  blake3::hash(writer.bytes().data(), writer.bytes().size(), key.data());
  return key;
}

std::string key_text(const CacheKey& key) {
  std::string result;
  for (const uint8_t byte : key) {
    result += "0123456789abcdef"[byte >> 4];
    result += "0123456789abcdef"[byte & 15];
  }
  return result;
}

std::vector<uint8_t> encode_entry(const CacheKey& key, const nvrtc::Outcome& outcome) {
  Writer writer;
  writer.raw(kMagic, kMagicBytes);
  writer.raw(key.data(), key.size());
  writer.bytes().resize(kHeadBytes);
  writer.text({reinterpret_cast<const char*>(outcome.code.data()), outcome.code.size()});
  writer.text(outcome.log);
  writer.number<uint32_t>(static_cast<uint32_t>(outcome.names.size()));
  for (const auto& [expression, name] : outcome.names) {
    writer.text(expression);
    writer.text(name);
  }
  std::vector<uint8_t>& bytes = writer.bytes();
  blake3::hash(bytes.data() + kHeadBytes, bytes.size() - kHeadBytes,
               bytes.data() + kMagicBytes + kDigestBytes);
  return std::move(bytes);
}

std::optional<nvrtc::Outcome> decode_entry(const CacheKey& key, std::string_view bytes) {
  if (bytes.size() < kHeadBytes || std::memcmp(bytes.data(), kMagic, kMagicBytes) != 0 ||
      std::memcmp(bytes.data() + kMagicBytes, key.data(), key.size()) != 0)
    return {};
  uint8_t digest[kDigestBytes];
  blake3::hash(bytes.data() + kHeadBytes, bytes.size() - kHeadBytes, digest);
  if (std::memcmp(bytes.data() + kMagicBytes + kDigestBytes, digest, kDigestBytes) != 0) return {};

  ByteReader reader(bytes.data() + kHeadBytes, bytes.size() - kHeadBytes);
  std::string_view code, log;
  uint32_t name_count = 0;
  if (!read_text(reader, &code) || !read_text(reader, &log) || !reader.read(&name_count)) return {};
  nvrtc::Outcome outcome;
  for (uint32_t i = 0; i < name_count; ++i) {
    std::string_view expression, name;
    if (!read_text(reader, &expression) || !read_text(reader, &name)) return {};
    if (!outcome.names.emplace(expression, name).second) return {};
  }
  if (reader.bytes_left() != 0) return {};
  outcome.code.assign(code.begin(), code.end());
  outcome.log = log;
  return outcome;
}

}  // namespace wcuda::jit
