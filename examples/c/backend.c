/* backend.c: a backend of one's own, registered, chosen by name and used like any other.
 *
 *   cc -std=c11 backend.c $(pkg-config --cflags --libs worker_cuda) -o backend && ./backend
 *
 * Its device is the memory of the process, up to 256 MiB; its one kernel is a function below. All
 * is done when a call returns, so a stream is a number and an event a time.
 */
#define _POSIX_C_SOURCE 200809L
#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "worker_cuda.h"

#define CAPACITY ((uint64_t)256 << 20)

struct device {
  atomic_uint_fast64_t held_bytes;
  atomic_uint_fast64_t last_stream;
};

/* What a failed function of a table does: a status, and its reason in one line. */
static wcuda_status fail(wcuda_error* error, wcuda_status status, const char* reason) {
  memset(error, 0, sizeof(*error));
  error->code = status;
  error->message_bytes = (uint32_t)snprintf(error->message, sizeof(error->message), "%s", reason);
  return status;
}

static wcuda_status device_open(void* user, int32_t ordinal, void** self, wcuda_error* error) {
  (void)user;
  if (ordinal != 0) return fail(error, WCUDA_NO_DEVICE, "there is device 0 alone");
  struct device* device = calloc(1, sizeof(*device));
  if (!device) return fail(error, WCUDA_OUT_OF_HOST_MEMORY, "no memory for a device");
  *self = device;
  return WCUDA_OK;
}

static void device_end(void* self) { free(self); }

static uint32_t device_count(void* self) {
  (void)self;
  return 1;
}

static wcuda_status device_caps(void* self, uint32_t index, wcuda_device_caps* caps,
                                wcuda_error* error) {
  (void)self;
  if (index != 0) return fail(error, WCUDA_NO_DEVICE, "there is device 0 alone");
  strcpy(caps->name, "memory of the process");
  caps->total_memory = CAPACITY;
  caps->multiprocessor_count = 1;
  caps->warp_size = 1;
  caps->supports_fp64 = 1;
  caps->unified_memory = 1;
  return WCUDA_OK;
}

/* The library calls a table only with handles that it gave out and ranges within them, so an
 * address will do as an id. Zero bytes are never asked for. */
static wcuda_status memory_allocate(void* self, uint64_t bytes, uint8_t flags,
                                    wcuda_device_memory* memory, wcuda_error* error) {
  struct device* device = self;
  (void)flags;
  uint64_t held = atomic_load(&device->held_bytes);
  do {
    if (bytes > CAPACITY - held)
      return fail(error, WCUDA_OUT_OF_MEMORY, "256 MiB are all there is");
  } while (!atomic_compare_exchange_weak(&device->held_bytes, &held, held + bytes));
  void* data = malloc(bytes);
  if (!data) {
    atomic_fetch_sub(&device->held_bytes, bytes);
    return fail(error, WCUDA_OUT_OF_MEMORY, "the process is full");
  }
  memory->id = (uint64_t)(uintptr_t)data;
  memory->bytes = bytes;
  return WCUDA_OK;
}

static char* address(uint64_t id, uint64_t offset) { return (char*)(uintptr_t)id + offset; }

static wcuda_status memory_free(void* self, wcuda_device_memory memory, wcuda_error* error) {
  struct device* device = self;
  (void)error;
  free(address(memory.id, 0));
  atomic_fetch_sub(&device->held_bytes, memory.bytes);
  return WCUDA_OK;
}

static wcuda_status copy_in(void* self, wcuda_device_memory target, uint64_t offset,
                            const void* source, uint64_t bytes, wcuda_error* error) {
  (void)self, (void)error;
  memcpy(address(target.id, offset), source, bytes);
  return WCUDA_OK;
}

static wcuda_status copy_out(void* self, void* target, wcuda_device_memory source, uint64_t offset,
                             uint64_t bytes, wcuda_error* error) {
  (void)self, (void)error;
  memcpy(target, address(source.id, offset), bytes);
  return WCUDA_OK;
}

static wcuda_status copy_in_async(void* self, wcuda_device_memory target, uint64_t offset,
                                  const void* source, uint64_t bytes, wcuda_stream stream,
                                  wcuda_error* error) {
  (void)stream;
  return copy_in(self, target, offset, source, bytes, error);
}

