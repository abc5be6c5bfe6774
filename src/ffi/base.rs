//! Status, version, log, devices (sections 1 to 4).

use super::*;

pub(super) fn push_layout(rows: &mut Vec<LayoutRow>) {
    wcuda_error::push_layout(rows);
    wcuda_string::push_layout(rows);
    wcuda_build_info::push_layout(rows);
    wcuda_abi_field::push_layout(rows);
    wcuda_device_caps::push_layout(rows);
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
        unified_memory: i32,
        supports_atomics: i32,
        supports_mesh_shaders: i32,
        supports_ray_tracing: i32,
        has_neural_engine: i32,
        supports_mps: i32,
        metal_gpu_family: i32,
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
