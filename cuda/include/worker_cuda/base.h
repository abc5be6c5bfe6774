/* worker_cuda/base.h: devices, contexts, device memory, streams and health. Every other header of the
 * interface builds on this one.
 *
 * Sections 1 to 7, 13 to 15 and 17 of the interface. Section numbers run through all four headers and are
 * cited by other texts.
 *
 * EXAMPLE: copy four numbers to a device and back.
 *
 *   wcuda_error error;
 *   wcuda_context context = {0};
 *   wcuda_buffer buffer = {0};
 *   const float numbers[4] = {1, 2, 3, 4};
 *   float result[4];
 *   wcuda_context_options options = WCUDA_CONTEXT_OPTIONS_INIT;
 *   wcuda_buffer_options size = WCUDA_BUFFER_OPTIONS_INIT;
 *   size.bytes = sizeof(numbers);
 *   if (wcuda_context_create(&options, &context, &error) != WCUDA_OK ||
 *       wcuda_buffer_create(context, &size, &buffer, &error) != WCUDA_OK ||
 *       wcuda_buffer_write(buffer, 0, numbers, sizeof(numbers), &error) != WCUDA_OK ||
 *       wcuda_buffer_read(buffer, 0, result, sizeof(result), &error) != WCUDA_OK)
 *     return report(error.message);
 *   wcuda_buffer_destroy(buffer);
 *   wcuda_context_destroy(context);
 *
 * CONVENTIONS
 *
 * Status. A function that can fail returns a wcuda_status: WCUDA_OK (0) or one of the codes of section 1.
 *   Its last parameter is a wcuda_error*, which may be NULL. A failure fills it with the code, the native
 *   code of the driver or of errno where there is one, and a message of one line. A success leaves it
 *   unchanged. Codes are never reused; later versions may add codes: treat an unknown code as a failure.
 *   The library never aborts, exits, throws or prints.
 * Outputs come last and are written only on success. A failed call changes nothing and owns nothing.
 * Handles are one-member structs around a 64-bit id; id 0 means "none". A handle of another kind, a
 *   destroyed handle and a made-up one return WCUDA_INVALID_HANDLE. An object keeps the objects it was
 *   created from alive, so handles may be released in any order.
 * Verbs. wcuda_x_create is undone by wcuda_x_destroy, _open by _close and _load by _unload; these three
 *   accept id 0, return nothing and never fail. A _get function never creates anything. A _borrow function
 *   creates an object over a resource that the caller keeps.
 * Structs that can grow begin with struct_size; initialise them with their ..._INIT macro, elements of
 *   arrays included. The default of a field is zero unless its comment states another. A caller compiled
 *   against an older header passes a smaller struct_size and is served. A caller compiled against a newer
 *   header is served as long as every byte this library does not know is zero; otherwise it gets
 *   WCUDA_UNSUPPORTED.
 *   Arrays: the struct_size of the first element is the stride of the array. All elements have the same
 *   struct_size. In an array that the library fills, the caller sets only that of the first element.
 * Lists. A wcuda_..._list function copies at most `capacity` elements of a list, beginning with index
 *   `first`, and always sets *count to the number of elements in the whole list. With capacity 0 the array
 *   may be NULL. A `first` past the end of the list returns WCUDA_OUT_OF_RANGE.
 * Flags: an unknown bit is refused. Booleans are int32_t, 0 or 1. Text is UTF-8 with a length and needs no
 *   final NUL; paths are bytes as the operating system has them.
 * Ownership. Pointers passed in are borrowed until the call returns, unless the function says otherwise.
 * Threads. Each function states one of:
 *     [any thread]  may run concurrently with every other call.
 *     [external: X] calls on the same X, or on an object created from it, must not overlap; an overlapping
 *                   call returns WCUDA_BUSY and does nothing.
 *   Callbacks run on the thread and at the time stated, and must not unwind. A callback that calls a
 *   function of this library gets WCUDA_REENTRANT, with two exceptions: wcuda_cancel_trigger acts at once,
 *   and _destroy, _close and _unload release the handle when the call that runs the callback returns.
 * fork(). The library must not be used in the child of a fork().
 * Environment variables: the library reads none.
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
/* Caller errors: fix the call. */
#define WCUDA_INVALID_ARGUMENT 1001   /* an argument is NULL, zero, negative or inconsistent */
#define WCUDA_INVALID_HANDLE 1002     /* made up, of another kind, or destroyed */
#define WCUDA_INVALID_STATE 1003      /* legal, but not now (wait for an earlier ticket first, ...) */
#define WCUDA_OUT_OF_RANGE 1004       /* an offset, index or token id past the end */
#define WCUDA_BUFFER_TOO_SMALL 1005   /* the caller's buffer; the message has the required size */
#define WCUDA_REENTRANT 1006          /* called from inside one of the library's callbacks */
#define WCUDA_BUSY 1007               /* another thread is using this object */
#define WCUDA_ABI_MISMATCH 1008       /* header and archive have different ABI numbers */
#define WCUDA_NOT_FOUND 1009          /* no such key, tensor or entry */
#define WCUDA_INVALID_CONFIG 1010     /* grid, block, cluster or shared memory of a launch */
#define WCUDA_ARGUMENT_COUNT 1011     /* the kernel takes another number of arguments */
/* Machine and build. */
#define WCUDA_NOT_AVAILABLE 2001      /* not part of this build; the message names the part */
#define WCUDA_NO_DEVICE 2002          /* no driver, driver too old, or no such ordinal */
#define WCUDA_IO 2003                 /* the operating system or a read callback failed */
#define WCUDA_CANCELLED 2004          /* the caller cancelled the operation */
#define WCUDA_TIMEOUT 2005            /* the time limit has passed; nothing was changed */
/* Resources: nothing was lost, and the object of the call stays usable. */
#define WCUDA_OUT_OF_MEMORY 3001      /* device memory */
#define WCUDA_OUT_OF_HOST_MEMORY 3002 /* host memory */
#define WCUDA_OVER_BUDGET 3003        /* the allocation would exceed a memory budget */
#define WCUDA_QUEUE_FULL 3004         /* two steps are in flight */
#define WCUDA_OUT_OF_PAGES 3005       /* too few free KV pages */
#define WCUDA_LIMIT_EXCEEDED 3006     /* a limit of the engine (rows, tokens, sequences, length) */
/* Foreign data. */
#define WCUDA_MALFORMED 4001          /* not a well-formed GGUF file */
#define WCUDA_UNSUPPORTED 4002        /* well-formed, but this version cannot use it */
#define WCUDA_INTEGRITY 4003          /* bytes differ from their digest */
#define WCUDA_COMPILE_FAILED 4010     /* the compiler rejected a kernel; its log has the diagnostics */
#define WCUDA_UNSUPPORTED_KERNEL 4011 /* the kernel has no code for this backend */
/* Device. */
#define WCUDA_DEVICE_ERROR 5001       /* a driver call failed; see native_code */
#define WCUDA_DEVICE_LOST 5002        /* a fault ended the device's context; only releasing is legal */
#define WCUDA_NOT_RESIDENT 5003       /* memory that must be device memory is not */
#define WCUDA_LAUNCH_FAILED 5010      /* a kernel was not started; nothing of it ran */
/* Library. */
#define WCUDA_INTERNAL 9001           /* a bug in this library; please report the message */

