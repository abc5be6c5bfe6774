/* hello.c: a device, a context, a buffer and the ledger, in C.
 *
 *   cc -std=c11 hello.c $(pkg-config --cflags --libs worker_cuda) -o hello && ./hello
 * [auto|cuda|host]
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "worker_cuda.h"

static int fail(const char* what, const wcuda_error* error) {
  fprintf(stderr, "%s: %s (%s)\n", what, error->message, wcuda_status_name(error->code));
  return EXIT_FAILURE;
}

static void log_line(void* user, int32_t level, wcuda_string target, wcuda_string message) {
  (void)level;
  fprintf((FILE*)user, "[%.*s] %.*s\n", (int)target.bytes, target.data, (int)message.bytes,
          message.data);
}

/* Writes text to the device, reads it back, and prints its digest. */
static int use_buffer(wcuda_context context, wcuda_error* error) {
  const char text[] = "worker-cuda keeps this in device memory";
  char back[sizeof(text)];
  uint8_t digest[32];
  wcuda_buffer buffer;
  wcuda_buffer_options options = WCUDA_BUFFER_OPTIONS_INIT;
  options.bytes = sizeof(text);
  options.tag.data = "hello";
  options.tag.bytes = 5;
  if (wcuda_buffer_create(context, &options, &buffer, error)) return fail("create", error);

  int result = EXIT_FAILURE;
  if (wcuda_buffer_write(buffer, 0, text, sizeof(text), error)) {
    fail("write", error);
  } else if (wcuda_buffer_read(buffer, 0, back, sizeof(back), error)) {
    fail("read", error);
  } else if (wcuda_buffer_digest(buffer, 0, sizeof(text), digest, error)) {
    fail("digest", error);
  } else {
    printf("read back: %s\nblake3:    ", back);
    for (int i = 0; i < 32; ++i) printf("%02x", digest[i]);
    printf("\n");
    result = strcmp(text, back) == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
  }

  wcuda_ledger_entry entry = WCUDA_LEDGER_ENTRY_INIT;
  uint64_t count;
  if (wcuda_context_ledger_list(context, 0, &entry, 1, &count, error)) return fail("ledger", error);
  printf("ledger:    %" PRIu64 " allocation, '%s' holds %" PRIu64 " bytes\n", count, entry.tag,
         entry.bytes);
  wcuda_buffer_destroy(buffer);
  return result;
}

int main(int argc, char** argv) {
  wcuda_error error;
  wcuda_context_options options = WCUDA_CONTEXT_OPTIONS_INIT;
  if (argc > 1 && strcmp(argv[1], "cuda") == 0) options.backend = WCUDA_BACKEND_CUDA;
  if (argc > 1 && strcmp(argv[1], "host") == 0) options.backend = WCUDA_BACKEND_HOST;
  if (wcuda_log_set(log_line, stderr, WCUDA_LOG_INFO, &error)) return fail("log", &error);

  wcuda_context context;
  if (wcuda_context_create(&options, &context, &error)) return fail("context", &error);
  wcuda_context_info info = WCUDA_CONTEXT_INFO_INIT;
  wcuda_device_caps caps = WCUDA_DEVICE_CAPS_INIT;
  if (wcuda_context_info_get(context, &info, &error)) return fail("info", &error);
  if (wcuda_device_caps_get(info.backend, info.ordinal, &caps, &error)) return fail("caps", &error);
  printf("worker-cuda %s on %s, %s, %" PRIu64 " MiB\n", wcuda_version_string(),
         info.backend == WCUDA_BACKEND_CUDA ? "CUDA" : "the host", caps.name,
         caps.total_memory >> 20);

  int result = use_buffer(context, &error);
  wcuda_memory_info memory = WCUDA_MEMORY_INFO_INIT;
  wcuda_health health = WCUDA_HEALTH_INIT;
  if (wcuda_context_memory_get(context, WCUDA_PURPOSE_ANY, &memory, &error))
    return fail("memory", &error);
  if (wcuda_health_get(context, &health, &error)) return fail("health", &error);
  printf("memory:    %" PRIu64 " bytes held now, %" PRIu64 " at most; health %s\n",
         memory.current_bytes, memory.peak_bytes,
         health.state == WCUDA_HEALTH_OK ? "ok" : health.message);
  if (memory.current_bytes != 0 || health.state != WCUDA_HEALTH_OK) result = EXIT_FAILURE;
  wcuda_context_destroy(context);
  return result;
}
