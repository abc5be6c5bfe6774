//! What all requests of a server share.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use axum::http::StatusCode;
use serde_json::{Value, json};
use tokio::sync::watch;
use worker_cuda::Token;
use worker_cuda::generate::service::{Pooling, State, Stats};
use worker_cuda::generate::{CancelFlag, Prompt, Service};
use worker_cuda::text::{ChatTemplate, Tokenizer};

use super::error::ApiError;
use super::execute::Jobs;
use super::keys::Keys;
use super::log::RequestLog;
use super::metrics::Metrics;
use super::models::{Loadable, Models};
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
    /// How embeddings are made of tokens; None: there are none.
    pub pooling: Option<Pooling>,
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
    /// All of its memory, whoever uses it.
    pub total_bytes: Option<u64>,
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
    /// Longest time in which the rest of the body of a refused request is read and dropped, up to 32 MiB: 1 s.
    pub linger_timeout: Duration,
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
    /// Models that admins can load besides the one that the server begins with: none.
    pub loadable: Vec<Loadable>,
    /// Certificate and key for connections over TCP: none.
    #[cfg(feature = "tls")]
    pub tls: Option<super::tls::Tls>,
    /// Takes one line a request: nobody.
    pub log: Option<Arc<RequestLog>>,
    /// Whether these lines have the texts of prompts and answers: no.
    pub log_texts: bool,
}

impl Options {
    /// Whether connections over TCP are encrypted.
    #[cfg(feature = "tls")]
    pub(super) fn has_tls(&self) -> bool {
        self.tls.is_some()
    }

    #[cfg(not(feature = "tls"))]
    pub(super) fn has_tls(&self) -> bool {
        false
    }
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
            linger_timeout: Duration::from_secs(1),
            write_timeout: Duration::from_secs(30),
            heartbeat: Duration::from_secs(10),
            hang_timeout: Duration::from_secs(60),
            drain_timeout: Duration::from_secs(30),
            worker_id: None,
            residency_period: Duration::from_secs(60),
            rule_timeout: Duration::from_secs(2),
            loadable: Vec::new(),
            #[cfg(feature = "tls")]
            tls: None,
            log: None,
            log_texts: false,
        }
    }
}

/// A model that is loaded, and what it shares with the other models of the server.
pub struct App {
    pub service: Service,
    pub model: ServedModel,
    /// Bytes of the longest token.
    longest_token: usize,
    /// How the model calls tools.
    pub format: Format,
    /// Compiles what answers must be.
    pub rules: Rules,
    pub common: Arc<Common>,
}

/// What all models of a server share.
pub struct Common {
    pub options: Options,
    pub metrics: Arc<Metrics>,
    /// Of this process: salts of cached prompts, ids, seeds.
    pub secret: [u8; 32],
    /// Jobs of `/execute`.
    pub jobs: Jobs,
    /// Counts the signals to end.
    pub stop: watch::Sender<u32>,
    /// Whether the last check found all memory on the device.
    pub is_resident: AtomicBool,
    /// Whether a signal has come.
    pub draining: AtomicBool,
    pub started: Instant,
    pub created: u64,
    /// The memory of the requests that are read or not yet answered.
    pub bodies: Arc<Bodies>,
    /// Models besides the first one.
    pub models: Models,
    /// Counts of models that were unloaded.
    unloaded: Mutex<Stats>,
    count: AtomicU64,
}

impl Deref for App {
    type Target = Common;

    fn deref(&self) -> &Common {
        &self.common
    }
}

impl Common {
    pub fn new(mut options: Options, metrics: Arc<Metrics>) -> Self {
        let is_shared = options.keys.tenant_count() > 1;
        let bodies = Arc::new(Bodies::new(options.max_bodies_bytes, is_shared));
        Self {
            models: Models::new(std::mem::take(&mut options.loadable)),
            options,
            metrics,
            secret: secret(),
            jobs: Jobs::default(),
            stop: watch::Sender::new(0),
            is_resident: AtomicBool::new(true),
            draining: AtomicBool::new(false),
            started: Instant::now(),
            created: unix_seconds(),
            bodies,
            unloaded: Mutex::default(),
            count: AtomicU64::new(0),
        }
    }
}

