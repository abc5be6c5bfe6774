//! Decides what each step of an engine computes, for many requests at once.
//!
//! A [`Scheduler`] is a state machine without devices, clock, threads or I/O. The caller passes the time
//! since any fixed moment, and carries out the plans that the scheduler returns. The same sequence of calls
//! always gives the same results. After a warm-up, no call allocates memory.
//!
//! ```
//! use std::time::Duration;
//! use worker_cuda::scheduler::{Config, EventKind, Request, RowOutcome, Scheduler, StepOutcome};
//!
//! let mut scheduler = Scheduler::new(Config::host(64))?;
//! let mut request = Request::new(&[1, 2, 3]);
//! request.max_tokens = Some(2);
//! let id = scheduler.submit(&request, Duration::ZERO).unwrap();
//!
//! let mut generated = Vec::new();
//! while !scheduler.is_idle() {
//!     let plan = scheduler.schedule(Duration::ZERO);
//!     let step = plan.step();
//!     // An engine computes the rows here; this one samples 42 every time.
//!     let outcomes: Vec<_> = plan.rows().iter().map(|row| RowOutcome::Ok(row.samples.then_some(42))).collect();
//!     for event in scheduler.apply(step, StepOutcome::Done(&outcomes), Duration::ZERO).unwrap() {
//!         assert_eq!(event.request, id);
//!         if let EventKind::Token { token, .. } = event.kind {
//!             generated.push(token);
//!         }
//!     }
//! }
//! assert_eq!(generated, [42, 42]);
//! # Ok::<(), worker_cuda::scheduler::ConfigError>(())
//! ```
//!
//! ```text
//! submit, cancel, pause ──►┌───────────┐── schedule(now) ──► plan ──► engine
//!                          │ Scheduler │                                │
//! events ◄─────────────────└───────────┘◄── apply(step, outcome, now) ──┘
//! ```
//!
//! Two steps may be in flight: step n + 1 can be planned and submitted while step n runs.
//!
//! **Steps.** There are no separate phases for prefill and decode. A request has a number of tokens, some
//! of which are computed, and each step computes more of them. The token budget of a step is divided in
//! this order:
//! 1. Every request that lacks only its last token gets that token, in every step.
//! 2. Prompts in progress are continued, most urgent first. If there is a target for the time between two
//!    tokens, prompts get as many tokens as fit into the rest of this time according to [`Costs`], but at
//!    least a quarter of the budget.
//! 3. Waiting requests are admitted while there are sequences, pages and budget left.
//!
//! A prefill chunk ends on a page boundary or with the last known token. Therefore a page is always
//! computed in the same way, and a request that finds pages in the cache gets the same results as without
//! them.
//!
//! **Drafts.** [`Scheduler::propose`] guesses the next tokens of a request. A row that continues its text may have the
//! guesses as draft tokens, which the engine verifies: several tokens come from one step then, the same as without
//! drafts. Drafts use what the budget and the pages have left after all other rows. A step with drafts is the only one
//! in flight, because the texts that the next one continues are not known before it ends; so every text is still in
//! every step. The number of drafts maximises the expected tokens per time, by [`Costs`] and by how many guesses of
//! each request were right; where the overlap of two steps is worth more, there are none.
//!
//! **Order.** A priority is a number; a lower number is more urgent. It decreases by one for each second of
//! waiting. Tenants that wait at the same priority take turns, weighted by the tokens computed for them.
//! Requests of one tenant at one priority are admitted in order of arrival. The request that is next to be
//! admitted waits until its pages are free, and no other request overtakes it. There is one exception: if
//! another row computes the request's next page in the same step, or the prompt of which the request is a copy, the
//! request waits for one step, and other tenants continue.
//!
//! **Pages.** A request is admitted if 3 % of all pages stay free after the pages of its prompt, without
//! those in the cache, are taken. If sequences grow and no page is free, sequences are preempted: paused
//! ones first, then by lowest urgency, by fewest computed tokens, and by latest arrival. The most urgent
//! sequence is never preempted. A preempted sequence is saved if, by [`Costs`], restoring it takes less
//! time than computing it again. [`Scheduler::lose_saved`] reports one that could not be kept.
//!
//! **Cache.** The scheduler knows the keys ([`PageKey`]) of all computed pages. The pages of ended requests
//! stay in the cache until they are needed; the least recently used page is evicted first. [`Plan`]
//! describes what the engine must do.
//!
//! **Tokens that wait.** A request may be limited to the tokens for which the caller knows how to draw them
//! ([`Scheduler::allow`]), for example because a grammar says what may follow the token before. It has no rows
//! until more are allowed, and the others continue. With [`Scheduler::allow_late`] the row of one more token is
//! planned, as a late one: the caller finds out how that token is drawn while the row is computed. A late row whose
//! time is over before that is [held](Scheduler::hold) and repeated.
//!
//! **Copies.** A request may be submitted [several times](Scheduler::submit_copies), to sample several answers. One copy
//! computes the prompt, chunk by chunk, and the others wait for it. In the step after its last chunk they become
//! [forks](Plan::forks) of its sequence up to the last token of the prompt, and compute this token again, because each
//! samples from its logits. A fork shares the full pages and takes one more page:
//!
//! ```text
//! first copy   | page 0 | page 1 | 2: tokens 128 to 140, then its own |     prompt of 141 tokens
//! a fork       | page 0 | page 1 | copy of 128 to 139, 140 again, then its own |
//! ```
//!
//! That step may be planned while the last chunk is in flight. If the chunk does not end well, the forks lose what it
//! should have computed, like the first copy.
//!
//! **Faults.** If a step fails, all running requests are computed again, once. Their events then continue
//! where they stopped.

