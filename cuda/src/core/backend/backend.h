// Backend: the one way to allocate, copy, wait and time on a device. Implementations: cuda_backend,
// host_backend, and table_backend for a table of a caller's; wrappers: trace_backend,
// fault_backend. Made by open.h.
//
// What is built on a device, and is not one, runs through Backend::run: digests (vram/digest.h),
// repacking (llm/quant/repack.h), graphs (cuda_graph.h), kernels of this library.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "core/backend/modules.h"
#include "core/base/status.h"
#include "worker_cuda/backend.h"

namespace wcuda {

// A queue of work in order. id 0 is the stream that every backend has; ids are never used twice, so
// a stream that was destroyed is refused, never mistaken.
struct Stream {
  uint64_t id = 0;
};
inline bool operator==(Stream a, Stream b) { return a.id == b.id; }

// A point in a stream's work. id 0: none. Backends of one CUDA device know each other's events.
struct Event {
  uint64_t id = 0;
};

enum class MemoryKind {
  kDevice,  // memory of the device only: never managed, mapped or host memory on CUDA
  kPinned,  // page-locked host memory for fast copies; ordinary memory on HOST
};

// Where an address is; numbered as WCUDA_PLACE_….
enum class MemoryPlace : int32_t {
  kDevice = WCUDA_PLACE_DEVICE,
  kOtherDevice = WCUDA_PLACE_OTHER_DEVICE,
  kManaged = WCUDA_PLACE_MANAGED,
  kPinned = WCUDA_PLACE_PINNED,
  kMapped = WCUDA_PLACE_MAPPED,
  kHost = WCUDA_PLACE_HOST,
};
// "managed memory".
const char* place_name(MemoryPlace place);

struct MemoryInfo {
  uint64_t free_bytes;      // can still be allocated, though perhaps not in one piece
  uint64_t total_bytes;     // of the device; HOST: its capacity
  uint64_t reserved_bytes;  // held from the driver, in use or kept for reuse
  uint64_t used_bytes;      // of these, in use
};

enum class CallKind {
  kAllocate,
  kCopy,
  kLaunch,  // fill, digests, launch, queue, graph_launch
  kCompile,
  kWait,   // synchronize and its like
  kOther,  // queries, records of events, creation of objects
  kEnd,    // free and destroy; legal on a lost device
};

// A call of a Backend, as trace and fault see it.
struct Call {
  const char* name;  // static text
  CallKind kind;
  uint64_t bytes = 0;
  Stream stream{};
  uint64_t ns = 0;  // duration, known after the call
};

struct Copy {
  enum class Direction : uint8_t { kToDevice, kToHost, kOnDevice };
  Direction direction;
  bool is_queued;  // else on stream 0, and done when the call returns
  void* target;
  const void* source;
  uint64_t bytes;
  Stream stream;
};

struct DeviceDescription {
  wcuda_device_caps caps;
  // The capability (major * 10 + minor) that launches of this library's own kernels may count on:
  // of a device whose code was made for older ones, less than its caps say.
  int32_t launch_capability;
  uint32_t host_thread_count;  // compute threads; 0 on CUDA
};

// Thread-safe. Addresses are the device's own: on HOST they can be read, on CUDA they cannot.
// Ranges are trusted here; vram::Buffer checks them. After a fault of the device (fault() is not
// ok) every call but the destroying ones returns that fault.
class Backend {
 public:
  virtual ~Backend() = default;

  const DeviceDescription& description() const { return description_; }
  const wcuda_device_caps& caps() const { return description_.caps; }
  int32_t launch_capability() const { return description_.launch_capability; }
  uint32_t host_thread_count() const { return description_.host_thread_count; }
  bool is_host() const { return caps().backend == WCUDA_BACKEND_HOST; }
  // Neither HOST nor CUDA: a table of a caller's.
  bool is_registered() const { return caps().backend >= WCUDA_BACKEND_REGISTERED; }
  virtual Result<MemoryInfo> memory_info() = 0;

  // Device memory is aligned to 256 bytes, contents undefined (of the host backend: zeros); pinned
  // memory to 4096 bytes and zeroed. Any stream may use it at once. WCUDA_OUT_OF_MEMORY (pinned:
  // WCUDA_OUT_OF_HOST_MEMORY) when full.
  virtual Result<void*> allocate(MemoryKind kind, uint64_t bytes) = 0;
  // `bytes` as allocated. Device memory: does not wait for the work of streams; order it after them
  // with free_after.
  virtual Status free(MemoryKind kind, void* address, uint64_t bytes) = 0;
  // Later frees and reuse of device memory come after the work queued on the stream so far.
  virtual Status free_after(Stream stream) = 0;
  // Device memory for work on one stream only, in its order: nothing waits for what was freed
  // before on other streams. Freed on that stream.
  virtual Result<void*> allocate_scratch(uint64_t bytes, Stream) {
    return allocate(MemoryKind::kDevice, bytes);
  }
  virtual Status free_scratch(void* address, uint64_t bytes, Stream stream) {
    if (!free_after(stream).ok()) WCUDA_TRY(synchronize(stream));
    return free(MemoryKind::kDevice, address, bytes);
  }
  // kDevice when the address is memory of this device and nothing else. On HOST a block of this
  // backend is what it was allocated as, all else kHost.
  virtual Result<MemoryPlace> memory_place(const void* address) = 0;
  // Gives memory kept for reuse back to the driver.
  virtual Status trim() { return {}; }

