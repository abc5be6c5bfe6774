// What the GGUF fuzzer does with one input; shared with the test that replays its corpus.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "llm/gguf/gguf.h"

namespace wcuda::fuzz {

// Opens the bytes as a file, from memory and through a callback that fails part of the way, and
// calls every getter and reader on what opens. Returns "" or the first thing found wrong: an answer
// that contradicts another, a range outside the file, a failure without a message. `is_open` (may
// be null) receives whether the file was accepted.
std::string exercise_gguf(const uint8_t* data, size_t bytes, bool* is_open = nullptr);

// The same checks on an open file.
std::string check_gguf(const gguf::Gguf& file);

}  // namespace wcuda::fuzz
