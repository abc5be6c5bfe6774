// The plan of a step: the operations in their order, fused or not, the kernel of each, and the form
// in which each passes its result to the next. It is a pure function of model, limits, device and
// step shape. engine/forward.cpp walks the plan, and Ops executes exactly the given node.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/attention/attention_choice.h"
#include "kernels/shared/kv_pages.h"
#include "llm/model/model.h"

namespace wcuda::ops {

enum class PersistentLayers : uint32_t {
  kAuto,  // if they are known to be faster, depending on Config and device
  kOn,    // if a kernel supports the layers
  kOff,
};

// The sizes for which an engine is created.
struct Limits {
  uint32_t max_batch_tokens = 0;
  uint32_t max_batch_rows = 0;
  uint32_t max_logits_rows = 0;
  uint32_t max_sequence_tokens = 0;
  uint32_t embedding_length = 0;
  uint32_t feed_forward_length = 0;
  uint32_t head_count = 0;
  uint32_t kv_head_count = 0;
  uint32_t head_length = 0;
  uint32_t vocabulary_size = 0;
  kernels::KvFormat kv_type = kernels::KvFormat::kF16;
  // Features that the step keeps for a draft head, which reads the inputs of these layers.
  bool keeps_features = false;
  uint32_t feature_layers[model::kFeatureLayers] = {};
  uint32_t head_cols_max = 0;    // of a draft head: inputs of its widest own layer; otherwise 0
  bool batch_invariant = false;  // a row's result must not depend on the other rows of the step
  PersistentLayers persistent_layers = PersistentLayers::kAuto;
};

// The properties of a device on which plans depend.
struct DeviceTraits {
  bool is_host = true;
  int32_t compute_capability = 0;  // that launches may use: major * 10 + minor
  uint32_t sm_count = 0;
  uint32_t shared_bytes_max = 0;    // per block
  bool has_warpgroup_code = false;  // the program has code for sm_90a
  // One CTA on each SM can be resident at the same time, and wait for the others.
  bool has_resident_grid = false;
};

// The shape for which the kernels of a step are launched. A captured graph serves all such steps.
struct StepShape {
  uint32_t token_count = 0;
  uint32_t row_count = 0;
  uint32_t logits_count = 0;
  uint32_t min_row_tokens = 0;  // no row has fewer tokens
  uint32_t max_row_tokens = 0;  // no row has more tokens
  uint32_t max_positions = 0;   // no row reaches past position max_positions - 1
  // Leading pages that rows share are read once for all of them: what StepRow::shared_pages and
  // shared_rows say holds. Needs allows_shared_prefix.
  bool has_shared_prefix = false;
  kernels::LongRows long_rows = {};
  // Key-value heads whose pages long rows read as f16, converted at a time; 0: none. What
  // choose_expanded_heads returns.
  uint32_t expanded_heads = 0;
  bool has_hidden_states = false;  // rows return hidden states
  bool has_drafts = false;         // rows read keys and values that the step itself stores
  bool has_features = false;       // rows of a draft head read features
  // Own tokens of rows whose log probabilities are wanted. Their logits are computed in parts of at
  // most max_logits_rows, before those that the step keeps.
  uint32_t scored_count = 0;
};

enum class Operation : uint8_t {
  kStartStep,         // the next three in one kernel
  kScatterInputs,     // copies the block of inputs to the step's arrays
  kBeginRows,         // inserts tokens that are fed back, and appends tokens to the histories
  kPlanAttention,     // assigns the work of the attention kernels to blocks
  kRotaryTable,       // computes sines and cosines of the step's positions
  kEmbed,             // x = rows of the token table
  kReadFeatures,      // of the tokens of a draft head, from the pages of its target
  kFuseFeatures,      // g = W · features
  kHeadInput,         // x, and the input of query, key and value, from x and g or a state
  kQueryKeyValue,     // query, key, value = W · rms_norm(x)
  kRotateAndStore,    // rotates queries and keys; stores keys and values in the pages
  kAttention,         // for all rows, for those of one token, or for those of more
  kAttentionOutput,   // x += W · attention
  kGateUp,            // activation(gate) * up, with gate and up = W · rms_norm(x)
  kDown,              // x += W · (activation(gate) * up)
  kKeepFeatures,      // stores x, before a layer or after the last one, for a draft head
  kKeepStates,        // stores x of the last token of each row of a draft head
  kHiddenState,       // hidden states of rows, from rms_norm(x)
  kLogits,            // logits = W · rms_norm(x)
  kScatterLogits,     // from the vocabulary of a draft head to that of its target
  kSoftcapLogits,     // logits = softcap * tanh(logits / softcap)
  kTokenLogprobs,     // log probabilities of a part of the rows' own tokens
  kPersistentLayers,  // two to four linear layers, from kAttentionOutput on, in one kernel
};

enum class Kernel : uint8_t {
  kHost,
  kAttentionPlanStart,
  kInputScatter,
  kBeginStep,
  kAttentionPlan,
  kEmbed,
  kLinearVector,  // packed weights, at most 8 tokens
  kLinearBatch,   // packed weights on tensor cores, few tokens
  kPackedGemm,    // packed weights on tensor cores, many tokens
  kPersistentLayers,
  kRopeKv,
  kAttentionDecode,
  kAttentionDecodeGroup,    // a group of blocks for each row and head
  kAttentionDecodeCluster,  // a cluster of blocks for each row and head
  kAttentionPrefill,
  kAttentionPrefillWarpgroup,
  kAttentionPrefillExpanded,  // attention_expand, and the same kernel, which reads f16 pages
  kAttentionShared,  // of pages that rows of one token share, after kAttentionDecode for the others
  kAttentionJoin,    // adds the results of both
  kSoftcap,
  kHiddenState,
  kTokenLogprobs,
  kKeepFeatures,
  kReadFeatures,
  kHeadInput,
  kKeepStates,
  kScatterLogits,
};

// The form of an activation (tokens, values) in memory, or what the start of a step computes into
// the scratch memory of Ops for later nodes.
enum class Form : uint8_t {
  kNone,
  kTokens,     // token ids
  kF32,        // f32, each tensor separately
  kUnrotated,  // f32 query, key and value, not yet rotated
  kResidual,   // f32, added to the residual
  kHalf,       // f16 in the order in which packed_gemm reads them (kernels/shared/input_order.h)
  kBatchHalf,  // likewise of linear_batch
  kPages,      // f32 queries; keys and values in the KV pages
  kPartials,   // partial results of attention, and queries for the next one
  kFeatures,   // bf16 in the pages of the target
  kStates,     // f32, of each sequence
  kAttentionPlan,
  kTokensAndPlan,  // token ids and the attention plan
  kRotaryTable,
};

constexpr uint32_t kNoLayer = UINT32_MAX;
constexpr uint32_t kPersistentLayersMax = 4;  // linear layers of a node kPersistentLayers

struct Node {
  Operation operation = Operation::kEmbed;
  Kernel kernel = Kernel::kHost;
  uint32_t layer = kNoLayer;
  Form input = Form::kNone;
  Form output = Form::kNone;
  Form table = Form::kNone;  // read besides the input: kAttentionPlan, kRotaryTable or kNone
  uint32_t fused_count = 1;  // number of linear layers in a node kPersistentLayers
  // Of kLogits, kSoftcapLogits and kTokenLogprobs: the scored tokens of the part; count 0: the
  // logits that the step keeps.
  uint32_t scored_first = 0;
  uint32_t scored_count = 0;
};

struct StepPlan {
  StepShape shape;
  std::vector<Node> nodes;
  bool has_persistent_layers = false;