  // Copies between host memory of any kind and device memory; return when it is done. They come
  // after the work on stream 0 and after nothing else.
  Status copy_to_device(void* target, const void* source, uint64_t bytes) {
    return copy({Copy::Direction::kToDevice, false, target, source, bytes, {}});
  }
  Status copy_to_host(void* target, const void* source, uint64_t bytes) {
    return copy({Copy::Direction::kToHost, false, target, source, bytes, {}});
  }
  // Queued; the host memory is pinned and stays untouched until the stream has passed.
  Status copy_to_device_async(void* target, const void* source, uint64_t bytes, Stream stream) {
    return copy({Copy::Direction::kToDevice, true, target, source, bytes, stream});
  }
  Status copy_to_host_async(void* target, const void* source, uint64_t bytes, Stream stream) {
    return copy({Copy::Direction::kToHost, true, target, source, bytes, stream});
  }
  // Queued. Ranges do not overlap.
  Status copy_on_device(void* target, const void* source, uint64_t bytes, Stream stream) {
    return copy({Copy::Direction::kOnDevice, true, target, source, bytes, stream});
  }
  // What these five do.
  virtual Status copy(const Copy& what) = 0;
  // Queued. Repeats the low pattern_bytes (1, 2, 4 or 8) of pattern, little-endian; target and
  // bytes are multiples of it.
  virtual Status fill(void* target, uint64_t bytes, uint64_t pattern, uint32_t pattern_bytes,
                      Stream stream) = 0;
  // Runs `work` as the call that is described: with the device current, on what trace and fault
  // wrap, so that they see this call and none of those in it. Its failure is the answer.
  virtual Status run(const Call& call, const std::function<Status(Backend& device)>& work) = 0;
  // Runs `work`, which queues kernels on native_stream(stream). WCUDA_NOT_AVAILABLE on HOST.
  Status queue(Stream stream, const std::function<Status()>& work);
  // Runs a kernel that is a function of the host, in the order of the stream.
  // WCUDA_UNSUPPORTED_KERNEL unless on HOST.
  Status host_launch(Stream stream, const std::function<Status()>& work);
  // Runs `work`, which makes a kernel for this backend out of so many bytes of source.
  Status compile(uint64_t source_bytes, const std::function<Status()>& work);

  // Null where there are none; all that follows is WCUDA_UNSUPPORTED_KERNEL then.
  virtual Modules* modules() { return nullptr; }
  // Device code: whole (jit/code_kind.h), and with a NUL after PTX, which is not counted.
  // WCUDA_MALFORMED or WCUDA_UNSUPPORTED with what the driver says of it.
  Result<Module> module_load(const void* code, uint64_t bytes);
  // Waits for the module's work; ends its kernels.
  Status module_unload(Module module);
  // Memory of a variable in the module; WCUDA_NOT_FOUND.
  Result<std::pair<void*, uint64_t>> module_global(Module module, const std::string& name);
  // By the name in the code; WCUDA_NOT_FOUND lists the names there are.
  Result<Kernel> kernel_find(Module module, const std::string& name);
  Result<KernelAttributes> kernel_attributes(Kernel kernel);
  Result<Occupancy> kernel_occupancy(Kernel kernel, uint32_t block_threads, uint64_t shared_bytes);
  // Queued. One pointer to its value for each parameter; checked by the caller. What the driver
  // refuses is WCUDA_LAUNCH_FAILED, and nothing of it runs.
  Status kernel_launch(Kernel kernel, const LaunchDims& dims, void* const* arguments,
                       Stream stream);

  // Higher priority runs first where the device can; 0 is ordinary, -1 high.
  virtual Result<Stream> stream_create(int32_t priority) = 0;
  // Waits for the stream's work.
  virtual Status stream_destroy(Stream stream) = 0;
  // The driver's object (cudaStream_t) for kernel launches; null on HOST and for unknown streams.
  virtual void* native_stream(Stream stream) = 0;
  // Wraps a stream that the caller owns, given as the driver's object; stream_destroy waits for its
  // work and does not destroy it. WCUDA_UNSUPPORTED if streams are not the driver's.
  virtual Result<Stream> stream_borrow(void* native);

  virtual Result<Event> event_create() = 0;
  virtual Status event_destroy(Event event) = 0;
  virtual Status event_record(Event event, Stream stream) = 0;
  // Work queued later on the stream waits for the event.
  virtual Status stream_wait(Stream stream, Event event) = 0;
  virtual Status event_synchronize(Event event) = 0;
  // False while the work before the event is not done.
  virtual Result<bool> event_done(Event event) = 0;
  // Milliseconds between two events that are done.
  virtual Result<double> event_elapsed_ms(Event start, Event end) = 0;

  // Waits for one stream, or for all work of this backend.
  virtual Status synchronize(Stream stream) = 0;
  virtual Status synchronize() = 0;

  // Ok, or WCUDA_DEVICE_LOST with the driver's code: latched, never cleared, shared by all backends
  // of one device.
  virtual Status fault() const = 0;

 protected:
  explicit Backend(const DeviceDescription& description) : description_(description) {}
  DeviceDescription description_;  // fixed once the backend is open

 private:
  template <class Answer, class Ask>
  Answer ask_modules(const Call& call, Ask&& ask);
};

}  // namespace wcuda
