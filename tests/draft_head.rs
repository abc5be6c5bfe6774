//! Draft heads guess from features of their target: they change the speed of texts, never the texts.
//!
//! The clocks stand still, so that costs are unknown and every guess is verified.
#![cfg(feature = "text")]

use std::sync::{Arc, mpsc};
use std::time::Duration;

use worker_cuda::generate::service::{
    self, Clock, Drafting, EventReceiver, ModelEngine, StepEngine,
};
use worker_cuda::generate::{Draft, Event, ModelDraft, Request, Service, Session, Summary};
use worker_cuda::text::Tokenizer;
use worker_cuda::{
    Backend, CudaContext, Engine, EngineOptions, ErrorKind, Model, Purpose, Row, Sampling, Step,
    Token,
};

use faulty::Faulty;
use random_model::{letters, random_head, random_model, repeating_head, repeating_model};

#[path = "support/faulty.rs"]
mod faulty;
#[path = "support/random_model.rs"]
mod random_model;

const PROMPT: [Token; 9] = [5, 17, 3, 40, 22, 8, 61, 30, 2];

fn host() -> CudaContext {
    let builder = CudaContext::builder().backend(Backend::Host);
    builder.host_threads(1).open().unwrap()
}

fn options() -> EngineOptions {
    EngineOptions::new()
        .max_batch_tokens(16)
        .max_sequence_tokens(512)
}

fn session(model: &Model, head: Option<&Model>) -> (Session, Option<ModelDraft>) {
    let mut options = options().max_draft_tokens(6);
    if let Some(head) = head {
        options = options.draft_head(head);
    }
    let mut session = Session::new(model, &options).unwrap();
    session.set_clock(Clock::manual());
    let draft = head.map(|head| {
        let options = self::options().max_sequences(2);
        ModelDraft::head(head, session.engine(), &options).unwrap()
    });
    let source = draft.clone().map(|draft| Box::new(draft) as Box<dyn Draft>);
    session.set_draft(source);
    (session, draft)
}

fn events(session: &mut Session, request: &Request) -> (Vec<Event>, Summary) {
    let generation = session.generate(request).unwrap();
    let mut events: Vec<Event> = generation.map(|event| event.unwrap()).collect();
    match events.pop() {
        Some(Event::Done(summary)) => (events, summary),
        other => panic!("the last event is {other:?}"),
    }
}

fn samplings() -> [Sampling; 3] {
    let mut penalized = Sampling::with_temperature(0.8, 5);
    penalized.frequency_penalty = 0.4;
    penalized.repetition_penalty = 1.2;
    [
        Sampling::greedy(),
        Sampling::with_temperature(1.0, 9),
        penalized,
    ]
}

#[test]
fn guesses_change_no_event() {
    let model = random_model(&host(), &letters(), 1);
    let head = random_head(&model, 20, 2);
    let (mut without, _) = session(&model, None);
    let (mut with, draft) = session(&model, Some(&head));
    for sampling in samplings() {
        // The second prompt continues the first one, the third one has nothing in common with them, the last one is
        // longer than a page.
        for prompt in [&PROMPT[..4], &PROMPT[..], &[9, 9, 50], &[7; 150]] {
            for max_tokens in [1, 2, 50] {
                let mut request = Request::tokens(prompt).sampling(sampling.clone());
                request.max_tokens = Some(max_tokens);
                request.ignore_end = true;
                let (expected, _) = events(&mut without, &request);
                let (found, summary) = events(&mut with, &request);
                assert_eq!(found, expected);
                assert!(max_tokens < 50 || summary.draft_tokens > 20, "{summary:?}");
            }
        }
    }
    let draft = draft.unwrap();
    assert_eq!(draft.info().unwrap().sequence_count, 1);
    drop(with);
    let info = draft.info().unwrap();
    assert_eq!((info.sequence_count, info.kv_held_page_count), (0, 0));
}

#[test]
fn right_guesses_save_steps() {
    let model = repeating_model(&host(), &letters());
    let head = repeating_head(&model);
    let (mut with, _) = session(&model, Some(&head));
    let mut request = Request::tokens(PROMPT).max_tokens(100);
    request.ignore_end = true;
    let (found, summary) = events(&mut with, &request);
    let last = PROMPT[PROMPT.len() - 1];
    let is_last = |event: &Event| match event {
        Event::Token { token, .. } => *token == last,
        _ => true,
    };
    assert!(found.iter().all(is_last));
    assert_eq!(summary.accepted_draft_tokens, summary.draft_tokens);
    assert!(summary.draft_tokens > 70, "{summary:?}");
}

