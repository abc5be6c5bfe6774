//! Lists and selects backends, opens a backend with tracing or fault injection, and registers backends of
//! the caller.
//!
//! The function table of a backend is part of the C interface (`worker_cuda.h`, section 21). In Rust, a
//! backend is opened in order to create a context, which the rest of the crate uses.
//!
//! ```
//! use worker_cuda::backend::{Selection, backends};
//! # fn main() -> worker_cuda::Result<()> {
//! for entry in backends()? {
//!     println!("{}: priority {}", entry.name, entry.priority);
//! }
//! let chosen = Selection::builder().choose()?;
//! println!("{} {}", chosen.backend, chosen.ordinal);
//! # Ok(())
//! # }
//! ```

pub mod failover;

pub use crate::core::backends::{BackendEntry, backends};

use std::ffi::c_void;
use std::fmt;
use std::sync::{Mutex, PoisonError};

use crate::core::callback::caught;
use crate::core::context::CudaContext;
use crate::core::device::Backend;
use crate::core::error::{Error, ErrorKind, Result, call};
use crate::core::native_text::{as_bytes, as_native, fixed_text, static_text};
use crate::ffi;

/// Finds a type of backend by name; the error lists the known names.
pub fn find(name: &str) -> Result<Backend> {
    let mut found = 0;
    // SAFETY: the name lives through the call.
    call(|error| unsafe { ffi::wcuda_backend_find(as_native(name), &mut found, error) })?;
    Ok(Backend::from_native(found))
}

/// The name of an error kind in the tables of older libraries: "OutOfMemory", "KernelNotFound", ….
pub fn error_name(kind: ErrorKind) -> &'static str {
    // SAFETY: a static text.
    unsafe { static_text(ffi::wcuda_backend_error_name(kind.status())) }
}

/// A set of capabilities of a device.
///
/// ```
/// use worker_cuda::{Backend, Features};
/// # fn main() -> worker_cuda::Result<()> {
/// let features = Features::of(Backend::Host, 0)?;
/// println!("{features:?}");
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Features(u64);

#[allow(missing_docs)] // the names say it
impl Features {
    pub const FP16: Self = Self(ffi::WCUDA_FEATURE_FP16 as u64);
    pub const FP64: Self = Self(ffi::WCUDA_FEATURE_FP64 as u64);
    pub const ATOMICS: Self = Self(ffi::WCUDA_FEATURE_ATOMICS as u64);
    pub const SHARED_MEMORY: Self = Self(ffi::WCUDA_FEATURE_SHARED_MEMORY as u64);
    pub const SUBGROUPS: Self = Self(ffi::WCUDA_FEATURE_SUBGROUPS as u64);
    pub const COOPERATIVE_GROUPS: Self = Self(ffi::WCUDA_FEATURE_COOPERATIVE_GROUPS as u64);
    pub const TENSOR_CORES: Self = Self(ffi::WCUDA_FEATURE_TENSOR_CORES as u64);
    pub const DYNAMIC_PARALLELISM: Self = Self(ffi::WCUDA_FEATURE_DYNAMIC_PARALLELISM as u64);

    /// The features of a device. Creates no CUDA context.
    pub fn of(backend: Backend, ordinal: i32) -> Result<Self> {
        let mut caps = ffi::wcuda_device_caps::init();
        let mut features = 0;
        // SAFETY: both are valid and sized.
        call(|error| unsafe {
            ffi::wcuda_device_caps_get(backend.to_native(), ordinal, &mut caps, error)
        })?;
        // SAFETY: as above.
        call(|error| unsafe { ffi::wcuda_device_features_get(&caps, &mut features, error) })?;
        Ok(Self(features))
    }

    /// The union of both sets.
    #[must_use]
    pub const fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Whether this set contains all of the other.
    pub const fn has(self, other: Self) -> bool {
        other.0 & !self.0 == 0
    }
}

/// The chosen backend, and each skipped one with the reason.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Selection {
    /// The backend to open.
    pub backend: Backend,
    /// Its device's ordinal.
    pub ordinal: i32,
    /// The skipped backends with their errors, in the order tried.
    pub skipped: Vec<(Backend, ErrorKind, String)>,
}

/// Criteria of a selection; see [`Selection::builder`].
#[derive(Clone, Debug, Default)]
#[must_use = "nothing is chosen until `choose` is called"]
pub struct SelectionBuilder {
    preferred: Option<Backend>,
    fallbacks: Option<Vec<Backend>>,
    features: Features,
    no_host: bool,
}

impl Selection {
    /// Chooses the best of all types: by default the highest priority first, the host last.
    pub fn builder() -> SelectionBuilder {
        SelectionBuilder::default()
    }
}

impl SelectionBuilder {
    /// The backend to try first; vulkan, metal and stdgpu follow unless fallbacks are named.
    pub fn preferred(mut self, backend: Backend) -> Self {
        self.preferred = Some(backend);
        self
    }

