/* worker_cuda/llm.h: language models in GGUF files: inspect, plan, load, run.
 *
 * This header has sections 8 to 12 of the interface. The conventions of worker_cuda/base.h apply.
 *
 * EXAMPLE: sample the token that follows a prompt of three tokens.
 *
 *   wcuda_engine engine = {0};
 *   wcuda_sequence sequence = {0};
 *   uint64_t ticket;
 *   const int32_t prompt[3] = {1, 2, 3};
 *   wcuda_row row = WCUDA_ROW_INIT;
 *   wcuda_row_result result = WCUDA_ROW_RESULT_INIT;
 *   wcuda_step step = WCUDA_STEP_INIT;
 *   wcuda_step_output output = WCUDA_STEP_OUTPUT_INIT;
 *   step.rows = &row, step.row_count = 1;
 *   output.rows = &result, output.row_capacity = 1;
 *   row.tokens = prompt, row.token_count = 3, row.flags = WCUDA_ROW_SAMPLE;
 *   if (wcuda_engine_create(model, NULL, &engine, &error) != WCUDA_OK ||
 *       wcuda_sequence_create(engine, &sequence, &error) != WCUDA_OK)
 *     return report(error.message);
 *   row.sequence = sequence;
 *   if (wcuda_step_submit(engine, &step, &ticket, &error) != WCUDA_OK ||
 *       wcuda_step_wait(engine, ticket, -1, &output, &error) != WCUDA_OK)
 *     return report(error.message);
 *   printf("%d\n", result.token);
 *
 * `model` was loaded with wcuda_gguf_open and wcuda_model_load. The caller destroys the sequence and the
 * engine when they are no longer needed.
 */
#ifndef WORKER_CUDA_LLM_H
#define WORKER_CUDA_LLM_H

#include "worker_cuda/base.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ------------------------------------------------------------------------------------------------
 * 8. GGUF files
 */

typedef struct wcuda_gguf {
  uint64_t id;
} wcuda_gguf;

#define WCUDA_SOURCE_PATH 1     /* `path`: path of the file, or of the first part of a split file; the other
                                   parts must be in the same folder */
#define WCUDA_SOURCE_FD 2       /* `fd`: duplicated by the library; its file offset does not change */
#define WCUDA_SOURCE_MEMORY 3   /* `data`, `size`: the memory must stay valid until the handle is closed */
#define WCUDA_SOURCE_CALLBACK 4 /* `read`, `user`, `size`: must stay valid until the handle is closed */

/* Reads exactly `bytes` bytes of the file, from file offset `offset`, into `target`. Returns 0 on success
 * and any other value on failure. The library calls it only during a call that reads the file, on the
 * thread of that call or on threads of the library, possibly on several at once. */
typedef int32_t (*wcuda_read_callback)(void* user, uint64_t offset, void* target, uint64_t bytes);

typedef struct wcuda_source {
  uint32_t struct_size;
  int32_t kind; /* WCUDA_SOURCE_... */
  wcuda_string path;
  int32_t fd;   /* for WCUDA_SOURCE_FD; -1 otherwise */
  uint32_t reserved;
  const void* data;
  uint64_t size; /* bytes; for WCUDA_SOURCE_MEMORY and WCUDA_SOURCE_CALLBACK */
  wcuda_read_callback read;
  void* user;
} wcuda_source;
#define WCUDA_SOURCE_INIT {sizeof(wcuda_source), 0, {NULL, 0}, -1, 0, NULL, 0, NULL, NULL}

/* Opens a little-endian GGUF file of version 2 or 3. Reads and validates the header, the metadata and the
 * tensor table; docs/FORMATS.md lists the rules and limits. Does not read tensor data. Whether the library
 * can run the model is checked by wcuda_plan_get and wcuda_model_load. [any thread] */
WCUDA_API wcuda_status wcuda_gguf_open(const wcuda_source* source, wcuda_gguf* gguf,
                                       wcuda_error* error);
/* Releases the handle. A model that was loaded from the file does not need the handle. [any thread] */
WCUDA_API void wcuda_gguf_close(wcuda_gguf gguf);

typedef struct wcuda_gguf_info {
  uint32_t struct_size;
  uint32_t version;
  uint64_t metadata_count;
  uint64_t tensor_count;
  uint64_t file_bytes;   /* size of the file; for a split file, of all its parts together */
  uint64_t tensor_bytes; /* size of all tensors together, without padding */
  uint32_t alignment;
  uint32_t split_count;  /* number of parts; 1 if the file is not split */
} wcuda_gguf_info;
#define WCUDA_GGUF_INFO_INIT {sizeof(wcuda_gguf_info), 0, 0, 0, 0, 0, 0, 0}
/* Reports the number of entries and the sizes of the file. [any thread] */
WCUDA_API wcuda_status wcuda_gguf_info_get(wcuda_gguf gguf, wcuda_gguf_info* info,
                                           wcuda_error* error);

/* Types of metadata values. The numbers are those in the file. */
#define WCUDA_GGUF_U8 0
#define WCUDA_GGUF_I8 1
#define WCUDA_GGUF_U16 2
#define WCUDA_GGUF_I16 3
#define WCUDA_GGUF_U32 4
#define WCUDA_GGUF_I32 5
#define WCUDA_GGUF_F32 6
#define WCUDA_GGUF_BOOL 7
#define WCUDA_GGUF_STRING 8
#define WCUDA_GGUF_ARRAY 9
#define WCUDA_GGUF_U64 10
#define WCUDA_GGUF_I64 11
#define WCUDA_GGUF_F64 12

/* One metadata entry. `type` determines which value member is set. */
typedef struct wcuda_gguf_value {
  uint32_t struct_size;
  int32_t type;           /* WCUDA_GGUF_... */
  int32_t element_type;   /* type of the array's elements; -1 if the value is not an array */
  uint32_t reserved;
  wcuda_string key;
  uint64_t element_count; /* number of elements of an array; 1 if the value is not an array */
  uint64_t value_u64;     /* set for U8, U16, U32, U64, BOOL */
  int64_t value_i64;      /* set for I8, I16, I32, I64 */
  double value_f64;       /* set for F32, F64 */
  wcuda_string value_string;
} wcuda_gguf_value;
#define WCUDA_GGUF_VALUE_INIT {sizeof(wcuda_gguf_value), 0, 0, 0, {NULL, 0}, 0, 0, 0, 0.0, {NULL, 0}}

/* Lists the metadata entries in file order. Strings stay valid until the handle is closed. [any thread] */
WCUDA_API wcuda_status wcuda_gguf_value_list(wcuda_gguf gguf, uint64_t first,
                                             wcuda_gguf_value* values, uint64_t capacity,
                                             uint64_t* count, wcuda_error* error);
/* Finds a metadata entry by its key. Returns WCUDA_NOT_FOUND if the file has no such key. [any thread] */
WCUDA_API wcuda_status wcuda_gguf_value_find(wcuda_gguf gguf, wcuda_string key,
                                             wcuda_gguf_value* value, wcuda_error* error);
