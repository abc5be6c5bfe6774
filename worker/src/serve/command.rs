//! The command `serve`: its options, the model, and how the process ends.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::net::{IpAddr, SocketAddr};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread;
use std::time::Duration;

use clap::builder::NonEmptyStringValueParser;
use serde_json::json;
use worker_cuda::generate::service::{self, Drafting, ModelEngine, Pooling};
use worker_cuda::generate::{ModelDraft, Service};
use worker_cuda::log::{Level, set_sink};
use worker_cuda::text::{ChatTemplate, NamedTemplate, Tokenizer, Vocabulary};
use worker_cuda::{
    Backend, ContextInfo, CudaContext, EngineOptions, Gguf, Model, Plan, Progress, Purpose,
};

use super::app::{DeviceReport, MemoryReport, Options, ServedModel};
use super::keys::Keys;
use super::log::{RequestLog, line_writer, warning};
use super::metrics::Metrics;
use super::models::{LoadModel, Loadable};
use super::open_files::raise_limit;
use super::parameters::{MAX_PENALTY_TOKENS, SamplingDefaults};
use super::server::{Address, Ended, Server, check_address};
#[cfg(feature = "tls")]
use super::tls::Tls;
use crate::client::{self, Url};
use crate::failure::{Failure, Outcome};
use crate::inspect::format_name;
#[cfg(feature = "tls")]
use crate::interrupt::Hangup;
use crate::options::{DeviceArgs, DraftArgs, KvChoice};
use crate::{interrupt, load};

