//! The paths of a server, and the short answers: models, tokens, templates, health, metrics.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use serde_json::{Value, json};
use worker_cuda::generate::Prompt;
use worker_cuda::generate::service::State as ServiceState;
use worker_cuda::text::{DecodeOptions, EncodeOptions, Tokenizer};

use super::anthropic::{count_tokens, messages};
use super::app::App;
use super::completions::{chat, completions};
use super::embeddings::embeddings;
use super::error::ApiError;
use super::execute::{cancel, execute, shutdown};
use super::fields::{Fields, wrong_type};
use super::gate::{Local, gated};
use super::generation::blocking;
use super::input::{Input, check_unknown, with_ignored};
use super::messages::conversation;
use super::models::{ModelName, load, unload};
use super::names::Names;
use super::openapi::document;
use super::page;
use super::parameters::check_model;
use super::responses::responses;

type Answer = Result<Response, ApiError>;

/// All paths, for connections of one kind.
pub fn router(app: &Arc<App>, local: Local) -> Router {
    let routes = page::routes()
        .route("/v1/models", get(models))
        .route("/v1/models/{id}", get(model))
        .route("/v1/models/{id}/load", post(load))
        .route("/v1/models/{id}/unload", post(unload))
        .route("/v1/chat/completions", post(chat))
        .route("/v1/completions", post(completions))
        .route("/v1/embeddings", post(embeddings))
        .route("/v1/responses", post(responses))
        .route("/v1/messages", post(messages))
        .route("/v1/messages/count_tokens", post(count_tokens))
        .route("/tokenize", post(tokenize))
        .route("/detokenize", post(detokenize))
        .route("/apply-template", post(apply_template))
        .route("/health", get(health))
        .route("/health/live", get(live))
        .route("/health/ready", get(ready))
        .route("/metrics", get(metrics))
        .route("/openapi.json", get(openapi))
        .route("/execute", post(execute))
        .route("/cancel", post(cancel))
        .route("/shutdown", post(shutdown))
        .fallback(no_such_path)
        .method_not_allowed_fallback(wrong_method);
    gated(routes, app, local).with_state(Arc::clone(app))
}

async fn no_such_path() -> ApiError {
    ApiError::new(StatusCode::NOT_FOUND, "unknown_path", "no such path")
}

async fn wrong_method() -> ApiError {
    let message = "this path does not take this method; the header Allow has those that it takes";
    ApiError::new(
        StatusCode::METHOD_NOT_ALLOWED,
        "method_not_allowed",
        message,
    )
}

/// A body of JSON, status 200.
pub fn json_response(value: &Value) -> Response {
    json_body(value.to_string())
}

/// The same of a text that is JSON.
pub fn json_body(text: impl Into<Body>) -> Response {
    let mut response = Response::new(text.into());
    let json = HeaderValue::from_static("application/json");
    response.headers_mut().insert(CONTENT_TYPE, json);
    response
}

async fn models(State(app): State<Arc<App>>) -> Response {
    let mut list = vec![app.describe()];
    list.extend(app.models.describe(None));
    json_response(&json!({ "object": "list", "data": list }))
}

async fn model(State(app): State<Arc<App>>, ModelName(id): ModelName) -> Answer {
    match (app.model.find(&id), app.models.describe(Some(&id)).first()) {
        (Ok(()), _) => Ok(json_response(&app.describe())),
        (_, Some(other)) => Ok(json_response(other)),
        (Err(error), None) => Err(error),
    }
}

/// `content` (llama.cpp's name) or `prompt` (vLLM's) or `messages`, to ids.
async fn tokenize(
    Input {
        app, mut fields, ..
    }: Input,
) -> Answer {
    let content = fields.string("content")?;
    let field = content.as_ref().map_or("prompt", |_| "content");
    let text = content.or(fields.string("prompt")?);
    let options = EncodeOptions {
        add_special: fields.boolean("add_special")?,
        parse_special: fields.boolean("parse_special")?,
    };
    check_given_model(&mut fields, &app)?;
    let mut unknown = Vec::new();
    let prompt = match text {
        Some(_) if fields.has("messages") => {
            let message = "a request has either a text or messages";
            return Err(ApiError::invalid("messages", message));
        }
        Some(text) => Prompt::Text(text),
        None if !fields.has("messages") => {
            let (code, message) = (
                "missing_required_parameter",
                "content, prompt or messages is required",
            );
            return Err(ApiError::new(StatusCode::BAD_REQUEST, code, message).with_param("content"));
        }
        None => Prompt::Chat(conversation(&app, &mut fields, &mut unknown)?.0),
    };
    unknown.extend(fields.unknown());
    let ignored = check_unknown(&app, unknown)?;
    if let Prompt::Text(_) = &prompt {
        let names = Names::new(&[("messages", field)]);
        let checked = app.check_text(&prompt);
        checked.map_err(|error| names.restore(error))?;
    }
    let answer = blocking(move || {
        let tokens = match &prompt {
            Prompt::Text(text) => app
                .tokenizer()?
                .encode(text, options)
                .map_err(|error| ApiError::invalid(field, error.to_string()))?,
            prompt => app.encode(prompt)?,
        };
        Ok(json_response(
            &json!({ "tokens": tokens, "count": tokens.len() }),
        ))
    })
    .await?;
    Ok(with_ignored(answer, ignored))
}

