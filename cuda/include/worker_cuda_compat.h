/* worker_cuda_compat.h: two older interfaces on top of worker_cuda.h, for programs written against them.
 * Fourteen functions are those of an older worker: cuda_init to cuda_check_device_health. Eight are those of
 * an older library of device memory: vram_malloc to vram_reset_mock_state. New programs use worker_cuda.h.
 *
 * The functions are `static inline`. Programs that need symbols (Rust's extern "C", ctypes, dlsym) link
 * libworker_cuda_compat.a, which defines all functions, before libworker_cuda.a. The names clash with those
 * of the CUDA driver: do not include cuda.h in the same file.
 *
 * Backend. All functions use CUDA devices. They use the CPU only if the program defines WCUDA_COMPAT_HOST or
 * first calls wcuda_compat_use_host(1).
 * Error codes are the CUDA_... and VRAM_... numbers below. Every call writes `error_code` unless it is NULL, also
 * after success (CUDA_SUCCESS).
 * Text. The library works on tokens. The program installs functions that convert text to tokens and back
 * (in the Rust crate: worker_cuda::compat::install_text); without them inference does not start.
 * Threads. Calls on one context, or on an object created from it, must not overlap. Any thread may call vram_*
 * at any time.
 */
#ifndef WORKER_CUDA_COMPAT_H
#define WORKER_CUDA_COMPAT_H

#ifdef __cuda_cuda_h__
#error "worker_cuda_compat.h and cuda.h define the same names: include one of them in a file"
#endif

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "worker_cuda.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Chooses the backend for the calls of this process: WCUDA_BACKEND_CUDA, which is the default, _HOST, or _AUTO.
 * _AUTO uses the CPU if there is no CUDA device. For vram_*, _AUTO means _CUDA. [any thread] */
WCUDA_API void wcuda_compat_set_backend(int32_t backend);
/* Returns the chosen backend. [any thread] */
WCUDA_API int32_t wcuda_compat_backend_get(void);

/* The backend that the functions use, an expression. To use another one, define it before this header. */
#ifndef WCUDA_COMPAT_BACKEND
#ifdef WCUDA_COMPAT_HOST
#define WCUDA_COMPAT_BACKEND WCUDA_BACKEND_HOST
#else
#define WCUDA_COMPAT_BACKEND wcuda_compat_backend_get()
#endif
#endif

/* The linkage of the functions below. libworker_cuda_compat.a compiles them with external linkage. */
#ifndef WCUDA_COMPAT_FUNCTION
#define WCUDA_COMPAT_FUNCTION static inline
#endif

/* Chooses the CPU (1) or CUDA devices (0). Also a symbol of libworker_cuda_compat.a. [any thread] */
WCUDA_COMPAT_FUNCTION void wcuda_compat_use_host(int enabled) {
  wcuda_compat_set_backend(enabled ? WCUDA_BACKEND_HOST : WCUDA_BACKEND_CUDA);
}

#define CUDA_SUCCESS 0
#define CUDA_ERROR_DEVICE_NOT_FOUND 1
#define CUDA_ERROR_OUT_OF_MEMORY 2
#define CUDA_ERROR_INVALID_DEVICE 3
#define CUDA_ERROR_MODEL_LOAD_FAILED 4
#define CUDA_ERROR_INFERENCE_FAILED 5
#define CUDA_ERROR_VRAM_RESIDENCY_FAILED 6
#define CUDA_ERROR_KERNEL_LAUNCH_FAILED 7
#define CUDA_ERROR_INVALID_PARAMETER 8
#define CUDA_ERROR_UNKNOWN 99

/* Converts `text` (UTF-8, NUL-terminated) to tokens of the model in file model_path, and writes at most
 * `capacity` of them. Returns their number, or a negative number on failure. */
typedef int32_t (*wcuda_compat_encode)(void* user, const char* model_path, const char* text,
                                       int32_t* tokens, uint32_t capacity);
/* Writes the bytes that a token adds to a text, at most `capacity`, and returns their number. It may be 0,
 * and the last character may be incomplete. Returns WCUDA_COMPAT_END for a token that ends the text, and
 * another negative number on failure. */
typedef int32_t (*wcuda_compat_decode)(void* user, const char* model_path, int32_t token,
                                       char* bytes, uint32_t capacity);
