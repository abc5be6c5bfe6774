//! What a service does by the time that its steps take: it saves preempted sequences, and shrinks prompts next to
//! answers, and computes guesses where they save time. The clock moves by what each step costs, and only then.
#![cfg(all(feature = "scheduler", feature = "text"))]

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use worker_cuda::generate::service::*;
use worker_cuda::generate::{Draft, Service};
use worker_cuda::scheduler::{Plan, RequestId};
use worker_cuda::{LateRow, Token};

use models::tiny;
use service::*;

#[path = "support/models.rs"]
mod models;
#[path = "support/service.rs"]
mod service;

const STEP: Duration = Duration::from_millis(1);
const TOKEN: Duration = Duration::from_micros(20);

/// What an engine was asked for.
#[derive(Default)]
struct Seen {
    saves: usize,
    restores: usize,
    dropped_saves: usize,
    /// Rows of one token and tokens of the others, of each step.
    steps: Vec<(u32, u32)>,
}

/// An engine whose steps take a time that depends on their tokens alone.
struct Timed<E> {
    engine: E,
    clock: Clock,
    restore_page: Duration,
    in_flight: VecDeque<u32>,
    seen: Arc<Mutex<Seen>>,
    /// Whether no memory is there for what is saved.
    loses_saves: bool,
    lost: Vec<RequestId>,
}

impl<E> Timed<E> {
    fn new(engine: E, clock: &Clock) -> Self {
        Self {
            engine,
            clock: clock.clone(),
            restore_page: Duration::from_micros(1),
            in_flight: VecDeque::new(),
            seen: Arc::default(),
            loses_saves: false,
            lost: Vec::new(),
        }
    }
}

impl<E: StepEngine> StepEngine for Timed<E> {
    fn limits(&self) -> EngineLimits {
        let mut limits = self.engine.limits();
        limits.restore_page = self.restore_page;
        limits
    }

    fn submit(&mut self, plan: &Plan, rows: &dyn RowSource) -> worker_cuda::Result<()> {
        let mut seen = self.seen.lock().unwrap();
        seen.saves += plan.saves().len();
        seen.restores += plan.restores().len();
        seen.dropped_saves += plan.dropped_saves().len();
        if !plan.rows().is_empty() {
            let rows = plan.rows().iter().filter(|row| row.token_count == 1);
            let rows = rows.count() as u32;
            seen.steps.push((rows, plan.token_count() - rows));
            self.in_flight.push_back(plan.token_count());
        }
        if self.loses_saves {
            self.lost
                .extend(plan.saves().iter().map(|save| save.request));
        }
        self.engine.submit(plan, rows)
    }

    fn lost_saves(&mut self) -> Vec<RequestId> {
        self.lost.append(&mut self.engine.lost_saves());
        std::mem::take(&mut self.lost)
    }

