//! The process's log sink. The library prints nothing; it passes log records to a closure.

use std::cell::Cell;
use std::ffi::c_void;
use std::sync::{Arc, Mutex, PoisonError};

use crate::core::callback::caught;
use crate::core::error::{Error, ErrorKind, Result, call};
use crate::core::native_text::as_bytes;
use crate::ffi;

/// Severity of a record, most severe first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Level {
    /// Something failed.
    Error,
    /// Something is wrong but the call succeeded.
    Warn,
    /// Something worth knowing happened.
    Info,
    /// For debugging.
    Debug,
    /// Every detail.
    Trace,
}

impl Level {
    fn to_native(self) -> i32 {
        match self {
            Self::Error => ffi::WCUDA_LOG_ERROR,
            Self::Warn => ffi::WCUDA_LOG_WARN,
            Self::Info => ffi::WCUDA_LOG_INFO,
            Self::Debug => ffi::WCUDA_LOG_DEBUG,
            Self::Trace => ffi::WCUDA_LOG_TRACE,
        }
    }

    /// A level that this version does not know counts as the least severe.
    fn from_native(level: i32) -> Self {
        match level {
            ffi::WCUDA_LOG_ERROR => Self::Error,
            ffi::WCUDA_LOG_WARN => Self::Warn,
            ffi::WCUDA_LOG_INFO => Self::Info,
            ffi::WCUDA_LOG_DEBUG => Self::Debug,
            _ => Self::Trace,
        }
    }
}

type Sink = Box<dyn Fn(Level, &str, &str) + Send + Sync>;

/// The sink that the library holds a pointer to, and its level; in an Arc because a `Sink` is a fat pointer.
static CURRENT: Mutex<Option<(Level, Arc<Sink>)>> = Mutex::new(None);

thread_local! {
    static IN_SINK: Cell<bool> = const { Cell::new(false) };
}

/// Passes every record of `level` or more severe to `sink(level, target, message)` and replaces the previous sink.
/// `target` names the component that logs ("model", "vram"). The sink runs on the thread that logs, possibly on
/// several at once; calls into this crate from inside it may fail with [`ErrorKind::Reentrant`], and a panic in it is
/// swallowed.
///
/// ```
/// use worker_cuda::log::{self, Level};
/// # fn main() -> worker_cuda::Result<()> {
/// log::set_sink(Level::Info, |level, target, message| {
///     eprintln!("{level:?} {target}: {message}");
/// })?;
/// log::clear_sink()?;
/// # Ok(())
/// # }
/// ```
pub fn set_sink(
    level: Level,
    sink: impl Fn(Level, &str, &str) + Send + Sync + 'static,
) -> Result<()> {
    install(level, Some(Arc::new(Box::new(sink))))
}

/// Removes the sink. After this returns, the sink does not run any more.
pub fn clear_sink() -> Result<()> {
    install(Level::Error, None)
}

/// Passes a record of this crate's own to the sink.
#[cfg(feature = "text")]
pub(crate) fn emit(level: Level, target: &str, message: &str) {
    pass(|| {
        // Locked until the sink has returned: after `clear_sink` it does not run any more.
        let current = CURRENT.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, sink)) = current.as_ref().filter(|(most, _)| level <= *most) {
            sink(level, target, message);
        }
    });
}

/// Runs the sink on this thread, unless the record was made while it runs there already. A panic is swallowed.
fn pass(sink: impl FnOnce()) {
    if IN_SINK.replace(true) {
        return;
    }
    caught(sink);
    IN_SINK.set(false);
}

/// Passes records to `tracing`, as events of target `worker_cuda` with the component in field `part`.
#[cfg(feature = "tracing")]
pub fn forward_to_tracing(level: Level) -> Result<()> {
    set_sink(level, |level, part, message| match level {
        Level::Error => tracing::error!(target: "worker_cuda", part, "{message}"),
        Level::Warn => tracing::warn!(target: "worker_cuda", part, "{message}"),
        Level::Info => tracing::info!(target: "worker_cuda", part, "{message}"),
        Level::Debug => tracing::debug!(target: "worker_cuda", part, "{message}"),
        Level::Trace => tracing::trace!(target: "worker_cuda", part, "{message}"),
    })
}

fn install(level: Level, sink: Option<Arc<Sink>>) -> Result<()> {
    // Checked before the lock is taken: another thread may hold it while the library waits for this very sink to
    // return.
    if IN_SINK.get() {
        return Err(Error::new(
            ErrorKind::Reentrant,
            "the log sink was set from inside a log sink",
        ));
    }
    let mut current = CURRENT.lock().unwrap_or_else(PoisonError::into_inner);
    let (callback, user): (ffi::wcuda_log_callback, *mut c_void) = match &sink {
        Some(sink) => (Some(trampoline), Arc::as_ptr(sink) as *mut c_void),
        None => (None, std::ptr::null_mut()),
    };
    // SAFETY: `user` points into an Arc that `CURRENT` keeps until a later call of this function has
    // taken it from the library, which answers only when the former sink runs no more.
    call(|error| unsafe { ffi::wcuda_log_set(callback, user, level.to_native(), error) })?;
    let former = std::mem::replace(&mut *current, sink.map(|sink| (level, sink)));
    drop(current);
    drop(former);
    Ok(())
}

/// # Safety
/// `user` is the pointer given to `wcuda_log_set`, and both texts are valid for the call.
unsafe extern "C" fn trampoline(
    user: *mut c_void,
    level: i32,
    target: ffi::wcuda_string,
    message: ffi::wcuda_string,
) {
    pass(|| {
        // SAFETY: the pointer that `install` gave, whose Arc outlives its use by the library.
        let sink = unsafe { &*user.cast::<Sink>() };
        // SAFETY: the header promises text that is valid for the time of the callback.
        let (target, message) = unsafe { (as_bytes(target), as_bytes(message)) };
        sink(
            Level::from_native(level),
            &String::from_utf8_lossy(target),
            &String::from_utf8_lossy(message),
        );
    });
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::core::native_text::as_native;

    fn speak(sink: &Sink, level: i32, message: &str) {
        // SAFETY: the pointers are of live values.
        unsafe {
            trampoline(
                &raw const *sink as *mut c_void,
                level,
                as_native("vram"),
                as_native(message),
            );
        }
    }

    #[test]
    fn trampoline_passes_level_target_and_message() {
        let seen = Arc::new(Mutex::new(Vec::new()));
        let to = seen.clone();
        let sink: Sink = Box::new(move |level, target, message| {
            to.lock()
                .unwrap()
                .push((level, target.to_owned(), message.to_owned()));
        });
        speak(&sink, ffi::WCUDA_LOG_WARN, "low");
        speak(&sink, 99, "");
        let expected = [
            (Level::Warn, "vram".into(), "low".into()),
            (Level::Trace, "vram".into(), "".into()),
        ];
        assert_eq!(*seen.lock().unwrap(), expected);
    }

    #[test]
    fn trampoline_swallows_panics_and_continues() {
        let count = Arc::new(AtomicUsize::new(0));
        let to = count.clone();
        let sink: Sink = Box::new(move |_, _, _| {
            to.fetch_add(1, Ordering::Relaxed);
            panic!("a sink that panics");
        });
        speak(&sink, ffi::WCUDA_LOG_ERROR, "one");
        speak(&sink, ffi::WCUDA_LOG_ERROR, "two");
        assert_eq!(count.load(Ordering::Relaxed), 2);
        assert!(!IN_SINK.get());
    }
}
