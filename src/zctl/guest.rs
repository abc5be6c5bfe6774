//! Guests that are native code: what they call, and how they are run.

use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::fmt;
use std::ops::Range;
use std::ptr::null_mut;

use super::session::Call;
use crate::core::callback::ParkedPanic;

/// What a guest can call. Windows of the memory are as the guest gave them: negative, or past its end.
pub trait Host {
    /// The handles that the guest reads its input from and writes its output to.
    fn stdio(&self) -> (i32, i32);
    /// Bytes read into the window; 0 at the end of the input; -1: no such handle, ended, or failed.
    fn read(&mut self, handle: i32, memory: &mut [u8], ptr: i32, cap: i32) -> i32;
    /// Writes all of the window, and returns its length; -1: no such handle, ended, or failed.
    fn write(&mut self, handle: i32, memory: &[u8], ptr: i32, len: i32) -> i32;
    /// Ends a handle: later reads and writes fail. Unknown ones are ignored.
    fn end(&mut self, handle: i32);
    /// Logs a message: windows of a topic and of a text.
    fn log(&mut self, memory: &[u8], topic: (i32, i32), message: (i32, i32));
    /// Answers a frame, as [`Session::call`](super::Session::call) does. `handle`: none in shape 3.
    fn ctl(&mut self, handle: Option<i32>, memory: &mut [u8], call: Call) -> i32;
}

/// The window at `ptr`, if it is inside.
pub(super) fn window(memory_bytes: usize, ptr: i32, bytes: i32) -> Option<Range<usize>> {
    let (ptr, bytes) = (usize::try_from(ptr).ok()?, usize::try_from(bytes).ok()?);
    let end = ptr.checked_add(bytes)?;
    (end <= memory_bytes).then_some(ptr..end)
}

/// Memory for a guest's heap: blocks one behind the other, never freed.
///
/// ```
/// use worker_cuda::zctl::Arena;
///
/// let mut arena = Arena::new(5);
/// assert_eq!(arena.alloc(64, 10), Some(16));
/// assert_eq!(arena.alloc(64, 32), Some(32));
/// assert_eq!(arena.alloc(64, 1), None);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Arena {
    end: u64,
}

impl Arena {
    /// Whose first block lies at `base` or behind it.
    pub fn new(base: u32) -> Self {
        Self { end: base.into() }
    }

    /// The offset of a block, a multiple of 16; none if `size` is negative or does not fit.
    pub fn alloc(&mut self, memory_bytes: usize, size: i32) -> Option<i32> {
        let begin = self.end.next_multiple_of(16);
        let offset = i32::try_from(begin).ok()?;
        let end = begin + u64::try_from(size).ok()?;
        if end > memory_bytes as u64 {
            return None;
        }
        self.end = end;
        Some(offset)
    }
}

/// The published shapes of the function that answers frames.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Shape {
    /// A handle and a timeout; no context.
    One,
    /// A context, a handle and a timeout.
    #[default]
    Two,
    /// A context alone.
    Three,
}

/// Why a guest ended without success: its trap code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Trap(pub i32);

impl fmt::Display for Trap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words = match self.0 {
            1 => "out of bounds",
            2 => "call depth",
            3 => "a host function is missing",
            4 => "a host function failed",
            5 => "allocation failed",
            6 => "arithmetic",
            _ => "unknown",
        };
        write!(f, "trap {}: {words}", self.0)
    }
}

impl std::error::Error for Trap {}

type In = unsafe extern "C" fn(*mut c_void, i32, *mut u8, usize, i32, i32) -> i32;
type Out = In;
type End = unsafe extern "C" fn(*mut c_void, i32);
type Log = unsafe extern "C" fn(*mut c_void, *mut u8, usize, i32, i32, i32, i32);

/// `struct zprog_sys`: what a guest allocates with.
#[repr(C)]
#[derive(Debug)]
pub struct GuestHeap {
    ctx: *mut c_void,
    alloc: unsafe extern "C" fn(*mut c_void, *mut u8, usize, i32) -> i32,
    free: unsafe extern "C" fn(*mut c_void, *mut u8, usize, i32),
}