#![forbid(unsafe_code)]

use std::time::Duration;

pub use self::config::{Config, ConfigError, Costs, PageSharing, SMALL_STEP_TOKENS, SmallSteps};
pub use self::drafts::MAX_DRAFTS;
#[cfg(feature = "text")]
pub(crate) use self::drafts::{Guesses, choose_one};
pub use self::event::{ApplyError, End, EndReason, Event, EventKind, RowOutcome, StepOutcome};
pub use self::keys::{PageKey, Salt};
pub use self::plan::{Admission, Fork, Plan, Publish, Restore, Row, Save, Span, Truncation};
pub use self::request::{MAX_PRIORITY, MAX_STOP_TOKENS, Refusal, Request, RequestId};

use self::drafts::Candidate;
use self::pages::PagePool;
use self::queue::{AGEING, Queue};
use self::table::{Entry, State};
use self::timers::{NEVER, Timers};
use self::tokens::{TokenList, TokenStore};

mod apply;
mod config;
mod drafts;
mod event;
mod keys;
mod pages;
mod plan;
mod queue;
mod request;
mod schedule;
mod table;
mod timers;
mod tokens;

/// Id of a token, below the model's vocabulary size.
pub type Token = u32;

/// No page, block or entry.
const NONE: u32 = u32::MAX;

/// Steps that may be in flight.
pub const STEPS_IN_FLIGHT: usize = 2;

/// Decides what every step computes; see the [module](self).
#[derive(Debug)]
pub struct Scheduler {
    config: Config,
    costs: Costs,
    /// The latest time that was passed.
    now: Duration,
    entries: Vec<Entry>,
    free_entries: Vec<u32>,
    next_serial: u64,
    tokens: TokenStore,
    queue: Queue,
    timers: Timers,
    new: New,
    new_of_tenants: Vec<New>, // (max_tenants)
    /// Entries that have a sequence, most urgent first.
    running: Vec<u32>,
    sequences: Vec<SequenceState>, // (max_sequences)
    free_sequences: Vec<u32>,
    pool: PagePool,
    saved_pages: u32,
    /// The request to admit next lacked pages or a sequence in the last plan.
    lacks_room: bool,
    /// Plans so far, without rows too.
    plan_count: u64,
    /// Number of the next step.
    next_step: u64,
    in_flight: Vec<Step>,   // at most STEPS_IN_FLIGHT, oldest first
    spare_steps: Vec<Step>, // their memory
    plan: Plan,
    /// What happened since the last plan: publishes, releases and dropped saves of the next.
    pending: Plan,
    candidates: Vec<Candidate>, // their memory is used again
    events: Vec<Event>,
    totals: Totals,
}

