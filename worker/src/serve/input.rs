//! The body of a request, read within its limits.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::{FromRequest, Request};
use axum::http::{HeaderValue, StatusCode};
use axum::response::Response;
use http_body::Body as _;
use tokio::time::timeout;

use super::app::App;
use super::error::ApiError;
use super::fields::{Fields, parsed_bytes};
use super::gate::Visitor;
use super::generation::blocking;

/// A request whose body is a JSON object.
pub struct Input {
    /// The model that it names.
    pub app: Arc<App>,
    pub visitor: Visitor,
    pub fields: Fields,
}

impl FromRequest<Arc<App>> for Input {
    type Rejection = ApiError;

    async fn from_request(mut request: Request, app: &Arc<App>) -> Result<Self, ApiError> {
        let mut visitor = visitor(&mut request);
        visitor.permit = Some(visitor.caller.enter()?);
        let room = app.bodies.room(visitor.caller.tenant);
        let body = request.into_body();
        let body = read(body, app, app.options.max_body_bytes, |all| room.set(all)).await?;
        room.set(parsed_bytes(&body))?;
        visitor.room = Some(Arc::new(room));
        // Long bodies are parsed on a thread of their own, so that the streams of others do not wait.
        let fields = match body.len() > LONG_BODY {
            true => blocking(move || Fields::parse(&body)).await?,
            false => Fields::parse(&body)?,
        };
        let app = app.named(fields.text("model"))?;
        Ok(Self {
            app,
            visitor,
            fields,
        })
    }
}

/// Bodies that are parsed within a millisecond or two are parsed at once.
const LONG_BODY: usize = 128 << 10;

/// A request with a short body, which is accepted however many requests its caller has at once.
pub struct ShortInput(pub Visitor, pub Fields);

/// The longest `job_id` fits, with every byte escaped.
const SHORT_BODY: usize = 4 << 10;

impl FromRequest<Arc<App>> for ShortInput {
    type Rejection = ApiError;

    async fn from_request(mut request: Request, app: &Arc<App>) -> Result<Self, ApiError> {
        let visitor = visitor(&mut request);
        let body = read(request.into_body(), app, SHORT_BODY, |_| Ok(())).await?;
        Ok(Self(visitor, Fields::parse(&body)?))
    }
}

fn visitor(request: &mut Request) -> Visitor {
    let visitor = request.extensions_mut().remove::<Visitor>();
    visitor.unwrap_or_default()
}

/// Reads a body of up to `limit` bytes. `take` gets their number before more of them are kept.
async fn read(
    body: Body,
    app: &App,
    limit: usize,
    take: impl FnMut(usize) -> Result<(), ApiError>,
) -> Result<Vec<u8>, ApiError> {
    let most = app.options.body_timeout;
    match timeout(most, read_all(body, limit, take)).await {
        Ok(bytes) => bytes,
        Err(_) => Err(ApiError::new(
            StatusCode::REQUEST_TIMEOUT,
            "body_timeout",
            format!("the body did not come within {} s", most.as_secs()),
        )),
    }
}

async fn read_all(
    mut body: Body,
    limit: usize,
    mut take: impl FnMut(usize) -> Result<(), ApiError>,
) -> Result<Vec<u8>, ApiError> {
    let check = |bytes: u64| {
        if bytes <= limit as u64 {
            return Ok(());
        }
        let message = format!("the body has {bytes} bytes or more, at most {limit} are accepted");
        Err(ApiError::too_large(message))
    };
    check(body.size_hint().lower())?;
    let mut bytes = Vec::new();
    while let Some(frame) = poll_fn(|context| Pin::new(&mut body).poll_frame(context)).await {
        let frame = frame.map_err(|error| ApiError::malformed(format!("the body: {error}")))?;
        if let Ok(data) = frame.into_data() {
            let all = bytes.len() + data.len();
            check(all as u64)?;
            take(all)?;
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
