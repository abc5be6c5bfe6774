//! Guesses of a draft model: they change the speed of texts, never the texts, and need no more room than there is.
//!
//! The clocks stand still, so that costs are unknown and every guess is verified.
#![cfg(feature = "text")]

use std::sync::mpsc::{self, Receiver};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use worker_cuda::generate::service::{self, Clock, Drafting, EventReceiver, ModelEngine};
use worker_cuda::generate::{
    Draft, Event, FinishReason, ModelDraft, Request, Service, Session, Summary,
};
use worker_cuda::text::{TokenType, Tokenizer, Vocabulary};
use worker_cuda::{
    Backend, BackendInstance, CudaContext, EngineOptions, ErrorKind, Fault, Model, Sampling, Token,
    log,
};

use random_model::{letters, random_file, random_model};

#[path = "support/random_model.rs"]
mod random_model;

const PROMPT: [Token; 9] = [5, 17, 3, 40, 22, 8, 61, 30, 2];

fn host() -> CudaContext {
    let builder = CudaContext::builder().backend(Backend::Host);
    builder.host_threads(1).open().unwrap()
}

fn target() -> Model {
    random_model(&host(), &letters(), 1)
}

fn options() -> EngineOptions {
    EngineOptions::new()
        .max_batch_tokens(16)
        .max_sequence_tokens(512)
}

fn session(model: &Model, draft: Option<ModelDraft>) -> Session {
    let options = options().max_top_logprobs(2).max_draft_tokens(6);
    let mut session = Session::new(model, &options).unwrap();
    session.set_clock(Clock::manual());
    session.set_draft(draft.map(|draft| Box::new(draft) as Box<dyn Draft>));
    session
}

fn events(session: &mut Session, request: &Request) -> (Vec<Event>, Summary) {
    let generation = session.generate(request).unwrap();
    let mut events: Vec<Event> = generation.map(|event| event.unwrap()).collect();
    match events.pop() {
        Some(Event::Done(summary)) => (events, summary),
        other => panic!("the last event is {other:?}"),
    }
}

fn tokens(events: &[Event]) -> Vec<Token> {
    let token = |event: &Event| match event {
        Event::Token { token, .. } => Some(*token),
        _ => None,
    };
    events.iter().filter_map(token).collect()
}

fn samplings() -> [Sampling; 3] {
    let mut greedy = Sampling::greedy();
    greedy.top_logprobs = 2;
    let mut penalized = Sampling::with_temperature(0.8, 5);
    penalized.frequency_penalty = 0.4;
    penalized.repetition_penalty = 1.2;
    [greedy, Sampling::with_temperature(1.0, 9), penalized]
}

#[test]
fn a_model_guesses_its_own_greedy_tokens() {
    let model = target();
    let request = Request::tokens(PROMPT).max_tokens(200);
    let (expected, plain) = events(&mut session(&model, None), &request);
    let draft = ModelDraft::new(&model, &model, &options()).unwrap();
    let (found, summary) = events(&mut session(&model, Some(draft)), &request);
    assert_eq!(found, expected);
    assert_eq!(plain.draft_tokens, 0);
    assert!(summary.draft_tokens > plain.tokens / 2, "{summary:?}");
    assert!(
        summary.accepted_draft_tokens * 100 > summary.draft_tokens * 95,
        "{summary:?}"
    );
}

#[test]
fn a_model_guesses_its_own_sampled_tokens() {
    let model = target();
    let draft = ModelDraft::new(&model, &model, &options()).unwrap();
    let mut biased = Sampling::with_temperature(1.5, 77);
    biased.top_p = 0.9;
    biased.bias = vec![(3, 2.0), (7, f32::NEG_INFINITY)];
    biased.presence_penalty = 0.5;
    for sampling in [Sampling::with_temperature(1.0, 9), biased] {
        let mut request = Request::tokens(PROMPT).max_tokens(200).sampling(sampling);
        request.ignore_end = true;
        let (expected, plain) = events(&mut session(&model, None), &request);
        let (found, summary) = events(&mut session(&model, Some(draft.clone())), &request);
        assert_eq!(found, expected);
        assert!(summary.draft_tokens > plain.tokens / 2, "{summary:?}");
        assert!(
            summary.accepted_draft_tokens * 100 > summary.draft_tokens * 95,
            "{summary:?}"
        );
    }
}

