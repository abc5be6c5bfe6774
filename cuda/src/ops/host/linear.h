// Matrix products of the host: y = W·x for some tokens, in chunks of 16-row strips.
#pragma once

#include <cstdint>

#include "base/status.h"
#include "base/thread_pool.h"
#include "ops/host/kernels.h"
#include "ops/ops.h"

namespace wcuda::ops::host {

// What becomes of the products of one matrix.
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
  Weight up;                // only for …Multiply; of the shape of `weight`
  Vector up_bias = nullptr;
};

// Tokens that a product reads.
struct Input {
  const float* x;  // (token_count, cols)
  uint32_t token_count;
  uint32_t cols;
};

constexpr uint32_t kTokenBlock = 64;  // tokens of one chunk

class Linear {
 public:
  Linear(ThreadPool& pool, const Kernels& kernels) : pool_(pool), kernels_(kernels) {}

  // Memory for inputs of up to `cols_max` columns and `token_count` tokens.
  uint64_t work_bytes(uint32_t token_count, uint32_t cols_max) const;
  // Before the first run; `work` is aligned to 64 bytes.
  void prepare(uint32_t token_count, uint32_t cols_max, uint8_t* work);

  // Computes up to kProductsMax products of one input. Each element of a target is the work of one
  // thread and depends on its own row and token alone.
  static constexpr uint32_t kProductsMax = 3;
  Status run(const Input& input, const Product* products, uint32_t product_count);

  // One row of a matrix as f32. row_work: two rows' bytes… see row_work_bytes.
  static uint64_t row_work_bytes(uint32_t cols_max) { return uint64_t{cols_max} * 4; }
  static Status expand_row(const Weight& weight, uint32_t row, uint8_t* row_work, float* out);

 private:
  struct ThreadWork;
  ThreadWork thread_work(uint32_t thread) const;
  void plain_strip(const Weight& weight, uint32_t strip, const Input& input, uint32_t first_token,
                   uint32_t token_count, const ThreadWork& work, float* tile) const;
  void strip(const Product& product, uint32_t strip, const Input& input, uint32_t first_token,
             uint32_t token_count, const ThreadWork& work) const;

  ThreadPool& pool_;
  const Kernels& kernels_;
  uint8_t* work_ = nullptr;
  uint64_t thread_work_bytes_ = 0;
  uint32_t cols_max_ = 0;
};

}  // namespace wcuda::ops::host
