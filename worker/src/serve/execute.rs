//! `/execute`, `/cancel` and `/shutdown`: the API of the older worker.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use axum::body::Body;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use serde_json::{Map, Value, json};
use worker_cuda::generate::service::{RequestCancel, Stop, Usage};
use worker_cuda::generate::{FinishReason, Prompt};

use super::app::{App, unix_seconds};
use super::error::ApiError;
use super::fields::Fields;
use super::generation::{Part, Parts, submit};
use super::input::{Input, ShortInput, check_unknown, with_ignored};
use super::keys::Caller;
use super::names::Names;
use super::parameters::Parameters;
use super::routes::json_response;
use super::sse::{Wire, stream, write_named};

pub const MAX_PROMPT_CHARS: usize = 32_768;
pub const MAX_TOKENS: u64 = 2048;
pub const MAX_STOPS: usize = 4;
const MAX_STOP_BYTES: usize = 100;
const MAX_JOB_ID_BYTES: usize = 256;

/// Paths with errors of this API's form.
pub const PATHS: [&str; 3] = ["/execute", "/cancel", "/shutdown"];

/// The jobs that run, by caller and `job_id`.
#[derive(Default)]
pub struct Jobs(Mutex<HashMap<JobKey, Arc<Job>>>);

/// The name of a caller, and an id that it has chosen.
type JobKey = (Arc<str>, String);

#[derive(Default)]
struct Job {
    is_cancelled: AtomicBool,
    canceller: OnceLock<RequestCancel>,
}

impl Jobs {
    fn lock(&self) -> MutexGuard<'_, HashMap<JobKey, Arc<Job>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn cancel(&self, key: &JobKey) {
        let job = self.lock().get(key).cloned();
        if let Some(job) = job {
            job.is_cancelled.store(true, SeqCst);
            job.canceller.get().inspect(|job| job.cancel());
        }
    }
}

/// A job in the list. Dropping it takes it out.
struct Listed {
    app: Arc<App>,
    key: JobKey,
    job: Arc<Job>,
}

impl Listed {
    /// None if a job of this caller has the id.
    fn new(app: &Arc<App>, caller: &Caller, id: &str) -> Option<Self> {
        let key = (Arc::clone(&caller.name), id.to_owned());
        let mut jobs = app.jobs.lock();
        if jobs.contains_key(&key) {
            return None;
        }
        let job = Arc::<Job>::default();
        jobs.insert(key.clone(), Arc::clone(&job));
        drop(jobs);
        let app = Arc::clone(app);
        Some(Self { app, key, job })
    }

    /// The service has accepted it; it may have been cancelled meanwhile.
    fn begin(&self, canceller: RequestCancel) {
        let canceller = self.job.canceller.get_or_init(|| canceller);
        if self.job.is_cancelled.load(SeqCst) {
            canceller.cancel();
        }
    }
}

impl Drop for Listed {
    fn drop(&mut self) {
        self.app.jobs.lock().remove(&self.key);
    }
}

/// `POST /execute`.
pub async fn execute(
    State(app): State<Arc<App>>,
    Input {
        visitor, fields, ..
    }: Input,
) -> Result<Response, ApiError> {
    let mut checks = Checks::new(fields);
    let chat = chat_fields(&mut checks, &app);
    let (job_id, prompt) = (checks.job_id(), checks.prompt());
    let listed = match checks.errors.is_empty() {
        true => Listed::new(&app, &visitor.caller, &job_id),
        false => None,
    };
    let Some(listed) = listed else {
        if checks.errors.is_empty() {
            let message = "a job with this id runs".to_owned();
            checks.fail("job_id", "unique", message, None);
        }
        let mut response = json_response(&json!({ "errors": checks.errors }));
        *response.status_mut() = StatusCode::BAD_REQUEST;
        return Ok(response);
    };
    let mut unknown = checks.fields.keys().cloned().collect();
    let mut fields = Fields::from_map(chat);
    let parameters = Parameters::read(&mut fields, &app, &visitor.caller, 1, &mut unknown)?;
    let ignored = check_unknown(&app, unknown)?;
    let names = Names::new(&[
        ("messages", "prompt"),
        ("max_completion_tokens", "max_tokens"),
    ]);
    let accepted = submit(&app, &visitor, parameters.request, Prompt::Text(prompt)).await;
    let accepted = accepted.map_err(|error| names.restore(error))?;
    listed.begin(accepted.canceller());
    let execution = Execution {
        app: Arc::clone(&app),
        job_id,
        listed: Some(listed),
        count: 0,
        begun: None,
        end: None,
    };
    let mut parts = Parts::new(1, true, None);
    // `started` is the first event of every job, and reports that it was accepted.
    parts.choices[0].started = true;
    let response = stream(&app, accepted, Box::new(execution), parts);
    Ok(with_ignored(response, ignored))
}

