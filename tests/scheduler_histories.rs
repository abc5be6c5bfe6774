//! Random histories of a scheduler on a simulated engine, and on that of the host, with faults, latencies and cancels. After each
//! call: budgets and limits are kept, engine and scheduler agree on every page, texts are those of a
//! request alone, and each request ends once.
//!
//! `SCHEDULER_HISTORIES` sets their number for each test.
#![cfg(feature = "scheduler")]

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use worker_cuda::scheduler::{
    Config, Costs, EndReason, Event, EventKind, MAX_DRAFTS, MAX_PRIORITY, PageSharing, Plan,
    Request, RequestId, Row, RowOutcome, Salt, Scheduler, Stats, StepOutcome, Token,
};

#[cfg(feature = "text")]
#[path = "support/host_engine.rs"]
mod host_engine;
#[cfg(feature = "text")]
#[path = "support/models.rs"]
mod models;
#[path = "support/simulated_engine.rs"]
mod simulated_engine;
use simulated_engine::{Finished, SimulatedEngine, VOCABULARY, solo_token};

const END_TOKEN: Token = VOCABULARY - 1;

#[derive(Clone, Debug)]
struct Setup {
    page_tokens: u32,
    sequence_tokens: u32,
    /// Prompts and answers are so many times as long.
    scale: u32,
    page_count: u32,
    max_sequences: u32,
    extra_budget: u32,
    max_draft_tokens: u32,
    max_queued: u32,
    max_queued_tokens: u64,
    max_saved_pages: u32,
    /// Every second saved sequence.
    loses_saves: bool,
    has_itl_target: bool,
    page_sharing: PageSharing,
}

#[derive(Clone, Debug)]
enum Op {
    Submit(Submission),
    Cancel(usize),
    Stop(usize),
    Pause(usize),
    Resume(usize),
    /// Limits a request to so many more tokens, or to none less, and lets drafts draw so many past them.
    Allow(usize, Option<u32>, u32),
    /// Proposes so many drafts to each request. They are right, except for one of them.
    Guess(usize, usize),
    Step,
    Wait,
    Pass(Duration),
    /// The row after so many more ends like this.
    FailRow(u8, RowOutcome),
    FailStep,
}

#[derive(Clone, Debug)]
struct Submission {
    /// Requests of one family begin alike.
    family: u32,
    prompt_tokens: u32,
    max_tokens: Option<u32>,
    tenant: u32,
    priority: u8,
    salt: u32,
    copies: u32,
    ignore_end: bool,
    use_cache: bool,
    allowed: Option<u32>,
    deadline: Option<Duration>,
}

fn setups() -> impl Strategy<Value = Setup> {
    (
        2..9u32,
        4..24u32,
        1..6u32,
        0..24u32,
        3..12u32,
        0..20u32,
        prop::bool::weighted(0.2),
        any::<bool>(),
        prop_oneof![1 => Just(PageSharing::None), 3 => Just(PageSharing::Cached)],
        prop_oneof![1 => Just(0), 3 => 1..40u32],
    )
        .prop_map(
            |(
                page_tokens,
                page_count,
                max_sequences,
                extra,
                max_queued,
                saved,
                loses_saves,
                itl,
                page_sharing,
                max_draft_tokens,
            )| {
                Setup {
                    page_tokens,
                    sequence_tokens: 40,
                    scale: 1,
                    page_count,
                    max_sequences,
                    extra_budget: extra,
                    max_draft_tokens,
                    max_queued,
                    max_queued_tokens: u64::from(4 * page_count * page_tokens),
                    max_saved_pages: saved,
                    loses_saves,
                    has_itl_target: itl,
                    page_sharing,
                }
            },
        )
}

fn submissions() -> impl Strategy<Value = Submission> {
    let text = (
        0..3u32,
        1..28u32,
        option::weighted(0.97, 0..10u32),
        any::<bool>(),
    );
    let owner = (
        0..3u32,
        0..=MAX_PRIORITY,
        0..2u32,
        prop_oneof![5 => Just(1), 3 => 2..6u32],
    );
    let rest = (
        prop::bool::weighted(0.9),
        option::weighted(0.2, 0..4u32),
        option::weighted(0.1, (1..500u64).prop_map(Duration::from_millis)),
    );
    (text, owner, rest).prop_map(|(text, owner, rest)| Submission {
        family: text.0,
        prompt_tokens: text.1,
        max_tokens: text.2,
        ignore_end: text.3,
        tenant: owner.0,
        priority: owner.1,
        salt: owner.2,
        copies: owner.3,
        use_cache: rest.0,
        allowed: rest.1,
        deadline: rest.2,
    })
}

