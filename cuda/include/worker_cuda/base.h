/* worker_cuda/base.h: devices, contexts, device memory, streams and health. The other headers of the
 * interface include this one.
 *
 * This header has sections 1 to 7, 13 to 15 and 17 of the interface. Sections are numbered across the five
 * headers, so that the documentation can refer to them.
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
 * Status. A function that can fail returns a wcuda_status: WCUDA_OK (0) or another code of section 1. Its
 *   last parameter is a wcuda_error*, which may be NULL. On failure the function fills it with the status
 *   code, the native code of the driver or errno if there is one, and a one-line message. On success the
 *   wcuda_error is unchanged. Later versions may add status codes but never reuse one, so treat an unknown
 *   code as a failure. The library never aborts, exits, throws or prints.
 * Outputs. Output parameters come after the inputs and before the wcuda_error*. They are written only on
 *   success. A failed call changes nothing and leaves nothing allocated.
 * Handles. A handle is a struct with one member, a 64-bit id. Id 0 means "none". Functions
 *   return WCUDA_INVALID_HANDLE for a handle that was destroyed, has another kind or never existed. As long
 *   as an object exists, the objects from which it was created stay alive, so handles may be released in
 *   any order.
 * Names. wcuda_x_destroy releases what wcuda_x_create returned, _close what _open returned, and _unload
 *   what _load returned. The releasing functions accept id 0, return nothing and never fail. A _get function
 *   never creates an object. A _borrow function creates an object for a resource that the caller owns.
 * Structs. A struct that may grow in later versions begins with struct_size. Initialise every such struct,
 *   including each element of an array, with its ..._INIT macro. The default of a field is zero unless its
 *   comment says otherwise. The library accepts the smaller struct_size of a caller that was compiled with
 *   an older header. It accepts a larger struct_size if all bytes past the size that it knows are zero, and
 *   otherwise returns WCUDA_UNSUPPORTED.
 * Arrays of such structs. All elements must have the same struct_size, which is also the distance between
 *   elements in bytes. If the library fills the array, setting struct_size of the first is sufficient.
 * Lists. A wcuda_..._list function copies elements of a list into the caller's array: at most `capacity`
 *   elements, starting with element `first`. On success it sets *count to the number of elements in the
 *   whole list. With capacity 0 the array may be NULL. If `first` is greater than the number of elements,
 *   the function returns WCUDA_OUT_OF_RANGE.
 * Flags. A function returns WCUDA_INVALID_ARGUMENT if a flag is unknown. Booleans are int32_t, 0 or 1.
 * Strings are UTF-8 with a length and need no NUL at the end. Paths are byte strings that are passed to the
 *   operating system unchanged. Strings described as static are never freed.
 * Pointers. The library uses a pointer argument only until the call returns, unless the function's comment
 *   says otherwise.
 * Threads. The comment of each function ends with one of these:
 *     [any thread]   The function may run concurrently with every other call.
 *     [external: X]  Calls on the same X, or on objects created from X, must not overlap. A call that
 *                    overlaps another returns WCUDA_BUSY and does nothing.
 *     [any thread; external: X]  Calls on the same X must not overlap, as above. Otherwise the function may
 *                    run concurrently with every other call.
 * Callbacks run on the thread and at the time that their comment states. They must not throw or unwind the
 *   stack. Inside a callback, functions of this library return WCUDA_REENTRANT, with two exceptions:
 *   wcuda_cancel_trigger takes effect at once, and _destroy, _close and _unload take effect when the call
 *   that runs the callback returns.
 * fork(). The library must not be used in a child process after fork().
 * Environment. The library reads no environment variables.
 */
#ifndef WORKER_CUDA_BASE_H
#define WORKER_CUDA_BASE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#ifndef WCUDA_API
#define WCUDA_API /* a static library has nothing to import or export */
#endif

/* ------------------------------------------------------------------------------------------------
 * 1. Status and error
 */

typedef int32_t wcuda_status;

