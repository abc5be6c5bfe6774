// The pages of sequences: published under keys and attached, saved to host memory and restored.
#include <algorithm>
#include <cinttypes>

#include "llm/engine/engine.h"

namespace wcuda::engine {

// Checks whether a sequence is empty and can have these tokens.
Status Engine::check_fill(const Sequence& sequence, const int32_t* tokens, uint32_t count) const {
  if (!sequence.alive) return Status::error(WCUDA_INVALID_HANDLE, "the sequence was destroyed");
  if (sequence.length() != 0)
    return Status::error(WCUDA_INVALID_STATE, "the sequence has %u tokens and is not empty",
                         sequence.length());
  if (count > machine_.limits.max_sequence_tokens)
    return Status::error(WCUDA_LIMIT_EXCEEDED, "%u tokens, max_sequence_tokens is %u", count,
                         machine_.limits.max_sequence_tokens);
  const uint32_t vocabulary = config().vocabulary_size;
  for (uint32_t i = 0; i < count; ++i)
    if (static_cast<uint32_t>(tokens[i]) >= vocabulary)
      return Status::error(WCUDA_OUT_OF_RANGE, "token %u is %d, the vocabulary has %u", i,
                           tokens[i], vocabulary);
  return {};
}

Status Engine::publish(const Sequence& sequence, uint32_t first_page, const wcuda_page_key* keys,
                       uint32_t count) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!sequence.alive) return Status::error(WCUDA_INVALID_HANDLE, "the sequence was destroyed");
  const uint32_t full = sequence.verified_length() / ops::kPageTokens;
  if (uint64_t{first_page} + count > full)
    return Status::error(WCUDA_OUT_OF_RANGE,
                         "%u pages from page %u on: a sequence of %u tokens has %u full pages",
                         count, first_page, sequence.verified_length(), full);
  for (uint32_t i = 0; i < count; ++i) {
    const uint32_t end = (first_page + i + 1) * ops::kPageTokens;
    ComputedBy computed_by;
    for (const PendingRow& row : sequence.pending)
      if (row.first_position < end) computed_by = {row.ticket, row.row};
    const uint32_t freed = pages_.publish(sequence.pages[first_page + i], keys[i], computed_by);
    if (freed != PagePool::kNone) poison_page(freed);
  }
  return {};
}

Result<uint32_t> Engine::attach(Sequence& sequence, const int32_t* tokens, uint32_t token_count,
                                const wcuda_page_key* keys, uint32_t key_count) {
  WCUDA_TRY(machine_.memory->backend().fault());
  const std::lock_guard<std::mutex> lock(mutex_);
  const uint64_t keyed_tokens = uint64_t{key_count} * ops::kPageTokens;
  if (keyed_tokens > token_count)
    return invalid_argument("%u keys name %" PRIu64 " tokens, token_count is %u", key_count,
                            keyed_tokens, token_count);
  WCUDA_TRY(check_fill(sequence, tokens, static_cast<uint32_t>(keyed_tokens)));

  std::vector<uint32_t> pages;
  while (pages.size() < key_count) {
    const uint32_t page = pages_.find(keys[pages.size()]);
    if (page == PagePool::kNone) break;
    pages.push_back(page);
  }
  if (pages.empty()) return uint32_t{0};
  const auto count = static_cast<uint32_t>(pages.size() * ops::kPageTokens);
  std::vector<int32_t> attached(tokens, tokens + count);
  enqueue({Command::Kind::kWriteHistory, 0, sequence.slot, 0, attached});
  for (const uint32_t page : pages) pages_.share(page);
  sequence.pages = std::move(pages);
  sequence.tokens = std::move(attached);
  return count;
}

void Engine::forget_keys() {
  while (pages_.cached_count() > 0) poison_page(pages_.evict());
  pages_.forget_held();
}

// Makes work that is executed from now on come after the steps in flight.
Status Engine::pass_steps() {
  WCUDA_TRY(machine_.memory->backend().fault());
  std::shared_ptr<Ticket> last;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (const auto& ticket : in_flight_) {
      if (ticket->awaits_sampling)
        return Status::error(WCUDA_INVALID_STATE,
                             "ticket %" PRIu64 " has late rows that are not sampled",
                             ticket->number);
      last = ticket;
    }
  }
  if (last != nullptr) runner_->pass(*last);
  return {};
}

void Engine::run_commands() {
  for (const Command& command : commands_) runner_->execute(command);
  commands_.clear();
}

Status Engine::save(const Sequence& sequence, const vram::View& target, Event done) {
  WCUDA_TRY(pass_steps());
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!sequence.alive) return Status::error(WCUDA_INVALID_HANDLE, "the sequence was destroyed");
  WCUDA_TRY(check_sampled(sequence));
  WCUDA_TRY(check_saved_bytes(target, sequence.pages.size()));
  run_commands();
  return runner_->copy_pages(sequence.pages, target.data, true, done);
}

Status Engine::restore(Sequence& sequence, const int32_t* tokens, uint32_t token_count,
                       const vram::View& source, Event done) {
  WCUDA_TRY(pass_steps());
  const std::lock_guard<std::mutex> lock(mutex_);
  WCUDA_TRY(check_fill(sequence, tokens, token_count));
  const uint64_t page_count = ceil_div(token_count, ops::kPageTokens);
  WCUDA_TRY(check_saved_bytes(source, page_count));
  if (page_count > pages_.free_count())
    return Status::error(WCUDA_OUT_OF_PAGES,
                         "%u tokens need %" PRIu64 " KV pages, %u of %u are free", token_count,
                         page_count, pages_.free_count(), pages_.page_count());
  std::vector<int32_t> restored(tokens, tokens + token_count);
  std::vector<uint32_t> pages;
  pages.reserve(page_count);
  while (pages.size() < page_count) pages.push_back(take_page());
  run_commands();
  Status copied = runner_->copy_pages(pages, source.data, false, done);
  if (!copied.ok()) {
    for (const uint32_t page : pages) release_page(page);
    return copied;
  }
  runner_->execute({Command::Kind::kWriteHistory, 0, sequence.slot, 0, restored});
  sequence.pages = std::move(pages);
  sequence.tokens = std::move(restored);
  return {};
}

Status Engine::check_saved_bytes(const vram::View& saved, uint64_t page_count) const {
  const uint64_t needed = page_count * machine_.layout.page_bytes;
  if (needed <= saved.bytes) return {};
  return Status::error(WCUDA_BUFFER_TOO_SMALL,
                       "%" PRIu64 " bytes of pinned memory, %" PRIu64 " pages need %" PRIu64,
                       saved.bytes, page_count, needed);
}

}  // namespace wcuda::engine
