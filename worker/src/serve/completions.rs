//! `/v1/completions` and `/v1/chat/completions`.

use std::sync::Arc;

use axum::http::HeaderValue;
use axum::response::Response;
use serde_json::{Value, json};
use worker_cuda::Token;
use worker_cuda::generate::Prompt;
use worker_cuda::generate::constraints::Rule;
use worker_cuda::generate::service::{Constrained, MAX_CHOICES, Reasoning};
use worker_cuda::text::DecodeOptions;

use super::anthropic::Message;
use super::app::App;
use super::calls::Calls;
use super::error::ApiError;
use super::fields::{Fields, tokens, wrong_type};
use super::gate::Visitor;
use super::generation::{Part, Parts, blocking, collect, submit};
use super::input::{Input, check_unknown, with_ignored};
use super::messages::{conversation, prediction};
use super::names::Names;
use super::parameters::{MAX_TOP_LOGPROBS, Parameters};
use super::reply::{Api, Reply};
use super::responses::Answer;
use super::routes::json_body;
use super::split::{self, Format, Splitter};
use super::sse::{Wire, stream};
use super::tools::{Choice, Tools};

/// `POST /v1/chat/completions`.
pub async fn chat(
    Input {
        app,
        visitor,
        fields,
    }: Input,
) -> Result<Response, ApiError> {
    let mut names = Names::default();
    names.add_max_tokens(fields.has("max_completion_tokens"));
    let conversation = Conversation {
        fields,
        unknown: Vec::new(),
        names,
    };
    conversation.answer(&app, &visitor, Shape::OpenAi).await
}

/// The form of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    OpenAi,
    /// Of Anthropic's API.
    Message,
    /// Of OpenAI's newer API.
    Response,
}

/// A request that is read as one for a chat.
pub struct Conversation {
    pub fields: Fields,
    /// What was not understood so far, by the client's names.
    pub unknown: Vec<String>,
    /// The client's names of what is in `fields`.
    pub names: Names,
}

impl Conversation {
    /// Answers it. Errors and unknown fields have the client's names.
    pub async fn answer(
        self,
        app: &Arc<App>,
        visitor: &Visitor,
        shape: Shape,
    ) -> Result<Response, ApiError> {
        let Self {
            fields,
            mut unknown,
            names,
        } = self;
        let restore = |error| names.restore(error);
        let mut found = Vec::new();
        let asked = read_chat(app, visitor, fields, &mut found).map_err(restore)?;
        let (mut asked, tools) = asked;
        unknown.extend(found.iter().map(|name| names.original(name)));
        asked.ignored = check_unknown(app, unknown)?;
        asked.shape = shape;
        let rule = asked.parameters.rule.take();
        let rule = chat_rule(app, visitor, rule, &tools).await;
        asked.parameters.request.constraint = rule.map_err(restore)?;
        asked.answer(app, visitor).await.map_err(restore)
    }
}

/// Reads the fields of a chat. Names of unknown ones are appended to `unknown`.
fn read_chat(
    app: &App,
    visitor: &Visitor,
    mut fields: Fields,
    unknown: &mut Vec<String>,
) -> Result<(Asked, Tools), ApiError> {
    let mut parameters = Parameters::read(&mut fields, app, &visitor.caller, 1, unknown)?;
    let (prompt, tools) = conversation(app, &mut fields, unknown)?;
    parameters.request.prediction = prediction(&mut fields, unknown)?;
    let format = (tools.choice != Choice::None).then_some(app.format);
    parameters.request.show_special = format.is_some_and(Format::has_control_marker);
    let top = fields.integer("top_logprobs", 0..=MAX_TOP_LOGPROBS)?;
    if fields.boolean("logprobs")? {
        parameters.report_logprobs(app, "top_logprobs", top.unwrap_or(0))?;
    } else if top.is_some() {
        let message = "top_logprobs is allowed only with logprobs: true";
        return Err(ApiError::invalid("top_logprobs", message));
    }
    fields.end(unknown);
    let asked = Asked {
        api: Api::Chat,
        shape: Shape::OpenAi,
        parameters,
        prompt: Prompt::Chat(prompt),
        format,
        echo: false,
        ignored: None,
    };
    Ok((asked, tools))
}

/// `POST /v1/completions`.
pub async fn completions(
    Input {
        app,
        visitor,
        fields,
    }: Input,
) -> Result<Response, ApiError> {
    let mut names = Names::new(&[("messages", "prompt")]);
    names.add_max_tokens(fields.has("max_completion_tokens"));
    let answer = complete(&app, &visitor, fields).await;
    answer.map_err(|error| names.restore(error))
}

