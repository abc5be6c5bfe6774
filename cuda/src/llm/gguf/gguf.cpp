// Opening a model of one or several files, and typed access to what was found.
#include "llm/gguf/gguf.h"

#include <algorithm>
#include <cinttypes>
#include <iterator>
#include <string>

#include "core/base/bytes.h"
#include "core/base/checked.h"
#include "core/base/text.h"
#include "llm/gguf/limits.h"
#include "llm/gguf/part.h"
#include "llm/gguf/split.h"

namespace wcuda::gguf {
namespace {

struct SplitKeys {
  uint64_t number = 0;  // from 0
  uint64_t count = 1;
  bool has_tensor_count = false;
  uint64_t tensor_count = 0;  // of all parts
};

struct TypeRow {
  const char* name;
  uint8_t bytes;
};
const TypeRow& type_row(ValueType type) {
  static constexpr TypeRow kRows[] = {
      {"u8", 1},   {"i8", 1},     {"u16", 2},   {"i16", 2}, {"u32", 4}, {"i32", 4}, {"f32", 4},
      {"bool", 1}, {"string", 0}, {"array", 0}, {"u64", 8}, {"i64", 8}, {"f64", 8}, {"none", 0}};
  const auto index = static_cast<size_t>(type);  // kNone: past the end
  return kRows[std::min(index, std::size(kRows) - 1)];
}

// False when the value is not an integer, or negative.
bool to_u64(const Value& value, uint64_t* number) {
  const char kind = value_type_name(value.type)[0];
  *number = kind == 'i' ? static_cast<uint64_t>(value.i64) : value.u64;
  return kind == 'u' || (kind == 'i' && value.i64 >= 0);
}

Status read_split_key(const Part& part, const char* key, bool* present, uint64_t* number) {
  const uint64_t index = part.find(key);
  *present = index != part.entries.size();
  if (!*present) return Status();
  const Value value = part.value(part.entries[index]);
  if (!to_u64(value, number))
    return malformed("%s: %s is not a count (type %s)", part.source->name().c_str(), key,
                     value_type_name(value.type));
  return Status();
}

Status read_split_keys(const Part& part, SplitKeys* keys) {
  bool has_number = false, has_count = false;
  WCUDA_TRY(read_split_key(part, "split.no", &has_number, &keys->number));
  WCUDA_TRY(read_split_key(part, "split.count", &has_count, &keys->count));
  WCUDA_TRY(
      read_split_key(part, "split.tensors.count", &keys->has_tensor_count, &keys->tensor_count));
  // Files that were merged again have a count of 0.
  if (!has_count || keys->count == 0) keys->count = 1;
  if (keys->number >= keys->count)
    return malformed("%s: split.no is %" PRIu64 ", split.count is %" PRIu64,
                     part.source->name().c_str(), keys->number, keys->count);
  if (keys->count > kMaxSplits)
    return unsupported("%s: split into %" PRIu64 " parts, at most %" PRIu32,
                       part.source->name().c_str(), keys->count, kMaxSplits);
  return Status();
}

// The split keys and the file name must agree that this is part 1 of the same count.
Status check_first_part(const Part& part, const SplitKeys& keys, std::string_view path,
                        SplitName* name) {
  const std::string& shown = part.source->name();
  if (!parse_split_path(path, name)) {
    return malformed("%s: part %" PRIu64 " of %" PRIu64
                     " by its split keys, but not named …-%05" PRIu64 "-of-%05" PRIu64 ".gguf",
                     shown.c_str(), keys.number + 1, keys.count, keys.number + 1, keys.count);
  }
  if (name->number != keys.number + 1 || name->count != keys.count) {
    return malformed("%s: named part %" PRIu32 " of %" PRIu32
                     ", but its split keys say part %" PRIu64 " of %" PRIu64,
                     shown.c_str(), name->number, name->count, keys.number + 1, keys.count);
  }
  if (keys.number != 0) {
    return invalid_argument("%s: part %" PRIu64 " of %" PRIu64 ": open the first, '%s'",
                            shown.c_str(), keys.number + 1, keys.count,
                            printable(split_path(*name, 1)).c_str());
  }
  return Status();
}

// A key that a later part repeats must have the same value, except keys that differ by design.
Status check_same_metadata(const Part& first, const Part& part) {
  for (const Entry& entry : part.entries) {
    const std::string_view key = part.key(entry);
    if (key == "split.no" || key == "general.alignment") continue;
    const uint64_t index = first.find(key);
    if (index == first.entries.size()) continue;
    const Entry& same = first.entries[index];
    const bool equal =
        entry.type == same.type && entry.element_type == same.element_type &&
        entry.count == same.count &&
        std::string_view(reinterpret_cast<const char*>(part.header.data()) + entry.data_offset,
                         entry.data_bytes) ==
            std::string_view(reinterpret_cast<const char*>(first.header.data()) + same.data_offset,
                             same.data_bytes);
    if (!equal)
      return malformed("%s: key '%s' differs from the first part's", part.source->name().c_str(),
                       printable(key).c_str());
  }
  return Status();
}

Status check_later_part(const Part& first, const SplitKeys& first_keys, const Part& part,
                        uint64_t number) {
  SplitKeys keys;
  WCUDA_TRY(read_split_keys(part, &keys));
  if (keys.number != number || keys.count != first_keys.count) {
    return malformed("%s: its split keys say part %" PRIu64 " of %" PRIu64
                     ", it should be part %" PRIu64 " of %" PRIu64,
                     part.source->name().c_str(), keys.number + 1, keys.count, number + 1,
                     first_keys.count);
  }
  if (part.version != first.version)
    return malformed("%s: version is %" PRIu32 ", the first part's %" PRIu32,
                     part.source->name().c_str(), part.version, first.version);
  return check_same_metadata(first, part);
}

Status check_split_tensor_count(const Part& first, const SplitKeys& keys, uint64_t found) {
  if (!keys.has_tensor_count || keys.tensor_count == found) return Status();
  return malformed("%s: split.tensors.count is %" PRIu64 ", the parts hold %" PRIu64,
                   first.source->name().c_str(), keys.tensor_count, found);
}

bool convert(const Value& value, float* out) {
  *out = static_cast<float>(value.f64);
  return value.type == ValueType::kF32 || value.type == ValueType::kF64;
}
bool convert(const Value& value, std::string_view* out) {
  *out = value.string;
  return value.type == ValueType::kString;
}
bool convert(const Value& value, uint32_t* out) {
  uint64_t number = 0;
  if (!to_u64(value, &number)) return false;
  *out = static_cast<uint32_t>(number);
  return number <= UINT32_MAX;
}
template <class T>
constexpr const char* kWanted = "an integer of 0 to 2^32 - 1";
template <>
constexpr const char* kWanted<float> = "a float";
template <>
constexpr const char* kWanted<std::string_view> = "a string";

// A value's type and number for an error message.
std::string describe(const Value& value) {
  std::string type = value_type_name(value.type);
  uint64_t number = 0;
  if (value.type == ValueType::kArray)
    return "an array of " + std::to_string(value.count) + " " + value_type_name(value.element_type);
  if (to_u64(value, &number)) return type + " " + std::to_string(number);
  if (value.i64 < 0) return type + " " + std::to_string(value.i64);
  return type;
}

Status absent(std::string_view key) {
  return Status::error(WCUDA_NOT_FOUND, "the file has no key '%s'", printable(key).c_str());
}

template <class T>
Result<T> get(const Gguf& file, std::string_view key, const std::optional<T>& fallback) {
  Value value;
  if (!file.find(key, &value)) return fallback ? Result<T>(*fallback) : Result<T>(absent(key));
  T out{};
  if (convert(value, &out)) return out;
  return unsupported("key '%s' is %s, must be %s", printable(key).c_str(), describe(value).c_str(),
                     kWanted<T>);
}

}  // namespace

const char* value_type_name(ValueType type) { return type_row(type).name; }

uint64_t value_bytes(ValueType type) { return type_row(type).bytes; }

std::string_view Value::string_at(uint64_t index) const {
  const uint8_t* start = data + string_offsets[index];
  return {reinterpret_cast<const char*>(start) + sizeof(uint64_t), load_le<uint64_t>(start)};
}

Gguf::Gguf() = default;
Gguf::~Gguf() = default;

Result<std::shared_ptr<Gguf>> Gguf::open(std::shared_ptr<Source> source) {
  Budget budget{kMaxHeaderBytes, kMaxTensorCount};
  std::shared_ptr<Gguf> file(new Gguf());
  std::unique_ptr<Part> part;
  WCUDA_ASSIGN(part, parse_part(std::move(source), &budget));
  SplitKeys keys;
  WCUDA_TRY(read_split_keys(*part, &keys));
  if (keys.count > 1)
    return unsupported("%s: part %" PRIu64 " of %" PRIu64
                       ": a split file can only be opened by the path of its first part",
                       part->source->name().c_str(), keys.number + 1, keys.count);
  WCUDA_TRY(check_split_tensor_count(*part, keys, part->tensors.size()));
  file->parts_.push_back(std::move(part));
  WCUDA_TRY(file->assemble());
  return file;
}

Result<std::shared_ptr<Gguf>> Gguf::open_path(std::string_view path) {
  Budget budget{kMaxHeaderBytes, kMaxTensorCount};
  std::shared_ptr<Source> source;
  WCUDA_ASSIGN(source, gguf::open_path(path));
  std::shared_ptr<Gguf> file(new Gguf());
  file->parts_.emplace_back();
  WCUDA_ASSIGN(file->parts_[0], parse_part(std::move(source), &budget));
  const Part& first = *file->parts_[0];
  SplitKeys keys;
  WCUDA_TRY(read_split_keys(first, &keys));
  uint64_t tensor_count = first.tensors.size();
  if (keys.count > 1) {
    SplitName name;
    WCUDA_TRY(check_first_part(first, keys, path, &name));
    for (uint32_t number = 1; number < keys.count; ++number) {
      std::shared_ptr<Source> next;
      WCUDA_ASSIGN(next, gguf::open_path(split_path(name, number + 1)));
      std::unique_ptr<Part> part;
      WCUDA_ASSIGN(part, parse_part(std::move(next), &budget));
      WCUDA_TRY(check_later_part(first, keys, *part, number));
      tensor_count += part->tensors.size();
      file->parts_.push_back(std::move(part));
    }
  }
  WCUDA_TRY(check_split_tensor_count(first, keys, tensor_count));
  WCUDA_TRY(file->assemble());
  return file;
}

// Joins the tensor tables of all parts; no name may occur twice.
Status Gguf::assemble() {
  for (uint32_t i = 0; i < parts_.size(); ++i) {
    if (!checked_add(file_bytes_, parts_[i]->source->size(), &file_bytes_))
      return malformed("the parts have 2^64 bytes or more");
    for (Tensor& tensor : parts_[i]->tensors) {
      tensor.split_index = i;
      tensor_bytes_ += tensor.bytes;  // ranges do not overlap: at most file_bytes_
      tensors_.push_back(tensor);
    }
    std::vector<Tensor>().swap(parts_[i]->tensors);
  }
  tensors_by_name_.resize(tensors_.size());
  for (uint32_t i = 0; i < tensors_.size(); ++i) tensors_by_name_[i] = i;
  std::sort(tensors_by_name_.begin(), tensors_by_name_.end(),
            [&](uint32_t a, uint32_t b) { return tensors_[a].name < tensors_[b].name; });
  for (size_t i = 1; i < tensors_by_name_.size(); ++i) {
    const Tensor& tensor = tensors_[tensors_by_name_[i]];
    if (tensor.name == tensors_[tensors_by_name_[i - 1]].name)
      return malformed("%s: tensor '%s' occurs twice",
                       parts_[tensor.split_index]->source->name().c_str(),
                       printable(tensor.name).c_str());
  }
  return Status();
}

uint32_t Gguf::version() const { return parts_[0]->version; }
uint32_t Gguf::alignment() const { return parts_[0]->alignment; }
uint64_t Gguf::value_count() const { return parts_[0]->entries.size(); }
Value Gguf::value(uint64_t index) const { return parts_[0]->value(parts_[0]->entries[index]); }

bool Gguf::find(std::string_view key, Value* value, uint64_t* index) const {
  const uint64_t found = parts_[0]->find(key);
  if (found == value_count()) return false;
  *value = this->value(found);
  if (index != nullptr) *index = found;
  return true;
}

bool Gguf::has(std::string_view key) const { return parts_[0]->find(key) != value_count(); }

Result<uint32_t> Gguf::get_u32(std::string_view key, std::optional<uint32_t> fallback) const {
  return get(*this, key, fallback);
}
Result<float> Gguf::get_f32(std::string_view key, std::optional<float> fallback) const {
  return get(*this, key, fallback);
}
Result<std::string_view> Gguf::get_string(std::string_view key,
                                          std::optional<std::string_view> fallback) const {
  return get(*this, key, fallback);
}
Result<std::vector<uint32_t>> Gguf::get_u32s(std::string_view key) const {
  Value array;
  if (!find(key, &array)) return absent(key);
  if (array.type != ValueType::kArray)
    return unsupported("key '%s' is %s, must be an array", printable(key).c_str(),
                       describe(array).c_str());
  std::vector<uint32_t> out(array.count);
  for (uint64_t i = 0; i < array.count; ++i) {
    Value value;
    value.type = array.element_type;  // strings are refused below
    if (value.type != ValueType::kString)
      value = number_at(array.element_type, array.data + i * (array.data_bytes / array.count));
    if (!convert(value, &out[i]))
      return unsupported("key '%s': element %" PRIu64 " is %s, must be %s", printable(key).c_str(),
                         i, describe(value).c_str(), kWanted<uint32_t>);
  }
  return out;
}

const Tensor* Gguf::find_tensor(std::string_view name, uint64_t* index) const {
  const auto found = std::lower_bound(
      tensors_by_name_.begin(), tensors_by_name_.end(), name,
      [&](uint32_t i, std::string_view wanted) { return tensors_[i].name < wanted; });
  if (found == tensors_by_name_.end() || tensors_[*found].name != name) return nullptr;
  if (index != nullptr) *index = *found;
  return &tensors_[*found];
}

Status Gguf::read_tensor(uint64_t index, uint64_t offset, void* target, uint64_t bytes) const {
  if (index >= tensors_.size())
    return Status::error(WCUDA_OUT_OF_RANGE, "tensor %" PRIu64 " of %zu", index, tensors_.size());
  const Tensor& tensor = tensors_[index];
  if (offset > tensor.bytes || bytes > tensor.bytes - offset) {
    return Status::error(WCUDA_OUT_OF_RANGE,
                         "tensor '%s': %" PRIu64 " bytes at %" PRIu64 " are past its %" PRIu64,
                         printable(tensor.name).c_str(), bytes, offset, tensor.bytes);
  }
  return parts_[tensor.split_index]->source->read_at(tensor.file_offset + offset, target, bytes);
}

}  // namespace wcuda::gguf
