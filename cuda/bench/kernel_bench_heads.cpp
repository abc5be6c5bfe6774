// Part of kernel_bench: the kernels of draft heads with the widths of 8B, of log probabilities, of
// drafts that the next step continues, of tiles of grouped tokens, and those that a model is loaded
// with.
#include <cmath>
#include <cstring>
#include <numeric>

#include "bench/kernel_bench.h"
#include "bench/random_blocks.h"
#include "kernels/linear/row_norm.h"
#include "kernels/linear/token_tiles.h"
#include "kernels/memory/scale_bound.h"
#include "kernels/sampling/token_logprobs.h"
#include "kernels/shared/numeric.h"
#include "kernels/shared/quant_blocks.h"
#include "kernels/step/continue_drafts.h"
#include "kernels/step/draft_head.h"
#include "llm/quant/repack.h"

namespace wcuda::bench {
namespace {

using namespace kernels;

constexpr uint32_t kCols = 4096, kVocabulary = 128256, kHeadVocabulary = 32000;

float value_of(uint64_t i) {
  return static_cast<float>(random_word(i) >> 40) * 0x1p-23f - 1.0f;  // -1 … 1
}
std::vector<float> random_values(uint64_t count) {
  std::vector<float> values(count);
  for (uint64_t i = 0; i < count; ++i) values[i] = value_of(i);
  return values;
}
bool is_close(float value, float expected) {
  return std::abs(value - expected) <= 1e-4f * std::max(1.0f, std::abs(expected));
}

class HeadBench : KernelBench {
 public:
  // The features of a prompt of 2,048 tokens.
  void features() {
    constexpr uint32_t kTokens = 2048, kPages = kTokens / kPagePositions;
    StepRow row{0, kTokens, 0, 0};
    row.flags = kRowFeatures;
    std::vector<uint32_t> positions(kTokens), tables(kPages);
    std::iota(positions.begin(), positions.end(), 0);
    std::iota(tables.rbegin(), tables.rend(), 0);
    StepRows step;
    step.token_count = kTokens;
    step.row_count = 1;
    step.page_table_stride = kPages;
    step.positions = device_array(positions);
    step.token_rows = device_array<uint32_t>(kTokens);
    step.rows = device_array(std::vector<StepRow>{row});
    step.page_tables = device_array(tables);
    FeaturePages pages;
    pages.page_count = kPages;
    pages.page_layer_bytes = uint64_t{2} * 8 * kPagePositions * 128 * 2;  // f16, 8 heads of 128
    pages.width = 3 * kCols;
    const uint64_t layers = feature_page_layers(pages.width, pages.page_layer_bytes);
    pages.data = device_array<uint8_t>(layers * kPages * pages.page_layer_bytes);
    const std::vector<float> x = random_values(uint64_t{kTokens} * kCols);
    KeepFeaturesArgs keep{step, pages, device_array(x), 0};
    const auto keep_third = [&](uint32_t third) {
      keep.thirds = 1u << third;
      return keep_features(keep, launch_);
    };
    for (uint32_t third = 0; third < 3; ++third) check(keep_third(third), "keep_features");
    measure("keep_features", "bf16", 9, 6.0 * kTokens * kCols,
            [&](uint32_t i) { return keep_third(i % 3); });

    ReadFeaturesArgs read{};
    read.step = step;
    read.pages = pages;
    read.page_tables = step.page_tables;
    read.page_table_stride = kPages;
    read.out = device_array<float>(uint64_t{kTokens} * pages.width);
    measure("read_features", "bf16", 8, 6.0 * kTokens * pages.width,
            [&](uint32_t) { return read_features(read, launch_); });
    const std::vector<float> out = to_host(read.out, uint64_t{kTokens} * pages.width);
    for (uint32_t t = 0; t < kTokens; t += 97)
      for (uint32_t c = 0; c < pages.width; c += 61)
        check(out[uint64_t{t} * pages.width + c] ==
                  bf16_to_float(float_to_bf16(x[uint64_t{t} * kCols + c % kCols])),
              "features");
  }