#[derive(Clone, clap::Args)]
pub struct Args {
    /// The GGUF file
    #[arg(value_name = "MODEL")]
    model: Option<PathBuf>,
    /// The GGUF file
    #[arg(long = "model", value_name = "FILE", hide = true)]
    model_file: Option<PathBuf>,
    /// The name of this worker in /health and in the callback
    #[arg(long, value_name = "ID")]
    worker_id: Option<String>,
    /// Send worker_id, vram_bytes and uri there by POST when requests are accepted
    #[arg(long, value_name = "URL", value_parser = Url::parse)]
    callback_url: Option<Url>,
    /// A TOML file with values for these options: `max-queued = 100`. Flags come first, then the environment
    /// (WORKER_MAX_QUEUED), then the file
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// IP address to listen on; one that other machines can reach requires --api-key-file
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1")]
    host: IpAddr,
    /// TCP port; 0: any free one
    #[arg(long, value_name = "N", default_value_t = 8080)]
    port: u16,
    /// Listen on a Unix socket with mode 0600 instead
    #[arg(long, value_name = "PATH", conflicts_with_all = ["host", "port"])]
    unix: Option<PathBuf>,
    /// A file with one API key a line: KEY [role=R] [tenant=NAME] [priority=N]
    /// [concurrency=N]. The variable WORKER_API_KEYS can have such lines instead
    #[arg(long, value_name = "FILE")]
    api_key_file: Option<PathBuf>,
    /// Encrypt connections: a file with the chain of certificates (PEM). SIGHUP reads it and the key again
    #[cfg(feature = "tls")]
    #[arg(
        long,
        value_name = "FILE",
        requires = "tls_key",
        conflicts_with = "unix"
    )]
    tls_certificate: Option<PathBuf>,
    /// A file with the private key of the certificate (PEM)
    #[cfg(feature = "tls")]
    #[arg(long, value_name = "FILE", requires = "tls_certificate")]
    tls_key: Option<PathBuf>,
    /// A name that the Host header may have; * allows all [default: addresses and localhost]
    #[arg(long, value_name = "NAME", value_delimiter = ',', value_parser = NonEmptyStringValueParser::new())]
    allowed_host: Vec<String>,
    /// Another name of the model in requests; the first one is used in answers
    #[arg(long, value_name = "NAME", value_delimiter = ',', value_parser = NonEmptyStringValueParser::new())]
    alias: Vec<String>,
    /// Another GGUF file that an admin can load while the server runs; its name in requests is NAME or the file's
    #[arg(long, value_name = "[NAME=]FILE", value_delimiter = ',')]
    loadable: Vec<String>,
    /// A file with a chat template to use instead of the model's
    #[arg(long, value_name = "FILE")]
    chat_template: Option<PathBuf>,
    /// How embeddings are made of tokens [default: as the file states]
    #[arg(long, value_enum)]
    pooling: Option<PoolingChoice>,
    /// Answers generated at once [default: 256, on the CPU 64]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=4096))]
    max_sequences: Option<u32>,
    /// Answers that may wait
    #[arg(long, value_name = "N", default_value_t = 1024,
          value_parser = clap::value_parser!(u32).range(1..))]
    max_queued: u32,
    /// Most tokens of an answer [default: until the context is full]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    max_output_tokens: Option<u32>,
    /// Longest time between two tokens of an answer, for which prompts are computed in smaller parts [default: none]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=60_000))]
    itl_target_ms: Option<u64>,
    /// Seconds that running requests have to end after SIGTERM
    #[arg(long, value_name = "N", default_value_t = 30,
          value_parser = clap::value_parser!(u64).range(0..=86_400))]
    drain_seconds: u64,
    /// What to write to stderr: one line of JSON a request, without or with the texts, or nothing
    #[arg(long, value_enum, default_value_t = LogChoice::Requests)]
    log: LogChoice,
    /// Refuse requests with unknown fields
    #[arg(long)]
    strict: bool,
    /// Maximum length of a sequence [default: the model's training context]
    #[arg(long, value_name = "TOKENS", value_parser = clap::value_parser!(u32).range(1..))]
    context: Option<u32>,
    /// Tokens that the KV cache holds [default: 90 % of the free device memory, on the CPU 2 GiB]
    #[arg(long, value_name = "TOKENS", value_parser = clap::value_parser!(u64).range(64..))]
    kv_tokens: Option<u64>,
    /// Type of the KV cache
    #[arg(long, value_enum, default_value_t = KvChoice::F16)]
    kv_type: KvChoice,
    /// Maximum number of tokens per step [default: 2048, on the CPU 256]
    #[arg(long, value_name = "TOKENS", value_parser = clap::value_parser!(u32).range(1..))]
    batch: Option<u32>,
    /// Compute each request as if it were alone; slower
    #[arg(long)]
    batch_invariant: bool,
    #[command(flatten)]
    draft: DraftArgs,
    #[command(flatten)]
    device: DeviceArgs,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum LogChoice {
    Off,
    Requests,
    Texts,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum PoolingChoice {
    /// The mean of all tokens
    Mean,
    /// The first token
    First,
    /// The last token
    Last,
}

/// Keys in place of a file.
const KEYS_VARIABLE: &str = "WORKER_API_KEYS";

/// Longest time for the callback: name, connection and answer.
const CALLBACK_TIMEOUT: Duration = Duration::from_secs(10);

/// Answers that may have all their drafts in the same step. With more of them at once, drafts are seldom worth it, and
/// each takes memory for logits.
const DRAFTING_ROWS: u32 = 16;

/// Exit status when the device is lost.
const LOST: u8 = 3;
/// Exit status when requests were cut short at the end.
const CUT: u8 = 4;

pub fn run(args: &Args) -> Outcome {
    let path = args
        .model_file
        .as_deref()
        .or(args.model.as_deref())
        .ok_or_else(|| {
            let places = "an argument, WORKER_MODEL, or `model` in the configuration file";
            Failure::usage(format!("the model is missing: {places}"))
        })?;
    #[cfg(feature = "tls")]
    let hangup = args.tls_certificate.is_some().then(Hangup::block);
    #[cfg(feature = "tls")]
    let hangup = hangup.transpose()?;
    let mut options = options(args)?;
    let address = match &args.unix {
        Some(path) => Address::Unix(path.clone()),
        None => Address::Tcp((args.host, args.port).into()),
    };
    check_address(&address, &options).map_err(Failure::usage)?;
    #[cfg(feature = "tls")]
    if let (Some(hangup), Some(tls)) = (hangup, &options.tls) {
        hangup.each(reload(tls.clone(), options.log.clone()));
    }
    interrupt::install()?;
    let shortage = raise_limit(options.max_connections);
    if let Some(log) = &options.log {
        log_warnings(Arc::clone(log))?;
        shortage.inspect(|message| log(&warning("warning", "serve", message)));
    }
    let gguf = load::gguf(path)?;
    let template = template(args, &gguf)?;
    let model = load::model(&args.device, &gguf).map_err(|failure| failure.in_file(path))?;
    let metrics = Arc::new(Metrics::default());
    let tenants = options.keys.tenant_count();
    let start = Start {
        args: args.clone(),
        metrics: Arc::clone(&metrics),
        reserves_queue: tenants > 1,
    };
    // The draft model takes its memory first; the model's KV cache gets what is left.
    let drafting = args.draft.drafting(&model, args.kv_type.into())?;
    let head = args.draft.head(&model)?;
    let service = start.service(&model, template.clone(), drafting, head.as_ref());
    let service = service.map_err(|failure| failure.in_file(path))?;
    let served = served(args, names(args, path), path, &model, template)?;
    options.loadable = loadables(&start, &served.names, &model)?;
    let memory = served.memory.clone();
    let server = Server::bind(&address, service, served, options, metrics)
        .map_err(|error| Failure::new(format!("cannot listen on {}: {error}", name(&address))))?;
    interrupt::watch_server(server.stop_handle());
    let url = server.url().map_err(failed)?;
    // Nobody has to read it.
    let mut out = io::stdout();
    let _ = writeln!(out, "listening on {url}").and_then(|()| out.flush());
    let refused = Arc::new(Mutex::new(None));
    if let Some(callback) = args.callback_url.clone() {
        let (id, stop) = (args.worker_id.clone(), server.stop_handle());
        let announce = move || announce(&callback, id.as_deref(), &url, memory.as_deref());
        let refused = Arc::clone(&refused);
        // Whoever is called may ask this server before it answers.
        thread::spawn(move || {
            if let Err(failure) = within(CALLBACK_TIMEOUT, announce) {
                *refused.lock().unwrap_or_else(PoisonError::into_inner) = Some(failure);
                stop.stop();
            }
        });
    }
    let ended = server.run().map_err(failed)?;
    let mut refused = refused.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(failure) = refused.take() {
        return Err(failure);
    }
    outcome(ended)
}

fn outcome(ended: Ended) -> Outcome {
    match ended {
        Ended::Drained => Ok(()),
        Ended::Cut(count) => {
            let message = match count {
                1 => "1 request had not ended in time and was cut short".to_owned(),
                _ => format!("{count} requests had not ended in time and were cut short"),
            };
            Err(Failure::with_status(message, CUT))
        }
        Ended::Lost => Err(Failure::with_status("the device is lost", LOST)),
    }
}

/// How services are started.
#[derive(Clone)]
struct Start {
    args: Args,
    metrics: Arc<Metrics>,
    reserves_queue: bool,
}

impl Start {
    fn service(
        &self,
        model: &Model,
        template: Option<Arc<ChatTemplate>>,
        drafting: Option<Drafting>,
        head: Option<&Model>,
    ) -> Outcome<Service> {
        let mut options = service::Options::default();
        options.max_queued = self.args.max_queued;
        options.reserves_queue = self.reserves_queue;
        options.itl_target = self.args.itl_target_ms.map(Duration::from_millis);
        options.drafting = drafting;
        options.chat_template = template;
        options.observer = Some(Arc::clone(&self.metrics) as Arc<dyn service::Observer>);
        let engine_options = engine_options(&self.args, model, head)?;
        let start = move || {
            let mut engine = ModelEngine::new(model, &engine_options)?;
            if let Some(head) = head {
                let kv_type = self.args.kv_type.into();
                let draft = engine.draft_head(&ModelDraft::serving_options(head, kv_type)?)?;
                options.drafting = Some(self.args.draft.drafting_by(draft));
            }
            let tokenizer = Tokenizer::from_gguf(model.gguf())?;
            Service::start(engine, Some(Arc::new(tokenizer)), options)
        };
        Ok(start().map_err(|error| error.with_context(load::device_name(model.context())))?)
    }
}

/// What `work` returns, or a failure if it takes longer; it continues then, and its result is dropped.
fn within(most: Duration, work: impl FnOnce() -> Outcome + Send + 'static) -> Outcome {
    let (sender, answer) = mpsc::channel();
    thread::spawn(move || sender.send(work()));
    answer.recv_timeout(most).unwrap_or_else(|_| {
        let seconds = most.as_secs();
        let message = format!("the callback was not answered within {seconds} s");
        Err(Failure::new(message))
    })
}

/// Reports to whoever has started this worker that it accepts requests.
fn announce(
    callback: &Url,
    worker_id: Option<&str>,
    url: &str,
    memory: Option<&MemoryReport>,
) -> Outcome {
    let failed = |error: io::Error| Failure::new(format!("the callback: {error}"));
    let url = reachable(url, callback).map_err(failed)?;
    let bytes: Option<u64> = memory.map(|report| report().iter().map(|(_, bytes)| bytes).sum());
    let body = json!({ "worker_id": worker_id, "vram_bytes": bytes, "uri": url }).to_string();
    let reply = client::send("POST", callback, None, &body, CALLBACK_TIMEOUT).map_err(failed)?;
    match reply.status {
        200..300 => Ok(()),
        status => Err(Failure::new(format!(
            "the callback was answered with status {status}"
        ))),
    }
}

/// The address in `url`. If it stands for all addresses of this machine: the one from which `other` is reached.
fn reachable(url: &str, other: &Url) -> io::Result<String> {
    let parts = url.split_once("://");
    let address =
        parts.and_then(|(scheme, address)| Some((scheme, address.parse::<SocketAddr>().ok()?)));
    match address {
        Some((scheme, address)) if address.ip().is_unspecified() => {
            let address = SocketAddr::new(other.route()?, address.port());
            Ok(format!("{scheme}://{address}"))
        }
        _ => Ok(url.to_owned()),
    }
}

fn failed(error: io::Error) -> Failure {
    Failure::new(format!("the server: {error}"))
}

fn name(address: &Address) -> String {
    match address {
        Address::Tcp(address) => address.to_string(),
        Address::Unix(path) => path.display().to_string(),
    }
}

fn options(args: &Args) -> Outcome<Options> {
    let keys = match (&args.api_key_file, std::env::var_os(KEYS_VARIABLE)) {
        (Some(file), _) => Keys::read(file)?,
        (None, Some(lines)) => Keys::of_lines(&lines.to_string_lossy())
            .map_err(|message| Failure::new(format!("{KEYS_VARIABLE}: {message}")))?,
        (None, None) => Keys::default(),
    };
    let log = (args.log != LogChoice::Off).then(|| line_writer(io::stderr()));
    Ok(Options {
        #[cfg(feature = "tls")]
        tls: match (&args.tls_certificate, &args.tls_key) {
            (Some(certificate), Some(key)) => {
                Some(Tls::read(certificate, key).map_err(Failure::new)?)
            }
            _ => None,
        },
        keys,
        worker_id: args.worker_id.clone(),
        log,
        log_texts: args.log == LogChoice::Texts,
        allowed_hosts: args.allowed_host.clone(),
        strict: args.strict,
        max_output_tokens: args.max_output_tokens,
        drain_timeout: Duration::from_secs(args.drain_seconds),
        ..Options::default()
    })
}

/// The names of the first model.
fn names(args: &Args, path: &Path) -> Vec<String> {
    let stem = path.file_stem();
    let stem = stem.map(|stem| stem.to_string_lossy().into_owned());
    args.alias.iter().cloned().chain(stem).collect()
}

/// The files of `--loadable`. No two models have the same name.
fn loadables(start: &Start, taken: &[String], first: &Model) -> Outcome<Vec<Loadable>> {
    let mut taken = taken.to_vec();
    let mut list = Vec::new();
    for text in &start.args.loadable {
        let named = text.split_once('=').filter(|(name, _)| !name.contains('/'));
        let path = PathBuf::from(named.map_or(text.as_str(), |(_, path)| path));
        let name = match (named, path.file_stem()) {
            (Some((name, _)), _) if !name.is_empty() => name.to_owned(),
            (None, Some(stem)) => stem.to_string_lossy().into_owned(),
            _ => return Err(Failure::usage(format!("--loadable: '{text}' has no name"))),
        };
        if taken.contains(&name) {
            let message = format!("--loadable: another model has the name '{name}'");
            return Err(Failure::usage(message));
        }
        let file = LoadableFile {
            path,
            name: name.clone(),
            start: start.clone(),
            context: first.context().clone(),
            limits: engine_options(&start.args, first, None)?,
        };
        list.push(Loadable::new(vec![name.clone()], Arc::new(file)));
        taken.push(name);
    }
    Ok(list)
}

/// A file that is loaded on request, to the device of the first model.
struct LoadableFile {
    path: PathBuf,
    name: String,
    start: Start,
    context: CudaContext,
    /// Those of the first model's engine.
    limits: EngineOptions,
}

impl LoadableFile {
    fn load(&self, progress: &mut dyn FnMut(u64, u64) -> bool) -> Outcome<(Service, ServedModel)> {
        let gguf = load::gguf(&self.path)?;
        let template = model_template(&gguf)?;
        let progress = |bytes: Progress| match progress(bytes.done_bytes, bytes.total_bytes) {
            true => ControlFlow::Continue(()),
            false => ControlFlow::Break(()),
        };
        let model = Model::builder(&self.context, &gguf);
        let model = model.progress(progress).load()?;
        // The draft model and the draft head are of the first model.
        let drafting = self.start.args.draft.ngram_drafting();
        let service = self
            .start
            .service(&model, template.clone(), drafting, None)?;
        let names = vec![self.name.clone()];
        let served = served(&self.start.args, names, &self.path, &model, template)?;
        Ok((service, served))
    }

    fn plan(&self) -> Outcome<Plan> {
        // The least cache, unless its size is given: by default it takes what is left.
        let kv_tokens = self.start.args.kv_tokens.unwrap_or(1);
        let limits = self.limits.clone().kv_tokens(kv_tokens);
        Ok(self.context.plan(&load::gguf(&self.path)?, &limits)?)
    }
}

impl LoadModel for LoadableFile {
    fn check_room(&self) -> Result<(), String> {
        // A file that cannot be read is an error of loading.
        let Some(plan) = self.plan().ok().filter(|plan| !plan.fits) else {
            return Ok(());
        };
        Err(format!(
            "there is no room for '{}': weights {}, KV cache {}, scratch {}, while loading {} more bytes; {} bytes are \
             available",
            self.name,
            plan.weights_bytes,
            plan.kv_bytes,
            plan.scratch_bytes,
            plan.loading_bytes,
            plan.available_bytes
        ))
    }

    fn load(
        &self,
        progress: &mut dyn FnMut(u64, u64) -> bool,
    ) -> Result<(Service, ServedModel), String> {
        self.load(progress).map_err(|failure| failure.to_string())
    }
}

/// What the library warns of becomes lines of the log.
fn log_warnings(log: Arc<RequestLog>) -> Outcome {
    set_sink(Level::Warn, move |level, part, message| {
        let level = if level == Level::Error {
            "error"
        } else {
            "warning"
        };
        log(&warning(level, part, message));
    })?;
    Ok(())
}

/// Reads certificate and key again; a failure is a line of the log.
#[cfg(feature = "tls")]
fn reload(tls: Tls, log: Option<Arc<RequestLog>>) -> impl Fn() + Send + 'static {
    move || {
        if let (Err(message), Some(log)) = (tls.reload(), &log) {
            log(&warning("error", "tls", &message));
        }
    }
}

