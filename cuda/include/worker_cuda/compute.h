/* worker_cuda/compute.h: a caller's own kernels, built-in kernels and matrix products.
 *
 * Sections 16, 18 to 20 and 22 of the interface. The conventions of worker_cuda/base.h apply.
 *
 * EXAMPLE: add two buffers of n floats with a built-in kernel, on whatever backend the context has.
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
 * examples/c/kernel.c registers and runs a kernel of the caller.
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
 * NVRTC, NVIDIA's compiler library (libnvrtc.so.13 of the toolkit or of the PyPI package
 * nvidia-cuda-nvrtc), compiles CUDA C++ to device code. It is opened when first needed. Compiling needs no
 * device.
 */

typedef struct wcuda_program {
  uint64_t id;
} wcuda_program;

/* Kinds of device code, as wcuda_code_kind_get reports them. */
#define WCUDA_CODE_PTX 1    /* text: the driver translates it for its device on load */
#define WCUDA_CODE_CUBIN 2  /* an ELF file for one architecture */
#define WCUDA_CODE_FATBIN 3 /* a container of the two for several architectures */

typedef struct wcuda_kernel_cache {
  uint64_t id;
} wcuda_kernel_cache;

/* Opens a folder that keeps compiled programs, shared by any number of processes; creates it (not its
 * parents) when it is missing. max_bytes bounds all entries together; the least recently used are evicted.
 * WCUDA_INVALID_ARGUMENT when the folder belongs to another user or others can write to it, since they
 * could plant code there; WCUDA_IO when it cannot be opened. The key of an entry is the BLAKE3 of NVRTC's
 * version, options, architecture, template expressions, source and headers. Entries appear atomically; a
 * damaged one counts as missing. Programs with include folders or extra options that read files bypass the
 * cache, which wcuda_program_info reports. [any thread] */
WCUDA_API wcuda_status wcuda_kernel_cache_open(wcuda_string folder, uint64_t max_bytes,
                                               wcuda_kernel_cache* cache, wcuda_error* error);
/* Releases the handle; the folder stays. [any thread] */
WCUDA_API void wcuda_kernel_cache_close(wcuda_kernel_cache cache);

typedef struct wcuda_kernel_cache_stats {
  uint32_t struct_size;
  uint32_t reserved;
  uint64_t hit_count;           /* of this handle, as all counts */
  uint64_t miss_count;
  uint64_t damaged_count;       /* files that were not valid entries; each was removed and counts as a miss */
  uint64_t store_count;
  uint64_t store_failure_count; /* a full disk, or an entry larger than max_bytes: logged */
  uint64_t evicted_count;
  uint64_t bypass_count;
  uint64_t entry_count;         /* in the folder now */
  uint64_t entry_bytes;
} wcuda_kernel_cache_stats;
#define WCUDA_KERNEL_CACHE_STATS_INIT {sizeof(wcuda_kernel_cache_stats), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}
/* Reports what the cache did and holds. [any thread] */
WCUDA_API wcuda_status wcuda_kernel_cache_stats_get(wcuda_kernel_cache cache,
                                                    wcuda_kernel_cache_stats* stats,
                                                    wcuda_error* error);
/* Removes all entries. [any thread] */
WCUDA_API wcuda_status wcuda_kernel_cache_clear(wcuda_kernel_cache cache, wcuda_error* error);

/* A header that exists in memory only; `name` as in #include "name". */
typedef struct wcuda_program_header {
  uint32_t struct_size;
  uint32_t reserved;
  wcuda_string name;
  wcuda_string text;
} wcuda_program_header;
#define WCUDA_PROGRAM_HEADER_INIT {sizeof(wcuda_program_header), 0, {NULL, 0}, {NULL, 0}}

/* Values of flush_denormals, precise_sqrt, precise_division and fuse_multiply_add. 0 is the compiler's
 * default, or what FAST_MATH makes of it. */
#define WCUDA_CHOICE_ON 1
#define WCUDA_CHOICE_OFF 2

#define WCUDA_PROGRAM_FAST_MATH (1u << 0)
#define WCUDA_PROGRAM_LINE_INFO (1u << 1)      /* line numbers for profilers */
#define WCUDA_PROGRAM_DEBUG (1u << 2)          /* code for debuggers, not optimised */
#define WCUDA_PROGRAM_RELOCATABLE (1u << 3)    /* code to be linked, not loaded as it is */
#define WCUDA_PROGRAM_DEFAULT_DEVICE (1u << 4) /* functions without a marker are __device__ */

