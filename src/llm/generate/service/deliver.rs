//! From results to events: the dispatcher, and the threads that turn tokens into text.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender};
use std::time::Duration;

use super::event::{Error, Event, Stop, TokenEvent, Usage};
use super::state::{Batch, Item, ItemKind, Shared};
use super::stats::{self, Observation, Observer};
use super::stream::Job;
use crate::llm::engine::Token;
use crate::llm::generate::FinishReason;
use crate::llm::generate::stop::StopMatcher;
use crate::llm::text::{DecodeOptions, Detokenizer, Tokenizer};
use crate::scheduler::EndReason;

/// Distributes the results of each step to the text threads. All choices of a request go to one thread.
pub(super) fn dispatch(
    batches: Receiver<Batch>,
    threads: Vec<Sender<Vec<Item>>>,
    observer: Option<Arc<dyn Observer>>,
) {
    let mut parts: Vec<Vec<Item>> = threads.iter().map(|_| Vec::new()).collect();
    for batch in batches {
        if let Some((duration, rows, tokens)) = batch.step {
            let step = Observation::Step {
                duration,
                rows,
                tokens,
            };
            stats::observe(observer.as_deref(), step);
        }
        for item in batch.items {
            let thread = item.job.serial as usize % parts.len();
            parts[thread].push(item);
        }
        for (part, thread) in parts.iter_mut().zip(&threads) {
            if !part.is_empty() {
                // It ends after the dispatcher only.
                let _ = thread.send(std::mem::take(part));
            }
        }
    }
}

/// Turns the results of some requests into events.
pub(super) struct TextThread {
    pub shared: Arc<Shared>,
    pub tokenizer: Option<Arc<Tokenizer>>,
    pub observer: Option<Arc<dyn Observer>>,
    pub answers: HashMap<u64, Answer>,
}

/// A request, as far as it was delivered.
pub(super) struct Answer {
    choices: Vec<Choice>,
    /// Choices whose end was delivered, and choices that the scheduler has ended.
    finished: usize,
    ended: usize,
    usage: Usage,
    has_failed: bool,
    was_cancelled: bool,
}

struct Choice {
    detokenizer: Option<Detokenizer>,
    stop: StopMatcher,
    tokens: u32,
    last_token: Option<Duration>,
    is_finished: bool,
}

impl TextThread {
    pub fn run(mut self, items: Receiver<Vec<Item>>) {
        for part in items {
            for item in part {
                self.take(item);
            }
        }
    }

    fn take(&mut self, item: Item) {
        let job = item.job;
        let answer = self
            .answers
            .entry(job.serial)
            .or_insert_with(|| Answer::new(&job, self.tokenizer.as_ref()));
        let mut delivery = Delivery {
            shared: &self.shared,
            observer: self.observer.as_deref(),
            job: &job,
            number: item.choice,
            time: item.time,
        };
        if let ItemKind::Ended(_) = item.kind {
            answer.ended += 1;
        }
        let is_over = answer.has_failed || answer.choices[item.choice as usize].is_finished;
        match item.kind {
            ItemKind::Token { .. } if is_over => job.take_token(&self.shared),
            _ if is_over => {}
            ItemKind::Started { cached_tokens } => delivery.start(answer, cached_tokens),
            ItemKind::Token {
                token,
                logprob,
                top,
                offset,
                drafts,
            } => {
                answer.usage.draft_tokens += if offset == 0 { drafts } else { 0 };
                answer.usage.accepted_draft_tokens += u32::from(offset > 0);
                delivery.token(answer, token, logprob, top);
            }
            ItemKind::PromptLogprobs(scores) => delivery.push(Event::PromptLogprobs(scores)),
            ItemKind::Embedding(values) => delivery.push(Event::Embedding(values)),
            ItemKind::Ended(Ok(reason)) => delivery.end(answer, reason),
            ItemKind::Ended(Err(error)) => delivery.fail(answer, error),
        }
        if answer.ended == answer.choices.len() {
            self.answers.remove(&job.serial);
        }
    }
}

impl Answer {
    fn new(job: &Job, tokenizer: Option<&Arc<Tokenizer>>) -> Self {
        let choice = |_: &_| Choice {
            detokenizer: tokenizer.map(|tokenizer| {
                let options = DecodeOptions {
                    show_special: job.show_special,
                    ..DecodeOptions::default()
                };
                Detokenizer::new(tokenizer.clone(), options)
            }),
            stop: StopMatcher::new(&job.stop),
            tokens: 0,
            last_token: None,
            is_finished: false,
        };
        Self {
            choices: job.ids.iter().map(choice).collect(),
            finished: 0,
            ended: 0,
            usage: Usage {
                prompt_tokens: job.prompt_tokens,
                ..Usage::default()
            },
            has_failed: false,
            was_cancelled: false,
        }
    }
}

