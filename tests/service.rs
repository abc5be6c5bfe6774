//! A service on engines whose answers are fixed, and on the tiny model: what receivers see, and what is
//! left afterwards. No test depends on how long something takes.
#![cfg(all(feature = "scheduler", feature = "text"))]

use std::sync::{Arc, Mutex, mpsc};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use worker_cuda::generate::service::*;
use worker_cuda::generate::{self, FinishReason, Service, Session};
use worker_cuda::scheduler::{Plan, Refusal, Salt};
use worker_cuda::text::{Tokenizer, Vocabulary};
use worker_cuda::{
    EngineOptions, ErrorKind, Gguf, KvType, LateRow, Model, Purpose, Sampling, Token,
};

use models::{tiny, tiny_path};

#[path = "support/models.rs"]
mod models;

/// Sixty-four tokens of one letter each: token i is the character '!' + i.
fn tokenizer() -> Arc<Tokenizer> {
    let vocabulary = Vocabulary {
        model: "gpt2".into(),
        tokens: (0..64u8)
            .map(|i| char::from(b'!' + i).to_string())
            .collect(),
        ..Vocabulary::default()
    };
    Arc::new(Tokenizer::from_vocabulary(vocabulary).unwrap())
}

const END: Token = 63;

/// Continues a prompt with the tokens after its last one, up to 49, and ends.
fn count_up(prompt: &[Token], seed: u64) -> Vec<Token> {
    let first = prompt[prompt.len() - 1] + 1 + seed as Token;
    (first..50).chain([END]).collect()
}

fn options() -> Options {
    let mut options = Options::default();
    options.end_tokens = vec![END];
    options
}

/// A service on a scripted engine of 8 pages of 16 positions, 4 sequences, 32 tokens a step.
fn scripted(options: Options) -> (Service, ScriptControl) {
    let mut limits = EngineLimits::new(8, 64);
    limits.page_tokens = 16;
    limits.max_sequences = 4;
    limits.max_step_tokens = 32;
    limits.max_sequence_tokens = 128;
    let engine = ScriptedEngine::new(limits, count_up);
    let control = engine.control();
    let service = Service::start(engine, Some(tokenizer()), options).unwrap();
    (service, control)
}

/// What a receiver got for each choice, and the last event.
#[derive(Debug, Default)]
struct Answer {
    tokens: Vec<Vec<Token>>,
    texts: Vec<String>,
    ends: Vec<Option<(FinishReason, Option<Stop>)>>,
    cached: Vec<u32>,
    last: Option<Event>,
}

impl Answer {
    fn take(&mut self, event: Event) {
        assert!(self.last.is_none(), "{event:?} after the end");
        let choice = match &event {
            Event::Started { choice, .. } | Event::Finished { choice, .. } => *choice as usize,
            Event::Token(token) => token.choice as usize,
            _ => 0,
        };
        while self.tokens.len() <= choice {
            self.tokens.push(Vec::new());
            self.texts.push(String::new());
            self.ends.push(None);
            self.cached.push(0);
        }
        if !event.is_last() {
            assert_eq!(
                self.ends[choice], None,
                "{event:?} after the end of its choice"
            );
        }
        match event {
            Event::Started { cached_tokens, .. } => self.cached[choice] = cached_tokens,
            Event::Token(token) => {
                assert_eq!(token.index as usize, self.tokens[choice].len());
                self.tokens[choice].push(token.token);
                self.texts[choice] += &token.text;
            }
            Event::Finished {
                reason, stop, text, ..
            } => {
                self.texts[choice] += &text;
                self.ends[choice] = Some((reason, stop));
            }
            last => self.last = Some(last),
        }
    }

    fn usage(&self) -> Usage {
        let Some(Event::Done(usage)) = self.last else {
            panic!("not done: {:?}", self.last);
        };
        let tokens: usize = self.tokens.iter().map(Vec::len).sum();
        assert_eq!(usage.completion_tokens as usize, tokens);
        usage
    }

    fn error(&self) -> &'static str {
        match &self.last {
            Some(Event::Failed(error)) => error.as_str(),
            other => panic!("{other:?}"),
        }
    }

    fn reason(&self) -> FinishReason {
        self.ends[0].as_ref().expect("an end").0
    }
}

fn collect(events: EventReceiver) -> Answer {
    let mut answer = Answer::default();
    events.for_each(|event| answer.take(event));
    assert!(answer.last.is_some());
    answer
}

/// Ends the service, and checks that it has given back everything.
fn finish(service: Service) {
    assert_eq!(service.drain(Duration::MAX), 0);
    let stats = service.stats();
    assert_eq!((stats.running, stats.waiting, stats.held_pages), (0, 0, 0));
    assert_eq!(stats.free_pages + stats.cached_pages, stats.page_count);
}

#[test]
fn events_are_tokens_with_text_then_the_end_and_the_usage() {
    let (service, control) = scripted(options());

    let answer = collect(service.submit(&Request::tokens([40, 44])).unwrap());

    assert_eq!(answer.tokens, [[45, 46, 47, 48, 49]]);
    assert_eq!(answer.texts, ["NOPQR"]);
    assert_eq!(answer.ends, [Some((FinishReason::Eos, None))]);
    let usage = answer.usage();
    assert_eq!((usage.prompt_tokens, usage.completion_tokens), (2, 5));
    let stats = service.stats();
    assert_eq!(
        (stats.accepted, stats.rejected, stats.generated_tokens),
        (1, 0, 5)
    );
    finish(service);
    assert_eq!(control.sequence_count(), 0);
}

#[test]
fn text_prompts_are_tokenized_and_logprobs_come_with_their_tokens() {
    let (service, _) = scripted(options());
    let mut request = Request::text("L");
    request.sampling.top_logprobs = 1;

    let events: Vec<Event> = service.submit(&request).unwrap().collect();

    let tokens: Vec<_> = events
        .iter()
        .filter_map(|event| match event {
            Event::Token(token) => Some((token.token, token.top.clone())),
            _ => None,
        })
        .collect();
    assert_eq!(tokens[0], (44, vec![(44, 0.0)]));
    assert_eq!(tokens.len(), 6);
    finish(service);
}

#[test]
fn stop_strings_end_a_choice_across_tokens_and_nothing_after_is_counted() {
    let (service, control) = scripted(options());
    control.hold();
    let mut request = Request::tokens([10]);
    request.stop = vec!["zz".into(), "01".into()];
    let events = service.submit(&request).unwrap();
    control.release();

    let answer = collect(events);

    // '0' is token 15 and '1' token 16.
    assert_eq!(answer.tokens, [[11, 12, 13, 14, 15, 16]]);
    assert_eq!(answer.texts, [",-./"]);
    let stop = Stop::Text("01".into());
    assert_eq!(answer.ends, [Some((FinishReason::Stop, Some(stop)))]);
    assert_eq!(answer.usage().completion_tokens, 6);
    finish(service);
}

#[test]
fn held_back_text_is_delivered_with_the_end() {
    let (service, _) = scripted(options());
    let mut request = Request::tokens([47]);
    request.stop = vec!["RS".into()];

    let answer = collect(service.submit(&request).unwrap());

    assert_eq!(
        (answer.texts[0].as_str(), answer.reason()),
        ("QR", FinishReason::Eos)
    );
    finish(service);
}

