//! Which tokens may come next in answers that follow a rule: computed on threads of their own, while the engine
//! computes steps of other requests. A row whose mask is not there yet is not planned.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::constraint::{Constrained, ConstraintState, Gate, Next};
use super::event::Error;
use super::state::{Core, Shared};
use crate::llm::engine::Token;
use crate::llm::step::Sampling;
use crate::llm::text::Tokenizer;
use crate::scheduler::RequestId;

/// Steps that miss a row, one after another, before its mask ends the request.
const MAX_MISSED_STEPS: u32 = 3;

/// A mask that is younger than this ends no request.
const LATE: Duration = Duration::from_secs(1);

/// One that is older ends its request, also if no step missed the row.
pub(super) const LATEST: Duration = Duration::from_secs(10);

/// How a choice follows its rule.
pub(super) struct Guide {
    constrained: Constrained,
    tokenizer: Option<Arc<Tokenizer>>,
    ends: Ends,
    /// The token with which reasoning may begin in place of the rule.
    opening: Option<Token>,
    /// Tokens of the answer so far.
    pub tokens: u32,
    /// Searches the free text. None: the text follows the rule.
    gate: Option<Gate>,
    /// None while a thread uses it, and in free text.
    state: Option<Box<dyn ConstraintState>>,
    /// How the next token is sampled. None in free text: as usual.
    pub sampling: Option<Arc<Sampling>>,
}

/// Tokens that end a text.
#[derive(Clone)]
struct Ends {
    /// Of the model.
    model: Arc<[Token]>,
    /// Those that may come where the rule allows the end.
    allowed: Arc<[Token]>,
}

/// What a token changes.
pub(super) enum Turn {
    /// Nothing: the text stays free.
    Stay,
    /// The text is free from now on.
    Free,
    /// A mask is needed.
    Mask(Input),
}

/// What comes before the token that a mask is for.
pub(super) enum Input {
    Start,
    Token(Token),
    Text(Vec<u8>),
}

impl Guide {
    pub fn new(
        constrained: &Constrained,
        tokenizer: Option<&Arc<Tokenizer>>,
        end_tokens: &[Token],
        stop_tokens: &[Token],
        ignore_end: bool,
    ) -> Self {
        let model_ends = if ignore_end { &[] } else { end_tokens };
        let gate = constrained.gate();
        let opening = match (&constrained.reasoning, &gate) {
            (Some(super::Reasoning::Possible(begin, _)), None) => {
                tokenizer.and_then(|tokenizer| tokenizer.token_id(begin))
            }
            _ => None,
        };
        Self {
            constrained: constrained.clone(),
            tokenizer: tokenizer.cloned(),
            ends: Ends {
                model: end_tokens.into(),
                allowed: [model_ends, stop_tokens].concat().into(),
            },
            opening,
            tokens: 0,
            state: gate.is_none().then(|| constrained.rule.start()),
            gate,
            sampling: None,
        }
    }

    /// Whether the first token needs a mask.
    pub fn begins_bound(&self) -> bool {
        self.gate.is_none()
    }

    /// Takes a token of the answer.
    pub fn take(&mut self, token: Token) -> Turn {
        self.tokens += 1;
        let opening = self.opening.take();
        if let Some(gate) = &mut self.gate {
            let bytes = self.tokenizer.as_ref();
            let bytes = bytes.and_then(|tokenizer| tokenizer.token_bytes(token));
            let Some(rest) = gate.push(bytes.unwrap_or_default(), &self.constrained) else {
                return Turn::Stay;
            };
            self.gate = None;
            self.state = Some(self.constrained.rule.start());
            return Turn::Mask(Input::Text(rest));
        }
        if opening == Some(token) {
            self.set_free(Gate::in_reasoning());
            return Turn::Free;
        }
        Turn::Mask(Input::Token(token))
    }

    fn set_free(&mut self, gate: Gate) {
        self.gate = Some(gate);
        (self.state, self.sampling) = (None, None);
    }
}

/// A mask to compute.
pub(super) struct MaskJob {
    id: RequestId,
    input: Input,
    state: Box<dyn ConstraintState>,
    /// How the token is sampled otherwise.
    sampling: Arc<Sampling>,
    ends: Ends,
    opening: Option<Token>,
    words: usize,
}

impl MaskJob {
    /// How the next token is sampled; None: the text is complete.
    fn compute(&mut self) -> Result<Option<Arc<Sampling>>, String> {
        match &self.input {
            Input::Start => {}
            Input::Token(token) => self.state.advance(*token)?,
            Input::Text(text) if text.is_empty() => {}
            Input::Text(text) => self.state.advance_text(text)?,
        }
        let mut mask = vec![0u32; self.words];
        let next = self.state.allow(&mut mask)?;
        if next == Next::End {
            return Ok(None);
        }
        let mut set = |token: Token, is_allowed: bool| {
            if let Some(word) = mask.get_mut(token as usize / 32) {
                let bit = 1 << (token % 32);
                *word = *word & !bit | if is_allowed { bit } else { 0 };
            }
        };
        self.ends.model.iter().for_each(|&token| set(token, false));
        if next == Next::TokenOrEnd {
            self.ends.allowed.iter().for_each(|&token| set(token, true));
        }
        if let Some(token) = self.opening {
            set(token, true);
        }
        for (word, own) in mask.iter_mut().zip(&self.sampling.mask) {
            *word &= own;
        }
        if mask.iter().all(|word| *word == 0) {
            return Err("no token of the model continues the text".into());
        }
        Ok(Some(Arc::new(Sampling {
            mask,
            ..(*self.sampling).clone()
        })))
    }
}

