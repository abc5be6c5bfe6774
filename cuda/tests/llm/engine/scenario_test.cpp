// 64 sequences at once (prefill in odd chunks, forks, truncations, cancels, different sampling)
// give each sequence what it gives alone.
#include <algorithm>
#include <cmath>
#include <deque>
#include <map>
#include <random>

#include "llm/engine/engine_fixture.h"
#include "support/backend_name.h"

namespace wcuda {
namespace {

using testing::TinyModel;

constexpr uint32_t kSequences = 64;
constexpr uint32_t kMaxRows = 48;
constexpr uint32_t kMaxBatchTokens = 200;
constexpr uint32_t kTop = 4;
constexpr uint32_t kChunks[] = {1, 3, 5, 7, 13, 17, 31, 33, 63, 65};
// Kernels for one row and for many add up in different ways, and so do the steps before; of more
// than 128 tokens, the sums of gate and up are f16. Measured: 2.1e-1 on an H200, 0 on the host. A
// fault as small as one wrong position moves a logit by more than 1.
constexpr float kLogitsTolerance = 4e-1f;

// What happens to a sequence, one after the other.
struct Move {
  enum Kind { kRow, kFork, kTruncate, kCancel };
  Kind kind;
  std::vector<int32_t> tokens;  // of kRow; empty: the token sampled last
  bool is_sampled = false;
  uint32_t value = 0;  // kFork: the new sequence; kTruncate: the length that is left
};

// What a row that samples returned.
struct Sample {
  int32_t status, token;
  float logprob;
  std::vector<int32_t> top_tokens;
  std::vector<float> top_logprobs, logits;
};
bool operator==(const Sample& a, const Sample& b) {
  return a.status == b.status && a.token == b.token && a.logprob == b.logprob &&
         a.top_tokens == b.top_tokens && a.top_logprobs == b.top_logprobs && a.logits == b.logits;
}
using Outcome = std::vector<std::vector<Sample>>;  // of each sequence

struct Sampling {
  Sampling(uint32_t index, uint32_t vocabulary) {
    values.seed = 1000 + index;
    values.temperature = index % 8 < 2 ? 0.0f : 0.9f;
    switch (index % 8) {
      case 1:
        values.repetition_penalty = 1.3f;
        values.frequency_penalty = 0.1f;
        values.penalty_last_n = 40;
        break;
      case 2:
        values.top_k = 20;
        break;
      case 3:
        values.top_p = 0.9f;
        values.top_logprobs = kTop;
        break;
      case 4:
        values.min_p = 0.02f;
        values.presence_penalty = 0.3f;
        break;
      case 5:
        bias_tokens = {1, 5, 11};
        bias_values = {-INFINITY, 1.5f, -2.0f};
        values.bias_count = bias_tokens.size();
        values.bias_tokens = bias_tokens.data();
        values.bias_values = bias_values.data();
        break;
      case 6:
        mask.assign((vocabulary + 31) / 32, 0x6db6db6d);
        values.mask = mask.data();
        values.mask_words = mask.size();
        break;
      case 7:
        values.typical_p = 0.8f;
        values.temperature = 1.4f;
    }
  }
  bool is_greedy() const { return values.temperature == 0.0f; }
  wcuda_sampling values = WCUDA_SAMPLING_INIT;
  std::vector<int32_t> bias_tokens;
  std::vector<float> bias_values;
  std::vector<uint32_t> mask;
};

class Scripts {
 public:
  explicit Scripts(uint32_t vocabulary) : vocabulary_(vocabulary) {
    while (all.size() + 1 < kSequences) add_root();
    while (all.size() < kSequences) add_plain();
    for (uint32_t i = 0; i < kSequences; ++i) samplings.emplace_back(i, vocabulary);
  }
  std::vector<std::vector<Move>> all;
  std::vector<bool> is_root;
  struct Source {
    uint32_t sequence;
    uint32_t sample_count;  // of the source, before the fork
  };
  std::map<uint32_t, Source> sources;  // of forks
  std::deque<Sampling> samplings;

