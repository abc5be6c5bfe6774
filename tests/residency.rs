//! Where memory is, budgets by purpose, and reports of what leaks, on the host backend.

use worker_cuda::*;

fn host() -> CudaContext {
    CudaContext::host().expect("the host backend is always there")
}

#[test]
fn a_gpu_that_is_not_there_is_an_error_in_tests_too() {
    if cuda_available() {
        return println!("skipped: there is a GPU");
    }
    let error = CudaContext::new(0).unwrap_err();
    assert!(
        [ErrorKind::NoDevice, ErrorKind::NotAvailable].contains(&error.kind()),
        "{error}"
    );
    assert!(CudaVramAllocator::new(0).is_err());
}

#[test]
fn own_memory_is_resident_and_the_rule_can_be_enforced() {
    let context = host();
    assert!(!context.is_policy_enforced().unwrap());
    let buffer = context.alloc::<f32>(100).unwrap();
    let pinned = context.alloc_pinned::<u8>(100).unwrap();
    context.validate_device_properties().unwrap();
    context.check_unified_memory().unwrap();
    context.enforce_vram_only_policy().unwrap();
    assert!(context.is_policy_enforced().unwrap());
    let residency = context.check_residency().unwrap();
    assert_eq!(
        (residency.checked_count, residency.nonresident_count),
        (1, 0)
    );
    assert_eq!(residency.first, None);
    assert_eq!(buffer.place().unwrap(), Place::Device);
    drop(pinned);
}

#[test]
fn borrowed_host_memory_is_named_and_fatal() {
    let context = host();
    let mut foreign = vec![7u32; 50];
    // SAFETY: `foreign` outlives the buffer, and only the buffer uses it meanwhile.
    let borrowed = unsafe { context.borrow_memory(foreign.as_mut_ptr(), 50, "foreign") }.unwrap();
    assert_eq!(borrowed.to_vec().unwrap(), [7; 50]);
    assert_eq!(borrowed.place().unwrap(), Place::Host);
    assert_eq!(context.memory(Purpose::Any).unwrap().current_bytes, 0);
    assert_eq!(
        context.memory(Purpose::Borrowed).unwrap().current_bytes,
        200
    );

    let error = context.check_residency().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotResident);
    assert!(error.is_fatal() && !error.is_retryable());
    assert_eq!(
        error.to_string(),
        "'foreign' (#1, 200 bytes) is host memory, not the device's own; 1 of 1 allocations are not"
    );
    assert_eq!(
        context.enforce_vram_only_policy().unwrap_err().kind(),
        ErrorKind::NotResident
    );
    assert!(!context.is_policy_enforced().unwrap());
    context.check_unified_memory().unwrap(); // it is not managed
    let health = context.health().unwrap();
    assert_eq!(
        (health.state, health.nonresident_count),
        (HealthState::Degraded, 1)
    );
    assert!(health.message.contains("'foreign'"), "{}", health.message);

    drop(borrowed);
    context.enforce_vram_only_policy().unwrap();
    // SAFETY: as above.
    let refused = unsafe { context.borrow_memory(foreign.as_mut_ptr(), 50, "again") }.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::NotResident);
    assert_eq!(foreign, [7; 50]);
}

#[test]
fn a_purpose_keeps_a_budget_of_its_own() {
    let context = host();
    context.set_budget(Purpose::User, 1000).unwrap();
    let held = context.alloc::<u8>(600).unwrap();
    let error = context.alloc_tagged::<u8>(401, "more").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::OverBudget);
    assert_eq!(
        error.to_string(),
        "user 'more': needs 401 bytes, its purpose's budget 1000, used 600, free 400"
    );
    let memory = context.memory(Purpose::User).unwrap();
    assert_eq!(
        (memory.purpose_budget_bytes, memory.budget_bytes),
        (1000, 0)
    );
    drop(held);
    context.alloc::<u8>(1000).unwrap();
    assert!(context.set_budget(Purpose::Any, 1).is_err());
}

#[test]
fn there_is_no_limit_to_one_allocation_but_the_capacity() {
    let context = CudaContext::builder()
        .backend(Backend::Host)
        .memory_budget(1 << 40) // address space is enough: nothing is touched
        .open()
        .unwrap();
    let large = context.allocate_vram(200 << 30);
    // Where the system refuses to promise that much, it says so.
    match large {
        Ok(buffer) => assert_eq!(buffer.size(), 200 << 30),
        Err(error) => assert_eq!(error.kind(), ErrorKind::OutOfMemory, "{error}"),
    }
    assert_eq!(context.get_total_vram().unwrap(), 1 << 40);
    assert!(context.get_free_vram().unwrap() < 1 << 40); // what the machine has
    assert_eq!(
        context.allocate_vram(u64::MAX).unwrap_err().kind(),
        ErrorKind::InvalidArgument
    );
}

#[test]
fn no_deferred_error_is_no_error() {
    assert!(host().take_deferred_error().unwrap().is_none());
}
