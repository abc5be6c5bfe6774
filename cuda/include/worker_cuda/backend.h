/* worker_cuda/backend.h: one table of functions for every kind of device, and failover between backends.
 *
 * Sections 21 and 21b of the interface. The conventions of worker_cuda/base.h apply.
 *
 * EXAMPLE: open the best backend, say which one it is, and create a context on it.
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
 * examples/c/backend.c registers a backend of its own.
 */
#ifndef WORKER_CUDA_BACKEND_H
#define WORKER_CUDA_BACKEND_H

#include "worker_cuda/compute.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ------------------------------------------------------------------------------------------------
 * 21. Backends: one table of functions for every kind of device
 *
 * A backend allocates, copies, compiles, launches and waits on one device. CUDA and HOST are built in; a
 * caller can register more. All are used through one table, or through a context created from one. A table
 * of this library checks each call: foreign and freed handles, ranges, launch dimensions, kernel arguments. A
 * table of a caller is called only with handles that it returned, and ranges within them.
 */

/* Types beyond WCUDA_BACKEND_AUTO, _CUDA and _HOST. STDGPU and SIMULATED are other names of HOST, which
 * computes for real; the others are reserved: opening them returns WCUDA_NOT_AVAILABLE. Registered
 * types are numbered from 256. */
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
  wcuda_status status; /* WCUDA_OK, or why it is not available */
  char name[32];       /* "cuda", "host", ... NUL-terminated */
  char reason[200];    /* likewise; "" when available */
} wcuda_backend_entry;
#define WCUDA_BACKEND_ENTRY_INIT {sizeof(wcuda_backend_entry), 0, 0, 0, 0, 0, {0}, {0}}
/* Lists all types, highest priority first. [any thread] */
WCUDA_API wcuda_status wcuda_backend_list(uint64_t first, wcuda_backend_entry* entries,
                                          uint64_t capacity, uint64_t* count, wcuda_error* error);
/* Finds a type by name: "cuda", "host", "vulkan", ... or a registered one; WCUDA_NOT_FOUND. [any thread] */
WCUDA_API wcuda_status wcuda_backend_find(wcuda_string name, int32_t* type, wcuda_error* error);

#define WCUDA_FEATURE_FP16 (1u << 0)
#define WCUDA_FEATURE_FP64 (1u << 1)
#define WCUDA_FEATURE_ATOMICS (1u << 2)
#define WCUDA_FEATURE_SHARED_MEMORY (1u << 3)
#define WCUDA_FEATURE_SUBGROUPS (1u << 4)
#define WCUDA_FEATURE_COOPERATIVE_GROUPS (1u << 5)
#define WCUDA_FEATURE_TENSOR_CORES (1u << 6)
#define WCUDA_FEATURE_DYNAMIC_PARALLELISM (1u << 7)
/* Computes the WCUDA_FEATURE_... bits of a device. [any thread] */
WCUDA_API wcuda_status wcuda_device_features_get(const wcuda_device_caps* caps, uint64_t* features,
                                                 wcuda_error* error);

/* Do not fall back to HOST when nothing else is available. */
#define WCUDA_SELECT_NO_HOST (1u << 0)
typedef struct wcuda_selection_options {
  uint32_t struct_size;
  uint32_t flags;             /* WCUDA_SELECT_... */
  int32_t preferred;          /* a type; 0: none */
  uint32_t fallback_count;
  const int32_t* fallbacks;   /* types to try after `preferred`. NULL: if a type is preferred, vulkan,
                                 metal and stdgpu; else all types, highest priority first */
  uint64_t required_features; /* WCUDA_FEATURE_... bits that the device must have */
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
  int32_t type; /* CUDA, HOST or a registered type */
  int32_t ordinal;
  uint32_t reserved;
  wcuda_skipped_backend* skipped; /* memory of the caller: the types tried before, in order; may be NULL
                                     with capacity 0 */
  uint64_t skipped_capacity;
  uint64_t skipped_count;         /* written: how many there are, which may exceed the capacity */
} wcuda_selection;
#define WCUDA_SELECTION_INIT {sizeof(wcuda_selection), 0, 0, 0, NULL, 0, 0}
/* Selects the best backend: the first in order whose device answers and has the features. Only this
 * function and AUTO fall back; opening a type by number never does. WCUDA_NOT_AVAILABLE when none is
 * usable, with the reasons. [any thread] */
WCUDA_API wcuda_status wcuda_backend_select(const wcuda_selection_options* options,
                                            wcuda_selection* selection, wcuda_error* error);

