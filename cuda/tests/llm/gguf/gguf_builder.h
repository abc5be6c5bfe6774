// GgufBuilder: writes GGUF files for tests, valid ones and ones that are wrong in one place.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

namespace wcuda::testing {

// Keys and tensors appear in the order they were added. Everything a file says about itself
// (counts, lengths, offsets) is computed, then can be overwritten at the places `fields()` names.
class GgufBuilder {
 public:
  // A number in the built file that something depends on.
  struct Field {
    std::string name;  // "tensor_count", "key 2 length", "tensor 0 dimension 1"
    uint64_t offset;
    uint32_t bytes;  // 4 or 8
  };

  uint32_t magic = 0x46554747;
  uint32_t version = 3;
  uint32_t alignment = 32;  // used for layout; add the key general.alignment yourself

  GgufBuilder& u8(const std::string& key, uint8_t v) { return number(key, 0, v); }
  GgufBuilder& i8(const std::string& key, int8_t v) { return number(key, 1, v); }
  GgufBuilder& u16(const std::string& key, uint16_t v) { return number(key, 2, v); }
  GgufBuilder& i16(const std::string& key, int16_t v) { return number(key, 3, v); }
  GgufBuilder& u32(const std::string& key, uint32_t v) { return number(key, 4, v); }
  GgufBuilder& i32(const std::string& key, int32_t v) { return number(key, 5, v); }
  GgufBuilder& f32(const std::string& key, float v) { return number(key, 6, v); }
  GgufBuilder& boolean(const std::string& key, uint8_t v) { return number(key, 7, v); }
  GgufBuilder& u64(const std::string& key, uint64_t v) { return number(key, 10, v); }
  GgufBuilder& i64(const std::string& key, int64_t v) { return number(key, 11, v); }
  GgufBuilder& f64(const std::string& key, double v) { return number(key, 12, v); }

  GgufBuilder& string(const std::string& key, const std::string& text) {
    Entry& entry = add(key, 8);
    append_text(&entry.payload, text, &entry.fields, "string length");
    return *this;
  }
  // Element type by the number in the file; `Number` is its C type.
  template <class Number>
  GgufBuilder& array(const std::string& key, uint32_t element_type,
                     const std::vector<Number>& numbers) {
    Entry& entry = begin_array(key, element_type, numbers.size());
    for (const Number& n : numbers) append(&entry.payload, n);
    return *this;
  }
  GgufBuilder& strings(const std::string& key, const std::vector<std::string>& texts) {
    Entry& entry = begin_array(key, 8, texts.size());
    for (const std::string& text : texts)
      append_text(&entry.payload, text, &entry.fields, "element length");
    return *this;
  }
  // A value of any type, its bytes as given.
  GgufBuilder& raw(const std::string& key, uint32_t type, const std::string& payload) {
    add(key, type).payload = payload;
    return *this;
  }

  // `data` is placed at the next multiple of the alignment.
  GgufBuilder& tensor(const std::string& name, std::vector<uint64_t> dimensions, uint32_t type,
                      const std::string& data) {
    tensors_.push_back({name, std::move(dimensions), type, data});
    return *this;
  }
  // F32 values.
  GgufBuilder& tensor_f32(const std::string& name, std::vector<uint64_t> dimensions,
                          const std::vector<float>& values) {
    std::string data;
    for (const float v : values) append(&data, v);
    return tensor(name, std::move(dimensions), 0, data);
  }

  std::string build() {
    fields_.clear();
    std::string out;
    append(&out, magic);
    field(&out, "version", version);
    field(&out, "tensor_count", static_cast<uint64_t>(tensors_.size()));
    field(&out, "metadata_count", static_cast<uint64_t>(entries_.size()));
    for (size_t i = 0; i < entries_.size(); ++i) write_entry(&out, i);
    uint64_t offset = 0;
    for (size_t i = 0; i < tensors_.size(); ++i) {
      write_tensor(&out, i, offset);
      offset = align(offset + tensors_[i].data.size());
    }
    header_bytes_ = out.size();
    for (const Tensor& tensor : tensors_) {
      out.resize(align(out.size()));
      out += tensor.data;
    }
    return out;
  }

  // Of the last build.
  const std::vector<Field>& fields() const { return fields_; }
  uint64_t header_bytes() const { return header_bytes_; }
  // Overwrites a field in `file`, the last build.
  void set(std::string* file, const std::string& name, uint64_t value) const {
    for (const Field& f : fields_)
      if (f.name == name) return set(file, f, value);
    file->clear();  // a name no field has: no test can pass on an empty file by mistake
  }
  static void set(std::string* file, const Field& f, uint64_t value) {
    std::memcpy(&(*file)[f.offset], &value, f.bytes);
  }