#define WCUDA_COMPAT_END (-1)
#define WCUDA_COMPAT_FAILED (-2)

typedef struct wcuda_compat_text {
  wcuda_compat_encode encode;
  wcuda_compat_decode decode;
  void* user;
} wcuda_compat_text;

/* Installs the text functions of this process; NULL removes them. Both functions receive `user`. The functions
 * and `user` must stay valid while they are installed or in use. [any thread] */
WCUDA_API void wcuda_compat_set_text(wcuda_compat_encode encode, wcuda_compat_decode decode,
                                     void* user);
/* Returns the installed functions. [any thread] */
WCUDA_API wcuda_compat_text wcuda_compat_text_get(void);

#define WCUDA_COMPAT_PENDING_BYTES 1024

typedef struct CudaContext {
  wcuda_context context;
} CudaContext;

typedef struct CudaModel {
  CudaContext* owner;
  wcuda_model model;
  uint64_t weights_bytes;
  uint32_t context_length;
  char* path;
} CudaModel;

typedef struct InferenceResult {
  CudaModel* model;
  wcuda_engine engine;
  wcuda_sequence sequence;
  float temperature;
  uint64_t seed;
  uint32_t length;     /* positions in use */
  uint32_t length_max; /* positions available */
  uint32_t token_count, token_count_max;
  int32_t next;      /* sampled and not yet decoded; -1: none */
  int32_t last;      /* decoded and not yet fed */
  int32_t has_ended; /* no further token will be sampled */
  uint32_t pending_count;
  char pending[WCUDA_COMPAT_PENDING_BYTES]; /* bytes not yet returned */
} InferenceResult;

/* Static text, never NULL. */
WCUDA_COMPAT_FUNCTION const char* cuda_error_message(int error_code) {
  switch (error_code) {
    case CUDA_SUCCESS:
      return "success";
    case CUDA_ERROR_DEVICE_NOT_FOUND:
      return "no device found";
    case CUDA_ERROR_OUT_OF_MEMORY:
      return "out of memory";
    case CUDA_ERROR_INVALID_DEVICE:
      return "no such device";
    case CUDA_ERROR_MODEL_LOAD_FAILED:
      return "the model could not be loaded";
    case CUDA_ERROR_INFERENCE_FAILED:
      return "inference failed";
    case CUDA_ERROR_VRAM_RESIDENCY_FAILED:
      return "memory is not on the device";
    case CUDA_ERROR_KERNEL_LAUNCH_FAILED:
      return "a kernel did not compile or start";
    case CUDA_ERROR_INVALID_PARAMETER:
      return "invalid parameter";
    default:
      return "unknown error";
  }
}

/* ---- not part of the older interface ---- */

static inline void wcuda_compat_report(int* error_code, int code) {
  if (error_code != NULL) *error_code = code;
}

/* Returns the error code of a status, or `otherwise` if the older interface has no code for it. */
static inline int wcuda_compat_code(wcuda_status status, int otherwise) {
  const int code = wcuda_status_number(status, WCUDA_NUMBERS_WORKER);
  return code == CUDA_ERROR_UNKNOWN ? otherwise : code;
}

/* Counts the devices of a backend. AUTO counts the CPU if there is no CUDA device. */
static inline wcuda_status wcuda_compat_devices(int32_t backend, int32_t* count) {
  wcuda_status status = wcuda_device_count(
      backend == WCUDA_BACKEND_AUTO ? WCUDA_BACKEND_CUDA : backend, count, NULL);
  if (backend == WCUDA_BACKEND_AUTO && (status != WCUDA_OK || *count == 0)) {
    *count = 1;
    status = WCUDA_OK; /* wcuda_context_create decides whether the CPU may be used */
  }
  return status == WCUDA_OK && *count == 0 ? WCUDA_NO_DEVICE : status;
}

