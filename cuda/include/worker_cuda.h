/* worker_cuda.h: the C interface of worker-cuda, and its manual.
 *
 * worker-cuda loads GGUF language models into the memory of a GPU (or of the host, when asked), keeps
 * them there accounted for, and turns tokens into tokens. Link one archive, libworker_cuda.a.
 *
 * CONVENTIONS
 *
 * Status. Every function that can fail returns a wcuda_status: WCUDA_OK (0), or one of the WCUDA_…
 *   codes below. Its last parameter is a wcuda_error*, which may be NULL; when it is not, a failure
 *   fills it with the code, the code of the driver or of errno where there is one, and a message of one
 *   line. A success leaves it untouched. Codes are never reused; later versions may add some: treat an
 *   unknown one as a failure. The library never aborts, exits, throws or prints.
 * Outputs come last and are written only on success. A failed call changes nothing and owns nothing.
 * Handles are one-member structs around a 64-bit id; id 0 is "none". A handle that was destroyed, or
 *   never was one of the kind asked for, is answered with WCUDA_INVALID_HANDLE. Objects keep what they
 *   were made from alive: destroying in any order is right. Every wcuda_…_destroy accepts id 0.
 * Structs that may grow begin with struct_size; set them up with their …_INIT macro. Zero means the
 *   default everywhere. Bytes past what the library knows must be zero, else WCUDA_UNSUPPORTED.
 * Flags: an unknown bit is refused. Booleans are int32_t, 0 or 1. Text is UTF-8 with a length, and
 *   needs no final NUL; paths are bytes as the operating system has them.
 * Pointers passed in are borrowed until the call returns, unless the function says otherwise.
 * Threads. Each function states one of:
 *     [any thread]  may run at the same time as anything else.
 *     [external: X] calls on the same X, or on an object made from it, must not overlap; an overlapping
 *                   call is WCUDA_BUSY and does nothing.
 *   Callbacks run on the thread and at the time stated, hold no lock of the caller's, and must not
 *   unwind. A callback that calls a function of this library gets WCUDA_REENTRANT, except
 *   wcuda_cancel_trigger.
 * fork(). After fork() the library must not be used in the child.
 * Environment variables are read by nothing in this library.
 */
#ifndef WORKER_CUDA_H
#define WORKER_CUDA_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#ifndef WCUDA_API
#define WCUDA_API /* static library: nothing to import or export */
#endif

/* ------------------------------------------------------------------------------------------------
 * 1. Status and error
 */

typedef int32_t wcuda_status;

#define WCUDA_OK 0
/* The caller's mistake: fix the call. */
#define WCUDA_INVALID_ARGUMENT 1001   /* an argument is NULL, zero, negative or inconsistent */
#define WCUDA_INVALID_HANDLE 1002     /* foreign, of another kind, or destroyed */
#define WCUDA_INVALID_STATE 1003      /* legal, but not now (wait for a later ticket first, …) */
#define WCUDA_OUT_OF_RANGE 1004       /* an offset, index or token id past the end */
#define WCUDA_BUFFER_TOO_SMALL 1005   /* the caller's buffer; the required size is reported */
#define WCUDA_REENTRANT 1006          /* called from inside one of the library's callbacks */
#define WCUDA_BUSY 1007               /* another thread is using this object */
#define WCUDA_ABI_MISMATCH 1008       /* header and archive are of different ABI numbers */
#define WCUDA_NOT_FOUND 1009          /* no such key, tensor or entry */
#define WCUDA_INVALID_CONFIG 1010     /* of a launch: grid, block, cluster or shared memory */
#define WCUDA_ARGUMENT_COUNT 1011     /* a kernel takes another number of arguments */
/* The machine and the build. */
#define WCUDA_NOT_AVAILABLE 2001      /* not built in, or not built yet; the message says which */
#define WCUDA_NO_DEVICE 2002          /* no driver, driver too old, or no such ordinal */
#define WCUDA_IO 2003                 /* the operating system, or a read callback, failed */
#define WCUDA_CANCELLED 2004          /* the caller asked for it */
#define WCUDA_TIMEOUT 2005            /* the time given has passed; nothing was changed */
/* Resources: the object stays usable. */
#define WCUDA_OUT_OF_MEMORY 3001      /* the device is full */
#define WCUDA_OUT_OF_HOST_MEMORY 3002 /* the host is full */
#define WCUDA_OVER_BUDGET 3003        /* the context's VRAM budget would be passed */
#define WCUDA_QUEUE_FULL 3004         /* two steps are in flight */
#define WCUDA_OUT_OF_PAGES 3005       /* too few free KV pages */
#define WCUDA_LIMIT_EXCEEDED 3006     /* a limit of the engine (rows, tokens, sequences, length) */
/* Foreign data. */
#define WCUDA_MALFORMED 4001          /* not a well-formed GGUF file */
#define WCUDA_UNSUPPORTED 4002        /* well-formed, but this version cannot use it */
#define WCUDA_INTEGRITY 4003          /* bytes are not what their digest says */
#define WCUDA_COMPILE_FAILED 4010     /* the compiler refused a kernel's source; its log says why */
#define WCUDA_UNSUPPORTED_KERNEL 4011 /* a kernel has no code for this backend */
/* The device. */
#define WCUDA_DEVICE_ERROR 5001       /* a call of the driver failed; see native_code */
#define WCUDA_DEVICE_LOST 5002        /* a fault ended the device's context; only destroy is legal */
#define WCUDA_NOT_RESIDENT 5003       /* memory that must be the device's own is not */
#define WCUDA_LAUNCH_FAILED 5010      /* a kernel was not started; nothing of it ran */
/* Ours. */
#define WCUDA_INTERNAL 9001           /* a mistake in this library; please report the message */

/* Room for a message, its final NUL included. */
#define WCUDA_ERROR_MESSAGE_BYTES 500

/* Filled by a failed call. This layout is frozen: it has no size field and never grows. */
typedef struct wcuda_error {
  wcuda_status code;
  int32_t native_code; /* cudaError_t, errno, … or 0 */
  uint32_t message_bytes; /* length of message without its NUL */
  char message[WCUDA_ERROR_MESSAGE_BYTES]; /* UTF-8, NUL-terminated, cut at a character's border */
} wcuda_error;

/* Name of a status code ("WCUDA_OUT_OF_MEMORY"), or "WCUDA_UNKNOWN". Static text. [any thread] */
WCUDA_API const char* wcuda_status_name(wcuda_status status);

/* Older lists of codes that a status has a number in; section 21 has a list of names. */
#define WCUDA_NUMBERS_WORKER 1 /* the cuda_* functions: CUDA_SUCCESS 0 … 8, CUDA_ERROR_UNKNOWN 99 */
#define WCUDA_NUMBERS_VRAM 2   /* the vram_* functions: VRAM_SUCCESS 0 … VRAM_ERROR_DRIVER 4 */
#define WCUDA_NUMBERS_ZCTL 3   /* status of a ZCTL/1 response: OK 0, ERR_MALFORMED 1, ERR_UNSUPPORTED 2,
                                  ERR_DENIED 3, ERR_TIMEOUT 4, ERR_NO_MEM 5, ERR_BACKEND 6, ERR_BAD_ARGS 7 */
/* The number of a status in one of them: every status has one, also those that this version does not
 * know. -1: there is no such list. [any thread] */
WCUDA_API int32_t wcuda_status_number(wcuda_status status, int32_t numbers);

/* Text borrowed from an object; valid as long as the object's handle. Not NUL-terminated. */
typedef struct wcuda_string {
  const char* data;
  uint64_t bytes;
} wcuda_string;

/* ------------------------------------------------------------------------------------------------
 * 2. Version and build
 */

#define WCUDA_VERSION_MAJOR 0
#define WCUDA_VERSION_MINOR 1
#define WCUDA_VERSION_PATCH 0
/* Raised by every change that breaks a caller compiled before it. */
#define WCUDA_ABI_VERSION 1

/* major * 10000 + minor * 100 + patch of the archive. [any thread] */
WCUDA_API uint32_t wcuda_version_number(void);
/* "major.minor.patch" of the archive. Static text. [any thread] */
WCUDA_API const char* wcuda_version_string(void);
/* ABI number of the archive; compare with WCUDA_ABI_VERSION. [any thread] */
WCUDA_API uint32_t wcuda_abi_version(void);

typedef struct wcuda_build_info {
  uint32_t struct_size;
  int32_t has_cuda;          /* 1: built with CUDA */
  uint32_t cuda_version;     /* toolkit, major * 1000 + minor * 10; 0 without CUDA */
  uint32_t reserved;
  const char* cuda_architectures; /* "90a;100"; "" without CUDA. Static text, as all below */
  const char* compiler;      /* "GNU 12.2.0" */
  const char* build_type;    /* "Release" */
  const char* host_features; /* SIMD variants compiled in: "avx2;avx512;avx512_bf16" */
} wcuda_build_info;
#define WCUDA_BUILD_INFO_INIT {sizeof(wcuda_build_info), 0, 0, 0, NULL, NULL, NULL, NULL}

/* What the archive was built with. [any thread] */
WCUDA_API wcuda_status wcuda_build_info_get(wcuda_build_info* info, wcuda_error* error);

/* One field of one public struct, for tests of bindings. */
typedef struct wcuda_abi_field {
  const char* struct_name; /* static text */
  const char* field_name;  /* "" on the row that tells the struct's own size and alignment */
  uint32_t offset;
  uint32_t bytes;     /* of the field, or of the struct */
  uint32_t alignment; /* likewise */
  uint32_t reserved;
} wcuda_abi_field;

/* Number of rows of the layout table. [any thread] */
WCUDA_API uint32_t wcuda_abi_field_count(void);
/* Row `index` of the layout table; WCUDA_OUT_OF_RANGE past the end. [any thread] */
WCUDA_API wcuda_status wcuda_abi_field_get(uint32_t index, wcuda_abi_field* field,
                                           wcuda_error* error);

/* ------------------------------------------------------------------------------------------------
 * 3. Log
 */

#define WCUDA_LOG_ERROR 1
#define WCUDA_LOG_WARN 2
#define WCUDA_LOG_INFO 3
#define WCUDA_LOG_DEBUG 4
#define WCUDA_LOG_TRACE 5

/* One record, whole, without a final newline. `target` names the part that speaks ("model", "vram").
 * Runs on whichever thread logs, possibly on several at once. Must not call this library. */
typedef void (*wcuda_log_callback)(void* user, int32_t level, wcuda_string target,
                                   wcuda_string message);

/* Installs the process's log sink for records of `level` or graver; callback NULL removes it, whatever
 * the level. When the call returns, the previous sink runs no more and will not run again.
 * [any thread] */
WCUDA_API wcuda_status wcuda_log_set(wcuda_log_callback callback, void* user, int32_t level,
                                     wcuda_error* error);

/* ------------------------------------------------------------------------------------------------
 * 4. Devices
 */

#define WCUDA_BACKEND_AUTO 0 /* CUDA when a usable device answers, else HOST; info tells which */
#define WCUDA_BACKEND_CUDA 1
#define WCUDA_BACKEND_HOST 2 /* computes for real, on the processor. More types: section 21 */

/* What a device can do. Sizes in bytes, clocks in kHz. On HOST, threads of the process stand for
 * multiprocessors and what has no meaning is 0. */
typedef struct wcuda_device_caps {
  uint32_t struct_size;
  int32_t backend; /* WCUDA_BACKEND_CUDA, _HOST, or a type that was registered */
  int32_t ordinal;
  uint32_t name_bytes;
  char name[256]; /* UTF-8, NUL-terminated */
  uint8_t uuid[16];
  char pci_bus_id[16]; /* "0000:17:00.0"; "" on HOST */
  uint64_t total_memory;
  int32_t compute_capability_major;
  int32_t compute_capability_minor;
  int32_t driver_version;  /* CUDA version of the driver, major * 1000 + minor * 10 */
  int32_t runtime_version; /* of the runtime linked in */
  int32_t multiprocessor_count;
  int32_t warp_size;
  int32_t max_threads_per_block;
  int32_t max_threads_per_multiprocessor;
  int32_t max_block_dims[3];
  int32_t max_grid_dims[3];
  uint64_t shared_memory_per_block;
  uint64_t shared_memory_per_block_optin;
  uint64_t shared_memory_per_multiprocessor;
  int32_t registers_per_block;
  int32_t l2_cache_bytes;
  int32_t memory_clock_khz;
  int32_t memory_bus_bits;
  uint64_t memory_bandwidth; /* bytes a second, 2 * clock * width / 8 */
  int32_t async_engine_count;
  int32_t supports_fp16;
  int32_t supports_bf16;
  int32_t supports_tf32;
  int32_t supports_fp8;
  int32_t supports_fp64;
  int32_t supports_int8;
  int32_t supports_tensor_cores;
  int32_t supports_int8_tensor_cores;
  int32_t supports_async_copy;
  int32_t supports_cooperative_groups;
  int32_t supports_dynamic_parallelism;
  int32_t supports_unified_addressing;
  int32_t supports_managed_memory;
  int32_t supports_concurrent_managed_access;
  int32_t is_integrated;
  int32_t ecc_enabled;
  int32_t unified_memory; /* host and device share it: managed, or an integrated device */
  int32_t supports_atomics;
  int32_t supports_mesh_shaders; /* this and the four below: of other kinds of devices */
  int32_t supports_ray_tracing;
  int32_t has_neural_engine;
  int32_t supports_mps;
  int32_t metal_gpu_family;
  uint32_t architecture_name_bytes;
  char architecture_name[64]; /* "sm_90a"; of the processor on HOST. NUL-terminated */
} wcuda_device_caps;
#define WCUDA_DEVICE_CAPS_INIT                                                                   \
  {sizeof(wcuda_device_caps), 0, 0, 0, {0}, {0}, {0}, 0, 0, 0, 0, 0, 0, 0, 0, 0, {0}, {0}, 0, 0, \
   0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, {0}}

/* Number of usable devices of a backend, of whatever type; HOST has one. CUDA without a device is not a
 * count of 0 but WCUDA_NO_DEVICE or WCUDA_NOT_AVAILABLE with the reason ("no CUDA device: driver
 * 12.4, needs 13.0"). Ordinals count the usable devices in CUDA's order. Creates no CUDA context.
 * [any thread] */
WCUDA_API wcuda_status wcuda_device_count(int32_t backend, int32_t* count, wcuda_error* error);

/* Capabilities of one device. [any thread] */
WCUDA_API wcuda_status wcuda_device_caps_get(int32_t backend, int32_t ordinal,
                                             wcuda_device_caps* caps, wcuda_error* error);

/* ------------------------------------------------------------------------------------------------
 * 5. Context: one device, its memory accounted for
 */

typedef struct wcuda_context {
  uint64_t id;
} wcuda_context;

typedef struct wcuda_context_options {
  uint32_t struct_size;
  uint32_t abi_version; /* WCUDA_ABI_VERSION; another number is WCUDA_ABI_MISMATCH */
  int32_t backend;      /* WCUDA_BACKEND_… */
  int32_t ordinal;
  uint64_t flags;              /* none defined: 0 */
  uint64_t memory_budget;      /* most bytes this context may hold; 0: no budget. On HOST also the
                                  capacity reported; 0 there: the memory of the machine */
  uint32_t host_thread_count;  /* compute threads of the HOST backend; 0: the processors this process
                                  may use (affinity and cgroup quota) */
  uint32_t reserved;
  int32_t scrub;               /* WCUDA_SCRUB_…, see section 14 */
  uint32_t reserved_2;
} wcuda_context_options;
#define WCUDA_CONTEXT_OPTIONS_INIT \
  {sizeof(wcuda_context_options), WCUDA_ABI_VERSION, WCUDA_BACKEND_AUTO, 0, 0, 0, 0, 0, 0, 0}

