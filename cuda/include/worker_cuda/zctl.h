/* worker_cuda/zctl.h: lists and runs kernels for programs that exchange only bytes (ZCTL/1, ZCL1).
 *
 * Section 23 of the interface. The conventions of worker_cuda/base.h apply.
 *
 * EXAMPLE: list the kernels of a registry. The guest has 4,096 bytes of memory. Its request, a header of 32
 * bytes, is at offset 0, and the response is written at offset 1,024.
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
 * A guest is a program with one flat memory. It sends requests, called frames, and a session answers each with
 * a response: it lists the kernels of a registry, or runs one of them on ranges of the guest's memory.
 * docs/FORMATS.md defines every byte, check and message.
 *
 * Frames and memory are not trusted. Whatever a frame contains, a session accesses no byte outside the memory,
 * reads no byte twice, and writes either a complete response or nothing.
 *
 * A session also answers frames of a second protocol, ZCL1; the first bytes of a frame determine its protocol.
 * With ZCL1 a guest can open handles of two kinds: buffers on the device, and submissions. A submission is a run
 * that the guest does not wait for. The guest reads and writes handles through callbacks, which the program
 * implements with wcuda_zctl_handle_read, _write and _end.
 */

/* Flags of a session. */
/* Permits kernels with WCUDA_KERNEL_NON_DETERMINISTIC. Without this flag they are refused. */
#define WCUDA_ZCTL_NON_DETERMINISTIC (1u << 0)
/* Permits only the kernels in `allowed`. Without this flag all kernels may run. */
#define WCUDA_ZCTL_ALLOW_LIST (1u << 1)
/* Permits a guest to load and run device code of its own (MODULE_LOAD of ZCL1). Set it only for guests that you
 * trust, because the library cannot check what such code does. */
#define WCUDA_ZCTL_FOREIGN_MODULES (1u << 2)

/* Kinds of records that a recorder receives, in this order within a call. */
#define WCUDA_ZCTL_REQUEST 1  /* the frame; empty if it lies outside the memory */
#define WCUDA_ZCTL_READ 2     /* a range of the memory that was read; sorted by offset, then by length */
#define WCUDA_ZCTL_WRITTEN 3  /* a range that was written, except the response; sorted in the same way */
#define WCUDA_ZCTL_RESPONSE 4 /* the response, and the return value of the call */
#define WCUDA_ZCTL_CLOSED 5   /* once, when the session is destroyed */

typedef struct wcuda_zctl_record {
  uint32_t struct_size;
  int32_t kind;     /* WCUDA_ZCTL_... */
  uint64_t offset;  /* in the memory; for READ and WRITTEN */
  const void* data; /* valid until the recorder returns; for READ, the bytes that were read */
  uint64_t bytes;
  int32_t ret;      /* return value of the call; for RESPONSE */
  uint32_t reserved;
} wcuda_zctl_record;
#define WCUDA_ZCTL_RECORD_INIT {sizeof(wcuda_zctl_record), 0, 0, NULL, 0, 0, 0}
/* Runs on the thread that calls wcuda_zctl_call or wcuda_zctl_serve; WCUDA_ZCTL_CLOSED, on the thread that
 * destroys the session. */
typedef void (*wcuda_zctl_recorder)(void* user, const wcuda_zctl_record* record);

