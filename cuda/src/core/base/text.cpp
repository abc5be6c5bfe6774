// UTF-8 checking and the quoting of foreign text in messages.
#include "core/base/text.h"

#include <cstdint>
#include <cstdio>

#include "core/base/bytes.h"

namespace wcuda {

size_t utf8_bytes(const uint8_t* s, size_t left) {
  const uint8_t lead = s[0];
  if (lead < 0x80) return 1;
  // The second byte's range excludes overlong forms, surrogates and values past U+10FFFF.
  uint8_t low = 0x80, high = 0xBF;
  size_t bytes;
  if (lead >= 0xC2 && lead <= 0xDF) {
    bytes = 2;
  } else if (lead >= 0xE0 && lead <= 0xEF) {
    bytes = 3;
    if (lead == 0xE0) low = 0xA0;
    if (lead == 0xED) high = 0x9F;
  } else if (lead >= 0xF0 && lead <= 0xF4) {
    bytes = 4;
    if (lead == 0xF0) low = 0x90;
    if (lead == 0xF4) high = 0x8F;
  } else {
    return 0;
  }
  if (left < bytes || s[1] < low || s[1] > high) return 0;
  for (size_t i = 2; i < bytes; ++i)
    if ((s[i] & 0xC0) != 0x80) return 0;
  return bytes;
}

bool is_utf8(std::string_view text) {
  const uint8_t* s = reinterpret_cast<const uint8_t*>(text.data());
  size_t left = text.size();
  while (left > 0) {
    if (left >= 8 && (load_le<uint64_t>(s) & 0x8080808080808080ull) == 0) {
      s += 8;
      left -= 8;
      continue;
    }
    const size_t bytes = utf8_bytes(s, left);
    if (bytes == 0) return false;
    s += bytes;
    left -= bytes;
  }
  return true;
}

std::string printable(std::string_view text) {
  constexpr size_t kMaxBytes = 80;
  bool cut = text.size() > kMaxBytes;
  if (cut) {
    size_t bytes = kMaxBytes;  // reduced to the start of a character
    while (bytes > kMaxBytes - 4 && (static_cast<uint8_t>(text[bytes]) & 0xC0) == 0x80) --bytes;
    text = text.substr(0, bytes);
  }
  const bool utf8 = is_utf8(text);
  std::string shown;
  for (const char c : text) {
    const uint8_t byte = static_cast<uint8_t>(c);
    if (byte < 0x20 || byte == 0x7F || (byte >= 0x80 && !utf8)) {
      char escaped[8];
      std::snprintf(escaped, sizeof(escaped), "\\x%02X", byte);
      shown += escaped;
    } else {
      shown += c;
    }
  }
  return cut ? shown + "..." : shown;
}

}  // namespace wcuda