    /// The backends to try after it.
    pub fn fallbacks(mut self, backends: impl IntoIterator<Item = Backend>) -> Self {
        self.fallbacks = Some(backends.into_iter().collect());
        self
    }

    /// Features that the device must have.
    pub fn features(mut self, features: Features) -> Self {
        self.features = features;
        self
    }

    /// Excludes the host: the result is an error instead.
    pub fn no_host(mut self) -> Self {
        self.no_host = true;
        self
    }

    /// Chooses a backend; [`ErrorKind::NotAvailable`] if none meets the criteria.
    pub fn choose(self) -> Result<Selection> {
        let fallbacks: Option<Vec<i32>> = self
            .fallbacks
            .map(|list| list.into_iter().map(Backend::to_native).collect());
        let mut options = ffi::wcuda_selection_options::init();
        options.preferred = self.preferred.map_or(0, Backend::to_native);
        options.required_features = self.features.0;
        options.flags = if self.no_host {
            ffi::WCUDA_SELECT_NO_HOST
        } else {
            0
        };
        if let Some(list) = &fallbacks {
            options.fallbacks = list.as_ptr();
            options.fallback_count = list.len() as u32;
        }
        // Room for all candidates: each type once, and those named.
        let named = fallbacks.as_ref().map_or(0, Vec::len);
        let room = crate::core::backends::backends()?.len() + named + 2;
        let mut skipped = vec![ffi::wcuda_skipped_backend::init(); room];
        let mut selection = ffi::wcuda_selection::init();
        selection.skipped = skipped.as_mut_ptr();
        selection.skipped_capacity = skipped.len() as u64;
        // SAFETY: both structs, and the list in one, are valid for the call.
        call(|error| unsafe { ffi::wcuda_backend_select(&options, &mut selection, error) })?;
        Ok(Selection {
            backend: Backend::from_native(selection.r#type),
            ordinal: selection.ordinal,
            skipped: skipped[..skipped.len().min(selection.skipped_count as usize)]
                .iter()
                .map(|each| {
                    (
                        Backend::from_native(each.r#type),
                        ErrorKind::from_status(each.status),
                        fixed_text(&each.reason),
                    )
                })
                .collect(),
        })
    }
}

/// A kind of call that an opened backend can be made to fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Fault {
    /// An allocation: out of memory.
    Allocate,
    /// A copy.
    Copy,
    /// A kernel, a fill or a digest.
    Launch,
    /// A wait.
    Synchronize,
    /// A compilation.
    Compile,
    /// Any call; the device is lost from then on.
    Lost,
}

/// A backend opened with tracing or fault injection. Its contexts may outlive it.
///
/// ```
/// use worker_cuda::{Backend, BackendInstance, ErrorKind, Fault};
/// # fn main() -> worker_cuda::Result<()> {
/// let instance = BackendInstance::builder(Backend::Host)
///     .trace(|line| println!("{line}")) // {"slot":"allocate","bytes":16, …
///     .with_faults()
///     .open()?;
/// let context = instance.context()?;
/// instance.fail(Fault::Allocate, 2)?;
/// let first = context.alloc::<u8>(16)?;
/// let error = context.alloc::<u8>(16).unwrap_err();
/// assert_eq!(error.kind(), ErrorKind::OutOfMemory);
/// # drop(first);
/// # Ok(())
/// # }
/// ```
pub struct BackendInstance {
    handle: ffi::wcuda_backend,
}

/// Options for opening a backend; see [`BackendInstance::builder`].
#[must_use = "nothing is opened until `open` is called"]
pub struct BackendBuilder {
    options: ffi::wcuda_backend_options,
    trace: Option<Trace>,
}

type Trace = Box<dyn Fn(&str) + Send + Sync>;

impl BackendInstance {
    /// Options for opening this backend.
    pub fn builder(backend: Backend) -> BackendBuilder {
        let mut options = ffi::wcuda_backend_options::init();
        options.r#type = backend.to_native();
        BackendBuilder {
            options,
            trace: None,
        }
    }

    /// Creates a context whose calls pass through the trace and the faults.
    pub fn context(&self) -> Result<CudaContext> {
        let mut context = ffi::wcuda_context::zeroed();
        // SAFETY: `context` is valid.
        call(|error| unsafe {
            ffi::wcuda_backend_context_create(self.handle, &mut context, error)
        })?;
        Ok(CudaContext::from_handle(context))
    }

    /// Makes the k-th call of a kind from now on fail (1: the next) before the device sees it; 0: none. Replaces
    /// the previous setting. [`ErrorKind::InvalidState`] unless the instance was opened with faults.
    pub fn fail(&self, fault: Fault, k: u64) -> Result<()> {
        let kind = match fault {
            Fault::Allocate => ffi::WCUDA_FAULT_ALLOCATE,
            Fault::Copy => ffi::WCUDA_FAULT_COPY,
            Fault::Launch => ffi::WCUDA_FAULT_LAUNCH,
            Fault::Synchronize => ffi::WCUDA_FAULT_SYNCHRONIZE,
            Fault::Compile => ffi::WCUDA_FAULT_COMPILE,
            Fault::Lost => ffi::WCUDA_FAULT_LOST,
        };
        // SAFETY: legal on any thread.
        call(|error| unsafe { ffi::wcuda_backend_fault_set(self.handle, kind, k, error) })
    }
}

impl Drop for BackendInstance {
    fn drop(&mut self) {
        // SAFETY: legal on any thread.
        unsafe { ffi::wcuda_backend_close(self.handle) }
    }
}

impl fmt::Debug for BackendInstance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BackendInstance").finish_non_exhaustive()
    }
}

