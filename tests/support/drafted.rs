//! What tests of drafts in services share: all that receivers get, sources of drafts, and requests of all kinds.
#![allow(dead_code)] // each test file uses what it needs

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use worker_cuda::generate::service::*;
use worker_cuda::generate::{Draft, FinishReason, NgramDraft, Service};
use worker_cuda::{Sampling, Token};

use crate::service::{END, prompt};

/// All that a receiver gets: tokens, log probabilities and alternatives, then text and end.
pub type Output = (
    Vec<(Token, u32, Vec<(Token, u32)>)>,
    String,
    Option<(FinishReason, Option<Stop>)>,
);

/// The outputs of each choice of each request, which are served together.
pub fn outputs(service: &Service, requests: &[Request]) -> (Vec<Vec<Output>>, Usage) {
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
pub fn requests() -> Vec<Request> {
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
                11 => request.sampling.mask = vec![0x9249_2492, 0xc000_5555],
                _ => {}
            }
            request
        })
        .collect()
}

pub fn oracle(requests: &[Request], outputs: &[Vec<Output>]) -> Drafting {
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

pub fn ngrams() -> Drafting {
    Drafting::new(8, || Box::new(NgramDraft::new()))
}
