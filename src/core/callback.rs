//! Panics in callbacks: caught at the C boundary, stored, and resumed after the native call has returned.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

use crate::core::error::Result;
use crate::core::version::build_info;

/// Holds the first panic of a callback. Callbacks may run on several threads at once.
#[derive(Default)]
pub(crate) struct ParkedPanic(Mutex<Option<Box<dyn Any + Send>>>);

impl ParkedPanic {
    /// Runs a callback's body; a panic is stored, and None is returned. Never unwinds.
    pub(crate) fn guard<R>(&self, body: impl FnOnce() -> R) -> Option<R> {
        match catch_unwind(AssertUnwindSafe(body)) {
            Ok(value) => Some(value),
            Err(payload) => {
                let mut slot = self.0.lock().unwrap_or_else(PoisonError::into_inner);
                if slot.is_none() {
                    *slot = Some(payload);
                } else {
                    drop(slot);
                    discard(payload);
                }
                None
            }
        }
    }

    /// Resumes a stored panic, if there is one. Call it after the native call has returned.
    pub(crate) fn resume(&self) {
        let payload = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(payload) = payload {
            resume_unwind(payload);
        }
    }

    /// Drops a stored panic, if there is one.
    #[cfg(feature = "zctl")]
    pub(crate) fn forget(&self) {
        let payload = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(payload) = payload {
            discard(payload);
        }
    }
}

/// Runs code of the caller that nobody waits for; None after a panic, whose payload is dropped. Never unwinds.
pub(crate) fn caught<R>(body: impl FnOnce() -> R) -> Option<R> {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(value) => Some(value),
        Err(payload) => {
            discard(payload);
            None
        }
    }
}

/// Drops a value of the caller; a panic of its drop is caught.
pub(crate) fn drop_caught<T>(value: T) {
    caught(|| drop(value));
}

/// Drops a panic's payload. The drop may itself panic, and so may the drop of that panic's payload: the third is leaked.
fn discard(mut payload: Box<dyn Any + Send>) {
    for _ in 0..2 {
        match catch_unwind(AssertUnwindSafe(|| drop(payload))) {
            Ok(()) => return,
            Err(next) => payload = next,
        }
    }
    std::mem::forget(payload);
}

/// Locks a mutex that is held during native calls. Inside a callback of the library this does not wait but returns the
/// error of every call there: the thread itself may hold the lock, in the call that runs the callback.
pub(crate) fn lock_outside_callbacks<T>(mutex: &Mutex<T>) -> Result<MutexGuard<'_, T>> {
    match mutex.try_lock() {
        Ok(guard) => Ok(guard),
        Err(TryLockError::Poisoned(poisoned)) => Ok(poisoned.into_inner()),
        Err(TryLockError::WouldBlock) => {
            build_info()?;
            Ok(mutex.lock().unwrap_or_else(PoisonError::into_inner))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn panic_is_parked_and_resumed_once() {
        let parked = ParkedPanic::default();
        assert_eq!(parked.guard(|| 7), Some(7));
        assert!(parked.guard(|| -> i32 { panic!("first") }).is_none());
        assert!(parked.guard(|| -> i32 { panic!("second") }).is_none());
        let payload = catch_unwind(AssertUnwindSafe(|| parked.resume())).unwrap_err();
        assert_eq!(payload.downcast_ref::<&str>(), Some(&"first"));
        parked.resume();
    }

    #[test]
    fn a_payload_that_panics_when_it_is_dropped_ends_there() {
        struct Endless;
        impl Drop for Endless {
            fn drop(&mut self) {
                std::panic::panic_any(Endless);
            }
        }
        assert_eq!(caught(|| 7), Some(7));
        assert!(caught(|| -> i32 { std::panic::panic_any(Endless) }).is_none());
    }

    #[test]
    fn the_payload_of_a_payloads_drop_is_dropped() {
        struct Payload(Arc<()>);
        impl Drop for Payload {
            fn drop(&mut self) {
                std::panic::panic_any(self.0.clone());
            }
        }
        let count = Arc::new(());
        let payload = Payload(count.clone());
        assert!(caught(move || -> i32 { std::panic::panic_any(payload) }).is_none());
        assert_eq!(Arc::strong_count(&count), 1);
    }
}