#define WCUDA_OK 0
/* Caller errors: correct the call. */
#define WCUDA_INVALID_ARGUMENT 1001   /* an argument is NULL, zero, negative or inconsistent */
#define WCUDA_INVALID_HANDLE 1002     /* the handle was destroyed, has another kind or never existed */
#define WCUDA_INVALID_STATE 1003      /* the object's current state does not allow the call */
#define WCUDA_OUT_OF_RANGE 1004       /* an offset, index, size or token id is past the end */
#define WCUDA_BUFFER_TOO_SMALL 1005   /* the caller's array is too small; the message has the size needed */
#define WCUDA_REENTRANT 1006          /* the function was called inside a callback of the library */
#define WCUDA_BUSY 1007               /* another thread is using the object */
#define WCUDA_ABI_MISMATCH 1008       /* the header and the archive have different ABI versions */
#define WCUDA_NOT_FOUND 1009          /* there is no such key, tensor, kernel or other entry */
#define WCUDA_INVALID_CONFIG 1010     /* invalid grid, block, cluster or shared memory of a launch */
#define WCUDA_ARGUMENT_COUNT 1011     /* the number of arguments differs from the kernel's */
/* Machine and build. */
#define WCUDA_NOT_AVAILABLE 2001      /* unavailable in this build or machine; the message has the reason */
#define WCUDA_NO_DEVICE 2002          /* no driver, driver too old, or no device with this ordinal */
#define WCUDA_IO 2003                 /* the operating system or a read callback failed */
#define WCUDA_CANCELLED 2004          /* the caller cancelled the operation */
#define WCUDA_TIMEOUT 2005            /* the time limit has passed; nothing has changed */
/* Resources: nothing was lost, and the object can still be used. */
#define WCUDA_OUT_OF_MEMORY 3001      /* not enough device memory */
#define WCUDA_OUT_OF_HOST_MEMORY 3002 /* not enough host memory */
#define WCUDA_OVER_BUDGET 3003        /* the allocation would exceed a memory budget */
#define WCUDA_QUEUE_FULL 3004         /* two steps are already in flight */
#define WCUDA_OUT_OF_PAGES 3005       /* too few free KV pages */
#define WCUDA_LIMIT_EXCEEDED 3006     /* the step exceeds a limit of the engine; the message names it */
/* Data from outside. */
#define WCUDA_MALFORMED 4001          /* the data is not well-formed; for example, not a valid GGUF file */
#define WCUDA_UNSUPPORTED 4002        /* the data is well-formed, but this version cannot use it */
#define WCUDA_INTEGRITY 4003          /* memory differs from its digest */
#define WCUDA_COMPILE_FAILED 4010     /* the compiler rejected the source; see wcuda_program_log_get */
#define WCUDA_UNSUPPORTED_KERNEL 4011 /* this backend has no code for the kernel */
/* Device. */
#define WCUDA_DEVICE_ERROR 5001       /* a driver call failed; see native_code */
#define WCUDA_DEVICE_LOST 5002        /* a device fault; from now on, objects can only be released */
#define WCUDA_NOT_RESIDENT 5003       /* an allocation is not in device memory */
#define WCUDA_LAUNCH_FAILED 5010      /* the kernel was not started, and no part of it has run */
/* Library. */
#define WCUDA_INTERNAL 9001           /* a bug in this library; please report the message */

/* Size of an error message, including the NUL at its end. */
#define WCUDA_ERROR_MESSAGE_BYTES 500

/* Describes a failure. The layout of this struct is frozen: it has no struct_size and never grows. */
typedef struct wcuda_error {
  wcuda_status code;
  int32_t native_code;    /* a cudaError_t, an errno, or 0 */
  uint32_t message_bytes; /* length of `message` without the NUL */
  char message[WCUDA_ERROR_MESSAGE_BYTES]; /* UTF-8, NUL-terminated; a long message is truncated */
} wcuda_error;

/* Returns the name of a status code, for example "WCUDA_OUT_OF_MEMORY", or "WCUDA_UNKNOWN". The string is
 * static. [any thread] */
WCUDA_API const char* wcuda_status_name(wcuda_status status);

/* Status numbers of older interfaces (worker_cuda_compat.h and the protocol ZCTL/1), for programs that were
 * written for one of them. For error names, see wcuda_backend_error_name (section 21). */
#define WCUDA_NUMBERS_WORKER 1 /* functions named cuda_*: 0 (CUDA_SUCCESS) to 8, and 99
                                  (CUDA_ERROR_UNKNOWN) */
#define WCUDA_NUMBERS_VRAM 2   /* functions named vram_*: 0 (VRAM_SUCCESS) to 4 (VRAM_ERROR_DRIVER) */
#define WCUDA_NUMBERS_ZCTL 3   /* responses of the protocol ZCTL/1: OK 0, ERR_MALFORMED 1,
                                  ERR_UNSUPPORTED 2, ERR_DENIED 3, ERR_TIMEOUT 4, ERR_NO_MEM 5,
                                  ERR_BACKEND 6, ERR_BAD_ARGS 7 */
/* Translates a status into its number in the interface `numbers`, a WCUDA_NUMBERS_... value. Every status
 * has a number, including a status unknown to this version. Returns -1 if `numbers` is not such a value.
 * [any thread] */
WCUDA_API int32_t wcuda_status_number(wcuda_status status, int32_t numbers);

/* A string without a NUL at its end. As an input, it must stay valid until the call returns. As an output,
 * it stays valid as long as the object that it came from. The layout of this struct is frozen. */
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
/* Increases with every change that breaks programs compiled before the change. */
#define WCUDA_ABI_VERSION 1

/* Returns the archive's version as major * 10000 + minor * 100 + patch. [any thread] */
WCUDA_API uint32_t wcuda_version_number(void);
/* Returns the archive's version as "major.minor.patch". The string is static. [any thread] */
WCUDA_API const char* wcuda_version_string(void);
/* Returns the archive's ABI version, which should equal WCUDA_ABI_VERSION. [any thread] */
WCUDA_API uint32_t wcuda_abi_version(void);

typedef struct wcuda_build_info {
  uint32_t struct_size;
  int32_t has_cuda;               /* 1 if the archive was built with CUDA */
  uint32_t cuda_version;          /* version of the toolkit, major * 1000 + minor * 10; 0 without CUDA */
  uint32_t reserved;
  const char* cuda_architectures; /* for example "90a;100"; "" without CUDA. All strings are static */
  const char* compiler;           /* for example "GNU 12.2.0" */
  const char* build_type;         /* for example "Release" */
  const char* host_features;      /* SIMD variants in the archive: "avx2;avx512;avx512_bf16" */
} wcuda_build_info;
#define WCUDA_BUILD_INFO_INIT {sizeof(wcuda_build_info), 0, 0, 0, NULL, NULL, NULL, NULL}

