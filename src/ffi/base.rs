//! Sections 1 to 7, 13 to 15 and 17: `worker_cuda/base.h`.

use super::*;

pub(super) fn push_layout(rows: &mut Vec<LayoutRow>) {
    wcuda_error::push_layout(rows);
    wcuda_string::push_layout(rows);
    wcuda_build_info::push_layout(rows);
    wcuda_abi_field::push_layout(rows);
    wcuda_device_caps::push_layout(rows);
    wcuda_context::push_layout(rows);
    wcuda_context_options::push_layout(rows);
    wcuda_context_info::push_layout(rows);
    wcuda_memory_info::push_layout(rows);
    wcuda_ledger_entry::push_layout(rows);
    wcuda_buffer::push_layout(rows);
    wcuda_buffer_options::push_layout(rows);
    wcuda_pinned::push_layout(rows);
    wcuda_health::push_layout(rows);
    wcuda_residency::push_layout(rows);
    wcuda_stream::push_layout(rows);
    wcuda_event::push_layout(rows);
}

// ---- 1. Status and error ----

pub type wcuda_status = i32;

pub const WCUDA_OK: i32 = 0;
pub const WCUDA_INVALID_ARGUMENT: i32 = 1001;
pub const WCUDA_INVALID_HANDLE: i32 = 1002;
pub const WCUDA_INVALID_STATE: i32 = 1003;
pub const WCUDA_OUT_OF_RANGE: i32 = 1004;
pub const WCUDA_BUFFER_TOO_SMALL: i32 = 1005;
pub const WCUDA_REENTRANT: i32 = 1006;
pub const WCUDA_BUSY: i32 = 1007;
pub const WCUDA_ABI_MISMATCH: i32 = 1008;
pub const WCUDA_NOT_FOUND: i32 = 1009;
pub const WCUDA_INVALID_CONFIG: i32 = 1010;
pub const WCUDA_ARGUMENT_COUNT: i32 = 1011;
pub const WCUDA_NOT_AVAILABLE: i32 = 2001;
pub const WCUDA_NO_DEVICE: i32 = 2002;
pub const WCUDA_IO: i32 = 2003;
pub const WCUDA_CANCELLED: i32 = 2004;
pub const WCUDA_TIMEOUT: i32 = 2005;
pub const WCUDA_OUT_OF_MEMORY: i32 = 3001;
pub const WCUDA_OUT_OF_HOST_MEMORY: i32 = 3002;
pub const WCUDA_OVER_BUDGET: i32 = 3003;
pub const WCUDA_QUEUE_FULL: i32 = 3004;
pub const WCUDA_OUT_OF_PAGES: i32 = 3005;
pub const WCUDA_LIMIT_EXCEEDED: i32 = 3006;
pub const WCUDA_MALFORMED: i32 = 4001;
pub const WCUDA_UNSUPPORTED: i32 = 4002;
pub const WCUDA_INTEGRITY: i32 = 4003;
pub const WCUDA_COMPILE_FAILED: i32 = 4010;
pub const WCUDA_UNSUPPORTED_KERNEL: i32 = 4011;
pub const WCUDA_DEVICE_ERROR: i32 = 5001;
pub const WCUDA_DEVICE_LOST: i32 = 5002;
pub const WCUDA_NOT_RESIDENT: i32 = 5003;
pub const WCUDA_LAUNCH_FAILED: i32 = 5010;
pub const WCUDA_INTERNAL: i32 = 9001;
pub const WCUDA_ERROR_MESSAGE_BYTES: usize = 500;
c_struct! {
    wcuda_error {
        code: wcuda_status,
        native_code: i32,
        message_bytes: u32,
        message: [c_char; 500],
    }
}

unsafe extern "C" {
    pub fn wcuda_status_name(status: wcuda_status) -> *const c_char;
}

pub const WCUDA_NUMBERS_WORKER: i32 = 1;
pub const WCUDA_NUMBERS_VRAM: i32 = 2;
pub const WCUDA_NUMBERS_ZCTL: i32 = 3;
unsafe extern "C" {
    pub fn wcuda_status_number(status: wcuda_status, numbers: i32) -> i32;
}

c_struct! {
    wcuda_string {
        data: *const c_char,
        bytes: u64,
    }
}

// ---- 2. Version and build ----

pub const WCUDA_VERSION_MAJOR: u32 = 0;
pub const WCUDA_VERSION_MINOR: u32 = 1;
pub const WCUDA_VERSION_PATCH: u32 = 0;
pub const WCUDA_ABI_VERSION: u32 = 1;
unsafe extern "C" {
    pub fn wcuda_version_number() -> u32;
    pub fn wcuda_version_string() -> *const c_char;
    pub fn wcuda_abi_version() -> u32;
}

