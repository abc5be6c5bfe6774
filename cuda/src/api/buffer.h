// What stands behind a wcuda_buffer.
#pragma once

#include <cstdint>
#include <memory>

#include "api/guard.h"
#include "api/handles.h"
#include "vram/memory.h"

namespace wcuda::api {

struct BufferObject {
  std::shared_ptr<void> owner;  // of adopted memory, where it has one; goes after the buffer
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

}  // namespace wcuda::api
