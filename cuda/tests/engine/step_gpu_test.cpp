// What a step does around its forward pass, on the device, against a model of it.
#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "kernels/step.h"
#include "support/device_array.h"
#include "support/device_launch.h"

namespace wcuda::engine {
namespace {

using kernels::BeginRow;
using testing::DeviceArray;

constexpr uint32_t kSlots = 40;
constexpr uint32_t kStride = 1500;

kernels::Launch launch() { return testing::device_launch(); }

struct Step {
  std::vector<BeginRow> rows;
  std::vector<int32_t> previous_statuses, statuses, tokens, fed_tokens, history;
};

Step random_step(uint32_t seed) {
  std::mt19937 generator(seed);
  Step step;
  step.history.resize(kSlots * kStride);
  for (int32_t& token : step.history) token = static_cast<int32_t>(generator() % 50000);
  for (uint32_t i = 0; i < 20; ++i)
    step.previous_statuses.push_back(static_cast<int32_t>(generator() % 3 ? 0 : generator() % 5));
  const uint32_t row_count = generator() % kSlots + 1;
  for (uint32_t i = 0; i < row_count; ++i) {
    BeginRow row{};
    row.first_token = static_cast<uint32_t>(step.tokens.size());
    row.sequence_slot = kSlots - 1 - i;
    row.first_position = generator() % 700;
    row.depends_on = generator() % 2 ? generator() % 20 : kernels::kNoDependency;
    switch (generator() % 4) {
      case 0:
        row.token_count = 0;
        break;
      case 1:
        row.token_count = generator() % 700 + 1;
        break;
      default:
        row.token_count = 1;
        row.flags = generator() % 2 ? kernels::kStepRowFeedSampled : 0;
    }
    for (uint32_t t = 0; t < row.token_count; ++t)
      step.tokens.push_back(static_cast<int32_t>(generator() % 50000));
    step.rows.push_back(row);
  }
  step.tokens.push_back(-99);  // beyond the last row
  return step;
}

Step expected_after(Step step) {
  for (const BeginRow& row : step.rows) {
    int32_t* const history = &step.history[row.sequence_slot * kStride + row.first_position];
    const bool is_fed = row.flags == kernels::kStepRowFeedSampled;
    const bool is_skipped = row.token_count == 0 || (row.depends_on != kernels::kNoDependency &&
                                                     step.previous_statuses[row.depends_on] != 0);
    step.statuses.push_back(is_skipped ? kernels::kRowSkipped : kernels::kRowOk);
    step.fed_tokens.push_back(is_fed && !is_skipped ? history[0] : -1);
    if (is_fed) step.tokens[row.first_token] = is_skipped ? 0 : history[0];
    if (is_skipped) continue;
    for (uint32_t i = 0; i < row.token_count; ++i) history[i] = step.tokens[row.first_token + i];
  }
  return step;
}

TEST(GpuStep, rows_begin_as_the_host_begins_them) {
  for (uint32_t seed = 0; seed < 60; ++seed) {
    const Step step = random_step(seed);
    DeviceArray<BeginRow> rows(step.rows);
    DeviceArray<int32_t> previous(step.previous_statuses), tokens(step.tokens),
        history(step.history), statuses(step.rows.size()), fed_tokens(step.rows.size());
    kernels::BeginStepArgs args;
    args.row_count = static_cast<uint32_t>(step.rows.size());
    args.history_stride = kStride;
    args.rows = rows.data();
    args.previous_statuses = previous.data();
    args.statuses = statuses.data();
    args.tokens = tokens.data();
    args.fed_tokens = fed_tokens.data();
    args.history = history.data();

    ASSERT_EQ(kernels::begin_step(args, launch()), cudaSuccess);

    const Step expected = expected_after(step);
    EXPECT_EQ(statuses.read(), expected.statuses) << seed;
    EXPECT_EQ(tokens.read(), expected.tokens) << seed;
    EXPECT_EQ(fed_tokens.read(), expected.fed_tokens) << seed;
    EXPECT_EQ(history.read(), expected.history) << seed;
  }
}

TEST(GpuStep, pages_are_copied_and_poisoned_in_all_layers_and_nowhere_else) {
  kernels::PagePool pool;
  pool.layer_count = 3;
  pool.page_count = 5;
  pool.plane_bytes = 64 * 34 * 3;
  const size_t page = 2 * pool.plane_bytes;
  std::vector<uint8_t> bytes(pool.layer_count * pool.page_count * page);
  std::mt19937 generator(1);
  for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(generator());
  DeviceArray<uint8_t> data(bytes);
  pool.data = data.data();

  ASSERT_EQ(kernels::copy_page(pool, 4, 1, launch()), cudaSuccess);
  ASSERT_EQ(kernels::poison_page(pool, 4, launch()), cudaSuccess);

  for (size_t layer = 0; layer < pool.layer_count; ++layer) {
    uint8_t* const first = &bytes[layer * pool.page_count * page];
    std::copy_n(first + 4 * page, page, first + page);
    std::fill_n(first + 4 * page, page, uint8_t{0xff});
  }
  EXPECT_EQ(data.read(), bytes);
  EXPECT_EQ(kernels::copy_page(pool, 5, 1, launch()), cudaErrorInvalidValue);
  EXPECT_EQ(kernels::copy_page(pool, 1, 1, launch()), cudaErrorInvalidValue);
  EXPECT_EQ(kernels::poison_page(pool, 5, launch()), cudaErrorInvalidValue);
}

TEST(GpuStep, histories_are_copied) {
  std::vector<int32_t> tokens(kSlots * kStride);
  for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<int32_t>(i);
  DeviceArray<int32_t> history(tokens);

  ASSERT_EQ(kernels::copy_history(history.data(), kStride, 3, 7, 1001, launch()), cudaSuccess);
  ASSERT_EQ(kernels::copy_history(history.data(), kStride, 7, 8, 0, launch()), cudaSuccess);

  std::copy_n(&tokens[3 * kStride], 1001, &tokens[7 * kStride]);
  EXPECT_EQ(history.read(), tokens);
  EXPECT_EQ(kernels::copy_history(history.data(), kStride, 3, 7, kStride + 1, launch()),
            cudaErrorInvalidValue);
}

}  // namespace
}  // namespace wcuda::engine
