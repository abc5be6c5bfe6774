/* worker_cuda/compute.h: caller-defined kernels, built-in kernels and matrix multiplication.
 *
 * This header has sections 16, 18 to 20 and 22 of the interface. The conventions of worker_cuda/base.h
 * apply.
 *
 * EXAMPLE: add two buffers of n floats with a built-in kernel. This works on every backend.
 *
 *   const wcuda_string name = {"vector_add", 10};
 *   const wcuda_stream own = {0};
 *   const int32_t n = 1024;
 *   const wcuda_buffer buffers[3] = {a, b, c};
 *   wcuda_argument arguments[4];
 *   for (int i = 0; i < 4; ++i) {
 *     const wcuda_argument argument = WCUDA_ARGUMENT_INIT;
 *     arguments[i] = argument;
 *     arguments[i].kind = i < 3 ? WCUDA_ARG_BUFFER : WCUDA_ARG_I32;
 *     if (i < 3) arguments[i].buffer = buffers[i];
 *   }
 *   arguments[3].data = &n;
 *   if (wcuda_catalogue_run(context, name, WCUDA_ARG_F32, arguments, 4, own, &error) != WCUDA_OK)
 *     return report(error.message);
 *
 * The program examples/c/kernel.c registers and runs its own kernel.
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
 * NVRTC, NVIDIA's run-time compiler, compiles CUDA C++ to device code. It is the library libnvrtc.so.13 of
 * the CUDA toolkit or of the PyPI package nvidia-cuda-nvrtc. This library opens it when it is first needed.
 * Compiling needs no device.
 */

typedef struct wcuda_program {
  uint64_t id;
} wcuda_program;

/* Kinds of device code, reported by wcuda_code_kind_get. */
#define WCUDA_CODE_PTX 1    /* text that the driver translates for its device on load */
#define WCUDA_CODE_CUBIN 2  /* an ELF file for one architecture */
#define WCUDA_CODE_FATBIN 3 /* a container of PTX and cubins for several architectures */

typedef struct wcuda_kernel_cache {
  uint64_t id;
} wcuda_kernel_cache;

/* Opens a folder that stores compiled programs. Any number of processes may share a folder. If the folder
 * is missing, the function creates it, but not its parent. `max_bytes` limits the size of all entries
 * together; the least recently used entries are evicted.
 *
 * Returns WCUDA_INVALID_ARGUMENT if the folder belongs to another user or others may write to it, since
 * they could put code there. Returns WCUDA_IO if the folder cannot be opened.
 *
 * The key of an entry is the BLAKE3 digest of NVRTC's version, the options, the architecture, the template
 * expressions, the source and the headers. Entries are written atomically. A damaged entry is treated as
 * missing. Programs with include folders, or with extra options that make NVRTC read files, bypass the
 * cache; wcuda_program_info reports this. [any thread] */
WCUDA_API wcuda_status wcuda_kernel_cache_open(wcuda_string folder, uint64_t max_bytes,
                                               wcuda_kernel_cache* cache, wcuda_error* error);
/* Releases the handle. The folder and its entries stay. [any thread] */
WCUDA_API void wcuda_kernel_cache_close(wcuda_kernel_cache cache);

typedef struct wcuda_kernel_cache_stats {
  uint32_t struct_size;
  uint32_t reserved;
  uint64_t hit_count;           /* this and the next six: counted since the handle was opened */
  uint64_t miss_count;
  uint64_t damaged_count;       /* files that were not valid entries; each was removed and counts as
                                   a miss */
  uint64_t store_count;
  uint64_t store_failure_count; /* entries that could not be stored: disk full or larger than max_bytes */
  uint64_t evicted_count;
  uint64_t bypass_count;
  uint64_t entry_count;         /* entries in the folder now */
  uint64_t entry_bytes;
} wcuda_kernel_cache_stats;
#define WCUDA_KERNEL_CACHE_STATS_INIT {sizeof(wcuda_kernel_cache_stats), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}
/* Reports the counts of a cache handle and the contents of its folder. [any thread] */
WCUDA_API wcuda_status wcuda_kernel_cache_stats_get(wcuda_kernel_cache cache,
                                                    wcuda_kernel_cache_stats* stats,
                                                    wcuda_error* error);
/* Removes all entries from the folder. [any thread] */
WCUDA_API wcuda_status wcuda_kernel_cache_clear(wcuda_kernel_cache cache, wcuda_error* error);

/* A header file in memory. The source includes it with #include "name". */
typedef struct wcuda_program_header {
  uint32_t struct_size;
  uint32_t reserved;
  wcuda_string name;
  wcuda_string text;
} wcuda_program_header;
#define WCUDA_PROGRAM_HEADER_INIT {sizeof(wcuda_program_header), 0, {NULL, 0}, {NULL, 0}}

/* Values of flush_denormals, precise_sqrt, precise_division and fuse_multiply_add. 0 means NVRTC's default,
 * which WCUDA_PROGRAM_FAST_MATH changes. */
#define WCUDA_CHOICE_ON 1
#define WCUDA_CHOICE_OFF 2

#define WCUDA_PROGRAM_FAST_MATH (1u << 0)
#define WCUDA_PROGRAM_LINE_INFO (1u << 1)      /* adds line numbers for profilers */
#define WCUDA_PROGRAM_DEBUG (1u << 2)          /* generates unoptimised code for debuggers */
#define WCUDA_PROGRAM_RELOCATABLE (1u << 3)    /* generates code that must be linked before it is loaded */
#define WCUDA_PROGRAM_DEFAULT_DEVICE (1u << 4) /* treats functions without an execution space specifier
                                                  as __device__ */

