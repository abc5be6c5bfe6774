/* worker_cuda_cloak.h: runs a guest of ZCTL/1, a program with one flat memory. The guest's input, output and log
 * are FILE streams. docs/FORMATS.md, "Guests of ZCTL/1", states what the callbacks do.
 *
 * A guest defines lembeh_handle() and zprog_heap_base_value(). It is compiled to a program, or to a shared object
 * that worker-orcd runs:
 *
 *   cc -std=c11 -DWCUDA_CLOAK_MAIN guest.c $(pkg-config --cflags --libs worker_cuda) -o guest && ./guest
 *   cc -std=c11 -shared -fPIC guest.c $(pkg-config --cflags worker_cuda) -o guest.so
 *   worker-orcd zctl exec ./guest.so
 *
 * Macros, defined before this header or on the command line:
 *   WCUDA_CLOAK_SHAPE    1, 2 or 3: the parameters of the callback ctl (lembeh_ctl). Default: 2
 *   WCUDA_CLOAK_HANDLES  WCUDA_CLOAK_PACK, _ABI or _GUIDE: which numbers the handles have. Default: _ABI
 *   WCUDA_CLOAK_MAIN     defines main(), which runs the guest on stdin, stdout and stderr
 *
 * A guest is part of the program, and nothing confines its code: run only guests that you trust. The callbacks
 * check their arguments. They access only the range of the guest's memory that a call names, and return an error
 * if it extends past mem_cap. Calls for one wcuda_cloak must not overlap.
 */
#ifndef WORKER_CUDA_CLOAK_H
#define WORKER_CUDA_CLOAK_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "worker_cuda.h"

#ifndef WCUDA_CLOAK_SHAPE
#define WCUDA_CLOAK_SHAPE 2
#endif
#define WCUDA_CLOAK_PACK 0
#define WCUDA_CLOAK_ABI 1
#define WCUDA_CLOAK_GUIDE 2
#ifndef WCUDA_CLOAK_HANDLES
#define WCUDA_CLOAK_HANDLES WCUDA_CLOAK_ABI
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* ------------------------------------------------------------------------------------------------
 * What a guest sees
 */

typedef int32_t (*lembeh_in)(void* ctx, int32_t handle, uint8_t* mem, size_t mem_cap, int32_t ptr, int32_t cap);
typedef int32_t (*lembeh_out)(void* ctx, int32_t handle, uint8_t* mem, size_t mem_cap, int32_t ptr, int32_t len);
typedef void (*lembeh_end)(void* ctx, int32_t handle);
typedef void (*lembeh_log)(void* ctx, uint8_t* mem, size_t mem_cap, int32_t topic_ptr, int32_t topic_len,
                           int32_t msg_ptr, int32_t msg_len);
#if WCUDA_CLOAK_SHAPE == 1
typedef int32_t (*lembeh_ctl)(int32_t ctl_handle, uint8_t* mem, size_t mem_cap, int32_t req_ptr,
                              int32_t req_len, int32_t resp_ptr, int32_t resp_cap, int32_t timeout_ms);
#elif WCUDA_CLOAK_SHAPE == 2
typedef int32_t (*lembeh_ctl)(void* ctx, int32_t ctl_handle, uint8_t* mem, size_t mem_cap, int32_t req_ptr,
                              int32_t req_len, int32_t resp_ptr, int32_t resp_cap, int32_t timeout_ms);
#elif WCUDA_CLOAK_SHAPE == 3
typedef int32_t (*lembeh_ctl)(void* ctx, uint8_t* mem, size_t mem_cap, int32_t req_ptr, int32_t req_len,
                              int32_t resp_ptr, int32_t resp_cap);
#else
#error "WCUDA_CLOAK_SHAPE is 1, 2 or 3"
#endif

struct zprog_sys {
  void* ctx;
  int32_t (*alloc_fn)(void* ctx, uint8_t* mem, size_t mem_cap, int32_t size);
  void (*free_fn)(void* ctx, uint8_t* mem, size_t mem_cap, int32_t ptr);
};

/* The guest defines this function. It returns 0 or a trap code. */
int lembeh_handle(int32_t req_handle, int32_t res_handle, lembeh_in in, lembeh_out out, lembeh_end end,
                  lembeh_log log, lembeh_ctl ctl, void* host_ctx, const struct zprog_sys* sys);
/* The guest defines this function. It returns the offset in the memory at which the heap begins. */
uint32_t zprog_heap_base_value(void);

typedef int (*lembeh_entry)(int32_t req_handle, int32_t res_handle, lembeh_in in, lembeh_out out,
                            lembeh_end end, lembeh_log log, lembeh_ctl ctl, void* host_ctx,
                            const struct zprog_sys* sys);

