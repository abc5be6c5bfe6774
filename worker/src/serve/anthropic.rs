//! `/v1/messages` and `/v1/messages/count_tokens`: Anthropic's API, put on top of chats.

use std::sync::Arc;

use axum::response::Response;
use serde_json::{Value, json};
use worker_cuda::generate::service::{Stop, Usage};
use worker_cuda::generate::{FinishReason, Prompt};

use super::app::App;
use super::chat::{Chat, ToolShape};
use super::completions::{Conversation, Shape};
use super::error::ApiError;
use super::fields::{Fields, wrong_type};
use super::generation::{Part, blocking};
use super::input::{Input, check_unknown, with_ignored};
use super::messages::conversation;
use super::parameters::check_model;
use super::routes::json_response;
use super::rules::response_format;
use super::sse::{Wire, write_named};

type Result<T> = std::result::Result<T, ApiError>;

/// `POST /v1/messages`.
pub async fn messages(input: Input) -> Result<Response> {
    let mut fields = input.fields;
    if !fields.has("max_tokens") {
        fields.required("max_tokens")?;
    }
    let conversation = as_chat(fields)?;
    conversation
        .answer(&input.app, &input.visitor, Shape::Message)
        .await
}

/// `POST /v1/messages/count_tokens`.
pub async fn count_tokens(Input { app, fields, .. }: Input) -> Result<Response> {
    let Conversation {
        mut fields,
        mut unknown,
        names,
    } = as_chat(fields)?;
    check_model(&mut fields, &app)?;
    let mut found = Vec::new();
    let read = response_format(&mut fields, &mut found)
        .and_then(|_| conversation(&app, &mut fields, &mut found));
    let (prompt, _) = read.map_err(|error| names.restore(error))?;
    unknown.extend(found.iter().map(|name| names.original(name)));
    let ignored = check_unknown(&app, unknown)?;
    let prompt = Prompt::Chat(prompt);
    let tokens = blocking(move || app.encode(&prompt)).await?;
    let answer = json_response(&json!({ "input_tokens": tokens.len() }));
    Ok(with_ignored(answer, ignored))
}

/// Fields that chats have under the same name.
const SHARED: [&str; 11] = [
    "model",
    "max_tokens",
    "temperature",
    "top_p",
    "top_k",
    "stream",
    "seed",
    "priority",
    "cache_salt",
    "deadline_ms",
    "chat_template_kwargs",
];

/// Fields that change nothing here.
pub const HARMLESS: [&str; 5] = [
    "metadata",
    "service_tier",
    "container",
    "context_management",
    "cache_control",
];

/// The same request as one for a chat.
fn as_chat(mut fields: Fields) -> Result<Conversation> {
    let mut chat = Chat::new(&[
        ("max_completion_tokens", "max_tokens"),
        ("stop", "stop_sequences"),
        ("response_format", "output_config.format"),
        ("reasoning_effort", "output_config.effort"),
        ("tool_choice.function", "tool_choice"),
    ]);
    chat.take(&mut fields, &SHARED);
    fields.skip(&HARMLESS);
    if let Some(stop) = fields.take("stop_sequences") {
        chat.fields.insert("stop".into(), stop);
    }
    if let Some(system) = fields.take("system") {
        let text = chat.system_text(system)?;
        if !text.is_empty() {
            let message = json!({ "role": "system", "content": text });
            chat.push("system", message);
        }
    }
    let list = match fields.required("messages")? {
        Value::Array(list) => list,
        other => return Err(wrong_type("messages".into(), "a list", &other)),
    };
    for (index, value) in list.into_iter().enumerate() {
        chat.message(format!("messages[{index}]"), value)?;
    }
    if let Some(tools) = fields.take("tools") {
        chat.tools(tools, &TOOLS)?;
    }
    if let Some(choice) = fields.take_object("tool_choice")? {
        chat.tool_choice(choice)?;
    }
    if let Some(mut config) = fields.take_object("output_config")? {
        for (name, of_chat) in [
            ("format", "response_format"),
            ("effort", "reasoning_effort"),
        ] {
            if let Some(value) = config.take(name) {
                chat.fields.insert(of_chat.into(), value);
            }
        }
        config.end(&mut chat.unknown);
    }
    if let Some(mut thinking) = fields.take_object("thinking")? {
        let on = thinking.string("type")?.as_deref() != Some("disabled");
        thinking.skip(&["budget_tokens"]);
        thinking.end(&mut chat.unknown);
        let variables = chat
            .fields
            .entry("chat_template_kwargs")
            .or_insert_with(|| json!({}));
        if let Value::Object(variables) = variables {
            variables.entry("enable_thinking").or_insert(on.into());
        }
    }
    fields.end(&mut chat.unknown);
    Ok(chat.into_conversation())
}

