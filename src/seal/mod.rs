//! Sealed memory: data in device memory with a signed digest, which can be verified at any time.
//!
//! A [`VramManager`] owns the memory. A [`SealedShard`] identifies one region of the memory; it can be
//! cloned, serialized ([`SealedShard::to_bytes`]) and parsed. It has nothing to do with the shards of a
//! split model.
//!
//! Verification checks, in this order: whether the shard is sealed, whether the signature is that of the
//! manager, whether the allocation is live, whether it is in device memory, and whether its BLAKE3 digest
//! is unchanged. The digest is computed on the device. If it differs, the error names the first MiB that
//! changed.
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
//! Sealed data is used in place. [`VramManager::read`] copies verified bytes back, [`VramManager::view`]
//! passes them to kernels, and [`VramManager::reader`] opens a sealed GGUF file so that its model can be
//! loaded. [`VramManager::seal_weights`] seals the weights of a loaded model in place, and
//! [`VramManager::model`] passes the model to engines. Each use begins with the fast check
//! [`VramManager::check_sealed`].
//!
//! A signature is a keyed BLAKE3 hash of all fields of the shard, in one encoding with lengths
//! (docs/FORMATS.md). The key is `derive_key("worker-cuda seal v1", token)`. Keys and tokens are filled
//! with zeros when they are dropped, and never appear in `Debug` output, errors or events. Signatures and
//! digests are compared in constant time.

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
