//! One step: takes rows of tokens and returns sampled tokens, probabilities and logits.

use crate::core::error::{Error, ErrorKind, Result};
use crate::ffi;
use crate::llm::engine::{OutputSize, Sequence, Token, TokenFeatures};

/// How the next token is sampled.
///
/// ```
/// use worker_cuda::Sampling;
///
/// let mut sampling = Sampling::with_temperature(0.8, 42);
/// sampling.top_k = 40;
/// sampling.top_p = 0.95;
/// ```
///
/// With every field 0, sampling is greedy: it selects the largest logit, and the lowest id of equal ones. A draw
/// depends on seed, position and logits alone.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Sampling {
    /// Temperature; 0: greedy.
    pub temperature: f32,
    /// Keeps the k most probable tokens; 0: off.
    pub top_k: u32,
    /// Keeps the most probable tokens whose sum reaches this value, in (0, 1]; 0: off.
    pub top_p: f32,
    /// Keeps tokens with at least this fraction of the largest probability, in [0, 1]; 0: off.
    pub min_p: f32,
    /// Locally typical sampling, in (0, 1]; 0: off.
    pub typical_p: f32,
    /// Divides the positive logits of tokens that occurred, and multiplies the negative ones; 0 or 1: off.
    pub repetition_penalty: f32,
    /// Subtracted from a token's logit once per occurrence.
    pub frequency_penalty: f32,
    /// Subtracted from a token's logit once if it occurred.
    pub presence_penalty: f32,
    /// Number of recent positions that the penalties consider, at most 4096; 0: 64.
    pub penalty_last_n: u32,
    /// First position that the penalties consider.
    pub penalty_from: u32,
    /// Seed of the draws; 0 is a seed like any other.
    pub seed: u64,
    /// Number of alternatives to report, at most the engine's limit.
    pub top_logprobs: u32,
    /// Log probabilities are those of the model: before bias, mask and penalties.
    pub raw_logprobs: bool,
    /// The log probability is not needed and is reported as 0, which is faster. The sampled token is the same.
    /// Excludes `raw_logprobs`; `top_logprobs` must be 0.
    pub no_logprob: bool,
    /// Added to the logit of a token; negative infinity forbids it. Ids are distinct.
    pub bias: Vec<(Token, f32)>,
    /// Bit `id % 32` of word `id / 32` is 1 for an allowed token. Empty: all tokens are allowed. For a row with
    /// [drafts](Row::drafts), one such mask, and behind it one for each draft, which applies after that draft.
    pub mask: Vec<u32>,
}

impl Sampling {
    /// Always selects the most probable token.
    pub fn greedy() -> Self {
        Self::default()
    }

    /// Draws from all tokens at a temperature.
    pub fn with_temperature(temperature: f32, seed: u64) -> Self {
        Self {
            temperature,
            seed,
            ..Self::default()
        }
    }

    /// The same for a row with so many drafts, all of whose tokens have the same mask.
    #[cfg(feature = "text")]
    pub(crate) fn with_drafts(self: &std::sync::Arc<Self>, drafts: usize) -> std::sync::Arc<Self> {
        if self.mask.is_empty() || drafts == 0 {
            return self.clone();
        }
        let mut sampling = Self::clone(self);
        sampling.mask = self.mask.repeat(1 + drafts);
        sampling.into()
    }
}

const HIDDEN_FLAGS: u32 =
    ffi::WCUDA_ROW_HIDDEN_LAST | ffi::WCUDA_ROW_HIDDEN_FIRST | ffi::WCUDA_ROW_HIDDEN_SUM;

/// Which tokens of a row a hidden state is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum HiddenState {
    /// The last one.
    Last,
    /// The first one.
    First,
    /// The sum over all tokens, in their order. For a prompt in several chunks, add the sums of its rows.
    Sum,
}

