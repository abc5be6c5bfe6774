//! What a GGUF file holds, and what it would need: `cargo run --example 03-inspect -- model.gguf`

use worker_cuda::gguf::tensor_type;
use worker_cuda::{CudaContext, EngineOptions, Gguf};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let path = std::env::args_os()
        .nth(1)
        .ok_or("usage: 03-inspect FILE.gguf")?;
    let gguf = Gguf::open(path)?;
    println!("{}", gguf.str("general.name")?.unwrap_or("without a name"));
    for entry in gguf.metadata() {
        let (key, value) = entry?;
        println!("{key}: {:?}", value.value_type());
    }
    for tensor in gguf.tensors().take(5) {
        let tensor = tensor?;
        let format = tensor_type(tensor.type_id)?;
        println!(
            "{} {:?} {} in {} bytes",
            tensor.name, tensor.dimensions, format.name, tensor.bytes
        );
    }

    let options = EngineOptions::new()
        .max_sequences(1)
        .max_sequence_tokens(2048);
    let plan = CudaContext::auto()?.plan(&gguf, &options)?;
    println!(
        "needs {} bytes, {}",
        plan.total_bytes,
        if plan.fits { "fits" } else { "does not fit" }
    );
    Ok(())
}
