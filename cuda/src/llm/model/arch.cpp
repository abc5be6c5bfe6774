// The table of architectures.
#include "llm/model/arch.h"

#include <algorithm>

namespace wcuda::model {
namespace {

const Arch* const kArchs[] = {&kArchLlama, &kArchQwen2, &kArchQwen3, &kArchEagle3};

std::string supported_names() {
  std::string names;
  for (const Arch* arch : kArchs) names += (names.empty() ? "" : ", ") + std::string(arch->name);
  return names;
}

}  // namespace

Result<const Arch*> find_arch(std::string_view name) {
  for (const Arch* arch : kArchs)
    if (name == arch->name) return arch;
  return unsupported("architecture '%.*s' is not supported (supported: %s)",
                     static_cast<int>(std::min<size_t>(name.size(), 64)), name.data(),
                     supported_names().c_str());
}

}  // namespace wcuda::model
