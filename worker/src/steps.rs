//! The table of a step's nodes: what each moves and computes, its time at the roofline and measured.

use std::io::Write;

use serde_json::{Value, json};
use worker_cuda::{StepNode, StepPlan};

use crate::failure::Outcome;

/// Where the rates come from; `device` was asked for by name.
fn source(steps: &StepPlan, device: Option<&str>) -> String {
    match (device, steps.is_measured) {
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
    writeln!(
        out,
        "rates: {} GB/s, {} TFLOP/s ({}; 0: not known)",
        steps.bytes_per_second / 1_000_000_000,
        steps.flops_per_second / 1_000_000_000_000,
        source(steps, device),
    )?;
    write!(
        out,
        "{:>5}  {:<20} {:<27} {:<33} {:>11} {:>10} {:>9}",
        "layer", "operation", "kernel", "activation", "bytes", "MFLOP", "limit us"
    )?;
    if is_measured {
        write!(out, " {:>9} {:>7} {:>7}", "us", "GB/s", "limit %")?;
    }
    writeln!(out)?;
    for node in &steps.nodes {
        let layer = node.layer.map_or(String::new(), |layer| layer.to_string());
        let operation = match node.fused_count {
            1 => node.operation.clone(),
            count => format!("{} x{count}", node.operation),
        };
        write!(
            out,
            "{layer:>5}  {operation:<20} {:<27} {:<33} {:>11} {:>10.1} {:>9.2}",
            node.kernel,
            format!("{} -> {}", node.input, node.output),
            node.bytes,
            node.flops as f64 / 1e6,
            node.limit_ns / 1e3,
        )?;
        if is_measured {
            let of_node = |value: f64| value / node.measured_ns.max(1.0);
            write!(
                out,
                " {:>9.2} {:>7.0} {:>7.0}",
                node.measured_ns / 1e3,
                of_node(node.bytes as f64),
                100.0 * of_node(node.limit_ns),
            )?;
        }
        writeln!(out)?;
    }
    writeln!(
        out,
        "sum: {:.1} MB, {:.3} GFLOP, limit {:.1} us",
        sum(steps, |node| node.bytes as f64) / 1e6,
        sum(steps, |node| node.flops as f64) / 1e9,
        sum(steps, |node| node.limit_ns) / 1e3,
    )?;
    Ok(())
}

/// Of the nodes of several steps of one shape the medians of the measured times.
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

/// Microseconds of all nodes.
pub fn measured_us(steps: &StepPlan) -> f64 {
    sum(steps, |node| node.measured_ns) / 1e3
}
