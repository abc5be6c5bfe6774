// Frames and sessions of ZCTL/1 on hostile bytes.
#include "fuzz/zctl_entry.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <vector>

#include "core/base/bytes.h"
#include "fuzz/zctl_kernels.h"
#include "zctl/session.h"

namespace wcuda::fuzz {
namespace {

constexpr uint64_t kMemoryBytes = 4096;

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
  zctl::SessionLimits limits;
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

// A frame of ZCL1 has a shorter header; zctl_capabilities looks at the rest.
std::string check_response(const Outcome& outcome, uint64_t room) {
  if (outcome.ret == -1) return "";
  const auto ret = static_cast<uint64_t>(outcome.ret);
  const uint8_t* const response = outcome.response.data();
  const bool is_zcl1 = std::memcmp(response, "ZCL1", 4) == 0;
  if (outcome.ret < (is_zcl1 ? 24 : 32) || ret > room)
    return "the response has another size than its window";
  if (is_zcl1) return has_stated_size(response, ret) ? "" : "payload_len is not that of ZCL1";
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
  // What a run did not write is as it was; after a failure that is everything. A run may write into
  // its own frame, which lies behind the memory, and where the response comes after it.
  const bool has_run =
      is_run(input.frame) && first.ret >= 44 && load_le<uint32_t>(first.response.data() + 32) == 1;
  if (is_run(input.frame) && (!has_run || input.has_recorder)) {
    std::vector<uint8_t> before = input.memory;
    if (!input.is_remote) before.insert(before.end(), input.frame.begin(), input.frame.end());
    if (before.size() != first.memory.size()) return "the memory has another size";
    std::vector<uint8_t> unwritten = first.memory;
    for (const zctl::Window& each : first.written) {
      const uint64_t end = std::min<uint64_t>(each.begin + each.bytes, before.size());
      for (uint64_t at = each.begin; at < end; ++at) unwritten[at] = before[at];
    }
    if (unwritten != before) return "a byte outside was written";
  }
  return "";
}

}  // namespace wcuda::fuzz
