/* worker_cuda/compute.h: kernels of your own, built-in kernels and matrix products.
 *
 * Sections 16, 18 to 20 and 22 of the interface. The conventions of worker_cuda/base.h apply.
 */
#ifndef WORKER_CUDA_COMPUTE_H
#define WORKER_CUDA_COMPUTE_H

#include "worker_cuda/base.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ------------------------------------------------------------------------------------------------
 * 16. Run-time kernels: compile
 *
 * CUDA C++ becomes device code by NVRTC, NVIDIA's compiler library (libnvrtc.so.13 of the toolkit or of
 * the PyPI package nvidia-cuda-nvrtc), opened when it is first needed. No device is needed to compile.
 */

typedef struct wcuda_program {
  uint64_t id;
} wcuda_program;

/* Code for the device, told apart by wcuda_code_kind_get. */
#define WCUDA_CODE_PTX 1    /* text: the driver translates it for its device when it is loaded */
#define WCUDA_CODE_CUBIN 2  /* an ELF file for one architecture */
#define WCUDA_CODE_FATBIN 3 /* a container of the two for several */

typedef struct wcuda_kernel_cache {
  uint64_t id;
} wcuda_kernel_cache;

/* Opens a folder that keeps compiled programs, shared by any number of processes; makes it (not its
 * parents) when it is missing. max_bytes bounds all entries together: those not used for longest go
 * first. WCUDA_INVALID_ARGUMENT when it belongs to another user or others can write it, for they could
 * put code there; WCUDA_IO when it cannot be opened. An entry is found by BLAKE3 of NVRTC's version,
 * options, architecture, expressions, source and headers; it appears whole or not at all, and a damaged
 * one counts as missing. Programs with include folders or extra options that read files bypass the
 * cache, and wcuda_program_info tells. [any thread] */
WCUDA_API wcuda_status wcuda_kernel_cache_open(wcuda_string folder, uint64_t max_bytes,
                                               wcuda_kernel_cache* cache, wcuda_error* error);
/* Gives the handle back; the folder stays. [any thread] */
WCUDA_API void wcuda_kernel_cache_close(wcuda_kernel_cache cache);

typedef struct wcuda_kernel_cache_stats {
  uint32_t struct_size;
  uint32_t reserved;
  uint64_t hit_count; /* by this handle, as all counts */
  uint64_t miss_count;
  uint64_t damaged_count; /* files that were no entries: misses, and removed */
  uint64_t store_count;
  uint64_t store_failure_count; /* a full disk, or an entry larger than max_bytes: logged */
  uint64_t evicted_count;
  uint64_t bypass_count;
  uint64_t entry_count; /* in the folder now */
  uint64_t entry_bytes;
} wcuda_kernel_cache_stats;
#define WCUDA_KERNEL_CACHE_STATS_INIT \
  {sizeof(wcuda_kernel_cache_stats), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}
WCUDA_API wcuda_status wcuda_kernel_cache_stats_get(wcuda_kernel_cache cache,
                                                    wcuda_kernel_cache_stats* stats,
                                                    wcuda_error* error); /* [any thread] */
/* Removes all entries. [any thread] */
WCUDA_API wcuda_status wcuda_kernel_cache_clear(wcuda_kernel_cache cache, wcuda_error* error);

/* A header that exists in memory only: `name` as in #include "name". */
typedef struct wcuda_program_header {
  wcuda_string name;
  wcuda_string text;
} wcuda_program_header;

/* For the choices below: 0 is the compiler's default, or what FAST_MATH makes of it. */
#define WCUDA_CHOICE_ON 1
#define WCUDA_CHOICE_OFF 2

#define WCUDA_PROGRAM_FAST_MATH (1u << 0)
#define WCUDA_PROGRAM_LINE_INFO (1u << 1)      /* line numbers for profilers */
#define WCUDA_PROGRAM_DEBUG (1u << 2)          /* code for debuggers, not optimised */
#define WCUDA_PROGRAM_RELOCATABLE (1u << 3)    /* code to be linked, not loaded as it is */
#define WCUDA_PROGRAM_DEFAULT_DEVICE (1u << 4) /* functions not marked otherwise are __device__ */

