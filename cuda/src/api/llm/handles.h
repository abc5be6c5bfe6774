// The handles of files, models and engines, and the engine's default options, which several
// sections use.
#pragma once

#include "api/base/guard.h"
#include "api/base/handles.h"
#include "llm/engine/engine.h"
#include "llm/gguf/gguf.h"
#include "llm/model/model.h"
#include "worker_cuda/llm.h"

namespace wcuda::api {

template <>
struct HandleOf<wcuda_gguf> : HandleTo<Kind::kGguf, gguf::Gguf> {};
template <>
struct HandleOf<wcuda_model> : HandleTo<Kind::kModel, model::Model> {};

struct EngineObject {
  std::shared_ptr<engine::Engine> engine;
  Exclusive exclusive;
  std::shared_ptr<EngineObject> target;  // of a draft head
};
template <>
struct HandleOf<wcuda_engine> : HandleTo<Kind::kEngine, EngineObject> {};

// Resolves the handles in the options of an engine.
inline Result<engine::Peers> resolve_peers(const wcuda_engine_options& options) {
  engine::Peers peers;
  if (options.draft_head.id != 0) {
    WCUDA_ASSIGN(peers.draft_head, resolve(options.draft_head, "options->draft_head"));
  }
  if (options.target.id != 0) {
    WCUDA_ASSIGN(const auto target, resolve(options.target, "options->target"));
    peers.target = target->engine;
  }
  return peers;
}

inline constexpr wcuda_engine_options kEngineDefaults = WCUDA_ENGINE_OPTIONS_INIT;

}  // namespace wcuda::api
