// Architecture families: which exist, and what each one adds to the common reading of a file.
#pragma once

#include <string>
#include <string_view>

#include "core/base/status.h"
#include "llm/model/keys.h"
#include "llm/model/model.h"
#include "llm/model/tensor_list.h"

namespace wcuda::model {

// One architecture name. An architecture is data: a family's file fills Config and lists tensors;
// the forward pass is the same for all.
struct Arch {
  const char* name;  // of general.architecture
  // Completes a Config that holds what config.h reads for all; refuses what the family cannot do.
  Status (*fill)(const Keys& keys, Config* config);
  void (*list)(const Config& config, TensorList* list);
  // Reads keys attn_logit_softcapping and final_logit_softcapping, which others refuse above 0.
  bool has_softcaps = false;
};

extern const Arch kArchLlama;
extern const Arch kArchQwen2;
extern const Arch kArchQwen3;

// WCUDA_UNSUPPORTED naming it and those supported.
Result<const Arch*> find_arch(std::string_view name);

}  // namespace wcuda::model
