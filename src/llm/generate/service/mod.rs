//! Serves many requests at once on one engine. Feature `text`.
//!
//! A [`Service`] owns an engine. Any thread submits requests and gets an [`EventReceiver`] for each.
//!
//! ```text
//! callers ── tokenize, submit ──► scheduler ──► engine thread ── results ──► dispatcher ──► text threads
//!    ▲                            (one lock)    plans step n+1                               detokenize,
//!    │                                          while n runs                                 match stops
//!    └─────────────────────────────── events, at most 1,024 behind ──────────────────────────────┘
//! ```

use std::collections::HashMap;
use std::fmt;
use std::sync::mpsc;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle, ThreadId};
use std::time::Duration;

pub use self::clock::Clock;
pub use self::constraint::{Constrained, Constraint, ConstraintState, Next, Reasoning, Stopper};
pub use self::drafter::Drafting;
pub use self::engine::{EngineLimits, RowSource, SampledRow, ScoredRow, StepEngine, StepResults};
pub use self::event::{Error, Event, PromptLogprob, Stop, TokenEvent, Usage};
pub use self::model_engine::ModelEngine;
pub use self::request::{MAX_CHOICES, MAX_STOPS, Pooling, Request};
pub use self::scripted::{ScriptControl, ScriptedEngine};
pub use self::stats::{Observation, Observer, State, Stats};
#[cfg(feature = "stream")]
pub use self::stream::EventStream;
pub use self::stream::{EventReceiver, RequestCancel};
pub use self::turns::Turns;
pub use crate::scheduler::PageSharing;

use self::deliver::TextThread;
use self::drafter::Drafter;
use self::guide::{Guide, Input, TimeLeft};
use self::pooled::Pooled;
use self::scored::Scored;
use self::state::{Choice, Core, Shared};
use self::stream::Job;
use crate::core::cancel::CancelFlag;
use crate::core::error::{Error as EngineError, ErrorKind, Result};
use crate::llm::engine::Token;
use crate::llm::generate::{self, Prompt};
use crate::llm::model::Model;
use crate::llm::plan::EngineOptions;
use crate::llm::text::{ChatTemplate, EncodeOptions, Tokenizer};
use crate::scheduler::{self, Config, Scheduler};

mod ahead;
mod clock;
mod constraint;
mod deliver;
mod drafter;
mod engine;
mod event;
mod guide;
mod masks;
mod model_engine;
mod pooled;
mod request;
mod run;
mod saved;
mod scored;
mod scripted;
mod state;
mod stats;
mod stream;
mod turns;

/// How a service works. The defaults are those that are named.
#[derive(Clone)]
#[non_exhaustive]
pub struct Options {
    /// Most choices that wait for their first step: 1,024. At most 2^20.
    pub max_queued: u32,
    /// Most prompt tokens of these; None: four times the KV cache.
    pub max_queued_tokens: Option<u64>,
    /// Whether a tenant may have only as many of these as stay free for others: no.
    pub reserves_queue: bool,
    /// Longest wait for the first step: 60 s.
    pub queue_timeout: Duration,
    /// Events that a receiver may be behind before its request is paused: 1,024.
    pub max_events_behind: usize,
    /// Longest pause before the request fails: 30 s.
    pub pause_timeout: Duration,
    /// Tenants are numbered below this: 256. At most 2^20.
    pub max_tenants: u32,
    /// Longest time between two tokens of a choice, for which prompts are computed in smaller parts; None:
    /// no limit.
    pub itl_target: Option<Duration>,
    /// Threads that detokenize and match stop strings: 1.
    pub text_threads: usize,
    /// Threads that compute which tokens the rules of answers allow: 2.
    pub mask_threads: usize,
    /// Mean time that the masks of a request may take, after a second in all: 5 ms. None: no limit.
    pub mask_time: Option<Duration>,
    /// What guesses the next tokens of answers, for steps that verify them; None: nothing. The tokens are the same ones,
    /// on CUDA exactly with [`EngineOptions::batch_invariant`]. Answers that follow a rule have guesses if its state has
    /// [copies](ConstraintState::fork).
    pub drafting: Option<Drafting>,
    /// Tokens that end every text, besides those of the tokenizer.
    pub end_tokens: Vec<Token>,
    /// Renders conversations; None: the template of the tokenizer's vocabulary.
    pub chat_template: Option<Arc<ChatTemplate>>,
    /// Where the time is read: the machine's clock.
    pub clock: Clock,
    /// Takes measurements.
    pub observer: Option<Arc<dyn Observer>>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            max_queued: 1024,
            max_queued_tokens: None,
            reserves_queue: false,
            queue_timeout: Duration::from_secs(60),
            max_events_behind: 1024,
            pause_timeout: Duration::from_secs(30),
            max_tenants: 256,
            itl_target: None,
            text_threads: 1,
            mask_threads: 2,
            mask_time: Some(Duration::from_millis(5)),
            drafting: None,
            end_tokens: Vec::new(),
            chat_template: None,
            clock: Clock::system(),
            observer: None,
        }
    }
}

