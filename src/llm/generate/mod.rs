//! Text generation: a prompt in, an iterator of tokens and text out.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

pub use crate::core::cancel::CancelFlag;
use crate::core::error::{Error, ErrorKind, Result};
use crate::llm::engine::{Engine, Sequence, Ticket, Token};
use crate::llm::model::Model;
use crate::llm::plan::EngineOptions;
use crate::llm::step::{Row, RowResult, RowStatus, Sampling, Step, StepOutput};
use crate::llm::text::{
    ChatTemplate, DecodeOptions, Detokenizer, EncodeOptions, TemplateInput, Tokenizer,
};

use stop::StopMatcher;

mod stop;

/// Steps that are computed while the host works on the results of earlier ones.
const STEPS_IN_FLIGHT: usize = 2;

/// What to generate from.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Prompt {
    /// A conversation, put through the model's chat template.
    Chat(TemplateInput),
    /// Text to go on with. Markers in it are plain text.
    Text(String),
    /// Tokens as they are.
    Tokens(Vec<Token>),
}

/// One request.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Request {
    /// What to generate from.
    pub prompt: Prompt,
    /// How tokens are drawn.
    pub sampling: Sampling,
    /// Most tokens to generate; None: until the context is full.
    pub max_tokens: Option<u32>,
    /// Texts that end the answer and are no part of it.
    pub stop: Vec<String>,
    /// Goes on past tokens that end a text.
    pub ignore_end: bool,
    /// Stops the generation when it is set, from any thread.
    pub cancel: CancelFlag,
}

impl Request {
    /// Answers one message of a user, greedily, by the model's chat template.
    pub fn user(message: impl Into<String>) -> Self {
        let message = serde_json::json!({ "role": "user", "content": message.into() });
        Self::new(Prompt::Chat(TemplateInput {
            messages: vec![message],
            add_generation_prompt: true,
            ..TemplateInput::default()
        }))
    }

    /// Goes on with a text, greedily.
    pub fn text(prompt: impl Into<String>) -> Self {
        Self::new(Prompt::Text(prompt.into()))
    }

    /// Goes on with tokens, greedily.
    pub fn tokens(prompt: impl Into<Vec<Token>>) -> Self {
        Self::new(Prompt::Tokens(prompt.into()))
    }

    fn new(prompt: Prompt) -> Self {
        Self {
            prompt,
            sampling: Sampling::greedy(),
            max_tokens: None,
            stop: Vec::new(),
            ignore_end: false,
            cancel: CancelFlag::default(),
        }
    }

    /// Most tokens to generate.
    #[must_use]
    pub fn max_tokens(mut self, count: u32) -> Self {
        self.max_tokens = Some(count);
        self
    }

    /// How tokens are drawn.
    #[must_use]
    pub fn sampling(mut self, sampling: Sampling) -> Self {
        self.sampling = sampling;
        self
    }

    /// Adds a text that ends the answer and is no part of it.
    #[must_use]
    pub fn stop(mut self, text: impl Into<String>) -> Self {
        self.stop.push(text.into());
        self
    }
}