#[test]
fn stop_tokens_min_tokens_and_ignore_end() {
    let (service, _) = scripted(options());
    let mut stopped = Request::tokens([40]);
    stopped.stop_tokens = vec![44];
    let answer = collect(service.submit(&stopped).unwrap());
    assert_eq!(answer.tokens, [[41, 42, 43]]);
    assert_eq!(
        answer.ends[0],
        Some((FinishReason::Stop, Some(Stop::Token(44))))
    );

    let mut ignoring = Request::tokens([48]);
    ignoring.ignore_end = true;
    ignoring.max_tokens = Some(4);
    let answer = collect(service.submit(&ignoring).unwrap());
    assert_eq!(answer.tokens, [[49, END, END, END]]);
    assert_eq!(answer.reason(), FinishReason::Length);

    // Stop strings have no effect on the first tokens.
    let mut late = Request::tokens([40]);
    late.stop = vec!["J".into(), "L".into()];
    late.min_tokens = 2;
    let answer = collect(service.submit(&late).unwrap());
    assert_eq!(
        (answer.tokens[0].as_slice(), answer.texts[0].as_str()),
        (&[41, 42, 43][..], "JK")
    );
    finish(service);
}

#[test]
fn choices_have_seeds_of_their_own_and_one_end_together() {
    let (service, _) = scripted(options());
    let mut request = Request::tokens([40]);
    request.choices = 3;
    request.sampling.seed = 5;

    let answer = collect(service.submit(&request).unwrap());

    assert_eq!(
        answer.tokens,
        [vec![46, 47, 48, 49], vec![47, 48, 49], vec![48, 49]]
    );
    assert!(answer.ends.iter().all(Option::is_some));
    assert_eq!(answer.usage().prompt_tokens, 1);
    finish(service);
}

#[test]
fn requests_that_cannot_work_are_refused_with_the_field() {
    let (service, _) = scripted(options());
    let refused = |change: fn(&mut Request)| {
        let mut request = Request::tokens([1]);
        change(&mut request);
        match service.submit(&request).unwrap_err() {
            Error::Invalid { field, .. } => field,
            other => other.as_str(),
        }
    };

    assert_eq!(
        refused(|r| r.prompt = generate::Prompt::Tokens(vec![])),
        "prompt"
    );
    assert_eq!(
        refused(|r| r.prompt = generate::Prompt::Tokens(vec![64])),
        "prompt"
    );
    assert_eq!(refused(|r| r.choices = 0), "choices");
    assert_eq!(refused(|r| r.stop = vec!["x".into(); 17]), "stop");
    assert_eq!(refused(|r| r.stop_tokens = vec![1; 17]), "stop_tokens");
    assert_eq!(refused(|r| r.priority = 16), "priority");
    assert_eq!(refused(|r| r.tenant = 256), "tenant");
    assert_eq!(
        refused(|r| (r.min_tokens, r.max_tokens) = (2, Some(1))),
        "min_tokens"
    );
    assert_eq!(
        refused(|r| r.sampling.temperature = f32::NAN),
        "temperature"
    );
    assert_eq!(refused(|r| r.sampling.top_p = 1.5), "top_p");
    assert_eq!(refused(|r| r.sampling.top_logprobs = 21), "top_logprobs");
    assert_eq!(
        refused(|r| r.sampling.bias = vec![(1, 0.0), (1, 0.0)]),
        "bias"
    );
    assert_eq!(refused(|r| r.sampling.mask = vec![1]), "mask");
    assert_eq!(refused(|r| r.max_tokens = Some(129)), "too_long");
    assert_eq!(service.stats().rejected, 14);
    finish(service);
}

#[test]
fn a_full_queue_refuses_and_choices_count() {
    let mut options = options();
    options.max_queued = 4;
    let (service, control) = scripted(options);
    control.hold();
    let mut request = Request::tokens([1]);
    let running = service.submit(&request).unwrap();
    control.wait_until_held(); // it is started, and two steps are in flight
    request.choices = 3;
    let waiting = service.submit(&request).unwrap();
    request.choices = 2;

    let error = service.submit(&request).unwrap_err();

    assert!(matches!(
        error,
        Error::QueueFull(Refusal::QueueFull {
            more: 2,
            limit: 4,
            ..
        })
    ));
    assert!(error.is_temporary());
    control.release();
    assert_eq!(collect(running).reason(), FinishReason::Eos);
    assert_eq!(collect(waiting).ends.len(), 3);
    finish(service);
}

#[test]
fn a_request_waits_for_a_limited_time_and_runs_until_its_deadline() {
    let mut options = options();
    let clock = Clock::manual();
    options.clock = clock.clone();
    let (service, control) = scripted(options);
    control.hold();
    let mut request = Request::tokens([1]);
    request.deadline = Some(Duration::from_secs(70));
    let all_sequences: Vec<_> = (0..4).map(|_| service.submit(&request).unwrap()).collect();
    control.wait_until_held();
    while service.stats().running < 4 {
        control.step(1);
        control.wait_until_held();
    }
    request.deadline = None;
    let late = service.submit(&request).unwrap();

    clock.advance(Duration::from_secs(60));
    control.step(1);
    assert_eq!(collect(late).error(), "queue_timeout");
    clock.advance(Duration::from_secs(10));
    control.step(1);
    for running in all_sequences {
        assert_eq!(collect(running).error(), "deadline");
    }
    control.release();
    finish(service);
}

#[test]
fn cancel_in_queue_prefill_and_decode() {
    let (service, control) = scripted(options());
    control.hold();
    let decode = service.submit(&Request::tokens([1])).unwrap();
    control.wait_until_held();
    control.step(1);
    control.wait_until_held();
    // 100 tokens take four steps of 32.
    let prefill = service.submit(&Request::tokens([1; 100])).unwrap();
    let queued: Vec<_> = (0..3)
        .map(|_| service.submit(&Request::tokens([1; 100])).unwrap())
        .collect();
    control.step(2);
    control.wait_until_held();

    decode.canceller().cancel();
    prefill.cancel();
    queued.iter().for_each(EventReceiver::cancel);
    control.release();

    let answer = collect(decode);
    assert_eq!(answer.reason(), FinishReason::Cancelled);
    assert!(!answer.tokens[0].is_empty());
    for cancelled in queued.into_iter().chain([prefill]) {
        let answer = collect(cancelled);
        assert_eq!(answer.reason(), FinishReason::Cancelled);
        assert_eq!(answer.usage().completion_tokens, 0);
    }
    let next = collect(service.submit(&Request::tokens([48])).unwrap());
    assert_eq!(next.tokens, [[49]]);
    finish(service);
    assert_eq!(control.sequence_count(), 0);
}

#[test]
fn dropping_the_receiver_cancels() {
    let outcomes = Arc::new(Mutex::new(Vec::new()));
    let sink = outcomes.clone();
    let mut options = options();
    options.observer = Some(Arc::new(move |observation: Observation<'_>| {
        if let Observation::Finished(reason) = observation {
            sink.lock().unwrap().push(reason);
        }
    }));
    let (service, control) = scripted(options);
    control.hold();
    let events = service.submit(&Request::tokens([1])).unwrap();
    control.wait_until_held();
    drop(events);
    control.release();

    finish(service);

    assert_eq!(*outcomes.lock().unwrap(), [FinishReason::Cancelled]);
}

