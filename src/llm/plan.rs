//! Engine options, and the plan: the memory a model needs, before anything is allocated.
//!
//! ```no_run
//! # fn main() -> worker_cuda::Result<()> {
//! use worker_cuda::{CudaContext, EngineOptions, Gguf, KvType};
//!
//! let context = CudaContext::auto()?;
//! let options = EngineOptions::new().max_sequences(8).kv_type(KvType::Q8_0);
//! let plan = context.plan(&Gguf::open("model.gguf")?, &options)?;
//! println!("{plan:?}");
//! # Ok(())
//! # }
//! ```

use std::ffi::{CStr, c_char};

use crate::core::context::CudaContext;
use crate::core::error::{Result, call};
use crate::core::native_text::as_native;
use crate::ffi;
use crate::llm::gguf::Gguf;
use crate::llm::model::Model;

/// How keys and values are stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum KvType {
    /// f16: 2 bytes per number.
    #[default]
    F16,
    /// Blocks of 32 numbers with one scale: 8.5 bits per number.
    Q8_0,
    /// FP8 e4m3: 1 byte per number.
    Fp8E4m3,
    /// Codes of 10 bits with one scale for 64 numbers: 10.25 bits per number. Keys are stored rotated, which makes
    /// their largest numbers smaller. Heads have a multiple of 64 numbers.
    Int10,
    /// A type that this version of the crate does not know.
    Unknown(i32),
}

impl KvType {
    pub(crate) fn to_native(self) -> i32 {
        match self {
            Self::F16 => ffi::WCUDA_KV_F16,
            Self::Q8_0 => ffi::WCUDA_KV_Q8_0,
            Self::Fp8E4m3 => ffi::WCUDA_KV_FP8_E4M3,
            Self::Int10 => ffi::WCUDA_KV_INT10,
            Self::Unknown(kv_type) => kv_type,
        }
    }

    pub(crate) fn from_native(kv_type: i32) -> Self {
        match kv_type {
            ffi::WCUDA_KV_F16 => Self::F16,
            ffi::WCUDA_KV_Q8_0 => Self::Q8_0,
            ffi::WCUDA_KV_FP8_E4M3 => Self::Fp8E4m3,
            ffi::WCUDA_KV_INT10 => Self::Int10,
            other => Self::Unknown(other),
        }
    }
}

/// Whether steps of one token compute the linear layers between two attentions in one persistent kernel. This is
/// faster for one sequence of a large model, and sums in another order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PersistentLayers {
    /// If the model and the device are known to run faster with it.
    #[default]
    Auto,
    /// Always; [`Engine::new`](crate::Engine::new) fails with
    /// [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported) where model or device have no such kernel.
    On,
    /// Never.
    Off,
}

/// Limits of an engine. Each method states its default; [`EngineInfo`] shows the limits in force.
///
/// [`EngineInfo`]: crate::EngineInfo
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[must_use = "options do nothing until an engine or a plan is made with them"]
pub struct EngineOptions {
    kv_type: KvType,
    flags: u64,
    max_sequences: u32,
    max_batch_tokens: u32,
    max_batch_rows: u32,
    max_sequence_tokens: u32,
    kv_tokens: u64,
    max_logits_rows: u32,
    max_top_logprobs: u32,
    max_draft_tokens: u32,
    draft_head: Option<Model>,
}

impl EngineOptions {
    /// All defaults.
    pub fn new() -> Self {
        Self::default()
    }

    /// How keys and values are stored; default f16.
    pub fn kv_type(mut self, kv_type: KvType) -> Self {
        self.kv_type = kv_type;
        self
    }

    /// If on, a row's result does not depend on the other rows of its step; default off.
    pub fn batch_invariant(self, on: bool) -> Self {
        self.flag(ffi::WCUDA_ENGINE_BATCH_INVARIANT, on)
    }

    /// For tests: fills free pages with NaN; default off.
    pub fn poison_free_pages(self, on: bool) -> Self {
        self.flag(ffi::WCUDA_ENGINE_POISON_FREE_PAGES, on)
    }