/// What a generation tells, in this order for each token, with [`Event::Done`] once at its end.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Event {
    /// A token was drawn. The token that ends the text is not told.
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
    /// Prompt and drawn tokens; the sequence holds as many of them as its length tells.
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
        match prompt {
            Prompt::Tokens(tokens) => Ok(tokens.clone()),
            Prompt::Chat(input) => {
                let template = ChatTemplate::from_vocabulary(self.tokenizer.vocabulary(), None)?;
                // The template writes the markers itself.
                let options = EncodeOptions {
                    add_special: false,
                    parse_special: true,
                };
                self.tokenizer.encode(&template.render(input)?, options)
            }
            Prompt::Text(text) => {
                let options = EncodeOptions {
                    add_special: true,
                    ..EncodeOptions::default()
                };
                self.tokenizer.encode(text, options)
            }
        }
    }

    /// Starts a request. The work is done while the answer is iterated over; dropping it ends the
    /// request.
    pub fn generate(&mut self, request: &Request) -> Result<Generation<'_>> {
        let started = Instant::now();
        let prompt = self.encode(&request.prompt)?;
        if prompt.is_empty() {
            return Err(Error::new(
                ErrorKind::InvalidArgument,
                "the prompt has no tokens",
            ));
        }
        let limit = self.max_sequence_tokens;
        if prompt.len() > limit {
            let message = format!(
                "the prompt has {} tokens, a sequence at most {limit}",
                prompt.len()
            );
            return Err(Error::new(ErrorKind::LimitExceeded, message));
        }
        self.settle()?;
        let cached = self.keep_common_prefix(&prompt)?;
        Ok(Generation {
            detokenizer: Detokenizer::new(self.tokenizer.clone(), DecodeOptions::default()),
            stop: StopMatcher::new(&request.stop),
            sampling: request.sampling.clone(),
            max_tokens: request
                .max_tokens
                .map_or(usize::MAX, |count| count as usize),
            ignore_end: request.ignore_end,
            cancel: request.cancel.clone(),
            prompt_tokens: prompt.len(),
            cached_tokens: cached,
            submitted_prompt: cached,
            submitted_draws: 0,
            drawn: 0,
            in_flight: VecDeque::with_capacity(STEPS_IN_FLIGHT),
            output: StepOutput::default(),
            events: VecDeque::new(),
            finished: false,
            started,
            first_token: None,
            session: self,
        })
    }

    /// Waits for what an earlier generation left in flight.
    fn settle(&mut self) -> Result<()> {
        self.engine.drain()?;
        self.tokens.truncate(self.sequence.len()? as usize);
        Ok(())
    }

    /// Cuts the sequence back to what it has in common with `prompt`, less its last token, which
    /// must be computed to be gone on from.
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

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session")
            .field("engine", &self.engine)
            .finish_non_exhaustive()
    }
}

/// A request at work: an iterator of events that ends after [`Event::Done`] or an error.
#[must_use = "nothing is computed until it is iterated over"]
pub struct Generation<'a> {
    session: &'a mut Session,
    detokenizer: Detokenizer,
    stop: StopMatcher,
    sampling: Sampling,
    max_tokens: usize,
    ignore_end: bool,
    cancel: CancelFlag,
    prompt_tokens: usize,
    cached_tokens: usize,
    /// Tokens of the prompt given to the engine, cached ones included.
    submitted_prompt: usize,
    /// Draws given to the engine.
    submitted_draws: usize,
    /// Tokens drawn and told.
    drawn: usize,
    in_flight: VecDeque<Submitted>,
    output: StepOutput,
    events: VecDeque<Event>,
    finished: bool,
    started: Instant,
    first_token: Option<Instant>,
}

struct Submitted {
    ticket: Ticket,
    draws: bool,
}

impl Iterator for Generation<'_> {
    type Item = Result<Event>;

    fn next(&mut self) -> Option<Result<Event>> {
        loop {
            if let Some(event) = self.events.pop_front() {
                return Some(Ok(event));
            }
            if self.finished {
                return None;
            }
            if let Err(error) = self.advance() {
                self.finished = true;
                return Some(Err(error));
            }
        }
    }
}

