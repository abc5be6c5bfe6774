// Section 8 of the header: GGUF files.
#include "llm/gguf/gguf.h"

#include <algorithm>
#include <cinttypes>
#include <cstring>
#include <memory>
#include <vector>

#include "api/base/elements.h"
#include "api/llm/handles.h"
#include "core/base/text.h"
#include "llm/quant/format.h"
#include "worker_cuda/llm.h"

using namespace wcuda;
using namespace wcuda::api;

namespace {

using gguf::Gguf;
using gguf::Tensor;
using gguf::Value;
using gguf::ValueType;

wcuda_string borrowed(std::string_view text) { return {text.data(), text.size()}; }

Result<std::shared_ptr<Gguf>> open_source(const wcuda_source& source) {
  Result<std::shared_ptr<gguf::Source>> bytes = std::shared_ptr<gguf::Source>();
  switch (source.kind) {
    case WCUDA_SOURCE_PATH: {
      WCUDA_ASSIGN(const std::string_view path, read_string(source.path, "source->path"));
      return Gguf::open_path(path);
    }
    case WCUDA_SOURCE_FD:
      bytes = gguf::open_descriptor(source.fd);
      break;
    case WCUDA_SOURCE_MEMORY:
      bytes = gguf::open_memory(source.data, source.size);
      break;
    case WCUDA_SOURCE_CALLBACK:
      bytes = gguf::open_callback(source.read, source.user, source.size);
      break;
    default:
      return invalid_argument("source->kind is %" PRId32 ", known are 1 to 4", source.kind);
  }
  if (!bytes.ok()) return bytes.status();
  return Gguf::open(bytes.take());
}

Status check_index(uint64_t index, uint64_t count, const char* what) {
  if (index < count) return {};
  return Status::error(WCUDA_OUT_OF_RANGE, "%s %" PRIu64 " of %" PRIu64, what, index, count);
}

Status check_range(uint64_t first, uint64_t count, uint64_t available, const char* what) {
  if (first <= available && count <= available - first) return {};
  return Status::error(WCUDA_OUT_OF_RANGE,
                       "%" PRIu64 " elements from %" PRIu64 " of %s, it has %" PRIu64, count, first,
                       what, available);
}

wcuda_gguf_value value_of(const Value& value) {
  wcuda_gguf_value out = WCUDA_GGUF_VALUE_INIT;
  out.type = static_cast<int32_t>(value.type);
  out.element_type = static_cast<int32_t>(value.element_type);
  out.key = borrowed(value.key);
  out.element_count = value.count;
  out.value_u64 = value.u64;
  out.value_i64 = value.i64;
  out.value_f64 = value.f64;
  out.value_string = borrowed(value.string);
  return out;
}

wcuda_gguf_tensor tensor_of(const Tensor& tensor) {
  wcuda_gguf_tensor out = WCUDA_GGUF_TENSOR_INIT;
  out.type = tensor.type;
  out.name = borrowed(tensor.name);
  out.dimension_count = tensor.dimension_count;
  out.split_index = tensor.split_index;
  std::copy(std::begin(tensor.dimensions), std::end(tensor.dimensions), out.dimensions);
  out.element_count = tensor.element_count;
  out.bytes = tensor.bytes;
  out.file_offset = tensor.file_offset;
  return out;
}

// Finds the array at a metadata index, and checks that elements [first, first + count) exist.
Result<Value> find_array(const Gguf& file, uint64_t index, uint64_t first, uint64_t count,
                         bool of_strings) {
  WCUDA_TRY(check_index(index, file.value_count(), "metadata entry"));
  const Value value = file.value(index);
  const std::string key = printable(value.key);
  if (value.type != ValueType::kArray || (value.element_type == ValueType::kString) != of_strings) {
    return invalid_argument("key '%s' is not an array of %s (type %s, of %s)", key.c_str(),
                            of_strings ? "strings" : "numbers", gguf::value_type_name(value.type),
                            gguf::value_type_name(value.element_type));
  }
  WCUDA_TRY(check_range(first, count, value.count, key.c_str()));
  return value;
}

// Reads and converts piece by piece, so that a small buffer suffices.
Status dequantize(const Gguf& file, uint64_t index, uint64_t first, uint64_t count, float* target) {
  WCUDA_TRY(check_index(index, file.tensors().size(), "tensor"));
  const Tensor& tensor = file.tensors()[index];
  const quant::Format& format = *tensor.format;
  const std::string name = printable(tensor.name);
  WCUDA_TRY(check_range(first, count, tensor.element_count, name.c_str()));
  if (first % format.block_elements != 0 || count % format.block_elements != 0) {
    return invalid_argument("first %" PRIu64 " and count %" PRIu64
                            " must be multiples of %s's block of %" PRIu32,
                            first, count, format.name, format.block_elements);
  }
  if (!format.is_loadable)
    return unsupported("tensor '%s': type %s cannot be expanded", name.c_str(), format.name);
  if (count == 0) return {};
  WCUDA_TRY(check_not_null(target, "target"));
  const uint64_t piece_blocks = std::max<uint64_t>(1, (64 << 10) / format.block_bytes);
  std::vector<uint8_t> piece(std::min(piece_blocks, count / format.block_elements) *
                             format.block_bytes);
  uint64_t offset = first / format.block_elements * format.block_bytes;
  for (uint64_t done = 0; done < count;) {
    const uint64_t elements = std::min(count - done, piece_blocks * format.block_elements);
    const uint64_t bytes = elements / format.block_elements * format.block_bytes;
    WCUDA_TRY(file.read_tensor(index, offset, piece.data(), bytes));
    WCUDA_TRY(quant::unpack_row(format, piece.data(), elements, target + done));
    offset += bytes;
    done += elements;
  }
  return {};
}

}  // namespace