/* Copies `count` elements of an array, starting at element `first`. `index` is the position of the array in
 * wcuda_gguf_value_list. The copy has the file's encoding: packed, little-endian, one byte per bool. For an
 * array of strings, use wcuda_gguf_array_strings. [any thread] */
WCUDA_API wcuda_status wcuda_gguf_array_copy(wcuda_gguf gguf, uint64_t index, uint64_t first,
                                             uint64_t count, void* target, uint64_t target_bytes,
                                             wcuda_error* error);
/* Reports `count` elements of an array of strings, starting at element `first`. The strings stay valid
 * until the handle is closed. [any thread] */
WCUDA_API wcuda_status wcuda_gguf_array_strings(wcuda_gguf gguf, uint64_t index, uint64_t first,
                                                uint64_t count, wcuda_string* strings,
                                                wcuda_error* error);

typedef struct wcuda_gguf_tensor {
  uint32_t struct_size;
  uint32_t type; /* ggml type id */
  wcuda_string name;
  uint32_t dimension_count; /* number of dimensions, 1 to 4 */
  uint32_t split_index;     /* index of the part that contains the tensor; 0 if the file is not split */
  uint64_t dimensions[4];   /* dimension 0 is contiguous; unused dimensions are 1 */
  uint64_t element_count;
  uint64_t bytes;
  uint64_t file_offset;     /* bytes from the start of the part */
} wcuda_gguf_tensor;
#define WCUDA_GGUF_TENSOR_INIT {sizeof(wcuda_gguf_tensor), 0, {NULL, 0}, 0, 0, {0}, 0, 0, 0}

/* Lists the tensors in file order. Names stay valid until the handle is closed. [any thread] */
WCUDA_API wcuda_status wcuda_gguf_tensor_list(wcuda_gguf gguf, uint64_t first,
                                              wcuda_gguf_tensor* tensors, uint64_t capacity,
                                              uint64_t* count, wcuda_error* error);
/* Finds a tensor by its name. Returns WCUDA_NOT_FOUND if the file has no such tensor. [any thread] */
WCUDA_API wcuda_status wcuda_gguf_tensor_find(wcuda_gguf gguf, wcuda_string name,
                                              wcuda_gguf_tensor* tensor, wcuda_error* error);
/* Reads `bytes` bytes of a tensor's data, starting at byte `offset`, as they are in the file. `index` is
 * the position of the tensor in wcuda_gguf_tensor_list. If the function returns WCUDA_IO, the contents of
 * `target` are undefined. [any thread] */
WCUDA_API wcuda_status wcuda_gguf_tensor_read(wcuda_gguf gguf, uint64_t index, uint64_t offset,
                                              void* target, uint64_t bytes, wcuda_error* error);
/* Converts `count` elements of a tensor to f32, starting at element `first`. `first` and `count` must be
 * multiples of the block size of the tensor's type. If the function returns WCUDA_IO, the contents of
 * `target` are undefined. [any thread] */
WCUDA_API wcuda_status wcuda_gguf_tensor_dequantize(wcuda_gguf gguf, uint64_t index, uint64_t first,
                                                    uint64_t count, float* target,
                                                    wcuda_error* error);

typedef struct wcuda_tensor_type_info {
  uint32_t struct_size;
  uint32_t type;
  const char* name; /* "Q4_K"; static string */
  uint32_t block_elements;
  uint32_t block_bytes;
  int32_t is_loadable; /* 1: weights may have this type */
  uint32_t reserved;
} wcuda_tensor_type_info;
#define WCUDA_TENSOR_TYPE_INFO_INIT {sizeof(wcuda_tensor_type_info), 0, NULL, 0, 0, 0, 0}
/* Describes a ggml tensor type. Returns WCUDA_NOT_FOUND for an unknown type id and for the id of a type
 * that ggml has removed. [any thread] */
WCUDA_API wcuda_status wcuda_tensor_type_info_get(uint32_t type, wcuda_tensor_type_info* info,
                                                  wcuda_error* error);

/* ------------------------------------------------------------------------------------------------
 * 9. Engine options and plan: how much memory a model needs, computed before anything is allocated
 */

/* The handles of sections 10 and 11. */
typedef struct wcuda_model {
  uint64_t id;
} wcuda_model;
typedef struct wcuda_engine {
  uint64_t id;
} wcuda_engine;

/* Types of keys and values in the cache. INT10 takes 1.28 bytes an element, between Q8_0 (1.06) and F16.
 * Heads have a multiple of 32 elements for Q8_0 and of 64 for INT10; otherwise WCUDA_UNSUPPORTED. */
#define WCUDA_KV_F16 0
#define WCUDA_KV_Q8_0 1
#define WCUDA_KV_FP8_E4M3 2
#define WCUDA_KV_INT10 3

#define WCUDA_KV_PAGE_TOKENS 64 /* positions (tokens) per KV page */

#define WCUDA_ENGINE_BATCH_INVARIANT ((uint64_t)1 << 0)   /* the result of a row does not depend on the
                                                             other rows of its step */
#define WCUDA_ENGINE_POISON_FREE_PAGES ((uint64_t)1 << 1) /* for tests: fills free KV pages with NaN */
/* Persistent fused layers. In a step of one token, one kernel computes all linear layers from one attention
 * operation to the next. The kernel runs one block per SM. It is faster for a single sequence of a large
 * model, but adds in a different order, so results may differ in the last bits.
 *
 * Without WCUDA_ENGINE_PERSISTENT_LAYERS_ON and WCUDA_ENGINE_PERSISTENT_LAYERS_OFF, the library uses the
 * kernel if it is known to be faster for this model and device. With _ON, wcuda_plan_get and
 * wcuda_engine_create return WCUDA_UNSUPPORTED if the kernel does not support the model or the device.
 * WCUDA_ENGINE_BATCH_INVARIANT turns the kernel off. If it is set together with _ON, both functions return
 * WCUDA_INVALID_ARGUMENT. */
#define WCUDA_ENGINE_PERSISTENT_LAYERS_ON ((uint64_t)1 << 2)
#define WCUDA_ENGINE_PERSISTENT_LAYERS_OFF ((uint64_t)1 << 3)
/* Rows may return hidden states. Needs scratch memory for max_batch_rows vectors for each of the two steps
 * in flight. */
#define WCUDA_ENGINE_HIDDEN_STATES ((uint64_t)1 << 4)
/* Rows may return log probabilities of their own tokens. For each of the two steps in flight, needs
 * scratch memory for max_batch_tokens * max_top_logprobs tokens and log probabilities. */
#define WCUDA_ENGINE_TOKEN_LOGPROBS ((uint64_t)1 << 5)

