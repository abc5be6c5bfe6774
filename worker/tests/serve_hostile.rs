//! `serve`: wrong requests, clients that leave, engines that fail, and the end of a server.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::Shutdown;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use worker_cuda::generate::service::Clock;
use worker_orcd::serve::{Address, Ended, Keys};

use http::{Reply, Served, Setup, request, token};

#[path = "support/http.rs"]
mod http;

const CHAT: &str = "/v1/chat/completions";
const TEXT: &str = "/v1/completions";

fn say(words: &str) -> Value {
    json!({
        "model": "scripted",
        "messages": [{ "role": "user", "content": format!("say {words}") }],
    })
}

fn with(mut body: Value, field: &str, value: Value) -> Value {
    body[field] = value;
    body
}

/// After whatever a test did, the server answers, and nothing is left over.
#[track_caller]
fn assert_still_serves(served: &Served) {
    served.wait_for_running(0);
    let body = served.post(CHAT, &say("hi")).ok();
    assert_eq!(body["choices"][0]["message"]["content"], "hi");
    let stats = served.service.stats();
    assert_eq!((stats.running, stats.waiting, stats.held_pages), (0, 0, 0));
    // The engine destroys them with the next plan, which nobody waits for.
    while served.control.sequence_count() != 0 {
        std::thread::yield_now();
    }
}

#[test]
fn wrong_values_are_named_with_their_limits() {
    let served = Served::start();
    for (field, value, code, part) in [
        (
            "model",
            json!("gpt"),
            "model_not_found",
            "'gpt' does not exist",
        ),
        ("model", json!(7), "invalid_type", "a string, not a number"),
        (
            "model",
            Value::Null,
            "missing_required_parameter",
            "model is required",
        ),
        ("messages", json!([]), "invalid_value", "empty"),
        (
            "messages",
            json!("hi"),
            "invalid_type",
            "a list, not a string",
        ),
        (
            "temperature",
            json!(2.5),
            "invalid_value",
            "from 0 to 2, not 2.5",
        ),
        (
            "temperature",
            json!("hot"),
            "invalid_type",
            "a number, not a string",
        ),
        (
            "top_p",
            json!(-0.1),
            "invalid_value",
            "from 0 to 1, not -0.1",
        ),
        ("min_p", json!(1.5), "invalid_value", "from 0 to 1"),
        (
            "top_k",
            json!(-1),
            "invalid_value",
            "from 0 to 4294967295, not -1",
        ),
        (
            "repetition_penalty",
            json!(0),
            "invalid_value",
            "from 0.01 to 2",
        ),
        (
            "presence_penalty",
            json!(3),
            "invalid_value",
            "from -2 to 2, not 3",
        ),
        ("seed", json!("x"), "invalid_type", "an integer"),
        ("n", json!(17), "invalid_value", "from 1 to 16, not 17"),
        ("n", json!(0), "invalid_value", "from 1 to 16, not 0"),
        (
            "max_tokens",
            json!(1.5),
            "invalid_value",
            "an integer from 1",
        ),
        (
            "stop",
            json!(vec!["x"; 17]),
            "invalid_value",
            "length of 17, at most 16",
        ),
        ("stop", json!([""]), "invalid_value", "empty string"),
        ("stop", json!([1]), "invalid_type", "strings, not a number"),
        (
            "stop_token_ids",
            json!(vec![1; 17]),
            "invalid_value",
            "length of 17, at most 16",
        ),
        (
            "logit_bias",
            json!({ "x": 1 }),
            "invalid_value",
            "'x' is not a token id below",
        ),
        (
            "logit_bias",
            json!({ "900": 1 }),
            "invalid_value",
            "'900' is not a token id below",
        ),
        (
            "top_logprobs",
            json!(3),
            "invalid_value",
            "only with logprobs: true",
        ),
        ("priority", json!(99), "invalid_value", "from 0 to 15"),
        (
            "deadline_ms",
            json!(0),
            "invalid_value",
            "from 1 to 86400000",
        ),
        ("stream", json!("yes"), "invalid_type", "true or false"),
        (
            "stream_options",
            json!({}),
            "invalid_value",
            "only with stream: true",
        ),
        (
            "tool_choice",
            json!("required"),
            "invalid_value",
            "requires tools",
        ),
        (
            "response_format",
            json!("json_object"),
            "invalid_type",
            "an object",
        ),
        ("modalities", json!(["audio"]), "unsupported_value", "only"),
        (
            "audio",
            json!({ "voice": "x" }),
            "unsupported_value",
            "not supported",
        ),
        (
            "functions",
            json!([{}]),
            "unsupported_value",
            "not supported",
        ),
    ] {
        let reply = served.post(CHAT, &with(say("hi"), field, value.clone()));
        let status = if code == "model_not_found" { 404 } else { 400 };
        let message = reply.assert_error(status, code, Some(field));
        assert!(message.contains(part), "{field} {value}: {message}");
    }
    assert_still_serves(&served);
}

