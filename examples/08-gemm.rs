//! A linear layer with bias and GELU in one call, on a GPU if there is one: `cargo run --example 08-gemm`

use worker_cuda::{Activation, CudaContext, ErrorKind, GemmType};

fn main() -> worker_cuda::Result<()> {
    let context = CudaContext::auto()?;
    let (rows, outputs, inputs) = (64, 512, 256);
    let x = context.alloc_from(&vec![0.5f32; rows * inputs])?;
    // As most files have them: (outputs, inputs).
    let weights = context.alloc_from(&vec![0.01f32; outputs * inputs])?;
    let bias = context.alloc_from(&vec![-0.25f32; outputs])?;
    let mut y = context.alloc::<f32>(rows * outputs)?;

    let layer = context
        .gemm(GemmType::F32, rows, outputs, inputs)
        .transpose_b()
        .bias(&bias)
        .activation(Activation::Gelu);
    match layer.run(&x, &weights, &mut y) {
        Err(error) if error.kind() == ErrorKind::NotAvailable => {
            println!("no matrix products here: {error}");
            return Ok(());
        }
        other => other?,
    }

    // gelu(256 · 0.5 · 0.01 - 0.25)
    let y = y.to_vec()?;
    println!("{} gives {}", context.info()?.backend, y[0]);
    assert!(y.iter().all(|value| (value - 0.87379).abs() < 1e-3));
    Ok(())
}
