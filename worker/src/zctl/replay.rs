//! `zctl replay`: runs a recorded guest without a device.

use std::path::{Path, PathBuf};

use serde_json::json;
use worker_cuda::zctl::{Divergence, Replay, Transcript};

use super::exec::GuestArgs;
use crate::failure::{Failure, Outcome};
use crate::input::print_json;

#[derive(clap::Args)]
#[group(skip)]
pub struct Args {
    /// The transcript that `zctl record` wrote
    #[arg(value_name = "T.jsonl")]
    transcript: PathBuf,
    #[command(flatten)]
    guest: GuestArgs,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

pub fn run(args: &Args) -> Outcome {
    let path = &args.transcript;
    let bytes = std::fs::read(path).map_err(|error| Failure::file(path, &error))?;
    let text = std::str::from_utf8(&bytes).map_err(|error| {
        let before = &bytes[..error.valid_up_to()];
        let line = 1 + before.iter().filter(|byte| **byte == b'\n').count();
        Failure::new(format!("{}: line {line}: {error}", path.display()))
    })?;
    let loaded = args.guest.load()?;
    let differs = |divergence: &Divergence| describe(path, divergence, args.json);
    let transcript: Transcript = text.parse().map_err(|error| differs(&error))?;
    // A guest that ignores failures might never return.
    let end = |divergence: &Divergence| {
        differs(divergence).print();
        std::process::exit(1)
    };
    let mut replay = Replay::new(&transcript)
        .with_handles(loaded.handles)
        .at_divergence(end);
    let ran = loaded.run(&mut replay);
    let calls = replay.finish().map_err(|error| differs(&error))?;
    ran?;
    if args.json {
        return print_json(&json!({ "calls": calls }));
    }
    println!("{calls} calls are as recorded");
    Ok(())
}

/// The failure; with `as_json` an object on stdout says it too.
fn describe(path: &Path, divergence: &Divergence, as_json: bool) -> Failure {
    if as_json {
        // The failure that follows is reported, whether this could be printed or not.
        let _ = print_json(&json!({
            "line": divergence.line,
            "byte": divergence.byte,
            "expected": divergence.expected,
            "found": divergence.found,
        }));
    }
    Failure::new(format!("{}: {divergence}", path.display()))
}
