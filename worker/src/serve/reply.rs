//! Answers as OpenAI's clients expect them: whole, and as chunks of a stream.

use std::sync::Arc;

use serde_json::{Map, Value, json};
use worker_cuda::Token;
use worker_cuda::generate::FinishReason;
use worker_cuda::generate::service::{PromptLogprob, Stop, TokenEvent, Usage};
use worker_cuda::text::Detokenizer;

use super::app::{App, unix_seconds};
use super::completions::ECHO;
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
    /// What `logprobs` has of the prompt.
    prompt_columns: Columns,
    /// Characters of each choice so far: where the next token begins.
    offsets: Vec<usize>,
    /// Calls of each choice so far.
    call_counts: Vec<usize>,
    /// A chunk up to its choice, which is the same in all of them; empty before the first.
    chunk_head: Vec<u8>,
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
            prompt_columns: Columns::default(),
            offsets: vec![0; parameters.request.choices as usize],
            call_counts: vec![0; parameters.request.choices as usize],
            chunk_head: Vec::new(),
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

    /// The same up to the first choice.
    fn begin(&self, object: &str) -> Vec<u8> {
        let mut text = self.envelope(object, Vec::new()).to_string().into_bytes();
        text.truncate(text.len() - "]}".len());
        text
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

    /// What is the same in whole choices and in chunks, but for the log probabilities.
    fn choice(&self, index: usize, part: &Part) -> Value {
        let mut choice = json!({
            "index": index,
            "logprobs": null,
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
            Api::Text
                if self.echo.is_empty()
                    && !self.return_token_ids
                    && self.prompt_columns.texts.is_empty() =>
            {
                return None;
            }
            Api::Text => {
                let columns = &self.prompt_columns;
                let logprobs = self.logprobs.filter(|_| !columns.texts.is_empty());
                let logprobs = logprobs.map(|top| json!(columns.form(top)));
                self.chunk(json!({
                    "index": index, "text": self.echo, "logprobs": logprobs, "finish_reason": null,
                }))
            }
        };
        if self.return_token_ids {
            match self.api {
                Api::Chat => chunk["prompt_token_ids"] = json!(self.prompt),
                Api::Text => chunk["choices"][0]["prompt_token_ids"] = json!(self.prompt),
            }
        }
        Some(chunk)
    }

    /// The choice of a chunk with new text, and with the reason if the choice has ended.
    fn new_part(&mut self, index: usize, part: &Part) -> Value {
        let mut choice = self.choice(index, part);
        match self.api {
            Api::Chat if part.is_empty() => choice["delta"] = json!({}),
            Api::Chat => choice["delta"] = self.delta(index, part),
            Api::Text => choice["text"] = json!(part.text),
        }
        choice
    }

    /// The last chunk, if it was asked for.
    fn usage(&self, usage: &Usage, reasoning_tokens: u32) -> Option<Value> {
        self.include_usage.then(|| {
            let mut chunk = self.envelope(self.chunk_object(), Vec::new());
            chunk["usage"] = usage_json(usage, reasoning_tokens);
            chunk
        })
    }

    /// Writes a choice with its log probabilities: token by token, because values of all of them would take fifty times
    /// the memory of their text. `before` is that of the prompt in a whole text completion.
    fn write_choice(&mut self, choice: &Value, part: &Part, before: Columns, out: &mut Vec<u8>) {
        let Some(top) = self.logprobs else {
            return write_json(choice, out);
        };
        let index = choice["index"].as_u64().unwrap_or_default() as usize;
        let mut logprobs = Vec::new();
        self.write_logprobs(index, &part.tokens, top, before, &mut logprobs);
        let mut separator = b'{';
        for (name, value) in choice.as_object().into_iter().flatten() {
            out.push(separator);
            separator = b',';
            write_json(name, out);
            out.push(b':');
            match name.as_str() {
                "logprobs" => out.append(&mut logprobs),
                _ => write_json(value, out),
            }
        }
        out.push(b'}');
    }

    fn write_logprobs(
        &mut self,
        index: usize,
        tokens: &[TokenEvent],
        top: u32,
        before: Columns,
        out: &mut Vec<u8>,
    ) {
        match self.api {
            Api::Chat => {
                out.extend(b"{\"content\":[");
                for (at, token) in tokens.iter().enumerate() {
                    if at > 0 {
                        out.push(b',');
                    }
                    write_json(&self.chat_token(token), out);
                }
                out.extend(b"],\"refusal\":null}");
            }
            Api::Text => write_json(&self.columns(index, tokens, before).form(top), out),
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

    /// What `logprobs` has of tokens of a choice, after `columns`.
    fn columns(&mut self, index: usize, tokens: &[TokenEvent], mut columns: Columns) -> Columns {
        for token in tokens {
            let own = self.text(token.token);
            columns.offsets.push(self.offsets[index]);
            self.offsets[index] += own.chars().count();
            columns.texts.push(own);
            columns.logprobs.push(Some(finite(token.logprob)));
            columns.tops.push(Some(self.alternatives(&token.top)));
        }
        columns
    }

    /// The same of the prompt, whose first token has no probability. Offsets are those in the text that is repeated.
    fn columns_of_prompt(&self, scores: &[PromptLogprob]) -> Columns {
        let tokenizer = self.app.service.tokenizer();
        let mut detokenizer =
            tokenizer.map(|tokenizer| Detokenizer::new(Arc::clone(tokenizer), ECHO));
        let (mut text, mut offset) = (String::new(), 0);
        let mut columns = Columns::default();
        for (at, &token) in self.prompt.iter().enumerate() {
            columns.offsets.push(offset);
            if let Some(detokenizer) = &mut detokenizer {
                text.clear();
                // A prompt has only tokens of the vocabulary.
                let _ = detokenizer.push(token, &mut text);
                offset += text.chars().count();
            }
            columns.texts.push(self.text(token));
            let score = at.checked_sub(1).and_then(|before| scores.get(before));
            columns
                .logprobs
                .push(score.map(|score| finite(score.logprob)));
            columns
                .tops
                .push(score.map(|score| self.alternatives(&score.top)));
        }
        columns
    }

    /// Of tokens with the same text, which are parts of characters, the most probable one.
    fn alternatives(&self, top: &[(Token, f32)]) -> Map<String, Value> {
        let mut entries = Map::new();
        for &(id, logprob) in top {
            let entry = entries.entry(self.text(id));
            entry.or_insert_with(|| finite(logprob).into());
        }
        entries
    }

    fn text(&self, id: Token) -> String {
        String::from_utf8_lossy(&self.bytes(id)).into_owned()
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
    fn whole(&mut self, parts: &[Part], usage: &Usage, reasoning_tokens: u32) -> Vec<u8> {
        let object = match self.api {
            Api::Chat => "chat.completion",
            Api::Text => "text_completion",
        };
        let mut out = self.begin(object);
        for (index, part) in parts.iter().enumerate() {
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
            if index > 0 {
                out.push(b',');
            }
            self.write_choice(&choice, part, self.prompt_columns.clone(), &mut out);
        }
        out.extend(b"],\"usage\":");
        write_json(&usage_json(usage, reasoning_tokens), &mut out);
        if self.return_token_ids && self.api == Api::Chat {
            out.extend(b",\"prompt_token_ids\":");
            write_json(&self.prompt, &mut out);
        }
        out.push(b'}');
        out
    }

    fn set_prompt_logprobs(&mut self, scores: Vec<PromptLogprob>) {
        self.prompt_columns = self.columns_of_prompt(&scores);
    }

    fn open(&mut self, index: usize, out: &mut Vec<u8>) {
        if let Some(chunk) = self.opening(index) {
            write(&chunk, out);
        }
    }

    fn part(&mut self, index: usize, part: &Part, out: &mut Vec<u8>) {
        if self.chunk_head.is_empty() {
            self.chunk_head = [b"data: ".to_vec(), self.begin(self.chunk_object())].concat();
        }
        let choice = self.new_part(index, part);
        out.extend_from_slice(&self.chunk_head);
        self.write_choice(&choice, part, Columns::default(), out);
        out.extend_from_slice(match self.include_usage {
            true => b"],\"usage\":null}\n\n",
            false => b"]}\n\n",
        });
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

/// `logprobs` of a text completion.
#[derive(Clone, Default)]
struct Columns {
    texts: Vec<String>,
    logprobs: Vec<Option<f64>>,
    tops: Vec<Option<Map<String, Value>>>,
    offsets: Vec<usize>,
}

/// Their form in an answer.
#[derive(serde::Serialize)]
struct ColumnsForm<'a> {
    tokens: &'a [String],
    token_logprobs: &'a [Option<f64>],
    top_logprobs: Option<&'a [Option<Map<String, Value>>]>,
    text_offset: &'a [usize],
}

impl Columns {
    fn form(&self, top: u32) -> ColumnsForm<'_> {
        ColumnsForm {
            tokens: &self.texts,
            token_logprobs: &self.logprobs,
            top_logprobs: (top > 0).then_some(&self.tops),
            text_offset: &self.offsets,
        }
    }
}

fn write_json(value: &(impl serde::Serialize + ?Sized), out: &mut Vec<u8>) {
    // Memory takes all bytes, and what is written here is valid JSON.
    let _ = serde_json::to_writer(out, value);
}

/// JSON has no infinities.
fn finite(logprob: f32) -> f64 {
    if logprob.is_finite() {
        f64::from(logprob)
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
