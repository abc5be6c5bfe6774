// From a file's metadata to a checked Config.
#pragma once

#include <cstdint>

#include "llm/gguf/gguf.h"
#include "llm/model/arch.h"
#include "llm/model/model.h"

namespace wcuda::model {

// Caps on hyper-parameters: beyond every model known, and small enough that no product of two of
// them leaves 64 bits and no row of a matrix leaves 8 MiB.
constexpr uint32_t kMaxLayerCount = 1024;
constexpr uint32_t kMaxEmbeddingLength = 1u << 20;
constexpr uint32_t kMaxFeedForwardLength = 1u << 21;
constexpr uint32_t kMaxHeadCount = 1u << 16;
constexpr uint32_t kMaxHeadLength = 1u << 12;
constexpr uint32_t kMaxContextLength = 1u << 30;
constexpr uint32_t kMaxVocabularySize = 1u << 24;

struct ReadConfig {
  const Arch* arch = nullptr;
  Config config;
};
// Reads and checks all hyper-parameters; rope factors in a tensor are applied at load.
// Contradictions are WCUDA_MALFORMED, features this version lacks WCUDA_UNSUPPORTED, both naming
// key and value.
Result<ReadConfig> read_config(const gguf::Gguf& file);

}  // namespace wcuda::model
