//! `serve`: answers to well-formed requests, over real sockets, of a scripted engine.

use std::io::BufReader;
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};
use worker_cuda::text::TokenType;
use worker_orcd::serve::{Keys, SamplingDefaults};

use http::{END, Reply, Served, Setup, token, vocabulary};

#[path = "support/http.rs"]
mod http;

const CHAT: &str = "/v1/chat/completions";
const TEXT: &str = "/v1/completions";

/// A chat request with more fields.
fn chat(words: &str, more: Value) -> Value {
    let mut body = json!({
        "model": "scripted",
        "messages": [{ "role": "user", "content": format!("say {words}") }],
    });
    for (name, value) in more.as_object().expect("an object") {
        body[name] = value.clone();
    }
    body
}

fn text(more: Value) -> Value {
    let mut body = json!({ "model": "scripted" });
    for (name, value) in more.as_object().expect("an object") {
        body[name] = value.clone();
    }
    body
}

/// The chunks of a stream, which must end with [DONE].
#[track_caller]
fn chunks(reply: &Reply) -> Vec<Value> {
    let mut events = reply.events();
    assert_eq!(events.pop().as_deref(), Some("[DONE]"));
    let parse = |event: &String| serde_json::from_str(event).expect("JSON");
    events.iter().map(parse).collect()
}

#[test]
fn a_chat_is_answered_with_text_and_counts() {
    let served = Served::start();

    let reply = served.post(CHAT, &chat("hello", json!({})));
    let body = reply.ok();

    assert_eq!(body["object"], "chat.completion");
    assert!(
        body["id"]
            .as_str()
            .is_some_and(|id| id.starts_with("chatcmpl-"))
    );
    assert_eq!(body["model"], "scripted");
    assert_eq!(body["system_fingerprint"], "fp_test");
    assert_eq!(
        body["choices"],
        json!([{
            "index": 0,
            "message": { "role": "assistant", "content": "hello", "refusal": null },
            "logprobs": null,
            "finish_reason": "stop",
        }])
    );
    let prompt = "user:say hello;assistant:".len();
    assert_eq!(
        body["usage"],
        json!({
            "prompt_tokens": prompt,
            "completion_tokens": 5,
            "total_tokens": prompt + 5,
            "prompt_tokens_details": { "cached_tokens": 0 },
            "completion_tokens_details": {
                "reasoning_tokens": 0,
                "accepted_prediction_tokens": 0,
                "rejected_prediction_tokens": 0,
            },
        })
    );
    assert!(!reply.headers.contains_key("x-worker-ignored"));
    assert!(reply.headers["x-request-id"].starts_with("req-"));
}

#[test]
fn a_streamed_chat_begins_with_the_role_and_ends_once() {
    let served = Served::start();

    let reply = served.post(CHAT, &chat("hello", json!({ "stream": true })));
    let chunks = chunks(&reply);

    assert_eq!(
        chunks[0]["choices"][0]["delta"],
        json!({ "role": "assistant", "content": "" })
    );
    let content = |chunk: &Value| {
        chunk["choices"][0]["delta"]["content"]
            .as_str()
            .map(str::to_owned)
    };
    let whole: String = chunks.iter().filter_map(content).collect();
    assert_eq!(whole, "hello");
    let reasons = chunks
        .iter()
        .map(|chunk| &chunk["choices"][0]["finish_reason"]);
    let reasons: Vec<_> = reasons.filter(|reason| !reason.is_null()).collect();
    assert_eq!(reasons, ["stop"]);
    for chunk in &chunks {
        assert_eq!(chunk["id"], chunks[0]["id"]);
        assert_eq!(chunk["object"], "chat.completion.chunk");
        assert_eq!(chunk.get("usage"), None);
    }
}

#[test]
fn a_stream_has_counts_only_if_they_are_asked_for() {
    let served = Served::start();
    let more = json!({ "stream": true, "stream_options": { "include_usage": true } });

    let mut chunks = chunks(&served.post(CHAT, &chat("hi", more)));

    let last = chunks.pop().expect("a chunk");
    assert_eq!(last["choices"], json!([]));
    assert_eq!(last["usage"]["completion_tokens"], 2);
    assert!(chunks.iter().all(|chunk| chunk["usage"].is_null()));
}