/* Reports how the archive was built. [any thread] */
WCUDA_API wcuda_status wcuda_build_info_get(wcuda_build_info* info, wcuda_error* error);

/* The layout of one field of one public struct, for tests of language bindings. */
typedef struct wcuda_abi_field {
  uint32_t struct_size;
  uint32_t offset;
  uint32_t bytes;          /* size of the field, or of the whole struct */
  uint32_t alignment;      /* alignment of the field, or of the whole struct */
  const char* struct_name; /* static string */
  const char* field_name;  /* static string; "" in the entry for the whole struct */
} wcuda_abi_field;
#define WCUDA_ABI_FIELD_INIT {sizeof(wcuda_abi_field), 0, 0, 0, NULL, NULL}

/* Lists the layout of every public struct, as compiled in the archive. [any thread] */
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

/* Receives one log message without a newline at its end. `target` names the part of the library that logs,
 * for example "model" or "vram". Runs on any thread that logs, possibly on several threads at once. Must
 * not call this library. */
typedef void (*wcuda_log_callback)(void* user, int32_t level, wcuda_string target,
                                   wcuda_string message);

/* Installs the log callback of the process, which receives messages of severity `level` and of higher
 * severity. A NULL callback removes it. When the function returns, the previous callback is not running and
 * will not run again. [any thread] */
WCUDA_API wcuda_status wcuda_log_set(wcuda_log_callback callback, void* user, int32_t level,
                                     wcuda_error* error);

/* ------------------------------------------------------------------------------------------------
 * 4. Devices
 */

#define WCUDA_BACKEND_AUTO 0 /* CUDA if a GPU is usable, otherwise HOST; see wcuda_context_create */
#define WCUDA_BACKEND_CUDA 1
#define WCUDA_BACKEND_HOST 2 /* computes on the CPU; section 21 has further types */

/* Capabilities of a device. Sizes are in bytes and clocks in kHz. HOST reports the threads of the process
 * as multiprocessors, and 0 in fields that have no meaning for a CPU. */
typedef struct wcuda_device_caps {
  uint32_t struct_size;
  int32_t backend; /* WCUDA_BACKEND_CUDA, WCUDA_BACKEND_HOST or a registered type */
  int32_t ordinal;
  uint32_t name_bytes;
  char name[256]; /* UTF-8, NUL-terminated */
  uint8_t uuid[16];
  char pci_bus_id[16]; /* for example "0000:17:00.0"; "" on HOST */
  uint64_t total_memory;
  int32_t compute_capability_major;
  int32_t compute_capability_minor;
  int32_t driver_version;  /* CUDA version that the driver supports, major * 1000 + minor * 10 */
  int32_t runtime_version; /* version of the CUDA runtime in the archive */
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
  uint64_t memory_bandwidth; /* bytes per second: 2 * clock * bus width / 8 */
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
  int32_t unified_memory; /* host and device share memory: supports_managed_memory or is_integrated */
  int32_t supports_atomics;
  /* The next five fields describe other kinds of devices. CUDA and HOST report 0; a registered backend
   * (section 21) may set them. */
  int32_t supports_mesh_shaders;
  int32_t supports_ray_tracing;
  int32_t has_neural_engine;
  int32_t supports_mps;
  int32_t metal_gpu_family;
  uint32_t reserved;
  uint32_t architecture_name_bytes;
  char architecture_name[64]; /* for example "sm_90a"; the CPU's architecture on HOST. NUL-terminated */
} wcuda_device_caps;
#define WCUDA_DEVICE_CAPS_INIT \
  {sizeof(wcuda_device_caps), 0, 0, 0, {0}, {0}, {0}, 0, 0, 0, 0, 0, 0, 0, 0, 0, {0}, {0}, 0, 0, 0, 0, 0, \
   0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, {0}}

/* Reports how many usable devices a backend type has. HOST always has one. If CUDA has none, the function
 * returns WCUDA_NO_DEVICE or WCUDA_NOT_AVAILABLE, and the message has the reason, for example "no CUDA
 * device: driver 12.4, needs 13.0". Ordinals index the usable devices in CUDA's order. Does not create a
 * CUDA context. [any thread] */
WCUDA_API wcuda_status wcuda_device_count(int32_t backend, int32_t* count, wcuda_error* error);

/* Reports the capabilities of one device. [any thread] */
WCUDA_API wcuda_status wcuda_device_caps_get(int32_t backend, int32_t ordinal,
                                             wcuda_device_caps* caps, wcuda_error* error);

/* ------------------------------------------------------------------------------------------------
 * 5. Context: an open device and its memory accounting
 */

typedef struct wcuda_context {
  uint64_t id;
} wcuda_context;

typedef struct wcuda_context_options {
  uint32_t struct_size;
  uint32_t abi_version;       /* must be WCUDA_ABI_VERSION, else WCUDA_ABI_MISMATCH */
  int32_t backend;            /* WCUDA_BACKEND_... */
  int32_t ordinal;
  uint64_t flags;             /* must be 0; no flags are defined */
  /* Maximum number of bytes that this context may allocate; 0 means no limit. HOST also reports it as the
   * capacity of the device; without a limit, the capacity is the memory of the machine. */
  uint64_t memory_budget;
  /* Number of compute threads of HOST. 0 means all processors that this process may use under its affinity
   * mask and cgroup quota. */
  uint32_t host_thread_count;
  int32_t scrub;              /* WCUDA_SCRUB_...; see section 14 */
} wcuda_context_options;
#define WCUDA_CONTEXT_OPTIONS_INIT {sizeof(wcuda_context_options), WCUDA_ABI_VERSION, 0, 0, 0, 0, 0, 0}

