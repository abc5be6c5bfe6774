//! A server on a scripted engine, and a client that sends exactly what a test wants.
#![allow(dead_code)] // each test file uses what it needs

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::ops::Deref;
use std::sync::Arc;
use std::thread::JoinHandle;

use serde_json::Value;
use worker_cuda::generate::Service;
use worker_cuda::generate::service::{self, EngineLimits, Observer, ScriptControl, ScriptedEngine};
use worker_cuda::text::{
    ChatTemplate, DecodeOptions, NamedTemplate, TokenType, Tokenizer, Vocabulary,
};
use worker_orcd::serve::{Address, Ended, Metrics, Options, ServedModel, Server, StopHandle};

pub const UNKNOWN: u32 = 0;
pub const END: u32 = 2;
const CHARACTERS: &str =
    "abcdefghijklmnopqrstuvwxyz0123456789 .,:;!?<>{}[]\"_/'()|\nABCDEFGHIJKLMNOPQRSTUVWXYZ-";
const TEMPLATE: &str = "{% for m in messages %}{{ m.role }}:{{ m.content }};{% endfor %}\
                        {% if add_generation_prompt %}assistant:{% endif %}";

/// One token for each character; 0 is unknown, 1 begins and 2 ends a text.
pub fn vocabulary() -> Vocabulary {
    let mut tokens: Vec<String> = ["<unk>", "<s>", "</s>"].map(String::from).to_vec();
    tokens.extend(
        CHARACTERS
            .chars()
            .map(|c| if c == ' ' { '▁' } else { c }.to_string()),
    );
    let mut types = vec![TokenType::Unknown, TokenType::Control, TokenType::Control];
    types.resize(tokens.len(), TokenType::Normal);
    Vocabulary {
        model: "llama".into(),
        scores: vec![0.0; tokens.len()],
        tokens,
        token_types: types,
        bos_id: Some(1),
        eos_id: Some(END),
        unk_id: Some(UNKNOWN),
        add_bos: Some(false),
        add_space_prefix: Some(false),
        chat_templates: vec![NamedTemplate {
            name: String::new(),
            source: TEMPLATE.into(),
        }],
        ..Vocabulary::default()
    }
}

/// The token of a character.
pub fn token(character: char) -> u32 {
    3 + CHARACTERS
        .chars()
        .position(|c| c == character)
        .expect("is in the vocabulary") as u32
}

/// What the engine answers to a prompt: the words after the last "say ", then the end of the text; for
/// "seed" the last digit of the seed; for "on" it does not end.
fn answer(prompt: &str, seed: u64) -> String {
    let asked = prompt
        .rsplit_once("say ")
        .map_or("nothing", |(_, words)| words);
    let words = asked.split(';').next().unwrap_or_default();
    match words {
        "seed" => (seed % 10).to_string(),
        words => words.to_owned(),
    }
}

pub fn engine(tokenizer: &Arc<Tokenizer>, limits: EngineLimits) -> ScriptedEngine {
    let tokenizer = Arc::clone(tokenizer);
    ScriptedEngine::new(limits, move |prompt, seed| {
        let prompt = tokenizer
            .decode(prompt, DecodeOptions::default())
            .expect("known tokens");
        let text = answer(&prompt, seed);
        let mut tokens: Vec<u32> = text.chars().map(token).collect();
        if text != "on" {
            tokens.push(END);
        }
        tokens
    })
}

/// How a test's server is set up.
pub struct Setup {
    pub options: Options,
    pub service: service::Options,
    pub limits: EngineLimits,
    pub address: Address,
    pub model: ServedModel,
    /// The chat template.
    pub template: &'static str,
    pub vocabulary: Vocabulary,
}

impl Default for Setup {
    fn default() -> Self {
        let mut limits = EngineLimits::new(64, vocabulary().tokens.len() as u32);
        limits.max_sequence_tokens = 1024;
        let mut model = ServedModel::new("scripted");
        model.names.push("alias".into());
        model.fingerprint = "fp_test".into();
        Self {
            model,
            options: Options::default(),
            service: service::Options::default(),
            limits,
            address: Address::Tcp(([127, 0, 0, 1], 0).into()),
            template: TEMPLATE,
            vocabulary: vocabulary(),
        }
    }
}

