//! Allocations by id: stale and foreign ones, numbers at their limits, threads.

use std::collections::HashSet;

use worker_cuda::*;

fn allocator() -> CudaVramAllocator {
    CudaVramAllocator::with_context(CudaContext::host().expect("the host backend is always there"))
}

fn kind<T: std::fmt::Debug>(result: Result<T>) -> ErrorKind {
    result.unwrap_err().kind()
}

#[test]
fn bytes_come_back_from_where_they_were_put() {
    let allocator = allocator();
    let id = allocator.allocate_tagged(100, "bytes").unwrap();
    allocator.copy_to_vram(id, 98, &[1, 2]).unwrap();
    allocator.copy_to_vram(id, 100, &[]).unwrap();
    assert_eq!(allocator.copy_from_vram(id, 98, 2).unwrap(), [1, 2]);
    assert_eq!(allocator.size_of(id).unwrap(), 100);
    assert_eq!(allocator.allocation_count(), 1);
    assert_eq!(allocator.context().ledger().unwrap()[0].tag, "bytes");
    assert_eq!(AllocationId::from_u64(id.as_u64()), id);

    let out_of_range = ErrorKind::OutOfRange;
    assert_eq!(kind(allocator.copy_to_vram(id, 99, &[1, 2])), out_of_range);
    assert_eq!(kind(allocator.copy_from_vram(id, 0, 101)), out_of_range);
    assert_eq!(
        kind(allocator.copy_from_vram(id, u64::MAX, 2)),
        out_of_range
    );
    assert_eq!(
        kind(allocator.copy_from_vram(id, 1, u64::MAX)),
        out_of_range
    );
    assert_eq!(kind(allocator.allocate(0)), ErrorKind::InvalidArgument);
}

#[test]
fn ids_of_freed_allocations_name_nothing_for_good() {
    let allocator = allocator();
    let mut seen = HashSet::new();
    let first = allocator.allocate(64).unwrap();
    allocator.deallocate(first).unwrap();
    for _ in 0..100 {
        let id = allocator.allocate(64).unwrap(); // most likely the same memory
        assert!(id != first && seen.insert(id));
        assert_eq!(
            kind(allocator.copy_from_vram(first, 0, 1)),
            ErrorKind::InvalidHandle
        );
        assert_eq!(
            kind(allocator.copy_to_vram(first, 0, &[1])),
            ErrorKind::InvalidHandle
        );
        assert_eq!(kind(allocator.deallocate(first)), ErrorKind::InvalidHandle);
        assert_eq!(kind(allocator.size_of(first)), ErrorKind::InvalidHandle);
        allocator.deallocate(id).unwrap();
    }
    for number in [0, 1, u64::MAX] {
        let made_up = AllocationId::from_u64(number);
        assert_eq!(
            kind(allocator.deallocate(made_up)),
            ErrorKind::InvalidHandle
        );
    }
    assert!(allocator.context().ledger().unwrap().is_empty());
}

#[test]
fn ids_of_another_allocator_are_refused() {
    let (one, two) = (allocator(), allocator());
    let id = one.allocate(64).unwrap();
    assert_eq!(kind(two.deallocate(id)), ErrorKind::InvalidHandle);
    assert_eq!(kind(two.copy_from_vram(id, 0, 1)), ErrorKind::InvalidHandle);
    one.deallocate(id).unwrap();
}

#[test]
fn memory_is_what_device_and_budget_leave() {
    let context = CudaContext::builder()
        .backend(Backend::Host)
        .memory_budget(1000)
        .open()
        .unwrap();
    let allocator = CudaVramAllocator::with_context(context.clone());
    assert_eq!(allocator.total_vram().unwrap(), 1000);
    let id = allocator.allocate(400).unwrap();
    assert_eq!(allocator.available_vram().unwrap(), 600);
    assert_eq!(kind(allocator.allocate(601)), ErrorKind::OverBudget);
    allocator.deallocate(id).unwrap();
    allocator.allocate(1000).unwrap();
    drop(allocator);
    assert!(
        context.ledger().unwrap().is_empty(),
        "what was left is freed"
    );
}

#[test]
fn eight_threads_allocate_use_and_free() {
    let allocator = allocator();
    let shared = allocator.allocate(8).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..8u8 {
            let allocator = &allocator;
            scope.spawn(move || {
                for round in 0..500u64 {
                    let id = allocator.allocate(1 + round % 300).unwrap();
                    allocator.copy_to_vram(id, round % 300, &[thread]).unwrap();
                    allocator
                        .copy_to_vram(shared, thread.into(), &[thread])
                        .unwrap();
                    let byte = allocator.copy_from_vram(id, round % 300, 1).unwrap();
                    assert_eq!(byte, [thread]);
                    allocator.deallocate(id).unwrap();
                }
            });
        }
    });
    let bytes = allocator.copy_from_vram(shared, 0, 8).unwrap();
    assert_eq!(bytes, [0, 1, 2, 3, 4, 5, 6, 7]);
    assert_eq!(allocator.allocation_count(), 1);
}