impl App {
    pub fn new(service: Service, model: ServedModel, common: Arc<Common>) -> Self {
        let vocabulary = 0..service.limits().vocabulary_size;
        let bytes = service.tokenizer().map(|tokenizer| {
            let length = |id| tokenizer.token_bytes(id).map_or(0, |bytes| bytes.len());
            vocabulary.map(length).max().unwrap_or(0)
        });
        let longest_token = bytes.unwrap_or(0).max(1);
        let source = model.template.as_ref().map(|template| template.source());
        let format = Format::of_template(source.unwrap_or_default());
        let rules = Rules::new(
            service.tokenizer(),
            service.limits().vocabulary_size,
            common.options.keys.tenant_count() > 1,
        );
        Self {
            rules,
            service,
            model,
            format,
            longest_token,
            common,
        }
    }

    /// The model that a request names; without a name, and for one that the server does not have, the first model.
    pub fn named(self: &Arc<Self>, name: Option<&str>) -> Result<Arc<Self>, ApiError> {
        let other = name.filter(|name| self.model.find(name).is_err());
        let found = other.and_then(|name| self.models.find(name));
        found.unwrap_or_else(|| Ok(Arc::clone(self)))
    }

    /// This model and the others that are loaded.
    pub fn all(self: &Arc<Self>) -> Vec<Arc<Self>> {
        let mut all = vec![Arc::clone(self)];
        all.extend(self.models.loaded());
        all
    }

    /// The names that requests may use.
    pub fn names(&self) -> Vec<String> {
        let all = self.model.names.iter().chain(self.models.names());
        all.cloned().collect()
    }

    /// The counts of all models together, with those that were unloaded.
    pub fn stats(&self) -> Stats {
        // Held, so that the counts of a model that is unloaded meanwhile are counted once.
        let unloaded = self.unloaded.lock().unwrap_or_else(PoisonError::into_inner);
        let mut total = self.service.stats();
        for stats in self.models.loaded().iter().map(|app| app.service.stats()) {
            total.running += stats.running;
            total.waiting += stats.waiting;
            total.free_pages += stats.free_pages;
            total.cached_pages += stats.cached_pages;
            total.held_pages += stats.held_pages;
            add_counters(&mut total, &stats);
        }
        add_counters(&mut total, &unloaded);
        total
    }

    /// Keeps the counts of a model that is unloaded, in place of the model.
    pub fn keep_counts(&self, other: &Self) {
        let mut unloaded = self.unloaded.lock().unwrap_or_else(PoisonError::into_inner);
        self.models.forget(other);
        add_counters(&mut unloaded, &other.service.stats());
    }

    /// The entry of `/v1/models`.
    pub fn describe(&self) -> Value {
        json!({
            "id": self.model.id(),
            "object": "model",
            "created": self.created,
            "owned_by": "worker-orcd",
            "max_model_len": self.max_context(),
            "quantization": self.model.quantization,
            "state": self.state(),
        })
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

    /// The tokens of a prompt.
    pub fn encode(&self, prompt: &Prompt) -> Result<Vec<Token>, ApiError> {
        self.encode_cancellable(prompt, &CancelFlag::default())
    }

    /// The same with a flag that stops the rendering of a template.
    pub fn encode_cancellable(
        &self,
        prompt: &Prompt,
        cancel: &CancelFlag,
    ) -> Result<Vec<Token>, ApiError> {
        self.check_text(prompt)?;
        let encoded = self.service.encode(prompt, cancel);
        encoded.map_err(|error| ApiError::from_service(&error, &self.service.stats()))
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

/// Adds what only grows.
fn add_counters(total: &mut Stats, more: &Stats) {
    total.accepted += more.accepted;
    total.rejected += more.rejected;
    total.preempted += more.preempted;
    total.engine_faults += more.engine_faults;
    total.steps += more.steps;
    total.prompt_tokens += more.prompt_tokens;
    total.cached_tokens += more.cached_tokens;
    total.generated_tokens += more.generated_tokens;
    total.draft_tokens += more.draft_tokens;
    total.accepted_draft_tokens += more.accepted_draft_tokens;
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
