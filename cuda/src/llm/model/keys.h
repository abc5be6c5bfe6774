// Keys: reads the metadata keys of one architecture, which begin with its name.
#pragma once

#include <cmath>
#include <string>

#include "core/base/status.h"
#include "llm/gguf/gguf.h"

namespace wcuda::model {

class Keys {
 public:
  Keys(const gguf::Gguf& file, std::string architecture)
      : file_(file), architecture_(std::move(architecture)) {}

  const gguf::Gguf& file() const { return file_; }
  const std::string& architecture() const { return architecture_; }
  std::string full(const char* key) const { return architecture_ + "." + key; }
  bool has(const char* key) const { return file_.has(full(key)); }

  // A required count in 1 … limit. A file without the key is WCUDA_MALFORMED.
  Result<uint32_t> count(const char* key, uint32_t limit) const {
    WCUDA_TRY(must_have(key));
    return count(key, limit, 0);
  }
  // The same with a fallback for a file without the key. The fallback is checked too.
  Result<uint32_t> count(const char* key, uint32_t limit, uint32_t fallback) const {
    WCUDA_ASSIGN(const uint32_t value, file_.get_u32(full(key), fallback));
    return check_count(key, value, limit);
  }
  // Returns `value`, the value of `key`, if it is in 1 … limit.
  Result<uint32_t> check_count(const char* key, uint32_t value, uint32_t limit) const {
    if (value >= 1 && value <= limit) return value;
    return Status::error(value == 0 ? WCUDA_MALFORMED : WCUDA_UNSUPPORTED,
                         "key '%s' is %u, must be from 1 to %u", full(key).c_str(), value, limit);
  }
  Result<uint32_t> u32(const char* key, uint32_t fallback) const {
    return file_.get_u32(full(key), fallback);
  }
  // Returns a finite number above zero. It is required, or has a fallback in the second form.
  Result<float> positive(const char* key) const {
    WCUDA_TRY(must_have(key));
    return positive(key, 0.0f);
  }
  Result<float> positive(const char* key, float fallback) const {
    WCUDA_ASSIGN(const float value, file_.get_f32(full(key), fallback));
    if (std::isfinite(value) && value > 0.0f) return value;
    return malformed("key '%s' is %g, must be finite and above 0", full(key).c_str(),
                     static_cast<double>(value));
  }
  // Returns a finite number of at least zero, or zero without the key.
  Result<float> not_negative(const char* key) const {
    WCUDA_ASSIGN(const float value, finite(key, 0.0f));
    if (value >= 0.0f) return value;
    return malformed("key '%s' is %g, must not be negative", full(key).c_str(),
                     static_cast<double>(value));
  }
  // Returns any finite number.
  Result<float> finite(const char* key, float fallback) const {
    WCUDA_ASSIGN(const float value, file_.get_f32(full(key), fallback));
    if (std::isfinite(value)) return value;
    return malformed("key '%s' is %g, must be finite", full(key).c_str(),
                     static_cast<double>(value));
  }

 private:
  Status must_have(const char* key) const {
    if (has(key)) return {};
    return malformed("the file has no key '%s'", full(key).c_str());
  }

  const gguf::Gguf& file_;
  std::string architecture_;
};

}  // namespace wcuda::model