fn ops() -> impl Strategy<Value = Op> {
    let failed = prop_oneof![
        4 => Just(RowOutcome::Held),
        1 => Just(RowOutcome::EmptyMask),
        1 => Just(RowOutcome::NotFinite),
    ];
    prop_oneof![
        6 => submissions().prop_map(Op::Submit),
        1 => any::<usize>().prop_map(Op::Cancel),
        1 => any::<usize>().prop_map(Op::Stop),
        1 => any::<usize>().prop_map(Op::Pause),
        1 => any::<usize>().prop_map(Op::Resume),
        3 => (any::<usize>(), option::weighted(0.8, 0..3u32), prop_oneof![Just(0), 0..9u32])
            .prop_map(|(at, more, ahead)| Op::Allow(at, more, ahead)),
        6 => (0..18usize, 0..24usize).prop_map(|(count, wrong)| Op::Guess(count, wrong)),
        12 => Just(Op::Step),
        10 => Just(Op::Wait),
        1 => (0..70_000u64).prop_map(|ms| Op::Pass(Duration::from_millis(ms))),
        2 => (0..4u8, failed).prop_map(|(rows, outcome)| Op::FailRow(rows, outcome)),
        1 => prop::bool::weighted(0.3).prop_map(|fails| if fails { Op::FailStep } else { Op::Step }),
    ]
}

/// What the test knows about a request, from plans and events alone.
#[derive(Debug)]
struct Seen {
    submission: Submission,
    /// Requests of one submission, as many as had been submitted before it.
    group: usize,
    /// Time of submission, and a second for each level of its priority.
    rank: Duration,
    text: Vec<Token>, // prompt and generated tokens
    sequence: Option<u32>,
    /// The request whose sequence it was forked from, through other forks of the same plan.
    source: Option<RequestId>,
    started: bool,
    paused: bool,
    /// Tokens that it may have generated, and how many that are being sampled are past them.
    allowed: u32,
    dropped: u32,
    /// Tokens past those allowed that drafts may draw.
    ahead: u32,
    /// Has proposed drafts.
    is_guessed: bool,
    /// Least that it was allowed since its row with drafts was planned.
    run_limit: u32,
    ended: Option<EndReason>,
    /// Its prompt is computed, so that it must be in each step.
    caught_up: bool,
    sampling: u32,
    rows_in_flight: u32,
    /// A row failed, and rows in flight continue it.
    excused: bool,
    faults: u32,
}

impl Seen {
    fn generated(&self) -> u32 {
        (self.text.len() - self.submission.prompt_tokens as usize) as u32
    }
}

struct World<E> {
    setup: Setup,
    scheduler: Scheduler,
    engine: E,
    now: Duration,
    seen: HashMap<RequestId, Seen>,
    order: Vec<RequestId>, // as submitted
    in_flight: VecDeque<Plan>,
    fail_row: Option<(u8, RowOutcome)>,
    fail_step: bool,
    step_after_fault: bool,
    save_count: u32,
    fork_count: u32,
    plans: Vec<Plan>,
}

/// An engine on which histories are played.
trait TestEngine {
    /// Carries out a plan. `fault` is asked for the outcome of each row that should not end well, and the whole
    /// step fails if `fails`.
    fn execute(
        &mut self,
        plan: &Plan,
        salt_of: &dyn Fn(RequestId) -> u32,
        fault: &mut dyn FnMut(&Row) -> Option<RowOutcome>,
        fails: bool,
    );

    /// Requests whose sequences the last plan saves, and that could not be kept.
    fn lost_saves(&mut self) -> Vec<RequestId>;

    /// Forgets what was saved of a request.
    fn lose_saved(&mut self, request: RequestId);

    /// Waits for the oldest step: its number, how long it ran, and its outcome.
    fn wait(&mut self) -> (u64, Duration, Finished);

    /// Compares pages and sequences with what the scheduler believes.
    fn check(&self, stats: &Stats, is_live: &dyn Fn(RequestId) -> bool);

    /// The token that follows a text that is computed alone.
    fn solo_token(&mut self, text: &[Token]) -> Token;

    fn saved_count(&self) -> usize;
}

impl TestEngine for SimulatedEngine {
    fn execute(
        &mut self,
        plan: &Plan,
        salt_of: &dyn Fn(RequestId) -> u32,
        fault: &mut dyn FnMut(&Row) -> Option<RowOutcome>,
        fails: bool,
    ) {
        self.execute(plan, salt_of, fault, fails);
    }

    fn lost_saves(&mut self) -> Vec<RequestId> {
        Vec::new()
    }

    fn lose_saved(&mut self, request: RequestId) {
        self.lose_saved(request);
    }

    fn wait(&mut self) -> (u64, Duration, Finished) {
        self.wait()
    }

    fn check(&self, stats: &Stats, is_live: &dyn Fn(RequestId) -> bool) {
        self.check(stats, is_live);
    }

    fn solo_token(&mut self, text: &[Token]) -> Token {
        solo_token(text)
    }

    fn saved_count(&self) -> usize {
        self.saved_count()
    }
}

