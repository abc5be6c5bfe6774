// Speed of the kernels that no other bench has: embed, repack, half_input, packed_gemm of this
// build (packed_gemm_mma without code for sm_90a), the fused layers, the small kernels of a step,
// pad_matrix, expand_vector, and those of draft heads.
// Each result is checked first; prints the least and the median time of a launch in a graph of many
// over memory beyond L2, and GB/s or TFLOP/s with the share of the limit.
#include "bench/kernel_bench.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <vector>

#include "bench/random_blocks.h"
#include "kernels/attention/attention_plan.h"
#include "kernels/linear/fused_layers.h"
#include "kernels/linear/half_input.h"
#include "kernels/linear/linear_vector.h"
#include "kernels/linear/packed_gemm.h"
#include "kernels/memory/pad_matrix.h"
#include "kernels/memory/repack.h"
#include "kernels/ptx/code.h"
#include "kernels/shared/kv_pages.h"
#include "kernels/shared/packed_tile.h"
#include "kernels/step/embed.h"
#include "kernels/step/hidden_state.h"
#include "kernels/step/input_scatter.h"
#include "kernels/step/softcap.h"
#include "kernels/step/step.h"
#include "llm/quant/format.h"
#include "llm/quant/layout_gpu.h"

namespace {

using namespace wcuda;
using namespace wcuda::kernels;
using bench::check, bench::device_array, bench::to_host;

constexpr uint64_t kPoolBytes = 2ull << 30;

class Bench : bench::KernelBench {
 public:
  using KernelBench::kRepeats;

  // A matrix of 8B's feed-forward layers, of one type.
  void matrix(TensorType type) {
    constexpr uint32_t kRows = 14336, kCols = 4096;
    const quant::Format& format = *quant::find_format(type);
    const uint64_t row_bytes = uint64_t{kCols} / format.block_elements * format.block_bytes;
    const uint64_t file_bytes = kRows * row_bytes;
    const uint64_t tile_bytes = kRows / 16 * quant::tile_layout(type).m_tile_bytes(kCols);
    const auto count = static_cast<uint32_t>(kPoolBytes / std::max(file_bytes, tile_bytes));
    const std::vector<uint8_t> file =
        bench::random_blocks(type, uint64_t{kRows} * kCols / format.block_elements);
    auto* const files = device_array<uint8_t>(count * file_bytes);
    auto* const tiles = device_array<uint8_t>(count * tile_bytes);
    for (uint32_t i = 0; i < count; ++i)
      check(cudaMemcpy(files + i * file_bytes, file.data(), file_bytes, cudaMemcpyHostToDevice),
            "copy");
    const double moved = static_cast<double>(file_bytes + tile_bytes);
    measure("repack", format.name, count, moved, [&](uint32_t i) {
      return repack(type, kRows, kCols, 0, kRows, files + i * file_bytes, tiles + i * tile_bytes,
                    launch_.stream);
    });
    std::vector<uint8_t> packed(tile_bytes);
    check(quant::pack_gpu(type, kRows, kCols, 0, kRows, file.data(), packed.data()).ok() &&
              to_host(tiles, tile_bytes) == packed,
          "repack");
    cudaFree(files);

    auto* const floats = device_array<float>(uint64_t{kRows} * kCols);
    const auto matrix_at = [&](uint32_t i) {
      return Matrix{tiles + i * tile_bytes, type, kRows, kCols};
    };
    std::vector<float> expected(kCols);
    check(quant::unpack_row(format, file.data() + 7 * row_bytes, kCols, expected.data()).ok(),
          "unpack_row");
    constexpr uint32_t kTokens = 512;
    std::vector<int32_t> tokens(kTokens);
    for (uint32_t t = 0; t < kTokens; ++t) tokens[t] = static_cast<int32_t>(t * 7919 % kRows);
    tokens[0] = 7;
    auto* const ids = device_array<int32_t>(kTokens);
    check(cudaMemcpy(ids, tokens.data(), kTokens * 4, cudaMemcpyHostToDevice), "copy");
    measure("embed 512 tokens", format.name, count, kTokens * (row_bytes + 4.0 * kCols),
            [&](uint32_t i) { return embed(ids, kTokens, matrix_at(i), 1.0f, floats, launch_); });
    check(to_host(floats, kCols) == expected, "embed");

    // x of each token is the row that embed wrote for it, so that token 0 times row 7 is a square.
    LinearArgs args;
    args.tokens = kTokens;
    args.x = floats;
    args.matrix_count = 1;
    args.outputs[0] = device_array<float>(uint64_t{kTokens} * kRows);
    const uint64_t input_bytes = packed_gemm_input_bytes(kCols, kTokens);
    auto* const input = device_array<uint8_t>(input_bytes);
    launch_.scratch_bytes = packed_gemm_scratch_bytes(launch_);
    launch_.scratch = device_array<uint8_t>(launch_.scratch_bytes);
    args.matrices[0] = matrix_at(0);
    if (packed_gemm_supports(args, launch_)) {
      double square = 0;
      for (const float value : expected) square += double(value) * value;
      measure(
          has_warpgroup_code() ? "packed_gemm" : "packed_gemm_mma", format.name, count,
          static_cast<double>(tile_bytes) + 4.0 * kTokens * (kCols + kRows),
          [&](uint32_t i) {
            args.matrices[0] = matrix_at(i);
            return packed_gemm(args, false, input, launch_);
          },
          2.0 * kTokens * kRows * kCols);
      check(std::abs(to_host(args.outputs[0], 8)[7] - square) <= 2e-3 * square, "packed_gemm");
    }
    for (void* data :
         {static_cast<void*>(tiles), static_cast<void*>(floats), static_cast<void*>(ids),
          static_cast<void*>(args.outputs[0]), static_cast<void*>(input), launch_.scratch})
      cudaFree(data);
  }

