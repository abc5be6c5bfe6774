//! `/v1/responses` without state: OpenAI's newer API, put on top of chats.

use std::sync::Arc;

use axum::response::Response;
use serde_json::{Value, json};
use worker_cuda::generate::FinishReason;
use worker_cuda::generate::service::Usage;

use super::app::{App, unix_seconds};
use super::chat::{Chat, ToolShape};
use super::completions::{Conversation, Shape};
use super::error::ApiError;
use super::fields::{Fields, wrong_type};
use super::generation::Part;
use super::input::Input;
use super::sse::{Wire, write_named};

type Result<T> = std::result::Result<T, ApiError>;

/// `POST /v1/responses`.
pub async fn responses(input: Input) -> Result<Response> {
    let conversation = as_chat(input.fields)?;
    conversation
        .answer(&input.app, &input.visitor, Shape::Response)
        .await
}

/// Fields that chats have under the same name.
const SHARED: [&str; 12] = [
    "model",
    "temperature",
    "top_p",
    "stream",
    "seed",
    "top_k",
    "min_p",
    "parallel_tool_calls",
    "priority",
    "cache_salt",
    "deadline_ms",
    "chat_template_kwargs",
];

/// Fields that change nothing here.
pub const HARMLESS: [&str; 11] = [
    "client_metadata",
    "include",
    "max_tool_calls",
    "metadata",
    "prompt_cache_key",
    "prompt_cache_options",
    "prompt_cache_retention",
    "safety_identifier",
    "service_tier",
    "store",
    "user",
];

/// The same request as one for a chat.
fn as_chat(mut fields: Fields) -> Result<Conversation> {
    let mut chat = Chat::new(&[
        ("max_completion_tokens", "max_output_tokens"),
        ("messages", "input"),
        ("response_format", "text.format"),
        ("reasoning_effort", "reasoning.effort"),
    ]);
    chat.take(&mut fields, &SHARED);
    fields.skip(&HARMLESS);
    fields.refuse(&[
        "background",
        "conversation",
        "previous_response_id",
        "prompt",
    ])?;
    fields.only("truncation", &[json!("disabled")])?;
    fields.only("top_logprobs", &[json!(0)])?;
    if let Some(mut options) = fields.take_object("stream_options")? {
        options.skip(&["include_obfuscation"]);
        options.end(&mut chat.unknown);
    }
    if let Some(count) = fields.take("max_output_tokens") {
        chat.fields.insert("max_completion_tokens".into(), count);
    }
    if let Some(text) = fields.string("instructions")? {
        let message = json!({ "role": "system", "content": text });
        chat.push("instructions", message);
    }
    match fields.required("input")? {
        Value::String(text) => chat.push("input", json!({ "role": "user", "content": text })),
        Value::Array(items) => {
            for (index, value) in items.into_iter().enumerate() {
                chat.item(format!("input[{index}]"), value)?;
            }
        }
        other => return Err(wrong_type("input".into(), "a string or a list", &other)),
    }
    if let Some(tools) = fields.take("tools") {
        chat.tools(tools, &TOOLS)?;
        if let Some(choice) = fields.take("tool_choice") {
            if choice.get("function").is_none() {
                chat.names.add("tool_choice.function", "tool_choice");
            }
            chat.fields.insert("tool_choice".into(), choice);
        }
    }
    fields.only("tool_choice", &[json!("none"), json!("auto")])?;
    if let Some(mut text) = fields.take_object("text")? {
        text.skip(&["verbosity"]);
        if let Some(format) = text.take("format") {
            chat.fields.insert("response_format".into(), format);
        }
        text.end(&mut chat.unknown);
    }
    if let Some(mut reasoning) = fields.take_object("reasoning")? {
        reasoning.skip(&["summary", "generate_summary"]);
        if let Some(effort) = reasoning.take("effort") {
            chat.fields.insert("reasoning_effort".into(), effort);
        }
        reasoning.end(&mut chat.unknown);
    }
    fields.end(&mut chat.unknown);
    Ok(chat.into_conversation())
}

const TOOLS: ToolShape = ToolShape {
    is_function: |kind| kind == Some("function"),
    parameters: "parameters",
    ignored: &["strict"],
};