/// What the head guesses after a text, by its engine alone, from a sequence that has just been computed.
fn by_hand(model: &Model, head: &Model, text: &[Token], count: usize) -> Vec<Token> {
    let options = EngineOptions::new().max_sequences(1);
    let mut engine = Engine::new(model, &options.clone().draft_head(head)).unwrap();
    let mut drafting = Engine::of_draft_head(head, &options, &engine).unwrap();
    let (read, written) = (
        engine.create_sequence().unwrap(),
        drafting.create_sequence().unwrap(),
    );
    let computed = &text[..text.len() - 1];
    let ticket = engine.submit(&Step::new().row(Row::tokens(&read, computed)));
    engine.wait(ticket.unwrap()).unwrap();
    let greedy = Sampling::greedy();
    let mut row = Row::tokens(&written, &text[1..]).features(read.features());
    let mut guesses = Vec::new();
    for _ in 0..count {
        let ticket = drafting
            .submit(&Step::new().row(row.sample(&greedy)))
            .unwrap();
        guesses.extend(drafting.wait(ticket).unwrap().rows()[0].token);
        row = Row::feed_sampled(&written);
    }
    guesses
}

#[test]
fn guesses_are_computed_from_features_of_all_tokens() {
    let model = random_model(&host(), &letters(), 1);
    let head = random_head(&model, 20, 2);
    let mut engine = Engine::new(&model, &options().draft_head(&head)).unwrap();
    let mut draft = ModelDraft::head(&head, &engine, &options()).unwrap();
    let read = engine.create_sequence().unwrap();
    let mut text: Vec<Token> = Vec::new();
    // After the first text, all guesses are part of the next one; then some, then none.
    for (kept, more) in [(0, &PROMPT[..]), (4, &[]), (2, &[1, 60]), (0, &[13])] {
        text.extend(by_hand_or_nothing(&model, &head, &text, kept));
        text.extend(more);
        let missing = &text[read.len().unwrap() as usize..text.len() - 1];
        let ticket = engine.submit(&Step::new().row(Row::tokens(&read, missing)));
        engine.wait(ticket.unwrap()).unwrap();
        let mut guesses = Vec::new();
        draft.follow(Some(read.features()));
        draft.draft(&text, 4, &mut guesses);
        assert_eq!(guesses, by_hand(&model, &head, &text, 4), "after {text:?}");
    }

    // Without features, with those of a shorter sequence, and of one that has been dropped.
    let short = engine.create_sequence().unwrap();
    let gone = engine.create_sequence().unwrap().features();
    for features in [None, Some(short.features()), Some(gone)] {
        let mut none = Vec::new();
        draft.follow(features);
        draft.draft(&text, 4, &mut none);
        assert!(none.is_empty() && !draft.is_computed());
    }
    let mut guesses = Vec::new();
    draft.follow(Some(read.features()));
    draft.draft(&text, 4, &mut guesses);
    assert_eq!(guesses.len(), 4);
    assert!(draft.is_computed());
}

fn by_hand_or_nothing(model: &Model, head: &Model, text: &[Token], count: usize) -> Vec<Token> {
    match count {
        0 => Vec::new(),
        count => by_hand(model, head, text, count),
    }
}

#[test]
fn a_head_needs_an_engine_that_keeps_its_features() {
    let context = host();
    let model = random_model(&context, &letters(), 1);
    let head = random_head(&model, 20, 2);
    let plain = Engine::new(&model, &options()).unwrap();
    let refused = |result: worker_cuda::Result<ModelDraft>| result.unwrap_err().kind();
    assert_eq!(
        refused(ModelDraft::head(&head, &plain, &options())),
        ErrorKind::InvalidArgument
    );
    let mut engine = ModelEngine::new(&model, &options()).unwrap();
    assert_eq!(
        refused(engine.draft_head(&options())),
        ErrorKind::InvalidState
    );
    let other = random_model(&context, &letters(), 3);
    let wrong = Engine::new(&other, &options().draft_head(&head));
    assert_eq!(wrong.unwrap_err().kind(), ErrorKind::InvalidArgument);
    assert_eq!(head.target(), Some(&model));
    assert_eq!(model.target(), None);

    // Each engine keeps what it needs, in any order of drops.
    let engine = Engine::new(&model, &options().draft_head(&head)).unwrap();
    let draft = ModelDraft::head(&head, &engine, &options()).unwrap();
    drop((engine, model, head));
    assert!(draft.info().is_ok());
}

// ---- Services ----

fn engine(model: &Model, head: Option<&Model>) -> (ModelEngine, Option<ModelDraft>) {
    let mut engine_options = EngineOptions::new()
        .max_sequences(4)
        .max_batch_tokens(128)
        .batch_invariant(true)
        .kv_tokens(12 * 64)
        .max_draft_tokens(16);
    if let Some(head) = head {
        engine_options = engine_options.draft_head(head);
    }
    let mut engine = ModelEngine::new(model, &engine_options).unwrap();
    let draft = head.map(|_| engine.draft_head(&options().max_sequences(4)).unwrap());
    (engine, draft)
}

fn start(model: &Model, head: Option<&Model>) -> (Service, Option<ModelDraft>) {
    let (engine, draft) = engine(model, head);
    (serve(engine, model, draft.clone()), draft)
}

fn serve(engine: impl StepEngine + 'static, model: &Model, draft: Option<ModelDraft>) -> Service {
    let mut options = service::Options::default();
    options.clock = Clock::manual();
    options.drafting = draft.map(|draft| {
        let make = move || -> Box<dyn Draft> { Box::new(draft.clone()) };
        Drafting::new(4, make)
    });
    let tokenizer = Arc::new(Tokenizer::from_gguf(model.gguf()).unwrap());
    Service::start(engine, Some(tokenizer), options).unwrap()
}

