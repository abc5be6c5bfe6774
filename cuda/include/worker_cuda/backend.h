/* worker_cuda/backend.h: one function table for every kind of device, and failover between backends.
 *
 * This header has sections 21 and 21b of the interface. The conventions of worker_cuda/base.h apply.
 *
 * EXAMPLE: open the best available backend, print its name, and create a context on its device.
 *
 *   wcuda_backend backend = {0};
 *   wcuda_context context = {0};
 *   wcuda_backend_options options = WCUDA_BACKEND_OPTIONS_INIT;
 *   wcuda_backend_info info = WCUDA_BACKEND_INFO_INIT;
 *   if (wcuda_backend_open(&options, &backend, &error) != WCUDA_OK ||
 *       wcuda_backend_info_get(backend, &info, &error) != WCUDA_OK ||
 *       wcuda_backend_context_create(backend, &context, &error) != WCUDA_OK)
 *     return report(error.message);
 *   printf("%s %d\n", info.name, info.ordinal);
 *   wcuda_context_destroy(context);
 *   wcuda_backend_close(backend);
 *
 * The program examples/c/backend.c registers its own backend.
 */
#ifndef WORKER_CUDA_BACKEND_H
#define WORKER_CUDA_BACKEND_H

#include "worker_cuda/compute.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ------------------------------------------------------------------------------------------------
 * 21. Backends: one function table for every kind of device
 *
 * A backend allocates, copies, compiles, launches and waits on one device. The library has two backends,
 * CUDA and HOST, and a caller can register more. Every backend is used either through its function table,
 * of type wcuda_backend_vtable, or through a context on its device.
 *
 * There are two kinds of table. The library has one table of its own, which serves all backends, including
 * registered ones; wcuda_backend_table_get reports it. Its functions check the handles, ranges, launch
 * dimensions and kernel arguments of every call. The other kind is the table that a caller registers. Its
 * functions need no such checks: the library calls them only with handles that the same table returned, and
 * with ranges within their memory.
 */

/* Backend types besides WCUDA_BACKEND_AUTO, WCUDA_BACKEND_CUDA and WCUDA_BACKEND_HOST. STDGPU and SIMULATED
 * are aliases of HOST, so they compute real results. The other types are reserved, and opening one returns
 * WCUDA_NOT_AVAILABLE. Types that a caller registers are numbered from 256. */
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

/* One backend type on this machine. */
typedef struct wcuda_backend_entry {
  uint32_t struct_size;
  int32_t type; /* WCUDA_BACKEND_... */
  int32_t priority;
  int32_t is_available;
  int32_t device_count;
  wcuda_status status; /* WCUDA_OK if the backend is available, otherwise the reason as a status */
  char name[32];       /* for example "cuda"; NUL-terminated */
  char reason[200];    /* the reason as a message, NUL-terminated; "" if available */
} wcuda_backend_entry;
#define WCUDA_BACKEND_ENTRY_INIT {sizeof(wcuda_backend_entry), 0, 0, 0, 0, 0, {0}, {0}}
/* Lists all backend types, highest priority first. [any thread] */
WCUDA_API wcuda_status wcuda_backend_list(uint64_t first, wcuda_backend_entry* entries,
                                          uint64_t capacity, uint64_t* count, wcuda_error* error);
/* Finds a backend type by its name, such as "cuda", "host", "vulkan" or the name of a registered type.
 * Returns WCUDA_NOT_FOUND if there is no such type. [any thread] */
WCUDA_API wcuda_status wcuda_backend_find(wcuda_string name, int32_t* type, wcuda_error* error);

#define WCUDA_FEATURE_FP16 (1u << 0)
#define WCUDA_FEATURE_FP64 (1u << 1)
#define WCUDA_FEATURE_ATOMICS (1u << 2)
#define WCUDA_FEATURE_SHARED_MEMORY (1u << 3)
#define WCUDA_FEATURE_SUBGROUPS (1u << 4)
#define WCUDA_FEATURE_COOPERATIVE_GROUPS (1u << 5)
#define WCUDA_FEATURE_TENSOR_CORES (1u << 6)
#define WCUDA_FEATURE_DYNAMIC_PARALLELISM (1u << 7)
/* Computes the WCUDA_FEATURE_... bits of a device from its capabilities. [any thread] */
WCUDA_API wcuda_status wcuda_device_features_get(const wcuda_device_caps* caps, uint64_t* features,
                                                 wcuda_error* error);

