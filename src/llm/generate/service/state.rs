//! What callers and threads of a service share: the scheduler with its requests, behind one lock.
//!
//! Locks are taken in this order: the queue of a request, then [`Core`]. Whoever changes the scheduler
//! calls [`Core::flush`] before it releases the lock, so that events are sent in order.

use std::collections::{HashMap, HashSet};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::clock::{Clock, Wake};
use super::drafter::Drafter;
use super::engine::{EngineLimits, RowSource, SampledRow, ScoredRow, StepResults};
use super::event::{Error, PromptLogprob};
use super::guide::{Guide, Turn};
use super::masks::{Masks, Pending};
use super::pooled::Pooled;
use super::scored::Scored;
use super::stats::{State, Stats};
use super::stream::Job;
use crate::core::error::Error as EngineError;
use crate::llm::engine::Token;
use crate::llm::step::{HiddenState, Sampling};
use crate::scheduler::{End, EndReason, EventKind, Plan, RequestId, Row, Scheduler};

pub(super) struct Shared {
    core: Mutex<Core>,
    /// Something changed that the engine thread may wait for.
    changed: Condvar,
    pub clock: Clock,
    pub limits: EngineLimits,
    pub max_events_behind: usize,
}

pub(super) struct Core {
    pub scheduler: Scheduler,
    pub requests: Requests,
    pub stats: Stats,
    /// When a drain ends the requests that still run.
    pub drain_until: Option<Duration>,
    /// Requests that were cut short.
    pub cut: u32,
    /// The error of the last failed step.
    pub fault: Option<Arc<EngineError>>,
    pub next_serial: u64,
    last_start: Option<Duration>,
    /// Tokens of a request that may wait for its receiver.
    max_behind: usize,
    queue_timeout: Duration,
    pause_timeout: Duration,
    pub masks: Masks,
    /// Mean time for a mask of a request.
    pub mask_time: Option<Duration>,
    /// Words of a mask.
    pub mask_words: usize,
    /// Requests whose next tokens are guessed, or that need masks, and that have new tokens since then.
    pub grown: Vec<RequestId>,
    /// Values of a hidden state.
    embedding_length: usize,
    /// Rows that wait for their masks.
    pub pending: Vec<Pending>,
    /// None after the engine thread has ended.
    pub dispatcher: Option<Sender<Batch>>,
}

/// The choices that have not ended.
#[derive(Default)]
pub(super) struct Requests(pub HashMap<RequestId, Choice>);

pub(super) struct Choice {
    pub job: Arc<Job>,
    pub number: u32,
    pub sampling: Arc<Sampling>,
    /// Forbids the ends of the text, for the first `min_tokens`.
    pub first_sampling: Option<Arc<Sampling>>,
    /// If the answer follows a rule.
    pub guide: Option<Guide>,
    /// If its next tokens are guessed.
    pub drafter: Option<Drafter>,
    /// If its embedding is wanted.
    pub pooled: Option<Pooled>,
    /// If the log probabilities of its prompt are wanted.
    pub scored: Option<Scored>,
    /// Replaces the reason of the scheduler when the choice ends.
    pub fails_with: Option<Error>,
}

/// What one call of the scheduler has reported.
pub(super) struct Batch {
    pub items: Vec<Item>,
    /// Duration, rows and tokens of the step that ended.
    pub step: Option<(Duration, u32, u32)>,
}

pub(super) struct Item {
    pub job: Arc<Job>,
    pub choice: u32,
    pub time: Duration,
    pub kind: ItemKind,
}

pub(super) enum ItemKind {
    Started {
        cached_tokens: u32,
    },
    Token {
        token: Token,
        logprob: f32,
        top: Vec<(Token, f32)>,
        /// Its place in its row, and the drafts of the row.
        offset: u32,
        drafts: u32,
    },
    PromptLogprobs(Vec<PromptLogprob>),
    Embedding(Vec<f32>),
    Ended(Result<EndReason, Error>),
}

/// What the rows of one plan return: a copy, so that the engine takes it without the lock.
#[derive(Default)]
pub(super) struct SampledRows {
    sampled: HashMap<RequestId, Sampled>,
    hidden: HashMap<RequestId, HiddenState>,
    scored: HashMap<RequestId, ScoredRow>,
    pub guided: Vec<GuidedRow>,
}

/// A row that samples, of a request that follows a rule.
pub(super) struct GuidedRow {
    pub request: RequestId,
    /// In the plan.
    pub number: usize,
    pub drafts: Vec<Token>,
}

