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
        assert_eq!(buffer.size(), 9 * size_of::<T>() as u64);
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
    let mut buffer = host().alloc::<u16>(6).unwrap();
    buffer.write_at(4, &[7, 8]).unwrap();
    buffer.write_at(6, &[]).unwrap();
    let mut part = [0; 3];
    buffer.read_into(3, &mut part).unwrap();
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
    out_of_range(buffer.read_into(2, &mut target));
    out_of_range(buffer.read_into(usize::MAX, &mut target));
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
fn parts_are_read_into_new_vectors_too() {
    let buffer = host().alloc_from(&[10u32, 11, 12, 13]).unwrap();
    assert_eq!(buffer.read_at(1, 2).unwrap(), [11, 12]);
    assert!(buffer.read_at(4, 0).unwrap().is_empty());
    let error = buffer.read_at(3, usize::MAX - 2).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::OutOfRange);
    assert_eq!(
        buffer.read_at(3, 2).unwrap_err().to_string(),
        "2 elements at 3 pass the end of a buffer of 4"
    );
}

#[test]
fn windows_keep_their_own_bounds() {
    let mut buffer = host().alloc_from(&[0i16, 1, 2, 3, 4, 5]).unwrap();
    {
        let mut window = buffer.view_mut(2..5).unwrap();
        window.write_at(1, &[30, 40]).unwrap();
        assert_eq!(window.to_vec().unwrap(), [2, 30, 40]);
        assert_eq!(
            window.write_at(2, &[1, 1]).unwrap_err().to_string(),
            "2 elements at 2 pass the end of a window of 3"
        );
        assert!(window.copy_from(&[1]).is_err(), "the lengths differ");
        assert!(window.read_at(usize::MAX, 2).is_err());
        window.copy_from(&[7, 8, 9]).unwrap();
    }
    let window = buffer.view(1..4).unwrap();
    let mut target = [0; 3];
    window.copy_to(&mut target).unwrap();
    assert_eq!(target, [1, 7, 8]);
    assert_eq!(window.read_at(1, 1).unwrap(), [7]);
    assert_eq!(window.digest().unwrap(), buffer.digest(1..4).unwrap());
    assert_eq!(window.clone().len(), 3);
    assert_eq!(
        format!("{window:?}"),
        "CudaView(1..4 of SafeCudaPtr<i16>(6 elements))"
    );
    assert!(buffer.view(6..6).unwrap().is_empty());
    assert_eq!(buffer.view(5..7).unwrap_err().kind(), ErrorKind::OutOfRange);
    buffer.view_mut(0..2).unwrap().fill(-1).unwrap();
    assert_eq!(buffer.to_vec().unwrap(), [-1, -1, 7, 8, 9, 5]);
}

#[test]
fn the_raw_address_is_that_of_the_elements() {
    let buffer = host().alloc_from(&[5u64, 6, 7]).unwrap();
    // SAFETY: used while the buffer lives and no call runs; on the host it can be read.
    let second = unsafe { *buffer.as_raw().unwrap().add(1) };
    assert_eq!(second, 6);
    assert_eq!(buffer.device().unwrap(), 0);
    assert_eq!(buffer.size(), 24);
}

#[test]
fn pieces_join_to_the_digest() {
    let bytes: Vec<u8> = (0..2_500_000u32)
        .map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8)
        .collect();
    let mut buffer = host().alloc_from(&bytes).unwrap();
    let pieces = buffer.digest_pieces(0..bytes.len(), 0).unwrap();
    assert_eq!(pieces.len(), 3);
    let digest = buffer.digest(0..bytes.len()).unwrap();
    assert_eq!(join_digest_pieces(&pieces).unwrap(), digest);
    let second = buffer.digest_pieces(1 << 20..2 << 20, 1).unwrap();
    assert_eq!(second, pieces[1..2]);
    buffer.write_at(2_000_000, &[bytes[2_000_000] ^ 4]).unwrap();
    let changed = buffer.digest_pieces(0..bytes.len(), 0).unwrap();
    let differ = |i: &usize| changed[*i] != pieces[*i];
    assert_eq!((0..3).filter(differ).collect::<Vec<_>>(), [1]);
    assert!(join_digest_pieces(&pieces[..1]).is_err());
    assert!(buffer.digest_pieces(5..5, 0).is_err());
}

#[test]
fn scrubbed_memory_starts_as_zeros() {
    let context = CudaContext::builder()
        .backend(Backend::Host)
        .scrub(Scrub::OnAlloc)
        .open()
        .unwrap();
    for _ in 0..4 {
        let mut buffer = context.alloc::<u32>(1000).unwrap();
        assert!(buffer.to_vec().unwrap().iter().all(|&word| word == 0));
        buffer.fill(0xdead_beef).unwrap();
    }
}

#[test]
fn reversed_ranges_and_overlapping_copies_are_refused() {
    let mut buffer = host().alloc::<u8>(16).unwrap();
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
    let mut target = context.alloc::<i64>(3).unwrap();
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

#[test]
fn new_memory_is_zero_whatever_was_there() {
    let context = host();
    let allocator = CudaVramAllocator::with_context(context.clone());
    let device = GpuDevice::with_context(&context);
    for len in [1, 7, 100, 4096, 65_535, 65_536, (2 << 20) + 1] {
        for _ in 0..8 {
            drop(context.alloc_from(&vec![0xa5u8; len]).unwrap());
            let id = allocator.allocate(len as u64).unwrap();
            let blocks = [
                context.alloc::<u8>(len).unwrap().to_vec().unwrap(),
                context.allocate_vram(len as u64).unwrap().to_vec().unwrap(),
                device.allocate::<u8>(len).unwrap().to_vec().unwrap(),
                allocator.copy_from_vram(id, 0, len as u64).unwrap(),
                context.alloc_pinned::<u8>(len).unwrap().to_vec(),
            ];
            allocator.deallocate(id).unwrap();
            for block in blocks {
                assert_eq!(block, vec![0; len]);
            }
        }
    }
}

#[test]
fn memory_that_is_not_zeroed_is_written_and_read() {
    let context = host();
    // SAFETY: all of it is written before it is read.
    let mut buffer = unsafe { context.alloc_uninit::<u32>(3, "scratch") }.unwrap();
    buffer.copy_from(&[1, 2, 3]).unwrap();
    assert_eq!(buffer.to_vec().unwrap(), [1, 2, 3]);
    assert_eq!(context.ledger().unwrap()[0].tag, "scratch");
}