/* Opens a device. CUDA uses the device's primary context. Like every call of this library, the function
 * leaves the thread's current CUDA device as it was.
 *
 * AUTO opens CUDA if CUDA has a usable device, otherwise HOST. There is no usable device if this build has no
 * CUDA or no code for the device, if the driver is missing or too old, if no device has this ordinal, or if
 * the device lacks compute capability 8.0 or memory pools. wcuda_context_info_get reports the reason. Any
 * other failure of CUDA is an error. [any thread] */
WCUDA_API wcuda_status wcuda_context_create(const wcuda_context_options* options,
                                            wcuda_context* context, wcuda_error* error);
/* Releases the handle. The device is closed when all objects created from the context are released. If
 * allocations are still live, they are logged as warnings, which makes leaks visible. [any thread] */
WCUDA_API void wcuda_context_destroy(wcuda_context context);

typedef struct wcuda_context_info {
  uint32_t struct_size;
  int32_t backend; /* the type that was opened, never AUTO */
  int32_t ordinal;
  uint32_t host_thread_count; /* 0 on CUDA */
  char fallback_reason[256];  /* if AUTO opened HOST, the reason; otherwise "". NUL-terminated */
} wcuda_context_info;
#define WCUDA_CONTEXT_INFO_INIT {sizeof(wcuda_context_info), 0, 0, 0, {0}}
/* Reports which device the context uses. [any thread] */
WCUDA_API wcuda_status wcuda_context_info_get(wcuda_context context, wcuda_context_info* info,
                                              wcuda_error* error);

/* Waits until all work queued in this context has finished. [any thread] */
WCUDA_API wcuda_status wcuda_context_synchronize(wcuda_context context, wcuda_error* error);

/* ------------------------------------------------------------------------------------------------
 * 6. Ledger: a list of all allocations, with size, purpose and tag
 */

#define WCUDA_PURPOSE_ANY 0      /* only in queries; see wcuda_context_memory_get */
#define WCUDA_PURPOSE_WEIGHTS 1
#define WCUDA_PURPOSE_KV 2
#define WCUDA_PURPOSE_SCRATCH 3
#define WCUDA_PURPOSE_MODULE 4   /* loaded device code */
#define WCUDA_PURPOSE_STAGING 5  /* pinned host memory */
#define WCUDA_PURPOSE_USER 6
#define WCUDA_PURPOSE_BORROWED 7 /* the caller's memory; see wcuda_buffer_borrow */

typedef struct wcuda_memory_info {
  uint32_t struct_size;
  int32_t purpose;                 /* the purpose that was passed in */
  uint64_t current_bytes;          /* bytes allocated now for this purpose */
  uint64_t peak_bytes;
  uint64_t allocation_count;       /* number of live allocations */
  uint64_t total_allocation_count; /* number of allocations since the context was created */
  uint64_t budget_bytes;           /* budget of the context; 0 means none */
  uint64_t device_free_bytes;      /* reported by the driver; on HOST, the capacity minus all allocations */
  uint64_t device_total_bytes;
  uint64_t purpose_budget_bytes;   /* set by wcuda_context_budget_set; 0 means none */
} wcuda_memory_info;
#define WCUDA_MEMORY_INFO_INIT {sizeof(wcuda_memory_info), 0, 0, 0, 0, 0, 0, 0, 0, 0}

/* Reports sums over the ledger for one purpose. WCUDA_PURPOSE_ANY covers all purposes except STAGING, which
 * is host memory, and BORROWED, which is the caller's memory. [any thread] */
WCUDA_API wcuda_status wcuda_context_memory_get(wcuda_context context, int32_t purpose,
                                                wcuda_memory_info* info, wcuda_error* error);

typedef struct wcuda_ledger_entry {
  uint32_t struct_size;
  int32_t purpose;
  uint64_t bytes;
  uint64_t sequence_number; /* number of the allocation in this context, starting at 1 */
  uint32_t tag_bytes;
  uint32_t reserved;
  char tag[64]; /* NUL-terminated; a long tag is truncated */
} wcuda_ledger_entry;
#define WCUDA_LEDGER_ENTRY_INIT {sizeof(wcuda_ledger_entry), 0, 0, 0, 0, 0, {0}}

/* Lists the live allocations, oldest first. wcuda_context_destroy logs the caller's allocations that are
 * still listed. [any thread] */
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
  int32_t purpose;  /* WCUDA_PURPOSE_..., but not STAGING or BORROWED; 0 means WCUDA_PURPOSE_USER */
  uint64_t bytes;   /* must be at least 1 */
  wcuda_string tag; /* shown in the ledger, where it is truncated to 63 bytes; may be empty */
  uint32_t flags;   /* WCUDA_BUFFER_... */
  uint32_t reserved;
} wcuda_buffer_options;
#define WCUDA_BUFFER_OPTIONS_INIT {sizeof(wcuda_buffer_options), 0, 0, {NULL, 0}, 0, 0}

#define WCUDA_BUFFER_ZEROED (1u << 0) /* the buffer contains zeros when wcuda_buffer_create returns */

