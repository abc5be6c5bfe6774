//! Answers of a service that verifies drafts: token for token those of one that does not.
//!
//! The clock of these services stands still, so that costs are unknown and every draft is verified.
#![cfg(all(feature = "scheduler", feature = "text"))]

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use worker_cuda::generate::service::*;
use worker_cuda::generate::{Draft, FinishReason, NgramDraft, Service};
use worker_cuda::{EngineOptions, Model, Sampling, Token};

use models::tiny;
use service::{END, engine_options, finish, prompt, tokenizer};

#[path = "support/models.rs"]
mod models;
#[path = "support/service.rs"]
mod service;

/// All that a receiver gets: tokens, log probabilities and alternatives, then text and end.
type Output = (
    Vec<(Token, u32, Vec<(Token, u32)>)>,
    String,
    Option<(FinishReason, Option<Stop>)>,
);

/// The outputs of each choice of each request, which are served together.
fn outputs(service: &Service, requests: &[Request]) -> (Vec<Vec<Output>>, Usage) {
    let receivers: Vec<_> = requests
        .iter()
        .map(|request| service.submit(request).unwrap())
        .collect();
    let mut total = Usage::default();
    let mut all = Vec::new();
    for (receiver, request) in receivers.into_iter().zip(requests) {
        let mut choices = vec![Output::default(); request.choices as usize];
        for event in receiver {
            match event {
                Event::Token(token) => {
                    let choice = &mut choices[token.choice as usize];
                    let top = token
                        .top
                        .iter()
                        .map(|&(id, logprob)| (id, logprob.to_bits()));
                    assert_eq!(token.index as usize, choice.0.len());
                    choice
                        .0
                        .push((token.token, token.logprob.to_bits(), top.collect()));
                    choice.1 += &token.text;
                }
                Event::Finished {
                    choice,
                    reason,
                    stop,
                    text,
                } => {
                    choices[choice as usize].1 += &text;
                    choices[choice as usize].2 = Some((reason, stop));
                }
                Event::Done(usage) => {
                    let tokens: usize = choices.iter().map(|choice| choice.0.len()).sum();
                    assert_eq!(usage.completion_tokens as usize, tokens);
                    assert!(usage.accepted_draft_tokens <= usage.draft_tokens);
                    total.draft_tokens += usage.draft_tokens;
                    total.accepted_draft_tokens += usage.accepted_draft_tokens;
                    total.completion_tokens += usage.completion_tokens;
                }
                Event::Failed(error) => panic!("{error}"),
                _ => {}
            }
        }
        all.push(choices);
    }
    (all, total)
}

fn start(model: &Model, engine: &EngineOptions, drafting: Option<Drafting>) -> Service {
    let mut options = Options::default();
    options.end_tokens = vec![END];
    options.clock = Clock::manual();
    options.drafting = drafting;
    let engine = ModelEngine::new(model, &engine.clone().max_draft_tokens(20)).unwrap();
    Service::start(engine, Some(tokenizer()), options).unwrap()
}

/// Knows how each text continues, and is wrong now and then.
struct Oracle {
    known: Arc<Mutex<HashMap<Vec<Token>, Vec<Token>>>>,
    answer: Vec<Token>,
    prompt_tokens: usize,
}

impl Draft for Oracle {
    fn begin(&mut self, prompt: &[Token], _: &[Token]) {
        let known = self.known.lock().unwrap();
        self.answer = known.get(prompt).cloned().unwrap_or_default();
        self.prompt_tokens = prompt.len();
    }

    fn draft(&mut self, tokens: &[Token], limit: usize, drafts: &mut Vec<Token>) {
        let first = tokens.len() - self.prompt_tokens;
        for at in first..first + limit {
            let right = self.answer.get(at).copied().unwrap_or(END);
            drafts.push(if at % 11 == 7 {
                (right + 1) % 64
            } else {
                right
            });
        }
    }
}

/// Requests of all kinds.
fn requests() -> Vec<Request> {
    (0..14)
        .map(|number| {
            let mut request = Request::tokens(prompt(number % 9));
            request.max_tokens = Some(60);
            request.sampling = match number % 3 {
                0 => Sampling::greedy(),
                1 => Sampling::with_temperature(0.7, number.into()),
                _ => {
                    let mut sampling = Sampling::with_temperature(0.9, number.into());
                    (sampling.top_k, sampling.top_p) = (20, 0.95);
                    sampling.repetition_penalty = 1.2;
                    sampling.frequency_penalty = 0.3;
                    sampling.bias = vec![(5, 1.0), (6, -2.0)];
                    sampling
                }
            };
            request.sampling.top_logprobs = number % 4;
            match number {
                3 => request.choices = 3,
                4 => request.min_tokens = 20,
                5 => request.stop = vec!["AB".into(), "7".into()],
                6 => request.ignore_end = true,
                7 => request.stop_tokens = vec![1, 2, 3],
                8 => request.max_tokens = None,
                9 => request.max_tokens = Some(1),
                10 => request.max_tokens = Some(2),
                _ => {}
            }
            request
        })
        .collect()
}

fn oracle(requests: &[Request], outputs: &[Vec<Output>]) -> Drafting {
    let known = requests.iter().zip(outputs).map(|(request, choices)| {
        let worker_cuda::generate::Prompt::Tokens(prompt) = &request.prompt else {
            panic!("a prompt of tokens");
        };
        let answer = choices[0].0.iter().map(|(token, ..)| *token);
        (prompt.clone(), answer.collect())
    });
    let known = Arc::new(Mutex::new(known.collect()));
    Drafting::new(15, move || {
        Box::new(Oracle {
            known: Arc::clone(&known),
            answer: Vec::new(),
            prompt_tokens: 0,
        })
    })
}

fn ngrams() -> Drafting {
    Drafting::new(8, || Box::new(NgramDraft::new()))
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
fn answers_that_follow_a_rule_have_no_drafts_and_are_the_same_next_to_others_that_have() {
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
