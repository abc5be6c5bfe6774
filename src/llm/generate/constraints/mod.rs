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
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
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

/// Lexers of ended texts that a rule keeps for further ones, and the part of the bytes of a text that such a one may
/// have: what a text leaves must not fail the next.
const MAX_USED: usize = 8;
const MAX_USED_PART: usize = 4;

/// The part of the bytes of a text that one with copies may have.
const MAX_FORKED_PART: usize = 2;

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
            let slices = slices();
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
                used: Arc::default(),
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

/// Kinds of tokens that a rule often allows as a whole: white space, and texts up to some length. They need not be
/// searched one by one then. The more lengths, the fewer tokens are left where a string may have only so many more
/// characters, and the more memory is used.
fn slices() -> Vec<String> {
    let lengths = [5, 14, 20].map(|most| format!(r#"[^"\\\x00-\x1F\x7F]{{1,{most}}}"#));
    [SlicedBiasComputer::general_slices(), lengths.into()].concat()
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
    let line = first_line(error);
    // The crate proposes an option that is not set here, because answers have to follow a schema strictly.
    match line.split_once(". Enable 'coerce_one_of'") {
        Some((refused, _)) => invalid(format!(
            "{refused}; use anyOf, or schemas that certainly exclude each other"
        )),
        None if line == "NoExtensionBias" => invalid("no text follows the rule".into()),
        None => invalid(line),
    }
}

/// The first line of an error, without what the parser adds to it.
fn first_line(error: impl fmt::Display) -> String {
    const MOST: usize = 500;
    let text = error.to_string();
    let mut lines = text.lines();
    let line = lines.next().unwrap_or_default();
    // What is wrong with a regular expression comes after the expression.
    let regex = line.strip_suffix("regex parse error:");
    let reason = regex.and_then(|_| lines.find_map(|line| line.strip_prefix("error: ")));
    let line = match (regex, reason) {
        (Some(""), Some(reason)) => format!("invalid regex: {reason}"),
        (Some(before), Some(reason)) => format!("{before}{reason}"),
        _ => line.to_owned(),
    };
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
    used: Arc<Mutex<Vec<Beginning>>>,
    memory: Arc<Memory>,
}

/// The beginning of a text, with a lexer that one text at a time uses. A lexer keeps the states that its texts have
/// reached; to compute one takes longer than most masks.
struct Beginning {
    parser: TokenParser,
    /// What it and its text use, as far as that is counted.
    bytes: usize,
    memory: Arc<Memory>,
}

impl Beginning {
    fn lexer_bytes(&self) -> usize {
        self.parser.parser.lexer_stats().num_bytes
    }

    fn count(&mut self, bytes: usize) -> usize {
        let before = std::mem::replace(&mut self.bytes, bytes);
        self.memory.replace(before, bytes)
    }
}

impl Drop for Beginning {
    fn drop(&mut self) {
        self.count(0);
    }
}

impl Constraint for Compiled {
    fn start(&self) -> Box<dyn ConstraintState> {
        let used = lock(&self.used).pop();
        let beginning = used.unwrap_or_else(|| Beginning {
            parser: lock(&self.parser).deep_clone(),
            bytes: 0,
            memory: Arc::clone(&self.memory),
        });
        Box::new(Text {
            parser: beginning.parser.clone(),
            lexer: Arc::new(Lexer {
                memory: Arc::clone(&beginning.memory),
                beginning: Mutex::new(Some(beginning)),
                used: Arc::clone(&self.used),
                is_sound: AtomicBool::new(true),
            }),
            items: 0,
        })
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
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

/// The lexer of a text and of its copies. The last of them gives it back to the rule.
struct Lexer {
    /// None after the end.
    beginning: Mutex<Option<Beginning>>,
    used: Arc<Mutex<Vec<Beginning>>>,
    memory: Arc<Memory>,
    /// Whether nothing has failed or was stopped.
    is_sound: AtomicBool,
}

impl Lexer {
    /// Notes what it and a text of so many items use. Returns that, and what all texts use.
    fn count(&self, items: usize) -> (usize, usize) {
        let mut beginning = lock(&self.beginning);
        beginning.as_mut().map_or((0, 0), |beginning| {
            let bytes = beginning.lexer_bytes() + items * ITEM_BYTES;
            (bytes, beginning.count(bytes))
        })
    }
}

impl Drop for Lexer {
    fn drop(&mut self) {
        let beginning = lock(&self.beginning).take();
        let Some(mut beginning) = beginning.filter(|_| *self.is_sound.get_mut()) else {
            return;
        };
        let bytes = beginning.lexer_bytes();
        let mut used = lock(&self.used);
        if bytes <= self.memory.each / MAX_USED_PART && used.len() < MAX_USED {
            beginning.count(bytes);
            used.push(beginning);
        }
    }
}

/// A text that follows a rule.
struct Text {
    parser: TokenParser,
    lexer: Arc<Lexer>,
    /// Items of the parser, which it keeps for all of the text.
    items: usize,
}

/// Marks a lexer as unsound when it is dropped before its work is done.
struct Care<'a>(&'a Lexer, bool);

impl Drop for Care<'_> {
    fn drop(&mut self) {
        if !self.1 {
            self.0.is_sound.store(false, Ordering::Relaxed);
        }
    }
}

type Outcome<T> = std::result::Result<T, String>;

impl Text {
    /// Does something after which the lexer can be used again unless that fails, or panics.
    fn careful<T>(&mut self, work: impl FnOnce(&mut Self) -> Outcome<T>) -> Outcome<T> {
        let lexer = Arc::clone(&self.lexer);
        let mut care = Care(&lexer, false);
        let done = work(self);
        care.1 = done.is_ok();
        done
    }

    fn take(&mut self, tokens: &[Token]) -> Outcome<()> {
        let before = self.parser.parser_stats().all_items;
        for &token in tokens {
            self.parser.consume_token(token).map_err(first_line)?;
        }
        self.items += self.parser.parser_stats().all_items - before;
        self.parser.check_stop().map_err(first_line)?;
        Ok(())
    }

    fn mask(&mut self, tokens: &mut [u32]) -> Outcome<Next> {
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

    fn count_memory(&mut self) -> Outcome<()> {
        let (bytes, all) = self.lexer.count(self.items);
        let Memory {
            each, all: most, ..
        } = *self.lexer.memory;
        if bytes > each && all > most {
            return Err(format!(
                "its text needs {bytes} bytes of memory, and all such texts {all}; the limits are {each} and {most}"
            ));
        }
        Ok(())
    }
}

impl ConstraintState for Text {
    fn advance(&mut self, token: Token) -> Outcome<()> {
        self.careful(|text| text.take(&[token]))
    }

    fn advance_text(&mut self, text: &[u8]) -> Outcome<()> {
        let tokens = self.parser.token_env.tok_trie().greedy_tokenize(text);
        self.careful(|text| text.take(&tokens))
    }

    fn allow(&mut self, tokens: &mut [u32]) -> Outcome<Next> {
        if self.parser.stopped() {
            return Ok(Next::End);
        }
        self.careful(|text| text.mask(tokens))
    }

    /// None where the states that a copy adds to the lexer could make the text fail.
    fn fork(&self) -> Option<Box<dyn ConstraintState>> {
        let beginning = lock(&self.lexer.beginning);
        let bytes = beginning.as_ref().map_or(0, |beginning| beginning.bytes);
        drop(beginning);
        (bytes <= self.lexer.memory.each / MAX_FORKED_PART).then(|| {
            Box::new(Self {
                parser: self.parser.clone(),
                lexer: Arc::clone(&self.lexer),
                items: self.items,
            }) as Box<dyn ConstraintState>
        })
    }

    fn stopper(&mut self) -> Option<Stopper> {
        let handle = self.parser.enable_cancellation();
        Some(Box::new(move || handle.cancel()))
    }
}
