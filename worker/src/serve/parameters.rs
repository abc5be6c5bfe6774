//! The fields that chat and text completions have in common: how to sample, when to end, what to report.

use std::time::Duration;

use serde_json::{Value, json};
use worker_cuda::generate::Prompt;
use worker_cuda::generate::constraints::Rule;
use worker_cuda::generate::service::{MAX_CHOICES, MAX_STOPS, Request};
use worker_cuda::scheduler::{MAX_PRIORITY, MAX_STOP_TOKENS, Salt};
use worker_cuda::{Sampling, Token};

use super::app::App;
use super::error::ApiError;
use super::fields::{Fields, TOKENS, in_range, wrong_type};
use super::keys::Caller;
use super::rules::response_format;

type Result<T> = std::result::Result<T, ApiError>;

/// Most alternatives of a token.
pub const MAX_TOP_LOGPROBS: u64 = 20;

const MAX_STOP_BYTES: usize = 1024;
const MAX_SALT_BYTES: usize = 1024;
pub const MAX_PENALTY_TOKENS: u64 = 4096;
/// Longest deadline.
pub const DAY_MS: u64 = 86_400_000;

/// How a model samples where a request does not say.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SamplingDefaults {
    /// `general.sampling.temp`, else 1.
    pub temperature: f32,
    /// `general.sampling.top_p`, else 1.
    pub top_p: f32,
    /// `general.sampling.top_k`, else 0: off.
    pub top_k: u32,
    /// `general.sampling.min_p`, else 0: off.
    pub min_p: f32,
    /// `general.sampling.penalty_repeat`, else 1: off.
    pub repetition_penalty: f32,
    /// `general.sampling.penalty_last_n`, else 4,096.
    pub penalty_last_n: u32,
}

impl Default for SamplingDefaults {
    fn default() -> Self {
        Self {
            temperature: 1.0,
            top_p: 1.0,
            top_k: 0,
            min_p: 0.0,
            repetition_penalty: 1.0,
            penalty_last_n: MAX_PENALTY_TOKENS as u32,
        }
    }
}

/// How to answer a prompt.
#[derive(Clone, Debug)]
pub struct Parameters {
    /// Its prompt is filled in later.
    pub request: Request,
    /// Choices to report; the request may generate more, of which these are the best.
    pub choices: u32,
    pub stream: bool,
    /// A last chunk with the token counts.
    pub include_usage: bool,
    /// Report log probabilities, and so many alternatives.
    pub logprobs: Option<u32>,
    pub return_token_ids: bool,
    /// What the answer must be.
    pub rule: Option<Rule>,
}

/// Fields of OpenAI's clients that change nothing here.
pub const HARMLESS: [&str; 11] = [
    "metadata",
    "moderation",
    "prompt_cache_key",
    "prompt_cache_options",
    "prompt_cache_retention",
    "request_id",
    "safety_identifier",
    "service_tier",
    "store",
    "user",
    "verbosity",
];

/// Fields that would change the answer, and that this server does not carry out.
const UNSUPPORTED: [&str; 16] = [
    "allowed_token_ids",
    "audio",
    "bad_words",
    "continue_final_message",
    "function_call",
    "functions",
    "grammar",
    "guided_grammar",
    "guided_json",
    "guided_regex",
    "json_schema",
    "prompt_logprobs",
    "structured_outputs",
    "thinking_token_budget",
    "use_beam_search",
    "web_search_options",
];

