//! A kernel of one's own, for the GPU and for the host: `cargo run --example 07-kernel`

use worker_cuda::{CudaContext, GpuArg, GpuCompute, KernelSpec};

/// y = a x + y over n elements.
const SOURCE: &str = r#"
extern "C" __global__ void axpy(float a, const float* x, float* y, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] += a * x[i];
}"#;

fn main() -> worker_cuda::Result<()> {
    // A GPU where there is one, else the host. A GPU needs NVRTC for the source.
    let context = match CudaContext::auto()? {
        context
            if worker_cuda::Program::builder(SOURCE)
                .for_device(&context)
                .compile()
                .is_ok() =>
        {
            context
        }
        _ => CudaContext::host()?,
    };
    let compute = GpuCompute::with_context(&context)?;

    // Each parameter with its type, and memory with how much of it there must be.
    let axpy = KernelSpec::new("axpy")
        .scalar::<f32>("a")
        .read::<f32>("x", ["n".into()])
        .write::<f32>("y", ["n".into()])
        .scalar::<i32>("n")
        .within(0, 7)
        .threads(["n".into()])
        .host(|call| {
            let (a, x) = (call.value::<f32>(0)?, call.slice::<f32>(1)?);
            for (y, x) in call.slice_mut::<f32>(2)?.iter_mut().zip(x) {
                *y += a * x;
            }
            Ok(())
        });
    // SAFETY: the source touches n elements of x and y, whatever n is, and writes only y.
    compute.register(unsafe { axpy.source(SOURCE) })?;

    let x = compute.device().upload(&[1.0f32, 2.0, 3.0])?;
    let mut y = compute.device().upload(&[10.0f32, 20.0, 30.0])?;
    let args = [
        2.0f32.into(),
        GpuArg::from(&x),
        (&mut y).into(),
        3i32.into(),
    ];
    let result = compute.run("axpy", &args)?;
    println!(
        "{:?} on {} in {:?}",
        y.to_vec()?,
        result.backend,
        result.time
    );
    assert_eq!(y.to_vec()?, [12.0, 24.0, 36.0]);

    // What does not fit the signature never reaches the kernel.
    for n in [4, 8] {
        let args = [2.0f32.into(), GpuArg::from(&x), (&mut y).into(), n.into()];
        println!("{}", compute.run("axpy", &args).unwrap_err());
    }
    Ok(())
}