  template <class Number>
  static void append(std::string* out, Number number) {
    out->append(reinterpret_cast<const char*>(&number), sizeof(number));
  }

 private:
  struct Entry {
    std::string key;
    uint32_t type;
    std::string payload;
    std::vector<Field> fields;  // offsets from the payload's start
  };
  struct Tensor {
    std::string name;
    std::vector<uint64_t> dimensions;
    uint32_t type;
    std::string data;
  };

  Entry& add(const std::string& key, uint32_t type) {
    entries_.push_back({key, type, "", {}});
    return entries_.back();
  }
  template <class Number>
  GgufBuilder& number(const std::string& key, uint32_t type, Number value) {
    append(&add(key, type).payload, value);
    return *this;
  }
  Entry& begin_array(const std::string& key, uint32_t element_type, uint64_t count) {
    Entry& entry = add(key, 9);
    entry.fields.push_back({"element type", 0, 4});
    entry.fields.push_back({"element count", 4, 8});
    append(&entry.payload, element_type);
    append(&entry.payload, count);
    return entry;
  }
  static void append_text(std::string* out, const std::string& text, std::vector<Field>* fields,
                          const std::string& name) {
    fields->push_back({name, out->size(), 8});
    append(out, static_cast<uint64_t>(text.size()));
    *out += text;
  }

  template <class Number>
  void field(std::string* out, const std::string& name, Number value) {
    fields_.push_back({name, out->size(), sizeof(Number)});
    append(out, value);
  }
  void write_entry(std::string* out, size_t i) {
    const Entry& entry = entries_[i];
    const std::string prefix = "key " + std::to_string(i) + " ";
    field(out, prefix + "length", static_cast<uint64_t>(entry.key.size()));
    *out += entry.key;
    field(out, prefix + "type", entry.type);
    for (const Field& f : entry.fields)
      fields_.push_back({prefix + f.name, out->size() + f.offset, f.bytes});
    *out += entry.payload;
  }
  void write_tensor(std::string* out, size_t i, uint64_t offset) {
    const Tensor& tensor = tensors_[i];
    const std::string prefix = "tensor " + std::to_string(i) + " ";
    field(out, prefix + "name length", static_cast<uint64_t>(tensor.name.size()));
    *out += tensor.name;
    field(out, prefix + "dimension count", static_cast<uint32_t>(tensor.dimensions.size()));
    for (size_t d = 0; d < tensor.dimensions.size(); ++d)
      field(out, prefix + "dimension " + std::to_string(d), tensor.dimensions[d]);
    field(out, prefix + "type", tensor.type);
    field(out, prefix + "offset", offset);
  }
  uint64_t align(uint64_t offset) const { return (offset + alignment - 1) / alignment * alignment; }

  std::vector<Entry> entries_;
  std::vector<Tensor> tensors_;
  std::vector<Field> fields_;
  uint64_t header_bytes_ = 0;
};

// A small file that has every value type, arrays of several, and tensors of three formats.
inline GgufBuilder sample_gguf() {
  GgufBuilder b;
  b.string("general.architecture", "llama").u32("general.alignment", 64);
  b.u8("t.u8", 255).i8("t.i8", -128).u16("t.u16", 65535).i16("t.i16", -32768);
  b.u32("t.u32", 4294967295u).i32("t.i32", INT32_MIN).f32("t.f32", 0.5f).boolean("t.bool", 1);
  b.u64("t.u64", UINT64_MAX).i64("t.i64", INT64_MIN).f64("t.f64", -2.25);
  b.array<int32_t>("a.i32", 5, {-1, 0, 1}).array<float>("a.f32", 6, {1.5f, -1.5f});
  b.array<uint8_t>("a.bool", 7, {0, 1}).array<uint64_t>("a.empty", 10, {});
  b.strings("a.strings", {"", "a", "h\xC3\xA9llo", "\xF0\x9F\x98\x80"});
  b.alignment = 64;
  b.tensor_f32("norm.weight", {4}, {1, 2, 3, 4});
  b.tensor("blk.0.q.weight", {64, 2}, 2, std::string(4 * 18, '\x11'));  // Q4_0
  b.tensor("cube", {2, 3, 2, 1}, 1, std::string(12 * 2, '\x22'));       // F16
  return b;
}

}  // namespace wcuda::testing