/* Calls `ctl` with the arguments of its shape and the handle number that WCUDA_CLOAK_HANDLES selects. */
static inline int32_t wcuda_cloak_call(lembeh_ctl ctl, void* ctx, uint8_t* mem, size_t mem_cap, int32_t req_ptr,
                                       int32_t req_len, int32_t resp_ptr, int32_t resp_cap,
                                       int32_t timeout_ms) {
#if WCUDA_CLOAK_SHAPE == 3
  (void)timeout_ms;
  return ctl(ctx, mem, mem_cap, req_ptr, req_len, resp_ptr, resp_cap);
#else
  const int32_t handle = WCUDA_CLOAK_HANDLES == WCUDA_CLOAK_PACK ? 4 : 3;
#if WCUDA_CLOAK_SHAPE == 1
  (void)ctx;
  return ctl(handle, mem, mem_cap, req_ptr, req_len, resp_ptr, resp_cap, timeout_ms);
#else
  return ctl(ctx, handle, mem, mem_cap, req_ptr, req_len, resp_ptr, resp_cap, timeout_ms);
#endif
#endif
}

/* ------------------------------------------------------------------------------------------------
 * The host
 */

/* Chunk schedules: how many bytes successive reads of the input return. */
#define WCUDA_CLOAK_ALL_AT_ONCE 0
#define WCUDA_CLOAK_ONE_BYTE 1
#define WCUDA_CLOAK_POWERS_OF_TWO 2
#define WCUDA_CLOAK_CRLF_ADVERSARY 3
#define WCUDA_CLOAK_SEEDED_RANDOM 4

typedef struct wcuda_cloak {
  FILE* in;
  FILE* out;
  FILE* log;                  /* NULL: nothing is logged */
  wcuda_zctl_session session; /* id 0: none */
  int32_t handles;            /* WCUDA_CLOAK_PACK, _ABI or _GUIDE */
  int32_t chunks;             /* WCUDA_CLOAK_ALL_AT_ONCE, ... */
  uint64_t seed;              /* of SEEDED_RANDOM */
  uint32_t heap_base;         /* zprog_heap_base_value() of the guest */
  /* Set by the callbacks; 0 at first. */
  uint32_t heap_bytes; /* allocated */
  uint32_t step;       /* of POWERS_OF_TWO */
  uint32_t ended;      /* 1 << handle */
} wcuda_cloak;
#define WCUDA_CLOAK_INIT \
  {stdin, stdout, stderr, {0}, WCUDA_CLOAK_HANDLES, WCUDA_CLOAK_ALL_AT_ONCE, 0, 0, 0, 0, 0}

/* Returns the name of a trap code. */
static inline const char* wcuda_cloak_trap_words(int code) {
  static const char* const words[] = {"none",
                                      "out of bounds",
                                      "call depth",
                                      "a host function is missing",
                                      "a host function failed",
                                      "allocation failed",
                                      "arithmetic"};
  return code >= 0 && code <= 6 ? words[code] : "unknown";
}

static inline int32_t wcuda_cloak_in_handle(const wcuda_cloak* cloak) {
  return cloak->handles == WCUDA_CLOAK_PACK ? 1 : 0;
}

static inline int wcuda_cloak_is_inside(const uint8_t* mem, size_t mem_cap, int32_t ptr, int32_t bytes) {
  return mem && ptr >= 0 && bytes >= 0 && (uint64_t)ptr + (uint64_t)bytes <= mem_cap;
}

/* Handles with numbers above that of the log belong to the session. */
static inline int wcuda_cloak_is_of_session(const wcuda_cloak* cloak, int32_t handle) {
  return handle > wcuda_cloak_in_handle(cloak) + 2;
}

/* Returns the number of bytes of the next read, at most `cap`. */
static inline size_t wcuda_cloak_next_chunk(wcuda_cloak* cloak, size_t cap) {
  size_t bytes = cap;
  uint64_t z;
  switch (cloak->chunks) {
    case WCUDA_CLOAK_ONE_BYTE:
      bytes = 1;
      break;
    case WCUDA_CLOAK_POWERS_OF_TWO:
      bytes = (size_t)1 << cloak->step;
      cloak->step = (cloak->step + 1) % 13;
      break;
    case WCUDA_CLOAK_CRLF_ADVERSARY:
      bytes = 7;
      break;
    case WCUDA_CLOAK_SEEDED_RANDOM:
      z = cloak->seed += 0x9e3779b97f4a7c15u;
      z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
      z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
      bytes = 1 + (size_t)((z ^ (z >> 31)) % 64);
      break;
    default:
      break;
  }
  return bytes < cap ? bytes : cap;
}