/// An engine whose answers never end, and a service that pauses receivers 8 events behind.
fn endless(clock: &Clock) -> (Service, ScriptControl) {
    let limits = EngineLimits::new(64, 64);
    let engine = ScriptedEngine::new(limits, |_, _| vec![7]);
    let control = engine.control();
    let mut options = options();
    options.max_events_behind = 8;
    options.clock = clock.clone();
    (Service::start(engine, None, options).unwrap(), control)
}

#[test]
fn a_slow_receiver_is_paused_and_continues_without_a_gap() {
    let (service, _) = endless(&Clock::manual());
    let mut request = Request::tokens([1]);
    request.max_tokens = Some(500);
    let mut slow = service.submit(&request).unwrap();
    let mut other = Request::tokens([2]);
    other.max_tokens = Some(8);

    // Each of these needs steps; the paused one gets none, or it would be far ahead.
    let mut answer = Answer::default();
    for _ in 0..40 {
        assert_eq!(collect(service.submit(&other).unwrap()).tokens[0].len(), 8);
        assert!(slow.len() <= 1 + 8 + 2, "{} events wait", slow.len());
        answer.take(slow.next().unwrap());
    }
    slow.for_each(|event| answer.take(event));

    assert_eq!(answer.tokens[0].len(), 500);
    assert_eq!(answer.reason(), FinishReason::Length);
    finish(service);
}

#[test]
fn a_receiver_that_stays_behind_fails_after_the_pause() {
    let clock = Clock::manual();
    let (service, _) = endless(&clock);
    let stuck = service.submit(&Request::tokens([1])).unwrap();
    let mut other = Request::tokens([2]);
    other.max_tokens = Some(8);
    // Among other steps, so that it is behind at the end of these.
    for _ in 0..4 {
        collect(service.submit(&other).unwrap());
    }
    clock.advance(Duration::from_secs(29));
    collect(service.submit(&other).unwrap());
    assert!(stuck.len() <= 1 + 8 + 2, "{} events", stuck.len());

    clock.advance(Duration::from_secs(1));
    collect(service.submit(&other).unwrap()); // its steps come after the end of the pause

    assert_eq!(collect(stuck).error(), "receiver_behind");
    finish(service);
}

#[test]
fn async_programs_are_woken_for_each_event() {
    struct Unpark(std::thread::Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let (service, _) = scripted(options());
    let mut events = service.submit(&Request::tokens([40])).unwrap();
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut context = Context::from_waker(&waker);
    let mut answer = Answer::default();
    loop {
        match events.poll_event(&mut context) {
            Poll::Ready(Some(event)) => answer.take(event),
            Poll::Ready(None) => break,
            Poll::Pending => std::thread::park(),
        }
    }
    assert_eq!(answer.usage().completion_tokens, 9);
    assert!(events.is_finished() && events.try_next().is_none());
    finish(service);
}

#[test]
fn one_fault_is_not_seen_and_a_second_ends_what_ran() {
    let (service, control) = scripted(options());
    control.hold();
    let events = service.submit(&Request::tokens([1])).unwrap();
    control.wait_until_held();
    control.step(3);
    control.wait_until_held();
    control.fail(1);
    control.release();
    let answer = collect(events);
    assert_eq!(answer.tokens[0], (2..50).collect::<Vec<Token>>());

    control.hold();
    let events = service.submit(&Request::tokens([1])).unwrap();
    control.wait_until_held();
    control.fail(2);
    control.release();
    let answer = collect(events);
    assert_eq!(answer.error(), "engine_fault");

    assert_eq!(service.stats().engine_faults, 3);
    assert_eq!(
        collect(service.submit(&Request::tokens([48])).unwrap()).tokens,
        [[49]]
    );
    finish(service);
    assert_eq!(control.sequence_count(), 0);
}

#[test]
fn a_lost_device_fails_all_requests_and_refuses_new_ones() {
    let (service, control) = scripted(options());
    control.hold();
    let events: Vec<_> = (0..9)
        .map(|_| service.submit(&Request::tokens([1])).unwrap())
        .collect();
    control.wait_until_held();
    control.lose_device();
    control.release();

    for events in events {
        assert_eq!(collect(events).error(), "device_lost");
    }
    assert_eq!(service.state(), State::Lost);
    let refused = service.submit(&Request::tokens([1])).unwrap_err();
    assert_eq!(refused.as_str(), "device_lost");
    service.drain(Duration::ZERO);
    assert_eq!(service.state(), State::Lost);
}

#[test]
fn an_engine_that_panics_is_a_lost_device() {
    let limits = EngineLimits::new(8, 64);
    let engine = ScriptedEngine::new(limits, |_, _| panic!("on purpose"));
    let service = Service::start(engine, None, options()).unwrap();
    let answer = collect(service.submit(&Request::tokens([1])).unwrap());
    assert_eq!(answer.error(), "device_lost");
    assert_eq!(service.state(), State::Lost);
}

#[test]
fn a_drain_ends_what_runs_and_cuts_the_rest_at_its_deadline() {
    let clock = Clock::manual();
    let (service, control) = endless(&clock);
    let mut short = Request::tokens([1]);
    short.max_tokens = Some(3);
    control.hold();
    let short = service.submit(&short).unwrap();
    let endless = service.submit(&Request::tokens([1])).unwrap();
    control.wait_until_held();
    service.begin_drain(Duration::from_secs(30));
    assert_eq!(service.state(), State::Draining);
    let refused = service.submit(&Request::tokens([1])).unwrap_err();
    assert_eq!(refused.as_str(), "draining");
    control.release();
    assert_eq!(collect(short).reason(), FinishReason::Length);

    let second = service.clone();
    let drained = std::thread::spawn(move || second.drain(Duration::from_secs(60)));
    clock.advance(Duration::from_secs(30));

    assert_eq!(drained.join().unwrap(), 1);
    assert_eq!(collect(endless).error(), "shut_down");
    assert_eq!(service.state(), State::Stopped);
    assert_eq!(service.stats().held_pages, 0);
}

#[test]
fn dropping_the_last_clone_ends_the_threads_and_the_requests() {
    let ended = Arc::new(());
    let held = ended.clone();
    let engine = ScriptedEngine::new(EngineLimits::new(64, 64), move |_, _| {
        let _ = &held;
        vec![7]
    });
    let service = Service::start(engine, None, options()).unwrap();
    let events = service.clone().submit(&Request::tokens([1])).unwrap();

    drop(service);

    assert_eq!(Arc::strong_count(&ended), 1, "the engine is dropped");
    assert_eq!(collect(events).error(), "shut_down");
}

#[test]
fn observations_are_those_of_the_clock() {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let sink = seen.clone();
    let clock = Clock::manual();
    let mut options = options();
    options.clock = clock.clone();
    options.observer = Some(Arc::new(move |observation: Observation<'_>| {
        sink.lock().unwrap().push(format!("{observation:?}"));
    }));
    let (service, control) = scripted(options);
    control.hold();
    let events = service.submit(&Request::tokens([47])).unwrap();
    control.wait_until_held();
    clock.advance(Duration::from_millis(20));
    control.step(1);
    control.wait_until_held();
    clock.advance(Duration::from_millis(5));
    control.release();
    collect(events);
    finish(service);

    let seen = seen.lock().unwrap();
    for expected in [
        "Queue(0ns)",
        "FirstToken(20ms)",
        "InterToken(5ms)",
        "Step { duration: 20ms, rows: 1, tokens: 1 }",
        "Step { duration: 5ms, rows: 1, tokens: 1 }",
        "Finished(Eos)",
    ] {
        assert!(
            seen.iter().any(|line| line == expected),
            "{expected} in {seen:?}"
        );
    }
}