 private:
  uint32_t add(bool root) {
    all.emplace_back();
    is_root.push_back(root);
    return static_cast<uint32_t>(all.size() - 1);
  }
  std::vector<int32_t> tokens(uint32_t count) {
    std::vector<int32_t> tokens(count);
    for (int32_t& token : tokens) token = static_cast<int32_t>(generator_() % vocabulary_);
    return tokens;
  }
  uint32_t prefill(uint32_t index, uint32_t count) {
    for (uint32_t left = count; left > 0;) {
      const uint32_t chunk = std::min<uint32_t>(left, kChunks[generator_() % std::size(kChunks)]);
      left -= chunk;
      all[index].push_back({Move::kRow, tokens(chunk), left == 0, 0});
    }
    return count;
  }
  uint32_t decode(uint32_t index, uint32_t count) {
    for (uint32_t i = 0; i < count; ++i) all[index].push_back({Move::kRow, {}, true, 0});
    return count;
  }
  void add_plain() {
    const uint32_t index = add(true);
    prefill(index, 1 + generator_() % 120);
    decode(index, 4 + generator_() % 12);
  }
  // Every third goes back and takes another way, every third forks, every fourth is cancelled.
  void add_root() {
    const uint32_t index = add(true), kind = index % 3;
    uint32_t length = prefill(index, 1 + generator_() % 120);
    length += decode(index, 2 + generator_() % 12);
    if (kind == 1) {
      length -= std::min(length - 1, 1 + static_cast<uint32_t>(generator_()) % 70);
      all[index].push_back({Move::kTruncate, {}, false, length});
      prefill(index, 1 + generator_() % 9);
    } else if (kind == 2) {
      const uint32_t forked = add(false);
      const auto samples = std::count_if(all[index].begin(), all[index].end(),
                                         [](const Move& move) { return move.is_sampled; });
      sources[forked] = {index, static_cast<uint32_t>(samples)};
      all[index].push_back({Move::kFork, {}, false, forked});
      decode(forked, 3 + generator_() % 9);
    }
    if (index % 4 == 3) {
      prefill(index, 60);
      all[index].push_back({Move::kCancel, {}, false, 0});
    } else {
      decode(index, 3 + generator_() % 9);
    }
  }

  uint32_t vocabulary_;
  std::mt19937 generator_{5};
};

class Scenario : public testing::EngineFixture {
 protected:
  TinyModel tiny_model() const override {
    if (GetParam() == WCUDA_BACKEND_HOST) return EngineFixture::tiny_model();
    TinyModel tiny = TinyModel::of_type(testing::kQ4_K);
    tiny.embedding_type = testing::kQ6_K;
    tiny.vocabulary_size = 331;
    return tiny;
  }

  void create(uint64_t flags) {
    wcuda_engine_options options = WCUDA_ENGINE_OPTIONS_INIT;
    options.flags = flags;
    options.max_sequences = kSequences;
    options.max_batch_rows = kMaxRows;
    options.max_batch_tokens = kMaxBatchTokens;
    options.max_sequence_tokens = 256;
    options.max_top_logprobs = kTop;
    options.kv_tokens = kSequences * 4 * 64;
    create_engine(options);
  }

  // One row a step: every family of a root and its forks by itself.
  Outcome run_alone() { return run(nullptr); }
  // Steps whose rows follow from the seed.
  Outcome run_together(uint32_t seed) {
    std::mt19937 generator(seed);
    return run(&generator);
  }

 private:
  struct InFlight {
    uint64_t ticket;
    std::vector<uint32_t> sequences;  // of its rows
  };
  struct Run {
    std::vector<wcuda_sequence> handles{kSequences};
    std::vector<size_t> next = std::vector<size_t>(kSequences, 0);  // index of the next move
    std::deque<InFlight> in_flight;
    Outcome outcome{kSequences};
  };

  Outcome run(std::mt19937* generator) {
    Run run;
    for (uint32_t i = 0; i < kSequences; ++i)
      if (scripts().is_root[i] && generator != nullptr) run.handles[i] = create_sequence();
    for (;;) {
      const std::vector<uint32_t> order = rows_of_next_step(&run, generator);
      if (order.empty() || HasFatalFailure()) break;
      submit_rows(&run, order);
      if (run.in_flight.size() == 2 || generator == nullptr || (*generator)() % 3 == 0)
        collect(&run);
    }
    while (!run.in_flight.empty()) collect(&run);
    for (const wcuda_sequence handle : run.handles) wcuda_sequence_destroy(handle);
    sequences_.clear();
    return std::move(run.outcome);
  }