typedef struct wcuda_engine_options {
  uint32_t struct_size;
  int32_t kv_type;              /* WCUDA_KV_... */
  uint64_t flags;               /* WCUDA_ENGINE_... */
  uint32_t max_sequences;       /* sequences that exist at once; 0 means 16 */
  uint32_t max_batch_tokens;    /* tokens in one step, over all rows; 0 means 512 */
  uint32_t max_batch_rows;      /* rows in one step; 0 means max_sequences */
  uint32_t max_sequence_tokens; /* positions in one sequence; 0 means the model's context length */
  /* Size of the KV cache for all sequences together, in positions, rounded up to whole pages. 0 means the
   * larger of max_sequence_tokens and 512 * max_sequences. */
  uint64_t kv_tokens;
  /* Logits vectors that a step may keep: those of the positions at which it samples, and those that it
   * returns. 0 means max_batch_rows + max_draft_tokens. */
  uint32_t max_logits_rows;
  uint32_t max_top_logprobs;    /* most likely tokens per sampled token, at most 128; 0: none */
  uint32_t max_draft_tokens;    /* draft tokens in one step, over all rows; 0: rows have none */
  uint32_t reserved;
  /* A draft head of the model. The engine's KV pages also store the features that this head reads,
   * 6 * embedding_length bytes for each position. The head must have been loaded with this model as its
   * target. */
  wcuda_model draft_head;
  /* The engine of the target model, whose features the draft head reads. Required for the engine of a draft
   * head; otherwise id 0. The target's memory is freed when both engines are destroyed. For steps that read
   * features, [external] means both engines. */
  wcuda_engine target;
} wcuda_engine_options;
#define WCUDA_ENGINE_OPTIONS_INIT {sizeof(wcuda_engine_options), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, {0}, {0}}

typedef struct wcuda_plan {
  uint32_t struct_size;
  /* 1 if the model fits: neither total_bytes nor weights_bytes + loading_bytes exceeds available_bytes. */
  int32_t fits;
  uint64_t weights_bytes;
  uint64_t kv_bytes;        /* KV pages, page tables and token histories */
  uint64_t scratch_bytes;   /* buffers for activations, logits and sampling */
  uint64_t total_bytes;     /* weights_bytes + kv_bytes + scratch_bytes */
  uint64_t staging_bytes;   /* pinned host memory that loading needs */
  uint64_t available_bytes; /* the smaller of the free device memory and what is left of the budget */
  uint64_t kv_page_bytes;
  uint64_t kv_page_count;
  uint64_t loading_bytes;   /* device memory that loading needs besides the weights; 0 on HOST */
  /* Estimate of the device memory that the CUDA driver takes for captured graphs, once all kinds of steps
   * have occurred; 0 on HOST. Not part of total_bytes: it counts neither for the budget nor for `fits`. */
  uint64_t graph_bytes;
} wcuda_plan;
#define WCUDA_PLAN_INIT {sizeof(wcuda_plan), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}

/* Computes how much device memory a model needs when it is loaded and runs with these options; `options`
 * may be NULL for the defaults. After the model is loaded and the engine created, the ledger reports
 * exactly these sizes. Reads no tensor data. If the model cannot run, fails with the status that
 * wcuda_model_load would return. [any thread] */
WCUDA_API wcuda_status wcuda_plan_get(wcuda_context context, wcuda_gguf gguf,
                                      const wcuda_engine_options* options, wcuda_plan* plan,
                                      wcuda_error* error);

/* Describes a step in which all rows have the same number of tokens. */
typedef struct wcuda_step_shape {
  uint32_t struct_size;
  uint32_t row_count;      /* number of rows; 0 means 1 */
  uint32_t row_tokens;     /* tokens in each row; 0 means 1 */
  uint32_t context_tokens; /* positions of each sequence before the step */
} wcuda_step_shape;
#define WCUDA_STEP_SHAPE_INIT {sizeof(wcuda_step_shape), 0, 0, 0}

/* Memory bandwidth and compute throughput of a device. */
typedef struct wcuda_step_rates {
  uint32_t struct_size;
  int32_t is_measured;       /* 1: both rates were measured; 0: computed from the device's attributes */
  uint64_t bytes_per_second; /* bandwidth of device memory; 0 means unknown */
  uint64_t flops_per_second; /* f16 matrix products with f32 accumulation; 0 means unknown */
} wcuda_step_rates;
#define WCUDA_STEP_RATES_INIT {sizeof(wcuda_step_rates), 0, 0, 0}

/* One node of a step: an operation, or several fused operations. All strings are static. */
typedef struct wcuda_step_node {
  uint32_t struct_size;
  uint32_t layer;        /* UINT32_MAX if the node belongs to no layer */
  uint32_t fused_count;  /* linear layers in a node "persistent_layers"; 1 in other nodes */
  uint32_t reserved;
  const char* operation; /* for example "query_key_value" */
  const char* kernel;    /* for example "linear_vector"; "host" on HOST */
  /* Format of the node's input: "f32", or for example "f32 and KV pages". */
  const char* input;
  const char* output;
  uint64_t bytes;        /* memory traffic: weights, activations, KV pages */
  uint64_t flops;        /* floating-point operations of matrix products */
  double limit_ns;       /* time at the roofline; 0 means unknown */
  double measured_ns;    /* set by wcuda_engine_profile_list; 0 otherwise */
} wcuda_step_node;
#define WCUDA_STEP_NODE_INIT {sizeof(wcuda_step_node), 0, 0, 0, NULL, NULL, NULL, NULL, 0, 0, 0.0, 0.0}

/* Lists the nodes of a step of this shape, in the order in which they run. `options` may be NULL for the
 * defaults. If `device` is empty, the step is planned for the context's device. Otherwise `device` is the
 * name of a device with measured rates, for example "H200", and no GPU is needed; an unknown name returns
 * WCUDA_NOT_FOUND. If `rates` is not NULL, it receives the rates from which limit_ns is computed. Reads no
 * tensor data. [any thread] */
WCUDA_API wcuda_status wcuda_plan_steps_list(wcuda_context context, wcuda_gguf gguf,
                                             const wcuda_engine_options* options,
                                             const wcuda_step_shape* shape, wcuda_string device,
                                             wcuda_step_rates* rates, uint64_t first,
                                             wcuda_step_node* nodes, uint64_t capacity,
                                             uint64_t* count, wcuda_error* error);

/* ------------------------------------------------------------------------------------------------
 * 10. Models
 */

typedef struct wcuda_cancel {
  uint64_t id;
} wcuda_cancel;

/* Creates a cancellation handle for wcuda_model_load. Once triggered, it stays triggered. [any thread] */
WCUDA_API wcuda_status wcuda_cancel_create(wcuda_cancel* cancel, wcuda_error* error);
/* Releases the handle. A load that uses it continues. [any thread] */
WCUDA_API void wcuda_cancel_destroy(wcuda_cancel cancel);
/* Cancels the load that uses this handle. May be called on any thread and inside the progress callback.
 * [any thread] */
WCUDA_API wcuda_status wcuda_cancel_trigger(wcuda_cancel cancel, wcuda_error* error);

#define WCUDA_LOAD_PLAN 1
#define WCUDA_LOAD_RESERVE 2
#define WCUDA_LOAD_UPLOAD 3 /* done_bytes counts the bytes that were read, validated and repacked */
#define WCUDA_LOAD_SEAL 4   /* waits until all tensors are repacked and hashed */
#define WCUDA_LOAD_DONE 5   /* reported once, after success; the return value is ignored */

