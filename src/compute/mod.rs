//! Kernels of the caller. A kernel is registered with a signature, as device code, as a CPU function or as
//! both, and its arguments are checked when it runs.

use std::sync::{Mutex, MutexGuard, PoisonError};

pub mod catalogue;
mod copies;
mod device;
pub mod gemm;
mod gpu_compute;
mod host;
#[cfg(feature = "manifest")]
pub mod manifest;
pub mod module;
mod parity;
pub mod program;
pub mod registry;
mod result;
mod runnable;
mod spec;

pub use device::{GpuDevice, KernelLauncher};
pub use gpu_compute::GpuCompute;
#[cfg(feature = "manifest")]
pub(crate) use host::HostBody;
pub use host::HostCall;
#[cfg(feature = "zctl")]
pub(crate) use host::forget_failures;
pub use parity::{Difference, Parity};
pub use result::{ComputeStats, ExecutionResult, Fallback};
pub use spec::{Dim, KernelSpec};

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