/* Without this flag, wcuda_backend_select tries HOST last. */
#define WCUDA_SELECT_NO_HOST (1u << 0)
typedef struct wcuda_selection_options {
  uint32_t struct_size;
  uint32_t flags;             /* WCUDA_SELECT_... */
  int32_t preferred;          /* the type to try first; 0 means none */
  uint32_t fallback_count;
  /* Types to try after `preferred`, in this order. If NULL and `preferred` is set: VULKAN, METAL and STDGPU,
   * of which only STDGPU can be opened. If NULL and `preferred` is 0: all types, highest priority
   * first. */
  const int32_t* fallbacks;
  uint64_t required_features; /* WCUDA_FEATURE_... bits; a device without them is skipped */
} wcuda_selection_options;
#define WCUDA_SELECTION_OPTIONS_INIT {sizeof(wcuda_selection_options), 0, 0, 0, NULL, 0}

typedef struct wcuda_skipped_backend {
  uint32_t struct_size;
  int32_t type;
  wcuda_status status;
  char reason[244]; /* NUL-terminated */
} wcuda_skipped_backend;
#define WCUDA_SKIPPED_BACKEND_INIT {sizeof(wcuda_skipped_backend), 0, 0, {0}}

typedef struct wcuda_selection {
  uint32_t struct_size;
  int32_t type; /* the selected type: CUDA, HOST or a registered type */
  int32_t ordinal;
  uint32_t reserved;
  /* Receives the types that were tried before and skipped, in order. The caller provides the array; it may
   * be NULL with capacity 0. */
  wcuda_skipped_backend* skipped;
  uint64_t skipped_capacity;
  uint64_t skipped_count;         /* written by the library: number of skipped types, which may exceed
                                     skipped_capacity */
} wcuda_selection;
#define WCUDA_SELECTION_INIT {sizeof(wcuda_selection), 0, 0, 0, NULL, 0, 0}
/* Selects the first backend type, in the order that the options give, whose device can be opened and has
 * the required features. If no type is usable, returns WCUDA_NOT_AVAILABLE, and the message has the
 * reasons. Only this function and the type AUTO choose between types; every other function opens the type
 * that it is given or fails. [any thread] */
WCUDA_API wcuda_status wcuda_backend_select(const wcuda_selection_options* options,
                                            wcuda_selection* selection, wcuda_error* error);

/* Maps a status to an error name, for example "OutOfMemory" or "KernelNotFound". This is for programs whose
 * own interface reports errors by name, for example as BackendError, MemoryError or KernelError. Every
 * status has a name; that of WCUDA_OK is "". The string is static. [any thread] */
WCUDA_API const char* wcuda_backend_error_name(wcuda_status status);

typedef struct wcuda_backend {
  uint64_t id;
} wcuda_backend;

/* Receives one call of a traced backend as a line of JSON without a newline:
 * {"slot":"copy_to_device","bytes":4096,"stream":0,"ns":812,"status":"WCUDA_OK"}. The callback runs after
 * the call, on the thread that made it, possibly on several threads at once. */
typedef void (*wcuda_trace_callback)(void* user, wcuda_string line);

