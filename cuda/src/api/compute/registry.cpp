// Section 22 of the header: kernel descriptors and the registry of a context.
#include "api/compute/registry.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <mutex>

#include "api/base/context.h"
#include "api/base/guard.h"
#include "api/base/stream.h"
#include "api/compute/compute.h"
#include "core/base/text.h"

namespace wcuda::api {
namespace {

// Numbers that older callers know, with what they know of them.
constexpr uint32_t kNoopId = 1, kTensorAddId = 2, kFirstFreeId = 3;
constexpr uint64_t kNoopHash = 0, kTensorAddHash = 0xa1;

using Entry = RegistryEntry;

struct RegistryObject {
  std::shared_ptr<vram::Memory> memory;
  std::mutex mutex;  // guards what follows
  std::map<uint32_t, std::shared_ptr<const Entry>> entries;
};

using Entries = std::map<uint32_t, std::shared_ptr<const Entry>>;

// The registries of one context, the newest last.
struct Registries {
  std::mutex mutex;  // guards what follows
  std::vector<std::weak_ptr<RegistryObject>> all;
};

std::shared_ptr<Registries> registries_of(vram::Memory& memory) {
  return memory.kept<Registries>([] { return std::make_shared<Registries>(); });
}

// Lets find_described see a registry.
void list_registry(const std::shared_ptr<RegistryObject>& registry) {
  const auto registries = registries_of(*registry->memory);
  const std::lock_guard<std::mutex> lock(registries->mutex);
  auto& all = registries->all;
  all.erase(std::remove_if(all.begin(), all.end(), [](const auto& each) { return each.expired(); }),
            all.end());
  all.push_back(registry);
}

Result<std::shared_ptr<RegistryObject>> resolve_registry(wcuda_registry registry) {
  return resolve<RegistryObject>(Kind::kRegistry, registry.id, "registry");
}

Status check_texts(const wcuda_kernel_descriptor& descriptor) {
  WCUDA_TRY(check_string(descriptor.name, "name"));
  for (int i = 0; i < 3; ++i) {
    WCUDA_TRY(check_string(descriptor.grid[i], "grid"));
    WCUDA_TRY(check_string(descriptor.block[i], "block"));
  }
  WCUDA_TRY(check_string(descriptor.threads, "threads"));
  WCUDA_TRY(check_string(descriptor.shared_bytes, "shared_bytes"));
  if (!descriptor.params) return {};
  for (uint64_t i = 0; i < std::min<uint64_t>(descriptor.param_count, UINT16_MAX); ++i) {
    const wcuda_kernel_param& param = descriptor.params[i];
    WCUDA_TRY(check_string(param.name, "params[].name"));
    WCUDA_TRY(check_string(param.shape, "params[].shape"));
    WCUDA_TRY(check_string(param.min, "params[].min"));
    WCUDA_TRY(check_string(param.max, "params[].max"));
  }
  return {};
}

Result<jit::Descriptor> read(const wcuda_kernel_descriptor* from) {
  WCUDA_ASSIGN(const wcuda_kernel_descriptor checked, read_struct(from, "descriptor"));
  WCUDA_TRY(check_texts(checked));
  return jit::read_descriptor(checked);
}

Entries::const_iterator find_name(const Entries& entries, std::string_view name) {
  return std::find_if(entries.begin(), entries.end(),
                      [&](const auto& each) { return each.second->descriptor.name == name; });
}

// Puts an entry in, under the number it asks for or the one it gets.
Result<uint32_t> put(RegistryObject* registry, std::shared_ptr<Entry> entry) {
  std::shared_ptr<const Entry> replaced;  // goes after the lock
  const std::lock_guard<std::mutex> lock(registry->mutex);
  Entries& entries = registry->entries;
  const auto old = find_name(entries, entry->descriptor.name);
  uint32_t& id = entry->descriptor.kernel_id;
  if (id == 0 && old != entries.end()) id = old->first;
  if (id == 0) {
    const uint32_t last = entries.empty() ? 0 : entries.rbegin()->first;
    if (last == UINT32_MAX)
      return Status::error(WCUDA_LIMIT_EXCEEDED, "kernel_id: no number is left after %u", last);
    id = std::max(last + 1, kFirstFreeId);
  }
  const auto other = entries.find(id);
  if (other != entries.end() && other != old)
    return Status::error(WCUDA_INVALID_ARGUMENT, "kernel_id: %u is that of kernel '%s'", id,
                         printable(other->second->descriptor.name).c_str());
  const uint32_t number = id;
  std::shared_ptr<const Entry>& place = entries[number];
  if (old != entries.end()) {
    replaced = old->second;
    if (old->first != number) entries.erase(old);
  }
  place = std::move(entry);
  return number;
}

Result<uint32_t> add(RegistryObject* registry, const wcuda_kernel_descriptor* from) {
  auto entry = std::make_shared<Entry>();
  WCUDA_ASSIGN(entry->descriptor, read(from));
  const uint32_t id = entry->descriptor.kernel_id;
  if (id == kNoopId || id == kTensorAddId)
    return Status::error(WCUDA_INVALID_ARGUMENT, "kernel_id: %u is that of the catalogue's '%s'",
                         id, id == kNoopId ? "noop" : "tensor_add");
  if (from->kernel.id != 0) {
    WCUDA_ASSIGN(entry->kernel, resolve_kernel(from->kernel));
    if (entry->kernel->memory != registry->memory)
      return Status::error(WCUDA_INVALID_ARGUMENT, "kernel: is of another context");
  }
  return put(registry, std::move(entry));
}

// The descriptor of a kernel of the catalogue: its integers as i64, its factors as f32.
Result<jit::Descriptor> describe(const compute::CatalogueEntry& entry, int32_t type) {
  std::vector<std::string> shapes(entry.params.size());
  std::vector<wcuda_kernel_param> params(entry.params.size());
  const auto as_string = [](const std::string& text) {
    return wcuda_string{text.data(), text.size()};
  };
  for (size_t i = 0; i < params.size(); ++i) {
    const compute::CatalogueParam& from = entry.params[i];
    params[i].name = as_string(from.name);
    if (from.role == compute::Role::kInteger || from.role == compute::Role::kFactor) {
      params[i].kind = from.role == compute::Role::kInteger ? WCUDA_ARG_I64 : WCUDA_ARG_F32;
      continue;
    }
    params[i].kind = WCUDA_ARG_BUFFER;
    params[i].dtype = from.is_i32 ? WCUDA_ARG_I32 : from.is_f32 ? WCUDA_ARG_F32 : type;
    params[i].access = from.role == compute::Role::kRead    ? WCUDA_ACCESS_READ
                       : from.role == compute::Role::kWrite ? WCUDA_ACCESS_WRITE
                                                            : 0;
    for (const std::string& factor : from.extent) {
      const char* const expression = factor == "oh"   ? "((h+2*pad-kh)/stride+1)"
                                     : factor == "ow" ? "((w+2*pad-kw)/stride+1)"
                                                      : factor.c_str();
      shapes[i] += (shapes[i].empty() ? "" : "*") + std::string(expression);
    }
    params[i].shape = as_string(shapes[i]);
  }
  wcuda_kernel_descriptor descriptor = WCUDA_KERNEL_DESCRIPTOR_INIT;
  descriptor.name = as_string(entry.name);
  descriptor.params = params.data();
  descriptor.param_count = params.size();
  return jit::read_descriptor(descriptor);
}

Result<uint32_t> add_builtin(RegistryObject* registry, const wcuda_string& name, int32_t type,
                             uint32_t number) {
  auto entry = std::make_shared<Entry>();
  WCUDA_ASSIGN(entry->builtin, find_builtin(name));
  WCUDA_ASSIGN(entry->type, read_element_type(type));
  if (entry->builtin->is_f32_only && type != WCUDA_ARG_F32)
    return Status::error(WCUDA_UNSUPPORTED, "%s: is for f32 only", entry->builtin->name.c_str());
  WCUDA_ASSIGN(entry->descriptor, describe(*entry->builtin, type));
  const bool is_noop = entry->builtin->name == "noop";
  const bool is_add = entry->builtin->name == "tensor_add" && type == WCUDA_ARG_F32;
  const uint32_t own = is_noop ? kNoopId : is_add ? kTensorAddId : 0;
  if ((number == kNoopId || number == kTensorAddId || own != 0) && number != 0 && number != own)
    return Status::error(
        WCUDA_INVALID_ARGUMENT,
        "kernel_id: %u for '%s'; 1 is that of 'noop', 2 that of 'tensor_add' of f32", number,
        entry->builtin->name.c_str());
  entry->descriptor.kernel_id = own != 0 ? own : number;
  if (own != 0) entry->descriptor.sig_hash = is_noop ? kNoopHash : kTensorAddHash;
  return put(registry, std::move(entry));
}

void describe_entry(const Entry& entry, wcuda_registered_kernel* target) {
  wcuda_registered_kernel result = WCUDA_REGISTERED_KERNEL_INIT;
  const jit::Descriptor& descriptor = entry.descriptor;
  result.kernel_id = descriptor.kernel_id;
  result.flags = descriptor.flags | (entry.runs_here() ? 0 : WCUDA_KERNEL_NOT_HERE);
  result.parameter_count = static_cast<uint32_t>(descriptor.params.size());
  result.budget_ms = descriptor.budget_ms;
  result.sig_hash = descriptor.sig_hash;
  result.name_bytes = copy_text(descriptor.name, result.name, sizeof(result.name));
  write_struct(result, target);
}

Result<std::shared_ptr<const Entry>> find_id(RegistryObject* registry, uint32_t id) {
  const std::lock_guard<std::mutex> lock(registry->mutex);
  const auto found = registry->entries.find(id);
  if (found != registry->entries.end()) return found->second;
  return Status::error(WCUDA_NOT_FOUND, "kernel_id: %u is not in the registry", id);
}

Result<jit::DescribedLaunch> plan(const jit::Descriptor& descriptor, const Arguments& given) {
  std::vector<jit::DescribedArgument> arguments;
  const std::vector<wcuda_host_argument> values = given.for_host();
  for (size_t i = 0; i < values.size(); ++i)
    arguments.push_back(
        {values[i].kind, given.shapes()[i].access, values[i].data, values[i].bytes});
  return jit::plan_launch(descriptor, arguments);
}

wcuda_run_info info_of(const jit::Descriptor& descriptor, const jit::DescribedLaunch& launch) {
  wcuda_run_info info = WCUDA_RUN_INFO_INIT;
  info.shared_bytes = launch.dims.shared_bytes;
  std::copy_n(launch.dims.grid, 3, info.grid);
  std::copy_n(launch.dims.block, 3, info.block);
  info.elements = launch.elements;
  info.bytes = launch.bytes;
  info.budget_ms = descriptor.budget_ms;
  return info;
}

struct Call {
  const wcuda_argument* arguments;
  uint64_t count;
  wcuda_stream stream;
  bool is_dry;  // nothing is run
};

Result<wcuda_run_info> run_builtin_entry(const Entry& entry, vram::Memory& memory,
                                         const Call& call) {
  Arguments given;
  WCUDA_ASSIGN(const auto prepared, prepare_builtin(*entry.builtin, entry.type, memory,
                                                    call.arguments, call.count, &given));
  if (!call.is_dry) WCUDA_TRY(run_builtin(*entry.builtin, prepared, memory, call.stream, &given));
  wcuda_run_info info = WCUDA_RUN_INFO_INIT;
  info.elements = static_cast<uint64_t>(prepared.count);
  info.bytes = prepared.bytes;
  return info;
}

Result<wcuda_run_info> run_entry(const Entry& entry, vram::Memory& memory, const Call& call) {
  if (entry.builtin) return run_builtin_entry(entry, memory, call);
  if (!entry.runs_here())
    return Status::error(WCUDA_UNSUPPORTED_KERNEL, "kernel '%s': has no %s",
                         printable(entry.descriptor.name).c_str(),
                         memory.backend().is_host() ? "host function" : "device code");
  WCUDA_TRY(check_count(call.arguments, call.count));
  jit::DescribedLaunch launch;
  const auto make_plan = [&](const Arguments& given) -> Result<LaunchDims> {
    WCUDA_ASSIGN(launch, plan(entry.descriptor, given));
    return launch.dims;
  };
  if (call.is_dry) {
    Arguments given;
    WCUDA_TRY(given.read(call.arguments, call.count, memory));
    WCUDA_ASSIGN(const LaunchDims dims, make_plan(given));
    WCUDA_TRY(jit::check_dims(dims, entry.kernel->limits));
  } else {
    WCUDA_TRY(launch_kernel(*entry.kernel, call.arguments, call.count, call.stream, make_plan));
  }
  return info_of(entry.descriptor, launch);
}

Status run(wcuda_registry registry, uint32_t kernel_id, const Call& call, wcuda_run_info* info) {
  WCUDA_ASSIGN(const auto object, resolve_registry(registry));
  if (info) WCUDA_TRY(check_struct(info, "info"));
  WCUDA_ASSIGN(const auto entry, find_id(object.get(), kernel_id));
  WCUDA_ASSIGN(const wcuda_run_info result, run_entry(*entry, *object->memory, call));
  if (info) write_struct(result, info);
  return {};
}

// Waits for what lies between two events, and tells what it took.
Status wait_for_run(const Entry& entry, Backend& backend, Event begin, Event end,
                    wcuda_run_info* info) {
  const uint32_t budget_ms = info->budget_ms;
  const std::string name = printable(entry.descriptor.name);
  const Status waited = wait_for(backend, end, budget_ms != 0 ? int64_t{budget_ms} : -1);
  info->is_over_budget = waited.code() == WCUDA_TIMEOUT;
  if (info->is_over_budget)
    return Status::error(WCUDA_TIMEOUT,
                         "kernel '%s': still at work after its budget of %u ms; it is not stopped",
                         name.c_str(), budget_ms);
  WCUDA_TRY(waited);
  WCUDA_ASSIGN(const double milliseconds, backend.event_elapsed_ms(begin, end));
  info->time_ns = static_cast<uint64_t>(std::llround(milliseconds * 1e6));
  info->is_over_budget = budget_ms != 0 && milliseconds > budget_ms;
  if (!info->is_over_budget) return {};
  return Status::error(WCUDA_TIMEOUT, "kernel '%s': took %.3f ms, its budget is %u ms",
                       name.c_str(), milliseconds, budget_ms);
}

Status run_and_wait(wcuda_registry registry, uint32_t kernel_id, const Call& call,
                    wcuda_run_info* info) {
  WCUDA_ASSIGN(const auto object, resolve_registry(registry));
  if (info) WCUDA_TRY(check_struct(info, "info"));
  WCUDA_ASSIGN(const auto entry, find_id(object.get(), kernel_id));
  WCUDA_ASSIGN(const UsedStream on, use_stream(call.stream, *object->memory));
  WCUDA_ASSIGN(const auto begin, make_event(object->memory));
  WCUDA_ASSIGN(const auto end, make_event(object->memory));
  Backend& backend = object->memory->backend();
  WCUDA_TRY(backend.event_record(begin->event, on.stream));
  WCUDA_ASSIGN(wcuda_run_info result, run_entry(*entry, *object->memory, call));
  WCUDA_TRY(backend.event_record(end->event, on.stream));
  const Status status = wait_for_run(*entry, backend, begin->event, end->event, &result);
  if (info && (status.ok() || result.is_over_budget)) write_struct(result, info);
  return status;
}

}  // namespace

std::shared_ptr<const RegistryEntry> find_described(vram::Memory& memory, const std::string& name) {
  std::vector<std::shared_ptr<RegistryObject>> live;  // goes after the lock
  {
    const auto registries = registries_of(memory);
    const std::lock_guard<std::mutex> lock(registries->mutex);
    for (const auto& each : registries->all)
      if (auto registry = each.lock()) live.push_back(std::move(registry));
  }
  for (auto registry = live.rbegin(); registry != live.rend(); ++registry) {
    const std::lock_guard<std::mutex> lock((*registry)->mutex);
    const auto found = find_name((*registry)->entries, name);
    if (found != (*registry)->entries.end() && !found->second->builtin) return found->second;
  }
  return nullptr;
}

Status launch_described(const RegistryEntry& entry, const wcuda_launch& launch,
                        const wcuda_argument* arguments, uint64_t count) {
  return launch_kernel(*entry.kernel, arguments, count, launch.stream,
                       [&](const Arguments& given) -> Result<LaunchDims> {
                         WCUDA_TRY(plan(entry.descriptor, given).status());
                         return read_dims(launch);
                       });
}

}  // namespace wcuda::api

