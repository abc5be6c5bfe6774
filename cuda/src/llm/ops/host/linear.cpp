// Computes the matrix products of the host in chunks, with their epilogues.
#include "llm/ops/host/linear.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "core/base/checked.h"
#include "kernels/shared/arena.h"
#include "llm/quant/format.h"
#include "llm/quant/layout_host.h"

namespace wcuda::ops::host {
namespace {

constexpr uint32_t kMTileRows = quant::kMTileRows;
constexpr uint32_t kBlockCols = 32;

// Multiplications per chunk, which take some microseconds.
constexpr uint64_t kChunkProducts = 128 * 1024;
constexpr uint32_t kInputTokensAChunk = 8;

uint32_t m_tile_count(const Weight& weight) {
  return static_cast<uint32_t>(ceil_div(weight.rows, kMTileRows));
}

bool has_up(const Product& product) {
  return product.output == Output::kSiluMultiply || product.output == Output::kGeluMultiply;
}

Status check_weight(const Weight& weight, uint32_t cols) {
  WCUDA_CHECK(weight.data != nullptr && weight.rows > 0 && weight.cols == cols);
  const quant::Format* format = quant::find_format(weight.type);
  WCUDA_CHECK(format != nullptr && format->is_loadable && cols % format->block_elements == 0);
  WCUDA_ASSIGN(const uint64_t bytes,
               quant::host_layout_bytes(weight.type, weight.layout, weight.rows, weight.cols));
  WCUDA_CHECK(weight.bytes >= bytes);
  return {};
}

// Adds the bias of rows from first_row on to tile (token_count, 16).
void add_bias(Vector bias, uint32_t first_row, uint32_t row_count, uint32_t token_count,
              float* tile) {
  if (bias == nullptr) return;
  for (uint32_t t = 0; t < token_count; ++t)
    for (uint32_t r = 0; r < row_count; ++r) tile[t * kMTileRows + r] += bias[first_row + r];
}

}  // namespace

struct Linear::Work {
  float* normed;
  InputBlock* blocks;
  uint8_t* threads;
  uint64_t bytes;
};

struct Linear::ThreadWork {
  float* tiles;       // kMTilesMax of (kTokenBlock, 16)
  float* up_tiles;    // likewise
  float* row;         // (cols_max) one row expanded
  uint8_t* row_work;  // row_work_bytes(cols_max)
  uint64_t bytes;

