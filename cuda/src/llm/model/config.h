// read_config: a checked Config from a file's metadata.
#pragma once

#include <cstdint>
#include <vector>

#include "llm/gguf/gguf.h"
#include "llm/model/arch.h"
#include "llm/model/model.h"

namespace wcuda::model {

// Limits on hyper-parameters. They exceed those of every known model, but are so small that no
// product of two overflows 64 bits and no row of a matrix exceeds 8 MiB.
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
// Reads and checks all hyper-parameters. If rope factors are in a tensor, loading applies them.
// Returns WCUDA_MALFORMED for contradictions and WCUDA_UNSUPPORTED for features that are not
// implemented; both messages name key and value.
Result<ReadConfig> read_config(const gguf::Gguf& file);
// The same for a given family.
Result<Config> read_config(const gguf::Gguf& file, const Arch& arch);

// The tensor of a draft head with the target's token for each of its own, (draft vocabulary) I64.
// Each must be in the vocabulary and occur once.
constexpr const char* kDraftTokensTensor = "d2t";
Status read_draft_tokens(const std::vector<int64_t>& ids, uint32_t vocabulary_size,
                         DraftHead* head);

}  // namespace wcuda::model
