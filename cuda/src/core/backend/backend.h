// Backend: the one way to allocate, copy, wait and time on a device. Implementations: cuda_backend,
// host_backend, and table_backend for a table of a caller's; wrappers: trace_backend,
// fault_backend. Made by open.h.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/base/status.h"
#include "worker_cuda/backend.h"

namespace wcuda {

// A queue of work in order. id 0 is the stream that every backend has; ids are never used twice, so
// a stream that was destroyed is refused, never mistaken.
struct Stream {
  uint64_t id = 0;
};
inline bool operator==(Stream a, Stream b) { return a.id == b.id; }

// A point in a stream's work. id 0: none.
struct Event {
  uint64_t id = 0;
};

// Loaded device code: kernels and globals. id 0: none.
struct Module {
  uint64_t id = 0;
};

// A kernel of a module; ends with it. id 0: none.
struct Kernel {
  uint64_t id = 0;
};

// Work that was recorded once and is launched as a whole. id 0: none.
struct Graph {
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
  uint64_t free_bytes;      // what an allocation could still get, in one piece or more
  uint64_t total_bytes;     // of the device; HOST: its capacity
  uint64_t reserved_bytes;  // held from the driver, in use or kept for reuse
  uint64_t used_bytes;      // of these, in use
};

struct DeviceHealth {
  int32_t temperature_celsius = -1;  // -1: not known
  int64_t ecc_error_count = -1;      // uncorrected since the driver was loaded; -1: not known
};

// A weight as in its file, at `source`, and where it belongs: matrices in records
// (kernels/shared/packed_tile.h), aligned to 256 bytes; vectors (rows elements, cols 1) as f32.
struct Placement {
  const void* source = nullptr;
  void* target = nullptr;
  uint32_t type = 0;  // ggml type id; of a vector F32, F16 or BF16
  bool is_vector = false;
  uint32_t rows = 0;
  uint32_t cols = 1;
};

// Device memory that a queued digest works in, whatever the length; aligned to 32.
constexpr uint64_t kDigestScratchBytes = 320 * 1024;

struct LaunchDims {
  uint32_t grid[3] = {1, 1, 1};
  uint32_t block[3] = {1, 1, 1};
  uint32_t cluster[3] = {0, 0, 0};  // blocks; all 0: none, or what the kernel was compiled with
  uint32_t shared_bytes = 0;        // dynamic
  bool is_cooperative = false;      // all blocks run at once and may wait for each other
};

struct KernelParameter {
  uint64_t offset;
  uint64_t bytes;
};

struct KernelAttributes {
  std::string name;  // as in the code, mangled unless it has C linkage
  std::vector<KernelParameter> parameters;
  uint32_t max_threads_per_block = 0;
  uint32_t register_count = 0;  // a thread
  uint64_t static_shared_bytes = 0;
  uint64_t dynamic_shared_bytes_max = 0;  // that a launch may ask for
  uint64_t local_bytes = 0;               // a thread
  uint64_t constant_bytes = 0;
  uint32_t required_cluster[3] = {0, 0, 0};  // all 0: none
  int32_t ptx_version = 0;                   // major * 10 + minor
  int32_t binary_version = 0;
};

struct Occupancy {
  uint32_t blocks_per_multiprocessor;  // at once
  uint32_t best_block_threads;         // block size that fills a multiprocessor most
};

// Thread-safe. Addresses are the device's own: on HOST they can be read, on CUDA they cannot.
// Ranges are trusted here; vram::Buffer checks them. After a fault of the device (fault() is not
// ok) every call but the destroying ones returns that fault.
class Backend {
 public:
  virtual ~Backend() = default;

