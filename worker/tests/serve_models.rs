//! `serve`: models that are loaded and unloaded while the server runs, with scripted engines.

use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};
use worker_cuda::generate::Service;
use worker_cuda::generate::service::{self, EngineLimits, ScriptControl};
use worker_cuda::text::Tokenizer;
use worker_orcd::serve::{Ended, Keys, LoadModel, Loadable, ServedModel};

use http::{Reply, Served, Setup, request, vocabulary};

#[path = "support/http.rs"]
mod http;

const TEXT: &str = "/v1/completions";
const LOAD: &str = "POST /v1/models/second/load";
const UNLOAD: &str = "POST /v1/models/second/unload";

/// A second model on an engine of its own.
#[derive(Default)]
struct Second {
    has_no_room: AtomicBool,
    /// Whether loading waits until the client leaves.
    waits: AtomicBool,
    control: Mutex<Option<ScriptControl>>,
}

impl LoadModel for Second {
    fn check_room(&self) -> Result<(), String> {
        match self.has_no_room.load(SeqCst) {
            true => Err("weights 2 bytes, 1 bytes are available".into()),
            false => Ok(()),
        }
    }

    fn load(
        &self,
        progress: &mut dyn FnMut(u64, u64) -> bool,
    ) -> Result<(Service, ServedModel), String> {
        for done in [0, 50, 50, 100] {
            assert!(progress(done, 100), "nobody has left");
        }
        while self.waits.load(SeqCst) {
            if !progress(100, 100) {
                return Err("the client has left".into());
            }
        }
        let tokenizer = Tokenizer::from_vocabulary(vocabulary()).expect("a vocabulary");
        let tokenizer = Arc::new(tokenizer);
        let limits = EngineLimits::new(64, vocabulary().tokens.len() as u32);
        let engine = http::engine(&tokenizer, limits);
        *self.control.lock().expect("no panic") = Some(engine.control());
        let options = service::Options::default();
        let service = Service::start(engine, Some(tokenizer), options).expect("it starts");
        Ok((service, ServedModel::new("any name")))
    }
}

/// A server with a second model, whose manager has no key.
fn served(change: impl FnOnce(&mut Setup)) -> (Served, Arc<Second>) {
    let second = Arc::<Second>::default();
    let served = Served::with(|setup| {
        let names = vec!["second".to_owned(), "other".to_owned()];
        let model = Arc::clone(&second) as Arc<dyn LoadModel>;
        setup.options.loadable = vec![Loadable::new(names, model)];
        setup.options.worker_id = Some("worker-7".into());
        change(setup);
    });
    (served, second)
}

fn say(words: &str, model: &str) -> Value {
    json!({ "model": model, "prompt": format!("say {words}") })
}

fn state(served: &Served) -> Value {
    served.get("/v1/models/other").ok()["state"].take()
}

#[track_caller]
fn load(served: &Served) -> String {
    let reply = served.request(LOAD, &[], "");
    assert_eq!(reply.status, 200, "{}", reply.body);
    assert!(reply.body.contains("event: loaded\n"), "{}", reply.body);
    reply.body
}

#[test]
fn names_that_no_model_can_have_are_refused_like_others() {
    let (served, _) = served(|_| ());
    for name in ["nothing", "%ff", "a%2fb"] {
        for (method, rest) in [("GET", ""), ("POST", "/load"), ("POST", "/unload")] {
            let reply = served.request(&format!("{method} /v1/models/{name}{rest}"), &[], "");
            reply.assert_error(404, "model_not_found", Some("model"));
        }
    }
}

#[test]
fn a_model_is_loaded_answers_and_is_unloaded() {
    let (served, _) = served(|_| ());
    let list = served.get("/v1/models").ok();
    assert_eq!(list["data"][1]["id"], "second");
    assert_eq!(list["data"][1]["state"], "unloaded");
    let early = served.post(TEXT, &say("hi", "other"));
    early.assert_error(503, "model_not_loaded", Some("model"));
    assert!(early.headers.contains_key("retry-after"));

    let events = load(&served);
    let progress: Vec<&str> = events.matches("\"done_bytes\":").collect();
    assert_eq!(progress.len(), 3, "each hundredth once: {events}");
    assert_eq!(state(&served), "ready");
    for (name, model) in [
        ("other", "second"),
        ("second", "second"),
        ("alias", "scripted"),
    ] {
        let answer = served.post(TEXT, &say("hi", name)).ok();
        assert_eq!(
            (&answer["model"], &answer["choices"][0]["text"]),
            (&json!(model), &json!("hi"))
        );
    }
    assert!(!load(&served).contains("progress"), "it is loaded already");
    let unloaded = served.request(UNLOAD, &[], "").ok();
    assert_eq!(unloaded["cut_requests"], 0);

    assert_eq!(state(&served), "unloaded");
    served
        .post(TEXT, &say("hi", "second"))
        .assert_error(503, "model_not_loaded", Some("model"));
    served.request(UNLOAD, &[], "").ok();
    load(&served);
    served.post(TEXT, &say("hi", "second")).ok();
    let metrics = served.get("/metrics").body;
    for line in [
        "worker_requests_accepted_total 4",
        "worker_tokens_generated_total 8",
        "vllm:num_requests_running{model_name=\"scripted\"} 0",
        "vllm:num_requests_running{model_name=\"second\"} 0",
    ] {
        assert!(
            metrics.lines().any(|found| found == line),
            "{line}: {metrics}"
        );
    }
    for path in ["load", "unload"] {
        let first = served.request(&format!("POST /v1/models/alias/{path}"), &[], "");
        first.assert_error(409, "model_fixed", Some("model"));
        let none = served.request(&format!("POST /v1/models/none/{path}"), &[], "");
        none.assert_error(404, "model_not_found", Some("model"));
    }
}

