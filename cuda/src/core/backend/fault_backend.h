// Makes a backend fail on demand: memory full, failed copies and launches, a lost device.
#pragma once

#include <atomic>

#include "core/backend/wrapper_backend.h"

namespace wcuda {

class FaultBackend final : public WrapperBackend {
 public:
  explicit FaultBackend(std::shared_ptr<Backend> inner) : WrapperBackend(std::move(inner)) {}

  // The k-th call of this kind from now on (1: the next) fails: kAllocate with WCUDA_OUT_OF_MEMORY,
  // kCompile with WCUDA_COMPILE_FAILED, all others with WCUDA_DEVICE_ERROR, as a driver's
  // non-sticky errors. 0: none.
  void fail(CallKind kind, uint64_t k);
  // The k-th call of any kind that can fail, and every one after it, finds the device lost.
  void lose_device(uint64_t k);
  // Calls that could have been made to fail, of all kinds, since the last of the two above.
  uint64_t call_count() const { return call_count_; }

  Status fault() const override;

 protected:
  Status before(const Call& call) override;

 private:
  std::atomic<CallKind> kind_{CallKind::kOther};
  std::atomic<uint64_t> fail_in_{0};
  std::atomic<uint64_t> lose_in_{0};
  std::atomic<uint64_t> call_count_{0};
  std::atomic<bool> lost_{false};
};

}  // namespace wcuda
