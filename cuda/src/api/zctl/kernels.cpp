// Runs of a registry's kernels until a deadline: one block of buffers, uploaded and downloaded at
// once.
#include "api/zctl/kernels.h"

#include <algorithm>
#include <atomic>
#include <mutex>

#ifdef __SSE2__
#include <emmintrin.h>
#endif

#include "api/base/stream.h"
#include "api/compute/registry.h"
#include "api/zctl/device.h"
#include "core/backend/owned.h"
#include "core/base/thread_pool.h"

namespace wcuda::api {
namespace {

using compute::Registry;
using compute::RegistryEntry;
using zctl::Kernel;
using zctl::KernelInfo;

KernelInfo info_of(const RegistryEntry& entry, uint32_t flags) {
  const jit::Descriptor& descriptor = entry.descriptor;
  return {descriptor.kernel_id, flags, descriptor.budget_ms, descriptor.sig_hash, descriptor.name};
}

Kernel kernel_of(Registry::Entry entry, uint32_t flags) {
  Kernel kernel;
  kernel.info = info_of(*entry, flags);
  kernel.signature = &entry->descriptor.signature;
  kernel.entry = std::move(entry);
  return kernel;
}

// The runs of a context's sessions that passed their budget and are still at work, by the event
// behind them.
struct LateRuns {
  std::mutex mutex;  // guards the member below
  std::vector<Event> events;
};

// One thread copies 10 GB/s on an H200's host, the bus 55 GB/s.
constexpr uint64_t kUploadBytesMin = uint64_t{4} << 20;    // while the block is still filled
constexpr uint64_t kDownloadBytes = uint64_t{4} << 20;     // of a large output at a time
constexpr uint64_t kThreadedBytesMin = uint64_t{1} << 20;  // a copy by several threads
constexpr uint64_t kPieceBytes = uint64_t{64} << 10;       // by one of them at a time
constexpr uint32_t kCopyThreadCountMax = 16;

// Past the caches: what it writes, the device reads, or a guest much later. Saves the read of each
// line before it is written.
void copy_past_caches(uint8_t* target, const uint8_t* source, uint64_t bytes) {
#ifdef __SSE2__
  constexpr uint64_t kLine = 64, kVector = sizeof(__m128i);
  const uint64_t head = std::min<uint64_t>(bytes, -reinterpret_cast<uintptr_t>(target) % kLine);
  std::memcpy(target, source, head);
  for (target += head, source += head, bytes -= head; bytes >= kLine; bytes -= kLine) {
    __m128i line[kLine / kVector];
    for (__m128i& each : line) {
      each = _mm_loadu_si128(reinterpret_cast<const __m128i*>(source));
      source += kVector;
    }
    for (const __m128i each : line) {
      _mm_stream_si128(reinterpret_cast<__m128i*>(target), each);
      target += kVector;
    }
  }
  _mm_sfence();
#endif
  std::memcpy(target, source, bytes);
}

// Exchanges them, past the caches too.
void swap_past_caches(uint8_t* a, uint8_t* b, uint64_t bytes) {
#ifdef __SSE2__
  constexpr uint64_t kLine = 64, kVector = sizeof(__m128i);
  const auto load = [](const uint8_t* from, __m128i* line) {
    for (uint64_t i = 0; i < kLine / kVector; ++i)
      line[i] = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from) + i);
  };
  const uint64_t head = std::min<uint64_t>(bytes, -reinterpret_cast<uintptr_t>(a) % kLine);
  std::swap_ranges(a, a + head, b);
  for (a += head, b += head, bytes -= head; bytes >= kLine;
       a += kLine, b += kLine, bytes -= kLine) {
    __m128i of_a[kLine / kVector], of_b[kLine / kVector];
    load(a, of_a);
    load(b, of_b);
    for (uint64_t i = 0; i < kLine / kVector; ++i) {
      _mm_stream_si128(reinterpret_cast<__m128i*>(a) + i, of_b[i]);
      _mm_storeu_si128(reinterpret_cast<__m128i*>(b) + i, of_a[i]);
    }
  }
  _mm_sfence();
#endif
  std::swap_ranges(a, a + bytes, b);
}