/* Allocates device memory that is aligned to 256 bytes. Without WCUDA_BUFFER_ZEROED the contents are
 * undefined and may be those of an earlier buffer. WCUDA_OVER_BUDGET and WCUDA_OUT_OF_MEMORY have a message
 * with the bytes needed, the budget, the bytes in use and the bytes free. [any thread] */
WCUDA_API wcuda_status wcuda_buffer_create(wcuda_context context,
                                           const wcuda_buffer_options* options,
                                           wcuda_buffer* buffer, wcuda_error* error);
/* Destroys the handle. The memory is freed after all queued work that uses it has finished; on CUDA, the
 * function does not wait for that work. [any thread] */
WCUDA_API void wcuda_buffer_destroy(wcuda_buffer buffer);
/* Reports the requested size of the buffer in bytes. [any thread] */
WCUDA_API wcuda_status wcuda_buffer_size_get(wcuda_buffer buffer, uint64_t* bytes,
                                             wcuda_error* error);
/* Copies `bytes` bytes from the caller's memory into the buffer and waits. If the range is not within the
 * buffer, returns WCUDA_OUT_OF_RANGE; the message has the offset, the length and the buffer's size. `bytes`
 * may be 0. [external: buffer] */
WCUDA_API wcuda_status wcuda_buffer_write(wcuda_buffer buffer, uint64_t offset, const void* source,
                                          uint64_t bytes, wcuda_error* error);
/* Copies `bytes` bytes from the buffer into the caller's memory and waits. Checks the range as
 * wcuda_buffer_write does. [external: buffer] */
WCUDA_API wcuda_status wcuda_buffer_read(wcuda_buffer buffer, uint64_t offset, void* target,
                                         uint64_t bytes, wcuda_error* error);
/* Copies between two buffers of one context, or within one buffer, and waits. The ranges must not overlap.
 * [external: both buffers] */
WCUDA_API wcuda_status wcuda_buffer_copy(wcuda_buffer target, uint64_t target_offset,
                                         wcuda_buffer source, uint64_t source_offset,
                                         uint64_t bytes, wcuda_error* error);
/* Fills a range with copies of a pattern and waits. The pattern consists of the lowest `pattern_bytes`
 * bytes of `pattern`, little-endian; `pattern_bytes` is 1, 2, 4 or 8. `offset` and `bytes` must be
 * multiples of `pattern_bytes`. [external: buffer] */
WCUDA_API wcuda_status wcuda_buffer_fill(wcuda_buffer buffer, uint64_t offset, uint64_t bytes,
                                         uint64_t pattern, uint32_t pattern_bytes,
                                         wcuda_error* error);
/* Computes the BLAKE3 digest of a range, on the device. [external: buffer] */
WCUDA_API wcuda_status wcuda_buffer_digest(wcuda_buffer buffer, uint64_t offset, uint64_t bytes,
                                           uint8_t digest[32], wcuda_error* error);

typedef struct wcuda_pinned {
  uint64_t id;
} wcuda_pinned;

/* Allocates page-locked host memory for fast copies, filled with zeros. The ledger lists it as
 * WCUDA_PURPOSE_STAGING. On HOST, it is ordinary memory aligned to 4096 bytes. [any thread] */
WCUDA_API wcuda_status wcuda_pinned_create(wcuda_context context, uint64_t bytes,
                                           wcuda_pinned* pinned, wcuda_error* error);
/* Waits for the copies that use the memory, then frees it. [any thread] */
WCUDA_API void wcuda_pinned_destroy(wcuda_pinned pinned);
/* Reports the address and the size. The address is valid until the handle is destroyed. [any thread] */
WCUDA_API wcuda_status wcuda_pinned_data_get(wcuda_pinned pinned, void** data, uint64_t* bytes,
                                             wcuda_error* error);

/* ------------------------------------------------------------------------------------------------
 * 13. Health
 */

#define WCUDA_HEALTH_OK 0
#define WCUDA_HEALTH_DEGRADED 1 /* usable, but the message reports a problem */
#define WCUDA_HEALTH_LOST 2     /* the device is lost (WCUDA_DEVICE_LOST) */

typedef struct wcuda_health {
  uint32_t struct_size;
  int32_t state;                 /* WCUDA_HEALTH_... */
  int32_t sticky_code;           /* the driver's error code when the device was lost; otherwise 0 */
  int32_t temperature_celsius;   /* -1 means unknown */
  int64_t ecc_error_count;       /* uncorrected ECC errors since the last reset; -1 means unknown */
  uint64_t ledger_bytes;         /* device memory allocated by this context */
  uint64_t peak_bytes;
  uint64_t staging_bytes;
  uint64_t allocation_count;
  uint64_t device_free_bytes;
  uint64_t device_total_bytes;
  uint64_t nonresident_count;    /* allocations that are not in device memory */
  uint64_t deferred_error_count; /* errors that no call could return, for example while freeing */
  uint64_t duration_ns;          /* time that this report took */
  /* Device memory that this context uses according to the driver, excluding loaded modules. If it is less
   * than the ledger's total excluding modules, the state is WCUDA_HEALTH_DEGRADED. */
  uint64_t pool_used_bytes;
  uint64_t pool_reserved_bytes;  /* pool_used_bytes plus freed memory that the driver keeps for reuse */
  /* Size of the allocations that were live when the device was lost. The ledger no longer counts them, and
   * they are not returned to the driver. */
  uint64_t lost_bytes;
  uint64_t lost_count;
  char message[256];             /* NUL-terminated; "" if the state is OK */
} wcuda_health;
#define WCUDA_HEALTH_INIT {sizeof(wcuda_health), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, {0}}