/// Serves requests on an engine. Clones share one service; when the last one is dropped, the requests
/// that still run fail with [`Error::ShutDown`], and the threads end.
///
/// ```no_run
/// # fn f(model: &worker_cuda::Model) -> Result<(), Box<dyn std::error::Error>> {
/// use worker_cuda::generate::Service;
/// use worker_cuda::generate::service::{Event, ModelEngine, Options, Request};
///
/// let engine = ModelEngine::serving_options(model)?;
/// let service = Service::with_model(model, &engine, Options::default())?;
/// let questions = ["Why is the sky blue?", "Why is snow white?"];
/// // Both are computed in the same steps.
/// let answers = questions.map(|question| service.submit(&Request::user(question)));
/// for answer in answers {
///     for event in answer? {
///         match event {
///             Event::Token(token) => print!("{}", token.text),
///             Event::Finished { text, .. } => println!("{text}"),
///             Event::Failed(error) => return Err(error.into()),
///             _ => {}
///         }
///     }
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Service(Arc<Owner>);

/// What ends with the last clone of a service.
struct Owner {
    shared: Arc<Shared>,
    tokenizer: Option<Arc<Tokenizer>>,
    chat_template: Option<Arc<ChatTemplate>>,
    end_tokens: Vec<Token>,
    drafting: Option<Drafting>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    mask_threads: Mutex<Vec<JoinHandle<()>>>,
    /// Of all threads of the service.
    thread_ids: Vec<ThreadId>,
    /// Held by the caller that waits for the threads.
    joining: Mutex<()>,
}

impl Service {
    /// Creates an engine for a model, reads the tokenizer from its file, and starts.
    ///
    /// Requests of equal salts share the pages of equal beginnings of their prompts. The pages of ended requests
    /// stay cached until their memory is needed. A preempted sequence is saved to host memory if restoring it takes
    /// less time than computing it again.
    pub fn with_model(model: &Model, engine: &EngineOptions, options: Options) -> Result<Self> {
        let tokenizer = Tokenizer::from_gguf(model.gguf())?;
        Self::with_tokenizer(model, engine, Arc::new(tokenizer), options)
    }

    /// The same with a tokenizer that is already there.
    pub fn with_tokenizer(
        model: &Model,
        engine: &EngineOptions,
        tokenizer: Arc<Tokenizer>,
        options: Options,
    ) -> Result<Self> {
        let engine = ModelEngine::new(model, engine)?;
        Self::start(engine, Some(tokenizer), options)
    }

