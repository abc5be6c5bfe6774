//! Answers as OpenAI's clients expect them: whole, and as chunks of a stream.

use std::sync::Arc;

use serde_json::{Map, Value, json};
use worker_cuda::Token;
use worker_cuda::generate::FinishReason;
use worker_cuda::generate::service::{Stop, TokenEvent, Usage};

use super::app::{App, unix_seconds};
use super::error::ApiError;
use super::generation::Part;
use super::parameters::Parameters;
use super::split::{Call, Format};
use super::sse::{Wire, write};

/// Which of the two kinds of completions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Api {
    Chat,
    Text,
}

/// Writes one answer.
pub struct Reply {
    api: Api,
    app: Arc<App>,
    id: String,
    created: u64,
    logprobs: Option<u32>,
    return_token_ids: bool,
    pub include_usage: bool,
    /// Tokens of the prompt.
    prompt: Vec<Token>,
    /// Text in front of the answer of a text completion.
    echo: String,
    /// Characters of each choice so far: where the next token begins.
    offsets: Vec<usize>,
    /// Calls of each choice so far.
    call_counts: Vec<usize>,
}

impl Reply {
    pub fn new(app: &Arc<App>, api: Api, parameters: &Parameters) -> Self {
        let prefix = match api {
            Api::Chat => "chatcmpl-",
            Api::Text => "cmpl-",
        };
        Self {
            api,
            app: Arc::clone(app),
            id: app.next_id(prefix),
            created: unix_seconds(),
            logprobs: parameters.logprobs,
            return_token_ids: parameters.return_token_ids,
            include_usage: parameters.include_usage,
            prompt: Vec::new(),
            echo: String::new(),
            offsets: vec![0; parameters.request.choices as usize],
            call_counts: vec![0; parameters.request.choices as usize],
        }
    }

    /// The prompt of the request; text completions may repeat its text.
    pub fn set_prompt(&mut self, prompt: Vec<Token>, echo: Option<String>) {
        self.prompt = prompt;
        self.echo = echo.unwrap_or_default();
        self.offsets.fill(self.echo.chars().count());
    }

    pub fn keeps_tokens(&self) -> bool {
        self.logprobs.is_some() || self.return_token_ids
    }

    fn envelope(&self, object: &str, choices: Vec<Value>) -> Value {
        json!({
            "id": self.id,
            "object": object,
            "created": self.created,
            "model": self.app.model.id(),
            "system_fingerprint": self.app.model.fingerprint,
            "choices": choices,
        })
    }

    fn message(&mut self, index: usize, part: &Part) -> Value {
        let mut message = json!({ "role": "assistant", "content": part.text, "refusal": null });
        if !part.reasoning.is_empty() {
            message["reasoning_content"] = json!(part.reasoning);
        }
        if !part.calls.is_empty() {
            message["tool_calls"] = self.calls(index, &part.calls, false);
            if part.text.is_empty() {
                message["content"] = Value::Null;
            }
        }
        message
    }

    fn delta(&mut self, index: usize, part: &Part) -> Value {
        let mut delta = json!({});
        if !part.reasoning.is_empty() {
            delta["reasoning_content"] = json!(part.reasoning);
        }
        if !part.calls.is_empty() {
            delta["tool_calls"] = self.calls(index, &part.calls, true);
        }
        if !part.text.is_empty() || delta == json!({}) {
            delta["content"] = json!(part.text);
        }
        delta
    }

    /// Calls with ids of their own; in chunks they are numbered too.
    fn calls(&mut self, index: usize, calls: &[Call], numbered: bool) -> Value {
        let list = calls.iter().map(|call| {
            let id = match self.app.format {
                // Its template takes ids of nine characters only.
                Format::Mistral => self.app.next_id("")[..9].to_owned(),
                _ => self.app.next_id("call_"),
            };
            let mut value = json!({
                "id": id,
                "type": "function",
                "function": { "name": call.name, "arguments": call.arguments },
            });
            if numbered {
                value["index"] = self.call_counts[index].into();
            }
            self.call_counts[index] += 1;
            value
        });
        list.collect()
    }

