//! The rules of the scheduler by small examples, with exact plans.
#![cfg(feature = "scheduler")]

use std::collections::VecDeque;
use std::time::Duration;

use worker_cuda::scheduler::{
    ApplyError, Config, Costs, EndReason, EventKind, MAX_PRIORITY, PageKey, PageSharing, Plan,
    Refusal, Request, RequestId, RowOutcome, Salt, Scheduler, StepOutcome, Token,
};

const ZERO: Duration = Duration::ZERO;

fn ms(count: u64) -> Duration {
    Duration::from_millis(count)
}

/// Pages of 4 positions, 100 of them; 4 sequences; 16 tokens a step.
fn small() -> Config {
    let mut config = Config::host(100);
    config.page_tokens = 4;
    config.max_sequences = 4;
    config.token_budget = 16;
    config.max_sequence_tokens = 400;
    config.max_queued_tokens = 1600;
    config
}

fn scheduler(config: Config) -> Scheduler {
    Scheduler::new(config).unwrap()
}

/// A prompt that has no page in common with one of another `family`.
fn prompt(family: u32, length: u32) -> Vec<Token> {
    (0..length).map(|i| 1000 * family + i).collect()
}

fn submit(scheduler: &mut Scheduler, family: u32, length: u32, max_tokens: u32) -> RequestId {
    submit_at(scheduler, family, length, max_tokens, ZERO)
}

fn submit_at(
    scheduler: &mut Scheduler,
    family: u32,
    length: u32,
    max_tokens: u32,
    now: Duration,
) -> RequestId {
    let tokens = prompt(family, length);
    let mut request = Request::new(&tokens);
    request.max_tokens = Some(max_tokens);
    scheduler.submit(&request, now).unwrap()
}

/// The rows of a plan: (request, first position, tokens, whether it samples).
fn rows(plan: &Plan) -> Vec<(RequestId, u32, u32, bool)> {
    let rows = plan.rows().iter();
    rows.map(|row| {
        (
            row.request,
            row.first_position,
            row.token_count,
            row.samples,
        )
    })
    .collect()
}

/// Plans a step, and ends it with `token` sampled by each row that samples.
fn step(scheduler: &mut Scheduler, now: Duration, token: Token) -> Plan {
    let plan = scheduler.schedule(now).clone();
    if !plan.rows().is_empty() {
        apply(scheduler, &plan, token);
    }
    plan
}

/// Ends a step with `token` sampled by each row that samples; returns the events.
fn apply(scheduler: &mut Scheduler, plan: &Plan, token: Token) -> Vec<(RequestId, EventKind)> {
    let outcomes: Vec<_> = plan
        .rows()
        .iter()
        .map(|row| RowOutcome::Ok(row.samples.then_some(token)))
        .collect();
    apply_outcomes(scheduler, plan, &outcomes)
}

fn apply_outcomes(
    scheduler: &mut Scheduler,
    plan: &Plan,
    outcomes: &[RowOutcome],
) -> Vec<(RequestId, EventKind)> {
    let events = scheduler
        .apply(plan.step(), StepOutcome::Done(outcomes), ZERO)
        .unwrap();
    let events = events.map(|event| (event.request, event.kind)).collect();
    scheduler.audit().unwrap();
    events
}

/// Runs until nothing is left; returns why each request ended, in order.
fn finish(scheduler: &mut Scheduler, now: Duration) -> Vec<(RequestId, EndReason)> {
    let mut ends = Vec::new();
    while !scheduler.is_idle() {
        let plan = scheduler.schedule(now).clone();
        let events: Vec<_> = match plan.rows() {
            [] => scheduler
                .events()
                .map(|event| (event.request, event.kind))
                .collect(),
            _ => apply(scheduler, &plan, 7),
        };
        for (request, kind) in events {
            if let EventKind::Ended(end) = kind {
                ends.push((request, end.reason));
            }
        }
    }
    ends
}

fn reason_of(events: &[(RequestId, EventKind)], request: RequestId) -> Option<EndReason> {
    events.iter().find_map(|(id, kind)| match kind {
        EventKind::Ended(end) if *id == request => Some(end.reason),
        _ => None,
    })
}

// ---- The token budget ----

#[test]
fn a_step_has_every_decode_row_then_prompts_in_progress_then_admissions() {
    let mut scheduler = scheduler(small());
    let a = submit(&mut scheduler, 1, 10, 5);
    let b = submit(&mut scheduler, 2, 30, 5);
    let c = submit(&mut scheduler, 3, 9, 5);

    // 6 tokens are left for b: one page. 2 are left for c: less than a page.
    let first = step(&mut scheduler, ZERO, 7);
    assert_eq!(rows(&first), [(a, 0, 10, true), (b, 0, 4, false)]);
    // 15 tokens are left for b: up to position 19, so to the page boundary at 16. c has no page again.
    let second = step(&mut scheduler, ZERO, 7);
    assert_eq!(rows(&second), [(a, 10, 1, true), (b, 4, 12, false)]);
    let third = step(&mut scheduler, ZERO, 7);
    assert_eq!(rows(&third), [(a, 11, 1, true), (b, 16, 14, true)]);
    // Both decode. c has 14 tokens and needs 9.
    let fourth = step(&mut scheduler, ZERO, 7);
    assert_eq!(
        rows(&fourth),
        [(a, 12, 1, true), (b, 30, 1, true), (c, 0, 9, true)]
    );
    assert_eq!(fourth.token_count(), 11);
}

#[test]
fn the_next_step_is_planned_before_the_last_one_is_read() {
    let mut scheduler = scheduler(small());
    let a = submit(&mut scheduler, 1, 3, 3);

    let first = scheduler.schedule(ZERO).clone();
    let second = scheduler.schedule(ZERO).clone();
    assert_eq!(first.tokens(first.rows()[0].tokens), [1000, 1001, 1002]);
    // The token comes from the device.
    assert_eq!(rows(&second), [(a, 3, 1, true)]);
    assert!(second.rows()[0].tokens.is_empty());
    let third = scheduler.schedule(ZERO).clone();
    assert!(third.rows().is_empty());
    assert_eq!(scheduler.steps_in_flight(), 2);

    let events = apply(&mut scheduler, &first, 50);
    let token = EventKind::Token {
        token: 50,
        index: 0,
        row: 0,
        offset: 0,
        drafts: 0,
    };
    assert_eq!(
        events,
        [(a, EventKind::Started { cached_tokens: 0 }), (a, token)]
    );
    let third = scheduler.schedule(ZERO).clone();
    assert_eq!(rows(&third), [(a, 4, 1, true)]);
    assert_eq!((first.step(), second.step(), third.step()), (1, 2, 3));
    apply(&mut scheduler, &second, 51);

    // Its last token is in flight.
    assert!(scheduler.schedule(ZERO).rows().is_empty());
    let events = apply(&mut scheduler, &third, 52);
    assert_eq!(
        events[0],
        (
            a,
            EventKind::Token {
                token: 52,
                index: 2,
                row: 0,
                offset: 0,
                drafts: 0,
            }
        )
    );
    assert_eq!(reason_of(&events, a), Some(EndReason::Length));
    assert!(scheduler.is_idle());
}

#[test]
fn a_token_computed_after_the_end_is_not_reported() {
    let mut config = small();
    config.end_tokens = vec![2];
    let mut scheduler = scheduler(config);
    let a = submit(&mut scheduler, 1, 3, 9);
    let first = scheduler.schedule(ZERO).clone();
    let second = scheduler.schedule(ZERO).clone();

    let events = apply(&mut scheduler, &first, 2);
    assert_eq!(reason_of(&events, a), Some(EndReason::EndToken(2)));
    let EventKind::Ended(end) = events[1].1 else {
        panic!("{events:?}")
    };
    assert_eq!(
        (end.prompt_tokens, end.cached_tokens, end.generated_tokens),
        (3, 0, 0)
    );
    let third = scheduler.schedule(ZERO).clone();
    assert_eq!((third.releases(), third.rows()), (&[0][..], &[][..]));
    assert!(!scheduler.is_idle());
    assert!(apply(&mut scheduler, &second, 50).is_empty());
    assert!(scheduler.is_idle());
}

