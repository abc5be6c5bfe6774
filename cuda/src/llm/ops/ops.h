// The operations of a forward pass, once, for every backend. engine/forward.cpp calls them in
// order; an implementation queues work on its stream (CUDA) or computes at once (host).
#pragma once

#include <cstdint>
#include <memory>

#include "core/backend/backend.h"
#include "core/base/status.h"
#include "kernels/shared/kv_pages.h"
#include "kernels/shared/step_inputs.h"
#include "llm/model/weight.h"
#include "llm/ops/step_plan.h"

namespace wcuda::ops {

using kernels::StepRow;
using model::Activation;
using model::RopePairing;
using model::Vector;
using model::Weight;
using quant::Layout;

struct Rope {
  RopePairing pairing = RopePairing::kAdjacent;
  uint32_t dimension_count = 0;  // first dimensions of a head that are turned; even
  Vector frequencies = nullptr;  // (dimension_count / 2) radians a position, scaling applied
  float magnitude = 1.0f;        // cos and sin are multiplied by it (YaRN)
};

enum class KvType : uint32_t { kF16 = 0, kQ8_0 = 1, kFp8E4m3 = 2 };
constexpr uint32_t kPageTokens = kernels::kPagePositions;

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

// What a step computes on; all arrays in device memory.
struct Batch {
  uint32_t token_count = 0;
  uint32_t row_count = 0;
  uint32_t page_table_stride = 0;  // entries a row of page_tables
  // Bounds that hold for every step of a captured graph.
  uint32_t max_row_tokens = 0;           // no row has more tokens
  uint32_t max_positions = 0;            // no row reaches past position max_positions - 1
  const int32_t* tokens = nullptr;       // (token_count)
  const uint32_t* positions = nullptr;   // (token_count)
  const uint32_t* token_rows = nullptr;  // (token_count) row of each token
  const StepRow* rows = nullptr;         // (row_count) rows of 0 tokens do nothing
  // (row_count, page_table_stride) page of each 64 positions
  const uint32_t* page_tables = nullptr;
};

// The work before a step's first layer, and what the attention of all layers shares.
struct StartArgs {
  const Batch* batch;
  // Nodes scatter_inputs, begin_rows and start_step: they fill the batch's arrays.
  const kernels::StepStart* inputs;
  KvPool pool;
  uint32_t window;  // as in AttentionArgs
  Rope rope;        // node rotary_table
};

// out (token_count, dim) = rows of the table.
struct EmbedArgs {
  const Batch* batch;
  Weight table;  // (vocabulary, dim)
  float scale;   // multiplies the result; 1 for most families
  float* out;
};

constexpr uint32_t kLinearWeightsMax = 3;

enum class Epilogue : uint32_t {
  kStore,  // outputs[i] = W_i·h + bias_i
  kAdd,    // outputs[0] += W_0·h + bias_0
  kGate,   // outputs[0] = activation(W_0·h + bias_0) * (W_1·h + bias_1)
};

// A linear layer of up to three weights that read the same input, h = x or rms_norm(x) * norm.
struct LinearArgs {
  uint32_t token_count;
  const float* x;                 // (token_count, cols), or the rows token_indices of it
  const uint32_t* token_indices;  // (token_count) device memory; may be null
  Vector norm;                    // (cols); null: none
  float epsilon;
  uint32_t weight_count;
  Weight weights[kLinearWeightsMax];  // of the same cols; kGate: gate and up
  Vector biases[kLinearWeightsMax];   // (rows) of each; may be null
  Epilogue epilogue;
  Activation activation;
  float* outputs[kLinearWeightsMax];  // (token_count, rows) of each; of a gate the first
};

// query = rope(norm(query)) in place; rope(norm(key)) and value into the pages. `key` may be
// changed.
struct RopeKvArgs {
  const Batch* batch;
  float* query;                 // (token_count, head_count * head_length)
  float* key;                   // (token_count, pool.head_count * head_length)
  const float* value;           // the same shape
  Vector query_norm, key_norm;  // (head_length) rms norm of each head; may be null
  float epsilon;
  Rope rope;
  uint32_t head_count;  // query heads
  KvPool pool;
  uint32_t layer;
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
  // Where the node's input is unrotated: what rope_kv would be given.
  const RopeKvArgs* rope_kv = nullptr;
  float softcap = 0.0f;  // scores become softcap * tanh(score / softcap); 0: unchanged
  // (head_count) an extra score of each head in the softmax, whose value is 0; may be null
  Vector sinks = nullptr;
};

// values = softcap * tanh(values / softcap), in place.
struct SoftcapArgs {
  float* values;  // (count)
  uint64_t count;
  float softcap;  // above 0
};

// One implementation a backend, one object an engine. Every function does what the node says,
// checks its shapes (a mismatch is an internal error: the caller is the engine) and is
// deterministic: fixed order of sums. Nothing is kept between calls: results depend on arguments,
// on the memory that they name, and on what earlier nodes of the step left in the scratch memory.
class Ops {
 public:
  virtual ~Ops() = default;
  virtual const DeviceTraits& device() const = 0;
  // Device memory this implementation needs besides what its arguments name, for these limits.
  virtual uint64_t scratch_bytes(const Limits& limits) const = 0;
  // Called once, before anything else: `scratch` has scratch_bytes(limits) bytes, aligned to 256.
  virtual Status prepare(const Limits& limits, void* scratch) = 0;
  // Does now what the first step of each shape would otherwise do.
  virtual Status warm_up() = 0;
  // Where the operations are queued; the host's compute at once.
  virtual Stream stream() const { return {}; }

  virtual Status start(const Node& node, const StartArgs& args) = 0;
  virtual Status embed(const Node& node, const EmbedArgs& args) = 0;
  virtual Status linear(const Node& node, const LinearArgs& args) = 0;
  // Layers of one token, each of which reads what the one ahead computes, as one kernel.
  virtual Status persistent_layers(const Node& node, const LinearArgs* layers, uint32_t count) = 0;
  virtual Status rope_kv(const Node& node, const RopeKvArgs& args) = 0;
  virtual Status attention(const Node& node, const AttentionArgs& args) = 0;
  virtual Status softcap(const Node& node, const SoftcapArgs& args) = 0;
};

// The implementation for a backend; WCUDA_NOT_AVAILABLE where there is none yet.
Result<std::unique_ptr<Ops>> make_ops(std::shared_ptr<Backend> backend);

}  // namespace wcuda::ops
