//! Bytes sealed into device memory and proved to be there: `cargo run --example 06-seal [FILE]`

use std::fs::File;

use worker_cuda::CudaContext;
use worker_cuda::seal::{AuditError, AuditRecord, AuditSink, SealedShard, VramConfig, VramManager};

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
