// Parses one GGUF file: header, metadata, tensor table. No byte of it is trusted.
#include "llm/gguf/part.h"

#include <algorithm>
#include <cinttypes>
#include <cstring>
#include <string>

#include "core/base/bytes.h"
#include "core/base/checked.h"
#include "core/base/text.h"
#include "llm/gguf/header_reader.h"
#include "llm/gguf/limits.h"

namespace wcuda::gguf {
namespace {

constexpr uint32_t kMagic = 0x46554747;                      // "GGUF"
constexpr uint64_t kMinEntryBytes = 8 + 1 + 4 + 1;           // key length, key, type, value
constexpr uint64_t kMinTensorBytes = 8 + 1 + 4 + 8 + 4 + 8;  // name length, name, …, offset

// NUL is one: it would cut the name in C programs.
bool has_control_character(std::string_view text) {
  for (const char c : text)
    if (static_cast<uint8_t>(c) < 0x20 || c == 0x7F) return true;
  return false;
}

class PartParser {
 public:
  PartParser(std::shared_ptr<Source> source, Budget* budget)
      : part_(std::make_unique<Part>()),
        budget_(*budget),
        reader_(*source, budget->header_bytes, &part_->header) {
    part_->source = std::move(source);
  }

  Status parse() {
    WCUDA_TRY(parse_version());
    WCUDA_TRY(parse_counts());
    WCUDA_TRY(parse_metadata());
    WCUDA_TRY(find_alignment());
    WCUDA_TRY(parse_tensors());
    Part& part = *part_;
    part.header_bytes = reader_.position();
    part.header.resize(part.header_bytes);
    part.header.shrink_to_fit();
    for (size_t i = 0; i < names_.size(); ++i) part.tensors[i].name = view(names_[i]);
    WCUDA_TRY(check_layout());
    budget_.header_bytes -= part.header_bytes;
    budget_.tensor_count -= tensor_count_;
    return Status();
  }

  std::unique_ptr<Part> take() { return std::move(part_); }

 private:
  // A range of the header copy, whose address changes while it grows.
  struct Span {
    uint64_t offset;
    uint64_t bytes;
  };

  Status parse_version() {
    uint32_t magic = 0;
    WCUDA_TRY(reader_.read(&magic, "the magic number"));
    if (magic != kMagic) {
      return malformed("not a GGUF file: it starts with '%s', not 'GGUF'",
                       printable({reinterpret_cast<const char*>(&magic), 4}).c_str());
    }
    uint32_t version = 0;
    WCUDA_TRY(reader_.read(&version, "the version"));
    if (version == 2 || version == 3) {
      part_->version = version;
      return Status();
    }
    if (version == 0) return malformed("version is 0");
    const uint32_t swapped = __builtin_bswap32(version);
    if ((version & 0xFFFF) == 0 && swapped <= 0xFFFF) {
      return unsupported("a big-endian file (version %" PRIu32
                         " byte-swapped): convert it to little-endian",
                         swapped);
    }
    return unsupported("version is %" PRIu32 ", 2 and 3 can be read", version);
  }

  Status parse_counts() {
    WCUDA_TRY(reader_.read(&tensor_count_, "the tensor count"));
    WCUDA_TRY(reader_.read(&metadata_count_, "the metadata count"));
    const uint64_t left = reader_.bytes_left();
    if (metadata_count_ > left / kMinEntryBytes) {
      return malformed("%" PRIu64 " metadata entries need at least %" PRIu64 " bytes each, %" PRIu64
                       " bytes remain",
                       metadata_count_, kMinEntryBytes, left);
    }
    if (tensor_count_ > left / kMinTensorBytes) {
      return malformed("%" PRIu64 " tensors need at least %" PRIu64 " bytes each, %" PRIu64
                       " bytes remain",
                       tensor_count_, kMinTensorBytes, left);
    }
    if (metadata_count_ > kMaxMetadataCount) {
      return unsupported("%" PRIu64 " metadata entries, at most %" PRIu64, metadata_count_,
                         kMaxMetadataCount);
    }
    if (tensor_count_ > budget_.tensor_count) {
      return unsupported("%" PRIu64 " tensors, at most %" PRIu64 " in all parts, %" PRIu64
                         " are left",
                         tensor_count_, kMaxTensorCount, budget_.tensor_count);
    }
    return Status();
  }

