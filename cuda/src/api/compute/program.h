// The object behind a wcuda_program.
#pragma once

#include <memory>
#include <string>

#include "api/base/guard.h"
#include "api/base/handles.h"
#include "compute/jit/kernel_cache.h"
#include "compute/nvrtc/compiler.h"
#include "core/backend/backend.h"
#include "worker_cuda/compute.h"

namespace wcuda::api {

struct ProgramObject {
  nvrtc::Request request;
  std::string library_folder;
  nvrtc::Outcome outcome;
  int32_t state = WCUDA_PROGRAM_NEW;
  int32_t nvrtc_version = 0;
  uint64_t compile_ns = 0;
  std::shared_ptr<jit::KernelCache> cache;  // may be null
  int32_t cache_result = WCUDA_CACHE_NONE;
  std::weak_ptr<Backend> backend;  // of its context, not kept alive; may be empty
  Exclusive exclusive;
};

template <>
struct HandleOf<wcuda_program> : HandleTo<Kind::kProgram, ProgramObject> {};
template <>
struct HandleOf<wcuda_kernel_cache> : HandleTo<Kind::kKernelCache, jit::KernelCache> {};

// WCUDA_INVALID_STATE unless it has been compiled.
Status check_compiled(const ProgramObject& program);

}  // namespace wcuda::api
