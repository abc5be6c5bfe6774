//! Rules for answers, written as JSON Schema, Lark grammar or regular expression. Feature `constraints`.
//!
//! ```
//! use worker_cuda::generate::constraints::{Compiler, Rule};
//! use worker_cuda::generate::service::{Constrained, Request};
//! use worker_cuda::text::Tokenizer;
//!
//! /// A request whose answer is an object with a name.
//! fn named(tokenizer: &Tokenizer) -> worker_cuda::Result<Request> {
//!     let compiler = Compiler::new(tokenizer, tokenizer.token_count() as u32)?;
//!     let schema = serde_json::json!({
//!         "type": "object", "properties": { "name": { "type": "string" } }, "required": ["name"],
//!     });
//!     let mut request = Request::user("Who wrote Faust?");
//!     request.constraint = Some(Constrained::new(compiler.compile(&Rule::JsonSchema(schema))?));
//!     Ok(request)
//! }
//! ```

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};

use llguidance::api::{ParserLimits, TopLevelGrammar};
use llguidance::earley::SlicedBiasComputer;
use llguidance::toktrie::{ApproximateTokEnv, InferenceCapabilities, TokEnv, TokRxInfo, TokTrie};
use llguidance::{Matcher, ParserFactory};
use serde_json::{Map, Value, json};

use super::service::{Constraint, ConstraintState, Next};
use crate::core::error::{Error, ErrorKind, Result};
use crate::llm::engine::Token;
use crate::llm::text::{TokenType, Tokenizer};

/// Most bytes of a rule.
pub const MAX_RULE_BYTES: usize = 256 << 10;
/// Most properties in all objects of a schema.
pub const MAX_PROPERTIES: usize = 1000;
/// Most values or brackets inside of each other.
pub const MAX_DEPTH: usize = 64;

/// Longer tokens are never allowed: the tree of all tokens has no room for them.
const MAX_TOKEN_BYTES: usize = 1000;

/// White space between the parts of a JSON text. It has an end, because a small model may find none.
const WHITE_SPACE: &str = "[ \\n\\r\\t]{1,40}";

/// What an answer may be.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Rule {
    /// Any JSON object.
    JsonObject,
    /// A JSON text that a schema accepts. What cannot be guaranteed is an error.
    JsonSchema(Value),
    /// A text of a grammar, in llguidance's form of Lark's syntax.
    Lark(String),
    /// A text that a regular expression matches as a whole.
    Regex(String),
}

/// Compiles rules for the tokens of one model.
pub struct Compiler(ParserFactory);

impl Compiler {
    /// Reads the vocabulary. `vocabulary_size`: the number of logits of the model.
    pub fn new(tokenizer: &Tokenizer, vocabulary_size: u32) -> Result<Self> {
        let word = |id| word(tokenizer, id);
        let words: Vec<Vec<u8>> = (0..vocabulary_size).map(word).collect();
        let mut ends = tokenizer.end_of_generation_ids();
        // What ends a text is decided by the service; here it must only be no text.
        let end = ends.find(|&id| id < vocabulary_size).unwrap_or(0);
        let factory = quietly(|| {
            let trie = TokTrie::from(&TokRxInfo::new(vocabulary_size, end), &words);
            let env: TokEnv = Arc::new(ApproximateTokEnv::new(trie));
            let slices = SlicedBiasComputer::general_slices();
            let capabilities = InferenceCapabilities::default();
            ParserFactory::new(&env, capabilities, &slices).map_err(|error| error.to_string())
        });
        let mut factory = factory?;
        factory.quiet();
        *factory.limits_mut() = ParserLimits {
            // Each takes one or two kilobytes.
            max_lexer_states: 20_000,
            verbose_errors: false,
            ..ParserLimits::default()
        };
        Ok(Self(factory))
    }

    /// Compiles a rule, which takes up to some seconds and cannot be stopped. A rule that is wrong, too large or
    /// not supported is an error of the kind [`InvalidArgument`](ErrorKind::InvalidArgument).
    pub fn compile(&self, rule: &Rule) -> Result<Arc<dyn Constraint>> {
        let grammar = match rule {
            Rule::JsonObject => schema_grammar(json!({ "type": "object" }))?,
            Rule::JsonSchema(schema) => schema_grammar(schema.clone())?,
            Rule::Lark(text) => {
                check_text(text)?;
                TopLevelGrammar::from_lark(text.clone())
            }
            Rule::Regex(text) => {
                check_text(text)?;
                TopLevelGrammar::from_regex(text)
            }
        };
        quietly(|| {
            let matcher = Matcher::new(self.0.create_parser(grammar));
            match matcher.get_error() {
                Some(error) => Err(error),
                None => Ok(Arc::new(Compiled(Mutex::new(matcher))) as Arc<dyn Constraint>),
            }
        })
    }
}

/// The schema as it is written inside of a Lark grammar, after `%json`.
pub fn inline_schema(schema: &Value) -> Result<String> {
    Ok(prepared(schema.clone())?.to_string())
}

impl fmt::Debug for Compiler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Compiler").finish_non_exhaustive()
    }
}