#[test]
fn an_itl_target_shrinks_prompts_to_what_the_costs_leave_and_at_least_a_quarter() {
    let mut config = small();
    config.token_budget = 64;
    config.itl_target = Some(ms(20));
    let mut scheduler = scheduler(config);
    let costs = |prefill_us| Costs {
        step: ms(5),
        decode_row: ms(1),
        prefill_token: Duration::from_micros(prefill_us),
        restore_page: ZERO,
        lone_step: ZERO,
        ..Costs::default()
    };
    let a = submit(&mut scheduler, 1, 3, 50);
    let b = submit(&mut scheduler, 2, 300, 5);

    // No costs are known yet, and nothing decodes: the whole budget.
    scheduler.set_costs(costs(500));
    let plan = step(&mut scheduler, ZERO, 7);
    assert_eq!(rows(&plan), [(a, 0, 3, true), (b, 0, 60, false)]);
    // 20 - 5 - 1 = 14 ms: 28 tokens.
    let plan = step(&mut scheduler, ZERO, 7);
    assert_eq!(rows(&plan), [(a, 3, 1, true), (b, 60, 28, false)]);
    // 14 tokens of 1 ms would fit; a quarter of the budget is 16.
    scheduler.set_costs(costs(1000));
    let plan = step(&mut scheduler, ZERO, 7);
    assert_eq!(rows(&plan), [(a, 4, 1, true), (b, 88, 16, false)]);
    // 35 tokens fit, the page boundary is 32.
    scheduler.set_costs(costs(400));
    let plan = step(&mut scheduler, ZERO, 7);
    assert_eq!(rows(&plan), [(a, 5, 1, true), (b, 104, 32, false)]);
    // Unknown costs limit nothing.
    scheduler.set_costs(Costs::default());
    let plan = step(&mut scheduler, ZERO, 7);
    assert_eq!(rows(&plan), [(a, 6, 1, true), (b, 136, 60, false)]);
}

// ---- The order of admissions ----

/// The order in which requests start, one sequence at a time.
fn starts(scheduler: &mut Scheduler, now: Duration) -> Vec<RequestId> {
    let mut order: Vec<RequestId> = Vec::new();
    while !scheduler.is_idle() {
        let plan = step(scheduler, now, 7);
        order.extend(plan.admissions().iter().map(|admission| admission.request));
    }
    order
}

fn one_at_a_time() -> Config {
    let mut config = small();
    config.max_sequences = 1;
    config
}

#[test]
fn lower_priorities_go_first_and_equal_ones_in_order_of_arrival() {
    let mut scheduler = scheduler(one_at_a_time());
    let ids: Vec<_> = [3, 0, 1, 0, 3]
        .into_iter()
        .map(|priority| {
            let tokens = prompt(1, 3);
            let mut request = Request::new(&tokens);
            request.max_tokens = Some(1);
            request.priority = priority;
            scheduler.submit(&request, ZERO).unwrap()
        })
        .collect();

    assert_eq!(
        starts(&mut scheduler, ZERO),
        [ids[1], ids[3], ids[2], ids[0], ids[4]]
    );
}

#[test]
fn a_waiting_request_moves_up_by_one_priority_a_second() {
    let mut scheduler = scheduler(one_at_a_time());
    let mut submit = |priority, tenant, at| {
        let tokens = prompt(1, 3);
        let mut request = Request::new(&tokens);
        (request.max_tokens, request.priority, request.tenant) = (Some(1), priority, tenant);
        scheduler.submit(&request, ms(at)).unwrap()
    };
    let low = submit(2, 0, 0); // at 2000 ms as urgent as one of priority 0
    let before = submit(0, 0, 1999);
    let after = submit(0, 0, 2001);
    let other_tenant = submit(1, 1, 1001); // priority 1 until 2001 ms, then 0

    // At 2000 ms `low` is at priority 0 too; `before` ranks before it.
    let order = starts(&mut scheduler, ms(2000));
    assert_eq!(order, [before, low, after, other_tenant]);
}

#[test]
fn tenants_take_turns_by_the_tokens_computed_for_them() {
    let mut config = one_at_a_time();
    config.page_sharing = PageSharing::None;
    let mut scheduler = scheduler(config); // a turn is 16 tokens
    let mut submit = |tenant, length| {
        let tokens = prompt(1, length);
        let mut request = Request::new(&tokens);
        (request.max_tokens, request.tenant) = (Some(1), tenant);
        scheduler.submit(&request, ZERO).unwrap()
    };
    let a: Vec<_> = (0..5).map(|_| submit(1, 8)).collect();
    let b: Vec<_> = (0..5).map(|_| submit(2, 8)).collect();
    let long = submit(3, 48); // three turns at once: then it is behind by two
    let c: Vec<_> = (0..2).map(|_| submit(3, 4)).collect();

    let order = starts(&mut scheduler, ZERO);
    let expected = [
        a[0], a[1], b[0], b[1], long, a[2], a[3], b[2], b[3], a[4], b[4], c[0], c[1],
    ];
    assert_eq!(order, expected);
}

#[test]
fn a_flood_of_urgent_requests_delays_an_unimportant_one_by_its_priority_in_seconds_at_most() {
    let mut scheduler = scheduler(one_at_a_time());
    let tokens = prompt(1, 3);
    let mut request = Request::new(&tokens);
    (request.max_tokens, request.priority) = (Some(1), MAX_PRIORITY);
    let unimportant = scheduler.submit(&request, ZERO).unwrap();
    request.priority = 0;
    for tenth in 0.. {
        // Twice as many as can be served.
        let now = ms(100 * tenth);
        for _ in 0..2 {
            scheduler.submit(&request, now).unwrap();
        }
        let plan = step(&mut scheduler, now, 7);
        if plan.admissions()[0].request == unimportant {
            // Then those that were there before 15 s are served: twice 150, of which 150 were.
            assert!((ms(15_000)..=ms(31_000)).contains(&now), "{now:?}");
            return;
        }
        assert!(now < ms(60_000), "it starves");
    }
}

// ---- Pages ----

#[test]
fn an_admission_leaves_three_percent_of_the_pages_free() {
    let mut config = small();
    config.token_budget = 400;
    let mut scheduler = scheduler(config);
    let a = submit(&mut scheduler, 1, 200, 2); // 50 of 100 pages
    let b = submit(&mut scheduler, 2, 189, 2); // 48: two would be left
    let c = submit(&mut scheduler, 3, 4, 2); // small, and behind b
    let plan = step(&mut scheduler, ZERO, 7);
    assert_eq!(rows(&plan), [(a, 0, 200, true)]);
    scheduler.cancel(b);
    let b = submit(&mut scheduler, 2, 184, 2); // 46; a takes its 51st now
    scheduler.cancel(c);
    let plan = step(&mut scheduler, ZERO, 7);
    assert_eq!(rows(&plan), [(a, 200, 1, true), (b, 0, 184, true)]);
    assert_eq!(scheduler.stats().held_pages, 46); // a has ended
}

#[test]
fn pages_of_a_prompt_in_progress_are_not_given_to_others() {
    let mut scheduler = scheduler(small());
    let a = submit(&mut scheduler, 1, 240, 2); // 60 pages, 4 a step
    let b = submit(&mut scheduler, 2, 152, 2); // 38
    let first = step(&mut scheduler, ZERO, 7);
    assert_eq!(rows(&first), [(a, 0, 16, false)]);
    for _ in 1..14 {
        step(&mut scheduler, ZERO, 7);
    }
    // The last 16 of a; then b may not start before a has ended.
    let plan = step(&mut scheduler, ZERO, 7);
    assert_eq!(rows(&plan), [(a, 224, 16, true)]);
    let plan = step(&mut scheduler, ZERO, 7);
    assert_eq!(rows(&plan), [(a, 240, 1, true)]);
    assert_eq!(step(&mut scheduler, ZERO, 7).admissions()[0].request, b);
}

#[test]
fn a_single_request_may_have_every_page() {
    let mut scheduler = scheduler(small());
    let tokens = prompt(1, 398);
    let a = scheduler.submit(&Request::new(&tokens), ZERO).unwrap();
    assert_eq!(finish(&mut scheduler, ZERO), [(a, EndReason::ContextFull)]);

    let tokens = prompt(2, 400);
    let b = scheduler.submit(&Request::new(&tokens), ZERO).unwrap();
    let mut generated = 0;
    while !scheduler.is_idle() {
        let plan = scheduler.schedule(ZERO).clone();
        let events = apply(&mut scheduler, &plan, 7);
        generated += events
            .iter()
            .filter(|(_, kind)| matches!(kind, EventKind::Token { .. }))
            .count();
        if let Some(reason) = reason_of(&events, b) {
            assert_eq!(reason, EndReason::ContextFull);
        }
    }
    assert_eq!(generated, 1);
}

