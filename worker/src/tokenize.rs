//! `tokenize` and `detokenize`: convert text to token ids and back.

use std::io::Write;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use worker_cuda::Token;
use worker_cuda::text::{DecodeOptions, EncodeOptions, Tokenizer};

use crate::failure::{Failure, Outcome};
use crate::input;
use crate::load;
use crate::options::ModelArgs;

#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    model: ModelArgs,
    /// The text [default: stdin]
    #[arg(value_name = "TEXT", conflicts_with_all = ["file", "requests"])]
    text: Option<String>,
    /// A file with the text; - is stdin
    #[arg(long, value_name = "FILE", conflicts_with = "requests")]
    file: Option<PathBuf>,
    /// A file with one {"text", "add_special", "parse_special"} per line; prints one {"tokens"} per line
    #[arg(long, value_name = "FILE")]
    requests: Option<PathBuf>,
    /// Add the model's begin- and end-of-text tokens
    #[arg(long)]
    add_special: bool,
    /// Parse names of control tokens in the text as these tokens
    #[arg(long)]
    parse_special: bool,
    /// Print {"tokens": […]}
    #[arg(long)]
    json: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Request {
    text: String,
    add_special: Option<bool>,
    parse_special: Option<bool>,
}

#[derive(Serialize)]
struct Tokens {
    tokens: Vec<Token>,
}

pub fn run(args: Args) -> Outcome {
    let tokenizer = tokenizer(&args.model)?;
    let encode = |request: Request| -> Outcome<Tokens> {
        let options = EncodeOptions {
            add_special: request.add_special.unwrap_or(args.add_special),
            parse_special: request.parse_special.unwrap_or(args.parse_special),
        };
        Ok(Tokens {
            tokens: tokenizer.encode(&request.text, options)?,
        })
    };
    if let Some(path) = &args.requests {
        return input::answer_lines(path, encode);
    }
    let text = match (args.text, args.file) {
        (Some(text), _) => text,
        (None, file) => input::text(&file.unwrap_or_else(|| "-".into()))?,
    };
    let tokens = encode(Request {
        text,
        add_special: None,
        parse_special: None,
    })?;
    if args.json {
        return input::print_json(&tokens);
    }
    let mut out = std::io::stdout().lock();
    for token in tokens.tokens {
        let bytes = tokenizer.token_bytes(token).unwrap_or_default();
        writeln!(out, "{token:>8} {:?}", String::from_utf8_lossy(bytes))?;
    }
    Ok(())
}

#[derive(clap::Args)]
pub struct DetokenizeArgs {
    #[command(flatten)]
    model: ModelArgs,
    /// Token ids [default: stdin]
    #[arg(value_name = "ID", conflicts_with_all = ["file", "requests"])]
    ids: Vec<Token>,
    /// A file with ids: a JSON list, or numbers separated by spaces; - is stdin
    #[arg(long, value_name = "FILE", conflicts_with = "requests")]
    file: Option<PathBuf>,
    /// A file with one {"tokens"} per line; prints one {"text"} per line
    #[arg(long, value_name = "FILE")]
    requests: Option<PathBuf>,
    /// Show control tokens too
    #[arg(long)]
    special: bool,
    /// Print {"text": …}
    #[arg(long)]
    json: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct DetokenizeRequest {
    tokens: Vec<Token>,
}

#[derive(Serialize)]
struct Text {
    text: String,
}

pub fn run_detokenize(args: DetokenizeArgs) -> Outcome {
    let tokenizer = tokenizer(&args.model)?;
    let decode = |request: DetokenizeRequest| -> Outcome<Text> {
        let options = DecodeOptions {
            show_special: args.special,
            at_text_start: true,
        };
        Ok(Text {
            text: tokenizer.decode(&request.tokens, options)?,
        })
    };
    if let Some(path) = &args.requests {
        return input::answer_lines(path, decode);
    }
    let tokens = if args.ids.is_empty() {
        parse_ids(&input::text(&args.file.unwrap_or_else(|| "-".into()))?)?
    } else {
        args.ids
    };
    let text = decode(DetokenizeRequest { tokens })?;
    if args.json {
        return input::print_json(&text);
    }
    std::io::stdout().write_all(text.text.as_bytes())?;
    Ok(())
}

/// A JSON list, {"tokens": […]}, or numbers separated by spaces.
fn parse_ids(text: &str) -> Outcome<Vec<Token>> {
    if text.trim_start().starts_with('[') {
        return Ok(serde_json::from_str(text)?);
    }
    if text.trim_start().starts_with('{') {
        return Ok(serde_json::from_str::<DetokenizeRequest>(text)?.tokens);
    }
    text.split_whitespace()
        .map(|word| {
            word.parse()
                .map_err(|_| Failure::new(format!("'{word}' is not a token id")))
        })
        .collect()
}

fn tokenizer(model: &ModelArgs) -> Outcome<Tokenizer> {
    let gguf = load::gguf(&model.model)?;
    Ok(Tokenizer::from_gguf(&gguf)?)
}