impl BackendBuilder {
    /// The device's number; default 0.
    pub fn ordinal(mut self, ordinal: i32) -> Self {
        self.options.ordinal = ordinal;
        self
    }

    /// As [`ContextBuilder::memory_budget`](crate::ContextBuilder::memory_budget).
    pub fn memory_budget(mut self, bytes: u64) -> Self {
        self.options.memory_budget = bytes;
        self
    }

    /// Passes each call as a line of JSON with slot, bytes, stream, nanoseconds and status. `line` runs on the thread
    /// of the call, possibly on several at once; a panic in it is swallowed. It is kept until the process ends,
    /// because contexts may outlive the instance.
    pub fn trace(mut self, line: impl Fn(&str) + Send + Sync + 'static) -> Self {
        self.trace = Some(Box::new(line));
        self
    }

    /// Enables [`BackendInstance::fail`].
    pub fn with_faults(mut self) -> Self {
        self.options.flags |= ffi::WCUDA_BACKEND_WITH_FAULTS;
        self
    }

    /// Opens the backend.
    pub fn open(mut self) -> Result<BackendInstance> {
        let trace = self
            .trace
            .take()
            .map(|trace| Box::into_raw(Box::new(trace)));
        if let Some(trace) = trace {
            self.options.trace = Some(trace_line);
            self.options.trace_user = trace.cast();
        }
        let mut handle = ffi::wcuda_backend::zeroed();
        // SAFETY: the options are valid; the closure behind trace_user is never freed once it is used.
        let opened =
            call(|error| unsafe { ffi::wcuda_backend_open(&self.options, &mut handle, error) });
        match (opened, trace) {
            (Ok(()), trace) => {
                if let Some(trace) = trace {
                    let mut traces = TRACES.lock().unwrap_or_else(PoisonError::into_inner);
                    traces.push(trace.expose_provenance());
                }
                Ok(BackendInstance { handle })
            }
            (Err(error), None) => Err(error),
            (Err(error), Some(trace)) => {
                // SAFETY: nothing was opened, so nobody has the pointer.
                drop(unsafe { Box::from_raw(trace) });
                Err(error)
            }
        }
    }
}

/// The closures that instances trace with. Nothing reads them here: it is where leak detectors look.
static TRACES: Mutex<Vec<usize>> = Mutex::new(Vec::new());

unsafe extern "C" fn trace_line(user: *mut c_void, line: ffi::wcuda_string) {
    // SAFETY: `user` is the boxed closure, which is never freed.
    let trace = unsafe { &*user.cast::<Trace>() };
    // SAFETY: the line lives through this call.
    let bytes = unsafe { as_bytes(line) };
    if let Ok(text) = std::str::from_utf8(bytes) {
        caught(|| trace(text));
    }
}

/// Opens an instance of a caller's backend on a device and writes its `self`.
pub type OpenFunction = unsafe extern "C" fn(
    user: *mut c_void,
    ordinal: i32,
    instance: *mut *mut c_void,
    error: *mut ffi::wcuda_error,
) -> ffi::wcuda_status;

/// Registers a caller's backend for this process under an unused name. Returns the value for
/// [`ContextBuilder::backend`](crate::ContextBuilder::backend).
///
/// # Safety
/// The functions of the table fulfil the contracts in `worker_cuda.h` on any thread. They and `user` stay valid as
/// long as an instance may exist.
pub unsafe fn register(
    name: &str,
    priority: i32,
    table: &ffi::wcuda_backend_vtable,
    open: OpenFunction,
    user: *mut c_void,
) -> Result<Backend> {
    let mut registration = ffi::wcuda_backend_registration::init();
    registration.name = as_native(name);
    registration.priority = priority;
    registration.table = table;
    registration.open = Some(open);
    registration.user = user;
    let mut backend = 0;
    // SAFETY: the structs are valid for the call, and the rest by this function's contract.
    call(|error| unsafe { ffi::wcuda_backend_register(&registration, &mut backend, error) })?;
    Ok(Backend::from_native(backend))
}

/// Removes a registered backend: no instance of it can be opened any more, existing ones keep working.
pub fn unregister(backend: Backend) -> Result<()> {
    let Backend::Unknown(number) = backend else {
        return Err(Error::new(
            ErrorKind::NotFound,
            format!("'{backend}' was not registered"),
        ));
    };
    // SAFETY: legal on any thread.
    call(|error| unsafe { ffi::wcuda_backend_unregister(number, error) })
}
