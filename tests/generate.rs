//! Generation: events, stop strings, ends, and the reuse of what was computed before.
#![cfg(feature = "text")]

use std::sync::Arc;

use worker_cuda::generate::service::Clock;
use worker_cuda::generate::{
    CancelFlag, Draft, Event, FinishReason, Generation, Message, NgramDraft, NotStarted, Prompt,
    Request, Session, Summary,
};
use worker_cuda::text::{DecodeOptions, Tokenizer, Vocabulary};
use worker_cuda::*;

use models::{host, tiny};
use real_model::real_model;

#[path = "support/forget.rs"]
mod forget;
#[path = "support/models.rs"]
mod models;
#[path = "support/real_model.rs"]
mod real_model;

/// Sixty-four tokens of one letter each, as many as the tiny model has.
fn vocabulary() -> Vocabulary {
    Vocabulary {
        model: "gpt2".into(),
        tokens: (0..64u8)
            .map(|i| char::from(b'!' + i).to_string())
            .collect(),
        ..Vocabulary::default()
    }
}

fn session_with(vocabulary: Vocabulary, options: EngineOptions) -> Session {
    let tokenizer = Arc::new(Tokenizer::from_vocabulary(vocabulary).unwrap());
    Session::with_tokenizer(&tiny(), &options, tokenizer).unwrap()
}

fn session() -> Session {
    session_with(
        vocabulary(),
        EngineOptions::new()
            .max_batch_tokens(16)
            .max_top_logprobs(4),
    )
}

struct Answer {
    tokens: Vec<Token>,
    text: String,
    summary: Summary,
}

fn collect(generation: Generation<'_>) -> Answer {
    let (mut tokens, mut text, mut summary) = (Vec::new(), String::new(), None);
    for event in generation {
        assert!(summary.is_none(), "an event after the end");
        match event.unwrap() {
            Event::Token { token, .. } => tokens.push(token),
            Event::Text(piece) => {
                assert!(!piece.is_empty());
                text += &piece;
            }
            Event::Done(done) => summary = Some(done),
            _ => {}
        }
    }
    Answer {
        tokens,
        text,
        summary: summary.expect("an end"),
    }
}

const PROMPT: [Token; 40] = {
    let mut prompt = [0; 40];
    let mut i = 0;
    while i < 40 {
        prompt[i] = (i as Token * 11 + 5) % 64;
        i += 1;
    }
    prompt
};

fn reference(count: u32) -> Answer {
    collect(
        session()
            .generate(&Request::tokens(PROMPT).max_tokens(count))
            .unwrap(),
    )
}

#[test]
fn answer_is_what_single_steps_draw() {
    let answer = reference(30);
    assert_eq!(answer.summary.reason, FinishReason::Length);
    assert_eq!(
        (answer.summary.prompt_tokens, answer.summary.tokens),
        (40, 30)
    );

    let mut engine = Engine::new(&tiny(), &EngineOptions::new()).unwrap();
    let sequence = engine.create_sequence().unwrap();
    let sampling = Sampling::greedy();
    let mut next = PROMPT.to_vec();
    for &expected in &answer.tokens {
        let row = Row::tokens(&sequence, &next).sample(&sampling);
        let ticket = engine.submit(&Step::new().row(row)).unwrap();
        next = vec![engine.wait(ticket).unwrap().rows()[0].token.unwrap()];
        assert_eq!(next, [expected]);
    }
    let tokenizer = Tokenizer::from_vocabulary(vocabulary()).unwrap();
    assert_eq!(
        answer.text,
        tokenizer
            .decode(&answer.tokens, DecodeOptions::default())
            .unwrap()
    );
}

#[test]
fn stop_string_across_tokens_ends_the_answer_before_it() {
    let whole = reference(30).text;
    let stop = &whole[10..13];
    let first = whole.find(stop).unwrap();
    let request = Request::tokens(PROMPT)
        .max_tokens(30)
        .stop("absent")
        .stop(stop);
    let answer = collect(session().generate(&request).unwrap());
    assert_eq!(answer.summary.reason, FinishReason::Stop);
    assert_eq!(answer.text, whole[..first]);
    assert_eq!(answer.summary.tokens, first + 3);
}