#[test]
fn an_observer_may_panic_or_drop_the_service() {
    let mut options = options();
    let owned: Arc<Mutex<Option<Service>>> = Arc::default();
    let last = owned.clone();
    options.observer = Some(Arc::new(move |observation: Observation<'_>| {
        if let Observation::Done(..) = observation {
            drop(last.lock().unwrap().take());
        }
        std::panic::resume_unwind(Box::new("on purpose"));
    }));
    let (service, _control) = scripted(options);
    let first = service.submit(&Request::tokens([40])).unwrap();
    *owned.lock().unwrap() = Some(service);

    let answer = collect(first);

    assert_eq!(answer.tokens, [(41..50).collect::<Vec<Token>>()]);
    assert!(matches!(answer.last, Some(Event::Done(_))));
}

// On the tiny model.

fn engine_options() -> EngineOptions {
    EngineOptions::new()
        .max_sequences(8)
        .max_batch_tokens(128)
        .max_top_logprobs(4)
        .batch_invariant(true)
}

fn prompt(number: u32) -> Vec<Token> {
    (0..3 + 19 * number)
        .map(|i| (i * 11 + number * 7) % 64)
        .collect()
}

fn sampling(number: u32) -> Sampling {
    match number % 2 {
        0 => Sampling::greedy(),
        _ => Sampling::with_temperature(0.9, u64::from(number)),
    }
}

fn request(number: u32) -> Request {
    let mut request = Request::tokens(prompt(number));
    request.max_tokens = Some(40);
    request.sampling = sampling(number);
    request
}

/// The tokens that a request gets alone.
fn solo(number: u32) -> Vec<Token> {
    solo_tokens(number, 40)
}

fn solo_tokens(number: u32, max_tokens: u32) -> Vec<Token> {
    let mut session = Session::with_tokenizer(&tiny(), &engine_options(), tokenizer()).unwrap();
    let request = generate::Request::tokens(prompt(number))
        .max_tokens(max_tokens)
        .sampling(sampling(number));
    let events = session.generate(&request).unwrap();
    let tokens = events.filter_map(|event| match event.unwrap() {
        generate::Event::Token { token, .. } => Some(token),
        _ => None,
    });
    tokens.collect()
}

#[test]
fn concurrent_requests_get_the_tokens_that_each_gets_alone() {
    let engine = engine_options();
    let service = Service::with_tokenizer(&tiny(), &engine, tokenizer(), Options::default());
    let service = service.unwrap();

    let all: Vec<_> = (0..8)
        .map(|number| service.submit(&request(number)).unwrap())
        .collect();

    for (number, events) in (0..).zip(all) {
        assert_eq!(collect(events).tokens[0], solo(number), "request {number}");
    }
    finish(service);
}

#[test]
fn requests_share_the_pages_of_their_prompt_also_with_ended_ones_and_not_across_salts() {
    let model = tiny();
    let engine = engine_options();
    let service = Service::with_tokenizer(&model, &engine, tokenizer(), Options::default());
    let service = service.unwrap();
    let mut request = request(7); // 136 tokens: two whole pages
    request.choices = 4;

    let answer = collect(service.submit(&request).unwrap());

    assert_eq!(answer.cached, [0, 128, 128, 128]);
    for (choice, tokens) in (0..).zip(&answer.tokens) {
        let mut alone = self::request(7);
        alone.sampling.seed += choice;
        alone.salt = Salt::new(&[choice as u8; 32], b"alone", b"");
        let answer = collect(service.submit(&alone).unwrap());
        assert_eq!((answer.cached, &answer.tokens[0]), (vec![0], tokens));
    }
    let again = collect(service.submit(&self::request(7)).unwrap());
    assert_eq!(
        (again.cached, &again.tokens[0]),
        (vec![128], &answer.tokens[0])
    );
    finish(service);
}

/// The scheduler's count of pages is the engine's: a step that lacked a page would be a fault, and a page
/// that was freed too early is not a number.
#[test]
fn sequences_that_are_preempted_cancelled_and_shared_agree_with_the_engine_on_pages() {
    let alone: Vec<Vec<Token>> = (0..8).map(|number| solo_tokens(number, 100)).collect();
    let engine = engine_options()
        .max_sequences(6)
        .kv_tokens(8 * 64)
        .poison_free_pages(true);
    let mut options = Options::default();
    options.max_queued_tokens = Some(100_000);
    let service = Service::with_tokenizer(&tiny(), &engine, tokenizer(), options);
    let service = service.unwrap();
    // Three choices share a page and need ten at their ends, of eight.
    let mut crowded = request(5);
    (crowded.max_tokens, crowded.choices) = (Some(100), 3);
    assert_eq!(
        collect(service.submit(&crowded).unwrap()).tokens[0],
        alone[5]
    );
    assert!(service.stats().preempted > 0);
    let mut running = Vec::new();
    for round in 0..40 {
        let number = round * 5 % 8;
        let mut request = request(number);
        request.max_tokens = Some(100);
        request.choices = 1 + round % 3;
        running.push((number, service.submit(&request).unwrap()));
        if round % 5 == 4 {
            drop(running.swap_remove(round as usize % running.len()));
        }
        if round % 7 == 6 {
            running[round as usize % running.len()].1.cancel();
        }
    }

    for (number, events) in running {
        let answer = collect(events);
        let tokens = &answer.tokens[0];
        assert!(tokens.len() == 100 || answer.reason() == FinishReason::Cancelled);
        assert_eq!(tokens[..], alone[number as usize][..tokens.len()]);
    }
    assert_eq!(service.stats().engine_faults, 0);
    finish(service);
}

#[test]
fn limits_for_serving_fit_the_model_and_the_memory() {
    let model = tiny();

    let options = ModelEngine::serving_options(&model).unwrap();

    let limits = ModelEngine::new(&model, &options).unwrap().limits();
    assert_eq!((limits.max_sequences, limits.max_step_tokens), (64, 256));
    assert_eq!(
        limits.page_count,
        64 * 256 / 64,
        "all sequences at their full length"
    );
    assert_eq!(
        (limits.max_sequence_tokens, limits.max_top_logprobs),
        (256, 20)
    );
}

#[test]
fn the_pages_for_serving_depend_on_their_type() {
    let gguf = Gguf::open(tiny_path()).unwrap();
    let builder = worker_cuda::CudaContext::builder()
        .backend(worker_cuda::Backend::Host)
        .memory_budget(6 << 20);
    let model = Model::load(&builder.open().unwrap(), &gguf).unwrap();
    let plan = |kv_type| {
        let options = ModelEngine::serving_options_with(&model, kv_type).unwrap();
        model.plan_engine(&options).unwrap()
    };

    let (wide, narrow) = (plan(KvType::F16), plan(KvType::Fp8E4m3));

    assert!(wide.fits && narrow.fits);
    assert!(
        wide.kv_page_count < 64 * 256 / 64,
        "the budget is the limit"
    );
    assert!(narrow.kv_page_count > wide.kv_page_count);
}

