//! A caller's own backend, its table written in Rust: found, chosen, used and taken away again.

use std::ffi::{c_char, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::slice;
use std::sync::Mutex;
use std::sync::atomic::{AtomicI64, Ordering};

use worker_cuda::backend::{self, BackendInstance, Fault, Selection};
use worker_cuda::{Backend, CudaContext, ErrorKind, Failover, FailoverMode, backends, ffi};

/// Memory of one instance; a block's id is its address.
#[derive(Default)]
struct Device {
    blocks: Mutex<Vec<Box<[u8]>>>,
}

/// Instances and blocks that have not ended.
static LIVE: AtomicI64 = AtomicI64::new(0);

const CAPACITY: u64 = 1 << 20;
const SOURCE: &str = "twice: y[i] = 2 x[i]";
const KERNEL: u64 = 42;

/// What a failed function of a table does.
fn refuse(
    error: *mut ffi::wcuda_error,
    status: ffi::wcuda_status,
    reason: &str,
) -> ffi::wcuda_status {
    // SAFETY: the library gives a valid one to every slot.
    let error = unsafe { &mut *error };
    *error = ffi::wcuda_error::zeroed();
    error.code = status;
    error.message_bytes = reason.len() as u32;
    for (to, from) in error.message.iter_mut().zip(reason.bytes()) {
        *to = from as c_char;
    }
    status
}

unsafe fn device<'a>(instance: *mut c_void) -> &'a Device {
    // SAFETY: `open` made it, and the library calls no slot after `deinit`.
    unsafe { &*instance.cast::<Device>() }
}

fn place(id: u64, offset: u64) -> *mut u8 {
    (id + offset) as usize as *mut u8
}

unsafe extern "C" fn open(
    user: *mut c_void,
    ordinal: i32,
    instance: *mut *mut c_void,
    error: *mut ffi::wcuda_error,
) -> ffi::wcuda_status {
    // SAFETY: `user` is the static that was registered.
    unsafe { &*user.cast::<AtomicI64>() }.fetch_add(1, Ordering::Relaxed);
    if ordinal != 0 {
        return refuse(error, ffi::WCUDA_NO_DEVICE, "there is device 0 alone");
    }
    LIVE.fetch_add(1, Ordering::Relaxed);
    // SAFETY: valid for a write.
    unsafe { *instance = Box::into_raw(Box::<Device>::default()).cast() };
    ffi::WCUDA_OK
}

unsafe extern "C" fn deinit(instance: *mut c_void) {
    // SAFETY: the one that `open` gave out, once.
    let device = unsafe { Box::from_raw(instance.cast::<Device>()) };
    let blocks = device.blocks.lock().unwrap().len() as i64;
    LIVE.fetch_sub(1 + blocks, Ordering::Relaxed);
}

unsafe extern "C" fn get_device_count(_: *mut c_void) -> u32 {
    1
}

unsafe extern "C" fn get_device_caps(
    _: *mut c_void,
    _: u32,
    caps: *mut ffi::wcuda_device_caps,
    _: *mut ffi::wcuda_error,
) -> ffi::wcuda_status {
    // SAFETY: valid for writes.
    let caps = unsafe { &mut *caps };
    for (to, from) in caps.name.iter_mut().zip(b"a vector\0") {
        *to = *from as c_char;
    }
    caps.total_memory = CAPACITY;
    ffi::WCUDA_OK
}

unsafe extern "C" fn allocate(
    instance: *mut c_void,
    bytes: u64,
    _: u8,
    memory: *mut ffi::wcuda_device_memory,
    error: *mut ffi::wcuda_error,
) -> ffi::wcuda_status {
    // SAFETY: a live instance.
    let mut blocks = unsafe { device(instance) }.blocks.lock().unwrap();
    let held: usize = blocks.iter().map(|block| block.len()).sum();
    if bytes > CAPACITY - held as u64 {
        return refuse(error, ffi::WCUDA_OUT_OF_MEMORY, "1 MiB is all there is");
    }
    let mut block = vec![0; bytes as usize].into_boxed_slice();
    let id = block.as_mut_ptr() as usize as u64;
    blocks.push(block);
    LIVE.fetch_add(1, Ordering::Relaxed);
    // SAFETY: valid for a write.
    unsafe { *memory = ffi::wcuda_device_memory { id, bytes } };
    ffi::WCUDA_OK
}

unsafe extern "C" fn free(
    instance: *mut c_void,
    memory: ffi::wcuda_device_memory,
    _: *mut ffi::wcuda_error,
) -> ffi::wcuda_status {
    // SAFETY: a live instance.
    let mut blocks = unsafe { device(instance) }.blocks.lock().unwrap();
    let before = blocks.len();
    blocks.retain(|block| block.as_ptr() as usize as u64 != memory.id);
    LIVE.fetch_sub((before - blocks.len()) as i64, Ordering::Relaxed);
    ffi::WCUDA_OK
}

unsafe extern "C" fn copy_to_device(
    _: *mut c_void,
    target: ffi::wcuda_device_memory,
    offset: u64,
    source: *const c_void,
    bytes: u64,
    _: *mut ffi::wcuda_error,
) -> ffi::wcuda_status {
    // SAFETY: the library keeps ranges within what `allocate` gave out.
    unsafe {
        source
            .cast::<u8>()
            .copy_to(place(target.id, offset), bytes as usize)
    };
    ffi::WCUDA_OK
}

unsafe extern "C" fn copy_from_device(
    _: *mut c_void,
    target: *mut c_void,
    source: ffi::wcuda_device_memory,
    offset: u64,
    bytes: u64,
    _: *mut ffi::wcuda_error,
) -> ffi::wcuda_status {
    // SAFETY: as above.
    unsafe { place(source.id, offset).copy_to(target.cast(), bytes as usize) };
    ffi::WCUDA_OK
}

unsafe extern "C" fn compile_kernel(
    _: *mut c_void,
    source: ffi::wcuda_string,
    entry: ffi::wcuda_string,
    kernel: *mut ffi::wcuda_backend_kernel,
    error: *mut ffi::wcuda_error,
) -> ffi::wcuda_status {
    // SAFETY: both texts live through the call.
    let text = |text: ffi::wcuda_string| unsafe {
        slice::from_raw_parts(text.data.cast::<u8>(), text.bytes as usize)
    };
    if text(source) != SOURCE.as_bytes() || text(entry) != b"twice" {
        return refuse(error, ffi::WCUDA_COMPILE_FAILED, "it knows one kernel");
    }
    // SAFETY: valid for a write.
    unsafe { (*kernel).id = KERNEL };
    ffi::WCUDA_OK
}

unsafe extern "C" fn launch_kernel(
    _: *mut c_void,
    kernel: ffi::wcuda_backend_kernel,
    config: *const ffi::wcuda_launch,
    arguments: *const ffi::wcuda_argument,
    count: u64,
    error: *mut ffi::wcuda_error,
) -> ffi::wcuda_status {
    if count != 2 {
        return refuse(error, ffi::WCUDA_ARGUMENT_COUNT, "twice takes x and y");
    }
    assert_eq!(kernel.id, KERNEL);
    // SAFETY: `count` arguments, and a launch.
    let (arguments, config) = unsafe { (slice::from_raw_parts(arguments, 2), &*config) };
    let threads = u64::from(config.grid[0]) * u64::from(config.block[0]);
    let n = (arguments[1].bytes / 4).min(threads) as usize;
    let x = place(arguments[0].buffer.id, arguments[0].offset).cast::<f32>();
    let y = place(arguments[1].buffer.id, arguments[1].offset).cast::<f32>();
    for i in 0..n {
        // SAFETY: the library keeps windows within their blocks, and x is as long as y here.
        unsafe { y.add(i).write_unaligned(2.0 * x.add(i).read_unaligned()) };
    }
    ffi::WCUDA_OK
}

unsafe extern "C" fn destroy_kernel(
    _: *mut c_void,
    _: ffi::wcuda_backend_kernel,
    _: *mut ffi::wcuda_error,
) -> ffi::wcuda_status {
    ffi::WCUDA_OK
}

unsafe extern "C" fn synchronize(_: *mut c_void, _: *mut ffi::wcuda_error) -> ffi::wcuda_status {
    ffi::WCUDA_OK
}

unsafe extern "C" fn lose(_: *mut c_void, error: *mut ffi::wcuda_error) -> ffi::wcuda_status {
    refuse(error, ffi::WCUDA_DEVICE_LOST, "pretended")
}

fn table() -> ffi::wcuda_backend_vtable {
    let mut table = ffi::wcuda_backend_vtable::init();
    table.deinit = Some(deinit);
    table.get_device_count = Some(get_device_count);
    table.get_device_caps = Some(get_device_caps);
    table.allocate = Some(allocate);
    table.free = Some(free);
    table.copy_to_device = Some(copy_to_device);
    table.copy_from_device = Some(copy_from_device);
    table.compile_kernel = Some(compile_kernel);
    table.launch_kernel = Some(launch_kernel);
    table.destroy_kernel = Some(destroy_kernel);
    table.synchronize = Some(synchronize);
    table
}

/// The user's pointer of every registration here: counts the calls of `open`.
static OPENED: AtomicI64 = AtomicI64::new(0);

fn register(name: &str, table: &ffi::wcuda_backend_vtable) -> worker_cuda::Result<Backend> {
    // SAFETY: the functions do what the header asks, on any thread, and they and OPENED are static.
    unsafe { backend::register(name, 7, table, open, (&raw const OPENED).cast_mut().cast()) }
}

/// Runs the tests of this file one after the other: they count what is live.
fn alone() -> std::sync::MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    let guard = TURN.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    assert_eq!(LIVE.load(Ordering::Relaxed), 0);
    guard
}