/// The template that is named, or the model's. A model's template that is missing or broken is an error only
/// when it is used.
fn template(args: &Args, gguf: &Gguf) -> Outcome<Option<Arc<ChatTemplate>>> {
    let Some(path) = &args.chat_template else {
        return model_template(gguf);
    };
    let mut vocabulary = Vocabulary::from_gguf(gguf)?;
    let source = std::fs::read_to_string(path).map_err(|error| Failure::file(path, &error))?;
    vocabulary.chat_templates = vec![NamedTemplate {
        name: String::new(),
        source,
    }];
    let template = ChatTemplate::from_vocabulary(&vocabulary, None)
        .map_err(|error| error.with_context(path.display().to_string()))?;
    Ok(Some(Arc::new(template)))
}

fn model_template(gguf: &Gguf) -> Outcome<Option<Arc<ChatTemplate>>> {
    let vocabulary = Vocabulary::from_gguf(gguf)?;
    let template = ChatTemplate::from_vocabulary(&vocabulary, None);
    Ok(template.ok().map(Arc::new))
}

fn engine_options(args: &Args, model: &Model, head: Option<&Model>) -> Outcome<EngineOptions> {
    let mut options = EngineOptions::new().kv_type(args.kv_type.into());
    if let Some(head) = head {
        options = options.draft_head(head);
    }
    let mut options =
        ModelEngine::serving_options_with(model, options)?.batch_invariant(args.batch_invariant);
    if let Some(count) = args.max_sequences {
        options = options.max_sequences(count);
    }
    let rows = args.max_sequences.unwrap_or(u32::MAX).min(DRAFTING_ROWS);
    options = options.max_draft_tokens(rows * args.draft.max_tokens());
    if let Some(tokens) = args.batch {
        options = options.max_batch_tokens(tokens);
    }
    if let Some(tokens) = args.context {
        options = options.max_sequence_tokens(tokens);
    }
    if let Some(tokens) = args.kv_tokens {
        options = options.kv_tokens(tokens);
    }
    Ok(options)
}

