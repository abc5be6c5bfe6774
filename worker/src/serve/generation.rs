//! Hands a request to the service and gathers what it reports.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll};

use tokio::sync::Semaphore;
use worker_cuda::Token;
use worker_cuda::generate::service::{
    Error, Event, EventReceiver, PromptLogprob, Reasoning, Request, RequestCancel, Stop,
    TokenEvent, Usage,
};
use worker_cuda::generate::{CancelFlag, FinishReason, Prompt};

use super::app::App;
use super::completions::begun_thinking;
use super::error::ApiError;
use super::gate::Visitor;
use super::keys::Permit;
use super::log::Entry;
use super::room::Room;
use super::split::{Call, Piece, Splitter};

/// A request that the service has accepted. Dropping it cancels the request.
pub struct Accepted {
    events: EventReceiver,
    /// The tokens of the prompt.
    pub prompt: Vec<Token>,
    entry: Option<Arc<Entry>>,
    /// Given back with the last event.
    held: Option<Held>,
}

/// What a request holds of the limits of its caller.
type Held = (Option<Arc<Permit>>, Option<Arc<Room>>);

/// Bytes that a token of a prompt takes until the answer has ended: here, and in the service.
pub const PROMPT_TOKEN_BYTES: usize = 16;

/// The same for a token with its log probability and so many alternatives, most of it for the answer of each choice.
fn scored_bytes(top: u32, choices: u32) -> usize {
    PROMPT_TOKEN_BYTES + (256 + 128 * top as usize) * (1 + choices as usize)
}

impl Accepted {
    pub fn canceller(&self) -> RequestCancel {
        self.events.canceller()
    }

    /// The next event; None after the last.
    pub fn poll_event(&mut self, context: &mut Context<'_>) -> Poll<Option<Event>> {
        let event = self.events.poll_event(context);
        if let Poll::Ready(None) = event {
            self.held = None;
        }
        if let (Poll::Ready(Some(event)), Some(entry)) = (&event, &self.entry) {
            entry.observe(event);
        }
        event
    }
}

/// Stops the rendering of a template when the client leaves.
struct CancelOnDrop(CancelFlag);

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        self.0.set();
    }
}

/// Jobs that run at once.
static WORKERS: Semaphore = Semaphore::const_new(8);

/// Runs work that takes its time on a thread for it. A panic of it is an error.
pub async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, ApiError> + Send + 'static,
) -> Result<T, ApiError> {
    let failed = || ApiError::internal("the request has failed; see the log of the server");
    // Whoever leaves while it waits here leaves no work behind.
    let permit = WORKERS.acquire().await.map_err(|_| failed())?;
    let work = move || {
        let _permit = permit;
        work()
    };
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result,
        Err(_) => Err(failed()),
    }
}

/// Tokenizes a prompt and submits the request.
pub async fn submit(
    app: &Arc<App>,
    visitor: &Visitor,
    mut request: Request,
    prompt: Prompt,
) -> Result<Accepted, ApiError> {
    let visitor = visitor.clone();
    let cancel = CancelFlag::default();
    let _cancel = CancelOnDrop(cancel.clone());
    let app = Arc::clone(app);
    blocking(move || {
        let tokens = app.encode_cancellable(&prompt, &cancel)?;
        drop(prompt);
        if let Some(room) = &visitor.room {
            match request.prompt_logprobs {
                Some(top) => room.set(tokens.len() * scored_bytes(top, request.choices))?,
                None => room.shrink(tokens.len() * PROMPT_TOKEN_BYTES),
            }
        }
        let prompt = tokens;
        let left = (app.max_context() + 1)
            .saturating_sub(prompt.len() as u32)
            .max(1);
        if request.max_tokens.is_none() {
            request.max_tokens = app.options.max_output_tokens.map(|most| most.min(left));
        }
        if request.sampling.repetition_penalty == 1.0 {
            // The other penalties look at the answer only.
            request.sampling.penalty_from = prompt.len() as u32;
        }
        if let Some(constrained) = &mut request.constraint
            && constrained.reasoning.is_some()
            && let Some(end) = begun_thinking(&app, &prompt)
        {
            constrained.reasoning = Some(Reasoning::Begun(end.into()));
        }
        accept(&app, &visitor, request, prompt)
    })
    .await
}

/// Hands a request with these tokens to the service.
pub fn accept(
    app: &App,
    visitor: &Visitor,
    mut request: Request,
    prompt: Vec<Token>,
) -> Result<Accepted, ApiError> {
    request.prompt = Prompt::Tokens(prompt.clone());
    let events = app.service.submit(&request);
    let events = events.map_err(|error| ApiError::from_service(&error, &app.service.stats()))?;
    if let Some(entry) = &visitor.entry {
        entry.accept(app, &prompt, request.choices);
    }
    Ok(Accepted {
        events,
        prompt,
        entry: visitor.entry.clone(),
        held: Some((visitor.permit.clone(), visitor.room.clone())),
    })
}