#[test]
fn token_that_ends_the_text_ends_the_answer_unless_ignored() {
    let tokens = reference(30).tokens;
    let end = tokens[5];
    let place = tokens.iter().position(|&token| token == end).unwrap();
    let ending = Vocabulary {
        eos_id: Some(end),
        ..vocabulary()
    };
    let mut session = session_with(ending, EngineOptions::new());
    let mut request = Request::tokens(PROMPT).max_tokens(30);
    let answer = collect(session.generate(&request).unwrap());
    assert_eq!(answer.summary.reason, FinishReason::Eos);
    assert_eq!(answer.tokens, tokens[..place]);

    request.ignore_end = true;
    let answer = collect(session.generate(&request).unwrap());
    assert_eq!(answer.summary.reason, FinishReason::Length);
    assert_eq!(answer.tokens, tokens);
}

#[test]
fn context_is_filled_to_its_last_position() {
    let options = EngineOptions::new()
        .max_sequence_tokens(50)
        .max_batch_tokens(16);
    let mut session = session_with(vocabulary(), options);
    let answer = collect(session.generate(&Request::tokens(PROMPT)).unwrap());
    assert_eq!(answer.summary.reason, FinishReason::ContextFull);
    assert_eq!(
        answer.summary.tokens, 11,
        "ten fed and one drawn after the last"
    );
    let full = collect(session.generate(&Request::tokens([1; 50])).unwrap());
    assert_eq!(full.summary.tokens, 1);
    let error = session.generate(&Request::tokens([1; 51])).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::LimitExceeded);
    assert!(
        error.message().contains("51") && error.message().contains("50"),
        "{error}"
    );
}

#[test]
fn flag_stops_its_own_generation_between_tokens() {
    let mut session = session();
    let request = Request::tokens(PROMPT).max_tokens(10);
    let mut count = 0;
    let mut reason = None;
    let mut generation = session.generate(&request).unwrap();
    let cancel = generation.cancel_flag();
    for event in &mut generation {
        match event.unwrap() {
            Event::Token { .. } => {
                count += 1;
                if count == 3 {
                    cancel.set();
                }
            }
            Event::Done(summary) => reason = Some(summary.reason),
            _ => {}
        }
    }
    assert_eq!((count, reason), (3, Some(FinishReason::Cancelled)));

    // The same request runs again: the flag was the generation's own.
    let again = collect(session.generate(&request).unwrap());
    assert_eq!(again.tokens, reference(10).tokens);
}

#[test]
fn flag_that_is_set_before_the_start_ends_at_once() {
    let mut session = session();
    let cancel = CancelFlag::default();
    cancel.set();

    let generation = session.generate_cancellable(&Request::tokens(PROMPT), &cancel);

    let answer = collect(generation.unwrap());
    assert!(answer.tokens.is_empty());
}

#[test]
fn owned_generation_runs_on_another_thread_and_returns_its_session() {
    let expected = reference(10).tokens;
    let request = Request::tokens(PROMPT).max_tokens(10);
    let mut owned = session().into_generation(&request).unwrap();
    assert_eq!(owned.prompt_tokens(), PROMPT);

    let (tokens, session) = std::thread::spawn(move || {
        let drawn = owned.by_ref().filter_map(|event| match event.unwrap() {
            Event::Token { token, .. } => Some(token),
            _ => None,
        });
        let tokens: Vec<Token> = drawn.collect();
        (tokens, owned.into_session())
    })
    .join()
    .unwrap();

    assert_eq!(tokens, expected);
    let refused = session.into_generation(&Request::tokens([])).unwrap_err();
    assert_eq!(refused.error.message(), "the prompt has no tokens");
    let boxed: Box<dyn std::error::Error> = refused.into();
    assert_eq!(boxed.to_string(), "the prompt has no tokens");
    let mut session = boxed.downcast::<NotStarted>().unwrap().session;
    assert_eq!(
        collect(session.generate(&request).unwrap()).tokens,
        expected
    );
}

