// What stands behind a wcuda_buffer.
#pragma once

#include <cstdint>
#include <memory>

#include "api/base/guard.h"
#include "api/base/handles.h"
#include "core/vram/memory.h"

namespace wcuda::api {

struct BufferObject {
  std::shared_ptr<void> owner;  // of borrowed memory, where it has one; goes after the buffer
  vram::Buffer buffer;
  Exclusive exclusive;
};

inline Result<std::shared_ptr<BufferObject>> resolve_buffer(wcuda_buffer buffer,
                                                            const char* argument) {
  return resolve<BufferObject>(Kind::kBuffer, buffer.id, argument);
}

inline Backend& backend_of(const BufferObject& object) { return object.buffer.memory().backend(); }

// A range of a buffer; WCUDA_OUT_OF_RANGE names the argument and the numbers.
Result<vram::View> view_of(const BufferObject& object, const char* argument, uint64_t offset,
                           uint64_t bytes);

struct CopyRanges {
  uint8_t* target;
  const uint8_t* source;
};
// Where a copy between two buffers goes: of one context, within both, not overlapping.
Result<CopyRanges> ranges_of_copy(const BufferObject& target, uint64_t target_offset,
                                  const BufferObject& source, uint64_t source_offset,
                                  uint64_t bytes);
// A pattern that is one, in a range of whole patterns.
Status check_fill(uint64_t offset, uint64_t bytes, uint32_t pattern_bytes);

}  // namespace wcuda::api