    /// What is the same in whole choices and in chunks.
    fn choice(&mut self, index: usize, part: &Part) -> Value {
        let mut choice = json!({
            "index": index,
            "logprobs": self.logprobs.map(|top| self.logprobs(index, &part.tokens, top)),
            "finish_reason": part.end.as_ref().map(|(reason, _)| finish_reason(*reason, part.has_called)),
        });
        if let Some((_, Some(stop))) = &part.end {
            choice["stop_reason"] = match stop {
                Stop::Text(text) => json!(text),
                Stop::Token(token) => json!(token),
            };
        }
        if self.return_token_ids {
            let ids: Vec<Token> = part.tokens.iter().map(|token| token.token).collect();
            choice["token_ids"] = json!(ids);
        }
        choice
    }

    fn chunk(&self, choice: Value) -> Value {
        let mut chunk = self.envelope(self.chunk_object(), vec![choice]);
        if self.include_usage {
            chunk["usage"] = Value::Null;
        }
        chunk
    }

    fn chunk_object(&self) -> &'static str {
        match self.api {
            Api::Chat => "chat.completion.chunk",
            Api::Text => "text_completion",
        }
    }

    /// The first chunk of a choice: the role, or the prompt if it is repeated.
    fn opening(&mut self, index: usize) -> Option<Value> {
        let mut chunk = match self.api {
            Api::Chat => {
                let delta = json!({ "role": "assistant", "content": "" });
                self.chunk(json!({
                    "index": index, "delta": delta, "logprobs": null, "finish_reason": null,
                }))
            }
            Api::Text if self.echo.is_empty() && !self.return_token_ids => return None,
            Api::Text => self.chunk(json!({
                "index": index, "text": self.echo, "logprobs": null, "finish_reason": null,
            })),
        };
        if self.return_token_ids {
            match self.api {
                Api::Chat => chunk["prompt_token_ids"] = json!(self.prompt),
                Api::Text => chunk["choices"][0]["prompt_token_ids"] = json!(self.prompt),
            }
        }
        Some(chunk)
    }

    /// A chunk with new text, and with the reason if the choice has ended.
    fn new_part(&mut self, index: usize, part: &Part) -> Value {
        let mut choice = self.choice(index, part);
        match self.api {
            Api::Chat if part.is_empty() => choice["delta"] = json!({}),
            Api::Chat => choice["delta"] = self.delta(index, part),
            Api::Text => choice["text"] = json!(part.text),
        }
        self.chunk(choice)
    }

    /// The last chunk, if it was asked for.
    fn usage(&self, usage: &Usage, reasoning_tokens: u32) -> Option<Value> {
        self.include_usage.then(|| {
            let mut chunk = self.envelope(self.chunk_object(), Vec::new());
            chunk["usage"] = usage_json(usage, reasoning_tokens);
            chunk
        })
    }

    fn logprobs(&mut self, index: usize, tokens: &[TokenEvent], top: u32) -> Value {
        match self.api {
            Api::Chat => {
                let content: Vec<Value> =
                    tokens.iter().map(|token| self.chat_token(token)).collect();
                json!({ "content": content, "refusal": null })
            }
            Api::Text => self.text_logprobs(index, tokens, top),
        }
    }

    fn chat_token(&self, token: &TokenEvent) -> Value {
        let entry = |id, logprob| {
            let bytes = self.bytes(id);
            json!({
                "token": String::from_utf8_lossy(&bytes),
                "logprob": finite(logprob),
                "bytes": bytes,
            })
        };
        let mut value = entry(token.token, token.logprob);
        let top: Vec<Value> = token
            .top
            .iter()
            .map(|(id, logprob)| entry(*id, *logprob))
            .collect();
        value["top_logprobs"] = top.into();
        value
    }

    fn text_logprobs(&mut self, index: usize, tokens: &[TokenEvent], top: u32) -> Value {
        let text = |id| String::from_utf8_lossy(&self.bytes(id)).into_owned();
        let mut offset = self.offsets[index];
        let (mut texts, mut logprobs) = (Vec::new(), Vec::new());
        let (mut tops, mut offsets) = (Vec::new(), Vec::new());
        for token in tokens {
            let own = text(token.token);
            offsets.push(offset);
            offset += own.chars().count();
            texts.push(own);
            logprobs.push(finite(token.logprob));
            let list = token.top.iter();
            tops.push(
                list.map(|(id, logprob)| (text(*id), finite(*logprob).into()))
                    .collect(),
            );
        }
        self.offsets[index] = offset;
        let tops: Vec<Map<String, Value>> = tops;
        json!({
            "tokens": texts,
            "token_logprobs": logprobs,
            "top_logprobs": (top > 0).then_some(tops),
            "text_offset": offsets,
        })
    }

    /// The bytes of a token; its number where there is no tokenizer.
    fn bytes(&self, id: Token) -> Vec<u8> {
        match self.app.service.tokenizer() {
            Some(tokenizer) => tokenizer.token_bytes(id).unwrap_or_default().to_vec(),
            None => format!("token_id:{id}").into_bytes(),
        }
    }
}

