//! Masks of drafts: follows guesses with a copy of the state of a rule, one after the other, so that a step can verify
//! them. Masks of next tokens come first; a row whose drafts have no masks yet does without them.

use std::sync::Arc;
use std::time::Duration;

use super::constraint::ConstraintState;
use super::guide::{Frame, Guide, Stop, TimeLeft, allows};
use super::state::Core;
use crate::core::callback::caught;
use crate::llm::engine::Token;
use crate::llm::step::Sampling;
use crate::scheduler::RequestId;

/// What an answer that follows a rule knows of the masks of its drafts.
pub(super) struct Ahead {
    /// (drafts, words) masks of the tokens after each draft, for the next row.
    masks: Vec<u32>,
    /// Tokens of the answer before the drafts that a job follows.
    followed_at: Option<u32>,
    /// The rule has no copies, or following takes it too long.
    is_over: bool,
    stop: Arc<Stop>,
    /// For all choices of the request.
    time_left: Arc<TimeLeft>,
}

impl Ahead {
    pub fn new(time_left: &Arc<TimeLeft>) -> Self {
        Self {
            masks: Vec::new(),
            followed_at: None,
            is_over: false,
            stop: Arc::default(),
            time_left: time_left.clone(),
        }
    }

    /// Whether guesses can be followed now. A job that has not come back is not followed by another.
    pub fn is_possible(&self) -> bool {
        !self.is_over && self.followed_at.is_none()
    }

    /// The next token is another one.
    pub fn clear(&mut self) {
        self.masks.clear();
    }

    /// The answer has ended.
    pub fn stop(&self) {
        if self.followed_at.is_some() {
            self.stop.set();
        }
    }

    /// How a row with so many drafts is sampled.
    pub fn sampling(&self, first: &Sampling, drafts: usize) -> Sampling {
        let mut sampling = first.clone();
        let words = first.mask.len() * drafts;
        sampling.mask.extend_from_slice(&self.masks[..words]);
        sampling
    }
}

/// Guesses to follow.
pub(super) struct AheadJob {
    pub id: RequestId,
    /// Tokens of the answer before the guesses.
    tokens: u32,
    state: Box<dyn ConstraintState>,
    frame: Frame,
    guesses: Vec<Token>,
    /// Guesses that the state has taken.
    taken: usize,
    /// Of the token after them; empty if the last guess may not come, or if the text ends with it.
    mask: Vec<u32>,
    stop: Arc<Stop>,
    begun: Duration,
}

impl AheadJob {
    /// Follows one more guess.
    pub fn follow(&mut self) {
        let guess = self.guesses[self.taken];
        let followed = caught(|| {
            if self.taken == 0 {
                self.stop.arm(self.state.stopper());
            }
            self.state.advance(guess)?;
            self.frame.mask(&mut *self.state, None)
        });
        self.mask = match followed {
            Some(Ok(Some(mask))) => mask,
            _ => return self.mask.clear(),
        };
        self.taken += 1;
    }

    /// Whether the next guess may come and text may follow it.
    fn has_next(&self) -> bool {
        let guess = self.guesses.get(self.taken);
        guess.is_some_and(|&guess| allows(&self.mask, guess) && !self.frame.ends_at(guess))
    }
}

/// A copy of the state of a rule.
pub(super) enum Fork {
    /// There are no guesses, or the first of them may not come.
    Unwanted,
    /// The rule has no copies.
    Impossible,
    /// It follows the guesses.
    State(Box<dyn ConstraintState>),
}

impl Fork {
    pub fn of(state: &dyn ConstraintState, guesses: &[Token], frame: &Frame, mask: &[u32]) -> Self {
        match guesses.first() {
            Some(&guess) if allows(mask, guess) && !frame.ends_at(guess) => {
                let fork = caught(|| state.fork());
                fork.flatten().map_or(Self::Impossible, Self::State)
            }
            _ => Self::Unwanted,
        }
    }
}

impl Core {
    /// The mask of the next token of an answer is there: follows the guesses after it.
    pub fn follow_guesses(&mut self, id: RequestId, fork: Fork, guesses: Vec<Token>, frame: Frame) {
        let Some(guide) = self.guide(id) else {
            return;
        };
        let state = match fork {
            Fork::State(state) => state,
            Fork::Impossible => {
                guide.ahead.is_over = true;
                return self.end_guesses(id);
            }
            Fork::Unwanted if guesses.is_empty() => return,
            Fork::Unwanted => return self.scheduler.propose(id, &[]),
        };
        let (tokens, tenant) = (guide.tokens, guide.tenant);
        guide.ahead.followed_at = Some(tokens);
        let stop = guide.ahead.stop.clone();
        let job = AheadJob {
            id,
            tokens,
            state,
            frame,
            guesses,
            taken: 0,
            mask: Vec::new(),
            stop,
            begun: Duration::ZERO,
        };
        self.masks.follow(tenant, job);
    }

    /// An answer has no drafts any more, except in free text.
    fn end_guesses(&mut self, id: RequestId) {
        self.scheduler.expect_guesses(id, 0);
        self.scheduler.propose(id, &[]);
    }

    fn guide(&mut self, id: RequestId) -> Option<&mut Guide> {
        self.requests.0.get_mut(&id)?.guide.as_mut()
    }

    /// Begins a job; false if its guesses are of no use any more.
    pub fn begin_ahead(&mut self, job: &mut AheadJob, now: Duration) -> bool {
        job.begun = now;
        let Some(guide) = self.guide(job.id) else {
            return false;
        };
        let is_wanted = guide.is_bound_at(job.tokens);
        if !is_wanted {
            guide.ahead.followed_at = None;
        }
        is_wanted
    }

    /// Takes the mask after one more guess, if there is one, and lets the next one be followed. Returns what is left of the
    /// job otherwise, to be dropped without the lock.
    pub fn take_ahead(&mut self, job: AheadJob, now: Duration) -> Option<AheadJob> {
        let mask_time = self.mask_time;
        let Some(guide) = self.guide(job.id) else {
            return Some(job);
        };
        let took = now.saturating_sub(job.begun);
        let is_paid = mask_time.is_none_or(|mean| guide.ahead.time_left.pays(took, mean));
        let is_wanted = guide.is_bound_at(job.tokens);
        let tenant = guide.tenant;
        if is_wanted {
            guide.ahead.masks.extend_from_slice(&job.mask);
            self.scheduler.allow_drafts(job.id, job.taken as u32);
        }
        if is_wanted && is_paid && job.has_next() {
            self.masks.follow(tenant, job);
            return None;
        }
        if let Some(guide) = self.guide(job.id) {
            guide.ahead.followed_at = None;
            guide.ahead.is_over |= !is_paid;
        }
        match (is_paid, is_wanted) {
            (false, _) => self.end_guesses(job.id),
            (true, true) => self.scheduler.propose(job.id, &job.guesses[..job.taken]),
            (true, false) => {}
        }
        Some(job)
    }

    /// Whether masks of drafts of the next row of a request are being computed.
    pub fn waits_for_drafts(&self, id: RequestId) -> bool {
        let guide = self.requests.0.get(&id);
        let guide = guide.and_then(|choice| choice.guide.as_ref());
        let is_followed = guide.is_some_and(|guide| guide.ahead.followed_at == Some(guide.tokens));
        is_followed || self.waits_for_mask(id)
    }
}
