// Submits a step and collects its outputs.
#include <algorithm>
#include <cinttypes>
#include <new>
#include <unordered_map>

#include "llm/engine/engine.h"

namespace wcuda::engine {
namespace {

constexpr size_t kMaxInFlight = 2;

// Copies the caller's arrays into the row. A draft has the bias of its row, the `head`.
void copy_arrays(Row& row, Row& head, uint32_t vocabulary) {
  ops::Sampling& sampling = row.sampling;
  if (!row.is_draft()) {
    row.bias_tokens.assign(sampling.bias_tokens, sampling.bias_tokens + sampling.bias_count);
    row.bias_values.assign(sampling.bias_values, sampling.bias_values + sampling.bias_count);
  }
  if (sampling.mask) row.mask.assign(sampling.mask, sampling.mask + ceil_div(vocabulary, 32));
  sampling.bias_tokens = head.bias_tokens.data();
  sampling.bias_values = head.bias_values.data();
  sampling.mask = sampling.mask ? row.mask.data() : nullptr;
}

// Makes a row of each draft, behind the row that has it.
std::vector<Row> with_drafts(std::vector<Row> rows, uint32_t vocabulary) {
  std::vector<Row> all;
  for (Row& row : rows) {
    const size_t head = all.size();
    all.push_back(std::move(row));
    for (uint32_t i = 0; i < all[head].draft_count; ++i) {
      Row draft;
      draft.sequence = all[head].sequence;
      draft.tokens = all[head].drafts + i;
      draft.draft_index = i + 1;
      draft.draft_token = all[head].drafts[i];
      draft.step.flags = all[head].step.flags & ~kernels::kRowFeedSampled;
      draft.step.token_count = 1;
      draft.sampling = all[head].sampling;
      if (draft.sampling.mask) draft.sampling.mask += (i + 1) * ceil_div(vocabulary, 32);
      all.push_back(std::move(draft));
    }
  }
  return all;
}

constexpr const char* kLateInFlight = "the sequence has a late row in flight that is not sampled";

}  // namespace

Status Engine::check_sampled(const Sequence& sequence) const {
  if (sequence.awaits_sampling) return Status::error(WCUDA_INVALID_STATE, "%s", kLateInFlight);
  const uint32_t verified = sequence.verified_length();
  if (verified == sequence.length()) return {};
  return Status::error(WCUDA_INVALID_STATE,
                       "the sequence has drafts in flight, on which its tokens from position %u on "
                       "depend; their step must be waited for first",
                       verified);
}

// While drafts of the sequence are in flight, only the device knows where the next row begins. It
// can place a row of one token, the one that it drew.
Status Engine::check_drafts_before(const Row& row, size_t index) const {
  const uint32_t first = row.sequence->verified_length();
  const uint32_t count = row.sequence->length() - first;
  if (count == 0 || (row.is_fed() && row.draft_count == 0)) return {};
  return Status::error(WCUDA_INVALID_STATE,
                       "row %zu: %u drafts of the sequence, from position %u on, are in flight; "
                       "before their step has been waited for, a row must have "
                       "WCUDA_ROW_FEED_SAMPLED and no drafts",
                       index, count, first);
}

Status Engine::check_row(const Row& row, size_t index) const {
  const Limits& limits = machine_.limits;
  const Sequence& sequence = *row.sequence;
  const uint32_t count = row.step.token_count + row.draft_count;
  const uint32_t vocabulary = config().vocabulary_size;
  if (!sequence.alive)
    return Status::error(WCUDA_INVALID_HANDLE, "row %zu: the sequence was destroyed", index);
  if (sequence.awaits_sampling)
    return Status::error(WCUDA_INVALID_STATE, "row %zu: %s", index, kLateInFlight);
  WCUDA_TRY(check_drafts_before(row, index));
  if (row.is_fed() && !sequence.can_feed)
    return Status::error(WCUDA_INVALID_STATE,
                         "row %zu: the sequence has sampled no token for its position %u", index,
                         sequence.length());
  const auto check_tokens = [&](const char* name, const int32_t* tokens, uint32_t n) -> Status {
    for (uint32_t i = 0; i < n; ++i)
      if (tokens[i] < 0 || static_cast<uint32_t>(tokens[i]) >= vocabulary)
        return Status::error(WCUDA_OUT_OF_RANGE, "row %zu: %s %u is %d, the vocabulary has %u",
                             index, name, i, tokens[i], vocabulary);
    return {};
  };
  WCUDA_TRY(check_tokens("token", row.tokens, row.is_fed() ? 0 : row.step.token_count));
  WCUDA_TRY(check_tokens("draft token", row.drafts, row.draft_count));
  if (row.step.hidden_states_returned() != 0 && !limits.has_hidden_states)
    return invalid_argument(
        "row %zu: a hidden state needs an engine with WCUDA_ENGINE_HIDDEN_STATES", index);
  if ((row.step.flags & kernels::kRowTokenLogprobs) != 0) {
    if (!limits.has_token_logprobs)
      return invalid_argument(
          "row %zu: log probabilities of own tokens need an engine with "
          "WCUDA_ENGINE_TOKEN_LOGPROBS",
          index);
    WCUDA_TRY(check_tokens("next token", &row.next_token, row.next_token == -1 ? 0 : 1));
    if (row.token_top > limits.max_top_logprobs)
      return Status::error(WCUDA_LIMIT_EXCEEDED,
                           "row %zu: token_top_logprobs is %u, max_top_logprobs is %u", index,
                           row.token_top, limits.max_top_logprobs);
  }
  WCUDA_TRY(check_features(row, index));
  if (uint64_t{sequence.length()} + count > limits.max_sequence_tokens)
    return Status::error(WCUDA_LIMIT_EXCEEDED,
                         "row %zu: %u tokens after %u would pass max_sequence_tokens %u", index,
                         count, sequence.length(), limits.max_sequence_tokens);
  if (!row.is_sampled()) return {};
  return ops::check_sampling(row.sampling, vocabulary, limits.max_top_logprobs);
}

Status Engine::check_features(const Row& row, size_t index) const {
  const Sequence& sequence = *row.sequence;
  if (target_ == nullptr) {
    if (row.features == nullptr) return {};
    return invalid_argument("row %zu has features, but the model is no draft head", index);
  }
  if (row.features != nullptr) return {};
  if (row.step.token_count != 1)
    return invalid_argument("row %zu: a row without features has 1 token, not %u", index,
                            row.step.token_count);
  if (sequence.length() != 0 && sequence.state_length == sequence.length()) return {};
  return Status::error(WCUDA_INVALID_STATE,
                       "row %zu: the state after %u tokens is not known; the row needs features",
                       index, sequence.length());
}

// Borrows the pages of the features that rows read, and makes the step come after what writes them.
Status Engine::borrow_features(Ticket& ticket) {
  if (target_ == nullptr) return {};
  ticket.feature_pages.resize(ticket.rows.size());
  bool has_features = false;
  for (size_t i = 0; i < ticket.rows.size(); ++i) {
    const Row& row = ticket.rows[i];
    if (row.features == nullptr) continue;
    auto pages =
        target_->lend_features(*row.features, row.sequence->length() + row.step.token_count);
    if (!pages.ok())
      return Status::error(pages.status().code(), "row %zu: %s", i, pages.status().message());
    ticket.feature_pages[i] = std::move(*pages);
    has_features = true;
  }
  Backend& backend = machine_.memory->backend();
  if (!has_features || backend.is_host()) return {};
  WCUDA_TRY(target_->record_features(features_done_));
  return backend.stream_wait(stream(), features_done_);
}

Status Engine::check_limits(const std::vector<Row>& rows) const {
  const Limits& limits = machine_.limits;
  if (in_flight_.size() >= kMaxInFlight)
    return Status::error(WCUDA_QUEUE_FULL, "steps %" PRIu64 " and %" PRIu64 " are in flight",
                         in_flight_[0]->number, in_flight_[1]->number);
  WCUDA_CHECK(rows.size() <= limits.max_step_rows);
  uint64_t tokens = 0, logits = 0, drafts = 0;
  std::vector<const Sequence*> sequences;
  for (size_t i = 0; i < rows.size(); ++i) {
    WCUDA_TRY(check_row(rows[i], i));
    tokens += rows[i].step.token_count + rows[i].draft_count;
    logits += rows[i].step.logits_count() + rows[i].draft_count;
    drafts += rows[i].draft_count;
    sequences.push_back(rows[i].sequence.get());
  }
  if (drafts > limits.max_draft_tokens)
    return Status::error(WCUDA_LIMIT_EXCEEDED,
                         "a step of %" PRIu64 " draft tokens, max_draft_tokens is %u", drafts,
                         limits.max_draft_tokens);
  if (tokens > limits.max_batch_tokens)
    return Status::error(WCUDA_LIMIT_EXCEEDED,
                         "a step of %" PRIu64 " tokens, max_batch_tokens is %u", tokens,
                         limits.max_batch_tokens);
  if (logits > limits.max_logits_rows)
    return Status::error(WCUDA_LIMIT_EXCEEDED,
                         "a step of %" PRIu64 " rows of logits, max_logits_rows is %u", logits,
                         limits.max_logits_rows);
  std::sort(sequences.begin(), sequences.end());
  if (std::adjacent_find(sequences.begin(), sequences.end()) != sequences.end())
    return invalid_argument("a sequence has two rows in one step");
  const uint32_t needed = pages_needed(rows);
  if (needed > pages_.free_count())
    return Status::error(WCUDA_OUT_OF_PAGES, "the step needs %u KV pages, %u of %u are free",
                         needed, pages_.free_count(), pages_.page_count());
  return {};
}

// Returns the pages that append_pages will take for all rows, including copies of shared pages.
uint32_t Engine::pages_needed(const std::vector<Row>& rows) const {
  uint32_t needed = 0;
  std::unordered_map<uint32_t, uint32_t>
      released;  // by page: earlier rows that replace it by a copy
  for (const Row& row : rows) {
    const Sequence& sequence = *row.sequence;
    const uint32_t length = sequence.length() + row.step.token_count + row.draft_count;
    needed += static_cast<uint32_t>(ceil_div(length, ops::kPageTokens) - sequence.pages.size());
    if (sequence.length() % ops::kPageTokens == 0) continue;
    const uint32_t last = sequence.pages.back();
    if (pages_.references(last) - released[last] > 1) {
      ++needed;
      ++released[last];
    }
  }
  return needed;
}

// Gives a sequence its own pages for the next token_count positions.
void Engine::append_pages(Sequence& sequence, uint32_t token_count) {
  const size_t count = ceil_div(sequence.length() + token_count, ops::kPageTokens);
  sequence.pages.reserve(count);
  const bool writes_last = sequence.length() % ops::kPageTokens != 0;
  if (writes_last && pages_.references(sequence.pages.back()) > 1) {
    const uint32_t shared = sequence.pages.back();
    const uint32_t own = take_page();
    enqueue({Command::Kind::kCopyPage, shared, own, 0, {}});
    release_page(shared);
    sequence.pages.back() = own;
  } else if (writes_last) {
    pages_.forget(sequence.pages.back());
  }
  while (sequence.pages.size() < count) sequence.pages.push_back(take_page());
}

void Engine::add_row(Ticket& ticket, uint32_t index) {
  Row& row = ticket.rows[index];
  ops::StepRow& step = row.step;
  Sequence& sequence = *row.sequence;
  ops::StepShape& shape = ticket.shape;
  const uint32_t first_position = sequence.length();
  if (row.features != nullptr) step.flags |= kernels::kRowFeatures;
  step.first_token = shape.token_count;
  step.first_position = first_position;
  step.sequence_slot = sequence.slot;
  for (const PendingRow& pending : sequence.pending) {
    if (pending.ticket == ticket.number || pending.first_position >= first_position) continue;
    step.depends_on = pending.row;
    if (pending.drafted_from == kNoDrafts) continue;
    step.first_position = pending.drafted_from;
    step.flags |= acceptable_drafts(*in_flight_.back(), pending.row)
                  << kernels::kRowDraftsBeforeShift;
    ticket.continues_drafts |= step.drafts_before() != 0;
  }
  step.logits_first = shape.logits_count;
  row.scored_first = shape.scored_count;
  copy_arrays(row, ticket.rows[index - row.draft_index], config().vocabulary_size);

  append_pages(sequence, step.token_count);
  const int32_t* const tokens = row.is_fed() ? &sequence.sampled : row.tokens;
  sequence.tokens.insert(sequence.tokens.end(), tokens, tokens + step.token_count);
  row.tokens = row.drafts = nullptr;
  ++shape.row_count;
  shape.token_count += step.token_count;
  shape.logits_count += step.logits_count();
  shape.scored_count += row.scored_count();
  shape.has_hidden_states |= step.hidden_states_returned() != 0;
  shape.has_drafts |= row.is_draft();
  shape.has_features |= row.features != nullptr;
  shape.min_row_tokens =
      index == 0 ? step.token_count : std::min(shape.min_row_tokens, step.token_count);
  shape.max_row_tokens = std::max(shape.max_row_tokens, step.token_count);
  shape.max_positions = std::max(shape.max_positions, sequence.length());
  if (step.token_count > 1) {
    ++shape.long_rows.row_count;
    shape.long_rows.token_count += step.token_count;
    shape.long_rows.page_count += static_cast<uint32_t>(sequence.pages.size());
  }
  if (!row.is_draft())
    sequence.pending.push_back({ticket.number, index, first_position,
                                row.draft_count == 0 ? kNoDrafts : sequence.length()});
  sequence.state_length = sequence.length();
  sequence.can_feed = row.is_sampled();
  sequence.sampled = kUnknownToken;
  sequence.awaits_sampling = row.is_late();
  ticket.late_count += row.is_late();
}

Result<uint64_t> Engine::submit(std::vector<Row> rows) {
  const std::lock_guard<std::mutex> lock(mutex_);
  WCUDA_TRY(check_limits(rows));
  if (std::any_of(rows.begin(), rows.end(), [](const Row& row) { return row.draft_count != 0; }))
    rows = with_drafts(std::move(rows), config().vocabulary_size);
  auto ticket = std::make_shared<Ticket>();
  ticket->number = next_ticket_;
  ticket->parity = static_cast<uint32_t>(next_ticket_ % kMaxInFlight);
  ticket->follows_previous = !in_flight_.empty();
  ticket->results.resize(rows.size());
  std::vector<Tail> before;
  before.reserve(rows.size());
  for (const Row& row : rows)
    before.push_back({row.sequence->length(), row.sequence->sampled, row.sequence->can_feed,
                      row.sequence->state_length});
  ticket->rows = std::move(rows);
  WCUDA_TRY(borrow_features(*ticket));
  const auto row_count = static_cast<uint32_t>(ticket->rows.size());
  Status submitted;
  try {
    const size_t poisoned = machine_.limits.poison_free_pages ? pages_.page_count() : 0;
    commands_.reserve(commands_.size() + size_t{2} * row_count + poisoned);
    for (uint32_t i = 0; i < row_count; ++i) add_row(*ticket, i);
    ticket->awaits_sampling = ticket->late_count != 0;
    if (is_profiling_ && row_count != 0) {
      const ops::StepRow& first = ticket->rows.front().step;
      ticket->profile = std::make_shared<StepProfile>();
      ticket->profile->shape = {row_count, first.token_count, machine_.layout.kv_row_bytes,
                                first.first_position};
    }
    in_flight_.push_back(ticket);
    ticket->commands.swap(commands_);
    submitted = runner_->submit(ticket);
  } catch (const std::bad_alloc&) {
    submitted =
        Status::error(WCUDA_OUT_OF_HOST_MEMORY, "no host memory for a step of %u rows", row_count);
  }
  if (!submitted.ok()) {
    if (!in_flight_.empty() && in_flight_.back() == ticket) {
      in_flight_.pop_back();
      ticket->commands.swap(commands_);
    }
    undo_rows(ticket->rows, before);
    return submitted;
  }
  ++next_ticket_;
  return ticket->number;
}

// Reverts add_row. Pages that were copied for a sequence stay its own, because the copy is queued.
void Engine::undo_rows(const std::vector<Row>& rows, const std::vector<Tail>& before) {
  for (size_t i = 0; i < rows.size(); ++i) {
    Sequence& sequence = *rows[i].sequence;
    shorten(sequence, before[i].length);
    sequence.can_feed = before[i].can_feed;
    sequence.sampled = before[i].sampled;
    sequence.state_length = before[i].state_length;
    sequence.awaits_sampling = false;
  }
}

Status Engine::sample(uint64_t number, const std::vector<LateRow>& rows) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = std::find_if(in_flight_.begin(), in_flight_.end(),
                                  [&](const auto& t) { return t->number == number; });
  if (found == in_flight_.end())
    return invalid_argument("ticket %" PRIu64 " is not in flight", number);
  const Ticket& ticket = **found;
  if (!ticket.awaits_sampling)
    return Status::error(WCUDA_INVALID_STATE, "ticket %" PRIu64 " %s", number,
                         ticket.late_count == 0 ? "has no late rows" : "has been sampled");
  if (rows.size() != ticket.late_count)
    return invalid_argument("%zu late rows, ticket %" PRIu64 " has %u", rows.size(), number,
                            ticket.late_count);
  return sample_rows(**found, rows);
}