const TOOLS: ToolShape = ToolShape {
    is_function: |kind| matches!(kind, None | Some("custom")),
    parameters: "input_schema",
    ignored: &["cache_control", "eager_input_streaming", "strict"],
};

impl Chat {
    /// Text, or blocks of text. A block that clients put in front, and that differs in each request, is left out: it
    /// would make all prompts differ from the start.
    fn system_text(&mut self, system: Value) -> Result<String> {
        let blocks = match system {
            Value::String(text) => return Ok(text),
            Value::Array(blocks) => blocks,
            other => return Err(wrong_type("system".into(), "a string or a list", &other)),
        };
        let mut texts = Vec::new();
        for (index, block) in blocks.into_iter().enumerate() {
            let text = self.text_block(format!("system[{index}]"), block)?;
            if index > 0 || !text.starts_with("x-anthropic-billing-header") {
                texts.push(text);
            }
        }
        Ok(texts.join("\n"))
    }

    fn text_block(&mut self, path: String, block: Value) -> Result<String> {
        let mut block = Fields::object(path, block)?;
        let kind = block.string("type")?.unwrap_or_default();
        if kind != "text" {
            let message = format!("content of the type '{kind}' is not supported by this server");
            return Err(ApiError::unsupported(block.name("type"), message));
        }
        let text = required_string(&mut block, "text")?;
        block.skip(&["cache_control", "citations"]);
        block.end(&mut self.unknown);
        Ok(text)
    }

    /// Appends what one message says, as one or more of a chat.
    fn message(&mut self, path: String, value: Value) -> Result<()> {
        let mut fields = Fields::object(path.clone(), value)?;
        let role = required_string(&mut fields, "role")?;
        if role != "user" && role != "assistant" {
            let message = format!("{} is '{role}', not user or assistant", fields.name("role"));
            return Err(ApiError::invalid(fields.name("role"), message));
        }
        let place = fields.name("content");
        let content = fields.required("content")?;
        fields.end(&mut self.unknown);
        let blocks = match content {
            Value::Array(blocks) => blocks,
            text => {
                self.push(&path, json!({ "role": role, "content": text }));
                return Ok(());
            }
        };
        let (mut texts, mut calls, mut reasoning) = (Vec::new(), Vec::new(), String::new());
        for (index, block) in blocks.into_iter().enumerate() {
            let path = format!("{place}[{index}]");
            let kind = block["type"].as_str().unwrap_or_default().to_owned();
            if !matches!(
                kind.as_str(),
                "tool_use" | "tool_result" | "thinking" | "redacted_thinking"
            ) {
                texts.push(self.text_block(path, block)?);
                continue;
            }
            let mut block = Fields::object(path.clone(), block)?;
            block.skip(&["type", "cache_control"]);
            match kind.as_str() {
                "tool_use" => {
                    let id = required_string(&mut block, "id")?;
                    let name = required_string(&mut block, "name")?;
                    let input = block.take("input").unwrap_or_else(|| json!({}));
                    block.skip(&["caller"]);
                    let function = json!({ "name": name, "arguments": input });
                    calls.push((
                        path,
                        json!({ "id": id, "type": "function", "function": function }),
                    ));
                }
                "tool_result" => {
                    let id = required_string(&mut block, "tool_use_id")?;
                    let content = block.take("content").unwrap_or_else(|| json!(""));
                    block.skip(&["is_error"]);
                    let id_name = self.next_message() + ".tool_call_id";
                    self.names.add(id_name, block.name("tool_use_id"));
                    self.push(
                        &path,
                        json!({ "role": "tool", "tool_call_id": id, "content": content }),
                    );
                }
                "thinking" => {
                    reasoning += &required_string(&mut block, "thinking")?;
                    block.skip(&["signature"]);
                }
                _ => block.skip(&["data"]),
            }
            block.end(&mut self.unknown);
        }
        if texts.is_empty() && calls.is_empty() && reasoning.is_empty() {
            return Ok(());
        }
        let mut message = json!({ "role": role, "content": texts.join("\n") });
        if !calls.is_empty() {
            let name = self.next_message();
            for (index, (path, _)) in calls.iter().enumerate() {
                let call = format!("{name}.tool_calls[{index}]");
                let arguments = format!("{call}.function.arguments");
                self.names.add(arguments, format!("{path}.input"));
                self.names.add(format!("{call}.function"), path.as_str());
                self.names.add(call, path.as_str());
            }
            message["tool_calls"] = calls.into_iter().map(|(_, call)| call).collect();
        }
        if !reasoning.is_empty() {
            message["reasoning_content"] = reasoning.into();
        }
        self.push(&path, message);
        Ok(())
    }

