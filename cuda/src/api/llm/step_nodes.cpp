#include "api/llm/step_nodes.h"

namespace wcuda::api {
namespace {

wcuda_step_node node_of(const engine::StepReport& report, const double* node_ns, uint64_t index) {
  const ops::Node& node = report.plan.nodes[index];
  wcuda_step_node out = WCUDA_STEP_NODE_INIT;
  out.layer = node.layer;
  out.fused_count = node.fused_count;
  out.operation = ops::operation_name(node.operation);
  out.kernel = ops::kernel_name(node.kernel);
  out.input = ops::form_name(node.input);
  out.output = ops::form_name(node.output);
  out.bytes = report.costs[index].bytes;
  out.flops = report.costs[index].flops;
  out.limit_ns = ops::roofline_seconds(report.costs[index], report.rates) * 1e9;
  out.measured_ns = node_ns != nullptr ? node_ns[index] : 0.0;
  return out;
}

}  // namespace

Status write_steps(const engine::StepReport& report, const double* node_ns, wcuda_step_rates* rates,
                   uint64_t first, const OutputArray<wcuda_step_node>& nodes, uint64_t* count) {
  WCUDA_TRY(write_list(nodes, first, report.plan.nodes.size(), count,
                       [&](uint64_t index) { return node_of(report, node_ns, index); }));
  if (!rates) return {};
  wcuda_step_rates found = WCUDA_STEP_RATES_INIT;
  found.is_measured = report.rates.name != nullptr;
  found.bytes_per_second = static_cast<uint64_t>(report.rates.bytes_per_second);
  found.flops_per_second = static_cast<uint64_t>(report.rates.flops_per_second);
  write_struct(found, rates);
  return {};
}

}  // namespace wcuda::api