/// Tokens to append to one sequence, and the outputs requested after them. A sequence has at most one row in a
/// step.
///
/// ```
/// use worker_cuda::{Row, Sampling, Sequence, Token};
///
/// /// The prompt of a conversation; its next token is sampled.
/// fn prompt<'a>(sequence: &'a Sequence, tokens: &'a [Token], sampling: &'a Sampling) -> Row<'a> {
///     Row::tokens(sequence, tokens).sample(sampling)
/// }
///
/// /// The token sampled last, also while its step is in flight; samples the one after it.
/// fn next<'a>(sequence: &'a Sequence, sampling: &'a Sampling) -> Row<'a> {
///     Row::feed_sampled(sequence).sample(sampling)
/// }
/// ```
#[derive(Clone, Copy, Debug)]
#[must_use = "a row does nothing until its step is submitted"]
pub struct Row<'a> {
    pub(crate) sequence: &'a Sequence,
    tokens: &'a [Token],
    drafts: &'a [Token],
    stop_tokens: &'a [Token],
    flags: u32,
    sampling: Option<&'a Sampling>,
    next_token: Option<Token>,
    token_top: u32,
    features: Option<TokenFeatures>,
}

impl<'a> Row<'a> {
    /// Appends tokens: a prompt, a part of one, or the last sampled token.
    pub fn tokens(sequence: &'a Sequence, tokens: &'a [Token]) -> Self {
        Self {
            sequence,
            tokens,
            drafts: &[],
            stop_tokens: &[],
            flags: 0,
            sampling: None,
            next_token: None,
            token_top: 0,
            features: None,
        }
    }

    /// Appends the token that this sequence sampled last. The token stays on the device, so the step that samples it
    /// may still be in flight.
    pub fn feed_sampled(sequence: &'a Sequence) -> Self {
        Self {
            sequence,
            tokens: &[],
            drafts: &[],
            stop_tokens: &[],
            flags: ffi::WCUDA_ROW_FEED_SAMPLED,
            sampling: None,
            next_token: None,
            token_top: 0,
            features: None,
        }
    }

    /// Samples a token after the row's last token. It becomes part of the sequence when a later row appends it.
    pub fn sample(mut self, sampling: &'a Sampling) -> Self {
        self.flags |= ffi::WCUDA_ROW_SAMPLE;
        self.sampling = Some(sampling);
        self
    }

    /// The same, but not before [`Engine::sample`](crate::Engine::sample) gives the row its mask, which replaces that of
    /// `sampling`.
    pub fn sample_late(self, sampling: &'a Sampling) -> Self {
        let mut row = self.sample(sampling);
        row.flags |= ffi::WCUDA_ROW_SAMPLE_LATE;
        row
    }

    /// Guesses of the tokens that the row is about to sample, at most [`MAX_DRAFTS`](Self::MAX_DRAFTS). The step also
    /// samples after each of them. A draft holds if it is the token that was sampled for its position and all drafts
    /// before it hold; the row returns the tokens up to the first one that does not hold
    /// ([`StepOutput::sampled`]). They are the tokens that it would return one by one without drafts, whatever the
    /// drafts are. The sequence keeps the drafts that hold. Needs [`sample`](Self::sample) and
    /// [`EngineOptions::max_draft_tokens`](crate::EngineOptions::max_draft_tokens).
    ///
    /// Until the step has been waited for, the length of the sequence is an upper bound. The next step may have a row of
    /// the sequence that [feeds the sampled token](Self::feed_sampled) and has no drafts: it begins after the drafts that
    /// hold, which the device counts, and returns what it returns after a wait. Other rows of the sequence are refused.
    ///
    /// ```no_run
    /// # fn main() -> worker_cuda::Result<()> {
    /// # use worker_cuda::{CudaContext, Engine, EngineOptions, Gguf, Model, Row, Sampling, Step};
    /// # let model = Model::load(&CudaContext::auto()?, &Gguf::open("model.gguf")?)?;
    /// let mut engine = Engine::new(&model, &EngineOptions::new().max_draft_tokens(15))?;
    /// let sequence = engine.create_sequence()?;
    /// let greedy = Sampling::greedy();
    /// let row = Row::tokens(&sequence, &[1, 2, 3]).sample(&greedy).drafts(&[1, 2]);
    /// let ticket = engine.submit(&Step::new().row(row))?;
    /// let output = engine.wait(ticket)?;
    /// for (token, logprob) in output.sampled(&output.rows()[0]) {
    ///     println!("{token} with log probability {logprob}"); // one to three tokens
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn drafts(mut self, drafts: &'a [Token]) -> Self {
        self.drafts = drafts;
        self
    }

