//! `zctl`: serves kernels over the binary protocol ZCTL/1, calls a server, and runs, records and replays guests.

use crate::failure::Outcome;

mod arg;
mod call;
mod exec;
pub mod isolate;
mod record;
mod replay;
mod serve;

#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand)]
enum Command {
    /// Serves kernels on a Unix socket, or on stdin and stdout
    Serve(serve::Args),
    /// Sends one request to a server
    Call(call::Args),
    /// Runs a guest, a shared object with lembeh_handle, on stdin and stdout
    Exec(exec::Args),
    /// Runs a guest like exec, and records what it asks and is given
    Record(record::Args),
    /// Runs a recorded guest without a device; exits with 1 at the first difference
    Replay(replay::Args),
}

pub(crate) fn run(args: Args) -> Outcome {
    match args.command {
        Command::Serve(args) => serve::run(&args),
        Command::Call(args) => call::run(&args),
        Command::Exec(args) => exec::run(&args),
        Command::Record(args) => record::run(&args),
        Command::Replay(args) => replay::run(&args),
    }
}