/// `lembeh_handle`. The seventh parameter is a function of the guest's [`Shape`].
pub type GuestEntry = unsafe extern "C" fn(
    i32,
    i32,
    In,
    Out,
    End,
    Log,
    *const c_void,
    *mut c_void,
    *const GuestHeap,
) -> c_int;

/// A guest that is native code.
#[derive(Clone, Copy, Debug)]
pub struct Guest {
    /// Its `lembeh_handle`.
    pub entry: GuestEntry,
    /// What its `zprog_heap_base_value` returns.
    pub heap_base: u32,
    /// What it was compiled for.
    pub shape: Shape,
}

/// What the callbacks of a running guest find behind `ctx`.
struct Running<'a> {
    host: &'a mut dyn Host,
    heap: Arena,
    panic: ParkedPanic,
}

thread_local! {
    // Shape 1 has no context.
    static RUNNING: Cell<*mut c_void> = const { Cell::new(null_mut()) };
}

impl Guest {
    /// Runs it on this thread, as the caller's own code. Its allocations begin with an empty heap. A panic of
    /// the host continues when the guest has returned; until then that callback has failed.
    ///
    /// # Safety
    /// `entry` is a `lembeh_handle` for this shape, and the guest passes only memory that is its own and
    /// initialized to its callbacks. It is trusted like the rest of the program.
    pub unsafe fn run(&self, host: &mut dyn Host) -> Result<(), Trap> {
        let (input, output) = host.stdio();
        let ctl = match self.shape {
            Shape::One => on_ctl_1 as *const c_void,
            Shape::Two => on_ctl_2 as *const c_void,
            Shape::Three => on_ctl_3 as *const c_void,
        };
        let mut running = Running {
            host,
            heap: Arena::new(self.heap_base),
            panic: ParkedPanic::default(),
        };
        let ctx = (&raw mut running).cast::<c_void>();
        let heap = GuestHeap {
            ctx,
            alloc: on_alloc,
            free: on_free,
        };
        let before = RUNNING.replace(ctx);
        // SAFETY: by this function's contract; `running` and `heap` live until the guest returns.
        let code = unsafe {
            (self.entry)(
                input, output, on_in, on_out, on_end, on_log, ctl, ctx, &heap,
            )
        };
        RUNNING.set(before);
        running.panic.resume();
        if code == 0 { Ok(()) } else { Err(Trap(code)) }
    }
}

/// The guest's memory, and whether there is one: without, every window is made negative.
///
/// # Safety
/// `mem` is null or valid for `mem_cap` bytes, which nobody else uses throughout `'a`.
unsafe fn memory<'a>(mem: *mut u8, mem_cap: usize) -> (&'a mut [u8], bool) {
    if mem.is_null() || isize::try_from(mem_cap).is_err() {
        return (&mut [], false);
    }
    // SAFETY: by this function's contract.
    (
        unsafe { std::slice::from_raw_parts_mut(mem, mem_cap) },
        true,
    )
}

/// # Safety
/// `ctx` is that of a guest that runs on this thread.
unsafe fn with_host<R>(ctx: *mut c_void, failed: R, body: impl FnOnce(&mut dyn Host) -> R) -> R {
    let running = ctx.cast::<Running<'_>>();
    // SAFETY: by this function's contract; callbacks of one guest do not overlap.
    let (host, panic) = unsafe { (&mut *(*running).host, &(*running).panic) };
    panic.guard(|| body(host)).unwrap_or(failed)
}

unsafe extern "C" fn on_in(
    ctx: *mut c_void,
    handle: i32,
    mem: *mut u8,
    mem_cap: usize,
    ptr: i32,
    cap: i32,
) -> i32 {
    // SAFETY: the guest passes what it was given, and memory of its own.
    unsafe {
        let (memory, is_there) = memory(mem, mem_cap);
        let ptr = if is_there { ptr } else { -1 };
        with_host(ctx, -1, |host| host.read(handle, memory, ptr, cap))
    }
}