fn served(
    args: &Args,
    names: Vec<String>,
    path: &Path,
    model: &Model,
    template: Option<Arc<ChatTemplate>>,
) -> Outcome<ServedModel> {
    let gguf = model.gguf();
    let context = model.context().clone();
    let residency = {
        let context = context.clone();
        move || {
            context
                .check_residency()
                .map(drop)
                .map_err(|error| error.to_string())
        }
    };
    let device = device(&context.info()?)?;
    let memory = move || {
        let purposes = [
            ("weights", Purpose::Weights),
            ("kv", Purpose::Kv),
            ("scratch", Purpose::Scratch),
            ("module", Purpose::Module),
            ("user", Purpose::User),
        ];
        let bytes = |purpose| {
            context
                .memory(purpose)
                .map_or(0, |memory| memory.current_bytes)
        };
        purposes
            .map(|(name, purpose)| (name, bytes(purpose)))
            .to_vec()
    };
    Ok(ServedModel {
        names,
        quantization: quantization(gguf)?,
        fingerprint: fingerprint(path, model)?,
        sampling: sampling(gguf)?,
        pooling: pooling(args, gguf)?,
        template,
        memory: Some(Arc::new(memory)),
        residency: Some(Arc::new(residency)),
        device,
    })
}

fn device(info: &ContextInfo) -> Outcome<DeviceReport> {
    let devices = worker_cuda::devices(info.backend)?;
    let caps = devices.iter().find(|caps| caps.ordinal == info.ordinal);
    Ok(caps.map_or_else(DeviceReport::default, |caps| {
        let (major, minor) = caps.compute_capability;
        let version = caps.runtime_version;
        let is_cuda = info.backend == Backend::Cuda;
        let version = is_cuda.then(|| format!("{}.{}", version / 1000, version % 1000 / 10));
        DeviceReport {
            sm: u32::try_from(10 * major + minor).ok().filter(|_| is_cuda),
            cuda_runtime_version: version,
            total_bytes: Some(caps.total_memory),
        }
    }))
}