// The sequence of a row may have been destroyed, and another may have its slot: then the row is
// held.
Status Engine::sample_rows(Ticket& ticket, const std::vector<LateRow>& rows) {
  const uint64_t mask_words = ceil_div(config().vocabulary_size, 32);
  auto late = rows.begin();
  uint64_t pages = 0;
  for (Row& row : ticket.rows) {
    if (!row.is_late()) continue;
    row.is_held = late->is_held || !row.sequence->alive;
    row.mask.assign(late->mask, late->mask + (late->mask ? mask_words : 0));
    row.sampling.mask = late->mask ? row.mask.data() : nullptr;
    pages += row.sequence->pages.size();
    ++late;
  }
  commands_.reserve(commands_.size() + pages);  // holding a row then cannot fail
  WCUDA_TRY(runner_->sample(ticket));
  ticket.awaits_sampling = false;
  for (const Row& row : ticket.rows) {
    if (!row.is_late()) continue;
    row.sequence->awaits_sampling = false;
    if (row.is_held) hold_row(ticket, row);
  }
  return {};
}

// Takes a row back, so that its sequence may have the same row again.
void Engine::hold_row(const Ticket& ticket, const Row& row) {
  Sequence& sequence = *row.sequence;
  const auto part =
      std::find_if(sequence.pending.begin(), sequence.pending.end(),
                   [&](const PendingRow& pending) { return pending.ticket == ticket.number; });
  if (part == sequence.pending.end()) return;  // it has been shortened or destroyed
  const uint32_t first_position = part->first_position;
  const int32_t first = sequence.tokens[first_position];
  shorten(sequence, first_position);
  if (!row.is_fed()) return;
  sequence.can_feed = true;
  sequence.sampled = first;
}

