//! What a request reports: events, token counts and errors.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::core::error::Error as EngineError;
use crate::llm::engine::Token;
use crate::llm::generate::FinishReason;
use crate::scheduler::Refusal;

/// Something that happened to a request. The last event is the only [`Done`](Self::Done) or
/// [`Failed`](Self::Failed). The events of one choice are in order; those of several are mixed.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Event {
    /// The first step of a choice was planned.
    Started {
        /// The choice, from 0.
        choice: u32,
        /// Time from the submission.
        queued: Duration,
        /// Tokens of the prompt that others have computed.
        cached_tokens: u32,
    },
    /// A token was sampled. The token that ends the text is not reported.
    Token(TokenEvent),
    /// The [log probabilities of the prompt's tokens](super::Request::prompt_logprobs) but the first, before the first
    /// token of choice 0.
    PromptLogprobs(Vec<PromptLogprob>),
    /// The pooled hidden state of the prompt, (embedding length). Its norm is not 1.
    Embedding(Vec<f32>),
    /// A choice ended.
    Finished {
        /// The choice, from 0.
        choice: u32,
        /// Why.
        reason: FinishReason,
        /// The stop string or the text of the stop token of the request that was found, if any.
        stop: Option<Stop>,
        /// Text that was held back because it might have become a stop string.
        text: String,
    },
    /// All choices have ended.
    Done(Usage),
    /// The request ended before all of its choices did.
    Failed(Error),
}

impl Event {
    /// Whether it is the last event of its request.
    pub fn is_last(&self) -> bool {
        matches!(self, Self::Done(_) | Self::Failed(_))
    }
}

/// A sampled token.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct TokenEvent {
    /// The choice, from 0.
    pub choice: u32,
    /// Its place among the tokens of the choice, from 0.
    pub index: u32,
    /// Its id.
    pub token: Token,
    /// Natural logarithm of its probability, before temperature and truncation.
    pub logprob: f32,
    /// Alternatives, as many as were asked for, most probable first.
    pub top: Vec<(Token, f32)>,
    /// The text that is certain after this token: whole characters, no part of a stop string. It may be
    /// empty, and it may begin with text of the tokens before.
    pub text: String,
}

/// A token of a prompt.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct PromptLogprob {
    /// Its id.
    pub token: Token,
    /// Natural logarithm of its probability after the tokens before it: the model's, without bias, penalties and
    /// temperature.
    pub logprob: f32,
    /// The most probable tokens in its place, as many as were asked for.
    pub top: Vec<(Token, f32)>,
}

/// What of the request's own ends was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stop {
    /// This stop string.
    Text(String),
    /// This stop token.
    Token(Token),
}

/// Tokens of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Usage {
    /// Tokens of the prompt, counted once for all choices.
    pub prompt_tokens: u32,
    /// Of these, tokens that other requests have computed, for the first choice.
    pub cached_tokens: u32,
    /// Reported tokens of all choices.
    pub completion_tokens: u32,
    /// Draft tokens that were verified for them.
    pub draft_tokens: u32,
    /// Of these, tokens that held and were reported.
    pub accepted_draft_tokens: u32,
}

/// Why a request was refused or has failed.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Error {
    /// A field has a value that is not allowed.
    Invalid {
        /// The field of [`Request`](super::Request).
        field: &'static str,
        /// The reason, with the numbers.
        message: String,
    },
    /// The prompt cannot be rendered or tokenized.
    Prompt(Arc<EngineError>),
    /// The prompt and the tokens to generate need more positions than a sequence has.
    TooLong {
        /// Tokens of the prompt.
        prompt_tokens: u32,
        /// Tokens to generate.
        max_tokens: u32,
        /// Positions of a sequence.
        limit: u32,
    },
    /// Too many requests or tokens wait.
    QueueFull(Refusal),
    /// The first step was not planned within this time.
    QueueTimeout(Duration),
    /// The deadline of the request has passed.
    Deadline,
    /// The receiver was behind for this time.
    ReceiverBehind(Duration),
    /// The rule of the answer has failed, or allows no token that the model has.
    Constraint(String),
    /// It takes too long to find out which tokens the rule allows.
    RuleTooSlow,
    /// No thread was free to find out which tokens the rule allows.
    MaskLate,
    /// Bias leaves no token that may be sampled.
    NoTokenAllowed,
    /// The model's logits or hidden states are not finite.
    NotFinite,
    /// Steps failed twice while this request ran.
    EngineFault(Arc<EngineError>),
    /// The device is lost. No request can be served.
    DeviceLost(Arc<EngineError>),
    /// The service accepts no more requests, and ends.
    Draining,
    /// The service ended before the request did.
    ShutDown,
}

