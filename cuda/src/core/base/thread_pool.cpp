// ThreadPool: claiming chunks, waiting, and the number of processors to use.
#include "core/base/thread_pool.h"

#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <chrono>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <system_error>

#include "core/base/callback.h"

namespace wcuda {
namespace {

void futex_wait(std::atomic<uint32_t>& word, uint32_t expected) {
  syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, expected, nullptr, nullptr, 0);
}

void futex_wake(std::atomic<uint32_t>& word, int count) {
  syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, count, nullptr, nullptr, 0);
}

void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

// Spins until `condition` holds or the time is up; returns whether it holds.
template <class Condition>
bool spin_until(const Condition& condition) {
  const auto end =
      std::chrono::steady_clock::now() + std::chrono::microseconds(ThreadPool::kSpinMicroseconds);
  do {
    for (int i = 0; i < 32; ++i) {
      if (condition()) return true;
      pause();
    }
  } while (std::chrono::steady_clock::now() < end);
  return condition();
}

}  // namespace

Result<std::unique_ptr<ThreadPool>> ThreadPool::create(uint32_t thread_count) {
  if (thread_count == 0) thread_count = available_thread_count();
  if (thread_count > kThreadCountMax)
    return invalid_argument("%u threads requested, at most %u", thread_count, kThreadCountMax);
  std::unique_ptr<ThreadPool> pool(new ThreadPool);
  try {
    pool->threads_.reserve(thread_count - 1);
    for (uint32_t i = 1; i < thread_count; ++i)
      pool->threads_.emplace_back([raw = pool.get(), i] { raw->work(i); });
  } catch (const std::system_error& error) {
    return Status::native_error(WCUDA_OUT_OF_HOST_MEMORY, error.code().value(),
                                "thread %zu of %u could not be started", pool->threads_.size() + 2,
                                thread_count);
  }
  return pool;
}

ThreadPool::~ThreadPool() { stop(); }

void ThreadPool::stop() {
  stopping_.store(true);
  epoch_.fetch_add(1);
  futex_wake(epoch_, INT_MAX);
  for (std::thread& thread : threads_) thread.join();
}

void ThreadPool::run(uint32_t chunk_count, Call call, const void* context) {
  if (chunk_count <= 1 || threads_.empty()) {
    for (uint32_t chunk = 0; chunk < chunk_count; ++chunk) call(context, chunk, 0);
    return;
  }
  const uint32_t epoch = epoch_.load(std::memory_order_relaxed) + 1;
  call_.store(call, std::memory_order_relaxed);
  context_.store(context, std::memory_order_relaxed);
  chunk_count_.store(chunk_count, std::memory_order_relaxed);
  done_count_.store(0, std::memory_order_relaxed);
  claim_.store(uint64_t{epoch} << 32 | chunk_count, std::memory_order_release);
  epoch_.store(epoch);
  if (sleeper_count_.load() != 0) futex_wake(epoch_, static_cast<int>(chunk_count) - 1);

  take_chunks(epoch, 0);

  const auto is_done = [&] { return done_count_.load(std::memory_order_acquire) == chunk_count; };
  if (spin_until(is_done)) return;
  caller_sleeps_.store(1);
  for (;;) {
    const uint32_t done_count = done_count_.load();
    if (done_count == chunk_count) break;
    futex_wait(done_count_, done_count);
  }
  caller_sleeps_.store(0);
}

// Claims and runs chunks of loop `epoch` until none is left or that loop is over.
void ThreadPool::take_chunks(uint32_t epoch, uint32_t thread) {
  uint64_t claim = claim_.load(std::memory_order_acquire);
  for (;;) {
    const auto remaining = static_cast<uint32_t>(claim);
    if (static_cast<uint32_t>(claim >> 32) != epoch || remaining == 0) return;
    // run() writes these only when no chunk remains, so if the exchange succeeds they are this
    // loop's.
    const Call call = call_.load(std::memory_order_relaxed);
    const void* context = context_.load(std::memory_order_relaxed);
    const uint32_t chunk_count = chunk_count_.load(std::memory_order_relaxed);
    if (!claim_.compare_exchange_weak(claim, claim - 1, std::memory_order_acq_rel,
                                      std::memory_order_acquire))
      continue;
    call(context, chunk_count - remaining, thread);
    const uint32_t done_count = done_count_.fetch_add(1) + 1;
    if (done_count == chunk_count && caller_sleeps_.load() != 0) futex_wake(done_count_, 1);
    claim = claim_.load(std::memory_order_acquire);
  }
}