// Removes drafts that are not accepted: the tokens from `end` to the row that follows the drafts,
// which has begun at `end`. Pages past the new end may be in that row's page table. The row does
// not write to them, and later steps that take them run after it.
void Engine::remove_drafts(Sequence& sequence, uint32_t end) {
  if (end >= sequence.length()) return;
  if (sequence.pending.empty()) {
    const bool can_feed = sequence.can_feed;
    shorten(sequence, end);
    sequence.can_feed = can_feed;
    return;
  }
  PendingRow& next = sequence.pending.front();
  sequence.tokens.erase(sequence.tokens.begin() + end,
                        sequence.tokens.begin() + next.first_position);
  next.first_position = end;
  trim_pages(sequence);
}

// Stores the results of a finished ticket in the sequences, and removes the ticket from the queue.
// `status`: of the step and of copying its outputs.
void Engine::finish(Ticket& ticket, const Status& status) {
  if (status.ok())
    pages_.complete(ticket.number, [&](uint32_t row) {
      return ticket.results[row].status == ops::RowStatus::kOk;
    });
  else
    forget_keys();
  if (status.ok() && ticket.profile != nullptr) profile_ = ticket.profile;
  if (in_flight_.size() > 1 && in_flight_[1]->continues_drafts)
    for (Row& row : in_flight_[1]->rows)
      if (row.step.drafts_before() != 0)
        row.accepted_before = accepted_drafts(ticket, row.step.depends_on);
  for (const std::shared_ptr<Sequence>& sequence : live_) {
    if (!sequence) continue;
    auto& pending = sequence->pending;
    const auto found = std::find_if(pending.begin(), pending.end(), [&](const PendingRow& row) {
      return row.ticket == ticket.number;
    });
    if (found == pending.end()) continue;
    const PendingRow row = *found;
    pending.erase(found);
    const TicketRowResult& result = ticket.results[row.row];
    if (!status.ok() || result.status != ops::RowStatus::kOk) {
      if (row.first_position < sequence->length()) shorten(*sequence, row.first_position);
      sequence->can_feed = false;
      continue;
    }
    if (result.fed_token >= 0 && row.first_position < sequence->length())
      sequence->tokens[row.first_position] = result.fed_token;
    const uint32_t accepted = accepted_drafts(ticket, row.row);
    const int32_t token = ticket.results[row.row + accepted].sample.token;
    if (row.drafted_from != kNoDrafts) remove_drafts(*sequence, row.drafted_from + accepted);
    const uint32_t next =
        ticket.rows[row.row + accepted].end_position() + ticket.rows[row.row].accepted_before;
    // A later row may end there too, if the sequence is a fork that was truncated.
    if (token >= 0 && next == sequence->length() && sequence->can_feed && pending.empty())
      sequence->sampled = token;
  }
  ticket.feature_pages.clear();
  in_flight_.pop_front();
}