  // The f16 activations of packed_gemm.
  void inputs() {
    constexpr uint32_t kTokens = 2048, kCols = 4096;
    HalfInputArgs args;
    args.tokens = kTokens;
    args.cols = args.out.depth = kCols;
    args.out.tile_tokens = 256;
    args.x = device_array(std::vector<float>(uint64_t{kTokens} * kCols, 1.0f));
    args.out.h = device_array<uint16_t>(uint64_t{kTokens} * kCols);
    args.out.scales = device_array<float>(kTokens);
    measure("half_input", "f16", 8, 6.0 * kTokens * kCols,
            [&](uint32_t) { return half_input(args, launch_); });
    for (const float scale : to_host(args.out.scales, kTokens))
      check(scale == 0x1p-14f, "half_input");
    for (const uint16_t value : to_host(args.out.h, uint64_t{kTokens} * kCols))
      check(value == 0x7400, "half_input");
    for (const void* data : {static_cast<const void*>(args.x), static_cast<const void*>(args.out.h),
                             static_cast<const void*>(args.out.scales)})
      cudaFree(const_cast<void*>(data));
  }

  // The start of a step of 128 rows of 64 tokens.
  void begin() {
    constexpr uint32_t kRows = 128, kTokens = 64, kStride = 4096, kFirst = 1000;
    std::vector<StepRow> rows;
    std::vector<int32_t> tokens;
    for (uint32_t i = 0; i < kRows; ++i) rows.push_back({i * kTokens, kTokens, kFirst + i, i});
    for (uint32_t i = 0; i < kRows * kTokens; ++i) tokens.push_back(static_cast<int32_t>(i));
    BeginStepArgs args;
    args.row_count = kRows;
    args.history_stride = kStride;
    auto* const device_rows = device_array(rows);
    args.rows = device_rows;
    args.statuses = device_array<int32_t>(kRows);
    args.tokens = device_array(tokens);
    args.fed_tokens = device_array<int32_t>(kRows);
    args.history = device_array<int32_t>(kRows * kStride);
    measure("begin_step", "128 rows", 32, 8.0 * kRows * kTokens,
            [&](uint32_t) { return begin_step(args, launch_); });
    const std::vector<int32_t> history = to_host(args.history, kRows * kStride);
    for (uint32_t i = 0; i < kRows * kTokens; ++i) {
      const uint32_t row = i / kTokens;
      check(history[row * kStride + kFirst + row + i % kTokens] == tokens[i], "begin_step");
    }
    check(to_host(args.statuses, kRows) == std::vector<int32_t>(kRows, kRowOk), "begin_step");
    check(to_host(args.fed_tokens, kRows) == std::vector<int32_t>(kRows, -1), "begin_step");
    cudaFree(device_rows);
    for (int32_t* data : {args.statuses, args.tokens, args.fed_tokens, args.history})
      cudaFree(data);
  }