typedef struct wcuda_program_options {
  uint32_t struct_size;
  uint32_t flags;            /* WCUDA_PROGRAM_... */
  wcuda_string source;       /* CUDA C++ source */
  wcuda_string name;         /* file name in diagnostics; empty means "kernel.cu" */
  /* "sm_90a" produces a cubin for that architecture, "compute_90" PTX. Empty means a cubin for the device
   * of `context`: "sm_90a" on an H200, "sm_80" on an A100. */
  wcuda_string architecture;
  /* Needed only if `architecture` is empty. The program does not keep the context alive. While the context
   * exists, tracing and fault injection of its backend (section 21) also apply to wcuda_program_compile. */
  wcuda_context context;
  wcuda_string standard;     /* "c++11", "c++14", "c++17" or "c++20"; empty means NVRTC's default */
  const wcuda_string* defines; /* each is "NAME" or "NAME=value" */
  uint64_t define_count;
  const wcuda_program_header* headers; /* take precedence over files of the same name */
  uint64_t header_count;
  const wcuda_string* include_folders;
  uint64_t include_folder_count;
  const wcuda_string* expressions; /* template instances to compile as kernels, for example
                                      "scale<float>" */
  uint64_t expression_count;
  const wcuda_string* extras; /* options that are passed to NVRTC unchanged, after all others */
  uint64_t extra_count;
  int32_t flush_denormals;    /* option --ftz; WCUDA_CHOICE_..., as are the next three */
  int32_t precise_sqrt;       /* option --prec-sqrt */
  int32_t precise_division;   /* option --prec-div */
  int32_t fuse_multiply_add;  /* option --fmad */
  uint32_t max_registers;     /* registers per thread; 0 means no limit */
  uint32_t reserved;
  wcuda_string library_folder; /* folder with libnvrtc.so.13; empty means the loader's search path */
  wcuda_kernel_cache cache;    /* id 0 means no cache */
} wcuda_program_options;
#define WCUDA_PROGRAM_OPTIONS_INIT \
  {sizeof(wcuda_program_options), 0, {NULL, 0}, {NULL, 0}, {NULL, 0}, {0}, {NULL, 0}, NULL, 0, NULL, 0, \
   NULL, 0, NULL, 0, NULL, 0, 0, 0, 0, 0, 0, 0, {NULL, 0}, {0}}

/* Creates a program. Copies all inputs and checks the options, but compiles nothing yet. No input string
 * may contain a NUL. [any thread] */
WCUDA_API wcuda_status wcuda_program_create(const wcuda_program_options* options,
                                            wcuda_program* program, wcuda_error* error);
/* Releases the program. Modules that were loaded from it stay valid. [any thread] */
WCUDA_API void wcuda_program_destroy(wcuda_program program);

/* Compiles the program, or takes its code from the cache. Compiling a compiled program again does nothing.
 *   WCUDA_COMPILE_FAILED    the source has errors; the message has the first diagnostic, and
 *                           wcuda_program_log_get has all
 *   WCUDA_UNSUPPORTED       NVRTC does not support the architecture; the message lists those it supports
 *   WCUDA_INVALID_ARGUMENT  NVRTC does not recognise one of the extra options
 *   WCUDA_NOT_AVAILABLE     NVRTC cannot be opened; the message has the loader's reason
 * A failure that was injected into the backend leaves the program unchanged. [external: program] */
WCUDA_API wcuda_status wcuda_program_compile(wcuda_program program, wcuda_error* error);

#define WCUDA_PROGRAM_NEW 0 /* not compiled yet */
#define WCUDA_PROGRAM_COMPILED 1
#define WCUDA_PROGRAM_FAILED 2

#define WCUDA_CACHE_NONE 0 /* the program has no cache, or was not compiled yet */
#define WCUDA_CACHE_HIT 1
#define WCUDA_CACHE_MISS 2 /* the program was compiled, and stored in the cache if possible */
#define WCUDA_CACHE_BYPASSED 3

typedef struct wcuda_program_info {
  uint32_t struct_size;
  int32_t state;         /* WCUDA_PROGRAM_NEW, WCUDA_PROGRAM_COMPILED or WCUDA_PROGRAM_FAILED */
  int32_t code_kind;     /* WCUDA_CODE_PTX or WCUDA_CODE_CUBIN, even before compiling */
  int32_t nvrtc_version; /* major * 1000 + minor * 10; 0 before NVRTC was opened */
  uint64_t code_bytes;   /* size of the code; 0 unless the program is compiled */
  uint64_t log_bytes;
  uint64_t compile_ns;   /* duration of the last wcuda_program_compile that compiled */
  char architecture[32]; /* the architecture compiled for; NUL-terminated */
  int32_t cache_result;  /* WCUDA_CACHE_... */
  uint32_t reserved;
} wcuda_program_info;
#define WCUDA_PROGRAM_INFO_INIT {sizeof(wcuda_program_info), 0, 0, 0, 0, 0, 0, {0}, 0, 0}
/* Reports the state of a program. [external: program] */
WCUDA_API wcuda_status wcuda_program_info_get(wcuda_program program, wcuda_program_info* info,
                                              wcuda_error* error);

/* Reports the compiler's log: diagnostics after a failure, warnings after a success. Before the first
 * wcuda_program_compile the log is empty. It stays valid until the program is compiled again or destroyed.
 * [external: program] */
WCUDA_API wcuda_status wcuda_program_log_get(wcuda_program program, wcuda_string* log,
                                             wcuda_error* error);
