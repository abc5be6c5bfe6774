//! `/v1/embeddings` over real sockets: of a scripted engine, whose hidden states are known, and of a tiny model, compared
//! with a numpy forward pass.

use std::sync::{Arc, Mutex};

use serde_json::{Value, json};
use worker_cuda::generate::Service;
use worker_cuda::generate::service::{ModelEngine, Options, Pooling};
use worker_cuda::{EngineOptions, Gguf, Model};
use worker_orcd::serve::ServedModel;

use http::{Reply, Running, Served, Setup, token};

#[path = "support/http.rs"]
mod http;
#[path = "../../tests/support/models.rs"]
mod models;

const PATH: &str = "/v1/embeddings";

/// Hidden states of 3 values: a token, its successor, and the next one.
fn with(change: impl FnOnce(&mut Setup)) -> Served {
    Served::with(|setup| {
        setup.limits.embedding_length = 3;
        setup.model.pooling = Some(Pooling::Last);
        change(setup);
    })
}

fn body(input: Value, more: Value) -> Value {
    let mut body = json!({ "model": "scripted", "input": input });
    for (name, value) in more.as_object().expect("an object") {
        body[name] = value.clone();
    }
    body
}

fn unit(vector: &[f32]) -> Vec<f32> {
    let length = vector.iter().map(|value| value * value).sum::<f32>().sqrt();
    vector.iter().map(|value| value / length).collect()
}

/// The embedding of a text or of tokens that end with this token.
fn ends_with(token: u32) -> Vec<f32> {
    unit(&[0, 1, 2].map(|i| (token + i) as f32))
}

/// The embeddings of an answer, in order.
fn vectors(answer: &Value) -> Vec<Vec<f32>> {
    assert_eq!(answer["object"], "list");
    let list = answer["data"].as_array().expect("a list");
    let vector = |(index, entry): (usize, &Value)| {
        assert_eq!(
            (&entry["object"], &entry["index"]),
            (&json!("embedding"), &json!(index))
        );
        let values = entry["embedding"].as_array().expect("a list").iter();
        values
            .map(|value| value.as_f64().expect("a number") as f32)
            .collect()
    };
    list.iter().enumerate().map(vector).collect()
}

#[track_caller]
fn assert_near(found: &[Vec<f32>], expected: &[Vec<f32>], tolerance: f32) {
    assert_eq!(found.len(), expected.len());
    for (found, expected) in found.iter().zip(expected) {
        assert_eq!(found.len(), expected.len());
        let is_near = |(a, b): (&f32, &f32)| (a - b).abs() <= tolerance;
        assert!(
            found.iter().zip(expected).all(is_near),
            "{found:?} {expected:?}"
        );
    }
}

#[test]
fn a_request_with_more_inputs_than_the_queue_has_places_is_answered() {
    let served = with(|setup| setup.service.max_queued = 2);
    let input: Vec<[u32; 1]> = (0..40).map(|index| [3 + index]).collect();
    let expected: Vec<_> = (0..40).map(|index| ends_with(3 + index)).collect();

    served.control.hold();
    let stream = served.begin(PATH, &body(json!(input), json!({})));
    while served.service.stats().rejected == 0 {
        std::thread::yield_now();
    }
    served.control.release();

    let answer = Reply::read(stream).ok();
    assert_near(&vectors(&answer), &expected, 1e-6);
}

#[test]
fn an_input_is_a_text_or_tokens_or_a_list_of_these() {
    let served = with(|_| ());
    let [a, b] = ['a', 'b'].map(token);
    for (input, ends, tokens) in [
        (json!("cba"), vec![a], 3),
        (json!([a, b]), vec![b], 2),
        (json!(["a", "ab", "cab"]), vec![a, b, b], 6),
        (json!([[b, a], [b]]), vec![a, b], 3),
        (json!(["a", [a, b]]), vec![a, b], 3),
    ] {
        let answer = served
            .post(PATH, &body(input.clone(), json!({ "user": "x" })))
            .ok();

        let expected: Vec<_> = ends.into_iter().map(ends_with).collect();
        assert_near(&vectors(&answer), &expected, 1e-6);
        assert_eq!(answer["model"], "scripted");
        assert_eq!(
            answer["usage"],
            json!({ "prompt_tokens": tokens, "total_tokens": tokens })
        );
    }
    assert_eq!(served.service.stats().held_pages, 0);
}

