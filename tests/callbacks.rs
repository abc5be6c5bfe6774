//! What is dropped inside a callback of the library is released when the call that runs it returns.

use std::sync::{Arc, Mutex, OnceLock};

use worker_cuda::{
    AllocationId, Backend, BackendInstance, CudaContext, CudaVramAllocator, ErrorKind, Failover,
    FailoverMode, Gguf, GpuCompute, KernelSpec, Purpose, SafeCudaPtr, log,
};

fn held(context: &CudaContext) -> u64 {
    context.memory(Purpose::Any).unwrap().current_bytes
}

#[test]
fn a_host_function_may_drop_buffers_streams_and_contexts() {
    let context = CudaContext::host().unwrap();
    let other = CudaContext::host().unwrap();
    let compute = GpuCompute::with_context(&context).unwrap();
    let parts = (
        other.alloc_from(&[1u8; 100]).unwrap(),
        other.alloc_pinned::<u8>(100).unwrap(),
        other.stream(Default::default()).unwrap(),
        other.event().unwrap(),
        other.clone(),
    );
    let slot = Mutex::new(Some(parts));
    compute
        .register(KernelSpec::new("drops").host(move |_| {
            let parts = slot.lock().unwrap().take();
            if let Some((buffer, ..)) = &parts {
                let error = buffer.to_vec().unwrap_err();
                assert_eq!(error.kind(), ErrorKind::Reentrant);
            }
            drop(parts);
            Ok(())
        }))
        .unwrap();
    let staged = || other.memory(Purpose::Staging).unwrap().current_bytes;
    assert_eq!((held(&other), staged()), (100, 100));

    compute.run("drops", &[]).unwrap();

    assert_eq!((held(&other), staged()), (0, 0));
    assert_eq!(other.health().unwrap().deferred_error_count, 0);
    compute.run("drops", &[]).unwrap();
}

#[test]
fn a_closure_that_is_replaced_releases_what_it_owns() {
    let context = CudaContext::host().unwrap();
    let compute = GpuCompute::with_context(&context).unwrap();
    let buffer = context.alloc_from(&[1u8; 100]).unwrap();
    compute
        .register(KernelSpec::new("owner").host(move |_| {
            let _ = &buffer;
            Ok(())
        }))
        .unwrap();
    assert_eq!(held(&context), 100);

    compute
        .register(KernelSpec::new("owner").host(|_| Ok(())))
        .unwrap();

    assert_eq!(held(&context), 0);
}

#[test]
fn a_log_sink_may_drop_buffers() {
    let context = CudaContext::host().unwrap();
    let buffer = context.alloc_from(&[1u8; 100]).unwrap();
    let slot = Arc::new(Mutex::new(Some(buffer)));
    let taken = slot.clone();
    log::set_sink(log::Level::Info, move |_, _, _| {
        drop(taken.lock().unwrap().take());
    })
    .unwrap();

    drop(CudaContext::host().unwrap()); // opening one is a record
    log::clear_sink().unwrap();

    assert!(slot.lock().unwrap().is_none());
    assert_eq!(held(&context), 0);
}

#[test]
fn a_failover_listener_may_drop_buffers() {
    let context = CudaContext::host().unwrap();
    let slot = Mutex::new(Some(context.alloc_from(&[1u8; 100]).unwrap()));
    let failover = Failover::builder([(Backend::Host, 0)])
        .mode(FailoverMode::Warn)
        .on_event(move |_| drop(slot.lock().unwrap().take()))
        .build()
        .unwrap();

    let _ = failover.trigger(); // there is no other backend: an event

    assert_eq!(held(&context), 0);
}

#[test]
fn a_reader_may_drop_buffers() {
    struct Reader(Mutex<Option<worker_cuda::SafeCudaPtr<u8>>>);
    impl worker_cuda::gguf::ReadAt for Reader {
        fn size(&self) -> u64 {
            1 << 20
        }

        fn read_exact_at(&self, target: &mut [u8], _: u64) -> std::io::Result<()> {
            drop(self.0.lock().unwrap().take());
            target.fill(0);
            Ok(())
        }
    }
    let context = CudaContext::host().unwrap();
    let buffer = context.alloc_from(&[1u8; 100]).unwrap();

    let opened = Gguf::from_reader(Reader(Mutex::new(Some(buffer))));

    assert_eq!(opened.unwrap_err().kind(), ErrorKind::Malformed);
    assert_eq!(held(&context), 0);
}

#[test]
fn a_trace_may_use_the_buffer_of_the_call_that_it_traces() {
    let buffer = Arc::new(OnceLock::<(CudaVramAllocator, AllocationId, SafeCudaPtr<u8>)>::new());
    let errors = Arc::new(Mutex::new(Vec::new()));
    let (traced, seen) = (buffer.clone(), errors.clone());
    let instance = BackendInstance::builder(Backend::Host).trace(move |_| {
        if let Some((allocator, id, buffer)) = traced.get() {
            let reads = [buffer.to_vec(), allocator.copy_from_vram(*id, 0, 1)];
            seen.lock()
                .unwrap()
                .extend(reads.map(|read| read.unwrap_err().kind()));
        }
    });
    let context = instance.open().unwrap().context().unwrap();
    let allocator = CudaVramAllocator::with_context(context.clone());
    let id = allocator.allocate(1).unwrap();
    let memory = context.alloc_from(&[7u8]).unwrap();
    let (allocator, id, memory) = buffer.get_or_init(|| (allocator, id, memory));

    assert_eq!(memory.to_vec().unwrap(), [7]);
    assert_eq!(allocator.copy_from_vram(*id, 0, 1).unwrap(), [0]);

    let errors = errors.lock().unwrap();
    assert!(errors.len() >= 4, "{errors:?}");
    assert!(errors.iter().all(|kind| *kind == ErrorKind::Reentrant));
}
