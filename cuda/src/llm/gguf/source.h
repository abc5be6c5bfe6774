// Source: where the bytes of a file come from (a path, a descriptor, memory, or a callback).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "core/base/status.h"
#include "worker_cuda/llm.h"

namespace wcuda::gguf {

// Random access to a file of fixed size. Reads are positioned, never mapped: a file that shrinks
// meanwhile is a WCUDA_IO status, not a signal. Reading is legal on several threads at once.
class Source {
 public:
  virtual ~Source() = default;
  Source(const Source&) = delete;
  Source& operator=(const Source&) = delete;

  uint64_t size() const { return size_; }
  // What messages call it: the file name without its folder, "descriptor 3", "memory", "callback".
  const std::string& name() const { return name_; }

  // Copies exactly `bytes` bytes at `offset` to `target`. A range past size() is
  // WCUDA_OUT_OF_RANGE; what cannot be read is WCUDA_IO, with errno or the callback's result. On
  // failure the contents of `target` are undefined.
  Status read_at(uint64_t offset, void* target, uint64_t bytes) const;

 protected:
  Source(std::string name, uint64_t size) : name_(std::move(name)), size_(size) {}

 private:
  // Called with a non-empty range inside the size.
  virtual Status read(uint64_t offset, void* target, uint64_t bytes) const = 0;

  std::string name_;
  uint64_t size_;
};

// A regular file; anything else (a folder, a pipe, a device) is WCUDA_INVALID_ARGUMENT.
Result<std::shared_ptr<Source>> open_path(std::string_view path);
// The same from an open descriptor, which is duplicated; the file position is not used.
Result<std::shared_ptr<Source>> open_descriptor(int descriptor);
// The caller's memory, which must outlive the source.
Result<std::shared_ptr<Source>> open_memory(const void* data, uint64_t bytes);
// The caller's function, which with `user` must outlive the source.
Result<std::shared_ptr<Source>> open_callback(wcuda_read_callback read, void* user, uint64_t size);

}  // namespace wcuda::gguf