/* Opens a device. CUDA uses the device's primary context and restores the caller's current device
 * before it returns, as every call does. AUTO falls back to HOST only here, and
 * wcuda_context_info_get tells. [any thread] */
WCUDA_API wcuda_status wcuda_context_create(const wcuda_context_options* options,
                                            wcuda_context* context, wcuda_error* error);
/* Gives the handle back; the device is closed when nothing made from it remains. Allocations that live
 * on are told to the log, as warnings: it is the report of what leaks if nobody ends them.
 * [any thread] */
WCUDA_API void wcuda_context_destroy(wcuda_context context);

typedef struct wcuda_context_info {
  uint32_t struct_size;
  int32_t backend; /* the one in use: CUDA or HOST */
  int32_t ordinal;
  uint32_t host_thread_count; /* 0 on CUDA */
  char fallback_reason[256];  /* AUTO: why not CUDA, NUL-terminated; else "" */
} wcuda_context_info;
#define WCUDA_CONTEXT_INFO_INIT {sizeof(wcuda_context_info), 0, 0, 0, {0}}
WCUDA_API wcuda_status wcuda_context_info_get(wcuda_context context, wcuda_context_info* info,
                                              wcuda_error* error); /* [any thread] */

/* Waits until all work given to this context has ended. [any thread] */
WCUDA_API wcuda_status wcuda_context_synchronize(wcuda_context context, wcuda_error* error);

/* ------------------------------------------------------------------------------------------------
 * 6. Ledger: who holds which bytes
 */

#define WCUDA_PURPOSE_ANY 0 /* in queries only */
#define WCUDA_PURPOSE_WEIGHTS 1
#define WCUDA_PURPOSE_KV 2
#define WCUDA_PURPOSE_SCRATCH 3
#define WCUDA_PURPOSE_MODULE 4
#define WCUDA_PURPOSE_STAGING 5 /* pinned host memory */
#define WCUDA_PURPOSE_USER 6
#define WCUDA_PURPOSE_ADOPTED 7 /* memory of somebody else, see wcuda_buffer_adopt */

typedef struct wcuda_memory_info {
  uint32_t struct_size;
  int32_t purpose; /* the one asked for */
  uint64_t current_bytes; /* held now, of this purpose */
  uint64_t peak_bytes;
  uint64_t allocation_count;       /* live allocations */
  uint64_t total_allocation_count; /* ever made */
  uint64_t budget_bytes;           /* of the context; 0: none */
  uint64_t device_free_bytes;      /* as the driver says; HOST: capacity less what is held */
  uint64_t device_total_bytes;
  uint64_t purpose_budget_bytes; /* of this purpose, see wcuda_context_budget_set; 0: none */
} wcuda_memory_info;
#define WCUDA_MEMORY_INFO_INIT {sizeof(wcuda_memory_info), 0, 0, 0, 0, 0, 0, 0, 0, 0}

/* Sums of the ledger for one purpose, or for all (WCUDA_PURPOSE_ANY: staging, which is host memory,
 * and adopted memory, which is somebody else's, are not in that sum). [any thread] */
WCUDA_API wcuda_status wcuda_context_memory_get(wcuda_context context, int32_t purpose,
                                                wcuda_memory_info* info, wcuda_error* error);

typedef struct wcuda_ledger_entry {
  uint64_t bytes;
  uint64_t sequence_number; /* 1 for the context's first allocation */
  int32_t purpose;
  uint32_t tag_bytes;
  char tag[64]; /* NUL-terminated, cut to fit */
} wcuda_ledger_entry;

/* The live allocations, oldest first: at any time, and before the last handle goes, the list of what
 * would leak. Writes min(capacity, count) entries and always the count. [any thread] */
WCUDA_API wcuda_status wcuda_context_ledger_get(wcuda_context context, wcuda_ledger_entry* entries,
                                                uint64_t capacity, uint64_t* count,
                                                wcuda_error* error);

/* ------------------------------------------------------------------------------------------------
 * 7. Buffers: checked device memory
 */

typedef struct wcuda_buffer {
  uint64_t id;
} wcuda_buffer;

typedef struct wcuda_buffer_options {
  uint32_t struct_size;
  int32_t purpose; /* 0: WCUDA_PURPOSE_USER; staging and adopted memory have calls of their own */
  uint64_t bytes;  /* at least 1 */
  wcuda_string tag; /* shown in the ledger, first 63 bytes; may be empty */
} wcuda_buffer_options;
#define WCUDA_BUFFER_OPTIONS_INIT {sizeof(wcuda_buffer_options), 0, 0, {NULL, 0}}

/* Allocates device memory, aligned to 256 bytes, contents undefined. WCUDA_OVER_BUDGET or
 * WCUDA_OUT_OF_MEMORY name the bytes needed, the budget, the bytes used and free. [any thread] */
WCUDA_API wcuda_status wcuda_buffer_create(wcuda_context context,
                                           const wcuda_buffer_options* options,
                                           wcuda_buffer* buffer, wcuda_error* error);
WCUDA_API void wcuda_buffer_destroy(wcuda_buffer buffer); /* [any thread] */
/* Size in bytes, as asked for. [any thread] */
WCUDA_API wcuda_status wcuda_buffer_size_get(wcuda_buffer buffer, uint64_t* bytes,
                                             wcuda_error* error);
/* Copies from or to the caller's memory and waits. A range past the end is WCUDA_OUT_OF_RANGE, with
 * the numbers; bytes 0 is legal and does nothing. [external: buffer] */
WCUDA_API wcuda_status wcuda_buffer_write(wcuda_buffer buffer, uint64_t offset, const void* source,
                                          uint64_t bytes, wcuda_error* error);
WCUDA_API wcuda_status wcuda_buffer_read(wcuda_buffer buffer, uint64_t offset, void* target,
                                         uint64_t bytes, wcuda_error* error);
/* Copies between two buffers of one context, or within one where the ranges do not overlap, and
 * waits. [external: both buffers] */
WCUDA_API wcuda_status wcuda_buffer_copy(wcuda_buffer target, uint64_t target_offset,
                                         wcuda_buffer source, uint64_t source_offset,
                                         uint64_t bytes, wcuda_error* error);
/* Fills a range with the low pattern_bytes (1, 2, 4 or 8) of a pattern, little-endian, over and over;
 * offset and bytes are multiples of it. Waits. [external: buffer] */
WCUDA_API wcuda_status wcuda_buffer_fill(wcuda_buffer buffer, uint64_t offset, uint64_t bytes,
                                         uint64_t pattern, uint32_t pattern_bytes,
                                         wcuda_error* error);
/* BLAKE3 (32 bytes) of a range, computed on the device. [external: buffer] */
WCUDA_API wcuda_status wcuda_buffer_digest(wcuda_buffer buffer, uint64_t offset, uint64_t bytes,
                                           uint8_t digest[32], wcuda_error* error);

typedef struct wcuda_pinned {
  uint64_t id;
} wcuda_pinned;

/* Page-locked host memory for fast copies, counted as WCUDA_PURPOSE_STAGING; on HOST ordinary memory,
 * aligned to 4096 bytes. Zeroed. [any thread] */
WCUDA_API wcuda_status wcuda_pinned_create(wcuda_context context, uint64_t bytes,
                                           wcuda_pinned* pinned, wcuda_error* error);
WCUDA_API void wcuda_pinned_destroy(wcuda_pinned pinned); /* [any thread] */
/* Address and size; valid until destroyed. [any thread] */
WCUDA_API wcuda_status wcuda_pinned_data_get(wcuda_pinned pinned, void** data, uint64_t* bytes,
                                             wcuda_error* error);

/* ------------------------------------------------------------------------------------------------
 * 8. GGUF files
 */

typedef struct wcuda_gguf {
  uint64_t id;
} wcuda_gguf;

#define WCUDA_SOURCE_PATH 1     /* path, path_bytes; parts of a split file are found beside it */
#define WCUDA_SOURCE_FD 2       /* fd: duplicated, its offset is not moved */
#define WCUDA_SOURCE_MEMORY 3   /* data, size: must outlive the handle */
#define WCUDA_SOURCE_CALLBACK 4 /* read, user, size: must outlive the handle */

/* Reads exactly `bytes` bytes at `offset` into `target`; returns 0, or non-zero on failure. Runs on
 * threads of the library, on several at once, while a call that reads the file is running. */
typedef int32_t (*wcuda_read_callback)(void* user, uint64_t offset, void* target, uint64_t bytes);

typedef struct wcuda_source {
  uint32_t struct_size;
  int32_t kind; /* WCUDA_SOURCE_… */
  wcuda_string path;
  int32_t fd;
  uint32_t reserved;
  const void* data;
  uint64_t size; /* MEMORY, CALLBACK */
  wcuda_read_callback read;
  void* user;
} wcuda_source;
#define WCUDA_SOURCE_INIT {sizeof(wcuda_source), 0, {NULL, 0}, -1, 0, NULL, 0, NULL, NULL}

/* Reads and checks the header, the metadata and the tensor table of a GGUF file, version 2 or 3,
 * little-endian. Everything is checked here, once: see docs/FORMATS.md for the rules and limits.
 * Tensor data is not read. [any thread] */
WCUDA_API wcuda_status wcuda_gguf_open(const wcuda_source* source, wcuda_gguf* gguf,
                                       wcuda_error* error);
WCUDA_API void wcuda_gguf_destroy(wcuda_gguf gguf); /* [any thread] */

typedef struct wcuda_gguf_info {
  uint32_t struct_size;
  uint32_t version;
  uint64_t metadata_count;
  uint64_t tensor_count;
  uint64_t file_bytes;   /* of all parts */
  uint64_t tensor_bytes; /* sum over all tensors, without padding */
  uint32_t alignment;
  uint32_t split_count; /* 1 for a file that is whole */
} wcuda_gguf_info;
#define WCUDA_GGUF_INFO_INIT {sizeof(wcuda_gguf_info), 0, 0, 0, 0, 0, 0, 0}
WCUDA_API wcuda_status wcuda_gguf_info_get(wcuda_gguf gguf, wcuda_gguf_info* info,
                                           wcuda_error* error); /* [any thread] */

/* Value types, numbered as in the file. */
#define WCUDA_GGUF_U8 0
#define WCUDA_GGUF_I8 1
#define WCUDA_GGUF_U16 2
#define WCUDA_GGUF_I16 3
#define WCUDA_GGUF_U32 4
#define WCUDA_GGUF_I32 5
#define WCUDA_GGUF_F32 6
#define WCUDA_GGUF_BOOL 7
#define WCUDA_GGUF_STRING 8
#define WCUDA_GGUF_ARRAY 9
#define WCUDA_GGUF_U64 10
#define WCUDA_GGUF_I64 11
#define WCUDA_GGUF_F64 12

/* One metadata entry. Exactly one value member has a meaning, by `type`. */
typedef struct wcuda_gguf_value {
  uint32_t struct_size;
  int32_t type;         /* WCUDA_GGUF_… */
  int32_t element_type; /* of an array's elements; -1 otherwise */
  uint32_t reserved;
  wcuda_string key;
  uint64_t element_count; /* of an array; 1 otherwise */
  uint64_t value_u64;     /* U8 U16 U32 U64 BOOL */
  int64_t value_i64;      /* I8 I16 I32 I64 */
  double value_f64;       /* F32 F64 */
  wcuda_string value_string;
} wcuda_gguf_value;
#define WCUDA_GGUF_VALUE_INIT {sizeof(wcuda_gguf_value), 0, 0, 0, {NULL, 0}, 0, 0, 0, 0.0, {NULL, 0}}

/* Entry `index` in file order; WCUDA_OUT_OF_RANGE past the end. [any thread] */
WCUDA_API wcuda_status wcuda_gguf_value_at(wcuda_gguf gguf, uint64_t index, wcuda_gguf_value* value,
                                           wcuda_error* error);
/* Entry by key; WCUDA_NOT_FOUND if there is none. [any thread] */
WCUDA_API wcuda_status wcuda_gguf_value_find(wcuda_gguf gguf, wcuda_string key,
                                             wcuda_gguf_value* value, wcuda_error* error);
/* Copies elements first … first + count - 1 of the array `index` as they are in the file (packed,
 * little-endian; a bool is one byte). Strings: use the next function. [any thread] */
WCUDA_API wcuda_status wcuda_gguf_array_copy(wcuda_gguf gguf, uint64_t index, uint64_t first,
                                             uint64_t count, void* target, uint64_t target_bytes,
                                             wcuda_error* error);
/* Views of `count` elements of an array of strings, borrowed from the handle. [any thread] */
WCUDA_API wcuda_status wcuda_gguf_array_strings(wcuda_gguf gguf, uint64_t index, uint64_t first,
                                                uint64_t count, wcuda_string* strings,
                                                wcuda_error* error);

typedef struct wcuda_gguf_tensor {
  uint32_t struct_size;
  uint32_t type; /* ggml type id */
  wcuda_string name;
  uint32_t dimension_count; /* 1 … 4 */
  uint32_t split_index;     /* part of a split file that holds it */
  uint64_t dimensions[4];   /* first is contiguous; unused are 1 */
  uint64_t element_count;
  uint64_t bytes;
  uint64_t file_offset; /* from the start of its part */
} wcuda_gguf_tensor;
#define WCUDA_GGUF_TENSOR_INIT {sizeof(wcuda_gguf_tensor), 0, {NULL, 0}, 0, 0, {0}, 0, 0, 0}

/* Tensor by index in file order, or by name. [any thread] */
WCUDA_API wcuda_status wcuda_gguf_tensor_at(wcuda_gguf gguf, uint64_t index,
                                            wcuda_gguf_tensor* tensor, wcuda_error* error);
WCUDA_API wcuda_status wcuda_gguf_tensor_find(wcuda_gguf gguf, wcuda_string name,
                                              wcuda_gguf_tensor* tensor, wcuda_error* error);
/* Reads bytes of a tensor's data as they are in the file. After WCUDA_IO, here and in the next
 * function, the contents of `target` are undefined. [any thread] */
WCUDA_API wcuda_status wcuda_gguf_tensor_read(wcuda_gguf gguf, uint64_t index, uint64_t offset,
                                              void* target, uint64_t bytes, wcuda_error* error);
/* Expands elements first … first + count - 1 of a tensor's data to f32; both are multiples of the
 * type's block. [any thread] */
WCUDA_API wcuda_status wcuda_gguf_tensor_dequantize(wcuda_gguf gguf, uint64_t index, uint64_t first,
                                                    uint64_t count, float* target,
                                                    wcuda_error* error);

typedef struct wcuda_tensor_type_info {
  uint32_t struct_size;
  uint32_t type;
  const char* name; /* "Q4_K"; static text */
  uint32_t block_elements;
  uint32_t block_bytes;
  int32_t is_loadable; /* 1: a model may hold weights of this type */
  uint32_t reserved;
} wcuda_tensor_type_info;
#define WCUDA_TENSOR_TYPE_INFO_INIT {sizeof(wcuda_tensor_type_info), 0, NULL, 0, 0, 0, 0}
/* What is known of a ggml type id; WCUDA_NOT_FOUND for removed and unknown ids. [any thread] */
WCUDA_API wcuda_status wcuda_tensor_type_info_get(uint32_t type, wcuda_tensor_type_info* info,
                                                  wcuda_error* error);

/* ------------------------------------------------------------------------------------------------
 * 9. Engine options and plan: what a model needs, before a byte is allocated
 */