/// One item on its way to the receiver.
struct Delivery<'a> {
    shared: &'a Shared,
    observer: Option<&'a dyn Observer>,
    job: &'a Job,
    number: u32,
    time: Duration,
}

impl Delivery<'_> {
    fn observe(&self, observation: Observation<'_>) {
        stats::observe(self.observer, observation);
    }

    fn since_submission(&self) -> Duration {
        self.time.saturating_sub(self.job.submitted)
    }

    fn push(&self, event: Event) {
        self.job.push(event);
    }

    fn start(&mut self, answer: &mut Answer, cached_tokens: u32) {
        if self.number == 0 {
            answer.usage.cached_tokens = cached_tokens;
        }
        let queued = self.since_submission();
        self.observe(Observation::Queue(queued));
        self.push(Event::Started {
            choice: self.number,
            queued,
            cached_tokens,
        });
    }

    fn token(&mut self, answer: &mut Answer, token: Token, logprob: f32, top: Vec<(Token, f32)>) {
        let choice = &mut answer.choices[self.number as usize];
        self.observe(match choice.last_token.replace(self.time) {
            Some(last) => Observation::InterToken(self.time.saturating_sub(last)),
            None => Observation::FirstToken(self.since_submission()),
        });
        let index = choice.tokens;
        choice.tokens += 1;
        answer.usage.completion_tokens += 1;
        let mut text = String::new();
        if let Some(detokenizer) = &mut choice.detokenizer {
            // An engine's token is one of its vocabulary; one past it has no text.
            let _ = detokenizer.push(token, &mut text);
        }
        let mut found = false;
        if choice.tokens > self.job.min_tokens {
            (text, found) = choice.stop.push(&text);
        }
        self.push(Event::Token(TokenEvent {
            choice: self.number,
            index,
            token,
            logprob,
            top,
            text,
        }));
        if found {
            let id = self.job.ids[self.number as usize];
            self.shared.update(|core, _| core.scheduler.stop(id));
            self.finish(answer, FinishReason::Stop, String::new());
        }
    }

    fn end(&mut self, answer: &mut Answer, reason: EndReason) {
        let choice = &mut answer.choices[self.number as usize];
        let mut rest = String::new();
        if let Some(detokenizer) = &mut choice.detokenizer {
            detokenizer.finish(&mut rest);
        }
        let (mut text, found) = choice.stop.push(&rest);
        if !found {
            text += &choice.stop.finish();
        }
        let reason = match reason {
            _ if found => FinishReason::Stop,
            EndReason::EndToken(token) if self.job.stop_tokens.contains(&token) => {
                return self.finish_with(
                    answer,
                    FinishReason::Stop,
                    Some(Stop::Token(token)),
                    text,
                );
            }
            // Its rule has no more tokens: a stop string would have finished it already.
            EndReason::EndToken(_) | EndReason::Stopped => FinishReason::Eos,
            EndReason::Length => FinishReason::Length,
            EndReason::ContextFull => FinishReason::ContextFull,
            _ => FinishReason::Cancelled,
        };
        self.finish(answer, reason, text);
    }

    fn finish(&mut self, answer: &mut Answer, reason: FinishReason, text: String) {
        let found = answer.choices[self.number as usize].stop.found();
        let stop = found.map(|stop| Stop::Text(stop.to_owned()));
        self.finish_with(answer, reason, stop, text);
    }

    fn finish_with(
        &mut self,
        answer: &mut Answer,
        reason: FinishReason,
        stop: Option<Stop>,
        text: String,
    ) {
        answer.choices[self.number as usize].is_finished = true;
        answer.finished += 1;
        answer.was_cancelled |= reason == FinishReason::Cancelled;
        self.observe(Observation::Finished(reason));
        self.push(Event::Finished {
            choice: self.number,
            reason,
            stop,
            text,
        });
        if answer.finished == answer.choices.len() {
            self.observe(match answer.was_cancelled {
                true => Observation::Cancelled,
                false => Observation::Done(answer.usage, self.since_submission()),
            });
            self.push(Event::Done(answer.usage));
        }
    }

    /// Ends the request with all its choices.
    fn fail(&mut self, answer: &mut Answer, error: Error) {
        answer.has_failed = true;
        self.observe(Observation::Failed(&error));
        self.push(Event::Failed(error));
        self.shared.cancel(self.job);
    }
}
