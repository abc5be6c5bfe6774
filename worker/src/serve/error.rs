//! Errors as clients see them: a status, and `{"error":{message,type,param,code}}`.

use std::time::Duration;

use axum::body::Body;
use axum::http::header::{CONTENT_TYPE, RETRY_AFTER};
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};
use worker_cuda::generate::service::{self, Stats};
use worker_cuda::scheduler::Refusal;

/// A request that was refused or has failed.
#[derive(Clone, Debug)]
pub struct ApiError {
    pub status: StatusCode,
    message: String,
    param: Option<String>,
    code: &'static str,
    retry_after: Option<Duration>,
}

impl ApiError {
    pub fn new(status: StatusCode, code: &'static str, message: impl Into<String>) -> Self {
        Self {
            status,
            message: message.into(),
            param: None,
            code,
            retry_after: None,
        }
    }

    /// A field has a value that is not allowed.
    pub fn invalid(param: impl Into<String>, message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "invalid_value", message).with_param(param)
    }

    /// A field asks for something that this server does not do.
    pub fn unsupported(param: impl Into<String>, message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "unsupported_value", message).with_param(param)
    }

    /// The body is no request at all.
    pub fn malformed(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "invalid_json", message)
    }

    pub fn too_large(message: impl Into<String>) -> Self {
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, "body_too_large", message)
    }

    pub fn internal(message: impl Into<String>) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "internal_error", message)
    }

    pub fn message(&self) -> &str {
        &self.message
    }

    pub fn param(&self) -> Option<&str> {
        self.param.as_deref()
    }

    pub fn code(&self) -> &'static str {
        self.code
    }

    pub fn with_param(mut self, param: impl Into<String>) -> Self {
        self.param = Some(param.into());
        self
    }

    /// The same error about a field that the client knows by another name.
    pub fn renamed(mut self, name: String) -> Self {
        if let Some(old) = self.param.replace(name.clone())
            && old != name
        {
            self.message = self.message.replacen(&old, &name, 1);
        }
        self
    }

    pub fn with_retry_after(mut self, wait: Duration) -> Self {
        self.retry_after = Some(wait);
        self
    }

    /// An error of the service, with the names of fields that chats have. `stats` say when to try again.
    pub fn from_service(error: &service::Error, stats: &Stats) -> Self {
        use service::Error as E;
        let message = error.to_string();
        match error {
            E::Invalid { field, message } => {
                let name = wire_name(field);
                Self::invalid(name, format!("{name}: {message}"))
            }
            E::Prompt(error) => Self::invalid("messages", format!("messages: {error}")),
            E::TooLong {
                prompt_tokens,
                max_tokens,
                limit,
            } => Self::too_long(*prompt_tokens, *max_tokens, *limit),
            E::Constraint(_) => Self::invalid("response_format", message),
            E::RuleTooSlow => Self::new(StatusCode::BAD_REQUEST, error.as_str(), message)
                .with_param("response_format"),
            E::NoTokenAllowed => {
                let message = "logit_bias leaves no token that may be sampled";
                Self::invalid("logit_bias", message)
            }
            E::Deadline => Self::new(StatusCode::GATEWAY_TIMEOUT, "deadline_exceeded", message),
            E::ReceiverBehind(_) => {
                Self::new(StatusCode::REQUEST_TIMEOUT, "receiver_behind", message)
            }
            E::QueueFull(Refusal::TenantQueueFull { .. }) => {
                Self::new(StatusCode::TOO_MANY_REQUESTS, "tenant_queue_full", message)
                    .with_retry_after(stats.retry_after())
            }
            E::EngineFault(_) | E::NotFinite => {
                Self::new(StatusCode::INTERNAL_SERVER_ERROR, error.as_str(), message)
            }
            _ => Self::new(StatusCode::SERVICE_UNAVAILABLE, error.as_str(), message)
                .with_retry_after(stats.retry_after()),
        }
    }

    /// The prompt does not fit, or there is too little room behind it.
    pub fn too_long(prompt_tokens: u32, max_tokens: u32, limit: u32) -> Self {
        let param = match prompt_tokens > limit {
            true => "messages",
            false => "max_completion_tokens",
        };
        Self::new(
            StatusCode::BAD_REQUEST,
            "context_length_exceeded",
            format!(
                "the maximum context length is {limit} tokens; the request has {prompt_tokens} \
                 tokens in the prompt and asks for {max_tokens} more"
            ),
        )
        .with_param(param)
    }

    /// The body: also what a stream sends if it fails late.
    pub fn to_json(&self) -> Value {
        let kind = match self.status.as_u16() {
            401 => "authentication_error",
            403 => "permission_error",
            404 => "not_found_error",
            429 => "rate_limit_error",
            400..=499 => "invalid_request_error",
            503 => "service_unavailable_error",
            _ => "server_error",
        };
        json!({ "error": {
            "message": self.message,
            "type": kind,
            "param": self.param,
            "code": self.code,
        }})
    }
}

impl ApiError {
    /// The body in the form of Anthropic's API.
    pub fn to_anthropic(&self) -> Value {
        let kind = match self.status.as_u16() {
            401 => "authentication_error",
            403 => "permission_error",
            404 => "not_found_error",
            413 => "request_too_large",
            429 => "rate_limit_error",
            400..=499 => "invalid_request_error",
            503 => "overloaded_error",
            504 => "timeout_error",
            _ => "api_error",
        };
        json!({ "type": "error", "error": { "type": kind, "message": self.message } })
    }

    /// The response to a request of that API, in place of the usual one.
    pub fn replace_body(&self, response: &mut Response) {
        *response.body_mut() = Body::from(self.to_anthropic().to_string());
    }
}

/// The name of a service's field in the requests of chats.
fn wire_name(field: &str) -> &str {
    match field {
        "prompt" => "messages",
        "choices" => "n",
        "max_tokens" => "max_completion_tokens",
        "ignore_end" => "ignore_eos",
        "stop_tokens" => "stop_token_ids",
        "bias" => "logit_bias",
        "constraint" => "response_format",
        "prompt_logprobs" => "logprobs",
        "deadline" => "deadline_ms",
        other => other,
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = Response::new(Body::from(self.to_json().to_string()));
        *response.status_mut() = self.status;
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        if let Some(wait) = self.retry_after {
            let seconds = wait.as_millis().div_ceil(1000).clamp(1, 120) as u64;
            headers.insert(RETRY_AFTER, HeaderValue::from(seconds));
        }
        // Paths with errors of another form write it again.
        response.extensions_mut().insert(self);
        response
    }
}