/* Capacity of an error message, including its final NUL. */
#define WCUDA_ERROR_MESSAGE_BYTES 500

/* Filled by a failed call. This layout is frozen: it has no size field and never grows. */
typedef struct wcuda_error {
  wcuda_status code;
  int32_t native_code;    /* cudaError_t, errno, ... or 0 */
  uint32_t message_bytes; /* length of message without its NUL */
  char message[WCUDA_ERROR_MESSAGE_BYTES]; /* UTF-8, NUL-terminated, cut between characters */
} wcuda_error;

/* Returns the name of a status code ("WCUDA_OUT_OF_MEMORY"), or "WCUDA_UNKNOWN". Static text.
 * [any thread] */
WCUDA_API const char* wcuda_status_name(wcuda_status status);

/* Code lists of older interfaces. Their names for a status: wcuda_backend_error_name (section 21). */
#define WCUDA_NUMBERS_WORKER 1 /* cuda_*: CUDA_SUCCESS 0 to 8, CUDA_ERROR_UNKNOWN 99 */
#define WCUDA_NUMBERS_VRAM 2   /* vram_*: VRAM_SUCCESS 0 to VRAM_ERROR_DRIVER 4 */
#define WCUDA_NUMBERS_ZCTL 3   /* status of a response of the control protocol ZCTL/1: OK 0, ERR_MALFORMED 1,
                                  ERR_UNSUPPORTED 2, ERR_DENIED 3, ERR_TIMEOUT 4, ERR_NO_MEM 5, ERR_BACKEND 6,
                                  ERR_BAD_ARGS 7 */
/* Translates a status into one of these lists. Every status has a number in each, unknown ones included.
 * Returns -1 when `numbers` names no list. [any thread] */
WCUDA_API int32_t wcuda_status_number(wcuda_status status, int32_t numbers);

/* Text that is borrowed: from the caller for the duration of a call, or from an object as long as its
 * handle is valid. Not NUL-terminated. This layout is frozen. */
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

/* Returns major * 10000 + minor * 100 + patch of the archive. [any thread] */
WCUDA_API uint32_t wcuda_version_number(void);
/* Returns "major.minor.patch" of the archive. Static text. [any thread] */
WCUDA_API const char* wcuda_version_string(void);
/* Returns the ABI number of the archive; compare it with WCUDA_ABI_VERSION. [any thread] */
WCUDA_API uint32_t wcuda_abi_version(void);

