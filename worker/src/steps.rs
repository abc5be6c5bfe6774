//! The table of a step's nodes: what each moves and computes, its time at the roofline and measured.

use std::io::Write;

use serde_json::{Value, json};
use worker_cuda::{StepNode, StepPlan};

use crate::failure::Outcome;

/// Where the rates come from; `device` is the name given by the user.
fn source(steps: &StepPlan, device: Option<&str>) -> String {
    match (device, steps.is_measured) {
        _ if steps.bytes_per_second == 0 => "unknown for this device".to_owned(),
        (Some(name), _) => format!("measured on {name}"),
        (None, true) => "measured on this kind of device".to_owned(),
        (None, false) => "from the device's attributes".to_owned(),
    }
}

fn sum(steps: &StepPlan, value: fn(&StepNode) -> f64) -> f64 {
    steps.nodes.iter().map(value).sum()
}

pub fn to_json(steps: &StepPlan, device: Option<&str>) -> Value {
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
                "measured_ns": (node.measured_ns > 0.0).then_some(node.measured_ns),
            })
        })
        .collect();
    json!({
        "rates": source(steps, device),
        "bytes_per_second": steps.bytes_per_second,
        "flops_per_second": steps.flops_per_second,
        "nodes": nodes,
    })
}

pub fn print(out: &mut impl Write, steps: &StepPlan, device: Option<&str>) -> Outcome {
    let is_measured = steps.nodes.iter().any(|node| node.measured_ns > 0.0);
    let has_rates = steps.bytes_per_second > 0;
    if has_rates {
        writeln!(
            out,
            "roofline: {} GB/s, {} TFLOP/s ({})",
            steps.bytes_per_second / 1_000_000_000,
            steps.flops_per_second / 1_000_000_000_000,
            source(steps, device),
        )?;
    } else {
        writeln!(out, "roofline: {}", source(steps, device))?;
    }
    write!(
        out,
        "{:>5}  {:<20} {:<27} {:<33} {:>11} {:>10} {:>9}",
        "layer", "operation", "kernel", "activation", "bytes", "MFLOP", "limit us"
    )?;
    if is_measured {
        write!(
            out,
            " {:>9} {:>7} {:>10}",
            "median us", "GB/s", "% of limit"
        )?;
    }
    writeln!(out)?;
    let limit = |ns: f64| match has_rates {
        true => format!("{:.2}", ns / 1e3),
        false => "-".to_owned(),
    };
    for node in &steps.nodes {
        let layer = node.layer.map_or(String::new(), |layer| layer.to_string());
        let operation = match node.fused_count {
            1 => node.operation.clone(),
            count => format!("{} x{count}", node.operation),
        };
        write!(
            out,
            "{layer:>5}  {operation:<20} {:<27} {:<33} {:>11} {:>10.3} {:>9}",
            node.kernel,
            activation(node),
            node.bytes,
            node.flops as f64 / 1e6,
            limit(node.limit_ns),
        )?;
        if is_measured {
            let of_node = |value: f64| value / node.measured_ns.max(1.0);
            let share = match has_rates {
                true => format!("{:.0}", 100.0 * of_node(node.limit_ns)),
                false => "-".to_owned(),
            };
            write!(
                out,
                " {:>9.2} {:>7.1} {share:>10}",
                node.measured_ns / 1e3,
                of_node(node.bytes as f64),
            )?;
        }
        writeln!(out)?;
    }
    let (of_limit, unit) = (
        limit(sum(steps, |node| node.limit_ns)),
        if has_rates { " us" } else { "" },
    );
    writeln!(
        out,
        "sum: {:.1} MB, {:.3} GFLOP, limit {of_limit}{unit}",
        sum(steps, |node| node.bytes as f64) / 1e6,
        sum(steps, |node| node.flops as f64) / 1e9,
    )?;
    Ok(())
}

/// "f32 -> bf16"; empty for a node without activations.
fn activation(node: &StepNode) -> String {
    match (&*node.input, &*node.output) {
        ("-", "-") => String::new(),
        (input, output) => format!("{input} -> {output}"),
    }
}

/// The nodes of steps of one shape with the median of each node's measured times.
pub fn medians(mut steps: Vec<StepPlan>) -> Option<StepPlan> {
    let mut result = steps.pop()?;
    for (index, node) in result.nodes.iter_mut().enumerate() {
        let mut times: Vec<f64> = steps
            .iter()
            .filter_map(|step| step.nodes.get(index).map(|other| other.measured_ns))
            .collect();
        times.push(node.measured_ns);
        times.sort_by(f64::total_cmp);
        node.measured_ns = times[times.len() / 2];
    }
    Some(result)
}

/// The sum of the nodes' measured times, in microseconds.
pub fn measured_us(steps: &StepPlan) -> f64 {
    sum(steps, |node| node.measured_ns) / 1e3
}