  virtual const wcuda_device_caps& caps() const = 0;
  // The capability (major * 10 + minor) that launches of this library's own kernels may count on:
  // of a device whose code was made for older ones, less than its caps say.
  virtual int32_t launch_capability() const {
    return caps().compute_capability_major * 10 + caps().compute_capability_minor;
  }
  bool is_host() const { return caps().backend == WCUDA_BACKEND_HOST; }
  // Neither: a table of a caller's.
  bool is_registered() const { return caps().backend >= WCUDA_BACKEND_REGISTERED; }
  // Compute threads; 0 on CUDA.
  virtual uint32_t host_thread_count() const { return 0; }
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
  virtual Status copy_to_device(void* target, const void* source, uint64_t bytes) = 0;
  virtual Status copy_to_host(void* target, const void* source, uint64_t bytes) = 0;
  // Queued; the host memory is pinned and stays untouched until the stream has passed.
  virtual Status copy_to_device_async(void* target, const void* source, uint64_t bytes,
                                      Stream stream) = 0;
  virtual Status copy_to_host_async(void* target, const void* source, uint64_t bytes,
                                    Stream stream) = 0;
  // Queued. Ranges do not overlap.
  virtual Status copy_on_device(void* target, const void* source, uint64_t bytes,
                                Stream stream) = 0;
  // Queued. Repeats the low pattern_bytes (1, 2, 4 or 8) of pattern, little-endian; target and
  // bytes are multiples of it.
  virtual Status fill(void* target, uint64_t bytes, uint64_t pattern, uint32_t pattern_bytes,
                      Stream stream) = 0;
  // BLAKE3 of a range of device memory, on the device, after the work on stream 0; waits.
  virtual Status digest(const void* data, uint64_t bytes, uint8_t result[32]) = 0;
  // Chaining values (ceil(bytes / 1 MiB), 32), in host memory, of each MiB of a range of at least
  // one byte that begins at piece `first_piece` of its input (base/blake3.h); on the device, after
  // the work on stream 0; waits.
  virtual Status digest_pieces(const void* data, uint64_t bytes, uint64_t first_piece,
                               uint8_t* pieces) = 0;
  // Queued: the digest into 32 bytes of device memory, aligned to 32. Digests that share scratch
  // share a stream.
  virtual Status digest_async(const void* data, uint64_t bytes, void* result, void* scratch,
                              Stream stream) = 0;
  // Queued. Puts a whole weight from the order of a file into that of the device; both in device
  // memory. WCUDA_INVALID_ARGUMENT for a type or shape that has no such order.
  virtual Status place(const Placement& placement, Stream stream) = 0;

  // Device code: whole (jit/code_kind.h), and with a NUL after PTX, which is not counted.
  // WCUDA_MALFORMED or WCUDA_UNSUPPORTED with what the driver says of it. WCUDA_UNSUPPORTED_KERNEL
  // on HOST, for all that follows too.
  virtual Result<Module> module_load(const void* code, uint64_t bytes);
  // Waits for all work; ends the module's kernels.
  virtual Status module_unload(Module module);
  // Memory of a variable in the module; WCUDA_NOT_FOUND.
  virtual Result<std::pair<void*, uint64_t>> module_global(Module module, const std::string& name);
  // By the name in the code; WCUDA_NOT_FOUND lists the names there are.
  virtual Result<Kernel> kernel_find(Module module, const std::string& name);
  virtual Result<KernelAttributes> kernel_attributes(Kernel kernel);
  virtual Result<Occupancy> kernel_occupancy(Kernel kernel, uint32_t block_threads,
                                             uint64_t shared_bytes);
  // Queued. One pointer to its value for each parameter; checked by the caller. What the driver
  // refuses is WCUDA_LAUNCH_FAILED, and nothing of it runs.
  virtual Status kernel_launch(Kernel kernel, const LaunchDims& dims, void* const* arguments,
                               Stream stream);

  // Runs a kernel that is a function of the host, in the order of the stream; its failure is the
  // answer. WCUDA_UNSUPPORTED_KERNEL unless on HOST.
  virtual Status host_launch(Stream stream, const std::function<Status()>& work);

  // Runs `work`, which makes a kernel for this backend out of so many bytes of source; its failure
  // is the answer.
  virtual Status compile(uint64_t source_bytes, const std::function<Status()>& work);
  // Kernels that a caller's table compiles itself; WCUDA_UNSUPPORTED_KERNEL on CUDA and HOST. A
  // buffer among the arguments is its window on the device.
  virtual Result<Kernel> source_compile(const std::string& source, const std::string& entry);
  virtual Status source_launch(Kernel kernel, const LaunchDims& dims,
                               const std::vector<wcuda_host_argument>& arguments, Stream stream);
  virtual Status source_destroy(Kernel kernel);

  // Runs `work`, which queues kernels on native_stream(stream), with the device current; its
  // failure is the answer. WCUDA_NOT_AVAILABLE on HOST.
  virtual Status queue(Stream stream, const std::function<Status()>& work);
  // Records what `work` queues on the stream, by this thread; nothing of it runs. `work` may
  // neither allocate nor wait; its failure is the answer. WCUDA_NOT_AVAILABLE on HOST.
  virtual Result<Graph> graph_capture(Stream stream, const std::function<Status()>& work);
  // Queued. One stream at a time runs a graph.
  virtual Status graph_launch(Graph graph, Stream stream);
  // The graph runs nowhere any more.
  virtual Status graph_destroy(Graph graph);

  // Higher priority runs first where the device can; 0 is ordinary, -1 high.
  virtual Result<Stream> stream_create(int32_t priority) = 0;
  // Waits for the stream's work.
  virtual Status stream_destroy(Stream stream) = 0;
  // The driver's object (cudaStream_t) for kernel launches; null on HOST and for unknown streams.
  virtual void* native_stream(Stream stream) = 0;
  // A stream of somebody else's, by the driver's object, which stream_destroy leaves alone after it
  // has waited. WCUDA_UNSUPPORTED where streams are not the driver's.
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
  // Temperature and ECC, as far as they are known; never waits for work.
  virtual DeviceHealth health() { return {}; }
};

}  // namespace wcuda
