//! Chat templates: render a conversation as the text that the model was trained on.
//!
//! Templates are Jinja programs that come with the model file, so they are foreign code. They run in an
//! interpreter without input or output, under limits on steps, on the memory that values take, on
//! recursion and on the length of the result; a caller can set a deadline and cancel. What they render is what `transformers` renders: values
//! print as Python prints them, and the same filters, functions and settings are there.

use std::sync::Arc;
use std::thread;
use std::time::Instant;

use minijinja::machinery::{CodeGenerator, eval, make_string_output, parse};
use minijinja::syntax::SyntaxConfig;
use minijinja::value::Serde;
use minijinja::{AutoEscape, ErrorKind as JinjaErrorKind, Value};
use serde_json::Map;

use self::budget::Budget;
use self::environment::Namespaces;
use super::vocabulary::{Vocabulary, shortened};
use crate::core::cancel::CancelFlag;
use crate::core::error::{Error, ErrorKind, Result};

pub use self::clock::Clock;

mod budget;
mod clock;
mod environment;
mod generator;
mod guard;
mod json;
mod methods;
mod operators;
mod python;

/// Longest source of a template, in bytes. The longest published ones have about 32,000.
pub const MAX_TEMPLATE_BYTES: usize = 1 << 18;

/// Rendering needs a stack of its own: values and programs may nest deeper than a caller's stack allows.
const STACK_BYTES: usize = 1 << 27;
/// Deepest nesting of what is passed in.
const INPUT_DEPTH_MAX: usize = 128;

/// What one rendering may use before it fails with [`ErrorKind::LimitExceeded`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TemplateLimits {
    /// Instructions of the interpreter, and, counted apart, elements that filters, functions and
    /// operators visit. A message takes a few dozen instructions.
    pub fuel: u64,
    /// Bytes allocated while rendering, whether or not they are still in use: the memory that a
    /// rendering takes stays below this, input and program aside.
    pub working_bytes: u64,
    /// Bytes of the result.
    pub output_bytes: usize,
    /// Nested calls of macros.
    pub recursion: usize,
}

impl Default for TemplateLimits {
    fn default() -> Self {
        TemplateLimits {
            fuel: 5_000_000,
            working_bytes: 1 << 28,
            output_bytes: 1 << 26,
            recursion: 200,
        }
    }
}

/// How one rendering can be stopped from outside; by default it cannot.
///
/// Both are checked whenever the template makes, visits or compares a value, and in each turn of a
/// loop; between two checks lies work of a few milliseconds at most.
#[derive(Clone, Debug, Default)]
pub struct RenderOptions {
    /// When to give up, with [`ErrorKind::Timeout`].
    pub deadline: Option<Instant>,
    /// Ends the rendering with [`ErrorKind::Cancelled`] once it is set, from any thread.
    pub cancel: Option<CancelFlag>,
}

/// What a template is given.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TemplateInput {
    /// The conversation: objects with at least "role", and "content" or "tool_calls".
    pub messages: Vec<serde_json::Value>,
    /// Tools the model may call, as JSON schema objects; `None` where there are none.
    pub tools: Option<Vec<serde_json::Value>>,
    /// Documents the model may cite; `None` where there are none.
    pub documents: Option<Vec<serde_json::Value>>,
    /// End with what begins the model's answer.
    pub add_generation_prompt: bool,
    /// More variables ("enable_thinking", …). One with the name of a special token replaces it.
    pub variables: Map<String, serde_json::Value>,
    /// The time that `strftime_now` returns. Without it the function does not exist, for which templates that use
    /// it have a fixed date.
    pub clock: Option<Clock>,
}

/// A chat template, parsed and ready. Usable from any number of threads at once.
///
/// ```
/// use worker_cuda::text::{ChatTemplate, TemplateInput};
///
/// let template = ChatTemplate::new(
///     "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}\
///      {% if add_generation_prompt %}<assistant>{% endif %}",
/// )?;
/// let input = TemplateInput {
///     messages: vec![serde_json::json!({"role": "user", "content": "Hi"})],
///     add_generation_prompt: true,
///     ..TemplateInput::default()
/// };
/// assert_eq!(template.render(&input)?, "<user>Hi<assistant>");
/// # Ok::<(), worker_cuda::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct ChatTemplate {
    source: Arc<str>,
    /// "bos_token" and kin with their texts.
    special_tokens: Map<String, serde_json::Value>,
    limits: TemplateLimits,
}

impl ChatTemplate {
    /// A template by its source. One that does not parse is [`ErrorKind::Malformed`], with the line.
    pub fn new(source: &str) -> Result<Self> {
        if source.len() > MAX_TEMPLATE_BYTES {
            return Err(Error::new(
                ErrorKind::LimitExceeded,
                format!(
                    "the chat template has {} bytes, at most {MAX_TEMPLATE_BYTES} are accepted",
                    source.len()
                ),
            ));
        }
        let source: Arc<str> = guard::without_generation_tags(source).into();
        let template = ChatTemplate {
            source,
            special_tokens: Map::new(),
            limits: TemplateLimits::default(),
        };
        let source = Arc::clone(&template.source);
        on_own_stack(move || {
            let syntax = syntax()?;
            guard::check_size(&source, syntax.clone()).map_err(|e| explain(&e))?;
            let program = parse(&source, "", syntax).map_err(|e| explain(&e))?;
            guard::guarded(&program).map(drop).map_err(|e| explain(&e))
        })?;
        Ok(template)
    }