using namespace wcuda;
using namespace wcuda::api;

extern "C" wcuda_status wcuda_kernel_descriptor_check(const wcuda_kernel_descriptor* descriptor,
                                                      uint64_t* sig_hash, char* text,
                                                      uint64_t text_capacity, uint64_t* text_bytes,
                                                      wcuda_error* error) {
  return guarded(error, [&]() -> Status {
    WCUDA_ASSIGN(const jit::Descriptor checked, read(descriptor));
    const std::string& signature = checked.signature;
    if (text && text_capacity < signature.size())
      return Status::error(WCUDA_BUFFER_TOO_SMALL, "text: %llu bytes, %zu are needed",
                           static_cast<unsigned long long>(text_capacity), signature.size());
    if (text && !signature.empty()) std::memcpy(text, signature.data(), signature.size());
    if (text_bytes) *text_bytes = signature.size();
    if (sig_hash) *sig_hash = checked.sig_hash;
    return {};
  });
}

extern "C" wcuda_status wcuda_registry_create(wcuda_context context, wcuda_registry* registry,
                                              wcuda_error* error) {
  return guarded(error, [&]() -> Status {
    WCUDA_ASSIGN(const auto parent, resolve_context(context));
    WCUDA_TRY(check_not_null(registry, "registry"));
    auto object = std::make_shared<RegistryObject>();
    object->memory = parent->memory;
    list_registry(object);
    WCUDA_ASSIGN(registry->id, insert(Kind::kRegistry, std::move(object)));
    return {};
  });
}