typedef struct wcuda_program_options {
  uint32_t struct_size;
  uint32_t flags;            /* WCUDA_PROGRAM_… */
  wcuda_string source;       /* CUDA C++ */
  wcuda_string name;         /* in diagnostics; empty: "kernel.cu" */
  wcuda_string architecture; /* "sm_90a": a cubin for that device; "compute_90": PTX. Empty: code for
                                the device of `context` ("sm_90a" on an H200, "sm_80" on an A100) */
  wcuda_context context;     /* needed only without an architecture. The program does not keep it; while
                                it lives, its trace tells of the compile and its faults can fail it */
  wcuda_string standard;     /* "c++11", "c++14", "c++17", "c++20"; empty: the compiler's default */
  const wcuda_string* defines; /* "NAME" or "NAME=value" each */
  uint64_t define_count;
  const wcuda_program_header* headers; /* found before all files */
  uint64_t header_count;
  const wcuda_string* include_folders;
  uint64_t include_folder_count;
  const wcuda_string* expressions; /* kernels that are instances of templates, as "scale<float>" */
  uint64_t expression_count;
  const wcuda_string* extras; /* options given to NVRTC as they are, after all others */
  uint64_t extra_count;
  int32_t flush_denormals; /* WCUDA_CHOICE_…, and the three below: --ftz, --prec-sqrt, --prec-div, */
  int32_t precise_sqrt;    /* --fmad */
  int32_t precise_division;
  int32_t fuse_multiply_add;
  uint32_t max_registers; /* a thread; 0: no bound */
  uint32_t reserved;
  wcuda_string library_folder; /* that holds libnvrtc.so.13; empty: where the system's loader looks */
  wcuda_kernel_cache cache;    /* id 0: none */
} wcuda_program_options;
#define WCUDA_PROGRAM_OPTIONS_INIT                                                                    \
  {sizeof(wcuda_program_options), 0, {NULL, 0}, {NULL, 0}, {NULL, 0}, {0}, {NULL, 0}, NULL, 0, NULL, \
   0, NULL, 0, NULL, 0, NULL, 0, 0, 0, 0, 0, 0, 0, {NULL, 0}, {0}}

/* A program to be compiled: copies all it is given, checks the options and compiles nothing yet.
 * Texts have no NUL. [any thread] */
WCUDA_API wcuda_status wcuda_program_create(const wcuda_program_options* options,
                                            wcuda_program* program, wcuda_error* error);
WCUDA_API void wcuda_program_destroy(wcuda_program program); /* [any thread] */

/* Compiles, or takes the code from the cache. WCUDA_COMPILE_FAILED has the first diagnostic in its
 * message, and wcuda_program_log_get all of them. WCUDA_UNSUPPORTED: NVRTC does not know the
 * architecture; the message lists those it knows. WCUDA_INVALID_ARGUMENT: it does not know an extra
 * option. WCUDA_NOT_AVAILABLE: there is no NVRTC; the message has the loader's reason. A program that
 * is compiled already stays as it is, and so does one whose compile its context's faults refused. [external: program] */
WCUDA_API wcuda_status wcuda_program_compile(wcuda_program program, wcuda_error* error);

#define WCUDA_PROGRAM_NEW 0 /* not compiled yet */
#define WCUDA_PROGRAM_COMPILED 1
#define WCUDA_PROGRAM_FAILED 2

#define WCUDA_CACHE_NONE 0 /* the program has no cache, or was not compiled */
#define WCUDA_CACHE_HIT 1  /* the code was there */
#define WCUDA_CACHE_MISS 2 /* compiled, and kept if it could be */
#define WCUDA_CACHE_BYPASSED 3

typedef struct wcuda_program_info {
  uint32_t struct_size;
  int32_t state;          /* WCUDA_PROGRAM_NEW, _COMPILED or _FAILED */
  int32_t code_kind;      /* WCUDA_CODE_PTX or _CUBIN: what it is, or will be */
  int32_t nvrtc_version;  /* major * 1000 + minor * 10; 0 before the library was opened */
  uint64_t code_bytes;    /* 0 unless compiled */
  uint64_t log_bytes;
  uint64_t compile_ns;    /* of the last wcuda_program_compile that did something */
  char architecture[32];  /* the one in use, NUL-terminated */
  int32_t cache_result;   /* WCUDA_CACHE_… */
  uint32_t reserved;
} wcuda_program_info;
#define WCUDA_PROGRAM_INFO_INIT {sizeof(wcuda_program_info), 0, 0, 0, 0, 0, 0, {0}, 0, 0}
WCUDA_API wcuda_status wcuda_program_info_get(wcuda_program program, wcuda_program_info* info,
                                              wcuda_error* error); /* [external: program] */

/* All that the compiler has said, after a success (warnings) as after a failure; empty before. Borrowed
 * from the program until it is compiled again. [external: program] */
WCUDA_API wcuda_status wcuda_program_log_get(wcuda_program program, wcuda_string* log,
                                             wcuda_error* error);
/* The code; PTX without a final NUL. Borrowed from the program. WCUDA_INVALID_STATE unless it is
 * compiled. [external: program] */
WCUDA_API wcuda_status wcuda_program_code_get(wcuda_program program, const void** code,
                                              uint64_t* bytes, wcuda_error* error);
/* The name in the code of one of the program's expressions. Borrowed from the program.
 * WCUDA_NOT_FOUND for any other text; WCUDA_INVALID_STATE unless it is compiled. [external: program] */