    /// Largest number of drafts of a row.
    pub const MAX_DRAFTS: usize = ffi::WCUDA_ROW_DRAFT_TOKENS_MAX as usize;

    /// Tokens that end what a row with drafts returns: nothing is sampled after them.
    pub fn stop_tokens(mut self, tokens: &'a [Token]) -> Self {
        self.stop_tokens = tokens;
        self
    }

    /// Returns the logits of the row's last token, and of each draft.
    pub fn logits_last(mut self) -> Self {
        self.flags |= ffi::WCUDA_ROW_LOGITS_LAST;
        self
    }

    /// Returns the logits of every token of the row, and of each draft.
    pub fn logits_all(mut self) -> Self {
        self.flags |= ffi::WCUDA_ROW_LOGITS_ALL;
        self
    }

    /// Returns a hidden state: values after the final norm, from which logits are computed. Needs
    /// [`EngineOptions::hidden_states`](crate::EngineOptions::hidden_states). A row that asks for nothing else
    /// computes no logits.
    pub fn hidden_state(mut self, of: HiddenState) -> Self {
        self.flags &= !HIDDEN_FLAGS;
        self.flags |= match of {
            HiddenState::Last => ffi::WCUDA_ROW_HIDDEN_LAST,
            HiddenState::First => ffi::WCUDA_ROW_HIDDEN_FIRST,
            HiddenState::Sum => ffi::WCUDA_ROW_HIDDEN_SUM,
        };
        self
    }

    /// Returns the log probability of each token of the row but the first, given the tokens before it, and of `next`,
    /// the token that will follow the row; each with the `top` most likely tokens. They are those of the model: before
    /// bias, mask, penalties and temperature. For a prompt in several rows, `next` is the first token of the next row.
    /// Needs [`EngineOptions::token_logprobs`](crate::EngineOptions::token_logprobs).
    ///
    /// ```no_run
    /// # fn main() -> worker_cuda::Result<()> {
    /// # use worker_cuda::{CudaContext, Engine, EngineOptions, Gguf, Model, Row, Step};
    /// # let model = Model::load(&CudaContext::auto()?, &Gguf::open("model.gguf")?)?;
    /// let mut engine = Engine::new(&model, &EngineOptions::new().token_logprobs(true))?;
    /// let sequence = engine.create_sequence()?;
    /// let tokens = [1, 2, 3];
    /// let row = Row::tokens(&sequence, &tokens).token_logprobs(0, None);
    /// let ticket = engine.submit(&Step::new().row(row))?;
    /// let output = engine.wait(ticket)?;
    /// let sum: f32 = output.token_logprobs(&output.rows()[0]).iter().sum();
    /// println!("log probability of 2 and 3 after 1: {sum}");
    /// # Ok(())
    /// # }
    /// ```
    pub fn token_logprobs(mut self, top: u32, next: Option<Token>) -> Self {
        self.flags |= ffi::WCUDA_ROW_TOKEN_LOGPROBS;
        (self.token_top, self.next_token) = (top, next);
        self
    }

    /// For the engine of a [draft head](crate::Engine::of_draft_head): the token at position `p` of the row's sequence
    /// is the one that follows position `p` of the sequence with these features, and the head reads those of the same
    /// positions. A row without features has one token, which follows the last one of its sequence; the head's own state
    /// takes their place.
    pub fn features(mut self, features: TokenFeatures) -> Self {
        self.features = Some(features);
        self
    }