#define WCUDA_KV_F16 0
#define WCUDA_KV_Q8_0 1
#define WCUDA_KV_FP8_E4M3 2

#define WCUDA_KV_PAGE_TOKENS 64 /* positions a KV page holds */

#define WCUDA_ENGINE_BATCH_INVARIANT ((uint64_t)1 << 0)   /* a row's result does not depend on the
                                                             other rows of its step */
#define WCUDA_ENGINE_POISON_FREE_PAGES ((uint64_t)1 << 1) /* for tests: free pages hold NaN */

typedef struct wcuda_engine_options {
  uint32_t struct_size;
  int32_t kv_type; /* WCUDA_KV_… */
  uint64_t flags;  /* WCUDA_ENGINE_… */
  uint32_t max_sequences;       /* live at once; 0: 16 */
  uint32_t max_batch_tokens;    /* in one step, all rows; 0: 512 */
  uint32_t max_batch_rows;      /* in one step; 0: max_sequences */
  uint32_t max_sequence_tokens; /* positions of one sequence; 0: the model's context length */
  uint64_t kv_tokens;           /* positions of all sequences together, rounded up to pages; 0: the
                                   larger of one full sequence and 512 a sequence */
  uint32_t max_logits_rows;     /* rows of logits one step may return; 0: max_batch_rows */
  uint32_t max_top_logprobs;    /* alternatives a sampled token may report, at most 128; 0: none */
} wcuda_engine_options;
#define WCUDA_ENGINE_OPTIONS_INIT {sizeof(wcuda_engine_options), 0, 0, 0, 0, 0, 0, 0, 0, 0}

typedef struct wcuda_plan {
  uint32_t struct_size;
  int32_t fits; /* 1: total_bytes, and before it weights_bytes and loading_bytes together, are within
                   what is free and within the budget */
  uint64_t weights_bytes;
  uint64_t kv_bytes;       /* pages, page tables and token history */
  uint64_t scratch_bytes;  /* activations, logits, sampling */
  uint64_t graph_bytes;    /* 0: the driver holds captured CUDA graphs, outside the ledger */
  uint64_t total_bytes;    /* of the four */
  uint64_t staging_bytes;  /* pinned host memory while loading */
  uint64_t available_bytes; /* what the context could still hold */
  uint64_t kv_page_bytes;
  uint64_t kv_page_count;
  uint64_t loading_bytes; /* device memory besides the weights while loading; 0 on HOST */
} wcuda_plan;
#define WCUDA_PLAN_INIT {sizeof(wcuda_plan), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}

/* What loading this file and running it with these options (NULL: defaults) will hold on the context's
 * device: equal, to the byte, to what the ledger shows afterwards. Reads no tensor data. A model that
 * cannot be run is refused here already, with the reason. [any thread] */
WCUDA_API wcuda_status wcuda_plan_get(wcuda_context context, wcuda_gguf gguf,
                                      const wcuda_engine_options* options, wcuda_plan* plan,
                                      wcuda_error* error);

/* ------------------------------------------------------------------------------------------------
 * 10. Models
 */

typedef struct wcuda_cancel {
  uint64_t id;
} wcuda_cancel;

/* A switch that stops a load. Once triggered it stays so. [any thread] */
WCUDA_API wcuda_status wcuda_cancel_create(wcuda_cancel* cancel, wcuda_error* error);
WCUDA_API void wcuda_cancel_destroy(wcuda_cancel cancel);
/* Legal from any thread and from inside the progress callback. [any thread] */
WCUDA_API wcuda_status wcuda_cancel_trigger(wcuda_cancel cancel, wcuda_error* error);

typedef struct wcuda_model {
  uint64_t id;
} wcuda_model;

#define WCUDA_LOAD_PLAN 1
#define WCUDA_LOAD_RESERVE 2
#define WCUDA_LOAD_UPLOAD 3 /* bytes of the file read, checked and laid out */
#define WCUDA_LOAD_SEAL 4
#define WCUDA_LOAD_DONE 5 /* exactly once, last, of a load that succeeds; what it returns is ignored */

/* Progress of a load: at each change of phase and at least every 16 MiB. Runs on the loading thread.
 * A non-zero return cancels. */
typedef int32_t (*wcuda_progress_callback)(void* user, int32_t phase, uint64_t done_bytes,
                                           uint64_t total_bytes);

typedef struct wcuda_model_options {
  uint32_t struct_size;
  uint32_t reserved;
  uint64_t flags; /* none defined: 0 */
  wcuda_progress_callback progress; /* may be NULL */
  void* progress_user;
  wcuda_cancel cancel; /* id 0: none */
} wcuda_model_options;
#define WCUDA_MODEL_OPTIONS_INIT {sizeof(wcuda_model_options), 0, 0, NULL, NULL, {0}}

/* Loads a model's weights: all, or nothing and the ledger is as before. Options may be NULL. A
 * cancelled load is WCUDA_CANCELLED, within 16 MiB of reading. WCUDA_MALFORMED: hyper-parameters,
 * tokenizer and tensors contradict each other, or one is missing. WCUDA_UNSUPPORTED: an architecture,
 * a tensor type, or a feature of the model that this version lacks; tensors of the network that it
 * does not know are refused too, others are ignored with a log record. [any thread] */
WCUDA_API wcuda_status wcuda_model_load(wcuda_context context, wcuda_gguf gguf,
                                        const wcuda_model_options* options, wcuda_model* model,
                                        wcuda_error* error);
/* Unloads; the memory goes when no engine uses it. [any thread] */
WCUDA_API void wcuda_model_destroy(wcuda_model model);

typedef struct wcuda_model_info {
  uint32_t struct_size;
  uint32_t layer_count;
  char architecture[64]; /* "llama"; NUL-terminated */
  uint64_t parameter_count;
  uint64_t weights_bytes; /* held on the device */
  uint32_t vocabulary_size;
  uint32_t embedding_length;
  uint32_t feed_forward_length;
  uint32_t head_count;
  uint32_t kv_head_count;
  uint32_t head_length;
  uint32_t context_length; /* the model was trained for */
  uint32_t sliding_window; /* 0: none */
  float rope_frequency_base;
  uint32_t reserved;
} wcuda_model_info;
#define WCUDA_MODEL_INFO_INIT \
  {sizeof(wcuda_model_info), 0, {0}, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0.0f, 0}
WCUDA_API wcuda_status wcuda_model_info_get(wcuda_model model, wcuda_model_info* info,
                                            wcuda_error* error); /* [any thread] */

typedef struct wcuda_tensor_digests {
  uint32_t struct_size;
  uint32_t reserved;
  uint8_t file[32];     /* BLAKE3 of the tensor's bytes as in the file */
  uint8_t resident[32]; /* BLAKE3 of what the load made of them on the device: the same bytes in another
                           order, zeros where rows are filled up; vectors as f32 */
} wcuda_tensor_digests;
#define WCUDA_TENSOR_DIGESTS_INIT {sizeof(wcuda_tensor_digests), 0, {0}, {0}}
/* Digests of tensor `index` of the file the model was loaded from. On CUDA the device has taken them
 * during the load. On HOST this function or the next one, whichever is first, takes those of all
 * tensors, from what then is in memory. WCUDA_NOT_FOUND: a tensor that is not among the weights.
 * [any thread] */
WCUDA_API wcuda_status wcuda_model_tensor_digests_get(wcuda_model model, uint64_t index,
                                                      wcuda_tensor_digests* digests,
                                                      wcuda_error* error);
/* Takes the digest of every resident tensor again, on the device. WCUDA_INTEGRITY names the first that
 * is not what it was. Legal while steps are in flight. [any thread] */
WCUDA_API wcuda_status wcuda_model_verify(wcuda_model model, wcuda_error* error);

/* ------------------------------------------------------------------------------------------------
 * 11. Engine and sequences
 */

typedef struct wcuda_engine {
  uint64_t id;
} wcuda_engine;

/* Reserves KV pages and scratch. Options may be NULL. The first engine that is alive on a device may make
 * all layers between two attentions in one kernel, whose blocks wait for each other; the others make them
 * one by one: some percent slower for a single sequence, and equal up to the order of sums. [any thread] */
WCUDA_API wcuda_status wcuda_engine_create(wcuda_model model, const wcuda_engine_options* options,
                                           wcuda_engine* engine, wcuda_error* error);
/* Waits for the steps in flight, then frees. [external: engine] */
WCUDA_API void wcuda_engine_destroy(wcuda_engine engine);

typedef struct wcuda_engine_info {
  uint32_t struct_size;
  int32_t kv_type;
  uint64_t flags;
  uint32_t max_sequences; /* the limits in force, defaults resolved */
  uint32_t max_batch_tokens;
  uint32_t max_batch_rows;
  uint32_t max_sequence_tokens;
  uint32_t max_logits_rows;
  uint32_t max_top_logprobs;
  uint32_t sequence_count; /* live */
  uint32_t steps_in_flight;
  uint64_t kv_page_count;
  uint64_t kv_free_page_count; /* after the steps in flight */
  uint64_t kv_bytes;
  uint64_t scratch_bytes;
} wcuda_engine_info;
#define WCUDA_ENGINE_INFO_INIT {sizeof(wcuda_engine_info), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}
WCUDA_API wcuda_status wcuda_engine_info_get(wcuda_engine engine, wcuda_engine_info* info,
                                             wcuda_error* error); /* [any thread] */

/* Does now what the first step of each shape would otherwise do (CUDA: capture graphs; HOST: start the
 * threads and touch the memory). [external: engine] */
WCUDA_API wcuda_status wcuda_engine_warm_up(wcuda_engine engine, wcuda_error* error);

/* A sequence: the tokens of one conversation and their keys and values. */
typedef struct wcuda_sequence {
  uint64_t id;
} wcuda_sequence;

/* An empty sequence. WCUDA_LIMIT_EXCEEDED past max_sequences. Takes no pages yet.
 * [external: engine] */
WCUDA_API wcuda_status wcuda_sequence_create(wcuda_engine engine, wcuda_sequence* sequence,
                                             wcuda_error* error);
/* A second sequence with the same tokens so far; pages are shared until one of the two writes. Acts
 * after the steps in flight. Two forks that sample with one seed draw alike. [external: engine] */
WCUDA_API wcuda_status wcuda_sequence_fork(wcuda_sequence sequence, wcuda_sequence* fork,
                                           wcuda_error* error);
/* Forgets all but the first `length` tokens; a length above the sequence's is WCUDA_OUT_OF_RANGE. Acts
 * after the steps in flight. [external: engine] */
WCUDA_API wcuda_status wcuda_sequence_truncate(wcuda_sequence sequence, uint32_t length,
                                               wcuda_error* error);
/* Ends a sequence; its pages serve the next submit. Rows in flight complete. [any thread] */
WCUDA_API void wcuda_sequence_destroy(wcuda_sequence sequence);
/* Tokens submitted so far, the steps in flight included. [any thread] */
WCUDA_API wcuda_status wcuda_sequence_length_get(wcuda_sequence sequence, uint32_t* length,
                                                 wcuda_error* error);
/* Copies tokens first … first + count - 1 of the history. A token that a step in flight has yet to
 * sample is WCUDA_INVALID_STATE. [external: engine] */
WCUDA_API wcuda_status wcuda_sequence_tokens_get(wcuda_sequence sequence, uint32_t first,
                                                 uint32_t count, int32_t* tokens,
                                                 wcuda_error* error);

/* ------------------------------------------------------------------------------------------------
 * 12. Steps
 *
 * A step is a batch of rows. A row appends tokens to one sequence (a prompt, part of one, or the token
 * sampled last) and may sample the next. Submit copies its inputs, returns a ticket and does not wait
 * for the device; wait copies the outputs. Two steps may be in flight; a third is WCUDA_QUEUE_FULL.
 * Tickets complete in order.
 *
 * A row that ends other than WCUDA_ROW_OK takes its sequence, and each fork made from it since, back to
 * the row's first position (if longer); a row of the later ticket that continues it ends as
 * WCUDA_ROW_SKIPPED. A step that fails as a whole leaves every length as it was before it and fails the
 * later ticket too, with the same cause.
 */

#define WCUDA_ROW_OK 0
#define WCUDA_ROW_EMPTY_MASK 2 /* bias and mask leave no token that may be drawn */
#define WCUDA_ROW_NOT_FINITE 3 /* a logit was NaN or +infinity */
#define WCUDA_ROW_SKIPPED 4    /* continued a row that did not end well */

/* How the next token is drawn. All zero: greedy, the lowest id of equal logits. Order: bias and mask,
 * penalties, logprobs are taken here, temperature, top-k, typical, top-p, min-p, draw. Log
 * probabilities are the log softmax of the logits with bias, mask and penalties, over the whole
 * vocabulary. Each filter keeps the first tokens of a ranking, equal ones by ascending id, and at
 * least one; the next sees what it left, in proportion. The draw takes the first token, by ascending
 * id, where the sum of probabilities passes a number from Philox4x32-10, counter (position, 0, 0, 0),
 * key seed; position is the one the token will have. It depends on (seed, position) and the logits
 * alone, and is the same on every backend for equal logits. */
typedef struct wcuda_sampling {
  uint32_t struct_size;
  uint32_t top_k;            /* 0: off */
  uint64_t seed;             /* taken as it is, 0 too */
  float temperature;         /* 0: greedy */
  float top_p;               /* (0, 1]; 0: off */
  float min_p;               /* [0, 1]; 0: off */
  float typical_p;           /* (0, 1]; 0: off */
  float repetition_penalty;  /* > 0; a positive logit is divided by it, a negative one multiplied;
                                0 or 1: off */
  float frequency_penalty;   /* subtracted once for each occurrence; 0: off */
  float presence_penalty;    /* subtracted once if it occurs; 0: off */
  uint32_t penalty_last_n;   /* most recent positions the penalties look at, at most 4096; 0: 64 when
                                a penalty is on */
  uint32_t penalty_from;     /* first position they look at */
  uint32_t top_logprobs;     /* alternatives to report, at most the engine's; 0: none */
  uint64_t bias_count;
  const int32_t* bias_tokens; /* (bias_count) distinct ids */
  const float* bias_values;   /* (bias_count) added to the logit; -infinity forbids */
  const uint32_t* mask;       /* bit (id % 32) of word id / 32: 1 allows; NULL: all allowed */
  uint64_t mask_words;        /* ceil(vocabulary / 32) */
} wcuda_sampling;
#define WCUDA_SAMPLING_INIT                                                                    \
  {sizeof(wcuda_sampling), 0, 0, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0, 0, 0, 0, NULL, \
   NULL, NULL, 0}

#define WCUDA_ROW_FEED_SAMPLED ((uint32_t)1 << 0) /* one token: what this sequence sampled last, fed
                                                     back on the device; tokens NULL, token_count 1 */
#define WCUDA_ROW_SAMPLE ((uint32_t)1 << 1)       /* sample after the row's last token */
#define WCUDA_ROW_LOGITS_LAST ((uint32_t)1 << 2)  /* return the logits of the last token */
#define WCUDA_ROW_LOGITS_ALL ((uint32_t)1 << 3)   /* return the logits of every token of the row */

typedef struct wcuda_row {
  wcuda_sequence sequence; /* a sequence has at most one row in a step */
  const int32_t* tokens;   /* (token_count) ids in [0, vocabulary) */
  uint32_t token_count;
  uint32_t flags;                 /* WCUDA_ROW_… */
  const wcuda_sampling* sampling; /* with WCUDA_ROW_SAMPLE; NULL: greedy */
} wcuda_row;

typedef struct wcuda_step {
  uint32_t struct_size;
  uint32_t row_count; /* at least 1 */
  const wcuda_row* rows;
  uint64_t flags; /* none defined: 0 */
} wcuda_step;
#define WCUDA_STEP_INIT {sizeof(wcuda_step), 0, NULL, 0}