fn context(backend: Backend) -> CudaContext {
    CudaContext::builder().backend(backend).open().unwrap()
}

#[test]
fn is_listed_found_chosen_and_gone_when_unregistered() {
    let _alone = alone();
    let vector = register("vector", &table()).unwrap();
    assert_eq!(vector.to_string(), "vector");
    assert_eq!(backend::find("vector").unwrap(), vector);
    let all = backends().unwrap();
    let entry = all.iter().find(|entry| entry.backend == vector).unwrap();
    assert_eq!((entry.name.as_str(), entry.priority), ("vector", 7));
    assert_eq!(entry.devices, Ok(1));
    let chosen = Selection::builder().preferred(vector).choose().unwrap();
    assert_eq!((chosen.backend, chosen.ordinal), (vector, 0));
    assert_eq!(
        worker_cuda::device::device(vector, 0).unwrap().name,
        "a vector"
    );
    assert_eq!(
        register("vector", &table()).unwrap_err().kind(),
        ErrorKind::InvalidArgument
    );

    let held = context(vector);
    backend::unregister(vector).unwrap();
    assert!(backend::find("vector").is_err());
    assert_eq!(
        backend::unregister(vector).unwrap_err().kind(),
        ErrorKind::NotFound
    );
    let error = CudaContext::builder().backend(vector).open().unwrap_err();
    assert_ne!(error.kind(), ErrorKind::Internal);
    // What was opened continues to work.
    assert_eq!(held.alloc_from(&[5u8]).unwrap().to_vec().unwrap(), [5]);
    drop(held);
    assert_eq!(LIVE.load(Ordering::Relaxed), 0);
}