extern "C" void wcuda_registry_destroy(wcuda_registry registry) {
  guarded_destroy("wcuda_registry_destroy", registry.id,
                  [](uint64_t id) { return destroy_handle(Kind::kRegistry, id, "registry"); });
}

extern "C" wcuda_status wcuda_registry_add(wcuda_registry registry,
                                           const wcuda_kernel_descriptor* descriptor,
                                           uint32_t* kernel_id, wcuda_error* error) {
  return guarded(error, [&]() -> Status {
    WCUDA_ASSIGN(const auto object, resolve_registry(registry));
    WCUDA_ASSIGN(const uint32_t id, add(object.get(), descriptor));
    if (kernel_id) *kernel_id = id;
    return {};
  });
}

extern "C" wcuda_status wcuda_registry_add_builtin(wcuda_registry registry, wcuda_string name,
                                                   int32_t type, uint32_t number,
                                                   uint32_t* kernel_id, wcuda_error* error) {
  return guarded(error, [&]() -> Status {
    WCUDA_ASSIGN(const auto object, resolve_registry(registry));
    WCUDA_ASSIGN(const uint32_t id, add_builtin(object.get(), name, type, number));
    if (kernel_id) *kernel_id = id;
    return {};
  });
}

extern "C" wcuda_status wcuda_registry_remove(wcuda_registry registry, uint32_t kernel_id,
                                              wcuda_error* error) {
  return guarded(error, [&]() -> Status {
    WCUDA_ASSIGN(const auto object, resolve_registry(registry));
    WCUDA_ASSIGN(const auto entry, find_id(object.get(), kernel_id));  // goes after the lock
    const std::lock_guard<std::mutex> lock(object->mutex);
    object->entries.erase(kernel_id);
    return {};
  });
}