/// Takes a step only after the test has answered.
struct SlowSubmit {
    engine: ScriptedEngine,
    entered: mpsc::Sender<()>,
    go: mpsc::Receiver<()>,
}

impl StepEngine for SlowSubmit {
    fn limits(&self) -> EngineLimits {
        self.engine.limits()
    }

    fn submit(&mut self, plan: &Plan, rows: &dyn RowSource) -> worker_cuda::Result<()> {
        let _ = self.entered.send(());
        let _ = self.go.recv(); // an error once the test needs it no more
        self.engine.submit(plan, rows)
    }

    fn sample(&mut self, rows: &[LateRow<'_>]) -> worker_cuda::Result<()> {
        self.engine.sample(rows)
    }

    fn wait(&mut self, results: &mut StepResults) -> worker_cuda::Result<()> {
        self.engine.wait(results)
    }
}

#[test]
fn requests_are_accepted_while_the_engine_takes_a_step() {
    let (entered, has_entered) = mpsc::channel();
    let (go, may_go) = mpsc::channel();
    let engine = SlowSubmit {
        engine: ScriptedEngine::new(EngineLimits::new(8, 64), count_up),
        entered,
        go: may_go,
    };
    let service = Service::start(engine, Some(tokenizer()), options()).unwrap();
    let first = service.submit(&Request::tokens([45])).unwrap();
    has_entered.recv().unwrap();

    // Each of these would wait for ever for a lock that is held.
    let second = service.submit(&Request::tokens([47])).unwrap();
    drop(service.submit(&Request::tokens([46])).unwrap());
    assert_eq!(service.stats().accepted, 3);

    drop(go);
    assert_eq!(collect(first).tokens, [[46, 47, 48, 49]]);
    assert_eq!(collect(second).tokens, [[48, 49]]);
    drop(has_entered);
    finish(service);
}

#[test]
fn no_memory_is_left_when_a_service_with_requests_ends() {
    let context = models::host();
    let model = Model::load(&context, &Gguf::open(tiny_path()).unwrap()).unwrap();
    let before = context.memory(Purpose::Any).unwrap().current_bytes;
    let engine = engine_options();
    let service = Service::with_tokenizer(&model, &engine, tokenizer(), Options::default());
    let service = service.unwrap();
    let running: Vec<_> = (0..8)
        .map(|number| service.submit(&request(number)).unwrap())
        .collect();

    drop(service);

    let after = context.memory(Purpose::Any).unwrap().current_bytes;
    assert_eq!(before, after);
    for events in running {
        collect(events);
    }
}

/// Reports errors in place of the engine's results.
struct Faulty {
    engine: ModelEngine,
    /// Steps that end well before it, and what it is; the last is the next.
    faults: Vec<(u32, ErrorKind)>,
}

impl StepEngine for Faulty {
    fn limits(&self) -> EngineLimits {
        self.engine.limits()
    }

    fn submit(&mut self, plan: &Plan, rows: &dyn RowSource) -> worker_cuda::Result<()> {
        self.engine.submit(plan, rows)
    }

    fn sample(&mut self, rows: &[LateRow<'_>]) -> worker_cuda::Result<()> {
        self.engine.sample(rows)
    }

    fn wait(&mut self, results: &mut StepResults) -> worker_cuda::Result<()> {
        match self.faults.last_mut() {
            Some(&mut (0, kind)) => {
                self.faults.pop();
                Err(worker_cuda::Error::new(kind, "injected"))
            }
            Some((left, _)) => {
                *left -= 1;
                self.engine.wait(results)
            }
            None => self.engine.wait(results),
        }
    }
}

#[test]
fn a_fault_in_the_middle_leaves_every_text_as_it_is_alone() {
    let engine = Faulty {
        engine: ModelEngine::new(&tiny(), &engine_options()).unwrap(),
        faults: vec![(17, ErrorKind::DeviceError)],
    };
    let service = Service::start(engine, Some(tokenizer()), Options::default()).unwrap();

    let all: Vec<_> = (0..4)
        .map(|number| service.submit(&request(number)).unwrap())
        .collect();

    for (number, events) in (0..).zip(all) {
        assert_eq!(collect(events).tokens[0], solo(number), "request {number}");
    }
    assert_eq!(service.stats().engine_faults, 1);
    finish(service);
}

#[test]
fn a_device_lost_in_the_middle_ends_the_service_and_frees_the_engine() {
    let context = models::host();
    let model = Model::load(&context, &Gguf::open(tiny_path()).unwrap()).unwrap();
    let before = context.memory(Purpose::Any).unwrap().current_bytes;
    let engine = Faulty {
        engine: ModelEngine::new(&model, &engine_options()).unwrap(),
        faults: vec![(9, ErrorKind::DeviceLost)],
    };
    let service = Service::start(engine, Some(tokenizer()), Options::default()).unwrap();
    let mut endless = request(1);
    endless.max_tokens = None;

    let answer = collect(service.submit(&endless).unwrap());

    assert_eq!(answer.error(), "device_lost");
    assert_eq!(answer.tokens[0].len(), 9);
    assert_eq!(service.state(), State::Lost);
    let after = context.memory(Purpose::Any).unwrap().current_bytes;
    assert_eq!(before, after);
}

/// A rule: tokens stay or go up by one, from the first or the next one up to the last.
struct Stairs {
    first: Token,
    last: Token,
    /// All tokens that its texts have taken.
    taken: Mutex<Vec<Token>>,
    /// Each mask reports that it was begun, and waits for a permit.
    gate: Option<Turnstile>,
}

struct StairsRule(Arc<Stairs>);

/// One text of it: the token before, if there is one.
struct StairsText(Arc<Stairs>, Option<Token>);

impl Constraint for StairsRule {
    fn start(&self) -> Box<dyn ConstraintState> {
        Box::new(StairsText(self.0.clone(), None))
    }
}

impl ConstraintState for StairsText {
    fn advance(&mut self, token: Token) -> std::result::Result<(), String> {
        let before = self.1.replace(token).unwrap_or(self.0.first);
        self.0.taken.lock().unwrap().push(token);
        match token {
            50 => panic!("a rule that panics"),
            _ if (before..=before + 1).contains(&token) => Ok(()),
            _ => Err(format!("{token} after {before}")),
        }
    }

    fn advance_text(&mut self, text: &[u8]) -> std::result::Result<(), String> {
        text.iter().try_for_each(|byte| {
            let token = byte.checked_sub(b'!').ok_or("white space")?;
            self.advance(token.into())
        })
    }

