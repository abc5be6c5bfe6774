// The nodes of a step as the header has them.
#pragma once

#include "core/base/status.h"
#include "llm/engine/step_report.h"
#include "worker_cuda/llm.h"

namespace wcuda::api {

// node_ns: (nodes) measured times; null: none. All arguments but `nodes` have been checked.
Status write_steps(const engine::StepReport& report, const double* node_ns, wcuda_step_rates* rates,
                   wcuda_step_node* nodes, uint64_t capacity, uint64_t* count);

}  // namespace wcuda::api