  // A draft step of 256 sequences.
  void heads() {
    constexpr uint32_t kRows = 256;
    std::vector<StepRow> rows;
    std::vector<uint32_t> token_rows(kRows);
    for (uint32_t i = 0; i < kRows; ++i) {
      rows.push_back({i, 1, 0, kRows - 1 - i});
      token_rows[i] = i;
    }
    StepRows step;
    step.token_count = step.row_count = kRows;
    step.page_table_stride = 1;
    step.positions = device_array<uint32_t>(kRows);
    step.token_rows = device_array(token_rows);
    step.rows = device_array(rows);
    step.page_tables = device_array<uint32_t>(kRows);
    const std::vector<float> x = random_values(uint64_t{kRows} * kCols);
    const std::vector<float> ones(kCols, 1.0f);
    HeadInputArgs head{};
    head.step = step;
    head.cols = kCols;
    head.embedding = head.g = head.states = device_array(x);
    head.token_norm = head.state_norm = device_array(ones);
    head.epsilon = 1e-5f;
    head.input = device_array<float>(uint64_t{kRows} * 2 * kCols);
    head.x = device_array<float>(uint64_t{kRows} * kCols);
    measure("head_input", "256 rows", 16, 4.0 * kRows * kCols * (2 * 2 + 2 + 1),
            [&](uint32_t) { return head_input(head, launch_); });
    double squares = 0;
    for (uint32_t c = 0; c < kCols; ++c) squares += double{x[c]} * x[c];
    const auto inverse = static_cast<float>(1 / std::sqrt(squares / kCols + 1e-5));
    check(is_close(to_host(head.input, 2)[1], x[1] * inverse), "head_input");
    check(to_host(head.x, 2)[1] == x[uint64_t{kRows - 1} * kCols + 1], "head_input");

    KeepStatesArgs keep{step, kCols, head.g, device_array<float>(uint64_t{kRows} * kCols)};
    measure("keep_states", "256 rows", 16, 8.0 * kRows * kCols,
            [&](uint32_t) { return keep_states(keep, launch_); });
    const std::vector<float> states = to_host(keep.states, uint64_t{kRows} * kCols);
    check(std::equal(states.end() - kCols, states.end(), x.begin()), "keep_states");
  }

  // Logits of a head's vocabulary to those of the target's, then log probabilities of tokens.
  void logits() {
    constexpr uint32_t kRows = 64;
    std::vector<int32_t> tokens(kHeadVocabulary);
    for (uint32_t i = 0; i < kHeadVocabulary; ++i) tokens[i] = static_cast<int32_t>(i * 4 + 1);
    const std::vector<float> own = random_values(uint64_t{kRows} * kHeadVocabulary);
    ScatterLogitsArgs scatter{};
    scatter.count = kRows;
    scatter.head_vocabulary = kHeadVocabulary;
    scatter.vocabulary = kVocabulary;
    scatter.logits = device_array(own);
    scatter.tokens = device_array(tokens);
    scatter.out = device_array<float>(uint64_t{kRows} * kVocabulary);
    measure("scatter_logits", "64 rows", 16, 4.0 * kRows * (kHeadVocabulary + kVocabulary),
            [&](uint32_t) { return scatter_logits(scatter, launch_); });
    const std::vector<float> out = to_host(scatter.out, kVocabulary);
    check(out[1] == own[0] && out[4 * 777 + 1] == own[777] && out[2] < -1e38f, "scatter_logits");

    const std::vector<float> values = random_values(uint64_t{kRows} * kVocabulary);
    std::vector<ScoredToken> scored(kRows);
    for (uint32_t i = 0; i < kRows; ++i) scored[i] = {static_cast<int32_t>(i * 1000), i, 0};
    TokenLogprobsArgs args;
    args.token_count = kRows;
    args.vocabulary = kVocabulary;
    args.tokens = device_array(scored);
    args.logits = device_array(values);
    args.logprobs = device_array<float>(kRows);
    args.row_statuses = device_array(std::vector<int32_t>(kRows, kRowOk));
    measure("token_logprobs", "64 rows", 16, 8.0 * kRows * kVocabulary,
            [&](uint32_t) { return token_logprobs(args, launch_); });
    double sum = 0;
    for (uint32_t i = 0; i < kVocabulary; ++i) sum += std::exp(double{values[i]});
    const auto expected = static_cast<float>(values[0] - std::log(sum));  // of token 0 in row 0
    check(is_close(to_host(args.logprobs, 1)[0], expected), "token_logprobs");

    std::vector<SampleRow> samples(kRows);
    for (uint32_t i = 0; i < kRows; ++i) {
      samples[i].is_sampled = samples[i].has_raw_logprobs = 1;
      samples[i].logits_row = samples[i].sequence_slot = i;
      samples[i].mask_row = kNoMask;
    }
    RawLogprobsArgs raw;
    raw.row_count = kRows;
    raw.vocabulary = kVocabulary;
    raw.rows = device_array(samples);
    raw.logits = args.logits;
    raw.history = device_array<int32_t>(kRows);
    raw.history_stride = 1;
    raw.statuses = args.row_statuses;
    raw.outputs = device_array(std::vector<SampleOutput>(kRows, {kRowOk, 0, 0.0f, 0}));
    measure("raw_logprobs", "64 rows", 16, 8.0 * kRows * kVocabulary,
            [&](uint32_t) { return raw_logprobs(raw, launch_); });
    check(is_close(to_host(raw.outputs, 1)[0].logprob, expected), "raw_logprobs");
  }