    fn allow(&mut self, tokens: &mut [u32]) -> std::result::Result<Next, String> {
        if let Some(gate) = &self.0.gate {
            gate.pass("");
        }
        let first = self.1.unwrap_or(self.0.first);
        for token in first..=(first + 1).min(self.0.last) {
            tokens[token as usize / 32] |= 1 << (token % 32);
        }
        Ok(match self.1 {
            Some(token) if token == self.0.last => Next::End,
            Some(token) if token + 1 == self.0.last => Next::TokenOrEnd,
            _ => Next::Token,
        })
    }
}

fn stairs(first: Token, last: Token) -> (Arc<Stairs>, Constrained) {
    let stairs = Arc::new(Stairs {
        first,
        last,
        taken: Mutex::default(),
        gate: None,
    });
    let constrained = Constrained::new(Arc::new(StairsRule(stairs.clone())));
    (stairs, constrained)
}

/// Lets one through for each permit.
struct Turnstile {
    entered: mpsc::Sender<&'static str>,
    permits: Mutex<mpsc::Receiver<()>>,
}

impl Turnstile {
    /// With those who enter, and what permits come from; when that is dropped, all may pass.
    fn new() -> (Self, mpsc::Receiver<&'static str>, mpsc::Sender<()>) {
        let (entered, names) = mpsc::channel();
        let (permit, permits) = mpsc::channel();
        let permits = Mutex::new(permits);
        (Self { entered, permits }, names, permit)
    }

    fn pass(&self, name: &'static str) {
        let _ = self.entered.send(name);
        let _ = self.permits.lock().unwrap().recv();
    }
}

/// A rule that allows everything and reports what is called.
struct Probe<F>(Arc<F>);

struct ProbeText<F: Fn(&str)>(Arc<F>);

fn probe(called: impl Fn(&str) + Send + Sync + 'static) -> Constrained {
    Constrained::new(Arc::new(Probe(Arc::new(called))))
}

impl<F: Fn(&str) + Send + Sync + 'static> Constraint for Probe<F> {
    fn start(&self) -> Box<dyn ConstraintState> {
        (self.0)("start");
        Box::new(ProbeText(self.0.clone()))
    }
}

impl<F: Fn(&str) + Send + Sync + 'static> ConstraintState for ProbeText<F> {
    fn advance(&mut self, _: Token) -> std::result::Result<(), String> {
        Ok(())
    }

    fn advance_text(&mut self, _: &[u8]) -> std::result::Result<(), String> {
        Ok(())
    }

    fn allow(&mut self, tokens: &mut [u32]) -> std::result::Result<Next, String> {
        (self.0)("allow");
        tokens.fill(u32::MAX);
        Ok(Next::TokenOrEnd)
    }

    fn stopper(&mut self) -> Option<Stopper> {
        let called = self.0.clone();
        Some(Box::new(move || called("stop")))
    }
}

impl<F: Fn(&str)> Drop for ProbeText<F> {
    fn drop(&mut self) {
        (self.0)("drop");
    }
}

/// A request under a rule, which would count up without it.
fn under(constrained: &Constrained) -> Request {
    let mut request = Request::tokens([40]);
    request.constraint = Some(constrained.clone());
    request
}

/// The tokens of a text; `$` ends it.
fn script(text: &str) -> Vec<Token> {
    let token = |byte| match byte {
        b'$' => END,
        byte => Token::from(byte - b'!'),
    };
    text.bytes().map(token).collect()
}

/// What an engine that wants to say `wanted` says under a rule.
#[track_caller]
fn assert_says(constrained: &Constrained, wanted: &str, said: &str) {
    let tokens = script(wanted);
    let engine = ScriptedEngine::new(EngineLimits::new(64, 64), move |_, _| tokens.clone());
    let service = Service::start(engine, Some(tokenizer()), options()).unwrap();
    let mut request = Request::tokens([1]);
    request.constraint = Some(constrained.clone());

    let answer = collect(service.submit(&request).unwrap());

    assert_eq!(answer.texts, [said], "{:?}", answer.last);
    assert_eq!(answer.reason(), FinishReason::Eos);
    finish(service);
}

// '5' is token 20.
#[test]
fn an_answer_keeps_its_rule_and_ends_where_that_allows_it() {
    let (_, constrained) = stairs(20, 23);
    // What is not allowed becomes the first token that is.
    assert_says(&constrained, "06*78", "56678");
    // The end is allowed after '7', and there is nothing after '8'.
    assert_says(&constrained, "6$7$", "667");
    assert_says(&constrained, "678A", "678");
}

#[test]
fn free_text_comes_before_and_after_what_a_marker_begins() {
    let (stairs, mut constrained) = stairs(20, 22);
    constrained.markers = vec!["[[".into(), "@".into()];
    assert_says(&constrained, "AB[[067Z[@6*7Y$", "AB[[567Z[@667Y");
    assert_eq!(*stairs.taken.lock().unwrap(), script("567667"));
    assert_says(&constrained, "NO$", "NO");
}

#[test]
fn a_rule_begins_after_reasoning() {
    let (_, mut constrained) = stairs(20, 22);
    constrained.reasoning = Some(Reasoning::Begun("]>".into()));
    assert_says(&constrained, "A]B]>067", "A]B]>567");

    constrained.reasoning = Some(Reasoning::Possible("[".into(), "]".into()));
    assert_says(&constrained, "[A5]067", "[A5]567");
    assert_says(&constrained, "67", "67");
    assert_says(&constrained, "A[67", "5567");

    constrained.markers = vec!["@".into()];
    assert_says(&constrained, "[@A]B@067$", "[@A]B@567");
}

/// A service on an engine that repeats one text, and the answer to a request that has a rule.
fn answer_under(constrained: &Constrained, wanted: &str, tokenizer: Arc<Tokenizer>) -> Answer {
    let tokens = script(wanted);
    let engine = ScriptedEngine::new(EngineLimits::new(64, 64), move |_, _| tokens.clone());
    let service = Service::start(engine, Some(tokenizer), options()).unwrap();
    let mut request = Request::tokens([1]);
    request.constraint = Some(constrained.clone());
    let answer = collect(service.submit(&request).unwrap());
    // The service continues.
    let other = collect(service.submit(&Request::tokens([1])).unwrap());
    assert_eq!(other.reason(), FinishReason::Eos);
    finish(service);
    answer
}

#[test]
fn the_rest_of_the_token_with_which_a_rule_begins_belongs_to_it() {
    let mut vocabulary = tokenizer().vocabulary().clone();
    (vocabulary.tokens[61], vocabulary.tokens[62]) = ("@6".into(), "@A".into());
    let tokenizer = Arc::new(Tokenizer::from_vocabulary(vocabulary).unwrap());
    let (stairs, mut constrained) = stairs(20, 22);
    constrained.markers = vec!["@".into()];

    let wanted = "B^07_B$"; // '^' is token 61 and '_' token 62
    let answer = answer_under(&constrained, wanted, tokenizer.clone());

    // What follows the second marker is none of the rule's texts, and stays free.
    assert_eq!(answer.texts, ["B@667@AB"]);
    assert_eq!(*stairs.taken.lock().unwrap(), [21, 21, 22, 32]);

    constrained.markers.clear();
    constrained.reasoning = Some(Reasoning::Begun("@".into()));
    let answer = answer_under(&constrained, "_B$", tokenizer);
    assert_eq!(answer.error(), "constraint");
}