/// The pages of a sequence, first page first.
#[derive(Debug, Default)]
struct SequenceState {
    pages: Vec<u32>,
}

/// A step in flight.
#[derive(Debug, Default)]
struct Step {
    number: u64,
    rows: Vec<RowInFlight>,
    drafts: Vec<Token>, // of all rows
}

#[derive(Debug, Clone, Copy)]
struct RowInFlight {
    request: RequestId,
    admission: u32,
    first_position: u32,
    token_count: u32,
    samples: bool,
    is_late: bool,
    /// In the drafts of the step.
    drafts: Span,
}

/// Requests that wait for their first step, and their prompt tokens.
#[derive(Debug, Default, Clone, Copy)]
struct New {
    requests: u32,
    tokens: u64,
}

#[derive(Debug, Default, Clone, Copy)]
struct Totals {
    preemptions: u64,
    refused: u64,
    queried_tokens: u64,
    cached_tokens: u64,
    draft_tokens: u64,
    accepted_draft_tokens: u64,
}

/// Counts for a health report or for metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Requests that have a sequence.
    pub running: u32,
    /// Requests that have none: queued, preempted, or paused and preempted.
    pub waiting: u32,
    /// Pages without contents that are needed.
    pub free_pages: u32,
    /// Pages without an owner that can be shared.
    pub cached_pages: u32,
    /// Pages of sequences.
    pub held_pages: u32,
    /// Pages that saved sequences occupy outside the KV cache.
    pub saved_pages: u32,
    /// Preemptions so far.
    pub preemptions: u64,
    /// Refused requests so far.
    pub refused: u64,
    /// Prompt tokens looked up in the cache so far, and those found.
    pub queried_tokens: u64,
    /// Prompt tokens found in the cache, or in the sequence of a copy, so far.
    pub cached_tokens: u64,
    /// Draft tokens that were verified so far.
    pub draft_tokens: u64,
    /// Draft tokens that held so far.
    pub accepted_draft_tokens: u64,
}

impl Scheduler {
    /// A scheduler without requests. Reserves all memory that the limits of `config` call for.
    pub fn new(config: Config) -> Result<Self, ConfigError> {
        config.check()?;
        let pages = config.page_count as usize;
        let sequences = config.max_sequences as usize;
        let entries = config.max_queued as usize + 2 * sequences;
        let sequence_pages = config.context_tokens().div_ceil(config.page_tokens) as usize;
        let queued_blocks = config.max_queued_tokens / u64::from(config.page_tokens);
        let blocks = queued_blocks.min(8 * pages as u64) as usize + pages + entries;
        let step = || Step {
            number: 0,
            rows: Vec::with_capacity(sequences),
            drafts: Vec::with_capacity(config.max_draft_tokens.min(config.token_budget) as usize),
        };
        let mut scheduler = Self {
            costs: Costs::default(),
            now: Duration::ZERO,
            entries: Vec::with_capacity(entries),
            free_entries: Vec::with_capacity(entries),
            next_serial: 0,
            tokens: TokenStore::new(config.page_tokens, blocks),
            queue: Queue::new(config.max_tenants, config.token_budget),
            timers: Timers::with_capacity(entries),
            new: New::default(),
            new_of_tenants: vec![New::default(); config.max_tenants as usize],
            running: Vec::with_capacity(sequences),
            sequences: Vec::with_capacity(sequences),
            free_sequences: (0..config.max_sequences).rev().collect(),
            pool: PagePool::new(config.page_count),
            saved_pages: 0,
            lacks_room: false,
            plan_count: 0,
            next_step: 1,
            in_flight: Vec::with_capacity(STEPS_IN_FLIGHT),
            spare_steps: (0..STEPS_IN_FLIGHT).map(|_| step()).collect(),
            plan: Plan::default(),
            pending: Plan::default(),
            candidates: Vec::with_capacity(sequences),
            events: Vec::with_capacity(entries + 2 * sequences),
            totals: Totals::default(),
            config,
        };
        for _ in 0..sequences {
            let pages = Vec::with_capacity(sequence_pages);
            scheduler.sequences.push(SequenceState { pages });
        }
        let tokens = scheduler.config.token_budget as usize + sequence_pages * 64;
        for plan in [&mut scheduler.plan, &mut scheduler.pending] {
            plan.publishes.reserve(2 * sequences);
            plan.truncations.reserve(sequences);
            plan.saves.reserve(sequences);
            plan.releases.reserve(2 * sequences);
            plan.dropped_saves.reserve(2 * sequences);
            plan.admissions.reserve(sequences);
            plan.restores.reserve(sequences);
            plan.forks.reserve(sequences);
            plan.rows.reserve(sequences);
            plan.tokens.reserve(tokens);
            plan.keys.reserve(2 * pages);
        }
        Ok(scheduler)
    }