Status Engine::check_output(const Ticket& ticket, const wcuda_step_output& output) const {
  uint64_t sampled = 0, top = 0, logits = 0, hidden_states = 0, scored = 0, scored_top = 0;
  for (const Row& row : ticket.rows) {
    sampled += row.is_sampled();
    top += row.is_sampled() ? row.sampling.top_logprobs : 0;
    logits += row.step.logits_returned();
    hidden_states += row.step.hidden_states_returned();
    scored += row.scored_count();
    scored_top += uint64_t{row.scored_count()} * row.token_top;
  }
  logits *= config().vocabulary_size;
  const auto check = [](const char* name, uint64_t needed, uint64_t capacity) -> Status {
    if (needed <= capacity) return {};
    return Status::error(WCUDA_BUFFER_TOO_SMALL, "%s is %" PRIu64 ", the step needs %" PRIu64, name,
                         capacity, needed);
  };
  const auto rows = std::count_if(ticket.rows.begin(), ticket.rows.end(),
                                  [](const Row& row) { return !row.is_draft(); });
  WCUDA_TRY(
      check("row_capacity", static_cast<uint64_t>(rows), output.rows ? output.row_capacity : 0));
  const bool has_top = output.top_tokens && output.top_logprobs;
  WCUDA_TRY(check("top_capacity", top, has_top ? output.top_capacity : 0));
  WCUDA_TRY(check("logits_capacity", logits, output.logits ? output.logits_capacity : 0));
  const bool has_sampled =
      output.sampled_tokens && output.sampled_logprobs && output.sampled_top_counts;
  if (ticket.shape.has_drafts || output.sampled_capacity != 0)
    WCUDA_TRY(check("sampled_capacity", sampled, has_sampled ? output.sampled_capacity : 0));
  WCUDA_TRY(check("hidden_states_capacity", hidden_states * config().embedding_length,
                  output.hidden_states ? output.hidden_states_capacity : 0));
  WCUDA_TRY(check("token_logprobs_capacity", scored,
                  output.token_logprobs ? output.token_logprobs_capacity : 0));
  const bool has_token_top = output.token_top_tokens && output.token_top_logprobs;
  return check("token_top_capacity", scored_top, has_token_top ? output.token_top_capacity : 0);
}