    /// If on, rows may return [hidden states](crate::Row::hidden_state), for which scratch memory is reserved; default
    /// off.
    pub fn hidden_states(self, on: bool) -> Self {
        self.flag(ffi::WCUDA_ENGINE_HIDDEN_STATES, on)
    }

    /// If on, rows may return [log probabilities of their own tokens](crate::Row::token_logprobs), for which scratch
    /// memory is reserved; default off.
    pub fn token_logprobs(self, on: bool) -> Self {
        self.flag(ffi::WCUDA_ENGINE_TOKEN_LOGPROBS, on)
    }

    /// Persistent fused layers; default: chosen by model and device. Cannot be combined with
    /// [`batch_invariant`](Self::batch_invariant).
    pub fn persistent_layers(self, choice: PersistentLayers) -> Self {
        self.flag(
            ffi::WCUDA_ENGINE_PERSISTENT_LAYERS_ON,
            choice == PersistentLayers::On,
        )
        .flag(
            ffi::WCUDA_ENGINE_PERSISTENT_LAYERS_OFF,
            choice == PersistentLayers::Off,
        )
    }

    /// Maximum of live sequences; default 16.
    pub fn max_sequences(mut self, count: u32) -> Self {
        self.max_sequences = count;
        self
    }

    /// Maximum of tokens in one step, over all rows; default 512.
    pub fn max_batch_tokens(mut self, count: u32) -> Self {
        self.max_batch_tokens = count;
        self
    }

    /// Maximum of rows in one step; default: the number of sequences.
    pub fn max_batch_rows(mut self, count: u32) -> Self {
        self.max_batch_rows = count;
        self
    }

    /// Maximum of positions of one sequence; default: the model's context length.
    pub fn max_sequence_tokens(mut self, count: u32) -> Self {
        self.max_sequence_tokens = count;
        self
    }

    /// Positions of all sequences together, rounded up to pages of 64. Default: one full sequence or 512 positions
    /// per sequence, whichever is larger.
    pub fn kv_tokens(mut self, count: u64) -> Self {
        self.kv_tokens = count;
        self
    }

    /// Maximum of rows of logits that one step computes, one for each token that it samples and those that it
    /// returns; default: the number of rows and of draft tokens.
    pub fn max_logits_rows(mut self, count: u32) -> Self {
        self.max_logits_rows = count;
        self
    }

    /// Maximum of alternatives that a sampled token reports, at most 128; default 0.
    pub fn max_top_logprobs(mut self, count: u32) -> Self {
        self.max_top_logprobs = count;
        self
    }

    /// Maximum of [draft tokens](crate::Row::drafts) in one step, over all rows; default 0.
    pub fn max_draft_tokens(mut self, count: u32) -> Self {
        self.max_draft_tokens = count;
        self
    }

    /// A draft head of the model: the engine keeps the features that this head reads, next to keys and values. Default:
    /// none. [`ModelDraft::head`](crate::generate::ModelDraft::head) guesses with it.
    pub fn draft_head(mut self, head: &Model) -> Self {
        self.draft_head = Some(head.clone());
        self
    }

    /// The draft head, if there is one.
    #[cfg(feature = "text")]
    pub(crate) fn head(&self) -> Option<&Model> {
        self.draft_head.as_ref()
    }

    fn flag(mut self, flag: u64, on: bool) -> Self {
        self.flags = if on {
            self.flags | flag
        } else {
            self.flags & !flag
        };
        self
    }

    pub(crate) fn to_native(&self) -> ffi::wcuda_engine_options {
        let mut native = ffi::wcuda_engine_options::init();
        native.kv_type = self.kv_type.to_native();
        native.flags = self.flags;
        native.max_sequences = self.max_sequences;
        native.max_batch_tokens = self.max_batch_tokens;
        native.max_batch_rows = self.max_batch_rows;
        native.max_sequence_tokens = self.max_sequence_tokens;
        native.kv_tokens = self.kv_tokens;
        native.max_logits_rows = self.max_logits_rows;
        native.max_top_logprobs = self.max_top_logprobs;
        native.max_draft_tokens = self.max_draft_tokens;
        if let Some(head) = &self.draft_head {
            native.draft_head = head.handle();
        }
        native
    }
}