wcuda_status wcuda_gguf_open(const wcuda_source* source, wcuda_gguf* gguf, wcuda_error* error) {
  return guarded(error, [&]() -> Status {
    WCUDA_ASSIGN(const wcuda_source options, read_struct(source, "source"));
    WCUDA_TRY(check_not_null(gguf, "gguf"));
    WCUDA_ASSIGN(auto file, open_source(options));
    return insert(std::move(file), gguf);
  });
}

void wcuda_gguf_close(wcuda_gguf gguf) {
  guarded_destroy("wcuda_gguf_close", gguf.id, [](uint64_t id) -> Status {
    remove(Kind::kGguf, id);
    return {};
  });
}

wcuda_status wcuda_gguf_info_get(wcuda_gguf gguf, wcuda_gguf_info* info, wcuda_error* error) {
  return guarded(error, [&]() -> Status {
    WCUDA_TRY(check_struct(info, "info"));
    WCUDA_ASSIGN(const auto file, resolve(gguf, "gguf"));
    wcuda_gguf_info out = WCUDA_GGUF_INFO_INIT;
    out.version = file->version();
    out.metadata_count = file->value_count();
    out.tensor_count = file->tensors().size();
    out.file_bytes = file->file_bytes();
    out.tensor_bytes = file->tensor_bytes();
    out.alignment = file->alignment();
    out.split_count = file->split_count();
    return write_struct(out, info, "info");
  });
}

wcuda_status wcuda_gguf_value_list(wcuda_gguf gguf, uint64_t first, wcuda_gguf_value* values,
                                   uint64_t capacity, uint64_t* count, wcuda_error* error) {
  return guarded(error, [&]() -> Status {
    WCUDA_ASSIGN(const auto file, resolve(gguf, "gguf"));
    return write_list<wcuda_gguf_value>({values, capacity, "values"}, first, file->value_count(),
                                        count,
                                        [&](uint64_t i) { return value_of(file->value(i)); });
  });
}

wcuda_status wcuda_gguf_value_find(wcuda_gguf gguf, wcuda_string key, wcuda_gguf_value* value,
                                   wcuda_error* error) {
  return guarded(error, [&]() -> Status {
    WCUDA_TRY(check_struct(value, "value"));
    WCUDA_ASSIGN(const std::string_view text, read_string(key, "key"));
    WCUDA_ASSIGN(const auto file, resolve(gguf, "gguf"));
    Value found;
    if (!file->find(text, &found))
      return Status::error(WCUDA_NOT_FOUND, "the file has no key '%s'", printable(text).c_str());
    return write_struct(value_of(found), value, "value");
  });
}

