#include "llm/ops/step_cost.h"

#include <strings.h>

#include <algorithm>

#include "core/base/checked.h"
#include "kernels/shared/kv_pages.h"
#include "kernels/shared/step_inputs.h"

namespace wcuda::ops {
namespace {

DeviceTraits hopper(uint32_t sm_count) {
  DeviceTraits traits;
  traits.is_host = false;
  traits.compute_capability = 90;
  traits.sm_count = sm_count;
  traits.shared_bytes_max = 232448;
  traits.has_warpgroup_code = traits.has_resident_grid = true;
  return traits;
}

class Counter {
 public:
  Counter(const model::Config& config, const model::Weights& weights, const StepPlan& plan,
          const CostShape& shape)
      : config_(config), weights_(weights), plan_(plan), step_(plan.shape), shape_(shape) {}

  NodeCost count(const Node& node) const {
    const uint64_t tokens = step_.token_count;
    const uint64_t embedding = config_.embedding_length;
    const uint64_t query = uint64_t{config_.head_count} * config_.head_length;
    const uint64_t keys = uint64_t{config_.kv_head_count} * config_.head_length;
    NodeCost cost;
    switch (node.operation) {
      case Operation::kStartStep:
        cost.bytes = scattered_bytes() + begun_bytes() + row_bytes();
        break;
      case Operation::kScatterInputs:
        cost.bytes = scattered_bytes();
        break;
      case Operation::kBeginRows:
        cost.bytes = begun_bytes();
        break;
      case Operation::kPlanAttention:
        cost.bytes = row_bytes();
        break;
      case Operation::kRotaryTable:
        cost.bytes = tokens * (1 + uint64_t{config_.rope_dimension_count}) * 4;
        break;
      case Operation::kEmbed: {
        const model::Weight& table = weights_.token_embedding;
        const uint64_t row_bytes = table.rows == 0 ? 0 : table.bytes / table.rows;
        cost.bytes = tokens * (row_bytes + embedding * 4);
        break;
      }
      case Operation::kRotateAndStore:
        cost.bytes = tokens * ((2 * query + 2 * keys) * 4 + kv_token_bytes());
        break;
      case Operation::kAttention:
        return attention(node);
      case Operation::kHiddenState:  // as if each row returned a sum
        cost.bytes = (2 * tokens + shape_.row_count) * embedding * 4;
        break;
      case Operation::kReadFeatures:
        cost.bytes = tokens * config_.draft_head.feature_width() * 6;
        break;
      case Operation::kHeadInput:  // two inputs, and as many values as three of them
        cost.bytes = tokens * 5 * embedding * 4;
        break;
      case Operation::kKeepFeatures:
        cost.bytes = tokens * embedding * 6;
        break;
      case Operation::kKeepStates:
        cost.bytes = uint64_t{2} * shape_.row_count * embedding * 4;
        break;
      case Operation::kScatterLogits:
        cost.bytes = uint64_t{4} * plan_.logits_count(node) *
                     (config_.draft_head.vocabulary_size + config_.vocabulary_size);
        break;
      case Operation::kSoftcapLogits:
      case Operation::kTokenLogprobs:
        cost.bytes = uint64_t{8} * plan_.logits_count(node) * config_.vocabulary_size;
        break;
      case Operation::kPersistentLayers:
        for (uint32_t i = 0; i < node.fused_count; ++i) {
          const LayerOperation part = fused_operation(node, i, config_.layer_count);
          add(linear(part.operation, part.layer, step_.logits_count), &cost);
        }
        break;
      case Operation::kFuseFeatures:
      case Operation::kQueryKeyValue:
      case Operation::kAttentionOutput:
      case Operation::kGateUp:
      case Operation::kDown:
      case Operation::kLogits:
        cost = linear(node.operation, node.layer, plan_.logits_count(node));
        if (is_half(node.input) || node.output == Form::kHalf)
          cost.bytes -=
              tokens * 2 *
              (node.operation == Operation::kAttentionOutput ? query : config_.feed_forward_length);
    }
    return cost;
  }

 private:
  static void add(const NodeCost& part, NodeCost* sum) {
    sum->bytes += part.bytes;
    sum->flops += part.flops;
  }
  static bool is_half(Form form) { return form == Form::kHalf || form == Form::kBatchHalf; }
  uint64_t kv_token_bytes() const {
    return uint64_t{2} * config_.kv_head_count * shape_.kv_row_bytes;
  }

