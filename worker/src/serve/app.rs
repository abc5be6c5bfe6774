//! What all requests of a server share.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use axum::http::StatusCode;
use serde_json::Value;
use tokio::sync::watch;
use worker_cuda::generate::service::State;
use worker_cuda::generate::{Prompt, Service};
use worker_cuda::text::{ChatTemplate, Tokenizer};

use super::error::ApiError;
use super::execute::Jobs;
use super::keys::Keys;
use super::log::RequestLog;
use super::metrics::Metrics;
use super::parameters::SamplingDefaults;
use super::room::Bodies;
use super::rules::Rules;
use super::split::Format;

/// The model that a server offers.
#[derive(Clone, Default)]
pub struct ServedModel {
    /// The names that requests may use, at least one; the first is the one in answers.
    pub names: Vec<String>,
    /// How its weights are stored: "Q4_K_M" for example.
    pub quantization: Option<String>,
    /// Identifies file, version and backend: `system_fingerprint` of answers.
    pub fingerprint: String,
    /// How to sample where a request does not say.
    pub sampling: SamplingDefaults,
    /// The chat template, for `/apply-template`.
    pub template: Option<Arc<ChatTemplate>>,
    /// Device memory by purpose, in bytes.
    pub memory: Option<Arc<MemoryReport>>,
    /// Checks that all of it is on the device.
    pub residency: Option<Arc<ResidencyCheck>>,
    /// The device, for `/health`.
    pub device: DeviceReport,
}

/// What `/health` reports of a device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeviceReport {
    /// Compute capability, major and minor: 90 for example.
    pub sm: Option<u32>,
    /// "13.0" for example.
    pub cuda_runtime_version: Option<String>,
}

/// Returns why memory is not where it has to be.
pub type ResidencyCheck = dyn Fn() -> Result<(), String> + Send + Sync;

/// Returns purposes and bytes of device memory.
pub type MemoryReport = dyn Fn() -> Vec<(&'static str, u64)> + Send + Sync;

impl ServedModel {
    /// A model of that name, with defaults for the rest.
    pub fn new(name: impl Into<String>) -> Self {
        Self {
            names: vec![name.into()],
            ..Self::default()
        }
    }

    pub(super) fn id(&self) -> &str {
        self.names.first().map_or("model", String::as_str)
    }

    /// Whether a request may use this name.
    pub(super) fn find(&self, name: &str) -> Result<(), ApiError> {
        if self.names.iter().any(|known| known == name) {
            return Ok(());
        }
        let message = format!(
            "the model '{name}' does not exist; this server has '{}'",
            self.id()
        );
        Err(ApiError::new(StatusCode::NOT_FOUND, "model_not_found", message).with_param("model"))
    }
}

/// Limits of a server and its rules. The defaults are those that are named.
#[non_exhaustive]
pub struct Options {
    /// Who may use it: everybody.
    pub keys: Keys,
    /// Names that a `Host` header may have besides those of this machine's loopback addresses; `*`: any.
    pub allowed_hosts: Vec<String>,
    /// Whether unknown fields are errors: no.
    pub strict: bool,
    /// Most tokens of an answer; None: until the context is full.
    pub max_output_tokens: Option<u32>,
    /// Most connections at once: 4,096.
    pub max_connections: usize,
    /// Most bytes of a body: 8 MiB.
    pub max_body_bytes: usize,
    /// Most bytes of memory that all requests take which are read or not yet answered, without the first 64 KiB of
    /// each: 256 MiB. One request takes at most half, and so does a tenant of what others leave.
    pub max_bodies_bytes: usize,
    /// Longest time for the headers of a request: 10 s.
    pub header_timeout: Duration,
    /// Longest time for its body: 30 s.
    pub body_timeout: Duration,
    /// Longest time that a client may take no byte: 30 s.
    pub write_timeout: Duration,
    /// Time after which a silent stream sends a comment: 10 s.
    pub heartbeat: Duration,
    /// Time without a step, with work waiting, after which the engine counts as hung: 60 s.
    pub hang_timeout: Duration,
    /// Time that running requests have after a signal to end: 30 s.
    pub drain_timeout: Duration,
    /// Names this worker in `/health`. Whoever manages it has no key: where none is required, a server with a name
    /// can be ended by `/shutdown`.
    pub worker_id: Option<String>,
    /// How often it is checked that memory is on the device: 60 s.
    pub residency_period: Duration,
    /// Longest time to compile the rule of an answer: 2 s.
    pub rule_timeout: Duration,
    /// Takes one line a request: nobody.
    pub log: Option<Arc<RequestLog>>,
    /// Whether these lines have the texts of prompts and answers: no.
    pub log_texts: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            keys: Keys::default(),
            allowed_hosts: Vec::new(),
            strict: false,
            max_output_tokens: None,
            max_connections: 4096,
            max_body_bytes: 8 << 20,
            max_bodies_bytes: 256 << 20,
            header_timeout: Duration::from_secs(10),
            body_timeout: Duration::from_secs(30),
            write_timeout: Duration::from_secs(30),
            heartbeat: Duration::from_secs(10),
            hang_timeout: Duration::from_secs(60),
            drain_timeout: Duration::from_secs(30),
            worker_id: None,
            residency_period: Duration::from_secs(60),
            rule_timeout: Duration::from_secs(2),
            log: None,
            log_texts: false,
        }
    }
}

