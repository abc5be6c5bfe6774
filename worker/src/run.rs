//! `run`: streams the answer to one prompt, or answers many from lines of JSON.

use std::io::{self, IsTerminal, Read, Write};
use std::path::PathBuf;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use worker_cuda::generate::{Event, FinishReason, Request, Session, Summary};
use worker_cuda::text::Tokenizer;
use worker_cuda::{Model, Sampling, Token};

use crate::failure::{Failure, Outcome};
use crate::input;
use crate::interrupt;
use crate::load;
use crate::machine::{self, Machine};
use crate::options::{DeviceArgs, DraftArgs, EngineArgs, ModelArgs, SamplingArgs};
use crate::prompt::{self, Prompter};
use crate::size;
use crate::terminal;

#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    model: ModelArgs,
    /// The prompt [default: stdin]
    #[arg(value_name = "PROMPT", conflicts_with_all = ["prompt", "prompt_file", "requests"])]
    words: Option<String>,
    /// The prompt
    #[arg(long, value_name = "TEXT", conflicts_with_all = ["prompt_file", "requests"])]
    prompt: Option<String>,
    /// A file with the prompt; - is stdin
    #[arg(long, value_name = "FILE", conflicts_with = "requests")]
    prompt_file: Option<PathBuf>,
    /// A file with one JSON request per line ({"prompt" or "messages" or "tokens", options}); prints one
    /// JSON answer per line
    #[arg(long, value_name = "FILE")]
    requests: Option<PathBuf>,
    /// Apply the model's chat template to the prompt (default)
    #[arg(long, conflicts_with = "raw")]
    chat: bool,
    /// Continue the prompt as plain text, without a chat template
    #[arg(long)]
    raw: bool,
    /// The system message before the prompt
    #[arg(long, value_name = "TEXT", conflicts_with = "raw")]
    system: Option<String>,
    /// Maximum number of tokens of the answer [default: until the context is full]
    #[arg(short = 'n', long, value_name = "N")]
    max_tokens: Option<u32>,
    /// End the answer at this text; may be repeated
    #[arg(long, value_name = "TEXT")]
    stop: Vec<String>,
    /// Continue after end-of-text tokens
    #[arg(long)]
    ignore_end: bool,
    /// Report the K most probable tokens at each position (JSON only)
    #[arg(long, value_name = "K", default_value_t = 0,
          value_parser = clap::value_parser!(u32).range(..=MOST_LOGPROBS as i64))]
    logprobs: u32,
    #[command(flatten)]
    sampling: SamplingArgs,
    #[command(flatten)]
    device: DeviceArgs,
    #[command(flatten)]
    engine: EngineArgs,
    #[command(flatten)]
    draft: DraftArgs,
    /// Print one JSON object at the end instead of streaming text
    #[arg(long)]
    json: bool,
}

const MOST_LOGPROBS: u32 = 128;

/// A line of `--requests`; absent fields default to the command's options.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    id: Option<Value>,
    prompt: Option<String>,
    messages: Option<Vec<Value>>,
    tokens: Option<Vec<Token>>,
    #[serde(default)]
    template_variables: Map<String, Value>,
    tools: Option<Value>,
    raw: Option<bool>,
    max_tokens: Option<u32>,
    stop: Option<Vec<String>>,
    ignore_end: Option<bool>,
    logprobs: Option<u32>,
    temperature: Option<f32>,
    top_k: Option<u32>,
    top_p: Option<f32>,
    min_p: Option<f32>,
    seed: Option<u64>,
    repetition_penalty: Option<f32>,
}

/// An answer as JSON.
#[derive(Default, Serialize)]
struct Answer {
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<Value>,
    prompt_tokens: Vec<Token>,
    tokens: Vec<Token>,
    text: String,
    /// The most probable tokens at each position, [id, logprob]; empty if not requested.
    logprobs: Vec<Vec<(Token, f32)>>,
    /// Logprob of each token itself.
    token_logprobs: Vec<f32>,
    finish_reason: &'static str,
    cached_tokens: usize,
    draft_tokens: usize,
    accepted_draft_tokens: usize,
    prompt_seconds: f64,
    decode_seconds: f64,
}

