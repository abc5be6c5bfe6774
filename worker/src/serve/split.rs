//! Splits what a model writes into reasoning, text and tool calls, as it comes.
//!
//! ```text
//! <think> … </think> Let me see. <tool_call> {"name": …, "arguments": …} </tool_call>
//! └── reasoning ──┘ └── text ──┘ └──────────────────── call ──────────────────────┘
//! ```
//!
//! A call is reported when it is complete. What looks like a call and is none is text. The pieces do not depend
//! on how the text was cut on its way here.

use serde_json::Value;

/// How a model writes tool calls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Format {
    /// `<tool_call>{"name", "arguments"}</tool_call>`: Hermes, Qwen.
    Hermes,
    /// `{"name", "parameters"}` as the whole answer, or after `<|python_tag|>`; several with `;` between them.
    Llama3,
    /// `[TOOL_CALLS]` and a list of `{"name", "arguments"}`, or `name[ARGS]{…}`.
    Mistral,
    /// `{"name", "arguments"}`, or a list of these, as the whole answer.
    #[default]
    Json,
}

impl Format {
    /// The format of a chat template.
    pub fn of_template(source: &str) -> Self {
        let has = |part: &str| source.contains(part);
        match () {
            () if has("<tool_call>") => Self::Hermes,
            () if has("[TOOL_CALLS]") => Self::Mistral,
            () if has("<|python_tag|>") || has("<|eom_id|>") => Self::Llama3,
            () => Self::Json,
        }
    }

    /// What begins calls anywhere in a text.
    pub fn marker(self) -> Option<&'static str> {
        match self {
            Self::Hermes => Some("<tool_call>"),
            Self::Llama3 => Some("<|python_tag|>"),
            Self::Mistral => Some("[TOOL_CALLS]"),
            Self::Json => None,
        }
    }

    /// Whether the marker is a control token, which has no text unless it is asked for.
    pub fn has_control_marker(self) -> bool {
        matches!(self, Self::Llama3 | Self::Mistral)
    }

    /// Whether a text that begins like JSON may be calls without a marker.
    fn is_bare(self) -> bool {
        matches!(self, Self::Llama3 | Self::Json)
    }
}

/// A call of a tool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    pub name: String,
    /// A JSON object.
    pub arguments: String,
}

/// What was recognized.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Piece {
    Reasoning(String),
    Text(String),
    Call(Call),
}

/// Begin and end of reasoning.
const THINKING: [(&str, &str); 3] = [
    ("<think>", "</think>"),
    ("<thinking>", "</thinking>"),
    ("[THINK]", "[/THINK]"),
];

