// Attention on CUDA against vectors of tools/golden/ops.py and against the host's operations.
#include <gtest/gtest.h>

#include <cstdio>
#include <map>
#include <string>

#include "tests/kernels/attention/gpu_attention_fixture.h"

namespace wcuda::ops {
namespace {

using host::Pool;
using host::Random;
using host::Step;

// Queries and weights are rounded to f16, 2^-12 of their size: scores of size 6 move by 1e-3.
constexpr double kTolerance = 4e-3;

// Arrays of f32 by name; those of other types are passed over.
std::map<std::string, std::vector<float>> read_vectors() {
  std::map<std::string, std::vector<float>> vectors;
  std::FILE* file = std::fopen(WCUDA_TEST_DATA "/ops.bin", "rb");
  if (file == nullptr) return vectors;
  char name[25] = {};
  uint32_t count;
  while (std::fread(name, 24, 1, file) == 1 && std::fread(&count, 4, 1, file) == 1) {
    const std::string text = name;
    if (text.size() > 5 && text.substr(text.size() - 5) == ".q4_1") {
      std::fseek(file, count, SEEK_CUR);
    } else {
      vectors[text].resize(count);
      EXPECT_EQ(std::fread(vectors[text].data(), 4, count, file), count);
    }
  }
  std::fclose(file);
  return vectors;
}

TEST(GpuAttentionGolden, a_row_and_its_tokens_one_by_one_equal_the_vectors) {
  constexpr uint32_t kTokens = 5, kHeads = 4, kKvHeads = 2, kLength = 16, kFirstPosition = 62;
  auto vectors = read_vectors();
  ASSERT_FALSE(vectors.empty());
  Random random(1);
  Step row({{kTokens, kFirstPosition}}, 2, 64, random);
  Pool pool(KvType::kF16, 1, 2, kKvHeads, kLength);
  for (uint32_t p = 0; p < kFirstPosition + kTokens; ++p)
    for (uint32_t h = 0; h < kKvHeads; ++h)
      for (bool value : {false, true})
        host::write_kv_row(
            KvType::kF16,
            vectors[value ? "values" : "keys"].data() + (uint64_t{p} * kKvHeads + h) * kLength,
            kLength, p, pool.row(0, row.page_tables[p / 64], value, h, p % 64));
  Step tokens = row;  // five rows that share the pages
  tokens.rows.clear();
  tokens.page_tables.clear();
  for (uint32_t t = 0; t < kTokens; ++t) {
    tokens.rows.push_back({t, 1, kFirstPosition + t, 0});
    tokens.token_rows[t] = t;
    tokens.page_tables.insert(tokens.page_tables.end(), row.page_tables.begin(),
                              row.page_tables.end());
  }
  tokens.batch.row_count = kTokens;
  DeviceBytes bytes(pool.bytes);
  pool.pool.data = bytes.as<uint8_t>();
  Limits limits{};
  limits.max_batch_tokens = limits.max_batch_rows = 8;
  limits.max_sequence_tokens = 128;
  limits.head_count = kHeads;
  limits.kv_head_count = kKvHeads;
  limits.head_length = kLength;
  DeviceAttention device(limits);
  for (const Step* step : {&row, &tokens})
    for (uint32_t window : {0u, 20u}) {
      const auto got = device.run(DeviceStep(*step), pool.pool, DeviceBytes(vectors["query"]),
                                  kHeads, 0.7f, window);

      const auto& expected = vectors["attention." + std::to_string(window)];
      ASSERT_EQ(got.size(), expected.size());
      for (size_t i = 0; i < got.size(); ++i) ASSERT_NEAR(got[i], expected[i], kTolerance) << i;
    }
}

TEST(GpuAttentionHost, a_mixed_step_equals_the_host) {
  constexpr uint32_t kHeads = 6, kKvHeads = 2, kLength = 64, kPages = 24;
  Limits limits{};
  limits.max_batch_tokens = 256;
  limits.max_batch_rows = limits.max_logits_rows = 8;
  limits.max_sequence_tokens = 1024;
  limits.embedding_length = limits.feed_forward_length = 96;
  limits.head_count = kHeads;
  limits.kv_head_count = kKvHeads;
  limits.head_length = kLength;
  limits.vocabulary_size = 64;
  host::Machine machine(*host::all_kernels().back(), 2, limits);
  ASSERT_TRUE(machine.ops);
  for (KvType type : {KvType::kF16, KvType::kQ8_0, KvType::kFp8E4m3, KvType::kInt10})
    for (uint32_t window : {0u, 40u}) {
      Random random(2);
      Step step({{1, 200}, {37, 0}, {1, 0}, {20, 50}, {66, 63}, {1, 511}}, kPages, 64, random);
      Pool pool(type, 1, kPages, kKvHeads, kLength);
      for (const StepRow& row : step.rows)
        for (uint32_t p = 0; p < row.first_position + row.token_count; ++p)
          for (uint32_t h = 0; h < kKvHeads; ++h)
            for (bool value : {false, true})
              host::write_kv_row(type, random.normals(kLength).data(), kLength, p,
                                 pool.row(0, step.page_tables[row.sequence_slot * kPages + p / 64],
                                          value, h, p % 64));
      const auto query = random.normals(uint64_t{step.batch.token_count} * kHeads * kLength);
      std::vector<float> expected(query.size());
      ASSERT_TRUE(machine.ops
                      ->attention({}, {&step.batch, query.data(), kHeads, 0.15f, window, pool.pool,
                                       0, expected.data()})
                      .ok());
      DeviceBytes bytes(pool.bytes);
      KvPool device_pool = pool.pool;
      device_pool.data = bytes.as<uint8_t>();

      DeviceAttention device(limits);
      const auto got =
          device.run(DeviceStep(step), device_pool, DeviceBytes(query), kHeads, 0.15f, window);

      for (size_t i = 0; i < got.size(); ++i)
        ASSERT_NEAR(got[i], expected[i], kTolerance) << static_cast<int>(type) << " at " << i;
    }
}

}  // namespace
}  // namespace wcuda::ops
