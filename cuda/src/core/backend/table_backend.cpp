// Calls of a caller's table, with its answers as statuses.
#include "core/backend/table_backend.h"

#include <sys/mman.h>

#include <algorithm>
#include <cinttypes>
#include <cstdlib>
#include <cstring>

#include "core/base/checked.h"
#include "core/base/text.h"

namespace wcuda {
namespace {

constexpr uint64_t kPageBytes = 4096;

// What a function of a table answered; `error` is what it filled.
Status answer_of(const BackendRegistration& registration, const char* slot, wcuda_status status,
                 wcuda_error& error) {
  if (status == WCUDA_OK) return {};
  error.message[sizeof(error.message) - 1] = 0;
  if (error.message[0] == 0)
    return Status::error(status, "backend '%s': %s returned %d", registration.name.c_str(), slot,
                         status);
  return Status::native_error(status, error.native_code, "backend '%s': %s",
                              registration.name.c_str(), error.message);
}

// An instance, ended with the object unless it was taken.
class Instance {
 public:
  static Result<Instance> open(const BackendRegistration& registration, int32_t ordinal) {
    void* self = nullptr;
    wcuda_error error{};
    const wcuda_status status = registration.open(registration.user, ordinal, &self, &error);
    WCUDA_TRY(answer_of(registration, "open", status, error));
    return Instance(registration, self);
  }
  Instance(Instance&& other) noexcept
      : registration_(std::exchange(other.registration_, nullptr)), self_(other.self_) {}
  Instance& operator=(Instance&&) = delete;
  ~Instance() {
    if (registration_) registration_->table.deinit(self_);
  }
  void* self() const { return self_; }
  void* take() {
    registration_ = nullptr;
    return self_;
  }

 private:
  Instance(const BackendRegistration& registration, void* self)
      : registration_(&registration), self_(self) {}
  const BackendRegistration* registration_;
  void* self_;
};

Result<wcuda_device_caps> caps_of(const BackendRegistration& registration, void* self,
                                  int32_t ordinal) {
  wcuda_device_caps caps = WCUDA_DEVICE_CAPS_INIT;
  wcuda_error error{};
  const wcuda_status status =
      registration.table.get_device_caps(self, static_cast<uint32_t>(ordinal), &caps, &error);
  WCUDA_TRY(answer_of(registration, "get_device_caps", status, error));
  caps.struct_size = sizeof(caps);
  caps.backend = registration.type;
  caps.ordinal = ordinal;
  caps.name[sizeof(caps.name) - 1] = 0;
  caps.name_bytes = static_cast<uint32_t>(std::strlen(caps.name));
  caps.pci_bus_id[sizeof(caps.pci_bus_id) - 1] = 0;
  caps.architecture_name[sizeof(caps.architecture_name) - 1] = 0;
  caps.architecture_name_bytes = static_cast<uint32_t>(std::strlen(caps.architecture_name));
  return caps;
}

// Addresses that nobody can read, one page apart at least.
void* reserve(uint64_t bytes) {
  uint64_t rounded;
  if (!checked_align_up(bytes, kPageBytes, &rounded)) return nullptr;
  void* const pages =
      mmap(nullptr, rounded, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return pages == MAP_FAILED ? nullptr : pages;
}

void unreserve(void* address, uint64_t bytes) { munmap(address, align_up(bytes, kPageBytes)); }

}  // namespace

wcuda_launch launch_of(const LaunchDims& dims) {
  wcuda_launch launch = WCUDA_LAUNCH_INIT;
  launch.flags = dims.is_cooperative ? WCUDA_LAUNCH_COOPERATIVE : 0;
  std::copy_n(dims.grid, 3, launch.grid);
  std::copy_n(dims.block, 3, launch.block);
  std::copy_n(dims.cluster, 3, launch.cluster);
  launch.shared_bytes = dims.shared_bytes;
  return launch;
}

Result<std::shared_ptr<Backend>> TableBackend::open(
    std::shared_ptr<const BackendRegistration> registration, int32_t ordinal) {
  WCUDA_ASSIGN(Instance instance, Instance::open(*registration, ordinal));
  WCUDA_ASSIGN(const wcuda_device_caps caps, caps_of(*registration, instance.self(), ordinal));
  std::shared_ptr<TableBackend> backend(
      new TableBackend(std::move(registration), instance.self(), caps));
  (void)instance.take();
  return std::shared_ptr<Backend>(std::move(backend));
}

Result<int32_t> TableBackend::device_count(const BackendRegistration& registration) {
  WCUDA_ASSIGN(const Instance instance, Instance::open(registration, 0));
  const uint32_t count = registration.table.get_device_count(instance.self());
  if (count == 0)
    return Status::error(WCUDA_NO_DEVICE, "backend '%s': has no device", registration.name.c_str());
  return static_cast<int32_t>(std::min<uint32_t>(count, INT32_MAX));
}

Result<wcuda_device_caps> TableBackend::device_caps(const BackendRegistration& registration,
                                                    int32_t ordinal) {
  WCUDA_ASSIGN(const Instance instance, Instance::open(registration, ordinal));
  return caps_of(registration, instance.self(), ordinal);
}

TableBackend::~TableBackend() {
  table().deinit(self_);
  for (const auto& [address, block] : blocks_) {
    void* const pages = reinterpret_cast<void*>(address);
    if (block.kind == MemoryKind::kDevice)
      unreserve(pages, block.bytes);
    else
      std::free(pages);
  }
}

// Calls a slot; a loss of the device is latched.
template <class Slot, class... Arguments>
Status TableBackend::ask(const char* name, Slot slot, Arguments... arguments) const {
  wcuda_error error{};
  const wcuda_status status = slot(self_, arguments..., &error);
  Status answer = answer_of(*registration_, name, status, error);
  if (status == WCUDA_DEVICE_LOST) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!is_lost_) fault_ = answer;
    is_lost_ = true;
  }
  return answer;
}