#[test]
fn guesses_of_any_model_change_no_event() {
    let model = target();
    for (seed, least) in [(1, 10), (2, 0)] {
        let small = random_model(model.context(), &letters(), seed);
        let draft = ModelDraft::new(&small, &model, &options()).unwrap();
        let mut with = session(&model, Some(draft.clone()));
        let mut without = session(&model, None);
        for sampling in samplings() {
            // The second prompt continues the first one, the third one has nothing in common with them.
            for prompt in [&PROMPT[..4], &PROMPT[..], &[9, 9, 50]] {
                for max_tokens in [1, 2, 50] {
                    let mut request = Request::tokens(prompt).sampling(sampling.clone());
                    request.max_tokens = Some(max_tokens);
                    request.ignore_end = max_tokens == 50;
                    let (expected, _) = events(&mut without, &request);
                    let (found, summary) = events(&mut with, &request);
                    assert_eq!(found, expected);
                    let accepted = summary.accepted_draft_tokens;
                    assert!(max_tokens < 50 || accepted >= least, "{summary:?}");
                }
            }
        }
        assert_eq!(draft.info().unwrap().sequence_count, 1);
        drop(with);
        let info = draft.info().unwrap();
        assert_eq!((info.sequence_count, info.kv_held_page_count), (0, 0));
    }
}

/// What a source guesses after `text`, called as often as it needs to catch up.
fn guesses(draft: &mut ModelDraft, text: &[Token], limit: usize) -> (Vec<Token>, usize) {
    for calls in 1..100 {
        let mut guesses = Vec::new();
        draft.prepare(text, limit);
        draft.draft(text, limit, &mut guesses);
        if !guesses.is_empty() {
            return (guesses, calls);
        }
    }
    panic!("no guess");
}

#[test]
fn guesses_are_what_the_draft_model_would_write() {
    let (model, small) = (target(), random_model(&host(), &letters(), 2));
    let long: Vec<Token> = (0..100).map(|i| i * 7 % 63).collect();
    let mut draft = ModelDraft::new(&small, &model, &options()).unwrap();
    assert!(draft.is_computed());
    let after = |text: &[Token], count: u32| {
        let mut session = session(&small, None);
        let mut request = Request::tokens(text).max_tokens(count);
        request.ignore_end = true;
        tokens(&events(&mut session, &request).0)
    };
    // In chunks of 16 tokens, until 32 or fewer are missing.
    let (found, calls) = guesses(&mut draft, &long, 5);
    assert_eq!((found, calls), (after(&long, 5), 6));

    // Some of its guesses hold, then another token comes.
    let mut text = long.clone();
    text.extend(&after(&long, 5)[..3]);
    text.push(11);
    let (found, calls) = guesses(&mut draft, &text, 4);
    assert_eq!((found, calls), (after(&text, 4), 1));
    // All of them hold.
    text.extend(after(&text, 5));
    let (found, calls) = guesses(&mut draft, &text, 15);
    assert_eq!((found, calls), (after(&text, 15), 1));
    // Another text.
    let (found, _) = guesses(&mut draft, &long[50..], 1);
    assert_eq!(found, after(&long[50..], 1));
    // The end of its context.
    let full: Vec<Token> = (0..511).map(|i| i * 5 % 63).collect();
    assert_eq!(guesses(&mut draft, &full, 6).0.len(), 2);
    let mut none = Vec::new();
    draft.draft(&[3; 513], 6, &mut none);
    assert!(none.is_empty() && !draft.is_computed());
    assert_eq!(guesses(&mut draft, &PROMPT, 2).0, after(&PROMPT, 2));
    assert!(draft.is_computed());
}

#[test]
fn sources_of_one_engine_compute_together_and_have_room_one_after_the_other() {
    let model = target();
    let small = random_model(model.context(), &letters(), 2);
    let options = options().max_sequences(2).kv_tokens(192);
    let mut first = ModelDraft::new(&small, &model, &options).unwrap();
    let (mut second, mut third) = (first.clone(), first.clone());
    let alone = guesses(&mut first.clone(), &PROMPT, 3).0;

    let mut found = [Vec::new(), Vec::new(), Vec::new()];
    first.prepare(&PROMPT, 3);
    second.prepare(&PROMPT[1..], 4);
    third.prepare(&PROMPT, 3);
    first.draft(&PROMPT, 3, &mut found[0]);
    second.draft(&PROMPT[1..], 4, &mut found[1]);
    third.draft(&PROMPT, 3, &mut found[2]);
    assert_eq!(found[0], alone);
    assert_eq!((found[1].len(), found[2].len()), (4, 0));
    assert!(first.is_computed() && second.is_computed() && !third.is_computed());
    drop(second);
    assert_eq!(guesses(&mut third, &PROMPT, 3).0, alone);
    assert!(third.is_computed());

    // One of three pages is held by another text: three more are too many.
    let long = [7; 129];
    let mut none = Vec::new();
    third.draft(&long, 4, &mut none);
    assert!(none.is_empty() && !third.is_computed());
    drop(first);
    assert_eq!(guesses(&mut third, &long, 4).0.len(), 4);
    // A source that is dropped between both calls.
    third.prepare(&PROMPT, 3);
    let info = third.clone();
    drop(third);
    assert_eq!(info.info().unwrap().sequence_count, 0);
}