/* Receives the progress of wcuda_model_load when a phase begins and at least once per 16 MiB. Runs on the
 * thread that called wcuda_model_load. A non-zero return value cancels the load. */
typedef int32_t (*wcuda_progress_callback)(void* user, int32_t phase, uint64_t done_bytes,
                                           uint64_t total_bytes);

typedef struct wcuda_model_options {
  uint32_t struct_size;
  uint32_t reserved;
  uint64_t flags;                   /* must be 0; no flags are defined */
  wcuda_progress_callback progress; /* may be NULL */
  void* progress_user;
  wcuda_cancel cancel;              /* id 0 means none */
  /* The model for which a draft head drafts tokens, in the same context. Required for a draft head
   * (architecture "eagle3"); otherwise id 0. If the head's file has no token embeddings or no output
   * matrix, the head uses those of the target. The head keeps the target loaded. */
  wcuda_model target;
} wcuda_model_options;
#define WCUDA_MODEL_OPTIONS_INIT {sizeof(wcuda_model_options), 0, 0, NULL, NULL, {0}, {0}}

/* Loads a model's weights. `options` may be NULL. After a failure nothing stays allocated.
 *   WCUDA_CANCELLED    the load was cancelled; it reads at most 16 MiB more before it returns
 *   WCUDA_MALFORMED    the hyper-parameters, the tokenizer and the tensors contradict each other, or one of
 *                      them is missing
 *   WCUDA_UNSUPPORTED  this version does not support the architecture, the type of a tensor or a feature of
 *                      the model, or the file has an unknown tensor that seems to be part of the network:
 *                      its name begins with "blk.", "token_", "position_", "output" or "rope_"
 * Other unknown tensors are skipped, with a warning in the log. [any thread] */
WCUDA_API wcuda_status wcuda_model_load(wcuda_context context, wcuda_gguf gguf,
                                        const wcuda_model_options* options, wcuda_model* model,
                                        wcuda_error* error);
/* Releases the handle. The memory is freed when no engine uses the model. [any thread] */
WCUDA_API void wcuda_model_unload(wcuda_model model);

typedef struct wcuda_model_info {
  uint32_t struct_size;
  uint32_t layer_count;
  char architecture[64]; /* for example "llama"; NUL-terminated */
  uint64_t parameter_count;
  uint64_t weights_bytes; /* size on the device */
  uint32_t vocabulary_size;
  uint32_t embedding_length;
  uint32_t feed_forward_length;
  uint32_t head_count;
  uint32_t kv_head_count;
  uint32_t head_length;
  uint32_t context_length; /* context length that the model was trained with */
  uint32_t sliding_window; /* positions; 0 means that attention is not windowed */
  float rope_frequency_base;
  uint32_t reserved;
} wcuda_model_info;
#define WCUDA_MODEL_INFO_INIT {sizeof(wcuda_model_info), 0, {0}, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0.0f, 0}
/* Reports the model's hyper-parameters and sizes. [any thread] */
WCUDA_API wcuda_status wcuda_model_info_get(wcuda_model model, wcuda_model_info* info,
                                            wcuda_error* error);

typedef struct wcuda_tensor_digests {
  uint32_t struct_size;
  uint32_t reserved;
  uint8_t file[32];     /* BLAKE3 digest of the tensor's bytes in the file */
  uint8_t resident[32]; /* BLAKE3 digest of the tensor's bytes on the device: matrices are repacked, and
                           padding rows are zero; vectors are f32 */
} wcuda_tensor_digests;
#define WCUDA_TENSOR_DIGESTS_INIT {sizeof(wcuda_tensor_digests), 0, {0}, {0}}
/* Reports the digests of one tensor, which were computed while loading. `index` is the position of the
 * tensor in wcuda_gguf_tensor_list. Returns WCUDA_NOT_FOUND if the model does not use the tensor.
 * [any thread] */
WCUDA_API wcuda_status wcuda_model_tensor_digests_get(wcuda_model model, uint64_t index,
                                                      wcuda_tensor_digests* digests,
                                                      wcuda_error* error);
/* Computes the digest of every weight tensor on the device again and compares it with the digest from
 * loading. If a tensor differs, returns WCUDA_INTEGRITY, and the message names the first such tensor. May
 * be called while steps are in flight. [any thread] */
WCUDA_API wcuda_status wcuda_model_verify(wcuda_model model, wcuda_error* error);

/* ------------------------------------------------------------------------------------------------
 * 11. Engine and sequences
 */

/* Allocates the KV pages and the scratch memory of an engine. `options` may be NULL for the defaults.
 * Several engines may share a model. If several engines on one device use persistent fused layers, their
 * steps run one after another. [any thread] */
WCUDA_API wcuda_status wcuda_engine_create(wcuda_model model, const wcuda_engine_options* options,
                                           wcuda_engine* engine, wcuda_error* error);
/* Waits for the steps in flight, then frees the engine. [external: engine] */
WCUDA_API void wcuda_engine_destroy(wcuda_engine engine);

typedef struct wcuda_engine_info {
  uint32_t struct_size;
  int32_t kv_type;
  uint64_t flags;              /* WCUDA_ENGINE_... in effect, including either PERSISTENT_LAYERS_ON or
                                  _OFF */
  uint32_t max_sequences;      /* this and the next five: the limits in effect */
  uint32_t max_batch_tokens;
  uint32_t max_batch_rows;
  uint32_t max_sequence_tokens;
  uint32_t max_logits_rows;
  uint32_t max_top_logprobs;
  uint32_t sequence_count;     /* sequences that exist now */
  uint32_t steps_in_flight;
  uint64_t kv_page_count;
  uint64_t kv_free_page_count; /* free pages, including cached pages and pages that only steps in
                                  flight still use */
  uint64_t kv_bytes;
  uint64_t scratch_bytes;
  uint64_t kv_cached_page_count; /* pages that have a key and that no sequence holds */
  uint64_t kv_held_page_count;   /* pages that sequences hold; the others are free */
  uint64_t kv_token_bytes;       /* size of the keys and values of one position in all layers, and of the
                                    features that are kept for a draft head */
  uint32_t max_draft_tokens;     /* the limit in effect */
  uint32_t reserved;
} wcuda_engine_info;
#define WCUDA_ENGINE_INFO_INIT \
  {sizeof(wcuda_engine_info), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}
/* Reports the limits of an engine and what is in use. [any thread] */
WCUDA_API wcuda_status wcuda_engine_info_get(wcuda_engine engine, wcuda_engine_info* info,
                                             wcuda_error* error);

/* Does the work that would otherwise delay the first steps. On CUDA, it captures the graphs of steps in
 * which each row has one token and no drafts, hidden states, features or raw log probabilities; on HOST, it
 * starts the threads and touches the memory. Returns WCUDA_INVALID_STATE if rows of a step in flight
 * wait for wcuda_step_sample. [external: engine] */
