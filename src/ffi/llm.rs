//! Sections 8 to 12: `worker_cuda/llm.h`.

use super::*;

pub(super) fn push_layout(rows: &mut Vec<LayoutRow>) {
    wcuda_gguf::push_layout(rows);
    wcuda_source::push_layout(rows);
    wcuda_gguf_info::push_layout(rows);
    wcuda_gguf_value::push_layout(rows);
    wcuda_gguf_tensor::push_layout(rows);
    wcuda_tensor_type_info::push_layout(rows);
    wcuda_model::push_layout(rows);
    wcuda_engine::push_layout(rows);
    wcuda_engine_options::push_layout(rows);
    wcuda_plan::push_layout(rows);
    wcuda_step_shape::push_layout(rows);
    wcuda_step_rates::push_layout(rows);
    wcuda_step_node::push_layout(rows);
    wcuda_cancel::push_layout(rows);
    wcuda_model_options::push_layout(rows);
    wcuda_model_info::push_layout(rows);
    wcuda_tensor_digests::push_layout(rows);
    wcuda_engine_info::push_layout(rows);
    wcuda_sequence::push_layout(rows);
    wcuda_page_key::push_layout(rows);
    wcuda_sampling::push_layout(rows);
    wcuda_row::push_layout(rows);
    wcuda_step::push_layout(rows);
    wcuda_late_row::push_layout(rows);
    wcuda_row_result::push_layout(rows);
    wcuda_step_output::push_layout(rows);
}

// ---- 8. GGUF files ----

c_struct! {
    wcuda_gguf {
        id: u64,
    }
}

pub const WCUDA_SOURCE_PATH: i32 = 1;
pub const WCUDA_SOURCE_FD: i32 = 2;
pub const WCUDA_SOURCE_MEMORY: i32 = 3;
pub const WCUDA_SOURCE_CALLBACK: i32 = 4;
pub type wcuda_read_callback = Option<
    unsafe extern "C" fn(user: *mut c_void, offset: u64, target: *mut c_void, bytes: u64) -> i32,
>;

c_struct! {
    sized wcuda_source {
        struct_size: u32,
        kind: i32,
        path: wcuda_string,
        fd: i32,
        reserved: u32,
        data: *const c_void,
        size: u64,
        read: wcuda_read_callback,
        user: *mut c_void,
    }
}

unsafe extern "C" {
    pub fn wcuda_gguf_open(
        source: *const wcuda_source,
        gguf: *mut wcuda_gguf,
        error: *mut wcuda_error,
    ) -> wcuda_status;
    pub fn wcuda_gguf_close(gguf: wcuda_gguf);
}

c_struct! {
    sized wcuda_gguf_info {
        struct_size: u32,
        version: u32,
        metadata_count: u64,
        tensor_count: u64,
        file_bytes: u64,
        tensor_bytes: u64,
        alignment: u32,
        split_count: u32,
    }
}

unsafe extern "C" {
    pub fn wcuda_gguf_info_get(
        gguf: wcuda_gguf,
        info: *mut wcuda_gguf_info,
        error: *mut wcuda_error,
    ) -> wcuda_status;
}

pub const WCUDA_GGUF_U8: i32 = 0;
pub const WCUDA_GGUF_I8: i32 = 1;
pub const WCUDA_GGUF_U16: i32 = 2;
pub const WCUDA_GGUF_I16: i32 = 3;
pub const WCUDA_GGUF_U32: i32 = 4;
pub const WCUDA_GGUF_I32: i32 = 5;
pub const WCUDA_GGUF_F32: i32 = 6;
pub const WCUDA_GGUF_BOOL: i32 = 7;
pub const WCUDA_GGUF_STRING: i32 = 8;
pub const WCUDA_GGUF_ARRAY: i32 = 9;
pub const WCUDA_GGUF_U64: i32 = 10;
pub const WCUDA_GGUF_I64: i32 = 11;
pub const WCUDA_GGUF_F64: i32 = 12;
c_struct! {
    sized wcuda_gguf_value {
        struct_size: u32,
        r#type: i32,
        element_type: i32,
        reserved: u32,
        key: wcuda_string,
        element_count: u64,
        value_u64: u64,
        value_i64: i64,
        value_f64: f64,
        value_string: wcuda_string,
    }
}

