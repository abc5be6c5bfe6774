// Memory, copies and time on the host.
#include "core/backend/host_backend.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <mutex>

#include "core/backend/handle_table.h"
#include "core/backend/host_memory.h"
#include "core/base/checked.h"
#include "core/base/clock.h"
#include "core/base/text.h"
#include "core/base/thread_pool.h"

namespace wcuda {
namespace {

constexpr uint64_t kDeviceAlignment = 256;
constexpr uint64_t kPinnedAlignment = 4096;
#if defined(__x86_64__)
constexpr char kArchitecture[] = "x86_64";
#elif defined(__aarch64__)
constexpr char kArchitecture[] = "aarch64";
#else
constexpr char kArchitecture[] = "";
#endif
constexpr uint64_t kHugePageBytes = uint64_t{2} << 20;

// Blocks of at least this size come from the kernel in huge pages and go back to it when freed: a
// model's weights are read from end to end at every token, and a page table walk each 4 KiB costs a
// quarter of the time (SmolLM2-135M, Zen 4). Blocks below the size of a huge page lie side by side,
// so that those of a small model share huge pages when they are allocated before they are written.
constexpr uint64_t kMapBytesMin = uint64_t{64} << 10;

// Private zeroed pages, aligned to a huge page where they fill one; null when there are none left.
void* map_pages(uint64_t bytes) {
  uint64_t rounded, padded;
  if (!checked_align_up(bytes, kPinnedAlignment, &rounded) ||
      !checked_add(rounded, kHugePageBytes, &padded))
    return nullptr;
  if (bytes < kHugePageBytes) {
    void* const pages =
        mmap(nullptr, rounded, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (pages == MAP_FAILED) return nullptr;
    madvise(pages, rounded, MADV_HUGEPAGE);
    return pages;
  }
  void* const mapping =
      mmap(nullptr, padded, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapping == MAP_FAILED) return nullptr;
  auto* const begin = static_cast<uint8_t*>(mapping);
  const uint64_t lead = align_up(reinterpret_cast<uintptr_t>(begin), kHugePageBytes) -
                        reinterpret_cast<uintptr_t>(begin);
  if (lead != 0) munmap(begin, lead);
  if (lead != kHugePageBytes) munmap(begin + lead + rounded, kHugePageBytes - lead);
  madvise(begin + lead, rounded, MADV_HUGEPAGE);  // a hint: no matter if it is refused
  return begin + lead;
}

void release_pages(void* address, uint64_t bytes) {
  munmap(address, align_up(bytes, kPinnedAlignment));
}

// Zeroed: fresh pages are, and below them zeroing costs less than the allocation.
void* allocate_block(MemoryKind kind, uint64_t bytes) {
  if (bytes >= kMapBytesMin) return map_pages(bytes);
  const uint64_t alignment = kind == MemoryKind::kPinned ? kPinnedAlignment : kDeviceAlignment;
  void* const block = std::aligned_alloc(alignment, align_up(bytes, alignment));
  if (block) std::memset(block, 0, bytes);
  return block;
}

void release_block(void* address, uint64_t bytes) {
  if (bytes >= kMapBytesMin)
    release_pages(address, bytes);
  else
    std::free(address);
}

std::string processor_name() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);)
    if (line.rfind("model name", 0) == 0) {
      const size_t colon = line.find(':');
      if (colon != std::string::npos && colon + 2 < line.size()) return line.substr(colon + 2);
    }
  return "host processor";
}

