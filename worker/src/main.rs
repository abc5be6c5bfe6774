//! The command line `worker-orcd`: GGUF models at work on this machine.

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use failure::Outcome;

mod backend;
mod bench;
mod chat;
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
mod steps;
mod template;
mod terminal;
mod tokenize;
mod vram;

/// Runs GGUF language models on a GPU, or on the processor.
#[derive(Parser)]
#[command(name = "worker-orcd", version, arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Answers a prompt, as it is generated
    Run(run::Args),
    /// Talks, line by line
    Chat(chat::Args),
    /// Shows metadata, tensors and formats of a file
    Inspect(inspect::Args),
    /// Tells what a model needs and whether it fits
    Plan(plan::Args),
    /// Turns text into token ids
    Tokenize(tokenize::Args),
    /// Turns token ids into text
    Detokenize(tokenize::DetokenizeArgs),
    /// Renders messages through the model's chat template
    Template(template::Args),
    /// Measures prefill and decode
    Bench(bench::Args),
    /// Lists the devices of this machine
    Devices(devices::Args),
    /// Lists backends, checks that they compute right
    Backend(backend::Args),
    /// Shows a device's memory, checks it, looks for leaks, digests files on it
    Vram(vram::Args),
    /// Lists kernels that can be run by name
    Kernels(kernels::Args),
    /// Runs kernels, compiles them, tells how they fill a device
    Compute(compute::Args),
    /// Writes the logits of given tokens, for checks against other engines
    Logits(logits::Args),
}

fn main() -> ExitCode {
    // Usage mistakes end here, with status 2.
    let outcome = match Cli::parse().command {
        Command::Run(args) => run::run(args),
        Command::Chat(args) => chat::run(args),
        Command::Inspect(args) => inspect::run(args),
        Command::Plan(args) => plan::run(args),
        Command::Tokenize(args) => tokenize::run(args),
        Command::Detokenize(args) => tokenize::run_detokenize(args),
        Command::Template(args) => template::run(args),
        Command::Bench(args) => bench::run(args),
        Command::Devices(args) => devices::run(args),
        Command::Backend(args) => backend::run(args),
        Command::Vram(args) => vram::run(args),
        Command::Kernels(args) => kernels::run(args),
        Command::Compute(args) => compute::run(args),
        Command::Logits(args) => logits::run(args),
    };
    report(outcome)
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
