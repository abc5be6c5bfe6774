//! Draft tokens in plans and results of the scheduler, and how much faster texts become with them.
#![cfg(feature = "scheduler")]

use std::collections::VecDeque;
use std::time::Duration;

use worker_cuda::scheduler::{
    ApplyError, Config, Costs, EndReason, EventKind, Plan, Request, RequestId, RowOutcome,
    Scheduler, SmallSteps, StepOutcome, Token,
};

const ZERO: Duration = Duration::ZERO;

/// Pages of 4 positions, 100 of them; 4 sequences; 16 tokens a step, any of them drafts.
fn small() -> Config {
    let mut config = Config::host(100);
    config.page_tokens = 4;
    config.max_sequences = 4;
    config.token_budget = 16;
    config.max_draft_tokens = 16;
    config.max_sequence_tokens = 400;
    config.max_queued_tokens = 1600;
    config.end_tokens = vec![99];
    config
}

/// A request whose prompt and first token are computed, with the text 1, 2, 3, 10.
fn begun(config: Config, max_tokens: u32) -> (Scheduler, RequestId) {
    let mut scheduler = Scheduler::new(config).unwrap();
    let mut request = Request::new(&[1, 2, 3]);
    request.max_tokens = Some(max_tokens);
    let id = scheduler.submit(&request, ZERO).unwrap();
    let plan = scheduler.schedule(ZERO).clone();
    finish(&mut scheduler, &plan, &[RowOutcome::Ok(Some(10))]);
    (scheduler, id)
}

fn finish(scheduler: &mut Scheduler, plan: &Plan, outcomes: &[RowOutcome]) -> Vec<EventKind> {
    let events = scheduler
        .apply(plan.step(), StepOutcome::Done(outcomes), ZERO)
        .unwrap();
    let events = events.map(|event| event.kind).collect();
    scheduler.audit().unwrap();
    events
}

fn drafted(held: u32, token: Token) -> RowOutcome {
    RowOutcome::Drafted { held, token }
}

/// Tokens with their places in the row and its drafts.
fn tokens(events: &[EventKind]) -> Vec<(Token, u32, u32)> {
    let token = |kind: &EventKind| match *kind {
        EventKind::Token {
            token,
            offset,
            drafts,
            ..
        } => Some((token, offset, drafts)),
        _ => None,
    };
    events.iter().filter_map(token).collect()
}

fn end(events: &[EventKind]) -> Option<EndReason> {
    match events.last() {
        Some(EventKind::Ended(end)) => Some(end.reason),
        _ => None,
    }
}

fn drafts(plan: &Plan) -> &[Token] {
    plan.tokens(plan.rows()[0].drafts)
}

// ---- Plans and results ----

#[test]
fn a_row_verifies_drafts_and_the_next_step_waits_for_them() {
    let (mut scheduler, id) = begun(small(), 20);

    scheduler.propose(id, &[11, 12, 13, 14]);
    let plan = scheduler.schedule(ZERO).clone();
    assert_eq!(drafts(&plan), [11, 12, 13, 14]);
    assert_eq!(plan.tokens(plan.rows()[0].tokens), [10]);
    assert_eq!((plan.token_count(), plan.draft_count()), (5, 4));
    assert_eq!(scheduler.stats().held_pages, 2); // 4 positions and 4 of drafts
    assert!(scheduler.schedule(ZERO).is_empty());

    let events = finish(&mut scheduler, &plan, &[drafted(2, 50)]);
    assert_eq!(tokens(&events), [(11, 0, 4), (12, 1, 4), (50, 2, 4)]);
    let stats = scheduler.stats();
    assert_eq!((stats.draft_tokens, stats.accepted_draft_tokens), (4, 2));
    assert_eq!(stats.held_pages, 2); // 6 positions

    // The guesses after the wrong one are gone.
    let plan = scheduler.schedule(ZERO).clone();
    assert_eq!(plan.rows()[0].first_position, 6);
    assert_eq!(plan.tokens(plan.rows()[0].tokens), [50]);
    assert!(drafts(&plan).is_empty());
    let next = scheduler.schedule(ZERO).clone();
    assert!(plan.tokens(next.rows()[0].tokens).is_empty());
}

