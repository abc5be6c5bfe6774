//! What keys mean for the requests of their tenants, over real sockets: shared prompts on a tiny model, and priorities.

use std::io::Write;

use serde_json::{Value, json};
use worker_cuda::generate::Service;
use worker_cuda::generate::service::{Clock, ModelEngine, Options};
use worker_cuda::{EngineOptions, Gguf, Model};
use worker_orcd::serve::{Address, Keys, Options as ServerOptions, ServedModel};

use http::{Reply, Running, Served, request, token};

#[path = "support/http.rs"]
mod http;
#[path = "../../tests/support/models.rs"]
mod models;

const PATH: &str = "POST /v1/completions";

#[test]
fn prompts_are_shared_within_a_tenant_and_a_salt() {
    let gguf = Gguf::open(models::tiny_path()).expect("a file");
    let model = Model::load(&models::host(), &gguf).expect("it loads");
    let engine = ModelEngine::new(&model, &EngineOptions::new().max_sequences(4));
    let service = Service::start(engine.expect("an engine"), None, Options::default());
    let mut options = ServerOptions::default();
    let keys =
        "first-of-alice-01 tenant=a\nsecond-of-alice-1 tenant=a\nonly-one-of-bob-1 tenant=b\n";
    options.keys = Keys::parse(keys).expect("keys");
    let served = Running::start(
        &Address::Tcp(([127, 0, 0, 1], 0).into()),
        service.expect("it starts"),
        ServedModel::new("tiny"),
        options,
        Default::default(),
    );
    let prompt: Vec<u32> = (0..150).map(|i| i * 11 % 64).collect();
    let ask = |key: &str, more: Value| {
        let mut body =
            json!({ "model": "tiny", "prompt": prompt, "max_tokens": 4, "temperature": 0 });
        body["return_token_ids"] = true.into();
        for (name, value) in more.as_object().expect("an object") {
            body[name] = value.clone();
        }
        let answer = served
            .request(PATH, &[("x-api-key", key)], &body.to_string())
            .ok();
        let cached = &answer["usage"]["prompt_tokens_details"]["cached_tokens"];
        (cached.as_u64(), answer["choices"][0]["token_ids"].clone())
    };
    let (first, answer) = ask("first-of-alice-01", json!({}));
    assert_eq!(first, Some(0));
    // Two pages of 64 positions; the third is not full.
    for (key, more, cached) in [
        ("first-of-alice-01", json!({}), 128),
        ("second-of-alice-1", json!({}), 128),
        ("first-of-alice-01", json!({ "cache_salt": "x" }), 0),
        ("second-of-alice-1", json!({ "cache_salt": "x" }), 128),
        ("only-one-of-bob-1", json!({}), 0),
        ("only-one-of-bob-1", json!({ "cache_salt": "x" }), 0),
        ("only-one-of-bob-1", json!({}), 128),
    ] {
        assert_eq!(
            ask(key, more.clone()),
            (Some(cached), answer.clone()),
            "{key} {more}"
        );
    }
    assert_eq!(served.service.stats().cached_tokens, 4 * 128);
}

#[test]
fn no_request_is_more_urgent_than_its_key_allows() {
    let served = Served::with(|setup| {
        setup.limits.max_sequences = 1;
        setup.service.clock = Clock::manual();
        let keys = "at-most-level-five priority=5\nwithout-a-bound-1\n";
        setup.options.keys = Keys::parse(keys).expect("keys");
    });
    served.control.hold();
    let begin = |key: &str, tokens: usize, priority: u32| {
        let body = json!({
            "model": "scripted",
            "prompt": vec![token('a'); tokens],
            "max_tokens": 1,
            "priority": priority,
        });
        let mut stream = served.connect();
        let text = request(PATH, &[("x-api-key", key)], &body.to_string());
        stream.write_all(text.as_bytes()).expect("it reads");
        stream
    };
    let wait_for = |is_there: &dyn Fn(&worker_cuda::generate::service::Stats) -> bool| {
        while !is_there(&served.service.stats()) {
            std::thread::yield_now();
        }
    };
    let mut clients = vec![begin("without-a-bound-1", 1, 0)];
    wait_for(&|stats| stats.running == 1);
    clients.push(begin("at-most-level-five", 2, 0));
    wait_for(&|stats| stats.waiting == 1);
    clients.push(begin("without-a-bound-1", 3, 4));
    wait_for(&|stats| stats.waiting == 2);

    served.control.step(1);

    // The prompts of those that have started.
    wait_for(&|stats| stats.prompt_tokens > 1);
    assert_eq!(served.service.stats().prompt_tokens, 1 + 3);
    served.control.release();
    for client in clients {
        Reply::read(client).ok();
    }
}
