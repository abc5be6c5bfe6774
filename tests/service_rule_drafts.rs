//! Drafts of answers that follow rules: the answers are, token for token, those without drafts, whatever copies of the
//! rules do.
//!
//! The clock of these services stands still, so that costs are unknown and every draft that has masks is verified. How
//! many have masks in time depends on the machine.
#![cfg(all(feature = "scheduler", feature = "text"))]

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use worker_cuda::generate::service::*;
use worker_cuda::generate::{Draft, FinishReason, Service};
use worker_cuda::text::Tokenizer;
use worker_cuda::{ErrorKind, Token};

use drafted::{Output, ngrams, oracle, outputs, requests};
use faulty::Faulty;
use models::tiny;
use service::{END, collect, count_up, engine_options, finish, options, tokenizer};

#[path = "support/drafted.rs"]
mod drafted;
#[path = "support/faulty.rs"]
mod faulty;
#[path = "support/models.rs"]
mod models;
#[path = "support/service.rs"]
mod service;

type Outcome<T> = std::result::Result<T, String>;

/// What copies of a state do.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Copies {
    Follow,
    Fail,
    Panic,
    /// There are none.
    PanicAtOnce,
}

/// Two to five even tokens.
#[derive(Clone)]
struct Evens(Copies);

/// Tokens that copies took although they were not allowed.
static MISTAKES: AtomicU32 = AtomicU32::new(0);

#[derive(Clone)]
struct EvensText {
    copies: Copies,
    is_copy: bool,
    tokens: usize,
}

impl Constraint for Evens {
    fn start(&self) -> Box<dyn ConstraintState> {
        Box::new(EvensText {
            copies: self.0,
            is_copy: false,
            tokens: 0,
        })
    }
}

impl ConstraintState for EvensText {
    fn advance(&mut self, token: Token) -> Outcome<()> {
        self.tokens += 1;
        let is_allowed = token.is_multiple_of(2) && self.tokens <= 5;
        if self.is_copy && !is_allowed {
            MISTAKES.fetch_add(1, Ordering::SeqCst);
        }
        match (self.is_copy, self.copies) {
            (true, Copies::Fail) => return Err("a copy that fails".into()),
            (true, Copies::Panic) => panic!("a copy that panics"),
            _ => {}
        }
        match is_allowed {
            true => Ok(()),
            false => Err(format!("{token} is token {} of the text", self.tokens)),
        }
    }

    fn advance_text(&mut self, text: &[u8]) -> Outcome<()> {
        text.iter()
            .try_for_each(|byte| self.advance(Token::from(byte.wrapping_sub(b'!'))))
    }

    fn allow(&mut self, tokens: &mut [u32]) -> Outcome<Next> {
        tokens.fill(0x5555_5555);
        Ok(match self.tokens {
            0 | 1 => Next::Token,
            5 => Next::End,
            _ => Next::TokenOrEnd,
        })
    }

    fn fork(&self) -> Option<Box<dyn ConstraintState>> {
        assert!(self.copies != Copies::PanicAtOnce, "a rule without copies");
        let mut copy = self.clone();
        copy.is_copy = true;
        Some(Box::new(copy))
    }
}

/// Tokens 40 to 47 begin with the text of token 31, '@', and have a letter more.
fn crossing_tokenizer() -> Arc<Tokenizer> {
    let mut vocabulary = tokenizer().vocabulary().clone();
    for (token, letter) in (40..48).zip('!'..) {
        vocabulary.tokens[token] = format!("@{letter}");
    }
    Arc::new(Tokenizer::from_vocabulary(vocabulary).unwrap())
}

fn start(drafting: Option<Drafting>, kv_tokens: u64) -> Service {
    start_with(drafting, kv_tokens, Vec::new())
}

fn start_with(
    drafting: Option<Drafting>,
    kv_tokens: u64,
    faults: Vec<(u32, ErrorKind)>,
) -> Service {
    let mut options = options();
    options.clock = Clock::manual();
    options.drafting = drafting;
    let engine = engine_options()
        .max_draft_tokens(40)
        .max_sequence_tokens(256);
    let engine = ModelEngine::new(&tiny(), &engine.kv_tokens(kv_tokens)).unwrap();
    let engine = Faulty { engine, faults };
    Service::start(engine, Some(crossing_tokenizer()), options).unwrap()
}