/// What one choice has got: all of it, or what came since the last look.
#[derive(Clone, Debug, Default)]
pub struct Part {
    pub started: bool,
    pub text: String,
    pub reasoning: String,
    pub calls: Vec<Call>,
    /// Whether it has called tools so far.
    pub has_called: bool,
    /// Kept if `keeps_tokens`.
    pub tokens: Vec<TokenEvent>,
    pub end: Option<(FinishReason, Option<Stop>)>,
    logprob_sum: f64,
    token_count: u32,
}

impl Part {
    fn take(&mut self, pieces: Vec<Piece>) {
        for piece in pieces {
            match piece {
                Piece::Text(text) => self.text.push_str(&text),
                Piece::Reasoning(text) => self.reasoning.push_str(&text),
                Piece::Call(call) => self.calls.push(call),
            }
        }
    }

    /// Mean logarithm of the probabilities of its tokens.
    pub fn mean_logprob(&self) -> f64 {
        self.logprob_sum / f64::from(self.token_count.max(1))
    }

    pub fn is_empty(&self) -> bool {
        let has_text = !self.text.is_empty() || !self.reasoning.is_empty();
        !has_text && self.calls.is_empty() && self.tokens.is_empty()
    }
}

/// Parts of all choices of a request, and how it ended.
#[derive(Debug, Default)]
pub struct Parts {
    pub choices: Vec<Part>,
    pub end: Option<Result<Usage, Error>>,
    /// That of the prompt, if it was asked for.
    pub embedding: Vec<f32>,
    /// Those of the prompt, if they were asked for.
    pub prompt_logprobs: Option<Vec<PromptLogprob>>,
    /// Whether they were asked for and have not come.
    pub waits_for_prompt: bool,
    /// Tokens of all choices that were reasoning.
    pub reasoning_tokens: u32,
    /// Whether tokens are wanted, besides the text.
    keeps_tokens: bool,
    /// (choices), or none: all is text.
    splitters: Vec<Splitter>,
}

impl Parts {
    pub fn new(choices: u32, keeps_tokens: bool, splitter: Option<Splitter>) -> Self {
        Self {
            choices: vec![Part::default(); choices as usize],
            end: None,
            embedding: Vec::new(),
            prompt_logprobs: None,
            waits_for_prompt: false,
            reasoning_tokens: 0,
            splitters: splitter.map_or(Vec::new(), |splitter| vec![splitter; choices as usize]),
            keeps_tokens,
        }
    }

    /// Takes an event in.
    pub fn add(&mut self, event: Event) {
        match event {
            Event::Started { choice, .. } => {
                if let Some(part) = self.choices.get_mut(choice as usize) {
                    part.started = true;
                }
            }
            Event::Token(token) => {
                let Some(part) = self.choices.get_mut(token.choice as usize) else {
                    return;
                };
                match self.splitters.get_mut(token.choice as usize) {
                    Some(splitter) => {
                        let mut pieces = Vec::new();
                        splitter.push(&token.text, &mut pieces);
                        self.reasoning_tokens += u32::from(splitter.is_reasoning());
                        part.take(pieces);
                    }
                    None => part.text.push_str(&token.text),
                }
                part.logprob_sum += f64::from(token.logprob);
                part.token_count += 1;
                if self.keeps_tokens {
                    part.tokens.push(token);
                }
            }
            Event::Finished {
                choice,
                reason,
                stop,
                text,
            } => {
                if let Some(part) = self.choices.get_mut(choice as usize) {
                    match self.splitters.get_mut(choice as usize) {
                        Some(splitter) => {
                            let mut pieces = Vec::new();
                            splitter.push(&text, &mut pieces);
                            splitter.finish(&mut pieces);
                            part.has_called = splitter.has_calls();
                            part.take(pieces);
                        }
                        None => part.text.push_str(&text),
                    }
                    part.end = Some((reason, stop));
                }
            }
            Event::PromptLogprobs(scores) => {
                self.prompt_logprobs = Some(scores);
                self.waits_for_prompt = false;
            }
            Event::Embedding(values) => self.embedding = values,
            Event::Done(usage) => self.end = Some(Ok(usage)),
            Event::Failed(error) => self.end = Some(Err(error)),
            _ => {}
        }
    }
}

/// Waits for the whole answer.
pub async fn collect(
    app: &App,
    accepted: &mut Accepted,
    mut parts: Parts,
) -> Result<Parts, ApiError> {
    while let Some(event) = poll_fn(|context| accepted.poll_event(context)).await {
        parts.add(event);
    }
    match &parts.end {
        Some(Ok(_)) => Ok(parts),
        Some(Err(error)) => Err(ApiError::from_service(error, &app.service.stats())),
        None => Err(ApiError::internal("the answer has no end")),
    }
}