  // Moves every sequence on to its next row, and chooses among those that have one.
  std::vector<uint32_t> rows_of_next_step(Run* run, std::mt19937* generator) {
    std::vector<uint32_t> ready, chosen;
    for (uint32_t i = 0; i < kSequences; ++i) {
      const bool is_idle = generator == nullptr && !ready.empty();
      if (!is_idle && advance_to_row(run, i, generator == nullptr)) ready.push_back(i);
    }
    if (generator == nullptr) return ready;
    std::shuffle(ready.begin(), ready.end(), *generator);
    const uint32_t wanted = 1 + static_cast<uint32_t>((*generator)()) % kMaxRows;
    // Every other step has no row of several tokens, where there are such.
    const bool is_decode = (*generator)() % 2 == 0;
    uint32_t token_count = 0;
    for (const bool any : {false, true}) {
      for (const uint32_t i : ready) {
        const Move& move = scripts().all[i][run->next[i]];
        const uint32_t count = std::max<uint32_t>(1, static_cast<uint32_t>(move.tokens.size()));
        if (chosen.size() == wanted || token_count + count > kMaxBatchTokens) continue;
        if (is_decode && !any && count > 1) continue;
        chosen.push_back(i);
        token_count += count;
      }
      if (!chosen.empty()) break;
    }
    return chosen;
  }

  // What comes before the next row; false when there is none, or the sequence is not made yet.
  bool advance_to_row(Run* run, uint32_t index, bool makes_root) {
    const std::vector<Move>& moves = scripts().all[index];
    if (run->next[index] == moves.size()) return false;
    if (run->handles[index].id == 0) {
      if (!makes_root || !scripts().is_root[index]) return false;
      run->handles[index] = create_sequence();
    }
    for (; run->next[index] < moves.size(); ++run->next[index]) {
      const Move& move = moves[run->next[index]];
      wcuda_sequence& handle = run->handles[index];
      if (move.kind == Move::kRow) return true;
      if (move.kind == Move::kFork) run->handles[move.value] = fork(handle);
      if (move.kind == Move::kTruncate) {
        EXPECT_EQ(wcuda_sequence_truncate(handle, move.value, &error_), WCUDA_OK) << error_.message;
      }
      if (move.kind == Move::kCancel) wcuda_sequence_destroy(std::exchange(handle, {0}));
    }
    return false;
  }

  void submit_rows(Run* run, const std::vector<uint32_t>& order) {
    std::vector<wcuda_row> rows;
    for (const uint32_t i : order) {
      const Move& move = scripts().all[i][run->next[i]++];
      const uint32_t flags = move.is_sampled ? WCUDA_ROW_SAMPLE | WCUDA_ROW_LOGITS_LAST : 0;
      rows.push_back(move.tokens.empty() ? feed_row(run->handles[i], flags)
                                         : token_row(run->handles[i], move.tokens, flags));
      if (move.is_sampled) rows.back().sampling = &scripts().samplings[i].values;
    }
    uint64_t ticket = 0;
    ASSERT_OK(try_submit(rows, &ticket));
    run->in_flight.push_back({ticket, order});
  }

  void collect(Run* run) {
    const InFlight step = run->in_flight.front();
    run->in_flight.pop_front();
    std::vector<wcuda_row_result> rows(step.sequences.size(), WCUDA_ROW_RESULT_INIT);
    std::vector<int32_t> top_tokens(kMaxRows * kTop);
    std::vector<float> top_logprobs(kMaxRows * kTop), logits(size_t{kMaxRows} * vocabulary_);
    wcuda_step_output output = WCUDA_STEP_OUTPUT_INIT;
    output.row_capacity = rows.size();
    output.rows = rows.data();
    output.top_capacity = top_tokens.size();
    output.top_tokens = top_tokens.data();
    output.top_logprobs = top_logprobs.data();
    output.logits_capacity = logits.size();
    output.logits = logits.data();
    ASSERT_OK(wcuda_step_wait(engine_, step.ticket, -1, &output, &error_));
    for (size_t i = 0; i < rows.size(); ++i) {
      const wcuda_row_result& row = rows[i];
      EXPECT_EQ(row.status, WCUDA_ROW_OK) << "sequence " << step.sequences[i];
      if (row.logits_count == 0) continue;
      const float* const first = &logits[row.logits_offset * vocabulary_];
      const auto top = static_cast<ptrdiff_t>(row.top_offset);
      run->outcome[step.sequences[i]].push_back(
          {row.status,
           row.token,
           row.logprob,
           {top_tokens.begin() + top, top_tokens.begin() + top + row.top_count},
           {top_logprobs.begin() + top, top_logprobs.begin() + top + row.top_count},
           {first, first + vocabulary_}});
    }
  }