/* Checks everything, takes pages, queues the step. WCUDA_OUT_OF_PAGES tells pages needed and free,
 * WCUDA_LIMIT_EXCEEDED which limit. On failure nothing has changed. A sampled token is not part of the
 * sequence until a row feeds it. [external: engine] */
WCUDA_API wcuda_status wcuda_step_submit(wcuda_engine engine, const wcuda_step* step,
                                         uint64_t* ticket, wcuda_error* error);

typedef struct wcuda_row_result {
  int32_t status;         /* WCUDA_ROW_… */
  int32_t token;          /* sampled; -1 if none */
  uint32_t first_position; /* of the row's first token */
  uint32_t token_count;
  float logprob;          /* natural logarithm, of the sampled token, before temperature and
                             truncation; 0 if none */
  uint32_t top_count;     /* alternatives reported */
  uint64_t top_offset;    /* of the first, in top_tokens and top_logprobs */
  uint64_t logits_offset; /* row index of the first, in logits */
  uint32_t logits_count;  /* rows of logits */
  uint32_t reserved;
} wcuda_row_result;

/* Outputs of a step; the caller's memory. Arrays that are not wanted may be NULL with capacity 0. */
typedef struct wcuda_step_output {
  uint32_t struct_size;
  uint32_t row_capacity; /* at least the step's rows */
  wcuda_row_result* rows;
  uint64_t top_capacity;   /* entries; the counts needed follow from what was asked for */
  int32_t* top_tokens;     /* descending by logprob; equal ones by ascending id */
  float* top_logprobs;
  uint64_t logits_capacity; /* floats */
  float* logits;            /* (rows, vocabulary) f32, in the order of the step's rows; before bias,
                               mask and penalties */
  /* Written: */
  uint64_t row_count;
  uint64_t device_ns; /* time of computing */
  int32_t captured;   /* 1: this step had to capture a graph first */
  uint32_t reserved;
} wcuda_step_output;
#define WCUDA_STEP_OUTPUT_INIT \
  {sizeof(wcuda_step_output), 0, NULL, 0, NULL, NULL, 0, NULL, 0, 0, 0, 0}

/* Waits for the oldest ticket and copies its outputs. timeout_ms < 0 waits as long as it takes. A later
 * ticket, while an older one is in flight, is WCUDA_INVALID_STATE; WCUDA_TIMEOUT and
 * WCUDA_BUFFER_TOO_SMALL leave the ticket in flight. Any other status ends it. [external: engine] */
WCUDA_API wcuda_status wcuda_step_wait(wcuda_engine engine, uint64_t ticket, int64_t timeout_ms,
                                       wcuda_step_output* output, wcuda_error* error);

/* Waits for all steps in flight and drops what they have computed; lengths settle as if each had been
 * waited for. [external: engine] */
WCUDA_API wcuda_status wcuda_engine_drain(wcuda_engine engine, wcuda_error* error);

/* ------------------------------------------------------------------------------------------------
 * 13. Health
 */

#define WCUDA_HEALTH_OK 0
#define WCUDA_HEALTH_DEGRADED 1 /* usable; the message says what is wrong */
#define WCUDA_HEALTH_LOST 2     /* the device is lost */

typedef struct wcuda_health {
  uint32_t struct_size;
  int32_t state;        /* WCUDA_HEALTH_… */
  int32_t sticky_code;  /* the driver's code of the fault that lost the device; else 0 */
  int32_t temperature_celsius;  /* -1: not known */
  int64_t ecc_error_count;      /* uncorrected, volatile; -1: not known */
  uint64_t ledger_bytes;        /* device memory held by this context */
  uint64_t peak_bytes;
  uint64_t staging_bytes;
  uint64_t allocation_count;
  uint64_t device_free_bytes;
  uint64_t device_total_bytes;
  uint64_t nonresident_count;  /* allocations found not to be device memory */
  uint64_t deferred_error_count; /* failures met where nobody could be told, as in a destroy */
  uint64_t duration_ns;          /* of making this report */
  char message[256];             /* NUL-terminated; "" when OK */
  uint64_t pool_used_bytes;      /* device memory this context uses, as the driver counts it: at
                                    least ledger_bytes, else the ledger is wrong */
  uint64_t pool_reserved_bytes;  /* that, and what is kept for reuse */
  uint64_t lost_bytes;           /* of allocations that ended when the device was lost: closed in the
                                    ledger, not given back to the driver */
  uint64_t lost_count;
} wcuda_health;
#define WCUDA_HEALTH_INIT \
  {sizeof(wcuda_health), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, {0}, 0, 0, 0, 0}

/* A report on the context's device; asks the driver, in under 10 ms, also while steps are in flight.
 * Legal on a lost device. [any thread] */
WCUDA_API wcuda_status wcuda_health_get(wcuda_context context, wcuda_health* health,
                                        wcuda_error* error);

/* ------------------------------------------------------------------------------------------------
 * 14. Resident memory: budgets by purpose, scrubbing, proof of where memory is, raw addresses
 */

/* Device memory is zeroed by the library, on the device, as wcuda_context_options.scrub says; contents
 * are undefined otherwise. Pinned memory is always zeroed when it is allocated, and by ON_FREE also
 * before it goes. Zeroing that fails while freeing is a deferred failure. Adopted memory is never
 * scrubbed. */
#define WCUDA_SCRUB_NONE 0
#define WCUDA_SCRUB_ON_FREE 1  /* before a block is freed, after the work that uses it */
#define WCUDA_SCRUB_ON_ALLOC 2 /* before a block is handed out: buffers start as zeros */

/* Sets the most bytes that a purpose may hold, beside the context's own budget; 0: none. Asked before
 * the driver is: WCUDA_OVER_BUDGET tells the bytes needed, the budget, the bytes used and free. What
 * is held already stays, also above a new budget. Purpose WCUDA_PURPOSE_WEIGHTS … _USER.
 * [any thread] */
WCUDA_API wcuda_status wcuda_context_budget_set(wcuda_context context, int32_t purpose,
                                                uint64_t bytes, wcuda_error* error);

/* Whether a device meets the needs of resident memory: compute capability 8.0 and 1 GiB of memory on
 * CUDA, where opening it checks the same. WCUDA_UNSUPPORTED names what lacks. HOST has no such needs.
 * [any thread] */
WCUDA_API wcuda_status wcuda_device_check(int32_t backend, int32_t ordinal, wcuda_error* error);

/* Where an address is. */
#define WCUDA_PLACE_DEVICE 1       /* memory of the context's device, and nothing else */
#define WCUDA_PLACE_OTHER_DEVICE 2
#define WCUDA_PLACE_MANAGED 3      /* moves between host and device */
#define WCUDA_PLACE_PINNED 4       /* page-locked host memory */
#define WCUDA_PLACE_MAPPED 5       /* the same, and devices read it in place; or it has a host address */
#define WCUDA_PLACE_HOST 6         /* host memory that the driver does not know */

typedef struct wcuda_residency {
  uint32_t struct_size;
  int32_t first_place;        /* WCUDA_PLACE_… of the first that is not resident; 0: all are */
  uint64_t checked_count;     /* live and adopted allocations; pinned staging is not among them */
  uint64_t nonresident_count;
  uint64_t managed_count;     /* of these, managed */
  wcuda_ledger_entry first;   /* the first that is not resident */
} wcuda_residency;
#define WCUDA_RESIDENCY_INIT {sizeof(wcuda_residency), 0, 0, 0, 0, {0, 0, 0, 0, {0}}}

/* Asks the driver of every live or adopted allocation whether it is memory of this context's device,
 * without a host address. A finding is no failure of this call; it is told to the log as an error.
 * On HOST the backend's own blocks count as the device's. [any thread] */
WCUDA_API wcuda_status wcuda_context_residency_get(wcuda_context context,
                                                   wcuda_residency* residency, wcuda_error* error);

/* Enforces the rule that all memory is the device's own: checks the device (as wcuda_device_check) and
 * every allocation. WCUDA_NOT_RESIDENT names the first that breaks the rule. From a success on
 * wcuda_buffer_adopt refuses such memory with WCUDA_NOT_RESIDENT. [any thread] */
WCUDA_API wcuda_status wcuda_context_vram_only_enforce(wcuda_context context, wcuda_error* error);
/* 1 when the last enforcement succeeded and no check has found a breach since. [any thread] */
WCUDA_API wcuda_status wcuda_context_vram_only_get(wcuda_context context, int32_t* is_enforced,
                                                   wcuda_error* error);

/* Puts memory of somebody else into the ledger, as a buffer of purpose WCUDA_PURPOSE_ADOPTED that is
 * never freed by the library: the caller keeps options->bytes bytes at `address` valid until the
 * buffer is destroyed, which waits for the work that uses it. It counts against no budget.
 * options->purpose is 0. The memory should be the context's device's own; whether it is shows in
 * wcuda_context_residency_get. [any thread] */
WCUDA_API wcuda_status wcuda_buffer_adopt(wcuda_context context, void* address,
                                          const wcuda_buffer_options* options,
                                          wcuda_buffer* buffer, wcuda_error* error);
/* Where this buffer is: one WCUDA_PLACE_…. [any thread] */
WCUDA_API wcuda_status wcuda_buffer_place_get(wcuda_buffer buffer, int32_t* place,
                                              wcuda_error* error);
/* The address on the device, for calls of other libraries; valid until the buffer is destroyed. What is
 * done through it is neither checked nor waited for. [any thread] */
WCUDA_API wcuda_status wcuda_buffer_address_get(wcuda_buffer buffer, void** address,
                                                wcuda_error* error);

/* Takes the oldest failure that nobody could be told of, as in a destroy: `deferred` gets its code and
 * message, or code WCUDA_OK when there is none (any more). Sixteen are kept; health counts all.
 * [any thread] */
WCUDA_API wcuda_status wcuda_context_deferred_error_take(wcuda_context context,
                                                         wcuda_error* deferred,
                                                         wcuda_error* error);

/* Raw device memory, for programs that deal in addresses.
 *
 * A table of the process knows every block given out here, so that an address is checked before it is
 * used: one that lies in no live block, or was freed, is WCUDA_INVALID_ARGUMENT, a range that passes
 * the end of its block WCUDA_OUT_OF_RANGE. Addresses inside a block are as good as its first in copies.
 * Each thread has a current device of each backend, 0 at first, which only wcuda_raw_allocate and
 * wcuda_raw_memory_get look at: copies and frees use the device the block is on. A device is opened by
 * the first call that needs it and stays open until wcuda_raw_reset. `backend` is WCUDA_BACKEND_CUDA or
 * WCUDA_BACKEND_HOST.
 */

/* Makes a device current for the calling thread. An ordinal that no device has is
 * WCUDA_INVALID_ARGUMENT. [any thread] */
WCUDA_API wcuda_status wcuda_raw_device_set(int32_t backend, int32_t ordinal, wcuda_error* error);
/* Allocates at least 1 byte on the thread's device, aligned to 256, contents undefined. There is no
 * upper bound but the device's memory. [any thread] */
WCUDA_API wcuda_status wcuda_raw_allocate(int32_t backend, uint64_t bytes, void** address,
                                          wcuda_error* error);
/* Frees a block by its first address. NULL does nothing. [any thread] */
WCUDA_API wcuda_status wcuda_raw_free(void* address, wcuda_error* error);
/* Copies between the caller's memory and a block, and waits; bytes 0 does nothing. [any thread] */
WCUDA_API wcuda_status wcuda_raw_copy_to_device(void* target, const void* source, uint64_t bytes,
                                                wcuda_error* error);
WCUDA_API wcuda_status wcuda_raw_copy_to_host(void* target, const void* source, uint64_t bytes,
                                              wcuda_error* error);
/* Free and all memory of the thread's device. [any thread] */
WCUDA_API wcuda_status wcuda_raw_memory_get(int32_t backend, uint64_t* free_bytes,
                                            uint64_t* total_bytes, wcuda_error* error);
/* Frees all blocks of a backend and closes its devices. [any thread] */
WCUDA_API wcuda_status wcuda_raw_reset(int32_t backend, wcuda_error* error);

/* ------------------------------------------------------------------------------------------------
 * 15. Digests by the MiB: which part of memory is not what it was
 *
 * BLAKE3 is a tree. The chaining value of each MiB of an input is a node of it: a change of the input
 * shows in exactly the chaining values of the MiBs it touches, and all of them together give the digest.
 */

#define WCUDA_DIGEST_PIECE_BYTES ((uint64_t)1 << 20)

/* Chaining values, 32 bytes each, of every MiB of a range of a buffer, the last perhaps shorter:
 * ceil(bytes / WCUDA_DIGEST_PIECE_BYTES) of them, computed on the device. The range is taken for the part
 * of an input that begins at its piece `first_piece`. bytes is at least 1; a `piece_capacity` below what
 * is needed is WCUDA_BUFFER_TOO_SMALL with the number. [external: buffer] */
WCUDA_API wcuda_status wcuda_buffer_digest_pieces(wcuda_buffer buffer, uint64_t offset,
                                                  uint64_t bytes, uint64_t first_piece,
                                                  uint8_t* pieces, uint64_t piece_capacity,
                                                  wcuda_error* error);
/* The BLAKE3 digest of an input of at least two pieces from their chaining values, all of them from
 * first_piece 0 on. Less than two are WCUDA_INVALID_ARGUMENT: the digest of such an input is not made
 * from its chaining value. [any thread] */
WCUDA_API wcuda_status wcuda_digest_join(const uint8_t* pieces, uint64_t piece_count,
                                         uint8_t digest[32], wcuda_error* error);

/* ------------------------------------------------------------------------------------------------
 * 16. Run-time kernels: compile
 *
 * CUDA C++ becomes device code by NVRTC, NVIDIA's compiler library (libnvrtc.so.13 of the toolkit or of
 * the PyPI package nvidia-cuda-nvrtc), opened when it is first needed. No device is needed to compile.
 */

typedef struct wcuda_program {
  uint64_t id;
} wcuda_program;

/* Code for the device, told apart by wcuda_code_kind_get. */
#define WCUDA_CODE_PTX 1    /* text: the driver translates it for its device when it is loaded */
#define WCUDA_CODE_CUBIN 2  /* an ELF file for one architecture */
#define WCUDA_CODE_FATBIN 3 /* a container of the two for several */

typedef struct wcuda_kernel_cache {
  uint64_t id;
} wcuda_kernel_cache;

/* Opens a folder that keeps compiled programs, shared by any number of processes; makes it (not its
 * parents) when it is missing. max_bytes bounds all entries together: those not used for longest go
 * first. WCUDA_INVALID_ARGUMENT when it belongs to another user or others can write it, for they could
 * put code there; WCUDA_IO when it cannot be opened. An entry is found by BLAKE3 of NVRTC's version,
 * options, architecture, expressions, source and headers; it appears whole or not at all, and a damaged
 * one counts as missing. Programs with include folders or extra options that read files bypass the
 * cache, and wcuda_program_info tells. [any thread] */
WCUDA_API wcuda_status wcuda_kernel_cache_open(wcuda_string folder, uint64_t max_bytes,
                                               wcuda_kernel_cache* cache, wcuda_error* error);
/* Gives the handle back; the folder stays. [any thread] */
WCUDA_API void wcuda_kernel_cache_destroy(wcuda_kernel_cache cache);

