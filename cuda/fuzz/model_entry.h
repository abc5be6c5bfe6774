// What the model fuzzer does with one input; shared with the test that replays its corpus.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace wcuda::fuzz {

// Opens the bytes as a GGUF file, plans its load, and loads it on the host if it is small. Returns
// "" or the first thing found wrong: a plan that differs from the ledger, a weight outside its
// buffer, a failure without a message, memory left behind. `is_loaded` (may be null) receives
// whether the model was loaded.
std::string exercise_model(const uint8_t* data, size_t bytes, bool* is_loaded = nullptr);

}  // namespace wcuda::fuzz
