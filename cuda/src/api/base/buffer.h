// The object behind a wcuda_buffer.
#pragma once

#include <cstdint>
#include <memory>

#include "api/base/guard.h"
#include "api/base/handles.h"
#include "core/vram/memory.h"

namespace wcuda::api {

struct BufferObject {
  std::shared_ptr<void> owner;  // of borrowed memory, or null; released after the buffer
  vram::Buffer buffer;
  Exclusive exclusive;
};

template <>
struct HandleOf<wcuda_buffer> : HandleTo<Kind::kBuffer, BufferObject> {};
template <>
struct HandleOf<wcuda_pinned> : HandleTo<Kind::kPinned, vram::Buffer> {};

inline Backend& backend_of(const BufferObject& object) { return object.buffer.memory().backend(); }

// Returns a range of a buffer; WCUDA_OUT_OF_RANGE names the argument and the numbers.
Result<vram::View> view_of(const BufferObject& object, const char* argument, uint64_t offset,
                           uint64_t bytes);

struct CopyRanges {
  uint8_t* target;
  const uint8_t* source;
};
// Checks a copy between two buffers (one context, ranges within both, no overlap) and returns its
// addresses.
Result<CopyRanges> ranges_of_copy(const BufferObject& target, uint64_t target_offset,
                                  const BufferObject& source, uint64_t source_offset,
                                  uint64_t bytes);
// Checks the size of a fill pattern, and that the range consists of whole patterns.
Status check_fill(uint64_t offset, uint64_t bytes, uint32_t pattern_bytes);

}  // namespace wcuda::api