#[test]
fn pages_that_a_run_fills_are_published_and_those_of_wrong_drafts_given_back() {
    let (mut scheduler, id) = begun(small(), 40);
    scheduler.propose(id, &[11, 12, 13, 14, 15, 16, 17, 18, 19]);
    let plan = scheduler.schedule(ZERO).clone();
    assert_eq!(scheduler.stats().held_pages, 4); // 13 positions

    finish(&mut scheduler, &plan, &[drafted(5, 50)]);
    assert_eq!(scheduler.stats().held_pages, 3); // 9 positions
    let plan = scheduler.schedule(ZERO).clone();
    let published = plan
        .publishes()
        .iter()
        .map(|publish| (publish.first_page, publish.keys.len()));
    assert_eq!(published.collect::<Vec<_>>(), [(0, 2)]);
}

#[test]
fn an_end_inside_of_a_run_ends_the_request_there() {
    let (mut scheduler, id) = begun(small(), 20);
    scheduler.propose(id, &[11, 99, 12]);
    let plan = scheduler.schedule(ZERO).clone();
    let events = finish(&mut scheduler, &plan, &[drafted(3, 13)]);
    assert_eq!(tokens(&events), [(11, 0, 3)]);
    assert_eq!(end(&events), Some(EndReason::EndToken(99)));

    // The second token of 4 is the first after the prompt's; 2 drafts leave one for what is sampled after them.
    let (mut scheduler, id) = begun(small(), 4);
    scheduler.propose(id, &[11, 12, 13, 14, 15]);
    let plan = scheduler.schedule(ZERO).clone();
    assert_eq!(drafts(&plan), [11, 12]);
    let events = finish(&mut scheduler, &plan, &[drafted(2, 13)]);
    assert_eq!(tokens(&events).len(), 3);
    assert_eq!(end(&events), Some(EndReason::Length));
    assert_eq!(
        scheduler.schedule(ZERO).publishes().len(),
        1,
        "its page is kept"
    );
}

#[test]
fn drafts_give_way_to_prompts_and_to_the_pages_of_others() {
    let (mut scheduler, id) = begun(small(), 20);
    scheduler.propose(id, &[11, 12, 13, 14, 15, 16]);
    let prompt: Vec<Token> = (100..112).collect();
    let mut request = Request::new(&prompt);
    request.max_tokens = Some(1);
    scheduler.submit(&request, ZERO).unwrap();
    // 16 tokens: one for the row, 12 for the prompt.
    let plan = scheduler.schedule(ZERO).clone();
    assert_eq!(plan.rows()[1].token_count, 12);
    assert_eq!(drafts(&plan), [11, 12, 13]);

    // Two pages: one has the text, and the other is promised to the rest of a prompt.
    let mut config = small();
    (config.page_count, config.max_queued_tokens) = (4, 64);
    config.reserve_percent = 0;
    let (mut scheduler, id) = begun(config, 5);
    scheduler.propose(id, &[11, 12, 13]);
    let mut request = Request::new(&prompt);
    request.max_tokens = Some(1);
    scheduler.submit(&request, ZERO).unwrap();
    let plan = scheduler.schedule(ZERO).clone();
    assert_eq!(plan.rows().len(), 2);
    assert_eq!(drafts(&plan), [0; 0]);

    // The engine verifies two in a step.
    let mut config = small();
    config.max_draft_tokens = 2;
    let (mut scheduler, id) = begun(config, 20);
    scheduler.propose(id, &[11, 12, 13]);
    assert_eq!(drafts(scheduler.schedule(ZERO)), [11, 12]);
}

#[test]
fn a_target_between_two_tokens_bounds_the_drafts() {
    let mut config = small();
    config.itl_target = Some(Duration::from_millis(10));
    let (mut scheduler, id) = begun(config, 20);
    scheduler.set_costs(Costs {
        step: Duration::from_millis(5),
        decode_row: Duration::from_millis(1),
        lone_step: Duration::from_millis(1),
        ..Costs::default()
    });
    for _ in 0..3 {
        scheduler.propose(id, &[11, 12, 13, 14, 15, 16]);
    }
    // 5 + 1 + 1 for the row, and 3 of the other 3.
    let plan = scheduler.schedule(ZERO).clone();
    assert!(plan.draft_count() > 0 && plan.draft_count() <= 3);
}