typedef struct wcuda_kernel_cache_stats {
  uint32_t struct_size;
  uint32_t reserved;
  uint64_t hit_count; /* by this handle, as all counts */
  uint64_t miss_count;
  uint64_t damaged_count; /* files that were no entries: misses, and removed */
  uint64_t store_count;
  uint64_t store_failure_count; /* a full disk, or an entry larger than max_bytes: logged */
  uint64_t evicted_count;
  uint64_t bypass_count;
  uint64_t entry_count; /* in the folder now */
  uint64_t entry_bytes;
} wcuda_kernel_cache_stats;
#define WCUDA_KERNEL_CACHE_STATS_INIT \
  {sizeof(wcuda_kernel_cache_stats), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}
WCUDA_API wcuda_status wcuda_kernel_cache_stats_get(wcuda_kernel_cache cache,
                                                    wcuda_kernel_cache_stats* stats,
                                                    wcuda_error* error); /* [any thread] */
/* Removes all entries. [any thread] */
WCUDA_API wcuda_status wcuda_kernel_cache_clear(wcuda_kernel_cache cache, wcuda_error* error);

/* A header that exists in memory only: `name` as in #include "name". */
typedef struct wcuda_program_header {
  wcuda_string name;
  wcuda_string text;
} wcuda_program_header;

/* For the choices below: 0 is the compiler's default, or what FAST_MATH makes of it. */
#define WCUDA_CHOICE_ON 1
#define WCUDA_CHOICE_OFF 2

#define WCUDA_PROGRAM_FAST_MATH (1u << 0)
#define WCUDA_PROGRAM_LINE_INFO (1u << 1)      /* line numbers for profilers */
#define WCUDA_PROGRAM_DEBUG (1u << 2)          /* code for debuggers, not optimised */
#define WCUDA_PROGRAM_RELOCATABLE (1u << 3)    /* code to be linked, not loaded as it is */
#define WCUDA_PROGRAM_DEFAULT_DEVICE (1u << 4) /* functions not marked otherwise are __device__ */

typedef struct wcuda_program_options {
  uint32_t struct_size;
  uint32_t flags;            /* WCUDA_PROGRAM_… */
  wcuda_string source;       /* CUDA C++ */
  wcuda_string name;         /* in diagnostics; empty: "kernel.cu" */
  wcuda_string architecture; /* "sm_90a": a cubin for that device; "compute_90": PTX. Empty: code for
                                the device of `context` ("sm_90a" on an H200, "sm_80" on an A100) */
  wcuda_context context;     /* needed only without an architecture. The program does not keep it; while
                                it lives, its trace tells of the compile and its faults can fail it */
  wcuda_string standard;     /* "c++11", "c++14", "c++17", "c++20"; empty: the compiler's default */
  const wcuda_string* defines; /* "NAME" or "NAME=value" each */
  uint64_t define_count;
  const wcuda_program_header* headers; /* found before all files */
  uint64_t header_count;
  const wcuda_string* include_folders;
  uint64_t include_folder_count;
  const wcuda_string* expressions; /* kernels that are instances of templates, as "scale<float>" */
  uint64_t expression_count;
  const wcuda_string* extras; /* options given to NVRTC as they are, after all others */
  uint64_t extra_count;
  int32_t flush_denormals; /* WCUDA_CHOICE_…, and the three below: --ftz, --prec-sqrt, --prec-div, */
  int32_t precise_sqrt;    /* --fmad */
  int32_t precise_division;
  int32_t fuse_multiply_add;
  uint32_t max_registers; /* a thread; 0: no bound */
  uint32_t reserved;
  wcuda_string library_folder; /* that holds libnvrtc.so.13; empty: where the system's loader looks */
  wcuda_kernel_cache cache;    /* id 0: none */
} wcuda_program_options;
#define WCUDA_PROGRAM_OPTIONS_INIT                                                                    \
  {sizeof(wcuda_program_options), 0, {NULL, 0}, {NULL, 0}, {NULL, 0}, {0}, {NULL, 0}, NULL, 0, NULL, \
   0, NULL, 0, NULL, 0, NULL, 0, 0, 0, 0, 0, 0, 0, {NULL, 0}, {0}}

/* A program to be compiled: copies all it is given, checks the options and compiles nothing yet.
 * Texts have no NUL. [any thread] */
WCUDA_API wcuda_status wcuda_program_create(const wcuda_program_options* options,
                                            wcuda_program* program, wcuda_error* error);
WCUDA_API void wcuda_program_destroy(wcuda_program program); /* [any thread] */

/* Compiles, or takes the code from the cache. WCUDA_COMPILE_FAILED has the first diagnostic in its
 * message, and wcuda_program_log_get all of them. WCUDA_UNSUPPORTED: NVRTC does not know the
 * architecture; the message lists those it knows. WCUDA_INVALID_ARGUMENT: it does not know an extra
 * option. WCUDA_NOT_AVAILABLE: there is no NVRTC; the message has the loader's reason. A program that
 * is compiled already stays as it is, and so does one whose compile its context's faults refused. [external: program] */
WCUDA_API wcuda_status wcuda_program_compile(wcuda_program program, wcuda_error* error);

#define WCUDA_PROGRAM_NEW 0 /* not compiled yet */
#define WCUDA_PROGRAM_COMPILED 1
#define WCUDA_PROGRAM_FAILED 2

#define WCUDA_CACHE_NONE 0 /* the program has no cache, or was not compiled */
#define WCUDA_CACHE_HIT 1  /* the code was there */
#define WCUDA_CACHE_MISS 2 /* compiled, and kept if it could be */
#define WCUDA_CACHE_BYPASSED 3

typedef struct wcuda_program_info {
  uint32_t struct_size;
  int32_t state;          /* WCUDA_PROGRAM_NEW, _COMPILED or _FAILED */
  int32_t code_kind;      /* WCUDA_CODE_PTX or _CUBIN: what it is, or will be */
  int32_t nvrtc_version;  /* major * 1000 + minor * 10; 0 before the library was opened */
  uint64_t code_bytes;    /* 0 unless compiled */
  uint64_t log_bytes;
  uint64_t compile_ns;    /* of the last wcuda_program_compile that did something */
  char architecture[32];  /* the one in use, NUL-terminated */
  int32_t cache_result;   /* WCUDA_CACHE_… */
  uint32_t reserved;
} wcuda_program_info;
#define WCUDA_PROGRAM_INFO_INIT {sizeof(wcuda_program_info), 0, 0, 0, 0, 0, 0, {0}, 0, 0}
WCUDA_API wcuda_status wcuda_program_info_get(wcuda_program program, wcuda_program_info* info,
                                              wcuda_error* error); /* [external: program] */

/* All that the compiler has said, after a success (warnings) as after a failure; empty before. Borrowed
 * from the program until it is compiled again. [external: program] */
WCUDA_API wcuda_status wcuda_program_log_get(wcuda_program program, wcuda_string* log,
                                             wcuda_error* error);
/* The code; PTX without a final NUL. Borrowed from the program. WCUDA_INVALID_STATE unless it is
 * compiled. [external: program] */
WCUDA_API wcuda_status wcuda_program_code_get(wcuda_program program, const void** code,
                                              uint64_t* bytes, wcuda_error* error);
/* The name in the code of one of the program's expressions. Borrowed from the program.
 * WCUDA_NOT_FOUND for any other text; WCUDA_INVALID_STATE unless it is compiled. [external: program] */
WCUDA_API wcuda_status wcuda_program_name_get(wcuda_program program, wcuda_string expression,
                                              wcuda_string* name, wcuda_error* error);

typedef struct wcuda_compiler_info {
  uint32_t struct_size;
  int32_t nvrtc_version; /* major * 1000 + minor * 10 */
  uint32_t architecture_count;
  int32_t architectures[61]; /* ascending: 75, 80, … */
} wcuda_compiler_info;
#define WCUDA_COMPILER_INFO_INIT {sizeof(wcuda_compiler_info), 0, 0, {0}}
/* What NVRTC there is; library_folder as in wcuda_program_options. WCUDA_NOT_AVAILABLE with the reason
 * where there is none. [any thread] */
WCUDA_API wcuda_status wcuda_compiler_info_get(wcuda_string library_folder,
                                               wcuda_compiler_info* info, wcuda_error* error);

/* ------------------------------------------------------------------------------------------------
 * 17. Streams, events, copies that do not wait
 *
 * Work on one stream is done in order; work on two only where an event orders it. A context has a
 * stream of its own, id 0, which all calls use that take none. On HOST everything is done when a call
 * returns.
 */

typedef struct wcuda_stream {
  uint64_t id;
} wcuda_stream;

/* priority 0: ordinary; -1: high, its kernels get multiprocessors first. Others are
 * WCUDA_INVALID_ARGUMENT. [any thread] */
WCUDA_API wcuda_status wcuda_stream_create(wcuda_context context, int32_t priority,
                                           wcuda_stream* stream, wcuda_error* error);
WCUDA_API void wcuda_stream_destroy(wcuda_stream stream); /* waits for its work. [any thread] */
/* Waits for all work given to the stream. [any thread] */
WCUDA_API wcuda_status wcuda_stream_synchronize(wcuda_stream stream, wcuda_error* error);
/* The driver's own object (a cudaStream_t) of a stream of the context (id 0: the context's own), for
 * calls of other libraries; valid until the stream is destroyed. WCUDA_UNSUPPORTED on HOST. [any thread] */
WCUDA_API wcuda_status wcuda_stream_native_get(wcuda_context context, wcuda_stream stream,
                                               void** native, wcuda_error* error);
/* A stream that somebody else made in the primary context of the context's device, not the driver's
 * default one (NULL): the caller keeps it until the handle is destroyed, which waits for its work and
 * leaves it alone. WCUDA_UNSUPPORTED on HOST. [any thread] */
WCUDA_API wcuda_status wcuda_stream_adopt(wcuda_context context, void* native,
                                          wcuda_stream* stream, wcuda_error* error);

typedef struct wcuda_event {
  uint64_t id;
} wcuda_event;

/* A point in a stream's work, with its time. One never recorded counts as done. [any thread] */
WCUDA_API wcuda_status wcuda_event_create(wcuda_context context, wcuda_event* event,
                                          wcuda_error* error);
WCUDA_API void wcuda_event_destroy(wcuda_event event); /* [any thread] */
/* Sets the event behind what the stream (id 0: the context's own) has been given. [any thread] */
WCUDA_API wcuda_status wcuda_event_record(wcuda_event event, wcuda_stream stream,
                                          wcuda_error* error);
/* What the stream (id 0: the context's own) is given from now on waits for the event. [any thread] */
WCUDA_API wcuda_status wcuda_event_order(wcuda_event event, wcuda_stream stream, wcuda_error* error);
/* Waits until the work before the event is done; timeout_ms < 0: as long as it takes. WCUDA_TIMEOUT
 * changes nothing: wait again. A fault of the device is WCUDA_DEVICE_LOST, never a timeout.
 * [any thread] */
WCUDA_API wcuda_status wcuda_event_wait(wcuda_event event, int64_t timeout_ms, wcuda_error* error);
/* 1 when the work before the event is done. [any thread] */
WCUDA_API wcuda_status wcuda_event_done_get(wcuda_event event, int32_t* done, wcuda_error* error);
/* Milliseconds between two events that are done; WCUDA_INVALID_STATE otherwise. [any thread] */
WCUDA_API wcuda_status wcuda_event_elapsed_get(wcuda_event start, wcuda_event end,
                                               double* milliseconds, wcuda_error* error);

/* Copies between a buffer and pinned memory, on a stream (id 0: the context's own), without waiting.
 * Both stay alive until the stream has passed, destroyed or not; the caller leaves their contents
 * alone until then, which an event tells. [any thread; external: buffer] */
WCUDA_API wcuda_status wcuda_buffer_write_async(wcuda_buffer buffer, uint64_t offset,
                                                wcuda_pinned source, uint64_t source_offset,
                                                uint64_t bytes, wcuda_stream stream,
                                                wcuda_error* error);
WCUDA_API wcuda_status wcuda_buffer_read_async(wcuda_buffer buffer, uint64_t offset,
                                               wcuda_pinned target, uint64_t target_offset,
                                               uint64_t bytes, wcuda_stream stream,
                                               wcuda_error* error);

/* ------------------------------------------------------------------------------------------------
 * 18. Run-time kernels: modules, kernels, launches
 *
 * A kernel is device code of a module, a function of the host, or both: a context of the backend CUDA
 * runs the first, one of HOST the second. Nothing falls back from one to the other.
 */

/* What device code is (WCUDA_CODE_…), by its header or first token, and whether it is all there.
 * WCUDA_MALFORMED says what is wrong, or that it is source. [any thread] */
WCUDA_API wcuda_status wcuda_code_kind_get(const void* code, uint64_t bytes, int32_t* kind,
                                           wcuda_error* error);

typedef struct wcuda_module {
  uint64_t id;
} wcuda_module;

/* Loads PTX, a cubin or a fatbin on the context's device. PTX needs no final NUL. WCUDA_MALFORMED and
 * WCUDA_UNSUPPORTED (another architecture, PTX newer than the driver) have the driver's reason.
 * WCUDA_UNSUPPORTED_KERNEL on HOST. The code is trusted: what it does to memory is its own. The ledger
 * has the bytes of the code as WCUDA_PURPOSE_MODULE, under the budgets, as long as it is loaded; the driver
 * does not tell what it takes in truth. [any thread] */
WCUDA_API wcuda_status wcuda_module_load(wcuda_context context, const void* code, uint64_t bytes,
                                         wcuda_module* module, wcuda_error* error);
/* The same with a compiled program, whose expressions then name kernels. [external: program] */
WCUDA_API wcuda_status wcuda_module_load_program(wcuda_context context, wcuda_program program,
                                                 wcuda_module* module, wcuda_error* error);
/* Kernels and views of globals keep their module: it is unloaded, after all work of the context, when
 * the last goes. [any thread] */
WCUDA_API void wcuda_module_destroy(wcuda_module module);

/* A variable of the module (__device__ or __constant__) as a buffer: a view of the module's memory, in
 * the ledger as adopted, that keeps the module. WCUDA_NOT_FOUND when there is none of this name.
 * [any thread] */
WCUDA_API wcuda_status wcuda_module_global_get(wcuda_module module, wcuda_string name,
                                               wcuda_buffer* buffer, wcuda_error* error);

typedef struct wcuda_kernel {
  uint64_t id;
} wcuda_kernel;

/* Kinds of arguments. Scalars are passed as they are, a buffer as the address of its window. */
#define WCUDA_ARG_I8 1
#define WCUDA_ARG_U8 2
#define WCUDA_ARG_I16 3
#define WCUDA_ARG_U16 4
#define WCUDA_ARG_I32 5
#define WCUDA_ARG_U32 6
#define WCUDA_ARG_I64 7
#define WCUDA_ARG_U64 8
#define WCUDA_ARG_F16 9
#define WCUDA_ARG_BF16 10
#define WCUDA_ARG_F32 11
#define WCUDA_ARG_F64 12
#define WCUDA_ARG_BUFFER 13
#define WCUDA_ARG_BYTES 14 /* a struct passed by value */

#define WCUDA_ACCESS_READ 1
#define WCUDA_ACCESS_WRITE 2

/* What a kernel's signature says of one parameter. */
typedef struct wcuda_parameter {
  int32_t kind;       /* WCUDA_ARG_… */
  uint32_t access;    /* of a BUFFER: WCUDA_ACCESS_… bits; 0: both */
  uint64_t min_bytes; /* of a BUFFER's window, or of BYTES */
  uint64_t max_bytes; /* likewise; 0: no bound */
} wcuda_parameter;