pub fn run(args: Args) -> Outcome {
    interrupt::install()?;
    let gguf = load::gguf(&args.model.model)?;
    let tokenizer = Arc::new(Tokenizer::from_gguf(&gguf)?);
    let prompter = Prompter::new(tokenizer.vocabulary(), None);
    let asker = Asker {
        tokenizer,
        prompter,
        defaults: &args,
    };
    // Errors in the prompt or the template are reported before the weights are loaded.
    let single = match &args.requests {
        Some(_) => None,
        None => Some(asker.request(&one_line(&args)?)?),
    };
    let model = load::model(&args.device, &gguf)?;
    let most = if single.is_none() {
        MOST_LOGPROBS
    } else {
        args.logprobs
    };
    let options = args
        .engine
        .options(model.info().context_length)
        .max_top_logprobs(most);
    let tokenizer = asker.tokenizer.clone();
    let draft = &args.draft;
    let mut session = draft.session(&model, tokenizer, &args.engine, options)?;
    let reason = match (&single, &args.requests) {
        (Some(request), _) if args.json => {
            let answer = answer(&mut session, request, None)?;
            input::print_json(&answer)?;
            answer.finish_reason
        }
        (Some(request), _) => {
            let summary = stream(&mut session, request)?;
            print_speed(&summary, &model)?;
            summary.reason.as_str()
        }
        (None, path) => {
            let path = path.as_deref().unwrap_or_else(|| "-".as_ref());
            return input::answer_lines(path, |line: Line| {
                let request = asker.request(&line)?;
                let answer = answer(&mut session, &request, line.id)?;
                refuse_cancelled(answer.finish_reason).map(|()| answer)
            });
        }
    };
    refuse_cancelled(reason)
}

fn refuse_cancelled(reason: &str) -> Outcome {
    if reason == FinishReason::Cancelled.as_str() {
        Err(Failure::interrupted())
    } else {
        Ok(())
    }
}

/// The request that the options describe.
fn one_line(args: &Args) -> Outcome<Line> {
    let text = match (&args.words, &args.prompt, &args.prompt_file) {
        (Some(text), ..) | (None, Some(text), _) => text.clone(),
        (None, None, Some(path)) => input::text(path)?,
        (None, None, None) => prompt_from_stdin()?,
    };
    Ok(Line {
        prompt: Some(text),
        ..Line::default()
    })
}

fn prompt_from_stdin() -> Outcome<String> {
    if io::stdin().is_terminal() {
        eprintln!("enter the prompt, then Ctrl-D:");
    }
    let mut text = String::new();
    io::stdin()
        .read_to_string(&mut text)
        .map_err(|error| Failure::new(format!("reading the prompt: {error}")))?;
    Ok(text)
}

/// Streams the answer to stdout.
fn stream(session: &mut Session, request: &Request) -> Outcome<Summary> {
    let cancel = interrupt::watch_generation();
    let mut out = terminal::Stdout::lock();
    let mut ends_line = true;
    for event in session.generate_cancellable(request, &cancel)? {
        match event? {
            Event::Text(text) => {
                out.write_text(&text)?;
                out.flush()?;
                ends_line = text.ends_with('\n');
            }
            Event::Done(summary) => {
                interrupt::watch_nothing();
                if !ends_line {
                    writeln!(out)?;
                }
                return Ok(summary);
            }
            _ => {}
        }
    }
    Err(Failure::new("the generation ended without a result"))
}

fn answer(session: &mut Session, request: &Request, id: Option<Value>) -> Outcome<Answer> {
    let cancel = interrupt::watch_generation();
    let wants_top = request.sampling.top_logprobs > 0;
    let generation = session.generate_cancellable(request, &cancel)?;
    let prompt_tokens = generation.prompt_tokens().to_vec();
    let mut answer = Answer {
        id,
        prompt_tokens,
        ..Answer::default()
    };
    for event in generation {
        match event? {
            Event::Token {
                token,
                logprob,
                top,
            } => {
                answer.tokens.push(token);
                answer.token_logprobs.push(logprob);
                if wants_top {
                    answer.logprobs.push(top);
                }
            }
            Event::Text(text) => answer.text += &text,
            Event::Done(summary) => {
                answer.finish_reason = summary.reason.as_str();
                answer.cached_tokens = summary.cached_tokens;
                answer.draft_tokens = summary.draft_tokens;
                answer.accepted_draft_tokens = summary.accepted_draft_tokens;
                answer.prompt_seconds = summary.prompt_time.as_secs_f64();
                answer.decode_seconds = summary.decode_time.as_secs_f64();
            }
            _ => {}
        }
    }
    interrupt::watch_nothing();
    Ok(answer)
}