#[test]
fn a_run_past_the_allowed_tokens_is_cut_and_drawn_again() {
    let (mut scheduler, id) = begun(small(), 20);
    scheduler.propose(id, &[11, 12, 13]);
    let plan = scheduler.schedule(ZERO).clone();
    scheduler.allow(id, Some(3));
    scheduler.allow(id, None);
    let events = finish(&mut scheduler, &plan, &[drafted(3, 14)]);
    assert_eq!(tokens(&events), [(11, 0, 3), (12, 1, 3)]);
    let plan = scheduler.schedule(ZERO).clone();
    assert_eq!(plan.truncations()[0].token_count, 5);
    assert_eq!(plan.rows()[0].first_position, 5);
    assert_eq!(plan.tokens(plan.rows()[0].tokens), [12]);
    finish(&mut scheduler, &plan, &[RowOutcome::Ok(Some(13))]);

    // Nothing is allowed any more.
    scheduler.propose(id, &[14, 15]);
    let plan = scheduler.schedule(ZERO).clone();
    assert_eq!(plan.draft_count(), 2);
    scheduler.allow(id, Some(4));
    let events = finish(&mut scheduler, &plan, &[drafted(2, 16)]);
    assert!(events.is_empty());
    let plan = scheduler.schedule(ZERO).clone();
    assert!(plan.rows().is_empty());
    scheduler.allow(id, None);
    assert_eq!(scheduler.schedule(ZERO).rows()[0].first_position, 6);
}

#[test]
fn results_that_do_not_fit_the_drafts_are_refused() {
    let (mut scheduler, id) = begun(small(), 20);
    scheduler.propose(id, &[11, 12]);
    let plan = scheduler.schedule(ZERO).clone();
    let outcome = [drafted(3, 13)];
    let refused = scheduler.apply(plan.step(), StepOutcome::Done(&outcome), ZERO);
    let error = refused.err().unwrap();
    assert_eq!(
        error,
        ApplyError::Drafts {
            row: 0,
            held: 3,
            drafts: 2
        }
    );
    assert_eq!(error.to_string(), "3 drafts of row 0 hold, it has 2");
    // An engine that does not look at drafts is right too.
    let events = finish(&mut scheduler, &plan, &[RowOutcome::Ok(Some(11))]);
    assert_eq!(tokens(&events), [(11, 0, 2)]);
    let plan = scheduler.schedule(ZERO).clone();
    assert_eq!(drafts(&plan), [12]);
}

#[test]
fn a_step_in_flight_is_awaited_if_drafts_are_worth_it() {
    let (mut scheduler, id) = begun(small(), 30);
    let plan = scheduler.schedule(ZERO).clone();
    // Guesses of the token in flight and of those after it.
    scheduler.propose(id, &[11, 12, 13, 14]);
    assert!(scheduler.schedule(ZERO).is_empty());
    finish(&mut scheduler, &plan, &[RowOutcome::Ok(Some(11))]);
    assert_eq!(drafts(scheduler.schedule(ZERO)), [12, 13, 14]);

    let (mut scheduler, id) = begun(small(), 30);
    scheduler.set_costs(Costs {
        step: Duration::from_millis(1),
        decode_row: Duration::from_millis(4),
        ..Costs::default()
    });
    scheduler.propose(id, &[11, 12, 13, 14]);
    assert_eq!(scheduler.schedule(ZERO).draft_count(), 0);
    assert_eq!(
        scheduler.schedule(ZERO).rows().len(),
        1,
        "rows are expensive"
    );
}

// ---- Texts of which each token must be allowed ----

/// A request of which the next token is allowed as soon as it is drawn late.
fn bound(guesses: &[Token]) -> (Scheduler, RequestId) {
    let (mut scheduler, id) = begun(small(), 20);
    scheduler.allow_late(id, 1);
    scheduler.propose(id, guesses);
    (scheduler, id)
}