  Status parse_metadata() {
    for (uint64_t i = 0; i < metadata_count_; ++i) WCUDA_TRY(parse_entry(i));
    return sort_keys();
  }
  Status parse_entry(uint64_t index) {
    Span text{};
    WCUDA_TRY(parse_text(kMaxKeyBytes, "a metadata key", &text));
    if (text.bytes == 0) return malformed("the key of metadata entry %" PRIu64 " is empty", index);
    const std::string key = printable(view(text));
    if (has_control_character(view(text)))
      return malformed("key '%s' holds a control character", key.c_str());
    uint32_t type = 0;
    WCUDA_TRY(reader_.read(&type, "a value's type"));
    if (type > static_cast<uint32_t>(ValueType::kF64))
      return malformed("key '%s': value type is %" PRIu32 ", at most 12", key.c_str(), type);
    Entry entry{};
    entry.key_offset = static_cast<uint32_t>(text.offset);
    entry.key_bytes = static_cast<uint32_t>(text.bytes);
    entry.type = static_cast<ValueType>(type);
    entry.element_type = ValueType::kNone;
    entry.count = 1;
    WCUDA_TRY(parse_value(key, &entry));
    part_->entries.push_back(entry);
    return Status();
  }

  Status parse_value(const std::string& key, Entry* entry) {
    if (entry->type == ValueType::kArray) return parse_array(key, entry);
    if (entry->type == ValueType::kString) {
      Span text{};
      WCUDA_TRY(parse_text(kMaxStringBytes, "a metadata string", &text));
      entry->data_offset = static_cast<uint32_t>(text.offset);
      entry->data_bytes = static_cast<uint32_t>(text.bytes);
      return Status();
    }
    const uint64_t bytes = value_bytes(entry->type);
    WCUDA_TRY(reader_.need(bytes, "a metadata value"));
    entry->data_offset = static_cast<uint32_t>(reader_.position());
    entry->data_bytes = static_cast<uint32_t>(bytes);
    const std::string_view data = reader_.take(bytes);
    if (entry->type == ValueType::kBool && static_cast<uint8_t>(data[0]) > 1)
      return malformed("key '%s': a bool is %u, must be 0 or 1", key.c_str(),
                       static_cast<uint8_t>(data[0]));
    return Status();
  }

  Status parse_array(const std::string& key, Entry* entry) {
    uint32_t type = 0;
    uint64_t count = 0;
    WCUDA_TRY(reader_.read(&type, "an array's element type"));
    if (type == static_cast<uint32_t>(ValueType::kArray))
      return unsupported("key '%s': an array of arrays", key.c_str());
    if (type > static_cast<uint32_t>(ValueType::kF64))
      return malformed("key '%s': element type is %" PRIu32 ", at most 12", key.c_str(), type);
    entry->element_type = static_cast<ValueType>(type);
    WCUDA_TRY(reader_.read(&count, "an array's element count"));
    const bool is_strings = entry->element_type == ValueType::kString;
    // A string takes at least its length field.
    const uint64_t element_bytes = is_strings ? sizeof(uint64_t) : value_bytes(entry->element_type);
    if (count > reader_.bytes_left() / element_bytes) {
      return malformed("key '%s': %" PRIu64 " elements of type %s need at least %" PRIu64
                       " bytes each, %" PRIu64 " bytes remain",
                       key.c_str(), count, value_type_name(entry->element_type), element_bytes,
                       reader_.bytes_left());
    }
    if (count > kMaxArrayElements) {
      return unsupported("key '%s': %" PRIu64 " elements, at most %" PRIu64, key.c_str(), count,
                         kMaxArrayElements);
    }
    entry->count = count;
    if (is_strings) return parse_string_array(key, entry);
    const uint64_t bytes = count * element_bytes;
    WCUDA_TRY(reader_.need(bytes, "a metadata array"));
    entry->data_offset = static_cast<uint32_t>(reader_.position());
    entry->data_bytes = static_cast<uint32_t>(bytes);
    const std::string_view data = reader_.take(bytes);
    if (entry->element_type != ValueType::kBool) return Status();
    for (uint64_t i = 0; i < count; ++i) {
      if (static_cast<uint8_t>(data[i]) > 1)
        return malformed("key '%s': bool %" PRIu64 " is %u, must be 0 or 1", key.c_str(), i,
                         static_cast<uint8_t>(data[i]));
    }
    return Status();
  }

