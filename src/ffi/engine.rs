//! Engine, sequences, steps, health (sections 11 to 13).

use super::*;

pub(super) fn push_layout(rows: &mut Vec<LayoutRow>) {
    wcuda_engine::push_layout(rows);
    wcuda_engine_info::push_layout(rows);
    wcuda_sequence::push_layout(rows);
    wcuda_sampling::push_layout(rows);
    wcuda_row::push_layout(rows);
    wcuda_step::push_layout(rows);
    wcuda_row_result::push_layout(rows);
    wcuda_step_output::push_layout(rows);
    wcuda_health::push_layout(rows);
}

// ---- 11. Engine and sequences ----

c_struct! {
    wcuda_engine {
        id: u64,
    }
}

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
    }
}

unsafe extern "C" {
    pub fn wcuda_engine_info_get(
        engine: wcuda_engine,
        info: *mut wcuda_engine_info,
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
        nodes: *mut wcuda_step_node,
        capacity: u64,
        count: *mut u64,
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

// ---- 12. Steps ----

pub const WCUDA_ROW_OK: i32 = 0;
pub const WCUDA_ROW_EMPTY_MASK: i32 = 2;
pub const WCUDA_ROW_NOT_FINITE: i32 = 3;
pub const WCUDA_ROW_SKIPPED: i32 = 4;

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
    }
}

pub const WCUDA_ROW_FEED_SAMPLED: u32 = 1 << 0;
pub const WCUDA_ROW_SAMPLE: u32 = 1 << 1;
pub const WCUDA_ROW_LOGITS_LAST: u32 = 1 << 2;
pub const WCUDA_ROW_LOGITS_ALL: u32 = 1 << 3;

c_struct! {
    wcuda_row {
        sequence: wcuda_sequence,
        tokens: *const i32,
        token_count: u32,
        flags: u32,
        sampling: *const wcuda_sampling,
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
    wcuda_row_result {
        status: i32,
        token: i32,
        first_position: u32,
        token_count: u32,
        logprob: f32,
        top_count: u32,
        top_offset: u64,
        logits_offset: u64,
        logits_count: u32,
        reserved: u32,
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
    pub fn wcuda_engine_drain(engine: wcuda_engine, error: *mut wcuda_error) -> wcuda_status;
}

// ---- 13. Health ----

pub const WCUDA_HEALTH_OK: i32 = 0;
pub const WCUDA_HEALTH_DEGRADED: i32 = 1;
pub const WCUDA_HEALTH_LOST: i32 = 2;

c_struct! {
    sized wcuda_health {
        struct_size: u32,
        state: i32,
        sticky_code: i32,
        temperature_celsius: i32,
        ecc_error_count: i64,
        ledger_bytes: u64,
        peak_bytes: u64,
        staging_bytes: u64,
        allocation_count: u64,
        device_free_bytes: u64,
        device_total_bytes: u64,
        nonresident_count: u64,
        deferred_error_count: u64,
        duration_ns: u64,
        message: [c_char; 256],
        pool_used_bytes: u64,
        pool_reserved_bytes: u64,
        lost_bytes: u64,
        lost_count: u64,
    }
}

unsafe extern "C" {
    pub fn wcuda_health_get(
        context: wcuda_context,
        health: *mut wcuda_health,
        error: *mut wcuda_error,
    ) -> wcuda_status;
}
