// The host as a device: its memory, its processors. Everything is done when a call returns.
#pragma once

#include <map>
#include <mutex>

#include "core/backend/backend.h"
#include "core/backend/handle_table.h"
#include "core/base/clock.h"

namespace wcuda {

class HostBackend final : public Backend {
 public:
  // capacity 0: the memory of the machine; thread_count 0: the processors this process may use.
  static Result<std::shared_ptr<Backend>> open(uint64_t capacity, uint32_t thread_count);
  ~HostBackend() override;

  Result<MemoryInfo> memory_info() override;
  Result<void*> allocate(MemoryKind kind, uint64_t bytes) override;
  Status free(MemoryKind kind, void* address, uint64_t bytes) override;
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
  Status synchronize() override { return {}; }
  Status fault() const override { return {}; }

 private:
  struct Block {
    MemoryKind kind;
    uint64_t bytes;
  };

  HostBackend(uint64_t capacity, uint32_t thread_count);
  Status check_stream(Stream stream) const;

  const uint64_t capacity_;

  mutable std::mutex mutex_;  // guards what follows
  uint64_t held_bytes_ = 0;   // device memory
  std::map<const void*, Block> blocks_;

  HandleTable<Stream, int32_t> streams_{"stream"};         // their priorities
  HandleTable<Event, Clock::time_point> events_{"event"};  // when recorded
};

}  // namespace wcuda