  Status parse_string_array(const std::string& key, Entry* entry) {
    const uint64_t start = reader_.position();
    std::vector<uint32_t>& offsets = part_->string_offsets;
    const uint64_t first = offsets.size();
    for (uint64_t i = 0; i < entry->count; ++i) {
      const uint64_t offset = reader_.position() - start;
      Span text{};
      const Status status = parse_text(kMaxStringBytes, "a string of an array", &text);
      if (!status.ok()) {
        return Status::native_error(status.code(), status.native_code(),
                                    "key '%s', element %" PRIu64 ": %s", key.c_str(), i,
                                    status.message());
      }
      offsets.push_back(static_cast<uint32_t>(offset));
    }
    entry->data_offset = static_cast<uint32_t>(start);
    entry->data_bytes = static_cast<uint32_t>(reader_.position() - start);
    entry->first_string = static_cast<uint32_t>(first);
    return Status();
  }

  // Sorting has no quadratic worst case, unlike a hash table.
  Status sort_keys() {
    Part& part = *part_;
    part.entries_by_key.resize(part.entries.size());
    for (uint32_t i = 0; i < part.entries.size(); ++i) part.entries_by_key[i] = i;
    std::sort(part.entries_by_key.begin(), part.entries_by_key.end(), [&](uint32_t a, uint32_t b) {
      return part.key(part.entries[a]) < part.key(part.entries[b]);
    });
    for (size_t i = 1; i < part.entries_by_key.size(); ++i) {
      const std::string_view key = part.key(part.entries[part.entries_by_key[i]]);
      if (key == part.key(part.entries[part.entries_by_key[i - 1]]))
        return malformed("key '%s' occurs twice", printable(key).c_str());
    }
    return Status();
  }

  Status find_alignment() {
    Part& part = *part_;
    part.alignment = kDefaultAlignment;
    const uint64_t index = part.find("general.alignment");
    if (index == part.entries.size()) return Status();
    const Value value = part.value(part.entries[index]);
    if (value.type != ValueType::kU32)
      return malformed("general.alignment is of type %s, must be u32", value_type_name(value.type));
    if (!is_power_of_two(value.u64))
      return malformed("general.alignment is %" PRIu64 ", must be a power of two", value.u64);
    if (value.u64 > kMaxAlignment)
      return unsupported("general.alignment is %" PRIu64 ", at most %" PRIu32, value.u64,
                         kMaxAlignment);
    part.alignment = static_cast<uint32_t>(value.u64);
    return Status();
  }

  Status parse_tensors() {
    // The bytes that follow the metadata must be enough for this many tensors.
    if (tensor_count_ > reader_.bytes_left() / kMinTensorBytes) {
      return malformed("%" PRIu64 " tensors need at least %" PRIu64 " bytes each, %" PRIu64
                       " bytes remain",
                       tensor_count_, kMinTensorBytes, reader_.bytes_left());
    }
    for (uint64_t i = 0; i < tensor_count_; ++i) WCUDA_TRY(parse_tensor(i));
    return Status();
  }