/// 10 pages of 4; rows of up to 16 tokens. No reserve, so that sequences meet the limit.
fn tight() -> Config {
    let mut config = small();
    config.page_count = 10;
    config.token_budget = 40;
    config.reserve_percent = 0;
    config.page_sharing = PageSharing::None;
    config
}

#[test]
fn short_of_pages_the_least_computed_of_the_lowest_priority_is_preempted() {
    let mut scheduler = scheduler(tight());
    let mut submit = |family, length, priority| {
        let tokens = prompt(family, length);
        let mut request = Request::new(&tokens);
        (request.max_tokens, request.priority) = (Some(20), priority);
        scheduler.submit(&request, ZERO).unwrap()
    };
    let urgent = submit(1, 4, 0); // 1 page; the least computed and the oldest
    let long = submit(2, 20, 1); // 5 pages
    let short = submit(3, 8, 1); // 2 pages
    let middle = submit(4, 7, 0); // 2 pages
    let plan = step(&mut scheduler, ZERO, 7);
    assert_eq!(rows(&plan).len(), 4);

    // Three rows need a new page, none is free: `short` goes, of which two pages come back.
    let plan = step(&mut scheduler, ZERO, 8);
    assert_eq!(
        rows(&plan),
        [
            (urgent, 4, 1, true),
            (middle, 7, 1, true),
            (long, 20, 1, true)
        ]
    );
    assert_eq!(plan.releases().len(), 1);
    assert_eq!(scheduler.stats().preemptions, 1);
    assert_eq!(
        (scheduler.stats().running, scheduler.stats().waiting),
        (3, 1)
    );

    // `middle` reaches a boundary: `long` is the only one of priority 1 now.
    let plan = step(&mut scheduler, ZERO, 8);
    assert_eq!(rows(&plan), [(urgent, 5, 1, true), (middle, 8, 1, true)]);
    // 10 - 2 - 3 pages are free: `long` with its 6 pages and `short` wait, in this order.
    let plan = step(&mut scheduler, ZERO, 8);
    assert!(plan.admissions().is_empty());
    let ends = finish(&mut scheduler, ZERO);
    let order: Vec<_> = ends.iter().map(|(id, _)| *id).collect();
    assert_eq!(order, [urgent, middle, long, short]);
    assert!(ends.iter().all(|(_, reason)| *reason == EndReason::Length));
}

#[test]
fn a_preempted_text_is_computed_again_and_continues() {
    let mut scheduler = scheduler(tight());
    let a = submit(&mut scheduler, 1, 16, 20);
    let b = submit(&mut scheduler, 2, 16, 20);
    for token in 70..75 {
        step(&mut scheduler, ZERO, token);
    }
    let plan = step(&mut scheduler, ZERO, 75); // a takes the page
    assert_eq!(rows(&plan), [(a, 20, 1, true)]);
    scheduler.cancel(a);
    let plan = scheduler.schedule(ZERO).clone();
    assert_eq!(rows(&plan), [(b, 0, 21, true)]);
    let mut text = prompt(2, 16);
    text.extend(70..75);
    assert_eq!(plan.tokens(plan.rows()[0].tokens), text);
    let events = apply(&mut scheduler, &plan, 80);
    assert_eq!(
        events.last().unwrap(),
        &(
            b,
            EventKind::Token {
                token: 80,
                index: 5,
                row: 0,
                offset: 0,
                drafts: 0,
            }
        )
    );
}

#[test]
fn a_preempted_sequence_is_saved_if_restoring_takes_less_time() {
    for (restore_us, max_saved_pages, is_saved) in [
        (999, 5, true),
        (999, 4, false),
        (4200, 5, false),
        (4199, 5, true),
    ] {
        let mut config = tight();
        config.max_saved_pages = max_saved_pages;
        let mut scheduler = scheduler(config);
        scheduler.set_costs(Costs {
            prefill_token: Duration::from_micros(1050), // 20 tokens: 21 ms, 5 pages of 4.2 ms
            restore_page: Duration::from_micros(restore_us),
            ..Costs::default()
        });
        let a = submit(&mut scheduler, 1, 16, 20);
        let b = submit(&mut scheduler, 2, 16, 20);
        for token in 70..75 {
            step(&mut scheduler, ZERO, token);
        }
        let plan = step(&mut scheduler, ZERO, 75);
        assert_eq!(plan.releases(), [1]);
        assert_eq!(
            plan.saves().len(),
            usize::from(is_saved),
            "{restore_us} us, {max_saved_pages}"
        );
        assert_eq!(scheduler.stats().saved_pages, if is_saved { 5 } else { 0 });
        scheduler.cancel(a);
        let plan = step(&mut scheduler, ZERO, 80);
        if !is_saved {
            assert_eq!(rows(&plan), [(b, 0, 21, true)]);
            continue;
        }
        let restore = plan.restores()[0];
        assert_eq!((restore.request, restore.token_count), (b, 20));
        let mut text = prompt(2, 16);
        text.extend(70..74);
        assert_eq!(plan.tokens(restore.tokens), text);
        assert_eq!(rows(&plan), [(b, 20, 1, true)]);
        assert_eq!(plan.tokens(plan.rows()[0].tokens), [74]);
        assert_eq!(
            (scheduler.stats().saved_pages, scheduler.stats().held_pages),
            (0, 6)
        );
    }
}

#[test]
fn what_was_saved_is_dropped_with_its_request() {
    let mut config = tight();
    config.max_saved_pages = 10;
    let mut scheduler = scheduler(config);
    scheduler.set_costs(Costs {
        prefill_token: ms(1),
        ..Costs::default()
    });
    submit(&mut scheduler, 1, 16, 20);
    let b = submit(&mut scheduler, 2, 16, 20);
    for token in 70..76 {
        step(&mut scheduler, ZERO, token);
    }
    assert_eq!(scheduler.stats().saved_pages, 5);
    scheduler.cancel(b);
    assert_eq!(step(&mut scheduler, ZERO, 76).dropped_saves(), [b]);
    assert_eq!(scheduler.stats().saved_pages, 0);
    scheduler.audit().unwrap();
}

// ---- The prefix cache ----

#[test]
fn a_prompt_finds_the_pages_of_an_ended_request() {
    let mut scheduler = scheduler(small());
    submit(&mut scheduler, 1, 10, 3);
    let first = step(&mut scheduler, ZERO, 7);
    assert!(first.publishes().is_empty());
    let second = step(&mut scheduler, ZERO, 8);
    let publish = second.publishes()[0];
    assert_eq!((publish.sequence, publish.first_page), (0, 0));
    let keys: Vec<PageKey> = second.keys(publish.keys).to_vec();
    assert_eq!(keys.len(), 2);
    // Position 11 completes a page of prompt and generated tokens.
    step(&mut scheduler, ZERO, 9);
    let last = step(&mut scheduler, ZERO, 0);
    assert_eq!(
        (
            last.publishes()[0].first_page,
            last.publishes()[0].keys.len()
        ),
        (2, 1)
    );
    assert_eq!(last.releases(), [0]);
    assert_eq!(
        (scheduler.stats().cached_pages, scheduler.stats().held_pages),
        (3, 0)
    );

    // The conversation continues: 10 tokens, 3 generated, 2 new ones.
    let mut tokens = prompt(1, 10);
    tokens.extend([7, 8, 9, 500, 501]);
    let id = scheduler.submit(&Request::new(&tokens), ZERO).unwrap();
    let plan = scheduler.schedule(ZERO).clone();
    let admission = plan.admissions()[0];
    assert_eq!(plan.keys(admission.keys)[..2], keys);
    assert_eq!(plan.tokens(admission.tokens), &tokens[..12]);
    assert_eq!(rows(&plan), [(id, 12, 3, true)]);
    let events = apply(&mut scheduler, &plan, 7);
    assert_eq!(events[0], (id, EventKind::Started { cached_tokens: 12 }));
    assert_eq!(
        (
            scheduler.stats().queried_tokens,
            scheduler.stats().cached_tokens
        ),
        (25, 12)
    );
}

