// The four kinds of Source.
#include "llm/gguf/source.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cinttypes>
#include <cstring>

#include "core/base/callback.h"
#include "core/base/text.h"

namespace wcuda::gguf {
namespace {

constexpr uint64_t kMaxSize = INT64_MAX;        // what a file offset can express
constexpr uint64_t kMaxReadBytes = 1ull << 30;  // of one pread, which takes at most 2 GiB

class FileSource final : public Source {
 public:
  // Owns the descriptor.
  FileSource(std::string name, int descriptor, uint64_t size)
      : Source(std::move(name), size), descriptor_(descriptor) {}
  ~FileSource() override { ::close(descriptor_); }

 private:
  Status read(uint64_t offset, void* target, uint64_t bytes) const override {
    uint8_t* out = static_cast<uint8_t*>(target);
    while (bytes > 0) {
      const size_t want = static_cast<size_t>(std::min(bytes, kMaxReadBytes));
      const ssize_t got = ::pread(descriptor_, out, want, static_cast<off_t>(offset));
      if (got < 0) {
        if (errno == EINTR) continue;
        const int code = errno;
        return Status::native_error(WCUDA_IO, code,
                                    "%s: reading %zu bytes at %" PRIu64 " failed: %s",
                                    name().c_str(), want, offset, std::strerror(code));
      }
      if (got == 0) {
        return Status::error(WCUDA_IO,
                             "%s: ends at or before byte %" PRIu64 ", had %" PRIu64
                             " bytes when opened: truncated since",
                             name().c_str(), offset, size());
      }
      out += got;
      offset += static_cast<uint64_t>(got);
      bytes -= static_cast<uint64_t>(got);
    }
    return Status();
  }

  int descriptor_;
};

class MemorySource final : public Source {
 public:
  MemorySource(const void* data, uint64_t bytes)
      : Source("memory", bytes), data_(static_cast<const uint8_t*>(data)) {}

 private:
  Status read(uint64_t offset, void* target, uint64_t bytes) const override {
    std::memcpy(target, data_ + offset, bytes);
    return Status();
  }

  const uint8_t* data_;
};

class CallbackSource final : public Source {
 public:
  CallbackSource(wcuda_read_callback callback, void* user, uint64_t size)
      : Source("callback", size), callback_(callback), user_(user) {}

 private:
  Status read(uint64_t offset, void* target, uint64_t bytes) const override {
    int32_t result;
    {
      const InCallback in_callback;
      result = callback_(user_, offset, target, bytes);
    }
    if (result == 0) return Status();
    return Status::native_error(WCUDA_IO, result,
                                "the read callback returned %d for %" PRIu64 " bytes at %" PRIu64,
                                result, bytes, offset);
  }

  wcuda_read_callback callback_;
  void* user_;
};

// Takes ownership of the descriptor, also on failure.
Result<std::shared_ptr<Source>> source_of_descriptor(std::string name, int descriptor) {
  struct stat info;
  if (::fstat(descriptor, &info) != 0) {
    const int code = errno;
    ::close(descriptor);
    return Status::native_error(WCUDA_IO, code, "%s: cannot be examined: %s", name.c_str(),
                                std::strerror(code));
  }
  if (!S_ISREG(info.st_mode)) {
    ::close(descriptor);
    return invalid_argument("%s: is %s, not a regular file", name.c_str(),
                            S_ISDIR(info.st_mode) ? "a folder" : "a pipe or a device");
  }
  return std::shared_ptr<Source>(std::make_shared<FileSource>(std::move(name), descriptor,
                                                              static_cast<uint64_t>(info.st_size)));
}

}  // namespace

Status Source::read_at(uint64_t offset, void* target, uint64_t bytes) const {
  if (offset > size_ || bytes > size_ - offset) {
    return Status::error(WCUDA_OUT_OF_RANGE,
                         "%s: %" PRIu64 " bytes at %" PRIu64 " are past its end at %" PRIu64,
                         name_.c_str(), bytes, offset, size_);
  }
  if (bytes == 0) return Status();
  return read(offset, target, bytes);
}

Result<std::shared_ptr<Source>> open_path(std::string_view path) {
  if (path.empty()) return invalid_argument("path is empty");
  if (path.find('\0') != std::string_view::npos)
    return invalid_argument("path holds a NUL byte at %zu", path.find('\0'));
  const std::string terminated(path);
  const std::string name = printable(path.substr(path.rfind('/') + 1));
  int descriptor;
  do {  // O_NONBLOCK: opening a pipe without a writer would block
    descriptor = ::open(terminated.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
  } while (descriptor < 0 && errno == EINTR);
  if (descriptor < 0) {
    const int code = errno;
    return Status::native_error(WCUDA_IO, code, "cannot open '%s': %s", terminated.c_str(),
                                std::strerror(code));
  }
  return source_of_descriptor(name, descriptor);
}

Result<std::shared_ptr<Source>> open_descriptor(int descriptor) {
  if (descriptor < 0) return invalid_argument("descriptor is %d", descriptor);
  const int copy = ::fcntl(descriptor, F_DUPFD_CLOEXEC, 0);
  if (copy < 0) {
    const int code = errno;
    return Status::native_error(code == EBADF ? WCUDA_INVALID_ARGUMENT : WCUDA_IO, code,
                                "descriptor %d cannot be duplicated: %s", descriptor,
                                std::strerror(code));
  }
  return source_of_descriptor("descriptor " + std::to_string(descriptor), copy);
}

Result<std::shared_ptr<Source>> open_memory(const void* data, uint64_t bytes) {
  if (data == nullptr && bytes > 0)
    return invalid_argument("data is NULL, size is %" PRIu64, bytes);
  if (bytes > kMaxSize) return invalid_argument("size %" PRIu64 " is over 2^63 - 1", bytes);
  return std::shared_ptr<Source>(std::make_shared<MemorySource>(data, bytes));
}

Result<std::shared_ptr<Source>> open_callback(wcuda_read_callback read, void* user, uint64_t size) {
  if (read == nullptr) return invalid_argument("read is NULL");
  if (size > kMaxSize) return invalid_argument("size %" PRIu64 " is over 2^63 - 1", size);
  return std::shared_ptr<Source>(std::make_shared<CallbackSource>(read, user, size));
}

}  // namespace wcuda::gguf