WCUDA_API wcuda_status wcuda_program_name_get(wcuda_program program, wcuda_string expression,
                                              wcuda_string* name, wcuda_error* error);

typedef struct wcuda_compiler_info {
  uint32_t struct_size;
  int32_t nvrtc_version; /* major * 1000 + minor * 10 */
  uint32_t architecture_count;
  int32_t architectures[61]; /* ascending: 75, 80, … */
} wcuda_compiler_info;
#define WCUDA_COMPILER_INFO_INIT {sizeof(wcuda_compiler_info), 0, 0, {0}}
/* What NVRTC there is; library_folder as in wcuda_program_options. WCUDA_NOT_AVAILABLE with the reason
 * where there is none. [any thread] */
WCUDA_API wcuda_status wcuda_compiler_info_get(wcuda_string library_folder,
                                               wcuda_compiler_info* info, wcuda_error* error);

/* ------------------------------------------------------------------------------------------------
 * 18. Run-time kernels: modules, kernels, launches
 *
 * A kernel is device code of a module, a function of the host, or both: a context of the backend CUDA
 * runs the first, one of HOST the second. Nothing falls back from one to the other.
 */

/* What device code is (WCUDA_CODE_…), by its header or first token, and whether it is all there.
 * WCUDA_MALFORMED says what is wrong, or that it is source. [any thread] */
WCUDA_API wcuda_status wcuda_code_kind_get(const void* code, uint64_t bytes, int32_t* kind,
                                           wcuda_error* error);

typedef struct wcuda_module {
  uint64_t id;
} wcuda_module;

/* Loads PTX, a cubin or a fatbin on the context's device. PTX needs no final NUL. WCUDA_MALFORMED and
 * WCUDA_UNSUPPORTED (another architecture, PTX newer than the driver) have the driver's reason.
 * WCUDA_UNSUPPORTED_KERNEL on HOST. The code is trusted: what it does to memory is its own. The ledger
 * has the bytes of the code as WCUDA_PURPOSE_MODULE, under the budgets, as long as it is loaded; the driver
 * does not tell what it takes in truth. [any thread] */
WCUDA_API wcuda_status wcuda_module_load(wcuda_context context, const void* code, uint64_t bytes,
                                         wcuda_module* module, wcuda_error* error);
/* The same with a compiled program, whose expressions then name kernels. [external: program] */
WCUDA_API wcuda_status wcuda_module_load_program(wcuda_context context, wcuda_program program,
                                                 wcuda_module* module, wcuda_error* error);
/* Kernels and views of globals keep their module: it is unloaded, after all work of the context, when
 * the last goes. [any thread] */
WCUDA_API void wcuda_module_unload(wcuda_module module);

/* A variable of the module (__device__ or __constant__) as a buffer: a view of the module's memory, in
 * the ledger as borrowed, that keeps the module. WCUDA_NOT_FOUND when there is none of this name.
 * [any thread] */
WCUDA_API wcuda_status wcuda_module_global_create(wcuda_module module, wcuda_string name,
                                               wcuda_buffer* buffer, wcuda_error* error);

typedef struct wcuda_kernel {
  uint64_t id;
} wcuda_kernel;

/* Kinds of arguments. Scalars are passed as they are, a buffer as the address of its window. */
#define WCUDA_ARG_I8 1
#define WCUDA_ARG_U8 2
#define WCUDA_ARG_I16 3
#define WCUDA_ARG_U16 4
#define WCUDA_ARG_I32 5
#define WCUDA_ARG_U32 6
#define WCUDA_ARG_I64 7
#define WCUDA_ARG_U64 8
#define WCUDA_ARG_F16 9
#define WCUDA_ARG_BF16 10
#define WCUDA_ARG_F32 11
#define WCUDA_ARG_F64 12
#define WCUDA_ARG_BUFFER 13
#define WCUDA_ARG_BYTES 14 /* a struct passed by value */

#define WCUDA_ACCESS_READ 1
#define WCUDA_ACCESS_WRITE 2

/* What a kernel's signature says of one parameter. */
typedef struct wcuda_parameter {
  int32_t kind;       /* WCUDA_ARG_… */
  uint32_t access;    /* of a BUFFER: WCUDA_ACCESS_… bits; 0: both */
  uint64_t min_bytes; /* of a BUFFER's window, or of BYTES */
  uint64_t max_bytes; /* likewise; 0: no bound */
} wcuda_parameter;