/// The memory that loading a file and running it needs on the device: exactly the bytes that the ledger shows
/// afterwards.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Plan {
    /// Whether `total_bytes`, and during the load weights and `loading_bytes` together, fit in the free memory and in
    /// the budget.
    pub fits: bool,
    /// Weights.
    pub weights_bytes: u64,
    /// Pages, page tables and token history.
    pub kv_bytes: u64,
    /// Activations, logits, sampling.
    pub scratch_bytes: u64,
    /// Sum of these three.
    pub total_bytes: u64,
    /// Pinned host memory while loading.
    pub staging_bytes: u64,
    /// Bytes that the context can still allocate.
    pub available_bytes: u64,
    /// Bytes of one page of 64 positions.
    pub kv_page_bytes: u64,
    /// Number of pages.
    pub kv_page_count: u64,
    /// Device memory for the load in addition to the weights; 0 on the host backend.
    pub loading_bytes: u64,
    /// Estimate of the device memory that the CUDA driver takes for captured graphs, once all kinds of steps have
    /// occurred; 0 on the host backend. Not part of `total_bytes`: it counts neither for the budget nor for `fits`.
    pub graph_bytes: u64,
}

impl StepPlan {
    /// Reads the result of a `…_list` function, called with rates, nodes, their number, and the count to write.
    pub(crate) fn read(
        mut list: impl FnMut(
            *mut ffi::wcuda_step_rates,
            *mut ffi::wcuda_step_node,
            u64,
            *mut u64,
        ) -> Result<()>,
    ) -> Result<Self> {
        let mut rates = ffi::wcuda_step_rates::init();
        let mut nodes = vec![ffi::wcuda_step_node::init(); 512];
        loop {
            let mut count = 0;
            list(
                &mut rates,
                nodes.as_mut_ptr(),
                nodes.len() as u64,
                &mut count,
            )?;
            if count as usize <= nodes.len() {
                nodes.truncate(count as usize);
                return Ok(Self {
                    is_measured: rates.is_measured != 0,
                    bytes_per_second: rates.bytes_per_second,
                    flops_per_second: rates.flops_per_second,
                    nodes: nodes.iter().map(StepNode::from_native).collect(),
                });
            }
            nodes.resize(count as usize, ffi::wcuda_step_node::init());
        }
    }
}

impl StepNode {
    fn from_native(node: &ffi::wcuda_step_node) -> Self {
        let text = |text: *const c_char| {
            // SAFETY: the library's texts are static and end with NUL.
            unsafe { CStr::from_ptr(text) }
                .to_string_lossy()
                .into_owned()
        };
        Self {
            layer: (node.layer != u32::MAX).then_some(node.layer),
            fused_count: node.fused_count,
            operation: text(node.operation),
            kernel: text(node.kernel),
            input: text(node.input),
            output: text(node.output),
            bytes: node.bytes,
            flops: node.flops,
            limit_ns: node.limit_ns,
            measured_ns: node.measured_ns,
        }
    }
}

/// A step of rows of equal length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepShape {
    /// Rows.
    pub rows: u32,
    /// Tokens of each row.
    pub row_tokens: u32,
    /// Positions of each row before its first token.
    pub context_tokens: u32,
}

/// The nodes of a step in order, and the rates of the device.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct StepPlan {
    /// True if the rates were measured, false if they are computed from the device's attributes.
    pub is_measured: bool,
    /// Rate of device memory; 0: unknown.
    pub bytes_per_second: u64,
    /// Rate of f16 multiplications with f32 sums; 0: unknown.
    pub flops_per_second: u64,
    /// In the order in which they run.
    pub nodes: Vec<StepNode>,
}

