//! The functions of `worker_cuda_compat.h` as symbols that Rust binds.
#![cfg(feature = "compat")]

use std::ffi::{c_int, c_void};

unsafe extern "C" {
    fn wcuda_compat_use_host(enabled: c_int);
    fn cuda_init(gpu_device: c_int, error_code: *mut c_int) -> *mut c_void;
    fn cuda_destroy(context: *mut c_void);
    fn cuda_get_device_count() -> c_int;
    fn vram_malloc(address: *mut *mut c_void, bytes: usize) -> c_int;
    fn vram_free(address: *mut c_void) -> c_int;
    fn vram_memcpy_h2d(target: *mut c_void, source: *const c_void, bytes: usize) -> c_int;
    fn vram_memcpy_d2h(target: *mut c_void, source: *const c_void, bytes: usize) -> c_int;
}

const SUCCESS: c_int = 0;
const DEVICE_NOT_FOUND: c_int = 1;

// One test: the choice of the backend is the process's.
#[test]
fn symbols_bind_and_the_cpu_computes_only_on_request() {
    // The crate is what links the archives.
    assert_eq!(
        worker_cuda::version::abi_version(),
        worker_cuda::ffi::WCUDA_ABI_VERSION
    );
    let mut code = -1;
    // SAFETY: every pointer is valid for its call; contexts and blocks are released once.
    unsafe {
        if cuda_get_device_count() == 0 {
            assert!(cuda_init(0, &mut code).is_null());
            assert_eq!(code, DEVICE_NOT_FOUND);
        }
        wcuda_compat_use_host(1);
        let context = cuda_init(0, &mut code);
        assert!(!context.is_null());
        assert_eq!(code, SUCCESS);
        cuda_destroy(context);

        let (sent, mut back) = ([1u8, 2, 3, 4], [0u8; 4]);
        let mut address = std::ptr::null_mut();
        assert_eq!(vram_malloc(&mut address, 4), SUCCESS);
        assert_eq!(vram_memcpy_h2d(address, sent.as_ptr().cast(), 4), SUCCESS);
        assert_eq!(
            vram_memcpy_d2h(back.as_mut_ptr().cast(), address, 4),
            SUCCESS
        );
        assert_eq!(back, sent);
        assert_eq!(vram_free(address), SUCCESS);
    }
}
