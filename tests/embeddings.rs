//! Embeddings of prompts by a service: on a scripted engine, whose hidden states are known, and on tiny models,
//! compared with a numpy forward pass.
#![cfg(all(feature = "scheduler", feature = "text"))]

use worker_cuda::generate::service::*;
use worker_cuda::generate::{Prompt, Service};
use worker_cuda::{EngineOptions, ErrorKind, Gguf, Model, Token};

use faulty::Faulty;
use models::{golden, golden_hidden_states, host, tiny, tiny_models};

#[path = "support/faulty.rs"]
mod faulty;
#[path = "support/models.rs"]
mod models;

const POOLINGS: [Pooling; 3] = [Pooling::Last, Pooling::First, Pooling::Mean];

/// 8 pages of 16 positions, 32 tokens a step, hidden states of 3 values.
fn scripted() -> ScriptedEngine {
    let mut limits = EngineLimits::new(8, 1000);
    limits.page_tokens = 16;
    limits.max_sequences = 4;
    limits.max_step_tokens = 32;
    limits.max_sequence_tokens = 128;
    limits.page_sharing = PageSharing::Cached;
    limits.embedding_length = 3;
    ScriptedEngine::new(limits, |_, _| vec![1])
}

fn start(engine: impl StepEngine + 'static) -> Service {
    Service::start(engine, None, Options::default()).unwrap()
}

fn submit(service: &Service, tokens: &[Token], pooling: Pooling) -> EventReceiver {
    let request = Request::embedding(Prompt::Tokens(tokens.to_vec()), pooling);
    service.submit(&request).unwrap()
}

/// The embedding, and the usage.
fn collect(events: EventReceiver) -> (Vec<f32>, Usage) {
    let mut embedding = None;
    for event in events {
        match event {
            Event::Embedding(values) => assert!(embedding.replace(values).is_none()),
            Event::Done(usage) => return (embedding.expect("an embedding"), usage),
            Event::Failed(error) => panic!("{error}"),
            Event::Token(token) => panic!("{token:?}"),
            _ => {}
        }
    }
    panic!("no last event");
}

fn embedding(service: &Service, tokens: &[Token], pooling: Pooling) -> Vec<f32> {
    collect(submit(service, tokens, pooling)).0
}

#[test]
fn prompts_in_several_steps_give_the_last_the_first_or_the_mean() {
    let service = start(scripted());
    let tokens: Vec<Token> = (10..110).collect(); // four steps

    for (pooling, first) in POOLINGS.into_iter().zip([109.0, 10.0, 59.5]) {
        let (values, usage) = collect(submit(&service, &tokens, pooling));
        assert_eq!(values, [first, first + 1.0, first + 2.0], "{pooling:?}");
        assert_eq!((usage.prompt_tokens, usage.completion_tokens), (100, 0));
    }
    assert_eq!(service.stats().held_pages, 0);
}

#[test]
fn requests_run_at_once_and_use_no_cached_pages() {
    let engine = scripted();
    let control = engine.control();
    let service = start(engine);
    let tokens: Vec<Token> = (10..42).collect();
    let (_, first) = collect(submit(&service, &tokens, Pooling::Mean));
    control.hold();
    let all: Vec<_> = (0..3)
        .map(|i| submit(&service, &tokens[i..], Pooling::Mean))
        .collect();
    control.release();

    for (i, events) in (0u16..).zip(all) {
        let (values, usage) = collect(events);
        assert_eq!(values[0], f32::from(41 + 10 + i) / 2.0);
        assert_eq!(usage.cached_tokens, 0);
    }
    assert_eq!(first.cached_tokens, 0);
}

#[test]
fn requests_that_no_embedding_belongs_to_are_refused() {
    let refused = |service: &Service, change: fn(&mut Request)| {
        let mut request = Request::embedding(Prompt::Tokens(vec![1]), Pooling::Last);
        change(&mut request);
        match service.submit(&request).unwrap_err() {
            Error::Invalid { field, .. } => field,
            other => other.as_str(),
        }
    };
    let service = start(scripted());
    let without = start(ScriptedEngine::new(EngineLimits::new(8, 64), |_, _| {
        vec![1]
    }));

    assert_eq!(refused(&service, |r| r.max_tokens = Some(1)), "pooling");
    assert_eq!(refused(&service, |r| r.max_tokens = None), "pooling");
    assert_eq!(refused(&service, |r| r.choices = 2), "pooling");
    assert_eq!(refused(&without, |_| {}), "pooling");
    assert_eq!(
        refused(&service, |r| r.prompt = Prompt::Tokens(vec![1; 129])),
        "too_long"
    );
}

#[test]
fn embeddings_of_every_tiny_model_are_those_of_numpy() {
    let options = EngineOptions::new().max_sequences(2).hidden_states(true);
    for path in tiny_models() {
        let model = Model::load(&host(), &Gguf::open(&path).unwrap()).unwrap();
        let (tokens, _) = golden(&path);
        let states = golden_hidden_states(&path);
        let width = model.info().embedding_length as usize;
        let service = start(ModelEngine::new(&model, &options).unwrap());

        for pooling in POOLINGS {
            let mut values = embedding(&service, &tokens, pooling);
            let mut expected: Vec<f32> = match pooling {
                Pooling::Last => states[states.len() - width..].to_vec(),
                Pooling::First => states[..width].to_vec(),
                Pooling::Mean => (0..width)
                    .map(|i| states.iter().skip(i).step_by(width).sum())
                    .collect(),
            };
            for vector in [&mut values, &mut expected] {
                let norm = vector.iter().map(|value| value * value).sum::<f32>().sqrt();
                vector.iter_mut().for_each(|value| *value /= norm);
            }

            assert_eq!(values.len(), width);
            for (value, expected) in values.iter().zip(&expected) {
                // Of vectors of length 1. Activations are bf16 or better, keys and values f16.
                assert!((value - expected).abs() <= 5e-3, "{path:?} {pooling:?}");
            }
        }
    }
}

#[test]
fn a_prompt_that_is_computed_again_counts_no_token_twice() {
    let options = EngineOptions::new()
        .max_sequences(4)
        .max_batch_tokens(72) // a page and a row for each other sequence
        .batch_invariant(true)
        .hidden_states(true);
    let engine = || ModelEngine::new(&tiny(), &options).unwrap();
    let tokens: Vec<Token> = (0..200).map(|i| i * 11 % 64).collect();
    let whole = start(engine());
    let broken = start(Faulty {
        engine: engine(),
        faults: vec![(1, ErrorKind::DeviceError)],
    });

    for pooling in [Pooling::Mean, Pooling::Last, Pooling::First] {
        assert_eq!(
            embedding(&broken, &tokens, pooling),
            embedding(&whole, &tokens, pooling),
            "{pooling:?}"
        );
    }
    assert_eq!(broken.stats().engine_faults, 1);
}
