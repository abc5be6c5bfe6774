/* worker_cuda/llm.h: language models in GGUF files: inspect, plan, load, run.
 *
 * Sections 8 to 12 of the interface. The conventions of worker_cuda/base.h apply.
 *
 * EXAMPLE: the token after a prompt of three.
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
 * `model` comes from wcuda_gguf_open and wcuda_model_load. The caller destroys sequence and engine at the
 * end.
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

#define WCUDA_SOURCE_PATH 1     /* path; the other parts of a split file are in the same folder */
#define WCUDA_SOURCE_FD 2       /* fd: duplicated, its offset is not moved */
#define WCUDA_SOURCE_MEMORY 3   /* data, size: must outlive the handle */
#define WCUDA_SOURCE_CALLBACK 4 /* read, user, size: must outlive the handle */

/* Reads exactly `bytes` bytes at `offset` into `target`; returns 0, or non-zero on failure. Runs on
 * threads of the library, possibly on several at once, during calls that read the file. */
typedef int32_t (*wcuda_read_callback)(void* user, uint64_t offset, void* target, uint64_t bytes);

typedef struct wcuda_source {
  uint32_t struct_size;
  int32_t kind; /* WCUDA_SOURCE_... */
  wcuda_string path;
  int32_t fd;   /* -1: none */
  uint32_t reserved;
  const void* data;
  uint64_t size; /* MEMORY, CALLBACK */
  wcuda_read_callback read;
  void* user;
} wcuda_source;
#define WCUDA_SOURCE_INIT {sizeof(wcuda_source), 0, {NULL, 0}, -1, 0, NULL, 0, NULL, NULL}

/* Reads and validates the header, the metadata and the tensor table of a GGUF file, version 2 or 3,
 * little-endian. All validation happens here, once: docs/FORMATS.md has the rules and limits. Tensor data
 * is not read. [any thread] */
WCUDA_API wcuda_status wcuda_gguf_open(const wcuda_source* source, wcuda_gguf* gguf,
                                       wcuda_error* error);
/* Releases the handle; a model loaded from the file does not need it. [any thread] */
WCUDA_API void wcuda_gguf_close(wcuda_gguf gguf);

typedef struct wcuda_gguf_info {
  uint32_t struct_size;
  uint32_t version;
  uint64_t metadata_count;
  uint64_t tensor_count;
  uint64_t file_bytes;   /* of all parts */
  uint64_t tensor_bytes; /* sum over all tensors, without padding */
  uint32_t alignment;
  uint32_t split_count;  /* 1 for a file that is not split */
} wcuda_gguf_info;
#define WCUDA_GGUF_INFO_INIT {sizeof(wcuda_gguf_info), 0, 0, 0, 0, 0, 0, 0}
/* Reports counts and sizes of the file. [any thread] */
WCUDA_API wcuda_status wcuda_gguf_info_get(wcuda_gguf gguf, wcuda_gguf_info* info,
                                           wcuda_error* error);

/* Types of metadata values, numbered as in the file. */
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

/* One metadata entry. `type` selects the one value member that is set. */
typedef struct wcuda_gguf_value {
  uint32_t struct_size;
  int32_t type;           /* WCUDA_GGUF_... */
  int32_t element_type;   /* of an array's elements; -1 otherwise */
  uint32_t reserved;
  wcuda_string key;
  uint64_t element_count; /* of an array; 1 otherwise */
  uint64_t value_u64;     /* U8 U16 U32 U64 BOOL */
  int64_t value_i64;      /* I8 I16 I32 I64 */
  double value_f64;       /* F32 F64 */
  wcuda_string value_string;
} wcuda_gguf_value;
#define WCUDA_GGUF_VALUE_INIT {sizeof(wcuda_gguf_value), 0, 0, 0, {NULL, 0}, 0, 0, 0, 0.0, {NULL, 0}}