  // The start of a decode step of 256 rows of 160 positions in one kernel, with 8 head tiles.
  void plan_start() {
    constexpr uint32_t kRows = 256, kPages = 3, kHeadTiles = 8,
                       kFirst = kPages * kPagePositions - 1;
    std::vector<StepRow> rows;
    std::vector<int32_t> tokens;
    for (uint32_t i = 0; i < kRows; ++i) {
      rows.push_back({i, 1, kFirst, i});
      tokens.push_back(static_cast<int32_t>(i));
    }
    std::vector<uint8_t> block(sizeof(InputHeader));
    InputHeader header{};
    const auto add = [&](uint32_t segment, const void* values, uint32_t row_count, uint32_t bytes) {
      header.segments[segment] = {row_count, bytes, static_cast<uint32_t>(block.size()), 0};
      block.insert(block.end(), static_cast<const uint8_t*>(values),
                   static_cast<const uint8_t*>(values) + uint64_t{row_count} * bytes);
    };
    std::vector<uint32_t> tables(kRows * 4);  // rows of 16 bytes
    for (uint32_t i = 0; i < tables.size(); ++i) tables[i] = i;
    add(0, tokens.data(), 1, kRows * 4);
    add(1, rows.data(), 1, kRows * sizeof(StepRow));
    add(2, tables.data(), kRows, 16);
    std::memcpy(block.data(), &header, sizeof header);
    StepStart start;
    start.inputs.block = device_array(block);
    start.inputs.segment_count = 3;
    const uint32_t sizes[] = {kRows * 4, kRows * sizeof(StepRow), kRows * 16};
    for (uint32_t s = 0; s < 3; ++s) start.inputs.targets[s] = device_array<uint8_t>(sizes[s]);
    start.inputs.target_strides[2] = 16;
    start.tokens = 0;
    start.rows = 1;
    start.page_tables = 2;
    start.begin.row_count = kRows;
    start.begin.history_stride = kFirst + 1;
    start.begin.rows = reinterpret_cast<StepRow*>(start.inputs.targets[1]);
    start.begin.tokens = reinterpret_cast<int32_t*>(start.inputs.targets[0]);
    start.begin.statuses = device_array<int32_t>(kRows);
    start.begin.fed_tokens = device_array<int32_t>(kRows);
    start.begin.history = device_array<int32_t>(kRows * (kFirst + 1));
    AttentionPlanArgs args;
    args.step.row_count = kRows;
    AttentionPlan& plan = args.plan;
    plan.max_rows = kRows;
    plan.max_blocks = 2 * static_cast<uint32_t>(launch_.sm_count);
    plan.head_tiles = kHeadTiles;
    plan.tile_count = device_array<uint32_t>(1);
    plan.row_spans = device_array<uint32_t>(kRows + 1);
    plan.row_tiles = device_array<uint32_t>(kRows + 1);
    plan.starts = device_array<DecodeStart>(plan.max_blocks);
    measure("attention_plan_start", "256 rows", 32,
            2.0 * static_cast<double>(block.size()) + plan.max_blocks * sizeof(DecodeStart),
            [&](uint32_t) { return attention_plan_start(args, start, launch_); });
    const std::vector<uint32_t> spans = to_host(plan.row_spans, kRows + 1);
    for (uint32_t i = 0; i <= kRows; ++i) check(spans[i] == i * kPages, "attention_plan_start");
    check(to_host(start.begin.tokens, kRows) == tokens, "attention_plan_start");
    const DecodeStart last = to_host(plan.starts, plan.max_blocks).back();
    check(last.end == last.begin || last.end == kRows * kPages * kHeadTiles,
          "attention_plan_start");
    cudaFree(const_cast<uint8_t*>(start.inputs.block));
    for (uint8_t* data : start.inputs.targets) cudaFree(data);
    for (int32_t* data : {start.begin.statuses, start.begin.fed_tokens, start.begin.history})
      cudaFree(data);
    for (uint32_t* data : {plan.tile_count, plan.row_spans, plan.row_tiles}) cudaFree(data);
    cudaFree(plan.starts);
  }