wcuda_device_caps make_caps(uint64_t capacity, uint32_t thread_count) {
  wcuda_device_caps caps = WCUDA_DEVICE_CAPS_INIT;
  caps.backend = WCUDA_BACKEND_HOST;
  caps.name_bytes = copy_text(processor_name(), caps.name, sizeof(caps.name));
  caps.total_memory = capacity;
  caps.multiprocessor_count = static_cast<int32_t>(thread_count);
  caps.warp_size = 1;
  const long cache_bytes = sysconf(_SC_LEVEL2_CACHE_SIZE);
  caps.l2_cache_bytes = cache_bytes > 0 ? static_cast<int32_t>(cache_bytes) : 0;
  caps.supports_fp16 = 1;  // by the catalogue, as bf16, with f32 sums
  caps.supports_bf16 = 1;
  caps.supports_fp64 = 1;
  caps.supports_int8 = 1;
  caps.supports_unified_addressing = 1;
  caps.unified_memory = 1;
  caps.supports_atomics = 1;
  caps.architecture_name_bytes =
      copy_text(kArchitecture, caps.architecture_name, sizeof(caps.architecture_name));
  return caps;
}

// Repeats the first 8 bytes of data up to `bytes`; copies from what is still in the first cache.
void repeat(uint8_t* data, uint64_t bytes) {
  const uint64_t piece = std::min<uint64_t>(bytes, 16384);
  for (uint64_t done = 8; done < piece; done *= 2)
    std::memcpy(data + done, data, std::min(done, piece - done));
  for (uint64_t done = piece; done < bytes; done += piece)
    std::memcpy(data + done, data, std::min(piece, bytes - done));
}

// Everything is done when a call returns.
class HostBackend final : public Backend {
 public:
  HostBackend(uint64_t capacity, uint32_t thread_count)
      : Backend({make_caps(capacity, thread_count), 0, thread_count}), capacity_(capacity) {}
  ~HostBackend() override {
    for (const auto& [address, block] : blocks_)
      release_block(const_cast<void*>(address), block.bytes);
  }

  Result<MemoryInfo> memory_info() override {
    const uint64_t available = host_available_bytes();
    std::lock_guard<std::mutex> lock(mutex_);
    return MemoryInfo{std::min(capacity_ - held_bytes_, available), capacity_, held_bytes_,
                      held_bytes_};
  }
  Result<void*> allocate(MemoryKind kind, uint64_t bytes) override {
    WCUDA_CHECK(bytes > 0);
    const bool is_device = kind == MemoryKind::kDevice;
    const Code full = is_device ? WCUDA_OUT_OF_MEMORY : WCUDA_OUT_OF_HOST_MEMORY;
    std::lock_guard<std::mutex> lock(mutex_);
    if (is_device && bytes > capacity_ - held_bytes_)
      return Status::error(full, "the host has %" PRIu64 " of %" PRIu64 " bytes free",
                           capacity_ - held_bytes_, capacity_);
    // Room for the record first: after the allocation nothing may fail.
    std::map<const void*, Block> record{{nullptr, Block{kind, bytes}}};
    if (bytes > (uint64_t{1} << 62))
      return Status::error(full, "the host cannot allocate %" PRIu64 " bytes", bytes);
    void* const address = allocate_block(kind, bytes);
    if (!address)
      return Status::native_error(full, errno, "the host refused %" PRIu64 " bytes", bytes);
    auto node = record.extract(record.begin());
    node.key() = address;
    blocks_.insert(std::move(node));
    if (is_device) held_bytes_ += bytes;
    return address;
  }

