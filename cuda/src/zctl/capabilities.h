// The capabilities of a session: ZCL1 frames and the handles that they open.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "zctl/device.h"
#include "zctl/frames.h"
#include "zctl/kernels.h"
#include "zctl/limits.h"

namespace wcuda::zctl {

// A frame of ZCL1, of at least kCapabilityIdBytes.
struct CapabilityCall {
  Bytes frame;
  int64_t timeout_ms;  // of the caller; 0 and less: none
  Clock::time_point begin;
  uint64_t capacity;  // for the response, with its header
  bool is_remote;     // of a connection
};

// Why a request fails.
struct [[nodiscard]] Failure {
  const char* trace = nullptr;  // null: it does not
  const char* message = nullptr;
  std::string cause;
  bool ok() const { return trace == nullptr; }
};

class Capabilities {
 public:
  // They outlive this. Without kernels there is no capability.
  Capabilities(Kernels* kernels, const SessionLimits& limits, const Policy& policy)
      : kernels_(kernels), limits_(limits), policy_(policy) {}

  // False when there is no answer.
  bool answer(const CapabilityCall& call, Response* response);

  // The callbacks of a guest: bytes, 0 at the end, -1. `target` is called once there are bytes to
  // read, with their number: however large the capacity is, there is need of no more room.
  int32_t read(int32_t handle, uint64_t capacity, const std::function<uint8_t*(uint64_t)>& target);
  int32_t write(int32_t handle, Bytes bytes);
  void end(int32_t handle) { handles_.erase(handle); }

 private:
  struct Handle {
    std::vector<uint8_t> record;
    std::shared_ptr<DevicePoint> point;  // of a submission whose record is not known yet
    uint32_t budget_ms = 0;
    std::shared_ptr<DeviceBuffer> buffer;  // null: a record
    uint64_t bytes = 0;                    // of the buffer
    uint32_t flags = 0;
    uint64_t read_at = 0, write_at = 0;
  };
  struct Module {
    uint8_t digest[32];
    std::shared_ptr<DeviceModule> module;
  };
  struct Target {
    std::string_view backend, id;
  };
  struct Wait {
    uint32_t timeout_ms;  // 0: never blocks
    Clock::time_point begin;
    Clock::time_point until() const { return begin + std::chrono::milliseconds(timeout_ms); }
  };

  Failure check_frame(const CapabilityCall& call) const;
  Failure write_payload(uint16_t op, Fields fields, const Wait& wait, Response* response);
  Failure describe(Fields* fields, Response* response) const;
  Failure open(Fields* fields, const Wait& wait, Response* response);
  Failure open_accelerator(uint32_t mode, Fields fields, const Wait& wait, Handle* handle);
  Failure open_extension(uint32_t mode, Fields fields, const Wait& wait, Handle* handle);

  Failure query(Fields* fields, Handle* handle) const;
  Failure make_buffer(Fields* fields, Handle* handle);
  Failure submit(Fields* fields, const Wait& wait, Handle* handle);
  Failure read_argument(Fields* fields, SubmitArgument* argument) const;
  Failure find_kernel(std::string_view module, std::string_view name, Kernel* kernel,
                      Submit* what) const;
  Failure sync(Fields* fields, const Wait& wait, Handle* handle);
  Failure make_stream(const Target& target, Fields* fields, Handle* handle);
  Failure end_stream(const Target& target, Fields* fields, Handle* handle);
  Failure make_event(const Target& target, Fields* fields, Handle* handle);
  Failure record_event(const Target& target, Fields* fields, Handle* handle);
  Failure wait_for_event(const Target& target, Fields* fields, const Wait& wait, Handle* handle);
  Failure copy(const Target& target, Fields* fields, Handle* handle);
  Failure load(const Target& target, Fields* fields, Handle* handle);
  Failure unload(const Target& target, Fields* fields, Handle* handle);

  Failure check(const Target& target, const Fields& fields) const;
  DeviceInfo info() const;
  Device& device() const { return *kernels_->device(); }
  const Handle* buffer_at(uint32_t number) const;
  bool has_stream(uint32_t id) const;
  Clock::time_point deadline_of(uint32_t budget_ms, Clock::time_point begin) const;
  void finish(const Status& ended, Handle* handle) const;

  Kernels* const kernels_;
  const SessionLimits& limits_;
  const Policy& policy_;
  std::map<int32_t, Handle> handles_;
  int64_t next_handle_ = 4;
  std::set<uint32_t> streams_;  // ids, without stream 0
  // By id; null: nothing was queued before it was recorded, or it never was.
  std::map<uint32_t, std::shared_ptr<DevicePoint>> events_;
  uint32_t next_stream_ = 1, next_event_ = 1;
  std::map<std::string, Module, std::less<>> modules_;
  std::shared_ptr<uint64_t> buffer_bytes_ = std::make_shared<uint64_t>(0);
};

}  // namespace wcuda::zctl