impl World<SimulatedEngine> {
    fn simulated(setup: &Setup) -> Self {
        Self::new(setup, |_, costs| {
            SimulatedEngine::new(setup.page_tokens, setup.page_count, costs)
        })
    }
}

impl<E: TestEngine> World<E> {
    fn new(setup: &Setup, engine: impl FnOnce(&Config, Costs) -> E) -> Self {
        let mut config = Config::host(setup.page_count);
        config.page_tokens = setup.page_tokens;
        config.max_sequences = setup.max_sequences;
        // A budget whose quarter is a page, or more.
        config.token_budget =
            (4 * setup.page_tokens).max(2 * setup.max_sequences) + setup.extra_budget;
        config.max_draft_tokens = setup.max_draft_tokens;
        config.max_sequence_tokens = setup.sequence_tokens;
        config.max_queued = setup.max_queued;
        config.max_queued_tokens = setup.max_queued_tokens;
        config.max_tenants = 3;
        config.max_saved_pages = setup.max_saved_pages;
        config.page_sharing = setup.page_sharing;
        config.end_tokens = vec![END_TOKEN];
        config.itl_target = setup.has_itl_target.then_some(Duration::from_millis(20));
        let costs = Costs {
            step: Duration::from_millis(5),
            decode_row: Duration::from_micros(700),
            prefill_token: Duration::from_micros(600),
            restore_page: Duration::from_micros(1500),
            lone_step: Duration::from_micros(300),
            ..Costs::default()
        };
        let engine = engine(&config, costs);
        let mut scheduler = Scheduler::new(config).unwrap();
        scheduler.set_costs(costs);
        Self {
            setup: setup.clone(),
            scheduler,
            engine,
            now: Duration::ZERO,
            seen: HashMap::new(),
            order: Vec::new(),
            in_flight: VecDeque::new(),
            fail_row: None,
            fail_step: false,
            step_after_fault: false,
            save_count: 0,
            fork_count: 0,
            plans: Vec::new(),
        }
    }

    fn run(&mut self, op: &Op) {
        match op {
            Op::Submit(submission) => self.submit(submission),
            Op::Cancel(at) => self.end(*at, EndReason::Cancelled),
            Op::Stop(at) => self.end(*at, EndReason::Stopped),
            Op::Pause(at) => {
                if let Some(id) = self.live(*at) {
                    self.scheduler.pause(id, self.now);
                    self.seen.get_mut(&id).unwrap().paused = true;
                }
            }
            Op::Resume(at) => {
                if let Some(id) = self.live(*at) {
                    self.resume(id);
                }
            }
            Op::Allow(at, more, ahead) => {
                if let Some(id) = self.live(*at) {
                    self.allow(id, *more);
                    self.scheduler.allow_drafts(id, *ahead);
                    self.seen.get_mut(&id).unwrap().ahead = *ahead;
                }
            }
            Op::Guess(count, wrong) => self.guess(*count, *wrong),
            Op::Step => self.step(),
            Op::Wait => self.wait(),
            Op::Pass(time) => self.now += *time,
            Op::FailRow(rows, outcome) => self.fail_row = Some((*rows, *outcome)),
            Op::FailStep => self.fail_step = true,
        }
        self.scheduler.audit().unwrap();
    }

    fn context_tokens(&self) -> u32 {
        self.setup
            .sequence_tokens
            .min(self.setup.page_count * self.setup.page_tokens)
    }

    fn live(&self, at: usize) -> Option<RequestId> {
        let live: Vec<_> = self
            .order
            .iter()
            .filter(|id| self.seen[id].ended.is_none())
            .collect();
        (!live.is_empty()).then(|| *live[at % live.len()])
    }

    fn resume(&mut self, id: RequestId) {
        self.scheduler.resume(id);
        self.seen.get_mut(&id).unwrap().paused = false;
    }

    fn allow(&mut self, id: RequestId, more: Option<u32>) {
        let seen = self.seen.get_mut(&id).unwrap();
        let tokens = more.map(|more| seen.generated() + more);
        seen.allowed = tokens.unwrap_or(u32::MAX);
        let past = (seen.generated() + seen.sampling).saturating_sub(seen.allowed);
        seen.dropped = seen.dropped.max(past.min(seen.sampling));
        seen.run_limit = seen.run_limit.min(seen.allowed);
        seen.ahead = 0;
        self.scheduler.allow(id, tokens);
    }

    fn guess(&mut self, count: usize, wrong: usize) {
        let most = self.context_tokens() as usize;
        for (id, seen) in &mut self.seen {
            if seen.ended.is_some() {
                continue;
            }
            let mut text = seen.text.clone();
            for at in 0..count.min((most + 1).saturating_sub(text.len())) {
                let right = self.engine.solo_token(&text);
                text.push((right + u32::from(at == wrong)) % VOCABULARY);
            }
            seen.is_guessed = count > 0;
            self.scheduler.propose(*id, &text[seen.text.len()..]);
        }
    }

