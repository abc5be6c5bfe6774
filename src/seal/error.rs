//! Errors of sealed memory.

use std::fmt;

use crate::core::error::{Error, ErrorKind};

/// A result of this module.
pub type VramResult<T> = Result<T, VramError>;

/// Why an operation failed. Messages contain sizes, never addresses or keys.
#[derive(Debug)]
#[non_exhaustive]
pub enum VramError {
    /// Not enough device memory.
    InsufficientVram {
        /// Bytes requested.
        needed: u64,
        /// Bytes available.
        have: u64,
    },
    /// The signature is not this manager's for this shard, or the memory has changed.
    SealVerificationFailed {
        /// The first MiB of the shard whose bytes differ, counted from 0; None when it is the
        /// signature.
        first_bad_mib: Option<u64>,
    },
    /// The weights of a sealed model have changed; the text names the first such tensor.
    WeightsChanged(String),
    /// The shard has no digest or no signature.
    NotSealed,
    /// The shard's allocation is not live in this manager.
    IntegrityViolation,
    /// An argument, a configuration file or an encoded shard is invalid.
    InvalidInput(String),
    /// The device failed to allocate or to copy.
    CudaAllocationFailed(String),
    /// The device or an allocation violates the rule that all memory is the device's own.
    PolicyViolation(String),
    /// The configuration is invalid.
    ConfigError(String),
    /// Any other error of the device or the library: a lost device, an internal error.
    Device(Error),
}

impl VramError {
    /// The same call may succeed later.
    pub fn is_retriable(&self) -> bool {
        match self {
            Self::InsufficientVram { .. } | Self::CudaAllocationFailed(_) => true,
            Self::Device(error) => error.is_retryable(),
            _ => false,
        }
    }

    /// The worker must stop using the sealed memory.
    pub fn is_fatal(&self) -> bool {
        match self {
            Self::SealVerificationFailed { .. }
            | Self::WeightsChanged(_)
            | Self::IntegrityViolation
            | Self::PolicyViolation(_) => true,
            Self::Device(error) => error.is_fatal(),
            _ => false,
        }
    }
}

impl fmt::Display for VramError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::InsufficientVram { needed, have } => {
                write!(
                    f,
                    "insufficient VRAM: needs {needed} bytes, {have} are free"
                )
            }
            Self::SealVerificationFailed {
                first_bad_mib: Some(mib),
            } => write!(
                f,
                "seal verification failed: MiB {mib} is not what was sealed"
            ),
            Self::SealVerificationFailed { .. } => {
                f.write_str("seal verification failed: the signature is not valid")
            }
            Self::WeightsChanged(text) => write!(f, "seal verification failed: {text}"),
            Self::NotSealed => f.write_str("the shard is not sealed"),
            Self::IntegrityViolation => {
                f.write_str("integrity violation: the shard has no live allocation here")
            }
            Self::InvalidInput(text) => write!(f, "invalid input: {text}"),
            Self::CudaAllocationFailed(text) => write!(f, "device memory failed: {text}"),
            Self::PolicyViolation(text) => write!(f, "policy violation: {text}"),
            Self::ConfigError(text) => write!(f, "configuration: {text}"),
            Self::Device(error) => write!(f, "device: {error}"),
        }
    }
}

impl std::error::Error for VramError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Device(error) => Some(error),
            _ => None,
        }
    }
}

/// Covers every kind; one that this version does not know becomes a device error.
impl From<Error> for VramError {
    fn from(error: Error) -> Self {
        let text = || error.to_string();
        match error.kind() {
            ErrorKind::InvalidArgument
            | ErrorKind::InvalidHandle
            | ErrorKind::OutOfRange
            | ErrorKind::BufferTooSmall
            | ErrorKind::NotFound
            | ErrorKind::LimitExceeded
            | ErrorKind::Malformed => Self::InvalidInput(text()),
            ErrorKind::OutOfMemory
            | ErrorKind::OutOfHostMemory
            | ErrorKind::OverBudget
            | ErrorKind::DeviceError
            | ErrorKind::Io => Self::CudaAllocationFailed(text()),
            ErrorKind::NoDevice
            | ErrorKind::NotAvailable
            | ErrorKind::Unsupported
            | ErrorKind::NotResident => Self::PolicyViolation(text()),
            ErrorKind::Integrity => Self::SealVerificationFailed {
                first_bad_mib: None,
            },
            _ => Self::Device(error),
        }
    }
}

