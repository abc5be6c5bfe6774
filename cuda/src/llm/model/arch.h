// The architecture families, and the code with which each completes the common reading of a file.
#pragma once

#include <string>
#include <string_view>

#include "core/base/status.h"
#include "llm/model/keys.h"
#include "llm/model/model.h"
#include "llm/model/tensor_list.h"

namespace wcuda::model {

// An architecture of a given name. Architectures are data: the file of a family fills Config and
// lists tensors; the forward pass is the same for all.
struct Arch {
  const char* name;  // of general.architecture
  // Completes a Config that config.h has begun. Rejects features that the family does not support.
  Status (*fill)(const Keys& keys, Config* config);
  void (*list)(const Config& config, TensorList* list);
  // If true, the keys attn_logit_softcapping and final_logit_softcapping may be above 0.
  bool has_softcaps = false;
  // If true, the embedding table may be missing, and the keys of a draft head are read.
  bool is_draft_head = false;
};

extern const Arch kArchLlama;
extern const Arch kArchQwen2;
extern const Arch kArchQwen3;
extern const Arch kArchEagle3;

// Returns WCUDA_UNSUPPORTED for an unknown name; the message lists the supported ones.
Result<const Arch*> find_arch(std::string_view name);

}  // namespace wcuda::model