typedef struct wcuda_build_info {
  uint32_t struct_size;
  int32_t has_cuda;               /* 1: built with CUDA */
  uint32_t cuda_version;          /* toolkit, major * 1000 + minor * 10; 0 without CUDA */
  uint32_t reserved;
  const char* cuda_architectures; /* "90a;100"; "" without CUDA. Static text, as all below */
  const char* compiler;           /* "GNU 12.2.0" */
  const char* build_type;         /* "Release" */
  const char* host_features;      /* SIMD variants compiled in: "avx2;avx512;avx512_bf16" */
} wcuda_build_info;
#define WCUDA_BUILD_INFO_INIT {sizeof(wcuda_build_info), 0, 0, 0, NULL, NULL, NULL, NULL}

/* Reports how the archive was built. [any thread] */
WCUDA_API wcuda_status wcuda_build_info_get(wcuda_build_info* info, wcuda_error* error);

/* One field of one public struct, for tests of bindings. */
typedef struct wcuda_abi_field {
  uint32_t struct_size;
  uint32_t offset;
  uint32_t bytes;          /* of the field, or of the struct */
  uint32_t alignment;      /* likewise */
  const char* struct_name; /* static text */
  const char* field_name;  /* "" on the row for the struct as a whole */
} wcuda_abi_field;
#define WCUDA_ABI_FIELD_INIT {sizeof(wcuda_abi_field), 0, 0, 0, NULL, NULL}

/* Lists the layout of every public struct as the archive was compiled. [any thread] */
WCUDA_API wcuda_status wcuda_abi_field_list(uint64_t first, wcuda_abi_field* fields,
                                            uint64_t capacity, uint64_t* count, wcuda_error* error);

/* ------------------------------------------------------------------------------------------------
 * 3. Log
 */

#define WCUDA_LOG_ERROR 1
#define WCUDA_LOG_WARN 2
#define WCUDA_LOG_INFO 3
#define WCUDA_LOG_DEBUG 4
#define WCUDA_LOG_TRACE 5

/* Receives one complete record without a final newline. `target` names the part of the library ("model",
 * "vram"). Runs on whichever thread logs, possibly on several at once. Must not call this library. */
typedef void (*wcuda_log_callback)(void* user, int32_t level, wcuda_string target,
                                   wcuda_string message);

/* Installs the log sink of the process for records of `level` or more severe; a NULL callback removes it.
 * When the call returns, the previous sink is not running and will not run again. [any thread] */
WCUDA_API wcuda_status wcuda_log_set(wcuda_log_callback callback, void* user, int32_t level,
                                     wcuda_error* error);

/* ------------------------------------------------------------------------------------------------
 * 4. Devices
 */

#define WCUDA_BACKEND_AUTO 0 /* CUDA where there is a device, else HOST: see wcuda_context_create */
#define WCUDA_BACKEND_CUDA 1
#define WCUDA_BACKEND_HOST 2 /* computes on the CPU. Section 21 has more types */

/* Capabilities of a device. Sizes are in bytes, clocks in kHz. On HOST the threads of the process count as
 * multiprocessors, and fields without a meaning there are 0. */
typedef struct wcuda_device_caps {
  uint32_t struct_size;
  int32_t backend; /* WCUDA_BACKEND_CUDA, _HOST, or a registered type */
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
  uint64_t memory_bandwidth; /* bytes a second: 2 * clock * bus width / 8 */
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
  int32_t unified_memory; /* host and device share memory: managed, or an integrated device */
  int32_t supports_atomics;
  /* The next five describe devices of other kinds. CUDA and HOST always report 0; a registered backend
   * (section 21) may set them. */
  int32_t supports_mesh_shaders;
  int32_t supports_ray_tracing;
  int32_t has_neural_engine;
  int32_t supports_mps;
  int32_t metal_gpu_family;
  uint32_t reserved;
  uint32_t architecture_name_bytes;
  char architecture_name[64]; /* "sm_90a"; the CPU's on HOST. NUL-terminated */
} wcuda_device_caps;
#define WCUDA_DEVICE_CAPS_INIT \
  {sizeof(wcuda_device_caps), 0, 0, 0, {0}, {0}, {0}, 0, 0, 0, 0, 0, 0, 0, 0, 0, {0}, {0}, 0, 0, 0, 0, 0, \
   0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, {0}}

/* Counts the usable devices of a backend type; HOST has one. CUDA without a device returns WCUDA_NO_DEVICE
 * or WCUDA_NOT_AVAILABLE with the reason ("no CUDA device: driver 12.4, needs 13.0") instead of a count of
 * 0. Ordinals number the usable devices in CUDA's order. Creates no CUDA context. [any thread] */
WCUDA_API wcuda_status wcuda_device_count(int32_t backend, int32_t* count, wcuda_error* error);

/* Reports the capabilities of one device. [any thread] */
WCUDA_API wcuda_status wcuda_device_caps_get(int32_t backend, int32_t ordinal,
                                             wcuda_device_caps* caps, wcuda_error* error);

/* ------------------------------------------------------------------------------------------------
 * 5. Context: one device, with all its memory accounted for
 */

typedef struct wcuda_context {
  uint64_t id;
} wcuda_context;

