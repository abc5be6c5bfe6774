// What stands behind a wcuda_buffer.
#pragma once

#include "api/guard.h"
#include "api/handles.h"
#include "vram/memory.h"

namespace wcuda::api {

struct BufferObject {
  vram::Buffer buffer;
  Exclusive exclusive;
};

inline Result<std::shared_ptr<BufferObject>> resolve_buffer(wcuda_buffer buffer,
                                                            const char* argument) {
  return resolve<BufferObject>(Kind::kBuffer, buffer.id, argument);
}

}  // namespace wcuda::api
