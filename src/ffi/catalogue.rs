//! Ready kernels (section 19).

use super::*;

pub(super) fn push_layout(rows: &mut Vec<LayoutRow>) {
    wcuda_catalogue_entry::push_layout(rows);
}

// ---- 19. Catalogue: built-in kernels, on every backend ----

c_struct! {
    sized wcuda_catalogue_entry {
        struct_size: u32,
        is_f32_only: i32,
        name: wcuda_string,
        signature: wcuda_string,
        parameter_count: u32,
        reserved: u32,
    }
}

unsafe extern "C" {
    pub fn wcuda_catalogue_count() -> u32;
    pub fn wcuda_catalogue_at(
        index: u32,
        kernel: *mut wcuda_catalogue_entry,
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
