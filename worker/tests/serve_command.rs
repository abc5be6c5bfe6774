//! `worker-orcd serve`: how it starts and ends, and a chat with a real model.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use serde_json::{Value, json};
use socket2::SockRef;

use http::{Reply, request};
use real_model::real_model;
use small_model::{LENGTH, file_that_answers, head_of_answers, model_that_answers, row, write};
use support::{assert_fails, run, worker};

#[path = "support/http.rs"]
mod http;
#[path = "../../tests/support/real_model.rs"]
mod real_model;
#[path = "support/small_model.rs"]
mod small_model;
mod support;

/// Starts a server. Returns it and its address, when it listens.
fn listen(command: &mut Command) -> (Child, String) {
    let child = command.stdout(Stdio::piped()).spawn();
    let mut child = child.expect("the worker starts");
    let mut line = String::new();
    let output = child.stdout.take().expect("is piped");
    BufReader::new(output).read_line(&mut line).expect("UTF-8");
    let url = line.trim_end().strip_prefix("listening on ").expect(&line);
    (child, url.to_owned())
}

fn first_log_line(child: &mut Child) -> Value {
    let mut line = String::new();
    let log = child.stderr.take().expect("is piped");
    BufReader::new(log).read_line(&mut line).expect("UTF-8");
    serde_json::from_str(&line).expect("JSON")
}

#[test]
fn wrong_usage_exits_with_2() {
    let open = run(&["serve", "model.gguf", "--host", "0.0.0.0", "--port", "0"]);
    assert_fails(
        &open,
        2,
        "0.0.0.0:0 can be reached from other machines, which requires --api-key-file",
    );
    let both = run(&["serve", "model.gguf", "--unix", "/x", "--port", "1"]);
    assert_eq!(both.status.code(), Some(2));
    for flag in ["--alias", "--allowed-host"] {
        let unnamed = run(&["serve", "/nowhere/model.gguf", flag, "a,"]);
        assert_fails(&unnamed, 2, flag);
    }
}

#[test]
fn a_start_that_fails_exits_with_1() {
    assert_fails(
        &run(&["serve", "/nowhere/model.gguf"]),
        1,
        "/nowhere/model.gguf",
    );
    let keys = Path::new(env!("CARGO_TARGET_TMPDIR")).join("serve.keys");
    std::fs::write(&keys, "# none\n").expect("a temporary file");
    let keys = keys.to_str().expect("UTF-8");
    let none = run(&["serve", "model.gguf", "--api-key-file", keys]);
    assert_fails(&none, 1, "has no key");
    let model = model_that_answers("no-room.gguf", "a", None);
    // The file is named once, and the flags by their names.
    let bytes = std::fs::read(&model).expect("a file");
    let cut = Path::new(env!("CARGO_TARGET_TMPDIR")).join("cut.gguf");
    std::fs::write(&cut, &bytes[..bytes.len() / 2]).expect("a temporary file");
    let output = run(&["serve", cut.to_str().expect("UTF-8")]);
    assert_fails(&output, 1, &format!("error: {}: ", cut.display()));
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(text.matches("cut.gguf").count(), 1, "{text}");
    let many = run(&["serve", &model, "--backend", "host", "--max-sequences=256"]);
    assert_fails(&many, 1, "a token budget of 256 is too small");
    assert_fails(&many, 1, "--batch");
    let args = ["serve", &model, "--backend", "host", "--memory-budget=1"];
    let output = worker(&args).arg("--kv-tokens=20000000").output();
    let output = output.expect("the worker starts");
    assert_fails(&output, 1, &format!("{model}: the CPU: "));
    assert_fails(&output, 1, "needs 2560016640 bytes, budget 1048576");
}

