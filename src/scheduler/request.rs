//! What is submitted, and why it may be refused.

use std::error::Error;
use std::fmt;
use std::time::Duration;

use super::{Salt, Token};

/// Priorities are 0 (first) to this.
pub const MAX_PRIORITY: u8 = 15;

/// Most tokens of [`Request::stop_tokens`].
pub const MAX_STOP_TOKENS: usize = 16;

/// Names a request until its last event, and no other request ever.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub(super) u64);

impl RequestId {
    pub(super) fn new(index: u32, generation: u32) -> Self {
        Self(u64::from(generation) << 32 | u64::from(index))
    }

    pub(super) fn index(self) -> u32 {
        self.0 as u32
    }

    pub(super) fn generation(self) -> u32 {
        (self.0 >> 32) as u32
    }
}

impl fmt::Debug for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.index(), self.generation())
    }
}

/// One text to continue. The tokens are copied.
///
/// ```
/// use std::time::Duration;
/// use worker_cuda::scheduler::{Config, Refusal, Request, Scheduler};
///
/// let mut scheduler = Scheduler::new(Config::host(2))?; // 128 positions
/// let prompt = [1; 100];
/// let mut request = Request::new(&prompt);
/// request.max_tokens = Some(30);
/// let refusal = scheduler.submit(&request, Duration::ZERO).unwrap_err();
/// assert_eq!(
///     refusal.to_string(),
///     "a prompt of 100 tokens and 30 more need 129 positions, a sequence has at most 128"
/// );
/// assert!(!refusal.is_temporary());
/// # Ok::<(), worker_cuda::scheduler::ConfigError>(())
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Request<'a> {
    /// The prompt; at least one token.
    pub tokens: &'a [Token],
    /// Most tokens to generate. 0: only computes the prompt. None: until the context is full.
    pub max_tokens: Option<u32>,
    /// Tokens that end the text, besides those of the configuration; at most [`MAX_STOP_TOKENS`].
    pub stop_tokens: &'a [Token],
    /// Whether the end tokens of the configuration are tokens like all others.
    pub ignore_end: bool,
    /// Who asks. Tenants have equal shares of the admissions.
    pub tenant: u32,
    /// 0 (first) to [`MAX_PRIORITY`]. A request moves up by one for every second that it waits.
    pub priority: u8,
    /// Pages are shared only between requests of equal salts.
    pub salt: Salt,
    /// Whether pages of other requests may be used for the prompt. False if outputs of every position
    /// are needed.
    pub use_cache: bool,
    /// The time at which the request ends in any case.
    pub deadline: Option<Duration>,
}

impl<'a> Request<'a> {
    /// Continues `tokens`, for tenant 0 at priority 0.
    pub fn new(tokens: &'a [Token]) -> Self {
        Self {
            tokens,
            max_tokens: None,
            stop_tokens: &[],
            ignore_end: false,
            tenant: 0,
            priority: 0,
            salt: Salt::default(),
            use_cache: true,
            deadline: None,
        }
    }
}

/// Why a request was not accepted. Nothing has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[allow(missing_docs)] // the fields are the numbers of the message
pub enum Refusal {
    /// The prompt has no tokens.
    EmptyPrompt,
    /// The request can never fit.
    TooLong {
        prompt_tokens: u32,
        max_tokens: u32,
        limit: u32,
    },
    /// Too many stop tokens.
    TooManyStopTokens { count: usize },
    /// No such priority.
    NoSuchPriority { priority: u8 },
    /// No such tenant.
    NoSuchTenant { tenant: u32, max_tenants: u32 },
    /// The deadline has passed.
    DeadlinePassed { late: Duration },
    /// Too many requests wait.
    QueueFull { queued: u32, more: u32, limit: u32 },
    /// Too many tokens wait.
    QueuedTokensFull { queued: u64, more: u64, limit: u64 },
    /// Too many requests or tokens of this tenant wait.
    TenantQueueFull {
        queued: u32,
        queued_tokens: u64,
        free: u32,
        free_tokens: u64,
    },
}

impl Refusal {
    /// Whether the same request may be accepted later.
    pub fn is_temporary(&self) -> bool {
        match *self {
            // More than an empty queue has room for.
            Self::QueueFull { more, limit, .. } => more <= limit,
            Self::QueuedTokensFull { more, limit, .. } => more <= limit,
            Self::TenantQueueFull { .. } => true,
            _ => false,
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::EmptyPrompt => f.write_str("the prompt has no tokens"),
            Self::TooLong {
                prompt_tokens,
                max_tokens,
                limit,
            } => {
                let needed = u64::from(prompt_tokens) + u64::from(max_tokens.saturating_sub(1));
                write!(
                    f,
                    "a prompt of {prompt_tokens} tokens and {max_tokens} more need {needed} \
                     positions, a sequence has at most {limit}"
                )
            }
            Self::TooManyStopTokens { count } => {
                write!(
                    f,
                    "{count} stop tokens, at most {MAX_STOP_TOKENS} are allowed"
                )
            }
            Self::NoSuchPriority { priority } => {
                write!(f, "priority {priority} is not between 0 and {MAX_PRIORITY}")
            }
            Self::NoSuchTenant {
                tenant,
                max_tenants,
            } => write!(f, "tenant {tenant} is not one of {max_tenants}"),
            Self::DeadlinePassed { late } => {
                write!(f, "the deadline passed {} ms ago", late.as_millis())
            }
            Self::QueueFull { more, limit, .. } if more > limit => {
                write!(f, "{more} requests at once, at most {limit} may wait")
            }
            Self::QueuedTokensFull { more, limit, .. } if more > limit => {
                write!(f, "{more} prompt tokens at once, at most {limit} may wait")
            }
            Self::QueueFull {
                queued,
                more,
                limit,
            } => write!(
                f,
                "{queued} requests wait, {more} more exceed the limit of {limit}"
            ),
            Self::QueuedTokensFull {
                queued,
                more,
                limit,
            } => write!(
                f,
                "{queued} tokens wait, {more} more exceed the limit of {limit}"
            ),
            Self::TenantQueueFull {
                queued,
                queued_tokens,
                free,
                free_tokens,
            } => write!(
                f,
                "{queued} requests of {queued_tokens} tokens of this tenant wait, only {free} and \
                 {free_tokens} more have room"
            ),
        }
    }
}

impl Error for Refusal {}