/* Lists the metadata in file order; texts are borrowed from the handle. [any thread] */
WCUDA_API wcuda_status wcuda_gguf_value_list(wcuda_gguf gguf, uint64_t first,
                                             wcuda_gguf_value* values, uint64_t capacity,
                                             uint64_t* count, wcuda_error* error);
/* Finds an entry by key; WCUDA_NOT_FOUND if there is none. [any thread] */
WCUDA_API wcuda_status wcuda_gguf_value_find(wcuda_gguf gguf, wcuda_string key,
                                             wcuda_gguf_value* value, wcuda_error* error);
/* Copies elements first to first + count - 1 of an array, in the file's encoding (packed, little-endian; a
 * bool is one byte). `index` is the array's place in wcuda_gguf_value_list. For strings use the next
 * function. [any thread] */
WCUDA_API wcuda_status wcuda_gguf_array_copy(wcuda_gguf gguf, uint64_t index, uint64_t first,
                                             uint64_t count, void* target, uint64_t target_bytes,
                                             wcuda_error* error);
/* Reports `count` elements of an array of strings, borrowed from the handle. [any thread] */
WCUDA_API wcuda_status wcuda_gguf_array_strings(wcuda_gguf gguf, uint64_t index, uint64_t first,
                                                uint64_t count, wcuda_string* strings,
                                                wcuda_error* error);

typedef struct wcuda_gguf_tensor {
  uint32_t struct_size;
  uint32_t type; /* ggml type id */
  wcuda_string name;
  uint32_t dimension_count; /* 1 to 4 */
  uint32_t split_index;     /* part of a split file that holds it */
  uint64_t dimensions[4];   /* the first is contiguous; unused ones are 1 */
  uint64_t element_count;
  uint64_t bytes;
  uint64_t file_offset;     /* from the start of its part */
} wcuda_gguf_tensor;
#define WCUDA_GGUF_TENSOR_INIT {sizeof(wcuda_gguf_tensor), 0, {NULL, 0}, 0, 0, {0}, 0, 0, 0}

/* Lists the tensors in file order; names are borrowed from the handle. [any thread] */
WCUDA_API wcuda_status wcuda_gguf_tensor_list(wcuda_gguf gguf, uint64_t first,
                                              wcuda_gguf_tensor* tensors, uint64_t capacity,
                                              uint64_t* count, wcuda_error* error);
/* Finds a tensor by name; WCUDA_NOT_FOUND if there is none. [any thread] */
WCUDA_API wcuda_status wcuda_gguf_tensor_find(wcuda_gguf gguf, wcuda_string name,
                                              wcuda_gguf_tensor* tensor, wcuda_error* error);
/* Reads bytes of a tensor's data as they are in the file. `index` is the tensor's place in
 * wcuda_gguf_tensor_list. After WCUDA_IO, here and in the next function, the contents of `target` are
 * undefined. [any thread] */
WCUDA_API wcuda_status wcuda_gguf_tensor_read(wcuda_gguf gguf, uint64_t index, uint64_t offset,
                                              void* target, uint64_t bytes, wcuda_error* error);
/* Converts elements first to first + count - 1 of a tensor to f32; `first` and `count` are multiples of
 * the type's block size. [any thread] */
WCUDA_API wcuda_status wcuda_gguf_tensor_dequantize(wcuda_gguf gguf, uint64_t index, uint64_t first,
                                                    uint64_t count, float* target,
                                                    wcuda_error* error);

typedef struct wcuda_tensor_type_info {
  uint32_t struct_size;
  uint32_t type;
  const char* name; /* "Q4_K"; static text */
  uint32_t block_elements;
  uint32_t block_bytes;
  int32_t is_loadable; /* 1: a model may have weights of this type */
  uint32_t reserved;
} wcuda_tensor_type_info;
#define WCUDA_TENSOR_TYPE_INFO_INIT {sizeof(wcuda_tensor_type_info), 0, NULL, 0, 0, 0, 0}
/* Describes a ggml type id; WCUDA_NOT_FOUND for removed and unknown ids. [any thread] */
WCUDA_API wcuda_status wcuda_tensor_type_info_get(uint32_t type, wcuda_tensor_type_info* info,
                                                  wcuda_error* error);

