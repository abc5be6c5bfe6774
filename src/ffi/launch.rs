//! Run-time kernels: modules, kernels, launches (section 18).

use super::*;

pub(super) fn push_layout(rows: &mut Vec<LayoutRow>) {
    wcuda_kernel_cache::push_layout(rows);
    wcuda_kernel_cache_stats::push_layout(rows);
    wcuda_module::push_layout(rows);
    wcuda_kernel::push_layout(rows);
    wcuda_parameter::push_layout(rows);
    wcuda_launch::push_layout(rows);
    wcuda_host_argument::push_layout(rows);
    wcuda_kernel_options::push_layout(rows);
    wcuda_kernel_info::push_layout(rows);
    wcuda_occupancy::push_layout(rows);
    wcuda_argument::push_layout(rows);
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
    pub fn wcuda_module_unload(module: wcuda_module);
    pub fn wcuda_module_global_create(
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

pub type wcuda_host_release = Option<unsafe extern "C" fn(user: *mut c_void)>;

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
        host_release: wcuda_host_release,
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
    pub fn wcuda_kernel_cache_close(cache: wcuda_kernel_cache);
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
