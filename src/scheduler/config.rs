//! Limits of a scheduler, and what it knows about the time that work takes.

use std::error::Error;
use std::fmt;
use std::time::Duration;

use super::Token;

/// Limits of a [`Scheduler`](super::Scheduler). [`cuda`](Self::cuda) and [`host`](Self::host) have the
/// defaults of the two backends.
///
/// ```
/// use worker_cuda::scheduler::{Config, Scheduler};
///
/// let mut config = Config::host(512); // pages, as `EngineInfo` reports them
/// config.max_sequences = 16;
/// assert_eq!(config.max_queued_tokens, 4 * 512 * 64);
/// let scheduler = Scheduler::new(config)?;
///
/// let mut config = Config::host(512);
/// config.token_budget = 70;
/// let error = Scheduler::new(config).unwrap_err();
/// assert_eq!(
///     error.to_string(),
///     "a token budget of 70 is too small: 64 sequences and a quarter of it for prompts need 128"
/// );
/// # Ok::<(), worker_cuda::scheduler::ConfigError>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Config {
    /// Positions of a page of the KV cache.
    pub page_tokens: u32,
    /// Pages of the KV cache; at most 2^24.
    pub page_count: u32,
    /// Most sequences with pages, and so most rows of a step; at most 65,536.
    pub max_sequences: u32,
    /// Most tokens of a step; at most 2^20.
    pub token_budget: u32,
    /// Most [draft tokens](super::Scheduler::propose) of a step, over all rows; 0: rows have none.
    pub max_draft_tokens: u32,
    /// Most positions of one sequence.
    pub max_sequence_tokens: u32,
    /// Most requests that wait for their first step; at most 2^20.
    pub max_queued: u32,
    /// Most prompt tokens of these requests.
    pub max_queued_tokens: u64,
    /// Whether a tenant may have only as many requests and tokens waiting as stay free for others: N tenants
    /// that submit without end leave one part of N + 1.
    pub reserves_queue: bool,
    /// Longest wait for the first step.
    pub queue_timeout: Duration,
    /// Longest pause of a request.
    pub pause_timeout: Duration,
    /// Tenants are numbered from 0 to `max_tenants - 1`; at most 2^20.
    pub max_tenants: u32,
    /// Share of the pages, in percent, that an admission leaves free for sequences that grow.
    pub reserve_percent: u32,
    /// Longest time between two tokens of a stream. None: prompts may use the whole token budget.
    pub itl_target: Option<Duration>,
    /// Which pages with equal contents requests share.
    pub page_sharing: PageSharing,
    /// Most pages that preempted sequences may occupy outside the KV cache; 0: they are recomputed.
    pub max_saved_pages: u32,
    /// Tokens that end every text.
    pub end_tokens: Vec<Token>,
    /// Stands for the model, so that no two models have the key of a page in common.
    pub model_digest: [u8; 32],
}

/// Bounds of limits for which memory is reserved.
const MAX_PAGES: u32 = 1 << 24;
const MAX_STEP_TOKENS: u32 = 1 << 20;
const MAX_SEQUENCES: u32 = 1 << 16;
const MAX_SEQUENCE_PAGES: u64 = 1 << 30;
const MAX_QUEUED: u32 = 1 << 20;
const MAX_TENANTS: u32 = 1 << 20;

/// Which computed pages an engine can share between sequences.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum PageSharing {
    /// None, except by [forks](super::Plan::forks).
    #[default]
    None,
    /// All, also those without an owner: the engine finds pages by their keys.
    Cached,
}

impl Config {
    /// Defaults for a GPU: 2,048 tokens a step, 256 sequences.
    pub fn cuda(page_count: u32) -> Self {
        Self::new(page_count, 2048, 256)
    }

    /// Defaults for the CPU: 256 tokens a step, 64 sequences.
    pub fn host(page_count: u32) -> Self {
        Self::new(page_count, 256, 64)
    }

