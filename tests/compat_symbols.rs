//! The functions of `worker_cuda_compat.h` as symbols that Rust binds.
#![cfg(feature = "compat")]

use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr::null_mut;

type Any = *mut c_void;

unsafe extern "C" {
    fn wcuda_compat_use_host(enabled: c_int);

    fn cuda_error_message(code: c_int) -> *const c_char;
    fn cuda_init(gpu_device: c_int, error_code: *mut c_int) -> Any;
    fn cuda_destroy(context: Any);
    fn cuda_get_device_count() -> c_int;
    fn cuda_get_process_vram_usage(context: Any) -> u64;
    fn cuda_check_device_health(context: Any, error_code: *mut c_int) -> bool;
    fn cuda_load_model(
        context: Any,
        path: *const c_char,
        bytes: *mut u64,
        error_code: *mut c_int,
    ) -> Any;
    fn cuda_unload_model(model: Any);
    fn cuda_model_get_vram_usage(model: Any) -> u64;
    fn cuda_get_vram_usage(model: Any) -> u64;
    fn cuda_check_vram_residency(model: Any, error_code: *mut c_int) -> bool;
    fn cuda_inference_start(
        model: Any,
        prompt: *const c_char,
        max_tokens: c_int,
        temperature: f32,
        seed: u64,
        error_code: *mut c_int,
    ) -> Any;
    fn cuda_inference_next_token(
        result: Any,
        text: *mut c_char,
        capacity: c_int,
        index: *mut c_int,
        error_code: *mut c_int,
    ) -> bool;
    fn cuda_inference_free(result: Any);

    fn vram_malloc(address: *mut Any, bytes: usize) -> c_int;
    fn vram_free(address: Any) -> c_int;
    fn vram_memcpy_h2d(target: Any, source: *const c_void, bytes: usize) -> c_int;
    fn vram_memcpy_d2h(target: Any, source: *const c_void, bytes: usize) -> c_int;
    fn vram_get_info(free: *mut usize, total: *mut usize) -> c_int;
    fn vram_set_device(device: c_int) -> c_int;
    fn vram_get_device_count(count: *mut c_int) -> c_int;
    fn vram_reset_mock_state();
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
        models_on_the_host();
        memory_on_the_host();
    }
}

/// With a model that is not there: every function answers, with its error.
unsafe fn models_on_the_host() {
    let (mut code, mut bytes, mut index) = (-1, u64::MAX, -1);
    let mut text = [0 as c_char; 8];
    // SAFETY: as in the test.
    unsafe {
        let context = cuda_init(0, &mut code);
        assert!(!context.is_null());
        assert_eq!(code, SUCCESS);
        assert_eq!(cuda_get_process_vram_usage(context), 0);
        assert!(cuda_check_device_health(context, &mut code));

        let missing = c"/nowhere/model.gguf".as_ptr();
        let model = cuda_load_model(context, missing, &mut bytes, &mut code);
        assert!(model.is_null());
        assert_eq!(bytes, 0);
        assert_ne!(code, SUCCESS);
        assert!(!CStr::from_ptr(cuda_error_message(code)).is_empty());
        assert_eq!(cuda_model_get_vram_usage(model), 0);
        assert_eq!(cuda_get_vram_usage(model), 0);
        assert!(!cuda_check_vram_residency(model, &mut code));
        let result = cuda_inference_start(model, c"x".as_ptr(), 1, 0.0, 0, &mut code);
        assert!(result.is_null());
        let text = text.as_mut_ptr();
        assert!(!cuda_inference_next_token(
            result, text, 8, &mut index, &mut code
        ));
        assert_ne!(code, SUCCESS);
        cuda_inference_free(result);
        cuda_unload_model(model);
        cuda_destroy(context);
    }
}

unsafe fn memory_on_the_host() {
    let (sent, mut back) = ([1u8, 2, 3, 4], [0u8; 4]);
    let (mut free, mut total, mut devices) = (0, 0, 0);
    let mut address = null_mut();
    // SAFETY: as in the test.
    unsafe {
        assert_eq!(vram_get_device_count(&mut devices), SUCCESS);
        assert_eq!(devices, 1);
        assert_eq!(vram_set_device(0), SUCCESS);
        assert_eq!(vram_get_info(&mut free, &mut total), SUCCESS);
        assert!(free > 0 && free <= total);

        assert_eq!(vram_malloc(&mut address, 4), SUCCESS);
        assert_eq!(vram_memcpy_h2d(address, sent.as_ptr().cast(), 4), SUCCESS);
        let to = back.as_mut_ptr().cast();
        assert_eq!(vram_memcpy_d2h(to, address, 4), SUCCESS);
        assert_eq!(back, sent);
        assert_eq!(vram_free(address), SUCCESS);

        assert_eq!(vram_malloc(&mut address, 4), SUCCESS);
        vram_reset_mock_state(); // frees the block
        assert_ne!(vram_free(address), SUCCESS);
    }
}
