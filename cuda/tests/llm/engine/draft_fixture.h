// Rows with draft tokens, and the run without them, for tests through the C interface.
#pragma once

#include <algorithm>
#include <cmath>
#include <ostream>
#include <vector>

#include "llm/engine/engine_fixture.h"

namespace wcuda::testing {

using Tokens = std::vector<int32_t>;

inline const Tokens kDraftPrompt = {1, 5, 9, 2, 7};
constexpr uint32_t kTopMax = 8;
constexpr uint32_t kStreamTokens = 40;

// What was sampled for one position.
struct Drawn {
  int32_t token;
  float logprob;
  Tokens top_tokens;
  std::vector<float> top_logprobs;
};
inline bool operator==(const Drawn& a, const Drawn& b) {
  return a.token == b.token && a.logprob == b.logprob && a.top_tokens == b.top_tokens &&
         a.top_logprobs == b.top_logprobs;
}
inline std::ostream& operator<<(std::ostream& out, const Drawn& drawn) {
  return out << "token " << drawn.token << " (" << drawn.logprob << ", " << drawn.top_tokens.size()
             << " alternatives)";
}

class DraftFixture : public EngineFixture {
 protected:
  static wcuda_engine_options draft_options(uint64_t flags = WCUDA_ENGINE_BATCH_INVARIANT) {
    wcuda_engine_options options = small_options();
    options.flags = flags | WCUDA_ENGINE_POISON_FREE_PAGES;
    options.max_draft_tokens = 48;
    return options;
  }
  void add_outputs(wcuda_step_output* output) override {
    sampled_tokens_.assign(capacity_, -7);
    sampled_logprobs_.assign(capacity_, NAN);
    sampled_top_counts_.assign(capacity_, 99);
    output->sampled_capacity = capacity_;
    output->sampled_tokens = sampled_tokens_.data();
    output->sampled_logprobs = sampled_logprobs_.data();
    output->sampled_top_counts = sampled_top_counts_.data();
    top_tokens_.assign(size_t{64} * kTopMax, -7);
    top_logprobs_.assign(size_t{64} * kTopMax, NAN);
    output->top_capacity = top_tokens_.size();
    output->top_tokens = top_tokens_.data();
    output->top_logprobs = top_logprobs_.data();
  }
  // All tokens of a row of the step that was waited for last.
  std::vector<Drawn> drawn(const StepResult& step, size_t row) const {
    const wcuda_row_result& result = step.rows.at(row);
    std::vector<Drawn> all;
    uint64_t top = result.top_offset;
    for (uint64_t i = result.sampled_offset; i < result.sampled_offset + result.sampled_count;
         ++i) {
      Drawn one{sampled_tokens_.at(i), sampled_logprobs_.at(i), {}, {}};
      for (uint32_t t = 0; t < sampled_top_counts_.at(i); ++t, ++top) {
        one.top_tokens.push_back(top_tokens_.at(top));
        one.top_logprobs.push_back(top_logprobs_.at(top));
      }
      all.push_back(one);
    }
    EXPECT_EQ(top, result.top_offset + result.top_count);
    if (!all.empty()) {
      EXPECT_EQ(result.token, all.back().token);
      EXPECT_EQ(result.logprob, all.back().logprob);
    }
    return all;
  }

  wcuda_row drafted(wcuda_row row, const Tokens& drafts) const {
    row.draft_tokens = drafts.data();
    row.draft_count = static_cast<uint32_t>(drafts.size());
    return row;
  }

  // `count` tokens, one a step: the first from `row`, each later one from the token before it.
  std::vector<Drawn> draw(wcuda_row row, const wcuda_sampling& sampling, size_t count) {
    std::vector<Drawn> stream;
    while (stream.size() < count) {
      row.sampling = &sampling;
      stream.push_back(drawn(wait(submit({row})), 0).at(0));
      row = feed_row(row.sequence);
    }
    return stream;
  }

  // The run without drafts.
  std::vector<Drawn> plain_run(const Tokens& prompt, const wcuda_sampling& sampling,
                               size_t count = kStreamTokens) {
    const wcuda_sequence sequence = create_sequence();
    const std::vector<Drawn> stream =
        draw(token_row(sequence, prompt, WCUDA_ROW_SAMPLE), sampling, count);
    wcuda_sequence_destroy(sequence);
    return stream;
  }
  static Tokens tokens_of(const std::vector<Drawn>& stream) {
    Tokens tokens;
    for (const Drawn& one : stream) tokens.push_back(one.token);
    return tokens;
  }
  // `count` drafts after the first `done` tokens of a stream, of which the first `good` hold.
  Tokens drafts_for(const Tokens& stream, size_t done, size_t count, size_t good) const {
    Tokens drafts;
    for (size_t i = 0; i < count; ++i) {
      const int32_t next = done + i < stream.size() ? stream[done + i] : 3;
      drafts.push_back(i < good ? next : (next + 1) % static_cast<int32_t>(vocabulary_));
    }
    return drafts;
  }

  uint64_t capacity_ = 64;
  Tokens sampled_tokens_, top_tokens_;
  std::vector<float> sampled_logprobs_, top_logprobs_;
  std::vector<uint32_t> sampled_top_counts_;
};
inline std::vector<wcuda_sampling> all_samplings(const Tokens& bias_tokens,
                                                 const std::vector<float>& bias_values) {
  std::vector<wcuda_sampling> samplings(7, WCUDA_SAMPLING_INIT);
  samplings[0].top_logprobs = 3;
  samplings[1].temperature = 0.9f;
  samplings[1].seed = 11;
  samplings[2].temperature = 1.2f;
  samplings[2].top_k = 9;
  samplings[2].top_logprobs = 5;
  samplings[3].repetition_penalty = 1.7f;
  samplings[3].presence_penalty = 0.4f;
  samplings[3].penalty_last_n = 12;
  samplings[4].temperature = 1.0f;
  samplings[4].frequency_penalty = 0.8f;
  samplings[4].penalty_last_n = 4096;
  samplings[5].bias_count = bias_tokens.size();
  samplings[5].bias_tokens = bias_tokens.data();
  samplings[5].bias_values = bias_values.data();
  samplings[5].presence_penalty = 1.0f;
  samplings[6].temperature = 1.5f;
  samplings[6].typical_p = 0.8f;
  samplings[6].min_p = 0.01f;
  return samplings;
}

}  // namespace wcuda::testing