typedef struct wcuda_context_options {
  uint32_t struct_size;
  uint32_t abi_version;       /* WCUDA_ABI_VERSION; another number returns WCUDA_ABI_MISMATCH */
  int32_t backend;            /* WCUDA_BACKEND_... */
  int32_t ordinal;
  uint64_t flags;             /* none defined: 0 */
  uint64_t memory_budget;     /* most bytes this context may hold; 0: no budget. HOST also reports it as its
                                 capacity; with 0 the capacity is the memory of the machine */
  uint32_t host_thread_count; /* compute threads of HOST; 0: the processors this process may use
                                 (affinity and cgroup quota) */
  int32_t scrub;              /* WCUDA_SCRUB_..., see section 14 */
} wcuda_context_options;
#define WCUDA_CONTEXT_OPTIONS_INIT {sizeof(wcuda_context_options), WCUDA_ABI_VERSION, 0, 0, 0, 0, 0, 0}

/* Opens a device. CUDA uses the device's primary context and restores the caller's current device before
 * it returns, as every call does. AUTO opens HOST only where CUDA has no usable device: not built in, no
 * driver, a driver that is too old, or no device; wcuda_context_info_get reports the reason. A device that
 * is there and cannot be opened is an error. No other call falls back. [any thread] */
WCUDA_API wcuda_status wcuda_context_create(const wcuda_context_options* options,
                                            wcuda_context* context, wcuda_error* error);
/* Releases the handle. The device is closed when no object created from it remains. Allocations that are
 * still live are logged as warnings: a leak report. [any thread] */
WCUDA_API void wcuda_context_destroy(wcuda_context context);

typedef struct wcuda_context_info {
  uint32_t struct_size;
  int32_t backend; /* the type in use, never AUTO */
  int32_t ordinal;
  uint32_t host_thread_count; /* 0 on CUDA */
  char fallback_reason[256];  /* AUTO: why not CUDA, NUL-terminated; else "" */
} wcuda_context_info;
#define WCUDA_CONTEXT_INFO_INIT {sizeof(wcuda_context_info), 0, 0, 0, {0}}
/* Reports what the context runs on. [any thread] */
WCUDA_API wcuda_status wcuda_context_info_get(wcuda_context context, wcuda_context_info* info,
                                              wcuda_error* error);

/* Waits until all work queued in this context has finished. [any thread] */
WCUDA_API wcuda_status wcuda_context_synchronize(wcuda_context context, wcuda_error* error);

/* ------------------------------------------------------------------------------------------------
 * 6. Ledger: who holds which bytes
 */

#define WCUDA_PURPOSE_ANY 0 /* in queries only */
#define WCUDA_PURPOSE_WEIGHTS 1
#define WCUDA_PURPOSE_KV 2
#define WCUDA_PURPOSE_SCRATCH 3
#define WCUDA_PURPOSE_MODULE 4
#define WCUDA_PURPOSE_STAGING 5  /* pinned host memory */
#define WCUDA_PURPOSE_USER 6
#define WCUDA_PURPOSE_BORROWED 7 /* memory of the caller, see wcuda_buffer_borrow */

typedef struct wcuda_memory_info {
  uint32_t struct_size;
  int32_t purpose;                 /* as passed in */
  uint64_t current_bytes;          /* held now for this purpose */
  uint64_t peak_bytes;
  uint64_t allocation_count;       /* live allocations */
  uint64_t total_allocation_count; /* since the context was created */
  uint64_t budget_bytes;           /* of the context; 0: none */
  uint64_t device_free_bytes;      /* as the driver reports; HOST: capacity minus what is held */
  uint64_t device_total_bytes;
  uint64_t purpose_budget_bytes;   /* of this purpose, see wcuda_context_budget_set; 0: none */
} wcuda_memory_info;
#define WCUDA_MEMORY_INFO_INIT {sizeof(wcuda_memory_info), 0, 0, 0, 0, 0, 0, 0, 0, 0}

/* Sums the ledger for one purpose or for all. WCUDA_PURPOSE_ANY leaves out staging, which is host memory,
 * and borrowed memory, which belongs to the caller. [any thread] */
WCUDA_API wcuda_status wcuda_context_memory_get(wcuda_context context, int32_t purpose,
                                                wcuda_memory_info* info, wcuda_error* error);

typedef struct wcuda_ledger_entry {
  uint32_t struct_size;
  int32_t purpose;
  uint64_t bytes;
  uint64_t sequence_number; /* 1 for the context's first allocation */
  uint32_t tag_bytes;
  uint32_t reserved;
  char tag[64]; /* NUL-terminated, cut to fit */
} wcuda_ledger_entry;
#define WCUDA_LEDGER_ENTRY_INIT {sizeof(wcuda_ledger_entry), 0, 0, 0, 0, 0, {0}}

/* Lists the live allocations, oldest first. Those listed just before the context is destroyed are leaks.
 * [any thread] */
