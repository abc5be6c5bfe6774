/* worker_cuda/base.h: devices, contexts, memory, streams, health: what every other header builds on.
 *
 * Sections 1 to 7, 13 to 15 and 17 of the interface; the numbers are those other texts refer to.
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
 *   unwind. A callback that calls a function of this library gets WCUDA_REENTRANT, with two exceptions:
 *   wcuda_cancel_trigger acts at once, and functions that return nothing (…_destroy, _close, _unload) end
 *   the handle when the call that runs the callback returns.
 * fork(). After fork() the library must not be used in the child.
 * Environment variables are read by nothing in this library.
 */
#ifndef WORKER_CUDA_BASE_H
#define WORKER_CUDA_BASE_H

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
#define WCUDA_PURPOSE_BORROWED 7 /* memory of somebody else, see wcuda_buffer_borrow */

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
 * and borrowed memory, which is somebody else's, are not in that sum). [any thread] */
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
WCUDA_API wcuda_status wcuda_context_ledger_list(wcuda_context context, wcuda_ledger_entry* entries,
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
  int32_t purpose; /* 0: WCUDA_PURPOSE_USER; staging and borrowed memory have calls of their own */
  uint64_t bytes;  /* at least 1 */
  wcuda_string tag; /* shown in the ledger, first 63 bytes; may be empty */
  uint32_t flags;   /* WCUDA_BUFFER_… */
  uint32_t reserved;
} wcuda_buffer_options;
#define WCUDA_BUFFER_OPTIONS_INIT {sizeof(wcuda_buffer_options), 0, 0, {NULL, 0}, 0, 0}
#define WCUDA_BUFFER_ZEROED (1u << 0) /* every byte is 0 when wcuda_buffer_create returns */

/* Allocates device memory, aligned to 256 bytes. Without WCUDA_BUFFER_ZEROED its contents are undefined:
 * they may be what an earlier buffer held. WCUDA_OVER_BUDGET or
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
 * before it goes. Zeroing that fails while freeing is a deferred failure. Borrowed memory is never
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
  uint64_t checked_count;     /* live and borrowed allocations; pinned staging is not among them */
  uint64_t nonresident_count;
  uint64_t managed_count;     /* of these, managed */
  wcuda_ledger_entry first;   /* the first that is not resident */
} wcuda_residency;
#define WCUDA_RESIDENCY_INIT {sizeof(wcuda_residency), 0, 0, 0, 0, {0, 0, 0, 0, {0}}}

/* Asks the driver of every live or borrowed allocation whether it is memory of this context's device,
 * without a host address. A finding is no failure of this call; it is told to the log as an error.
 * On HOST the backend's own blocks count as the device's. [any thread] */
WCUDA_API wcuda_status wcuda_context_residency_get(wcuda_context context,
                                                   wcuda_residency* residency, wcuda_error* error);

/* Enforces the rule that all memory is the device's own: checks the device (as wcuda_device_check) and
 * every allocation. WCUDA_NOT_RESIDENT names the first that breaks the rule. From a success on
 * wcuda_buffer_borrow refuses such memory with WCUDA_NOT_RESIDENT. [any thread] */
WCUDA_API wcuda_status wcuda_context_vram_only_enforce(wcuda_context context, wcuda_error* error);
/* 1 when the last enforcement succeeded and no check has found a breach since. [any thread] */
WCUDA_API wcuda_status wcuda_context_vram_only_get(wcuda_context context, int32_t* is_enforced,
                                                   wcuda_error* error);

/* Puts memory of somebody else into the ledger, as a buffer of purpose WCUDA_PURPOSE_BORROWED that is
 * never freed by the library: the caller keeps options->bytes bytes at `address` valid until the
 * buffer is destroyed, which waits for the work that uses it. It counts against no budget.
 * options->purpose is 0. The memory should be the context's device's own; whether it is shows in
 * wcuda_context_residency_get. [any thread] */
WCUDA_API wcuda_status wcuda_buffer_borrow(wcuda_context context, void* address,
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
WCUDA_API wcuda_status wcuda_stream_borrow(wcuda_context context, void* native,
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

#ifdef __cplusplus
}
#endif

#endif /* WORKER_CUDA_BASE_H */