c_struct! {
    sized wcuda_build_info {
        struct_size: u32,
        has_cuda: i32,
        cuda_version: u32,
        reserved: u32,
        cuda_architectures: *const c_char,
        compiler: *const c_char,
        build_type: *const c_char,
        host_features: *const c_char,
    }
}

unsafe extern "C" {
    pub fn wcuda_build_info_get(
        info: *mut wcuda_build_info,
        error: *mut wcuda_error,
    ) -> wcuda_status;
}

c_struct! {
    sized wcuda_abi_field {
        struct_size: u32,
        offset: u32,
        bytes: u32,
        alignment: u32,
        struct_name: *const c_char,
        field_name: *const c_char,
    }
}

unsafe extern "C" {
    pub fn wcuda_abi_field_list(
        first: u64,
        fields: *mut wcuda_abi_field,
        capacity: u64,
        count: *mut u64,
        error: *mut wcuda_error,
    ) -> wcuda_status;
}

// ---- 3. Log ----

pub const WCUDA_LOG_ERROR: i32 = 1;
pub const WCUDA_LOG_WARN: i32 = 2;
pub const WCUDA_LOG_INFO: i32 = 3;
pub const WCUDA_LOG_DEBUG: i32 = 4;
pub const WCUDA_LOG_TRACE: i32 = 5;
pub type wcuda_log_callback = Option<
    unsafe extern "C" fn(
        user: *mut c_void,
        level: i32,
        target: wcuda_string,
        message: wcuda_string,
    ),
>;

unsafe extern "C" {
    pub fn wcuda_log_set(
        callback: wcuda_log_callback,
        user: *mut c_void,
        level: i32,
        error: *mut wcuda_error,
    ) -> wcuda_status;
}

// ---- 4. Devices ----

pub const WCUDA_BACKEND_AUTO: i32 = 0;
pub const WCUDA_BACKEND_CUDA: i32 = 1;
pub const WCUDA_BACKEND_HOST: i32 = 2;
c_struct! {
    sized wcuda_device_caps {
        struct_size: u32,
        backend: i32,
        ordinal: i32,
        name_bytes: u32,
        name: [c_char; 256],
        uuid: [u8; 16],
        pci_bus_id: [c_char; 16],
        total_memory: u64,
        compute_capability_major: i32,
        compute_capability_minor: i32,
        driver_version: i32,
        runtime_version: i32,
        multiprocessor_count: i32,
        warp_size: i32,
        max_threads_per_block: i32,
        max_threads_per_multiprocessor: i32,
        max_block_dims: [i32; 3],
        max_grid_dims: [i32; 3],
        shared_memory_per_block: u64,
        shared_memory_per_block_optin: u64,
        shared_memory_per_multiprocessor: u64,
        registers_per_block: i32,
        l2_cache_bytes: i32,
        memory_clock_khz: i32,
        memory_bus_bits: i32,
        memory_bandwidth: u64,
        async_engine_count: i32,
        supports_fp16: i32,
        supports_bf16: i32,
        supports_tf32: i32,
        supports_fp8: i32,
        supports_fp64: i32,
        supports_int8: i32,
        supports_tensor_cores: i32,
        supports_int8_tensor_cores: i32,
        supports_async_copy: i32,
        supports_cooperative_groups: i32,
        supports_dynamic_parallelism: i32,
        supports_unified_addressing: i32,
        supports_managed_memory: i32,
        supports_concurrent_managed_access: i32,
        is_integrated: i32,
        ecc_enabled: i32,
        unified_memory: i32,
        supports_atomics: i32,
        supports_mesh_shaders: i32,
        supports_ray_tracing: i32,
        has_neural_engine: i32,
        supports_mps: i32,
        metal_gpu_family: i32,
        reserved: u32,
        architecture_name_bytes: u32,
        architecture_name: [c_char; 64],
    }
}

unsafe extern "C" {
    pub fn wcuda_device_count(
        backend: i32,
        count: *mut i32,
        error: *mut wcuda_error,
    ) -> wcuda_status;
    pub fn wcuda_device_caps_get(
        backend: i32,
        ordinal: i32,
        caps: *mut wcuda_device_caps,
        error: *mut wcuda_error,
    ) -> wcuda_status;
}

// ---- 5. Context: one device, with all its memory accounted for ----

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
        scrub: i32,
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
    sized wcuda_ledger_entry {
        struct_size: u32,
        purpose: i32,
        bytes: u64,
        sequence_number: u64,
        tag_bytes: u32,
        reserved: u32,
        tag: [c_char; 64],
    }
}

