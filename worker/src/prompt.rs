//! From what the user gave to the tokens of a prompt.

use serde_json::{Map, Value, json};
use worker_cuda::Token;
use worker_cuda::text::{EncodeOptions, Tokenizer, Vocabulary};

use crate::failure::{Failure, Outcome};

/// The model's way to turn messages into text.
pub struct Prompter;

impl Prompter {
    pub fn new(_: &Vocabulary, _: Option<&str>) -> Self {
        Self
    }

    pub fn tokens(&self, _: &Tokenizer, _: Map<String, Value>) -> Outcome<Vec<Token>> {
        Err(Failure::new("chat templates are not built in yet").hint("--raw"))
    }
}

/// Tokens of a text to go on with.
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