async fn complete(
    app: &Arc<App>,
    visitor: &Visitor,
    mut fields: Fields,
) -> Result<Response, ApiError> {
    let mut unknown = Vec::new();
    let mut parameters = Parameters::read(&mut fields, app, &visitor.caller, 0, &mut unknown)?;
    let prompt = prompt(&mut fields)?;
    fields.refuse(&["prediction", "tools"])?;
    fields.skip(&["parallel_tool_calls"]);
    fields.only("tool_choice", &[json!("none"), json!("auto")])?;
    let suffix = fields.string("suffix")?.filter(|text| !text.is_empty());
    let echo = fields.boolean("echo")?;
    if echo && suffix.is_some() {
        let message = "echo is not supported together with suffix";
        return Err(ApiError::unsupported("echo", message));
    }
    if let Some(top) = fields.integer("logprobs", 0..=MAX_TOP_LOGPROBS)? {
        parameters.report_logprobs(app, "logprobs", top)?;
        if echo && !app.service.limits().token_logprobs {
            let message = "this engine returns no log probabilities of prompts (echo: true)";
            return Err(ApiError::unsupported("echo", message));
        }
        parameters.request.prompt_logprobs = echo.then_some(top as u32);
    }
    best_of(&mut fields, &mut parameters)?;
    parameters
        .request
        .max_tokens
        .get_or_insert(DEFAULT_MAX_TOKENS);
    fields.end(&mut unknown);
    let ignored = check_unknown(app, unknown)?;
    if let Some(rule) = parameters.rule.take() {
        let rule = compiled(app, visitor, rule, "response_format");
        parameters.request.constraint = Some(rule.await??);
    }
    let prompt = match suffix {
        Some(suffix) => infill(app, prompt, suffix).await?,
        None => prompt,
    };
    let asked = Asked {
        api: Api::Text,
        shape: Shape::OpenAi,
        parameters,
        prompt,
        format: None,
        echo,
        ignored,
    };
    asked.answer(app, visitor).await
}

/// What OpenAI's documentation states for text completions.
const DEFAULT_MAX_TOKENS: u32 = 16;

/// A string, a list of one string, or tokens.
fn prompt(fields: &mut Fields) -> Result<Prompt, ApiError> {
    let wanted = "a string or a list of token ids";
    let list = match fields.required("prompt")? {
        Value::String(text) => return Ok(Prompt::Text(text)),
        Value::Array(list) => list,
        other => return Err(wrong_type("prompt".into(), wanted, &other)),
    };
    if list
        .iter()
        .any(|value| value.is_string() || value.is_array())
    {
        let count = list.len();
        return match <[Value; 1]>::try_from(list) {
            Ok([Value::String(text)]) => Ok(Prompt::Text(text)),
            Ok([list]) => tokens("prompt", list).map(Prompt::Tokens),
            Err(_) => {
                let message = format!("prompt has {count} prompts, a request may have 1");
                Err(ApiError::unsupported("prompt", message))
            }
        };
    }
    tokens("prompt", Value::Array(list)).map(Prompt::Tokens)
}

/// The prompt whose answer is the text between two others.
async fn infill(app: &Arc<App>, prompt: Prompt, suffix: String) -> Result<Prompt, ApiError> {
    let Prompt::Text(prefix) = prompt else {
        let message = "suffix requires a prompt that is a text";
        return Err(ApiError::unsupported("suffix", message));
    };
    app.check_bytes(prefix.len() + suffix.len())?;
    let app = Arc::clone(app);
    blocking(move || {
        let tokens = app.tokenizer()?.encode_infill(&prefix, &suffix);
        let tokens = tokens.map_err(|error| ApiError::invalid("prompt", error.to_string()))?;
        tokens.map(Prompt::Tokens).ok_or_else(|| {
            let message =
                "suffix requires a model whose vocabulary has tokens for it (fill-in-the-middle)";
            ApiError::unsupported("suffix", message)
        })
    })
    .await
}

/// More choices than are reported.
fn best_of(fields: &mut Fields, parameters: &mut Parameters) -> Result<(), ApiError> {
    let Some(best_of) = fields.integer("best_of", 1..=MAX_CHOICES.into())? else {
        return Ok(());
    };
    let best_of = best_of as u32;
    if best_of < parameters.choices {
        let message = format!(
            "best_of is {best_of}, less than n, which is {}",
            parameters.choices
        );
        return Err(ApiError::invalid("best_of", message));
    }
    if parameters.stream && best_of > parameters.choices {
        return Err(ApiError::invalid("best_of", "best_of cannot be streamed"));
    }
    if best_of > parameters.choices {
        parameters.compute_logprobs();
    }
    parameters.request.choices = best_of;
    Ok(())
}

/// Compiles a rule. The inner error is about the rule itself.
async fn compiled(
    app: &App,
    visitor: &Visitor,
    rule: Rule,
    param: &'static str,
) -> Result<Result<Constrained, ApiError>, ApiError> {
    let (tenant, most) = (visitor.caller.tenant, app.options.rule_timeout);
    let compiled = app.rules.compile(tenant, rule, param, most).await?;
    let refused = |message| ApiError::invalid(param, format!("{param}: {message}"));
    Ok(compiled.map(Constrained::new).map_err(refused))
}

