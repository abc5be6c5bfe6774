// Chunks of the host's matrix products, and what is done with their results.
#include "ops/host/linear.h"

#include <algorithm>
#include <cmath>

#include "base/checked.h"
#include "quant/format.h"
#include "quant/layout_host.h"

namespace wcuda::ops::host {
namespace {

constexpr uint32_t kStripRows = quant::kStripRows;
constexpr uint64_t kTileFloats = uint64_t{kTokenBlock} * kStripRows;

// Multiplications of one chunk: some microseconds of work.
constexpr uint64_t kChunkProducts = 128 * 1024;

uint32_t strip_count(const Weight& weight) {
  return static_cast<uint32_t>(ceil_div(weight.rows, kStripRows));
}

Status check_weight(const Weight& weight, uint32_t cols, uint32_t cols_max) {
  WCUDA_CHECK(weight.data != nullptr && weight.rows > 0);
  WCUDA_CHECK(weight.cols == cols && cols <= cols_max);
  const quant::Format* format = quant::find_format(weight.type);
  WCUDA_CHECK(format != nullptr && format->is_loadable && cols % format->block_elements == 0);
  WCUDA_ASSIGN(const uint64_t bytes,
               quant::host_layout_bytes(weight.type, weight.layout, weight.rows, weight.cols));
  WCUDA_CHECK(weight.bytes == 0 || weight.bytes >= bytes);
  return {};
}

// tile (token_count, 16): adds the bias of rows first_row …
void add_bias(Vector bias, uint32_t first_row, uint32_t row_count, uint32_t token_count,
              float* tile) {
  if (bias == nullptr) return;
  for (uint32_t t = 0; t < token_count; ++t)
    for (uint32_t r = 0; r < row_count; ++r) tile[t * kStripRows + r] += bias[first_row + r];
}

}  // namespace

struct Linear::ThreadWork {
  float* tile;        // (kTokenBlock, 16)
  float* up_tile;     // likewise
  float* row;         // (cols_max) one row expanded
  uint8_t* row_work;  // row_work_bytes(cols_max)
};

Linear::ThreadWork Linear::thread_work(uint32_t thread) const {
  ThreadWork work;
  work.tile = reinterpret_cast<float*>(work_ + thread * thread_work_bytes_);
  work.up_tile = work.tile + kTileFloats;
  work.row = work.up_tile + kTileFloats;
  work.row_work = reinterpret_cast<uint8_t*>(work.row + align_up(cols_max_, 16));
  return work;
}

uint64_t Linear::work_bytes(uint32_t, uint32_t cols_max) const {
  const uint64_t one = align_up(
      (2 * kTileFloats + align_up(cols_max, 16)) * sizeof(float) + row_work_bytes(cols_max), 64);
  return one * pool_.thread_count();
}

void Linear::prepare(uint32_t token_count, uint32_t cols_max, uint8_t* work) {
  work_ = work;
  cols_max_ = cols_max;
  thread_work_bytes_ = work_bytes(token_count, cols_max) / pool_.thread_count();
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

// tile (token_count, 16) = the strip's rows times the tokens, each row expanded to f32 first.
void Linear::plain_strip(const Weight& weight, uint32_t strip, const Input& input,
                         uint32_t first_token, uint32_t token_count, const ThreadWork& work,
                         float* tile) const {
  const uint32_t first_row = strip * kStripRows;
  const uint32_t row_count = std::min(kStripRows, weight.rows - first_row);
  const float* x = input.x + uint64_t{first_token} * input.cols;
  if (row_count < kStripRows) std::fill(tile, tile + token_count * kStripRows, 0.0f);
  for (uint32_t r = 0; r < row_count; ++r) {
    // Cannot fail: run() has checked type and shape. If it did, NaN would end the row of the step.
    const Status status = expand_row(weight, first_row + r, work.row_work, work.row);
    if (!status.ok()) std::fill(work.row, work.row + input.cols, NAN);
    kernels_.dot(work.row, input.cols, x, input.cols, token_count, tile + r, kStripRows);
  }
}

void Linear::strip(const Product& product, uint32_t strip, const Input& input, uint32_t first_token,
                   uint32_t token_count, const ThreadWork& work) const {
  const uint32_t first_row = strip * kStripRows;
  const uint32_t row_count = std::min(kStripRows, product.weight.rows - first_row);
  plain_strip(product.weight, strip, input, first_token, token_count, work, work.tile);
  add_bias(product.bias, first_row, row_count, token_count, work.tile);
  if (product.output == Output::kSiluMultiply || product.output == Output::kGeluMultiply) {
    plain_strip(product.up, strip, input, first_token, token_count, work, work.up_tile);
    add_bias(product.up_bias, first_row, row_count, token_count, work.up_tile);
    const auto multiply =
        product.output == Output::kSiluMultiply ? kernels_.silu_multiply : kernels_.gelu_multiply;
    multiply(work.tile, work.up_tile, token_count * kStripRows, work.tile);
  }
  for (uint32_t t = 0; t < token_count; ++t) {
    const float* source = work.tile + t * kStripRows;
    float* target = product.target + (first_token + t) * uint64_t{product.weight.rows} + first_row;
    if (product.output == Output::kAdd)
      for (uint32_t r = 0; r < row_count; ++r) target[r] += source[r];
    else
      for (uint32_t r = 0; r < row_count; ++r) target[r] = source[r];
  }
}

Status Linear::run(const Input& input, const Product* products, uint32_t product_count) {
  WCUDA_CHECK(product_count > 0 && product_count <= kProductsMax && work_ != nullptr);
  uint32_t first_strip[kProductsMax + 1] = {};
  for (uint32_t i = 0; i < product_count; ++i) {
    const Product& product = products[i];
    WCUDA_TRY(check_weight(product.weight, input.cols, cols_max_));
    if (product.output == Output::kSiluMultiply || product.output == Output::kGeluMultiply) {
      WCUDA_TRY(check_weight(product.up, input.cols, cols_max_));
      WCUDA_CHECK(product.up.rows == product.weight.rows);
    }
    WCUDA_CHECK(product.target != nullptr);
    first_strip[i + 1] = first_strip[i] + strip_count(product.weight);
  }
  if (input.token_count == 0) return {};

  const uint32_t all_strips = first_strip[product_count];
  const uint32_t block_tokens = std::min(input.token_count, kTokenBlock);
  const uint64_t strip_products = uint64_t{input.cols} * kStripRows * block_tokens;
  const auto strips_a_chunk =
      static_cast<uint32_t>(std::clamp<uint64_t>(kChunkProducts / strip_products, 1, all_strips));
  const auto groups = static_cast<uint32_t>(ceil_div(all_strips, strips_a_chunk));
  const auto blocks = static_cast<uint32_t>(ceil_div(input.token_count, kTokenBlock));
  pool_.parallel_for(groups * blocks, [&](uint32_t chunk, uint32_t thread) {
    const uint32_t first_token = chunk / groups * kTokenBlock;
    const uint32_t token_count = std::min(kTokenBlock, input.token_count - first_token);
    const uint32_t begin = chunk % groups * strips_a_chunk;
    const uint32_t end = std::min(begin + strips_a_chunk, all_strips);
    const ThreadWork work = thread_work(thread);
    for (uint32_t s = begin, i = 0; s < end; ++s) {
      while (s >= first_strip[i + 1]) ++i;
      strip(products[i], s - first_strip[i], input, first_token, token_count, work);
    }
  });
  return {};
}

}  // namespace wcuda::ops::host
