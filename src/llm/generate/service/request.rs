//! What a service is asked for.

use std::collections::HashSet;
use std::time::Duration;

use super::constraint::Constrained;
use super::engine::EngineLimits;
use super::event::Error;
use crate::llm::engine::Token;
use crate::llm::generate::{self, Prompt};
use crate::llm::step::Sampling;
use crate::scheduler::Salt;

/// Most choices of one request.
pub const MAX_CHOICES: u32 = 16;

/// Most stop strings of one request.
pub const MAX_STOPS: usize = 16;

/// Most tokens of a bias. The engine has room for 512 in each row; the rest is for the tokens that may
/// not end a text yet.
const MAX_BIAS_TOKENS: usize = 384;

/// Most tokens that penalties look at.
const MAX_PENALTY_TOKENS: u32 = 4096;

/// How the hidden states of a prompt's tokens become one vector.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Pooling {
    /// That of the last token.
    Last,
    /// That of the first token.
    First,
    /// The mean over all tokens.
    Mean,
}

/// One request: a prompt, how to continue it, and how urgent this is.
///
/// ```
/// use std::time::Duration;
/// use worker_cuda::generate::service::Request;
///
/// let mut request = Request::user("Why is the sky blue?");
/// request.max_tokens = Some(64);
/// request.choices = 2;
/// request.deadline = Some(Duration::from_secs(20));
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Request {
    /// What to continue.
    pub prompt: Prompt,
    /// How tokens are sampled. Choice i uses the seed plus i. `top_logprobs` alternatives are reported
    /// with each token.
    pub sampling: Sampling,
    /// Most tokens to generate for each choice. 0: only computes the prompt. None: until the context is
    /// full.
    pub max_tokens: Option<u32>,
    /// Tokens and stop strings that would end the text have no effect on this many first tokens.
    pub min_tokens: u32,
    /// Texts that end the answer and are no part of its text; at most [`MAX_STOPS`].
    pub stop: Vec<String>,
    /// Tokens that end the answer and are no part of it, besides the model's own; at most
    /// [`MAX_STOP_TOKENS`](crate::scheduler::MAX_STOP_TOKENS).
    pub stop_tokens: Vec<Token>,
    /// Whether the model's end tokens are tokens like all others.
    pub ignore_end: bool,
    /// Reports the prompt's [embedding](super::Event::Embedding). Needs `max_tokens` 0 and one choice.
    pub pooling: Option<Pooling>,
    /// A text that the answer is expected to repeat, as a whole or in parts: if the service
    /// [drafts](super::Options::drafting), such an answer takes less time. Needs a tokenizer.
    pub prediction: String,
    /// Reports the [log probabilities of the prompt's tokens](super::Event::PromptLogprobs), each with so many
    /// alternatives. Such a request uses no cached pages.
    pub prompt_logprobs: Option<u32>,
    /// A rule that the answer follows.
    pub constraint: Option<Constrained>,
    /// Answers to generate, 1 to [`MAX_CHOICES`]. One choice computes the prompt. The others fork its sequence and
    /// compute the prompt's last token, or what the cache lacks if no choice is left to fork. Each counts as one request
    /// in the queue.
    pub choices: u32,
    /// Whether tokens without text of their own (control tokens) are written out.
    pub show_special: bool,
    /// Who asks, below [`Options::max_tenants`](super::Options::max_tenants). Tenants have equal shares.
    pub tenant: u32,
    /// 0 (first) to [`MAX_PRIORITY`](crate::scheduler::MAX_PRIORITY).
    pub priority: u8,
    /// Pages of the KV cache are shared only between requests of equal salts.
    pub salt: Salt,
    /// Longest time from the submission to the end.
    pub deadline: Option<Duration>,
}

impl Request {
    /// Continues `prompt` greedily, as one choice, for tenant 0 at priority 0.
    pub fn new(prompt: Prompt) -> Self {
        generate::Request::new(prompt).into()
    }

