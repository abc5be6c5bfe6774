// The handles of files and models, and the engine's default options, which several sections use.
#pragma once

#include "api/base/handles.h"
#include "llm/gguf/gguf.h"
#include "llm/model/model.h"
#include "worker_cuda/llm.h"

namespace wcuda::api {

template <>
struct HandleOf<wcuda_gguf> : HandleTo<Kind::kGguf, gguf::Gguf> {};
template <>
struct HandleOf<wcuda_model> : HandleTo<Kind::kModel, model::Model> {};

inline constexpr wcuda_engine_options kEngineDefaults = WCUDA_ENGINE_OPTIONS_INIT;

}  // namespace wcuda::api
