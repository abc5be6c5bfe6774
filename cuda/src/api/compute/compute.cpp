// Section 19 of the header: the catalogue of built-in kernels.
#include "api/compute/compute.h"

#include "api/base/context.h"
#include "api/base/stream.h"
#include "api/compute/arguments.h"
#include "compute/catalogue/catalogue.h"
#include "core/base/bytes.h"
#include "core/base/text.h"

namespace wcuda::api {
namespace {

// Of as many arguments as the kernel has parameters.
Status translate(const compute::CatalogueEntry& entry, const Arguments& given,
                 compute::CatalogueArgument* result) {
  const std::vector<wcuda_host_argument>& arguments = given.for_host();
  for (size_t i = 0; i < arguments.size(); ++i) {
    const wcuda_host_argument& from = arguments[i];
    compute::CatalogueArgument& to = result[i];
    to.kind = from.kind;
    if (from.kind == WCUDA_ARG_BUFFER) {
      to.data = static_cast<uint8_t*>(from.data);
      to.bytes = from.bytes;
      const uint32_t access = given.shapes()[i].access;
      const bool reads = entry.params[i].role != compute::Role::kWrite;
      if (reads && access != 0 && (access & WCUDA_ACCESS_READ) == 0)
        return invalid_argument("%s: argument %zu ('%s') is read, only writing is granted",
                                entry.name.c_str(), i, entry.params[i].name.c_str());
      const bool writes = entry.params[i].role == compute::Role::kWrite ||
                          entry.params[i].role == compute::Role::kUpdate;
      if (writes && access != 0 && (access & WCUDA_ACCESS_WRITE) == 0)
        return invalid_argument("%s: argument %zu ('%s') is written, only reading is granted",
                                entry.name.c_str(), i, entry.params[i].name.c_str());
    } else if (from.kind == WCUDA_ARG_F32) {
      to.factor = double{load_le<float>(from.data)};
    } else if (from.kind == WCUDA_ARG_F64) {
      to.factor = load_le<double>(from.data);
    } else if (jit::is_integer(from.kind)) {
      const std::optional<int64_t> value = jit::integer_at(from.kind, from.data);
      if (!value) return invalid_argument("argument %zu: is past 2^63", i);
      to.integer = *value;
    }
  }
  return {};
}

}  // namespace

Result<kernels::Dtype> read_element_type(int32_t type) {
  switch (type) {
    case WCUDA_ARG_F32:
      return kernels::Dtype::kF32;
    case WCUDA_ARG_F16:
      return kernels::Dtype::kF16;
    case WCUDA_ARG_BF16:
      return kernels::Dtype::kBf16;
    default:
      return invalid_argument("type: %d is not WCUDA_ARG_F32, _F16 or _BF16", type);
  }
}

Result<const compute::CatalogueEntry*> find_builtin(const wcuda_string& name) {
  WCUDA_ASSIGN(const std::string_view text, read_string(name, "name"));
  const compute::CatalogueEntry* const entry = compute::find_entry(text);
  if (entry) return entry;
  return Status::error(WCUDA_NOT_FOUND, "kernel '%s': is not in the catalogue",
                       printable(text).c_str());
}

Status check_type(const compute::CatalogueEntry& entry, int32_t type) {
  if (!entry.is_f32_only || type == WCUDA_ARG_F32) return {};
  return unsupported("%s: is for f32 only", entry.name.c_str());
}

Result<compute::PreparedCall> prepare_builtin(const compute::CatalogueEntry& entry,
                                              kernels::Dtype type, const vram::Memory& memory,
                                              const wcuda_argument* arguments, uint64_t count,
                                              Arguments* given) {
  if (count != 0) WCUDA_TRY(check_not_null(arguments, "arguments"));
  if (count != entry.params.size()) return compute::wrong_count(entry, count);
  WCUDA_TRY(given->read(arguments, count, memory));
  return prepare_read(entry, type, *given);
}

Result<compute::PreparedCall> prepare_read(const compute::CatalogueEntry& entry,
                                           kernels::Dtype type, const Arguments& given) {
  compute::CatalogueArgument translated[compute::kParametersMax];
  const size_t count = given.shapes().size();
  if (count == entry.params.size()) WCUDA_TRY(translate(entry, given, translated));
  return compute::prepare_call(entry, type, translated, count);
}

Status run_builtin(const compute::CatalogueEntry& entry, const compute::PreparedCall& call,
                   vram::Memory& memory, wcuda_stream stream, Arguments* given) {
  WCUDA_ASSIGN(const UsedStream on, use_stream(stream, memory));
  WCUDA_TRY(memory.backend().fault());
  given->used_on(on.stream);
  return compute::run_call(entry, call, memory, on.stream);
}

}  // namespace wcuda::api

using namespace wcuda;
using namespace wcuda::api;

wcuda_status wcuda_catalogue_list(uint64_t first, wcuda_catalogue_entry* entries, uint64_t capacity,
                                  uint64_t* count, wcuda_error* error) {
  return guarded(error, [&]() -> Status {
    const auto& all = compute::catalogue();
    return write_list<wcuda_catalogue_entry>(
        {entries, capacity, "entries"}, first, all.size(), count, [&](uint64_t index) {
          const compute::CatalogueEntry& entry = all[index];
          wcuda_catalogue_entry result = WCUDA_CATALOGUE_ENTRY_INIT;
          result.is_f32_only = entry.is_f32_only;
          result.name = {entry.name.data(), entry.name.size()};
          result.parameter_count = static_cast<uint32_t>(entry.params.size());
          return result;
        });
  });
}

wcuda_status wcuda_catalogue_parameter_list(wcuda_string name, int32_t type, uint64_t first,
                                            wcuda_parameter* parameters, uint64_t capacity,
                                            uint64_t* count, wcuda_error* error) {
  return guarded(error, [&]() -> Status {
    WCUDA_ASSIGN(const auto* const entry, find_builtin(name));
    WCUDA_TRY(read_element_type(type).status());
    WCUDA_TRY(check_type(*entry, type));
    const auto all = compute::parameters_of(*entry, type);
    return write_list<wcuda_parameter>({parameters, capacity, "parameters"}, first, all.size(),
                                       count, [&](uint64_t index) { return all[index]; });
  });
}

wcuda_status wcuda_catalogue_run(wcuda_context context, wcuda_string name, int32_t type,
                                 const wcuda_argument* arguments, uint64_t argument_count,
                                 wcuda_stream stream, wcuda_error* error) {
  return guarded(error, [&]() -> Status {
    WCUDA_ASSIGN(const auto parent, resolve(context, "context"));
    WCUDA_ASSIGN(const auto* const entry, find_builtin(name));
    WCUDA_ASSIGN(const auto dtype, read_element_type(type));
    vram::Memory& memory = *parent->memory;
    Arguments given;
    WCUDA_ASSIGN(const auto call,
                 prepare_builtin(*entry, dtype, memory, arguments, argument_count, &given));
    return run_builtin(*entry, call, memory, stream, &given);
  });
}