/// All kinds of requests, under rules that begin at all kinds of places.
fn guided(copies: Copies) -> Vec<Request> {
    let (begin, end) = ("A".to_owned(), "@".to_owned());
    let mut requests = requests();
    for (number, request) in requests.iter_mut().enumerate() {
        let mut constrained = Constrained::new(Arc::new(Evens(copies)));
        match number % 5 {
            0 | 1 => constrained.markers = vec![end.clone()],
            2 => constrained.reasoning = Some(Reasoning::Begun(end.clone())),
            3 => {
                constrained.reasoning = Some(Reasoning::Possible(begin.clone(), "7".into()));
                constrained.markers = vec![end.clone()];
            }
            _ => {}
        }
        request.constraint = Some(constrained);
    }
    requests
}

/// A rule for the whole answer, which would not end.
fn endless() -> Vec<Request> {
    let mut requests = guided(Copies::Follow);
    for request in &mut requests {
        request.constraint = Some(Constrained::new(Arc::new(Stairs::default())));
        (request.stop, request.stop_tokens) = (Vec::new(), Vec::new());
        request.max_tokens = Some(60);
    }
    requests
}

/// Tokens stay or go up by one, from 1 to 62 and again.
#[derive(Clone, Default)]
struct Stairs(Token);

impl Constraint for Stairs {
    fn start(&self) -> Box<dyn ConstraintState> {
        Box::new(self.clone())
    }
}

impl ConstraintState for Stairs {
    fn advance(&mut self, token: Token) -> Outcome<()> {
        match self.0 == token || self.0 % 62 + 1 == token {
            true => self.0 = token,
            false => return Err(format!("{token} after {}", self.0)),
        }
        Ok(())
    }

    fn advance_text(&mut self, _: &[u8]) -> Outcome<()> {
        Ok(())
    }

    fn allow(&mut self, tokens: &mut [u32]) -> Outcome<Next> {
        for token in [self.0, self.0 % 62 + 1] {
            tokens[token as usize / 32] |= 1 << (token % 32);
        }
        Ok(Next::Token)
    }

    fn fork(&self) -> Option<Box<dyn ConstraintState>> {
        Some(Box::new(self.clone()))
    }
}

const ALL_PAGES: u64 = 64 * 64;

fn plain(requests: &[Request]) -> Vec<Vec<Output>> {
    let service = start(None, ALL_PAGES);
    let (plain, usage) = outputs(&service, requests);
    assert_eq!(usage.draft_tokens, 0);
    finish(service);
    plain
}

/// Drafts that are accepted in answers to some of these requests, which have at least one sooner or later.
#[track_caller]
fn accepted(service: &Service, requests: &[Request], plain: &[Vec<Output>]) -> Usage {
    loop {
        let (drafted, usage) = outputs(service, requests);
        assert_eq!(drafted, plain);
        if usage.accepted_draft_tokens > 0 {
            return usage;
        }
    }
}

#[test]
fn answers_under_rules_with_drafts_are_those_without() {
    for requests in [guided(Copies::Follow), endless()] {
        let plain = plain(&requests);
        for drafting in [ngrams(), oracle(&requests, &plain)] {
            let service = start(Some(drafting), ALL_PAGES);
            let together = accepted(&service, &requests, &plain);
            let mut alone = 0;
            for (request, plain) in requests.iter().zip(&plain) {
                let (drafted, usage) = outputs(&service, std::slice::from_ref(request));
                assert_eq!(drafted[0], *plain);
                alone += usage.accepted_draft_tokens;
            }
            println!("{} together, {alone} alone", together.accepted_draft_tokens);
            finish(service);
        }
    }
    assert_eq!(MISTAKES.load(Ordering::SeqCst), 0);
}

/// A service on an engine that wants to say a text, and a source that guesses it.
fn saying(text: &str, tokenizer: &Arc<Tokenizer>, drafts: usize) -> Service {
    let answer: Vec<Token> = text
        .bytes()
        .map(|byte| match byte {
            b'$' => END,
            byte => Token::from(byte - b'!'),
        })
        .collect();
    let mut limits = EngineLimits::new(64, 64);
    limits.max_draft_tokens = drafts as u32;
    let mut options = still();
    let known = answer.clone();
    options.drafting =
        (drafts > 0).then(|| Drafting::new(drafts, move || Box::new(Known(known.clone()))));
    let engine = ScriptedEngine::new(limits, move |_, _| answer.clone());
    Service::start(engine, Some(tokenizer.clone()), options).unwrap()
}