// Threads that copy for all sessions of a context.
class CopyThreads {
 public:
  // Calls copied(end), on this thread, as bytes [0, end) have been copied; it must not throw. False
  // if the threads are copying for another session, or cannot be had: nothing is copied.
  template <class Copied>
  bool copy(uint8_t* target, const uint8_t* source, uint64_t bytes, const Copied& copied) {
    const std::unique_lock<std::mutex> lock(mutex_, std::try_to_lock);
    if (!lock || !has_pool()) return false;
    for (uint64_t begin = 0; begin < bytes; begin += kLoopBytes)
      copy_once(target + begin, source + begin, std::min(kLoopBytes, bytes - begin),
                [&](uint64_t end) { copied(begin + end); });
    return true;
  }

  // Exchanges them; the caller does it where the threads are copying for another session.
  void swap(uint8_t* a, uint8_t* b, uint64_t bytes) {
    const std::unique_lock<std::mutex> lock(mutex_, std::try_to_lock);
    if (!lock || !has_pool()) return swap_past_caches(a, b, bytes);
    const auto count = static_cast<uint32_t>((bytes + kPieceBytes - 1) / kPieceBytes);
    pool_->parallel_for(count, [&](uint32_t piece, uint32_t) {
      const uint64_t at = piece * kPieceBytes;
      swap_past_caches(a + at, b + at, std::min(kPieceBytes, bytes - at));
    });
  }

 private:
  static constexpr uint32_t kUploads = 64;  // of a loop
  static constexpr uint64_t kLoopBytes = kUploads * kUploadBytesMin;

  bool has_pool() {
    if (pool_) return true;
    auto pool = ThreadPool::create(std::min(kCopyThreadCountMax, available_thread_count()));
    if (pool.ok()) pool_ = pool.take();
    return pool_ != nullptr;
  }

  // One loop over all pieces: a thread waits for the others at its end alone.
  template <class Copied>
  void copy_once(uint8_t* target, const uint8_t* source, uint64_t bytes, const Copied& copied) {
    constexpr uint32_t kPiecesOfUpload = kUploadBytesMin / kPieceBytes;
    const auto count = static_cast<uint32_t>((bytes + kPieceBytes - 1) / kPieceBytes);
    for (std::atomic<uint32_t>& done : done_) done.store(0, std::memory_order_relaxed);
    uint32_t next = 0;
    const auto report = [&] {
      for (uint32_t first; (first = next * kPiecesOfUpload) < count; ++next) {
        const uint32_t pieces = std::min(kPiecesOfUpload, count - first);
        if (done_[next].load(std::memory_order_acquire) != pieces) return;
        copied(std::min((first + pieces) * kPieceBytes, bytes));
      }
    };
    pool_->parallel_for(count, [&](uint32_t piece, uint32_t thread) {
      const uint64_t at = piece * kPieceBytes;
      copy_past_caches(target + at, source + at, std::min(kPieceBytes, bytes - at));
      done_[piece / kPiecesOfUpload].fetch_add(1, std::memory_order_release);
      if (thread == 0) report();
    });
    report();
  }

  std::mutex mutex_;  // guards the members below
  std::unique_ptr<ThreadPool> pool_;
  std::atomic<uint32_t> done_[kUploads] = {};  // pieces of each upload
};

class RegistryKernels final : public zctl::Kernels {
 public:
  explicit RegistryKernels(std::shared_ptr<Registry> registry)
      : registry_(std::move(registry)),
        memory_(*registry_->memory()),
        late_(memory_.kept<LateRuns>([] { return std::make_shared<LateRuns>(); })),
        device_(registry_device(registry_)) {}

  ~RegistryKernels() override {
    if (!is_late_) return;
    (void)backend().event_synchronize(done_);
    forget(done_);
  }

  void list(const std::function<void(const KernelInfo&)>& each) override {
    for (const auto& entry : registry_->list()) each(info_of(*entry, entry->flags()));
  }

  bool find(uint32_t id, Kernel* kernel) override {
    auto found = registry_->find(id);
    return found.ok() && take(found.take(), kernel);
  }
  bool find_name(std::string_view name, Kernel* kernel) override {
    return take(registry_->find_name(name), kernel);
  }
  bool find_entry(std::string_view module, std::string_view entry, Kernel* kernel) override {
    if (module.empty()) return false;
    for (Registry::Entry& each : registry_->list()) {
      const auto* const code = static_cast<const KernelObject*>(each->kernel.get());
      if (code && code->module && each->descriptor.module == module && code->name == entry)
        return take(std::move(each), kernel);
    }
    return false;
  }
  zctl::Device* device() override { return device_.get(); }

