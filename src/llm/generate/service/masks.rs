//! Which tokens may come next in answers that follow a rule: computed on threads of their own, while the engine
//! computes the logits. A row whose mask is not there then is held, and planned again when it is.
//!
//! A [`Constraint`] may be a caller's. None of its code runs on the engine thread or under the lock of [`Core`], except
//! for a [`Stopper`](super::Stopper), and none of its panics ends more than its own request.

use std::any::Any;
use std::sync::{Arc, Condvar, PoisonError};
use std::time::Duration;

use super::ahead::{AheadJob, Fork};
use super::constraint::{Constraint, ConstraintState, Gate};
use super::event::Error;
use super::guide::{Frame, Guide, Input, Stop};
use super::state::{Core, GuidedRow, Shared};
use super::turns::Turns;
use crate::core::callback::{caught, drop_caught};
use crate::llm::engine::Token;
use crate::llm::step::Sampling;
use crate::scheduler::{RequestId, RowOutcome};

/// Steps that miss a row, one after another, before its mask ends the request.
const MAX_MISSED_STEPS: u32 = 3;

/// A mask that was begun more recently than this ends no request.
const LATE: Duration = Duration::from_secs(1);

/// One that was begun, or that waits, for longer ends its request, also if no step missed the row.
pub(super) const LATEST: Duration = Duration::from_secs(10);

/// A mask to compute.
pub(super) struct MaskJob {
    id: RequestId,
    input: Input,
    rule: Arc<dyn Constraint>,
    state: Option<Box<dyn ConstraintState>>,
    stop: Arc<Stop>,
    frame: Frame,
    opening: Option<Token>,
    /// Tokens with which the rule may not begin.
    refused: Vec<Token>,
    /// Guesses of the next tokens.
    guesses: Vec<Token>,
    fork: Fork,
}

impl MaskJob {
    fn start(&self) -> Box<dyn ConstraintState> {
        let mut state = self.rule.start();
        self.stop.arm(state.stopper());
        state
    }

    /// How the next token is sampled; None: the text is complete.
    fn compute(&mut self) -> Result<Option<Arc<Sampling>>, String> {
        let mut state = self.state.take().unwrap_or_else(|| self.start());
        match &self.input {
            Input::Start => {}
            Input::Tokens(tokens) => tokens.iter().try_for_each(|&token| state.advance(token))?,
            Input::Text(text) => state = self.begin(state, text)?,
            Input::Crossing(token, text) => {
                if self.begin(state, text).is_err() {
                    self.refused.push(*token);
                }
                return Ok(Some(self.sampling_again()));
            }
        }
        let mask = self.frame.mask(&mut *state, self.opening)?;
        if let Some(mask) = &mask {
            self.fork = Fork::of(&*state, &self.guesses, &self.frame, mask);
        }
        // A choice may wait for long before its first token, and must use no memory for its state then.
        // Dropped before there is a result: a result is leaked if a drop after it panics.
        if matches!(self.input, Input::Start) {
            drop(state);
        } else {
            self.state = Some(state);
        }
        Ok(mask.map(|mask| {
            Arc::new(Sampling {
                mask,
                ..(*self.frame.sampling).clone()
            })
        }))
    }

    /// Takes what comes before the first token.
    fn begin(
        &self,
        mut state: Box<dyn ConstraintState>,
        text: &[u8],
    ) -> Result<Box<dyn ConstraintState>, String> {
        let trimmed = text.trim_ascii_start();
        match begin(&mut *state, text) {
            // White space may separate the rule from what comes before it.
            Err(_) if trimmed.len() < text.len() => {
                state = self.start();
                begin(&mut *state, trimmed)?;
            }
            begun => begun?,
        }
        Ok(state)
    }

    /// How a token of free text is sampled again.
    fn sampling_again(&mut self) -> Arc<Sampling> {
        let mut sampling = (*self.frame.sampling).clone();
        sampling.mask.resize(self.frame.words, u32::MAX);
        for &token in &self.refused {
            if let Some(word) = sampling.mask.get_mut(token as usize / 32) {
                *word &= !(1 << (token % 32));
            }
        }
        Arc::new(sampling)
    }
}

