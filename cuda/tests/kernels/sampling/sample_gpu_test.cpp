// Sampling on the device against the host's, bit for bit.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "kernels/ptx/code.h"
#include "kernels/sampling/sample.h"
#include "kernels/step/step.h"
#include "llm/ops/sampling.h"
#include "support/device_array.h"
#include "support/device_launch.h"

namespace wcuda::ops {
namespace {

using testing::DeviceArray;

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr uint32_t kStride = 4200;  // tokens of a history
constexpr uint32_t kTop = 128;

// A row with everything that its parameters point to.
struct Case {
  std::vector<float> logits;
  std::vector<int32_t> history, bias_tokens;
  std::vector<float> bias_values;
  std::vector<uint32_t> mask;
  uint32_t position = 0;
  Sampling sampling;

  Sampling checked() const {
    Sampling s = sampling;
    s.bias_count = static_cast<uint32_t>(bias_tokens.size());
    s.bias_tokens = bias_tokens.data();
    s.bias_values = bias_values.data();
    s.mask = mask.empty() ? nullptr : mask.data();
    return s;
  }
  bool has_filter() const {
    const Sampling& s = sampling;
    return s.top_logprobs != 0 ||
           (s.temperature != 0.0f &&
            (s.top_k || s.top_p != 0.0f || s.min_p != 0.0f || s.typical_p != 0.0f));
  }
};

struct Drawn {
  SampleResult result;
  std::vector<int32_t> top_tokens;
  std::vector<float> top_logprobs;
};

std::vector<Drawn> draw_on_host(const std::vector<Case>& cases) {
  std::vector<Drawn> all;
  for (const Case& c : cases) {
    const auto vocabulary = static_cast<uint32_t>(c.logits.size());
    std::vector<uint64_t> work(sample_work_bytes(vocabulary) / sizeof(uint64_t));
    Drawn drawn;
    drawn.top_tokens.resize(kTop);
    drawn.top_logprobs.resize(kTop);
    drawn.result = sample(c.logits.data(), vocabulary, c.checked(), c.history.data(), c.position,
                          work.data(), drawn.top_tokens.data(), drawn.top_logprobs.data());
    all.push_back(drawn);
  }
  return all;
}

// All cases as one batch; every one of the same vocabulary.
class DeviceBatch {
 public:
  explicit DeviceBatch(const std::vector<Case>& cases)
      : count_(cases.size()),
        vocabulary_(cases[0].logits.size()),
        logits_(count_ * vocabulary_),
        history_(count_ * kStride),
        rows_(count_),
        statuses_(count_),
        outputs_(count_),
        top_tokens_(count_ * kTop),
        top_logprobs_(count_ * kTop),
        scratch_(count_ * vocabulary_) {
    std::vector<kernels::SampleRow> rows(count_);
    std::vector<int32_t> bias_tokens;
    std::vector<float> logits, bias_values;
    std::vector<uint32_t> masks;
    const size_t mask_words = (vocabulary_ + 31) / 32;
    initial_history_.assign(count_ * kStride, -7);
    for (size_t i = 0; i < count_; ++i) {
      const Case& c = cases[i];
      kernels::SampleRow& row = rows[i];
      row = static_cast<const kernels::SampleRow&>(c.sampling);
      row.is_sampled = 1;
      row.logits_row = static_cast<uint32_t>(logits_row(i));
      row.sequence_slot = static_cast<uint32_t>((i + 3) % count_);
      row.position = c.position;
      row.bias_first = static_cast<uint32_t>(bias_tokens.size());
      row.bias_count = static_cast<uint32_t>(c.bias_tokens.size());
      row.mask_row = kernels::kNoMask;
      if (!c.mask.empty()) {
        row.mask_row = static_cast<uint32_t>(masks.size() / mask_words);
        masks.insert(masks.end(), c.mask.begin(), c.mask.end());
      }
      bias_tokens.insert(bias_tokens.end(), c.bias_tokens.begin(), c.bias_tokens.end());
      bias_values.insert(bias_values.end(), c.bias_values.begin(), c.bias_values.end());
      std::copy(c.history.begin(), c.history.end(),
                initial_history_.begin() + static_cast<ptrdiff_t>(row.sequence_slot * kStride));
      has_filters_ |= c.has_filter();
      slots_.push_back(row.sequence_slot);
    }
    for (size_t i = 0; i < count_; ++i) {
      const Case& c = cases[logits_row(i)];  // its own inverse
      logits.insert(logits.end(), c.logits.begin(), c.logits.end());
    }
    logits_.set(logits);
    rows_.set(rows);
    bias_tokens_ = std::make_unique<DeviceArray<int32_t>>(bias_tokens);
    bias_values_ = std::make_unique<DeviceArray<float>>(bias_values);
    masks_ = std::make_unique<DeviceArray<uint32_t>>(masks);
    for (const Case& c : cases) positions_.push_back(c.position);
  }