  Status check_ready(const Kernel& kernel) override {
    const Status runs = check_runs_here(entry_of(kernel), memory_);
    if (!runs.ok() && !is_built_with_cuda())
      return Status::error(WCUDA_NOT_AVAILABLE, kWithoutCuda);
    WCUDA_TRY(Status(runs));
    WCUDA_TRY(backend().fault());
    return check_late();
  }

  Result<uint8_t*> stage(uint64_t bytes) override {
    WCUDA_TRY(open());
    uploaded_ = 0;
    upload_status_ = {};
    if (block_.bytes() < bytes) {
      // Never both at once: the larger one may need the room of the smaller.
      block_.reset();
      staging_.reset();
      WCUDA_ASSIGN(block_, memory_.allocate(bytes, WCUDA_PURPOSE_SCRATCH, "zctl arguments"));
      block_.used_on(stream_);
    }
    if (backend().is_host()) return block_.data();
    if (staging_.bytes() < bytes) {
      WCUDA_ASSIGN(staging_, memory_.allocate_pinned(bytes, "zctl arguments"));
      staging_.used_on(stream_);
    }
    return staging_.data();
  }

  void staged(uint64_t end) override {
    if (!backend().is_host() && end - uploaded_ >= kUploadBytesMin) upload(end);
  }

  void copy_in(uint8_t* block, uint64_t begin, const uint8_t* source, uint64_t bytes) override {
    copy(block + begin, source, bytes, [&](uint64_t end) {
      try {
        staged(begin + end);
      } catch (...) {  // NOLINT(bugprone-empty-catch): is uploaded with the rest
      }
    });
  }
  void copy_out(uint8_t* target, const uint8_t* source, uint64_t bytes) override {
    copy(target, source, bytes, [](uint64_t) {});
  }

  Result<bool> run(const Kernel& kernel, const std::vector<zctl::RunArgument>& arguments,
                   const zctl::RunBlock& block, zctl::Clock::time_point deadline) override {
    WCUDA_TRY(open());
    const RegistryEntry& entry = entry_of(kernel);
    const bool is_over = zctl::Clock::now() >= deadline;
    if (backend().is_host()) {
      WCUDA_TRY(is_over ? over() : run_here(entry, arguments, block, deadline));
      return false;
    }
    piece_count_ = 0;
    Status queued = is_over ? over() : queue(entry, arguments, block);
    if (!queued.ok()) {
      // What was queued still uses the staging memory.
      (void)backend().synchronize(stream_);
      return queued;
    }
    const auto is_done = swap_pieces(block, deadline);
    WCUDA_TRY(Status(is_done.status()));
    if (*is_done) return piece_count_ != 0;
    is_late_ = true;
    const std::lock_guard<std::mutex> lock(late_->mutex);
    late_->events.push_back(done_);
    return over();
  }

 private:
  // False without an entry.
  static bool take(Registry::Entry entry, Kernel* kernel) {
    if (!entry) return false;
    const uint32_t flags = entry->flags();
    *kernel = kernel_of(std::move(entry), flags);
    return true;
  }
  static const RegistryEntry& entry_of(const Kernel& kernel) {
    return *static_cast<const RegistryEntry*>(kernel.entry.get());
  }
  static Status over() { return Status::error(WCUDA_TIMEOUT, "the deadline has passed"); }
  Backend& backend() const { return memory_.backend(); }

  // A stream and an event of its own, with the first run.
  Status open() {
    if (is_open_) return {};
    if (Stream(stream_).id == 0) WCUDA_TRY(stream_.take(backend(), backend().stream_create(0)));
    WCUDA_TRY(done_.take(backend(), backend().event_create()));
    is_open_ = true;
    return {};
  }

  Status check_late() {
    const std::lock_guard<std::mutex> lock(late_->mutex);
    std::vector<Event>& events = late_->events;
    for (size_t i = events.size(); i-- > 0;) {
      WCUDA_ASSIGN(const bool is_done, backend().event_done(events[i]));
      if (!is_done) return Status::error(WCUDA_BUSY, "a run is still at work");
      events.erase(events.begin() + static_cast<ptrdiff_t>(i));
    }
    is_late_ = false;  // no event is left, so neither is this session's
    return {};
  }