impl Setup {
    /// Room for answers that take long.
    pub fn endless(&mut self) {
        self.limits.page_count = 1 << 14;
        self.limits.max_sequence_tokens = 1 << 20;
    }
}

/// A running server.
pub struct Running {
    pub service: Service,
    pub url: String,
    stop: StopHandle,
    thread: Option<JoinHandle<Ended>>,
}

/// A running server of a scripted engine.
pub struct Served {
    pub control: ScriptControl,
    running: Running,
}

impl Deref for Served {
    type Target = Running;

    fn deref(&self) -> &Running {
        &self.running
    }
}

impl Served {
    pub fn start() -> Self {
        Self::with(|_| ())
    }

    pub fn with(change: impl FnOnce(&mut Setup)) -> Self {
        let mut setup = Setup::default();
        change(&mut setup);
        setup.limits.vocabulary_size = setup.vocabulary.tokens.len() as u32;
        let tokenizer = Tokenizer::from_vocabulary(setup.vocabulary).expect("a vocabulary");
        let tokenizer = Arc::new(tokenizer);
        let engine = engine(&tokenizer, setup.limits);
        let control = engine.control();
        let metrics = Arc::new(Metrics::default());
        setup.service.observer = Some(Arc::clone(&metrics) as Arc<dyn Observer>);
        let template = Arc::new(ChatTemplate::new(setup.template).expect("a template"));
        setup.service.chat_template = Some(Arc::clone(&template));
        let service =
            Service::start(engine, Some(tokenizer), setup.service).expect("the service starts");
        setup.model.template = Some(template);
        Self {
            control,
            running: Running::start(&setup.address, service, setup.model, setup.options, metrics),
        }
    }

    /// Waits until it has ended.
    pub fn ended(mut self) -> Ended {
        self.running.join()
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.control.release();
    }
}

impl Running {
    pub fn start(
        address: &Address,
        service: Service,
        model: ServedModel,
        options: Options,
        metrics: Arc<Metrics>,
    ) -> Self {
        let server = Server::bind(address, service.clone(), model, options, metrics);
        let server = server.expect("an address");
        Self {
            service,
            url: server.url().expect("an address"),
            stop: server.stop_handle(),
            thread: Some(std::thread::spawn(move || server.run().expect("it serves"))),
        }
    }

    /// On a free port of loopback.
    pub fn of(service: Service, model: ServedModel) -> Self {
        let address = Address::Tcp(([127, 0, 0, 1], 0).into());
        Self::start(&address, service, model, Options::default(), Arc::default())
    }

    fn join(&mut self) -> Ended {
        let thread = self.thread.take().expect("is running");
        thread.join().expect("no panic")
    }

    pub fn stop(&self) {
        self.stop.stop();
    }

    /// Waits until it has ended.
    pub fn ended(mut self) -> Ended {
        self.join()
    }

    fn address(&self) -> SocketAddr {
        let (_, address) = self.url.split_once("://").expect("is TCP");
        address.parse().expect("an address")
    }

    pub fn connect(&self) -> TcpStream {
        TcpStream::connect(self.address()).expect("it listens")
    }

    /// Sends bytes as they are, and reads until the server closes.
    pub fn raw(&self, bytes: &[u8]) -> Reply {
        let mut stream = self.connect();
        // The server may refuse before it has read all.
        let _ = stream.write_all(bytes);
        Reply::read(stream)
    }

    pub fn request(&self, head: &str, headers: &[(&str, &str)], body: &str) -> Reply {
        self.raw(request(head, headers, body).as_bytes())
    }

    pub fn get(&self, path: &str) -> Reply {
        self.request(&format!("GET {path}"), &[], "")
    }

    pub fn post(&self, path: &str, body: &Value) -> Reply {
        self.request(&format!("POST {path}"), &[], &body.to_string())
    }

    /// Begins a request and returns without reading the answer.
    pub fn begin(&self, path: &str, body: &Value) -> TcpStream {
        let mut stream = self.connect();
        let request = request(&format!("POST {path}"), &[], &body.to_string());
        stream.write_all(request.as_bytes()).expect("it reads");
        stream
    }