typedef struct wcuda_launch {
  uint32_t struct_size;
  uint32_t flags;        /* WCUDA_LAUNCH_… */
  uint32_t grid[3];      /* blocks, x y z */
  uint32_t block[3];     /* threads of a block */
  uint32_t cluster[3];   /* blocks of a cluster; all 0: none, or what the kernel was compiled with */
  uint32_t shared_bytes; /* dynamic shared memory of a block */
  wcuda_stream stream;   /* id 0: the context's own, which buffer calls use too */
} wcuda_launch;
#define WCUDA_LAUNCH_INIT {sizeof(wcuda_launch), 0, {1, 1, 1}, {256, 1, 1}, {0, 0, 0}, 0, {0}}
/* All blocks run at once and may wait for each other; more than fit is WCUDA_LAUNCH_FAILED. */
#define WCUDA_LAUNCH_COOPERATIVE (1u << 0)

/* One argument as a host function gets it. */
typedef struct wcuda_host_argument {
  int32_t kind; /* WCUDA_ARG_… */
  uint32_t reserved;
  void* data; /* of a buffer: its window; of anything else: the value, not to be written */
  uint64_t bytes;
} wcuda_host_argument;

/* A kernel on the host: does the work of the whole grid. Runs on the thread that launches. Returns 0,
 * or a number of its own that makes the launch WCUDA_DEVICE_ERROR with it as native code. Arguments
 * have been checked as for a device. */
typedef int32_t (*wcuda_host_kernel)(void* user, const wcuda_launch* launch,
                                     const wcuda_host_argument* arguments, uint64_t argument_count);

typedef struct wcuda_kernel_options {
  uint32_t struct_size;
  int32_t has_signature;  /* 1: the parameters below are all there are */
  wcuda_string name;      /* in the module: a name with C linkage, a mangled one, or an expression of
                             the program that was loaded; without a module any text */
  wcuda_module module;    /* id 0: none; needed on CUDA to be launched */
  wcuda_host_kernel host; /* NULL: none; needed on HOST to be launched */
  void* host_user;        /* outlives the kernel */
  const wcuda_parameter* parameters;
  uint64_t parameter_count;
} wcuda_kernel_options;
#define WCUDA_KERNEL_OPTIONS_INIT {sizeof(wcuda_kernel_options), 0, {NULL, 0}, {0}, NULL, NULL, NULL, 0}

/* A kernel of a context. WCUDA_NOT_FOUND lists the kernels that the module has. A signature that does
 * not fit the code (number and sizes of parameters) is refused here. WCUDA_UNSUPPORTED_KERNEL when
 * there is neither a module nor a host function, WCUDA_INVALID_ARGUMENT when the module is of another
 * context. [any thread] */
WCUDA_API wcuda_status wcuda_kernel_create(wcuda_context context,
                                           const wcuda_kernel_options* options,
                                           wcuda_kernel* kernel, wcuda_error* error);
WCUDA_API void wcuda_kernel_destroy(wcuda_kernel kernel); /* [any thread] */

typedef struct wcuda_kernel_info {
  uint32_t struct_size;
  int32_t has_device_code;
  int32_t has_host_function;
  uint32_t parameter_count;       /* by the code, else by the signature; 0 where neither tells */
  uint32_t max_threads_per_block; /* what follows is of device code; else 0 */
  uint32_t register_count;        /* a thread */
  uint64_t static_shared_bytes;
  uint64_t dynamic_shared_bytes_max;
  uint64_t local_bytes; /* a thread */
  uint64_t constant_bytes;
  uint32_t required_cluster[3];
  int32_t ptx_version;    /* major * 10 + minor */
  int32_t binary_version; /* likewise */
  uint32_t name_bytes;
  char name[256]; /* in the code, cut to fit, NUL-terminated */
} wcuda_kernel_info;
#define WCUDA_KERNEL_INFO_INIT \
  {sizeof(wcuda_kernel_info), 0, 0, 0, 0, 0, 0, 0, 0, 0, {0}, 0, 0, 0, {0}}
WCUDA_API wcuda_status wcuda_kernel_info_get(wcuda_kernel kernel, wcuda_kernel_info* info,
                                             wcuda_error* error); /* [any thread] */

typedef struct wcuda_occupancy {
  uint32_t struct_size;
  uint32_t blocks_per_multiprocessor; /* that run at once */
  uint32_t threads_per_multiprocessor;
  uint32_t best_block_threads; /* the block size that keeps most threads running */
  double share;                /* of the threads a multiprocessor can have, 0 to 1 */
} wcuda_occupancy;
#define WCUDA_OCCUPANCY_INIT {sizeof(wcuda_occupancy), 0, 0, 0, 0.0}
/* How much of a multiprocessor a kernel fills with blocks of that many threads and that much dynamic
 * shared memory. WCUDA_UNSUPPORTED_KERNEL without device code. [any thread] */
WCUDA_API wcuda_status wcuda_kernel_occupancy_get(wcuda_kernel kernel, uint32_t block_threads,
                                                  uint64_t shared_bytes,
                                                  wcuda_occupancy* occupancy, wcuda_error* error);

typedef struct wcuda_argument {
  int32_t kind;         /* WCUDA_ARG_… */
  uint32_t access;      /* of a BUFFER: what the caller grants, WCUDA_ACCESS_… bits; 0: both */
  const void* data;     /* scalars and BYTES: the value, copied before the call returns */
  uint64_t bytes;       /* BYTES: its size. BUFFER: of the window, 0: to the end. Scalars: 0 */
  wcuda_buffer buffer;  /* BUFFER */
  uint64_t offset;      /* BUFFER: where the window begins */
} wcuda_argument;

/* Launches a kernel and does not wait for it (on HOST it is done when the call returns). Before the
 * driver sees anything these are checked: grid, block, cluster and shared memory, none zero and all
 * within the limits of device and kernel (WCUDA_INVALID_CONFIG with value and limit); the number of
 * arguments (WCUDA_ARGUMENT_COUNT) and their sizes, by what the code tells; their kinds, access and
 * sizes by the signature if there is one; that buffers are live, of the kernel's context, and windows
 * within them. Any number of arguments. WCUDA_LAUNCH_FAILED: the driver refused, nothing ran. What goes
 * wrong while the kernel runs is told by the next call that waits, and every one after it:
 * WCUDA_DEVICE_LOST. Buffers destroyed meanwhile are freed after the kernel.
 * Device code can do to memory what it likes: the caller vouches for it.
 * [any thread; external: each buffer] */
WCUDA_API wcuda_status wcuda_kernel_launch(wcuda_kernel kernel, const wcuda_launch* launch,
                                           const wcuda_argument* arguments, uint64_t argument_count,
                                           wcuda_error* error);

/* ------------------------------------------------------------------------------------------------
 * 19. Catalogue: ready kernels, on every backend
 *
 * Each computes on HOST and on CUDA alike, within the bounds of NUMERICS.md. Sums are of f32 in an
 * order that hangs on the sizes alone, so that a device gives the same bits each time. Any sizes, 0
 * too.
 */

typedef struct wcuda_compute_kernel {
  uint32_t struct_size;
  int32_t is_f32_only;     /* else f16 and bf16 too */
  wcuda_string name;       /* static text, as below */
  wcuda_string signature;  /* the parameters, apart by spaces: "<x:n" a buffer that is read, ">y:n" one
                              that is written, "=y:n" both, each with its elements as a product
                              ("rows*width"; oh and ow are what a window of kh x kw gives), of the
                              call's type or, as "y/i32" and "y/f32", of that; "#n" an integer of
                              any width; "%alpha" an f32 or f64. "!1" is no parameter */
  uint32_t parameter_count;
  uint32_t reserved;
} wcuda_compute_kernel;
#define WCUDA_COMPUTE_KERNEL_INIT {sizeof(wcuda_compute_kernel), 0, {NULL, 0}, {NULL, 0}, 0, 0}

/* Number of kernels in the catalogue. [any thread] */
WCUDA_API uint32_t wcuda_compute_kernel_count(void);
/* Kernel `index`, by name; WCUDA_OUT_OF_RANGE past the end. [any thread] */
WCUDA_API wcuda_status wcuda_compute_kernel_at(uint32_t index, wcuda_compute_kernel* kernel,
                                               wcuda_error* error);

/* Runs a kernel of the catalogue on elements of WCUDA_ARG_F32, _F16 or _BF16, on a stream (id 0: the
 * context's own), and does not wait (on HOST it is done when the call returns). All arguments are held
 * against the signature first: number, kinds, extents, and that nothing written overlaps anything else,
 * but for element-wise kernels and rows, which may write all of a buffer in place. embedding_lookup
 * waits for its ids: WCUDA_OUT_OF_RANGE with the first that the table has not, and nothing is written.
 * WCUDA_NOT_FOUND: no such kernel. [any thread; external: each buffer] */
WCUDA_API wcuda_status wcuda_compute_run(wcuda_context context, wcuda_string name, int32_t type,
                                         const wcuda_argument* arguments, uint64_t argument_count,
                                         wcuda_stream stream, wcuda_error* error);

/* ------------------------------------------------------------------------------------------------
 * 20. Matrix products
 *
 * c = activation(alpha * op(a) * op(b) + beta * c + bias), row-major: op(a) (m, k), op(b) (k, n), c (m, n),
 * bias (n), which is added to every row. CUDA does it by cuBLASLt, opened when first needed; HOST by its
 * processors. The same shapes, strides and alignments on the same device and library give the same bits
 * every time: the algorithm is chosen once for each.
 *
 * Bound. With S = |alpha| * sum over k of |a * b|, an element is off by at most
 *   4 * k * 2^-24 * S + t * S, before it is rounded to the type of c,
 * where t is 0 for F32, F16 and BF16, 2^-9 for TF32 (operands have 10 bits of fraction), 2^-10 for FP8 on
 * CUDA (its tensor cores keep fewer bits between two additions in f32). With a bias or an activation CUDA
 * may round to the type of c before it too, and for a GELU 2^-10 of its value is added.
 */

/* What a and b are. Products are summed in f32. */
#define WCUDA_GEMM_F32 1
#define WCUDA_GEMM_TF32 2 /* f32 in memory */
#define WCUDA_GEMM_F16 3
#define WCUDA_GEMM_BF16 4
#define WCUDA_GEMM_FP8 5  /* e4m3; on CUDA of capability 8.9 or newer. Where a is not plain, b not transposed, or
                             k, a row of c, a stride or an address no multiple of 16 bytes, they are copied
                             into scratch that is, and c out of it: one more pass over each */
#define WCUDA_GEMM_F64 6  /* WCUDA_NOT_AVAILABLE */
#define WCUDA_GEMM_INT8 7 /* WCUDA_NOT_AVAILABLE */

#define WCUDA_GEMM_TRANSPOSE_A (1u << 0) /* a is stored as (k, m) */
#define WCUDA_GEMM_TRANSPOSE_B (1u << 1) /* b is stored as (n, k) */

#define WCUDA_ACTIVATION_NONE 0
#define WCUDA_ACTIVATION_RELU 1 /* of a NaN: NaN on HOST, 0 on CUDA */
#define WCUDA_ACTIVATION_GELU 2 /* by tanh: 0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) */

typedef struct wcuda_gemm {
  uint32_t struct_size;
  uint32_t flags;         /* WCUDA_GEMM_TRANSPOSE_… */
  int32_t type;           /* WCUDA_GEMM_… */
  int32_t output_type;    /* of c: WCUDA_ARG_F32, _F16 or _BF16. 0: F32 for F32 and TF32, which have no
                             other, the inputs' for F16 and BF16, BF16 for FP8 */
  int32_t activation;     /* WCUDA_ACTIVATION_… */
  float alpha;
  float beta;             /* 0: c is not read */
  uint32_t reserved;
  uint64_t m;
  uint64_t n;
  uint64_t k;             /* at least 1 */
  uint64_t batch;         /* so many products of the same shape; 0: 1 */
  uint64_t row_stride_a;  /* elements from one stored row to the next; 0: rows follow each other */
  uint64_t row_stride_b;
  uint64_t row_stride_c;
  uint64_t batch_stride_a; /* elements from one matrix to the next; 0: they follow each other */
  uint64_t batch_stride_b;
  uint64_t batch_stride_c;
} wcuda_gemm;
#define WCUDA_GEMM_INIT \
  {sizeof(wcuda_gemm), 0, WCUDA_GEMM_F32, 0, 0, 1.0f, 0.0f, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}

/* Queues a product on a stream (id 0: the context's own) and does not wait (on HOST it is done when the
 * call returns). arguments: the buffers a, b, c and, for a bias, bias, of the type of c (of an FP8 product
 * into F32: BF16). c overlaps none of them. WCUDA_INVALID_ARGUMENT with the numbers. WCUDA_NOT_AVAILABLE:
 * cuBLASLt is not there (the message names the file; matrix products of the catalogue need it not), or has
 * nothing for this product. Device memory it works in is scratch of the context's;
 * the 32 MiB that products on stream 0 take turns with stay until the context ends.
 * [any thread; external: each buffer] */
WCUDA_API wcuda_status wcuda_gemm_run(wcuda_context context, const wcuda_gemm* gemm,
                                      const wcuda_argument* arguments, uint64_t argument_count,
                                      wcuda_stream stream, wcuda_error* error);

/* ------------------------------------------------------------------------------------------------
 * 21. Backends: one table of functions for every kind of device
 *
 * A backend allocates, copies, compiles, launches and waits on one device. CUDA and HOST are built in, a
 * caller registers more, and all are used through one table, or through a context made from one. What
 * a table of this library is given is checked: foreign, stale and freed handles, ranges, dimensions,
 * arguments. A table of a caller's is called only with handles that it gave out, and ranges within them.
 */

/* Types beyond WCUDA_BACKEND_AUTO, _CUDA and _HOST. STDGPU and SIMULATED are names of HOST, which
 * computes; all others are WCUDA_NOT_AVAILABLE. Registered types are numbered from 256 on. */
#define WCUDA_BACKEND_VULKAN 3
#define WCUDA_BACKEND_METAL 4
#define WCUDA_BACKEND_WEBGPU 5
#define WCUDA_BACKEND_OPENGL 6
#define WCUDA_BACKEND_OPENGLES 7
#define WCUDA_BACKEND_WEBGL2 8
#define WCUDA_BACKEND_STDGPU 9
#define WCUDA_BACKEND_SIMULATED 10
#define WCUDA_BACKEND_FPGA 11
#define WCUDA_BACKEND_DIRECTML 12
#define WCUDA_BACKEND_TPU 13
#define WCUDA_BACKEND_REGISTERED 256

/* What kind of memory to allocate; 0 is DEVICE. Bits 4 to 7 are 0. */
#define WCUDA_MEMORY_DEVICE (1u << 0)
#define WCUDA_MEMORY_HOST_VISIBLE (1u << 1)  /* pinned host memory, which copies go through fast */
#define WCUDA_MEMORY_HOST_COHERENT (1u << 2) /* of HOST_VISIBLE memory; always so */
#define WCUDA_MEMORY_CACHED (1u << 3)        /* likewise */

/* Memory of a backend. The id has a slot and a generation: one that was freed is refused for ever. In a
 * table of this library it is the id of a wcuda_buffer, or (HOST_VISIBLE) of a wcuda_pinned. */
typedef struct wcuda_device_memory {
  uint64_t id;
  uint64_t bytes; /* as asked for */
} wcuda_device_memory;

/* A kernel that a backend compiled. */
typedef struct wcuda_backend_kernel {
  uint64_t id;
} wcuda_backend_kernel;

