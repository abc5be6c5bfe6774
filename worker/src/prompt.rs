//! Tokens of a prompt: through the chat template, or raw.

use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Map, Value, json};
use worker_cuda::text::{ChatTemplate, Clock, EncodeOptions, TemplateInput, Tokenizer, Vocabulary};
use worker_cuda::{Error, Token};

use crate::failure::{Failure, Outcome};

/// Renders messages with the model's chat template.
pub struct Prompter {
    template: Result<ChatTemplate, Error>,
}

impl Prompter {
    /// Uses the template of that name, or the default one. A missing or broken template is an error only
    /// when it is used.
    pub fn new(vocabulary: &Vocabulary, name: Option<&str>) -> Self {
        Self {
            template: ChatTemplate::from_vocabulary(vocabulary, name),
        }
    }

    /// Renders a request: `messages`, `tools`, `documents`, `add_generation_prompt`; other fields become
    /// variables of the template.
    pub fn render(&self, request: Map<String, Value>) -> Outcome<String> {
        const HINT: &str = "run --raw works without a chat template";
        let fail = |error: &Error| Failure::new(error.to_string()).hint(HINT);
        let input = template_input(request)?;
        self.template
            .as_ref()
            .map_err(fail)?
            .render(&input)
            .map_err(|error| fail(&error))
    }

    /// Tokens of a request, up to the assistant's turn.
    pub fn tokens(
        &self,
        tokenizer: &Tokenizer,
        mut request: Map<String, Value>,
    ) -> Outcome<Vec<Token>> {
        request
            .entry("add_generation_prompt")
            .or_insert(true.into());
        let text = self.render(request)?;
        // The template contains the special tokens itself.
        let options = EncodeOptions {
            add_special: false,
            parse_special: true,
        };
        Ok(tokenizer.encode(&text, options)?)
    }
}

fn template_input(mut request: Map<String, Value>) -> Outcome<TemplateInput> {
    let mut list = |key: &str| match request.remove(key) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::Array(list)) => Ok(Some(list)),
        Some(_) => Err(Failure::new(format!("'{key}' of a request must be a list"))),
    };
    let messages = list("messages")?.ok_or_else(|| Failure::new("a request needs 'messages'"))?;
    let (tools, documents) = (list("tools")?, list("documents")?);
    let add_generation_prompt = match request.remove("add_generation_prompt") {
        None | Some(Value::Null) => false,
        Some(Value::Bool(value)) => value,
        Some(_) => {
            return Err(Failure::new(
                "'add_generation_prompt' must be true or false",
            ));
        }
    };
    Ok(TemplateInput {
        messages,
        tools,
        documents,
        add_generation_prompt,
        variables: request,
        clock: Some(now()),
    })
}

/// The time that templates are given.
pub fn now() -> Clock {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    Clock {
        unix_seconds: since.as_secs().try_into().unwrap_or(0),
        utc_offset_seconds: 0,
    }
}

/// Tokens of a plain text.
pub fn raw(tokenizer: &Tokenizer, text: &str) -> Outcome<Vec<Token>> {
    let options = EncodeOptions {
        add_special: true,
        parse_special: false,
    };
    Ok(tokenizer.encode(text, options)?)
}

/// One message of a conversation.
pub fn message(role: &str, content: &str) -> Value {
    json!({ "role": role, "content": content })
}

/// A request with only messages.
pub fn conversation(messages: Vec<Value>) -> Map<String, Value> {
    Map::from_iter([("messages".to_owned(), messages.into())])
}
