//! Kernels of a caller's own, on the host backend.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Barrier};
use std::time::Duration;

use worker_cuda::{
    CudaContext, CudaModule, Dim, ElementType, ErrorKind, Fallback, GpuArg, GpuCompute, KernelSpec,
    Layer, Priority, catalogue, cuda_available,
};

use forget::forget;
use gpu::gpu;

#[path = "support/forget.rs"]
mod forget;
#[path = "support/gpu.rs"]
mod gpu;

fn host() -> GpuCompute {
    GpuCompute::with_context(&CudaContext::host().unwrap()).unwrap()
}

fn n() -> [Dim; 1] {
    ["n".into()]
}

/// c = a + b, as anybody would write it.
fn vector_add() -> KernelSpec {
    KernelSpec::new("vector_add")
        .read::<f32>("a", n())
        .read::<f32>("b", n())
        .write::<f32>("c", n())
        .scalar::<i32>("n")
        .threads(n())
        .host(|call| {
            let n = call.value::<i32>(3)? as usize;
            let (a, b) = (call.slice::<f32>(0)?, call.slice::<f32>(1)?);
            for (i, c) in call.slice_mut::<f32>(2)?[..n].iter_mut().enumerate() {
                *c = a[i] + b[i];
            }
            Ok(())
        })
}

#[test]
fn vector_add_of_1024_is_all_three() {
    let compute = host();
    compute.register(vector_add()).unwrap();
    let device = compute.device();
    let (a, b) = (
        device.upload(&[1.0f32; 1024]).unwrap(),
        device.upload(&[2.0f32; 1024]).unwrap(),
    );
    let mut c = device.allocate::<f32>(1024).unwrap();

    let args = vec![(&a).into(), (&b).into(), (&mut c).into(), 1024i32.into()];
    // SAFETY: a host function of safe Rust.
    let result = unsafe { compute.run_kernel("vector_add", 4, 256, args) }.unwrap();

    assert_eq!(device.download(&c).unwrap(), [3.0f32; 1024]);
    assert!(!result.gpu_executed);
    assert_eq!(result.elements, 1024);
    assert_eq!(result.bytes, 3 * 4096);
    assert_eq!(result.fallback_reason, "");
    assert!(result.throughput_gbps() > 0.0 && result.elements_per_second() > 0.0);
    assert_eq!(compute.stats().executed, 1);
    assert_eq!(compute.kernels(), ["vector_add"]);
}

#[test]
fn run_holds_arguments_against_the_signature() {
    let compute = host();
    compute.register(vector_add()).unwrap();
    let device = compute.device();
    let a = device.upload(&[1.0f32; 8]).unwrap();
    let wide = device.upload(&[1.0f64; 8]).unwrap();
    let mut c = device.upload(&[0.0f32; 8]).unwrap();
    let run = |args: &[GpuArg<'_>]| {
        compute
            .run("vector_add", args)
            .map_err(|e| (e.kind(), e.to_string()))
    };

    let message = |result: Result<_, (ErrorKind, String)>, kind| {
        let (found, text) = result.unwrap_err();
        assert_eq!(found, kind, "{text}");
        text
    };
    assert_eq!(
        message(run(&[(&a).into()]), ErrorKind::ArgumentCount),
        "arguments: 1 given, the kernel takes 4"
    );
    assert_eq!(
        message(
            run(&[(&a).into(), (&a).into(), (&mut c).into(), 9i32.into()]),
            ErrorKind::InvalidArgument
        ),
        "argument 0 ('a') has 8 elements, the kernel needs 9"
    );
    assert_eq!(
        message(
            run(&[(&a).into(), (&a).into(), (&a).into(), 8i32.into()]),
            ErrorKind::InvalidArgument
        ),
        "argument 2 ('c') is written by the kernel and must be passed as &mut"
    );
    assert_eq!(
        message(
            run(&[(&wide).into(), (&a).into(), (&mut c).into(), 8i32.into()]),
            ErrorKind::InvalidArgument
        ),
        "argument 0 ('a') has elements of 8 bytes, the kernel takes 4"
    );
    assert_eq!(
        message(
            run(&[(&a).into(), (&a).into(), (&mut c).into(), (-1i32).into()]),
            ErrorKind::InvalidArgument
        ),
        "argument 0 ('a') has an extent of -1, at least 0"
    );
    message(
        run(&[(&a).into(), (&a).into(), (&mut c).into(), 8u32.into()]),
        ErrorKind::InvalidArgument,
    );
    let half = GpuArg::view(&a, 4..8).unwrap();
    run(&[half, (&a).into(), (&mut c).into(), 4i32.into()]).unwrap();
    assert!(GpuArg::view(&a, 4..9).is_err());
    assert_eq!(
        compute.run("nothing", &[]).unwrap_err().kind(),
        ErrorKind::NotFound
    );
}

