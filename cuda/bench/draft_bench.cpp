// Tokens a second with draft tokens, at an acceptance that the bench imposes: a bias makes the
// target sample one token always, and each draft is that token with probability a, independently.
// What every step returns is compared with the drafts that were drawn for it.
//
//   draft_bench [--backend auto|cuda|host] [--threads N] [--repeat N] [--tokens N] [--depth N]
//               [--streams N] [--acceptance A,B] [--drafts K,L] [--draft-model SHAPE:MIX|none]
//               [--draft-head MIX|none] [--json FILE] [SHAPE:MIX]
//   draft_bench --check [OPTION…]    checks the results alone; on the host backend, unless named
//
// Drafts are those of an `n-gram` look-up, which take no time, or of a `draft model` or a `draft
// head`: k greedy steps of a second engine, whose tokens are read back and then replaced by the
// imposed ones. The first of these steps of a head has what the target has computed since. A step
// with drafts is submitted when the last one's result is known; plain decoding has two steps
// in flight.
//
// The number k of drafts of a row, among those of --drafts (at most 15), is the one with the most
// tokens a second by E / t: E = 1 + a + … + a^k tokens are expected of a step, and t is the median
// time of such a step and its drafts; for k = 0, of a step of plain decoding. Streams draw their
// own drafts and continue for --tokens tokens each on average (512 on CUDA, 128 on the host), from
// position --depth on. Without a model: 8B with drafts of 1B on CUDA, SmolLM2's shape with drafts
// of a tiny model on the host, and a head for the model, of Q4_K_M. --draft-model none and
// --draft-head none leave them out.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "bench/e2e_report.h"
#include "bench/e2e_session.h"
#include "bench/random_blocks.h"
#include "bench/synthetic_model.h"

namespace wcuda::bench {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int32_t kToken = 7, kOther = 8;  // what the target samples, and a draft that fails
constexpr float kBias = 1e4f;              // logits of synthetic models are far smaller
constexpr uint32_t kWarmRounds = 8, kTimedRounds = 24;
constexpr uint32_t kPromptStep = 512;  // tokens

struct Options {
  int32_t backend = WCUDA_BACKEND_AUTO;
  bool is_check = false;
  uint32_t threads = 0, repeat = 5, tokens = 0, depth = 0, streams = 1;
  std::vector<double> acceptance{0.5, 0.7, 0.9};
  std::vector<uint32_t> drafts;
  std::string model, draft_model, draft_head, json;

