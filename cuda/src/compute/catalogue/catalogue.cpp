// The table of kernels, and the checks of every call.
#include "compute/catalogue/catalogue.h"

#include <algorithm>
#include <cinttypes>
#include <cstdarg>
#include <cstdio>

#include "core/base/checked.h"
#include "worker_cuda/compute.h"

namespace wcuda::compute {
namespace {

using kernels::CatalogueOp;
using kernels::Dtype;

struct Row {
  const char* name;
  CatalogueOp op;
  bool is_f32_only;
  bool may_alias;
  // "<x:n" read, ">y:n" written, "=y:n" both, "#n" an integer, "%a" a factor, "!1" a constant that
  // the kernel takes as an integer. An extent is a product: "rows*width".
  const char* signature;
};

constexpr char kUnary[] = "<x:n >y:n #n";
constexpr char kBinary[] = "<a:n <b:n >c:n #n";
constexpr char kRowsOf[] = "<x:rows*width >y:rows*width #rows #width";
constexpr char kPool[] =
    "<x:batch*channels*h*w >y:batch*channels*oh*ow #batch #channels #h #w #kh #kw #stride #pad";
constexpr char kLinear[] = "<x:batch*in <w:in*out <b:out >y:batch*out #batch #in #out";
constexpr char kProduct[] = "<a:m*k <b:k*n >c:m*n !1 #m #k #n";

constexpr bool kAnyType = false, kF32Only = true, kAlias = true, kApart = false;
constexpr Row kTable[] = {
    {"avg_pool2d", CatalogueOp::kAvgPool2d, kF32Only, kApart, kPool},
    {"batch_cosine_similarity", CatalogueOp::kCosine, kAnyType, kApart,
     "<a:rows*width <b:rows*width >y:rows #rows #width"},
    {"batch_matmul", CatalogueOp::kMatmul, kAnyType, kApart,
     "<a:batch*m*k <b:batch*k*n >c:batch*m*n #batch #m #k #n"},
    {"batch_norm", CatalogueOp::kBatchNorm, kAnyType, kAlias,
     "<x:batch*features <gamma:features <beta:features <mean:features <variance:features "
     ">y:batch*features #batch #features %eps"},
    {"batch_norm2d", CatalogueOp::kBatchNorm2d, kF32Only, kAlias,
     "<x:batch*channels*area <gamma:channels <beta:channels <mean:channels <variance:channels "
     ">y:batch*channels*area #batch #channels #area %eps"},
    {"broadcast_add", CatalogueOp::kBroadcastAdd, kAnyType, kAlias,
     "<x:batch*features <bias:features >y:batch*features #batch #features"},
    {"categorical", CatalogueOp::kCategorical, kAnyType, kApart,
     "<p:rows*width >y/i32:rows #rows #width #seed #offset"},
    {"col2im", CatalogueOp::kCol2im, kF32Only, kApart,
     "<x:batch*channels*kh*kw*oh*ow >y:batch*channels*h*w #batch #channels #h #w #kh #kw #stride "
     "#pad"},
    {"conv2d", CatalogueOp::kConv2d, kF32Only, kApart,
     "<x:batch*channels*h*w <weight:filters*channels*kh*kw <bias:filters "
     ">y:batch*filters*oh*ow #batch #channels #h #w #filters #kh #kw #stride #pad"},
    {"copy", CatalogueOp::kCopy, kAnyType, kAlias, kUnary},
    {"dot_product", CatalogueOp::kDot, kAnyType, kApart, "<a:n <b:n >y:1 #n"},
    {"elementwise_exp", CatalogueOp::kExp, kAnyType, kAlias, kUnary},
    {"embedding_lookup", CatalogueOp::kEmbedding, kAnyType, kApart,
     "<ids/i32:batch*seq <table:vocab*d >y:batch*seq*d #batch #seq #vocab #d"},
    {"fill", CatalogueOp::kFill, kAnyType, kAlias, ">y:n %value #n"},
    {"fused_add_norm", CatalogueOp::kAddNorm, kAnyType, kAlias,
     "<x:rows*width <residual:rows*width <gamma:width >sum:rows*width >y:rows*width #rows #width "
     "%eps"},
    {"fused_exp_normalize", CatalogueOp::kSoftmax, kAnyType, kAlias, kRowsOf},
    {"fused_linear_gelu", CatalogueOp::kLinearGelu, kAnyType, kApart, kLinear},
    {"fused_linear_relu", CatalogueOp::kLinearRelu, kAnyType, kApart, kLinear},
    {"fused_matmul_relu", CatalogueOp::kMatmulRelu, kAnyType, kApart,
     "<a:m*k <b:k*n >c:m*n #m #k #n"},
    {"gelu", CatalogueOp::kGelu, kAnyType, kAlias, kUnary},
    {"gelu_activation", CatalogueOp::kGelu, kAnyType, kAlias, kUnary},
    {"gelu_fast", CatalogueOp::kGeluFast, kAnyType, kAlias, kUnary},
    {"im2col", CatalogueOp::kIm2col, kF32Only, kApart,
     "<x:batch*channels*h*w >y:batch*channels*kh*kw*oh*ow #batch #channels #h #w #kh #kw #stride "
     "#pad"},
    {"layer_norm", CatalogueOp::kLayerNorm, kAnyType, kAlias,
     "<x:rows*width <gamma:width <beta:width >y:rows*width #rows #width %eps"},
    {"linear", CatalogueOp::kLinear, kAnyType, kApart, kLinear},
    {"matmul", CatalogueOp::kMatmul, kAnyType, kApart, kProduct},
    {"matrix_multiply", CatalogueOp::kMatmul, kAnyType, kApart, kProduct},
    {"matrix_transpose", CatalogueOp::kTranspose, kAnyType, kApart,
     "<x:rows*cols >y:rows*cols #rows #cols"},
    {"max_pool2d", CatalogueOp::kMaxPool2d, kF32Only, kApart, kPool},
    {"multi_head_attention", CatalogueOp::kAttention, kAnyType, kApart,
     "<q:batch*seq*d <k:batch*seq*d <v:batch*seq*d >y:batch*seq*d >weights/f32:batch*heads*seq*seq "
     "#batch #seq #d #heads #causal"},
    {"noop", CatalogueOp::kNoop, kAnyType, kApart, ""},
    {"normal", CatalogueOp::kNormal, kAnyType, kApart, ">y:n %mean %deviation #n #seed #offset"},
    {"normalize", CatalogueOp::kNormalize, kAnyType, kAlias, kRowsOf},
    {"reduce_max", CatalogueOp::kMax, kAnyType, kApart, "<x:n >y:1 #n"},
    {"reduce_min", CatalogueOp::kMin, kAnyType, kApart, "<x:n >y:1 #n"},
    {"reduce_product", CatalogueOp::kProduct, kAnyType, kApart, "<x:n >y:1 #n"},
    {"reduce_sum", CatalogueOp::kSum, kAnyType, kApart, "<x:n >y:1 #n"},
    {"relu", CatalogueOp::kRelu, kAnyType, kAlias, kUnary},
    {"rms_norm", CatalogueOp::kRmsNorm, kAnyType, kAlias,
     "<x:rows*width <gamma:width >y:rows*width #rows #width %eps"},
    {"rope_encoding", CatalogueOp::kRope, kAnyType, kApart, "<x:seq*d >y:seq*d #seq #d #offset"},
    {"saxpy", CatalogueOp::kSaxpy, kAnyType, kApart, "%alpha <x:n =y:n #n"},
    {"shannon_entropy", CatalogueOp::kEntropy, kAnyType, kApart, "<p:n >y:1 #n"},
    {"sigmoid", CatalogueOp::kSigmoid, kAnyType, kAlias, kUnary},
    {"silu", CatalogueOp::kSilu, kAnyType, kAlias, kUnary},
    {"softmax", CatalogueOp::kSoftmax, kAnyType, kAlias, kRowsOf},
    {"swiglu", CatalogueOp::kSwiglu, kAnyType, kAlias, "<gate:n <up:n >y:n #n"},
    {"tanh", CatalogueOp::kTanh, kAnyType, kAlias, kUnary},
    {"tanh_activation", CatalogueOp::kTanh, kAnyType, kAlias, kUnary},
    {"tensor_add", CatalogueOp::kVectorAdd, kAnyType, kAlias, kBinary},
    {"top_k_sampling", CatalogueOp::kTopK, kAnyType, kApart,
     "<logits:rows*width >index/i32:rows*k >probability:rows*k #rows #width #k"},
    {"uniform", CatalogueOp::kUniform, kAnyType, kApart, ">y:n %low %high #n #seed #offset"},
    {"vector_add", CatalogueOp::kVectorAdd, kAnyType, kAlias, kBinary},
    {"vector_div", CatalogueOp::kVectorDiv, kAnyType, kAlias, kBinary},
    {"vector_mul", CatalogueOp::kVectorMul, kAnyType, kAlias, kBinary},
    {"vector_scale", CatalogueOp::kVectorScale, kAnyType, kAlias, "<x:n >y:n %alpha #n"},
    {"vector_sub", CatalogueOp::kVectorSub, kAnyType, kAlias, kBinary},
};

// Whether no row has more parameters than a call has room for.
constexpr bool rows_fit() {
  for (const Row& row : kTable) {
    size_t words = 1;
    for (const char* at = row.signature; *at; ++at) words += *at == ' ';
    if (words > kParametersMax) return false;
  }
  return true;
}
static_assert(rows_fit(), "kParametersMax is too small");

// Splits a text at single separators.
std::vector<std::string> split(std::string_view text, char separator) {
  std::vector<std::string> parts;
  while (!text.empty()) {
    const size_t end = std::min(text.find(separator), text.size());
    parts.emplace_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return parts;
}

std::string name_of(Role role) {
  switch (role) {
    case Role::kRead:
      return "in ";
    case Role::kWrite:
      return "out ";
    case Role::kUpdate:
      return "in-out ";
    default:
      return "";
  }
}

CatalogueEntry read_row(const Row& row) {
  CatalogueEntry entry{row.name, "", row.op, row.is_f32_only, row.may_alias, {}, {}};
  for (const std::string& token : split(row.signature, ' ')) {
    const std::string word = token.substr(1);
    if (token[0] == '!') {
      entry.leading_dims.push_back(std::stoll(word));
      continue;
    }
    CatalogueParam param;
    param.role = token[0] == '<'   ? Role::kRead
                 : token[0] == '>' ? Role::kWrite
                 : token[0] == '=' ? Role::kUpdate
                 : token[0] == '#' ? Role::kInteger
                                   : Role::kFactor;
    const size_t colon = word.find(':');
    param.name = word.substr(0, colon);
    const size_t slash = param.name.find('/');
    param.is_i32 = slash != std::string::npos && param.name.substr(slash) == "/i32";
    param.is_f32 = slash != std::string::npos && param.name.substr(slash) == "/f32";
    param.name = param.name.substr(0, slash);
    if (colon != std::string::npos) param.extent = split(word.substr(colon + 1), '*');
    for (const std::string& factor : param.extent)
      param.shape +=
          (param.shape.empty() ? "" : "*") + (factor == "oh"   ? "((h+2*pad-kh)/stride+1)"
                                              : factor == "ow" ? "((w+2*pad-kw)/stride+1)"
                                                               : factor);
    entry.call += entry.call.empty() ? "" : ", ";
    entry.call += name_of(param.role) + param.name;
    if (!param.shape.empty()) entry.call += "[" + param.shape + "]";
    entry.params.push_back(std::move(param));
  }
  entry.call = entry.name + "(" + entry.call + ")";
  return entry;
}

bool is_buffer(Role role) {
  return role == Role::kRead || role == Role::kWrite || role == Role::kUpdate;
}
bool is_written(Role role) { return role == Role::kWrite || role == Role::kUpdate; }

uint64_t element_bytes(Dtype type) { return type == Dtype::kF32 ? 4 : 2; }

__attribute__((format(printf, 3, 4))) Status wrong(const CatalogueEntry& entry, size_t index,
                                                   const char* format, ...) {
  char what[200];
  va_list list;
  va_start(list, format);
  std::vsnprintf(what, sizeof(what), format, list);
  va_end(list);
  return invalid_argument("%s: argument %zu ('%s') %s", entry.name.c_str(), index,
                          entry.params[index].name.c_str(), what);
}

// The integers of a call by name.
class Dims {
 public:
  // The name must outlive this.
  void add(std::string_view name, int64_t value) { all_[count_++] = {name, value}; }
  // Null for an unknown name.
  const int64_t* find(std::string_view name) const {
    for (size_t i = 0; i < count_; ++i)
      if (all_[i].name == name) return &all_[i].value;
    return nullptr;
  }

 private:
  struct One {
    std::string_view name;
    int64_t value;
  };
  One all_[kParametersMax + 2];  // and oh, ow
  size_t count_ = 0;
};

// Computes the output size oh, ow of a window of kh x kw, if the signature has one.
Status add_output_size(const CatalogueEntry& entry, Dims* dims) {
  if (!dims->find("stride")) return {};
  const int64_t stride = *dims->find("stride"), pad = *dims->find("pad");
  const auto size = [&](const char* of, const char* window, const char* name) {
    const int64_t length = *dims->find(of), width = *dims->find(window);
    constexpr int64_t kMax = int64_t{1} << 40;  // no sum below overflows
    if (stride < 1 || width < 1 || length > kMax || width > kMax || pad > kMax || stride > kMax ||
        length + 2 * pad < width)
      return invalid_argument("%s: a window of %s %" PRId64 ", stride %" PRId64
                              " does not fit %s %" PRId64 " with pad %" PRId64,
                              entry.name.c_str(), window, width, stride, of, length, pad);
    dims->add(name, (length + 2 * pad - width) / stride + 1);
    return Status();
  };
  WCUDA_TRY(size("h", "kh", "oh"));
  return size("w", "kw", "ow");
}

// Checks further conditions on the sizes of a kernel.
Status check_sizes(const CatalogueEntry& entry, const Dims& dims) {
  const auto of = [&](const char* name) { return *dims.find(name); };
  const auto wrong_sizes = [&](const char* format, int64_t a, int64_t b) {
    char what[120];
    std::snprintf(what, sizeof(what), format, a, b);
    return invalid_argument("%s: %s", entry.name.c_str(), what);
  };
  switch (entry.op) {
    case CatalogueOp::kRope:
      if (of("d") % 2 == 0) return {};
      return wrong_sizes("d is %" PRId64 ", which is odd", of("d"), 0);
    case CatalogueOp::kAttention:
      if (of("heads") == 0 ? of("d") != 0 : of("d") % of("heads") != 0)
        return wrong_sizes("d is %" PRId64 ", no multiple of %" PRId64 " heads", of("d"),
                           of("heads"));
      if (of("causal") <= 1) return {};
      return wrong_sizes("causal is %" PRId64 ", not 0 or 1", of("causal"), 0);
    case CatalogueOp::kTopK:
      if (of("k") > of("width"))
        return wrong_sizes("k is %" PRId64 ", of %" PRId64 " logits", of("k"), of("width"));
      if (of("width") <= INT32_MAX) return {};
      return wrong_sizes("width is %" PRId64 ", at most %" PRId64, of("width"), INT32_MAX);
    default:
      return {};
  }
}

Result<int64_t> extent_of(const CatalogueEntry& entry, size_t index, const Dims& dims) {
  uint64_t product = 1;
  for (const std::string& factor : entry.params[index].extent) {
    const int64_t* const found = dims.find(factor);
    const int64_t value = found ? *found : std::stoll(factor);
    if (!checked_mul(product, static_cast<uint64_t>(value), &product) || product > (1ull << 56))
      return wrong(entry, index, "has an extent that overflows at '%s'", factor.c_str());
  }
  return static_cast<int64_t>(product);
}

// Checks that written buffers overlap no other, except whole buffers of operations that allow it.
Status check_overlap(const CatalogueEntry& entry, const CatalogueArgument* arguments,
                     const uint64_t* used) {
  for (size_t i = 0; i < entry.params.size(); ++i) {
    if (!is_written(entry.params[i].role) || used[i] == 0) continue;
    for (size_t j = 0; j < entry.params.size(); ++j) {
      if (j == i || !is_buffer(entry.params[j].role) || used[j] == 0) continue;
      const uint8_t *a = arguments[i].data, *b = arguments[j].data;
      if (a >= b + used[j] || b >= a + used[i]) continue;
      const bool is_same = a == b && used[i] == used[j] && !is_written(entry.params[j].role);
      if (is_same && entry.may_alias) continue;
      return wrong(entry, i, "overlaps argument %zu ('%s')", j, entry.params[j].name.c_str());
    }
  }
  return {};
}

}  // namespace

std::vector<wcuda_parameter> parameters_of(const CatalogueEntry& entry, int32_t type) {
  const auto as_string = [](const std::string& text) {
    return wcuda_string{text.data(), text.size()};
  };
  std::vector<wcuda_parameter> parameters;
  for (const CatalogueParam& from : entry.params) {
    wcuda_parameter to = WCUDA_PARAMETER_INIT;
    to.name = as_string(from.name);
    if (is_buffer(from.role)) {
      to.kind = WCUDA_ARG_BUFFER;
      to.dtype = from.is_i32 ? WCUDA_ARG_I32 : from.is_f32 ? WCUDA_ARG_F32 : type;
      to.access = from.role == Role::kRead    ? WCUDA_ACCESS_READ
                  : from.role == Role::kWrite ? WCUDA_ACCESS_WRITE
                                              : 0;
      to.shape = as_string(from.shape);
    } else {
      to.kind = from.role == Role::kInteger ? WCUDA_ARG_I64 : WCUDA_ARG_F32;
    }
    parameters.push_back(to);
  }
  return parameters;
}

const std::vector<CatalogueEntry>& catalogue() {
  static const auto* const entries = [] {
    auto* const list = new std::vector<CatalogueEntry>;
    for (const Row& row : kTable) list->push_back(read_row(row));
    return list;
  }();
  return *entries;
}

const CatalogueEntry* find_entry(std::string_view name) {
  const auto& all = catalogue();
  const auto found = std::lower_bound(
      all.begin(), all.end(), name,
      [](const CatalogueEntry& entry, std::string_view wanted) { return entry.name < wanted; });
  return found != all.end() && found->name == name ? &*found : nullptr;
}

Status wrong_count(const CatalogueEntry& entry, uint64_t given) {
  return Status::error(WCUDA_ARGUMENT_COUNT, "%s: %" PRIu64 " arguments given, it takes %zu: %s",
                       entry.name.c_str(), given, entry.params.size(), entry.call.c_str());
}

Result<PreparedCall> prepare_call(const CatalogueEntry& entry, Dtype type,
                                  const CatalogueArgument* arguments, size_t count) {
  if (count != entry.params.size()) return wrong_count(entry, count);
  if (entry.is_f32_only && type != Dtype::kF32)
    return unsupported("%s: is for f32 only", entry.name.c_str());
  PreparedCall call;
  call.args.type = type;
  Dims dims;
  size_t dim_count = 0, factor_count = 0;
  for (const int64_t dim : entry.leading_dims) call.args.dim[dim_count++] = dim;
  for (size_t i = 0; i < count; ++i) {
    const CatalogueArgument& argument = arguments[i];
    const Role role = entry.params[i].role;
    if (role == Role::kInteger) {
      if (argument.kind < WCUDA_ARG_I8 || argument.kind > WCUDA_ARG_U64)
        return wrong(entry, i, "is no integer");
      if (argument.integer < 0)
        return wrong(entry, i, "is %" PRId64 ", at least 0", argument.integer);
      dims.add(entry.params[i].name, argument.integer);
      call.args.dim[dim_count++] = argument.integer;
    } else if (role == Role::kFactor) {
      if (argument.kind != WCUDA_ARG_F32 && argument.kind != WCUDA_ARG_F64)
        return wrong(entry, i, "is no f32 or f64");
      call.args.factor[factor_count++] = static_cast<float>(argument.factor);
    } else if (argument.kind != WCUDA_ARG_BUFFER) {
      return wrong(entry, i, "is no buffer");
    }
  }
  WCUDA_TRY(add_output_size(entry, &dims));
  WCUDA_TRY(check_sizes(entry, dims));

  size_t in_count = 0, out_count = 0;
  uint64_t used[kParametersMax] = {};
  for (size_t i = 0; i < count; ++i) {
    if (!is_buffer(entry.params[i].role)) continue;
    WCUDA_ASSIGN(const int64_t elements, extent_of(entry, i, dims));
    const bool is_word = entry.params[i].is_i32 || entry.params[i].is_f32;
    const uint64_t width = is_word ? sizeof(int32_t) : element_bytes(type);
    used[i] = static_cast<uint64_t>(elements) * width;
    if (arguments[i].bytes < used[i])
      return wrong(entry, i, "has %" PRIu64 " bytes, it needs %" PRIu64, arguments[i].bytes,
                   used[i]);
    if (reinterpret_cast<uintptr_t>(arguments[i].data) % width != 0)
      return wrong(entry, i, "begins inside an element");
    call.bytes += used[i];
    if (is_written(entry.params[i].role)) {
      if (out_count == 0) call.count = elements;
      call.args.out[out_count++] = arguments[i].data;
    } else {
      call.args.in[in_count++] = arguments[i].data;
    }
  }
  WCUDA_TRY(check_overlap(entry, arguments, used));
  return call;
}

namespace {

Status unknown_id(const CatalogueEntry& entry, int64_t place, int32_t id, int64_t vocab) {
  return Status::error(WCUDA_OUT_OF_RANGE,
                       "%s: ids[%" PRId64 "] is %d, the table has %" PRId64 " rows",
                       entry.name.c_str(), place, id, vocab);
}

// Checks ids before anything is written; on a device this waits for them.
Status check_ids(const CatalogueEntry& entry, const kernels::CatalogueArgs& args,
                 vram::Memory& memory, Stream stream) {
  const auto* const ids = static_cast<const int32_t*>(args.in[0]);
  const int64_t count = args.dim[0] * args.dim[1], vocab = args.dim[2];
  if (count == 0) return {};
  Backend& backend = memory.backend();
  if (backend.is_host()) {
    for (int64_t i = 0; i < count; ++i)
      if (ids[i] < 0 || ids[i] >= vocab) return unknown_id(entry, i, ids[i], vocab);
    return {};
  }
  int64_t place = count;
  WCUDA_ASSIGN(vram::Buffer found,
               memory.allocate(sizeof(place), WCUDA_PURPOSE_SCRATCH, entry.name));
  found.used_on(stream);
  auto* const on_device = reinterpret_cast<int64_t*>(found.data());
  WCUDA_TRY(find_unknown_id(ids, count, vocab, on_device, backend, stream));
  WCUDA_TRY(backend.synchronize(stream));
  WCUDA_TRY(backend.copy_to_host(&place, on_device, sizeof(place)));
  if (place == count) return {};
  int32_t id = 0;
  WCUDA_TRY(backend.copy_to_host(&id, ids + place, sizeof(id)));
  return unknown_id(entry, place, id, vocab);
}

}  // namespace

Status run_call(const CatalogueEntry& entry, const PreparedCall& call, vram::Memory& memory,
                Stream stream) {
  Backend& backend = memory.backend();
  if (backend.is_registered())
    return Status::error(WCUDA_UNSUPPORTED_KERNEL, "%s: runs on CUDA and HOST", entry.name.c_str());
  if (entry.op == CatalogueOp::kEmbedding) WCUDA_TRY(check_ids(entry, call.args, memory, stream));
  if (is_product(entry.op)) return run_product(entry.op, call.args, call.count, memory, stream);
  if (backend.is_host())
    return backend.host_launch(stream, [&]() -> Status {
      run_on_host(entry.op, call.args, call.count);
      return {};
    });
  kernels::CatalogueArgs args = call.args;
  vram::Buffer scratch;
  switch (entry.op) {
#define WCUDA_OP(name) case CatalogueOp::k##name:
    WCUDA_REDUCE_OPS(WCUDA_OP)
#undef WCUDA_OP
    {
      WCUDA_ASSIGN(scratch,
                   memory.scratch(kernels::kReduceBlocksMax * sizeof(float), entry.name, stream));
      args.scratch = reinterpret_cast<float*>(scratch.data());
      break;
    }
    default:
      break;
  }
  return run_on_device(entry.op, args, call.count, backend, stream);
}

}  // namespace wcuda::compute
