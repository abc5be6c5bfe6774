// What the fuzzer of kernel descriptors does with one input, and the test that replays its corpus.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace wcuda::fuzz {

// The input as a descriptor and a call of it, in lines: the texts of grid, block, threads and
// shared memory, apart by "|"; then a line a parameter: characters of its kind, its elements' type
// and its access, and name, shape, min and max, apart by "|"; behind a NUL eight bytes an argument.
// "" when all that must hold did, else what did not.
std::string exercise_descriptor(const uint8_t* data, size_t bytes);

}  // namespace wcuda::fuzz
