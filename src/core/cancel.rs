//! A flag that cancels long work from another thread.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A switch that stops the work it was given to: a generation, or the rendering of a chat template.
///
/// Clones share one switch. Once set it stays set, so each piece of work needs a flag of its own.
///
/// ```
/// use worker_cuda::generate::CancelFlag;
///
/// let flag = CancelFlag::default();
/// let remote = flag.clone();
/// std::thread::spawn(move || remote.set()).join().unwrap();
/// assert!(flag.is_set());
/// ```
#[derive(Clone, Debug, Default)]
pub struct CancelFlag(Arc<AtomicBool>);

impl CancelFlag {
    /// Stops the work at its next check.
    pub fn set(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Whether [`set`](Self::set) was called on this flag or a clone of it.
    pub fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}