  void hidden_states() {
    constexpr uint32_t kTokens = 2048, kCols = 4096;  // a chunk of a prompt of 8B
    StepRow row;
    row.token_count = kTokens;
    row.flags = kRowHiddenSum;
    auto* const rows = device_array(std::vector<StepRow>{row});
    auto* const x = device_array(std::vector<float>(uint64_t{kTokens} * kCols, 2.0f));
    auto* const norm = device_array(std::vector<float>(kCols, 0.5f));
    auto* const rms_inverses = device_array<float>(kTokens);
    auto* const out = device_array<float>(kCols);
    const HiddenStateArgs args{rows, 1, kTokens, kCols, x, norm, 0.0f, rms_inverses, out};
    measure("hidden_state", "sum of 2048 tokens", 8, 8.0 * kTokens * kCols,
            [&](uint32_t) { return hidden_state(args, launch_); });
    for (const float value : to_host(out, kCols))  // 2 / 2 * 0.5 of each token
      check(std::abs(value - 0.5f * kTokens) < 0.1f, "hidden_state");
    cudaFree(rows);
    for (float* data : {x, norm, rms_inverses, out}) cudaFree(data);
  }

  // Kernels that move or change a row of numbers each.
  void rows() {
    constexpr uint32_t kRows = 256, kCols = 128256;  // logits of 8B
    constexpr uint64_t kCount = uint64_t{kRows} * kCols;
    std::vector<float> values(kCount);
    for (uint64_t i = 0; i < kCount; ++i) values[i] = static_cast<float>(i % 201) - 100.0f;
    auto* const from = device_array(values);
    auto* const to = device_array<float>(kCount);
    check(softcap(from, kCount, 30.0f, launch_), "softcap");
    check(cudaStreamSynchronize(launch_.stream), "softcap");
    const std::vector<float> capped = to_host(from, 201);
    for (uint32_t i = 0; i < 201; ++i)
      check(std::abs(capped[i] - 30.0f * std::tanh(values[i] / 30.0f)) < 1e-4f, "softcap");
    measure("softcap", "f32", 8, 8.0 * kCount,
            [&](uint32_t) { return softcap(from, kCount, 30.0f, launch_); });

    auto* const tokens = reinterpret_cast<int32_t*>(to);
    check(cudaMemcpy(tokens, values.data(), kCount * 4, cudaMemcpyHostToDevice), "copy");
    measure("copy_history", "i32", kRows / 2, 8.0 * kCols, [&](uint32_t i) {
      return copy_history(tokens, kCols, i, kRows / 2 + i, kCols, launch_);
    });
    std::copy_n(values.begin(), kCount / 2, values.begin() + kCount / 2);
    check(to_host(to, kCount) == values, "copy_history");

    PadMatrixArgs pad;
    pad.source = to;
    pad.target = from;
    pad.element_bytes = 4;
    pad.source_rows = pad.rows = kRows;
    pad.source_columns = pad.source_stride = kCols;
    pad.columns = pad.target_stride = kCols - 8;
    measure("pad_matrix", "f32", 8, 8.0 * kRows * (kCols - 8),
            [&](uint32_t) { return pad_matrix(pad, launch_.stream); });
    const std::vector<float> padded = to_host(from, kCols);
    check(std::equal(padded.begin(), padded.begin() + kCols - 8, values.begin()) &&
              padded[kCols - 8] == values[kCols],
          "pad_matrix");

    const std::vector<uint16_t> halves(kCount, 0x3c00);
    auto* const elements = device_array(halves);
    measure("expand_vector", "f16", 8, 6.0 * kCount, [&](uint32_t) {
      return expand_vector(TensorType::kF16, static_cast<uint32_t>(kCount),
                           reinterpret_cast<const uint8_t*>(elements), to, launch_.stream);
    });
    check(to_host(to, kCount) == std::vector<float>(kCount, 1.0f), "expand_vector");
    for (void* data :
         {static_cast<void*>(from), static_cast<void*>(to), static_cast<void*>(elements)})
      cudaFree(data);
  }