#[test]
fn wrong_messages_are_named_by_their_place() {
    let served = Served::start();
    for (message, param, code) in [
        (json!("hi"), "messages[1]", "invalid_type"),
        (
            json!({ "content": "x" }),
            "messages[1].role",
            "missing_required_parameter",
        ),
        (
            json!({ "role": "cat", "content": "x" }),
            "messages[1].role",
            "invalid_value",
        ),
        (
            json!({ "role": "function", "content": "x" }),
            "messages[1].role",
            "unsupported_value",
        ),
        (
            json!({ "role": "user" }),
            "messages[1].content",
            "missing_required_parameter",
        ),
        (
            json!({ "role": "user", "content": 5 }),
            "messages[1].content",
            "invalid_type",
        ),
        (
            json!({ "role": "user", "content": [{ "type": "image_url", "image_url": {} }] }),
            "messages[1].content[0].type",
            "unsupported_value",
        ),
        (
            json!({ "role": "user", "content": [{ "type": "text" }] }),
            "messages[1].content[0].text",
            "missing_required_parameter",
        ),
    ] {
        let first = json!({ "role": "user", "content": "say hi" });
        let reply = served.post(CHAT, &with(say(""), "messages", json!([first, message])));
        reply.assert_error(400, code, Some(param));
    }
}

#[test]
fn wrong_text_completions_are_named() {
    let served = Served::start();
    let body = |more: Value| {
        let mut body = json!({ "model": "scripted", "prompt": "say hi" });
        for (name, value) in more.as_object().expect("an object") {
            body[name] = value.clone();
        }
        body
    };
    for (more, param, code) in [
        (
            json!({ "prompt": null }),
            "prompt",
            "missing_required_parameter",
        ),
        (json!({ "prompt": 5 }), "prompt", "invalid_type"),
        (
            json!({ "prompt": ["a", "b"] }),
            "prompt",
            "unsupported_value",
        ),
        (json!({ "prompt": [1, "a"] }), "prompt", "unsupported_value"),
        (json!({ "prompt": [-1] }), "prompt[0]", "invalid_value"),
        (json!({ "suffix": "x" }), "suffix", "unsupported_value"),
        (json!({ "best_of": 1, "n": 2 }), "best_of", "invalid_value"),
        (
            json!({ "best_of": 2, "stream": true }),
            "best_of",
            "invalid_value",
        ),
        (json!({ "logprobs": 21 }), "logprobs", "invalid_value"),
        (
            json!({ "logprobs": 1, "echo": true }),
            "echo",
            "unsupported_value",
        ),
    ] {
        served
            .post(TEXT, &body(more))
            .assert_error(400, code, Some(param));
    }
    let empty = served.post(TEXT, &body(json!({ "prompt": [] })));
    assert_eq!(empty.status, 400, "{}", empty.body);
    let unknown = served.post(TEXT, &body(json!({ "prompt": [4_000_000] })));
    assert_eq!(unknown.status, 400, "{}", unknown.body);
    assert_still_serves(&served);
}

#[test]
fn a_context_that_is_too_long_is_refused_with_both_counts() {
    let served = Served::start();
    let prompt = "user:say hi;assistant:".len();

    let reply = served.post(CHAT, &with(say("hi"), "max_tokens", json!(5000)));
    let long = served.post(CHAT, &say(&"x".repeat(2000)));

    let message = reply.assert_error(400, "context_length_exceeded", Some("max_tokens"));
    for part in ["1024", &prompt.to_string(), "5000"] {
        assert!(message.contains(part), "{message}");
    }
    let message = long.assert_error(400, "context_length_exceeded", Some("messages"));
    assert!(
        message.contains("1024") && message.contains("2020"),
        "{message}"
    );
    // The field is that of the path, and the one that was sent.
    for (path, body, param) in [
        (
            CHAT,
            with(say("hi"), "max_completion_tokens", json!(5000)),
            "max_completion_tokens",
        ),
        (TEXT, json!({ "prompt": "x".repeat(2000) }), "prompt"),
        (
            TEXT,
            json!({ "prompt": "x", "max_tokens": 5000 }),
            "max_tokens",
        ),
        (
            "/v1/responses",
            json!({ "input": "x".repeat(2000) }),
            "input",
        ),
        (
            "/v1/responses",
            json!({ "input": "x", "max_output_tokens": 5000 }),
            "max_output_tokens",
        ),
    ] {
        let reply = served.post(path, &with(body, "model", json!("scripted")));
        reply.assert_error(400, "context_length_exceeded", Some(param));
    }
    assert_still_serves(&served);
}

