//! Options that several commands share.

use std::path::PathBuf;
use std::sync::Arc;

use clap::ValueEnum;
use worker_cuda::generate::service::Drafting;
use worker_cuda::generate::{Draft, ModelDraft, NgramDraft, Session};
use worker_cuda::text::Tokenizer;
use worker_cuda::{
    Backend, ContextBuilder, CudaContext, EngineOptions, KvType, Model, Row, Sampling,
};

use crate::failure::{Failure, Outcome};
use crate::load;

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
    Int10,
}

impl From<KvChoice> for KvType {
    fn from(choice: KvChoice) -> Self {
        match choice {
            KvChoice::F16 => Self::F16,
            KvChoice::Q8_0 => Self::Q8_0,
            KvChoice::Fp8 => Self::Fp8E4m3,
            KvChoice::Int10 => Self::Int10,
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
    #[arg(long, group = "draft")]
    pub draft_ngram: bool,
    /// Guess the next tokens by the model of this GGUF file, which is smaller and has the same vocabulary,
    /// and verify several in one step
    #[arg(long, value_name = "FILE", group = "draft")]
    pub draft_model: Option<PathBuf>,
    /// Guess the next tokens by the draft head of the model in this GGUF file (architecture eagle3), and
    /// verify several in one step
    #[arg(long, value_name = "FILE", group = "draft")]
    pub draft_head: Option<PathBuf>,
    /// Maximum number of guessed tokens of an answer per step
    #[arg(long, value_name = "N", default_value_t = 8, requires = "draft",
          value_parser = clap::value_parser!(u32).range(1..=Row::MAX_DRAFTS as i64))]
    pub draft_max: u32,
}

impl DraftArgs {
    /// Drafts of one answer in a step.
    pub fn max_tokens(&self) -> u32 {
        if self.draft_ngram || self.draft_model.is_some() || self.draft_head.is_some() {
            self.draft_max
        } else {
            0
        }
    }

    /// Loads the draft head of a model, if one is named.
    pub fn head(&self, model: &Model) -> Outcome<Option<Model>> {
        let Some(path) = &self.draft_head else {
            return Ok(None);
        };
        let gguf = load::gguf(path)?;
        let head = Model::builder(model.context(), &gguf).target(model).load();
        let head = head.map_err(|error| Failure::from(error).in_file(path))?;
        Ok(Some(head))
    }

    /// Starts a session whose answers are guessed. The draft model has an engine of the options that `engine` names.
    pub fn session(
        &self,
        model: &Model,
        tokenizer: Arc<Tokenizer>,
        engine: &EngineArgs,
        mut options: EngineOptions,
    ) -> Outcome<Session> {
        options = options.max_draft_tokens(self.max_tokens());
        let head = self.head(model)?;
        if let Some(head) = &head {
            options = options.draft_head(head);
        }
        let mut session = Session::with_tokenizer(model, &options, tokenizer)?;
        let draft = match &head {
            Some(head) => {
                let options = engine.options(model.info().context_length);
                let draft = ModelDraft::head(head, session.engine(), &options)?;
                Some(Box::new(draft) as Box<dyn Draft>)
            }
            None => self.draft(model, engine)?,
        };
        session.set_draft(draft);
        Ok(session)
    }

    fn draft(&self, model: &Model, engine: &EngineArgs) -> Outcome<Option<Box<dyn Draft>>> {
        let options = |draft: &Model| {
            let limits = [draft, model].map(|model| model.info().context_length);
            let shorter = limits.into_iter().filter(|&length| length > 0).min();
            Ok(engine.options(shorter.unwrap_or(0)))
        };
        Ok(match self.model_draft(model, options)? {
            Some(draft) => Some(Box::new(draft)),
            None if self.draft_ngram => Some(Box::new(NgramDraft::new())),
            None => None,
        })
    }

    /// What guesses the answers of a service, unless that is a draft head.
    pub fn drafting(&self, model: &Model, kv_type: KvType) -> Outcome<Option<Drafting>> {
        let options = |draft: &Model| ModelDraft::serving_options(draft, kv_type);
        let draft = self.model_draft(model, options)?;
        Ok(match draft {
            Some(draft) => Some(self.drafting_by(draft)),
            None => self.ngram_drafting(),
        })
    }

    pub fn drafting_by(&self, draft: ModelDraft) -> Drafting {
        Drafting::new(self.draft_max as usize, move || Box::new(draft.clone()))
    }

    pub fn ngram_drafting(&self) -> Option<Drafting> {
        let make = || Box::new(NgramDraft::new()) as Box<dyn Draft>;
        self.draft_ngram
            .then(|| Drafting::new(self.draft_max as usize, make))
    }

    fn model_draft(
        &self,
        model: &Model,
        options: impl Fn(&Model) -> worker_cuda::Result<EngineOptions>,
    ) -> Outcome<Option<ModelDraft>> {
        let Some(path) = &self.draft_model else {
            return Ok(None);
        };
        let gguf = load::gguf(path)?;
        let start = || -> Outcome<_> {
            // Before the weights are loaded.
            ModelDraft::check(&gguf, model.gguf())?;
            let draft = load::load_on(model.context(), &gguf)?;
            Ok(ModelDraft::new(&draft, model, &options(&draft)?)?)
        };
        let draft = start().map_err(|failure| failure.in_file(path))?;
        Ok(Some(draft))
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