/* Reports the code of a program, which stays valid until the program is destroyed. PTX has no NUL at its
 * end. Returns WCUDA_INVALID_STATE if the program is not compiled. [external: program] */
WCUDA_API wcuda_status wcuda_program_code_get(wcuda_program program, const void** code,
                                              uint64_t* bytes, wcuda_error* error);
/* Reports the mangled name of one of the program's expressions. The name stays valid until the program is
 * destroyed. Returns WCUDA_NOT_FOUND if `expression` is not one of them, and WCUDA_INVALID_STATE if the
 * program is not compiled. [external: program] */
WCUDA_API wcuda_status wcuda_program_name_get(wcuda_program program, wcuda_string expression,
                                              wcuda_string* name, wcuda_error* error);

typedef struct wcuda_compiler_info {
  uint32_t struct_size;
  int32_t nvrtc_version; /* major * 1000 + minor * 10 */
  uint32_t architecture_count;
  int32_t architectures[61]; /* in ascending order: 75, 80, ... */
} wcuda_compiler_info;
#define WCUDA_COMPILER_INFO_INIT {sizeof(wcuda_compiler_info), 0, 0, {0}}
/* Reports the version of NVRTC and the architectures that it supports. `library_folder` is that of
 * wcuda_program_options. If NVRTC cannot be opened, returns WCUDA_NOT_AVAILABLE with the reason.
 * [any thread] */
WCUDA_API wcuda_status wcuda_compiler_info_get(wcuda_string library_folder,
                                               wcuda_compiler_info* info, wcuda_error* error);

/* ------------------------------------------------------------------------------------------------
 * 18. Run-time kernels: modules, kernels, launches
 *
 * A kernel has device code in a module, or a host function, or both. A CUDA context runs the device code. A
 * HOST context runs the host function. Neither is used in place of the other.
 */

/* Identifies the kind of device code (WCUDA_CODE_...) from its header or first token, and checks that the
 * code is complete. Returns WCUDA_MALFORMED with the reason if the code is of none of these kinds, for
 * example CUDA C++ source, or is not complete. [any thread] */
WCUDA_API wcuda_status wcuda_code_kind_get(const void* code, uint64_t bytes, int32_t* kind,
                                           wcuda_error* error);

typedef struct wcuda_module {
  uint64_t id;
} wcuda_module;

/* Loads PTX, a cubin or a fatbin on the context's device. PTX needs no NUL at its end. Returns
 * WCUDA_UNSUPPORTED if the code is for another architecture or the PTX is newer than the driver, and
 * WCUDA_MALFORMED if the code is not valid. In both cases the message has the driver's reason. Returns
 * WCUDA_UNSUPPORTED_KERNEL on HOST.
 *
 * The code is trusted: nothing limits the memory that it accesses. While the module is loaded, the ledger
 * lists the size of the code as WCUDA_PURPOSE_MODULE, and the size counts against the budgets. The driver
 * does not report how much memory the module really needs. [any thread] */
WCUDA_API wcuda_status wcuda_module_load(wcuda_context context, const void* code, uint64_t bytes,
                                         wcuda_module* module, wcuda_error* error);
/* Loads the code of a compiled program. The program's expressions, such as "scale<float>", are then valid
 * kernel names. [external: program] */
WCUDA_API wcuda_status wcuda_module_load_program(wcuda_context context, wcuda_program program,
                                                 wcuda_module* module, wcuda_error* error);
/* Releases the handle. Kernels of the module and buffers for its variables keep the module loaded.
 * Releasing the last of these waits for the stream on which the module's kernels ran. If they ran on
 * several streams, or if a buffer for a variable was created, it waits for all work of the context. The
 * driver unloads code only when the context is idle. Until a later load or unload finds the context idle,
 * up to 64 released modules stay on the device. [any thread] */
WCUDA_API void wcuda_module_unload(wcuda_module module);

/* Creates a buffer for a __device__ or __constant__ variable of the module. The buffer is listed in the
 * ledger as borrowed and keeps the module loaded. Release it with wcuda_buffer_destroy. Returns
 * WCUDA_NOT_FOUND if the module has no variable of this name. [any thread] */
WCUDA_API wcuda_status wcuda_module_global_create(wcuda_module module, wcuda_string name,
                                                  wcuda_buffer* buffer, wcuda_error* error);

/* Kinds of parameters and arguments. A scalar is passed by value. A buffer is passed as an address: that of
 * a window of the buffer (see wcuda_argument). */
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

#define WCUDA_LAYOUT_ANY 0
#define WCUDA_LAYOUT_ROW_MAJOR 1    /* the last dimension is contiguous */
#define WCUDA_LAYOUT_COLUMN_MAJOR 2 /* the first dimension is contiguous */

/* One parameter of a kernel's signature. Signatures are used for kernels (below), for built-in kernels
 * (section 19) and for registered kernels (section 22).
 *
 * Sizes and bounds are expressions over the kernel's own integer parameters, for example "n", "ceil_div(n,
 * 256)" or "max(1, rows * 4)". The operators are + - * / % and parentheses; the functions are ceil_div,
 * round_up (to the next multiple), min and max. An expression has at most 256 bytes and is evaluated in
 * signed 64-bit arithmetic. If a result overflows, a divisor is less than 1 or a dividend is negative, the
 * call that evaluates the expression returns WCUDA_INVALID_ARGUMENT, and the message has the operands. */