/// The format that most bytes of the tensors have.
fn quantization(gguf: &Gguf) -> Outcome<Option<String>> {
    let mut formats: BTreeMap<String, u64> = BTreeMap::new();
    for tensor in gguf.tensors() {
        let tensor = tensor?;
        *formats.entry(format_name(tensor.type_id)).or_default() += tensor.bytes;
    }
    let most = formats.into_iter().max_by_key(|(_, bytes)| *bytes);
    Ok(most.map(|(name, _)| name))
}

/// Of the file, the version and the backend.
fn fingerprint(path: &Path, model: &Model) -> Outcome<String> {
    let metadata = path
        .metadata()
        .map_err(|error| Failure::file(path, &error))?;
    let text = format!(
        "{} {:?} {} {:?} {}",
        env!("CARGO_PKG_VERSION"),
        worker_cuda::version(),
        model.context().info()?.backend,
        metadata.modified().ok(),
        metadata.len()
    );
    let digest = blake3::hash(text.as_bytes()).to_hex();
    Ok(format!("fp_{}", &digest[..12]))
}

/// How embeddings are made: by the flag, else by the file. The other numbers that a file may have are those of no
/// pooling and of models that rank texts.
fn pooling(args: &Args, gguf: &Gguf) -> Outcome<Option<Pooling>> {
    let architecture = gguf.str("general.architecture")?.unwrap_or("");
    let of_file = gguf.u32(&format!("{architecture}.pooling_type"))?;
    Ok(match (args.pooling, of_file) {
        (Some(PoolingChoice::Mean), _) | (None, Some(1)) => Some(Pooling::Mean),
        (Some(PoolingChoice::First), _) | (None, Some(2)) => Some(Pooling::First),
        (Some(PoolingChoice::Last), _) | (None, Some(3)) => Some(Pooling::Last),
        (None, _) => None,
    })
}

