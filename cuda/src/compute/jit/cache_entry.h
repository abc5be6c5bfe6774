// The file format of a compiled program in the cache, and its key. Pure.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "compute/nvrtc/compiler.h"

namespace wcuda::jit {

using CacheKey = std::array<uint8_t, 32>;

// BLAKE3 over the compiler's identity and all of the request, each field with its length: two
// requests share a key only if the same build of NVRTC gets the same input. A request whose result
// depends on files has no key, and `why` says so.
std::optional<CacheKey> cache_key(const nvrtc::Request& request, const std::string& compiler,
                                  std::string* why);
// 64 hexadecimal digits.
std::string key_text(const CacheKey& key);

// { "WCUDAKC1", key (32), BLAKE3 of what follows (32), code, log, u32 names, expression, name, … },
// each text with its length as a u64; numbers little-endian.
std::vector<uint8_t> encode_entry(const CacheKey& key, const nvrtc::Outcome& outcome);

// Returns nothing for bytes that are not a complete entry of this key: a damaged file is no entry.
std::optional<nvrtc::Outcome> decode_entry(const CacheKey& key, std::string_view bytes);

}  // namespace wcuda::jit
