// A step's plan with what each node costs, for a model that need not be loaded.
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

// Rates of a device: of the table where its name ends with a row's, else by its attributes.
ops::DeviceRates device_rates(const wcuda_device_caps& caps, const ops::DeviceTraits& traits);

// `device`: a row of the table of measured rates, in place of the backend's device; empty: that.
// WCUDA_NOT_FOUND for an unknown row; WCUDA_OUT_OF_RANGE for a shape beyond the engine's limits.
Result<StepReport> report_step(const std::shared_ptr<Backend>& backend, const gguf::Gguf& file,
                               const wcuda_engine_options& options, const wcuda_step_shape& shape,
                               std::string_view device);

}  // namespace wcuda::engine