/// `POST /cancel`. A job that is not there has ended.
pub async fn cancel(
    State(app): State<Arc<App>>,
    ShortInput(visitor, fields): ShortInput,
) -> Result<Response, ApiError> {
    let mut checks = Checks::new(fields);
    let job_id = checks.job_id();
    let (status, body) = match checks.errors.is_empty() {
        true => {
            app.jobs.cancel(&(visitor.caller.name, job_id));
            (StatusCode::ACCEPTED, json!({ "status": "accepted" }))
        }
        false => (StatusCode::BAD_REQUEST, json!({ "errors": checks.errors })),
    };
    let mut response = json_response(&body);
    *response.status_mut() = status;
    Ok(response)
}

/// `POST /shutdown`: as a signal does.
pub async fn shutdown(State(app): State<Arc<App>>) -> Response {
    app.stop.send_modify(|count| *count += 1);
    let mut response = json_response(&json!({ "status": "draining" }));
    *response.status_mut() = StatusCode::ACCEPTED;
    response
}

/// The request as one for a completion.
fn chat_fields(checks: &mut Checks, app: &App) -> Map<String, Value> {
    let mut all = Map::new();
    all.insert("model".into(), app.model.id().into());
    let mut set = |name: &str, value: Value| all.insert(name.into(), value);
    set(
        "max_tokens",
        checks.integer("max_tokens", 1, MAX_TOKENS, None),
    );
    set(
        "top_k",
        checks.integer("top_k", 0, u32::MAX.into(), Some(0)),
    );
    if checks
        .fields
        .get("seed")
        .is_some_and(|seed| !seed.is_null())
    {
        set("seed", checks.integer("seed", 0, u64::MAX, None));
    }
    for (name, most, default) in [
        ("temperature", 2.0, 1.0),
        ("top_p", 1.0, 1.0),
        ("repetition_penalty", 2.0, 1.0),
        ("min_p", 1.0, 0.0),
    ] {
        let number = checks.number(name, most, default);
        // 0 is allowed here, and is no factor.
        let least = if name == "repetition_penalty" {
            0.01
        } else {
            0.0
        };
        set(name, number.max(least).into());
    }
    set("stop", checks.stop());
    all
}

/// Reads fields, and gathers all that is wrong with them.
struct Checks {
    fields: Map<String, Value>,
    errors: Vec<Value>,
}

impl Checks {
    fn new(fields: Fields) -> Self {
        Self {
            fields: fields.into_map(),
            errors: Vec::new(),
        }
    }

    fn fail(&mut self, field: &str, constraint: &str, message: String, value: Option<Value>) {
        let mut error = json!({ "field": field, "constraint": constraint, "message": message });
        if let Some(value) = value {
            error["value"] = value;
        }
        self.errors.push(error);
    }

    /// Null counts as absent. What is absent without a default, or cannot be read, becomes the type's default.
    fn take<T: Default>(
        &mut self,
        field: &str,
        constraint: &str,
        default: Option<T>,
        read: impl FnOnce(&Value) -> Option<T>,
    ) -> T {
        let value = self.fields.remove(field).filter(|value| !value.is_null());
        let found = value.as_ref().map(read);
        match (found, default) {
            (Some(Some(found)), _) => return found,
            (Some(None), _) => {
                // Texts may be long.
                let shown = value.filter(Value::is_number);
                let message = format!("{field} must be {constraint}");
                self.fail(field, constraint, message, shown);
            }
            (None, Some(default)) => return default,
            (None, None) => self.fail(field, "required", format!("{field} is required"), None),
        }
        T::default()
    }

    fn job_id(&mut self) -> String {
        let constraint = format!("a string of 1 to {MAX_JOB_ID_BYTES} bytes");
        self.take("job_id", &constraint, None, |value| {
            let text = value.as_str()?;
            (1..=MAX_JOB_ID_BYTES)
                .contains(&text.len())
                .then(|| text.to_owned())
        })
    }

