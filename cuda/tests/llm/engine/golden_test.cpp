// Whole forward passes against logits of independent programs: tiny models of each family by
// transformers (tools/oracle/tiny_models.py), and of each weight format by a numpy forward pass
// (tools/oracle/tiny_formats.py; the folder it wrote is in WCUDA_TINY_FORMATS).
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "core/backend/open.h"
#include "core/backend/wrapper_backend.h"
#include "core/vram/memory.h"
#include "llm/engine/engine.h"
#include "llm/gguf/gguf.h"
#include "llm/model/model.h"
#include "llm/ops/ops.h"
#include "support/backend_name.h"

namespace wcuda {
namespace {

struct Golden {
  std::string name;
  std::string model_path;
  uint32_t vocabulary = 0;
  std::vector<int32_t> tokens;
  std::vector<float> logits;  // (tokens, vocabulary)
};

// (tokens, width) after the final norm, by a numpy forward pass (tools/oracle/test_forward.py).
std::vector<float> read_hidden_states(const Golden& golden) {
  std::ifstream file(std::filesystem::path(golden.model_path).replace_extension(".hidden"),
                     std::ios::binary);
  const std::string data((std::istreambuf_iterator<char>(file)), {});
  std::vector<float> states(data.size() / sizeof(float));
  std::memcpy(states.data(), data.data(), states.size() * sizeof(float));
  return states;
}

Golden read_golden(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  const std::string data((std::istreambuf_iterator<char>(file)), {});
  Golden golden;
  golden.name = path.stem();
  golden.model_path = std::filesystem::path(path).replace_extension(".gguf");
  uint32_t counts[2] = {0, 0};
  if (data.size() >= sizeof counts) std::memcpy(counts, data.data(), sizeof counts);
  const size_t expected_bytes = 8 + 4 * size_t{counts[0]} * (1 + size_t{counts[1]});
  EXPECT_EQ(data.size(), expected_bytes) << path;
  if (data.size() != expected_bytes) return golden;
  golden.vocabulary = counts[1];
  golden.tokens.resize(counts[0]);
  golden.logits.resize(size_t{counts[0]} * counts[1]);
  std::memcpy(golden.tokens.data(), data.data() + 8, 4 * golden.tokens.size());
  std::memcpy(golden.logits.data(), data.data() + 8 + 4 * golden.tokens.size(),
              4 * golden.logits.size());
  return golden;
}

std::vector<Golden> read_folder(const std::filesystem::path& folder) {
  std::vector<Golden> all;
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    if (entry.path().extension() == ".golden") all.push_back(read_golden(entry.path()));
  std::sort(all.begin(), all.end(),
            [](const Golden& a, const Golden& b) { return a.name < b.name; });
  return all;
}

struct Setup {
  int32_t kv_type = WCUDA_KV_F16;
  uint32_t tokens_a_step = 48;
};

// Where a model runs. With a capability (major * 10 + minor) the device says that it has that one,
// and kernels that need another make room for those that do not.
struct Place {
  int32_t backend;
  int32_t capability = 0;
};

class OtherCapability final : public WrapperBackend {
 public:
  OtherCapability(std::shared_ptr<Backend> inner, int32_t capability)
      : WrapperBackend(std::move(inner)) {
    description_.launch_capability = capability;
  }
};

Result<std::shared_ptr<Backend>> open(const Place& place) {
  OpenOptions options;
  options.backend = place.backend;
  if (place.backend == WCUDA_BACKEND_HOST) options.host_thread_count = 2;
  WCUDA_ASSIGN(const Opened opened, open_backend(options));
  if (place.capability == 0) return opened.backend;
  return std::shared_ptr<Backend>(
      std::make_shared<OtherCapability>(opened.backend, place.capability));
}

// What a run returns besides logits: the hidden state of each step's row.
struct HiddenStates {
  uint32_t flag = 0;  // kRowHidden…
  std::vector<std::vector<float>> of_steps;
};

// Logits of all tokens, teacher-forced.
Status run(const Place& place, const Golden& golden, const Setup& setup, std::vector<float>* logits,
           HiddenStates* hidden = nullptr) {
  WCUDA_ASSIGN(const auto backend, open(place));
  WCUDA_ASSIGN(const auto file, gguf::Gguf::open_path(golden.model_path));
  WCUDA_ASSIGN(const auto model, model::Model::load(vram::Memory::create(backend, 0), file, {}));
  wcuda_engine_options limits = WCUDA_ENGINE_OPTIONS_INIT;
  limits.kv_type = setup.kv_type;
  limits.max_sequences = 1;
  limits.max_sequence_tokens = 128;
  limits.max_batch_tokens = 64;
  limits.max_logits_rows = 64;
  if (hidden != nullptr) limits.flags = WCUDA_ENGINE_HIDDEN_STATES;
  WCUDA_ASSIGN(const auto engine, engine::Engine::create(model, limits));
  WCUDA_ASSIGN(const auto sequence, engine->create_sequence());

  logits->assign(golden.logits.size(), NAN);
  const uint32_t count = static_cast<uint32_t>(golden.tokens.size());
  for (uint32_t first = 0; first < count; first += setup.tokens_a_step) {
    engine::Row row;
    row.sequence = sequence;
    row.tokens = golden.tokens.data() + first;
    row.step.token_count = std::min(setup.tokens_a_step, count - first);
    row.step.flags = kernels::kRowLogitsAll | (hidden != nullptr ? hidden->flag : 0);
    WCUDA_ASSIGN(const uint64_t ticket, engine->submit({row}));
    wcuda_row_result result = WCUDA_ROW_RESULT_INIT;
    wcuda_step_output output = WCUDA_STEP_OUTPUT_INIT;
    output.row_capacity = 1;
    output.rows = &result;
    output.logits = logits->data() + size_t{first} * golden.vocabulary;
    output.logits_capacity = uint64_t{row.step.token_count} * golden.vocabulary;
    if (hidden != nullptr) {
      std::vector<float>& state =
          hidden->of_steps.emplace_back(engine->config().embedding_length, NAN);
      output.hidden_states = state.data();
      output.hidden_states_capacity = state.size();
    }
    WCUDA_TRY(engine->wait(ticket, -1, &output));
    if (result.status != WCUDA_ROW_OK)
      return Status::error(WCUDA_INTERNAL, "row status %d", result.status);
  }
  return {};
}

struct Distance {
  float largest = 0.0f;  // difference of two logits
  double mean_kl = 0.0;  // of the golden distribution to the other, over all positions
};

Distance distance(const Golden& golden, const std::vector<float>& logits) {
  const size_t vocabulary = golden.vocabulary;
  Distance result;
  for (size_t row = 0; row < golden.tokens.size(); ++row) {
    const float* p = golden.logits.data() + row * vocabulary;
    const float* q = logits.data() + row * vocabulary;
    double sum_p = 0.0, sum_q = 0.0, kl = 0.0;
    for (size_t i = 0; i < vocabulary; ++i) {
      const float difference = std::fabs(p[i] - q[i]);
      result.largest = difference <= result.largest ? result.largest : difference;  // keeps a NaN
      sum_p += std::exp(p[i]);
      sum_q += std::exp(q[i]);
    }
    for (size_t i = 0; i < vocabulary; ++i)
      kl += std::exp(p[i]) / sum_p * (p[i] - q[i] - std::log(sum_p) + std::log(sum_q));
    result.mean_kl += kl / static_cast<double>(golden.tokens.size());
  }
  return result;
}

class EngineGolden : public ::testing::TestWithParam<int32_t> {
 protected:
  static Place place() { return {GetParam()}; }
};
INSTANTIATE_TEST_SUITE_P(Host, EngineGolden, ::testing::Values(WCUDA_BACKEND_HOST),
                         testing::backend_name);
INSTANTIATE_TEST_SUITE_P(Gpu, EngineGolden, ::testing::Values(WCUDA_BACKEND_CUDA),
                         testing::backend_name);

// Says which model comes farthest off.
void expect_close(const Place& place, const std::vector<Golden>& all, const Setup& setup,
                  float largest, double mean_kl) {
  Distance worst;
  std::string worst_name;
  for (const Golden& golden : all) {
    SCOPED_TRACE(golden.name);
    std::vector<float> logits;

    const Status status = run(place, golden, setup, &logits);

    ASSERT_TRUE(status.ok()) << status.message();
    const Distance found = distance(golden, logits);
    EXPECT_TRUE(found.largest <= largest) << found.largest;
    EXPECT_TRUE(found.mean_kl <= mean_kl) << found.mean_kl;
    if (found.largest <= worst.largest) continue;
    worst = found;
    worst_name = golden.name;
  }
  std::printf("%zu models, %u tokens a step: %s differs most, a logit by %.1e, mean KL %.1e\n",
              all.size(), setup.tokens_a_step, worst_name.c_str(), worst.largest, worst.mean_kl);
}

// Keys and values are f16 and activations enter products at bf16 precision or better, so a logit of
// ±7 may be off by some 1e-2 (measured: 2.9e-2, KL 2.1e-6; on an H200, where weights too are f16 in
// products of many tokens, 3.3e-2, KL 5.9e-6). Leaving out any one feature costs more than 1.
constexpr float kLargest = 5e-2f;
constexpr double kMeanKl = 5e-5;

std::vector<Golden> families() { return read_folder(WCUDA_TEST_DATA "/models"); }

TEST_P(EngineGolden, every_family_and_rope_variant_gives_the_logits_of_transformers) {
  ASSERT_GE(families().size(), 11u);
  expect_close(place(), families(), {}, kLargest, kMeanKl);
}

TEST_P(EngineGolden, chunks_and_single_tokens_give_them_too) {
  expect_close(place(), families(), {WCUDA_KV_F16, 7}, kLargest, kMeanKl);
  expect_close(place(), families(), {WCUDA_KV_F16, 1}, kLargest, kMeanKl);
}

// Measured: a value of ±4 of one token off by 1.0e-2, on average over tokens by less.
constexpr float kLargestHidden = 3e-2f;

TEST_P(EngineGolden, hidden_states_of_rows_are_those_of_numpy) {
  float largest = 0.0f;
  for (const Golden& golden : families())
    for (const uint32_t flag :
         {kernels::kRowHiddenLast, kernels::kRowHiddenFirst, kernels::kRowHiddenSum})
      for (const uint32_t tokens_a_step : {48u, 7u, 1u}) {
        SCOPED_TRACE(golden.name + ", flag " + std::to_string(flag) + ", tokens a step " +
                     std::to_string(tokens_a_step));
        const std::vector<float> expected = read_hidden_states(golden);
        const size_t count = golden.tokens.size(), width = expected.size() / count;
        std::vector<float> logits;
        HiddenStates hidden{flag, {}};

        const Status status = run(place(), golden, {WCUDA_KV_F16, tokens_a_step}, &logits, &hidden);

        ASSERT_TRUE(status.ok()) << status.message();
        ASSERT_EQ(hidden.of_steps.size(), (count + tokens_a_step - 1) / tokens_a_step);
        for (size_t step = 0; step < hidden.of_steps.size(); ++step) {
          const std::vector<float>& state = hidden.of_steps[step];
          ASSERT_EQ(state.size(), width);
          const size_t begin = step * tokens_a_step,
                       end = std::min<size_t>(begin + tokens_a_step, count);
          const size_t first = flag == kernels::kRowHiddenLast ? end - 1 : begin;
          const size_t last = flag == kernels::kRowHiddenFirst ? begin + 1 : end;
          for (size_t i = 0; i < width; ++i) {
            double sum = 0.0;
            for (size_t t = first; t < last; ++t) sum += expected[t * width + i];
            const double error = std::fabs(sum - state[i]) / static_cast<double>(last - first);
            ASSERT_LE(error, kLargestHidden) << "step " << step << ", value " << i;
            largest = std::max(largest, static_cast<float>(error));
          }
        }
      }
  std::printf("a value of a hidden state is off by at most %.1e a token\n", largest);
}

TEST_P(EngineGolden, quantized_keys_and_values_stay_near) {
  std::vector<Golden> heads_of_32;  // q8_0 has blocks of 32 elements
  for (const Golden& golden : families())
    if (golden.name == "llama" || golden.name == "qwen3") heads_of_32.push_back(golden);
  ASSERT_EQ(heads_of_32.size(), 2u);

  // 7 bits and a sign, then 3 bits: measured 0.16 and 2.6e-4, then 1.2 and 1.4e-2.
  expect_close(place(), heads_of_32, {WCUDA_KV_Q8_0, 7}, 0.4f, 1e-3);
  expect_close(place(), families(), {WCUDA_KV_FP8_E4M3, 7}, 3.0f, 5e-2);
}

// Empty where there are none.
std::vector<Golden> formats() {
  const char* folder = std::getenv("WCUDA_TINY_FORMATS");
  return folder == nullptr ? std::vector<Golden>() : read_folder(folder);
}

TEST_P(EngineGolden, every_weight_format_gives_the_logits_of_its_dequantized_weights) {
  const std::vector<Golden> all = formats();
  if (all.empty()) GTEST_SKIP() << "WCUDA_TINY_FORMATS names no folder of tiny_formats.py";
  ASSERT_EQ(all.size(), 28u);

  for (const uint32_t tokens : {48u, 7u, 1u})
    expect_close(place(), all, {WCUDA_KV_F16, tokens}, kLargest, kMeanKl);
}

// What runs on devices of other capabilities, on this one: of code for 90 without WGMMA as on 100,
// or, where the code is of before 90, without clusters and dependent launches (80), with less
// shared memory and other shapes of attention too (86).
class GpuEngineTwins : public ::testing::TestWithParam<int32_t> {
 protected:
  void SetUp() override {
    if (IsSkipped()) return;
    const Result<std::shared_ptr<Backend>> backend = open({WCUDA_BACKEND_CUDA});
    ASSERT_TRUE(backend.ok()) << backend.status().message();
    const int32_t own = (*backend)->launch_capability();
    if ((own < 90) != (GetParam() < 90)) GTEST_SKIP() << "the code here is of capability " << own;
    const auto ops = ops::make_ops(*backend);
    ASSERT_TRUE(ops.ok()) << ops.status().message();
    if ((*ops)->device().has_warpgroup_code) GTEST_SKIP() << "the code here needs WGMMA";
  }
  static Place place() { return {WCUDA_BACKEND_CUDA, GetParam()}; }
};
INSTANTIATE_TEST_SUITE_P(Capability, GpuEngineTwins, ::testing::Values(80, 86, 100),
                         ::testing::PrintToStringParamName());

TEST_P(GpuEngineTwins, every_family_gives_the_logits_of_transformers) {
  for (const uint32_t tokens : {48u, 7u, 1u})
    expect_close(place(), families(), {WCUDA_KV_F16, tokens}, kLargest, kMeanKl);
}

TEST_P(GpuEngineTwins, every_weight_format_gives_the_logits_of_its_dequantized_weights) {
  const std::vector<Golden> all = formats();
  if (all.empty()) GTEST_SKIP() << "WCUDA_TINY_FORMATS names no folder of tiny_formats.py";
  for (const uint32_t tokens : {48u, 7u, 1u})
    expect_close(place(), all, {WCUDA_KV_F16, tokens}, kLargest, kMeanKl);
}

}  // namespace
}  // namespace wcuda
