//! The error type of the crate: kind, native codes, and a message with the reason.
//!
//! ```
//! use worker_cuda::{CudaContext, ErrorKind};
//!
//! # fn main() -> worker_cuda::Result<()> {
//! let context = CudaContext::host()?;
//! let buffer = context.alloc::<u8>(16)?;
//! let error = buffer.read_at(8, 9).unwrap_err();
//! assert_eq!(error.kind(), ErrorKind::OutOfRange);
//! assert!(!error.is_fatal() && !error.is_retryable());
//! println!("{}", error.with_context("reading the header"));
//! # Ok(())
//! # }
//! ```

use std::error::Error as StdError;
use std::fmt;

use crate::core::native_text::fixed_text;
use crate::ffi;

/// `std::result::Result` with this crate's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

macro_rules! kinds {
    ($($(#[doc = $doc:literal])+ $kind:ident = $status:ident,)*) => {
        /// What went wrong, as a category to act on. Later versions may add some.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum ErrorKind {
            $($(#[doc = $doc])+ $kind,)*
            /// A status that this version of the crate does not know.
            Unknown(i32),
        }

        impl ErrorKind {
            /// The kind of a status code of `worker_cuda.h`.
            pub fn from_status(status: i32) -> Self {
                match status {
                    $(ffi::$status => Self::$kind,)*
                    other => Self::Unknown(other),
                }
            }

            /// The status code of `worker_cuda.h`.
            pub fn status(self) -> i32 {
                match self {
                    $(Self::$kind => ffi::$status,)*
                    Self::Unknown(status) => status,
                }
            }
        }

        #[cfg(test)]
        pub(crate) const ALL_KINDS: &[ErrorKind] = &[$(ErrorKind::$kind,)*];
    };
}

kinds! {
    /// An argument is zero, negative or inconsistent.
    InvalidArgument = WCUDA_INVALID_ARGUMENT,
    /// A handle that was destroyed or is of another kind.
    InvalidHandle = WCUDA_INVALID_HANDLE,
    /// Legal, but not now: a later ticket before an older one, for example.
    InvalidState = WCUDA_INVALID_STATE,
    /// An offset, index or token id past the end.
    OutOfRange = WCUDA_OUT_OF_RANGE,
    /// The caller's buffer is too small.
    BufferTooSmall = WCUDA_BUFFER_TOO_SMALL,
    /// Called from inside one of the library's callbacks.
    Reentrant = WCUDA_REENTRANT,
    /// Another thread is using this object.
    Busy = WCUDA_BUSY,
    /// The crate and the archive are of different ABI numbers.
    AbiMismatch = WCUDA_ABI_MISMATCH,
    /// No such key, tensor or entry.
    NotFound = WCUDA_NOT_FOUND,
    /// A launch's grid, block, cluster or shared memory; the message has the limit.
    InvalidConfig = WCUDA_INVALID_CONFIG,
    /// A kernel takes another number of arguments.
    ArgumentCount = WCUDA_ARGUMENT_COUNT,
    /// Not built in, or not built yet; the message says which.
    NotAvailable = WCUDA_NOT_AVAILABLE,
    /// No driver, a driver too old, or no such device.
    NoDevice = WCUDA_NO_DEVICE,
    /// The operating system, or a reader, failed.
    Io = WCUDA_IO,
    /// The caller asked for it.
    Cancelled = WCUDA_CANCELLED,
    /// The time given has passed; nothing was changed.
    Timeout = WCUDA_TIMEOUT,
    /// The device's memory is full.
    OutOfMemory = WCUDA_OUT_OF_MEMORY,
    /// The host's memory is full.
    OutOfHostMemory = WCUDA_OUT_OF_HOST_MEMORY,
    /// The context's memory budget would be passed.
    OverBudget = WCUDA_OVER_BUDGET,
    /// Two steps are in flight.
    QueueFull = WCUDA_QUEUE_FULL,
    /// Too few free pages for keys and values.
    OutOfPages = WCUDA_OUT_OF_PAGES,
    /// A limit of the engine: rows, tokens, sequences or length.
    LimitExceeded = WCUDA_LIMIT_EXCEEDED,
    /// Foreign data that is not well-formed.
    Malformed = WCUDA_MALFORMED,
    /// Well-formed, but this version cannot use it.
    Unsupported = WCUDA_UNSUPPORTED,
    /// Bytes are not what their digest says.
    Integrity = WCUDA_INTEGRITY,
    /// The compiler refused a kernel's source; its log says why.
    CompileFailed = WCUDA_COMPILE_FAILED,
    /// A kernel has no code for this backend.
    UnsupportedKernel = WCUDA_UNSUPPORTED_KERNEL,
    /// A call of the driver failed; [`Error::native_code`] has its code.
    DeviceError = WCUDA_DEVICE_ERROR,
    /// A fault ended the device's context: drop everything made from it.
    DeviceLost = WCUDA_DEVICE_LOST,
    /// A kernel was not started; nothing of it ran.
    LaunchFailed = WCUDA_LAUNCH_FAILED,
    /// Memory that must be the device's own is not.
    NotResident = WCUDA_NOT_RESIDENT,
    /// A mistake in this library; please report the message.
    Internal = WCUDA_INTERNAL,
}

/// Older lists of codes, for programs that speak one of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Numbers {
    /// Of the `cuda_*` functions: 1 to 8 and 99.
    Worker,
    /// Of the `vram_*` functions: 1 to 4.
    Vram,
    /// Status of a ZCTL/1 response: 1 to 7.
    Zctl,
}

impl ErrorKind {
    /// Its number in an older list; every kind has one.
    pub fn number_in(self, numbers: Numbers) -> i32 {
        let list = match numbers {
            Numbers::Worker => ffi::WCUDA_NUMBERS_WORKER,
            Numbers::Vram => ffi::WCUDA_NUMBERS_VRAM,
            Numbers::Zctl => ffi::WCUDA_NUMBERS_ZCTL,
        };
        // SAFETY: legal with any numbers, on any thread.
        unsafe { ffi::wcuda_status_number(self.status(), list) }
    }
}

/// Any failure of this crate. As large as one pointer.
pub struct Error(Box<Inner>);

struct Inner {
    kind: ErrorKind,
    native_code: i32,
    message: String,
    context: Option<String>,
    source: Option<Box<dyn StdError + Send + Sync>>,
}

impl Error {
    /// An error of this crate's own making.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self(Box::new(Inner {
            kind,
            native_code: 0,
            message: message.into(),
            context: None,
            source: None,
        }))
    }

    /// The category.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// The status code of `worker_cuda.h`.
    pub fn status(&self) -> i32 {
        self.0.kind.status()
    }

    /// The code of the driver or of the operating system where one spoke first, else 0.
    pub fn native_code(&self) -> i32 {
        self.0.native_code
    }

    /// The reason, with its numbers, on one line, without the context.
    pub fn message(&self) -> &str {
        &self.0.message
    }

    /// What was being done, if somebody said so.
    pub fn context(&self) -> Option<&str> {
        self.0.context.as_deref()
    }

    /// Says what was being done; an earlier context goes behind it.
    #[must_use]
    pub fn with_context(mut self, context: impl Into<String>) -> Self {
        let mut context = context.into();
        if let Some(inner) = self.0.context.take() {
            context.push_str(": ");
            context.push_str(&inner);
        }
        self.0.context = Some(context);
        self
    }

    pub(crate) fn with_source(mut self, source: Box<dyn StdError + Send + Sync>) -> Self {
        self.0.source = Some(source);
        self
    }

    /// The device or this library cannot continue, or memory is not where it must be: drop everything that
    /// was created from the context.
    pub fn is_fatal(&self) -> bool {
        matches!(
            self.0.kind,
            ErrorKind::DeviceLost | ErrorKind::NotResident | ErrorKind::Internal
        )
    }

    /// The same call may succeed later, after waiting or freeing memory.
    pub fn is_retryable(&self) -> bool {
        matches!(
            self.0.kind,
            ErrorKind::Busy
                | ErrorKind::Timeout
                | ErrorKind::QueueFull
                | ErrorKind::OutOfPages
                | ErrorKind::OutOfMemory
                | ErrorKind::OutOfHostMemory
                | ErrorKind::OverBudget
        )
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(context) = self.context() {
            write!(f, "{context}: ")?;
        }
        f.write_str(&self.0.message)
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut out = f.debug_struct("Error");
        out.field("kind", &self.0.kind)
            .field("status", &self.status());
        if self.0.native_code != 0 {
            out.field("native_code", &self.0.native_code);
        }
        out.field("message", &self.0.message);
        if let Some(context) = &self.0.context {
            out.field("context", context);
        }
        out.finish()
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.0
            .source
            .as_deref()
            .map(|source| source as &(dyn StdError + 'static))
    }
}

/// Makes a native call that reports through a `wcuda_error`.
pub(crate) fn call(native: impl FnOnce(*mut ffi::wcuda_error) -> ffi::wcuda_status) -> Result<()> {
    let mut error = ffi::wcuda_error::zeroed();
    match native(&mut error) {
        ffi::WCUDA_OK => Ok(()),
        status => Err(from_native(status, &error)),
    }
}

#[cold]
pub(crate) fn from_native(status: i32, error: &ffi::wcuda_error) -> Error {
    let kind = ErrorKind::from_status(status);
    let mut message = fixed_text(&error.message);
    if message.is_empty() {
        message = format!("failed with {kind:?}");
    }
    let mut made = Error::new(kind, message);
    made.0.native_code = error.native_code;
    made
}

#[cfg(test)]
mod tests {
    use std::ffi::c_char;

    use super::*;

    #[test]
    fn error_is_one_pointer() {
        assert_eq!(size_of::<Error>(), size_of::<usize>());
        assert_eq!(size_of::<Result<()>>(), size_of::<usize>());
    }

    #[test]
    fn kinds_and_statuses_map_both_ways() {
        for &kind in ALL_KINDS {
            assert_eq!(ErrorKind::from_status(kind.status()), kind);
        }
        assert_eq!(ErrorKind::from_status(7777), ErrorKind::Unknown(7777));
        assert_eq!(ErrorKind::Unknown(7777).status(), 7777);
    }

    #[test]
    fn every_kind_has_its_number_in_the_older_lists() {
        for &kind in ALL_KINDS.iter().chain(&[ErrorKind::Unknown(7777)]) {
            let worker = kind.number_in(Numbers::Worker);
            assert!((1..=8).contains(&worker) || worker == 99, "{kind:?}");
            assert!((1..=4).contains(&kind.number_in(Numbers::Vram)), "{kind:?}");
            assert!((1..=7).contains(&kind.number_in(Numbers::Zctl)), "{kind:?}");
        }
        assert_eq!(ErrorKind::DeviceLost.number_in(Numbers::Worker), 5);
        assert_eq!(ErrorKind::DeviceError.number_in(Numbers::Vram), 3);
        assert_eq!(ErrorKind::Malformed.number_in(Numbers::Zctl), 1);
    }

    #[test]
    fn failed_call_keeps_code_native_code_and_message() {
        let error = call(|out| {
            // SAFETY: `call` passes a valid, exclusive pointer.
            let out = unsafe { &mut *out };
            out.native_code = 2;
            for (to, from) in out.message.iter_mut().zip(b"open failed") {
                *to = *from as c_char;
            }
            ffi::WCUDA_IO
        })
        .unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Io);
        assert_eq!(error.status(), 2003);
        assert_eq!(error.native_code(), 2);
        assert_eq!(error.to_string(), "open failed");
        let error = error.with_context("reading a.gguf").with_context("load");
        assert_eq!(error.to_string(), "load: reading a.gguf: open failed");
    }

    #[test]
    fn failure_without_message_still_says_something() {
        let error = call(|_| 4242).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unknown(4242));
        assert_eq!(error.to_string(), "failed with Unknown(4242)");
    }

    #[test]
    fn fatal_and_retryable_exclude_each_other() {
        for &kind in ALL_KINDS {
            let error = Error::new(kind, "x");
            assert!(!(error.is_fatal() && error.is_retryable()), "{kind:?}");
        }
    }
}