WCUDA_API wcuda_status wcuda_context_ledger_list(wcuda_context context, uint64_t first,
                                                 wcuda_ledger_entry* entries, uint64_t capacity,
                                                 uint64_t* count, wcuda_error* error);

/* ------------------------------------------------------------------------------------------------
 * 7. Buffers: bounds-checked device memory
 */

typedef struct wcuda_buffer {
  uint64_t id;
} wcuda_buffer;

typedef struct wcuda_buffer_options {
  uint32_t struct_size;
  int32_t purpose;  /* 0: WCUDA_PURPOSE_USER. STAGING and BORROWED have functions of their own */
  uint64_t bytes;   /* at least 1 */
  wcuda_string tag; /* shown in the ledger, first 63 bytes; may be empty */
  uint32_t flags;   /* WCUDA_BUFFER_... */
  uint32_t reserved;
} wcuda_buffer_options;
#define WCUDA_BUFFER_OPTIONS_INIT {sizeof(wcuda_buffer_options), 0, 0, {NULL, 0}, 0, 0}

#define WCUDA_BUFFER_ZEROED (1u << 0) /* every byte is 0 when wcuda_buffer_create returns */

/* Allocates device memory, aligned to 256 bytes. Without WCUDA_BUFFER_ZEROED its contents are undefined:
 * they may be those of an earlier buffer. WCUDA_OVER_BUDGET and WCUDA_OUT_OF_MEMORY report the bytes needed,
 * the budget, the bytes used and the bytes free. [any thread] */
WCUDA_API wcuda_status wcuda_buffer_create(wcuda_context context,
                                           const wcuda_buffer_options* options,
                                           wcuda_buffer* buffer, wcuda_error* error);
/* Frees the buffer after the work that uses it. [any thread] */
WCUDA_API void wcuda_buffer_destroy(wcuda_buffer buffer);
/* Reports the size in bytes, as requested. [any thread] */
WCUDA_API wcuda_status wcuda_buffer_size_get(wcuda_buffer buffer, uint64_t* bytes,
                                             wcuda_error* error);
/* Copies from the caller's memory and waits. A range past the end returns WCUDA_OUT_OF_RANGE with the
 * numbers; bytes 0 is legal and does nothing. [external: buffer] */
WCUDA_API wcuda_status wcuda_buffer_write(wcuda_buffer buffer, uint64_t offset, const void* source,
                                          uint64_t bytes, wcuda_error* error);
/* Copies to the caller's memory and waits, with the same checks. [external: buffer] */
WCUDA_API wcuda_status wcuda_buffer_read(wcuda_buffer buffer, uint64_t offset, void* target,
                                         uint64_t bytes, wcuda_error* error);
/* Copies between two buffers of one context, or within one buffer where the ranges do not overlap, and
 * waits. [external: both buffers] */
WCUDA_API wcuda_status wcuda_buffer_copy(wcuda_buffer target, uint64_t target_offset,
                                         wcuda_buffer source, uint64_t source_offset,
                                         uint64_t bytes, wcuda_error* error);
/* Fills a range with copies of the lowest 1, 2, 4 or 8 bytes (pattern_bytes) of `pattern`, little-endian, and
 * waits. * offset and bytes are multiples of pattern_bytes. [external: buffer] */
WCUDA_API wcuda_status wcuda_buffer_fill(wcuda_buffer buffer, uint64_t offset, uint64_t bytes,
                                         uint64_t pattern, uint32_t pattern_bytes,
                                         wcuda_error* error);
/* Computes the BLAKE3 digest (32 bytes) of a range on the device. [external: buffer] */
WCUDA_API wcuda_status wcuda_buffer_digest(wcuda_buffer buffer, uint64_t offset, uint64_t bytes,
                                           uint8_t digest[32], wcuda_error* error);

typedef struct wcuda_pinned {
  uint64_t id;
} wcuda_pinned;

/* Allocates zeroed, page-locked host memory for fast copies, accounted as WCUDA_PURPOSE_STAGING. On HOST
 * it is ordinary memory, aligned to 4096 bytes. [any thread] */
WCUDA_API wcuda_status wcuda_pinned_create(wcuda_context context, uint64_t bytes,
                                           wcuda_pinned* pinned, wcuda_error* error);
/* Frees it after the copies that use it. [any thread] */
WCUDA_API void wcuda_pinned_destroy(wcuda_pinned pinned);
/* Reports address and size; the address is valid until the handle is destroyed. [any thread] */
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
  int32_t state;                 /* WCUDA_HEALTH_... */
  int32_t sticky_code;           /* the driver's code of the fault that lost the device; else 0 */
  int32_t temperature_celsius;   /* -1: unknown */
  int64_t ecc_error_count;       /* uncorrected, volatile; -1: unknown */
  uint64_t ledger_bytes;         /* device memory held by this context */
  uint64_t peak_bytes;
  uint64_t staging_bytes;
  uint64_t allocation_count;
  uint64_t device_free_bytes;
  uint64_t device_total_bytes;
  uint64_t nonresident_count;    /* allocations that are not device memory */
  uint64_t deferred_error_count; /* failures with no caller to report to, as in a destroy */
  uint64_t duration_ns;          /* of this report */
  uint64_t pool_used_bytes;      /* device memory that the driver says this context uses, without modules.
                                    If it is less than the ledger's total, modules excluded, the state is
                                    degraded */
  uint64_t pool_reserved_bytes;  /* the same plus freed memory kept for reuse */
  uint64_t lost_bytes;           /* of allocations that were live when the device was lost: closed in the
                                    ledger, not returned to the driver */
  uint64_t lost_count;
  char message[256];             /* NUL-terminated; "" when OK */
} wcuda_health;
#define WCUDA_HEALTH_INIT {sizeof(wcuda_health), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, {0}}

