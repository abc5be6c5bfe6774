// The engine: sequences, their pages, and steps of which two may be in flight.
#pragma once

#include <deque>
#include <memory>
#include <mutex>
#include <vector>

#include "core/backend/owned.h"
#include "core/vram/memory.h"
#include "llm/engine/limits.h"
#include "llm/engine/page_pool.h"
#include "llm/engine/runner.h"
#include "llm/engine/sequence.h"
#include "llm/engine/step_report.h"
#include "llm/engine/ticket.h"
#include "worker_cuda/llm.h"

namespace wcuda::engine {

struct Info {
  Limits limits;
  uint64_t kv_bytes;
  uint64_t scratch_bytes;
  uint32_t sequence_count;
  uint32_t steps_in_flight;
  uint32_t free_page_count;  // with the cached ones
  uint32_t cached_page_count;
  uint64_t token_bytes;        // of a position in the KV pages
  bool has_persistent_layers;  // in steps of one token
};

// Threads: destroy(), length() and info() from any thread; all others from one thread at a time.
class Engine {
 public:
  // `options` without the handles, which `peers` has. If `ops` is null, the engine uses those of
  // the model's backend.
  static Result<std::shared_ptr<Engine>> create(std::shared_ptr<model::Model> model,
                                                const wcuda_engine_options& options,
                                                std::unique_ptr<ops::Ops> ops = nullptr,
                                                Peers peers = {});
  ~Engine();

  Info info() const;
  const Limits& limits() const { return machine_.limits; }
  const model::Config& config() const { return machine_.model->config(); }
  const model::Model& model() const { return *machine_.model; }
  const Engine* target() const { return target_.get(); }  // of a draft head
  Status warm_up();

  Result<std::shared_ptr<Sequence>> create_sequence();
  Result<std::shared_ptr<Sequence>> fork(const std::shared_ptr<Sequence>& source);
  Status truncate(Sequence& sequence, uint32_t length);
  void destroy(Sequence& sequence);
  uint32_t length(const Sequence& sequence) const;
  // See wcuda_sequence_publish and wcuda_sequence_attach, which returns the number of tokens.
  Status publish(const Sequence& sequence, uint32_t first_page, const wcuda_page_key* keys,
                 uint32_t count);
  Result<uint32_t> attach(Sequence& sequence, const int32_t* tokens, uint32_t token_count,
                          const wcuda_page_key* keys, uint32_t key_count);
  // Queue copies to and from pinned memory; see wcuda_sequence_save and wcuda_sequence_restore.
  Status save(const Sequence& sequence, const vram::View& target, Event done);
  Status restore(Sequence& sequence, const int32_t* tokens, uint32_t token_count,
                 const vram::View& source, Event done);
  const std::shared_ptr<vram::Memory>& memory() const { return machine_.memory; }
  Stream stream() const { return machine_.ops->stream(); }
  Status copy_tokens(const Sequence& sequence, uint32_t first, uint32_t count,
                     int32_t* target) const;

  // For the engine of a draft head. lend_features returns the pages of the first `end` positions
  // of a sequence, which stay as they are until they are destroyed; WCUDA_INVALID_STATE while a
  // step that computes them is in flight. record_features records the event after what has been
  // queued.
  Result<BorrowedPages> lend_features(const Sequence& sequence, uint32_t end);
  Status record_features(Event event) const;

  Result<uint64_t> submit(std::vector<Row> rows);
  // Samples or holds the late rows of a ticket; see wcuda_step_sample. `masks` may be null within.
  struct LateRow {
    bool is_held = false;
    const uint32_t* mask = nullptr;  // (ceil(vocabulary / 32))
  };
  Status sample(uint64_t ticket, const std::vector<LateRow>& rows);
  // Waits for the oldest ticket and copies its outputs; see wcuda_step_wait.
  Status wait(uint64_t ticket, int64_t timeout_ms, wcuda_step_output* output);
  Status drain();

  // While profiling is on, steps run kernel by kernel, with an event before and after each node.
  // Returns WCUDA_INVALID_STATE while a step is in flight.
  Status set_profiling(bool is_on);
  // The profile of the last profiled step that was waited for; WCUDA_INVALID_STATE: there is none.
  struct Profile {
    StepReport report;
    std::vector<double> node_ns;
  };
  Result<Profile> profile() const;

 private:
  // The state of a sequence that a failed submit restores.
  struct Tail {
    uint32_t length;
    int32_t sampled;
    bool can_feed;
    uint32_t state_length;
  };

  Engine() : pages_(0) {}

  // Returns WCUDA_INVALID_STATE if a late row of the sequence has not been sampled or held, or if
  // drafts of it are in flight.
  Status check_sampled(const Sequence& sequence) const;
  Status check_drafts_before(const Row& row, size_t index) const;
  Status check_row(const Row& row, size_t index) const;
  Status check_features(const Row& row, size_t index) const;
  friend class BorrowedPages;
  void return_features(const std::vector<uint32_t>& pages) noexcept;
  Status borrow_features(Ticket& ticket);
  Status check_limits(const std::vector<Row>& rows) const;
  uint32_t pages_needed(const std::vector<Row>& rows) const;
  void append_pages(Sequence& sequence, uint32_t token_count);
  Status check_fill(const Sequence& sequence, const int32_t* tokens, uint32_t count) const;
  Status check_saved_bytes(const vram::View& saved, uint64_t page_count) const;
  Status pass_steps();
  void run_commands();
  uint32_t take_page();
  void release_page(uint32_t page);
  void poison_page(uint32_t page);
  void forget_keys();
  void enqueue(Command command);
  void shorten(Sequence& sequence, uint32_t length);
  void trim_pages(Sequence& sequence);
  void add_row(Ticket& ticket, uint32_t index);
  void hold_row(const Ticket& ticket, const Row& row);
  Status sample_rows(Ticket& ticket, const std::vector<LateRow>& rows);
  void undo_rows(const std::vector<Row>& rows, const std::vector<Tail>& before);
  void remove_drafts(Sequence& sequence, uint32_t end);
  void finish(Ticket& ticket, const Status& status);
  Status check_output(const Ticket& ticket, const wcuda_step_output& output) const;
  Status copy_output(const Ticket& ticket, wcuda_step_output* output) const;

  std::shared_ptr<Engine> target_;  // of a draft head
  OwnedEvent features_done_;        // on the device: the features that a step reads are there
  vram::Buffer kv_;
  vram::Buffer scratch_;
  Machine machine_;

  mutable std::mutex mutex_;  // guards the members below
  PagePool pages_;
  std::vector<uint32_t> free_slots_;
  std::vector<std::shared_ptr<Sequence>> live_;    // (max_sequences) by slot, null where free
  std::vector<Command> commands_;                  // to run after the steps in flight
  std::deque<std::shared_ptr<Ticket>> in_flight_;  // at most two, oldest first
  uint64_t next_ticket_ = 1;
  bool is_profiling_ = false;
  std::shared_ptr<StepProfile> profile_;

  std::unique_ptr<Runner> runner_;  // last member, so that it is destroyed first
};

}  // namespace wcuda::engine