#[test]
fn memory_and_copies_are_its_own() {
    let _alone = alone();
    let vector = register("vector memory", &table()).unwrap();
    let opened = OPENED.load(Ordering::Relaxed);
    let context = context(vector);
    assert!(OPENED.load(Ordering::Relaxed) > opened);
    assert_eq!(context.info().unwrap().backend, vector);
    let mut buffer = context.alloc_from(&[1u32, 2, 3, 4]).unwrap();
    assert_eq!(LIVE.load(Ordering::Relaxed), 2);
    buffer.write_at(1, &[20, 30]).unwrap();
    assert_eq!(buffer.to_vec().unwrap(), [1, 20, 30, 4]);
    assert_eq!(buffer.digest(0..4).unwrap(), {
        let bytes: Vec<u8> = [1u32, 20, 30, 4]
            .iter()
            .flat_map(|n| n.to_le_bytes())
            .collect();
        let host = CudaContext::host().unwrap();
        host.alloc_from(&bytes).unwrap().digest(0..16).unwrap()
    });
    let error = context.alloc::<u8>(2 << 20).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::OutOfMemory);
    assert!(error.message().contains("1 MiB is all there is"), "{error}");
    // It has no fill and no streams, and that is said by name.
    let error = buffer.fill(7).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(
        error.message().contains("'vector memory': has no fill"),
        "{error}"
    );
    assert_eq!(
        context.stream(Default::default()).unwrap_err().kind(),
        ErrorKind::Unsupported
    );
    // Dropped in any order, all comes back.
    drop(context);
    drop(buffer);
    assert_eq!(LIVE.load(Ordering::Relaxed), 0);
    backend::unregister(vector).unwrap();
}

