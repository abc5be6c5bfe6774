//! Declarations of `worker_cuda.h`, by hand and in its order; the header is their manual.
//!
//! Not part of the crate's promises: use the safe types. Enumerations are integers here, because a
//! later archive may answer with values that this version does not know. `layout()` lists every
//! struct and field as Rust sees them, and a test compares that list with the archive's own.
#![allow(non_camel_case_types, missing_docs)]

use std::ffi::{c_char, c_void};

/// One row of the layout table: a struct as a whole (`field` empty), or one of its fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LayoutRow {
    pub structure: &'static str,
    pub field: &'static str,
    pub offset: usize,
    pub bytes: usize,
    pub alignment: usize,
}

/// Every `c_struct!` below must be listed here; the layout test finds the one that is not.
pub fn layout() -> Vec<LayoutRow> {
    let mut rows = Vec::new();
    wcuda_error::push_layout(&mut rows);
    wcuda_string::push_layout(&mut rows);
    wcuda_build_info::push_layout(&mut rows);
    wcuda_abi_field::push_layout(&mut rows);
    wcuda_device_caps::push_layout(&mut rows);
    wcuda_context::push_layout(&mut rows);
    wcuda_context_options::push_layout(&mut rows);
    wcuda_context_info::push_layout(&mut rows);
    wcuda_memory_info::push_layout(&mut rows);
    wcuda_ledger_entry::push_layout(&mut rows);
    wcuda_buffer::push_layout(&mut rows);
    wcuda_buffer_options::push_layout(&mut rows);
    wcuda_pinned::push_layout(&mut rows);
    wcuda_gguf::push_layout(&mut rows);
    wcuda_source::push_layout(&mut rows);
    wcuda_gguf_info::push_layout(&mut rows);
    wcuda_gguf_value::push_layout(&mut rows);
    wcuda_gguf_tensor::push_layout(&mut rows);
    wcuda_tensor_type_info::push_layout(&mut rows);
    wcuda_engine_options::push_layout(&mut rows);
    wcuda_plan::push_layout(&mut rows);
    wcuda_cancel::push_layout(&mut rows);
    wcuda_model::push_layout(&mut rows);
    wcuda_model_options::push_layout(&mut rows);
    wcuda_model_info::push_layout(&mut rows);
    wcuda_tensor_digests::push_layout(&mut rows);
    wcuda_engine::push_layout(&mut rows);
    wcuda_engine_info::push_layout(&mut rows);
    wcuda_sequence::push_layout(&mut rows);
    wcuda_sampling::push_layout(&mut rows);
    wcuda_row::push_layout(&mut rows);
    wcuda_step::push_layout(&mut rows);
    wcuda_row_result::push_layout(&mut rows);
    wcuda_step_output::push_layout(&mut rows);
    wcuda_health::push_layout(&mut rows);
    wcuda_residency::push_layout(&mut rows);
    wcuda_compute_kernel::push_layout(&mut rows);
    wcuda_kernel_cache::push_layout(&mut rows);
    wcuda_kernel_cache_stats::push_layout(&mut rows);
    wcuda_stream::push_layout(&mut rows);
    wcuda_event::push_layout(&mut rows);
    wcuda_module::push_layout(&mut rows);
    wcuda_kernel::push_layout(&mut rows);
    wcuda_parameter::push_layout(&mut rows);
    wcuda_launch::push_layout(&mut rows);
    wcuda_host_argument::push_layout(&mut rows);
    wcuda_kernel_options::push_layout(&mut rows);
    wcuda_kernel_info::push_layout(&mut rows);
    wcuda_occupancy::push_layout(&mut rows);
    wcuda_argument::push_layout(&mut rows);
    wcuda_program::push_layout(&mut rows);
    wcuda_program_header::push_layout(&mut rows);
    wcuda_program_options::push_layout(&mut rows);
    wcuda_program_info::push_layout(&mut rows);
    wcuda_compiler_info::push_layout(&mut rows);
    rows
}