#[test]
fn a_real_model_chats_until_sigterm() {
    let Some(model) = real_model() else {
        return;
    };
    let arguments = ["serve", model.to_str().expect("UTF-8")];
    let (mut child, url) = listen(worker(&arguments).args([
        "--backend",
        "host",
        "--port",
        "0",
        "--alias",
        "smol",
        "--kv-tokens",
        "4096",
    ]));
    let address = url.strip_prefix("http://").expect(&url);
    let post = |more: Value| {
        let mut body = json!({
            "model": "smol",
            "messages": [{ "role": "user", "content": "What is the capital of France?" }],
            "temperature": 0,
            "max_tokens": 24,
        });
        for (name, value) in more.as_object().expect("an object") {
            body[name] = value.clone();
        }
        let mut stream = TcpStream::connect(address).expect("it listens");
        let text = request("POST /v1/chat/completions", &[], &body.to_string());
        stream.write_all(text.as_bytes()).expect("it reads");
        Reply::read(stream)
    };

    let whole = post(json!({})).ok();
    let streamed = post(json!({ "stream": true, "logprobs": true })).events();

    let text = whole["choices"][0]["message"]["content"]
        .as_str()
        .expect("text");
    assert!(text.contains("Paris"), "{text}");
    let chunks = streamed
        .iter()
        .filter_map(|event| serde_json::from_str::<Value>(event).ok());
    let deltas = chunks.map(|chunk| chunk["choices"][0]["delta"]["content"].clone());
    let joined: String = deltas
        .filter_map(|delta| delta.as_str().map(str::to_owned))
        .collect();
    assert_eq!(joined, text);
    terminate(&child);
    assert_eq!(child.wait().expect("is our child").code(), Some(0));
}

/// The end of a pipe that nobody reads.
fn unread() -> Stdio {
    let (_, writer) = std::io::pipe().expect("a pipe");
    writer.into()
}

#[test]
fn a_server_needs_no_reader_of_its_output() {
    let fails = worker(&["serve", "/nowhere/model.gguf"])
        .stderr(unread())
        .status();
    assert_eq!(fails.expect("the worker starts").code(), Some(1));

    let model = write("unread.gguf", &file_that_answers("A", None));
    let socket = Path::new(env!("CARGO_TARGET_TMPDIR")).join("unread.sock");
    let socket = socket.to_str().expect("UTF-8");
    let mut command = worker(&["serve", &model, "--unix", socket]);
    let mut child = command
        .stdout(unread())
        .stderr(unread())
        .spawn()
        .expect("the worker starts");
    let mut client = loop {
        match UnixStream::connect(socket) {
            Ok(client) => break client,
            Err(_) => assert_eq!(child.try_wait().expect("is our child"), None),
        }
        std::thread::yield_now();
    };
    let live = request("GET /health/live", &[], "");
    client.write_all(live.as_bytes()).expect("it reads");
    let mut answer = [0; 15];
    client.read_exact(&mut answer).expect("it answers");
    assert_eq!(&answer, b"HTTP/1.1 200 OK");
    terminate(&child);
    assert_eq!(child.wait().expect("is our child").code(), Some(0));
}

#[test]
fn a_server_that_ignores_hangups_does_not_end() {
    let model = write("nohup.gguf", &file_that_answers("A", None));
    let mut command = Command::new("sh");
    // As nohup does.
    command.args(["-c", "trap '' HUP; exec \"$@\"", "sh"]);
    command.arg(env!("CARGO_BIN_EXE_worker-orcd"));
    command.args(["serve", &model, "--backend", "host", "--port", "0"]);
    let (mut child, url) = listen(&mut command);
    let address = url.strip_prefix("http://").expect(&url);

    let id = child.id().to_string();
    let signal = Command::new("kill").args(["-HUP", &id]).status();
    assert!(signal.expect("kill").success());

    // It would have ended by then.
    for _ in 0..500 {
        let mut client = TcpStream::connect(address).expect("it listens");
        let ready = request("GET /health/ready", &[], "");
        client.write_all(ready.as_bytes()).expect("it reads");
        assert_eq!(Reply::read(client).status, 200);
    }
    terminate(&child);
    assert_eq!(child.wait().expect("is our child").code(), Some(0));
}