/* ------------------------------------------------------------------------------------------------
 * 9. Engine options and plan: the memory a model needs, before a byte is allocated
 */

#define WCUDA_KV_F16 0
#define WCUDA_KV_Q8_0 1
#define WCUDA_KV_FP8_E4M3 2

#define WCUDA_KV_PAGE_TOKENS 64 /* positions in a KV page */

#define WCUDA_ENGINE_BATCH_INVARIANT ((uint64_t)1 << 0)   /* the result of a row does not depend on the
                                                             other rows of its step */
#define WCUDA_ENGINE_POISON_FREE_PAGES ((uint64_t)1 << 1) /* for tests: free pages hold NaN */
/* Persistent fused layers: a step of one token computes the linear layers between two attentions in one
 * kernel with a block on every multiprocessor. This is faster for one sequence of a large model, and sums
 * have another order. ON returns WCUDA_UNSUPPORTED where model or device have no such kernel. With neither
 * flag the library uses it where it is known to be faster for model and device. BATCH_INVARIANT excludes
 * it. */
#define WCUDA_ENGINE_PERSISTENT_LAYERS_ON ((uint64_t)1 << 2)
#define WCUDA_ENGINE_PERSISTENT_LAYERS_OFF ((uint64_t)1 << 3)

typedef struct wcuda_engine_options {
  uint32_t struct_size;
  int32_t kv_type;              /* WCUDA_KV_... */
  uint64_t flags;               /* WCUDA_ENGINE_... */
  uint32_t max_sequences;       /* live at once; 0: 16 */
  uint32_t max_batch_tokens;    /* in one step, all rows; 0: 512 */
  uint32_t max_batch_rows;      /* in one step; 0: max_sequences */
  uint32_t max_sequence_tokens; /* positions of one sequence; 0: the model's context length */
  uint64_t kv_tokens;           /* positions of all sequences together, rounded up to pages; 0: the
                                   larger of one full sequence and 512 per sequence */
  uint32_t max_logits_rows;     /* rows of logits a step may return; 0: max_batch_rows */
  uint32_t max_top_logprobs;    /* alternatives a sampled token may report, at most 128; 0: none */
} wcuda_engine_options;
#define WCUDA_ENGINE_OPTIONS_INIT {sizeof(wcuda_engine_options), 0, 0, 0, 0, 0, 0, 0, 0, 0}

typedef struct wcuda_plan {
  uint32_t struct_size;
  int32_t fits; /* 1: both total_bytes and, while loading, weights_bytes + loading_bytes are at most
                   available_bytes */
  uint64_t weights_bytes;
  uint64_t kv_bytes;        /* pages, page tables and token history */
  uint64_t scratch_bytes;   /* activations, logits, sampling */
  uint64_t total_bytes;     /* sum of these three; without captured CUDA graphs, which the driver holds */
  uint64_t staging_bytes;   /* pinned host memory while loading */
  uint64_t available_bytes; /* free memory within the budget */
  uint64_t kv_page_bytes;
  uint64_t kv_page_count;
  uint64_t loading_bytes;   /* device memory besides the weights while loading; 0 on HOST */
} wcuda_plan;
#define WCUDA_PLAN_INIT {sizeof(wcuda_plan), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}

/* Computes how much device memory this model will hold when it is loaded and runs with these options (NULL:
 * defaults). The figures equal, to the byte, those of the ledger afterwards. Reads no tensor data. A model
 * that cannot run is refused here, with the reason. [any thread] */
WCUDA_API wcuda_status wcuda_plan_get(wcuda_context context, wcuda_gguf gguf,
                                      const wcuda_engine_options* options, wcuda_plan* plan,
                                      wcuda_error* error);

