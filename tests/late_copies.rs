//! Copies that a device makes as late as it may: on a backend whose streams run only when waited for.

use std::collections::{HashMap, VecDeque};
use std::ffi::c_void;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use worker_cuda::{Backend, CudaContext, Priority, backend, ffi};

/// Addresses of a copy, and its size.
type Copy = (usize, usize, usize);

#[derive(Default)]
struct Queue {
    waiting: VecDeque<Copy>,
    done: usize,
}

#[derive(Default)]
struct State {
    blocks: HashMap<u64, Box<[u8]>>,
    streams: HashMap<u64, Queue>,
    /// Stream and number of copies before each event.
    events: HashMap<u64, (u64, usize)>,
    last_id: u64,
}

#[derive(Default)]
struct Device(Mutex<State>);

static COPIED: AtomicUsize = AtomicUsize::new(0);

/// The tests count copies.
static ALONE: Mutex<()> = Mutex::new(());

impl State {
    fn next_id(&mut self) -> u64 {
        self.last_id += 1;
        self.last_id
    }

    fn run(&mut self, stream: u64, until: usize) {
        let queue = self.streams.entry(stream).or_default();
        while queue.done < until {
            let (from, to, bytes) = queue.waiting.pop_front().unwrap();
            // SAFETY: the library keeps both ranges alive until the stream has passed.
            unsafe { (from as *const u8).copy_to(to as *mut u8, bytes) };
            queue.done += 1;
            COPIED.fetch_add(1, Ordering::SeqCst);
        }
    }

    fn queued(&mut self, stream: u64) -> usize {
        let queue = self.streams.entry(stream).or_default();
        queue.done + queue.waiting.len()
    }

    fn run_all(&mut self, stream: u64) {
        let all = self.queued(stream);
        self.run(stream, all);
    }

    fn wait_for(&mut self, event: u64) {
        if let Some((stream, position)) = self.events.get(&event).copied() {
            self.run(stream, position);
        }
    }
}

fn with<R>(instance: *mut c_void, body: impl FnOnce(&mut State) -> R) -> R {
    // SAFETY: `open` made it, and the library calls no slot after `deinit`.
    let device = unsafe { &*instance.cast::<Device>() };
    body(&mut device.0.lock().unwrap())
}

unsafe extern "C" fn open(
    _: *mut c_void,
    _: i32,
    instance: *mut *mut c_void,
    _: *mut ffi::wcuda_error,
) -> i32 {
    // SAFETY: valid for a write.
    unsafe { *instance = Box::into_raw(Box::<Device>::default()).cast() };
    ffi::WCUDA_OK
}

unsafe extern "C" fn deinit(instance: *mut c_void) {
    // SAFETY: the one that `open` gave out, once.
    drop(unsafe { Box::from_raw(instance.cast::<Device>()) });
}

unsafe extern "C" fn get_device_count(_: *mut c_void) -> u32 {
    1
}

unsafe extern "C" fn get_device_caps(
    _: *mut c_void,
    _: u32,
    caps: *mut ffi::wcuda_device_caps,
    _: *mut ffi::wcuda_error,
) -> i32 {
    // SAFETY: valid for writes.
    unsafe { (*caps).total_memory = 1 << 24 };
    ffi::WCUDA_OK
}

/// Memory full of what somebody else left there.
unsafe extern "C" fn allocate(
    instance: *mut c_void,
    bytes: u64,
    _: u8,
    memory: *mut ffi::wcuda_device_memory,
    _: *mut ffi::wcuda_error,
) -> i32 {
    let mut block = vec![0xaa; bytes as usize].into_boxed_slice();
    let id = block.as_mut_ptr() as usize as u64;
    with(instance, |state| state.blocks.insert(id, block));
    // SAFETY: valid for a write.
    unsafe { *memory = ffi::wcuda_device_memory { id, bytes } };
    ffi::WCUDA_OK
}

unsafe extern "C" fn free(
    instance: *mut c_void,
    memory: ffi::wcuda_device_memory,
    _: *mut ffi::wcuda_error,
) -> i32 {
    with(instance, |state| state.blocks.remove(&memory.id));
    ffi::WCUDA_OK
}

unsafe extern "C" fn copy_to_device(
    _: *mut c_void,
    target: ffi::wcuda_device_memory,
    offset: u64,
    source: *const c_void,
    bytes: u64,
    _: *mut ffi::wcuda_error,
) -> i32 {
    let target = (target.id + offset) as usize as *mut u8;
    // SAFETY: the library keeps ranges within what `allocate` gave out.
    unsafe { source.cast::<u8>().copy_to(target, bytes as usize) };
    ffi::WCUDA_OK
}

