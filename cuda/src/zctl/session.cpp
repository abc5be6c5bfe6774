// The answers of a session, in the order of the tables of docs/FORMATS.md.
#include "zctl/session.h"

#include <algorithm>
#include <cinttypes>

#include "core/base/bytes.h"
#include "worker_cuda/compute.h"

namespace wcuda::zctl {
namespace {

constexpr uint32_t kWithoutNonDeterministic = 1u << 0;
constexpr uint32_t kWithoutNotHere = 1u << 1;

Outcome from_status(const Status& status) {
  if (status.ok()) return {};
  const int32_t code = wcuda_status_number(status.code(), WCUDA_NUMBERS_ZCTL);
  return {static_cast<uint32_t>(code), status.message()};
}

// The shortest of the budgets of a run; 0: none.
uint64_t smallest_budget(int64_t of_call, uint32_t of_frame, uint32_t of_session,
                         uint32_t of_kernel) {
  uint64_t smallest = UINT64_MAX;
  if (of_call > 0) smallest = static_cast<uint64_t>(of_call);
  for (const uint32_t each : {of_frame, of_session, of_kernel})
    if (each != 0 && each < kNoBudget) smallest = std::min<uint64_t>(smallest, each);
  return smallest == UINT64_MAX ? 0 : smallest;
}

bool window_of(const Memory& memory, int32_t begin, int32_t bytes, Window* window) {
  *window = {static_cast<uint64_t>(begin), static_cast<uint64_t>(bytes)};
  return memory.data != nullptr && begin >= 0 && bytes >= 0 && window->is_inside(memory);
}

bool is_capability(Bytes frame) {
  return frame.bytes >= kCapabilityIdBytes && load_le<uint32_t>(frame.data) == kCapabilityMagic;
}

bool is_known(uint16_t op, bool is_remote, bool has_kernels) {
  if (op == kCapsList) return true;
  if (!has_kernels) return false;
  switch (op) {
    case kKernelList:
    case kKernelRun:
      return true;
    case kMemWrite:
    case kMemRead:
    case kMemInfo:
    case kHandleRead:
    case kHandleWrite:
    case kHandleEnd:
    case kKernelDescribe:
      return is_remote;
    default:
      return false;
  }
}

}  // namespace

void cut(std::string* text, uint64_t bytes) {
  if (text->size() <= bytes) return;
  while (bytes > 0 && (static_cast<uint8_t>((*text)[bytes]) & 0xc0) == 0x80) --bytes;
  text->resize(bytes);
}

Outcome check_permitted(const Policy& policy, const KernelInfo& kernel) {
  if (policy.has_allow_list &&
      !std::binary_search(policy.allowed.begin(), policy.allowed.end(), kernel.id))
    return refuse(kDenied, "kernel is not allowed");
  if ((kernel.flags & WCUDA_KERNEL_NON_DETERMINISTIC) != 0 && !policy.permits_non_deterministic)
    return refuse(kDenied, "kernel is not deterministic");
  return {};
}

Session::Session(std::unique_ptr<Kernels> kernels, SessionLimits limits, Policy policy,
                 std::unique_ptr<Recorder> recorder)
    : kernels_(std::move(kernels)),
      limits_(limits),
      policy_(std::move(policy)),
      recorder_(std::move(recorder)) {}

int32_t Session::call(const Memory& memory, const Call& call) {
  const Clock::time_point begin = Clock::now();
  Window request, response;
  const bool has_request = window_of(memory, call.req_ptr, call.req_len, &request);
  const bool has_response = window_of(memory, call.resp_ptr, call.resp_cap, &response);
  request_.clear();
  if (has_request)
    request_.assign(memory.data + request.begin, memory.data + request.begin + request.bytes);
  record(Recorder::Kind::kRequest, 0, {request_.data(), request_.size()});
  int32_t ret = -1;
  if (has_request && has_response &&
      answer({{request_.data(), request_.size()},
              memory,
              response.bytes,
              false,
              response,
              call.timeout_ms,
              begin})) {
    std::memcpy(memory.data + response.begin, response_.data(), response_.bytes());
    ret = static_cast<int32_t>(response_.bytes());
  }
  record(Recorder::Kind::kResponse, 0, {response_.data(), ret < 0 ? 0 : response_.bytes()}, ret);
  return ret;
}

int32_t Session::serve(const Memory& memory, Bytes request, uint8_t* response, uint64_t capacity) {
  const uint64_t most = std::min(capacity, kHeaderBytes + limits_.payload_bytes);
  record(Recorder::Kind::kRequest, 0, request);
  int32_t ret = -1;
  if (answer({request, memory, most, true, std::nullopt, 0, Clock::now()})) {
    std::memcpy(response, response_.data(), response_.bytes());
    ret = static_cast<int32_t>(response_.bytes());
  }
  record(Recorder::Kind::kResponse, 0, {response, ret < 0 ? 0 : response_.bytes()}, ret);
  return ret;
}

int32_t Session::read(int32_t handle, const Memory& memory, int32_t ptr, int32_t cap) {
  Window window;
  if (!window_of(memory, ptr, cap, &window)) return -1;
  return capabilities_.read(handle, window.bytes,
                            [&](uint64_t) { return memory.data + window.begin; });
}

int32_t Session::write(int32_t handle, const Memory& memory, int32_t ptr, int32_t len) {
  Window window;
  if (!window_of(memory, ptr, len, &window)) return -1;
  return capabilities_.write(handle, {memory.data + window.begin, window.bytes});
}

bool Session::answer(const Frame& frame) {
  if (!is_capability(frame.bytes)) return answer_kernels(frame);
  return capabilities_.answer(
      {frame.bytes, frame.timeout_ms, frame.begin, frame.capacity, frame.is_remote}, &response_);
}

bool Session::answer_kernels(const Frame& frame) {
  Request request;
  if (!read_request(frame.bytes, &request) || frame.capacity < kHeaderBytes) return false;
  response_.begin();
  uint32_t status = kMalformed;
  if (is_well_formed(frame.bytes, request, limits_.payload_bytes)) {
    const bool is_run = request.op == kKernelRun;
    if (!is_known(request.op, frame.is_remote, kernels_ != nullptr)) {
      status = kUnsupported;
    } else if (is_run && frame.capacity < kRunResponseBytes) {
      if (!frame.is_remote) return false;
      status = kNoMemory;
    } else {
      status = is_run ? run(request, frame) : write_payload(request, frame);
    }
  }
  if (response_.bytes() > frame.capacity) {
    if (!frame.is_remote) return false;
    response_.cut_payload(0);
    status = kNoMemory;
  }
  response_.finish(request, status);
  return true;
}

uint32_t Session::write_payload(const Request& request, const Frame& frame) {
  switch (request.op) {
    case kCapsList:
      return list_capabilities(frame);
    case kKernelList:
      return list_kernels(request);
    case kMemWrite:
      return write_memory(request, frame);
    case kMemRead:
      return read_memory(request, frame);
    case kMemInfo:
      return describe_memory(request, frame);
    case kKernelDescribe:
      return describe(request);
    default:
      return use_handle(request, frame);
  }
}

uint32_t Session::list_capabilities(const Frame& frame) {
  constexpr std::string_view kNames[] = {"cuda.kernel.list", "cuda.kernel.run", "wcuda.remote"};
  uint32_t count = 0;
  if (kernels_) count = frame.is_remote ? 3 : 2;
  response_.put_u32(count);
  for (uint32_t i = 0; i < count; ++i) {
    response_.put_u32(i + 1);
    response_.put_text(kNames[i]);
  }
  return kOk;
}

uint32_t Session::list_kernels(const Request& request) {
  uint32_t filter = 0;
  if (request.payload.bytes != 0 && request.payload.bytes != sizeof(filter)) return kMalformed;
  if (request.payload.bytes != 0) filter = load_le<uint32_t>(request.payload.data);
  if ((filter & ~(kWithoutNonDeterministic | kWithoutNotHere)) != 0) return kBadArguments;
  uint32_t hidden = 0;
  if ((filter & kWithoutNonDeterministic) != 0) hidden |= WCUDA_KERNEL_NON_DETERMINISTIC;
  if ((filter & kWithoutNotHere) != 0) hidden |= WCUDA_KERNEL_NOT_HERE;
  uint32_t count = 0;
  response_.put_u32(count);
  kernels_->list([&](const KernelInfo& kernel) {
    if ((kernel.flags & hidden) != 0) return;
    ++count;
    response_.put_u32(kernel.id);
    response_.put_text(kernel.name);
    response_.put_u64(kernel.sig_hash);
    response_.put_u32(kernel.flags);
  });
  response_.set_u32(kHeaderBytes, count);
  return kOk;
}

uint32_t Session::describe(const Request& request) {
  if (request.payload.bytes != sizeof(uint32_t)) return kMalformed;
  Kernel kernel;
  if (!kernels_->find(load_le<uint32_t>(request.payload.data), &kernel)) return kBadArguments;
  response_.put_u64(kernel.info.sig_hash);
  response_.put_u32(kernel.info.flags);
  response_.put_u32(kernel.info.budget_ms);
  response_.put_u32(static_cast<uint32_t>(kernel.signature->parameters.size()));
  for (const jit::Parameter& each : kernel.signature->parameters) response_.put_text(each.name);
  response_.put_text(kernel.signature->canonical);
  return kOk;
}

uint32_t Session::write_memory(const Request& request, const Frame& frame) {
  if (request.payload.bytes < sizeof(uint64_t)) return kMalformed;
  const uint64_t bytes = request.payload.bytes - sizeof(uint64_t);
  const Window window{load_le<uint64_t>(request.payload.data), bytes};
  if (!window.is_inside(frame.memory)) return kMalformed;
  if (bytes != 0)
    std::memcpy(frame.memory.data + window.begin, request.payload.data + sizeof(uint64_t), bytes);
  return kOk;
}

uint32_t Session::read_memory(const Request& request, const Frame& frame) {
  if (request.payload.bytes != 16 || load_le<uint32_t>(request.payload.data + 12) != 0)
    return kMalformed;
  const Window window{load_le<uint64_t>(request.payload.data),
                      load_le<uint32_t>(request.payload.data + 8)};
  if (!window.is_inside(frame.memory)) return kMalformed;
  if (window.bytes > limits_.payload_bytes) return kNoMemory;
  response_.put(frame.memory.data + window.begin, window.bytes);
  return kOk;
}

uint32_t Session::describe_memory(const Request& request, const Frame& frame) {
  if (request.payload.bytes != 0) return kMalformed;
  response_.put_u64(frame.memory.bytes);
  response_.put_u32(limits_.payload_bytes);
  response_.put_u32(limits_.arguments);
  response_.put_u64(limits_.device_bytes);
  response_.put_u32(limits_.budget_ms);
  response_.put_u32(0);
  return kOk;
}

uint32_t Session::use_handle(const Request& request, const Frame& frame) {
  const Bytes payload = request.payload;
  const uint64_t number_bytes = request.op == kHandleRead ? 8 : 4;
  if (request.op == kHandleWrite ? payload.bytes < number_bytes : payload.bytes != number_bytes)
    return kMalformed;
  const auto handle = load_le<int32_t>(payload.data);
  if (request.op == kHandleEnd) {
    capabilities_.end(handle);
    return kOk;
  }
  if (request.op == kHandleWrite) {
    const int32_t ret = capabilities_.write(handle, {payload.data + 4, payload.bytes - 4});
    response_.put_u32(static_cast<uint32_t>(ret));
    return kOk;
  }
  const uint64_t room = std::min<uint64_t>(limits_.payload_bytes, frame.capacity - kHeaderBytes);
  const uint64_t most = room - std::min<uint64_t>(room, 4);
  const uint64_t capacity = std::min<uint64_t>(load_le<uint32_t>(payload.data + 4), most);
  response_.put_u32(0);
  const int32_t ret = capabilities_.read(handle, capacity,
                                         [&](uint64_t bytes) { return response_.put_room(bytes); });
  if (ret < 0) response_.cut_payload(4);
  response_.set_u32(kHeaderBytes, static_cast<uint32_t>(ret));
  return kOk;
}

uint32_t Session::run(const Request& request, const Frame& frame) {
  Outcome outcome = try_run(request, frame);
  cut(&outcome.message,
      std::min<uint64_t>(limits_.message_bytes, frame.capacity - kRunResponseBytes));
  response_.put_u32(outcome.ok());
  response_.put_u32(outcome.code);
  response_.put_text(outcome.message);
  return outcome.code == kTimeout ? kTimeout : kOk;
}

Outcome Session::try_run(const Request& request, const Frame& frame) {
  const Bytes payload = request.payload;
  if (payload.bytes < kRunHeaderBytes) return refuse(kMalformed, "payload too small");
  const auto id = load_le<uint32_t>(payload.data);
  const auto count = load_le<uint32_t>(payload.data + 4);
  const auto base = load_le<uint32_t>(payload.data + 8);
  if (load_le<uint32_t>(payload.data + 12) != 0) return refuse(kMalformed, "reserved is not 0");
  if (count > limits_.arguments)
    return refuse(kBadArguments, "%u args, at most %u", count, limits_.arguments);
  if (payload.bytes - kRunHeaderBytes < count * kWireArgumentBytes)
    return refuse(kMalformed, "args truncated");
  Kernel kernel;
  Outcome found = find_kernel(id, &kernel);
  if (!found.ok()) return found;
  Arguments arguments;
  arguments.words = payload.data + kRunHeaderBytes;
  arguments.count = count;
  arguments.base = base;
  arguments.rank_max = limits_.rank;
  arguments.response = frame.response;
  Outcome checked = marshalled_.read(kernel, arguments, frame.memory);
  if (checked.ok()) return run_checked(kernel, request, frame);
  if (recorder_) record_all(Recorder::Kind::kRead, marshalled_.read_windows());
  return checked;
}

Outcome Session::find_kernel(uint32_t id, Kernel* kernel) {
  if (!kernels_->find(id, kernel)) return refuse(kBadArguments, "kernel id not found");
  Outcome permitted = check_permitted(policy_, kernel->info);
  if (!permitted.ok()) return permitted;
  const Status ready = kernels_->check_ready(*kernel);
  return ready.ok() ? Outcome{} : Outcome{kBackend, ready.message()};
}

Outcome Session::run_checked(const Kernel& kernel, const Request& request, const Frame& frame) {
  const uint64_t bytes = marshalled_.device_bytes();
  Outcome outcome;
  uint8_t* staged = nullptr;
  if (bytes > limits_.device_bytes) {
    outcome = refuse(kNoMemory, "%" PRIu64 " bytes of device memory, at most %" PRIu64, bytes,
                     limits_.device_bytes);
  } else if (marshalled_.block().bytes != 0) {
    const auto block = kernels_->stage(marshalled_.block().bytes);
    outcome = from_status(block.status());
    if (block.ok()) staged = *block;
  }
  if (staged) marshalled_.gather(frame.memory, staged, recorder_ != nullptr, kernels_.get());
  if (recorder_) record_all(Recorder::Kind::kRead, marshalled_.read_windows());
  if (!outcome.ok()) return outcome;

  const uint64_t budget_ms = smallest_budget(frame.timeout_ms, request.timeout_ms,
                                             limits_.budget_ms, kernel.info.budget_ms);
  const Clock::time_point deadline = budget_ms == 0
                                         ? Clock::time_point::max()
                                         : frame.begin + std::chrono::milliseconds(budget_ms);
  const auto ran = kernels_->run(kernel, marshalled_.run_arguments(),
                                 marshalled_.block_for(frame.memory), deadline);
  if (ran.status().code() == WCUDA_TIMEOUT)
    return refuse(kTimeout, "budget of %" PRIu64 " ms is over", budget_ms);
  outcome = from_status(ran.status());
  if (outcome.ok()) outcome = marshalled_.check_sums(staged);
  if (!outcome.ok()) return outcome;
  if (!*ran) marshalled_.scatter(staged, frame.memory, kernels_.get());
  if (recorder_) record_all(Recorder::Kind::kWritten, marshalled_.written_windows(frame.memory));
  return {};
}

void Session::record(Recorder::Kind kind, uint64_t offset, Bytes bytes, int32_t ret) {
  if (recorder_) recorder_->record(kind, offset, bytes, ret);
}

void Session::record_all(Recorder::Kind kind, const std::vector<Touched>& all) {
  for (const Touched& each : all) record(kind, each.window.begin, {each.data, each.window.bytes});
}

}  // namespace wcuda::zctl
