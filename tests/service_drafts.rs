//! Answers of a service that verifies drafts: token for token those of one that does not.
//!
//! The clock of these services stands still, so that costs are unknown and every draft is verified.
#![cfg(all(feature = "scheduler", feature = "text"))]

use std::sync::Arc;

use worker_cuda::generate::service::*;
use worker_cuda::generate::{Draft, NgramDraft, Service};
use worker_cuda::{EngineOptions, Model, Sampling, Token};

use drafted::{ngrams, oracle, outputs, requests};
use models::tiny;
use service::{END, engine_options, finish, prompt, tokenizer};

#[path = "support/drafted.rs"]
mod drafted;
#[path = "support/models.rs"]
mod models;
#[path = "support/service.rs"]
mod service;

fn start(model: &Model, engine: &EngineOptions, drafting: Option<Drafting>) -> Service {
    let mut options = Options::default();
    options.end_tokens = vec![END];
    options.clock = Clock::manual();
    options.drafting = drafting;
    let engine = ModelEngine::new(model, &engine.clone().max_draft_tokens(20)).unwrap();
    Service::start(engine, Some(tokenizer()), options).unwrap()
}

#[test]
fn answers_with_drafts_are_those_without() {
    let model = tiny();
    let requests = requests();
    let service = start(&model, &engine_options(), None);
    let (plain, usage) = outputs(&service, &requests);
    assert_eq!(usage.draft_tokens, 0);
    finish(service);

    for drafting in [ngrams(), oracle(&requests, &plain)] {
        let service = start(&model, &engine_options(), Some(drafting));
        let (drafted, usage) = outputs(&service, &requests);
        assert_eq!(drafted, plain);
        assert!(usage.accepted_draft_tokens > 20, "{usage:?}");
        let stats = service.stats();
        // Drafts of a row that delivers nothing belong to no answer.
        assert!(stats.draft_tokens >= usage.draft_tokens.into());
        assert!(stats.accepted_draft_tokens >= usage.accepted_draft_tokens.into());
        finish(service);
    }
}

#[test]
fn answers_with_drafts_survive_preemption() {
    let model = tiny();
    let mut requests = requests();
    for request in &mut requests {
        (request.choices, request.ignore_end) = (1, true);
        request.max_tokens = Some(90);
    }
    let service = start(&model, &engine_options(), None);
    let (plain, _) = outputs(&service, &requests);
    finish(service);
    let few_pages = engine_options().max_sequence_tokens(256).kv_tokens(6 * 64);
    let service = start(&model, &few_pages, Some(oracle(&requests, &plain)));
    let (drafted, usage) = outputs(&service, &requests);
    assert_eq!(drafted, plain);
    assert!(service.stats().preempted > 0);
    assert!(usage.accepted_draft_tokens > 20, "{usage:?}");
    finish(service);
}

/// Even tokens only.
struct Even;

impl Constraint for Even {
    fn start(&self) -> Box<dyn ConstraintState> {
        Box::new(Even)
    }
}

impl ConstraintState for Even {
    fn advance(&mut self, token: Token) -> Result<(), String> {
        match token % 2 {
            0 => Ok(()),
            _ => Err("odd".into()),
        }
    }

    fn advance_text(&mut self, _: &[u8]) -> Result<(), String> {
        Ok(())
    }

    fn allow(&mut self, tokens: &mut [u32]) -> Result<Next, String> {
        tokens.fill(0x5555_5555);
        Ok(Next::Token)
    }
}

#[test]
fn a_rule_without_copies_has_no_drafts_and_the_same_answers_next_to_others_that_have() {
    let model = tiny();
    let mut requests = requests();
    for request in requests.iter_mut().step_by(3) {
        request.choices = 1;
        request.constraint = Some(Constrained::new(Arc::new(Even)));
    }
    let service = start(&model, &engine_options(), None);
    let (plain, _) = outputs(&service, &requests);
    finish(service);

    let service = start(&model, &engine_options(), Some(oracle(&requests, &plain)));
    let (drafted, usage) = outputs(&service, &requests);
    assert_eq!(drafted, plain);
    assert!(usage.accepted_draft_tokens > 0);
    let (_, usage) = outputs(&service, &requests[..1]);
    assert_eq!((usage.completion_tokens, usage.draft_tokens), (60, 0));
    finish(service);
}

