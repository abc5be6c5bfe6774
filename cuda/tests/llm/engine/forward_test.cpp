// The forward pass on the host against a decoder written out in double precision: plain, with
// soft-capped scores, attention sinks, soft-capped logits, and all of them.
#include "llm/engine/forward.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "llm/ops/host_fixture.h"

namespace wcuda::engine {
namespace {

using ops::host::Matrix;
using ops::host::Random;
using Values = std::vector<double>;

constexpr uint32_t kVocabulary = 37, kEmbedding = 48, kFeedForward = 80, kHeads = 4, kKvHeads = 2,
                   kLength = 16, kLayers = 2;

struct LayerValues {
  Matrix query, key, value, output, gate, up, down;
  std::vector<float> attention_norm, feed_forward_norm, sinks;
};

// A model of F32 weights. `weights` points into the rest.
struct TestModel {
  model::Config config;
  Matrix embedding, output;
  std::vector<float> output_norm;
  std::vector<LayerValues> layers;
  model::Weights weights;

  TestModel(const TestModel&) = delete;
  explicit TestModel(Random& random) {
    const auto matrix = [&](uint32_t rows, uint32_t cols) {
      return ops::host::random_matrix(0, rows, cols, ops::Layout::kRows, random);
    };
    const auto gains = [&] {
      auto values = random.normals(kEmbedding, 0.3f);
      for (float& value : values) value += 1.0f;
      return values;
    };
    config.layer_count = kLayers;
    config.vocabulary_size = kVocabulary;
    config.embedding_length = kEmbedding;
    config.feed_forward_length = kFeedForward;
    config.head_count = kHeads;
    config.kv_head_count = kKvHeads;
    config.head_length = config.rope_dimension_count = kLength;
    config.norm_epsilon = 1e-5f;
    config.attention_scale = 1.0f;
    config.embedding_scale = 1.5f;
    config.rope_pairing = model::RopePairing::kHalves;
    for (uint32_t i = 0; i < kLength / 2; ++i)
      config.rope_frequencies.push_back(
          std::pow(10000.0f, -2.0f * static_cast<float>(i) / kLength));

    embedding = matrix(kVocabulary, kEmbedding);
    output = matrix(kVocabulary, kEmbedding);
    output_norm = gains();
    for (uint32_t i = 0; i < kLayers; ++i)
      layers.push_back({matrix(kHeads * kLength, kEmbedding),
                        matrix(kKvHeads * kLength, kEmbedding),
                        matrix(kKvHeads * kLength, kEmbedding),
                        matrix(kEmbedding, kHeads * kLength),
                        matrix(kFeedForward, kEmbedding),
                        matrix(kFeedForward, kEmbedding),
                        matrix(kEmbedding, kFeedForward),
                        gains(),
                        gains(),
                        {}});

    weights.token_embedding = embedding.weight;
    weights.output = output.weight;
    weights.output_norm = output_norm.data();
    weights.rope_frequencies = config.rope_frequencies.data();
    for (const LayerValues& layer : layers) {
      model::LayerWeights w;
      w.attention_norm = layer.attention_norm.data();
      w.query = layer.query.weight;
      w.key = layer.key.weight;
      w.value = layer.value.weight;
      w.attention_output = layer.output.weight;
      w.feed_forward_norm = layer.feed_forward_norm.data();
      w.gate = layer.gate.weight;
      w.up = layer.up.weight;
      w.down = layer.down.weight;
      weights.layers.push_back(w);
    }
  }
  void set_sinks(Random& random) {
    for (uint32_t i = 0; i < kLayers; ++i) {
      layers[i].sinks = random.normals(kHeads, 2.0f);
      weights.layers[i].attention_sinks = layers[i].sinks.data();
    }
  }
  void clear_sinks() {
    for (uint32_t i = 0; i < kLayers; ++i) {
      layers[i].sinks.clear();
      weights.layers[i].attention_sinks = nullptr;
    }
  }
};

// ---- the decoder in double precision

Values multiply(const Matrix& matrix, const Values& x) {
  Values y(matrix.weight.rows, 0.0);
  for (size_t r = 0; r < y.size(); ++r)
    for (size_t c = 0; c < x.size(); ++c) y[r] += matrix.values[r * x.size() + c] * x[c];
  return y;
}

Values normalized(const Values& x, const std::vector<float>& gain, double epsilon) {
  double squares = 0.0;
  for (const double value : x) squares += value * value;
  Values y = x;
  for (size_t i = 0; i < y.size(); ++i)
    y[i] *= gain[i] / std::sqrt(squares / static_cast<double>(x.size()) + epsilon);
  return y;
}

Values rotated(Values heads, size_t position) {
  for (size_t head = 0; head < heads.size(); head += kLength)
    for (size_t i = 0; i < kLength / 2; ++i) {
      const double angle = static_cast<double>(position) *
                           std::pow(10000.0, -2.0 * static_cast<double>(i) / kLength);
      double &a = heads[head + i], &b = heads[head + i + kLength / 2];
      const double turned = a * std::cos(angle) - b * std::sin(angle);
      b = a * std::sin(angle) + b * std::cos(angle);
      a = turned;
    }
  return heads;
}

// As the pages hold them: f16.
Values stored(Values values) {
  for (double& value : values) value = half_to_float(float_to_half(static_cast<float>(value)));
  return values;
}

double capped(double value, double softcap) {
  return softcap == 0.0 ? value : softcap * std::tanh(value / softcap);
}

// softmax over the scores of positions 0 … `position` and the sink, times the values.
Values attention(const model::Config& config, const LayerValues& layer, const Values& query,
                 const std::vector<Values>& keys, const std::vector<Values>& values,
                 size_t position) {
  Values out(query.size(), 0.0);
  for (size_t head = 0; head < kHeads; ++head) {
    const size_t kv = head / (kHeads / kKvHeads) * kLength;
    double total = layer.sinks.empty() ? 0.0 : std::exp(layer.sinks[head]);
    for (size_t p = 0; p <= position; ++p) {
      double score = 0.0;
      for (size_t i = 0; i < kLength; ++i) score += query[head * kLength + i] * keys[p][kv + i];
      const double weight =
          std::exp(capped(score * config.attention_scale, config.attention_softcap));
      total += weight;
      for (size_t i = 0; i < kLength; ++i) out[head * kLength + i] += weight * values[p][kv + i];
    }
    for (size_t i = 0; i < kLength; ++i) out[head * kLength + i] /= total;
  }
  return out;
}

// (tokens, vocabulary) logits of each token of one sequence.
std::vector<Values> expected_logits(const TestModel& m, const std::vector<int32_t>& tokens) {
  const double epsilon = m.config.norm_epsilon;
  std::vector<Values> x;
  for (const int32_t token : tokens) {
    const auto row = m.embedding.values.begin() + token * static_cast<int32_t>(kEmbedding);
    x.emplace_back(row, row + kEmbedding);
    for (double& value : x.back()) value *= m.config.embedding_scale;
  }
  for (const LayerValues& layer : m.layers) {
    std::vector<Values> keys, values;
    for (size_t t = 0; t < x.size(); ++t) {
      const Values h = normalized(x[t], layer.attention_norm, epsilon);
      keys.push_back(stored(rotated(multiply(layer.key, h), t)));
      values.push_back(stored(multiply(layer.value, h)));
      const Values query = rotated(multiply(layer.query, h), t);
      const Values sum = multiply(layer.output, attention(m.config, layer, query, keys, values, t));
      for (size_t i = 0; i < kEmbedding; ++i) x[t][i] += sum[i];

      const Values g = normalized(x[t], layer.feed_forward_norm, epsilon);
      Values gate = multiply(layer.gate, g);
      const Values up = multiply(layer.up, g);
      for (size_t i = 0; i < kFeedForward; ++i) gate[i] *= up[i] / (1.0 + std::exp(-gate[i]));
      const Values down = multiply(layer.down, gate);
      for (size_t i = 0; i < kEmbedding; ++i) x[t][i] += down[i];
    }
  }
  for (Values& row : x) {
    row = multiply(m.output, normalized(row, m.output_norm, epsilon));
    for (double& logit : row) logit = capped(logit, m.config.logit_softcap);
  }
  return x;
}

// ---- the forward pass

// One sequence, in steps; pages poisoned until written.
class Sequence {
 public:
  Sequence(const TestModel& model, const ops::host::Kernels& kernels)
      : model_(model),
        machine_(kernels, 2, limits()),
        pool_(ops::KvType::kF16, kLayers, 2, kKvHeads, kLength) {}

