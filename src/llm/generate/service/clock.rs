//! Time as a service sees it: the machine's, or one that a test moves.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

/// Wakes something that may wait for a time.
pub(super) trait Wake: Send + Sync {
    fn wake(&self);
}

/// Where a service reads the time. Clones share one clock.
///
/// ```
/// use std::time::Duration;
/// use worker_cuda::generate::service::Clock;
///
/// let clock = Clock::manual();
/// clock.advance(Duration::from_secs(30));
/// assert_eq!(clock.now(), Duration::from_secs(30));
/// ```
#[derive(Clone, Default)]
pub struct Clock(Option<Arc<Mutex<Manual>>>, Origin);

#[derive(Clone, Copy)]
struct Origin(Instant);

impl Default for Origin {
    fn default() -> Self {
        Self(Instant::now())
    }
}

#[derive(Default)]
struct Manual {
    now: Duration,
    sleepers: Vec<Weak<dyn Wake>>,
}

impl Clock {
    /// The monotonic clock of this machine, from 0.
    pub fn system() -> Self {
        Self::default()
    }

    /// A clock that stands still until [`advance`](Self::advance), for tests.
    pub fn manual() -> Self {
        Self(Some(Arc::default()), Origin::default())
    }

    /// Time since the clock was created.
    pub fn now(&self) -> Duration {
        match &self.0 {
            Some(manual) => lock(manual).now,
            None => self.1.0.elapsed(),
        }
    }

    /// Moves a manual clock, to [`Duration::MAX`] at most, and wakes the services that wait for a time. No effect on the
    /// system's.
    pub fn advance(&self, by: Duration) {
        let Some(manual) = &self.0 else { return };
        let mut manual = lock(manual);
        manual.now = manual.now.saturating_add(by);
        manual.sleepers.retain(|sleeper| sleeper.strong_count() > 0);
        let sleepers: Vec<_> = manual.sleepers.iter().filter_map(Weak::upgrade).collect();
        drop(manual);
        for sleeper in sleepers {
            sleeper.wake();
        }
    }

    /// Calls `sleeper` whenever a manual clock has moved.
    pub(super) fn register(&self, sleeper: Weak<dyn Wake>) {
        if let Some(manual) = &self.0 {
            lock(manual).sleepers.push(sleeper);
        }
    }

    /// How long to wait for `time` at most. None: until something wakes the waiting thread.
    pub(super) fn wait_for(&self, time: Duration) -> Option<Duration> {
        match self.0 {
            Some(_) => None,
            None => Some(time.saturating_sub(self.now())),
        }
    }
}

impl fmt::Debug for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = if self.0.is_some() { "manual" } else { "system" };
        write!(f, "Clock({kind}, {:?})", self.now())
    }
}

fn lock(manual: &Mutex<Manual>) -> std::sync::MutexGuard<'_, Manual> {
    manual.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_manual_clock_moves_to_the_end_of_time_and_no_further() {
        let clock = Clock::manual();
        clock.advance(Duration::from_secs(1));
        clock.advance(Duration::MAX);
        assert_eq!(clock.now(), Duration::MAX);
    }
}
