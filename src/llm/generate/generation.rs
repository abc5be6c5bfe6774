//! A running request: keeps two steps in flight and turns results into events.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::stop::StopMatcher;
use super::{Event, FinishReason, Request, Session, Summary};
use crate::core::cancel::CancelFlag;
use crate::core::error::{Error, ErrorKind, Result};
use crate::llm::engine::{Ticket, Token};
use crate::llm::step::{Row, RowResult, RowStatus, Sampling, Step, StepOutput};
use crate::llm::text::{DecodeOptions, Detokenizer};
use crate::scheduler::{Guesses, choose_one};

/// Steps in flight while the host processes the results of earlier ones.
const STEPS_IN_FLIGHT: usize = 2;

/// A running request: an iterator of events that ends after [`Event::Done`] or an error.
#[must_use = "nothing is computed until it is iterated over"]
pub struct Generation<'a> {
    session: &'a mut Session,
    course: Course,
}

/// A [`Generation`] that owns its session, so that it can be stored and sent to another thread.
///
/// ```no_run
/// # fn f(session: worker_cuda::generate::Session) -> worker_cuda::Result<()> {
/// use worker_cuda::generate::{Event, Request};
///
/// let mut generation = session.into_generation(&Request::user("Why is the sky blue?"))?;
/// let cancel = generation.cancel_flag(); // stops it from any thread
/// let session = std::thread::spawn(move || {
///     for event in &mut generation {
///         if let Ok(Event::Text(text)) = event {
///             print!("{text}");
///         }
///     }
///     generation.into_session()
/// });
/// # Ok(())
/// # }
/// ```
#[must_use = "nothing is computed until it is iterated over"]
pub struct OwnedGeneration {
    session: Session,
    course: Course,
}

/// A session whose [`into_generation`](Session::into_generation) failed.
#[derive(Debug)]
pub struct NotStarted {
    /// The error.
    pub error: Error,
    /// The unchanged session.
    pub session: Box<Session>,
}

impl fmt::Display for NotStarted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl std::error::Error for NotStarted {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.error.source()
    }
}

impl From<NotStarted> for Error {
    fn from(failure: NotStarted) -> Self {
        failure.error
    }
}

/// The state of a running request without its session.
struct Course {
    detokenizer: Detokenizer,
    stop: StopMatcher,
    sampling: Arc<Sampling>,
    max_tokens: usize,
    ignore_end: bool,
    cancel: CancelFlag,
    prompt_tokens: usize,
    cached_tokens: usize,
    /// Tokens of the prompt submitted to the engine, cached ones included.
    submitted_prompt: usize,
    /// Samplings submitted to the engine, or with drafts the tokens that they returned.
    submitted_draws: usize,
    /// Tokens sampled and reported.
    drawn: usize,
    /// Tokens after which a row with drafts returns nothing.
    stop_tokens: Vec<Token>,
    /// Those of the row in flight.
    drafts: Vec<Token>,
    /// Most that a row may have.
    draft_limit: usize,
    /// Of the tokens that follow those of the session.
    guesses: Guesses,
    draft_tokens: usize,
    accepted_draft_tokens: usize,
    in_flight: VecDeque<Submitted>,
    /// When the last step ended, and what follows from it was guessed.
    last_end: Option<Duration>,
    output: StepOutput,
    events: VecDeque<Event>,
    finished: bool,
    started: Instant,
    first_token: Option<Instant>,
}

struct Submitted {
    ticket: Ticket,
    draws: bool,
    /// Tokens of the prompt; with one token or none it is a row that continues a text.
    prompt_tokens: usize,
    submitted: Duration,
    /// No step was in flight when it was submitted, and there was one before.
    is_lone: bool,
    /// Nothing else ran that may have slowed it down.
    is_measured: bool,
}

impl<'a> Generation<'a> {
    pub(super) fn start(
        session: &'a mut Session,
        request: &Request,
        cancel: CancelFlag,
    ) -> Result<Self> {
        let course = Course::start(session, request, cancel)?;
        Ok(Self { session, course })
    }

    /// The tokens of the prompt.
    pub fn prompt_tokens(&self) -> &[Token] {
        &self.session.tokens[..self.course.prompt_tokens]
    }

    /// A flag that stops this generation from any thread.
    pub fn cancel_flag(&self) -> CancelFlag {
        self.course.cancel.clone()
    }
}

