/* The fourteen functions of worker_cuda_compat.h, as a C program uses them: COMPAT_USE generates
 * text with a tiny model on a backend, by text functions of its own, and returns how many checks
 * failed. */
#include <stdio.h>

static int backend;
#define WCUDA_COMPAT_BACKEND backend
#include <worker_cuda_compat.h>

#define TOKENS 12

#ifndef COMPAT_USE
#define COMPAT_USE compat_use_c
#endif
#ifdef __cplusplus
extern "C" {
#endif
int COMPAT_USE(int chosen_backend, const char* model_path);

static int failures;
#define CHECK(condition)                                                      \
  do {                                                                        \
    if (!(condition)) {                                                       \
      fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition); \
      ++failures;                                                             \
    }                                                                         \
  } while (0)

/* A byte a token, as the tiny models' vocabularies have room for. */
static int32_t encode(void* user, const char* model_path, const char* text, int32_t* tokens,
                      uint32_t capacity) {
  uint32_t count = 0;
  (void)user;
  (void)model_path;
  for (; text[count] != 0 && count < capacity; ++count) tokens[count] = text[count] % 8;
  return (int32_t)count;
}

static int32_t decode_number(void* user, const char* model_path, int32_t token, char* bytes,
                             uint32_t capacity) {
  (void)user;
  (void)model_path;
  return (int32_t)snprintf(bytes, capacity, "%d,", token);
}

/* One byte of a text a token, whichever token that is. */
static int32_t decode_byte(void* user, const char* model_path, int32_t token, char* bytes,
                           uint32_t capacity) {
  const char** text = (const char**)user;
  (void)model_path;
  (void)token;
  if (**text == 0) return WCUDA_COMPAT_END;
  if (capacity < 1) return WCUDA_COMPAT_FAILED;
  *bytes = *(*text)++;
  return 1;
}

/* The whole text, and how many pieces it came in. */
static int generate(CudaModel* model, float temperature, char* text, size_t capacity) {
  int error = -1, index = -1, last = -1, pieces = 0;
  char piece[16];
  InferenceResult* result = cuda_inference_start(model, "hello", TOKENS, temperature, 7, &error);
  CHECK(result != NULL && error == CUDA_SUCCESS);
  text[0] = 0;
  if (result == NULL) return 0;
  while (cuda_inference_next_token(result, piece, sizeof(piece), &index, &error)) {
    CHECK(index > last && index < TOKENS && error == CUDA_SUCCESS);
    CHECK(strlen(text) + strlen(piece) < capacity);
    strcat(text, piece);
    last = index;
    ++pieces;
  }
  CHECK(error == CUDA_SUCCESS);
  CHECK(!cuda_inference_next_token(result, piece, sizeof(piece), NULL, NULL));
  cuda_inference_free(result);
  return pieces;
}

static void check_text(CudaContext* ctx, CudaModel* model) {
  const uint64_t before = cuda_get_process_vram_usage(ctx);
  const char* source = "na\xc3\xafve \xe2\x82\xac \xff!";
  char text[256], again[256];
  InferenceResult* result;
  int error = 0;
  wcuda_compat_set_text(encode, decode_number, NULL);
  CHECK(generate(model, 0.0f, text, sizeof(text)) == TOKENS);
  CHECK(generate(model, 0.0f, again, sizeof(again)) == TOKENS);
  CHECK(strcmp(text, again) == 0);
  CHECK(generate(model, 1.5f, text, sizeof(text)) == TOKENS);
  CHECK(generate(model, 1.5f, again, sizeof(again)) == TOKENS);
  CHECK(strcmp(text, again) == 0);

  /* Characters come whole: 12 bytes, of which 3 continue one that has begun. */
  wcuda_compat_set_text(encode, decode_byte, (void*)&source);
  CHECK(generate(model, 0.0f, text, sizeof(text)) == TOKENS - 3);
  CHECK(strcmp(text, "na\xc3\xafve \xe2\x82\xac \xef\xbf\xbd") == 0);
  source = "\xc3";
  CHECK(generate(model, 0.0f, text, sizeof(text)) == 0); /* half a character is never given */

  /* A piece that does not fit waits. */
  source = "\xe2\x82\xac";
  result = cuda_inference_start(model, "x", 3, 0.0f, 0, NULL);
  CHECK(!cuda_inference_next_token(result, text, 3, NULL, &error));
  CHECK(error == CUDA_ERROR_INVALID_PARAMETER);
  CHECK(cuda_inference_next_token(result, text, 4, NULL, &error) && strlen(text) == 3);
  cuda_inference_free(result);
  CHECK(cuda_get_process_vram_usage(ctx) == before);
}