impl Chat {
    /// Appends what one item says. Ids and states of items are not needed.
    fn item(&mut self, path: String, value: Value) -> Result<()> {
        let mut item = Fields::object(path.clone(), value)?;
        let kind = item.string("type")?;
        item.skip(&["id", "status"]);
        match kind.as_deref() {
            None | Some("message") => {
                let role = item.required("role")?;
                let content = content(&mut item)?;
                item.skip(&["phase"]);
                self.push(&path, json!({ "role": role, "content": content }));
            }
            Some("function_call") => {
                let call = json!({
                    "id": item.required("call_id")?,
                    "type": "function",
                    "function": {
                        "name": item.required("name")?,
                        "arguments": item.required("arguments")?,
                    },
                });
                self.call(&path, call);
            }
            Some("function_call_output") => {
                let id = item.required("call_id")?;
                let name = item.name("output");
                let output = match item.required("output")? {
                    Value::String(text) => text.into(),
                    list => parts(&name, list)?,
                };
                let message = self.next_message();
                let id_name = format!("{message}.tool_call_id");
                self.names.add(id_name, item.name("call_id"));
                self.names.add(format!("{message}.content"), name);
                self.push(
                    &path,
                    json!({ "role": "tool", "tool_call_id": id, "content": output }),
                );
            }
            // Reasoning belongs to the answer that it led to.
            Some("reasoning") => item.skip(&["summary", "content", "encrypted_content"]),
            Some(other) => {
                let message =
                    format!("items of the type '{other}' are not supported by this server");
                return Err(ApiError::unsupported(item.name("type"), message));
            }
        }
        item.end(&mut self.unknown);
        Ok(())
    }

    /// Calls that follow each other, or a text, are one message.
    fn call(&mut self, path: &str, call: Value) {
        let is_assistant = |last: &Value| last["role"] == "assistant";
        if !self.messages.last().is_some_and(is_assistant) {
            self.push(path, json!({ "role": "assistant", "content": "" }));
        }
        let at = self.messages.len() - 1;
        let calls = &mut self.messages[at]["tool_calls"];
        if calls.is_null() {
            *calls = json!([]);
        }
        let Some(calls) = calls.as_array_mut() else {
            return;
        };
        let name = format!("messages[{at}].tool_calls[{}]", calls.len());
        calls.push(call);
        self.names
            .add(format!("{name}.id"), format!("{path}.call_id"));
        self.names.add(format!("{name}.function"), path);
        self.names.add(name, path);
    }
}

fn content(item: &mut Fields) -> Result<Value> {
    let name = item.name("content");
    match item.required("content")? {
        Value::Array(list) => parts(&name, Value::Array(list)),
        other => Ok(other),
    }
}

/// Parts of text under the type that chats have.
fn parts(name: &str, list: Value) -> Result<Value> {
    let Value::Array(list) = list else {
        return Err(wrong_type(name.to_owned(), "a string or a list", &list));
    };
    let parts = list.into_iter().map(|mut part| {
        if let Some("input_text" | "output_text") = part["type"].as_str() {
            part["type"] = "text".into();
        }
        part
    });
    Ok(parts.collect())
}

/// What an item of an answer is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Reasoning,
    Text,
}

impl Kind {
    /// Begins the names of its events.
    fn name(self) -> &'static str {
        match self {
            Self::Reasoning => "reasoning_text",
            Self::Text => "output_text",
        }
    }

    fn part(self, text: &str) -> Value {
        match self {
            Self::Reasoning => json!({ "type": "reasoning_text", "text": text }),
            Self::Text => json!({
                "type": "output_text", "text": text, "annotations": [], "logprobs": [],
            }),
        }
    }
}

/// Writes one answer.
pub struct Answer {
    app: Arc<App>,
    id: String,
    created: u64,
    /// Events so far.
    sequence: u64,
    /// Items that have ended.
    output: Vec<Value>,
    /// The item that is being written: its id and text.
    open: Option<(Kind, String, String)>,
    end: Option<FinishReason>,
}

impl Answer {
    pub fn new(app: &Arc<App>) -> Self {
        Self {
            app: Arc::clone(app),
            id: app.next_id("resp_"),
            created: unix_seconds(),
            sequence: 0,
            output: Vec::new(),
            open: None,
            end: None,
        }
    }

