//! A context: one open device, with accounting of its memory.

use std::sync::Arc;

use crate::core::device::Backend;
use crate::core::error::{Error, ErrorKind, Result, call, from_native};
use crate::core::native_text::fixed_text;
use crate::core::version::check_abi;
use crate::ffi;

/// One open device. Cheap to clone; the device is closed when the last clone and all objects created from it have
/// been dropped.
///
/// ```
/// # fn main() -> worker_cuda::Result<()> {
/// let context = worker_cuda::CudaContext::auto()?; // a GPU if there is one, else the host
/// println!("computing on {}", context.info()?.backend);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct CudaContext(Arc<Handle>);

#[derive(Debug)]
struct Handle {
    native: ffi::wcuda_context,
    /// How it was opened. None: by a backend instance.
    builder: Option<ContextBuilder>,
}

impl Drop for Handle {
    fn drop(&mut self) {
        // SAFETY: destroying is legal on any thread, in any order.
        unsafe { ffi::wcuda_context_destroy(self.native) }
    }
}

/// When device memory is zeroed by the library.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Scrub {
    /// Never: contents of new memory are undefined.
    #[default]
    None,
    /// Before a block is freed, after the work that uses it; pinned memory too.
    OnFree,
    /// Before a block is handed out: buffers start as zeros.
    OnAlloc,
}

/// How to open a device; see [`CudaContext::builder`].
///
/// ```
/// use worker_cuda::{Backend, CudaContext, ErrorKind, Scrub};
/// # fn main() -> worker_cuda::Result<()> {
/// let context = CudaContext::builder()
///     .backend(Backend::Host)
///     .memory_budget(1 << 20)
///     .scrub(Scrub::OnFree)
///     .open()?;
/// let error = context.alloc::<u8>(2 << 20).unwrap_err();
/// assert_eq!(error.kind(), ErrorKind::OverBudget);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
#[must_use = "nothing is opened until `open` is called"]
pub struct ContextBuilder {
    backend: Option<Backend>,
    ordinal: i32,
    memory_budget: u64,
    host_threads: u32,
    scrub: Scrub,
}

/// Properties of an open context.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ContextInfo {
    /// The backend in use.
    pub backend: Backend,
    /// The device's number.
    pub ordinal: i32,
    /// Compute threads of the host backend; 0 on CUDA.
    pub host_threads: u32,
    /// Why the automatic choice did not take CUDA; "" if it did.
    pub fallback_reason: String,
}

impl CudaContext {
    /// Opens CUDA device `ordinal`. Without a usable GPU this is an error, in tests too.
    pub fn new(ordinal: i32) -> Result<Self> {
        Self::builder()
            .backend(Backend::Cuda)
            .ordinal(ordinal)
            .open()
    }

    /// Opens the host backend: it computes on the processor.
    pub fn host() -> Result<Self> {
        Self::builder().backend(Backend::Host).open()
    }

    /// Opens the first usable CUDA device, else the host backend; [`ContextInfo`] reports which, and why.
    pub fn auto() -> Result<Self> {
        Self::builder().open()
    }

    /// Options: memory budget, number of threads, another device.
    pub fn builder() -> ContextBuilder {
        ContextBuilder {
            backend: None,
            ordinal: 0,
            memory_budget: 0,
            host_threads: 0,
            scrub: Scrub::None,
        }
    }

    /// Reports which device this is.
    pub fn info(&self) -> Result<ContextInfo> {
        let mut info = ffi::wcuda_context_info::init();
        // SAFETY: `info` is valid and sized.
        call(|error| unsafe { ffi::wcuda_context_info_get(self.handle(), &mut info, error) })?;
        Ok(ContextInfo {
            backend: Backend::from_native(info.backend),
            ordinal: info.ordinal,
            host_threads: info.host_thread_count,
            fallback_reason: fixed_text(&info.fallback_reason),
        })
    }

    /// The device's number.
    pub fn device(&self) -> Result<i32> {
        Ok(self.info()?.ordinal)
    }