/* Reports the state of the context's device. Queries the driver, which takes less than 10 ms even while
 * steps are in flight. May be called on a lost device. [any thread] */
WCUDA_API wcuda_status wcuda_health_get(wcuda_context context, wcuda_health* health,
                                        wcuda_error* error);

/* ------------------------------------------------------------------------------------------------
 * 14. Resident memory: budgets per purpose, scrubbing, residency checks, raw addresses
 */

/* Values of wcuda_context_options.scrub. Scrubbing fills device memory with zeros, on the device. Without
 * scrubbing, new buffers have undefined contents. Pinned memory is always zeroed when it is allocated; with
 * WCUDA_SCRUB_ON_FREE it is zeroed again before it is freed. Borrowed memory is never scrubbed. If
 * scrubbing fails while memory is freed, the error is a deferred error (see
 * wcuda_context_deferred_error_take). */
#define WCUDA_SCRUB_NONE 0
#define WCUDA_SCRUB_ON_FREE 1  /* zeroes memory before it is freed, after the work that uses it */
#define WCUDA_SCRUB_ON_ALLOC 2 /* zeroes memory when it is allocated */

/* Sets the budget of one purpose: the maximum size of all its allocations together. The budget of the
 * context applies as well. 0 removes the budget of the purpose. An allocation that would exceed a budget
 * fails with WCUDA_OVER_BUDGET before the driver is called. Memory that is already allocated stays, even if
 * it exceeds the new budget. `purpose` must be one of WCUDA_PURPOSE_WEIGHTS to WCUDA_PURPOSE_USER.
 * [any thread] */
WCUDA_API wcuda_status wcuda_context_budget_set(wcuda_context context, int32_t purpose,
                                                uint64_t bytes, wcuda_error* error);

/* Checks that a device meets the requirements of this library. CUDA requires compute capability 8.0 or
 * newer and 1 GiB of memory; HOST has no requirements. Returns WCUDA_NO_DEVICE if no usable device has this
 * ordinal (devices below compute capability 8.0 have none), and WCUDA_UNSUPPORTED, with the size in the
 * message, if the device has too little memory. wcuda_context_create performs the same check.
 * [any thread] */
WCUDA_API wcuda_status wcuda_device_check(int32_t backend, int32_t ordinal, wcuda_error* error);

/* Where the memory at an address is. */
#define WCUDA_PLACE_DEVICE 1       /* device memory of the context's device, without a host address */
#define WCUDA_PLACE_OTHER_DEVICE 2
#define WCUDA_PLACE_MANAGED 3      /* managed memory, which migrates between host and device */
#define WCUDA_PLACE_PINNED 4       /* page-locked host memory */
/* Page-locked host memory that devices access in place, or device memory that has a host address. */
#define WCUDA_PLACE_MAPPED 5
#define WCUDA_PLACE_HOST 6         /* host memory that is not registered with the driver */

typedef struct wcuda_residency {
  uint32_t struct_size;
  /* WCUDA_PLACE_... of the first allocation that is not in device memory; 0 if all are. */
  int32_t first_place;
  uint64_t checked_count;        /* allocations that were checked: all but pinned staging memory */
  uint64_t nonresident_count;
  uint64_t managed_count;        /* allocations in managed memory; included in nonresident_count */
  /* This and the following fields are the ledger entry of the first allocation that is not in device
   * memory. */
  uint64_t first_bytes;
  uint64_t first_sequence_number;
  int32_t first_purpose;
  uint32_t first_tag_bytes;
  char first_tag[64];            /* NUL-terminated */
} wcuda_residency;
#define WCUDA_RESIDENCY_INIT {sizeof(wcuda_residency), 0, 0, 0, 0, 0, 0, 0, 0, {0}}

/* Checks with the driver that every allocation, including borrowed memory, is device memory of this
 * context's device and has no host address. Allocations that fail are counted in `residency` and logged
 * as errors; the function still returns WCUDA_OK. On HOST, memory that the backend allocated counts as
 * device memory. [any thread] */
WCUDA_API wcuda_status wcuda_context_residency_get(wcuda_context context,
                                                   wcuda_residency* residency, wcuda_error* error);

/* Enforces that all memory of the context is device memory. First performs the checks of
 * wcuda_device_check and wcuda_context_residency_get. If an allocation is not in device memory, returns
 * WCUDA_NOT_RESIDENT, and the message names the first one. After a success, wcuda_buffer_borrow rejects
 * memory that is not device memory with WCUDA_NOT_RESIDENT. [any thread] */
WCUDA_API wcuda_status wcuda_context_vram_only_enforce(wcuda_context context, wcuda_error* error);
/* Reports 1 if the last wcuda_context_vram_only_enforce succeeded and no later check has found memory
 * outside the device; otherwise 0. [any thread] */
WCUDA_API wcuda_status wcuda_context_vram_only_get(wcuda_context context, int32_t* is_enforced,
                                                   wcuda_error* error);