  uint32_t start() const { return std::max(depth, 1u); }
  uint32_t middle() const { return start() + tokens / 2; }  // where steps are timed
  // Positions of a sequence: a stream may have up to twice as many tokens as the average, and the
  // rounds that are timed need room.
  uint32_t length_max() const { return start() + std::max(2 * tokens, 512u) + 64; }
};

double seconds_between(Clock::time_point begin, Clock::time_point end) {
  return std::chrono::duration<double>(end - begin).count();
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// Tokens of a step with k drafts, each of which holds with probability a.
double expected_tokens(double a, uint32_t k) {
  double sum = 1.0;
  for (uint32_t i = 0; i < k; ++i) sum = 1.0 + a * sum;
  return sum;
}

// Draws drafts.
class Draws {
 public:
  // Writes k drafts, each of which is right with probability a; returns how many of them hold: the
  // right ones before the first wrong one.
  uint32_t draw(uint32_t k, double a, int32_t* drafts) {
    uint32_t first_wrong = k;
    for (uint32_t i = 0; i < k; ++i) {
      const bool is_right = static_cast<double>(random_word(counter_++) >> 11) * 0x1p-53 < a;
      drafts[i] = is_right ? kToken : kOther;
      if (!is_right) first_wrong = std::min(first_wrong, i);
    }
    return first_wrong;
  }

 private:
  uint64_t counter_ = 0;
};

// Seconds of a round.
struct RoundTime {
  double verify = 0.0, draft = 0.0;
  bool feeds_more = false;  // the first draft step has a row of several tokens
};

// What the rounds of a run took.
struct Run {
  uint64_t tokens = 0, rounds = 0;
  double seconds = 0.0;

  double rate() const { return static_cast<double>(tokens) / seconds; }
};

// Seconds of rounds with one number of drafts: medians.
struct Cost {
  double verify = 0.0;
  double draft = 0.0;            // if no draft step has a row of several tokens
  double draft_after_all = 0.0;  // if one has: in some row all drafts held

  // Expected for `streams` rows whose k drafts hold with probability a.
  double at(double a, uint32_t k, uint32_t streams) const {
    const double none = std::pow(1.0 - std::pow(a, k), streams);
    return verify + none * draft + (1.0 - none) * draft_after_all;
  }
};

// Where drafts come from.
struct Kind {
  const char* name;
  Session* target;
  Session* draft;  // null for drafts that take no time
  bool is_head;
};

// The streams of a target, and of a draft model or head. The positions of a sequence hold its
// tokens but the last sampled one; those of a head hold the token after each of these.
class Streams {
 public:
  Streams(const Kind& kind, uint32_t count)
      : target_(*kind.target),
        draft_(kind.draft),
        is_head_(kind.is_head),
        count_(count),
        accepted_(count) {}

  bool has_draft_model() const { return draft_ != nullptr; }

  // Takes all streams back to `start` positions.
  Status begin(uint32_t start) {
    WCUDA_TRY(target_.rewind(start));
    if (draft_ != nullptr && !is_head_) WCUDA_TRY(draft_->rewind(start));
    start_ = start;
    lengths_.assign(count_, start);
    // A head reads the features of the last position again, which are new.
    draft_lengths_.assign(count_, is_head_ ? start - 1 : start);
    common_lengths_ = draft_lengths_;
    for (uint32_t i = 0; is_head_ && i < count_; ++i) WCUDA_TRY(truncate_draft(i));
    return {};
  }

  // Tokens of all streams since begin.
  uint64_t tokens() const {
    uint64_t sum = 0;
    for (const uint32_t length : lengths_) sum += length - start_;
    return sum;
  }

  // One step of every stream with k drafts, each of which holds with probability a.
  Status round(uint32_t k, double a, RoundTime* time) {
    drafts_.resize(size_t{count_} * k);
    for (uint32_t i = 0; i < count_; ++i)
      accepted_[i] = draws_.draw(k, a, drafts_.data() + size_t{i} * k);
    const Clock::time_point begin = Clock::now();
    *time = {};
    if (draft_ != nullptr && k > 0) WCUDA_TRY(run_drafts(k, &time->feeds_more));
    const Clock::time_point drafted = Clock::now();
    WCUDA_TRY(verify(k));
    time->draft = seconds_between(begin, drafted);
    time->verify = seconds_between(drafted, Clock::now());
    return {};
  }

  // The target's sequences have the imposed tokens, and no others, after those of begin.
  Status check() const {
    wcuda_error error{};
    for (uint32_t i = 0; i < count_; ++i) {
      WCUDA_TRY(expect_length(target_, i, lengths_[i]));
      if (draft_ != nullptr) WCUDA_TRY(expect_length(*draft_, i, draft_lengths_[i]));
      std::vector<int32_t> tokens(lengths_[i] - start_);
      WCUDA_TRY(to_status(
          wcuda_sequence_tokens_get(target_.sequence(i), start_,
                                    static_cast<uint32_t>(tokens.size()), tokens.data(), &error),
          error));
      for (size_t t = 0; t < tokens.size(); ++t) WCUDA_TRY(expect_token(i, t, tokens[t]));
    }
    return {};
  }

  static Status expect_token(uint32_t stream, size_t index, int32_t token) {
    if (token == kToken) return {};
    return Status::error(WCUDA_INTERNAL, "token %zu of stream %u is %d, imposed was %d", index,
                         stream, token, kToken);
  }

 private:
  static Status expect_length(const Session& session, uint32_t stream, uint32_t expected) {
    wcuda_error error{};
    uint32_t length = 0;
    WCUDA_TRY(
        to_status(wcuda_sequence_length_get(session.sequence(stream), &length, &error), error));
    if (length == expected) return {};
    return Status::error(WCUDA_INTERNAL, "stream %u has %u positions, by its drafts %u", stream,
                         length, expected);
  }

  Status truncate_draft(uint32_t stream) {
    wcuda_error error{};
    return to_status(
        wcuda_sequence_truncate(draft_->sequence(stream), draft_lengths_[stream], &error), error);
  }

  // k greedy steps. The sequences of a draft model keep what the target accepted of their last
  // drafts; if it accepted all, the last of these has not been an input yet. Those of a head keep
  // nothing of their last drafts, for the target has features of what it accepted.
  Status run_drafts(uint32_t k, bool* feeds_more) {
    std::vector<wcuda_row> rows;
    for (uint32_t i = 0; i < count_; ++i) {
      const uint32_t kept =
          std::min(is_head_ ? common_lengths_[i] : lengths_[i], draft_lengths_[i]);
      if (draft_lengths_[i] > kept) {
        draft_lengths_[i] = kept;
        WCUDA_TRY(truncate_draft(i));
      }
      const uint32_t inputs = lengths_[i] - kept + (is_head_ ? 0 : 1);
      WCUDA_CHECK(inputs <= inputs_.size());
      *feeds_more = *feeds_more || inputs > 1;
      rows.push_back(draft_->row(i, inputs_.data(), inputs));
      common_lengths_[i] = lengths_[i];
      draft_lengths_[i] = kept + inputs + k - 1;
    }
    return draft_->run(rows, k - 1);
  }

  Status verify(uint32_t k) {
    std::vector<wcuda_row> rows;
    for (uint32_t i = 0; i < count_; ++i) {
      rows.push_back(target_.row(i, nullptr, 1));
      rows.back().draft_tokens = k > 0 ? &drafts_[size_t{i} * k] : nullptr;
      rows.back().draft_count = k;
    }
    WCUDA_TRY(target_.run(rows));
    for (uint32_t i = 0; i < count_; ++i) {
      const wcuda_row_result& result = target_.results()[i];
      if (result.sampled_count != accepted_[i] + 1 || result.token_count != accepted_[i] + 1)
        return Status::error(WCUDA_INTERNAL,
                             "stream %u: %llu tokens sampled and %u positions with %u drafts, of "
                             "which the first %u are right",
                             i, static_cast<unsigned long long>(result.sampled_count),
                             result.token_count, k, accepted_[i]);
      for (uint64_t t = 0; t < result.sampled_count; ++t)
        WCUDA_TRY(expect_token(i, lengths_[i] - start_ + t,
                               target_.sampled_tokens()[result.sampled_offset + t]));
      lengths_[i] += accepted_[i] + 1;
    }
    return {};
  }

  Session& target_;
  Session* const draft_;
  const bool is_head_;
  const uint32_t count_;
  const std::vector<int32_t> inputs_ =
      std::vector<int32_t>(WCUDA_ROW_DRAFT_TOKENS_MAX + 1, kToken);  // of draft steps
  uint32_t start_ = 0;
  std::vector<uint32_t> lengths_, draft_lengths_;  // (count_) positions
  std::vector<uint32_t> common_lengths_;  // (count_) of draft_lengths_, before the last drafts
  std::vector<int32_t> drafts_;           // (count_, k)
  std::vector<uint32_t> accepted_;        // (count_) drafts that hold
  Draws draws_;
};

// A synthetic model with an engine.
struct Loaded {
  SyntheticModel synthetic;
  Model model;
  std::unique_ptr<Session> session;
};

// `name` is SHAPE:MIX.
Result<Loaded> load_model(const Device& device, const std::string& name, wcuda_model target = {0}) {
  const size_t colon = name.find(':');
  if (colon == std::string::npos)
    return Status::error(WCUDA_INVALID_ARGUMENT, "'%s' is not SHAPE:MIX", name.c_str());
  Loaded loaded;
  double seconds = 0.0;
  WCUDA_ASSIGN(loaded.synthetic,
               SyntheticModel::make(name.substr(0, colon), name.substr(colon + 1)));
  WCUDA_ASSIGN(loaded.model, load(device, loaded.synthetic.source(), &seconds, target));
  return loaded;
}

// A session whose sequences have `length` positions; those of a draft head read the features of
// `target`.
Result<std::unique_ptr<Session>> open_session(const Device& device, wcuda_model model,
                                              const wcuda_engine_options& engine, uint32_t length,
                                              const Session* target = nullptr) {
  double seconds = 0.0;
  WCUDA_ASSIGN(std::unique_ptr<Session> session, Session::open(device, model, engine));
  session->set_target(target);
  WCUDA_TRY(session->warm_up(&seconds));
  WCUDA_TRY(session->begin(engine.max_sequences));
  WCUDA_TRY(session->prefill(length));
  return session;
}

class DraftBench {
 public:
  DraftBench(const Device& device, const Options& options) : device_(device), options_(options) {}

  Status open() {
    sampling_.bias_count = 1;
    sampling_.bias_tokens = &kToken;
    sampling_.bias_values = &kBias;
    const uint32_t streams = options_.streams, k_max = options_.drafts.back();
    wcuda_engine_options engine = WCUDA_ENGINE_OPTIONS_INIT;
    engine.max_sequences = streams;
    engine.max_draft_tokens = streams * std::max(k_max, 1u);
    engine.max_batch_tokens = std::max(kPromptStep, streams * (1 + k_max));
    engine.max_sequence_tokens = options_.length_max();
    engine.kv_tokens = uint64_t{streams} * (options_.length_max() + 2 * WCUDA_KV_PAGE_TOKENS);
    WCUDA_ASSIGN(target_, load_model(device_, options_.model));
    WCUDA_ASSIGN(target_.session,
                 open_session(device_, target_.model.get(), engine, options_.middle()));
    target_.session->set_sampling(sampling_);
    kinds_ = {{" n-gram", target_.session.get(), nullptr, false}};
    if (!options_.draft_head.empty()) WCUDA_TRY(open_head(engine));
    if (options_.draft_model.empty()) return {};
    engine.max_draft_tokens = 0;
    engine.max_batch_tokens = std::max(kPromptStep, 2 * streams);
    WCUDA_ASSIGN(draft_, load_model(device_, options_.draft_model));
    WCUDA_ASSIGN(draft_.session,
                 open_session(device_, draft_.model.get(), engine, options_.middle()));
    kinds_.push_back({" draft model", target_.session.get(), draft_.session.get(), false});
    return {};
  }

  // Runs of every number of drafts and several acceptances; every round checks its results.
  Status check() {
    uint64_t steps = 0, tokens = 0;
    for (const Kind& kind : kinds_) {
      Streams streams(kind, options_.streams);
      for (const uint32_t k : options_.drafts)
        for (const double a : {0.0, 0.7, 1.0}) {
          WCUDA_ASSIGN(const Run run, generate(&streams, k, a));
          steps += run.rounds;
          tokens += run.tokens;
        }
    }
    WCUDA_TRY(generate_plain().status());
    std::printf("streams %u: %llu tokens of %llu steps are as drawn\n", options_.streams,
                static_cast<unsigned long long>(tokens), static_cast<unsigned long long>(steps));
    return {};
  }

  Status bench(Report* report) {
    name_ = options_.model;
    std::replace(name_.begin(), name_.end(), ':', ' ');
    if (options_.streams > 1) name_ += " x " + std::to_string(options_.streams);
    if (options_.depth > 0) name_ += " at " + std::to_string(options_.depth);
    WCUDA_TRY(bench_plain(report));
    std::vector<std::vector<Cost>> costs;  // (kinds, numbers of drafts)
    for (const Kind& kind : kinds_) {
      costs.emplace_back();
      Streams streams(kind, options_.streams);
      for (const uint32_t k : options_.drafts) {
        WCUDA_ASSIGN(const Cost cost, measure(&streams, k));
        costs.back().push_back(cost);
      }
    }
    for (size_t i = 0; i < costs.size(); ++i) WCUDA_TRY(bench_kind(kinds_[i], costs[i], report));
    return {};
  }

 private:
  // The head, and a second engine of the target that keeps its features.
  Status open_head(wcuda_engine_options engine) {
    const std::string shape = options_.model.substr(0, options_.model.find(':'));
    WCUDA_ASSIGN(head_,
                 load_model(device_, shape + "-head:" + options_.draft_head, target_.model.get()));
    wcuda_engine_options with_features = engine;
    with_features.draft_head = head_.model.get();
    WCUDA_ASSIGN(head_target_,
                 open_session(device_, target_.model.get(), with_features, options_.middle()));
    head_target_->set_sampling(sampling_);
    engine.target = head_target_->engine();
    engine.max_draft_tokens = 0;
    WCUDA_ASSIGN(head_.session, open_session(device_, head_.model.get(), engine, options_.middle(),
                                             head_target_.get()));
    kinds_.push_back({" draft head", head_target_.get(), head_.session.get(), true});
    return {};
  }

  // Of all streams.
  uint64_t token_count() const { return uint64_t{options_.streams} * options_.tokens; }

  // --tokens tokens of each stream, two steps in flight.
  Result<Run> time_plain() {
    plain_tokens_.clear();
    plain_tokens_.reserve(token_count());
    WCUDA_TRY(target_.session->rewind(options_.start()));
    const Clock::time_point begin = Clock::now();
    WCUDA_TRY(target_.session->decode(options_.tokens, &plain_tokens_));
    return Run{token_count(), options_.tokens, seconds_between(begin, Clock::now())};
  }

  // The same, with the tokens checked.
  Result<Run> generate_plain() {
    WCUDA_ASSIGN(const Run run, time_plain());
    WCUDA_CHECK(plain_tokens_.size() == token_count());
    for (size_t i = 0; i < plain_tokens_.size(); ++i)
      WCUDA_TRY(Streams::expect_token(static_cast<uint32_t>(i % options_.streams),
                                      i / options_.streams, plain_tokens_[i]));
    return run;
  }

  // Until the streams have --tokens tokens on average.
  Result<Run> generate(Streams* streams, uint32_t k, double a) {
    Run run;
    RoundTime time;
    WCUDA_TRY(streams->begin(options_.start()));
    const Clock::time_point begin = Clock::now();
    for (; streams->tokens() < token_count(); ++run.rounds) WCUDA_TRY(streams->round(k, a, &time));
    run.seconds = seconds_between(begin, Clock::now());
    run.tokens = streams->tokens();
    WCUDA_TRY(streams->check());
    return run;
  }

  Status bench_plain(Report* report) {
    for (const bool has_bias : {false, true}) {
      std::vector<double> values;
      target_.session->set_sampling(has_bias ? sampling_ : wcuda_sampling WCUDA_SAMPLING_INIT);
      for (uint32_t i = 0; i <= options_.repeat; ++i) {
        WCUDA_ASSIGN(const Run run, has_bias ? generate_plain() : time_plain());
        if (i > 0) values.push_back(run.rate());
      }
      plain_rate_ = median(values);
      WCUDA_TRY(report->add(
          {name_ + (has_bias ? " plain" : " plain, no bias"), "tok/s", std::move(values), 0}));
    }
    return {};
  }

  // All drafts of a round hold, none of the next. Rounds that captured a graph do not count.
  Result<Cost> measure(Streams* streams, uint32_t k) {
    std::vector<double> verify, draft, draft_after_all;
    WCUDA_TRY(streams->begin(options_.middle()));
    for (uint32_t i = 0; i < kWarmRounds + kTimedRounds; ++i) {
      const uint64_t captured = captured_count();
      RoundTime time;
      WCUDA_TRY(streams->round(k, i % 2 == 0 ? 1.0 : 0.0, &time));
      if (i < kWarmRounds || captured_count() != captured) continue;
      verify.push_back(time.verify);
      (time.feeds_more ? draft_after_all : draft).push_back(time.draft);
    }
    WCUDA_TRY(streams->check());
    if (draft.empty() || (draft_after_all.empty() && streams->has_draft_model() && k > 0))
      return Status::error(WCUDA_INTERNAL, "%u drafts: all of %u rounds captured graphs", k,
                           kTimedRounds);
    Cost cost;
    cost.verify = median(verify);
    cost.draft = median(draft);
    cost.draft_after_all = draft_after_all.empty() ? cost.draft : median(draft_after_all);
    return cost;
  }

  uint64_t captured_count() const {
    uint64_t count = 0;
    for (const Session* session :
         {target_.session.get(), draft_.session.get(), head_target_.get(), head_.session.get()})
      if (session != nullptr) count += session->captured_count();
    return count;
  }

  Status bench_kind(const Kind& kind, const std::vector<Cost>& costs, Report* report) {
    Streams streams(kind, options_.streams);
    const std::vector<size_t> best = print_rates(name_ + kind.name, costs, *report);
    for (size_t i = 0; i < best.size(); ++i)
      WCUDA_TRY(bench_acceptance(&streams, name_ + kind.name, options_.acceptance[i],
                                 options_.drafts[best[i]], costs[best[i]], report));
    return {};
  }

  // Tokens a second of all streams by the formula.
  double expected_rate(double a, uint32_t k, const Cost& cost) const {
    if (k == 0) return plain_rate_;
    return options_.streams * expected_tokens(a, k) / cost.at(a, k, options_.streams);
  }

  // The table of all numbers of drafts; returns the index of the best one for each acceptance.
  std::vector<size_t> print_rates(const std::string& work, const std::vector<Cost>& costs,
                                  const Report& report) const {
    report.note(work +
                ": us of a step and of its drafts, expected tok/s by acceptance, * the most");
    std::string line = " k     verify     drafts  after all";
    std::vector<size_t> best(options_.acceptance.size(), 0);
    char text[64];
    for (size_t i = 0; i < best.size(); ++i) {
      const double a = options_.acceptance[i];
      const auto rate = [&](size_t j) { return expected_rate(a, options_.drafts[j], costs[j]); };
      for (size_t j = 1; j < costs.size(); ++j)
        if (rate(j) > rate(best[i])) best[i] = j;
      std::snprintf(text, sizeof text, "%11.4g ", a);
      line += text;
    }
    line.pop_back();
    report.note(line);
    for (size_t j = 0; j < costs.size(); ++j) {
      const uint32_t k = options_.drafts[j];
      std::snprintf(text, sizeof text, "%2u %10.1f %10.1f %10.1f", k, costs[j].verify * 1e6,
                    costs[j].draft * 1e6, costs[j].draft_after_all * 1e6);
      line = text;
      for (size_t i = 0; i < best.size(); ++i) {
        std::snprintf(text, sizeof text, " %10.1f%c",
                      expected_rate(options_.acceptance[i], k, costs[j]), best[i] == j ? '*' : ' ');
        line += text;
      }
      line.erase(line.find_last_not_of(' ') + 1);
      report.note(line);
    }
    return best;
  }

  Status bench_acceptance(Streams* streams, const std::string& work, double a, uint32_t k,
                          const Cost& cost, Report* report) {
    std::vector<double> values, steps;
    Run total;
    uint64_t captured = 0;
    for (uint32_t i = 0; i <= options_.repeat; ++i) {
      if (i == 1) captured = captured_count();
      WCUDA_ASSIGN(const Run run, k == 0 ? generate_plain() : generate(streams, k, a));
      if (i == 0) continue;
      values.push_back(run.rate());
      steps.push_back(run.seconds / static_cast<double>(run.rounds));
      total.tokens += run.tokens;
      total.rounds += run.rounds;
    }
    captured = captured_count() - captured;
    const double rate = median(values), step = median(steps), expected = expected_rate(a, k, cost);
    const double tokens = options_.streams * expected_tokens(a, k);  // of a step
    char text[240];
    std::snprintf(text, sizeof text, " %.4g, k = %u", a, k);
    WCUDA_TRY(report->add({work + text, "tok/s", values, 0}));
    std::snprintf(text, sizeof text,
                  "  %.3f x plain, expected %.1f tok/s; tokens of a step %.3f, expected %.3f; "
                  "us of a step %.1f, expected %.1f; with the expected tokens %.3f x plain",
                  rate / plain_rate_, expected,
                  static_cast<double>(total.tokens) / static_cast<double>(total.rounds), tokens,
                  step * 1e6, tokens / expected * 1e6, tokens / step / plain_rate_);
    report->note(
        captured == 0 ? text : text + ("; " + std::to_string(captured) + " steps captured graphs"));
    return {};
  }

  const Device& device_;
  const Options& options_;
  std::string name_;
  wcuda_sampling sampling_ = WCUDA_SAMPLING_INIT;
  Loaded target_, head_, draft_;
  std::unique_ptr<Session> head_target_;
  std::vector<Kind> kinds_;
  std::vector<int32_t> plain_tokens_;  // (tokens, streams)
  double plain_rate_ = 0.0;
};

// The mean tokens of many steps' draws are E, within five standard errors.
Status check_draws() {
  constexpr uint32_t kSteps = 20000;
  Draws draws;
  std::vector<int32_t> drafts(WCUDA_ROW_DRAFT_TOKENS_MAX);
  for (const double a : {0.5, 0.7, 0.9})
    for (const uint32_t k : {1u, 4u, 15u}) {
      double sum = 0.0, squares = 0.0;
      for (uint32_t i = 0; i < kSteps; ++i) {
        const double tokens = 1.0 + draws.draw(k, a, drafts.data());
        sum += tokens;
        squares += tokens * tokens;
      }
      const double mean = sum / kSteps, variance = squares / kSteps - mean * mean;
      const double expected = (1.0 - std::pow(a, k + 1.0)) / (1.0 - a);
      if (std::abs(mean - expected) > 5.0 * std::sqrt(variance / kSteps) ||
          std::abs(expected_tokens(a, k) - expected) > 1e-9)
        return Status::error(WCUDA_INTERNAL,
                             "a = %g, %u drafts: %.4f tokens a step drawn, E is %.4f", a, k, mean,
                             expected);
    }
  return {};
}

// Numbers separated by commas, each from `smallest` to `largest`.
template <class Number>
Status parse(const std::string& name, const std::string& text, double smallest, double largest,
             std::vector<Number>* list) {
  list->clear();
  for (const char* at = text.c_str();;) {
    char* end = nullptr;
    const double value = std::strtod(at, &end);
    const bool is_within = value >= smallest && value <= largest;
    const auto number = is_within ? static_cast<Number>(value) : Number{0};
    if (end == at || (*end != ',' && *end != 0) || !is_within || value != number)
      return Status::error(WCUDA_INVALID_ARGUMENT, "%s: '%s', possible are %g to %g", name.c_str(),
                           text.c_str(), smallest, largest);
    list->push_back(number);
    if (*end == 0) return {};
    at = end + 1;
  }
}

Status parse_option(const std::string& name, const std::string& value, Options* options) {
  const auto number = [&](uint32_t smallest, uint32_t largest, uint32_t* target) -> Status {
    std::vector<uint32_t> list;
    WCUDA_TRY(parse(name, value, smallest, largest, &list));
    if (list.size() != 1)
      return Status::error(WCUDA_INVALID_ARGUMENT, "%s: one number, not '%s'", name.c_str(),
                           value.c_str());
    *target = list[0];
    return {};
  };
  if (name == "--threads") return number(0, 1024, &options->threads);
  if (name == "--repeat") return number(1, 1000, &options->repeat);
  if (name == "--tokens") return number(1, 1000000, &options->tokens);
  if (name == "--depth") return number(0, 1000000, &options->depth);
  if (name == "--streams") return number(1, 4096, &options->streams);
  if (name == "--acceptance") return parse(name, value, 0.0, 1.0, &options->acceptance);
  if (name == "--drafts") {
    WCUDA_TRY(parse(name, value, 0, WCUDA_ROW_DRAFT_TOKENS_MAX, &options->drafts));
    std::sort(options->drafts.begin(), options->drafts.end());
    return {};
  }
  if (name == "--backend") {
    if (value != "auto" && value != "cuda" && value != "host")
      return Status::error(WCUDA_INVALID_ARGUMENT, "--backend: '%s'", value.c_str());
    options->backend = value == "auto"   ? WCUDA_BACKEND_AUTO
                       : value == "cuda" ? WCUDA_BACKEND_CUDA
                                         : WCUDA_BACKEND_HOST;
    return {};
  }
  if (name == "--draft-model")
    options->draft_model = value;
  else if (name == "--draft-head")
    options->draft_head = value;
  else if (name == "--json")
    options->json = value;
  else
    return Status::error(WCUDA_INVALID_ARGUMENT, "no option '%s'", name.c_str());
  return {};
}

Result<Options> parse_arguments(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i)
    if (std::string(argv[i]) == "--check") options.is_check = true;
  if (options.is_check) {
    options.backend = WCUDA_BACKEND_HOST;
    options.tokens = 40;
    options.depth = 50;  // the tokens cross the end of a page
    options.drafts = {0, 1, 4, WCUDA_ROW_DRAFT_TOKENS_MAX};
    options.model = "tiny:q8_0";
    options.draft_model = "tiny:q4_k_m";
    options.draft_head = "q4_k_m";
  }
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    if (argument == "--check") continue;
    if (argument.compare(0, 2, "--") != 0) {
      options.model = argument;
      continue;
    }
    if (i + 1 == argc) return Status::error(WCUDA_INVALID_ARGUMENT, "%s: no value", argv[i]);
    WCUDA_TRY(parse_option(argument, argv[++i], &options));
  }
  return options;
}

