//! Device and pinned memory, on the host backend.

use std::fmt::Debug;

use worker_cuda::*;

#[path = "support/forget.rs"]
mod forget;

fn host() -> CudaContext {
    CudaContext::host().expect("the host backend is always there")
}

#[test]
fn every_type_fills_and_comes_back() {
    fn check<T: DeviceRepr + PartialEq + Debug>(context: &CudaContext, value: T) {
        let mut buffer = context.alloc::<T>(9).unwrap();
        buffer.fill(T::ZERO).unwrap();
        buffer.fill_range(2..5, value).unwrap();
        let zero = T::ZERO;
        let expected = [zero, zero, value, value, value, zero, zero, zero, zero];
        assert_eq!(buffer.to_vec().unwrap(), expected);
        assert_eq!(buffer.byte_len(), 9 * size_of::<T>() as u64);
    }
    let context = host();
    check(&context, 0xabu8);
    check(&context, -3i8);
    check(&context, 0xabcdu16);
    check(&context, -1234i16);
    check(&context, 0xdeadbeefu32);
    check(&context, -123_456_789i32);
    check(&context, 0xdead_beef_0123_4567u64);
    check(&context, i64::MIN + 5);
    check(&context, -1.5e-30f32);
    check(&context, 1.0e300f64);
}

#[test]
fn parts_are_written_and_read_at_element_offsets() {
    let mut buffer = host().alloc_zeroed::<u16>(6).unwrap();
    buffer.write_at(4, &[7, 8]).unwrap();
    buffer.write_at(6, &[]).unwrap();
    let mut part = [0; 3];
    buffer.read_at(3, &mut part).unwrap();
    assert_eq!(part, [0, 7, 8]);
    buffer.copy_within(4, 0, 2).unwrap();
    assert_eq!(buffer.to_vec().unwrap(), [7, 8, 0, 0, 7, 8]);
}

#[test]
fn ranges_past_the_end_are_refused_and_change_nothing() {
    let mut buffer = host().alloc_from(&[1.0f32, 2.0, 3.0]).unwrap();
    let mut target = [9.0; 2];
    let out_of_range = |result: Result<()>| {
        assert_eq!(result.unwrap_err().kind(), ErrorKind::OutOfRange);
    };
    out_of_range(buffer.read_at(2, &mut target));
    out_of_range(buffer.read_at(usize::MAX, &mut target));
    out_of_range(buffer.write_at(2, &[5.0, 5.0]));
    out_of_range(buffer.fill_range(1..4, 5.0));
    out_of_range(buffer.copy_within(1, 2, 2));
    assert_eq!(
        buffer.copy_from(&[1.0]).unwrap_err().kind(),
        ErrorKind::InvalidArgument,
        "the lengths differ"
    );
    assert_eq!(target, [9.0, 9.0]);
    assert_eq!(buffer.to_vec().unwrap(), [1.0, 2.0, 3.0]);
}

#[test]
fn reversed_ranges_and_overlapping_copies_are_refused() {
    let mut buffer = host().alloc_zeroed::<u8>(16).unwrap();
    let reversed = std::ops::Range { start: 5, end: 3 };
    assert_eq!(
        buffer.fill_range(reversed, 1).unwrap_err().kind(),
        ErrorKind::InvalidArgument
    );
    assert!(buffer.copy_within(0, 2, 4).is_err());
}

#[test]
fn sizes_that_are_zero_or_overflow_are_refused() {
    let context = host();
    assert_eq!(
        context.alloc::<u8>(0).unwrap_err().kind(),
        ErrorKind::InvalidArgument
    );
    assert_eq!(
        context.alloc::<u64>(usize::MAX).unwrap_err().kind(),
        ErrorKind::InvalidArgument
    );
    assert!(context.alloc::<u64>(isize::MAX as usize / 8).is_err());
    assert!(context.alloc_pinned::<u32>(0).is_err());
    assert_eq!(
        context.memory(Purpose::Any).unwrap().total_allocation_count,
        0
    );
}

#[test]
fn device_copies_stay_within_one_context() {
    let context = host();
    let source = context.alloc_from(&[1i64, 2, 3, 4]).unwrap();
    let mut target = context.alloc_zeroed::<i64>(3).unwrap();
    target.copy_from_device(1, &source, 2, 2).unwrap();
    assert_eq!(target.to_vec().unwrap(), [0, 3, 4]);
    let foreign = host().alloc_from(&[1i64, 2]).unwrap();
    let error = target.copy_from_device(0, &foreign, 0, 2).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    assert_eq!(target.to_vec().unwrap(), [0, 3, 4]);
}

#[test]
fn digest_is_blake3() {
    let buffer = host().alloc_from(b"xabcx").unwrap();
    let digest = buffer.digest(1..4).unwrap();
    let hex: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
    // Of "abc", as the reference implementation's b3sum prints it.
    assert_eq!(
        hex,
        "6437b3ac38465133ffb63b75273a8db548c558465d79db03fd359c6cd5bd9d85"
    );
}

#[test]
fn readers_on_several_threads_take_turns() {
    let expected: Vec<u32> = (0..10_000).collect();
    let buffer = host().alloc_from(&expected).unwrap();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..50 {
                    assert_eq!(buffer.to_vec().unwrap(), expected);
                }
            });
        }
    });
}

#[test]
fn pinned_memory_is_zeroed_aligned_and_counted() {
    let context = host();
    let mut pinned = context.alloc_pinned::<f32>(1000).unwrap();
    assert!(pinned.iter().all(|&value| value == 0.0));
    assert_eq!(pinned.as_ptr().addr() % 4096, 0);
    assert!(context.memory(Purpose::Staging).unwrap().current_bytes >= 4000);
    assert_eq!(
        context.memory(Purpose::Any).unwrap().current_bytes,
        0,
        "staging is host memory"
    );

    pinned[999] = 3.5;
    let buffer = context.alloc_from(&pinned).unwrap();
    assert_eq!(buffer.to_vec().unwrap()[999], 3.5);

    drop(pinned);
    assert_eq!(context.memory(Purpose::Staging).unwrap().current_bytes, 0);
}

#[test]
fn forgotten_memory_shows_in_the_ledger_and_hurts_nobody() {
    let context = host();
    forget::forget(context.alloc_tagged::<u8>(64, "forgotten").unwrap());
    forget::forget(context.alloc_pinned::<u8>(64).unwrap());
    let entries = context.ledger().unwrap();
    assert!(entries.iter().any(|entry| entry.tag == "forgotten"));
    context.alloc_from(&[1u8]).unwrap();
}