/* Creates a buffer with WCUDA_PURPOSE_BORROWED for the caller's memory. options->purpose must be 0. The
 * `options->bytes` bytes at `address` must stay valid until the buffer is destroyed, and
 * wcuda_buffer_destroy waits for the work that uses them. The library does not free the memory or count it
 * against a budget. The memory should be device memory of the context's device, which
 * wcuda_context_residency_get checks. On HOST a wrong size is undefined behaviour, because the library
 * cannot check it. [any thread] */
WCUDA_API wcuda_status wcuda_buffer_borrow(wcuda_context context, void* address,
                                           const wcuda_buffer_options* options,
                                           wcuda_buffer* buffer, wcuda_error* error);
/* Reports where the memory of a buffer is, as a WCUDA_PLACE_... value. [any thread] */
WCUDA_API wcuda_status wcuda_buffer_place_get(wcuda_buffer buffer, int32_t* place,
                                              wcuda_error* error);
/* Reports the device address of a buffer, for use with other libraries. The address is valid until the
 * buffer is destroyed. This library does not check accesses through the address and does not wait for them.
 * [any thread] */
WCUDA_API wcuda_status wcuda_buffer_address_get(wcuda_buffer buffer, void** address,
                                                wcuda_error* error);

/* Removes the oldest deferred error from the queue. A deferred error is an error that no call could
 * return, for example while freeing memory. `deferred` receives its code and message, or WCUDA_OK if the
 * queue is empty. The queue holds at most sixteen errors; wcuda_health.deferred_error_count counts all.
 * [any thread] */
WCUDA_API wcuda_status wcuda_context_deferred_error_take(wcuda_context context,
                                                         wcuda_error* deferred,
                                                         wcuda_error* error);

/* Raw device memory, for programs that work with addresses.
 *
 * The library checks addresses against a process-wide table of the blocks that wcuda_raw_allocate
 * returned. An address outside every live block returns WCUDA_INVALID_ARGUMENT. A range that goes past the
 * end of its block returns WCUDA_OUT_OF_RANGE. Copies may start at any address within a block.
 *
 * Each thread has a current device for each backend, initially device 0. wcuda_raw_allocate and
 * wcuda_raw_memory_get use the current device. Copies and wcuda_raw_free use the device of the block. A
 * device is opened by the first call that needs it and stays open until wcuda_raw_reset. `backend` must be
 * WCUDA_BACKEND_CUDA or WCUDA_BACKEND_HOST.
 */

/* Makes a device the current device of the calling thread. Returns WCUDA_INVALID_ARGUMENT if there is no
 * such device. [any thread] */
WCUDA_API wcuda_status wcuda_raw_device_set(int32_t backend, int32_t ordinal, wcuda_error* error);
/* Allocates `bytes` bytes, at least 1, on the thread's current device. The address is aligned to 256 bytes
 * and the contents are undefined. No budget applies. [any thread] */
WCUDA_API wcuda_status wcuda_raw_allocate(int32_t backend, uint64_t bytes, void** address,
                                          wcuda_error* error);
/* Frees a block. `address` must be the address that wcuda_raw_allocate returned; NULL does nothing.
 * [any thread] */
WCUDA_API wcuda_status wcuda_raw_free(void* address, wcuda_error* error);
/* Copies from the caller's memory into a block and waits. `bytes` may be 0. [any thread] */
WCUDA_API wcuda_status wcuda_raw_copy_to_device(void* target, const void* source, uint64_t bytes,
                                                wcuda_error* error);
/* Copies from a block into the caller's memory and waits. `bytes` may be 0. [any thread] */
WCUDA_API wcuda_status wcuda_raw_copy_to_host(void* target, const void* source, uint64_t bytes,
                                              wcuda_error* error);
/* Reports the free and total memory of the thread's current device. [any thread] */
WCUDA_API wcuda_status wcuda_raw_memory_get(int32_t backend, uint64_t* free_bytes,
                                            uint64_t* total_bytes, wcuda_error* error);
/* Frees all blocks of a backend and closes its devices. [any thread] */
WCUDA_API wcuda_status wcuda_raw_reset(int32_t backend, wcuda_error* error);

/* ------------------------------------------------------------------------------------------------
 * 15. Digests per MiB: find the part of memory that changed
 *
 * BLAKE3 is a tree hash, and each MiB of the input is a subtree with its own chaining value. A change of
 * the input therefore changes the chaining values of the MiBs that it touches, and no others. The digest of
 * the input follows from the chaining values of all its MiBs.
 */

#define WCUDA_DIGEST_PIECE_BYTES ((uint64_t)1 << 20)

/* Computes the 32-byte chaining value of each MiB of a range, on the device. The range consists of
 * ceil(bytes / WCUDA_DIGEST_PIECE_BYTES) pieces; the last piece may be shorter than 1 MiB. `bytes` must be
 * at least 1. If `piece_capacity` is too small, returns WCUDA_BUFFER_TOO_SMALL, and the message has the
 * number of pieces. If the range is part of a larger input, `first_piece` is the index, in MiB, at which it
 * begins in that input; otherwise `first_piece` is 0. [external: buffer] */
WCUDA_API wcuda_status wcuda_buffer_digest_pieces(wcuda_buffer buffer, uint64_t offset,
                                                  uint64_t bytes, uint64_t first_piece,
                                                  uint8_t* pieces, uint64_t piece_capacity,
                                                  wcuda_error* error);
