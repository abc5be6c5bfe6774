//! What every request passes first: host, origin, key. What every answer passes last: panics, ids, counts.

use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::header::HOST;
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use tower_http::catch_panic::CatchPanicLayer;
use tower_http::csrf::{CsrfLayer, ProtectionError};

use super::app::App;
use super::error::ApiError;
use super::execute;
use super::keys::{Caller, Permit, Role};
use super::linger::lingering;
use super::log::Entry;
use super::page;
use super::room::Room;
use super::routes::DRAIN_RETRY;

/// Whether a connection comes through a Unix socket, which no browser can reach.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Local(pub bool);

const REQUEST_ID: &str = "x-request-id";
const MAX_ID_BYTES: usize = 128;

/// The routes behind what each request passes; the layer that is added last comes first.
pub fn gated(routes: Router<Arc<App>>, app: &Arc<App>, local: Local) -> Router<Arc<App>> {
    let state = (Arc::clone(app), local);
    routes
        .layer(CatchPanicLayer::custom(panicked))
        .layer(from_fn_with_state(state.clone(), admit))
        .layer(
            CsrfLayer::new()
                .with_insecure_bypass(move |_, _| local.0)
                .with_rejection_response(cross_origin),
        )
        .layer(from_fn_with_state(state, answer))
}

/// Answers in the form of the API, with an id, and counts and logs.
async fn answer(
    State((app, local)): State<(Arc<App>, Local)>,
    request: Request,
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
    let mut request = request.map(|body| lingering(body, app.options.linger_timeout));
    let mut response = match check_host(&app, local, &request) {
        Ok(()) => {
            let visitor = Visitor {
                entry: entry.clone(),
                ..Visitor::default()
            };
            request.extensions_mut().insert(visitor);
            next.run(request).await
        }
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

/// Finds out who has sent a request, before its body is read.
async fn admit(
    State((app, local)): State<(Arc<App>, Local)>,
    mut request: Request,
    next: Next,
) -> Result<Response, ApiError> {
    if let Some(caller) = caller(&app, local, &request)? {
        let visitor = request.extensions_mut().get_or_insert_default::<Visitor>();
        if let Some(entry) = &visitor.entry {
            entry.set_caller(&caller);
        }
        visitor.caller = caller.clone();
        check_caller(&app, &caller, &request)?;
    }
    Ok(next.run(request).await)
}

/// Probes and the page have none.
fn caller(app: &App, local: Local, request: &Request) -> Result<Option<Caller>, ApiError> {
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
    app.options.keys.check(request.headers(), open).map(Some)
}

/// Whether the caller may send this request, and at this time.
fn check_caller(app: &App, caller: &Caller, request: &Request) -> Result<(), ApiError> {
    let path = request.uri().path();
    caller.check_path(path)?;
    let ends_work = path == "/cancel" || path == "/shutdown";
    if request.method() == Method::POST && !ends_work && app.draining.load(Ordering::Relaxed) {
        let message = "the server ends and accepts no more requests";
        return Err(
            ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "draining", message)
                .with_retry_after(DRAIN_RETRY),
        );
    }
    Ok(())
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
fn check_host(app: &App, local: Local, request: &Request) -> Result<(), ApiError> {
    let host = host_header(request).unwrap_or_default();
    let name = host_name(host);
    let is_address = name
        .trim_matches(['[', ']'])
        .parse::<std::net::IpAddr>()
        .is_ok();
    let hosts = &app.options.allowed_hosts;
    let is_allowed = |known: &String| known == "*" || known.eq_ignore_ascii_case(name);
    let is_local = is_address || name.eq_ignore_ascii_case("localhost");
    if local.0 || is_local || !app.options.keys.is_empty() || hosts.iter().any(is_allowed) {
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
fn cross_origin(_: ProtectionError) -> Response {
    let message = "requests of pages of another origin are refused";
    ApiError::new(StatusCode::FORBIDDEN, "cross_origin", message).into_response()
}

fn panicked(_: Box<dyn Any + Send>) -> Response {
    ApiError::internal("the request has failed; see the log of the server").into_response()
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
}
