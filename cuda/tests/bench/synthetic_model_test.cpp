// Synthetic models: plausible blocks of every type, files that parse, plans of every size, and
// logits.
#include "bench/synthetic_model.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "bench/random_blocks.h"
#include "llm/quant/format.h"
#include "support/temp_folder.h"

namespace wcuda {
namespace {

using bench::SyntheticModel;

SyntheticModel make(const std::string& shape, const std::string& mix) {
  Result<SyntheticModel> model = SyntheticModel::make(shape, mix);
  EXPECT_TRUE(model.ok()) << model.status().message();
  return model.ok() ? model.take() : SyntheticModel();
}

std::vector<uint8_t> whole(const SyntheticModel& model) {
  std::vector<uint8_t> bytes(model.bytes());
  model.read(0, bytes.data(), bytes.size());
  return bytes;
}

// Closes what a test has opened.
struct Opened {
  wcuda_context context{0};
  wcuda_gguf gguf{0};
  wcuda_error error{};

  explicit Opened(const SyntheticModel& model) {
    wcuda_context_options options = WCUDA_CONTEXT_OPTIONS_INIT;
    options.backend = WCUDA_BACKEND_HOST;
    options.host_thread_count = 2;
    EXPECT_EQ(wcuda_context_create(&options, &context, &error), WCUDA_OK) << error.message;
    const wcuda_source source = model.source();
    EXPECT_EQ(wcuda_gguf_open(&source, &gguf, &error), WCUDA_OK) << error.message;
  }
  ~Opened() {
    wcuda_gguf_close(gguf);
    wcuda_context_destroy(context);
  }
  Opened(const Opened&) = delete;
  Opened& operator=(const Opened&) = delete;
};

TEST(SyntheticModel, blocks_of_every_type_have_the_size_wanted) {
  for (uint32_t type = 0; type < 43; ++type) {
    const quant::Format* format = quant::find_format(type);
    if (format == nullptr || !format->is_loadable) continue;
    SCOPED_TRACE(format->name);

    const uint64_t count = format->block_elements == 1 ? 4096 : 128;
    const std::vector<uint8_t> blocks = bench::random_blocks(type, count);
    ASSERT_EQ(blocks.size(), count * format->block_bytes);
    std::vector<float> values(count * format->block_elements);
    ASSERT_TRUE(quant::unpack_row(*format, blocks.data(), values.size(), values.data()).ok());

    double sum = 0.0, squares = 0.0;
    for (const float value : values) {
      ASSERT_TRUE(std::isfinite(value));
      sum += static_cast<double>(value);
      squares += static_cast<double>(value) * static_cast<double>(value);
    }
    const double size = static_cast<double>(values.size());
    EXPECT_NEAR(std::sqrt(squares / size), 0.02, 0.008);  // powers of two are coarse
    EXPECT_LT(std::fabs(sum / size), 0.004);
  }
}

TEST(SyntheticModel, reads_in_pieces_equal_the_whole_file) {
  const SyntheticModel model = make("tiny", "q4_k_m");
  const std::vector<uint8_t> expected = whole(model);

  for (const uint64_t piece : {uint64_t{1000003}, uint64_t{4097}, uint64_t{33}}) {
    std::vector<uint8_t> bytes(model.bytes(), 0xEE);
    for (uint64_t at = 0; at < bytes.size(); at += piece)
      model.read(at, &bytes[at], std::min(piece, bytes.size() - at));
    EXPECT_EQ(bytes, expected) << "pieces of " << piece;
  }

  EXPECT_EQ(whole(make("tiny", "q4_k_m")), expected);
  testing::TempFolder folder;
  const std::string path = folder.path() + "/model.gguf";
  ASSERT_TRUE(model.write(path).ok());
  std::vector<uint8_t> written(model.bytes() + 1);
  std::FILE* file = std::fopen(path.c_str(), "rb");
  ASSERT_NE(file, nullptr);
  written.resize(std::fread(written.data(), 1, written.size(), file));
  std::fclose(file);
  EXPECT_EQ(written, expected);
}

TEST(SyntheticModel, every_size_and_mix_has_a_plan) {
  struct Case {
    const char* shape;
    const char* mix;
    double gigabytes;  // of the file
  };
  for (const Case& c :
       {Case{"135m", "q4_1", 0.084}, Case{"135m", "q4_k_m", 0.1}, Case{"1b", "q4_k_m", 0.8},
        Case{"8b", "q4_k_m", 4.9}, Case{"8b", "q8_0", 8.5}, Case{"8b", "f16", 16.0},
        Case{"70b", "q4_k_m", 42.5}}) {
    SCOPED_TRACE(std::string(c.shape) + " " + c.mix);
    const SyntheticModel model = make(c.shape, c.mix);
    EXPECT_NEAR(static_cast<double>(model.bytes()) / 1e9, c.gigabytes, 0.03 * c.gigabytes + 0.02);

    Opened opened(model);
    wcuda_engine_options options = WCUDA_ENGINE_OPTIONS_INIT;
    options.max_sequence_tokens = 4096;
    wcuda_plan plan = WCUDA_PLAN_INIT;
    ASSERT_EQ(wcuda_plan_get(opened.context, opened.gguf, &options, &plan, &opened.error), WCUDA_OK)
        << opened.error.message;
    EXPECT_GT(plan.weights_bytes, model.multiplied_bytes());
    EXPECT_LT(plan.weights_bytes, model.bytes() + model.bytes() / 8);
  }
}

TEST(SyntheticModel, tiny_models_of_every_mix_give_finite_logits) {
  for (const char* mix : {"q4_k_m", "q8_0", "f16", "q4_1", "iq2_xxs", "mxfp4", "bf16"}) {
    SCOPED_TRACE(mix);
    const SyntheticModel model = make("tiny", mix);
    Opened opened(model);
    wcuda_error* const error = &opened.error;
    wcuda_model loaded{0};
    wcuda_engine engine{0};
    wcuda_sequence sequence{0};
    ASSERT_EQ(wcuda_model_load(opened.context, opened.gguf, nullptr, &loaded, error), WCUDA_OK)
        << error->message;
    wcuda_engine_options options = WCUDA_ENGINE_OPTIONS_INIT;
    options.max_sequence_tokens = 128;
    ASSERT_EQ(wcuda_engine_create(loaded, &options, &engine, error), WCUDA_OK) << error->message;
    ASSERT_EQ(wcuda_sequence_create(engine, &sequence, error), WCUDA_OK) << error->message;

    const std::vector<int32_t> tokens{5, 300, 17, 42, 5, 99};
    wcuda_row row = WCUDA_ROW_INIT;
    row.sequence = sequence;
    row.tokens = tokens.data();
    row.token_count = 6;
    row.flags = WCUDA_ROW_SAMPLE | WCUDA_ROW_LOGITS_LAST;
    wcuda_step step = WCUDA_STEP_INIT;
    step.row_count = 1;
    step.rows = &row;
    uint64_t ticket = 0;
    ASSERT_EQ(wcuda_step_submit(engine, &step, &ticket, error), WCUDA_OK) << error->message;
    std::vector<float> logits(model.shape().vocabulary_size);
    wcuda_row_result result = WCUDA_ROW_RESULT_INIT;
    wcuda_step_output output = WCUDA_STEP_OUTPUT_INIT;
    output.row_capacity = 1;
    output.rows = &result;
    output.logits = logits.data();
    output.logits_capacity = logits.size();
    ASSERT_EQ(wcuda_step_wait(engine, ticket, -1, &output, error), WCUDA_OK) << error->message;

    EXPECT_EQ(result.status, WCUDA_ROW_OK);
    float largest = 0.0f;
    for (const float logit : logits) {
      ASSERT_TRUE(std::isfinite(logit));
      largest = std::max(largest, std::fabs(logit));
    }
    EXPECT_GT(largest, 0.05f);
    EXPECT_LT(largest, 100.0f);
    wcuda_sequence_destroy(sequence);
    wcuda_engine_destroy(engine);
    wcuda_model_unload(loaded);
  }
}

TEST(SyntheticModel, a_vocabulary_has_as_many_tokens_as_the_model) {
  Result<SyntheticModel> model = SyntheticModel::make("tiny", "q8_0", true);
  ASSERT_TRUE(model.ok()) << model.status().message();
  const SyntheticModel file = model.take();
  Opened opened(file);

  wcuda_gguf_value tokens = WCUDA_GGUF_VALUE_INIT, end = WCUDA_GGUF_VALUE_INIT;
  const wcuda_string tokens_key{"tokenizer.ggml.tokens", 21},
      end_key{"tokenizer.ggml.eos_token_id", 27};
  ASSERT_EQ(wcuda_gguf_value_find(opened.gguf, tokens_key, &tokens, &opened.error), WCUDA_OK);
  ASSERT_EQ(wcuda_gguf_value_find(opened.gguf, end_key, &end, &opened.error), WCUDA_OK);
  EXPECT_EQ(tokens.element_count, file.shape().vocabulary_size);
  EXPECT_LT(end.value_u64, tokens.element_count);
}

TEST(SyntheticModel, unknown_names_are_refused) {
  EXPECT_EQ(SyntheticModel::make("9b", "q8_0").status().code(), WCUDA_NOT_FOUND);
  EXPECT_EQ(SyntheticModel::make("tiny", "q9_0").status().code(), WCUDA_NOT_FOUND);
  EXPECT_EQ(SyntheticModel::make("tiny", "q8_1").status().code(), WCUDA_NOT_FOUND);
}

}  // namespace
}  // namespace wcuda
