// Counting down to failures.
#include "core/backend/fault_backend.h"

namespace wcuda {
namespace {

// One step of a countdown; true on the step that reaches 0.
bool reaches_zero(std::atomic<uint64_t>& countdown) {
  uint64_t value = countdown.load();
  while (value != 0 && !countdown.compare_exchange_weak(value, value - 1)) {
  }
  return value == 1;
}

}  // namespace

void FaultBackend::fail(CallKind kind, uint64_t k) {
  kind_ = kind;
  fail_in_ = k;
  call_count_ = 0;
}

void FaultBackend::lose_device(uint64_t k) {
  lose_in_ = k;
  call_count_ = 0;
}

Status FaultBackend::fault() const {
  if (!lost_) return WrapperBackend::fault();
  return Status::native_error(WCUDA_DEVICE_LOST, 719, "device lost: injected fault");
}

Status FaultBackend::before(const Call& call) {
  if (call.kind == CallKind::kEnd) return {};
  ++call_count_;
  if (reaches_zero(lose_in_)) lost_ = true;
  WCUDA_TRY(fault());
  if (call.kind != kind_ || !reaches_zero(fail_in_)) return {};
  if (call.kind == CallKind::kAllocate)
    return Status::native_error(WCUDA_OUT_OF_MEMORY, 2, "%s: injected out of memory", call.name);
  if (call.kind == CallKind::kCompile)
    return Status::error(WCUDA_COMPILE_FAILED, "%s: injected failure", call.name);
  return Status::native_error(WCUDA_DEVICE_ERROR, 999, "%s: injected failure", call.name);
}

}  // namespace wcuda