#[test]
fn bodies_that_are_no_requests_are_refused() {
    let served = Served::start();
    let deep = format!("{{\"a\":{}", "[".repeat(10_000));
    let many: String = (0..5000).map(|index| format!(",\"p{index}\":1")).collect();
    for body in [
        "",
        "{",
        "[]",
        "null",
        "5",
        "{\"a\":1}x",
        "{\"a\":1e999}",
        deep.as_str(),
    ] {
        let reply = served.request(&format!("POST {CHAT}"), &[], body);
        reply.assert_error(400, "invalid_json", None);
    }
    let mut bytes = request(&format!("POST {CHAT}"), &[], "{\"a\":\"..\"}").into_bytes();
    let at = bytes.len() - 4;
    bytes[at] = 0xff;
    let message = served.raw(&bytes).assert_error(400, "invalid_json", None);
    assert!(message.contains("byte 6"), "{message}");
    let body = format!("{}{many}}}", say("hi").to_string().trim_end_matches('}'));
    let properties = served.request(&format!("POST {CHAT}"), &[], &format!("{body}]}}"));
    assert_eq!(properties.status, 400);
    assert_still_serves(&served);
}

#[test]
fn many_unknown_fields_do_not_break_the_headers() {
    let served = Served::start();
    let mut body = say("hi");
    for index in 0..5000 {
        body[format!("field\n{index}\u{e9}")] = json!(1);
    }
    let reply = served.post(CHAT, &body);
    reply.ok();
    assert!(reply.headers["x-worker-ignored"].len() <= 1024);
}

#[test]
fn paths_and_methods_that_do_not_exist_are_named() {
    let served = Served::start();
    served
        .get("/v1/nothing")
        .assert_error(404, "unknown_path", None);
    let reply = served.get(CHAT);
    reply.assert_error(405, "method_not_allowed", None);
    assert_eq!(reply.headers["allow"], "POST");
    let reply = served.post("/metrics", &json!({}));
    reply.assert_error(405, "method_not_allowed", None);
    assert_eq!(reply.headers["allow"], "GET,HEAD");
}

#[test]
fn limits_of_http_hold() {
    let served = Served::with(|setup| setup.options.max_body_bytes = 1000);
    let post = format!("POST {CHAT} HTTP/1.1\r\nhost: localhost\r\n");
    let large = served.raw(format!("{post}content-length: 1000000000\r\n\r\n{{").as_bytes());
    large.assert_error(413, "body_too_large", None);
    let chunk = format!(
        "{post}transfer-encoding: chunked\r\n\r\n3e9\r\n{}\r\n",
        "x".repeat(1001)
    );
    served
        .raw(chunk.as_bytes())
        .assert_error(413, "body_too_large", None);
    let many: String = (0..101).map(|index| format!("h{index}: x\r\n")).collect();
    let reply = served.raw(format!("GET /health HTTP/1.1\r\n{many}\r\n").as_bytes());
    assert_eq!((reply.status, reply.body.as_str()), (431, ""));
    for (bytes, status) in [(65_534, 404), (65_535, 414)] {
        let path = "x".repeat(bytes - 1);
        let head = format!("GET /{path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n");
        assert_eq!(served.raw(head.as_bytes()).status, status);
    }
    let reply = served.raw(b"\x16\x03\x01 no HTTP\r\n\r\n");
    assert_eq!((reply.status, reply.body.as_str()), (400, ""));
    assert_still_serves(&served);
}

/// As simple clients do: they read nothing before they have sent all.
#[test]
fn a_client_that_sends_all_of_a_refused_body_gets_the_answer() {
    let served = Served::with(|setup| {
        setup.options.linger_timeout = Duration::from_secs(3600);
        setup.options.keys = Keys::parse(KEYS).expect("two keys");
    });
    let body = "x".repeat(20 << 20);
    for (key, length, status, code) in [
        ("first-secret-key", body.len(), 413, "body_too_large"),
        ("no-key", body.len(), 401, "invalid_api_key"),
        ("no-key", 6 << 20, 401, "invalid_api_key"),
    ] {
        let text = request(
            &format!("POST {CHAT}"),
            &[("x-api-key", key)],
            &body[..length],
        );
        let mut client = served.connect();
        client.write_all(text.as_bytes()).expect("it reads all");
        Reply::read(client).assert_error(status, code, None);
    }
    // The connection can be used again.
    let head = format!("POST {CHAT}");
    let headers = [("x-api-key", "no-key"), ("connection", "keep-alive")];
    let refused = request(&head, &headers, &body[..1 << 20]);
    let mut client = served.connect();
    client.write_all(refused.as_bytes()).expect("it reads all");
    let next = [("x-api-key", "first-secret-key")];
    let next = request("GET /v1/models", &next, "");
    client.write_all(next.as_bytes()).expect("it reads on");
    let answers = Reply::read(client).body;
    assert!(answers.contains("\"object\":\"list\""), "{answers}");
}

