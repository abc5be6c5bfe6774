//! What tests of services share: a service on a scripted engine, and what its receivers get.
#![allow(dead_code)] // each test file uses what it needs

use std::sync::Arc;
use std::time::Duration;

use worker_cuda::generate::service::*;
use worker_cuda::generate::{FinishReason, Service};
use worker_cuda::text::{Tokenizer, Vocabulary};
use worker_cuda::{EngineOptions, Sampling, Token};

/// Sixty-four tokens of one letter each: token i is the character '!' + i.
pub fn tokenizer() -> Arc<Tokenizer> {
    let vocabulary = Vocabulary {
        model: "gpt2".into(),
        tokens: (0..64u8)
            .map(|i| char::from(b'!' + i).to_string())
            .collect(),
        ..Vocabulary::default()
    };
    Arc::new(Tokenizer::from_vocabulary(vocabulary).unwrap())
}

pub const END: Token = 63;

/// Continues a prompt with the tokens after its last one, up to 49, and ends.
pub fn count_up(prompt: &[Token], seed: u64) -> Vec<Token> {
    let first = prompt[prompt.len() - 1] + 1 + seed as Token;
    (first..50).chain([END]).collect()
}

pub fn options() -> Options {
    let mut options = Options::default();
    options.end_tokens = vec![END];
    options
}

/// A service on a scripted engine of 8 pages of 16 positions, 4 sequences, 32 tokens a step.
pub fn scripted(options: Options) -> (Service, ScriptControl) {
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
pub struct Answer {
    pub tokens: Vec<Vec<Token>>,
    pub texts: Vec<String>,
    pub ends: Vec<Option<(FinishReason, Option<Stop>)>>,
    pub cached: Vec<u32>,
    pub last: Option<Event>,
}

impl Answer {
    pub fn take(&mut self, event: Event) {
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

    pub fn usage(&self) -> Usage {
        let Some(Event::Done(usage)) = self.last else {
            panic!("not done: {:?}", self.last);
        };
        let tokens: usize = self.tokens.iter().map(Vec::len).sum();
        assert_eq!(usage.completion_tokens as usize, tokens);
        usage
    }

    pub fn error(&self) -> &'static str {
        match &self.last {
            Some(Event::Failed(error)) => error.as_str(),
            other => panic!("{other:?}"),
        }
    }

    pub fn reason(&self) -> FinishReason {
        self.ends[0].as_ref().expect("an end").0
    }
}

pub fn collect(events: EventReceiver) -> Answer {
    let mut answer = Answer::default();
    events.for_each(|event| answer.take(event));
    assert!(answer.last.is_some());
    answer
}

/// Ends the service, and checks that it has given back everything.
pub fn finish(service: Service) {
    assert_eq!(service.drain(Duration::MAX), 0);
    let stats = service.stats();
    assert_eq!((stats.running, stats.waiting, stats.held_pages), (0, 0, 0));
    assert_eq!(stats.free_pages + stats.cached_pages, stats.page_count);
}

pub fn engine_options() -> EngineOptions {
    EngineOptions::new()
        .max_sequences(8)
        .max_batch_tokens(128)
        .max_top_logprobs(4)
        .batch_invariant(true)
}

pub fn prompt(number: u32) -> Vec<Token> {
    (0..3 + 19 * number)
        .map(|i| (i * 11 + number * 7) % 64)
        .collect()
}

pub fn sampling(number: u32) -> Sampling {
    match number % 2 {
        0 => Sampling::greedy(),
        _ => Sampling::with_temperature(0.9, u64::from(number)),
    }
}

pub fn request(number: u32) -> Request {
    let mut request = Request::tokens(prompt(number));
    request.max_tokens = Some(40);
    request.sampling = sampling(number);
    request
}
