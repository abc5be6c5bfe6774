// What the fuzzers of ZCTL/1 do with one input, and the test that replays their corpora.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace wcuda::fuzz {

// The input as a frame. "" when all that must hold did, else what did not.
std::string exercise_zctl_frame(const uint8_t* data, size_t bytes);

// The input as calls of one session: a byte of flags (b0: of a connection; b1: the response window
// is small; b2: a recorder), two bytes of the frame's length, the frame, and then the guest's
// memory. Kernels are an interface without a device. "" likewise.
std::string exercise_zctl_session(const uint8_t* data, size_t bytes);

// The input as steps of one session, of a connection: a byte (0 a frame, 1 a read, 2 a write, 3 the
// end of a handle, modulo 4), two bytes of length, and so many bytes: the frame; or the handle's
// number (one byte), and for a write the bytes, for a read two bytes of capacity. "" likewise.
std::string exercise_zctl_capabilities(const uint8_t* data, size_t bytes);

}  // namespace wcuda::fuzz