wcuda_status wcuda_gguf_array_copy(wcuda_gguf gguf, uint64_t index, uint64_t first, uint64_t count,
                                   void* target, uint64_t target_bytes, wcuda_error* error) {
  return guarded(error, [&]() -> Status {
    WCUDA_ASSIGN(const auto file, resolve(gguf, "gguf"));
    WCUDA_ASSIGN(const Value array, find_array(*file, index, first, count, false));
    if (count == 0) return {};
    WCUDA_TRY(check_not_null(target, "target"));
    const uint64_t element_bytes = array.data_bytes / array.count;
    if (target_bytes < count * element_bytes)
      return Status::error(
          WCUDA_BUFFER_TOO_SMALL,
          "%" PRIu64 " elements of key '%s' need %" PRIu64 " bytes, target has %" PRIu64, count,
          printable(array.key).c_str(), count * element_bytes, target_bytes);
    std::memcpy(target, array.data + first * element_bytes, count * element_bytes);
    return {};
  });
}

wcuda_status wcuda_gguf_array_strings(wcuda_gguf gguf, uint64_t index, uint64_t first,
                                      uint64_t count, wcuda_string* strings, wcuda_error* error) {
  return guarded(error, [&]() -> Status {
    WCUDA_ASSIGN(const auto file, resolve(gguf, "gguf"));
    WCUDA_ASSIGN(const Value array, find_array(*file, index, first, count, true));
    if (count == 0) return {};
    WCUDA_TRY(check_not_null(strings, "strings"));
    for (uint64_t i = 0; i < count; ++i) strings[i] = borrowed(array.string_at(first + i));
    return {};
  });
}

wcuda_status wcuda_gguf_tensor_list(wcuda_gguf gguf, uint64_t first, wcuda_gguf_tensor* tensors,
                                    uint64_t capacity, uint64_t* count, wcuda_error* error) {
  return guarded(error, [&]() -> Status {
    WCUDA_ASSIGN(const auto file, resolve(gguf, "gguf"));
    const auto& all = file->tensors();
    return write_list<wcuda_gguf_tensor>({tensors, capacity, "tensors"}, first, all.size(), count,
                                         [&](uint64_t i) { return tensor_of(all[i]); });
  });
}

wcuda_status wcuda_gguf_tensor_find(wcuda_gguf gguf, wcuda_string name, wcuda_gguf_tensor* tensor,
                                    wcuda_error* error) {
  return guarded(error, [&]() -> Status {
    WCUDA_TRY(check_struct(tensor, "tensor"));
    WCUDA_ASSIGN(const std::string_view text, read_string(name, "name"));
    WCUDA_ASSIGN(const auto file, resolve(gguf, "gguf"));
    const Tensor* found = file->find_tensor(text);
    if (found == nullptr)
      return Status::error(WCUDA_NOT_FOUND, "the file has no tensor '%s'", printable(text).c_str());
    return write_struct(tensor_of(*found), tensor, "tensor");
  });
}

wcuda_status wcuda_gguf_tensor_read(wcuda_gguf gguf, uint64_t index, uint64_t offset, void* target,
                                    uint64_t bytes, wcuda_error* error) {
  return guarded(error, [&]() -> Status {
    WCUDA_ASSIGN(const auto file, resolve(gguf, "gguf"));
    if (bytes > 0) WCUDA_TRY(check_not_null(target, "target"));
    return file->read_tensor(index, offset, target, bytes);
  });
}

wcuda_status wcuda_gguf_tensor_dequantize(wcuda_gguf gguf, uint64_t index, uint64_t first,
                                          uint64_t count, float* target, wcuda_error* error) {
  return guarded(error, [&]() -> Status {
    WCUDA_ASSIGN(const auto file, resolve(gguf, "gguf"));
    return dequantize(*file, index, first, count, target);
  });
}

wcuda_status wcuda_tensor_type_info_get(uint32_t type, wcuda_tensor_type_info* info,
                                        wcuda_error* error) {
  return guarded(error, [&]() -> Status {
    WCUDA_TRY(check_struct(info, "info"));
    const quant::Format* format = quant::find_format(type);
    if (format == nullptr)
      return Status::error(WCUDA_NOT_FOUND, "tensor type id %" PRIu32 " is unknown or was removed",
                           type);
    wcuda_tensor_type_info out = WCUDA_TENSOR_TYPE_INFO_INIT;
    out.type = type;
    out.name = format->name;
    out.block_elements = format->block_elements;
    out.block_bytes = format->block_bytes;
    out.is_loadable = format->is_loadable ? 1 : 0;
    return write_struct(out, info, "info");
  });
}