#[test]
fn choices_use_consecutive_seeds() {
    let served = Served::start();

    let whole = served
        .post(CHAT, &chat("seed", json!({ "n": 3, "seed": 5 })))
        .ok();
    let streamed = served.post(
        CHAT,
        &chat("seed", json!({ "n": 3, "seed": 5, "stream": true })),
    );

    let contents: Vec<_> = (0..3)
        .map(|index| &whole["choices"][index]["message"]["content"])
        .collect();
    assert_eq!(contents, ["5", "6", "7"]);
    let mut texts = vec![String::new(); 3];
    for chunk in chunks(&streamed) {
        let choice = &chunk["choices"][0];
        let index = choice["index"].as_u64().expect("an index") as usize;
        texts[index] += choice["delta"]["content"].as_str().unwrap_or_default();
    }
    assert_eq!(texts, ["5", "6", "7"]);
}

#[test]
fn stops_limits_and_ends_are_reported() {
    let served = Served::start();
    for (words, more, content, reason, stop) in [
        (
            "hello you",
            json!({ "stop": "lo" }),
            "hel",
            "stop",
            json!("lo"),
        ),
        (
            "hello you",
            json!({ "stop": ["x", " y"] }),
            "hello",
            "stop",
            json!(" y"),
        ),
        (
            "hello",
            json!({ "max_tokens": 2 }),
            "he",
            "length",
            Value::Null,
        ),
        (
            "hello",
            json!({ "max_tokens": 2, "max_completion_tokens": 3 }),
            "hel",
            "length",
            Value::Null,
        ),
        (
            "hello",
            json!({ "stop_token_ids": [token('l')] }),
            "he",
            "stop",
            json!(token('l')),
        ),
        (
            "hi",
            json!({ "ignore_eos": true, "max_tokens": 4 }),
            "hi",
            "length",
            Value::Null,
        ),
    ] {
        for stream in [false, true] {
            let mut more = more.clone();
            more["stream"] = stream.into();
            let reply = served.post(CHAT, &chat(words, more.clone()));
            let found = if stream {
                let chunks = chunks(&reply);
                let deltas = chunks
                    .iter()
                    .map(|chunk| &chunk["choices"][0]["delta"]["content"]);
                let text: String = deltas.filter_map(Value::as_str).collect();
                let last = chunks.last().expect("a chunk")["choices"][0].clone();
                (
                    text,
                    last["finish_reason"].clone(),
                    last["stop_reason"].clone(),
                )
            } else {
                let choice = reply.ok()["choices"][0].clone();
                let text = choice["message"]["content"]
                    .as_str()
                    .expect("text")
                    .to_owned();
                (
                    text,
                    choice["finish_reason"].clone(),
                    choice["stop_reason"].clone(),
                )
            };
            assert_eq!(
                found,
                (content.to_owned(), json!(reason), stop.clone()),
                "{more}"
            );
        }
    }
}

#[test]
fn the_server_limits_answers() {
    let served = Served::with(|setup| setup.options.max_output_tokens = Some(3));
    for more in [json!({}), json!({ "max_tokens": 900 })] {
        let body = served.post(CHAT, &chat("hello", more)).ok();
        assert_eq!(body["choices"][0]["message"]["content"], "hel");
        assert_eq!(body["choices"][0]["finish_reason"], "length");
    }
}

#[test]
fn log_probabilities_have_bytes_and_alternatives() {
    let served = Served::start();

    let body = served
        .post(CHAT, &chat("hi", json!({ "logprobs": true })))
        .ok();
    let streamed = served.post(
        CHAT,
        &chat("hi", json!({ "logprobs": true, "stream": true })),
    );

    let content = body["choices"][0]["logprobs"]["content"]
        .as_array()
        .expect("a list")
        .clone();
    let tokens: Vec<_> = content.iter().map(|entry| &entry["token"]).collect();
    assert_eq!(tokens, ["h", "i"]);
    assert_eq!(content[0]["bytes"], json!([b'h']));
    assert!(content[0]["logprob"].is_number() && content[0]["top_logprobs"].is_array());
    let mut entries = Vec::new();
    for chunk in chunks(&streamed) {
        let logprobs = &chunk["choices"][0]["logprobs"]["content"];
        entries.extend(logprobs.as_array().cloned().unwrap_or_default());
    }
    assert_eq!(entries, content);
}

