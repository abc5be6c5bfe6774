//! `plan`: what a model needs, and whether it fits.

use std::io::Write;
use std::path::PathBuf;

use serde_json::json;
use worker_cuda::{StepPlan, StepShape};

use crate::failure::{Failure, Outcome};
use crate::input::print_json;
use crate::load;
use crate::machine::{self, Machine};
use crate::options::{DeviceArgs, EngineArgs};

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
    /// One JSON object
    #[arg(long)]
    json: bool,
    /// The nodes of a step after --context tokens: kernel, bytes, FLOPs, and the time at the roofline
    #[arg(long)]
    steps: bool,
    /// Tokens of the step, all of one sequence
    #[arg(long, value_name = "N", default_value_t = 1, requires = "steps")]
    tokens: u32,
    /// A device of the table of measured rates, in place of the one here: H200
    #[arg(long, value_name = "NAME", requires = "steps")]
    device_table: Option<String>,
}

pub fn run(args: Args) -> Outcome {
    let path = args
        .file
        .or(args.model)
        .ok_or_else(|| Failure::usage("which file?"))?;
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
        let steps = context.plan_steps(&gguf, &options, &shape, args.device_table.as_deref())?;
        return print_steps(&steps, args.device_table.as_deref(), args.json);
    }
    let plan = context.plan(&gguf, &options)?;
    let machine = Machine::of(&context)?;
    let bytes_a_token = machine::bytes_a_token(&gguf)?;
    if args.json {
        return print_json(&json!({
            "backend": machine.backend.to_string(),
            "device": machine.name,
            "device_bytes": machine.total_bytes,
            "fits": plan.fits,
            "weights_bytes": plan.weights_bytes,
            "kv_bytes": plan.kv_bytes,
            "scratch_bytes": plan.scratch_bytes,
            "graph_bytes": plan.graph_bytes,
            "total_bytes": plan.total_bytes,
            "staging_bytes": plan.staging_bytes,
            "available_bytes": plan.available_bytes,
            "kv_page_bytes": plan.kv_page_bytes,
            "kv_page_count": plan.kv_page_count,
            "loading_bytes": plan.loading_bytes,
            "bytes_a_token": bytes_a_token,
            "most_tokens_per_second": machine.most_tokens_per_second(bytes_a_token),
        }));
    }
    let mut out = std::io::stdout().lock();
    let pages = format!(
        "{} pages of {} bytes",
        plan.kv_page_count, plan.kv_page_bytes
    );
    for (name, bytes, note) in [
        ("weights", plan.weights_bytes, ""),
        ("keys and values", plan.kv_bytes, &*pages),
        ("scratch", plan.scratch_bytes, ""),
        ("graphs", plan.graph_bytes, ""),
        ("total", plan.total_bytes, ""),
        (
            "available",
            plan.available_bytes,
            &*format!("on {}", machine.label()),
        ),
        ("loading", plan.loading_bytes, "besides the weights"),
        ("staging (host)", plan.staging_bytes, "while loading"),
    ] {
        let mib = bytes as f64 / f64::from(1 << 20);
        writeln!(out, "{name:<16} {bytes:>16} bytes {mib:>12.1} MiB  {note}")?;
    }
    if let Some(limit) = machine.limit(bytes_a_token) {
        writeln!(
            out,
            "a token reads {bytes_a_token} bytes of weights; {limit}"
        )?;
    }
    writeln!(out, "{}", if plan.fits { "fits" } else { "does not fit" })?;
    Ok(())
}

fn print_steps(steps: &StepPlan, device: Option<&str>, is_json: bool) -> Outcome {
    let source = match (device, steps.is_measured) {
        (Some(name), _) => format!("measured on {name}"),
        (None, true) => "measured on this kind of device".to_owned(),
        (None, false) => "from the device's attributes".to_owned(),
    };
    if is_json {
        let nodes: Vec<_> = steps
            .nodes
            .iter()
            .map(|node| {
                json!({
                    "layer": node.layer,
                    "operation": node.operation,
                    "fused_count": node.fused_count,
                    "kernel": node.kernel,
                    "input": node.input,
                    "output": node.output,
                    "bytes": node.bytes,
                    "flops": node.flops,
                    "limit_ns": node.limit_ns,
                })
            })
            .collect();
        return print_json(&json!({
            "rates": source,
            "bytes_per_second": steps.bytes_per_second,
            "flops_per_second": steps.flops_per_second,
            "nodes": nodes,
        }));
    }
    let mut out = std::io::stdout().lock();
    writeln!(
        out,
        "rates: {} GB/s, {} TFLOP/s ({source}; 0: not known)",
        steps.bytes_per_second / 1_000_000_000,
        steps.flops_per_second / 1_000_000_000_000,
    )?;
    writeln!(
        out,
        "{:>5}  {:<18} {:<27} {:<30} {:>12} {:>10} {:>10}",
        "layer", "operation", "kernel", "activation", "bytes", "MFLOP", "limit us"
    )?;
    for node in &steps.nodes {
        let layer = node.layer.map_or(String::new(), |layer| layer.to_string());
        let operation = match node.fused_count {
            1 => node.operation.clone(),
            count => format!("{} x{count}", node.operation),
        };
        writeln!(
            out,
            "{layer:>5}  {operation:<18} {:<27} {:<30} {:>12} {:>10.1} {:>10.2}",
            node.kernel,
            format!("{} -> {}", node.input, node.output),
            node.bytes,
            node.flops as f64 / 1e6,
            node.limit_ns / 1e3,
        )?;
    }
    let sum =
        |value: fn(&worker_cuda::StepNode) -> f64| -> f64 { steps.nodes.iter().map(value).sum() };
    writeln!(
        out,
        "sum: {:.1} MB, {:.3} GFLOP, {:.1} us",
        sum(|node| node.bytes as f64) / 1e6,
        sum(|node| node.flops as f64) / 1e9,
        sum(|node| node.limit_ns) / 1e3,
    )?;
    Ok(())
}
