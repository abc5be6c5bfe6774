//! Options that several commands share.

use std::path::PathBuf;

use clap::ValueEnum;
use worker_cuda::generate::service::Drafting;
use worker_cuda::generate::{Draft, NgramDraft, Session};
use worker_cuda::{Backend, ContextBuilder, CudaContext, EngineOptions, KvType, Row, Sampling};

#[derive(clap::Args, Clone, Debug)]
pub struct ModelArgs {
    /// The GGUF file
    #[arg(short, long, value_name = "FILE")]
    pub model: PathBuf,
}

#[derive(clap::Args, Clone, Debug)]
pub struct DeviceArgs {
    /// Where to compute
    #[arg(long, value_enum, default_value_t = BackendChoice::Auto)]
    pub backend: BackendChoice,
    /// Number of the CUDA device
    #[arg(long, alias = "gpu-device", value_name = "N", default_value_t = 0)]
    pub device: i32,
    /// Threads of the CPU backend [default: the CPUs available to this process]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub threads: Option<u32>,
    /// Limit of device memory, in MiB [default: no limit]
    #[arg(long, value_name = "MIB", value_parser = clap::value_parser!(u64).range(1..=1 << 40))]
    pub memory_budget: Option<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum BackendChoice {
    /// A GPU if there is one, else the CPU
    Auto,
    /// An NVIDIA GPU
    Cuda,
    /// The CPU
    Host,
}

impl DeviceArgs {
    pub fn builder(&self) -> ContextBuilder {
        let mut builder = CudaContext::builder()
            .ordinal(self.device)
            .host_threads(self.threads.unwrap_or(0))
            .memory_budget(self.memory_budget.unwrap_or(0) << 20);
        match self.backend {
            BackendChoice::Auto => {}
            BackendChoice::Cuda => builder = builder.backend(Backend::Cuda),
            BackendChoice::Host => builder = builder.backend(Backend::Host),
        }
        builder
    }
}

#[derive(clap::Args, Clone, Debug)]
pub struct EngineArgs {
    /// Maximum length of a sequence, prompt and answer together [default: 4096, or the model's
    /// training context if that is shorter]
    #[arg(long, value_name = "TOKENS", value_parser = clap::value_parser!(u32).range(1..))]
    pub context: Option<u32>,
    /// Type of the KV cache
    #[arg(long, value_enum, default_value_t = KvChoice::F16)]
    pub kv_type: KvChoice,
    /// Maximum number of prompt tokens per step
    #[arg(long, value_name = "TOKENS", default_value_t = 512,
          value_parser = clap::value_parser!(u32).range(1..))]
    pub batch: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum KvChoice {
    F16,
    #[value(name = "q8_0")]
    Q8_0,
    Fp8,
}

impl From<KvChoice> for KvType {
    fn from(choice: KvChoice) -> Self {
        match choice {
            KvChoice::F16 => Self::F16,
            KvChoice::Q8_0 => Self::Q8_0,
            KvChoice::Fp8 => Self::Fp8E4m3,
        }
    }
}

/// Default length of a sequence: a model trained for 128k tokens must not reserve gigabytes for a short
/// answer.
const DEFAULT_CONTEXT: u32 = 4096;

impl EngineArgs {
    /// Options for one sequence. `trained` is the context length the model was trained for, 0 if unknown.
    pub fn options(&self, trained: u32) -> EngineOptions {
        let most = if trained == 0 {
            DEFAULT_CONTEXT
        } else {
            trained.min(DEFAULT_CONTEXT)
        };
        EngineOptions::new()
            .max_sequences(1)
            .max_batch_tokens(self.batch)
            .max_sequence_tokens(self.context.unwrap_or(most))
            .kv_type(self.kv_type.into())
    }
}

#[derive(clap::Args, Clone, Debug)]
pub struct DraftArgs {
    /// Guess the next tokens where the text repeats, and verify several in one step; this changes the
    /// speed, not the answer
    #[arg(long)]
    pub draft_ngram: bool,
    /// Maximum number of guessed tokens of an answer per step
    #[arg(long, value_name = "N", default_value_t = 8, requires = "draft_ngram",
          value_parser = clap::value_parser!(u32).range(1..=Row::MAX_DRAFTS as i64))]
    pub draft_max: u32,
}

impl DraftArgs {
    pub fn options(&self, options: EngineOptions) -> EngineOptions {
        options.max_draft_tokens(if self.draft_ngram { self.draft_max } else { 0 })
    }

    pub fn set(&self, session: &mut Session) {
        if self.draft_ngram {
            session.set_draft(Some(Box::new(NgramDraft::new())));
        }
    }

    pub fn drafting(&self) -> Option<Drafting> {
        let make = || Box::new(NgramDraft::new()) as Box<dyn Draft>;
        self.draft_ngram
            .then(|| Drafting::new(self.draft_max as usize, make))
    }
}

#[derive(clap::Args, Clone, Debug)]
pub struct SamplingArgs {
    /// Sampling temperature; 0: always the most probable token
    #[arg(long, value_name = "T", default_value_t = 0.0)]
    pub temperature: f32,
    /// Sample from the K most probable tokens; 0: all
    #[arg(long, value_name = "K", default_value_t = 0)]
    pub top_k: u32,
    /// Sample from the most probable tokens whose probabilities sum to P; 0: all
    #[arg(long, value_name = "P", default_value_t = 0.0)]
    pub top_p: f32,
    /// Sample from tokens with at least P times the highest probability; 0: all
    #[arg(long, value_name = "P", default_value_t = 0.0)]
    pub min_p: f32,
    /// Random seed; the same seed gives the same tokens
    #[arg(long, value_name = "S", default_value_t = 0)]
    pub seed: u64,
    /// Penalty on tokens already in the sequence; 1: none
    #[arg(long, value_name = "R", default_value_t = 1.0)]
    pub repetition_penalty: f32,
}

impl SamplingArgs {
    pub fn sampling(&self) -> Sampling {
        let mut sampling = Sampling::with_temperature(self.temperature, self.seed);
        sampling.top_k = self.top_k;
        sampling.top_p = self.top_p;
        sampling.min_p = self.min_p;
        sampling.repetition_penalty = self.repetition_penalty;
        sampling
    }
}