  void forget(Event event) {
    const std::lock_guard<std::mutex> lock(late_->mutex);
    auto& events = late_->events;
    events.erase(std::remove_if(events.begin(), events.end(),
                                [&](Event each) { return each.id == event.id; }),
                 events.end());
  }

  Status launch(const RegistryEntry& entry, const std::vector<zctl::RunArgument>& arguments) {
    given_.clear();
    const auto& parameters = entry.descriptor.signature.parameters;
    for (size_t i = 0; i < arguments.size(); ++i) {
      const jit::Parameter& parameter = parameters[i];
      const bool is_buffer = parameter.kind == WCUDA_ARG_BUFFER;
      const uint64_t scalar = jit::scalar_bytes(parameter.kind);
      given_.add({parameter.kind, parameter.access, scalar ? scalar : arguments[i].bytes},
                 arguments[i].value, is_buffer ? block_.data() + arguments[i].offset : nullptr);
    }
    given_.complete();
    return queue_run(entry, memory_, &given_, stream_);
  }

  Status clear_outputs(const RegistryEntry& entry, const zctl::RunBlock& block) {
    // Built-in kernels write everything.
    if (entry.builtin || block.upload_end == block.bytes) return {};
    return backend().fill(block_.data() + block.upload_end, block.bytes - block.upload_end, 0, 1,
                          stream_);
  }

  CopyThreads& threads() {
    if (!threads_)
      threads_ = memory_.kept<CopyThreads>([] { return std::make_shared<CopyThreads>(); });
    return *threads_;
  }

  template <class Copied>
  void copy(uint8_t* target, const uint8_t* source, uint64_t bytes, const Copied& copied) {
    if (bytes >= kThreadedBytesMin && !backend().is_host() &&
        threads().copy(target, source, bytes, copied))
      return;
    std::memcpy(target, source, bytes);
  }

  void upload(uint64_t end) {
    if (upload_status_.ok())
      upload_status_ = backend().copy_to_device_async(
          block_.data() + uploaded_, staging_.data() + uploaded_, end - uploaded_, stream_);
    uploaded_ = end;
  }

  // On HOST, where the staged block is the block, and a kernel has ended when it is launched.
  Status run_here(const RegistryEntry& entry, const std::vector<zctl::RunArgument>& arguments,
                  const zctl::RunBlock& block, zctl::Clock::time_point deadline) {
    WCUDA_TRY(clear_outputs(entry, block));
    WCUDA_TRY(launch(entry, arguments));
    return zctl::Clock::now() >= deadline ? over() : Status();
  }

  Status queue(const RegistryEntry& entry, const std::vector<zctl::RunArgument>& arguments,
               const zctl::RunBlock& block) {
    if (block.upload_end > uploaded_) upload(block.upload_end);
    WCUDA_TRY(Status(upload_status_));
    WCUDA_TRY(clear_outputs(entry, block));
    WCUDA_TRY(launch(entry, arguments));
    const bool is_large = block.target && block.target_bytes >= 2 * kDownloadBytes;
    const uint64_t piece_bytes = is_large ? kDownloadBytes : block.bytes;
    for (uint64_t at = block.download_begin; at < block.bytes; at += piece_bytes) {
      WCUDA_TRY(backend().copy_to_host_async(staging_.data() + at, block_.data() + at,
                                             std::min(piece_bytes, block.bytes - at), stream_));
      if (!is_large) break;
      if (piece_count_ == pieces_.size()) {
        OwnedEvent event;
        WCUDA_TRY(event.take(backend(), backend().event_create()));
        pieces_.push_back(std::move(event));
      }
      WCUDA_TRY(backend().event_record(pieces_[piece_count_++], stream_));
    }
    return backend().event_record(done_, stream_);
  }