/// Knows the answer to a prompt of one token.
struct Known(Vec<Token>);

impl Draft for Known {
    fn begin(&mut self, _: &[Token], _: &[Token]) {}

    fn draft(&mut self, tokens: &[Token], limit: usize, drafts: &mut Vec<Token>) {
        drafts.extend(self.0.iter().skip(tokens.len() - 1).take(limit));
    }
}

/// Tokens begin with the end of a marker, which is cut at every byte, and have text that the rule allows or not.
#[test]
fn a_rule_begins_inside_of_runs_of_free_text_where_it_does_without_drafts() {
    let marker = "<ASK>";
    let mut constrained = Constrained::new(Arc::new(Evens(Copies::Follow)));
    constrained.markers = vec![marker.into()];
    let mut request = Request::tokens([1]);
    request.constraint = Some(constrained);
    let mut accepted = 0;
    for cut in 0..marker.len() {
        let mut vocabulary = tokenizer().vocabulary().clone();
        let crossing = |rest: &str| format!("{}{rest}", &marker[cut..]);
        // They are written as ^, _ and !; "5" and "7" are even tokens, "B" and "Z" are not.
        (vocabulary.tokens[61], vocabulary.tokens[62]) = (crossing("57"), crossing("B"));
        vocabulary.tokens[0] = crossing("5Z");
        let tokenizer = Arc::new(Tokenizer::from_vocabulary(vocabulary).unwrap());
        let before = &marker[..cut];
        for text in [
            format!("NONO{before}^573NONO$"),
            format!("NONO{before}_{marker}57573NO{before}^7$"),
            format!("NO{before}^7575{before}NO{marker}5{before}_$"),
        ] {
            let plain = saying(&text, &tokenizer, 0);
            let expected = collect(plain.submit(&request).unwrap());
            for drafts in [1, 3, 7] {
                let service = saying(&text, &tokenizer, drafts);
                let answer = collect(service.submit(&request).unwrap());
                assert_eq!(answer.tokens, expected.tokens, "{text}, {drafts} drafts");
                assert_eq!(
                    (&answer.texts, answer.reason()),
                    (&expected.texts, expected.reason())
                );
                accepted += answer.usage().accepted_draft_tokens;
                finish(service);
            }
            finish(plain);
        }
    }
    assert!(accepted > 0);
}

#[test]
fn rules_that_begin_with_the_answer_have_drafts() {
    let requests = endless();
    let plain = plain(&requests);
    let service = start(Some(oracle(&requests, &plain)), ALL_PAGES);
    accepted(&service, &requests[..3], &plain[..3]);
    finish(service);
}

#[test]
fn answers_under_rules_with_drafts_survive_preemption() {
    let mut requests = endless();
    for request in &mut requests {
        (request.choices, request.max_tokens) = (1, Some(90));
    }
    let plain = plain(&requests);
    let service = start(Some(oracle(&requests, &plain)), 6 * 64);
    accepted(&service, &requests, &plain);
    assert!(service.stats().preempted > 0);
    finish(service);
}

#[test]
fn answers_under_rules_with_drafts_survive_a_failed_step_and_a_lost_device() {
    for kind in [ErrorKind::DeviceError, ErrorKind::DeviceLost] {
        for requests in [guided(Copies::Follow), endless()] {
            let plain = plain(&requests);
            let drafting = oracle(&requests, &plain);
            let service = start_with(Some(drafting), ALL_PAGES, vec![(9, kind)]);
            accepted(&service, &requests, &plain);
            assert_eq!(service.stats().engine_faults, 1);
            finish(service);
        }
    }
}

#[test]
fn copies_that_fail_or_panic_change_nothing() {
    for copies in [Copies::Fail, Copies::Panic, Copies::PanicAtOnce] {
        let requests = guided(copies);
        let plain = plain(&requests);
        let service = start(Some(oracle(&requests, &plain)), ALL_PAGES);
        assert_eq!(outputs(&service, &requests).0, plain, "{copies:?}");
        finish(service);
    }
}

// ---- Copies that take long, on an engine that counts up ----

/// Counts up.
struct Counting;

impl Draft for Counting {
    fn begin(&mut self, _: &[Token], _: &[Token]) {}

