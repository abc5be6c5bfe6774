//! Random histories of a service on the simulated engine: requests that come, are read, cancelled and
//! dropped while steps fail. The engine panics where its pages and the plans disagree, and every text is
//! compared with that of the request alone.
#![cfg(all(feature = "scheduler", feature = "text"))]

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::time::Duration;

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use worker_cuda::LateRow;
use worker_cuda::generate::service::*;
use worker_cuda::generate::{FinishReason, Service};
use worker_cuda::scheduler::{Costs, Plan, RequestId, RowOutcome, SmallSteps, Token};

#[path = "support/simulated_engine.rs"]
mod simulated_engine;
use simulated_engine::{Finished, SimulatedEngine, VOCABULARY, solo_token};

const END: Token = VOCABULARY - 1;
const SEQUENCE_TOKENS: u32 = 40;
const COSTS: Costs = Costs {
    step: Duration::from_micros(100),
    decode_row: Duration::from_micros(10),
    prefill_token: Duration::from_micros(10),
    restore_page: Duration::from_micros(1),
    lone_step: Duration::ZERO,
    guess: Duration::ZERO,
    small_steps: SmallSteps::UNKNOWN,
};

#[derive(Clone, Debug)]
enum Op {
    Submit {
        family: u32,
        prompt_tokens: u32,
        max_tokens: Option<u32>,
        choices: u32,
        priority: u8,
    },
    /// Takes so many events of a receiver, if they are there.
    Read(usize, usize),
    Cancel(usize),
    Drop(usize),
    FailStep,
}

fn ops() -> impl Strategy<Value = Op> {
    let submit = (
        0..3u32,
        1..20u32,
        option::weighted(0.9, 0..12u32),
        1..4u32,
        0..3u8,
    );
    prop_oneof![
        5 => submit.prop_map(|(family, prompt_tokens, max_tokens, choices, priority)| {
            Op::Submit { family, prompt_tokens, max_tokens, choices, priority }
        }),
        4 => (any::<usize>(), 0..20usize).prop_map(|(which, count)| Op::Read(which, count)),
        1 => any::<usize>().prop_map(Op::Cancel),
        1 => any::<usize>().prop_map(Op::Drop),
        1 => Just(Op::FailStep),
    ]
}

/// Steps that are to fail, and sequences that are left when the engine is dropped.
#[derive(Default)]
struct Control {
    failures: AtomicU32,
    sequences_left: AtomicUsize,
}

struct Simulated {
    engine: SimulatedEngine,
    clock: Clock,
    lost: Vec<RequestId>,
    save_count: u32,
    limits: EngineLimits,
    control: Arc<Control>,
}

impl StepEngine for Simulated {
    fn limits(&self) -> EngineLimits {
        self.limits.clone()
    }

    fn submit(&mut self, plan: &Plan, _: &dyn RowSource) -> worker_cuda::Result<()> {
        let failures = &self.control.failures;
        let fails = !plan.rows().is_empty()
            && failures
                .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| {
                    left.checked_sub(1)
                })
                .is_ok();
        self.engine.execute(plan, |_| 0, |_| None, fails);
        for save in plan.saves() {
            self.save_count += 1;
            if self.save_count.is_multiple_of(5) {
                self.engine.lose_saved(save.request);
                self.lost.push(save.request);
            }
        }
        Ok(())
    }

    fn lost_saves(&mut self) -> Vec<RequestId> {
        std::mem::take(&mut self.lost)
    }

    fn sample(&mut self, _: &[LateRow<'_>]) -> worker_cuda::Result<()> {
        unreachable!("no request has a rule")
    }

    fn wait(&mut self, results: &mut StepResults) -> worker_cuda::Result<()> {
        let (_, duration, finished) = self.engine.wait();
        self.clock.advance(duration);
        match finished {
            Finished::Done(outcomes) => {
                for outcome in outcomes {
                    let token = match outcome {
                        RowOutcome::Ok(token) => token.unwrap_or_default(),
                        _ => 0,
                    };
                    // So that a result of another row shows.
                    results.push(outcome, token as f32, [(token, 0.5)]);
                }
                Ok(())
            }
            Finished::Failed => {
                let kind = worker_cuda::ErrorKind::DeviceError;
                Err(worker_cuda::Error::new(kind, "simulated"))
            }
        }
    }
}

impl Drop for Simulated {
    fn drop(&mut self) {
        let left = self.engine.sequence_count();
        self.control.sequences_left.store(left, Ordering::SeqCst);
    }
}

/// A request that was accepted: its prompt and limits, and what came so far.
struct Seen {
    prompt: Vec<Token>,
    max_tokens: Option<u32>,
    is_cancelled: bool,
    events: EventReceiver,
    tokens: Vec<Vec<Token>>,
    ends: Vec<Option<FinishReason>>,
    last: Option<Event>,
}