/// Begin and end of the reasoning that answers of a template may begin with.
pub fn thinking(template: &str) -> Option<(&'static str, &'static str)> {
    let mut pairs = THINKING.into_iter();
    pairs.find(|(begin, _)| template.contains(begin))
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Nothing but white space has come.
    Start,
    /// Up to this end.
    Reasoning(&'static str),
    /// The text after the reasoning has not begun.
    Gap,
    Text,
    /// Behind the marker, or in calls without one.
    Calls,
}

/// Splits one answer.
#[derive(Clone, Debug)]
pub struct Splitter {
    format: Option<Format>,
    state: State,
    /// What has come and is not decided.
    held: String,
    /// How far `held` was searched for the end of a value.
    scan: Scan,
    has_calls: bool,
    /// The marker of the calls that are read, with the white space in front of it: text if they are none.
    marker: String,
    /// Whether reasoning with text was reported.
    has_reasoning: bool,
}

impl Splitter {
    /// `format`: how tools are called; None if there are none. `begins_thinking`: the end of the reasoning that
    /// the prompt has begun.
    pub fn new(format: Option<Format>, begins_thinking: Option<&'static str>) -> Self {
        Self {
            format,
            state: begins_thinking.map_or(State::Start, State::Reasoning),
            held: String::new(),
            scan: Scan::default(),
            has_calls: false,
            marker: String::new(),
            has_reasoning: false,
        }
    }

    /// Whether the answer is reasoning at this point.
    pub fn is_reasoning(&self) -> bool {
        matches!(self.state, State::Reasoning(_))
    }

    /// Whether a call was found.
    pub fn has_calls(&self) -> bool {
        self.has_calls
    }

    /// Takes more of the answer.
    pub fn push(&mut self, text: &str, out: &mut Vec<Piece>) {
        self.held += text;
        while self.advance(false, out) {}
    }

    /// The answer has ended.
    pub fn finish(&mut self, out: &mut Vec<Piece>) {
        while self.advance(true, out) {}
        let rest = std::mem::take(&mut self.held);
        match self.state {
            State::Reasoning(_) => emit(out, Piece::Reasoning(rest.trim_end().to_owned())),
            State::Calls => {
                let marker = std::mem::take(&mut self.marker);
                emit(out, Piece::Text(marker + &rest));
            }
            _ if self.has_calls && rest.trim().is_empty() => {}
            _ => emit(out, Piece::Text(rest)),
        }
    }

    /// Decides about the beginning of what is held. False if more is needed, or nothing is left.
    fn advance(&mut self, is_end: bool, out: &mut Vec<Piece>) -> bool {
        match self.state {
            State::Start | State::Gap => self.begin(is_end),
            State::Reasoning(end) => self.reasoning(end, out),
            State::Text => self.text(is_end, out),
            State::Calls => self.calls(is_end, out),
        }
    }

    /// The first characters that are no white space decide what follows.
    fn begin(&mut self, is_end: bool) -> bool {
        let is_between = |c: char| c.is_whitespace() || self.has_calls && c == ';';
        let text = self.held.trim_start_matches(is_between);
        if text.is_empty() {
            return false;
        }
        if self.state == State::Start {
            for (begin, end) in THINKING {
                if let Some(rest) = text.strip_prefix(begin) {
                    self.held = rest.to_owned();
                    self.state = State::Reasoning(end);
                    return true;
                }
            }
            if !is_end && THINKING.iter().any(|(begin, _)| begin.starts_with(text)) {
                return false;
            }
        }
        let is_bare = self.format.is_some_and(Format::is_bare) && text.starts_with(['{', '[']);
        let space = self.held.len() - text.len();
        if self.state == State::Gap {
            self.held.drain(..space);
        } else if is_bare {
            self.marker = self.held.drain(..space).collect();
        }
        self.state = if is_bare { State::Calls } else { State::Text };
        self.scan = Scan::default();
        true
    }

    fn reasoning(&mut self, end: &'static str, out: &mut Vec<Piece>) -> bool {
        let (at, found) = find(&self.held, end);
        let text = &self.held[..at];
        // White space at both ends is not part of it.
        let upto = text.trim_end().len();
        let first = if self.has_reasoning {
            0
        } else {
            upto - text[..upto].trim_start().len()
        };
        self.has_reasoning |= upto > 0;
        emit(out, Piece::Reasoning(self.held[first..upto].to_owned()));
        self.held.drain(..upto);
        if found {
            self.held.drain(..at - upto + end.len());
            self.state = State::Gap;
        }
        found
    }

    fn text(&mut self, is_end: bool, out: &mut Vec<Piece>) -> bool {
        let Some(marker) = self.format.and_then(Format::marker) else {
            emit(out, Piece::Text(std::mem::take(&mut self.held)));
            return false;
        };
        let (mut upto, found) = find(&self.held, marker);
        let all = if is_end && !found {
            self.held.len()
        } else {
            upto
        };
        // White space in front of calls, and between them, belongs to nobody.
        upto = self.held[..all].trim_end().len();
        if is_end && !found && !self.has_calls {
            upto = all;
        }
        emit(out, Piece::Text(self.held.drain(..upto).collect()));
        if found {
            self.marker = self.held.drain(..all - upto + marker.len()).collect();
            self.state = State::Calls;
            self.scan = Scan::default();
        }
        found
    }

    fn calls(&mut self, is_end: bool, out: &mut Vec<Piece>) -> bool {
        match self.format.unwrap_or_default() {
            Format::Hermes => self.hermes(is_end, out),
            Format::Mistral => self.mistral(is_end, out),
            Format::Llama3 | Format::Json => self.values(out),
        }
    }

    fn hermes(&mut self, is_end: bool, out: &mut Vec<Piece>) -> bool {
        const END: &str = "</tool_call>";
        let from = floor(&self.held, self.scan.at.saturating_sub(END.len()));
        self.scan.at = self.held.len();
        let found = self.held[from..].find(END).map(|at| from + at);
        let (body, length) = match found {
            Some(at) => (at, at + END.len()),
            None if is_end => (self.held.len(), self.held.len()),
            None => return false,
        };
        let calls = calls_of(self.held[..body].trim());
        self.end_calls(calls, length, out)
    }

    /// A value, or `name[ARGS]{…}`.
    fn mistral(&mut self, is_end: bool, out: &mut Vec<Piece>) -> bool {
        let text = self.held.trim_start();
        let before = self.held.len() - text.len();
        if text.is_empty() {
            return false;
        }
        if text.starts_with(['[', '{']) {
            let Some(end) = self.scan.end(&self.held) else {
                return false;
            };
            let calls = calls_of(&self.held[before..end]);
            return self.end_calls(calls, end, out);
        }
        let Some(open) = text.find('{') else {
            // A name of this length is none.
            return match is_end || text.len() > MAX_NAME_BYTES + 64 {
                true => self.end_calls(None, 0, out),
                false => false,
            };
        };
        self.scan.at = self.scan.at.max(before + open);
        let Some(end) = self.scan.end(&self.held) else {
            return false;
        };
        let head = text[..open].trim_end();
        let head = head.strip_suffix("[ARGS]").unwrap_or(head);
        let name = head.split("[CALL_ID]").next().unwrap_or(head).trim();
        let call = call(name, &self.held[before + open..end]).map(|call| vec![call]);
        self.end_calls(call, end, out)
    }

    /// Values with `;` between them.
    fn values(&mut self, out: &mut Vec<Piece>) -> bool {
        let text = self.held.trim_start();
        if !text.is_empty() && !text.starts_with(['{', '[']) {
            return self.end_calls(None, 0, out);
        }
        let Some(end) = self.scan.end(&self.held) else {
            return false;
        };
        let calls = calls_of(self.held[..end].trim());
        self.end_calls(calls, end, out)
    }

    /// The first `length` bytes were `calls`, or none: then they are text.
    fn end_calls(&mut self, calls: Option<Vec<Call>>, length: usize, out: &mut Vec<Piece>) -> bool {
        let raw: String = self.held.drain(..length).collect();
        let marker = std::mem::take(&mut self.marker);
        match calls {
            Some(calls) => {
                self.has_calls = true;
                out.extend(calls.into_iter().map(Piece::Call));
                // More may follow, of those without a marker at once.
                let is_bare = self.format.is_some_and(Format::is_bare);
                self.state = if is_bare { State::Gap } else { State::Text };
            }
            None => {
                emit(out, Piece::Text(marker + &raw));
                self.state = State::Text;
            }
        }
        self.scan = Scan::default();
        !self.held.is_empty()
    }
}

/// What the prompt has begun: the end of the reasoning, if it ends inside of one.
pub fn begun_thinking(prompt: &str) -> Option<&'static str> {
    let prompt = prompt.trim_end();
    let pair = THINKING.iter().find(|(begin, _)| prompt.ends_with(begin));
    pair.map(|(_, end)| *end)
}