unsafe extern "C" {
    pub fn wcuda_gguf_value_list(
        gguf: wcuda_gguf,
        first: u64,
        values: *mut wcuda_gguf_value,
        capacity: u64,
        count: *mut u64,
        error: *mut wcuda_error,
    ) -> wcuda_status;
    pub fn wcuda_gguf_value_find(
        gguf: wcuda_gguf,
        key: wcuda_string,
        value: *mut wcuda_gguf_value,
        error: *mut wcuda_error,
    ) -> wcuda_status;
    pub fn wcuda_gguf_array_copy(
        gguf: wcuda_gguf,
        index: u64,
        first: u64,
        count: u64,
        target: *mut c_void,
        target_bytes: u64,
        error: *mut wcuda_error,
    ) -> wcuda_status;
    pub fn wcuda_gguf_array_strings(
        gguf: wcuda_gguf,
        index: u64,
        first: u64,
        count: u64,
        strings: *mut wcuda_string,
        error: *mut wcuda_error,
    ) -> wcuda_status;
}

c_struct! {
    sized wcuda_gguf_tensor {
        struct_size: u32,
        r#type: u32,
        name: wcuda_string,
        dimension_count: u32,
        split_index: u32,
        dimensions: [u64; 4],
        element_count: u64,
        bytes: u64,
        file_offset: u64,
    }
}

unsafe extern "C" {
    pub fn wcuda_gguf_tensor_list(
        gguf: wcuda_gguf,
        first: u64,
        tensors: *mut wcuda_gguf_tensor,
        capacity: u64,
        count: *mut u64,
        error: *mut wcuda_error,
    ) -> wcuda_status;
    pub fn wcuda_gguf_tensor_find(
        gguf: wcuda_gguf,
        name: wcuda_string,
        tensor: *mut wcuda_gguf_tensor,
        error: *mut wcuda_error,
    ) -> wcuda_status;
    pub fn wcuda_gguf_tensor_read(
        gguf: wcuda_gguf,
        index: u64,
        offset: u64,
        target: *mut c_void,
        bytes: u64,
        error: *mut wcuda_error,
    ) -> wcuda_status;
    pub fn wcuda_gguf_tensor_dequantize(
        gguf: wcuda_gguf,
        index: u64,
        first: u64,
        count: u64,
        target: *mut f32,
        error: *mut wcuda_error,
    ) -> wcuda_status;
}

c_struct! {
    sized wcuda_tensor_type_info {
        struct_size: u32,
        r#type: u32,
        name: *const c_char,
        block_elements: u32,
        block_bytes: u32,
        is_loadable: i32,
        reserved: u32,
    }
}

unsafe extern "C" {
    pub fn wcuda_tensor_type_info_get(
        r#type: u32,
        info: *mut wcuda_tensor_type_info,
        error: *mut wcuda_error,
    ) -> wcuda_status;
}

// ---- 9. Engine options and plan: the memory a model needs, before a byte is allocated ----

c_struct! {
    wcuda_model {
        id: u64,
    }
}

c_struct! {
    wcuda_engine {
        id: u64,
    }
}

pub const WCUDA_KV_F16: i32 = 0;
pub const WCUDA_KV_Q8_0: i32 = 1;
pub const WCUDA_KV_FP8_E4M3: i32 = 2;
pub const WCUDA_KV_INT10: i32 = 3;
pub const WCUDA_KV_PAGE_TOKENS: u32 = 64;
pub const WCUDA_ENGINE_BATCH_INVARIANT: u64 = 1 << 0;
pub const WCUDA_ENGINE_POISON_FREE_PAGES: u64 = 1 << 1;
pub const WCUDA_ENGINE_PERSISTENT_LAYERS_ON: u64 = 1 << 2;
pub const WCUDA_ENGINE_PERSISTENT_LAYERS_OFF: u64 = 1 << 3;
pub const WCUDA_ENGINE_HIDDEN_STATES: u64 = 1 << 4;
pub const WCUDA_ENGINE_TOKEN_LOGPROBS: u64 = 1 << 5;
c_struct! {
    sized wcuda_engine_options {
        struct_size: u32,
        kv_type: i32,
        flags: u64,
        max_sequences: u32,
        max_batch_tokens: u32,
        max_batch_rows: u32,
        max_sequence_tokens: u32,
        kv_tokens: u64,
        max_logits_rows: u32,
        max_top_logprobs: u32,
        max_draft_tokens: u32,
        reserved: u32,
        draft_head: wcuda_model,
        target: wcuda_engine,
    }
}

c_struct! {
    sized wcuda_plan {
        struct_size: u32,
        fits: i32,
        weights_bytes: u64,
        kv_bytes: u64,
        scratch_bytes: u64,
        total_bytes: u64,
        staging_bytes: u64,
        available_bytes: u64,
        kv_page_bytes: u64,
        kv_page_count: u64,
        loading_bytes: u64,
        graph_bytes: u64,
    }
}