    fn status(&self) -> &'static str {
        match self.end {
            Some(FinishReason::Length | FinishReason::ContextFull) => "incomplete",
            _ => "completed",
        }
    }

    fn response(&self, status: &str, usage: Option<(&Usage, u32)>) -> Value {
        let incomplete = (status == "incomplete").then(|| json!({ "reason": "max_output_tokens" }));
        json!({
            "id": self.id,
            "object": "response",
            "created_at": self.created,
            "status": status,
            "model": self.app.model.id(),
            "output": self.output,
            "error": null,
            "incomplete_details": incomplete,
            "instructions": null,
            "metadata": {},
            "parallel_tool_calls": true,
            "previous_response_id": null,
            "store": false,
            "temperature": null,
            "tool_choice": "auto",
            "tools": [],
            "top_p": null,
            "usage": usage.map(|(usage, reasoning_tokens)| json!({
                "input_tokens": usage.prompt_tokens,
                "input_tokens_details": {
                    "cached_tokens": usage.cached_tokens, "cache_write_tokens": 0,
                },
                "output_tokens": usage.completion_tokens,
                "output_tokens_details": { "reasoning_tokens": reasoning_tokens },
                "total_tokens": usage.prompt_tokens + usage.completion_tokens,
            })),
        })
    }

    fn event(&mut self, name: &str, mut value: Value, out: &mut Vec<u8>) {
        value["sequence_number"] = self.sequence.into();
        self.sequence += 1;
        write_named(&format!("response.{name}"), value, out);
    }

    /// An event of the item that is being written, or of its part.
    fn item_event(&mut self, name: &str, id: &str, mut value: Value, out: &mut Vec<u8>) {
        value["item_id"] = id.into();
        value["output_index"] = self.output.len().into();
        value["content_index"] = 0.into();
        self.event(name, value, out);
    }

    fn text(&mut self, kind: Kind, text: &str, out: &mut Vec<u8>) {
        if text.is_empty() {
            return;
        }
        if self.open.as_ref().is_none_or(|(open, ..)| *open != kind) {
            self.close("completed", out);
            let prefix = if kind == Kind::Text { "msg_" } else { "rs_" };
            let id = self.app.next_id(prefix);
            let item = item_json(kind, &id, "in_progress", None);
            let index = self.output.len();
            let added = json!({ "output_index": index, "item": item });
            self.event("output_item.added", added, out);
            self.item_event(
                "content_part.added",
                &id,
                json!({ "part": kind.part("") }),
                out,
            );
            self.open = Some((kind, id, String::new()));
        }
        let Some((_, id, whole)) = &mut self.open else {
            return;
        };
        whole.push_str(text);
        let id = id.clone();
        let mut delta = json!({ "delta": text });
        if kind == Kind::Text {
            delta["logprobs"] = json!([]);
        }
        self.item_event(&format!("{}.delta", kind.name()), &id, delta, out);
    }

    /// Ends the item that is being written.
    fn close(&mut self, status: &str, out: &mut Vec<u8>) {
        let Some((kind, id, text)) = self.open.take() else {
            return;
        };
        let mut done = json!({ "text": text });
        if kind == Kind::Text {
            done["logprobs"] = json!([]);
        }
        self.item_event(&format!("{}.done", kind.name()), &id, done, out);
        let part = json!({ "part": kind.part(&text) });
        self.item_event("content_part.done", &id, part, out);
        self.end_item(item_json(kind, &id, status, Some(&text)), out);
    }

    fn end_item(&mut self, item: Value, out: &mut Vec<u8>) {
        let done = json!({ "output_index": self.output.len(), "item": item });
        self.event("output_item.done", done, out);
        self.output.push(item);
    }
}

fn item_json(kind: Kind, id: &str, status: &str, text: Option<&str>) -> Value {
    let content: Vec<Value> = text.map(|text| kind.part(text)).into_iter().collect();
    match kind {
        Kind::Reasoning => json!({
            "type": "reasoning", "id": id, "status": status, "summary": [], "content": content,
        }),
        Kind::Text => json!({
            "type": "message", "id": id, "status": status, "role": "assistant", "content": content,
        }),
    }
}

impl Wire for Answer {
    fn whole(&mut self, parts: &[Part], usage: &Usage, reasoning_tokens: u32) -> Vec<u8> {
        // The items are those that a stream has.
        parts
            .iter()
            .for_each(|part| self.part(0, part, &mut Vec::new()));
        self.close(self.status(), &mut Vec::new());
        let response = self.response(self.status(), Some((usage, reasoning_tokens)));
        response.to_string().into_bytes()
    }

    fn open(&mut self, _: usize, out: &mut Vec<u8>) {
        for name in ["created", "in_progress"] {
            let response = self.response("in_progress", None);
            self.event(name, json!({ "response": response }), out);
        }
    }

    fn part(&mut self, _: usize, part: &Part, out: &mut Vec<u8>) {
        if let Some((reason, _)) = &part.end {
            self.end = Some(*reason);
        }
        self.text(Kind::Reasoning, &part.reasoning, out);
        self.text(Kind::Text, &part.text, out);
        for call in &part.calls {
            self.close("completed", out);
            let (id, call_id) = (self.app.next_id("fc_"), self.app.next_id("call_"));
            let item = |status: &str, arguments: &str| {
                json!({
                    "type": "function_call", "id": id, "call_id": call_id, "status": status,
                    "name": call.name, "arguments": arguments,
                })
            };
            let index = self.output.len();
            let added = json!({ "output_index": index, "item": item("in_progress", "") });
            self.event("output_item.added", added, out);
            for (name, field) in [("delta", "delta"), ("done", "arguments")] {
                let name = format!("function_call_arguments.{name}");
                let value = json!({
                    "item_id": id, "output_index": index, field: call.arguments,
                });
                self.event(&name, value, out);
            }
            self.end_item(item("completed", &call.arguments), out);
        }
    }

    fn end(&mut self, usage: &Usage, reasoning_tokens: u32, out: &mut Vec<u8>) {
        let status = self.status();
        self.close(status, out);
        let response = self.response(status, Some((usage, reasoning_tokens)));
        self.event(status, json!({ "response": response }), out);
    }

    fn error(&mut self, error: &ApiError, out: &mut Vec<u8>) {
        self.close("incomplete", out);
        let mut response = self.response("failed", None);
        let error = &error.to_json()["error"];
        response["error"] = json!({ "code": error["code"], "message": error["message"] });
        self.event("failed", json!({ "response": response }), out);
    }
}
