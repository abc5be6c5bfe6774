//! `template`: renders messages with the model's chat template.

use std::io::Write;
use std::path::PathBuf;

use serde_json::{Map, Value, json};
use worker_cuda::text::Vocabulary;

use crate::failure::Outcome;
use crate::input;
use crate::load;
use crate::options::ModelArgs;
use crate::prompt::Prompter;

#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    model: ModelArgs,
    /// A JSON request {"messages", "tools", "add_generation_prompt", further variables}; - is stdin
    #[arg(long, value_name = "FILE", required_unless_present = "requests")]
    request: Option<PathBuf>,
    /// A file with one such request per line; prints one {"text"} per line
    #[arg(long, value_name = "FILE", conflicts_with = "request")]
    requests: Option<PathBuf>,
    /// Name of the template, if the file has several
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// Print {"text": …}
    #[arg(long)]
    json: bool,
}

pub fn run(args: Args) -> Outcome {
    let gguf = load::gguf(&args.model.model)?;
    let prompter = Prompter::new(&Vocabulary::from_gguf(&gguf)?, args.name.as_deref());
    let render = |request| -> Outcome<Value> { Ok(json!({ "text": prompter.render(request)? })) };
    if let Some(path) = &args.requests {
        return input::answer_lines(path, render);
    }
    let request: Map<String, Value> = input::json(&args.request.unwrap_or_else(|| "-".into()))?;
    if args.json {
        return input::print_json(&render(request)?);
    }
    std::io::stdout().write_all(prompter.render(request)?.as_bytes())?;
    Ok(())
}