/// What the answer of a chat must be: `response_format`, calls of tools, or either of them. Free text may have
/// calls too, whose arguments then are those of the tool.
async fn chat_rule(
    app: &App,
    visitor: &Visitor,
    rule: Option<Rule>,
    tools: &Tools,
) -> Result<Option<Constrained>, ApiError> {
    let template = app.model.template.as_ref();
    let template = template.map_or("", |template| template.source());
    let mut constrained = match (tools.choice, rule) {
        (Choice::None, None) => return Ok(None),
        (Choice::None, Some(rule)) => compiled(app, visitor, rule, "response_format").await??,
        (choice, rule) => {
            let calls = Calls {
                format: app.format,
                names_first: app.format == Format::Mistral && template.contains("[ARGS]"),
                tokenizer: app.tokenizer()?,
                tools: &tools.list,
                single: tools.single,
            };
            match rule {
                _ if choice == Choice::Required => {
                    compiled(app, visitor, calls.whole_answer(None), "tools").await??
                }
                Some(rule) => {
                    let schema = match rule {
                        Rule::JsonSchema(schema) => schema,
                        Rule::JsonObject => json!({ "type": "object" }),
                        _ => {
                            let message = "response_format grammar is not supported with tools";
                            return Err(ApiError::unsupported("response_format", message));
                        }
                    };
                    let rule = calls.whole_answer(Some(&schema));
                    compiled(app, visitor, rule, "response_format").await??
                }
                None => {
                    let Some(marker) = app.format.marker() else {
                        return Ok(None);
                    };
                    // Parameters that cannot be guaranteed are not.
                    let rule = calls.after_marker();
                    let Ok(mut constrained) = compiled(app, visitor, rule, "tools").await? else {
                        return Ok(None);
                    };
                    constrained.markers.push(marker.into());
                    constrained
                }
            }
        }
    };
    if let Some((begin, end)) = split::thinking(template) {
        constrained.reasoning = Some(Reasoning::Possible(begin.into(), end.into()));
    }
    Ok(Some(constrained))
}

/// A request that was understood.
struct Asked {
    api: Api,
    shape: Shape,
    parameters: Parameters,
    prompt: Prompt,
    /// How tools are called, if there are any.
    format: Option<Format>,
    echo: bool,
    /// Names of fields that were not understood.
    ignored: Option<HeaderValue>,
}

impl Asked {
    async fn answer(self, app: &Arc<App>, visitor: &Visitor) -> Result<Response, ApiError> {
        let mut reply = Reply::new(app, self.api, &self.parameters);
        let choices = self.parameters.request.choices;
        let is_scored = self.parameters.request.prompt_logprobs.is_some();
        let mut accepted = submit(app, visitor, self.parameters.request, self.prompt).await?;
        let prompt = std::mem::take(&mut accepted.prompt);
        let echo = match self.echo {
            true => Some(
                app.tokenizer()?
                    .decode(&prompt, ECHO)
                    .map_err(|error| ApiError::invalid("prompt", error.to_string()))?,
            ),
            false => None,
        };
        let splitter = match self.api {
            Api::Chat => Some(Splitter::new(self.format, begun_thinking(app, &prompt))),
            Api::Text => None,
        };
        let mut parts = Parts::new(choices, reply.keeps_tokens(), splitter);
        parts.waits_for_prompt = is_scored;
        let mut wire: Box<dyn Wire> = match self.shape {
            Shape::OpenAi => {
                reply.set_prompt(prompt, echo);
                Box::new(reply)
            }
            Shape::Message => Box::new(Message::new(app, prompt.len())),
            Shape::Response => Box::new(Answer::new(app)),
        };
        let response = if self.parameters.stream {
            stream(app, accepted, wire, parts)
        } else {
            parts = collect(app, &mut accepted, parts).await?;
            keep_best(&mut parts.choices, self.parameters.choices as usize);
            let usage = parts.end.and_then(Result::ok).unwrap_or_default();
            let whole = move || {
                if let Some(scores) = parts.prompt_logprobs {
                    wire.set_prompt_logprobs(scores);
                }
                json_body(wire.whole(&parts.choices, &usage, parts.reasoning_tokens))
            };
            match is_scored || self.parameters.logprobs.is_some() {
                // Long: of each token.
                true => blocking(move || Ok(whole())).await?,
                false => whole(),
            }
        };
        Ok(with_ignored(response, self.ignored))
    }
}

/// How a prompt is repeated.
pub const ECHO: DecodeOptions = DecodeOptions {
    show_special: false,
    at_text_start: true,
};

/// Whether the prompt ends inside of reasoning; where that ends.
pub fn begun_thinking(app: &App, prompt: &[Token]) -> Option<&'static str> {
    const LAST: usize = 8;
    let last = &prompt[prompt.len().saturating_sub(LAST)..];
    let options = DecodeOptions {
        show_special: true,
        at_text_start: false,
    };
    let text = app.tokenizer().ok()?.decode(last, options).ok()?;
    split::begun_thinking(&text)
}

/// Keeps the choices whose tokens are the most probable on average.
fn keep_best(parts: &mut Vec<Part>, count: usize) {
    if parts.len() > count {
        parts.sort_by(|a, b| b.mean_logprob().total_cmp(&a.mean_logprob()));
        parts.truncate(count);
    }
}