/// A struct of the header with its layout rows. `sized` marks those that begin with `struct_size`;
/// their `init()` is the header's `…_INIT`: everything zero but the size.
macro_rules! c_struct {
    ($name:ident { $($field:ident: $type:ty,)* }) => {
        #[repr(C)]
        #[derive(Clone, Copy, Debug)]
        pub struct $name { $(pub $field: $type,)* }

        impl $name {
            /// All bytes zero.
            pub const fn zeroed() -> Self {
                // SAFETY: integers, floats, raw pointers, `Option<fn>` and arrays of them, for all
                // of which zero bytes are a value.
                unsafe { std::mem::zeroed() }
            }

            fn push_layout(rows: &mut Vec<LayoutRow>) {
                rows.push(LayoutRow {
                    structure: stringify!($name),
                    field: "",
                    offset: 0,
                    bytes: size_of::<$name>(),
                    alignment: align_of::<$name>(),
                });
                $(rows.push(LayoutRow {
                    structure: stringify!($name),
                    field: stringify!($field).trim_start_matches("r#"),
                    offset: std::mem::offset_of!($name, $field),
                    bytes: size_of::<$type>(),
                    alignment: align_of::<$type>(),
                });)*
            }
        }
    };
    (sized $name:ident { $($field:ident: $type:ty,)* }) => {
        c_struct! { $name { $($field: $type,)* } }

        impl $name {
            pub const fn init() -> Self {
                let mut value = Self::zeroed();
                value.struct_size = size_of::<Self>() as u32;
                value
            }
        }
    };
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
        message: [c_char; WCUDA_ERROR_MESSAGE_BYTES],
    }
}

unsafe extern "C" {
    pub fn wcuda_status_name(status: wcuda_status) -> *const c_char;
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
    wcuda_abi_field {
        struct_name: *const c_char,
        field_name: *const c_char,
        offset: u32,
        bytes: u32,
        alignment: u32,
        reserved: u32,
    }
}

