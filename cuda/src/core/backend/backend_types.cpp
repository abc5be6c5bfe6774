// The table of types and the registry behind backend/backend_types.h.
#include "core/backend/backend_types.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <map>
#include <mutex>

#include "core/backend/open.h"
#include "core/base/text.h"

namespace wcuda {
namespace {

struct BuiltIn {
  int32_t type;
  const char* name;
  int32_t priority;
};
// Highest first. The names of HOST come after what computes on a device.
constexpr BuiltIn kBuiltIn[] = {
    {WCUDA_BACKEND_CUDA, "cuda", 100},        {WCUDA_BACKEND_METAL, "metal", 90},
    {WCUDA_BACKEND_VULKAN, "vulkan", 80},     {WCUDA_BACKEND_WEBGPU, "webgpu", 70},
    {WCUDA_BACKEND_OPENGL, "opengl", 60},     {WCUDA_BACKEND_OPENGLES, "opengles", 50},
    {WCUDA_BACKEND_WEBGL2, "webgl2", 45},     {WCUDA_BACKEND_FPGA, "fpga", 40},
    {WCUDA_BACKEND_DIRECTML, "directml", 35}, {WCUDA_BACKEND_TPU, "tpu", 30},
    {WCUDA_BACKEND_STDGPU, "stdgpu", 20},     {WCUDA_BACKEND_HOST, "host", 10},
    {WCUDA_BACKEND_SIMULATED, "simulated", 5}};

constexpr size_t kNameBytesMax = sizeof(wcuda_backend_entry::name) - 1;

struct Registry {
  std::mutex mutex;  // guards what follows
  int32_t next_type = WCUDA_BACKEND_REGISTERED;
  std::map<int32_t, std::shared_ptr<const BackendRegistration>> types;
};

// Never destroyed: backends may be used while static objects go.
Registry& registry() {
  static Registry* const instance = new Registry;
  return *instance;
}

std::vector<std::shared_ptr<const BackendRegistration>> registrations() {
  Registry& r = registry();
  const std::lock_guard<std::mutex> lock(r.mutex);
  std::vector<std::shared_ptr<const BackendRegistration>> all;
  all.reserve(r.types.size());
  for (const auto& [type, registration] : r.types) all.push_back(registration);
  return all;
}

const BuiltIn* find_built_in(int32_t type) {
  for (const BuiltIn& each : kBuiltIn)
    if (each.type == type) return &each;
  return nullptr;
}

Status check_table(const wcuda_backend_vtable& table) {
  const struct {
    bool is_there;
    const char* name;
  } needed[] = {{table.deinit != nullptr, "deinit"},
                {table.get_device_count != nullptr, "get_device_count"},
                {table.get_device_caps != nullptr, "get_device_caps"},
                {table.allocate != nullptr, "allocate"},
                {table.free != nullptr, "free"},
                {table.copy_to_device != nullptr, "copy_to_device"},
                {table.copy_from_device != nullptr, "copy_from_device"},
                {table.synchronize != nullptr, "synchronize"}};
  for (const auto& slot : needed)
    if (!slot.is_there)
      return invalid_argument("table: slot '%s' is NULL, it must be there", slot.name);
  return {};
}

wcuda_backend_entry make_entry(int32_t type, const std::string& name, int32_t priority) {
  wcuda_backend_entry entry = WCUDA_BACKEND_ENTRY_INIT;
  entry.type = type;
  entry.priority = priority;
  copy_text(name, entry.name, sizeof(entry.name));
  const Result<int32_t> count = device_count(type);
  entry.status = count.status().code();
  entry.is_available = count.ok();
  entry.device_count = count.ok() ? *count : 0;
  copy_text(count.status().message(), entry.reason, sizeof(entry.reason));
  return entry;
}

// Types with their priorities, highest first; those of one priority in the order of registration.
std::vector<BuiltIn> order_of_types(
    const std::vector<std::shared_ptr<const BackendRegistration>>& registered) {
  std::vector<BuiltIn> order;
  const auto add = [&](const BuiltIn& type) {
    order.insert(std::find_if(order.begin(), order.end(),
                              [&](const BuiltIn& each) { return each.priority < type.priority; }),
                 type);
  };
  for (const BuiltIn& type : kBuiltIn) add(type);
  for (const auto& each : registered) add({each->type, each->name.c_str(), each->priority});
  return order;
}

// The first device of a type that has the features.
Result<int32_t> find_device(int32_t type, uint64_t features) {
  WCUDA_ASSIGN(const int32_t count, device_count(type));
  uint64_t missing = 0;
  for (int32_t ordinal = 0; ordinal < count; ++ordinal) {
    WCUDA_ASSIGN(const wcuda_device_caps caps, device_caps(type, ordinal));
    const uint64_t lacks = features & ~device_features(caps);
    if (lacks == 0) return ordinal;
    if (missing == 0) missing = lacks;
  }
  return Status::error(WCUDA_NOT_AVAILABLE, "backend '%s': no device of %d has %s",
                       backend_name(type).c_str(), count, feature_names(missing).c_str());
}

std::vector<int32_t> order_of(const SelectionRequest& request) {
  std::vector<int32_t> order;
  if (request.preferred != WCUDA_BACKEND_AUTO) order.push_back(request.preferred);
  if (!request.uses_default_fallbacks)
    order.insert(order.end(), request.fallbacks.begin(), request.fallbacks.end());
  else if (request.preferred != WCUDA_BACKEND_AUTO)
    order.insert(order.end(), {WCUDA_BACKEND_VULKAN, WCUDA_BACKEND_METAL, WCUDA_BACKEND_STDGPU});
  else
    for (const BuiltIn& each : order_of_types(registrations())) order.push_back(each.type);
  if (request.ends_at_host) order.push_back(WCUDA_BACKEND_HOST);
  return order;
}

}  // namespace

Result<int32_t> register_backend(BackendRegistration registration) {
  if (registration.name.empty() || registration.name.size() > kNameBytesMax ||
      registration.name.find('\0') != std::string::npos || !is_utf8(registration.name))
    return invalid_argument("name: %zu bytes, needs 1 to %zu of UTF-8", registration.name.size(),
                            kNameBytesMax);
  if (!registration.open) return invalid_argument("open is NULL");
  WCUDA_TRY(check_table(registration.table));
  Registry& r = registry();
  const std::lock_guard<std::mutex> lock(r.mutex);
  bool is_taken = registration.name == "auto";
  for (const BuiltIn& each : kBuiltIn) is_taken |= registration.name == each.name;
  for (const auto& [type, each] : r.types) is_taken |= registration.name == each->name;
  if (is_taken)
    return invalid_argument("name: '%s' is taken", printable(registration.name).c_str());
  registration.type = r.next_type++;
  const int32_t type = registration.type;
  r.types.emplace(type, std::make_shared<const BackendRegistration>(std::move(registration)));
  return type;
}

Status unregister_backend(int32_t type) {
  Registry& r = registry();
  const std::lock_guard<std::mutex> lock(r.mutex);
  if (r.types.erase(type) != 0) return {};
  return Status::error(WCUDA_NOT_FOUND, "type: %d is not registered", type);
}

std::shared_ptr<const BackendRegistration> find_registration(int32_t type) {
  Registry& r = registry();
  const std::lock_guard<std::mutex> lock(r.mutex);
  const auto found = r.types.find(type);
  return found == r.types.end() ? nullptr : found->second;
}

std::string backend_name(int32_t type) {
  if (type == WCUDA_BACKEND_AUTO) return "auto";
  if (const BuiltIn* const found = find_built_in(type)) return found->name;
  const auto registration = find_registration(type);
  return registration ? registration->name : "";
}

Result<int32_t> find_backend_type(std::string_view name) {
  std::string known;
  for (const BuiltIn& each : kBuiltIn) {
    if (name == each.name) return int32_t{each.type};
    known += (known.empty() ? "" : ", ") + std::string(each.name);
  }
  for (const auto& each : registrations()) {
    if (name == each->name) return int32_t{each->type};
    known += ", " + each->name;
  }
  return Status::error(WCUDA_NOT_FOUND, "backend '%s': there are %s", printable(name).c_str(),
                       known.c_str());
}

int32_t resolve_backend_type(int32_t type) {
  const bool is_host = type == WCUDA_BACKEND_STDGPU || type == WCUDA_BACKEND_SIMULATED;
  return is_host ? WCUDA_BACKEND_HOST : type;
}

Status backend_not_available(int32_t type) {
  if (type >= WCUDA_BACKEND_REGISTERED)
    return Status::error(WCUDA_NOT_AVAILABLE, "backend %d: is not registered", type);
  const BuiltIn* const found = find_built_in(type);
  if (!found) return invalid_argument("backend: %d is not one of WCUDA_BACKEND_…", type);
  return Status::error(WCUDA_NOT_AVAILABLE, "backend '%s': this library has only cuda and host",
                       found->name);
}

std::vector<wcuda_backend_entry> list_backends() {
  const auto registered = registrations();
  std::vector<wcuda_backend_entry> entries;
  for (const BuiltIn& each : order_of_types(registered))
    entries.push_back(make_entry(each.type, each.name, each.priority));
  return entries;
}

uint64_t device_features(const wcuda_device_caps& caps) {
  uint64_t features = 0;
  const auto add = [&](bool has, uint64_t bit) { features |= has ? bit : 0; };
  add(caps.supports_fp16, WCUDA_FEATURE_FP16);
  add(caps.supports_fp64, WCUDA_FEATURE_FP64);
  add(caps.supports_atomics, WCUDA_FEATURE_ATOMICS);
  add(caps.shared_memory_per_block != 0, WCUDA_FEATURE_SHARED_MEMORY);
  add(caps.warp_size > 1, WCUDA_FEATURE_SUBGROUPS);
  add(caps.supports_cooperative_groups, WCUDA_FEATURE_COOPERATIVE_GROUPS);
  add(caps.supports_tensor_cores, WCUDA_FEATURE_TENSOR_CORES);
  add(caps.supports_dynamic_parallelism, WCUDA_FEATURE_DYNAMIC_PARALLELISM);
  return features;
}

std::string feature_names(uint64_t features) {
  static constexpr const char* kNames[] = {"fp16",         "fp64",
                                           "atomics",      "shared_memory",
                                           "subgroups",    "cooperative_groups",
                                           "tensor_cores", "dynamic_parallelism"};
  std::string text;
  for (size_t i = 0; i < std::size(kNames); ++i)
    if (features >> i & 1) text += (text.empty() ? "" : ", ") + std::string(kNames[i]);
  return text;
}

Result<Selection> select_backend(const SelectionRequest& request) {
  if (request.required_features >= (uint64_t{WCUDA_FEATURE_DYNAMIC_PARALLELISM} << 1))
    return invalid_argument("required_features: unknown bits");
  Selection selection;
  std::vector<int32_t> tried;
  for (const int32_t type : order_of(request)) {
    if (std::find(tried.begin(), tried.end(), type) != tried.end()) continue;
    tried.push_back(type);
    const Result<int32_t> ordinal = find_device(type, request.required_features);
    if (ordinal.ok()) {
      selection.type = resolve_backend_type(type);
      selection.ordinal = *ordinal;
      return selection;
    }
    selection.skipped.push_back({type, ordinal.status()});
  }
  if (selection.skipped.empty())
    return Status::error(WCUDA_NOT_AVAILABLE, "no backend: none was named and HOST is excluded");
  return Status::error(WCUDA_NOT_AVAILABLE, "no backend: %s", describe(selection.skipped).c_str());
}

std::string describe(const std::vector<Skipped>& skipped) {
  std::string text;
  for (const Skipped& each : skipped)
    text += (text.empty() ? "" : "; ") + backend_name(each.type) + ": " + each.why.message();
  return text;
}

}  // namespace wcuda
