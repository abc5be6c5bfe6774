//! Devices and their capabilities.
//!
//! ```
//! # fn main() -> worker_cuda::Result<()> {
//! for device in worker_cuda::devices(worker_cuda::Backend::Host)? {
//!     println!("{} {}: {} bytes", device.backend, device.ordinal, device.total_memory);
//! }
//! # Ok(())
//! # }
//! ```

use crate::core::error::{Result, call};
use crate::core::native_text::fixed_text;
use crate::ffi;

/// A type of device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Backend {
    /// An NVIDIA GPU.
    Cuda,
    /// The processor.
    Host,
    /// A backend that a caller registered ([`register`](crate::backend::register)), or that this version of the crate
    /// does not know. [`backends`](crate::backend::backends) lists all with their names.
    Unknown(i32),
}

impl Backend {
    pub(crate) fn to_native(self) -> i32 {
        match self {
            Self::Cuda => ffi::WCUDA_BACKEND_CUDA,
            Self::Host => ffi::WCUDA_BACKEND_HOST,
            Self::Unknown(backend) => backend,
        }
    }

    pub(crate) fn from_native(backend: i32) -> Self {
        match backend {
            ffi::WCUDA_BACKEND_CUDA => Self::Cuda,
            ffi::WCUDA_BACKEND_HOST => Self::Host,
            other => Self::Unknown(other),
        }
    }
}

impl std::fmt::Display for Backend {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Cuda => f.write_str("cuda"),
            Self::Host => f.write_str("host"),
            Self::Unknown(backend) => f.write_str(&crate::core::backends::name_of(*backend)),
        }
    }
}

/// The capabilities of one device. Sizes are in bytes, clocks in kHz. On the host backend threads count as
/// multiprocessors, and fields without a meaning there are 0, false or empty.
///
/// ```
/// # fn main() -> worker_cuda::Result<()> {
/// let caps = &worker_cuda::devices(worker_cuda::Backend::Host)?[0];
/// assert!(caps.total_memory > 0 && caps.multiprocessor_count >= 1);
/// assert_eq!(caps.compute_capability, (0, 0)); // no meaning on the host
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[allow(missing_docs)] // the names say it; worker_cuda.h, section 4, says the rest
pub struct DeviceCaps {
    pub backend: Backend,
    pub ordinal: i32,
    pub name: String,
    pub uuid: [u8; 16],
    /// "0000:17:00.0".
    pub pci_bus_id: String,
    pub total_memory: u64,
    /// (major, minor).
    pub compute_capability: (i32, i32),
    /// CUDA version of the driver, major * 1000 + minor * 10.
    pub driver_version: i32,
    pub runtime_version: i32,
    pub multiprocessor_count: i32,
    pub warp_size: i32,
    pub max_threads_per_block: i32,
    pub max_threads_per_multiprocessor: i32,
    pub max_block_dims: [i32; 3],
    pub max_grid_dims: [i32; 3],
    pub shared_memory_per_block: u64,
    pub shared_memory_per_block_optin: u64,
    pub shared_memory_per_multiprocessor: u64,
    pub registers_per_block: i32,
    pub l2_cache_bytes: i32,
    pub memory_clock_khz: i32,
    pub memory_bus_bits: i32,
    /// Bytes per second.
    pub memory_bandwidth: u64,
    pub async_engine_count: i32,
    pub supports_fp16: bool,
    pub supports_bf16: bool,
    pub supports_tf32: bool,
    pub supports_fp8: bool,
    pub supports_fp64: bool,
    pub supports_int8: bool,
    pub supports_tensor_cores: bool,
    pub supports_int8_tensor_cores: bool,
    pub supports_async_copy: bool,
    pub supports_cooperative_groups: bool,
    pub supports_dynamic_parallelism: bool,
    pub supports_unified_addressing: bool,
    pub supports_managed_memory: bool,
    pub supports_concurrent_managed_access: bool,
    pub is_integrated: bool,
    pub ecc_enabled: bool,
    /// Host and device share their memory: it is managed, or the device is integrated.
    pub unified_memory: bool,
    pub supports_atomics: bool,
    /// "sm_90a" for a GPU; the processor's architecture on the host backend.
    pub architecture: String,
}