struct Sampled {
    sampling: Arc<Sampling>,
    prompt_tokens: u32,
    index: u32,
}

impl SampledRows {
    /// Replaces them by those of a plan.
    pub fn fill(&mut self, plan: &Plan, requests: &Requests) {
        self.sampled.clear();
        self.hidden.clear();
        self.scored.clear();
        self.guided.clear();
        for (number, row) in plan.rows().iter().enumerate() {
            let choice = &requests.0[&row.request];
            if let Some(of) = choice.pooled.as_ref().and_then(|pooled| pooled.wanted(row)) {
                self.hidden.insert(row.request, of);
            }
            if let Some(of) = choice.scored.as_ref().and_then(|scored| scored.wanted(row)) {
                self.scored.insert(row.request, of);
            }
            if !row.samples {
                continue;
            }
            if choice.guide.is_some() {
                self.guided.push(GuidedRow {
                    request: row.request,
                    number,
                    drafts: plan.tokens(row.drafts).to_vec(),
                });
            }
            let prompt_tokens = choice.job.prompt_tokens;
            let index = row.first_position + row.token_count - prompt_tokens;
            let sampled = Sampled {
                sampling: choice.sampling_of(row, index),
                prompt_tokens,
                index,
            };
            self.sampled.insert(row.request, sampled);
        }
    }
}

impl Choice {
    /// How a row samples the answer's token number `index`, and those after its drafts.
    fn sampling_of(&self, row: &Row, index: u32) -> Arc<Sampling> {
        let first = self.first_sampling.as_ref();
        let first = first.filter(|_| index < self.job.min_tokens);
        let own = first.unwrap_or(&self.sampling);
        let guide = self.guide.as_ref().filter(|_| !row.is_late);
        let guided = guide.and_then(|guide| Some((guide, guide.sampling.as_ref()?)));
        match (guided, row.drafts.len()) {
            (Some((_, sampling)), 0) => sampling.clone(),
            (Some((guide, sampling)), drafts) => Arc::new(guide.ahead.sampling(sampling, drafts)),
            (None, drafts) => own.with_drafts(drafts),
        }
    }
}

impl RowSource for SampledRows {
    fn sampled(&self, row: &Row) -> SampledRow<'_> {
        let sampled = &self.sampled[&row.request];
        SampledRow::new(&sampled.sampling, sampled.prompt_tokens, sampled.index)
    }

    fn hidden_state(&self, row: &Row) -> Option<HiddenState> {
        self.hidden.get(&row.request).copied()
    }

    fn scored(&self, row: &Row) -> Option<ScoredRow> {
        self.scored.get(&row.request).copied()
    }
}

impl Shared {
    pub fn new(
        scheduler: Scheduler,
        limits: EngineLimits,
        options: &super::Options,
        dispatcher: Sender<Batch>,
    ) -> Arc<Self> {
        let mut core = Core {
            scheduler,
            requests: Requests::default(),
            stats: Stats {
                page_count: limits.page_count,
                page_tokens: limits.page_tokens,
                ..Stats::default()
            },
            drain_until: None,
            cut: 0,
            fault: None,
            next_serial: 0,
            last_start: None,
            max_behind: options.max_events_behind.max(1),
            queue_timeout: options.queue_timeout,
            pause_timeout: options.pause_timeout,
            masks: Masks::new(options.mask_threads.max(1)),
            mask_time: options.mask_time,
            mask_words: limits.vocabulary_size.div_ceil(32) as usize,
            grown: Vec::new(),
            embedding_length: limits.embedding_length as usize,
            pending: Vec::new(),
            dispatcher: Some(dispatcher),
        };
        core.count();
        let shared = Arc::new(Self {
            core: Mutex::new(core),
            changed: Condvar::new(),
            clock: options.clock.clone(),
            limits,
            max_events_behind: options.max_events_behind.max(1),
        });
        let sleeper: Arc<dyn Wake> = shared.clone();
        shared.clock.register(Arc::downgrade(&sleeper));
        shared
    }

    pub fn lock(&self) -> MutexGuard<'_, Core> {
        self.core.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the requests, and wakes the engine thread.
    pub fn update<T>(&self, change: impl FnOnce(&mut Core, Duration) -> T) -> T {
        let now = self.clock.now();
        let mut core = self.lock();
        let result = change(&mut core, now);
        core.flush(now, None, None);
        drop(core);
        self.changed.notify_all();
        result
    }