/* Enables wcuda_backend_fault_set for the backend. */
#define WCUDA_BACKEND_WITH_FAULTS (1u << 0)
typedef struct wcuda_backend_options {
  uint32_t struct_size;
  int32_t type; /* WCUDA_BACKEND_...; AUTO selects as wcuda_backend_select does with default options */
  int32_t ordinal;
  uint32_t flags; /* WCUDA_BACKEND_WITH_... */
  uint64_t memory_budget;      /* see wcuda_context_options */
  uint32_t host_thread_count;  /* see wcuda_context_options */
  uint32_t reserved;
  wcuda_trace_callback trace;  /* NULL means that calls are not traced */
  void* trace_user;            /* must stay valid until the backend and everything created from it is
                                  released */
  wcuda_string library_folder; /* folder of NVRTC; see wcuda_program_options */
} wcuda_backend_options;
#define WCUDA_BACKEND_OPTIONS_INIT {sizeof(wcuda_backend_options), 0, 0, 0, 0, 0, 0, NULL, NULL, {NULL, 0}}

/* Opens a backend on a device. If `type` is not AUTO, the function opens that type or fails: with
 * WCUDA_NOT_AVAILABLE if this build or machine lacks the backend, or WCUDA_NO_DEVICE if it has no such
 * device. [any thread] */
WCUDA_API wcuda_status wcuda_backend_open(const wcuda_backend_options* options,
                                          wcuda_backend* backend, wcuda_error* error);
/* Closes the backend, as `deinit` in its table does. Releases all memory, kernels, streams and events that
 * were created through the table; those in use by a running call are released when that call returns.
 * Contexts created from the backend stay valid. [any thread] */
WCUDA_API void wcuda_backend_close(wcuda_backend backend);

typedef struct wcuda_backend_info {
  uint32_t struct_size;
  int32_t type; /* the type that was opened, never AUTO */
  int32_t ordinal;
  uint32_t device_count;
  int32_t is_traced;
  int32_t has_faults;
  uint64_t live_count;       /* memory, kernels, streams and events that were created through the table and
                                not yet released */
  char name[32];             /* name of the type */
  /* If AUTO was requested: the types that were skipped, each with the reason, separated by "; ".
   * NUL-terminated. */
  char fallback_reason[512];
} wcuda_backend_info;
#define WCUDA_BACKEND_INFO_INIT {sizeof(wcuda_backend_info), 0, 0, 0, 0, 0, 0, {0}, {0}}
/* Reports which device was opened and how. [any thread] */
WCUDA_API wcuda_status wcuda_backend_info_get(wcuda_backend backend, wcuda_backend_info* info,
                                              wcuda_error* error);

/* Creates a context on the backend's device. Tracing and fault injection of the backend also apply to the
 * context. Release it with wcuda_context_destroy. [any thread] */
WCUDA_API wcuda_status wcuda_backend_context_create(wcuda_backend backend, wcuda_context* context,
                                                    wcuda_error* error);

/* Flags of `allocate`. Without a flag, the memory is DEVICE memory. Bits 4 to 7 must be 0. */
#define WCUDA_MEMORY_DEVICE (1u << 0)
#define WCUDA_MEMORY_HOST_VISIBLE (1u << 1)  /* pinned host memory, for fast copies */
#define WCUDA_MEMORY_HOST_COHERENT (1u << 2) /* always true of HOST_VISIBLE memory */
#define WCUDA_MEMORY_CACHED (1u << 3)        /* always true of HOST_VISIBLE memory */

/* Memory of a backend. The id has an index and a generation, so the id of freed memory is never valid
 * again. In the library's table it is the id of a wcuda_buffer or, for HOST_VISIBLE memory, of a
 * wcuda_pinned. The layout of this struct is frozen, because tables pass it by value. */
typedef struct wcuda_device_memory {
  uint64_t id;
  uint64_t bytes; /* size as requested */
} wcuda_device_memory;

/* A kernel that a backend compiled. */
typedef struct wcuda_backend_kernel {
  uint64_t id;
} wcuda_backend_kernel;

/* The function table of a backend.
 *
 * `self` is the value that wcuda_backend_table_get or the `open` function of a registration returned. A
 * NULL entry means that the backend does not have the function. deinit, get_device_count, get_device_caps,
 * allocate, free, copy_to_device, copy_from_device and synchronize are required.
 *
 * A function returns WCUDA_OK, or another status with the reason in `error`; the library never passes NULL
 * for `error`. A function writes its outputs only on success. All functions may be called on several
 * threads at once. The functions of the library's table may also be called inside callbacks, so that one
 * table can wrap another.
 *
 * The backend chooses its own stream and event ids. Stream 0 always exists. In launch_kernel, an argument
 * of kind WCUDA_ARG_BUFFER has the id of a wcuda_device_memory in buffer.id. */