void fill_defaults(bool is_cuda, Options* options) {
  if (options->model.empty()) options->model = is_cuda ? "8b:q4_k_m" : "135m:q4_1";
  if (options->draft_model.empty()) options->draft_model = is_cuda ? "1b:q4_k_m" : "tiny:q4_k_m";
  if (options->draft_head.empty()) options->draft_head = "q4_k_m";
  for (std::string* name : {&options->draft_model, &options->draft_head})
    if (*name == "none") name->clear();
  if (options->tokens == 0) options->tokens = is_cuda ? 512 : 128;
  if (options->drafts.empty() && !is_cuda) options->drafts = {0, 1, 2, 4, 8};
  if (options->drafts.empty())
    for (uint32_t k = 0; k <= WCUDA_ROW_DRAFT_TOKENS_MAX; ++k) options->drafts.push_back(k);
}

Status run(int argc, char** argv) {
  WCUDA_ASSIGN(Options options, parse_arguments(argc, argv));
  WCUDA_ASSIGN(const Device device, Device::open(options.backend, options.threads));
  fill_defaults(device.backend == WCUDA_BACKEND_CUDA, &options);
  WCUDA_TRY(check_draws());
  if (!options.is_check) {
    Report report(device.backend, device.caps, options.json);
    DraftBench bench(device, options);
    WCUDA_TRY(bench.open());
    return bench.bench(&report);
  }
  for (const uint32_t streams : {options.streams, options.streams + 2}) {
    options.streams = streams;
    DraftBench bench(device, options);
    WCUDA_TRY(bench.open());
    WCUDA_TRY(bench.check());
  }
  return {};
}

}  // namespace
}  // namespace wcuda::bench

int main(int argc, char** argv) {
  const wcuda::Status status = wcuda::bench::run(argc, argv);
  if (!status.ok()) std::fprintf(stderr, "draft_bench: %s\n", status.message());
  return status.ok() ? 0 : 1;
}