#[test]
fn the_rest_of_a_refused_body_is_not_read_for_ever() {
    let served = Served::with(|setup| setup.options.linger_timeout = Duration::from_millis(20));
    let head =
        format!("POST {CHAT} HTTP/1.1\r\nhost: localhost\r\ncontent-length: 1000000000\r\n\r\n");
    served
        .raw(head.as_bytes())
        .assert_error(413, "body_too_large", None);

    let served = Served::with(|setup| setup.options.linger_timeout = Duration::from_secs(3600));
    let mut client = served.connect();
    client.write_all(head.as_bytes()).expect("it reads");
    let part = vec![b'x'; 1 << 20];
    // Ends with an error of the socket; 1 GB would be 954 parts.
    let sent = (0..500)
        .take_while(|_| client.write_all(&part).is_ok())
        .count();
    assert!(sent < 500, "it reads on and on");
    assert_still_serves(&served);
}

/// A client that has sent its request and closes the sending half of its connection counts as one that has left:
/// whether it still reads cannot be seen.
#[test]
fn a_client_that_closes_its_sending_half_has_left() {
    let served = Served::start();
    served.control.hold();
    let mut client = served.begin(CHAT, &say("hi"));
    served.wait_for_running(1);
    client.shutdown(Shutdown::Write).expect("it is open");
    served.wait_for_running(0);
    served.control.release();
    let mut answer = Vec::new();
    let _ = client.read_to_end(&mut answer);
    assert_eq!(answer, b"");
    assert_still_serves(&served);
}

#[test]
fn slow_requests_are_left() {
    // Each limit on a server of its own: whatever else is sent has all the time it needs.
    let moment = Duration::from_millis(20);
    let served = Served::with(|setup| setup.options.body_timeout = moment);
    let body = format!("POST {CHAT} HTTP/1.1\r\nhost: localhost\r\ncontent-length: 10\r\n\r\n{{");
    let reply = served.raw(body.as_bytes());
    reply.assert_error(408, "body_timeout", None);

    let served = Served::with(|setup| setup.options.header_timeout = moment);
    let reply = served.raw(b"GET /health HTTP/1.1\r\nhost: ");
    assert!(matches!(reply.status, 0 | 408), "{reply:?}");
}

#[test]
fn one_tenant_cannot_fill_the_memory_of_requests() {
    let served = Served::with(|setup| {
        setup.endless();
        setup.options.keys = Keys::parse(KEYS).expect("two keys");
        setup.options.max_bodies_bytes = 6_500_000;
    });
    served.control.hold();
    // Parsed it takes 2.9 MB, and its tokens take 0.3 MB while it is answered.
    let long = json!({ "model": "scripted", "prompt": vec![token('a'); 20_000], "stream": true });
    let begin = |key: &str| {
        let text = request(
            &format!("POST {TEXT}"),
            &[("x-api-key", key)],
            &long.to_string(),
        );
        let mut stream = served.connect();
        stream.write_all(text.as_bytes()).expect("it reads");
        let mut input = BufReader::new(stream);
        (Reply::read_head(&mut input), input)
    };
    let mut streams = Vec::new();
    let mut refused = loop {
        let (head, input) = begin("first-secret-key");
        if head.status != 200 {
            break (head, input);
        }
        streams.push(input);
        assert!(streams.len() < 20, "it gets more than is left");
    };

    refused
        .1
        .read_to_string(&mut refused.0.body)
        .expect("UTF-8");
    refused.0.assert_error(503, "bodies_too_large", None);
    assert_eq!(refused.0.headers["retry-after"], "1");
    assert!(!streams.is_empty(), "there was room for one");
    assert_eq!(begin("other-secret-key").0.status, 200);
    let short = request(
        "POST /tokenize",
        &[("x-api-key", "first-secret-key")],
        "{\"content\":\"hi\"}",
    );
    served.raw(short.as_bytes()).ok();
    drop(streams);
    served.control.release();
    served.wait_for_running(0);
    while begin("first-secret-key").0.status != 200 {
        std::thread::yield_now();
    }
}

#[test]
fn bodies_are_counted_as_large_as_they_become() {
    let served = Served::with(|setup| setup.options.max_bodies_bytes = 1 << 20);
    let text = "x".repeat(8 * 2000);
    served
        .post(CHAT, &with(say("hi"), "user", text.into()))
        .ok();
    let objects = vec![json!({ "": 0 }); 2000];
    let reply = served.post(CHAT, &with(say("hi"), "user", objects.into()));
    reply.assert_error(413, "body_too_large", None);
    assert_still_serves(&served);
}

