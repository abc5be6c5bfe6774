// Steps of one token whose layers are chained in one kernel, against an engine of the same device
// that may not chain them.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "core/backend/open.h"
#include "core/vram/memory.h"
#include "kernels/linear/layer_chain.h"
#include "llm/engine/engine.h"
#include "llm/gguf/gguf.h"
#include "llm/gguf/source.h"
#include "llm/model/model.h"
#include "llm/model/tiny_model.h"
#include "support/device_launch.h"

namespace wcuda {
namespace {

constexpr uint32_t kSteps = 12;

class GpuChainedStep : public ::testing::TestWithParam<uint32_t> {
 protected:
  // Logits of kSteps tokens after a prompt, one a step.
  static Status run(engine::Engine& engine, uint32_t vocabulary, uint32_t prompt,
                    std::vector<float>* logits) {
    WCUDA_ASSIGN(const auto sequence, engine.create_sequence());
    std::vector<int32_t> tokens(prompt + kSteps);
    for (size_t i = 0; i < tokens.size(); ++i)
      tokens[i] = static_cast<int32_t>((i * 7919 + 13) % vocabulary);
    logits->resize(size_t{kSteps} * vocabulary);
    uint32_t first = 0;
    while (first < tokens.size()) {
      engine::RowInput row{};
      row.sequence = sequence;
      row.tokens = tokens.data() + first;
      row.token_count = first < prompt ? std::min(prompt - first, 256u) : 1;
      row.logits_returned = first < prompt ? 0 : 1;
      WCUDA_ASSIGN(const uint64_t ticket, engine.submit({row}));
      wcuda_row_result result{};
      wcuda_step_output output = WCUDA_STEP_OUTPUT_INIT;
      output.row_capacity = 1;
      output.rows = &result;
      output.logits = logits->data() + size_t{first < prompt ? 0 : first - prompt} * vocabulary;
      output.logits_capacity = vocabulary;
      WCUDA_TRY(engine.wait(ticket, -1, &output));
      if (result.status != WCUDA_ROW_OK)
        return Status::error(WCUDA_INTERNAL, "row status %d", result.status);
      first += row.token_count;
    }
    return {};
  }
};
INSTANTIATE_TEST_SUITE_P(Prompts, GpuChainedStep, ::testing::Values(0u, 60u, 190u, 700u, 9000u));

TEST_P(GpuChainedStep, gives_the_logits_of_single_layers_and_the_same_bits_again) {
  const kernels::Launch launch = testing::device_launch();
  if (launch.compute_capability < 90 || launch.compute_capability >= 100 ||
      !kernels::layer_chain_has_device(launch))
    GTEST_SKIP() << "no chains on this device";
  testing::TinyModel tiny;
  tiny.weight_type = testing::kQ4_K;
  tiny.embedding_type = testing::kQ6_K;
  tiny.embedding_length = 4096;
  tiny.feed_forward_length = 8192;
  tiny.head_count = 8;
  tiny.kv_head_count = 2;
  tiny.head_length = 128;
  tiny.vocabulary_size = 515;
  tiny.context_length = 16384;
  const std::string bytes = tiny.build();

  // The second engine of a device has no chains.
  std::vector<float> expected, first, second;
  const Status status = [&]() -> Status {
    OpenOptions options;
    options.backend = WCUDA_BACKEND_CUDA;
    WCUDA_ASSIGN(const Opened opened, open_backend(options));
    WCUDA_ASSIGN(const auto source, gguf::open_memory(bytes.data(), bytes.size()));
    WCUDA_ASSIGN(const auto file, gguf::Gguf::open(source));
    WCUDA_ASSIGN(const auto model,
                 model::Model::load(vram::Memory::create(opened.backend, 0), file, {}));
    wcuda_engine_options limits = WCUDA_ENGINE_OPTIONS_INIT;
    limits.max_sequences = 2;
    limits.max_sequence_tokens = 10000;
    limits.kv_tokens = 2 * 64 * 157;
    limits.max_batch_tokens = 256;
    limits.max_logits_rows = 1;
    WCUDA_ASSIGN(const auto chained, engine::Engine::create(model, limits));
    WCUDA_ASSIGN(const auto other, engine::Engine::create(model, limits));
    WCUDA_TRY(run(*other, tiny.vocabulary_size, GetParam(), &expected));
    WCUDA_TRY(run(*chained, tiny.vocabulary_size, GetParam(), &first));
    return run(*chained, tiny.vocabulary_size, GetParam(), &second);
  }();
  ASSERT_TRUE(status.ok()) << status.message();

  EXPECT_EQ(first, second);
  double square = 0.0, difference = 0.0;
  for (size_t i = 0; i < expected.size(); ++i) {
    square += double{expected[i]} * expected[i];
    difference += double{first[i] - expected[i]} * (first[i] - expected[i]);
  }
  // The order of sums differs, and through it the last of the 16 bits of an input here and there.
  EXPECT_LT(std::sqrt(difference / square), 1e-3);
  EXPECT_TRUE(first != expected) << "nothing was chained";
}

}  // namespace
}  // namespace wcuda