static inline int32_t wcuda_cloak_in(void* ctx, int32_t handle, uint8_t* mem, size_t mem_cap, int32_t ptr,
                                     int32_t cap) {
  wcuda_cloak* const cloak = (wcuda_cloak*)ctx;
  size_t count = 0, chunk;
  if (wcuda_cloak_is_of_session(cloak, handle))
    return wcuda_zctl_handle_read(cloak->session, handle, mem, mem_cap, ptr, cap);
  if (handle != wcuda_cloak_in_handle(cloak) || (cloak->ended & (1u << handle)) != 0) return -1;
  if (!wcuda_cloak_is_inside(mem, mem_cap, ptr, cap)) return -1;
  if (cap == 0) return 0;
  chunk = wcuda_cloak_next_chunk(cloak, (size_t)cap);
  if (cloak->chunks == WCUDA_CLOAK_CRLF_ADVERSARY) {
    int byte = 0;
    while (count < chunk && byte != '\r' && byte != '\n' && (byte = getc(cloak->in)) != EOF)
      mem[(size_t)ptr + count++] = (uint8_t)byte;
  } else {
    count = fread(mem + ptr, 1, chunk, cloak->in);
  }
  return count == 0 && ferror(cloak->in) ? -1 : (int32_t)count;
}

/* Returns the file that a handle writes to, or NULL if the handle has no such file or has been ended. */
static inline FILE* wcuda_cloak_file(const wcuda_cloak* cloak, int32_t handle) {
  const int32_t out = wcuda_cloak_in_handle(cloak) + 1;
  if (handle != out && handle != out + 1) return NULL;
  if ((cloak->ended & (1u << handle)) != 0) return NULL;
  return handle == out ? cloak->out : cloak->log;
}

static inline int32_t wcuda_cloak_out(void* ctx, int32_t handle, uint8_t* mem, size_t mem_cap, int32_t ptr,
                                      int32_t len) {
  const wcuda_cloak* const cloak = (const wcuda_cloak*)ctx;
  FILE* const file = wcuda_cloak_file(cloak, handle);
  if (wcuda_cloak_is_of_session(cloak, handle))
    return wcuda_zctl_handle_write(cloak->session, handle, mem, mem_cap, ptr, len);
  if (!file || !wcuda_cloak_is_inside(mem, mem_cap, ptr, len)) return -1;
  return fwrite(mem + ptr, 1, (size_t)len, file) == (size_t)len ? len : -1;
}

static inline void wcuda_cloak_end(void* ctx, int32_t handle) {
  wcuda_cloak* const cloak = (wcuda_cloak*)ctx;
  FILE* const file = wcuda_cloak_file(cloak, handle);
  if (wcuda_cloak_is_of_session(cloak, handle)) wcuda_zctl_handle_end(cloak->session, handle);
  if (file) (void)fflush(file);
  if (file || handle == wcuda_cloak_in_handle(cloak)) cloak->ended |= 1u << handle;
}

static inline void wcuda_cloak_log_text(FILE* file, const uint8_t* text, int32_t bytes) {
  int32_t i;
  for (i = 0; i < bytes; ++i) (void)putc(text[i] < 32 || text[i] == 127 ? ' ' : text[i], file);
}

static inline void wcuda_cloak_log(void* ctx, uint8_t* mem, size_t mem_cap, int32_t topic_ptr,
                                   int32_t topic_len, int32_t msg_ptr, int32_t msg_len) {
  FILE* const file = ((const wcuda_cloak*)ctx)->log;
  if (!file || !wcuda_cloak_is_inside(mem, mem_cap, topic_ptr, topic_len) ||
      !wcuda_cloak_is_inside(mem, mem_cap, msg_ptr, msg_len))
    return;
  wcuda_cloak_log_text(file, mem + topic_ptr, topic_len);
  (void)fputs(": ", file);
  wcuda_cloak_log_text(file, mem + msg_ptr, msg_len);
  (void)putc('\n', file);
}

static inline int32_t wcuda_cloak_alloc(void* ctx, uint8_t* mem, size_t mem_cap, int32_t size) {
  wcuda_cloak* const cloak = (wcuda_cloak*)ctx;
  const uint64_t begin = ((uint64_t)cloak->heap_base + cloak->heap_bytes + 15) / 16 * 16;
  const uint64_t end = begin + (uint64_t)size;
  if (!mem || size < 0 || begin > INT32_MAX || end > mem_cap) return -1;
  cloak->heap_bytes = (uint32_t)(end - cloak->heap_base);
  return (int32_t)begin;
}