unsafe extern "C" {
    pub fn wcuda_context_ledger_list(
        context: wcuda_context,
        first: u64,
        entries: *mut wcuda_ledger_entry,
        capacity: u64,
        count: *mut u64,
        error: *mut wcuda_error,
    ) -> wcuda_status;
}

// ---- 7. Buffers: bounds-checked device memory ----

c_struct! {
    wcuda_buffer {
        id: u64,
    }
}

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

pub const WCUDA_BUFFER_ZEROED: u32 = 1 << 0;
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
        pool_used_bytes: u64,
        pool_reserved_bytes: u64,
        lost_bytes: u64,
        lost_count: u64,
        message: [c_char; 256],
    }
}

unsafe extern "C" {
    pub fn wcuda_health_get(
        context: wcuda_context,
        health: *mut wcuda_health,
        error: *mut wcuda_error,
    ) -> wcuda_status;
}

// ---- 14. Resident memory: budgets by purpose, scrubbing, proof of residency, raw addresses ----

pub const WCUDA_SCRUB_NONE: i32 = 0;
pub const WCUDA_SCRUB_ON_FREE: i32 = 1;
pub const WCUDA_SCRUB_ON_ALLOC: i32 = 2;
unsafe extern "C" {
    pub fn wcuda_context_budget_set(
        context: wcuda_context,
        purpose: i32,
        bytes: u64,
        error: *mut wcuda_error,
    ) -> wcuda_status;
    pub fn wcuda_device_check(backend: i32, ordinal: i32, error: *mut wcuda_error) -> wcuda_status;
}

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
        first_bytes: u64,
        first_sequence_number: u64,
        first_purpose: i32,
        first_tag_bytes: u32,
        first_tag: [c_char; 64],
    }
}

unsafe extern "C" {
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

// ---- 15. Digests by the MiB: find the part of memory that changed ----

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

// ---- 17. Streams, events, asynchronous copies ----

c_struct! {
    wcuda_stream {
        id: u64,
    }
}

unsafe extern "C" {
    pub fn wcuda_stream_create(
        context: wcuda_context,
        priority: i32,
        stream: *mut wcuda_stream,
        error: *mut wcuda_error,
    ) -> wcuda_status;
    pub fn wcuda_stream_destroy(stream: wcuda_stream);
    pub fn wcuda_stream_synchronize(stream: wcuda_stream, error: *mut wcuda_error) -> wcuda_status;
    pub fn wcuda_stream_native_get(
        context: wcuda_context,
        stream: wcuda_stream,
        native: *mut *mut c_void,
        error: *mut wcuda_error,
    ) -> wcuda_status;
    pub fn wcuda_stream_borrow(
        context: wcuda_context,
        native: *mut c_void,
        stream: *mut wcuda_stream,
        error: *mut wcuda_error,
    ) -> wcuda_status;
}

c_struct! {
    wcuda_event {
        id: u64,
    }
}

unsafe extern "C" {
    pub fn wcuda_event_create(
        context: wcuda_context,
        event: *mut wcuda_event,
        error: *mut wcuda_error,
    ) -> wcuda_status;
    pub fn wcuda_event_destroy(event: wcuda_event);
    pub fn wcuda_event_record(
        event: wcuda_event,
        stream: wcuda_stream,
        error: *mut wcuda_error,
    ) -> wcuda_status;
    pub fn wcuda_event_order(
        event: wcuda_event,
        stream: wcuda_stream,
        error: *mut wcuda_error,
    ) -> wcuda_status;
    pub fn wcuda_event_wait(
        event: wcuda_event,
        timeout_ms: i64,
        error: *mut wcuda_error,
    ) -> wcuda_status;
    pub fn wcuda_event_done_get(
        event: wcuda_event,
        done: *mut i32,
        error: *mut wcuda_error,
    ) -> wcuda_status;
    pub fn wcuda_event_elapsed_get(
        start: wcuda_event,
        end: wcuda_event,
        milliseconds: *mut f64,
        error: *mut wcuda_error,
    ) -> wcuda_status;
    pub fn wcuda_buffer_write_async(
        buffer: wcuda_buffer,
        offset: u64,
        source: wcuda_pinned,
        source_offset: u64,
        bytes: u64,
        stream: wcuda_stream,
        error: *mut wcuda_error,
    ) -> wcuda_status;
    pub fn wcuda_buffer_read_async(
        buffer: wcuda_buffer,
        offset: u64,
        target: wcuda_pinned,
        target_offset: u64,
        bytes: u64,
        stream: wcuda_stream,
        error: *mut wcuda_error,
    ) -> wcuda_status;
}