/* A step of rows of equal length. */
typedef struct wcuda_step_shape {
  uint32_t struct_size;
  uint32_t row_count;      /* 0: 1 */
  uint32_t row_tokens;     /* of each row; 0: 1 */
  uint32_t context_tokens; /* positions of each row before its first token */
} wcuda_step_shape;
#define WCUDA_STEP_SHAPE_INIT {sizeof(wcuda_step_shape), 0, 0, 0}

/* Rates of a device. */
typedef struct wcuda_step_rates {
  uint32_t struct_size;
  int32_t is_measured;       /* 1: from the table of measured rates; 0: from the device's attributes */
  uint64_t bytes_per_second; /* of device memory; 0: not known */
  uint64_t flops_per_second; /* f16 products with f32 sums; 0: not known */
} wcuda_step_rates;
#define WCUDA_STEP_RATES_INIT {sizeof(wcuda_step_rates), 0, 0, 0}

/* One node of a step: one kernel, or the few kernels of one operation. Texts are static. */
typedef struct wcuda_step_node {
  uint32_t struct_size;
  uint32_t layer;        /* UINT32_MAX: none */
  uint32_t fused_count;  /* linear layers in a node "persistent_layers"; 1 for all others */
  uint32_t reserved;
  const char* operation; /* "query_key_value" */
  const char* kernel;    /* "linear_vector"; "host" */
  const char* input;     /* form of the input: "f32"; "f16 gate sums" (gate and up before the activation) */
  const char* output;
  uint64_t bytes;        /* moved: weights, activations, KV pages */
  uint64_t flops;        /* of matrix products */
  double limit_ns;       /* time at the roofline; 0: not known */
  double measured_ns;    /* set by wcuda_engine_profile_list; else 0 */
} wcuda_step_node;
#define WCUDA_STEP_NODE_INIT {sizeof(wcuda_step_node), 0, 0, 0, NULL, NULL, NULL, NULL, 0, 0, 0.0, 0.0}

/* Lists, in order, the nodes of a step of this shape for this file with these options (NULL: defaults).
 * `device` is empty for the context's device, or a name in the table of measured rates ("H200"): then no
 * GPU is needed, and another name returns WCUDA_NOT_FOUND. rates, if not NULL, receives the rates that
 * limit_ns is computed from. Reads no tensor data. [any thread] */
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

/* Creates a switch that stops a load. Once triggered it stays triggered. [any thread] */
WCUDA_API wcuda_status wcuda_cancel_create(wcuda_cancel* cancel, wcuda_error* error);
/* Releases the switch; a load that uses it continues. [any thread] */
WCUDA_API void wcuda_cancel_destroy(wcuda_cancel cancel);
/* Stops the load. Legal on any thread and inside the progress callback. [any thread] */
WCUDA_API wcuda_status wcuda_cancel_trigger(wcuda_cancel cancel, wcuda_error* error);

typedef struct wcuda_model {
  uint64_t id;
} wcuda_model;

#define WCUDA_LOAD_PLAN 1
#define WCUDA_LOAD_RESERVE 2
#define WCUDA_LOAD_UPLOAD 3 /* done_bytes counts bytes that are read, validated and repacked */
#define WCUDA_LOAD_SEAL 4
#define WCUDA_LOAD_DONE 5   /* reported once, last, if the load succeeds; the return value is ignored */

/* Receives the progress of a load: at each change of phase and at least every 16 MiB. Runs on the loading
 * thread. A non-zero return cancels the load. */
typedef int32_t (*wcuda_progress_callback)(void* user, int32_t phase, uint64_t done_bytes,
                                           uint64_t total_bytes);

typedef struct wcuda_model_options {
  uint32_t struct_size;
  uint32_t reserved;
  uint64_t flags;                   /* none defined: 0 */
  wcuda_progress_callback progress; /* may be NULL */
  void* progress_user;
  wcuda_cancel cancel;              /* id 0: none */
} wcuda_model_options;
#define WCUDA_MODEL_OPTIONS_INIT {sizeof(wcuda_model_options), 0, 0, NULL, NULL, {0}}