impl Wire for Reply {
    fn whole(&mut self, parts: &[Part], usage: &Usage, reasoning_tokens: u32) -> Value {
        let choices = parts.iter().enumerate().map(|(index, part)| {
            let mut choice = self.choice(index, part);
            match self.api {
                Api::Chat => {
                    choice["message"] = self.message(index, part);
                }
                Api::Text => choice["text"] = format!("{}{}", self.echo, part.text).into(),
            }
            if self.return_token_ids && self.api == Api::Text {
                choice["prompt_token_ids"] = json!(self.prompt);
            }
            choice
        });
        let choices = choices.collect();
        let object = match self.api {
            Api::Chat => "chat.completion",
            Api::Text => "text_completion",
        };
        let mut whole = self.envelope(object, choices);
        whole["usage"] = usage_json(usage, reasoning_tokens);
        if self.return_token_ids && self.api == Api::Chat {
            whole["prompt_token_ids"] = json!(self.prompt);
        }
        whole
    }

    fn open(&mut self, index: usize, out: &mut Vec<u8>) {
        if let Some(chunk) = self.opening(index) {
            write(&chunk, out);
        }
    }

    fn part(&mut self, index: usize, part: &Part, out: &mut Vec<u8>) {
        let chunk = self.new_part(index, part);
        write(&chunk, out);
    }

    fn end(&mut self, usage: &Usage, reasoning_tokens: u32, out: &mut Vec<u8>) {
        if let Some(chunk) = self.usage(usage, reasoning_tokens) {
            write(&chunk, out);
        }
        out.extend(b"data: [DONE]\n\n");
    }

    fn error(&mut self, error: &ApiError, out: &mut Vec<u8>) {
        write(&error.to_json(), out);
    }
}

/// JSON has no infinities.
fn finite(logprob: f32) -> f32 {
    if logprob.is_finite() {
        logprob
    } else {
        -9999.0
    }
}

fn finish_reason(reason: FinishReason, has_called: bool) -> &'static str {
    match reason {
        FinishReason::Eos | FinishReason::Stop if has_called => "tool_calls",
        FinishReason::Length | FinishReason::ContextFull => "length",
        _ => "stop",
    }
}

fn usage_json(usage: &Usage, reasoning_tokens: u32) -> Value {
    json!({
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": { "cached_tokens": usage.cached_tokens },
        "completion_tokens_details": {
            "reasoning_tokens": reasoning_tokens,
            "accepted_prediction_tokens": usage.accepted_draft_tokens,
            "rejected_prediction_tokens": usage.draft_tokens - usage.accepted_draft_tokens,
        },
    })
}
