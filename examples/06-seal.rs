//! Bytes sealed into device memory, proved to be there, and used: `cargo run --example 06-seal [FILE]`

use std::fs::File;

use worker_cuda::seal::{
    AuditError, AuditRecord, AuditSink, SealedShard, ShardLabel, VramConfig, VramManager,
};
use worker_cuda::{
    CudaContext, Engine, EngineOptions, Fallback, Gguf, GpuArg, GpuCompute, KernelSpec, Model,
};

/// Prints what happens; a service would write it to its log.
struct Print;

impl AuditSink for Print {
    fn emit(&mut self, record: &AuditRecord) -> Result<(), AuditError> {
        println!("audit: {:?}", record.event);
        Ok(())
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    // Of at least 32 bytes; a service reads it from where it keeps its secrets.
    let token = "an example token of more than 32 bytes";
    let config = VramConfig::new(token).worker_id("example");
    let mut manager = VramManager::with_context(CudaContext::auto()?, config)?.audit_to(Print);

    // A file goes through 4 MiB of pinned memory; without one, some bytes.
    let shard = match std::env::args_os().nth(1) {
        Some(path) => {
            let file = File::open(path)?;
            let size = file.metadata()?.len();
            manager.seal_reader(file, size, 0)?
        }
        None => manager.seal_model(&[1, 2, 3], 0)?,
    };
    println!("{shard:?}");

    // What is sealed is used where it is: read back, passed to kernels, loaded from. Each use begins with
    // the fast check; bytes that are read back are compared with their digests, too.
    let view = manager.view(&shard)?;
    println!(
        "begins with {:?}",
        view.range(0, view.len().min(4))?.read()?
    );
    let compute =
        GpuCompute::with_context(manager.context())?.with_fallback(Fallback::IfUnsupported);
    compute.register(
        KernelSpec::new("sum")
            .read::<u8>("x", ["n".into()])
            .write::<u64>("sum", [1.into()])
            .scalar::<u64>("n")
            .host(|call| {
                call.slice_mut::<u64>(1)?[0] = call.slice::<u8>(0)?.iter().map(|&x| x as u64).sum();
                Ok(())
            }),
    )?;
    let mut sum = compute.device().allocate::<u64>(1)?;
    let args = [view.arg::<u8>()?, GpuArg::from(&mut sum), view.len().into()];
    compute.run("sum", &args)?;
    println!("sum {}", sum.to_vec()?[0]);
    match Gguf::from_reader(manager.reader(&shard)?) {
        Ok(gguf) => {
            let model = Model::load(manager.context(), &gguf)?;
            println!("a model of {} layers", model.info().layer_count);
            // The weights of a loaded model are sealed where they are.
            let weights = manager.seal_weights(&model, ShardLabel::default())?;
            drop(model);
            Engine::new(
                &manager.model(&weights)?,
                &EngineOptions::new().max_sequence_tokens(64),
            )?;
            manager.verify_sealed(&weights)?;
            manager.deallocate(&weights)?;
        }
        Err(error) => println!("no model: {error}"),
    }

    // The shard is a name: it can be written down, and a forged one is found out.
    let mut bytes = shard.to_bytes()?;
    manager.verify_sealed(&SealedShard::from_bytes(&bytes)?)?;
    manager.verify_range(&shard, 0, 1)?;
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    let forged = SealedShard::from_bytes(&bytes)?;
    println!("{}", manager.verify_sealed(&forged).unwrap_err());

    manager.deallocate(&shard)?;
    println!("{}", manager.verify_sealed(&shard).unwrap_err());
    Ok(())
}
