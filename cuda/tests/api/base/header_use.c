/* Uses every INIT macro of the header, in C11 and (through header_use.cpp) in C++17, with all
 * warnings on as errors. header_test.cpp checks that none is missing here. */
#include "worker_cuda.h"

#ifndef HEADER_USE
#define HEADER_USE header_use_c
#endif

#ifdef __cplusplus
extern "C" {
#endif
int HEADER_USE(void);
#ifdef __cplusplus
}
#endif

/* Also legal for objects with static storage. */
static const wcuda_context_options static_options = WCUDA_CONTEXT_OPTIONS_INIT;

#define CHECK_INIT(type, macro)                           \
  do {                                                    \
    const type value = macro;                             \
    if (value.struct_size != sizeof(type)) ++wrong_count; \
  } while (0)

/* Number of macros that set a wrong struct_size. */
int HEADER_USE(void) {
  int wrong_count = 0;
  CHECK_INIT(wcuda_build_info, WCUDA_BUILD_INFO_INIT);
  CHECK_INIT(wcuda_abi_field, WCUDA_ABI_FIELD_INIT);
  CHECK_INIT(wcuda_device_caps, WCUDA_DEVICE_CAPS_INIT);
  CHECK_INIT(wcuda_context_options, WCUDA_CONTEXT_OPTIONS_INIT);
  CHECK_INIT(wcuda_context_info, WCUDA_CONTEXT_INFO_INIT);
  CHECK_INIT(wcuda_memory_info, WCUDA_MEMORY_INFO_INIT);
  CHECK_INIT(wcuda_ledger_entry, WCUDA_LEDGER_ENTRY_INIT);
  CHECK_INIT(wcuda_buffer_options, WCUDA_BUFFER_OPTIONS_INIT);
  CHECK_INIT(wcuda_health, WCUDA_HEALTH_INIT);
  CHECK_INIT(wcuda_residency, WCUDA_RESIDENCY_INIT);
  CHECK_INIT(wcuda_source, WCUDA_SOURCE_INIT);
  CHECK_INIT(wcuda_gguf_info, WCUDA_GGUF_INFO_INIT);
  CHECK_INIT(wcuda_gguf_value, WCUDA_GGUF_VALUE_INIT);
  CHECK_INIT(wcuda_gguf_tensor, WCUDA_GGUF_TENSOR_INIT);
  CHECK_INIT(wcuda_tensor_type_info, WCUDA_TENSOR_TYPE_INFO_INIT);
  CHECK_INIT(wcuda_engine_options, WCUDA_ENGINE_OPTIONS_INIT);
  CHECK_INIT(wcuda_plan, WCUDA_PLAN_INIT);
  CHECK_INIT(wcuda_step_shape, WCUDA_STEP_SHAPE_INIT);
  CHECK_INIT(wcuda_step_rates, WCUDA_STEP_RATES_INIT);
  CHECK_INIT(wcuda_step_node, WCUDA_STEP_NODE_INIT);
  CHECK_INIT(wcuda_model_options, WCUDA_MODEL_OPTIONS_INIT);
  CHECK_INIT(wcuda_model_info, WCUDA_MODEL_INFO_INIT);
  CHECK_INIT(wcuda_tensor_digests, WCUDA_TENSOR_DIGESTS_INIT);
  CHECK_INIT(wcuda_engine_info, WCUDA_ENGINE_INFO_INIT);
  CHECK_INIT(wcuda_sampling, WCUDA_SAMPLING_INIT);
  CHECK_INIT(wcuda_row, WCUDA_ROW_INIT);
  CHECK_INIT(wcuda_step, WCUDA_STEP_INIT);
  CHECK_INIT(wcuda_late_row, WCUDA_LATE_ROW_INIT);
  CHECK_INIT(wcuda_row_result, WCUDA_ROW_RESULT_INIT);
  CHECK_INIT(wcuda_step_output, WCUDA_STEP_OUTPUT_INIT);
  CHECK_INIT(wcuda_kernel_cache_stats, WCUDA_KERNEL_CACHE_STATS_INIT);
  CHECK_INIT(wcuda_program_header, WCUDA_PROGRAM_HEADER_INIT);
  CHECK_INIT(wcuda_program_options, WCUDA_PROGRAM_OPTIONS_INIT);
  CHECK_INIT(wcuda_program_info, WCUDA_PROGRAM_INFO_INIT);
  CHECK_INIT(wcuda_compiler_info, WCUDA_COMPILER_INFO_INIT);
  CHECK_INIT(wcuda_parameter, WCUDA_PARAMETER_INIT);
  CHECK_INIT(wcuda_launch, WCUDA_LAUNCH_INIT);
  CHECK_INIT(wcuda_host_argument, WCUDA_HOST_ARGUMENT_INIT);
  CHECK_INIT(wcuda_kernel_options, WCUDA_KERNEL_OPTIONS_INIT);
  CHECK_INIT(wcuda_kernel_info, WCUDA_KERNEL_INFO_INIT);
  CHECK_INIT(wcuda_occupancy, WCUDA_OCCUPANCY_INIT);
  CHECK_INIT(wcuda_argument, WCUDA_ARGUMENT_INIT);
  CHECK_INIT(wcuda_catalogue_entry, WCUDA_CATALOGUE_ENTRY_INIT);
  CHECK_INIT(wcuda_gemm, WCUDA_GEMM_INIT);
  CHECK_INIT(wcuda_kernel_descriptor, WCUDA_KERNEL_DESCRIPTOR_INIT);
  CHECK_INIT(wcuda_registered_kernel, WCUDA_REGISTERED_KERNEL_INIT);
  CHECK_INIT(wcuda_run_info, WCUDA_RUN_INFO_INIT);
  CHECK_INIT(wcuda_zctl_record, WCUDA_ZCTL_RECORD_INIT);
  CHECK_INIT(wcuda_zctl_options, WCUDA_ZCTL_OPTIONS_INIT);
  CHECK_INIT(wcuda_backend_entry, WCUDA_BACKEND_ENTRY_INIT);
  CHECK_INIT(wcuda_selection_options, WCUDA_SELECTION_OPTIONS_INIT);
  CHECK_INIT(wcuda_skipped_backend, WCUDA_SKIPPED_BACKEND_INIT);
  CHECK_INIT(wcuda_selection, WCUDA_SELECTION_INIT);
  CHECK_INIT(wcuda_backend_options, WCUDA_BACKEND_OPTIONS_INIT);
  CHECK_INIT(wcuda_backend_info, WCUDA_BACKEND_INFO_INIT);
  CHECK_INIT(wcuda_backend_vtable, WCUDA_BACKEND_VTABLE_INIT);
  CHECK_INIT(wcuda_backend_registration, WCUDA_BACKEND_REGISTRATION_INIT);
  CHECK_INIT(wcuda_failover_event, WCUDA_FAILOVER_EVENT_INIT);
  CHECK_INIT(wcuda_failover_target, WCUDA_FAILOVER_TARGET_INIT);
  CHECK_INIT(wcuda_failover_options, WCUDA_FAILOVER_OPTIONS_INIT);
  CHECK_INIT(wcuda_failover_state, WCUDA_FAILOVER_STATE_INIT);
  if (static_options.abi_version != WCUDA_ABI_VERSION) ++wrong_count;
  return wrong_count;
}