/// Masks that threads have to compute.
#[derive(Default)]
pub(super) struct MaskQueue {
    state: Mutex<(VecDeque<MaskJob>, bool)>,
    changed: Condvar,
}

impl MaskQueue {
    fn lock(&self) -> MutexGuard<'_, (VecDeque<MaskJob>, bool)> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn push(&self, job: MaskJob) {
        self.lock().0.push_back(job);
        self.changed.notify_one();
    }

    /// Ends the threads.
    pub fn close(&self) {
        self.lock().1 = true;
        self.changed.notify_all();
    }

    fn pop(&self) -> Option<MaskJob> {
        let mut state = self.lock();
        loop {
            if state.1 {
                return None;
            }
            if let Some(job) = state.0.pop_front() {
                return Some(job);
            }
            let waited = self.changed.wait(state);
            state = waited.unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// Computes masks until the service ends.
pub(super) fn run(shared: &Shared) {
    while let Some(mut job) = shared.masks.pop() {
        // The rule may be a caller's.
        let computed = catch_unwind(AssertUnwindSafe(|| job.compute()));
        let computed = computed.unwrap_or_else(|_| Err("the rule has failed".into()));
        shared.update(|core, _| core.take_mask(job, computed));
    }
}

/// A row that waits for its mask.
pub(super) struct Pending {
    pub id: RequestId,
    since: Duration,
    /// Steps that were planned without it.
    missed: u32,
}

impl Core {
    /// Asks for the mask of a request's next token; no token is drawn until it is there.
    pub fn ask_for_mask(&mut self, id: RequestId, input: Input, now: Duration) {
        let Some(choice) = self.requests.0.get_mut(&id) else {
            return;
        };
        let Some(guide) = &mut choice.guide else {
            return;
        };
        let Some(state) = guide.state.take() else {
            return;
        };
        self.scheduler.allow(id, Some(guide.tokens));
        let first = choice.first_sampling.as_ref();
        let first = first.filter(|_| guide.tokens < choice.job.min_tokens);
        self.masks.push(MaskJob {
            id,
            input,
            state,
            sampling: first.unwrap_or(&choice.sampling).clone(),
            ends: guide.ends.clone(),
            opening: guide.opening,
            words: self.mask_words,
        });
        self.pending.push(Pending {
            id,
            since: now,
            missed: 0,
        });
    }

    fn take_mask(&mut self, job: MaskJob, computed: Result<Option<Arc<Sampling>>, String>) {
        self.pending.retain(|pending| pending.id != job.id);
        let Some(choice) = self.requests.0.get_mut(&job.id) else {
            return; // it ended meanwhile
        };
        let Some(guide) = &mut choice.guide else {
            return;
        };
        let has_markers = !guide.constrained.markers.is_empty();
        match computed {
            Ok(Some(sampling)) => {
                (guide.sampling, guide.state) = (Some(sampling), Some(job.state));
                self.scheduler.allow(job.id, Some(guide.tokens + 1));
            }
            // What comes with the marker may be none of the rule's texts: then it is free.
            Ok(None) | Err(_) if has_markers && (computed.is_ok() || job.is_first()) => {
                guide.set_free(Gate::in_text());
                self.scheduler.allow(job.id, None);
            }
            Ok(None) => {
                self.scheduler.stop(job.id);
            }
            Err(message) => {
                choice.fails_with = Some(Error::Constraint(message));
                self.scheduler.cancel(job.id);
            }
        }
    }

    /// Whether a mask is computed that no step has missed yet.
    pub fn waits_for_masks(&self) -> bool {
        self.pending.iter().any(|pending| pending.missed == 0)
    }

    /// A step was planned without the rows whose masks are not there.
    pub fn miss_masks(&mut self) {
        self.pending
            .iter_mut()
            .for_each(|pending| pending.missed += 1);
    }

    /// Ends requests whose masks are late.
    pub fn end_late(&mut self, now: Duration) {
        let is_late = |pending: &Pending| {
            let age = now.saturating_sub(pending.since);
            age >= LATEST || age >= LATE && pending.missed >= MAX_MISSED_STEPS
        };
        for pending in self.pending.extract_if(.., |pending| is_late(pending)) {
            if let Some(choice) = self.requests.0.get_mut(&pending.id) {
                choice.fails_with = Some(Error::MaskLate);
            }
            self.scheduler.cancel(pending.id);
        }
    }

    /// When the oldest mask is late in any case.
    pub fn next_late(&self) -> Option<Duration> {
        let times = self.pending.iter().map(|pending| pending.since + LATEST);
        times.min()
    }
}

impl MaskJob {
    fn is_first(&self) -> bool {
        matches!(self.input, Input::Text(_))
    }
}
