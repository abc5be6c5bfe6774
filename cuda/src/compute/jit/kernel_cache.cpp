// The cache's folder, reached through one open directory: a path that is moved or replaced
// meanwhile changes nothing. Entries are "<64 hex digits>.kernel"; files in the making
// ".new-<random>".
#include "compute/jit/kernel_cache.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cinttypes>
#include <cstring>
#include <ctime>
#include <vector>

#include "core/base/log.h"
#include "core/base/text.h"

namespace wcuda::jit {
namespace {

constexpr char kSuffix[] = ".kernel";
constexpr char kUnfinished[] = ".new-";
constexpr time_t kUnfinishedSecondsMax = 3600;  // older ones are left by processes that died
constexpr size_t kNameBytes = 64 + sizeof(kSuffix) - 1;

Status failed(const char* what) {
  const int code = errno;
  return Status::native_error(WCUDA_IO, code, "kernel cache: %s: %s", what, std::strerror(code));
}

class File {
 public:
  explicit File(int number) : number_(number) {}
  ~File() {
    if (number_ >= 0) (void)::close(number_);
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  int number() const { return number_; }
  // A delayed write error is reported only here.
  bool close() {
    const int number = number_;
    number_ = -1;
    return ::close(number) == 0;
  }

 private:
  int number_;
};

bool write_all(int file, const uint8_t* data, size_t bytes) {
  while (bytes > 0) {
    const ssize_t written = ::write(file, data, bytes);
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return false;
    data += written;
    bytes -= static_cast<size_t>(written);
  }
  return true;
}

bool read_all(int file, std::string* bytes) {
  for (size_t at = 0; at < bytes->size();) {
    const ssize_t got = ::read(file, bytes->data() + at, bytes->size() - at);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return false;
    at += static_cast<size_t>(got);
  }
  return true;
}

std::string random_text() {
  CacheKey bytes{};
  if (::getrandom(bytes.data(), 16, 0) != 16) {
    // Processes differ in their id, threads in the address.
    const uint64_t parts[2] = {static_cast<uint64_t>(::getpid()),
                               reinterpret_cast<uintptr_t>(&bytes)};
    std::memcpy(bytes.data(), parts, sizeof(parts));
  }
  return key_text(bytes).substr(0, 32);
}

bool is_entry_name(const std::string& name) {
  return name.size() == kNameBytes && name.compare(64, std::string::npos, kSuffix) == 0 &&
         name.find_first_not_of("0123456789abcdef") == 64;
}

struct Found {
  std::string name;
  uint64_t bytes;
  timespec used;
};

// Lists the entries; removes unfinished files of dead processes.
Result<std::vector<Found>> list(int folder) {
  const int copy = ::openat(folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (copy < 0) return failed("open");
  DIR* const opened = ::fdopendir(copy);
  if (!opened) {
    const Status status = failed("fdopendir");
    (void)::close(copy);
    return status;
  }
  const std::unique_ptr<DIR, int (*)(DIR*)> directory(opened, ::closedir);
  std::vector<Found> found;
  while (const dirent* const entry = ::readdir(directory.get())) {
    const std::string name = entry->d_name;
    const bool is_unfinished = name.compare(0, sizeof(kUnfinished) - 1, kUnfinished) == 0;
    struct stat about;
    if (!is_unfinished && !is_entry_name(name)) continue;
    if (::fstatat(folder, name.c_str(), &about, AT_SYMLINK_NOFOLLOW) != 0) continue;
    if (!is_unfinished)
      found.push_back({name, static_cast<uint64_t>(about.st_size), about.st_mtim});
    else if (std::time(nullptr) - about.st_mtime > kUnfinishedSecondsMax)
      (void)::unlinkat(folder, name.c_str(), 0);
  }
  return found;
}

std::string file_name(const CacheKey& key) { return key_text(key) + kSuffix; }

Status check_folder(int folder, const std::string& path) {
  struct stat about;
  if (::fstat(folder, &about) != 0) return failed("fstat");
  if (about.st_uid != ::geteuid())
    return invalid_argument("kernel cache: '%s' belongs to user %u, this process is of %u",
                            printable(path).c_str(), static_cast<unsigned>(about.st_uid),
                            static_cast<unsigned>(::geteuid()));
  if ((about.st_mode & (S_IWGRP | S_IWOTH)) != 0)
    return invalid_argument(
        "kernel cache: '%s' (mode %04o) can be written by other users, who could inject code",
        printable(path).c_str(), static_cast<unsigned>(about.st_mode & 07777));
  return {};
}

}  // namespace

Result<std::shared_ptr<KernelCache>> KernelCache::open(const std::string& path,
                                                       uint64_t bytes_max) {
  if (path.empty() || path.find('\0') != std::string::npos)
    return invalid_argument("kernel cache: the folder is empty or has a NUL");
  if (bytes_max == 0) return invalid_argument("kernel cache: bytes_max is 0");
  if (::mkdir(path.c_str(), 0700) != 0 && errno != EEXIST) return failed(printable(path).c_str());
  const int folder = ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (folder < 0) return failed(printable(path).c_str());
  std::shared_ptr<KernelCache> cache;
  try {
    cache.reset(new KernelCache(folder, bytes_max));
  } catch (...) {
    (void)::close(folder);
    throw;
  }
  WCUDA_TRY(check_folder(folder, path));
  return cache;
}

KernelCache::~KernelCache() { (void)::close(folder_); }

std::optional<nvrtc::Outcome> KernelCache::find(const CacheKey& key) {
  const std::string name = file_name(key);
  const File file(::openat(folder_, name.c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK));
  std::optional<nvrtc::Outcome> outcome;
  bool is_damaged = false;
  struct stat about;
  if (file.number() >= 0) {
    if (::fstat(file.number(), &about) == 0 && S_ISREG(about.st_mode) &&
        static_cast<uint64_t>(about.st_size) <= bytes_max_) {
      std::string bytes(static_cast<size_t>(about.st_size), '\0');
      if (read_all(file.number(), &bytes)) outcome = decode_entry(key, bytes);
    }
    is_damaged = !outcome;
  }
  if (outcome) (void)::futimens(file.number(), nullptr);
  if (is_damaged) (void)::unlinkat(folder_, name.c_str(), 0);
  const std::lock_guard<std::mutex> lock(mutex_);
  ++(outcome ? stats_.hit_count : stats_.miss_count);
  if (is_damaged) ++stats_.damaged_count;
  return outcome;
}

void KernelCache::store(const CacheKey& key, const nvrtc::Outcome& outcome) {
  const std::vector<uint8_t> bytes = encode_entry(key, outcome);
  const Status status = bytes.size() > bytes_max_
                            ? Status::error(WCUDA_LIMIT_EXCEEDED,
                                            "kernel cache: an entry of %zu bytes, at most %" PRIu64,
                                            bytes.size(), bytes_max_)
                            : write(key, bytes);
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    ++(status.ok() ? stats_.store_count : stats_.store_failure_count);
  }
  if (!status.ok()) log(WCUDA_LOG_WARN, "jit", "%s", status.message());
  const Status trimmed = status.ok() ? trim(bytes_max_) : Status();
  if (!trimmed.ok()) log(WCUDA_LOG_WARN, "jit", "%s", trimmed.message());
}

Status KernelCache::write(const CacheKey& key, const std::vector<uint8_t>& bytes) {
  const std::string unfinished = kUnfinished + random_text();
  File file(::openat(folder_, unfinished.c_str(),
                     O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
  if (file.number() < 0) return failed("create");
  Status status;
  if (!write_all(file.number(), bytes.data(), bytes.size())) status = failed("write");
  if (!file.close() && status.ok()) status = failed("close");
  // No fsync: a file damaged by a crash has the wrong digest and is a miss.
  if (status.ok() && ::renameat(folder_, unfinished.c_str(), folder_, file_name(key).c_str()) != 0)
    status = failed("rename");
  if (!status.ok()) (void)::unlinkat(folder_, unfinished.c_str(), 0);
  return status;
}

Status KernelCache::trim(uint64_t bytes_max) {
  WCUDA_ASSIGN(std::vector<Found> found, list(folder_));
  uint64_t bytes = 0;
  for (const Found& each : found) bytes += each.bytes;
  std::sort(found.begin(), found.end(), [](const Found& a, const Found& b) {
    return a.used.tv_sec != b.used.tv_sec ? a.used.tv_sec < b.used.tv_sec
                                          : a.used.tv_nsec < b.used.tv_nsec;
  });
  uint64_t evicted = 0;
  for (const Found& each : found) {
    if (bytes <= bytes_max) break;
    // Already removed: another process is trimming too.
    if (::unlinkat(folder_, each.name.c_str(), 0) == 0) ++evicted;
    bytes -= each.bytes;
  }
  const std::lock_guard<std::mutex> lock(mutex_);
  stats_.evicted_count += evicted;
  return {};
}

void KernelCache::count_bypass() {
  const std::lock_guard<std::mutex> lock(mutex_);
  ++stats_.bypass_count;
}

CacheStats KernelCache::stats() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return stats_;
}

Result<CacheSize> KernelCache::size() const {
  WCUDA_ASSIGN(const std::vector<Found> found, list(folder_));
  CacheSize size;
  for (const Found& each : found) size.bytes += each.bytes;
  size.entry_count = found.size();
  return size;
}

Status KernelCache::clear() { return trim(0); }

}  // namespace wcuda::jit