static wcuda_status copy_out_async(void* self, void* target, wcuda_device_memory source,
                                   uint64_t offset, uint64_t bytes, wcuda_stream stream,
                                   wcuda_error* error) {
  (void)stream;
  return copy_out(self, target, source, offset, bytes, error);
}

static wcuda_status copy_within(void* self, wcuda_device_memory target, uint64_t target_offset,
                                wcuda_device_memory source, uint64_t source_offset, uint64_t bytes,
                                wcuda_stream stream, wcuda_error* error) {
  (void)self, (void)stream, (void)error;
  memcpy(address(target.id, target_offset), address(source.id, source_offset), bytes);
  return WCUDA_OK;
}

static wcuda_status memory_fill(void* self, wcuda_device_memory memory, uint64_t offset,
                                uint64_t bytes, uint64_t pattern, uint32_t pattern_bytes,
                                wcuda_stream stream, wcuda_error* error) {
  (void)self, (void)stream, (void)error;
  char* data = address(memory.id, offset);
  for (uint64_t i = 0; i < bytes; ++i) data[i] = (char)(pattern >> (8 * (i % pattern_bytes)));
  return WCUDA_OK;
}

static wcuda_status kernel_compile(void* self, wcuda_string source, wcuda_string entry,
                                   wcuda_backend_kernel* kernel, wcuda_error* error) {
  (void)self, (void)source;
  if (entry.bytes != 10 || memcmp(entry.data, "vector_add", 10) != 0)
    return fail(error, WCUDA_UNSUPPORTED_KERNEL, "there is vector_add alone");
  kernel->id = 1;
  return WCUDA_OK;
}

/* Argument `index`. struct_size is the distance: a newer library's arguments are longer. */
static const wcuda_argument* at(const wcuda_argument* arguments, int index) {
  const char* bytes = (const char*)arguments;
  return (const wcuda_argument*)(const void*)(bytes + (size_t)index * arguments->struct_size);
}

/* The window of argument `index`, or NULL if it is none of n floats. */
static float* floats(const wcuda_argument* arguments, int index, int32_t n) {
  const wcuda_argument* argument = at(arguments, index);
  if (argument->kind != WCUDA_ARG_BUFFER || n < 0 || argument->bytes / sizeof(float) < (uint64_t)n)
    return NULL;
  return (float*)(void*)address(argument->buffer.id, argument->offset);
}

/* vector_add(a, b, c, n): c = a + b. */
static wcuda_status kernel_launch(void* self, wcuda_backend_kernel kernel,
                                  const wcuda_launch* config, const wcuda_argument* arguments,
                                  uint64_t count, wcuda_error* error) {
  (void)self, (void)kernel, (void)config;
  if (count != 4) return fail(error, WCUDA_ARGUMENT_COUNT, "the kernel takes 4 arguments");
  if (at(arguments, 3)->kind != WCUDA_ARG_I32)
    return fail(error, WCUDA_INVALID_ARGUMENT, "n is an i32");
  int32_t n;
  memcpy(&n, at(arguments, 3)->data, sizeof(n));
  const float *a = floats(arguments, 0, n), *b = floats(arguments, 1, n);
  float* c = floats(arguments, 2, n);
  if (!a || !b || !c)
    return fail(error, WCUDA_INVALID_ARGUMENT, "a buffer has fewer than n floats");
  for (int32_t i = 0; i < n; ++i) c[i] = a[i] + b[i];
  return WCUDA_OK;
}

static wcuda_status kernel_destroy(void* self, wcuda_backend_kernel kernel, wcuda_error* error) {
  (void)self, (void)kernel, (void)error;
  return WCUDA_OK;
}

static wcuda_status device_wait(void* self, wcuda_error* error) {
  (void)self, (void)error;
  return WCUDA_OK;
}

static wcuda_status stream_create(void* self, int32_t priority, wcuda_stream* stream,
                                  wcuda_error* error) {
  struct device* device = self;
  (void)priority, (void)error;
  stream->id = atomic_fetch_add(&device->last_stream, 1) + 1;
  return WCUDA_OK;
}

