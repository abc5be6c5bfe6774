// The inputs of a ticket's step, and which of its drafts are accepted.
#include "llm/engine/ticket.h"

#include <algorithm>
#include <numeric>

#include "kernels/shared/accepted_drafts.h"
#include "worker_cuda/llm.h"

namespace wcuda::engine {

uint32_t acceptable_drafts(const Ticket& ticket, size_t head) {
  const Row& row = ticket.rows[head];
  const std::vector<int32_t>& stops = row.stop_tokens;
  uint32_t count = 0;
  while (count < row.draft_count &&
         std::find(stops.begin(), stops.end(), ticket.rows[head + 1 + count].draft_token) ==
             stops.end())
    ++count;
  return count;
}

uint32_t accepted_drafts(const Ticket& ticket, size_t head) {
  int32_t drafts[WCUDA_ROW_DRAFT_TOKENS_MAX], drawn[WCUDA_ROW_DRAFT_TOKENS_MAX],
      statuses[WCUDA_ROW_DRAFT_TOKENS_MAX];
  const uint32_t count = acceptable_drafts(ticket, head);
  for (uint32_t i = 0; i < count; ++i) {
    drafts[i] = ticket.rows[head + 1 + i].draft_token;
    drawn[i] = ticket.results[head + i].sample.token;
    statuses[i] = static_cast<int32_t>(ticket.results[head + 1 + i].status);
  }
  return kernels::accepted_drafts(count, drafts, drawn, statuses);
}

void StepInputs::write(const Ticket& ticket) const {
  for (uint32_t i = 0; i < ticket.rows.size(); ++i) {
    const ops::StepRow& row = rows[i] = ticket.rows[i].step;
    const Sequence& sequence = *ticket.rows[i].sequence;
    std::copy_n(&sequence.tokens[row.first_position], row.token_count, tokens + row.first_token);
    std::iota(positions + row.first_token, positions + row.first_token + row.token_count,
              row.first_position);
    std::fill_n(token_rows + row.first_token, row.token_count, i);
    std::copy(sequence.pages.begin(), sequence.pages.end(), page_tables + i * page_table_stride);
    if (!ticket.feature_pages.empty()) {
      const std::vector<uint32_t>& features = ticket.feature_pages[i].list();
      std::copy(features.begin(), features.end(), feature_tables + i * feature_table_stride);
    }
    const uint32_t logits_count = row.logits_count();
    std::iota(logits_indices + row.logits_first, logits_indices + row.logits_first + logits_count,
              row.first_token + row.token_count - logits_count);
    const Row& scored_row = ticket.rows[i];
    for (uint32_t t = 0; t < scored_row.scored_count(); ++t) {
      const bool is_own = t + 1 < row.token_count;
      const int32_t token =
          is_own ? sequence.tokens[row.first_position + t + 1] : scored_row.next_token;
      scored_indices[scored_row.scored_first + t] = row.first_token + t;
      scored[scored_row.scored_first + t] = {token, i, scored_row.token_top};
    }
  }
}

}  // namespace wcuda::engine