WCUDA_API wcuda_status wcuda_engine_warm_up(wcuda_engine engine, wcuda_error* error);

/* A sequence: the tokens of one conversation, with their keys and values in KV pages. */
typedef struct wcuda_sequence {
  uint64_t id;
} wcuda_sequence;

/* Creates an empty sequence, which has no KV pages yet. Returns WCUDA_LIMIT_EXCEEDED if max_sequences
 * sequences exist. [external: engine] */
WCUDA_API wcuda_status wcuda_sequence_create(wcuda_engine engine, wcuda_sequence* sequence,
                                             wcuda_error* error);
/* Creates a copy of a sequence. The two sequences share KV pages until one of them writes to a page. The
 * copy includes the tokens of steps in flight. If both sequences sample with the same seed from the same
 * logits, they draw the same tokens. Returns WCUDA_INVALID_STATE if a step in flight has draft tokens of the
 * sequence, or a late row of it that was not sampled. [external: engine] */
WCUDA_API wcuda_status wcuda_sequence_fork(wcuda_sequence sequence, wcuda_sequence* fork,
                                           wcuda_error* error);
/* Removes all tokens after the first `length` tokens. Returns WCUDA_OUT_OF_RANGE if the sequence has fewer
 * than `length` tokens. Steps in flight still run with the untruncated sequence. While draft tokens are in
 * flight, `length` counts all of them; see section 12. [external: engine] */
WCUDA_API wcuda_status wcuda_sequence_truncate(wcuda_sequence sequence, uint32_t length,
                                               wcuda_error* error);
/* Destroys a sequence. Its rows in flight complete. The next wcuda_step_submit can already use the KV pages
 * of the sequence, even if these rows have not completed; pages with keys are cached. [any thread] */
WCUDA_API void wcuda_sequence_destroy(wcuda_sequence sequence);
/* Reports the number of tokens submitted so far, including those of steps in flight. While a step with draft
 * tokens of the sequence is in flight, the number is an upper bound: wcuda_step_wait removes those that are
 * not accepted. [any thread] */
WCUDA_API wcuda_status wcuda_sequence_length_get(wcuda_sequence sequence, uint32_t* length,
                                                 wcuda_error* error);
/* Copies `count` tokens of the sequence, starting at position `first`. Returns WCUDA_INVALID_STATE if one
 * of these tokens is still to be sampled by a step in flight. [external: engine] */
WCUDA_API wcuda_status wcuda_sequence_tokens_get(wcuda_sequence sequence, uint32_t first,
                                                 uint32_t count, int32_t* tokens,
                                                 wcuda_error* error);

/* A name for the contents of a full KV page. Pages with equal keys must have equal contents: the caller
 * derives the key, for example with a chain of BLAKE3 digests, from the tokens of the page, all tokens
 * before them, and whatever must keep users from sharing pages. The library cannot check this. It only
 * compares keys. */
typedef struct wcuda_page_key {
  uint8_t bytes[32];
} wcuda_page_key;

/* Gives keys to `count` full pages of a sequence, from page `first_page` on, so that
 * wcuda_sequence_attach finds them. Page i has the positions 64 * i to 64 * i + 63. Returns
 * WCUDA_OUT_OF_RANGE if one of the pages is not full. A page that a step in flight computes can be attached
 * once this step has been waited for; if its row or the step fails, the page loses its key.
 *
 * A page keeps the key until its memory is needed or its contents change. Pages that no sequence holds
 * any more are cached. They count as free, and steps take them after all other free pages, the least
 * recently used page first. The last use of a page is the time when its last sequence was truncated or
 * destroyed. A sequence releases its last page first, so its beginning is cached longest.
 *
 * A page that already has a key keeps it. If another page has one of the given keys and a sequence holds
 * that page, the key stays there. If that page is cached, the key moves to the page of this sequence. A
 * page that is truncated and written to again loses its key if no other sequence holds it; otherwise it is
 * copied. If a step fails as a whole, all pages lose their keys. [external: engine] */
WCUDA_API wcuda_status wcuda_sequence_publish(wcuda_sequence sequence, uint32_t first_page,
                                              const wcuda_page_key* keys, uint32_t count,
                                              wcuda_error* error);
/* Fills an empty sequence with the longest run of pages that have the keys keys[0], keys[1], and so on.
 * `tokens` must begin with the 64 * key_count tokens of all these pages. The tokens of the pages that were
 * found become the tokens of the sequence. `attached` receives their number, a multiple of 64, or 0 if no
 * page has keys[0]. The sequence shares the pages like a fork. Returns WCUDA_INVALID_STATE if the sequence
 * has tokens. To sample after a prompt, do not attach its last token: a row must have it as input.
 * [external: engine] */
WCUDA_API wcuda_status wcuda_sequence_attach(wcuda_sequence sequence, const int32_t* tokens,
                                             uint32_t token_count, const wcuda_page_key* keys,
                                             uint32_t key_count, uint32_t* attached,
                                             wcuda_error* error);

/* Queues a copy of a sequence's keys and values into pinned memory, after the steps in flight, and records
 * `done` after it. The copy begins at byte `offset` and takes 64 * kv_token_bytes bytes for each page.
 * Returns WCUDA_BUFFER_TOO_SMALL if `pinned` is too small. Tokens are not copied. The sequence may be
 * changed or destroyed as soon as the call returns. The caller must not access the memory until the event
 * is done. The handles `pinned` and `done` may be destroyed earlier; the memory stays allocated until the
 * copy is done. If a row in flight fails, the copy is undefined from the row's first position on.
 *
 * Returns WCUDA_INVALID_STATE if a step in flight has late rows that were not sampled, or draft tokens of the
 * sequence. On HOST, the function waits for the steps in flight, and the copy is done when it returns.
 * [external: engine] */
WCUDA_API wcuda_status wcuda_sequence_save(wcuda_sequence sequence, wcuda_pinned pinned,
                                           uint64_t offset, wcuda_event done, wcuda_error* error);
/* Fills an empty sequence with `token_count` tokens and queues a copy of their keys and values from pinned
 * memory, under the same conditions as wcuda_sequence_save. An engine with the same model and kv_type must
 * have written the memory with wcuda_sequence_save, for a sequence that began with these tokens. Steps that
 * are submitted later run after the copy. The caller must not change the memory until the event is done.
 * If too few pages are free, returns WCUDA_OUT_OF_PAGES, and the message has the numbers needed and free.
 * [external: engine] */
WCUDA_API wcuda_status wcuda_sequence_restore(wcuda_sequence sequence, const int32_t* tokens,
                                              uint32_t token_count, wcuda_pinned pinned,
                                              uint64_t offset, wcuda_event done,
                                              wcuda_error* error);