#[test]
fn conversations_are_the_messages_that_templates_see() {
    let request = Request::chat([
        Message::system("s"),
        Message::user("u"),
        Message::assistant("a"),
        Message::new("tool", "t"),
    ]);

    let Prompt::Chat(input) = request.prompt else {
        panic!("no conversation");
    };
    let expected: Vec<serde_json::Value> = ["system", "user", "assistant", "tool"]
        .iter()
        .map(|role| serde_json::json!({"role": role, "content": role[..1]}))
        .collect();
    assert_eq!(input.messages, expected);
    assert!(input.add_generation_prompt);
}

#[cfg(feature = "stream")]
#[test]
fn stream_has_the_events_of_the_generation() {
    use futures_core::Stream;
    use std::pin::Pin;
    use std::sync::Arc;
    use std::task::{Context, Poll, Wake};

    struct Unpark(std::thread::Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }

    let expected = reference(10).tokens;
    let request = Request::tokens(PROMPT).max_tokens(10);
    let mut stream = session()
        .into_generation(&request)
        .unwrap()
        .into_stream()
        .unwrap();
    let waker = Arc::new(Unpark(std::thread::current())).into();
    let mut context = Context::from_waker(&waker);

    let mut tokens = Vec::new();
    loop {
        match Pin::new(&mut stream).poll_next(&mut context) {
            Poll::Pending => std::thread::park(),
            Poll::Ready(None) => break,
            Poll::Ready(Some(Ok(Event::Token { token, .. }))) => tokens.push(token),
            Poll::Ready(Some(event)) => drop(event.unwrap()),
        }
    }

    assert_eq!(tokens, expected);
    let mut session = stream.into_session().unwrap();
    assert_eq!(
        collect(session.generate(&request).unwrap()).tokens,
        expected
    );
}

#[test]
fn answer_that_is_dropped_or_forgotten_leaves_the_session_usable() {
    let expected = reference(10).tokens;
    let mut session = session();
    for events in [0, 1, 2, 5] {
        let mut generation = session.generate(&Request::tokens(PROMPT)).unwrap();
        for _ in 0..events {
            generation.next().unwrap().unwrap();
        }
        if events % 2 == 0 {
            drop(generation)
        } else {
            forget::forget(generation)
        }
        let again = session
            .generate(&Request::tokens(PROMPT).max_tokens(10))
            .unwrap();
        assert_eq!(collect(again).tokens, expected, "after {events} events");
    }
}

#[test]
fn what_a_prompt_shares_with_the_last_one_is_not_computed_again() {
    let first = reference(8);
    let mut session = session();
    collect(
        session
            .generate(&Request::tokens(PROMPT).max_tokens(8))
            .unwrap(),
    );
    let mut longer = PROMPT.to_vec();
    longer.extend(&first.tokens);
    longer.extend([1, 2, 3]);
    let reused = collect(
        session
            .generate(&Request::tokens(longer.clone()).max_tokens(8))
            .unwrap(),
    );
    assert!(reused.summary.cached_tokens >= 47, "{:?}", reused.summary);
    let fresh = collect(
        self::session()
            .generate(&Request::tokens(longer).max_tokens(8))
            .unwrap(),
    );
    assert_eq!(fresh.summary.cached_tokens, 0);
    assert_eq!(reused.tokens, fresh.tokens);

    let other = collect(
        session
            .generate(&Request::tokens([9, 9]).max_tokens(1))
            .unwrap(),
    );
    assert_eq!(other.summary.cached_tokens, 0);
}

#[test]
fn logprobs_come_with_their_tokens() {
    let mut request = Request::tokens(PROMPT).max_tokens(5);
    request.sampling.top_logprobs = 4;
    for event in session().generate(&request).unwrap() {
        if let Event::Token {
            token,
            logprob,
            top,
        } = event.unwrap()
        {
            assert_eq!(top.len(), 4);
            assert_eq!(top[0], (token, logprob));
        }
    }
    request.sampling.top_logprobs = 5;
    let error = session()
        .generate(&request)
        .unwrap()
        .find_map(|event| event.err())
        .unwrap();
    assert_eq!(error.kind(), ErrorKind::LimitExceeded);
}

