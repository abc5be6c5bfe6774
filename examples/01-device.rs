//! Which devices are here, and which one is taken: `cargo run --example 01-device`

use worker_cuda::{Backend, CudaContext, Purpose, devices};

fn main() -> worker_cuda::Result<()> {
    match devices(Backend::Cuda) {
        Ok(devices) => {
            for device in devices {
                println!(
                    "cuda:{} {} ({:?})",
                    device.ordinal, device.name, device.compute_capability
                );
            }
        }
        Err(error) => println!("{error}"),
    }

    let context = CudaContext::auto()?;
    let info = context.info()?;
    let memory = context.memory(Purpose::Any)?;
    println!(
        "computing on {}, {} bytes free",
        info.backend, memory.device_free_bytes
    );
    if !info.fallback_reason.is_empty() {
        println!("not on a GPU: {}", info.fallback_reason);
    }
    Ok(())
}
