//! Matrix products from Rust, on the host backend; kernels are tested in C++.

use worker_cuda::{Activation, CudaContext, ElementType, ErrorKind, GemmType, GpuArg};

#[test]
fn transposes_factors_bias_and_batches() {
    let context = CudaContext::host().unwrap();
    let a = context
        .alloc_from(&[
            1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 11.0, 12.0,
        ])
        .unwrap(); // two of (3, 2), stored as (2, 3) when transposed
    let b = context
        .alloc_from(&[1.0f32, 0.0, 0.0, 1.0, 2.0, 0.0, 0.0, 2.0])
        .unwrap();
    let mut c = context.alloc_from(&[1.0f32; 12]).unwrap();
    let bias = context.alloc_from(&[0.5f32, -100.0]).unwrap();

    context
        .gemm(GemmType::F32, 3, 2, 2)
        .transpose_a()
        .transpose_b()
        .alpha(2.0)
        .beta(3.0)
        .batch(2)
        .bias(&bias)
        .activation(Activation::Relu)
        .run(&a, &b, &mut c)
        .unwrap();

    // Rows of op(a): (1, 4), (2, 5), (3, 6) and (7, 10), (8, 11), (9, 12), the latter doubled by b.
    let expected = [
        5.5, 0.0, 7.5, 0.0, 9.5, 0.0, 31.5, 0.0, 35.5, 0.0, 39.5, 0.0,
    ];
    assert_eq!(c.to_vec().unwrap(), expected);
}

#[test]
fn halves_and_fp8_by_their_bits() {
    let context = CudaContext::host().unwrap();
    let halves = context.alloc_from(&[0x4000u16, 0x4200]).unwrap(); // 2 and 3 in f16
    let mut half = context.alloc::<u16>(1).unwrap();
    context
        .gemm(GemmType::F16, 1, 1, 2)
        .run(&halves, &halves, &mut half)
        .unwrap();
    assert_eq!(half.to_vec().unwrap(), [0x4a80]); // 13

    let bytes = context.alloc_from(&[0x40u8, 0x44]).unwrap(); // 2 and 3 in e4m3
    let mut sum = context.alloc::<f32>(1).unwrap();
    context
        .gemm(GemmType::Fp8, 1, 1, 2)
        .transpose_b()
        .output(ElementType::F32)
        .run(&bytes, &bytes, &mut sum)
        .unwrap();
    assert_eq!(sum.to_vec().unwrap(), [13.0]);
}

#[test]
fn wrong_operands_are_values() {
    let context = CudaContext::host().unwrap();
    let a = context.alloc_from(&[1.0f32; 4]).unwrap();
    let halves = context.alloc_from(&[0u16; 4]).unwrap();
    let mut c = context.alloc::<f32>(4).unwrap();
    let product = || context.gemm(GemmType::F32, 2, 2, 2);

    let error = product().run(&a, &halves, &mut c).unwrap_err();
    assert_eq!(
        error.message(),
        "b has elements of 2 bytes, the product takes 4"
    );
    let error = product().run(&a, &a, &a).unwrap_err();
    assert_eq!(error.message(), "c is written and must be passed as &mut");
    let error = product().run(&a, 1.0f32, &mut c).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    let few = GpuArg::view(&a, 0..3).unwrap();
    let error = product().run(few, &a, &mut c).unwrap_err();
    assert_eq!(error.message(), "a: has 12 bytes, the product needs 16");
    let error = context.gemm(GemmType::F64, 1, 1, 1).run(&a, &a, &mut c);
    assert!(error.is_err());
    let wide = context.alloc_from(&[1.0f64; 4]).unwrap();
    let error = context
        .gemm(GemmType::F64, 1, 1, 1)
        .run(&wide, &wide, &mut c);
    assert_eq!(error.unwrap_err().kind(), ErrorKind::NotAvailable);
    product().batch(0).run(&a, &a, &mut c).unwrap();
}

#[test]
fn strides_leave_what_lies_between_and_streams_are_waited_for() {
    let context = CudaContext::host().unwrap();
    // Two matrices of (2, 2) in rows of 3, then of identities without gaps, then results in rows of 3.
    let a = [1.0f32, 2.0, -1.0, 3.0, 4.0, -1.0, 5.0, 6.0, -1.0, 7.0, 8.0];
    let a = context.alloc_from(&a).unwrap();
    let b = context
        .alloc_from(&[1.0f32, 0.0, 0.0, 1.0, 2.0, 0.0, 0.0, 2.0])
        .unwrap();
    let mut c = context.alloc_from(&[9.0f32; 12]).unwrap();
    let stream = context.stream(worker_cuda::Priority::High).unwrap();

    context
        .gemm(GemmType::F32, 2, 2, 2)
        .batch(2)
        .row_strides(3, 0, 3)
        .batch_strides(6, 4, 7)
        .on(&stream)
        .run(&a, &b, &mut c)
        .unwrap();

    stream.synchronize().unwrap();
    let expected = [
        1.0, 2.0, 9.0, 3.0, 4.0, 9.0, 9.0, 10.0, 12.0, 9.0, 14.0, 16.0,
    ];
    assert_eq!(c.to_vec().unwrap(), expected);
}

#[test]
fn threads_share_operands_with_products_kernels_and_copies() {
    let context = CudaContext::host().unwrap();
    let ones = [1.0f32; 64 * 64];
    let (x, weights) = (context.alloc_from(&ones), context.alloc_from(&ones));
    let (x, weights) = (&x.unwrap(), &weights.unwrap());
    let mut shared = context.alloc::<f32>(64 * 64).unwrap();
    let n = 64 * 64u32;
    let shared_args = &[GpuArg::from(x), (&mut shared).into(), n.into()];

    std::thread::scope(|scope| {
        for thread in 0..4 {
            let context = &context;
            scope.spawn(move || {
                let mut c = context.alloc::<f32>(64 * 64).unwrap();
                for _ in 0..50 {
                    let product = context.gemm(GemmType::F32, 64, 64, 64);
                    // In another order on every other thread.
                    match thread % 2 {
                        0 => product.run(x, weights, &mut c).unwrap(),
                        _ => product.run(weights, x, &mut c).unwrap(),
                    }
                    assert_eq!(c.to_vec().unwrap(), [64.0; 64 * 64]);
                    let args = [GpuArg::from(weights), (&mut c).into(), n.into()];
                    let relu = |args: &[GpuArg<'_>]| {
                        context.run_builtin("relu", ElementType::F32, args, None)
                    };
                    relu(&args).unwrap();
                    relu(shared_args).unwrap();
                    assert_eq!(c.to_vec().unwrap(), ones);
                    assert_eq!(weights.to_vec().unwrap(), ones);
                }
            });
        }
    });
}
