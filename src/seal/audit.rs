//! Audit events of sealed memory.

use std::fmt;
use std::time::SystemTime;

/// How grave an event is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Severity {
    /// Worth knowing.
    Info,
    /// The worker must stop.
    Critical,
}

/// One event with when and where it happened.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct AuditRecord {
    /// When.
    pub timestamp: SystemTime,
    /// Which worker, as configured.
    pub worker_id: String,
    /// What.
    pub event: AuditEvent,
}

/// What happened. No event holds an address, a key or a token.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum AuditEvent {
    /// A shard was sealed.
    VramSealed {
        /// Its id.
        shard_id: String,
        /// Its device.
        gpu_device: u32,
        /// Its size.
        vram_bytes: u64,
        /// BLAKE3 of its bytes, 64 hex digits.
        digest: String,
    },
    /// A shard was checked and is as sealed.
    SealVerified {
        /// Its id.
        shard_id: String,
    },
    /// A shard was checked and is not.
    SealVerificationFailed {
        /// Its id.
        shard_id: String,
        /// What the check found.
        reason: String,
        /// The digest that was sealed.
        expected_digest: String,
        /// The digest of the memory now; "" when it was not computed.
        actual_digest: String,
        /// Always critical.
        severity: Severity,
    },
    /// Memory was allocated.
    VramAllocated {
        /// Bytes asked for.
        requested: u64,
        /// Bytes given.
        allocated: u64,
        /// Bytes left after it.
        available: u64,
        /// Bytes sealed by this manager after it.
        used: u64,
        /// The device.
        gpu_device: u32,
    },
    /// Memory was refused.
    VramAllocationFailed {
        /// Bytes asked for.
        requested: u64,
        /// Bytes there are.
        available: u64,
        /// Why.
        reason: String,
        /// The device.
        gpu_device: u32,
    },
    /// A shard's memory was freed.
    VramDeallocated {
        /// Its id.
        shard_id: String,
        /// Its size.
        freed_bytes: u64,
        /// Bytes still sealed by this manager.
        remaining_used: u64,
        /// The device.
        gpu_device: u32,
    },
    /// Memory is not where it must be.
    PolicyViolation {
        /// Which rule.
        policy: String,
        /// How it is broken.
        violation: String,
        /// What was found.
        details: String,
        /// Always critical.
        severity: Severity,
        /// What the manager did.
        action_taken: String,
    },
}

impl AuditEvent {
    /// How grave it is.
    pub fn severity(&self) -> Severity {
        match self {
            Self::SealVerificationFailed { severity, .. }
            | Self::PolicyViolation { severity, .. } => *severity,
            _ => Severity::Info,
        }
    }
}

/// Why a record could not be kept; only counted.
#[derive(Debug)]
pub struct AuditError(pub String);

impl fmt::Display for AuditError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for AuditError {}

/// Keeps records. Called on the thread that uses the manager; a failure or a panic fails nothing else and
/// is counted in [`AuditCounters`](super::AuditCounters).
///
/// ```
/// use worker_cuda::seal::{AuditError, AuditRecord, AuditSink};
/// # fn main() -> worker_cuda::Result<()> {
/// struct Lines(Vec<String>);
/// impl AuditSink for Lines {
///     fn emit(&mut self, record: &AuditRecord) -> Result<(), AuditError> {
///         self.0.push(format!("{:?}", record.event));
///         Ok(())
///     }
/// }
/// # Ok(())
/// # }
/// ```
pub trait AuditSink: Send {
    /// Keeps one record.
    fn emit(&mut self, record: &AuditRecord) -> Result<(), AuditError>;

    /// Makes sure that what was kept lasts: after each critical event, and when the manager goes.
    fn flush(&mut self) -> Result<(), AuditError> {
        Ok(())
    }
}