static inline void wcuda_cloak_free(void* ctx, uint8_t* mem, size_t mem_cap, int32_t ptr) {
  (void)ctx, (void)mem, (void)mem_cap, (void)ptr;
}

/* The three shapes of ctl. */

static inline int32_t wcuda_cloak_ctl2(void* ctx, int32_t ctl_handle, uint8_t* mem, size_t mem_cap,
                                       int32_t req_ptr, int32_t req_len, int32_t resp_ptr,
                                       int32_t resp_cap, int32_t timeout_ms) {
  const wcuda_cloak* const cloak = (const wcuda_cloak*)ctx;
  if (cloak->handles == WCUDA_CLOAK_GUIDE || ctl_handle != wcuda_cloak_in_handle(cloak) + 3) return -1;
  return wcuda_zctl_call(cloak->session, mem, mem_cap, req_ptr, req_len, resp_ptr, resp_cap,
                         timeout_ms);
}

static inline int32_t wcuda_cloak_ctl3(void* ctx, uint8_t* mem, size_t mem_cap, int32_t req_ptr,
                                       int32_t req_len, int32_t resp_ptr, int32_t resp_cap) {
  return wcuda_zctl_call(((const wcuda_cloak*)ctx)->session, mem, mem_cap, req_ptr, req_len, resp_ptr,
                         resp_cap, 0);
}

/* Shape 1 has no ctx argument. It uses the cloak of the wcuda_cloak_run() that is running on this thread. */
static inline wcuda_cloak** wcuda_cloak_running(void) {
#ifdef __cplusplus
  static thread_local wcuda_cloak* running;
#else
  static _Thread_local wcuda_cloak* running;
#endif
  return &running;
}

static inline int32_t wcuda_cloak_ctl1(int32_t ctl_handle, uint8_t* mem, size_t mem_cap, int32_t req_ptr,
                                       int32_t req_len, int32_t resp_ptr, int32_t resp_cap,
                                       int32_t timeout_ms) {
  wcuda_cloak* const cloak = *wcuda_cloak_running();
  if (!cloak) return -1;
  return wcuda_cloak_ctl2(cloak, ctl_handle, mem, mem_cap, req_ptr, req_len, resp_ptr, resp_cap,
                          timeout_ms);
}

/* Runs a guest and returns its result: 0 or a trap code. */
static inline int wcuda_cloak_run(wcuda_cloak* cloak, lembeh_entry entry) {
  const int32_t in = wcuda_cloak_in_handle(cloak);
  wcuda_cloak* const before = *wcuda_cloak_running();
  struct zprog_sys sys;
  int code;
#if WCUDA_CLOAK_SHAPE == 1
  const lembeh_ctl ctl = wcuda_cloak_ctl1;
#elif WCUDA_CLOAK_SHAPE == 2
  const lembeh_ctl ctl = wcuda_cloak_ctl2;
#else
  const lembeh_ctl ctl = wcuda_cloak_ctl3;
#endif
  sys.ctx = cloak;
  sys.alloc_fn = wcuda_cloak_alloc;
  sys.free_fn = wcuda_cloak_free;
  *wcuda_cloak_running() = cloak;
  code = entry(in, in + 1, wcuda_cloak_in, wcuda_cloak_out, wcuda_cloak_end, wcuda_cloak_log, ctl, cloak,
               &sys);
  *wcuda_cloak_running() = before;
  return code;
}

/* ------------------------------------------------------------------------------------------------
 * The main() of a guest
 */

/* Reads NAME or NAME:SEED. Returns 0 if there is no such schedule. */
static inline int wcuda_cloak_read_chunks(wcuda_cloak* cloak, const char* text) {
  static const char* const names[] = {"all-at-once", "one-byte", "powers-of-two", "crlf-adversary",
                                      "seeded-random"};
  const size_t bytes = strcspn(text, ":");
  char* end = NULL;
  int32_t i;
  if (text[bytes] == ':') {
    cloak->seed = strtoull(text + bytes + 1, &end, 10);
    if (text[bytes + 1] < '0' || text[bytes + 1] > '9' || *end) return 0;
  }
  for (i = 0; i < 5; ++i)
    if (strlen(names[i]) == bytes && memcmp(names[i], text, bytes) == 0) {
      cloak->chunks = i;
      return 1;
    }
  return 0;
}

/* Creates a session with all built-in kernels for f32: "noop", "tensor_add", then the others in the order of their
 * names. Without a device the session runs nothing, and its responses state the reason. The caller destroys the
 * context and the session. */
