// Section 16 of the header: compiling CUDA C++ at run time.
#include "api/compute/program.h"

#include <algorithm>
#include <chrono>

#include "api/base/context.h"
#include "api/base/elements.h"
#include "core/backend/device_limits.h"
#include "core/base/log.h"
#include "core/base/text.h"

namespace wcuda::api {
namespace {

constexpr uint64_t kListCountMax = 65536;

Status check_list(const void* list, uint64_t count, const char* argument) {
  if (count != 0) WCUDA_TRY(check_not_null(list, argument));
  if (count <= kListCountMax) return {};
  return invalid_argument("%s: %llu entries, at most %llu", argument,
                          static_cast<unsigned long long>(count),
                          static_cast<unsigned long long>(kListCountMax));
}

Status read_list(const wcuda_string* list, uint64_t count, const char* argument,
                 std::vector<std::string>* result) {
  WCUDA_TRY(check_list(list, count, argument));
  for (uint64_t i = 0; i < count; ++i) {
    WCUDA_ASSIGN(const std::string_view text, read_string(list[i], argument));
    result->emplace_back(text);
  }
  return {};
}

Status read_choice(int32_t choice, const char* argument, nvrtc::Choice* result) {
  if (choice < 0 || choice > WCUDA_CHOICE_OFF)
    return invalid_argument("%s: %d is not 0, 1 or 2", argument, choice);
  *result = choice == WCUDA_CHOICE_ON    ? nvrtc::Choice::kOn
            : choice == WCUDA_CHOICE_OFF ? nvrtc::Choice::kOff
                                         : nvrtc::Choice::kDefault;
  return {};
}

// Returns the requested architecture, or that of the context's device. context may be null.
Status read_architecture(const wcuda_program_options& options, const Context* context,
                         std::string* result) {
  WCUDA_ASSIGN(*result, read_string(options.architecture, "architecture"));
  if (!result->empty()) return {};
  if (!context)
    return invalid_argument("architecture: is empty, and there is no context to take it from");
  const wcuda_device_caps& caps = context->memory->backend().caps();
  if (caps.backend != WCUDA_BACKEND_CUDA)
    return invalid_argument("architecture: is empty, and the context is not one of CUDA");
  *result = device_architecture(caps.compute_capability_major, caps.compute_capability_minor);
  return {};
}

Result<nvrtc::Request> read_request(const wcuda_program_options& options, const Context* context) {
  WCUDA_TRY(check_flags(options.flags,
                        WCUDA_PROGRAM_FAST_MATH | WCUDA_PROGRAM_LINE_INFO | WCUDA_PROGRAM_DEBUG |
                            WCUDA_PROGRAM_RELOCATABLE | WCUDA_PROGRAM_DEFAULT_DEVICE,
                        "flags"));
  nvrtc::Request r;
  WCUDA_ASSIGN(r.source, read_string(options.source, "source"));
  WCUDA_ASSIGN(const std::string_view name, read_string(options.name, "name"));
  if (!name.empty()) r.name = name;
  WCUDA_TRY(read_architecture(options, context, &r.architecture));
  WCUDA_ASSIGN(r.standard, read_string(options.standard, "standard"));
  WCUDA_TRY(read_list(options.defines, options.define_count, "defines", &r.defines));
  WCUDA_TRY(check_list(options.headers, options.header_count, "headers"));
  WCUDA_ASSIGN(const auto headers, read_elements(options.headers, options.header_count, "headers"));
  for (uint64_t i = 0; i < options.header_count; ++i) {
    nvrtc::Header header;
    WCUDA_ASSIGN(header.name, read_string(headers[i].name, "headers"));
    WCUDA_ASSIGN(header.text, read_string(headers[i].text, "headers"));
    r.headers.push_back(std::move(header));
  }
  WCUDA_TRY(read_list(options.include_folders, options.include_folder_count, "include_folders",
                      &r.include_folders));
  WCUDA_TRY(
      read_list(options.expressions, options.expression_count, "expressions", &r.expressions));
  WCUDA_TRY(read_list(options.extras, options.extra_count, "extras", &r.extras));
  r.fast_math = options.flags & WCUDA_PROGRAM_FAST_MATH;
  r.line_info = options.flags & WCUDA_PROGRAM_LINE_INFO;
  r.debug = options.flags & WCUDA_PROGRAM_DEBUG;
  r.relocatable = options.flags & WCUDA_PROGRAM_RELOCATABLE;
  r.default_device = options.flags & WCUDA_PROGRAM_DEFAULT_DEVICE;
  WCUDA_TRY(read_choice(options.flush_denormals, "flush_denormals", &r.flush_denormals));
  WCUDA_TRY(read_choice(options.precise_sqrt, "precise_sqrt", &r.precise_sqrt));
  WCUDA_TRY(read_choice(options.precise_division, "precise_division", &r.precise_division));
  WCUDA_TRY(read_choice(options.fuse_multiply_add, "fuse_multiply_add", &r.fuse_multiply_add));
  r.max_registers = options.max_registers;
  WCUDA_TRY(nvrtc::check(r));
  return r;
}

// Compiles through the cache, if there is one and the program may use it.
nvrtc::Outcome compile(const nvrtc::Compiler& compiler, ProgramObject& program) {
  program.cache_result = WCUDA_CACHE_NONE;
  if (!program.cache) return compiler.compile(program.request);
  std::string why;
  const auto key = jit::cache_key(program.request, compiler.identity(), &why);
  if (!key) {
    program.cache_result = WCUDA_CACHE_BYPASSED;
    program.cache->count_bypass();
    log(WCUDA_LOG_INFO, "jit", "'%s' bypasses the cache: %s", program.request.name.c_str(),
        why.c_str());
    return compiler.compile(program.request);
  }
  if (auto found = program.cache->find(*key)) {
    program.cache_result = WCUDA_CACHE_HIT;
    return std::move(*found);
  }
  program.cache_result = WCUDA_CACHE_MISS;
  nvrtc::Outcome outcome = compiler.compile(program.request);
  if (outcome.status.ok()) program.cache->store(*key, outcome);
  return outcome;
}

Status compile_now(ProgramObject& program) {
  WCUDA_ASSIGN(const auto compiler, nvrtc::Compiler::open(program.library_folder));
  program.nvrtc_version = compiler->version();
  const auto begin = std::chrono::steady_clock::now();
  program.outcome = compile(*compiler, program);
  program.compile_ns = static_cast<uint64_t>(
      std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now() - begin)
          .count());
  program.state = program.outcome.status.ok() ? WCUDA_PROGRAM_COMPILED : WCUDA_PROGRAM_FAILED;
  return program.outcome.status;
}

// Compiles through the context's backend if there is one, whose trace reports the compile and whose
// faults may refuse it.
Status compile(ProgramObject& program) {
  if (program.state == WCUDA_PROGRAM_COMPILED) return {};
  const std::shared_ptr<Backend> backend = program.backend.lock();
  if (!backend) return compile_now(program);
  return backend->compile(program.request.source.size(), [&] { return compile_now(program); });
}

wcuda_program_info info_of(const ProgramObject& program) {
  wcuda_program_info info = WCUDA_PROGRAM_INFO_INIT;
  info.state = program.state;
  info.code_kind = nvrtc::wants_device_code(program.request) ? WCUDA_CODE_CUBIN : WCUDA_CODE_PTX;
  info.nvrtc_version = program.nvrtc_version;
  info.code_bytes = program.outcome.code.size();
  info.log_bytes = program.outcome.log.size();
  info.compile_ns = program.compile_ns;
  info.cache_result = program.cache_result;
  copy_text(program.request.architecture, info.architecture, sizeof(info.architecture));
  return info;
}

}  // namespace