  // statuses: of rows before; empty: all ok.
  // `capability`: of the launch, where it is not the device's.
  std::vector<Drawn> draw(uint32_t blocks_per_row, std::vector<int32_t> statuses = {},
                          int32_t capability = 0) {
    statuses.resize(count_, kernels::kRowOk);
    statuses_.set(statuses);
    history_.set(initial_history_);
    outputs_.fill(0x55);
    scratch_.fill(0x55);
    top_tokens_.fill(0x55);
    top_logprobs_.fill(0x55);
    kernels::SampleArgs args;
    args.row_count = static_cast<uint32_t>(count_);
    args.vocabulary = static_cast<uint32_t>(vocabulary_);
    args.has_filters = has_filters_;
    args.blocks_per_row = blocks_per_row;
    args.rows = rows_.data();
    args.logits = logits_.data();
    args.logits_count = static_cast<uint32_t>(count_);
    args.history = history_.data();
    args.history_stride = kStride;
    args.bias_tokens = bias_tokens_->data();
    args.bias_values = bias_values_->data();
    args.masks = masks_->data();
    args.statuses = statuses_.data();
    args.outputs = outputs_.data();
    args.top_stride = kTop;
    args.top_tokens = top_tokens_.data();
    args.top_logprobs = top_logprobs_.data();
    args.scratch = scratch_.data();
    kernels::Launch launch = testing::device_launch();
    if (capability != 0) launch.compute_capability = capability;
    EXPECT_EQ(kernels::sample(args, launch), cudaSuccess);

    const auto outputs = outputs_.read();
    const auto after = statuses_.read();
    const auto history = history_.read();
    const auto tokens = top_tokens_.read();
    const auto logprobs = top_logprobs_.read();
    std::vector<Drawn> all(count_);
    if (outputs.empty() || after.empty() || history.empty() || logprobs.empty()) {
      ADD_FAILURE() << "the device failed: " << cudaGetErrorString(outputs_.status());
      return all;
    }
    for (size_t i = 0; i < count_; ++i) {
      const kernels::SampleOutput& output = outputs[i];
      EXPECT_EQ(output.status, after[i]) << i;
      all[i].result = {static_cast<RowStatus>(output.status), output.token, output.logprob,
                       output.top_count};
      const size_t first = i * kTop, last = first + std::min(output.top_count, kTop);
      all[i].top_tokens.assign(&tokens[0] + first, &tokens[0] + last);
      all[i].top_logprobs.assign(&logprobs[0] + first, &logprobs[0] + last);
      // The token is at its position, and nothing else has changed.
      auto expected = initial_history_.begin() + static_cast<ptrdiff_t>(slots_[i] * kStride);
      for (uint32_t at = 0; at < kStride; ++at, ++expected) {
        const bool is_new = at == positions_[i] && output.token >= 0;
        if (history[slots_[i] * kStride + at] != (is_new ? output.token : *expected))
          ADD_FAILURE() << "row " << i << ": history differs at " << at;
      }
    }
    return all;
  }

 private:
  // The second half in order, the first the other way round.
  size_t logits_row(size_t i) const { return i < count_ / 2 ? count_ / 2 - 1 - i : i; }

