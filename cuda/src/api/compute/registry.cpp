// Section 22 of the header: kernel descriptors and the registry of a context.
#include "api/compute/registry.h"

#include <algorithm>
#include <cmath>

#include "api/base/context.h"
#include "api/base/elements.h"
#include "api/base/stream.h"
#include "api/compute/compute.h"
#include "core/base/text.h"

namespace wcuda::api {
namespace {

using compute::Registry;
using compute::RegistryEntry;

// A caller's kernel in a registry is always one created through the C interface.
const KernelObject& kernel_of(const RegistryEntry& entry) {
  return static_cast<const KernelObject&>(*entry.kernel);
}

Status check_texts(const wcuda_kernel_descriptor& descriptor) {
  WCUDA_TRY(check_string(descriptor.name, "name"));
  for (int i = 0; i < 3; ++i) {
    WCUDA_TRY(check_string(descriptor.grid[i], "grid"));
    WCUDA_TRY(check_string(descriptor.block[i], "block"));
  }
  WCUDA_TRY(check_string(descriptor.threads, "threads"));
  WCUDA_TRY(check_string(descriptor.shared_bytes, "shared_bytes"));
  return {};
}

Result<jit::Descriptor> read(const wcuda_kernel_descriptor* from) {
  WCUDA_ASSIGN(wcuda_kernel_descriptor checked, read_struct(from, "descriptor"));
  WCUDA_TRY(check_texts(checked));
  WCUDA_ASSIGN(const auto parameters, read_parameters(checked.parameters, checked.parameter_count));
  checked.parameters = parameters.data();
  return jit::read_descriptor(checked);
}

Result<uint32_t> add(Registry* registry, const wcuda_kernel_descriptor* from) {
  auto entry = std::make_shared<RegistryEntry>();
  WCUDA_ASSIGN(entry->descriptor, read(from));
  const uint32_t id = entry->descriptor.kernel_id;
  if (id == compute::kNoopId || id == compute::kTensorAddId)
    return invalid_argument("kernel_id: %u is that of the catalogue's '%s'", id,
                            id == compute::kNoopId ? "noop" : "tensor_add");
  if (from->kernel.id != 0) {
    WCUDA_ASSIGN(const auto kernel, resolve(from->kernel, "kernel"));
    if (kernel->memory != registry->memory())
      return invalid_argument("kernel: is of another context");
    if (kernel->module)
      WCUDA_TRY(jit::check_fit(entry->descriptor.signature, kernel->attributes.parameters));
    entry->kernel = kernel;
  }
  return registry->put(std::move(entry));
}

Result<uint32_t> add_builtin(Registry* registry, const wcuda_string& name, int32_t type,
                             uint32_t number) {
  auto entry = std::make_shared<RegistryEntry>();
  WCUDA_ASSIGN(entry->builtin, find_builtin(name));
  WCUDA_ASSIGN(entry->type, read_element_type(type));
  WCUDA_TRY(check_type(*entry->builtin, type));
  WCUDA_ASSIGN(entry->descriptor, compute::describe_builtin(*entry->builtin, type));
  const bool is_noop = entry->builtin->name == "noop";
  const bool is_add = entry->builtin->name == "tensor_add" && type == WCUDA_ARG_F32;
  const uint32_t own = is_noop ? compute::kNoopId : is_add ? compute::kTensorAddId : 0;
  if ((number == compute::kNoopId || number == compute::kTensorAddId || own != 0) && number != 0 &&
      number != own)
    return invalid_argument(
        "kernel_id: %u for '%s'; 1 is that of 'noop', 2 that of 'tensor_add' of f32", number,
        entry->builtin->name.c_str());
  entry->descriptor.kernel_id = own != 0 ? own : number;
  if (own != 0) entry->descriptor.sig_hash = is_noop ? compute::kNoopHash : compute::kTensorAddHash;
  return registry->put(std::move(entry));
}

wcuda_registered_kernel describe_entry(const RegistryEntry& entry) {
  wcuda_registered_kernel result = WCUDA_REGISTERED_KERNEL_INIT;
  const jit::Descriptor& descriptor = entry.descriptor;
  result.kernel_id = descriptor.kernel_id;
  result.flags = entry.flags();
  result.parameter_count = static_cast<uint32_t>(descriptor.signature.parameters.size());
  result.budget_ms = descriptor.budget_ms;
  result.sig_hash = descriptor.sig_hash;
  result.name_bytes = copy_text(descriptor.name, result.name, sizeof(result.name));
  return result;
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

Result<wcuda_run_info> run_builtin_entry(const RegistryEntry& entry, vram::Memory& memory,
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

Result<wcuda_run_info> run_entry(const RegistryEntry& entry, vram::Memory& memory,
                                 const Call& call) {
  if (entry.builtin) return run_builtin_entry(entry, memory, call);
  WCUDA_TRY(check_runs_here(entry, memory));
  WCUDA_TRY(check_count(call.arguments, call.count));
  jit::DescribedLaunch launch;
  const auto make_plan = [&](const Arguments& given) -> Result<LaunchDims> {
    WCUDA_ASSIGN(launch, jit::plan_launch(entry.descriptor, given.described()));
    return launch.dims;
  };
  if (call.is_dry) {
    Arguments given;
    WCUDA_TRY(given.read(call.arguments, call.count, memory));
    WCUDA_ASSIGN(const LaunchDims dims, make_plan(given));
    WCUDA_TRY(jit::check_dims(dims, kernel_of(entry).limits));
  } else {
    WCUDA_TRY(launch_kernel(kernel_of(entry), call.arguments, call.count, call.stream, make_plan));
  }
  return info_of(entry.descriptor, launch);
}

Status run(wcuda_registry registry, uint32_t kernel_id, const Call& call, wcuda_run_info* info) {
  WCUDA_ASSIGN(const auto object, resolve(registry, "registry"));
  if (info) WCUDA_TRY(check_struct(info, "info"));
  WCUDA_ASSIGN(const auto entry, object->find(kernel_id));
  WCUDA_ASSIGN(const wcuda_run_info result, run_entry(*entry, *object->memory(), call));
  if (info) write_struct(result, info);
  return {};
}

// Waits for the work between two events and writes its time to `info`.
Status wait_for_run(const RegistryEntry& entry, Backend& backend, Event begin, Event end,
                    wcuda_run_info* info) {
  const uint32_t budget_ms = info->budget_ms;
  const std::string name = printable(entry.descriptor.name);
  const Status waited = wait_for(backend, end, budget_ms != 0 ? int64_t{budget_ms} : -1);
  info->is_over_budget = waited.code() == WCUDA_TIMEOUT;
  if (info->is_over_budget)
    return Status::error(WCUDA_TIMEOUT,
                         "kernel '%s': still running after its budget of %u ms; it is not stopped",
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
  WCUDA_ASSIGN(const auto object, resolve(registry, "registry"));
  if (info) WCUDA_TRY(check_struct(info, "info"));
  WCUDA_ASSIGN(const auto entry, object->find(kernel_id));
  WCUDA_ASSIGN(const UsedStream on, use_stream(call.stream, *object->memory()));
  WCUDA_ASSIGN(const auto begin, make_event(object->memory()));
  WCUDA_ASSIGN(const auto end, make_event(object->memory()));
  Backend& backend = object->memory()->backend();
  WCUDA_TRY(backend.event_record(begin->event, on.stream));
  WCUDA_ASSIGN(wcuda_run_info result, run_entry(*entry, *object->memory(), call));
  WCUDA_TRY(backend.event_record(end->event, on.stream));
  const Status status = wait_for_run(*entry, backend, begin->event, end->event, &result);
  if (info && (status.ok() || result.is_over_budget)) write_struct(result, info);
  return status;
}

}  // namespace

Status check_runs_here(const RegistryEntry& entry, const vram::Memory& memory) {
  if (entry.runs_here()) return {};
  return Status::error(WCUDA_UNSUPPORTED_KERNEL, "kernel '%s': has no %s",
                       printable(entry.descriptor.name).c_str(),
                       memory.backend().is_host() ? "host function" : "device code");
}

Status check_run(const RegistryEntry& entry, const Arguments& given) {
  if (entry.builtin) return prepare_read(*entry.builtin, entry.type, given).status();
  WCUDA_ASSIGN(const auto launch, jit::plan_launch(entry.descriptor, given.described()));
  return jit::check_dims(launch.dims, kernel_of(entry).limits);
}

Status queue_run(const RegistryEntry& entry, vram::Memory& memory, Arguments* given,
                 Stream stream) {
  if (entry.builtin) {
    WCUDA_ASSIGN(const auto prepared, prepare_read(*entry.builtin, entry.type, *given));
    return compute::run_call(*entry.builtin, prepared, memory, stream);
  }
  return launch_read(
      kernel_of(entry), given, {stream, {0}}, [&](const Arguments& all) -> Result<LaunchDims> {
        WCUDA_ASSIGN(const auto launch, jit::plan_launch(entry.descriptor, all.described()));
        return launch.dims;
      });
}

Status launch_described(const RegistryEntry& entry, const wcuda_launch& launch,
                        const wcuda_argument* arguments, uint64_t count) {
  return launch_kernel(kernel_of(entry), arguments, count, launch.stream,
                       [&](const Arguments& given) -> Result<LaunchDims> {
                         WCUDA_TRY(jit::plan_launch(entry.descriptor, given.described()).status());
                         return read_dims(launch);
                       });
}

}  // namespace wcuda::api

using namespace wcuda;
using namespace wcuda::api;

wcuda_status wcuda_kernel_descriptor_check(const wcuda_kernel_descriptor* descriptor,
                                           uint64_t* sig_hash, char* text, uint64_t text_capacity,
                                           uint64_t* text_bytes, wcuda_error* error) {
  return guarded(error, [&]() -> Status {
    WCUDA_ASSIGN(const jit::Descriptor checked, read(descriptor));
    const std::string& signature = checked.signature.canonical;
    if (text && text_capacity < signature.size())
      return Status::error(WCUDA_BUFFER_TOO_SMALL, "text: %llu bytes, %zu are needed",
                           static_cast<unsigned long long>(text_capacity), signature.size());
    if (text) std::copy(signature.begin(), signature.end(), text);
    if (text_bytes) *text_bytes = signature.size();
    if (sig_hash) *sig_hash = checked.sig_hash;
    return {};
  });
}

wcuda_status wcuda_registry_create(wcuda_context context, wcuda_registry* registry,
                                   wcuda_error* error) {
  return guarded(error, [&]() -> Status {
    WCUDA_ASSIGN(const auto parent, resolve(context, "context"));
    WCUDA_TRY(check_not_null(registry, "registry"));
    return insert(Registry::create(parent->memory), registry);
  });
}

void wcuda_registry_destroy(wcuda_registry registry) { destroy(__func__, registry); }

wcuda_status wcuda_registry_add(wcuda_registry registry, const wcuda_kernel_descriptor* descriptor,
                                uint32_t* kernel_id, wcuda_error* error) {
  return guarded(error, [&]() -> Status {
    WCUDA_ASSIGN(const auto object, resolve(registry, "registry"));
    WCUDA_ASSIGN(const uint32_t id, add(object.get(), descriptor));
    if (kernel_id) *kernel_id = id;
    return {};
  });
}

wcuda_status wcuda_registry_add_builtin(wcuda_registry registry, wcuda_string name, int32_t type,
                                        uint32_t number, uint32_t* kernel_id, wcuda_error* error) {
  return guarded(error, [&]() -> Status {
    WCUDA_ASSIGN(const auto object, resolve(registry, "registry"));
    WCUDA_ASSIGN(const uint32_t id, add_builtin(object.get(), name, type, number));
    if (kernel_id) *kernel_id = id;
    return {};
  });
}

wcuda_status wcuda_registry_remove(wcuda_registry registry, uint32_t kernel_id,
                                   wcuda_error* error) {
  return guarded(error, [&]() -> Status {
    WCUDA_ASSIGN(const auto object, resolve(registry, "registry"));
    return object->remove(kernel_id);
  });
}

wcuda_status wcuda_registry_list(wcuda_registry registry, uint64_t first,
                                 wcuda_registered_kernel* kernels, uint64_t capacity,
                                 uint64_t* count, wcuda_error* error) {
  return guarded(error, [&]() -> Status {
    WCUDA_ASSIGN(const auto object, resolve(registry, "registry"));
    const auto all = object->list();
    return write_list<wcuda_registered_kernel>({kernels, capacity, "kernels"}, first, all.size(),
                                               count,
                                               [&](uint64_t i) { return describe_entry(*all[i]); });
  });
}

wcuda_status wcuda_registry_find(wcuda_registry registry, wcuda_string name,
                                 wcuda_registered_kernel* kernel, wcuda_error* error) {
  return guarded(error, [&]() -> Status {
    WCUDA_ASSIGN(const auto object, resolve(registry, "registry"));
    WCUDA_ASSIGN(const std::string_view text, read_string(name, "name"));
    WCUDA_TRY(check_struct(kernel, "kernel"));
    const auto found = object->find_name(text);
    if (!found)
      return Status::error(WCUDA_NOT_FOUND, "kernel '%s' is not registered",
                           printable(text).c_str());
    write_struct(describe_entry(*found), kernel);
    return {};
  });
}

wcuda_status wcuda_registry_run(wcuda_registry registry, uint32_t kernel_id,
                                const wcuda_argument* arguments, uint64_t argument_count,
                                wcuda_stream stream, wcuda_run_info* info, wcuda_error* error) {
  return guarded(error, [&]() -> Status {
    return run(registry, kernel_id, {arguments, argument_count, stream, false}, info);
  });
}

wcuda_status wcuda_registry_run_wait(wcuda_registry registry, uint32_t kernel_id,
                                     const wcuda_argument* arguments, uint64_t argument_count,
                                     wcuda_stream stream, wcuda_run_info* info,
                                     wcuda_error* error) {
  return guarded(error, [&]() -> Status {
    return run_and_wait(registry, kernel_id, {arguments, argument_count, stream, false}, info);
  });
}

wcuda_status wcuda_registry_plan(wcuda_registry registry, uint32_t kernel_id,
                                 const wcuda_argument* arguments, uint64_t argument_count,
                                 wcuda_run_info* info, wcuda_error* error) {
  return guarded(error, [&]() -> Status {
    return run(registry, kernel_id, {arguments, argument_count, {0}, true}, info);
  });
}