    pub(crate) fn has_features(&self) -> bool {
        self.features.is_some()
    }

    fn scored_tokens(&self) -> usize {
        if self.flags & ffi::WCUDA_ROW_TOKEN_LOGPROBS == 0 {
            return 0;
        }
        (self.token_count() + usize::from(self.next_token.is_some())).saturating_sub(1)
    }

    fn token_count(&self) -> usize {
        if self.flags & ffi::WCUDA_ROW_FEED_SAMPLED != 0 {
            1
        } else {
            self.tokens.len()
        }
    }

    fn logits_rows(&self) -> usize {
        if self.flags & ffi::WCUDA_ROW_LOGITS_ALL != 0 {
            self.token_count() + self.drafts.len()
        } else if self.flags & ffi::WCUDA_ROW_LOGITS_LAST != 0 {
            1 + self.drafts.len()
        } else {
            0
        }
    }
}

/// A batch of rows, computed together.
///
/// ```
/// use worker_cuda::{Row, Sampling, Sequence, Step};
///
/// /// One token for each conversation.
/// fn decode<'a>(sequences: &'a [Sequence], greedy: &'a Sampling) -> Step<'a> {
///     let mut step = Step::new();
///     for sequence in sequences {
///         step.push(Row::feed_sampled(sequence).sample(greedy));
///     }
///     step
/// }
/// ```
#[derive(Clone, Debug, Default)]
#[must_use = "a step does nothing until it is submitted"]
pub struct Step<'a>(Vec<Row<'a>>);

impl<'a> Step<'a> {
    /// A step without rows; a row must be added before it is submitted.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a row.
    pub fn row(mut self, row: Row<'a>) -> Self {
        self.0.push(row);
        self
    }

    /// Adds a row.
    pub fn push(&mut self, row: Row<'a>) {
        self.0.push(row);
    }

    pub(crate) fn rows(&self) -> &[Row<'a>] {
        &self.0
    }

    pub(crate) fn output_size(&self) -> OutputSize {
        let top = |row: &Row<'_>| {
            row.sampling.map_or(0, |sampling| {
                sampling.top_logprobs as usize * (1 + row.drafts.len())
            })
        };
        OutputSize {
            rows: self.0.len(),
            top: self.0.iter().map(top).sum(),
            logits_rows: self.0.iter().map(Row::logits_rows).sum(),
            hidden_states: self
                .0
                .iter()
                .filter(|row| row.flags & HIDDEN_FLAGS != 0)
                .count(),
            sampled: self.0.iter().map(|row| 1 + row.drafts.len()).sum(),
            token_logprobs: self.0.iter().map(Row::scored_tokens).sum(),
            token_top: self
                .0
                .iter()
                .map(|row| row.scored_tokens() * row.token_top as usize)
                .sum(),
        }
    }
}

/// What happens to a row that [is sampled late](Row::sample_late).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LateRow<'a> {
    /// A token is sampled. Its mask is like [`Sampling::mask`].
    Sample(&'a [u32]),
    /// No token is sampled, and the row ends as [`RowStatus::Held`]. The sequence is at once back at the position at
    /// which the row began, so that the next step may have the same row again, fed or not.
    Hold,
}

impl LateRow<'_> {
    pub(crate) fn to_native(self) -> ffi::wcuda_late_row {
        let mut native = ffi::wcuda_late_row::init();
        match self {
            Self::Sample([]) => {}
            Self::Sample(mask) => {
                (native.mask, native.mask_words) = (mask.as_ptr(), mask.len() as u64);
            }
            Self::Hold => native.is_held = 1,
        }
        native
    }
}

/// The library takes tokens as `i32`: a larger number would be reported as a negative one.
fn check_tokens(row: usize, tokens: &[Token]) -> Result<()> {
    match tokens.iter().position(|&token| token > i32::MAX as u32) {
        None => Ok(()),
        Some(index) => Err(Error::new(
            ErrorKind::OutOfRange,
            format!(
                "row {row}: token {index} is {}, past every vocabulary",
                tokens[index]
            ),
        )),
    }
}

