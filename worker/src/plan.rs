//! `plan`: the memory that a model needs, and whether it fits.

use std::io::Write;
use std::path::PathBuf;

use serde_json::json;
use worker_cuda::{Plan, StepShape};

use crate::failure::{Failure, Outcome};
use crate::input::print_json;
use crate::load;
use crate::machine::{self, Machine};
use crate::options::{DeviceArgs, EngineArgs};
use crate::size;
use crate::steps;

#[derive(clap::Args)]
pub struct Args {
    /// The GGUF file
    #[arg(value_name = "FILE", required_unless_present = "model")]
    file: Option<PathBuf>,
    /// The GGUF file
    #[arg(short, long, value_name = "FILE", conflicts_with = "file")]
    model: Option<PathBuf>,
    #[command(flatten)]
    device: DeviceArgs,
    #[command(flatten)]
    engine: EngineArgs,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// Print the nodes of one step after --context tokens: kernel, bytes, FLOPs, time at the roofline
    #[arg(long)]
    steps: bool,
    /// Tokens of the step, all in one sequence
    #[arg(long, value_name = "N", default_value_t = 1, requires = "steps")]
    tokens: u32,
    /// Use the measured rates of this device instead of this machine's: H200
    #[arg(long, value_name = "NAME", requires = "steps")]
    device_table: Option<String>,
}

pub fn run(args: Args) -> Outcome {
    let path = args
        .file
        .or(args.model)
        .ok_or_else(|| Failure::usage("no file given"))?;
    let gguf = load::gguf(&path)?;
    let context = load::context(&args.device)?;
    let options = args.engine.options(load::trained_context(&gguf)?);
    if args.steps {
        let context_tokens = args.engine.context.unwrap_or(0);
        let shape = StepShape {
            rows: 1,
            row_tokens: args.tokens,
            context_tokens,
        };
        let options = options
            .max_batch_tokens(args.tokens.max(512))
            .max_sequence_tokens(args.tokens.saturating_add(context_tokens));
        let plan = context.plan_steps(&gguf, &options, &shape, args.device_table.as_deref())?;
        if args.json {
            return print_json(&steps::to_json(&plan, args.device_table.as_deref()));
        }
        let mut out = std::io::stdout().lock();
        return steps::print(&mut out, &plan, args.device_table.as_deref());
    }
    let plan = context.plan(&gguf, &options)?;
    let machine = Machine::of(&context)?;
    let bytes_per_token = machine::bytes_per_token(&gguf)?;
    if args.json {
        print_json(&json!({
            "backend": machine.backend.to_string(),
            "device": machine.name,
            "device_bytes": machine.total_bytes,
            "fits": plan.fits,
            "weights_bytes": plan.weights_bytes,
            "kv_bytes": plan.kv_bytes,
            "scratch_bytes": plan.scratch_bytes,
            "total_bytes": plan.total_bytes,
            "staging_bytes": plan.staging_bytes,
            "available_bytes": plan.available_bytes,
            "kv_page_bytes": plan.kv_page_bytes,
            "kv_page_count": plan.kv_page_count,
            "loading_bytes": plan.loading_bytes,
            "graph_bytes": plan.graph_bytes,
            "bytes_per_token": bytes_per_token,
            "tokens_per_second_max": machine.tokens_per_second_max(bytes_per_token),
        }))?;
        return fits(&plan, &machine);
    }
    let mut out = std::io::stdout().lock();
    let pages = format!(
        "{} pages of {}",
        size::count(plan.kv_page_count),
        size::short(plan.kv_page_bytes)
    );
    for (name, bytes, note) in [
        ("weights", plan.weights_bytes, ""),
        ("KV cache", plan.kv_bytes, &*pages),
        ("scratch", plan.scratch_bytes, ""),
        ("total", plan.total_bytes, ""),
        (
            "graphs",
            plan.graph_bytes,
            "estimate, of the driver, not in total",
        ),
        (
            "available",
            plan.available_bytes,
            &*format!("on {}", machine.label()),
        ),
        (
            "loading",
            plan.loading_bytes,
            "in addition to weights, while loading",
        ),
        (
            "staging (host)",
            plan.staging_bytes,
            "pinned, while loading",
        ),
    ] {
        let (short, exact) = (size::short(bytes), size::count(bytes));
        let line = format!("{name:<16} {short:>12} {exact:>18} bytes  {note}");
        writeln!(out, "{}", line.trim_end())?;
    }
    if let Some(limit) = machine.limit(bytes_per_token) {
        writeln!(
            out,
            "weights read per token: {}; {limit}",
            size::exact(bytes_per_token)
        )?;
    }
    if plan.fits {
        writeln!(out, "fits")?;
    }
    fits(&plan, &machine)
}

/// An error if the model does not fit.
fn fits(plan: &Plan, machine: &Machine) -> Outcome {
    if plan.fits {
        return Ok(());
    }
    let needed = plan
        .total_bytes
        .max(plan.weights_bytes + plan.loading_bytes);
    Err(Failure::new(format!(
        "does not fit: needs {}, {} available on {}",
        size::exact(needed),
        size::exact(plan.available_bytes),
        machine.label()
    ))
    .hint("--context, --batch and --kv-type reduce it"))
}
