//! What the engine has to do for one step.

use super::{PageKey, RequestId, Token};

/// One step: what happens to sequences and pages before it, and its rows. The caller carries out the
/// lists in the order of the methods below, then submits the rows, before it asks for the next plan.
/// Sequences are named by numbers from 0 to `max_sequences - 1`.
///
/// A plan without rows is no step: its other lists are carried out, and nothing is reported back.
///
/// ```
/// use std::time::Duration;
/// use worker_cuda::scheduler::{Config, Request, Scheduler};
///
/// let mut scheduler = Scheduler::new(Config::host(16))?;
/// scheduler.submit(&Request::new(&[5, 6, 7]), Duration::ZERO).unwrap();
/// let plan = scheduler.schedule(Duration::ZERO);
/// let row = &plan.rows()[0];
/// assert_eq!((row.sequence, row.first_position, row.token_count), (0, 0, 3));
/// assert_eq!(plan.tokens(row.tokens), [5, 6, 7]);
/// assert!(row.samples);
/// # Ok::<(), worker_cuda::scheduler::ConfigError>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    pub(super) step: u64,
    pub(super) resets_engine: bool,
    pub(super) publishes: Vec<Publish>,
    pub(super) truncations: Vec<Truncation>,
    pub(super) saves: Vec<Save>,
    pub(super) releases: Vec<u32>,
    pub(super) dropped_saves: Vec<RequestId>,
    pub(super) admissions: Vec<Admission>,
    pub(super) restores: Vec<Restore>,
    pub(super) forks: Vec<Fork>,
    pub(super) rows: Vec<Row>,
    pub(super) tokens: Vec<Token>,
    pub(super) keys: Vec<PageKey>,
}

/// A part of the plan's tokens or keys.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Span {
    pub(super) start: u32,
    pub(super) end: u32,
}

impl Span {
    /// Number of elements.
    pub fn len(&self) -> usize {
        (self.end - self.start) as usize
    }

    /// Whether it has no elements.
    pub fn is_empty(&self) -> bool {
        self.start == self.end
    }
}

/// Makes computed pages shareable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Publish {
    /// The sequence that holds them.
    pub sequence: u32,
    /// Index of the first page in the sequence.
    pub first_page: u32,
    /// (pages) see [`Plan::keys`].
    pub keys: Span,
}

/// Drops the end of a sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Truncation {
    /// The sequence.
    pub sequence: u32,
    /// Positions that it keeps.
    pub token_count: u32,
}

/// Copies a sequence out of the KV cache, under the name of its request. The sequence is also among the
/// releases.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Save {
    /// The request.
    pub request: RequestId,
    /// Its sequence.
    pub sequence: u32,
    /// Pages that it has.
    pub page_count: u32,
}

/// Creates a sequence, with the longest run of shared pages for its tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Admission {
    /// The request.
    pub request: RequestId,
    /// Its sequence.
    pub sequence: u32,
    /// (cached pages) keys of the pages to attach, all present; see [`Plan::keys`].
    pub keys: Span,
    /// (cached pages × page_tokens) their tokens; see [`Plan::tokens`].
    pub tokens: Span,
}

/// Creates a sequence from what was saved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Restore {
    /// The request.
    pub request: RequestId,
    /// Its sequence.
    pub sequence: u32,
    /// Positions to keep of what was saved.
    pub token_count: u32,
    /// (token_count) their tokens; see [`Plan::tokens`].
    pub tokens: Span,
}

/// Creates a sequence from the first tokens of another one. Both share the full pages; the part of a page after them is
/// copied, because both continue to write there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fork {
    /// The request.
    pub request: RequestId,
    /// Its sequence.
    pub sequence: u32,
    /// The sequence that has the tokens. A step in flight may still compute the last of them: if that row does not end
    /// well, the fork loses them too, and its own row is [skipped](super::RowOutcome::Skipped).
    pub parent: u32,
    /// Positions to keep of it; it may have more.
    pub token_count: u32,
}

