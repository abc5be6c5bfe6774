// The operations of a forward pass, once, for every backend. engine/forward.cpp calls them in
// order; an implementation queues work on its stream (CUDA) or computes at once (host).
#pragma once

#include <cstdint>
#include <memory>

#include "core/backend/backend.h"
#include "core/base/status.h"
#include "llm/quant/layout.h"

namespace wcuda::kernels {
struct StepStart;
}

namespace wcuda::ops {

using quant::Layout;

// A matrix of `rows` outputs by `cols` inputs, resident on the device. data null: absent.
struct Weight {
  const void* data = nullptr;
  uint64_t bytes = 0;
  uint32_t type = 0;  // ggml type id
  Layout layout = Layout::kRows;
  uint32_t rows = 0;
  uint32_t cols = 0;
};

// f32, on the device; null: absent. Norm gains, biases, rope frequencies.
using Vector = const float*;

enum class RopePairing : uint32_t {
  kAdjacent,  // (0, 1), (2, 3), …: llama
  kHalves,    // (i, i + n/2): qwen, neox
};

struct Rope {
  RopePairing pairing = RopePairing::kAdjacent;
  uint32_t dimension_count = 0;  // first dimensions of a head that are turned; even
  Vector frequencies = nullptr;  // (dimension_count / 2) radians a position, scaling applied
  float magnitude = 1.0f;        // cos and sin are multiplied by it (YaRN)
};

enum class Activation : uint32_t { kSilu, kGeluTanh };

enum class KvType : uint32_t { kF16 = 0, kQ8_0 = 1, kFp8E4m3 = 2 };
constexpr uint32_t kPageTokens = 64;

// The pool of key-value pages. One page holds kPageTokens positions of one sequence in all layers.
// Row (layer, page, head, slot) of keys is at
//   data + (((layer * page_count + page) * 2 + 0) * head_count + head) * kPageTokens + slot) *
//   row_bytes
// and of values with 1 for 0. A row is head_length values: f16; q8_0 blocks (f16 scale, 32 int8);
// e4m3.
struct KvPool {
  uint8_t* data = nullptr;
  KvType type = KvType::kF16;
  uint32_t layer_count = 0;
  uint32_t page_count = 0;
  uint32_t head_count = 0;   // key-value heads
  uint32_t head_length = 0;  // elements of one head, keys and values alike
  uint32_t row_bytes = 0;    // kv_row_bytes(type, head_length)

