// The bytes and FLOPs of a node of a step, and the time they take at a device's measured rates.
// Pure.
#pragma once

#include <cstdint>
#include <string_view>

#include "llm/ops/step_plan.h"

namespace wcuda::ops {

// The rates that bound a step: those of memory and of tensor cores.
struct DeviceRates {
  const char* name = nullptr;  // of the table row; null: derived from device attributes
  DeviceTraits traits;
  double bytes_per_second = 0;  // 0: not known
  double flops_per_second = 0;  // f16 products with f32 sums; 0: not known
};
// Returns the measured rates of a device, for example "H200" (case is ignored), or null.
const DeviceRates* find_device_rates(std::string_view name);

// The properties of the KV cache and of the step that the plan does not have.
struct CostShape {
  uint32_t row_count = 0;          // without the rows that fill up a bucket
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

// Returns the larger of the times that bytes and FLOPs take at the known rates.
double roofline_seconds(const NodeCost& cost, const DeviceRates& rates);

}  // namespace wcuda::ops