/* Returns the name of a status in the error enumerations of older backend interfaces (BackendError,
 * MemoryError, KernelError): "OutOfMemory", "KernelNotFound", ...; "" for WCUDA_OK. Every code has one.
 * Static text. [any thread] */
WCUDA_API const char* wcuda_backend_error_name(wcuda_status status);

typedef struct wcuda_backend {
  uint64_t id;
} wcuda_backend;

/* Receives one call of a traced backend, as a line of JSON without its newline:
 * {"slot":"copy_to_device","bytes":4096,"stream":0,"ns":812,"status":"WCUDA_OK"}. Runs on the thread of
 * the call, after it, possibly on several at once. */
typedef void (*wcuda_trace_callback)(void* user, wcuda_string line);

/* Enables wcuda_backend_fault_set. */
#define WCUDA_BACKEND_WITH_FAULTS (1u << 0)
typedef struct wcuda_backend_options {
  uint32_t struct_size;
  int32_t type; /* WCUDA_BACKEND_...; AUTO: as wcuda_backend_select selects */
  int32_t ordinal;
  uint32_t flags; /* WCUDA_BACKEND_WITH_... */
  uint64_t memory_budget;      /* as in wcuda_context_options */
  uint32_t host_thread_count;  /* likewise */
  uint32_t reserved;
  wcuda_trace_callback trace;  /* NULL: none */
  void* trace_user;            /* must outlive everything created from the backend */
  wcuda_string library_folder; /* of NVRTC, as in wcuda_program_options */
} wcuda_backend_options;
#define WCUDA_BACKEND_OPTIONS_INIT {sizeof(wcuda_backend_options), 0, 0, 0, 0, 0, 0, NULL, NULL, {NULL, 0}}

/* Opens a backend on a device. A specific type is opened or fails: WCUDA_NOT_AVAILABLE, WCUDA_NO_DEVICE.
 * [any thread] */
WCUDA_API wcuda_status wcuda_backend_open(const wcuda_backend_options* options,
                                          wcuda_backend* backend, wcuda_error* error);
/* Ends the backend as function deinit of its table does: releases memory, kernels, streams and events
 * created through the table. What a running call uses is released when that call returns. Contexts created
 * from the backend stay. [any thread] */
WCUDA_API void wcuda_backend_close(wcuda_backend backend);

typedef struct wcuda_backend_info {
  uint32_t struct_size;
  int32_t type; /* in use */
  int32_t ordinal;
  uint32_t device_count;
  int32_t is_traced;
  int32_t has_faults;
  uint64_t live_count;       /* memory, kernels, streams and events created through the table */
  char name[32];             /* of the type */
  char fallback_reason[512]; /* AUTO: each type passed over and why, separated by "; ". NUL-terminated */
} wcuda_backend_info;
#define WCUDA_BACKEND_INFO_INIT {sizeof(wcuda_backend_info), 0, 0, 0, 0, 0, 0, {0}, {0}}
/* Reports what was opened. [any thread] */
WCUDA_API wcuda_status wcuda_backend_info_get(wcuda_backend backend, wcuda_backend_info* info,
                                              wcuda_error* error);

/* Creates a context on the backend's device, with the same trace and faults. Released by
 * wcuda_context_destroy. [any thread] */
WCUDA_API wcuda_status wcuda_backend_context_create(wcuda_backend backend, wcuda_context* context,
                                                    wcuda_error* error);

/* Flags of `allocate`; without any, memory is DEVICE. Bits 4 to 7 are 0. */
#define WCUDA_MEMORY_DEVICE (1u << 0)
#define WCUDA_MEMORY_HOST_VISIBLE (1u << 1)  /* pinned host memory, for fast copies */
#define WCUDA_MEMORY_HOST_COHERENT (1u << 2) /* HOST_VISIBLE memory always is */
#define WCUDA_MEMORY_CACHED (1u << 3)        /* likewise */

/* Memory of a backend. The id has an index and a generation: a freed one is refused for ever. In a table of
 * this library it is the id of a wcuda_buffer, or (HOST_VISIBLE) of a wcuda_pinned. This layout is frozen:
 * tables pass it by value. */
typedef struct wcuda_device_memory {
  uint64_t id;
  uint64_t bytes; /* as requested */
} wcuda_device_memory;

/* A kernel that a backend compiled. */
typedef struct wcuda_backend_kernel {
  uint64_t id;
} wcuda_backend_kernel;

