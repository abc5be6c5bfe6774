//! Text generation: a prompt in, an iterator of tokens and text out.

#![forbid(unsafe_code)]

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::core::error::Result;
use crate::llm::engine::{Engine, Sequence, Token};
use crate::llm::model::Model;
use crate::llm::plan::EngineOptions;
use crate::llm::text::{ChatTemplate, EncodeOptions, RenderOptions, Tokenizer};

pub use self::generation::{Generation, NotStarted, OwnedGeneration};
pub use self::request::{Message, Prompt, Request};
#[cfg(feature = "scheduler")]
pub use self::service::Service;
#[cfg(feature = "stream")]
pub use self::stream::EventStream;
pub use crate::core::cancel::CancelFlag;

mod generation;
mod request;
#[cfg(feature = "scheduler")]
pub mod service;
mod stop;
#[cfg(feature = "stream")]
mod stream;

/// What a generation reports, in this order for each token, with [`Event::Done`] once at its end.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Event {
    /// A token was drawn. The token that ends the text is not reported.
    Token {
        /// Its id.
        token: Token,
        /// Natural logarithm of its probability, before temperature and truncation.
        logprob: f32,
        /// As many alternatives as were asked for, most probable first.
        top: Vec<(Token, f32)>,
    },
    /// Text of one or more tokens: whole characters, never part of a stop string.
    Text(String),
    /// The end.
    Done(Summary),
}

/// Why a generation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum FinishReason {
    /// The model ended its text.
    Eos,
    /// A stop string came.
    Stop,
    /// As many tokens as were allowed.
    Length,
    /// The flag was set.
    Cancelled,
    /// The sequence is as long as the engine allows.
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

/// How a generation went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Summary {
    /// Why it ended.
    pub reason: FinishReason,
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Of these, how many were left from the request before.
    pub cached_tokens: usize,
    /// Tokens generated, without the one that ends the text.
    pub tokens: usize,
    /// From the start to the first token.
    pub prompt_time: Duration,
    /// From the first token to the end.
    pub decode_time: Duration,
}

/// One conversation on a model: an engine with one sequence, and the model's tokenizer. A request
/// whose prompt begins like what the sequence already holds computes only the rest.
pub struct Session {
    engine: Engine,
    sequence: Sequence,
    tokenizer: Arc<Tokenizer>,
    /// Prompt and drawn tokens; the sequence holds as many of them as its length says.
    tokens: Vec<Token>,
    max_batch_tokens: usize,
    max_sequence_tokens: usize,
}

impl Session {
    /// Makes an engine for one sequence; of `options` the number of sequences is not used.
    pub fn new(model: &Model, options: &EngineOptions) -> Result<Self> {
        let tokenizer = Tokenizer::from_gguf(model.gguf())?;
        Self::with_tokenizer(model, options, Arc::new(tokenizer))
    }

    /// The same with a tokenizer that is already there.
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
        })
    }

    /// The tokenizer.
    pub fn tokenizer(&self) -> &Arc<Tokenizer> {
        &self.tokenizer
    }

    /// The engine, for its limits and its model.
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// The engine, to warm it up.
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

    /// Starts a request. The work is done while the answer is iterated over; dropping it ends the
    /// request.
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

    /// [`generate`](Self::generate) with a flag that exists before the generation does: it also stops
    /// the rendering of the chat template. A flag that is set already ends the generation at once.
    pub fn generate_cancellable(
        &mut self,
        request: &Request,
        cancel: &CancelFlag,
    ) -> Result<Generation<'_>> {
        Generation::start(self, request, cancel.clone())
    }

    /// [`generate`](Self::generate) by value: the generation owns the session, and
    /// [`OwnedGeneration::into_session`] returns it. A failure returns it too.
    pub fn into_generation(
        self,
        request: &Request,
    ) -> std::result::Result<OwnedGeneration, NotStarted> {
        OwnedGeneration::start(self, request, CancelFlag::default())
    }

    /// Waits for what an earlier generation left in flight.
    fn drain(&mut self) -> Result<()> {
        self.engine.drain()?;
        self.tokens.truncate(self.sequence.len()? as usize);
        Ok(())
    }

    /// Cuts the sequence back to what it has in common with `prompt`, less its last token, which
    /// must be computed to draw the next.
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

/// The tokens of a prompt; without a template, that of the vocabulary renders conversations.
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
            // The template writes the markers itself.
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