#[test]
fn parity_needs_both_halves() {
    let compute = host();
    compute.register(vector_add()).unwrap();
    let mut x = compute.device().upload(&[1.0f32; 8]).unwrap();
    let a = compute.device().upload(&[1.0f32; 8]).unwrap();
    let args = [(&a).into(), (&a).into(), (&mut x).into(), 8i32.into()];
    let error = compute.check_parity("vector_add", &args, 1e-6).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::UnsupportedKernel);
}

#[test]
fn host_functions_fail_and_panic_as_values() {
    let compute = host();
    compute
        .register(KernelSpec::new("fails").host(|_| {
            Err(worker_cuda::Error::new(
                ErrorKind::LimitExceeded,
                "of its own",
            ))
        }))
        .unwrap();
    compute
        .register(KernelSpec::new("panics").host(|_| panic!("in a kernel")))
        .unwrap();
    compute
        .register(
            KernelSpec::new("borrows")
                .write::<u8>("x", [4.into()])
                .host(|call| {
                    let _first = call.slice_mut::<u8>(0)?;
                    assert!(call.slice::<u8>(0).is_err(), "declared as written");
                    assert!(call.slice_mut::<u16>(0).is_err(), "of another size");
                    assert!(call.value::<u8>(0).is_err(), "no number");
                    assert!(call.slice_mut::<u8>(7).is_err(), "no such argument");
                    call.slice_mut::<u8>(0).map(|_| ())
                }),
        )
        .unwrap();

    let error = compute.run("fails", &[]).unwrap_err();
    assert_eq!(
        (error.kind(), error.message()),
        (ErrorKind::LimitExceeded, "of its own")
    );
    let run = std::panic::AssertUnwindSafe(|| compute.run("panics", &[]));
    let payload = std::panic::catch_unwind(run).unwrap_err();
    assert_eq!(payload.downcast_ref::<&str>(), Some(&"in a kernel"));
    let mut x = compute.device().allocate::<u8>(4).unwrap();
    let error = compute.run("borrows", &[(&mut x).into()]).unwrap_err();
    assert_eq!(error.message(), "argument 0 is borrowed already");
    assert_eq!(compute.stats().executed, 0);
}