/// Memory for a step in the layout of the C interface, reused by later steps.
#[derive(Default)]
pub(crate) struct NativeStep {
    rows: Vec<ffi::wcuda_row>,
    sampling: Vec<ffi::wcuda_sampling>,
    bias_tokens: Vec<i32>,
    bias_values: Vec<f32>,
}

// SAFETY: the pointers inside are used only between `build` and the end of the submit that follows,
// both on one thread with `&mut`.
unsafe impl Send for NativeStep {}
// SAFETY: nothing can be done with a shared reference.
unsafe impl Sync for NativeStep {}

impl NativeStep {
    /// The result points into `self` and into `step`; it is valid until either changes.
    pub(crate) fn build(&mut self, step: &Step<'_>) -> Result<ffi::wcuda_step> {
        self.build_bias(step);
        self.build_sampling(step);
        self.rows.clear();
        let mut sampling = self.sampling.iter();
        for (index, row) in step.0.iter().enumerate() {
            check_tokens(index, row.tokens)?;
            check_tokens(index, row.drafts)?;
            check_tokens(index, row.next_token.as_slice())?;
            let token_count = to_u32(row.token_count(), "tokens of a row")?;
            let fed = row.flags & ffi::WCUDA_ROW_FEED_SAMPLED != 0;
            self.rows.push(ffi::wcuda_row {
                sequence: row.sequence.handle(),
                tokens: if fed {
                    std::ptr::null()
                } else {
                    row.tokens.as_ptr().cast()
                },
                token_count,
                flags: row.flags,
                struct_size: size_of::<ffi::wcuda_row>() as u32,
                reserved: 0,
                draft_tokens: row.drafts.as_ptr().cast(),
                stop_tokens: row.stop_tokens.as_ptr().cast(),
                draft_count: to_u32(row.drafts.len(), "drafts of a row")?,
                stop_count: to_u32(row.stop_tokens.len(), "stop tokens of a row")?,
                next_token: row.next_token.map_or(-1, |token| token as i32),
                token_top_logprobs: row.token_top,
                features: row
                    .features
                    .map_or(ffi::wcuda_sequence::zeroed(), |features| features.0),
                sampling: match row.sampling {
                    Some(_) => sampling.next().map_or(std::ptr::null(), std::ptr::from_ref),
                    None => std::ptr::null(),
                },
            });
        }
        let mut native = ffi::wcuda_step::init();
        native.row_count = to_u32(self.rows.len(), "rows of a step")?;
        native.rows = self.rows.as_ptr();
        Ok(native)
    }

    fn build_bias(&mut self, step: &Step<'_>) {
        self.bias_tokens.clear();
        self.bias_values.clear();
        for sampling in step.0.iter().filter_map(|row| row.sampling) {
            for &(token, value) in &sampling.bias {
                self.bias_tokens.push(token as i32);
                self.bias_values.push(value);
            }
        }
    }

    fn build_sampling(&mut self, step: &Step<'_>) {
        self.sampling.clear();
        let mut first_bias = 0;
        for row in &step.0 {
            let Some(sampling) = row.sampling else {
                continue;
            };
            let mut native = ffi::wcuda_sampling::init();
            native.top_k = sampling.top_k;
            native.seed = sampling.seed;
            native.temperature = sampling.temperature;
            native.top_p = sampling.top_p;
            native.min_p = sampling.min_p;
            native.typical_p = sampling.typical_p;
            native.repetition_penalty = sampling.repetition_penalty;
            native.frequency_penalty = sampling.frequency_penalty;
            native.presence_penalty = sampling.presence_penalty;
            native.penalty_last_n = sampling.penalty_last_n;
            native.penalty_from = sampling.penalty_from;
            native.top_logprobs = sampling.top_logprobs;
            if sampling.raw_logprobs {
                native.flags |= ffi::WCUDA_SAMPLING_RAW_LOGPROBS;
            }
            if sampling.no_logprob {
                native.flags |= ffi::WCUDA_SAMPLING_NO_LOGPROB;
            }
            if !sampling.bias.is_empty() {
                native.bias_count = sampling.bias.len() as u64;
                native.bias_tokens = self.bias_tokens[first_bias..].as_ptr();
                native.bias_values = self.bias_values[first_bias..].as_ptr();
                first_bias += sampling.bias.len();
            }
            if !sampling.mask.is_empty() && row.flags & ffi::WCUDA_ROW_SAMPLE_LATE == 0 {
                native.mask = sampling.mask.as_ptr();
                native.mask_words = sampling.mask.len() as u64;
            }
            self.sampling.push(native);
        }
    }
}

