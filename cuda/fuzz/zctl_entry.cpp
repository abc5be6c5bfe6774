// Frames and sessions of ZCTL/1 on hostile bytes.
#include "fuzz/zctl_entry.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <vector>

#include "core/base/bytes.h"
#include "worker_cuda/compute.h"
#include "zctl/session.h"

namespace wcuda::fuzz {
namespace {

constexpr uint64_t kMemoryBytes = 4096;
constexpr uint32_t kPayloadBytesMax = 2048;

wcuda_string text(const char* value) { return {value, std::strlen(value)}; }

wcuda_parameter parameter(const char* name, int32_t kind, const char* shape = "",
                          uint32_t access = 0, const char* min = "") {
  wcuda_parameter result = WCUDA_PARAMETER_INIT;
  result.name = text(name);
  result.kind = kind;
  result.shape = text(shape);
  result.min = text(min);
  if (kind == WCUDA_ARG_BUFFER) {
    result.dtype = access == WCUDA_ACCESS_READ ? WCUDA_ARG_F32 : WCUDA_ARG_U8;
    result.access = access;
    result.layout_id = 7;
  }
  return result;
}

// Signatures are read once: most of an execution would be that.
class Catalogue {
 public:
  Catalogue() {
    constexpr int32_t kBuffer = WCUDA_ARG_BUFFER;
    constexpr uint32_t kRead = WCUDA_ACCESS_READ, kWrite = WCUDA_ACCESS_WRITE;
    add(1, "noop", 0, {});
    add(2, "tensor_add", 0,
        {parameter("a", kBuffer, "n", kRead), parameter("b", kBuffer, "n", kRead),
         parameter("c", kBuffer, "n", kWrite), parameter("n", WCUDA_ARG_I64)});
    add(3, "update", 0,
        {parameter("x", kBuffer, "rows, columns % 5", kRead | kWrite),
         parameter("rows", WCUDA_ARG_U8, "", 0, "columns / 2"),
         parameter("columns", WCUDA_ARG_U64)});
    add(4, "values", WCUDA_KERNEL_NON_DETERMINISTIC,
        {parameter("i", WCUDA_ARG_I16), parameter("h", WCUDA_ARG_F16),
         parameter("f", WCUDA_ARG_F32, "", 0, "-1"), parameter("d", WCUDA_ARG_F64),
         parameter("s", WCUDA_ARG_BYTES, "12")});
    add(5, "late", 0, {parameter("x", kBuffer, "4", kWrite)});
    add(6, "absent", WCUDA_KERNEL_NOT_HERE, {});
  }
  const std::vector<zctl::Kernel>& kernels() const { return kernels_; }

 private:
  void add(uint32_t id, const char* name, uint32_t flags,
           const std::vector<wcuda_parameter>& parameters) {
    auto signature = std::make_shared<jit::Signature>(
        jit::read_signature(parameters.data(), parameters.size()).take());
    zctl::Kernel kernel;
    kernel.info = {id, flags, 0, id, name};
    kernel.signature = signature.get();
    kernel.entry = std::move(signature);
    kernels_.push_back(std::move(kernel));
  }

  std::vector<zctl::Kernel> kernels_;
};

// Runs by filling what is written; "late" is past its deadline.
class PlainKernels final : public zctl::Kernels {
 public:
  void list(const std::function<void(const zctl::KernelInfo&)>& each) override {
    for (const zctl::Kernel& kernel : kernels_) each(kernel.info);
  }
  bool find(uint32_t id, zctl::Kernel* kernel) override {
    if (id == 0 || id > kernels_.size()) return false;
    *kernel = kernels_[id - 1];
    return true;
  }
  bool find_name(std::string_view name, zctl::Kernel* kernel) override {
    for (const zctl::Kernel& each : kernels_)
      if (each.info.name == name) {
        *kernel = each;
        return true;
      }
    return false;
  }
  Status check_ready(const zctl::Kernel& kernel) override {
    if ((kernel.info.flags & WCUDA_KERNEL_NOT_HERE) == 0) return {};
    return Status::error(WCUDA_UNSUPPORTED_KERNEL, "has no code");
  }
  Result<uint8_t*> stage(uint64_t bytes) override {
    // Exactly sized: a sanitizer sees a byte too many.
    block_ = std::make_unique<uint8_t[]>(bytes);
    return block_.get();
  }
  Status run(const zctl::Kernel& kernel, const std::vector<zctl::RunArgument>& arguments,
             const zctl::RunBlock& block, zctl::Clock::time_point) override {
    if (kernel.info.id == 2) return add_floats(arguments);
    if (block.bytes != 0)
      std::memset(block_.get() + block.download_begin, 0x5a, block.bytes - block.download_begin);
    if (kernel.info.id == 5) return Status::error(WCUDA_TIMEOUT, "late");
    return {};
  }