    /// Waits until so many requests run.
    pub fn wait_for_running(&self, count: u32) {
        while self.service.stats().running != count {
            std::thread::yield_now();
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop.stop();
        self.stop.stop();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
            && !std::thread::panicking()
        {
            panic!("the server has panicked");
        }
    }
}

pub fn request(head: &str, headers: &[(&str, &str)], body: &str) -> String {
    let mut text = format!("{head} HTTP/1.1\r\n");
    for (name, value) in [("host", "localhost"), ("connection", "close")] {
        if !headers.iter().any(|(given, _)| *given == name) {
            text += &format!("{name}: {value}\r\n");
        }
    }
    for (name, value) in headers {
        text += &format!("{name}: {value}\r\n");
    }
    format!("{text}content-length: {}\r\n\r\n{body}", body.len())
}

/// A whole answer.
#[derive(Debug)]
pub struct Reply {
    pub status: u16,
    pub headers: HashMap<String, String>,
    pub body: String,
}

impl Reply {
    /// Reads an answer up to the end of the connection. Status 0: there was none.
    pub fn read(stream: impl Read) -> Self {
        let mut input = BufReader::new(stream);
        let mut reply = Self::read_head(&mut input);
        let mut bytes = Vec::new();
        let _ = input.read_to_end(&mut bytes);
        if reply
            .headers
            .get("transfer-encoding")
            .is_some_and(|coding| coding == "chunked")
        {
            bytes = unchunked(&bytes);
        }
        reply.body = String::from_utf8(bytes).expect("UTF-8");
        reply
    }

    pub fn read_head(input: &mut impl BufRead) -> Self {
        let mut lines = Vec::new();
        loop {
            let mut line = String::new();
            if input.read_line(&mut line).unwrap_or(0) == 0 || line == "\r\n" {
                break;
            }
            lines.push(line);
        }
        let status = lines
            .first()
            .and_then(|line| line.split(' ').nth(1)?.parse().ok());
        let headers = lines
            .iter()
            .skip(1)
            .filter_map(|line| line.trim_end().split_once(": "));
        Self {
            status: status.unwrap_or(0),
            headers: headers
                .map(|(name, value)| (name.to_owned(), value.to_owned()))
                .collect(),
            body: String::new(),
        }
    }

    #[track_caller]
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.body))
    }

    /// The body of a successful answer.
    #[track_caller]
    pub fn ok(&self) -> Value {
        assert_eq!(self.status, 200, "{}", self.body);
        self.json()
    }

    /// The data of a stream's events, without the comments.
    #[track_caller]
    pub fn events(&self) -> Vec<String> {
        assert_eq!(self.status, 200, "{}", self.body);
        assert_eq!(
            self.headers["content-type"],
            "text/event-stream; charset=utf-8"
        );
        let events = self
            .body
            .split("\n\n")
            .filter(|event| !event.is_empty() && *event != ":");
        let data = events.map(|event| event.strip_prefix("data: ").expect("is data").to_owned());
        data.collect()
    }

    /// Asserts an error of OpenAI's shape.
    #[track_caller]
    pub fn assert_error(&self, status: u16, code: &str, param: Option<&str>) -> String {
        assert_eq!(self.status, status, "{}", self.body);
        let error = &self.json()["error"];
        assert_eq!(error["code"], code, "{error}");
        assert_eq!(error["param"].as_str(), param, "{error}");
        assert!(error["type"].is_string(), "{error}");
        error["message"].as_str().expect("a message").to_owned()
    }
}

/// The contents of chunks; what is cut off is left out.
fn unchunked(mut bytes: &[u8]) -> Vec<u8> {
    let mut whole = Vec::new();
    while let Some(end) = bytes.windows(2).position(|pair| pair == b"\r\n") {
        let size = std::str::from_utf8(&bytes[..end]).expect("a number");
        let size = usize::from_str_radix(size, 16).expect("a number");
        let Some(chunk) = bytes.get(end + 2..end + 2 + size) else {
            break;
        };
        whole.extend(chunk);
        bytes = bytes.get(end + 2 + size + 2..).unwrap_or_default();
    }
    whole
}
