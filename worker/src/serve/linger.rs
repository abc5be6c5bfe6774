//! Bodies of refused requests: the rest is read and dropped, because many clients send all of a body before they read
//! the answer, and lose the answer if the connection ends earlier.

use std::future::poll_fn;
use std::mem;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, Bytes};
use http_body::{Body as _, Frame, SizeHint};
use tokio::runtime::Handle;
use tokio::time::timeout;

/// Most bytes that are dropped: those of a few of the largest bodies.
const MOST_BYTES: usize = 32 << 20;

/// A body whose rest is read for up to `limit` after it was dropped.
pub fn lingering(body: Body, limit: Duration) -> Body {
    match body.is_end_stream() {
        true => body,
        false => Body::new(Lingering { body, limit }),
    }
}

struct Lingering {
    body: Body,
    limit: Duration,
}

impl http_body::Body for Lingering {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Drop for Lingering {
    fn drop(&mut self) {
        if self.body.is_end_stream() {
            return;
        }
        let (body, limit) = (mem::take(&mut self.body), self.limit);
        if let Ok(runtime) = Handle::try_current() {
            runtime.spawn(timeout(limit, drop_rest(body)));
        }
    }
}

async fn drop_rest(mut body: Body) {
    let mut count = 0;
    while count < MOST_BYTES
        && let Some(Ok(frame)) = poll_fn(|context| Pin::new(&mut body).poll_frame(context)).await
    {
        count += frame.data_ref().map_or(0, Bytes::len);
    }
}