fn to_u32(count: usize, what: &str) -> Result<u32> {
    count.try_into().map_err(|_| {
        Error::new(
            ErrorKind::LimitExceeded,
            format!("{count} {what}: at most 2^32 - 1"),
        )
    })
}

/// Outcome of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RowStatus {
    /// Success.
    Ok,
    /// The row was [held](LateRow::Hold), or its sequence was dropped before it was sampled.
    Held,
    /// Bias and mask allow no token.
    EmptyMask,
    /// A logit was NaN or positive infinity.
    NotFinite,
    /// The row continues a row that failed.
    Skipped,
    /// An outcome that this version of the crate does not know.
    Unknown(i32),
}

/// Result of one row.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct RowResult {
    /// The outcome. If it is not `Ok`, the sequence is back at `first_position`.
    pub status: RowStatus,
    /// The sampled token, if one was requested; with drafts the last one of [`StepOutput::sampled`].
    pub token: Option<Token>,
    /// Position of the row's first token.
    pub first_position: u32,
    /// Tokens of the row, with the drafts that hold.
    pub token_count: u32,
    /// Natural logarithm of the sampled token's probability, before temperature and truncation; see
    /// [`Sampling::raw_logprobs`]. 0 with [`Sampling::no_logprob`].
    pub logprob: f32,
    top: (usize, usize),
    logits: (usize, usize),
    hidden_states: (usize, usize),
    sampled: (usize, usize),
    token_logprobs: (usize, usize),
    token_top: (usize, usize),
}

/// The outputs of one step.
///
/// ```no_run
/// # fn main() -> worker_cuda::Result<()> {
/// # use worker_cuda::{CudaContext, Engine, EngineOptions, Gguf, Model, Row, Sampling, Step};
/// # let model = Model::load(&CudaContext::auto()?, &Gguf::open("model.gguf")?)?;
/// let mut engine = Engine::new(&model, &EngineOptions::new().max_top_logprobs(5))?;
/// let sequence = engine.create_sequence()?;
/// let mut sampling = Sampling::greedy();
/// sampling.top_logprobs = 5;
/// let row = Row::tokens(&sequence, &[1, 2, 3]).sample(&sampling).logits_last();
/// let ticket = engine.submit(&Step::new().row(row))?;
/// let output = engine.wait(ticket)?;
/// for row in output.rows() {
///     println!("{:?} with log probability {}", row.token, row.logprob);
///     for (token, logprob) in output.top(row) {
///         println!("  alternative {token}: {logprob}");
///     }
///     println!("  {} logits", output.logits(row).len());
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, Default)]
pub struct StepOutput {
    native_rows: Vec<ffi::wcuda_row_result>,
    native_top: Vec<i32>,
    rows: Vec<RowResult>,
    top_logprobs: Vec<f32>,
    logits: Vec<f32>,
    hidden_states: Vec<f32>,
    sampled_tokens: Vec<i32>,
    sampled_logprobs: Vec<f32>,
    sampled_top_counts: Vec<u32>,
    token_logprobs: Vec<f32>,
    token_top_tokens: Vec<i32>,
    token_top_logprobs: Vec<f32>,
    vocabulary_size: usize,
    embedding_length: usize,
    /// Time on the device, in nanoseconds.
    pub device_ns: u64,
    /// Whether this step had to capture a graph first.
    pub captured: bool,
}