#[test]
fn what_the_library_warns_of_is_in_the_log() {
    let file = file_that_answers("A", None).tensor_f32("left_over.weight", &[32], &[0.0; 32]);
    let model = write("left_over.gguf", &file);
    let (mut child, _) = listen(
        worker(&["serve", &model, "--backend", "host", "--port", "0"])
            .args(["--kv-tokens", "1024"])
            .stderr(Stdio::piped()),
    );

    let line = first_log_line(&mut child);

    assert_eq!(
        (&line["level"], &line["part"]),
        (&json!("warning"), &json!("model"))
    );
    assert_eq!(line["message"], "tensor 'left_over.weight' is not used");
    assert!(line["time"].is_u64(), "{line}");
    terminate(&child);
    assert_eq!(child.wait().expect("is our child").code(), Some(0));
}

/// A server of a tiny model under these limits of open files (`ulimit` options).
fn listen_under(limits: &str) -> (Child, String) {
    let model = model_that_answers("open_files.gguf", "a", None);
    let command = format!("{limits} && exec \"$@\"");
    let mut shell = Command::new("sh");
    shell.args(["-c", &command, "sh", env!("CARGO_BIN_EXE_worker-orcd")]);
    shell.args(["serve", &model, "--backend", "host", "--port", "0"]);
    shell.args(["--kv-tokens", "1024"]).stdin(Stdio::null());
    listen(shell.stderr(Stdio::piped()))
}

#[test]
fn a_soft_limit_on_open_files_does_not_limit_connections() {
    let (mut child, url) = listen_under("ulimit -Sn 64");
    let limits = std::fs::read_to_string(format!("/proc/{}/limits", child.id())).expect("Linux");
    let line = limits
        .lines()
        .find(|line| line.starts_with("Max open files"));
    let words: Vec<&str> = line.expect("a limit").split_whitespace().collect();
    assert_eq!(words[3], words[4], "soft and hard limit: {limits}");
    let address = url.strip_prefix("http://").expect(&url);

    let connections: Vec<_> = (0..100)
        .map(|_| {
            let mut client = TcpStream::connect(address).expect("it listens");
            let text = request("GET /health/live", &[("connection", "keep-alive")], "");
            client.write_all(text.as_bytes()).expect("it reads");
            client
        })
        .collect();

    // All are answered while all are open.
    for client in &connections {
        assert_eq!(Reply::read_head(&mut BufReader::new(client)).status, 200);
    }
    drop(connections);
    terminate(&child);
    assert_eq!(child.wait().expect("is our child").code(), Some(0));
}

#[test]
fn a_hard_limit_on_open_files_is_a_warning_with_the_numbers() {
    let (mut child, _) = listen_under("ulimit -n 128");

    let line = first_log_line(&mut child);
    assert_eq!(
        (&line["level"], &line["part"]),
        (&json!("warning"), &json!("serve"))
    );
    let message = line["message"].as_str().expect("text");
    assert!(
        message.contains("4096 connections need 4352 open files"),
        "{message}"
    );
    assert!(message.contains("limit is 128"), "{message}");
    terminate(&child);
    assert_eq!(child.wait().expect("is our child").code(), Some(0));
}

/// Runs the worker with the flags of the older one, up to its callback. Returns where to answer that, its first line,
/// and its body.
fn callback(model: &str, more: &[&str]) -> (Child, TcpStream, String, Value) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!(
        "--callback-url=http://{}/ready",
        listener.local_addr().expect("an address")
    );
    let arguments = ["--worker-id=w1", "--model", model, "--gpu-device=0"];
    let child = worker(&arguments)
        .args(["--port", "0", "--backend", "host", &url])
        .args(more)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the worker starts");
    let (stream, _) = listener.accept().expect("it calls");
    let mut input = BufReader::new(stream.try_clone().expect("a socket"));
    let mut line = String::new();
    input.read_line(&mut line).expect("a line");
    let head = Reply::read_head(&mut input);
    let length = head.headers["content-length"].parse().expect("a number");
    let mut body = vec![0; length];
    input.read_exact(&mut body).expect("a body");
    let body = serde_json::from_slice(&body).expect("JSON");
    (child, stream, line, body)
}