#[test]
fn a_model_without_room_is_refused_with_the_numbers() {
    let (served, second) = served(|_| ());
    second.has_no_room.store(true, SeqCst);

    let message = served
        .request(LOAD, &[], "")
        .assert_error(409, "no_room", Some("model"));

    assert!(
        message.contains("weights 2 bytes, 1 bytes are available"),
        "{message}"
    );
    assert_eq!(state(&served), "unloaded");
    second.has_no_room.store(false, SeqCst);
    load(&served);
}

#[test]
fn a_client_that_leaves_ends_the_loading() {
    let (served, second) = served(|_| ());
    second.waits.store(true, SeqCst);
    let mut client = served.connect();
    client
        .write_all(request(LOAD, &[], "").as_bytes())
        .expect("it reads");
    while state(&served) != "loading" {
        std::thread::yield_now();
    }
    for head in [LOAD, UNLOAD] {
        served
            .request(head, &[], "")
            .assert_error(409, "model_busy", None);
    }

    drop(client);

    while state(&served) != "unloaded" {
        std::thread::yield_now();
    }
    second.waits.store(false, SeqCst);
    load(&served);
}

#[test]
fn requests_end_before_their_model_is_unloaded_or_the_server_ends() {
    let (served, second) = served(|_| ());
    for ends in [false, true] {
        load(&served);
        let control = second
            .control
            .lock()
            .expect("no panic")
            .take()
            .expect("is loaded");
        control.hold();
        let answers = served.begin(TEXT, &say("hi", "second"));
        while !served
            .get("/metrics")
            .body
            .contains("worker_requests_running 1")
        {
            std::thread::yield_now();
        }
        let unloading = (!ends).then(|| {
            let mut client = served.connect();
            client
                .write_all(request(UNLOAD, &[], "").as_bytes())
                .expect("it reads");
            client
        });
        if ends {
            served.stop();
            while served.get("/health/ready").status != 503 {
                std::thread::yield_now();
            }
        } else {
            while state(&served) != "unloading" {
                std::thread::yield_now();
            }
            // No counter has fallen, and the request is still there.
            let metrics = served.get("/metrics").body;
            for line in [
                "worker_requests_running 1",
                "worker_requests_accepted_total 1",
            ] {
                assert!(metrics.lines().any(|found| found == line), "{metrics}");
            }
        }

        control.release();

        assert_eq!(Reply::read(answers).ok()["choices"][0]["text"], "hi");
        if let Some(client) = unloading {
            assert_eq!(Reply::read(client).ok()["cut_requests"], 0);
        }
    }
    assert_eq!(served.ended(), Ended::Drained);
}

#[test]
fn a_server_that_ends_waits_for_a_model_that_is_being_unloaded() {
    let (served, second) = served(|_| ());
    load(&served);
    let control = second.control.lock().expect("no panic").take();
    let control = control.expect("is loaded");
    control.hold();
    let answer = served.begin(TEXT, &say("hi", "second"));
    while !(served.get("/metrics").body).contains("worker_requests_running 1") {
        std::thread::yield_now();
    }
    let mut unloading = served.connect();
    let text = request(UNLOAD, &[], "");
    unloading.write_all(text.as_bytes()).expect("it reads");
    while state(&served) != "unloading" {
        std::thread::yield_now();
    }

    served.stop();
    while served.get("/health/ready").status != 503 {
        std::thread::yield_now();
    }

    // It would have stopped to listen by then.
    for _ in 0..500 {
        assert_eq!(served.get("/health/ready").status, 503);
    }
    control.release();
    assert_eq!(Reply::read(answer).ok()["choices"][0]["text"], "hi");
    assert_eq!(Reply::read(unloading).ok()["cut_requests"], 0);
    assert_eq!(served.ended(), Ended::Drained);
}

#[test]
fn only_an_admin_loads_and_unloads() {
    let keys = "first-secret-key\nother-secret-key role=admin\n";
    let (with_keys, _) = served(|setup| setup.options.keys = Keys::parse(keys).expect("keys"));
    let (open, _) = served(|setup| setup.options.worker_id = None);
    for head in [LOAD, UNLOAD] {
        open.request(head, &[], "")
            .assert_error(403, "role_not_allowed", None);
        let send = |key| with_keys.request(head, &[("x-api-key", key)], "");
        send("first-secret-key").assert_error(403, "role_not_allowed", None);
        assert_eq!(send("other-secret-key").status, 200);
    }
}