/* Loads a model's weights; on failure nothing stays allocated. Options may be NULL. A cancelled load
 * returns WCUDA_CANCELLED within 16 MiB of reading. WCUDA_MALFORMED: hyper-parameters, tokenizer and
 * tensors contradict each other, or one is missing. WCUDA_UNSUPPORTED: an architecture, a tensor type or a
 * feature of the model that this version lacks. An unknown tensor is refused if its name says that the
 * network uses it ("blk.", "token_", "position_", "output", "rope_"); any other is ignored and logged.
 * [any thread] */
WCUDA_API wcuda_status wcuda_model_load(wcuda_context context, wcuda_gguf gguf,
                                        const wcuda_model_options* options, wcuda_model* model,
                                        wcuda_error* error);
/* Releases the handle; the memory is freed when no engine uses it. [any thread] */
WCUDA_API void wcuda_model_unload(wcuda_model model);

typedef struct wcuda_model_info {
  uint32_t struct_size;
  uint32_t layer_count;
  char architecture[64]; /* "llama"; NUL-terminated */
  uint64_t parameter_count;
  uint64_t weights_bytes; /* held on the device */
  uint32_t vocabulary_size;
  uint32_t embedding_length;
  uint32_t feed_forward_length;
  uint32_t head_count;
  uint32_t kv_head_count;
  uint32_t head_length;
  uint32_t context_length; /* the model was trained for */
  uint32_t sliding_window; /* 0: none */
  float rope_frequency_base;
  uint32_t reserved;
} wcuda_model_info;
#define WCUDA_MODEL_INFO_INIT {sizeof(wcuda_model_info), 0, {0}, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0.0f, 0}
/* Reports the model's hyper-parameters and size. [any thread] */
WCUDA_API wcuda_status wcuda_model_info_get(wcuda_model model, wcuda_model_info* info,
                                            wcuda_error* error);

typedef struct wcuda_tensor_digests {
  uint32_t struct_size;
  uint32_t reserved;
  uint8_t file[32];     /* BLAKE3 of the tensor's bytes in the file */
  uint8_t resident[32]; /* BLAKE3 of its bytes on the device: the same bytes repacked, zeros where rows are
                           padded; vectors as f32 */
} wcuda_tensor_digests;
#define WCUDA_TENSOR_DIGESTS_INIT {sizeof(wcuda_tensor_digests), 0, {0}, {0}}
/* Reports the digests of tensor `index` of the file the model was loaded from, computed while loading.
 * WCUDA_NOT_FOUND: the tensor is not one of the weights. [any thread] */
WCUDA_API wcuda_status wcuda_model_tensor_digests_get(wcuda_model model, uint64_t index,
                                                      wcuda_tensor_digests* digests,
                                                      wcuda_error* error);
/* Computes the digest of every resident tensor again, on the device, and compares it with the one computed
 * while loading. WCUDA_INTEGRITY names the first tensor that differs. Legal while steps are in flight.
 * [any thread] */
WCUDA_API wcuda_status wcuda_model_verify(wcuda_model model, wcuda_error* error);

/* ------------------------------------------------------------------------------------------------
 * 11. Engine and sequences
 */

typedef struct wcuda_engine {
  uint64_t id;
} wcuda_engine;

/* Reserves KV pages and scratch. Options may be NULL. If several engines of one device use persistent
 * fused layers, their steps run one after the other. [any thread] */
WCUDA_API wcuda_status wcuda_engine_create(wcuda_model model, const wcuda_engine_options* options,
                                           wcuda_engine* engine, wcuda_error* error);
/* Waits for the steps in flight, then frees. [external: engine] */
WCUDA_API void wcuda_engine_destroy(wcuda_engine engine);