typedef struct wcuda_zctl_options {
  uint32_t struct_size;
  uint32_t flags;               /* WCUDA_ZCTL_... */
  wcuda_registry registry;      /* stays alive as long as the session; id 0: none */
  wcuda_string reason;          /* used without a registry: each response to a run states this as the reason
                                   why nothing runs. Empty means "CUDA runtime disabled" in a library without
                                   CUDA, otherwise "no device" */
  uint32_t payload_bytes_max;   /* of requests, and of responses of wcuda_zctl_serve; at most 1 GiB; 0 means
                                   1 MiB */
  uint32_t argument_count_max;  /* of a run; at most 4,096; 0 means 64 */
  uint32_t rank_max;            /* dimensions of a buffer; at most 8; 0 means 8 */
  uint32_t message_bytes_max;   /* 0 means 1,024 */
  uint64_t device_bytes_max;    /* of the buffers of a run, and of all buffers of ZCL1 together; 0 means
                                   1 GiB */
  uint32_t budget_ms;           /* time limit of a run and of each wait of ZCL1; 0 means 30,000; 2^31 or more
                                   means none */
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

/* Creates a session. A session without a registry lists "noop" and "tensor_add" as kernels that cannot run
 * here, and answers runs with status 6 and the reason. A limit above its maximum returns
 * WCUDA_INVALID_ARGUMENT. A session keeps the device memory of its largest run (WCUDA_PURPOSE_SCRATCH) and, on
 * a GPU, the same amount of pinned memory (WCUDA_PURPOSE_STAGING). If this function fails, the recorder is
 * never called. [any thread] */
WCUDA_API wcuda_status wcuda_zctl_session_create(const wcuda_zctl_options* options,
                                                 wcuda_zctl_session* session, wcuda_error* error);
/* Destroys a session. If a call is in progress, the session is destroyed when that call returns. Waits for a
 * run that exceeded its budget and is still running on the device. [any thread] */
WCUDA_API void wcuda_zctl_session_destroy(wcuda_zctl_session session);

/* Answers the frame in bytes [req_ptr, req_ptr + req_len) of the memory, and writes the response to
 * [resp_ptr, resp_ptr + resp_cap). The two ranges may overlap. timeout_ms limits the time of this call in
 * addition to the session's budget; 0 or less: no further limit.
 *
 * Returns the number of bytes of the response, or -1 if there is no response and nothing was written. The
 * causes of -1 are: a range is outside the memory; the request is too short, or its first bytes are those of
 * neither protocol; the response does not fit; the session is invalid, or another call on it is in progress;
 * the caller is a callback of the library. All other malformed frames have a response. With session id 0 the
 * function answers as a host without sessions: CAPS_LIST returns an empty list, and every other op has status 2
 * (ZCL1: t_ctl_unknown_op).
 *
 * A run waits for its kernel until the smallest of its time limits has passed. The library cannot stop a kernel
 * on a GPU. Until that kernel ends, further runs on the device have status 6. A run on HOST is answered when
 * its kernel returns. [any thread; external: the memory] */
WCUDA_API int32_t wcuda_zctl_call(wcuda_zctl_session session, void* memory, uint64_t memory_bytes,
                                  int32_t req_ptr, int32_t req_len, int32_t resp_ptr,
                                  int32_t resp_cap, int32_t timeout_ms);

/* Answers a frame that was received on a connection: request and response are outside the memory. Only this
 * function accepts the ops from 0x8000 on. If a response is longer than payload_bytes_max, the status is 5;
 * a response_capacity of payload_bytes_max + 32 is always sufficient. If only the header of a frame was
 * received, pass it alone: the response has status 1, as for a frame with a wrong length. Returns the same values
 * as wcuda_zctl_call. After -1, close the connection. [any thread; external: the memory] */
WCUDA_API int32_t wcuda_zctl_serve(wcuda_zctl_session session, void* memory, uint64_t memory_bytes,
                                   const void* request, uint64_t request_bytes, void* response,
                                   uint64_t response_capacity);

/* These functions implement the three callbacks of a guest for handles from CAPS_OPEN of ZCL1 (4 and
 * above). _read copies up to `cap` bytes from the handle to the memory at `ptr`; _write copies `len` bytes
 * from the memory at `ptr` to the handle. Both return the number of bytes copied; _read returns 0 at the
 * end. They return -1 and copy nothing if the handle is unknown or does not permit the access, or if the
 * range is outside the memory. Both wait for submissions in progress, at most for the session's budget.
 * _end closes a handle and frees its buffer; ending it again has no effect. These calls are not recorded.
 * [any thread; external: the memory] */
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