  // Logits of the last token.
  std::vector<float> step(const std::vector<int32_t>& tokens) {
    const auto count = static_cast<uint32_t>(tokens.size()), first = length_;
    length_ += count;
    std::vector<uint32_t> positions;
    for (uint32_t i = 0; i < count; ++i) positions.push_back(first + i);
    const std::vector<uint32_t> token_rows(count, 0), pages{1, 0}, logits_indices{count - 1};
    const ops::StepRow row{0, count, first, 0};
    ops::Batch batch;
    batch.token_count = batch.max_row_tokens = count;
    batch.row_count = 1;
    batch.page_table_stride = 2;
    batch.max_positions = length_;
    batch.tokens = tokens.data();
    batch.positions = positions.data();
    batch.token_rows = token_rows.data();
    batch.rows = &row;
    batch.page_tables = pages.data();

    const auto memory = [count](uint32_t width) { return std::vector<float>(count * width, NAN); };
    auto x = memory(kEmbedding), query = memory(kHeads * kLength), key = memory(kKvHeads * kLength),
         value = memory(kKvHeads * kLength), attention = memory(kHeads * kLength),
         hidden = memory(kFeedForward);
    std::vector<float> logits(kVocabulary, NAN);
    StepArgs args;
    args.batch = &batch;
    args.pool = pool_.pool;
    args.activations = {x.data(),     query.data(),     key.data(),
                        value.data(), attention.data(), hidden.data()};
    args.logits_indices = logits_indices.data();
    args.logits = logits.data();
    const ops::StepPlan plan =
        ops::plan_step(model_.config, model_.weights, machine_.limits, machine_.ops->device(),
                       {count, 1, 1, count, count, length_});
    const Status status = forward(model_.config, model_.weights, *machine_.ops, plan, args);
    EXPECT_TRUE(status.ok()) << status.message();
    return logits;
  }