fn terminate(child: &Child) {
    let id = child.id().to_string();
    let signal = Command::new("kill").args(["-TERM", &id]).status();
    assert!(signal.expect("kill").success());
}

#[test]
fn a_worker_answers_before_its_callback_is_answered() {
    let Some(model) = real_model() else { return };
    let model = model.to_str().expect("UTF-8");
    let (mut child, mut stream, line, body) = callback(model, &[]);

    assert_eq!(line, "POST /ready HTTP/1.1\r\n");
    assert_eq!(body["worker_id"], "w1");
    let bytes = body["vram_bytes"].as_u64();
    assert!(bytes.is_some_and(|bytes| bytes > 0), "{body}");
    let uri = body["uri"].as_str().expect("an address");
    let mut output = BufReader::new(child.stdout.take().expect("is piped"));
    let mut first = String::new();
    output.read_line(&mut first).expect("a line");
    assert_eq!(first, format!("listening on {uri}\n"));
    let address = uri.strip_prefix("http://").expect("is TCP");
    let get = |head: &str| {
        let mut client = TcpStream::connect(address).expect("it listens");
        let text = request(head, &[], "");
        client.write_all(text.as_bytes()).expect("it reads");
        Reply::read(client)
    };
    assert_eq!(get("GET /health").ok()["worker_id"], "w1");
    let answer = b"HTTP/1.1 204 X\r\ncontent-length: 0\r\n\r\n";
    stream.write_all(answer).expect("it reads");
    // Whoever has started it ends it.
    assert_eq!(get("POST /shutdown").status, 202);
    assert_eq!(child.wait().expect("is our child").code(), Some(0));
}

#[test]
fn a_callback_has_an_address_that_can_be_reached_and_may_be_interrupted() {
    let Some(model) = real_model() else { return };
    let keys = Path::new(env!("CARGO_TARGET_TMPDIR")).join("callback.keys");
    std::fs::write(&keys, "0123456789abcdef\n").expect("a temporary file");
    let keys = keys.to_str().expect("UTF-8");
    let all = ["--host", "0.0.0.0", "--api-key-file", keys];
    let (mut child, _stream, _, body) = callback(model.to_str().expect("UTF-8"), &all);

    let uri = body["uri"].as_str().expect("an address");
    assert!(uri.starts_with("http://127.0.0.1:"), "{uri}");
    terminate(&child);
    assert_eq!(child.wait().expect("is our child").code(), Some(0));
}

#[test]
fn a_callback_that_is_refused_ends_the_worker() {
    let Some(model) = real_model() else { return };
    let (child, mut stream, ..) = callback(model.to_str().expect("UTF-8"), &[]);
    let answer = b"HTTP/1.1 500 X\r\ncontent-length: 0\r\n\r\n";
    stream.write_all(answer).expect("it reads");
    let output = child.wait_with_output().expect("is our child");
    assert_fails(&output, 1, "the callback was answered with status 500");
}

/// Begins an answer that does not end by itself, with long events. Returns its stream when its first bytes have come.
fn begin_endless(url: &str, model: &str) -> BufReader<TcpStream> {
    let address = url.strip_prefix("http://").expect(url);
    let mut client = TcpStream::connect(address).expect("it listens");
    // What is not read waits in the server.
    let buffer = SockRef::from(&client).set_recv_buffer_size(4096);
    buffer.expect("a socket");
    let body = json!({
        "model": model, "prompt": [3], "max_tokens": ENDLESS_TOKENS - 100, "ignore_eos": true, "stream": true,
        "logprobs": 4, "return_token_ids": true,
    });
    let text = request("POST /v1/completions", &[], &body.to_string());
    client.write_all(text.as_bytes()).expect("it reads");
    let mut stream = BufReader::new(client);
    assert_eq!(Reply::read_head(&mut stream).status, 200);
    let mut line = String::new();
    while !line.starts_with("data: ") {
        line.clear();
        assert!(stream.read_line(&mut line).expect("UTF-8") > 0, "no data");
    }
    stream
}