typedef struct wcuda_launch {
  uint32_t struct_size;
  uint32_t flags;        /* WCUDA_LAUNCH_… */
  uint32_t grid[3];      /* blocks, x y z */
  uint32_t block[3];     /* threads of a block */
  uint32_t cluster[3];   /* blocks of a cluster; all 0: none, or what the kernel was compiled with */
  uint32_t shared_bytes; /* dynamic shared memory of a block */
  wcuda_stream stream;   /* id 0: the context's own, which buffer calls use too */
} wcuda_launch;
#define WCUDA_LAUNCH_INIT {sizeof(wcuda_launch), 0, {1, 1, 1}, {256, 1, 1}, {0, 0, 0}, 0, {0}}
/* All blocks run at once and may wait for each other; more than fit is WCUDA_LAUNCH_FAILED. */
#define WCUDA_LAUNCH_COOPERATIVE (1u << 0)

/* One argument as a host function gets it. */
typedef struct wcuda_host_argument {
  int32_t kind; /* WCUDA_ARG_… */
  uint32_t reserved;
  void* data; /* of a buffer: its window; of anything else: the value, not to be written */
  uint64_t bytes;
} wcuda_host_argument;

/* A kernel on the host: does the work of the whole grid. Runs on the thread that launches. Returns 0,
 * or a number of its own that makes the launch WCUDA_DEVICE_ERROR with it as native code. Arguments
 * have been checked as for a device. */
typedef int32_t (*wcuda_host_kernel)(void* user, const wcuda_launch* launch,
                                     const wcuda_host_argument* arguments, uint64_t argument_count);

typedef struct wcuda_kernel_options {
  uint32_t struct_size;
  int32_t has_signature;  /* 1: the parameters below are all there are */
  wcuda_string name;      /* in the module: a name with C linkage, a mangled one, or an expression of
                             the program that was loaded; without a module any text */
  wcuda_module module;    /* id 0: none; needed on CUDA to be launched */
  wcuda_host_kernel host; /* NULL: none; needed on HOST to be launched */
  void* host_user;        /* stays valid until host_release is called */
  const wcuda_parameter* parameters;
  uint64_t parameter_count;
  /* NULL: none. Called once with host_user when nothing uses the kernel any more: its handle is
   * destroyed, every registry entry that keeps it has been replaced, removed or destroyed, and the
   * last call that runs it is over. On the thread that ends the last of these, which may be inside
   * that call. Not called when wcuda_kernel_create fails. */
  void (*host_release)(void* user);
} wcuda_kernel_options;
#define WCUDA_KERNEL_OPTIONS_INIT \
  {sizeof(wcuda_kernel_options), 0, {NULL, 0}, {0}, NULL, NULL, NULL, 0, NULL}

/* A kernel of a context. WCUDA_NOT_FOUND lists the kernels that the module has. A signature that does
 * not fit the code (number and sizes of parameters) is refused here. WCUDA_UNSUPPORTED_KERNEL when
 * there is neither a module nor a host function, WCUDA_INVALID_ARGUMENT when the module is of another
 * context. [any thread] */
WCUDA_API wcuda_status wcuda_kernel_create(wcuda_context context,
                                           const wcuda_kernel_options* options,
                                           wcuda_kernel* kernel, wcuda_error* error);
/* Does not wait: calls that run the kernel meanwhile, and registries that keep it, continue to use it and
 * host_user. host_release reports the end of that. [any thread] */
WCUDA_API void wcuda_kernel_destroy(wcuda_kernel kernel);

typedef struct wcuda_kernel_info {
  uint32_t struct_size;
  int32_t has_device_code;
  int32_t has_host_function;
  uint32_t parameter_count;       /* by the code, else by the signature; 0 where neither tells */
  uint32_t max_threads_per_block; /* what follows is of device code; else 0 */
  uint32_t register_count;        /* a thread */
  uint64_t static_shared_bytes;
  uint64_t dynamic_shared_bytes_max;
  uint64_t local_bytes; /* a thread */
  uint64_t constant_bytes;
  uint32_t required_cluster[3];
  int32_t ptx_version;    /* major * 10 + minor */
  int32_t binary_version; /* likewise */
  uint32_t name_bytes;
  char name[256]; /* in the code, cut to fit, NUL-terminated */
} wcuda_kernel_info;
#define WCUDA_KERNEL_INFO_INIT \
  {sizeof(wcuda_kernel_info), 0, 0, 0, 0, 0, 0, 0, 0, 0, {0}, 0, 0, 0, {0}}
WCUDA_API wcuda_status wcuda_kernel_info_get(wcuda_kernel kernel, wcuda_kernel_info* info,
                                             wcuda_error* error); /* [any thread] */

typedef struct wcuda_occupancy {
  uint32_t struct_size;
  uint32_t blocks_per_multiprocessor; /* that run at once */
  uint32_t threads_per_multiprocessor;
  uint32_t best_block_threads; /* the block size that keeps most threads running */
  double share;                /* of the threads a multiprocessor can have, 0 to 1 */
} wcuda_occupancy;
#define WCUDA_OCCUPANCY_INIT {sizeof(wcuda_occupancy), 0, 0, 0, 0.0}
/* How much of a multiprocessor a kernel fills with blocks of that many threads and that much dynamic
 * shared memory. WCUDA_UNSUPPORTED_KERNEL without device code. [any thread] */
