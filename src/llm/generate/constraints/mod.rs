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
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, ScopedJoinHandle};

use llguidance::api::{ParserLimits, TopLevelGrammar};
use llguidance::earley::SlicedBiasComputer;
use llguidance::toktrie::{ApproximateTokEnv, InferenceCapabilities, TokEnv, TokRxInfo, TokTrie};
use llguidance::{ParserFactory, TokenParser};
use serde_json::{Value, json};

pub use self::limits::{
    MAX_DEFINITIONS, MAX_DEPTH, MAX_PROPERTIES, MAX_REFERENCE_DEPTH, MAX_RULE_BYTES, MAX_VALUES,
};

use super::service::{Constraint, ConstraintState, Next, Stopper};
use crate::core::error::{Error, ErrorKind, Result};
use crate::llm::engine::Token;
use crate::llm::text::{TokenType, Tokenizer};

mod limits;

/// Longer tokens are never allowed: the tree of all tokens has no room for them.
const MAX_TOKEN_BYTES: usize = 1000;

/// Enough for the compilers of the deepest rules that are accepted.
const STACK_BYTES: usize = 128 << 20;

/// Bytes that a text may use in any case to follow its rule.
const TEXT_BYTES: usize = 4 << 20;

/// Bytes of all texts together, from which on none may use more than that.
const ALL_TEXT_BYTES: usize = 1 << 30;

/// Bytes of an item of a parser.
const ITEM_BYTES: usize = 8;

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
pub struct Compiler {
    factory: ParserFactory,
    memory: Arc<Memory>,
}

impl Compiler {
    /// Reads the vocabulary. `vocabulary_size`: the number of logits of the model.
    pub fn new(tokenizer: &Tokenizer, vocabulary_size: u32) -> Result<Self> {
        let word = |id| word(tokenizer, id);
        let words: Vec<Vec<u8>> = (0..vocabulary_size).map(word).collect();
        let mut ends = tokenizer.end_of_generation_ids();
        // What ends a text is decided by the service; here it must only be no text.
        let end = ends.find(|&id| id < vocabulary_size).unwrap_or(0);
        let mut factory = on_own_stack(|| {
            let trie = TokTrie::from(&TokRxInfo::new(vocabulary_size, end), &words);
            let env: TokEnv = Arc::new(ApproximateTokEnv::new(trie));
            let slices = SlicedBiasComputer::general_slices();
            let capabilities = InferenceCapabilities::default();
            ParserFactory::new(&env, capabilities, &slices).map_err(refused)
        })?;
        factory.quiet();
        *factory.limits_mut() = ParserLimits {
            // An object of `MAX_PROPERTIES` that may all be left out has some four items for each.
            max_items_in_row: 10_000,
            // Each takes one or two kilobytes.
            max_lexer_states: 20_000,
            verbose_errors: false,
            ..ParserLimits::default()
        };
        let memory = Memory {
            used: AtomicUsize::new(0),
            each: TEXT_BYTES,
            all: ALL_TEXT_BYTES,
        };
        Ok(Self {
            factory,
            memory: Arc::new(memory),
        })
    }

    /// Limits what the texts of its rules use: each may use `each` bytes (4 MiB), and more than that while all of
    /// them use no more than `all` (1 GiB). A text that needs more fails.
    pub fn with_memory(mut self, each: usize, all: usize) -> Self {
        let used = AtomicUsize::new(0);
        self.memory = Arc::new(Memory { used, each, all });
        self
    }

