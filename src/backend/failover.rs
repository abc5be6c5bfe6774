//! Failover: new contexts and whole calls switch to the next backend when one fails.
//!
//! State on a device never moves: buffers, sequences, models, sealed memory. Errors of the caller, source that
//! does not compile, timeouts and slowness do not trigger failover, and every switch is reported.

use std::ffi::{c_char, c_void};
use std::fmt;
use std::time::Duration;

use crate::core::callback::{ParkedPanic, caught};
use crate::core::context::CudaContext;
use crate::core::device::Backend;
use crate::core::error::{Error, ErrorKind, Result, call};
use crate::core::native_text::fixed_text;
use crate::ffi;

/// What happens after a failure that counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum FailoverMode {
    /// No failover.
    #[default]
    None,
    /// Later calls use the next backend; the call that failed returns its error.
    Warn,
    /// The call that failed is repeated on the next backend.
    Automatic,
}

/// Why a backend was left.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum FailoverReason {
    /// Its device was lost.
    DeviceLost,
    /// The failure threshold was reached: by default three failures of the device in 30 seconds.
    RepeatedFailures,
    /// Its memory was full; counts only with [`FailoverBuilder::on_out_of_memory`].
    OutOfMemory,
    /// [`Failover::trigger`] was called.
    Manual,
    /// A reason that this version of the crate does not know.
    Unknown(i32),
}

/// One event of a failover.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FailoverEvent {
    /// The active backend is abandoned.
    Started {
        /// The reason.
        reason: FailoverReason,
        /// The abandoned backend.
        from: Backend,
        /// The event as one line.
        message: String,
    },
    /// The next backend has opened, and its probe computed correctly.
    Completed {
        /// The abandoned backend.
        from: Backend,
        /// The active backend from now on.
        to: Backend,
    },
    /// A backend cannot be opened, or its probe computed a wrong result.
    Failed {
        /// That backend.
        to: Backend,
        /// The kind of its error.
        kind: ErrorKind,
        /// The event as one line.
        message: String,
    },
    /// The first backend is active again after a probe computed correctly.
    Restored {
        /// The first backend.
        to: Backend,
    },
    /// No backend is left to switch to.
    Exhausted {
        /// The backend that stays active.
        from: Backend,
        /// The event as one line.
        message: String,
    },
}

impl FailoverEvent {
    fn from_native(event: &ffi::wcuda_failover_event) -> Option<Self> {
        let (from, to) = (
            Backend::from_native(event.from),
            Backend::from_native(event.to),
        );
        let message = fixed_text(&event.message);
        let reason = match event.reason {
            ffi::WCUDA_FAILOVER_REASON_DEVICE_LOST => FailoverReason::DeviceLost,
            ffi::WCUDA_FAILOVER_REASON_REPEATED => FailoverReason::RepeatedFailures,
            ffi::WCUDA_FAILOVER_REASON_OUT_OF_MEMORY => FailoverReason::OutOfMemory,
            ffi::WCUDA_FAILOVER_REASON_MANUAL => FailoverReason::Manual,
            other => FailoverReason::Unknown(other),
        };
        Some(match event.event {
            ffi::WCUDA_FAILOVER_STARTED => Self::Started {
                reason,
                from,
                message,
            },
            ffi::WCUDA_FAILOVER_COMPLETED => Self::Completed { from, to },
            ffi::WCUDA_FAILOVER_FAILED => Self::Failed {
                to,
                kind: ErrorKind::from_status(event.status),
                message,
            },
            ffi::WCUDA_FAILOVER_RESTORED => Self::Restored { to },
            ffi::WCUDA_FAILOVER_EXHAUSTED => Self::Exhausted { from, message },
            _ => return None,
        })
    }
}

type Listener = Box<dyn Fn(&FailoverEvent) + Send + Sync>;

/// Backends in order of preference, and the rules for switching between them.
///
/// ```
/// use worker_cuda::{Backend, Failover, FailoverMode};
/// # fn main() -> worker_cuda::Result<()> {
/// let failover = Failover::builder([(Backend::Cuda, 0), (Backend::Host, 0)])
///     .mode(FailoverMode::Automatic)
///     .failure_threshold(1)
///     .on_event(|event| eprintln!("{event:?}"))
///     .build()?;
/// let (back, backend) = failover.run(|context| context.alloc_from(&[1.0f32, 2.0])?.to_vec())?;
/// assert_eq!(back, [1.0, 2.0]);
/// println!("computed on {backend}");
/// # Ok(())
/// # }
/// ```
pub struct Failover {
    handle: ffi::wcuda_failover,
    /// The pointer passed to the callback. Boxed, because a `Listener` is a fat pointer.
    _listener: Option<Box<Listener>>,
}

