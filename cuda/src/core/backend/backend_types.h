// The types of backends: their names and order, those that a caller registered, what is available
// here, and which of them serves best.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/status.h"
#include "worker_cuda/backend.h"

namespace wcuda {

// A backend of a caller's; immutable once registered.
struct BackendRegistration {
  int32_t type = 0;
  int32_t priority = 0;
  std::string name;
  wcuda_backend_vtable table{};
  wcuda_status (*open)(void* user, int32_t ordinal, void** self, wcuda_error* error) = nullptr;
  void* user = nullptr;
};

// Gives it a type of its own, never given out twice. WCUDA_INVALID_ARGUMENT for a name that is
// taken or none, and for a table without the slots it must have.
Result<int32_t> register_backend(BackendRegistration registration);
// WCUDA_NOT_FOUND for a type that is not registered.
Status unregister_backend(int32_t type);
// Null for a type that is not registered.
std::shared_ptr<const BackendRegistration> find_registration(int32_t type);

// The name of a type, for example "cuda"; "" for an unknown type.
std::string backend_name(int32_t type);
// The message of WCUDA_NOT_FOUND lists the known names.
Result<int32_t> find_backend_type(std::string_view name);
// HOST for its other names; any other type unchanged.
int32_t resolve_backend_type(int32_t type);
// What asking for this type answers when it is neither CUDA, HOST nor registered.
Status backend_not_available(int32_t type);

// All types, highest priority first; of one priority the lower number first.
std::vector<wcuda_backend_entry> list_backends();

// WCUDA_FEATURE_… bits.
uint64_t device_features(const wcuda_device_caps& caps);
// "fp16, atomics".
std::string feature_names(uint64_t features);

struct SelectionRequest {
  int32_t preferred = 0;           // 0: none
  std::vector<int32_t> fallbacks;  // tried after it, in order
  bool uses_default_fallbacks = true;
  uint64_t required_features = 0;
  bool ends_at_host = true;
};

struct Skipped {
  int32_t type;
  Status why;
};

struct Selection {
  int32_t type = 0;
  int32_t ordinal = 0;
  std::vector<Skipped> skipped;
};

// The first of the order whose device answers and has the features. WCUDA_NOT_AVAILABLE with the
// first reason when none does.
Result<Selection> select_backend(const SelectionRequest& request);
// "cuda: no CUDA device: …; vulkan: …".
std::string describe(const std::vector<Skipped>& skipped);

}  // namespace wcuda
