// Steps of one token with persistent fused layers, against an engine without them, and of two
// engines of a device.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "core/backend/open.h"
#include "core/vram/memory.h"
#include "llm/engine/engine.h"
#include "llm/gguf/gguf.h"
#include "llm/gguf/source.h"
#include "llm/model/model.h"
#include "llm/model/tiny_model.h"
#include "support/device_launch.h"

namespace wcuda {
namespace {

constexpr uint32_t kVocabulary = 515;

using engine::Engine;
using engine::Sequence;

class GpuPersistentStep : public ::testing::Test {
 protected:
  void SetUp() override {
    if (IsSkipped()) return;
    const kernels::Launch launch = testing::device_launch();
    if (launch.compute_capability < 90 || launch.compute_capability >= 100)
      GTEST_SKIP() << "no persistent layers on compute capability " << launch.compute_capability;
    testing::TinyModel tiny;
    tiny.weight_type = testing::kQ4_K;
    tiny.embedding_type = testing::kQ6_K;
    tiny.embedding_length = 4096;
    tiny.feed_forward_length = 8192;
    tiny.head_count = 8;
    tiny.kv_head_count = 2;
    tiny.head_length = 128;
    tiny.vocabulary_size = kVocabulary;
    tiny.context_length = 16384;
    file_ = tiny.build();
  }

  // A model in a context of its own.
  Result<std::shared_ptr<model::Model>> load() const {
    OpenOptions options;
    options.backend = WCUDA_BACKEND_CUDA;
    WCUDA_ASSIGN(const Opened opened, open_backend(options));
    WCUDA_ASSIGN(const auto source, gguf::open_memory(file_.data(), file_.size()));
    WCUDA_ASSIGN(const auto file, gguf::Gguf::open(source));
    return model::Model::load(vram::Memory::create(opened.backend, 0), file, {});
  }

  static Result<std::shared_ptr<Engine>> make_engine(const std::shared_ptr<model::Model>& model,
                                                     uint64_t flags) {
    wcuda_engine_options options = WCUDA_ENGINE_OPTIONS_INIT;
    options.max_sequences = 2;
    options.max_sequence_tokens = 10000;
    options.kv_tokens = 2 * 64 * 157;
    options.max_batch_tokens = 256;
    options.max_logits_rows = 1;
    options.flags = flags;
    return Engine::create(model, options);
  }

  static std::vector<int32_t> tokens_of(uint32_t count) {
    std::vector<int32_t> tokens(count);
    for (size_t i = 0; i < tokens.size(); ++i)
      tokens[i] = static_cast<int32_t>((i * 7919 + 13) % kVocabulary);
    return tokens;
  }

  static Result<uint64_t> submit(Engine& engine, const std::shared_ptr<Sequence>& sequence,
                                 const int32_t* tokens, uint32_t count, bool has_logits) {
    engine::Row row;
    row.sequence = sequence;
    row.tokens = tokens;
    row.step.token_count = count;
    row.step.flags = has_logits ? kernels::kRowLogitsLast : 0;
    return engine.submit({row});
  }

  static Status wait(Engine& engine, uint64_t ticket, float* logits) {
    wcuda_row_result result = WCUDA_ROW_RESULT_INIT;
    wcuda_step_output output = WCUDA_STEP_OUTPUT_INIT;
    output.row_capacity = 1;
    output.rows = &result;
    output.logits = logits;
    output.logits_capacity = logits != nullptr ? kVocabulary : 0;
    WCUDA_TRY(engine.wait(ticket, -1, &output));
    if (result.status == WCUDA_ROW_OK) return {};
    return Status::error(WCUDA_INTERNAL, "row status %d", result.status);
  }

  // Logits of `steps` tokens after a prompt, one a step.
  static Status run(Engine& engine, uint32_t prompt, uint32_t steps, std::vector<float>* logits) {
    WCUDA_ASSIGN(const auto sequence, engine.create_sequence());
    const std::vector<int32_t> tokens = tokens_of(prompt + steps);
    logits->resize(size_t{steps} * kVocabulary);
    for (uint32_t first = 0; first < tokens.size();) {
      const bool is_prompt = first < prompt;
      const uint32_t count = is_prompt ? std::min(prompt - first, 256u) : 1;
      WCUDA_ASSIGN(const uint64_t ticket,
                   submit(engine, sequence, tokens.data() + first, count, !is_prompt));
      WCUDA_TRY(wait(engine, ticket,
                     is_prompt ? nullptr : &(*logits)[size_t{first - prompt} * kVocabulary]));
      first += count;
    }
    engine.destroy(*sequence);
    return {};
  }