// Every call that uses a slot begins so: the device works, and the table has the slot.
template <class Slot>
Status TableBackend::need(Slot* function, const char* slot) const {
  WCUDA_TRY(fault());
  if (function != nullptr) return {};
  return unsupported("backend '%s': has no %s", registration_->name.c_str(), slot);
}

Status TableBackend::fault() const {
  if (!is_lost_ && table().fault) (void)ask("fault", table().fault);
  if (!is_lost_) return {};
  const std::lock_guard<std::mutex> lock(mutex_);
  return fault_;
}

Result<MemoryInfo> TableBackend::memory_info() {
  WCUDA_TRY(fault());
  uint64_t held;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    held = held_bytes_;
  }
  uint64_t total = caps().total_memory, free = total > held ? total - held : 0;
  if (table().memory_info) WCUDA_TRY(ask("memory_info", table().memory_info, &free, &total));
  return MemoryInfo{free, total, held, held};
}

Result<void*> TableBackend::allocate(MemoryKind kind, uint64_t bytes) {
  WCUDA_CHECK(bytes > 0);
  WCUDA_TRY(fault());
  return kind == MemoryKind::kDevice ? allocate_device(bytes) : allocate_pinned(bytes);
}

Result<void*> TableBackend::allocate_device(uint64_t bytes) {
  Block block{MemoryKind::kDevice, bytes, {0, 0}};
  WCUDA_TRY(ask("allocate", table().allocate, bytes, WCUDA_MEMORY_DEVICE, &block.memory));
  void* const address = block.memory.bytes >= bytes ? reserve(bytes) : nullptr;
  if (!address) {
    (void)ask("free", table().free, block.memory);
    if (block.memory.bytes < bytes)
      return Status::error(WCUDA_DEVICE_ERROR,
                           "backend '%s': allocate returned %" PRIu64 " of %" PRIu64 " bytes",
                           registration_->name.c_str(), block.memory.bytes, bytes);
    return Status::error(WCUDA_OUT_OF_HOST_MEMORY, "no addresses for %" PRIu64 " bytes", bytes);
  }
  const std::lock_guard<std::mutex> lock(mutex_);
  blocks_.emplace(reinterpret_cast<uintptr_t>(address), block);
  held_bytes_ += bytes;
  return address;
}

Result<void*> TableBackend::allocate_pinned(uint64_t bytes) {
  uint64_t rounded = 0;
  void* address = nullptr;
  if (checked_align_up(bytes, kPageBytes, &rounded) && rounded < (uint64_t{1} << 60))
    address = std::aligned_alloc(kPageBytes, rounded);
  if (!address)
    return Status::error(WCUDA_OUT_OF_HOST_MEMORY, "the host refused %" PRIu64 " bytes", bytes);
  std::memset(address, 0, bytes);
  const std::lock_guard<std::mutex> lock(mutex_);
  blocks_.emplace(reinterpret_cast<uintptr_t>(address), Block{MemoryKind::kPinned, bytes, {0, 0}});
  return address;
}

Status TableBackend::free(MemoryKind kind, void* address, uint64_t bytes) {
  Block block;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = blocks_.find(reinterpret_cast<uintptr_t>(address));
    WCUDA_CHECK(found != blocks_.end() && found->second.kind == kind &&
                found->second.bytes == bytes);
    block = found->second;
    blocks_.erase(found);
    if (kind == MemoryKind::kDevice) held_bytes_ -= bytes;
  }
  if (kind == MemoryKind::kPinned) {
    std::free(address);
    return {};
  }
  unreserve(address, bytes);
  return ask("free", table().free, block.memory);
}