#[test]
fn its_kernel_computes_through_the_table_of_the_library() {
    let _alone = alone();
    let vector = register("vector kernel", &table()).unwrap();
    let mut options = ffi::wcuda_backend_options::init();
    let Backend::Unknown(number) = vector else {
        panic!("{vector:?}");
    };
    options.r#type = number;
    let mut handle = ffi::wcuda_backend::zeroed();
    let mut table: *const ffi::wcuda_backend_vtable = std::ptr::null();
    let mut instance: *mut c_void = std::ptr::null_mut();
    let mut error = ffi::wcuda_error::zeroed();
    // SAFETY: valid pointers; the table is static and `instance` lives until the backend ends.
    let slots = unsafe {
        assert_eq!(
            ffi::wcuda_backend_open(&options, &mut handle, &mut error),
            0
        );
        let got = ffi::wcuda_backend_table_get(handle, &mut table, &mut instance, &mut error);
        assert_eq!(got, 0);
        &*table
    };
    let string = |text: &'static str| ffi::wcuda_string {
        data: text.as_ptr().cast(),
        bytes: text.len() as u64,
    };
    let mut kernel = ffi::wcuda_backend_kernel { id: 7 };
    let mut memory = [ffi::wcuda_device_memory { id: 0, bytes: 0 }; 2];
    let x = [1.0f32, 2.5, -3.0];
    let mut y = [0.0f32; 3];
    // SAFETY: the slots are called as the header says, with memory of their own.
    unsafe {
        let compile = slots.compile_kernel.unwrap();
        let status = compile(
            instance,
            string("thrice"),
            string("thrice"),
            &mut kernel,
            &mut error,
        );
        assert_eq!(status, ffi::WCUDA_COMPILE_FAILED);
        assert_eq!(kernel.id, 7);
        assert_eq!(
            compile(
                instance,
                string(SOURCE),
                string("twice"),
                &mut kernel,
                &mut error
            ),
            0
        );
        for block in &mut memory {
            assert_eq!(
                slots.allocate.unwrap()(instance, 16, 0, block, &mut error),
                0
            );
        }
        // From the second element on.
        let copy = slots.copy_to_device.unwrap();
        assert_eq!(
            copy(instance, memory[0], 4, x.as_ptr().cast(), 12, &mut error),
            0
        );
        let mut arguments = [ffi::wcuda_argument::init(); 2];
        for (argument, block) in arguments.iter_mut().zip(&memory) {
            argument.kind = ffi::WCUDA_ARG_BUFFER;
            argument.buffer.id = block.id;
            argument.offset = 4;
            argument.bytes = 12;
        }
        let mut config = ffi::wcuda_launch::init();
        (config.grid, config.block) = ([1; 3], [32, 1, 1]);
        let launch = slots.launch_kernel.unwrap();
        assert_eq!(
            launch(instance, kernel, &config, arguments.as_ptr(), 1, &mut error),
            ffi::WCUDA_ARGUMENT_COUNT
        );
        assert_eq!(
            launch(instance, kernel, &config, arguments.as_ptr(), 2, &mut error),
            0
        );
        assert_eq!(slots.synchronize.unwrap()(instance, &mut error), 0);
        let read = slots.copy_from_device.unwrap();
        assert_eq!(
            read(
                instance,
                y.as_mut_ptr().cast(),
                memory[1],
                4,
                12,
                &mut error
            ),
            0
        );
        assert_eq!(y, [2.0, 5.0, -6.0]);
        // What the caller leaves behind ends with the backend.
        ffi::wcuda_backend_close(handle);
    }
    assert_eq!(LIVE.load(Ordering::Relaxed), 0);
    backend::unregister(vector).unwrap();
}

