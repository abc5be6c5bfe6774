//! A caller's own kernels: registered with a signature, as device code, as a host function, or as both,
//! and run with checked arguments.

use std::sync::{Mutex, MutexGuard, PoisonError};

mod aside;
mod device;
mod gpu_compute;
mod host;
mod parity;
mod result;
mod spec;

pub use device::{GpuDevice, KernelLauncher};
pub use gpu_compute::GpuCompute;
#[cfg(feature = "manifest")]
pub(crate) use host::HostBody;
pub use host::HostCall;
pub use parity::{Difference, Parity};
pub use result::{ComputeStats, ExecutionResult, Fallback};
pub use spec::{Dim, KernelSpec};

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