fn wanted_drafts(scheduler: &mut Scheduler) -> Vec<(RequestId, u32)> {
    let mut wanted = vec![];
    scheduler.wanted_drafts(&mut wanted);
    wanted
}

#[test]
fn drafts_past_the_allowed_tokens_need_an_allowance_of_their_own() {
    let (mut scheduler, id) = bound(&[11, 12, 13, 14]);
    assert_eq!(wanted_drafts(&mut scheduler), [(id, 4)]);
    scheduler.allow_late(id, 2);
    scheduler.allow_drafts(id, 2);
    assert_eq!(wanted_drafts(&mut scheduler), [(id, 4)]);
    let plan = scheduler.schedule(ZERO).clone();
    assert_eq!(drafts(&plan), [11, 12]);
    assert!(!plan.rows()[0].is_late);
    assert!(wanted_drafts(&mut scheduler).is_empty(), "it is in flight");

    let events = finish(&mut scheduler, &plan, &[drafted(2, 13)]);
    assert_eq!(tokens(&events), [(11, 0, 2), (12, 1, 2), (13, 2, 2)]);
    scheduler.allow_late(id, 4);
    let plan = scheduler.schedule(ZERO).clone();
    assert!(plan.rows()[0].is_late && drafts(&plan).is_empty());

    // All guesses are allowed.
    let (mut scheduler, id) = bound(&[11, 12]);
    scheduler.allow_late(id, 2);
    scheduler.allow_drafts(id, 2);
    assert!(wanted_drafts(&mut scheduler).is_empty());
    assert_eq!(drafts(scheduler.schedule(ZERO)), [11, 12]);
}

#[test]
fn an_allowance_of_drafts_ends_with_the_next_one_of_tokens() {
    for tokens in [None, Some(2)] {
        let (mut scheduler, id) = bound(&[11, 12, 13, 14]);
        scheduler.allow_late(id, 2);
        scheduler.allow_drafts(id, 2);
        scheduler.allow(id, tokens);
        let drafts = scheduler.schedule(ZERO).draft_count();
        assert_eq!(drafts, if tokens.is_none() { 4 } else { 0 });
    }
}

#[test]
fn a_step_in_flight_is_awaited_for_drafts_that_may_be_allowed_after_it() {
    let (mut scheduler, id) = bound(&[11, 12, 13, 14]);
    let plan = scheduler.schedule(ZERO).clone();
    assert!(plan.rows()[0].is_late);
    assert!(scheduler.schedule(ZERO).is_empty());
    assert!(wanted_drafts(&mut scheduler).is_empty(), "it is in flight");
    finish(&mut scheduler, &plan, &[RowOutcome::Ok(Some(11))]);
    assert!(wanted_drafts(&mut scheduler).is_empty());
    scheduler.allow_late(id, 2);
    assert_eq!(wanted_drafts(&mut scheduler), [(id, 3)]);
    scheduler.allow_late(id, 3);
    scheduler.allow_drafts(id, 3);
    assert_eq!(drafts(scheduler.schedule(ZERO)), [12, 13, 14]);

    // Without late rows no token comes before it is allowed.
    let (mut scheduler, id) = begun(small(), 20);
    scheduler.allow(id, Some(2));
    scheduler.propose(id, &[11, 12, 13, 14]);
    assert_eq!(scheduler.schedule(ZERO).rows().len(), 1);
    assert!(wanted_drafts(&mut scheduler).is_empty());
}