    /// Waits for a change, or until `time`.
    pub fn wait<'a>(
        &self,
        core: MutexGuard<'a, Core>,
        time: Option<Duration>,
    ) -> MutexGuard<'a, Core> {
        match time.and_then(|time| self.clock.wait_for(time)) {
            Some(timeout) => {
                let waited = self.changed.wait_timeout(core, timeout);
                waited.unwrap_or_else(PoisonError::into_inner).0
            }
            None => {
                let waited = self.changed.wait(core);
                waited.unwrap_or_else(PoisonError::into_inner)
            }
        }
    }

    /// Waits while one of these requests waits for masks, but not longer than `most` of the machine's time: the other rows
    /// of the step do not depend on them.
    pub fn wait_for_masks<'a>(
        &self,
        mut core: MutexGuard<'a, Core>,
        requests: &[RequestId],
        waits: impl Fn(&Core, RequestId) -> bool,
        most: Duration,
    ) -> MutexGuard<'a, Core> {
        let end = Instant::now() + most;
        while requests.iter().any(|&id| waits(&core, id)) {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            let waited = self.changed.wait_timeout(core, left);
            core = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        core
    }

    /// Cancels the choices of a request that have not ended.
    pub fn cancel(&self, job: &Job) {
        self.update(|core, _| {
            for &id in &job.ids {
                core.scheduler.cancel(id);
            }
        });
    }
}

impl Wake for Shared {
    fn wake(&self) {
        // With the lock, so that a thread that has read the time already waits.
        drop(self.lock());
        self.changed.notify_all();
    }
}

impl Core {
    /// Adds the hidden states of a step to those that their requests have.
    pub fn take_hidden_states(&mut self, results: &StepResults) {
        let width = self.embedding_length.max(1);
        let states = results.hidden_states.chunks_exact(width);
        for (&(request, first_position), state) in results.hidden_rows.iter().zip(states) {
            let choice = self.requests.0.get_mut(&request);
            if let Some(pooled) = choice.and_then(|choice| choice.pooled.as_mut()) {
                pooled.take(first_position, state);
            }
        }
    }

    /// The same for log probabilities of prompts.
    pub fn take_scores(&mut self, results: &StepResults) {
        for (index, row) in results.scored_rows.iter().enumerate() {
            let choice = self.requests.0.get_mut(&row.request);
            if let Some(scored) = choice.and_then(|choice| choice.scored.as_mut()) {
                scored.take(results, index);
            }
        }
    }