    fn sample(&mut self, rows: &[LateRow<'_>]) -> worker_cuda::Result<()> {
        self.engine.sample(rows)
    }

    fn wait(&mut self, results: &mut StepResults) -> worker_cuda::Result<()> {
        let tokens = self.in_flight.pop_front().unwrap();
        self.clock.advance(STEP + TOKEN * tokens);
        self.engine.wait(results)
    }
}

/// Six choices that share a page and need 19 at their ends, of 16.
fn crowded() -> Request {
    let mut request = request(5);
    (request.max_tokens, request.choices) = (Some(100), 6);
    request
}

/// The answers to crowded requests on the tiny model, and what its engine was asked for.
fn crowd(change: impl FnOnce(&mut Timed<ModelEngine>)) -> (Vec<Vec<Token>>, Seen) {
    let options = engine_options().kv_tokens(16 * 64).poison_free_pages(true);
    let engine = ModelEngine::new(&tiny(), &options).unwrap();
    let mut options = Options::default();
    options.clock = Clock::manual();
    let mut engine = Timed::new(engine, &options.clock);
    change(&mut engine);
    let seen = engine.seen.clone();
    let service = Service::start(engine, None, options).unwrap();
    let mut tokens = Vec::new();
    for _ in 0..4 {
        tokens.extend(collect(service.submit(&crowded()).unwrap()).tokens);
    }
    assert!(service.stats().preempted > 0);
    assert_eq!(service.stats().engine_faults, 0);
    finish(service);
    let seen = std::mem::take(&mut *seen.lock().unwrap());
    (tokens, seen)
}

#[test]
fn preempted_sequences_are_restored_if_that_takes_less_time_and_answers_stay_the_same() {
    let (computed, seen) = crowd(|engine| engine.restore_page = Duration::from_secs(1));
    assert_eq!((seen.saves, seen.restores), (0, 0));

    let (restored, seen) = crowd(|_| {});
    assert_eq!(restored, computed);
    assert!(seen.restores > 0);
    assert_eq!(seen.saves, seen.restores + seen.dropped_saves);

    let (lost, seen) = crowd(|engine| engine.loses_saves = true);
    assert_eq!(lost, computed);
    assert!(seen.saves > 0);
    assert_eq!(seen.restores, 0);
}

#[test]
fn an_engine_knows_how_long_a_page_takes_to_restore_and_keeps_a_quarter_of_its_pages() {
    let options = engine_options().kv_tokens(40 * 64);
    let limits = ModelEngine::new(&tiny(), &options).unwrap().limits();
    assert_eq!(limits.max_saved_pages, 10);
    assert!(limits.restore_page > Duration::ZERO);

    let options = engine_options().kv_tokens(3 * 64);
    let limits = ModelEngine::new(&tiny(), &options).unwrap().limits();
    assert_eq!(
        (limits.max_saved_pages, limits.restore_page),
        (0, Duration::ZERO)
    );
}

#[test]
fn prompts_next_to_answers_take_what_the_itl_target_leaves() {
    let mut limits = EngineLimits::new(400, 64);
    limits.page_tokens = 16;
    limits.max_sequences = 16;
    limits.max_step_tokens = 256;
    limits.max_sequence_tokens = 1600;
    let mut options = Options::default();
    options.clock = Clock::manual();
    options.itl_target = Some(Duration::from_millis(3)); // (3 ms - 1 ms) / 20 us: 100 tokens
    let engine = Timed::new(ScriptedEngine::new(limits, count_up), &options.clock);
    let seen = engine.seen.clone();
    let service = Service::start(engine, None, options).unwrap();
    let long = |number: u32, length: u32, max_tokens| {
        let mut request =
            Request::tokens((0..length).map(|i| (i + number) % 40).collect::<Vec<_>>());
        request.max_tokens = Some(max_tokens);
        service.submit(&request).unwrap()
    };

    // Steps of many kinds first, to learn from.
    let all: Vec<_> = (0..60)
        .map(|number| long(number, 1 + number * 8, 20 + number))
        .collect();
    all.into_iter().for_each(|events| drop(collect(events)));
    let learned = seen.lock().unwrap().steps.len();
    let answer = long(1, 3, 1000);
    let prompts: Vec<_> = (0..10).map(|number| long(number, 1500, 1)).collect();
    prompts.into_iter().for_each(|events| drop(collect(events)));
    answer.cancel();
    drop(collect(answer));

    let seen = seen.lock().unwrap();
    let tokens: Vec<u32> = seen.steps[learned..]
        .iter()
        .filter(|(rows, _)| *rows > 0)
        .map(|(_, count)| *count)
        .collect();
    let most = tokens.iter().max().unwrap();
    assert!((80..=112).contains(most), "{most} tokens next to answers");
    drop(seen);
    finish(service);
}

const ANSWER: u32 = 600;

fn long_answer(_: &[Token], _: u64) -> Vec<Token> {
    (0..ANSWER).map(|i| (i * i + 3) % 61).collect()
}

/// Knows the answer, and takes its time.
struct Slow {
    clock: Clock,
    guess: Duration,
    prompt_tokens: usize,
    guesses: Arc<Mutex<usize>>,
}

impl Draft for Slow {
    fn begin(&mut self, prompt: &[Token], _: &[Token]) {
        self.prompt_tokens = prompt.len();
    }

    fn draft(&mut self, tokens: &[Token], limit: usize, drafts: &mut Vec<Token>) {
        let known = tokens.len() - self.prompt_tokens;
        drafts.extend(long_answer(&[], 0).iter().skip(known).take(limit));
        self.clock.advance(self.guess * limit as u32);
        *self.guesses.lock().unwrap() += limit;
    }

    fn is_computed(&self) -> bool {
        true
    }
}

/// The time of a long answer whose guesses take so long each, and the number of guesses.
fn guessed(guess: Option<Duration>) -> (Duration, usize) {
    let mut limits = EngineLimits::new(40, 64);
    limits.max_draft_tokens = 8;
    let mut options = Options::default();
    let clock = Clock::manual();
    options.clock = clock.clone();
    let guesses = Arc::<Mutex<usize>>::default();
    options.drafting = guess.map(|guess| {
        let (clock, guesses) = (clock.clone(), guesses.clone());
        Drafting::new(8, move || {
            Box::new(Slow {
                clock: clock.clone(),
                guess,
                prompt_tokens: 0,
                guesses: guesses.clone(),
            })
        })
    });
    let engine = Timed::new(ScriptedEngine::new(limits, long_answer), &clock);
    let service = Service::start(engine, None, options).unwrap();
    let mut request = Request::tokens([1, 2, 3]);
    request.max_tokens = Some(ANSWER);
    let answer = collect(service.submit(&request).unwrap());
    assert_eq!(answer.tokens, [long_answer(&[], 0)]);
    finish(service);
    let guesses = *guesses.lock().unwrap();
    (clock.now(), guesses)
}

#[test]
fn guesses_are_computed_where_they_save_time() {
    let (plain, _) = guessed(None);
    // Nine tokens of a step of 1.18 ms and guesses of 0.4 or 4 ms.
    let (quick, many) = guessed(Some(STEP / 20));
    assert!(quick < plain / 4 && many > 450, "{quick:?} {many}");
    let (slower, some) = guessed(Some(STEP / 2));
    assert!(slower < plain * 7 / 10 && some > 300, "{slower:?} {some}");
    let (slow, few) = guessed(Some(STEP * 3));
    assert!(slow < plain * 11 / 10 && few < 20, "{slow:?} {few}");
}
