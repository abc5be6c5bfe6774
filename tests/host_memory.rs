//! A device may have more memory than the host: a copy for which there is none is an error.
//!
//! The allocator of this program refuses large blocks, so that the host's memory is as small as the test says.

use std::alloc::{GlobalAlloc, Layout, System};

use worker_cuda::{CudaContext, CudaVramAllocator, ErrorKind};

struct Small;

const LARGEST: usize = 1 << 20;

// SAFETY: every call that is not refused goes to the system's allocator unchanged.
unsafe impl GlobalAlloc for Small {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if layout.size() > LARGEST {
            return std::ptr::null_mut();
        }
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Small = Small;

#[test]
fn memory_that_does_not_fit_in_the_host_is_read_in_parts() {
    let context = CudaContext::host().unwrap();
    let len = LARGEST + 1;
    let mut buffer = context.alloc::<u8>(len).unwrap();
    buffer.write_at(LARGEST, &[7]).unwrap();
    let allocator = CudaVramAllocator::with_context(context);
    let id = allocator.allocate(len as u64).unwrap();

    for whole in [
        buffer.to_vec(),
        buffer.view(0..len).unwrap().to_vec(),
        allocator.copy_from_vram(id, 0, len as u64),
    ] {
        let error = whole.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::OutOfHostMemory);
        assert!(error.message().contains("1048577 bytes"), "{error}");
    }

    let mut read = buffer.read_at(0, LARGEST).unwrap();
    assert!(read.iter().all(|&byte| byte == 0));
    read = buffer.read_at(LARGEST, 1).unwrap();
    assert_eq!(read, [7]);
    assert!(buffer.read_at(LARGEST, 0).unwrap().is_empty());
}
