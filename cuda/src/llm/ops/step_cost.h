// What a node of a step moves and computes, and the time that takes at a device's measured rates.
// Pure.
#pragma once

#include <cstdint>
#include <string_view>

#include "llm/ops/step_plan.h"

namespace wcuda::ops {

// What bounds a step: memory and tensor cores.
struct DeviceRates {
  const char* name = nullptr;  // of the table's row; null: from the device's attributes
  DeviceTraits traits;
  double bytes_per_second = 0;  // 0: not known
  double flops_per_second = 0;  // f16 products with f32 sums; 0: not known
};
// A row of the table of measured rates; null: none of this name ("H200"), case ignored.
const DeviceRates* find_device_rates(std::string_view name);

// Of the KV cache and the step, what the plan does not hold.
struct CostShape {
  uint32_t row_count = 0;          // without rows that fill a bucket up
  uint32_t row_tokens = 0;         // of each row
  uint32_t kv_row_bytes = 0;       // of one head of one position, keys or values
  uint32_t context_positions = 0;  // of each row before its first token
};

struct NodeCost {
  uint64_t bytes = 0;  // read and written in device memory: weights, activations, KV pages
  uint64_t flops = 0;  // of products
};
NodeCost node_cost(const model::Config& config, const model::Weights& weights, const StepPlan& plan,
                   const Node& node, const CostShape& shape);

// The larger of the times that bytes and FLOPs take at the rates that are known.
double roofline_seconds(const NodeCost& cost, const DeviceRates& rates);

}  // namespace wcuda::ops
