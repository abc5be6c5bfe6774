// Opening bytes that a test has made.
#pragma once

#include <memory>
#include <string>

#include "llm/gguf/gguf.h"

namespace wcuda::testing {

// From memory; `bytes` must outlive the file.
inline Result<std::shared_ptr<gguf::Gguf>> open_bytes(const std::string& bytes) {
  std::shared_ptr<gguf::Source> source;
  WCUDA_ASSIGN(source, gguf::open_memory(bytes.data(), bytes.size()));
  return gguf::Gguf::open(std::move(source));
}

// "" when the file opens, else "CODE_NAME: message".
inline std::string why_not(const std::string& bytes) {
  const Result<std::shared_ptr<gguf::Gguf>> file = open_bytes(bytes);
  if (file.ok()) return "";
  return std::string(wcuda_status_name(file.status().code())) + ": " + file.status().message();
}

}  // namespace wcuda::testing
