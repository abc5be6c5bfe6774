//! Generation: events, stop strings, ends, and the reuse of what was computed before.
#![cfg(feature = "text")]

use std::sync::Arc;

use worker_cuda::generate::{
    CancelFlag, Event, FinishReason, Generation, Message, Prompt, Request, Session, Summary,
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
    let mut session = refused.session;
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
