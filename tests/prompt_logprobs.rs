//! Log probabilities of prompts by a service: on a scripted engine, whose values are known, and on tiny models,
//! compared with a numpy forward pass.
#![cfg(all(feature = "scheduler", feature = "text"))]

use worker_cuda::generate::service::{
    Drafting, Error, Event, EventReceiver, ModelEngine, Options, PageSharing, PromptLogprob,
    Request, ScriptedEngine, StepEngine,
};
use worker_cuda::generate::{NgramDraft, Service, service::EngineLimits};
use worker_cuda::{EngineOptions, ErrorKind, Gguf, Model, Token};

use faulty::Faulty;
use models::{golden, host, tiny, tiny_models};

#[path = "support/faulty.rs"]
mod faulty;
#[path = "support/models.rs"]
mod models;

fn limits() -> EngineLimits {
    let mut limits = EngineLimits::new(32, 1000);
    limits.page_tokens = 16;
    limits.max_sequences = 4;
    limits.max_step_tokens = 32;
    limits.max_sequence_tokens = 128;
    limits.page_sharing = PageSharing::Cached;
    limits.token_logprobs = true;
    limits
}

fn scripted() -> ScriptedEngine {
    ScriptedEngine::new(limits(), |_, _| vec![1])
}

fn start(engine: impl StepEngine + 'static) -> Service {
    Service::start(engine, None, Options::default()).unwrap()
}

fn request(tokens: &[Token], top: u32, max_tokens: u32) -> Request {
    let mut request = Request::tokens(tokens);
    request.prompt_logprobs = Some(top);
    request.max_tokens = Some(max_tokens);
    request
}

struct Collected {
    scores: Vec<PromptLogprob>,
    /// Of choice 0.
    tokens: Vec<Token>,
    cached_tokens: u32,
}

/// Checks that the scores come once, before the first token of choice 0.
fn collect(events: EventReceiver) -> Collected {
    let (mut scores, mut tokens) = (None, Vec::new());
    for event in events {
        match event {
            Event::PromptLogprobs(found) => assert!(scores.replace(found).is_none()),
            Event::Token(token) if token.choice == 0 => {
                assert!(scores.is_some());
                tokens.push(token.token);
            }
            Event::Done(usage) => {
                return Collected {
                    scores: scores.expect("scores"),
                    tokens,
                    cached_tokens: usage.cached_tokens,
                };
            }
            Event::Failed(error) => panic!("{error}"),
            _ => {}
        }
    }
    panic!("no last event");
}

#[track_caller]
fn assert_scripted(scores: &[PromptLogprob], prompt: &[Token], top: u32) {
    assert_eq!(scores.len(), prompt.len() - 1);
    for (position, (score, &token)) in (1u16..).zip(scores.iter().zip(&prompt[1..])) {
        assert_eq!((score.token, score.logprob), (token, -f32::from(position)));
        let alternatives: Vec<_> = (0..top).map(|token| (token, -0.5 * token as f32)).collect();
        assert_eq!(score.top, alternatives);
    }
}

#[test]
fn of_prompts_in_several_steps_are_complete_whatever_follows() {
    let service = start(scripted());
    let prompt: Vec<Token> = (10..110).collect(); // four steps
    for (max_tokens, choices, top) in [(0, 1, 0), (0, 1, 3), (2, 1, 1), (3, 2, 0), (0, 2, 2)] {
        let mut request = request(&prompt, top, max_tokens);
        request.choices = choices;

        let found = collect(service.submit(&request).unwrap());

        assert_scripted(&found.scores, &prompt, top);
        assert_eq!(found.tokens.len() as u32, max_tokens);
        // The pages of the requests before are in the cache.
        assert_eq!(found.cached_tokens, 0);
    }
    let one = collect(service.submit(&request(&[5], 2, 1)).unwrap());
    assert!(one.scores.is_empty());
    assert_eq!(service.stats().held_pages, 0);
    let cached = service.submit(&Request::tokens(&prompt[..])).unwrap();
    cached.cancel();
}