#[test]
fn the_last_token_of_a_run_can_be_drawn_again() {
    let (mut scheduler, id) = begun(small(), 20);
    scheduler.propose(id, &[11, 12, 13]);
    let plan = scheduler.schedule(ZERO).clone();
    assert!(scheduler.draw_again(id, 2));
    let events = finish(&mut scheduler, &plan, &[drafted(2, 14)]);
    assert_eq!(tokens(&events), [(11, 0, 3), (12, 1, 3)]);
    assert!(scheduler.schedule(ZERO).rows().is_empty());
    scheduler.allow(id, Some(4));
    let plan = scheduler.schedule(ZERO).clone();
    assert_eq!(plan.truncations(), []); // it was in the plan without rows
    assert_eq!(plan.rows()[0].first_position, 5);
    assert_eq!(plan.tokens(plan.rows()[0].tokens), [12]);
    finish(&mut scheduler, &plan, &[RowOutcome::Ok(Some(13))]);

    // Or all of it.
    scheduler.allow(id, None);
    scheduler.propose(id, &[14, 15]);
    let plan = scheduler.schedule(ZERO).clone();
    assert!(scheduler.draw_again(id, 0));
    let events = finish(&mut scheduler, &plan, &[drafted(1, 16)]);
    assert!(events.is_empty());
}

// ---- Guesses that are computed ----

fn wanted(scheduler: &mut Scheduler) -> Vec<(RequestId, u32)> {
    let mut wanted = vec![];
    scheduler.wanted_guesses(&mut wanted);
    wanted
}

#[test]
fn computed_guesses_are_wanted_as_far_as_they_are_worth_their_time() {
    let (mut scheduler, id) = begun(small(), 200);
    assert!(wanted(&mut scheduler).is_empty());
    scheduler.expect_guesses(id, 6);
    assert_eq!(wanted(&mut scheduler), [(id, 6)]);
    // The last token of an answer comes after them.
    let (mut short, short_id) = begun(small(), 4);
    short.expect_guesses(short_id, 6);
    assert_eq!(wanted(&mut short), [(short_id, 2)]);

    let mut costs = Costs {
        step: Duration::from_millis(10),
        ..Costs::default()
    };
    costs.guess = Duration::from_millis(1);
    scheduler.set_costs(costs);
    let some = wanted(&mut scheduler);
    assert!(
        matches!(some[..], [(_, count)] if 0 < count && count < 6),
        "{some:?}"
    );

    costs.guess = Duration::from_millis(20);
    scheduler.set_costs(costs);
    assert!(wanted(&mut scheduler).is_empty());
    // Those that are there are verified, whatever they took.
    scheduler.propose(id, &[11, 12]);
    assert_eq!(drafts(scheduler.schedule(ZERO)), [11, 12]);
}

#[test]
fn a_step_in_flight_is_awaited_for_guesses_that_are_yet_to_be_computed() {
    let (mut scheduler, id) = begun(small(), 300);
    scheduler.expect_guesses(id, 3);
    let first = scheduler.schedule(ZERO).clone();
    assert!(scheduler.schedule(ZERO).is_empty());
    assert!(wanted(&mut scheduler).is_empty(), "its token is not known");
    finish(&mut scheduler, &first, &[RowOutcome::Ok(Some(11))]);
    assert_eq!(wanted(&mut scheduler), [(id, 3)]);
    scheduler.propose(id, &[12, 13, 14]);
    assert_eq!(drafts(scheduler.schedule(ZERO)), [12, 13, 14]);

    // If they take too long, nothing waits for them; now and then there is one.
    let (mut scheduler, id) = begun(small(), 300);
    scheduler.expect_guesses(id, 3);
    scheduler.set_costs(Costs {
        step: Duration::from_micros(100),
        decode_row: Duration::from_millis(1),
        guess: Duration::from_micros(50),
        ..Costs::default()
    });
    let mut first = scheduler.schedule(ZERO).clone();
    // One token came before.
    for _ in 1..256 {
        assert!(wanted(&mut scheduler).is_empty());
        let second = scheduler.schedule(ZERO).clone();
        assert_eq!(second.rows().len(), 1);
        finish(&mut scheduler, &first, &[RowOutcome::Ok(Some(11))]);
        first = second;
    }
    assert_eq!(wanted(&mut scheduler), [(id, 1)]);
    scheduler.propose(id, &[11]);
    let second = scheduler.schedule(ZERO).clone();
    assert_eq!(second.draft_count(), 0);
    finish(&mut scheduler, &first, &[RowOutcome::Ok(Some(11))]);
    assert!(wanted(&mut scheduler).is_empty());
}

