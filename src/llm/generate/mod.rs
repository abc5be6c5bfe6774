//! Text generation: takes a prompt and returns an iterator of tokens and text.

#![forbid(unsafe_code)]

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::core::error::Result;
use crate::llm::engine::{Engine, Sequence, Token};
use crate::llm::model::Model;
use crate::llm::plan::EngineOptions;
use crate::llm::text::{ChatTemplate, EncodeOptions, RenderOptions, Tokenizer};

use self::costs::CostMeter;
use self::service::Clock;

pub use self::draft::{Draft, NgramDraft};
pub use self::generation::{Generation, NotStarted, OwnedGeneration};
pub use self::model_draft::ModelDraft;
pub use self::request::{Message, Prompt, Request};
pub use self::service::Service;
#[cfg(feature = "stream")]
pub use self::stream::EventStream;
pub use crate::core::cancel::CancelFlag;

#[cfg(feature = "constraints")]
pub mod constraints;
mod costs;
mod draft;
mod generation;
mod model_draft;
mod request;
pub mod service;
mod stop;
#[cfg(feature = "stream")]
mod stream;

/// An event of a generation. The events of a token are in this order; [`Event::Done`] comes once, at the end.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Event {
    /// A token was sampled. The token that ends the text is not reported.
    Token {
        /// The token's id.
        token: Token,
        /// Natural logarithm of its probability, before temperature and truncation.
        logprob: f32,
        /// The requested number of alternatives, most probable first.
        top: Vec<(Token, f32)>,
    },
    /// Text of one or more tokens: whole characters, never part of a stop string.
    Text(String),
    /// The generation has ended.
    Done(Summary),
}

/// Why a generation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum FinishReason {
    /// The model ended the text.
    Eos,
    /// A stop string was found.
    Stop,
    /// The maximum number of tokens was generated.
    Length,
    /// The flag was set.
    Cancelled,
    /// The sequence has reached the engine's maximum length.
    ContextFull,
}

impl FinishReason {
    /// "eos", "stop", "length", "cancelled" or "context_full".
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Eos => "eos",
            Self::Stop => "stop",
            Self::Length => "length",
            Self::Cancelled => "cancelled",
            Self::ContextFull => "context_full",
        }
    }
}

/// Summary of a generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Summary {
    /// Why it ended.
    pub reason: FinishReason,
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Tokens of the prompt that were still computed from the previous request.
    pub cached_tokens: usize,
    /// Tokens generated, without the one that ends the text.
    pub tokens: usize,
    /// Draft tokens that were computed.
    pub draft_tokens: usize,
    /// Draft tokens that held.
    pub accepted_draft_tokens: usize,
    /// Time from the start to the first token.
    pub prompt_time: Duration,
    /// Time from the first token to the end.
    pub decode_time: Duration,
}

/// One conversation on a model: an engine with one sequence, and the model's tokenizer. If a prompt begins with the
/// tokens that the sequence already contains, only the rest is computed.
pub struct Session {
    engine: Engine,
    sequence: Sequence,
    tokenizer: Arc<Tokenizer>,
    /// Prompt and sampled tokens; the sequence contains as many of them as its length.
    tokens: Vec<Token>,
    max_batch_tokens: usize,
    max_sequence_tokens: usize,
    draft: Option<Box<dyn Draft>>,
    max_draft_tokens: usize,
    /// What steps and guesses take, while there is a draft.
    costs: CostMeter,
    clock: Clock,
}

impl Session {
    /// Creates an engine for one sequence; the number of sequences in `options` is ignored.
    pub fn new(model: &Model, options: &EngineOptions) -> Result<Self> {
        let tokenizer = Tokenizer::from_gguf(model.gguf())?;
        Self::with_tokenizer(model, options, Arc::new(tokenizer))
    }

    /// As [`new`](Self::new), with an existing tokenizer.
    pub fn with_tokenizer(
        model: &Model,
        options: &EngineOptions,
        tokenizer: Arc<Tokenizer>,
    ) -> Result<Self> {
        let mut engine = Engine::new(model, &options.clone().max_sequences(1))?;
        let sequence = engine.create_sequence()?;
        let info = engine.info()?;
        Ok(Self {
            engine,
            sequence,
            tokenizer,
            tokens: Vec::new(),
            max_batch_tokens: info.max_batch_tokens as usize,
            max_sequence_tokens: info.max_sequence_tokens as usize,
            draft: None,
            max_draft_tokens: info.max_draft_tokens as usize,
            costs: CostMeter::new(Duration::ZERO),
            clock: Clock::system(),
        })
    }

    /// Lets later generations verify drafts, or not: with good drafts, several tokens come from one step. A step has
    /// at most [`EngineOptions::max_draft_tokens`] drafts, of which the default is none, and as many as promise the most
    /// tokens per time, by what steps have taken so far.
    ///
    /// The tokens are those without drafts, greedy or sampled. On CUDA this holds exactly with
    /// [`EngineOptions::batch_invariant`]; otherwise logits may differ in their last bits.
    ///
    /// ```no_run
    /// # fn f(model: &worker_cuda::Model) -> worker_cuda::Result<()> {
    /// use worker_cuda::EngineOptions;
    /// use worker_cuda::generate::{NgramDraft, Session};
    ///
    /// let mut session = Session::new(model, &EngineOptions::new().max_draft_tokens(8))?;
    /// session.set_draft(Some(Box::new(NgramDraft::new())));
    /// # Ok(())
    /// # }
    /// ```
    pub fn set_draft(&mut self, draft: Option<Box<dyn Draft>>) {
        self.draft = draft;
        self.costs = CostMeter::new(Duration::ZERO);
    }

