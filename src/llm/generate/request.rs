//! What to generate from, and how.

use crate::llm::engine::Token;
use crate::llm::step::Sampling;
use crate::llm::text::TemplateInput;

/// What to generate from.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Prompt {
    /// A conversation, put through the model's chat template.
    Chat(TemplateInput),
    /// Text to continue. Markers in it are plain text.
    Text(String),
    /// Tokens as they are.
    Tokens(Vec<Token>),
}

/// One message of a conversation.
///
/// ```
/// use worker_cuda::generate::{Message, Request};
///
/// let request = Request::chat([
///     Message::system("You are terse."),
///     Message::user("What is 2 + 2?"),
///     Message::assistant("4"),
///     Message::user("And 3 + 3?"),
/// ])
/// .max_tokens(16)
/// .stop("\n");
/// assert_eq!(request.max_tokens, Some(16));
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Message(serde_json::Value);

impl Message {
    /// What the user says.
    pub fn user(content: impl Into<String>) -> Self {
        Self::new("user", content)
    }

    /// What the model said.
    pub fn assistant(content: impl Into<String>) -> Self {
        Self::new("assistant", content)
    }

    /// The system message.
    pub fn system(content: impl Into<String>) -> Self {
        Self::new("system", content)
    }

    /// A message of any role that the model's chat template knows, "tool" for example.
    pub fn new(role: impl Into<String>, content: impl Into<String>) -> Self {
        Self(serde_json::json!({ "role": role.into(), "content": content.into() }))
    }
}

/// A message as the chat template sees it: an object with "role", and "content", "tool_calls" and others.
impl From<serde_json::Value> for Message {
    fn from(message: serde_json::Value) -> Self {
        Self(message)
    }
}

impl From<Message> for serde_json::Value {
    fn from(message: Message) -> Self {
        message.0
    }
}

/// One request. It can be used any number of times.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Request {
    /// What to generate from.
    pub prompt: Prompt,
    /// How tokens are drawn.
    pub sampling: Sampling,
    /// Most tokens to generate; None: until the context is full.
    pub max_tokens: Option<u32>,
    /// Texts that end the answer and are no part of it.
    pub stop: Vec<String>,
    /// Whether to continue past tokens that end a text.
    pub ignore_end: bool,
}

impl Request {
    /// Answers one message of a user, greedily, by the model's chat template.
    pub fn user(message: impl Into<String>) -> Self {
        Self::chat([Message::user(message)])
    }

    /// Continues a conversation with the model's answer, greedily, by the model's chat template.
    pub fn chat(messages: impl IntoIterator<Item = Message>) -> Self {
        Self::new(Prompt::Chat(TemplateInput {
            messages: messages.into_iter().map(Into::into).collect(),
            add_generation_prompt: true,
            ..TemplateInput::default()
        }))
    }

    /// Continues a text, greedily.
    pub fn text(prompt: impl Into<String>) -> Self {
        Self::new(Prompt::Text(prompt.into()))
    }

    /// Continues tokens, greedily.
    pub fn tokens(prompt: impl Into<Vec<Token>>) -> Self {
        Self::new(Prompt::Tokens(prompt.into()))
    }

    /// Continues any prompt, greedily.
    pub fn new(prompt: Prompt) -> Self {
        Self {
            prompt,
            sampling: Sampling::greedy(),
            max_tokens: None,
            stop: Vec::new(),
            ignore_end: false,
        }
    }

    /// Most tokens to generate.
    #[must_use]
    pub fn max_tokens(mut self, count: u32) -> Self {
        self.max_tokens = Some(count);
        self
    }

    /// How tokens are drawn.
    #[must_use]
    pub fn sampling(mut self, sampling: Sampling) -> Self {
        self.sampling = sampling;
        self
    }

    /// Adds a text that ends the answer and is no part of it.
    #[must_use]
    pub fn stop(mut self, text: impl Into<String>) -> Self {
        self.stop.push(text.into());
        self
    }
}
