//! The command line `worker-orcd`: runs, serves and examines GGUF models.
//!
//! As a library it offers [`serve`], which answers HTTP requests with any
//! [`Service`](worker_cuda::generate::Service), [`zctl::isolate`], which keeps a served device in processes of their own,
//! and [`main`], the command line itself.

use std::ffi::OsString;
use std::process::ExitCode;

use clap::{ArgMatches, CommandFactory, FromArgMatches, Parser, Subcommand};

use failure::Outcome;

mod backend;
mod bench;
mod chat;
mod client;
mod compute;
mod devices;
mod failure;
mod input;
mod inspect;
mod interrupt;
mod kernels;
mod load;
mod logits;
mod machine;
mod npy;
mod options;
mod plan;
mod prompt;
mod run;
pub mod serve;
mod size;
mod steps;
mod template;
mod terminal;
mod tokenize;
mod traffic;
mod vram;
pub mod zctl;

/// Runs GGUF language models on a GPU or on the CPU
#[derive(Parser)]
#[command(name = "worker-orcd", version, arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Generates an answer to a prompt and streams it
    Run(run::Args),
    /// Answers HTTP requests of OpenAI's clients, many at once
    Serve(serve::Args),
    /// Prints the options that serve would use, and where each of them comes from
    Config(serve::Args),
    /// Holds a conversation, line by line
    Chat(chat::Args),
    /// Shows metadata, tensors and formats of a GGUF file
    Inspect(inspect::Args),
    /// Computes the memory that a model needs; exits with 1 if it does not fit
    Plan(plan::Args),
    /// Converts text to token ids
    Tokenize(tokenize::Args),
    /// Converts token ids to text
    Detokenize(tokenize::DetokenizeArgs),
    /// Renders messages with the model's chat template
    Template(template::Args),
    /// Measures prefill and decode
    Bench(bench::Args),
    /// Sends requests to a server, checks the streams, and measures them
    Load(traffic::Args),
    /// Lists the devices of this machine
    Devices(devices::Args),
    /// Lists backends and checks their results
    Backend(backend::Args),
    /// Shows and checks device memory, finds leaks, computes digests
    Vram(vram::Args),
    /// Lists kernels that can be run by name
    Kernels(kernels::Args),
    /// Runs and compiles kernels, computes their occupancy
    Compute(compute::Args),
    /// Serves kernels over the binary protocol ZCTL/1, calls a server, runs and replays guests
    Zctl(zctl::Args),
    /// Writes the logits of given tokens, to compare with other engines
    Logits(logits::Args),
}

/// Carries out the command of this process's arguments.
pub fn main() -> ExitCode {
    // A usage error exits here with status 2.
    let mut arguments: Vec<OsString> = std::env::args_os().collect();
    if is_older_form(&arguments) {
        arguments.insert(1, "serve".into());
    }
    let outcome = match parse(&arguments) {
        Ok((cli, configuration)) => run(cli.command, &configuration),
        Err(failure) => Err(failure),
    };
    report(outcome)
}

/// Whether a command line is one of the older worker, which had no commands and needed an id.
fn is_older_form(arguments: &[OsString]) -> bool {
    let mut options = arguments.iter().skip(1).map(|text| text.as_encoded_bytes());
    let begins_with_option = options
        .clone()
        .next()
        .is_some_and(|first| first.starts_with(b"--"));
    let is_id = |text: &[u8]| text == b"--worker-id" || text.starts_with(b"--worker-id=");
    begins_with_option && options.any(is_id)
}

/// Commands whose options come from a file and the environment too.
const CONFIGURED: [&str; 2] = ["serve", "config"];

/// The command of a command line, and for [`CONFIGURED`] ones the options as text.
fn parse(arguments: &[OsString]) -> Outcome<(Cli, String)> {
    let command = Cli::command();
    let from =
        |matches: &ArgMatches| Cli::from_arg_matches(matches).unwrap_or_else(|error| error.exit());
    // What is missing here may come from elsewhere. Errors are those of all sources together, at the end.
    let lenient = |command: &clap::Command| {
        let command = command.clone().ignore_errors(true);
        command.get_matches_from(arguments)
    };
    let line = lenient(&command);
    let Some((name, flags)) = line
        .subcommand()
        .filter(|(name, _)| CONFIGURED.contains(name))
    else {
        return Ok((from(&command.get_matches_from(arguments)), String::new()));
    };
    let mut command =
        command.mut_subcommand(name, |command| serve::with_environment(command, flags));
    let given = lenient(&command);
    let (_, options) = given.subcommand().unwrap_or((name, flags));
    command.build();
    // The name is the first argument: there are no options in front of it.
    let (head, tail) = arguments.split_at(2.min(arguments.len()));
    let found = command.find_subcommand(name).map_or_else(
        || Ok(tail.to_vec()),
        |subcommand| serve::with_file(subcommand, options, tail),
    )?;
    let whole = command.clone().get_matches_from([head, &found].concat());
    let text = match (command.find_subcommand(name), whole.subcommand()) {
        (Some(subcommand), Some((_, found))) => serve::describe(subcommand, options, found),
        _ => String::new(),
    };
    Ok((from(&whole), text))
}

fn run(command: Command, configuration: &str) -> Outcome {
    match command {
        Command::Run(args) => run::run(args),
        Command::Serve(args) => serve::run(&args),
        Command::Config(_) => {
            print!("{configuration}");
            Ok(())
        }
        Command::Chat(args) => chat::run(args),
        Command::Inspect(args) => inspect::run(args),
        Command::Plan(args) => plan::run(args),
        Command::Tokenize(args) => tokenize::run(args),
        Command::Detokenize(args) => tokenize::run_detokenize(args),
        Command::Template(args) => template::run(args),
        Command::Bench(args) => bench::run(args),
        Command::Load(args) => traffic::run(&args),
        Command::Devices(args) => devices::run(args),
        Command::Backend(args) => backend::run(args),
        Command::Vram(args) => vram::run(args),
        Command::Kernels(args) => kernels::run(args),
        Command::Compute(args) => compute::run(args),
        Command::Zctl(args) => zctl::run(args),
        Command::Logits(args) => logits::run(args),
    }
}

fn report(outcome: Outcome) -> ExitCode {
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            failure.print();
            failure.exit_code()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::is_older_form;

    #[test]
    fn the_older_form_begins_with_an_option_and_has_an_id() {
        for (line, is_older) in [
            ("worker --worker-id w1 --model f", true),
            ("worker --worker-id=w1 --model f", true),
            ("worker --model f --worker-id w1", true),
            ("worker serve --worker-id w1 f", false),
            ("worker --help", false),
            ("worker --worker-ids", false),
            ("worker", false),
        ] {
            let arguments: Vec<_> = line.split(' ').map(Into::into).collect();
            assert_eq!(is_older_form(&arguments), is_older, "{line}");
        }
    }
}