WCUDA_API wcuda_status wcuda_kernel_occupancy_get(wcuda_kernel kernel, uint32_t block_threads,
                                                  uint64_t shared_bytes,
                                                  wcuda_occupancy* occupancy, wcuda_error* error);

typedef struct wcuda_argument {
  int32_t kind;         /* WCUDA_ARG_… */
  uint32_t access;      /* of a BUFFER: what the caller grants, WCUDA_ACCESS_… bits; 0: both */
  const void* data;     /* scalars and BYTES: the value, copied before the call returns */
  uint64_t bytes;       /* BYTES: its size. BUFFER: of the window, 0: to the end. Scalars: 0 */
  wcuda_buffer buffer;  /* BUFFER */
  uint64_t offset;      /* BUFFER: where the window begins */
} wcuda_argument;

/* Launches a kernel and does not wait for it (on HOST it is done when the call returns). Before the
 * driver sees anything these are checked: grid, block, cluster and shared memory, none zero and all
 * within the limits of device and kernel (WCUDA_INVALID_CONFIG with value and limit); the number of
 * arguments (WCUDA_ARGUMENT_COUNT) and their sizes, by what the code tells; their kinds, access and
 * sizes by the signature if there is one; that buffers are live, of the kernel's context, and windows
 * within them. Any number of arguments. WCUDA_LAUNCH_FAILED: the driver refused, nothing ran. What goes
 * wrong while the kernel runs is told by the next call that waits, and every one after it:
 * WCUDA_DEVICE_LOST. Buffers destroyed meanwhile are freed after the kernel.
 * Device code can do to memory what it likes: the caller vouches for it.
 * [any thread; external: each buffer] */
WCUDA_API wcuda_status wcuda_kernel_launch(wcuda_kernel kernel, const wcuda_launch* launch,
                                           const wcuda_argument* arguments, uint64_t argument_count,
                                           wcuda_error* error);

/* ------------------------------------------------------------------------------------------------
 * 19. Catalogue: built-in kernels, on every backend
 *
 * Each computes on HOST and on CUDA alike, within the bounds of NUMERICS.md. Sums are of f32 in an
 * order that hangs on the sizes alone, so that a device gives the same bits each time. Any sizes, 0
 * too.
 */

typedef struct wcuda_catalogue_entry {
  uint32_t struct_size;
  int32_t is_f32_only;     /* else f16 and bf16 too */
  wcuda_string name;       /* static text, as below */
  wcuda_string signature;  /* the parameters, apart by spaces: "<x:n" a buffer that is read, ">y:n" one
                              that is written, "=y:n" both, each with its elements as a product
                              ("rows*width"; oh and ow are what a window of kh x kw gives), of the
                              call's type or, as "y/i32" and "y/f32", of that; "#n" an integer of
                              any width; "%alpha" an f32 or f64. "!1" is no parameter */
  uint32_t parameter_count;
  uint32_t reserved;
} wcuda_catalogue_entry;
#define WCUDA_CATALOGUE_ENTRY_INIT {sizeof(wcuda_catalogue_entry), 0, {NULL, 0}, {NULL, 0}, 0, 0}

/* Number of kernels in the catalogue. [any thread] */
WCUDA_API uint32_t wcuda_catalogue_count(void);
/* Kernel `index`, by name; WCUDA_OUT_OF_RANGE past the end. [any thread] */
WCUDA_API wcuda_status wcuda_catalogue_at(uint32_t index, wcuda_catalogue_entry* kernel,
                                               wcuda_error* error);

/* Runs a kernel of the catalogue on elements of WCUDA_ARG_F32, _F16 or _BF16, on a stream (id 0: the
 * context's own), and does not wait (on HOST it is done when the call returns). All arguments are held
 * against the signature first: number, kinds, extents, and that nothing written overlaps anything else,
 * but for element-wise kernels and rows, which may write all of a buffer in place. embedding_lookup
 * waits for its ids: WCUDA_OUT_OF_RANGE with the first that the table has not, and nothing is written.
 * WCUDA_NOT_FOUND: no such kernel. [any thread; external: each buffer] */
WCUDA_API wcuda_status wcuda_catalogue_run(wcuda_context context, wcuda_string name, int32_t type,
                                         const wcuda_argument* arguments, uint64_t argument_count,
                                         wcuda_stream stream, wcuda_error* error);