#[test]
fn the_last_token_of_a_prompt_is_always_computed() {
    for (length, cached) in [(8, 4), (9, 8)] {
        let mut scheduler = scheduler(small());
        for _ in 0..2 {
            let id = submit(&mut scheduler, 1, length, 1);
            let plan = step(&mut scheduler, ZERO, 7);
            let first = if id.eq(&plan.rows()[0].request) {
                plan.rows()[0].first_position
            } else {
                99
            };
            assert!(first == 0 || first == cached, "{first}");
            assert_eq!(first == 0, scheduler.stats().cached_tokens == 0);
            step(&mut scheduler, ZERO, 7);
        }
        assert_eq!(scheduler.stats().cached_tokens, u64::from(cached));
    }
}

#[test]
fn salts_models_and_requests_without_cache_do_not_share() {
    let salts = [
        Salt::default(),
        Salt::new(&[1; 32], b"a", b""),
        Salt::new(&[1; 32], b"a", b"x"),
    ];
    let mut scheduler = scheduler(small());
    let tokens = prompt(1, 9);
    for (salt, use_cache, cached) in [
        (salts[0], true, 0),
        (salts[1], true, 0),
        (salts[2], true, 0),
        (salts[1], false, 0),
        (salts[1], true, 8),
    ] {
        let mut request = Request::new(&tokens);
        (request.max_tokens, request.salt, request.use_cache) = (Some(1), salt, use_cache);
        scheduler.submit(&request, ZERO).unwrap();
        let plan = step(&mut scheduler, ZERO, 7);
        assert_eq!(plan.rows()[0].first_position, cached);
    }

    let keys = |model_digest| {
        let mut config = small();
        config.model_digest = model_digest;
        let mut scheduler = Scheduler::new(config).unwrap();
        submit(&mut scheduler, 1, 9, 2);
        step(&mut scheduler, ZERO, 7);
        let plan = step(&mut scheduler, ZERO, 7);
        plan.keys(plan.publishes()[0].keys).to_vec()
    };
    assert_eq!(keys([0; 32]), keys([0; 32]));
    assert_ne!(keys([0; 32])[0], keys([1; 32])[0]);
}

#[test]
fn a_request_waits_while_another_row_computes_its_next_page() {
    let mut config = small();
    config.token_budget = 8;
    let mut scheduler = scheduler(config);
    let ids = [1, 1].map(|family| submit(&mut scheduler, family, 18, 3));
    let other_tenants_tokens = prompt(2, 3);
    let mut other = Request::new(&other_tenants_tokens);
    (other.max_tokens, other.tenant) = (Some(1), 1);

    let first = scheduler.schedule(ZERO).clone();
    assert_eq!(rows(&first), [(ids[0], 0, 8, false)]);
    let second = scheduler.schedule(ZERO).clone();
    assert_eq!(rows(&second), [(ids[0], 8, 8, false)]);
    apply(&mut scheduler, &first, 7);
    // 16 tokens are computed or in flight. The second request waits for page 2; another tenant does not.
    let other = scheduler.submit(&other, ZERO).unwrap();
    let third = scheduler.schedule(ZERO).clone();
    assert_eq!(rows(&third), [(ids[0], 16, 2, true), (other, 0, 3, true)]);
    apply(&mut scheduler, &second, 7);
    // Pages 0 to 3 are there; the last two tokens fill no page.
    let fourth = scheduler.schedule(ZERO).clone();
    assert_eq!(
        rows(&fourth),
        [(ids[0], 18, 1, true), (ids[1], 16, 2, true)]
    );
    assert_eq!(fourth.admissions()[0].keys.len(), 4);
    assert_eq!(
        scheduler.stats().held_pages,
        6 + 1,
        "four shared, one each, one of the other tenant"
    );
}

#[test]
fn a_request_that_waited_in_a_plan_without_rows_is_in_the_next() {
    let mut scheduler = scheduler(small());
    let ids = [1, 1].map(|family| submit(&mut scheduler, family, 9, 1));
    let first = scheduler.schedule(ZERO).clone();
    assert_eq!(rows(&first), [(ids[0], 0, 9, true)]);
    // Nothing else is left of the first request, and the second waits for its pages.
    assert!(scheduler.schedule(ZERO).rows().is_empty());
    apply(&mut scheduler, &first, 7);
    let second = scheduler.schedule(ZERO).clone();
    assert_eq!(rows(&second), [(ids[1], 8, 1, true)]);
}

// ---- Copies ----

/// Copies of a request of family 1.
fn submit_copies(
    scheduler: &mut Scheduler,
    length: u32,
    max_tokens: u32,
    copies: u32,
) -> Vec<RequestId> {
    let tokens = prompt(1, length);
    let mut request = Request::new(&tokens);
    request.max_tokens = Some(max_tokens);
    let mut ids = Vec::new();
    scheduler
        .submit_copies(&request, copies, ZERO, &mut ids)
        .unwrap();
    ids
}

/// The forks of a plan: (request, sequence of the parent, tokens).
fn forks(plan: &Plan) -> Vec<(RequestId, u32, u32)> {
    let forks = plan.forks().iter();
    forks
        .map(|fork| (fork.request, fork.parent, fork.token_count))
        .collect()
}

#[test]
fn copies_are_forks_of_the_first_and_compute_the_last_token_of_the_prompt() {
    let mut scheduler = scheduler(small());
    let ids = submit_copies(&mut scheduler, 18, 1, 3);

    let first = scheduler.schedule(ZERO).clone();
    assert_eq!(rows(&first), [(ids[0], 0, 16, false)]);
    let second = scheduler.schedule(ZERO).clone();
    assert_eq!(rows(&second), [(ids[0], 16, 2, true)]);
    apply(&mut scheduler, &first, 7);
    // The prompt's end is in flight, and the first copy ends with it.
    let third = scheduler.schedule(ZERO).clone();
    let parent = first.rows()[0].sequence;
    assert_eq!(forks(&third), [(ids[1], parent, 17), (ids[2], parent, 17)]);
    assert_eq!(rows(&third), [(ids[1], 17, 1, true), (ids[2], 17, 1, true)]);
    let stats = scheduler.stats();
    assert_eq!(stats.held_pages, 4 + 3, "four shared, one each");
    assert_eq!((stats.queried_tokens, stats.cached_tokens), (54, 34));
    apply(&mut scheduler, &second, 7);
    apply(&mut scheduler, &third, 7);
    assert!(scheduler.is_idle());
}

#[test]
fn a_prompt_is_computed_once_for_all_copies_with_and_without_the_cache() {
    for page_sharing in [PageSharing::None, PageSharing::Cached] {
        for (length, copies, max_tokens) in
            (1..=21).flat_map(|length| [(length, 2, 0), (length, 4, 1), (length, 16, 3)])
        {
            let mut config = small();
            (config.page_sharing, config.max_sequences) = (page_sharing, 16);
            config.token_budget = 20;
            let mut scheduler = scheduler(config);
            submit_copies(&mut scheduler, length, max_tokens, copies);

            let (mut in_flight, mut computed) = (VecDeque::new(), 0);
            while !scheduler.is_idle() {
                let plan = scheduler.schedule(ZERO).clone();
                let rows = plan.rows().iter();
                let prompts = rows.filter(|row| row.first_position < length);
                computed += prompts.map(|row| row.token_count).sum::<u32>();
                let waits = plan.rows().is_empty();
                in_flight.extend((!waits).then_some(plan));
                if waits || in_flight.len() == 2 {
                    let plan = in_flight.pop_front().expect("a step in flight");
                    apply(&mut scheduler, &plan, 7);
                }
                scheduler.audit().unwrap();
            }

            assert_eq!(
                computed,
                length + copies - 1,
                "{copies} copies of {length} tokens, {page_sharing:?}"
            );
        }
    }
}