/* Appends `count` tokens; samples the next into *sampled unless that is NULL. */
static inline wcuda_status wcuda_compat_step(InferenceResult* result, const int32_t* tokens,
                                             uint32_t count, int32_t* sampled) {
  wcuda_sampling sampling = WCUDA_SAMPLING_INIT;
  wcuda_step step = WCUDA_STEP_INIT;
  wcuda_step_output output = WCUDA_STEP_OUTPUT_INIT;
  wcuda_row row = WCUDA_ROW_INIT;
  wcuda_row_result row_result = WCUDA_ROW_RESULT_INIT;
  uint64_t ticket = 0;
  wcuda_status status;
  sampling.temperature = result->temperature;
  sampling.seed = result->seed;
  row.sequence = result->sequence;
  row.tokens = tokens;
  row.token_count = count;
  row.flags = sampled != NULL ? WCUDA_ROW_SAMPLE : 0;
  row.sampling = sampled != NULL ? &sampling : NULL;
  step.row_count = 1;
  step.rows = &row;
  output.row_capacity = 1;
  output.rows = &row_result;
  status = wcuda_step_submit(result->engine, &step, &ticket, NULL);
  if (status != WCUDA_OK) return status;
  status = wcuda_step_wait(result->engine, ticket, -1, &output, NULL);
  if (status != WCUDA_OK) return status;
  if (row_result.status != WCUDA_ROW_OK) return WCUDA_INTERNAL;
  result->length += count;
  if (sampled != NULL) *sampled = row_result.token;
  return WCUDA_OK;
}

/* Returns the length of the UTF-8 character at `text`, or 0 if the character is incomplete. For bytes that are not
 * valid UTF-8, returns their number as a negative value. */
static inline int wcuda_compat_character(const char* text, uint32_t count) {
  const unsigned char first = (unsigned char)text[0];
  const uint32_t length = first < 0x80                    ? 1
                          : first >= 0xc2 && first < 0xe0 ? 2
                          : first >= 0xe0 && first < 0xf0 ? 3
                          : first >= 0xf0 && first < 0xf5 ? 4
                                                          : 0;
  uint32_t i;
  if (length == 0) return -1;
  for (i = 1; i < length; ++i) {
    unsigned char byte;
    if (i >= count) return 0;
    byte = (unsigned char)text[i];
    if ((byte & 0xc0) != 0x80) return -(int)i;
    if (i == 1 && ((first == 0xe0 && byte < 0xa0) || (first == 0xed && byte > 0x9f) ||
                   (first == 0xf0 && byte < 0x90) || (first == 0xf4 && byte > 0x8f)))
      return -1;
  }
  return (int)length;
}

/* Moves the complete pending characters to `text`, with a final NUL. Bytes that are not valid UTF-8 become U+FFFD.
 * Returns the number of bytes. If `capacity` is too small, returns -1 and moves nothing. */
static inline int wcuda_compat_take(InferenceResult* result, char* text, int capacity) {
  uint32_t from = 0;
  int to = 0;
  while (from < result->pending_count) {
    const int length = wcuda_compat_character(result->pending + from, result->pending_count - from);
    const char* const source = length > 0 ? result->pending + from : "\xef\xbf\xbd";
    const int bytes = length > 0 ? length : 3;
    if (length == 0) break;
    if (to + bytes + 1 > capacity) return -1;
    memcpy(text + to, source, (size_t)bytes);
    to += bytes;
    from += (uint32_t)(length > 0 ? length : -length);
  }
  if (to == 0) return 0;
  text[to] = 0;
  result->pending_count -= from;
  memmove(result->pending, result->pending + from, result->pending_count);
  return to;
}

/* ---- contexts ---- */

/* Opens a device; NULL on error. Without a GPU the code is CUDA_ERROR_DEVICE_NOT_FOUND, unless the CPU was
 * requested (see Backend above). */
WCUDA_COMPAT_FUNCTION CudaContext* cuda_init(int gpu_device, int* error_code) {
  wcuda_context_options options = WCUDA_CONTEXT_OPTIONS_INIT;
  CudaContext* ctx;
  wcuda_status status;
  int32_t count = 0;
  options.backend = WCUDA_COMPAT_BACKEND;
  options.ordinal = gpu_device;
  status = wcuda_compat_devices(options.backend, &count);
  if (status == WCUDA_OK && (gpu_device < 0 || gpu_device >= count)) {
    wcuda_compat_report(error_code, CUDA_ERROR_INVALID_DEVICE);
    return NULL;
  }
  if (status != WCUDA_OK) {
    wcuda_compat_report(error_code, wcuda_compat_code(status, CUDA_ERROR_DEVICE_NOT_FOUND));
    return NULL;
  }
  ctx = (CudaContext*)calloc(1, sizeof(CudaContext));
  status =
      ctx == NULL ? WCUDA_OUT_OF_HOST_MEMORY : wcuda_context_create(&options, &ctx->context, NULL);
  wcuda_compat_report(error_code, wcuda_compat_code(status, CUDA_ERROR_UNKNOWN));
  if (status == WCUDA_OK) return ctx;
  free(ctx);
  return NULL;
}

