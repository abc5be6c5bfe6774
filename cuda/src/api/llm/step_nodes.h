// Converts the nodes of a step to the structs of the header.
#pragma once

#include "api/base/elements.h"
#include "core/base/status.h"
#include "llm/engine/step_report.h"
#include "worker_cuda/llm.h"

namespace wcuda::api {

// Lists the nodes from `first` on. node_ns: (nodes) measured times; null: none. rates: null or a
// checked struct.
Status write_steps(const engine::StepReport& report, const double* node_ns, wcuda_step_rates* rates,
                   uint64_t first, const OutputArray<wcuda_step_node>& nodes, uint64_t* count);

}  // namespace wcuda::api
