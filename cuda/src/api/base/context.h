// The object behind a wcuda_context.
#pragma once

#include <cstdint>
#include <memory>

#include "api/base/handles.h"
#include "core/vram/memory.h"

namespace wcuda::api {

struct Context {
  std::shared_ptr<vram::Memory> memory;
  wcuda_context_info info;
};

// Creates a context on a backend; see wcuda_context_options for the budget.
std::shared_ptr<Context> make_context(std::shared_ptr<Backend> backend, uint64_t budget,
                                      vram::Scrub scrub);

inline Result<std::shared_ptr<Context>> resolve_context(wcuda_context context) {
  return resolve<Context>(Kind::kContext, context.id, "context");
}

// Removes a handle for a …_destroy function. Id 0 is ignored; any other must be live.
Status destroy_handle(Kind kind, uint64_t id, const char* argument);

}  // namespace wcuda::api
