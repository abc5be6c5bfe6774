//! Text functions of `worker_cuda_compat.h`.

use super::*;

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