impl StepOutput {
    /// One result a row, in the step's order.
    pub fn rows(&self) -> &[RowResult] {
        &self.rows
    }

    /// The sampled tokens of a row with their log probabilities: one, or up to the number of [drafts](Row::drafts) and
    /// one more; none if the row did not sample or failed.
    pub fn sampled(&self, row: &RowResult) -> impl ExactSizeIterator<Item = (Token, f32)> {
        pairs(&self.sampled_tokens, &self.sampled_logprobs, row.sampled)
    }

    /// Alternatives to the sampled token of a row with their log probabilities, most probable first. With several
    /// sampled tokens, these are the alternatives to all of them, one after the other.
    pub fn top(&self, row: &RowResult) -> impl ExactSizeIterator<Item = (Token, f32)> {
        pairs(&self.native_top, &self.top_logprobs, row.top)
    }

    /// Alternatives to the sampled token number `index` of a row.
    pub fn top_of(
        &self,
        row: &RowResult,
        index: usize,
    ) -> impl ExactSizeIterator<Item = (Token, f32)> {
        let (first, count) = row.sampled;
        let counts = self.sampled_top_counts.get(first..first + count);
        let counts = counts.unwrap_or(&[]);
        let (before, from) = counts.split_at(index.min(counts.len()));
        let before = before.iter().sum::<u32>() as usize;
        let own = from.first().map_or(0, |&own| own as usize);
        pairs(
            &self.native_top,
            &self.top_logprobs,
            (row.top.0 + before, own),
        )
    }

    /// Logits of a row, (requested tokens, vocabulary), before bias, mask and penalties.
    pub fn logits(&self, row: &RowResult) -> &[f32] {
        vectors(&self.logits, row.logits, self.vocabulary_size)
    }

    /// Hidden state of a row, (embedding length); empty if the row returned none.
    pub fn hidden_state(&self, row: &RowResult) -> &[f32] {
        vectors(
            &self.hidden_states,
            row.hidden_states,
            self.embedding_length,
        )
    }

    /// [Log probabilities of own tokens](Row::token_logprobs) of a row: of the second token on, up to the one that
    /// follows the row if it was given. None if the row failed.
    pub fn token_logprobs(&self, row: &RowResult) -> &[f32] {
        vectors(&self.token_logprobs, row.token_logprobs, 1)
    }

