// Section 18 of the header: modules, kernels and their attributes.
#include "api/compute/kernel.h"

#include <algorithm>

#include "api/base/buffer.h"
#include "api/base/elements.h"
#include "api/compute/program.h"
#include "compute/jit/code_kind.h"
#include "core/base/callback.h"
#include "core/base/text.h"

namespace wcuda::api {
namespace {

constexpr uint64_t kParameterCountMax = 1024;

// Reads a name in the code: no NUL, not empty.
Result<std::string> read_name(const wcuda_string& name) {
  WCUDA_ASSIGN(const std::string_view text, read_string(name, "name"));
  std::string result(text);
  if (result.empty() || result.find('\0') != std::string::npos)
    return invalid_argument("name: is empty or has a NUL");
  return result;
}

Status global(std::shared_ptr<ModuleObject> module, const std::string& name, wcuda_buffer* buffer) {
  vram::Memory& memory = *module->memory;
  const auto expression = module->names.find(name);
  WCUDA_ASSIGN(const auto found,
               memory.backend().module_global(
                   module->module, expression == module->names.end() ? name : expression->second));
  auto object = std::make_shared<BufferObject>();
  object->owner = std::move(module);
  WCUDA_ASSIGN(object->buffer, memory.borrow(found.first, found.second, name));
  return insert(std::move(object), buffer);
}

Status read_signature(const wcuda_kernel_options& options, KernelObject* kernel) {
  if (options.has_signature != 0 && options.has_signature != 1)
    return invalid_argument("has_signature: %d is not 0 or 1", options.has_signature);
  if (options.has_signature == 0) {
    if (options.parameter_count == 0) return {};
    return invalid_argument("parameters: given, but has_signature is 0");
  }
  WCUDA_ASSIGN(const auto parameters, read_parameters(options.parameters, options.parameter_count));
  WCUDA_ASSIGN(kernel->signature, jit::read_signature(parameters.data(), parameters.size()));
  return {};
}

Status find_code(KernelObject* kernel) {
  const auto expression = kernel->module->names.find(kernel->name);
  const std::string& name =
      expression == kernel->module->names.end() ? kernel->name : expression->second;
  Backend& backend = kernel->backend();
  WCUDA_ASSIGN(kernel->kernel, backend.kernel_find(kernel->module->module, name));
  WCUDA_ASSIGN(kernel->attributes, backend.kernel_attributes(kernel->kernel));
  kernel->limits = jit::kernel_limits(backend.caps(), kernel->attributes);
  if (kernel->signature)
    WCUDA_TRY(jit::check_fit(*kernel->signature, kernel->attributes.parameters));
  return {};
}

Status create(const Context& context, const wcuda_kernel_options& options, wcuda_kernel* handle) {
  auto kernel = std::make_shared<KernelObject>();
  kernel->memory = context.memory;
  WCUDA_ASSIGN(kernel->name, read_name(options.name));
  if (options.module.id == 0 && !options.host)
    return Status::error(WCUDA_UNSUPPORTED_KERNEL,
                         "kernel '%s': has neither a module nor a host function",
                         printable(kernel->name).c_str());
  WCUDA_TRY(read_signature(options, kernel.get()));
  kernel->host = options.host;
  kernel->host_user = options.host_user;
  kernel->limits = jit::device_limits(kernel->backend().caps());
  if (options.module.id != 0) {
    WCUDA_ASSIGN(kernel->module, resolve(options.module, "module"));
    if (kernel->module->memory != kernel->memory)
      return invalid_argument("module: is of another context");
    WCUDA_TRY(find_code(kernel.get()));
  }
  kernel->host_release = options.host_release;
  Status inserted = insert(kernel, handle);
  if (!inserted.ok()) kernel->host_release = nullptr;  // a failed call owns nothing
  return inserted;
}

wcuda_kernel_info info_of(const KernelObject& kernel) {
  wcuda_kernel_info info = WCUDA_KERNEL_INFO_INIT;
  const KernelAttributes& a = kernel.attributes;
  info.has_device_code = kernel.module != nullptr;
  info.has_host_function = kernel.host != nullptr;
  const size_t count = kernel.module      ? a.parameters.size()
                       : kernel.signature ? kernel.signature->parameters.size()
                                          : 0;
  info.parameter_count = static_cast<uint32_t>(count);
  info.max_threads_per_block = a.max_threads_per_block;
  info.register_count = a.register_count;
  info.static_shared_bytes = a.static_shared_bytes;
  info.dynamic_shared_bytes_max = a.dynamic_shared_bytes_max;
  info.local_bytes = a.local_bytes;
  info.constant_bytes = a.constant_bytes;
  std::copy_n(a.required_cluster, 3, info.required_cluster);
  info.ptx_version = a.ptx_version;
  info.binary_version = a.binary_version;
  info.name_bytes = copy_text(kernel.module ? a.name : kernel.name, info.name, sizeof(info.name));
  return info;
}

Result<wcuda_occupancy> occupancy_of(const KernelObject& kernel, uint32_t block_threads,
                                     uint64_t shared_bytes) {
  if (!kernel.module)
    return Status::error(WCUDA_UNSUPPORTED_KERNEL, "kernel '%s': has no device code",
                         printable(kernel.name).c_str());
  LaunchDims dims;
  dims.block[0] = block_threads;
  dims.shared_bytes = static_cast<uint32_t>(std::min<uint64_t>(shared_bytes, UINT32_MAX));
  WCUDA_TRY(jit::check_dims(dims, kernel.limits));
  WCUDA_ASSIGN(const Occupancy found,
               kernel.backend().kernel_occupancy(kernel.kernel, block_threads, shared_bytes));
  wcuda_occupancy result = WCUDA_OCCUPANCY_INIT;
  result.blocks_per_multiprocessor = found.blocks_per_multiprocessor;
  result.threads_per_multiprocessor = found.blocks_per_multiprocessor * block_threads;
  result.best_block_threads = found.best_block_threads;
  const int32_t most = kernel.backend().caps().max_threads_per_multiprocessor;
  if (most > 0) result.share = double(result.threads_per_multiprocessor) / most;
  return result;
}

}  // namespace

Result<std::vector<wcuda_parameter>> read_parameters(const wcuda_parameter* parameters,
                                                     uint64_t count) {
  if (count > kParameterCountMax)
    return invalid_argument("parameters: more than %llu",
                            static_cast<unsigned long long>(kParameterCountMax));
  WCUDA_ASSIGN(auto result, read_elements(parameters, count, "parameters"));
  for (const wcuda_parameter& each : result) {
    WCUDA_TRY(check_string(each.name, "parameters[].name"));
    WCUDA_TRY(check_string(each.shape, "parameters[].shape"));
    WCUDA_TRY(check_string(each.min, "parameters[].min"));
    WCUDA_TRY(check_string(each.max, "parameters[].max"));
  }
  return result;
}

Result<std::shared_ptr<ModuleObject>> load_module(std::shared_ptr<vram::Memory> memory,
                                                  const void* code, uint64_t bytes,
                                                  std::map<std::string, std::string> names) {
  WCUDA_TRY(jit::code_kind(code, bytes).status());
  // The driver does not report how much memory it takes. The difference of free memory before and
  // after includes other threads' allocations and pages that the driver held before. So a module
  // counts as the size of its code.
  auto object = std::make_shared<ModuleObject>();
  object->memory = std::move(memory);
  object->names = std::move(names);
  // The driver takes no length: it reads PTX up to a NUL.
  const std::string ended(static_cast<const char*>(code), bytes);
  Backend& backend = object->memory->backend();
  WCUDA_ASSIGN(object->account,
               object->memory->account(bytes, WCUDA_PURPOSE_MODULE, "", [&]() -> Status {
                 WCUDA_ASSIGN(object->module, backend.module_load(ended.c_str(), bytes));
                 return {};
               }));
  return object;
}

Result<std::shared_ptr<KernelObject>> find_kernel(std::shared_ptr<ModuleObject> module,
                                                  std::string_view name) {
  auto kernel = std::make_shared<KernelObject>();
  kernel->name = name;
  kernel->memory = module->memory;
  kernel->module = std::move(module);
  WCUDA_TRY(find_code(kernel.get()));
  return kernel;
}

Result<std::shared_ptr<KernelObject>> make_kernel(std::shared_ptr<vram::Memory> memory,
                                                  const void* code, uint64_t bytes,
                                                  std::map<std::string, std::string> names,
                                                  std::string name) {
  auto kernel = std::make_shared<KernelObject>();
  kernel->name = std::move(name);
  WCUDA_ASSIGN(kernel->module, load_module(memory, code, bytes, std::move(names)));
  kernel->memory = std::move(memory);
  WCUDA_TRY(find_code(kernel.get()));
  return kernel;
}

KernelObject::~KernelObject() {
  if (!host_release) return;
  const InCallback inside;
  host_release(host_user);
}

ModuleObject::~ModuleObject() {
  if (module.id != 0) (void)memory->backend().module_unload(module);
}

}  // namespace wcuda::api