#[test]
fn a_prediction_is_searched() {
    let model = tiny();
    let mut request = Request::tokens(prompt(4));
    request.max_tokens = Some(60);
    request.sampling = Sampling::with_temperature(1.5, 3);
    request.ignore_end = true;
    let service = start(&model, &engine_options(), Some(ngrams()));
    let (plain, without) = outputs(&service, &[request.clone()]);
    request.prediction = plain[0][0].1.clone();
    let (predicted, usage) = outputs(&service, &[request]);
    assert_eq!(predicted, plain);
    assert!(
        usage.accepted_draft_tokens > 40 && without.accepted_draft_tokens < 20,
        "{usage:?}, {without:?}"
    );
    finish(service);
}

/// Panics when it has seen some tokens, or guesses tokens that do not exist.
struct Broken(usize);

impl Draft for Broken {
    fn begin(&mut self, prompt: &[Token], _: &[Token]) {
        assert!(prompt.len() > 3, "a source that panics at once");
    }

    fn draft(&mut self, tokens: &[Token], limit: usize, drafts: &mut Vec<Token>) {
        self.0 += 1;
        assert!(self.0 < 20, "a source that panics");
        drafts.extend([tokens[0], 64, Token::MAX]);
        drafts.resize(2 * limit, 7);
    }
}

#[test]
fn sources_that_panic_or_guess_nonsense_change_nothing() {
    let model = tiny();
    let requests = requests();
    let service = start(&model, &engine_options(), None);
    let (plain, _) = outputs(&service, &requests);
    finish(service);
    let drafting = Drafting::new(4, || Box::new(Broken(0)));
    let service = start(&model, &engine_options(), Some(drafting));
    assert_eq!(outputs(&service, &requests).0, plain);
    finish(service);
}

/// Panics when it is asked, and then again with what it has panicked with, and when it is dropped.
struct Bomb;

impl Drop for Bomb {
    fn drop(&mut self) {
        panic!("a drop that panics");
    }
}

impl Draft for Bomb {
    fn begin(&mut self, _: &[Token], _: &[Token]) {}

    fn draft(&mut self, _: &[Token], _: usize, _: &mut Vec<Token>) {
        std::panic::panic_any(Bomb);
    }
}

#[test]
fn sources_and_observers_whose_drops_panic_change_nothing() {
    let model = tiny();
    let requests = requests();
    let service = start(&model, &engine_options(), None);
    let (plain, _) = outputs(&service, &requests);
    finish(service);
    let mut options = Options::default();
    options.end_tokens = vec![END];
    options.clock = Clock::manual();
    options.drafting = Some(Drafting::new(4, || Box::new(Bomb)));
    options.observer = Some(Arc::new(|_: Observation<'_>| std::panic::panic_any(Bomb)));
    let engine = ModelEngine::new(&model, &engine_options().max_draft_tokens(20)).unwrap();
    let service = Service::start(engine, Some(tokenizer()), options).unwrap();
    assert_eq!(outputs(&service, &requests).0, plain);
    assert_eq!(service.state(), State::Ready);
    finish(service);
}

#[test]
fn no_number_of_guesses_is_too_large() {
    let model = tiny();
    let requests = requests();
    let service = start(&model, &engine_options(), None);
    let (plain, _) = outputs(&service, &requests);
    finish(service);
    let drafting = Drafting::new(usize::MAX, || Box::new(NgramDraft::new()));
    let service = start(&model, &engine_options(), Some(drafting));
    let (drafted, usage) = outputs(&service, &requests);
    assert_eq!(drafted, plain);
    assert!(usage.accepted_draft_tokens > 0, "{usage:?}");
    finish(service);
}