impl Seen {
    fn take(&mut self, event: Event) {
        assert!(self.last.is_none(), "an event after the last");
        match event {
            Event::Token(token) => {
                let choice = token.choice as usize;
                assert_eq!(self.ends[choice], None);
                assert_eq!(token.index as usize, self.tokens[choice].len());
                assert_eq!(
                    (token.logprob, token.top),
                    (token.token as f32, vec![(token.token, 0.5)])
                );
                self.tokens[choice].push(token.token);
            }
            Event::Finished { choice, reason, .. } => {
                assert_eq!(self.ends[choice as usize].replace(reason), None);
            }
            event if event.is_last() => self.last = Some(event),
            _ => {}
        }
    }

    /// Compares a request that has ended with the text that it gets alone.
    fn check(&self, faults: u64) {
        for (tokens, end) in self.tokens.iter().zip(&self.ends) {
            let mut text = self.prompt.clone();
            for &token in tokens {
                assert_eq!(solo_token(&text), token);
                text.push(token);
            }
            match end {
                Some(FinishReason::Eos) => assert_eq!(solo_token(&text), END),
                Some(FinishReason::Length) => {
                    assert_eq!(Some(tokens.len() as u32), self.max_tokens)
                }
                Some(FinishReason::ContextFull) => {
                    assert_eq!(text.len() as u32, SEQUENCE_TOKENS + 1);
                }
                Some(FinishReason::Cancelled) => assert!(self.is_cancelled),
                Some(other) => panic!("{other:?}"),
                None => assert!(matches!(self.last, Some(Event::Failed(_)))),
            }
        }
        match &self.last {
            Some(Event::Done(usage)) => {
                let tokens: usize = self.tokens.iter().map(Vec::len).sum();
                assert_eq!(usage.completion_tokens as usize, tokens);
            }
            Some(Event::Failed(Error::EngineFault(_))) => assert!(faults >= 2),
            other => panic!("{other:?}"),
        }
    }
}

fn play(page_sharing: PageSharing, page_count: u32, max_saved_pages: u32, ops: &[Op]) {
    let mut limits = EngineLimits::new(page_count, VOCABULARY);
    limits.page_tokens = 4;
    limits.max_sequences = 4;
    limits.max_step_tokens = 16;
    limits.max_sequence_tokens = SEQUENCE_TOKENS;
    limits.page_sharing = page_sharing;
    limits.max_saved_pages = max_saved_pages;
    limits.restore_page = COSTS.restore_page;
    let clock = Clock::manual();
    let control = Arc::new(Control::default());
    let engine = Simulated {
        engine: SimulatedEngine::new(4, page_count, COSTS),
        clock: clock.clone(),
        lost: Vec::new(),
        save_count: 0,
        limits,
        control: control.clone(),
    };
    let mut options = Options::default();
    options.end_tokens = vec![END];
    options.max_events_behind = 6;
    options.max_queued_tokens = Some(100_000);
    options.text_threads = 2;
    options.clock = clock;
    let service = Service::start(engine, None, options).unwrap();
    let mut all: Vec<Seen> = Vec::new();
    for op in ops {
        match *op {
            Op::Submit {
                family,
                prompt_tokens,
                max_tokens,
                choices,
                priority,
            } => {
                let prompt: Vec<Token> =
                    (0..prompt_tokens).map(|i| (i * 5 + family) % 28).collect();
                let mut request = Request::tokens(prompt.clone());
                (request.max_tokens, request.choices) = (max_tokens, choices);
                request.priority = priority;
                all.push(Seen {
                    prompt,
                    max_tokens,
                    is_cancelled: false,
                    events: service.submit(&request).unwrap(),
                    tokens: vec![Vec::new(); choices as usize],
                    ends: vec![None; choices as usize],
                    last: None,
                });
            }
            Op::Read(which, count) if !all.is_empty() => {
                let which = which % all.len();
                let seen = &mut all[which];
                for _ in 0..count {
                    let Some(event) = seen.events.try_next() else {
                        break;
                    };
                    seen.take(event);
                }
            }
            Op::Cancel(which) if !all.is_empty() => {
                let which = which % all.len();
                all[which].is_cancelled = true;
                all[which].events.cancel();
            }
            Op::Drop(which) if !all.is_empty() => drop(all.swap_remove(which % all.len())),
            Op::FailStep => {
                control.failures.fetch_add(1, Ordering::SeqCst);
            }
            _ => {}
        }
    }
    for seen in &mut all {
        while let Some(event) = seen.events.next() {
            seen.take(event);
        }
    }
    assert_eq!(service.drain(Duration::MAX), 0);
    let stats = service.stats();
    assert_eq!((stats.running, stats.waiting, stats.held_pages), (0, 0, 0));
    assert_eq!(stats.free_pages + stats.cached_pages, page_count);
    assert_eq!(service.state(), State::Stopped);
    assert_eq!(control.sequences_left.load(Ordering::SeqCst), 0);
    for seen in &all {
        seen.check(stats.engine_faults);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_history_ends_with_the_texts_of_requests_alone(
        sharing in prop_oneof![Just(PageSharing::None), Just(PageSharing::Cached)],
        page_count in 12..40u32,
        max_saved_pages in 0..12u32,
        ops in vec(ops(), 1..40),
    ) {
        play(sharing, page_count, max_saved_pages, &ops);
    }
}