  size_t count_, vocabulary_;
  DeviceArray<float> logits_;
  DeviceArray<int32_t> history_;
  DeviceArray<kernels::SampleRow> rows_;
  DeviceArray<int32_t> statuses_;
  DeviceArray<kernels::SampleOutput> outputs_;
  DeviceArray<int32_t> top_tokens_;
  DeviceArray<float> top_logprobs_;
  DeviceArray<float> scratch_;
  std::unique_ptr<DeviceArray<int32_t>> bias_tokens_;
  std::unique_ptr<DeviceArray<float>> bias_values_;
  std::unique_ptr<DeviceArray<uint32_t>> masks_;
  std::vector<int32_t> initial_history_;
  std::vector<size_t> slots_;
  std::vector<uint32_t> positions_;
  bool has_filters_ = false;
};

std::string describe(const Case& c) {
  const Sampling& s = c.sampling;
  char text[400];
  std::snprintf(
      text, sizeof(text),
      "vocabulary %zu temperature %g k %u p %g min %g typical %g penalties %g %g %g last %u "
      "from %u position %u bias %zu mask %zu top %u omits %u",
      c.logits.size(), s.temperature, s.top_k, s.top_p, s.min_p, s.typical_p, s.repetition_penalty,
      s.frequency_penalty, s.presence_penalty, s.penalty_last_n, s.penalty_from, c.position,
      c.bias_tokens.size(), c.mask.size(), s.top_logprobs, s.omits_logprob);
  return text;
}

uint32_t bits(float value) {
  uint32_t result;
  std::memcpy(&result, &value, sizeof(result));
  return result;
}

// Returns how many rows differ.
uint32_t compare(const std::vector<Case>& cases, const std::vector<Drawn>& expected,
                 const std::vector<Drawn>& drawn, uint32_t blocks_per_row) {
  uint32_t different = 0;
  for (size_t i = 0; i < cases.size(); ++i) {
    const SampleResult &a = expected[i].result, &b = drawn[i].result;
    bool same = a.status == b.status && a.token == b.token && bits(a.logprob) == bits(b.logprob) &&
                a.top_count == b.top_count;
    for (uint32_t j = 0; same && j < a.top_count; ++j)
      same = expected[i].top_tokens[j] == drawn[i].top_tokens[j] &&
             bits(expected[i].top_logprobs[j]) == bits(drawn[i].top_logprobs[j]);
    if (same) continue;
    if (++different <= 8)
      ADD_FAILURE() << "row " << i << ", " << blocks_per_row << " blocks: host ("
                    << static_cast<int32_t>(a.status) << ", " << a.token << ", " << a.logprob
                    << ", " << a.top_count << ") device (" << static_cast<int32_t>(b.status) << ", "
                    << b.token << ", " << b.logprob << ", " << b.top_count
                    << "): " << describe(cases[i]);
  }
  return different;
}

void expect_same(const std::vector<Case>& cases, const std::vector<uint32_t>& splits) {
  const std::vector<Drawn> expected = draw_on_host(cases);
  DeviceBatch batch(cases);
  const bool has_clusters = kernels::launch_capability() >= 90;
  for (const uint32_t blocks : splits) {
    if (blocks > 1 && !has_clusters) continue;
    EXPECT_EQ(compare(cases, expected, batch.draw(blocks), blocks), 0u) << "of " << cases.size();
  }
}

using Generator = std::mt19937;

template <class T>
T pick(Generator& generator, std::initializer_list<T> values) {
  return values.begin()[generator() % values.size()];
}

std::vector<float> random_logits(Generator& generator, uint32_t vocabulary) {
  std::normal_distribution<float> normal(0.0f, pick(generator, {0.0f, 0.01f, 1.0f, 3.0f, 10.0f}));
  std::vector<float> logits(vocabulary);
  for (float& logit : logits) logit = normal(generator);
  switch (generator() % 8) {
    case 0:  // many ties
      for (float& logit : logits) logit = std::round(logit);
      break;
    case 1:
      std::sort(logits.begin(), logits.end());
      break;
    case 2:
      for (float& logit : logits)
        if (generator() % 2) logit = -kInf;
      break;
    case 3:
      for (float& logit : logits) logit *= 1e37f;
      for (float& logit : logits) logit = std::max(-3e38f, std::min(3e38f, logit));
      break;
    case 4:
      logits[generator() % vocabulary] = pick(generator, {kNan, -kNan, kInf, -kInf, 50.0f, 3e38f});
      break;
    case 5:  // around zero
      for (float& logit : logits) logit = std::copysign(logit > 1 ? 1e-40f : 0.0f, logit);
      break;
    default:
      break;
  }
  return logits;
}

Case random_case(uint32_t vocabulary, uint32_t seed, bool has_filters) {
  Generator generator(seed * 2654435761u + vocabulary);
  Case c;
  c.logits = random_logits(generator, vocabulary);
  c.position = pick(generator, {0u, 1u, 5u, 63u, 64u, 65u, 500u, 4096u, 4199u});
  const uint32_t distinct = pick(generator, {1u, 3u, vocabulary});
  for (uint32_t i = 0; i < c.position; ++i)
    c.history.push_back(static_cast<int32_t>(generator() % distinct * 31 % vocabulary));
  Sampling& s = c.sampling;
  s.seed = uint64_t{generator()} << 32 | generator();
  s.temperature = pick(generator, {0.0f, 1.0f, 0.7f, 0.8f, 1.5f, 20.0f, 1e-30f, 3e38f});
  if (has_filters) {
    s.top_k = pick(generator, {0u, 0u, 1u, 3u, 40u, vocabulary / 2, vocabulary, UINT32_MAX});
    s.top_p = pick(generator, {0.0f, 0.0f, 0.01f, 0.5f, 0.9f, 0.999f, 1.0f});
    s.min_p = pick(generator, {0.0f, 0.0f, 0.001f, 0.05f, 0.5f, 1.0f});
    s.typical_p = pick(generator, {0.0f, 0.0f, 0.1f, 0.5f, 0.95f, 1.0f});
    s.top_logprobs = std::min(pick(generator, {0u, 0u, 1u, 5u, 20u, 128u}), vocabulary);
  }
  if (generator() % 3 == 0) {
    s.repetition_penalty = pick(generator, {0.0f, 1.0f, 1.1f, 2.0f, 0.5f});
    s.frequency_penalty = pick(generator, {0.0f, 0.3f, -1.0f});
    s.presence_penalty = pick(generator, {0.0f, 0.5f, -2.0f});
    s.penalty_last_n = pick(generator, {0u, 1u, 2u, 100u, 4096u});
    s.penalty_from = pick(generator, {0u, 0u, 3u, 64u, 5000u});
  }
  if (generator() % 4 == 0) {
    const uint32_t count = pick(generator, {1u, 7u, 300u, vocabulary}), step = generator() % 5 + 1;
    for (uint32_t id = generator() % 7; id < vocabulary && c.bias_tokens.size() < count;
         id += step) {
      c.bias_tokens.push_back(static_cast<int32_t>(id));
      c.bias_values.push_back(pick(generator, {-kInf, 3e38f, 0.0f, -5.0f, 5.0f, 1.25f, 1.25f}));
    }
    std::shuffle(c.bias_tokens.begin(), c.bias_tokens.end(), generator);
  }
  if (generator() % 4 == 0) {
    c.mask.resize((vocabulary + 31) / 32);
    const uint32_t kind = generator() % 4;  // 0: nothing is allowed
    for (uint32_t& word : c.mask)
      word = kind == 0 ? 0 : kind == 1 ? generator() & generator() & generator() : generator();
    if (kind == 3) std::fill(c.mask.begin(), c.mask.end(), ~0u);
  }
  if (s.top_logprobs == 0) s.omits_logprob = generator() % 2;
  return c;
}

std::vector<Case> random_cases(uint32_t vocabulary, uint32_t count, bool has_filters) {
  std::vector<Case> cases;
  for (uint32_t i = 0; i < count; ++i) cases.push_back(random_case(vocabulary, i, has_filters));
  return cases;
}

TEST(GpuSample, gives_the_bits_of_the_host_for_tiny_vocabularies) {
  for (const uint32_t vocabulary : {1u, 7u, 31u, 32u, 33u, 515u})
    expect_same(random_cases(vocabulary, 1000, true), {0, 1, 2, 8, 16});
}

TEST(GpuSample, gives_the_bits_of_the_host_for_a_thousand_tokens) {
  expect_same(random_cases(1000, 3000, true), {0, 1, 4, 16});
}

TEST(GpuSample, gives_the_bits_of_the_host_for_49152_tokens) {
  expect_same(random_cases(49152, 400, true), {0, 1, 2, 16});
}

TEST(GpuSample, gives_the_bits_of_the_host_for_128256_tokens) {
  expect_same(random_cases(128256, 200, true), {0, 1, 16});
}

TEST(GpuSample, gives_the_bits_of_the_host_for_an_odd_large_vocabulary) {
  expect_same(random_cases(151937, 60, true), {0, 1, 8});
  expect_same(random_cases(256003, 40, true), {0, 1, 8});
}

TEST(GpuSample, gives_the_bits_of_the_host_without_filters) {
  for (const uint32_t vocabulary : {7u, 1000u, 49152u, 128256u})
    expect_same(random_cases(vocabulary, vocabulary > 1000 ? 100 : 1000, false), {0, 1, 16});
}

// As on devices of other capabilities that the code here serves: with clusters, of 8 blocks and
// with less shared memory; or without (code of before 90), with more shared memory and less.
TEST(GpuSample, gives_the_bits_of_the_host_as_on_other_devices) {
  const bool has_clusters = kernels::launch_capability() >= 90;
  const std::vector<int32_t> capabilities =
      has_clusters ? std::vector<int32_t>{100, 120} : std::vector<int32_t>{80, 86};
  for (const uint32_t vocabulary : {33u, 1000u, 49152u, 151937u}) {
    const std::vector<Case> cases = random_cases(vocabulary, vocabulary > 1000 ? 60 : 600, true);
    const std::vector<Drawn> expected = draw_on_host(cases);
    DeviceBatch batch(cases);
    for (const int32_t capability : capabilities)
      EXPECT_EQ(compare(cases, expected, batch.draw(0, {}, capability), 0), 0u) << capability;
  }
}

// What a cluster that samples several rows one after the other does not meet above: two rows of
// logits in shared memory, and clusters of unequal counts of rows.
TEST(GpuSample, gives_the_bits_of_the_host_for_many_rows_of_an_even_large_vocabulary) {
  expect_same(random_cases(151936, 51, true), {0});
  expect_same(random_cases(151936, 33, false), {0});
  expect_same(random_cases(200064, 33, true), {0});
}

// Nucleus sampling whose candidates fill a list, and of flat logits, which need all tokens.
TEST(GpuSample, gives_the_bits_of_the_host_for_nuclei_of_any_size) {
  std::vector<Case> cases;
  Generator generator(5);
  for (uint32_t i = 0; i < 96; ++i) {
    std::normal_distribution<float> normal(0.0f, 0.5f * static_cast<float>(i % 8));
    Case c;
    c.logits.resize(128256);
    for (float& logit : c.logits) logit = normal(generator);
    c.position = 17;
    c.history.assign(17, 3);
    c.sampling.seed = i;
    c.sampling.temperature = 0.8f;
    c.sampling.top_p = i % 3 == 0 ? 0.5f : 0.9f;
    c.sampling.min_p = i % 5 == 0 ? 0.02f : 0.0f;
    if (i % 7 == 0) c.sampling.frequency_penalty = 0.5f;
    cases.push_back(c);
  }
  expect_same(cases, {0});
}

TEST(GpuSample, leaves_out_some_of_many_rows) {
  for (const bool has_filters : {false, true}) {
    const std::vector<Case> cases = random_cases(49152, 120, has_filters);
    const std::vector<Drawn> expected = draw_on_host(cases);
    std::vector<int32_t> statuses(cases.size(), kernels::kRowOk);
    for (size_t i = 0; i < cases.size(); ++i)
      if (i < 18 || i % 3 == 1 || i > 100) statuses[i] = kernels::kRowSkipped;
    DeviceBatch batch(cases);

    const std::vector<Drawn> drawn = batch.draw(0, statuses);

    for (size_t i = 0; i < cases.size(); ++i) {
      if (statuses[i] == kernels::kRowOk)
        EXPECT_EQ(compare({cases[i]}, {expected[i]}, {drawn[i]}, 0), 0u) << i;
      else
        EXPECT_EQ(drawn[i].result.status, RowStatus::kSkipped) << i;
    }
  }
}

TEST(GpuSample, leaves_out_rows_that_are_not_sampled_or_did_not_begin_well) {
  std::vector<Case> cases = random_cases(1000, 8, true);
  for (Case& c : cases) c.logits.assign(1000, 1.0f);
  DeviceBatch batch(cases);
  const std::vector<int32_t> statuses = {0, kernels::kRowSkipped, 0, kernels::kRowNotFinite};

  const std::vector<Drawn> drawn = batch.draw(0, statuses);

  EXPECT_EQ(drawn[1].result.status, RowStatus::kSkipped);
  EXPECT_EQ(drawn[1].result.token, -1);
  EXPECT_EQ(drawn[3].result.status, RowStatus::kNotFinite);
  EXPECT_EQ(drawn[3].result.token, -1);
}

TEST(GpuSample, refuses_shapes_it_cannot_run) {
  const auto launch = testing::device_launch();
  kernels::SampleArgs args;
  args.row_count = 1;
  EXPECT_EQ(kernels::sample(args, launch), cudaErrorInvalidValue);  // no vocabulary
  args.vocabulary = 1000;
  args.blocks_per_row = 3;
  EXPECT_EQ(kernels::sample(args, launch), cudaErrorInvalidValue);
  args.blocks_per_row = 1;
  args.vocabulary = 1 << 20;
  EXPECT_EQ(kernels::sample(args, launch), cudaErrorInvalidValue);  // needs scratch
  args.row_count = 0;
  EXPECT_EQ(kernels::sample(args, launch), cudaSuccess);
}

}  // namespace
}  // namespace wcuda::ops
