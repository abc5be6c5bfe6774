//! `serve`: the API of the older worker.

use std::io::Write;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;

use serde_json::{Value, json};
use worker_cuda::generate::service::Clock;
use worker_orcd::serve::{Address, DeviceReport, Ended, Keys};

use http::{Reply, Served, request};

#[path = "support/http.rs"]
mod http;

fn job(words: &str, more: Value) -> Value {
    let mut body =
        json!({ "job_id": "job-1", "prompt": format!("say {words}"), "max_tokens": 100 });
    for (name, value) in more.as_object().expect("an object") {
        body[name] = value.clone();
    }
    body
}

/// The events of a job; the name of each is its type.
#[track_caller]
fn events(reply: &Reply) -> Vec<Value> {
    assert_eq!(reply.status, 200, "{}", reply.body);
    let events = reply.body.split("\n\n").filter(|event| !event.is_empty());
    events
        .map(|event| {
            let (name, data) = event.split_once("\ndata: ").expect("a name and data");
            let data: Value = serde_json::from_str(data).expect("JSON");
            assert_eq!(name.strip_prefix("event: "), data["type"].as_str());
            data
        })
        .collect()
}

fn kinds(events: &[Value]) -> Vec<&str> {
    events
        .iter()
        .map(|event| event["type"].as_str().expect("a type"))
        .collect()
}

#[test]
fn a_job_is_a_stream_of_events_in_order() {
    let served = Served::start();

    let events = events(&served.post("/execute", &job("hey", json!({}))));

    assert_eq!(
        kinds(&events),
        ["started", "token", "token", "token", "metrics", "end"]
    );
    assert_eq!(
        (&events[0]["job_id"], &events[0]["model"]),
        (&json!("job-1"), &json!("scripted"))
    );
    assert!(
        events[0]["started_at"]
            .as_str()
            .is_some_and(|time| time.ends_with('Z'))
    );
    for (index, text) in ["h", "e", "y"].into_iter().enumerate() {
        let token = &events[1 + index];
        assert_eq!((&token["t"], &token["i"]), (&json!(text), &json!(index)));
    }
    assert!(
        events[4]["tokens_per_sec"]
            .as_f64()
            .is_some_and(|rate| rate > 0.0)
    );
    assert_eq!(events[5]["tokens_out"], 3);
    assert_eq!(events[5]["stop_reason"], "EOS");
    assert!(events[5]["decode_time_ms"].is_u64());
    // The id is free again.
    served
        .post("/execute", &job("hey", json!({})))
        .events_are(6);
}

impl Reply {
    #[track_caller]
    fn events_are(&self, count: usize) {
        assert_eq!(events(self).len(), count, "{}", self.body);
    }
}

#[test]
fn ends_have_their_reasons() {
    let served = Served::start();
    let end = |more: Value| {
        let events = events(&served.post("/execute", &job("hello", more)));
        events.last().expect("an end").clone()
    };

    let length = end(json!({ "max_tokens": 2 }));
    let stopped = end(json!({ "stop": ["xx", "lo"] }));

    assert_eq!(
        (&length["stop_reason"], &length["tokens_out"]),
        (&json!("MAX_TOKENS"), &json!(2))
    );
    assert_eq!(stopped["stop_reason"], "STOP_SEQUENCE");
    assert_eq!(stopped["stop_sequence_matched"], "lo");
    // Text that was held back for a stop string that did not come.
    let events = events(&served.post("/execute", &job("hel", json!({ "stop": ["lo"] }))));
    let text: String = events
        .iter()
        .filter_map(|event| event["t"].as_str())
        .collect();
    assert_eq!(text, "hel");
}