Status Engine::copy_output(const Ticket& ticket, wcuda_step_output* output) const {
  const uint64_t vocabulary = config().vocabulary_size;
  const int32_t* top_tokens = runner_->top_tokens(ticket);
  const float* top_logprobs = runner_->top_logprobs(ticket);
  uint64_t row_count = 0, top_offset = 0, logits_offset = 0, hidden_states_offset = 0,
           sampled_offset = 0, scored_offset = 0, scored_top_offset = 0;
  const uint32_t top_stride = machine_.limits.max_top_logprobs;
  for (size_t i = 0; i < ticket.rows.size(); i += 1 + ticket.rows[i].draft_count) {
    const ops::StepRow& row = ticket.rows[i].step;
    const TicketRowResult& result = ticket.results[i];
    const bool is_held = ticket.rows[i].is_held && result.status == ops::RowStatus::kOk;
    const size_t last = i + accepted_drafts(ticket, i);
    wcuda_row_result written = WCUDA_ROW_RESULT_INIT;
    written.status = static_cast<int32_t>(is_held ? ops::RowStatus::kHeld : result.status);
    written.token = -1;
    written.first_position = row.first_position + ticket.rows[i].accepted_before;
    written.token_count = ticket.rows[last].end_position() - row.first_position;
    written.top_offset = top_offset;
    written.logits_offset = logits_offset;
    written.sampled_offset = sampled_offset;
    for (size_t drawn = i; drawn <= last && result.status == ops::RowStatus::kOk; ++drawn) {
      const ops::SampleResult& sample = ticket.results[drawn].sample;
      written.token = sample.token;
      written.logprob = sample.logprob;
      std::copy_n(top_tokens + drawn * top_stride, sample.top_count,
                  output->top_tokens + top_offset);
      std::copy_n(top_logprobs + drawn * top_stride, sample.top_count,
                  output->top_logprobs + top_offset);
      top_offset += sample.top_count;
      written.top_count += sample.top_count;
      if (output->sampled_capacity == 0 || sample.token < 0) continue;
      output->sampled_tokens[sampled_offset] = sample.token;
      output->sampled_logprobs[sampled_offset] = sample.logprob;
      output->sampled_top_counts[sampled_offset++] = sample.top_count;
      ++written.sampled_count;
    }
    written.logits_count = row.logits_returned();
    if (written.logits_count > 0) written.logits_count += ticket.rows[i].draft_count;
    if (written.logits_count > 0)
      WCUDA_TRY(runner_->copy_logits(ticket, row.logits_first, written.logits_count,
                                     output->logits + logits_offset * vocabulary));
    written.hidden_states_offset = hidden_states_offset;
    written.hidden_states_count = row.hidden_states_returned();
    if (written.hidden_states_count > 0)
      WCUDA_TRY(runner_->copy_hidden_state(
          ticket, i, output->hidden_states + hidden_states_offset * config().embedding_length));
    hidden_states_offset += written.hidden_states_count;
    written.token_logprobs_offset = scored_offset;
    written.token_top_offset = scored_top_offset;
    if (written.status == WCUDA_ROW_OK && ticket.rows[i].scored_count() > 0) {
      written.token_logprobs_count = ticket.rows[i].scored_count();
      written.token_top_count = ticket.rows[i].token_top;
      WCUDA_TRY(runner_->copy_token_logprobs(
          ticket, ticket.rows[i].scored_first, written.token_logprobs_count,
          written.token_top_count,
          {output->token_logprobs + scored_offset, output->token_top_tokens + scored_top_offset,
           output->token_top_logprobs + scored_top_offset}));
    }
    scored_offset += written.token_logprobs_count;
    scored_top_offset += uint64_t{written.token_logprobs_count} * written.token_top_count;
    logits_offset += written.logits_count;
    output->rows[row_count++] = written;
  }
  output->row_count = row_count;
  output->device_ns = ticket.device_ns;
  output->captured = ticket.captured ? 1 : 0;
  return {};
}