static wcuda_status stream_done(void* self, wcuda_stream stream, wcuda_error* error) {
  (void)self, (void)stream, (void)error;
  return WCUDA_OK;
}

static wcuda_status event_create(void* self, wcuda_event* event, wcuda_error* error) {
  (void)self;
  struct timespec* time = calloc(1, sizeof(*time));
  if (!time) return fail(error, WCUDA_OUT_OF_HOST_MEMORY, "no memory for an event");
  event->id = (uint64_t)(uintptr_t)time;
  return WCUDA_OK;
}

static struct timespec* time_of(wcuda_event event) { return (struct timespec*)(uintptr_t)event.id; }

static wcuda_status event_destroy(void* self, wcuda_event event, wcuda_error* error) {
  (void)self, (void)error;
  free(time_of(event));
  return WCUDA_OK;
}

static wcuda_status event_record(void* self, wcuda_event event, wcuda_stream stream,
                                 wcuda_error* error) {
  (void)self, (void)stream, (void)error;
  clock_gettime(CLOCK_MONOTONIC, time_of(event));
  return WCUDA_OK;
}

static wcuda_status event_order(void* self, wcuda_event event, wcuda_stream stream,
                                wcuda_error* error) {
  (void)self, (void)event, (void)stream, (void)error;
  return WCUDA_OK;
}

static wcuda_status event_wait(void* self, wcuda_event event, wcuda_error* error) {
  (void)self, (void)event, (void)error;
  return WCUDA_OK;
}

static wcuda_status event_done(void* self, wcuda_event event, int32_t* done, wcuda_error* error) {
  (void)self, (void)event, (void)error;
  *done = 1;
  return WCUDA_OK;
}

static wcuda_status event_elapsed(void* self, wcuda_event start, wcuda_event end,
                                  double* milliseconds, wcuda_error* error) {
  (void)self;
  const struct timespec *from = time_of(start), *to = time_of(end);
  if ((from->tv_sec | from->tv_nsec) == 0 || (to->tv_sec | to->tv_nsec) == 0)
    return fail(error, WCUDA_INVALID_STATE, "an event that was never recorded has no time");
  *milliseconds =
      1e3 * (double)(to->tv_sec - from->tv_sec) + 1e-6 * (double)(to->tv_nsec - from->tv_nsec);
  return WCUDA_OK;
}

static wcuda_status memory_info(void* self, uint64_t* free_bytes, uint64_t* total_bytes,
                                wcuda_error* error) {
  struct device* device = self;
  (void)error;
  *free_bytes = CAPACITY - atomic_load(&device->held_bytes);
  *total_bytes = CAPACITY;
  return WCUDA_OK;
}

/* Registers the backend under a name. `fault` and `host_address` stay NULL: such a device is never
 * lost, and memory that the host sees comes from the library. */
wcuda_status example_backend_register(const char* name, int32_t* type, wcuda_error* error) {
  wcuda_backend_vtable table = WCUDA_BACKEND_VTABLE_INIT;
  table.deinit = device_end;
  table.get_device_count = device_count;
  table.get_device_caps = device_caps;
  table.allocate = memory_allocate;
  table.free = memory_free;
  table.copy_to_device = copy_in;
  table.copy_from_device = copy_out;
  table.copy_to_device_async = copy_in_async;
  table.copy_from_device_async = copy_out_async;
  table.compile_kernel = kernel_compile;
  table.launch_kernel = kernel_launch;
  table.destroy_kernel = kernel_destroy;
  table.synchronize = device_wait;
  table.copy_on_device = copy_within;
  table.fill = memory_fill;
  table.stream_create = stream_create;
  table.stream_destroy = stream_done;
  table.stream_synchronize = stream_done;
  table.event_create = event_create;
  table.event_destroy = event_destroy;
  table.event_record = event_record;
  table.event_order = event_order;
  table.event_synchronize = event_wait;
  table.event_done = event_done;
  table.event_elapsed = event_elapsed;
  table.memory_info = memory_info;
  wcuda_backend_registration registration = WCUDA_BACKEND_REGISTRATION_INIT;
  registration.name.data = name;
  registration.name.bytes = strlen(name);
  registration.priority = 1; /* below HOST: wcuda_backend_select takes it only when asked for */
  registration.table = &table;
  registration.open = device_open;
  return wcuda_backend_register(&registration, type, error);
}