typedef struct wcuda_program_options {
  uint32_t struct_size;
  uint32_t flags;            /* WCUDA_PROGRAM_... */
  wcuda_string source;       /* CUDA C++ */
  wcuda_string name;         /* in diagnostics; empty: "kernel.cu" */
  wcuda_string architecture; /* "sm_90a": a cubin for that device; "compute_90": PTX. Empty: code for the
                                device of `context` ("sm_90a" on an H200, "sm_80" on an A100) */
  wcuda_context context;     /* needed only without an architecture; the program does not keep it alive.
                                While the context lives, a trace or an injected fault of its backend
                                (section 21) covers the compile */
  wcuda_string standard;     /* "c++11", "c++14", "c++17", "c++20"; empty: the compiler's default */
  const wcuda_string* defines; /* each "NAME" or "NAME=value" */
  uint64_t define_count;
  const wcuda_program_header* headers; /* found before all files */
  uint64_t header_count;
  const wcuda_string* include_folders;
  uint64_t include_folder_count;
  const wcuda_string* expressions; /* kernels that are template instances, as "scale<float>" */
  uint64_t expression_count;
  const wcuda_string* extras; /* options passed to NVRTC unchanged, after all others */
  uint64_t extra_count;
  int32_t flush_denormals;    /* --ftz: WCUDA_CHOICE_..., as the next three */
  int32_t precise_sqrt;       /* --prec-sqrt */
  int32_t precise_division;   /* --prec-div */
  int32_t fuse_multiply_add;  /* --fmad */
  uint32_t max_registers;     /* per thread; 0: no bound */
  uint32_t reserved;
  wcuda_string library_folder; /* with libnvrtc.so.13; empty: where the system's loader looks */
  wcuda_kernel_cache cache;    /* id 0: none */
} wcuda_program_options;
#define WCUDA_PROGRAM_OPTIONS_INIT \
  {sizeof(wcuda_program_options), 0, {NULL, 0}, {NULL, 0}, {NULL, 0}, {0}, {NULL, 0}, NULL, 0, NULL, 0, \
   NULL, 0, NULL, 0, NULL, 0, 0, 0, 0, 0, 0, 0, {NULL, 0}, {0}}

/* Creates a program to be compiled: copies its inputs and checks the options; compiles nothing yet. Texts
 * contain no NUL. [any thread] */
WCUDA_API wcuda_status wcuda_program_create(const wcuda_program_options* options,
                                            wcuda_program* program, wcuda_error* error);
/* Releases the program; modules loaded from it stay. [any thread] */
WCUDA_API void wcuda_program_destroy(wcuda_program program);

/* Compiles, or takes the code from the cache. WCUDA_COMPILE_FAILED has the first diagnostic in its message;
 * wcuda_program_log_get has all. WCUDA_UNSUPPORTED: NVRTC does not know the architecture; the message lists
 * those it knows. WCUDA_INVALID_ARGUMENT: it does not know an extra option. WCUDA_NOT_AVAILABLE: there is no
 * NVRTC; the message has the loader's reason. Compiling a compiled program changes nothing;
 * a compile refused by an injected fault leaves the program as it was. [external: program] */
WCUDA_API wcuda_status wcuda_program_compile(wcuda_program program, wcuda_error* error);

#define WCUDA_PROGRAM_NEW 0 /* not compiled yet */
#define WCUDA_PROGRAM_COMPILED 1
#define WCUDA_PROGRAM_FAILED 2

#define WCUDA_CACHE_NONE 0 /* the program has no cache, or was not compiled */
#define WCUDA_CACHE_HIT 1
#define WCUDA_CACHE_MISS 2 /* compiled, and stored if possible */
#define WCUDA_CACHE_BYPASSED 3

typedef struct wcuda_program_info {
  uint32_t struct_size;
  int32_t state;         /* WCUDA_PROGRAM_NEW, _COMPILED or _FAILED */
  int32_t code_kind;     /* WCUDA_CODE_PTX or _CUBIN: what it is, or will be */
  int32_t nvrtc_version; /* major * 1000 + minor * 10; 0 before the library was opened */
  uint64_t code_bytes;   /* 0 unless compiled */
  uint64_t log_bytes;
  uint64_t compile_ns;   /* of the last wcuda_program_compile that compiled */
  char architecture[32]; /* in use, NUL-terminated */
  int32_t cache_result;  /* WCUDA_CACHE_... */
  uint32_t reserved;
} wcuda_program_info;
#define WCUDA_PROGRAM_INFO_INIT {sizeof(wcuda_program_info), 0, 0, 0, 0, 0, 0, {0}, 0, 0}
/* Reports the state of the program. [external: program] */
WCUDA_API wcuda_status wcuda_program_info_get(wcuda_program program, wcuda_program_info* info,
                                              wcuda_error* error);

/* Reports the compiler's log: diagnostics after a failure, warnings after a success, empty before the first
 * compile. Borrowed from the program until it is compiled again. [external: program] */
WCUDA_API wcuda_status wcuda_program_log_get(wcuda_program program, wcuda_string* log,
                                             wcuda_error* error);
/* Reports the code; PTX without a final NUL. Borrowed from the program. WCUDA_INVALID_STATE unless it is
 * compiled. [external: program] */
