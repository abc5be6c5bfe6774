// Parses and builds the file names of a split model.
#include "llm/gguf/split.h"

#include <cstdio>

namespace wcuda::gguf {
namespace {

bool parse_five_digits(std::string_view text, uint32_t* number) {
  uint32_t value = 0;
  for (const char c : text) {
    if (c < '0' || c > '9') return false;
    value = value * 10 + static_cast<uint32_t>(c - '0');
  }
  *number = value;
  return true;
}

}  // namespace

bool parse_split_path(std::string_view path, SplitName* name) {
  constexpr std::string_view kPattern = "-00001-of-00003.gguf";
  if (path.size() <= kPattern.size()) return false;
  const std::string_view tail = path.substr(path.size() - kPattern.size());
  if (tail[0] != '-' || tail.substr(6, 4) != "-of-" || tail.substr(15) != ".gguf") return false;
  SplitName parsed;
  if (!parse_five_digits(tail.substr(1, 5), &parsed.number)) return false;
  if (!parse_five_digits(tail.substr(10, 5), &parsed.count)) return false;
  parsed.prefix = path.substr(0, path.size() - kPattern.size());
  *name = std::move(parsed);
  return true;
}

std::string split_path(const SplitName& name, uint32_t number) {
  char tail[64];
  std::snprintf(tail, sizeof(tail), "-%05u-of-%05u.gguf", number, name.count);
  return name.prefix + tail;
}

}  // namespace wcuda::gguf