static void check_refusals(CudaContext* ctx, CudaModel* model) {
  int error = 0;
  uint64_t bytes = 1;
  char text[8];
  CHECK(cuda_init(-1, &error) == NULL && error == CUDA_ERROR_INVALID_DEVICE);
  CHECK(cuda_init(1000, &error) == NULL && error == CUDA_ERROR_INVALID_DEVICE);
  if (backend == WCUDA_BACKEND_HOST) {
    CHECK(cuda_get_device_count() == 1);
    backend = WCUDA_BACKEND_CUDA; /* the default: never the CPU on its own */
    if (cuda_get_device_count() == 0)
      CHECK(cuda_init(0, &error) == NULL && error == CUDA_ERROR_DEVICE_NOT_FOUND);
    backend = WCUDA_BACKEND_HOST;
  }
  CHECK(cuda_load_model(ctx, "/no/such/file.gguf", &bytes, &error) == NULL && bytes == 0);
  CHECK(error == CUDA_ERROR_MODEL_LOAD_FAILED);
  CHECK(cuda_load_model(NULL, "x", NULL, &error) == NULL);
  CHECK(error == CUDA_ERROR_INVALID_PARAMETER);
  CHECK(cuda_load_model(ctx, NULL, NULL, NULL) == NULL);
  wcuda_compat_set_text(NULL, NULL, NULL);
  CHECK(cuda_inference_start(model, "x", 1, 0.0f, 0, &error) == NULL);
  CHECK(error == CUDA_ERROR_INFERENCE_FAILED);
  wcuda_compat_set_text(encode, decode_number, NULL);
  CHECK(cuda_inference_start(NULL, "x", 1, 0.0f, 0, &error) == NULL);
  CHECK(cuda_inference_start(model, NULL, 1, 0.0f, 0, &error) == NULL);
  CHECK(cuda_inference_start(model, "", 1, 0.0f, 0, &error) == NULL);
  CHECK(cuda_inference_start(model, "x", 0, 0.0f, 0, &error) == NULL);
  CHECK(cuda_inference_start(model, "x", 2049, 0.0f, 0, &error) == NULL);
  CHECK(cuda_inference_start(model, "x", 1, -0.1f, 0, &error) == NULL);
  CHECK(cuda_inference_start(model, "x", 1, 2.1f, 0, &error) == NULL);
  CHECK(error == CUDA_ERROR_INVALID_PARAMETER);
  CHECK(!cuda_inference_next_token(NULL, text, sizeof(text), NULL, &error));
  CHECK(error == CUDA_ERROR_INVALID_PARAMETER);
  CHECK(!cuda_check_device_health(NULL, &error) && error == CUDA_ERROR_INVALID_PARAMETER);
  CHECK(!cuda_check_vram_residency(NULL, NULL));
  CHECK(cuda_model_get_vram_usage(NULL) == 0 && cuda_get_vram_usage(NULL) == 0);
  CHECK(cuda_get_process_vram_usage(NULL) == 0);
  cuda_destroy(NULL);
  cuda_unload_model(NULL);
  cuda_inference_free(NULL);
  for (error = -1; error < 101; ++error) CHECK(strlen(cuda_error_message(error)) > 0);
}

int COMPAT_USE(int chosen_backend, const char* model_path) {
  CudaContext* ctx;
  CudaModel* model;
  uint64_t bytes = 0;
  int error = -1;
  backend = chosen_backend;
  failures = 0;
  CHECK(cuda_get_device_count() >= 0);
  ctx = cuda_init(0, &error);
  CHECK(ctx != NULL && error == CUDA_SUCCESS);
  model = cuda_load_model(ctx, model_path, &bytes, &error);
  if (model == NULL) {
    fprintf(stderr, "%s: %s\n", model_path, cuda_error_message(error));
    return failures + 1;
  }
  CHECK(bytes > 0 && error == CUDA_SUCCESS);
  CHECK(cuda_model_get_vram_usage(model) == bytes && cuda_get_vram_usage(model) == bytes);
  CHECK(cuda_get_process_vram_usage(ctx) >= bytes);
  CHECK(cuda_check_vram_residency(model, &error) && error == CUDA_SUCCESS);
  CHECK(cuda_check_device_health(ctx, &error) && error == CUDA_SUCCESS);
  check_text(ctx, model);
  check_refusals(ctx, model);
  cuda_unload_model(model);
  CHECK(cuda_get_process_vram_usage(ctx) == 0);
  cuda_destroy(ctx);
  return failures;
}

#ifdef __cplusplus
}
#endif
