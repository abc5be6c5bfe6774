// The kernels that place rows after drafts against the rule that host and device share.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <vector>

#include "kernels/shared/accepted_drafts.h"
#include "kernels/step/continue_drafts.h"
#include "tests/kernels/attention/gpu_attention_fixture.h"

namespace wcuda::ops {
namespace {

// More rows than a block has threads. In the previous step, sequence i has i % 16 drafts; in the
// next one it has a row after them.
TEST(GpuContinueDrafts, places_each_row_after_the_drafts_that_are_accepted) {
  const kernels::Launch launch = testing::device_launch();
  constexpr uint32_t kSequences = 300, kStride = 96;
  std::mt19937 random(7);
  std::vector<StepRow> previous, rows;
  std::vector<int32_t> tokens, statuses, history(size_t{kSequences} * kStride, -3);
  std::vector<uint32_t> positions, accepted;
  std::vector<kernels::SampleRow> samples;
  for (uint32_t slot = 0; slot < kSequences; ++slot) {
    const uint32_t draft_count = slot % 16, token_count = 1 + slot % 3, first = slot % 40;
    const auto head = static_cast<uint32_t>(previous.size());
    previous.push_back({static_cast<uint32_t>(tokens.size()), token_count, first, slot});
    tokens.resize(tokens.size() + token_count, 5);
    statuses.push_back(kernels::kRowOk);
    int32_t* const drawn = &history[size_t{slot} * kStride + first + token_count];
    drawn[0] = static_cast<int32_t>(random() % 1000);
    for (uint32_t d = 0; d < draft_count; ++d) {
      previous.push_back({static_cast<uint32_t>(tokens.size()), 1, first + token_count + d, slot});
      tokens.push_back(random() % 12 == 0 ? 2000 : drawn[d]);
      statuses.push_back(random() % 12 == 0 ? kernels::kRowNotFinite : kernels::kRowOk);
      drawn[d + 1] = static_cast<int32_t>(random() % 1000);
    }
    // Some count fewer drafts than there are: the others are stop tokens.
    const uint32_t counted = slot % 5 == 0 ? draft_count / 2 : draft_count;
    StepRow row{slot, 1, first + token_count, slot};
    row.flags = kernels::kRowFeedSampled | counted << kernels::kRowDraftsBeforeShift;
    row.depends_on = head;
    rows.push_back(row);
    positions.push_back(row.first_position);
    samples.emplace_back();
    samples.back().position = row.first_position + 1;
    const size_t drafts = previous[head].first_token + token_count;
    accepted.push_back(kernels::accepted_drafts(counted, tokens.data() + drafts, drawn,
                                                statuses.data() + head + 1));
  }
  rows.emplace_back();  // fills up a bucket
  samples.emplace_back();

  // The block of inputs: header, rows, positions, rows of samples.
  kernels::InputHeader header{};
  std::vector<uint8_t> block(sizeof(header));
  const auto append = [&](uint32_t segment, const auto& values) {
    block.resize((block.size() + 15) / 16 * 16);
    const size_t bytes = values.size() * sizeof(values[0]);
    header.segments[segment] = {1, static_cast<uint32_t>(bytes),
                                static_cast<uint32_t>(block.size()), 0};
    const auto* const data = reinterpret_cast<const uint8_t*>(values.data());
    block.insert(block.end(), data, data + bytes);
  };
  append(3, rows);
  append(1, positions);
  append(6, samples);
  std::memcpy(block.data(), &header, sizeof(header));
  const DeviceBytes device_block(block), device_previous(previous), device_tokens(tokens),
      device_statuses(statuses), device_history(history);
  kernels::ContinueDraftsArgs args;
  args.block = device_block.as<uint8_t>();
  args.rows = 3;
  args.positions = 1;
  args.sample_rows = 6;
  args.previous_rows = device_previous.as<StepRow>();
  args.previous_statuses = device_statuses.as<int32_t>();
  args.previous_tokens = device_tokens.as<int32_t>();
  args.history = device_history.as<int32_t>();
  args.history_stride = kStride;
  const auto row_count = static_cast<uint32_t>(rows.size());
  ASSERT_EQ(kernels::continue_drafts(args, row_count, launch), cudaSuccess);
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);

  const auto placed = device_block.read<uint8_t>();
  const auto at = [&](uint32_t segment, auto* values) {
    std::memcpy(values->data(), placed.data() + header.segments[segment].offset,
                values->size() * sizeof((*values)[0]));
  };
  std::vector<StepRow> placed_rows(rows.size());
  std::vector<uint32_t> placed_positions(positions.size());
  std::vector<kernels::SampleRow> placed_samples(samples.size());
  at(3, &placed_rows);
  at(1, &placed_positions);
  at(6, &placed_samples);
  uint32_t moved = 0, still = 0;
  for (uint32_t i = 0; i < kSequences; ++i) {
    EXPECT_EQ(placed_rows[i].first_position, rows[i].first_position + accepted[i]) << i;
    EXPECT_EQ(placed_positions[i], positions[i] + accepted[i]) << i;
    EXPECT_EQ(placed_samples[i].position, samples[i].position + accepted[i]) << i;
    EXPECT_EQ(placed_rows[i].flags, rows[i].flags) << i;
    (accepted[i] == 0 ? still : moved) += 1;
  }
  EXPECT_EQ(placed_rows.back().first_position, 0u);
  EXPECT_EQ(placed_samples.back().position, 0u);
  EXPECT_GT(moved, 100u);
  EXPECT_GT(still, 20u);

  // Late rows learn their positions from the rows of the step.
  for (kernels::SampleRow& sample : samples) sample.position = 77;
  const DeviceBytes device_rows(placed_rows), device_samples(samples);
  ASSERT_EQ(kernels::place_late_samples(device_rows.as<StepRow>(),
                                        device_samples.as<kernels::SampleRow>(), row_count, launch),
            cudaSuccess);
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  const auto late = device_samples.read<kernels::SampleRow>();
  for (uint32_t i = 0; i < row_count; ++i)
    EXPECT_EQ(late[i].position,
              rows[i].drafts_before() == 0 ? 77 : placed_rows[i].first_position + 1)
        << i;
}

}  // namespace
}  // namespace wcuda::ops
