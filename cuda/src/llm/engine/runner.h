// Executes tickets in order, asynchronously to the thread that submits them.
#pragma once

#include <memory>
#include <vector>

#include "core/vram/memory.h"
#include "llm/engine/forward.h"
#include "llm/engine/limits.h"
#include "llm/engine/ticket.h"

namespace wcuda::engine {

// The objects and memory that a runner uses. They stay the same for the life of the engine.
struct Machine {
  std::shared_ptr<vram::Memory> memory;
  std::shared_ptr<model::Model> model;
  std::shared_ptr<ops::Ops> ops;
  Limits limits;
  Layout layout;
  ops::KvPool pool;
  bool has_persistent_layers = false;      // in steps of one token
  uint8_t* kv = nullptr;                   // the block "kv"
  uint8_t* scratch = nullptr;              // the block "scratch"
  std::vector<ops::GateNorms> gate_norms;  // of each layer; empty if no plan needs them
  kernels::FeaturePages kept_features;     // for a draft head
  kernels::FeaturePages target_features;   // which the engine of a draft head reads

  // Sets gate_norms once the operations are prepared. Overwrites activations.
  Status find_gate_norms();

  // Returns the plan of a step of this shape. Pure.
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
  // Return the arrays of a step in its ticket block, and the arguments of the forward pass.
  StepInputs inputs(uint32_t parity) const;
  ops::Batch batch(uint32_t parity, const ops::StepShape& shape) const;
  StepArgs step(uint32_t parity, const ops::Batch& batch) const;
};

// Where the log probabilities of tokens go.
struct TokenLogprobs {
  float* logprobs;      // (count)
  int32_t* top_tokens;  // (count, top)
  float* top_logprobs;  // likewise
};

// One implementation per backend. Tickets are executed in the order of submission. Threads: as for
// the engine; execute() and copy_pages() are called under its lock, and only while no step is in
// flight or after pass().
class Runner {
 public:
  virtual ~Runner() = default;  // finishes the submitted tickets, but draws no late tokens

  // Never waits for the computation. The ticket has its results when wait() has returned true. If
  // submit() fails, the ticket does not run; commands that did run are removed from it.
  virtual Status submit(const std::shared_ptr<Ticket>& ticket) = 0;
  // Samples the late rows of a submitted ticket that are not held. If that fails, it may be tried
  // again.
  virtual Status sample(Ticket& ticket) = 0;
  // Waits until the oldest ticket is done, and sets its results and its status. Returns false if
  // timeout_ms (>= 0) has passed before.
  virtual bool wait(Ticket& ticket, int64_t timeout_ms) = 0;
  // Makes work that is executed from now on come after the submitted tickets, of which this is the
  // last. None of them waits for sample().
  virtual void pass(Ticket& last) = 0;
  virtual void execute(const Command& command) = 0;
  // Queues a copy of pages to pinned memory, or from it, and records the event after it. A page has
  // its layers one after the other there. If it fails, nothing is queued.
  virtual Status copy_pages(const std::vector<uint32_t>& pages, uint8_t* pinned, bool is_save,
                            Event done) = 0;
  virtual Status warm_up() = 0;
  // Copies `count` rows of logits, from row `first` on, of a ticket that is done.
  virtual Status copy_logits(const Ticket& ticket, uint64_t first, uint64_t count,
                             float* target) = 0;
  // Copies the hidden state of row `row` of a ticket that is done.
  virtual Status copy_hidden_state(const Ticket& ticket, size_t row, float* target) = 0;
  // Copies what a ticket that is done has of scored tokens, from token `first` on: `count` log
  // probabilities, and of each the first `top` alternatives.
  virtual Status copy_token_logprobs(const Ticket& ticket, uint64_t first, uint32_t count,
                                     uint32_t top, const TokenLogprobs& target) = 0;
  // Return the alternatives of a ticket, (rows, max_top_logprobs), in host memory.
  virtual const int32_t* top_tokens(const Ticket& ticket) const = 0;
  virtual const float* top_logprobs(const Ticket& ticket) const = 0;
};

// Returns the bytes of Layout::runner that the backend's runner needs.
uint64_t runner_bytes(const Backend& backend, const Limits& limits, const model::Config& config);
Result<std::unique_ptr<Runner>> make_runner(const Machine& machine);

}  // namespace wcuda::engine
