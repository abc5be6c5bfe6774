/* A caller compiled against headers that are newer than the archive (tools/abi/grow.py): a field
 * more in every struct. It is served while that field is zero and refused with WCUDA_UNSUPPORTED
 * when it is not. Returns the number of checks that failed. */
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
  CHECK(wcuda_context_ledger_list(context, 0, entries, 2, &count, &error) == WCUDA_OK);
  CHECK(count == 1 && entries[0].bytes == sizeof(numbers) && entries[0].grown == 0);
  CHECK(wcuda_catalogue_list(0, listed, 3, &count, &error) == WCUDA_OK);
  for (i = 0; i < 3; ++i)
    CHECK(listed[i].struct_size == sizeof(listed[i]) && listed[i].name.bytes != 0 &&
          listed[i].grown == 0);
  listed[0].grown = 1;
  CHECK(wcuda_catalogue_list(0, listed, 3, &count, &error) == WCUDA_UNSUPPORTED);
  wcuda_buffer_destroy(buffer);
}

int main(void) {
  wcuda_context context = {0};
  wcuda_context_options options = WCUDA_CONTEXT_OPTIONS_INIT;
  options.backend = WCUDA_BACKEND_HOST;
  CHECK(wcuda_context_create(&options, &context, &error) == WCUDA_OK);
  check_outputs(context);
  check_inputs(context);
  check_arrays(context);
  wcuda_context_destroy(context);
  printf("newer caller: %d checks failed\n", failures);
  return failures != 0;
}