#[test]
fn one_tenant_leaves_room_in_the_queue() {
    let served = Served::with(|setup| {
        setup.options.keys = Keys::parse(KEYS).expect("two keys");
        setup.limits.max_sequences = 1;
        setup.service.max_queued = 2;
        setup.service.reserves_queue = true;
    });
    served.control.hold();
    let send = |key: &str| {
        let headers = [("x-api-key", key)];
        let text = request(&format!("POST {CHAT}"), &headers, &say("hi").to_string());
        let mut stream = served.connect();
        stream.write_all(text.as_bytes()).expect("it reads");
        stream
    };
    let running = send("first-secret-key");
    served.wait_for_running(1);
    let queued = send("first-secret-key");
    while served.service.stats().waiting != 1 {
        std::thread::yield_now();
    }

    let refused = Reply::read(send("first-secret-key"));
    let other = send("other-secret-key");

    refused.assert_error(429, "tenant_queue_full", None);
    assert!(refused.headers.contains_key("retry-after"));
    served.control.release();
    for stream in [running, queued, other] {
        Reply::read(stream).ok();
    }
}

#[test]
fn connections_over_the_limit_wait() {
    let served = Served::with(|setup| setup.options.max_connections = 1);
    let mut first = served.connect();
    let once = "GET /health/live HTTP/1.1\r\nhost: localhost\r\n\r\n";
    first.write_all(once.as_bytes()).expect("it reads");
    let mut input = BufReader::new(first);
    assert_eq!(Reply::read_head(&mut input).status, 200);

    let mut second = served.connect();
    second
        .write_all(request("GET /health/live", &[], "").as_bytes())
        .expect("the system takes it");
    // Long enough for an answer, if it were accepted; how long does not matter when it is not.
    let most = Some(Duration::from_millis(100));
    second.set_read_timeout(most).expect("a socket");
    let waits = second.read(&mut [0]).expect_err("no answer yet");
    assert_eq!(waits.kind(), std::io::ErrorKind::WouldBlock);
    second.set_read_timeout(None).expect("a socket");
    drop(input);
    Reply::read(second).ok();
}

#[test]
fn foreign_hosts_and_origins_are_refused() {
    let served = Served::with(|setup| setup.options.allowed_hosts = vec!["worker.lan".into()]);
    let live = "GET /health/live";
    for host in ["localhost:8080", "127.0.0.1", "[::1]:1", "Worker.LAN:80"] {
        served.request(live, &[("host", host)], "").ok();
    }
    for host in ["evil.example", "localhost.evil.example:80", ""] {
        let reply = served.request(live, &[("host", host)], "");
        reply.assert_error(403, "host_not_allowed", None);
    }
    let origin = [("origin", "http://evil.example")];
    let reply = served.request(&format!("POST {CHAT}"), &origin, &say("hi").to_string());
    reply.assert_error(403, "cross_origin", None);
    assert!(!reply.headers.contains_key("access-control-allow-origin"));
}

#[test]
fn only_pages_of_the_server_itself_may_post() {
    let served = Served::start();
    let post = |headers: &[(&str, &str)]| {
        let host = [("host", "127.0.0.1:1")];
        served.request("POST /v1/nothing", &[&host[..], headers].concat(), "")
    };
    for headers in [
        &[][..],
        &[("origin", "http://127.0.0.1:1")],
        &[("sec-fetch-site", "same-origin")],
    ] {
        post(headers).assert_error(404, "unknown_path", None);
    }
    for headers in [
        &[("origin", "http://127.0.0.1:2")][..],
        &[("origin", "null")],
        &[("sec-fetch-site", "same-site")],
        &[
            ("origin", "http://127.0.0.1:1"),
            ("sec-fetch-site", "cross-site"),
        ],
    ] {
        post(headers).assert_error(403, "cross_origin", None);
    }
}

#[test]
fn a_panic_is_an_answer_in_the_form_of_its_api() {
    let served = Served::with(|setup| {
        setup.model.memory = Some(Arc::new(|| panic!("on purpose")));
    });
    let reply = served.get("/metrics");
    reply.assert_error(500, "internal_error", None);
    assert!(reply.headers.contains_key("x-request-id"));
    served.get("/v1/models").ok();
}

const KEYS: &str = "first-secret-key tenant=a\nother-secret-key tenant=b concurrency=1\n";

#[test]
fn keys_are_required_everywhere_but_at_probes() {
    let served = Served::with(|setup| setup.options.keys = Keys::parse(KEYS).expect("two keys"));
    for path in ["/v1/models", "/metrics", "/health", "/nothing"] {
        served.get(path).assert_error(401, "invalid_api_key", None);
        let wrong = [("authorization", "Bearer first-secret-kex")];
        let reply = served.request(&format!("GET {path}"), &wrong, "");
        reply.assert_error(401, "invalid_api_key", None);
    }
    served
        .post(CHAT, &say("hi"))
        .assert_error(401, "invalid_api_key", None);
    served.get("/health/live").ok();
    served.get("/health/ready").ok();
    assert_eq!(served.get("/page.js").status, 200);
    for header in [
        ("authorization", "Bearer first-secret-key"),
        ("x-api-key", "other-secret-key"),
    ] {
        served.request("GET /v1/models", &[header], "").ok();
        let reply = served.request(&format!("POST {CHAT}"), &[header], &say("hi").to_string());
        reply.ok();
    }
}