/// Appends tokens to one sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Row {
    /// The request.
    pub request: RequestId,
    /// Its sequence.
    pub sequence: u32,
    /// Position of the first token.
    pub first_position: u32,
    /// Number of tokens.
    pub token_count: u32,
    /// (token_count) see [`Plan::tokens`]. Empty: one token, the one that this sequence samples in the
    /// step before.
    pub tokens: Span,
    /// Whether a token is sampled after the last one.
    pub samples: bool,
    /// Whether it is sampled once the caller knows how, or [held](super::Scheduler::hold). The next plan is asked
    /// for after that.
    pub is_late: bool,
    /// (drafts) see [`Plan::tokens`]: guesses of the tokens that the row samples, which the engine verifies. A step
    /// that has any is the only one in flight.
    pub drafts: Span,
}

impl Plan {
    /// The step's number, for [`Scheduler::apply`](super::Scheduler::apply). Numbers grow by one.
    pub fn step(&self) -> u64 {
        self.step
    }

    /// Whether there is nothing to carry out.
    pub fn is_empty(&self) -> bool {
        let Self {
            step: _,
            resets_engine,
            publishes,
            truncations,
            saves,
            releases,
            dropped_saves,
            admissions,
            restores,
            forks,
            rows,
            tokens: _,
            keys: _,
        } = self;
        !resets_engine
            && publishes.is_empty()
            && truncations.is_empty()
            && saves.is_empty()
            && releases.is_empty()
            && dropped_saves.is_empty()
            && admissions.is_empty()
            && restores.is_empty()
            && forks.is_empty()
            && rows.is_empty()
    }

    /// Whether every sequence and every cached page is lost. The engine is made again, or emptied.
    pub fn resets_engine(&self) -> bool {
        self.resets_engine
    }

    /// Pages to make shareable.
    pub fn publishes(&self) -> &[Publish] {
        &self.publishes
    }

    /// Sequences to shorten, after the steps in flight.
    pub fn truncations(&self) -> &[Truncation] {
        &self.truncations
    }

    /// Sequences to copy out of the KV cache.
    pub fn saves(&self) -> &[Save] {
        &self.saves
    }

    /// Sequences to destroy, last page first.
    pub fn releases(&self) -> &[u32] {
        &self.releases
    }

    /// Requests whose saved sequences are not needed any more.
    pub fn dropped_saves(&self) -> &[RequestId] {
        &self.dropped_saves
    }

    /// Sequences to create.
    pub fn admissions(&self) -> &[Admission] {
        &self.admissions
    }

    /// Sequences to create from what was saved.
    pub fn restores(&self) -> &[Restore] {
        &self.restores
    }

    /// Sequences to create from others, also from those of the admissions, the restores and earlier forks.
    pub fn forks(&self) -> &[Fork] {
        &self.forks
    }

    /// The rows of the step.
    pub fn rows(&self) -> &[Row] {
        &self.rows
    }

    /// Tokens or drafts of a row, tokens of an admission or a restore.
    pub fn tokens(&self, span: Span) -> &[Token] {
        &self.tokens[span.start as usize..span.end as usize]
    }

    /// Keys of an admission or a publish.
    pub fn keys(&self, span: Span) -> &[PageKey] {
        &self.keys[span.start as usize..span.end as usize]
    }

    /// Tokens of all rows, with their drafts.
    pub fn token_count(&self) -> u32 {
        let tokens: u32 = self.rows.iter().map(|row| row.token_count).sum();
        tokens + self.draft_count()
    }

    /// Drafts of all rows.
    pub fn draft_count(&self) -> u32 {
        self.rows.iter().map(|row| row.drafts.len() as u32).sum()
    }

    pub(super) fn clear(&mut self) {
        self.resets_engine = false;
        self.publishes.clear();
        self.truncations.clear();
        self.saves.clear();
        self.releases.clear();
        self.dropped_saves.clear();
        self.admissions.clear();
        self.restores.clear();
        self.forks.clear();
        self.rows.clear();
        self.tokens.clear();
        self.keys.clear();
    }
}
