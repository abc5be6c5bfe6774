//! The receiving end of a request.

use std::collections::VecDeque;
use std::fmt;
#[cfg(feature = "stream")]
use std::pin::Pin;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use super::event::Event;
use super::request::Request;
use super::state::Shared;
use crate::core::callback::caught;
use crate::llm::engine::Token;
use crate::scheduler::RequestId;

/// A request that was accepted, with the events that its receiver has not taken.
pub(super) struct Job {
    pub serial: u64,
    pub prompt_tokens: u32,
    pub submitted: Duration,
    pub min_tokens: u32,
    pub stop: Vec<String>,
    pub stop_tokens: Vec<Token>,
    pub show_special: bool,
    /// (choices)
    pub ids: Vec<RequestId>,
    /// Tokens that the engine has sampled and the receiver has not taken.
    behind: AtomicUsize,
    is_paused: AtomicBool,
    queue: Mutex<Queue>,
    arrived: Condvar,
}

#[derive(Default)]
pub(super) struct Queue {
    events: VecDeque<Event>,
    waker: Option<Waker>,
    /// The receiver's thread waits. Without one there is none to wake, which takes a system call.
    is_awaited: bool,
    /// The last event was taken.
    is_finished: bool,
    /// There is no receiver any more.
    is_closed: bool,
}