impl Iterator for Generation<'_> {
    type Item = Result<Event>;

    fn next(&mut self) -> Option<Result<Event>> {
        self.course.next(self.session)
    }
}

impl OwnedGeneration {
    pub(super) fn start(
        mut session: Session,
        request: &Request,
        cancel: CancelFlag,
    ) -> std::result::Result<Self, NotStarted> {
        match Course::start(&mut session, request, cancel) {
            Ok(course) => Ok(Self { session, course }),
            Err(error) => Err(NotStarted {
                error,
                session: Box::new(session),
            }),
        }
    }

    /// The tokens of the prompt.
    pub fn prompt_tokens(&self) -> &[Token] {
        &self.session.tokens[..self.course.prompt_tokens]
    }

    /// A flag that stops this generation from any thread.
    pub fn cancel_flag(&self) -> CancelFlag {
        self.course.cancel.clone()
    }

    /// Ends the generation and returns its session, which keeps the tokens computed so far.
    pub fn into_session(self) -> Session {
        self.session
    }
}

impl Iterator for OwnedGeneration {
    type Item = Result<Event>;

    fn next(&mut self) -> Option<Result<Event>> {
        self.course.next(&mut self.session)
    }
}

impl fmt::Debug for Generation<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.course.describe(f, "Generation")
    }
}

impl fmt::Debug for OwnedGeneration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.course.describe(f, "OwnedGeneration")
    }
}

impl Course {
    fn start(session: &mut Session, request: &Request, cancel: CancelFlag) -> Result<Course> {
        let started = Instant::now();
        let prompt = session.encode_cancellable(&request.prompt, &cancel)?;
        if prompt.is_empty() {
            return Err(Error::new(
                ErrorKind::InvalidArgument,
                "the prompt has no tokens",
            ));
        }
        let limit = session.max_sequence_tokens;
        if prompt.len() > limit {
            let message = format!(
                "the prompt has {} tokens, a sequence at most {limit}",
                prompt.len()
            );
            return Err(Error::new(ErrorKind::LimitExceeded, message));
        }
        session.drain()?;
        let cached = session.keep_common_prefix(&prompt)?;
        if let Some(draft) = &mut session.draft {
            draft.begin(&prompt, &[]);
            draft.sample_like(&request.sampling);
        }
        let stop_tokens = match request.ignore_end {
            true => Vec::new(),
            false => session.tokenizer.end_of_generation_ids().collect(),
        };
        let draft_limit = match session.draft {
            Some(_) => session.max_draft_tokens.min(Row::MAX_DRAFTS),
            None => 0,
        };
        let mut guesses = Guesses::NONE;
        if session
            .draft
            .as_ref()
            .is_some_and(|draft| draft.is_computed())
        {
            guesses.compute(draft_limit as u32);
        }
        Ok(Course {
            detokenizer: Detokenizer::new(session.tokenizer.clone(), DecodeOptions::default()),
            stop: StopMatcher::new(&request.stop),
            sampling: Arc::new(request.sampling.clone()),
            max_tokens: request
                .max_tokens
                .map_or(usize::MAX, |count| count as usize),
            ignore_end: request.ignore_end,
            cancel,
            prompt_tokens: prompt.len(),
            cached_tokens: cached,
            submitted_prompt: cached,
            submitted_draws: 0,
            drawn: 0,
            stop_tokens,
            drafts: Vec::new(),
            draft_limit,
            guesses,
            draft_tokens: 0,
            accepted_draft_tokens: 0,
            in_flight: VecDeque::with_capacity(STEPS_IN_FLIGHT),
            last_end: None,
            output: StepOutput::default(),
            events: VecDeque::new(),
            finished: false,
            started,
            first_token: None,
        })
    }

    fn next(&mut self, session: &mut Session) -> Option<Result<Event>> {
        loop {
            if let Some(event) = self.events.pop_front() {
                return Some(Ok(event));
            }
            if self.finished {
                return None;
            }
            if let Err(error) = self.advance(session) {
                self.finished = true;
                return Some(Err(error));
            }
        }
    }