Status TableBackend::free_after(Stream stream) { return synchronize(stream); }

Result<MemoryPlace> TableBackend::memory_place(const void* address) {
  const auto wanted = reinterpret_cast<uintptr_t>(address);
  const std::lock_guard<std::mutex> lock(mutex_);
  auto found = blocks_.upper_bound(wanted);
  if (found == blocks_.begin()) return MemoryPlace::kHost;
  --found;
  if (wanted - found->first >= found->second.bytes) return MemoryPlace::kHost;
  return found->second.kind == MemoryKind::kDevice ? MemoryPlace::kDevice : MemoryPlace::kPinned;
}

Result<TableBackend::Range> TableBackend::locate(const void* address, uint64_t bytes) const {
  const auto wanted = reinterpret_cast<uintptr_t>(address);
  const std::lock_guard<std::mutex> lock(mutex_);
  auto found = blocks_.upper_bound(wanted);
  if (found != blocks_.begin()) {
    --found;
    const uint64_t offset = wanted - found->first;
    if (found->second.kind == MemoryKind::kDevice && offset <= found->second.bytes &&
        bytes <= found->second.bytes - offset)
      return Range{found->second.memory, offset};
  }
  // A borrowed buffer: its address means nothing to the table.
  return invalid_argument("backend '%s': has not allocated these %" PRIu64 " bytes",
                          registration_->name.c_str(), bytes);
}

Status TableBackend::copy(const Copy& what) {
  const wcuda_backend_vtable& slots = table();
  const bool to_device = what.direction == Copy::Direction::kToDevice;
  const bool to_host = what.direction == Copy::Direction::kToHost;
  if (to_device && what.is_queued)
    WCUDA_TRY(need(slots.copy_to_device_async, "copy_to_device_async"));
  else if (to_host && what.is_queued)
    WCUDA_TRY(need(slots.copy_from_device_async, "copy_from_device_async"));
  else if (what.is_queued)
    WCUDA_TRY(need(slots.copy_on_device, "copy_on_device"));
  else
    WCUDA_TRY(fault());
  WCUDA_ASSIGN(const wcuda_stream on, find_stream(what.stream));
  const uint64_t bytes = what.bytes;
  if (bytes == 0) return {};
  Range to{}, from{};
  if (!to_host) {
    WCUDA_ASSIGN(to, locate(what.target, bytes));
  }
  if (!to_device) {
    WCUDA_ASSIGN(from, locate(what.source, bytes));
  }
  if (to_device && what.is_queued)
    return ask("copy_to_device_async", slots.copy_to_device_async, to.memory, to.offset,
               what.source, bytes, on);
  if (to_device)
    return ask("copy_to_device", slots.copy_to_device, to.memory, to.offset, what.source, bytes);
  if (to_host && what.is_queued)
    return ask("copy_from_device_async", slots.copy_from_device_async, what.target, from.memory,
               from.offset, bytes, on);
  if (to_host)
    return ask("copy_from_device", slots.copy_from_device, what.target, from.memory, from.offset,
               bytes);
  return ask("copy_on_device", slots.copy_on_device, to.memory, to.offset, from.memory, from.offset,
             bytes, on);
}

Status TableBackend::fill(void* target, uint64_t bytes, uint64_t pattern, uint32_t pattern_bytes,
                          Stream stream) {
  WCUDA_TRY(need(table().fill, "fill"));
  WCUDA_ASSIGN(const wcuda_stream on, find_stream(stream));
  if (bytes == 0) return {};
  WCUDA_ASSIGN(const Range to, locate(target, bytes));
  return ask("fill", table().fill, to.memory, to.offset, bytes, pattern, pattern_bytes, on);
}

Status TableBackend::run(const Call& call, const std::function<Status(Backend&)>& work) {
  if (call.kind != CallKind::kEnd) WCUDA_TRY(fault());
  WCUDA_TRY(find_stream(call.stream).status());
  return work(*this);
}

Result<Kernel> TableBackend::source_compile(const std::string& source, const std::string& entry) {
  WCUDA_TRY(need(table().compile_kernel, "compile_kernel"));
  wcuda_backend_kernel made{0};
  const wcuda_string text{source.data(), source.size()}, name{entry.data(), entry.size()};
  WCUDA_TRY(ask("compile_kernel", table().compile_kernel, text, name, &made));
  return kernels_.add(made);
}