/* The table. `self` is what wcuda_backend_table_get or `open` of a registration returned. NULL in a slot (a
 * function of the table) says that the backend lacks it; deinit, get_device_count, get_device_caps,
 * allocate, free, copy_to_device, copy_from_device and synchronize are required. Functions return WCUDA_OK
 * or a status, and fill `error` (never NULL in calls of this library) with the reason; outputs are written
 * on success only. All may run on several threads at once. Those of this library may be called inside
 * callbacks, so that one table can wrap another. Streams and events are ids of the backend's own; stream id
 * 0 is the one that every backend has. In a launch, buffer.id of an argument is the id of memory. */
typedef struct wcuda_backend_vtable {
  uint32_t struct_size;
  uint32_t reserved;
  /* Ends the instance and releases everything it returned. A table of this library answers
   * WCUDA_INVALID_HANDLE after it. */
  void (*deinit)(void* self);
  uint32_t (*get_device_count)(void* self);
  /* Of any device of the backend; WCUDA_NO_DEVICE past the last. */
  wcuda_status (*get_device_caps)(void* self, uint32_t device, wcuda_device_caps* caps,
                                  wcuda_error* error);
  wcuda_status (*allocate)(void* self, uint64_t bytes, uint8_t flags, wcuda_device_memory* memory,
                           wcuda_error* error);
  wcuda_status (*free)(void* self, wcuda_device_memory memory, wcuda_error* error);
  /* Copy between host and device memory; these two wait. Bytes 0 is legal. */
  wcuda_status (*copy_to_device)(void* self, wcuda_device_memory target, uint64_t offset,
                                 const void* source, uint64_t bytes, wcuda_error* error);
  wcuda_status (*copy_from_device)(void* self, void* target, wcuda_device_memory source,
                                   uint64_t offset, uint64_t bytes, wcuda_error* error);
  /* Queued; the host memory must stay valid and unchanged until the stream has passed the copy. */
  wcuda_status (*copy_to_device_async)(void* self, wcuda_device_memory target, uint64_t offset,
                                       const void* source, uint64_t bytes, wcuda_stream stream,
                                       wcuda_error* error);
  wcuda_status (*copy_from_device_async)(void* self, void* target, wcuda_device_memory source,
                                         uint64_t offset, uint64_t bytes, wcuda_stream stream,
                                         wcuda_error* error);
  /* CUDA: source is CUDA C++, PTX, a cubin or a fatbin; entry is a name or an expression such as
   * scale<float>.
   * HOST compiles nothing. It looks for the entry among the kernels registered by descriptor (section 22) in
   * contexts created from the backend, newest registry first; the kernel's host function then runs with the
   * caller's launch, and with arguments checked against the descriptor. If there is none, entry names a
   * built-in kernel (section 19), computed in f32. Any other entry, and a registered one without a host
   * function, returns WCUDA_UNSUPPORTED_KERNEL; a source in which the entry does not occur returns
   * WCUDA_NOT_FOUND. */
  wcuda_status (*compile_kernel)(void* self, wcuda_string source, wcuda_string entry,
                                 wcuda_backend_kernel* kernel, wcuda_error* error);
  /* Queued. Checked as wcuda_kernel_launch checks. */
  wcuda_status (*launch_kernel)(void* self, wcuda_backend_kernel kernel, const wcuda_launch* config,
                                const wcuda_argument* arguments, uint64_t argument_count,
                                wcuda_error* error);
  wcuda_status (*destroy_kernel)(void* self, wcuda_backend_kernel kernel, wcuda_error* error);
  wcuda_status (*synchronize)(void* self, wcuda_error* error);
  /* Queued; the ranges do not overlap. This slot and those below are optional. */
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
  /* Makes work queued on the stream from now on wait for the event. */
  wcuda_status (*event_order)(void* self, wcuda_event event, wcuda_stream stream,
                              wcuda_error* error);
  wcuda_status (*event_synchronize)(void* self, wcuda_event event, wcuda_error* error);
  wcuda_status (*event_done)(void* self, wcuda_event event, int32_t* done, wcuda_error* error);
  wcuda_status (*event_elapsed)(void* self, wcuda_event start, wcuda_event end,
                                double* milliseconds, wcuda_error* error);
  wcuda_status (*memory_info)(void* self, uint64_t* free_bytes, uint64_t* total_bytes,
                              wcuda_error* error);
  /* WCUDA_OK, or WCUDA_DEVICE_LOST with the reason, and from then on always. */
  wcuda_status (*fault)(void* self, wcuda_error* error);
  /* Reports the host address of HOST_VISIBLE memory. */
  wcuda_status (*host_address)(void* self, wcuda_device_memory memory, void** address,
                               wcuda_error* error);
} wcuda_backend_vtable;
#define WCUDA_BACKEND_VTABLE_INIT \
  {sizeof(wcuda_backend_vtable), 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, \
   NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL}

