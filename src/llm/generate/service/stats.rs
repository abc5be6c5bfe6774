//! Counts and observations for health reports and metrics.

use std::time::Duration;

use super::Error;
use super::event::Usage;
use crate::core::callback::caught;
use crate::llm::generate::FinishReason;

/// Whether a service accepts requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum State {
    /// It does.
    #[default]
    Ready,
    /// It ends after the requests that it has.
    Draining,
    /// It has ended.
    Stopped,
    /// The device is lost; all requests have failed.
    Lost,
}

/// Counts of a service, as of its last step or request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Whether requests are accepted.
    pub state: State,
    /// Choices that have a sequence.
    pub running: u32,
    /// Choices that wait for one: queued, preempted or paused.
    pub waiting: u32,
    /// Pages of the KV cache without contents that are needed.
    pub free_pages: u32,
    /// Pages without an owner that can be shared.
    pub cached_pages: u32,
    /// Pages of sequences.
    pub held_pages: u32,
    /// All pages of the KV cache.
    pub page_count: u32,
    /// Positions of a page.
    pub page_tokens: u32,
    /// Accepted requests so far.
    pub accepted: u64,
    /// Refused requests so far.
    pub rejected: u64,
    /// Preemptions so far.
    pub preempted: u64,
    /// Failed steps so far.
    pub engine_faults: u64,
    /// Steps that ended well so far.
    pub steps: u64,
    /// Tokens of started prompts so far.
    pub prompt_tokens: u64,
    /// Of these, tokens that were shared.
    pub cached_tokens: u64,
    /// Reported tokens so far.
    pub generated_tokens: u64,
    /// Draft tokens that were verified so far.
    pub draft_tokens: u64,
    /// Draft tokens that held so far.
    pub accepted_draft_tokens: u64,
    /// When the last step ended, or when the first request after an idle time came, whichever is later,
    /// by the service's clock.
    pub last_progress: Duration,
    /// Mean time between the starts of choices, lately; zero if unknown.
    pub start_interval: Duration,
}

impl Stats {
    /// Share of the pages that sequences hold, 0 to 1.
    pub fn page_use(&self) -> f64 {
        f64::from(self.held_pages) / f64::from(self.page_count.max(1))
    }

    /// When a refused request may be sent again: 1 to 120 s, as long as the queue takes at the rate of
    /// the last starts.
    pub fn retry_after(&self) -> Duration {
        let wait = self.start_interval.saturating_mul(self.waiting.max(1));
        wait.clamp(Duration::from_secs(1), Duration::from_secs(120))
    }
}

/// One measurement.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Observation<'a> {
    /// A choice waited this long for its first step.
    Queue(Duration),
    /// From the submission to the first token of a choice.
    FirstToken(Duration),
    /// From one token of a choice to the next; preemptions included.
    InterToken(Duration),
    /// A step.
    Step {
        /// From its submission, or from the end of the step before if that is later, to its end.
        duration: Duration,
        /// Rows.
        rows: u32,
        /// Tokens of all rows.
        tokens: u32,
    },
    /// A choice ended.
    Finished(FinishReason),
    /// A request ended with all its choices, this long after its submission.
    Done(Usage, Duration),
    /// A request was cancelled before all of its choices had ended.
    Cancelled,
    /// A request failed after it was accepted.
    Failed(&'a Error),
}

/// Takes the measurements of a service. It is called on the dispatcher and text threads, never on the
/// engine's or a caller's; what it does delays events. A measurement that it panics on is lost, nothing
/// else.
pub trait Observer: Send + Sync {
    /// Takes one.
    fn observe(&self, observation: Observation<'_>);
}

impl<F: Fn(Observation<'_>) + Send + Sync> Observer for F {
    fn observe(&self, observation: Observation<'_>) {
        self(observation);
    }
}

/// Hands a measurement to the observer, if there is one.
pub(super) fn observe(observer: Option<&dyn Observer>, observation: Observation<'_>) {
    if let Some(observer) = observer {
        // A panic of the observer must not end the events of other requests.
        caught(|| observer.observe(observation));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retry_after_is_the_wait_of_the_queue_within_bounds() {
        let retry_after = |waiting, milliseconds| {
            let stats = Stats {
                waiting,
                start_interval: Duration::from_millis(milliseconds),
                ..Stats::default()
            };
            stats.retry_after().as_millis()
        };
        assert_eq!(retry_after(0, 0), 1_000);
        assert_eq!(retry_after(100, 50), 5_000);
        assert_eq!(retry_after(1024, 1_000), 120_000);
    }
}
