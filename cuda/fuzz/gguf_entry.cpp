// Calls everything a Gguf offers and compares the answers with each other.
#include "fuzz/gguf_entry.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <vector>

#include "core/base/text.h"
#include "llm/gguf/limits.h"
#include "llm/quant/format.h"

namespace wcuda::fuzz {
namespace {

using gguf::Gguf;
using gguf::Tensor;
using gguf::Value;
using gguf::ValueType;

#define WCUDA_EXPECT(condition) \
  if (!(condition)) return #condition

template <class T>
bool is_sound(const Result<T>& result, Code other = WCUDA_UNSUPPORTED) {
  return result.ok() || (result.status().code() == other && *result.status().message());
}

std::string check_value(const Gguf& file, uint64_t index) {
  const Value value = file.value(index);
  Value found;
  uint64_t found_index = UINT64_MAX;
  WCUDA_EXPECT(!value.key.empty() && is_utf8(value.key));
  WCUDA_EXPECT(file.find(value.key, &found, &found_index) && found_index == index);
  WCUDA_EXPECT(is_sound(file.get_u32(value.key)) && is_sound(file.get_f32(value.key)));
  WCUDA_EXPECT(is_sound(file.get_string(value.key)) && is_sound(file.get_u32s(value.key)));
  WCUDA_EXPECT(is_sound(file.get_u32(value.key, 7)) && is_sound(file.get_f32(value.key, 7.0f)));
  if (value.type == ValueType::kString) WCUDA_EXPECT(is_utf8(value.string));
  if (value.type == ValueType::kBool) WCUDA_EXPECT(value.u64 <= 1);
  if (value.type != ValueType::kArray) {
    WCUDA_EXPECT(value.element_type == ValueType::kNone && value.count == 1);
    return "";
  }
  WCUDA_EXPECT(value.element_type != ValueType::kArray);
  WCUDA_EXPECT(value.count <= gguf::kMaxArrayElements);
  uint64_t sum = 0;  // touches every byte
  for (uint64_t i = 0; i < value.data_bytes; ++i) sum += value.data[i];
  if (value.element_type == ValueType::kBool) WCUDA_EXPECT(sum <= value.count);
  if (value.element_type == ValueType::kString) {
    for (uint64_t i = 0; i < value.count; ++i) WCUDA_EXPECT(is_utf8(value.string_at(i)));
  }
  return "";
}

std::string check_tensor(const Gguf& file, uint64_t index) {
  const Tensor& tensor = file.tensors()[index];
  uint64_t found = UINT64_MAX;
  WCUDA_EXPECT(is_utf8(tensor.name) && !tensor.name.empty());
  WCUDA_EXPECT(tensor.name.size() <= gguf::kMaxTensorNameBytes);
  WCUDA_EXPECT(file.find_tensor(tensor.name, &found) == &tensor && found == index);
  WCUDA_EXPECT(tensor.format != nullptr && tensor.format->id == tensor.type);
  WCUDA_EXPECT(tensor.dimension_count >= 1 && tensor.dimension_count <= 4);
  unsigned __int128 elements = 1;
  for (const uint64_t dimension : tensor.dimensions) elements *= dimension;
  WCUDA_EXPECT(elements == tensor.element_count && tensor.element_count > 0);
  WCUDA_EXPECT(tensor.dimensions[0] % tensor.format->block_elements == 0);
  WCUDA_EXPECT(tensor.element_count / tensor.format->block_elements * tensor.format->block_bytes ==
               tensor.bytes);
  WCUDA_EXPECT(tensor.file_offset + tensor.bytes <= file.file_bytes());
  std::vector<uint8_t> data(std::min<uint64_t>(tensor.bytes, 16 * tensor.format->block_bytes));
  WCUDA_EXPECT(file.read_tensor(index, 0, data.data(), data.size()).ok());
  WCUDA_EXPECT(file.read_tensor(index, tensor.bytes - data.size(), data.data(), data.size()).ok());
  WCUDA_EXPECT(file.read_tensor(index, tensor.bytes, data.data(), 0).ok());
  WCUDA_EXPECT(file.read_tensor(index, tensor.bytes, data.data(), 1).code() == WCUDA_OUT_OF_RANGE);
  WCUDA_EXPECT(file.read_tensor(index, 1, data.data(), UINT64_MAX).code() == WCUDA_OUT_OF_RANGE);
  if (!tensor.format->is_loadable) return "";
  const uint64_t blocks = data.size() / tensor.format->block_bytes;
  std::vector<float> values(blocks * tensor.format->block_elements);
  WCUDA_EXPECT(quant::unpack_row(*tensor.format, data.data(), values.size(), values.data()).ok());
  return "";
}

// A file whose reads fail from the one numbered `reads_left` on.
struct FailingFile {
  const uint8_t* data;
  uint32_t reads_left;
};

int32_t read_failing(void* user, uint64_t offset, void* target, uint64_t bytes) {
  FailingFile* file = static_cast<FailingFile*>(user);
  if (file->reads_left == 0) return 5;
  --file->reads_left;
  std::memcpy(target, file->data + offset, bytes);
  return 0;
}

std::string check_failing(const uint8_t* data, size_t bytes, const Status& from_memory) {
  FailingFile input{data, bytes > 0 ? data[bytes - 1] % 4u : 0u};
  std::shared_ptr<gguf::Source> source = gguf::open_callback(read_failing, &input, bytes).take();
  const Result<std::shared_ptr<Gguf>> file = Gguf::open(source);
  if (!file.ok()) {
    WCUDA_EXPECT(file.status().code() == WCUDA_IO || file.status().code() == from_memory.code());
    return "";
  }
  WCUDA_EXPECT(from_memory.ok());
  if ((*file)->tensors().empty()) return "";
  uint8_t byte = 0;
  input.reads_left = 0;
  const Status status = (*file)->read_tensor(0, 0, &byte, 1);
  WCUDA_EXPECT(status.code() == WCUDA_IO && status.native_code() == 5);
  return "";
}

}  // namespace

std::string check_gguf(const Gguf& file) {
  WCUDA_EXPECT(file.version() == 2 || file.version() == 3);
  WCUDA_EXPECT(file.alignment() > 0 && file.alignment() <= gguf::kMaxAlignment);
  WCUDA_EXPECT(file.tensor_bytes() <= file.file_bytes());
  for (uint64_t i = 0; i < file.value_count(); ++i) {
    const std::string wrong = check_value(file, i);
    if (!wrong.empty()) return "value " + std::to_string(i) + ": " + wrong;
  }
  for (uint64_t i = 0; i < file.tensors().size(); ++i) {
    const std::string wrong = check_tensor(file, i);
    if (!wrong.empty()) return "tensor " + std::to_string(i) + ": " + wrong;
  }
  Value value;
  WCUDA_EXPECT(!file.find("", &value) && file.find_tensor("") == nullptr);
  WCUDA_EXPECT(is_sound(file.get_u32(""), WCUDA_NOT_FOUND));
  WCUDA_EXPECT(is_sound(file.get_u32s(""), WCUDA_NOT_FOUND));
  uint8_t byte = 0;
  WCUDA_EXPECT(file.read_tensor(file.tensors().size(), 0, &byte, 1).code() == WCUDA_OUT_OF_RANGE);
  return "";
}

std::string exercise_gguf(const uint8_t* data, size_t bytes, bool* is_open) {
  std::shared_ptr<gguf::Source> source = gguf::open_memory(data, bytes).take();
  const Result<std::shared_ptr<Gguf>> file = Gguf::open(source);
  if (is_open != nullptr) *is_open = file.ok();
  std::string wrong = check_failing(data, bytes, file.status());
  if (!wrong.empty()) return wrong;
  if (file.ok()) return check_gguf(**file);
  const Code code = file.status().code();
  WCUDA_EXPECT(code == WCUDA_MALFORMED || code == WCUDA_UNSUPPORTED);
  const std::string message = file.status().message();
  WCUDA_EXPECT(!message.empty() && message.find('\n') == std::string::npos);
  return "";
}

}  // namespace wcuda::fuzz