WCUDA_API wcuda_status wcuda_program_code_get(wcuda_program program, const void** code,
                                              uint64_t* bytes, wcuda_error* error);
/* Reports the mangled name of one of the program's expressions. Borrowed from the program. WCUDA_NOT_FOUND
 * for any other text; WCUDA_INVALID_STATE unless it is compiled. [external: program] */
WCUDA_API wcuda_status wcuda_program_name_get(wcuda_program program, wcuda_string expression,
                                              wcuda_string* name, wcuda_error* error);

typedef struct wcuda_compiler_info {
  uint32_t struct_size;
  int32_t nvrtc_version; /* major * 1000 + minor * 10 */
  uint32_t architecture_count;
  int32_t architectures[61]; /* ascending: 75, 80, ... */
} wcuda_compiler_info;
#define WCUDA_COMPILER_INFO_INIT {sizeof(wcuda_compiler_info), 0, 0, {0}}
/* Describes the NVRTC found; library_folder as in wcuda_program_options. WCUDA_NOT_AVAILABLE with the
 * reason where there is none. [any thread] */
WCUDA_API wcuda_status wcuda_compiler_info_get(wcuda_string library_folder,
                                               wcuda_compiler_info* info, wcuda_error* error);

/* ------------------------------------------------------------------------------------------------
 * 18. Run-time kernels: modules, kernels, launches
 *
 * A kernel is device code of a module, a function of the host, or both. A CUDA context runs the device
 * code, a HOST context the host function; neither substitutes for the other.
 */

/* Reports what device code is (WCUDA_CODE_...) by its header or first token, and checks that it is
 * complete. WCUDA_MALFORMED says what is wrong, or that it is source. [any thread] */
WCUDA_API wcuda_status wcuda_code_kind_get(const void* code, uint64_t bytes, int32_t* kind,
                                           wcuda_error* error);

typedef struct wcuda_module {
  uint64_t id;
} wcuda_module;

/* Loads PTX, a cubin or a fatbin on the context's device. PTX needs no final NUL. WCUDA_MALFORMED and
 * WCUDA_UNSUPPORTED (another architecture, PTX newer than the driver) have the driver's reason.
 * WCUDA_UNSUPPORTED_KERNEL on HOST. The code is trusted: nothing limits which memory it accesses. While
 * loaded, the size of the code is in the ledger as WCUDA_PURPOSE_MODULE and counts against the budgets; the
 * driver does not report what it really takes. [any thread] */
WCUDA_API wcuda_status wcuda_module_load(wcuda_context context, const void* code, uint64_t bytes,
                                         wcuda_module* module, wcuda_error* error);
/* Loads the code of a compiled program; its expressions ("scale<float>") are then names of kernels.
 * [external: program] */
WCUDA_API wcuda_status wcuda_module_load_program(wcuda_context context, wcuda_program program,
                                                 wcuda_module* module, wcuda_error* error);
/* Releases the handle. Kernels and views of globals keep the module loaded. When the last of them is
 * released too, the module is unloaded after all work of the context. [any thread] */
WCUDA_API void wcuda_module_unload(wcuda_module module);

/* Creates a buffer over a variable of the module (__device__ or __constant__): a view that keeps the module
 * loaded and is in the ledger as borrowed. Released by wcuda_buffer_destroy. WCUDA_NOT_FOUND when the module
 * has no variable of this name. [any thread] */
WCUDA_API wcuda_status wcuda_module_global_create(wcuda_module module, wcuda_string name,
                                                  wcuda_buffer* buffer, wcuda_error* error);

/* Kinds of parameters and arguments. A scalar is passed by value, a buffer as the address of its window
 * (see wcuda_argument). */
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

/* One parameter of a signature, for kernels (below), the catalogue (section 19) and registered kernels
 * (section 22).
 *
 * Sizes are expressions over the kernel's own integer parameters: "n", "ceil_div(n, 256)",
 * "max(1, rows * 4)". Operators: + - * / %, parentheses, ceil_div, round_up (to the next multiple), min,
 * max, in signed 64-bit arithmetic. Overflow, a divisor below 1 and a dividend below 0 return
 * WCUDA_INVALID_ARGUMENT with the numbers. At most 256 bytes each. */