#ifndef EXAMPLE_BACKEND_AS_LIBRARY

static int report(const char* what, const wcuda_error* error) {
  fprintf(stderr, "%s: %s (%s)\n", what, error->message, wcuda_status_name(error->code));
  return EXIT_FAILURE;
}

static void print_call(void* user, wcuda_string line) {
  fprintf((FILE*)user, "  %.*s\n", (int)line.bytes, line.data);
}

/* c = a + b on whatever backend the table is of. */
static int add(const wcuda_backend_vtable* table, void* self, wcuda_error* error) {
  enum { N = 1024 };
  static const char source[] =
      "extern \"C\" __global__ void vector_add(const float* a, const float* b, float* c, int n) {\n"
      "  int i = blockIdx.x * blockDim.x + threadIdx.x;\n"
      "  if (i < n) c[i] = a[i] + b[i];\n"
      "}\n";
  float ones[N], twos[N], sums[N];
  for (int i = 0; i < N; ++i) ones[i] = 1.0f, twos[i] = 2.0f;
  wcuda_device_memory memory[3];
  for (int i = 0; i < 3; ++i)
    if (table->allocate(self, sizeof(ones), WCUDA_MEMORY_DEVICE, &memory[i], error))
      return report("allocate", error);
  if (table->copy_to_device(self, memory[0], 0, ones, sizeof(ones), error) ||
      table->copy_to_device(self, memory[1], 0, twos, sizeof(twos), error))
    return report("copy", error);

  wcuda_backend_kernel kernel;
  const wcuda_string text = {source, sizeof(source) - 1}, entry = {"vector_add", 10};
  if (table->compile_kernel(self, text, entry, &kernel, error)) return report("compile", error);
  const int32_t n = N;
  wcuda_argument arguments[4] = {WCUDA_ARGUMENT_INIT, WCUDA_ARGUMENT_INIT, WCUDA_ARGUMENT_INIT,
                                 WCUDA_ARGUMENT_INIT};
  for (int i = 0; i < 3; ++i) {
    arguments[i].kind = WCUDA_ARG_BUFFER;
    arguments[i].buffer.id = memory[i].id;
  }
  arguments[3].kind = WCUDA_ARG_I32;
  arguments[3].data = &n;
  wcuda_launch launch = WCUDA_LAUNCH_INIT;
  launch.grid[0] = N / 256;
  if (table->launch_kernel(self, kernel, &launch, arguments, 4, error) ||
      table->synchronize(self, error) ||
      table->copy_from_device(self, sums, memory[2], 0, sizeof(sums), error))
    return report("launch", error);
  for (int i = 0; i < N; ++i)
    if (sums[i] != 3.0f) return EXIT_FAILURE;
  printf("vector_add: %d sums, all %.1f\n", N, (double)sums[0]);
  for (int i = 0; i < 3; ++i)
    if (table->free(self, memory[i], error)) return report("free", error);
  if (table->free(self, memory[0], error) != WCUDA_INVALID_HANDLE) return EXIT_FAILURE;
  printf("freed twice: %s\n", error->message);
  return EXIT_SUCCESS;
}

int main(void) {
  wcuda_error error;
  int32_t type;
  if (example_backend_register("process", &type, &error)) return report("register", &error);
  const wcuda_string name = {"process", 7};
  wcuda_backend_options options = WCUDA_BACKEND_OPTIONS_INIT;
  if (wcuda_backend_find(name, &options.type, &error)) return report("find", &error);
  options.trace = print_call;
  options.trace_user = stdout;

  wcuda_backend backend;
  const wcuda_backend_vtable* table;
  void* self;
  if (wcuda_backend_open(&options, &backend, &error)) return report("open", &error);
  if (wcuda_backend_table_get(backend, &table, &self, &error)) return report("table", &error);
  const int result = add(table, self, &error);
  table->deinit(self); /* or wcuda_backend_close(backend) */
  return result;
}

#endif