typedef struct wcuda_parameter {
  uint32_t struct_size;
  int32_t kind;       /* WCUDA_ARG_...: a scalar kind, WCUDA_ARG_BUFFER or WCUDA_ARG_BYTES */
  wcuda_string name;  /* letters, digits and "_"; must be unique in the signature */
  int32_t dtype;      /* BUFFER: type of the elements, a scalar WCUDA_ARG_...; otherwise 0 */
  uint32_t access;    /* BUFFER: WCUDA_ACCESS_... bits; 0 means read and write */
  int32_t layout;     /* BUFFER: WCUDA_LAYOUT_...; a hint that is not checked */
  uint32_t layout_id; /* BUFFER, BYTES: the caller's number for a struct layout; 0 means none */
  /* BUFFER: the dimensions, as expressions separated by commas; empty means one element. BYTES: the size in
   * bytes, a number. Scalar: empty. */
  wcuda_string shape;
  /* Scalar: the least value allowed. For an integer kind, an expression; for f32 and f64, a number. Empty
   * means no bound. */
  wcuda_string min;
  wcuda_string max;   /* scalar: the greatest value allowed, in the same form as `min` */
} wcuda_parameter;
#define WCUDA_PARAMETER_INIT \
  {sizeof(wcuda_parameter), 0, {NULL, 0}, 0, 0, 0, 0, {NULL, 0}, {NULL, 0}, {NULL, 0}}

typedef struct wcuda_launch {
  uint32_t struct_size;
  uint32_t flags;        /* WCUDA_LAUNCH_... */
  uint32_t grid[3];      /* number of blocks in x, y and z */
  uint32_t block[3];     /* threads per block in x, y and z */
  uint32_t cluster[3];   /* blocks per cluster; all 0 means no cluster, or the kernel's own */
  uint32_t shared_bytes; /* dynamic shared memory per block */
  wcuda_stream stream;   /* id 0 means the context's default stream */
} wcuda_launch;
#define WCUDA_LAUNCH_INIT {sizeof(wcuda_launch), 0, {1, 1, 1}, {256, 1, 1}, {0}, 0, {0}}
/* All blocks of the grid are resident at the same time and may wait for each other. If the device cannot
 * hold the grid, the launch returns WCUDA_LAUNCH_FAILED. */
#define WCUDA_LAUNCH_COOPERATIVE (1u << 0)

/* One argument as a host function receives it. */
typedef struct wcuda_host_argument {
  uint32_t struct_size;
  int32_t kind;   /* WCUDA_ARG_... */
  void* data;     /* BUFFER: the start of its window; otherwise the value, read-only */
  uint64_t bytes;
} wcuda_host_argument;
#define WCUDA_HOST_ARGUMENT_INIT {sizeof(wcuda_host_argument), 0, NULL, 0}

/* A host function: computes the whole grid of a launch. Runs on the thread that launches the kernel. If it
 * returns a value other than 0, the launch returns WCUDA_DEVICE_ERROR with this value as the native code.
 * The library has checked the arguments as it does for a device. To get from one argument to the next, add
 * arguments[0].struct_size bytes instead of indexing the array: a newer library may use a larger
 * struct. */
typedef int32_t (*wcuda_host_kernel)(void* user, const wcuda_launch* launch,
                                     const wcuda_host_argument* arguments, uint64_t argument_count);

typedef struct wcuda_kernel {
  uint64_t id;
} wcuda_kernel;

typedef struct wcuda_kernel_options {
  uint32_t struct_size;
  int32_t has_signature;  /* 1: `parameters` is the whole signature, and launches are checked against it */
  /* With a module: a name with C linkage, a mangled name, or an expression of the program that was loaded.
   * Without a module: any string. */
  wcuda_string name;
  wcuda_module module;    /* needed to launch on CUDA; id 0 means none */
  wcuda_host_kernel host; /* needed to launch on HOST; NULL means none */
  void* host_user;        /* must stay valid until host_release is called */
  const wcuda_parameter* parameters;
  uint64_t parameter_count;
  /* Called once, with host_user, when the kernel is no longer used: its handle is destroyed, no registry
   * has it, and its last launch has finished. It runs on the thread that ended the last use, possibly
   * inside a call of this library. It is not called if wcuda_kernel_create fails. NULL means none. */
  void (*host_release)(void* user);
} wcuda_kernel_options;
#define WCUDA_KERNEL_OPTIONS_INIT \
  {sizeof(wcuda_kernel_options), 0, {NULL, 0}, {0}, NULL, NULL, NULL, 0, NULL}

/* Creates a kernel of a context. Returns WCUDA_NOT_FOUND if the module has no kernel of this name, and the
 * message lists the kernels that it has. Returns WCUDA_INVALID_ARGUMENT if the signature does not match the
 * number and sizes of the code's parameters, or if the module belongs to another context. Returns
 * WCUDA_UNSUPPORTED_KERNEL if the options have neither a module nor a host function. [any thread] */
WCUDA_API wcuda_status wcuda_kernel_create(wcuda_context context,
                                           const wcuda_kernel_options* options,
                                           wcuda_kernel* kernel, wcuda_error* error);
/* Releases the kernel without waiting. Launches in progress and registries that have the kernel continue to
 * use it; host_release is called after the last use. [any thread] */
WCUDA_API void wcuda_kernel_destroy(wcuda_kernel kernel);