/// One operation of a step: one kernel or a few.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct StepNode {
    /// The layer it belongs to.
    pub layer: Option<u32>,
    /// Linear layers in a `persistent_layers` node; 1 in all others.
    pub fused_count: u32,
    /// The operation's name, for example `query_key_value`.
    pub operation: String,
    /// The kernel's name, for example `linear_vector`; `host` on the host backend.
    pub kernel: String,
    /// Form of the input activation, for example `f32`.
    pub input: String,
    /// Form of the output.
    pub output: String,
    /// Bytes of device memory read and written: weights, activations, pages of keys and values.
    pub bytes: u64,
    /// Floating-point operations of the matrix products.
    pub flops: u64,
    /// Nanoseconds at the roofline; 0: unknown.
    pub limit_ns: f64,
    /// Measured nanoseconds of this node alone; 0 in a plan.
    pub measured_ns: f64,
}

impl CudaContext {
    /// The nodes of a step of this shape for `gguf` with these options, on this context's device or, without a GPU,
    /// on a device of the table of measured rates (`"H200"`). Reads no tensor data.
    pub fn plan_steps(
        &self,
        gguf: &Gguf,
        options: &EngineOptions,
        shape: &StepShape,
        device: Option<&str>,
    ) -> Result<StepPlan> {
        let options = options.to_native();
        let mut native_shape = ffi::wcuda_step_shape::init();
        native_shape.row_count = shape.rows;
        native_shape.row_tokens = shape.row_tokens;
        native_shape.context_tokens = shape.context_tokens;
        StepPlan::read(|rates, nodes, capacity, count| {
            gguf.run_reading(|| {
                // SAFETY: all structs are valid and sized, and `nodes` has as many as is said.
                call(|error| unsafe {
                    ffi::wcuda_plan_steps_list(
                        self.handle(),
                        gguf.handle(),
                        &options,
                        &native_shape,
                        as_native(device.unwrap_or("")),
                        rates,
                        0,
                        nodes,
                        capacity,
                        count,
                        error,
                    )
                })
            })
        })
    }

    /// The memory that `gguf` needs with these options. Reads no tensor data. A model that cannot be run is refused
    /// here already, with the reason.
    pub fn plan(&self, gguf: &Gguf, options: &EngineOptions) -> Result<Plan> {
        let options = options.to_native();
        let mut plan = ffi::wcuda_plan::init();
        gguf.run_reading(|| {
            // SAFETY: both structs are valid and sized.
            call(|error| unsafe {
                ffi::wcuda_plan_get(self.handle(), gguf.handle(), &options, &mut plan, error)
            })
        })?;
        Ok(Plan {
            fits: plan.fits != 0,
            weights_bytes: plan.weights_bytes,
            kv_bytes: plan.kv_bytes,
            scratch_bytes: plan.scratch_bytes,
            total_bytes: plan.total_bytes,
            staging_bytes: plan.staging_bytes,
            available_bytes: plan.available_bytes,
            kv_page_bytes: plan.kv_page_bytes,
            kv_page_count: plan.kv_page_count,
            loading_bytes: plan.loading_bytes,
            graph_bytes: plan.graph_bytes,
        })
    }
}

impl Model {
    /// The memory that one more engine on this model needs with these options. The weights are loaded already and
    /// count as 0; `available_bytes` is what the context can still allocate.
    ///
    /// ```no_run
    /// # use worker_cuda::{CudaContext, Engine, EngineOptions, Gguf, Model};
    /// # fn main() -> worker_cuda::Result<()> {
    /// let model = Model::load(&CudaContext::auto()?, &Gguf::open("model.gguf")?)?;
    /// let options = EngineOptions::new().max_sequences(8);
    /// let plan = model.plan_engine(&options)?;
    /// if plan.fits {
    ///     Engine::new(&model, &options)?;
    /// } else {
    ///     println!("{} bytes, {} are left", plan.total_bytes, plan.available_bytes);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn plan_engine(&self, options: &EngineOptions) -> Result<Plan> {
        let whole = self.context().plan(self.gguf(), options)?;
        let total_bytes = whole.total_bytes - whole.weights_bytes;
        Ok(Plan {
            fits: total_bytes <= whole.available_bytes,
            weights_bytes: 0,
            total_bytes,
            staging_bytes: 0,
            loading_bytes: 0,
            ..whole
        })
    }
}