#[test]
fn a_key_has_as_many_requests_as_it_may() {
    let served = Served::with(|setup| setup.options.keys = Keys::parse(KEYS).expect("two keys"));
    let key = [("x-api-key", "other-secret-key")];
    let post = format!("POST {CHAT}");
    served.control.hold();
    let mut first = served.connect();
    let body = say("hi").to_string();
    first
        .write_all(request(&post, &key, &body).as_bytes())
        .expect("it reads");
    served.wait_for_running(1);

    let refused = served.request(&post, &key, &body);
    let other = request(&post, &[("x-api-key", "first-secret-key")], &body);
    let mut second = served.connect();
    second.write_all(other.as_bytes()).expect("it reads");

    refused.assert_error(429, "concurrency_limit_exceeded", None);
    assert_eq!(refused.headers["retry-after"], "1");
    served.control.release();
    Reply::read(first).ok();
    Reply::read(second).ok();
    served.request(&post, &key, &body).ok();
}

#[test]
fn a_full_queue_says_when_to_come_back() {
    let served = Served::with(|setup| {
        setup.limits.max_sequences = 1;
        setup.service.max_queued = 1;
    });
    served.control.hold();
    let first = served.begin(CHAT, &say("hi"));
    served.wait_for_running(1);
    let second = served.begin(CHAT, &say("hi"));
    while served.service.stats().waiting != 1 {
        std::thread::yield_now();
    }

    let reply = served.post(CHAT, &say("hi"));

    reply.assert_error(503, "queue_full", None);
    let wait: u32 = reply.headers["retry-after"].parse().expect("seconds");
    assert!((1..=120).contains(&wait));
    // Room for two never comes.
    let reply = served.post(CHAT, &with(say("hi"), "n", json!(2)));
    let message = reply.assert_error(400, "invalid_value", Some("n"));
    assert!(
        message.ends_with("2 requests at once, at most 1 may wait"),
        "{message}"
    );
    assert!(!reply.headers.contains_key("retry-after"));
    served.control.release();
    Reply::read(first).ok();
    Reply::read(second).ok();
    assert_still_serves(&served);
}

#[test]
fn a_deadline_is_a_504() {
    let clock = Clock::manual();
    let served = Served::with(|setup| setup.service.clock = clock.clone());
    served.control.hold();
    let waiting = served.begin(CHAT, &with(say("hi"), "deadline_ms", json!(500)));
    served.wait_for_running(1);

    clock.advance(Duration::from_secs(1));
    served.control.release();

    Reply::read(waiting).assert_error(504, "deadline_exceeded", None);
    assert_still_serves(&served);
}

#[test]
fn a_client_that_leaves_ends_its_request() {
    let served = Served::with(Setup::endless);
    for (stream, connection) in [
        (false, "close"),
        (false, "keep-alive"),
        (true, "close"),
        (true, "keep-alive"),
    ] {
        let body = with(say("on"), "stream", stream.into()).to_string();
        let headers = [("connection", connection)];
        let mut client = served.connect();
        let text = request(&format!("POST {CHAT}"), &headers, &body);
        client.write_all(text.as_bytes()).expect("it reads");
        served.wait_for_running(1);
        drop(client);
        assert_still_serves(&served);
    }
    // Behind a byte that nobody reads.
    let mut client = served.begin(CHAT, &say("on"));
    client.write_all(b"x").expect("it reads");
    served.wait_for_running(1);
    drop(client);
    assert_still_serves(&served);
    // Before its first token.
    served.control.hold();
    let client = served.begin(CHAT, &say("on"));
    served.wait_for_running(1);
    drop(client);
    served.control.release();
    assert_still_serves(&served);
}

#[test]
fn a_client_that_leaves_the_queue_is_never_computed() {
    let served = Served::with(|setup| setup.limits.max_sequences = 1);
    served.control.hold();
    let first = served.begin(CHAT, &say("hi"));
    served.wait_for_running(1);
    for stream in [false, true] {
        let queued = served.begin(CHAT, &with(say("on"), "stream", stream.into()));
        while served.service.stats().waiting != 1 {
            std::thread::yield_now();
        }
        drop(queued);
        while served.service.stats().waiting != 0 {
            std::thread::yield_now();
        }
    }
    served.control.release();
    Reply::read(first).ok();
    let stats = served.service.stats();
    assert_eq!((stats.generated_tokens, stats.held_pages), (2, 0));
    assert_still_serves(&served);
}

#[test]
fn a_client_that_reads_nothing_is_left() {
    let served = Served::with(|setup| {
        setup.endless();
        setup.options.write_timeout = Duration::from_millis(20);
    });
    // More than the buffers of a socket take.
    let body = with(
        with(say("on"), "stream", true.into()),
        "logprobs",
        true.into(),
    );
    let client = served.begin(CHAT, &with(body, "max_tokens", 1_000_000.into()));
    served.wait_for_running(1);

    served.wait_for_running(0);

    assert!(!Reply::read(client).body.contains("[DONE]"));
    assert_still_serves(&served);
}

