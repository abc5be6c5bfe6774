//! `kernels`: the catalogue, or what a manifest describes.

use std::io::Write;
use std::path::PathBuf;

use serde_json::{Value, json};
use worker_cuda::{Manifest, catalogue};

use crate::failure::{Outcome, one_line};
use crate::input::print_json;

#[derive(clap::Args)]
pub struct Args {
    /// Kernels of this manifest instead of the catalogue's
    #[arg(long, value_name = "FILE")]
    manifest: Option<PathBuf>,
    /// One JSON object
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
                    "signature": kernel.signature,
                    "parameter_count": kernel.parameter_count,
                    "types": if kernel.is_f32_only { vec!["f32"] } else { vec!["f32", "f16", "bf16"] },
                })
            })
            .collect();
        return print_json(&json!({ "kernels": list }));
    }
    let mut out = std::io::stdout().lock();
    for kernel in &kernels {
        let types = if kernel.is_f32_only { "f32" } else { "" };
        writeln!(out, "{:<26}{types:<5}{}", kernel.name, kernel.signature)?;
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
            "{id:>5}  {:<26}{:016x}  {code:<13} {}",
            one_line(&kernel.name),
            kernel.sig_hash,
            kernel.signature
        )?;
    }
    Ok(())
}