    fn draft(&mut self, tokens: &[Token], limit: usize, drafts: &mut Vec<Token>) {
        drafts.extend((tokens[tokens.len() - 1] + 1..END).take(limit));
    }
}

fn counting(options: Options) -> Service {
    let mut limits = EngineLimits::new(64, 64);
    limits.max_draft_tokens = 8;
    let mut options = options;
    options.drafting = Some(Drafting::new(4, || Box::new(Counting)));
    Service::start(
        ScriptedEngine::new(limits, count_up),
        Some(tokenizer()),
        options,
    )
    .unwrap()
}

/// Allows everything; its copies report what is called.
struct Watched<F>(Arc<F>);

struct WatchedText<F>(Arc<F>, bool);

impl<F: Fn(&str) + Send + Sync + 'static> Constraint for Watched<F> {
    fn start(&self) -> Box<dyn ConstraintState> {
        Box::new(WatchedText(self.0.clone(), false))
    }
}

impl<F: Fn(&str) + Send + Sync + 'static> ConstraintState for WatchedText<F> {
    fn advance(&mut self, _: Token) -> Outcome<()> {
        Ok(())
    }

    fn advance_text(&mut self, _: &[u8]) -> Outcome<()> {
        Ok(())
    }

    fn allow(&mut self, tokens: &mut [u32]) -> Outcome<Next> {
        if self.1 {
            (self.0)("allow");
        }
        tokens.fill(u32::MAX);
        Ok(Next::TokenOrEnd)
    }

    fn fork(&self) -> Option<Box<dyn ConstraintState>> {
        Some(Box::new(Self(self.0.clone(), true)))
    }

    fn stopper(&mut self) -> Option<Stopper> {
        let (called, is_copy) = (self.0.clone(), self.1);
        Some(Box::new(move || {
            if is_copy {
                called("stop");
            }
        }))
    }
}

fn watched(called: impl Fn(&str) + Send + Sync + 'static) -> Request {
    let mut request = Request::tokens([2]);
    request.constraint = Some(Constrained::new(Arc::new(Watched(Arc::new(called)))));
    request
}

fn still() -> Options {
    let mut options = options();
    options.clock = Clock::manual();
    options
}

#[test]
fn an_answer_does_not_wait_for_a_copy_that_does_not_return() {
    let (permit, permits) = mpsc::channel::<()>();
    let permits = Mutex::new(permits);
    let entered = Arc::new(AtomicU32::new(0));
    let count = entered.clone();
    let request = watched(move |call| {
        if call == "allow" {
            count.fetch_add(1, Ordering::SeqCst);
            let _ = permits.lock().unwrap().recv();
        }
    });
    let service = counting(still());

    let answer = collect(service.submit(&request).unwrap());

    assert_eq!(answer.tokens[0], (3..50).collect::<Vec<_>>());
    assert_eq!(answer.reason(), FinishReason::Eos);
    assert_eq!(entered.load(Ordering::SeqCst), 1);
    drop(permit);
    finish(service);
}

#[test]
fn a_copy_is_stopped_when_its_request_ends() {
    let (permit, permits) = mpsc::channel();
    let (permit, permits) = (Mutex::new(permit), Mutex::new(permits));
    let request = watched(move |call| match call {
        "allow" => permits.lock().unwrap().recv().unwrap(),
        _ => permit.lock().unwrap().send(()).unwrap(),
    });
    let mut options = still();
    options.mask_threads = 2;
    let service = counting(options);
    for _ in 0..4 {
        // More than there are threads.
        let answer = collect(service.submit(&request).unwrap());
        assert_eq!(answer.reason(), FinishReason::Eos);
    }
    finish(service);
}

#[test]
fn copies_that_take_too_long_end_drafts_and_not_the_answer() {
    let options = still();
    let clock = options.clock.clone();
    let count = Arc::new(AtomicU32::new(0));
    let calls = count.clone();
    let request = watched(move |call| {
        if call == "allow" {
            calls.fetch_add(1, Ordering::SeqCst);
            clock.advance(Duration::from_millis(100));
        }
    });
    let service = counting(options);

    let answer = collect(service.submit(&request).unwrap());

    assert_eq!(answer.reason(), FinishReason::Eos);
    // 1,000 / (100 - 5).
    let count = count.load(Ordering::SeqCst);
    assert!((1..=11).contains(&count), "{count}");
    finish(service);
}