#[test]
fn other_requests_use_the_pages_that_such_a_request_computes() {
    let service = start(scripted());
    let prompt: Vec<Token> = (10..60).collect();
    collect(service.submit(&request(&prompt, 0, 0)).unwrap());
    let mut other = Request::tokens(&prompt[..]);
    other.max_tokens = Some(1);
    let cached = service
        .submit(&other)
        .unwrap()
        .find_map(|event| match event {
            Event::Done(usage) => Some(usage.cached_tokens),
            _ => None,
        });
    assert_eq!(cached, Some(48));
}

#[test]
fn requests_that_the_engine_cannot_answer_are_refused() {
    let refused = |service: &Service, top| match service.submit(&request(&[1, 2], top, 1)) {
        Err(Error::Invalid { field, .. }) => field,
        other => panic!("{other:?}"),
    };
    assert_eq!(refused(&start(scripted()), 21), "prompt_logprobs");
    let mut without = limits();
    without.token_logprobs = false;
    let without = start(ScriptedEngine::new(without, |_, _| vec![1]));
    assert_eq!(refused(&without, 0), "prompt_logprobs");
}

/// The log softmax of the golden logits at each token of the prompt but the first.
fn expected(path: &std::path::Path) -> (Vec<Token>, Vec<f64>, f64) {
    let (tokens, logits) = golden(path);
    let vectors = logits.chunks_exact(logits.len() / tokens.len());
    let logprob = |(logits, &token): (&[f32], &Token)| {
        let sum: f64 = logits.iter().map(|&logit| f64::from(logit).exp()).sum();
        f64::from(logits[token as usize]) - sum.ln()
    };
    let logprobs = vectors.zip(&tokens[1..]).map(logprob).collect();
    let scale = logits
        .iter()
        .fold(0f32, |most, logit| most.max(logit.abs()));
    (tokens, logprobs, f64::from(scale))
}

#[test]
fn of_every_tiny_model_are_those_of_numpy() {
    let options = EngineOptions::new()
        .max_sequences(2)
        .max_top_logprobs(2)
        .token_logprobs(true);
    for path in tiny_models() {
        let model = Model::load(&host(), &Gguf::open(&path).unwrap()).unwrap();
        let (tokens, expected, scale) = expected(&path);
        let service = start(ModelEngine::new(&model, &options).unwrap());

        let found = collect(service.submit(&request(&tokens, 2, 0)).unwrap());

        assert_eq!(found.scores.len(), expected.len());
        for (score, expected) in found.scores.iter().zip(expected) {
            // Activations are rounded to bf16 or better (8 bits) and keys and values to f16.
            assert!(
                (f64::from(score.logprob) - expected).abs() <= 0.04 * scale,
                "{}: {} {expected}",
                path.display(),
                score.logprob
            );
            assert!(score.top.len() == 2 && score.top[0].1 >= score.logprob);
        }
    }
}

/// A prompt that lost its sequence is computed again, in rows that also have generated tokens. Rows of drafts are in the
/// same steps as other rows.
#[test]
fn survive_steps_that_fail_and_drafts_of_answers() {
    let model = tiny();
    let options = EngineOptions::new()
        .max_sequences(4)
        .max_batch_tokens(80)
        .batch_invariant(true)
        .max_draft_tokens(8)
        .max_top_logprobs(1)
        .token_logprobs(true);
    let prompt: Vec<Token> = (0..200).map(|i| i * 7 % 64).collect();
    let run = |faults: Vec<(u32, ErrorKind)>, has_drafts: bool| {
        let engine = ModelEngine::new(&model, &options).unwrap();
        let mut options = Options::default();
        if has_drafts {
            let drafting = Drafting::new(8, || Box::new(NgramDraft::new()));
            options.drafting = Some(drafting);
        }
        let service = Service::start(Faulty { engine, faults }, None, options).unwrap();
        collect(service.submit(&request(&prompt, 1, 20)).unwrap())
    };
    let whole = run(Vec::new(), false);
    assert_eq!((whole.scores.len(), whole.tokens.len()), (199, 20));
    for has_drafts in [false, true] {
        for failing in 0..8 {
            let found = run(vec![(failing, ErrorKind::DeviceError)], has_drafts);
            assert_eq!(found.scores, whole.scores, "step {failing} fails");
            assert_eq!(found.tokens, whole.tokens);
        }
    }
}
