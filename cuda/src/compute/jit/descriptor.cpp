// Descriptors: reading, the canonical signature, and the check of a call.
#include "compute/jit/descriptor.h"

#include <algorithm>
#include <charconv>
#include <cinttypes>
#include <cmath>
#include <cstdarg>
#include <cstdio>
#include <set>

#include "compute/jit/launch.h"
#include "core/base/bytes.h"
#include "core/base/checked.h"
#include "core/base/small_array.h"
#include "core/base/text.h"

namespace wcuda::jit {
namespace {

constexpr uint64_t kParamCountMax = 1024;
constexpr size_t kNameBytesMax = 127;
constexpr size_t kRankMax = 8;
constexpr uint32_t kDefaultBlockThreads = 256;

std::string_view view(const wcuda_string& text) {
  return {text.data ? text.data : "", static_cast<size_t>(text.bytes)};
}

// Prefixes the message of a parser with the field: "parameters[2].shape: …".
Status at_field(const std::string& field, const Status& status) {
  return Status::error(status.code(), "%s: %s", field.c_str(), status.message());
}
Status wrong_field(const std::string& field, const char* what) {
  return invalid_argument("%s: %s", field.c_str(), what);
}

// Reads an expression unless the text is empty.
Status read_optional(const wcuda_string& from, const std::string& field,
                     const ExpressionNames& integers, std::optional<Expression>* into) {
  if (from.bytes == 0) return {};
  auto parsed = Expression::parse(view(from), integers);
  if (!parsed.ok()) return at_field(field, parsed.status());
  *into = parsed.take();
  return {};
}

class SignatureReader {
 public:
  SignatureReader(const wcuda_parameter* from, uint64_t count) : from_(from), count_(count) {}

  Result<Signature> read() {
    if (count_ > kParamCountMax) return wrong_field("parameters", "more than 1024");
    if (count_ != 0 && !from_) return wrong_field("parameters", "is NULL");
    for (uint64_t i = 0; i < count_; ++i) WCUDA_TRY(read_name(i));
    for (uint64_t i = 0; i < count_; ++i) WCUDA_TRY(read_param(i));
    return std::move(result_);
  }

  const ExpressionNames& integers() const { return integers_; }

 private:
  // Names come before any expression: a shape may name an integer that comes later.
  Status read_name(uint64_t index) {
    const wcuda_parameter& from = from_[index];
    const std::string field = "parameters[" + std::to_string(index) + "].";
    const std::string_view name = view(from.name);
    if (!is_expression_name(name))
      return wrong_field(field + "name",
                         "is not 1 to 64 letters, digits and '_', or is a function");
    if (*kind_name(from.kind) == 0) return wrong_field(field + "kind", "is not one of WCUDA_ARG_…");
    if (!names_.emplace(name).second)
      return wrong_field(field + "name", "is another parameter's too");
    Parameter param;
    param.name = name;
    param.kind = from.kind;
    if (is_integer(from.kind)) integers_.emplace(name, index);
    result_.parameters.push_back(std::move(param));
    return {};
  }

  Status read_param(uint64_t index) {
    const wcuda_parameter& from = from_[index];
    Parameter& param = result_.parameters[index];
    const std::string field = "parameters[" + std::to_string(index) + "].";
    const bool is_buffer = from.kind == WCUDA_ARG_BUFFER;
    param.layout_id = from.layout_id;
    if (!is_buffer && (from.dtype | static_cast<int32_t>(from.access) | from.layout) != 0)
      return wrong_field(field + "kind", "only a buffer has a dtype, an access and a layout");
    if (is_buffer) {
      WCUDA_TRY(read_buffer(from, field, &param));
    } else if (from.kind == WCUDA_ARG_BYTES) {
      WCUDA_TRY(read_bytes(from, field, &param));
    } else {
      if (from.shape.bytes != 0) return wrong_field(field + "shape", "a scalar has none");
      if (from.layout_id != 0) return wrong_field(field + "layout_id", "a scalar has none");
      result_.canonical += kind_name(from.kind);
    }
    WCUDA_TRY(read_bounds(from, field, &param));
    result_.canonical += ';';
    return {};
  }

