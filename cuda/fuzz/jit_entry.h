// What the fuzzers of run-time kernels do with one input; shared with the test that replays their
// corpora. Each returns "" or the first thing found wrong.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace wcuda::fuzz {

// As device code: what is let through is whole by its own headers, what is not is WCUDA_MALFORMED
// with a one-line message.
std::string exercise_code(const uint8_t* data, size_t bytes);

// As an entry of the kernel cache, once as it is and once with its digest made right, so that the
// parser behind the digest is reached. What is read must come out the same when written again.
std::string exercise_cache(const uint8_t* data, size_t bytes);

// As a launch: dimensions, limits, a signature, what the code tells, arguments. Nothing that is let
// through passes a limit.
std::string exercise_launch(const uint8_t* data, size_t bytes);

}  // namespace wcuda::fuzz