impl Error {
    /// Whether the same request may succeed later, here or elsewhere.
    pub fn is_temporary(&self) -> bool {
        !matches!(
            self,
            Self::Invalid { .. }
                | Self::Prompt(_)
                | Self::TooLong { .. }
                | Self::Constraint(_)
                | Self::RuleTooSlow
                | Self::NoTokenAllowed
        )
    }

    /// Whether the request itself is at fault.
    pub fn is_callers(&self) -> bool {
        !self.is_temporary() || matches!(self, Self::ReceiverBehind(_))
    }

    /// A short name for logs and metrics: "queue_full" for example.
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Invalid { .. } => "invalid",
            Self::Prompt(_) => "prompt",
            Self::TooLong { .. } => "too_long",
            Self::QueueFull(_) => "queue_full",
            Self::QueueTimeout(_) => "queue_timeout",
            Self::Deadline => "deadline",
            Self::ReceiverBehind(_) => "receiver_behind",
            Self::Constraint(_) => "constraint",
            Self::RuleTooSlow => "rule_too_slow",
            Self::MaskLate => "mask_late",
            Self::NoTokenAllowed => "no_token_allowed",
            Self::NotFinite => "not_finite",
            Self::EngineFault(_) => "engine_fault",
            Self::DeviceLost(_) => "device_lost",
            Self::Draining => "draining",
            Self::ShutDown => "shut_down",
        }
    }
}

impl From<Refusal> for Error {
    fn from(refusal: Refusal) -> Self {
        let field = match refusal {
            Refusal::TooLong {
                prompt_tokens,
                max_tokens,
                limit,
            } => {
                return Self::TooLong {
                    prompt_tokens,
                    max_tokens,
                    limit,
                };
            }
            refusal if refusal.is_temporary() => return Self::QueueFull(refusal),
            Refusal::DeadlinePassed { .. } => return Self::Deadline,
            Refusal::QueueFull { .. } => "choices",
            Refusal::TooManyStopTokens { .. } => "stop_tokens",
            Refusal::NoSuchPriority { .. } => "priority",
            Refusal::NoSuchTenant { .. } => "tenant",
            _ => "prompt",
        };
        let message = refusal.to_string();
        Self::Invalid { field, message }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Invalid { field, message } => write!(f, "{field}: {message}"),
            Self::Prompt(error) => write!(f, "prompt: {error}"),
            Self::TooLong {
                prompt_tokens,
                max_tokens,
                limit,
            } => Refusal::TooLong {
                prompt_tokens: *prompt_tokens,
                max_tokens: *max_tokens,
                limit: *limit,
            }
            .fmt(f),
            Self::QueueFull(refusal) => refusal.fmt(f),
            Self::QueueTimeout(limit) => write!(
                f,
                "the request waited longer than {} s for its first step",
                limit.as_secs_f64()
            ),
            Self::Deadline => f.write_str("the deadline of the request has passed"),
            Self::ReceiverBehind(limit) => write!(
                f,
                "the receiver of the events was too far behind for {} s",
                limit.as_secs_f64()
            ),
            Self::Constraint(message) => write!(f, "the rule of the answer: {message}"),
            Self::RuleTooSlow => f.write_str(
                "it takes too long to find out which tokens the rule of the answer allows",
            ),
            Self::MaskLate => {
                f.write_str("the rules of other answers left no time for the rule of this one")
            }
            Self::NoTokenAllowed => f.write_str("the bias leaves no token that may be sampled"),
            Self::NotFinite => f.write_str("the results of the model are not finite"),
            Self::EngineFault(error) => write!(f, "two steps of the engine failed: {error}"),
            Self::DeviceLost(error) => write!(f, "the device is lost: {error}"),
            Self::Draining => f.write_str("the service ends and accepts no more requests"),
            Self::ShutDown => f.write_str("the service ended before the request did"),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Prompt(error) | Self::EngineFault(error) | Self::DeviceLost(error) => {
                Some(&**error)
            }
            Self::QueueFull(refusal) => Some(refusal),
            _ => None,
        }
    }
}