Status TableBackend::source_launch(Kernel kernel, const LaunchDims& dims,
                                   const std::vector<wcuda_host_argument>& arguments,
                                   Stream stream) {
  WCUDA_TRY(need(table().launch_kernel, "launch_kernel"));
  WCUDA_ASSIGN(const wcuda_backend_kernel own, kernels_.find(kernel));
  wcuda_launch config = launch_of(dims);
  WCUDA_ASSIGN(config.stream, find_stream(stream));
  std::vector<wcuda_argument> given;
  for (const wcuda_host_argument& from : arguments) {
    wcuda_argument to = WCUDA_ARGUMENT_INIT;
    to.kind = from.kind;
    to.bytes = from.bytes;
    if (from.kind == WCUDA_ARG_BUFFER) {
      WCUDA_ASSIGN(const Range range, locate(from.data, from.bytes));
      to.buffer.id = range.memory.id;
      to.offset = range.offset;
    } else {
      to.data = from.data;
    }
    given.push_back(to);
  }
  return ask("launch_kernel", table().launch_kernel, own, &config, given.data(), given.size());
}

Status TableBackend::source_destroy(Kernel kernel) {
  WCUDA_ASSIGN(const wcuda_backend_kernel own, kernels_.take(kernel));
  if (!table().destroy_kernel) return {};
  return ask("destroy_kernel", table().destroy_kernel, own);
}

Result<wcuda_stream> TableBackend::find_stream(Stream stream) const {
  if (stream.id == 0) return wcuda_stream{0};
  return streams_.find(stream);
}

Result<Stream> TableBackend::stream_create(int32_t priority) {
  WCUDA_TRY(need(table().stream_create, "stream_create"));
  wcuda_stream made{0};
  WCUDA_TRY(ask("stream_create", table().stream_create, priority, &made));
  return streams_.add(made);
}

Status TableBackend::stream_destroy(Stream stream) {
  WCUDA_ASSIGN(const wcuda_stream own, streams_.take(stream));
  if (!table().stream_destroy) return {};
  return ask("stream_destroy", table().stream_destroy, own);
}

Result<Event> TableBackend::event_create() {
  WCUDA_TRY(need(table().event_create, "event_create"));
  wcuda_event made{0};
  WCUDA_TRY(ask("event_create", table().event_create, &made));
  return events_.add(made);
}

Status TableBackend::event_destroy(Event event) {
  WCUDA_ASSIGN(const wcuda_event own, events_.take(event));
  if (!table().event_destroy) return {};
  return ask("event_destroy", table().event_destroy, own);
}

Status TableBackend::event_record(Event event, Stream stream) {
  WCUDA_TRY(need(table().event_record, "event_record"));
  WCUDA_ASSIGN(const wcuda_event own, events_.find(event));
  WCUDA_ASSIGN(const wcuda_stream on, find_stream(stream));
  return ask("event_record", table().event_record, own, on);
}

Status TableBackend::stream_wait(Stream stream, Event event) {
  WCUDA_TRY(need(table().event_order, "event_order"));
  WCUDA_ASSIGN(const wcuda_event own, events_.find(event));
  WCUDA_ASSIGN(const wcuda_stream on, find_stream(stream));
  return ask("event_order", table().event_order, own, on);
}

Status TableBackend::event_synchronize(Event event) {
  WCUDA_TRY(need(table().event_synchronize, "event_synchronize"));
  WCUDA_ASSIGN(const wcuda_event own, events_.find(event));
  return ask("event_synchronize", table().event_synchronize, own);
}

Result<bool> TableBackend::event_done(Event event) {
  WCUDA_TRY(need(table().event_done, "event_done"));
  WCUDA_ASSIGN(const wcuda_event own, events_.find(event));
  int32_t done = 0;
  WCUDA_TRY(ask("event_done", table().event_done, own, &done));
  return done != 0;
}

Result<double> TableBackend::event_elapsed_ms(Event start, Event end) {
  WCUDA_TRY(need(table().event_elapsed, "event_elapsed"));
  WCUDA_ASSIGN(const wcuda_event from, events_.find(start));
  WCUDA_ASSIGN(const wcuda_event to, events_.find(end));
  double milliseconds = 0;
  WCUDA_TRY(ask("event_elapsed", table().event_elapsed, from, to, &milliseconds));
  return milliseconds;
}

Status TableBackend::synchronize(Stream stream) {
  WCUDA_TRY(fault());
  WCUDA_ASSIGN(const wcuda_stream on, find_stream(stream));
  if (!table().stream_synchronize || stream.id == 0) return synchronize();
  return ask("stream_synchronize", table().stream_synchronize, on);
}

Status TableBackend::synchronize() {
  WCUDA_TRY(fault());
  return ask("synchronize", table().synchronize);
}

}  // namespace wcuda