/// A token as the tree of tokens has it: its text, or a name behind a byte that no text has, or nothing.
fn word(tokenizer: &Tokenizer, id: Token) -> Vec<u8> {
    let bytes = tokenizer.token_bytes(id).unwrap_or_default();
    match tokenizer.token_type(id) {
        None | Some(TokenType::Unused) => Vec::new(),
        Some(TokenType::Control | TokenType::Unknown) => format!("\u{0}<[{id}]>")
            .into_bytes()
            .into_iter()
            .map(|byte| match byte {
                0 => TokTrie::SPECIAL_TOKEN_MARKER,
                byte => byte,
            })
            .collect(),
        _ if bytes.len() > MAX_TOKEN_BYTES => Vec::new(),
        _ => bytes.to_vec(),
    }
}

fn schema_grammar(schema: Value) -> Result<TopLevelGrammar> {
    Ok(TopLevelGrammar::from_json_schema(prepared(schema)?))
}

/// Checks the size of a schema, and sets how JSON is written.
fn prepared(schema: Value) -> Result<Value> {
    check_size(schema.to_string().len())?;
    let mut properties = 0;
    check_schema(&schema, MAX_DEPTH, &mut properties)?;
    let mut object = match schema {
        Value::Object(object) => object,
        Value::Bool(true) => Map::new(),
        other => return Err(invalid(format!("a schema is an object, not {other}"))),
    };
    let options = json!({ "whitespace_pattern": WHITE_SPACE });
    object.insert("x-guidance".into(), options);
    Ok(object.into())
}

fn check_schema(value: &Value, depth: usize, properties: &mut usize) -> Result<()> {
    let below = |depth: usize| {
        depth
            .checked_sub(1)
            .ok_or_else(|| invalid(format!("more than {MAX_DEPTH} values inside of each other")))
    };
    match value {
        Value::Array(list) => {
            let depth = below(depth)?;
            let mut values = list.iter();
            values.try_for_each(|value| check_schema(value, depth, properties))
        }
        Value::Object(object) => {
            let depth = below(depth)?;
            if let Some(Value::Object(own)) = object.get("properties") {
                *properties += own.len();
            }
            if *properties > MAX_PROPERTIES {
                return Err(invalid(format!("more than {MAX_PROPERTIES} properties")));
            }
            let mut values = object.values();
            values.try_for_each(|value| check_schema(value, depth, properties))
        }
        _ => Ok(()),
    }
}

fn check_size(bytes: usize) -> Result<()> {
    if bytes <= MAX_RULE_BYTES {
        return Ok(());
    }
    Err(invalid(format!(
        "{bytes} bytes, at most {MAX_RULE_BYTES} are accepted"
    )))
}

/// Checks size and nesting: the parsers call themselves.
fn check_text(text: &str) -> Result<()> {
    check_size(text.len())?;
    let (mut depth, mut in_string, mut is_escaped) = (0usize, false, false);
    for byte in text.bytes() {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' => is_escaped = true,
            b'"' => in_string = !in_string,
            b'\n' => in_string = false,
            _ if in_string => {}
            b'(' | b'[' | b'{' => depth += 1,
            b')' | b']' | b'}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        if depth > MAX_DEPTH {
            let message = format!("more than {MAX_DEPTH} brackets inside of each other");
            return Err(invalid(message));
        }
    }
    Ok(())
}

fn invalid(message: String) -> Error {
    Error::new(ErrorKind::InvalidArgument, message)
}

/// The first line of an error, without what a panic adds to it.
fn first_line(text: &str) -> String {
    const MOST: usize = 500;
    text.lines()
        .next()
        .unwrap_or_default()
        .chars()
        .take(MOST)
        .collect()
}

/// Runs code of the grammar crates. What goes wrong in it, panics included, is the fault of a rule.
fn quietly<T>(work: impl FnOnce() -> std::result::Result<T, String>) -> Result<T> {
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(done) => done.map_err(|error| invalid(first_line(&error))),
        Err(_) => Err(invalid("the rule cannot be compiled".into())),
    }
}

/// A rule before its first token. The lock makes it usable by several threads.
struct Compiled(Mutex<Matcher>);

impl Constraint for Compiled {
    fn start(&self) -> Box<dyn ConstraintState> {
        let matcher = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        Box::new(Text(matcher.deep_clone()))
    }
}

/// A text that follows a rule.
struct Text(Matcher);

impl Text {
    fn take(&mut self, tokens: &[Token]) -> std::result::Result<(), String> {
        let taken = self.0.consume_tokens(tokens);
        taken.map_err(|error| first_line(&error.to_string()))
    }
}

impl ConstraintState for Text {
    fn advance(&mut self, token: Token) -> std::result::Result<(), String> {
        self.take(&[token])
    }

    fn advance_text(&mut self, text: &[u8]) -> std::result::Result<(), String> {
        let env = self.0.tok_env().map_err(|error| error.to_string())?;
        self.take(&env.tok_trie().greedy_tokenize(text))
    }

    fn allow(&mut self, tokens: &mut [u32]) -> std::result::Result<Next, String> {
        if self.0.is_stopped() {
            return match self.0.get_error() {
                Some(error) => Err(first_line(&error)),
                None => Ok(Next::End),
            };
        }
        let mask = self.0.compute_mask();
        let mask = mask.map_err(|error| first_line(&error.to_string()))?;
        for (word, allowed) in tokens.iter_mut().zip(mask.as_slice()) {
            *word = *allowed;
        }
        match self.0.is_accepting() {
            Ok(true) => Ok(Next::TokenOrEnd),
            Ok(false) => Ok(Next::Token),
            Err(error) => Err(first_line(&error.to_string())),
        }
    }
}