/// Positions of a sequence that is not at its end when a test is.
const ENDLESS_TOKENS: u32 = 200_000;

/// A server of a tiny model with room for such answers, which waits for none.
fn listen_endless(name: &str, more: &[&str]) -> (Child, String, String) {
    let model = model_that_answers(name, "a", None);
    let tokens = ENDLESS_TOKENS.to_string();
    let (child, url) = listen(
        worker(&["serve", &model, "--backend", "host", "--port", "0"])
            .args(["--kv-tokens", &tokens, "--context", &tokens])
            .args(["--drain-seconds", "0", "--alias", "first"])
            .args(more)
            .stderr(Stdio::piped()),
    );
    (child, url, model)
}

#[test]
fn an_end_that_cuts_a_request_exits_with_4() {
    let (child, url, _) = listen_endless("cut.gguf", &["--log", "off"]);
    let mut stream = begin_endless(&url, "first");

    terminate(&child);

    let mut rest = String::new();
    stream.read_to_string(&mut rest).expect("UTF-8");
    assert!(rest.contains("\"code\":\"shut_down\""), "{rest}");
    assert!(!rest.contains("[DONE]"), "{rest}");
    let output = child.wait_with_output().expect("is our child");
    assert_fails(
        &output,
        4,
        "1 request had not ended in time and was cut short",
    );
}

#[test]
fn a_reader_that_is_slow_keeps_no_memory_of_a_model_that_is_unloaded() {
    let model = model_that_answers("slow_second.gguf", "a", None);
    let more = ["--worker-id=w1", "--loadable", &format!("second={model}")];
    let (mut child, url, _) = listen_endless("slow.gguf", &more);
    let ask = |head: &str| {
        let address = url.strip_prefix("http://").expect(&url);
        let mut client = TcpStream::connect(address).expect("it listens");
        let text = request(head, &[], "");
        client.write_all(text.as_bytes()).expect("it reads");
        Reply::read(client)
    };
    let health = ask("GET /health");
    let before = memory(&health);
    let total = health.json()["vram_bytes_total"].as_u64();
    assert!(total.is_some_and(|total| total > before), "{}", health.body);
    ask("POST /v1/models/second/load");
    assert!(memory(&ask("GET /health")) > before);
    let stream = begin_endless(&url, "second");
    let generated = || {
        let text = ask("GET /metrics").body;
        let line = text
            .lines()
            .find_map(|line| line.strip_prefix("worker_tokens_generated_total "));
        line.expect("a count").to_owned()
    };
    // Until the answer waits for its reader.
    let mut count = String::new();
    while count != generated() {
        count = generated();
    }

    let unloaded = ask("POST /v1/models/second/unload").ok();

    assert_eq!(unloaded["cut_requests"], 1);
    assert_eq!(memory(&ask("GET /health")), before);
    drop(stream);
    terminate(&child);
    assert_eq!(child.wait().expect("is our child").code(), Some(0));
}

/// Starts a server whose manager has no key, with a second model in the same file, and asks it.
fn with_second_model(model: &str, more: &[&str]) -> (Child, impl Fn(&str) -> Reply + use<>) {
    let second = format!("second={model}");
    let (child, url) = listen(
        worker(&["serve", model, "--backend", "host", "--port", "0"])
            .args([
                "--loadable",
                &second,
                "--kv-tokens",
                "1024",
                "--worker-id",
                "w1",
            ])
            .args(more),
    );
    let address = url.strip_prefix("http://");
    let address = address.expect("an address").to_owned();
    let ask = move |head: &str| {
        let mut client = TcpStream::connect(&address).expect("it listens");
        let body = match head.ends_with("completions") {
            true => json!({ "model": "second", "prompt": "1, 2, 3", "max_tokens": 2 }).to_string(),
            false => String::new(),
        };
        client
            .write_all(request(head, &[], &body).as_bytes())
            .expect("it reads");
        Reply::read(client)
    };
    (child, ask)
}