    /// Keeps two steps in flight and processes the result of the older one.
    fn advance(&mut self, session: &mut Session) -> Result<()> {
        if self.cancel.is_set() {
            return self.finish(FinishReason::Cancelled);
        }
        self.fill(session)?;
        let Some(submitted) = self.in_flight.pop_front() else {
            let all = self.submitted_draws >= self.max_tokens;
            let reason = if all {
                FinishReason::Length
            } else {
                FinishReason::ContextFull
            };
            return self.finish(reason);
        };
        session
            .engine
            .wait_into(submitted.ticket, None, &mut self.output)?;
        let row = *self.output.rows().first().ok_or_else(no_result)?;
        check_row(&row)?;
        if self.draft_limit > 0 {
            self.measure(session, &submitted);
        }
        if submitted.draws {
            self.take_tokens(session, &row)
        } else {
            Ok(())
        }
    }

    /// Learns what the step took.
    fn measure(&mut self, session: &mut Session, step: &Submitted) {
        let now = session.clock.now();
        let last_end = self.last_end.replace(now);
        let begin = match last_end {
            Some(end) if step.is_lone || end > step.submitted => end,
            _ => step.submitted,
        };
        if !step.is_measured || self.output.captured {
            return;
        }
        let (rows, prompt_tokens) = match step.prompt_tokens {
            0 | 1 => (1 + self.drafts.len(), 0),
            tokens => (0, tokens),
        };
        let duration = now.saturating_sub(begin);
        let costs = &mut session.costs;
        costs.add(rows as u32, prompt_tokens as u32, step.is_lone, duration);
    }

