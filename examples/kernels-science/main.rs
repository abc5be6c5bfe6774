//! Kernels of the sciences from a manifest: oscillators that fall into step, and a belief.
//!
//! `cargo run --example kernels-science --features manifest`: on a GPU where there is one and NVRTC to
//! compile science.cu, else the same kernels as functions of the host.

use std::path::Path;

use worker_cuda::{CudaContext, Error, GpuArg, GpuCompute, Manifest, Result};

mod host;

/// The kernels on a GPU if that can be, else on the host.
fn open(manifest: &Manifest) -> Result<GpuCompute> {
    let register = |context: &CudaContext| -> Result<GpuCompute> {
        let compute = GpuCompute::with_context(context)?;
        // SAFETY: the manifest and its code are ours, and agree.
        unsafe { compute.register_manifest(manifest, &host::functions()) }?;
        Ok(compute)
    };
    register(&CudaContext::auto()?).or_else(|error: Error| {
        println!("on the host: {error}");
        register(&CudaContext::host()?)
    })
}

/// How much a hundred oscillators are in step, from 0 to 1, as they pull at each other.
fn oscillators(compute: &GpuCompute) -> Result<Vec<f32>> {
    const COUNT: usize = 100;
    let device = compute.device();
    let spread = |i: usize, by: f32| by * ((i * 37 % COUNT) as f32 / COUNT as f32 - 0.5);
    let phases: Vec<f32> = (0..COUNT).map(|i| spread(i, 6.0)).collect();
    let frequencies: Vec<f32> = (0..COUNT).map(|i| spread(i * 7, 1.0)).collect();
    let mut phase = device.upload(&phases)?;
    let mut next = device.upload(&phases)?;
    let frequency = device.upload(&frequencies)?;
    let coupling = device.upload(&[1.0f32; COUNT * COUNT])?;
    let (mut re, mut im) = (device.allocate::<f32>(1)?, device.allocate::<f32>(1)?);
    let mut in_step = Vec::new();
    for step in 0..200 {
        if step % 40 == 0 {
            let count = (COUNT as i32).into();
            let args = [
                GpuArg::from(&phase),
                (&mut re).into(),
                (&mut im).into(),
                count,
            ];
            compute.run("order_parameter", &args)?;
            in_step.push(re.to_vec()?[0].hypot(im.to_vec()?[0]));
        }
        let args = [
            GpuArg::from(&phase),
            (&frequency).into(),
            (&coupling).into(),
            (&mut next).into(),
            (COUNT as i32).into(),
            0.05f32.into(),
            3.0f32.into(),
        ];
        compute.run("kuramoto_evolution", &args)?;
        std::mem::swap(&mut phase, &mut next);
    }
    Ok(in_step)
}

/// A belief of five classes after evidence, and how far it went from the belief before.
fn belief(compute: &GpuCompute) -> Result<(Vec<f32>, f32)> {
    let device = compute.device();
    let prior = device.upload(&[0.7f32, 0.1, 0.1, 0.05, 0.05])?;
    let evidence = device.upload(&[0.1f32, 0.1, 0.6, 0.1, 0.1])?;
    let mut posterior = device.allocate::<f32>(5)?;
    let mut energy = device.allocate::<f32>(1)?;
    let args = [
        GpuArg::from(&prior),
        (&evidence).into(),
        (&mut posterior).into(),
        5i32.into(),
    ];
    compute.run("elementwise_multiply", &args)?;
    compute.run("normalize", &[(&mut posterior).into(), 5i32.into()])?;
    let args = [
        GpuArg::from(&posterior),
        (&prior).into(),
        0.0f32.into(),
        (&mut energy).into(),
        5i32.into(),
    ];
    compute.run("free_energy", &args)?;
    Ok((posterior.to_vec()?, energy.to_vec()?[0]))
}

fn main() -> Result<()> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/kernels-science");
    let manifest = Manifest::load(folder.join("kernels.json"))?;
    let compute = open(&manifest)?;
    println!("{} kernels", compute.registered()?.len());

    let in_step = oscillators(&compute)?;
    println!("oscillators in step: {in_step:.3?}");
    assert!(in_step[4] > 0.95 && in_step[4] > in_step[0]);

    let (posterior, energy) = belief(&compute)?;
    println!("belief {posterior:.3?}, free energy {energy:.4}");
    assert!((posterior.iter().sum::<f32>() - 1.0).abs() < 1e-6 && energy > 0.0);

    // A qubit that does not exist is refused before the kernel sees it.
    let mut re = compute.device().upload(&[1.0f32, 0.0])?;
    let mut im = compute.device().upload(&[0.0f32, 0.0])?;
    let args = [
        (&mut re).into(),
        (&mut im).into(),
        30i32.into(),
        2i32.into(),
    ];
    println!("{}", compute.run("hadamard_gate", &args).unwrap_err());
    Ok(())
}