typedef struct wcuda_kernel_info {
  uint32_t struct_size;
  int32_t has_device_code;
  int32_t has_host_function;
  uint32_t parameter_count;       /* of the device code or, without it, of the signature; 0 if neither exists */
  uint32_t max_threads_per_block; /* this and the next fields describe device code; otherwise 0 */
  uint32_t register_count;        /* registers per thread */
  uint64_t static_shared_bytes;
  uint64_t dynamic_shared_bytes_max;
  uint64_t local_bytes;           /* local memory per thread */
  uint64_t constant_bytes;
  uint32_t required_cluster[3];
  int32_t ptx_version;            /* major * 10 + minor */
  int32_t binary_version;         /* major * 10 + minor */
  uint32_t name_bytes;
  char name[256];                 /* name in the device code; truncated to fit, NUL-terminated */
} wcuda_kernel_info;
#define WCUDA_KERNEL_INFO_INIT {sizeof(wcuda_kernel_info), 0, 0, 0, 0, 0, 0, 0, 0, 0, {0}, 0, 0, 0, {0}}
/* Reports the properties of a kernel. [any thread] */
WCUDA_API wcuda_status wcuda_kernel_info_get(wcuda_kernel kernel, wcuda_kernel_info* info,
                                             wcuda_error* error);

typedef struct wcuda_occupancy {
  uint32_t struct_size;
  uint32_t blocks_per_multiprocessor; /* blocks that are resident on an SM at the same time */
  uint32_t threads_per_multiprocessor;
  uint32_t best_block_threads;        /* the block size with the highest occupancy */
  double share;                       /* threads_per_multiprocessor divided by the device's maximum, 0
                                         to 1 */
} wcuda_occupancy;
#define WCUDA_OCCUPANCY_INIT {sizeof(wcuda_occupancy), 0, 0, 0, 0.0}
/* Computes the occupancy of a kernel for a block size and an amount of dynamic shared memory per block.
 * Returns WCUDA_UNSUPPORTED_KERNEL if the kernel has no device code. [any thread] */
WCUDA_API wcuda_status wcuda_kernel_occupancy_get(wcuda_kernel kernel, uint32_t block_threads,
                                                  uint64_t shared_bytes,
                                                  wcuda_occupancy* occupancy, wcuda_error* error);

typedef struct wcuda_argument {
  uint32_t struct_size;
  int32_t kind;        /* WCUDA_ARG_... */
  const void* data;    /* scalars and BYTES: the value, which is copied before the call returns */
  /* BUFFER: size of the window, where 0 means up to the end of the buffer. BYTES: size of the value.
   * Scalars: 0. */
  uint64_t bytes;
  wcuda_buffer buffer; /* BUFFER: the buffer */
  uint64_t offset;     /* BUFFER: offset of the window in bytes */
  uint32_t access;     /* BUFFER: WCUDA_ACCESS_... bits that the caller permits; 0 means both */
  uint32_t reserved;
} wcuda_argument;
#define WCUDA_ARGUMENT_INIT {sizeof(wcuda_argument), 0, NULL, 0, {0}, 0, 0, 0}

/* Queues a launch and does not wait for the kernel. On HOST the kernel has finished when the call returns.
 * The call checks the following before it calls the driver:
 *   launch     Grid and block are not zero. Grid, block, cluster and shared memory are within the limits of
 *              the device and the kernel. Otherwise returns WCUDA_INVALID_CONFIG; the message has the value
 *              and the limit.
 *   arguments  Their number equals the kernel's; otherwise returns WCUDA_ARGUMENT_COUNT. Their sizes match
 *              the code. If the kernel has a signature, their kinds, access, extents and bounds match it.
 *   buffers    The buffers are live and belong to the kernel's context, and the windows are within them.
 * Returns WCUDA_LAUNCH_FAILED if the driver refuses the launch; nothing has run then. If the kernel causes
 * a fault, the next call that waits and all later calls return WCUDA_DEVICE_LOST. A buffer that is
 * destroyed while the kernel runs is freed after the kernel. The library does not check the memory that
 * device code accesses. [any thread; external: each buffer] */
WCUDA_API wcuda_status wcuda_kernel_launch(wcuda_kernel kernel, const wcuda_launch* launch,
                                           const wcuda_argument* arguments, uint64_t argument_count,
                                           wcuda_error* error);

/* Computes the number of threads of a launch, the product of grid and block. Returns WCUDA_OUT_OF_RANGE if
 * it exceeds 64 bits. [any thread] */
WCUDA_API wcuda_status wcuda_launch_threads_get(const wcuda_launch* launch, uint64_t* threads,
                                                wcuda_error* error);

/* ------------------------------------------------------------------------------------------------
 * 19. Catalogue: built-in kernels on every backend
 *
 * docs/CATALOGUE.md describes each kernel. Results on HOST and on CUDA agree within the bounds of
 * docs/NUMERICS.md. Kernels accumulate in f32, in an order that depends only on the sizes, so results are
 * reproducible on one device. Sizes may be zero.
 */

typedef struct wcuda_catalogue_entry {
  uint32_t struct_size;
  int32_t is_f32_only; /* 1: f32 only; 0: f16 and bf16 too */
  wcuda_string name;   /* static string */
  uint32_t parameter_count;
  uint32_t reserved;
} wcuda_catalogue_entry;
#define WCUDA_CATALOGUE_ENTRY_INIT {sizeof(wcuda_catalogue_entry), 0, {NULL, 0}, 0, 0}

/* Lists the built-in kernels in ascending order of name. [any thread] */
WCUDA_API wcuda_status wcuda_catalogue_list(uint64_t first, wcuda_catalogue_entry* entries,
                                            uint64_t capacity, uint64_t* count, wcuda_error* error);
/* Lists the parameters of a built-in kernel for elements of `type`, which is WCUDA_ARG_F32, WCUDA_ARG_F16
 * or WCUDA_ARG_BF16. Strings are static. An I64 parameter accepts an integer of any width, and an F32
 * parameter accepts f32 or f64. Returns WCUDA_NOT_FOUND if there is no such kernel, and WCUDA_UNSUPPORTED
 * if it does not support the type. [any thread] */