Status Engine::wait(uint64_t number, int64_t timeout_ms, wcuda_step_output* output) {
  std::shared_ptr<Ticket> ticket;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    const bool known = std::any_of(in_flight_.begin(), in_flight_.end(),
                                   [&](const auto& t) { return t->number == number; });
    if (!known) return invalid_argument("ticket %" PRIu64 " is not in flight", number);
    ticket = in_flight_.front();
    if (ticket->number != number)
      return Status::error(WCUDA_INVALID_STATE,
                           "ticket %" PRIu64 " must be waited for before %" PRIu64, ticket->number,
                           number);
    if (ticket->awaits_sampling)
      return Status::error(WCUDA_INVALID_STATE,
                           "ticket %" PRIu64 " has late rows that wcuda_step_sample must sample",
                           number);
    WCUDA_TRY(check_output(*ticket, *output));
  }
  if (!runner_->wait(*ticket, timeout_ms))
    return Status::error(WCUDA_TIMEOUT, "ticket %" PRIu64 " was not done after %lld ms", number,
                         static_cast<long long>(timeout_ms));
  const std::lock_guard<std::mutex> lock(mutex_);
  // The runner may read the ticket's own status at the same time, before the next step.
  Status status = ticket->status;
  if (status.ok()) status = copy_output(*ticket, output);
  finish(*ticket, status);
  return status;
}

Status Engine::drain() {
  for (;;) {
    std::shared_ptr<Ticket> ticket;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (in_flight_.empty()) return machine_.memory->backend().fault();
      ticket = in_flight_.front();
      if (ticket->awaits_sampling)
        WCUDA_TRY(sample_rows(*ticket, {ticket->late_count, LateRow{true, nullptr}}));
    }
    runner_->wait(*ticket, -1);
    const std::lock_guard<std::mutex> lock(mutex_);
    finish(*ticket, ticket->status);
  }
}

}  // namespace wcuda::engine