/// Takes what comes before the first token.
fn begin(state: &mut dyn ConstraintState, text: &[u8]) -> Result<(), String> {
    match text {
        [] => Ok(()),
        text => state.advance_text(text),
    }
}

/// Masks that threads have to compute.
#[derive(Default)]
pub(super) struct Masks {
    waiting: Turns<MaskJob>,
    /// They come after those.
    ahead: Turns<AheadJob>,
    /// What ended requests leave, for a thread to drop.
    ended: Vec<Box<dyn Any + Send>>,
    /// (threads) Whether it computes or drops something.
    at_work: Vec<bool>,
    is_closed: bool,
    pub asked: Arc<Condvar>,
}

/// What a thread has to do.
enum Work {
    Compute(MaskJob),
    Follow(AheadJob),
    Drop(Vec<Box<dyn Any + Send>>),
}

impl Masks {
    pub fn new(threads: usize) -> Self {
        let mut masks = Self::default();
        masks.at_work.resize(threads, false);
        masks
    }

    /// Ends the threads, once they have done what they do.
    pub fn close(&mut self) {
        self.is_closed = true;
        self.asked.notify_all();
    }

    /// Whether a thread may need any time to end.
    pub fn is_at_work(&self, thread: usize) -> bool {
        self.at_work[thread]
    }

    fn push(&mut self, tenant: u32, job: MaskJob) {
        self.waiting.push(tenant, job);
        self.asked.notify_one();
    }

    /// Adds guesses to follow. The thread that computes masks for the same answer asks for work next.
    pub fn follow(&mut self, tenant: u32, job: AheadJob) {
        self.ahead.push(tenant, job);
        if !self.waiting.is_empty() {
            self.asked.notify_one(); // that thread has to compute another mask first
        }
    }
}

impl Drop for Masks {
    fn drop(&mut self) {
        self.waiting.take_all().for_each(drop_caught);
        self.ahead.take_all().for_each(drop_caught);
        self.ended.drain(..).for_each(drop_caught);
    }
}

/// Computes masks until the service ends.
pub(super) fn run(shared: &Shared, thread: usize) {
    while let Some(work) = next_work(shared, thread) {
        match work {
            Work::Compute(mut job) => {
                let computed = caught(|| job.compute());
                let computed = computed.unwrap_or_else(|| Err("the rule has failed".into()));
                let rest = shared.update(|core, now| core.take_mask(job, computed, now));
                drop_caught(rest);
            }
            Work::Follow(mut job) => {
                job.follow();
                let rest = shared.update(|core, now| core.take_ahead(job, now));
                drop_caught(rest);
            }
            Work::Drop(ended) => ended.into_iter().for_each(drop_caught),
        }
    }
}

fn next_work(shared: &Shared, thread: usize) -> Option<Work> {
    let mut core = shared.lock();
    core.masks.at_work[thread] = false;
    loop {
        if let Some(work) = core.next_work(shared.clock.now()) {
            core.masks.at_work[thread] = true;
            return Some(work);
        }
        if core.masks.is_closed {
            return None;
        }
        let asked = core.masks.asked.clone();
        core = asked.wait(core).unwrap_or_else(PoisonError::into_inner);
    }
}

/// A row that waits for its mask.
pub(super) struct Pending {
    id: RequestId,
    since: Duration,
    /// When a thread began it.
    begun: Option<Duration>,
    /// Steps that were planned without it, since then if it was begun.
    missed: u32,
}

impl Pending {
    /// Why its request ends, if it has taken too long. That a thread is not there yet is not the fault of a rule.
    fn error(&self, now: Duration) -> Option<Error> {
        match self.begun.map(|begun| now.saturating_sub(begun)) {
            Some(age) if age >= LATEST => Some(Error::RuleTooSlow),
            Some(age) if age >= LATE && self.missed >= MAX_MISSED_STEPS => Some(Error::RuleTooSlow),
            None if now.saturating_sub(self.since) >= LATEST => Some(Error::MaskLate),
            _ => None,
        }
    }
}

