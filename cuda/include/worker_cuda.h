/* worker_cuda.h: the C interface of worker-cuda, and its manual.
 *
 * worker-cuda loads GGUF language models into the memory of a GPU or of the host, accounts for every byte,
 * and generates tokens. It also compiles and runs kernels of the caller. Programs link one archive,
 * libworker_cuda.a.
 *
 * The interface consists of five headers. Each of them can be included alone; this header includes all:
 *
 *   worker_cuda/base.h     1 to 7, 13 to 15, 17: conventions, status, devices, contexts, memory, streams
 *   worker_cuda/llm.h      8 to 12: GGUF files, plan, models, engines, steps
 *   worker_cuda/compute.h  16, 18 to 20, 22: run-time kernels, catalogue, matrix multiplication, registry
 *   worker_cuda/backend.h  21, 21b: backends, failover
 *   worker_cuda/zctl.h     23: a binary protocol for kernels
 *
 * Read base.h first, because its conventions apply to all five headers.
 */
#ifndef WORKER_CUDA_H
#define WORKER_CUDA_H

#include "worker_cuda/backend.h"
#include "worker_cuda/base.h"
#include "worker_cuda/compute.h"
#include "worker_cuda/llm.h"
#include "worker_cuda/zctl.h"

#endif /* WORKER_CUDA_H */