#[test]
fn forks_lose_what_the_row_in_flight_does_not_compute() {
    let mut scheduler = scheduler(small());
    let ids = submit_copies(&mut scheduler, 18, 3, 2);
    let first = scheduler.schedule(ZERO).clone();
    let second = scheduler.schedule(ZERO).clone();
    apply(&mut scheduler, &first, 7);
    let third = scheduler.schedule(ZERO).clone();
    assert_eq!(rows(&third), [(ids[0], 18, 1, true), (ids[1], 17, 1, true)]);

    let mut report = |plan: &Plan, outcomes: &[RowOutcome]| {
        let outcome = StepOutcome::Done(outcomes);
        let events = scheduler.apply(plan.step(), outcome, ZERO).unwrap().count();
        scheduler.audit().unwrap();
        (events, scheduler.stats().held_pages)
    };
    assert_eq!(report(&second, &[RowOutcome::Held]).1, 4);
    report(&third, &[RowOutcome::Skipped; 2]);

    let fourth = scheduler.schedule(ZERO).clone();
    assert_eq!(
        rows(&fourth),
        [(ids[0], 16, 2, true), (ids[1], 16, 2, true)]
    );
    assert_eq!(forks(&fourth), []);
}

#[test]
fn forks_keep_the_pages_of_a_parent_that_is_cancelled_and_share_them() {
    let mut scheduler = scheduler(small());
    let ids = submit_copies(&mut scheduler, 13, 3, 2);
    let first = scheduler.schedule(ZERO).clone();
    let second = scheduler.schedule(ZERO).clone();
    assert_eq!(forks(&second), [(ids[1], 0, 12)]);
    scheduler.cancel(ids[0]);
    apply(&mut scheduler, &first, 7);

    // The fork publishes what the parent has computed, and another request finds it.
    let other = submit(&mut scheduler, 1, 13, 1);
    let third = scheduler.schedule(ZERO).clone();
    let publish = third.publishes()[0];
    let fork = second.forks()[0].sequence;
    assert_eq!((publish.sequence, publish.keys.len()), (fork, 3));
    assert_eq!(rows(&third), [(ids[1], 13, 1, true), (other, 12, 1, true)]);
}

#[test]
fn a_copy_that_began_while_the_first_was_paused_is_the_parent() {
    let mut scheduler = scheduler(small());
    let ids = submit_copies(&mut scheduler, 6, 2, 3);
    scheduler.pause(ids[0], ZERO);
    let first = scheduler.schedule(ZERO).clone();
    assert_eq!(rows(&first), [(ids[1], 0, 6, true)]);
    scheduler.resume(ids[0]);

    let second = scheduler.schedule(ZERO).clone();

    let parent = first.rows()[0].sequence;
    assert_eq!(forks(&second), [(ids[0], parent, 5), (ids[2], parent, 5)]);
}

#[test]
fn a_copy_forks_no_row_that_is_held_and_computes_the_prompt_if_no_other_does() {
    let mut scheduler = scheduler(small());
    let ids = submit_copies(&mut scheduler, 18, 3, 2);
    let first = scheduler.schedule(ZERO).clone();
    scheduler.allow_late(ids[0], 0);
    let second = scheduler.schedule(ZERO).clone();
    assert!(second.rows()[0].is_late);
    scheduler.hold(ids[0]);
    apply(&mut scheduler, &first, 7);
    assert!(scheduler.schedule(ZERO).rows().is_empty());

    let held = StepOutcome::Done(&[RowOutcome::Held]);
    scheduler.apply(second.step(), held, ZERO).unwrap();

    let third = scheduler.schedule(ZERO).clone();
    assert_eq!(rows(&third), [(ids[1], 16, 2, true)]);
    assert_eq!(forks(&third), []);
}

#[test]
fn a_first_copy_without_cache_computes_every_position() {
    let mut scheduler = scheduler(small());
    let tokens = prompt(1, 6);
    let mut request = Request::new(&tokens);
    (request.max_tokens, request.use_cache) = (Some(2), false);
    let mut ids = Vec::new();
    scheduler
        .submit_copies(&request, 3, ZERO, &mut ids)
        .unwrap();
    scheduler.pause(ids[0], ZERO);
    let first = scheduler.schedule(ZERO).clone();
    assert_eq!(rows(&first), [(ids[1], 0, 6, true)]);
    scheduler.resume(ids[0]);

    let second = scheduler.schedule(ZERO).clone();

    assert_eq!(
        rows(&second),
        [
            (ids[1], 6, 1, true),
            (ids[0], 0, 6, true),
            (ids[2], 5, 1, true)
        ]
    );
}

#[test]
fn cached_pages_make_way_and_the_longest_unused_go_first() {
    let mut config = tight();
    config.page_sharing = PageSharing::Cached;
    let mut scheduler = scheduler(config); // 10 pages
    for family in [1, 2] {
        submit(&mut scheduler, family, 17, 1);
        step(&mut scheduler, ZERO, 7);
        step(&mut scheduler, ZERO, 7);
    }
    assert_eq!(
        (scheduler.stats().free_pages, scheduler.stats().cached_pages),
        (2, 8)
    );
    // 6 pages: 2 free ones, and of the first prompt's 4 the last ones first.
    submit(&mut scheduler, 3, 21, 1);
    step(&mut scheduler, ZERO, 7);
    step(&mut scheduler, ZERO, 7);
    let mut cached = |family| {
        let before = scheduler.stats().cached_tokens;
        submit(&mut scheduler, family, 17, 1);
        step(&mut scheduler, ZERO, 7);
        step(&mut scheduler, ZERO, 7);
        scheduler.stats().cached_tokens - before
    };
    assert_eq!(cached(2), 16);
    assert_eq!(cached(1), 0);
}

// ---- The door ----

#[test]
fn refusals_have_the_numbers_and_change_nothing() {
    let mut config = small();
    config.max_queued = 3;
    config.max_queued_tokens = 50;
    config.max_tenants = 2;
    let mut scheduler = scheduler(config);
    let long = prompt(1, 401);
    let mut ids = Vec::new();
    let mut refuse = |change: &dyn Fn(&mut Request<'_>), length: usize, copies| {
        let mut request = Request::new(&long[..length]);
        request.max_tokens = Some(1);
        change(&mut request);
        let refusal = scheduler
            .submit_copies(&request, copies, ms(5), &mut ids)
            .unwrap_err();
        assert_eq!(
            refusal.is_temporary(),
            refusal.to_string().contains(" wait, ")
        );
        refusal
    };

    let none = |_: &mut Request<'_>| {};
    assert_eq!(refuse(&none, 0, 1), Refusal::EmptyPrompt);
    let too_long = refuse(&none, 401, 1);
    assert_eq!(
        too_long,
        Refusal::TooLong {
            prompt_tokens: 401,
            max_tokens: 1,
            limit: 400
        }
    );
    let too_long = refuse(&|request| request.max_tokens = Some(392), 10, 1);
    assert_eq!(
        too_long,
        Refusal::TooLong {
            prompt_tokens: 10,
            max_tokens: 392,
            limit: 400
        }
    );
    let refused = refuse(&|request| request.stop_tokens = &[0; 17], 1, 1);
    assert_eq!(refused, Refusal::TooManyStopTokens { count: 17 });
    let refused = refuse(&|request| request.priority = 16, 1, 1);
    assert_eq!(refused, Refusal::NoSuchPriority { priority: 16 });
    let refused = refuse(&|request| request.tenant = 2, 1, 1);
    assert_eq!(
        refused,
        Refusal::NoSuchTenant {
            tenant: 2,
            max_tenants: 2
        }
    );
    let refused = refuse(&|request| request.deadline = Some(ms(3)), 1, 1);
    assert_eq!(refused, Refusal::DeadlinePassed { late: ms(2) });
    let refused = refuse(&none, 1, 4);
    assert_eq!(
        refused,
        Refusal::QueueFull {
            queued: 0,
            more: 4,
            limit: 3
        }
    );
    let refused = refuse(&none, 26, 2);
    assert_eq!(
        refused,
        Refusal::QueuedTokensFull {
            queued: 0,
            more: 52,
            limit: 50
        }
    );

    assert_eq!(ids, []);
    assert_eq!(scheduler.stats().refused, 9);
    assert!(scheduler.is_idle());
    submit(&mut scheduler, 1, 10, 391); // 400 positions: it fits
    scheduler
        .submit_copies(&Request::new(&long[..20]), 2, ms(5), &mut ids)
        .unwrap();
    let full = scheduler.submit(&Request::new(&long[..1]), ms(5));
    assert_eq!(
        full,
        Err(Refusal::QueueFull {
            queued: 3,
            more: 1,
            limit: 3
        })
    );
    // Requests that have started do not count.
    step(&mut scheduler, ms(5), 7);
    scheduler.submit(&Request::new(&long[..1]), ms(5)).unwrap();
    scheduler.audit().unwrap();
}