    /// Compiles a rule on a thread of its own, which takes up to some seconds and cannot be stopped. A rule that is
    /// wrong, too large or not supported is an error of the kind [`InvalidArgument`](ErrorKind::InvalidArgument).
    pub fn compile(&self, rule: &Rule) -> Result<Arc<dyn Constraint>> {
        on_own_stack(|| {
            let grammar = match rule {
                Rule::JsonObject => json_grammar(json!({ "type": "object" }))?,
                Rule::JsonSchema(schema) => json_grammar(schema.clone())?,
                Rule::Lark(text) => TopLevelGrammar::from_lark(limits::checked_lark(text)?),
                Rule::Regex(text) => {
                    limits::check_size(text.len())?;
                    TopLevelGrammar::from_regex(text)
                }
            };
            let mut parser = self.factory.create_parser(grammar).map_err(refused)?;
            parser.start_without_prompt();
            try_masks(parser.deep_clone())?;
            Ok(Arc::new(Compiled {
                parser: Mutex::new(parser),
                memory: Arc::clone(&self.memory),
            }) as Arc<dyn Constraint>)
        })
    }
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

fn json_grammar(schema: Value) -> Result<TopLevelGrammar> {
    let schema = limits::checked_schema(schema)?;
    Ok(TopLevelGrammar::from_json_schema(schema))
}

/// Computes the first two masks: some rules are too large only then.
fn try_masks(mut parser: TokenParser) -> Result<()> {
    let end = parser.token_env.tok_trie().eos_token();
    let first = parser.compute_mask().map_err(refused)?;
    let token = first.to_list().into_iter().find(|&token| token != end);
    if let Some(token) = token {
        parser.consume_token(token).map_err(refused)?;
        if !parser.check_stop().map_err(refused)? {
            parser.compute_mask().map_err(refused)?;
        }
    }
    Ok(())
}

fn invalid(message: String) -> Error {
    Error::new(ErrorKind::InvalidArgument, message)
}

/// The error of a rule that the grammar crates refuse.
fn refused(error: impl fmt::Display) -> Error {
    invalid(first_line(error))
}

/// The first line of an error, without what the parser adds to it.
fn first_line(error: impl fmt::Display) -> String {
    const MOST: usize = 500;
    let text = error.to_string();
    let line = text.lines().next().unwrap_or_default();
    line.chars().take(MOST).collect()
}

/// Runs code of the grammar crates on a large stack. What goes wrong in it, panics included, is the fault of a rule.
fn on_own_stack<T: Send>(work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    thread::scope(|scope| {
        let thread = thread::Builder::new()
            .name("rule".into())
            .stack_size(STACK_BYTES);
        match thread.spawn_scoped(scope, work).map(ScopedJoinHandle::join) {
            Ok(Ok(done)) => done,
            Ok(Err(_)) => Err(invalid("the rule cannot be compiled".into())),
            Err(error) => {
                let message = format!("no thread to compile a rule: {error}");
                Err(Error::new(ErrorKind::OutOfHostMemory, message))
            }
        }
    })
}

/// A rule before its first token. The lock makes it usable by several threads.
struct Compiled {
    parser: Mutex<TokenParser>,
    memory: Arc<Memory>,
}

impl Constraint for Compiled {
    fn start(&self) -> Box<dyn ConstraintState> {
        let parser = self.parser.lock().unwrap_or_else(PoisonError::into_inner);
        Box::new(Text {
            parser: parser.deep_clone(),
            memory: Arc::clone(&self.memory),
            items: 0,
            bytes: 0,
        })
    }
}

/// What the texts of all rules of a compiler use, in bytes.
struct Memory {
    used: AtomicUsize,
    each: usize,
    all: usize,
}

impl Memory {
    /// Replaces what one text uses. Returns what all use.
    fn replace(&self, before: usize, now: usize) -> usize {
        self.used.fetch_add(now, Ordering::Relaxed);
        self.used.fetch_sub(before, Ordering::Relaxed) - before
    }
}

/// A text that follows a rule.
struct Text {
    parser: TokenParser,
    memory: Arc<Memory>,
    /// Items of the parser, which it keeps for all of the text.
    items: usize,
    /// What it uses, as far as that is counted.
    bytes: usize,
}

impl Text {
    fn take(&mut self, tokens: &[Token]) -> std::result::Result<(), String> {
        let before = self.parser.parser_stats().all_items;
        for &token in tokens {
            self.parser.consume_token(token).map_err(first_line)?;
        }
        self.items += self.parser.parser_stats().all_items - before;
        self.parser.check_stop().map_err(first_line)?;
        Ok(())
    }

    fn count_memory(&mut self) -> std::result::Result<(), String> {
        let lexer = self.parser.parser.lexer_stats().num_bytes;
        let bytes = lexer + self.items * ITEM_BYTES;
        let all = self.memory.replace(self.bytes, bytes);
        self.bytes = bytes;
        let Memory {
            each, all: most, ..
        } = *self.memory;
        if bytes > each && all > most {
            return Err(format!(
                "its text needs {bytes} bytes of memory, and all such texts {all}; the limits are {each} and {most}"
            ));
        }
        Ok(())
    }
}

impl Drop for Text {
    fn drop(&mut self) {
        self.memory.replace(self.bytes, 0);
    }
}

impl ConstraintState for Text {
    fn advance(&mut self, token: Token) -> std::result::Result<(), String> {
        self.take(&[token])
    }

    fn advance_text(&mut self, text: &[u8]) -> std::result::Result<(), String> {
        let tokens = self.parser.token_env.tok_trie().greedy_tokenize(text);
        self.take(&tokens)
    }

    fn allow(&mut self, tokens: &mut [u32]) -> std::result::Result<Next, String> {
        if self.parser.stopped() {
            return Ok(Next::End);
        }
        let mask = self.parser.compute_mask().map_err(first_line)?;
        self.count_memory()?;
        for (word, allowed) in tokens.iter_mut().zip(mask.as_slice()) {
            *word = *allowed;
        }
        match self.parser.is_accepting() {
            true => Ok(Next::TokenOrEnd),
            false => Ok(Next::Token),
        }
    }

    fn stopper(&mut self) -> Option<Stopper> {
        let handle = self.parser.enable_cancellation();
        Some(Box::new(move || handle.cancel()))
    }
}
