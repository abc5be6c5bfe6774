//! `zctl`: serves kernels over the binary protocol ZCTL/1, and calls a server.

use crate::failure::Outcome;

mod arg;
mod call;
mod serve;

#[derive(clap::Args)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand)]
enum Command {
    /// Serves kernels on a Unix socket, or on stdin and stdout
    Serve(serve::Args),
    /// Sends one request to a server
    Call(call::Args),
}

pub fn run(args: Args) -> Outcome {
    match args.command {
        Command::Serve(args) => serve::run(&args),
        Command::Call(args) => call::run(&args),
    }
}