 private:
  static ops::Limits limits() {
    ops::Limits limits{};
    limits.max_batch_tokens = limits.max_sequence_tokens = 128;
    limits.max_batch_rows = limits.max_logits_rows = 1;
    limits.embedding_length = kEmbedding;
    limits.feed_forward_length = kFeedForward;
    limits.head_count = kHeads;
    limits.kv_head_count = kKvHeads;
    limits.head_length = kLength;
    limits.vocabulary_size = kVocabulary;
    return limits;
  }

  const TestModel& model_;
  ops::host::Machine machine_;
  ops::host::Pool pool_;
  uint32_t length_ = 0;
};

struct SoftcapCase {
  const char* name;
  float attention_softcap;
  bool has_sinks;
  float logit_softcap;
};
constexpr SoftcapCase kCases[] = {{"none", 0.0f, false, 0.0f},
                                  {"softcap of scores", 1.5f, false, 0.0f},
                                  {"sinks", 0.0f, true, 0.0f},
                                  {"softcap of logits", 0.0f, false, 0.6f},
                                  {"all", 1.5f, true, 0.6f}};

// Sums of f32 and rounding of keys and values near the middle of two f16 numbers.
constexpr double kTolerance = 1e-3;

TEST(Forward, softcaps_and_sinks_equal_a_decoder_in_double_precision) {
  constexpr uint32_t kPrompt = 70;  // reaches into the second page
  Random random(11);
  TestModel model(random);
  std::vector<int32_t> tokens;
  while (tokens.size() < kPrompt + 2) tokens.push_back(static_cast<int32_t>(random.below(37)));
  const std::vector<Values> plain = expected_logits(model, tokens);
  for (const SoftcapCase& c : kCases) {
    SCOPED_TRACE(c.name);
    model.config.attention_softcap = c.attention_softcap;
    model.config.logit_softcap = c.logit_softcap;
    model.clear_sinks();
    if (c.has_sinks) model.set_sinks(random);
    const std::vector<Values> expected = expected_logits(model, tokens);
    for (const ops::host::Kernels* kernels : ops::host::all_kernels()) {
      SCOPED_TRACE(kernels->name);
      Sequence sequence(model, *kernels);
      double change = 0.0;
      for (uint32_t done = 0; done < tokens.size();) {
        const uint32_t count = done == 0 ? kPrompt : 1;
        const auto logits = sequence.step({tokens.begin() + done, tokens.begin() + done + count});
        done += count;
        for (size_t i = 0; i < kVocabulary; ++i) {
          ASSERT_NEAR(logits[i], expected[done - 1][i], kTolerance) << done << " tokens, " << i;
          change = std::max(change, std::fabs(logits[i] - plain[done - 1][i]));
        }
      }
      if (c.has_sinks || c.attention_softcap != 0.0f || c.logit_softcap != 0.0f) {
        EXPECT_GT(change, 20 * kTolerance) << "the case computes what the plain model does";
      }
    }
  }
}

}  // namespace
}  // namespace wcuda::engine