    fn submit(&mut self, submission: &Submission) {
        let (scale, max_tokens) = (self.setup.scale, submission.max_tokens);
        let length = submission.prompt_tokens * scale;
        let submission = &Submission {
            prompt_tokens: length,
            max_tokens: max_tokens.map(|count| count * scale),
            ..submission.clone()
        };
        // Alike up to two thirds; the last token differs by tenant.
        let mut prompt: Vec<Token> = (0..length)
            .map(|i| (i * 7 + submission.family * (i / 13 + 1)) % VOCABULARY)
            .collect();
        prompt[length as usize - 1] = submission.tenant;
        let salt = Salt::new(&[0; 32], &submission.salt.to_le_bytes(), b"");
        let mut request = Request::new(&prompt);
        request.max_tokens = submission.max_tokens;
        request.tenant = submission.tenant;
        request.priority = submission.priority;
        request.salt = salt;
        request.ignore_end = submission.ignore_end;
        request.use_cache = submission.use_cache;
        request.deadline = submission.deadline.map(|time| self.now + time);
        let mut ids = Vec::new();
        let before = self.scheduler.stats();
        let submitted =
            self.scheduler
                .submit_copies(&request, submission.copies, self.now, &mut ids);
        if submitted.is_err() {
            assert!(ids.is_empty());
            assert_eq!(self.scheduler.stats().refused, before.refused + 1);
            assert_eq!(self.scheduler.stats().waiting, before.waiting);
            return;
        }
        assert_eq!(ids.len(), submission.copies as usize);
        let group = self.order.len();
        for id in ids {
            let seen = Seen {
                submission: submission.clone(),
                group,
                rank: self.now + Duration::from_secs(submission.priority.into()),
                text: prompt.clone(),
                sequence: None,
                source: None,
                started: false,
                paused: false,
                allowed: submission.allowed.unwrap_or(u32::MAX),
                dropped: 0,
                ahead: 0,
                is_guessed: false,
                run_limit: u32::MAX,
                ended: None,
                caught_up: false,
                sampling: 0,
                rows_in_flight: 0,
                excused: false,
                faults: 0,
            };
            assert!(self.seen.insert(id, seen).is_none(), "an id is given twice");
            self.order.push(id);
            self.scheduler.allow(id, submission.allowed);
        }
    }

    fn end(&mut self, at: usize, reason: EndReason) {
        let Some(id) = self.live(at) else { return };
        let ended = match reason {
            EndReason::Cancelled => self.scheduler.cancel(id),
            _ => self.scheduler.stop(id),
        };
        assert!(ended);
        let events = self.scheduler.events().collect();
        self.take_events(events, None);
        assert_eq!(self.seen[&id].ended, Some(reason));
        assert!(!self.scheduler.cancel(id), "it has ended");
    }

    fn step(&mut self) {
        if self.in_flight.len() == 2 {
            assert!(self.scheduler.schedule(self.now).rows().is_empty());
            return;
        }
        let plan = self.scheduler.schedule(self.now).clone();
        if self.waits_for_step(&plan) {
            let events = self.scheduler.events().collect();
            self.take_events(events, None);
            return;
        }
        assert_eq!(
            plan.resets_engine(),
            std::mem::take(&mut self.step_after_fault)
        );
        let events = self.scheduler.events().collect();
        let started = self.take_events(events, None);
        self.check_forks(&plan);
        self.check_order(&started, &plan);
        self.check_rows(&plan);
        self.check_drafts(&plan);
        self.follow_sequences(&plan);
        self.check_decode_rows(&plan);

        let seen = &self.seen;
        let fail_row = &mut self.fail_row;
        let mut fault = |_: &Row| match fail_row {
            Some((0, outcome)) => {
                let outcome = *outcome;
                *fail_row = None;
                Some(outcome)
            }
            Some((rows, _)) => {
                *rows -= 1;
                None
            }
            None => None,
        };
        let fails = std::mem::take(&mut self.fail_step);
        self.engine
            .execute(&plan, &|id| seen[&id].submission.salt, &mut fault, fails);
        for request in self.engine.lost_saves() {
            self.scheduler.lose_saved(request);
        }
        for save in plan.saves() {
            self.save_count += 1;
            if self.setup.loses_saves && self.save_count.is_multiple_of(2) {
                self.engine.lose_saved(save.request);
                self.scheduler.lose_saved(save.request);
            }
        }
        self.engine
            .check(&self.scheduler.stats(), &|id| seen[&id].ended.is_none());
        if !plan.rows().is_empty() {
            for row in plan.rows() {
                let seen = self.seen.get_mut(&row.request).unwrap();
                seen.rows_in_flight += 1;
                seen.sampling += u32::from(row.samples);
                seen.caught_up |= row.samples;
                seen.run_limit = u32::MAX;
            }
            self.in_flight.push_back(plan.clone());
        }
        self.plans.push(plan);
    }

