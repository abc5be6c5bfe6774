// The host's operations against vectors of tools/golden/ops.py.
#include <gtest/gtest.h>

#include <cstdio>
#include <map>
#include <string>

#include "tests/llm/ops/host_fixture.h"

namespace wcuda::ops::host {
namespace {

constexpr uint32_t kTokens = 5, kDim = 64, kHeads = 4, kKvHeads = 2, kLength = 16, kHidden = 48;
constexpr uint32_t kFirstPosition = 62;  // the third token begins a page
constexpr float kEpsilon = 1e-5f;

class HostGolden : public ::testing::Test {
 protected:
  void SetUp() override {
    std::FILE* file = std::fopen(WCUDA_TEST_DATA "/ops.bin", "rb");
    ASSERT_NE(file, nullptr);
    char name[25] = {};
    uint32_t count;
    while (std::fread(name, 24, 1, file) == 1 && std::fread(&count, 4, 1, file) == 1) {
      const std::string text = name;
      if (text.size() > 5 && text.substr(text.size() - 5) == ".q4_1") {
        bytes_[text].resize(count);
        ASSERT_EQ(std::fread(bytes_[text].data(), 1, count, file), count);
      } else {
        floats_[text].resize(count);
        ASSERT_EQ(std::fread(floats_[text].data(), 4, count, file), count);
      }
    }
    std::fclose(file);
    for (uint32_t t = 0; t < kTokens; ++t) positions_.push_back(kFirstPosition + t);
    token_rows_.assign(kTokens, 0);
    batch_.token_count = kTokens;
    batch_.row_count = 1;
    batch_.page_table_stride = 2;
    batch_.positions = positions_.data();
    batch_.token_rows = token_rows_.data();
    batch_.rows = &row_;
    batch_.page_tables = pages_;
  }

  const float* get(const std::string& name) { return floats_.at(name).data(); }
  Weight f32(const std::string& name, uint32_t rows) {
    return {get(name), floats_.at(name).size() * 4, 0, Layout::kRows, rows, kDim};
  }
  // A Q4_1 matrix as the loader would lay it out for these kernels.
  Matrix q4_1(const std::string& name, const Kernels& kernels) {
    Matrix matrix;
    const bool has_vectors = kernels.isa != Isa::kPortable;
    const auto choice = *quant::host_weight_layout(has_vectors, 3, kHidden, kDim);
    matrix.bytes.resize(choice.bytes);
    EXPECT_TRUE(quant::pack_host(3, choice.layout, kHidden, kDim, 0, kHidden,
                                 bytes_.at(name + ".q4_1").data(), matrix.bytes.data())
                    .ok());
    matrix.weight = {matrix.bytes.data(), choice.bytes, 3, choice.layout, kHidden, kDim};
    return matrix;
  }
  void expect_near(const float* got, const std::string& name, double tolerance,
                   const Kernels& kernels) {
    const std::vector<float>& expected = floats_.at(name);
    for (size_t i = 0; i < expected.size(); ++i)
      ASSERT_NEAR(got[i], expected[i], tolerance) << kernels.name << " " << name << " at " << i;
  }
  static Limits limits() { return {8, 1, 8, 128, kDim, kDim, kHeads, kKvHeads, kLength, 64}; }

