#include "api/llm/step_nodes.h"

#include <algorithm>

#include "api/base/guard.h"

namespace wcuda::api {

Status write_steps(const engine::StepReport& report, const double* node_ns, wcuda_step_rates* rates,
                   wcuda_step_node* nodes, uint64_t capacity, uint64_t* count) {
  const uint64_t written = std::min<uint64_t>(capacity, report.plan.nodes.size());
  for (uint64_t i = 0; i < written; ++i) WCUDA_TRY(check_struct(&nodes[i], "nodes"));
  for (uint64_t i = 0; i < written; ++i) {
    const ops::Node& node = report.plan.nodes[i];
    wcuda_step_node out = WCUDA_STEP_NODE_INIT;
    out.layer = node.layer;
    out.fused_count = node.fused_count;
    out.operation = ops::operation_name(node.operation);
    out.kernel = ops::kernel_name(node.kernel);
    out.input = ops::form_name(node.input);
    out.output = ops::form_name(node.output);
    out.bytes = report.costs[i].bytes;
    out.flops = report.costs[i].flops;
    out.limit_ns = ops::roofline_seconds(report.costs[i], report.rates) * 1e9;
    out.measured_ns = node_ns != nullptr ? node_ns[i] : 0.0;
    write_struct(out, &nodes[i]);
  }
  wcuda_step_rates found = WCUDA_STEP_RATES_INIT;
  found.is_measured = report.rates.name != nullptr;
  found.bytes_per_second = static_cast<uint64_t>(report.rates.bytes_per_second);
  found.flops_per_second = static_cast<uint64_t>(report.rates.flops_per_second);
  write_struct(found, rates);
  *count = report.plan.nodes.size();
  return {};
}

}  // namespace wcuda::api