static inline wcuda_status wcuda_cloak_open(int32_t backend, wcuda_context* context,
                                            wcuda_zctl_session* session, wcuda_error* error) {
  wcuda_catalogue_entry entry = WCUDA_CATALOGUE_ENTRY_INIT;
  wcuda_context_options context_options = WCUDA_CONTEXT_OPTIONS_INIT;
  wcuda_zctl_options options = WCUDA_ZCTL_OPTIONS_INIT;
  wcuda_build_info build = WCUDA_BUILD_INFO_INIT;
  wcuda_status status;
  uint64_t i, count = 0;
  context_options.backend = backend;
  status = wcuda_context_create(&context_options, context, error);
  if (status == WCUDA_NO_DEVICE || status == WCUDA_NOT_AVAILABLE) {
    /* In a build without CUDA, the session uses the library's own message. */
    if (wcuda_build_info_get(&build, NULL) == WCUDA_OK && build.has_cuda) {
      options.reason.data = error->message;
      options.reason.bytes = strlen(error->message);
    }
    return wcuda_zctl_session_create(&options, session, error);
  }
  if (status == WCUDA_OK) status = wcuda_registry_create(*context, &options.registry, error);
  if (status == WCUDA_OK) status = wcuda_catalogue_list(0, &entry, 1, &count, error);
  for (i = 0; status == WCUDA_OK && i < count + 2; ++i) {
    static const char* const first[] = {"noop", "tensor_add"};
    uint64_t all;
    if (i < 2) {
      entry.name.data = first[i];
      entry.name.bytes = strlen(first[i]);
    } else {
      status = wcuda_catalogue_list(i - 2, &entry, 1, &all, error);
    }
    if (status == WCUDA_OK)
      status = wcuda_registry_add_builtin(options.registry, entry.name, WCUDA_ARG_F32, 0, NULL, error);
  }
  if (status == WCUDA_OK) status = wcuda_zctl_session_create(&options, session, error);
  wcuda_registry_destroy(options.registry); /* the session keeps it */
  return status;
}

/* The main() of a guest. Its arguments are [--backend auto|host|cuda|none] [--chunks NAME[:SEED]]. Returns 0
 * on success, 1 after a failure or a trap, and 2 for unknown arguments. Writes the name of a trap to stderr. */
static inline int wcuda_cloak_main(int argc, char** argv, lembeh_entry entry, uint32_t heap_base) {
  wcuda_cloak cloak = WCUDA_CLOAK_INIT;
  wcuda_context context = {0};
  wcuda_error error;
  wcuda_status status = WCUDA_OK;
  const char* backend = "auto";
  int i, code = 0, failed;
  for (i = 1; i < argc; i += 2) {
    const char* const value = i + 1 < argc ? argv[i + 1] : "";
    const int is_backend = strcmp(argv[i], "--backend") == 0;
    if (is_backend) backend = value;
    if (is_backend ? strcmp(value, "auto") && strcmp(value, "host") && strcmp(value, "cuda") &&
                         strcmp(value, "none")
                   : strcmp(argv[i], "--chunks") || !wcuda_cloak_read_chunks(&cloak, value)) {
      fprintf(stderr, "usage: %s [--backend auto|host|cuda|none] [--chunks NAME[:SEED]]\n", argv[0]);
      return 2;
    }
  }
  memset(&error, 0, sizeof(error));
  cloak.heap_base = heap_base;
  if (strcmp(backend, "none") != 0)
    status = wcuda_cloak_open(strcmp(backend, "host") == 0   ? WCUDA_BACKEND_HOST
                              : strcmp(backend, "cuda") == 0 ? WCUDA_BACKEND_CUDA
                                                             : WCUDA_BACKEND_AUTO,
                              &context, &cloak.session, &error);
  if (status == WCUDA_OK) {
    code = wcuda_cloak_run(&cloak, entry);
    if (code) fprintf(stderr, "error: trap %d: %s\n", code, wcuda_cloak_trap_words(code));
  } else {
    fprintf(stderr, "error: %s (%s)\n", error.message, wcuda_status_name(status));
  }
  wcuda_zctl_session_destroy(cloak.session);
  wcuda_context_destroy(context);
  failed = fflush(stdout) != 0 || ferror(stdout);
  if (failed) fprintf(stderr, "error: writing the output failed\n");
  return code || failed || status != WCUDA_OK;
}

#ifdef WCUDA_CLOAK_MAIN
int main(int argc, char** argv) {
  return wcuda_cloak_main(argc, argv, lembeh_handle, zprog_heap_base_value());
}
#endif

#ifdef __cplusplus
}
#endif

#endif /* WORKER_CUDA_CLOAK_H */