void ThreadPool::work(uint32_t thread) {
  uint32_t seen = 0;
  for (;;) {
    const auto has_news = [&] { return epoch_.load(std::memory_order_acquire) != seen; };
    if (!spin_until(has_news)) {
      sleeper_count_.fetch_add(1);
      while (epoch_.load() == seen) futex_wait(epoch_, seen);
      sleeper_count_.fetch_sub(1);
    }
    // In this order: a thread that sees the epoch of stop() also sees `stopping_`.
    seen = epoch_.load(std::memory_order_acquire);
    if (stopping_.load()) return;
    take_chunks(seen, thread);
    run_deferred();  // of callbacks that ran in the chunks
  }
}

namespace {

// The text of a small file; empty when it cannot be read.
std::string read_text(const std::string& path) {
  std::string text;
  std::FILE* file = std::fopen(path.c_str(), "re");
  if (file == nullptr) return text;
  char buffer[4096];
  const size_t length = std::fread(buffer, 1, sizeof(buffer), file);
  text.assign(buffer, length);
  std::fclose(file);
  return text;
}

uint32_t quota_to_threads(long long quota, long long period) {
  if (quota <= 0 || period <= 0) return 0;
  const long long threads = (quota - 1) / period + 1;
  return threads > ThreadPool::kThreadCountMax ? ThreadPool::kThreadCountMax
                                               : static_cast<uint32_t>(threads);
}

uint32_t read_quota_v2(const std::string& folder) {
  const std::string text = read_text(folder + "/cpu.max");
  long long quota = 0;
  long long period = 0;
  if (std::sscanf(text.c_str(), "%lld %lld", &quota, &period) != 2) return 0;  // "max 100000"
  return quota_to_threads(quota, period);
}

uint32_t read_quota_v1(const std::string& folder) {
  const std::string quota = read_text(folder + "/cpu.cfs_quota_us");  // -1: none
  const std::string period = read_text(folder + "/cpu.cfs_period_us");
  return quota_to_threads(std::atoll(quota.c_str()), std::atoll(period.c_str()));
}

// The smallest quota from `group` ("/a/b") up to the root of `hierarchy`; 0 where there is none.
// Inside a container the path may name folders that are not mounted; the root then is the
// container's.
template <class Read>
uint32_t smallest_quota(const std::string& hierarchy, std::string group, const Read& read) {
  uint32_t smallest = 0;
  for (;;) {
    const uint32_t threads = read(hierarchy + group);
    if (threads != 0 && (smallest == 0 || threads < smallest)) smallest = threads;
    const size_t slash = group.rfind('/');
    if (slash == std::string::npos) return smallest;
    group.resize(slash);
  }
}

bool has_cpu_controller(const std::string& controllers) {
  return ("," + controllers + ",").find(",cpu,") != std::string::npos;
}

}  // namespace

uint32_t cgroup_thread_limit(const std::string& self_cgroup, const std::string& mount) {
  uint32_t smallest = 0;
  size_t begin = 0;
  while (begin < self_cgroup.size()) {
    size_t end = self_cgroup.find('\n', begin);
    if (end == std::string::npos) end = self_cgroup.size();
    const std::string line = self_cgroup.substr(begin, end - begin);  // id:controllers:path
    begin = end + 1;
    const size_t first = line.find(':');
    const size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const std::string group = line.substr(second + 1);
    uint32_t threads = 0;
    if (controllers.empty())
      threads = smallest_quota(mount, group, read_quota_v2);
    else if (has_cpu_controller(controllers))
      threads = smallest_quota(mount + "/cpu", group, read_quota_v1);
    if (threads != 0 && (smallest == 0 || threads < smallest)) smallest = threads;
  }
  return smallest;
}

uint32_t available_thread_count() {
  uint32_t count = 0;
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof(set), &set) == 0) count = static_cast<uint32_t>(CPU_COUNT(&set));
  if (count == 0) count = std::thread::hardware_concurrency();
  if (count == 0) count = 1;
  if (count > ThreadPool::kThreadCountMax) count = ThreadPool::kThreadCountMax;
  const uint32_t quota = cgroup_thread_limit(read_text("/proc/self/cgroup"), "/sys/fs/cgroup");
  return quota != 0 && quota < count ? quota : count;
}

}  // namespace wcuda