    fn new(page_count: u32, token_budget: u32, max_sequences: u32) -> Self {
        const PAGE_TOKENS: u32 = 64;
        let pool_tokens = u64::from(page_count) * u64::from(PAGE_TOKENS);
        Self {
            page_tokens: PAGE_TOKENS,
            page_count,
            max_sequences,
            token_budget,
            max_draft_tokens: 0,
            max_sequence_tokens: u32::try_from(pool_tokens).unwrap_or(u32::MAX),
            max_queued: 1024,
            max_queued_tokens: 4 * pool_tokens,
            reserves_queue: false,
            queue_timeout: Duration::from_secs(60),
            pause_timeout: Duration::from_secs(30),
            max_tenants: 256,
            reserve_percent: 3,
            itl_target: None,
            page_sharing: PageSharing::Cached,
            max_saved_pages: 0,
            end_tokens: Vec::new(),
            model_digest: [0; 32],
        }
    }

    /// Positions that one sequence can have: its limit, or the whole KV cache.
    pub(super) fn context_tokens(&self) -> u32 {
        let pool = u64::from(self.page_count) * u64::from(self.page_tokens);
        u64::from(self.max_sequence_tokens).min(pool) as u32
    }

    /// The share of a step that prompts in progress have in any case: a quarter, in whole pages.
    pub(super) fn prefill_floor(&self) -> u32 {
        (self.token_budget / 4 / self.page_tokens * self.page_tokens).max(self.page_tokens)
    }

    /// Pages that an admission leaves free.
    pub(super) fn reserve_pages(&self) -> u32 {
        (u64::from(self.page_count) * u64::from(self.reserve_percent)).div_ceil(100) as u32
    }

    pub(super) fn check(&self) -> Result<(), ConfigError> {
        let positive = [
            ("page_tokens", self.page_tokens),
            ("page_count", self.page_count),
            ("max_sequences", self.max_sequences),
            ("max_sequence_tokens", self.max_sequence_tokens),
            ("max_queued", self.max_queued),
            ("max_tenants", self.max_tenants),
        ];
        if let Some((name, _)) = positive.iter().find(|(_, value)| *value == 0) {
            return Err(ConfigError(format!("{name} is 0")));
        }
        // Memory for all of them is reserved.
        let bounded = [
            ("page_count", self.page_count, MAX_PAGES),
            ("token_budget", self.token_budget, MAX_STEP_TOKENS),
            ("max_sequences", self.max_sequences, MAX_SEQUENCES),
            ("max_queued", self.max_queued, MAX_QUEUED),
            ("max_tenants", self.max_tenants, MAX_TENANTS),
        ];
        if let Some((name, value, most)) = bounded.iter().find(|(_, value, most)| value > most) {
            return Err(ConfigError(format!("{name} is {value}, at most {most}")));
        }
        let Self {
            max_sequences,
            token_budget,
            reserve_percent,
            ..
        } = *self;
        let pages = self.context_tokens().div_ceil(self.page_tokens);
        if u64::from(max_sequences) * u64::from(pages) > MAX_SEQUENCE_PAGES {
            return Err(ConfigError(format!(
                "{max_sequences} sequences of {pages} pages each: together at most {MAX_SEQUENCE_PAGES}"
            )));
        }
        let needed = u64::from(max_sequences) + u64::from(self.prefill_floor());
        if u64::from(token_budget) < needed {
            return Err(ConfigError(format!(
                "a token budget of {token_budget} is too small: {max_sequences} sequences and a \
                 quarter of it for prompts need {needed}"
            )));
        }
        if reserve_percent > 100 {
            return Err(ConfigError(format!(
                "{reserve_percent} percent of the pages cannot be kept free"
            )));
        }
        Ok(())
    }
}

/// A [`Config`] that cannot work; the message has the numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError(String);

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Error for ConfigError {}