/* ------------------------------------------------------------------------------------------------
 * 12. Steps
 *
 * A step is a batch of rows. A row appends tokens to one sequence: a prompt, a chunk of a prompt, or the
 * token that the sequence sampled last. A row may also sample the next token. wcuda_step_submit copies its
 * inputs, returns a ticket and does not wait for the device. wcuda_step_wait copies the outputs. Two steps
 * may be in flight; submitting a third returns WCUDA_QUEUE_FULL. Steps finish in the order of their
 * tickets.
 *
 * If a row fails, that is, ends with a status other than WCUDA_ROW_OK, its sequence is truncated to the
 * position at which the row began. The same happens to every fork that was made of the sequence after the
 * step was submitted. If the next step is already in flight, its rows for these sequences end with
 * WCUDA_ROW_SKIPPED.
 *
 * If a step fails as a whole, all sequences have the length that they had before it, and no page has a key
 * any more. If the next step is already in flight, it fails with the same status. If only the copy of a step's
 * outputs fails, wcuda_step_wait treats the step as failed, but the next one runs: its rows for sequences that
 * were shortened have results that no longer count.
 *
 * A row with WCUDA_ROW_SAMPLE_LATE samples its token only when wcuda_step_sample supplies the mask of
 * allowed tokens. The mask can thus be computed from the previous step's token while the step runs:
 *
 *   row.flags = WCUDA_ROW_FEED_SAMPLED | WCUDA_ROW_SAMPLE | WCUDA_ROW_SAMPLE_LATE;
 *   wcuda_step_submit(engine, &step, &ticket, &error);
 *   late.mask = mask, late.mask_words = words;  (computed here)
 *   wcuda_step_sample(engine, ticket, &late, 1, &error);
 *   wcuda_step_submit(engine, &next_step, &next_ticket, &error);
 *   wcuda_step_wait(engine, ticket, -1, &output, &error);
 *
 * A step that has late rows must be sampled before it is waited for. Until then the sequences of these rows
 * can be destroyed or truncated, but not forked, and the next step must not have rows for them.
 *
 * A row may have draft tokens: a guess, from any source, of the tokens that the sequence is about to sample.
 * The step computes them after the row's tokens. It samples after the row's last token and each draft, with
 * the new position's random number. A draft token is accepted if it is the token that was sampled for its
 * position and all draft tokens before it are accepted. The row returns the accepted drafts and the token
 * that was sampled after them, 1 to 16 tokens. From the same logits, the same tokens would be sampled
 * without drafts.
 *
 *   row.tokens = &last;                sequence    … last | 7   3   9  drafts
 *   row.token_count = 1;               sampled              7   3   4  5
 *   row.draft_tokens = {7, 3, 9};      returned             7   3   4        9 is not accepted
 *   row.draft_count = 3;               sequence    … last   7   3            the next row has 4 as its input
 *
 * Afterwards the sequence includes the accepted drafts, and WCUDA_ROW_FEED_SAMPLED feeds back the last
 * token that was returned. KV pages are allocated for all drafts; those of rejected drafts are freed. No
 * token is returned after a stop token. If no token can be sampled at one of these positions, the row returns
 * the tokens that were sampled before it. The next row then samples at that position again, and fails as it
 * would without drafts.
 *
 * The next step may be submitted without waiting. Its row of the sequence must have WCUDA_ROW_FEED_SAMPLED
 * and no drafts; it may be late. The device lets it begin after the accepted drafts, and it has the last token
 * that was returned as its input, even if that is a stop token. It returns what it would return after a wait
 * (see the end of this section), and is skipped if the row with the drafts failed.
 *
 *                                    length
 *   submit  last, drafts 7 3 9       n + 4        a bound: all drafts are accepted
 *   submit  FEED_SAMPLED             n + 5        likewise
 *   wait    returns 7 3 4            n + 4        last 7 3, and 4, which the second row has as its input
 *   wait    returns 8                n + 4
 *
 * Until the step with the drafts has been waited for, lengths and positions of the sequence are those that
 * follow if all drafts are accepted. KV pages and max_sequence_tokens must suffice for them; wcuda_step_wait
 * frees pages that are not needed. wcuda_sequence_truncate counts in the same way, so every shorter length
 * removes the second row. Other rows of the sequence return WCUDA_INVALID_STATE. The sequence can be
 * destroyed, but not forked or saved.
 *
 * With WCUDA_ENGINE_BATCH_INVARIANT, logits do not depend on whether a token is a draft, or on whether its row
 * was submitted before a wait. Otherwise they may differ in the last bits, as they do between steps with other
 * rows.
 */

#define WCUDA_ROW_OK 0
#define WCUDA_ROW_HELD 1       /* wcuda_step_sample held the row, or its sequence was destroyed */
#define WCUDA_ROW_EMPTY_MASK 2 /* logit bias and mask exclude every token */
#define WCUDA_ROW_NOT_FINITE 3 /* a logit was NaN or +infinity */
#define WCUDA_ROW_SKIPPED 4    /* the previous step had a failed row of this sequence */

/* How the next token is sampled. If all fields are 0, sampling is greedy: it takes the highest logit, and
 * the lowest token id among equal logits.
 *
 * These operations run in this order: bias and mask, penalties, temperature, top-k, typical-p, top-p,
 * min-p, draw. Log probabilities are computed after the penalties and before the temperature, over the
 * whole vocabulary. With WCUDA_SAMPLING_RAW_LOGPROBS they are computed before bias, mask and penalties.
 * With WCUDA_SAMPLING_NO_LOGPROB there are none, which is faster: a greedy row then needs no sum over the
 * vocabulary, another row one sum instead of two. The sampled token is the same.
 * Each filter sorts the remaining tokens and keeps the first ones, at least one. top-k, top-p and min-p
 * sort by descending probability p. typical-p sorts by ascending |-log p - entropy|. Tokens that compare
 * equal are in ascending order of id. The next filter renormalises the probabilities of the tokens that
 * were kept.
 *
 * The draw takes the first token, in ascending order of id, at which the cumulative probability exceeds a
 * random number. The random number comes from Philox4x32-10 with the counter (position, 0, 0, 0) and the
 * key `seed`, where position is the position that the new token will have. The drawn token therefore
 * depends only on the seed, the position and the logits. It is the same on every backend if the logits are
 * the same. */
#define WCUDA_SAMPLING_RAW_LOGPROBS ((uint64_t)1 << 0) /* report log probabilities of the logits before bias,
                                                          mask and penalties */
#define WCUDA_SAMPLING_NO_LOGPROB ((uint64_t)1 << 1)   /* report 0 as the log probability; excludes
                                                          RAW_LOGPROBS, and top_logprobs must be 0 */