  Status read_buffer(const wcuda_parameter& from, const std::string& field, Parameter* param) {
    if (scalar_bytes(from.dtype) == 0)
      return wrong_field(field + "dtype", "is no WCUDA_ARG_… of a scalar");
    if ((from.access & ~kBothAccess) != 0) return wrong_field(field + "access", "has unknown bits");
    if (from.layout < WCUDA_LAYOUT_ANY || from.layout > WCUDA_LAYOUT_COLUMN_MAJOR)
      return wrong_field(field + "layout", "is not one of WCUDA_LAYOUT_…");
    param->dtype = from.dtype;
    param->access = from.access ? from.access : kBothAccess;
    auto shape = Expression::parse_list(view(from.shape), integers_);
    if (!shape.ok()) return at_field(field + "shape", shape.status());
    if (shape->size() > kRankMax) return wrong_field(field + "shape", "more than 8 dimensions");
    param->shape = shape.take();
    std::string& text = result_.canonical;
    text += param->access == WCUDA_ACCESS_READ    ? "r "
            : param->access == WCUDA_ACCESS_WRITE ? "w "
                                                  : "rw ";
    text += kind_name(from.dtype);
    text += '[';
    for (size_t i = 0; i < param->shape.size(); ++i)
      text += (i != 0 ? "," : "") + param->shape[i].canonical();
    text += ']';
    if (from.layout != WCUDA_LAYOUT_ANY)
      text += from.layout == WCUDA_LAYOUT_ROW_MAJOR ? " row" : " col";
    if (from.layout_id != 0) text += " #" + std::to_string(from.layout_id);
    return {};
  }

  Status read_bytes(const wcuda_parameter& from, const std::string& field, Parameter* param) {
    auto size = Expression::parse(view(from.shape), {});
    if (!size.ok()) return at_field(field + "shape", size.status());
    const auto value = size->value(nullptr);
    if (!value.ok()) return at_field(field + "shape", value.status());
    if (*value < 1 || *value > 4096) return wrong_field(field + "shape", "is not 1 to 4096 bytes");
    param->shape.push_back(Expression::constant(*value));
    result_.canonical += "bytes[" + std::to_string(*value) + ']';
    if (from.layout_id != 0) result_.canonical += " #" + std::to_string(from.layout_id);
    return {};
  }

  Status read_bounds(const wcuda_parameter& from, const std::string& field, Parameter* param) {
    if (from.min.bytes == 0 && from.max.bytes == 0) return {};
    std::string low, high;
    if (is_integer(from.kind)) {
      WCUDA_TRY(read_optional(from.min, field + "min", integers_, &param->least));
      WCUDA_TRY(read_optional(from.max, field + "max", integers_, &param->most));
      if (param->least) low = param->least->canonical();
      if (param->most) high = param->most->canonical();
    } else if (from.kind == WCUDA_ARG_F32 || from.kind == WCUDA_ARG_F64) {
      WCUDA_TRY(read_number(from.min, field + "min", &param->floor, &low));
      WCUDA_TRY(read_number(from.max, field + "max", &param->ceiling, &high));
    } else {
      return wrong_field(field + (from.min.bytes ? "min" : "max"),
                         "only integers, f32 and f64 have bounds");
    }
    result_.canonical += '{' + low + ".." + high + '}';
    return {};
  }

  Status read_number(const wcuda_string& from, const std::string& field,
                     std::optional<double>* number, std::string* canonical) {
    const std::string_view text = view(from);
    if (text.empty()) return {};
    double value = 0;
    const auto end = std::from_chars(text.data(), text.data() + text.size(), value);
    if (end.ec != std::errc() || end.ptr != text.data() + text.size() || !std::isfinite(value))
      return wrong_field(field, "is no finite number");
    char shortest[32];
    const auto written = std::to_chars(shortest, shortest + sizeof(shortest), value);
    canonical->assign(shortest, written.ptr);
    *number = value;
    return {};
  }

