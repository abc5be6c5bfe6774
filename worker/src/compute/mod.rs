//! `compute`: runs kernels on arrays, compiles them, computes their occupancy.

use std::path::{Path, PathBuf};

use serde_json::json;
use worker_cuda::{CodeKind, CudaFunction, CudaModule, ErrorKind, Program};

use crate::failure::{Failure, Outcome};
use crate::input::{print_json, text};
use crate::load;
use crate::options::DeviceArgs;
use crate::size;

pub mod call;
mod run;

#[derive(clap::Args)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
    /// Print one JSON object
    #[arg(long, global = true)]
    json: bool,
}

#[derive(clap::Subcommand)]
enum Command {
    /// Runs a kernel of the catalogue or of a manifest once on .npy files; reports the time of this first call
    Run(run::Args),
    /// Compiles CUDA C++; needs no GPU if --arch is given
    Compile(CompileArgs),
    /// Shows the occupancy of a kernel by block size
    Occupancy(OccupancyArgs),
}

#[derive(clap::Args)]
struct CompilerArgs {
    /// "sm_90a" for machine code, "compute_90" for PTX [default: the device's]
    #[arg(long)]
    arch: Option<String>,
    /// The folder of libnvrtc, if the loader does not find it
    #[arg(long, value_name = "DIR")]
    nvrtc: Option<PathBuf>,
}

#[derive(clap::Args)]
struct CompileArgs {
    /// CUDA C++ source; "-" is stdin
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Write the code to this file
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Instantiate this template: `scale<float>`
    #[arg(long, value_name = "EXPRESSION")]
    entry: Vec<String>,
    #[command(flatten)]
    compiler: CompilerArgs,
}

#[derive(clap::Args)]
struct OccupancyArgs {
    /// CUDA C++, PTX, a cubin or a fatbin
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Name of the kernel
    #[arg(value_name = "NAME")]
    name: String,
    /// Dynamic shared memory per block, in bytes
    #[arg(long, value_name = "BYTES", default_value_t = 0)]
    shared: u64,
    #[command(flatten)]
    compiler: CompilerArgs,
    #[command(flatten)]
    device: DeviceArgs,
}

/// Block sizes that `occupancy` reports.
const BLOCKS: [u32; 6] = [32, 64, 128, 256, 512, 1024];

pub fn run(args: Args) -> Outcome {
    match args.command {
        Command::Run(inner) => run::run(&inner, args.json),
        Command::Compile(inner) => compile(&inner, args.json),
        Command::Occupancy(inner) => occupancy(&inner, args.json),
    }
}

fn kind_name(kind: CodeKind) -> &'static str {
    match kind {
        CodeKind::Ptx => "ptx",
        CodeKind::Cubin => "cubin",
        CodeKind::Fatbin => "fatbin",
        _ => "unknown",
    }
}

/// A failed compilation; prints the compiler's log.
fn compile_failure(error: worker_cuda::Error) -> Failure {
    if let Some(log) = error.compile_log() {
        eprintln!("{}", log.trim_end());
    }
    error.into()
}

fn compile(args: &CompileArgs, as_json: bool) -> Outcome {
    let mut builder = Program::builder(text(&args.file)?).name(args.file.display().to_string());
    for entry in &args.entry {
        builder = builder.expression(entry);
    }
    if let Some(folder) = &args.compiler.nvrtc {
        builder = builder.library_folder(folder);
    }
    builder = match &args.compiler.arch {
        Some(arch) => builder.architecture(arch),
        None => {
            let context = worker_cuda::CudaContext::new(0)
                .map_err(|error| Failure::from(error).hint("with --arch no GPU is needed"))?;
            builder.for_device(&context)
        }
    };
    let program = builder.compile().map_err(compile_failure)?;
    let (info, code) = (program.info()?, program.code()?);
    if let Some(path) = &args.out {
        std::fs::write(path, code).map_err(|error| Failure::file(path, &error))?;
    }
    let milliseconds = info.compile_ns as f64 / 1e6;
    if as_json {
        return print_json(&json!({
            "kind": kind_name(info.kind),
            "architecture": info.architecture,
            "bytes": code.len(),
            "nvrtc_version": info.nvrtc_version,
            "compile_ms": milliseconds,
        }));
    }
    println!(
        "{} of {} for {}, NVRTC {}.{}, {milliseconds:.1} ms",
        kind_name(info.kind),
        size::exact(code.len() as u64),
        info.architecture,
        info.nvrtc_version / 1000,
        info.nvrtc_version % 1000 / 10
    );
    Ok(())
}

/// The kernel, from code or from source.
fn function(args: &OccupancyArgs, context: &worker_cuda::CudaContext) -> Outcome<CudaFunction> {
    let bytes = read(&args.file)?;
    let module = if CodeKind::of(&bytes).is_ok() {
        CudaModule::load(context, &bytes)?
    } else {
        let source = String::from_utf8(bytes).map_err(|_| {
            Failure::new(format!(
                "{}: neither device code nor text",
                args.file.display()
            ))
        })?;
        let mut builder = Program::builder(source)
            .name(args.file.display().to_string())
            .for_device(context);
        if let Some(arch) = &args.compiler.arch {
            builder = builder.architecture(arch);
        }
        if let Some(folder) = &args.compiler.nvrtc {
            builder = builder.library_folder(folder);
        }
        if args.name.contains('<') {
            builder = builder.expression(&args.name);
        }
        CudaModule::load_program(context, &builder.compile().map_err(compile_failure)?)?
    };
    Ok(module.get_function(&args.name)?)
}

fn read(path: &Path) -> Outcome<Vec<u8>> {
    std::fs::read(path).map_err(|error| Failure::file(path, &error))
}

fn occupancy(args: &OccupancyArgs, as_json: bool) -> Outcome {
    let context = load::context(&args.device)?;
    let info = context.info()?;
    if info.backend != worker_cuda::Backend::Cuda {
        let message = format!("'{}': the CPU backend runs no device code", args.name);
        return Err(worker_cuda::Error::new(ErrorKind::UnsupportedKernel, message).into());
    }
    let function = function(args, &context)?;
    let info = function.info()?;
    let mut rows = Vec::new();
    for block in BLOCKS
        .iter()
        .filter(|block| **block <= info.max_threads_per_block)
    {
        rows.push((*block, function.occupancy(*block, args.shared)?));
    }
    if as_json {
        let rows: Vec<_> = rows
            .iter()
            .map(|(block, each)| {
                json!({
                    "block": block,
                    "blocks_per_multiprocessor": each.blocks_per_multiprocessor,
                    "threads_per_multiprocessor": each.threads_per_multiprocessor,
                    "share": each.share,
                })
            })
            .collect();
        return print_json(&json!({
            "name": info.name,
            "registers": info.registers,
            "static_shared_bytes": info.static_shared_bytes,
            "local_bytes": info.local_bytes,
            "max_threads_per_block": info.max_threads_per_block,
            "occupancy": rows,
        }));
    }
    println!(
        "{}: {} registers, {} shared memory, {} local memory, at most {} threads per block",
        info.name,
        info.registers,
        size::exact(info.static_shared_bytes),
        size::exact(info.local_bytes),
        info.max_threads_per_block
    );
    for (block, each) in &rows {
        println!(
            "{block:>5} threads per block: {:>3} blocks, {:>5} threads per SM, occupancy {:>3.0} %",
            each.blocks_per_multiprocessor,
            each.threads_per_multiprocessor,
            100.0 * each.share
        );
    }
    if let Some((_, first)) = rows.first() {
        println!("best: {} threads per block", first.best_block_threads);
    }
    Ok(())
}
