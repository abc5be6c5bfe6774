// Section 14 of the header: raw addresses, which are looked up before each use.
#include "api/base/raw.h"

#include <cinttypes>
#include <map>
#include <mutex>

#include "api/base/guard.h"
#include "core/backend/open.h"

namespace wcuda::api {
namespace {

struct Block {
  vram::Buffer buffer;
  int32_t backend;
};

struct RawTable {
  std::mutex mutex;  // guards the members below
  RawOpener opener;
  std::map<std::pair<int32_t, int32_t>, std::shared_ptr<vram::Memory>> devices;
  std::map<uintptr_t, std::shared_ptr<Block>> blocks;  // by first address
};

// Never destroyed: addresses may be used while static objects are destroyed.
RawTable& raw_table() {
  static RawTable* const instance = new RawTable;
  return *instance;
}

thread_local int32_t cuda_ordinal_of_thread = 0;

Status check_backend(int32_t backend) {
  if (backend == WCUDA_BACKEND_CUDA || backend == WCUDA_BACKEND_HOST) return {};
  return invalid_argument("backend: %d is not CUDA or HOST", backend);
}

Result<std::shared_ptr<vram::Memory>> open_device(int32_t backend, int32_t ordinal) {
  OpenOptions options;
  options.backend = backend;
  options.ordinal = ordinal;
  WCUDA_ASSIGN(Opened opened, open_backend(options));
  return vram::Memory::create(std::move(opened.backend), 0);
}

// Returns the memory of the thread's device.
Result<std::shared_ptr<vram::Memory>> current_memory(int32_t backend) {
  WCUDA_TRY(check_backend(backend));
  const int32_t ordinal = backend == WCUDA_BACKEND_CUDA ? cuda_ordinal_of_thread : 0;
  RawTable& t = raw_table();
  const std::lock_guard<std::mutex> lock(t.mutex);
  std::shared_ptr<vram::Memory>& device = t.devices[{backend, ordinal}];
  if (!device) {
    WCUDA_ASSIGN(device, t.opener ? t.opener(backend, ordinal) : open_device(backend, ordinal));
  }
  return std::shared_ptr<vram::Memory>(device);
}

struct Range {
  std::shared_ptr<Block> block;  // alive while the range is used
  vram::View view;
};

// Finds the block that contains an address, and returns `bytes` bytes from there on.
Result<Range> find(const char* argument, const void* address, uint64_t bytes) {
  const auto wanted = reinterpret_cast<uintptr_t>(address);
  RawTable& t = raw_table();
  const std::lock_guard<std::mutex> lock(t.mutex);
  auto found = t.blocks.upper_bound(wanted);
  if (found != t.blocks.begin() &&
      wanted - std::prev(found)->first < std::prev(found)->second->buffer.bytes()) {
    --found;
    auto view = found->second->buffer.view(wanted - found->first, bytes);
    if (view.ok()) return Range{found->second, *view};
    return Status::error(view.status().code(), "%s: %s", argument, view.status().message());
  }
  return invalid_argument("%s: the address lies in no live block", argument);
}

Status free_block(void* address) {
  std::shared_ptr<Block> block;  // freed after the lock
  RawTable& t = raw_table();
  const std::lock_guard<std::mutex> lock(t.mutex);
  const auto found = t.blocks.find(reinterpret_cast<uintptr_t>(address));
  if (found == t.blocks.end()) return invalid_argument("address: no live block begins there");
  block = std::move(found->second);
  t.blocks.erase(found);
  return {};
}

Status reset(int32_t backend) {
  WCUDA_TRY(check_backend(backend));
  RawTable& t = raw_table();
  const std::lock_guard<std::mutex> lock(t.mutex);
  for (auto block = t.blocks.begin(); block != t.blocks.end();)
    block = block->second->backend == backend ? t.blocks.erase(block) : std::next(block);
  for (auto device = t.devices.begin(); device != t.devices.end();)
    device = device->first.first == backend ? t.devices.erase(device) : std::next(device);
  return {};
}

}  // namespace

void set_raw_opener(RawOpener opener) {
  RawTable& t = raw_table();
  const std::lock_guard<std::mutex> lock(t.mutex);
  t.opener = std::move(opener);
}

}  // namespace wcuda::api

using namespace wcuda;
using namespace wcuda::api;

wcuda_status wcuda_raw_device_set(int32_t backend, int32_t ordinal, wcuda_error* error) {
  return guarded(error, [&]() -> Status {
    WCUDA_TRY(check_backend(backend));
    WCUDA_ASSIGN(const int32_t count, device_count(backend));
    if (ordinal < 0 || ordinal >= count)
      return invalid_argument("ordinal: %d of %d devices", ordinal, count);
    if (backend == WCUDA_BACKEND_CUDA) cuda_ordinal_of_thread = ordinal;
    return {};
  });
}

wcuda_status wcuda_raw_allocate(int32_t backend, uint64_t bytes, void** address,
                                wcuda_error* error) {
  return guarded(error, [&]() -> Status {
    WCUDA_TRY(check_not_null(address, "address"));
    WCUDA_ASSIGN(const auto memory, current_memory(backend));
    auto block = std::make_shared<Block>();
    block->backend = backend;
    WCUDA_ASSIGN(block->buffer, memory->allocate(bytes, WCUDA_PURPOSE_USER, "raw"));
    void* const first = block->buffer.data();
    RawTable& t = raw_table();
    const std::lock_guard<std::mutex> lock(t.mutex);
    t.blocks.emplace(reinterpret_cast<uintptr_t>(first), std::move(block));
    *address = first;
    return {};
  });
}

wcuda_status wcuda_raw_free(void* address, wcuda_error* error) {
  return guarded(error, [&]() -> Status { return address ? free_block(address) : Status(); });
}

wcuda_status wcuda_raw_copy_to_device(void* target, const void* source, uint64_t bytes,
                                      wcuda_error* error) {
  return guarded(error, [&]() -> Status {
    if (bytes == 0) return {};
    WCUDA_TRY(check_not_null(source, "source"));
    WCUDA_ASSIGN(const Range range, find("target", target, bytes));
    return range.block->buffer.memory().copy_to_device(range.view.data, source, bytes);
  });
}

wcuda_status wcuda_raw_copy_to_host(void* target, const void* source, uint64_t bytes,
                                    wcuda_error* error) {
  return guarded(error, [&]() -> Status {
    if (bytes == 0) return {};
    WCUDA_TRY(check_not_null(target, "target"));
    WCUDA_ASSIGN(const Range range, find("source", source, bytes));
    return range.block->buffer.memory().backend().copy_to_host(target, range.view.data, bytes);
  });
}

wcuda_status wcuda_raw_memory_get(int32_t backend, uint64_t* free_bytes, uint64_t* total_bytes,
                                  wcuda_error* error) {
  return guarded(error, [&]() -> Status {
    WCUDA_TRY(check_not_null(free_bytes, "free_bytes"));
    WCUDA_TRY(check_not_null(total_bytes, "total_bytes"));
    WCUDA_ASSIGN(const auto memory, current_memory(backend));
    WCUDA_ASSIGN(const MemoryInfo info, memory->backend().memory_info());
    *free_bytes = info.free_bytes;
    *total_bytes = info.total_bytes;
    return {};
  });
}

wcuda_status wcuda_raw_reset(int32_t backend, wcuda_error* error) {
  return guarded(error, [&] { return reset(backend); });
}
