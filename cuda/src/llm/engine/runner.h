// Executes tickets in order, apart from the thread that submits them.
#pragma once

#include <memory>

#include "core/vram/memory.h"
#include "llm/engine/forward.h"
#include "llm/engine/limits.h"
#include "llm/engine/ticket.h"

namespace wcuda::engine {

// What a runner works on; fixed for the engine's life.
struct Machine {
  std::shared_ptr<vram::Memory> memory;
  std::shared_ptr<model::Model> model;
  std::shared_ptr<ops::Ops> ops;
  Limits limits;
  Layout layout;
  ops::KvPool pool;
  bool has_persistent_layers = false;  // in steps of one token
  uint8_t* kv = nullptr;               // the block "kv"
  uint8_t* scratch = nullptr;          // the block "scratch"

  // What a step of this shape does. Pure.
  ops::StepPlan plan(const ops::StepShape& shape) const {
    return ops::plan_step(model->config(), model->weights(), limits, ops->device(), shape);
  }
  Activations activations() const {
    const auto at = [this](uint64_t offset) { return reinterpret_cast<float*>(scratch + offset); };
    return {at(layout.x),     at(layout.query),     at(layout.key),
            at(layout.value), at(layout.attention), at(layout.hidden)};
  }
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
  // The arrays of a step in its ticket block, and what the forward pass takes.
  StepInputs inputs(uint32_t parity) const;
  ops::Batch batch(uint32_t parity, const ops::StepShape& shape) const;
  StepArgs step(uint32_t parity, const ops::Batch& batch) const;
};

// One a backend. Tickets are executed in the order of submission.
// Thread rule: as of the engine; execute() under its lock, and only while nothing runs.
class Runner {
 public:
  virtual ~Runner() = default;  // finishes what was submitted

  // Never blocks on the computation. The ticket's results are there once wait() has said so. When
  // it fails the ticket does not run; commands that were carried out are no longer in it.
  virtual Status submit(const std::shared_ptr<Ticket>& ticket) = 0;
  // Waits until the oldest ticket is done and takes in its results and its status; false when
  // timeout_ms (>= 0) passed first.
  virtual bool wait(Ticket& ticket, int64_t timeout_ms) = 0;
  virtual void execute(const Command& command) = 0;
  virtual Status warm_up() = 0;
  // Of a ticket that is done: `count` rows of its logits from row `first` on.
  virtual Status copy_logits(const Ticket& ticket, uint64_t first, uint64_t count,
                             float* target) = 0;
  // Its alternatives, (rows, max_top_logprobs), in host memory.
  virtual const int32_t* top_tokens(const Ticket& ticket) const = 0;
  virtual const float* top_logprobs(const Ticket& ticket) const = 0;
};

// Bytes of Layout::runner that the backend's runner works in.
uint64_t runner_bytes(const Backend& backend, const Limits& limits, const model::Config& config);
Result<std::unique_ptr<Runner>> make_runner(const Machine& machine);

}  // namespace wcuda::engine