#[test]
fn a_fault_of_the_engine_ends_a_stream_with_an_error() {
    let served = Served::start();
    served.control.hold();
    let body = with(say("on and on"), "stream", true.into());
    let client = served.begin(CHAT, &body);
    served.wait_for_running(1);

    served.control.fail(2);
    served.control.release();

    let events = Reply::read(client).events();
    let last: Value = serde_json::from_str(events.last().expect("an event")).expect("JSON");
    assert_eq!(last["error"]["code"], "engine_fault", "{last}");
    assert!(!events.iter().any(|event| event == "[DONE]"));
    assert_still_serves(&served);
}

#[test]
fn one_fault_of_the_engine_is_not_seen() {
    let served = Served::start();
    served.control.fail(1);
    assert_still_serves(&served);
}

#[test]
fn a_silent_stream_sends_comments() {
    let served = Served::with(|setup| setup.options.heartbeat = Duration::from_millis(1));
    served.control.hold();
    let client = served.begin(CHAT, &with(say("hi"), "stream", true.into()));

    let mut input = BufReader::new(client);
    assert_eq!(Reply::read_head(&mut input).status, 200);
    let mut line = String::new();
    while line != ":\n" {
        line.clear();
        assert_ne!(input.read_line(&mut line).expect("UTF-8"), 0);
    }

    served.control.release();
    let mut rest = String::new();
    input.read_to_string(&mut rest).expect("UTF-8");
    assert!(rest.contains("data: [DONE]"), "{rest}");
}

#[test]
fn a_signal_lets_requests_end() {
    let served = Served::with(|setup| setup.limits.max_sequences = 4);
    served.control.hold();
    let clients: Vec<_> = [true, false, true, false, true, false, true, false]
        .map(|stream| served.begin(CHAT, &with(say("hello"), "stream", stream.into())))
        .into();
    while served.service.stats().accepted < 8 {
        std::thread::yield_now();
    }

    served.stop();
    while served.get("/health/ready").status != 503 {
        std::thread::yield_now();
    }

    let ready = served.get("/health/ready");
    assert_eq!(ready.json()["status"], "draining");
    let refused = served.post(CHAT, &say("hi"));
    refused.assert_error(503, "draining", None);
    assert!(refused.headers.contains_key("retry-after"));
    assert_eq!(served.get("/health/live").status, 200);
    served.control.release();
    for client in clients {
        let reply = Reply::read(client);
        let is_whole = match reply.headers["content-type"].starts_with("text/event-stream") {
            true => reply.events().last().is_some_and(|last| last == "[DONE]"),
            false => reply.ok()["choices"][0]["message"]["content"] == "hello",
        };
        assert!(is_whole, "{reply:?}");
    }
    assert_eq!(served.ended(), Ended::Drained);
}

#[test]
fn requests_that_do_not_end_in_time_are_cut_with_an_error() {
    let served = Served::with(|setup| {
        setup.endless();
        setup.options.drain_timeout = Duration::ZERO;
    });
    let client = served.begin(CHAT, &with(say("on"), "stream", true.into()));
    served.wait_for_running(1);

    served.stop();

    let events = Reply::read(client).events();
    let last: Value = serde_json::from_str(events.last().expect("an event")).expect("JSON");
    assert_eq!(last["error"]["code"], "shut_down", "{last}");
    assert_eq!(served.ended(), Ended::Cut(1));
}

#[test]
fn a_second_signal_cuts_requests_short() {
    let served = Served::with(Setup::endless);
    let client = served.begin(CHAT, &say("on"));
    served.wait_for_running(1);

    served.stop();
    served.stop();

    Reply::read(client).assert_error(503, "shut_down", None);
    assert_eq!(served.ended(), Ended::Cut(1));
}

#[test]
fn a_lost_device_ends_the_server() {
    let served = Served::start();
    served.control.hold();
    let client = served.begin(CHAT, &say("hello"));
    served.wait_for_running(1);

    served.control.lose_device();
    served.control.release();

    Reply::read(client).assert_error(503, "device_lost", None);
    assert_eq!(served.ended(), Ended::Lost);
}

#[test]
fn an_engine_that_hangs_is_not_alive() {
    let clock = Clock::manual();
    let served = Served::with(|setup| {
        setup.service.clock = clock.clone();
        setup.service.queue_timeout = Duration::from_secs(1000);
    });
    clock.advance(Duration::from_secs(100));
    assert_eq!(served.get("/health/live").status, 200); // nothing to do
    served.control.hold();
    let client = served.begin(CHAT, &say("hello"));
    served.wait_for_running(1);
    clock.advance(Duration::from_secs(60));
    assert_eq!(served.get("/health/live").status, 200);

    clock.advance(Duration::from_secs(1));

    assert_eq!(served.get("/health/live").json()["status"], "hung");
    assert_eq!(served.get("/health").status, 503);
    served.control.release();
    Reply::read(client).ok();
    assert_eq!(served.get("/health/live").status, 200);
}