    /// Its limits.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// What work takes from now on.
    pub fn set_costs(&mut self, costs: Costs) {
        self.costs = costs;
    }

    /// Accepts a request. It ends with an [`EventKind::Ended`].
    pub fn submit(&mut self, request: &Request<'_>, now: Duration) -> Result<RequestId, Refusal> {
        let now = self.advance(now);
        self.check(request, 1, now)?;
        Ok(self.insert(request, self.next_serial, now))
    }

    /// Accepts a request `copies` times, or not at all; appends their ids to `ids`. One of them computes the prompt; the
    /// others [fork](Plan::forks) its sequence and compute the prompt's last token only. If that is not possible because
    /// it was preempted or has ended, they compute what the cache lacks. Without [`Request::use_cache`] the first copy
    /// computes every position in any case.
    pub fn submit_copies(
        &mut self,
        request: &Request<'_>,
        copies: u32,
        now: Duration,
        ids: &mut Vec<RequestId>,
    ) -> Result<(), Refusal> {
        let now = self.advance(now);
        self.check(request, copies, now)?;
        let first_copy = self.next_serial;
        for _ in 0..copies {
            let id = self.insert(request, first_copy, now);
            ids.push(id);
        }
        Ok(())
    }

    /// Ends a request as cancelled: it is in no later plan, and its pages are free in the next one.
    /// False if it has ended before.
    pub fn cancel(&mut self, id: RequestId) -> bool {
        self.end_by_id(id, EndReason::Cancelled)
    }

    /// Ends a request whose text is complete, at a stop string for example. The same otherwise.
    pub fn stop(&mut self, id: RequestId) -> bool {
        self.end_by_id(id, EndReason::Stopped)
    }

    /// Gives a request no more rows until [`resume`](Self::resume), because its receiver is behind. A
    /// step in flight may still generate a token. After [`Config::pause_timeout`] the request ends.
    pub fn pause(&mut self, id: RequestId, now: Duration) {
        let now = self.advance(now);
        let Some(index) = self.find(id) else { return };
        let entry = &mut self.entries[index as usize];
        if entry.paused_until.is_some() {
            return;
        }
        entry.paused_until = Some(now.saturating_add(self.config.pause_timeout));
        self.queue_or_park(index);
        self.set_timer(index);
    }

    /// Ends a pause.
    pub fn resume(&mut self, id: RequestId) {
        let Some(index) = self.find(id) else { return };
        let entry = &mut self.entries[index as usize];
        entry.paused_until = None;
        self.queue_or_park(index);
        self.set_timer(index);
    }

    /// A request without a sequence is in the queue if nothing keeps it from having rows.
    fn queue_or_park(&mut self, index: u32) {
        let entry = &mut self.entries[index as usize];
        let may_run = entry.paused_until.is_none() && entry.may_generate();
        match entry.state {
            State::Queued if !may_run => {
                entry.state = State::Parked;
                self.queue.remove(&mut self.entries, index);
            }
            State::Parked if may_run => {
                entry.state = State::Queued;
                self.queue.push(&mut self.entries, index);
            }
            _ => {}
        }
    }

