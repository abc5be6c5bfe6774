//! How a choice follows its rule: where the rule holds, what the next mask depends on, and what stops its state.

use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use super::ahead::Ahead;
use super::constraint::{Constrained, ConstraintState, Gate, Next, Stopper};
use super::request::Request;
use crate::core::callback::caught;
use crate::llm::engine::Token;
use crate::llm::step::Sampling;
use crate::llm::text::Tokenizer;

/// Time for the masks of a request, besides the mean time of each.
const FIRST_MASK_TIME: Duration = Duration::from_secs(1);

/// How a choice follows its rule.
pub(super) struct Guide {
    pub constrained: Constrained,
    tokenizer: Option<Arc<Tokenizer>>,
    pub tenant: u32,
    pub ends: Ends,
    /// The token with which reasoning may begin in place of the rule.
    pub opening: Option<Token>,
    /// Tokens of the answer so far.
    pub tokens: u32,
    /// Searches the free text. None: the text follows the rule.
    gate: Option<Gate>,
    /// None before the first token of the rule, while a thread uses it, and in free text.
    pub state: Option<Box<dyn ConstraintState>>,
    pub stop: Arc<Stop>,
    pub time_left: Arc<TimeLeft>,
    /// How the next token is sampled. None in free text: as usual, except for a token that is drawn again.
    pub sampling: Option<Arc<Sampling>>,
    /// A token with which the rule may begin, though it has more than the text before it.
    pub accepted: Option<Token>,
    /// Such tokens with which it may not begin.
    pub refused: Vec<Token>,
    /// What comes before the token whose mask is to be asked for.
    pub input: Option<Input>,
    pub ahead: Ahead,
}

/// Nanoseconds that the masks of a request may still take.
pub(super) struct TimeLeft(AtomicI64);

impl Default for TimeLeft {
    fn default() -> Self {
        Self(AtomicI64::new(nanoseconds(FIRST_MASK_TIME)))
    }
}

impl TimeLeft {
    /// Whether there is enough for a mask that took so long, with `mean` for each mask.
    pub fn pays(&self, took: Duration, mean: Duration) -> bool {
        let more = nanoseconds(mean).saturating_sub(nanoseconds(took));
        // Only one thread at a time changes it: the one that has the lock of the core.
        let left = self.0.load(Ordering::Relaxed).saturating_add(more);
        self.0.store(left, Ordering::Relaxed);
        left >= 0
    }
}

fn nanoseconds(time: Duration) -> i64 {
    time.as_nanos().try_into().unwrap_or(i64::MAX)
}

/// Stops a state that a thread computes with.
#[derive(Default)]
pub(super) struct Stop(Mutex<(bool, Option<Stopper>)>);

impl Stop {
    /// Stops the state from now on.
    pub fn set(&self) {
        let mut stop = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        stop.0 = true;
        if let Some(stopper) = &stop.1 {
            caught(stopper);
        }
    }

    /// Replaces what stops the state.
    pub fn arm(&self, stopper: Option<Stopper>) {
        let mut stop = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        stop.1 = stopper;
        let is_set = stop.0;
        drop(stop);
        if is_set {
            self.set();
        }
    }
}

/// Tokens that end a text.
#[derive(Clone)]
pub(super) struct Ends {
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
    Tokens(Vec<Token>),
    Text(Vec<u8>),
    /// A token that comes again in free text if the rule may begin with this text, the end of the token.
    Crossing(Token, Vec<u8>),
}