/* NULL is legal. */
WCUDA_COMPAT_FUNCTION void cuda_destroy(CudaContext* ctx) {
  if (ctx == NULL) return;
  wcuda_context_destroy(ctx->context);
  free(ctx);
}

/* Returns the number of devices of the backend in use; 0 on error. The CPU, if requested, is one device. */
WCUDA_COMPAT_FUNCTION int cuda_get_device_count(void) {
  int32_t count = 0;
  return wcuda_compat_devices(WCUDA_COMPAT_BACKEND, &count) == WCUDA_OK ? count : 0;
}

/* Returns the bytes of device memory that this context holds; 0 on error. */
WCUDA_COMPAT_FUNCTION uint64_t cuda_get_process_vram_usage(CudaContext* ctx) {
  wcuda_health health = WCUDA_HEALTH_INIT;
  if (ctx == NULL || wcuda_health_get(ctx->context, &health, NULL) != WCUDA_OK) return 0;
  return health.ledger_bytes;
}

/* Returns true if the device has no known fault. */
WCUDA_COMPAT_FUNCTION bool cuda_check_device_health(CudaContext* ctx, int* error_code) {
  wcuda_health health = WCUDA_HEALTH_INIT;
  int code = CUDA_ERROR_INVALID_PARAMETER;
  if (ctx != NULL && wcuda_health_get(ctx->context, &health, NULL) == WCUDA_OK) {
    if (health.state == WCUDA_HEALTH_OK)
      code = CUDA_SUCCESS;
    else if (health.state == WCUDA_HEALTH_LOST)
      code = wcuda_compat_code(WCUDA_DEVICE_LOST, CUDA_ERROR_UNKNOWN);
    else
      code = health.nonresident_count != 0 ? CUDA_ERROR_VRAM_RESIDENCY_FAILED : CUDA_ERROR_UNKNOWN;
  }
  wcuda_compat_report(error_code, code);
  return code == CUDA_SUCCESS;
}

/* ---- models ---- */

/* NULL is legal. */
WCUDA_COMPAT_FUNCTION void cuda_unload_model(CudaModel* model) {
  if (model == NULL) return;
  wcuda_model_unload(model->model);
  free(model->path);
  free(model);
}

/* Loads a GGUF file; NULL on error, and *vram_bytes_used (may be NULL) is 0 then. The context must
 * outlive the model. */
WCUDA_COMPAT_FUNCTION CudaModel* cuda_load_model(CudaContext* ctx, const char* model_path,
                                         uint64_t* vram_bytes_used, int* error_code) {
  wcuda_source source = WCUDA_SOURCE_INIT;
  wcuda_model_info info = WCUDA_MODEL_INFO_INIT;
  wcuda_gguf gguf = {0};
  CudaModel* model;
  wcuda_status status;
  if (vram_bytes_used != NULL) *vram_bytes_used = 0;
  if (ctx == NULL || model_path == NULL) {
    wcuda_compat_report(error_code, CUDA_ERROR_INVALID_PARAMETER);
    return NULL;
  }
  model = (CudaModel*)calloc(1, sizeof(CudaModel));
  if (model != NULL) model->path = (char*)malloc(strlen(model_path) + 1);
  if (model == NULL || model->path == NULL) {
    free(model);
    wcuda_compat_report(error_code, CUDA_ERROR_OUT_OF_MEMORY);
    return NULL;
  }
  strcpy(model->path, model_path);
  model->owner = ctx;
  source.kind = WCUDA_SOURCE_PATH;
  source.path.data = model_path;
  source.path.bytes = strlen(model_path);
  status = wcuda_gguf_open(&source, &gguf, NULL);
  if (status == WCUDA_OK) status = wcuda_model_load(ctx->context, gguf, NULL, &model->model, NULL);
  if (status == WCUDA_OK) status = wcuda_model_info_get(model->model, &info, NULL);
  wcuda_gguf_close(gguf);
  wcuda_compat_report(error_code, wcuda_compat_code(status, CUDA_ERROR_MODEL_LOAD_FAILED));
  if (status != WCUDA_OK) {
    cuda_unload_model(model);
    return NULL;
  }
  model->weights_bytes = info.weights_bytes;
  model->context_length = info.context_length;
  if (vram_bytes_used != NULL) *vram_bytes_used = info.weights_bytes;
  return model;
}