unsafe extern "C" {
    pub fn wcuda_plan_get(
        context: wcuda_context,
        gguf: wcuda_gguf,
        options: *const wcuda_engine_options,
        plan: *mut wcuda_plan,
        error: *mut wcuda_error,
    ) -> wcuda_status;
}

c_struct! {
    sized wcuda_step_shape {
        struct_size: u32,
        row_count: u32,
        row_tokens: u32,
        context_tokens: u32,
    }
}

c_struct! {
    sized wcuda_step_rates {
        struct_size: u32,
        is_measured: i32,
        bytes_per_second: u64,
        flops_per_second: u64,
    }
}

c_struct! {
    sized wcuda_step_node {
        struct_size: u32,
        layer: u32,
        fused_count: u32,
        reserved: u32,
        operation: *const c_char,
        kernel: *const c_char,
        input: *const c_char,
        output: *const c_char,
        bytes: u64,
        flops: u64,
        limit_ns: f64,
        measured_ns: f64,
    }
}

unsafe extern "C" {
    pub fn wcuda_plan_steps_list(
        context: wcuda_context,
        gguf: wcuda_gguf,
        options: *const wcuda_engine_options,
        shape: *const wcuda_step_shape,
        device: wcuda_string,
        rates: *mut wcuda_step_rates,
        first: u64,
        nodes: *mut wcuda_step_node,
        capacity: u64,
        count: *mut u64,
        error: *mut wcuda_error,
    ) -> wcuda_status;
}

// ---- 10. Models ----

c_struct! {
    wcuda_cancel {
        id: u64,
    }
}

unsafe extern "C" {
    pub fn wcuda_cancel_create(cancel: *mut wcuda_cancel, error: *mut wcuda_error) -> wcuda_status;
    pub fn wcuda_cancel_destroy(cancel: wcuda_cancel);
    pub fn wcuda_cancel_trigger(cancel: wcuda_cancel, error: *mut wcuda_error) -> wcuda_status;
}

pub const WCUDA_LOAD_PLAN: i32 = 1;
pub const WCUDA_LOAD_RESERVE: i32 = 2;
pub const WCUDA_LOAD_UPLOAD: i32 = 3;
pub const WCUDA_LOAD_SEAL: i32 = 4;
pub const WCUDA_LOAD_DONE: i32 = 5;
pub type wcuda_progress_callback = Option<
    unsafe extern "C" fn(user: *mut c_void, phase: i32, done_bytes: u64, total_bytes: u64) -> i32,
>;

c_struct! {
    sized wcuda_model_options {
        struct_size: u32,
        reserved: u32,
        flags: u64,
        progress: wcuda_progress_callback,
        progress_user: *mut c_void,
        cancel: wcuda_cancel,
        target: wcuda_model,
    }
}

unsafe extern "C" {
    pub fn wcuda_model_load(
        context: wcuda_context,
        gguf: wcuda_gguf,
        options: *const wcuda_model_options,
        model: *mut wcuda_model,
        error: *mut wcuda_error,
    ) -> wcuda_status;
    pub fn wcuda_model_unload(model: wcuda_model);
}

c_struct! {
    sized wcuda_model_info {
        struct_size: u32,
        layer_count: u32,
        architecture: [c_char; 64],
        parameter_count: u64,
        weights_bytes: u64,
        vocabulary_size: u32,
        embedding_length: u32,
        feed_forward_length: u32,
        head_count: u32,
        kv_head_count: u32,
        head_length: u32,
        context_length: u32,
        sliding_window: u32,
        rope_frequency_base: f32,
        reserved: u32,
    }
}

unsafe extern "C" {
    pub fn wcuda_model_info_get(
        model: wcuda_model,
        info: *mut wcuda_model_info,
        error: *mut wcuda_error,
    ) -> wcuda_status;
}

c_struct! {
    sized wcuda_tensor_digests {
        struct_size: u32,
        reserved: u32,
        file: [u8; 32],
        resident: [u8; 32],
    }
}

unsafe extern "C" {
    pub fn wcuda_model_tensor_digests_get(
        model: wcuda_model,
        index: u64,
        digests: *mut wcuda_tensor_digests,
        error: *mut wcuda_error,
    ) -> wcuda_status;
    pub fn wcuda_model_verify(model: wcuda_model, error: *mut wcuda_error) -> wcuda_status;
}

// ---- 11. Engine and sequences ----

