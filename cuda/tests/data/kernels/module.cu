// Kernels of tests/api/kernel_test.cpp, which compares module.ptx with what NVRTC makes of this
// file for compute_80.

struct Pair {
  int a;
  float b[5];
};

__device__ int counters[4] = {1, 2, 3, 4};

extern "C" __global__ void vector_add(const float* a, const float* b, float* c, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) c[i] = a[i] + b[i];
}

extern "C" __global__ void noop() {}

// Every kind of value, each written as a double.
extern "C" __global__ void values(signed char i8, unsigned char u8, short i16, unsigned short u16,
                                  int i32, unsigned u32, long long i64, unsigned long long u64,
                                  unsigned short f16, unsigned short bf16, float f32, double f64,
                                  Pair pair, double* out) {
  out[0] = i8;
  out[1] = u8;
  out[2] = i16;
  out[3] = u16;
  out[4] = i32;
  out[5] = u32;
  out[6] = i64;
  out[7] = u64;
  out[8] = f16;
  out[9] = bf16;
  out[10] = f32;
  out[11] = f64;
  out[12] = pair.a + pair.b[4];
}

// More than 32 parameters: out[0] is their weighted sum.
extern "C" __global__ void forty(int* out, int a1, int a2, int a3, int a4, int a5, int a6, int a7,
                                 int a8, int a9, int a10, int a11, int a12, int a13, int a14,
                                 int a15, int a16, int a17, int a18, int a19, int a20, int a21,
                                 int a22, int a23, int a24, int a25, int a26, int a27, int a28,
                                 int a29, int a30, int a31, int a32, int a33, int a34, int a35,
                                 int a36, int a37, int a38, int a39) {
  out[0] = a1 + a2 + a3 + a4 + a5 + a6 + a7 + a8 + a9 + a10 + a11 + a12 + a13 + a14 + a15 + a16 +
           a17 + a18 + a19 + a20 + a21 + a22 + a23 + a24 + a25 + a26 + a27 + a28 + a29 + a30 + a31 +
           a32 + a33 + a34 + a35 + a36 + a37 + a38 + 1000 * a39;
}

// out[i] = dynamic shared memory written by thread 0 and read by all: bytes is its size.
extern "C" __global__ void shared(int* out, int bytes) {
  extern __shared__ int words[];
  if (threadIdx.x == 0) words[bytes / 4 - 1] = bytes;
  __syncthreads();
  out[threadIdx.x] = words[bytes / 4 - 1];
}

extern "C" __global__ void __launch_bounds__(128) bounded(int* out) {
  out[threadIdx.x] = threadIdx.x;
}

extern "C" __global__ void count_up() { atomicAdd(&counters[threadIdx.x], 10); }

// Runs for about that many nanoseconds.
extern "C" __global__ void wait_ns(unsigned long long ns) {
  unsigned long long begin, now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(begin));
  do {
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  } while (now - begin < ns);
}

// Ends once *flag is not 0: a host that holds the flag decides how long it runs.
extern "C" __global__ void wait_flag(const volatile unsigned* flag) {
  while (*flag == 0) {
  }
}

extern "C" __global__ void trap() { asm volatile("trap;"); }