    /// The template of a model: the one of that name, or the unnamed one. `bos_token`, `eos_token`,
    /// `unk_token` and `pad_token` are known to it where the vocabulary has them. A model without it is
    /// [`ErrorKind::NotFound`].
    pub fn from_vocabulary(vocabulary: &Vocabulary, name: Option<&str>) -> Result<Self> {
        let wanted = name.unwrap_or_default();
        let named = vocabulary
            .chat_templates
            .iter()
            .find(|template| template.name == wanted)
            .ok_or_else(|| missing(vocabulary, wanted))?;
        let mut template = ChatTemplate::new(&named.source)?;
        let tokens = [
            ("bos_token", vocabulary.bos_id),
            ("eos_token", vocabulary.eos_id),
            ("unk_token", vocabulary.unk_id),
            ("pad_token", vocabulary.pad_id),
        ];
        for (name, id) in tokens {
            if let Some(text) = id.and_then(|id| vocabulary.token_text(id)) {
                template.special_tokens.insert(name.into(), text.into());
            }
        }
        Ok(template)
    }

    /// Its source, without the tags that only training uses.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// The same template under other limits.
    #[must_use]
    pub fn with_limits(mut self, limits: TemplateLimits) -> Self {
        self.limits = limits;
        self
    }

    /// The text of a conversation. Encode it with
    /// [`EncodeOptions::parse_special`](super::EncodeOptions) and without `add_special`: the template
    /// writes BOS itself where the model wants it.
    ///
    /// Errors name the line of the template. A template that refuses its input by `raise_exception`
    /// is [`ErrorKind::InvalidArgument`], a failing one [`ErrorKind::Malformed`], and one that passes a
    /// limit [`ErrorKind::LimitExceeded`].
    pub fn render(&self, input: &TemplateInput) -> Result<String> {
        self.render_with(input, &RenderOptions::default())
    }

    /// [`render`](Self::render), with a deadline and a cancel flag.
    ///
    /// ```
    /// use worker_cuda::ErrorKind;
    /// use worker_cuda::generate::CancelFlag;
    /// use worker_cuda::text::{ChatTemplate, RenderOptions, TemplateInput};
    ///
    /// let template = ChatTemplate::new("{% for m in messages %}{{ m.content }}{% endfor %}")?;
    /// let cancel = CancelFlag::default();
    /// cancel.set();
    /// let options = RenderOptions { cancel: Some(cancel), ..RenderOptions::default() };
    ///
    /// let error = template.render_with(&TemplateInput::default(), &options).unwrap_err();
    /// assert_eq!(error.kind(), ErrorKind::Cancelled);
    /// # Ok::<(), worker_cuda::Error>(())
    /// ```
    pub fn render_with(&self, input: &TemplateInput, options: &RenderOptions) -> Result<String> {
        let root = self.variables(input)?;
        let (source, limits, clock) = (Arc::clone(&self.source), self.limits, input.clock);
        let budget = Budget::new(limits, options);
        on_own_stack(move || render(&source, root, limits, clock, &budget))
    }

    /// Everything the template sees, in the order in which later ones replace earlier ones.
    fn variables(&self, input: &TemplateInput) -> Result<Map<String, serde_json::Value>> {
        let optional = |list: &Option<Vec<serde_json::Value>>| match list {
            Some(list) => serde_json::Value::Array(list.clone()),
            None => serde_json::Value::Null,
        };
        let mut root = self.special_tokens.clone();
        root.extend(input.variables.clone());
        let messages: Vec<_> = input.messages.iter().map(with_reasoning).collect();
        root.insert("messages".into(), messages.into());
        root.insert("tools".into(), optional(&input.tools));
        root.insert("documents".into(), optional(&input.documents));
        root.insert(
            "add_generation_prompt".into(),
            input.add_generation_prompt.into(),
        );
        match root
            .iter()
            .find(|(_, value)| !shallower_than(value, INPUT_DEPTH_MAX))
        {
            None => Ok(root),
            Some((name, _)) => Err(Error::new(
                ErrorKind::LimitExceeded,
                format!(
                    "'{}' is nested deeper than {INPUT_DEPTH_MAX} levels",
                    shortened(name)
                ),
            )),
        }
    }
}