unsafe extern "C" {
    pub fn wcuda_engine_create(
        model: wcuda_model,
        options: *const wcuda_engine_options,
        engine: *mut wcuda_engine,
        error: *mut wcuda_error,
    ) -> wcuda_status;
    pub fn wcuda_engine_destroy(engine: wcuda_engine);
}

c_struct! {
    sized wcuda_engine_info {
        struct_size: u32,
        kv_type: i32,
        flags: u64,
        max_sequences: u32,
        max_batch_tokens: u32,
        max_batch_rows: u32,
        max_sequence_tokens: u32,
        max_logits_rows: u32,
        max_top_logprobs: u32,
        sequence_count: u32,
        steps_in_flight: u32,
        kv_page_count: u64,
        kv_free_page_count: u64,
        kv_bytes: u64,
        scratch_bytes: u64,
        kv_cached_page_count: u64,
        kv_held_page_count: u64,
        kv_token_bytes: u64,
        max_draft_tokens: u32,
        reserved: u32,
    }
}

unsafe extern "C" {
    pub fn wcuda_engine_info_get(
        engine: wcuda_engine,
        info: *mut wcuda_engine_info,
        error: *mut wcuda_error,
    ) -> wcuda_status;
    pub fn wcuda_engine_warm_up(engine: wcuda_engine, error: *mut wcuda_error) -> wcuda_status;
}

c_struct! {
    wcuda_sequence {
        id: u64,
    }
}

unsafe extern "C" {
    pub fn wcuda_sequence_create(
        engine: wcuda_engine,
        sequence: *mut wcuda_sequence,
        error: *mut wcuda_error,
    ) -> wcuda_status;
    pub fn wcuda_sequence_fork(
        sequence: wcuda_sequence,
        fork: *mut wcuda_sequence,
        error: *mut wcuda_error,
    ) -> wcuda_status;
    pub fn wcuda_sequence_truncate(
        sequence: wcuda_sequence,
        length: u32,
        error: *mut wcuda_error,
    ) -> wcuda_status;
    pub fn wcuda_sequence_destroy(sequence: wcuda_sequence);
    pub fn wcuda_sequence_length_get(
        sequence: wcuda_sequence,
        length: *mut u32,
        error: *mut wcuda_error,
    ) -> wcuda_status;
    pub fn wcuda_sequence_tokens_get(
        sequence: wcuda_sequence,
        first: u32,
        count: u32,
        tokens: *mut i32,
        error: *mut wcuda_error,
    ) -> wcuda_status;
}

c_struct! {
    wcuda_page_key {
        bytes: [u8; 32],
    }
}

unsafe extern "C" {
    pub fn wcuda_sequence_publish(
        sequence: wcuda_sequence,
        first_page: u32,
        keys: *const wcuda_page_key,
        count: u32,
        error: *mut wcuda_error,
    ) -> wcuda_status;
    pub fn wcuda_sequence_attach(
        sequence: wcuda_sequence,
        tokens: *const i32,
        token_count: u32,
        keys: *const wcuda_page_key,
        key_count: u32,
        attached: *mut u32,
        error: *mut wcuda_error,
    ) -> wcuda_status;
    pub fn wcuda_sequence_save(
        sequence: wcuda_sequence,
        pinned: wcuda_pinned,
        offset: u64,
        done: wcuda_event,
        error: *mut wcuda_error,
    ) -> wcuda_status;
    pub fn wcuda_sequence_restore(
        sequence: wcuda_sequence,
        tokens: *const i32,
        token_count: u32,
        pinned: wcuda_pinned,
        offset: u64,
        done: wcuda_event,
        error: *mut wcuda_error,
    ) -> wcuda_status;
}

// ---- 12. Steps ----

pub const WCUDA_ROW_OK: i32 = 0;
pub const WCUDA_ROW_HELD: i32 = 1;
pub const WCUDA_ROW_EMPTY_MASK: i32 = 2;
pub const WCUDA_ROW_NOT_FINITE: i32 = 3;
pub const WCUDA_ROW_SKIPPED: i32 = 4;
pub const WCUDA_SAMPLING_RAW_LOGPROBS: u64 = 1 << 0;
pub const WCUDA_SAMPLING_NO_LOGPROB: u64 = 1 << 1;
c_struct! {
    sized wcuda_sampling {
        struct_size: u32,
        top_k: u32,
        seed: u64,
        temperature: f32,
        top_p: f32,
        min_p: f32,
        typical_p: f32,
        repetition_penalty: f32,
        frequency_penalty: f32,
        presence_penalty: f32,
        penalty_last_n: u32,
        penalty_from: u32,
        top_logprobs: u32,
        bias_count: u64,
        bias_tokens: *const i32,
        bias_values: *const f32,
        mask: *const u32,
        mask_words: u64,
        flags: u64,
    }
}