/* Reports the table of a backend and its `self`; the table is static. [any thread] */
WCUDA_API wcuda_status wcuda_backend_table_get(wcuda_backend backend,
                                               const wcuda_backend_vtable** table, void** self,
                                               wcuda_error* error);

typedef struct wcuda_backend_registration {
  uint32_t struct_size;
  int32_t priority;                  /* in wcuda_backend_select; CUDA has 100, HOST 10 */
  wcuda_string name;                 /* 1 to 31 bytes, unique among all types */
  const wcuda_backend_vtable* table; /* copied; its functions stay valid until the last instance has ended */
  /* Creates an instance on a device; its `self` is passed to every function, and ends with deinit. */
  wcuda_status (*open)(void* user, int32_t ordinal, void** self, wcuda_error* error);
  void* user; /* valid as long as the functions */
} wcuda_backend_registration;
#define WCUDA_BACKEND_REGISTRATION_INIT {sizeof(wcuda_backend_registration), 0, {NULL, 0}, NULL, NULL, NULL}

/* Adds a backend to the process. `type` receives its number, for the functions above, contexts (section 5)
 * and devices (section 4). Contexts on it have buffers, streams, events, a ledger and digests; models and
 * the catalogue need CUDA or HOST. [any thread] */
WCUDA_API wcuda_status wcuda_backend_register(const wcuda_backend_registration* registration,
                                              int32_t* type, wcuda_error* error);
/* Removes a registered type: no new instances can be created; existing ones keep working. [any thread] */
WCUDA_API wcuda_status wcuda_backend_unregister(int32_t type, wcuda_error* error);

#define WCUDA_FAULT_NONE 0
#define WCUDA_FAULT_ALLOCATE 1    /* WCUDA_OUT_OF_MEMORY */
#define WCUDA_FAULT_COPY 2        /* WCUDA_DEVICE_ERROR, as the next two */
#define WCUDA_FAULT_LAUNCH 3      /* kernels, fills, digests */
#define WCUDA_FAULT_SYNCHRONIZE 4
#define WCUDA_FAULT_COMPILE 5     /* WCUDA_COMPILE_FAILED; slot compile_kernel, and wcuda_program_compile of a
                                     program created with a context of the backend */
#define WCUDA_FAULT_LOST 6        /* any call: the device is lost from then on */
/* Injects a fault: the k-th call of a kind from now on fails (1: the next), before the device is called;
 * k 0 or NONE: no more. Replaces the previous request; a lost device stays lost. WCUDA_INVALID_STATE unless
 * the backend was opened WITH_FAULTS. [any thread] */
WCUDA_API wcuda_status wcuda_backend_fault_set(wcuda_backend backend, int32_t kind, uint64_t k,
                                               wcuda_error* error);

/* ------------------------------------------------------------------------------------------------
 * 21b. Failover: move to the next backend when one fails
 *
 * New contexts, and whole calls whose inputs are on the host, move to the next backend when one fails.
 * Objects that live on a device (buffers, sequences, models, sealed memory) never move. Failover is off by
 * default and never silent: every step is an event and a warning in the log.
 */
#define WCUDA_FAILOVER_NONE 0      /* failures are counted, nothing moves */
#define WCUDA_FAILOVER_WARN 1      /* contexts and calls after the failure move; the failure is returned */
#define WCUDA_FAILOVER_AUTOMATIC 2 /* the failed call is repeated on the next backend, too */

#define WCUDA_FAILOVER_REASON_DEVICE_LOST 1
#define WCUDA_FAILOVER_REASON_REPEATED 2      /* failure_threshold failures within the window */
#define WCUDA_FAILOVER_REASON_OUT_OF_MEMORY 3 /* only with WCUDA_FAILOVER_ON_OUT_OF_MEMORY */
#define WCUDA_FAILOVER_REASON_MANUAL 4

#define WCUDA_FAILOVER_STARTED 1   /* `from` is left */
#define WCUDA_FAILOVER_COMPLETED 2 /* `to` answers */
#define WCUDA_FAILOVER_FAILED 3    /* `to` does not answer or computes a probe wrong; see status */
#define WCUDA_FAILOVER_RESTORED 4  /* the first backend computes a probe correctly and is used again */
#define WCUDA_FAILOVER_EXHAUSTED 5 /* no backend is left; `from` stays in use */

