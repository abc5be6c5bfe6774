// Checks, gathering and scattering of a run's arguments. Rows and messages: docs/FORMATS.md.
#include "zctl/arguments.h"

#include <algorithm>
#include <cinttypes>
#include <cstdarg>
#include <cstdio>

#include "compute/jit/launch.h"
#include "core/base/bytes.h"
#include "core/base/checked.h"
#include "worker_cuda/compute.h"

namespace wcuda::zctl {
namespace {

constexpr uint32_t kTensorAddId = 2;
constexpr size_t kTensorAddArguments = 4;
constexpr uint64_t kDescriptorBytes = 32;
constexpr uint64_t kBlockAlignment = 256;
constexpr uint64_t kBufferBytesMax = uint64_t{1} << 48;  // so that sums over all arguments fit

enum WireKind : uint32_t {
  kI32 = 1,
  kU32 = 2,
  kI64 = 3,
  kU64 = 4,
  kF32 = 5,
  kF64 = 6,
  kBytes = 10,
  kTensor = 11,
  kHopperRec = 12,
};

// WCUDA_ARG_… of the dtypes from 1.
constexpr int32_t kDtypes[] = {WCUDA_ARG_F32, WCUDA_ARG_F16, WCUDA_ARG_BF16, WCUDA_ARG_F64,
                               WCUDA_ARG_I8,  WCUDA_ARG_U8,  WCUDA_ARG_I16,  WCUDA_ARG_U16,
                               WCUDA_ARG_I32, WCUDA_ARG_U32, WCUDA_ARG_I64,  WCUDA_ARG_U64};

uint32_t dtype_of(int32_t kind) {
  const auto* const found = std::find(std::begin(kDtypes), std::end(kDtypes), kind);
  return static_cast<uint32_t>(found - std::begin(kDtypes)) + 1;
}

bool is_integer(int32_t kind) { return kind >= WCUDA_ARG_I8 && kind <= WCUDA_ARG_U64; }
bool is_signed(int32_t kind) {
  return kind == WCUDA_ARG_I8 || kind == WCUDA_ARG_I16 || kind == WCUDA_ARG_I32 ||
         kind == WCUDA_ARG_I64;
}

bool takes_kind(int32_t parameter, uint32_t wire) {
  switch (parameter) {
    case WCUDA_ARG_BUFFER:
      return wire >= kBytes && wire <= kHopperRec;
    case WCUDA_ARG_BYTES:
      return wire == kBytes || wire == kHopperRec;
    case WCUDA_ARG_F32:
      return wire == kU32 || wire == kF32;
    case WCUDA_ARG_F64:
      return wire == kU64 || wire == kF64;
    case WCUDA_ARG_F16:
    case WCUDA_ARG_BF16:
      return wire == kU32;
    default:
      return wire >= kI32 && wire <= kU64;
  }
}

void load_words(const uint8_t* bytes, size_t index, uint32_t words[4]) {
  std::memcpy(words, bytes + index * kWireArgumentBytes, kWireArgumentBytes);
}

bool unused_are_zero(const uint32_t words[4]) {
  switch (words[0]) {
    case kI32:
    case kU32:
    case kF32:
      return words[2] == 0 && words[3] == 0;
    case kHopperRec:
      return true;
    default:
      return words[3] == 0;
  }
}

// The value of a scalar, extended to 64 bits: of a signed kind by its sign.
uint64_t value_of(const uint32_t words[4]) {
  switch (words[0]) {
    case kI32:
      return static_cast<uint64_t>(int64_t{static_cast<int32_t>(words[1])});
    case kU32:
    case kF32:
      return words[1];
    default:
      return words[1] | uint64_t{words[2]} << 32;
  }
}

// Whether an integer of the wire can be represented by a parameter's type.
bool integer_fits(int32_t parameter, const uint32_t words[4]) {
  const uint64_t value = value_of(words);
  const uint32_t bits = jit::scalar_bytes(parameter) * 8;
  const bool is_negative =
      (words[0] == kI32 || words[0] == kI64) && static_cast<int64_t>(value) < 0;
  if (is_negative)
    return is_signed(parameter) &&
           (bits == 64 || static_cast<int64_t>(value) >= -(int64_t{1} << (bits - 1)));
  return value <= UINT64_MAX >> (64 - (is_signed(parameter) ? bits - 1 : bits));
}

uint64_t saturating_product(const uint32_t* dims, uint32_t rank) {
  if (std::find(dims, dims + rank, 0u) != dims + rank) return 0;
  uint64_t product = 1;
  for (uint32_t i = 0; i < rank; ++i)
    if (!checked_mul(product, dims[i], &product)) return UINT64_MAX;
  return product;
}

// Elements that a tensor's shape and strides span.
uint64_t extent_of(const uint32_t* dims, const uint32_t* strides, uint32_t rank) {
  if (std::find(dims, dims + rank, 0u) != dims + rank) return 0;
  uint64_t extent = 1;
  for (uint32_t i = 0; i < rank; ++i)
    if (!checked_add(extent, uint64_t{dims[i] - 1} * strides[i], &extent)) return UINT64_MAX;
  return extent;
}

// Whether no two elements share a place; of a tensor whose extent is small enough to add.
bool are_apart(const uint32_t* dims, const uint32_t* strides, uint32_t rank) {
  uint32_t order[kRankMax];  // dimensions above 1, by stride
  uint32_t count = 0;
  for (uint32_t i = 0; i < rank; ++i) {
    if (dims[i] <= 1) continue;
    uint32_t place = count++;
    for (; place > 0 && strides[order[place - 1]] > strides[i]; --place)
      order[place] = order[place - 1];
    order[place] = i;
  }
  uint64_t extent = 1;
  for (uint32_t i = 0; i < count; ++i) {
    const uint32_t at = order[i];
    if (strides[at] < extent) return false;
    extent += uint64_t{dims[at] - 1} * strides[at];
  }
  return true;
}

void row_major(const uint32_t* dims, uint32_t rank, uint32_t* strides) {
  uint64_t step = 1;
  for (uint32_t i = rank; i-- > 0;) {
    strides[i] = static_cast<uint32_t>(step);
    step *= dims[i];
  }
}

// Copies elements between a tensor with strides and one without gaps, in row-major order.
template <bool kGathers>
void copy_strided(uint8_t* strided, uint8_t* packed, const uint32_t* dims, const uint32_t* strides,
                  uint32_t rank, uint64_t element_bytes) {
  const uint32_t inner = dims[rank - 1];
  const uint64_t step = strides[rank - 1] * element_bytes;
  uint32_t at[kRankMax] = {};
  for (;;) {
    uint64_t offset = 0;
    for (uint32_t i = 0; i + 1 < rank; ++i) offset += uint64_t{at[i]} * strides[i] * element_bytes;
    for (uint32_t i = 0; i < inner; ++i, packed += element_bytes) {
      uint8_t* const one = strided + offset + i * step;
      std::memcpy(kGathers ? packed : one, kGathers ? one : packed, element_bytes);
    }
    uint32_t axis = rank - 1;
    while (axis-- > 0) {
      if (++at[axis] < dims[axis]) break;
      at[axis] = 0;
    }
    if (axis == UINT32_MAX) return;
  }
}

Outcome wrong(size_t index, const char* what) {
  return refuse(kBadArguments, "arg %zu: %s", index, what);
}
Outcome outside(size_t index, const char* what) {
  return refuse(kMalformed, "arg %zu: %s outside the memory", index, what);
}

}  // namespace

Outcome refuse(uint32_t code, const char* format, ...) {
  char text[256];
  va_list list;
  va_start(list, format);
  std::vsnprintf(text, sizeof(text), format, list);
  va_end(list);
  return {code, text};
}

Outcome Marshalled::read(const Kernel& kernel, const Arguments& arguments, const Memory& memory) {
  const jit::Signature& signature = *kernel.signature;
  const size_t count = signature.parameters.size();
  is_sizes_ = false;
  block_ = {};
  device_bytes_ = 0;
  by_value_.clear();
  operands_.clear();
  if (arguments.count != count)
    return refuse(kBadArguments, "%u args, the kernel takes %zu", arguments.count, count);
  if (kernel.info.id == kTensorAddId && count == kTensorAddArguments) {
    is_sizes_ = true;
    for (size_t i = 0; i < count; ++i) {
      uint32_t words[4];
      load_words(arguments.words, i, words);
      is_sizes_ = is_sizes_ && words[0] != kBytes && words[0] != kTensor;
    }
    if (is_sizes_) return read_sizes(arguments);
  }
  operands_.resize(count);
  read_integers(signature, arguments);
  for (size_t i = 0; i < count; ++i) {
    Outcome one = read_one(signature.parameters[i], i, arguments, memory);
    if (!one.ok()) return one;
  }
  Outcome overlaps = check_overlaps(arguments);
  if (overlaps.ok()) lay_out(signature);
  return overlaps;
}

Outcome Marshalled::read_sizes(const Arguments& arguments) {
  uint32_t words[kTensorAddArguments][4];
  for (size_t i = 0; i < kTensorAddArguments; ++i) {
    load_words(arguments.words, i, words[i]);
    if (words[i][0] != kU32) return refuse(kBadArguments, "expected u32 size args");
  }
  const uint32_t n = words[3][1];
  for (size_t i = 0; i < kTensorAddArguments; ++i) {
    if (!unused_are_zero(words[i])) return wrong(i, "a word that is not used is not 0");
    if (words[i][1] < n)
      return refuse(kBadArguments, "arg %zu: %u elements, %u are needed", i, words[i][1], n);
  }
  sum_count_ = n;
  device_bytes_ = 3 * sum_count_ * sizeof(float);
  const uint64_t each = sum_count_ * sizeof(float);
  run_arguments_.assign(kTensorAddArguments, {});
  operands_.resize(1);
  store_le<uint64_t>(operands_[0].value, n);  // of whatever width the parameter has
  for (size_t i = 0; i < 3; ++i) {
    if (i == 2) block_.download_begin = block_.upload_end = align_up(block_.bytes, kBlockAlignment);
    run_arguments_[i] = {place(each), each, nullptr};
  }
  run_arguments_[3] = {0, 0, operands_[0].value};
  return {};
}

void Marshalled::read_integers(const jit::Signature& signature, const Arguments& arguments) {
  integers_.assign(signature.parameters.size(), std::nullopt);
  is_broken_.assign(signature.parameters.size(), 0);
  for (size_t i = 0; i < signature.parameters.size(); ++i) {
    const int32_t kind = signature.parameters[i].kind;
    if (!is_integer(kind)) continue;
    uint32_t words[4];
    load_words(arguments.words, i, words);
    if (!takes_kind(kind, words[0]) || !unused_are_zero(words) || !integer_fits(kind, words)) {
      is_broken_[i] = 1;
      continue;
    }
    const uint64_t value = value_of(words);
    if (is_signed(kind) || value <= uint64_t{INT64_MAX}) integers_[i] = static_cast<int64_t>(value);
  }
}

Outcome Marshalled::read_one(const jit::Parameter& parameter, size_t index,
                             const Arguments& arguments, const Memory& memory) {
  uint32_t words[4];
  load_words(arguments.words, index, words);
  if (!takes_kind(parameter.kind, words[0]))
    return refuse(kBadArguments, "arg %zu: kind %u, the parameter is %s", index, words[0],
                  jit::kind_name(parameter.kind));
  if (!unused_are_zero(words)) return wrong(index, "a word that is not used is not 0");
  if (words[0] == kTensor) return read_tensor(parameter, index, arguments, memory);
  if (words[0] == kBytes || words[0] == kHopperRec)
    return read_bytes(parameter, index, words, arguments, memory);
  return check_scalar(parameter, index, words);
}

Outcome Marshalled::read_tensor(const jit::Parameter& parameter, size_t index,
                                const Arguments& arguments, const Memory& memory) {
  Operand& operand = operands_[index];
  uint32_t words[4];
  load_words(arguments.words, index, words);
  if (words[2] != kDescriptorBytes)
    return refuse(kBadArguments, "arg %zu: descriptor of %u bytes, 32 are needed", index, words[2]);
  const Window descriptor{arguments.base + words[1], kDescriptorBytes};
  if (!descriptor.is_inside(memory)) return outside(index, "the descriptor is");
  operand.descriptor = descriptor;
  std::memcpy(operand.descriptor_bytes, memory.data + descriptor.begin, kDescriptorBytes);
  uint32_t fields[8];
  std::memcpy(fields, operand.descriptor_bytes, kDescriptorBytes);
  const auto [dtype, rank, flags, data_off, data_len, shape_off, stride_off, reserved] = fields;

  if (dtype != dtype_of(parameter.dtype))
    return refuse(kBadArguments, "arg %zu: dtype %u, the parameter's is %u", index, dtype,
                  dtype_of(parameter.dtype));
  if (rank > arguments.rank_max)
    return refuse(kBadArguments, "arg %zu: rank %u, at most %u", index, rank, arguments.rank_max);
  if (flags > 3) return refuse(kBadArguments, "arg %zu: flags %u, at most 3", index, flags);
  if (flags != 0 && (parameter.access & ~flags) != 0)
    return refuse(kBadArguments, "arg %zu: flags %u, the kernel's access is %u", index, flags,
                  parameter.access);
  if (reserved != 0) return wrong(index, "reserved is not 0");

  const Window shape{arguments.base + shape_off, rank * sizeof(uint32_t)};
  if (rank != 0 && !shape.is_inside(memory)) return outside(index, "the shape is");
  const Window strides{arguments.base + stride_off, rank * sizeof(uint32_t)};
  const bool has_strides = rank != 0 && stride_off != 0;
  if (has_strides && !strides.is_inside(memory)) return outside(index, "the strides are");
  const Window data{arguments.base + data_off, data_len};
  if (!data.is_inside(memory)) return outside(index, "the data is");

  operand.is_tensor = true;
  operand.rank = rank;
  operand.access = parameter.access;
  operand.element_bytes = jit::scalar_bytes(parameter.dtype);
  if (rank != 0) {
    operand.shape = shape;
    std::memcpy(operand.dims, memory.data + shape.begin, shape.bytes);
  }
  const uint64_t elements = saturating_product(operand.dims, rank);
  uint32_t plain[kRankMax];
  row_major(operand.dims, rank, plain);
  std::copy_n(plain, rank, operand.strides);
  if (has_strides) {
    operand.stride_window = strides;
    std::memcpy(operand.strides, memory.data + strides.begin, strides.bytes);
    for (uint32_t i = 0; i < rank; ++i) {
      if (static_cast<int32_t>(operand.strides[i]) < 0) return wrong(index, "a stride is negative");
      operand.is_contiguous =
          operand.is_contiguous && (operand.dims[i] <= 1 || operand.strides[i] == plain[i]);
    }
  }
  const uint64_t extent = has_strides ? extent_of(operand.dims, operand.strides, rank) : elements;
  uint64_t extent_bytes = 0;
  if (!checked_mul(extent, operand.element_bytes, &extent_bytes) || extent_bytes > data_len)
    return wrong(index, "data_len is less than the tensor needs");
  // Row-major strides wrap only past 2^32 elements, which strides of 0 alone can have.
  operand.is_contiguous = operand.is_contiguous && extent == elements;
  const bool is_written = (parameter.access & WCUDA_ACCESS_WRITE) != 0;
  if (is_written && elements != 0 && has_strides && !are_apart(operand.dims, operand.strides, rank))
    return wrong(index, "two elements share a place");
  Outcome fits = check_shape(parameter, index, elements);
  if (!fits.ok()) return fits;
  operand.data = {data.begin, extent_bytes};
  operand.bytes = elements * operand.element_bytes;
  return {};
}

Outcome Marshalled::read_bytes(const jit::Parameter& parameter, size_t index,
                               const uint32_t words[4], const Arguments& arguments,
                               const Memory& memory) {
  Operand& operand = operands_[index];
  if (words[0] == kHopperRec && (words[3] == 0 || words[3] != parameter.layout_id))
    return refuse(kBadArguments, "arg %zu: layout_id %u, the parameter's is %u", index, words[3],
                  parameter.layout_id);
  const Window window{arguments.base + words[1], words[2]};
  if (!window.is_inside(memory)) return outside(index, "the bytes are");
  if (parameter.kind == WCUDA_ARG_BYTES) {
    const int64_t size = *parameter.shape[0].value(nullptr);
    if (words[2] != static_cast<uint64_t>(size))
      return refuse(kBadArguments, "arg %zu: %u bytes, the parameter has %" PRId64, index, words[2],
                    size);
    operand.copy_offset = by_value_.size();
    by_value_.insert(by_value_.end(), memory.data + window.begin,
                     memory.data + window.begin + window.bytes);
  } else {
    operand.access = parameter.access;
    operand.element_bytes = jit::scalar_bytes(parameter.dtype);
    if (words[2] % operand.element_bytes != 0)
      return refuse(kBadArguments, "arg %zu: %u bytes, an element has %u", index, words[2],
                    operand.element_bytes);
    Outcome fits = check_shape(parameter, index, words[2] / operand.element_bytes);
    if (!fits.ok()) return fits;
  }
  operand.data = window;
  operand.bytes = words[2];
  return {};
}

Outcome Marshalled::check_shape(const jit::Parameter& parameter, size_t index,
                                uint64_t elements) const {
  for (const jit::Expression& dimension : parameter.shape)
    if (dimension.uses_any(is_broken_)) return {};
  const Operand& operand = operands_[index];
  uint64_t product = 1;
  bool is_negative = false, has_zero = false, is_huge = false, differs = false;
  const bool compares = operand.is_tensor && operand.rank == parameter.shape.size();
  for (size_t i = 0; i < parameter.shape.size(); ++i) {
    const auto value = parameter.shape[i].value(integers_.data());
    if (!value.ok()) return wrong(index, "the parameter's shape has no value");
    is_negative = is_negative || *value < 0;
    has_zero = has_zero || *value == 0;
    is_huge = is_huge ||
              !checked_mul(product, static_cast<uint64_t>(std::max<int64_t>(*value, 1)), &product);
    differs = differs || (compares && int64_t{operand.dims[i]} != *value);
  }
  uint64_t bytes = 0;
  is_huge =
      is_huge || !checked_mul(product, operand.element_bytes, &bytes) || bytes >= kBufferBytesMax;
  if (is_huge && !is_negative && !has_zero)
    return wrong(index, "the parameter's shape has no value");
  if (is_negative || differs || elements != (has_zero ? 0 : product))
    return wrong(index, "the shape is not the parameter's");
  return {};
}

Outcome Marshalled::check_scalar(const jit::Parameter& parameter, size_t index,
                                 const uint32_t words[4]) {
  Operand& operand = operands_[index];
  const uint64_t value = value_of(words);
  const bool is_half = parameter.kind == WCUDA_ARG_F16 || parameter.kind == WCUDA_ARG_BF16;
  if (is_integer(parameter.kind) ? !integer_fits(parameter.kind, words) : is_half && value > 0xffff)
    return refuse(kBadArguments, "arg %zu: the value does not fit %s", index,
                  jit::kind_name(parameter.kind));
  store_le(operand.value, value);  // little-endian: the low bytes come first, for every width
  if (parameter.floor || parameter.ceiling) {
    const double number = parameter.kind == WCUDA_ARG_F32 ? double{load_le<float>(operand.value)}
                                                          : load_le<double>(operand.value);
    if (parameter.floor && !(number >= *parameter.floor))
      return wrong(index, "the value is below the least");
    if (parameter.ceiling && !(number <= *parameter.ceiling))
      return wrong(index, "the value is above the greatest");
  }
  const std::optional<int64_t>& integer = integers_[index];
  if (parameter.least && !parameter.least->uses_any(is_broken_)) {
    const auto least = parameter.least->value(integers_.data());
    if (!least.ok()) return wrong(index, "a bound has no value");
    if (integer && *integer < *least) return wrong(index, "the value is below the least");
  }
  if (parameter.most && !parameter.most->uses_any(is_broken_)) {
    const auto most = parameter.most->value(integers_.data());
    if (!most.ok()) return wrong(index, "a bound has no value");
    if (!integer || *integer > *most) return wrong(index, "the value is above the greatest");
  }
  return {};
}

Outcome Marshalled::check_overlaps(const Arguments& arguments) const {
  for (size_t i = 0; i < operands_.size(); ++i) {
    if ((operands_[i].access & WCUDA_ACCESS_WRITE) == 0) continue;
    const Window& written = operands_[i].data;
    if (arguments.response && written.overlaps(*arguments.response))
      return refuse(kBadArguments, "arg %zu: overlaps the response", i);
    for (size_t j = 0; j < operands_.size(); ++j) {
      const Operand& other = operands_[j];
      if (i != j && written.overlaps(other.data))
        return refuse(kBadArguments, "arg %zu: overlaps arg %zu", i, j);
      const char* const what = written.overlaps(other.descriptor)      ? "descriptor"
                               : written.overlaps(other.shape)         ? "shape"
                               : written.overlaps(other.stride_window) ? "strides"
                                                                       : nullptr;
      if (what) return refuse(kBadArguments, "arg %zu: overlaps the %s of arg %zu", i, what, j);
    }
  }
  return {};
}

uint64_t Marshalled::place(uint64_t bytes) {
  const uint64_t offset = align_up(block_.bytes, kBlockAlignment);
  block_.bytes = offset + bytes;
  return offset;
}

void Marshalled::lay_out(const jit::Signature& signature) {
  run_arguments_.assign(operands_.size(), {});
  for (const uint32_t access :
       {WCUDA_ACCESS_READ, WCUDA_ACCESS_READ | WCUDA_ACCESS_WRITE, WCUDA_ACCESS_WRITE}) {
    if (access == (WCUDA_ACCESS_READ | WCUDA_ACCESS_WRITE))
      block_.download_begin = align_up(block_.bytes, kBlockAlignment);
    if (access == WCUDA_ACCESS_WRITE) block_.upload_end = align_up(block_.bytes, kBlockAlignment);
    for (size_t i = 0; i < operands_.size(); ++i) {
      if (operands_[i].access != access) continue;
      run_arguments_[i].offset = place(operands_[i].bytes);
      device_bytes_ += operands_[i].bytes;
    }
  }
  block_.bytes = std::max(block_.bytes, block_.upload_end);
  for (size_t i = 0; i < operands_.size(); ++i) {
    Operand& operand = operands_[i];
    run_arguments_[i].bytes = operand.bytes;
    if (signature.parameters[i].kind == WCUDA_ARG_BYTES)
      run_arguments_[i].value = by_value_.data() + operand.copy_offset;
    else if (operand.access == 0)
      run_arguments_[i].value = operand.value;
  }
}

RunBlock Marshalled::block_for(const Memory& memory) const {
  RunBlock block = block_;
  const auto is_written = [](const Operand& operand) {
    return (operand.access & WCUDA_ACCESS_WRITE) != 0;
  };
  const auto only = std::find_if(operands_.begin(), operands_.end(), is_written);
  if (is_sizes_ || only == operands_.end() || !only->is_contiguous ||
      std::find_if(only + 1, operands_.end(), is_written) != operands_.end())
    return block;
  block.target = memory.data + only->data.begin;
  block.target_bytes = only->bytes;
  return block;
}

void Marshalled::gather(const Memory& memory, uint8_t* block, bool keeps_copies, Kernels* kernels) {
  if (is_sizes_) {
    auto* const a = block + run_arguments_[0].offset;
    auto* const b = block + run_arguments_[1].offset;
    for (uint64_t i = 0; i < sum_count_; ++i) {
      store_le(a + 4 * i, static_cast<float>(i + 1));
      store_le(b + 4 * i, static_cast<float>(2 * (i + 1)));
    }
    return;
  }
  if (keeps_copies) copy_strided_inputs(memory);
  // In the order of the block.
  for (const uint32_t access : {WCUDA_ACCESS_READ, WCUDA_ACCESS_READ | WCUDA_ACCESS_WRITE})
    for (size_t i = 0; i < operands_.size(); ++i) {
      Operand& operand = operands_[i];
      if (operand.access != access || operand.bytes == 0) continue;
      uint8_t* source = memory.data + operand.data.begin;
      operand.copy = block + run_arguments_[i].offset;
      // Read once: what is reported is what was gathered.
      if (keeps_copies && !operand.is_contiguous) operand.copy = source = copy_of(operand.data);
      gather_one(i, source, block, kernels);
    }
}

// Windows that overlap are copied as one: a guest could name its whole memory once an argument.
void Marshalled::copy_strided_inputs(const Memory& memory) {
  copied_.clear();
  for (const Operand& operand : operands_)
    if (!operand.is_contiguous && (operand.access & WCUDA_ACCESS_READ) != 0)
      copied_.push_back(operand.data);
  std::sort(copied_.begin(), copied_.end(),
            [](const Window& a, const Window& b) { return a.begin < b.begin; });
  size_t count = 0;
  for (const Window& each : copied_) {
    Window* const last = count == 0 ? nullptr : &copied_[count - 1];
    if (last && each.begin <= last->begin + last->bytes)
      last->bytes = std::max(last->bytes, each.begin + each.bytes - last->begin);
    else
      copied_[count++] = each;
  }
  copied_.resize(count);
  copies_.clear();
  for (const Window& each : copied_) {
    const uint8_t* const source = memory.data + each.begin;
    copies_.insert(copies_.end(), source, source + each.bytes);
  }
}

uint8_t* Marshalled::copy_of(const Window& window) {
  uint64_t at = 0;
  for (const Window& each : copied_) {
    if (window.begin - each.begin < each.bytes)
      return copies_.data() + at + window.begin - each.begin;
    at += each.bytes;
  }
  return nullptr;
}

void Marshalled::gather_one(size_t index, uint8_t* source, uint8_t* block, Kernels* kernels) const {
  const Operand& operand = operands_[index];
  const uint64_t begin = run_arguments_[index].offset;
  if (operand.is_contiguous)
    kernels->copy_in(block, begin, source, operand.bytes);
  else
    copy_strided<true>(source, block + begin, operand.dims, operand.strides, operand.rank,
                       operand.element_bytes);
  kernels->staged(begin + operand.bytes);
}

Outcome Marshalled::check_sums(const uint8_t* block) const {
  if (!is_sizes_) return {};
  const uint8_t* const c = block + run_arguments_[2].offset;
  for (uint64_t i = 0; i < sum_count_; ++i)
    if (load_le<float>(c + 4 * i) != static_cast<float>(i + 1) + static_cast<float>(2 * (i + 1)))
      return refuse(kBackend, "wrong sum");
  return {};
}

void Marshalled::scatter(const uint8_t* block, const Memory& memory, Kernels* kernels) const {
  if (is_sizes_) return;
  for (size_t i = 0; i < operands_.size(); ++i) {
    const Operand& operand = operands_[i];
    if ((operand.access & WCUDA_ACCESS_WRITE) == 0 || operand.bytes == 0) continue;
    uint8_t* const target = memory.data + operand.data.begin;
    const uint8_t* const source = block + run_arguments_[i].offset;
    if (operand.is_contiguous)
      kernels->copy_out(target, source, operand.bytes);
    else
      copy_strided<false>(target, const_cast<uint8_t*>(source), operand.dims, operand.strides,
                          operand.rank, operand.element_bytes);
  }
}

std::vector<Touched> Marshalled::read_windows() const {
  std::vector<Touched> all;
  const auto add = [&](const Window& window, const void* data) {
    if (window.bytes != 0 && data) all.push_back({window, static_cast<const uint8_t*>(data)});
  };
  for (const Operand& operand : operands_) {
    add(operand.descriptor, operand.descriptor_bytes);
    add(operand.shape, operand.dims);
    add(operand.stride_window, operand.strides);
    add(operand.data, operand.access == 0 ? by_value_.data() + operand.copy_offset : operand.copy);
  }
  const auto key = [](const Touched& each) {
    return std::make_pair(each.window.begin, each.window.bytes);
  };
  std::sort(all.begin(), all.end(),
            [&](const Touched& a, const Touched& b) { return key(a) < key(b); });
  all.erase(std::unique(all.begin(), all.end(),
                        [&](const Touched& a, const Touched& b) { return key(a) == key(b); }),
            all.end());
  return all;
}

std::vector<Touched> Marshalled::written_windows(const Memory& memory) const {
  std::vector<Touched> all;
  for (const Operand& operand : operands_)
    if ((operand.access & WCUDA_ACCESS_WRITE) != 0 && operand.data.bytes != 0)
      all.push_back({operand.data, memory.data + operand.data.begin});
  std::sort(all.begin(), all.end(),
            [](const Touched& a, const Touched& b) { return a.window.begin < b.window.begin; });
  return all;
}

}  // namespace wcuda::zctl
