//! What `llm` and `compute` build on: errors, devices, contexts, memory and its ledger, streams, health, log.

pub mod allocator;
pub mod backends;
pub(crate) mod callback;
#[cfg(feature = "text")]
pub mod cancel;
pub mod context;
pub mod device;
pub mod error;
pub mod health;
pub mod ledger;
pub mod log;
pub mod memory;
pub(crate) mod native_text;
pub mod residency;
pub mod stream;
pub mod version;