#[test]
fn white_space_between_a_marker_and_a_rule_belongs_to_neither() {
    let mut vocabulary = tokenizer().vocabulary().clone();
    // Byte-level tokens write a space as 'Ġ' and a line's end as 'Ċ'.
    (vocabulary.tokens[61], vocabulary.tokens[62]) = ("@ĊĊ".into(), "@Ġ6".into());
    let tokenizer = Arc::new(Tokenizer::from_vocabulary(vocabulary).unwrap());
    let (_, mut constrained) = stairs(20, 22);
    constrained.reasoning = Some(Reasoning::Begun("@".into()));
    for (wanted, said) in [("A^067$", "A@\n\n567"), ("A_07$", "A@ 667")] {
        let answer = answer_under(&constrained, wanted, tokenizer.clone());
        assert_eq!(answer.texts, [said]);
    }
    (constrained.reasoning, constrained.markers) = (None, vec!["@".into()]);
    let answer = answer_under(&constrained, "A^067B$", tokenizer);
    assert_eq!(answer.texts, ["A@\n\n567B"]);
}

#[test]
fn a_rule_that_fails_ends_its_request_only() {
    let (_, panics) = stairs(49, 52);
    assert_eq!(
        answer_under(&panics, "RS$", tokenizer()).error(),
        "constraint"
    );
    let (_, allows_nothing) = stairs(30, 29);
    let answer = answer_under(&allows_nothing, "A$", tokenizer());
    let Some(Event::Failed(error)) = answer.last else {
        panic!("{answer:?}");
    };
    assert_eq!(
        error.to_string(),
        "the rule of the answer: no token of the model continues the text"
    );
    let (_, mut constrained) = stairs(20, 22);
    constrained.markers = vec!["@".into()];
    let service = scripted_without_tokenizer();
    let mut request = Request::tokens([1]);
    request.constraint = Some(constrained);
    let refused = service.submit(&request).unwrap_err();
    assert_eq!(
        refused.to_string(),
        "constraint: reasoning and markers need a tokenizer"
    );
    finish(service);
}

fn scripted_without_tokenizer() -> Service {
    let engine = ScriptedEngine::new(EngineLimits::new(64, 64), count_up);
    Service::start(engine, None, options()).unwrap()
}

#[test]
fn a_rule_takes_each_token_once_though_steps_fail_and_sequences_are_preempted() {
    let (service, control) = scripted(options());
    let (stairs, constrained) = stairs(10, 48);
    control.hold();
    // Four sequences of up to 39 tokens need 12 pages; there are 8.
    let receivers: Vec<_> = (0..4)
        .map(|_| {
            let mut request = Request::tokens([9]);
            request.constraint = Some(constrained.clone());
            service.submit(&request).unwrap()
        })
        .collect();
    control.step(9);
    control.wait_until_held();
    control.fail(1);
    control.release();

    let answers: Vec<_> = receivers.into_iter().map(collect).collect();

    let expected: Vec<Token> = (10..=48).collect();
    for answer in answers {
        assert_eq!(answer.tokens, std::slice::from_ref(&expected));
    }
    assert_eq!(service.stats().engine_faults, 1);
    assert!(service.stats().preempted > 0);
    let mut taken = stairs.taken.lock().unwrap().clone();
    taken.sort_unstable();
    let four_times: Vec<Token> = expected.iter().flat_map(|&token| [token; 4]).collect();
    assert_eq!(taken, four_times);
    finish(service);
}

#[test]
fn a_mask_that_is_not_there_holds_its_own_request_only() {
    let (gate, entered, permit) = Turnstile::new();
    let (stairs, _) = stairs(20, 22);
    let mut stairs = Arc::into_inner(stairs).unwrap();
    stairs.gate = Some(gate);
    let rule = Arc::new(StairsRule(Arc::new(stairs)));
    let mut options = options();
    options.clock = Clock::manual();
    let clock = options.clock.clone();
    let (service, control) = scripted(options);
    let mut request = Request::tokens([19]);
    request.constraint = Some(Constrained::new(rule));
    let other = Request::tokens([2]);

    let slow = service.submit(&request).unwrap();
    let answer = collect(service.submit(&other).unwrap());
    assert_eq!(answer.tokens[0].len(), 47);
    for _ in 0..4 {
        permit.send(()).unwrap();
        entered.recv().unwrap();
    }
    assert_eq!(collect(slow).texts, ["567"]);

    // Three steps without it, and a second.
    control.hold();
    let late = service.submit(&request).unwrap();
    entered.recv().unwrap();
    let other = service.submit(&other).unwrap();
    control.wait_until_held();
    clock.advance(Duration::from_secs(1));
    control.release();
    assert_eq!(collect(late).error(), "rule_too_slow");
    assert_eq!(collect(other).reason(), FinishReason::Eos);

    // Ten seconds, without any other request.
    let late = service.submit(&request).unwrap();
    entered.recv().unwrap();
    clock.advance(Duration::from_secs(10));
    assert_eq!(collect(late).error(), "rule_too_slow");
    drop(permit);
    finish(service);
}

/// Counts late rows, and those that are held.
struct Counting {
    engine: ScriptedEngine,
    counts: Arc<Mutex<[usize; 2]>>,
}

impl StepEngine for Counting {
    fn limits(&self) -> EngineLimits {
        self.engine.limits()
    }

    fn submit(&mut self, plan: &Plan, rows: &dyn RowSource) -> worker_cuda::Result<()> {
        self.engine.submit(plan, rows)
    }

    fn sample(&mut self, rows: &[LateRow<'_>]) -> worker_cuda::Result<()> {
        let held = rows.iter().filter(|row| **row == LateRow::Hold).count();
        let mut counts = self.counts.lock().unwrap();
        *counts = [counts[0] + rows.len(), counts[1] + held];
        self.engine.sample(rows)
    }

    fn wait(&mut self, results: &mut StepResults) -> worker_cuda::Result<()> {
        self.engine.wait(results)
    }
}

#[test]
fn a_row_whose_mask_is_late_is_held_and_repeated() {
    let (gate, entered, permit) = Turnstile::new();
    let (stairs, _) = stairs(20, 22);
    let mut stairs = Arc::into_inner(stairs).unwrap();
    stairs.gate = Some(gate);
    let counts = Arc::new(Mutex::new([0; 2]));
    let engine = Counting {
        engine: ScriptedEngine::new(EngineLimits::new(64, 64), count_up),
        counts: counts.clone(),
    };
    let mut options = options();
    options.clock = Clock::manual();
    let service = Service::start(engine, Some(tokenizer()), options).unwrap();
    let mut request = Request::tokens([19]);
    request.constraint = Some(Constrained::new(Arc::new(StairsRule(Arc::new(stairs)))));

    let slow = service.submit(&request).unwrap();
    permit.send(()).unwrap();
    // The second mask is begun when the first token is there.
    entered.recv().unwrap();
    entered.recv().unwrap();
    let other = collect(service.submit(&Request::tokens([2])).unwrap());
    assert_eq!(other.tokens[0].len(), 47);
    assert_eq!(counts.lock().unwrap()[1], 1);
    drop(permit);

    assert_eq!(collect(slow).texts, ["567"]);
    assert!(counts.lock().unwrap()[0] >= 2);
    finish(service);
}

#[test]
fn answers_that_follow_rules_are_the_same_together_as_alone() {
    let engine = engine_options();
    let service = Service::with_tokenizer(&tiny(), &engine, tokenizer(), Options::default());
    let service = service.unwrap();
    let submit = |number| {
        let mut request = request(number);
        request.constraint = Some(stairs(20 + number as Token, 40).1);
        service.submit(&request).unwrap()
    };

    let alone: Vec<_> = (0..4)
        .map(|number| collect(submit(number)).tokens)
        .collect();
    let together: Vec<_> = (0..4).map(submit).collect();

    for (events, alone) in together.into_iter().zip(alone) {
        assert_eq!(collect(events).tokens, alone);
        let steps = alone[0]
            .windows(2)
            .map(|pair| pair[1].wrapping_sub(pair[0]));
        assert!(alone[0].len() > 4 && steps.into_iter().all(|step| step <= 1));
    }
    finish(service);
}

/// One thread for masks, and a clock that stands still.
fn one_mask_thread() -> Options {
    let mut options = options();
    options.mask_threads = 1;
    options.clock = Clock::manual();
    options
}

#[test]
fn tenants_take_turns_and_ended_requests_need_no_masks() {
    let (service, control) = scripted(one_mask_thread());
    control.hold();
    let (gate, entered, permit) = Turnstile::new();
    let gate = Arc::new(gate);
    let submit = |name: &'static str, tenant| {
        let gate = gate.clone();
        let mut request = under(&probe(move |call| {
            if call == "allow" {
                gate.pass(name)
            }
        }));
        request.tenant = tenant;
        service.submit(&request).unwrap()
    };

