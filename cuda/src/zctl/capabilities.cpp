// The answers to ZCL1 frames, in the order of the tables of docs/FORMATS.md.
#include "zctl/capabilities.h"

#include <algorithm>
#include <cstdio>

#include "core/base/blake3.h"
#include "core/base/bytes.h"
#include "worker_cuda/compute.h"

namespace wcuda::zctl {
namespace {

constexpr std::string_view kAccelerator = "accel", kExtension = "accel.ext", kName = "default";
constexpr std::string_view kOwnModule = "wcuda";
constexpr uint32_t kCapabilityFlags = 13;  // can open, may block, produces handles
constexpr uint32_t kReadable = 1, kWritable = 2, kEndable = 4;
constexpr uint64_t kOpenedBytes = kCapabilityResponseBytes + 16;
constexpr uint32_t kReadOnly = 1, kWriteOnly = 2, kPinned = 4;  // flags of a buffer
constexpr uint32_t kInlineBytesMax = 256;
constexpr uint64_t kModuleBytesMax = 10u << 20;
// Of a session at a time.
constexpr size_t kHandlesMax = 1024, kStreamsMax = 64, kEventsMax = 256, kModulesMax = 64;

Failure bad_frame() { return {"t_ctl_bad_frame", "bad frame form", {}}; }
Failure bad_parameters() { return {"t_ctl_bad_params", "bad parameters", {}}; }
Failure over_limit(std::string cause = {}) {
  return {"t_ctl_overflow", "over a limit", std::move(cause)};
}
Failure timed_out() { return {"t_ctl_timeout", "operation timed out", {}}; }
Failure missing() { return {"t_cap_missing", "capability not available", {}}; }
Failure denied(std::string cause = {}) {
  return {"t_cap_denied", "not permitted", std::move(cause)};
}
Failure no_device() { return {"t_accel_no_device", "no such device", {}}; }
Failure no_kernel() { return {"t_accel_kernel_not_found", "no such kernel", {}}; }
Failure launch_failed(const Status& status) {
  return {"t_accel_launch_failed", "launch failed", status.message()};
}
Failure invalid_handle() { return {"t_accel_invalid_handle", "no such handle", {}}; }

// Of what could not be queued.
Failure not_submitted(const Status& status) {
  switch (status.code()) {
    case WCUDA_NOT_FOUND:
    case WCUDA_NOT_AVAILABLE:
    case WCUDA_UNSUPPORTED_KERNEL:
      return no_kernel();
    case WCUDA_INVALID_ARGUMENT:
    case WCUDA_ARGUMENT_COUNT:
    case WCUDA_INVALID_CONFIG:
    case WCUDA_OUT_OF_RANGE:
    case WCUDA_UNSUPPORTED:
      return bad_parameters();
    default:
      return launch_failed(status);
  }
}

// Of two budgets, of which 0 and kNoBudget and above are none.
uint32_t shorter(uint32_t a, uint32_t b) {
  const auto or_none = [](uint32_t budget) { return budget == 0 ? kNoBudget : budget; };
  return std::min(or_none(a), or_none(b));
}

void put_number(std::vector<uint8_t>* record, uint64_t value, size_t bytes) {
  for (size_t i = 0; i < bytes; ++i) record->push_back(static_cast<uint8_t>(value >> (8 * i)));
}
void put_text(std::vector<uint8_t>* record, std::string_view text) {
  put_number(record, text.size(), 4);
  record->insert(record->end(), text.begin(), text.end());
}

std::string hex_of(const uint8_t (&digest)[32]) {
  std::string text;
  for (const uint8_t byte : digest) {
    char two[3];
    std::snprintf(two, sizeof(two), "%02x", byte);
    text += two;
  }
  return text;
}

}  // namespace

bool Capabilities::answer(const CapabilityCall& call, Response* response) {
  const uint8_t* const header = call.frame.data;
  const auto op = load_le<uint16_t>(header + 6);
  const auto id = load_le<uint32_t>(header + 8);
  response->begin(kCapabilityResponseBytes);
  response->put_u32(1);
  Failure failure = check_frame(call);
  if (failure.ok()) {
    if (op == kOpen && call.capacity < kOpenedBytes) return false;
    uint32_t timeout_ms = load_le<uint32_t>(header + 12);
    if (call.timeout_ms > 0)
      timeout_ms = static_cast<uint32_t>(std::min<int64_t>(timeout_ms, call.timeout_ms));
    timeout_ms = std::min(timeout_ms, limits_.budget_ms);
    const Fields fields(
        {header + kCapabilityHeaderBytes, call.frame.bytes - kCapabilityHeaderBytes});
    failure = write_payload(op, fields, {timeout_ms, call.begin}, response);
  }
  if (failure.ok() && call.is_remote &&
      response->bytes() > kCapabilityResponseBytes + limits_.payload_bytes)
    failure = over_limit();
  if (!failure.ok()) {
    cut(&failure.cause, limits_.message_bytes);
    response->cut_payload(0);
    response->put_u32(0);
    response->put_text(failure.trace);
    response->put_text(failure.message);
    response->put_text(failure.cause);
  }
  if (response->bytes() > call.capacity) return false;
  response->finish_capability(op, id);
  return true;
}

Failure Capabilities::check_frame(const CapabilityCall& call) const {
  const uint8_t* const header = call.frame.data;
  if (load_le<uint16_t>(header + 4) != kVersion)
    return {"t_ctl_bad_version", "bad frame version", {}};
  if (call.frame.bytes < kCapabilityHeaderBytes) return bad_frame();
  const auto payload_bytes = load_le<uint32_t>(header + 20);
  if (payload_bytes > limits_.payload_bytes) return over_limit();
  if (payload_bytes != call.frame.bytes - kCapabilityHeaderBytes ||
      load_le<uint32_t>(header + 16) != 0)
    return bad_frame();
  return {};
}

Failure Capabilities::write_payload(uint16_t op, Fields fields, const Wait& wait,
                                    Response* response) {
  if (!kernels_ && op != kList) op = 0;
  switch (op) {
    case kList:
      if (!fields.is_complete()) return bad_parameters();
      response->put_u32(kernels_ ? 2 : 0);
      if (!kernels_) return {};
      for (const std::string_view kind : {kAccelerator, kExtension}) {
        response->put_text(kind);
        response->put_text(kName);
        response->put_u32(kCapabilityFlags);
        response->put_text({});
      }
      return {};
    case kDescribe:
      return describe(&fields, response);
    case kOpen:
      return open(&fields, wait, response);
    default:
      return {"t_ctl_unknown_op", "unknown operation", {}};
  }
}

Failure Capabilities::describe(Fields* fields, Response* response) const {
  const std::string_view kind = fields->text(), name = fields->text();
  if (!fields->is_complete()) return bad_parameters();
  if (name != kName || (kind != kAccelerator && kind != kExtension)) return missing();
  response->put_u32(kCapabilityFlags);
  char text[512];
  if (kind == kExtension) {
    std::snprintf(text, sizeof(text),
                  "{\"id\":\"cap.accel.ext.v1\",\"max_events\":%zu,\"max_streams\":%zu,\"modes\":["
                  "\"stream.create\",\"stream.destroy\",\"event.create\",\"event.record\","
                  "\"event.wait\",\"buffer.copy\",\"module.load\",\"module.unload\"]}",
                  kEventsMax, kStreamsMax);
  } else {
    const std::string backend(info().backend);
    const std::string quoted = backend.empty() ? "" : '"' + backend + '"';
    std::snprintf(text, sizeof(text),
                  "{\"backends\":[%s],\"id\":\"cap.accel.v1\",\"max_arg_count\":%u,"
                  "\"max_buffer_bytes\":%llu,\"max_inline_arg_bytes\":%u,\"max_module_bytes\":%llu,"
                  "\"module_registry\":[%s\"preload\"]}",
                  quoted.c_str(), limits_.arguments,
                  static_cast<unsigned long long>(limits_.device_bytes), kInlineBytesMax,
                  static_cast<unsigned long long>(kModuleBytesMax),
                  policy_.permits_modules ? "\"extension\"," : "");
  }
  response->put_text(text);
  return {};
}

Failure Capabilities::open(Fields* fields, const Wait& wait, Response* response) {
  const std::string_view kind = fields->text(), name = fields->text();
  const uint32_t mode = fields->u32();
  const Fields params(fields->bytes());
  if (!fields->is_complete()) return bad_parameters();
  if (name != kName || (kind != kAccelerator && kind != kExtension)) return missing();
  if (handles_.size() >= kHandlesMax || next_handle_ > INT32_MAX) return over_limit();
  Handle handle;
  Failure opened = kind == kAccelerator ? open_accelerator(mode, params, wait, &handle)
                                        : open_extension(mode, params, wait, &handle);
  if (!opened.ok()) return opened;
  const bool is_writable = handle.buffer && (handle.flags & kWriteOnly) == 0;
  const auto number = static_cast<int32_t>(next_handle_++);
  handles_.emplace(number, std::move(handle));
  response->put_u32(static_cast<uint32_t>(number));
  response->put_u32(kReadable | kEndable | (is_writable ? kWritable : 0));
  response->put_text({});
  return {};
}

Failure Capabilities::open_accelerator(uint32_t mode, Fields fields, const Wait& wait,
                                       Handle* handle) {
  switch (mode) {
    case 1:
      return query(&fields, handle);
    case 2:
      return make_buffer(&fields, handle);
    case 3:
      return submit(&fields, wait, handle);
    case 4:
      return sync(&fields, wait, handle);
    default:
      return bad_parameters();
  }
}

Failure Capabilities::open_extension(uint32_t mode, Fields fields, const Wait& wait,
                                     Handle* handle) {
  const Target target{fields.text(), fields.text()};
  switch (mode) {
    case 1:
      return make_stream(target, &fields, handle);
    case 2:
      return end_stream(target, &fields, handle);
    case 3:
      return make_event(target, &fields, handle);
    case 4:
      return record_event(target, &fields, handle);
    case 5:
      return wait_for_event(target, &fields, wait, handle);
    case 6:
      return copy(target, &fields, handle);
    case 7:
      return load(target, &fields, handle);
    case 8:
      return unload(target, &fields, handle);
    default:
      return bad_parameters();
  }
}

DeviceInfo Capabilities::info() const {
  const Device* const device = kernels_->device();
  return device ? device->info() : DeviceInfo{};
}

// Once everything is read: that nothing is left or missing, then the device.
Failure Capabilities::check(const Target& target, const Fields& fields) const {
  if (!fields.is_complete() || (target.backend != "cuda" && target.backend != "host"))
    return bad_parameters();
  const DeviceInfo here = info();
  return target.backend == here.backend && target.id == here.id ? Failure{} : no_device();
}

Failure Capabilities::query(Fields* fields, Handle* handle) const {
  const std::string_view backend = fields->text();
  if (!fields->is_complete() || (backend != "cuda" && backend != "host")) return bad_parameters();
  const DeviceInfo here = info();
  const bool has_one = backend == here.backend;
  put_number(&handle->record, has_one, 4);
  if (!has_one) return {};
  put_text(&handle->record, here.id);
  put_text(&handle->record, here.name);
  put_number(&handle->record, here.memory_bytes, 8);
  put_number(&handle->record, here.compute_units, 4);
  put_number(&handle->record, here.flags, 4);
  return {};
}

Failure Capabilities::make_buffer(Fields* fields, Handle* handle) {
  const Target target{fields->text(), fields->text()};
  const uint64_t bytes = fields->u64();
  const uint32_t flags = fields->u32();
  Failure checked = check(target, *fields);
  if (!checked.ok()) return checked;
  if (bytes == 0 || (flags & ~(kReadOnly | kWriteOnly | kPinned)) != 0 ||
      (flags & (kReadOnly | kWriteOnly)) == (kReadOnly | kWriteOnly))
    return bad_parameters();
  device().collect();
  if (bytes > limits_.device_bytes - *buffer_bytes_) return over_limit();
  auto buffer = device().allocate(bytes);
  // Reports nothing of what other sessions use.
  if (!buffer.ok())
    return buffer.status().code() == WCUDA_DEVICE_LOST ? launch_failed(buffer.status())
                                                       : over_limit("no room on the device");
  // Counted until the last submission that uses it has ended.
  DeviceBuffer* const memory = buffer->get();
  *buffer_bytes_ += bytes;
  handle->buffer = std::shared_ptr<DeviceBuffer>(
      memory, [kept = buffer.take(), bytes, all = buffer_bytes_](DeviceBuffer*) mutable {
        kept.reset();
        *all -= bytes;
      });
  handle->bytes = bytes;
  handle->flags = flags;
  return {};
}

Failure Capabilities::read_argument(Fields* fields, SubmitArgument* argument) const {
  const uint8_t kind = fields->u8();
  const bool is_plain = fields->u8() == 0 && fields->u16() == 0;
  argument->value = fields->bytes();
  if (fields->has_failed() || !is_plain) return bad_parameters();
  if (kind == 1) return argument->value.bytes > kInlineBytesMax ? over_limit() : Failure{};
  if (kind != 2 || argument->value.bytes != sizeof(uint32_t)) return bad_parameters();
  const Handle* const buffer = buffer_at(load_le<uint32_t>(argument->value.data));
  if (!buffer) return bad_parameters();
  argument->buffer = buffer->buffer;
  argument->buffer_bytes = buffer->bytes;
  argument->access = (buffer->flags & kReadOnly) != 0    ? WCUDA_ACCESS_READ
                     : (buffer->flags & kWriteOnly) != 0 ? WCUDA_ACCESS_WRITE
                                                         : 0;
  return {};
}

Failure Capabilities::submit(Fields* fields, const Wait& wait, Handle* handle) {
  const Target target{fields->text(), fields->text()};
  const std::string_view module = fields->text(), entry = fields->text();
  Submit what;
  for (uint32_t& each : what.grid) each = fields->u32();
  for (uint32_t& each : what.block) each = fields->u32();
  what.shared_bytes = fields->u32();
  const uint32_t count = fields->u32();
  if (fields->has_failed()) return bad_parameters();
  if (count > limits_.arguments) return over_limit();
  for (uint32_t i = 0; i < count; ++i) {
    what.arguments.emplace_back();
    Failure read = read_argument(fields, &what.arguments.back());
    if (!read.ok()) return read;
  }
  handle->budget_ms = fields->u32();
  Failure checked = check(target, *fields);
  if (!checked.ok()) return checked;
  Kernel kernel;
  Failure found = find_kernel(module, entry, &kernel, &what);
  if (!found.ok()) return found;
  handle->budget_ms = shorter(handle->budget_ms, kernel.info.budget_ms);
  auto point = device().submit(what);
  if (!point.ok()) return not_submitted(point.status());
  handle->point = point.take();
  if (wait.timeout_ms == 0) return {};
  const Clock::time_point budget_end = deadline_of(handle->budget_ms, wait.begin);
  const Status ended = device().wait(*handle->point, std::min(wait.until(), budget_end));
  if (ended.code() == WCUDA_TIMEOUT && wait.until() < budget_end) return timed_out();
  finish(ended, handle);
  return {};
}

Failure Capabilities::find_kernel(std::string_view module, std::string_view name, Kernel* kernel,
                                  Submit* what) const {
  if (module == kOwnModule) {
    if (!kernels_->find_name(name, kernel)) return no_kernel();
  } else if (!kernels_->find_entry(module, name, kernel)) {
    const auto found = modules_.find(module);
    if (found == modules_.end()) return no_kernel();
    what->module = found->second.module;
    what->entry = name;
    return {};
  }
  Outcome permitted = check_permitted(policy_, kernel->info);
  if (!permitted.ok()) return denied(std::move(permitted.message));
  const Status ready = kernels_->check_ready(*kernel);
  if (!ready.ok()) return not_submitted(ready);
  const auto is_set = [](uint32_t number) { return number != 0; };
  if (std::any_of(what->grid, what->grid + 3, is_set) ||
      std::any_of(what->block, what->block + 3, is_set) || what->shared_bytes != 0)
    return bad_parameters();
  what->kernel = kernel;
  return {};
}

// The record of a submission that has ended, or has not within its budget.
void Capabilities::finish(const Status& ended, Handle* handle) const {
  handle->point.reset();
  handle->record = {static_cast<uint8_t>(ended.ok() ? 0 : 1)};
  if (ended.ok()) return;
  Failure why = ended.code() == WCUDA_TIMEOUT ? timed_out() : launch_failed(ended);
  cut(&why.cause, limits_.message_bytes);
  put_text(&handle->record, why.trace);
  put_text(&handle->record, why.message);
  put_text(&handle->record, why.cause);
}

Failure Capabilities::sync(Fields* fields, const Wait& wait, Handle* handle) {
  const Target target{fields->text(), fields->text()};
  const std::string_view queue = fields->text();
  Failure checked = check(target, *fields);
  if (!checked.ok()) return checked;
  if (queue != "default") return bad_parameters();
  auto point = device().mark();
  if (!point.ok()) return launch_failed(point.status());
  const Status passed = device().wait(**point, wait.until());
  if (passed.code() == WCUDA_TIMEOUT) return timed_out();
  if (!passed.ok()) return launch_failed(passed);
  handle->record = {1};
  return {};
}

Failure Capabilities::make_stream(const Target& target, Fields* fields, Handle* handle) {
  const uint32_t flags = fields->u32();
  Failure checked = check(target, *fields);
  if (!checked.ok()) return checked;
  if (flags > 2) return bad_parameters();
  if (streams_.size() >= kStreamsMax) return over_limit();
  streams_.insert(next_stream_);
  put_number(&handle->record, next_stream_++, 4);
  return {};
}

Failure Capabilities::end_stream(const Target& target, Fields* fields, Handle* handle) {
  const uint32_t stream = fields->u32();
  Failure checked = check(target, *fields);
  if (!checked.ok()) return checked;
  if (streams_.erase(stream) == 0) return invalid_handle();
  handle->record = {1};
  return {};
}

Failure Capabilities::make_event(const Target& target, Fields* fields, Handle* handle) {
  const uint32_t flags = fields->u32();
  Failure checked = check(target, *fields);
  if (!checked.ok()) return checked;
  if (flags > 1) return bad_parameters();
  if (events_.size() >= kEventsMax) return over_limit();
  events_.emplace(next_event_, nullptr);
  put_number(&handle->record, next_event_++, 4);
  return {};
}

Failure Capabilities::record_event(const Target& target, Fields* fields, Handle* handle) {
  const uint32_t stream = fields->u32();
  const auto event = events_.find(fields->u32());
  Failure checked = check(target, *fields);
  if (!checked.ok()) return checked;
  if (!has_stream(stream) || event == events_.end()) return invalid_handle();
  event->second.reset();
  if (stream == 0) {
    auto point = device().mark();
    if (!point.ok()) return launch_failed(point.status());
    event->second = point.take();
  }
  handle->record = {1};
  return {};
}

Failure Capabilities::wait_for_event(const Target& target, Fields* fields, const Wait& wait,
                                     Handle* handle) {
  const uint32_t stream = fields->u32();
  const auto event = events_.find(fields->u32());
  const Wait shorter{std::min(fields->u32(), wait.timeout_ms), wait.begin};
  Failure checked = check(target, *fields);
  if (!checked.ok()) return checked;
  if (!has_stream(stream) || event == events_.end()) return invalid_handle();
  const Status passed = event->second ? device().wait(*event->second, shorter.until()) : Status();
  const bool is_late = passed.code() == WCUDA_TIMEOUT;
  if (!passed.ok() && !is_late) return launch_failed(passed);
  handle->record = {static_cast<uint8_t>(!is_late ? 1 : shorter.timeout_ms == 0 ? 0 : 2)};
  return {};
}

Failure Capabilities::copy(const Target& target, Fields* fields, Handle* handle) {
  const uint32_t source = fields->u32(), goal = fields->u32();
  const uint64_t bytes = fields->u64();
  const uint32_t flags = fields->u32();
  Failure checked = check(target, *fields);
  if (!checked.ok()) return checked;
  const Handle *const from = buffer_at(source), *const to = buffer_at(goal);
  if (!from || !to) return invalid_handle();
  if (flags > 1 || from == to || (to->flags & kWriteOnly) != 0 ||
      bytes > std::min(from->bytes, to->bytes))
    return bad_parameters();
  const Status queued = bytes == 0 ? Status() : device().copy(to->buffer, from->buffer, bytes);
  if (!queued.ok()) return {"t_accel_copy_failed", "copy failed", queued.message()};
  handle->record = {1};
  return {};
}

Failure Capabilities::load(const Target& target, Fields* fields, Handle* handle) {
  const Bytes code = fields->bytes();
  const std::string_view hint = fields->text();
  Failure checked = check(target, *fields);
  if (!checked.ok()) return checked;
  if (!policy_.permits_modules) return denied();
  if (code.bytes > kModuleBytesMax) return over_limit();
  Module loaded;
  blake3::Hasher hasher;
  hasher.update(code.data, code.bytes);
  hasher.finish(loaded.digest);
  for (const auto& [id, module] : modules_)
    if (std::equal(loaded.digest, loaded.digest + 32, module.digest)) {
      put_text(&handle->record, id);
      return {};
    }
  std::string id = hint.empty() ? hex_of(loaded.digest) : std::string(hint);
  if (id == kOwnModule || modules_.count(id) != 0) return bad_parameters();
  if (modules_.size() >= kModulesMax) return over_limit();
  auto module = device().load(code);
  if (!module.ok()) return {"t_accel_module_invalid", "no module", module.status().message()};
  loaded.module = module.take();
  put_text(&handle->record, id);
  modules_.emplace(std::move(id), std::move(loaded));
  return {};
}

Failure Capabilities::unload(const Target& target, Fields* fields, Handle* handle) {
  const auto module = modules_.find(fields->text());
  Failure checked = check(target, *fields);
  if (!checked.ok()) return checked;
  if (module == modules_.end()) return invalid_handle();
  modules_.erase(module);
  handle->record = {1};
  return {};
}

const Capabilities::Handle* Capabilities::buffer_at(uint32_t number) const {
  const auto found = handles_.find(static_cast<int32_t>(number));
  return found == handles_.end() || !found->second.buffer ? nullptr : &found->second;
}

bool Capabilities::has_stream(uint32_t id) const { return id == 0 || streams_.count(id) != 0; }

Clock::time_point Capabilities::deadline_of(uint32_t budget_ms, Clock::time_point begin) const {
  budget_ms = shorter(budget_ms, limits_.budget_ms);
  return budget_ms >= kNoBudget ? Clock::time_point::max()
                                : begin + std::chrono::milliseconds(budget_ms);
}

int32_t Capabilities::read(int32_t handle, uint64_t capacity,
                           const std::function<uint8_t*(uint64_t)>& target) {
  const auto found = handles_.find(handle);
  if (found == handles_.end()) return -1;
  Handle& from = found->second;
  if (capacity == 0) return 0;
  const Clock::time_point deadline = deadline_of(from.budget_ms, Clock::now());
  if (from.point) finish(device().wait(*from.point, deadline), &from);
  const uint64_t all = from.buffer ? from.bytes : from.record.size();
  const uint64_t bytes = std::min<uint64_t>({capacity, all - from.read_at, INT32_MAX});
  if (bytes == 0) return 0;
  if (!from.buffer)
    std::copy_n(from.record.data() + from.read_at, bytes, target(bytes));
  else if (!device().read(*from.buffer, from.read_at, target(bytes), bytes, deadline).ok())
    return -1;
  from.read_at += bytes;
  return static_cast<int32_t>(bytes);
}

int32_t Capabilities::write(int32_t handle, Bytes bytes) {
  const auto found = handles_.find(handle);
  if (found == handles_.end()) return -1;
  Handle& to = found->second;
  if (!to.buffer || (to.flags & kWriteOnly) != 0 || bytes.bytes > to.bytes - to.write_at) return -1;
  const Clock::time_point deadline = deadline_of(0, Clock::now());
  if (bytes.bytes != 0 && !device().write(*to.buffer, to.write_at, bytes, deadline).ok()) return -1;
  to.write_at += bytes.bytes;
  return static_cast<int32_t>(bytes.bytes);
}

}  // namespace wcuda::zctl