    /// Measures steps by this clock, in place of the system's. By one that stands still, every draft is verified.
    pub fn set_clock(&mut self, clock: Clock) {
        self.clock = clock;
        self.costs = CostMeter::new(Duration::ZERO);
    }

    /// The tokenizer.
    pub fn tokenizer(&self) -> &Arc<Tokenizer> {
        &self.tokenizer
    }

    /// The engine, for reading its limits and its model.
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// The engine, for warming it up.
    pub fn engine_mut(&mut self) -> &mut Engine {
        &mut self.engine
    }

    /// The tokens of a prompt.
    pub fn encode(&self, prompt: &Prompt) -> Result<Vec<Token>> {
        self.encode_cancellable(prompt, &CancelFlag::default())
    }

    fn encode_cancellable(&self, prompt: &Prompt, cancel: &CancelFlag) -> Result<Vec<Token>> {
        encode(&self.tokenizer, None, prompt, cancel)
    }

    /// Starts a request. The work is done while you iterate over the generation; dropping it ends the request.
    ///
    /// ```no_run
    /// # fn f(model: &worker_cuda::Model) -> worker_cuda::Result<()> {
    /// use worker_cuda::EngineOptions;
    /// use worker_cuda::generate::{Event, Request, Session};
    ///
    /// let mut session = Session::new(model, &EngineOptions::default())?;
    /// for event in session.generate(&Request::user("Why is the sky blue?").max_tokens(64))? {
    ///     match event? {
    ///         Event::Text(text) => print!("{text}"),
    ///         Event::Done(summary) => println!("\n({})", summary.reason.as_str()),
    ///         _ => {}
    ///     }
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn generate(&mut self, request: &Request) -> Result<Generation<'_>> {
        self.generate_cancellable(request, &CancelFlag::default())
    }

    /// As [`generate`](Self::generate), with a flag that exists before the generation and also stops the rendering
    /// of the chat template. If it is already set, the generation ends at once.
    pub fn generate_cancellable(
        &mut self,
        request: &Request,
        cancel: &CancelFlag,
    ) -> Result<Generation<'_>> {
        Generation::start(self, request, cancel.clone())
    }

    /// As [`generate`](Self::generate), but the generation owns the session, which
    /// [`OwnedGeneration::into_session`] returns. A failure returns it too.
    pub fn into_generation(
        self,
        request: &Request,
    ) -> std::result::Result<OwnedGeneration, NotStarted> {
        OwnedGeneration::start(self, request, CancelFlag::default())
    }

    /// Waits for steps that an earlier generation left in flight.
    fn drain(&mut self) -> Result<()> {
        self.engine.drain()?;
        self.tokens.truncate(self.sequence.len()? as usize);
        Ok(())
    }

    /// Truncates the sequence to its common prefix with `prompt`, except the prompt's last token, which must be
    /// computed to sample the next.
    fn keep_common_prefix(&mut self, prompt: &[Token]) -> Result<usize> {
        let common = self
            .tokens
            .iter()
            .zip(prompt)
            .take_while(|(a, b)| a == b)
            .count();
        let kept = common.min(prompt.len() - 1);
        if kept < self.tokens.len() {
            self.engine.truncate(&self.sequence, kept as u32)?;
        }
        self.tokens.clear();
        self.tokens.extend_from_slice(prompt);
        Ok(kept)
    }
}

/// The tokens of a prompt. Conversations are rendered by `template`, or by that of the vocabulary.
fn encode(
    tokenizer: &Tokenizer,
    template: Option<&ChatTemplate>,
    prompt: &Prompt,
    cancel: &CancelFlag,
) -> Result<Vec<Token>> {
    match prompt {
        Prompt::Tokens(tokens) => Ok(tokens.clone()),
        Prompt::Chat(input) => {
            let of_vocabulary;
            let template = match template {
                Some(template) => template,
                None => {
                    of_vocabulary = ChatTemplate::from_vocabulary(tokenizer.vocabulary(), None)?;
                    &of_vocabulary
                }
            };
            // The template writes the special tokens itself.
            let options = EncodeOptions {
                add_special: false,
                parse_special: true,
            };
            let stops = RenderOptions {
                cancel: Some(cancel.clone()),
                ..RenderOptions::default()
            };
            tokenizer.encode(&template.render_with(input, &stops)?, options)
        }
        Prompt::Text(text) => {
            let options = EncodeOptions {
                add_special: true,
                ..EncodeOptions::default()
            };
            tokenizer.encode(text, options)
        }
    }
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session")
            .field("engine", &self.engine)
            .finish_non_exhaustive()
    }
}
