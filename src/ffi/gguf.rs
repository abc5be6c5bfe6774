//! GGUF files (section 8).

use super::*;

pub(super) fn push_layout(rows: &mut Vec<LayoutRow>) {
    wcuda_gguf::push_layout(rows);
    wcuda_source::push_layout(rows);
    wcuda_gguf_info::push_layout(rows);
    wcuda_gguf_value::push_layout(rows);
    wcuda_gguf_tensor::push_layout(rows);
    wcuda_tensor_type_info::push_layout(rows);
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
    pub fn wcuda_gguf_close(gguf: wcuda_gguf);
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