#[test]
fn a_queue_that_reserves_has_room_for_each_tenant() {
    let mut config = small();
    config.max_queued = 8;
    config.max_tenants = 3;
    config.reserves_queue = true;
    let mut scheduler = scheduler(config);
    let tokens = prompt(1, 4);
    let mut fill = |tenant, copies| {
        let mut request = Request::new(&tokens);
        request.tenant = tenant;
        let mut ids = Vec::new();
        loop {
            if let Err(refusal) = scheduler.submit_copies(&request, copies, ZERO, &mut ids) {
                return (ids.len(), refusal.to_string());
            }
        }
    };

    let (first, message) = fill(0, 2);
    let (second, _) = fill(1, 1);
    let (third, _) = fill(2, 1);

    assert_eq!((first, second, third), (4, 2, 1));
    assert_eq!(
        message,
        "4 requests of 16 tokens of this tenant wait, only 4 and 1584 more have room"
    );
    scheduler.audit().unwrap();
}

#[test]
fn defaults_are_those_of_the_backend() {
    let (cuda, host) = (Config::cuda(1000), Config::host(1000));
    assert_eq!((cuda.token_budget, cuda.max_sequences), (2048, 256));
    assert_eq!((host.token_budget, host.max_sequences), (256, 64));
    for config in [cuda, host] {
        assert_eq!(
            (config.page_tokens, config.max_sequence_tokens),
            (64, 64_000)
        );
        assert_eq!(
            (config.max_queued, config.max_queued_tokens),
            (1024, 256_000)
        );
        assert_eq!(
            (config.queue_timeout, config.pause_timeout),
            (ms(60_000), ms(30_000))
        );
        assert_eq!((config.reserve_percent, config.max_saved_pages), (3, 0));
        assert!(config.page_sharing == PageSharing::Cached && config.itl_target.is_none());
        Scheduler::new(config).unwrap();
    }
}

#[test]
fn limits_that_cannot_work_are_errors() {
    let refused = |change: fn(&mut Config)| {
        let mut config = Config::host(100);
        change(&mut config);
        Scheduler::new(config).unwrap_err().to_string()
    };
    assert_eq!(refused(|config| config.page_tokens = 0), "page_tokens is 0");
    assert_eq!(
        refused(|config| config.max_sequences = 0),
        "max_sequences is 0"
    );
    assert_eq!(refused(|config| config.page_count = 0), "page_count is 0");
    assert_eq!(
        refused(|config| config.max_sequence_tokens = 0),
        "max_sequence_tokens is 0"
    );
    assert_eq!(refused(|config| config.max_queued = 0), "max_queued is 0");
    assert_eq!(refused(|config| config.max_tenants = 0), "max_tenants is 0");
    let error = refused(|config| config.reserve_percent = 101);
    assert_eq!(error, "101 percent of the pages cannot be kept free");
    let error = refused(|config| config.max_sequences = 193);
    let expected = "a token budget of 256 is too small: 193 sequences and a quarter of it for prompts need 257";
    assert_eq!(error, expected);
    // Memory for all of them would be reserved.
    for (change, name) in [
        (
            (|config| config.max_queued = u32::MAX) as fn(&mut Config),
            "max_queued",
        ),
        (|config| config.max_tenants = u32::MAX, "max_tenants"),
        (|config| config.max_sequences = u32::MAX, "max_sequences"),
        (|config| config.token_budget = u32::MAX, "token_budget"),
        (|config| config.page_count = u32::MAX, "page_count"),
    ] {
        let error = refused(change);
        assert!(
            error.starts_with(&format!("{name} is 4294967295, at most ")),
            "{error}"
        );
    }
    let error = refused(|config| {
        (config.page_count, config.max_sequence_tokens) = (1 << 24, u32::MAX);
        (config.max_sequences, config.token_budget) = (1 << 16, 1 << 20);
    });
    assert!(
        error.starts_with("65536 sequences of 16777216 pages each"),
        "{error}"
    );
    let mut config = Config::host(100);
    config.max_sequences = 192;
    (config.max_queued, config.max_tenants) = (1 << 20, 1 << 20);
    Scheduler::new(config).unwrap();
}

// ---- Ends, pauses, times ----

#[test]
fn a_cancelled_request_is_in_no_later_plan_and_its_pages_are_free_in_the_next() {
    let mut scheduler = scheduler(small());
    let a = submit(&mut scheduler, 1, 30, 5);
    let b = submit(&mut scheduler, 2, 3, 5);
    let first = scheduler.schedule(ZERO).clone();
    assert_eq!(rows(&first), [(a, 0, 16, false)]);

    assert!(scheduler.cancel(a));
    assert!(!scheduler.cancel(a));
    let ends: Vec<_> = scheduler
        .events()
        .map(|event| (event.request, event.kind))
        .collect();
    assert_eq!(reason_of(&ends, a), Some(EndReason::Cancelled));
    let second = scheduler.schedule(ZERO).clone();
    assert_eq!(second.releases(), [0]);
    assert_eq!(rows(&second), [(b, 0, 3, true)]);
    assert_eq!(scheduler.stats().held_pages, 1);
    assert!(apply(&mut scheduler, &first, 7).is_empty() || scheduler.stats().running == 1);
    apply(&mut scheduler, &second, 7);
    assert!(scheduler.stop(b));
    let ends: Vec<_> = scheduler
        .events()
        .map(|event| (event.request, event.kind))
        .collect();
    assert_eq!(reason_of(&ends, b), Some(EndReason::Stopped));
    assert!(scheduler.is_idle());
}

#[test]
fn a_queued_request_expires_after_a_minute_and_a_started_one_does_not() {
    let mut scheduler = scheduler(one_at_a_time());
    let a = submit(&mut scheduler, 1, 3, 100);
    let b = submit_at(&mut scheduler, 2, 3, 1, ms(10));
    step(&mut scheduler, ms(20), 7);
    scheduler.events();
    assert_eq!(scheduler.next_expiry(), Some(ms(60_010)));
    step(&mut scheduler, ms(60_009), 7);
    assert_eq!(scheduler.stats().waiting, 1);
    let plan = scheduler.schedule(ms(60_010)).clone();
    assert_eq!(rows(&plan)[0].0, a);
    let events = apply(&mut scheduler, &plan, 7);
    assert_eq!(reason_of(&events, b), Some(EndReason::QueueTimeout));
    assert_eq!(scheduler.next_expiry(), None);
}

#[test]
fn a_deadline_ends_queued_and_running_requests() {
    let mut scheduler = scheduler(one_at_a_time());
    let tokens = prompt(1, 3);
    let mut request = Request::new(&tokens);
    request.deadline = Some(ms(100));
    let running = scheduler.submit(&request, ZERO).unwrap();
    request.deadline = Some(ms(50));
    let queued = scheduler.submit(&request, ZERO).unwrap();
    step(&mut scheduler, ms(49), 7);
    assert_eq!(scheduler.stats().waiting, 1);
    let ends = |scheduler: &mut Scheduler, now| {
        scheduler.schedule(now);
        let events: Vec<_> = scheduler
            .events()
            .map(|event| (event.request, event.kind))
            .collect();
        [reason_of(&events, running), reason_of(&events, queued)]
    };
    assert_eq!(
        ends(&mut scheduler, ms(50)),
        [None, Some(EndReason::Deadline)]
    );
    assert_eq!(
        ends(&mut scheduler, ms(100)),
        [Some(EndReason::Deadline), None]
    );
}

#[test]
fn a_paused_request_has_no_rows_and_ends_after_half_a_minute() {
    let mut scheduler = scheduler(small());
    let a = submit(&mut scheduler, 1, 3, 100);
    let b = submit(&mut scheduler, 2, 3, 100);
    step(&mut scheduler, ZERO, 7);
    scheduler.pause(a, ms(1000));
    scheduler.pause(a, ms(1500)); // it is paused already
    assert_eq!(rows(&step(&mut scheduler, ms(1000), 7)), [(b, 3, 1, true)]);
    scheduler.resume(a);
    assert_eq!(scheduler.next_expiry(), None);
    assert_eq!(
        rows(&step(&mut scheduler, ms(1000), 7)),
        [(a, 3, 1, true), (b, 4, 1, true)]
    );
    scheduler.pause(a, ms(2000));
    step(&mut scheduler, ms(31_999), 7);
    assert_eq!(scheduler.stats().running, 2);
    let plan = scheduler.schedule(ms(32_000)).clone();
    let events = apply(&mut scheduler, &plan, 7);
    assert_eq!(reason_of(&events, a), Some(EndReason::PauseTimeout));
}