  Status free(MemoryKind kind, void* address, uint64_t bytes) override {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      const auto found = blocks_.find(address);
      WCUDA_CHECK(found != blocks_.end() && found->second.kind == kind &&
                  found->second.bytes == bytes);
      blocks_.erase(found);
      if (kind == MemoryKind::kDevice) held_bytes_ -= bytes;
    }
    release_block(address, bytes);
    return {};
  }

  Status free_after(Stream stream) override { return check_stream(stream); }
  Result<MemoryPlace> memory_place(const void* address) override {
    std::lock_guard<std::mutex> lock(mutex_);
    auto block = blocks_.upper_bound(address);
    if (block == blocks_.begin()) return MemoryPlace::kHost;
    --block;
    const uint64_t offset =
        reinterpret_cast<uintptr_t>(address) - reinterpret_cast<uintptr_t>(block->first);
    if (offset >= block->second.bytes) return MemoryPlace::kHost;
    return block->second.kind == MemoryKind::kDevice ? MemoryPlace::kDevice : MemoryPlace::kPinned;
  }

  Status copy(const Copy& what) override {
    WCUDA_TRY(check_stream(what.stream));
    if (what.bytes != 0) std::memcpy(what.target, what.source, what.bytes);
    return {};
  }
  Status fill(void* target, uint64_t bytes, uint64_t pattern, uint32_t pattern_bytes,
              Stream stream) override {
    WCUDA_TRY(check_stream(stream));
    WCUDA_CHECK(pattern_bytes == 1 || pattern_bytes == 2 || pattern_bytes == 4 ||
                pattern_bytes == 8);
    WCUDA_CHECK(bytes % pattern_bytes == 0);
    for (uint32_t width = pattern_bytes; width < 8; width *= 2) {
      const uint64_t low = pattern & ((uint64_t{1} << (8 * width)) - 1);
      pattern = low | low << (8 * width);
    }
    auto* const data = static_cast<uint8_t*>(target);
    const uint64_t first = std::min<uint64_t>(bytes, 8);
    if (first != 0) std::memcpy(data, &pattern, first);
    if (bytes > 8) repeat(data, bytes);
    return {};
  }
  Status run(const Call& call, const std::function<Status(Backend&)>& work) override {
    WCUDA_TRY(check_stream(call.stream));
    return work(*this);
  }
  Result<Stream> stream_create(int32_t priority) override { return streams_.add(priority); }
  Status stream_destroy(Stream stream) override { return streams_.take(stream).status(); }
  void* native_stream(Stream) override { return nullptr; }
  Result<Event> event_create() override { return events_.add({}); }
  Status event_destroy(Event event) override { return events_.take(event).status(); }
  Status event_record(Event event, Stream stream) override {
    WCUDA_TRY(check_stream(stream));
    return events_.set(event, clock_now());
  }
  Status stream_wait(Stream stream, Event event) override {
    WCUDA_TRY(check_stream(stream));
    return events_.find(event).status();
  }
  Status event_synchronize(Event event) override { return events_.find(event).status(); }
  Result<bool> event_done(Event event) override {
    WCUDA_TRY(events_.find(event).status());
    return true;
  }
  Result<double> event_elapsed_ms(Event start, Event end) override {
    WCUDA_ASSIGN(const Clock::time_point from, events_.find(start));
    WCUDA_ASSIGN(const Clock::time_point to, events_.find(end));
    if (from == Clock::time_point() || to == Clock::time_point())
      return Status::error(WCUDA_INVALID_STATE, "an event that was never recorded has no time");
    return std::chrono::duration<double, std::milli>(to - from).count();
  }

  Status synchronize(Stream stream) override { return check_stream(stream); }
  Status synchronize() override { return {}; }
  Status fault() const override { return {}; }

 private:
  struct Block {
    MemoryKind kind;
    uint64_t bytes;
  };

  Status check_stream(Stream stream) const {
    return stream.id == 0 ? Status() : streams_.find(stream).status();
  }

  const uint64_t capacity_;

  mutable std::mutex mutex_;  // guards what follows
  uint64_t held_bytes_ = 0;   // device memory
  std::map<const void*, Block> blocks_;

  HandleTable<Stream, int32_t> streams_{"stream"};         // their priorities
  HandleTable<Event, Clock::time_point> events_{"event"};  // when recorded
};

}  // namespace

Result<std::shared_ptr<Backend>> open_host_backend(uint64_t capacity, uint32_t thread_count) {
  if (thread_count > ThreadPool::kThreadCountMax)
    return invalid_argument("host_thread_count: %u, at most %u", thread_count,
                            ThreadPool::kThreadCountMax);
  if (capacity == 0) capacity = host_memory_bytes();
  if (thread_count == 0) thread_count = available_thread_count();
  return std::shared_ptr<Backend>(std::make_shared<HostBackend>(capacity, thread_count));
}

}  // namespace wcuda
