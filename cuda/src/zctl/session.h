// A session: answers frames of ZCTL/1 with the kernels of an interface, those of ZCL1 with its
// device. Owns no memory of a guest.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "zctl/arguments.h"
#include "zctl/capabilities.h"
#include "zctl/frames.h"
#include "zctl/kernels.h"
#include "zctl/limits.h"

namespace wcuda::zctl {

// Receives what a call read and wrote. In order: the frame, what was read, what was written, the
// response.
class Recorder {
 public:
  enum class Kind { kRequest, kRead, kWritten, kResponse };
  virtual ~Recorder() = default;
  // `offset` is that in the memory, of kRead and kWritten; `ret` is of kResponse.
  virtual void record(Kind kind, uint64_t offset, Bytes bytes, int32_t ret) = 0;
};

// A call in process: the numbers as the guest gave them.
struct Call {
  int32_t req_ptr;
  int32_t req_len;
  int32_t resp_ptr;
  int32_t resp_cap;
  int32_t timeout_ms;
};

// One call at a time.
class Session {
 public:
  // `recorder` may be null. Without `kernels` the session has no capabilities: CAPS_LIST lists
  // none, and every other op is unknown.
  Session(std::unique_ptr<Kernels> kernels, SessionLimits limits, Policy policy,
          std::unique_ptr<Recorder> recorder);

  // In process: request and response lie in the memory. Bytes of the response, or -1.
  int32_t call(const Memory& memory, const Call& call);
  // On a connection: neither does. Bytes of the response, or -1.
  int32_t serve(const Memory& memory, Bytes request, uint8_t* response, uint64_t capacity);

  // The handles that a CAPS_OPEN gave, for the callbacks of a guest: bytes, 0 at the end, -1.
  int32_t read(int32_t handle, const Memory& memory, int32_t ptr, int32_t cap);
  int32_t write(int32_t handle, const Memory& memory, int32_t ptr, int32_t len);
  void end(int32_t handle) { capabilities_.end(handle); }

  const SessionLimits& limits() const { return limits_; }

 private:
  struct Frame {
    Bytes bytes;
    Memory memory;
    uint64_t capacity;               // for the response, with its header
    bool is_remote;                  // of a connection
    std::optional<Window> response;  // in the memory
    int64_t timeout_ms;              // of the caller; 0 and less: none
    Clock::time_point begin;
  };

  // False when there is no answer; else it is in response_.
  bool answer(const Frame& frame);
  bool answer_kernels(const Frame& frame);
  uint32_t write_payload(const Request& request, const Frame& frame);
  uint32_t list_capabilities(const Frame& frame);
  uint32_t list_kernels(const Request& request);
  uint32_t describe(const Request& request);
  uint32_t read_memory(const Request& request, const Frame& frame);
  uint32_t write_memory(const Request& request, const Frame& frame);
  uint32_t describe_memory(const Request& request, const Frame& frame);
  uint32_t use_handle(const Request& request, const Frame& frame);

  uint32_t run(const Request& request, const Frame& frame);
  Outcome try_run(const Request& request, const Frame& frame);
  Outcome find_kernel(uint32_t id, Kernel* kernel);
  Outcome run_checked(const Kernel& kernel, const Request& request, const Frame& frame);

  void record(Recorder::Kind kind, uint64_t offset, Bytes bytes, int32_t ret = 0);
  void record_all(Recorder::Kind kind, const std::vector<Touched>& all);

  const std::unique_ptr<Kernels> kernels_;
  const SessionLimits limits_;
  const Policy policy_;
  const std::unique_ptr<Recorder> recorder_;
  std::vector<uint8_t> request_;  // copy of a frame in the memory
  Response response_;
  Capabilities capabilities_{kernels_.get(), limits_, policy_};
  Marshalled marshalled_;
};

}  // namespace wcuda::zctl