#[test]
fn token_ids_are_returned_on_request() {
    let served = Served::start();

    let chatted = served
        .post(CHAT, &chat("hi", json!({ "return_token_ids": true })))
        .ok();
    let body = text(json!({ "prompt": "say hi", "return_token_ids": true, "logprobs": 0 }));
    let completed = served.post(TEXT, &body).ok();

    assert_eq!(
        chatted["choices"][0]["token_ids"],
        json!([token('h'), token('i')])
    );
    assert_eq!(chatted["prompt_token_ids"][0], token('u'));
    let choice = &completed["choices"][0];
    assert_eq!(choice["prompt_token_ids"].as_array().map(Vec::len), Some(6));
    assert_eq!(choice["logprobs"]["tokens"], json!(["h", "i"]));
    assert_eq!(choice["logprobs"]["text_offset"], json!([0, 1]));
    assert_eq!(choice["logprobs"]["top_logprobs"], Value::Null);
}

#[test]
fn text_completions_take_text_or_tokens() {
    let served = Served::start();
    let tokens: Vec<u32> = "say hi".chars().map(token).collect();
    for prompt in [
        json!("say hi"),
        json!(["say hi"]),
        json!(tokens),
        json!([tokens]),
    ] {
        let body = served.post(TEXT, &text(json!({ "prompt": prompt }))).ok();
        assert_eq!(body["object"], "text_completion");
        assert_eq!(body["choices"][0]["text"], "hi");
        assert_eq!(body["choices"][0]["finish_reason"], "stop");
    }

    let long = served.post(TEXT, &text(json!({ "prompt": "say on" }))).ok();
    assert_eq!(long["usage"]["completion_tokens"], 16);
    let more = json!({ "prompt": "say hi", "echo": true });
    assert_eq!(
        served.post(TEXT, &text(more)).ok()["choices"][0]["text"],
        "say hihi"
    );
    let more = json!({ "prompt": "say hi", "echo": true, "stream": true });
    let chunks = chunks(&served.post(TEXT, &text(more)));
    let whole: String = chunks
        .iter()
        .filter_map(|chunk| chunk["choices"][0]["text"].as_str())
        .collect();
    assert_eq!(whole, "say hihi");
    let more = json!({ "prompt": "say hi", "best_of": 4, "n": 2 });
    let best = served.post(TEXT, &text(more)).ok();
    assert_eq!(best["choices"].as_array().map(Vec::len), Some(2));
    assert_eq!(best["usage"]["completion_tokens"], 8);
}

#[test]
fn a_suffix_is_the_text_behind_a_gap() {
    let served = Served::with(|setup| {
        for text in ["<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"] {
            setup.vocabulary.tokens.push(text.into());
            setup.vocabulary.token_types.push(TokenType::Control);
            setup.vocabulary.scores.push(0.0);
        }
    });
    let marker = vocabulary().tokens.len() as u32;
    let ask = |more: Value| {
        let mut body = text(json!({ "prompt": "say hi;", "suffix": "ab" }));
        body["return_token_ids"] = true.into();
        for (name, value) in more.as_object().expect("an object") {
            body[name] = value.clone();
        }
        served.post(TEXT, &body)
    };

    let filled = ask(json!({})).ok();
    let plain = ask(json!({ "suffix": "" })).ok();

    let mut prompt: Vec<u32> = "say hi;".chars().map(token).collect();
    assert_eq!(plain["choices"][0]["prompt_token_ids"], json!(prompt));
    prompt.insert(0, marker);
    prompt.extend([marker + 1, token('a'), token('b'), marker + 2]);
    assert_eq!(filled["choices"][0]["prompt_token_ids"], json!(prompt));
    assert_eq!(filled["choices"][0]["text"], "hi");
    let tokens = ask(json!({ "prompt": [3] }));
    tokens.assert_error(400, "unsupported_value", Some("suffix"));
    let echo = ask(json!({ "echo": true }));
    echo.assert_error(400, "unsupported_value", Some("echo"));
    let long = ask(json!({ "suffix": "a".repeat(20_000) }));
    long.assert_error(400, "context_length_exceeded", Some("prompt"));
}

#[test]
fn parts_of_text_and_developers_are_understood() {
    let served = Served::start();
    let body = json!({
        "model": "alias",
        "messages": [
            { "role": "developer", "content": "be terse" },
            { "role": "user", "content": [{ "type": "text", "text": "say" }, { "type": "text", "text": "hi" }] },
        ],
    });

    let rendered = served.post("/apply-template", &body).ok();

    assert_eq!(
        rendered["prompt"],
        "system:be terse;user:say\nhi;assistant:"
    );
}