/// Four texts of up to 209 tokens need more pages than there are, so that some are preempted.
fn request(number: usize) -> service::Request {
    let mut request = service::Request::tokens(&PROMPT[number % 5..]);
    request.sampling = samplings()[number % 3].clone();
    request.max_tokens = Some(200);
    request.ignore_end = true;
    request
}

/// Tokens, and draft tokens that were computed and that held.
fn answer(events: EventReceiver) -> (Vec<Token>, [u32; 2]) {
    let (mut tokens, mut drafts) = (Vec::new(), [0; 2]);
    for event in events {
        match event {
            service::Event::Token(token) => tokens.push(token.token),
            service::Event::Done(usage) => {
                drafts = [usage.draft_tokens, usage.accepted_draft_tokens];
            }
            service::Event::Failed(error) => panic!("{error}"),
            _ => {}
        }
    }
    (tokens, drafts)
}

fn answers(service: &Service, count: usize) -> Vec<(Vec<Token>, [u32; 2])> {
    let running: Vec<_> = (0..count)
        .map(|number| service.submit(&request(number)).unwrap())
        .collect();
    running.into_iter().map(answer).collect()
}

fn expect_answers(model: &Model, drafted: &Service, count: usize) {
    let (plain, _) = start(model, None);
    let expected = answers(&plain, count);
    for (found, expected) in answers(drafted, count).iter().zip(&expected) {
        assert_eq!(found.0, expected.0);
        assert!(found.1[0] > 20, "{:?}", found.1);
    }
}

#[test]
fn a_service_answers_as_without_a_head() {
    let model = random_model(&host(), &letters(), 1);
    let (drafted, draft) = start(&model, Some(&random_head(&model, 20, 2)));
    expect_answers(&model, &drafted, 6);
    assert_eq!(drafted.drain(Duration::MAX), 0);
    let info = draft.unwrap().info().unwrap();
    assert_eq!((info.sequence_count, info.kv_held_page_count), (0, 0));
}

#[test]
fn the_guesses_of_a_service_are_right_where_those_of_a_session_are() {
    let model = repeating_model(&host(), &letters());
    let (drafted, _) = start(&model, Some(&repeating_head(&model)));
    let (tokens, [computed, accepted]) = answer(drafted.submit(&request(0)).unwrap());
    assert_eq!(tokens, [2; 200]);
    assert_eq!(accepted, computed);
    assert!(computed > 140, "{computed}");
}

#[test]
fn a_head_follows_its_engine_after_faults() {
    for kind in [ErrorKind::DeviceError, ErrorKind::DeviceLost] {
        let model = repeating_model(&host(), &letters());
        let (engine, draft) = engine(&model, Some(&repeating_head(&model)));
        let faults = vec![(11, kind)];
        let service = serve(Faulty { engine, faults }, &model, draft.clone());
        let (tokens, [computed, accepted]) = answer(service.submit(&request(0)).unwrap());
        assert_eq!(tokens, [2; 200], "{kind:?}");
        // Those of the failed step neither held nor not.
        assert!(
            accepted > 140 && computed <= accepted + 4,
            "{computed}, {accepted}"
        );
        assert_eq!(service.stats().engine_faults, 1);
        assert_eq!(service.drain(Duration::MAX), 0);
        assert!(draft.unwrap().info().is_ok());
    }
}

#[test]
fn calls_of_an_engine_do_not_fail_while_its_draft_head_submits() {
    let context = host();
    let model = random_model(&context, &letters(), 1);
    let head = random_head(&model, 20, 2);
    let mut engine = Engine::new(&model, &options().draft_head(&head)).unwrap();
    let mut drafting = Engine::of_draft_head(&head, &options(), &engine).unwrap();
    let (text, guesses) = (engine.create_sequence(), drafting.create_sequence());
    let (text, guesses) = (text.unwrap(), guesses.unwrap());
    let ticket = engine.submit(&Step::new().row(Row::tokens(&text, &PROMPT)));
    engine.wait(ticket.unwrap()).unwrap();

    std::thread::scope(|scope| {
        let (stop, stopped) = mpsc::channel::<()>();
        let (drafting, guesses, text) = (&mut drafting, &guesses, &text);
        scope.spawn(move || {
            while stopped.try_recv() == Err(mpsc::TryRecvError::Empty) {
                let row = Row::tokens(guesses, &PROMPT[1..]).features(text.features());
                match drafting.submit(&Step::new().row(row)) {
                    Ok(ticket) => drop(drafting.wait(ticket).unwrap()),
                    Err(error) => assert_eq!(error.kind(), ErrorKind::Busy, "{error}"),
                }
                drafting.truncate(guesses, 0).unwrap();
            }
        });
        for _ in 0..10_000 {
            drop(engine.create_sequence().unwrap());
        }
        drop(engine);
        drop(stop);
    });

    drop((text, guesses, drafting));
    assert_eq!(context.memory(Purpose::Kv).unwrap().current_bytes, 0);
}