/// How to fail over; see [`Failover::builder`].
#[must_use = "nothing is made until `build` is called"]
pub struct FailoverBuilder {
    options: ffi::wcuda_failover_options,
    targets: Vec<ffi::wcuda_failover_target>,
    listener: Option<Box<Listener>>,
}

/// The active backend, and counters.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct FailoverState {
    /// The active backend.
    pub backend: Backend,
    /// Ordinal of its device.
    pub ordinal: i32,
    /// Whether another backend than the first is active.
    pub is_degraded: bool,
    /// Number of failures of devices.
    pub failure_count: u64,
    /// Number of completed switches.
    pub move_count: u64,
    /// Number of returns to the first backend.
    pub restore_count: u64,
}

impl Failover {
    /// Creates a builder from backends with their devices, the preferred one first. The mode is off by default.
    pub fn builder(targets: impl IntoIterator<Item = (Backend, i32)>) -> FailoverBuilder {
        FailoverBuilder {
            options: ffi::wcuda_failover_options::init(),
            targets: targets
                .into_iter()
                .map(|(backend, ordinal)| ffi::wcuda_failover_target {
                    struct_size: size_of::<ffi::wcuda_failover_target>() as u32,
                    reserved: 0,
                    r#type: backend.to_native(),
                    ordinal,
                })
                .collect(),
            listener: None,
        }
    }

    /// Creates a context on the active backend.
    pub fn context(&self) -> Result<CudaContext> {
        let mut options = ffi::wcuda_context_options::init();
        options.abi_version = ffi::WCUDA_ABI_VERSION;
        let mut context = ffi::wcuda_context::zeroed();
        // SAFETY: both structs are valid for the call.
        call(|error| unsafe {
            ffi::wcuda_failover_context_create(self.handle, &options, &mut context, error)
        })?;
        Ok(CudaContext::from_handle(context))
    }

    /// Runs a whole call: `body` takes its inputs from the host, returns its result to the host, and may be run again
    /// from the start. Objects that it creates on the context, including clones of the context, must not outlive
    /// the call. Returns the result and the backend that computed it.
    pub fn run<R>(&self, mut body: impl FnMut(&CudaContext) -> Result<R>) -> Result<(R, Backend)> {
        let mut state = Run {
            body: &mut body,
            last: None,
            parked: ParkedPanic::default(),
        };
        let mut backend = 0;
        // SAFETY: `state` outlives the call, which runs the body on this thread only.
        let answer = call(|error| unsafe {
            ffi::wcuda_failover_call(
                self.handle,
                Some(run_body::<R>),
                (&raw mut state).cast(),
                &mut backend,
                error,
            )
        });
        state.parked.resume();
        match (answer, state.last) {
            (Ok(()), Some(Ok(value))) => Ok((value, Backend::from_native(backend))),
            // The body's own error has more detail than the copy in the library.
            (Err(native), Some(Err(error))) if native.kind() == error.kind() => Err(error),
            (Err(native), _) => Err(native),
            (Ok(()), _) => Err(Error::new(
                ErrorKind::Internal,
                "a call ended without running",
            )),
        }
    }

    /// Reports an error of a context from [`Failover::context`]; it counts like an error of a call.
    pub fn report(&self, backend: Backend, error: &Error) -> Result<()> {
        // SAFETY: legal on any thread.
        call(|native| unsafe {
            ffi::wcuda_failover_report(self.handle, backend.to_native(), error.status(), native)
        })
    }

    /// Abandons the active backend.
    pub fn trigger(&self) -> Result<()> {
        // SAFETY: legal on any thread.
        call(|error| unsafe { ffi::wcuda_failover_trigger(self.handle, error) })
    }

    /// Returns the active backend and counters.
    pub fn state(&self) -> Result<FailoverState> {
        let mut state = ffi::wcuda_failover_state::init();
        // SAFETY: `state` is valid and sized.
        call(|error| unsafe { ffi::wcuda_failover_state_get(self.handle, &mut state, error) })?;
        Ok(FailoverState {
            backend: Backend::from_native(state.r#type),
            ordinal: state.ordinal,
            is_degraded: state.is_degraded != 0,
            failure_count: state.failure_count,
            move_count: state.move_count,
            restore_count: state.restore_count,
        })
    }
}

impl Drop for Failover {
    fn drop(&mut self) {
        // SAFETY: legal on any thread; calls borrow self, so none is running.
        unsafe { ffi::wcuda_failover_destroy(self.handle) }
    }
}

impl fmt::Debug for Failover {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Failover")
            .field("state", &self.state().ok())
            .finish_non_exhaustive()
    }
}