// ---- Speed ----

/// Streams whose guesses hold with a probability, each independently, on a device with these costs.
struct Streams {
    scheduler: Scheduler,
    costs: Costs,
    ids: Vec<(RequestId, f64)>,
    text_lengths: Vec<u32>,
    random: u64,
    /// Guesses take `costs.guess` each, and those are computed that are wanted.
    are_computed: bool,
}

const GUESSES: u32 = 8;
const STEPS: u32 = 500;

impl Streams {
    fn new(acceptances: &[f64], costs: Costs, max_draft_tokens: u32) -> Self {
        let pages = (STEPS * (1 + GUESSES)).div_ceil(64) + 1;
        let mut config = Config::host(pages * acceptances.len() as u32);
        config.max_sequences = acceptances.len() as u32;
        config.token_budget = 2048;
        config.max_draft_tokens = max_draft_tokens;
        let mut scheduler = Scheduler::new(config).unwrap();
        scheduler.set_costs(costs);
        let ids = (0..).zip(acceptances).map(|(number, &acceptance)| {
            let id = scheduler.submit(&Request::new(&[number]), ZERO).unwrap();
            (id, acceptance)
        });
        Self {
            ids: ids.collect(),
            text_lengths: vec![1; acceptances.len()],
            scheduler,
            costs,
            random: 1,
            are_computed: false,
        }
    }

    /// The token of a stream at a position.
    fn token(stream: usize, position: u32) -> Token {
        (stream as u32 * 7919 + position * 31) % 1000
    }

    fn happens(&mut self, probability: f64) -> bool {
        self.random = self
            .random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        ((self.random >> 33) as f64) < probability * f64::from(1u32 << 31)
    }

    /// Returns the time of the guesses.
    fn propose(&mut self) -> Duration {
        let mut time = ZERO;
        let all: Vec<_> = match self.are_computed {
            true => wanted(&mut self.scheduler),
            false => self.ids.iter().map(|&(id, _)| (id, GUESSES)).collect(),
        };
        for (id, count) in all {
            let stream = self.ids.iter().position(|(known, _)| *known == id).unwrap();
            let acceptance = self.ids[stream].1;
            let mut guesses = Vec::new();
            if self.are_computed {
                time += self.costs.guess * count;
            }
            for offset in 0..count {
                let right = Self::token(stream, self.text_lengths[stream] + offset);
                let is_right = self.happens(acceptance);
                guesses.push(right + u32::from(!is_right));
            }
            self.scheduler.propose(id, &guesses);
        }
        time
    }

    fn outcomes(&self, plan: &Plan) -> Vec<RowOutcome> {
        let rows = plan.rows().iter();
        rows.map(|row| {
            let stream = self.ids.iter().position(|(id, _)| *id == row.request);
            let stream = stream.unwrap();
            let next = |held: usize| {
                let end = row.first_position + row.token_count;
                Self::token(stream, end + held as u32)
            };
            let drafts = plan.tokens(row.drafts);
            let holds = drafts
                .iter()
                .enumerate()
                .take_while(|(at, draft)| **draft == next(*at));
            let held = holds.count();
            drafted(held as u32, next(held))
        })
        .collect()
    }

    /// Tokens per second.
    fn rate(mut self) -> f64 {
        let (mut time, mut tokens) = (ZERO, 0u32);
        let mut in_flight = VecDeque::new();
        for _ in 0..STEPS {
            for _ in 0..2 {
                let is_lone = in_flight.is_empty();
                let plan = self.scheduler.schedule(ZERO).clone();
                if plan.rows().is_empty() {
                    continue;
                }
                let mut duration = self.costs.step + self.costs.decode_row * plan.token_count();
                if is_lone {
                    duration += self.costs.lone_step;
                }
                in_flight.push_back((plan, duration));
            }
            let Some((plan, duration)) = in_flight.pop_front() else {
                break;
            };
            time += duration;
            let outcomes = self.outcomes(&plan);
            let step = StepOutcome::Done(&outcomes);
            for event in self.scheduler.apply(plan.step(), step, ZERO).unwrap() {
                if let EventKind::Token { .. } = event.kind {
                    let mut ids = self.ids.iter();
                    let stream = ids.position(|(id, _)| *id == event.request).unwrap();
                    self.text_lengths[stream] += 1;
                    tokens += 1;
                }
            }
            time += self.propose();
        }
        f64::from(tokens) / time.as_secs_f64()
    }
}