impl Core {
    /// A step has ended with these outcomes of rows whose requests follow rules. Tokens of free text inside of which a
    /// rule begins that may not begin so are drawn again.
    pub fn check_crossings(&mut self, rows: &[GuidedRow], outcomes: &[RowOutcome], now: Duration) {
        for row in rows {
            let (held, token) = match outcomes.get(row.number) {
                Some(&RowOutcome::Ok(Some(token))) => (0, token),
                Some(&RowOutcome::Drafted { held, token }) => (held, token),
                _ => continue,
            };
            let Some(before) = row.drafts.get(..held as usize) else {
                continue;
            };
            let id = row.request;
            let choice = self.requests.0.get(&id);
            let guide = choice.and_then(|choice| choice.guide.as_ref());
            let rest = guide.and_then(|guide| guide.crossing(before, token));
            if let Some(rest) = rest.filter(|_| self.scheduler.draw_again(id, held)) {
                self.ask_for_mask(id, Input::Crossing(token, rest), Vec::new(), now);
            }
        }
    }

    /// Asks for the mask that an answer needs, if it needs one, and for those of the tokens after these guesses.
    pub fn ask_for_masks(&mut self, id: RequestId, guesses: Vec<Token>, now: Duration) {
        let choice = self.requests.0.get_mut(&id);
        let guide = choice.and_then(|choice| choice.guide.as_mut());
        if let Some(input) = guide.and_then(|guide| guide.input.take()) {
            self.ask_for_mask(id, input, guesses, now);
        }
    }

    /// Asks for the mask of a request's next token; no token is drawn until it is there.
    pub fn ask_for_mask(
        &mut self,
        id: RequestId,
        input: Input,
        guesses: Vec<Token>,
        now: Duration,
    ) {
        let Some(choice) = self.requests.0.get_mut(&id) else {
            return;
        };
        let Some(guide) = &mut choice.guide else {
            return;
        };
        if !matches!(input, Input::Crossing(..)) {
            self.scheduler.allow_late(id, guide.tokens);
        }
        let first = choice.first_sampling.as_ref();
        let first = first.filter(|_| guide.tokens < choice.job.min_tokens);
        let job = MaskJob {
            id,
            input,
            rule: guide.constrained.rule.clone(),
            state: guide.state.take(),
            stop: guide.stop.clone(),
            frame: Frame {
                sampling: first.unwrap_or(&choice.sampling).clone(),
                ends: guide.ends.clone(),
                words: self.mask_words,
            },
            opening: guide.opening,
            refused: std::mem::take(&mut guide.refused),
            guesses,
            fork: Fork::Unwanted,
        };
        self.masks.push(guide.tenant, job);
        self.pending.push(Pending {
            id,
            since: now,
            begun: None,
            missed: 0,
        });
    }

    /// What a thread has to do next.
    fn next_work(&mut self, now: Duration) -> Option<Work> {
        while let Some((_, job)) = self.masks.waiting.pop(|_| true) {
            let mut pending = self.pending.iter_mut();
            let Some(pending) = pending.find(|pending| pending.id == job.id) else {
                self.masks.ended.push(Box::new(job));
                continue;
            };
            (pending.begun, pending.missed) = (Some(now), 0);
            return Some(Work::Compute(job));
        }
        while let Some((_, mut job)) = self.masks.ahead.pop(|_| true) {
            if self.begin_ahead(&mut job, now) {
                return Some(Work::Follow(job));
            }
            self.masks.ended.push(Box::new(job));
        }
        let ended = std::mem::take(&mut self.masks.ended);
        (!ended.is_empty()).then_some(Work::Drop(ended))
    }

    /// A choice that followed a rule has ended.
    pub fn end_guide(&mut self, id: RequestId, guide: Guide) {
        let count = self.pending.len();
        self.pending.retain(|pending| pending.id != id);
        if self.pending.len() < count {
            guide.stop.set();
        }
        guide.ahead.stop();
        self.masks.ended.push(Box::new(guide));
        self.masks.asked.notify_one();
    }