  std::map<std::string, std::vector<float>> floats_;
  std::map<std::string, std::vector<uint8_t>> bytes_;
  std::vector<uint32_t> positions_, token_rows_;
  uint32_t pages_[2] = {2, 0};
  StepRow row_{0, kTokens, kFirstPosition, 0};
  Batch batch_;
};

TEST_F(HostGolden, attention_input) {
  for (const Kernels* kernels : all_kernels())
    for (RopePairing pairing : {RopePairing::kAdjacent, RopePairing::kHalves}) {
      const std::string suffix = pairing == RopePairing::kAdjacent ? ".adjacent" : ".halves";
      Machine machine(*kernels, 2, limits());
      ASSERT_TRUE(machine.ops);
      Pool pool(KvType::kF16, 1, 3, kKvHeads, kLength);
      std::vector<float> out(kTokens * kHeads * kLength);
      AttentionInput args{};
      args.batch = &batch_;
      args.x = get("x");
      args.norm = get("norm");
      args.epsilon = kEpsilon;
      args.query = f32("wq", kHeads * kLength);
      args.key = f32("wk", kKvHeads * kLength);
      args.value = f32("wv", kKvHeads * kLength);
      args.query_bias = get("bq");
      args.key_bias = get("bk");
      args.value_bias = get("bv");
      args.query_norm = get("nq");
      args.key_norm = get("nk");
      args.rope = {pairing, 12, get("frequencies"), 1.2f};
      args.head_count = kHeads;
      args.pool = pool.pool;
      args.query_out = out.data();

      ASSERT_TRUE(run_attention_input(*machine.ops, args).ok());
      ASSERT_TRUE(machine.ops->warm_up().ok());  // legal at any time; clears the scratch
      ASSERT_TRUE(run_attention_input(*machine.ops, args).ok());

      expect_near(out.data(), "q" + suffix, 2e-5, *kernels);
      std::vector<float> keys, values;
      for (uint32_t t = 0; t < kTokens; ++t)
        for (uint32_t h = 0; h < kKvHeads; ++h) {
          const uint32_t page = pages_[positions_[t] / 64], slot = positions_[t] % 64;
          for (double k : pool.read(0, page, false, h, slot)) keys.push_back(static_cast<float>(k));
          for (double v : pool.read(0, page, true, h, slot))
            values.push_back(static_cast<float>(v));
        }
      expect_near(keys.data(), "k" + suffix, 4e-3, *kernels);  // f16 of values up to 8
      expect_near(values.data(), "v", 4e-3, *kernels);
    }
}

TEST_F(HostGolden, int10_rows_have_the_bytes_and_rotated_heads_the_values) {
  constexpr uint32_t kCount = 4, n = 128, kRowBytes = 164;
  ASSERT_EQ(floats_.at("int10.rows").size(), kCount * kRowBytes);
  for (uint32_t slot = 0; slot < kCount; ++slot) {
    std::vector<float> head(get("int10.heads") + slot * n, get("int10.heads") + (slot + 1) * n);
    uint8_t row[kRowBytes];
    write_kv_row(KvType::kInt10, head.data(), n, slot, row);
    for (uint32_t i = 0; i < kRowBytes; ++i)
      ASSERT_EQ(row[i], get("int10.rows")[slot * kRowBytes + i])
          << "slot " << slot << " byte " << i;

    float largest = 0.0f;
    for (const float value : head) largest = std::max(largest, std::abs(value));
    hadamard_head(head.data(), n);
    for (uint32_t i = 0; i < n; ++i)
      ASSERT_NEAR(head[i], get("int10.hadamard")[slot * n + i], 1e-6f * largest) << "slot " << slot;
  }
}

TEST_F(HostGolden, attention) {
  for (const Kernels* kernels : all_kernels())
    for (uint32_t window : {0u, 20u}) {
      Machine machine(*kernels, 2, limits());
      ASSERT_TRUE(machine.ops);
      Pool pool(KvType::kF16, 1, 3, kKvHeads, kLength);
      for (uint32_t p = 0; p < kFirstPosition + kTokens; ++p)
        for (uint32_t h = 0; h < kKvHeads; ++h) {
          const uint64_t offset = (uint64_t{p} * kKvHeads + h) * kLength;
          for (bool value : {false, true})
            write_kv_row(KvType::kF16, get(value ? "values" : "keys") + offset, kLength, p,
                         pool.row(0, pages_[p / 64], value, h, p % 64));
        }
      std::vector<float> out(kTokens * kHeads * kLength);

      ASSERT_TRUE(machine.ops
                      ->attention({}, {&batch_, get("query"), kHeads, 0.7f, window, pool.pool, 0,
                                       out.data()})
                      .ok());

      expect_near(out.data(), "attention." + std::to_string(window), 5e-6, *kernels);
    }
}

TEST_F(HostGolden, feed_forward_input) {
  for (const Kernels* kernels : all_kernels())
    for (Activation activation : {Activation::kSilu, Activation::kGeluTanh}) {
      Machine machine(*kernels, 2, limits());
      ASSERT_TRUE(machine.ops);
      const Matrix gate = q4_1("gate", *kernels), up = q4_1("up", *kernels);
      std::vector<float> out(kTokens * kHidden);

      LinearArgs args{};
      args.token_count = kTokens;
      args.x = get("x");
      args.norm = get("norm");
      args.epsilon = kEpsilon;
      args.weight_count = 2;
      args.weights[0] = gate.weight;
      args.weights[1] = up.weight;
      args.biases[0] = get("gate.bias");
      args.epilogue = Epilogue::kGate;
      args.activation = activation;
      args.outputs[0] = out.data();

      ASSERT_TRUE(run_linear(*machine.ops, args).ok());

      // Activations of 16 bits a block of 32; results are of size 10.
      expect_near(out.data(), activation == Activation::kSilu ? "hidden.silu" : "hidden.gelu", 2e-3,
                  *kernels);
    }
}

TEST_F(HostGolden, project_adds_to_the_residual) {
  for (const Kernels* kernels : all_kernels()) {
    Machine machine(*kernels, 2, limits());
    ASSERT_TRUE(machine.ops);
    const Matrix gate = q4_1("gate", *kernels);
    std::vector<float> residual;
    for (uint32_t t = 0; t < kTokens; ++t)
      residual.insert(residual.end(), get("x") + t * kDim, get("x") + t * kDim + kHidden);

    ASSERT_TRUE(
        project(*machine.ops, kTokens, get("h"), gate.weight, nullptr, residual.data()).ok());

    expect_near(residual.data(), "projected", 3e-4, *kernels);
  }
}

}  // namespace
}  // namespace wcuda::ops::host
