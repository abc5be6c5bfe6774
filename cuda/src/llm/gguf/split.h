// Names of the parts of a split model: PREFIX-00001-of-00003.gguf.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace wcuda::gguf {

struct SplitName {
  std::string prefix;  // with its folder
  uint32_t number;     // from 1
  uint32_t count;
};

// False if `path` does not end in -NNNNN-of-NNNNN.gguf, digits exactly five.
bool parse_split_path(std::string_view path, SplitName* name);

// Path of part `number` (from 1): the same folder and prefix.
std::string split_path(const SplitName& name, uint32_t number);

}  // namespace wcuda::gguf
