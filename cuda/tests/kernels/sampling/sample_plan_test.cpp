// How sample divides rows of logits and chooses its kernel, by shape and device: without a GPU.
#include "kernels/sampling/sample_plan.h"

#include <gtest/gtest.h>

#include <vector>

namespace wcuda::kernels {
namespace {

using sample_plan::blocks_per_row;
using sample_plan::scratch_bytes;
using sample_plan::Shape;
using sample_plan::shape_for;
using sample_plan::stream_clusters;
using sample_plan::stream_segment;
using sample_plan::stream_shared_bytes;
using sample_plan::stream_slots;

constexpr uint32_t kLlama3 = 128256, kQwen3 = 151936, kGemma3 = 262144;  // vocabularies
constexpr uint32_t kH200BlockBytes = 232448, kH200SmBytes = 233472, kReservedBytes = 1024;
constexpr int32_t kCapabilities[] = {80, 86, 87, 89, 90, 100, 103, 120};

// Expects that segments of consecutive tokens, one for each warp, cover the vocabulary, and that
// their loads of four tokens are aligned.
void expect_cover(uint32_t vocabulary, uint32_t warps, uint32_t segment) {
  EXPECT_GT(segment, 0u);
  EXPECT_EQ(segment % 4, 0u);
  EXPECT_GE(uint64_t{warps} * segment, vocabulary);
}

TEST(SamplePlan, few_rows_have_16_blocks_and_many_have_8) {
  struct Case {
    uint32_t rows, vocabulary;
    int32_t compute_capability;
    uint32_t blocks;
  };
  const std::vector<Case> cases = {
      {1, kLlama3, 90, 16},   {8, kLlama3, 90, 16},   {9, kLlama3, 90, 8},
      {256, kQwen3, 90, 8},   {9, 160 * 1024, 90, 8}, {9, 160 * 1024 + 1, 90, 16},
      {256, kGemma3, 90, 16}, {1, 1000, 90, 16},      {1, kLlama3, 89, 1},
      {256, kGemma3, 80, 1},  {1, kLlama3, 100, 8},   {256, kGemma3, 120, 8},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(testing::Message()
                 << c.rows << " rows of " << c.vocabulary << " on " << c.compute_capability);
    EXPECT_EQ(blocks_per_row(c.rows, c.vocabulary, c.compute_capability), c.blocks);
  }
}

TEST(SamplePlan, shapes_of_128256_tokens) {
  const Shape few = shape_for(kLlama3, false, 16, 90);
  EXPECT_EQ(few.blocks, 16u);
  EXPECT_EQ(few.segment, 504u);
  EXPECT_TRUE(few.is_shared);
  EXPECT_EQ(few.shared_bytes, 2944u + 16384 + 16 * 504 * 4);

  const Shape many = shape_for(kLlama3, true, 8, 90);
  EXPECT_EQ(many.segment, 1004u);
  EXPECT_TRUE(many.is_shared);
  EXPECT_EQ(many.shared_bytes, 2944u + 32768 + 16 * 1004 * 4);

  const Shape one = shape_for(kLlama3, true, 1, 80);
  EXPECT_EQ(one.segment, 8016u);
  EXPECT_FALSE(one.is_shared);
  EXPECT_EQ(one.shared_bytes, 2944u + 32768);
}

TEST(SamplePlan, logits_are_in_shared_memory_up_to_the_last_that_fit) {
  struct Case {
    bool has_filters;
    uint32_t blocks;
    int32_t compute_capability;
    uint32_t vocabulary;
  };
  const std::vector<Case> cases = {
      {false, 1, 80, 36864}, {true, 1, 80, 32768},    {false, 1, 89, 20480},
      {true, 1, 89, 16384},  {false, 8, 120, 163840}, {true, 8, 120, 131072},
      {true, 8, 90, 393216}, {true, 16, 90, 786432},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(testing::Message() << c.blocks << " blocks on " << c.compute_capability);
    EXPECT_TRUE(shape_for(c.vocabulary, c.has_filters, c.blocks, c.compute_capability).is_shared);
    EXPECT_FALSE(
        shape_for(c.vocabulary + 1, c.has_filters, c.blocks, c.compute_capability).is_shared);
  }
}

TEST(SamplePlan, two_of_8_blocks_with_filters_fit_on_an_sm_up_to_159744_tokens) {
  const auto sm_bytes = [](uint32_t vocabulary) {
    return 2 * (shape_for(vocabulary, true, 8, 90).shared_bytes + kReservedBytes);
  };
  EXPECT_LE(sm_bytes(159744), kH200SmBytes);
  EXPECT_GT(sm_bytes(159745), kH200SmBytes);
}

TEST(SamplePlan, every_shape_covers_the_vocabulary_within_the_device) {
  for (const int32_t capability : kCapabilities)
    for (const uint32_t vocabulary : {1u, 7u, 515u, 32000u, 49152u, kLlama3, kQwen3, 151937u,
                                      kGemma3, (1u << 24) - 1, 1u << 24})
      for (const uint32_t blocks : {1u, 2u, 4u, 8u, 16u})
        for (const bool has_filters : {false, true}) {
          SCOPED_TRACE(testing::Message()
                       << vocabulary << " tokens, " << blocks << " blocks on " << capability);
          const Shape shape = shape_for(vocabulary, has_filters, blocks, capability);
          expect_cover(vocabulary, blocks * sample_plan::kWarps, shape.segment);
          EXPECT_LE(shape.shared_bytes, sample_plan::shared_bytes_max(capability));
        }
}

TEST(SamplePlan, many_rows_of_a_large_even_vocabulary_are_streamed) {
  struct Case {
    uint32_t rows, vocabulary;
    int32_t compute_capability;
    uint32_t slots;
  };
  const std::vector<Case> cases = {
      {32, kLlama3, 90, 3},       {31, kLlama3, 90, 0},  {256, kLlama3, 90, 3},
      {32, kLlama3 + 2, 90, 0},   {32, kQwen3, 90, 2},   {32, 40 * 1024, 90, 3},
      {32, 40 * 1024 - 4, 90, 0}, {32, 206336, 90, 2},   {32, 206340, 90, 0},
      {32, kGemma3, 90, 0},       {256, kLlama3, 80, 0}, {256, kLlama3, 100, 0},
      {256, kLlama3, 120, 0},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(testing::Message()
                 << c.rows << " rows of " << c.vocabulary << " on " << c.compute_capability);
    EXPECT_EQ(stream_slots(c.rows, c.vocabulary, c.compute_capability), c.slots);
  }
}

TEST(SamplePlan, streamed_segments_are_whole_parts_where_that_adds_little) {
  EXPECT_EQ(stream_segment(kLlama3), 1024u);  // 20 more than 1,004
  EXPECT_EQ(stream_segment(kQwen3), 1188u);   // whole parts have 1,536
  EXPECT_EQ(stream_segment(65536), 512u);
  EXPECT_EQ(stream_segment(65540), 516u);
  EXPECT_EQ(stream_segment(993 * 128), 1024u);  // 28 more than 996, at most a 32nd
  EXPECT_EQ(stream_segment(992 * 128), 992u);   // 32 more
}

// The segment does not depend on the blocks per row of sample_kernel. When it did, steps with more
// than 163,840 tokens, for which these are 16, were drawn from the first half of the vocabulary.
TEST(SamplePlan, streamed_rows_cover_the_vocabulary_within_the_device) {
  for (uint32_t vocabulary = 40 * 1024; vocabulary < 220000; vocabulary += 4) {
    const uint32_t slots = stream_slots(32, vocabulary, 90);
    if (slots == 0) continue;
    SCOPED_TRACE(testing::Message() << vocabulary << " tokens");
    const uint32_t segment = stream_segment(vocabulary);

    expect_cover(vocabulary, sample_plan::kStreamBlocks * sample_plan::kWarps, segment);
    EXPECT_GE(slots, 2u);
    EXPECT_LE(slots, 3u);
    EXPECT_LE(stream_shared_bytes(vocabulary, slots), kH200BlockBytes);
    if (slots < 3) {
      EXPECT_GT(stream_shared_bytes(vocabulary, slots + 1), kH200BlockBytes);
    }
    EXPECT_GE(stream_shared_bytes(vocabulary, slots),
              sample_plan::kStreamSharedBytes + sample_plan::kStreamRankBytes);
    if (testing::Test::HasFailure()) return;
  }
}

TEST(SamplePlan, clusters_are_those_that_run_at_once_unless_rows_exceed_their_lists) {
  EXPECT_EQ(stream_clusters(32, 16), 16u);
  EXPECT_EQ(stream_clusters(1024, 16), 16u);
  EXPECT_EQ(stream_clusters(1025, 16), 17u);
  EXPECT_EQ(stream_clusters(4096, 16), 64u);
  EXPECT_EQ(stream_clusters(40, 66), 40u);
  EXPECT_EQ(stream_clusters(32, 0), 1u) << "the launch reports the error";
  for (uint32_t rows = 32; rows < 3000; ++rows)
    EXPECT_LE((rows + stream_clusters(rows, 16) - 1) / stream_clusters(rows, 16), 64u) << rows;
}

TEST(SamplePlan, scratch_memory_holds_lists_or_logits) {
  EXPECT_EQ(scratch_bytes(31, kLlama3, 90), 0u);
  EXPECT_EQ(scratch_bytes(32, kLlama3, 90), 32u * 36868);
  EXPECT_EQ(scratch_bytes(256, kGemma3, 90), 0u);
  EXPECT_EQ(scratch_bytes(64, kLlama3, 80), uint64_t{64} * kLlama3 * 4);
  EXPECT_EQ(scratch_bytes(64, kLlama3, 120), 0u);
  EXPECT_EQ(scratch_bytes(64, kQwen3, 120), uint64_t{64} * kQwen3 * 4);
  EXPECT_EQ(scratch_bytes(4096, 1u << 24, 80), uint64_t{4096} << 26);
}

TEST(SamplePlan, scratch_memory_of_the_most_rows_serves_every_step) {
  for (const int32_t capability : kCapabilities)
    for (const uint32_t vocabulary : {1000u, 32000u, 40960u, kLlama3, kLlama3 + 1, kQwen3, 163844u,
                                      206336u, 206340u, kGemma3, 1u << 20})
      for (const uint32_t rows_max : {1u, 8u, 9u, 31u, 32u, 33u, 256u})
        for (uint32_t rows = 1; rows <= rows_max; ++rows)
          for (const bool has_filters : {false, true}) {
            const bool is_streamed = stream_slots(rows, vocabulary, capability) != 0;
            const Shape shape = shape_for(vocabulary, has_filters,
                                          blocks_per_row(rows, vocabulary, capability), capability);
            // After a streamed step, sample_kernel serves the rows that are left, without scratch.
            if (is_streamed) {
              EXPECT_TRUE(shape.is_shared) << vocabulary;
            }
            const uint64_t row_bytes = is_streamed       ? sample_plan::kStreamScratchBytes
                                       : shape.is_shared ? 0
                                                         : uint64_t{vocabulary} * sizeof(float);
            EXPECT_LE(rows * row_bytes, scratch_bytes(rows_max, vocabulary, capability))
                << rows << " of " << rows_max << " rows of " << vocabulary << " on " << capability;
          }
}

}  // namespace
}  // namespace wcuda::kernels
