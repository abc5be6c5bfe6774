//! Runs GGUF language models on an NVIDIA GPU or on the CPU. The crate wraps the C interface of
//! `libworker_cuda.a` in safe types and adds tokenizers, chat templates, text generation and a scheduler.
//!
//! | Concept | Type | What it is |
//! |---|---|---|
//! | device | [`devices`], [`DeviceCaps`] | a GPU or the CPU of this machine |
//! | context | [`CudaContext`] | an open device, which accounts for every byte allocated on it |
//! | memory | [`SafeCudaPtr`], [`CudaView`], [`PinnedBuffer`] | bounds-checked device memory, views of it, pinned host memory |
//! | allocator | [`CudaVramAllocator`] | device memory by allocation ids, which are never reused |
//! | ledger | [`CudaContext::memory`], [`CudaContext::ledger`], [`CudaContext::set_budget`] | lists allocations by purpose and enforces budgets |
//! | residency | [`CudaContext::check_residency`], [`CudaContext::enforce_vram_only_policy`] | checks that all memory is device memory |
//! | seal | `seal::VramManager`, `seal::SealedShard` (feature `seal`) | device memory with a signed digest, which shows whether the memory has changed |
//! | file | [`Gguf`] | a GGUF file: metadata and tensors, validated when the file is opened |
//! | plan | [`CudaContext::plan`] | the memory that a model needs, computed before anything is allocated |
//! | model | [`Model`] | the weights of a model on the device; loading reports progress and can be cancelled |
//! | engine | [`Engine`], [`EngineOptions`] | runs steps of a model, with a KV cache; two steps may be in flight |
//! | sequence | [`Sequence`] | the tokens of one conversation; can be forked, truncated and saved; shares pages that have keys |
//! | step | [`Step`], [`Row`], [`Sampling`], [`StepOutput`] | a batch of tokens in; sampled tokens, log probabilities and logits out |
//! | scheduler | `scheduler::Scheduler`, `scheduler::Plan` (feature `scheduler`) | decides what each step computes for many requests |
//! | service | `generate::Service` (feature `text`) | serves many requests at once on one engine |
//! | stream | [`Stream`], [`Event`], [`PendingCopy`] | work in order, points in this work, asynchronous copies |
//! | program | [`Program`], [`KernelCache`] | CUDA C++ that is compiled at run time, and a cache of compiled programs |
//! | kernel | [`CudaModule`], [`CudaFunction`], [`GpuArg`], [`GpuCompute`] | device code or CPU functions, launched with checked arguments |
//! | matrix multiplication | [`CudaContext::gemm`] | with f32, tf32, f16, bf16 and fp8 operands |
//! | registry | [`RegisteredKernel`], `manifest` (feature `manifest`) | kernels by id and name, each with a descriptor that states which calls are valid; a manifest is a file of descriptors |
//! | frames | `zctl::Session`, `zctl::Server`, `zctl::Client` (feature `zctl`) | a binary protocol (ZCTL/1) for listing and running kernels |
//! | health | [`CudaContext::health`] | the state of the device, of its memory, and errors |
//! | text | `text`, `generate` (feature `text`) | tokenizers, chat templates, streamed generation |
//!
//! ```
//! use worker_cuda::{CudaContext, Purpose};
//!
//! # fn main() -> worker_cuda::Result<()> {
//! let context = CudaContext::auto()?; // a GPU if there is one, else the CPU
//! let mut buffer = context.alloc::<f32>(1024)?;
//! buffer.fill(0.5)?;
//! buffer.write_at(10, &[1.0, 2.0])?;
//! assert_eq!(buffer.to_vec()?[9..13], [0.5, 1.0, 2.0, 0.5]);
//!
//! // A failed call returns an error whose message has the values.
//! let error = buffer.write_at(1023, &[1.0, 2.0]).unwrap_err();
//! assert_eq!(error.kind(), worker_cuda::ErrorKind::OutOfRange);
//!
//! drop(buffer);
//! assert_eq!(context.memory(Purpose::Any)?.current_bytes, 0);
//! # Ok(())
//! # }
//! ```
//!
//! Every failure is an [`Error`]. The crate never aborts, never prints and does not read the environment. As
//! long as a value exists, the values from which it was created stay alive, so values may be dropped in any
//! order. `mem::forget` leaks memory but is sound. Errors that occur while a value is dropped are counted in
//! [`Health::deferred_error_count`]. After `fork()`, the crate must not be used in the child process.
//!
//! # Features
//!
//! * `text` (default): tokenizers, chat templates and text generation; modules `text` and `generate`.
//! * `scheduler` (default): assigns the tokens of many requests to steps; module `scheduler`.
//! * `seal` (default): detects changed device memory with signed digests; module `seal`.
//! * `manifest`: reads kernel descriptors from a JSON file; module `manifest`.
//! * `zctl`: a binary protocol (ZCTL/1) for listing and running kernels; module `zctl`.
//! * `cuda-auto` (default): builds the CUDA backend if a toolkit is found. `cuda`: a missing toolkit is a build
//!   error. The environment variable `WORKER_CUDA_BUILD` (`on`, `off`, `auto`) overrides these two features.
//! * `constraints`: answers that follow a JSON schema, a grammar or a regular expression; module `generate::constraints`.
//! * `compat`: links the functions of `worker_cuda_compat.h` as symbols that other languages bind.
//! * `stream`: provides generated text as a `futures_core::Stream`.
//! * `tracing`: passes log records to the `tracing` crate, see [`log`].
#![deny(missing_docs, unsafe_op_in_unsafe_fn)]
#![deny(clippy::undocumented_unsafe_blocks)]

pub mod backend;
pub mod compute;
mod core;
#[doc(hidden)]
pub mod ffi;
mod llm;
#[cfg(feature = "scheduler")]
pub mod scheduler;
#[cfg(feature = "seal")]
pub mod seal;
#[cfg(feature = "zctl")]
pub mod zctl;

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
pub use engine::{Engine, EngineInfo, Sequence, Ticket, Token, TokenFeatures};
pub use error::{Error, ErrorKind, Numbers, Result};
pub use failover::{Failover, FailoverEvent, FailoverMode};
pub use gemm::{Activation, Gemm, GemmType, gemm_library};
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
pub use step::{HiddenState, LateRow, Row, RowResult, RowStatus, Sampling, Step, StepOutput};
pub use stream::{Event, PendingCopy, Priority, Stream};
pub use version::{build_info, built_with_cuda, version};

/// Compiles the Rust examples of the README.
#[cfg(all(doctest, feature = "text", feature = "zctl"))]
#[doc = include_str!("../README.md")]
struct Readme;