pub const WCUDA_ROW_FEED_SAMPLED: u32 = 1 << 0;
pub const WCUDA_ROW_SAMPLE: u32 = 1 << 1;
pub const WCUDA_ROW_LOGITS_LAST: u32 = 1 << 2;
pub const WCUDA_ROW_LOGITS_ALL: u32 = 1 << 3;
pub const WCUDA_ROW_SAMPLE_LATE: u32 = 1 << 4;
pub const WCUDA_ROW_HIDDEN_LAST: u32 = 1 << 6;
pub const WCUDA_ROW_HIDDEN_FIRST: u32 = 1 << 7;
pub const WCUDA_ROW_HIDDEN_SUM: u32 = 1 << 8;
pub const WCUDA_ROW_TOKEN_LOGPROBS: u32 = 1 << 9;
pub const WCUDA_ROW_DRAFT_TOKENS_MAX: u32 = 15;
c_struct! {
    sized wcuda_row {
        struct_size: u32,
        flags: u32,
        sequence: wcuda_sequence,
        tokens: *const i32,
        sampling: *const wcuda_sampling,
        token_count: u32,
        reserved: u32,
        draft_tokens: *const i32,
        stop_tokens: *const i32,
        draft_count: u32,
        stop_count: u32,
        next_token: i32,
        token_top_logprobs: u32,
        features: wcuda_sequence,
    }
}

c_struct! {
    sized wcuda_step {
        struct_size: u32,
        row_count: u32,
        rows: *const wcuda_row,
        flags: u64,
    }
}

unsafe extern "C" {
    pub fn wcuda_step_submit(
        engine: wcuda_engine,
        step: *const wcuda_step,
        ticket: *mut u64,
        error: *mut wcuda_error,
    ) -> wcuda_status;
}

c_struct! {
    sized wcuda_late_row {
        struct_size: u32,
        is_held: i32,
        mask: *const u32,
        mask_words: u64,
    }
}

unsafe extern "C" {
    pub fn wcuda_step_sample(
        engine: wcuda_engine,
        ticket: u64,
        rows: *const wcuda_late_row,
        row_count: u64,
        error: *mut wcuda_error,
    ) -> wcuda_status;
}

c_struct! {
    sized wcuda_row_result {
        struct_size: u32,
        status: i32,
        token: i32,
        first_position: u32,
        token_count: u32,
        logprob: f32,
        top_offset: u64,
        logits_offset: u64,
        top_count: u32,
        logits_count: u32,
        hidden_states_offset: u64,
        hidden_states_count: u32,
        reserved: u32,
        sampled_offset: u64,
        sampled_count: u64,
        token_logprobs_offset: u64,
        token_logprobs_count: u32,
        token_top_count: u32,
        token_top_offset: u64,
    }
}

c_struct! {
    sized wcuda_step_output {
        struct_size: u32,
        row_capacity: u32,
        rows: *mut wcuda_row_result,
        top_capacity: u64,
        top_tokens: *mut i32,
        top_logprobs: *mut f32,
        logits_capacity: u64,
        logits: *mut f32,
        row_count: u64,
        device_ns: u64,
        captured: i32,
        reserved: u32,
        hidden_states_capacity: u64,
        hidden_states: *mut f32,
        sampled_capacity: u64,
        sampled_tokens: *mut i32,
        sampled_logprobs: *mut f32,
        sampled_top_counts: *mut u32,
        token_logprobs_capacity: u64,
        token_logprobs: *mut f32,
        token_top_capacity: u64,
        token_top_tokens: *mut i32,
        token_top_logprobs: *mut f32,
    }
}

unsafe extern "C" {
    pub fn wcuda_step_wait(
        engine: wcuda_engine,
        ticket: u64,
        timeout_ms: i64,
        output: *mut wcuda_step_output,
        error: *mut wcuda_error,
    ) -> wcuda_status;
    pub fn wcuda_engine_profile_set(
        engine: wcuda_engine,
        is_on: i32,
        error: *mut wcuda_error,
    ) -> wcuda_status;
    pub fn wcuda_engine_profile_list(
        engine: wcuda_engine,
        rates: *mut wcuda_step_rates,
        first: u64,
        nodes: *mut wcuda_step_node,
        capacity: u64,
        count: *mut u64,
        error: *mut wcuda_error,
    ) -> wcuda_status;
    pub fn wcuda_engine_drain(engine: wcuda_engine, error: *mut wcuda_error) -> wcuda_status;
}