Status check_compiled(const ProgramObject& program) {
  if (program.state == WCUDA_PROGRAM_COMPILED) return {};
  return Status::error(
      WCUDA_INVALID_STATE, "program: %s",
      program.state == WCUDA_PROGRAM_NEW ? "was not compiled yet" : "could not be compiled");
}

}  // namespace wcuda::api

using namespace wcuda;
using namespace wcuda::api;

wcuda_status wcuda_program_create(const wcuda_program_options* options, wcuda_program* program,
                                  wcuda_error* error) {
  return guarded(error, [&]() -> Status {
    WCUDA_ASSIGN(const wcuda_program_options checked, read_struct(options, "options"));
    WCUDA_TRY(check_not_null(program, "program"));
    auto object = std::make_shared<ProgramObject>();
    std::shared_ptr<Context> context;
    if (checked.context.id != 0) {
      WCUDA_ASSIGN(context, resolve(checked.context, "context"));
      object->backend = context->memory->shared_backend();
    }
    WCUDA_ASSIGN(object->request, read_request(checked, context.get()));
    WCUDA_ASSIGN(object->library_folder, read_string(checked.library_folder, "library_folder"));
    if (checked.cache.id != 0) {
      WCUDA_ASSIGN(object->cache, resolve(checked.cache, "cache"));
    }
    return insert(std::move(object), program);
  });
}

void wcuda_program_destroy(wcuda_program program) { destroy(__func__, program); }

wcuda_status wcuda_program_compile(wcuda_program program, wcuda_error* error) {
  return guarded(error, [&]() -> Status {
    WCUDA_ASSIGN(const auto object, use(program, "program"));
    return compile(*object);
  });
}