/// What a server with these flags answers to one request, and its health after that.
fn ask_once(model: &str, flags: &[&str], head: &str, body: &Value) -> (Reply, Reply) {
    let (mut child, url) = listen(
        worker(&["serve", model, "--backend", "host", "--port", "0"])
            .args(["--alias", "small"])
            .args(flags),
    );
    let address = url.strip_prefix("http://");
    let ask = |text: String| {
        let mut client = TcpStream::connect(address.expect("an address")).expect("it listens");
        client.write_all(text.as_bytes()).expect("it reads");
        Reply::read(client)
    };
    let reply = ask(request(head, &[], &body.to_string()));
    let health = ask(request("GET /health", &[], ""));
    terminate(&child);
    assert_eq!(child.wait().expect("is our child").code(), Some(0));
    (reply, health)
}

fn embedding(model: &str, flags: &[&str], input: &[u32]) -> Reply {
    let body = json!({ "model": "small", "input": input });
    ask_once(model, flags, "POST /v1/embeddings", &body).0
}

#[test]
fn a_draft_model_or_head_changes_no_answer_and_its_memory_is_accounted_for() {
    let model = model_that_answers("drafted.gguf", "a", None);
    let head = head_of_answers("head.gguf");
    let ask = |flags: &[&str]| {
        let body =
            json!({ "model": "small", "prompt": [3, 4], "max_tokens": 40, "temperature": 0 });
        let (reply, health) = ask_once(&model, flags, "POST /v1/completions", &body);
        (reply.ok()["choices"].clone(), memory(&health))
    };
    let (plain, memory) = ask(&["--kv-tokens=1024"]);
    assert_eq!(plain[0]["text"], "a".repeat(40));
    for draft in [["--draft-model", &model], ["--draft-head", &head]] {
        let flags = [&draft[..], &["--kv-tokens=1024", "--draft-max=3"]].concat();
        let (drafted, more_memory) = ask(&flags);
        assert_eq!(drafted, plain);
        assert!(more_memory > memory, "{more_memory} {memory}");
    }

    let other = model_that_answers("other.gguf", "b", None);
    for (flag, part) in [
        (
            "--draft-model",
            "the draft model has another vocabulary: token 0 is \"b\"",
        ),
        (
            "--draft-head",
            "architecture 'llama' is no draft head and has no target model",
        ),
    ] {
        let args = ["serve", &model, "--backend", "host", flag, &other];
        assert_fails(&run(&args), 1, &format!("{other}: {part}"));
    }
}

#[test]
fn pooling_is_that_of_the_flag_or_of_the_file() {
    let [none, last] = [("none.gguf", None), ("last.gguf", Some(3))]
        .map(|(name, pooling)| model_that_answers(name, "a", pooling));
    let refused = embedding(&none, &[], &[3, 4]);
    let message = refused.assert_error(400, "unsupported_value", Some("model"));
    assert!(message.contains("--pooling"), "{message}");

    for (model, flags, token) in [
        (&none, &["--pooling", "last"][..], 4),
        (&last, &[], 4),
        (&last, &["--pooling", "first"], 3),
    ] {
        let answer = embedding(model, flags, &[3, 4]).ok();
        let values = answer["data"][0]["embedding"].as_array().expect("a list");
        let length = row(token)
            .iter()
            .map(|value| value * value)
            .sum::<f32>()
            .sqrt();
        assert_eq!(values.len(), LENGTH as usize);
        for (value, expected) in values.iter().zip(row(token)) {
            let value = value.as_f64().expect("a number") as f32;
            // RMSNorm adds 1e-5 to the mean square; activations may be bf16.
            assert!((value - expected / length).abs() < 5e-3, "{answer}");
        }
    }
}