  // The inputs of a step from their block to one array: 256 rows of 4 KiB.
  void scatter() {
    constexpr uint32_t kRows = 256, kRowBytes = 4096;
    std::vector<uint8_t> block(sizeof(InputHeader) + 16 + kRows * kRowBytes);
    for (size_t i = 0; i < block.size(); ++i)
      block[i] = static_cast<uint8_t>(bench::random_word(i));
    InputHeader header{};
    header.segments[0] = {kRows, kRowBytes, (sizeof(InputHeader) + 15) / 16 * 16, 0};
    std::memcpy(block.data(), &header, sizeof(header));
    auto* const inputs = device_array(block);
    InputScatterArgs args;
    args.block = inputs;
    args.segment_count = 1;
    args.targets[0] = device_array<uint8_t>(kRows * kRowBytes);
    args.target_strides[0] = kRowBytes;
    measure("input_scatter", "1 MiB", 32, 2.0 * kRows * kRowBytes,
            [&](uint32_t) { return input_scatter(args, launch_); });
    const std::vector<uint8_t> expected(
        block.begin() + header.segments[0].offset,
        block.begin() + header.segments[0].offset + kRows * kRowBytes);
    check(to_host(args.targets[0], kRows * kRowBytes) == expected, "input_scatter");
    cudaFree(inputs);
    cudaFree(args.targets[0]);
  }

  // The pages of a pool of 8B's key-value cache in f16, the first half to the second.
  void pages() {
    constexpr uint32_t kLayers = 32, kPages = 64;
    PagePool pool;
    pool.layer_count = kLayers;
    pool.page_count = kPages;
    pool.plane_bytes = uint64_t{8} * kPagePositions * 128 * 2;
    const uint64_t page_bytes = 2 * pool.plane_bytes;
    std::vector<uint8_t> layer(kPages * page_bytes);
    for (size_t i = 0; i < layer.size(); ++i)
      layer[i] = static_cast<uint8_t>(bench::random_word(i));
    pool.data = device_array<uint8_t>(kLayers * layer.size());
    for (uint32_t i = 0; i < kLayers; ++i)
      check(cudaMemcpy(pool.data + i * layer.size(), layer.data(), layer.size(),
                       cudaMemcpyHostToDevice),
            "copy");
    measure("copy_page", "f16", kPages / 2, 2.0 * kLayers * page_bytes,
            [&](uint32_t i) { return copy_page(pool, i, kPages / 2 + i, launch_); });
    std::copy_n(layer.begin(), layer.size() / 2, layer.begin() + layer.size() / 2);
    for (const uint32_t i : {0u, kLayers - 1})
      check(to_host(pool.data + i * layer.size(), layer.size()) == layer, "copy_page");
    measure("poison_page", "f16", kPages / 2, double(kLayers) * page_bytes,
            [&](uint32_t i) { return poison_page(pool, i, launch_); });
    std::fill_n(layer.begin(), layer.size() / 2, uint8_t{0xff});
    check(to_host(pool.data, layer.size()) == layer, "poison_page");
    cudaFree(pool.data);
  }