impl Job {
    pub fn new(
        serial: u64,
        request: &Request,
        prompt_tokens: u32,
        submitted: Duration,
        ids: Vec<RequestId>,
    ) -> Self {
        Self {
            serial,
            prompt_tokens,
            submitted,
            min_tokens: request.min_tokens,
            stop: request.stop.clone(),
            stop_tokens: request.stop_tokens.clone(),
            show_special: request.show_special,
            ids,
            behind: AtomicUsize::new(0),
            is_paused: AtomicBool::new(false),
            queue: Mutex::default(),
            arrived: Condvar::new(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a sampled token; whether the request must be paused because of it. The caller has the lock
    /// of the scheduler.
    pub fn count_token(&self, max_behind: usize) -> bool {
        if self.behind.fetch_add(1, SeqCst) + 1 < max_behind || self.is_paused.load(SeqCst) {
            return false;
        }
        self.is_paused.store(true, SeqCst);
        // The receiver may have taken the tokens before it could see the pause.
        let is_behind = self.behind.load(SeqCst) > max_behind / 2;
        self.is_paused.store(is_behind, SeqCst);
        is_behind
    }

    /// Counts a token as taken or dropped, and continues a paused request once half of its tokens are.
    pub fn take_token(&self, shared: &Shared) {
        let behind = self.behind.fetch_sub(1, SeqCst) - 1;
        if behind > shared.max_events_behind / 2 || !self.is_paused.load(SeqCst) {
            return;
        }
        shared.update(|core, _| {
            if self.is_paused.swap(false, SeqCst) {
                for &id in &self.ids {
                    core.scheduler.resume(id);
                }
            }
        });
    }

    /// Adds an event.
    pub fn push(&self, event: Event) {
        let mut queue = self.lock();
        if queue.is_closed {
            return;
        }
        queue.events.push_back(event);
        let waker = queue.waker.take();
        let is_awaited = queue.is_awaited;
        drop(queue);
        if is_awaited {
            self.arrived.notify_one();
        }
        if let Some(waker) = waker {
            // The waker is the caller's code: its panic must not end the requests of others.
            caught(|| waker.wake());
        }
    }

    fn pop(&self, shared: &Shared, queue: &mut Queue) -> Option<Event> {
        let event = queue.events.pop_front()?;
        queue.is_finished = event.is_last();
        if let Event::Token(_) = event {
            self.take_token(shared);
        }
        Some(event)
    }
}

/// The events of one request: an iterator that waits for the next, and that ends after
/// [`Event::Done`] or [`Event::Failed`]. Async programs poll it, or use it as a `Stream` (`into_stream`, feature `stream`).
/// Dropping it cancels the request.
///
/// ```no_run
/// # async fn f(mut events: worker_cuda::generate::service::EventReceiver) {
/// use std::future::poll_fn;
///
/// while let Some(event) = poll_fn(|context| events.poll_event(context)).await {
///     println!("{event:?}");
/// }
/// # }
/// ```
#[must_use = "dropping it cancels the request"]
pub struct EventReceiver {
    pub(super) shared: Arc<Shared>,
    pub(super) job: Arc<Job>,
}

/// Cancels a request from any thread. Clones cancel the same request.
#[derive(Clone)]
pub struct RequestCancel {
    shared: Arc<Shared>,
    job: Arc<Job>,
}

impl EventReceiver {
    /// The next event, if it is there. None also after the last.
    pub fn try_next(&mut self) -> Option<Event> {
        self.job.pop(&self.shared, &mut self.job.lock())
    }

    /// The next event, waiting for at most `timeout` of the machine's time. None also after the last.
    pub fn next_timeout(&mut self, timeout: Duration) -> Option<Event> {
        self.next_until(Instant::now().checked_add(timeout))
    }

    /// The next event for an async program; `None` after the last. Wakes the task of the latest call.
    pub fn poll_event(&mut self, context: &mut Context<'_>) -> Poll<Option<Event>> {
        // A waker is the caller's code: it is cloned and dropped without the lock.
        let mut waker = None;
        loop {
            let mut queue = self.job.lock();
            if queue.is_finished {
                return Poll::Ready(None);
            }
            if let Some(event) = self.job.pop(&self.shared, &mut queue) {
                return Poll::Ready(Some(event));
            }
            if let Some(waker) = waker.take() {
                let former = queue.waker.replace(waker);
                drop(queue);
                drop(former);
                return Poll::Pending;
            }
            drop(queue);
            waker = Some(context.waker().clone());
        }
    }

    /// Events that wait.
    pub fn len(&self) -> usize {
        self.job.lock().events.len()
    }

    /// Whether none waits.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether the last event was taken.
    pub fn is_finished(&self) -> bool {
        self.job.lock().is_finished
    }

    /// Tokens of the prompt.
    pub fn prompt_tokens(&self) -> u32 {
        self.job.prompt_tokens
    }

    /// Cancels the request: its choices that still run end with
    /// [`FinishReason::Cancelled`](crate::generate::FinishReason::Cancelled), then it is done.
    pub fn cancel(&self) {
        self.shared.cancel(&self.job);
    }

    /// Cancels it from another thread.
    pub fn canceller(&self) -> RequestCancel {
        RequestCancel {
            shared: self.shared.clone(),
            job: self.job.clone(),
        }
    }

    /// The same events as a [`Stream`](futures_core::Stream). Feature `stream`.
    ///
    /// ```
    /// use worker_cuda::generate::service::{Error, Event, Request};
    /// use worker_cuda::generate::Service;
    ///
    /// fn answer(
    ///     service: &Service,
    ///     question: &str,
    /// ) -> Result<impl futures_core::Stream<Item = Event> + Unpin + use<>, Error> {
    ///     Ok(service.submit(&Request::user(question))?.into_stream())
    /// }
    /// ```
    #[cfg(feature = "stream")]
    pub fn into_stream(self) -> EventStream {
        EventStream(self)
    }

    fn next_until(&mut self, end: Option<Instant>) -> Option<Event> {
        let mut queue = self.job.lock();
        loop {
            if queue.is_finished {
                return None;
            }
            if let Some(event) = self.job.pop(&self.shared, &mut queue) {
                return Some(event);
            }
            let left = end.map(|end| end.saturating_duration_since(Instant::now()));
            if left == Some(Duration::ZERO) {
                return None;
            }
            queue.is_awaited = true;
            queue = match left {
                Some(left) => {
                    let waited = self.job.arrived.wait_timeout(queue, left);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
                None => {
                    let waited = self.job.arrived.wait(queue);
                    waited.unwrap_or_else(PoisonError::into_inner)
                }
            };
            queue.is_awaited = false;
        }
    }
}

/// The events of one request for async programs; see [`EventReceiver::into_stream`]. Dropping it cancels the request.
#[cfg(feature = "stream")]
#[derive(Debug)]
#[must_use = "dropping it cancels the request"]
pub struct EventStream(EventReceiver);

#[cfg(feature = "stream")]
impl EventStream {
    /// The receiver of the events that have not been taken.
    pub fn into_receiver(self) -> EventReceiver {
        self.0
    }

    /// Cancels the request from anywhere.
    pub fn canceller(&self) -> RequestCancel {
        self.0.canceller()
    }
}

#[cfg(feature = "stream")]
impl futures_core::Stream for EventStream {
    type Item = Event;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Event>> {
        self.0.poll_event(context)
    }
}

impl RequestCancel {
    /// See [`EventReceiver::cancel`].
    pub fn cancel(&self) {
        self.shared.cancel(&self.job);
    }
}

impl Iterator for EventReceiver {
    type Item = Event;

    fn next(&mut self) -> Option<Event> {
        self.next_until(None)
    }
}

impl Drop for EventReceiver {
    fn drop(&mut self) {
        let mut queue = self.job.lock();
        queue.is_closed = true;
        queue.events.clear();
        let is_finished = queue.is_finished;
        let waker = queue.waker.take();
        drop(queue);
        drop(waker);
        if !is_finished {
            self.shared.cancel(&self.job);
        }
    }
}

impl fmt::Debug for EventReceiver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EventReceiver")
            .field("prompt_tokens", &self.job.prompt_tokens)
            .field("events", &self.len())
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for RequestCancel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RequestCancel({})", self.job.serial)
    }
}
