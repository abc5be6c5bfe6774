//! Sections 16, 18 to 20 and 22: `worker_cuda/compute.h`.

use super::*;

pub(super) fn push_layout(rows: &mut Vec<LayoutRow>) {
    wcuda_program::push_layout(rows);
    wcuda_kernel_cache::push_layout(rows);
    wcuda_kernel_cache_stats::push_layout(rows);
    wcuda_program_header::push_layout(rows);
    wcuda_program_options::push_layout(rows);
    wcuda_program_info::push_layout(rows);
    wcuda_compiler_info::push_layout(rows);
    wcuda_module::push_layout(rows);
    wcuda_parameter::push_layout(rows);
    wcuda_launch::push_layout(rows);
    wcuda_host_argument::push_layout(rows);
    wcuda_kernel::push_layout(rows);
    wcuda_kernel_options::push_layout(rows);
    wcuda_kernel_info::push_layout(rows);
    wcuda_occupancy::push_layout(rows);
    wcuda_argument::push_layout(rows);
    wcuda_catalogue_entry::push_layout(rows);
    wcuda_gemm::push_layout(rows);
    wcuda_kernel_descriptor::push_layout(rows);
    wcuda_registry::push_layout(rows);
    wcuda_registered_kernel::push_layout(rows);
    wcuda_run_info::push_layout(rows);
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

c_struct! {
    sized wcuda_program_header {
        struct_size: u32,
        reserved: u32,
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
pub const WCUDA_CACHE_NONE: i32 = 0;
pub const WCUDA_CACHE_HIT: i32 = 1;
pub const WCUDA_CACHE_MISS: i32 = 2;
pub const WCUDA_CACHE_BYPASSED: i32 = 3;
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
pub const WCUDA_LAYOUT_ANY: i32 = 0;
pub const WCUDA_LAYOUT_ROW_MAJOR: i32 = 1;
pub const WCUDA_LAYOUT_COLUMN_MAJOR: i32 = 2;
c_struct! {
    sized wcuda_parameter {
        struct_size: u32,
        kind: i32,
        name: wcuda_string,
        dtype: i32,
        access: u32,
        layout: i32,
        layout_id: u32,
        shape: wcuda_string,
        min: wcuda_string,
        max: wcuda_string,
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
    sized wcuda_host_argument {
        struct_size: u32,
        kind: i32,
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
    wcuda_kernel {
        id: u64,
    }
}

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
        host_release: Option<unsafe extern "C" fn(user: *mut c_void)>,
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
    sized wcuda_argument {
        struct_size: u32,
        kind: i32,
        data: *const c_void,
        bytes: u64,
        buffer: wcuda_buffer,
        offset: u64,
        access: u32,
        reserved: u32,
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
    pub fn wcuda_launch_threads_get(
        launch: *const wcuda_launch,
        threads: *mut u64,
        error: *mut wcuda_error,
    ) -> wcuda_status;
}

// ---- 19. Catalogue: built-in kernels on every backend ----

c_struct! {
    sized wcuda_catalogue_entry {
        struct_size: u32,
        is_f32_only: i32,
        name: wcuda_string,
        parameter_count: u32,
        reserved: u32,
    }
}

unsafe extern "C" {
    pub fn wcuda_catalogue_list(
        first: u64,
        entries: *mut wcuda_catalogue_entry,
        capacity: u64,
        count: *mut u64,
        error: *mut wcuda_error,
    ) -> wcuda_status;
    pub fn wcuda_catalogue_parameter_list(
        name: wcuda_string,
        r#type: i32,
        first: u64,
        parameters: *mut wcuda_parameter,
        capacity: u64,
        count: *mut u64,
        error: *mut wcuda_error,
    ) -> wcuda_status;
    pub fn wcuda_catalogue_run(
        context: wcuda_context,
        name: wcuda_string,
        r#type: i32,
        arguments: *const wcuda_argument,
        argument_count: u64,
        stream: wcuda_stream,
        error: *mut wcuda_error,
    ) -> wcuda_status;
}

// ---- 20. Matrix products ----

pub const WCUDA_GEMM_F32: i32 = 1;
pub const WCUDA_GEMM_TF32: i32 = 2;
pub const WCUDA_GEMM_F16: i32 = 3;
pub const WCUDA_GEMM_BF16: i32 = 4;
pub const WCUDA_GEMM_FP8: i32 = 5;
pub const WCUDA_GEMM_F64: i32 = 6;
pub const WCUDA_GEMM_INT8: i32 = 7;
pub const WCUDA_GEMM_TRANSPOSE_A: u32 = 1 << 0;
pub const WCUDA_GEMM_TRANSPOSE_B: u32 = 1 << 1;
pub const WCUDA_ACTIVATION_NONE: i32 = 0;
pub const WCUDA_ACTIVATION_RELU: i32 = 1;
pub const WCUDA_ACTIVATION_GELU: i32 = 2;
c_struct! {
    sized wcuda_gemm {
        struct_size: u32,
        flags: u32,
        r#type: i32,
        output_type: i32,
        activation: i32,
        alpha: f32,
        beta: f32,
        reserved: u32,
        m: u64,
        n: u64,
        k: u64,
        batch: u64,
        row_stride_a: u64,
        row_stride_b: u64,
        row_stride_c: u64,
        batch_stride_a: u64,
        batch_stride_b: u64,
        batch_stride_c: u64,
    }
}

unsafe extern "C" {
    pub fn wcuda_gemm_run(
        context: wcuda_context,
        gemm: *const wcuda_gemm,
        arguments: *const wcuda_argument,
        argument_count: u64,
        stream: wcuda_stream,
        error: *mut wcuda_error,
    ) -> wcuda_status;
    pub fn wcuda_gemm_library_check(error: *mut wcuda_error) -> wcuda_status;
}

// ---- 22. Kernel descriptors: kernels by name and id, with a complete signature ----

pub const WCUDA_KERNEL_NON_DETERMINISTIC: u32 = 1 << 0;
pub const WCUDA_KERNEL_NOT_HERE: u32 = 1 << 1;
c_struct! {
    sized wcuda_kernel_descriptor {
        struct_size: u32,
        flags: u32,
        kernel_id: u32,
        budget_ms: u32,
        name: wcuda_string,
        kernel: wcuda_kernel,
        parameters: *const wcuda_parameter,
        parameter_count: u64,
        grid: [wcuda_string; 3],
        block: [wcuda_string; 3],
        threads: wcuda_string,
        shared_bytes: wcuda_string,
        module: wcuda_string,
    }
}

unsafe extern "C" {
    pub fn wcuda_kernel_descriptor_check(
        descriptor: *const wcuda_kernel_descriptor,
        sig_hash: *mut u64,
        text: *mut c_char,
        text_capacity: u64,
        text_bytes: *mut u64,
        error: *mut wcuda_error,
    ) -> wcuda_status;
}

c_struct! {
    wcuda_registry {
        id: u64,
    }
}

unsafe extern "C" {
    pub fn wcuda_registry_create(
        context: wcuda_context,
        registry: *mut wcuda_registry,
        error: *mut wcuda_error,
    ) -> wcuda_status;
    pub fn wcuda_registry_destroy(registry: wcuda_registry);
    pub fn wcuda_registry_add(
        registry: wcuda_registry,
        descriptor: *const wcuda_kernel_descriptor,
        kernel_id: *mut u32,
        error: *mut wcuda_error,
    ) -> wcuda_status;
    pub fn wcuda_registry_add_builtin(
        registry: wcuda_registry,
        name: wcuda_string,
        r#type: i32,
        wanted_id: u32,
        kernel_id: *mut u32,
        error: *mut wcuda_error,
    ) -> wcuda_status;
    pub fn wcuda_registry_remove(
        registry: wcuda_registry,
        kernel_id: u32,
        error: *mut wcuda_error,
    ) -> wcuda_status;
}

c_struct! {
    sized wcuda_registered_kernel {
        struct_size: u32,
        kernel_id: u32,
        flags: u32,
        parameter_count: u32,
        budget_ms: u32,
        name_bytes: u32,
        sig_hash: u64,
        name: [c_char; 128],
    }
}

unsafe extern "C" {
    pub fn wcuda_registry_list(
        registry: wcuda_registry,
        first: u64,
        kernels: *mut wcuda_registered_kernel,
        capacity: u64,
        count: *mut u64,
        error: *mut wcuda_error,
    ) -> wcuda_status;
    pub fn wcuda_registry_find(
        registry: wcuda_registry,
        name: wcuda_string,
        kernel: *mut wcuda_registered_kernel,
        error: *mut wcuda_error,
    ) -> wcuda_status;
}

c_struct! {
    sized wcuda_run_info {
        struct_size: u32,
        shared_bytes: u32,
        grid: [u32; 3],
        block: [u32; 3],
        elements: u64,
        bytes: u64,
        budget_ms: u32,
        is_over_budget: i32,
        time_ns: u64,
    }
}

unsafe extern "C" {
    pub fn wcuda_registry_run(
        registry: wcuda_registry,
        kernel_id: u32,
        arguments: *const wcuda_argument,
        argument_count: u64,
        stream: wcuda_stream,
        info: *mut wcuda_run_info,
        error: *mut wcuda_error,
    ) -> wcuda_status;
    pub fn wcuda_registry_run_wait(
        registry: wcuda_registry,
        kernel_id: u32,
        arguments: *const wcuda_argument,
        argument_count: u64,
        stream: wcuda_stream,
        info: *mut wcuda_run_info,
        error: *mut wcuda_error,
    ) -> wcuda_status;
    pub fn wcuda_registry_plan(
        registry: wcuda_registry,
        kernel_id: u32,
        arguments: *const wcuda_argument,
        argument_count: u64,
        info: *mut wcuda_run_info,
        error: *mut wcuda_error,
    ) -> wcuda_status;
}