fn memory(health: &Reply) -> u64 {
    health.json()["vram_bytes_used"].as_u64().expect("bytes")
}

#[test]
fn an_unloaded_model_leaves_the_memory_as_it_was() {
    let Some(model) = real_model() else { return };
    let missing = ["--loadable", "missing=/nowhere/model.gguf"];
    let (mut child, ask) = with_second_model(model.to_str().expect("UTF-8"), &missing);
    let before = memory(&ask("GET /health"));
    let failed = ask("POST /v1/models/missing/load").body;
    assert!(failed.contains("event: error\n"), "{failed}");
    assert!(failed.contains("\"code\":\"load_failed\""), "{failed}");
    assert!(failed.contains("/nowhere/model.gguf"), "{failed}");
    assert_eq!(ask("GET /v1/models/missing").ok()["state"], "unloaded");

    let events = ask("POST /v1/models/second/load");
    assert!(events.body.contains("event: progress\n"), "{}", events.body);
    assert!(events.body.contains("event: loaded\n"), "{}", events.body);
    assert!(memory(&ask("GET /health")) > before);
    let answer = ask("POST /v1/completions").ok();
    assert_eq!(answer["model"], "second");
    assert_eq!(answer["usage"]["completion_tokens"], 2);
    ask("POST /v1/models/second/unload").ok();

    assert_eq!(memory(&ask("GET /health")), before);
    terminate(&child);
    assert_eq!(child.wait().expect("is our child").code(), Some(0));
    let budget = format!("--memory-budget={}", (before >> 20) * 3 / 2);
    let (mut child, ask) = with_second_model(model.to_str().expect("UTF-8"), &[&budget]);
    let refused = ask("POST /v1/models/second/load");
    let message = refused.assert_error(409, "no_room", Some("model"));
    assert!(message.contains("weights "), "{message}");
    assert_eq!(ask("GET /v1/models/second").ok()["state"], "unloaded");
    terminate(&child);
    assert_eq!(child.wait().expect("is our child").code(), Some(0));
}

#[cfg(feature = "tls")]
#[test]
fn a_hangup_reads_the_certificate_again_and_ends_nothing() {
    let Some(model) = real_model() else { return };
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/tls");
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("hangup");
    std::fs::create_dir_all(&folder).expect("a folder");
    let (certificate, key) = (folder.join("certificate"), folder.join("key"));
    std::fs::copy(data.join("first.crt"), &certificate).expect("a file");
    std::fs::copy(data.join("first.key"), &key).expect("a file");
    let path = |path: &Path| path.to_str().expect("UTF-8").to_owned();
    let (mut child, url) = listen(
        worker(&["serve", &path(&model), "--backend", "host", "--port", "0"])
            .args([
                "--kv-tokens",
                "1024",
                "--tls-certificate",
                &path(&certificate),
            ])
            .args(["--tls-key", &path(&key)])
            .stderr(Stdio::piped()),
    );
    assert!(url.starts_with("https://"), "{url}");
    std::fs::write(&key, "no key").expect("a file");

    let id = child.id().to_string();
    let signal = Command::new("kill").args(["-HUP", &id]).status();
    assert!(signal.expect("kill").success());

    let mut log = BufReader::new(child.stderr.take().expect("is piped"));
    let mut line = String::new();
    log.read_line(&mut line).expect("UTF-8");
    let line: Value = serde_json::from_str(&line).expect("JSON");
    assert_eq!(
        (&line["level"], &line["part"]),
        (&json!("error"), &json!("tls"))
    );
    let message = line["message"].as_str().expect("text");
    assert!(message.contains("/hangup/key: "), "{message}");
    terminate(&child);
    assert_eq!(child.wait().expect("is our child").code(), Some(0));
}
