//! Guesses the next tokens of each choice.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use super::request::Request;
use crate::llm::engine::Token;
use crate::llm::generate::Draft;

/// What guesses the next tokens of the answers of a service: prompt lookup for example.
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
        let is_free = request.constraint.is_none() && request.sampling.mask.is_empty();
        if !is_free || request.max_tokens == Some(0) {
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
}

impl Drafter {
    pub fn take(&mut self, token: Token) {
        self.tokens.push(token);
    }

    /// Guesses of the next tokens, below `vocabulary_size`.
    pub fn guess(&mut self, vocabulary_size: u32) -> &[Token] {
        self.drafts.clear();
        if self.tokens.len() >= self.first {
            let guess = || {
                self.source.draft(&self.tokens, self.most, &mut self.drafts);
            };
            if catch_unwind(AssertUnwindSafe(guess)).is_err() {
                self.first = usize::MAX;
                self.drafts.clear();
            }
        }
        let known = self.drafts.iter().take(self.most);
        let known = known.take_while(|&&token| token < vocabulary_size).count();
        &self.drafts[..known]
    }
}