    fn tool_choice(&mut self, mut choice: Fields) -> Result<()> {
        let word = match choice.string("type")?.as_deref() {
            Some("auto") => json!("auto"),
            Some("none") => json!("none"),
            Some("any") => json!("required"),
            Some("tool") => {
                let name = choice.required("name")?;
                json!({ "type": "function", "function": { "name": name } })
            }
            _ => {
                let message = "tool_choice.type must be auto, any, tool or none";
                return Err(ApiError::invalid("tool_choice.type", message));
            }
        };
        self.fields.insert("tool_choice".into(), word);
        let single = choice.boolean("disable_parallel_tool_use")?;
        self.fields
            .insert("parallel_tool_calls".into(), (!single).into());
        choice.end(&mut self.unknown);
        Ok(())
    }
}

fn required_string(fields: &mut Fields, name: &str) -> Result<String> {
    match fields.required(name)? {
        Value::String(text) => Ok(text),
        other => Err(wrong_type(fields.name(name), "a string", &other)),
    }
}

/// A block of an answer that is being streamed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Block {
    Thinking,
    Text,
}

/// Writes one answer.
pub struct Message {
    app: Arc<App>,
    id: String,
    prompt_tokens: usize,
    /// Blocks that have begun.
    blocks: usize,
    open: Option<Block>,
    end: Option<(FinishReason, Option<Stop>, bool)>,
}

impl Message {
    pub fn new(app: &Arc<App>, prompt_tokens: usize) -> Self {
        Self {
            app: Arc::clone(app),
            id: app.next_id("msg_"),
            prompt_tokens,
            blocks: 0,
            open: None,
            end: None,
        }
    }

    fn envelope(&self, content: Vec<Value>, usage: Value) -> Value {
        let (reason, sequence) = self.stop();
        json!({
            "id": self.id,
            "type": "message",
            "role": "assistant",
            "model": self.app.model.id(),
            "content": content,
            "stop_reason": reason,
            "stop_sequence": sequence,
            "usage": usage,
        })
    }

    fn stop(&self) -> (Value, Value) {
        let Some((reason, stop, has_called)) = &self.end else {
            return (Value::Null, Value::Null);
        };
        match (reason, stop) {
            (FinishReason::Length, _) => (json!("max_tokens"), Value::Null),
            (FinishReason::ContextFull, _) => (json!("model_context_window_exceeded"), Value::Null),
            _ if *has_called => (json!("tool_use"), Value::Null),
            (_, Some(Stop::Text(text))) => (json!("stop_sequence"), json!(text)),
            _ => (json!("end_turn"), Value::Null),
        }
    }

    fn keep_end(&mut self, part: &Part) {
        if let Some((reason, stop)) = &part.end {
            self.end = Some((*reason, stop.clone(), part.has_called));
        }
    }