typedef struct wcuda_parameter {
  uint32_t struct_size;
  int32_t kind;       /* WCUDA_ARG_...: a scalar, _BUFFER or _BYTES */
  wcuda_string name;  /* letters, digits, "_"; unique in the signature */
  int32_t dtype;      /* BUFFER: type of the elements, WCUDA_ARG_... of a scalar; else 0 */
  uint32_t access;    /* BUFFER: WCUDA_ACCESS_... bits; 0: both */
  int32_t layout;     /* BUFFER: WCUDA_LAYOUT_..., a hint that nothing checks */
  uint32_t layout_id; /* BUFFER or BYTES: the caller's number for the record layout; 0: none */
  wcuda_string shape; /* BUFFER: its dimensions, expressions separated by commas; empty: one element.
                         BYTES: its size, a number. Scalar: empty */
  wcuda_string min;   /* scalar: the least value allowed; an expression for an integer, a number for f32 and
                         f64; empty: no bound */
  wcuda_string max;   /* the greatest value allowed, likewise */
} wcuda_parameter;
#define WCUDA_PARAMETER_INIT \
  {sizeof(wcuda_parameter), 0, {NULL, 0}, 0, 0, 0, 0, {NULL, 0}, {NULL, 0}, {NULL, 0}}

typedef struct wcuda_launch {
  uint32_t struct_size;
  uint32_t flags;        /* WCUDA_LAUNCH_... */
  uint32_t grid[3];      /* blocks, x y z */
  uint32_t block[3];     /* threads of a block */
  uint32_t cluster[3];   /* blocks of a cluster; all 0: none, or what the kernel was compiled with */
  uint32_t shared_bytes; /* dynamic shared memory of a block */
  wcuda_stream stream;   /* id 0: the context's own, which buffer calls use too */
} wcuda_launch;
#define WCUDA_LAUNCH_INIT {sizeof(wcuda_launch), 0, {1, 1, 1}, {256, 1, 1}, {0}, 0, {0}}
/* All blocks run at once and may wait for each other. A grid that the device cannot hold at once returns
 * WCUDA_LAUNCH_FAILED. */
#define WCUDA_LAUNCH_COOPERATIVE (1u << 0)

/* One argument as a host function receives it. */
typedef struct wcuda_host_argument {
  uint32_t struct_size;
  int32_t kind;   /* WCUDA_ARG_... */
  void* data;     /* BUFFER: its window; else the value, read-only */
  uint64_t bytes;
} wcuda_host_argument;
#define WCUDA_HOST_ARGUMENT_INIT {sizeof(wcuda_host_argument), 0, NULL, 0}

/* A kernel on the host: does the work of the whole grid. Runs on the thread that launches. Any value but 0
 * makes the launch return WCUDA_DEVICE_ERROR with that value as native code. Arguments have been checked as
 * for a device; they lie arguments[0].struct_size bytes apart. */
typedef int32_t (*wcuda_host_kernel)(void* user, const wcuda_launch* launch,
                                     const wcuda_host_argument* arguments, uint64_t argument_count);

typedef struct wcuda_kernel {
  uint64_t id;
} wcuda_kernel;

typedef struct wcuda_kernel_options {
  uint32_t struct_size;
  int32_t has_signature;  /* 1: `parameters` is the whole signature, and launches are checked against it */
  wcuda_string name;      /* with a module: a name with C linkage, a mangled name, or an expression of the
                             program that was loaded; without one: any text */
  wcuda_module module;    /* id 0: none; needed to launch on CUDA */
  wcuda_host_kernel host; /* NULL: none; needed to launch on HOST */
  void* host_user;        /* must stay valid until host_release is called */
  const wcuda_parameter* parameters;
  uint64_t parameter_count;
  /* NULL: none. Called once with host_user when nothing uses the kernel any more: its handle is destroyed,
   * no registry keeps it and the last call that runs it is over. Runs on the thread that ends the last of
   * these, possibly inside that call. Not called when wcuda_kernel_create fails. */
  void (*host_release)(void* user);
} wcuda_kernel_options;
#define WCUDA_KERNEL_OPTIONS_INIT \
  {sizeof(wcuda_kernel_options), 0, {NULL, 0}, {0}, NULL, NULL, NULL, 0, NULL}

/* Creates a kernel of a context. WCUDA_NOT_FOUND lists the kernels that the module has. A signature that
 * does not fit the code (number and sizes of parameters) is refused. WCUDA_UNSUPPORTED_KERNEL when there is
 * neither a module nor a host function, WCUDA_INVALID_ARGUMENT when the module is of another context.
 * [any thread] */
WCUDA_API wcuda_status wcuda_kernel_create(wcuda_context context,
                                           const wcuda_kernel_options* options,
                                           wcuda_kernel* kernel, wcuda_error* error);
/* Releases the kernel without waiting: calls that run it, and registries that keep it, continue to use it and
 * host_user. host_release is called when the last of them is done. [any thread] */
WCUDA_API void wcuda_kernel_destroy(wcuda_kernel kernel);