fn emit(out: &mut Vec<Piece>, piece: Piece) {
    match (&piece, out.last_mut()) {
        (Piece::Text(text) | Piece::Reasoning(text), _) if text.is_empty() => {}
        (Piece::Text(text), Some(Piece::Text(last))) => last.push_str(text),
        (Piece::Reasoning(text), Some(Piece::Reasoning(last))) => last.push_str(text),
        _ => out.push(piece),
    }
}

/// Where `wanted` begins, or else where its beginning may begin at the end of the text.
fn find(text: &str, wanted: &str) -> (usize, bool) {
    if let Some(at) = text.find(wanted) {
        return (at, true);
    }
    let longest = wanted.len().min(text.len() + 1) - 1;
    let ends_with = |length: &usize| text.as_bytes().ends_with(&wanted.as_bytes()[..*length]);
    let held = (1..=longest).rev().find(ends_with).unwrap_or(0);
    (text.len() - held, false)
}

fn floor(text: &str, mut at: usize) -> usize {
    while !text.is_char_boundary(at) {
        at -= 1;
    }
    at
}

/// Looks for the end of a JSON object or list, a byte at a time.
#[derive(Clone, Copy, Debug, Default)]
struct Scan {
    at: usize,
    depth: u32,
    in_string: bool,
    is_escaped: bool,
}

impl Scan {
    /// The byte after the value; None if more is needed.
    fn end(&mut self, text: &str) -> Option<usize> {
        for byte in &text.as_bytes()[self.at..] {
            self.at += 1;
            match byte {
                _ if self.is_escaped => self.is_escaped = false,
                b'\\' if self.in_string => self.is_escaped = true,
                b'"' => self.in_string = !self.in_string,
                _ if self.in_string => {}
                b'{' | b'[' => self.depth += 1,
                b'}' | b']' => {
                    self.depth = self.depth.saturating_sub(1);
                    if self.depth == 0 {
                        return Some(self.at);
                    }
                }
                _ => {}
            }
        }
        None
    }
}

pub const MAX_NAME_BYTES: usize = 64;

/// The calls of a text that is an object or a list of objects; None if it is none.
fn calls_of(text: &str) -> Option<Vec<Call>> {
    match serde_json::from_str(text).ok()? {
        Value::Array(list) if !list.is_empty() => list.into_iter().map(call_of).collect(),
        Value::Array(_) => None,
        value => call_of(value).map(|call| vec![call]),
    }
}

fn call_of(value: Value) -> Option<Call> {
    let Value::Object(mut object) = value else {
        return None;
    };
    // OpenAI's own shape, which some models repeat.
    if let Some(Value::Object(function)) = object.remove("function") {
        object = function;
    }
    let Some(Value::String(name)) = object.remove("name") else {
        return None;
    };
    let arguments = object
        .remove("arguments")
        .or_else(|| object.remove("parameters"));
    match arguments {
        None => call(&name, "{}"),
        Some(Value::String(text)) => call(&name, &text),
        Some(value) => call(&name, &value.to_string()),
    }
}

fn call(name: &str, arguments: &str) -> Option<Call> {
    let arguments: Value = serde_json::from_str(arguments).ok()?;
    let is_name = !name.is_empty() && name.len() <= MAX_NAME_BYTES;
    (is_name && arguments.is_object()).then(|| Call {
        name: name.to_owned(),
        arguments: arguments.to_string(),
    })
}

#[cfg(test)]
#[path = "split_tests.rs"]
mod tests;
