// The object behind a wcuda_context.
#pragma once

#include <cstdint>
#include <memory>

#include "api/base/handles.h"
#include "core/backend/open.h"
#include "core/vram/memory.h"

namespace wcuda::api {

struct Context {
  std::shared_ptr<vram::Memory> memory;
  wcuda_context_info info;
};

// Creates a context on a backend; see wcuda_context_options for the budget.
std::shared_ptr<Context> make_context(std::shared_ptr<Backend> backend, uint64_t budget,
                                      vram::Scrub scrub);

// Checks the options of a new context, and returns all but its backend and ordinal.
Result<OpenOptions> read_context_options(const wcuda_context_options& options);

template <>
struct HandleOf<wcuda_context> : HandleTo<Kind::kContext, Context> {};

}  // namespace wcuda::api
