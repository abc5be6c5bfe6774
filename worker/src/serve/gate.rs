//! What every request passes first: host, origin, key. What every answer passes last: panics, ids, counts.

use std::future::{Future, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Poll;

use axum::extract::{Request, State};
use axum::http::header::{HOST, ORIGIN};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use super::app::App;
use super::error::ApiError;
use super::execute;
use super::keys::{Caller, Permit, Role};
use super::log::Entry;
use super::page;
use super::room::Room;
use super::routes::DRAIN_RETRY;

/// Whether a connection comes through a Unix socket, which no browser can reach.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Local(pub bool);

const REQUEST_ID: &str = "x-request-id";
const MAX_ID_BYTES: usize = 128;

pub async fn gate(
    State((app, local)): State<(Arc<App>, Local)>,
    mut request: Request,
    next: Next,
) -> Response {
    let id = request_id(&app, request.headers());
    let path = request.uri().path();
    let replace_body: fn(&ApiError, &mut Response) = match path {
        path if path.starts_with("/v1/messages") => ApiError::replace_body,
        path if execute::PATHS.contains(&path) => execute::replace_body,
        _ => |_, _| (),
    };
    let is_logged = app.options.log.is_some() && !path.starts_with("/health") && path != "/metrics";
    let entry = is_logged.then(|| {
        let id = id.to_str().unwrap_or_default();
        Arc::new(Entry::new(&app, id, request.method().as_str(), path))
    });
    let admitted = admit(&app, local, &mut request).map(|caller| {
        if let (Some(caller), Some(entry)) = (&caller, &entry) {
            entry.set_caller(caller);
        }
        let visitor = Visitor {
            caller: caller.unwrap_or_default(),
            entry: entry.clone(),
            ..Visitor::default()
        };
        request.extensions_mut().insert(visitor);
    });
    let mut response = match admitted {
        Ok(()) => without_panic(next.run(request)).await,
        Err(error) => error.into_response(),
    };
    if let Some(error) = response.extensions_mut().remove::<ApiError>() {
        replace_body(&error, &mut response);
    }
    if let Some(entry) = entry {
        entry.set_status(response.status().as_u16());
    }
    app.metrics.count_status(response.status().as_u16());
    response.headers_mut().insert(REQUEST_ID, id);
    response
}

/// Who has sent a request, for the handler of its path.
#[derive(Clone, Default)]
pub struct Visitor {
    pub caller: Caller,
    /// Its line of the log.
    pub entry: Option<Arc<Entry>>,
    /// Of requests with a body: counts them for their caller.
    pub permit: Option<Arc<Permit>>,
    /// What they have of the memory for all bodies.
    pub room: Option<Arc<Room>>,
}

/// The client's id if it is a plain one, else a new one.
fn request_id(app: &App, headers: &HeaderMap) -> HeaderValue {
    let given = headers.get(REQUEST_ID).filter(|id| {
        let id = id.as_bytes();
        (1..=MAX_ID_BYTES).contains(&id.len()) && id.iter().all(u8::is_ascii_graphic)
    });
    given.cloned().unwrap_or_else(|| {
        let id = app.next_id("req-");
        HeaderValue::from_str(&id).unwrap_or(HeaderValue::from_static("req"))
    })
}

/// Checks a request before its body is read. Probes have no caller.
fn admit(app: &App, local: Local, request: &mut Request) -> Result<Option<Caller>, ApiError> {
    if !local.0 {
        check_host(app, request)?;
        check_origin(request)?;
    }
    let path = request.uri().path();
    let is_probe = path == "/health/live" || path == "/health/ready";
    if is_probe || page::paths().any(|known| known == path) {
        return Ok(None);
    }
    // The manager of the older worker has no key, and ends it.
    let open = match local.0 || app.options.worker_id.is_some() {
        true => Role::Admin,
        false => Role::User,
    };
    let caller = app.options.keys.check(request.headers(), open)?;
    caller.check_path(path)?;
    let ends_work = path == "/cancel" || path == "/shutdown";
    if request.method() == Method::POST && !ends_work && app.draining.load(Ordering::Relaxed) {
        let message = "the server ends and accepts no more requests";
        return Err(
            ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "draining", message)
                .with_retry_after(DRAIN_RETRY),
        );
    }
    Ok(Some(caller))
}

