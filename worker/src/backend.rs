//! `backend`: lists backends, why others are unavailable, and checks their results.

use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use serde_json::{Value, json};
use worker_cuda::backend::{BackendEntry, BackendInstance, Selection, find};
use worker_cuda::{Backend, CudaContext, ElementType, GpuArg, backends};

use crate::failure::{Failure, Outcome};
use crate::input::print_json;

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
    /// Lists all backends, highest priority first, with the reason if one is unavailable
    List,
    /// Copies, fills, digests and computes on one backend, or on all available ones
    Check {
        /// Name of the backend [default: all available]
        #[arg(value_name = "NAME")]
        name: Option<String>,
    },
}

/// Sizes of the blocks that are written and read.
const BLOCK_BYTES: [usize; 5] = [1, 255, 4097, 1 << 20, (16 << 20) + 3];
const SUM_COUNT: usize = 1024;

pub fn run(args: Args) -> Outcome {
    match args.command {
        Command::List => list(args.json),
        Command::Check { name } => check(name.as_deref(), args.json),
    }
}

fn list(as_json: bool) -> Outcome {
    let all = backends()?;
    let best = Selection::builder().choose()?;
    if as_json {
        let list: Vec<Value> = all.iter().map(entry_json).collect();
        return print_json(&json!({
            "backends": list,
            "best": { "backend": best.backend.to_string(), "ordinal": best.ordinal },
        }));
    }
    let mut out = std::io::stdout().lock();
    for entry in &all {
        match &entry.devices {
            Ok(count) => writeln!(out, "{:<10} {count} device(s)", entry.name)?,
            Err((_, reason)) => writeln!(out, "{:<10} not available: {reason}", entry.name)?,
        }
    }
    writeln!(out, "best: {}:{}", best.backend, best.ordinal)?;
    Ok(())
}

fn entry_json(entry: &BackendEntry) -> Value {
    json!({
        "name": entry.name,
        "priority": entry.priority,
        "available": entry.is_available(),
        "devices": entry.devices.as_ref().copied().unwrap_or(0),
        "reason": entry.devices.as_ref().err().map(|(_, reason)| reason),
    })
}

/// The result of checking one backend.
struct Checked {
    name: String,
    calls: u64,
    milliseconds: f64,
}

fn check(name: Option<&str>, as_json: bool) -> Outcome {
    let wanted: Vec<(String, Backend)> = match name {
        Some(name) => vec![(name.to_owned(), find(name)?)],
        None => backends()?
            .into_iter()
            .filter(BackendEntry::is_available)
            .map(|entry| (entry.name, entry.backend))
            .collect(),
    };
    let mut results = Vec::new();
    for (name, backend) in wanted {
        results.push(check_one(name, backend)?);
    }
    if as_json {
        let list: Vec<Value> = results
            .iter()
            .map(|result| {
                json!({
                    "name": result.name,
                    "calls": result.calls,
                    "milliseconds": result.milliseconds,
                })
            })
            .collect();
        return print_json(&json!({ "checked": list, "ok": true }));
    }
    let mut out = std::io::stdout().lock();
    for result in &results {
        writeln!(
            out,
            "{}: ok, {} calls in {:.1} ms",
            result.name, result.calls, result.milliseconds
        )?;
    }
    Ok(())
}

fn check_one(name: String, backend: Backend) -> Result<Checked, Failure> {
    let calls = Arc::new(AtomicU64::new(0));
    let counter = Arc::clone(&calls);
    let begin = Instant::now();
    let instance = BackendInstance::builder(backend)
        .trace(move |_| {
            counter.fetch_add(1, Ordering::Relaxed);
        })
        .open()?;
    let context = instance.context()?;
    let host = CudaContext::host()?;
    for bytes in BLOCK_BYTES {
        check_block(&name, &context, &host, bytes)?;
    }
    if matches!(backend, Backend::Unknown(256..)) {
        // A registered backend compiles only its own kernels.
    } else {
        check_sums(&name, &context)?;
    }
    Ok(Checked {
        name,
        calls: calls.load(Ordering::Relaxed),
        milliseconds: begin.elapsed().as_secs_f64() * 1e3,
    })
}

/// Reads one block back and compares the device's digest with the CPU's.
fn check_block(name: &str, device: &CudaContext, host: &CudaContext, bytes: usize) -> Outcome {
    let pattern: Vec<u8> = (0..bytes).map(|i| (i * 29 + i / 241) as u8).collect();
    let block = device.alloc_from(&pattern)?;
    let same = host.alloc_from(&pattern)?.digest(0..bytes)?;
    if block.to_vec()? != pattern || block.digest(0..bytes)? != same {
        return Err(Failure::new(format!(
            "{name}: a block of {bytes} bytes differs from what was written"
        )));
    }
    Ok(())
}

fn check_sums(name: &str, context: &CudaContext) -> Outcome {
    let a = context.alloc_from(&vec![1.0f32; SUM_COUNT])?;
    let b = context.alloc_from(&vec![2.0f32; SUM_COUNT])?;
    let mut c = context.alloc_from(&vec![0.0f32; SUM_COUNT])?;
    let args = [
        GpuArg::from(&a),
        (&b).into(),
        (&mut c).into(),
        (SUM_COUNT as u32).into(),
    ];
    context.run_builtin("vector_add", ElementType::F32, &args, None)?;
    let sums = c.to_vec()?;
    match sums.iter().position(|sum| *sum != 3.0) {
        None => Ok(()),
        Some(index) => Err(Failure::new(format!(
            "{name}: vector_add computed {} at {index}, expected 3",
            sums[index]
        ))),
    }
}