#[test]
fn harmless_fields_are_accepted_and_unknown_ones_are_named() {
    let served = Served::start();
    let harmless = json!({
        "store": true, "metadata": { "a": "b" }, "user": "x", "service_tier": "auto",
        "parallel_tool_calls": true, "tools": [], "tool_choice": "auto",
        "response_format": { "type": "text" }, "temperature": 0, "top_p": 1, "top_k": 0, "min_p": 0,
        "presence_penalty": 0, "frequency_penalty": 0.5, "repetition_penalty": 1.1, "seed": -1,
        "logit_bias": { "5": -100 }, "priority": 3, "cache_salt": "s", "reasoning_effort": "low",
    });

    let reply = served.post(CHAT, &chat("hi", harmless));
    let unknown = served.post(
        CHAT,
        &chat("hi", json!({ "zeta": 1, "alpha": null, "beta": 2 })),
    );

    reply.ok();
    assert!(
        !reply.headers.contains_key("x-worker-ignored"),
        "{:?}",
        reply.headers
    );
    unknown.ok();
    assert_eq!(unknown.headers["x-worker-ignored"], "alpha, beta, zeta");
}

#[test]
fn strict_servers_refuse_unknown_fields() {
    let served = Served::with(|setup| setup.options.strict = true);
    served.post(CHAT, &chat("hi", json!({}))).ok();
    let reply = served.post(CHAT, &chat("hi", json!({ "zeta": 1 })));
    reply.assert_error(400, "unknown_parameter", Some("zeta"));
}

#[test]
fn models_are_listed_and_found_by_all_names() {
    let served = Served::start();

    let list = served.get("/v1/models").ok();

    assert_eq!(list["data"][0]["id"], "scripted");
    assert_eq!(list["data"][0]["max_model_len"], 1024);
    assert_eq!(list["data"][0]["state"], "ready");
    assert_eq!(served.get("/v1/models/alias").ok(), list["data"][0]);
    let missing = served.get("/v1/models/other");
    missing.assert_error(404, "model_not_found", Some("model"));
}

#[test]
fn texts_become_tokens_and_back() {
    let served = Served::start();
    let ids = json!([token('h'), token('i')]);

    let tokens = served.post("/tokenize", &json!({ "content": "hi" })).ok();
    let with_marker = served.post(
        "/tokenize",
        &json!({ "prompt": "hi</s>", "parse_special": true }),
    );
    let chat = served.post("/tokenize", &chat("hi", json!({}))).ok();
    let back = served.post("/detokenize", &json!({ "tokens": ids })).ok();

    assert_eq!(tokens, json!({ "tokens": ids, "count": 2 }));
    assert_eq!(with_marker.ok()["tokens"][2], END);
    assert_eq!(chat["count"], "user:say hi;assistant:".len());
    assert_eq!(back["content"], "hi");
    for path in ["/tokenize", "/detokenize"] {
        let body = json!({ "model": "other", "content": "hi", "tokens": ids });
        let other = served.post(path, &body);
        other.assert_error(404, "model_not_found", Some("model"));
    }
    let both = served.post("/tokenize", &json!({ "content": "hi", "messages": [] }));
    both.assert_error(400, "invalid_value", Some("messages"));
    let missing = served.post("/tokenize", &json!({ "text": "a" }));
    let message = missing.assert_error(400, "missing_required_parameter", Some("content"));
    assert_eq!(message, "content, prompt or messages is required");
    let missing = served.post("/detokenize", &json!({}));
    missing.assert_error(400, "missing_required_parameter", Some("tokens"));
    let unknown = served.post("/detokenize", &json!({ "tokens": [4_000_000_000u32] }));
    unknown.assert_error(400, "invalid_value", Some("tokens"));
}

#[test]
fn health_and_metrics_count_what_was_done() {
    let served = Served::start();
    served.post(CHAT, &chat("hello", json!({}))).ok();
    served.get("/nowhere");

    let health = served.get("/health").ok();
    let metrics = served.get("/metrics");

    assert_eq!(
        (&health["status"], &health["context_length"]),
        (&json!("ok"), &json!(1024))
    );
    assert_eq!(served.get("/health/live").ok()["status"], "ok");
    assert_eq!(served.get("/health/ready").ok()["status"], "ready");
    for line in [
        "worker_requests_accepted_total 1",
        "worker_requests_total{outcome=\"done\"} 1",
        "worker_tokens_generated_total 5",
        "worker_choices_finished_total{reason=\"eos\"} 1",
        "worker_http_responses_total{status=\"404\"} 1",
        "worker_time_to_first_token_seconds_count 1",
        "worker_inter_token_seconds_count 4",
        "worker_inference_duration_ms_count 1",
        "vllm:num_requests_running{model_name=\"scripted\"} 0",
        "vllm:num_requests_waiting{model_name=\"scripted\"} 0",
        "vllm:kv_cache_usage_perc{model_name=\"scripted\"} 0",
        "vllm:cache_config_info{block_size=\"64\",num_gpu_blocks=\"64\"} 1",
    ] {
        assert!(
            metrics.body.lines().any(|found| found == line),
            "{line}\n{}",
            metrics.body
        );
    }
    // Each line is a comment, or a name with labels and a number.
    for line in metrics.body.lines().filter(|line| !line.starts_with('#')) {
        let (_, value) = line.rsplit_once(' ').expect("two words");
        value.parse::<f64>().expect("a number");
    }
}