#[test]
fn paused_sequences_make_way_for_others() {
    let mut scheduler = scheduler(tight()); // 10 pages
    let a = submit(&mut scheduler, 1, 16, 20);
    step(&mut scheduler, ZERO, 7);
    scheduler.pause(a, ZERO);
    let b = submit(&mut scheduler, 2, 28, 10); // 7 pages, 6 are free
    let plan = step(&mut scheduler, ZERO, 7);
    assert_eq!(
        (plan.releases(), rows(&plan)),
        (&[0][..], vec![(b, 0, 28, true)])
    );
    assert_eq!(
        (scheduler.stats().running, scheduler.stats().waiting),
        (1, 1)
    );
    step(&mut scheduler, ZERO, 7); // a is not admitted while it is paused
    scheduler.cancel(b);
    assert!(step(&mut scheduler, ZERO, 7).rows().is_empty());
    scheduler.resume(a);
    assert_eq!(rows(&step(&mut scheduler, ZERO, 7)), [(a, 0, 17, true)]);
}

#[test]
fn stop_tokens_end_a_text_unless_they_are_ignored() {
    let mut config = small();
    config.end_tokens = vec![2, 3];
    let mut scheduler = scheduler(config);
    let tokens = prompt(1, 3);
    for (stop_tokens, ignore_end, sampled, ends) in [
        (&[][..], false, 3, true),
        (&[][..], true, 3, false),
        (&[9][..], true, 9, true),
        (&[9][..], false, 8, false),
    ] {
        let mut request = Request::new(&tokens);
        (request.stop_tokens, request.ignore_end) = (stop_tokens, ignore_end);
        let id = scheduler.submit(&request, ZERO).unwrap();
        let plan = scheduler.schedule(ZERO).clone();
        let events = apply(&mut scheduler, &plan, sampled);
        let expected = ends.then_some(EndReason::EndToken(sampled));
        assert_eq!(reason_of(&events, id), expected);
        assert_eq!(scheduler.cancel(id), !ends);
    }
}

#[test]
fn without_tokens_to_generate_only_the_prompt_is_computed() {
    let mut scheduler = scheduler(small());
    let a = submit(&mut scheduler, 1, 18, 0);
    let first = scheduler.schedule(ZERO).clone();
    let second = scheduler.schedule(ZERO).clone();
    assert_eq!(rows(&first), [(a, 0, 16, false)]);
    assert_eq!(rows(&second), [(a, 16, 2, false)]);
    assert_eq!(reason_of(&apply(&mut scheduler, &first, 7), a), None);
    assert_eq!(
        reason_of(&apply(&mut scheduler, &second, 7), a),
        Some(EndReason::Length)
    );
}

// ---- Rows and steps that fail ----

#[test]
fn a_held_row_is_repeated_and_the_third_in_a_row_ends_the_request() {
    let mut scheduler = scheduler(small());
    let a = submit(&mut scheduler, 1, 3, 9);
    let first = scheduler.schedule(ZERO).clone();
    let second = scheduler.schedule(ZERO).clone();
    apply_outcomes(&mut scheduler, &first, &[RowOutcome::Held]);
    // The row that continues it comes back first.
    assert!(scheduler.schedule(ZERO).rows().is_empty());
    assert!(apply_outcomes(&mut scheduler, &second, &[RowOutcome::Skipped]).is_empty());
    let plan = scheduler.schedule(ZERO).clone();
    assert_eq!(rows(&plan), [(a, 0, 3, true)]);
    apply_outcomes(&mut scheduler, &plan, &[RowOutcome::Held]);
    step(&mut scheduler, ZERO, 7); // a good one: the count starts again
    for held in 1..=3 {
        let plan = scheduler.schedule(ZERO).clone();
        assert_eq!(rows(&plan), [(a, 3, 1, true)]);
        assert_eq!(plan.tokens(plan.rows()[0].tokens), [7]);
        let events = apply_outcomes(&mut scheduler, &plan, &[RowOutcome::Held]);
        assert_eq!(
            reason_of(&events, a),
            (held == 3).then_some(EndReason::Held)
        );
    }
    assert!(scheduler.is_idle());
}

#[test]
fn a_request_has_no_rows_past_the_tokens_that_are_allowed() {
    let mut scheduler = scheduler(small());
    let id = submit(&mut scheduler, 1, 6, 9);
    scheduler.allow(id, Some(0));
    assert!(scheduler.schedule(ZERO).rows().is_empty());

    scheduler.allow(id, Some(1));
    let plan = step(&mut scheduler, ZERO, 50);
    assert_eq!(rows(&plan), [(id, 0, 6, true)]);
    assert!(scheduler.schedule(ZERO).rows().is_empty());
    scheduler.allow(id, Some(2));
    let plan = step(&mut scheduler, ZERO, 51);
    assert_eq!(rows(&plan), [(id, 6, 1, true)]);
    assert_eq!(plan.tokens(plan.rows()[0].tokens), [50]);
}

#[test]
fn a_late_row_comes_before_its_token_is_allowed_and_again_if_it_is_held() {
    let mut scheduler = scheduler(small());
    let id = submit(&mut scheduler, 1, 6, 9);
    scheduler.allow_late(id, 1);
    let first = scheduler.schedule(ZERO).clone();
    let second = scheduler.schedule(ZERO).clone();
    assert_eq!(rows(&second), [(id, 6, 1, true)]);
    assert!(!first.rows()[0].is_late && second.rows()[0].is_late);
    apply(&mut scheduler, &first, 50);
    scheduler.allow_late(id, 1);
    scheduler.hold(id);
    scheduler.allow_late(id, 2);
    assert!(scheduler.schedule(ZERO).rows().is_empty());
    assert_eq!(
        apply_outcomes(&mut scheduler, &second, &[RowOutcome::Held]),
        []
    );

    let third = scheduler.schedule(ZERO).clone();
    assert_eq!(rows(&third), [(id, 6, 1, true)]);
    assert_eq!(third.tokens(third.rows()[0].tokens), [50]);
    let fourth = scheduler.schedule(ZERO).clone();
    assert!(!third.rows()[0].is_late && fourth.rows()[0].is_late);
    apply(&mut scheduler, &third, 51);
    scheduler.allow_late(id, 2);
    scheduler.hold(id);
    apply_outcomes(&mut scheduler, &fourth, &[RowOutcome::Held]);
    assert!(scheduler.schedule(ZERO).rows().is_empty());
    scheduler.allow_late(id, 3);
    let fifth = scheduler.schedule(ZERO).clone();
    assert_eq!(fifth.tokens(fifth.rows()[0].tokens), [51]);

    // A late row whose token is sampled is not dropped.
    let sixth = scheduler.schedule(ZERO).clone();
    apply(&mut scheduler, &fifth, 52);
    scheduler.allow_late(id, 3);
    scheduler.allow_late(id, 4);
    assert!(sixth.rows()[0].is_late);
    assert_eq!(apply(&mut scheduler, &sixth, 53).len(), 1);
    assert!(scheduler.audit().is_ok());
}