  // Output projection, gate and up, down of 8B for one token.
  void fused() {
    constexpr uint32_t kDim = 4096, kHidden = 14336;
    const auto bytes_of = [](uint32_t rows, uint32_t cols) {
      return rows / 16 * quant::tile_layout(TensorType::kQ4_K).m_tile_bytes(cols);
    };
    const uint64_t bytes =
        bytes_of(kDim, kDim) + 2 * bytes_of(kHidden, kDim) + bytes_of(kDim, kHidden);
    const auto count = static_cast<uint32_t>(kPoolBytes / bytes);
    auto* const weights = device_array<uint8_t>(count * bytes);
    std::vector<float> values(kDim);
    for (uint32_t i = 0; i < kDim; ++i) values[i] = std::sin(static_cast<float>(i));
    auto* const attention = device_array(values);
    auto* const residual = device_array(values);
    auto* const hidden = device_array<float>(kHidden);
    auto* const gain = device_array(std::vector<float>(kDim, 1.0f));
    const uint64_t scratch_bytes = fused_layers_scratch_bytes(kHidden, kDim);
    auto* const scratch = device_array<uint8_t>(scratch_bytes);
    const auto layers_at = [&](uint32_t i, LinearArgs(&layers)[3]) {
      const uint8_t* at = weights + i * bytes;
      const auto add = [&](LinearArgs& args, uint32_t rows, uint32_t cols) {
        args.matrices[args.matrix_count++] = {at, TensorType::kQ4_K, rows, cols};
        at += bytes_of(rows, cols);
      };
      for (LinearArgs& args : layers) {
        args = LinearArgs();
        args.tokens = 1;
        args.epsilon = 1e-5f;
      }
      add(layers[0], kDim, kDim);
      layers[0].x = attention;
      layers[0].outputs[0] = residual;
      layers[0].epilogue = Epilogue::kAdd;
      add(layers[1], kHidden, kDim);
      add(layers[1], kHidden, kDim);
      layers[1].x = residual;
      layers[1].norm = gain;
      layers[1].outputs[0] = hidden;
      layers[1].epilogue = Epilogue::kSiluGate;
      add(layers[2], kDim, kHidden);
      layers[2].x = hidden;
      layers[2].outputs[0] = residual;
      layers[2].epilogue = Epilogue::kAdd;
    };
    LinearArgs layers[3];
    layers_at(0, layers);
    for (const LinearArgs& args : layers)
      for (uint32_t m = 0; m < args.matrix_count; ++m) random_tiles(args.matrices[m]);
    for (uint32_t i = 1; i < count; ++i)
      check(cudaMemcpy(weights + i * bytes, weights, bytes, cudaMemcpyDeviceToDevice), "copy");
    if (!fused_layers_has_device(launch_) || !fused_layers_supports(layers, 3, launch_)) {
      std::printf("%-20s not on this device\n", "fused_layers");
      return;
    }
    check(fused_layers_prepare(scratch, scratch_bytes, launch_), "fused_layers_prepare");
    // The same bits but for the order in which the 14,336 inputs of the last layer are added up.
    for (const LinearArgs& args : layers) check(linear_vector(args, launch_), "linear_vector");
    const std::vector<float> expected = to_host(residual, kDim);
    check(cudaMemcpy(residual, values.data(), kDim * 4, cudaMemcpyHostToDevice), "copy");
    check(fused_layers(layers, 3, scratch, scratch_bytes, launch_), "fused_layers");
    const std::vector<float> found = to_host(residual, kDim);
    check(expected != values, "linear_vector");
    for (uint32_t i = 0; i < kDim; ++i)
      check(std::abs(found[i] - expected[i]) <= 1e-4f, "fused_layers");
    measure("fused_layers", "Q4_K", count, static_cast<double>(bytes), [&](uint32_t i) {
      layers_at(i, layers);
      return fused_layers(layers, 3, scratch, scratch_bytes, launch_);
    });
    for (void* data :
         {static_cast<void*>(weights), static_cast<void*>(attention), static_cast<void*>(residual),
          static_cast<void*>(hidden), static_cast<void*>(gain), static_cast<void*>(scratch)})
      cudaFree(data);
  }

 private:
  void random_tiles(const Matrix& matrix) {
    const quant::Format& format = *quant::find_format(matrix.type);
    auto* const file = device_array(bench::random_blocks(
        matrix.type, uint64_t{matrix.rows} * matrix.cols / format.block_elements));
    check(repack(matrix.type, matrix.rows, matrix.cols, 0, matrix.rows, file,
                 const_cast<uint8_t*>(matrix.packed_tiles), launch_.stream),
          "repack");
    check(cudaStreamSynchronize(launch_.stream), "repack");
    cudaFree(file);
  }
};

}  // namespace

int main() {
  cudaDeviceProp properties{};
  check(cudaGetDeviceProperties(&properties, 0), "cudaGetDeviceProperties");
  std::printf("%s, %d SM; least and median of %d\n", properties.name,
              properties.multiProcessorCount, Bench::kRepeats);
  Bench bench;
  for (const TensorType type : {TensorType::kF16, TensorType::kQ8_0, TensorType::kQ4_K,
                                TensorType::kQ6_K, TensorType::kIQ4_XS})
    bench.matrix(type);
  bench.inputs();
  bench.fused();
  bench.begin();
  bench.plan_start();
  bench.hidden_states();
  bench.rows();
  bench.scatter();
  bench.pages();
  wcuda::bench::bench_draft_heads();
  return 0;
}
