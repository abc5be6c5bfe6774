// Attention on CUDA against naive versions in double precision.
#include <gtest/gtest.h>

#include "kernels/attention/attention_prefill.h"
#include "kernels/shared/numeric.h"
#include "tests/kernels/attention/gpu_attention_fixture.h"

namespace wcuda::ops {
namespace {

using host::Pool;
using host::Random;
using host::Step;
using Shapes = std::vector<std::pair<uint32_t, uint32_t>>;  // token counts, first positions

constexpr KvType kKvTypes[] = {KvType::kF16, KvType::kQ8_0, KvType::kFp8E4m3, KvType::kInt10};

Limits make_limits(uint32_t heads, uint32_t kv_heads, uint32_t head_length) {
  Limits limits{};
  limits.max_batch_tokens = 1024;
  limits.max_batch_rows = 64;
  limits.max_logits_rows = 64;
  limits.max_sequence_tokens = 8192;
  limits.head_count = heads;
  limits.kv_head_count = kv_heads;
  limits.head_length = head_length;
  return limits;
}

uint32_t pages_of(const Shapes& shapes) {
  uint32_t pages = 1;
  for (const auto& [count, first] : shapes) pages += (first + count - 1) / kPageTokens + 1;
  return pages;
}

// A pool on the device that is the copy of a host's.
struct DevicePool {
  DeviceBytes bytes;
  KvPool pool;
  explicit DevicePool(const Pool& host) : bytes(host.bytes), pool(host.pool) {
    pool.data = bytes.as<uint8_t>();
  }
};

struct Case {
  uint32_t heads, kv_heads, head_length, window;
};

// What one layer of a pool holds, decoded: (pages, 2, heads, 64, head_length).
struct DecodedPool {
  uint32_t heads, n;
  std::vector<float> values;
  explicit DecodedPool(const Pool& pool) : heads(pool.pool.head_count), n(pool.pool.head_length) {
    values.reserve(uint64_t{pool.pool.page_count} * 2 * heads * kPageTokens * n);
    for (uint32_t page = 0; page < pool.pool.page_count; ++page)
      for (bool value : {false, true})
        for (uint32_t h = 0; h < heads; ++h)
          for (uint32_t slot = 0; slot < kPageTokens; ++slot)
            for (double element : pool.read(0, page, value, h, slot))
              values.push_back(static_cast<float>(element));
  }
  const float* row(uint32_t page, bool value, uint32_t h, uint32_t slot) const {
    return values.data() + (((uint64_t{page} * 2 + value) * heads + h) * kPageTokens + slot) * n;
  }
};

// softmax(scale * q·k)·v of one head of one token from what the pool holds.
std::vector<double> naive_attention(const Step& step, const DecodedPool& pool, const Case& c,
                                    const std::vector<float>& query, float scale, uint32_t token,
                                    uint32_t head, float softcap = 0.0f, float sink = -INFINITY) {
  const uint32_t n = c.head_length;
  const uint32_t kv_head = head / (c.heads / c.kv_heads);
  const float* q = query.data() + (uint64_t{token} * c.heads + head) * n;
  const uint32_t position = step.positions[token];
  const uint32_t first = c.window != 0 && position + 1 > c.window ? position + 1 - c.window : 0;
  std::vector<double> scores, out(n, 0.0);
  double largest = -INFINITY, total = 0.0;
  const auto page_of = [&](uint32_t p) {
    return step
        .page_tables[step.token_rows[token] * step.batch.page_table_stride + p / kPageTokens];
  };
  for (uint32_t p = first; p <= position; ++p) {
    const float* key = pool.row(page_of(p), false, kv_head, p % kPageTokens);
    double score = 0.0;
    for (uint32_t i = 0; i < n; ++i) score += static_cast<double>(key[i]) * q[i];
    score *= scale;
    scores.push_back(softcap == 0.0f ? score : softcap * std::tanh(score / softcap));
    largest = std::max(largest, scores.back());
  }
  largest = std::max<double>(largest, sink);
  total = std::exp(sink - largest);
  for (double& score : scores) total += score = std::exp(score - largest);
  for (uint32_t p = first; p <= position; ++p) {
    const float* value = pool.row(page_of(p), true, kv_head, p % kPageTokens);
    for (uint32_t i = 0; i < n; ++i) out[i] += scores[p - first] / total * value[i];
  }
  return out;
}

// Largest difference of some tokens' results from the naive version; NaN counts as infinite.
double largest_error(const Step& step, const Pool& pool, const Case& c,
                     const std::vector<float>& query, float scale, const std::vector<float>& got) {
  double largest = 0.0;
  const DecodedPool decoded(pool);
  for (uint32_t token = 0; token < step.batch.token_count; ++token) {
    // All tokens of short rows; of long ones those near the borders of tiles and pages.
    const StepRow& row = step.rows[step.token_rows[token]];
    const uint32_t within = token - row.first_token;
    const uint32_t around = within % 64;
    if (row.token_count > 70 && around > 1 && around < 62 && around != 17 &&
        within + 1 != row.token_count)
      continue;
    for (uint32_t head = 0; head < c.heads; ++head) {
      const auto expected = naive_attention(step, decoded, c, query, scale, token, head);
      for (uint32_t i = 0; i < c.head_length; ++i) {
        const double error =
            std::abs(got[(uint64_t{token} * c.heads + head) * c.head_length + i] - expected[i]);
        if (!(error <= largest)) largest = std::isnan(error) ? INFINITY : error;
      }
    }
  }
  return largest;
}

// Queries and weights are rounded to f16: scores of size 4 move by 1e-3, results of size 1
// likewise.
constexpr double kTolerance = 4e-3;

// sm_count: of the launch, so that a block has more work; 0: of the device.
void check(KvType type, const Case& c, const Shapes& shapes, bool batch_invariant,
           bool is_portable = false, int32_t sm_count = 0) {
  Random random(c.heads * 100 + c.window + c.head_length);
  Limits limits = make_limits(c.heads, c.kv_heads, c.head_length);
  limits.batch_invariant = batch_invariant;
  Step step(shapes, pages_of(shapes), 64, random);
  Pool pool(type, 1, pages_of(shapes), c.kv_heads, c.head_length);
  fill_pool(pool, step, 0, random);
  const auto query = random.normals(uint64_t{step.batch.token_count} * c.heads * c.head_length);
  const float scale = 1.5f / std::sqrt(static_cast<float>(c.head_length));
  DeviceAttention device(limits);
  if (is_portable) device.launch.compute_capability = 86;
  if (sm_count != 0) device.launch.sm_count = sm_count;

  const auto got = device.run(DeviceStep(step), DevicePool(pool).pool, DeviceBytes(query), c.heads,
                              scale, c.window);

  const double error = largest_error(step, pool, c, query, scale, got);
  EXPECT_LE(error, kTolerance) << "type " << static_cast<int>(type) << " heads " << c.heads << "/"
                               << c.kv_heads << " length " << c.head_length << " window "
                               << c.window << " invariant " << batch_invariant;
  if (std::getenv("WCUDA_TEST_PRINT") != nullptr)
    std::printf("type %d heads %u/%u length %u window %u invariant %d: error %.2e\n",
                static_cast<int>(type), c.heads, c.kv_heads, c.head_length, c.window,
                batch_invariant, error);
}

bool has_rows(KvType type, uint32_t head_length) { return kv_row_bytes(type, head_length) != 0; }

// Group sizes 1, 3, 4, 7, 8, 12; lengths that are compiled and others; poisoned pages throughout.
constexpr Case kCases[] = {{4, 4, 64, 0},  {9, 3, 64, 70},  {8, 2, 128, 0},    {7, 1, 128, 64},
                           {8, 1, 96, 0},  {3, 1, 80, 5},   {4, 1, 256, 0},    {12, 1, 64, 0},
                           {3, 1, 160, 1}, {2, 2, 128, 33}, {16, 2, 256, 100}, {6, 2, 20, 0}};

TEST(GpuAttentionDecode, equals_the_naive_version_on_poisoned_pages) {
  const Shapes shapes = {{1, 0},  {1, 62},  {1, 63},  {1, 64}, {1, 999},
                         {1, 15}, {1, 128}, {1, 300}, {1, 16}, {1, 17}};
  for (KvType type : kKvTypes)
    for (const Case& c : kCases)
      if (has_rows(type, c.head_length)) {
        for (bool batch_invariant : {false, true}) check(type, c, shapes, batch_invariant);
        check(type, c, shapes, false, true);
      }
}

TEST(GpuAttentionDecode, one_row_of_any_length_equals_the_naive_version) {
  for (uint32_t position : {0u, 1u, 15u, 63u, 64u, 511u, 999u, 5000u})
    for (bool is_portable : {false, true})
      check(KvType::kF16, {8, 2, 128, 0}, {{1, position}}, false, is_portable);
}

TEST(GpuAttentionDecode, groups_of_any_size_equal_the_naive_version) {
  const auto check_rows = [](uint32_t rows, bool has_long_row) {
    Shapes shapes;
    // Some rows of a bucket may be dead, the first too.
    for (uint32_t r = 0; r < rows; ++r)
      shapes.push_back(r % 5 == 3 || r + 5 == rows ? Shapes::value_type{0, 64}
                                                   : Shapes::value_type{1, (r * 97 + 1111) % 1200});
    if (has_long_row) shapes.push_back({1, 2600});
    for (KvType type : kKvTypes)
      for (const Case& c : {Case{16, 4, 64, 0}, Case{8, 2, 128, 0}, Case{2, 1, 256, 300}})
        check(type, c, shapes, false);
  };
  for (uint32_t rows : {1u, 2u, 5u, 8u, 9u, 33u}) check_rows(rows, false);
  for (uint32_t rows : {0u, 4u, 30u}) check_rows(rows, true);
}

TEST(GpuAttentionDecode, rows_of_equal_length_equal_the_naive_version) {
  for (const auto& [rows, position] : Shapes{{40, 700}, {20, 1500}, {60, 63}, {23, 64}})
    for (bool is_portable : {false, true})
      check(KvType::kF16, {16, 4, 64, 0}, Shapes(rows, {1, position}), false, is_portable);
}

// Blocks that have several whole heads of a row, in any number, and parts of others.
TEST(GpuAttentionDecode, teams_of_warps_equal_the_naive_version) {
  Shapes lengths, equal;
  for (uint32_t r = 0; r < 15; ++r) lengths.push_back({1, r * r * 7 % 290});
  lengths.push_back({1, 800});
  lengths.insert(lengths.begin() + 9, {0, 64});
  for (uint32_t r = 0; r < 12; ++r) equal.push_back({1, 159});
  for (KvType type : kKvTypes)
    for (const Case& c : {Case{32, 8, 128, 0}, Case{16, 8, 64, 0}, Case{14, 2, 64, 90},
                          Case{24, 3, 128, 0}, Case{8, 4, 256, 0}, Case{7, 7, 80, 0}})
      if (has_rows(type, c.head_length))
        for (const int32_t sm_count : {1, 2, 5})
          for (const Shapes& shapes : {lengths, equal})
            check(type, c, shapes, false, sm_count == 2, sm_count);
}

TEST(GpuAttentionPrefill, equals_the_naive_version_on_poisoned_pages) {
  const Shapes shapes = {{2, 0}, {37, 0}, {63, 1}, {64, 64}, {65, 63}, {130, 0}, {200, 100}};
  for (KvType type : kKvTypes)
    for (const Case& c : kCases)
      if (has_rows(type, c.head_length))
        for (bool is_portable : {false, true}) check(type, c, shapes, false, is_portable);
}

TEST(GpuAttentionPrefill, many_tiles_equal_the_naive_version) {
  const Shapes shapes = {{700, 333}, {129, 0}, {128, 128}, {2, 900}};
  for (KvType type : kKvTypes)
    for (const Case& c : {Case{4, 2, 128, 0}, Case{4, 2, 128, 150}, Case{3, 1, 64, 0}})
      for (bool is_portable : {false, true}) check(type, c, shapes, false, is_portable);
}

// Few tiles with many keys: one tile, several, and tiles of unequal length. With fewer
// multiprocessors a block has parts of several items.
TEST(GpuAttentionPrefill, items_that_several_blocks_share_equal_the_naive_version) {
  for (const Shapes& shapes :
       {Shapes{{100, 2500}}, Shapes{{130, 1500}, {1, 700}, {37, 1000}, {2, 1}},
        Shapes{{1000, 600}}})
    for (KvType type : kKvTypes)
      for (const Case& c :
           {Case{8, 2, 128, 0}, Case{8, 2, 128, 900}, Case{3, 1, 64, 0}, Case{2, 2, 96, 0}})
        if (has_rows(type, c.head_length))
          for (const int32_t sm_count : {0, 5, 21}) check(type, c, shapes, false, false, sm_count);
}

// Pages that are converted first, for all key-value heads at a time and for fewer. The scratch
// memory of each run is all NaN before.
TEST(GpuAttentionPrefill, converted_pages_give_the_bits_of_pages_that_the_kernel_converts) {
  if (!kernels::attention_prefill_has_warpgroup(128, testing::device_launch()))
    GTEST_SKIP() << "needs code for sm_90a";
  // The last has more rows than fit into shared memory.
  Shapes crowd(9000, {0, 64});
  crowd[8500] = {300, 100};
  for (const Shapes& shapes :
       {Shapes{{700, 333}, {1, 900}, {129, 0}, {0, 64}, {128, 128}, {2, 900}}, Shapes{{300, 2500}},
        crowd})
    for (const KvType type : {KvType::kQ8_0, KvType::kFp8E4m3, KvType::kInt10})
      for (const Case& c :
           {Case{12, 3, 128, 0}, Case{8, 4, 128, 150}, Case{3, 1, 64, 0}, Case{4, 4, 96, 0}})
        for (const bool batch_invariant : {false, true}) {
          if (!has_rows(type, c.head_length)) continue;
          Random random(c.heads + c.window);
          Limits limits = make_limits(c.heads, c.kv_heads, c.head_length);
          limits.kv_type = type;
          limits.batch_invariant = batch_invariant;
          limits.max_batch_rows = static_cast<uint32_t>(std::max<size_t>(64, shapes.size()));
          if (shapes.size() > 64 && (batch_invariant || c.head_length != 64)) continue;
          Step step(shapes, pages_of(shapes), 64, random);
          Pool pool(type, 1, pages_of(shapes), c.kv_heads, c.head_length);
          fill_pool(pool, step, 0, random);
          const DeviceBytes query(
              random.normals(uint64_t{step.batch.token_count} * c.heads * c.head_length));
          DeviceStep device_step(step);
          const DevicePool device_pool(pool);
          const auto run = [&](uint32_t expanded_heads) {
            DeviceAttention device(limits);
            device_step.batch.expanded_heads = expanded_heads;
            return device.run(device_step, device_pool.pool, query, c.heads, 0.1f, c.window);
          };

          const std::vector<float> expected = run(0);

          for (uint32_t heads = 1; heads <= c.kv_heads; ++heads) {
            const std::vector<float> got = run(heads);
            SCOPED_TRACE("type " + std::to_string(static_cast<int>(type)) + ", " +
                         std::to_string(heads) + " of " + std::to_string(c.kv_heads) +
                         " heads of " + std::to_string(c.head_length));
            if (batch_invariant || heads == c.kv_heads) {
              ASSERT_EQ(std::memcmp(got.data(), expected.data(), got.size() * sizeof(float)), 0);
              continue;
            }
            // Blocks divide the keys of fewer heads at other places.
            for (size_t i = 0; i < got.size(); ++i) ASSERT_NEAR(got[i], expected[i], 2e-3) << i;
          }
        }
}

// Kernels for heads of up to 128 elements serve both; their limit of shared memory is the
// process's.
TEST(GpuAttentionPrefill, an_engine_with_shorter_heads_takes_no_shared_memory_from_another) {
  const Shapes shapes = {{100, 90}, {1, 70}};
  const Case c{8, 2, 128, 0};
  for (const KvType type : kKvTypes)
    for (const bool is_portable : {false, true}) {
      Random random(4);
      Step step(shapes, pages_of(shapes), 64, random);
      Pool pool(type, 1, pages_of(shapes), c.kv_heads, c.head_length);
      fill_pool(pool, step, 0, random);
      const DeviceBytes query(
          random.normals(uint64_t{step.batch.token_count} * c.heads * c.head_length));
      const DeviceStep device_step(step);
      const DevicePool device_pool(pool);
      DeviceAttention device(make_limits(c.heads, c.kv_heads, c.head_length));
      if (is_portable) device.launch.compute_capability = 80;
      const auto run = [&] {
        return device.run(device_step, device_pool.pool, query, c.heads, 0.1f, 0);
      };
      const std::vector<float> expected = run();

      const DeviceAttention other(make_limits(c.heads, c.kv_heads, 96));

      EXPECT_EQ(run(), expected) << "type " << static_cast<int>(type);
    }
}

TEST(GpuAttentionPrefill, rows_of_one_token_and_of_more_mix) {
  const Shapes shapes = {{1, 200}, {37, 0}, {1, 0}, {20, 50}, {66, 63}, {1, 777}};
  for (KvType type : kKvTypes)
    for (const Case& c : kCases)
      if (has_rows(type, c.head_length)) check(type, c, shapes, c.heads % 2 == 0);
}

TEST(GpuAttention, softcap_and_sinks_equal_the_naive_version) {
  const Shapes shapes = {{1, 200}, {70, 1490}, {1, 2000}, {1, 0}};
  const Case c{8, 2, 128, 0};
  constexpr float kSoftcap = 3.0f, kScale = 0.2f;
  Random random(9);
  Step step(shapes, pages_of(shapes), 64, random);
  Pool pool(KvType::kF16, 1, pages_of(shapes), c.kv_heads, c.head_length);
  fill_pool(pool, step, 0, random);
  const DecodedPool decoded(pool);
  const auto query = random.normals(uint64_t{step.batch.token_count} * c.heads * c.head_length);
  const auto sinks = random.normals(c.heads, 2.0f);
  const DeviceBytes device_sinks(sinks);
  for (bool is_portable : {false, true}) {
    DeviceAttention device(make_limits(c.heads, c.kv_heads, c.head_length));
    if (is_portable) device.launch.compute_capability = 80;

    const auto got = device.run(DeviceStep(step), DevicePool(pool).pool, DeviceBytes(query),
                                c.heads, kScale, 0, {kSoftcap, device_sinks.as<float>()});

    for (uint32_t token : {0u, 1u, 2u, 40u, 70u, 71u, 72u})
      for (uint32_t head = 0; head < c.heads; ++head) {
        const auto expected =
            naive_attention(step, decoded, c, query, kScale, token, head, kSoftcap, sinks[head]);
        for (uint32_t i = 0; i < c.head_length; ++i)
          ASSERT_NEAR(got[(uint64_t{token} * c.heads + head) * c.head_length + i], expected[i],
                      kTolerance)
              << "token " << token << " head " << head;
      }
  }
}

// Groups of rows that share pages: of two rows and of more than a tile has; alone between them.
struct SharedRows {
  uint32_t row, row_count, pages;
};
void share_pages(const std::vector<SharedRows>& groups, Step* step) {
  const uint32_t stride = step->batch.page_table_stride;
  for (const SharedRows& group : groups) {
    step->rows[group.row].shared_rows = static_cast<uint16_t>(group.row_count);
    for (uint32_t r = group.row; r < group.row + group.row_count; ++r) {
      step->rows[r].shared_pages = static_cast<uint16_t>(group.pages);
      std::copy_n(&step->page_tables[group.row * stride], group.pages,
                  &step->page_tables[r * stride]);
    }
  }
  step->batch.has_shared_prefix = true;
}

// The operand of the output projection has half of what attention otherwise writes, rounded to f16,
// at the places that the order defines, zeros up to a multiple of 256 inputs, and nothing else.
void check_operand(const Case& c, const Shapes& shapes, bool batch_invariant = false,
                   int32_t sm_count = 0, const std::vector<SharedRows>& groups = {}) {
  SCOPED_TRACE(std::to_string(c.heads) + " heads of " + std::to_string(c.head_length));
  Random random(5);
  Step step(shapes, pages_of(shapes), 64, random);
  if (!groups.empty()) share_pages(groups, &step);
  Pool pool(KvType::kF16, 1, pages_of(shapes), c.kv_heads, c.head_length);
  fill_pool(pool, step, 0, random);
  const uint32_t tokens = step.batch.token_count, cols = c.heads * c.head_length;
  const uint32_t depth = (cols + 255) / 256 * 256;
  const DeviceBytes query(random.normals(uint64_t{tokens} * cols));
  Limits limits = make_limits(c.heads, c.kv_heads, c.head_length);
  limits.batch_invariant = batch_invariant;
  DeviceAttention device(limits);
  if (sm_count != 0) device.launch.sm_count = sm_count;
  const DeviceStep device_step(step);
  const DevicePool device_pool(pool);
  const auto run = [&](const kernels::HalfOperand& operand) {
    return device.run(device_step, device_pool.pool, query, c.heads, 0.2f, c.window, {}, nullptr,
                      operand);
  };
  const std::vector<float> results = run({});
  for (const kernels::InputOrder order :
       {kernels::InputOrder::kContiguous8, kernels::InputOrder::kCross, kernels::InputOrder::kSplit,
        kernels::InputOrder::kNested})
    for (const uint32_t tile_tokens : {16u, 64u, 256u}) {
      constexpr uint16_t kUnwritten = 0xffff;
      const uint64_t size = uint64_t{tokens + tile_tokens - 1} / tile_tokens * tile_tokens * depth;
      std::vector<uint16_t> expected(size, kUnwritten);
      std::vector<float> scales(tokens, 0.0f);
      const DeviceBytes h(expected), device_scales(scales);
      for (uint32_t t = 0; t < tokens; ++t) {
        if (std::isnan(results[uint64_t{t} * cols])) continue;
        scales[t] = 2.0f;
        const uint64_t tile = uint64_t{t / tile_tokens} * (depth / 64) * tile_tokens * 64;
        for (uint32_t at = 0; at < depth; ++at) {
          const uint32_t input = at / 32 * 32 + kernels::input_of_place(order, at % 32);
          const uint32_t piece = at % 64 / 8 ^ t % 8;
          expected[tile + (uint64_t{at / 64} * tile_tokens + t % tile_tokens) * 64 + piece * 8 +
                   at % 8] =
              input < cols ? float_to_half(0.5f * results[uint64_t{t} * cols + input]) : 0;
        }
      }

      const std::vector<float> others =
          run({h.as<uint16_t>(), device_scales.as<float>(), order, tile_tokens, depth});

      ASSERT_EQ(h.read<uint16_t>(), expected)
          << "order " << static_cast<int>(order) << " tile " << tile_tokens;
      ASSERT_EQ(device_scales.read<float>(), scales);
      for (const float value : others) ASSERT_TRUE(std::isnan(value));
    }
}

TEST(GpuAttentionOperand, of_rows_of_one_token) {
  const Shapes rows = {{1, 99}, {1, 159}, {0, 64}, {1, 30}, {1, 1900}, {1, 63}, {1, 64}};
  for (const Case& c : {Case{32, 8, 128, 0}, Case{14, 2, 64, 90}, Case{8, 8, 96, 0},
                        Case{12, 1, 128, 0}, Case{4, 2, 32, 0}}) {
    // Groups and clusters of blocks, teams of warps, blocks with several heads.
    for (const int32_t sm_count : {0, 1, 2, 5}) check_operand(c, rows, false, sm_count);
    check_operand(c, rows, true);
  }
  check_operand({8, 2, 128, 0}, {{1, 3000}});
}

TEST(GpuAttentionOperand, of_prompts_and_mixed_steps) {
  if (!kernels::attention_prefill_has_warpgroup(128, testing::device_launch()))
    GTEST_SKIP() << "needs code for sm_90a";
  const Shapes rows = {{1, 200}, {37, 0}, {1, 0}, {20, 50}, {166, 63}, {1, 777}};
  for (const Case& c : {Case{8, 2, 128, 0}, Case{6, 3, 64, 90}, Case{4, 4, 96, 0}}) {
    check_operand(c, rows);
    check_operand(c, {{1, 200}, {166, 2063}});  // several blocks share an item
  }
}

TEST(GpuAttentionOperand, of_rows_that_share_pages) {
  if (!kernels::attention_prefill_has_warpgroup(128, testing::device_launch()))
    GTEST_SKIP() << "needs code for sm_90a";
  Shapes rows = {{1, 130}};
  for (uint32_t r = 0; r < 9; ++r) rows.push_back({1, 256 + 30 * r});
  for (const int32_t sm_count : {1, 5})
    check_operand({8, 2, 128, 0}, rows, false, sm_count, {{1, 9, 4}});
}

TEST(GpuAttentionDecode, shared_pages_that_are_read_once_equal_the_naive_version) {
  if (!kernels::attention_prefill_has_warpgroup(128, testing::device_launch()))
    GTEST_SKIP() << "needs code for sm_90a";
  Shapes shapes = {{1, 130}};
  for (uint32_t r = 0; r < 2; ++r) shapes.push_back({1, 640 + 63 * r});
  shapes.push_back({1, 0});
  for (uint32_t r = 0; r < 41; ++r) shapes.push_back({1, 256 + 3 * r});
  for (uint32_t r = 0; r < 3; ++r) shapes.push_back({1, 128 + 100 * r});
  const std::vector<SharedRows> groups = {{1, 2, 10}, {4, 41, 4}, {45, 3, 2}};
  for (KvType type : kKvTypes)
    for (const Case& c : {Case{8, 2, 128, 0}, Case{14, 2, 64, 0}, Case{3, 3, 128, 0}})
      for (const int32_t sm_count : {1, 5, 64}) {  // 1, 5 and up to 10 splits
        if (type != KvType::kF16 && (sm_count != 5 || c.heads == 3)) continue;
        Random random(c.heads);
        Step step(shapes, pages_of(shapes), 64, random);
        share_pages(groups, &step);
        Pool pool(type, 1, pages_of(shapes), c.kv_heads, c.head_length);
        fill_pool(pool, step, 0, random);
        const DecodedPool decoded(pool);
        const auto query =
            random.normals(uint64_t{step.batch.token_count} * c.heads * c.head_length);
        const auto sinks = random.normals(c.heads, 2.0f);
        const DeviceBytes device_sinks(sinks);
        const float scale = 1.5f / std::sqrt(static_cast<float>(c.head_length));
        DeviceAttention device(make_limits(c.heads, c.kv_heads, c.head_length));
        device.launch.sm_count = sm_count;
        const DeviceStep device_step(step);
        const DevicePool device_pool(pool);
        const DeviceBytes device_query(query);

        const auto run = [&] {
          return device.run(device_step, device_pool.pool, device_query, c.heads, scale, 0,
                            {0.0f, device_sinks.as<float>()});
        };
        const auto got = run();

        EXPECT_EQ(got, run());
        for (uint32_t token : {0u, 1u, 2u, 3u, 4u, 5u, 35u, 36u, 44u, 45u, 46u, 47u})
          for (uint32_t head = 0; head < c.heads; ++head) {
            const auto expected =
                naive_attention(step, decoded, c, query, scale, token, head, 0.0f, sinks[head]);
            for (uint32_t i = 0; i < c.head_length; ++i)
              ASSERT_NEAR(got[(uint64_t{token} * c.heads + head) * c.head_length + i], expected[i],
                          kTolerance)
                  << "token " << token << " head " << head << " type " << static_cast<int>(type);
          }
      }
}

// Results of a step on pages that depend on the row's number alone, and of its rows one at a time.
void expect_rows_alone_are_equal(const Shapes& shapes, KvType type, bool is_portable) {
  const Case c{8, 2, 128, 0};
  Random random(3);
  Limits limits = make_limits(c.heads, c.kv_heads, c.head_length);
  limits.batch_invariant = true;
  Step step(shapes, pages_of(shapes), 64, random);
  Pool pool(type, 1, pages_of(shapes), c.kv_heads, c.head_length);
  fill_pool(pool, step, 0, random);
  const uint32_t width = c.heads * c.head_length;
  const auto query = random.normals(uint64_t{step.batch.token_count} * width);
  DeviceAttention device(limits);
  if (is_portable) device.launch.compute_capability = 80;
  DevicePool device_pool(pool);
  const auto together =
      device.run(DeviceStep(step), device_pool.pool, DeviceBytes(query), c.heads, 0.1f, 0);

  for (uint32_t r = 0; r < shapes.size(); ++r) {
    Step alone = step;
    const StepRow& row = step.rows[r];
    alone.rows = {{0, row.token_count, row.first_position, r}};
    alone.token_rows.assign(row.token_count, 0);
    const uint32_t* positions = step.positions.data() + row.first_token;
    alone.positions.assign(positions, positions + row.token_count);
    const uint32_t stride = step.batch.page_table_stride;
    alone.page_tables.assign(step.page_tables.begin() + r * stride,
                             step.page_tables.begin() + (r + 1) * stride);
    alone.batch.token_count = row.token_count;
    alone.batch.row_count = 1;
    const float* own = query.data() + uint64_t{row.first_token} * width;
    const auto got =
        device.run(DeviceStep(alone), device_pool.pool,
                   DeviceBytes(std::vector<float>(own, own + uint64_t{row.token_count} * width)),
                   c.heads, 0.1f, 0);
    EXPECT_EQ(std::memcmp(got.data(), together.data() + uint64_t{row.first_token} * width,
                          got.size() * sizeof(float)),
              0)
        << "row " << r << " type " << static_cast<int>(type);
  }
}

TEST(GpuAttention, a_row_has_the_same_bits_alone_when_results_may_not_depend_on_the_batch) {
  const Shapes shapes = {{1, 700}, {40, 90}, {1, 3000}, {1, 0}, {300, 0}, {1, 511}, {1, 512}};
  for (KvType type : kKvTypes)
    for (bool is_portable : {false, true}) expect_rows_alone_are_equal(shapes, type, is_portable);
}

TEST(GpuAttention, the_same_step_gives_the_same_bits_again) {
  const Shapes shapes = {{1, 700}, {40, 2090}, {1, 3000}, {1, 0}, {300, 0}, {1, 7000}};
  const Case c{8, 2, 128, 0};
  Random random(4);
  Step step(shapes, pages_of(shapes), 64, random);
  Pool pool(KvType::kQ8_0, 1, pages_of(shapes), c.kv_heads, c.head_length);
  fill_pool(pool, step, 0, random);
  const DeviceBytes query(
      random.normals(uint64_t{step.batch.token_count} * c.heads * c.head_length));
  DeviceAttention device(make_limits(c.heads, c.kv_heads, c.head_length));
  const DeviceStep device_step(step);
  const DevicePool device_pool(pool);
  const auto first = device.run(device_step, device_pool.pool, query, c.heads, 0.1f, 0);

  for (int i = 0; i < 20; ++i) {
    const auto again = device.run(device_step, device_pool.pool, query, c.heads, 0.1f, 0);
    ASSERT_EQ(std::memcmp(first.data(), again.data(), first.size() * sizeof(float)), 0) << i;
  }
}

struct RopeCase {
  RopePairing pairing;
  uint32_t rope_dimensions;
  bool has_head_norm;
  uint32_t first_position;
  uint32_t head_length = 64;
  uint32_t row_tokens = 70;  // of the longest row
};

// One head, normed and turned.
std::vector<double> naive_head(const float* head, uint32_t n, Vector gain, float epsilon,
                               const Rope& rope, const std::vector<float>& frequencies,
                               uint32_t position) {
  std::vector<double> y(head, head + n);
  double squares = 0.0;
  for (double value : y) squares += value * value;
  if (gain != nullptr)
    for (uint32_t i = 0; i < n; ++i) y[i] *= gain[i] / std::sqrt(squares / n + epsilon);
  const uint32_t half = rope.dimension_count / 2;
  for (uint32_t i = 0; i < half; ++i) {
    const bool is_adjacent = rope.pairing == RopePairing::kAdjacent;
    double& a = y[is_adjacent ? 2 * i : i];
    double& b = y[is_adjacent ? 2 * i + 1 : half + i];
    const double angle = static_cast<double>(position) * frequencies[i];
    const double c = std::cos(angle) * rope.magnitude, s = std::sin(angle) * rope.magnitude;
    const double turned = a * c - b * s;
    b = a * s + b * c;
    a = turned;
  }
  return y;
}

// Turns a step of three rows, one of them dead, and gives back the pool and the queries.
struct RopeRun {
  static constexpr uint32_t kHeads = 3, kKvHeads = 2, kDeadToken = 2;
  Random random{11};
  Step step;
  Pool pool;
  std::vector<float> query, key, value, gain, frequencies, turned;