fn render(
    source: &str,
    root: Map<String, serde_json::Value>,
    limits: TemplateLimits,
    clock: Option<Clock>,
    budget: &Budget,
) -> Result<String> {
    budget.check().map_err(|e| explain(&e))?;
    let namespaces = Namespaces::default();
    let environment = environment::new(budget, &namespaces, limits, clock);
    let program = parse(source, "", syntax()?).map_err(|e| explain(&e))?;
    let program = guard::guarded(&program).map_err(|e| explain(&e))?;
    let mut generator = CodeGenerator::new("", source);
    generator.compile_stmt(&program);
    let (instructions, blocks) = generator.finish();
    let mut text = String::new();
    let mut output = make_string_output(&mut text);
    let done = eval(
        &environment,
        &instructions,
        Value::from(Serde(&root)),
        &blocks,
        &mut output,
        AutoEscape::None,
    );
    namespaces.clear();
    done.map(drop).map_err(|error| explain(&error))?;
    if text.len() > limits.output_bytes {
        return Err(Error::new(
            ErrorKind::LimitExceeded,
            format!(
                "the chat template wrote {} bytes, at most {} are allowed",
                text.len(),
                limits.output_bytes
            ),
        ));
    }
    Ok(text)
}

/// The settings of `transformers`.
fn syntax() -> Result<SyntaxConfig> {
    SyntaxConfig::builder()
        .trim_blocks(true)
        .lstrip_blocks(true)
        .build()
        .map_err(|error| Error::new(ErrorKind::Internal, error.to_string()))
}

/// Runs `work` where there is room for deep recursion. A panic of the interpreter is an error.
fn on_own_stack<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    let thread = thread::Builder::new()
        .name("chat-template".into())
        .stack_size(STACK_BYTES)
        .spawn(work)
        .map_err(|error| {
            Error::new(
                ErrorKind::OutOfHostMemory,
                format!(
                    "no thread with {STACK_BYTES} bytes of stack for the chat template: {error}"
                ),
            )
        })?;
    match thread.join() {
        Ok(result) => result,
        Err(_) => Err(Error::new(
            ErrorKind::Internal,
            "the interpreter of chat templates panicked",
        )),
    }
}

/// Names under which a message's reasoning is passed, the standard one first.
const REASONING: [&str; 3] = ["reasoning_content", "thinking", "reasoning"];

/// The message with its reasoning under the two names that templates read, as `transformers` does.
fn with_reasoning(message: &serde_json::Value) -> serde_json::Value {
    let reasoning = message.as_object().and_then(|object| {
        let mut given = REASONING.iter().filter_map(|name| object.get(*name));
        given.find(|value| !value.is_null()).cloned()
    });
    let (Some(object), Some(reasoning)) = (message.as_object(), reasoning) else {
        return message.clone();
    };
    let mut aliased = Map::new();
    aliased.insert("thinking".into(), reasoning.clone());
    aliased.extend(object.clone());
    aliased.insert("reasoning_content".into(), reasoning);
    aliased.into()
}

fn missing(vocabulary: &Vocabulary, wanted: &str) -> Error {
    let names: Vec<String> = vocabulary
        .chat_templates
        .iter()
        .map(|template| match template.name.as_str() {
            "" => "the unnamed one".into(),
            name => format!("'{}'", shortened(name)),
        })
        .collect();
    let there_are = match names.as_slice() {
        [] => String::new(),
        names => format!("; there are: {}", names.join(", ")),
    };
    let message = match wanted {
        "" => format!("the model has no chat template{there_are}"),
        name => format!(
            "the model has no chat template named '{}'{there_are}",
            shortened(name)
        ),
    };
    Error::new(ErrorKind::NotFound, message)
}

/// An error of the interpreter as ours: the innermost reason, and the line.
fn explain(error: &minijinja::Error) -> Error {
    let mut reason = error;
    while let Some(inner) = std::error::Error::source(reason)
        .and_then(|source| source.downcast_ref::<minijinja::Error>())
    {
        reason = inner;
    }
    let line = match error.line().or(reason.line()) {
        Some(line) => format!(", line {line}"),
        None => String::new(),
    };
    let what = match reason.detail() {
        Some(detail) => detail.to_owned(),
        None => reason.kind().to_string(),
    };
    let kind = match reason.kind() {
        JinjaErrorKind::OutOfFuel => ErrorKind::LimitExceeded,
        _ if what.starts_with(budget::LIMIT_PREFIX) => ErrorKind::LimitExceeded,
        _ if what == budget::CANCELLED => ErrorKind::Cancelled,
        _ if what == budget::TIMED_OUT => ErrorKind::Timeout,
        _ if what.starts_with(environment::REFUSED_PREFIX) => ErrorKind::InvalidArgument,
        _ => ErrorKind::Malformed,
    };
    let what = match reason.kind() {
        JinjaErrorKind::OutOfFuel => "it takes more steps than are allowed".to_owned(),
        _ => what.replace(['\n', '\r'], " "),
    };
    Error::new(kind, format!("chat template{line}: {what}"))
}

fn shallower_than(value: &serde_json::Value, depth: usize) -> bool {
    match value {
        _ if depth == 0 => false,
        serde_json::Value::Array(items) => items.iter().all(|v| shallower_than(v, depth - 1)),
        serde_json::Value::Object(map) => map.values().all(|v| shallower_than(v, depth - 1)),
        _ => true,
    }
}
