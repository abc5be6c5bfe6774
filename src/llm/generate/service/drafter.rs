//! Guesses the next tokens of each choice.

use std::fmt;
use std::sync::{Arc, MutexGuard};
use std::time::Duration;

use super::engine::StepEngine;
use super::guide::Guide;
use super::request::Request;
use super::state::{Choice, Core, Shared};
use crate::core::callback::{caught, drop_caught};
use crate::llm::engine::{Token, TokenFeatures};
use crate::llm::generate::Draft;
use crate::llm::step;
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
    /// At most `most` guesses for a row, and [`MAX_DRAFTS`](crate::Row::MAX_DRAFTS), of the source that `make` returns for
    /// each choice. A source that panics guesses nothing more.
    ///
    /// The service may hold a lock while it calls [`is_computed`](Draft::is_computed) or drops a source. These must not
    /// call the service.
    pub fn new(most: usize, make: impl Fn() -> Box<dyn Draft> + Send + Sync + 'static) -> Self {
        Self {
            most: most.min(step::Row::MAX_DRAFTS),
            make: Arc::new(make),
        }
    }

    /// One for each choice of a request.
    pub(super) fn begin(
        &self,
        request: &Request,
        prompt: &[Token],
        prediction: &[Token],
    ) -> Vec<Drafter> {
        if request.max_tokens == Some(0) {
            return Vec::new();
        }
        let begin = |choice: u32| {
            let mut source = Source(Some((self.make)()));
            let draft = source.0.as_mut()?;
            draft.begin(prompt, prediction);
            draft.sample_like(&request.sampling_of(choice));
            Some(source)
        };
        let drafter = |choice| {
            Some(Drafter {
                source: caught(|| begin(choice)).flatten()?,
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

/// A caller's source, whose drop may panic. None after it was dropped.
struct Source(Option<Box<dyn Draft>>);

impl Drop for Source {
    fn drop(&mut self) {
        drop_caught(self.0.take());
    }
}

/// The source of one choice, with the text so far.
pub(super) struct Drafter {
    source: Source,
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
        let source = self.source.0.as_ref();
        if caught(|| source.is_some_and(|source| source.is_computed())).unwrap_or(false) {
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
        let Some(source) = &mut self.source.0 else {
            return;
        };
        if self.tokens.len() < self.first {
            return;
        }
        let (tokens, drafts) = (&self.tokens, &mut self.drafts);
        if caught(|| call(source.as_mut(), tokens, self.limit, drafts)).is_none() {
            self.first = usize::MAX;
            self.drafts.clear();
        }
    }
}

/// Guesses the next tokens of the texts that have new ones, without the lock, and asks for the masks that they need.
/// Returns how many guesses were computed, and the time that computing them took. Replaces `followed` by the texts of
/// which the next step should verify guesses that need masks; none unless it `may_draft`.
pub(super) fn guess<'a>(
    shared: &'a Shared,
    mut core: MutexGuard<'a, Core>,
    wanted: &mut Vec<(RequestId, u32)>,
    followed: &mut Vec<RequestId>,
    may_draft: bool,
    engine: &dyn StepEngine,
) -> (MutexGuard<'a, Core>, usize, Duration) {
    let mut drafters = core.take_drafters(wanted, may_draft, shared.clock.now());
    if drafters.is_empty() {
        return (core, 0, Duration::ZERO);
    }
    let sequences: Vec<_> = drafters
        .iter()
        .map(|(id, _)| core.scheduler.sequence(*id))
        .collect();
    drop(core);
    let begin = shared.clock.now();
    for ((_, drafter), sequence) in drafters.iter_mut().zip(sequences) {
        drafter.prepare(sequence.and_then(|sequence| engine.features(sequence)));
    }
    let (mut computed, mut duration) = (0, Duration::ZERO);
    for (_, drafter) in &mut drafters {
        let is_computed = drafter.most_computed() > 0;
        drafter.guess(shared.limits.vocabulary_size);
        if is_computed {
            computed += drafter.drafts.len();
            duration = shared.clock.now().saturating_sub(begin);
        }
    }
    core = shared.lock();
    let mut guided = Vec::new();
    for (id, drafter) in drafters {
        if core.take_guesses(id, drafter) {
            guided.push(id);
        }
    }
    if !guided.is_empty() {
        core.scheduler.wanted_drafts(wanted);
        core.ask_for_draft_masks(&guided, wanted, shared.clock.now());
        guided.retain(|id| wanted.iter().any(|(wanted, _)| wanted == id));
        *followed = guided;
    }
    (core, computed, duration)
}

impl Choice {
    /// The source of its drafts, unless they would lack masks.
    fn guessable(&self) -> Option<&Drafter> {
        let guide = self.guide.as_ref();
        let may_be_guessed = guide.is_none_or(Guide::may_be_guessed);
        self.drafter.as_ref().filter(|_| may_be_guessed)
    }
}

impl Core {
    /// Takes the sources of the texts that have new tokens and of which guesses are wanted. Asks for the masks of the
    /// others, and of all if no draft can be in the next step.
    fn take_drafters(
        &mut self,
        wanted: &mut Vec<(RequestId, u32)>,
        may_draft: bool,
        now: Duration,
    ) -> Vec<(RequestId, Drafter)> {
        let grown = std::mem::take(&mut self.grown);
        wanted.clear();
        let computed = grown.iter().filter(|&&id| self.expect_guesses(id)).count();
        if computed > 0 {
            self.scheduler.wanted_guesses(wanted);
        }
        let mut drafters = Vec::new();
        for id in grown {
            let drafter = self.take_drafter(id, wanted);
            if drafter.is_none() || !may_draft {
                self.ask_for_masks(id, Vec::new(), now);
            }
            drafters.extend(drafter.map(|drafter| (id, drafter)));
        }
        drafters
    }

    /// Reports to the scheduler how many guesses of a text can be computed. Returns whether there are any.
    fn expect_guesses(&mut self, id: RequestId) -> bool {
        let choice = self.requests.0.get(&id);
        let most = choice.and_then(Choice::guessable);
        let most = most.map_or(0, Drafter::most_computed);
        self.scheduler.expect_guesses(id, most);
        most > 0
    }

    fn take_drafter(&mut self, id: RequestId, wanted: &[(RequestId, u32)]) -> Option<Drafter> {
        let choice = self.requests.0.get_mut(&id)?;
        let Some(drafter) = choice.guessable() else {
            self.scheduler.propose(id, &[]);
            return None;
        };
        let limit = match drafter.most_computed() {
            0 => drafter.most,
            _ => {
                let count = wanted.iter().find(|(wanted, _)| *wanted == id);
                count.map_or(0, |(_, count)| *count as usize)
            }
        };
        let mut drafter = choice.drafter.take_if(|_| limit > 0)?;
        drafter.limit = limit;
        Some(drafter)
    }

    /// Proposes what a source has guessed, as far as it may be verified together. Returns whether the answer follows a
    /// rule.
    fn take_guesses(&mut self, id: RequestId, mut drafter: Drafter) -> bool {
        // It may have ended meanwhile.
        let Some(choice) = self.requests.0.get_mut(&id) else {
            return false;
        };
        if let Some(guide) = &choice.guide {
            let count = guide.free_guesses(&drafter.drafts);
            drafter.drafts.truncate(count);
        }
        self.scheduler.expect_guesses(id, drafter.most_computed());
        self.scheduler.propose(id, &drafter.drafts);
        choice.drafter = Some(drafter);
        choice.guide.is_some()
    }

    /// Asks for the masks of answers that follow rules, and for those of the drafts that are wanted.
    fn ask_for_draft_masks(
        &mut self,
        guided: &[RequestId],
        wanted: &[(RequestId, u32)],
        now: Duration,
    ) {
        for &id in guided {
            let count = wanted.iter().find(|(wanted, _)| *wanted == id);
            let count = count.map_or(0, |(_, count)| *count as usize);
            let choice = self.requests.0.get(&id);
            let drafter = choice.and_then(|choice| choice.drafter.as_ref());
            let guesses = drafter.and_then(|drafter| drafter.drafts.get(..count));
            self.ask_for_masks(id, guesses.unwrap_or_default().to_vec(), now);
        }
    }
}
