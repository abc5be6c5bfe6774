//! Drafts over HTTP: predictions of requests, what `usage` and `/metrics` report of them.
//!
//! The clock of the service stands still, so that costs are unknown and every draft is verified.

use serde_json::{Value, json};
use worker_cuda::Token;
use worker_cuda::generate::service::{Clock, Drafting};
use worker_cuda::generate::{Draft, NgramDraft};

use http::{Served, Setup};

#[path = "support/http.rs"]
mod http;

const PATH: &str = "/v1/chat/completions";

fn drafting(make: impl Fn() -> Box<dyn Draft> + Send + Sync + 'static) -> Served {
    Served::with(|setup: &mut Setup| {
        setup.limits.max_draft_tokens = 8;
        setup.service.clock = Clock::manual();
        setup.service.drafting = Some(Drafting::new(4, make));
    })
}

fn body(words: &str) -> Value {
    json!({
        "model": "scripted",
        "messages": [{ "role": "user", "content": format!("say {words}") }],
    })
}

/// Guesses that the answer is the prediction.
#[derive(Default)]
struct Predicted {
    prediction: Vec<Token>,
    prompt_tokens: usize,
}

impl Draft for Predicted {
    fn begin(&mut self, prompt: &[Token], prediction: &[Token]) {
        self.prediction = prediction.to_vec();
        self.prompt_tokens = prompt.len();
    }

    fn draft(&mut self, tokens: &[Token], limit: usize, drafts: &mut Vec<Token>) {
        let rest = self
            .prediction
            .iter()
            .skip(tokens.len() - self.prompt_tokens);
        drafts.extend(rest.take(limit));
    }
}

/// Accepted and rejected prediction tokens.
fn counts(answer: &Value) -> (u64, u64) {
    let details = &answer["usage"]["completion_tokens_details"];
    let count = |name: &str| details[name].as_u64().expect(name);
    (
        count("accepted_prediction_tokens"),
        count("rejected_prediction_tokens"),
    )
}

#[test]
fn a_prediction_is_verified_and_counted() {
    let served = drafting(|| Box::<Predicted>::default());
    let plain = served.post(PATH, &body("one two three")).ok();
    assert_eq!(counts(&plain), (0, 0));

    // "o" comes with the prompt, and "n" is planned before that is known. Then come rows with the drafts "e tw", of
    // which all hold, " fou", of which one does, "our", "ur" and "r".
    let mut predicted = body("one two three");
    predicted["prediction"] = json!({ "type": "content", "content": "one two four" });
    let answer = served.post(PATH, &predicted).ok();
    assert_eq!(answer["choices"], plain["choices"]);
    let (accepted, rejected) = counts(&answer);
    assert_eq!((accepted, rejected), (5, 9));

    predicted["prediction"]["content"] = json!([
        { "type": "text", "text": "one two" },
        { "type": "text", "text": "three" },
    ]);
    let answer = served.post(PATH, &predicted).ok();
    assert!(counts(&answer).0 >= 5, "{answer}");

    let metrics = served.get("/metrics").body;
    assert!(metrics.contains("worker_draft_tokens_total "), "{metrics}");
    let accepted = metrics
        .lines()
        .find_map(|line| line.strip_prefix("worker_accepted_draft_tokens_total "));
    assert!(accepted.and_then(|count| count.parse().ok()).unwrap_or(0) >= 11);
}

#[test]
fn text_that_repeats_is_guessed_and_streams_are_the_same() {
    let words = "one two three, one two three, one two three";
    let plain = Served::start();
    let served = drafting(|| Box::new(NgramDraft::new()));
    let (expected, answer) = (
        plain.post(PATH, &body(words)).ok(),
        served.post(PATH, &body(words)).ok(),
    );
    assert_eq!(answer["choices"], expected["choices"]);
    assert!(counts(&answer).0 > 20, "{answer}");
    assert_eq!(counts(&expected), (0, 0));
}

#[test]
fn predictions_are_checked() {
    let served = Served::start();
    for (prediction, param) in [
        (json!("text"), "prediction"),
        (json!({ "type": "content" }), "prediction.content"),
        (
            json!({ "type": "other", "content": "a" }),
            "prediction.type",
        ),
        (
            json!({ "type": "content", "content": 5 }),
            "prediction.content",
        ),
    ] {
        let mut body = body("a");
        body["prediction"] = prediction;
        let reply = served.post(PATH, &body);
        assert_eq!(reply.status, 400);
        assert_eq!(reply.json()["error"]["param"], param);
    }
    let mut without_drafts = body("one");
    without_drafts["prediction"] = json!({ "type": "content", "content": "one" });
    assert_eq!(
        served.post(PATH, &without_drafts).ok()["choices"][0]["message"]["content"],
        "one"
    );
}