/// Builds requests from lines and options.
struct Asker<'a> {
    tokenizer: Arc<Tokenizer>,
    prompter: Prompter,
    defaults: &'a Args,
}

impl Asker<'_> {
    fn request(&self, line: &Line) -> Outcome<Request> {
        let args = self.defaults;
        let mut request = Request::tokens(self.prompt(line)?);
        request.sampling = self.sampling(line);
        request.max_tokens = line.max_tokens.or(args.max_tokens);
        request.stop = line.stop.clone().unwrap_or_else(|| args.stop.clone());
        request.ignore_end = line.ignore_end.unwrap_or(args.ignore_end);
        Ok(request)
    }

    fn prompt(&self, line: &Line) -> Outcome<Vec<Token>> {
        let tokenizer = &self.tokenizer;
        let messages = match (&line.prompt, &line.messages, &line.tokens) {
            (None, None, Some(tokens)) => return Ok(tokens.clone()),
            (Some(text), None, None) if line.raw.unwrap_or(self.defaults.raw) => {
                return prompt::raw(tokenizer, text);
            }
            (Some(text), None, None) => {
                let system = self.defaults.system.iter();
                let system = system.map(|system| prompt::message("system", system));
                system.chain([prompt::message("user", text)]).collect()
            }
            (None, Some(messages), None) => messages.clone(),
            _ => {
                return Err(Failure::new(
                    "a request needs exactly one of prompt, messages and tokens",
                ));
            }
        };
        let mut request = line.template_variables.clone();
        request.insert("messages".into(), Value::Array(messages));
        if let Some(tools) = &line.tools {
            request.insert("tools".into(), tools.clone());
        }
        self.prompter.tokens(tokenizer, request)
    }

    fn sampling(&self, line: &Line) -> Sampling {
        let mut sampling = self.defaults.sampling.sampling();
        let set = |to: &mut f32, from: Option<f32>| *to = from.unwrap_or(*to);
        set(&mut sampling.temperature, line.temperature);
        set(&mut sampling.top_p, line.top_p);
        set(&mut sampling.min_p, line.min_p);
        set(&mut sampling.repetition_penalty, line.repetition_penalty);
        sampling.top_k = line.top_k.unwrap_or(sampling.top_k);
        sampling.seed = line.seed.unwrap_or(sampling.seed);
        sampling.top_logprobs = line.logprobs.unwrap_or(self.defaults.logprobs);
        sampling
    }
}

/// Prints one line on stderr; stdout has only the answer.
pub fn print_speed(summary: &Summary, model: &Model) -> Outcome {
    let machine = Machine::of(model.context())?;
    let rate = |tokens: usize, seconds: f64| tokens as f64 / seconds.max(1e-9);
    let computed = summary.prompt_tokens - summary.cached_tokens;
    // The first token is sampled with the prompt.
    let decoded = summary.tokens.saturating_sub(1);
    let speed = rate(decoded, summary.decode_time.as_secs_f64());
    let bytes = machine::bytes_per_token(model.gguf())? as f64 * speed;
    let share = machine
        .share(bytes)
        .map_or_else(String::new, |share| format!(" ({share:.0} % of bandwidth)"));
    let drafts = match summary.draft_tokens {
        0 => String::new(),
        count => format!(", {} of {count} drafts held", summary.accepted_draft_tokens),
    };
    eprintln!(
        "prompt {computed} tokens at {:.1} tok/s, answer {} tokens at {speed:.1} tok/s{share}{drafts}, \
         peak memory {} on {}",
        rate(computed, summary.prompt_time.as_secs_f64()),
        summary.tokens,
        size::short(machine.peak_bytes),
        machine.label(),
    );
    Ok(())
}