/// These paths do not need the name of the model; a wrong one is an error all the same.
fn check_given_model(fields: &mut Fields, app: &App) -> Result<(), ApiError> {
    match fields.has("model") {
        true => check_model(fields, app),
        false => {
            fields.skip(&["model"]);
            Ok(())
        }
    }
}

async fn detokenize(
    Input {
        app, mut fields, ..
    }: Input,
) -> Answer {
    let Some(tokens) = fields.tokens("tokens")? else {
        return Err(fields
            .required("tokens")
            .err()
            .unwrap_or_else(|| ApiError::invalid("tokens", "tokens is required")));
    };
    let options = DecodeOptions {
        show_special: fields.boolean("show_special")?,
        at_text_start: true,
    };
    check_given_model(&mut fields, &app)?;
    let ignored = check_unknown(&app, fields.unknown())?;
    app.check_count("tokens", tokens.len())?;
    let answer = blocking(move || {
        let decoded = app.tokenizer()?.decode(&tokens, options);
        let text = decoded.map_err(|error| ApiError::invalid("tokens", error.to_string()))?;
        Ok(json_response(&json!({ "content": text, "prompt": text })))
    })
    .await?;
    Ok(with_ignored(answer, ignored))
}

async fn apply_template(
    Input {
        app, mut fields, ..
    }: Input,
) -> Answer {
    let mut unknown = Vec::new();
    check_given_model(&mut fields, &app)?;
    let (mut input, _) = conversation(&app, &mut fields, &mut unknown)?;
    if let Some(value) = fields.take("add_generation_prompt") {
        input.add_generation_prompt = value
            .as_bool()
            .ok_or_else(|| wrong_type("add_generation_prompt".into(), "true or false", &value))?;
    }
    unknown.extend(fields.unknown());
    let ignored = check_unknown(&app, unknown)?;
    let text = blocking(move || {
        let template = app.model.template.as_ref().ok_or_else(|| {
            ApiError::invalid(
                "messages",
                "the model has no chat template that can be used",
            )
        })?;
        let rendered = template.render(&input);
        rendered.map_err(|error| ApiError::invalid("messages", error.to_string()))
    })
    .await?;
    Ok(with_ignored(
        json_response(&json!({ "prompt": text })),
        ignored,
    ))
}

/// Whether the engine makes progress, or has nothing to do.
fn is_alive(app: &App) -> bool {
    let stats = app.service.stats();
    let works = stats.running > 0 || stats.waiting > 0;
    let silent = app
        .service
        .clock()
        .now()
        .saturating_sub(stats.last_progress);
    stats.state != ServiceState::Lost && !(works && silent > app.options.hang_timeout)
}

fn status(ok: bool, word: &str) -> Response {
    let mut response = json_response(&json!({ "status": word }));
    if !ok {
        *response.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
    }
    response
}

async fn live(State(app): State<Arc<App>>) -> Response {
    let alive = app.all().iter().all(|app| is_alive(app));
    status(alive, if alive { "ok" } else { "hung" })
}

async fn ready(State(app): State<Arc<App>>) -> Response {
    let state = app.state();
    status(state == "ready", state)
}

async fn health(State(app): State<Arc<App>>) -> Response {
    let stats = app.stats();
    let state = app.state();
    let ok = state == "ready" && app.all().iter().all(|app| is_alive(app));
    let memory = app.model.memory.as_ref().map(|report| report());
    let mut response = json_response(&json!({
        "status": if ok { "ok" } else { "unavailable" },
        "state": match state {
            "ready" if stats.running > 0 => "busy",
            "lost" => "failed",
            "stopped" => "draining",
            state => state,
        },
        "model": app.model.id(),
        "quant_kind": app.model.quantization,
        "worker_id": app.options.worker_id,
        "resident": app.is_resident.load(Ordering::Relaxed),
        "tokenizer_kind": app.service.tokenizer().map(|tokenizer| tokenizer_kind(tokenizer)),
        "sm": app.model.device.sm,
        "cuda_runtime_version": app.model.device.cuda_runtime_version,
        "vram_bytes_used": memory.map(|list| list.iter().map(|(_, bytes)| bytes).sum::<u64>()),
        "vram_bytes_total": app.model.device.total_bytes,
        "vocab_size": app.service.limits().vocabulary_size,
        "context_length": app.max_context(),
        "running": stats.running,
        "waiting": stats.waiting,
        "uptime_seconds": app.started.elapsed().as_secs(),
    }));
    if !ok {
        *response.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
    }
    response
}

/// By the names of the older worker.
fn tokenizer_kind(tokenizer: &Tokenizer) -> String {
    match tokenizer.vocabulary().model.as_str() {
        "gpt2" => "gguf-bpe".to_owned(),
        other => format!("gguf-{other}"),
    }
}

async fn metrics(State(app): State<Arc<App>>) -> Response {
    let text = app.metrics.write(&app);
    let kind = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
    ([(CONTENT_TYPE, kind)], text).into_response()
}

async fn openapi(State(app): State<Arc<App>>) -> Response {
    json_response(&document(&app.names()))
}

/// How long a client waits that is refused while the server ends.
pub const DRAIN_RETRY: Duration = Duration::from_secs(30);