    /// Sets how many tokens a request may have generated in all, for now; None: no limit. It gets no rows
    /// past them. Tokens past them that steps in flight draw are dropped, whatever is allowed later, and
    /// drawn again.
    pub fn allow(&mut self, id: RequestId, tokens: Option<u32>) {
        self.set_allowed(id, tokens.unwrap_or(u32::MAX), false);
    }

    /// The same, but the token after them may be drawn in a [late row](Row::is_late).
    pub fn allow_late(&mut self, id: RequestId, tokens: u32) {
        self.set_allowed(id, tokens, true);
    }

    fn set_allowed(&mut self, id: RequestId, tokens: u32, may_be_late: bool) {
        if let Some(index) = self.find(id) {
            let entry = &mut self.entries[index as usize];
            (entry.allowed, entry.may_be_late, entry.ahead) = (tokens, may_be_late, 0);
            let drawn = entry.generated() + entry.sampling - entry.late;
            let past = drawn.saturating_sub(tokens).min(entry.sampling);
            entry.dropped = entry.dropped.max(past);
            if entry.drafted > 0 {
                let left = tokens.saturating_sub(entry.generated());
                entry.run_limit = entry.run_limit.min(left);
            }
            self.queue_or_park(index);
        }
    }

    /// Lets the row that samples the last token that [`allow_late`](Self::allow_late) allows have up to so many drafts,
    /// although the tokens after them are not allowed. It holds until that or [`allow`](Self::allow) is called again.
    pub fn allow_drafts(&mut self, id: RequestId, drafts: u32) {
        if let Some(index) = self.find(id) {
            self.entries[index as usize].ahead = drafts;
        }
    }

    /// Before the oldest step in flight is reported, in which a request has drawn tokens: keeps the first `kept` of them,
    /// which are fewer than it has drawn, and drops the others and those that later steps in flight draw. They are drawn
    /// again when [`allow`](Self::allow) says so. False if all are dropped in any case.
    pub fn draw_again(&mut self, id: RequestId, kept: u32) -> bool {
        let Some(index) = self.find(id) else {
            return false;
        };
        let entry = &mut self.entries[index as usize];
        if entry.sampling <= entry.dropped || entry.is_rolled_back {
            return false;
        }
        match kept {
            0 => entry.dropped = entry.sampling,
            _ => entry.run_limit = entry.run_limit.min(kept),
        }
        let allowed = entry.generated() + kept;
        (entry.allowed, entry.may_be_late, entry.ahead) = (allowed, false, 0);
        self.queue_or_park(index);
        true
    }

    /// Guesses the tokens that follow those of a request that were reported, in place of earlier guesses; at most
    /// [`MAX_DRAFTS`] are used. Later rows of the request may have them as [drafts](Row::drafts). Guesses change when
    /// tokens come, never which.
    pub fn propose(&mut self, id: RequestId, drafts: &[Token]) {
        if let Some(index) = self.find(id) {
            self.entries[index as usize].guesses.set(drafts);
        }
    }

    /// The late row of a request is in flight and will end as [`RowOutcome::Held`]. Until it has come back the request
    /// gets no rows, and no late one before the next [`allow_late`](Self::allow_late).
    pub fn hold(&mut self, id: RequestId) {
        if let Some(index) = self.find(id) {
            let entry = &mut self.entries[index as usize];
            entry.is_held = entry.late > 0;
            entry.may_be_late = false;
        }
    }

    /// A sequence that a plan [saves](Plan::saves) could not be kept: it is computed again.
    pub fn lose_saved(&mut self, id: RequestId) {
        let entry = self.find(id).map(|index| &mut self.entries[index as usize]);
        if let Some(saved) = entry.and_then(|entry| entry.saved.take()) {
            self.saved_pages -= saved.pages;
        }
    }

