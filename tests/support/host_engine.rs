//! The engine of the host backend with the tiny model, for histories of the scheduler. Rows that should fail get a
//! mask that allows nothing.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use worker_cuda::generate::service::{
    ModelEngine, RowSource, SampledRow, ScoredRow, StepEngine, StepResults,
};
use worker_cuda::scheduler::{Config, MAX_DRAFTS, Plan, RequestId, Row, RowOutcome, Stats, Token};
use worker_cuda::{Engine, EngineOptions, HiddenState, Model, Sampling, Sequence, Step};

use super::TestEngine;
use super::simulated_engine::Finished;

pub struct HostEngine {
    engine: ModelEngine,
    alone: Alone,
    in_flight: VecDeque<StepInFlight>,
}

struct StepInFlight {
    number: u64,
    fails: bool,
    duration: Duration,
}

struct Samplings {
    usual: Sampling,
    /// By the number of drafts.
    nothing: Vec<Sampling>,
    failing: Vec<RequestId>,
}

impl Samplings {
    fn new() -> Self {
        let usual = Sampling::with_temperature(0.9, 7);
        let nothing = |drafts| {
            let mut nothing = Sampling::with_temperature(0.9, 7);
            nothing.mask = vec![0; 2 * (1 + drafts)];
            nothing
        };
        Self {
            usual,
            nothing: (0..=MAX_DRAFTS).map(nothing).collect(),
            failing: Vec::new(),
        }
    }
}

impl RowSource for Samplings {
    fn sampled(&self, row: &Row) -> SampledRow<'_> {
        let sampling = match self.failing.contains(&row.request) {
            true => &self.nothing[row.drafts.len()],
            false => &self.usual,
        };
        SampledRow::new(sampling, 0, 0)
    }

    fn hidden_state(&self, _: &Row) -> Option<HiddenState> {
        None
    }

    fn scored(&self, _: &Row) -> Option<ScoredRow> {
        None
    }
}

impl HostEngine {
    pub fn new(model: &Model, config: &Config) -> Self {
        let options = EngineOptions::new()
            .max_sequences(config.max_sequences)
            .max_batch_tokens(config.token_budget)
            .max_draft_tokens(config.max_draft_tokens)
            .max_sequence_tokens(config.max_sequence_tokens)
            .kv_tokens(u64::from(config.page_count * config.page_tokens))
            .poison_free_pages(true)
            .batch_invariant(true);
        Self {
            engine: ModelEngine::new(model, &options).unwrap(),
            alone: Alone::new(model),
            in_flight: VecDeque::new(),
        }
    }
}

impl TestEngine for HostEngine {
    fn execute(
        &mut self,
        plan: &Plan,
        _: &dyn Fn(RequestId) -> u32,
        fault: &mut dyn FnMut(&Row) -> Option<RowOutcome>,
        fails: bool,
    ) {
        if plan.resets_engine() {
            self.in_flight.clear();
        }
        let mut samplings = Samplings::new();
        for row in plan.rows() {
            if fault(row).is_some() {
                samplings.failing.push(row.request);
            }
        }
        self.engine.submit(plan, &samplings).unwrap();
        if !plan.rows().is_empty() {
            let follows_failed = self.in_flight.back().is_some_and(|step| step.fails);
            self.in_flight.push_back(StepInFlight {
                number: plan.step(),
                fails: fails || follows_failed,
                duration: Duration::from_millis(u64::from(plan.token_count())),
            });
        }
    }

    fn lost_saves(&mut self) -> Vec<RequestId> {
        self.engine.lost_saves()
    }

    fn lose_saved(&mut self, _: RequestId) {
        unreachable!("the engine has room for a part of them");
    }

    fn wait(&mut self) -> (u64, Duration, Finished) {
        let step = self.in_flight.pop_front().expect("a step in flight");
        if step.fails {
            return (step.number, step.duration, Finished::Failed);
        }
        let mut results = StepResults::default();
        self.engine.wait(&mut results).unwrap();
        let finished = Finished::Done(results.outcomes().to_vec());
        (step.number, step.duration, finished)
    }

    fn check(&self, stats: &Stats, _: &dyn Fn(RequestId) -> bool) {
        let info = self.engine.info().unwrap();
        let found = (
            info.kv_free_page_count,
            info.kv_cached_page_count,
            info.kv_held_page_count,
        );
        let believed = (
            u64::from(stats.free_pages + stats.cached_pages),
            u64::from(stats.cached_pages),
            u64::from(stats.held_pages),
        );
        assert_eq!(found, believed, "(free or cached, cached, held) pages");
        assert_eq!(found.0 + found.2, info.kv_page_count);
    }

    fn solo_token(&mut self, text: &[Token]) -> Token {
        self.alone.next(text)
    }

    fn saved_count(&self) -> usize {
        0
    }
}

/// What follows a text that is computed alone.
struct Alone {
    engine: Engine,
    sequence: Sequence,
    /// Tokens of the sequence.
    text: Vec<Token>,
    known: HashMap<Vec<Token>, Token>,
}

impl Alone {
    fn new(model: &Model) -> Self {
        let options = EngineOptions::new().max_sequences(1).batch_invariant(true);
        let mut engine = Engine::new(model, &options.max_batch_tokens(256)).unwrap();
        Self {
            sequence: engine.create_sequence().unwrap(),
            engine,
            text: Vec::new(),
            known: HashMap::new(),
        }
    }

    fn next(&mut self, text: &[Token]) -> Token {
        if let Some(&token) = self.known.get(text) {
            return token;
        }
        let last = text.len() - 1; // computed in any case
        let pairs = self.text.iter().zip(&text[..last]);
        let kept = pairs.take_while(|(a, b)| a == b).count();
        self.engine.truncate(&self.sequence, kept as u32).unwrap();
        let samplings = Samplings::new();
        let row = worker_cuda::Row::tokens(&self.sequence, &text[kept..]);
        let step = Step::new().row(row.sample(&samplings.usual));
        let ticket = self.engine.submit(&step).unwrap();
        let token = self.engine.wait(ticket).unwrap().rows()[0].token.unwrap();
        self.text = text.to_vec();
        self.known.insert(self.text.clone(), token);
        token
    }
}