impl Parameters {
    /// Reads the common fields; `Prompt` and `logprobs` are read by the caller. `max_tokens` is at least `least_tokens`.
    /// Names of unknown fields of objects are appended to `unknown`.
    pub fn read(
        fields: &mut Fields,
        app: &App,
        caller: &Caller,
        least_tokens: u64,
        unknown: &mut Vec<String>,
    ) -> Result<Self> {
        check_model(fields, app)?;
        fields.skip(&HARMLESS);
        fields.refuse(&UNSUPPORTED)?;
        let rule = response_format(fields, unknown)?;
        fields.only("modalities", &[json!(["text"])])?;
        let mut request = Request::new(Prompt::Tokens(Vec::new()));
        request.sampling = sampling(fields, app)?;
        request.sampling.no_logprob = true; // see compute_logprobs
        request.max_tokens = max_tokens(fields, app, least_tokens)?;
        request.min_tokens = fields.integer("min_tokens", TOKENS)?.unwrap_or(0) as u32;
        request.stop = stop(fields)?;
        request.stop_tokens = fields.tokens("stop_token_ids")?.unwrap_or_default();
        limit(
            fields,
            "stop_token_ids",
            request.stop_tokens.len(),
            MAX_STOP_TOKENS,
        )?;
        request.ignore_end = fields.boolean("ignore_eos")?;
        let choices = fields.integer("n", 1..=MAX_CHOICES.into())?.unwrap_or(1) as u32;
        request.choices = choices;
        order(fields, app, caller, &mut request)?;
        let stream = fields.boolean("stream")?;
        Ok(Self {
            request,
            choices,
            stream,
            include_usage: include_usage(fields, stream, unknown)?,
            logprobs: None,
            return_token_ids: fields.boolean("return_token_ids")?,
            rule,
        })
    }

    /// Reports log probabilities with so many alternatives: those of the model, whatever `logit_bias`, penalties and
    /// rules do to its logits.
    pub fn report_logprobs(&mut self, app: &App, name: &str, top: u64) -> Result<()> {
        let most = app.service.limits().max_top_logprobs;
        if top > most.into() {
            let message = format!("{name} is {top}, the engine reports at most {most}");
            return Err(ApiError::invalid(name, message));
        }
        self.request.sampling.top_logprobs = top as u32;
        self.compute_logprobs();
        self.logprobs = Some(top as u32);
        Ok(())
    }

    /// Has the log probabilities of the model computed, reported or not.
    pub fn compute_logprobs(&mut self) {
        self.request.sampling.raw_logprobs = true;
        self.request.sampling.no_logprob = false;
    }
}

/// Who asks, how urgent it is, and whose prompts have pages in common with it.
pub fn order(fields: &mut Fields, app: &App, caller: &Caller, request: &mut Request) -> Result<()> {
    let priority = fields.integer("priority", 0..=MAX_PRIORITY.into())?;
    request.priority = caller.priority.max(priority.unwrap_or(0) as u8);
    request.tenant = caller.tenant;
    let deadline = fields.integer("deadline_ms", 1..=DAY_MS)?;
    request.deadline = deadline.map(Duration::from_millis);
    let salt = fields.string("cache_salt")?.unwrap_or_default();
    limit(fields, "cache_salt", salt.len(), MAX_SALT_BYTES)?;
    request.salt = Salt::new(&app.secret, caller.name.as_bytes(), salt.as_bytes());
    Ok(())
}

/// Checks the name of the model.
pub fn check_model(fields: &mut Fields, app: &App) -> Result<()> {
    match fields.required("model")? {
        Value::String(name) => app.model.find(&name),
        other => Err(wrong_type(fields.name("model"), "a string", &other)),
    }
}

fn limit(fields: &Fields, field: &str, found: usize, most: usize) -> Result<()> {
    if found <= most {
        return Ok(());
    }
    let name = fields.name(field);
    let message = format!("{name} has a length of {found}, at most {most} is accepted");
    Err(ApiError::invalid(name, message))
}

