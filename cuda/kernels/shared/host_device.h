// Marks functions that are compiled for the host and, by a CUDA compiler, for the device too.
#pragma once

#if defined(__CUDACC__)
#define WCUDA_HOST_DEVICE __host__ __device__
#else
#define WCUDA_HOST_DEVICE
#endif
