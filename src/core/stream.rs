//! Streams, events and asynchronous copies.

use std::ffi::c_void;
use std::fmt;
use std::time::Duration;

use crate::core::context::CudaContext;
use crate::core::error::{Error, ErrorKind, Result, call};
use crate::core::memory::{DeviceRepr, PinnedBuffer, SafeCudaPtr};
use crate::ffi;

/// An ordered queue of work; work on two streams is ordered only by events. Dropping it waits for its work.
///
/// ```
/// use worker_cuda::{CudaContext, Priority};
/// # fn main() -> worker_cuda::Result<()> {
/// let context = CudaContext::host()?;
/// let (first, second) = (
///     context.stream(Priority::Ordinary)?,
///     context.stream(Priority::High)?,
/// );
/// second.wait_for(&first.record()?)?; // what it is given from now on comes after
/// second.synchronize()?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Stream {
    handle: ffi::wcuda_stream,
    context: CudaContext,
}

/// Priority of a stream's kernels.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Priority {
    /// The default.
    #[default]
    Ordinary,
    /// Scheduled before kernels of normal priority.
    High,
}

impl CudaContext {
    /// A new stream.
    pub fn stream(&self, priority: Priority) -> Result<Stream> {
        let mut handle = ffi::wcuda_stream::zeroed();
        let priority = if priority == Priority::High { -1 } else { 0 };
        // SAFETY: `handle` is valid.
        call(|error| unsafe {
            ffi::wcuda_stream_create(self.handle(), priority, &mut handle, error)
        })?;
        Ok(Stream {
            handle,
            context: self.clone(),
        })
    }

    /// Wraps a stream that another library created in the device's primary context (a `cudaStream_t`), not the
    /// driver's default stream. On a host context this is [`ErrorKind::Unsupported`].
    ///
    /// # Safety
    /// `native` is such a stream and outlives the value. Dropping the value waits for the stream's work and does not
    /// destroy the stream.
    pub unsafe fn borrow_stream(&self, native: *mut c_void) -> Result<Stream> {
        let mut handle = ffi::wcuda_stream::zeroed();
        // SAFETY: `handle` is valid, `native` by this function's contract.
        call(|error| unsafe {
            ffi::wcuda_stream_borrow(self.handle(), native, &mut handle, error)
        })?;
        Ok(Stream {
            handle,
            context: self.clone(),
        })
    }

    /// The driver's object (a `cudaStream_t`) of a stream (None: the context's own) for calls of other libraries.
    /// It is valid until the stream is dropped. On a host context this is [`ErrorKind::Unsupported`].
    pub fn native_stream(&self, stream: Option<&Stream>) -> Result<*mut c_void> {
        let mut found = std::ptr::null_mut();
        // SAFETY: the output is valid.
        call(|error| unsafe {
            ffi::wcuda_stream_native_get(self.handle(), native(stream), &mut found, error)
        })?;
        Ok(found)
    }

    /// A new event, which counts as done until it is recorded.
    pub fn event(&self) -> Result<Event> {
        let mut handle = ffi::wcuda_event::zeroed();
        // SAFETY: `handle` is valid.
        call(|error| unsafe { ffi::wcuda_event_create(self.handle(), &mut handle, error) })?;
        Ok(Event {
            handle,
            context: self.clone(),
        })
    }
}

/// The native handle of a stream; None is the context's own.
pub(crate) fn native(stream: Option<&Stream>) -> ffi::wcuda_stream {
    stream.map_or(ffi::wcuda_stream::zeroed(), |stream| stream.handle)
}

impl Stream {
    /// The context it belongs to.
    pub fn context(&self) -> &CudaContext {
        &self.context
    }

    /// Waits for all work queued so far.
    pub fn synchronize(&self) -> Result<()> {
        // SAFETY: legal on any thread.
        call(|error| unsafe { ffi::wcuda_stream_synchronize(self.handle, error) })
    }

    /// Records a new event after all work queued so far.
    pub fn record(&self) -> Result<Event> {
        let event = self.context.event()?;
        event.record(Some(self))?;
        Ok(event)
    }

    /// Work queued on the stream from now on starts after the copy. The copy's event stays private: if it were
    /// recorded again elsewhere, it would report the copy as done too early.
    pub fn wait_for_copy<T: DeviceRepr>(&self, copy: &PendingCopy<T>) -> Result<()> {
        self.wait_for(&copy.event)
    }

    /// Work queued on the stream from now on starts after the event.
    pub fn wait_for(&self, event: &Event) -> Result<()> {
        // SAFETY: legal on any thread.
        call(|error| unsafe { ffi::wcuda_event_order(event.handle, self.handle, error) })
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        // SAFETY: legal on any thread.
        unsafe { ffi::wcuda_stream_destroy(self.handle) }
    }
}

/// A point in a stream's work, with its time.
///
/// ```
/// # fn main() -> worker_cuda::Result<()> {
/// let context = worker_cuda::CudaContext::host()?;
/// let (begin, end) = (context.event()?, context.event()?);
/// begin.record(None)?;
/// let x = context.alloc_from(&[1.0f32; 1000])?;
/// end.record(None)?;
/// end.wait()?;
/// println!("{:?}", begin.elapsed_to(&end)?);
/// # drop(x);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Event {
    handle: ffi::wcuda_event,
    context: CudaContext,
}

impl Event {
    /// The context it belongs to.
    pub fn context(&self) -> &CudaContext {
        &self.context
    }

    /// Records the event after all work queued so far on a stream (None: the context's own).
    pub fn record(&self, stream: Option<&Stream>) -> Result<()> {
        // SAFETY: legal on any thread.
        call(|error| unsafe { ffi::wcuda_event_record(self.handle, native(stream), error) })
    }