    /// Takes a mask. Returns what is left of the job, to be dropped without the lock.
    fn take_mask(
        &mut self,
        mut job: MaskJob,
        computed: Result<Option<Arc<Sampling>>, String>,
        now: Duration,
    ) -> MaskJob {
        let mut pending = self.pending.iter();
        let Some(at) = pending.position(|pending| pending.id == job.id) else {
            return job; // it ended meanwhile
        };
        let begun = self.pending.swap_remove(at).begun;
        let Some(choice) = self.requests.0.get_mut(&job.id) else {
            return job;
        };
        let Some(guide) = &mut choice.guide else {
            return job;
        };
        let took = begun.map_or(Duration::ZERO, |begun| now.saturating_sub(begun));
        let is_paid = { self.mask_time }.is_none_or(|mean| guide.time_left.pays(took, mean));
        let has_markers = !guide.constrained.markers.is_empty();
        match computed {
            Ok(_) if !is_paid => {
                choice.fails_with = Some(Error::RuleTooSlow);
                self.scheduler.cancel(job.id);
            }
            Ok(Some(sampling)) => {
                (guide.sampling, guide.state) = (Some(sampling), job.state.take());
                if let Input::Crossing(token, _) = job.input {
                    guide.refused = std::mem::take(&mut job.refused);
                    guide.accepted = { Some(token) }.filter(|token| !guide.refused.contains(token));
                    self.scheduler.allow(job.id, Some(guide.tokens + 1));
                } else {
                    self.scheduler.allow_late(job.id, guide.tokens + 1);
                    let fork = std::mem::replace(&mut job.fork, Fork::Unwanted);
                    let guesses = std::mem::take(&mut job.guesses);
                    self.follow_guesses(job.id, fork, guesses, job.frame.clone());
                }
            }
            // What comes with the marker may be none of the rule's texts: then it is free.
            Ok(None) | Err(_) if has_markers && (computed.is_ok() || job.is_first()) => {
                guide.set_free(Gate::in_text());
                self.scheduler.allow(job.id, None);
                self.scheduler.propose(job.id, &[]); // they are guesses of what the rule allows
            }
            Ok(None) => {
                self.scheduler.stop(job.id);
            }
            Err(message) => {
                choice.fails_with = Some(Error::Constraint(message));
                self.scheduler.cancel(job.id);
            }
        }
        job
    }

    /// Whether the mask of a request is being computed.
    pub fn waits_for_mask(&self, id: RequestId) -> bool {
        self.pending.iter().any(|pending| pending.id == id)
    }

    /// How the late rows of a step are sampled; None: the row is held, because its mask is not there, or its request
    /// has ended.
    pub fn late_samplings(&mut self, late: &[RequestId]) -> Vec<Option<Arc<Sampling>>> {
        let mut samplings = Vec::with_capacity(late.len());
        for &id in late {
            let is_there = !self.waits_for_mask(id);
            if !is_there {
                self.scheduler.hold(id);
            }
            let choice = self.requests.0.get(&id).filter(|_| is_there);
            samplings.push(choice.map(|choice| {
                let guided = choice.guide.as_ref();
                let guided = guided.and_then(|guide| guide.sampling.as_ref());
                guided.unwrap_or(&choice.sampling).clone()
            }));
        }
        samplings
    }

    /// A step was planned. It misses the rows whose masks are not there, unless they are late.
    pub fn miss_masks(&mut self, late: &[RequestId]) {
        let missed = self.pending.iter_mut();
        let missed = missed.filter(|pending| !late.contains(&pending.id));
        missed.for_each(|pending| pending.missed += 1);
    }

    /// Ends requests whose masks are late.
    pub fn end_late(&mut self, now: Duration) {
        let late = self
            .pending
            .iter()
            .filter_map(|pending| Some((pending.id, pending.error(now)?)));
        for (id, error) in late.collect::<Vec<_>>() {
            if let Some(choice) = self.requests.0.get_mut(&id) {
                choice.fails_with.get_or_insert(error);
            }
            self.scheduler.cancel(id);
        }
    }

    /// When the oldest mask is late in any case.
    pub fn next_late(&self) -> Option<Duration> {
        let begin = |pending: &Pending| pending.begun.unwrap_or(pending.since);
        self.pending
            .iter()
            .map(|pending| begin(pending) + LATEST)
            .min()
    }
}

impl MaskJob {
    fn is_first(&self) -> bool {
        matches!(self.input, Input::Text(_))
    }
}
