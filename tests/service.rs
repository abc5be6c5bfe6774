//! A service on engines whose answers are fixed, and on the tiny model: what receivers see, and what is
//! left afterwards. No test depends on how long something takes.
#![cfg(all(feature = "scheduler", feature = "text"))]

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use worker_cuda::generate::service::*;
use worker_cuda::generate::{self, FinishReason, Service, Session};
use worker_cuda::scheduler::{Plan, Refusal, Salt};
use worker_cuda::{
    Backend, BackendInstance, EngineOptions, ErrorKind, Gguf, KvType, LateRow, Model, Purpose,
    Sampling, Token,
};

use faulty::Faulty;
use models::{tiny, tiny_path};
use service::*;

#[path = "support/faulty.rs"]
mod faulty;
#[path = "support/models.rs"]
mod models;
#[path = "support/service.rs"]
mod service;

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

#[cfg(feature = "stream")]
#[test]
fn a_stream_has_the_events_of_its_receiver() {
    use futures_core::Stream;
    use std::pin::Pin;

    let (service, control) = scripted(options());
    let mut events = service
        .submit(&Request::tokens([40]))
        .unwrap()
        .into_stream();
    let mut answer = Answer::default();
    let mut context = Context::from_waker(Waker::noop());
    loop {
        match Pin::new(&mut events).poll_next(&mut context) {
            Poll::Ready(Some(event)) => answer.take(event),
            Poll::Ready(None) => break,
            Poll::Pending => std::thread::yield_now(),
        }
    }
    assert_eq!(answer.usage().completion_tokens, 9);
    assert!(events.into_receiver().is_finished());

    control.hold();
    let events = service
        .submit(&Request::tokens([40]))
        .unwrap()
        .into_stream();
    events.canceller().cancel();
    control.release();
    assert_eq!(
        collect(events.into_receiver()).reason(),
        FinishReason::Cancelled
    );
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

    assert_eq!(answer.cached, [0, 135, 135, 135], "forks of the first");
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

/// Choices are forks of the first, also of one that ends with its first token, and get the texts of separate requests.
#[test]
fn choices_compute_their_prompt_once_and_one_token_each() {
    let (model, options) = (tiny(), engine_options());
    let service = Service::with_tokenizer(&model, &options, tokenizer(), Options::default());
    let service = service.unwrap();
    let alone = Service::with_tokenizer(&model, &options, tokenizer(), Options::default());
    let alone = alone.unwrap();
    // One page less 4, one and 15 more, two and 7, three in two steps.
    for (number, max_tokens) in [(3, 1), (4, 40), (7, 1), (7, 40), (10, 2)] {
        let mut request = request(number);
        (request.max_tokens, request.choices) = (Some(max_tokens), 4);
        request.sampling = Sampling::with_temperature(0.9, 5);
        request.salt = Salt::new(&[0; 32], b"", &max_tokens.to_le_bytes());
        let before = service.stats();

        let answer = collect(service.submit(&request).unwrap());

        let after = service.stats();
        let prompts = after.prompt_tokens - before.prompt_tokens;
        let found = after.cached_tokens - before.cached_tokens;
        let length = prompt(number).len() as u64;
        assert_eq!((prompts, prompts - found), (4 * length, length + 3));
        let usage = answer.usage();
        assert_eq!(
            (usage.prompt_tokens, usage.cached_tokens),
            (length as u32, 0)
        );
        for (choice, tokens) in (0..).zip(&answer.tokens) {
            let mut one = request.clone();
            (one.choices, one.sampling.seed) = (1, 5 + choice);
            one.salt = Salt::new(
                &[1; 32],
                b"",
                &[number as u8, max_tokens as u8, choice as u8],
            );
            let separate = collect(alone.submit(&one).unwrap());
            assert_eq!((&separate.tokens[0], separate.cached[0]), (tokens, 0));
        }
    }
    finish(service);
    finish(alone);
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
        let options =
            ModelEngine::serving_options_with(&model, EngineOptions::new().kv_type(kv_type))
                .unwrap();
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

#[test]
fn the_keys_of_pages_depend_on_the_model() {
    let digest = |gguf: &Gguf| {
        let model = Model::load(&models::host(), gguf).unwrap();
        let engine = ModelEngine::new(&model, &engine_options()).unwrap();
        engine.limits().model_digest
    };
    let original = Gguf::open(tiny_path()).unwrap();
    let mut bytes = std::fs::read(tiny_path()).unwrap();
    assert_eq!(
        digest(&original),
        digest(&Gguf::from_bytes(bytes.clone()).unwrap())
    );

    let mut seen = vec![digest(&original)];
    for tensor in original.tensors() {
        let at = tensor.unwrap().file_offset as usize;
        bytes[at] ^= 1;
        let digest = digest(&Gguf::from_bytes(bytes.clone()).unwrap());
        bytes[at] ^= 1;
        assert!(!seen.contains(&digest), "byte {at}");
        seen.push(digest);
    }
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

/// A step fails in the middle of four texts.
fn expect_every_text_as_alone(fault: ErrorKind) {
    let engine = Faulty {
        engine: ModelEngine::new(&tiny(), &engine_options()).unwrap(),
        faults: vec![(17, fault)],
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
fn a_fault_in_the_middle_leaves_every_text_as_it_is_alone() {
    expect_every_text_as_alone(ErrorKind::DeviceError);
}

#[test]
fn a_device_lost_in_the_middle_is_opened_again_and_every_text_is_as_it_is_alone() {
    expect_every_text_as_alone(ErrorKind::DeviceLost);
}

#[test]
fn a_device_that_cannot_be_opened_again_ends_the_service_and_frees_the_engine() {
    let instance = BackendInstance::builder(Backend::Host).open().unwrap();
    let context = instance.context().unwrap();
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
    let refused = service.submit(&endless).unwrap_err().to_string();
    assert!(
        refused.contains("backend instance is not opened again"),
        "{refused}"
    );
    let after = context.memory(Purpose::Any).unwrap().current_bytes;
    assert_eq!(before, after);
}

#[test]
fn a_device_lost_twice_ends_the_service() {
    let engine = Faulty {
        engine: ModelEngine::new(&tiny(), &engine_options()).unwrap(),
        faults: vec![(3, ErrorKind::DeviceLost), (9, ErrorKind::DeviceLost)],
    };
    let service = Service::start(engine, Some(tokenizer()), Options::default()).unwrap();
    let mut endless = request(1);
    endless.max_tokens = None;

    let answer = collect(service.submit(&endless).unwrap());

    assert_eq!(answer.error(), "device_lost");
    assert_eq!(service.state(), State::Lost);
    assert_eq!(service.stats().engine_faults, 1);
}

/// Releases the engine, then drops the service.
struct Owning {
    control: ScriptControl,
    _service: Service,
}

impl Wake for Owning {
    fn wake(self: Arc<Self>) {}
}

impl Drop for Owning {
    fn drop(&mut self) {
        self.control.release();
    }
}

#[test]
fn a_waker_that_owns_the_service_may_be_dropped_by_the_next_poll() {
    let (service, control) = scripted(options());
    control.hold();
    let mut events = service.submit(&Request::tokens([40])).unwrap();
    assert!(matches!(events.next(), Some(Event::Started { .. })));
    let owning = Owning {
        control,
        _service: service,
    };
    let owning = Waker::from(Arc::new(owning));
    let mut poll = |waker: &Waker| events.poll_event(&mut Context::from_waker(waker));
    assert!(poll(&owning).is_pending());
    drop(owning);

    assert!(poll(Waker::noop()).is_pending());

    // All threads have ended.
    let mut last = None;
    while let Poll::Ready(Some(event)) = poll(Waker::noop()) {
        last = Some(event);
    }
    assert!(last.is_some_and(|event| event.is_last()));
}

#[test]
fn every_caller_of_drain_waits_for_the_end() {
    let (open, gate) = mpsc::channel::<()>();
    let (gate, has_ended) = (Mutex::new(gate), Arc::new(AtomicBool::new(false)));
    let ended = has_ended.clone();
    let mut options = options();
    options.observer = Some(Arc::new(move |observation: Observation<'_>| {
        if let Observation::Done(..) = observation {
            let _ = gate.lock().unwrap().recv();
            ended.store(true, Ordering::SeqCst);
        }
    }));
    let (service, _) = scripted(options);
    let events = service.submit(&Request::tokens([40])).unwrap();
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                service.drain(Duration::MAX);
                assert!(has_ended.load(Ordering::SeqCst), "text threads still run");
            });
        }
        // A caller that does not wait has time to show it.
        std::thread::sleep(Duration::from_millis(100));
        open.send(()).unwrap();
    });
    collect(events);
}