/* Returns the bytes of the weights; 0 for NULL. */
WCUDA_COMPAT_FUNCTION uint64_t cuda_model_get_vram_usage(CudaModel* model) {
  return model != NULL ? model->weights_bytes : 0;
}
/* Does the same as cuda_model_get_vram_usage. */
WCUDA_COMPAT_FUNCTION uint64_t cuda_get_vram_usage(CudaModel* model) {
  return cuda_model_get_vram_usage(model);
}

/* Returns true when all memory that the model's context holds is on its device. */
WCUDA_COMPAT_FUNCTION bool cuda_check_vram_residency(CudaModel* model, int* error_code) {
  wcuda_health health = WCUDA_HEALTH_INIT;
  int code = CUDA_ERROR_INVALID_PARAMETER;
  if (model != NULL && wcuda_health_get(model->owner->context, &health, NULL) == WCUDA_OK)
    code = health.state == WCUDA_HEALTH_LOST || health.nonresident_count != 0
               ? CUDA_ERROR_VRAM_RESIDENCY_FAILED
               : CUDA_SUCCESS;
  wcuda_compat_report(error_code, code);
  return code == CUDA_SUCCESS;
}

/* ---- inference ---- */

/* NULL is legal. */
WCUDA_COMPAT_FUNCTION void cuda_inference_free(InferenceResult* result) {
  if (result == NULL) return;
  wcuda_sequence_destroy(result->sequence);
  wcuda_engine_destroy(result->engine);
  free(result);
}

/* Creates an engine and a sequence for a prompt of `count` tokens and its continuation, and computes the
 * prompt. */
static inline wcuda_status wcuda_compat_begin(InferenceResult* result, const int32_t* tokens,
                                              uint32_t count) {
  wcuda_engine_options options = WCUDA_ENGINE_OPTIONS_INIT;
  wcuda_engine_info info = WCUDA_ENGINE_INFO_INIT;
  wcuda_status status;
  uint32_t done = 0;
  options.max_sequences = 1;
  options.max_sequence_tokens = result->length_max;
  options.kv_tokens = result->length_max;
  status = wcuda_engine_create(result->model->model, &options, &result->engine, NULL);
  if (status == WCUDA_OK) status = wcuda_engine_info_get(result->engine, &info, NULL);
  if (status == WCUDA_OK) status = wcuda_sequence_create(result->engine, &result->sequence, NULL);
  while (status == WCUDA_OK && done < count) {
    const uint32_t left = count - done;
    const uint32_t part = left < info.max_batch_tokens ? left : info.max_batch_tokens;
    status = wcuda_compat_step(result, tokens + done, part, part == left ? &result->next : NULL);
    done += part;
  }
  return status;
}

/* Starts a generation; NULL on error. prompt: UTF-8. max_tokens: 1 … 2048. temperature: 0 (greedy) … 2.
 * The model must outlive the result. */
WCUDA_COMPAT_FUNCTION InferenceResult* cuda_inference_start(CudaModel* model, const char* prompt,
                                                    int max_tokens, float temperature,
                                                    uint64_t seed, int* error_code) {
  const wcuda_compat_text text = wcuda_compat_text_get();
  InferenceResult* result = NULL;
  int32_t* tokens = NULL;
  int32_t count;
  int code = CUDA_SUCCESS;
  if (model == NULL || prompt == NULL || max_tokens < 1 || max_tokens > 2048 ||
      !(temperature >= 0.0f && temperature <= 2.0f) || strlen(prompt) > UINT32_MAX / 16) {
    wcuda_compat_report(error_code, CUDA_ERROR_INVALID_PARAMETER);
    return NULL;
  }
  if (text.encode == NULL || text.decode == NULL) {
    wcuda_compat_report(error_code, CUDA_ERROR_INFERENCE_FAILED);
    return NULL;
  }
  result = (InferenceResult*)calloc(1, sizeof(InferenceResult));
  tokens = (int32_t*)malloc((strlen(prompt) + 16) * sizeof(int32_t));
  if (result == NULL || tokens == NULL) {
    code = CUDA_ERROR_OUT_OF_MEMORY;
  } else {
    count = text.encode(text.user, model->path, prompt, tokens, (uint32_t)strlen(prompt) + 16);
    if (count < 0) {
      code = CUDA_ERROR_INFERENCE_FAILED;
    } else if (count == 0 || (uint32_t)count > model->context_length) {
      code = CUDA_ERROR_INVALID_PARAMETER;
    } else {
      result->model = model;
      result->temperature = temperature;
      result->seed = seed;
      result->token_count_max = (uint32_t)max_tokens;
      result->next = result->last = -1;
      result->length_max = (uint32_t)count + (uint32_t)max_tokens;
      if (result->length_max > model->context_length) result->length_max = model->context_length;
      code = wcuda_compat_code(wcuda_compat_begin(result, tokens, (uint32_t)count),
                               CUDA_ERROR_INFERENCE_FAILED);
    }
  }
  free(tokens);
  wcuda_compat_report(error_code, code);
  if (code == CUDA_SUCCESS) return result;
  cuda_inference_free(result);
  return NULL;
}

