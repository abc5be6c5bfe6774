//! Contexts, the ledger and health, on the host backend.

use worker_cuda::*;

#[test]
fn host_context_says_what_it_is() {
    let context = CudaContext::builder()
        .backend(Backend::Host)
        .host_threads(1)
        .open()
        .unwrap();
    let info = context.info().unwrap();
    assert_eq!(info.backend, Backend::Host);
    assert_eq!(info.host_threads, 1);
    assert_eq!(info.fallback_reason, "");
    context.synchronize().unwrap();
    assert!(context.same_as(&context.clone()));
    assert!(!context.same_as(&CudaContext::host().unwrap()));
}

#[test]
fn host_device_has_caps() {
    let caps = &devices(Backend::Host).unwrap()[0];
    assert_eq!(caps.backend, Backend::Host);
    assert!(!caps.name.is_empty());
    assert!(caps.total_memory > 0);
    assert!(caps.multiprocessor_count > 0);
}

#[test]
fn cuda_is_there_or_says_why_not() {
    match devices(Backend::Cuda) {
        Ok(devices) => assert!(!devices.is_empty()),
        Err(error) => {
            assert!(matches!(
                error.kind(),
                ErrorKind::NoDevice | ErrorKind::NotAvailable
            ));
            assert!(!error.message().is_empty());
            assert_eq!(CudaContext::new(0).unwrap_err().kind(), error.kind());
            assert!(!cuda_available());
        }
    }
    assert!(CudaContext::new(-1).is_err());
}

#[test]
fn automatic_choice_reports_why_it_fell_back() {
    let info = CudaContext::auto().unwrap().info().unwrap();
    assert_eq!(
        info.backend == Backend::Host,
        !info.fallback_reason.is_empty()
    );
}

#[test]
fn ledger_follows_what_is_held() {
    let context = CudaContext::host().unwrap();
    let before = context.memory(Purpose::User).unwrap();
    assert_eq!((before.current_bytes, before.allocation_count), (0, 0));

    let first = context.alloc_tagged::<f32>(100, "first").unwrap();
    let second = context.alloc_tagged::<u8>(7, "second").unwrap();
    let entries = context.ledger().unwrap();
    assert_eq!(
        entries.iter().map(|entry| &*entry.tag).collect::<Vec<_>>(),
        ["first", "second"]
    );
    assert_eq!(
        (entries[0].sequence_number, entries[1].sequence_number),
        (1, 2)
    );
    assert_eq!(entries[0].purpose, Purpose::User);
    let held = context.memory(Purpose::Any).unwrap();
    assert_eq!(held.allocation_count, 2);
    assert!(held.current_bytes >= 407);

    drop((first, second));
    let after = context.memory(Purpose::Any).unwrap();
    assert_eq!((after.current_bytes, after.allocation_count), (0, 0));
    assert_eq!(
        (after.peak_bytes, after.total_allocation_count),
        (held.current_bytes, 2)
    );
    assert!(context.ledger().unwrap().is_empty());
}

#[test]
fn budget_is_kept_and_the_refusal_has_the_numbers() {
    let context = CudaContext::builder()
        .backend(Backend::Host)
        .memory_budget(1 << 20)
        .open()
        .unwrap();
    let held = context.alloc::<u8>(1 << 19).unwrap();

    let error = context.alloc::<u8>((1 << 19) + 1).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::OverBudget);
    assert!(error.is_retryable());
    for number in ["524289", "1048576", "524288"] {
        assert!(error.message().contains(number), "no {number} in '{error}'");
    }

    drop(held);
    context.alloc::<u8>(1 << 20).unwrap();
}

#[test]
fn health_agrees_with_the_ledger() {
    let context = CudaContext::host().unwrap();
    let _held = context.alloc::<u64>(1000).unwrap();
    let health = context.health().unwrap();
    assert_eq!(health.state, HealthState::Ok);
    assert_eq!(health.message, "");
    assert_eq!(
        health.ledger_bytes,
        context.memory(Purpose::Any).unwrap().current_bytes
    );
    assert_eq!(health.deferred_error_count, 0);
}

#[test]
fn things_outlive_the_context_they_came_from() {
    let context = CudaContext::host().unwrap();
    let buffer = context.alloc_from(&[1u32, 2, 3]).unwrap();
    drop(context);
    assert_eq!(buffer.to_vec().unwrap(), [1, 2, 3]);
    assert_eq!(
        buffer
            .context()
            .memory(Purpose::User)
            .unwrap()
            .allocation_count,
        1
    );
}

#[test]
fn a_host_context_has_no_streams_of_a_driver_and_no_device_code() {
    let context = CudaContext::host().unwrap();
    let error = context.native_stream(None).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    let mut nobodys = 0u8;
    // SAFETY: refused before it is looked at.
    let borrowed = unsafe { context.borrow_stream((&raw mut nobodys).cast()) };
    assert_eq!(borrowed.unwrap_err().kind(), ErrorKind::Unsupported);
    let ptx = include_str!("../cuda/tests/data/kernels/module.ptx");
    let launcher = worker_cuda::KernelLauncher::new(&context);
    // SAFETY: refused before anything is loaded.
    let launched = unsafe { launcher.load_and_launch_ptx(ptx, "noop", 1, 1, &[]) };
    assert_eq!(launched.unwrap_err().kind(), ErrorKind::UnsupportedKernel);
}
