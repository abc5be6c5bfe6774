// A call as a line of JSON.
#include "core/backend/trace_backend.h"

#include <cinttypes>
#include <cstdio>
#include <cstring>

namespace wcuda {
namespace {

// The slot of the public table that a call stands for; calls beyond it keep their own name.
const char* slot_of(const char* name) {
  static constexpr const char* kSlots[][2] = {
      {"allocate_scratch", "allocate"},     {"free_scratch", "free"},
      {"copy_to_host", "copy_from_device"}, {"copy_to_host_async", "copy_from_device_async"},
      {"kernel_launch", "launch_kernel"},   {"host_launch", "launch_kernel"},
      {"stream_wait", "event_order"},       {"event_elapsed_ms", "event_elapsed"}};
  for (const auto& slot : kSlots)
    if (std::strcmp(slot[0], name) == 0) return slot[1];
  return name;
}

}  // namespace

std::string trace_line(const Call& call, const Status& status) {
  char line[256];  // names and numbers only: nothing to escape, and it fits
  const int bytes = std::snprintf(line, sizeof(line),
                                  R"({"slot":"%s","bytes":%)" PRIu64 R"(,"stream":%)" PRIu64
                                  R"(,"ns":%)" PRIu64 R"(,"status":"%s"})",
                                  slot_of(call.name), call.bytes, call.stream.id, call.ns,
                                  wcuda_status_name(status.code()));
  return std::string(line, bytes > 0 ? static_cast<size_t>(bytes) : 0);
}

}  // namespace wcuda