  uint64_t row_bytes() const { return shape_.row_count * sizeof(kernels::StepRow); }
  // Each array is read and written: the token, its position and its row; the row and its pages; the
  // indices of logits.
  uint64_t scattered_bytes() const {
    const uint64_t positions = uint64_t{shape_.context_positions} + shape_.row_tokens;
    const uint64_t pages = shape_.row_count * ceil_div(positions, kernels::kPagePositions);
    return 2 * (row_bytes() + 4 * (uint64_t{3} * step_.token_count + pages + step_.logits_count));
  }
  // Each token is copied to a history; each row has a status, and waits for one of the last step.
  uint64_t begun_bytes() const {
    return row_bytes() + uint64_t{8} * (step_.token_count + shape_.row_count);
  }

  // Counts weights once, inputs and outputs as f32, and the residual as read and written.
  NodeCost linear(Operation operation, uint32_t layer, uint32_t logits_count) const {
    NodeCost cost;
    const uint64_t tokens = operation == Operation::kLogits ? logits_count : step_.token_count;
    uint64_t cols = 0;
    const auto matrix = [&](const model::Weight& weight, uint32_t transfers) {
      cols = weight.cols;
      cost.bytes += weight.bytes + tokens * weight.rows * 4 * transfers;
      cost.flops += 2 * tokens * weight.rows * weight.cols;
    };
    if (operation == Operation::kLogits) {
      matrix(weights_.output, 1);
    } else if (operation == Operation::kFuseFeatures) {
      matrix(weights_.features, 1);
    } else {
      const model::LayerWeights& w = weights_.layers[layer];
      if (operation == Operation::kQueryKeyValue) {
        for (const model::Weight* weight : {&w.query, &w.key, &w.value}) matrix(*weight, 1);
      } else if (operation == Operation::kGateUp) {
        matrix(w.gate, 1);
        matrix(w.up, 0);
      } else {
        matrix(operation == Operation::kDown ? w.down : w.attention_output, 2);
      }
    }
    cost.bytes += tokens * cols * 4;
    return cost;
  }

  // Each row reads the pages of the positions that its last token sees, once.
  NodeCost attention(const Node& node) const {
    NodeCost cost;
    const bool is_decode = node.kernel == Kernel::kAttentionDecode ||
                           node.kernel == Kernel::kAttentionDecodeGroup ||
                           node.kernel == Kernel::kAttentionDecodeCluster;
    // All rows have the same length, so kernels for rows of another length have no work.
    const uint64_t row_tokens = shape_.row_tokens;
    if (is_decode != (row_tokens == 1) && node.kernel != Kernel::kHost) return cost;
    const uint64_t window = config_.sliding_window;
    const auto seen = [&](uint64_t position) {
      return window == 0 ? position + 1 : std::min(position + 1, window);
    };
    uint64_t pairs = 0;
    for (uint64_t i = 0; i < row_tokens; ++i) pairs += seen(shape_.context_positions + i);
    const uint64_t last = row_tokens == 0 ? 0 : seen(shape_.context_positions + row_tokens - 1);
    const uint64_t query = uint64_t{config_.head_count} * config_.head_length;
    cost.bytes = shape_.row_count * std::max(last, row_tokens) * kv_token_bytes() +
                 shape_.row_count * row_tokens * query * (is_half(node.output) ? 6 : 8);
    cost.flops = 4 * shape_.row_count * pairs * query;
    return cost;
  }

  const model::Config& config_;
  const model::Weights& weights_;
  const StepPlan& plan_;
  const StepShape& step_;
  const CostShape& shape_;
};

}  // namespace

const DeviceRates* find_device_rates(std::string_view name) {
  // Read bandwidth and f16 tensor products, measured (bench/results).
  static const DeviceRates kTable[] = {{"H200", hopper(132), 4.53e12, 790e12}};
  for (const DeviceRates& row : kTable)
    if (name.size() == std::string_view(row.name).size() &&
        strncasecmp(name.data(), row.name, name.size()) == 0)
      return &row;
  return nullptr;
}

NodeCost node_cost(const model::Config& config, const model::Weights& weights, const StepPlan& plan,
                   const Node& node, const CostShape& shape) {
  return Counter(config, weights, plan, shape).count(node);
}

double roofline_seconds(const NodeCost& cost, const DeviceRates& rates) {
  const auto seconds = [](uint64_t amount, double rate) {
    return rate > 0 ? static_cast<double>(amount) / rate : 0.0;
  };
  return std::max(seconds(cost.bytes, rates.bytes_per_second),
                  seconds(cost.flops, rates.flops_per_second));
}

}  // namespace wcuda::ops
