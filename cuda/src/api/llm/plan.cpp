// Section 9 of the header: the memory that a model and an engine need.
#include <string_view>

#include "api/base/context.h"
#include "api/base/guard.h"
#include "api/llm/handles.h"
#include "api/llm/step_nodes.h"
#include "llm/model/model.h"
#include "worker_cuda/llm.h"

using namespace wcuda;
using namespace wcuda::api;

wcuda_status wcuda_plan_get(wcuda_context context, wcuda_gguf gguf,
                            const wcuda_engine_options* options, wcuda_plan* plan,
                            wcuda_error* error) {
  return guarded(error, [&]() -> Status {
    WCUDA_TRY(check_struct(plan, "plan"));
    WCUDA_ASSIGN(const auto object, resolve(context, "context"));
    WCUDA_ASSIGN(const auto file, resolve(gguf, "gguf"));
    WCUDA_ASSIGN(const auto given, read_struct_or(kEngineDefaults, options, "options"));
    WCUDA_ASSIGN(const engine::Peers peers, resolve_peers(given));
    vram::Memory& memory = *object->memory;
    WCUDA_ASSIGN(const model::LoadPlan load, model::plan_load(memory.backend(), *file));
    WCUDA_ASSIGN(const std::unique_ptr<ops::Ops> ops, ops::make_ops(memory.shared_backend()));
    WCUDA_ASSIGN(const engine::Plan engine, engine::plan_engine(memory.backend(), *ops, load.config,
                                                                load.weights, given, peers));
    wcuda_plan out = WCUDA_PLAN_INIT;
    out.weights_bytes = load.weights_bytes;
    out.kv_bytes = engine.layout.kv_bytes;
    out.scratch_bytes = engine.layout.scratch_bytes;
    out.total_bytes = out.weights_bytes + out.kv_bytes + out.scratch_bytes;
    out.staging_bytes = load.staging_bytes;
    WCUDA_ASSIGN(out.available_bytes, memory.available_bytes());
    out.loading_bytes = load.loading_bytes;
    out.fits = out.total_bytes <= out.available_bytes &&
               load.weights_bytes + load.loading_bytes <= out.available_bytes;
    out.kv_page_bytes = engine.layout.page_bytes;
    out.kv_page_count = engine.limits.page_count;
    out.graph_bytes = engine::plan_graph_bytes(engine.limits, load.config, load.weights,
                                               ops->device(), engine.has_persistent_layers);
    return write_struct(out, plan, "plan");
  });
}

wcuda_status wcuda_plan_steps_list(wcuda_context context, wcuda_gguf gguf,
                                   const wcuda_engine_options* options,
                                   const wcuda_step_shape* shape, wcuda_string device,
                                   wcuda_step_rates* rates, uint64_t first, wcuda_step_node* nodes,
                                   uint64_t capacity, uint64_t* count, wcuda_error* error) {
  return guarded(error, [&]() -> Status {
    if (rates) WCUDA_TRY(check_struct(rates, "rates"));
    WCUDA_ASSIGN(const std::string_view name, read_string(device, "device"));
    WCUDA_ASSIGN(const wcuda_step_shape asked, read_struct(shape, "shape"));
    WCUDA_ASSIGN(const auto object, resolve(context, "context"));
    WCUDA_ASSIGN(const auto file, resolve(gguf, "gguf"));
    WCUDA_ASSIGN(const auto given, read_struct_or(kEngineDefaults, options, "options"));
    WCUDA_ASSIGN(const engine::Peers peers, resolve_peers(given));
    WCUDA_ASSIGN(
        const engine::StepReport report,
        engine::report_step(object->memory->shared_backend(), *file, given, peers, asked, name));
    return write_steps(report, nullptr, rates, first, {nodes, capacity, "nodes"}, count);
  });
}