#[test]
fn base64_and_numbers_are_the_same_values() {
    let served = with(|_| ());
    let numbers = served
        .post(
            PATH,
            &body(json!("z"), json!({ "encoding_format": "float" })),
        )
        .ok();

    let coded = served
        .post(
            PATH,
            &body(json!("z"), json!({ "encoding_format": "base64" })),
        )
        .ok();

    let text = coded["data"][0]["embedding"].as_str().expect("a text");
    assert_eq!(decoded(text), vectors(&numbers)[0]);
}

/// The values of f32 in base64.
fn decoded(text: &str) -> Vec<f32> {
    let digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let bits = text
        .bytes()
        .filter(|digit| *digit != b'=')
        .flat_map(|digit| {
            let value = digits
                .bytes()
                .position(|known| known == digit)
                .expect("a digit");
            (0..6).rev().map(move |bit| value >> bit & 1)
        });
    let bits: Vec<usize> = bits.collect();
    let byte = |bits: &[usize]| bits.iter().fold(0, |byte, bit| byte << 1 | *bit as u8);
    let bytes: Vec<u8> = bits.chunks_exact(8).map(byte).collect();
    let values = bytes
        .chunks_exact(4)
        .map(|value| value.try_into().expect("four bytes"));
    values.map(f32::from_le_bytes).collect()
}

#[test]
fn fewer_dimensions_are_the_first_ones_of_length_1() {
    let served = with(|_| ());
    let answer = served
        .post(PATH, &body(json!([7]), json!({ "dimensions": 2 })))
        .ok();
    assert_near(&vectors(&answer), &[unit(&[7.0, 8.0])], 1e-6);

    let more = served.post(PATH, &body(json!("a"), json!({ "dimensions": 4 })));
    let message = more.assert_error(400, "invalid_value", Some("dimensions"));
    assert!(message.contains("have 3"), "{message}");
}

#[test]
fn a_model_without_pooling_names_the_flag() {
    let served = with(|setup| setup.model.pooling = None);
    let reply = served.post(PATH, &body(json!("a"), json!({})));
    let message = reply.assert_error(400, "unsupported_value", Some("model"));
    assert!(message.contains("--pooling"), "{message}");
}

#[test]
fn what_is_wrong_is_named() {
    let served = with(|setup| setup.options.strict = true);
    let long = "a".repeat(1025);
    let many = vec!["a"; 2049];
    for (input, more, code, param) in [
        (
            json!(null),
            json!({}),
            "missing_required_parameter",
            "input",
        ),
        (json!(3), json!({}), "invalid_type", "input"),
        (json!(""), json!({}), "invalid_value", "input"),
        (json!([]), json!({}), "invalid_value", "input"),
        (json!(["a", ""]), json!({}), "invalid_value", "input[1]"),
        (json!(["a", 3]), json!({}), "invalid_type", "input[1]"),
        (json!([["a"]]), json!({}), "invalid_type", "input[0][0]"),
        (json!([3, 1000]), json!({}), "invalid_value", "input"),
        (json!(["a", [1000]]), json!({}), "invalid_value", "input[1]"),
        (json!(many), json!({}), "invalid_value", "input"),
        (json!(long), json!({}), "context_length_exceeded", "input"),
        (
            json!(["a", long]),
            json!({}),
            "context_length_exceeded",
            "input[1]",
        ),
        (
            json!("a"),
            json!({ "encoding_format": "int8" }),
            "invalid_value",
            "encoding_format",
        ),
        (
            json!("a"),
            json!({ "dimensions": 0 }),
            "invalid_value",
            "dimensions",
        ),
        (
            json!("a"),
            json!({ "input_type": "query" }),
            "unknown_parameter",
            "input_type",
        ),
        (
            json!("a"),
            json!({ "model": "other" }),
            "model_not_found",
            "model",
        ),
    ] {
        let reply = served.post(PATH, &body(input, more));
        let message = reply.assert_error(
            if code == "model_not_found" { 404 } else { 400 },
            code,
            Some(param),
        );
        assert!(!message.contains("prompt:"), "{message}");
    }
    assert_eq!(served.service.stats().held_pages, 0);
}