/* Computes the BLAKE3 digest of an input from the chaining values of all its pieces. There must be at least
 * two pieces, since the digest of an input of one piece does not follow from its chaining value; fewer
 * return WCUDA_INVALID_ARGUMENT. [any thread] */
WCUDA_API wcuda_status wcuda_digest_join(const uint8_t* pieces, uint64_t piece_count,
                                         uint8_t digest[32], wcuda_error* error);

/* ------------------------------------------------------------------------------------------------
 * 17. Streams, events, asynchronous copies
 *
 * Work on one stream runs in order. Work on different streams is ordered only by events. Every context has
 * a default stream, which has id 0 and is used by all functions without a stream parameter. On HOST, work
 * has finished when the call that queued it returns.
 */

typedef struct wcuda_stream {
  uint64_t id;
} wcuda_stream;

/* Creates a stream. Priority 0 is normal; -1 is high, and its kernels are scheduled first. Any other
 * priority returns WCUDA_INVALID_ARGUMENT. [any thread] */
WCUDA_API wcuda_status wcuda_stream_create(wcuda_context context, int32_t priority,
                                           wcuda_stream* stream, wcuda_error* error);
/* Waits for the stream's work, then destroys the stream. [any thread] */
WCUDA_API void wcuda_stream_destroy(wcuda_stream stream);
/* Waits for all work queued on the stream. [any thread] */
WCUDA_API wcuda_status wcuda_stream_synchronize(wcuda_stream stream, wcuda_error* error);
/* Reports the native handle (cudaStream_t) of a stream, or of the context's default stream if the id is 0,
 * for use with other libraries. The native handle is valid until the stream is destroyed. Returns
 * WCUDA_UNSUPPORTED on HOST. [any thread] */
WCUDA_API wcuda_status wcuda_stream_native_get(wcuda_context context, wcuda_stream stream,
                                               void** native, wcuda_error* error);
/* Creates a stream handle for a native stream (cudaStream_t) of the caller. The native stream must belong
 * to the device's primary context, and must not be the CUDA default stream (NULL). It must stay valid until
 * the handle is destroyed. wcuda_stream_destroy waits for its work but does not destroy it. Returns
 * WCUDA_UNSUPPORTED on HOST. [any thread] */
WCUDA_API wcuda_status wcuda_stream_borrow(wcuda_context context, void* native,
                                           wcuda_stream* stream, wcuda_error* error);

typedef struct wcuda_event {
  uint64_t id;
} wcuda_event;

/* Creates an event, which marks a point in the work of a stream and the time at which the stream reached
 * it. An event that was never recorded counts as done. [any thread] */
WCUDA_API wcuda_status wcuda_event_create(wcuda_context context, wcuda_event* event,
                                          wcuda_error* error);
/* Destroys an event. Work that was queued to wait for the event still waits. [any thread] */
WCUDA_API void wcuda_event_destroy(wcuda_event event);
/* Records the event on a stream, after all work that is queued there now. Stream id 0 is the context's
 * default stream. [any thread] */
WCUDA_API wcuda_status wcuda_event_record(wcuda_event event, wcuda_stream stream,
                                          wcuda_error* error);
/* Makes all work that is queued on a stream after this call wait for the event. Stream id 0 is the
 * context's default stream. [any thread] */
WCUDA_API wcuda_status wcuda_event_order(wcuda_event event, wcuda_stream stream, wcuda_error* error);
/* Waits until the event is done. A negative timeout_ms waits without a limit. WCUDA_TIMEOUT changes
 * nothing, and the caller may wait again. A device fault returns WCUDA_DEVICE_LOST and not WCUDA_TIMEOUT.
 * [any thread] */
WCUDA_API wcuda_status wcuda_event_wait(wcuda_event event, int64_t timeout_ms, wcuda_error* error);
/* Reports 1 if the event is done, that is, the work before it has finished; otherwise 0. [any thread] */
WCUDA_API wcuda_status wcuda_event_done_get(wcuda_event event, int32_t* done, wcuda_error* error);
/* Reports the milliseconds between two events. Returns WCUDA_INVALID_STATE if one of them is not done.
 * [any thread] */
WCUDA_API wcuda_status wcuda_event_elapsed_get(wcuda_event start, wcuda_event end,
                                               double* milliseconds, wcuda_error* error);

/* Queues a copy from pinned memory into a buffer on a stream. Stream id 0 is the context's default stream.
 * Until the copy is done, the caller must not access the two ranges. Both handles may be destroyed earlier;
 * the memory stays allocated until the copy is done. Record an event after the copy to find out when it is
 * done. [any thread; external: buffer] */
WCUDA_API wcuda_status wcuda_buffer_write_async(wcuda_buffer buffer, uint64_t offset,
                                                wcuda_pinned source, uint64_t source_offset,
                                                uint64_t bytes, wcuda_stream stream,
                                                wcuda_error* error);
/* Queues a copy from a buffer into pinned memory on a stream, under the same conditions as
 * wcuda_buffer_write_async. [any thread; external: buffer] */
WCUDA_API wcuda_status wcuda_buffer_read_async(wcuda_buffer buffer, uint64_t offset,
                                               wcuda_pinned target, uint64_t target_offset,
                                               uint64_t bytes, wcuda_stream stream,
                                               wcuda_error* error);

#ifdef __cplusplus
}
#endif

#endif /* WORKER_CUDA_BASE_H */
