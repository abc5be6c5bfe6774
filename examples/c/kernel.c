/* kernel.c: a kernel of one's own by a descriptor, run with checked arguments, in C.
 *
 *   cc -std=c11 kernel.c $(pkg-config --cflags --libs worker_cuda) -o kernel && ./kernel
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "worker_cuda.h"

#define COUNT 1000

static wcuda_string text(const char* chars) {
  wcuda_string result = {chars, 0};
  while (chars[result.bytes] != 0) ++result.bytes;
  return result;
}

/* The data of argument `index`. struct_size is the distance: a newer library's arguments are
 * longer. */
static void* data_of(const wcuda_host_argument* arguments, int index) {
  const char* bytes = (const char*)arguments + (size_t)index * arguments->struct_size;
  return ((const wcuda_host_argument*)(const void*)bytes)->data;
}

/* y = a x + y: the work of the whole grid. */
static int32_t axpy(void* user, const wcuda_launch* launch, const wcuda_host_argument* arguments,
                    uint64_t argument_count) {
  const float a = *(const float*)data_of(arguments, 0);
  const float* x = (const float*)data_of(arguments, 1);
  float* y = (float*)data_of(arguments, 2);
  const int32_t n = *(const int32_t*)data_of(arguments, 3);
  int32_t i = 0;
  (void)user, (void)launch, (void)argument_count;
  for (; i < n; ++i) y[i] += a * x[i];
  return 0;
}

/* Adds the kernel to the registry and returns its id; 0 after a failure. */
static uint32_t add(wcuda_context context, wcuda_registry registry, wcuda_error* error) {
  const wcuda_parameter empty = WCUDA_PARAMETER_INIT;
  wcuda_parameter params[4];
  wcuda_kernel_options options = WCUDA_KERNEL_OPTIONS_INIT;
  wcuda_kernel_descriptor descriptor = WCUDA_KERNEL_DESCRIPTOR_INIT;
  uint32_t id = 0;
  int i;
  options.name = text("axpy");
  options.host = axpy; /* on CUDA: options.module, loaded from PTX or a compiled program */
  if (wcuda_kernel_create(context, &options, &descriptor.kernel, error)) return 0;

  for (i = 0; i < 4; ++i) params[i] = empty;
  params[0].name = text("a");
  params[0].kind = WCUDA_ARG_F32;
  for (i = 1; i < 3; ++i) {
    params[i].name = text(i == 1 ? "x" : "y");
    params[i].kind = WCUDA_ARG_BUFFER;
    params[i].dtype = WCUDA_ARG_F32;
    params[i].access = i == 1 ? WCUDA_ACCESS_READ : 0;
    params[i].shape = text("n");
  }
  params[3].name = text("n");
  params[3].kind = WCUDA_ARG_I32;
  params[3].min = text("0");
  descriptor.name = text("axpy");
  descriptor.parameters = params;
  descriptor.parameter_count = 4;
  descriptor.threads = text("n");
  if (wcuda_registry_add(registry, &descriptor, &id, error)) id = 0;
  wcuda_kernel_destroy(descriptor.kernel); /* the registry keeps it */
  return id;
}

static wcuda_status run(wcuda_registry registry, uint32_t id, wcuda_buffer x, wcuda_buffer y,
                        int32_t n, wcuda_error* error) {
  const float a = 2.0f;
  const wcuda_argument empty = WCUDA_ARGUMENT_INIT;
  wcuda_argument arguments[4];
  wcuda_stream own = {0};
  int i;
  for (i = 0; i < 4; ++i) arguments[i] = empty;
  arguments[0].kind = WCUDA_ARG_F32;
  arguments[0].data = &a;
  arguments[1].kind = arguments[2].kind = WCUDA_ARG_BUFFER;
  arguments[1].buffer = x;
  arguments[2].buffer = y;
  arguments[3].kind = WCUDA_ARG_I32;
  arguments[3].data = &n;
  return wcuda_registry_run(registry, id, arguments, 4, own, NULL, error);
}

static int show(wcuda_context context, wcuda_registry registry, wcuda_error* error) {
  float ones[COUNT];
  wcuda_registered_kernel listed = WCUDA_REGISTERED_KERNEL_INIT;
  wcuda_buffer_options options = WCUDA_BUFFER_OPTIONS_INIT;
  wcuda_buffer x = {0}, y = {0};
  uint64_t count = 0;
  int i, failed;
  const uint32_t id = add(context, registry, error);
  if (id == 0 || wcuda_registry_list(registry, 0, &listed, 1, &count, error)) return 1;
  printf("kernel %" PRIu32 " '%s', signature %016" PRIx64 "\n", listed.kernel_id, listed.name,
         listed.sig_hash);

  for (i = 0; i < COUNT; ++i) ones[i] = 1.0f;
  options.bytes = sizeof(ones);
  failed = wcuda_buffer_create(context, &options, &x, error) ||
           wcuda_buffer_create(context, &options, &y, error) ||
           wcuda_buffer_write(x, 0, ones, sizeof(ones), error) ||
           wcuda_buffer_write(y, 0, ones, sizeof(ones), error) ||
           run(registry, id, x, y, COUNT, error) ||
           wcuda_buffer_read(y, 0, ones, sizeof(ones), error);
  if (!failed) {
    printf("y[0] = %g, y[%d] = %g\n", ones[0], COUNT - 1, ones[COUNT - 1]);
    failed = ones[0] != 3.0f || ones[COUNT - 1] != 3.0f;
    /* What does not fit never reaches the kernel. */
    if (run(registry, id, x, y, COUNT + 1, error)) printf("%s\n", error->message);
  }
  wcuda_buffer_destroy(x);
  wcuda_buffer_destroy(y);
  return failed;
}

int main(void) {
  wcuda_error error = {0};
  wcuda_context context = {0};
  wcuda_registry registry = {0};
  wcuda_context_options options = WCUDA_CONTEXT_OPTIONS_INIT;
  int failed;
  options.backend = WCUDA_BACKEND_HOST;
  failed = wcuda_context_create(&options, &context, &error) ||
           wcuda_registry_create(context, &registry, &error) || show(context, registry, &error);
  if (failed) fprintf(stderr, "%s (%s)\n", error.message, wcuda_status_name(error.code));
  wcuda_registry_destroy(registry);
  wcuda_context_destroy(context);
  return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
