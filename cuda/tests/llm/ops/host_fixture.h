// Random weights, activations and page pools for the tests of the host's operations.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <random>
#include <vector>

#include "kernels/shared/numeric.h"
#include "llm/ops/host/host_ops.h"
#include "llm/ops/host/kv_rows.h"
#include "llm/quant/format.h"
#include "llm/quant/layout_host.h"

namespace wcuda::ops::host {

inline std::vector<const Kernels*> all_kernels() {
  std::vector<const Kernels*> found;
  for (Isa isa : {Isa::kPortable, Isa::kAvx2, Isa::kAvxVnni, Isa::kAvx512})
    if (const Kernels* kernels = find_kernels(isa)) found.push_back(kernels);
  return found;
}

class Random {
 public:
  explicit Random(uint32_t seed) : engine_(seed) {}
  float normal() { return std::normal_distribution<float>()(engine_); }
  uint32_t below(uint32_t end) { return static_cast<uint32_t>(engine_() % end); }
  std::vector<float> normals(uint64_t count, float scale = 1.0f) {
    std::vector<float> values(count);
    for (float& value : values) value = normal() * scale;
    return values;
  }

 private:
  std::mt19937 engine_;
};

// Offsets of the f16 fields of a block; the test puts small finite numbers there.
inline std::vector<uint32_t> half_fields(uint32_t type) {
  switch (type) {
    case TensorType::kQ4_0:
    case TensorType::kQ5_0:
    case TensorType::kQ8_0:
    case TensorType::kIQ2_XXS:
    case TensorType::kIQ2_XS:
    case TensorType::kIQ3_XXS:
    case TensorType::kIQ4_NL:
    case TensorType::kIQ3_S:
    case TensorType::kIQ4_XS:
      return {0};
    case TensorType::kQ4_1:
    case TensorType::kQ5_1:
    case TensorType::kQ4_K:
    case TensorType::kQ5_K:
      return {0, 2};
    case TensorType::kTQ1_0:
      return {52};
    case TensorType::kTQ2_0:
      return {64};
    case TensorType::kQ2_K:
      return {80, 82};
    case TensorType::kQ3_K:
      return {108};
    case TensorType::kQ6_K:
      return {208};
    default:
      return {};
  }
}

// A matrix in one of the host's layouts, with the exact values of its elements.
struct Matrix {
  std::vector<uint8_t> bytes;
  std::vector<float> values;  // (rows, cols)
  Weight weight;
};

// Packs the rows of a file and takes their values.
inline Matrix pack_matrix(uint32_t type, uint32_t rows, uint32_t cols, Layout layout,
                          const std::vector<uint8_t>& file) {
  const quant::Format& format = *quant::find_format(type);
  const uint64_t row_bytes = *quant::row_bytes(format, cols);
  Matrix matrix;
  matrix.values.resize(uint64_t{rows} * cols);
  for (uint32_t r = 0; r < rows; ++r) {
    const Status status = quant::unpack_row(format, file.data() + r * row_bytes, cols,
                                            matrix.values.data() + uint64_t{r} * cols);
    if (!status.ok()) return {};
  }
  matrix.bytes.resize(*quant::host_layout_bytes(type, layout, rows, cols));
  const Status status =
      quant::pack_host(type, layout, rows, cols, 0, rows, file.data(), matrix.bytes.data());
  if (!status.ok()) return {};
  matrix.weight = {matrix.bytes.data(), matrix.bytes.size(), type, layout, rows, cols};
  return matrix;
}

// The f16 fields of each block of `file` become what `half` returns.
template <class Half>
void set_scales(uint32_t type, std::vector<uint8_t>& file, const Half& half) {
  const uint32_t block_bytes = quant::find_format(type)->block_bytes;
  for (uint64_t block = 0; block < file.size(); block += block_bytes) {
    for (uint32_t field : half_fields(type)) {
      const uint16_t bits = float_to_half(half());
      std::memcpy(file.data() + block + field, &bits, 2);
    }
  }
}

// The exponents of the blocks of MXFP4.
inline void set_exponents(std::vector<uint8_t>& file, int lowest) {
  for (uint64_t block = 0; block < file.size(); block += 17)
    file[block] = static_cast<uint8_t>(lowest + file[block] % 4);
}

// `scale`: of the float weights, and with 0.2 of the scales and minimums of blocks.
inline Matrix random_matrix(uint32_t type, uint32_t rows, uint32_t cols, Layout layout,
                            Random& random, float scale = 0.1f) {
  const quant::Format& format = *quant::find_format(type);
  std::vector<uint8_t> file(rows * *quant::row_bytes(format, cols));
  if (format.block_elements == 1) {
    for (uint64_t i = 0; i < uint64_t{rows} * cols; ++i) {
      const float value = random.normal() * scale;
      const uint16_t half = type == TensorType::kF16 ? float_to_half(value) : float_to_bf16(value);
      if (type == TensorType::kF32)
        std::memcpy(file.data() + i * 4, &value, 4);
      else
        std::memcpy(file.data() + i * 2, &half, 2);
    }
  } else {
    for (uint8_t& byte : file) byte = static_cast<uint8_t>(random.below(256));
    set_scales(type, file, [&] { return random.normal() * 0.2f * scale; });
    if (type == TensorType::kMXFP4) set_exponents(file, 120 + std::ilogb(scale) - std::ilogb(0.1f));
  }
  return pack_matrix(type, rows, cols, layout, file);
}

// Blocks whose weights are of the largest magnitude that the format's codes and factors have.
inline Matrix extreme_matrix(uint32_t type, uint32_t rows, uint32_t cols) {
  std::vector<uint8_t> file(rows * *quant::row_bytes(*quant::find_format(type), cols));
  // An offset, or a level of -127, makes code 0 largest.
  const bool is_zero_lowest = type == TensorType::kQ4_0 || type == TensorType::kQ5_0 ||
                              type == TensorType::kQ3_K || type == TensorType::kQ6_K ||
                              type == TensorType::kIQ4_NL || type == TensorType::kIQ4_XS;
  for (uint8_t& byte : file) byte = is_zero_lowest ? 0 : type == TensorType::kQ8_0 ? 0x80 : 0xff;
  if (type == TensorType::kQ6_K)
    for (uint64_t block = 0; block < file.size(); block += 210)
      std::memset(file.data() + block + 192, 0x80, 16);
  set_scales(type, file, [] { return 0.01f; });
  if (type == TensorType::kMXFP4) set_exponents(file, 120);
  return pack_matrix(type, rows, cols, Layout::kHost16, file);
}

// Ops with their scratch memory, exactly as large as asked for.
struct Machine {
  Limits limits{};
  std::vector<uint8_t> memory;
  std::unique_ptr<Ops> ops;