fn sampling(gguf: &Gguf) -> Outcome<SamplingDefaults> {
    let none = SamplingDefaults::default();
    let number = |key: &str| gguf.f32(&format!("general.sampling.{key}"));
    // Writers of files store signed numbers; below 0 is no limit.
    let count = |key: &str| -> Outcome<Option<i64>> {
        let value = gguf.value(&format!("general.sampling.{key}"))?;
        Ok(value.and_then(|value| value.as_i64()))
    };
    let last_n = count("penalty_last_n")?.filter(|last| *last > 0);
    Ok(SamplingDefaults {
        temperature: number("temp")?.unwrap_or(none.temperature),
        top_p: number("top_p")?.unwrap_or(none.top_p),
        top_k: count("top_k")?.map_or(none.top_k, |k| u32::try_from(k).unwrap_or(0)),
        min_p: number("min_p")?.unwrap_or(none.min_p),
        repetition_penalty: number("penalty_repeat")?.unwrap_or(none.repetition_penalty),
        penalty_last_n: last_n.map_or(none.penalty_last_n, |last| {
            last.min(MAX_PENALTY_TOKENS as i64) as u32
        }),
    })
}

#[cfg(test)]
mod tests {
    use std::process::ExitCode;

    use super::*;

    #[test]
    fn a_callback_has_one_deadline_for_everything() {
        let (sender, never) = mpsc::channel::<()>();
        let late = within(Duration::from_millis(1), move || {
            let _ = never.recv();
            Ok(())
        });
        drop(sender);
        let message = late.expect_err("it is late").to_string();
        assert!(message.contains("not answered"), "{message}");
        within(Duration::MAX, || Ok(())).expect("in time");
    }