#[test]
fn parameters_that_the_engine_refuses_end_no_other_source() {
    let model = target();
    let mut first = ModelDraft::new(&model, &model, &options().max_sequences(2)).unwrap();
    let mut second = first.clone();
    first.begin(&PROMPT, &[]);
    first.sample_like(&Sampling::with_temperature(f32::NAN, 1));
    let mut none = Vec::new();
    first.draft(&PROMPT, 4, &mut none);
    assert!(none.is_empty());

    assert_eq!(guesses(&mut second, &PROMPT, 4).0.len(), 4);
    first.begin(&PROMPT, &[]);
    assert_eq!(guesses(&mut first, &PROMPT, 4).0.len(), 4);
}

fn difference(change: impl FnOnce(&mut Vocabulary)) -> String {
    let mut other = letters();
    change(&mut other);
    let files = [random_file(&other, 1), random_file(&letters(), 1)];
    match ModelDraft::check(&files[0], &files[1]) {
        Ok(()) => String::new(),
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::InvalidArgument);
            error.message().to_owned()
        }
    }
}

#[test]
fn vocabularies_that_differ_are_refused_with_the_difference() {
    assert_eq!(difference(|_| ()), "");
    assert_eq!(
        difference(|other| other.tokens.extend(["more".into(), "padding".into()])),
        ""
    );
    assert_eq!(
        difference(|other| other.tokens[17] = "x".into()),
        "the draft model has another vocabulary: token 17 is \"x\" (Normal), of 64; in the model it is \"2\" (Normal), \
         of 64"
    );
    let control = difference(|other| {
        other.token_types = vec![TokenType::Normal; 64];
        other.token_types[63] = TokenType::Control;
    });
    assert!(control.contains("token 63 is \"`\" (Control)"), "{control}");
    assert_eq!(
        difference(|other| other.eos_id = Some(62)),
        "the draft model has another vocabulary: the token that ends a text is 62; in the model it is 63"
    );
    let none = difference(|other| other.eos_id = None);
    assert!(none.contains("is none; in the model it is 63"), "{none}");
    let bos = difference(|other| other.bos_id = Some(1));
    assert!(bos.contains("begins a text is 1; in the model it is none"));
}

#[test]
fn a_larger_vocabulary_of_either_model_changes_nothing() {
    let mut larger = letters();
    larger.tokens.extend((0..9).map(|i| format!("more{i}")));
    for vocabularies in [[&larger, &letters()], [&letters(), &larger]] {
        let [of_draft, of_model] = vocabularies;
        let model = random_model(&host(), of_model, 1);
        let small = random_model(model.context(), of_draft, 3);
        let draft = ModelDraft::new(&small, &model, &options()).unwrap();
        for sampling in samplings() {
            let request = Request::tokens(PROMPT).sampling(sampling).max_tokens(60);
            let (expected, _) = events(&mut session(&model, None), &request);
            let (found, _) = events(&mut session(&model, Some(draft.clone())), &request);
            assert_eq!(found, expected);
        }
    }
}

/// A model equal to the target, and what makes its device be lost.
fn model_to_lose() -> (Model, impl Fn()) {
    let instance = BackendInstance::builder(Backend::Host);
    let instance = instance.with_faults().open().unwrap();
    let context = instance.context().unwrap();
    let lose = {
        let context = context.clone();
        move || {
            instance.fail(Fault::Lost, 1).unwrap();
            let lost = context.alloc::<u8>(16).unwrap_err();
            assert_eq!(lost.kind(), ErrorKind::DeviceLost);
        }
    };
    (random_model(&context, &letters(), 1), lose)
}