/* ------------------------------------------------------------------------------------------------
 * 20. Matrix products
 *
 * c = activation(alpha * op(a) * op(b) + beta * c + bias), row-major: op(a) (m, k), op(b) (k, n), c (m, n),
 * bias (n), which is added to every row. CUDA does it by cuBLASLt, opened when first needed; HOST by its
 * processors. The same shapes, strides and alignments on the same device and library give the same bits
 * every time: the algorithm is chosen once for each.
 *
 * Bound. With S = |alpha| * sum over k of |a * b|, an element is off by at most
 *   4 * k * 2^-24 * S + t * S, before it is rounded to the type of c,
 * where t is 0 for F32, F16 and BF16, 2^-9 for TF32 (operands have 10 bits of fraction), 2^-10 for FP8 on
 * CUDA (its tensor cores keep fewer bits between two additions in f32). With a bias or an activation CUDA
 * may round to the type of c before it too, and for a GELU 2^-10 of its value is added.
 */

/* What a and b are. Products are summed in f32. */
#define WCUDA_GEMM_F32 1
#define WCUDA_GEMM_TF32 2 /* f32 in memory */
#define WCUDA_GEMM_F16 3
#define WCUDA_GEMM_BF16 4
#define WCUDA_GEMM_FP8 5  /* e4m3; on CUDA of capability 8.9 or newer. Where a is not plain, b not transposed, or
                             k, a row of c, a stride or an address no multiple of 16 bytes, they are copied
                             into scratch that is, and c out of it: one more pass over each */
#define WCUDA_GEMM_F64 6  /* WCUDA_NOT_AVAILABLE */
#define WCUDA_GEMM_INT8 7 /* WCUDA_NOT_AVAILABLE */

#define WCUDA_GEMM_TRANSPOSE_A (1u << 0) /* a is stored as (k, m) */
#define WCUDA_GEMM_TRANSPOSE_B (1u << 1) /* b is stored as (n, k) */

#define WCUDA_ACTIVATION_NONE 0
#define WCUDA_ACTIVATION_RELU 1 /* of a NaN: NaN on HOST, 0 on CUDA */
#define WCUDA_ACTIVATION_GELU 2 /* by tanh: 0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) */

typedef struct wcuda_gemm {
  uint32_t struct_size;
  uint32_t flags;         /* WCUDA_GEMM_TRANSPOSE_… */
  int32_t type;           /* WCUDA_GEMM_… */
  int32_t output_type;    /* of c: WCUDA_ARG_F32, _F16 or _BF16. 0: F32 for F32 and TF32, which have no
                             other, the inputs' for F16 and BF16, BF16 for FP8 */
  int32_t activation;     /* WCUDA_ACTIVATION_… */
  float alpha;
  float beta;             /* 0: c is not read */
  uint32_t reserved;
  uint64_t m;
  uint64_t n;
  uint64_t k;             /* at least 1 */
  uint64_t batch;         /* so many products of the same shape; 0: 1 */
  uint64_t row_stride_a;  /* elements from one stored row to the next; 0: rows follow each other */
  uint64_t row_stride_b;
  uint64_t row_stride_c;
  uint64_t batch_stride_a; /* elements from one matrix to the next; 0: they follow each other */
  uint64_t batch_stride_b;
  uint64_t batch_stride_c;
} wcuda_gemm;
#define WCUDA_GEMM_INIT \
  {sizeof(wcuda_gemm), 0, WCUDA_GEMM_F32, 0, 0, 1.0f, 0.0f, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}

/* Queues a product on a stream (id 0: the context's own) and does not wait (on HOST it is done when the
 * call returns). arguments: the buffers a, b, c and, for a bias, bias, of the type of c (of an FP8 product
 * into F32: BF16). c overlaps none of them. WCUDA_INVALID_ARGUMENT with the numbers. WCUDA_NOT_AVAILABLE:
 * cuBLASLt is not there (the message names the file; matrix products of the catalogue need it not), or has
 * nothing for this product. Device memory it works in is scratch of the context's;
 * the 32 MiB that products on stream 0 take turns with stay until the context ends.
 * [any thread; external: each buffer] */
WCUDA_API wcuda_status wcuda_gemm_run(wcuda_context context, const wcuda_gemm* gemm,
                                      const wcuda_argument* arguments, uint64_t argument_count,
                                      wcuda_stream stream, wcuda_error* error);

/* ------------------------------------------------------------------------------------------------
 * 22. Kernel descriptors: kernels under a name and a number, with a signature that says it all
 *
 * A descriptor says of a kernel what a caller must know to run it rightly: its parameters with their
 * types, shapes and bounds, and how its launch follows from its arguments. A registry holds the
 * descriptors of a context; running a kernel of it checks every argument first.
 *
 * Sizes are expressions over the kernel's own integer parameters: "n", "ceil_div(n, 256)",
 * "max(1, rows * 4)". There are + - * / %, parentheses, ceil_div, round_up (to the next multiple), min
 * and max, of 64 bits with a sign; what would wrap, and a division by less than 1 or of less than 0, is
 * WCUDA_INVALID_ARGUMENT with the numbers. At most 256 bytes each.
 */

