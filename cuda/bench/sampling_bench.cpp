// Time of the host's sampler by setting, for a vocabulary of 151936 tokens: sampling_bench
// [repeats]
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <vector>

#include "llm/ops/sampling.h"

namespace {

using wcuda::ops::Sampling;

constexpr uint32_t kVocabulary = 151936;
constexpr uint32_t kPosition = 5000;

struct Setting {
  const char* name;
  Sampling sampling;
};

std::vector<Setting> settings() {
  std::vector<Setting> list(8);
  list[0].name = "greedy";
  list[1].name = "greedy, 20 logprobs";
  list[1].sampling.top_logprobs = 20;
  for (size_t i = 2; i < list.size(); ++i) list[i].sampling.temperature = 0.8f;
  list[2].name = "temperature";
  list[3].name = "top-k 40";
  list[3].sampling.top_k = 40;
  list[4].name = "top-k 40, top-p 0.9";
  list[4].sampling.top_k = 40;
  list[4].sampling.top_p = 0.9f;
  list[5].name = "top-p 0.9";
  list[5].sampling.top_p = 0.9f;
  list[6].name = "typical 0.9";
  list[6].sampling.typical_p = 0.9f;
  list[7].name = "all filters, penalties over 4096, 128 logprobs";
  Sampling& all = list[7].sampling;
  all.top_k = 100000;
  all.typical_p = all.top_p = 0.95f;
  all.min_p = 0.001f;
  all.repetition_penalty = 1.1f;
  all.penalty_last_n = 4096;
  all.top_logprobs = 128;
  return list;
}

}  // namespace

int main(int argument_count, char** arguments) {
  const int repeats = argument_count > 1 ? std::max(1, std::atoi(arguments[1])) : 51;
  std::mt19937 generator(1);
  std::normal_distribution<float> normal(0.0f, 3.0f);
  std::vector<float> logits(kVocabulary);
  for (float& logit : logits) logit = normal(generator);
  std::vector<int32_t> history(kPosition);
  for (int32_t& token : history) token = static_cast<int32_t>(generator() % kVocabulary);
  std::vector<uint64_t> work(wcuda::ops::sample_work_bytes(kVocabulary) / sizeof(uint64_t));
  std::vector<int32_t> top_tokens(128);
  std::vector<float> top_logprobs(128);

  std::printf("%-48s %10s %10s\n", "setting", "min us", "median us");
  for (const Setting& setting : settings()) {
    std::vector<double> times;
    for (int i = 0; i < repeats; ++i) {
      const auto start = std::chrono::steady_clock::now();
      const auto result =
          wcuda::ops::sample(logits.data(), kVocabulary, setting.sampling, history.data(),
                             kPosition, work.data(), top_tokens.data(), top_logprobs.data());
      const std::chrono::duration<double, std::micro> time =
          std::chrono::steady_clock::now() - start;
      times.push_back(time.count());
      if (result.status != wcuda::ops::RowStatus::kOk || result.token < 0) {
        std::fprintf(stderr, "sampling_bench: '%s' drew nothing\n", setting.name);
        return 1;
      }
    }
    std::sort(times.begin(), times.end());
    std::printf("%-48s %10.0f %10.0f\n", setting.name, times[0], times[times.size() / 2]);
  }
  return 0;
}