 private:
  // Of the older form too, whose sums are checked. c has elements of one byte else.
  Status add_floats(const std::vector<zctl::RunArgument>& arguments) {
    const uint64_t count = std::min(arguments[0].bytes, arguments[2].bytes) / sizeof(float);
    for (uint64_t i = 0; i < count; ++i) {
      const auto at = [&](size_t index) { return block_.get() + arguments[index].offset + 4 * i; };
      store_le(at(2), load_le<float>(at(0)) + load_le<float>(at(1)));
    }
    return {};
  }

  static const std::vector<zctl::Kernel>& all() {
    static const Catalogue catalogue;
    return catalogue.kernels();
  }

  const std::vector<zctl::Kernel>& kernels_ = all();
  std::unique_ptr<uint8_t[]> block_;
};

struct WrittenWindows final : zctl::Recorder {
  std::vector<zctl::Window>* windows;
  explicit WrittenWindows(std::vector<zctl::Window>* into) : windows(into) {}
  void record(Kind kind, uint64_t offset, zctl::Bytes bytes, int32_t) override {
    if (kind == Kind::kWritten) windows->push_back({offset, bytes.bytes});
  }
};

struct Input {
  bool is_remote, is_small, has_recorder;
  std::vector<uint8_t> frame;
  std::vector<uint8_t> memory;
};

bool read_input(const uint8_t* data, size_t bytes, Input* input) {
  if (bytes < 3) return false;
  input->is_remote = data[0] & 1;
  input->is_small = data[0] & 2;
  input->has_recorder = data[0] & 4;
  const size_t length = std::min<size_t>(load_le<uint16_t>(data + 1), bytes - 3);
  input->frame.assign(data + 3, data + 3 + length);
  const size_t rest = std::min<size_t>(bytes - 3 - length, kMemoryBytes);
  input->memory.assign(kMemoryBytes, 0);
  std::copy_n(data + 3 + length, rest, input->memory.begin());
  return true;
}

struct Outcome {
  int32_t ret = -1;
  std::vector<uint8_t> response;
  std::vector<uint8_t> memory;  // without the response
  std::vector<zctl::Window> written;
};

Outcome answer(const Input& input) {
  Outcome outcome;
  zctl::Limits limits;
  limits.payload_bytes = kPayloadBytesMax;
  limits.device_bytes = 1 << 16;
  zctl::Policy policy;
  policy.permits_non_deterministic = true;
  std::unique_ptr<zctl::Recorder> recorder;
  if (input.has_recorder) recorder = std::make_unique<WrittenWindows>(&outcome.written);
  zctl::Session session(std::make_unique<PlainKernels>(), limits, policy, std::move(recorder));
  const uint64_t room = input.is_small ? 50 : 32 + kPayloadBytesMax;
  if (input.is_remote) {
    outcome.memory = input.memory;
    outcome.response.resize(room);
    outcome.ret =
        session.serve({outcome.memory.data(), outcome.memory.size()},
                      {input.frame.data(), input.frame.size()}, outcome.response.data(), room);
  } else {
    // Behind what the input's memory covers: frame, then response.
    const auto frame_at = static_cast<int32_t>(kMemoryBytes);
    const auto frame_bytes = static_cast<int32_t>(input.frame.size());
    const int32_t response_at = frame_at + frame_bytes;
    std::vector<uint8_t> memory = input.memory;
    memory.insert(memory.end(), input.frame.begin(), input.frame.end());
    memory.resize(memory.size() + room, 0xcc);
    outcome.ret = session.call({memory.data(), memory.size()},
                               {frame_at, frame_bytes, response_at, static_cast<int32_t>(room), 0});
    outcome.memory.assign(memory.begin(), memory.begin() + response_at);
    outcome.response.assign(memory.begin() + response_at, memory.end());
  }
  return outcome;
}

std::string check_response(const Outcome& outcome, uint64_t room) {
  if (outcome.ret == -1) return "";
  const auto ret = static_cast<uint64_t>(outcome.ret);
  if (outcome.ret < 32 || ret > room) return "the response has another size than its window";
  const uint8_t* const response = outcome.response.data();
  if (load_le<uint32_t>(response + 20) + 32 != ret)
    return "payload_len is not that of the response";
  if (load_le<uint32_t>(response + 8) != 0 || load_le<uint32_t>(response + 28) != 0)
    return "flags or tail are not 0";
  if (load_le<uint32_t>(response + 16) > 7) return "the status has no name";
  return "";
}

bool is_run(const std::vector<uint8_t>& frame) {
  return frame.size() >= 32 && load_le<uint16_t>(frame.data() + 6) == zctl::kKernelRun;
}

}  // namespace

std::string exercise_zctl_frame(const uint8_t* data, size_t bytes) {
  const std::vector<uint8_t> copy(data, data + bytes);
  zctl::Request request;
  if (!zctl::read_request({copy.data(), bytes}, &request))
    return bytes >= 32 && std::memcmp(copy.data(), "ZCTL\1\0", 6) == 0 ? "a frame is refused" : "";
  if (request.payload.bytes != bytes - 32) return "the payload has another size";
  const bool is_good = zctl::is_well_formed({copy.data(), bytes}, request, kPayloadBytesMax);
  if (is_good && (request.payload_bytes != bytes - 32 || request.flags != 0))
    return "a frame with other lengths or flags is good";
  zctl::Response response;
  response.begin();
  response.put(request.payload.data, request.payload.bytes);
  response.finish(request, 0);
  // A response is a frame whose fields stand elsewhere; its checksum is checked as a request's.
  zctl::Request echoed;
  if (!zctl::read_request({response.data(), response.bytes()}, &echoed))
    return "a response is no frame";
  if (echoed.op != request.op || echoed.req_id != request.req_id) return "op or req_id is lost";
  return "";
}

std::string exercise_zctl_session(const uint8_t* data, size_t bytes) {
  Input input;
  if (!read_input(data, bytes, &input)) return "";
  const Outcome first = answer(input);
  const uint64_t room = input.is_small ? 50 : 32 + kPayloadBytesMax;
  const std::string wrong = check_response(first, room);
  if (!wrong.empty()) return wrong;
  const Outcome second = answer(input);
  if (second.ret != first.ret || second.response != first.response || second.memory != first.memory)
    return "equal requests have other answers";
  // What a run did not write is as it was; after a failure that is everything.
  const bool has_run =
      is_run(input.frame) && first.ret >= 44 && load_le<uint32_t>(first.response.data() + 32) == 1;
  if (is_run(input.frame) && (!has_run || input.has_recorder)) {
    std::vector<uint8_t> unwritten = first.memory;
    for (const zctl::Window& each : first.written)
      std::copy_n(input.memory.begin() + static_cast<ptrdiff_t>(each.begin), each.bytes,
                  unwritten.begin() + static_cast<ptrdiff_t>(each.begin));
    if (!std::equal(input.memory.begin(), input.memory.end(), unwritten.begin()))
      return "a byte outside was written";
  }
  return "";
}

}  // namespace wcuda::fuzz