impl FailoverBuilder {
    /// What happens after a failure that counts.
    pub fn mode(mut self, mode: FailoverMode) -> Self {
        self.options.mode = match mode {
            FailoverMode::None => ffi::WCUDA_FAILOVER_NONE,
            FailoverMode::Warn => ffi::WCUDA_FAILOVER_WARN,
            FailoverMode::Automatic => ffi::WCUDA_FAILOVER_AUTOMATIC,
        };
        self
    }

    /// Number of failures within the window after which a backend is abandoned; default 3.
    pub fn failure_threshold(mut self, count: u32) -> Self {
        self.options.failure_threshold = count;
        self
    }

    /// Age at which failures no longer count; default 30 s.
    pub fn window(mut self, window: Duration) -> Self {
        self.options.window_ms = milliseconds(window);
        self
    }

    /// Time for which an abandoned backend is not used; default 60 s.
    pub fn cooldown(mut self, cooldown: Duration) -> Self {
        self.options.cooldown_ms = milliseconds(cooldown);
        self
    }

    /// Time between two probes of the first backend; default 30 s.
    pub fn recheck(mut self, recheck: Duration) -> Self {
        self.options.recheck_ms = milliseconds(recheck);
        self
    }

    /// A device whose memory is full is abandoned too.
    pub fn on_out_of_memory(mut self) -> Self {
        self.options.flags |= ffi::WCUDA_FAILOVER_ON_OUT_OF_MEMORY;
        self
    }

    /// Called for every event, on the thread whose call caused it. Calls into this crate from inside it fail with
    /// [`ErrorKind::Reentrant`], and a panic in it is swallowed.
    pub fn on_event(mut self, listener: impl Fn(&FailoverEvent) + Send + Sync + 'static) -> Self {
        self.listener = Some(Box::new(Box::new(listener)));
        self
    }

    /// Creates the failover; opens no device yet.
    pub fn build(mut self) -> Result<Failover> {
        self.options.targets = self.targets.as_ptr();
        self.options.target_count = self.targets.len() as u64;
        if let Some(listener) = &self.listener {
            self.options.callback = Some(report);
            self.options.user = (&raw const **listener).cast_mut().cast();
        }
        let mut handle = ffi::wcuda_failover::zeroed();
        // SAFETY: the options are valid; the listener lives as long as the handle.
        call(|error| unsafe { ffi::wcuda_failover_create(&self.options, &mut handle, error) })?;
        Ok(Failover {
            handle,
            _listener: self.listener,
        })
    }
}

/// At least 1, because 0 selects the library's default.
fn milliseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis())
        .unwrap_or(u64::MAX)
        .max(1)
}

unsafe extern "C" fn report(user: *mut c_void, event: *const ffi::wcuda_failover_event) {
    // SAFETY: `user` is the listener, which outlives the failover; the event lives through this call.
    let (listener, event) = unsafe { (&*user.cast::<Listener>(), &*event) };
    caught(|| {
        if let Some(event) = FailoverEvent::from_native(event) {
            listener(&event);
        }
    });
}

/// The body of a call, and its last result.
struct Run<'a, R> {
    body: &'a mut dyn FnMut(&CudaContext) -> Result<R>,
    last: Option<Result<R>>,
    parked: ParkedPanic,
}

unsafe extern "C" fn run_body<R>(
    user: *mut c_void,
    context: ffi::wcuda_context,
    error: *mut ffi::wcuda_error,
) -> ffi::wcuda_status {
    // SAFETY: `user` is the state of `run`, which waits; nobody else has it meanwhile.
    let run = unsafe { &mut *user.cast::<Run<'_, R>>() };
    let (body, last) = (&mut run.body, &mut run.last);
    let answer = run.parked.guard(|| {
        let context = CudaContext::from_handle(context);
        *last = None; // an earlier result may panic when it is dropped
        body(&context)
    });
    let Some(answer) = answer else {
        return ffi::WCUDA_CANCELLED; // a panic: nothing is tried again
    };
    let status = match &answer {
        Ok(_) => ffi::WCUDA_OK,
        Err(failure) => {
            // SAFETY: the library passes a struct to fill.
            unsafe { fill(&mut *error, failure) };
            failure.status()
        }
    };
    run.last = Some(answer);
    status
}

fn fill(error: &mut ffi::wcuda_error, failure: &Error) {
    *error = ffi::wcuda_error::zeroed();
    error.code = failure.status();
    error.native_code = failure.native_code();
    let text = failure.to_string();
    let room = error.message.len() - 1;
    let mut bytes = text.len().min(room);
    while !text.is_char_boundary(bytes) {
        bytes -= 1;
    }
    for (to, from) in error
        .message
        .iter_mut()
        .zip(text.as_bytes()[..bytes].iter())
    {
        *to = *from as c_char;
    }
    error.message_bytes = bytes as u32;
}
