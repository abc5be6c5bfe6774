//! Log probabilities over real sockets, of a tiny model whose logits a numpy forward pass has computed.

use std::sync::Arc;

use serde_json::{Value, json};
use worker_cuda::generate::Service;
use worker_cuda::generate::service::{ModelEngine, Options, PageSharing};
use worker_cuda::text::Tokenizer;
use worker_cuda::{EngineOptions, Gguf, Model};
use worker_orcd::serve::ServedModel;

use http::{Running, Served, Setup, token, vocabulary};

#[path = "support/http.rs"]
mod http;
#[path = "../../tests/support/models.rs"]
mod models;

const PATH: &str = "/v1/completions";

fn served() -> Running {
    let path = models::tiny_path();
    let model =
        Model::load(&models::host(), &Gguf::open(&path).expect("a file")).expect("it loads");
    let options = EngineOptions::new()
        .max_sequences(4)
        .max_top_logprobs(20)
        .token_logprobs(true);
    let engine = ModelEngine::new(&model, &options).expect("an engine");
    // The model's own vocabulary is as long, and has no texts.
    let tokenizer = Tokenizer::from_vocabulary(vocabulary()).expect("a vocabulary");
    let service = Service::start(engine, Some(Arc::new(tokenizer)), Options::default());
    let service = service.expect("it starts");
    Running::of(service, ServedModel::new("tiny"))
}

/// The tokens of the golden file, and the log softmax of the logits after each of them.
fn golden() -> (Vec<u32>, Vec<Vec<f64>>) {
    let (tokens, logits) = models::golden(&models::tiny_path());
    let vectors = logits.chunks_exact(logits.len() / tokens.len());
    let log_softmax = |logits: &[f32]| {
        let sum: f64 = logits.iter().map(|logit| f64::from(*logit).exp()).sum();
        let logprobs = logits.iter().map(|logit| f64::from(*logit) - sum.ln());
        logprobs.collect()
    };
    (tokens, vectors.map(log_softmax).collect())
}

fn body(prompt: &[u32], more: Value) -> Value {
    let body = json!({ "model": "tiny", "prompt": prompt, "temperature": 0, "max_tokens": 1 });
    with(body, &more)
}

/// The body with more fields, or other values of those it has.
fn with(mut body: Value, more: &Value) -> Value {
    for (name, value) in more.as_object().expect("an object") {
        body[name] = value.clone();
    }
    body
}

/// Activations are bf16 or better, keys and values f16.
const TOLERANCE: f64 = 2e-2;

#[test]
fn of_a_token_are_the_models_whatever_bias_and_penalties_do() {
    let served = served();
    let (tokens, logprobs) = golden();
    let expected = logprobs.last().expect("tokens");
    for more in [
        json!({}),
        json!({ "logit_bias": { "40": 100 } }),
        json!({ "logit_bias": { "40": 100 }, "presence_penalty": 2, "temperature": 0.7 }),
    ] {
        let body = body(&tokens, json!({ "logprobs": 20, "return_token_ids": true }));
        let body = with(body, &more);

        let answer = served.post(PATH, &body).ok();

        let choice = &answer["choices"][0];
        let token = choice["token_ids"][0].as_u64().expect("a token") as usize;
        assert_eq!(token == 40, more.get("logit_bias").is_some());
        let found = choice["logprobs"]["token_logprobs"][0].as_f64();
        let found = found.expect("a number");
        assert!(
            (found - expected[token]).abs() < TOLERANCE,
            "{token}: {found} {}",
            expected[token]
        );
        // Alternatives are the most likely tokens of the model.
        let top = choice["logprobs"]["top_logprobs"][0].as_object();
        let mut found: Vec<f64> = top
            .expect("alternatives")
            .values()
            .map(|logprob| logprob.as_f64().expect("a number"))
            .collect();
        found.sort_by(|a, b| b.total_cmp(a));
        let mut expected = expected.clone();
        expected.sort_by(|a, b| b.total_cmp(a));
        assert!(found.len() > 10);
        assert!((found[0] - expected[0]).abs() < TOLERANCE);
    }
}

