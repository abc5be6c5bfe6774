//! GGUF language models resident in the memory of a GPU, or of the host: the safe Rust side of
//! `libworker_cuda.a`.
//!
//! | Concept | Type | What it is |
//! |---|---|---|
//! | device | [`devices`], [`DeviceCaps`] | what this machine can compute on |
//! | context | [`CudaContext`] | one open device; every byte on it is accounted for |
//! | memory | [`SafeCudaPtr`], [`CudaView`], [`PinnedBuffer`] | checked device memory and windows into it, pinned host memory |
//! | allocator | [`CudaVramAllocator`] | device memory by ids that never name something else |
//! | ledger | [`CudaContext::memory`], [`CudaContext::ledger`], [`CudaContext::set_budget`] | who holds which bytes, and the budgets |
//! | residency | [`CudaContext::check_residency`], [`CudaContext::enforce_vram_only_policy`] | proof that memory is the device's own |
//! | seal | `seal::VramManager`, `seal::SealedShard` (feature `seal`) | bytes proved to be on the device unchanged |
//! | file | [`Gguf`] | metadata and tensors of a GGUF file, checked when it is opened |
//! | plan | [`CudaContext::plan`] | what a model needs, before a byte is allocated |
//! | model | [`Model`] | weights on the device; loading tells progress and can be cancelled |
//! | engine | [`Engine`], [`EngineOptions`] | a model at work: memory for keys and values, two steps in flight |
//! | sequence | [`Sequence`] | the tokens of one conversation; can be forked and cut back |
//! | step | [`Step`], [`Row`], [`Sampling`], [`StepOutput`] | tokens in, drawn tokens, logprobs and logits out |
//! | stream | [`Stream`], [`Event`], [`PendingCopy`] | work in order, points in it, copies that do not wait |
//! | program | [`Program`], [`KernelCache`] | CUDA C++ compiled at run time, and where results are kept |
//! | kernel | [`CudaModule`], [`CudaFunction`], [`GpuArg`], [`GpuCompute`] | device code or host functions, launched with checked arguments |
//! | product | [`CudaContext::gemm`] | matrix products of every element type |
//! | registry | [`RegisteredKernel`], `manifest` (feature `manifest`) | kernels by name and number, with what a call must be like; from a file |
//! | health | [`CudaContext::health`] | whether the device can be used |
//! | text | `text`, `generate` (feature `text`) | tokenizers, chat templates, streamed answers |
//!
//! ```
//! use worker_cuda::{CudaContext, Purpose};
//!
//! # fn main() -> worker_cuda::Result<()> {
//! let context = CudaContext::auto()?; // a GPU where there is one, else the host
//! let mut buffer = context.alloc::<f32>(1024)?;
//! buffer.fill(0.5)?;
//! buffer.write_at(10, &[1.0, 2.0])?;
//! assert_eq!(buffer.to_vec()?[9..13], [0.5, 1.0, 2.0, 0.5]);
//!
//! // Mistakes are values that tell the numbers.
//! let error = buffer.write_at(1023, &[1.0, 2.0]).unwrap_err();
//! assert_eq!(error.kind(), worker_cuda::ErrorKind::OutOfRange);
//!
//! drop(buffer);
//! assert_eq!(context.memory(Purpose::Any)?.current_bytes, 0);
//! # Ok(())
//! # }
//! ```
//!
//! Every failure is an [`Error`]; nothing here aborts, prints or reads the environment. What is made
//! from something keeps it alive, so values may be dropped in any order, and forgetting one leaks
//! memory but breaks nothing. Failures of a drop, which can tell nobody, are counted in
//! [`Health::deferred_error_count`]. After `fork()` nothing may be used in the child.
//!
//! # Features
//!
//! * `seal` (default): signed shards of device memory that can be checked, `seal`.
//! * `manifest`: kernels described in a JSON file, `manifest`.
//! * `text` (default): tokenizers, chat templates and text generation.
//! * `stream`: generations as `futures_core::Stream`.
//! * `cuda-auto` (default): builds with CUDA if a toolkit is found. `cuda`: a missing toolkit is an
//!   error. The environment variable `WORKER_CUDA_BUILD` (`on`, `off`, `auto`) overrides both.
//! * `tracing`: hands log records to the `tracing` crate, see [`log`].
#![deny(missing_docs, unsafe_op_in_unsafe_fn)]
#![deny(clippy::undocumented_unsafe_blocks)]

pub mod backend;
pub mod compute;
mod core;
#[doc(hidden)]
pub mod ffi;
mod llm;
#[cfg(feature = "seal")]
pub mod seal;

pub use self::backend::failover;
#[cfg(feature = "manifest")]
pub use self::compute::manifest;
pub use self::compute::{catalogue, gemm, module, program, registry};
pub use self::core::{
    allocator, context, device, error, health, ledger, log, memory, residency, stream, version,
};
#[cfg(feature = "text")]
pub use self::llm::{compat, generate, text};
pub use self::llm::{engine, gguf, model, plan, step};

pub use allocator::{AllocationId, CudaVramAllocator};
pub use backend::{BackendEntry, BackendInstance, Fault, Features, Selection, backends};
pub use catalogue::{BuiltinKernel, ElementType, Layer, catalogue};
pub use compute::{
    ComputeStats, Difference, Dim, ExecutionResult, Fallback, GpuCompute, GpuDevice, HostCall,
    KernelLauncher, KernelSpec, Parity,
};
pub use context::{ContextBuilder, ContextInfo, CudaContext, Scrub};
pub use device::{Backend, DeviceCaps, cuda_available, devices};
pub use engine::{Engine, EngineInfo, Sequence, Ticket, Token};
pub use error::{Error, ErrorKind, Numbers, Result};
pub use failover::{Failover, FailoverEvent, FailoverMode};
pub use gemm::{Activation, Gemm, GemmType};
pub use gguf::Gguf;
pub use health::{Health, HealthState};
pub use ledger::{LedgerEntry, MemoryInfo, Purpose};
#[cfg(feature = "manifest")]
pub use manifest::{HostFunctions, Manifest};
pub use memory::{
    CudaView, CudaViewMut, DeviceRepr, PinnedBuffer, SafeCudaPtr, join_digest_pieces,
};
pub use model::{CancelHandle, LoadPhase, Model, ModelInfo, Progress, TensorDigests};
pub use module::{CudaFunction, CudaModule, GpuArg, KernelInfo, LaunchConfig, Occupancy};
pub use plan::{EngineOptions, KvType, PersistentLayers, Plan, StepNode, StepPlan, StepShape};
pub use program::{CacheResult, CacheStats, CodeKind, KernelCache, Program, ProgramBuilder};
pub use registry::RegisteredKernel;
pub use residency::{Place, Residency};
pub use step::{Row, RowResult, RowStatus, Sampling, Step, StepOutput};
pub use stream::{Event, PendingCopy, Priority, Stream};
pub use version::{build_info, built_with_cuda, version};

/// The sample of the README compiles.
#[cfg(all(doctest, feature = "text"))]
#[doc = include_str!("../README.md")]
struct Readme;