    fn prompt(&mut self) -> String {
        let constraint = format!("a string of 1 to {MAX_PROMPT_CHARS} characters");
        self.take("prompt", &constraint, None, |value| {
            let text = value.as_str()?;
            let is_short = text.chars().nth(MAX_PROMPT_CHARS).is_none();
            (!text.is_empty() && is_short).then(|| text.to_owned())
        })
    }

    fn integer(&mut self, field: &str, low: u64, high: u64, default: Option<u64>) -> Value {
        let constraint = format!("an integer from {low} to {high}");
        let read = |value: &Value| {
            value
                .as_u64()
                .filter(|number| (low..=high).contains(number))
        };
        let number = self.take(field, &constraint, default, read);
        number.max(low).into()
    }

    fn number(&mut self, field: &str, high: f64, default: f64) -> f64 {
        let constraint = format!("a number from 0 to {high}");
        let read = |value: &Value| {
            value
                .as_f64()
                .filter(|number| (0.0..=high).contains(number))
        };
        self.take(field, &constraint, Some(default), read)
    }

    fn stop(&mut self) -> Value {
        let constraint = format!("up to {MAX_STOPS} strings of 1 to {MAX_STOP_BYTES} bytes");
        let read = |value: &Value| {
            let list = value.as_array()?;
            let is_good = |text: &Value| {
                let bytes = text.as_str().map_or(0, str::len);
                (1..=MAX_STOP_BYTES).contains(&bytes)
            };
            let are_good = list.len() <= MAX_STOPS && list.iter().all(is_good);
            are_good.then(|| list.clone())
        };
        self.take("stop", &constraint, Some(Vec::new()), read)
            .into()
    }
}

/// Writes the events of a job: started, token…, metrics, and end or error.
struct Execution {
    app: Arc<App>,
    job_id: String,
    /// Until its last event: a client that has it may use the id again.
    listed: Option<Listed>,
    /// Tokens so far.
    count: u32,
    /// When the first token came.
    begun: Option<Instant>,
    end: Option<(FinishReason, Option<Stop>)>,
}

impl Execution {
    fn token(&mut self, text: &str, out: &mut Vec<u8>) {
        self.begun.get_or_insert_with(Instant::now);
        write_named("token", json!({ "t": text, "i": self.count }), out);
        self.count += 1;
    }
}

impl Wire for Execution {
    fn whole(&mut self, _: &[Part], _: &Usage, _: u32) -> Vec<u8> {
        unreachable!("a job is always a stream")
    }

    fn open(&mut self, _: usize, out: &mut Vec<u8>) {
        let started = json!({
            "job_id": self.job_id,
            "model": self.app.model.id(),
            "started_at": timestamp(unix_seconds()),
        });
        write_named("started", started, out);
    }

    fn part(&mut self, _: usize, part: &Part, out: &mut Vec<u8>) {
        let mut rest = part.text.as_str();
        for token in &part.tokens {
            self.token(&token.text, out);
            rest = rest.strip_prefix(token.text.as_str()).unwrap_or(rest);
        }
        // Text that was held back because it might have become a stop string.
        if !rest.is_empty() {
            self.token(rest, out);
        }
        self.end.clone_from(&part.end);
    }

    fn end(&mut self, usage: &Usage, _: u32, out: &mut Vec<u8>) {
        self.listed = None;
        let (reason, stop) = match self.end.take() {
            Some((FinishReason::Cancelled, _)) | None => {
                return write_error("CANCELLED", "the job was cancelled", out);
            }
            Some((reason, stop)) => (reason, stop),
        };
        let time = self.begun.map_or(Duration::ZERO, |begun| begun.elapsed());
        let memory = self.app.model.memory.as_ref();
        let bytes = memory.map(|report| report().iter().map(|(_, bytes)| bytes).sum::<u64>());
        let rate = f64::from(usage.completion_tokens) / time.as_secs_f64().max(1e-6);
        let metrics = json!({ "tokens_per_sec": rate, "vram_bytes": bytes });
        write_named("metrics", metrics, out);
        let mut end = json!({
            "tokens_out": usage.completion_tokens,
            "decode_time_ms": time.as_millis() as u64,
            "stop_reason": match reason {
                FinishReason::Length | FinishReason::ContextFull => "MAX_TOKENS",
                FinishReason::Stop => "STOP_SEQUENCE",
                _ => "EOS",
            },
        });
        if let Some(Stop::Text(text)) = stop {
            end["stop_sequence_matched"] = text.into();
        }
        write_named("end", end, out);
    }