using namespace wcuda;
using namespace wcuda::api;

wcuda_status wcuda_code_kind_get(const void* code, uint64_t bytes, int32_t* kind,
                                 wcuda_error* error) {
  return guarded(error, [&]() -> Status {
    WCUDA_TRY(check_not_null(code, "code"));
    WCUDA_TRY(check_not_null(kind, "kind"));
    WCUDA_ASSIGN(const jit::CodeKind found, jit::code_kind(code, bytes));
    *kind = static_cast<int32_t>(found);
    return {};
  });
}

wcuda_status wcuda_module_load(wcuda_context context, const void* code, uint64_t bytes,
                               wcuda_module* module, wcuda_error* error) {
  return guarded(error, [&]() -> Status {
    WCUDA_ASSIGN(const auto parent, resolve(context, "context"));
    WCUDA_TRY(check_not_null(code, "code"));
    WCUDA_TRY(check_not_null(module, "module"));
    WCUDA_ASSIGN(auto object, load_module(parent->memory, code, bytes, {}));
    return insert(std::move(object), module);
  });
}

wcuda_status wcuda_module_load_program(wcuda_context context, wcuda_program program,
                                       wcuda_module* module, wcuda_error* error) {
  return guarded(error, [&]() -> Status {
    WCUDA_ASSIGN(const auto parent, resolve(context, "context"));
    WCUDA_ASSIGN(const auto compiled, resolve(program, "program"));
    WCUDA_TRY(check_not_null(module, "module"));
    WCUDA_ASSIGN(const auto use, ExclusiveUse::acquire(compiled->exclusive, "program"));
    WCUDA_TRY(check_compiled(*compiled));
    const nvrtc::Outcome& outcome = compiled->outcome;
    WCUDA_ASSIGN(auto object, load_module(parent->memory, outcome.code.data(), outcome.code.size(),
                                          outcome.names));
    return insert(std::move(object), module);
  });
}