typedef struct wcuda_backend_vtable {
  uint32_t struct_size;
  uint32_t reserved;
  /* Closes the backend instance and releases everything that its functions returned. After deinit, the
   * functions of the library's table return WCUDA_INVALID_HANDLE. */
  void (*deinit)(void* self);
  uint32_t (*get_device_count)(void* self);
  /* Reports the capabilities of one of the backend's devices. Returns WCUDA_NO_DEVICE if `device` is not
   * less than get_device_count. */
  wcuda_status (*get_device_caps)(void* self, uint32_t device, wcuda_device_caps* caps,
                                  wcuda_error* error);
  wcuda_status (*allocate)(void* self, uint64_t bytes, uint8_t flags, wcuda_device_memory* memory,
                           wcuda_error* error);
  wcuda_status (*free)(void* self, wcuda_device_memory memory, wcuda_error* error);
  /* copy_to_device and copy_from_device copy between host and device memory and wait. `bytes` may be 0. */
  wcuda_status (*copy_to_device)(void* self, wcuda_device_memory target, uint64_t offset,
                                 const void* source, uint64_t bytes, wcuda_error* error);
  wcuda_status (*copy_from_device)(void* self, void* target, wcuda_device_memory source,
                                   uint64_t offset, uint64_t bytes, wcuda_error* error);
  /* copy_to_device_async and copy_from_device_async queue a copy. The host memory must stay valid and
   * unchanged until the copy is done. */
  wcuda_status (*copy_to_device_async)(void* self, wcuda_device_memory target, uint64_t offset,
                                       const void* source, uint64_t bytes, wcuda_stream stream,
                                       wcuda_error* error);
  wcuda_status (*copy_from_device_async)(void* self, void* target, wcuda_device_memory source,
                                         uint64_t offset, uint64_t bytes, wcuda_stream stream,
                                         wcuda_error* error);
  /* CUDA: `source` is CUDA C++, PTX, a cubin or a fatbin. `entry` is the name of a kernel or an expression
   * such as scale<float>.
   *
   * HOST compiles nothing. It first searches the text of `source` for `entry`, and returns WCUDA_NOT_FOUND
   * if it does not occur. Then it looks for `entry` in the kernel registries (section 22) of contexts
   * created from the backend, newest registry first. A launch then runs the host function of that kernel,
   * with arguments checked against its descriptor. If no registry has the entry, HOST looks for a built-in
   * kernel (section 19), which computes in f32. Returns WCUDA_UNSUPPORTED_KERNEL if there is no such kernel,
   * or if the kernel has no host function. */
  wcuda_status (*compile_kernel)(void* self, wcuda_string source, wcuda_string entry,
                                 wcuda_backend_kernel* kernel, wcuda_error* error);
  /* Queues a launch. The library's table checks it as wcuda_kernel_launch does. */
  wcuda_status (*launch_kernel)(void* self, wcuda_backend_kernel kernel, const wcuda_launch* config,
                                const wcuda_argument* arguments, uint64_t argument_count,
                                wcuda_error* error);
  wcuda_status (*destroy_kernel)(void* self, wcuda_backend_kernel kernel, wcuda_error* error);
  wcuda_status (*synchronize)(void* self, wcuda_error* error);
  /* Queues a copy. The ranges must not overlap. This function and all functions below are optional. */
  wcuda_status (*copy_on_device)(void* self, wcuda_device_memory target, uint64_t target_offset,
                                 wcuda_device_memory source, uint64_t source_offset, uint64_t bytes,
                                 wcuda_stream stream, wcuda_error* error);
  /* Queues a fill, as wcuda_buffer_fill describes it. */
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
  /* Makes all work that is queued on the stream after this call wait for the event. */
  wcuda_status (*event_order)(void* self, wcuda_event event, wcuda_stream stream,
                              wcuda_error* error);
  wcuda_status (*event_synchronize)(void* self, wcuda_event event, wcuda_error* error);
  wcuda_status (*event_done)(void* self, wcuda_event event, int32_t* done, wcuda_error* error);
  wcuda_status (*event_elapsed)(void* self, wcuda_event start, wcuda_event end,
                                double* milliseconds, wcuda_error* error);
  wcuda_status (*memory_info)(void* self, uint64_t* free_bytes, uint64_t* total_bytes,
                              wcuda_error* error);
  /* Returns WCUDA_OK, or WCUDA_DEVICE_LOST with the reason. Once a device is lost, it stays lost. */
  wcuda_status (*fault)(void* self, wcuda_error* error);
  /* Reports the host address of HOST_VISIBLE memory. */
  wcuda_status (*host_address)(void* self, wcuda_device_memory memory, void** address,
                               wcuda_error* error);
} wcuda_backend_vtable;
#define WCUDA_BACKEND_VTABLE_INIT \
  {sizeof(wcuda_backend_vtable), 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, \
   NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL}