#[test]
fn an_engine_that_fails_is_logged_once_and_guesses_no_more() {
    let model = target();
    let mut request = Request::tokens(PROMPT).max_tokens(120);
    request.ignore_end = true;
    let (expected, _) = events(&mut session(&model, None), &request);
    let records = Arc::new(Mutex::new(Vec::new()));
    let sink = records.clone();
    let (small, lose) = model_to_lose();
    let draft = ModelDraft::new(&small, &model, &options().max_sequences(2)).unwrap();
    let of_sink = draft.clone();
    log::set_sink(log::Level::Warn, move |level, target, message| {
        if target == "draft" {
            assert!(of_sink.info().is_err(), "a sink may ask");
            sink.lock().unwrap().push((level, message.to_owned()));
        }
    })
    .unwrap();
    let mut first = session(&model, Some(draft.clone()));
    let mut second = session(&model, Some(draft.clone()));
    let (found, summary) = events(&mut first, &request);
    assert_eq!(found, expected);
    assert!(summary.accepted_draft_tokens > 10, "{summary:?}");
    lose();
    // The second one finds out, and the first one has nothing any more.
    for session in [&mut second, &mut first] {
        let (found, summary) = events(session, &request);
        assert_eq!((&found, summary.draft_tokens), (&expected, 0));
        assert_eq!(draft.info().unwrap_err().kind(), ErrorKind::NotAvailable);
        assert!(!draft.is_computed());
    }
    log::clear_sink().unwrap();
    let records = records.lock().unwrap();
    assert_eq!(records.len(), 1, "{records:?}");
    assert_eq!(records[0].0, log::Level::Error);
    assert!(
        records[0]
            .1
            .starts_with("the draft model guesses nothing more: "),
        "{records:?}"
    );
}

/// Guesses tokens that no model has.
struct Nonsense;

impl Draft for Nonsense {
    fn begin(&mut self, _: &[Token], _: &[Token]) {}

    fn draft(&mut self, _: &[Token], limit: usize, drafts: &mut Vec<Token>) {
        drafts.extend([Token::MAX, 1 << 20]);
        drafts.resize(2 * limit, Token::MAX);
    }
}

#[test]
fn guesses_that_are_no_tokens_are_ignored() {
    let model = target();
    let mut request = Request::tokens(PROMPT).max_tokens(20);
    request.ignore_end = true;
    let (expected, _) = events(&mut session(&model, None), &request);
    let mut session = session(&model, None);
    session.set_draft(Some(Box::new(Nonsense)));
    let (found, summary) = events(&mut session, &request);
    assert_eq!((found, summary.draft_tokens), (expected, 0));
}

// ---- Services ----

/// Guesses of a model for each text. That of the first text with PROMPT waits at its 30th token until the gate opens.
struct Gated {
    draft: ModelDraft,
    gate: Arc<Mutex<Option<Receiver<()>>>>,
    own_gate: Option<Receiver<()>>,
}

impl Draft for Gated {
    fn begin(&mut self, prompt: &[Token], prediction: &[Token]) {
        if prompt == PROMPT {
            self.own_gate = self.gate.lock().unwrap().take();
        }
        self.draft.begin(prompt, prediction);
    }

    fn sample_like(&mut self, sampling: &Sampling) {
        self.draft.sample_like(sampling);
    }

    fn draft(&mut self, tokens: &[Token], limit: usize, drafts: &mut Vec<Token>) {
        if tokens.len() >= PROMPT.len() + 30 {
            self.own_gate.take().map(|gate| gate.recv());
        }
        self.draft.draft(tokens, limit, drafts);
    }

    fn is_computed(&self) -> bool {
        self.draft.is_computed()
    }

    fn prepare(&mut self, tokens: &[Token], limit: usize) {
        self.draft.prepare(tokens, limit);
    }
}

fn start(model: &Model, draft: Option<&ModelDraft>) -> Service {
    start_with(
        model,
        draft.map(|draft| {
            let draft = draft.clone();
            Drafting::new(4, move || Box::new(draft.clone()))
        }),
    )
}

fn start_with(model: &Model, drafting: Option<Drafting>) -> Service {
    let mut options = service::Options::default();
    options.clock = Clock::manual();
    options.drafting = drafting;
    let engine = EngineOptions::new()
        .max_sequences(4)
        .max_batch_tokens(128)
        .batch_invariant(true)
        .max_draft_tokens(16);
    let tokenizer = Arc::new(Tokenizer::from_gguf(model.gguf()).unwrap());
    let engine = ModelEngine::new(model, &engine).unwrap();
    Service::start(engine, Some(tokenizer), options).unwrap()
}