typedef struct wcuda_kernel_info {
  uint32_t struct_size;
  int32_t has_device_code;
  int32_t has_host_function;
  uint32_t parameter_count;       /* of the code, else of the signature, else 0 */
  uint32_t max_threads_per_block; /* this and the next fields describe device code; else 0 */
  uint32_t register_count;        /* per thread */
  uint64_t static_shared_bytes;
  uint64_t dynamic_shared_bytes_max;
  uint64_t local_bytes;           /* per thread */
  uint64_t constant_bytes;
  uint32_t required_cluster[3];
  int32_t ptx_version;            /* major * 10 + minor */
  int32_t binary_version;         /* likewise */
  uint32_t name_bytes;
  char name[256];                 /* in the code, cut to fit, NUL-terminated */
} wcuda_kernel_info;
#define WCUDA_KERNEL_INFO_INIT {sizeof(wcuda_kernel_info), 0, 0, 0, 0, 0, 0, 0, 0, 0, {0}, 0, 0, 0, {0}}
/* Reports what is known of a kernel. [any thread] */
WCUDA_API wcuda_status wcuda_kernel_info_get(wcuda_kernel kernel, wcuda_kernel_info* info,
                                             wcuda_error* error);

typedef struct wcuda_occupancy {
  uint32_t struct_size;
  uint32_t blocks_per_multiprocessor; /* resident at once */
  uint32_t threads_per_multiprocessor;
  uint32_t best_block_threads;        /* the block size with the highest occupancy */
  double share;                       /* threads_per_multiprocessor / the device's maximum, 0 to 1 */
} wcuda_occupancy;
#define WCUDA_OCCUPANCY_INIT {sizeof(wcuda_occupancy), 0, 0, 0, 0.0}
/* Computes the occupancy of a kernel for a block size and its dynamic shared memory.
 * WCUDA_UNSUPPORTED_KERNEL without device code. [any thread] */
WCUDA_API wcuda_status wcuda_kernel_occupancy_get(wcuda_kernel kernel, uint32_t block_threads,
                                                  uint64_t shared_bytes,
                                                  wcuda_occupancy* occupancy, wcuda_error* error);

typedef struct wcuda_argument {
  uint32_t struct_size;
  int32_t kind;        /* WCUDA_ARG_... */
  const void* data;    /* scalars and BYTES: the value, copied before the call returns */
  uint64_t bytes;      /* BYTES: its size. BUFFER: size of the window; 0: to the end. Scalars: 0 */
  wcuda_buffer buffer; /* BUFFER */
  uint64_t offset;     /* BUFFER: where the window begins */
  uint32_t access;     /* BUFFER: what the caller permits, WCUDA_ACCESS_... bits; 0: both */
  uint32_t reserved;
} wcuda_argument;
#define WCUDA_ARGUMENT_INIT {sizeof(wcuda_argument), 0, NULL, 0, {0}, 0, 0, 0}

/* Launches a kernel and does not wait for it (on HOST it has finished when the call returns). These checks
 * come before the driver is called:
 *   launch     grid, block, cluster and shared memory are not zero and within the limits of device and
 *              kernel: else WCUDA_INVALID_CONFIG with value and limit
 *   arguments  their number (WCUDA_ARGUMENT_COUNT, no upper limit) and sizes match the code; kinds, access,
 *              extents and bounds match the signature, if there is one
 *   buffers    they are live and of the kernel's context, and windows lie within them
 * WCUDA_LAUNCH_FAILED: the driver refused, nothing ran. A fault while the kernel runs is reported as
 * WCUDA_DEVICE_LOST by the next call that waits and by all later calls. Buffers destroyed meanwhile are freed
 * after the kernel. The caller is responsible for the memory that device code accesses.
 * [any thread; external: each buffer] */
WCUDA_API wcuda_status wcuda_kernel_launch(wcuda_kernel kernel, const wcuda_launch* launch,
                                           const wcuda_argument* arguments, uint64_t argument_count,
                                           wcuda_error* error);

/* Computes the threads of a launch: the product of grid and block. WCUDA_OUT_OF_RANGE past 2^64.
 * [any thread] */
WCUDA_API wcuda_status wcuda_launch_threads_get(const wcuda_launch* launch, uint64_t* threads,
                                                wcuda_error* error);

/* ------------------------------------------------------------------------------------------------
 * 19. Catalogue: built-in kernels on every backend
 *
 * Each kernel computes the same on HOST and on CUDA, within the bounds of docs/NUMERICS.md;
 * docs/CATALOGUE.md describes them. Sums are f32, in an order that depends only on the sizes, so results
 * are reproducible on one device. Zero sizes are allowed.
 */

typedef struct wcuda_catalogue_entry {
  uint32_t struct_size;
  int32_t is_f32_only; /* else f16 and bf16 too */
  wcuda_string name;   /* static text */
  uint32_t parameter_count;
  uint32_t reserved;
} wcuda_catalogue_entry;
#define WCUDA_CATALOGUE_ENTRY_INIT {sizeof(wcuda_catalogue_entry), 0, {NULL, 0}, 0, 0}

/* Lists the built-in kernels by name, ascending. [any thread] */
WCUDA_API wcuda_status wcuda_catalogue_list(uint64_t first, wcuda_catalogue_entry* entries,
                                            uint64_t capacity, uint64_t* count, wcuda_error* error);