extern "C" wcuda_status wcuda_registry_list(wcuda_registry registry,
                                            wcuda_registered_kernel* kernels, uint64_t capacity,
                                            uint64_t* count, wcuda_error* error) {
  return guarded(error, [&]() -> Status {
    WCUDA_ASSIGN(const auto object, resolve_registry(registry));
    WCUDA_TRY(check_not_null(count, "count"));
    if (capacity != 0) WCUDA_TRY(check_not_null(kernels, "kernels"));
    const std::lock_guard<std::mutex> lock(object->mutex);
    const uint64_t written = std::min<uint64_t>(capacity, object->entries.size());
    WCUDA_ASSIGN(const auto targets, struct_array(kernels, written, "kernels"));
    auto entry = object->entries.begin();
    for (wcuda_registered_kernel* const target : targets) describe_entry(*entry++->second, target);
    *count = object->entries.size();
    return {};
  });
}

extern "C" wcuda_status wcuda_registry_find(wcuda_registry registry, wcuda_string name,
                                            wcuda_registered_kernel* kernel, wcuda_error* error) {
  return guarded(error, [&]() -> Status {
    WCUDA_ASSIGN(const auto object, resolve_registry(registry));
    WCUDA_TRY(check_string(name, "name"));
    WCUDA_TRY(check_struct(kernel, "kernel"));
    const std::string_view text(name.data ? name.data : "", name.bytes);
    const std::lock_guard<std::mutex> lock(object->mutex);
    const auto found = find_name(object->entries, text);
    if (found == object->entries.end())
      return Status::error(WCUDA_NOT_FOUND, "kernel '%s' is not registered",
                           printable(text).c_str());
    describe_entry(*found->second, kernel);
    return {};
  });
}

extern "C" wcuda_status wcuda_registry_run(wcuda_registry registry, uint32_t kernel_id,
                                           const wcuda_argument* arguments, uint64_t argument_count,
                                           wcuda_stream stream, wcuda_run_info* info,
                                           wcuda_error* error) {
  return guarded(error, [&]() -> Status {
    return run(registry, kernel_id, {arguments, argument_count, stream, false}, info);
  });
}

extern "C" wcuda_status wcuda_registry_run_wait(wcuda_registry registry, uint32_t kernel_id,
                                                const wcuda_argument* arguments,
                                                uint64_t argument_count, wcuda_stream stream,
                                                wcuda_run_info* info, wcuda_error* error) {
  return guarded(error, [&]() -> Status {
    return run_and_wait(registry, kernel_id, {arguments, argument_count, stream, false}, info);
  });
}

extern "C" wcuda_status wcuda_registry_plan(wcuda_registry registry, uint32_t kernel_id,
                                            const wcuda_argument* arguments,
                                            uint64_t argument_count, wcuda_run_info* info,
                                            wcuda_error* error) {
  return guarded(error, [&]() -> Status {
    return run(registry, kernel_id, {arguments, argument_count, {0}, true}, info);
  });
}