#define WCUDA_LAYOUT_ANY 0
#define WCUDA_LAYOUT_ROW_MAJOR 1    /* the last dimension is contiguous */
#define WCUDA_LAYOUT_COLUMN_MAJOR 2 /* the first is */

typedef struct wcuda_kernel_param {
  wcuda_string name;  /* letters, digits, "_"; one of its own */
  int32_t kind;       /* WCUDA_ARG_…: of a scalar, _BUFFER or _BYTES */
  int32_t dtype;      /* of a BUFFER's elements: WCUDA_ARG_… of a scalar; else 0 */
  uint32_t access;    /* of a BUFFER: WCUDA_ACCESS_… bits; 0: both */
  int32_t layout;     /* of a BUFFER, a hint that nothing checks: WCUDA_LAYOUT_… */
  uint32_t layout_id; /* of a BUFFER or BYTES: the caller's number of its records' layout; 0: none */
  uint32_t reserved;
  wcuda_string shape; /* BUFFER: its dimensions, expressions apart by commas; none: one element. BYTES:
                         its size, a number. Scalar: empty */
  wcuda_string min;   /* of a scalar, the least that may be given: for an integer an expression, for an
                         f32 or f64 a number; empty: no bound */
  wcuda_string max;   /* the most, likewise */
} wcuda_kernel_param;

/* Bits of flags. */
#define WCUDA_KERNEL_NON_DETERMINISTIC (1u << 0) /* equal calls may give other bits */
#define WCUDA_KERNEL_NOT_HERE (1u << 1)          /* listed, but the context's backend cannot run it */

typedef struct wcuda_kernel_descriptor {
  uint32_t struct_size;
  uint32_t flags;     /* WCUDA_KERNEL_NON_DETERMINISTIC or 0 */
  uint32_t kernel_id; /* 0: the registry gives one. 1 and 2 are those of wcuda_registry_add_builtin */
  uint32_t budget_ms; /* of a run: told to callers, and how long wcuda_registry_run_wait waits; 0: none */
  wcuda_string name;  /* 1 to 127 bytes without control characters */
  wcuda_kernel kernel; /* what runs, of the registry's context; id 0: WCUDA_KERNEL_NOT_HERE. Kept */
  const wcuda_kernel_param* params;
  uint64_t param_count;
  wcuda_string grid[3];  /* blocks, x y z: expressions; empty: 1 */
  wcuda_string block[3]; /* threads of a block, likewise; x empty: 256 */
  wcuda_string threads;  /* instead of grid x: so many threads in blocks of block x, at least one */
  wcuda_string shared_bytes; /* dynamic, of a block; empty: 0 */
} wcuda_kernel_descriptor;
#define WCUDA_KERNEL_DESCRIPTOR_INIT                                                          \
  {sizeof(wcuda_kernel_descriptor), 0, 0, 0, {NULL, 0}, {0}, NULL, 0,                         \
   {{NULL, 0}, {NULL, 0}, {NULL, 0}}, {{NULL, 0}, {NULL, 0}, {NULL, 0}}, {NULL, 0}, {NULL, 0}}

/* Whether a descriptor is right, its kernel apart. WCUDA_INVALID_ARGUMENT begins with the field:
 * "params[2].shape: …". sig_hash, if not NULL, is FNV-1a of 64 bits over the bytes of its canonical
 * signature: the parameters in order, each followed by ";": a scalar as its type ("i32"), a buffer as
 * "r ", "w " or "rw ", its type and its dimensions ("r f32[$3,4]", in every spelling the same: no
 * spaces, "$3" for the parameter of index 3, each operation in parentheses), then " row" or " col", then
 * " #7" for a layout_id; bytes as "bytes[16]"; bounds as "{0..$4}". Names do not enter it. text, if not
 * NULL, receives that signature, and text_bytes its size; a text_capacity below it is
 * WCUDA_BUFFER_TOO_SMALL. [any thread] */
WCUDA_API wcuda_status wcuda_kernel_descriptor_check(const wcuda_kernel_descriptor* descriptor,
                                                     uint64_t* sig_hash, char* text,
                                                     uint64_t text_capacity, uint64_t* text_bytes,
                                                     wcuda_error* error);

typedef struct wcuda_registry {
  uint64_t id;
} wcuda_registry;

/* A registry without kernels. [any thread] */
WCUDA_API wcuda_status wcuda_registry_create(wcuda_context context, wcuda_registry* registry,
                                             wcuda_error* error);
WCUDA_API void wcuda_registry_destroy(wcuda_registry registry); /* [any thread] */

/* Adds a kernel. One of the same name is replaced, and its number kept if none is given; a number that
 * another has is WCUDA_INVALID_ARGUMENT. A run in progress ends with the kernel and the descriptor that it
 * began with. kernel_id, if not NULL, receives the number. [any thread] */