fn request(number: usize) -> service::Request {
    let mut request = service::Request::tokens(&PROMPT[number % 5..]);
    request.sampling = samplings()[number % 3].clone();
    request.sampling.top_logprobs = 0;
    request.max_tokens = Some(150);
    request.ignore_end = true;
    request
}

/// Tokens, end and draft tokens that held.
fn answer(events: EventReceiver) -> (Vec<Token>, Option<FinishReason>, u32) {
    let (mut tokens, mut end, mut accepted) = (Vec::new(), None, 0);
    for event in events {
        match event {
            service::Event::Token(token) => tokens.push(token.token),
            service::Event::Finished { reason, .. } => end = Some(reason),
            service::Event::Done(usage) => accepted = usage.accepted_draft_tokens,
            service::Event::Failed(error) => panic!("{error}"),
            _ => {}
        }
    }
    (tokens, end, accepted)
}

#[test]
fn a_service_gives_each_text_a_draft_sequence_as_long_as_it_runs() {
    let model = target();
    let plain = start(&model, None);
    let expected: Vec<_> = (0..4)
        .map(|number| answer(plain.submit(&request(number)).unwrap()).0)
        .collect();
    let options = options().max_sequences(2);
    let draft = ModelDraft::new(&model, &model, &options).unwrap();
    let (open_gate, gate) = mpsc::channel::<()>();
    let gate = Arc::new(Mutex::new(Some(gate)));
    let source = draft.clone();
    let drafting = Drafting::new(4, move || {
        Box::new(Gated {
            draft: source.clone(),
            gate: gate.clone(),
            own_gate: None,
        })
    });
    let drafted = start_with(&model, Some(drafting));

    let mut cancelled = drafted.submit(&request(0)).unwrap();
    let other = drafted.submit(&request(1)).unwrap();
    let mut begin = Vec::new();
    for event in &mut cancelled {
        if let service::Event::Token(token) = event {
            begin.push(token.token);
        }
        if begin.len() == 20 {
            cancelled_at(&begin, &expected[0]);
            break;
        }
    }
    cancelled.cancel();
    // Whether the text waits at the gate or was cancelled on its way there.
    drop(open_gate);
    let (rest, end, _) = answer(cancelled);
    assert_eq!(end, Some(FinishReason::Cancelled));
    begin.extend(rest);
    cancelled_at(&begin, &expected[0]);
    assert_eq!(answer(other).0, expected[1]);

    // Two sequences are free again, and again.
    for number in [0, 2, 3, 1] {
        let (tokens, _, accepted) = answer(drafted.submit(&request(number)).unwrap());
        assert_eq!(tokens, expected[number]);
        assert!(accepted > 100, "{accepted} of 150 in {number}");
    }
    let mut choices = request(1);
    choices.choices = 2;
    let (tokens, _, accepted) = answer(drafted.submit(&choices).unwrap());
    assert_eq!(tokens.len(), 300);
    assert!(accepted > 200, "{accepted} of 300 in two choices");
    // More texts than sequences.
    let all: Vec<_> = (0..4)
        .map(|number| drafted.submit(&request(number)).unwrap())
        .collect();
    for (events, expected) in all.into_iter().zip(&expected) {
        assert_eq!(answer(events).0, *expected);
    }
    assert_eq!(drafted.drain(Duration::MAX), 0);
    let info = draft.info().unwrap();
    assert_eq!((info.sequence_count, info.steps_in_flight), (0, 0));
    assert_eq!(info.kv_held_page_count, 0);
    assert_eq!(info.kv_free_page_count, info.kv_page_count);
}

fn cancelled_at(begin: &[Token], whole: &[Token]) {
    assert_eq!(begin, &whole[..begin.len()]);
}

#[test]
fn a_service_answers_without_guesses_when_the_draft_engine_is_lost() {
    let model = target();
    let plain = start(&model, None);
    let expected = answer(plain.submit(&request(1)).unwrap()).0;
    let (small, lose) = model_to_lose();
    let draft = ModelDraft::new(&small, &model, &options()).unwrap();
    let drafted = start(&model, Some(&draft));
    assert!(answer(drafted.submit(&request(0)).unwrap()).2 > 10);
    lose();
    let (tokens, _, accepted) = answer(drafted.submit(&request(1)).unwrap());
    assert_eq!((tokens, accepted), (expected, 0));
    assert_eq!(draft.info().unwrap_err().kind(), ErrorKind::NotAvailable);
    assert_eq!(drafted.drain(Duration::MAX), 0);
}
