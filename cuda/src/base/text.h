// Text from foreign files: is it UTF-8, and how a message shows it.
#pragma once

#include <string>
#include <string_view>

namespace wcuda {

// True for well-formed UTF-8 (RFC 3629: shortest forms only, no surrogates, up to U+10FFFF).
bool is_utf8(std::string_view text);

// `text` fit for a one-line message: at most 80 bytes of it, then "..."; control characters, and
// all bytes past ASCII if it is not UTF-8, as \xNN.
std::string printable(std::string_view text);

}  // namespace wcuda