    /// Starts with any engine. Without a tokenizer prompts are tokens, and events have no text.
    pub fn start(
        engine: impl StepEngine + 'static,
        tokenizer: Option<Arc<Tokenizer>>,
        options: Options,
    ) -> Result<Self> {
        let limits = engine.limits();
        let mut config = options.scheduler_config(&limits);
        let of_text = tokenizer.iter();
        let of_text = of_text.flat_map(|tokenizer| tokenizer.end_of_generation_ids());
        config.end_tokens.extend(of_text);
        // One that the engine does not know is never sampled, and must not become part of a bias.
        let is_known = |token: &Token| *token < limits.vocabulary_size;
        config.end_tokens.retain(is_known);
        let end_tokens = config.end_tokens.clone();
        let scheduler = Scheduler::new(config)
            .map_err(|error| EngineError::new(ErrorKind::InvalidArgument, error.to_string()))?;

        let (to_dispatcher, batches) = mpsc::channel();
        let shared = Shared::new(scheduler, limits, &options, to_dispatcher);
        let mut owner = Owner {
            shared: shared.clone(),
            chat_template: options.chat_template,
            end_tokens,
            drafting: options.drafting,
            threads: Mutex::default(),
            mask_threads: Mutex::default(),
            thread_ids: Vec::new(),
            joining: Mutex::default(),
            tokenizer,
        };
        spawn(&owner.threads, "service engine", {
            let shared = shared.clone();
            move || run::run(&shared, Box::new(engine))
        })?;
        let mut to_texts = Vec::new();
        for _ in 0..options.text_threads.max(1) {
            let (to_text, items) = mpsc::channel();
            to_texts.push(to_text);
            let text = TextThread {
                shared: shared.clone(),
                tokenizer: owner.tokenizer.clone(),
                observer: options.observer.clone(),
                answers: HashMap::new(),
            };
            spawn(&owner.threads, "service text", move || text.run(items))?;
        }
        for number in 0..options.mask_threads.max(1) {
            let shared = shared.clone();
            let work = move || masks::run(&shared, number);
            spawn(&owner.mask_threads, "service masks", work)?;
        }
        let observer = options.observer;
        spawn(&owner.threads, "service events", move || {
            deliver::dispatch(batches, to_texts, observer);
        })?;
        for threads in [&owner.threads, &owner.mask_threads] {
            let threads = lock(threads);
            let ids = threads.iter().map(|thread| thread.thread().id());
            owner.thread_ids.extend(ids);
        }
        Ok(Self(Arc::new(owner)))
    }

    /// Tokenizes the prompt on this thread and submits the request. It does not wait for results of the
    /// engine.
    pub fn submit(&self, request: &Request) -> Result<EventReceiver, Error> {
        self.submit_cancellable(request, &CancelFlag::default())
    }

    /// The same with a flag that stops the rendering of the chat template.
    pub fn submit_cancellable(
        &self,
        request: &Request,
        cancel: &CancelFlag,
    ) -> Result<EventReceiver, Error> {
        let shared = &self.0.shared;
        let tokens = self.encode(&request.prompt, cancel).and_then(|tokens| {
            request.check(&tokens, &shared.limits, self.0.tokenizer.is_some())?;
            let drafters = self.0.drafters(request, &tokens)?;
            Ok((tokens, drafters))
        });
        let job = shared.update(|core, now| {
            let job = tokens.and_then(|input| self.0.insert(core, request, input, now));
            match job {
                Ok(_) => core.stats.accepted += 1,
                Err(_) => core.stats.rejected += 1,
            }
            job
        })?;
        Ok(EventReceiver {
            shared: shared.clone(),
            job,
        })
    }

    /// The tokens of a prompt, computed on this thread.
    pub fn encode(&self, prompt: &Prompt, cancel: &CancelFlag) -> Result<Vec<Token>, Error> {
        let Some(tokenizer) = &self.0.tokenizer else {
            return match prompt {
                Prompt::Tokens(tokens) => Ok(tokens.clone()),
                _ => Err(Error::Invalid {
                    field: "prompt",
                    message: "only tokens are possible without a tokenizer".into(),
                }),
            };
        };
        let template = self.0.chat_template.as_deref();
        generate::encode(tokenizer, template, prompt, cancel)
            .map_err(|error| Error::Prompt(Arc::new(error)))
    }

