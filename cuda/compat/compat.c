/* libworker_cuda_compat.a: the functions of worker_cuda_compat.h as symbols that other languages
 * bind. */
#define WCUDA_COMPAT_FUNCTION __attribute__((visibility("default")))
#include "worker_cuda_compat.h"
