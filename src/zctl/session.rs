//! A session: answers frames with the kernels of a registry.

use std::ffi::c_void;
use std::fmt;

use crate::compute::{GpuCompute, forget_failures};
use crate::core::callback::{caught, drop_caught};
use crate::core::error::{Error, ErrorKind, Result, call};
use crate::core::native_text::as_native;
use crate::ffi;

/// Limits and permissions of a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionOptions {
    /// Payload of a request, and of a response on a connection.
    pub payload_bytes_max: u32,
    /// Arguments of a run; at most 4,096.
    pub argument_count_max: u32,
    /// Dimensions of a tensor; at most 8.
    pub rank_max: u32,
    /// Of a run's message.
    pub message_bytes_max: u32,
    /// Of the buffers of a run.
    pub device_bytes_max: u64,
    /// Milliseconds of a run; from 2^31 on: no limit.
    pub budget_ms: u32,
    /// The kernels that may run; none: all.
    pub allowed: Option<Vec<u32>>,
    /// Kernels that may give other bits for equal calls may run.
    pub permits_non_deterministic: bool,
    /// Guests may load and run device code of their own, which then reaches all memory of the device.
    pub permits_modules: Option<ForeignModules>,
}

/// The permission of [`SessionOptions::permits_modules`].
///
/// ```
/// use worker_cuda::zctl::{ForeignModules, SessionOptions};
///
/// let options = SessionOptions {
///     // SAFETY: all frames of this session are this program's own.
///     permits_modules: Some(unsafe { ForeignModules::permit() }),
///     ..SessionOptions::default()
/// };
/// ```
///
/// Safe code cannot give it:
///
/// ```compile_fail,E0133
/// let modules = worker_cuda::zctl::ForeignModules::permit();
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ForeignModules(());

impl ForeignModules {
    /// Permits foreign modules.
    ///
    /// # Safety
    /// Device code is not checked, and reaches all memory of the device and pinned host memory. Whoever writes the frames
    /// of the session is trusted like the rest of the program.
    pub unsafe fn permit() -> Self {
        Self(())
    }
}

impl Default for SessionOptions {
    fn default() -> Self {
        Self {
            payload_bytes_max: 1 << 20,
            argument_count_max: 64,
            rank_max: 8,
            message_bytes_max: 1024,
            device_bytes_max: 1 << 30,
            budget_ms: 30_000,
            allowed: None,
            permits_non_deterministic: false,
            permits_modules: None,
        }
    }
}

/// The numbers of a call in process, as a guest gives them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Call {
    /// Where the request begins.
    pub req_ptr: i32,
    /// Its length.
    pub req_len: i32,
    /// Where the response goes.
    pub resp_ptr: i32,
    /// The room that it has.
    pub resp_cap: i32,
    /// Milliseconds; 0 and negative: no limit of this call.
    pub timeout_ms: i32,
}

