// ThreadPool: a fixed set of threads that run the chunks of one loop at a time.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "core/base/status.h"

namespace wcuda {

// Chunks are claimed one by one, so a thread that is descheduled delays one chunk, not its share of
// the loop. A thread without work spins for at most kSpinMicroseconds, then sleeps.
class ThreadPool {
 public:
  static constexpr uint32_t kThreadCountMax = 1024;
  static constexpr uint32_t kSpinMicroseconds = 20;

  // `thread_count` includes the thread that calls parallel_for; 0 means available_thread_count().
  static Result<std::unique_ptr<ThreadPool>> create(uint32_t thread_count);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  uint32_t thread_count() const { return static_cast<uint32_t>(threads_.size()) + 1; }

  // Calls function(chunk, thread) once for each chunk in [0, chunk_count), in any order, on any
  // thread; `thread` is in [0, thread_count()) and no two calls at one time have the same. Returns
  // when all have returned; their writes are then visible. `function` must not throw nor call this
  // pool. Calls of parallel_for must not overlap.
  template <class Function>
  void parallel_for(uint32_t chunk_count, const Function& function) {
    run(
        chunk_count,
        [](const void* context, uint32_t chunk, uint32_t thread) {
          (*static_cast<const Function*>(context))(chunk, thread);
        },
        &function);
  }

 private:
  using Call = void (*)(const void* context, uint32_t chunk, uint32_t thread);

  ThreadPool() = default;
  void run(uint32_t chunk_count, Call call, const void* context);
  void work(uint32_t thread);
  void take_chunks(uint32_t epoch, uint32_t thread);
  void stop();

  std::vector<std::thread> threads_;
  // The current loop. Written before `claim_`; valid for a thread that claims a chunk of its
  // epoch.
  std::atomic<Call> call_{nullptr};
  std::atomic<const void*> context_{nullptr};
  std::atomic<uint32_t> chunk_count_{0};
  alignas(64) std::atomic<uint64_t> claim_{0};  // epoch in the upper half, next chunk in the lower
  alignas(64) std::atomic<uint32_t> done_count_{0};
  std::atomic<uint32_t> caller_sleeps_{0};
  alignas(64) std::atomic<uint32_t> epoch_{0};  // number of the loop; workers sleep on it
  std::atomic<uint32_t> sleeper_count_{0};
  std::atomic<bool> stopping_{false};
};

// Processors this process may use: its affinity, and the CPU quota of its cgroup (v1 or v2) rounded
// up to whole processors. At least 1.
uint32_t available_thread_count();

// The quota part alone, 0 where there is none. `self_cgroup` is the text of /proc/self/cgroup,
// `mount` the folder where the cgroup file systems are mounted.
uint32_t cgroup_thread_limit(const std::string& self_cgroup, const std::string& mount);

}  // namespace wcuda