/// What work takes on this device, as measured. The ITL target, the choice between saving and recomputing, and the
/// number of draft tokens depend on it. All zero (the default) means unknown: then the first two have no effect, and
/// rows get all drafts that are proposed.
///
/// ```
/// use std::time::Duration;
/// use worker_cuda::scheduler::{Config, Costs, Scheduler};
///
/// let mut config = Config::cuda(4096);
/// config.itl_target = Some(Duration::from_millis(20));
/// let mut scheduler = Scheduler::new(config)?;
/// scheduler.set_costs(Costs {
///     step: Duration::from_millis(2),
///     decode_row: Duration::from_micros(30),
///     prefill_token: Duration::from_micros(20),
///     restore_page: Duration::from_micros(150),
///     lone_step: Duration::from_micros(100),
///     ..Costs::default()
/// });
/// # Ok::<(), worker_cuda::scheduler::ConfigError>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Costs {
    /// A step, whatever its rows.
    pub step: Duration,
    /// Each row that continues a text by one token, and each draft token.
    pub decode_row: Duration,
    /// Each token of a prompt.
    pub prefill_token: Duration,
    /// Each page of a saved sequence, when it is restored.
    pub restore_page: Duration,
    /// More for a step that is planned while none is in flight: what happens between two steps is not hidden then.
    pub lone_step: Duration,
    /// Guessing one draft token, if guesses are [computed](super::Scheduler::expect_guesses); zero if they are looked up.
    pub guess: Duration,
    /// Whole steps of few rows, where kernels change with the number of rows.
    pub small_steps: SmallSteps,
}

/// What steps of 0, 1, 2, … tokens take whose rows have one token each, drafts included. Zero means unknown: then it
/// is the sum of the other [`Costs`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SmallSteps {
    /// Of a step that was planned while another was in flight.
    pub overlapped: [Duration; SMALL_STEP_TOKENS + 1],
    /// Of a step that was not.
    pub lone: [Duration; SMALL_STEP_TOKENS + 1],
}

impl SmallSteps {
    /// Nothing is known.
    pub const UNKNOWN: Self = Self {
        overlapped: [Duration::ZERO; SMALL_STEP_TOKENS + 1],
        lone: [Duration::ZERO; SMALL_STEP_TOKENS + 1],
    };
}

/// Most tokens of [`SmallSteps`].
pub const SMALL_STEP_TOKENS: usize = 16;

impl Costs {
    /// A step with this many rows and drafts of one token.
    pub(super) fn step_time(&self, rows: u32, prompt_tokens: u32, is_lone: bool) -> Duration {
        let (measured, more) = match is_lone {
            true => (&self.small_steps.lone, self.lone_step),
            false => (&self.small_steps.overlapped, Duration::ZERO),
        };
        let measured = measured.get(rows as usize).copied();
        let measured = measured.filter(|time| prompt_tokens == 0 && !time.is_zero());
        measured.unwrap_or_else(|| {
            self.step + self.decode_row * rows + self.prefill_token * prompt_tokens + more
        })
    }

    /// The same for guesses that are there already.
    pub(crate) fn of_computed_guesses(&self) -> Self {
        Self {
            guess: Duration::ZERO,
            ..*self
        }
    }

    /// Prompt tokens that fit into a step of `target` next to `decode_rows`.
    pub(super) fn prefill_tokens(&self, target: Duration, decode_rows: u32) -> u32 {
        let spare = target
            .saturating_sub(self.step)
            .saturating_sub(self.decode_row * decode_rows);
        match self.prefill_token.as_nanos() {
            0 => u32::MAX,
            token => u32::try_from(spare.as_nanos() / token).unwrap_or(u32::MAX),
        }
    }

    /// Draft tokens that fit into a step of `target` next to work that takes `time`.
    pub(super) fn draft_tokens(&self, target: Duration, time: Duration) -> u32 {
        let spare = target.saturating_sub(time).saturating_sub(self.lone_step);
        match (self.decode_row + self.guess).as_nanos() {
            0 => u32::MAX,
            draft => u32::try_from(spare.as_nanos() / draft).unwrap_or(u32::MAX),
        }
    }

    /// Whether `pages` are restored faster than `tokens` are recomputed.
    pub(super) fn prefer_restore(&self, pages: u32, tokens: u32) -> bool {
        self.restore_page * pages < self.prefill_token * tokens
    }
}
