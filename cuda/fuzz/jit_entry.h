// What the fuzzers of run-time kernels do with one input; shared with the test that replays their
// corpora. Each returns "" or the first thing found wrong.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace wcuda::fuzz {

// As device code: accepted code is complete by its own headers, any other is WCUDA_MALFORMED with
// a one-line message.
std::string exercise_code(const uint8_t* data, size_t bytes);

// As an entry of the kernel cache, once as it is and once with a corrected digest, so that the
// parser behind the digest is reached. An entry that was read is the same when written again.
std::string exercise_cache(const uint8_t* data, size_t bytes);

// As a launch: dimensions, limits, a signature, the parameters that the code reports, arguments. An
// accepted launch exceeds no limit.
std::string exercise_launch(const uint8_t* data, size_t bytes);

}  // namespace wcuda::fuzz