wcuda_status wcuda_program_info_get(wcuda_program program, wcuda_program_info* info,
                                    wcuda_error* error) {
  return guarded(error, [&]() -> Status {
    WCUDA_ASSIGN(const auto object, use(program, "program"));
    return write_struct(info_of(*object), info, "info");
  });
}

wcuda_status wcuda_program_log_get(wcuda_program program, wcuda_string* log, wcuda_error* error) {
  return guarded(error, [&]() -> Status {
    WCUDA_ASSIGN(const auto object, use(program, "program"));
    WCUDA_TRY(check_not_null(log, "log"));
    *log = {object->outcome.log.data(), object->outcome.log.size()};
    return {};
  });
}

wcuda_status wcuda_program_code_get(wcuda_program program, const void** code, uint64_t* bytes,
                                    wcuda_error* error) {
  return guarded(error, [&]() -> Status {
    WCUDA_ASSIGN(const auto object, use(program, "program"));
    WCUDA_TRY(check_not_null(code, "code"));
    WCUDA_TRY(check_not_null(bytes, "bytes"));
    WCUDA_TRY(check_compiled(*object));
    *code = object->outcome.code.data();
    *bytes = object->outcome.code.size();
    return {};
  });
}

wcuda_status wcuda_program_name_get(wcuda_program program, wcuda_string expression,
                                    wcuda_string* name, wcuda_error* error) {
  return guarded(error, [&]() -> Status {
    WCUDA_ASSIGN(const auto object, use(program, "program"));
    WCUDA_ASSIGN(const std::string_view wanted, read_string(expression, "expression"));
    WCUDA_TRY(check_not_null(name, "name"));
    WCUDA_TRY(check_compiled(*object));
    const auto found = object->outcome.names.find(std::string(wanted));
    if (found == object->outcome.names.end())
      return Status::error(WCUDA_NOT_FOUND, "expression '%s': the program was made without it",
                           printable(wanted).c_str());
    *name = {found->second.data(), found->second.size()};
    return {};
  });
}

wcuda_status wcuda_compiler_info_get(wcuda_string library_folder, wcuda_compiler_info* info,
                                     wcuda_error* error) {
  return guarded(error, [&]() -> Status {
    WCUDA_TRY(check_struct(info, "info"));
    WCUDA_ASSIGN(const std::string_view folder, read_string(library_folder, "library_folder"));
    WCUDA_ASSIGN(const auto compiler, nvrtc::Compiler::open(std::string(folder)));
    wcuda_compiler_info result = WCUDA_COMPILER_INFO_INIT;
    result.nvrtc_version = compiler->version();
    constexpr size_t kRoom = sizeof(result.architectures) / sizeof(result.architectures[0]);
    const std::vector<int>& known = compiler->architectures();
    result.architecture_count = static_cast<uint32_t>(std::min(known.size(), kRoom));
    std::copy_n(known.begin(), result.architecture_count, result.architectures);
    return write_struct(result, info, "info");
  });
}

wcuda_status wcuda_kernel_cache_open(wcuda_string folder, uint64_t max_bytes,
                                     wcuda_kernel_cache* cache, wcuda_error* error) {
  return guarded(error, [&]() -> Status {
    WCUDA_TRY(check_not_null(cache, "cache"));
    WCUDA_ASSIGN(const std::string_view path, read_string(folder, "folder"));
    WCUDA_ASSIGN(auto object, jit::KernelCache::open(std::string(path), max_bytes));
    return insert(std::move(object), cache);
  });
}

void wcuda_kernel_cache_close(wcuda_kernel_cache cache) { destroy(__func__, cache); }

wcuda_status wcuda_kernel_cache_stats_get(wcuda_kernel_cache cache, wcuda_kernel_cache_stats* stats,
                                          wcuda_error* error) {
  return guarded(error, [&]() -> Status {
    WCUDA_ASSIGN(const auto object, resolve(cache, "cache"));
    const jit::CacheStats counts = object->stats();
    WCUDA_ASSIGN(const jit::CacheSize size, object->size());
    wcuda_kernel_cache_stats result = WCUDA_KERNEL_CACHE_STATS_INIT;
    result.hit_count = counts.hit_count;
    result.miss_count = counts.miss_count;
    result.damaged_count = counts.damaged_count;
    result.store_count = counts.store_count;
    result.store_failure_count = counts.store_failure_count;
    result.evicted_count = counts.evicted_count;
    result.bypass_count = counts.bypass_count;
    result.entry_count = size.entry_count;
    result.entry_bytes = size.bytes;
    return write_struct(result, stats, "stats");
  });
}

wcuda_status wcuda_kernel_cache_clear(wcuda_kernel_cache cache, wcuda_error* error) {
  return guarded(error, [&]() -> Status {
    WCUDA_ASSIGN(const auto object, resolve(cache, "cache"));
    return object->clear();
  });
}