    /// The tokenizer, if there is one.
    pub fn tokenizer(&self) -> Option<&Arc<Tokenizer>> {
        self.0.tokenizer.as_ref()
    }

    /// Limits of the engine.
    pub fn limits(&self) -> &EngineLimits {
        &self.0.shared.limits
    }

    /// The clock that it reads.
    pub fn clock(&self) -> &Clock {
        &self.0.shared.clock
    }

    /// Whether requests are accepted.
    pub fn state(&self) -> State {
        self.stats().state
    }

    /// Counts for a health report or for metrics.
    pub fn stats(&self) -> Stats {
        self.0.shared.lock().stats
    }

    /// Refuses requests from now on. Those that run when `timeout` has passed by the service's clock
    /// fail with [`Error::ShutDown`]. Does not wait.
    pub fn begin_drain(&self, timeout: Duration) {
        self.0.begin_drain(timeout);
    }

    /// [`begin_drain`](Self::begin_drain), then waits until the service has stopped and its threads have
    /// ended. Returns the number of requests that were cut short. Called by an
    /// [`Observer`], it does not wait for the observer's own thread. Several threads may call it at once.
    pub fn drain(&self, timeout: Duration) -> u32 {
        self.0.begin_drain(timeout);
        self.0.join();
        self.0.shared.lock().cut
    }
}

impl Options {
    fn scheduler_config(&self, limits: &EngineLimits) -> Config {
        let pool_tokens = u64::from(limits.page_count) * u64::from(limits.page_tokens);
        let mut config = Config::host(limits.page_count);
        config.page_tokens = limits.page_tokens;
        config.max_sequences = limits.max_sequences;
        config.token_budget = limits.max_step_tokens;
        config.max_draft_tokens = match self.drafting {
            Some(_) => limits.max_draft_tokens,
            None => 0,
        };
        config.max_sequence_tokens = limits.max_sequence_tokens;
        config.page_sharing = limits.page_sharing;
        config.model_digest = limits.model_digest;
        config.max_saved_pages = limits.max_saved_pages;
        config.max_queued = self.max_queued;
        config.max_queued_tokens = self.max_queued_tokens.unwrap_or(4 * pool_tokens);
        config.reserves_queue = self.reserves_queue;
        config.queue_timeout = self.queue_timeout;
        config.pause_timeout = self.pause_timeout;
        config.max_tenants = self.max_tenants;
        config.itl_target = self.itl_target;
        config.end_tokens = self.end_tokens.clone();
        config
    }
}

