//! Device memory by id, budgets, proof of where it is: `cargo run --example 05-allocator`

use worker_cuda::{Backend, CudaContext, CudaVramAllocator, Purpose, Scrub};

fn main() -> worker_cuda::Result<()> {
    // A GPU where there is one, else the host; freed blocks are zeroed on the device.
    let backend = CudaContext::auto()?.info()?.backend;
    let context = CudaContext::builder()
        .backend(backend)
        .scrub(Scrub::OnFree)
        .open()?;
    if backend == Backend::Host {
        println!("no GPU: {}", CudaContext::auto()?.info()?.fallback_reason);
    }
    context.set_budget(Purpose::User, 1 << 20)?;
    context.enforce_vram_only_policy()?;

    let allocator = CudaVramAllocator::with_context(context.clone());
    let id = allocator.allocate_tagged(1000, "secrets")?;
    allocator.copy_to_vram(id, 990, b"0123456789")?;
    println!("{:?}", allocator.copy_from_vram(id, 995, 5)?);

    // Every mistake is an error that says what was wrong, and changes nothing.
    println!(
        "{}",
        allocator.copy_to_vram(id, 991, b"0123456789").unwrap_err()
    );
    println!("{}", allocator.allocate(1 << 20).unwrap_err());

    let residency = context.check_residency()?;
    println!(
        "{} allocations, all of them the device's own memory",
        residency.checked_count
    );
    for entry in context.ledger()? {
        println!("would leak now: {} holds {} bytes", entry.tag, entry.bytes);
    }

    allocator.deallocate(id)?;
    println!("{}", allocator.deallocate(id).unwrap_err()); // stale for good
    assert!(context.ledger()?.is_empty());
    Ok(())
}
