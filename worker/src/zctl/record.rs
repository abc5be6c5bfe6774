//! `zctl record`: runs a guest and writes its transcript.

use std::fs::File;
use std::io::BufWriter;
use std::path::PathBuf;

use worker_cuda::Backend;
use worker_cuda::zctl::Recorder;

use super::exec;
use crate::failure::{Failure, Outcome};
use crate::options::BackendChoice;

#[derive(clap::Args)]
#[group(skip)]
pub struct Args {
    #[command(flatten)]
    exec: exec::Args,
    /// Where the transcript goes: lines of JSON
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
}

pub fn run(args: &Args) -> Outcome {
    let exec = &args.exec;
    let kernels = exec.kernels()?;
    let backend = match &kernels {
        Some(Ok(compute)) => compute.device().context().info()?.backend,
        _ if exec.device.backend == BackendChoice::Cuda => Backend::Cuda,
        _ => Backend::Host,
    };
    let manifest = match &exec.manifest {
        Some(path) => std::fs::read(path).map_err(|error| Failure::file(path, &error))?,
        None => Vec::new(),
    };
    let file = File::create(&args.out).map_err(|error| Failure::file(&args.out, &error))?;
    let recorder = Recorder::new(BufWriter::new(file), backend, &manifest);
    exec.run_guest(kernels.as_ref(), Some(recorder))
}