unsafe extern "C" {
    pub fn wcuda_abi_field_count() -> u32;
    pub fn wcuda_abi_field_get(
        index: u32,
        field: *mut wcuda_abi_field,
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
pub const WCUDA_PURPOSE_ADOPTED: i32 = 7;

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
    pub fn wcuda_context_ledger_get(
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

c_struct! {
    sized wcuda_buffer_options {
        struct_size: u32,
        purpose: i32,
        bytes: u64,
        tag: wcuda_string,
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
    pub fn wcuda_gguf_destroy(gguf: wcuda_gguf);
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
    pub fn wcuda_gguf_value_at(
        gguf: wcuda_gguf,
        index: u64,
        value: *mut wcuda_gguf_value,
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
    pub fn wcuda_gguf_tensor_at(
        gguf: wcuda_gguf,
        index: u64,
        tensor: *mut wcuda_gguf_tensor,
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
        type_id: u32,
        info: *mut wcuda_tensor_type_info,
        error: *mut wcuda_error,
    ) -> wcuda_status;
}

// ---- 9. Engine options and plan: what a model needs, before a byte is allocated ----

pub const WCUDA_KV_F16: i32 = 0;
pub const WCUDA_KV_Q8_0: i32 = 1;
pub const WCUDA_KV_FP8_E4M3: i32 = 2;
pub const WCUDA_KV_PAGE_TOKENS: u32 = 64;
pub const WCUDA_ENGINE_BATCH_INVARIANT: u64 = 1 << 0;
pub const WCUDA_ENGINE_POISON_FREE_PAGES: u64 = 1 << 1;

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
    pub fn wcuda_model_destroy(model: wcuda_model);
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
    pub fn wcuda_buffer_adopt(
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

// ---- 16. Run-time kernels: compile ----

c_struct! {
    wcuda_program {
        id: u64,
    }
}

pub const WCUDA_CODE_PTX: i32 = 1;
pub const WCUDA_CODE_CUBIN: i32 = 2;
pub const WCUDA_CODE_FATBIN: i32 = 3;

c_struct! {
    wcuda_program_header {
        name: wcuda_string,
        text: wcuda_string,
    }
}

pub const WCUDA_CHOICE_ON: i32 = 1;
pub const WCUDA_CHOICE_OFF: i32 = 2;
pub const WCUDA_PROGRAM_FAST_MATH: u32 = 1 << 0;
pub const WCUDA_PROGRAM_LINE_INFO: u32 = 1 << 1;
pub const WCUDA_PROGRAM_DEBUG: u32 = 1 << 2;
pub const WCUDA_PROGRAM_RELOCATABLE: u32 = 1 << 3;
pub const WCUDA_PROGRAM_DEFAULT_DEVICE: u32 = 1 << 4;

c_struct! {
    sized wcuda_program_options {
        struct_size: u32,
        flags: u32,
        source: wcuda_string,
        name: wcuda_string,
        architecture: wcuda_string,
        context: wcuda_context,
        standard: wcuda_string,
        defines: *const wcuda_string,
        define_count: u64,
        headers: *const wcuda_program_header,
        header_count: u64,
        include_folders: *const wcuda_string,
        include_folder_count: u64,
        expressions: *const wcuda_string,
        expression_count: u64,
        extras: *const wcuda_string,
        extra_count: u64,
        flush_denormals: i32,
        precise_sqrt: i32,
        precise_division: i32,
        fuse_multiply_add: i32,
        max_registers: u32,
        reserved: u32,
        library_folder: wcuda_string,
        cache: wcuda_kernel_cache,
    }
}

unsafe extern "C" {
    pub fn wcuda_program_create(
        options: *const wcuda_program_options,
        program: *mut wcuda_program,
        error: *mut wcuda_error,
    ) -> wcuda_status;
    pub fn wcuda_program_destroy(program: wcuda_program);
    pub fn wcuda_program_compile(program: wcuda_program, error: *mut wcuda_error) -> wcuda_status;
}

pub const WCUDA_PROGRAM_NEW: i32 = 0;
pub const WCUDA_PROGRAM_COMPILED: i32 = 1;
pub const WCUDA_PROGRAM_FAILED: i32 = 2;

c_struct! {
    sized wcuda_program_info {
        struct_size: u32,
        state: i32,
        code_kind: i32,
        nvrtc_version: i32,
        code_bytes: u64,
        log_bytes: u64,
        compile_ns: u64,
        architecture: [c_char; 32],
        cache_result: i32,
        reserved: u32,
    }
}

unsafe extern "C" {
    pub fn wcuda_program_info_get(
        program: wcuda_program,
        info: *mut wcuda_program_info,
        error: *mut wcuda_error,
    ) -> wcuda_status;
    pub fn wcuda_program_log_get(
        program: wcuda_program,
        log: *mut wcuda_string,
        error: *mut wcuda_error,
    ) -> wcuda_status;
    pub fn wcuda_program_code_get(
        program: wcuda_program,
        code: *mut *const c_void,
        bytes: *mut u64,
        error: *mut wcuda_error,
    ) -> wcuda_status;
    pub fn wcuda_program_name_get(
        program: wcuda_program,
        expression: wcuda_string,
        name: *mut wcuda_string,
        error: *mut wcuda_error,
    ) -> wcuda_status;
}

c_struct! {
    sized wcuda_compiler_info {
        struct_size: u32,
        nvrtc_version: i32,
        architecture_count: u32,
        architectures: [i32; 61],
    }
}

unsafe extern "C" {
    pub fn wcuda_compiler_info_get(
        library_folder: wcuda_string,
        info: *mut wcuda_compiler_info,
        error: *mut wcuda_error,
    ) -> wcuda_status;
}

// ---- 17. Streams, events, copies that do not wait ----

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

// ---- 18. Run-time kernels: modules, kernels, launches ----

unsafe extern "C" {
    pub fn wcuda_code_kind_get(
        code: *const c_void,
        bytes: u64,
        kind: *mut i32,
        error: *mut wcuda_error,
    ) -> wcuda_status;
}

c_struct! {
    wcuda_module {
        id: u64,
    }
}

unsafe extern "C" {
    pub fn wcuda_module_load(
        context: wcuda_context,
        code: *const c_void,
        bytes: u64,
        module: *mut wcuda_module,
        error: *mut wcuda_error,
    ) -> wcuda_status;
    pub fn wcuda_module_load_program(
        context: wcuda_context,
        program: wcuda_program,
        module: *mut wcuda_module,
        error: *mut wcuda_error,
    ) -> wcuda_status;
    pub fn wcuda_module_destroy(module: wcuda_module);
    pub fn wcuda_module_global_get(
        module: wcuda_module,
        name: wcuda_string,
        buffer: *mut wcuda_buffer,
        error: *mut wcuda_error,
    ) -> wcuda_status;
}

c_struct! {
    wcuda_kernel {
        id: u64,
    }
}

pub const WCUDA_ARG_I8: i32 = 1;
pub const WCUDA_ARG_U8: i32 = 2;
pub const WCUDA_ARG_I16: i32 = 3;
pub const WCUDA_ARG_U16: i32 = 4;
pub const WCUDA_ARG_I32: i32 = 5;
pub const WCUDA_ARG_U32: i32 = 6;
pub const WCUDA_ARG_I64: i32 = 7;
pub const WCUDA_ARG_U64: i32 = 8;
pub const WCUDA_ARG_F16: i32 = 9;
pub const WCUDA_ARG_BF16: i32 = 10;
pub const WCUDA_ARG_F32: i32 = 11;
pub const WCUDA_ARG_F64: i32 = 12;
pub const WCUDA_ARG_BUFFER: i32 = 13;
pub const WCUDA_ARG_BYTES: i32 = 14;
pub const WCUDA_ACCESS_READ: i32 = 1;
pub const WCUDA_ACCESS_WRITE: i32 = 2;

c_struct! {
    wcuda_parameter {
        kind: i32,
        access: u32,
        min_bytes: u64,
        max_bytes: u64,
    }
}

c_struct! {
    sized wcuda_launch {
        struct_size: u32,
        flags: u32,
        grid: [u32; 3],
        block: [u32; 3],
        cluster: [u32; 3],
        shared_bytes: u32,
        stream: wcuda_stream,
    }
}

pub const WCUDA_LAUNCH_COOPERATIVE: u32 = 1 << 0;

c_struct! {
    wcuda_host_argument {
        kind: i32,
        reserved: u32,
        data: *mut c_void,
        bytes: u64,
    }
}

pub type wcuda_host_kernel = Option<
    unsafe extern "C" fn(
        user: *mut c_void,
        launch: *const wcuda_launch,
        arguments: *const wcuda_host_argument,
        argument_count: u64,
    ) -> i32,
>;

c_struct! {
    sized wcuda_kernel_options {
        struct_size: u32,
        has_signature: i32,
        name: wcuda_string,
        module: wcuda_module,
        host: wcuda_host_kernel,
        host_user: *mut c_void,
        parameters: *const wcuda_parameter,
        parameter_count: u64,
    }
}

unsafe extern "C" {
    pub fn wcuda_kernel_create(
        context: wcuda_context,
        options: *const wcuda_kernel_options,
        kernel: *mut wcuda_kernel,
        error: *mut wcuda_error,
    ) -> wcuda_status;
    pub fn wcuda_kernel_destroy(kernel: wcuda_kernel);
}

c_struct! {
    sized wcuda_kernel_info {
        struct_size: u32,
        has_device_code: i32,
        has_host_function: i32,
        parameter_count: u32,
        max_threads_per_block: u32,
        register_count: u32,
        static_shared_bytes: u64,
        dynamic_shared_bytes_max: u64,
        local_bytes: u64,
        constant_bytes: u64,
        required_cluster: [u32; 3],
        ptx_version: i32,
        binary_version: i32,
        name_bytes: u32,
        name: [c_char; 256],
    }
}

unsafe extern "C" {
    pub fn wcuda_kernel_info_get(
        kernel: wcuda_kernel,
        info: *mut wcuda_kernel_info,
        error: *mut wcuda_error,
    ) -> wcuda_status;
}

c_struct! {
    sized wcuda_occupancy {
        struct_size: u32,
        blocks_per_multiprocessor: u32,
        threads_per_multiprocessor: u32,
        best_block_threads: u32,
        share: f64,
    }
}

unsafe extern "C" {
    pub fn wcuda_kernel_occupancy_get(
        kernel: wcuda_kernel,
        block_threads: u32,
        shared_bytes: u64,
        occupancy: *mut wcuda_occupancy,
        error: *mut wcuda_error,
    ) -> wcuda_status;
}

c_struct! {
    wcuda_argument {
        kind: i32,
        access: u32,
        data: *const c_void,
        bytes: u64,
        buffer: wcuda_buffer,
        offset: u64,
    }
}

unsafe extern "C" {
    pub fn wcuda_kernel_launch(
        kernel: wcuda_kernel,
        launch: *const wcuda_launch,
        arguments: *const wcuda_argument,
        argument_count: u64,
        error: *mut wcuda_error,
    ) -> wcuda_status;
}

c_struct! {
    wcuda_kernel_cache {
        id: u64,
    }
}

unsafe extern "C" {
    pub fn wcuda_kernel_cache_open(
        folder: wcuda_string,
        max_bytes: u64,
        cache: *mut wcuda_kernel_cache,
        error: *mut wcuda_error,
    ) -> wcuda_status;
    pub fn wcuda_kernel_cache_destroy(cache: wcuda_kernel_cache);
}

c_struct! {
    sized wcuda_kernel_cache_stats {
        struct_size: u32,
        reserved: u32,
        hit_count: u64,
        miss_count: u64,
        damaged_count: u64,
        store_count: u64,
        store_failure_count: u64,
        evicted_count: u64,
        bypass_count: u64,
        entry_count: u64,
        entry_bytes: u64,
    }
}

unsafe extern "C" {
    pub fn wcuda_kernel_cache_stats_get(
        cache: wcuda_kernel_cache,
        stats: *mut wcuda_kernel_cache_stats,
        error: *mut wcuda_error,
    ) -> wcuda_status;
    pub fn wcuda_kernel_cache_clear(
        cache: wcuda_kernel_cache,
        error: *mut wcuda_error,
    ) -> wcuda_status;
}

pub const WCUDA_CACHE_NONE: i32 = 0;
pub const WCUDA_CACHE_HIT: i32 = 1;
pub const WCUDA_CACHE_MISS: i32 = 2;
pub const WCUDA_CACHE_BYPASSED: i32 = 3;

// ---- 19. Catalogue: ready kernels, on every backend ----

c_struct! {
    sized wcuda_compute_kernel {
        struct_size: u32,
        is_f32_only: i32,
        name: wcuda_string,
        signature: wcuda_string,
        parameter_count: u32,
        reserved: u32,
    }
}

unsafe extern "C" {
    pub fn wcuda_compute_kernel_count() -> u32;
    pub fn wcuda_compute_kernel_at(
        index: u32,
        kernel: *mut wcuda_compute_kernel,
        error: *mut wcuda_error,
    ) -> wcuda_status;
    pub fn wcuda_compute_run(
        context: wcuda_context,
        name: wcuda_string,
        r#type: i32,
        arguments: *const wcuda_argument,
        argument_count: u64,
        stream: wcuda_stream,
        error: *mut wcuda_error,
    ) -> wcuda_status;
}

// ---- worker_cuda_compat.h: text functions ----

pub const WCUDA_COMPAT_END: i32 = -1;
pub const WCUDA_COMPAT_FAILED: i32 = -2;

pub type wcuda_compat_encode = Option<
    unsafe extern "C" fn(
        user: *mut c_void,
        model_path: *const c_char,
        text: *const c_char,
        tokens: *mut i32,
        capacity: u32,
    ) -> i32,
>;
pub type wcuda_compat_decode = Option<
    unsafe extern "C" fn(
        user: *mut c_void,
        model_path: *const c_char,
        token: i32,
        bytes: *mut c_char,
        capacity: u32,
    ) -> i32,
>;

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct wcuda_compat_text {
    pub encode: wcuda_compat_encode,
    pub decode: wcuda_compat_decode,
    pub user: *mut c_void,
}

unsafe extern "C" {
    pub fn wcuda_compat_set_text(
        encode: wcuda_compat_encode,
        decode: wcuda_compat_decode,
        user: *mut c_void,
    );
    pub fn wcuda_compat_text_get() -> wcuda_compat_text;
}