/// How many times as fast streams are with drafts.
fn gain(acceptances: &[f64], costs: Costs) -> f64 {
    let plain = Streams::new(acceptances, costs, 0).rate();
    Streams::new(acceptances, costs, 256).rate() / plain
}

/// The same of guesses that are computed.
fn computed_gain(acceptances: &[f64], costs: Costs) -> f64 {
    let plain = Streams::new(acceptances, costs, 0).rate();
    let mut drafted = Streams::new(acceptances, costs, 256);
    drafted.are_computed = true;
    for &(id, _) in &drafted.ids {
        drafted.scheduler.expect_guesses(id, GUESSES);
    }
    drafted.rate() / plain
}

/// A large model on a GPU: 1.5 ms for one row, 4.4 for 64.
const GPU: Costs = Costs {
    step: Duration::from_micros(1_450),
    decode_row: Duration::from_micros(46),
    prefill_token: Duration::from_micros(25),
    restore_page: ZERO,
    lone_step: Duration::from_micros(150),
    guess: ZERO,
    small_steps: SmallSteps::UNKNOWN,
};

#[test]
fn one_stream_is_as_fast_as_its_acceptance_predicts() {
    for acceptance in [0.5f64, 0.7, 0.9] {
        let expected = |count: i32| (1.0 - acceptance.powi(count + 1)) / (1.0 - acceptance);
        let time = |count: i32| GPU.step + GPU.decode_row * (1 + count as u32);
        let best = (1..=GUESSES as i32)
            .map(|count| expected(count) / (time(count) + GPU.lone_step).as_secs_f64())
            .fold(0.0, f64::max);
        let predicted = best * time(0).as_secs_f64();
        let found = gain(&[acceptance], GPU);
        assert!(
            (found / predicted - 1.0).abs() < 0.1,
            "{found} for {predicted}"
        );
    }
}

#[test]
fn streams_are_never_slower_than_without_drafts() {
    for streams in [1, 8, 64] {
        for acceptance in [0.0, 0.3, 0.6, 0.9] {
            let gain = gain(&vec![acceptance; streams], GPU);
            assert!(gain >= 0.98, "{gain} with {streams} streams, {acceptance}");
        }
        // Some guess well, the others hardly.
        let mut mixed = vec![0.05; streams];
        mixed[..streams.div_ceil(8)].fill(0.95);
        let gain = gain(&mixed, GPU);
        assert!(gain >= 0.98, "{gain} with {streams} mixed streams");
    }
}

#[test]
fn streams_with_computed_guesses_are_as_fast_as_predicted_and_never_slower() {
    for guess in [100, 300, 3_000].map(Duration::from_micros) {
        let costs = Costs { guess, ..GPU };
        for acceptance in [0.3f64, 0.6, 0.8] {
            let expected = |count: i32| (1.0 - acceptance.powi(count + 1)) / (1.0 - acceptance);
            let plain = GPU.step + GPU.decode_row;
            let time = |count: i32| plain + GPU.lone_step + (GPU.decode_row + guess) * count as u32;
            let best = (1..=GUESSES as i32)
                .map(|count| expected(count) / time(count).as_secs_f64())
                .fold(1.0 / plain.as_secs_f64(), f64::max);
            let predicted = best * plain.as_secs_f64();
            let found = computed_gain(&[acceptance], costs);
            assert!(
                (found / predicted - 1.0).abs() < 0.1,
                "{found} for {predicted}, {acceptance}, {guess:?}"
            );
            for (streams, least) in [(8, 0.95), (64, 0.98)] {
                let gain = computed_gain(&vec![acceptance; streams], costs);
                assert!(
                    gain >= least,
                    "{gain}: {streams} streams, {acceptance}, {guess:?}"
                );
            }
        }
    }
}