    /// No request starts before a more urgent one of any tenant, unless the next one of that tenant cannot start in
    /// this plan: with the second for each level, this bounds every wait.
    fn check_order(&self, started: &[RequestId], plan: &Plan) {
        let rows = self.in_flight.iter().chain([plan]).flat_map(Plan::rows);
        let rows: Vec<_> = rows.map(|row| row.request).collect();
        let cannot_start = |id: &RequestId| {
            let seen = &self.seen[id];
            let salt = seen.submission.salt;
            let computes = |other: &RequestId| self.seen[other].submission.salt == salt;
            // Another row may compute its next page.
            let shares = seen.submission.use_cache && self.setup.page_sharing != PageSharing::None;
            let is_copy = |other: &RequestId| self.seen[other].group == seen.group;
            let waits = |other: &RequestId| is_copy(other) || shares && computes(other);
            seen.rows_in_flight > 0 || rows.iter().any(waits)
        };
        let waits = |seen: &Seen| {
            let is_allowed =
                seen.submission.max_tokens == Some(0) || seen.generated() < seen.allowed;
            seen.ended.is_none() && !seen.paused && is_allowed
        };
        let level = |seen: &Seen| {
            let left = seen.rank.saturating_sub(self.now).as_secs_f64().ceil();
            left.min(MAX_PRIORITY.into()) as u8
        };
        for id in started {
            let own = &self.seen[id];
            for (at, other_id) in self.order.iter().enumerate() {
                let other = &self.seen[other_id];
                if other.started || !waits(other) {
                    continue;
                }
                if other.submission.tenant == own.submission.tenant {
                    let own_at = self.order.iter().position(|order| order == id);
                    let is_behind = (own.rank, own_at) < (other.rank, Some(at));
                    assert!(is_behind, "{id:?} overtook {other_id:?} of its tenant");
                } else if level(other) < level(own) {
                    let mut before = self.order.iter().filter(|before| {
                        let seen = &self.seen[*before];
                        let is_one = seen.submission.tenant == other.submission.tenant;
                        is_one && waits(seen) && seen.rank <= other.rank
                    });
                    let is_blocked = before.any(cannot_start);
                    assert!(is_blocked, "{id:?} overtook {other_id:?}");
                }
            }
        }
    }

    /// A fork is a copy of the request that has its parent, and lacks the last token of their prompt.
    fn check_forks(&mut self, plan: &Plan) {
        let admitted = plan.admissions().iter();
        let admitted = admitted.map(|admission| (admission.sequence, admission.request));
        let restored = plan.restores().iter();
        let restored = restored.map(|restore| (restore.sequence, restore.request));
        let seen = self.seen.iter();
        let running = seen.filter_map(|(id, seen)| Some((seen.sequence?, *id)));
        // Which request each sequence is, or is forked from.
        let mut sources: HashMap<_, _> = running.chain(admitted).chain(restored).collect();
        for fork in plan.forks() {
            let source = sources[&fork.parent];
            let group = self.seen[&source].group;
            let seen = self.seen.get_mut(&fork.request).unwrap();
            assert_ne!(source, fork.request);
            assert_eq!((group, 0), (seen.group, seen.generated()));
            assert_eq!(fork.token_count + 1, seen.submission.prompt_tokens);
            let is_first = self.order[group] == fork.request;
            assert!(!is_first || seen.submission.use_cache);
            seen.source = Some(source);
            sources.insert(fork.sequence, source);
            self.fork_count += 1;
        }
    }

    fn check_rows(&self, plan: &Plan) {
        let config = self.scheduler.config();
        assert!(plan.rows().len() as u32 <= config.max_sequences);
        assert!(
            plan.token_count() <= config.token_budget,
            "{} tokens",
            plan.token_count()
        );
        let mut prefill_tokens = 0;
        let mut decode_rows = 0;
        for (at, row) in plan.rows().iter().enumerate() {
            let seen = &self.seen[&row.request];
            assert_eq!(seen.ended, None, "an ended request is in a plan");
            assert!(!seen.paused, "a paused request is in a plan");
            assert!(
                plan.rows()[..at]
                    .iter()
                    .all(|other| other.request != row.request)
            );
            let end = row.first_position + row.token_count;
            let known = seen.text.len() as u32;
            assert!(
                end % config.page_tokens == 0 || end >= known,
                "a row ends within a page"
            );
            assert_eq!(
                row.samples,
                end >= known && seen.submission.max_tokens != Some(0)
            );
            let drawn = seen.generated() + seen.sampling;
            assert!(!row.samples || drawn < seen.allowed, "not allowed yet");
            assert!(
                end <= self.setup.sequence_tokens,
                "longer than a sequence may be"
            );
            let is_new = seen.sequence != Some(row.sequence);
            if row.token_count == 1 && end > seen.submission.prompt_tokens && !is_new {
                decode_rows += 1;
            } else {
                prefill_tokens += row.token_count;
            }
            match plan.tokens(row.tokens) {
                [] => assert_eq!((row.token_count, row.first_position), (1, known)),
                tokens => assert_eq!(
                    tokens,
                    &seen.text[row.first_position as usize..end as usize]
                ),
            }
        }
        if self.setup.has_itl_target && decode_rows > 0 {
            let floor = (config.token_budget / 4 / config.page_tokens * config.page_tokens)
                .max(config.page_tokens);
            let left = (15_000u32.saturating_sub(700 * decode_rows)) / 600;
            assert!(
                prefill_tokens <= left.max(floor),
                "{prefill_tokens} next to {decode_rows}"
            );
        }
    }

