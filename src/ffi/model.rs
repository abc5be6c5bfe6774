//! Plan and models (sections 9 and 10).

use super::*;

pub(super) fn push_layout(rows: &mut Vec<LayoutRow>) {
    wcuda_engine_options::push_layout(rows);
    wcuda_plan::push_layout(rows);
    wcuda_step_shape::push_layout(rows);
    wcuda_step_rates::push_layout(rows);
    wcuda_step_node::push_layout(rows);
    wcuda_cancel::push_layout(rows);
    wcuda_model::push_layout(rows);
    wcuda_model_options::push_layout(rows);
    wcuda_model_info::push_layout(rows);
    wcuda_tensor_digests::push_layout(rows);
}

// ---- 9. Engine options and plan: what a model needs, before a byte is allocated ----

pub const WCUDA_KV_F16: i32 = 0;
pub const WCUDA_KV_Q8_0: i32 = 1;
pub const WCUDA_KV_FP8_E4M3: i32 = 2;
pub const WCUDA_KV_PAGE_TOKENS: u32 = 64;
pub const WCUDA_ENGINE_BATCH_INVARIANT: u64 = 1 << 0;
pub const WCUDA_ENGINE_POISON_FREE_PAGES: u64 = 1 << 1;
pub const WCUDA_ENGINE_PERSISTENT_LAYERS_ON: u64 = 1 << 2;
pub const WCUDA_ENGINE_PERSISTENT_LAYERS_OFF: u64 = 1 << 3;

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
    }
}

c_struct! {
    sized wcuda_plan {
        struct_size: u32,
        fits: i32,
        weights_bytes: u64,
        kv_bytes: u64,
        scratch_bytes: u64,
        graph_bytes: u64,
        total_bytes: u64,
        staging_bytes: u64,
        available_bytes: u64,
        kv_page_bytes: u64,
        kv_page_count: u64,
        loading_bytes: u64,
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

c_struct! {
    wcuda_model {
        id: u64,
    }
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