fn sampling(fields: &mut Fields, app: &App) -> Result<Sampling> {
    let defaults = &app.model.sampling;
    let temperature = fields.number("temperature", 0.0..=2.0)?;
    let mut sampling = Sampling::with_temperature(
        temperature.unwrap_or(defaults.temperature),
        match fields.take("seed") {
            None => app.next_seed(),
            Some(value) => seed(fields.name("seed"), &value)?,
        },
    );
    let top_k = fields.integer("top_k", TOKENS)?;
    sampling.top_k = top_k.map_or(defaults.top_k, |k| k as u32);
    // 1 keeps all tokens, which is what 0 says to the engine.
    let top_p = fields.number("top_p", 0.0..=1.0)?.unwrap_or(defaults.top_p);
    sampling.top_p = if top_p >= 1.0 {
        0.0
    } else {
        top_p.max(f32::MIN_POSITIVE)
    };
    sampling.min_p = fields.number("min_p", 0.0..=1.0)?.unwrap_or(defaults.min_p);
    let typical_p = fields.number("typical_p", 0.0..=1.0)?.unwrap_or(1.0);
    sampling.typical_p = if typical_p >= 1.0 {
        0.0
    } else {
        typical_p.max(f32::MIN_POSITIVE)
    };
    let repetition = fields.number("repetition_penalty", 0.01..=2.0)?;
    sampling.repetition_penalty = repetition.unwrap_or(defaults.repetition_penalty);
    sampling.frequency_penalty = fields
        .number("frequency_penalty", -2.0..=2.0)?
        .unwrap_or(0.0);
    sampling.presence_penalty = fields
        .number("presence_penalty", -2.0..=2.0)?
        .unwrap_or(0.0);
    let last = fields.integer("penalty_last_n", 1..=MAX_PENALTY_TOKENS)?;
    sampling.penalty_last_n = last.map_or(defaults.penalty_last_n, |last| last as u32);
    sampling.bias = bias(fields, app.service.limits().vocabulary_size)?;
    Ok(sampling)
}

/// Any integer: clients send negative seeds too.
fn seed(name: String, value: &Value) -> Result<u64> {
    let signed = value.as_i64().map(|seed| seed as u64);
    value
        .as_u64()
        .or(signed)
        .ok_or_else(|| wrong_type(name, "an integer", value))
}

fn bias(fields: &mut Fields, vocabulary_size: u32) -> Result<Vec<(Token, f32)>> {
    let Some(object) = fields.take_object("logit_bias")? else {
        return Ok(Vec::new());
    };
    let map = object.into_map();
    map.into_iter()
        .map(|(key, value)| {
            let name = fields.name(&format!("logit_bias[{key}]"));
            let known = key.parse().ok().filter(|id: &Token| *id < vocabulary_size);
            let id = known.ok_or_else(|| {
                let message =
                    format!("logit_bias: '{key}' is not a token id below {vocabulary_size}");
                ApiError::invalid("logit_bias", message)
            })?;
            let Some(number) = value.as_f64() else {
                return Err(wrong_type(name, "a number", &value));
            };
            in_range(name, number, &value, &(-100.0..=100.0))?;
            Ok((id, number as f32))
        })
        .collect()
}

/// The most tokens of a choice: what is asked for, or what the server allows if that is less.
fn max_tokens(fields: &mut Fields, app: &App, least: u64) -> Result<Option<u32>> {
    let range = || least..=u64::from(u32::MAX);
    let older = fields.integer("max_tokens", range())?;
    let asked = fields.integer("max_completion_tokens", range())?.or(older);
    let asked = asked.map(|count| count as u32);
    Ok(match (asked, app.options.max_output_tokens) {
        (Some(asked), Some(most)) => Some(asked.min(most)),
        (asked, _) => asked,
    })
}

fn stop(fields: &mut Fields) -> Result<Vec<String>> {
    let stops = match fields.take("stop") {
        None => return Ok(Vec::new()),
        Some(Value::Array(list)) => list,
        Some(one) => vec![one],
    };
    limit(fields, "stop", stops.len(), MAX_STOPS)?;
    stops
        .into_iter()
        .map(|value| match value {
            Value::String(text) if text.is_empty() => {
                Err(ApiError::invalid("stop", "stop has an empty string"))
            }
            Value::String(text) => {
                limit(fields, "stop", text.len(), MAX_STOP_BYTES)?;
                Ok(text)
            }
            other => Err(wrong_type(
                "stop".into(),
                "a string or a list of strings",
                &other,
            )),
        })
        .collect()
}

fn include_usage(fields: &mut Fields, stream: bool, unknown: &mut Vec<String>) -> Result<bool> {
    let Some(mut options) = fields.take_object("stream_options")? else {
        return Ok(false);
    };
    if !stream {
        let message = "stream_options is allowed only with stream: true";
        return Err(ApiError::invalid("stream_options", message));
    }
    options.skip(&["include_obfuscation"]);
    let include_usage = options.boolean("include_usage")?;
    options.end(unknown);
    Ok(include_usage)
}
