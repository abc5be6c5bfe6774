//! `kernels`: the kernels of the catalogue or of a manifest, with their parameters.

use std::io::Write;
use std::path::PathBuf;

use serde_json::{Value, json};
use worker_cuda::{Manifest, catalogue};

use crate::compute::call::{Param, of_builtin, of_manifest as manifest_params};
use crate::failure::{Outcome, one_line};
use crate::input::print_json;

#[derive(clap::Args)]
pub struct Args {
    /// List the kernels of this manifest instead of the catalogue
    #[arg(long, value_name = "FILE")]
    manifest: Option<PathBuf>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

pub fn run(args: Args) -> Outcome {
    match &args.manifest {
        Some(path) => of_manifest(&Manifest::load(path)?, args.json),
        None => of_catalogue(args.json),
    }
}

fn of_catalogue(as_json: bool) -> Outcome {
    let kernels = catalogue()?;
    if as_json {
        let list: Vec<Value> = kernels
            .iter()
            .map(|kernel| {
                json!({
                    "name": kernel.name,
                    "parameters": to_json(&of_builtin(kernel, "elements")),
                    "parameter_count": kernel.parameter_count,
                    "types": if kernel.is_f32_only { vec!["f32"] } else { vec!["f32", "f16", "bf16"] },
                })
            })
            .collect();
        return print_json(&json!({ "kernels": list }));
    }
    let mut out = std::io::stdout().lock();
    for kernel in &kernels {
        let types = if kernel.is_f32_only {
            "f32"
        } else {
            "f32, f16, bf16"
        };
        let call = call(&kernel.name, &of_builtin(kernel, ""));
        writeln!(out, "{call}  [{types}]")?;
    }
    Ok(())
}

fn of_manifest(manifest: &Manifest, as_json: bool) -> Outcome {
    if as_json {
        let list: Vec<Value> = manifest
            .kernels
            .iter()
            .map(|kernel| {
                json!({
                    "name": kernel.name,
                    "id": kernel.id,
                    "sig_hash": format!("{:016x}", kernel.sig_hash),
                    "signature": kernel.signature,
                    "parameters": to_json(&manifest_params(kernel)),
                    "module": kernel.module,
                    "host": kernel.host,
                    "deterministic": kernel.is_deterministic,
                    "budget_ms": kernel.budget_ms,
                })
            })
            .collect();
        return print_json(&json!({ "kernels": list, "modules": manifest.modules.len() }));
    }
    let mut out = std::io::stdout().lock();
    for kernel in &manifest.kernels {
        let id = kernel.id.map_or("-".to_owned(), |id| id.to_string());
        let code = match (&kernel.module, &kernel.host) {
            (Some(_), Some(_)) => "device, host",
            (Some(_), None) => "device",
            (None, Some(_)) => "host",
            (None, None) => "catalogue",
        };
        writeln!(
            out,
            "{id:>5}  {:016x}  {code:<13} {}",
            kernel.sig_hash,
            one_line(&call(&kernel.name, &manifest_params(kernel)))
        )?;
    }
    Ok(())
}

/// A call as a reader writes it: `softmax(in x[rows*width], out y[rows*width], rows, width)`.
fn call(name: &str, params: &[Param]) -> String {
    let params: Vec<String> = params.iter().map(Param::to_string).collect();
    format!("{name}({})", params.join(", "))
}

fn to_json(params: &[Param]) -> Vec<Value> {
    params
        .iter()
        .map(|param| {
            json!({
                "name": param.name,
                "role": param.role.name(),
                "type": param.dtype,
                "shape": param.shape,
            })
        })
        .collect()
}