impl DeviceCaps {
    fn from_native(caps: &ffi::wcuda_device_caps) -> Self {
        Self {
            backend: Backend::from_native(caps.backend),
            ordinal: caps.ordinal,
            name: fixed_text(&caps.name),
            uuid: caps.uuid,
            pci_bus_id: fixed_text(&caps.pci_bus_id),
            total_memory: caps.total_memory,
            compute_capability: (caps.compute_capability_major, caps.compute_capability_minor),
            driver_version: caps.driver_version,
            runtime_version: caps.runtime_version,
            multiprocessor_count: caps.multiprocessor_count,
            warp_size: caps.warp_size,
            max_threads_per_block: caps.max_threads_per_block,
            max_threads_per_multiprocessor: caps.max_threads_per_multiprocessor,
            max_block_dims: caps.max_block_dims,
            max_grid_dims: caps.max_grid_dims,
            shared_memory_per_block: caps.shared_memory_per_block,
            shared_memory_per_block_optin: caps.shared_memory_per_block_optin,
            shared_memory_per_multiprocessor: caps.shared_memory_per_multiprocessor,
            registers_per_block: caps.registers_per_block,
            l2_cache_bytes: caps.l2_cache_bytes,
            memory_clock_khz: caps.memory_clock_khz,
            memory_bus_bits: caps.memory_bus_bits,
            memory_bandwidth: caps.memory_bandwidth,
            async_engine_count: caps.async_engine_count,
            supports_fp16: caps.supports_fp16 != 0,
            supports_bf16: caps.supports_bf16 != 0,
            supports_tf32: caps.supports_tf32 != 0,
            supports_fp8: caps.supports_fp8 != 0,
            supports_fp64: caps.supports_fp64 != 0,
            supports_int8: caps.supports_int8 != 0,
            supports_tensor_cores: caps.supports_tensor_cores != 0,
            supports_int8_tensor_cores: caps.supports_int8_tensor_cores != 0,
            supports_async_copy: caps.supports_async_copy != 0,
            supports_cooperative_groups: caps.supports_cooperative_groups != 0,
            supports_dynamic_parallelism: caps.supports_dynamic_parallelism != 0,
            supports_unified_addressing: caps.supports_unified_addressing != 0,
            supports_managed_memory: caps.supports_managed_memory != 0,
            supports_concurrent_managed_access: caps.supports_concurrent_managed_access != 0,
            is_integrated: caps.is_integrated != 0,
            ecc_enabled: caps.ecc_enabled != 0,
            unified_memory: caps.unified_memory != 0,
            supports_atomics: caps.supports_atomics != 0,
            architecture: fixed_text(&caps.architecture_name),
        }
    }
}

/// Capabilities of one device. Creates no CUDA context.
pub fn device(backend: Backend, ordinal: i32) -> Result<DeviceCaps> {
    let mut caps = ffi::wcuda_device_caps::init();
    // SAFETY: `caps` is valid and sized.
    call(|error| unsafe {
        ffi::wcuda_device_caps_get(backend.to_native(), ordinal, &mut caps, error)
    })?;
    Ok(DeviceCaps::from_native(&caps))
}

/// All devices of a backend. CUDA without a usable device is an error that states why
/// ("no CUDA device: …"), never an empty list.
pub fn devices(backend: Backend) -> Result<Vec<DeviceCaps>> {
    let mut count = 0;
    // SAFETY: `count` is valid.
    call(|error| unsafe { ffi::wcuda_device_count(backend.to_native(), &mut count, error) })?;
    (0..count).map(|ordinal| device(backend, ordinal)).collect()
}

/// Whether a CUDA device is usable; [`devices`] reports why not.
pub fn cuda_available() -> bool {
    devices(Backend::Cuda).is_ok_and(|devices| !devices.is_empty())
}