  Status parse_tensor(uint64_t index) {
    Span text{};
    WCUDA_TRY(parse_text(kMaxTensorNameBytes, "a tensor name", &text));
    if (text.bytes == 0) return malformed("the name of tensor %" PRIu64 " is empty", index);
    const std::string name = printable(view(text));
    if (has_control_character(view(text)))
      return malformed("tensor '%s': its name holds a control character", name.c_str());
    Tensor tensor;
    WCUDA_TRY(parse_dimensions(name, &tensor));
    WCUDA_TRY(parse_format(name, &tensor));
    WCUDA_TRY(reader_.read(&tensor.file_offset, "a tensor's offset"));
    if (tensor.file_offset % part_->alignment != 0) {
      return malformed("tensor '%s': offset %" PRIu64
                       " is not a multiple of the alignment %" PRIu32,
                       name.c_str(), tensor.file_offset, part_->alignment);
    }
    names_.push_back(text);
    part_->tensors.push_back(tensor);
    return Status();
  }

  Status parse_dimensions(const std::string& name, Tensor* tensor) {
    WCUDA_TRY(reader_.read(&tensor->dimension_count, "a tensor's dimension count"));
    if (tensor->dimension_count < 1 || tensor->dimension_count > kMaxDimensions)
      return malformed("tensor '%s': %" PRIu32 " dimensions, must be 1 to 4", name.c_str(),
                       tensor->dimension_count);
    uint64_t elements = 1;
    for (uint32_t d = 0; d < tensor->dimension_count; ++d) {
      uint64_t& dimension = tensor->dimensions[d];
      WCUDA_TRY(reader_.read(&dimension, "a tensor's dimension"));
      if (dimension == 0)
        return malformed("tensor '%s': dimension %" PRIu32 " is 0", name.c_str(), d);
      if (!checked_mul(elements, dimension, &elements) || elements > INT64_MAX) {
        return malformed("tensor '%s': 2^63 or more elements (dimension %" PRIu32 " is %" PRIu64
                         ")",
                         name.c_str(), d, dimension);
      }
    }
    tensor->element_count = elements;
    return Status();
  }

  Status parse_format(const std::string& name, Tensor* tensor) {
    WCUDA_TRY(reader_.read(&tensor->type, "a tensor's type"));
    const quant::Format* format = quant::find_format(tensor->type);
    if (format == nullptr)
      return unsupported("tensor '%s': type id %" PRIu32
                         " is unknown or was removed from the format",
                         name.c_str(), tensor->type);
    tensor->format = format;
    if (tensor->dimensions[0] % format->block_elements != 0) {
      return malformed("tensor '%s': first dimension %" PRIu64
                       " is not a multiple of %s's block of %" PRIu32,
                       name.c_str(), tensor->dimensions[0], format->name, format->block_elements);
    }
    if (!checked_mul(tensor->element_count / format->block_elements, format->block_bytes,
                     &tensor->bytes) ||
        tensor->bytes > INT64_MAX) {
      return malformed("tensor '%s': %" PRIu64 " elements of %s are 2^63 bytes or more",
                       name.c_str(), tensor->element_count, format->name);
    }
    return Status();
  }

  // Converts offsets in the data section to offsets in the file; each range must be within the file
  // and overlap no other.
  Status check_layout() {
    Part& part = *part_;
    part.data_offset = part.header_bytes;
    if (part.tensors.empty()) return Status();
    part.data_offset = align_up(part.header_bytes, part.alignment);  // both far below 2^63
    const uint64_t size = part.source->size();
    if (part.data_offset > size)
      return malformed("tensor data would start at byte %" PRIu64 ", the file has %" PRIu64,
                       part.data_offset, size);
    const uint64_t data_bytes = size - part.data_offset;
    for (Tensor& tensor : part.tensors) {
      if (tensor.file_offset > data_bytes || tensor.bytes > data_bytes - tensor.file_offset) {
        return malformed("tensor '%s' needs %" PRIu64 " bytes at offset %" PRIu64
                         ", the file has %" PRIu64 " bytes of data",
                         printable(tensor.name).c_str(), tensor.bytes, tensor.file_offset,
                         data_bytes);
      }
      tensor.file_offset += part.data_offset;
    }
    std::vector<const Tensor*> by_offset;
    by_offset.reserve(part.tensors.size());
    for (const Tensor& tensor : part.tensors) by_offset.push_back(&tensor);
    std::sort(by_offset.begin(), by_offset.end(),
              [](const Tensor* a, const Tensor* b) { return a->file_offset < b->file_offset; });
    for (size_t i = 1; i < by_offset.size(); ++i) {
      const Tensor& before = *by_offset[i - 1];
      if (by_offset[i]->file_offset - before.file_offset < before.bytes) {
        return malformed(
            "tensors '%s' and '%s' overlap: bytes %" PRIu64 " to %" PRIu64 ", and from %" PRIu64,
            printable(before.name).c_str(), printable(by_offset[i]->name).c_str(),
            before.file_offset, before.file_offset + before.bytes, by_offset[i]->file_offset);
      }
    }
    return Status();
  }