typedef struct wcuda_engine_info {
  uint32_t struct_size;
  int32_t kv_type;
  uint64_t flags;              /* WCUDA_ENGINE_... in force; always one of PERSISTENT_LAYERS_ON and _OFF */
  uint32_t max_sequences;      /* the limits in force, defaults resolved */
  uint32_t max_batch_tokens;
  uint32_t max_batch_rows;
  uint32_t max_sequence_tokens;
  uint32_t max_logits_rows;
  uint32_t max_top_logprobs;
  uint32_t sequence_count;     /* live */
  uint32_t steps_in_flight;
  uint64_t kv_page_count;
  uint64_t kv_free_page_count; /* after the steps in flight */
  uint64_t kv_bytes;
  uint64_t scratch_bytes;
} wcuda_engine_info;
#define WCUDA_ENGINE_INFO_INIT {sizeof(wcuda_engine_info), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}
/* Reports limits and use. [any thread] */
WCUDA_API wcuda_status wcuda_engine_info_get(wcuda_engine engine, wcuda_engine_info* info,
                                             wcuda_error* error);

/* Does now what the first step of each shape would do otherwise: on CUDA captures graphs, on HOST starts
 * the threads and touches the memory. [external: engine] */
WCUDA_API wcuda_status wcuda_engine_warm_up(wcuda_engine engine, wcuda_error* error);

/* A sequence: the tokens of one conversation with their keys and values. */
typedef struct wcuda_sequence {
  uint64_t id;
} wcuda_sequence;

/* Creates an empty sequence, which takes no pages yet. WCUDA_LIMIT_EXCEEDED past max_sequences.
 * [external: engine] */
WCUDA_API wcuda_status wcuda_sequence_create(wcuda_engine engine, wcuda_sequence* sequence,
                                             wcuda_error* error);
/* Creates a second sequence with the same tokens; pages are shared until one of the two writes. Takes
 * effect after the steps in flight. Two forks that sample with the same seed draw the same tokens.
 * [external: engine] */
WCUDA_API wcuda_status wcuda_sequence_fork(wcuda_sequence sequence, wcuda_sequence* fork,
                                           wcuda_error* error);
/* Removes all but the first `length` tokens; a length above the sequence's returns WCUDA_OUT_OF_RANGE.
 * Takes effect after the steps in flight. [external: engine] */
WCUDA_API wcuda_status wcuda_sequence_truncate(wcuda_sequence sequence, uint32_t length,
                                               wcuda_error* error);
/* Ends a sequence; the next submit can already take its pages. Rows in flight complete. [any thread] */
WCUDA_API void wcuda_sequence_destroy(wcuda_sequence sequence);
/* Reports the number of tokens submitted so far, including the steps in flight. [any thread] */
WCUDA_API wcuda_status wcuda_sequence_length_get(wcuda_sequence sequence, uint32_t* length,
                                                 wcuda_error* error);
/* Copies tokens first to first + count - 1 of the history. A token that a step in flight has yet to sample
 * returns WCUDA_INVALID_STATE. [external: engine] */
WCUDA_API wcuda_status wcuda_sequence_tokens_get(wcuda_sequence sequence, uint32_t first,
                                                 uint32_t count, int32_t* tokens,
                                                 wcuda_error* error);

/* ------------------------------------------------------------------------------------------------
 * 12. Steps
 *
 * A step is a batch of rows. A row appends tokens to one sequence (a prompt, a part of one, or the token
 * sampled last) and may sample the next token. Submit copies its inputs, returns a ticket and does not wait
 * for the device; wait copies the outputs. Two steps may be in flight; a third returns WCUDA_QUEUE_FULL.
 * Tickets complete in order.
 *
 * A row that ends with another status than WCUDA_ROW_OK truncates its sequence, and every fork made of it after
 * the submit, to the row's first position; a row of the later ticket that continues the sequence ends as
 * WCUDA_ROW_SKIPPED. A step that fails as a whole restores the lengths from before the step, and the later
 * ticket fails too, with the same cause.
 */

#define WCUDA_ROW_OK 0
#define WCUDA_ROW_EMPTY_MASK 2 /* bias and mask leave no token to draw */
#define WCUDA_ROW_NOT_FINITE 3 /* a logit was NaN or +infinity */
#define WCUDA_ROW_SKIPPED 4    /* continues a row that failed */

