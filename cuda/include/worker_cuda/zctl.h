/* worker_cuda/zctl.h: kernels of a registry for programs that know only bytes.
 *
 * Section 23 of the interface. The conventions of worker_cuda/base.h apply.
 *
 * EXAMPLE: list the kernels of a registry by a frame in a memory of 4,096 bytes.
 *
 *   static uint8_t memory[4096] = {0x5a, 0x43, 0x54, 0x4c, 1, 0, 0x01, 0x01};
 *   wcuda_zctl_session session = {0};
 *   wcuda_zctl_options options = WCUDA_ZCTL_OPTIONS_INIT;
 *   options.registry = registry;
 *   if (wcuda_zctl_session_create(&options, &session, &error) != WCUDA_OK)
 *     return report(error.message);
 *   const int32_t bytes = wcuda_zctl_call(session, memory, sizeof(memory), 0, 32, 1024, 1024, 0);
 *   printf("%d bytes, %d kernels\n", bytes, memory[1024 + 32]);
 *   wcuda_zctl_session_destroy(session);
 */
#ifndef WORKER_CUDA_ZCTL_H
#define WORKER_CUDA_ZCTL_H

#include "worker_cuda/compute.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ------------------------------------------------------------------------------------------------
 * 23. ZCTL/1: a binary protocol for listing and running kernels
 *
 * A guest is a program with one flat memory. A session answers its frames: it lists the kernels of a registry
 * and runs them on windows of the guest's memory. docs/FORMATS.md states every byte, check and message. Frames
 * and memory are hostile: a session touches no byte outside the memory, whatever a frame says, reads nothing
 * twice, and writes a response completely or not at all.
 *
 * Frames of ZCL1, which begin with other bytes, are answered too. They open handles: buffers of the device, and
 * records of what was submitted to it. A handle is read and written by the functions wcuda_zctl_handle_...,
 * which are what the callbacks of a guest do with it.
 */

/* Permits kernels with WCUDA_KERNEL_NON_DETERMINISTIC. */
#define WCUDA_ZCTL_NON_DETERMINISTIC (1u << 0)
/* `allowed` is the list of kernels that may run. Without it all may. */
#define WCUDA_ZCTL_ALLOW_LIST (1u << 1)

/* Permits a guest to load and run device code of its own (ZCL1: MODULE_LOAD). Such code is trusted. */
#define WCUDA_ZCTL_FOREIGN_MODULES (1u << 2)

/* What a recorder receives, in this order within a call. */
#define WCUDA_ZCTL_REQUEST 1  /* the frame; empty if it lies outside the memory */
#define WCUDA_ZCTL_READ 2     /* each range of the memory that was read: by offset, then length, ascending */
#define WCUDA_ZCTL_WRITTEN 3  /* each range that was written, without the response; ascending */
#define WCUDA_ZCTL_RESPONSE 4 /* the response, and what the call returns */
#define WCUDA_ZCTL_CLOSED 5   /* once, when the session is destroyed */

typedef struct wcuda_zctl_record {
  uint32_t struct_size;
  int32_t kind;     /* WCUDA_ZCTL_... */
  uint64_t offset;  /* in the memory; of READ and WRITTEN */
  const void* data; /* valid until the recorder returns. READ: as it was read, once */
  uint64_t bytes;
  int32_t ret;      /* of RESPONSE */
  uint32_t reserved;
} wcuda_zctl_record;
#define WCUDA_ZCTL_RECORD_INIT {sizeof(wcuda_zctl_record), 0, 0, NULL, 0, 0, 0}
/* Runs on the thread of the call, within it. */
typedef void (*wcuda_zctl_recorder)(void* user, const wcuda_zctl_record* record);

typedef struct wcuda_zctl_options {
  uint32_t struct_size;
  uint32_t flags;               /* WCUDA_ZCTL_... */
  wcuda_registry registry;      /* kept alive; id 0: none */
  wcuda_string reason;          /* without a registry: what runs are answered with. Empty: "CUDA runtime
                                   disabled" in a library without CUDA, else "no device" */
  uint32_t payload_bytes_max;   /* of requests, and of responses of wcuda_zctl_serve; 0: 1 MiB; at most 1 GiB */
  uint32_t argument_count_max;  /* of a run; 0: 64; at most 4,096 */
  uint32_t rank_max;            /* 0: 8, the most */
  uint32_t message_bytes_max;   /* 0: 1,024 */
  uint64_t device_bytes_max;    /* of the buffers of a run, and of those of ZCL1 together; 0: 1 GiB */
  uint32_t budget_ms;           /* of a run, and of each wait of ZCL1; 0: 30,000; from 2^31 on: none */
  uint32_t allowed_count;
  const uint32_t* allowed;      /* kernel ids; with WCUDA_ZCTL_ALLOW_LIST */
  wcuda_zctl_recorder recorder; /* NULL: none */
  void* recorder_user;          /* valid until WCUDA_ZCTL_CLOSED */
} wcuda_zctl_options;
#define WCUDA_ZCTL_OPTIONS_INIT \
  {sizeof(wcuda_zctl_options), 0, {0}, {NULL, 0}, 0, 0, 0, 0, 0, 0, 0, NULL, NULL, NULL}