#[test]
fn more_inputs_than_the_queue_takes_are_computed_in_turn_and_in_order() {
    let lines = Arc::new(Mutex::new(Vec::new()));
    let sink = Arc::clone(&lines);
    let served = with(|setup| {
        setup.service.max_queued = 20;
        setup.options.log = Some(Arc::new(move |line: &str| {
            let line: Value = serde_json::from_str(line).expect("JSON");
            sink.lock().expect("no panic").push(line);
        }));
    });
    let inputs: Vec<u32> = (0..100).map(|i| 3 + i % 50).collect();
    let input: Vec<[u32; 2]> = inputs.iter().map(|token| [5, *token]).collect();

    let answer = served.post(PATH, &body(json!(input), json!({}))).ok();

    let expected: Vec<_> = inputs.into_iter().map(ends_with).collect();
    assert_near(&vectors(&answer), &expected, 1e-6);
    drop(served);
    let lines = lines.lock().expect("no panic");
    assert_eq!(
        (&lines[0]["outcome"], &lines[0]["prompt_tokens"]),
        (&json!("done"), &json!(200))
    );
}

#[test]
fn a_client_that_leaves_ends_its_inputs() {
    let served = with(|_| ());
    served.control.hold();
    let client = served.begin(PATH, &body(json!(["a", "b", "c"]), json!({})));
    while served.service.stats().accepted < 3 {
        std::thread::yield_now();
    }

    drop(client);

    while served.service.stats().waiting > 0 {
        std::thread::yield_now();
    }
    served.control.release();
    served.wait_for_running(0);
    assert_eq!(served.service.stats().held_pages, 0);
}

#[test]
fn an_answer_that_needs_too_much_memory_is_refused() {
    let served = with(|setup| {
        setup.limits.embedding_length = 100_000;
        setup.options.max_bodies_bytes = 4 << 20;
    });
    let one = served.post(PATH, &body(json!("a"), json!({})));
    assert_eq!(one.status, 200);
    let two = served.post(PATH, &body(json!(["a", "b"]), json!({})));
    two.assert_error(413, "body_too_large", None);
    let less = json!({ "encoding_format": "base64" });
    assert_eq!(
        served.post(PATH, &body(json!(["a", "b"]), less)).status,
        200
    );
}

#[test]
fn embeddings_of_a_tiny_model_are_those_of_numpy() {
    let path = models::tiny_path();
    let (tokens, _) = models::golden(&path);
    let states = models::golden_hidden_states(&path);
    let model =
        Model::load(&models::host(), &Gguf::open(&path).expect("a file")).expect("it loads");
    let width = model.info().embedding_length as usize;
    let engine = EngineOptions::new().max_sequences(2).hidden_states(true);
    for (pooling, of_states) in [
        (Pooling::Last, states[states.len() - width..].to_vec()),
        (Pooling::First, states[..width].to_vec()),
        (
            Pooling::Mean,
            (0..width)
                .map(|i| states[i..].iter().step_by(width).sum())
                .collect(),
        ),
    ] {
        let engine = ModelEngine::new(&model, &engine).expect("an engine");
        let service = Service::start(engine, None, Options::default()).expect("it starts");
        let mut served = ServedModel::new("tiny");
        served.pooling = Some(pooling);
        let served = Running::of(service, served);

        let answer = served.post(PATH, &json!({ "model": "tiny", "input": tokens }));

        // Of vectors of length 1. Activations are bf16 or better, keys and values f16.
        assert_near(&vectors(&answer.ok()), &[unit(&of_states)], 5e-3);
    }
}