typedef struct wcuda_sampling {
  uint32_t struct_size;
  uint32_t top_k;             /* 0 disables the filter */
  uint64_t seed;              /* every value is valid, including 0 */
  float temperature;          /* 0 means greedy sampling */
  float top_p;                /* (0, 1]; 0 disables the filter */
  float min_p;                /* [0, 1]; 0 disables the filter */
  float typical_p;            /* (0, 1]; 0 disables the filter */
  /* Positive logits are divided by this, negative ones multiplied. Must not be negative; 0 and 1 disable
   * it. */
  float repetition_penalty;
  float frequency_penalty;    /* subtracted once per occurrence of the token; 0 disables it */
  float presence_penalty;     /* subtracted once if the token occurs; 0 disables it */
  uint32_t penalty_last_n;    /* number of most recent positions that penalties consider, at most 4096; 0
                                 means 64 */
  uint32_t penalty_from;      /* penalties ignore positions before this one */
  uint32_t top_logprobs;      /* number of most likely tokens to report, at most max_top_logprobs */
  uint64_t bias_count;
  const int32_t* bias_tokens; /* (bias_count) token ids, all different */
  const float* bias_values;   /* (bias_count) values added to logits; -infinity excludes a token */
  const uint32_t* mask;       /* bit (id % 32) of word id / 32 is 1 for an allowed token; NULL: all */
  uint64_t mask_words;        /* must be ceil(vocabulary_size / 32) if `mask` is not NULL; see also
                                 wcuda_row.draft_tokens */
  uint64_t flags;             /* WCUDA_SAMPLING_... */
} wcuda_sampling;
#define WCUDA_SAMPLING_INIT \
  {sizeof(wcuda_sampling), 0, 0, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0, 0, 0, 0, NULL, NULL, NULL, \
   0, 0}

#define WCUDA_ROW_FEED_SAMPLED ((uint32_t)1 << 0) /* the input is the token that the sequence sampled last,
                                                     fed back on the device; `tokens` must be NULL and
                                                     token_count 1 */
#define WCUDA_ROW_SAMPLE ((uint32_t)1 << 1)       /* sample a token after the row's last token */
#define WCUDA_ROW_LOGITS_LAST ((uint32_t)1 << 2)  /* return the logits of the last token */
#define WCUDA_ROW_LOGITS_ALL ((uint32_t)1 << 3)   /* return the logits of every token in the row */
#define WCUDA_ROW_SAMPLE_LATE ((uint32_t)1 << 4)  /* with WCUDA_ROW_SAMPLE: sample in wcuda_step_sample, which
                                                     also takes the mask; `sampling->mask` must be NULL */
/* Return a hidden state: embedding_length values after the final norm, from which logits are computed. A row
 * has at most one of these flags, and needs WCUDA_ENGINE_HIDDEN_STATES. */
#define WCUDA_ROW_HIDDEN_LAST ((uint32_t)1 << 6)  /* of the row's last token */
#define WCUDA_ROW_HIDDEN_FIRST ((uint32_t)1 << 7) /* of the row's first token */
#define WCUDA_ROW_HIDDEN_SUM ((uint32_t)1 << 8)   /* the sum over the row's tokens, in their order. For a
                                                     prompt in several chunks, add the sums of its rows. */
/* Return the log probabilities of the row's own tokens except the first, and of `next_token`, each given the
 * tokens before it. The values are those of a log softmax of the logits, without bias, mask, penalties and
 * temperature. For a prompt in several chunks, set next_token to the first token of the next chunk; the rows
 * then return the values of all tokens of the prompt except the first. A step computes these logits in
 * batches of max_logits_rows vectors and does not keep them. Needs WCUDA_ENGINE_TOKEN_LOGPROBS and
 * `tokens`, and allows no drafts. If a logit is NaN or +infinity, the row ends with WCUDA_ROW_NOT_FINITE. */
#define WCUDA_ROW_TOKEN_LOGPROBS ((uint32_t)1 << 9)

#define WCUDA_ROW_DRAFT_TOKENS_MAX ((uint32_t)15)

typedef struct wcuda_row {
  uint32_t struct_size;
  uint32_t flags;                 /* WCUDA_ROW_... */
  wcuda_sequence sequence;        /* a step may have only one row of a sequence */
  const int32_t* tokens;          /* (token_count) token ids */
  const wcuda_sampling* sampling; /* used with WCUDA_ROW_SAMPLE; NULL means greedy */
  uint32_t token_count;
  uint32_t reserved;
  /* (draft_count) token ids. Needs WCUDA_ROW_SAMPLE, and excludes WCUDA_ROW_SAMPLE_LATE and hidden states.
   * If `sampling` has a mask, one more mask per draft must follow it in memory, for the token after that
   * draft; mask_words counts the words of all masks. The logits flags also return the logits of each draft. */
  const int32_t* draft_tokens;
  const int32_t* stop_tokens;     /* (stop_count) token ids; a row with drafts returns no token after one */
  uint32_t draft_count;           /* at most WCUDA_ROW_DRAFT_TOKENS_MAX */
  uint32_t stop_count;
  /* The next two are read with WCUDA_ROW_TOKEN_LOGPROBS. */
  int32_t next_token;             /* the token that will follow the row; -1: none */
  uint32_t token_top_logprobs;    /* number of most likely tokens to report for each token, at most
                                     max_top_logprobs */
  /* Only in the engine of a draft head: a sequence of the target engine. The row's token at position p is
   * this sequence's token at position p + 1, and the row reads the features of position p. Wait for the
   * target's steps that compute these features before submitting the row. The pages that the row reads do
   * not change until the row has been waited for. Id 0: the row has one token, and the head's own state
   * after the previous token replaces the features. */
  wcuda_sequence features;
} wcuda_row;
#define WCUDA_ROW_INIT {sizeof(wcuda_row), 0, {0}, NULL, NULL, 0, 0, NULL, NULL, 0, 0, 0, 0, {0}}

typedef struct wcuda_step {
  uint32_t struct_size;
  uint32_t row_count; /* at least 1 */
  const wcuda_row* rows;
  uint64_t flags;     /* must be 0; no flags are defined */
} wcuda_step;
#define WCUDA_STEP_INIT {sizeof(wcuda_step), 0, NULL, 0}

/* Validates a step, allocates its KV pages and queues it. On failure nothing has changed. If too few pages
 * are free, returns WCUDA_OUT_OF_PAGES, and the message has the number needed and the number free. If the
 * step exceeds a limit of the engine, returns WCUDA_LIMIT_EXCEEDED, and the message names the limit. A
 * sampled token does not become part of the sequence until a later row has it as input.
 * [external: engine] */
WCUDA_API wcuda_status wcuda_step_submit(wcuda_engine engine, const wcuda_step* step,
                                         uint64_t* ticket, wcuda_error* error);

/* How wcuda_step_sample treats one late row. */
typedef struct wcuda_late_row {
  uint32_t struct_size;
  int32_t is_held;      /* 1: do not sample the row */
  const uint32_t* mask; /* as in wcuda_sampling; NULL: all tokens are allowed */
  uint64_t mask_words;
} wcuda_late_row;
#define WCUDA_LATE_ROW_INIT {sizeof(wcuda_late_row), 0, NULL, 0}

/* Samples the late rows of a step. `rows` has one element for each of them, in the order of the step's
 * rows. The function copies the masks and does not wait for the device. If a later step is in flight, CUDA
 * samples after that step, and HOST begins that step after sampling.
 *
 * A row that is held ends with WCUDA_ROW_HELD, without a token. When this function returns, its sequence is
 * back at the position at which the row began. The next step may have the same row again, including its
 * WCUDA_ROW_FEED_SAMPLED.
 *
 * Returns WCUDA_INVALID_STATE if the step has no late rows or has been sampled. After a failure the rows
 * are not sampled; the function may be called again. [external: engine] */
