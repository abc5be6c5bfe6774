// Gguf: the checked contents of a GGUF file, whole or split: metadata, tensor table, tensor data.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "core/base/status.h"
#include "llm/gguf/source.h"
#include "llm/quant/format.h"

namespace wcuda::gguf {

// Numbered as in the file; equal to WCUDA_GGUF_U8 and so on.
enum class ValueType : int32_t {
  kNone = -1,
  kU8 = 0,
  kI8 = 1,
  kU16 = 2,
  kI16 = 3,
  kU32 = 4,
  kI32 = 5,
  kF32 = 6,
  kBool = 7,
  kString = 8,
  kArray = 9,
  kU64 = 10,
  kI64 = 11,
  kF64 = 12,
};
// "u32", "string"; static text.
const char* value_type_name(ValueType type);
// Bytes of a fixed-width value; 0 for strings and arrays.
uint64_t value_bytes(ValueType type);

// One metadata entry. Views and pointers are borrowed from the Gguf.
struct Value {
  std::string_view key;
  ValueType type = ValueType::kNone;
  ValueType element_type = ValueType::kNone;  // of an array's elements; never kArray
  uint64_t count = 1;                         // elements of an array
  uint64_t u64 = 0;                           // u8 u16 u32 u64 bool
  int64_t i64 = 0;                            // i8 i16 i32 i64
  double f64 = 0.0;                           // f32 f64
  std::string_view string;
  const uint8_t* data = nullptr;  // array: packed elements, any alignment; of strings: each a u64
                                  // length and its bytes
  uint64_t data_bytes = 0;
  const uint32_t* string_offsets = nullptr;  // (count) array of strings: where each starts in data

  // Element `index` < count of an array of strings.
  std::string_view string_at(uint64_t index) const;
};

struct Tensor {
  std::string_view name;
  const quant::Format* format = nullptr;  // never null; see is_loadable there
  uint32_t type = 0;                      // ggml type id
  uint32_t dimension_count = 0;           // 1 … 4
  uint64_t dimensions[4] = {1, 1, 1, 1};  // first is contiguous, a multiple of the format's block
  uint64_t element_count = 0;             // below 2^63
  uint64_t bytes = 0;
  uint32_t split_index = 0;
  uint64_t file_offset = 0;  // from the start of its part
};

struct Part;  // one file of a split; gguf/part.h

// Immutable once opened; every function may be called on any thread. Everything it returns has been
// checked by the rules of docs/FORMATS.md: types, ranges and texts need no further check.
class Gguf {
 public:
  // Reads header, metadata and tensor table. `path` must name the first part of a split file; the
  // others are opened in the same folder.
  static Result<std::shared_ptr<Gguf>> open_path(std::string_view path);
  // A whole file from any other source; a part of a split file is WCUDA_UNSUPPORTED.
  static Result<std::shared_ptr<Gguf>> open(std::shared_ptr<Source> source);
  ~Gguf();

  uint32_t version() const;
  uint32_t alignment() const;  // of the first part
  uint32_t split_count() const { return static_cast<uint32_t>(parts_.size()); }
  uint64_t file_bytes() const { return file_bytes_; }      // of all parts
  uint64_t tensor_bytes() const { return tensor_bytes_; }  // sum over tensors, without padding

  // Metadata, in file order (of a split file: the first part's).
  uint64_t value_count() const;
  Value value(uint64_t index) const;  // index < value_count()
  // False if there is no such key; `index` may be null.
  bool find(std::string_view key, Value* value, uint64_t* index = nullptr) const;
  bool has(std::string_view key) const;

  // Typed access. An absent key is the fallback or, without one, WCUDA_NOT_FOUND; another type, or
  // a number that does not fit, is WCUDA_UNSUPPORTED with key and type. Integers are read from any
  // integer type, floats from f32 and f64.
  Result<uint32_t> get_u32(std::string_view key, std::optional<uint32_t> fallback = {}) const;
  Result<float> get_f32(std::string_view key, std::optional<float> fallback = {}) const;
  Result<std::string_view> get_string(std::string_view key,
                                      std::optional<std::string_view> fallback = {}) const;
  // Arrays, converted element by element under the same rules.
  Result<std::vector<uint32_t>> get_u32s(std::string_view key) const;

  // Tensors, in file order, part after part.
  const std::vector<Tensor>& tensors() const { return tensors_; }
  // Null if no tensor has that name; `index` may be null.
  const Tensor* find_tensor(std::string_view name, uint64_t* index = nullptr) const;
  // Copies bytes [offset, offset + bytes) of a tensor's data as they are in the file. An index or
  // range past the end is WCUDA_OUT_OF_RANGE and reads nothing.
  Status read_tensor(uint64_t index, uint64_t offset, void* target, uint64_t bytes) const;

 private:
  Gguf();
  Status assemble();

  std::vector<std::unique_ptr<Part>> parts_;
  std::vector<Tensor> tensors_;
  std::vector<uint32_t> tensors_by_name_;
  uint64_t file_bytes_ = 0;
  uint64_t tensor_bytes_ = 0;
};

}  // namespace wcuda::gguf
