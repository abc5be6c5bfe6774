// The object behind a wcuda_failover: targets, policy, and a context for whole calls.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "api/base/context.h"
#include "core/backend/failover.h"
#include "core/backend/open.h"
#include "worker_cuda/backend.h"

namespace wcuda::api {

// Thread-safe.
class Failover {
 public:
  Failover(const FailoverSettings& settings, std::vector<wcuda_failover_target> targets,
           wcuda_failover_callback callback, void* user)
      : targets_(std::move(targets)), callback_(callback), user_(user), policy_(settings) {
    contexts_.resize(targets_.size());
  }

  // Runs `body` with the index of the active target, and again with the next if the policy says so.
  // *answered receives the index of the target that answered.
  using Body = std::function<Status(size_t target)>;
  Status run(const Body& body, bool repeats, size_t* answered);
  // Counts a failure that occurred outside run().
  void report(int32_t type, Code status);
  Status trigger();
  // Returns the context for whole calls on a target; opens it when first needed.
  Result<std::shared_ptr<Context>> context_of(size_t target);
  // Opens a new context on a target.
  Result<std::shared_ptr<Context>> open(size_t target, const OpenOptions& options,
                                        vram::Scrub scrub) const;
  const wcuda_failover_target& target(size_t index) const { return targets_[index]; }
  // Returns why a target other than the first is active: which was left last, the reason, the
  // failure.
  std::string moved_because() const;
  bool is_automatic() const { return policy_.settings().mode == WCUDA_FAILOVER_AUTOMATIC; }
  wcuda_failover_state state() const;

 private:
  void restore_if_right();
  bool leave(size_t from, int32_t reason, const Status& why);
  void report_event(int32_t event, int32_t reason, size_t from, size_t to, const Status& why) const;

  const std::vector<wcuda_failover_target> targets_;
  const wcuda_failover_callback callback_;
  void* const user_;
  std::mutex moving_;  // one thread moves or probes; taken before mutex_

  mutable std::mutex mutex_;  // guards the members below; not held during calls of a backend
  FailoverPolicy policy_;
  std::vector<std::shared_ptr<Context>> contexts_;
  std::string moved_because_;
  uint64_t move_count_ = 0;
  uint64_t restore_count_ = 0;
};

template <>
struct HandleOf<wcuda_failover> : HandleTo<Kind::kFailover, Failover> {};

}  // namespace wcuda::api