  const wcuda_parameter* const from_;
  const uint64_t count_;
  std::set<std::string, std::less<>> names_;
  ExpressionNames integers_;
  Signature result_;
};

class Reader {
 public:
  explicit Reader(const wcuda_kernel_descriptor& from) : from_(from) {}

  Result<Descriptor> read() {
    WCUDA_TRY(read_head());
    SignatureReader reader(from_.parameters, from_.parameter_count);
    WCUDA_ASSIGN(result_.signature, reader.read());
    const ExpressionNames& integers = reader.integers();
    for (size_t i = 0; i < 3; ++i) {
      const std::string at = '[' + std::to_string(i) + ']';
      WCUDA_TRY(read_optional(from_.grid[i], "grid" + at, integers, &result_.grid[i]));
      WCUDA_TRY(read_optional(from_.block[i], "block" + at, integers, &result_.block[i]));
    }
    WCUDA_TRY(read_optional(from_.threads, "threads", integers, &result_.threads));
    if (result_.threads && result_.grid[0]) return wrong_field("threads", "given, and grid[0] too");
    WCUDA_TRY(read_optional(from_.shared_bytes, "shared_bytes", integers, &result_.shared_bytes));
    result_.sig_hash = fnv1a(result_.signature.canonical);
    return std::move(result_);
  }

 private:
  Status read_head() {
    if ((from_.flags & ~WCUDA_KERNEL_NON_DETERMINISTIC) != 0)
      return wrong_field("flags", "has bits that are not WCUDA_KERNEL_NON_DETERMINISTIC");
    result_.flags = from_.flags;
    result_.kernel_id = from_.kernel_id;
    result_.budget_ms = from_.budget_ms;
    const std::string_view name = view(from_.name);
    if (name.empty() || !is_name(name))
      return wrong_field("name", "is not 1 to 127 bytes of UTF-8 without control characters");
    result_.name = name;
    const std::string_view module = view(from_.module);
    if (!is_name(module))
      return wrong_field("module", "is not 0 to 127 bytes of UTF-8 without control characters");
    result_.module = module;
    return {};
  }

  static bool is_name(std::string_view text) {
    const bool has_control = std::any_of(text.begin(), text.end(), [](char c) {
      return static_cast<unsigned char>(c) < ' ' || c == 0x7f;
    });
    return text.size() <= kNameBytesMax && !has_control && is_utf8(text);
  }