 protected:
  const Scripts& scripts() {
    if (!scripts_) scripts_ = std::make_unique<Scripts>(vocabulary_);
    return *scripts_;
  }

  // Logits near those of the sequence alone, up to the sample where the tokens part, which is
  // returned; there the two are nearly a tie. Says where.
  size_t expect_near(uint32_t index, const std::vector<Sample>& together,
                     const std::vector<Sample>& alone) {
    EXPECT_EQ(together.size(), alone.size()) << "sequence " << index;
    for (size_t i = 0; i < std::min(together.size(), alone.size()); ++i) {
      const std::vector<float>&a = alone[i].logits, &b = together[i].logits;
      float largest = 0.0f;
      for (size_t t = 0; t < a.size(); ++t) {
        const float difference = std::fabs(a[t] - b[t]);
        largest = difference <= largest ? largest : difference;  // keeps a NaN
      }
      EXPECT_TRUE(largest <= kLogitsTolerance)
          << "sequence " << index << ", sample " << i << ": logits differ by " << largest;
      if (together[i].token == alone[i].token) continue;
      const bool is_greedy = scripts().samplings[index].is_greedy();
      const float gap = a[alone[i].token] - a[together[i].token];
      std::printf(
          "sequence %u, sample %zu, %s: token %d alone, %d together; gap %.1e, logits %.1e\n",
          index, i, is_greedy ? "greedy" : "drawn", alone[i].token, together[i].token, gap,
          largest);
      if (index % 8 == 0) {  // greedy without penalties: the logits alone decide
        EXPECT_LE(gap, 2 * largest) << "sequence " << index;
      }
      return i;
    }
    return SIZE_MAX;
  }

  struct Count {
    uint32_t compared = 0, parted = 0;  // sequences
  };
  // A fork of a sequence that had parted has another past, and is left out.
  void expect_near(const Outcome& together, const Outcome& alone, Count* count) {
    std::vector<size_t> parted_at(kSequences, SIZE_MAX);
    for (uint32_t i = 0; i < kSequences; ++i) {
      const auto source = scripts().sources.find(i);  // a source comes before its forks
      if (source != scripts().sources.end() &&
          parted_at[source->second.sequence] < source->second.sample_count)
        continue;
      parted_at[i] = expect_near(i, together[i], alone[i]);
      ++count->compared;
      count->parted += parted_at[i] != SIZE_MAX;
    }
  }

 private:
  std::unique_ptr<Scripts> scripts_;
};
INSTANTIATE_TEST_SUITE_P(Host, Scenario, ::testing::Values(WCUDA_BACKEND_HOST),
                         testing::backend_name);
INSTANTIATE_TEST_SUITE_P(Gpu, Scenario, ::testing::Values(WCUDA_BACKEND_CUDA),
                         testing::backend_name);

TEST_P(Scenario, gives_each_sequence_what_it_gives_alone_and_the_same_bits_again) {
  create(0);
  const Outcome alone = run_alone();
  uint32_t samples = 0;
  Count count;
  for (const auto& sequence : alone) samples += static_cast<uint32_t>(sequence.size());
  ASSERT_GT(samples, 10 * kSequences);

  for (uint32_t seed = 1; seed <= 20 && !HasFailure(); ++seed) {
    const Outcome first = run_together(seed), second = run_together(seed);
    for (uint32_t i = 0; i < kSequences; ++i)
      EXPECT_TRUE(first[i] == second[i]) << "sequence " << i << " of composition " << seed;
    expect_near(first, alone, &count);
  }
  // Of a sequence's 20 draws one falls between two tokens now and then.
  std::printf("%u of %u sequences parted\n", count.parted, count.compared);
  EXPECT_GE(count.compared, 20 * kSequences * 9 / 10);
  EXPECT_LE(count.parted, count.compared * 4 / 10);
}

TEST_P(Scenario, gives_the_bits_of_each_sequence_alone_when_batch_invariant) {
  create(WCUDA_ENGINE_BATCH_INVARIANT | WCUDA_ENGINE_POISON_FREE_PAGES);
  const Outcome alone = run_alone();

  for (uint32_t seed = 1; seed <= 20 && !HasFailure(); ++seed) {
    const Outcome together = run_together(seed);
    for (uint32_t i = 0; i < kSequences; ++i)
      EXPECT_TRUE(together[i] == alone[i]) << "sequence " << i << " of composition " << seed;
  }
}

}  // namespace
}  // namespace wcuda