  RopeRun(KvType type, uint32_t n, const RopeCase& c, float size)
      : step({{2, c.first_position}, {1, 130}, {c.row_tokens, c.first_position + 3}},
             c.first_position / kPageTokens * 2 + c.row_tokens / kPageTokens + 8, 64, random),
        pool(type, 2, step.batch.page_table_stride, kKvHeads, n) {
    const uint32_t tokens = step.batch.token_count;
    query = random.normals(uint64_t{tokens} * kHeads * n, size);
    key = random.normals(uint64_t{tokens} * kKvHeads * n, size);
    value = random.normals(uint64_t{tokens} * kKvHeads * n, size);
    gain = random.normals(n);
    for (uint32_t i = 0; i < c.rope_dimensions / 2; ++i)
      frequencies.push_back(std::pow(10000.0f, -2.0f * i / c.rope_dimensions));
    frequencies.resize(128);
    step.token_rows[kDeadToken] = kernels::kDeadToken;
    DeviceStep device_step(step);
    DeviceBytes device_query(query), device_key(key), device_value(value), device_gain(gain),
        device_frequencies(frequencies), device_pool(pool.bytes);
    DeviceAttention device(make_limits(kKvHeads, kKvHeads, 64));
    RopeKvArgs args{};
    args.batch = &device_step.batch;
    args.epsilon = 1e-5f;
    if (c.has_head_norm) args.query_norm = args.key_norm = device_gain.as<float>();
    args.rope = {c.pairing, c.rope_dimensions, device_frequencies.as<float>(), 1.1f};
    args.head_count = kHeads;
    args.pool = pool.pool;
    args.pool.data = device_pool.as<uint8_t>();
    args.layer = 1;
    args.query = device_query.as<float>();
    args.key = device_key.as<float>();
    args.value = device_value.as<float>();
    EXPECT_EQ(device.attention.rope_kv(args, device.launch), cudaSuccess);
    turned = device_query.read<float>();
    pool.bytes = device_pool.read<uint8_t>();
    pool.pool.data = pool.bytes.data();
  }
  uint32_t page_of(uint32_t token) const {
    return step.page_tables[step.token_rows[token] * step.batch.page_table_stride +
                            step.positions[token] / kPageTokens];
  }
};

TEST(GpuRopeKv, equals_the_naive_version) {
  const RopeCase cases[] = {{RopePairing::kAdjacent, 64, false, 3},
                            {RopePairing::kHalves, 64, true, 60},
                            {RopePairing::kHalves, 48, true, 70},
                            {RopePairing::kAdjacent, 20, false, 1000},
                            {RopePairing::kHalves, 64, false, 1000000},
                            {RopePairing::kAdjacent, 64, false, 60},
                            {RopePairing::kAdjacent, 128, false, 60, 128},
                            {RopePairing::kHalves, 128, false, 60, 128},
                            {RopePairing::kHalves, 128, false, 3, 128},
                            // From 513 tokens on, a block has several.
                            {RopePairing::kAdjacent, 64, false, 60, 64, 600},
                            {RopePairing::kHalves, 64, false, 3, 64, 511}};
  for (const RopeCase& c : cases) {
    const uint32_t n = c.head_length;
    RopeRun run(KvType::kF16, n, c, 1.0f);
    const Rope rope{c.pairing, c.rope_dimensions, nullptr, 1.1f};
    const float* gain = c.has_head_norm ? run.gain.data() : nullptr;
    for (uint32_t t = 0; t < run.step.batch.token_count; ++t) {
      if (t == RopeRun::kDeadToken) continue;
      const uint32_t position = run.step.positions[t];
      for (uint32_t h = 0; h < RopeRun::kHeads; ++h) {
        const uint64_t at = (uint64_t{t} * RopeRun::kHeads + h) * n;
        const auto expected =
            naive_head(&run.query[at], n, gain, 1e-5f, rope, run.frequencies, position);
        // Sines within 4e-7, values of size 4 (with gains 12), two roundings.
        for (uint32_t i = 0; i < n; ++i)
          ASSERT_NEAR(run.turned[at + i], expected[i], 6e-6) << "token " << t << " element " << i;
      }
      for (uint32_t h = 0; h < RopeRun::kKvHeads; ++h) {
        const uint64_t at = (uint64_t{t} * RopeRun::kKvHeads + h) * n;
        const auto key = run.pool.read(1, run.page_of(t), false, h, position % kPageTokens);
        const auto value = run.pool.read(1, run.page_of(t), true, h, position % kPageTokens);
        const auto expected =
            naive_head(&run.key[at], n, gain, 1e-5f, rope, run.frequencies, position);
        for (uint32_t i = 0; i < n; ++i) {
          ASSERT_NEAR(key[i], expected[i], std::abs(expected[i]) * 5e-4 + 6e-6);
          ASSERT_NEAR(value[i], run.value[at + i], std::abs(run.value[at + i]) * 5e-4 + 1e-7);
        }
      }
    }
  }
}

// Steps of one token a row, where attention turns and stores on the way, against rope_kv and
// attention one after the other.
struct FusedRun {
  std::vector<float> out;
  std::vector<uint8_t> pool;
};

FusedRun run_layer(KvType type, const Case& c, const RopeCase& turn, const Shapes& shapes,
                   bool is_fused, bool is_portable, bool batch_invariant, int32_t sm_count = 0,
                   const std::vector<SharedRows>& groups = {}) {
  Random random(12);
  Step step(shapes, pages_of(shapes), 64, random);
  if (!groups.empty()) share_pages(groups, &step);
  Pool pool(type, 1, pages_of(shapes), c.kv_heads, c.head_length);
  fill_pool(pool, step, 0, random);
  const uint32_t tokens = step.batch.token_count, n = c.head_length;
  const DeviceBytes query(random.normals(uint64_t{tokens} * c.heads * n));
  const DeviceBytes key(random.normals(uint64_t{tokens} * c.kv_heads * n));
  const DeviceBytes value(random.normals(uint64_t{tokens} * c.kv_heads * n));
  const DeviceBytes gain(random.normals(n));
  std::vector<float> frequencies;
  for (uint32_t i = 0; i < turn.rope_dimensions / 2; ++i)
    frequencies.push_back(std::pow(10000.0f, -2.0f * i / turn.rope_dimensions));
  const DeviceBytes device_frequencies(frequencies);
  // What the kernel stores must not have been there before: NaN in the newest rows.
  for (const StepRow& row : step.rows)
    for (uint32_t h = 0; h < c.kv_heads; ++h)
      for (bool is_value : {false, true}) {
        const uint32_t p = row.first_position;
        const uint32_t page =
            step.page_tables[row.sequence_slot * step.batch.page_table_stride + p / kPageTokens];
        std::memset(pool.row(0, page, is_value, h, p % kPageTokens), 0xff, kv_row_bytes(type, n));
      }
  const DevicePool device_pool(pool);
  Limits limits = make_limits(c.heads, c.kv_heads, n);
  limits.batch_invariant = batch_invariant;
  DeviceAttention device(limits);
  if (is_portable) device.launch.compute_capability = 86;
  if (sm_count != 0) device.launch.sm_count = sm_count;
  DeviceStep device_step(step);
  RopeKvArgs args{};
  args.batch = &device_step.batch;
  args.epsilon = 1e-5f;
  if (turn.has_head_norm) args.query_norm = args.key_norm = gain.as<float>();
  args.rope = {turn.pairing, turn.rope_dimensions, device_frequencies.as<float>(), 1.1f};
  args.head_count = c.heads;
  args.pool = device_pool.pool;
  args.query = query.as<float>();
  args.key = key.as<float>();
  args.value = value.as<float>();
  if (!is_fused) {
    EXPECT_EQ(device.attention.rope_kv(args, device.launch), cudaSuccess);
  }
  FusedRun result;
  result.out = device.run(device_step, device_pool.pool, query, c.heads, 0.1f, c.window, {},
                          is_fused ? &args : nullptr);
  result.pool = device_pool.bytes.read<uint8_t>();
  return result;
}

TEST(GpuAttentionDecode, turns_and_stores_on_the_way_with_the_same_bits) {
  const Shapes many = {{1, 0},  {1, 62},  {1, 63},  {1, 64}, {1, 300}, {1, 1},
                       {1, 15}, {1, 128}, {1, 700}, {1, 16}, {1, 17},  {1, 255}};
  Shapes crowd;
  for (uint32_t r = 0; r < 60; ++r) crowd.push_back({1, r * r % 300});
  const RopeCase turns[] = {{RopePairing::kAdjacent, 64, false, 0},
                            {RopePairing::kHalves, 64, true, 0},
                            {RopePairing::kHalves, 48, true, 0},
                            {RopePairing::kAdjacent, 20, true, 0}};
  const Case cases[] = {{8, 2, 64, 0},   {9, 3, 64, 40}, {32, 8, 128, 0},
                        {12, 1, 128, 0}, {8, 1, 96, 0},  {4, 1, 256, 0}};
  for (KvType type : kKvTypes)
    for (uint32_t i = 0; i < std::size(cases); ++i)
      for (uint32_t mode = 0; mode < 5; ++mode) {
        const Case& c = cases[i];
        if (!has_rows(type, c.head_length)) continue;
        const RopeCase& turn = turns[(i + mode) % std::size(turns)];
        const bool is_portable = mode == 1, batch_invariant = mode == 2;
        const Shapes& shapes = mode >= 3 ? crowd : many;
        const int32_t sm_count = mode == 4 ? 7 : 0;  // blocks have several heads
        const auto apart =
            run_layer(type, c, turn, shapes, false, is_portable, batch_invariant, sm_count);
        const auto fused =
            run_layer(type, c, turn, shapes, true, is_portable, batch_invariant, sm_count);
        EXPECT_EQ(apart.pool, fused.pool);
        EXPECT_EQ(std::memcmp(apart.out.data(), fused.out.data(), apart.out.size() * sizeof(float)),
                  0)
            << "type " << static_cast<int>(type) << " heads " << c.heads << "/" << c.kv_heads
            << " length " << c.head_length << " mode " << mode << " rope " << turn.rope_dimensions;
      }
}

// Few rows, for compute-sanitizer.
TEST(GpuAttentionDecode, teams_of_warps_store_with_the_same_bits) {
  const RopeCase turn{RopePairing::kHalves, 64, true, 0};
  const Shapes rows = {{1, 99}, {1, 159}, {1, 30}, {1, 100}, {1, 63}, {1, 64}};
  for (KvType type : kKvTypes)
    for (const Case& c : {Case{32, 8, 128, 0}, Case{14, 2, 64, 0}}) {
      const auto apart = run_layer(type, c, turn, rows, false, false, false, 2);
      const auto fused = run_layer(type, c, turn, rows, true, false, false, 2);
      EXPECT_EQ(apart.pool, fused.pool);
      EXPECT_EQ(apart.out, fused.out) << c.heads;
    }
}

TEST(GpuAttentionDecode, turns_and_stores_rows_that_share_pages_with_the_same_bits) {
  if (!kernels::attention_prefill_has_warpgroup(128, testing::device_launch()))
    GTEST_SKIP() << "needs code for sm_90a";
  const RopeCase turn{RopePairing::kAdjacent, 64, true, 0};
  Shapes rows = {{1, 130}};
  for (uint32_t r = 0; r < 9; ++r) rows.push_back({1, 256 + 30 * r});
  for (KvType type : kKvTypes)
    for (const Case& c : {Case{8, 2, 128, 0}, Case{14, 2, 64, 0}, Case{8, 8, 96, 0}})
      for (const int32_t sm_count : {1, 5}) {
        if (!has_rows(type, c.head_length)) continue;
        const std::vector<SharedRows> groups = {{1, 9, 4}};
        const auto apart = run_layer(type, c, turn, rows, false, false, false, sm_count, groups);
        const auto fused = run_layer(type, c, turn, rows, true, false, false, sm_count, groups);
        EXPECT_EQ(apart.pool, fused.pool);
        EXPECT_EQ(apart.out, fused.out)
            << "type " << static_cast<int>(type) << " heads " << c.heads << " SMs " << sm_count;
      }
}

TEST(GpuAttentionDecode, turns_and_stores_in_a_single_row) {
  for (KvType type : kKvTypes)
    for (const Case& c : {Case{8, 2, 128, 0}, Case{9, 3, 64, 0}, Case{12, 1, 256, 0}})
      for (uint32_t position : {0u, 15u, 16u, 63u, 64u, 255u, 256u, 500u, 1900u, 4000u}) {
        const RopeCase turn{RopePairing::kHalves, 64, c.head_length == 64, 0};
        const auto apart = run_layer(type, c, turn, {{1, position}}, false, false, false);
        const auto fused = run_layer(type, c, turn, {{1, position}}, true, false, false);
        EXPECT_EQ(apart.pool, fused.pool);
        EXPECT_EQ(apart.out, fused.out) << "position " << position;
      }
}

TEST(GpuRopeKv, rows_have_the_bits_of_the_host_and_nothing_else_is_written) {
  for (KvType type : kKvTypes)
    for (uint32_t n : {64u, 96u, 128u, 192u, 256u}) {
      if (!has_rows(type, n)) continue;
      RopeRun run(type, n, {RopePairing::kHalves, 0, false, 50}, n == 96 ? 300.0f : 1.0f);
      Pool expected(type, 2, run.step.batch.page_table_stride, RopeRun::kKvHeads, n);
      for (uint32_t t = 0; t < run.step.batch.token_count; ++t) {
        if (t == RopeRun::kDeadToken) continue;
        for (uint32_t h = 0; h < RopeRun::kKvHeads; ++h)
          for (bool is_value : {false, true}) {
            const float* source =
                &(is_value ? run.value : run.key)[(uint64_t{t} * RopeRun::kKvHeads + h) * n];
            std::vector<float> head(source, source + n);
            if (type == KvType::kInt10 && !is_value) host::hadamard_head(head.data(), n);
            const uint32_t position = run.step.positions[t];
            host::write_kv_row(
                type, head.data(), n, position,
                expected.row(1, run.page_of(t), is_value, h, position % kPageTokens));
          }
        if (type == KvType::kInt10)
          host::hadamard_head(&run.query[uint64_t{t} * RopeRun::kHeads * n], RopeRun::kHeads * n);
      }
      EXPECT_EQ(run.turned, run.query);
      EXPECT_EQ(run.pool.bytes, expected.bytes) << "type " << static_cast<int>(type) << " " << n;
    }
}

TEST(GpuRopeKv, a_dead_token_keeps_its_query) {
  for (const RopeCase& c : {RopeCase{RopePairing::kHalves, 64, true, 60},
                            RopeCase{RopePairing::kHalves, 64, false, 60, 64, 600}}) {
    RopeRun run(KvType::kF16, 64, c, 1.0f);
    for (uint32_t i = 0; i < 3 * 64; ++i) {
      const uint64_t at = uint64_t{RopeRun::kDeadToken} * 3 * 64 + i;
      EXPECT_EQ(run.turned[at], run.query[at]);
    }
  }
}

}  // namespace
}  // namespace wcuda::ops