#[test]
fn a_token_that_is_not_allowed_any_more_is_dropped_and_drawn_again_when_it_is() {
    let mut scheduler = scheduler(small());
    let id = submit(&mut scheduler, 1, 7, 9);
    let first = scheduler.schedule(ZERO).clone();
    let second = scheduler.schedule(ZERO).clone();
    assert_eq!(rows(&second), [(id, 7, 1, true)]);
    apply(&mut scheduler, &first, 50);

    scheduler.allow(id, Some(1));
    // It was drawn before more was allowed.
    scheduler.allow(id, Some(2));
    assert_eq!(apply(&mut scheduler, &second, 99), []);
    scheduler.allow(id, Some(1));
    // Position 7 filled a page, which the engine gives back.
    let plan = scheduler.schedule(ZERO).clone();
    assert!(plan.rows().is_empty());
    let truncations: Vec<_> = plan.truncations().iter().collect();
    let sequence = first.rows()[0].sequence;
    assert_eq!(truncations.len(), 1);
    assert_eq!(
        (truncations[0].sequence, truncations[0].token_count),
        (sequence, 7)
    );

    scheduler.allow(id, None);
    let third = scheduler.schedule(ZERO).clone();
    assert_eq!(rows(&third), [(id, 7, 1, true)]);
    assert_eq!(third.tokens(third.rows()[0].tokens), [50]);
    let events = apply(&mut scheduler, &third, 51);
    let token = EventKind::Token {
        token: 51,
        index: 1,
        row: 0,
        offset: 0,
        drafts: 0,
    };
    assert_eq!(events, [(id, token)]);
}

#[test]
fn a_token_that_is_drawn_again_is_dropped_with_what_continues_it() {
    for is_late in [false, true] {
        let mut scheduler = scheduler(small());
        let id = submit(&mut scheduler, 1, 6, 9);
        if is_late {
            scheduler.allow_late(id, 1);
        }
        let first = scheduler.schedule(ZERO).clone();
        let second = scheduler.schedule(ZERO).clone();
        assert_eq!(second.rows()[0].is_late, is_late);
        apply(&mut scheduler, &first, 50);
        scheduler.allow(id, None);
        let third = scheduler.schedule(ZERO).clone();
        assert_eq!(rows(&third), [(id, 7, 1, true)]);

        assert!(scheduler.draw_again(id, 0));
        assert_eq!(apply(&mut scheduler, &second, 51), []);
        assert!(!scheduler.draw_again(id, 0));
        assert!(scheduler.schedule(ZERO).rows().is_empty());
        assert_eq!(apply(&mut scheduler, &third, 52), []);
        assert!(scheduler.schedule(ZERO).rows().is_empty());

        scheduler.allow(id, Some(2));
        let fourth = scheduler.schedule(ZERO).clone();
        assert_eq!(rows(&fourth), [(id, 6, 1, true)]);
        assert_eq!(fourth.tokens(fourth.rows()[0].tokens), [50]);
        assert_eq!(apply(&mut scheduler, &fourth, 53).len(), 1);
        assert!(scheduler.audit().is_ok());
    }
}

#[test]
fn a_row_that_cannot_sample_ends_its_request_only() {
    for (outcome, reason) in [
        (RowOutcome::EmptyMask, EndReason::EmptyMask),
        (RowOutcome::NotFinite, EndReason::NotFinite),
    ] {
        let mut scheduler = scheduler(small());
        let a = submit(&mut scheduler, 1, 3, 9);
        let b = submit(&mut scheduler, 2, 3, 9);
        let plan = scheduler.schedule(ZERO).clone();
        let events = apply_outcomes(&mut scheduler, &plan, &[outcome, RowOutcome::Ok(Some(7))]);
        assert_eq!(
            (reason_of(&events, a), reason_of(&events, b)),
            (Some(reason), None)
        );
        assert_eq!(rows(&step(&mut scheduler, ZERO, 7)), [(b, 3, 1, true)]);
    }
}

#[test]
fn after_a_failed_step_everything_is_computed_again_once() {
    let mut scheduler = scheduler(small());
    let a = submit(&mut scheduler, 1, 5, 9);
    step(&mut scheduler, ZERO, 50);
    let first = scheduler.schedule(ZERO).clone();
    let second = scheduler.schedule(ZERO).clone();
    assert_eq!((first.rows().len(), second.rows().len()), (1, 1));
    let failed = scheduler.apply(first.step(), StepOutcome::Failed, ZERO);
    assert_eq!(failed.unwrap().len(), 0, "the stream continues");
    assert_eq!(scheduler.steps_in_flight(), 0);
    assert_eq!(
        scheduler.stats().free_pages,
        100,
        "nothing is cached either"
    );

    let b = submit(&mut scheduler, 2, 3, 9);
    let plan = scheduler.schedule(ZERO).clone();
    assert!(plan.resets_engine() && plan.releases().is_empty() && plan.publishes().is_empty());
    assert_eq!(rows(&plan), [(a, 0, 6, true), (b, 0, 3, true)]);
    let mut text = prompt(1, 5);
    text.push(50);
    assert_eq!(plan.tokens(plan.rows()[0].tokens), text);
    let events = scheduler
        .apply(plan.step(), StepOutcome::Failed, ZERO)
        .unwrap();
    let events: Vec<_> = events.map(|event| (event.request, event.kind)).collect();
    assert_eq!(
        (reason_of(&events, a), reason_of(&events, b)),
        (Some(EndReason::EngineFault), None)
    );
    let plan = scheduler.schedule(ZERO).clone();
    assert!(plan.resets_engine());
    assert_eq!(rows(&plan), [(b, 0, 3, true)]);
    apply(&mut scheduler, &plan, 7);
    assert!(!scheduler.schedule(ZERO).resets_engine());
}

#[test]
fn an_engine_may_be_lost_with_and_without_steps_in_flight() {
    for in_flight in 0..=2 {
        let mut scheduler = scheduler(small());
        let a = submit(&mut scheduler, 1, 5, 9);
        step(&mut scheduler, ZERO, 50);
        for _ in 0..in_flight {
            assert_eq!(scheduler.schedule(ZERO).rows().len(), 1);
        }

        scheduler.lose_engine(ZERO);

        scheduler.audit().unwrap();
        assert_eq!(scheduler.steps_in_flight(), 0);
        let plan = step(&mut scheduler, ZERO, 51);
        assert!(plan.resets_engine());
        assert_eq!(rows(&plan), [(a, 0, 6, true)]);
    }
}

#[test]
fn outcomes_that_do_not_fit_change_nothing() {
    let mut scheduler = scheduler(small());
    submit(&mut scheduler, 1, 3, 9);
    let b = submit(&mut scheduler, 2, 30, 9);
    let plan = scheduler.schedule(ZERO).clone();
    let mut refused = |step, outcomes: &[RowOutcome]| {
        let error = scheduler
            .apply(step, StepOutcome::Done(outcomes), ZERO)
            .map(|_| ())
            .unwrap_err();
        (error, error.to_string())
    };
    let (ok, none) = (RowOutcome::Ok(Some(7)), RowOutcome::Ok(None));

    let (error, text) = refused(2, &[ok, none]);
    assert_eq!(
        error,
        ApplyError::NotTheOldest {
            step: 2,
            oldest: Some(1)
        }
    );
    assert_eq!(text, "step 2 is reported, the oldest in flight is 1");
    let (error, text) = refused(1, &[ok]);
    assert_eq!(
        error,
        ApplyError::RowCount {
            outcomes: 1,
            rows: 2
        }
    );
    assert_eq!(text, "1 outcomes of a step of 2 rows");
    let (error, text) = refused(1, &[none, none]);
    assert_eq!(
        error,
        ApplyError::Sampled {
            row: 0,
            samples: true
        }
    );
    assert_eq!(text, "row 0 has no sampled token");
    let (error, text) = refused(1, &[ok, ok]);
    assert_eq!(
        error,
        ApplyError::Sampled {
            row: 1,
            samples: false
        }
    );
    assert_eq!(text, "row 1 samples no token and has one");

    apply_outcomes(&mut scheduler, &plan, &[ok, none]);
    let error = scheduler
        .apply(1, StepOutcome::Failed, ZERO)
        .map(|_| ())
        .unwrap_err();
    assert_eq!(
        error,
        ApplyError::NotTheOldest {
            step: 1,
            oldest: None
        }
    );
    assert_eq!(error.to_string(), "step 1 is reported, none is in flight");
    assert_eq!(step(&mut scheduler, ZERO, 7).rows()[1].request, b);
}

#[test]
fn time_never_runs_backwards() {
    let mut scheduler = scheduler(one_at_a_time());
    submit_at(&mut scheduler, 1, 3, 1, ms(5000));
    let b = submit_at(&mut scheduler, 2, 3, 1, ZERO); // arrives at 5000 ms too
    assert_eq!(scheduler.next_expiry(), Some(ms(65_000)));
    assert_eq!(starts(&mut scheduler, ZERO)[1], b);
}
