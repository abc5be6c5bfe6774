// Attention and its inputs against naive versions in double precision.
#include <gtest/gtest.h>

#include "tests/llm/ops/host_fixture.h"

namespace wcuda::ops::host {
namespace {

constexpr KvType kKvTypes[] = {KvType::kF16, KvType::kQ8_0, KvType::kFp8E4m3, KvType::kInt10};

Limits small_limits(uint32_t heads, uint32_t kv_heads, uint32_t head_length) {
  Limits limits{};
  limits.max_batch_tokens = 256;
  limits.max_batch_rows = 8;
  limits.max_logits_rows = 8;
  limits.max_sequence_tokens = 1024;
  limits.embedding_length = 96;
  limits.feed_forward_length = 160;
  limits.head_count = heads;
  limits.kv_head_count = kv_heads;
  limits.head_length = head_length;
  limits.vocabulary_size = 64;
  return limits;
}

// softmax(scale * q·k)·v of one query head of one token.
std::vector<double> naive_attention(const AttentionArgs& args, const Pool& pool, uint32_t token,
                                    uint32_t head) {
  const Batch& batch = *args.batch;
  const uint32_t n = pool.pool.head_length;
  const uint32_t kv_head = head / (args.head_count / pool.pool.head_count);
  const float* query = args.query + (uint64_t{token} * args.head_count + head) * n;
  const uint32_t position = batch.positions[token];
  const uint32_t first =
      args.window != 0 && position + 1 > args.window ? position + 1 - args.window : 0;
  std::vector<double> scores, out(n, 0.0);
  double largest = -INFINITY, total = 0.0;
  const auto page_of = [&](uint32_t p) {
    return batch.page_tables[batch.token_rows[token] * batch.page_table_stride + p / kPageTokens];
  };
  for (uint32_t p = first; p <= position; ++p) {
    const auto key = pool.read(args.layer, page_of(p), false, kv_head, p % kPageTokens);
    double score = 0.0;
    for (uint32_t i = 0; i < n; ++i) score += key[i] * query[i];
    score *= args.scale;
    scores.push_back(args.softcap == 0.0f ? score : args.softcap * std::tanh(score / args.softcap));
    largest = std::max(largest, scores.back());
  }
  if (args.sinks != nullptr) {
    largest = std::max(largest, static_cast<double>(args.sinks[head]));
    total = std::exp(args.sinks[head] - largest);
  }
  for (double& score : scores) total += score = std::exp(score - largest);
  for (uint32_t p = first; p <= position; ++p) {
    const auto value = pool.read(args.layer, page_of(p), true, kv_head, p % kPageTokens);
    for (uint32_t i = 0; i < n; ++i) out[i] += scores[p - first] / total * value[i];
  }
  return out;
}

struct AttentionCase {
  uint32_t heads, kv_heads, head_length, window;
};

TEST(HostAttention, equals_the_naive_version_on_poisoned_pages) {
  const AttentionCase cases[] = {{9, 3, 64, 0},   {4, 4, 32, 5},  {6, 2, 96, 70},
                                 {2, 1, 128, 64}, {3, 1, 160, 1}, {3, 1, 192, 30}};
  for (KvType type : kKvTypes)
    for (const AttentionCase& c : cases) {
      if (kv_row_bytes(type, c.head_length) == 0) continue;
      Random random(c.heads * 100 + c.window);
      // One decoded token, a first prompt, chunks that begin inside a page and at its last slot.
      Step step({{1, 200}, {37, 0}, {1, 0}, {20, 50}, {66, 63}}, 16, 64, random);
      Pool pool(type, 2, 16, c.kv_heads, c.head_length);
      fill_pool(pool, step, 1, random);
      const uint64_t floats = uint64_t{step.batch.token_count} * c.heads * c.head_length;
      const auto query = random.normals(floats);
      std::vector<float> out(floats);
      const AttentionArgs args{&step.batch, query.data(), c.heads, 0.3f,
                               c.window,    pool.pool,    1,       out.data()};
      std::vector<double> expected;
      for (uint32_t token = 0; token < step.batch.token_count; ++token)
        for (uint32_t head = 0; head < c.heads; ++head) {
          const auto of_head = naive_attention(args, pool, token, head);
          expected.insert(expected.end(), of_head.begin(), of_head.end());
        }
      for (const Kernels* kernels : all_kernels()) {
        Machine machine(*kernels, 2, small_limits(c.heads, c.kv_heads, c.head_length));
        ASSERT_TRUE(machine.ops);
        std::fill(out.begin(), out.end(), NAN);

        ASSERT_TRUE(machine.ops->attention({}, args).ok());

        // f32 sums of up to 200 terms of size 1.
        for (uint64_t i = 0; i < floats; ++i)
          ASSERT_NEAR(out[i], expected[i], 2e-5)
              << kernels->name << " type " << static_cast<int>(type) << " window " << c.window
              << " length " << c.head_length << " token " << i / c.head_length / c.heads << " head "
              << i / c.head_length % c.heads;
      }
    }
}

TEST(HostAttention, softcap_and_sinks_equal_the_naive_version) {
  for (const Kernels* kernels : all_kernels()) {
    Random random(9);
    Machine machine(*kernels, 2, small_limits(6, 2, 64));
    ASSERT_TRUE(machine.ops);
    Step step({{1, 200}, {37, 0}, {20, 50}}, 16, 64, random);
    Pool pool(KvType::kF16, 2, 16, 2, 64);
    fill_pool(pool, step, 1, random);
    const uint64_t floats = uint64_t{step.batch.token_count} * 6 * 64;
    const auto query = random.normals(floats, 2.0f), sinks = random.normals(6, 3.0f);
    std::vector<float> out(floats, NAN);
    AttentionArgs args{&step.batch, query.data(), 6, 0.3f, 0, pool.pool, 1, out.data()};
    args.softcap = 4.0f;
    args.sinks = sinks.data();

    ASSERT_TRUE(machine.ops->attention({}, args).ok());

    for (uint32_t token = 0; token < step.batch.token_count; ++token)
      for (uint32_t head = 0; head < 6; ++head) {
        const auto expected = naive_attention(args, pool, token, head);
        for (uint32_t i = 0; i < 64; ++i)
          ASSERT_NEAR(out[(uint64_t{token} * 6 + head) * 64 + i], expected[i], 2e-5)
              << kernels->name << " token " << token << " head " << head;
      }
  }
}

TEST(HostSoftcap, bounds_each_value) {
  Machine machine(best_kernels(), 2, small_limits(1, 1, 32));
  ASSERT_TRUE(machine.ops);
  Random random(10);
  const auto before = random.normals(10000, 40.0f);
  auto values = before;

  ASSERT_TRUE(machine.ops->softcap({}, {values.data(), values.size(), 30.0f}).ok());

  for (size_t i = 0; i < values.size(); ++i)
    ASSERT_NEAR(values[i], 30.0 * std::tanh(before[i] / 30.0), 1e-5);
}

TEST(HostAttention, large_scores_do_not_overflow) {
  for (const Kernels* kernels : all_kernels()) {
    Random random(5);
    Machine machine(*kernels, 2, small_limits(1, 1, 32));
    ASSERT_TRUE(machine.ops);
    Step step({{1, 130}}, 4, 64, random);
    Pool pool(KvType::kF16, 1, 4, 1, 32);
    fill_pool(pool, step, 0, random);
    const auto query = random.normals(32, 1000.0f);
    std::vector<float> out(32, NAN);
    const AttentionArgs args{&step.batch, query.data(), 1, 1.0f, 0, pool.pool, 0, out.data()};

    ASSERT_TRUE(machine.ops->attention({}, args).ok());

    const auto expected = naive_attention(args, pool, 0, 0);
    for (uint32_t i = 0; i < 32; ++i) EXPECT_NEAR(out[i], expected[i], 1e-3) << kernels->name;
  }
}

TEST(HostAttention, a_row_is_the_same_whatever_else_is_in_the_step) {
  for (const Kernels* kernels : all_kernels()) {
    Random random(6);
    Machine machine(*kernels, 2, small_limits(4, 2, 64));
    ASSERT_TRUE(machine.ops);
    Step both({{21, 100}, {40, 7}}, 8, 64, random);
    Pool pool(KvType::kF16, 1, 8, 2, 64);
    fill_pool(pool, both, 0, random);
    const auto query = random.normals(61 * 256);
    std::vector<float> out(61 * 256), alone(40 * 256);
    ASSERT_TRUE(
        machine.ops
            ->attention({}, {&both.batch, query.data(), 4, 0.1f, 0, pool.pool, 0, out.data()})
            .ok());
    Batch batch = both.batch;
    StepRow row{0, 40, 7, 0};
    batch.token_count = 40;
    batch.row_count = 1;
    batch.rows = &row;
    batch.page_tables += batch.page_table_stride;

    ASSERT_TRUE(machine.ops
                    ->attention({}, {&batch, query.data() + 21 * 256, 4, 0.1f, 0, pool.pool, 0,
                                     alone.data()})
                    .ok());

    EXPECT_EQ(std::memcmp(alone.data(), out.data() + 21 * 256, alone.size() * 4), 0);
  }
}

// A prompt in one step and the same tokens one by one give the same bits.
TEST(HostAttention, a_token_is_the_same_in_any_chunk_of_its_row) {
  for (const Kernels* kernels : all_kernels())
    for (uint32_t window : {0u, 33u}) {
      Random random(7);
      Machine machine(*kernels, 2, small_limits(3, 1, 96));
      ASSERT_TRUE(machine.ops);
      Step step({{50, 100}}, 4, 64, random);
      Pool pool(KvType::kQ8_0, 1, 4, 1, 96);
      fill_pool(pool, step, 0, random);
      const auto query = random.normals(50 * 288);
      std::vector<float> out(50 * 288), alone(288);
      const AttentionArgs all{&step.batch, query.data(), 3, 0.1f, window, pool.pool, 0, out.data()};
      ASSERT_TRUE(machine.ops->attention({}, all).ok());
      for (uint32_t t = 0; t < 50; ++t) {
        Batch batch = step.batch;
        const StepRow row{0, 1, 100 + t, 0};
        batch.token_count = 1;
        batch.rows = &row;

        ASSERT_TRUE(machine.ops
                        ->attention({}, {&batch, query.data() + t * 288, 3, 0.1f, window, pool.pool,
                                         0, alone.data()})
                        .ok());

        EXPECT_EQ(std::memcmp(alone.data(), out.data() + t * 288, 288 * 4), 0)
            << kernels->name << " token " << t;
      }
    }
}

struct InputCase {
  RopePairing pairing;
  uint32_t rope_dimensions;
  bool has_bias;
  bool has_head_norm;
};

// One head of naive Wx + b, normed and turned.
std::vector<double> naive_head(const AttentionInput& args, const Matrix& matrix, Vector bias,
                               Vector head_norm, bool turns, uint32_t token, uint32_t head) {
  const uint32_t n = args.pool.head_length;
  const uint32_t dim = matrix.weight.cols;
  const float* x = args.x + uint64_t{token} * dim;
  double squares = 0.0;
  for (uint32_t i = 0; i < dim; ++i) squares += static_cast<double>(x[i]) * x[i];
  const double factor = 1.0 / std::sqrt(squares / dim + args.epsilon);
  std::vector<double> y(n);
  double head_squares = 0.0;
  for (uint32_t r = 0; r < n; ++r) {
    const float* row = matrix.values.data() + (uint64_t{head} * n + r) * dim;
    y[r] = bias ? bias[head * n + r] : 0.0;
    for (uint32_t i = 0; i < dim; ++i) y[r] += row[i] * (x[i] * factor * args.norm[i]);
    head_squares += y[r] * y[r];
  }
  if (head_norm)
    for (uint32_t r = 0; r < n; ++r)
      y[r] *= head_norm[r] / std::sqrt(head_squares / n + args.epsilon);
  const uint32_t half = args.rope.dimension_count / 2;
  for (uint32_t i = 0; turns && i < half; ++i) {
    const bool adjacent = args.rope.pairing == RopePairing::kAdjacent;
    double& a = y[adjacent ? 2 * i : i];
    double& b = y[adjacent ? 2 * i + 1 : half + i];
    const double angle =
        static_cast<double>(args.batch->positions[token]) * args.rope.frequencies[i];
    const double c = std::cos(angle) * args.rope.magnitude;
    const double s = std::sin(angle) * args.rope.magnitude;
    const double turned = a * c - b * s;
    b = a * s + b * c;
    a = turned;
  }
  if (!turns || args.pool.format != KvType::kInt10) return y;
  std::vector<double> mixed(y.size());
  for (size_t i = 0; i < y.size(); ++i)
    for (size_t j = i / 64 * 64; j < i / 64 * 64 + 64; ++j)
      mixed[i] += __builtin_parityll(i & j) ? -y[j] / 8 : y[j] / 8;
  return mixed;
}

TEST(HostAttentionInput, equals_the_naive_version) {
  const InputCase cases[] = {{RopePairing::kAdjacent, 64, false, false},
                             {RopePairing::kHalves, 64, true, false},
                             {RopePairing::kHalves, 48, false, true},
                             {RopePairing::kAdjacent, 20, true, true},
                             {RopePairing::kAdjacent, 0, false, false}};
  constexpr uint32_t kHeads = 3, kKvHeads = 1, kLength = 64, kDim = 96;
  for (const Kernels* kernels : all_kernels())
    for (KvType type : kKvTypes)
      for (const InputCase& c : cases) {
        Random random(c.rope_dimensions + 1);
        Machine machine(*kernels, 2, small_limits(kHeads, kKvHeads, kLength));
        ASSERT_TRUE(machine.ops);
        Step step({{1, 130}, {70, 3}}, 8, 64, random);
        Pool pool(type, 2, 8, kKvHeads, kLength);
        const Matrix query =
            random_matrix(TensorType::kF32, kHeads * kLength, kDim, Layout::kRows, random);
        const Matrix key = random_matrix(TensorType::kQ4_1, kLength, kDim, Layout::kHost16, random);
        const Matrix value = random_matrix(TensorType::kQ8_0, kLength, kDim, Layout::kRows, random);
        const auto x = random.normals(71 * kDim, 3.0f), norm = random.normals(kDim);
        const auto bias = random.normals(kHeads * kLength), head_norm = random.normals(kLength);
        auto frequencies = random.normals(32);
        std::vector<float> out(71 * kHeads * kLength, NAN);
        AttentionInput args{};
        args.batch = &step.batch;
        args.x = x.data();
        args.norm = norm.data();
        args.epsilon = 1e-5f;
        args.query = query.weight;
        args.key = key.weight;
        args.value = value.weight;
        if (c.has_bias) args.query_bias = args.key_bias = args.value_bias = bias.data();
        if (c.has_head_norm) args.query_norm = args.key_norm = head_norm.data();
        args.rope = {c.pairing, c.rope_dimensions, frequencies.data(), 1.1f};
        args.head_count = kHeads;
        args.pool = pool.pool;
        args.layer = 1;
        args.query_out = out.data();

        ASSERT_TRUE(run_attention_input(*machine.ops, args).ok());

        for (uint32_t t = 0; t < step.batch.token_count; ++t) {
          for (uint32_t h = 0; h < kHeads; ++h) {
            const auto expected =
                naive_head(args, query, args.query_bias, args.query_norm, true, t, h);
            for (uint32_t i = 0; i < kLength; ++i)
              ASSERT_NEAR(out[(t * kHeads + h) * kLength + i], expected[i], 2e-4)
                  << kernels->name << " token " << t << " element " << i;
          }
          const uint32_t page = step.page_tables[step.token_rows[t] * 8 + step.positions[t] / 64];
          const auto k = pool.read(1, page, false, 0, step.positions[t] % 64);
          const auto v = pool.read(1, page, true, 0, step.positions[t] % 64);
          const auto k_expected = naive_head(args, key, args.key_bias, args.key_norm, true, t, 0);
          const auto v_expected = naive_head(args, value, args.value_bias, nullptr, false, t, 0);
          double largest = 0.0;
          for (uint32_t i = 0; i < kLength; ++i)
            largest = std::max({largest, std::abs(k_expected[i]), std::abs(v_expected[i])});
          for (uint32_t i = 0; i < kLength; ++i) {
            // f16 keeps 11 bits, q8_0 and int10 8 and 10 bits of the block's largest, e4m3 4 bits.
            const double part = type == KvType::kFp8E4m3 ? 0.07 : 1e-3;
            const double whole = type == KvType::kQ8_0    ? largest * 0.0045
                                 : type == KvType::kInt10 ? largest * 0.0016
                                                          : 2e-3;
            ASSERT_NEAR(k[i], k_expected[i], std::abs(k_expected[i]) * part + whole);
            ASSERT_NEAR(v[i], v_expected[i], std::abs(v_expected[i]) * part + whole);
          }
        }
      }
}

TEST(HostKvRows, q8_0_is_within_half_a_step_and_keeps_nan) {
  Random random(8);
  auto values = random.normals(64, 4.0f);
  uint8_t row[68];

  write_kv_row(KvType::kQ8_0, values.data(), 64, 0, row);

  for (uint32_t i = 0; i < 64; ++i) {
    uint16_t half;
    std::memcpy(&half, row + i / 32 * 34, 2);
    const float scale = half_to_float(half);
    const float got = scale * static_cast<int8_t>(row[i / 32 * 34 + 2 + i % 32]);
    EXPECT_LE(std::abs(got - values[i]), scale * 0.5625f);  // the scale itself is rounded
  }
  values[40] = INFINITY;
  write_kv_row(KvType::kQ8_0, values.data(), 64, 0, row);
  uint16_t half;
  std::memcpy(&half, row + 34, 2);
  EXPECT_TRUE(std::isnan(half_to_float(half)));
}

TEST(HostKvRows, int10_is_within_half_a_step_and_keeps_nan) {
  constexpr uint32_t n = 192;
  Random random(9);
  const auto values = random.normals(n, 4.0f);
  Pool pool(KvType::kInt10, 1, 1, 1, n);
  for (uint32_t slot = 0; slot < 4; ++slot) {
    write_kv_row(KvType::kInt10, values.data(), n, slot, pool.row(0, 0, false, 0, slot));
    const auto got = pool.read(0, 0, false, 0, slot);
    for (uint32_t i = 0; i < n; ++i) {
      float largest = 0.0f;
      for (uint32_t j = i / 64 * 64; j < i / 64 * 64 + 64; ++j)
        largest = std::max(largest, std::abs(values[j]));
      EXPECT_LE(std::abs(got[i] - values[i]),
                largest / 511 * 0.78f);  // the scale itself is rounded
    }
  }
  auto bad = values;
  bad[70] = NAN;
  write_kv_row(KvType::kInt10, bad.data(), n, 5, pool.row(0, 0, false, 0, 5));
  const auto got = pool.read(0, 0, false, 0, 5);
  for (uint32_t i = 0; i < n; ++i) EXPECT_EQ(std::isnan(got[i]), i / 64 == 1) << i;
}

TEST(HostKvRows, row_bytes_follow_the_type) {
  EXPECT_EQ(kv_row_bytes(KvType::kF16, 80), 160u);
  EXPECT_EQ(kv_row_bytes(KvType::kQ8_0, 96), 102u);
  EXPECT_EQ(kv_row_bytes(KvType::kQ8_0, 80), 0u);
  EXPECT_EQ(kv_row_bytes(KvType::kFp8E4m3, 80), 80u);
  EXPECT_EQ(kv_row_bytes(KvType::kInt10, 128), 164u);
  EXPECT_EQ(kv_row_bytes(KvType::kInt10, 96), 0u);
  EXPECT_EQ(kv_row_bytes(static_cast<KvType>(7), 64), 0u);
}

}  // namespace
}  // namespace wcuda::ops::host