#[test]
fn descriptors_say_bounds_launch_and_budget() {
    let compute = host();
    let spec = KernelSpec::new("tiles")
        .id(40)
        .non_deterministic()
        .budget_ms(2000)
        .write::<f32>("x", ["rows".into(), "round_up(cols, 4)".into()])
        .scalar::<i32>("rows")
        .within("1", "")
        .scalar::<u32>("cols")
        .within(1, "rows * 8")
        .scalar::<f32>("by")
        .within("-1", 1.5)
        .launch(["ceil_div(cols, 32)", "rows", ""], ["32", "", ""])
        .shared_bytes("cols * 4")
        .host(|call| {
            assert_eq!((call.grid(), call.block()), ([2, 5, 1], [32, 1, 1]));
            Ok(())
        });
    compute.register(spec).unwrap();
    let mut x = compute.device().allocate::<f32>(5 * 36).unwrap();
    let mut run = |rows: i32, cols: u32, by: f32| {
        let args = [(&mut x).into(), rows.into(), cols.into(), by.into()];
        compute
            .run("tiles", &args)
            .map_err(|error| error.to_string())
    };

    assert_eq!(run(5, 33, 1.0).unwrap().elements, 2 * 5 * 32);
    assert_eq!(
        run(5, 37, 1.0).unwrap_err(),
        "argument 0 ('x') has 180 elements, the kernel needs 200"
    );
    assert_eq!(
        run(0, 1, 1.0).unwrap_err(),
        "argument 1 ('rows') is 0, at least 1"
    );
    assert_eq!(
        run(1, 9, 1.0).unwrap_err(),
        "argument 2 ('cols') is 9, at most 8"
    );
    assert_eq!(
        run(5, 33, 2.0).unwrap_err(),
        "argument 3 ('by') is 2, at most 1.5"
    );

    let kernels = compute.registered().unwrap();
    assert_eq!(
        (kernels[0].id, kernels[0].flags(), kernels[0].budget_ms),
        (40, 1, 2000)
    );
    compute
        .register_builtin("noop", ElementType::F32, 0)
        .unwrap();
    compute
        .register_builtin("tensor_add", ElementType::F32, 0)
        .unwrap();
    compute
        .register_builtin("relu", ElementType::F16, 7)
        .unwrap();
    let kernels = compute.registered().unwrap();
    let seen: Vec<_> = kernels.iter().map(|k| (k.id, k.name.as_str())).collect();
    assert_eq!(
        seen,
        [(1, "noop"), (2, "tensor_add"), (7, "relu"), (40, "tiles")]
    );
    assert_eq!((kernels[0].sig_hash, kernels[1].sig_hash), (0, 0xa1));
    let a = compute.device().upload(&[1.0f32, 2.0]).unwrap();
    let mut c = compute.device().allocate::<f32>(2).unwrap();
    let args = [(&a).into(), (&a).into(), (&mut c).into(), 2i64.into()];
    assert_eq!(compute.run("tensor_add", &args).unwrap().elements, 2);
    assert_eq!(c.to_vec().unwrap(), [2.0, 4.0]);
    let error = compute.run(
        "tensor_add",
        &[(&a).into(), (&a).into(), (&a).into(), 2i64.into()],
    );
    assert_eq!(error.unwrap_err().kind(), ErrorKind::InvalidArgument);
}

#[test]
fn a_run_past_its_budget_is_a_timeout() {
    let compute = host();
    let slow = KernelSpec::new("slow").budget_ms(1).host(|_| {
        std::thread::sleep(Duration::from_millis(20));
        Ok(())
    });
    compute.register(slow).unwrap();
    let error = compute.run("slow", &[]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Timeout);
    assert_eq!(
        error.message(),
        "kernel 'slow': has run longer than its 1ms"
    );
}

#[test]
fn kernels_without_what_they_need_are_refused() {
    let compute = host();
    let refused = |spec| compute.register(spec).unwrap_err();
    let error = refused(KernelSpec::new("x"));
    assert_eq!(error.kind(), ErrorKind::UnsupportedKernel);
    assert_eq!(error.message(), "kernel 'x': has no host function");
    // SAFETY: never run.
    let only_device = unsafe { KernelSpec::new("x").source("__global__ void x() {}") };
    assert_eq!(refused(only_device).kind(), ErrorKind::UnsupportedKernel);
    let wrong = KernelSpec::new("x")
        .read::<f32>("a", ["m".into()])
        .scalar::<f32>("m")
        .host(|_| Ok(()));
    assert_eq!(
        refused(wrong).message(),
        "parameters[0].shape: '(m)': 'm' is no integer parameter"
    );
    let error = compute
        .compile_kernel("x", "__global__ void x() {}")
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::UnsupportedKernel);
    let context = CudaContext::host().unwrap();
    let error = CudaModule::load_ptx(&context, ".version 9.0\n").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::UnsupportedKernel);
}