  // What has arrived of a large output changes places with what it replaces, which is put back
  // unless all arrives: the memory of a run that fails is as it was. False at the deadline.
  Result<bool> swap_pieces(const zctl::RunBlock& block, zctl::Clock::time_point deadline) {
    struct Swapped {
      RegistryKernels* kernels;
      const zctl::RunBlock& block;
      uint32_t count = 0;
      ~Swapped() {
        while (count > 0) kernels->swap_piece(block, --count);
      }
    } swapped{this, block};
    while (swapped.count < piece_count_) {
      WCUDA_ASSIGN(const bool is_here, wait_until(backend(), pieces_[swapped.count], deadline));
      if (!is_here) return false;
      swap_piece(block, swapped.count);
      ++swapped.count;
    }
    WCUDA_ASSIGN(const bool is_done, wait_until(backend(), done_, deadline));
    if (is_done) swapped.count = 0;
    return is_done;
  }
  void swap_piece(const zctl::RunBlock& block, uint32_t piece) {
    const uint64_t at = piece * kDownloadBytes;
    uint8_t* const staged = staging_.data() + block.download_begin + at;
    const uint64_t bytes = std::min(kDownloadBytes, block.target_bytes - at);
    threads().swap(block.target + at, staged, bytes);
  }

  const std::shared_ptr<Registry> registry_;
  vram::Memory& memory_;
  const std::shared_ptr<LateRuns> late_;
  const std::unique_ptr<zctl::Device> device_;
  OwnedStream stream_;
  OwnedEvent done_;
  std::vector<OwnedEvent> pieces_;  // of downloads
  uint32_t piece_count_ = 0;        // of the run's
  bool is_open_ = false;
  bool is_late_ = false;
  Arguments given_;        // of one run, kept so that the next allocates nothing
  vram::Buffer block_;     // on the device
  vram::Buffer staging_;   // pinned; none on HOST
  uint64_t uploaded_ = 0;  // bytes of the staged block whose upload is queued
  Status upload_status_;
  std::shared_ptr<CopyThreads> threads_;  // with the first large copy
};

class AbsentKernels final : public zctl::Kernels {
 public:
  explicit AbsentKernels(std::string reason) : reason_(std::move(reason)) {}

  Status add(std::string_view name, uint32_t id, uint64_t sig_hash) {
    auto entry = std::make_shared<RegistryEntry>();
    entry->builtin = compute::find_entry(name);
    WCUDA_CHECK(entry->builtin);
    WCUDA_ASSIGN(entry->descriptor, compute::describe_builtin(*entry->builtin, WCUDA_ARG_F32));
    entry->descriptor.kernel_id = id;
    entry->descriptor.sig_hash = sig_hash;
    entries_.push_back(std::move(entry));
    return {};
  }

  void list(const std::function<void(const KernelInfo&)>& each) override {
    for (const auto& entry : entries_) each(info_of(*entry, WCUDA_KERNEL_NOT_HERE));
  }
  bool find_name(std::string_view, Kernel*) override { return false; }
  bool find(uint32_t id, Kernel* kernel) override {
    for (const auto& entry : entries_)
      if (entry->descriptor.kernel_id == id) {
        *kernel = kernel_of(entry, WCUDA_KERNEL_NOT_HERE);
        return true;
      }
    return false;
  }
  Status check_ready(const Kernel&) override { return absent(); }
  Result<uint8_t*> stage(uint64_t) override { return absent(); }
  Result<bool> run(const Kernel&, const std::vector<zctl::RunArgument>&, const zctl::RunBlock&,
                   zctl::Clock::time_point) override {
    return absent();
  }

 private:
  Status absent() const { return Status::error(WCUDA_NO_DEVICE, "%s", reason_.c_str()); }

  const std::string reason_;
  std::vector<Registry::Entry> entries_;
};

}  // namespace

std::unique_ptr<zctl::Kernels> registry_kernels(std::shared_ptr<Registry> registry) {
  return std::make_unique<RegistryKernels>(std::move(registry));
}

Result<std::unique_ptr<zctl::Kernels>> absent_kernels(std::string reason) {
  if (reason.empty()) reason = is_built_with_cuda() ? "no device" : kWithoutCuda;
  auto kernels = std::make_unique<AbsentKernels>(std::move(reason));
  WCUDA_TRY(kernels->add("noop", compute::kNoopId, compute::kNoopHash));
  WCUDA_TRY(kernels->add("tensor_add", compute::kTensorAddId, compute::kTensorAddHash));
  return std::unique_ptr<zctl::Kernels>(std::move(kernels));
}

bool is_built_with_cuda() {
  wcuda_build_info info = WCUDA_BUILD_INFO_INIT;
  return wcuda_build_info_get(&info, nullptr) == WCUDA_OK && info.has_cuda != 0;
}

}  // namespace wcuda::api