/* Lists the parameters of a built-in kernel for elements of `type` (as wcuda_catalogue_run). Texts are
 * static. An I64 parameter accepts an integer of any width, an F32 parameter an f32 or f64.
 * WCUDA_NOT_FOUND: no such kernel; WCUDA_UNSUPPORTED: not for this type. [any thread] */
WCUDA_API wcuda_status wcuda_catalogue_parameter_list(wcuda_string name, int32_t type, uint64_t first,
                                                      wcuda_parameter* parameters,
                                                      uint64_t capacity, uint64_t* count,
                                                      wcuda_error* error);

/* Runs a built-in kernel on elements of type WCUDA_ARG_F32, _F16 or _BF16, on a stream (id 0: the context's
 * own), and does not wait (on HOST it has finished when the call returns). All arguments are checked first:
 * number, kinds, extents, and that no written buffer overlaps another. One exception: the output of
 * element-wise and row-wise kernels (docs/CATALOGUE.md) may be exactly one of the inputs. embedding_lookup
 * does wait: it reads its ids first; WCUDA_OUT_OF_RANGE reports the first that is not in the table, and
 * nothing is written. WCUDA_NOT_FOUND: no such kernel. [any thread; external: each buffer] */
WCUDA_API wcuda_status wcuda_catalogue_run(wcuda_context context, wcuda_string name, int32_t type,
                                           const wcuda_argument* arguments, uint64_t argument_count,
                                           wcuda_stream stream, wcuda_error* error);

/* ------------------------------------------------------------------------------------------------
 * 20. Matrix products
 *
 * c = activation(alpha * op(a) * op(b) + beta * c + bias), row-major: op(a) (m, k), op(b) (k, n), c (m, n),
 * bias (n), added to every row. CUDA uses cuBLASLt, opened when first needed; HOST uses the CPU. The same
 * shapes, strides and alignments on the same device and library give the same bits every time: the
 * algorithm is chosen once for each.
 *
 * Error bound. With S = |alpha| * sum over k of |a * b|, an element is off by at most
 *   4 * k * 2^-24 * S + t * S, before it is rounded to the type of c,
 * where t is 0 for F32, F16 and BF16, 2^-9 for TF32 (operands have 10 fraction bits) and 2^-10 for FP8 on
 * CUDA (its tensor cores keep fewer bits between two additions in f32). CUDA may also round to the type of c
 * before it applies a bias or an activation. A GELU adds an error of 2^-10 of its value.
 */

/* Type of a and b. Products are summed in f32. */
#define WCUDA_GEMM_F32 1
#define WCUDA_GEMM_TF32 2 /* f32 in memory */
#define WCUDA_GEMM_F16 3
#define WCUDA_GEMM_BF16 4
#define WCUDA_GEMM_FP8 5  /* e4m3; on CUDA needs capability 8.9. Fastest if only b is transposed and the sizes in
                             bytes of k, of a row of c, of strides and of addresses are multiples of 16;
                             otherwise a, b and c are copied through aligned scratch memory, one more pass
                             over each */
#define WCUDA_GEMM_F64 6  /* reserved name: no backend has it, WCUDA_NOT_AVAILABLE */
#define WCUDA_GEMM_INT8 7 /* likewise */

#define WCUDA_GEMM_TRANSPOSE_A (1u << 0) /* a is stored as (k, m) */
#define WCUDA_GEMM_TRANSPOSE_B (1u << 1) /* b is stored as (n, k) */

#define WCUDA_ACTIVATION_NONE 0
#define WCUDA_ACTIVATION_RELU 1 /* of a NaN: NaN on HOST, 0 on CUDA */
#define WCUDA_ACTIVATION_GELU 2 /* by tanh: 0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) */

typedef struct wcuda_gemm {
  uint32_t struct_size;
  uint32_t flags;          /* WCUDA_GEMM_TRANSPOSE_... */
  int32_t type;            /* WCUDA_GEMM_... */
  int32_t output_type;     /* of c: WCUDA_ARG_F32, _F16 or _BF16. 0: F32 for F32 and TF32 (the only
                              choice there); the input type for F16 and BF16; BF16 for FP8 */
  int32_t activation;      /* WCUDA_ACTIVATION_... */
  float alpha;
  float beta;              /* 0: c is not read */
  uint32_t reserved;
  uint64_t m;
  uint64_t n;
  uint64_t k;              /* at least 1 */
  uint64_t batch;          /* number of products of this shape; 0: 1 */
  uint64_t row_stride_a;   /* elements from one stored row to the next; 0: contiguous rows */
  uint64_t row_stride_b;
  uint64_t row_stride_c;
  uint64_t batch_stride_a; /* elements from one matrix to the next; 0: contiguous matrices */
  uint64_t batch_stride_b;
  uint64_t batch_stride_c;
} wcuda_gemm;
#define WCUDA_GEMM_INIT \
  {sizeof(wcuda_gemm), 0, WCUDA_GEMM_F32, 0, 0, 1.0f, 0.0f, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}