    fn tool_use(&self, name: &str, input: Value) -> Value {
        json!({ "type": "tool_use", "id": self.app.next_id("toolu_"), "name": name, "input": input })
    }

    /// Makes sure that a block of this kind is open, and sends a part of it.
    fn text(&mut self, block: Block, text: &str, out: &mut Vec<u8>) {
        if text.is_empty() {
            return;
        }
        if self.open != Some(block) {
            self.close(out);
            self.begin(
                match block {
                    Block::Thinking => {
                        json!({ "type": "thinking", "thinking": "", "signature": "" })
                    }
                    Block::Text => json!({ "type": "text", "text": "" }),
                },
                out,
            );
            self.open = Some(block);
        }
        let delta = match block {
            Block::Thinking => json!({ "type": "thinking_delta", "thinking": text }),
            Block::Text => json!({ "type": "text_delta", "text": text }),
        };
        self.delta(delta, out);
    }

    fn begin(&mut self, block: Value, out: &mut Vec<u8>) {
        let start = json!({ "index": self.blocks, "content_block": block });
        write_named("content_block_start", start, out);
        self.blocks += 1;
    }

    fn delta(&self, delta: Value, out: &mut Vec<u8>) {
        let delta = json!({ "index": self.blocks - 1, "delta": delta });
        write_named("content_block_delta", delta, out);
    }

    fn close(&mut self, out: &mut Vec<u8>) {
        if self.open.take().is_some() {
            self.stop_block(out);
        }
    }

    fn stop_block(&self, out: &mut Vec<u8>) {
        write_named(
            "content_block_stop",
            json!({ "index": self.blocks - 1 }),
            out,
        );
    }
}

impl Wire for Message {
    fn whole(&mut self, parts: &[Part], usage: &Usage, _: u32) -> Vec<u8> {
        let mut content = Vec::new();
        for part in parts {
            self.keep_end(part);
            if !part.reasoning.is_empty() {
                let thinking = part.reasoning.as_str();
                content.push(json!({ "type": "thinking", "thinking": thinking, "signature": "" }));
            }
            if !part.text.is_empty() {
                content.push(json!({ "type": "text", "text": part.text }));
            }
            for call in &part.calls {
                let input: Value = serde_json::from_str(&call.arguments).unwrap_or_default();
                content.push(self.tool_use(&call.name, input));
            }
        }
        let message = self.envelope(content, usage_json(usage));
        message.to_string().into_bytes()
    }

    fn open(&mut self, _: usize, out: &mut Vec<u8>) {
        let usage = json!({ "input_tokens": self.prompt_tokens, "output_tokens": 0 });
        let message = self.envelope(Vec::new(), usage);
        write_named("message_start", json!({ "message": message }), out);
    }

    fn part(&mut self, _: usize, part: &Part, out: &mut Vec<u8>) {
        self.keep_end(part);
        self.text(Block::Thinking, &part.reasoning, out);
        self.text(Block::Text, &part.text, out);
        for call in &part.calls {
            self.close(out);
            let block = self.tool_use(&call.name, json!({}));
            self.begin(block, out);
            let json = call.arguments.as_str();
            self.delta(
                json!({ "type": "input_json_delta", "partial_json": json }),
                out,
            );
            self.stop_block(out);
        }
    }

    fn end(&mut self, usage: &Usage, _: u32, out: &mut Vec<u8>) {
        self.close(out);
        let (reason, sequence) = self.stop();
        let delta = json!({ "stop_reason": reason, "stop_sequence": sequence });
        let end = json!({ "delta": delta, "usage": usage_json(usage) });
        write_named("message_delta", end, out);
        write_named("message_stop", json!({}), out);
    }

    fn error(&mut self, error: &ApiError, out: &mut Vec<u8>) {
        write_named("error", error.to_anthropic(), out);
    }
}

/// Tokens of the prompt that were cached are not among the input tokens.
fn usage_json(usage: &Usage) -> Value {
    json!({
        "input_tokens": usage.prompt_tokens - usage.cached_tokens,
        "cache_read_input_tokens": usage.cached_tokens,
        "cache_creation_input_tokens": 0,
        "output_tokens": usage.completion_tokens,
    })
}