/// What a recorder receives, in this order within a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Record<'a> {
    /// The frame; empty if it lies outside the memory.
    Request(&'a [u8]),
    /// A range of the memory that was read: its offset, and the bytes as they were read.
    Read(u64, &'a [u8]),
    /// A range of the memory that was written, without the response.
    Written(u64, &'a [u8]),
    /// What the call returns, and the response.
    Response(i32, &'a [u8]),
}

type Recorder = Box<dyn FnMut(Record<'_>) + Send>;

/// Answers frames of ZCTL/1 with the kernels of a [`GpuCompute`], and frames of ZCL1. One call at a time; other sessions of the
/// same kernels run meanwhile.
///
/// ```
/// use worker_cuda::zctl::{Call, Session, SessionOptions};
/// use worker_cuda::{CudaContext, ElementType, GpuCompute};
///
/// # fn main() -> worker_cuda::Result<()> {
/// let compute = GpuCompute::with_context(&CudaContext::host()?)?;
/// compute.register_builtin("noop", ElementType::F32, 0)?;
/// let mut session = Session::new(&compute, &SessionOptions::default())?;
/// let mut memory = vec![0u8; 4096];
/// memory[..8].copy_from_slice(b"ZCTL\x01\x00\x01\x01"); // KERNEL_LIST
/// let call = Call { req_len: 32, resp_ptr: 64, resp_cap: 4032, ..Call::default() };
/// assert_eq!(session.call(&mut memory, call), 32 + 4 + 24);
/// # Ok(())
/// # }
/// ```
pub struct Session {
    handle: ffi::wcuda_zctl_session,
    payload_bytes_max: u32,
}

// SAFETY: a session is used from any thread, by one at a time; its recorder is Send.
unsafe impl Send for Session {}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session").finish_non_exhaustive()
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        // SAFETY: legal on any thread.
        unsafe { ffi::wcuda_zctl_session_destroy(self.handle) }
    }
}

impl Session {
    /// With the kernels that `compute` has registered, now and later.
    pub fn new(compute: &GpuCompute, options: &SessionOptions) -> Result<Self> {
        Self::create(compute.native_registry(), "", options, None)
    }

    /// The same, and `recorder` receives what each call reads and writes, on the thread of the call. What it
    /// panics with is dropped.
    pub fn with_recorder(
        compute: &GpuCompute,
        options: &SessionOptions,
        recorder: impl FnMut(Record<'_>) + Send + 'static,
    ) -> Result<Self> {
        Self::create(
            compute.native_registry(),
            "",
            options,
            Some(Box::new(recorder)),
        )
    }

    /// Without a device: lists `noop` and `tensor_add` as kernels that cannot run here, and answers runs with
    /// status 6 and the reason. An empty one: that the library has no CUDA, or that there is no device.
    pub fn without_device(reason: &str, options: &SessionOptions) -> Result<Self> {
        Self::create(ffi::wcuda_registry::zeroed(), reason, options, None)
    }

    pub(super) fn create(
        registry: ffi::wcuda_registry,
        reason: &str,
        options: &SessionOptions,
        recorder: Option<Recorder>,
    ) -> Result<Self> {
        if options.payload_bytes_max == 0 {
            let message = "payload_bytes_max: 0, at least 1 is needed";
            return Err(Error::new(ErrorKind::InvalidArgument, message));
        }
        let mut native = ffi::wcuda_zctl_options::init();
        native.registry = registry;
        native.reason = as_native(reason);
        native.payload_bytes_max = options.payload_bytes_max;
        native.argument_count_max = options.argument_count_max;
        native.rank_max = options.rank_max;
        native.message_bytes_max = options.message_bytes_max;
        native.device_bytes_max = options.device_bytes_max;
        native.budget_ms = options.budget_ms;
        if options.permits_non_deterministic {
            native.flags |= ffi::WCUDA_ZCTL_NON_DETERMINISTIC;
        }
        if options.permits_modules.is_some() {
            native.flags |= ffi::WCUDA_ZCTL_FOREIGN_MODULES;
        }
        if let Some(allowed) = &options.allowed {
            native.flags |= ffi::WCUDA_ZCTL_ALLOW_LIST;
            native.allowed = allowed.as_ptr();
            native.allowed_count = allowed.len() as u32;
        }
        let user = recorder.map(|recorder| Box::into_raw(Box::new(recorder)));
        if let Some(user) = user {
            native.recorder = Some(on_record);
            native.recorder_user = user.cast();
        }
        let mut handle = ffi::wcuda_zctl_session::zeroed();
        // SAFETY: the options and what they point to live for the call.
        let created =
            call(|error| unsafe { ffi::wcuda_zctl_session_create(&native, &mut handle, error) });
        if let Err(error) = created {
            // SAFETY: a call that fails does not call the recorder and keeps nothing of it.
            drop(user.map(|user| unsafe { Box::from_raw(user) }));
            return Err(error);
        }
        Ok(Self {
            handle,
            payload_bytes_max: options.payload_bytes_max,
        })
    }

    /// Answers a frame in process: request and response are windows of `memory`. Returns the bytes of the
    /// response, or -1 when there is none and nothing was written.
    pub fn call(&mut self, memory: &mut [u8], call: Call) -> i32 {
        // SAFETY: the memory is as long as its length says, and nobody else uses it.
        let ret = unsafe {
            ffi::wcuda_zctl_call(
                self.handle,
                memory.as_mut_ptr().cast(),
                memory.len() as u64,
                call.req_ptr,
                call.req_len,
                call.resp_ptr,
                call.resp_cap,
                call.timeout_ms,
            )
        };
        forget_failures();
        ret
    }

    /// Reads from a handle of ZCL1 into a window of `memory`, as a guest's callback does: bytes, 0 at the end, or
    /// -1.
    pub fn read_handle(&mut self, handle: i32, memory: &mut [u8], ptr: i32, cap: i32) -> i32 {
        let bytes = memory.len() as u64;
        // SAFETY: the memory is as long as its length says.
        let ret = unsafe {
            ffi::wcuda_zctl_handle_read(
                self.handle,
                handle,
                memory.as_mut_ptr().cast(),
                bytes,
                ptr,
                cap,
            )
        };
        forget_failures();
        ret
    }

    /// Writes a window of `memory` to a handle of ZCL1: bytes, or -1.
    pub fn write_handle(&mut self, handle: i32, memory: &[u8], ptr: i32, len: i32) -> i32 {
        let bytes = memory.len() as u64;
        // SAFETY: the memory is as long as its length says.
        let ret = unsafe {
            ffi::wcuda_zctl_handle_write(
                self.handle,
                handle,
                memory.as_ptr().cast(),
                bytes,
                ptr,
                len,
            )
        };
        forget_failures();
        ret
    }

    /// Ends a handle of ZCL1, which frees its buffer. Twice has no effect.
    pub fn end_handle(&mut self, handle: i32) {
        // SAFETY: any number is legal.
        unsafe { ffi::wcuda_zctl_handle_end(self.handle, handle) }
    }

    /// Answers a frame of a connection, which is not part of `memory`. `response` is replaced; false: there is
    /// no answer, and the connection is to be closed.
    pub fn serve(&mut self, memory: &mut [u8], request: &[u8], response: &mut Vec<u8>) -> bool {
        // Room for every response; pages that are not written cost nothing.
        let capacity = super::frame::HEADER_BYTES + self.payload_bytes_max as usize;
        response.clear();
        response.reserve(capacity);
        // SAFETY: memory and request are as long as their lengths say, and the response has that capacity.
        let ret = unsafe {
            ffi::wcuda_zctl_serve(
                self.handle,
                memory.as_mut_ptr().cast(),
                memory.len() as u64,
                request.as_ptr().cast(),
                request.len() as u64,
                response.as_mut_ptr().cast(),
                capacity as u64,
            )
        };
        forget_failures();
        if ret < 0 {
            return false;
        }
        // SAFETY: so many bytes were written.
        unsafe { response.set_len(ret as usize) };
        true
    }
}

unsafe extern "C" fn on_record(user: *mut c_void, record: *const ffi::wcuda_zctl_record) {
    // SAFETY: the library passes a valid record.
    let record = unsafe { &*record };
    let recorder = user.cast::<Recorder>();
    if record.kind == ffi::WCUDA_ZCTL_CLOSED {
        // SAFETY: the last call; the box is that of `create`.
        let recorder = unsafe { Box::from_raw(recorder) };
        drop_caught(recorder);
        return;
    }
    let bytes = if record.bytes == 0 {
        &[]
    } else {
        // SAFETY: so many bytes are valid until this function returns.
        unsafe { std::slice::from_raw_parts(record.data.cast::<u8>(), record.bytes as usize) }
    };
    let record = match record.kind {
        ffi::WCUDA_ZCTL_REQUEST => Record::Request(bytes),
        ffi::WCUDA_ZCTL_READ => Record::Read(record.offset, bytes),
        ffi::WCUDA_ZCTL_WRITTEN => Record::Written(record.offset, bytes),
        ffi::WCUDA_ZCTL_RESPONSE => Record::Response(record.ret, bytes),
        _ => return,
    };
    // SAFETY: calls of a session do not overlap, so nobody else uses the recorder.
    let recorder = unsafe { &mut *recorder };
    caught(|| recorder(record));
}