  ThreadWork(uint32_t cols_max, uint8_t* base) {
    Arena arena(base);
    tiles = arena.take<float>(kMTilesMax * kTileFloats);
    up_tiles = arena.take<float>(kMTilesMax * kTileFloats);
    row = arena.take<float>(cols_max);
    row_work = arena.take<uint8_t>(row_work_bytes(cols_max));
    bytes = arena.bytes();
  }
};

Linear::Work Linear::lay_out(uint32_t token_count, uint32_t cols_max, uint8_t* base) const {
  Arena arena(base);
  Work work;
  work.normed = arena.take<float>(uint64_t{token_count} * cols_max);
  work.blocks = kernels_.make_blocks == nullptr
                    ? nullptr
                    : arena.take<InputBlock>(token_count * ceil_div(cols_max, kBlockCols));
  work.threads = arena.take<uint8_t>(ThreadWork(cols_max, nullptr).bytes * pool_.thread_count());
  work.bytes = arena.bytes();
  return work;
}

uint64_t Linear::work_bytes(uint32_t token_count, uint32_t cols_max) const {
  return lay_out(token_count, cols_max, nullptr).bytes;
}

void Linear::prepare(uint32_t token_count, uint32_t cols_max, uint8_t* memory) {
  const Work work = lay_out(token_count, cols_max, memory);
  token_count_max_ = token_count;
  cols_max_ = cols_max;
  normed_ = work.normed;
  blocks_ = work.blocks;
  threads_ = work.threads;
}

Linear::ThreadWork Linear::thread_work(uint32_t thread) const {
  const uint64_t bytes = ThreadWork(cols_max_, nullptr).bytes;
  return ThreadWork(cols_max_, threads_ + thread * bytes);
}

Status Linear::expand_row(const Weight& weight, uint32_t row, uint8_t* row_work, float* out) {
  const quant::Format& format = *quant::find_format(weight.type);
  const auto* data = static_cast<const uint8_t*>(weight.data);
  if (weight.layout == Layout::kRows) {
    WCUDA_ASSIGN(const uint64_t bytes, quant::row_bytes(format, weight.cols));
    return quant::unpack_row(format, data + row * bytes, weight.cols, out);
  }
  WCUDA_TRY(quant::unpack_host(weight.type, weight.layout, weight.rows, weight.cols, row, 1, data,
                               row_work));
  return quant::unpack_row(format, row_work, weight.cols, out);
}

Status Linear::check(const Input& input, const Product* products, uint32_t product_count) const {
  WCUDA_CHECK(threads_ != nullptr && product_count > 0 && product_count <= kProductsMax);
  WCUDA_CHECK(input.x != nullptr && input.token_count <= token_count_max_);
  WCUDA_CHECK(input.cols > 0 && input.cols <= cols_max_);
  for (uint32_t i = 0; i < product_count; ++i) {
    WCUDA_TRY(check_weight(products[i].weight, input.cols));
    WCUDA_CHECK(products[i].target != nullptr);
    if (!has_up(products[i])) continue;
    WCUDA_TRY(check_weight(products[i].up, input.cols));
    WCUDA_CHECK(products[i].up.rows == products[i].weight.rows);
  }
  return {};
}

// Gathers and norms the input, and converts it to blocks if requested. Returns (token_count, cols).
const float* Linear::prepare_input(const Input& input, bool has_blocks) {
  const bool copies = input.norm != nullptr || input.token_indices != nullptr;
  if (!copies && !has_blocks) return input.x;
  const uint64_t cols = input.cols;
  const auto chunks = static_cast<uint32_t>(ceil_div(input.token_count, kInputTokensAChunk));
  pool_.parallel_for(chunks, [&](uint32_t chunk, uint32_t) {
    const uint32_t end = std::min((chunk + 1) * kInputTokensAChunk, input.token_count);
    for (uint32_t t = chunk * kInputTokensAChunk; t < end; ++t) {
      const float* x = input.x + (input.token_indices ? input.token_indices[t] : t) * cols;
      float* normed = normed_ + t * cols;
      if (input.norm != nullptr)
        kernels_.rms_norm(x, input.norm, input.cols, input.epsilon, normed);
      else if (copies)
        std::memcpy(normed, x, cols * sizeof(float));
      if (has_blocks)
        kernels_.make_blocks(copies ? normed : x, input.cols, blocks_ + t * (cols / kBlockCols));
    }
  });
  return copies ? normed_ : input.x;
}

// tiles (token_count, 16) = the rows of each M-tile times the tokens.
void Linear::multiply(const Weight& weight, uint32_t m_tile, uint32_t m_tile_count,
                      uint32_t first_token, uint32_t token_count, const ThreadWork& work,
                      float* tiles) const {
  const uint32_t cols = weight.cols;
  const float* x = x_ + uint64_t{first_token} * cols;
  if (weight.layout == Layout::kHost16) {
    const MTileKernel kernel = kernels_.find_m_tile_kernel(weight.type);
    const quant::Format& format = *quant::find_format(weight.type);
    const uint64_t row_bytes = uint64_t{cols} / format.block_elements * format.block_bytes;
    const uint8_t* data =
        static_cast<const uint8_t*>(weight.data) + uint64_t{m_tile} * kMTileRows * row_bytes;
    const uint64_t block_count = cols / kBlockCols;
    if (kernel.run_blocks != nullptr)
      return kernel.run_blocks(data, m_tile_count, cols, blocks_ + first_token * block_count,
                               block_count, token_count, tiles);
    if (kernel.run_floats != nullptr)
      return kernel.run_floats(data, m_tile_count, cols, x, cols, token_count, tiles);
  }
  // Computes row by row. Each row is first expanded to f32.
  for (uint32_t i = 0; i < m_tile_count; ++i) {
    float* tile = tiles + i * kTileFloats;
    const uint32_t first_row = (m_tile + i) * kMTileRows;
    const uint32_t row_count = std::min(kMTileRows, weight.rows - first_row);
    if (row_count < kMTileRows) std::fill(tile, tile + token_count * kMTileRows, 0.0f);
    for (uint32_t r = 0; r < row_count; ++r) {
      // This cannot fail, because run() has checked type and shape; if it did, NaN would fail the
      // row.
      const Status status = expand_row(weight, first_row + r, work.row_work, work.row);
      if (!status.ok()) std::fill(work.row, work.row + cols, NAN);
      kernels_.dot(work.row, cols, x, cols, token_count, tile + r, kMTileRows);
    }
  }
}

void Linear::finish_m_tiles(const Product& product, uint32_t m_tile, uint32_t m_tile_count,
                            uint32_t first_token, uint32_t token_count,
                            const ThreadWork& work) const {
  multiply(product.weight, m_tile, m_tile_count, first_token, token_count, work, work.tiles);
  if (has_up(product))
    multiply(product.up, m_tile, m_tile_count, first_token, token_count, work, work.up_tiles);
  for (uint32_t i = 0; i < m_tile_count; ++i) {
    const uint32_t first_row = (m_tile + i) * kMTileRows;
    const uint32_t row_count = std::min(kMTileRows, product.weight.rows - first_row);
    float* tile = work.tiles + i * kTileFloats;
    add_bias(product.bias, first_row, row_count, token_count, tile);
    if (has_up(product)) {
      float* up_tile = work.up_tiles + i * kTileFloats;
      add_bias(product.up_bias, first_row, row_count, token_count, up_tile);
      const auto activate =
          product.output == Output::kSiluMultiply ? kernels_.silu_multiply : kernels_.gelu_multiply;
      activate(tile, up_tile, token_count * kMTileRows, tile);
    }
  }
  for (uint32_t t = 0; t < token_count; ++t) {
    float* target = product.target + (first_token + t) * uint64_t{product.weight.rows};
    for (uint32_t i = 0; i < m_tile_count; ++i) {
      const uint32_t first_row = (m_tile + i) * kMTileRows;
      const uint32_t row_count = std::min(kMTileRows, product.weight.rows - first_row);
      const float* source = work.tiles + i * kTileFloats + t * kMTileRows;
      if (product.output == Output::kAdd)
        for (uint32_t r = 0; r < row_count; ++r) target[first_row + r] += source[r];
      else
        for (uint32_t r = 0; r < row_count; ++r) target[first_row + r] = source[r];
    }
  }
}

Status Linear::run(const Input& input, const Product* products, uint32_t product_count) {
  WCUDA_TRY(check(input, products, product_count));
  if (input.token_count == 0) return {};
  uint32_t first_m_tile[kProductsMax + 1] = {};
  bool has_blocks = false;
  for (uint32_t i = 0; i < product_count; ++i) {
    const Product& product = products[i];
    first_m_tile[i + 1] = first_m_tile[i] + m_tile_count(product.weight);
    for (const Weight* weight : {&product.weight, &product.up})
      has_blocks |= weight->layout == Layout::kHost16 &&
                    kernels_.find_m_tile_kernel(weight->type).run_blocks != nullptr;
  }
  x_ = prepare_input(input, has_blocks);

  const uint32_t all_m_tiles = first_m_tile[product_count];
  const uint32_t block_tokens = std::min(input.token_count, kTokenBlock);
  const uint64_t m_tile_products = uint64_t{input.cols} * kMTileRows * block_tokens;
  const auto m_tiles_a_chunk = static_cast<uint32_t>(
      std::max<uint64_t>(kChunkProducts / m_tile_products / kMTilesMax, 1) * kMTilesMax);
  const auto groups = static_cast<uint32_t>(ceil_div(all_m_tiles, m_tiles_a_chunk));
  const auto blocks = static_cast<uint32_t>(ceil_div(input.token_count, kTokenBlock));
  pool_.parallel_for(groups * blocks, [&](uint32_t chunk, uint32_t thread) {
    const uint32_t first_token = chunk / groups * kTokenBlock;
    const uint32_t token_count = std::min(kTokenBlock, input.token_count - first_token);
    const uint32_t begin = chunk % groups * m_tiles_a_chunk;
    const uint32_t end = std::min(begin + m_tiles_a_chunk, all_m_tiles);
    const ThreadWork work = thread_work(thread);
    for (uint32_t s = begin, i = 0, count = 0; s < end; s += count) {
      while (s >= first_m_tile[i + 1]) ++i;
      count = std::min({kMTilesMax, end - s, first_m_tile[i + 1] - s});
      finish_m_tiles(products[i], s - first_m_tile[i], count, first_token, token_count, work);
    }
  });
  return {};
}

}  // namespace wcuda::ops::host
