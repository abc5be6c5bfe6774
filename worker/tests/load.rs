//! `load`: requests to a server, and streams that are not as they must be.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;

use serde_json::{Value, json};

use http::{Reply, Served};
use support::{assert_fails, run, stderr};

#[path = "support/http.rs"]
mod http;
mod support;

#[test]
fn streams_are_counted_and_measured() {
    let served = Served::start();
    let url = &*served.url;
    for pace in [["--concurrency", "4"], ["--rate", "1000"]] {
        let arguments = [
            "load",
            "--url",
            url,
            "--requests",
            "20",
            "--prompt",
            "say hello {}",
            "--json",
        ];
        let output = run(&[&arguments[..], &pace].concat());
        assert!(output.status.success(), "{}", stderr(&output));
        let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");

        assert_eq!(report["model"], "scripted");
        assert_eq!(
            (&report["streams"], &report["failed"]),
            (&json!(20), &json!(0))
        );
        // The end of the text counts, which has no effect here; the engine continues with it.
        assert!(
            report["tokens"]
                .as_u64()
                .is_some_and(|count| count > 20 * 7),
            "{report}"
        );
        for name in ["ttft_ms", "itl_ms", "total_ms"] {
            let times = ["p50", "p90", "p99", "max"]
                .map(|name_| report[name][name_].as_f64().expect("a time"));
            assert!(times.is_sorted(), "{name}: {times:?}");
        }
    }
}

#[test]
fn refusals_are_failures() {
    let served = Served::start();
    let arguments = [
        "load",
        "--url",
        &served.url,
        "--requests",
        "3",
        "--model",
        "other",
    ];
    assert_fails(
        &run(&arguments),
        1,
        "3 of 3 requests failed: /v1/completions: status 404",
    );
    assert_fails(
        &run(&["load", "--url", "http://127.0.0.1:1"]),
        1,
        "/v1/models: ",
    );
    assert_eq!(run(&["load", "--url", "ftp://x"]).status.code(), Some(2));
}

/// A server that answers completions with these events, and says that each text of tokens is "ab".
fn lying(events: &[Value], done: &str) -> String {
    let chunks: String = events
        .iter()
        .map(|event| format!("data: {event}\n\n"))
        .collect();
    let stream = chunks + done;
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("http://{}", listener.local_addr().expect("an address"));
    std::thread::spawn(move || {
        for connection in listener.incoming() {
            let mut connection = connection.expect("a client");
            let mut input = BufReader::new(connection.try_clone().expect("a socket"));
            let mut line = String::new();
            input.read_line(&mut line).expect("a line");
            let head = Reply::read_head(&mut input);
            let length = head.headers["content-length"].parse().expect("a number");
            let mut body = vec![0; length];
            input.read_exact(&mut body).expect("a body");
            let answer = match line.contains("/detokenize") {
                true if body == b"{\"tokens\":[9]}" => "{\"content\":\"p\"}".to_owned(),
                true => "{\"content\":\"pab\"}".to_owned(),
                false => stream.clone(),
            };
            let head = format!(
                "HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n",
                answer.len()
            );
            let _ = connection.write_all((head + &answer).as_bytes());
        }
    });
    url
}

#[test]
fn streams_that_are_wrong_are_named() {
    let first = json!({ "choices": [{ "text": "", "prompt_token_ids": [9] }] });
    let a = json!({ "choices": [{ "text": "a", "token_ids": [1], "finish_reason": null }] });
    let b = json!({ "choices": [{ "text": "b", "token_ids": [2], "finish_reason": "length" }] });
    let x = json!({ "choices": [{ "text": "x", "token_ids": [2], "finish_reason": "length" }] });
    let usage = |count: u32| json!({ "choices": [], "usage": { "completion_tokens": count } });
    let failed = json!({ "error": { "message": "engine" } });
    let done = "data: [DONE]\n\n";
    for (events, done, part) in [
        (
            vec![&first, &a, &b, &usage(2)],
            "",
            "ends after 2 tokens without [DONE]",
        ),
        (
            vec![&first, &a, &b, &usage(3)],
            done,
            "2 tokens, but usage has [3]",
        ),
        (vec![&first, &a, &b], done, "usage has []"),
        (vec![&first, &a, &usage(1)], done, "0 ends"),
        (vec![&first, &b, &b, &usage(2)], done, "2 ends"),
        (
            vec![&first, &a, &x, &usage(2)],
            done,
            "the text is \"ax\", that of its tokens \"ab\"",
        ),
        (vec![&first, &a, &failed], done, "an error in the stream"),
        (
            vec![&first, &a, &b, &usage(2)],
            "data: [DONE]\n\ndata: {}\n\n",
            "after [DONE]",
        ),
    ] {
        let events: Vec<Value> = events.into_iter().cloned().collect();
        let url = lying(&events, done);
        let arguments = ["load", "--url", &url, "--requests", "1", "--model", "m"];
        assert_fails(&run(&arguments), 1, part);
    }
    let good = lying(&[first, a, b, usage(2)], done);
    let output = run(&["load", "--url", &good, "--requests", "1", "--model", "m"]);
    assert!(output.status.success(), "{}", stderr(&output));
}