    /// Sends what the scheduler has reported, with the outputs of the step that ended.
    pub fn flush(
        &mut self,
        now: Duration,
        results: Option<&StepResults>,
        step: Option<(Duration, u32, u32)>,
    ) {
        let (mut items, mut behind) = (Vec::new(), Vec::new());
        let (mut turns, mut guides) = (Vec::new(), Vec::new());
        let stats = self.scheduler.stats();
        for event in self.scheduler.events() {
            let Some(choice) = self.requests.0.get_mut(&event.request) else {
                continue;
            };
            // The step that ends the prompt also samples, or ends the request.
            if !matches!(event.kind, EventKind::Started { .. })
                && let Some(scores) = choice.scored.as_mut().and_then(Scored::finish)
            {
                items.push(Item {
                    job: choice.job.clone(),
                    choice: choice.number,
                    time: now,
                    kind: ItemKind::PromptLogprobs(scores),
                });
            }
            let kind = match event.kind {
                EventKind::Started { cached_tokens } => {
                    let since = self.last_start.map(|last| now.saturating_sub(last));
                    if let Some(since) = since {
                        self.stats.start_interval = (self.stats.start_interval * 7 + since) / 8;
                    }
                    self.last_start = (stats.waiting > 0).then_some(now);
                    self.stats.prompt_tokens += u64::from(choice.job.prompt_tokens);
                    ItemKind::Started { cached_tokens }
                }
                EventKind::Token {
                    token,
                    row,
                    offset,
                    drafts,
                    ..
                } => {
                    self.stats.generated_tokens += 1;
                    if choice.job.count_token(self.max_behind) {
                        behind.push(choice.job.clone());
                    }
                    if let Some(guide) = &mut choice.guide {
                        turns.push((event.request, guide.take(token)));
                    }
                    if let Some(drafter) = &mut choice.drafter {
                        drafter.take(token);
                    }
                    if offset == 0 && (choice.guide.is_some() || choice.drafter.is_some()) {
                        self.grown.push(event.request);
                    }
                    let output = results.map(|results| results.token(row, offset));
                    let (logprob, top) = output.unwrap_or_default();
                    ItemKind::Token {
                        token,
                        logprob,
                        top: top.to_vec(),
                        offset,
                        drafts,
                    }
                }
                EventKind::Ended(End { reason, .. }) => {
                    let mut failed = choice.fails_with.take();
                    if let Some(pooled) = choice.pooled.take()
                        && failed.is_none()
                        && reason == EndReason::Length
                    {
                        match pooled.finish() {
                            Some(values) => items.push(Item {
                                job: choice.job.clone(),
                                choice: choice.number,
                                time: now,
                                kind: ItemKind::Embedding(values),
                            }),
                            None => failed = Some(Error::NotFinite),
                        }
                    }
                    let failed = failed.or_else(|| match reason {
                        EndReason::QueueTimeout => Some(Error::QueueTimeout(self.queue_timeout)),
                        EndReason::PauseTimeout => Some(Error::ReceiverBehind(self.pause_timeout)),
                        reason => failure(reason, self.fault.as_ref()),
                    });
                    ItemKind::Ended(failed.map_or(Ok(reason), Err))
                }
            };
            let is_end = matches!(kind, ItemKind::Ended(_));
            items.push(Item {
                job: choice.job.clone(),
                choice: choice.number,
                time: now,
                kind,
            });
            if is_end {
                let choice = self.requests.0.remove(&event.request);
                guides.extend(choice.and_then(|choice| Some((event.request, choice.guide?))));
            }
        }
        for (id, guide) in guides {
            self.end_guide(id, guide);
        }
        for (id, turn) in turns {
            match turn {
                Turn::Stay => {}
                Turn::Free => self.scheduler.allow(id, None),
                Turn::Mask(input) => {
                    let choice = self.requests.0.get_mut(&id);
                    if let Some(guide) = choice.and_then(|choice| choice.guide.as_mut()) {
                        guide.add_input(input);
                        self.scheduler.allow_late(id, guide.tokens);
                    }
                }
            }
        }
        for &id in behind.iter().flat_map(|job: &Arc<Job>| &job.ids) {
            self.scheduler.pause(id, now);
        }
        self.count();
        if items.is_empty() && step.is_none() {
            return;
        }
        if let Some(dispatcher) = &self.dispatcher {
            // It ends after the engine thread only.
            let _ = dispatcher.send(Batch { items, step });
        }
    }

    /// The engine was opened again, with nothing in it: all that ran is computed again.
    pub fn restart(&mut self, lost: EngineError, now: Duration) {
        self.stats.last_progress = now;
        self.stats.engine_faults += 1;
        self.fault = Some(Arc::new(lost));
        self.scheduler.lose_engine(now);
        self.flush(now, None, None);
    }

    /// Ends all requests with an error.
    pub fn end_all(&mut self, error: &Error, now: Duration) {
        let ids: Vec<RequestId> = self.requests.0.keys().copied().collect();
        let mut jobs = HashSet::new();
        for choice in self.requests.0.values_mut() {
            choice.fails_with.get_or_insert_with(|| error.clone());
            jobs.insert(choice.job.serial);
        }
        self.cut += jobs.len() as u32;
        for id in ids {
            self.scheduler.cancel(id);
        }
        self.flush(now, None, None);
    }

    /// Refuses requests from now on.
    pub fn begin_drain(&mut self, until: Duration) {
        if self.stats.state == State::Ready {
            self.stats.state = State::Draining;
        }
        let earlier = self.drain_until.map_or(until, |other| other.min(until));
        self.drain_until = Some(earlier);
    }

    fn count(&mut self) {
        let stats = self.scheduler.stats();
        self.stats.running = stats.running;
        self.stats.waiting = stats.waiting;
        self.stats.free_pages = stats.free_pages;
        self.stats.cached_pages = stats.cached_pages;
        self.stats.held_pages = stats.held_pages;
        self.stats.preempted = stats.preemptions;
        self.stats.cached_tokens = stats.cached_tokens;
        self.stats.draft_tokens = stats.draft_tokens;
        self.stats.accepted_draft_tokens = stats.accepted_draft_tokens;
    }
}

fn failure(reason: EndReason, fault: Option<&Arc<EngineError>>) -> Option<Error> {
    match reason {
        EndReason::Deadline => Some(Error::Deadline),
        EndReason::EmptyMask => Some(Error::NoTokenAllowed),
        EndReason::NotFinite => Some(Error::NotFinite),
        EndReason::EngineFault => fault.cloned().map(Error::EngineFault),
        _ => None,
    }
}