  // Rows of logits that a node computes or reads.
  uint32_t logits_count(const Node& node) const {
    return node.scored_count != 0 ? node.scored_count : shape.logits_count;
  }
};

// Returns the plan of a step. Of `weights`, only types, shapes and the presence of biases matter,
// not addresses.
StepPlan plan_step(const model::Config& config, const model::Weights& weights, const Limits& limits,
                   const DeviceTraits& device, const StepShape& shape);

// Returns whether steps of one token may use persistent fused layers at all.
bool allows_persistent_layers(const Limits& limits, const DeviceTraits& device);

// Returns kernels::expanded_pages_max for an engine of these sizes.
uint64_t expanded_pages_max(const Limits& limits);
// Returns what StepShape::expanded_heads should be for these long rows.
uint32_t choose_expanded_heads(const Limits& limits, const DeviceTraits& device,
                               const kernels::LongRows& rows);

// Returns whether a step of this shape, as it is launched, may read shared pages once.
bool allows_shared_prefix(const model::Config& config, const Limits& limits,
                          const DeviceTraits& device, const StepShape& shape);

// Return names such as "query_key_value", "linear_vector" and "f32".
const char* operation_name(Operation operation);
const char* kernel_name(Kernel kernel);
const char* form_name(Form form);

// The operation and layer of linear layer `index` of a persistent_layers node.
struct LayerOperation {
  Operation operation;
  uint32_t layer;
};
LayerOperation fused_operation(const Node& node, uint32_t index, uint32_t layer_count);

}  // namespace wcuda::ops