unsafe extern "C" fn copy_from_device(
    _: *mut c_void,
    target: *mut c_void,
    source: ffi::wcuda_device_memory,
    offset: u64,
    bytes: u64,
    _: *mut ffi::wcuda_error,
) -> i32 {
    let source = (source.id + offset) as usize as *const u8;
    // SAFETY: as above.
    unsafe { source.copy_to(target.cast(), bytes as usize) };
    ffi::WCUDA_OK
}

fn queue(instance: *mut c_void, stream: ffi::wcuda_stream, copy: Copy) -> i32 {
    with(instance, |state| {
        let queue = state.streams.entry(stream.id).or_default();
        queue.waiting.push_back(copy);
    });
    ffi::WCUDA_OK
}

unsafe extern "C" fn copy_to_device_async(
    instance: *mut c_void,
    target: ffi::wcuda_device_memory,
    offset: u64,
    source: *const c_void,
    bytes: u64,
    stream: ffi::wcuda_stream,
    _: *mut ffi::wcuda_error,
) -> i32 {
    let target = (target.id + offset) as usize;
    queue(instance, stream, (source as usize, target, bytes as usize))
}

unsafe extern "C" fn copy_from_device_async(
    instance: *mut c_void,
    target: *mut c_void,
    source: ffi::wcuda_device_memory,
    offset: u64,
    bytes: u64,
    stream: ffi::wcuda_stream,
    _: *mut ffi::wcuda_error,
) -> i32 {
    let source = (source.id + offset) as usize;
    queue(instance, stream, (source, target as usize, bytes as usize))
}

unsafe extern "C" fn synchronize(instance: *mut c_void, _: *mut ffi::wcuda_error) -> i32 {
    with(instance, |state| {
        let streams: Vec<_> = state.streams.keys().copied().collect();
        streams.into_iter().for_each(|stream| state.run_all(stream));
    });
    ffi::WCUDA_OK
}

unsafe extern "C" fn stream_create(
    instance: *mut c_void,
    _: i32,
    stream: *mut ffi::wcuda_stream,
    _: *mut ffi::wcuda_error,
) -> i32 {
    // SAFETY: valid for a write.
    unsafe { (*stream).id = with(instance, State::next_id) };
    ffi::WCUDA_OK
}

unsafe extern "C" fn stream_synchronize(
    instance: *mut c_void,
    stream: ffi::wcuda_stream,
    _: *mut ffi::wcuda_error,
) -> i32 {
    with(instance, |state| state.run_all(stream.id));
    ffi::WCUDA_OK
}

unsafe extern "C" fn event_create(
    instance: *mut c_void,
    event: *mut ffi::wcuda_event,
    _: *mut ffi::wcuda_error,
) -> i32 {
    // SAFETY: valid for a write.
    unsafe { (*event).id = with(instance, State::next_id) };
    ffi::WCUDA_OK
}

unsafe extern "C" fn event_destroy(
    instance: *mut c_void,
    event: ffi::wcuda_event,
    _: *mut ffi::wcuda_error,
) -> i32 {
    with(instance, |state| state.events.remove(&event.id));
    ffi::WCUDA_OK
}

unsafe extern "C" fn event_record(
    instance: *mut c_void,
    event: ffi::wcuda_event,
    stream: ffi::wcuda_stream,
    _: *mut ffi::wcuda_error,
) -> i32 {
    with(instance, |state| {
        let position = state.queued(stream.id);
        state.events.insert(event.id, (stream.id, position));
    });
    ffi::WCUDA_OK
}

/// Runs what is before the event at once.
unsafe extern "C" fn event_order(
    instance: *mut c_void,
    event: ffi::wcuda_event,
    _: ffi::wcuda_stream,
    _: *mut ffi::wcuda_error,
) -> i32 {
    with(instance, |state| state.wait_for(event.id));
    ffi::WCUDA_OK
}

unsafe extern "C" fn event_synchronize(
    instance: *mut c_void,
    event: ffi::wcuda_event,
    _: *mut ffi::wcuda_error,
) -> i32 {
    with(instance, |state| state.wait_for(event.id));
    ffi::WCUDA_OK
}

unsafe extern "C" fn event_done(
    instance: *mut c_void,
    event: ffi::wcuda_event,
    done: *mut i32,
    _: *mut ffi::wcuda_error,
) -> i32 {
    let is_done = with(instance, |state| {
        let recorded = state.events.get(&event.id).copied();
        recorded.is_none_or(|(stream, position)| {
            state.streams.entry(stream).or_default().done >= position
        })
    });
    // SAFETY: valid for a write.
    unsafe { *done = is_done.into() };
    ffi::WCUDA_OK
}