    /// The most likely tokens in place of own token number `index` of a row, counted as in
    /// [`token_logprobs`](Self::token_logprobs), most probable first.
    pub fn token_top(
        &self,
        row: &RowResult,
        index: usize,
    ) -> impl Iterator<Item = (Token, f32)> + use<'_> {
        let (first, count) = row.token_top;
        let count = if index < row.token_logprobs.1 {
            count
        } else {
            0
        };
        let place = (first + index * count, count);
        pairs(&self.token_top_tokens, &self.token_top_logprobs, place)
            .filter(|(_, logprob)| *logprob > f32::NEG_INFINITY)
    }

    /// Allocates room, calls `wait` to write into it, and stores the result. On failure it is empty.
    pub(crate) fn fill(
        &mut self,
        size: OutputSize,
        [vocabulary_size, embedding_length]: [usize; 2],
        wait: impl FnOnce(&mut ffi::wcuda_step_output) -> Result<()>,
    ) -> Result<()> {
        self.rows.clear();
        self.vocabulary_size = vocabulary_size;
        self.embedding_length = embedding_length;
        self.native_rows
            .resize(size.rows, ffi::wcuda_row_result::init());
        self.native_top.resize(size.top, 0);
        self.top_logprobs.resize(size.top, 0.0);
        self.logits.resize(size.logits_rows * vocabulary_size, 0.0);
        self.hidden_states
            .resize(size.hidden_states * embedding_length, 0.0);
        self.sampled_tokens.resize(size.sampled, 0);
        self.sampled_logprobs.resize(size.sampled, 0.0);
        self.sampled_top_counts.resize(size.sampled, 0);
        self.token_logprobs.resize(size.token_logprobs, 0.0);
        self.token_top_tokens.resize(size.token_top, 0);
        self.token_top_logprobs.resize(size.token_top, 0.0);
        let mut native = ffi::wcuda_step_output::init();
        native.row_capacity = to_u32(size.rows, "rows of a step")?;
        native.rows = self.native_rows.as_mut_ptr();
        native.top_capacity = size.top as u64;
        native.logits_capacity = self.logits.len() as u64;
        if size.top > 0 {
            native.top_tokens = self.native_top.as_mut_ptr();
            native.top_logprobs = self.top_logprobs.as_mut_ptr();
        }
        if !self.logits.is_empty() {
            native.logits = self.logits.as_mut_ptr();
        }
        native.hidden_states_capacity = self.hidden_states.len() as u64;
        if !self.hidden_states.is_empty() {
            native.hidden_states = self.hidden_states.as_mut_ptr();
        }
        native.sampled_capacity = size.sampled as u64;
        native.sampled_tokens = self.sampled_tokens.as_mut_ptr();
        native.sampled_logprobs = self.sampled_logprobs.as_mut_ptr();
        native.sampled_top_counts = self.sampled_top_counts.as_mut_ptr();
        native.token_logprobs_capacity = size.token_logprobs as u64;
        native.token_logprobs = self.token_logprobs.as_mut_ptr();
        native.token_top_capacity = size.token_top as u64;
        native.token_top_tokens = self.token_top_tokens.as_mut_ptr();
        native.token_top_logprobs = self.token_top_logprobs.as_mut_ptr();
        wait(&mut native)?;
        self.device_ns = native.device_ns;
        self.captured = native.captured != 0;
        let written = self.native_rows.iter().take(native.row_count as usize);
        self.rows.extend(written.map(RowResult::from_native));
        Ok(())
    }
}

/// `count` tokens with their log probabilities from index `first` on.
fn pairs<'a>(
    tokens: &'a [i32],
    logprobs: &'a [f32],
    (first, count): (usize, usize),
) -> impl ExactSizeIterator<Item = (Token, f32)> + use<'a> {
    let tokens = tokens.get(first..first + count).unwrap_or(&[]);
    let logprobs = logprobs.get(first..first + count).unwrap_or(&[]);
    tokens
        .iter()
        .zip(logprobs)
        .map(|(&token, &logprob)| (token as Token, logprob))
}

/// `count` vectors of `width` values from vector `first` on.
fn vectors(values: &[f32], (first, count): (usize, usize), width: usize) -> &[f32] {
    values
        .get(first * width..(first + count) * width)
        .unwrap_or(&[])
}

impl RowResult {
    fn from_native(native: &ffi::wcuda_row_result) -> Self {
        Self {
            status: match native.status {
                ffi::WCUDA_ROW_OK => RowStatus::Ok,
                ffi::WCUDA_ROW_HELD => RowStatus::Held,
                ffi::WCUDA_ROW_EMPTY_MASK => RowStatus::EmptyMask,
                ffi::WCUDA_ROW_NOT_FINITE => RowStatus::NotFinite,
                ffi::WCUDA_ROW_SKIPPED => RowStatus::Skipped,
                other => RowStatus::Unknown(other),
            },
            token: native.token.try_into().ok(),
            first_position: native.first_position,
            token_count: native.token_count,
            logprob: native.logprob,
            top: (native.top_offset as usize, native.top_count as usize),
            logits: (native.logits_offset as usize, native.logits_count as usize),
            hidden_states: (
                native.hidden_states_offset as usize,
                native.hidden_states_count as usize,
            ),
            sampled: (
                native.sampled_offset as usize,
                native.sampled_count as usize,
            ),
            token_logprobs: (
                native.token_logprobs_offset as usize,
                native.token_logprobs_count as usize,
            ),
            token_top: (
                native.token_top_offset as usize,
                native.token_top_count as usize,
            ),
        }
    }
}