    /// A file with entries of four bytes: key, type and value.
    fn file(entries: &[(&str, u32, [u8; 4])]) -> Gguf {
        let mut bytes = b"GGUF\x03\0\0\0".to_vec();
        bytes.extend([0u64, entries.len() as u64].map(u64::to_le_bytes).concat());
        for (key, kind, value) in entries {
            bytes.extend((key.len() as u64).to_le_bytes());
            bytes.extend(key.as_bytes());
            bytes.extend(kind.to_le_bytes());
            bytes.extend(value);
        }
        Gguf::from_bytes(bytes).expect("a file")
    }

    #[test]
    fn a_file_has_defaults_of_sampling() {
        const SIGNED: u32 = 5;
        const FLOAT: u32 = 6;
        let none = sampling(&file(&[])).expect("defaults");
        assert_eq!(none, SamplingDefaults::default());
        let all = sampling(&file(&[
            ("general.sampling.temp", FLOAT, 0.5f32.to_le_bytes()),
            ("general.sampling.top_p", FLOAT, 0.75f32.to_le_bytes()),
            ("general.sampling.min_p", FLOAT, 0.25f32.to_le_bytes()),
            ("general.sampling.top_k", SIGNED, 40i32.to_le_bytes()),
            (
                "general.sampling.penalty_repeat",
                FLOAT,
                1.5f32.to_le_bytes(),
            ),
            (
                "general.sampling.penalty_last_n",
                SIGNED,
                64i32.to_le_bytes(),
            ),
        ]));
        let wanted = SamplingDefaults {
            temperature: 0.5,
            top_p: 0.75,
            top_k: 40,
            min_p: 0.25,
            repetition_penalty: 1.5,
            penalty_last_n: 64,
        };
        assert_eq!(all.expect("defaults"), wanted);
        let unlimited = sampling(&file(&[
            ("general.sampling.top_k", SIGNED, (-1i32).to_le_bytes()),
            (
                "general.sampling.penalty_last_n",
                SIGNED,
                (-1i32).to_le_bytes(),
            ),
        ]));
        assert_eq!(unlimited.expect("defaults"), none);
    }

    #[test]
    fn each_end_has_its_status() {
        outcome(Ended::Drained).expect("0");
        for (ended, status, message) in [
            (Ended::Lost, 3, "the device is lost"),
            (Ended::Cut(1), 4, "1 request had not ended"),
            (Ended::Cut(2), 4, "2 requests had not ended"),
        ] {
            let failure = outcome(ended).expect_err(message);
            assert!(failure.to_string().starts_with(message), "{failure}");
            let codes = [failure.exit_code(), ExitCode::from(status)];
            assert_eq!(format!("{:?}", codes[0]), format!("{:?}", codes[1]));
        }
    }

    #[test]
    fn an_address_of_all_becomes_one_that_can_be_reached() {
        let manager = Url::parse("http://127.0.0.1:9").expect("a URL");
        for (url, reachable_url) in [
            ("http://0.0.0.0:8080", "http://127.0.0.1:8080"),
            ("https://[::]:8080", "https://127.0.0.1:8080"),
            ("http://127.0.0.2:8080", "http://127.0.0.2:8080"),
            ("unix:/run/worker", "unix:/run/worker"),
        ] {
            assert_eq!(reachable(url, &manager).expect("a route"), reachable_url);
        }
    }
}
