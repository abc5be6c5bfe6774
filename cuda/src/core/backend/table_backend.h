// A caller's table as a Backend. What the device gives is known to it by a handle and an offset;
// here it has addresses too, of reserved pages that nobody can read, so that what works on ranges
// of addresses works on it.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "core/backend/backend.h"
#include "core/backend/backend_types.h"
#include "core/backend/handle_table.h"
#include "worker_cuda/backend.h"

namespace wcuda {

// Dimensions as the C interface has them; on stream 0.
wcuda_launch launch_of(const LaunchDims& dims);

class TableBackend final : public Backend {
 public:
  static Result<std::shared_ptr<Backend>> open(
      std::shared_ptr<const BackendRegistration> registration, int32_t ordinal);
  // Both with an instance made for the question.
  static Result<int32_t> device_count(const BackendRegistration& registration);
  static Result<wcuda_device_caps> device_caps(const BackendRegistration& registration,
                                               int32_t ordinal);
  ~TableBackend() override;

  // Kernels that the table compiles itself, in Backend::run of a registered backend, which passes
  // one of these. A buffer among the arguments is its window on the device.
  static TableBackend& of(Backend& device) { return static_cast<TableBackend&>(device); }
  Result<Kernel> source_compile(const std::string& source, const std::string& entry);
  Status source_launch(Kernel kernel, const LaunchDims& dims,
                       const std::vector<wcuda_host_argument>& arguments, Stream stream);
  Status source_destroy(Kernel kernel);

  Result<MemoryInfo> memory_info() override;
  Result<void*> allocate(MemoryKind kind, uint64_t bytes) override;
  Status free(MemoryKind kind, void* address, uint64_t bytes) override;
  // Waits for the stream: the table has no order of frees.
  Status free_after(Stream stream) override;
  Result<MemoryPlace> memory_place(const void* address) override;
  Status copy(const Copy& what) override;
  Status fill(void* target, uint64_t bytes, uint64_t pattern, uint32_t pattern_bytes,
              Stream stream) override;
  Status run(const Call& call, const std::function<Status(Backend&)>& work) override;
  Result<Stream> stream_create(int32_t priority) override;
  Status stream_destroy(Stream stream) override;
  void* native_stream(Stream) override { return nullptr; }
  Result<Event> event_create() override;
  Status event_destroy(Event event) override;
  Status event_record(Event event, Stream stream) override;
  Status stream_wait(Stream stream, Event event) override;
  Status event_synchronize(Event event) override;
  Result<bool> event_done(Event event) override;
  Result<double> event_elapsed_ms(Event start, Event end) override;
  Status synchronize(Stream stream) override;
  Status synchronize() override;
  Status fault() const override;

 private:
  struct Block {
    MemoryKind kind;
    uint64_t bytes;
    wcuda_device_memory memory;  // of device memory
  };
  struct Range {
    wcuda_device_memory memory;
    uint64_t offset;
  };
  TableBackend(std::shared_ptr<const BackendRegistration> registration, void* self,
               const wcuda_device_caps& caps)
      : Backend({caps, 10 * caps.compute_capability_major + caps.compute_capability_minor, 0}),
        registration_(std::move(registration)),
        self_(self) {}
  const wcuda_backend_vtable& table() const { return registration_->table; }
  template <class Slot, class... Arguments>
  Status ask(const char* name, Slot slot, Arguments... arguments) const;
  template <class Slot>
  Status need(Slot* function, const char* slot) const;
  Result<void*> allocate_device(uint64_t bytes);
  Result<void*> allocate_pinned(uint64_t bytes);
  Result<Range> locate(const void* address, uint64_t bytes) const;
  Result<wcuda_stream> find_stream(Stream stream) const;

  const std::shared_ptr<const BackendRegistration> registration_;
  void* const self_;
  mutable std::atomic<bool> is_lost_{false};

  mutable std::mutex mutex_;  // guards what follows; never held while the table is asked
  mutable Status fault_;      // the first
  uint64_t held_bytes_ = 0;   // device memory
  std::map<uintptr_t, Block> blocks_;

  HandleTable<Stream, wcuda_stream> streams_{"stream"};
  HandleTable<Event, wcuda_event> events_{"event"};
  HandleTable<Kernel, wcuda_backend_kernel> kernels_{"kernel"};
};

}  // namespace wcuda
