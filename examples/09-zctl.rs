//! Kernels over the binary protocol ZCTL/1, on a socket pair: `cargo run --features zctl --example 09-zctl`

use std::os::unix::net::UnixStream;
use std::sync::Arc;

use worker_cuda::zctl::{Arg, Client, Server, ServerOptions};
use worker_cuda::{CudaContext, ElementType, GpuCompute};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let compute = Arc::new(GpuCompute::with_context(&CudaContext::auto()?)?);
    compute.register_builtin("vector_add", ElementType::F32, 0)?;
    let server = Server::new(Some(compute), ServerOptions::default())?;
    let (ours, mut theirs) = UnixStream::pair()?;
    let serving = std::thread::spawn(move || server.serve(&mut theirs));

    // The client knows the kernel's name alone; the numbers lie in the memory of its connection.
    let mut client = Client::new(ours).with_crc();
    let kernels = client.kernels()?;
    let kernel = kernels
        .iter()
        .find(|kernel| kernel.name == "vector_add")
        .ok_or("no vector_add")?;
    let floats = |values: [f32; 3]| values.map(f32::to_le_bytes).concat();
    client.write_memory(0, &floats([1.0, 2.0, 3.0]))?;
    client.write_memory(64, &floats([10.0, 20.0, 30.0]))?;
    let buffer = |offset| Arg::Bytes { offset, length: 12 };
    let answer = client.run(
        kernel.id,
        &[buffer(0), buffer(64), buffer(128), Arg::I32(3)],
    )?;
    assert!(answer.is_ok(), "{}", answer.message);
    assert_eq!(client.read_memory(128, 12)?, floats([11.0, 22.0, 33.0]));
    println!("{} is kernel {}: 11, 22, 33", kernel.name, kernel.id);

    drop(client); // the server's end of the connection ends too
    serving.join().map_err(|_| "the server panicked")??;
    Ok(())
}
