//! What a service needs of an engine.

use std::ops::Range;
use std::time::Duration;

use crate::core::error::{Error, ErrorKind, Result};
use crate::llm::engine::{Token, TokenFeatures};
use crate::llm::step::{HiddenState, LateRow, Sampling};
use crate::scheduler::{PageSharing, Plan, RequestId, Row, RowOutcome};

/// Limits of an engine, and what it can do.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct EngineLimits {
    /// Positions of a page.
    pub page_tokens: u32,
    /// Pages.
    pub page_count: u32,
    /// Sequences, and rows of a step.
    pub max_sequences: u32,
    /// Tokens of a step.
    pub max_step_tokens: u32,
    /// [Drafts](Row::drafts) of a step, over all rows; 0: it verifies none.
    pub max_draft_tokens: u32,
    /// Positions of a sequence.
    pub max_sequence_tokens: u32,
    /// Alternatives of a sampled token.
    pub max_top_logprobs: u32,
    /// Ids of tokens are below this.
    pub vocabulary_size: u32,
    /// Which computed pages it can share.
    pub page_sharing: PageSharing,
    /// Most pages of preempted sequences that it keeps outside the KV cache; 0: they are computed again.
    pub max_saved_pages: u32,
    /// How long it takes to restore one of them, as measured.
    pub restore_page: Duration,
    /// Values of a hidden state; 0: it returns none.
    pub embedding_length: u32,
    /// Stands for the model in the keys of pages.
    pub model_digest: [u8; 32],
    /// Whether rows return log probabilities of their own tokens.
    pub token_logprobs: bool,
}

impl EngineLimits {
    /// An engine of so many pages of 64 positions, which shares pages by forks only: 64 sequences, 256 tokens a
    /// step.
    pub fn new(page_count: u32, vocabulary_size: u32) -> Self {
        Self {
            page_tokens: 64,
            page_count,
            max_sequences: 64,
            max_step_tokens: 256,
            max_draft_tokens: 0,
            max_sequence_tokens: page_count.saturating_mul(64),
            max_top_logprobs: 20,
            vocabulary_size,
            page_sharing: PageSharing::None,
            max_saved_pages: 0,
            restore_page: Duration::ZERO,
            embedding_length: 0,
            model_digest: [0; 32],
            token_logprobs: false,
        }
    }
}

/// An engine that carries out the plans of a scheduler. A service uses it on one thread.
///
/// An error of [`submit`](Self::submit), [`sample`](Self::sample) or [`wait`](Self::wait) ends all steps in flight, and the next
/// plan [resets](Plan::resets_engine) the engine. After the first error of kind
/// [`DeviceLost`](crate::ErrorKind::DeviceLost) the engine is [reopened](Self::reopen); the second ends the service.
pub trait StepEngine: Send {
    /// Its limits, which do not change.
    fn limits(&self) -> EngineLimits;

    /// Carries out a plan and starts its rows, without waiting for them. At most two steps are in flight.
    /// A plan without rows is carried out and starts nothing.
    fn submit(&mut self, plan: &Plan, rows: &dyn RowSource) -> Result<()>;

    /// Requests whose sequences the last plan [saves](Plan::saves) and that could not be kept. No later plan restores
    /// them.
    fn lost_saves(&mut self) -> Vec<RequestId> {
        Vec::new()
    }

    /// Samples or holds the [late rows](Row::is_late) of the latest step, in their order, without waiting for them.
    /// Called before the next plan, and only if there are such rows.
    fn sample(&mut self, rows: &[LateRow<'_>]) -> Result<()>;

    /// Waits for the oldest step in flight. `results` is empty and gets one outcome for each row.
    fn wait(&mut self, results: &mut StepResults) -> Result<()>;

    /// What a [draft head](crate::generate::ModelDraft::head) reads of a sequence, if the engine keeps it.
    fn features(&self, sequence: u32) -> Option<TokenFeatures> {
        let _ = sequence;
        None
    }

    /// The device is lost, with all that was on it: opens it again, for an engine of the same limits. An error, as by
    /// default, ends the service.
    fn reopen(&mut self) -> Result<()> {
        let message = "this engine does not open its device again";
        Err(Error::new(ErrorKind::NotAvailable, message))
    }
}

/// What the rows of a plan return.
pub trait RowSource {
    /// Of a row that samples.
    fn sampled(&self, row: &Row) -> SampledRow<'_>;

    /// The hidden state that a row returns, if any.
    fn hidden_state(&self, row: &Row) -> Option<HiddenState>;

    /// The log probabilities of own tokens that a row returns, if any.
    fn scored(&self, row: &Row) -> Option<ScoredRow>;
}

/// Of which of its own tokens a row returns the log probabilities: of all but the first, and of one more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScoredRow {
    /// Alternatives to each of them.
    pub top: u32,
    /// The token that will follow the row, if it is wanted too.
    pub next: Option<Token>,
}

/// What a row samples.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct SampledRow<'a> {
    /// How, with a mask for each token that it may sample. If the row is late, [`StepEngine::sample`] gives the mask.
    pub sampling: &'a Sampling,
    /// Tokens of the request's prompt.
    pub prompt_tokens: u32,
    /// Which generated token of the request it is, from 0.
    pub index: u32,
}