/* The table. `self` is what wcuda_backend_table_get or `open` of a registration gave. NULL: not
 * supported; deinit, get_device_count, get_device_caps, allocate, free, copy_to_device,
 * copy_from_device and synchronize must be there. Functions return WCUDA_OK or a status, and fill
 * `error` (never NULL in calls of this library) with the reason; outputs are written on success only.
 * All may run on several threads at once. Those of this library may be called inside callbacks, so that
 * a table can be wrapped by another. Streams and events are ids of the backend's own; stream id 0 is
 * the one that every backend has. Argument `buffer.id` of a launch is the id of memory. */
typedef struct wcuda_backend_vtable {
  uint32_t struct_size;
  uint32_t reserved;
  /* Ends the instance with all it gave out. After it a table of this library answers
   * WCUDA_INVALID_HANDLE. */
  void (*deinit)(void* self);
  uint32_t (*get_device_count)(void* self);
  /* Of any device of the backend; WCUDA_NO_DEVICE past the last. */
  wcuda_status (*get_device_caps)(void* self, uint32_t device, wcuda_device_caps* caps,
                                  wcuda_error* error);
  wcuda_status (*allocate)(void* self, uint64_t bytes, uint8_t flags, wcuda_device_memory* memory,
                           wcuda_error* error);
  wcuda_status (*free)(void* self, wcuda_device_memory memory, wcuda_error* error);
  /* Copies between host and device memory; these two wait. Bytes 0 is legal. */
  wcuda_status (*copy_to_device)(void* self, wcuda_device_memory target, uint64_t offset,
                                 const void* source, uint64_t bytes, wcuda_error* error);
  wcuda_status (*copy_from_device)(void* self, void* target, wcuda_device_memory source,
                                   uint64_t offset, uint64_t bytes, wcuda_error* error);
  /* Queued; the host memory stays, untouched, until the stream has passed. */
  wcuda_status (*copy_to_device_async)(void* self, wcuda_device_memory target, uint64_t offset,
                                       const void* source, uint64_t bytes, wcuda_stream stream,
                                       wcuda_error* error);
  wcuda_status (*copy_from_device_async)(void* self, void* target, wcuda_device_memory source,
                                         uint64_t offset, uint64_t bytes, wcuda_stream stream,
                                         wcuda_error* error);
  /* CUDA: CUDA C++, PTX, a cubin or a fatbin; entry is a name or an expression such as scale<float>.
   * HOST compiles nothing: entry is a kernel that was registered by descriptor (section 22) in a context
   * made from the backend, in the newest registry where several have the name, and what runs is its host
   * function, with the launch of the caller and arguments held against the descriptor; else one of the
   * catalogue (section 19), computed on f32. A registered one without a host function, and any other, is
   * WCUDA_UNSUPPORTED_KERNEL; a source that does not speak of the entry is WCUDA_NOT_FOUND. */
  wcuda_status (*compile_kernel)(void* self, wcuda_string source, wcuda_string entry,
                                 wcuda_backend_kernel* kernel, wcuda_error* error);
  /* Queued. Checked as wcuda_kernel_launch checks. */
  wcuda_status (*launch_kernel)(void* self, wcuda_backend_kernel kernel, const wcuda_launch* config,
                                const wcuda_argument* arguments, uint64_t argument_count,
                                wcuda_error* error);
  wcuda_status (*destroy_kernel)(void* self, wcuda_backend_kernel kernel, wcuda_error* error);
  wcuda_status (*synchronize)(void* self, wcuda_error* error);
  /* Beyond the thirteen. Queued; the ranges do not overlap. */
  wcuda_status (*copy_on_device)(void* self, wcuda_device_memory target, uint64_t target_offset,
                                 wcuda_device_memory source, uint64_t source_offset, uint64_t bytes,
                                 wcuda_stream stream, wcuda_error* error);
  /* Queued; as wcuda_buffer_fill. */
  wcuda_status (*fill)(void* self, wcuda_device_memory memory, uint64_t offset, uint64_t bytes,
                       uint64_t pattern, uint32_t pattern_bytes, wcuda_stream stream,
                       wcuda_error* error);
  wcuda_status (*stream_create)(void* self, int32_t priority, wcuda_stream* stream,
                                wcuda_error* error);
  wcuda_status (*stream_destroy)(void* self, wcuda_stream stream, wcuda_error* error);
  wcuda_status (*stream_synchronize)(void* self, wcuda_stream stream, wcuda_error* error);
  wcuda_status (*event_create)(void* self, wcuda_event* event, wcuda_error* error);
  wcuda_status (*event_destroy)(void* self, wcuda_event event, wcuda_error* error);
  wcuda_status (*event_record)(void* self, wcuda_event event, wcuda_stream stream,
                               wcuda_error* error);
  /* What the stream is given from now on waits for the event. */
  wcuda_status (*event_order)(void* self, wcuda_event event, wcuda_stream stream,
                              wcuda_error* error);
  wcuda_status (*event_synchronize)(void* self, wcuda_event event, wcuda_error* error);
  wcuda_status (*event_done)(void* self, wcuda_event event, int32_t* done, wcuda_error* error);
  wcuda_status (*event_elapsed)(void* self, wcuda_event start, wcuda_event end,
                                double* milliseconds, wcuda_error* error);
  wcuda_status (*memory_info)(void* self, uint64_t* free_bytes, uint64_t* total_bytes,
                              wcuda_error* error);
  /* WCUDA_OK, or WCUDA_DEVICE_LOST with the reason, and then for ever. */
  wcuda_status (*fault)(void* self, wcuda_error* error);
  /* Where HOST_VISIBLE memory is for the program. */
  wcuda_status (*host_address)(void* self, wcuda_device_memory memory, void** address,
                               wcuda_error* error);
} wcuda_backend_vtable;
#define WCUDA_BACKEND_VTABLE_INIT                                                                 \
  {sizeof(wcuda_backend_vtable), 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,  \
   NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,     \
   NULL, NULL, NULL}

typedef struct wcuda_backend_registration {
  uint32_t struct_size;
  int32_t priority;                  /* in wcuda_backend_select; CUDA has 100, HOST 10 */
  wcuda_string name;                 /* 1 to 31 bytes, that no other type has */
  const wcuda_backend_vtable* table; /* copied; its functions stay until the last instance ended */
  /* Makes an instance on a device; its `self` goes to every function, and ends with deinit. */
  wcuda_status (*open)(void* user, int32_t ordinal, void** self, wcuda_error* error);
  void* user; /* stays as long as the functions */
} wcuda_backend_registration;
#define WCUDA_BACKEND_REGISTRATION_INIT {sizeof(wcuda_backend_registration), 0, {NULL, 0}, NULL, NULL, NULL}

/* Adds a backend to the process; `type` is what the calls below, contexts (section 5) and devices
 * (section 4) take. Contexts on it have buffers, streams, events, a ledger and digests; models and the
 * catalogue need CUDA or HOST. [any thread] */
WCUDA_API wcuda_status wcuda_backend_register(const wcuda_backend_registration* registration,
                                              int32_t* type, wcuda_error* error);
/* No instance is made any more; those there are go on. [any thread] */
WCUDA_API wcuda_status wcuda_backend_unregister(int32_t type, wcuda_error* error);

/* One type of backend, as this machine has it. */
typedef struct wcuda_backend_entry {
  int32_t type; /* WCUDA_BACKEND_… */
  int32_t priority;
  int32_t is_available;
  int32_t device_count;
  wcuda_status status; /* WCUDA_OK, or why it is not available */
  uint32_t reserved;
  char name[32];    /* "cuda", "host", … NUL-terminated */
  char reason[200]; /* likewise; "" when available */
} wcuda_backend_entry;
/* All types, highest priority first. Writes min(capacity, count) entries and always the count.
 * [any thread] */
WCUDA_API wcuda_status wcuda_backend_list_get(wcuda_backend_entry* entries, uint64_t capacity,
                                              uint64_t* count, wcuda_error* error);
/* The type with a name: "cuda", "host", "vulkan", … or one registered; WCUDA_NOT_FOUND. [any thread] */
WCUDA_API wcuda_status wcuda_backend_find(wcuda_string name, int32_t* type, wcuda_error* error);

#define WCUDA_FEATURE_FP16 (1u << 0)
#define WCUDA_FEATURE_FP64 (1u << 1)
#define WCUDA_FEATURE_ATOMICS (1u << 2)
#define WCUDA_FEATURE_SHARED_MEMORY (1u << 3)
#define WCUDA_FEATURE_SUBGROUPS (1u << 4)
#define WCUDA_FEATURE_COOPERATIVE_GROUPS (1u << 5)
#define WCUDA_FEATURE_TENSOR_CORES (1u << 6)
#define WCUDA_FEATURE_DYNAMIC_PARALLELISM (1u << 7)
/* WCUDA_FEATURE_… bits of a device. [any thread] */
WCUDA_API wcuda_status wcuda_device_features_get(const wcuda_device_caps* caps, uint64_t* features,
                                                 wcuda_error* error);

/* Do not end at HOST when nothing else serves. */
#define WCUDA_SELECT_NO_HOST (1u << 0)
typedef struct wcuda_selection_options {
  uint32_t struct_size;
  uint32_t flags;              /* WCUDA_SELECT_… */
  int32_t preferred;           /* a type; 0: none */
  uint32_t fallback_count;
  const int32_t* fallbacks;    /* types to try after it; NULL: with a preferred one vulkan, metal,
                                  stdgpu; without all types, highest priority first */
  uint64_t required_features;  /* WCUDA_FEATURE_… bits that the device must have */
} wcuda_selection_options;
#define WCUDA_SELECTION_OPTIONS_INIT {sizeof(wcuda_selection_options), 0, 0, 0, NULL, 0}

typedef struct wcuda_skipped_backend {
  int32_t type;
  wcuda_status status;
  char reason[248]; /* NUL-terminated */
} wcuda_skipped_backend;

typedef struct wcuda_selection {
  uint32_t struct_size;
  int32_t type; /* CUDA, HOST or one registered */
  int32_t ordinal;
  uint32_t skipped_count;
  wcuda_skipped_backend skipped[16]; /* in the order tried */
} wcuda_selection;
#define WCUDA_SELECTION_INIT {sizeof(wcuda_selection), 0, 0, 0, {{0, 0, {0}}}}
/* The best backend: the first of the order whose device answers and has the features. This alone falls
 * back: opening a type by its number never does. WCUDA_NOT_AVAILABLE when none serves, with the reason
 * of the first. [any thread] */
WCUDA_API wcuda_status wcuda_backend_select(const wcuda_selection_options* options,
                                            wcuda_selection* selection, wcuda_error* error);

/* A backend's name for a status: "OutOfMemory", "KernelNotFound", … as BackendError, MemoryError and
 * KernelError of older tables have it; "" for WCUDA_OK. Static text, for every code. [any thread] */
WCUDA_API const char* wcuda_backend_error_name(wcuda_status status);

/* Threads of a launch: the product of grid and block. WCUDA_OUT_OF_RANGE past 2^64. [any thread] */
WCUDA_API wcuda_status wcuda_launch_threads_get(const wcuda_launch* launch, uint64_t* threads,
                                                wcuda_error* error);

typedef struct wcuda_backend {
  uint64_t id;
} wcuda_backend;

/* One call of a traced backend, as a line of JSON without its newline:
 * {"slot":"copy_to_device","bytes":4096,"stream":0,"ns":812,"status":"WCUDA_OK"}. Runs on the thread of
 * the call, after it, possibly on several at once. */
typedef void (*wcuda_trace_callback)(void* user, wcuda_string line);

/* Failures can be asked for: wcuda_backend_fault_set. */
#define WCUDA_BACKEND_WITH_FAULTS (1u << 0)
typedef struct wcuda_backend_options {
  uint32_t struct_size;
  int32_t type; /* WCUDA_BACKEND_…; AUTO: as wcuda_backend_select chooses */
  int32_t ordinal;
  uint32_t flags; /* WCUDA_BACKEND_WITH_… */
  uint64_t memory_budget;     /* as in wcuda_context_options */
  uint32_t host_thread_count; /* likewise */
  uint32_t reserved;
  wcuda_trace_callback trace; /* NULL: none */
  void* trace_user;           /* stays until all that was made from the backend is gone */
  wcuda_string library_folder; /* of NVRTC, as in wcuda_program_options */
} wcuda_backend_options;
#define WCUDA_BACKEND_OPTIONS_INIT \
  {sizeof(wcuda_backend_options), 0, 0, 0, 0, 0, 0, NULL, NULL, {NULL, 0}}

/* Opens a backend on a device. A certain type is opened or fails: WCUDA_NOT_AVAILABLE, WCUDA_NO_DEVICE.
 * [any thread] */
WCUDA_API wcuda_status wcuda_backend_open(const wcuda_backend_options* options,
                                          wcuda_backend* backend, wcuda_error* error);
/* As slot deinit: memory, kernels, streams and events that came through the table end too, those in use
 * by a call when it returns. Contexts made from it live on. [any thread] */
WCUDA_API void wcuda_backend_destroy(wcuda_backend backend);

typedef struct wcuda_backend_info {
  uint32_t struct_size;
  int32_t type; /* in use */
  int32_t ordinal;
  uint32_t device_count;
  int32_t is_traced;
  int32_t has_faults;
  uint64_t live_count;         /* memory, kernels, streams and events that came through the table */
  char name[32];               /* of the type */
  char fallback_reason[512];   /* AUTO: each type passed over and why, apart by "; ". NUL-terminated */
} wcuda_backend_info;
#define WCUDA_BACKEND_INFO_INIT {sizeof(wcuda_backend_info), 0, 0, 0, 0, 0, 0, {0}, {0}}
WCUDA_API wcuda_status wcuda_backend_info_get(wcuda_backend backend, wcuda_backend_info* info,
                                              wcuda_error* error); /* [any thread] */

/* The table and its `self`; the table is static, of whatever backend. [any thread] */
WCUDA_API wcuda_status wcuda_backend_table_get(wcuda_backend backend,
                                               const wcuda_backend_vtable** table, void** self,
                                               wcuda_error* error);
/* A context on the backend's device, through the same trace and faults; to be destroyed by itself.
 * [any thread] */
WCUDA_API wcuda_status wcuda_backend_context_get(wcuda_backend backend, wcuda_context* context,
                                                 wcuda_error* error);

#define WCUDA_FAULT_NONE 0
#define WCUDA_FAULT_ALLOCATE 1    /* WCUDA_OUT_OF_MEMORY */
#define WCUDA_FAULT_COPY 2        /* WCUDA_DEVICE_ERROR, as the two below */
#define WCUDA_FAULT_LAUNCH 3      /* kernels, fills, digests */
#define WCUDA_FAULT_SYNCHRONIZE 4
#define WCUDA_FAULT_COMPILE 5     /* WCUDA_COMPILE_FAILED; slot compile_kernel, and wcuda_program_compile of
                                     a program that was made with a context of the backend */
#define WCUDA_FAULT_LOST 6        /* any call: the device is lost from then on */
/* The k-th call of a kind from now on fails (1: the next), before the device sees it; k 0 or NONE: no
 * more. Replaces what was asked before; a lost device stays lost. WCUDA_INVALID_STATE unless the
 * backend is one WITH_FAULTS. [any thread] */
WCUDA_API wcuda_status wcuda_backend_fault_set(wcuda_backend backend, int32_t kind, uint64_t k,
                                               wcuda_error* error);
/* Failover: new contexts, and whole calls whose inputs are on the host, go to the next backend when one
 * fails. What lives on a device (buffers, sequences, models, sealed memory) never moves. It is off by
 * default, and never silent: every step is an event and a warning in the log. */
#define WCUDA_FAILOVER_NONE 0      /* failures are counted, nothing moves */
#define WCUDA_FAILOVER_WARN 1      /* contexts and calls after the failure move; it is returned */
#define WCUDA_FAILOVER_AUTOMATIC 2 /* the call that failed is repeated there, too */

