//! Audit events of sealed memory.

use std::fmt;
use std::time::SystemTime;

/// Severity of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Severity {
    /// Informational.
    Info,
    /// The worker must stop using the sealed memory.
    Critical,
}

/// One event with its time and origin.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct AuditRecord {
    /// The time.
    pub timestamp: SystemTime,
    /// The configured name of the worker.
    pub worker_id: String,
    /// The event.
    pub event: AuditEvent,
}

/// An event. No event contains an address, a key or a token.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum AuditEvent {
    /// A shard was sealed.
    VramSealed {
        /// The shard's id.
        shard_id: String,
        /// The device.
        gpu_device: u32,
        /// Size of the shard.
        vram_bytes: u64,
        /// BLAKE3 digest of the bytes, 64 hex digits.
        digest: String,
    },
    /// A shard was verified and is unchanged.
    SealVerified {
        /// The shard's id.
        shard_id: String,
    },
    /// A shard was verified and has changed.
    SealVerificationFailed {
        /// The shard's id.
        shard_id: String,
        /// The reason.
        reason: String,
        /// The digest when the shard was sealed.
        expected_digest: String,
        /// The digest of the memory now; "" if it was not computed.
        actual_digest: String,
        /// Always critical.
        severity: Severity,
    },
    /// Memory was allocated.
    VramAllocated {
        /// Bytes requested.
        requested: u64,
        /// Bytes allocated.
        allocated: u64,
        /// Bytes still available.
        available: u64,
        /// Bytes sealed by this manager, including these.
        used: u64,
        /// The device.
        gpu_device: u32,
    },
    /// An allocation was refused.
    VramAllocationFailed {
        /// Bytes requested.
        requested: u64,
        /// Bytes available.
        available: u64,
        /// The reason.
        reason: String,
        /// The device.
        gpu_device: u32,
    },
    /// A shard's memory was freed.
    VramDeallocated {
        /// The shard's id.
        shard_id: String,
        /// Size of the shard.
        freed_bytes: u64,
        /// Bytes still sealed by this manager.
        remaining_used: u64,
        /// The device.
        gpu_device: u32,
    },
    /// Memory is not in the required place.
    PolicyViolation {
        /// The rule.
        policy: String,
        /// The violation.
        violation: String,
        /// Details.
        details: String,
        /// Always critical.
        severity: Severity,
        /// The manager's reaction.
        action_taken: String,
    },
}

impl AuditEvent {
    /// The severity of the event.
    pub fn severity(&self) -> Severity {
        match self {
            Self::SealVerificationFailed { severity, .. }
            | Self::PolicyViolation { severity, .. } => *severity,
            _ => Severity::Info,
        }
    }
}

/// Why a record could not be stored; it is only counted.
#[derive(Debug)]
pub struct AuditError(pub String);

impl fmt::Display for AuditError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for AuditError {}

/// Stores records. It is called on the thread that uses the manager. A failure or a panic does not fail the call
/// and is counted in [`AuditCounters`](super::AuditCounters).
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
    /// Stores one record.
    fn emit(&mut self, record: &AuditRecord) -> Result<(), AuditError>;

    /// Makes stored records durable. Called after each critical event and when the manager is dropped.
    fn flush(&mut self) -> Result<(), AuditError> {
        Ok(())
    }
}