    let first = submit("first", 0);
    assert_eq!(entered.recv(), Ok("first"));
    let (left, second, other) = (submit("left", 0), submit("second", 0), submit("other", 1));
    drop(left);
    drop(permit);

    assert_eq!(entered.recv(), Ok("other"));
    assert_eq!(entered.recv(), Ok("second"));
    control.release();
    for request in [first, second, other] {
        assert_eq!(collect(request).reason(), FinishReason::Eos);
    }
    assert!(entered.try_iter().all(|name| name != "left"));
    finish(service);
}

#[test]
fn a_mask_that_waits_for_a_thread_is_not_late() {
    let options = one_mask_thread();
    let clock = options.clock.clone();
    let (service, _) = scripted(options);
    let (gate, entered, permit) = Turnstile::new();
    let stuck = probe(move |call| {
        if call == "allow" {
            gate.pass("stuck")
        }
    });

    let slow = service.submit(&under(&stuck)).unwrap();
    entered.recv().unwrap();
    let waits = service.submit(&under(&probe(|_| ()))).unwrap();
    clock.advance(Duration::from_secs(2));
    collect(service.submit(&Request::tokens([2])).unwrap());
    assert_eq!(collect(slow).error(), "rule_too_slow");
    permit.send(()).unwrap();
    assert_eq!(collect(waits).reason(), FinishReason::Eos);

    let slow = service.submit(&under(&stuck)).unwrap();
    entered.recv().unwrap();
    let waits = service.submit(&under(&probe(|_| ()))).unwrap();
    clock.advance(Duration::from_secs(10));
    assert_eq!(collect(slow).error(), "rule_too_slow");
    let Some(Event::Failed(error)) = collect(waits).last else {
        panic!("it waits too long");
    };
    assert_eq!((error.as_str(), error.is_temporary()), ("mask_late", true));
    drop(permit);
    finish(service);
}

#[test]
fn the_masks_of_a_request_have_a_mean_time() {
    for limit in [Some(Duration::from_millis(5)), None] {
        let mut options = one_mask_thread();
        options.mask_time = limit;
        let clock = options.clock.clone();
        let (service, _) = scripted(options);
        let masks = Arc::new(Mutex::new(0));
        let count = masks.clone();
        let slow = probe(move |call| {
            if call == "allow" {
                *count.lock().unwrap() += 1;
                clock.advance(Duration::from_millis(100));
            }
        });
        let mut request = under(&slow);
        (request.prompt, request.choices) = (generate::Prompt::Tokens(vec![2]), 2);

        let answer = collect(service.submit(&request).unwrap());

        match limit {
            // 1,000 / (100 - 5), for both choices.
            Some(_) => {
                assert_eq!(answer.error(), "rule_too_slow");
                assert!((11..=13).contains(&*masks.lock().unwrap()));
            }
            None => assert_eq!(answer.reason(), FinishReason::Eos),
        }
        finish(service);
    }
}

#[test]
fn what_computes_a_mask_is_stopped_when_its_request_ends() {
    let (service, _) = scripted(one_mask_thread());
    let (gate, entered, permit) = Turnstile::new();
    let permit = Mutex::new(permit);
    let request = under(&probe(move |call| match call {
        "allow" => gate.pass(""),
        "stop" => permit.lock().unwrap().send(()).unwrap(),
        _ => {}
    }));

    let cancelled = service.submit(&request).unwrap();
    entered.recv().unwrap();
    drop(cancelled);

    // The thread is free for others.
    let other = service.submit(&under(&probe(|_| ()))).unwrap();
    assert_eq!(collect(other).reason(), FinishReason::Eos);
    let running = service.submit(&request).unwrap();
    entered.recv().unwrap();
    assert_eq!(service.drain(Duration::ZERO), 1);
    assert_eq!(collect(running).error(), "shut_down");
}

#[test]
fn a_service_ends_though_a_mask_does_not() {
    let (service, _) = scripted(options());
    let (gate, entered, permit) = Turnstile::new();
    let endless = probe(move |call| {
        if call == "allow" {
            gate.pass("")
        }
    });

    let request = service.submit(&under(&endless)).unwrap();
    entered.recv().unwrap();

    assert_eq!(service.drain(Duration::ZERO), 1);
    assert_eq!(collect(request).error(), "shut_down");
    drop(permit);
}

#[test]
fn rules_that_panic_where_they_begin_or_end_fail_alone() {
    let service = Service::start(
        ScriptedEngine::new(EngineLimits::new(64, 64), count_up),
        Some(tokenizer()),
        one_mask_thread(),
    )
    .unwrap();
    for panics in ["start", "allow", "stop", "drop"] {
        let mut constrained = probe(move |call| assert_ne!(call, panics));
        for reasoning in [None, Some(Reasoning::Begun("R".into()))] {
            constrained.reasoning = reasoning;
            let answer = collect(service.submit(&under(&constrained)).unwrap());
            if panics != "stop" && constrained.reasoning.is_none() {
                assert_eq!(answer.error(), "constraint", "{panics}");
            }
        }
        let other = service.submit(&under(&probe(|_| ()))).unwrap();
        assert_eq!(collect(other).reason(), FinishReason::Eos, "{panics}");
    }
    assert_eq!(service.state(), State::Ready);
    finish(service);
}

#[test]
fn a_request_in_the_queue_has_no_state_of_its_rule() {
    let (service, control) = scripted(one_mask_thread());
    control.hold();
    let (call, calls) = mpsc::channel();
    let rule = probe(move |name| call.send(name.to_owned()).unwrap());
    let requests = [(); 6].map(|()| service.submit(&under(&rule)).unwrap());

    // One after another, since there is one thread.
    for _ in 0..6 {
        for expected in ["start", "allow", "drop"] {
            assert_eq!(calls.recv().unwrap(), expected);
        }
    }
    control.release();
    for request in requests {
        assert_eq!(collect(request).reason(), FinishReason::Eos);
    }
    finish(service);
}