/* Reports the library's function table, which is static, and the `self` of this backend. [any thread] */
WCUDA_API wcuda_status wcuda_backend_table_get(wcuda_backend backend,
                                               const wcuda_backend_vtable** table, void** self,
                                               wcuda_error* error);

typedef struct wcuda_backend_registration {
  uint32_t struct_size;
  int32_t priority;                  /* used by wcuda_backend_select; CUDA has 100, HOST 10 */
  wcuda_string name;                 /* 1 to 31 bytes; no other type may have the name */
  /* The library copies the table. The functions must stay valid until the last instance was closed with
   * deinit. */
  const wcuda_backend_vtable* table;
  /* Opens an instance on a device. The library passes its `self` to every function, and finally to
   * deinit. */
  wcuda_status (*open)(void* user, int32_t ordinal, void** self, wcuda_error* error);
  void* user; /* must stay valid as long as the functions */
} wcuda_backend_registration;
#define WCUDA_BACKEND_REGISTRATION_INIT {sizeof(wcuda_backend_registration), 0, {NULL, 0}, NULL, NULL, NULL}

/* Registers a backend for the whole process. `type` receives its number, which can then be used with the
 * functions above, with wcuda_context_create and with wcuda_device_count. Contexts on a registered backend
 * have buffers, streams, events, a ledger and digests. Models and built-in kernels need CUDA or HOST.
 * [any thread] */
WCUDA_API wcuda_status wcuda_backend_register(const wcuda_backend_registration* registration,
                                              int32_t* type, wcuda_error* error);
/* Removes a registered type. It can no longer be opened; instances that are open keep working.
 * [any thread] */
WCUDA_API wcuda_status wcuda_backend_unregister(int32_t type, wcuda_error* error);

#define WCUDA_FAULT_NONE 0
#define WCUDA_FAULT_ALLOCATE 1    /* the call returns WCUDA_OUT_OF_MEMORY */
#define WCUDA_FAULT_COPY 2        /* the call returns WCUDA_DEVICE_ERROR, as do the next two */
#define WCUDA_FAULT_LAUNCH 3      /* kernels, fills, digests */
#define WCUDA_FAULT_SYNCHRONIZE 4
#define WCUDA_FAULT_COMPILE 5     /* the call returns WCUDA_COMPILE_FAILED; applies to compile_kernel, and
                                     to wcuda_program_compile if the program has a context of the backend */
#define WCUDA_FAULT_LOST 6        /* any call; the device is then lost and stays lost */
/* Makes the k-th call of this kind from now on fail without calling the device; k = 1 is the next call.
 * Each request replaces the previous one. k = 0 or WCUDA_FAULT_NONE cancels the request, but a device that
 * is already lost stays lost. Returns WCUDA_INVALID_STATE if the backend was not opened with
 * WCUDA_BACKEND_WITH_FAULTS. [any thread] */
