// The plan of a step: which operations run in which order, fused or not, by which kernel, and in
// what form each hands its result to the next. A pure function of model, limits, device and step
// shape; engine/forward.cpp walks it, and Ops does exactly the node that it is asked for.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "llm/model/model.h"

namespace wcuda::ops {

enum class PersistentLayers : uint32_t {
  kAuto,  // by Config and device: where they are known to be faster
  kOn,    // wherever a kernel takes the layers
  kOff,
};

// The sizes an engine is made for.
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
  bool batch_invariant = false;  // a row's result may not depend on what else is in the step
  PersistentLayers persistent_layers = PersistentLayers::kAuto;
};

// A device, as far as plans depend on it.
struct DeviceTraits {
  bool is_host = true;
  int32_t compute_capability = 0;  // that launches may count on: major * 10 + minor
  uint32_t sm_count = 0;
  uint32_t shared_bytes_max = 0;    // of a block
  bool has_warpgroup_code = false;  // the program holds code for sm_90a
  bool has_resident_grid =
      false;  // a CTA on each SM can be resident at once and wait for the others
};

// What the kernels of a step are launched for. A captured graph serves every step of its shape.
struct StepShape {
  uint32_t token_count = 0;
  uint32_t row_count = 0;
  uint32_t logits_count = 0;
  uint32_t min_row_tokens = 0;  // no row has fewer tokens
  uint32_t max_row_tokens = 0;  // no row has more tokens
  uint32_t max_positions = 0;   // no row reaches past position max_positions - 1
};

// Values of max_positions up to which attention of few rows of one token uses one block for each
// row and head, and a cluster of blocks.
constexpr uint32_t kLonePositionsMax = 256;
constexpr uint32_t kClusterPositionsMax = 8192;

enum class Operation : uint8_t {
  kStartStep,         // the next three in one
  kScatterInputs,     // from the block that came over the bus into the step's arrays
  kBeginRows,         // fed tokens are resolved, tokens enter the histories
  kPlanAttention,     // which block of the attention kernels works on what
  kRotaryTable,       // sines and cosines of the step's positions
  kEmbed,             // x = rows of the token table
  kQueryKeyValue,     // of rms_norm(x)
  kRotateAndStore,    // rotary embedding of queries and keys; keys and values into the pages
  kAttention,         // of all rows, or of those of one token, or of more
  kAttentionOutput,   // x += W · attention
  kGateUp,            // of rms_norm(x)
  kDown,              // x += W · (activation(gate) * up)
  kLogits,            // of rms_norm(x)
  kSoftcapLogits,     // logits = softcap * tanh(logits / softcap)
  kPersistentLayers,  // two to four linear layers, from kAttentionOutput on, in one kernel
};

enum class Kernel : uint8_t {
  kHost,
  kAttentionPlanStart,
  kInputScatter,
  kBeginStep,
  kAttentionPlan,
  kEmbed,
  kLinearVector,  // at most 8 tokens: packed weights, at the speed of memory
  kLinearBatch,   // packed weights on tensor cores, few tokens
  kPackedGemm,    // the same for many
  kPersistentLayers,
  kRopeKv,
  kAttentionDecode,
  kAttentionDecodeGroup,    // a group of blocks for each row and head
  kAttentionDecodeCluster,  // a cluster of blocks for each row and head
  kAttentionPrefill,
  kAttentionPrefillWarpgroup,
  kSoftcap,
};

// How an activation lies in memory, tokens by values.
enum class Form : uint8_t {
  kNone,
  kTokens,     // token ids
  kF32,        // f32, each tensor by itself
  kUnrotated,  // f32 query, key and value as the products gave them
  kResidual,   // f32, added to
  kPages,      // f32 queries; keys and values in the KV pages
};

constexpr uint32_t kNoLayer = UINT32_MAX;
constexpr uint32_t kPersistentLayersMax = 4;  // linear layers of a node kPersistentLayers

struct Node {
  Operation operation = Operation::kEmbed;
  Kernel kernel = Kernel::kHost;
  uint32_t layer = kNoLayer;
  Form input = Form::kNone;
  Form output = Form::kNone;
  uint32_t fused_count = 1;  // kPersistentLayers: linear layers in it
};

struct StepPlan {
  StepShape shape;
  std::vector<Node> nodes;
  bool has_persistent_layers = false;
};

// Of `weights` types and shapes count, and not where they lie.
StepPlan plan_step(const model::Config& config, const model::Weights& weights, const Limits& limits,
                   const DeviceTraits& device, const StepShape& shape);

// Whether steps of one token may use persistent fused layers at all.
bool allows_persistent_layers(const Limits& limits, const DeviceTraits& device);

// "query_key_value", "linear_vector", "f32".
const char* operation_name(Operation operation);
const char* kernel_name(Kernel kernel);
const char* form_name(Form form);

// The parts of a persistent_layers node: operation and layer of its linear layer `index`.
struct LayerOperation {
  Operation operation;
  uint32_t layer;
};
LayerOperation fused_operation(const Node& node, uint32_t index, uint32_t layer_count);

}  // namespace wcuda::ops