WCUDA_API wcuda_status wcuda_catalogue_parameter_list(wcuda_string name, int32_t type, uint64_t first,
                                                      wcuda_parameter* parameters,
                                                      uint64_t capacity, uint64_t* count,
                                                      wcuda_error* error);

/* Queues a built-in kernel on a stream and does not wait. Stream id 0 is the context's default stream. On
 * HOST the kernel has finished when the call returns. The elements have type WCUDA_ARG_F32, WCUDA_ARG_F16
 * or WCUDA_ARG_BF16.
 *
 * The call first checks all arguments: their number, kinds and extents, and that no buffer that is written
 * overlaps another. As an exception, the output of an element-wise or row-wise kernel (docs/CATALOGUE.md)
 * may be exactly one of its inputs. Returns WCUDA_NOT_FOUND if there is no such kernel.
 *
 * embedding_lookup waits, because it reads its ids first. If an id is not in the table, it returns
 * WCUDA_OUT_OF_RANGE, the message has the first such id, and nothing is written.
 * [any thread; external: each buffer] */
WCUDA_API wcuda_status wcuda_catalogue_run(wcuda_context context, wcuda_string name, int32_t type,
                                           const wcuda_argument* arguments, uint64_t argument_count,
                                           wcuda_stream stream, wcuda_error* error);

/* ------------------------------------------------------------------------------------------------
 * 20. Matrix multiplication
 *
 * c = activation(alpha * op(a) * op(b) + beta * c + bias). Matrices are row-major: op(a) is (m, k), op(b)
 * is (k, n) and c is (m, n). bias is (n) and is added to every row. CUDA uses cuBLASLt, which is opened
 * when it is first needed. HOST uses the CPU. On one device and with one version of cuBLASLt, calls with
 * the same shapes, strides and alignments give the same bits, because the choice of the algorithm depends
 * on nothing else.
 *
 * Error bound. Let S = |alpha| * sum over k of |a * b|. Before an element is rounded to the type of c, its
 * error is at most
 *   4 * k * 2^-24 * S + t * S
 * where t is 0 for F32, F16 and BF16. t is 2^-9 for TF32, whose operands have 10 fraction bits. t is 2^-10
 * for FP8 on CUDA, whose tensor cores accumulate with fewer bits before they add to the f32 sum. CUDA may
 * also round to the type of c before it applies a bias or an activation. GELU adds a relative error
 * of 2^-10.
 */

/* Type of a and b. Products are accumulated in f32. */
#define WCUDA_GEMM_F32 1
#define WCUDA_GEMM_TF32 2 /* a and b are f32 in memory */
#define WCUDA_GEMM_F16 3
#define WCUDA_GEMM_BF16 4
/* a and b are e4m3. CUDA needs compute capability 8.9 or newer. The product is fastest if b is transposed
 * and a is not, and if the rows of a, b and c, all strides and all addresses are multiples of 16 bytes.
 * Otherwise the library copies a, b and c through aligned scratch memory, which costs one more pass over
 * each. */
#define WCUDA_GEMM_FP8 5
#define WCUDA_GEMM_F64 6  /* reserved: every backend returns WCUDA_NOT_AVAILABLE */
#define WCUDA_GEMM_INT8 7 /* reserved: every backend returns WCUDA_NOT_AVAILABLE */

#define WCUDA_GEMM_TRANSPOSE_A (1u << 0) /* a is stored as (k, m) */
#define WCUDA_GEMM_TRANSPOSE_B (1u << 1) /* b is stored as (n, k) */

#define WCUDA_ACTIVATION_NONE 0
#define WCUDA_ACTIVATION_RELU 1 /* a NaN gives NaN on HOST and 0 on CUDA */
#define WCUDA_ACTIVATION_GELU 2 /* the tanh form: 0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) */

typedef struct wcuda_gemm {
  uint32_t struct_size;
  uint32_t flags;          /* WCUDA_GEMM_TRANSPOSE_... */
  int32_t type;            /* WCUDA_GEMM_... */
  /* Type of c: WCUDA_ARG_F32, WCUDA_ARG_F16 or WCUDA_ARG_BF16. F32 and TF32 products allow only F32. The
   * default, 0, depends on `type`: F32 and TF32 give F32, F16 gives F16, BF16 and FP8 give BF16. */
  int32_t output_type;
  int32_t activation;      /* WCUDA_ACTIVATION_... */
  float alpha;
  float beta;              /* with 0, c is not read */
  uint32_t reserved;
  uint64_t m;
  uint64_t n;
  uint64_t k;              /* must be at least 1 */
  uint64_t batch;          /* number of products of this shape; 0 means 1 */
  uint64_t row_stride_a;   /* elements from one stored row to the next; 0 means contiguous rows */
  uint64_t row_stride_b;
  uint64_t row_stride_c;
  uint64_t batch_stride_a; /* elements from one matrix to the next; 0 means contiguous matrices */
  uint64_t batch_stride_b;
  uint64_t batch_stride_c;
} wcuda_gemm;
#define WCUDA_GEMM_INIT \
  {sizeof(wcuda_gemm), 0, WCUDA_GEMM_F32, 0, 0, 1.0f, 0.0f, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}