    /// Drafts are in one step at a time, and no more than budget and texts have room for.
    fn check_drafts(&self, plan: &Plan) {
        let in_flight = self.in_flight.front().map_or(0, Plan::draft_count);
        assert!(in_flight == 0 || plan.is_empty(), "drafts are in flight");
        assert!(plan.draft_count() <= self.setup.max_draft_tokens);
        assert!(plan.draft_count() == 0 || self.in_flight.is_empty());
        for row in plan.rows().iter().filter(|row| !row.drafts.is_empty()) {
            let seen = &self.seen[&row.request];
            let most = seen.submission.max_tokens.unwrap_or(u32::MAX);
            let left = most.min(seen.allowed.saturating_add(seen.ahead)) - seen.generated();
            assert!(row.samples && row.token_count == 1);
            assert!(row.drafts.len() <= MAX_DRAFTS.min(left as usize - 1));
            let end = row.first_position + row.token_count + row.drafts.len() as u32;
            assert!(end <= self.setup.sequence_tokens);
        }
    }

    /// Whether nothing is planned because the step in flight has drafts, or the next one should have some.
    fn waits_for_step(&self, plan: &Plan) -> bool {
        let Some(step) = self.in_flight.front() else {
            return false;
        };
        let mut live = self.seen.values().filter(|seen| seen.ended.is_none());
        let may_draft = self.setup.max_draft_tokens > 0 && live.any(|seen| seen.is_guessed);
        plan.is_empty() && (step.draft_count() > 0 || may_draft)
    }

    /// Follows which request has which sequence.
    fn follow_sequences(&mut self, plan: &Plan) {
        if plan.resets_engine() {
            for seen in self.seen.values_mut() {
                (seen.sequence, seen.caught_up) = (None, false);
            }
        }
        for number in plan.releases() {
            for seen in self
                .seen
                .values_mut()
                .filter(|seen| seen.sequence == Some(*number))
            {
                (seen.sequence, seen.caught_up) = (None, false);
            }
        }
        let admitted = plan
            .admissions()
            .iter()
            .map(|admission| (admission.request, admission.sequence));
        let restored = plan
            .restores()
            .iter()
            .map(|restore| (restore.request, restore.sequence));
        let forked = plan.forks().iter();
        let forked = forked.map(|fork| (fork.request, fork.sequence));
        for (request, sequence) in admitted.chain(restored).chain(forked) {
            let seen = self.seen.get_mut(&request).unwrap();
            assert_eq!(seen.sequence.replace(sequence), None);
            seen.excused = false;
        }
    }

    /// A request whose text lacks one token is in each step, unless it is held, paused, preempted or not
    /// allowed more.
    fn check_decode_rows(&self, plan: &Plan) {
        for (id, seen) in &self.seen {
            let has_more = seen
                .submission
                .max_tokens
                .unwrap_or(self.context_tokens() + 1 - seen.submission.prompt_tokens)
                .min(seen.allowed)
                > seen.generated() + seen.sampling;
            let must = seen.ended.is_none() && seen.sequence.is_some() && seen.caught_up;
            if must && !seen.paused && !seen.excused && has_more {
                let is_there = plan.rows().iter().any(|row| row.request == *id);
                assert!(is_there, "{id:?} misses a step: {seen:?}");
            }
        }
    }

