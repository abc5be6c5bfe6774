//! The body of a request, read within its limits.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::{FromRequest, Request};
use axum::http::{HeaderValue, StatusCode};
use axum::response::Response;
use http_body::Body as _;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::timeout;

use super::app::{App, Options};
use super::error::ApiError;
use super::fields::Fields;
use super::gate::Visitor;
use super::generation::blocking;

/// A request whose body is a JSON object.
pub struct Input {
    pub visitor: Visitor,
    pub fields: Fields,
}

impl FromRequest<Arc<App>> for Input {
    type Rejection = ApiError;

    async fn from_request(mut request: Request, app: &Arc<App>) -> Result<Self, ApiError> {
        let mut visitor = request
            .extensions_mut()
            .remove::<Visitor>()
            .unwrap_or_default();
        visitor.permit = Some(visitor.caller.enter()?);
        let mut room = Room::new(app);
        let body = read(request.into_body(), &app.options, &mut room).await?;
        visitor.room = room.taken.map(Arc::new);
        // Long bodies are parsed on a thread of their own, so that the streams of others do not wait.
        let fields = match body.len() > LONG_BODY {
            true => blocking(move || Fields::parse(&body)).await?,
            false => Fields::parse(&body)?,
        };
        Ok(Self { visitor, fields })
    }
}

/// Bodies that are parsed within a millisecond or two are parsed at once.
const LONG_BODY: usize = 128 << 10;

/// What a body has of the memory for all bodies.
struct Room<'a> {
    app: &'a App,
    taken: Option<OwnedSemaphorePermit>,
}

impl<'a> Room<'a> {
    fn new(app: &'a App) -> Self {
        Self { app, taken: None }
    }

    /// Takes room for so many more bytes.
    fn grow(&mut self, bytes: usize) -> Result<(), ApiError> {
        let more = Arc::clone(&self.app.body_room).try_acquire_many_owned(bytes as u32);
        let Ok(more) = more else {
            let most = self.app.options.max_bodies_bytes;
            let message = format!(
                "the bodies of all requests at once have {most} bytes or more, which is the limit"
            );
            return Err(ApiError::new(
                StatusCode::SERVICE_UNAVAILABLE,
                "bodies_too_large",
                message,
            )
            .with_retry_after(Duration::from_secs(1)));
        };
        match &mut self.taken {
            Some(taken) => taken.merge(more),
            None => self.taken = Some(more),
        }
        Ok(())
    }
}

async fn read(body: Body, options: &Options, room: &mut Room<'_>) -> Result<Vec<u8>, ApiError> {
    let seconds = options.body_timeout.as_secs();
    let read = read_all(body, options.max_body_bytes, room);
    match timeout(options.body_timeout, read).await {
        Ok(bytes) => bytes,
        Err(_) => Err(ApiError::new(
            StatusCode::REQUEST_TIMEOUT,
            "body_timeout",
            format!("the body did not come within {seconds} s"),
        )),
    }
}

async fn read_all(mut body: Body, limit: usize, room: &mut Room<'_>) -> Result<Vec<u8>, ApiError> {
    let check = |bytes: u64| {
        if bytes <= limit as u64 {
            return Ok(());
        }
        let message = format!("the body has {bytes} bytes or more, at most {limit} are accepted");
        Err(ApiError::new(
            StatusCode::PAYLOAD_TOO_LARGE,
            "body_too_large",
            message,
        ))
    };
    check(body.size_hint().lower())?;
    let mut bytes = Vec::new();
    while let Some(frame) = poll_fn(|context| Pin::new(&mut body).poll_frame(context)).await {
        let frame = frame.map_err(|error| ApiError::malformed(format!("the body: {error}")))?;
        if let Ok(data) = frame.into_data() {
            check((bytes.len() + data.len()) as u64)?;
            room.grow(data.len())?;
            bytes.extend_from_slice(&data);
        }
    }
    Ok(bytes)
}

/// The names of fields that were not understood, for a header of the answer; an error if the server is
/// strict.
pub fn check_unknown(app: &App, mut names: Vec<String>) -> Result<Option<HeaderValue>, ApiError> {
    let Some(first) = names.first() else {
        return Ok(None);
    };
    if app.options.strict {
        let message = format!("unknown fields: {}", names.join(", "));
        return Err(
            ApiError::new(StatusCode::BAD_REQUEST, "unknown_parameter", message)
                .with_param(first.clone()),
        );
    }
    names.truncate(MAX_NAMES);
    let list: String = names
        .join(", ")
        .chars()
        .map(|c| {
            if c.is_ascii_graphic() || c == ' ' {
                c
            } else {
                '?'
            }
        })
        .take(MAX_LIST_CHARS)
        .collect();
    Ok(HeaderValue::from_str(&list).ok())
}

const MAX_NAMES: usize = 32;
const MAX_LIST_CHARS: usize = 1024;

/// Adds the header.
pub fn with_ignored(mut response: Response, ignored: Option<HeaderValue>) -> Response {
    if let Some(names) = ignored {
        response.headers_mut().insert("x-worker-ignored", names);
    }
    response
}
