//! Requests: the prompt and the options of a generation.

use crate::llm::engine::Token;
use crate::llm::step::Sampling;
use crate::llm::text::TemplateInput;

/// The prompt of a request.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Prompt {
    /// A conversation, rendered by the model's chat template.
    Chat(TemplateInput),
    /// Text to continue. Special tokens in it are plain text.
    Text(String),
    /// Tokens, used unchanged.
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
    /// A message of the user.
    pub fn user(content: impl Into<String>) -> Self {
        Self::new("user", content)
    }

    /// A message of the model.
    pub fn assistant(content: impl Into<String>) -> Self {
        Self::new("assistant", content)
    }

    /// The system message.
    pub fn system(content: impl Into<String>) -> Self {
        Self::new("system", content)
    }

    /// A message of any role that the model's chat template supports, for example "tool".
    pub fn new(role: impl Into<String>, content: impl Into<String>) -> Self {
        Self(serde_json::json!({ "role": role.into(), "content": content.into() }))
    }
}

/// Converts a message as the template reads it: an object with "role" and, for example, "content" or "tool_calls".
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

/// One request, which can be used any number of times.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Request {
    /// The prompt.
    pub prompt: Prompt,
    /// How tokens are sampled.
    pub sampling: Sampling,
    /// Maximum number of generated tokens; None: until the context is full.
    pub max_tokens: Option<u32>,
    /// Stop strings: they end the generation and are not part of its text.
    pub stop: Vec<String>,
    /// Whether to continue after tokens that end a text.
    pub ignore_end: bool,
}

impl Request {
    /// Answers one message of a user with greedy sampling, using the model's chat template.
    pub fn user(message: impl Into<String>) -> Self {
        Self::chat([Message::user(message)])
    }

    /// Continues a conversation with the model's answer, with greedy sampling, using the model's chat template.
    pub fn chat(messages: impl IntoIterator<Item = Message>) -> Self {
        Self::new(Prompt::Chat(TemplateInput {
            messages: messages.into_iter().map(Into::into).collect(),
            add_generation_prompt: true,
            ..TemplateInput::default()
        }))
    }

    /// Continues a text with greedy sampling.
    pub fn text(prompt: impl Into<String>) -> Self {
        Self::new(Prompt::Text(prompt.into()))
    }

    /// Continues tokens with greedy sampling.
    pub fn tokens(prompt: impl Into<Vec<Token>>) -> Self {
        Self::new(Prompt::Tokens(prompt.into()))
    }

    /// Continues any prompt with greedy sampling.
    pub fn new(prompt: Prompt) -> Self {
        Self {
            prompt,
            sampling: Sampling::greedy(),
            max_tokens: None,
            stop: Vec::new(),
            ignore_end: false,
        }
    }

    /// Sets the maximum number of generated tokens.
    #[must_use]
    pub fn max_tokens(mut self, count: u32) -> Self {
        self.max_tokens = Some(count);
        self
    }

    /// Sets how tokens are sampled.
    #[must_use]
    pub fn sampling(mut self, sampling: Sampling) -> Self {
        self.sampling = sampling;
        self
    }

    /// Adds a stop string.
    #[must_use]
    pub fn stop(mut self, text: impl Into<String>) -> Self {
        self.stop.push(text.into());
        self
    }
}
