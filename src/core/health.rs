//! The health report of a context's device.
//!
//! ```
//! use worker_cuda::{CudaContext, HealthState};
//! # fn main() -> worker_cuda::Result<()> {
//! let health = CudaContext::host()?.health()?;
//! assert_eq!(health.state, HealthState::Ok, "{}", health.message);
//! # Ok(())
//! # }
//! ```

use std::time::Duration;

use crate::core::context::CudaContext;
use crate::core::error::{Result, call};
use crate::core::native_text::fixed_text;
use crate::ffi;

/// Whether a device can be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum HealthState {
    /// Fully usable.
    Ok,
    /// Usable; the message says what is wrong.
    Degraded,
    /// The device is lost.
    Lost,
    /// A state that this version of the crate does not know.
    Unknown(i32),
}

/// One report.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Health {
    /// Whether the device can be used.
    pub state: HealthState,
    /// What is wrong; "" if nothing is.
    pub message: String,
    /// The driver's code of the fault that lost the device, else 0.
    pub sticky_code: i32,
    /// Temperature of the device, if known.
    pub temperature_celsius: Option<i32>,
    /// Uncorrected memory errors since the driver started, if known.
    pub ecc_error_count: Option<u64>,
    /// Device memory held by this context.
    pub ledger_bytes: u64,
    /// Largest value of `ledger_bytes` so far.
    pub peak_bytes: u64,
    /// Pinned host memory held.
    pub staging_bytes: u64,
    /// Live allocations.
    pub allocation_count: u64,
    /// Free memory, as reported by the driver.
    pub device_free_bytes: u64,
    /// Total memory, as reported by the driver.
    pub device_total_bytes: u64,
    /// Allocations found not to be device memory.
    pub nonresident_count: u64,
    /// Failures that no call could return, for example of a drop.
    pub deferred_error_count: u64,
    /// Device memory in use by this context as the driver counts it: at least `ledger_bytes`.
    pub pool_used_bytes: u64,
    /// `pool_used_bytes` and the memory that the driver keeps for reuse.
    pub pool_reserved_bytes: u64,
    /// Bytes of allocations that were live when the device was lost. They are closed in the ledger and not
    /// returned to the driver.
    pub lost_bytes: u64,
    /// Number of these allocations.
    pub lost_count: u64,
    /// Time it took to make this report.
    pub duration: Duration,
}

impl CudaContext {
    /// Reports on the device. Works while steps are in flight, and on a lost device.
    pub fn health(&self) -> Result<Health> {
        let mut health = ffi::wcuda_health::init();
        // SAFETY: `health` is valid and sized.
        call(|error| unsafe { ffi::wcuda_health_get(self.handle(), &mut health, error) })?;
        Ok(Health {
            state: match health.state {
                ffi::WCUDA_HEALTH_OK => HealthState::Ok,
                ffi::WCUDA_HEALTH_DEGRADED => HealthState::Degraded,
                ffi::WCUDA_HEALTH_LOST => HealthState::Lost,
                other => HealthState::Unknown(other),
            },
            message: fixed_text(&health.message),
            sticky_code: health.sticky_code,
            temperature_celsius: Some(health.temperature_celsius).filter(|&value| value >= 0),
            ecc_error_count: health.ecc_error_count.try_into().ok(),
            ledger_bytes: health.ledger_bytes,
            peak_bytes: health.peak_bytes,
            staging_bytes: health.staging_bytes,
            allocation_count: health.allocation_count,
            device_free_bytes: health.device_free_bytes,
            device_total_bytes: health.device_total_bytes,
            nonresident_count: health.nonresident_count,
            deferred_error_count: health.deferred_error_count,
            pool_used_bytes: health.pool_used_bytes,
            pool_reserved_bytes: health.pool_reserved_bytes,
            lost_bytes: health.lost_bytes,
            lost_count: health.lost_count,
            duration: Duration::from_nanos(health.duration_ns),
        })
    }
}
