//! The conversation of a request, as the chat template gets it.

use serde_json::{Map, Value, json};
use worker_cuda::text::TemplateInput;

use super::app::App;
use super::error::ApiError;
use super::fields::{Fields, wrong_type};
use super::tools::{History, Tools, as_text};
use crate::prompt::now;

type Result<T> = std::result::Result<T, ApiError>;

/// Reads `messages`, `tools`, `tool_choice`, `chat_template_kwargs` and `reasoning_effort`. Names of unknown fields
/// of messages are appended to `unknown`.
pub fn conversation(
    app: &App,
    fields: &mut Fields,
    unknown: &mut Vec<String>,
) -> Result<(TemplateInput, Tools)> {
    let tools = Tools::read(fields, unknown)?;
    let list = match fields.required("messages")? {
        Value::Array(list) => list,
        other => return Err(wrong_type(fields.name("messages"), "a list", &other)),
    };
    if list.is_empty() {
        return Err(ApiError::invalid("messages", "messages is empty"));
    }
    let mut history = History::default();
    let mut messages: Vec<Value> = list
        .into_iter()
        .enumerate()
        .map(|(index, value)| message(format!("messages[{index}]"), value, &mut history, unknown))
        .collect::<Result<_>>()?;
    let template = app.model.template.as_ref();
    let knows_tools = template.is_some_and(|template| template.source().contains("tools"));
    if !knows_tools {
        as_text(&mut messages, &tools.list);
    }
    let list = (knows_tools && !tools.list.is_empty()).then(|| tools.list.clone());
    let mut variables = match fields.take_object("chat_template_kwargs")? {
        Some(object) => object.into_map(),
        None => Map::new(),
    };
    if let Some(effort) = fields.string("reasoning_effort")? {
        if effort == "none" {
            variables.entry("enable_thinking").or_insert(false.into());
        }
        variables.entry("reasoning_effort").or_insert(effort.into());
    }
    let input = TemplateInput {
        messages,
        tools: list,
        add_generation_prompt: true,
        variables,
        clock: Some(now()),
        ..TemplateInput::default()
    };
    Ok((input, tools))
}

/// Reads `prediction`: a text that the answer is expected to repeat; empty if there is none.
pub fn prediction(fields: &mut Fields, unknown: &mut Vec<String>) -> Result<String> {
    let Some(mut prediction) = fields.take_object("prediction")? else {
        return Ok(String::new());
    };
    prediction.only("type", &[json!("content")])?;
    let text = content(&mut prediction, unknown)?;
    prediction.end(unknown);
    Ok(text)
}

fn message(
    path: String,
    value: Value,
    history: &mut History,
    unknown: &mut Vec<String>,
) -> Result<Value> {
    let mut fields = Fields::object(path, value)?;
    let role = match fields.required("role")? {
        // Templates know the older name.
        Value::String(role) if role == "developer" => "system".to_owned(),
        Value::String(role) if ["system", "user", "assistant", "tool"].contains(&role.as_str()) => {
            role
        }
        Value::String(role) if role == "function" => {
            let message = "messages of the role 'function' are not supported by this server";
            return Err(ApiError::unsupported(fields.name("role"), message));
        }
        other => {
            let message = format!("{} is {other}, not a role", fields.name("role"));
            return Err(ApiError::invalid(fields.name("role"), message));
        }
    };
    fields.refuse(&["audio", "function_call"])?;
    let calls = match role.as_str() {
        "assistant" => history.calls(&mut fields, unknown)?,
        _ => None,
    };
    // An answer that is calls, a refusal or reasoning may have no text.
    let is_other = calls.is_some()
        || role == "assistant" && (fields.has("refusal") || fields.has("reasoning_content"));
    let content = match is_other && !fields.has("content") {
        true => {
            fields.skip(&["content"]);
            String::new()
        }
        false => content(&mut fields, unknown)?,
    };
    fields.skip(&["refusal", "annotations", "cache_control"]);
    let mut message = json!({ "role": role, "content": content });
    if role == "tool" {
        let (id, name) = history.answered(&mut fields)?;
        message["tool_call_id"] = id.into();
        message["name"] = name.into();
    }
    if let Some(calls) = calls {
        message["tool_calls"] = calls;
    }
    for name in ["name", "reasoning_content"] {
        if let Some(text) = fields.string(name)? {
            message[name] = text.into();
        }
    }
    fields.end(unknown);
    Ok(message)
}

/// A string, or parts of text, which are joined by line ends.
fn content(fields: &mut Fields, unknown: &mut Vec<String>) -> Result<String> {
    let name = fields.name("content");
    let parts = match fields.required("content")? {
        Value::String(text) => return Ok(text),
        Value::Array(parts) => parts,
        other => return Err(wrong_type(name, "a string or a list of parts", &other)),
    };
    let texts = parts.into_iter().enumerate().map(|(index, part)| {
        let mut part = Fields::object(format!("{name}[{index}]"), part)?;
        let kind = part.string("type")?.unwrap_or_default();
        if kind != "text" {
            let message = format!("content of the type '{kind}' is not supported by this server");
            return Err(ApiError::unsupported(part.name("type"), message));
        }
        let text = match part.required("text")? {
            Value::String(text) => text,
            other => return Err(wrong_type(part.name("text"), "a string", &other)),
        };
        part.skip(&["annotations", "cache_control", "logprobs"]);
        part.end(unknown);
        Ok(text)
    });
    Ok(texts.collect::<Result<Vec<_>>>()?.join("\n"))
}