fn host_header(request: &Request) -> Option<&str> {
    let authority = request
        .uri()
        .authority()
        .map(|authority| authority.as_str());
    authority.or_else(|| request.headers().get(HOST)?.to_str().ok())
}

/// The part of a `Host` in front of the port.
fn host_name(host: &str) -> &str {
    match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    }
}

/// A page whose name was made to point to this machine has a name of its own here. Addresses cannot be made
/// so; where keys are required such a page has none.
fn check_host(app: &App, request: &Request) -> Result<(), ApiError> {
    let host = host_header(request).unwrap_or_default();
    let name = host_name(host);
    let is_address = name
        .trim_matches(['[', ']'])
        .parse::<std::net::IpAddr>()
        .is_ok();
    let hosts = &app.options.allowed_hosts;
    let is_allowed = |known: &String| known == "*" || known.eq_ignore_ascii_case(name);
    let is_local = is_address || name.eq_ignore_ascii_case("localhost");
    if is_local || !app.options.keys.is_empty() || hosts.iter().any(is_allowed) {
        return Ok(());
    }
    let message = "the host of the request is not one of this server; --allowed-host adds one";
    Err(ApiError::new(
        StatusCode::FORBIDDEN,
        "host_not_allowed",
        message,
    ))
}

/// Pages of other origins may not send requests that change something.
fn check_origin(request: &Request) -> Result<(), ApiError> {
    if matches!(
        *request.method(),
        Method::GET | Method::HEAD | Method::OPTIONS
    ) {
        return Ok(());
    }
    let headers = request.headers();
    let same = match (headers.get("sec-fetch-site"), headers.get(ORIGIN)) {
        (Some(site), _) => site == "same-origin" || site == "none",
        (None, Some(origin)) => {
            let origin = origin.to_str().unwrap_or_default();
            let authority = origin.split_once("://").map(|(_, authority)| authority);
            authority.is_some() && authority == host_header(request)
        }
        (None, None) => true,
    };
    if same {
        return Ok(());
    }
    let message = "requests of pages of another origin are refused";
    Err(ApiError::new(
        StatusCode::FORBIDDEN,
        "cross_origin",
        message,
    ))
}

/// A panic of a handler is an answer with status 500.
async fn without_panic(answer: impl Future<Output = Response>) -> Response {
    let mut answer = pin!(answer);
    poll_fn(
        |context| match catch_unwind(AssertUnwindSafe(|| answer.as_mut().poll(context))) {
            Ok(poll) => poll,
            Err(_) => Poll::Ready(
                ApiError::internal("the request has failed; see the log of the server")
                    .into_response(),
            ),
        },
    )
    .await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_are_separated_from_ports() {
        for (host, name) in [
            ("localhost", "localhost"),
            ("localhost:80", "localhost"),
            ("[::1]:80", "[::1]"),
            ("[::1]", "[::1]"),
            ("", ""),
        ] {
            assert_eq!(host_name(host), name);
        }
    }

    #[test]
    fn panics_become_an_answer() {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .build()
            .expect("a runtime");
        let response = runtime.block_on(without_panic(async { panic!("on purpose") }));
        assert_eq!(response.status(), StatusCode::INTERNAL_SERVER_ERROR);
    }

    fn post(headers: &[(&'static str, &str)]) -> Request {
        let mut request = Request::builder().method(Method::POST).uri("/");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        request.body(axum::body::Body::empty()).expect("a request")
    }

    #[test]
    fn only_pages_of_the_server_itself_may_post() {
        for headers in [
            &[("host", "a:1")][..],
            &[("host", "a:1"), ("origin", "http://a:1")],
            &[("host", "a:1"), ("sec-fetch-site", "same-origin")],
        ] {
            check_origin(&post(headers)).expect("is allowed");
        }
        for headers in [
            &[("host", "a:1"), ("origin", "http://a:2")][..],
            &[("host", "a:1"), ("origin", "null")],
            &[("host", "a:1"), ("sec-fetch-site", "same-site")],
            &[
                ("host", "a:1"),
                ("origin", "http://a:1"),
                ("sec-fetch-site", "cross-site"),
            ],
        ] {
            let error = check_origin(&post(headers)).expect_err("is refused");
            assert_eq!(error.status, StatusCode::FORBIDDEN);
        }
    }
}
