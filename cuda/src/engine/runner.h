// Executes tickets in order, apart from the thread that submits them.
#pragma once

#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>

#include "engine/forward.h"
#include "engine/limits.h"
#include "engine/ticket.h"

namespace wcuda::engine {

// What a runner works on; fixed for the engine's life.
struct Machine {
  std::shared_ptr<model::Model> model;
  std::shared_ptr<ops::Ops> ops;
  Limits limits;
  Layout layout;
  ops::KvPool pool;
  uint8_t* kv = nullptr;       // the block "kv"
  uint8_t* scratch = nullptr;  // the block "scratch"

  int32_t* history(uint32_t slot) const {
    return reinterpret_cast<int32_t*>(kv + layout.history) +
           uint64_t{slot} * limits.history_stride();
  }
  uint8_t* ticket_block(uint32_t parity) const {
    return scratch + layout.ticket + parity * layout.ticket_stride;
  }
  template <class T>
  T* in_ticket(uint32_t parity, uint64_t offset) const {
    return reinterpret_cast<T*>(ticket_block(parity) + offset);
  }
};

// The host backend's: one thread of its own that computes ticket after ticket.
class HostRunner {
 public:
  explicit HostRunner(const Machine& machine);
  ~HostRunner();  // finishes what was submitted
  HostRunner(const HostRunner&) = delete;
  HostRunner& operator=(const HostRunner&) = delete;

  // Never blocks on the computation. The ticket must live until it is done.
  void submit(std::shared_ptr<Ticket> ticket);
  // Waits until the ticket is done; false when timeout_ms (>= 0) passed first.
  bool wait(const Ticket& ticket, int64_t timeout_ms);
  // Carries out one command; nothing may be running.
  static void execute(const Machine& machine, const Command& command);

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
