//! The device of the tests named `gpu_…`, which `./dev gpu-pack` carries to a machine that has one.

use worker_cuda::CudaContext;

/// The first GPU, or `None` after printing why there is none.
///
/// # Panics
///
/// If there is none and `WCUDA_REQUIRE_GPU` is 1: there a skipped test is a failed one.
pub fn gpu() -> Option<CudaContext> {
    match CudaContext::new(0) {
        Ok(context) => Some(context),
        Err(error) => {
            let required = std::env::var("WCUDA_REQUIRE_GPU").is_ok_and(|value| value == "1");
            assert!(!required, "a GPU is required: {error}");
            println!("skipped: {error}");
            None
        }
    }
}