  uint64_t plane_bytes() const { return uint64_t{head_count} * kPageTokens * row_bytes; }
  uint8_t* keys(uint32_t layer, uint32_t page) const {
    return data + (uint64_t{layer} * page_count + page) * 2 * plane_bytes();
  }
  uint8_t* values(uint32_t layer, uint32_t page) const { return keys(layer, page) + plane_bytes(); }
};
// Bytes of one row of `head_length` elements; 0 when the type cannot hold that length.
uint32_t kv_row_bytes(KvType type, uint32_t head_length);

// One row of a step: consecutive tokens of one sequence.
struct BatchRow {
  uint32_t first_token;  // index into tokens and positions
  uint32_t token_count;
  uint32_t first_position;  // of its first token; it attends to positions 0 … its own
  uint32_t sequence_slot;
};

// What a step computes on; all arrays in device memory.
struct Batch {
  uint32_t token_count = 0;
  uint32_t row_count = 0;
  uint32_t page_table_stride = 0;  // entries a row of page_tables
  // Bounds that hold for every step of a captured graph.
  uint32_t min_row_tokens = 0;           // no row has fewer tokens
  uint32_t max_row_tokens = 0;           // no row has more tokens
  uint32_t max_positions = 0;            // no row reaches past position max_positions - 1
  const int32_t* tokens = nullptr;       // (token_count)
  const uint32_t* positions = nullptr;   // (token_count)
  const uint32_t* token_rows = nullptr;  // (token_count) row of each token
  const BatchRow* rows = nullptr;        // (row_count) rows of 0 tokens do nothing
  // (row_count, page_table_stride) page of each 64 positions
  const uint32_t* page_tables = nullptr;
  // What begin_step() of a CUDA device is to do besides, that fills these arrays; null: nothing.
  const kernels::StepStart* start = nullptr;
};

// Values of Batch::max_positions at which attention on CUDA, in steps of few rows, changes its
// kernels: up to the first one block has all of a row and head, up to the second a cluster of them.
constexpr uint32_t kLonePositionsMax = 256;
constexpr uint32_t kClusterPositionsMax = 8192;

// out (token_count, dim) = rows of the table.
struct EmbedArgs {
  const Batch* batch;
  Weight table;  // (vocabulary, dim)
  float scale;   // multiplies the result; 1 for most families
  float* out;
};

// q = rope(norm(Wq·h + bq)), keys and values likewise into the pool, where h = rms_norm(x) * norm.
struct AttentionInputArgs {
  const Batch* batch;
  const float* x;  // (token_count, dim)
  Vector norm;     // (dim)
  float epsilon;
  Weight query, key, value;
  Vector query_bias, key_bias, value_bias;  // may be null
  Vector query_norm, key_norm;              // (head_length) rms norm of each head; may be null
  Rope rope;
  uint32_t head_count;  // query heads
  KvPool pool;
  uint32_t layer;
  float* query_out;  // (token_count, head_count * head_length)
};

// out = softmax(scale * q·k) · v over positions max(0, p - window + 1) … p.
struct AttentionArgs {
  const Batch* batch;
  const float* query;  // (token_count, head_count * head_length)
  uint32_t head_count;
  float scale;
  uint32_t window;  // 0: all positions
  KvPool pool;
  uint32_t layer;
  float* out;  // (token_count, head_count * head_length)
};

// residual += W·x + bias.
struct ProjectArgs {
  uint32_t token_count;
  const float* x;  // (token_count, weight.cols)
  Weight weight;
  Vector bias;      // (weight.rows), may be null
  float* residual;  // (token_count, weight.rows)
};

// out = activation(Wgate·h + bgate) * (Wup·h + bup), h = rms_norm(x) * norm.
struct FeedForwardInputArgs {
  uint32_t token_count;
  const float* x;  // (token_count, dim)
  Vector norm;
  float epsilon;
  Weight gate, up;
  Vector gate_bias, up_bias;  // may be null
  Activation activation;
  float* out;  // (token_count, gate.rows)
};

// logits[i] = W · (rms_norm(x[token_indices[i]]) * norm).
struct LogitsArgs {
  uint32_t logits_count;
  const uint32_t* token_indices;  // (logits_count) into the batch's tokens, device memory
  const float* x;                 // (token_count, dim)
  Vector norm;
  float epsilon;
  Weight output;  // (vocabulary, dim)
  Vector bias;    // (vocabulary), may be null
  float* logits;  // (logits_count, vocabulary)
};

// The sizes an engine is made for.
struct Limits {
  uint32_t max_batch_tokens;
  uint32_t max_batch_rows;
  uint32_t max_logits_rows;
  uint32_t max_sequence_tokens;
  uint32_t embedding_length;
  uint32_t feed_forward_length;
  uint32_t head_count;
  uint32_t kv_head_count;
  uint32_t head_length;
  uint32_t vocabulary_size;
  bool batch_invariant;  // a row's result may not depend on what else is in the step
};

// One implementation a backend, one object an engine. Every function checks its shapes (a mismatch
// is an internal error: the caller is the engine) and is deterministic: fixed order of sums.
class Ops {
 public:
  virtual ~Ops() = default;
  // Device memory this implementation needs besides what its arguments name, for these limits.
  virtual uint64_t scratch_bytes(const Limits& limits) const = 0;
  // Called once, before anything else: `scratch` has scratch_bytes(limits) bytes, aligned to 256.
  virtual Status prepare(const Limits& limits, void* scratch) = 0;
  // Does now what the first step of each shape would otherwise do.
  virtual Status warm_up() = 0;
  // Where the operations are queued; the host's compute at once.
  virtual Stream stream() const { return {}; }

  // Comes first in every step: what the attention of all layers shares. `window` as in
  // AttentionArgs.
  virtual Status begin_step(const Batch& batch, const KvPool& pool, uint32_t window) = 0;

  virtual Status embed(const EmbedArgs& args) = 0;
  virtual Status attention_input(const AttentionInputArgs& args) = 0;
  virtual Status attention(const AttentionArgs& args) = 0;
  virtual Status project(const ProjectArgs& args) = 0;
  virtual Status feed_forward_input(const FeedForwardInputArgs& args) = 0;
  virtual Status logits(const LogitsArgs& args) = 0;
  // Comes last: until then an implementation may hold back what it was asked for.
  virtual Status end_step() { return {}; }
};

// The layout in which `backend` wants a matrix of this type and shape, and the bytes it takes
// there. Pure. `is_embedding`: rows are also gathered one by one (Ops::embed).
struct LayoutChoice {
  Layout layout;
  uint64_t bytes;
};
Result<LayoutChoice> weight_layout(const Backend& backend, uint32_t type, uint32_t rows,
                                   uint32_t cols, bool is_embedding);

// The implementation for a backend; WCUDA_NOT_AVAILABLE where there is none yet.
Result<std::unique_ptr<Ops>> make_ops(std::shared_ptr<Backend> backend);

}  // namespace wcuda::ops