/* How the next token is drawn. All zero: greedy, the lowest id among equal logits.
 *
 * Order: bias and mask, penalties, (logprobs are taken here,) temperature, top-k, typical, top-p, min-p,
 * draw. Log probabilities are the log softmax of the logits after bias, mask and penalties, over the whole
 * vocabulary. Each filter ranks the tokens, equal ones by ascending id, and keeps the head of this list, at
 * least one token; the next filter renormalises what is left. The draw takes the first token by ascending
 * id where the cumulative probability exceeds a number from Philox4x32-10 with counter (position, 0, 0, 0)
 * and key seed; position is the one the token will have. So a draw depends on (seed, position) and the
 * logits alone and is the same on every backend for equal logits. */
typedef struct wcuda_sampling {
  uint32_t struct_size;
  uint32_t top_k;             /* 0: off */
  uint64_t seed;              /* every value is a seed, 0 too */
  float temperature;          /* 0: greedy */
  float top_p;                /* (0, 1]; 0: off */
  float min_p;                /* [0, 1]; 0: off */
  float typical_p;            /* (0, 1]; 0: off */
  float repetition_penalty;   /* > 0; divides a positive logit, multiplies a negative one; 0 or 1: off */
  float frequency_penalty;    /* subtracted once per occurrence; 0: off */
  float presence_penalty;     /* subtracted once if the token occurs; 0: off */
  uint32_t penalty_last_n;    /* most recent positions the penalties consider, at most 4096; 0: 64 when a
                                 penalty is on */
  uint32_t penalty_from;      /* first position they consider */
  uint32_t top_logprobs;      /* alternatives to report, at most the engine's; 0: none */
  uint64_t bias_count;
  const int32_t* bias_tokens; /* (bias_count) distinct ids */
  const float* bias_values;   /* (bias_count) added to the logit; -infinity forbids the token */
  const uint32_t* mask;       /* bit (id % 32) of word id / 32: 1 allows; NULL: all allowed */
  uint64_t mask_words;        /* ceil(vocabulary / 32) */
} wcuda_sampling;
#define WCUDA_SAMPLING_INIT \
  {sizeof(wcuda_sampling), 0, 0, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0, 0, 0, 0, NULL, NULL, NULL, \
   0}

#define WCUDA_ROW_FEED_SAMPLED ((uint32_t)1 << 0) /* one token: the one this sequence sampled last, fed
                                                     back on the device; tokens NULL, token_count 1 */
#define WCUDA_ROW_SAMPLE ((uint32_t)1 << 1)       /* sample after the row's last token */
#define WCUDA_ROW_LOGITS_LAST ((uint32_t)1 << 2)  /* return the logits of the last token */
#define WCUDA_ROW_LOGITS_ALL ((uint32_t)1 << 3)   /* return the logits of every token of the row */

typedef struct wcuda_row {
  uint32_t struct_size;
  uint32_t flags;                 /* WCUDA_ROW_... */
  wcuda_sequence sequence;        /* a sequence has at most one row in a step */
  const int32_t* tokens;          /* (token_count) ids in [0, vocabulary) */
  const wcuda_sampling* sampling; /* with WCUDA_ROW_SAMPLE; NULL: greedy */
  uint32_t token_count;
  uint32_t reserved;
} wcuda_row;
#define WCUDA_ROW_INIT {sizeof(wcuda_row), 0, {0}, NULL, NULL, 0, 0}

typedef struct wcuda_step {
  uint32_t struct_size;
  uint32_t row_count; /* at least 1 */
  const wcuda_row* rows;
  uint64_t flags;     /* none defined: 0 */
} wcuda_step;
#define WCUDA_STEP_INIT {sizeof(wcuda_step), 0, NULL, 0}

/* Validates the step, takes pages and queues it. WCUDA_OUT_OF_PAGES reports the pages needed and free,
 * WCUDA_LIMIT_EXCEEDED names the limit. On failure nothing has changed. A sampled token becomes part of the
 * sequence only when a row feeds it. [external: engine] */