#define WCUDA_FAILOVER_REASON_DEVICE_LOST 1
#define WCUDA_FAILOVER_REASON_REPEATED 2      /* so many failures of the device within the window */
#define WCUDA_FAILOVER_REASON_OUT_OF_MEMORY 3 /* only if asked for */
#define WCUDA_FAILOVER_REASON_MANUAL 4

#define WCUDA_FAILOVER_STARTED 1   /* `from` is left */
#define WCUDA_FAILOVER_COMPLETED 2 /* `to` answers */
#define WCUDA_FAILOVER_FAILED 3    /* `to` does not, or a probe of it computed wrong; status says why */
#define WCUDA_FAILOVER_RESTORED 4  /* back at the first backend, after a probe computed right */
#define WCUDA_FAILOVER_EXHAUSTED 5 /* there is none left to go to; `from` stays */

typedef struct wcuda_failover_event {
  int32_t event;  /* WCUDA_FAILOVER_STARTED … */
  int32_t reason; /* WCUDA_FAILOVER_REASON_…; 0 of RESTORED */
  int32_t from;   /* types */
  int32_t to;
  wcuda_status status;
  uint32_t reserved;
  char message[232]; /* NUL-terminated */
} wcuda_failover_event;
/* Runs on the thread whose call it concerns, within that call. */
typedef void (*wcuda_failover_callback)(void* user, const wcuda_failover_event* event);

typedef struct wcuda_failover_target {
  int32_t type; /* WCUDA_BACKEND_…, not AUTO */
  int32_t ordinal;
} wcuda_failover_target;

#define WCUDA_FAILOVER_ON_OUT_OF_MEMORY (1u << 0)
typedef struct wcuda_failover_options {
  uint32_t struct_size;
  int32_t mode;   /* WCUDA_FAILOVER_NONE, _WARN or _AUTOMATIC */
  uint32_t flags; /* WCUDA_FAILOVER_ON_… */
  uint32_t failure_threshold; /* 0: 3 */
  uint64_t window_ms;   /* 0: 30,000. Failures older than that are forgotten */
  uint64_t cooldown_ms; /* 0: 60,000. How long a backend that was left is not used */
  uint64_t recheck_ms;  /* 0: 30,000. Between two probes of the first */
  const wcuda_failover_target* targets; /* 1 to 16, the first preferred */
  uint64_t target_count;
  wcuda_failover_callback callback; /* may be NULL; the log tells all the same */
  void* user;
} wcuda_failover_options;
#define WCUDA_FAILOVER_OPTIONS_INIT \
  {sizeof(wcuda_failover_options), 0, 0, 0, 0, 0, 0, NULL, 0, NULL, NULL}

typedef struct wcuda_failover {
  uint64_t id;
} wcuda_failover;
/* Opens nothing yet. [any thread] */
WCUDA_API wcuda_status wcuda_failover_create(const wcuda_failover_options* options,
                                             wcuda_failover* failover, wcuda_error* error);
WCUDA_API void wcuda_failover_destroy(wcuda_failover failover); /* [any thread] */

/* A context on the backend in use, which is left when it cannot be opened, by the rules below. backend
 * and ordinal of `options` are 0. [any thread] */
WCUDA_API wcuda_status wcuda_failover_context_create(wcuda_failover failover,
                                                     const wcuda_context_options* options,
                                                     wcuda_context* context, wcuda_error* error);

/* A whole call: takes its inputs from the host, leaves its outputs there, and may be run again from the
 * start. It runs as the caller's own code: it may call this library. */
typedef wcuda_status (*wcuda_failover_body)(void* user, wcuda_context context, wcuda_error* error);
/* Runs the body with a context on the backend in use, on the calling thread. A backend is left when the
 * body answers WCUDA_DEVICE_LOST, WCUDA_OUT_OF_MEMORY (only if asked for), or for the third time in 30 s
 * WCUDA_DEVICE_ERROR, _NO_DEVICE or _NOT_AVAILABLE; never for any other status: compile errors, bad
 * arguments and timeouts are returned as they are. Back at the first backend when a probe, at most every
 * 30 s and not before the cooldown has passed, has computed right. `type` (may be NULL) is the backend
 * that answered, on success. [any thread] */
WCUDA_API wcuda_status wcuda_failover_call(wcuda_failover failover, wcuda_failover_body body,
                                           void* user, int32_t* type, wcuda_error* error);
/* Tells of a failure in a context of wcuda_failover_context_create: counts as one of a body.
 * [any thread] */
WCUDA_API wcuda_status wcuda_failover_report(wcuda_failover failover, int32_t type,
                                             wcuda_status status, wcuda_error* error);
/* Leaves the backend in use. WCUDA_INVALID_STATE under WCUDA_FAILOVER_NONE; WCUDA_NOT_AVAILABLE when
 * there is none to go to. [any thread] */
WCUDA_API wcuda_status wcuda_failover_trigger(wcuda_failover failover, wcuda_error* error);

typedef struct wcuda_failover_state {
  uint32_t struct_size;
  int32_t type; /* in use */
  int32_t ordinal;
  int32_t is_degraded;    /* 1: not the first */
  uint64_t failure_count; /* of devices, ever */
  uint64_t move_count;    /* completed */
  uint64_t restore_count;
} wcuda_failover_state;
#define WCUDA_FAILOVER_STATE_INIT {sizeof(wcuda_failover_state), 0, 0, 0, 0, 0, 0}
WCUDA_API wcuda_status wcuda_failover_state_get(wcuda_failover failover,
                                                wcuda_failover_state* state,
                                                wcuda_error* error); /* [any thread] */

/* ------------------------------------------------------------------------------------------------
 * 22. Kernel descriptors: kernels under a name and a number, with a signature that says it all
 *
 * A descriptor says of a kernel what a caller must know to run it rightly: its parameters with their
 * types, shapes and bounds, and how its launch follows from its arguments. A registry holds the
 * descriptors of a context; running a kernel of it checks every argument first.
 *
 * Sizes are expressions over the kernel's own integer parameters: "n", "ceil_div(n, 256)",
 * "max(1, rows * 4)". There are + - * / %, parentheses, ceil_div, round_up (to the next multiple), min
 * and max, of 64 bits with a sign; what would wrap, and a division by less than 1 or of less than 0, is
 * WCUDA_INVALID_ARGUMENT with the numbers. At most 256 bytes each.
 */

#define WCUDA_LAYOUT_ANY 0
#define WCUDA_LAYOUT_ROW_MAJOR 1    /* the last dimension is contiguous */
#define WCUDA_LAYOUT_COLUMN_MAJOR 2 /* the first is */

typedef struct wcuda_kernel_param {
  wcuda_string name;  /* letters, digits, "_"; one of its own */
  int32_t kind;       /* WCUDA_ARG_…: of a scalar, _BUFFER or _BYTES */
  int32_t dtype;      /* of a BUFFER's elements: WCUDA_ARG_… of a scalar; else 0 */
  uint32_t access;    /* of a BUFFER: WCUDA_ACCESS_… bits; 0: both */
  int32_t layout;     /* of a BUFFER, a hint that nothing checks: WCUDA_LAYOUT_… */
  uint32_t layout_id; /* of a BUFFER or BYTES: the caller's number of its records' layout; 0: none */
  uint32_t reserved;
  wcuda_string shape; /* BUFFER: its dimensions, expressions apart by commas; none: one element. BYTES:
                         its size, a number. Scalar: empty */
  wcuda_string min;   /* of a scalar, the least that may be given: for an integer an expression, for an
                         f32 or f64 a number; empty: no bound */
  wcuda_string max;   /* the most, likewise */
} wcuda_kernel_param;

/* Bits of flags. */
#define WCUDA_KERNEL_NON_DETERMINISTIC (1u << 0) /* equal calls may give other bits */
#define WCUDA_KERNEL_NOT_HERE (1u << 1)          /* listed, but the context's backend cannot run it */

typedef struct wcuda_kernel_descriptor {
  uint32_t struct_size;
  uint32_t flags;     /* WCUDA_KERNEL_NON_DETERMINISTIC or 0 */
  uint32_t kernel_id; /* 0: the registry gives one. 1 and 2 are those of wcuda_registry_add_ready */
  uint32_t budget_ms; /* of a run: told to callers, and how long wcuda_registry_run_wait waits; 0: none */
  wcuda_string name;  /* 1 to 127 bytes without control characters */
  wcuda_kernel kernel; /* what runs, of the registry's context; id 0: WCUDA_KERNEL_NOT_HERE. Kept */
  const wcuda_kernel_param* params;
  uint64_t param_count;
  wcuda_string grid[3];  /* blocks, x y z: expressions; empty: 1 */
  wcuda_string block[3]; /* threads of a block, likewise; x empty: 256 */
  wcuda_string threads;  /* instead of grid x: so many threads in blocks of block x, at least one */
  wcuda_string shared_bytes; /* dynamic, of a block; empty: 0 */
} wcuda_kernel_descriptor;
#define WCUDA_KERNEL_DESCRIPTOR_INIT                                                          \
  {sizeof(wcuda_kernel_descriptor), 0, 0, 0, {NULL, 0}, {0}, NULL, 0,                         \
   {{NULL, 0}, {NULL, 0}, {NULL, 0}}, {{NULL, 0}, {NULL, 0}, {NULL, 0}}, {NULL, 0}, {NULL, 0}}

/* Whether a descriptor is right, its kernel apart. WCUDA_INVALID_ARGUMENT begins with the field:
 * "params[2].shape: …". sig_hash, if not NULL, is FNV-1a of 64 bits over the bytes of its canonical
 * signature: the parameters in order, each followed by ";": a scalar as its type ("i32"), a buffer as
 * "r ", "w " or "rw ", its type and its dimensions ("r f32[$3,4]", in every spelling the same: no
 * spaces, "$3" for the parameter of index 3, each operation in parentheses), then " row" or " col", then
 * " #7" for a layout_id; bytes as "bytes[16]"; bounds as "{0..$4}". Names do not enter it. text, if not
 * NULL, receives that signature, and text_bytes its size; a text_capacity below it is
 * WCUDA_BUFFER_TOO_SMALL. [any thread] */
WCUDA_API wcuda_status wcuda_kernel_descriptor_check(const wcuda_kernel_descriptor* descriptor,
                                                     uint64_t* sig_hash, char* text,
                                                     uint64_t text_capacity, uint64_t* text_bytes,
                                                     wcuda_error* error);

typedef struct wcuda_registry {
  uint64_t id;
} wcuda_registry;

/* A registry without kernels. [any thread] */
WCUDA_API wcuda_status wcuda_registry_create(wcuda_context context, wcuda_registry* registry,
                                             wcuda_error* error);
WCUDA_API void wcuda_registry_destroy(wcuda_registry registry); /* [any thread] */

/* Adds a kernel. One of the same name is replaced, and its number kept if none is given; a number that
 * another has is WCUDA_INVALID_ARGUMENT. kernel_id, if not NULL, receives the number. [any thread] */
WCUDA_API wcuda_status wcuda_registry_add(wcuda_registry registry,
                                          const wcuda_kernel_descriptor* descriptor,
                                          uint32_t* kernel_id, wcuda_error* error);
/* Adds a kernel of the catalogue, for elements of `type`. number 0: the registry gives one. "noop" has 1
 * with sig_hash 0, and "tensor_add" of f32 has 2 with sig_hash 0xA1, as older callers know them.
 * [any thread] */
WCUDA_API wcuda_status wcuda_registry_add_ready(wcuda_registry registry, wcuda_string name,
                                                int32_t type, uint32_t number, uint32_t* kernel_id,
                                                wcuda_error* error);
/* Takes a kernel out; WCUDA_NOT_FOUND. [any thread] */
WCUDA_API wcuda_status wcuda_registry_remove(wcuda_registry registry, uint32_t kernel_id,
                                             wcuda_error* error);

typedef struct wcuda_registered_kernel {
  uint32_t struct_size;
  uint32_t kernel_id;
  uint32_t flags; /* WCUDA_KERNEL_… */
  uint32_t parameter_count;
  uint32_t budget_ms;
  uint32_t name_bytes;
  uint64_t sig_hash;
  char name[128]; /* NUL-terminated */
} wcuda_registered_kernel;
#define WCUDA_REGISTERED_KERNEL_INIT {sizeof(wcuda_registered_kernel), 0, 0, 0, 0, 0, 0, {0}}

/* Writes min(capacity, count) entries by number, ascending, and always the count. Each entry's
 * struct_size is set by the caller. [any thread] */
WCUDA_API wcuda_status wcuda_registry_list(wcuda_registry registry, wcuda_registered_kernel* kernels,
                                           uint64_t capacity, uint64_t* count, wcuda_error* error);
/* The kernel of this name; WCUDA_NOT_FOUND. [any thread] */
WCUDA_API wcuda_status wcuda_registry_find(wcuda_registry registry, wcuda_string name,
                                           wcuda_registered_kernel* kernel, wcuda_error* error);

typedef struct wcuda_run_info {
  uint32_t struct_size;
  uint32_t shared_bytes;
  uint32_t grid[3]; /* of a kernel of the catalogue all 0 */
  uint32_t block[3];
  uint64_t elements;  /* the descriptor's threads; else those of the launch, or the results' elements */
  uint64_t bytes;     /* of all buffers, by their shapes */
  uint32_t budget_ms; /* of the descriptor */
  int32_t is_over_budget; /* by wcuda_registry_run_wait, as time_ns: 1 when it took longer than budget_ms */
  uint64_t time_ns;       /* of the kernel: by the device's events on CUDA, by the clock on HOST; 0: not known,
                             or not done yet */
} wcuda_run_info;
#define WCUDA_RUN_INFO_INIT {sizeof(wcuda_run_info), 0, {0, 0, 0}, {0, 0, 0}, 0, 0, 0, 0, 0}

/* Runs a kernel with the launch that its descriptor says, on a stream (id 0: the context's own), and
 * does not wait, as wcuda_kernel_launch. Before that every argument is held against the descriptor:
 * number, kind, access, extent, bounds. WCUDA_INVALID_ARGUMENT tells index, name and both numbers,
 * WCUDA_INVALID_CONFIG which part of the launch is out of bounds. WCUDA_UNSUPPORTED_KERNEL when it
 * cannot run here. info may be NULL. [any thread; external: each buffer] */
WCUDA_API wcuda_status wcuda_registry_run(wcuda_registry registry, uint32_t kernel_id,
                                          const wcuda_argument* arguments, uint64_t argument_count,
                                          wcuda_stream stream, wcuda_run_info* info,
                                          wcuda_error* error);
/* The same, and waits until it is done, no longer than its budget_ms. WCUDA_TIMEOUT when it took longer: the
 * message has both times, info is written as on success, with is_over_budget 1. A kernel that is still at
 * work then (time_ns 0) is not stopped: what it was given is its own until its stream has passed. [any
 * thread; external: each buffer] */
WCUDA_API wcuda_status wcuda_registry_run_wait(wcuda_registry registry, uint32_t kernel_id,
                                               const wcuda_argument* arguments,
                                               uint64_t argument_count, wcuda_stream stream,
                                               wcuda_run_info* info, wcuda_error* error);
/* The same without running anything: whether it would, and how. [any thread; external: each buffer] */
WCUDA_API wcuda_status wcuda_registry_plan(wcuda_registry registry, uint32_t kernel_id,
                                           const wcuda_argument* arguments, uint64_t argument_count,
                                           wcuda_run_info* info, wcuda_error* error);

#ifdef __cplusplus
}
#endif

#endif /* WORKER_CUDA_H */