    fn error(&mut self, error: &ApiError, out: &mut Vec<u8>) {
        self.listed = None;
        let code = match error.status {
            StatusCode::GATEWAY_TIMEOUT | StatusCode::REQUEST_TIMEOUT => "TIMEOUT",
            status if status.is_client_error() => "INVALID_REQUEST",
            _ if error.code() == "queue_timeout" => "TIMEOUT",
            _ => "INFERENCE_FAILED",
        };
        write_error(code, error.message(), out);
    }
}

fn write_error(code: &str, message: &str, out: &mut Vec<u8>) {
    let error = json!({ "code": code, "message": message });
    write_named("error", error, out);
}

/// The body of an error before a job has begun.
pub fn replace_body(error: &ApiError, response: &mut Response) {
    let body = match error.status {
        StatusCode::BAD_REQUEST => {
            let field = error.param().unwrap_or("prompt");
            let constraint = error.code();
            json!({ "errors": [{ "field": field, "constraint": constraint, "message": error.message() }] })
        }
        status => {
            let code = match (status, error.code()) {
                (StatusCode::SERVICE_UNAVAILABLE, "queue_full") => "INSUFFICIENT_VRAM",
                (StatusCode::GATEWAY_TIMEOUT, _) => "INFERENCE_TIMEOUT",
                (StatusCode::INTERNAL_SERVER_ERROR, "engine_fault") => "CUDA_ERROR",
                (StatusCode::INTERNAL_SERVER_ERROR, _) => "INTERNAL",
                (StatusCode::SERVICE_UNAVAILABLE | StatusCode::TOO_MANY_REQUESTS, _) => {
                    "UNAVAILABLE"
                }
                _ => "INVALID_REQUEST",
            };
            let retriable = [408, 429, 503].contains(&status.as_u16());
            json!({ "code": code, "message": error.message(), "retriable": retriable })
        }
    };
    *response.body_mut() = Body::from(body.to_string());
}

/// "2026-11-23T04:05:06Z".
fn timestamp(unix_seconds: u64) -> String {
    let (days, seconds) = (unix_seconds / 86_400, unix_seconds % 86_400);
    let (year, month, day) = date(days);
    let (hour, minute, second) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

/// Year, month and day of a day since 1970. Years begin with March here, so that the leap day is the last.
fn date(days: u64) -> (u64, u64, u64) {
    let days = days + 719_468;
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let leap_days = day_of_era / 1460 + day_of_era / 146_096 - day_of_era / 36_524;
    let year_of_era = (day_of_era - leap_days) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted + 2) / 5 + 1;
    let month = if shifted < 10 {
        shifted + 3
    } else {
        shifted - 9
    };
    (era * 400 + year_of_era + u64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use worker_cuda::generate::Service;
    use worker_cuda::generate::service::{EngineLimits, ScriptedEngine};

    use super::*;
    use crate::serve::app::Common;
    use crate::serve::{Metrics, Options, ServedModel};

    #[test]
    fn an_id_is_free_when_the_last_event_is_written() {
        let engine = ScriptedEngine::new(EngineLimits::new(4, 4), |_, _| Vec::new());
        let service = Service::start(engine, None, Default::default()).expect("it starts");
        let model = ServedModel::new("scripted");
        let metrics = Arc::<Metrics>::default();
        let common = Arc::new(Common::new(Options::default(), metrics));
        let app = Arc::new(App::new(service, model, common));
        let list = || Listed::new(&app, &Caller::default(), "job-1");
        let execution = |listed| Execution {
            app: Arc::clone(&app),
            job_id: "job-1".into(),
            listed,
            count: 0,
            begun: None,
            end: None,
        };
        let listed = list();
        assert!(listed.is_some() && list().is_none());
        let mut ended = execution(listed);
        ended.end(&Usage::default(), 0, &mut Vec::new());
        let listed = list();
        assert!(listed.is_some());
        let mut failed = execution(listed);
        failed.error(&ApiError::internal("on purpose"), &mut Vec::new());
        assert!(list().is_some());
    }

    #[test]
    fn times_are_written_as_dates() {
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_399, "2000-02-28T23:59:59Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (1_709_251_199, "2024-02-29T23:59:59Z"),
            (1_795_406_706, "2026-11-23T04:05:06Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
        ] {
            assert_eq!(timestamp(seconds), text);
        }
    }
}
