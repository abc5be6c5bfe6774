// The report of a step for a device that is not there: its weights' bytes, its rows of logits.
#include "llm/engine/step_report.h"

#include <gtest/gtest.h>

#include "core/backend/host_backend.h"
#include "llm/gguf/gguf_open.h"
#include "llm/model/model.h"
#include "llm/model/tiny_model.h"
#include "llm/quant/layout_gpu.h"

namespace wcuda::engine {
namespace {

constexpr uint32_t kNvfp4 = 40;

// Its output matrix is of a type that the host keeps as it is, and a GPU in tiles of 16 rows.
std::string file_bytes() {
  testing::TinyModel tiny;
  tiny.embedding_type = kNvfp4;
  return tiny.build();
}

// Bytes of the node of the logits in a step of `rows` prompts of 5 tokens each, for a model of 97
// tokens and 64 elements.
uint64_t logits_bytes(std::string_view device, uint32_t rows, uint32_t max_logits_rows) {
  const std::string bytes = file_bytes();
  const auto file = testing::open_bytes(bytes).take();
  wcuda_engine_options options = WCUDA_ENGINE_OPTIONS_INIT;
  options.max_logits_rows = max_logits_rows;
  wcuda_step_shape shape = WCUDA_STEP_SHAPE_INIT;
  shape.row_count = rows;
  shape.row_tokens = 5;

  const auto report =
      report_step(open_host_backend(0, 1).take(), *file, options, {}, shape, device);

  EXPECT_TRUE(report.ok()) << report.status().message();
  for (size_t i = 0; i < report->plan.nodes.size(); ++i)
    if (report->plan.nodes[i].operation == ops::Operation::kLogits) return report->costs[i].bytes;
  ADD_FAILURE() << "no logits";
  return 0;
}

// The output matrix once, and of each row its hidden state and its logits.
uint64_t expected_bytes(uint64_t matrix_bytes, uint64_t rows) {
  return matrix_bytes + rows * sizeof(float) * (64 + 97);
}

TEST(StepReport, counts_weights_as_the_device_holds_them) {
  const uint64_t on_gpu = *quant::gpu_layout_bytes(kNvfp4, 97, 64);
  const std::string bytes = file_bytes();
  const auto plan =
      model::plan_load(*open_host_backend(0, 1).take(), *testing::open_bytes(bytes).take());
  const uint64_t on_host = plan->weights.output.bytes;
  ASSERT_NE(on_gpu, on_host);

  EXPECT_EQ(logits_bytes("H200", 2, 0), expected_bytes(on_gpu, 2));
  EXPECT_EQ(logits_bytes("", 2, 0), expected_bytes(on_host, 2));
}

TEST(StepReport, computes_logits_of_one_token_a_row_as_far_as_the_engine_allows) {
  const uint64_t all = logits_bytes("", 3, 0), two = logits_bytes("", 3, 2);
  EXPECT_EQ(all - two, sizeof(float) * (64 + 97));
}

}  // namespace
}  // namespace wcuda::engine