/// State of a server.
pub struct App {
    pub service: Service,
    pub model: ServedModel,
    pub options: Options,
    pub metrics: Arc<Metrics>,
    /// Of this process: salts of cached prompts, ids, seeds.
    pub secret: [u8; 32],
    /// Bytes of the longest token.
    longest_token: usize,
    /// How the model calls tools.
    pub format: Format,
    /// Jobs of `/execute`.
    pub jobs: Jobs,
    /// Counts the signals to end.
    pub stop: watch::Sender<u32>,
    /// Whether the last check found all memory on the device.
    pub is_resident: AtomicBool,
    /// Compiles what answers must be.
    pub rules: Rules,
    /// Whether a signal has come.
    pub draining: AtomicBool,
    pub started: Instant,
    pub created: u64,
    /// The memory of the requests that are read or not yet answered.
    pub bodies: Arc<Bodies>,
    count: AtomicU64,
}

impl App {
    pub fn new(
        service: Service,
        model: ServedModel,
        options: Options,
        metrics: Arc<Metrics>,
    ) -> Self {
        let vocabulary = 0..service.limits().vocabulary_size;
        let bytes = service.tokenizer().map(|tokenizer| {
            let length = |id| tokenizer.token_bytes(id).map_or(0, |bytes| bytes.len());
            vocabulary.map(length).max().unwrap_or(0)
        });
        let longest_token = bytes.unwrap_or(0).max(1);
        let is_shared = options.keys.tenant_count() > 1;
        let bodies = Arc::new(Bodies::new(options.max_bodies_bytes, is_shared));
        let source = model.template.as_ref().map(|template| template.source());
        let format = Format::of_template(source.unwrap_or_default());
        let tokenizer = service.tokenizer().cloned();
        Self {
            rules: Rules::new(tokenizer, service.limits().vocabulary_size),
            service,
            model,
            options,
            metrics,
            secret: secret(),
            format,
            longest_token,
            jobs: Jobs::default(),
            stop: watch::Sender::new(0),
            is_resident: AtomicBool::new(true),
            draining: AtomicBool::new(false),
            started: Instant::now(),
            created: unix_seconds(),
            bodies,
            count: AtomicU64::new(0),
        }
    }

    /// A number that no other request of this process has, and that nobody can predict.
    fn next_number(&self) -> u64 {
        let count = self.count.fetch_add(1, Ordering::Relaxed);
        let digest = blake3::keyed_hash(&self.secret, &count.to_le_bytes());
        let mut bytes = [0; 8];
        bytes.copy_from_slice(&digest.as_bytes()[..8]);
        u64::from_le_bytes(bytes)
    }

    pub fn next_seed(&self) -> u64 {
        self.next_number()
    }

    /// An id of an answer.
    pub fn next_id(&self, prefix: &str) -> String {
        format!("{prefix}{:016x}", self.next_number())
    }

    pub fn tokenizer(&self) -> Result<&Arc<Tokenizer>, ApiError> {
        self.service.tokenizer().ok_or_else(|| {
            ApiError::new(
                StatusCode::NOT_IMPLEMENTED,
                "no_tokenizer",
                "this server has no tokenizer",
            )
        })
    }

    /// Refuses texts that cannot fit, however few tokens they become, before they are tokenized.
    pub fn check_text(&self, prompt: &Prompt) -> Result<(), ApiError> {
        let bytes = match prompt {
            Prompt::Text(text) => text.len(),
            Prompt::Chat(input) => {
                let contents = input.messages.iter();
                let length = |message: &Value| message["content"].as_str().map_or(0, str::len);
                contents.map(length).sum()
            }
            _ => 0,
        };
        self.check_bytes(bytes)
    }

    /// The same for so many bytes of text.
    pub fn check_bytes(&self, bytes: usize) -> Result<(), ApiError> {
        let least = bytes.div_ceil(self.longest_token);
        match least > self.max_context() as usize {
            true => Err(ApiError::too_long(least as u32, 1, self.max_context())),
            false => Ok(()),
        }
    }

    /// The same for tokens.
    pub fn check_count(&self, field: &str, count: usize) -> Result<(), ApiError> {
        let most = self.max_context();
        if count <= most as usize {
            return Ok(());
        }
        let message = format!("{field} has {count} tokens, at most {most} are accepted");
        Err(ApiError::invalid(field, message))
    }

    /// Positions of the longest sequence that can be computed.
    pub fn max_context(&self) -> u32 {
        let limits = self.service.limits();
        let all = limits.page_count.saturating_mul(limits.page_tokens);
        limits.max_sequence_tokens.min(all)
    }

    /// "ready", "draining", "stopped", "lost", or "failed" if memory is not on the device.
    pub fn state(&self) -> &'static str {
        match self.service.state() {
            State::Ready if !self.is_resident.load(Ordering::Relaxed) => "failed",
            State::Ready if self.draining.load(Ordering::Relaxed) => "draining",
            State::Ready => "ready",
            State::Draining => "draining",
            State::Lost => "lost",
            _ => "stopped",
        }
    }
}

pub fn unix_seconds() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.unwrap_or_default().as_secs()
}

/// 32 random bytes of the operating system.
fn secret() -> [u8; 32] {
    let mut bytes = [0; 32];
    if getrandom::fill(&mut bytes).is_err() {
        // Keys of hash maps are random too, and always there.
        for (index, word) in bytes.chunks_exact_mut(8).enumerate() {
            word.copy_from_slice(&RandomState::new().hash_one(index).to_le_bytes());
        }
    }
    bytes
}