typedef struct wcuda_zctl_session {
  uint64_t id;
} wcuda_zctl_session;

/* Creates a session. Without a registry it lists "noop" and "tensor_add" as kernels that cannot run here, and
 * answers runs with status 6 and the reason. WCUDA_INVALID_ARGUMENT for a limit over its maximum. A session
 * keeps the device memory of its largest run, of purpose WCUDA_PURPOSE_SCRATCH, and on a device as much of
 * WCUDA_PURPOSE_STAGING. The recorder is not called when this fails. [any thread] */
WCUDA_API wcuda_status wcuda_zctl_session_create(const wcuda_zctl_options* options,
                                                 wcuda_zctl_session* session, wcuda_error* error);
/* Destroys a session after its call in progress. Waits for a run that passed its budget and is still at work
 * on the device. [any thread] */
WCUDA_API void wcuda_zctl_session_destroy(wcuda_zctl_session session);

/* Answers a frame: the bytes [req_ptr, req_ptr + req_len) of the memory, in [resp_ptr,
 * resp_ptr + resp_cap), which may overlap it. timeout_ms: 0 and negative: no limit of this call. Returns the
 * bytes of the response, or -1 when there is none and nothing was written: windows outside the memory, no
 * frame of ZCTL/1, a response that does not fit; also for an invalid session, a second call of a session
 * at the same time, and inside a callback of the library. A frame of ZCL1 that is not well formed has an
 * answer. Session id 0 has no capabilities: CAPS_LIST lists none, and every other op has status 2 (ZCL1:
 * t_ctl_unknown_op).
 *
 * A run waits for its kernel, at most for the smallest of its budgets. A kernel on a device is not stopped:
 * until it ends, runs on that device are answered with status 6. A kernel on HOST is answered when it returns.
 * [any thread; external: the memory] */
WCUDA_API int32_t wcuda_zctl_call(wcuda_zctl_session session, void* memory, uint64_t memory_bytes,
                                  int32_t req_ptr, int32_t req_len, int32_t resp_ptr,
                                  int32_t resp_cap, int32_t timeout_ms);

/* Answers a frame of a connection. Its request and its response are not in the memory. The ops from 0x8000 on
 * are valid only here. A response over the limit of a payload is status 5; a response_capacity of 32 bytes
 * more than that limit is always enough. A frame of which only the header was received is answered like one
 * with a wrong length: status 1. Returns as wcuda_zctl_call: -1 is a reason to close the connection.
 * [any thread; external: the memory] */
WCUDA_API int32_t wcuda_zctl_serve(wcuda_zctl_session session, void* memory, uint64_t memory_bytes,
                                   const void* request, uint64_t request_bytes, void* response,
                                   uint64_t response_capacity);

/* The three callbacks of a guest, for the handles that CAPS_OPEN of ZCL1 gave, which are 4 and above. Read and
 * write return the bytes moved, which lie in the memory from ptr on; -1 for an unknown handle, a window outside
 * the memory, and what the handle does not permit, with nothing moved. A read is 0 at the end. They wait for
 * submissions in progress, at most for the budget. Ending a handle frees its buffer; twice has no effect. Not
 * recorded. [any thread; external: the memory] */
WCUDA_API int32_t wcuda_zctl_handle_read(wcuda_zctl_session session, int32_t handle, void* memory,
                                         uint64_t memory_bytes, int32_t ptr, int32_t cap);
WCUDA_API int32_t wcuda_zctl_handle_write(wcuda_zctl_session session, int32_t handle,
                                          const void* memory, uint64_t memory_bytes, int32_t ptr,
                                          int32_t len);
WCUDA_API void wcuda_zctl_handle_end(wcuda_zctl_session session, int32_t handle);

#ifdef __cplusplus
}
#endif

#endif /* WORKER_CUDA_ZCTL_H */
