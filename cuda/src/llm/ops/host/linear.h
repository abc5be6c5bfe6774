// Matrix products of the host: y = W·x for some tokens, in chunks of M-tiles of 16 rows.
#pragma once

#include <cstdint>

#include "core/base/status.h"
#include "core/base/thread_pool.h"
#include "llm/ops/host/kernels.h"
#include "llm/ops/ops.h"

namespace wcuda::ops::host {

// The epilogue of the products of one matrix.
enum class Output {
  kStore,         // target = y + bias
  kAdd,           // target += y + bias
  kSiluMultiply,  // target = silu(y + bias) * (up·x + up_bias)
  kGeluMultiply,  // target = gelu(y + bias) * (up·x + up_bias)
};

struct Product {
  Weight weight;
  Vector bias = nullptr;
  Output output = Output::kStore;
  float* target = nullptr;  // (token_count, weight.rows)
  Weight up;                // only for …Multiply; it has the shape of `weight`
  Vector up_bias = nullptr;
};

// The input of the products: h = x, or rms_norm(x) * norm.
struct Input {
  const float* x = nullptr;  // (…, cols)
  uint32_t token_count = 0;
  uint32_t cols = 0;
  const uint32_t* token_indices = nullptr;  // (token_count) rows of x; null: the first ones
  Vector norm = nullptr;                    // (cols); null: no norm
  float epsilon = 0.0f;
};

class Linear {
 public:
  Linear(ThreadPool& pool, const Kernels& kernels) : pool_(pool), kernels_(kernels) {}

  // Returns the bytes of memory for inputs of up to `token_count` tokens by `cols_max` columns.
  uint64_t work_bytes(uint32_t token_count, uint32_t cols_max) const;
  // Must be called before the first run. `work` is aligned to 256 bytes.
  void prepare(uint32_t token_count, uint32_t cols_max, uint8_t* work);

  // Computes up to kProductsMax products of one input. One thread computes each element of a
  // target, which depends only on its own row and token.
  static constexpr uint32_t kProductsMax = 3;
  Status run(const Input& input, const Product* products, uint32_t product_count);

  // Expands one row of a matrix to f32. row_work has at least row_work_bytes(weight.cols) bytes.
  static uint64_t row_work_bytes(uint32_t cols) { return uint64_t{cols} * 4; }
  static Status expand_row(const Weight& weight, uint32_t row, uint8_t* row_work, float* out);

 private:
  struct Work;
  struct ThreadWork;
  Work lay_out(uint32_t token_count, uint32_t cols_max, uint8_t* base) const;
  ThreadWork thread_work(uint32_t thread) const;
  Status check(const Input& input, const Product* products, uint32_t product_count) const;
  const float* prepare_input(const Input& input, bool has_blocks);
  void multiply(const Weight& weight, uint32_t m_tile, uint32_t m_tile_count, uint32_t first_token,
                uint32_t token_count, const ThreadWork& work, float* tiles) const;
  void finish_m_tiles(const Product& product, uint32_t m_tile, uint32_t m_tile_count,
                      uint32_t first_token, uint32_t token_count, const ThreadWork& work) const;

  ThreadPool& pool_;
  const Kernels& kernels_;
  uint32_t token_count_max_ = 0;
  uint32_t cols_max_ = 0;
  float* normed_ = nullptr;       // (tokens, cols)
  InputBlock* blocks_ = nullptr;  // (tokens, cols / 32)
  uint8_t* threads_ = nullptr;    // (threads) ThreadWork
  const float* x_ = nullptr;      // (tokens, cols) of the products now running
};

}  // namespace wcuda::ops::host
