//! Resident memory and digests by the MiB (sections 14 and 15).

use super::*;

pub(super) fn push_layout(rows: &mut Vec<LayoutRow>) {
    wcuda_residency::push_layout(rows);
}

// ---- 14. Resident memory: budgets by purpose, scrubbing, proof of where memory is, raw addresses ----

pub const WCUDA_SCRUB_NONE: i32 = 0;
pub const WCUDA_SCRUB_ON_FREE: i32 = 1;
pub const WCUDA_SCRUB_ON_ALLOC: i32 = 2;
pub const WCUDA_PLACE_DEVICE: i32 = 1;
pub const WCUDA_PLACE_OTHER_DEVICE: i32 = 2;
pub const WCUDA_PLACE_MANAGED: i32 = 3;
pub const WCUDA_PLACE_PINNED: i32 = 4;
pub const WCUDA_PLACE_MAPPED: i32 = 5;
pub const WCUDA_PLACE_HOST: i32 = 6;

c_struct! {
    sized wcuda_residency {
        struct_size: u32,
        first_place: i32,
        checked_count: u64,
        nonresident_count: u64,
        managed_count: u64,
        first: wcuda_ledger_entry,
    }
}

unsafe extern "C" {
    pub fn wcuda_context_budget_set(
        context: wcuda_context,
        purpose: i32,
        bytes: u64,
        error: *mut wcuda_error,
    ) -> wcuda_status;
    pub fn wcuda_device_check(backend: i32, ordinal: i32, error: *mut wcuda_error) -> wcuda_status;
    pub fn wcuda_context_residency_get(
        context: wcuda_context,
        residency: *mut wcuda_residency,
        error: *mut wcuda_error,
    ) -> wcuda_status;
    pub fn wcuda_context_vram_only_enforce(
        context: wcuda_context,
        error: *mut wcuda_error,
    ) -> wcuda_status;
    pub fn wcuda_context_vram_only_get(
        context: wcuda_context,
        is_enforced: *mut i32,
        error: *mut wcuda_error,
    ) -> wcuda_status;
    pub fn wcuda_buffer_borrow(
        context: wcuda_context,
        address: *mut c_void,
        options: *const wcuda_buffer_options,
        buffer: *mut wcuda_buffer,
        error: *mut wcuda_error,
    ) -> wcuda_status;
    pub fn wcuda_buffer_place_get(
        buffer: wcuda_buffer,
        place: *mut i32,
        error: *mut wcuda_error,
    ) -> wcuda_status;
    pub fn wcuda_buffer_address_get(
        buffer: wcuda_buffer,
        address: *mut *mut c_void,
        error: *mut wcuda_error,
    ) -> wcuda_status;
    pub fn wcuda_context_deferred_error_take(
        context: wcuda_context,
        deferred: *mut wcuda_error,
        error: *mut wcuda_error,
    ) -> wcuda_status;
}

unsafe extern "C" {
    pub fn wcuda_raw_device_set(
        backend: i32,
        ordinal: i32,
        error: *mut wcuda_error,
    ) -> wcuda_status;
    pub fn wcuda_raw_allocate(
        backend: i32,
        bytes: u64,
        address: *mut *mut c_void,
        error: *mut wcuda_error,
    ) -> wcuda_status;
    pub fn wcuda_raw_free(address: *mut c_void, error: *mut wcuda_error) -> wcuda_status;
    pub fn wcuda_raw_copy_to_device(
        target: *mut c_void,
        source: *const c_void,
        bytes: u64,
        error: *mut wcuda_error,
    ) -> wcuda_status;
    pub fn wcuda_raw_copy_to_host(
        target: *mut c_void,
        source: *const c_void,
        bytes: u64,
        error: *mut wcuda_error,
    ) -> wcuda_status;
    pub fn wcuda_raw_memory_get(
        backend: i32,
        free_bytes: *mut u64,
        total_bytes: *mut u64,
        error: *mut wcuda_error,
    ) -> wcuda_status;
    pub fn wcuda_raw_reset(backend: i32, error: *mut wcuda_error) -> wcuda_status;
}

// ---- 15. Digests by the MiB: which part of memory is not what it was ----

pub const WCUDA_DIGEST_PIECE_BYTES: u64 = 1 << 20;

unsafe extern "C" {
    pub fn wcuda_buffer_digest_pieces(
        buffer: wcuda_buffer,
        offset: u64,
        bytes: u64,
        first_piece: u64,
        pieces: *mut u8,
        piece_capacity: u64,
        error: *mut wcuda_error,
    ) -> wcuda_status;
    pub fn wcuda_digest_join(
        pieces: *const u8,
        piece_count: u64,
        digest: *mut u8,
        error: *mut wcuda_error,
    ) -> wcuda_status;
}