impl Generation<'_> {
    /// The tokens of the prompt.
    pub fn prompt_tokens(&self) -> &[Token] {
        &self.session.tokens[..self.prompt_tokens]
    }

    /// Stops it, from any thread.
    pub fn cancel_flag(&self) -> CancelFlag {
        self.cancel.clone()
    }

    /// Keeps two steps in flight and takes the result of the older one.
    fn advance(&mut self) -> Result<()> {
        if self.cancel.is_set() {
            return self.finish(FinishReason::Cancelled);
        }
        self.fill()?;
        let Some(submitted) = self.in_flight.pop_front() else {
            let all = self.submitted_draws >= self.max_tokens;
            let reason = if all {
                FinishReason::Length
            } else {
                FinishReason::ContextFull
            };
            return self.finish(reason);
        };
        self.session
            .engine
            .wait_into(submitted.ticket, None, &mut self.output)?;
        let row = *self.output.rows().first().ok_or_else(no_result)?;
        check_row(&row)?;
        if submitted.draws {
            self.take_token(&row)
        } else {
            Ok(())
        }
    }

    fn fill(&mut self) -> Result<()> {
        while self.in_flight.len() < STEPS_IN_FLIGHT {
            match self.submit_next() {
                Ok(Some(submitted)) => self.in_flight.push_back(submitted),
                Ok(None) => break,
                // What is in flight may free what was missing.
                Err(error) if error.is_retryable() && !self.in_flight.is_empty() => break,
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// The next piece of the prompt, or the token drawn last, which may still be in flight. None
    /// when there is nothing more to compute.
    fn submit_next(&mut self) -> Result<Option<Submitted>> {
        let Session {
            engine,
            sequence,
            tokens,
            max_batch_tokens,
            max_sequence_tokens,
            ..
        } = &mut *self.session;
        let prompt = &tokens[..self.prompt_tokens];
        let rest = prompt.len() - self.submitted_prompt;
        let (row, count, draws) = if rest > 0 {
            let count = rest.min(*max_batch_tokens);
            let piece = &prompt[self.submitted_prompt..][..count];
            (
                Row::tokens(sequence, piece),
                count,
                count == rest && self.max_tokens > 0,
            )
        } else {
            let length = prompt.len() + self.submitted_draws;
            if self.submitted_draws >= self.max_tokens || length > *max_sequence_tokens {
                return Ok(None);
            }
            (Row::feed_sampled(sequence), 0, true)
        };
        let row = if draws {
            row.sample(&self.sampling)
        } else {
            row
        };
        let ticket = engine.submit(&Step::new().row(row))?;
        self.submitted_prompt += count;
        self.submitted_draws += usize::from(draws);
        Ok(Some(Submitted { ticket, draws }))
    }

    fn take_token(&mut self, row: &RowResult) -> Result<()> {
        let token = row.token.ok_or_else(no_result)?;
        self.first_token.get_or_insert_with(Instant::now);
        self.session.tokens.push(token);
        if !self.ignore_end && self.session.tokenizer.is_end_of_generation(token) {
            return self.finish(FinishReason::Eos);
        }
        self.drawn += 1;
        let top = self.output.top(row).collect();
        self.events.push_back(Event::Token {
            token,
            logprob: row.logprob,
            top,
        });
        let mut text = String::new();
        self.detokenizer.push(token, &mut text)?;
        if self.tell(&text) {
            return self.finish(FinishReason::Stop);
        }
        if self.drawn >= self.max_tokens {
            return self.finish(FinishReason::Length);
        }
        Ok(())
    }

    /// Tells text as far as no stop string is in it; whether one is.
    fn tell(&mut self, text: &str) -> bool {
        let (text, found) = self.stop.push(text);
        self.push_text(text);
        found
    }

    fn push_text(&mut self, text: String) {
        if !text.is_empty() {
            self.events.push_back(Event::Text(text));
        }
    }

    /// Tells what was held back, and the end. Steps in flight are waited for by the next request.
    fn finish(&mut self, mut reason: FinishReason) -> Result<()> {
        if reason != FinishReason::Stop {
            let mut text = String::new();
            self.detokenizer.finish(&mut text);
            if self.tell(&text) {
                reason = FinishReason::Stop;
            } else {
                let held = self.stop.finish();
                self.push_text(held);
            }
        }
        let now = Instant::now();
        let first_token = self.first_token.unwrap_or(now);
        self.events.push_back(Event::Done(Summary {
            reason,
            prompt_tokens: self.prompt_tokens,
            cached_tokens: self.cached_tokens,
            tokens: self.drawn,
            prompt_time: first_token - self.started,
            decode_time: now - first_token,
        }));
        self.finished = true;
        Ok(())
    }
}

impl fmt::Debug for Generation<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Generation")
            .field("prompt_tokens", &self.prompt_tokens)
            .field("drawn", &self.drawn)
            .field("finished", &self.finished)
            .finish_non_exhaustive()
    }
}

fn check_row(row: &RowResult) -> Result<()> {
    let position = row.first_position;
    match row.status {
        RowStatus::Ok => Ok(()),
        RowStatus::EmptyMask => {
            let message = format!("bias and mask leave no token to draw at position {position}");
            Err(Error::new(ErrorKind::InvalidArgument, message))
        }
        RowStatus::NotFinite => {
            let message = format!("the model's logits at position {position} are not finite");
            Err(Error::new(ErrorKind::Malformed, message))
        }
        other => {
            let message = format!("the row at position {position} ended as {other:?}");
            Err(Error::new(ErrorKind::Internal, message))
        }
    }
}

fn no_result() -> Error {
    Error::new(
        ErrorKind::Internal,
        "a step came back without its row or its token",
    )
}
