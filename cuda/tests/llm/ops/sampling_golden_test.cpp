// Tokens and log probabilities of an independent implementation (tools/golden/sampling.py).
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <limits>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "llm/ops/sampling.h"

namespace wcuda::ops {
namespace {

// The tool's hash32, on which its logits, history and mask are built.
uint32_t hash32(uint32_t x) {
  x ^= x >> 16;
  x *= 0x7feb352du;
  x ^= x >> 15;
  x *= 0x846ca68bu;
  return x ^ (x >> 16);
}

struct Case {
  std::map<std::string, std::string> values;
  std::vector<std::pair<int32_t, float>> top;

  uint64_t integer(const char* key) const {
    const auto found = values.find(key);
    return found == values.end() ? 0 : std::strtoull(found->second.c_str(), nullptr, 10);
  }
  float number(const char* key) const {
    const auto found = values.find(key);
    return found == values.end() ? 0.0f : std::strtof(found->second.c_str(), nullptr);
  }
};

std::vector<Case> read_cases() {
  std::ifstream file(WCUDA_TEST_DATA "/sampling.txt");
  std::vector<Case> cases;
  for (std::string line; std::getline(file, line);) {
    if (line[0] == '#') continue;
    Case c;
    std::istringstream words(line);
    for (std::string word; words >> word;) {
      const size_t equals = word.find('=');
      const std::string value = word.substr(equals + 1);
      if (word.compare(0, equals, "top") == 0)
        c.top.emplace_back(std::atoi(value.c_str()),
                           std::strtof(value.c_str() + value.find(':') + 1, nullptr));
      else
        c.values[word.substr(0, equals)] = value;
    }
    cases.push_back(c);
  }
  return cases;
}

// Parameters with the arrays they point to.
struct Input {
  std::vector<float> logits;
  std::vector<int32_t> history, bias_tokens;
  std::vector<float> bias_values;
  std::vector<uint32_t> mask;
  Sampling sampling;
};

Input make_input(const Case& c) {
  Input in;
  const uint32_t vocabulary = static_cast<uint32_t>(c.integer("vocabulary"));
  const uint64_t salt = c.integer("salt") * 0x9E3779B9u;
  for (uint32_t i = 0; i < vocabulary; ++i)
    in.logits.push_back(
        static_cast<float>(hash32(static_cast<uint32_t>(i + salt)) % c.integer("steps")) *
        c.number("scale") / 256.0f);
  for (uint32_t i = 0; i < c.integer("position"); ++i)
    in.history.push_back(static_cast<int32_t>(
        hash32(i + static_cast<uint32_t>(c.integer("history_salt"))) % std::min(vocabulary, 60u)));
  const float values[] = {
      -std::numeric_limits<float>::infinity(), -1.5f, 0.25f, 2.0f, -3.0f, 4.5f, -0.125f, 1.0f};
  const uint32_t bias_count = static_cast<uint32_t>(c.integer("bias_count"));
  for (uint32_t i = 0; i < bias_count; ++i) {
    in.bias_tokens.push_back(static_cast<int32_t>(i * vocabulary / bias_count));
    in.bias_values.push_back(values[i]);
  }
  if (const uint32_t mask_salt = static_cast<uint32_t>(c.integer("mask_salt"))) {
    in.mask.resize((vocabulary + 31) / 32);
    for (uint32_t i = 0; i < vocabulary; ++i)
      if (hash32(i + mask_salt) % 3 != 0) in.mask[i / 32] |= 1u << (i % 32);
  }
  Sampling& s = in.sampling;
  s.temperature = c.number("temperature");
  s.top_k = static_cast<uint32_t>(c.integer("top_k"));
  s.top_p = c.number("top_p");
  s.min_p = c.number("min_p");
  s.typical_p = c.number("typical");
  s.repetition_penalty = c.number("repetition");
  s.frequency_penalty = c.number("frequency");
  s.presence_penalty = c.number("presence");
  s.penalty_last_n = static_cast<uint32_t>(c.integer("last_n"));
  s.penalty_from = static_cast<uint32_t>(c.integer("from"));
  s.seed = c.integer("seed");
  s.top_logprobs = static_cast<uint32_t>(c.integer("top_logprobs"));
  s.bias_count = bias_count;
  s.bias_tokens = in.bias_tokens.data();
  s.bias_values = in.bias_values.data();
  s.mask = in.mask.empty() ? nullptr : in.mask.data();
  return in;
}

// Logits, after a penalty, and log probabilities are rounded to f32; largest: of the logits.
double tolerance(float logprob, float largest) {
  return 3e-6 + 1.2e-7 * (std::fabs(logprob) + largest);
}

TEST(SamplingGolden, draws_what_the_independent_implementation_draws) {
  const std::vector<Case> cases = read_cases();
  ASSERT_GT(cases.size(), 200u);
  for (size_t i = 0; i < cases.size(); ++i) {
    SCOPED_TRACE("line " + std::to_string(i + 2));
    const Case& c = cases[i];
    const Input in = make_input(c);
    const uint32_t vocabulary = static_cast<uint32_t>(in.logits.size());
    const float largest = *std::max_element(in.logits.begin(), in.logits.end());
    ASSERT_TRUE(check_sampling(in.sampling, vocabulary, 128).ok());
    std::vector<uint64_t> work(sample_work_bytes(vocabulary) / sizeof(uint64_t));
    std::vector<int32_t> top_tokens(in.sampling.top_logprobs);
    std::vector<float> top_logprobs(in.sampling.top_logprobs);

    const SampleResult result = sample(in.logits.data(), vocabulary, in.sampling, in.history.data(),
                                       static_cast<uint32_t>(c.integer("position")), work.data(),
                                       top_tokens.data(), top_logprobs.data());

    EXPECT_EQ(static_cast<uint64_t>(result.status), c.integer("status"));
    EXPECT_EQ(result.token, std::atoi(c.values.at("token").c_str()));
    EXPECT_NEAR(result.logprob, c.number("logprob"), tolerance(result.logprob, largest));
    ASSERT_EQ(result.top_count, c.top.size());
    for (size_t t = 0; t < c.top.size(); ++t) {
      EXPECT_EQ(top_tokens[t], c.top[t].first);
      EXPECT_NEAR(top_logprobs[t], c.top[t].second, tolerance(top_logprobs[t], largest));
    }
  }
}

}  // namespace
}  // namespace wcuda::ops
