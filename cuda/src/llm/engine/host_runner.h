// The host backend's runner: one thread of its own that computes ticket after ticket.
#pragma once

#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>

#include "llm/engine/runner.h"

namespace wcuda::engine {

class HostRunner final : public Runner {
 public:
  explicit HostRunner(const Machine& machine);
  ~HostRunner() override;

  Status submit(const std::shared_ptr<Ticket>& ticket) override;
  bool wait(Ticket& ticket, int64_t timeout_ms) override;
  void execute(const Command& command) override;
  Status warm_up() override { return machine_.ops->warm_up(); }
  Status copy_logits(const Ticket& ticket, uint64_t first, uint64_t count, float* target) override;
  const int32_t* top_tokens(const Ticket& ticket) const override;
  const float* top_logprobs(const Ticket& ticket) const override;

 private:
  void loop();
  void run(Ticket& ticket, const Ticket* previous);

  const Machine machine_;
  std::mutex mutex_;
  std::condition_variable submitted_;
  std::condition_variable finished_;
  std::deque<std::shared_ptr<Ticket>> queue_;
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace wcuda::engine