/* Queues a product on a stream (id 0: the context's own) and does not wait (on HOST it has finished when
 * the call returns). arguments: the buffers a, b and c; optionally a fourth, the bias, of c's type (for
 * an FP8 product into F32: BF16). c overlaps none of them. Wrong types, sizes or strides return
 * WCUDA_INVALID_ARGUMENT, whose message has the values.
 * WCUDA_NOT_AVAILABLE: cuBLASLt is missing (the message names the file; the catalogue's matrix products do
 * not need it) or has no algorithm for this product. Workspace is accounted as the context's scratch; the
 * 32 MiB shared by products on stream 0 stay allocated until the context ends.
 * [any thread; external: each buffer] */
WCUDA_API wcuda_status wcuda_gemm_run(wcuda_context context, const wcuda_gemm* gemm,
                                      const wcuda_argument* arguments, uint64_t argument_count,
                                      wcuda_stream stream, wcuda_error* error);

/* Reports whether products on CUDA have cuBLASLt: WCUDA_OK, or WCUDA_NOT_AVAILABLE with the reason. Without
 * it wcuda_gemm_run fails on CUDA, and steps of many tokens (section 12) are slower. [any thread] */
WCUDA_API wcuda_status wcuda_gemm_library_check(wcuda_error* error);

/* ------------------------------------------------------------------------------------------------
 * 22. Kernel descriptors: kernels by name and id, with a complete signature
 *
 * A descriptor states what a caller must know to run a kernel correctly: its parameters with types, shapes
 * and bounds, and how the launch follows from the arguments. A registry holds the descriptors of a context;
 * running one of its kernels checks every argument first.
 */

/* Bits of flags. */
#define WCUDA_KERNEL_NON_DETERMINISTIC (1u << 0) /* equal calls may give other bits */
#define WCUDA_KERNEL_NOT_HERE (1u << 1)          /* listed, but the context's backend cannot run it */

typedef struct wcuda_kernel_descriptor {
  uint32_t struct_size;
  uint32_t flags;      /* WCUDA_KERNEL_NON_DETERMINISTIC or 0 */
  uint32_t kernel_id;  /* 0: the registry assigns one. 1 and 2 belong to wcuda_registry_add_builtin */
  uint32_t budget_ms;  /* of a run: reported to callers, and the limit of wcuda_registry_run_wait; 0: none */
  wcuda_string name;   /* 1 to 127 bytes without control characters */
  wcuda_kernel kernel; /* of the registry's context, kept alive; id 0: none (WCUDA_KERNEL_NOT_HERE) */
  const wcuda_parameter* parameters;
  uint64_t parameter_count;
  wcuda_string grid[3];      /* blocks, x y z: expressions as in wcuda_parameter; empty: 1 */
  wcuda_string block[3];     /* threads of a block, likewise; x empty: 256 */
  wcuda_string threads;      /* instead of grid[0], which becomes ceil(threads / block[0]), at least 1 */
  wcuda_string shared_bytes; /* dynamic, of a block; empty: 0 */
} wcuda_kernel_descriptor;
#define WCUDA_KERNEL_DESCRIPTOR_INIT \
  {sizeof(wcuda_kernel_descriptor), 0, 0, 0, {NULL, 0}, {0}, NULL, 0, {{NULL, 0}, {NULL, 0}, {NULL, 0}}, \
   {{NULL, 0}, {NULL, 0}, {NULL, 0}}, {NULL, 0}, {NULL, 0}}

/* Checks a descriptor without its kernel. The message of WCUDA_INVALID_ARGUMENT begins with the field:
 * "parameters[2].shape: ...". sig_hash, if not NULL, receives the 64-bit FNV-1a of its canonical signature.
 * In it each parameter, in order, ends with ";":
 *   scalar       its type: "i32"
 *   buffer       "r ", "w " or "rw ", type, dimensions, " row" or " col", " #7" for a layout_id:
 *                "r f32[$3,4] row"
 *   bytes        "bytes[16]"
 *   bounds       "{0..$4}", after any of these
 *   expressions  without spaces, "$3" for the parameter of index 3, each operation in parentheses
 * Names are not part of it. text, if not NULL, receives the signature and text_bytes its size; a smaller
 * text_capacity returns WCUDA_BUFFER_TOO_SMALL. [any thread] */
WCUDA_API wcuda_status wcuda_kernel_descriptor_check(const wcuda_kernel_descriptor* descriptor,
                                                     uint64_t* sig_hash, char* text,
                                                     uint64_t text_capacity, uint64_t* text_bytes,
                                                     wcuda_error* error);