impl<'a> SampledRow<'a> {
    /// All of it.
    pub fn new(sampling: &'a Sampling, prompt_tokens: u32, index: u32) -> Self {
        Self {
            sampling,
            prompt_tokens,
            index,
        }
    }
}

/// Outcomes of one step, in the order of its rows.
#[derive(Debug, Default)]
pub struct StepResults {
    pub(super) outcomes: Vec<RowOutcome>,
    /// Index of the first token of each row in the next two.
    first_tokens: Vec<usize>,
    logprobs: Vec<f32>,
    /// End of the alternatives of each token in `top`.
    top_ends: Vec<usize>,
    top: Vec<(Token, f32)>,
    /// The engine has captured a graph for the step: it says nothing of later ones.
    pub(super) is_captured: bool,
    /// (hidden states) request and first position of their rows.
    pub(super) hidden_rows: Vec<(RequestId, u32)>,
    /// (hidden states, embedding length)
    pub(super) hidden_states: Vec<f32>,
    pub(super) scored_rows: Vec<ScoresOfRow>,
    /// Log probabilities of all these rows, with the end of the alternatives of each.
    pub(super) scores: Vec<(f32, usize)>,
    pub(super) score_top: Vec<(Token, f32)>,
}

/// Log probabilities of the tokens after the first of a row.
#[derive(Debug)]
pub(super) struct ScoresOfRow {
    pub request: RequestId,
    /// Of the row.
    pub first_position: u32,
    /// First and last in the list of all rows.
    scores: Range<usize>,
}

impl StepResults {
    /// Adds the outcome of the next row, with the log probability of its token and the alternatives.
    pub fn push(
        &mut self,
        outcome: RowOutcome,
        logprob: f32,
        top: impl IntoIterator<Item = (Token, f32)>,
    ) {
        self.outcomes.push(outcome);
        self.first_tokens.push(self.logprobs.len());
        self.push_next(logprob, top);
    }

    /// Adds the log probability of the next token of the row that was added last, and its alternatives: a row of which
    /// drafts hold has several tokens.
    pub fn push_next(&mut self, logprob: f32, top: impl IntoIterator<Item = (Token, f32)>) {
        self.logprobs.push(logprob);
        self.top.extend(top);
        self.top_ends.push(self.top.len());
    }

    /// Adds the hidden state of a row of this request that began at this position, (embedding length).
    pub fn push_hidden_state(&mut self, request: RequestId, first_position: u32, state: &[f32]) {
        self.hidden_rows.push((request, first_position));
        self.hidden_states.extend_from_slice(state);
    }

    /// Begins the [log probabilities of own tokens](RowSource::scored) of a row of this request that began at this
    /// position.
    pub fn begin_scores(&mut self, request: RequestId, first_position: u32) {
        self.scored_rows.push(ScoresOfRow {
            request,
            first_position,
            scores: self.scores.len()..self.scores.len(),
        });
    }

    /// Adds the next one, with its alternatives.
    pub fn push_score(&mut self, logprob: f32, top: impl IntoIterator<Item = (Token, f32)>) {
        self.score_top.extend(top);
        self.scores.push((logprob, self.score_top.len()));
        if let Some(row) = self.scored_rows.last_mut() {
            row.scores.end = self.scores.len();
        }
    }

    /// Log probabilities and alternatives of a row that has them.
    pub(super) fn scores(&self, row: usize) -> impl Iterator<Item = (f32, &[(Token, f32)])> {
        self.scored_rows[row].scores.clone().map(|at| {
            let start = at.checked_sub(1).map_or(0, |before| self.scores[before].1);
            let (logprob, end) = self.scores[at];
            (logprob, &self.score_top[start..end])
        })
    }

    /// The outcomes.
    pub fn outcomes(&self) -> &[RowOutcome] {
        &self.outcomes
    }

    pub(super) fn clear(&mut self) {
        self.outcomes.clear();
        self.is_captured = false;
        self.first_tokens.clear();
        self.logprobs.clear();
        self.top.clear();
        self.top_ends.clear();
        self.hidden_rows.clear();
        self.hidden_states.clear();
        self.scored_rows.clear();
        self.scores.clear();
        self.score_top.clear();
    }

    /// Log probability of token number `offset` of a row, and its alternatives.
    pub(super) fn token(&self, row: u32, offset: u32) -> (f32, &[(Token, f32)]) {
        let token = self.first_tokens[row as usize] + offset as usize;
        let start = token.checked_sub(1).map_or(0, |token| self.top_ends[token]);
        (self.logprobs[token], &self.top[start..self.top_ends[token]])
    }
}