#[test]
fn a_client_gets_its_request_id_back() {
    let served = Served::start();
    let reply = served.request("GET /v1/models", &[("x-request-id", "my-id.7")], "");
    assert_eq!(reply.headers["x-request-id"], "my-id.7");
}

#[test]
fn a_connection_serves_many_requests() {
    use std::io::Write;
    let served = Served::start();
    let mut stream = served.connect();
    let once = "GET /health/live HTTP/1.1\r\nhost: localhost\r\n\r\n";
    let last = "GET /v1/models HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";

    stream
        .write_all(format!("{once}{last}").as_bytes())
        .expect("it reads");

    let mut input = BufReader::new(stream);
    let first = Reply::read_head(&mut input);
    assert_eq!(first.status, 200);
    let mut body = vec![0; first.headers["content-length"].parse().expect("a length")];
    std::io::Read::read_exact(&mut input, &mut body).expect("a body");
    Reply::read(input).ok();
}

#[test]
fn the_defaults_of_a_model_are_those_of_openai() {
    let defaults = SamplingDefaults::default();
    assert_eq!(
        (defaults.temperature, defaults.top_p, defaults.top_k),
        (1.0, 1.0, 0)
    );
}

/// A server whose log lines are kept.
fn logged(texts: bool) -> (Served, Arc<Mutex<Vec<Value>>>) {
    logged_with(|setup| setup.options.log_texts = texts)
}

fn logged_with(change: impl FnOnce(&mut Setup)) -> (Served, Arc<Mutex<Vec<Value>>>) {
    let lines = Arc::new(Mutex::new(Vec::new()));
    let sink = Arc::clone(&lines);
    let served = Served::with(|setup| {
        setup.endless();
        change(setup);
        setup.options.log = Some(Arc::new(move |line: &str| {
            let line = serde_json::from_str(line).expect("JSON");
            sink.lock().expect("no panic").push(line);
        }));
    });
    (served, lines)
}

/// Waits for the lines: one is written after the client has its answer.
fn log_lines(lines: &Mutex<Vec<Value>>, count: usize) -> Vec<Value> {
    loop {
        let lines = lines.lock().expect("no panic").clone();
        if lines.len() >= count {
            return lines;
        }
        std::thread::yield_now();
    }
}

#[test]
fn each_request_has_one_line_in_the_log_without_its_text() {
    let (served, lines) = logged(false);
    served.post(CHAT, &chat("hello", json!({}))).ok();
    served.post(CHAT, &chat("hello", json!({ "stream": true })));
    served.post(CHAT, &json!({ "model": "other", "messages": [] }));
    served.get("/v1/models").ok();
    served.get("/health/live").ok();
    served.get("/metrics");

    let mut found = log_lines(&lines, 4);

    found.sort_by_key(|line| line["outcome"].to_string());
    let outcomes: Vec<_> = found.iter().map(|line| &line["outcome"]).collect();
    assert_eq!(outcomes, ["answered", "done", "done", "refused"]);
    assert_eq!(
        (&found[0]["path"], &found[3]["status"]),
        (&json!("/v1/models"), &json!(404))
    );
    for line in &found[1..3] {
        assert_eq!(line["completion_tokens"], 5);
        assert_eq!(line["prompt_tokens"], "user:say hello;assistant:".len());
        for name in ["queue_ms", "ttft_ms", "itl_ms", "total_ms"] {
            assert!(line[name].is_number(), "{name}: {line}");
        }
        assert!(line["id"].as_str().is_some_and(|id| id.starts_with("req-")));
        assert!(!line.to_string().contains("hello"), "{line}");
    }
}