#[test]
fn fallback_is_opt_in_and_reported() {
    if cuda_available() {
        return;
    }
    assert!(GpuCompute::new().is_err());
    let compute = GpuCompute::open(Fallback::IfNoGpu).unwrap();
    compute
        .register(KernelSpec::new("noop").host(|_| Ok(())))
        .unwrap();

    let result = compute.run("noop", &[]).unwrap();

    assert!(!result.gpu_executed);
    assert_ne!(result.fallback_reason, "");
}

#[test]
fn eight_threads_run_kernels_of_one_compute() {
    let compute = Arc::new(host());
    let calls = Arc::new(AtomicU32::new(0));
    let counted = calls.clone();
    compute
        .register(
            KernelSpec::new("add_one")
                .write::<u32>("x", n())
                .scalar::<u64>("n")
                .host(move |call| {
                    counted.fetch_add(1, Ordering::Relaxed);
                    let n = call.value::<u64>(1)? as usize;
                    call.slice_mut::<u32>(0)?[..n]
                        .iter_mut()
                        .for_each(|x| *x += 1);
                    Ok(())
                }),
        )
        .unwrap();
    let barrier = Arc::new(Barrier::new(8));
    let threads: Vec<_> = (0..8)
        .map(|_| {
            let (compute, barrier) = (compute.clone(), barrier.clone());
            std::thread::spawn(move || {
                let mut x = compute.device().upload(&[0u32; 100]).unwrap();
                barrier.wait();
                for _ in 0..1000 {
                    compute
                        .run("add_one", &[(&mut x).into(), 100u64.into()])
                        .unwrap();
                }
                x.to_vec().unwrap()
            })
        })
        .collect();
    for thread in threads {
        assert_eq!(thread.join().unwrap(), [1000u32; 100]);
    }
    assert_eq!(calls.load(Ordering::Relaxed), 8000);
}

#[test]
fn copies_that_do_not_wait_give_their_memory_back() {
    let context = CudaContext::host().unwrap();
    let stream = context.stream(Priority::High).unwrap();
    let mut buffer = context.alloc::<u16>(100).unwrap();
    let mut pinned = context.alloc_pinned::<u16>(40).unwrap();
    pinned.fill(7);

    let pending = buffer.write_async(50, pinned, Some(&stream)).unwrap();
    let after = context.stream(Priority::Ordinary).unwrap();
    after.wait_for_copy(&pending).unwrap();
    after.synchronize().unwrap();
    assert!(pending.is_done().unwrap());
    let pinned = pending.wait().unwrap();
    assert_eq!(pinned[..], [7u16; 40]);
    let target = context.alloc_pinned::<u16>(60).unwrap();
    let begin = stream.record().unwrap();
    let back = buffer.read_async(40, target, Some(&stream)).unwrap();
    let end = stream.record().unwrap();
    let target = back.wait().unwrap();
    end.wait().unwrap();

    assert_eq!(target[..10], [0u16; 10]);
    assert_eq!(target[10..50], [7u16; 40]);
    begin.elapsed_to(&end).unwrap();
    let short = context.alloc_pinned::<u16>(60).unwrap();
    let error = buffer.write_async(50, short, None).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::OutOfRange);
    forget(buffer.read_async(0, target, None).unwrap());
}