#[test]
fn nothing_asked_is_nothing_drawn() {
    let mut session = session();
    assert!(session.generate(&Request::tokens([])).is_err());
    let answer = collect(
        session
            .generate(&Request::tokens(PROMPT).max_tokens(0))
            .unwrap(),
    );
    assert_eq!(
        (answer.summary.tokens, answer.summary.reason),
        (0, FinishReason::Length)
    );
}

/// Knows the stream of the run without drafts, and guesses wrong from some place on.
struct Knowing {
    stream: Vec<Token>,
    calls: usize,
}

impl Draft for Knowing {
    fn begin(&mut self, _: &[Token], _: &[Token]) {}
    fn draft(&mut self, tokens: &[Token], limit: usize, drafts: &mut Vec<Token>) {
        let rest = self.stream.iter().skip(tokens.len() - PROMPT.len());
        drafts.extend(rest.take(limit));
        self.calls += 1;
        if let Some(draft) = drafts.get_mut(self.calls % 5) {
            *draft = (*draft + 1) % 64;
        }
    }
}

fn drafting_session(options: EngineOptions, draft: Box<dyn Draft>) -> Session {
    let options = options.max_top_logprobs(4).max_draft_tokens(6);
    let mut session = session_with(vocabulary(), options.max_batch_tokens(16));
    session.set_draft(Some(draft));
    session.set_clock(Clock::manual());
    session
}

fn events(session: &mut Session, request: &Request) -> (Vec<Event>, Summary) {
    let mut events: Vec<Event> = session
        .generate(request)
        .unwrap()
        .map(|event| event.unwrap())
        .collect();
    match events.pop() {
        Some(Event::Done(summary)) => (events, summary),
        other => panic!("the last event is {other:?}"),
    }
}

fn stream_of(events: &[Event]) -> Vec<Token> {
    let token = |event: &Event| match event {
        Event::Token { token, .. } => Some(*token),
        _ => None,
    };
    events.iter().filter_map(token).collect()
}

#[test]
fn drafts_change_no_event() {
    let mut penalized = Sampling::with_temperature(0.7, 5);
    penalized.frequency_penalty = 0.4;
    penalized.repetition_penalty = 1.2;
    let mut greedy = Sampling::greedy();
    greedy.top_logprobs = 3;
    let mut accepted = [0, 0];
    let mut masked = Sampling::with_temperature(0.8, 3);
    masked.mask = vec![0x9249_2492, 0x5555_aaaa];
    let samplings = [
        greedy,
        Sampling::with_temperature(1.0, 9),
        penalized,
        masked,
    ];
    for sampling in samplings {
        let mut request = Request::tokens(PROMPT).sampling(sampling);
        for max_tokens in [1, 2, 60] {
            request.max_tokens = Some(max_tokens);
            let (expected, plain) = events(&mut session(), &request);
            assert_eq!((plain.draft_tokens, plain.accepted_draft_tokens), (0, 0));
            let stream = stream_of(&expected);
            let drafts: [Box<dyn Draft>; 2] = [
                Box::new(NgramDraft::new()),
                Box::new(Knowing { stream, calls: 0 }),
            ];
            for (i, draft) in drafts.into_iter().enumerate() {
                let mut session = drafting_session(EngineOptions::new(), draft);
                let (found, summary) = events(&mut session, &request);

                assert_eq!(found, expected);
                assert_eq!(
                    (summary.reason, summary.tokens),
                    (plain.reason, plain.tokens)
                );
                assert!(summary.draft_tokens >= summary.accepted_draft_tokens);
                accepted[i] += summary.accepted_draft_tokens;
            }
        }
    }
    assert!(accepted[0] > 0 && accepted[1] > 60, "{accepted:?}");
}

