// What a step does around its forward pass, on the device, against a model of it.
#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <vector>

#include "kernels/attention/attention_plan.h"
#include "kernels/step/step.h"
#include "support/device_array.h"
#include "support/device_launch.h"

namespace wcuda::engine {
namespace {

using kernels::StepRow;
using testing::DeviceArray;

constexpr uint32_t kSlots = 40;
constexpr uint32_t kStride = 1500;

kernels::Launch launch() { return testing::device_launch(); }

struct Step {
  std::vector<StepRow> rows;
  std::vector<int32_t> previous_statuses, statuses, tokens, fed_tokens, history;
};

Step random_step(uint32_t seed, uint32_t row_tokens_max = 700) {
  std::mt19937 generator(seed);
  Step step;
  step.history.resize(kSlots * kStride);
  for (int32_t& token : step.history) token = static_cast<int32_t>(generator() % 50000);
  for (uint32_t i = 0; i < 20; ++i)
    step.previous_statuses.push_back(static_cast<int32_t>(generator() % 3 ? 0 : generator() % 5));
  const uint32_t row_count = generator() % kSlots + 1;
  for (uint32_t i = 0; i < row_count; ++i) {
    StepRow row{};
    row.first_token = static_cast<uint32_t>(step.tokens.size());
    row.sequence_slot = kSlots - 1 - i;
    row.first_position = generator() % 700;
    row.depends_on = generator() % 2 ? generator() % 20 : kernels::kNoDependency;
    switch (generator() % 4) {
      case 0:
        row.token_count = 0;
        break;
      case 1:
        row.token_count = generator() % row_tokens_max + 1;
        break;
      default:
        row.token_count = 1;
        row.flags = generator() % 2 ? kernels::kRowFeedSampled : 0;
    }
    for (uint32_t t = 0; t < row.token_count; ++t)
      step.tokens.push_back(static_cast<int32_t>(generator() % 50000));
    step.rows.push_back(row);
  }
  step.tokens.push_back(-99);  // beyond the last row
  return step;
}

Step expected_after(Step step) {
  for (const StepRow& row : step.rows) {
    int32_t* const history = &step.history[row.sequence_slot * kStride + row.first_position];
    const bool is_fed = row.flags == kernels::kRowFeedSampled;
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
    DeviceArray<StepRow> rows(step.rows);
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

// The inputs of a step as they come over the bus.
class InputBlock {
 public:
  template <class T>
  void add(uint32_t segment, const std::vector<T>& values, uint32_t row_count = 1) {
    kernels::InputHeader header;
    std::memcpy(&header, bytes_.data(), sizeof header);
    const auto row_bytes = static_cast<uint32_t>(values.size() / row_count * sizeof(T));
    header.segments[segment] = {row_count, row_bytes, static_cast<uint32_t>(bytes_.size()), 0};
    std::memcpy(bytes_.data(), &header, sizeof header);
    for (uint32_t r = 0; r < row_count; ++r) {
      const auto* const row = reinterpret_cast<const uint8_t*>(values.data()) + r * row_bytes;
      bytes_.insert(bytes_.end(), row, row + row_bytes);
      bytes_.resize((bytes_.size() + 15) / 16 * 16);
    }
  }
  const std::vector<uint8_t>& bytes() const { return bytes_; }

 private:
  std::vector<uint8_t> bytes_ = std::vector<uint8_t>(sizeof(kernels::InputHeader));
};

struct Plan {
  static constexpr uint32_t kBlocks = 50, kHeadTiles = 2;
  DeviceArray<uint32_t> tile_count{1}, row_spans{kSlots + 1}, row_tiles{kSlots + 1};
  DeviceArray<kernels::DecodeStart> starts{kBlocks};
  DeviceArray<kernels::PrefillTile> tiles{1};

  kernels::AttentionPlan plan() {
    starts.fill(0);
    row_spans.fill(0);  // what no row has is read back too
    kernels::AttentionPlan plan;
    plan.tile_count = tile_count.data();
    plan.row_spans = row_spans.data();
    plan.row_tiles = row_tiles.data();
    plan.starts = starts.data();
    plan.tiles = tiles.data();
    plan.max_rows = kSlots;
    plan.max_blocks = kBlocks;
    plan.max_tiles = 1;
    plan.head_tiles = kHeadTiles;
    return plan;
  }
  std::vector<uint32_t> words(size_t row_count) {
    std::vector<uint32_t> words = row_spans.read();
    words.resize(row_count + 1);
    for (const kernels::DecodeStart& start : starts.read()) {
      uint32_t one[sizeof start / 4];
      std::memcpy(one, &start, sizeof one);
      words.insert(words.end(), one, one + sizeof start / 4);
    }
    return words;
  }
};

TEST(GpuStep, a_start_in_one_kernel_does_what_the_kernels_of_its_parts_do) {
  constexpr uint32_t kPages = 11, kTableStride = 20;
  for (uint32_t seed = 100; seed < 140; ++seed) {
    const Step step = random_step(seed, 1);
    std::vector<uint32_t> tables, positions;
    for (const StepRow& row : step.rows) {
      positions.push_back(row.first_position);
      for (uint32_t p = 0; p < kPages; ++p) tables.push_back(row.sequence_slot * 1000 + p);
    }
    const auto row_count = static_cast<uint32_t>(step.rows.size());
    InputBlock inputs;
    inputs.add(0, positions);
    inputs.add(1, step.tokens);
    inputs.add(2, step.rows);
    inputs.add(3, tables, row_count);
    const DeviceArray<uint8_t> block(inputs.bytes());
    DeviceArray<StepRow> rows(row_count);
    DeviceArray<uint32_t> all_tables(row_count * kTableStride), all_positions(row_count);
    DeviceArray<int32_t> previous(step.previous_statuses), tokens(step.tokens.size()),
        history(step.history), statuses(row_count), fed_tokens(row_count);
    kernels::StepStart start;
    start.inputs.block = block.data();
    start.inputs.segment_count = 4;
    start.tokens = 1;
    start.rows = 2;
    start.page_tables = 3;
    void* const targets[] = {all_positions.data(), tokens.data(), rows.data(), all_tables.data()};
    for (uint32_t s = 0; s < 4; ++s) start.inputs.targets[s] = static_cast<uint8_t*>(targets[s]);
    start.inputs.target_strides[3] = kTableStride * sizeof(uint32_t);
    start.begin.row_count = row_count;
    start.begin.history_stride = kStride;
    start.begin.rows = rows.data();
    start.begin.previous_statuses = previous.data();
    start.begin.statuses = statuses.data();
    start.begin.tokens = tokens.data();
    start.begin.fed_tokens = fed_tokens.data();
    start.begin.history = history.data();
    Plan made, expected_plan;
    kernels::AttentionPlanArgs args;
    args.step.row_count = row_count;
    args.step.page_table_stride = kTableStride;
    args.step.rows = rows.data();
    args.step.page_tables = all_tables.data();
    args.plan = made.plan();

    ASSERT_EQ(kernels::attention_plan_start(args, start, launch()), cudaSuccess);

    const Step expected = expected_after(step);
    EXPECT_EQ(statuses.read(), expected.statuses) << seed;
    EXPECT_EQ(tokens.read(), expected.tokens) << seed;
    EXPECT_EQ(fed_tokens.read(), expected.fed_tokens) << seed;
    EXPECT_EQ(history.read(), expected.history) << seed;
    EXPECT_EQ(all_positions.read(), positions) << seed;
    args.plan = expected_plan.plan();
    ASSERT_EQ(kernels::attention_plan(args, launch()), cudaSuccess);
    EXPECT_EQ(made.words(row_count), expected_plan.words(row_count)) << seed;
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

TEST(GpuStep, histories_are_written_from_host_memory) {
  DeviceArray<int32_t> history(std::vector<int32_t>(2 * kStride, -1));
  std::vector<int32_t> tokens(kStride), expected(2 * kStride, -1);
  for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<int32_t>(i);

  for (const uint32_t count : {0u, 1u, kernels::kHistoryChunk, kernels::kHistoryChunk + 1, 1001u}) {
    ASSERT_EQ(kernels::write_history(history.data() + kStride, tokens.data(), count, launch()),
              cudaSuccess);
    std::copy_n(tokens.begin(), count, expected.begin() + kStride);
    EXPECT_EQ(history.read(), expected) << count;
  }
}

}  // namespace
}  // namespace wcuda::engine