WCUDA_API wcuda_status wcuda_registry_add(wcuda_registry registry,
                                          const wcuda_kernel_descriptor* descriptor,
                                          uint32_t* kernel_id, wcuda_error* error);
/* Adds a kernel of the catalogue, for elements of `type`. number 0: the registry gives one. "noop" has 1
 * with sig_hash 0, and "tensor_add" of f32 has 2 with sig_hash 0xA1, as older callers know them.
 * [any thread] */
WCUDA_API wcuda_status wcuda_registry_add_builtin(wcuda_registry registry, wcuda_string name,
                                                int32_t type, uint32_t wanted_id, uint32_t* kernel_id,
                                                wcuda_error* error);
/* Takes a kernel out; WCUDA_NOT_FOUND. [any thread] */
WCUDA_API wcuda_status wcuda_registry_remove(wcuda_registry registry, uint32_t kernel_id,
                                             wcuda_error* error);

typedef struct wcuda_registered_kernel {
  uint32_t struct_size;
  uint32_t kernel_id;
  uint32_t flags; /* WCUDA_KERNEL_… */
  uint32_t parameter_count;
  uint32_t budget_ms;
  uint32_t name_bytes;
  uint64_t sig_hash;
  char name[128]; /* NUL-terminated */
} wcuda_registered_kernel;
#define WCUDA_REGISTERED_KERNEL_INIT {sizeof(wcuda_registered_kernel), 0, 0, 0, 0, 0, 0, {0}}

/* Writes min(capacity, count) entries by number, ascending, and always the count. Each entry's
 * struct_size is set by the caller, to one value, a multiple of 8: the distance between two entries.
 * [any thread] */
WCUDA_API wcuda_status wcuda_registry_list(wcuda_registry registry, wcuda_registered_kernel* kernels,
                                           uint64_t capacity, uint64_t* count, wcuda_error* error);
/* The kernel of this name; WCUDA_NOT_FOUND. [any thread] */
WCUDA_API wcuda_status wcuda_registry_find(wcuda_registry registry, wcuda_string name,
                                           wcuda_registered_kernel* kernel, wcuda_error* error);

typedef struct wcuda_run_info {
  uint32_t struct_size;
  uint32_t shared_bytes;
  uint32_t grid[3]; /* of a kernel of the catalogue all 0 */
  uint32_t block[3];
  uint64_t elements;  /* the descriptor's threads; else those of the launch, or the results' elements */
  uint64_t bytes;     /* of all buffers, by their shapes */
  uint32_t budget_ms; /* of the descriptor */
  int32_t is_over_budget; /* by wcuda_registry_run_wait, as time_ns: 1 when it took longer than budget_ms */
  uint64_t time_ns;       /* of the kernel: by the device's events on CUDA, by the clock on HOST; 0: not known,
                             or not done yet */
} wcuda_run_info;
#define WCUDA_RUN_INFO_INIT {sizeof(wcuda_run_info), 0, {0, 0, 0}, {0, 0, 0}, 0, 0, 0, 0, 0}

/* Runs a kernel with the launch that its descriptor says, on a stream (id 0: the context's own), and
 * does not wait, as wcuda_kernel_launch. Before that every argument is held against the descriptor:
 * number, kind, access, extent, bounds. WCUDA_INVALID_ARGUMENT tells index, name and both numbers,
 * WCUDA_INVALID_CONFIG which part of the launch is out of bounds. WCUDA_UNSUPPORTED_KERNEL when it
 * cannot run here. info may be NULL. [any thread; external: each buffer] */
WCUDA_API wcuda_status wcuda_registry_run(wcuda_registry registry, uint32_t kernel_id,
                                          const wcuda_argument* arguments, uint64_t argument_count,
                                          wcuda_stream stream, wcuda_run_info* info,
                                          wcuda_error* error);
/* The same, and waits until it is done, no longer than its budget_ms. WCUDA_TIMEOUT when it took longer: the
 * message has both times, info is written as on success, with is_over_budget 1. A kernel that is still at
 * work then (time_ns 0) is not stopped: what it was given is its own until its stream has passed. [any
 * thread; external: each buffer] */
WCUDA_API wcuda_status wcuda_registry_run_wait(wcuda_registry registry, uint32_t kernel_id,
                                               const wcuda_argument* arguments,
                                               uint64_t argument_count, wcuda_stream stream,
                                               wcuda_run_info* info, wcuda_error* error);
/* The same without running anything: whether it would, and how. [any thread; external: each buffer] */
WCUDA_API wcuda_status wcuda_registry_plan(wcuda_registry registry, uint32_t kernel_id,
                                           const wcuda_argument* arguments, uint64_t argument_count,
                                           wcuda_run_info* info, wcuda_error* error);

#ifdef __cplusplus
}
#endif

#endif /* WORKER_CUDA_COMPUTE_H */