    /// Waits until all work of this context has finished.
    pub fn synchronize(&self) -> Result<()> {
        // SAFETY: legal on any thread.
        call(|error| unsafe { ffi::wcuda_context_synchronize(self.handle(), error) })
    }

    /// Returns the oldest error of a drop that has not been returned yet. Such an error makes no other call fail;
    /// [`Health::deferred_error_count`](crate::Health) continues to count it.
    pub fn take_deferred_error(&self) -> Result<Option<Error>> {
        let mut deferred = ffi::wcuda_error::zeroed();
        // SAFETY: `deferred` is valid.
        call(|error| unsafe {
            ffi::wcuda_context_deferred_error_take(self.handle(), &mut deferred, error)
        })?;
        Ok((deferred.code != ffi::WCUDA_OK).then(|| from_native(deferred.code, &deferred)))
    }

    /// Takes ownership of a handle, which is destroyed with the last clone.
    pub(crate) fn from_handle(handle: ffi::wcuda_context) -> Self {
        Self(Arc::new(Handle {
            native: handle,
            builder: None,
        }))
    }

    pub(crate) fn handle(&self) -> ffi::wcuda_context {
        self.0.native
    }

    /// Opens the same device with the same options again, in a context of its own.
    /// [`ErrorKind::NotAvailable`](crate::ErrorKind::NotAvailable) for the context of a
    /// [`BackendInstance`](crate::BackendInstance). A CUDA device that was lost stays lost in this process.
    pub fn reopen(&self) -> Result<Self> {
        let builder = self.0.builder.clone();
        let builder = builder.ok_or_else(|| {
            let message = "the context of a backend instance is not opened again";
            Error::new(ErrorKind::NotAvailable, message)
        })?;
        // Not another device, if the first one was chosen automatically.
        builder.backend(self.info()?.backend).open()
    }

    /// Whether both are the same open context.
    pub fn same_as(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl ContextBuilder {
    /// Selects a backend instead of the automatic choice.
    pub fn backend(mut self, backend: Backend) -> Self {
        self.backend = Some(backend);
        self
    }

    /// The device's number; default 0.
    pub fn ordinal(mut self, ordinal: i32) -> Self {
        self.ordinal = ordinal;
        self
    }

    /// Maximum bytes of device memory of this context; 0: no budget. On the host backend it is also the reported
    /// capacity.
    pub fn memory_budget(mut self, bytes: u64) -> Self {
        self.memory_budget = bytes;
        self
    }

    /// Compute threads of the host backend; 0: all processors that this process may use.
    pub fn host_threads(mut self, count: u32) -> Self {
        self.host_threads = count;
        self
    }

    /// When device memory is zeroed; default never.
    pub fn scrub(mut self, scrub: Scrub) -> Self {
        self.scrub = scrub;
        self
    }

    /// Opens the device.
    pub fn open(self) -> Result<CudaContext> {
        check_abi()?;
        let mut options = ffi::wcuda_context_options::init();
        options.abi_version = ffi::WCUDA_ABI_VERSION;
        options.backend = self
            .backend
            .map_or(ffi::WCUDA_BACKEND_AUTO, Backend::to_native);
        options.ordinal = self.ordinal;
        options.memory_budget = self.memory_budget;
        options.host_thread_count = self.host_threads;
        options.scrub = match self.scrub {
            Scrub::None => ffi::WCUDA_SCRUB_NONE,
            Scrub::OnFree => ffi::WCUDA_SCRUB_ON_FREE,
            Scrub::OnAlloc => ffi::WCUDA_SCRUB_ON_ALLOC,
        };
        let mut context = ffi::wcuda_context::zeroed();
        // SAFETY: both structs are valid for the call.
        call(|error| unsafe { ffi::wcuda_context_create(&options, &mut context, error) })?;
        Ok(CudaContext(Arc::new(Handle {
            native: context,
            builder: Some(self),
        })))
    }
}