/// A context on a backend of this name, with the backend.
fn late(name: &str) -> (Backend, CudaContext) {
    let mut table = ffi::wcuda_backend_vtable::init();
    table.deinit = Some(deinit);
    table.get_device_count = Some(get_device_count);
    table.get_device_caps = Some(get_device_caps);
    table.allocate = Some(allocate);
    table.free = Some(free);
    table.copy_to_device = Some(copy_to_device);
    table.copy_from_device = Some(copy_from_device);
    table.copy_to_device_async = Some(copy_to_device_async);
    table.copy_from_device_async = Some(copy_from_device_async);
    table.synchronize = Some(synchronize);
    table.stream_create = Some(stream_create);
    table.stream_synchronize = Some(stream_synchronize);
    table.event_create = Some(event_create);
    table.event_destroy = Some(event_destroy);
    table.event_record = Some(event_record);
    table.event_order = Some(event_order);
    table.event_synchronize = Some(event_synchronize);
    table.event_done = Some(event_done);
    // SAFETY: the functions do what the header asks, on any thread, and are static.
    let backend =
        unsafe { backend::register(name, 1, &table, open, std::ptr::null_mut()) }.unwrap();
    let context = CudaContext::builder().backend(backend).open().unwrap();
    (backend, context)
}

#[test]
fn pinned_memory_comes_back_after_the_copy_whatever_other_events_do() {
    let _alone = ALONE
        .lock()
        .unwrap_or_else(|poisoned| poisoned.into_inner());
    let (backend, context) = late("late wait");
    let (busy, idle) = (
        context.stream(Priority::Ordinary).unwrap(),
        context.stream(Priority::Ordinary).unwrap(),
    );
    let buffer = context.alloc_from(&[7u32; 64]).unwrap();
    let copied = COPIED.load(Ordering::SeqCst);

    let pending = buffer
        .read_async(0, context.alloc_pinned(64).unwrap(), Some(&busy))
        .unwrap();
    let other = busy.record().unwrap();
    other.record(Some(&idle)).unwrap();
    other.wait().unwrap();
    assert!(
        !pending.is_done().unwrap(),
        "the copy has not been made yet"
    );
    assert_eq!(COPIED.load(Ordering::SeqCst), copied);
    let pinned = pending.wait().unwrap();

    assert_eq!(COPIED.load(Ordering::SeqCst), copied + 1);
    assert_eq!(pinned[..], [7; 64]);
    drop((pinned, buffer, other, busy, idle, context));
    backend::unregister(backend).unwrap();
}

#[test]
fn a_stream_can_wait_for_a_copy() {
    let _alone = ALONE
        .lock()
        .unwrap_or_else(|poisoned| poisoned.into_inner());
    let (backend, context) = late("late order");
    let (busy, after) = (
        context.stream(Priority::Ordinary).unwrap(),
        context.stream(Priority::Ordinary).unwrap(),
    );
    let buffer = context.alloc_from(&[7u32; 64]).unwrap();

    let pending = buffer
        .read_async(0, context.alloc_pinned(64).unwrap(), Some(&busy))
        .unwrap();
    after.wait_for_copy(&pending).unwrap();

    assert!(pending.is_done().unwrap());
    drop((pending, buffer, busy, after, context));
    backend::unregister(backend).unwrap();
}

#[test]
fn dropping_a_copy_waits_for_it() {
    let _alone = ALONE
        .lock()
        .unwrap_or_else(|poisoned| poisoned.into_inner());
    let (backend, context) = late("late drop");
    let busy = context.stream(Priority::Ordinary).unwrap();
    let mut buffer = context.alloc_from(&[7u32; 64]).unwrap();
    let copied = COPIED.load(Ordering::SeqCst);

    let mut source = context.alloc_pinned::<u32>(64).unwrap();
    source.fill(9);
    drop(buffer.write_async(0, source, Some(&busy)).unwrap());

    assert_eq!(COPIED.load(Ordering::SeqCst), copied + 1);
    assert_eq!(buffer.to_vec().unwrap(), [9; 64]);
    drop((buffer, busy, context));
    backend::unregister(backend).unwrap();
}

#[test]
fn new_memory_is_zero_on_a_backend_that_cannot_fill() {
    let _alone = ALONE
        .lock()
        .unwrap_or_else(|poisoned| poisoned.into_inner());
    let (backend, context) = late("late zeros");

    let buffer = context.alloc::<u8>((3 << 20) + 5).unwrap();

    assert!(buffer.to_vec().unwrap().iter().all(|&byte| byte == 0));
    drop((buffer, context));
    backend::unregister(backend).unwrap();
}