#[test]
fn a_unix_socket_serves_its_owner() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("socket");
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir(&folder).expect("a folder");
    let path = folder.join("worker");
    let files = || std::fs::read_dir(&folder).expect("a folder").count();
    // Left over from a server that was killed.
    drop(std::os::unix::net::UnixListener::bind(&path).expect("a socket"));
    let served = Served::with(|setup| setup.address = Address::Unix(path.clone()));
    assert_eq!(served.url, format!("unix:{}", path.display()));
    let mode = path.metadata().expect("a socket").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let second = std::panic::catch_unwind(|| {
        Served::with(|setup| setup.address = Address::Unix(path.clone()))
    });
    assert!(second.is_err(), "one server at a place");
    assert_eq!(files(), 1, "the folder in which it was made is gone");

    let mut client = UnixStream::connect(&path).expect("it listens");
    let post = request(
        &format!("POST {CHAT}"),
        &[("host", "any.name"), ("origin", "http://other.name")],
        &say("hi").to_string(),
    );
    client.write_all(post.as_bytes()).expect("it reads");

    assert_eq!(
        Reply::read(client).ok()["choices"][0]["message"]["content"],
        "hi"
    );
    served.stop();
    assert_eq!(served.ended(), Ended::Drained);
    assert_eq!(files(), 0);
}

#[test]
fn a_file_that_is_no_socket_stays() {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("no-socket");
    std::fs::write(&path, "precious").expect("a file");
    let refused = std::panic::catch_unwind(|| {
        Served::with(|setup| setup.address = Address::Unix(path.clone()))
    });
    assert!(refused.is_err());
    assert_eq!(std::fs::read_to_string(&path).expect("a file"), "precious");
}

#[test]
fn a_path_to_which_no_client_can_connect_is_refused() {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("s".repeat(120));
    let refused = std::panic::catch_unwind(|| {
        Served::with(|setup| setup.address = Address::Unix(path.clone()))
    });
    assert!(refused.is_err());
    assert!(!path.exists());
}

#[test]
fn one_request_cannot_make_the_steps_of_all_fail() {
    let served = Served::with(Setup::endless);
    let other = served.begin(CHAT, &with(say("on"), "max_tokens", json!(2000)));
    let mut poison = with(say("hi"), "stop_token_ids", json!([u32::MAX]));
    poison["min_tokens"] = json!(1);
    served
        .post(CHAT, &poison)
        .assert_error(400, "invalid_value", Some("stop_token_ids"));
    Reply::read(other).ok();
    assert_eq!(served.service.stats().engine_faults, 0);
}

#[test]
fn what_cannot_fit_is_refused_before_it_is_tokenized() {
    let served = Served::with(|setup| {
        let keys = Keys::parse("0123456789abcdef concurrency=1\n").expect("keys");
        setup.options.keys = keys;
    });
    let key = [("x-api-key", "0123456789abcdef")];
    let post =
        |path: &str, body: Value| served.request(&format!("POST {path}"), &key, &body.to_string());
    // No token has more than eight bytes, and a sequence has 1,024 tokens.
    let long = "a".repeat(8 * 1024 + 1);
    let body = json!({ "model": "scripted", "prompt": long });
    for path in [TEXT, "/tokenize"] {
        let reply = post(path, body.clone());
        reply.assert_error(400, "context_length_exceeded", Some("prompt"));
    }
    let content = post("/tokenize", json!({ "content": long }));
    content.assert_error(400, "context_length_exceeded", Some("content"));
    let tokens = json!({ "tokens": vec![token('a'); 1025] });
    post("/detokenize", tokens).assert_error(400, "invalid_value", Some("tokens"));
    post("/detokenize", json!({ "tokens": vec![token('a'); 1024] })).ok();
    // Short answers count as requests of the key too.
    served.control.hold();
    let mut waiting = served.connect();
    let text = request(&format!("POST {CHAT}"), &key, &say("hi").to_string());
    waiting.write_all(text.as_bytes()).expect("it reads");
    served.wait_for_running(1);
    let second = post("/tokenize", json!({ "content": "hi" }));
    second.assert_error(429, "concurrency_limit_exceeded", None);
    served.control.release();
    Reply::read(waiting).ok();
}

#[test]
fn other_addresses_than_loopback_require_keys() {
    let refused = std::panic::catch_unwind(|| {
        Served::with(|setup| setup.address = Address::Tcp(([0, 0, 0, 0], 0).into()))
    });
    assert!(refused.is_err());
}