#[test]
fn drafts_change_no_end() {
    let (plain, _) = events(&mut session(), &Request::tokens(PROMPT).max_tokens(60));
    let stream = stream_of(&plain);
    let text: Vec<String> = stream
        .iter()
        .map(|&token| char::from(b'!' + token as u8).to_string())
        .collect();
    let stop = text[20..23].concat();
    let context = EngineOptions::new().max_sequence_tokens(64);
    let request = Request::tokens(PROMPT).max_tokens(60);
    let end_token = |id: Token| Vocabulary {
        eos_id: Some(id),
        ..vocabulary()
    };
    let cases = [
        (
            vocabulary(),
            EngineOptions::new(),
            request.clone().stop(stop),
        ),
        (vocabulary(), context, request.clone()),
        (end_token(stream[17]), EngineOptions::new(), request),
    ];
    for (vocabulary, options, request) in cases {
        let options = options.max_batch_tokens(16).max_draft_tokens(6);
        let mut without = session_with(vocabulary.clone(), options.clone());
        let (expected, plain) = events(&mut without, &request);
        assert!(plain.tokens < 60, "{:?}", plain.reason);
        let mut with = session_with(vocabulary, options);
        with.set_clock(Clock::manual());
        with.set_draft(Some(Box::new(Knowing {
            stream: stream.clone(),
            calls: 0,
        })));
        let (found, summary) = events(&mut with, &request);

        assert_eq!(found, expected);
        assert_eq!(
            (summary.reason, summary.tokens),
            (plain.reason, plain.tokens)
        );
        assert!(summary.accepted_draft_tokens > 0);
    }
}

/// Tokens of a row behind the one that ends the answer are not part of the next prompt.
#[test]
fn drafts_behind_the_end_leave_nothing_behind() {
    let stream = reference(20).tokens;
    let mut ends = 0;
    for last in 1..8 {
        if stream[..last].contains(&stream[last]) {
            continue;
        }
        let draft = Knowing {
            stream: stream.clone(),
            calls: last,
        };
        let mut session = drafting_session(EngineOptions::new(), Box::new(draft));
        let stop = char::from(b'!' + stream[last] as u8).to_string();
        let (_, summary) = events(&mut session, &Request::tokens(PROMPT).stop(stop));
        assert_eq!(
            (summary.reason, summary.tokens),
            (FinishReason::Stop, last + 1)
        );
        let next = [&PROMPT, &stream[..=last], &[9, 9, 4]].concat();
        let request = Request::tokens(next).max_tokens(6);
        session.set_draft(None);
        let answer = collect(session.generate(&request).unwrap());

        let mut fresh = session_with(vocabulary(), EngineOptions::new());
        let expected = collect(fresh.generate(&request).unwrap());
        assert_eq!(answer.tokens, expected.tokens, "after {last} tokens");
        ends += usize::from(answer.summary.cached_tokens > PROMPT.len() + last);
    }
    assert!(ends > 0, "no answer ended within a row");
}

#[test]
fn real_model_gives_the_same_answer_with_drafts() {
    let Some(path) = real_model() else { return };
    let model = Model::load(&host(), &Gguf::open(path).unwrap()).unwrap();
    let options = EngineOptions::new()
        .max_sequence_tokens(512)
        .max_draft_tokens(8);
    let mut session = Session::new(&model, &options).unwrap();
    session.set_clock(Clock::manual());
    let code = "fn add(first: u32, second: u32) -> u32 {\n    first + second\n}\n";
    let mut accepted = 0;
    for sampling in [Sampling::greedy(), Sampling::with_temperature(0.8, 3)] {
        let request = Request::text(format!("{code}// The same again:\n{}", &code[..20]))
            .sampling(sampling)
            .max_tokens(40);
        session.set_draft(None);
        let (expected, _) = events(&mut session, &request);
        session.set_draft(Some(Box::new(NgramDraft::new())));
        let (found, summary) = events(&mut session, &request);

        assert_eq!(found, expected);
        accepted += summary.accepted_draft_tokens;
    }
    assert!(accepted > 10, "{accepted}");
}

#[test]
fn real_model_knows_the_capital_of_france() {
    let Some(path) = real_model() else { return };
    let model = Model::load(&host(), &Gguf::open(path).unwrap()).unwrap();
    let options = EngineOptions::new().max_sequence_tokens(256);
    let mut session = Session::new(&model, &options).unwrap();
    let request = Request::text("The capital of France is").max_tokens(8);
    let answer = collect(session.generate(&request).unwrap());
    assert!(answer.text.contains("Paris"), "{}", answer.text);
}
