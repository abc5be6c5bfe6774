//! Guesses the next tokens of each choice.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, MutexGuard};
use std::time::Duration;

use super::engine::StepEngine;
use super::request::Request;
use super::state::{Core, Shared};
use crate::llm::engine::{Token, TokenFeatures};
use crate::llm::generate::Draft;
use crate::scheduler::RequestId;

/// What guesses the next tokens of the answers of a service: prompt lookup for example, or a
/// [draft model](crate::generate::ModelDraft), of which each choice gets a clone.
///
/// ```
/// use worker_cuda::generate::NgramDraft;
/// use worker_cuda::generate::service::{Drafting, Options};
///
/// let mut options = Options::default();
/// options.drafting = Some(Drafting::new(8, || Box::new(NgramDraft::new())));
/// ```
#[derive(Clone)]
pub struct Drafting {
    most: usize,
    make: Arc<dyn Fn() -> Box<dyn Draft> + Send + Sync>,
}

impl Drafting {
    /// At most `most` guesses for a row, of the source that `make` returns for each choice. A source that panics guesses
    /// nothing more.
    pub fn new(most: usize, make: impl Fn() -> Box<dyn Draft> + Send + Sync + 'static) -> Self {
        Self {
            most,
            make: Arc::new(make),
        }
    }

    /// One for each choice of a request; none for those of which the tokens that may come depend on those before.
    pub(super) fn begin(
        &self,
        request: &Request,
        prompt: &[Token],
        prediction: &[Token],
    ) -> Vec<Drafter> {
        if request.constraint.is_some() || request.max_tokens == Some(0) {
            return Vec::new();
        }
        let begin = || {
            let mut source = (self.make)();
            source.begin(prompt, prediction);
            source
        };
        let drafter = |_| {
            Some(Drafter {
                source: catch_unwind(AssertUnwindSafe(begin)).ok()?,
                tokens: prompt.to_vec(),
                first: prompt.len() + request.min_tokens as usize,
                most: self.most,
                drafts: Vec::with_capacity(self.most),
                limit: self.most,
            })
        };
        (0..request.choices).map_while(drafter).collect()
    }
}

impl fmt::Debug for Drafting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Drafting({})", self.most)
    }
}

/// The source of one choice, with the text so far.
pub(super) struct Drafter {
    source: Box<dyn Draft>,
    tokens: Vec<Token>,
    /// Length from which on all tokens are sampled alike.
    first: usize,
    most: usize,
    drafts: Vec<Token>,
    /// Guesses that are wanted now.
    limit: usize,
}

impl Drafter {
    pub fn take(&mut self, token: Token) {
        self.tokens.push(token);
    }

    /// Guesses that the source computes at any time; 0 if it looks them up.
    pub fn most_computed(&self) -> u32 {
        let is_computed = catch_unwind(AssertUnwindSafe(|| self.source.is_computed()));
        if is_computed.unwrap_or(false) {
            self.most as u32
        } else {
            0
        }
    }

    fn prepare(&mut self, features: Option<TokenFeatures>) {
        self.call(|source, tokens, limit, _| {
            source.follow(features);
            source.prepare(tokens, limit);
        });
    }

    /// Guesses of the next tokens, below `vocabulary_size`.
    fn guess(&mut self, vocabulary_size: u32) {
        self.drafts.clear();
        self.call(|source, tokens, limit, drafts| source.draft(tokens, limit, drafts));
        let known = self.drafts.iter().take(self.limit);
        let known = known.take_while(|&&token| token < vocabulary_size).count();
        self.drafts.truncate(known);
    }

    fn call(&mut self, call: impl FnOnce(&mut dyn Draft, &[Token], usize, &mut Vec<Token>)) {
        if self.tokens.len() < self.first {
            return;
        }
        let (source, tokens) = (self.source.as_mut(), &self.tokens);
        let drafts = &mut self.drafts;
        let called = catch_unwind(AssertUnwindSafe(|| {
            call(source, tokens, self.limit, drafts);
        }));
        if called.is_err() {
            self.first = usize::MAX;
            self.drafts.clear();
        }
    }
}

/// Guesses the next tokens of the texts that have new ones, without the lock. Returns how many guesses were computed,
/// and the time that computing them took.
pub(super) fn guess<'a>(
    shared: &'a Shared,
    mut core: MutexGuard<'a, Core>,
    wanted: &mut Vec<(RequestId, u32)>,
    engine: &dyn StepEngine,
) -> (MutexGuard<'a, Core>, usize, Duration) {
    let grown = std::mem::take(&mut core.grown);
    if grown.is_empty() {
        return (core, 0, Duration::ZERO);
    }
    wanted.clear();
    let drafter = |id| core.requests.0.get(id)?.drafter.as_ref();
    if grown
        .iter()
        .filter_map(drafter)
        .any(|drafter| drafter.most_computed() > 0)
    {
        core.scheduler.wanted_guesses(wanted);
    }
    let mut drafters = Vec::new();
    for id in grown {
        let choice = core.requests.0.get_mut(&id);
        let Some(slot) = choice.map(|choice| &mut choice.drafter) else {
            continue;
        };
        let limit = slot
            .as_ref()
            .map_or(0, |drafter| match drafter.most_computed() {
                0 => drafter.most,
                _ => {
                    let count = wanted.iter().find(|(wanted, _)| *wanted == id);
                    count.map_or(0, |(_, count)| *count as usize)
                }
            });
        if let Some(mut drafter) = slot.take_if(|_| limit > 0) {
            drafter.limit = limit;
            drafters.push((id, core.scheduler.sequence(id), drafter));
        }
    }
    drop(core);
    let begin = shared.clock.now();
    for (_, sequence, drafter) in &mut drafters {
        drafter.prepare(sequence.and_then(|sequence| engine.features(sequence)));
    }
    let (mut computed, mut duration) = (0, Duration::ZERO);
    for (_, _, drafter) in &mut drafters {
        let is_computed = drafter.most_computed() > 0;
        drafter.guess(shared.limits.vocabulary_size);
        if is_computed {
            computed += drafter.drafts.len();
            duration = shared.clock.now().saturating_sub(begin);
        }
    }
    core = shared.lock();
    let Core {
        requests,
        scheduler,
        ..
    } = &mut *core;
    for (id, _, drafter) in drafters {
        // It may have ended meanwhile.
        if let Some(choice) = requests.0.get_mut(&id) {
            scheduler.expect_guesses(id, drafter.most_computed());
            scheduler.propose(id, &drafter.drafts);
            choice.drafter = Some(drafter);
        }
    }
    (core, computed, duration)
}