#[test]
fn it_can_be_traced_and_made_to_fail() {
    static LINES: Mutex<Vec<String>> = Mutex::new(Vec::new());
    let _alone = alone();
    let vector = register("vector faults", &table()).unwrap();
    let instance = BackendInstance::builder(vector)
        .trace(|line| LINES.lock().unwrap().push(line.to_owned()))
        .with_faults()
        .open()
        .unwrap();
    let context = instance.context().unwrap();
    instance.fail(Fault::Allocate, 2).unwrap();
    let buffer = context.alloc_from(&[1u8, 2]).unwrap();
    assert_eq!(
        context.alloc::<u8>(1).unwrap_err().kind(),
        ErrorKind::OutOfMemory
    );
    assert_eq!(buffer.to_vec().unwrap(), [1, 2]);
    drop((buffer, context, instance));
    assert_eq!(LIVE.load(Ordering::Relaxed), 0);
    let lines = LINES.lock().unwrap();
    assert!(
        lines[0].starts_with(r#"{"slot":"allocate","bytes":2,"#),
        "{lines:?}"
    );
    assert!(
        lines
            .iter()
            .any(|line| line.contains("WCUDA_OUT_OF_MEMORY")),
        "{lines:?}"
    );
    backend::unregister(vector).unwrap();
}

/// The device is lost while a body runs that answers with a value all the same, and runs again elsewhere.
#[test]
fn an_earlier_result_that_panics_on_drop_ends_the_call() {
    struct Bomb;
    impl Drop for Bomb {
        fn drop(&mut self) {
            panic!("of an earlier result");
        }
    }
    let _alone = alone();
    let mut losing = table();
    losing.synchronize = Some(lose);
    let vector = register("vector loses", &losing).unwrap();
    let failover = Failover::builder([(vector, 0), (Backend::Host, 0)])
        .mode(FailoverMode::Automatic)
        .build()
        .unwrap();
    let mut runs = 0;
    let caught = catch_unwind(AssertUnwindSafe(|| {
        failover.run(|context| {
            runs += 1;
            assert!(context.synchronize().is_err());
            Ok(Bomb)
        })
    }));
    let payload = caught.map(drop).expect_err("the panic of the drop");
    assert_eq!(
        payload.downcast_ref::<&str>(),
        Some(&"of an earlier result")
    );
    assert_eq!(runs, 1, "the result is dropped before the body runs again");
    drop(failover);
    backend::unregister(vector).unwrap();
}

#[test]
fn a_table_that_lacks_what_must_be_there_is_refused() {
    let _alone = alone();
    let mut lacking = table();
    lacking.synchronize = None;
    let error = register("vector lacking", &lacking).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    assert!(error.message().contains("synchronize"), "{error}");
    assert!(backend::find("vector lacking").is_err());
}
