//! What steps report to the scheduler, and what the scheduler reports about requests.

use std::error::Error;
use std::fmt;

use super::{RequestId, Token};

/// How a row ended, and what it sampled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RowOutcome {
    /// Computed. The sampled token, if the row samples.
    Ok(Option<Token>),
    /// Computed, with [drafts](super::Row::drafts): so many of them hold, and this token was sampled after them. It may
    /// be [`Ok`](Self::Ok) with a token if none holds.
    Drafted {
        /// Drafts that hold.
        held: u32,
        /// The token after them.
        token: Token,
    },
    /// Computed but not sampled, because its mask came late. It is repeated.
    Held,
    /// No token is allowed.
    EmptyMask,
    /// The logits are not finite.
    NotFinite,
    /// It continues a row that did not end well.
    Skipped,
}

/// How a step ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StepOutcome<'a> {
    /// With these outcomes: (rows) in the plan's order.
    Done(&'a [RowOutcome]),
    /// As a whole, and so did the step after it. All sequences and cached pages are lost.
    Failed,
}

/// A step was reported that does not fit the plan. Nothing has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[allow(missing_docs)] // the fields are the numbers of the message
pub enum ApplyError {
    /// Not the oldest step in flight.
    NotTheOldest { step: u64, oldest: Option<u64> },
    /// Another number of rows.
    RowCount { outcomes: usize, rows: usize },
    /// A row that samples has no token, or one that does not has one.
    Sampled { row: usize, samples: bool },
    /// More drafts hold than the row has.
    Drafts { row: usize, held: u32, drafts: u32 },
}

impl fmt::Display for ApplyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::NotTheOldest {
                step,
                oldest: Some(oldest),
            } => write!(
                f,
                "step {step} is reported, the oldest in flight is {oldest}"
            ),
            Self::NotTheOldest { step, oldest: None } => {
                write!(f, "step {step} is reported, none is in flight")
            }
            Self::RowCount { outcomes, rows } => {
                write!(f, "{outcomes} outcomes of a step of {rows} rows")
            }
            Self::Sampled { row, samples: true } => write!(f, "row {row} has no sampled token"),
            Self::Sampled { row, .. } => write!(f, "row {row} samples no token and has one"),
            Self::Drafts { row, held, drafts } => {
                write!(f, "{held} drafts of row {row} hold, it has {drafts}")
            }
        }
    }
}

impl Error for ApplyError {}

/// Something that happened to a request. The last event of a request is its only
/// [`Ended`](EventKind::Ended).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// The request.
    pub request: RequestId,
    /// What happened.
    pub kind: EventKind,
}

/// What happened to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum EventKind {
    /// Its first step was planned.
    Started {
        /// Prompt tokens that other requests have computed.
        cached_tokens: u32,
    },
    /// A token was generated. The token that ends the text is not reported.
    Token {
        /// Its id.
        token: Token,
        /// Its place among the generated tokens, from 0.
        index: u32,
        /// Its row in the step, for log probabilities.
        row: u32,
        /// Its place among the tokens that the row sampled. Those after 0 follow drafts that hold.
        offset: u32,
        /// Drafts of the row.
        drafts: u32,
    },
    /// The end.
    Ended(End),
}

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct End {
    /// Why.
    pub reason: EndReason,
    /// Tokens of the prompt.
    pub prompt_tokens: u32,
    /// Of these, computed by other requests.
    pub cached_tokens: u32,
    /// Generated tokens that were reported.
    pub generated_tokens: u32,
}

/// Why a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum EndReason {
    /// This token ended the text.
    EndToken(Token),
    /// As many tokens as were asked for.
    Length,
    /// The sequence is as long as it can be.
    ContextFull,
    /// [`Scheduler::stop`](super::Scheduler::stop): the caller found the end, a stop string for example.
    Stopped,
    /// [`Scheduler::cancel`](super::Scheduler::cancel).
    Cancelled,
    /// It waited too long for its first step.
    QueueTimeout,
    /// Its deadline passed.
    Deadline,
    /// It was paused for too long.
    PauseTimeout,
    /// No token was allowed.
    EmptyMask,
    /// Logits were not finite.
    NotFinite,
    /// Its masks came late too often in a row.
    Held,
    /// A step failed for the second time.
    EngineFault,
}
