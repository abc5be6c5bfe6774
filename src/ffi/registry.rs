//! Kernel descriptors and registries (section 22).

use super::*;

pub(super) fn push_layout(rows: &mut Vec<LayoutRow>) {
    wcuda_kernel_param::push_layout(rows);
    wcuda_kernel_descriptor::push_layout(rows);
    wcuda_registry::push_layout(rows);
    wcuda_registered_kernel::push_layout(rows);
    wcuda_run_info::push_layout(rows);
}

// ---- 22. Kernel descriptors ----

pub const WCUDA_LAYOUT_ANY: i32 = 0;
pub const WCUDA_LAYOUT_ROW_MAJOR: i32 = 1;
pub const WCUDA_LAYOUT_COLUMN_MAJOR: i32 = 2;
pub const WCUDA_KERNEL_NON_DETERMINISTIC: u32 = 1 << 0;
pub const WCUDA_KERNEL_NOT_HERE: u32 = 1 << 1;

c_struct! {
    wcuda_kernel_param {
        name: wcuda_string,
        kind: i32,
        dtype: i32,
        access: u32,
        layout: i32,
        layout_id: u32,
        reserved: u32,
        shape: wcuda_string,
        min: wcuda_string,
        max: wcuda_string,
    }
}

c_struct! {
    sized wcuda_kernel_descriptor {
        struct_size: u32,
        flags: u32,
        kernel_id: u32,
        budget_ms: u32,
        name: wcuda_string,
        kernel: wcuda_kernel,
        params: *const wcuda_kernel_param,
        param_count: u64,
        grid: [wcuda_string; 3],
        block: [wcuda_string; 3],
        threads: wcuda_string,
        shared_bytes: wcuda_string,
    }
}

c_struct! {
    wcuda_registry {
        id: u64,
    }
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
    pub fn wcuda_kernel_descriptor_check(
        descriptor: *const wcuda_kernel_descriptor,
        sig_hash: *mut u64,
        text: *mut c_char,
        text_capacity: u64,
        text_bytes: *mut u64,
        error: *mut wcuda_error,
    ) -> wcuda_status;
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
        number: u32,
        kernel_id: *mut u32,
        error: *mut wcuda_error,
    ) -> wcuda_status;
    pub fn wcuda_registry_remove(
        registry: wcuda_registry,
        kernel_id: u32,
        error: *mut wcuda_error,
    ) -> wcuda_status;
    pub fn wcuda_registry_list(
        registry: wcuda_registry,
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
