// The operations of a forward pass: one interface for all backends. engine/forward.cpp calls them
// in order. An implementation queues the work on its stream (CUDA) or computes immediately (host).
#pragma once

#include <cstdint>
#include <memory>

#include "core/backend/backend.h"
#include "core/base/status.h"
#include "kernels/shared/feature_pages.h"
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
  uint32_t dimension_count = 0;  // the first dimensions of a head, which are rotated; even
  Vector frequencies = nullptr;  // (dimension_count / 2) radians per position, scaled
  float magnitude = 1.0f;        // cos and sin are multiplied by it (YaRN)
};

using KvType = kernels::KvFormat;
constexpr uint32_t kPageTokens = kernels::kPagePositions;

// The pool of key-value pages. One page holds kPageTokens positions of one sequence in all layers.
// A row is head_length values in f16, q8_0 (blocks of an f16 scale and 32 int8), e4m3 or int10
// (int10_row.h).
struct KvPool : kernels::KvPages {
  uint32_t layer_count = 0;  // with those that hold features

  uint64_t plane_bytes() const { return uint64_t{head_count} * kPageTokens * row_bytes; }
  uint8_t* keys(uint32_t layer, uint32_t page) const {
    return data + (uint64_t{layer} * page_count + page) * 2 * plane_bytes();
  }
  uint8_t* values(uint32_t layer, uint32_t page) const { return keys(layer, page) + plane_bytes(); }
};

// Returns the bytes of one row of `head_length` elements, or 0 if the type has no such rows.
uint32_t kv_row_bytes(KvType type, uint32_t head_length);

// The inputs of a step. All arrays are in device memory.
struct Batch : kernels::StepRows {
  // Bounds that hold for every step of a captured graph.
  uint32_t max_row_tokens = 0;      // no row has more tokens
  uint32_t max_positions = 0;       // no row reaches past position max_positions - 1
  const int32_t* tokens = nullptr;  // (token_count)
  bool has_shared_prefix = false;   // this and the next two as in StepShape
  uint32_t expanded_heads = 0;
  bool has_drafts = false;
  bool has_persistent_layers = false;  // of the step's plan
};

// The work before the first layer of a step, including that which the attention of all layers uses.
struct StartArgs {
  const Batch* batch;
  // Where the inputs are and what they fill, for the nodes scatter_inputs, begin_rows and
  // start_step. On the host no plan has these nodes; the caller fills the batch's arrays.
  const kernels::StepStart* inputs;
  KvPool pool;
  uint32_t window;  // as in AttentionArgs
  Rope rope;        // node rotary_table
};

// out (token_count, dim) = rows of the table * scale.
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

// The largest L2 norms of rows of gate and of up. Multiplied by the norm of a token's input they
// bound its outputs.
struct GateNorms {
  float gate = 0.0f, up = 0.0f;
};

// A linear layer of up to three weights that read the same input, h = x or rms_norm(x) * norm.
struct LinearArgs {
  uint32_t token_count;
  const float* x;                 // (token_count, cols), or rows token_indices of a larger array
  const uint32_t* token_indices;  // (token_count) device memory; may be null
  Vector norm;                    // (cols); may be null
  float epsilon;
  uint32_t weight_count;
  Weight weights[kLinearWeightsMax];  // all with the same cols; for kGate gate and up
  Vector biases[kLinearWeightsMax];   // (rows) of each; may be null
  Epilogue epilogue;
  Activation activation;
  // (token_count, rows) of each; kGate uses the first. In the form kHalf the memory of as many
  // floats holds f16 activations in the order in which packed_gemm reads them.
  float* outputs[kLinearWeightsMax];
  // If the node's output is kHalf: the matrix that reads it, and bounds.
  const Weight* reader = nullptr;
  const GateNorms* gate_norms = nullptr;
};

// query = rope(norm(query)) in place; the pages get rope(norm(key)) and value. May change `key`.
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
  // (token_count, head_count * head_length). In the forms kHalf and kBatchHalf the memory of as
  // many floats holds f16 activations in the order in which `reader` reads them.
  float* out;
  // If the node's input is unrotated: the arguments that rope_kv would otherwise receive.
  const RopeKvArgs* rope_kv = nullptr;
  float softcap = 0.0f;  // scores become softcap * tanh(score / softcap); 0: unchanged
  // (head_count) an extra score of each head in the softmax, whose value is 0; may be null
  Vector sinks = nullptr;
  const Weight* reader = nullptr;  // the output projection
};

// Keeps x for a draft head: in the thirds j of the features whose bit j is set in `thirds`.
struct KeepFeaturesArgs {
  const Batch* batch;
  const float* x;  // (token_count, pages.width / 3)
  kernels::FeaturePages pages;
  uint32_t thirds;
};

// out = the features, or rms_norm(features) * norm; 0 for tokens of rows without kRowFeatures.
struct ReadFeaturesArgs {
  const Batch* batch;
  kernels::FeaturePages pages;  // of the target
  // (row_count, page_table_stride) pages of the target's sequences
  const uint32_t* page_tables;
  uint32_t page_table_stride;
  Vector norm;  // (pages.width) may be null
  float epsilon;
  float* out;  // (token_count, pages.width)
};