  Machine(const Kernels& kernels, uint32_t threads, const Limits& wanted) : limits(wanted) {
    auto made = make_host_ops(threads, kernels);
    if (!made.ok()) return;
    ops = made.take();
    memory.assign(ops->scratch_bytes(limits) + 256, 0xff);
    auto address = reinterpret_cast<uintptr_t>(memory.data());
    address = (address + 255) & ~uintptr_t{255};
    if (!ops->prepare(limits, reinterpret_cast<void*>(address)).ok()) ops.reset();
  }
};

inline Status run_linear(Ops& ops, const LinearArgs& args) { return ops.linear({}, args); }

// residual += W·x + bias.
inline Status project(Ops& ops, uint32_t token_count, const float* x, const Weight& weight,
                      Vector bias, float* residual) {
  LinearArgs args{};
  args.token_count = token_count;
  args.x = x;
  args.weight_count = 1;
  args.weights[0] = weight;
  args.biases[0] = bias;
  args.outputs[0] = residual;
  args.epilogue = Epilogue::kAdd;
  return run_linear(ops, args);
}

// From the residual to queries in place and keys and values in the pages.
struct AttentionInput {
  const Batch* batch;
  const float* x;
  Vector norm;
  float epsilon;
  Weight query, key, value;
  Vector query_bias, key_bias, value_bias, query_norm, key_norm;
  Rope rope;
  uint32_t head_count;
  KvPool pool;
  uint32_t layer;
  float* query_out;
};

inline Status run_attention_input(Ops& ops, const AttentionInput& input) {
  std::vector<float> key(uint64_t{input.batch->token_count} * input.key.rows), value(key.size());
  LinearArgs linear{};
  linear.token_count = input.batch->token_count;
  linear.x = input.x;
  linear.norm = input.norm;
  linear.epsilon = input.epsilon;
  linear.weight_count = 3;
  const Weight weights[] = {input.query, input.key, input.value};
  const Vector biases[] = {input.query_bias, input.key_bias, input.value_bias};
  float* const outputs[] = {input.query_out, key.data(), value.data()};
  for (int i = 0; i < 3; ++i) {
    linear.weights[i] = weights[i];
    linear.biases[i] = biases[i];
    linear.outputs[i] = outputs[i];
  }
  Node table;
  table.operation = Operation::kRotaryTable;
  if (input.rope.dimension_count != 0)
    WCUDA_TRY(ops.start(table, {input.batch, nullptr, input.pool, 0, input.rope}));
  WCUDA_TRY(ops.linear({}, linear));
  return ops.rope_kv(
      {}, {input.batch, input.query_out, key.data(), value.data(), input.query_norm, input.key_norm,
           input.epsilon, input.rope, input.head_count, input.pool, input.layer});
}

// Rows of a step over a pool whose every byte is 0xff (NaN in each type) until it is written.
struct Step {
  Batch batch;
  std::vector<int32_t> tokens;
  std::vector<uint32_t> positions, token_rows, page_tables;
  std::vector<StepRow> rows;

