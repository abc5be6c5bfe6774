/* A caller compiled against headers that are newer than the archive (tools/abi/grow.py): a field
 * more in every struct. It is served while that field is zero and refused with WCUDA_UNSUPPORTED
 * when it is not: newer_caller MODEL FOLDER. Returns the number of checks that failed. */
#include <stdio.h>
#include <string.h>

#include "worker_cuda.h"

static int failures;
#define CHECK(condition)                                                             \
  do {                                                                               \
    if (!(condition)) {                                                              \
      fprintf(stderr, "%d: not so: %s (%s)\n", __LINE__, #condition, error.message); \
      ++failures;                                                                    \
    }                                                                                \
  } while (0)

/* A struct that the call reads or writes: served with a zero tail, refused with another. */
#define GROWS(type, init, call)         \
  do {                                  \
    type value = init;                  \
    CHECK(value.grown == 0);            \
    CHECK((call) == WCUDA_OK);          \
    value.grown = 1;                    \
    CHECK((call) == WCUDA_UNSUPPORTED); \
  } while (0)

static wcuda_error error;
static const wcuda_string kAdd = {"vector_add", 10};
static const wcuda_string kSource = {"__global__ void f() {}", 22};
static const wcuda_string kArchitecture = {"sm_90a", 6};

static int32_t run_nothing(void* user, const wcuda_launch* launch,
                           const wcuda_host_argument* arguments, uint64_t count) {
  (void)user, (void)launch, (void)arguments, (void)count;
  return 0;
}

static void check_outputs(wcuda_context context) {
  GROWS(wcuda_build_info, WCUDA_BUILD_INFO_INIT, wcuda_build_info_get(&value, &error));
  GROWS(wcuda_context_info, WCUDA_CONTEXT_INFO_INIT,
        wcuda_context_info_get(context, &value, &error));
  GROWS(wcuda_memory_info, WCUDA_MEMORY_INFO_INIT,
        wcuda_context_memory_get(context, 0, &value, &error));
  GROWS(wcuda_health, WCUDA_HEALTH_INIT, wcuda_health_get(context, &value, &error));
  GROWS(wcuda_residency, WCUDA_RESIDENCY_INIT,
        wcuda_context_residency_get(context, &value, &error));
  GROWS(wcuda_device_caps, WCUDA_DEVICE_CAPS_INIT,
        wcuda_device_caps_get(WCUDA_BACKEND_HOST, 0, &value, &error));
  GROWS(wcuda_tensor_type_info, WCUDA_TENSOR_TYPE_INFO_INIT,
        wcuda_tensor_type_info_get(0, &value, &error));
}

/* What the generated calls need: one live object of each kind. */
static struct {
  wcuda_context context;
  wcuda_stream stream; /* the context's own */
  wcuda_gguf gguf;
  wcuda_model model;
  wcuda_engine engine;
  wcuda_sequence sequence;
  wcuda_kernel kernel;
  wcuda_kernel_cache kernel_cache;
  wcuda_program program;
  wcuda_registry registry;
  wcuda_backend backend;
  wcuda_failover failover;
} live;
static uint64_t scratch[64];

static wcuda_string text_of(const char* text) {
  wcuda_string string;
  string.data = text;
  string.bytes = strlen(text);
  return string;
}

static void make_objects(const char* model, const char* folder) {
  wcuda_context_options context = WCUDA_CONTEXT_OPTIONS_INIT;
  wcuda_source source = WCUDA_SOURCE_INIT;
  wcuda_engine_options engine = WCUDA_ENGINE_OPTIONS_INIT;
  wcuda_kernel_options kernel = WCUDA_KERNEL_OPTIONS_INIT;
  wcuda_program_options program = WCUDA_PROGRAM_OPTIONS_INIT;
  wcuda_backend_options backend = WCUDA_BACKEND_OPTIONS_INIT;
  wcuda_failover_options failover = WCUDA_FAILOVER_OPTIONS_INIT;
  wcuda_failover_target target = WCUDA_FAILOVER_TARGET_INIT;
  context.backend = backend.type = target.type = WCUDA_BACKEND_HOST;
  source.kind = WCUDA_SOURCE_PATH;
  source.path = text_of(model);
  engine.max_sequences = 1;
  engine.max_sequence_tokens = 64;
  kernel.name = kAdd;
  kernel.host = run_nothing;
  program.source = kSource;
  program.architecture = kArchitecture;
  failover.targets = &target;
  failover.target_count = 1;
  CHECK(wcuda_context_create(&context, &live.context, &error) == WCUDA_OK);
  CHECK(wcuda_gguf_open(&source, &live.gguf, &error) == WCUDA_OK);
  CHECK(wcuda_model_load(live.context, live.gguf, NULL, &live.model, &error) == WCUDA_OK);
  CHECK(wcuda_engine_create(live.model, &engine, &live.engine, &error) == WCUDA_OK);
  CHECK(wcuda_sequence_create(live.engine, &live.sequence, &error) == WCUDA_OK);
  CHECK(wcuda_kernel_create(live.context, &kernel, &live.kernel, &error) == WCUDA_OK);
  CHECK(wcuda_kernel_cache_open(text_of(folder), 1 << 20, &live.kernel_cache, &error) == WCUDA_OK);
  CHECK(wcuda_program_create(&program, &live.program, &error) == WCUDA_OK);
  CHECK(wcuda_registry_create(live.context, &live.registry, &error) == WCUDA_OK);
  CHECK(wcuda_registry_add_builtin(live.registry, text_of("tensor_add"), WCUDA_ARG_F32, 0, NULL,
                                   &error) == WCUDA_OK);
  CHECK(wcuda_backend_open(&backend, &live.backend, &error) == WCUDA_OK);
  CHECK(wcuda_failover_create(&failover, &live.failover, &error) == WCUDA_OK);
}

static void destroy_objects(void) {
  wcuda_failover_destroy(live.failover);
  wcuda_backend_close(live.backend);
  wcuda_registry_destroy(live.registry);
  wcuda_program_destroy(live.program);
  wcuda_kernel_cache_close(live.kernel_cache);
  wcuda_kernel_destroy(live.kernel);
  wcuda_sequence_destroy(live.sequence);
  wcuda_engine_destroy(live.engine);
  wcuda_model_unload(live.model);
  wcuda_gguf_close(live.gguf);
  wcuda_context_destroy(live.context);
}

/* Every function that takes a struct, with a tail that is not zero. */
#define REFUSED(call) CHECK((call) == WCUDA_UNSUPPORTED)
static void check_every_struct(void) {
#include "newer_calls.inc"
}

/* Structs that only other structs hold: served with a zero tail, refused with another. */
static void check_rows(void) {
  const int32_t tokens[2] = {1, 2};
  wcuda_sampling sampling = WCUDA_SAMPLING_INIT;
  wcuda_row row = WCUDA_ROW_INIT;
  wcuda_step step = WCUDA_STEP_INIT;
  wcuda_late_row late = WCUDA_LATE_ROW_INIT;
  wcuda_row_result result = WCUDA_ROW_RESULT_INIT;
  wcuda_step_output output = WCUDA_STEP_OUTPUT_INIT;
  uint64_t ticket = 0;
  row.sequence = live.sequence;
  row.tokens = tokens, row.token_count = 2;
  row.flags = WCUDA_ROW_SAMPLE;
  row.sampling = &sampling;
  step.rows = &row, step.row_count = 1;
  output.rows = &result, output.row_capacity = 1;
  sampling.grown = 1;
  REFUSED(wcuda_step_submit(live.engine, &step, &ticket, &error));
  sampling.grown = 0, row.grown = 1;
  REFUSED(wcuda_step_submit(live.engine, &step, &ticket, &error));
  row.grown = 0;
  CHECK(wcuda_engine_profile_set(live.engine, 1, &error) == WCUDA_OK);
  CHECK(wcuda_step_submit(live.engine, &step, &ticket, &error) == WCUDA_OK);
  result.grown = 1;
  REFUSED(wcuda_step_wait(live.engine, ticket, -1, &output, &error));
  result.grown = 0;
  CHECK(wcuda_step_wait(live.engine, ticket, -1, &output, &error) == WCUDA_OK);
  CHECK(result.token >= 0 && result.grown == 0);
  row.flags |= WCUDA_ROW_SAMPLE_LATE;
  CHECK(wcuda_step_submit(live.engine, &step, &ticket, &error) == WCUDA_OK);
  late.grown = 1;
  REFUSED(wcuda_step_sample(live.engine, ticket, &late, 1, &error));
  late.grown = 0;
  CHECK(wcuda_step_sample(live.engine, ticket, &late, 1, &error) == WCUDA_OK);
  CHECK(wcuda_step_wait(live.engine, ticket, -1, &output, &error) == WCUDA_OK);
}

static wcuda_status open_nothing(void* user, int32_t ordinal, void** self, wcuda_error* e) {
  (void)user, (void)ordinal, (void)self, (void)e;
  return WCUDA_NO_DEVICE;
}

static void check_other_elements(void) {
  wcuda_program_header header = WCUDA_PROGRAM_HEADER_INIT;
  wcuda_program_options program = WCUDA_PROGRAM_OPTIONS_INIT;
  wcuda_program made = {0};
  wcuda_selection_options wanted = WCUDA_SELECTION_OPTIONS_INIT;
  wcuda_skipped_backend skipped = WCUDA_SKIPPED_BACKEND_INIT;
  wcuda_selection selection = WCUDA_SELECTION_INIT;
  const wcuda_backend_vtable* table = NULL;
  wcuda_backend_vtable own = WCUDA_BACKEND_VTABLE_INIT;
  wcuda_backend_registration registration = WCUDA_BACKEND_REGISTRATION_INIT;
  void* self = NULL;
  int32_t type = 0;
  program.source = kSource;
  program.architecture = kArchitecture;
  header.name = text_of("a.h");
  program.headers = &header, program.header_count = 1;
  CHECK(wcuda_program_create(&program, &made, &error) == WCUDA_OK);
  wcuda_program_destroy(made);
  header.grown = 1;
  REFUSED(wcuda_program_create(&program, &made, &error));

  selection.skipped = &skipped, selection.skipped_capacity = 1;
  wanted.preferred = WCUDA_BACKEND_VULKAN;
  CHECK(wcuda_backend_select(&wanted, &selection, &error) == WCUDA_OK);
  CHECK(skipped.type == WCUDA_BACKEND_VULKAN && skipped.grown == 0);
  skipped.grown = 1;
  REFUSED(wcuda_backend_select(&wanted, &selection, &error));

  /* A table of the library has the library's size; one of a caller, the caller's. */
  CHECK(wcuda_backend_table_get(live.backend, &table, &self, &error) == WCUDA_OK);
  memcpy(&own, table, table->struct_size);
  own.struct_size = sizeof(own);
  registration.name = text_of("newer");
  registration.table = &own;
  registration.open = open_nothing;
  own.grown = 1;
  REFUSED(wcuda_backend_register(&registration, &type, &error));
  own.grown = 0;
  CHECK(wcuda_backend_register(&registration, &type, &error) == WCUDA_OK);
  CHECK(wcuda_backend_unregister(type, &error) == WCUDA_OK);
}

static void check_inputs(wcuda_context context) {
  wcuda_selection_options options = WCUDA_SELECTION_OPTIONS_INIT;
  uint64_t threads = 0;
  wcuda_failover failover = {0};
  wcuda_failover_target target = WCUDA_FAILOVER_TARGET_INIT;
  target.type = WCUDA_BACKEND_HOST;
  GROWS(wcuda_launch, WCUDA_LAUNCH_INIT, wcuda_launch_threads_get(&value, &threads, &error));
  GROWS(wcuda_selection, WCUDA_SELECTION_INIT, wcuda_backend_select(&options, &value, &error));
  {
    wcuda_context made = {0};
    wcuda_context_options value = WCUDA_CONTEXT_OPTIONS_INIT;
    value.backend = WCUDA_BACKEND_HOST;
    CHECK(wcuda_context_create(&value, &made, &error) == WCUDA_OK);
    wcuda_context_destroy(made);
    value.grown = 1;
    CHECK(wcuda_context_create(&value, &made, &error) == WCUDA_UNSUPPORTED);
  }
  {
    wcuda_kernel kernel = {0};
    wcuda_kernel_options value = WCUDA_KERNEL_OPTIONS_INIT;
    value.name = kAdd;
    value.host = run_nothing;
    CHECK(wcuda_kernel_create(context, &value, &kernel, &error) == WCUDA_OK);
    wcuda_kernel_destroy(kernel);
    value.grown = 1;
    CHECK(wcuda_kernel_create(context, &value, &kernel, &error) == WCUDA_UNSUPPORTED);
  }
  {
    wcuda_failover_options value = WCUDA_FAILOVER_OPTIONS_INIT;
    value.targets = &target;
    value.target_count = 1;
    CHECK(wcuda_failover_create(&value, &failover, &error) == WCUDA_OK);
    wcuda_failover_destroy(failover);
    target.grown = 1; /* an element's */
    CHECK(wcuda_failover_create(&value, &failover, &error) == WCUDA_UNSUPPORTED);
  }
}

/* Elements have the caller's distance from each other: the second is found where the caller has it.
 */
static void check_arrays(wcuda_context context) {
  wcuda_argument arguments[4];
  wcuda_buffer_options options = WCUDA_BUFFER_OPTIONS_INIT;
  wcuda_buffer buffer = {0};
  const wcuda_stream own = {0};
  const float numbers[4] = {1, 2, 3, 4};
  float sums[4] = {0};
  const int32_t n = 4;
  wcuda_ledger_entry entries[2];
  wcuda_catalogue_entry listed[3] = {WCUDA_CATALOGUE_ENTRY_INIT};
  uint64_t count = 0;
  int i;
  options.bytes = sizeof(numbers);
  CHECK(wcuda_buffer_create(context, &options, &buffer, &error) == WCUDA_OK);
  CHECK(wcuda_buffer_write(buffer, 0, numbers, sizeof(numbers), &error) == WCUDA_OK);
  for (i = 0; i < 4; ++i) {
    const wcuda_argument argument = WCUDA_ARGUMENT_INIT;
    arguments[i] = argument;
    arguments[i].kind = i < 3 ? WCUDA_ARG_BUFFER : WCUDA_ARG_I32;
    if (i < 3) arguments[i].buffer = buffer;
  }
  arguments[3].data = &n;
  CHECK(wcuda_catalogue_run(context, kAdd, WCUDA_ARG_F32, arguments, 4, own, &error) == WCUDA_OK);
  CHECK(wcuda_buffer_read(buffer, 0, sums, sizeof(sums), &error) == WCUDA_OK);
  for (i = 0; i < 4; ++i) CHECK(sums[i] == 2 * numbers[i]);
  arguments[2].grown = 1;
  CHECK(wcuda_catalogue_run(context, kAdd, WCUDA_ARG_F32, arguments, 4, own, &error) ==
        WCUDA_UNSUPPORTED);

  memset(entries, 0x5a, sizeof(entries));
  entries[0].struct_size = sizeof(entries[0]);
  entries[0].grown = 0;
  CHECK(wcuda_context_ledger_list(context, 0, NULL, 0, &count, &error) == WCUDA_OK);
  CHECK(wcuda_context_ledger_list(context, count - 1, entries, 2, &count, &error) == WCUDA_OK);
  CHECK(entries[0].bytes == sizeof(numbers) && entries[0].grown == 0);
  CHECK(wcuda_catalogue_list(0, listed, 3, &count, &error) == WCUDA_OK);
  for (i = 0; i < 3; ++i)
    CHECK(listed[i].struct_size == sizeof(listed[i]) && listed[i].name.bytes != 0 &&
          listed[i].grown == 0);
  listed[0].grown = 1;
  CHECK(wcuda_catalogue_list(0, listed, 3, &count, &error) == WCUDA_UNSUPPORTED);
  wcuda_buffer_destroy(buffer);
}

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  make_objects(argv[1], argv[2]);
  check_outputs(live.context);
  check_inputs(live.context);
  check_arrays(live.context);
  check_rows();
  check_every_struct();
  check_other_elements();
  destroy_objects();
  printf("newer caller: %d checks failed\n", failures);
  return failures != 0;
}