#[test]
fn all_that_is_wrong_is_reported_at_once() {
    let served = Served::start();
    let long = "x".repeat(32_769);
    let wrong = json!({
        "job_id": "", "prompt": long, "max_tokens": 2049, "temperature": 2.1, "top_p": -0.1, "top_k": -1,
        "repetition_penalty": "x", "min_p": 1.1, "seed": -1, "stop": ["1", "2", "3", "4", "5"],
    });

    let reply = served.post("/execute", &wrong);
    let missing = served.post("/execute", &json!({}));
    let stop = |stop: Value| served.post("/execute", &job("hi", json!({ "stop": stop })));

    assert_eq!(reply.status, 400);
    let errors = reply.json()["errors"].as_array().expect("a list").clone();
    let mut fields: Vec<&str> = errors
        .iter()
        .map(|error| error["field"].as_str().expect("a field"))
        .collect();
    fields.sort_unstable();
    assert_eq!(
        fields,
        [
            "job_id",
            "max_tokens",
            "min_p",
            "prompt",
            "repetition_penalty",
            "seed",
            "stop",
            "temperature",
            "top_k",
            "top_p"
        ]
    );
    let tokens = errors
        .iter()
        .find(|error| error["field"] == "max_tokens")
        .expect("an error");
    assert_eq!(tokens["constraint"], "an integer from 1 to 2048");
    assert_eq!(tokens["value"], 2049);
    assert!(errors.iter().all(|error| error["message"].is_string()));
    let missing = missing.json()["errors"].as_array().expect("a list").clone();
    assert!(
        missing
            .iter()
            .all(|error| error["constraint"] == "required"),
        "{missing:?}"
    );
    assert_eq!(missing.len(), 3);
    assert_eq!(stop(json!(["x".repeat(101)])).status, 400);
    assert_eq!(stop(json!([""])).status, 400);
    assert_eq!(stop(json!("x")).status, 400);
    // What is at its limit is accepted.
    let most = json!({
        "max_tokens": 1, "temperature": 2, "top_p": 0, "top_k": 0, "repetition_penalty": 0, "min_p": 1,
        "seed": u64::MAX, "stop": ["x".repeat(100), "2", "3", "4"],
    });
    events(&served.post("/execute", &job("hi", most)));
}

#[test]
fn what_is_no_job_is_an_error_of_the_same_form() {
    let served = Served::start();
    let errors = |reply: Reply| {
        assert_eq!(reply.status, 400, "{}", reply.body);
        reply.json()["errors"][0].clone()
    };

    let no_json = errors(served.request("POST /execute", &[], "{"));
    let too_long = errors(served.post(
        "/execute",
        &job(&"x".repeat(1000), json!({ "max_tokens": 2000 })),
    ));
    let no_method = served.get("/execute");

    assert_eq!(no_json["constraint"], "invalid_json");
    assert_eq!(too_long["constraint"], "context_length_exceeded");
    assert_eq!(no_method.status, 405);
    assert_eq!(no_method.json()["code"], "INVALID_REQUEST");
}

#[test]
fn a_job_is_cancelled_by_its_id() {
    let served = Served::start();
    served.control.hold();
    let stream = served.begin("/execute", &job("on", json!({})));
    served.wait_for_running(1);
    let twice = served.post("/execute", &job("hi", json!({})));
    let errors = &twice.json()["errors"];
    assert_eq!(errors[0]["constraint"], "unique", "{}", twice.body);

    for id in ["job-1", "job-1", "no-job"] {
        let cancelled = served.post("/cancel", &json!({ "job_id": id }));
        assert_eq!(cancelled.status, 202, "{}", cancelled.body);
    }
    let nothing = served.post("/cancel", &json!({}));
    served.control.release();

    assert_eq!(nothing.json()["errors"][0]["field"], "job_id");
    let events = events(&Reply::read(stream));
    assert_eq!(events[0]["type"], "started");
    assert_eq!(events.last().expect("an event")["code"], "CANCELLED");
    served.wait_for_running(0);
}