WCUDA_API wcuda_status wcuda_backend_fault_set(wcuda_backend backend, int32_t kind, uint64_t k,
                                               wcuda_error* error);

/* ------------------------------------------------------------------------------------------------
 * 21b. Failover: use another backend when one fails
 *
 * A failover group has a list of backends and uses one of them at a time, the active backend. When the
 * active backend fails, the group switches to another one. From then on, new contexts and self-contained
 * calls (wcuda_failover_call) use the other backend. Objects on a device, such as buffers, sequences,
 * models and sealed memory (docs/ARCHITECTURE.md), are never moved. Failover happens only in such a group,
 * and never silently: each stage of a switch is reported as an event and as a warning in the log.
 */
#define WCUDA_FAILOVER_NONE 0      /* counts failures and never switches */
#define WCUDA_FAILOVER_WARN 1      /* switches, and returns the failure; later contexts and calls use the
                                      next backend */
#define WCUDA_FAILOVER_AUTOMATIC 2 /* switches, and repeats the failed call on the next backend */

#define WCUDA_FAILOVER_REASON_DEVICE_LOST 1
#define WCUDA_FAILOVER_REASON_REPEATED 2      /* failure_threshold failures within window_ms */
#define WCUDA_FAILOVER_REASON_OUT_OF_MEMORY 3 /* only with WCUDA_FAILOVER_ON_OUT_OF_MEMORY */
#define WCUDA_FAILOVER_REASON_MANUAL 4

#define WCUDA_FAILOVER_STARTED 1   /* the switch away from `from` begins */
#define WCUDA_FAILOVER_COMPLETED 2 /* the switch is done: `to` is active */
#define WCUDA_FAILOVER_FAILED 3    /* `to` could not be opened or failed its test; see `status` */
#define WCUDA_FAILOVER_RESTORED 4  /* `to`, the first backend of the list, is active again */
#define WCUDA_FAILOVER_EXHAUSTED 5 /* no other backend is usable; `from` stays active */

typedef struct wcuda_failover_event {
  uint32_t struct_size;
  int32_t event;  /* WCUDA_FAILOVER_STARTED, ... */
  int32_t reason; /* WCUDA_FAILOVER_REASON_...; 0 if a test of the first backend caused the event (see
                     recheck_ms) */
  int32_t from;   /* backend type, as is `to` */
  int32_t to;
  wcuda_status status;
  char message[232]; /* NUL-terminated */
} wcuda_failover_event;
#define WCUDA_FAILOVER_EVENT_INIT {sizeof(wcuda_failover_event), 0, 0, 0, 0, 0, {0}}
/* Runs inside the call that caused the event, on the same thread. */
typedef void (*wcuda_failover_callback)(void* user, const wcuda_failover_event* event);

typedef struct wcuda_failover_target {
  uint32_t struct_size;
  int32_t type; /* WCUDA_BACKEND_..., not AUTO */
  int32_t ordinal;
  uint32_t reserved;
} wcuda_failover_target;
#define WCUDA_FAILOVER_TARGET_INIT {sizeof(wcuda_failover_target), 0, 0, 0}

#define WCUDA_FAILOVER_ON_OUT_OF_MEMORY (1u << 0)
typedef struct wcuda_failover_options {
  uint32_t struct_size;
  int32_t mode;               /* WCUDA_FAILOVER_NONE, _WARN or _AUTOMATIC */
  uint32_t flags;             /* WCUDA_FAILOVER_ON_... */
  uint32_t failure_threshold; /* number of failures; 0 means 3 */
  uint64_t window_ms;         /* milliseconds; 0 means 30,000. Older failures do not count */
  uint64_t cooldown_ms;       /* milliseconds for which a failed backend is not used; 0 means 60,000 */
  uint64_t recheck_ms;        /* milliseconds between two tests of the first backend; 0 means 30,000 */
  const wcuda_failover_target* targets; /* 1 to 16 backends, the preferred one first */
  uint64_t target_count;
  wcuda_failover_callback callback; /* may be NULL; the log has every event too */
  void* user;
} wcuda_failover_options;
#define WCUDA_FAILOVER_OPTIONS_INIT {sizeof(wcuda_failover_options), 0, 0, 0, 0, 0, 0, NULL, 0, NULL, NULL}

