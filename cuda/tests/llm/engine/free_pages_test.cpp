// What free pages hold: NaN with WCUDA_ENGINE_POISON_FREE_PAGES, else what was there.
#include <gtest/gtest.h>

#include <algorithm>

#include "core/backend/host_backend.h"
#include "llm/engine/engine.h"
#include "llm/gguf/gguf_open.h"
#include "llm/model/tiny_model.h"

namespace wcuda::engine {
namespace {

// The bytes of all pages after a sequence of 70 tokens, on two of the four pages, has come and
// gone.
std::vector<uint8_t> pages_after_a_sequence(uint64_t flags) {
  const auto memory = vram::Memory::create(open_host_backend(0, 1).take(), 0);
  const std::string bytes = testing::TinyModel().build();
  const auto model = model::Model::load(memory, testing::open_bytes(bytes).take(), {}).take();
  wcuda_engine_options options = WCUDA_ENGINE_OPTIONS_INIT;
  options.max_sequence_tokens = options.max_batch_tokens = 128;
  options.kv_tokens = 4 * ops::kPageTokens;
  options.flags = flags;
  const auto engine = Engine::create(model, options).take();

  const auto sequence = engine->create_sequence().take();
  const std::vector<int32_t> tokens(70, 5);
  Row row;
  row.sequence = sequence;
  row.tokens = tokens.data();
  row.step.token_count = static_cast<uint32_t>(tokens.size());
  const auto ticket = engine->submit({row});
  EXPECT_TRUE(ticket.ok()) << ticket.status().message();
  wcuda_step_output output = WCUDA_STEP_OUTPUT_INIT;
  wcuda_row_result result = WCUDA_ROW_RESULT_INIT;
  output.rows = &result;
  output.row_capacity = 1;
  EXPECT_TRUE(engine->wait(*ticket, -1, &output).ok());
  engine->destroy(*sequence);

  const auto ops = ops::make_ops(memory->shared_backend()).take();
  const auto plan =
      plan_engine(memory->backend(), *ops, model->config(), model->weights(), options);
  EXPECT_TRUE(plan.ok()) << plan.status().message();
  for (const vram::LedgerRow& held : memory->ledger().rows())
    if (held.entry.purpose == WCUDA_PURPOSE_KV) {
      const auto* const pages = static_cast<const uint8_t*>(held.address) + plan->layout.pages;
      return std::vector<uint8_t>(pages, pages + 4 * plan->layout.page_bytes);
    }
  ADD_FAILURE() << "no KV cache";
  return {};
}

TEST(FreePages, are_nan_throughout_where_they_are_poisoned) {
  const std::vector<uint8_t> poisoned = pages_after_a_sequence(WCUDA_ENGINE_POISON_FREE_PAGES);
  EXPECT_EQ(static_cast<size_t>(std::count(poisoned.begin(), poisoned.end(), 0xff)),
            poisoned.size());
}

TEST(FreePages, keep_what_was_there_otherwise) {
  const std::vector<uint8_t> pages = pages_after_a_sequence(0);
  const size_t ones = static_cast<size_t>(std::count(pages.begin(), pages.end(), 0xff));
  EXPECT_LT(ones, pages.size() / 16);
}

}  // namespace
}  // namespace wcuda::engine