/* Reports on the context's device. Queries the driver; takes under 10 ms, also while steps are in flight.
 * Legal on a lost device. [any thread] */
WCUDA_API wcuda_status wcuda_health_get(wcuda_context context, wcuda_health* health,
                                        wcuda_error* error);

/* ------------------------------------------------------------------------------------------------
 * 14. Resident memory: budgets by purpose, scrubbing, proof of residency, raw addresses
 */

/* Values of wcuda_context_options.scrub. The library zeroes device memory on the device; without scrubbing
 * the contents of new buffers are undefined. Pinned memory is always zeroed when allocated and, by ON_FREE,
 * before it is freed. A failure while scrubbing a freed block is a deferred failure. Borrowed memory is
 * never scrubbed. */
#define WCUDA_SCRUB_NONE 0
#define WCUDA_SCRUB_ON_FREE 1  /* before a block is freed, after the work that uses it */
#define WCUDA_SCRUB_ON_ALLOC 2 /* before a block is handed out: buffers start as zeros */

/* Sets the most bytes that one purpose may hold, in addition to the context's budget; 0: none. The budget
 * is checked before the driver is called: WCUDA_OVER_BUDGET reports the bytes needed, the budget, the bytes
 * used and free. What is already held stays, even above a new budget. `purpose` is one of
 * WCUDA_PURPOSE_WEIGHTS to WCUDA_PURPOSE_USER. [any thread] */
WCUDA_API wcuda_status wcuda_context_budget_set(wcuda_context context, int32_t purpose,
                                                uint64_t bytes, wcuda_error* error);

/* Checks that a device meets the requirements for resident memory: on CUDA, compute capability 8.0 and
 * 1 GiB of memory. wcuda_context_create checks the same. WCUDA_UNSUPPORTED names what is missing. HOST has
 * no requirements. [any thread] */
WCUDA_API wcuda_status wcuda_device_check(int32_t backend, int32_t ordinal, wcuda_error* error);

/* Where an address is. */
#define WCUDA_PLACE_DEVICE 1       /* memory of the context's device and nothing else */
#define WCUDA_PLACE_OTHER_DEVICE 2
#define WCUDA_PLACE_MANAGED 3      /* migrates between host and device */
#define WCUDA_PLACE_PINNED 4       /* page-locked host memory */
#define WCUDA_PLACE_MAPPED 5       /* page-locked host memory that devices access in place, or device memory
                                      with a host address */
#define WCUDA_PLACE_HOST 6         /* host memory that the driver does not know */

typedef struct wcuda_residency {
  uint32_t struct_size;
  int32_t first_place;           /* WCUDA_PLACE_... of the first allocation that is not resident; 0: none */
  uint64_t checked_count;        /* live and borrowed allocations; pinned staging is not among them */
  uint64_t nonresident_count;
  uint64_t managed_count;        /* managed ones among nonresident_count */
  uint64_t first_bytes;          /* this and the next fields: ledger entry of the first nonresident one */
  uint64_t first_sequence_number;
  int32_t first_purpose;
  uint32_t first_tag_bytes;
  char first_tag[64];            /* NUL-terminated */
} wcuda_residency;
#define WCUDA_RESIDENCY_INIT {sizeof(wcuda_residency), 0, 0, 0, 0, 0, 0, 0, 0, {0}}

/* Checks with the driver that every live or borrowed allocation is memory of this context's device and has
 * no host address. Other allocations are reported here and logged as errors; the call itself succeeds. On
 * HOST the backend's own blocks count as device memory. [any thread] */
WCUDA_API wcuda_status wcuda_context_residency_get(wcuda_context context,
                                                   wcuda_residency* residency, wcuda_error* error);

/* Enforces that all memory is device memory: checks the device (as wcuda_device_check) and every
 * allocation. WCUDA_NOT_RESIDENT names the first violation. After a success wcuda_buffer_borrow refuses
 * other memory with WCUDA_NOT_RESIDENT. [any thread] */
WCUDA_API wcuda_status wcuda_context_vram_only_enforce(wcuda_context context, wcuda_error* error);
/* Reports 1 when the last enforcement succeeded and no check has found a violation since. [any thread] */
WCUDA_API wcuda_status wcuda_context_vram_only_get(wcuda_context context, int32_t* is_enforced,
                                                   wcuda_error* error);