/* Waits for the next piece of text: complete characters, NUL-terminated. Returns true if there is one, false
 * at the end of the text (CUDA_SUCCESS) or on failure. *token_index (may be NULL) receives the index, from
 * 0, of the token that completed the piece. If the buffer is too small, the error is
 * CUDA_ERROR_INVALID_PARAMETER, and the next call returns the piece. */
WCUDA_COMPAT_FUNCTION bool cuda_inference_next_token(InferenceResult* result, char* token_out,
                                             int token_buffer_size, int* token_index,
                                             int* error_code) {
  const wcuda_compat_text text = wcuda_compat_text_get();
  if (result == NULL || token_out == NULL || token_buffer_size < 1 || text.decode == NULL) {
    wcuda_compat_report(error_code, CUDA_ERROR_INVALID_PARAMETER);
    return false;
  }
  for (;;) {
    int32_t bytes;
    const int taken = wcuda_compat_take(result, token_out, token_buffer_size);
    if (taken != 0) {
      if (taken > 0 && token_index != NULL) *token_index = (int)result->token_count - 1;
      wcuda_compat_report(error_code, taken > 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_PARAMETER);
      return taken > 0;
    }
    if (!result->has_ended && result->next < 0) {
      wcuda_status status = WCUDA_OK;
      if (result->token_count == result->token_count_max || result->length == result->length_max)
        result->has_ended = 1;
      else
        status = wcuda_compat_step(result, &result->last, 1, &result->next);
      if (status != WCUDA_OK) {
        result->has_ended = 1;
        wcuda_compat_report(error_code, wcuda_compat_code(status, CUDA_ERROR_INFERENCE_FAILED));
        return false;
      }
    }
    if (result->has_ended) {
      wcuda_compat_report(error_code, CUDA_SUCCESS);
      return false;
    }
    result->last = result->next;
    result->next = -1;
    bytes = text.decode(text.user, result->model->path, result->last,
                        result->pending + result->pending_count,
                        WCUDA_COMPAT_PENDING_BYTES - result->pending_count);
    if (bytes < 0) {
      result->has_ended = 1;
      if (bytes == WCUDA_COMPAT_END) continue;
      wcuda_compat_report(error_code, CUDA_ERROR_INFERENCE_FAILED);
      return false;
    }
    ++result->token_count;
    result->pending_count += (uint32_t)bytes;
  }
}

/* ---- device memory ----
 *
 * Every function returns one of the VRAM_... codes. The functions use the same backend as the cuda_* functions. They
 * differ from the older library in the following: the CPU backend takes the place of its mock; only the
 * hardware limits the size of an allocation and the number of devices; freeing a block twice is an error, as the
 * older library documented; and each thread has its own current device. Any thread may call any function.
 */
#define VRAM_SUCCESS 0
#define VRAM_ERROR_ALLOCATION_FAILED 1
#define VRAM_ERROR_INVALID_VALUE 2
#define VRAM_ERROR_MEMCPY_FAILED 3
#define VRAM_ERROR_DRIVER 4

#define WCUDA_COMPAT_VRAM_BACKEND \
  (WCUDA_COMPAT_BACKEND == WCUDA_BACKEND_HOST ? WCUDA_BACKEND_HOST : WCUDA_BACKEND_CUDA)

