//! Run-time kernels: compile (section 16).

use super::*;

pub(super) fn push_layout(rows: &mut Vec<LayoutRow>) {
    wcuda_program::push_layout(rows);
    wcuda_program_header::push_layout(rows);
    wcuda_program_options::push_layout(rows);
    wcuda_program_info::push_layout(rows);
    wcuda_compiler_info::push_layout(rows);
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