#[test]
fn a_job_is_cancelled_by_a_key_that_may_have_no_more_requests() {
    let keys = Keys::parse("first-secret-key concurrency=1\n").expect("a key");
    let served = Served::with(|setup| setup.options.keys = keys);
    let send = |path: &str, body: &Value| {
        let key = [("x-api-key", "first-secret-key")];
        let text = request(&format!("POST {path}"), &key, &body.to_string());
        let mut stream = served.connect();
        stream.write_all(text.as_bytes()).expect("it reads");
        stream
    };
    served.control.hold();
    let first = send("/execute", &job("on", json!({})));
    served.wait_for_running(1);

    let second = Reply::read(send("/execute", &job("on", json!({ "job_id": "job-2" }))));
    let cancelled = Reply::read(send("/cancel", &json!({ "job_id": "job-1" })));
    let long = json!({ "job_id": "job-1", "more": "x".repeat(4096) });
    let long = Reply::read(send("/cancel", &long));
    served.control.release();

    assert_eq!(second.status, 429);
    assert_eq!(second.json()["retriable"], true, "{}", second.body);
    assert_eq!(cancelled.status, 202, "{}", cancelled.body);
    assert_eq!(long.status, 413);
    assert_eq!(long.json()["retriable"], false, "{}", long.body);
    let events = events(&Reply::read(first));
    assert_eq!(events.last().expect("an event")["code"], "CANCELLED");
}

#[test]
fn jobs_of_other_callers_cannot_be_cancelled() {
    let keys = "first-secret-key tenant=a\nother-secret-key tenant=b\n";
    let served = Served::with(|setup| setup.options.keys = Keys::parse(keys).expect("keys"));
    served.control.hold();
    let mut stream = served.connect();
    let key = |key| [("x-api-key", key)];
    let text = request(
        "POST /execute",
        &key("first-secret-key"),
        &job("hi", json!({})).to_string(),
    );
    stream.write_all(text.as_bytes()).expect("it reads");
    served.wait_for_running(1);

    let other = served.request(
        "POST /cancel",
        &key("other-secret-key"),
        "{\"job_id\":\"job-1\"}",
    );

    assert_eq!(other.status, 202);
    served.control.release();
    assert_eq!(
        events(&Reply::read(stream)).last().expect("an event")["type"],
        "end"
    );
}

#[test]
fn failures_have_the_codes_of_the_older_worker() {
    let served = Served::start();
    served.control.hold();
    let stream = served.begin("/execute", &job("hello", json!({})));
    served.wait_for_running(1);

    served.control.fail(2);
    served.control.release();

    let events = events(&Reply::read(stream));
    let last = events.last().expect("an event");
    assert_eq!(
        (&last["type"], &last["code"]),
        (&json!("error"), &json!("INFERENCE_FAILED"))
    );
}

#[test]
fn a_wait_that_is_too_long_is_a_timeout() {
    let clock = Clock::manual();
    let served = Served::with(|setup| {
        setup.limits.max_sequences = 1;
        setup.service.clock = clock.clone();
        setup.service.queue_timeout = Duration::from_secs(5);
    });
    served.control.hold();
    let first = served.begin("/execute", &job("hi", json!({})));
    served.wait_for_running(1);
    let second = served.begin("/execute", &job("hi", json!({ "job_id": "job-2" })));
    while served.service.stats().waiting != 1 {
        std::thread::yield_now();
    }

    clock.advance(Duration::from_secs(6));
    served.control.release();

    let late = events(&Reply::read(second));
    assert_eq!(kinds(&late), ["started", "error"]);
    assert_eq!(late[0]["job_id"], "job-2");
    assert_eq!(late[1]["code"], "TIMEOUT");
    let message = late[1]["message"].as_str().expect("a message");
    assert!(message.contains("5 s"), "{message}");
    assert_eq!(
        events(&Reply::read(first)).last().expect("an event")["type"],
        "end"
    );
}

#[test]
fn a_full_queue_is_an_error_that_may_be_tried_again() {
    let served = Served::with(|setup| {
        setup.limits.max_sequences = 1;
        setup.service.max_queued = 1;
    });
    served.control.hold();
    let first = served.begin("/execute", &job("hi", json!({})));
    served.wait_for_running(1);
    let second = served.begin("/execute", &job("hi", json!({ "job_id": "job-2" })));
    while served.service.stats().waiting != 1 {
        std::thread::yield_now();
    }

    let full = served.post("/execute", &job("hi", json!({ "job_id": "job-3" })));

    assert_eq!(full.status, 503);
    let body = full.json();
    assert_eq!(
        (&body["code"], &body["retriable"]),
        (&json!("INSUFFICIENT_VRAM"), &json!(true))
    );
    served.control.release();
    Reply::read(first).events_are(5);
    Reply::read(second).events_are(5);
}