    pub(crate) fn handle(&self) -> ffi::wcuda_event {
        self.handle
    }

    /// Waits for the work before the event.
    pub fn wait(&self) -> Result<()> {
        // SAFETY: legal on any thread.
        call(|error| unsafe { ffi::wcuda_event_wait(self.handle, -1, error) })
    }

    /// As [`wait`](Self::wait), for at most `timeout`; [`ErrorKind::Timeout`] leaves the event unchanged.
    pub fn wait_timeout(&self, timeout: Duration) -> Result<()> {
        let milliseconds = i64::try_from(timeout.as_millis()).unwrap_or(i64::MAX);
        // SAFETY: legal on any thread.
        call(|error| unsafe { ffi::wcuda_event_wait(self.handle, milliseconds, error) })
    }

    /// Whether the work before the event is done.
    pub fn is_done(&self) -> Result<bool> {
        let mut done = 0;
        // SAFETY: `done` is valid.
        call(|error| unsafe { ffi::wcuda_event_done_get(self.handle, &mut done, error) })?;
        Ok(done != 0)
    }

    /// Time from this event to a later one; both must be done.
    pub fn elapsed_to(&self, later: &Event) -> Result<Duration> {
        let mut milliseconds = 0.0;
        // SAFETY: `milliseconds` is valid.
        call(|error| unsafe {
            ffi::wcuda_event_elapsed_get(self.handle, later.handle, &mut milliseconds, error)
        })?;
        Ok(Duration::from_secs_f64(milliseconds.max(0.0) / 1000.0))
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: legal on any thread.
        unsafe { ffi::wcuda_event_destroy(self.handle) }
    }
}

/// A copy in flight. It owns its pinned memory and returns it when the copy is done. Dropping it waits for the
/// copy; forgetting it leaks the memory but is safe.
///
/// ```
/// # fn main() -> worker_cuda::Result<()> {
/// let context = worker_cuda::CudaContext::host()?;
/// let buffer = context.alloc_from(&[1.0f32, 2.0])?;
/// let pending = buffer.read_async(0, context.alloc_pinned(2)?, None)?;
/// // Other work goes here.
/// assert_eq!(pending.wait()?[..], [1.0, 2.0]);
/// # Ok(())
/// # }
/// ```
///
/// The event after the copy is private, because an event can be recorded again:
///
/// ```compile_fail,E0616
/// # fn early(pending: worker_cuda::PendingCopy<f32>) -> worker_cuda::Result<()> {
/// pending.event.record(None)?;
/// # Ok(())
/// # }
/// ```
#[must_use = "the pinned memory comes back from `wait`"]
pub struct PendingCopy<T: DeviceRepr> {
    pinned: Option<PinnedBuffer<T>>,
    /// Recorded once, after the copy. Never exposed.
    event: Event,
}

impl<T: DeviceRepr> PendingCopy<T> {
    /// A copy that uses `pinned`. `queue` queues it and records the event after it.
    pub(crate) fn start(
        context: &CudaContext,
        pinned: PinnedBuffer<T>,
        queue: impl FnOnce(ffi::wcuda_pinned, &Event) -> Result<()>,
    ) -> Result<Self> {
        let event = context.event()?;
        queue(pinned.raw_handle(), &event)?;
        Ok(Self {
            pinned: Some(pinned),
            event,
        })
    }

    /// Whether the copy is done.
    pub fn is_done(&self) -> Result<bool> {
        self.event.is_done()
    }

    /// Waits, and returns the pinned memory.
    pub fn wait(mut self) -> Result<PinnedBuffer<T>> {
        self.event.wait()?;
        match self.pinned.take() {
            Some(pinned) => Ok(pinned),
            None => Err(Error::new(ErrorKind::Internal, "the copy has no memory")),
        }
    }
}

impl<T: DeviceRepr> fmt::Debug for PendingCopy<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PendingCopy")
            .field("pinned", &self.pinned)
            .finish_non_exhaustive()
    }
}

impl<T: DeviceRepr> SafeCudaPtr<T> {
    /// Copies all of `source` to `offset` on a stream (None: the context's own) without waiting.
    /// [`PendingCopy::wait`] returns the memory; on an error it is dropped.
    pub fn write_async(
        &mut self,
        offset: usize,
        source: PinnedBuffer<T>,
        stream: Option<&Stream>,
    ) -> Result<PendingCopy<T>> {
        let (offset, bytes) = self.byte_range(offset, source.len())?;
        PendingCopy::start(self.context(), source, |pinned, event| {
            // SAFETY: the pinned memory is owned by the pending copy, so that nobody writes it meanwhile;
            // the library keeps it until the stream has passed, also when that is forgotten.
            call(|error| unsafe {
                ffi::wcuda_buffer_write_async(
                    self.raw_handle(),
                    offset,
                    pinned,
                    0,
                    bytes,
                    native(stream),
                    error,
                )
            })?;
            event.record(stream)
        })
    }

    /// Copies from `offset` into all of `target` without waiting.
    pub fn read_async(
        &self,
        offset: usize,
        target: PinnedBuffer<T>,
        stream: Option<&Stream>,
    ) -> Result<PendingCopy<T>> {
        let (offset, bytes) = self.byte_range(offset, target.len())?;
        PendingCopy::start(self.context(), target, |pinned, event| {
            let _turn = self.take_turn()?;
            // SAFETY: as above; nobody reads the target meanwhile.
            call(|error| unsafe {
                ffi::wcuda_buffer_read_async(
                    self.raw_handle(),
                    offset,
                    pinned,
                    0,
                    bytes,
                    native(stream),
                    error,
                )
            })?;
            event.record(stream)
        })
    }
}