  // Reads a length and that many bytes, which must be UTF-8.
  Status parse_text(uint64_t max_bytes, const char* what, Span* text) {
    uint64_t bytes = 0;
    WCUDA_TRY(reader_.read(&bytes, what));
    if (bytes > reader_.bytes_left()) {
      return malformed("%s at byte %" PRIu64 " has %" PRIu64 " bytes, %" PRIu64 " remain", what,
                       reader_.position(), bytes, reader_.bytes_left());
    }
    if (bytes > max_bytes) {
      return unsupported("%s at byte %" PRIu64 " has %" PRIu64 " bytes, at most %" PRIu64, what,
                         reader_.position(), bytes, max_bytes);
    }
    WCUDA_TRY(reader_.need(bytes, what));
    const uint64_t offset = reader_.position();
    if (!is_utf8(reader_.take(bytes)))
      return malformed("%s at byte %" PRIu64 " is not UTF-8", what, offset);
    *text = Span{offset, bytes};
    return Status();
  }

  std::string_view view(Span span) const {
    return {reinterpret_cast<const char*>(part_->header.data()) + span.offset, span.bytes};
  }

  std::unique_ptr<Part> part_;
  Budget& budget_;
  HeaderReader reader_;
  uint64_t tensor_count_ = 0;
  uint64_t metadata_count_ = 0;
  std::vector<Span> names_;  // of the tensors
};

}  // namespace

Value number_at(ValueType type, const uint8_t* bytes) {
  Value value;
  value.type = type;
  const uint64_t width = value_bytes(type);
  const char kind = value_type_name(type)[0];
  uint64_t bits = 0;  // little-endian
  std::memcpy(&bits, bytes, width);
  const uint64_t unused = 64 - 8 * width;
  if (type == ValueType::kF32)
    value.f64 = static_cast<double>(load_le<float>(bytes));
  else if (type == ValueType::kF64)
    value.f64 = load_le<double>(bytes);
  else if (kind == 'i')
    value.i64 = static_cast<int64_t>(bits << unused) >> unused;
  else
    value.u64 = bits;  // bool too
  return value;
}

Value Part::value(const Entry& entry) const {
  const uint8_t* data = header.data() + entry.data_offset;
  Value value = number_at(entry.type, data);
  value.key = key(entry);
  value.element_type = entry.element_type;
  value.count = entry.count;
  if (entry.type == ValueType::kString) {
    value.string = {reinterpret_cast<const char*>(data), entry.data_bytes};
  } else if (entry.type == ValueType::kArray) {
    value.data = data;
    value.data_bytes = entry.data_bytes;
    if (entry.element_type == ValueType::kString)
      value.string_offsets = string_offsets.data() + entry.first_string;
  }
  return value;
}

uint64_t Part::find(std::string_view wanted) const {
  const auto found = std::lower_bound(
      entries_by_key.begin(), entries_by_key.end(), wanted,
      [&](uint32_t index, std::string_view text) { return key(entries[index]) < text; });
  if (found == entries_by_key.end() || key(entries[*found]) != wanted) return entries.size();
  return *found;
}

Result<std::unique_ptr<Part>> parse_part(std::shared_ptr<Source> source, Budget* budget) {
  const std::string name = source->name();
  PartParser parser(std::move(source), budget);
  const Status status = parser.parse();
  if (status.ok()) return parser.take();
  if (status.code() == WCUDA_IO) return status;  // names the source already
  return Status::native_error(status.code(), status.native_code(), "%s: %s", name.c_str(),
                              status.message());
}

}  // namespace wcuda::gguf
