//! Residency: where allocations are, and a policy that all of them are on the device.
//!
//! ```
//! # fn main() -> worker_cuda::Result<()> {
//! # let context = worker_cuda::CudaContext::host()?;
//! context.enforce_vram_only_policy()?; // checks the device and every allocation
//! let buffer = context.alloc::<u8>(1024)?;
//! assert_eq!(buffer.place()?, worker_cuda::Place::Device);
//! assert_eq!(context.check_residency()?.checked_count, 1);
//! # Ok(())
//! # }
//! ```

use std::fmt;

use crate::core::context::CudaContext;
use crate::core::error::{Error, ErrorKind, Result, call};
use crate::core::ledger::{LedgerEntry, Purpose};
use crate::core::native_text::fixed_text;
use crate::ffi;

/// Where memory is located.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Place {
    /// Memory of the context's device alone; on the host backend, its own blocks.
    Device,
    /// Memory of another device.
    OtherDevice,
    /// Managed memory, which migrates between host and device.
    Managed,
    /// Page-locked host memory.
    Pinned,
    /// Page-locked host memory that devices access in place.
    Mapped,
    /// Host memory that the driver does not know.
    Host,
    /// A place that this version of the crate does not know.
    Unknown(i32),
}

impl Place {
    pub(crate) fn from_native(place: i32) -> Self {
        match place {
            ffi::WCUDA_PLACE_DEVICE => Self::Device,
            ffi::WCUDA_PLACE_OTHER_DEVICE => Self::OtherDevice,
            ffi::WCUDA_PLACE_MANAGED => Self::Managed,
            ffi::WCUDA_PLACE_PINNED => Self::Pinned,
            ffi::WCUDA_PLACE_MAPPED => Self::Mapped,
            ffi::WCUDA_PLACE_HOST => Self::Host,
            other => Self::Unknown(other),
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Device => "device memory",
            Self::OtherDevice => "memory of another device",
            Self::Managed => "managed memory",
            Self::Pinned => "pinned host memory",
            Self::Mapped => "mapped host memory",
            Self::Host => "host memory",
            Self::Unknown(_) => "unknown memory",
        })
    }
}

/// What a check of every allocation found.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Residency {
    /// Live and borrowed allocations; pinned staging memory is not counted.
    pub checked_count: u64,
    /// Those that are not memory of the context's device.
    pub nonresident_count: u64,
    /// Those of `nonresident_count` that are managed memory.
    pub managed_count: u64,
    /// The first of `nonresident_count`, and where it is.
    pub first: Option<(LedgerEntry, Place)>,
}

impl Residency {
    /// An error of kind [`ErrorKind::NotResident`] that names the first allocation that is elsewhere.
    fn into_result(self) -> Result<Self> {
        let Some((entry, place)) = &self.first else {
            return Ok(self);
        };
        let message = format!(
            "'{}' (#{}, {} bytes) is {place}, not the device's own; {} of {} allocations are not",
            entry.tag,
            entry.sequence_number,
            entry.bytes,
            self.nonresident_count,
            self.checked_count
        );
        Err(Error::new(ErrorKind::NotResident, message))
    }
}

impl CudaContext {
    /// Asks the driver, for every live or borrowed allocation, whether it is memory of this device without a host
    /// address. One that is not is logged, counted in [`CudaContext::health`] and named by the report, and
    /// [`is_policy_enforced`](Self::is_policy_enforced) returns false from then on.
    pub fn residency(&self) -> Result<Residency> {
        let mut residency = ffi::wcuda_residency::init();
        // SAFETY: `residency` is valid and sized.
        call(|error| unsafe {
            ffi::wcuda_context_residency_get(self.handle(), &mut residency, error)
        })?;
        let first = || {
            let entry = LedgerEntry {
                bytes: residency.first_bytes,
                sequence_number: residency.first_sequence_number,
                purpose: Purpose::from_native(residency.first_purpose),
                tag: fixed_text(&residency.first_tag),
            };
            (entry, Place::from_native(residency.first_place))
        };
        Ok(Residency {
            checked_count: residency.checked_count,
            nonresident_count: residency.nonresident_count,
            managed_count: residency.managed_count,
            first: (residency.nonresident_count != 0).then(first),
        })
    }

    /// As [`residency`](Self::residency), but an allocation that is elsewhere is an error of kind
    /// [`ErrorKind::NotResident`], which is fatal.
    pub fn check_residency(&self) -> Result<Residency> {
        self.residency()?.into_result()
    }

    /// As [`check_residency`](Self::check_residency), for managed memory alone.
    pub fn check_unified_memory(&self) -> Result<()> {
        let residency = self.residency()?;
        if residency.managed_count == 0 {
            return Ok(());
        }
        let message = format!("{} allocations are managed memory", residency.managed_count);
        Err(Error::new(ErrorKind::NotResident, message))
    }

    /// Enforces the rule that all memory is the device's own: checks the device and every allocation. From then on,
    /// memory that is elsewhere cannot be borrowed.
    pub fn enforce_vram_only_policy(&self) -> Result<()> {
        // SAFETY: legal on any thread.
        call(|error| unsafe { ffi::wcuda_context_vram_only_enforce(self.handle(), error) })
    }

    /// Whether the last enforcement succeeded and no check has found a violation since.
    pub fn is_policy_enforced(&self) -> Result<bool> {
        let mut is_enforced = 0;
        // SAFETY: the output is valid.
        call(|error| unsafe {
            ffi::wcuda_context_vram_only_get(self.handle(), &mut is_enforced, error)
        })?;
        Ok(is_enforced != 0)
    }

    /// Checks that the device can hold resident memory: compute capability 8.0 and 1 GiB on CUDA. The error names
    /// the missing property.
    pub fn validate_device_properties(&self) -> Result<()> {
        let info = self.info()?;
        // SAFETY: legal on any thread.
        call(|error| unsafe {
            ffi::wcuda_device_check(info.backend.to_native(), info.ordinal, error)
        })
    }
}
