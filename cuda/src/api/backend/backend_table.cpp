// Section 21 of the header: the table of this library, one for every backend. Each slot resolves
// the handles it is given, checks its arguments, and calls the Backend.
#include <algorithm>
#include <cinttypes>

#include "api/backend/backend.h"
#include "api/base/buffer.h"
#include "api/base/guard.h"
#include "api/base/stream.h"
#include "api/compute/arguments.h"
#include "api/compute/compute.h"
#include "api/compute/kernel.h"
#include "compute/jit/code_kind.h"
#include "compute/nvrtc/compiler.h"
#include "core/backend/device_limits.h"
#include "core/backend/open.h"
#include "core/backend/table_backend.h"
#include "core/base/text.h"

namespace wcuda::api {
namespace {

wcuda_backend handle_of(void* self) { return {reinterpret_cast<uintptr_t>(self)}; }

// Runs the body of a slot with the backend behind `self`; legal inside callbacks.
template <class Body>
wcuda_status slot(void* self, wcuda_error* error, Body&& body) noexcept {
  return guarded_anywhere(error, [&]() -> Status {
    WCUDA_ASSIGN(const auto object, resolve(handle_of(self), "self"));
    return body(*object);
  });
}

Status of_another(const char* argument) {
  return Status::error(WCUDA_INVALID_HANDLE, "%s: is of another backend", argument);
}

Status check_size(const wcuda_device_memory& memory, const char* argument, uint64_t bytes) {
  if (memory.bytes == bytes) return {};
  return Status::error(WCUDA_INVALID_HANDLE,
                       "%s: the handle says %" PRIu64 " bytes, there are %" PRIu64, argument,
                       memory.bytes, bytes);
}

// Finds device memory that this backend allocated.
Result<std::shared_ptr<BufferObject>> find_memory(const BackendObject& self,
                                                  const wcuda_device_memory& memory,
                                                  const char* argument) {
  WCUDA_ASSIGN(auto object, resolve(wcuda_buffer{memory.id}, argument));
  if (&object->buffer.memory() != &self.memory()) return of_another(argument);
  WCUDA_TRY(check_size(memory, argument, object->buffer.bytes()));
  return object;
}

Result<uint8_t> read_memory_flags(uint8_t flags) {
  constexpr uint8_t kHost = WCUDA_MEMORY_HOST_VISIBLE;
  constexpr uint8_t kOfHost = WCUDA_MEMORY_HOST_COHERENT | WCUDA_MEMORY_CACHED;
  WCUDA_TRY(check_flags(flags, WCUDA_MEMORY_DEVICE | kHost | kOfHost, "flags"));
  if ((flags & kOfHost) != 0 && (flags & kHost) == 0)
    return invalid_argument("flags: 0x%x, coherent and cached are of HOST_VISIBLE memory", flags);
  return flags;
}

void deinit(void* self) {
  // Not guarded_destroy, which would defer it inside callbacks.
  wcuda_error error;
  const wcuda_status status =
      guarded_anywhere(&error, [&] { return remove_live(Kind::kBackend, handle_of(self).id); });
  if (status != WCUDA_OK) log_dropped("deinit", error.message);
}

uint32_t get_device_count(void* self) {
  uint32_t count = 0;
  (void)slot(self, nullptr, [&](BackendObject& object) -> Status {
    count = object.info.device_count;
    return {};
  });
  return count;
}

wcuda_status get_device_caps(void* self, uint32_t device, wcuda_device_caps* caps,
                             wcuda_error* error) {
  return slot(self, error, [&](BackendObject& object) -> Status {
    if (device >= object.info.device_count)
      return Status::error(WCUDA_NO_DEVICE, "device: %u of %u", device, object.info.device_count);
    const auto ordinal = static_cast<int32_t>(device);
    if (ordinal == object.info.ordinal)
      return write_struct(object.memory().backend().caps(), caps, "caps");
    WCUDA_ASSIGN(const wcuda_device_caps found, device_caps(object.info.type, ordinal));
    return write_struct(found, caps, "caps");
  });
}

wcuda_status allocate(void* self, uint64_t bytes, uint8_t flags, wcuda_device_memory* memory,
                      wcuda_error* error) {
  return slot(self, error, [&](BackendObject& object) -> Status {
    WCUDA_TRY(check_not_null(memory, "memory"));
    WCUDA_ASSIGN(const uint8_t checked, read_memory_flags(flags));
    uint64_t id = 0;
    if (checked & WCUDA_MEMORY_HOST_VISIBLE) {
      auto pinned = std::make_shared<vram::Buffer>();
      WCUDA_ASSIGN(*pinned, object.memory().allocate_pinned(bytes, "backend"));
      WCUDA_ASSIGN(id, object.give(Kind::kPinned, std::move(pinned)));
    } else {
      auto buffer = std::make_shared<BufferObject>();
      WCUDA_ASSIGN(buffer->buffer, object.memory().allocate(bytes, WCUDA_PURPOSE_USER, "backend"));
      WCUDA_ASSIGN(id, object.give(Kind::kBuffer, std::move(buffer)));
    }
    *memory = {id, bytes};
    return {};
  });
}

wcuda_status free_memory(void* self, wcuda_device_memory memory, wcuda_error* error) {
  return slot(self, error, [&](BackendObject& object) -> Status {
    const auto pinned = resolve(wcuda_pinned{memory.id}, "memory");
    if (pinned.ok()) {
      WCUDA_TRY(check_size(memory, "memory", (*pinned)->bytes()));
    } else {
      WCUDA_TRY(find_memory(object, memory, "memory").status());
    }
    const Kind kind = pinned.ok() ? Kind::kPinned : Kind::kBuffer;
    return object.take_back(kind, memory.id) ? Status() : of_another("memory");
  });
}

// Copies between the host and a range of device memory, to the device with `into_device`. With a
// stream the copy is queued there, without one it has finished on return.
Status copy(BackendObject& self, const wcuda_device_memory& memory, const char* argument,
            uint64_t offset, void* host, uint64_t bytes, bool into_device,
            const wcuda_stream* stream) {
  WCUDA_ASSIGN(const auto object, find_memory(self, memory, argument));
  if (bytes != 0) WCUDA_TRY(check_not_null(host, into_device ? "source" : "target"));
  WCUDA_ASSIGN(const vram::View view, view_of(*object, argument, offset, bytes));
  UsedStream on;
  if (stream) {
    WCUDA_ASSIGN(on, use_stream(*stream, self.memory()));
  }
  WCUDA_ASSIGN(const auto use, ExclusiveUse::acquire(object->exclusive, argument));
  Backend& backend = self.memory().backend();
  WCUDA_TRY(backend.fault());
  if (bytes == 0) return {};
  if (!stream)
    return into_device ? self.memory().copy_to_device(view.data, host, bytes)
                       : backend.copy_to_host(host, view.data, bytes);
  object->buffer.used_on(on.stream);
  return into_device ? backend.copy_to_device_async(view.data, host, bytes, on.stream)
                     : backend.copy_to_host_async(host, view.data, bytes, on.stream);
}

wcuda_status copy_to_device(void* self, wcuda_device_memory target, uint64_t offset,
                            const void* source, uint64_t bytes, wcuda_error* error) {
  return slot(self, error, [&](BackendObject& object) {
    return copy(object, target, "target", offset, const_cast<void*>(source), bytes, true, nullptr);
  });
}

wcuda_status copy_from_device(void* self, void* target, wcuda_device_memory source, uint64_t offset,
                              uint64_t bytes, wcuda_error* error) {
  return slot(self, error, [&](BackendObject& object) {
    return copy(object, source, "source", offset, target, bytes, false, nullptr);
  });
}

wcuda_status copy_to_device_async(void* self, wcuda_device_memory target, uint64_t offset,
                                  const void* source, uint64_t bytes, wcuda_stream stream,
                                  wcuda_error* error) {
  return slot(self, error, [&](BackendObject& object) {
    return copy(object, target, "target", offset, const_cast<void*>(source), bytes, true, &stream);
  });
}

wcuda_status copy_from_device_async(void* self, void* target, wcuda_device_memory source,
                                    uint64_t offset, uint64_t bytes, wcuda_stream stream,
                                    wcuda_error* error) {
  return slot(self, error, [&](BackendObject& object) {
    return copy(object, source, "source", offset, target, bytes, false, &stream);
  });
}

// Creates a kernel of the context from CUDA C++ or from compiled code.
Result<std::shared_ptr<KernelObject>> device_kernel(const BackendObject& self,
                                                    const std::string& source,
                                                    const std::string& entry) {
  const wcuda_device_caps& caps = self.memory().backend().caps();
  if (jit::code_kind(source.data(), source.size()).ok())
    return make_kernel(self.context->memory, source.data(), source.size(), {}, entry);
  nvrtc::Request request;
  request.source = source;
  request.architecture =
      device_architecture(caps.compute_capability_major, caps.compute_capability_minor);
  request.expressions = {entry};
  WCUDA_TRY(nvrtc::check(request));
  WCUDA_ASSIGN(const auto compiler, nvrtc::Compiler::open(self.library_folder));
  const nvrtc::Outcome outcome = compiler->compile(request);
  WCUDA_TRY(Status(outcome.status));
  return make_kernel(self.context->memory, outcome.code.data(), outcome.code.size(), outcome.names,
                     entry);
}

// Finds a CPU function that computes the entry, or refuses: no launch succeeds without computing.
Status find_host_kernel(vram::Memory& memory, const std::string& source, const std::string& entry,
                        BackendKernel* kernel) {
  if (source.find(entry) == std::string::npos)
    return Status::error(WCUDA_NOT_FOUND, "kernel '%s': does not occur in the source",
                         printable(entry).c_str());
  kernel->described = compute::find_described(memory, entry);
  if (kernel->described && !kernel->described->runs_here())
    return Status::error(WCUDA_UNSUPPORTED_KERNEL,
                         "kernel '%s': is registered, but has no host function",
                         printable(entry).c_str());
  if (kernel->described) return {};
  kernel->builtin = compute::find_entry(entry);
  if (kernel->builtin) return {};
  return Status::error(WCUDA_UNSUPPORTED_KERNEL,
                       "kernel '%s': the host compiles nothing; it is neither registered in a "
                       "context of the backend nor in the catalogue",
                       printable(entry).c_str());
}

Result<std::shared_ptr<BackendKernel>> compile(const BackendObject& self, const std::string& source,
                                               const std::string& entry) {
  auto kernel = std::make_shared<BackendKernel>();
  kernel->memory = self.context->memory;
  kernel->name = entry;
  Backend& backend = self.memory().backend();
  WCUDA_TRY(backend.fault());
  const Call call{"compile_kernel", CallKind::kCompile, source.size()};
  WCUDA_TRY(backend.run(call, [&](Backend& device) -> Status {
    if (backend.is_registered()) {
      WCUDA_ASSIGN(kernel->own, TableBackend::of(device).source_compile(source, entry));
    } else if (backend.is_host()) {
      WCUDA_TRY(find_host_kernel(self.memory(), source, entry, kernel.get()));
    } else {
      WCUDA_ASSIGN(kernel->device, device_kernel(self, source, entry));
    }
    return {};
  }));
  return kernel;
}

Result<std::string> read_text(const wcuda_string& text, const char* argument) {
  WCUDA_ASSIGN(const std::string_view given, read_string(text, argument));
  if (given.empty()) return invalid_argument("%s: is empty", argument);
  return std::string(given);
}

wcuda_status compile_kernel(void* self, wcuda_string source, wcuda_string entry,
                            wcuda_backend_kernel* kernel, wcuda_error* error) {
  return slot(self, error, [&](BackendObject& object) -> Status {
    WCUDA_TRY(check_not_null(kernel, "kernel"));
    WCUDA_ASSIGN(const std::string text, read_text(source, "source"));
    WCUDA_ASSIGN(const std::string name, read_text(entry, "entry"));
    if (name.find('\0') != std::string::npos) return invalid_argument("entry: has a NUL");
    WCUDA_ASSIGN(auto made, compile(object, text, name));
    WCUDA_ASSIGN(kernel->id, object.give(Kind::kBackendKernel, std::move(made)));
    return {};
  });
}

Result<std::shared_ptr<BackendKernel>> find_kernel(const BackendObject& self,
                                                   wcuda_backend_kernel kernel) {
  WCUDA_ASSIGN(auto object, resolve(kernel, "kernel"));
  if (object->memory.get() != &self.memory()) return of_another("kernel");
  return object;
}

// Launches on a caller's table, which itself checks the number and kinds of arguments.
Status launch_own(const BackendKernel& kernel, const wcuda_launch& config, const LaunchDims& dims,
                  const wcuda_argument* arguments, uint64_t count) {
  vram::Memory& memory = *kernel.memory;
  WCUDA_ASSIGN(const UsedStream on, use_stream(config.stream, memory));
  Arguments given;
  WCUDA_TRY(given.read(arguments, count, memory));
  given.used_on(on.stream);
  const Call call{"kernel_launch", CallKind::kLaunch, 0, on.stream};
  return memory.backend().run(call, [&](Backend& device) {
    return TableBackend::of(device).source_launch(kernel.own, dims, given.for_host(), on.stream);
  });
}

wcuda_status launch(void* self, wcuda_backend_kernel kernel, const wcuda_launch* config,
                    const wcuda_argument* arguments, uint64_t count, wcuda_error* error) {
  return slot(self, error, [&](BackendObject& object) -> Status {
    WCUDA_ASSIGN(const auto found, find_kernel(object, kernel));
    WCUDA_ASSIGN(const wcuda_launch checked, read_struct(config, "config"));
    WCUDA_TRY(check_count(arguments, count));
    if (found->device)
      return launch_kernel(*found->device, arguments, count, checked.stream,
                           [&](const Arguments&) { return read_dims(checked); });
    if (found->described) return launch_described(*found->described, checked, arguments, count);
    WCUDA_ASSIGN(const LaunchDims dims, read_dims(checked));
    WCUDA_TRY(jit::check_dims(dims, jit::device_limits(object.memory().backend().caps())));
    if (!found->builtin) return launch_own(*found, checked, dims, arguments, count);
    Arguments given;
    WCUDA_ASSIGN(const auto call, prepare_builtin(*found->builtin, kernels::Dtype::kF32,
                                                  object.memory(), arguments, count, &given));
    return run_builtin(*found->builtin, call, object.memory(), checked.stream, &given);
  });
}

wcuda_status destroy_kernel(void* self, wcuda_backend_kernel kernel, wcuda_error* error) {
  return slot(self, error, [&](BackendObject& object) -> Status {
    WCUDA_TRY(find_kernel(object, kernel).status());
    return object.take_back(Kind::kBackendKernel, kernel.id) ? Status() : of_another("kernel");
  });
}

wcuda_status synchronize(void* self, wcuda_error* error) {
  return slot(self, error,
              [&](BackendObject& object) { return object.memory().backend().synchronize(); });
}

wcuda_status copy_on_device(void* self, wcuda_device_memory target, uint64_t target_offset,
                            wcuda_device_memory source, uint64_t source_offset, uint64_t bytes,
                            wcuda_stream stream, wcuda_error* error) {
  return slot(self, error, [&](BackendObject& object) -> Status {
    WCUDA_ASSIGN(const auto to, find_memory(object, target, "target"));
    WCUDA_ASSIGN(const auto from, find_memory(object, source, "source"));
    WCUDA_ASSIGN(const UsedStream on, use_stream(stream, object.memory()));
    WCUDA_ASSIGN(const auto use, ExclusiveUse::acquire(to->exclusive, "target"));
    std::vector<ExclusiveUse> other_use;
    if (to != from) {
      WCUDA_ASSIGN(auto taken, ExclusiveUse::acquire(from->exclusive, "source"));
      other_use.push_back(std::move(taken));
    }
    WCUDA_ASSIGN(const CopyRanges ranges,
                 ranges_of_copy(*to, target_offset, *from, source_offset, bytes));
    Backend& backend = object.memory().backend();
    WCUDA_TRY(backend.fault());
    if (bytes == 0) return {};
    to->buffer.used_on(on.stream);
    from->buffer.used_on(on.stream);
    return backend.copy_on_device(ranges.target, ranges.source, bytes, on.stream);
  });
}

wcuda_status fill(void* self, wcuda_device_memory memory, uint64_t offset, uint64_t bytes,
                  uint64_t pattern, uint32_t pattern_bytes, wcuda_stream stream,
                  wcuda_error* error) {
  return slot(self, error, [&](BackendObject& object) -> Status {
    WCUDA_ASSIGN(const auto target, find_memory(object, memory, "memory"));
    WCUDA_ASSIGN(const UsedStream on, use_stream(stream, object.memory()));
    WCUDA_ASSIGN(const auto use, ExclusiveUse::acquire(target->exclusive, "memory"));
    WCUDA_TRY(check_fill(offset, bytes, pattern_bytes));
    WCUDA_ASSIGN(const vram::View view, view_of(*target, "memory", offset, bytes));
    Backend& backend = object.memory().backend();
    WCUDA_TRY(backend.fault());
    if (bytes == 0) return {};
    target->buffer.used_on(on.stream);
    return backend.fill(view.data, bytes, pattern, pattern_bytes, on.stream);
  });
}

wcuda_status stream_create(void* self, int32_t priority, wcuda_stream* stream, wcuda_error* error) {
  return slot(self, error, [&](BackendObject& object) -> Status {
    WCUDA_TRY(check_not_null(stream, "stream"));
    WCUDA_ASSIGN(auto made, make_stream(object.context->memory, priority));
    WCUDA_ASSIGN(stream->id, object.give(Kind::kStream, std::move(made)));
    return {};
  });
}

wcuda_status stream_destroy(void* self, wcuda_stream stream, wcuda_error* error) {
  return slot(self, error, [&](BackendObject& object) -> Status {
    WCUDA_ASSIGN(const auto found, resolve(stream, "stream"));
    return object.take_back(Kind::kStream, stream.id) ? Status() : of_another("stream");
  });
}

wcuda_status stream_synchronize(void* self, wcuda_stream stream, wcuda_error* error) {
  return slot(self, error, [&](BackendObject& object) -> Status {
    WCUDA_ASSIGN(const UsedStream on, use_stream(stream, object.memory()));
    return object.memory().backend().synchronize(on.stream);
  });
}

Result<std::shared_ptr<EventObject>> find_event(const BackendObject& self, wcuda_event event,
                                                const char* argument) {
  WCUDA_ASSIGN(auto object, resolve(event, argument));
  if (object->memory.get() != &self.memory()) return of_another(argument);
  return object;
}

wcuda_status event_create(void* self, wcuda_event* event, wcuda_error* error) {
  return slot(self, error, [&](BackendObject& object) -> Status {
    WCUDA_TRY(check_not_null(event, "event"));
    WCUDA_ASSIGN(auto made, make_event(object.context->memory));
    WCUDA_ASSIGN(event->id, object.give(Kind::kEvent, std::move(made)));
    return {};
  });
}

wcuda_status event_destroy(void* self, wcuda_event event, wcuda_error* error) {
  return slot(self, error, [&](BackendObject& object) -> Status {
    WCUDA_TRY(find_event(object, event, "event").status());
    return object.take_back(Kind::kEvent, event.id) ? Status() : of_another("event");
  });
}

wcuda_status event_record(void* self, wcuda_event event, wcuda_stream stream, wcuda_error* error) {
  return slot(self, error, [&](BackendObject& object) -> Status {
    WCUDA_ASSIGN(const auto found, find_event(object, event, "event"));
    WCUDA_ASSIGN(const UsedStream on, use_stream(stream, object.memory()));
    return object.memory().backend().event_record(found->event, on.stream);
  });
}

wcuda_status event_order(void* self, wcuda_event event, wcuda_stream stream, wcuda_error* error) {
  return slot(self, error, [&](BackendObject& object) -> Status {
    WCUDA_ASSIGN(const auto found, find_event(object, event, "event"));
    WCUDA_ASSIGN(const UsedStream on, use_stream(stream, object.memory()));
    return object.memory().backend().stream_wait(on.stream, found->event);
  });
}

wcuda_status event_synchronize(void* self, wcuda_event event, wcuda_error* error) {
  return slot(self, error, [&](BackendObject& object) -> Status {
    WCUDA_ASSIGN(const auto found, find_event(object, event, "event"));
    return object.memory().backend().event_synchronize(found->event);
  });
}

wcuda_status event_done(void* self, wcuda_event event, int32_t* done, wcuda_error* error) {
  return slot(self, error, [&](BackendObject& object) -> Status {
    WCUDA_ASSIGN(const auto found, find_event(object, event, "event"));
    WCUDA_TRY(check_not_null(done, "done"));
    WCUDA_ASSIGN(const bool is_done, object.memory().backend().event_done(found->event));
    *done = is_done;
    return {};
  });
}

wcuda_status event_elapsed(void* self, wcuda_event start, wcuda_event end, double* milliseconds,
                           wcuda_error* error) {
  return slot(self, error, [&](BackendObject& object) -> Status {
    WCUDA_ASSIGN(const auto from, find_event(object, start, "start"));
    WCUDA_ASSIGN(const auto to, find_event(object, end, "end"));
    WCUDA_TRY(check_not_null(milliseconds, "milliseconds"));
    WCUDA_ASSIGN(*milliseconds, object.memory().backend().event_elapsed_ms(from->event, to->event));
    return {};
  });
}

wcuda_status memory_info(void* self, uint64_t* free_bytes, uint64_t* total_bytes,
                         wcuda_error* error) {
  return slot(self, error, [&](BackendObject& object) -> Status {
    WCUDA_TRY(check_not_null(free_bytes, "free_bytes"));
    WCUDA_TRY(check_not_null(total_bytes, "total_bytes"));
    WCUDA_ASSIGN(const MemoryInfo info, object.memory().backend().memory_info());
    *free_bytes = info.free_bytes;
    *total_bytes = info.total_bytes;
    return {};
  });
}

wcuda_status fault(void* self, wcuda_error* error) {
  return slot(self, error,
              [&](BackendObject& object) { return object.memory().backend().fault(); });
}

wcuda_status host_address(void* self, wcuda_device_memory memory, void** address,
                          wcuda_error* error) {
  return slot(self, error, [&](BackendObject& object) -> Status {
    WCUDA_ASSIGN(const auto found, resolve(wcuda_pinned{memory.id}, "memory"));
    WCUDA_TRY(check_not_null(address, "address"));
    if (&found->memory() != &object.memory()) return of_another("memory");
    WCUDA_TRY(check_size(memory, "memory", found->bytes()));
    *address = found->data();
    return {};
  });
}

}  // namespace

BackendKernel::~BackendKernel() {
  if (own.id == 0) return;
  (void)memory->backend().run({"destroy_kernel", CallKind::kEnd}, [&](Backend& device) {
    return TableBackend::of(device).source_destroy(own);
  });
}

const wcuda_backend_vtable kBackendTable = {sizeof(wcuda_backend_vtable),
                                            0,
                                            deinit,
                                            get_device_count,
                                            get_device_caps,
                                            allocate,
                                            free_memory,
                                            copy_to_device,
                                            copy_from_device,
                                            copy_to_device_async,
                                            copy_from_device_async,
                                            compile_kernel,
                                            launch,
                                            destroy_kernel,
                                            synchronize,
                                            copy_on_device,
                                            fill,
                                            stream_create,
                                            stream_destroy,
                                            stream_synchronize,
                                            event_create,
                                            event_destroy,
                                            event_record,
                                            event_order,
                                            event_synchronize,
                                            event_done,
                                            event_elapsed,
                                            memory_info,
                                            fault,
                                            host_address};

}  // namespace wcuda::api