  const wcuda_kernel_descriptor& from_;
  Descriptor result_;
};

__attribute__((format(printf, 3, 4))) Status wrong_argument(const Signature& signature,
                                                            size_t index, const char* format, ...) {
  char what[200];
  va_list list;
  va_start(list, format);
  std::vsnprintf(what, sizeof(what), format, list);
  va_end(list);
  return invalid_argument("argument %zu ('%s') %s", index, signature.parameters[index].name.c_str(),
                          what);
}

// Of the integers among the arguments; up to 16 arguments take no memory from the heap.
using Values = SmallArray<std::optional<int64_t>, 16>;

Status check_bounds(const Signature& signature, size_t index, const DescribedArgument& argument,
                    const Values& values) {
  const Parameter& param = signature.parameters[index];
  if (param.floor || param.ceiling) {
    const double value = argument.kind == WCUDA_ARG_F32 ? double{load_le<float>(argument.data)}
                                                        : load_le<double>(argument.data);
    if (param.floor && !(value >= *param.floor))
      return wrong_argument(signature, index, "is %g, at least %g", value, *param.floor);
    if (param.ceiling && !(value <= *param.ceiling))
      return wrong_argument(signature, index, "is %g, at most %g", value, *param.ceiling);
    return {};
  }
  const std::optional<int64_t>& value = values[index];
  if (param.least) {
    const auto least = param.least->value(values.data());
    if (!least.ok())
      return wrong_argument(signature, index, "has no least: %s", least.status().message());
    if (value && *value < *least)
      return wrong_argument(signature, index, "is %" PRId64 ", at least %" PRId64, *value, *least);
  }
  if (param.most) {
    const auto most = param.most->value(values.data());
    if (!most.ok())
      return wrong_argument(signature, index, "has no most: %s", most.status().message());
    if (!value) return wrong_argument(signature, index, "is past 2^63, at most %" PRId64, *most);
    if (*value > *most)
      return wrong_argument(signature, index, "is %" PRId64 ", at most %" PRId64, *value, *most);
  }
  return {};
}

Result<uint64_t> elements_of(const Signature& signature, size_t index, const Values& values) {
  uint64_t product = 1;
  for (const Expression& dimension : signature.parameters[index].shape) {
    const auto value = dimension.value(values.data());
    if (!value.ok())
      return wrong_argument(signature, index, "has no extent: %s", value.status().message());
    if (*value < 0)
      return wrong_argument(signature, index, "has an extent of %" PRId64 ", at least 0", *value);
    if (!checked_mul(product, static_cast<uint64_t>(*value), &product))
      return wrong_argument(signature, index, "has an extent that overflows");
  }
  return product;
}

Status check_buffer(const Signature& signature, size_t index, const DescribedArgument& argument,
                    const Values& values, uint64_t* bytes) {
  const Parameter& param = signature.parameters[index];
  const uint32_t grants = argument.access ? argument.access : kBothAccess;
  if ((param.access & ~grants) != 0)
    return wrong_argument(signature, index, "is %s by the kernel, only %s is granted",
                          param.access & ~grants & WCUDA_ACCESS_WRITE ? "written" : "read",
                          grants & WCUDA_ACCESS_READ ? "reading" : "writing");
  WCUDA_ASSIGN(const uint64_t needed, elements_of(signature, index, values));
  const uint64_t each = scalar_bytes(param.dtype);
  if (argument.bytes / each < needed)
    return wrong_argument(signature, index, "has %" PRIu64 " elements, the kernel needs %" PRIu64,
                          argument.bytes / each, needed);
  *bytes += needed * each;
  return {};
}

Result<uint32_t> launch_number(const std::optional<Expression>& expression, uint32_t none,
                               const char* what, const char* axis, const Values& values) {
  if (!expression) return none;
  const auto value = expression->value(values.data());
  if (!value.ok())
    return Status::error(WCUDA_INVALID_CONFIG, "%s%s: %s", what, axis, value.status().message());
  if (*value < 0 || *value > int64_t{UINT32_MAX})
    return Status::error(WCUDA_INVALID_CONFIG, "%s%s: %" PRId64 ", must be 0 to 4294967295", what,
                         axis, *value);
  return static_cast<uint32_t>(*value);
}

Status plan_threads(const Descriptor& descriptor, const Values& values, DescribedLaunch* launch) {
  if (!descriptor.threads) {
    launch->elements = 1;
    for (int i = 0; i < 3; ++i)
      for (const uint32_t factor : {launch->dims.grid[i], launch->dims.block[i]})
        if (!checked_mul(launch->elements, uint64_t{factor}, &launch->elements))
          launch->elements = UINT64_MAX;
    return {};
  }
  const auto threads = descriptor.threads->value(values.data());
  if (!threads.ok())
    return Status::error(WCUDA_INVALID_CONFIG, "threads: %s", threads.status().message());
  if (*threads < 0)
    return Status::error(WCUDA_INVALID_CONFIG, "threads: %" PRId64 ", at least 0", *threads);
  launch->elements = static_cast<uint64_t>(*threads);
  const uint64_t each = std::max<uint64_t>(launch->dims.block[0], 1);
  const uint64_t blocks =
      std::max<uint64_t>(launch->elements / each + (launch->elements % each != 0), 1);
  if (blocks > INT32_MAX)
    return Status::error(WCUDA_INVALID_CONFIG, "threads: %" PRId64 ", more than a grid can have",
                         *threads);
  launch->dims.grid[0] = static_cast<uint32_t>(blocks);
  return {};
}

// Checks every argument; returns the values of the integers and the bytes of all buffers.
Status check_all(const Signature& signature, const std::vector<DescribedArgument>& arguments,
                 Values* values, uint64_t* bytes) {
  const size_t count = signature.parameters.size();
  if (arguments.size() != count)
    return Status::error(WCUDA_ARGUMENT_COUNT, "arguments: %zu given, the kernel takes %zu",
                         arguments.size(), count);
  for (size_t i = 0; i < count; ++i) {
    const int32_t wanted = signature.parameters[i].kind;
    if (arguments[i].kind != wanted)
      return wrong_argument(signature, i, "is %s, the kernel takes %s",
                            kind_name(arguments[i].kind), kind_name(wanted));
    if (is_integer(wanted)) (*values)[i] = integer_at(wanted, arguments[i].data);
  }
  // Numbers first: their bounds give a clearer message than an extent computed from them.
  for (size_t i = 0; i < count; ++i)
    if (scalar_bytes(signature.parameters[i].kind) != 0)
      WCUDA_TRY(check_bounds(signature, i, arguments[i], *values));
  for (size_t i = 0; i < count; ++i) {
    const Parameter& param = signature.parameters[i];
    if (param.kind == WCUDA_ARG_BUFFER)
      WCUDA_TRY(check_buffer(signature, i, arguments[i], *values, bytes));
    if (param.kind != WCUDA_ARG_BYTES) continue;
    WCUDA_ASSIGN(const int64_t size, param.shape[0].value(nullptr));
    if (arguments[i].bytes != static_cast<uint64_t>(size))
      return wrong_argument(signature, i, "has %" PRIu64 " bytes, the kernel takes %" PRId64,
                            arguments[i].bytes, size);
  }
  return {};
}

}  // namespace

uint64_t fnv1a(std::string_view bytes) {
  uint64_t hash = 0xcbf29ce484222325;
  for (const char c : bytes) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  return hash;
}

Result<Descriptor> read_descriptor(const wcuda_kernel_descriptor& from) {
  return Reader(from).read();
}

Result<Signature> read_signature(const wcuda_parameter* parameters, uint64_t count) {
  return SignatureReader(parameters, count).read();
}

Status check_arguments(const Signature& signature,
                       const std::vector<DescribedArgument>& arguments) {
  Values values(arguments.size());
  uint64_t bytes = 0;
  return check_all(signature, arguments, &values, &bytes);
}

Status check_fit(const Signature& signature, const std::vector<KernelParameter>& code) {
  const auto& parameters = signature.parameters;
  if (parameters.size() != code.size())
    return invalid_argument("parameters: %zu given, the kernel's code has %zu", parameters.size(),
                            code.size());
  for (size_t i = 0; i < parameters.size(); ++i) {
    uint64_t bytes = scalar_bytes(parameters[i].kind);
    if (parameters[i].kind == WCUDA_ARG_BUFFER) bytes = sizeof(void*);
    if (parameters[i].kind == WCUDA_ARG_BYTES) {
      WCUDA_ASSIGN(const int64_t size, parameters[i].shape[0].value(nullptr));
      bytes = static_cast<uint64_t>(size);
    }
    if (bytes != code[i].bytes)
      return invalid_argument("parameters[%zu]: %s of %" PRIu64
                              " bytes, the kernel's code takes %" PRIu64,
                              i, kind_name(parameters[i].kind), bytes, code[i].bytes);
  }
  return {};
}

Result<DescribedLaunch> plan_launch(const Descriptor& descriptor,
                                    const std::vector<DescribedArgument>& arguments) {
  Values values(arguments.size());
  DescribedLaunch launch;
  WCUDA_TRY(check_all(descriptor.signature, arguments, &values, &launch.bytes));
  for (int i = 0; i < 3; ++i) {
    const uint32_t block = i == 0 ? kDefaultBlockThreads : 1;
    WCUDA_ASSIGN(launch.dims.grid[i],
                 launch_number(descriptor.grid[i], 1, "grid ", kAxis[i], values));
    WCUDA_ASSIGN(launch.dims.block[i],
                 launch_number(descriptor.block[i], block, "block ", kAxis[i], values));
  }
  WCUDA_ASSIGN(launch.dims.shared_bytes,
               launch_number(descriptor.shared_bytes, 0, "shared memory", "", values));
  WCUDA_TRY(plan_threads(descriptor, values, &launch));
  return launch;
}

}  // namespace wcuda::jit