/// Starts a thread, and adds it to a list.
fn spawn(
    threads: &Mutex<Vec<JoinHandle<()>>>,
    name: &str,
    work: impl FnOnce() + Send + 'static,
) -> Result<()> {
    let thread = thread::Builder::new().name(name.into()).spawn(work);
    let thread = thread.map_err(|error| {
        let message = format!("no thread for a service: {error}");
        EngineError::new(ErrorKind::OutOfHostMemory, message)
    })?;
    lock(threads).push(thread);
    Ok(())
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Owner {
    /// The sources of drafts of a request's choices.
    fn drafters(&self, request: &Request, prompt: &[Token]) -> Result<Vec<Drafter>, Error> {
        let Some(drafting) = &self.drafting else {
            return Ok(Vec::new());
        };
        let prediction = match &self.tokenizer {
            Some(tokenizer) => tokenizer
                .encode(&request.prediction, EncodeOptions::default())
                .map_err(|error| Error::Prompt(Arc::new(error)))?,
            None => Vec::new(),
        };
        Ok(drafting.begin(request, prompt, &prediction))
    }

    fn insert(
        &self,
        core: &mut Core,
        request: &Request,
        (tokens, drafters): (Vec<Token>, Vec<Drafter>),
        now: Duration,
    ) -> Result<Arc<Job>, Error> {
        match core.stats.state {
            State::Ready => {}
            State::Lost => {
                let lost = core.fault.clone().map(Error::DeviceLost);
                return Err(lost.unwrap_or(Error::Draining));
            }
            _ => return Err(Error::Draining),
        }
        let mut submitted = scheduler::Request::new(&tokens);
        submitted.max_tokens = request.max_tokens;
        submitted.stop_tokens = &request.stop_tokens;
        submitted.ignore_end = request.ignore_end;
        submitted.tenant = request.tenant;
        submitted.priority = request.priority;
        submitted.salt = request.salt;
        // Neither hidden states nor logits of cached positions are known.
        submitted.use_cache = request.pooling.is_none() && request.prompt_logprobs.is_none();
        let guide = request.constraint.as_ref().map(|constrained| {
            let (ends, tokenizer) = (&self.end_tokens, self.tokenizer.as_ref());
            let times = <[Arc<TimeLeft>; 2]>::default();
            move || Guide::new(request, constrained, tokenizer, ends, &times)
        });
        submitted.deadline = request
            .deadline
            .map(|deadline| now.saturating_add(deadline));
        if core.scheduler.is_idle() {
            core.stats.last_progress = core.stats.last_progress.max(now);
        }
        let mut ids = Vec::new();
        core.scheduler
            .submit_copies(&submitted, request.choices, now, &mut ids)?;
        let prompt_tokens = tokens.len() as u32;
        let job = Job::new(core.next_serial, request, prompt_tokens, now, ids.clone());
        let job = Arc::new(job);
        core.next_serial += 1;
        let mut drafters = drafters.into_iter();
        for (number, id) in (0..).zip(ids) {
            let sampling = request.sampling_of(number);
            let first_sampling = request.first_sampling(sampling.seed, &self.end_tokens);
            let choice = Choice {
                job: job.clone(),
                number,
                sampling: Arc::new(sampling),
                first_sampling: first_sampling.map(Arc::new),
                guide: guide.as_ref().map(|guide| guide()),
                drafter: drafters.next(),
                pooled: request
                    .pooling
                    .map(|pooling| Pooled::new(pooling, prompt_tokens)),
                scored: request
                    .prompt_logprobs
                    .filter(|_| number == 0)
                    .map(|top| Scored::new(&tokens, top)),
                fails_with: None,
            };
            let is_bound = choice.guide.as_ref().is_some_and(Guide::begins_bound);
            if let Some(drafter) = &choice.drafter {
                core.scheduler.expect_guesses(id, drafter.most_computed());
            }
            core.requests.0.insert(id, choice);
            if is_bound {
                core.ask_for_mask(id, Input::Start, Vec::new(), now);
            }
        }
        Ok(job)
    }

    fn begin_drain(&self, timeout: Duration) {
        self.shared
            .update(|core, now| core.begin_drain(now.saturating_add(timeout)));
    }

    fn join(&self) {
        // Others wait for the caller that was first, but no thread that it waits for does.
        let is_own = self.thread_ids.contains(&thread::current().id());
        let _joining = (!is_own).then(|| lock(&self.joining));
        let threads: Vec<_> = lock(&self.threads).drain(..).collect();
        threads.into_iter().for_each(join);
        // The engine thread has requested their end. A rule of a caller's may keep one for ever.
        let threads: Vec<_> = lock(&self.mask_threads).drain(..).collect();
        for (number, thread) in threads.into_iter().enumerate() {
            if !self.shared.lock().masks.is_at_work(number) {
                join(thread);
            }
        }
    }
}

/// Waits for a thread, unless it is this one: an observer that drops the last clone of a service is on one of its
/// threads, which ends by itself.
fn join(thread: JoinHandle<()>) {
    if thread.thread().id() != thread::current().id() {
        // A thread that panicked has nothing more to do.
        let _ = thread.join();
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        self.begin_drain(Duration::ZERO);
        self.join();
    }
}

impl fmt::Debug for Service {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Service")
            .field("stats", &self.stats())
            .finish_non_exhaustive()
    }
}
