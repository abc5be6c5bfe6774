//! Sealed memory: data copied to a device, named by a signed shard, and verifiable at any time.
//!
//! The manager owns the memory; a [`SealedShard`] is a name that can be cloned, serialized
//! ([`SealedShard::to_bytes`]) and parsed. Verification checks in this order: whether it is sealed, the
//! manager's signature, whether the allocation is alive, whether it is on the device, its BLAKE3 digest. The
//! digest is computed on the device, and a mismatch names the first MiB that differs.
//!
//! ```
//! use worker_cuda::seal::{VramConfig, VramManager};
//!
//! # fn main() -> Result<(), worker_cuda::seal::VramError> {
//! # let context = worker_cuda::CudaContext::host()?;
//! let config = VramConfig::new(b"a token of at least thirty-two bytes");
//! let mut manager = VramManager::with_context(context, config)?;
//! let shard = manager.seal_model(b"weights", 0)?;
//! manager.verify_sealed(&shard)?;
//! manager.deallocate(&shard)?;
//! assert!(manager.verify_sealed(&shard).is_err());
//! # Ok(())
//! # }
//! ```
//!
//! What is sealed is used where it is: [`VramManager::read`] copies checked bytes back,
//! [`VramManager::view`] passes them to kernels, [`VramManager::reader`] opens a sealed GGUF file and loads
//! its model. [`VramManager::seal_weights`] seals the weights of a loaded model where they are, and
//! [`VramManager::model`] passes the model to engines. Each use begins with the fast check,
//! [`VramManager::check_sealed`].
//!
//! Signatures are keyed BLAKE3 under `derive_key("worker-cuda seal v1", token)`, over every field of the
//! shard in one encoding with lengths (docs/FORMATS.md). Keys and tokens are zeroed when dropped and never
//! appear in `Debug` output, errors or events. Verification compares in constant time.

mod audit;
mod config;
mod error;
mod manager;
mod shard;
mod signature;
mod view;

pub use audit::{AuditError, AuditEvent, AuditRecord, AuditSink, Severity};
pub use config::VramConfig;
pub use error::{VramError, VramResult};
pub use manager::{AuditCounters, ShardLabel, VramManager};
pub use shard::SealedShard;
pub use view::{SealedReader, SealedView};
