//! Contexts, ledger, buffers (sections 5 to 7).

use super::*;

pub(super) fn push_layout(rows: &mut Vec<LayoutRow>) {
    wcuda_context::push_layout(rows);
    wcuda_context_options::push_layout(rows);
    wcuda_context_info::push_layout(rows);
    wcuda_memory_info::push_layout(rows);
    wcuda_ledger_entry::push_layout(rows);
    wcuda_buffer::push_layout(rows);
    wcuda_buffer_options::push_layout(rows);
    wcuda_pinned::push_layout(rows);
}

// ---- 5. Context: one device, its memory accounted for ----

c_struct! {
    wcuda_context {
        id: u64,
    }
}

c_struct! {
    sized wcuda_context_options {
        struct_size: u32,
        abi_version: u32,
        backend: i32,
        ordinal: i32,
        flags: u64,
        memory_budget: u64,
        host_thread_count: u32,
        reserved: u32,
        scrub: i32,
        reserved_2: u32,
    }
}

unsafe extern "C" {
    pub fn wcuda_context_create(
        options: *const wcuda_context_options,
        context: *mut wcuda_context,
        error: *mut wcuda_error,
    ) -> wcuda_status;
    pub fn wcuda_context_destroy(context: wcuda_context);
}

c_struct! {
    sized wcuda_context_info {
        struct_size: u32,
        backend: i32,
        ordinal: i32,
        host_thread_count: u32,
        fallback_reason: [c_char; 256],
    }
}

unsafe extern "C" {
    pub fn wcuda_context_info_get(
        context: wcuda_context,
        info: *mut wcuda_context_info,
        error: *mut wcuda_error,
    ) -> wcuda_status;
    pub fn wcuda_context_synchronize(
        context: wcuda_context,
        error: *mut wcuda_error,
    ) -> wcuda_status;
}

// ---- 6. Ledger: who holds which bytes ----

pub const WCUDA_PURPOSE_ANY: i32 = 0;
pub const WCUDA_PURPOSE_WEIGHTS: i32 = 1;
pub const WCUDA_PURPOSE_KV: i32 = 2;
pub const WCUDA_PURPOSE_SCRATCH: i32 = 3;
pub const WCUDA_PURPOSE_MODULE: i32 = 4;
pub const WCUDA_PURPOSE_STAGING: i32 = 5;
pub const WCUDA_PURPOSE_USER: i32 = 6;
pub const WCUDA_PURPOSE_BORROWED: i32 = 7;

c_struct! {
    sized wcuda_memory_info {
        struct_size: u32,
        purpose: i32,
        current_bytes: u64,
        peak_bytes: u64,
        allocation_count: u64,
        total_allocation_count: u64,
        budget_bytes: u64,
        device_free_bytes: u64,
        device_total_bytes: u64,
        purpose_budget_bytes: u64,
    }
}

unsafe extern "C" {
    pub fn wcuda_context_memory_get(
        context: wcuda_context,
        purpose: i32,
        info: *mut wcuda_memory_info,
        error: *mut wcuda_error,
    ) -> wcuda_status;
}

c_struct! {
    wcuda_ledger_entry {
        bytes: u64,
        sequence_number: u64,
        purpose: i32,
        tag_bytes: u32,
        tag: [c_char; 64],
    }
}

unsafe extern "C" {
    pub fn wcuda_context_ledger_list(
        context: wcuda_context,
        entries: *mut wcuda_ledger_entry,
        capacity: u64,
        count: *mut u64,
        error: *mut wcuda_error,
    ) -> wcuda_status;
}

// ---- 7. Buffers: checked device memory ----

c_struct! {
    wcuda_buffer {
        id: u64,
    }
}

pub const WCUDA_BUFFER_ZEROED: u32 = 1 << 0;

c_struct! {
    sized wcuda_buffer_options {
        struct_size: u32,
        purpose: i32,
        bytes: u64,
        tag: wcuda_string,
        flags: u32,
        reserved: u32,
    }
}

unsafe extern "C" {
    pub fn wcuda_buffer_create(
        context: wcuda_context,
        options: *const wcuda_buffer_options,
        buffer: *mut wcuda_buffer,
        error: *mut wcuda_error,
    ) -> wcuda_status;
    pub fn wcuda_buffer_destroy(buffer: wcuda_buffer);
    pub fn wcuda_buffer_size_get(
        buffer: wcuda_buffer,
        bytes: *mut u64,
        error: *mut wcuda_error,
    ) -> wcuda_status;
    pub fn wcuda_buffer_write(
        buffer: wcuda_buffer,
        offset: u64,
        source: *const c_void,
        bytes: u64,
        error: *mut wcuda_error,
    ) -> wcuda_status;
    pub fn wcuda_buffer_read(
        buffer: wcuda_buffer,
        offset: u64,
        target: *mut c_void,
        bytes: u64,
        error: *mut wcuda_error,
    ) -> wcuda_status;
    pub fn wcuda_buffer_copy(
        target: wcuda_buffer,
        target_offset: u64,
        source: wcuda_buffer,
        source_offset: u64,
        bytes: u64,
        error: *mut wcuda_error,
    ) -> wcuda_status;
    pub fn wcuda_buffer_fill(
        buffer: wcuda_buffer,
        offset: u64,
        bytes: u64,
        pattern: u64,
        pattern_bytes: u32,
        error: *mut wcuda_error,
    ) -> wcuda_status;
    pub fn wcuda_buffer_digest(
        buffer: wcuda_buffer,
        offset: u64,
        bytes: u64,
        digest: *mut u8,
        error: *mut wcuda_error,
    ) -> wcuda_status;
}

c_struct! {
    wcuda_pinned {
        id: u64,
    }
}

unsafe extern "C" {
    pub fn wcuda_pinned_create(
        context: wcuda_context,
        bytes: u64,
        pinned: *mut wcuda_pinned,
        error: *mut wcuda_error,
    ) -> wcuda_status;
    pub fn wcuda_pinned_destroy(pinned: wcuda_pinned);
    pub fn wcuda_pinned_data_get(
        pinned: wcuda_pinned,
        data: *mut *mut c_void,
        bytes: *mut u64,
        error: *mut wcuda_error,
    ) -> wcuda_status;
}