#[test]
fn a_shutdown_lets_jobs_end() {
    let served = Served::with(|setup| setup.options.worker_id = Some("worker-7".into()));
    served.control.hold();
    let stream = served.begin("/execute", &job("hi", json!({})));
    served.wait_for_running(1);

    let accepted = served.request("POST /shutdown", &[], "");

    assert_eq!(accepted.status, 202);
    while served.get("/health/ready").status != 503 {
        std::thread::yield_now();
    }
    assert_eq!(served.get("/health").json()["state"], "draining");
    assert_eq!(
        served.post("/execute", &job("hi", json!({}))).json()["code"],
        "UNAVAILABLE"
    );
    // Jobs can be cancelled to the end.
    assert_eq!(
        served.post("/cancel", &json!({ "job_id": "none" })).status,
        202
    );
    served.control.release();
    Reply::read(stream).events_are(5);
    assert_eq!(served.ended(), Ended::Drained);
}

#[test]
fn nobody_ends_a_server_without_keys_over_tcp() {
    let served = Served::start();
    let refused = served.request("POST /shutdown", &[], "");
    assert_eq!(refused.status, 403, "{}", refused.body);
    served.get("/health/ready").ok();

    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("shutdown.socket");
    let served = Served::with(|setup| setup.address = Address::Unix(path.clone()));
    let mut client = UnixStream::connect(&path).expect("it listens");
    let text = request("POST /shutdown", &[], "");
    client.write_all(text.as_bytes()).expect("it reads");
    assert_eq!(Reply::read(client).status, 202);
    assert_eq!(served.ended(), Ended::Drained);
}

#[test]
fn only_an_admin_may_end_the_server() {
    let keys = "first-secret-key\nother-secret-key role=admin\n";
    let served = Served::with(|setup| setup.options.keys = Keys::parse(keys).expect("keys"));
    let post = |key| served.request("POST /shutdown", &[("x-api-key", key)], "");

    let refused = post("first-secret-key");
    assert_eq!(refused.status, 403);
    assert_eq!(post("other-secret-key").status, 202);
    assert_eq!(served.ended(), Ended::Drained);
}

#[test]
fn memory_off_the_device_shows_in_health() {
    let is_resident = Arc::new(AtomicBool::new(true));
    let checked = Arc::clone(&is_resident);
    let served = Served::with(|setup| {
        setup.options.worker_id = Some("worker-7".into());
        setup.options.residency_period = Duration::from_millis(1);
        setup.model.device = DeviceReport {
            sm: Some(90),
            cuda_runtime_version: Some("13.0".into()),
            total_bytes: Some(80 << 30),
        };
        setup.model.residency = Some(Arc::new(move || match checked.load(SeqCst) {
            true => Ok(()),
            false => Err("'weights' is managed memory".into()),
        }));
    });
    let health = served.get("/health").ok();
    for (field, value) in [
        ("status", json!("ok")),
        ("worker_id", json!("worker-7")),
        ("resident", json!(true)),
        ("tokenizer_kind", json!("gguf-llama")),
        ("sm", json!(90)),
        ("cuda_runtime_version", json!("13.0")),
        ("vram_bytes_total", json!(80u64 << 30)),
        ("state", json!("ready")),
    ] {
        assert_eq!(health[field], value, "{field}");
    }

    is_resident.store(false, SeqCst);
    while served.get("/health/ready").status != 503 {
        std::thread::yield_now();
    }

    let health = served.get("/health");
    assert_eq!(
        (health.status, &health.json()["state"]),
        (503, &json!("failed"))
    );
    assert_eq!(health.json()["resident"], false);
}