/* Creates a buffer of purpose WCUDA_PURPOSE_BORROWED over memory of the caller, who keeps options->bytes
 * bytes at `address` valid until the buffer is destroyed; destroying waits for the work that uses it. The
 * library never frees the memory and counts it against no budget. options->purpose is 0. The memory should
 * be device memory of the context's device; wcuda_context_residency_get reports whether it is. HOST cannot
 * check the size: a wrong one is undefined behaviour. [any thread] */
WCUDA_API wcuda_status wcuda_buffer_borrow(wcuda_context context, void* address,
                                           const wcuda_buffer_options* options,
                                           wcuda_buffer* buffer, wcuda_error* error);
/* Reports where this buffer is: one WCUDA_PLACE_.... [any thread] */
WCUDA_API wcuda_status wcuda_buffer_place_get(wcuda_buffer buffer, int32_t* place,
                                              wcuda_error* error);
/* Reports the device address, for calls of other libraries; valid until the buffer is destroyed. Accesses
 * through it are neither checked nor waited for. [any thread] */
WCUDA_API wcuda_status wcuda_buffer_address_get(wcuda_buffer buffer, void** address,
                                                wcuda_error* error);

/* Takes the oldest deferred failure: a failure with no caller to report to, as in a destroy. `deferred`
 * receives its code and message, or code WCUDA_OK when none is left. The library keeps sixteen; health
 * counts all. [any thread] */
WCUDA_API wcuda_status wcuda_context_deferred_error_take(wcuda_context context,
                                                         wcuda_error* deferred,
                                                         wcuda_error* error);

/* Raw device memory, for programs that work with addresses.
 *
 * The process keeps a table of every block allocated here and checks addresses against it: an address in
 * no live block returns WCUDA_INVALID_ARGUMENT, a range past the end of its block WCUDA_OUT_OF_RANGE.
 * Copies accept addresses inside a block. Each thread has a current device of each backend, initially 0,
 * which only wcuda_raw_allocate and wcuda_raw_memory_get use: copies and frees use the device of the
 * block. The first call that needs a device opens it; it stays open until wcuda_raw_reset. `backend` is
 * WCUDA_BACKEND_CUDA or WCUDA_BACKEND_HOST.
 */

/* Makes a device current for the calling thread. An ordinal without a device returns
 * WCUDA_INVALID_ARGUMENT. [any thread] */
WCUDA_API wcuda_status wcuda_raw_device_set(int32_t backend, int32_t ordinal, wcuda_error* error);
/* Allocates at least 1 byte on the thread's device, aligned to 256, contents undefined. Only the memory of
 * the device limits the size. [any thread] */
WCUDA_API wcuda_status wcuda_raw_allocate(int32_t backend, uint64_t bytes, void** address,
                                          wcuda_error* error);
/* Frees a block by its first address. NULL does nothing. [any thread] */
WCUDA_API wcuda_status wcuda_raw_free(void* address, wcuda_error* error);
/* Copies from the caller's memory into a block, and waits; bytes 0 does nothing. [any thread] */
WCUDA_API wcuda_status wcuda_raw_copy_to_device(void* target, const void* source, uint64_t bytes,
                                                wcuda_error* error);
/* Copies from a block into the caller's memory, and waits; bytes 0 does nothing. [any thread] */
WCUDA_API wcuda_status wcuda_raw_copy_to_host(void* target, const void* source, uint64_t bytes,
                                              wcuda_error* error);
/* Reports free and total memory of the thread's device. [any thread] */
WCUDA_API wcuda_status wcuda_raw_memory_get(int32_t backend, uint64_t* free_bytes,
                                            uint64_t* total_bytes, wcuda_error* error);
/* Frees all blocks of a backend and closes its devices. [any thread] */
WCUDA_API wcuda_status wcuda_raw_reset(int32_t backend, wcuda_error* error);

/* ------------------------------------------------------------------------------------------------
 * 15. Digests by the MiB: find the part of memory that changed
 *
 * BLAKE3 is a tree. The chaining value of each MiB of an input is one of its nodes: a change shows in
 * exactly the chaining values of the MiBs it touches. The chaining values of all MiBs yield the digest.
 */

#define WCUDA_DIGEST_PIECE_BYTES ((uint64_t)1 << 20)

/* Computes on the device the chaining value, 32 bytes, of each MiB of a range; the last MiB may be
 * incomplete. That makes ceil(bytes / WCUDA_DIGEST_PIECE_BYTES) values; a smaller `piece_capacity` returns
 * WCUDA_BUFFER_TOO_SMALL with the number needed. first_piece is the index that the first MiB of the range
 * has in the whole input, if the range is a part of one; else 0. bytes is at least 1. [external: buffer] */
WCUDA_API wcuda_status wcuda_buffer_digest_pieces(wcuda_buffer buffer, uint64_t offset,
                                                  uint64_t bytes, uint64_t first_piece,
                                                  uint8_t* pieces, uint64_t piece_capacity,
                                                  wcuda_error* error);