/* Queues a matrix product on a stream and does not wait. Stream id 0 is the context's default stream. On
 * HOST the product has finished when the call returns.
 *
 * The arguments are the buffers a, b and c and optionally the bias. The bias has the type of c, except that
 * an FP8 product into F32 has a BF16 bias. c must not overlap another argument. If types, sizes or strides
 * are wrong, returns WCUDA_INVALID_ARGUMENT, and the message has the values. Returns WCUDA_NOT_AVAILABLE if
 * cuBLASLt cannot be opened or has no algorithm for this product. The built-in kernels for matrix products
 * (section 19) do not need cuBLASLt.
 *
 * The ledger lists workspace as WCUDA_PURPOSE_SCRATCH. Products on stream 0 share 32 MiB of workspace, which
 * stays allocated until the context is closed. [any thread; external: each buffer] */
WCUDA_API wcuda_status wcuda_gemm_run(wcuda_context context, const wcuda_gemm* gemm,
                                      const wcuda_argument* arguments, uint64_t argument_count,
                                      wcuda_stream stream, wcuda_error* error);

/* Returns WCUDA_OK if cuBLASLt can be opened, otherwise WCUDA_NOT_AVAILABLE with the reason. Without
 * cuBLASLt, wcuda_gemm_run fails on CUDA. [any thread] */
WCUDA_API wcuda_status wcuda_gemm_library_check(wcuda_error* error);

/* ------------------------------------------------------------------------------------------------
 * 22. Kernel descriptors and registries: kernels by name or id, with a complete signature
 *
 * A descriptor has what a caller must know to run a kernel correctly: its parameters with types, shapes and
 * bounds, and how the launch follows from the arguments. A registry holds descriptors of kernels of one
 * context. When it runs a kernel, it checks every argument first.
 */

/* Bits of `flags`. */
#define WCUDA_KERNEL_NON_DETERMINISTIC (1u << 0) /* identical calls may give different bits */
#define WCUDA_KERNEL_NOT_HERE (1u << 1)          /* the context's backend cannot run the kernel */

typedef struct wcuda_kernel_descriptor {
  uint32_t struct_size;
  uint32_t flags;      /* WCUDA_KERNEL_NON_DETERMINISTIC or 0 */
  uint32_t kernel_id;  /* 0: the registry assigns an id. 1 and 2 are reserved for built-in kernels */
  /* Time budget of a run, which wcuda_run_info reports and wcuda_registry_run_wait applies; 0
   * means none. */
  uint32_t budget_ms;
  wcuda_string name;   /* 1 to 127 bytes without control characters */
  /* A kernel of the registry's context, which the registry keeps alive. If this handle is 0, the registry
   * lists the descriptor with the flag WCUDA_KERNEL_NOT_HERE and cannot run it. */
  wcuda_kernel kernel;
  const wcuda_parameter* parameters;
  uint64_t parameter_count;
  wcuda_string grid[3];      /* number of blocks in x, y, z: expressions (see wcuda_parameter); empty
                                means 1 */
  wcuda_string block[3];     /* threads per block in x, y, z; empty means 256 for x and 1 for y and z */
  /* Number of threads, to be given instead of grid[0]. grid[0] is then ceil(threads / block[0]), at
   * least 1. */
  wcuda_string threads;
  wcuda_string shared_bytes; /* dynamic shared memory per block; empty means 0 */
  /* The name of the module that has the kernel, at most 127 bytes without control characters; empty means
   * none. The protocol ZCL1 (docs/FORMATS.md) uses this name, together with the kernel's own name, to
   * find the kernel of a SUBMIT operation. */
  wcuda_string module;
} wcuda_kernel_descriptor;
#define WCUDA_KERNEL_DESCRIPTOR_INIT \
  {sizeof(wcuda_kernel_descriptor), 0, 0, 0, {NULL, 0}, {0}, NULL, 0, {{NULL, 0}, {NULL, 0}, {NULL, 0}}, \
   {{NULL, 0}, {NULL, 0}, {NULL, 0}}, {NULL, 0}, {NULL, 0}, {NULL, 0}}

/* Checks a descriptor without its kernel. If the descriptor is invalid, returns WCUDA_INVALID_ARGUMENT, and
 * the message begins with the field, for example "parameters[2].shape: ...".
 *
 * If sig_hash is not NULL, it receives the 64-bit FNV-1a hash of the descriptor's canonical signature. The
 * canonical signature lists the parameters in order, without their names, each followed by ";":
 *   scalar       the type: "i32"
 *   buffer       "r ", "w " or "rw ", the type, the dimensions, then " row" or " col" if there is a layout,
 *                then " #7" for layout_id 7: "r f32[$3,4] row"
 *   bytes        "bytes[16]"
 *   bounds       "{0..$4}" at the end of a parameter
 *   expressions  without spaces, with "$3" for the parameter of index 3 and each operation in parentheses
 * If `text` is not NULL, it receives the canonical signature, and text_bytes receives its size. Returns
 * WCUDA_BUFFER_TOO_SMALL if text_capacity is too small. [any thread] */
WCUDA_API wcuda_status wcuda_kernel_descriptor_check(const wcuda_kernel_descriptor* descriptor,
                                                     uint64_t* sig_hash, char* text,
                                                     uint64_t text_capacity, uint64_t* text_bytes,
                                                     wcuda_error* error);

typedef struct wcuda_registry {
  uint64_t id;
} wcuda_registry;

/* Creates an empty registry for kernels of a context. [any thread] */
WCUDA_API wcuda_status wcuda_registry_create(wcuda_context context, wcuda_registry* registry,
                                             wcuda_error* error);
/* Releases the registry once the runs in progress have finished. [any thread] */
WCUDA_API void wcuda_registry_destroy(wcuda_registry registry);