#[test]
fn of_a_prompt_are_those_of_numpy_with_and_without_an_answer() {
    let served = served();
    let (tokens, expected) = golden();
    for (max_tokens, stream) in [(0, false), (1, false), (0, true), (2, true)] {
        let more = json!({
            "echo": true, "logprobs": 5, "max_tokens": max_tokens, "stream": stream,
            "logit_bias": { "40": 100 }, "ignore_eos": true,
        });
        let reply = served.post(PATH, &body(&tokens, more));

        let logprobs = whole(&reply.body_of_choice(stream));
        let count = tokens.len() + max_tokens;
        assert_eq!(logprobs.len(), count, "{max_tokens} {stream}");
        assert_eq!(logprobs[0], (None, None));
        for (position, (logprob, top)) in logprobs.into_iter().enumerate().skip(1) {
            let of_model = &expected[position.min(tokens.len()) - 1];
            if position > tokens.len() {
                continue; // after a token that is not the prompt's
            }
            let token = tokens.get(position).map_or(40, |token| *token as usize);
            let logprob = logprob.expect("a number");
            assert!((logprob - of_model[token]).abs() < TOLERANCE);
            let top = top.expect("alternatives");
            let most = of_model.iter().copied().fold(f64::MIN, f64::max);
            assert_eq!(top.len(), 5);
            assert!((top[0] - most).abs() < TOLERANCE);
        }
    }
}

#[test]
fn the_best_of_several_choices_has_the_most_probable_tokens_whether_or_not_they_are_reported() {
    let served = served();
    let (tokens, _) = golden();
    let sampled = json!({ "temperature": 1.5, "max_tokens": 8, "seed": 4, "ignore_eos": true,
                          "return_token_ids": true });
    let ask = |more: Value| {
        let body = with(body(&tokens, sampled.clone()), &more);
        let answer = served.post(PATH, &body).ok();
        answer["choices"].as_array().expect("choices").clone()
    };
    let mean = |choice: &Value| {
        let logprobs = choice["logprobs"]["token_logprobs"].as_array();
        let logprobs = logprobs.expect("numbers").iter().filter_map(Value::as_f64);
        logprobs.sum::<f64>() / 8.0
    };
    let choices = ask(json!({ "n": 4, "logprobs": 0 }));
    let best = choices.iter().max_by(|a, b| mean(a).total_cmp(&mean(b)));
    let best = best.expect("choices");
    assert_ne!(best["token_ids"], choices[0]["token_ids"]);

    let kept = ask(json!({ "n": 1, "best_of": 4 }));

    assert_eq!(kept.len(), 1);
    assert_eq!(kept[0]["token_ids"], best["token_ids"]);
}

type Entry = (Option<f64>, Option<Vec<f64>>);

/// Log probability and alternatives of each token, the most probable first.
fn whole(parts: &[Value]) -> Vec<Entry> {
    let mut entries = Vec::new();
    for logprobs in parts.iter().filter(|part| !part.is_null()) {
        let columns = ["tokens", "token_logprobs", "top_logprobs", "text_offset"];
        let columns = columns.map(|name| logprobs[name].as_array().expect("a list"));
        let [texts, own, tops, offsets] = columns;
        assert!([texts.len(), tops.len(), offsets.len()] == [own.len(); 3]);
        for (own, top) in own.iter().zip(tops) {
            let top = top.as_object().map(|top| {
                let mut top: Vec<f64> = top.values().filter_map(Value::as_f64).collect();
                top.sort_by(|a, b| b.total_cmp(a));
                top
            });
            entries.push((own.as_f64(), top));
        }
    }
    entries
}

