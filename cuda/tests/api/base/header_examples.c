/* The example of each header, as a C11 program: header_examples MODEL. Runs all of them on the CPU
 * or, where there is one, on a GPU. */
#include <stdio.h>
#include <string.h>

#include "worker_cuda.h"

static int report(const char* message) {
  fprintf(stderr, "%s\n", message);
  return 1;
}

#include "header_examples.inc"

/* c = a + b by the example of compute.h. */
static int run_compute(wcuda_context context, wcuda_error error) {
  float numbers[1024];
  wcuda_buffer buffers[3];
  wcuda_buffer_options options = WCUDA_BUFFER_OPTIONS_INIT;
  options.bytes = sizeof(numbers);
  for (int i = 0; i < 1024; ++i) numbers[i] = (float)i;
  for (int i = 0; i < 3; ++i)
    if (wcuda_buffer_create(context, &options, &buffers[i], &error) != WCUDA_OK ||
        wcuda_buffer_write(buffers[i], 0, numbers, sizeof(numbers), &error) != WCUDA_OK)
      return report(error.message);
  if (example_compute(context, buffers[0], buffers[1], buffers[2], error) != 0) return 1;
  if (wcuda_buffer_read(buffers[2], 0, numbers, sizeof(numbers), &error) != WCUDA_OK)
    return report(error.message);
  for (int i = 0; i < 3; ++i) wcuda_buffer_destroy(buffers[i]);
  return numbers[1023] == 2046.0f ? 0 : report("1023 + 1023 is not 2046");
}

static int run_llm(wcuda_context context, const char* path, wcuda_error error) {
  wcuda_source source = WCUDA_SOURCE_INIT;
  wcuda_gguf gguf = {0};
  wcuda_model model = {0};
  source.kind = WCUDA_SOURCE_PATH;
  source.path.data = path;
  source.path.bytes = strlen(path);
  if (wcuda_gguf_open(&source, &gguf, &error) != WCUDA_OK ||
      wcuda_model_load(context, gguf, NULL, &model, &error) != WCUDA_OK)
    return report(error.message);
  wcuda_gguf_close(gguf);
  const int failed = example_llm(model, error);
  wcuda_model_unload(model);
  return failed;
}

/* A registry with "noop", listed by the example of zctl.h. */
static int run_zctl(wcuda_context context, wcuda_error error) {
  const wcuda_string name = {"noop", 4};
  wcuda_registry registry = {0};
  if (wcuda_registry_create(context, &registry, &error) != WCUDA_OK ||
      wcuda_registry_add_builtin(registry, name, WCUDA_ARG_F32, 0, NULL, &error) != WCUDA_OK)
    return report(error.message);
  const int failed = example_zctl(registry, error);
  wcuda_registry_destroy(registry);
  return failed;
}

int main(int argc, char** argv) {
  wcuda_error error;
  wcuda_context context = {0};
  wcuda_context_options options = WCUDA_CONTEXT_OPTIONS_INIT;
  memset(&error, 0, sizeof(error));
  if (argc != 2) return report("header_examples MODEL");
  if (wcuda_context_create(&options, &context, &error) != WCUDA_OK) return report(error.message);
  const int failed = example_base() || example_backend(error) || run_compute(context, error) ||
                     run_llm(context, argv[1], error) || run_zctl(context, error);
  wcuda_context_destroy(context);
  return failed;
}
