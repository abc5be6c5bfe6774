//! `devices`: lists the devices of this machine.

use std::io::Write;

use serde_json::{Value, json};
use worker_cuda::{Backend, DeviceCaps, build_info, devices, gemm_library};

use crate::failure::Outcome;
use crate::input::print_json;

#[derive(clap::Args)]
pub struct Args {
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

pub fn run(args: Args) -> Outcome {
    let host = devices(Backend::Host)?;
    let cuda = devices(Backend::Cuda);
    if args.json {
        let list: Vec<Value> = cuda.iter().flatten().chain(&host).map(to_json).collect();
        return print_json(&json!({
            "devices": list,
            "cuda_unavailable": cuda.as_ref().err().map(reason),
            "cublaslt_unavailable": gemm_library().err().map(|error| error.to_string()),
        }));
    }
    let mut out = std::io::stdout().lock();
    match &cuda {
        Ok(devices) => {
            for device in devices {
                writeln!(out, "{}", line(device))?;
            }
            if let Err(error) = gemm_library() {
                writeln!(
                    out,
                    "matrix products are not available without cuBLASLt: {error}"
                )?;
            }
        }
        Err(error) => writeln!(out, "{}", reason(error))?,
    }
    for device in &host {
        writeln!(out, "{}", line(device))?;
    }
    let build = build_info()?;
    let cuda = match build.cuda_version {
        0 => "without CUDA".into(),
        version => {
            let (major, minor) = (version / 1000, version % 1000 / 10);
            format!("with CUDA {major}.{minor} for {}", build.cuda_architectures)
        }
    };
    writeln!(out, "built {cuda}, {}", build.compiler)?;
    Ok(())
}

fn reason(error: &worker_cuda::Error) -> String {
    let message = error.to_string();
    if message.starts_with("no CUDA device") {
        message
    } else {
        format!("no CUDA device: {message}")
    }
}

fn line(device: &DeviceCaps) -> String {
    let gib = device.total_memory as f64 / f64::from(1 << 30);
    let name = &device.name;
    match device.backend {
        Backend::Host => {
            format!(
                "host    {name}, {} threads, {gib:.1} GiB",
                device.multiprocessor_count
            )
        }
        backend => {
            let (major, minor) = device.compute_capability;
            let rate = device.memory_bandwidth as f64 / 1e9;
            let count = device.multiprocessor_count;
            format!(
                "{backend}:{}  {name}, compute capability {major}.{minor}, {count} SMs, \
                 {gib:.1} GiB at {rate:.0} GB/s",
                device.ordinal
            )
        }
    }
}

fn to_json(device: &DeviceCaps) -> Value {
    json!({
        "backend": device.backend.to_string(),
        "ordinal": device.ordinal,
        "name": device.name,
        "total_memory": device.total_memory,
        "compute_capability": [device.compute_capability.0, device.compute_capability.1],
        "driver_version": device.driver_version,
        "runtime_version": device.runtime_version,
        "multiprocessor_count": device.multiprocessor_count,
        "memory_bandwidth": device.memory_bandwidth,
        "l2_cache_bytes": device.l2_cache_bytes,
        "shared_memory_per_block_optin": device.shared_memory_per_block_optin,
        "pci_bus_id": device.pci_bus_id,
        "ecc_enabled": device.ecc_enabled,
    })
}
