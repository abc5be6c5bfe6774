// A step between submit and wait: all inputs for the device, and its results.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "core/base/checked.h"
#include "core/base/status.h"
#include "llm/engine/sequence.h"
#include "llm/ops/ops.h"
#include "llm/ops/sampling.h"
#include "llm/ops/step_cost.h"
#include "llm/ops/step_plan.h"

namespace wcuda::engine {

// Work that must happen before the rows of the next step, in order.
struct Command {
  enum class Kind : uint8_t {
    kCopyPage,      // page `from` to page `to`, all layers
    kPoisonPage,    // page `to` becomes NaN
    kCopyHistory,   // `count` tokens of sequence slot `from` to slot `to`
    kWriteHistory,  // `tokens` to sequence slot `to`, from position 0 on
  };
  Kind kind;
  uint32_t from;
  uint32_t to;
  uint32_t count;
  std::vector<int32_t> tokens;
};

class Engine;

// Pages of another engine that a row reads up to some position. Up to there they stay as they are
// while this exists, which must not be longer than that engine.
class BorrowedPages {
 public:
  BorrowedPages() = default;
  BorrowedPages(Engine* owner, std::vector<uint32_t> pages)
      : owner_(owner), pages_(std::move(pages)) {}
  BorrowedPages(BorrowedPages&& other) noexcept { swap(other); }
  BorrowedPages& operator=(BorrowedPages&& other) noexcept {
    BorrowedPages(std::move(other)).swap(*this);
    return *this;
  }
  ~BorrowedPages();
  const std::vector<uint32_t>& list() const { return pages_; }

 private:
  void swap(BorrowedPages& other) noexcept {
    std::swap(owner_, other.owner_);
    pages_.swap(other.pages_);
  }

  Engine* owner_ = nullptr;  // null: nothing is borrowed
  std::vector<uint32_t> pages_;
};

// A row of a step. The caller of Engine::submit sets the sequence, the tokens, the drafts, the
// flags and token_count of `step`, and the sampling parameters with the caller's arrays. submit
// sets the other members, and appends the tokens to the sequence, from which the runner reads them.
//
// In a ticket each draft is a row of its own, of one token, after the row that has it. All of them
// sample; accepted_drafts says afterwards which are accepted.
struct Row {
  std::shared_ptr<Sequence> sequence;
  const int32_t* tokens = nullptr;  // (token_count), null if fed back; only submit reads it
  const int32_t* drafts = nullptr;  // (draft_count), likewise
  uint32_t draft_count = 0;         // rows after this one that are its drafts
  uint32_t draft_index = 0;         // of a draft: 1 for the first one of its row
  int32_t draft_token = 0;          // of a draft
  std::vector<int32_t> stop_tokens;
  ops::StepRow step;
  ops::Sampling sampling;            // after submit its arrays are the copies below
  std::vector<int32_t> bias_tokens;  // empty for a draft, which has those of its row
  std::vector<float> bias_values;
  std::vector<uint32_t> mask;
  // Of a draft head: a sequence of the target, whose features the row reads; or null.
  std::shared_ptr<Sequence> features;
  bool is_held = false;  // a late row that Engine::sample held
  // With kRowTokenLogprobs: the token after the row, or -1; alternatives of each token; and the
  // first of the row's tokens among those of the step.
  int32_t next_token = -1;
  uint32_t token_top = 0;
  uint32_t scored_first = 0;
  // How many of the step.drafts_before() drafts were accepted. Engine::finish sets it; runners do
  // not read it.
  uint32_t accepted_before = 0;

  bool is_fed() const { return (step.flags & kernels::kRowFeedSampled) != 0; }
  bool is_sampled() const { return (step.flags & kernels::kRowSample) != 0; }
  bool is_late() const { return (step.flags & kernels::kRowSampleLate) != 0; }
  bool is_draft() const { return draft_index != 0; }
  // Its end if none of the drafts before it were accepted.
  uint32_t end_position() const { return step.first_position + step.token_count; }
  // Own tokens whose log probabilities it returns.
  uint32_t scored_count() const {
    if ((step.flags & kernels::kRowTokenLogprobs) == 0) return 0;
    return step.token_count - (next_token < 0 ? 1 : 0);
  }
};

struct TicketRowResult {
  ops::RowStatus status = ops::RowStatus::kOk;
  int32_t fed_token = -1;  // the token that was fed to a feed_sampled row
  ops::SampleResult sample;
};

// The nodes of a step with their measured times.
struct StepProfile {
  ops::CostShape shape;  // of rows like the first
  ops::StepPlan plan;
  std::vector<double> node_ns;  // (nodes)
};

struct Ticket {
  uint64_t number = 0;
  uint32_t parity = 0;            // which of the two blocks of scratch it owns
  bool follows_previous = false;  // the previous ticket was in flight when it was submitted
  uint32_t late_count = 0;        // late rows
  bool awaits_sampling = false;   // Engine::sample must come before wait()
  std::vector<Command> commands;
  std::vector<Row> rows;
  // Of a draft head: (rows) until it is finished, of those with features. Else empty.
  std::vector<BorrowedPages> feature_pages;
  ops::StepShape shape;
  bool continues_drafts = false;  // a row has drafts_before()

  std::shared_ptr<StepProfile> profile;  // to fill in; null: the nodes are not timed

  // Written by the runner, read after `done`.
  bool done = false;
  Status status;
  std::vector<TicketRowResult> results;  // (rows)
  uint64_t device_ns = 0;
  bool captured = false;          // a graph had to be captured first
  bool has_late_samples = false;  // Runner::sample has been called, and not for held rows alone
};

// Returns how many drafts of row `head` of a ticket may be accepted, which is known before the step
// runs: those before the first one that is a stop token.
uint32_t acceptable_drafts(const Ticket& ticket, size_t head);
// Returns how many are, from the results. Row `head` plus this number is the last one that counts.
//
// Rows after it may have drawn from a history that contains both drafts and drawn tokens. Of what
// they wrote to the history, nothing is at or before the position of the token that it drew.
uint32_t accepted_drafts(const Ticket& ticket, size_t head);

// The addresses of the inputs of a step in a runner's memory.
struct StepInputs {
  int32_t* tokens;        // (token_count); those of fed rows are set when the step runs
  uint32_t* positions;    // (token_count)
  uint32_t* token_rows;   // (token_count)
  ops::StepRow* rows;     // (row_count)
  uint32_t* page_tables;  // (row_count, page_table_stride) page of each 64 positions
  uint64_t page_table_stride;
  uint32_t* logits_indices;      // (logits_count) token index of each row of logits
  uint32_t* scored_indices;      // (scored_count) token index of the token before
  kernels::ScoredToken* scored;  // (scored_count)
  uint32_t* feature_tables;      // (row_count, feature_table_stride) as page_tables, of the target
  uint64_t feature_table_stride;

  // Also reads the sequences. Must be called under the engine's lock, before they get another row.
  void write(const Ticket& ticket) const;
};

}  // namespace wcuda::engine