    fn wait(&mut self) {
        let Some(plan) = self.in_flight.pop_front() else {
            return;
        };
        let (number, duration, finished) = self.engine.wait();
        self.now += duration;
        assert_eq!(number, plan.step());
        let outcome = match &finished {
            Finished::Done(outcomes) => StepOutcome::Done(outcomes),
            Finished::Failed => StepOutcome::Failed,
        };
        let events = self
            .scheduler
            .apply(number, outcome, self.now)
            .unwrap()
            .collect();
        if let Finished::Failed = finished {
            self.step_after_fault = true;
            self.in_flight.clear();
            for seen in self.seen.values_mut() {
                (seen.rows_in_flight, seen.sampling, seen.excused) = (0, 0, false);
                seen.dropped = 0;
                seen.faults += u32::from(seen.sequence.take().is_some());
                seen.caught_up = false;
            }
            self.take_events(events, None);
            return;
        }
        let Finished::Done(outcomes) = finished else {
            return;
        };
        let ids = plan.rows().iter().map(|row| row.request);
        let tokens: HashMap<_, _> = ids.map(|id| (id, self.seen[&id].generated())).collect();
        let mut runs = Vec::new(); // requests and tokens of rows with drafts
        for (row, outcome) in plan.rows().iter().zip(&outcomes) {
            let seen = self.seen.get_mut(&row.request).unwrap();
            let is_dropped = row.samples && seen.sampling <= seen.dropped;
            seen.dropped -= u32::from(is_dropped);
            if let (RowOutcome::Drafted { held, .. }, false) = (outcome, is_dropped)
                && seen.ended.is_none()
            {
                runs.push((row.request, held + 1));
            }
            seen.rows_in_flight -= 1;
            seen.sampling -= u32::from(row.samples);
            let has_failed = !matches!(outcome, RowOutcome::Ok(_) | RowOutcome::Drafted { .. });
            let is_repeated = is_dropped || has_failed;
            seen.excused = seen.rows_in_flight > 0 && (seen.excused || is_repeated);
            let is_prompt = row.token_count > 1 || tokens[&row.request] == 0;
            if is_prompt && is_repeated {
                seen.caught_up = false; // it is repeated
            }
            let forks = self.in_flight.iter().flat_map(Plan::forks);
            for fork in forks.filter(|_| has_failed) {
                let seen = self.seen.get_mut(&fork.request).unwrap();
                if seen.source == Some(row.request) && row.first_position < fork.token_count {
                    (seen.excused, seen.caught_up) = (true, false);
                }
            }
        }
        self.take_events(events, Some((&plan, &outcomes)));
        for (id, count) in runs {
            let seen = &self.seen[&id];
            let (before, left) = (tokens[&id], seen.run_limit - tokens[&id]);
            let is_whole = seen.generated() - before == count.min(left);
            assert!(seen.ended.is_some() || is_whole, "{id:?} of {count}");
        }
    }

    /// Checks events against the text of the request alone; returns the requests that started.
    fn take_events(
        &mut self,
        events: Vec<Event>,
        step: Option<(&Plan, &[RowOutcome])>,
    ) -> Vec<RequestId> {
        let mut started = Vec::new();
        let context_tokens = self.context_tokens();
        for Event { request, kind } in events {
            let seen = self.seen.get_mut(&request).unwrap();
            assert_eq!(seen.ended, None, "{kind:?} after the end");
            match kind {
                EventKind::Started { cached_tokens } => {
                    assert!(!seen.started);
                    assert!(cached_tokens < seen.submission.prompt_tokens);
                    assert!(
                        cached_tokens == 0
                            || seen.submission.copies > 1
                            || seen.submission.use_cache
                                && self.setup.page_sharing != PageSharing::None
                    );
                    seen.started = true;
                    started.push(request);
                }
                EventKind::Token {
                    token,
                    index,
                    row,
                    offset,
                    drafts,
                } => {
                    assert_eq!(index, seen.generated());
                    assert!(index < seen.run_limit, "not allowed");
                    assert_eq!(
                        token,
                        self.engine.solo_token(&seen.text),
                        "the text of the request alone"
                    );
                    let (plan, outcomes) = step.expect("tokens come from steps");
                    let planned = &plan.rows()[row as usize];
                    assert_eq!(planned.request, request);
                    assert_eq!(planned.drafts.len(), drafts as usize);
                    let run = match outcomes[row as usize] {
                        RowOutcome::Drafted { held, token } => {
                            [&plan.tokens(planned.drafts)[..held as usize], &[token]].concat()
                        }
                        RowOutcome::Ok(Some(token)) => vec![token],
                        outcome => panic!("a token of {outcome:?}"),
                    };
                    assert_eq!(run[offset as usize], token);
                    assert!(seen.submission.ignore_end || token != END_TOKEN);
                    seen.text.push(token);
                }
                EventKind::Ended(end) => {
                    let max_tokens = seen.submission.max_tokens;
                    assert_eq!(end.generated_tokens, seen.generated());
                    assert_eq!(end.prompt_tokens, seen.submission.prompt_tokens);
                    assert!(seen.generated() <= max_tokens.unwrap_or(u32::MAX));
                    match end.reason {
                        EndReason::Length => assert_eq!(max_tokens, Some(seen.generated())),
                        EndReason::ContextFull => {
                            assert_eq!(max_tokens, None);
                            assert_eq!(seen.text.len() as u32, context_tokens + 1);
                        }
                        EndReason::EndToken(token) => {
                            let alone = self.engine.solo_token(&seen.text);
                            assert_eq!((token, token), (END_TOKEN, alone));
                        }
                        EndReason::EngineFault => assert_eq!(seen.faults, 2),
                        _ => {}
                    }
                    assert!(seen.faults < 2 || end.reason == EndReason::EngineFault);
                    seen.ended = Some(end.reason);
                }
                other => panic!("unknown event {other:?}"),
            }
        }
        started
    }

