//! What the scheduler knows about each request.

use std::time::Duration;

use super::drafts::Guesses;
use super::request::{MAX_STOP_TOKENS, RequestId};
use super::timers::NEVER;
use super::tokens::TokenList;
use super::{NONE, PageKey, Token};

/// Where a request is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    /// The entry is unused.
    Free,
    /// In the queue.
    Queued,
    /// Without pages, and paused or not allowed to generate; not in the queue.
    Parked,
    /// It has this sequence.
    Running(u32),
}

/// A sequence outside the KV cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Saved {
    /// Positions that it keeps.
    pub tokens: u32,
    /// Pages that it occupies there.
    pub pages: u32,
    /// The step before which it was saved.
    pub step: u64,
}

/// Positions of a fork that a row in flight of another request computes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Borrowed {
    pub request: RequestId,
    /// Where the row begins: on a page boundary.
    pub first_position: u32,
}

#[derive(Debug, Clone)]
pub(super) struct Entry {
    pub generation: u32,
    pub state: State,
    /// Order of submission.
    pub serial: u64,
    /// The serial number of its first copy, which may be itself.
    pub first_copy: u64,
    pub tenant: u32,
    pub priority: u8,
    /// See [`level`](super::queue::level).
    pub rank: Duration,
    /// Neighbours in the queue.
    pub previous: u32,
    pub next: u32,

    /// Prompt and generated tokens.
    pub tokens: TokenList,
    pub prompt_tokens: u32,
    pub max_tokens: u32,
    /// Tokens that may be generated for now.
    pub allowed: u32,
    /// Whether the row of one more token may be planned, as a late one.
    pub may_be_late: bool,
    /// Tokens past them that drafts of the row that samples the last of them may draw.
    pub ahead: u32,
    /// Of the tokens that steps in flight sample, so many last ones are dropped.
    pub dropped: u32,
    /// Whether `max_tokens` is what the context leaves.
    pub is_context_bound: bool,
    pub ignore_end: bool,
    pub use_cache: bool,
    pub stop_tokens: [Token; MAX_STOP_TOKENS],
    pub stop_count: u8,

    /// Positions given to the engine, the steps in flight included.
    pub computed: u32,
    /// Tokens that steps in flight sample.
    pub sampling: u32,
    /// So many of them, the last ones, in late rows.
    pub late: u32,
    /// The late row in flight is held, and has to come back first.
    pub is_held: bool,
    /// Guesses of the tokens after those that are known.
    pub guesses: Guesses,
    /// Drafts of the row in flight, which is alone then. Their pages are taken, their positions not counted.
    pub drafted: u32,
    /// Tokens that this row may sample; it drops the others.
    pub run_limit: u32,
    /// Rows in flight, of this admission and of earlier ones.
    pub rows_in_flight: u32,
    /// A row failed and a row in flight continues it, which has to come back first.
    pub is_rolled_back: bool,
    /// Number of the admission, to recognise rows of earlier ones.
    pub admission: u32,
    pub was_started: bool,
    pub cached_tokens: u32,
    /// Positions that the tenant has paid for.
    pub charged: u32,
    pub saved: Option<Saved>,
    /// Until the step in flight when it became a fork is reported.
    pub borrowed: Option<Borrowed>,
    /// Rows held, one after another.
    pub held_rows: u32,
    pub faults: u32,
    pub deadline: Duration,
    pub queue_until: Duration,
    pub paused_until: Option<Duration>,
}

impl Entry {
    pub fn free() -> Self {
        Self {
            generation: 0,
            state: State::Free,
            serial: 0,
            first_copy: 0,
            tenant: 0,
            priority: 0,
            rank: Duration::ZERO,
            previous: NONE,
            next: NONE,
            tokens: TokenList::new(PageKey::default()),
            prompt_tokens: 0,
            max_tokens: 0,
            allowed: u32::MAX,
            may_be_late: false,
            ahead: 0,
            dropped: 0,
            is_context_bound: false,
            ignore_end: false,
            use_cache: true,
            stop_tokens: [0; MAX_STOP_TOKENS],
            stop_count: 0,
            computed: 0,
            sampling: 0,
            late: 0,
            is_held: false,
            guesses: Guesses::NONE,
            drafted: 0,
            run_limit: u32::MAX,
            rows_in_flight: 0,
            is_rolled_back: false,
            admission: 0,
            was_started: false,
            cached_tokens: 0,
            charged: 0,
            saved: None,
            borrowed: None,
            held_rows: 0,
            faults: 0,
            deadline: NEVER,
            queue_until: NEVER,
            paused_until: None,
        }
    }

    pub fn id(&self, index: u32) -> RequestId {
        RequestId::new(index, self.generation)
    }

    /// Most urgent first: older and of lower priority.
    pub fn order(&self) -> (Duration, u64) {
        (self.rank, self.serial)
    }

    /// Generated tokens that are known.
    pub fn generated(&self) -> u32 {
        self.tokens.len - self.prompt_tokens
    }

    /// Whether the next token is allowed, or none is wanted.
    pub fn may_generate(&self) -> bool {
        self.max_tokens == 0 || self.generated() < self.allowed
    }

    /// Positions that could be computed now. The last generated token is never computed.
    pub fn missing(&self) -> u32 {
        // No late row continues a token that is dropped.
        let late = u32::from(self.may_be_late && self.dropped == 0);
        let most = self.max_tokens.min(self.allowed.saturating_add(late));
        if self.max_tokens > 0 && self.generated() + self.sampling >= most {
            return 0;
        }
        self.tokens.len + self.sampling - self.computed
    }

    /// Whether the next row continues the text by one token.
    pub fn is_decoding(&self) -> bool {
        self.missing() == 1 && self.generated() + self.sampling > 0
    }

    /// Whether nothing forbids a row now.
    pub fn is_ready(&self) -> bool {
        let waits = self.paused_until.is_some() || self.is_rolled_back || self.is_held;
        !waits && self.missing() > 0
    }

    pub fn stops_at(&self, token: Token, end_tokens: &[Token]) -> bool {
        self.stop_tokens[..self.stop_count as usize].contains(&token)
            || (!self.ignore_end && end_tokens.contains(&token))
    }

    /// The time at which it expires.
    pub fn expires(&self) -> Duration {
        let queue = if self.was_started {
            NEVER
        } else {
            self.queue_until
        };
        self.deadline
            .min(queue)
            .min(self.paused_until.unwrap_or(NEVER))
    }
}
