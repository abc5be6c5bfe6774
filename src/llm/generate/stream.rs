//! A generation as a stream of events for an async program. Feature `stream`.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};
use std::thread::{self, JoinHandle};

use futures_core::Stream;

use super::{CancelFlag, Event, OwnedGeneration, Session};
use crate::core::error::{Error, ErrorKind, Result};

/// The events of an [`OwnedGeneration`], computed on a thread of its own, so that polling never blocks.
/// Dropping it stops the generation.
#[derive(Debug)]
pub struct EventStream {
    shared: Arc<Mutex<Shared>>,
    cancel: CancelFlag,
    /// None after the session was returned.
    thread: Option<JoinHandle<Session>>,
}

#[derive(Debug, Default)]
struct Shared {
    events: VecDeque<Result<Event>>,
    finished: bool,
    waker: Option<Waker>,
}

impl OwnedGeneration {
    /// Computes the rest of the generation on a new thread.
    ///
    /// ```no_run
    /// # fn f(session: worker_cuda::generate::Session) -> worker_cuda::Result<()> {
    /// use worker_cuda::generate::Request;
    ///
    /// let generation = session.into_generation(&Request::user("Why is the sky blue?"))?;
    /// let events = generation.into_stream()?; // a futures_core::Stream of Result<Event>
    /// # Ok(())
    /// # }
    /// ```
    pub fn into_stream(mut self) -> Result<EventStream> {
        let shared = Arc::new(Mutex::new(Shared::default()));
        let cancel = self.cancel_flag();
        let sink = Arc::clone(&shared);
        let thread = thread::Builder::new()
            .name("generation".into())
            .spawn(move || {
                let finished = Finished(sink);
                for event in &mut self {
                    finished.update(|shared| shared.events.push_back(event));
                }
                self.into_session()
            })
            .map_err(|error| {
                let message = format!("no thread for the generation: {error}");
                Error::new(ErrorKind::OutOfHostMemory, message)
            })?;
        Ok(EventStream {
            shared,
            cancel,
            thread: Some(thread),
        })
    }
}

/// Ends the stream when the thread ends for any reason.
struct Finished(Arc<Mutex<Shared>>);

impl Finished {
    fn update(&self, change: impl FnOnce(&mut Shared)) {
        let mut shared = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        change(&mut shared);
        let waker = shared.waker.take();
        drop(shared);
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl Drop for Finished {
    fn drop(&mut self) {
        self.update(|shared| shared.finished = true);
    }
}

impl EventStream {
    /// A flag that stops the generation from any thread.
    pub fn cancel_flag(&self) -> CancelFlag {
        self.cancel.clone()
    }

    /// Stops the generation, waits for its thread, and returns the session.
    pub fn into_session(mut self) -> Result<Session> {
        self.cancel.set();
        let joined = self.thread.take().map(JoinHandle::join);
        joined
            .and_then(std::result::Result::ok)
            .ok_or_else(|| Error::new(ErrorKind::Internal, "the thread of a generation panicked"))
    }
}

impl Stream for EventStream {
    type Item = Result<Event>;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Event>>> {
        let mut shared = self.shared.lock().unwrap_or_else(PoisonError::into_inner);
        match shared.events.pop_front() {
            Some(event) => Poll::Ready(Some(event)),
            None if shared.finished => Poll::Ready(None),
            None => {
                shared.waker = Some(context.waker().clone());
                Poll::Pending
            }
        }
    }
}

impl Drop for EventStream {
    fn drop(&mut self) {
        self.cancel.set();
    }
}
