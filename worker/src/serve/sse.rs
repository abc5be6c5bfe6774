//! An answer as a stream of server-sent events.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::body::{Body, Bytes};
use axum::http::HeaderValue;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::response::Response;
use http_body::Frame;
use serde_json::Value;
use tokio::time::{Instant, Sleep, sleep};
use worker_cuda::generate::service::{PromptLogprob, Usage};

use super::app::App;
use super::error::ApiError;
use super::generation::{Accepted, Part, Parts};

/// Most events in one frame.
const FRAME_EVENTS: usize = 64;

/// Writes one answer in the form of one API.
pub trait Wire: Send {
    /// All of it, of all choices, as JSON.
    fn whole(&mut self, parts: &[Part], usage: &Usage, reasoning_tokens: u32) -> Vec<u8>;
    /// Log probabilities of the prompt, before anything else.
    fn set_prompt_logprobs(&mut self, _: Vec<PromptLogprob>) {}
    /// As a stream: the first event of a choice.
    fn open(&mut self, index: usize, out: &mut Vec<u8>);
    /// What has come of a choice, and its end.
    fn part(&mut self, index: usize, part: &Part, out: &mut Vec<u8>);
    /// The end of the answer.
    fn end(&mut self, usage: &Usage, reasoning_tokens: u32, out: &mut Vec<u8>);
    /// An end that is a failure.
    fn error(&mut self, error: &ApiError, out: &mut Vec<u8>);
}

/// The body of a streamed answer. Dropping it cancels the request.
struct EventStream {
    app: Arc<App>,
    accepted: Accepted,
    reply: Box<dyn Wire>,
    parts: Parts,
    /// Which choices have sent their first chunk.
    opened: Vec<bool>,
    heartbeat: Pin<Box<Sleep>>,
    ended: bool,
}

/// Answers with a stream.
pub fn stream(app: &Arc<App>, accepted: Accepted, reply: Box<dyn Wire>, parts: Parts) -> Response {
    let stream = EventStream {
        app: Arc::clone(app),
        opened: vec![false; parts.choices.len()],
        parts,
        heartbeat: Box::pin(sleep(app.options.heartbeat)),
        accepted,
        reply,
        ended: false,
    };
    event_response(Body::new(stream))
}

/// The response with such a body.
pub fn event_response(body: Body) -> Response {
    let mut response = Response::new(body);
    let headers = response.headers_mut();
    let events = HeaderValue::from_static("text/event-stream; charset=utf-8");
    headers.insert(CONTENT_TYPE, events);
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    // Proxies that collect answers must not do so here.
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    response
}

impl EventStream {
    /// Takes the events that wait, so that a client that was slow gets one chunk for many tokens. Returns
    /// whether more may wait.
    fn take_events(&mut self, context: &mut Context<'_>, out: &mut Vec<u8>) -> bool {
        let mut more = true;
        for _ in 0..FRAME_EVENTS {
            match self.accepted.poll_event(context) {
                Poll::Ready(Some(event)) => self.parts.add(event),
                Poll::Ready(None) => self.ended = true,
                Poll::Pending => more = false,
            }
            if self.ended || !more {
                break;
            }
        }
        self.write_parts(out);
        if self.ended {
            self.write_end(out);
        }
        more && !self.ended
    }

    fn write_parts(&mut self, out: &mut Vec<u8>) {
        if self.parts.waits_for_prompt {
            return;
        }
        if let Some(scores) = self.parts.prompt_logprobs.take() {
            self.reply.set_prompt_logprobs(scores);
        }
        for index in 0..self.opened.len() {
            let part = std::mem::take(&mut self.parts.choices[index]);
            let comes = part.started || !part.is_empty() || part.end.is_some();
            if comes && !self.opened[index] {
                self.opened[index] = true;
                self.reply.open(index, out);
            }
            if part.is_empty() && part.end.is_none() {
                continue;
            }
            self.reply.part(index, &part, out);
        }
    }

    fn write_end(&mut self, out: &mut Vec<u8>) {
        match self.parts.end.take() {
            Some(Ok(usage)) => self.reply.end(&usage, self.parts.reasoning_tokens, out),
            Some(Err(error)) => {
                let error = ApiError::from_service(&error, &self.app.service.stats());
                self.reply.error(&error, out);
            }
            None => self
                .reply
                .error(&ApiError::internal("the answer has no end"), out),
        }
    }
}

/// An event with a name, which is also its type.
pub fn write_named(name: &str, mut value: Value, out: &mut Vec<u8>) {
    value["type"] = name.into();
    out.extend(format!("event: {name}\ndata: {value}\n\n").as_bytes());
}

pub fn write(value: &Value, out: &mut Vec<u8>) {
    out.extend(format!("data: {value}\n\n").as_bytes());
}

impl http_body::Body for EventStream {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if self.ended {
            return Poll::Ready(None);
        }
        let mut out = Vec::new();
        while self.take_events(context, &mut out) && out.is_empty() {}
        if out.is_empty() {
            if self.heartbeat.as_mut().poll(context).is_pending() {
                return Poll::Pending;
            }
            out.extend(b":\n\n");
        }
        let next = Instant::now() + self.app.options.heartbeat;
        self.heartbeat.as_mut().reset(next);
        Poll::Ready(Some(Ok(Frame::data(out.into()))))
    }
}