  // token_counts and first_positions of the rows; pages are handed out in a shuffled order.
  Step(const std::vector<std::pair<uint32_t, uint32_t>>& shapes, uint32_t page_count,
       uint32_t vocabulary, Random& random) {
    const uint32_t stride = page_count;
    page_tables.assign(shapes.size() * stride, 0xffffffffu);
    std::vector<uint32_t> order(page_count);
    for (uint32_t i = 0; i < page_count; ++i) order[i] = i;
    for (uint32_t i = page_count; i > 1; --i) std::swap(order[i - 1], order[random.below(i)]);
    uint32_t next_page = 0;
    for (uint32_t r = 0; r < shapes.size(); ++r) {
      const auto [count, first] = shapes[r];
      rows.push_back({static_cast<uint32_t>(tokens.size()), count, first, r});
      for (uint32_t i = 0; i < count; ++i) {
        tokens.push_back(static_cast<int32_t>(random.below(vocabulary)));
        positions.push_back(first + i);
        token_rows.push_back(r);
      }
      for (uint32_t p = 0; p <= (first + count - 1) / kPageTokens; ++p)
        page_tables[r * stride + p] = order[next_page++];
    }
    batch.token_count = static_cast<uint32_t>(tokens.size());
    batch.row_count = static_cast<uint32_t>(rows.size());
    batch.page_table_stride = stride;
    batch.tokens = tokens.data();
    batch.positions = positions.data();
    batch.token_rows = token_rows.data();
    batch.rows = rows.data();
    batch.page_tables = page_tables.data();
  }
};

struct Pool {
  std::vector<uint8_t> bytes;
  KvPool pool;

  Pool(KvType type, uint32_t layers, uint32_t pages, uint32_t heads, uint32_t head_length) {
    pool.format = type;
    pool.layer_count = layers;
    pool.page_count = pages;
    pool.head_count = heads;
    pool.head_length = head_length;
    pool.row_bytes = kv_row_bytes(type, head_length);
    bytes.assign(uint64_t{layers} * pages * 2 * pool.plane_bytes(), 0xff);
    pool.data = bytes.data();
  }
  uint8_t* row(uint32_t layer, uint32_t page, bool value, uint32_t head, uint32_t slot) const {
    uint8_t* plane = value ? pool.values(layer, page) : pool.keys(layer, page);
    return plane + (uint64_t{head} * kPageTokens + slot) * pool.row_bytes;
  }
  // What a row holds, decoded one element at a time.
  std::vector<double> read(uint32_t layer, uint32_t page, bool value, uint32_t head,
                           uint32_t slot) const {
    const uint8_t* bytes_of = row(layer, page, value, head, slot);
    std::vector<double> values(pool.head_length);
    for (uint32_t i = 0; i < pool.head_length; ++i) {
      uint16_t half;
      if (pool.format == KvType::kF16) {
        std::memcpy(&half, bytes_of + 2 * i, 2);
        values[i] = half_to_float(half);
      } else if (pool.format == KvType::kQ8_0) {
        std::memcpy(&half, bytes_of + i / 32 * 34, 2);
        values[i] = static_cast<double>(half_to_float(half)) *
                    static_cast<int8_t>(bytes_of[i / 32 * 34 + 2 + i % 32]);
      } else if (pool.format == KvType::kInt10) {
        const uint32_t n = pool.head_length, scales = n / 64 * 2;
        const uint8_t* codes = bytes_of + (slot % 2 == 1 ? scales : 0);
        const uint32_t high = codes[n + i / 64 * 16 + i % 16] >> i % 64 / 16 * 2 & 3;
        std::memcpy(&half, (slot % 2 == 1 ? bytes_of : codes + n + n / 4) + i / 64 * 2, 2);
        values[i] = static_cast<double>(half_to_float(half)) *
                    (static_cast<int>(codes[i] + 256 * high) - 512);
      } else {
        values[i] = e4m3_to_float(bytes_of[i]);
      }
    }
    return values;
  }
};

// Keys and values of all positions of the rows.
inline void fill_pool(const Pool& pool, const Step& step, uint32_t layer, Random& random) {
  for (const StepRow& row : step.rows)
    for (uint32_t p = 0; p < row.first_position + row.token_count; ++p)
      for (uint32_t h = 0; h < pool.pool.head_count; ++h)
        for (bool value : {false, true}) {
          const uint32_t page =
              step.page_tables[row.sequence_slot * step.batch.page_table_stride + p / kPageTokens];
          const auto values = random.normals(pool.pool.head_length);
          write_kv_row(pool.pool.format, values.data(), pool.pool.head_length, p,
                       pool.row(layer, page, value, h, p % kPageTokens));
        }
}

}  // namespace wcuda::ops::host