/* Returns the VRAM_... code of a status, or `otherwise` if the driver failed or the device is lost. */
static inline int wcuda_compat_vram_code(wcuda_status status, int otherwise) {
  if (status == WCUDA_DEVICE_ERROR || status == WCUDA_DEVICE_LOST) return otherwise;
  return wcuda_status_number(status, WCUDA_NUMBERS_VRAM);
}

/* Allocates on the thread's device, aligned to 256 bytes; *ptr is NULL after a failure. */
WCUDA_COMPAT_FUNCTION int vram_malloc(void** ptr, size_t bytes) {
  if (ptr == NULL) return VRAM_ERROR_INVALID_VALUE;
  *ptr = NULL;
  if (bytes == 0) return VRAM_ERROR_INVALID_VALUE;
  return wcuda_compat_vram_code(wcuda_raw_allocate(WCUDA_COMPAT_VRAM_BACKEND, bytes, ptr, NULL),
                                VRAM_ERROR_DRIVER);
}

/* Frees a block; `ptr` may be NULL. Freeing a block twice returns VRAM_ERROR_INVALID_VALUE. */
WCUDA_COMPAT_FUNCTION int vram_free(void* ptr) {
  return wcuda_compat_vram_code(wcuda_raw_free(ptr, NULL), VRAM_ERROR_DRIVER);
}

/* Copies to a block and waits. `dst` may lie inside a block; the range is checked against the block's end. */
WCUDA_COMPAT_FUNCTION int vram_memcpy_h2d(void* dst, const void* src, size_t bytes) {
  if (dst == NULL || src == NULL) return VRAM_ERROR_INVALID_VALUE;
  return wcuda_compat_vram_code(wcuda_raw_copy_to_device(dst, src, bytes, NULL),
                                VRAM_ERROR_MEMCPY_FAILED);
}

WCUDA_COMPAT_FUNCTION int vram_memcpy_d2h(void* dst, const void* src, size_t bytes) {
  if (dst == NULL || src == NULL) return VRAM_ERROR_INVALID_VALUE;
  return wcuda_compat_vram_code(wcuda_raw_copy_to_host(dst, src, bytes, NULL),
                                VRAM_ERROR_MEMCPY_FAILED);
}

/* Reports the free and the total memory of the thread's device; sets both to 0 after a failure. */
WCUDA_COMPAT_FUNCTION int vram_get_info(size_t* free_bytes, size_t* total_bytes) {
  uint64_t free_now = 0, total = 0;
  wcuda_status status;
  if (free_bytes == NULL || total_bytes == NULL) return VRAM_ERROR_INVALID_VALUE;
  status = wcuda_raw_memory_get(WCUDA_COMPAT_VRAM_BACKEND, &free_now, &total, NULL);
  *free_bytes = (size_t)free_now;
  *total_bytes = (size_t)total;
  return wcuda_compat_vram_code(status, VRAM_ERROR_DRIVER);
}

/* Makes a device current for the calling thread. */
WCUDA_COMPAT_FUNCTION int vram_set_device(int device) {
  return wcuda_compat_vram_code(wcuda_raw_device_set(WCUDA_COMPAT_VRAM_BACKEND, device, NULL),
                                VRAM_ERROR_DRIVER);
}

/* Counts the devices. If there are none, sets *count to 0 and returns VRAM_ERROR_DRIVER. */
WCUDA_COMPAT_FUNCTION int vram_get_device_count(int* count) {
  int32_t devices = 0;
  wcuda_status status;
  if (count == NULL) return VRAM_ERROR_INVALID_VALUE;
  status = wcuda_device_count(WCUDA_COMPAT_VRAM_BACKEND, &devices, NULL);
  *count = devices;
  return wcuda_compat_vram_code(status, VRAM_ERROR_DRIVER);
}

/* Frees every block of the CPU backend; with CUDA devices it does nothing. */
WCUDA_COMPAT_FUNCTION void vram_reset_mock_state(void) {
  if (WCUDA_COMPAT_VRAM_BACKEND == WCUDA_BACKEND_HOST)
    (void)wcuda_raw_reset(WCUDA_BACKEND_HOST, NULL);
}

#ifdef __cplusplus
}
#endif

#endif /* WORKER_CUDA_COMPAT_H */