#[test]
fn builtin_kernels_compute_and_check_their_arguments() {
    let kernels = catalogue().unwrap();
    assert!(kernels.len() >= 39);
    let gelu = kernels.iter().find(|kernel| kernel.name == "gelu").unwrap();
    assert_eq!(
        (
            gelu.signature.as_str(),
            gelu.parameter_count,
            gelu.is_f32_only
        ),
        ("x: read T[n], y: write T[n], n: i64", 3, false)
    );
    let context = CudaContext::host().unwrap();
    let halves = context.alloc_from(&[0x3c00u16, 0xbc00, 0x4000]).unwrap();
    let mut result = context.alloc::<u16>(3).unwrap();

    let args = [(&halves).into(), (&mut result).into(), 3u64.into()];
    context
        .run_builtin("relu", ElementType::F16, &args, None)
        .unwrap();

    assert_eq!(result.to_vec().unwrap(), [0x3c00, 0, 0x4000]);
    let args = [(&halves).into(), (&halves).into(), 3i32.into()];
    let error = context
        .run_builtin("relu", ElementType::F16, &args, None)
        .unwrap_err();
    assert_eq!(
        error.message(),
        "relu: argument 1 ('y') is written, only reading is granted"
    );
}

/// The network of the older classifier against the same in double precision.
#[test]
fn neural_forward_of_four_layers_equals_double_precision() {
    let context = CudaContext::host().unwrap();
    neural_forward_equals_double_precision(&context);
}

fn neural_forward_equals_double_precision(context: &CudaContext) {
    let mut state = 1u64;
    let mut draw = |count: usize, scale: f32| -> Vec<f32> {
        let mut next = || {
            state = state
                .wrapping_mul(6364136223846793005)
                .wrapping_add(1442695040888963407);
            ((state >> 40) as f32 / (1 << 23) as f32 - 1.0) * scale
        };
        (0..count).map(|_| next()).collect()
    };
    let sizes = [100, 64, 32, 16, 5];
    for batch in [1, 7] {
        let x = draw(batch * 100, 1.0);
        let parts: Vec<_> = sizes
            .windows(2)
            .map(|pair| {
                (
                    draw(pair[0] * pair[1], (2.0 / pair[0] as f32).sqrt()),
                    draw(pair[1], 0.1),
                )
            })
            .collect();
        let mut expected: Vec<f64> = x.iter().map(|&value| value.into()).collect();
        for (index, (weights, bias)) in parts.iter().enumerate() {
            let (inputs, outputs) = (sizes[index], sizes[index + 1]);
            let mut next = vec![0.0; batch * outputs];
            for (i, value) in next.iter_mut().enumerate() {
                let (row, col) = (i / outputs, i % outputs);
                let dot: f64 = (0..inputs)
                    .map(|k| expected[row * inputs + k] * f64::from(weights[k * outputs + col]))
                    .sum();
                *value = dot + f64::from(bias[col]);
                if index < 3 {
                    *value = value.max(0.0);
                }
            }
            expected = next;
        }
        for row in expected.chunks_mut(5) {
            let sum: f64 = row.iter().map(|value| value.exp()).sum();
            row.iter_mut().for_each(|value| *value = value.exp() / sum);
        }

        let resident: Vec<_> = parts
            .iter()
            .map(|(w, b)| {
                (
                    context.alloc_from(w).unwrap(),
                    context.alloc_from(b).unwrap(),
                )
            })
            .collect();
        let layers: Vec<_> = resident
            .iter()
            .enumerate()
            .map(|(index, (weights, bias))| Layer {
                weights,
                bias,
                inputs: sizes[index],
                outputs: sizes[index + 1],
            })
            .collect();
        let x = context.alloc_from(&x).unwrap();
        let found = context
            .neural_forward(&layers, &x, batch)
            .unwrap()
            .to_vec()
            .unwrap();

        for (found, expected) in found.iter().zip(&expected) {
            assert!(
                (f64::from(*found) - expected).abs() < 2e-6,
                "{found} {expected}"
            );
        }
        let error = context.neural_forward(&layers, &x, batch + 1).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        let error = context
            .neural_forward(&[layers[0], layers[2]], &x, batch)
            .unwrap_err();
        assert_eq!(
            error.message(),
            "layer 1 takes 32 inputs, the one before gives 64"
        );
    }
}

#[test]
fn gpu_neural_forward_equals_double_precision() {
    let Some(context) = gpu() else { return };
    neural_forward_equals_double_precision(&context);
}