/// For programs with one error type.
impl From<VramError> for Error {
    fn from(error: VramError) -> Self {
        let kind = match &error {
            VramError::InsufficientVram { .. } => ErrorKind::OutOfMemory,
            VramError::SealVerificationFailed { .. }
            | VramError::WeightsChanged(_)
            | VramError::IntegrityViolation => ErrorKind::Integrity,
            VramError::NotSealed => ErrorKind::InvalidState,
            VramError::InvalidInput(_) | VramError::ConfigError(_) => ErrorKind::InvalidArgument,
            VramError::CudaAllocationFailed(_) => ErrorKind::DeviceError,
            VramError::PolicyViolation(_) => ErrorKind::NotResident,
            VramError::Device(_) => {
                let VramError::Device(inner) = error else {
                    unreachable!("matched above")
                };
                return inner;
            }
        };
        Self::new(kind, error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::error::ALL_KINDS;

    #[test]
    fn every_kind_maps_and_only_the_seeds_kinds_are_retriable_or_fatal() {
        for &kind in ALL_KINDS.iter().chain(&[ErrorKind::Unknown(7777)]) {
            let error = VramError::from(Error::new(kind, "x"));
            assert!(!(error.is_retriable() && error.is_fatal()), "{kind:?}");
            assert!(!error.to_string().is_empty());
            let retriable = matches!(error, VramError::CudaAllocationFailed(_))
                || matches!(&error, VramError::Device(inner) if inner.is_retryable());
            assert_eq!(error.is_retriable(), retriable, "{kind:?}");
        }
        let lost = VramError::from(Error::new(ErrorKind::DeviceLost, "lost"));
        assert!(lost.is_fatal());
        assert_eq!(Error::from(lost).kind(), ErrorKind::DeviceLost);
    }

    #[test]
    fn errors_of_the_library_become_the_documented_ones_and_go_back() {
        let there_and_back = |kind| {
            let error = VramError::from(Error::new(kind, "why"));
            assert!(error.to_string().contains("why") || kind == ErrorKind::Integrity);
            let (retriable, fatal) = (error.is_retriable(), error.is_fatal());
            (Error::from(error).kind(), retriable, fatal)
        };
        for (kind, back, retriable, fatal) in [
            (
                ErrorKind::Malformed,
                ErrorKind::InvalidArgument,
                false,
                false,
            ),
            (ErrorKind::Io, ErrorKind::DeviceError, true, false),
            (ErrorKind::Unsupported, ErrorKind::NotResident, false, true),
            (ErrorKind::Integrity, ErrorKind::Integrity, false, true),
            (ErrorKind::Internal, ErrorKind::Internal, false, true),
        ] {
            assert_eq!(there_and_back(kind), (back, retriable, fatal), "{kind:?}");
        }
        let insufficient = VramError::InsufficientVram { needed: 2, have: 1 };
        for (error, kind, text) in [
            (insufficient, ErrorKind::OutOfMemory, "insufficient VRAM"),
            (
                VramError::NotSealed,
                ErrorKind::InvalidState,
                "the shard is not sealed",
            ),
            (
                VramError::IntegrityViolation,
                ErrorKind::Integrity,
                "integrity violation",
            ),
            (
                VramError::ConfigError("why".into()),
                ErrorKind::InvalidArgument,
                "configuration: why",
            ),
        ] {
            assert!(std::error::Error::source(&error).is_none());
            assert!(error.to_string().starts_with(text), "{error}");
            assert_eq!(Error::from(error).kind(), kind, "{text}");
        }
        let device = VramError::from(Error::new(ErrorKind::DeviceLost, "lost"));
        let source = std::error::Error::source(&device).expect("the library's error");
        assert_eq!(source.to_string(), "lost");
    }

    #[test]
    fn messages_state_the_numbers() {
        let error = VramError::InsufficientVram {
            needed: 10,
            have: 4,
        };
        assert_eq!(
            error.to_string(),
            "insufficient VRAM: needs 10 bytes, 4 are free"
        );
        assert!(error.is_retriable());
        let error = VramError::SealVerificationFailed {
            first_bad_mib: Some(3),
        };
        assert!(error.is_fatal() && error.to_string().contains("MiB 3"));
        assert_eq!(Error::from(error).kind(), ErrorKind::Integrity);
    }
}