/* Adds a kernel to the registry. If the registry already has a kernel of this name, the new kernel
 * replaces it and, unless the descriptor has an id, takes over its id. Returns WCUDA_INVALID_ARGUMENT if
 * the id belongs to another kernel. A run in progress finishes with the kernel and the descriptor with
 * which it began. If kernel_id is not NULL, it receives the id. [any thread] */
WCUDA_API wcuda_status wcuda_registry_add(wcuda_registry registry,
                                          const wcuda_kernel_descriptor* descriptor,
                                          uint32_t* kernel_id, wcuda_error* error);
/* Adds a built-in kernel (section 19) for elements of `type`. With wanted_id 0 the registry assigns an id.
 * "noop" always has id 1 and sig_hash 0, and "tensor_add" for f32 always has id 2 and sig_hash 0xA1, as
 * programs written for older libraries expect. If kernel_id is not NULL, it receives the id.
 * [any thread] */
WCUDA_API wcuda_status wcuda_registry_add_builtin(wcuda_registry registry, wcuda_string name,
                                                  int32_t type, uint32_t wanted_id,
                                                  uint32_t* kernel_id, wcuda_error* error);
/* Removes a kernel. Returns WCUDA_NOT_FOUND if no kernel has this id. [any thread] */
WCUDA_API wcuda_status wcuda_registry_remove(wcuda_registry registry, uint32_t kernel_id,
                                             wcuda_error* error);

typedef struct wcuda_registered_kernel {
  uint32_t struct_size;
  uint32_t kernel_id;
  uint32_t flags; /* WCUDA_KERNEL_... */
  uint32_t parameter_count;
  uint32_t budget_ms;
  uint32_t name_bytes;
  uint64_t sig_hash;
  char name[128]; /* NUL-terminated */
} wcuda_registered_kernel;
#define WCUDA_REGISTERED_KERNEL_INIT {sizeof(wcuda_registered_kernel), 0, 0, 0, 0, 0, 0, {0}}

/* Lists the kernels in ascending order of id. [any thread] */
WCUDA_API wcuda_status wcuda_registry_list(wcuda_registry registry, uint64_t first,
                                           wcuda_registered_kernel* kernels, uint64_t capacity,
                                           uint64_t* count, wcuda_error* error);
/* Finds a kernel by its name. Returns WCUDA_NOT_FOUND if no kernel has this name. [any thread] */
WCUDA_API wcuda_status wcuda_registry_find(wcuda_registry registry, wcuda_string name,
                                           wcuda_registered_kernel* kernel, wcuda_error* error);

typedef struct wcuda_run_info {
  uint32_t struct_size;
  uint32_t shared_bytes;
  uint32_t grid[3];       /* number of blocks; all 0 for a built-in kernel */
  uint32_t block[3];
  /* Value of the descriptor's `threads` or, if it is empty, the number of threads of the launch. For a
   * built-in kernel, the number of output elements. */
  uint64_t elements;
  uint64_t bytes;         /* size of all buffers according to their shapes */
  uint32_t budget_ms;     /* budget_ms of the descriptor */
  int32_t is_over_budget; /* 1: the run took longer than budget_ms; set by wcuda_registry_run_wait only */
  /* Duration of the kernel, measured by device events on CUDA and by the clock on HOST; 0 if unknown or if
   * the kernel has not finished. Set by wcuda_registry_run_wait only. */
  uint64_t time_ns;
} wcuda_run_info;
#define WCUDA_RUN_INFO_INIT {sizeof(wcuda_run_info), 0, {0}, {0}, 0, 0, 0, 0, 0}

/* Queues a kernel on a stream and does not wait, like wcuda_kernel_launch. Stream id 0 is the context's
 * default stream. Grid, block and shared memory follow from the descriptor. `info` may be NULL.
 *
 * The call first checks the number, kind, access, extent and bounds of the arguments against the
 * descriptor. If an argument does not match, returns WCUDA_INVALID_ARGUMENT; the message has the argument's
 * index and name, the value required and the value given. Returns WCUDA_INVALID_CONFIG if a dimension of
 * the launch is out of bounds, and WCUDA_UNSUPPORTED_KERNEL if this backend cannot run the kernel.
 * [any thread; external: each buffer] */
WCUDA_API wcuda_status wcuda_registry_run(wcuda_registry registry, uint32_t kernel_id,
                                          const wcuda_argument* arguments, uint64_t argument_count,
                                          wcuda_stream stream, wcuda_run_info* info,
                                          wcuda_error* error);
/* Runs a kernel and waits until it has finished, or until the descriptor's budget_ms have passed. If the
 * kernel takes longer than budget_ms, returns WCUDA_TIMEOUT. The message then has both times, and `info` is
 * written with is_over_budget 1. A kernel that has not finished is not stopped: time_ns is 0, and its
 * buffers stay in use until it ends. [any thread; external: each buffer] */
WCUDA_API wcuda_status wcuda_registry_run_wait(wcuda_registry registry, uint32_t kernel_id,
                                               const wcuda_argument* arguments,
                                               uint64_t argument_count, wcuda_stream stream,
                                               wcuda_run_info* info, wcuda_error* error);
/* Performs the checks of wcuda_registry_run and reports the launch in `info`, but runs nothing.
 * [any thread; external: each buffer] */
WCUDA_API wcuda_status wcuda_registry_plan(wcuda_registry registry, uint32_t kernel_id,
                                           const wcuda_argument* arguments, uint64_t argument_count,
                                           wcuda_run_info* info, wcuda_error* error);

#ifdef __cplusplus
}
#endif

#endif /* WORKER_CUDA_COMPUTE_H */