typedef struct wcuda_registry {
  uint64_t id;
} wcuda_registry;

/* Creates an empty registry. [any thread] */
WCUDA_API wcuda_status wcuda_registry_create(wcuda_context context, wcuda_registry* registry,
                                             wcuda_error* error);
/* Releases the registry after the runs in progress. [any thread] */
WCUDA_API void wcuda_registry_destroy(wcuda_registry registry);

/* Adds a kernel. A kernel of the same name is replaced, and its id kept if the descriptor has none; an id
 * of another kernel returns WCUDA_INVALID_ARGUMENT. A run in progress completes with the kernel and
 * descriptor it began with. kernel_id, if not NULL, receives the id. [any thread] */
WCUDA_API wcuda_status wcuda_registry_add(wcuda_registry registry,
                                          const wcuda_kernel_descriptor* descriptor,
                                          uint32_t* kernel_id, wcuda_error* error);
/* Adds a built-in kernel (section 19) for elements of `type`. wanted_id 0: the registry assigns one. "noop"
 * has id 1 with sig_hash 0, and "tensor_add" of f32 has id 2 with sig_hash 0xA1, as older callers expect.
 * kernel_id, if not NULL, receives the id. [any thread] */
WCUDA_API wcuda_status wcuda_registry_add_builtin(wcuda_registry registry, wcuda_string name,
                                                  int32_t type, uint32_t wanted_id,
                                                  uint32_t* kernel_id, wcuda_error* error);
/* Removes a kernel; WCUDA_NOT_FOUND if there is none with this id. [any thread] */
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

/* Lists the kernels by id, ascending. [any thread] */
WCUDA_API wcuda_status wcuda_registry_list(wcuda_registry registry, uint64_t first,
                                           wcuda_registered_kernel* kernels, uint64_t capacity,
                                           uint64_t* count, wcuda_error* error);
/* Finds a kernel by name; WCUDA_NOT_FOUND if there is none. [any thread] */
WCUDA_API wcuda_status wcuda_registry_find(wcuda_registry registry, wcuda_string name,
                                           wcuda_registered_kernel* kernel, wcuda_error* error);

typedef struct wcuda_run_info {
  uint32_t struct_size;
  uint32_t shared_bytes;
  uint32_t grid[3];       /* all 0 for a built-in kernel */
  uint32_t block[3];
  uint64_t elements;      /* the descriptor's `threads`; if empty, the threads of the launch; built-in
                             kernel: output elements */
  uint64_t bytes;         /* of all buffers, by their shapes */
  uint32_t budget_ms;     /* of the descriptor */
  int32_t is_over_budget; /* 1: took longer than budget_ms; only wcuda_registry_run_wait sets it, and
                             time_ns */
  uint64_t time_ns;       /* of the kernel: by device events on CUDA, by the clock on HOST; 0: not known, or
                             not finished */
} wcuda_run_info;
#define WCUDA_RUN_INFO_INIT {sizeof(wcuda_run_info), 0, {0}, {0}, 0, 0, 0, 0, 0}

/* Runs a kernel with the launch its descriptor computes, on a stream (id 0: the context's own), and does
 * not wait, as wcuda_kernel_launch. Every argument is first checked against the descriptor: number, kind,
 * access, extent, bounds. WCUDA_INVALID_ARGUMENT reports the argument's index and name, the value required
 * and the value given. WCUDA_INVALID_CONFIG names the launch dimension that is out of bounds.
 * WCUDA_UNSUPPORTED_KERNEL: this backend cannot run it. info may be NULL. [any thread; external: each
 * buffer] */
WCUDA_API wcuda_status wcuda_registry_run(wcuda_registry registry, uint32_t kernel_id,
                                          const wcuda_argument* arguments, uint64_t argument_count,
                                          wcuda_stream stream, wcuda_run_info* info,
                                          wcuda_error* error);
/* Runs a kernel and waits until it has finished, at most its budget_ms. WCUDA_TIMEOUT when it took longer:
 * the message has both times, and info is written as on success, with is_over_budget 1. A kernel that still
 * runs then (time_ns 0) is not stopped: its buffers stay in use until it ends.
 * [any thread; external: each buffer] */
WCUDA_API wcuda_status wcuda_registry_run_wait(wcuda_registry registry, uint32_t kernel_id,
                                               const wcuda_argument* arguments,
                                               uint64_t argument_count, wcuda_stream stream,
                                               wcuda_run_info* info, wcuda_error* error);
/* Checks a run without running anything, and reports its launch. [any thread; external: each buffer] */
WCUDA_API wcuda_status wcuda_registry_plan(wcuda_registry registry, uint32_t kernel_id,
                                           const wcuda_argument* arguments, uint64_t argument_count,
                                           wcuda_run_info* info, wcuda_error* error);

#ifdef __cplusplus
}
#endif

#endif /* WORKER_CUDA_COMPUTE_H */