WCUDA_API wcuda_status wcuda_step_sample(wcuda_engine engine, uint64_t ticket,
                                         const wcuda_late_row* rows, uint64_t row_count,
                                         wcuda_error* error);

typedef struct wcuda_row_result {
  uint32_t struct_size;
  int32_t status;          /* WCUDA_ROW_... */
  int32_t token;           /* the sampled token, or with drafts the last one returned; -1: none */
  uint32_t first_position; /* position of the row's first token */
  uint32_t token_count;    /* tokens of the row, including accepted drafts */
  /* Natural logarithm of the token's probability, before temperature and filters; 0 if no token was
   * sampled, or with WCUDA_SAMPLING_NO_LOGPROB. */
  float logprob;
  uint64_t top_offset;     /* index of the row's first entry in top_tokens and top_logprobs */
  uint64_t logits_offset;  /* number of vectors in `logits` before those of this row */
  uint32_t top_count;      /* number of the row's entries in top_tokens and top_logprobs */
  uint32_t logits_count;   /* number of the row's logits vectors */
  uint64_t hidden_states_offset; /* number of vectors in `hidden_states` before that of this row */
  uint32_t hidden_states_count;  /* 1 if the row returns a hidden state; otherwise 0 */
  uint32_t reserved;
  uint64_t sampled_offset; /* index of the row's first token in sampled_tokens */
  uint64_t sampled_count;  /* number of the row's tokens there: 1, or with drafts 1 to 16; 0 if none was
                              sampled or sampled_capacity is 0 */
  uint64_t token_logprobs_offset; /* index of the row's first entry in token_logprobs */
  uint32_t token_logprobs_count;  /* number of the row's entries there: token_count, or token_count - 1 if
                                     next_token is -1; 0 if the row failed or did not request them */
  uint32_t token_top_count;       /* entries in token_top_tokens per token: the row's token_top_logprobs */
  uint64_t token_top_offset;      /* index of the row's first entry in token_top_tokens */
} wcuda_row_result;
#define WCUDA_ROW_RESULT_INIT \
  {sizeof(wcuda_row_result), 0, 0, 0, 0, 0.0f, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}

/* Outputs of a step, in the caller's memory. Pass NULL with capacity 0 for an output that is not
 * needed. */
typedef struct wcuda_step_output {
  uint32_t struct_size;
  uint32_t row_capacity;    /* must be at least the step's row_count */
  wcuda_row_result* rows;
  uint64_t top_capacity;    /* elements of top_tokens and of top_logprobs; must be at least the sum of
                               wcuda_sampling.top_logprobs over the rows that sample and their drafts */
  int32_t* top_tokens;      /* most likely tokens of each row, by descending log probability, then by id */
  float* top_logprobs;
  uint64_t logits_capacity; /* in floats */
  float* logits;            /* f32 vectors of vocabulary_size logits, before bias, mask and penalties, in
                               the order of the rows */
  /* The library writes the fields below. */
  uint64_t row_count;
  uint64_t device_ns;       /* time that the step took on the device, excluding waits for masks */
  int32_t captured;         /* 1: the library captured a CUDA graph before it could run this step */
  uint32_t reserved;
  /* The caller sets the fields below. */
  uint64_t hidden_states_capacity; /* in floats */
  float* hidden_states;     /* f32 vectors of embedding_length values, in the order of the rows */
  /* Elements of each of the next three arrays. Must be at least the number of rows that sample plus the
   * number of their drafts; 0 is also allowed if no row has drafts. */
  uint64_t sampled_capacity;
  int32_t* sampled_tokens;  /* the tokens of each row that samples, in the order of the rows */
  float* sampled_logprobs;  /* as wcuda_row_result.logprob */
  uint32_t* sampled_top_counts; /* number of the token's entries in top_tokens and top_logprobs, which follow
                                   those of the row's earlier tokens */
  /* Results of rows with WCUDA_ROW_TOKEN_LOGPROBS, in the order of the rows and of their tokens. The
   * capacities must be at least the number of entries of all these rows together. */
  uint64_t token_logprobs_capacity;
  float* token_logprobs;
  uint64_t token_top_capacity;  /* elements of each of the next two */
  int32_t* token_top_tokens;    /* most likely tokens at the position of each token, by descending log
                                   probability, then by id; -1, with log probability -infinity, if fewer than
                                   token_top_logprobs tokens are possible */
  float* token_top_logprobs;
} wcuda_step_output;
#define WCUDA_STEP_OUTPUT_INIT \
  {sizeof(wcuda_step_output), 0, NULL, 0, NULL, NULL, 0, NULL, 0, 0, 0, 0, 0, NULL, 0, NULL, NULL, NULL, \
   0, NULL, 0, NULL, NULL}

/* Waits until the step has finished and copies its outputs. Tickets must be waited for in order: if an
 * older step is in flight, or late rows are not sampled, the function returns WCUDA_INVALID_STATE. A
 * negative timeout_ms waits without a limit. WCUDA_TIMEOUT, WCUDA_BUFFER_TOO_SMALL, WCUDA_INVALID_STATE and
 * errors in the arguments leave the ticket in flight. Once the step has finished, the ticket is used up,
 * even if the step failed. [external: engine] */
WCUDA_API wcuda_status wcuda_step_wait(wcuda_engine engine, uint64_t ticket, int64_t timeout_ms,
                                       wcuda_step_output* output, wcuda_error* error);

/* Switches profiling on (1) or off (0). While profiling is on, a step runs without CUDA graphs, with an
 * event before and after each node, and is therefore slower. Returns WCUDA_INVALID_STATE if a step is in
 * flight. [external: engine] */
WCUDA_API wcuda_status wcuda_engine_profile_set(wcuda_engine engine, int32_t is_on,
                                                wcuda_error* error);
/* Lists the nodes of the last step that ran with profiling on and was waited for, each with its measured
 * time. Sampling is not listed. `bytes` and `flops` assume that all rows have the shape of the first row.
 * `rates` may be NULL; see wcuda_plan_steps_list. Returns WCUDA_INVALID_STATE if no step was profiled.
 * [external: engine] */
WCUDA_API wcuda_status wcuda_engine_profile_list(wcuda_engine engine, wcuda_step_rates* rates,
                                                 uint64_t first, wcuda_step_node* nodes,
                                                 uint64_t capacity, uint64_t* count,
                                                 wcuda_error* error);

/* Waits for all steps in flight and discards their outputs. Late rows that are not sampled are held. The
 * sequences then have the same lengths as after wcuda_step_wait. [external: engine] */
WCUDA_API wcuda_status wcuda_engine_drain(wcuda_engine engine, wcuda_error* error);

#ifdef __cplusplus
}
#endif

#endif /* WORKER_CUDA_LLM_H */