impl Guide {
    pub fn new(
        request: &Request,
        constrained: &Constrained,
        tokenizer: Option<&Arc<Tokenizer>>,
        end_tokens: &[Token],
        [time_left, time_ahead]: &[Arc<TimeLeft>; 2],
    ) -> Self {
        let model_ends = if request.ignore_end { &[] } else { end_tokens };
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
            tenant: request.tenant,
            ends: Ends {
                model: end_tokens.into(),
                allowed: [model_ends, &request.stop_tokens].concat().into(),
            },
            opening,
            tokens: 0,
            gate,
            state: None,
            stop: Arc::default(),
            time_left: time_left.clone(),
            sampling: None,
            accepted: None,
            refused: Vec::new(),
            input: None,
            ahead: Ahead::new(time_ahead),
        }
    }

    /// Whether the first token needs a mask.
    pub fn begins_bound(&self) -> bool {
        self.gate.is_none()
    }

    /// The bytes of a token of free text.
    fn bytes(&self, token: Token) -> Option<Vec<u8>> {
        let tokenizer = self.gate.as_ref().and(self.tokenizer.as_ref())?;
        Some(tokenizer.token_bytes(token)?.to_vec())
    }

    /// Whether the text follows the rule, and has so many tokens that are taken into account.
    pub fn is_bound_at(&self, tokens: u32) -> bool {
        self.gate.is_none() && self.input.is_none() && self.tokens == tokens
    }

    /// Whether guesses of the next tokens are of use.
    pub fn may_be_guessed(&self) -> bool {
        self.gate.is_some() || self.ahead.is_possible()
    }

    /// Of guesses of free text, how many come before the rule begins.
    pub fn free_guesses(&self, guesses: &[Token]) -> usize {
        let Some(mut gate) = self.gate.clone() else {
            return guesses.len();
        };
        let stays_free = |&&guess: &&Token| {
            let bytes = self.bytes(guess).unwrap_or_default();
            gate.push(&bytes, &self.constrained).is_none()
        };
        guesses.iter().take_while(stays_free).count()
    }

    /// The end of a token of free text that comes after `before`, if the rule begins inside of the token and it is not
    /// known whether it may.
    pub fn crossing(&self, before: &[Token], token: Token) -> Option<Vec<u8>> {
        let mut gate = self.gate.clone()?;
        for &token in before {
            gate.push(&self.bytes(token)?, &self.constrained);
        }
        let rest = gate.push(&self.bytes(token)?, &self.constrained)?;
        let is_known = self.accepted == Some(token) || rest.trim_ascii_start().is_empty();
        (!is_known).then_some(rest)
    }

    /// Takes a token of the answer.
    pub fn take(&mut self, token: Token) -> Turn {
        self.tokens += 1;
        self.ahead.clear();
        let opening = self.opening.take();
        let bytes = self.bytes(token).unwrap_or_default();
        if let Some(gate) = &mut self.gate {
            self.accepted = None;
            self.refused.clear();
            let Some(rest) = gate.push(&bytes, &self.constrained) else {
                return match self.sampling.take() {
                    Some(_) => Turn::Free,
                    None => Turn::Stay,
                };
            };
            self.gate = None;
            return Turn::Mask(Input::Text(rest));
        }
        if opening == Some(token) {
            self.set_free(Gate::in_reasoning());
            return Turn::Free;
        }
        Turn::Mask(Input::Tokens(vec![token]))
    }

    /// Adds what comes before the token whose mask is to be asked for.
    pub fn add_input(&mut self, input: Input) {
        match (&mut self.input, input) {
            (Some(Input::Tokens(before)), Input::Tokens(more)) => before.extend(more),
            (before, input) => *before = Some(input),
        }
    }

    pub fn set_free(&mut self, gate: Gate) {
        (self.gate, self.sampling) = (Some(gate), None);
    }
}

/// What a mask depends on, besides the state of its rule.
#[derive(Clone)]
pub(super) struct Frame {
    /// How the token is sampled otherwise.
    pub sampling: Arc<Sampling>,
    pub ends: Ends,
    pub words: usize,
}

impl Frame {
    /// Whether this token ends a text.
    pub fn ends_at(&self, token: Token) -> bool {
        self.ends.model.contains(&token) || self.ends.allowed.contains(&token)
    }

    /// The tokens that may come next, or `opening`; None: the text is complete.
    pub fn mask(
        &self,
        state: &mut dyn ConstraintState,
        opening: Option<Token>,
    ) -> Result<Option<Vec<u32>>, String> {
        let mut mask = vec![0u32; self.words];
        let next = state.allow(&mut mask)?;
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
        if let Some(token) = opening {
            set(token, true);
        }
        for (word, own) in mask.iter_mut().zip(&self.sampling.mask) {
            *word &= own;
        }
        if mask.iter().all(|word| *word == 0) {
            return Err("no token of the model continues the text".into());
        }
        Ok(Some(mask))
    }
}

/// Whether a mask allows a token.
pub(super) fn allows(mask: &[u32], token: Token) -> bool {
    let word = mask.get(token as usize / 32);
    word.is_some_and(|word| word >> (token % 32) & 1 == 1)
}
