//! Section 23: `worker_cuda/zctl.h`.

use super::*;

pub(super) fn push_layout(rows: &mut Vec<LayoutRow>) {
    wcuda_zctl_record::push_layout(rows);
    wcuda_zctl_options::push_layout(rows);
    wcuda_zctl_session::push_layout(rows);
}

pub const WCUDA_ZCTL_NON_DETERMINISTIC: u32 = 1 << 0;
pub const WCUDA_ZCTL_ALLOW_LIST: u32 = 1 << 1;
pub const WCUDA_ZCTL_FOREIGN_MODULES: u32 = 1 << 2;

pub const WCUDA_ZCTL_REQUEST: i32 = 1;
pub const WCUDA_ZCTL_READ: i32 = 2;
pub const WCUDA_ZCTL_WRITTEN: i32 = 3;
pub const WCUDA_ZCTL_RESPONSE: i32 = 4;
pub const WCUDA_ZCTL_CLOSED: i32 = 5;

c_struct! {
    sized wcuda_zctl_record {
        struct_size: u32,
        kind: i32,
        offset: u64,
        data: *const c_void,
        bytes: u64,
        ret: i32,
        reserved: u32,
    }
}

pub type wcuda_zctl_recorder =
    Option<unsafe extern "C" fn(user: *mut c_void, record: *const wcuda_zctl_record)>;

c_struct! {
    sized wcuda_zctl_options {
        struct_size: u32,
        flags: u32,
        registry: wcuda_registry,
        reason: wcuda_string,
        payload_bytes_max: u32,
        argument_count_max: u32,
        rank_max: u32,
        message_bytes_max: u32,
        device_bytes_max: u64,
        budget_ms: u32,
        allowed_count: u32,
        allowed: *const u32,
        recorder: wcuda_zctl_recorder,
        recorder_user: *mut c_void,
    }
}

c_struct! {
    wcuda_zctl_session {
        id: u64,
    }
}

unsafe extern "C" {
    pub fn wcuda_zctl_session_create(
        options: *const wcuda_zctl_options,
        session: *mut wcuda_zctl_session,
        error: *mut wcuda_error,
    ) -> wcuda_status;
    pub fn wcuda_zctl_session_destroy(session: wcuda_zctl_session);
    pub fn wcuda_zctl_call(
        session: wcuda_zctl_session,
        memory: *mut c_void,
        memory_bytes: u64,
        req_ptr: i32,
        req_len: i32,
        resp_ptr: i32,
        resp_cap: i32,
        timeout_ms: i32,
    ) -> i32;
    pub fn wcuda_zctl_serve(
        session: wcuda_zctl_session,
        memory: *mut c_void,
        memory_bytes: u64,
        request: *const c_void,
        request_bytes: u64,
        response: *mut c_void,
        response_capacity: u64,
    ) -> i32;
    pub fn wcuda_zctl_handle_read(
        session: wcuda_zctl_session,
        handle: i32,
        memory: *mut c_void,
        memory_bytes: u64,
        ptr: i32,
        cap: i32,
    ) -> i32;
    pub fn wcuda_zctl_handle_write(
        session: wcuda_zctl_session,
        handle: i32,
        memory: *const c_void,
        memory_bytes: u64,
        ptr: i32,
        len: i32,
    ) -> i32;
    pub fn wcuda_zctl_handle_end(session: wcuda_zctl_session, handle: i32);
}