/* Computes the BLAKE3 digest of an input from the chaining values of all its pieces, at least two. Fewer
 * return WCUDA_INVALID_ARGUMENT: the digest of a single piece does not follow from its chaining value.
 * [any thread] */
WCUDA_API wcuda_status wcuda_digest_join(const uint8_t* pieces, uint64_t piece_count,
                                         uint8_t digest[32], wcuda_error* error);

/* ------------------------------------------------------------------------------------------------
 * 17. Streams, events, asynchronous copies
 *
 * Work on one stream runs in order; work on two streams is ordered only by events. A context has a stream
 * of its own, id 0, which all calls without a stream parameter use. On HOST all work is finished when a
 * call returns.
 */

typedef struct wcuda_stream {
  uint64_t id;
} wcuda_stream;

/* Creates a stream. priority 0: ordinary; -1: high, its kernels are scheduled first. Other values return
 * WCUDA_INVALID_ARGUMENT. [any thread] */
WCUDA_API wcuda_status wcuda_stream_create(wcuda_context context, int32_t priority,
                                           wcuda_stream* stream, wcuda_error* error);
/* Waits for the stream's work, then destroys it. [any thread] */
WCUDA_API void wcuda_stream_destroy(wcuda_stream stream);
/* Waits for all work queued on the stream. [any thread] */
WCUDA_API wcuda_status wcuda_stream_synchronize(wcuda_stream stream, wcuda_error* error);
/* Reports the driver's own object (a cudaStream_t) of a stream of the context (id 0: the context's own),
 * for calls of other libraries; valid until the stream is destroyed. WCUDA_UNSUPPORTED on HOST.
 * [any thread] */
WCUDA_API wcuda_status wcuda_stream_native_get(wcuda_context context, wcuda_stream stream,
                                               void** native, wcuda_error* error);
/* Creates a handle for a stream that the caller created in the CUDA primary context of this device; the
 * driver's default stream (NULL) is refused. The caller keeps the stream until the handle is destroyed;
 * destroying waits for the stream's work and does not destroy the stream. WCUDA_UNSUPPORTED on HOST. [any
 * thread] */
WCUDA_API wcuda_status wcuda_stream_borrow(wcuda_context context, void* native,
                                           wcuda_stream* stream, wcuda_error* error);

typedef struct wcuda_event {
  uint64_t id;
} wcuda_event;

/* Creates an event: a point in a stream's work, with its time. An event that was never recorded counts as
 * done. [any thread] */
WCUDA_API wcuda_status wcuda_event_create(wcuda_context context, wcuda_event* event,
                                          wcuda_error* error);
/* Destroys an event; queued work that waits for it still waits. [any thread] */
WCUDA_API void wcuda_event_destroy(wcuda_event event);
/* Records the event after all work queued on the stream so far (id 0: the context's own). [any thread] */
WCUDA_API wcuda_status wcuda_event_record(wcuda_event event, wcuda_stream stream,
                                          wcuda_error* error);
/* Makes work queued on the stream from now on (id 0: the context's own) wait for the event. [any thread] */
WCUDA_API wcuda_status wcuda_event_order(wcuda_event event, wcuda_stream stream, wcuda_error* error);
/* Waits until the work before the event is done; timeout_ms < 0 waits without limit. WCUDA_TIMEOUT changes
 * nothing: wait again. A device fault returns WCUDA_DEVICE_LOST, never a timeout. [any thread] */
WCUDA_API wcuda_status wcuda_event_wait(wcuda_event event, int64_t timeout_ms, wcuda_error* error);
/* Reports 1 when the work before the event is done, else 0. [any thread] */
WCUDA_API wcuda_status wcuda_event_done_get(wcuda_event event, int32_t* done, wcuda_error* error);
/* Reports the milliseconds between two events that are done; otherwise WCUDA_INVALID_STATE. [any thread] */
WCUDA_API wcuda_status wcuda_event_elapsed_get(wcuda_event start, wcuda_event end,
                                               double* milliseconds, wcuda_error* error);

/* Queues a copy from pinned memory into a buffer on a stream (id 0: the context's own). Both objects stay
 * alive until the copy is done, even when destroyed earlier; until then the caller must not touch their
 * contents. Record an event to learn when it is done. [any thread; external: buffer] */
WCUDA_API wcuda_status wcuda_buffer_write_async(wcuda_buffer buffer, uint64_t offset,
                                                wcuda_pinned source, uint64_t source_offset,
                                                uint64_t bytes, wcuda_stream stream,
                                                wcuda_error* error);
/* Queues a copy from a buffer into pinned memory, likewise. [any thread; external: buffer] */
WCUDA_API wcuda_status wcuda_buffer_read_async(wcuda_buffer buffer, uint64_t offset,
                                               wcuda_pinned target, uint64_t target_offset,
                                               uint64_t bytes, wcuda_stream stream,
                                               wcuda_error* error);

#ifdef __cplusplus
}
#endif

#endif /* WORKER_CUDA_BASE_H */