WCUDA_API wcuda_status wcuda_step_submit(wcuda_engine engine, const wcuda_step* step,
                                         uint64_t* ticket, wcuda_error* error);

typedef struct wcuda_row_result {
  uint32_t struct_size;
  int32_t status;          /* WCUDA_ROW_... */
  int32_t token;           /* sampled; -1 if none */
  uint32_t first_position; /* of the row's first token */
  uint32_t token_count;
  float logprob;           /* natural logarithm, of the sampled token, before temperature and the filters;
                              0 if none */
  uint64_t top_offset;     /* index of the first alternative in top_tokens and top_logprobs */
  uint64_t logits_offset;  /* index of the first row in `logits`, counted in rows of (vocabulary) floats */
  uint32_t top_count;      /* alternatives reported */
  uint32_t logits_count;   /* rows of logits */
} wcuda_row_result;
#define WCUDA_ROW_RESULT_INIT {sizeof(wcuda_row_result), 0, 0, 0, 0, 0.0f, 0, 0, 0, 0}

/* Outputs of a step, in memory of the caller. An array that is not wanted may be NULL with capacity 0. */
typedef struct wcuda_step_output {
  uint32_t struct_size;
  uint32_t row_capacity;    /* at least the step's rows */
  wcuda_row_result* rows;
  uint64_t top_capacity;    /* entries; the count needed follows from what the rows asked for */
  int32_t* top_tokens;      /* descending by logprob; equal ones by ascending id */
  float* top_logprobs;
  uint64_t logits_capacity; /* floats */
  float* logits;            /* (rows, vocabulary) f32, in the order of the step's rows; before bias, mask
                               and penalties */
  /* Written by the library: */
  uint64_t row_count;
  uint64_t device_ns;       /* time on the device */
  int32_t captured;         /* 1: this step had to capture a graph first */
  uint32_t reserved;
} wcuda_step_output;
#define WCUDA_STEP_OUTPUT_INIT {sizeof(wcuda_step_output), 0, NULL, 0, NULL, NULL, 0, NULL, 0, 0, 0, 0}

/* Waits for the oldest ticket and copies its outputs; timeout_ms < 0 waits without limit. A later ticket
 * while an older one is in flight returns WCUDA_INVALID_STATE. WCUDA_TIMEOUT and WCUDA_BUFFER_TOO_SMALL
 * leave the ticket in flight; any other status ends it. [external: engine] */
WCUDA_API wcuda_status wcuda_step_wait(wcuda_engine engine, uint64_t ticket, int64_t timeout_ms,
                                       wcuda_step_output* output, wcuda_error* error);

/* Switches profiling on (1) or off (0). While it is on, steps run kernel by kernel with an event around each
 * node instead of as a graph: slower, for measuring. WCUDA_INVALID_STATE while a step is in flight.
 * [external: engine] */
WCUDA_API wcuda_status wcuda_engine_profile_set(wcuda_engine engine, int32_t is_on,
                                                wcuda_error* error);
/* Lists the nodes of the last step that was waited for while profiling, each with the time it took alone;
 * sampling is not among them. Bytes and FLOPs assume that all rows are like the first. rates as in
 * wcuda_plan_steps_list. WCUDA_INVALID_STATE: no step was profiled. [external: engine] */
WCUDA_API wcuda_status wcuda_engine_profile_list(wcuda_engine engine, wcuda_step_rates* rates,
                                                 uint64_t first, wcuda_step_node* nodes,
                                                 uint64_t capacity, uint64_t* count,
                                                 wcuda_error* error);

/* Waits for all steps in flight and discards their outputs; sequence lengths are then as after a wait for
 * each step. [external: engine] */
WCUDA_API wcuda_status wcuda_engine_drain(wcuda_engine engine, wcuda_error* error);

#ifdef __cplusplus
}
#endif

#endif /* WORKER_CUDA_LLM_H */