  // 256 sequences with three drafts each, which the next step continues.
  void drafts() {
    constexpr uint32_t kRows = 256, kDrafts = 3, kStride = 8;
    std::vector<StepRow> previous, rows;
    std::vector<uint32_t> positions(kRows, 1);
    std::vector<SampleRow> samples(kRows);
    for (uint32_t i = 0; i < kRows; ++i) {
      for (uint32_t d = 0; d <= kDrafts; ++d) previous.push_back({i * (kDrafts + 1) + d, 1, d, i});
      StepRow row{i, 1, 1, i};
      row.flags = kRowFeedSampled | kDrafts << kRowDraftsBeforeShift;
      row.depends_on = i * (kDrafts + 1);
      rows.push_back(row);
      samples[i].position = 2;
    }
    std::vector<uint8_t> block(sizeof(InputHeader));
    InputHeader header{};
    const auto append = [&](uint32_t segment, const auto& values) {
      block.resize((block.size() + 15) / 16 * 16);
      const auto bytes = static_cast<uint32_t>(values.size() * sizeof(values[0]));
      header.segments[segment] = {1, bytes, static_cast<uint32_t>(block.size()), 0};
      const auto* const data = reinterpret_cast<const uint8_t*>(values.data());
      block.insert(block.end(), data, data + bytes);
    };
    append(0, rows);
    append(1, positions);
    append(2, samples);
    std::memcpy(block.data(), &header, sizeof(header));
    ContinueDraftsArgs args;
    auto* const device_block = device_array(block);
    args.block = device_block;
    args.positions = 1;
    args.sample_rows = 2;
    args.previous_rows = device_array(previous);
    // kRowOk and equal tokens
    args.previous_statuses = device_array(std::vector<int32_t>(previous.size(), kRowOk));
    args.previous_tokens = device_array<int32_t>(previous.size());
    args.history = device_array<int32_t>(kRows * kStride);
    args.history_stride = kStride;
    check(continue_drafts(args, kRows, launch_), "continue_drafts");
    check(cudaStreamSynchronize(launch_.stream), "continue_drafts");
    std::vector<StepRow> placed(kRows);
    const std::vector<uint8_t> after = to_host(device_block, block.size());
    std::memcpy(placed.data(), after.data() + header.segments[0].offset, kRows * sizeof(StepRow));
    check(placed[7].first_position == 1 + kDrafts, "continue_drafts");
    // No draft is accepted, so that each replay finds the same rows.
    check(cudaMemcpy(device_block, block.data(), block.size(), cudaMemcpyHostToDevice), "copy");
    args.previous_tokens = device_array(std::vector<int32_t>(previous.size(), 9));
    measure("continue_drafts", "256 rows", 16, kRows * (32.0 + 12 * kDrafts),
            [&](uint32_t) { return continue_drafts(args, kRows, launch_); });
    check(to_host(device_block, block.size()) == block, "continue_drafts");
  }

  // What a layer with experts begins with, and what a model is loaded with.
  void tiles_and_bounds() {
    constexpr uint32_t kTokens = 32768, kGroups = 128, kTile = 128;
    std::vector<uint32_t> begins(kGroups + 1);
    for (uint32_t g = 0; g <= kGroups; ++g) begins[g] = g * (kTokens / kGroups);
    TokenTilesArgs args;
    args.groups = {kGroups, device_array(begins)};
    args.tokens = kTokens;
    args.tile_tokens = kTile;
    const uint32_t tiles = token_tiles_max(kTokens, kGroups, kTile);
    args.tiles = device_array<TokenTile>(tiles);
    args.places = device_array<uint32_t>(kTokens);
    measure("token_tiles", "128 of 256", 16, 4.0 * kTokens + 16.0 * tiles,
            [&](uint32_t) { return token_tiles(args, launch_); });
    check(to_host(args.places, kTokens)[kTokens - 1] == kTokens - 1, "token_tiles");

    constexpr uint32_t kRows = 14336;
    const std::vector<uint8_t> file =
        random_blocks(TensorType::kQ4_K, uint64_t{kRows} * kCols / 256);
    auto* const blocks = device_array(file);
    auto* const bound = device_array<float>(1);
    const uint64_t count = file.size() / sizeof(quant::BlockQ4_K);
    // A sector of 32 bytes of each block.
    measure("scale_bound", "Q4_K", 8, 32.0 * static_cast<double>(count),
            [&](uint32_t) { return scale_bound(blocks, count, bound, launch_.stream); });
    check(to_host(bound, 1)[0] == quant::scale_bound(TensorType::kQ4_K, file.data(), file.size()),
          "scale_bound");
    cudaFree(blocks);

    const std::vector<float> values = random_values(uint64_t{kRows} * kCols);
    auto* const matrix = device_array(values);
    auto* const result = device_array<float>(1);
    measure("row_norm_max", "f32", 8, 4.0 * kRows * kCols,
            [&](uint32_t) { return row_norm_max(matrix, kRows, kCols, result, launch_); });
    const float norm = to_host(result, 1)[0];
    check(norm > std::sqrt(kCols / 3.0f) && norm < std::sqrt(kCols / 2.0f), "row_norm_max");
    cudaFree(matrix);
  }
};

}  // namespace

void bench_draft_heads() {
  HeadBench bench;
  bench.features();
  bench.heads();
  bench.logits();
  bench.drafts();
  bench.tiles_and_bounds();
}

}  // namespace wcuda::bench
