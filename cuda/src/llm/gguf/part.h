// Part: one file of a model, parsed and checked by itself.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "core/base/status.h"
#include "llm/gguf/gguf.h"
#include "llm/gguf/source.h"

namespace wcuda::gguf {

// Where a metadata entry lies in the header. Offsets are 32-bit: kMaxHeaderBytes is below 2^32.
struct Entry {
  uint32_t key_offset;
  uint32_t key_bytes;
  uint32_t data_offset;  // of the number, the string's bytes, or the array's first element
  uint32_t data_bytes;
  uint32_t first_string;  // array of strings: index in Part::string_offsets
  ValueType type;
  ValueType element_type;
  uint64_t count;
};

struct Part {
  std::shared_ptr<Source> source;
  std::vector<uint8_t> header;  // the file from its start to at least the end of the tensor table
  uint32_t version = 0;
  uint32_t alignment = 0;
  uint64_t header_bytes = 0;             // end of the tensor table
  uint64_t data_offset = 0;              // of the data section; header_bytes if there is no tensor
  std::vector<Entry> entries;            // in file order
  std::vector<uint32_t> entries_by_key;  // indices, sorted by key
  std::vector<uint32_t> string_offsets;  // from the array's first element
  std::vector<Tensor> tensors;           // in file order; views point into `header`

  std::string_view key(const Entry& entry) const {
    return {reinterpret_cast<const char*>(header.data()) + entry.key_offset, entry.key_bytes};
  }
  Value value(const Entry& entry) const;
  // Index of the entry, or entries.size().
  uint64_t find(std::string_view key) const;
};

// A Value of a number type or bool, from its bytes in the file.
Value number_at(ValueType type, const uint8_t* bytes);

// What all parts together may still take.
struct Budget {
  uint64_t header_bytes;
  uint64_t tensor_count;
};

// Reads and checks one file up to its data; takes what it used off the budget.
Result<std::unique_ptr<Part>> parse_part(std::shared_ptr<Source> source, Budget* budget);

}  // namespace wcuda::gguf