    fn play(&mut self, ops: &[Op]) {
        for op in ops {
            self.run(op);
        }
        self.finish();
    }

    /// Without further trouble all requests end, and nothing is left.
    fn finish(&mut self) {
        (self.fail_row, self.fail_step) = (None, false);
        for id in self.order.clone() {
            if self.seen[&id].ended.is_none() {
                self.resume(id);
                self.allow(id, None);
            }
        }
        let mut steps = 0;
        while !self.scheduler.is_idle() {
            self.run(&Op::Guess(5, steps % 7));
            self.run(&Op::Step);
            self.run(&Op::Step);
            self.run(&Op::Wait);
            steps += 1;
            assert!(steps < 3_000, "requests never end");
        }
        self.run(&Op::Step); // carries out the last releases
        for (id, seen) in &self.seen {
            assert!(seen.ended.is_some(), "{id:?} has no end");
        }
        let stats = self.scheduler.stats();
        assert_eq!(
            (
                stats.running,
                stats.waiting,
                stats.held_pages,
                stats.saved_pages
            ),
            (0, 0, 0, 0)
        );
        assert_eq!(stats.free_pages + stats.cached_pages, self.setup.page_count);
        assert_eq!(self.engine.saved_count(), 0);
        assert_eq!(self.scheduler.next_expiry(), None);
    }
}

fn play(setup: &Setup, ops: &[Op]) -> World<SimulatedEngine> {
    let mut world = World::simulated(setup);
    world.play(ops);
    world
}

/// The same ones in each run, unless their number is given.
fn histories(default: u32, seed: u64) -> ProptestConfig {
    let cases = std::env::var("SCHEDULER_HISTORIES")
        .ok()
        .and_then(|count| count.parse().ok());
    ProptestConfig {
        failure_persistence: None,
        max_shrink_iters: 1_000,
        rng_seed: cases.map_or(RngSeed::Fixed(seed), |_: u32| RngSeed::Random),
        ..ProptestConfig::with_cases(cases.unwrap_or(default))
    }
}

// 10,000 together, as two tests that run at once.
proptest! {
    #![proptest_config(histories(5_000, 15))]
    #[test]
    fn every_history_keeps_the_rules(setup in setups(), ops in vec(ops(), 0..50)) {
        play(&setup, &ops);
    }
}

proptest! {
    #![proptest_config(histories(5_000, 16))]
    #[test]
    fn every_other_history_keeps_the_rules(setup in setups(), ops in vec(ops(), 0..50)) {
        play(&setup, &ops);
    }
}

proptest! {
    #![proptest_config(histories(300, 15))]
    #[test]
    fn equal_histories_have_equal_plans(setup in setups(), ops in vec(ops(), 0..50)) {
        let (first, second) = (play(&setup, &ops), play(&setup, &ops));
        prop_assert_eq!(first.plans, second.plans);
    }

    #[test]
    fn texts_are_the_same_with_and_without_the_cache(
        setup in setups(),
        submissions in vec(submissions(), 1..12),
    ) {
        let mut ops = Vec::new();
        for mut submission in submissions {
            submission.deadline = None;
            ops.extend([Op::Submit(submission), Op::Step, Op::Wait]);
        }
        let ends = |page_sharing| {
            let (max_queued, max_queued_tokens) = (64, u64::MAX);
            let setup = Setup { page_sharing, max_queued, max_queued_tokens, ..setup.clone() };
            let world = play(&setup, &ops);
            let texts = world.order.iter().map(|id| {
                let seen = &world.seen[id];
                (seen.text.clone(), seen.ended)
            });
            texts.collect::<Vec<_>>()
        };
        let alone = ends(PageSharing::None);
        prop_assert_eq!(&ends(PageSharing::Cached), &alone);
    }
}

#[cfg(feature = "text")]
mod on_the_host {
    use super::*;
    use host_engine::HostEngine;
    use worker_cuda::Purpose;

    proptest! {
        #![proptest_config(histories(60, 15))]

        /// The same histories, with longer texts. Scheduler and engine agree on pages, and the ledger is as before.
        #[test]
        fn histories_on_the_host_engine_keep_the_rules(setup in setups(), ops in vec(ops(), 0..50)) {
            let page_count = 6 + setup.page_count % 5;
            let setup = Setup {
                page_tokens: 64,
                sequence_tokens: 256,
                scale: 7,
                page_count,
                max_sequences: setup.max_sequences + 3,
                max_queued_tokens: u64::from(4 * page_count * 64),
                loses_saves: false,
                page_sharing: PageSharing::Cached,
                ..setup
            };
            let model = models::tiny();
            let memory = || model.context().memory(Purpose::Any).unwrap().current_bytes;
            let before = memory();
            let mut world = World::new(&setup, |config, _| HostEngine::new(&model, config));
            world.play(&ops);
            drop(world);
            prop_assert_eq!(memory(), before);
        }
    }
}