    /// Answers one message of a user by the model's chat template.
    pub fn user(message: impl Into<String>) -> Self {
        generate::Request::user(message).into()
    }

    /// Continues a text.
    pub fn text(prompt: impl Into<String>) -> Self {
        Self::new(Prompt::Text(prompt.into()))
    }

    /// Computes the embedding of a prompt and no answer. Uses no cached pages.
    pub fn embedding(prompt: Prompt, pooling: Pooling) -> Self {
        let mut request = Self::new(prompt);
        request.max_tokens = Some(0);
        request.pooling = Some(pooling);
        request
    }

    /// Continues tokens.
    pub fn tokens(prompt: impl Into<Vec<Token>>) -> Self {
        Self::new(Prompt::Tokens(prompt.into()))
    }
}

impl From<generate::Request> for Request {
    fn from(request: generate::Request) -> Self {
        Self {
            prompt: request.prompt,
            sampling: request.sampling,
            max_tokens: request.max_tokens,
            min_tokens: 0,
            stop: request.stop,
            stop_tokens: Vec::new(),
            ignore_end: request.ignore_end,
            pooling: None,
            prediction: String::new(),
            prompt_logprobs: None,
            constraint: None,
            choices: 1,
            show_special: false,
            tenant: 0,
            priority: 0,
            salt: Salt::default(),
            deadline: None,
        }
    }
}

impl Request {
    /// Checks what the engine would refuse, because there a step of many requests would fail.
    pub(super) fn check(
        &self,
        tokens: &[Token],
        limits: &EngineLimits,
        has_text: bool,
    ) -> Result<(), Error> {
        let past = tokens
            .iter()
            .find(|&&token| token >= limits.vocabulary_size);
        let vocabulary = limits.vocabulary_size;
        let max_tokens = self.max_tokens.unwrap_or(u32::MAX);
        if let Some(token) = past {
            let message = format!("token {token} is not one of {vocabulary}");
            return invalid("prompt", message);
        }
        if !(1..=MAX_CHOICES).contains(&self.choices) {
            let message = format!("{} choices, 1 to {MAX_CHOICES} are allowed", self.choices);
            return invalid("choices", message);
        }
        if self.pooling.is_some() {
            if limits.embedding_length == 0 {
                return invalid("pooling", "the engine returns no hidden states".into());
            }
            if self.max_tokens != Some(0) || self.choices != 1 {
                let message = "an embedding is one choice of 0 tokens";
                return invalid("pooling", message.into());
            }
        }
        if let Some(top) = self.prompt_logprobs {
            if !limits.token_logprobs {
                let message = "the engine returns no log probabilities of prompts";
                return invalid("prompt_logprobs", message.into());
            }
            if top > limits.max_top_logprobs {
                let most = limits.max_top_logprobs;
                let message = format!("{top} alternatives, at most {most}");
                return invalid("prompt_logprobs", message);
            }
        }
        if let Some(token) = self.stop_tokens.iter().find(|&&token| token >= vocabulary) {
            let message = format!("token {token} is not one of {vocabulary}");
            return invalid("stop_tokens", message);
        }
        if self.stop.len() > MAX_STOPS {
            let message = format!("{} stop strings, at most {MAX_STOPS}", self.stop.len());
            return invalid("stop", message);
        }
        if !has_text && !self.stop.is_empty() {
            return invalid("stop", "stop strings need a tokenizer".into());
        }
        if !has_text
            && self
                .constraint
                .as_ref()
                .is_some_and(Constrained::needs_text)
        {
            return invalid(
                "constraint",
                "reasoning and markers need a tokenizer".into(),
            );
        }
        if self.min_tokens > max_tokens {
            let message = format!("{} tokens at least, {max_tokens} at most", self.min_tokens);
            return invalid("min_tokens", message);
        }
        check_sampling(&self.sampling, limits)
    }