void wcuda_module_unload(wcuda_module module) { destroy(__func__, module); }

wcuda_status wcuda_module_global_create(wcuda_module module, wcuda_string name,
                                        wcuda_buffer* buffer, wcuda_error* error) {
  return guarded(error, [&]() -> Status {
    WCUDA_ASSIGN(auto object, resolve(module, "module"));
    WCUDA_TRY(check_not_null(buffer, "buffer"));
    WCUDA_ASSIGN(const std::string checked, read_name(name));
    return global(std::move(object), checked, buffer);
  });
}

wcuda_status wcuda_kernel_create(wcuda_context context, const wcuda_kernel_options* options,
                                 wcuda_kernel* kernel, wcuda_error* error) {
  return guarded(error, [&]() -> Status {
    WCUDA_ASSIGN(const auto parent, resolve(context, "context"));
    WCUDA_ASSIGN(const wcuda_kernel_options checked, read_struct(options, "options"));
    WCUDA_TRY(check_not_null(kernel, "kernel"));
    return create(*parent, checked, kernel);
  });
}

void wcuda_kernel_destroy(wcuda_kernel kernel) { destroy(__func__, kernel); }

wcuda_status wcuda_kernel_info_get(wcuda_kernel kernel, wcuda_kernel_info* info,
                                   wcuda_error* error) {
  return guarded(error, [&]() -> Status {
    WCUDA_ASSIGN(const auto object, resolve(kernel, "kernel"));
    return write_struct(info_of(*object), info, "info");
  });
}

wcuda_status wcuda_kernel_occupancy_get(wcuda_kernel kernel, uint32_t block_threads,
                                        uint64_t shared_bytes, wcuda_occupancy* occupancy,
                                        wcuda_error* error) {
  return guarded(error, [&]() -> Status {
    WCUDA_ASSIGN(const auto object, resolve(kernel, "kernel"));
    WCUDA_TRY(check_struct(occupancy, "occupancy"));
    WCUDA_ASSIGN(const wcuda_occupancy result, occupancy_of(*object, block_threads, shared_bytes));
    write_struct(result, occupancy);
    return {};
  });
}
