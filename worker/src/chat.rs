//! `chat`: a conversation, line by line; earlier turns stay in the KV cache.

use std::io::{self, BufRead, IsTerminal, Write};
use std::sync::Arc;

use serde_json::Value;
use worker_cuda::generate::{Event, FinishReason, Request, Session};
use worker_cuda::text::Tokenizer;

use crate::failure::{Failure, Outcome};
use crate::interrupt;
use crate::load;
use crate::options::{DeviceArgs, DraftArgs, EngineArgs, ModelArgs, SamplingArgs};
use crate::prompt::{Prompter, conversation, message};
use crate::terminal;

#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    model: ModelArgs,
    /// The system message
    #[arg(long, value_name = "TEXT")]
    system: Option<String>,
    /// Maximum number of tokens of one answer [default: until the context is full]
    #[arg(short = 'n', long, value_name = "N")]
    max_tokens: Option<u32>,
    #[command(flatten)]
    sampling: SamplingArgs,
    #[command(flatten)]
    device: DeviceArgs,
    #[command(flatten)]
    engine: EngineArgs,
    #[command(flatten)]
    draft: DraftArgs,
}

pub fn run(args: Args) -> Outcome {
    interrupt::install()?;
    let gguf = load::gguf(&args.model.model)?;
    let model = load::model(&args.device, &gguf)?;
    let options = args.engine.options(model.info().context_length);
    let tokenizer = Arc::new(Tokenizer::from_gguf(&gguf)?);
    let draft = &args.draft;
    let mut session = draft.session(&model, tokenizer, &args.engine, options)?;
    let prompter = Prompter::new(session.tokenizer().vocabulary(), None);
    let first: Vec<Value> = args
        .system
        .iter()
        .map(|text| message("system", text))
        .collect();
    let mut history = first.clone();
    let interactive = io::stdin().is_terminal();
    if interactive {
        eprintln!("/clear starts a new conversation, /exit or Ctrl-D ends, Ctrl-C stops an answer");
    }
    loop {
        if interactive {
            eprint!("> ");
        }
        let mut line = String::new();
        let read = io::stdin()
            .lock()
            .read_line(&mut line)
            .map_err(|error| Failure::new(format!("reading a line: {error}")))?;
        match line.trim() {
            _ if read == 0 => return Ok(()),
            "" => continue,
            "/exit" => return Ok(()),
            "/clear" => history.clone_from(&first),
            text => {
                history.push(message("user", text));
                let tokens = prompter.tokens(session.tokenizer(), conversation(history.clone()))?;
                let mut sampling = args.sampling.sampling();
                sampling.no_logprob = true;
                let mut request = Request::tokens(tokens).sampling(sampling);
                request.max_tokens = args.max_tokens;
                let answer = answer(&mut session, &request)?;
                history.push(message("assistant", &answer));
            }
        }
    }
}

/// Streams an answer to stdout and returns it.
fn answer(session: &mut Session, request: &Request) -> Outcome<String> {
    let cancel = interrupt::watch_generation();
    let mut out = terminal::Stdout::lock();
    let mut answer = String::new();
    for event in session.generate_cancellable(request, &cancel)? {
        match event? {
            Event::Text(text) => {
                out.write_text(&text)?;
                out.flush()?;
                answer += &text;
            }
            Event::Done(summary) => {
                writeln!(out)?;
                match summary.reason {
                    FinishReason::Length => eprintln!("(truncated: --max-tokens reached)"),
                    FinishReason::ContextFull => eprintln!(
                        "(truncated: the context is full; /clear starts a new conversation)"
                    ),
                    FinishReason::Cancelled => eprintln!("(stopped)"),
                    _ => {}
                }
            }
            _ => {}
        }
    }
    interrupt::watch_nothing();
    Ok(answer)
}