trait Choice {
    /// `logprobs` of the choice, in the chunks of a stream or whole.
    fn body_of_choice(&self, is_stream: bool) -> Vec<Value>;
}

impl Choice for http::Reply {
    fn body_of_choice(&self, is_stream: bool) -> Vec<Value> {
        let logprobs = |body: &Value| body["choices"][0]["logprobs"].clone();
        if !is_stream {
            return vec![logprobs(&self.ok())];
        }
        let events = self.events();
        let (last, chunks) = events.split_last().expect("events");
        assert_eq!(last, "[DONE]");
        let parse = |chunk: &String| serde_json::from_str(chunk).expect("JSON");
        chunks.iter().map(|chunk| logprobs(&parse(chunk))).collect()
    }
}

/// The log probability of the token at position p is -p, its alternatives are tokens 0 and up.
fn scripted(change: impl FnOnce(&mut Setup)) -> Served {
    Served::with(|setup| {
        setup.limits.token_logprobs = true;
        setup.limits.page_tokens = 16;
        setup.limits.page_count = 256;
        setup.limits.page_sharing = PageSharing::Cached;
        change(setup);
    })
}

fn echo(prompt: Value, more: Value) -> Value {
    let mut body = json!({ "model": "scripted", "prompt": prompt, "echo": true, "logprobs": 1 });
    for (name, value) in more.as_object().expect("an object") {
        body[name] = value.clone();
    }
    body
}

#[test]
fn a_prompt_is_repeated_with_its_tokens_and_their_places() {
    let served = scripted(|_| ());
    let answer = served.post(PATH, &echo(json!("say hi"), json!({}))).ok();

    let choice = &answer["choices"][0];
    assert_eq!(
        (&choice["text"], &choice["finish_reason"]),
        (&json!("say hihi"), &json!("stop"))
    );
    assert_eq!(
        choice["logprobs"],
        json!({
            "tokens": ["s", "a", "y", " ", "h", "i", "h", "i"],
            "token_logprobs": [null, -1.0, -2.0, -3.0, -4.0, -5.0, 0.0, 0.0],
            "top_logprobs": [
                null, { "<unk>": 0.0 }, { "<unk>": 0.0 }, { "<unk>": 0.0 }, { "<unk>": 0.0 },
                { "<unk>": 0.0 }, { "h": 0.0 }, { "i": 0.0 },
            ],
            "text_offset": [0, 1, 2, 3, 4, 5, 6, 7],
        })
    );
    assert_eq!(answer["usage"]["prompt_tokens"], 6);

    // Control tokens have a probability and no text.
    let prompt: Vec<u32> = [1, token('h'), 2, token('i')].to_vec();
    let more = json!({ "max_tokens": 0, "logprobs": 0, "n": 2 });
    let answer = served.post(PATH, &echo(json!(prompt), more)).ok();
    assert_eq!(answer["choices"].as_array().map(Vec::len), Some(2));
    for choice in answer["choices"].as_array().expect("a list") {
        assert_eq!(
            (&choice["text"], &choice["finish_reason"]),
            (&json!("hi"), &json!("length"))
        );
        assert_eq!(
            choice["logprobs"],
            json!({
                "tokens": ["<s>", "h", "</s>", "i"],
                "token_logprobs": [null, -1.0, -2.0, -3.0],
                "top_logprobs": null,
                "text_offset": [0, 0, 1, 1],
            })
        );
    }
    assert_eq!(answer["usage"]["completion_tokens"], 0);
}

