// The plan of a step with the cost of each node. The model need not be loaded.
#pragma once

#include <memory>
#include <string_view>
#include <vector>

#include "llm/engine/limits.h"
#include "llm/ops/step_cost.h"

namespace wcuda::engine {

struct StepReport {
  ops::StepPlan plan;
  std::vector<ops::NodeCost> costs;  // of each node
  ops::DeviceRates rates;
};

// Returns the rates of a device: from the table if its name ends with that of a row, otherwise
// derived from its attributes.
ops::DeviceRates device_rates(const wcuda_device_caps& caps, const ops::DeviceTraits& traits);

// `device` names a row of the table of measured rates, or is empty for the backend's device.
// Returns WCUDA_NOT_FOUND for an unknown row, and WCUDA_OUT_OF_RANGE for a shape beyond the limits.
Result<StepReport> report_step(const std::shared_ptr<Backend>& backend, const gguf::Gguf& file,
                               const wcuda_engine_options& options, const Peers& peers,
                               const wcuda_step_shape& shape, std::string_view device);

}  // namespace wcuda::engine