#[test]
fn the_counts_of_the_log_are_those_of_all_choices() {
    let (served, lines) = logged(false);
    let words = "x".repeat(100);
    for more in [
        json!({ "n": 3 }),
        json!({}),
        json!({ "n": 2, "stream": true }),
    ] {
        let reply = served.post(CHAT, &chat(&words, more));
        assert_eq!(reply.status, 200, "{}", reply.body);
    }

    let found = log_lines(&lines, 3);

    let column = |name: &str| -> Vec<u64> {
        let counts = found.iter().map(|line| line[name].as_u64());
        counts.map(|count| count.expect("a number")).collect()
    };
    let length = format!("user:say {words};assistant:").len() as u64;
    assert_eq!(column("prompt_tokens"), [3 * length, length, 2 * length]);
    assert_eq!(column("completion_tokens"), [300, 100, 200]);
    let cached = column("cached_tokens");
    assert_eq!(cached, [2 * (length - 1), 0, length - 1]);
    let stats = served.service.stats();
    assert_eq!(cached.iter().sum::<u64>(), stats.cached_tokens);
    assert_eq!(
        column("prompt_tokens").iter().sum::<u64>(),
        stats.prompt_tokens
    );
}

#[test]
fn the_log_has_texts_only_on_request_and_reports_who_left() {
    let (served, lines) = logged(true);
    served.post(CHAT, &chat("hello", json!({}))).ok();
    assert_eq!(log_lines(&lines, 1)[0]["answer"], "hello");
    assert_eq!(
        lines.lock().expect("no panic")[0]["prompt"],
        "user:say hello;assistant:"
    );

    let gone = served.begin(CHAT, &chat("on", json!({ "stream": true })));
    served.wait_for_running(1);
    drop(gone);

    assert_eq!(log_lines(&lines, 2)[1]["outcome"], "cancelled");
    let cancelled = "worker_requests_total{outcome=\"cancelled\"} 1";
    while !served.get("/metrics").body.contains(cancelled) {
        std::thread::yield_now();
    }
}

#[test]
fn a_job_ended_by_cancel_is_cancelled_in_the_log_and_the_metrics() {
    let (served, lines) = logged(false);
    let job = json!({ "job_id": "job-1", "prompt": "say on", "max_tokens": 2048 });
    served.control.hold();
    let stream = served.begin("/execute", &job);
    served.wait_for_running(1);

    served.post("/cancel", &json!({ "job_id": "job-1" }));
    served.control.release();

    let reply = Reply::read(stream);
    assert!(reply.body.contains("CANCELLED"), "{}", reply.body);
    let lines = log_lines(&lines, 2);
    let line = lines.iter().find(|line| line["path"] == "/execute");
    assert_eq!(line.expect("a line")["outcome"], "cancelled");
    let metrics = served.get("/metrics").body;
    assert!(metrics.contains("worker_requests_total{outcome=\"cancelled\"} 1"));
    assert!(!metrics.contains("worker_requests_total{outcome=\"done\"}"));
}

#[test]
fn the_role_of_a_key_decides_its_paths() {
    let (served, lines) = logged_with(|setup| {
        let keys = Keys::parse("monitor-monitor-1 role=monitor tenant=m\n").expect("keys");
        setup.options.keys = keys;
    });
    let key = [("x-api-key", "monitor-monitor-1")];
    assert_eq!(served.request("GET /metrics", &key, "").status, 200);
    let refused = served.request("GET /v1/models", &key, "");
    refused.assert_error(403, "role_not_allowed", None);
    assert_eq!(log_lines(&lines, 1)[0]["tenant"], "m");
}

#[test]
fn the_page_is_small_and_loads_nothing_else() {
    let served = Served::start();
    let mut bytes = 0;
    for (path, kind) in [
        ("/", "text/html"),
        ("/page.css", "text/css"),
        ("/page.js", "text/javascript"),
    ] {
        let reply = served.get(path);
        assert_eq!(reply.status, 200, "{path}");
        assert!(reply.headers["content-type"].starts_with(kind), "{path}");
        let policy = &reply.headers["content-security-policy"];
        assert!(
            policy.starts_with("default-src 'none'; script-src 'self'; style-src 'self'"),
            "{policy}"
        );
        assert!(
            !policy.contains("unsafe") && !policy.contains('*'),
            "{policy}"
        );
        assert_eq!(reply.headers["x-content-type-options"], "nosniff");
        for inline in ["<style", " style=", "onclick=", "http://", "https://"] {
            assert!(!reply.body.contains(inline), "{path}: {inline}");
        }
        bytes += reply.body.len();
    }
    assert!(bytes < 60_000, "{bytes} bytes");
}