#[test]
fn a_stream_begins_with_the_prompt_of_each_choice() {
    let served = scripted(|_| ());
    let more = json!({ "stream": true, "n": 2 });
    let reply = served.post(PATH, &echo(json!("say hi"), more));

    let events = reply.events();
    let mut texts = [String::new(), String::new()];
    let mut tokens = [Vec::new(), Vec::new()];
    for event in &events[..events.len() - 1] {
        let chunk: Value = serde_json::from_str(event).expect("JSON");
        let choice = &chunk["choices"][0];
        let index = choice["index"].as_u64().expect("a number") as usize;
        if texts[index].is_empty() {
            assert_eq!(choice["text"], "say hi");
            assert_eq!(choice["logprobs"]["token_logprobs"][5], -5.0);
        }
        texts[index] += choice["text"].as_str().expect("a text");
        let new = choice["logprobs"]["tokens"].as_array();
        tokens[index].extend(new.expect("a list").iter().cloned());
    }
    for (text, tokens) in texts.iter().zip(&tokens) {
        assert_eq!(text, "say hihi");
        assert_eq!(
            json!(tokens),
            json!(["s", "a", "y", " ", "h", "i", "h", "i"])
        );
    }
}

#[test]
fn a_stream_of_a_prompt_without_text_has_its_log_probabilities() {
    let served = scripted(|_| ());
    let more = json!({ "stream": true, "max_tokens": 0 });
    let reply = served.post(PATH, &echo(json!([1, 1, 2]), more));

    let logprobs = reply.body_of_choice(true);
    assert_eq!(logprobs[0]["token_logprobs"], json!([null, -1.0, -2.0]));
}

#[test]
fn a_prompt_that_others_have_computed_is_computed_again() {
    let served = scripted(|_| ());
    let prompt = "say ".repeat(30) + "hi";
    let cached = |body: &Value| body["usage"]["prompt_tokens_details"]["cached_tokens"].clone();
    let plain = json!({ "model": "scripted", "prompt": prompt });
    served.post(PATH, &plain).ok();

    let answer = served.post(PATH, &echo(json!(prompt), json!({}))).ok();

    assert_eq!(
        (cached(&answer), cached(&served.post(PATH, &plain).ok())),
        (json!(0), json!(112))
    );
    let logprobs = &answer["choices"][0]["logprobs"]["token_logprobs"];
    let expected: Vec<f64> = (1..122).map(|position| -f64::from(position)).collect();
    assert_eq!(logprobs[0], Value::Null);
    let found: Vec<f64> = (1..122).filter_map(|at| logprobs[at].as_f64()).collect();
    assert_eq!(found, expected);
}

#[test]
fn an_answer_of_0_tokens_is_the_prompt_alone() {
    let served = scripted(|_| ());
    let body = |echo: bool| json!({ "model": "scripted", "prompt": "say hi", "max_tokens": 0, "echo": echo });
    for (echo, text) in [(true, "say hi"), (false, "")] {
        let answer = served.post(PATH, &body(echo)).ok();
        let choice = &answer["choices"][0];
        assert_eq!(
            (&choice["text"], &choice["logprobs"]),
            (&json!(text), &Value::Null)
        );
        assert_eq!(choice["finish_reason"], "length");
    }
    let chat = json!({
        "model": "scripted", "max_tokens": 0, "messages": [{ "role": "user", "content": "a" }],
    });
    let chat = served.post("/v1/chat/completions", &chat);
    chat.assert_error(400, "invalid_value", Some("max_tokens"));
}

#[test]
fn a_prompt_whose_log_probabilities_need_too_much_memory_is_refused() {
    let served = scripted(|setup| setup.options.max_bodies_bytes = 2 << 20);
    let prompt = "a".repeat(900);
    assert_eq!(
        served
            .post(PATH, &echo(json!(prompt), json!({ "max_tokens": 0 })))
            .status,
        200
    );
    let more = json!({ "max_tokens": 0, "logprobs": 20 });
    let reply = served.post(PATH, &echo(json!(prompt), more));
    reply.assert_error(413, "body_too_large", None);
    assert_eq!(served.service.stats().held_pages, 0);
}

#[test]
fn an_engine_without_them_says_so() {
    let served = Served::start();
    let reply = served.post(PATH, &echo(json!("a"), json!({})));
    reply.assert_error(400, "unsupported_value", Some("echo"));
}