    /// How tokens of a choice are sampled.
    pub(super) fn sampling_of(&self, choice: u32) -> Sampling {
        let mut sampling = self.sampling.clone();
        sampling.seed = sampling.seed.wrapping_add(u64::from(choice));
        sampling
    }

    /// How the first `min_tokens` are sampled: no token may end the text.
    pub(super) fn first_sampling(&self, seed: u64, end_tokens: &[Token]) -> Option<Sampling> {
        let model_ends = if self.ignore_end { &[] } else { end_tokens };
        if self.min_tokens == 0 || model_ends.len() + self.stop_tokens.len() == 0 {
            return None;
        }
        let mut sampling = self.sampling.clone();
        sampling.seed = seed;
        let mut ends = [model_ends, &self.stop_tokens].concat();
        ends.sort_unstable();
        ends.dedup();
        sampling
            .bias
            .retain(|(token, _)| ends.binary_search(token).is_err());
        let forbidden = ends.into_iter().map(|token| (token, f32::NEG_INFINITY));
        sampling.bias.extend(forbidden);
        Some(sampling)
    }
}

fn invalid(field: &'static str, message: String) -> Result<(), Error> {
    Err(Error::Invalid { field, message })
}

fn check_sampling(sampling: &Sampling, limits: &EngineLimits) -> Result<(), Error> {
    let Sampling {
        temperature,
        top_p,
        min_p,
        typical_p,
        repetition_penalty,
        frequency_penalty,
        presence_penalty,
        ..
    } = *sampling;
    let ranges = [
        ("temperature", temperature, 0.0, f32::MAX),
        ("top_p", top_p, 0.0, 1.0),
        ("min_p", min_p, 0.0, 1.0),
        ("typical_p", typical_p, 0.0, 1.0),
        ("repetition_penalty", repetition_penalty, 0.0, f32::MAX),
        ("frequency_penalty", frequency_penalty, f32::MIN, f32::MAX),
        ("presence_penalty", presence_penalty, f32::MIN, f32::MAX),
    ];
    for (field, value, low, high) in ranges {
        if !(low..=high).contains(&value) {
            return invalid(
                field,
                format!("{value} is not between {low:e} and {high:e}"),
            );
        }
    }
    if sampling.penalty_last_n > MAX_PENALTY_TOKENS {
        let message = format!(
            "{} tokens, at most {MAX_PENALTY_TOKENS}",
            sampling.penalty_last_n
        );
        return invalid("penalty_last_n", message);
    }
    if sampling.top_logprobs > limits.max_top_logprobs {
        let (count, most) = (sampling.top_logprobs, limits.max_top_logprobs);
        return invalid(
            "top_logprobs",
            format!("{count} alternatives, at most {most}"),
        );
    }
    if sampling.no_logprob && (sampling.raw_logprobs || sampling.top_logprobs > 0) {
        let message = "raw_logprobs and top_logprobs must be off";
        return invalid("no_logprob", message.into());
    }
    let words = limits.vocabulary_size.div_ceil(32) as usize;
    if !sampling.mask.is_empty() && sampling.mask.len() != words {
        let message = format!("{} words, {words} are needed", sampling.mask.len());
        return invalid("mask", message);
    }
    check_bias(sampling, limits.vocabulary_size)
}

fn check_bias(sampling: &Sampling, vocabulary_size: u32) -> Result<(), Error> {
    if sampling.bias.len() > MAX_BIAS_TOKENS {
        let message = format!("{} tokens, at most {MAX_BIAS_TOKENS}", sampling.bias.len());
        return invalid("bias", message);
    }
    let mut seen = HashSet::new();
    for &(token, value) in &sampling.bias {
        if token >= vocabulary_size {
            let message = format!("token {token} is not one of {vocabulary_size}");
            return invalid("bias", message);
        }
        if value.is_nan() || value == f32::INFINITY {
            return invalid("bias", format!("{value} for token {token}"));
        }
        if !seen.insert(token) {
            return invalid("bias", format!("token {token} is repeated"));
        }
    }
    Ok(())
}
