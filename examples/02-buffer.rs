//! Checked device memory: `cargo run --example 02-buffer`

use worker_cuda::{CudaContext, Purpose};

fn main() -> worker_cuda::Result<()> {
    let context = CudaContext::auto()?;

    let mut buffer = context.alloc_tagged::<f32>(1024, "example")?;
    buffer.fill(1.0)?;
    buffer.write_at(1000, &[2.0, 3.0])?;
    println!("{:?}", &buffer.to_vec()?[998..1004]);

    // Past the end is an error with the numbers, never a crash.
    println!("{}", buffer.write_at(1023, &[4.0, 5.0]).unwrap_err());

    for entry in context.ledger()? {
        println!("{} holds {} bytes", entry.tag, entry.bytes);
    }
    drop(buffer);
    println!("{} bytes held", context.memory(Purpose::Any)?.current_bytes);
    Ok(())
}