    /// Events since the last call of this or of [`apply`](Self::apply), in order: those of requests that
    /// were cancelled, started or expired meanwhile.
    pub fn events(&mut self) -> std::vec::Drain<'_, Event> {
        self.events.drain(..)
    }

    /// The next time at which a request expires: [`schedule`](Self::schedule) is due then even if
    /// nothing else happens.
    pub fn next_expiry(&self) -> Option<Duration> {
        self.timers.first().map(|(time, _)| time)
    }

    /// Whether there are no requests and no steps in flight.
    pub fn is_idle(&self) -> bool {
        self.in_flight.is_empty() && self.free_entries.len() == self.entries.len()
    }

    /// Steps in flight, at most [`STEPS_IN_FLIGHT`].
    pub fn steps_in_flight(&self) -> usize {
        self.in_flight.len()
    }

    /// Counts for a health report or for metrics.
    pub fn stats(&self) -> Stats {
        let live = self.entries.len() - self.free_entries.len();
        Stats {
            running: self.running.len() as u32,
            waiting: (live - self.running.len()) as u32,
            free_pages: self.pool.free(),
            cached_pages: self.pool.cached(),
            held_pages: self.pool.held(),
            saved_pages: self.saved_pages,
            preemptions: self.totals.preemptions,
            refused: self.totals.refused,
            queried_tokens: self.totals.queried_tokens,
            cached_tokens: self.totals.cached_tokens,
            draft_tokens: self.totals.draft_tokens,
            accepted_draft_tokens: self.totals.accepted_draft_tokens,
        }
    }

    /// Recomputes every count and list from the others and compares them. For tests: it allocates.
    #[doc(hidden)]
    pub fn audit(&self) -> Result<(), String> {
        let mut owners = vec![0; self.pool.total() as usize];
        for &index in &self.running {
            let entry = &self.entries[index as usize];
            let State::Running(sequence) = entry.state else {
                return Err(format!("entry {index} runs as {:?}", entry.state));
            };
            let pages = &self.sequences[sequence as usize].pages;
            let positions = entry.computed + entry.drafted;
            if pages.len() as u32 != positions.div_ceil(self.config.page_tokens) {
                return Err(format!("{positions} positions on {} pages", pages.len()));
            }
            for &page in pages {
                owners[page as usize] += 1;
            }
        }
        for &index in &self.running {
            let entry = &self.entries[index as usize];
            let is_full = entry.computed.is_multiple_of(self.config.page_tokens);
            if let (false, State::Running(sequence)) = (is_full, entry.state) {
                let at = (entry.computed / self.config.page_tokens) as usize;
                let page = self.sequences[sequence as usize].pages[at];
                if owners[page as usize] > 1 {
                    return Err(format!("page {page} can be written and has two owners"));
                }
            }
        }
        self.pool.audit(&owners, !self.in_flight.is_empty())?;
        let live = self
            .entries
            .iter()
            .filter(|entry| entry.state != State::Free);
        let blocks = live
            .clone()
            .map(|entry| entry.tokens.len.div_ceil(self.config.page_tokens));
        let new = live.clone().filter(|entry| !entry.was_started);
        let saved = live
            .clone()
            .filter_map(|entry| entry.saved)
            .map(|saved| saved.pages);
        let queued = live.filter(|entry| entry.state == State::Queued).count();
        let used_sequences = self.sequences.len() - self.free_sequences.len();
        let found = (
            new.clone().count() as u32,
            new.map(|entry| u64::from(entry.prompt_tokens)).sum::<u64>(),
            saved.sum::<u32>(),
            queued as u32,
            used_sequences,
            blocks.sum::<u32>() as usize,
        );
        let counted = (
            self.new.requests,
            self.new.tokens,
            self.saved_pages,
            self.queue.len(),
            self.running.len(),
            self.tokens.used_blocks(),
        );
        let of_tenants: u32 = self.new_of_tenants.iter().map(|new| new.requests).sum();
        if found != counted || of_tenants != self.new.requests {
            return Err(format!("{found:?} found, {counted:?} counted"));
        }
        Ok(())
    }

    /// Time as the scheduler sees it: it never runs backwards.
    fn advance(&mut self, now: Duration) -> Duration {
        self.now = self.now.max(now);
        self.now
    }

    fn find(&self, id: RequestId) -> Option<u32> {
        let entry = self.entries.get(id.index() as usize)?;
        let is_live = entry.state != State::Free && entry.generation == id.generation();
        is_live.then_some(id.index())
    }

    fn check(&mut self, request: &Request<'_>, copies: u32, now: Duration) -> Result<(), Refusal> {
        let checked = self.refusal(request, copies, now).map_or(Ok(()), Err);
        self.totals.refused += u64::from(checked.is_err());
        checked
    }

    fn refusal(&self, request: &Request<'_>, copies: u32, now: Duration) -> Option<Refusal> {
        let limit = self.config.context_tokens();
        let prompt_tokens = u32::try_from(request.tokens.len()).unwrap_or(u32::MAX);
        let max_tokens = request.max_tokens.unwrap_or(0);
        let positions = u64::from(prompt_tokens) + u64::from(max_tokens.saturating_sub(1));
        if prompt_tokens == 0 {
            return Some(Refusal::EmptyPrompt);
        }
        if positions > u64::from(limit) {
            return Some(Refusal::TooLong {
                prompt_tokens,
                max_tokens,
                limit,
            });
        }
        if request.stop_tokens.len() > MAX_STOP_TOKENS {
            let count = request.stop_tokens.len();
            return Some(Refusal::TooManyStopTokens { count });
        }
        if request.priority > MAX_PRIORITY {
            let priority = request.priority;
            return Some(Refusal::NoSuchPriority { priority });
        }
        if request.tenant >= self.config.max_tenants {
            return Some(Refusal::NoSuchTenant {
                tenant: request.tenant,
                max_tenants: self.config.max_tenants,
            });
        }
        if let Some(deadline) = request.deadline.filter(|&deadline| deadline <= now) {
            let late = now - deadline;
            return Some(Refusal::DeadlinePassed { late });
        }
        let more = u64::from(prompt_tokens) * u64::from(copies);
        self.has_no_room(request.tenant, copies, more)
    }

    fn has_no_room(&self, tenant: u32, copies: u32, tokens: u64) -> Option<Refusal> {
        let limit = self.config.max_queued;
        if u64::from(self.new.requests) + u64::from(copies) > u64::from(limit) {
            return Some(Refusal::QueueFull {
                queued: self.new.requests,
                more: copies,
                limit,
            });
        }
        let token_limit = self.config.max_queued_tokens;
        if self.new.tokens + tokens > token_limit {
            return Some(Refusal::QueuedTokensFull {
                queued: self.new.tokens,
                more: tokens,
                limit: token_limit,
            });
        }
        let own = self.new_of_tenants[tenant as usize];
        let free = New {
            requests: limit - self.new.requests,
            tokens: token_limit - self.new.tokens,
        };
        let exceeds = own.requests + copies > free.requests || own.tokens + tokens > free.tokens;
        (self.config.reserves_queue && exceeds).then_some(Refusal::TenantQueueFull {
            queued: own.requests,
            queued_tokens: own.tokens,
            free: free.requests,
            free_tokens: free.tokens,
        })
    }

    /// Counts a request that waits for its first step, or no longer does.
    fn count_new(&mut self, tenant: u32, prompt_tokens: u32, waits: bool) {
        for new in [&mut self.new, &mut self.new_of_tenants[tenant as usize]] {
            let tokens = u64::from(prompt_tokens);
            match waits {
                true => (new.requests, new.tokens) = (new.requests + 1, new.tokens + tokens),
                false => (new.requests, new.tokens) = (new.requests - 1, new.tokens - tokens),
            }
        }
    }

    fn insert(&mut self, request: &Request<'_>, first_copy: u64, now: Duration) -> RequestId {
        let index = self.free_entries.pop().unwrap_or_else(|| {
            self.entries.push(Entry::free());
            self.free_entries.reserve(self.entries.len());
            self.entries.len() as u32 - 1
        });
        let mut tokens = TokenList::new(PageKey::root(&self.config.model_digest, &request.salt));
        for &token in request.tokens {
            self.tokens.push(&mut tokens, token);
        }
        let mut stop_tokens = [0; MAX_STOP_TOKENS];
        stop_tokens[..request.stop_tokens.len()].copy_from_slice(request.stop_tokens);
        let context_left = self.config.context_tokens() + 1 - tokens.len;
        let entry = &mut self.entries[index as usize];
        *entry = Entry {
            generation: entry.generation.wrapping_add(1),
            state: State::Queued,
            serial: self.next_serial,
            first_copy,
            tenant: request.tenant,
            priority: request.priority,
            rank: now.saturating_add(AGEING * u32::from(request.priority)),
            tokens,
            prompt_tokens: tokens.len,
            max_tokens: request.max_tokens.unwrap_or(context_left),
            is_context_bound: request.max_tokens.is_none(),
            ignore_end: request.ignore_end,
            use_cache: request.use_cache && self.config.page_sharing != PageSharing::None,
            stop_tokens,
            stop_count: request.stop_tokens.len() as u8,
            deadline: request.deadline.unwrap_or(NEVER),
            queue_until: now.saturating_add(self.config.queue_timeout),
            ..Entry::free()
        };
        self.next_serial += 1;
        self.count_new(request.tenant, tokens.len, true);
        self.queue.push(&mut self.entries, index);
        self.set_timer(index);
        self.entries[index as usize].id(index)
    }

    fn set_timer(&mut self, index: u32) {
        self.timers
            .set(index, self.entries[index as usize].expires());
    }

    fn end_by_id(&mut self, id: RequestId, reason: EndReason) -> bool {
        let index = self.find(id);
        if let Some(index) = index {
            self.end(index, reason);
        }
        index.is_some()
    }

    /// Reports the end of a request and gives back all it has.
    fn end(&mut self, index: u32, reason: EndReason) {
        self.give_back_sequence(index);
        let entry = &mut self.entries[index as usize];
        let request = entry.id(index);
        let end = End {
            reason,
            prompt_tokens: entry.prompt_tokens,
            cached_tokens: entry.cached_tokens,
            generated_tokens: entry.generated(),
        };
        let state = std::mem::replace(&mut entry.state, State::Free);
        self.tokens.clear(&mut entry.tokens);
        if !entry.was_started {
            let (tenant, prompt_tokens) = (entry.tenant, entry.prompt_tokens);
            self.count_new(tenant, prompt_tokens, false);
        }
        if state == State::Queued {
            self.queue.remove(&mut self.entries, index);
        }
        self.drop_saved(index);
        self.timers.set(index, NEVER);
        self.free_entries.push(index);
        let kind = EventKind::Ended(end);
        self.events.push(Event { request, kind });
    }

    fn drop_saved(&mut self, index: u32) {
        let entry = &mut self.entries[index as usize];
        if let Some(saved) = entry.saved.take() {
            self.saved_pages -= saved.pages;
            self.pending.dropped_saves.push(entry.id(index));
        }
    }

    /// Releases the sequence and the pages of a request, if it has any. It belongs to no list then.
    fn give_back_sequence(&mut self, index: u32) {
        let State::Running(sequence) = self.entries[index as usize].state else {
            return;
        };
        self.trim(sequence, 0);
        self.pending.releases.push(sequence);
        self.free_sequences.push(sequence);
        self.running.retain(|&other| other != index);
        self.entries[index as usize].state = State::Parked;
    }

    /// Releases the pages of a sequence after its first `positions`, last page first.
    fn trim(&mut self, sequence: u32, positions: u32) {
        let pages = &mut self.sequences[sequence as usize].pages;
        let kept = positions.div_ceil(self.config.page_tokens) as usize;
        for page in pages.drain(kept.min(pages.len())..).rev() {
            self.pool.release(page);
        }
        let is_full = positions.is_multiple_of(self.config.page_tokens);
        if let Some(&page) = pages.last().filter(|_| !is_full) {
            self.pool.withdraw(page);
        }
    }
}