    fn fill(&mut self, session: &mut Session) -> Result<()> {
        while self.in_flight.len() < STEPS_IN_FLIGHT {
            match self.submit_next(session) {
                Ok(Some(submitted)) => self.in_flight.push_back(submitted),
                Ok(None) => break,
                // Steps in flight may free the missing memory.
                Err(error) if error.is_retryable() && !self.in_flight.is_empty() => break,
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Submits the next part of the prompt, or the last sampled token, which may still be in flight, but not if it has
    /// drafts or those after it should have some. None if nothing can be computed now.
    fn submit_next(&mut self, session: &mut Session) -> Result<Option<Submitted>> {
        let is_prompt_done = self.submitted_prompt == self.prompt_tokens;
        if is_prompt_done && self.draft_limit > 0 {
            if self.waits_for_step(session) {
                return Ok(None);
            }
            self.choose_drafts(session);
        }
        let Session {
            engine,
            sequence,
            tokens,
            max_batch_tokens,
            max_sequence_tokens,
            clock,
            ..
        } = session;
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
        let submitted = clock.now();
        let ticket = loop {
            let sampling = self.sampling.with_drafts(self.drafts.len());
            let drafted = row.drafts(&self.drafts).stop_tokens(&self.stop_tokens);
            let drafted = match draws {
                true => drafted.sample(&sampling),
                false => drafted,
            };
            match engine.submit(&Step::new().row(drafted)) {
                // Without drafts the row may fit.
                Err(error) if error.is_retryable() && !self.drafts.is_empty() => {
                    self.drafts.clear();
                }
                taken => break taken?,
            }
        };
        self.submitted_prompt += count;
        self.submitted_draws += usize::from(draws);
        Ok(Some(Submitted {
            ticket,
            draws,
            prompt_tokens: count,
            submitted,
            is_lone: self.in_flight.is_empty() && self.last_end.is_some(),
            is_measured: true,
        }))
    }

    /// Most drafts that are of use after `sampling` more tokens.
    fn draft_room(&self, session: &Session, sampling: usize) -> u32 {
        let known = session.tokens.len() + sampling;
        let free = session.max_sequence_tokens.saturating_sub(known);
        let wanted = self.max_tokens.saturating_sub(self.submitted_draws + 1);
        self.draft_limit.min(wanted).min(free) as u32
    }

    /// Whether the step in flight, after which a text continues, has drafts, or the next one should have some.
    fn waits_for_step(&self, session: &Session) -> bool {
        if self.in_flight.is_empty() {
            return false;
        }
        let (count, weight) = self.guesses.later(1);
        let limit = count.min(self.draft_room(session, 1));
        !self.drafts.is_empty()
            || choose_one(&self.guesses, limit, weight, &session.costs.costs()) > 0
    }

    /// Takes the guesses that are worth their time as drafts of the next row.
    fn choose_drafts(&mut self, session: &Session) {
        self.drafts.clear();
        if self.in_flight.is_empty() {
            let guesses = self.guesses.tokens();
            let limit = self.draft_room(session, 0).min(guesses.len() as u32);
            let costs = session.costs.costs().of_computed_guesses();
            let count = choose_one(&self.guesses, limit, 1.0, &costs);
            self.drafts.extend_from_slice(&guesses[..count as usize]);
        }
    }

    /// Guesses the tokens after the last one. Guesses that take time are computed as far as they are worth it.
    fn guess(&mut self, session: &mut Session) {
        let room = self.draft_room(session, 0);
        let Some(draft) = session.draft.as_mut().filter(|_| room > 0) else {
            return self.guesses.set(&[]);
        };
        let is_computed = draft.is_computed();
        let most = if is_computed { self.draft_limit } else { 0 };
        self.guesses.compute(most as u32);
        let costs = session.costs.costs();
        let limit = match is_computed {
            false => self.draft_limit,
            true if self.in_flight.is_empty() => {
                choose_one(&self.guesses, room, 1.0, &costs) as usize
            }
            true => 0,
        };
        let limit = limit.max(self.guesses.are_overdue(1, &costs).into());
        if limit == 0 {
            return;
        }
        let begin = session.clock.now();
        let mut guesses = Vec::with_capacity(limit);
        draft.follow(Some(session.sequence.features()));
        draft.prepare(&session.tokens, limit);
        draft.draft(&session.tokens, limit, &mut guesses);
        let vocabulary_size = session.engine.model().info().vocabulary_size;
        let known = guesses.iter().take(limit);
        let known = known.take_while(|&&token| token < vocabulary_size).count();
        guesses.truncate(known);
        self.guesses.set(&guesses);
        let end = session.clock.now();
        if is_computed {
            let duration = end.saturating_sub(begin);
            session.costs.add_guesses(guesses.len(), duration);
            if let Some(step) = self.in_flight.back_mut() {
                step.is_measured = false;
            }
        }
        self.last_end = Some(end);
    }

    fn take_tokens(&mut self, session: &mut Session, row: &RowResult) -> Result<()> {
        let tokens: Vec<_> = self.output.sampled(row).collect();
        if tokens.is_empty() {
            return Err(no_result());
        }
        self.first_token.get_or_insert_with(Instant::now);
        session
            .tokens
            .extend(tokens.iter().map(|&(token, _)| token));
        let accepted = tokens.len() - 1;
        self.submitted_draws += accepted;
        self.accepted_draft_tokens += accepted;
        self.draft_tokens += self.drafts.len();
        self.drafts.clear();
        for (index, &(token, logprob)) in tokens.iter().enumerate() {
            let top = self.output.top_of(row, index).collect();
            self.guesses.take(token);
            self.take_token(session, token, logprob, top)?;
            if self.finished {
                return Ok(());
            }
        }
        if self.draft_limit > 0 {
            self.guess(session);
        }
        Ok(())
    }

    fn take_token(
        &mut self,
        session: &Session,
        token: Token,
        logprob: f32,
        top: Vec<(Token, f32)>,
    ) -> Result<()> {
        if !self.ignore_end && session.tokenizer.is_end_of_generation(token) {
            return self.finish(FinishReason::Eos);
        }
        self.drawn += 1;
        self.events.push_back(Event::Token {
            token,
            logprob,
            top,
        });
        let mut text = String::new();
        self.detokenizer.push(token, &mut text)?;
        if self.report(&text) {
            return self.finish(FinishReason::Stop);
        }
        if self.drawn >= self.max_tokens {
            return self.finish(FinishReason::Length);
        }
        Ok(())
    }

    /// Reports text up to a stop string; returns whether there is one.
    fn report(&mut self, text: &str) -> bool {
        let (text, found) = self.stop.push(text);
        self.push_text(text);
        found
    }

    fn push_text(&mut self, text: String) {
        if !text.is_empty() {
            self.events.push_back(Event::Text(text));
        }
    }

    /// Reports the text that was held back, and the end. The next request waits for steps in flight.
    fn finish(&mut self, mut reason: FinishReason) -> Result<()> {
        if reason != FinishReason::Stop {
            let mut text = String::new();
            self.detokenizer.finish(&mut text);
            if self.report(&text) {
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
            draft_tokens: self.draft_tokens,
            accepted_draft_tokens: self.accepted_draft_tokens,
            prompt_time: first_token - self.started,
            decode_time: now - first_token,
        }));
        self.finished = true;
        Ok(())
    }

    fn describe(&self, f: &mut fmt::Formatter<'_>, name: &str) -> fmt::Result {
        f.debug_struct(name)
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
