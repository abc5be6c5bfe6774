// Text from foreign files: is it UTF-8, and how messages and fields of fixed size show it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

namespace wcuda {

// True for well-formed UTF-8 (RFC 3629: shortest forms only, no surrogates, up to U+10FFFF).
bool is_utf8(std::string_view text);

// Bytes of the character that starts at `s`, of `left` bytes; 0 if it is not well formed.
size_t utf8_bytes(const uint8_t* s, size_t left);

// `text` fit for a one-line message: at most 80 bytes of it, then "..."; control characters, and
// all bytes past ASCII if it is not UTF-8, as \xNN.
std::string printable(std::string_view text);

// Copies UTF-8 text into a field of field_bytes > 0, NUL-terminated and cut between
// characters. Returns the bytes written before the NUL.
inline uint32_t copy_text(std::string_view text, char* field, size_t field_bytes) {
  size_t bytes = std::min(text.size(), field_bytes - 1);
  if (bytes < text.size())
    while (bytes > 0 && (static_cast<unsigned char>(text[bytes]) & 0xc0) == 0x80) --bytes;
  if (bytes != 0) std::memcpy(field, text.data(), bytes);
  field[bytes] = 0;
  return static_cast<uint32_t>(bytes);
}

}  // namespace wcuda