// The input of the layer of a draft head. With s = g, or the state of the sequence of a row without
// kRowFeatures: input = concat(rms_norm(embedding) * token_norm, rms_norm(s) * state_norm), and
// x = rms_norm(s) * state_norm if norms_residual, otherwise s.
struct HeadInputArgs {
  const Batch* batch;
  uint32_t cols;
  const float* embedding;  // (token_count, cols) may be x
  const float* g;          // (token_count, cols)
  const float* states;     // (max_sequences, cols)
  Vector token_norm, state_norm;
  float epsilon;
  bool norms_residual;
  float* input;  // (token_count, 2 * cols)
  float* x;      // (token_count, cols)
};

// The state of each row's sequence = x of the row's last token.
struct KeepStatesArgs {
  const Batch* batch;
  uint32_t cols;
  const float* x;  // (token_count, cols)
  float* states;   // (max_sequences, cols)
};

// out[i][tokens[j]] = logits[i][j], and the lowest f32 for all other tokens.
struct ScatterLogitsArgs {
  uint32_t count;
  uint32_t head_vocabulary;
  uint32_t vocabulary;
  const float* logits;    // (count, head_vocabulary)
  const int32_t* tokens;  // (head_vocabulary)
  float* out;             // (count, vocabulary)
};

// values = softcap * tanh(values / softcap), in place.
struct SoftcapArgs {
  float* values;  // (count)
  uint64_t count;
  float softcap;  // above 0
};

// out[r] = h of the first or the last token of row r, or the sum of h over its tokens in their
// order, where h = rms_norm(x) * norm. Vectors of rows without a kRowHidden… flag stay as they are.
struct HiddenStateArgs {
  const Batch* batch;
  const float* x;  // (token_count, cols)
  uint32_t cols;
  Vector norm;  // (cols)
  float epsilon;
  float* work;  // (token_count) floats, which the operation overwrites
  float* out;   // (row_count, cols)
};

// logprobs[i] = the log softmax of row i of the logits, at tokens[i].token, and the alternatives to
// this token (ops/sampling.h, token_logprob). Where fewer than tokens[i].top tokens are possible,
// -1 and -infinity follow. If logits are not finite, the status of the token's row becomes
// kRowNotFinite unless the row has failed.
struct TokenLogprobsArgs {
  uint32_t count;
  uint32_t vocabulary;
  const kernels::ScoredToken* tokens;  // (count)
  const float* logits;                 // (count, vocabulary)
  uint32_t top_stride;
  float* logprobs;        // (count)
  int32_t* top_tokens;    // (count, top_stride)
  float* top_logprobs;    // likewise
  int32_t* row_statuses;  // (row_count of the step)
};

// There is one implementation per backend and one object per engine. Every function executes the
// given node and checks its shapes; a mismatch is an internal error, because the caller is the
// engine. Sums have a fixed order, so results are deterministic. An object keeps no state between
// calls: results depend on arguments, on the memory that they name, and on the table that the node
// names (Node::table), which an earlier node of the step computed into the scratch memory.
class Ops {
 public:
  virtual ~Ops() = default;
  virtual const DeviceTraits& device() const = 0;
  // Returns the bytes of device memory that this implementation needs besides that of arguments.
  virtual uint64_t scratch_bytes(const Limits& limits) const = 0;
  // Called once, before all others. `scratch` has scratch_bytes(limits) bytes, aligned to 256.
  virtual Status prepare(const Limits& limits, void* scratch) = 0;
  // Does the work that the first step of each shape would otherwise do.
  virtual Status warm_up() = 0;
  // Returns the stream on which operations are queued; on the host they compute immediately.
  virtual Stream stream() const { return {}; }

  // Returns the largest L2 norm of a row of a matrix, and waits for the device to compute it.
  // `work` is device memory, aligned to 256: 256 bytes and 4 for each row, and more for some f32
  // rows. WCUDA_NOT_AVAILABLE where no plan needs it.
  virtual Result<float> row_norm_max(const Weight& matrix, void* work, uint64_t work_bytes) = 0;

  virtual Status start(const Node& node, const StartArgs& args) = 0;
  virtual Status embed(const Node& node, const EmbedArgs& args) = 0;
  virtual Status linear(const Node& node, const LinearArgs& args) = 0;
  // Computes layers of one token in one kernel. Each layer reads the output of the previous one.
  virtual Status persistent_layers(const Node& node, const LinearArgs* layers, uint32_t count) = 0;
  virtual Status rope_kv(const Node& node, const RopeKvArgs& args) = 0;
  virtual Status attention(const Node& node, const AttentionArgs& args) = 0;
  virtual Status hidden_state(const Node& node, const HiddenStateArgs& args) = 0;
  virtual Status softcap(const Node& node, const SoftcapArgs& args) = 0;
  virtual Status keep_features(const Node& node, const KeepFeaturesArgs& args) = 0;
  virtual Status read_features(const Node& node, const ReadFeaturesArgs& args) = 0;
  virtual Status head_input(const Node& node, const HeadInputArgs& args) = 0;
  virtual Status keep_states(const Node& node, const KeepStatesArgs& args) = 0;
  virtual Status scatter_logits(const Node& node, const ScatterLogitsArgs& args) = 0;
  virtual Status token_logprobs(const Node& node, const TokenLogprobsArgs& args) = 0;
};

// Returns the implementation for a backend, or WCUDA_NOT_AVAILABLE if there is none.
Result<std::unique_ptr<Ops>> make_ops(std::shared_ptr<Backend> backend);

}  // namespace wcuda::ops
