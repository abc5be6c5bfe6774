//! The command line `worker-orcd`.

fn main() -> std::process::ExitCode {
    worker_orcd::main()
}
