//! GGUF language models resident in the memory of a GPU, or of the host: the safe Rust side of
//! `libworker_cuda.a`.
#![deny(missing_docs, unsafe_op_in_unsafe_fn)]
#![deny(clippy::undocumented_unsafe_blocks)]

mod callback;
pub mod context;
pub mod device;
pub mod engine;
pub mod error;
#[doc(hidden)]
pub mod ffi;
#[cfg(feature = "text")]
pub mod generate;
pub mod gguf;
pub mod health;
pub mod ledger;
pub mod log;
pub mod memory;
pub mod model;
mod native_text;
pub mod plan;
pub mod step;
#[cfg(feature = "text")]
pub mod text;
pub mod version;

pub use context::{ContextBuilder, ContextInfo, CudaContext};
pub use device::{Backend, DeviceCaps, cuda_available, devices};
pub use engine::{Engine, EngineInfo, Sequence, Ticket, Token};
pub use error::{Error, ErrorKind, Result};
pub use gguf::Gguf;
pub use health::{Health, HealthState};
pub use ledger::{LedgerEntry, MemoryInfo, Purpose};
pub use memory::{DeviceRepr, PinnedBuffer, SafeCudaPtr};
pub use model::{CancelHandle, LoadPhase, Model, ModelInfo, Progress};
pub use plan::{EngineOptions, KvType, Plan};
pub use step::{Row, RowResult, RowStatus, Sampling, Step, StepOutput};
pub use version::{build_info, built_with_cuda, version};