  std::string file_;
};

TEST_F(GpuPersistentStep, gives_the_logits_of_single_layers_and_the_same_bits_again) {
  const Status status = [&]() -> Status {
    WCUDA_ASSIGN(const auto model, load());
    WCUDA_ASSIGN(const auto single, make_engine(model, WCUDA_ENGINE_PERSISTENT_LAYERS_OFF));
    WCUDA_ASSIGN(const auto fused, make_engine(model, WCUDA_ENGINE_PERSISTENT_LAYERS_ON));
    EXPECT_FALSE(single->info().has_persistent_layers);
    EXPECT_TRUE(fused->info().has_persistent_layers);
    for (const uint32_t prompt : {0u, 60u, 190u, 700u, 9000u}) {
      std::vector<float> expected, first, second;
      WCUDA_TRY(run(*single, prompt, 12, &expected));
      WCUDA_TRY(run(*fused, prompt, 12, &first));
      WCUDA_TRY(run(*fused, prompt, 12, &second));

      EXPECT_EQ(first, second) << "prompt " << prompt;
      double square = 0.0, difference = 0.0;
      for (size_t i = 0; i < expected.size(); ++i) {
        square += double{expected[i]} * expected[i];
        difference += double{first[i] - expected[i]} * (first[i] - expected[i]);
      }
      // The order of sums differs, and through it the last of the 16 bits of an input here and
      // there.
      EXPECT_LT(std::sqrt(difference / square), 1e-3) << "prompt " << prompt;
      EXPECT_TRUE(first != expected) << "prompt " << prompt << ": nothing was fused";
    }
    return {};
  }();
  ASSERT_TRUE(status.ok()) << status.message();
}

TEST_F(GpuPersistentStep, auto_depends_on_model_and_device_and_not_on_other_engines) {
  const Status status = [&]() -> Status {
    WCUDA_ASSIGN(const auto model, load());
    WCUDA_ASSIGN(const auto first, make_engine(model, 0));
    WCUDA_ASSIGN(const auto second, make_engine(model, 0));
    EXPECT_TRUE(first->info().has_persistent_layers);
    EXPECT_TRUE(second->info().has_persistent_layers);
    std::vector<float> a, b;
    WCUDA_TRY(run(*first, 20, 6, &a));
    WCUDA_TRY(run(*second, 20, 6, &b));
    EXPECT_EQ(a, b);
    return {};
  }();
  ASSERT_TRUE(status.ok()) << status.message();
}

// Both have a step in flight all the time; the second pair in contexts of their own.
TEST_F(GpuPersistentStep, two_engines_in_turns_give_the_bits_that_each_gives_alone) {
  constexpr uint32_t kSteps = 500;
  const Status status = [&]() -> Status {
    WCUDA_ASSIGN(const auto model, load());
    WCUDA_ASSIGN(const auto other, load());
    const std::vector<int32_t> tokens = tokens_of(kSteps);
    std::vector<float> alone;
    {
      WCUDA_ASSIGN(const auto engine, make_engine(model, WCUDA_ENGINE_PERSISTENT_LAYERS_ON));
      WCUDA_TRY(run(*engine, 0, kSteps, &alone));
    }
    for (const auto& second_model : {model, other}) {
      std::shared_ptr<Engine> engines[2];
      WCUDA_ASSIGN(engines[0], make_engine(model, WCUDA_ENGINE_PERSISTENT_LAYERS_ON));
      WCUDA_ASSIGN(engines[1], make_engine(second_model, WCUDA_ENGINE_PERSISTENT_LAYERS_ON));
      std::shared_ptr<Sequence> sequences[2];
      for (int e = 0; e < 2; ++e) {
        WCUDA_ASSIGN(sequences[e], engines[e]->create_sequence());
      }
      std::vector<float> logits(kVocabulary);
      uint64_t tickets[2][kSteps];
      for (uint32_t step = 0; step <= kSteps; ++step) {
        for (int e = 0; e < 2 && step < kSteps; ++e) {
          WCUDA_ASSIGN(tickets[e][step], submit(*engines[e], sequences[e], &tokens[step], 1, true));
        }
        for (int e = 0; e < 2 && step > 0; ++e) {
          WCUDA_TRY(wait(*engines[e], tickets[e][step - 1], logits.data()));
          const float* const expected = &alone[size_t{step - 1} * kVocabulary];
          EXPECT_TRUE(std::equal(logits.begin(), logits.end(), expected))
              << "engine " << e << ", step " << step - 1;
        }
      }
    }
    return {};
  }();
  ASSERT_TRUE(status.ok()) << status.message();
}

}  // namespace
}  // namespace wcuda