typedef struct wcuda_failover_event {
  uint32_t struct_size;
  int32_t event;  /* WCUDA_FAILOVER_STARTED, ... */
  int32_t reason; /* WCUDA_FAILOVER_REASON_...; 0 for RESTORED */
  int32_t from;   /* backend types */
  int32_t to;
  wcuda_status status;
  char message[232]; /* NUL-terminated */
} wcuda_failover_event;
#define WCUDA_FAILOVER_EVENT_INIT {sizeof(wcuda_failover_event), 0, 0, 0, 0, 0, {0}}
/* Runs on the thread whose call it concerns, within that call. */
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
  uint32_t failure_threshold; /* 0: 3 */
  uint64_t window_ms;         /* 0: 30,000. Older failures are forgotten */
  uint64_t cooldown_ms;       /* 0: 60,000. How long a backend that was left is not used */
  uint64_t recheck_ms;        /* 0: 30,000. Between two probes of the first backend */
  const wcuda_failover_target* targets; /* 1 to 16, the first preferred */
  uint64_t target_count;
  wcuda_failover_callback callback; /* may be NULL; the log has every event as well */
  void* user;
} wcuda_failover_options;
#define WCUDA_FAILOVER_OPTIONS_INIT {sizeof(wcuda_failover_options), 0, 0, 0, 0, 0, 0, NULL, 0, NULL, NULL}

typedef struct wcuda_failover {
  uint64_t id;
} wcuda_failover;
/* Creates a failover; opens no device yet. [any thread] */
WCUDA_API wcuda_status wcuda_failover_create(const wcuda_failover_options* options,
                                             wcuda_failover* failover, wcuda_error* error);
/* Releases it; contexts created from it stay. [any thread] */
WCUDA_API void wcuda_failover_destroy(wcuda_failover failover);

/* Creates a context on the backend in use. If it cannot be opened, the rules of wcuda_failover_call decide
 * whether the next is used. backend and ordinal of `options` are 0. [any thread] */
WCUDA_API wcuda_status wcuda_failover_context_create(wcuda_failover failover,
                                                     const wcuda_context_options* options,
                                                     wcuda_context* context, wcuda_error* error);

/* A whole call: takes its inputs from the host, leaves its outputs there, and can be repeated from the
 * start. It runs as the caller's own code and may call this library. */
typedef wcuda_status (*wcuda_failover_body)(void* user, wcuda_context context, wcuda_error* error);
/* Runs the body with a context on the backend in use, on the calling thread. A backend is left when the
 * body returns WCUDA_DEVICE_LOST or (with the flag) WCUDA_OUT_OF_MEMORY, or when it has returned
 * WCUDA_DEVICE_ERROR, _NO_DEVICE or _NOT_AVAILABLE failure_threshold times within the window. Any other
 * status, such as a compile error, a bad argument or a timeout, is returned and changes nothing. After the
 * cooldown the first backend is probed at most every recheck_ms, and used again when it computes the probe
 * correctly. On success `type` (may be NULL) receives the backend that ran the body. [any thread] */
WCUDA_API wcuda_status wcuda_failover_call(wcuda_failover failover, wcuda_failover_body body,
                                           void* user, int32_t* type, wcuda_error* error);
/* Counts a failure in a context of wcuda_failover_context_create, as if a body had returned it.
 * [any thread] */
WCUDA_API wcuda_status wcuda_failover_report(wcuda_failover failover, int32_t type,
                                             wcuda_status status, wcuda_error* error);
/* Leaves the backend in use. WCUDA_INVALID_STATE with WCUDA_FAILOVER_NONE; WCUDA_NOT_AVAILABLE when there
 * is no other. [any thread] */
WCUDA_API wcuda_status wcuda_failover_trigger(wcuda_failover failover, wcuda_error* error);

typedef struct wcuda_failover_state {
  uint32_t struct_size;
  int32_t type; /* in use */
  int32_t ordinal;
  int32_t is_degraded;    /* 1: not the first */
  uint64_t failure_count; /* of devices, since creation */
  uint64_t move_count;    /* completed */
  uint64_t restore_count;
} wcuda_failover_state;
#define WCUDA_FAILOVER_STATE_INIT {sizeof(wcuda_failover_state), 0, 0, 0, 0, 0, 0}
/* Reports the backend in use and the counts. [any thread] */
WCUDA_API wcuda_status wcuda_failover_state_get(wcuda_failover failover,
                                                wcuda_failover_state* state, wcuda_error* error);

#ifdef __cplusplus
}
#endif

#endif /* WORKER_CUDA_BACKEND_H */
