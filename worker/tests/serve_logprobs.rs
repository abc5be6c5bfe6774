//! Log probabilities over real sockets, of a tiny model whose logits a numpy forward pass has computed.

use serde_json::{Value, json};
use worker_cuda::generate::Service;
use worker_cuda::generate::service::{ModelEngine, Options};
use worker_cuda::{EngineOptions, Gguf, Model};
use worker_orcd::serve::ServedModel;

use http::Running;

#[path = "support/http.rs"]
mod http;
#[path = "../../tests/support/models.rs"]
mod models;

const PATH: &str = "/v1/completions";

fn served() -> Running {
    let path = models::tiny_path();
    let model =
        Model::load(&models::host(), &Gguf::open(&path).expect("a file")).expect("it loads");
    let options = EngineOptions::new().max_sequences(4).max_top_logprobs(20);
    let engine = ModelEngine::new(&model, &options).expect("an engine");
    let service = Service::start(engine, None, Options::default()).expect("it starts");
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
    let mut body = json!({ "model": "tiny", "prompt": prompt, "temperature": 0, "max_tokens": 1 });
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
        let mut body = body(&tokens, json!({ "logprobs": 20, "return_token_ids": true }));
        for (name, value) in more.as_object().expect("an object") {
            body[name] = value.clone();
        }

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