typedef struct wcuda_failover {
  uint64_t id;
} wcuda_failover;
/* Creates a failover group. No device is opened yet. [any thread] */
WCUDA_API wcuda_status wcuda_failover_create(const wcuda_failover_options* options,
                                             wcuda_failover* failover, wcuda_error* error);
/* Releases the group. Contexts created from it stay valid. [any thread] */
WCUDA_API void wcuda_failover_destroy(wcuda_failover failover);

/* Creates a context on the active backend. If that backend cannot be opened, the rules of
 * wcuda_failover_call decide whether the next backend is used instead. options->backend and
 * options->ordinal must be 0. [any thread] */
WCUDA_API wcuda_status wcuda_failover_context_create(wcuda_failover failover,
                                                     const wcuda_context_options* options,
                                                     wcuda_context* context, wcuda_error* error);

/* A self-contained call: it takes its inputs from host memory, leaves its outputs in host memory, and can
 * be repeated from the start. It may call this library. */
typedef wcuda_status (*wcuda_failover_body)(void* user, wcuda_context context, wcuda_error* error);
/* Runs `body` on the calling thread, with a context on the active backend.
 *
 * The group switches to the next backend when `body` returns WCUDA_DEVICE_LOST, or WCUDA_OUT_OF_MEMORY if
 * the options have WCUDA_FAILOVER_ON_OUT_OF_MEMORY. It also switches when `body` has returned
 * WCUDA_DEVICE_ERROR, WCUDA_NO_DEVICE or WCUDA_NOT_AVAILABLE failure_threshold times within window_ms. Any
 * other status, such as that of a compile error, a bad argument or a timeout, is returned to the caller and
 * has no effect on the group.
 *
 * If the first backend of the list is not active and its cooldown is over, the call tests it before it runs
 * `body`, at most once per recheck_ms. The test is a small computation or, for a registered backend, a copy.
 * If its result is correct, the first backend becomes active again.
 *
 * On success, `type` receives the backend type that ran `body`; it may be NULL. [any thread] */
WCUDA_API wcuda_status wcuda_failover_call(wcuda_failover failover, wcuda_failover_body body,
                                           void* user, int32_t* type, wcuda_error* error);
/* Counts a failure that happened outside wcuda_failover_call, in a context from
 * wcuda_failover_context_create. It has the same effect as a `body` that returned this status.
 * [any thread] */
WCUDA_API wcuda_status wcuda_failover_report(wcuda_failover failover, int32_t type,
                                             wcuda_status status, wcuda_error* error);
/* Switches away from the active backend. Returns WCUDA_INVALID_STATE if the mode is WCUDA_FAILOVER_NONE,
 * and WCUDA_NOT_AVAILABLE if no other backend is usable. [any thread] */
WCUDA_API wcuda_status wcuda_failover_trigger(wcuda_failover failover, wcuda_error* error);

typedef struct wcuda_failover_state {
  uint32_t struct_size;
  int32_t type; /* type of the active backend */
  int32_t ordinal;
  int32_t is_degraded;    /* 1 if the active backend is not the first of the list */
  uint64_t failure_count; /* device failures since the group was created */
  uint64_t move_count;    /* completed switches */
  uint64_t restore_count;
} wcuda_failover_state;
#define WCUDA_FAILOVER_STATE_INIT {sizeof(wcuda_failover_state), 0, 0, 0, 0, 0, 0}
/* Reports the active backend and the counts. [any thread] */
WCUDA_API wcuda_status wcuda_failover_state_get(wcuda_failover failover,
                                                wcuda_failover_state* state, wcuda_error* error);

#ifdef __cplusplus
}
#endif

#endif /* WORKER_CUDA_BACKEND_H */