unsafe extern "C" fn on_out(
    ctx: *mut c_void,
    handle: i32,
    mem: *mut u8,
    mem_cap: usize,
    ptr: i32,
    len: i32,
) -> i32 {
    // SAFETY: as in on_in.
    unsafe {
        let (memory, is_there) = memory(mem, mem_cap);
        let ptr = if is_there { ptr } else { -1 };
        with_host(ctx, -1, |host| host.write(handle, memory, ptr, len))
    }
}

unsafe extern "C" fn on_end(ctx: *mut c_void, handle: i32) {
    // SAFETY: as in on_in.
    unsafe { with_host(ctx, (), |host| host.end(handle)) }
}

unsafe extern "C" fn on_log(
    ctx: *mut c_void,
    mem: *mut u8,
    mem_cap: usize,
    topic_ptr: i32,
    topic_len: i32,
    msg_ptr: i32,
    msg_len: i32,
) {
    // SAFETY: as in on_in.
    unsafe {
        let (memory, is_there) = memory(mem, mem_cap);
        if is_there {
            let (topic, message) = ((topic_ptr, topic_len), (msg_ptr, msg_len));
            with_host(ctx, (), |host| host.log(memory, topic, message));
        }
    }
}

unsafe extern "C" fn on_alloc(ctx: *mut c_void, mem: *mut u8, mem_cap: usize, size: i32) -> i32 {
    let size = if mem.is_null() { -1 } else { size };
    // SAFETY: as in on_in.
    let heap = unsafe { &mut (*ctx.cast::<Running<'_>>()).heap };
    heap.alloc(mem_cap, size).unwrap_or(-1)
}

unsafe extern "C" fn on_free(_: *mut c_void, _: *mut u8, _: usize, _: i32) {}

/// # Safety
/// As with `memory` and `with_host`.
unsafe fn on_ctl(
    ctx: *mut c_void,
    handle: Option<i32>,
    mem: *mut u8,
    mem_cap: usize,
    mut call: Call,
) -> i32 {
    // SAFETY: by this function's contract.
    unsafe {
        let (memory, is_there) = memory(mem, mem_cap);
        if !is_there {
            call.req_ptr = -1;
        }
        with_host(ctx, -1, |host| host.ctl(handle, memory, call))
    }
}

unsafe extern "C" fn on_ctl_1(
    ctl_handle: i32,
    mem: *mut u8,
    mem_cap: usize,
    req_ptr: i32,
    req_len: i32,
    resp_ptr: i32,
    resp_cap: i32,
    timeout_ms: i32,
) -> i32 {
    let ctx = RUNNING.get();
    if ctx.is_null() {
        return -1;
    }
    let call = Call {
        req_ptr,
        req_len,
        resp_ptr,
        resp_cap,
        timeout_ms,
    };
    // SAFETY: the guest that runs on this thread calls, with memory of its own.
    unsafe { on_ctl(ctx, Some(ctl_handle), mem, mem_cap, call) }
}

unsafe extern "C" fn on_ctl_2(
    ctx: *mut c_void,
    ctl_handle: i32,
    mem: *mut u8,
    mem_cap: usize,
    req_ptr: i32,
    req_len: i32,
    resp_ptr: i32,
    resp_cap: i32,
    timeout_ms: i32,
) -> i32 {
    let call = Call {
        req_ptr,
        req_len,
        resp_ptr,
        resp_cap,
        timeout_ms,
    };
    // SAFETY: as in on_in.
    unsafe { on_ctl(ctx, Some(ctl_handle), mem, mem_cap, call) }
}

unsafe extern "C" fn on_ctl_3(
    ctx: *mut c_void,
    mem: *mut u8,
    mem_cap: usize,
    req_ptr: i32,
    req_len: i32,
    resp_ptr: i32,
    resp_cap: i32,
) -> i32 {
    let call = Call {
        req_ptr,
        req_len,
        resp_ptr,
        resp_cap,
        timeout_ms: 0,
    };
    // SAFETY: as in on_in.
    unsafe { on_ctl(ctx, None, mem, mem_cap, call) }
}
