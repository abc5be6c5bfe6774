//! A scheduler allocates nothing once it has seen as much work at once as there is: 100,000 requests of
//! several tenants, with shared prefixes, preemptions, cancels and pauses.
//!
//! The allocator of this program counts, so what is measured is the same on every machine.
#![cfg(feature = "scheduler")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::collections::VecDeque;
use std::time::Duration;

use worker_cuda::scheduler::{
    Config, Costs, EventKind, Request, RequestId, RowOutcome, Scheduler, StepOutcome, Token,
};

struct Counting;

thread_local! {
    // Of the test's own thread: the test harness has another one.
    static ALLOCATIONS: Cell<usize> = const { Cell::new(0) };
    static LIVE_BYTES: Cell<isize> = const { Cell::new(0) };
}

// SAFETY: every call goes to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        LIVE_BYTES.set(LIVE_BYTES.get() + layout.size() as isize);
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        LIVE_BYTES.set(LIVE_BYTES.get() - layout.size() as isize);
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const REQUESTS: u64 = 100_000;
const WARM_UP: u64 = 20_000;

/// A caller that allocates nothing either.
struct Caller {
    scheduler: Scheduler,
    now: Duration,
    random: u64,
    submitted: u64,
    ended: u64,
    tokens: u64,
    live: VecDeque<RequestId>,
    prompt: Vec<Token>,
    outcomes: [Vec<RowOutcome>; 2],
    in_flight: VecDeque<u64>,
}

impl Caller {
    fn next(&mut self, below: u64) -> u64 {
        self.random = self
            .random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.random >> 33) % below
    }

    /// One request, of one of 50 conversations.
    fn submit(&mut self) {
        let (family, length) = (self.next(50) as u32, 1 + self.next(40) as u32);
        self.prompt.clear();
        self.prompt.extend((0..length).map(|i| family * 100 + i));
        let (tenant, priority) = (self.next(8) as u32, self.next(4) as u8);
        let max_tokens = self.next(16) as u32;
        let mut request = Request::new(&self.prompt);
        (request.tenant, request.priority) = (tenant, priority);
        request.max_tokens = Some(max_tokens);
        request.deadline = Some(self.now + Duration::from_secs(30));
        let id = self.scheduler.submit(&request, self.now).unwrap();
        self.submitted += 1;
        self.live.push_back(id);
        if self.live.len() == 100 {
            let old = self.live.pop_front().unwrap();
            match self.next(4) {
                0 => drop(self.scheduler.cancel(old)),
                1 => self.scheduler.pause(old, self.now),
                2 => self.scheduler.resume(old),
                _ => {}
            }
        }
    }

    fn step(&mut self) {
        let plan = self.scheduler.schedule(self.now);
        if !plan.rows().is_empty() {
            let outcomes = &mut self.outcomes[self.in_flight.len()];
            outcomes.clear();
            let sampled = plan.rows().iter().map(|row| match row.drafts.len() as u32 {
                0 => RowOutcome::Ok(row.samples.then_some(row.first_position % 17)),
                drafts => RowOutcome::Drafted {
                    held: row.first_position % (drafts + 1),
                    token: 5,
                },
            });
            outcomes.extend(sampled);
            self.in_flight.push_back(plan.step());
        }
        let events = self.scheduler.events();
        self.ended += events
            .filter(|event| matches!(event.kind, EventKind::Ended(_)))
            .count() as u64;
    }

    fn wait(&mut self) {
        let Some(step) = self.in_flight.pop_front() else {
            return;
        };
        self.now += Duration::from_millis(2);
        let outcome = StepOutcome::Done(&self.outcomes[0]);
        for event in self.scheduler.apply(step, outcome, self.now).unwrap() {
            match event.kind {
                EventKind::Ended(_) => self.ended += 1,
                EventKind::Token { .. } => self.tokens += 1,
                _ => {}
            }
        }
        if self.now.as_millis().is_multiple_of(8) {
            for &id in &self.live {
                self.scheduler.propose(id, &[4, 3, 2, 1]);
            }
        }
        self.outcomes.swap(0, 1);
    }

    /// Submits up to `requests`, as fast as about 40 of them at once are served.
    fn run(&mut self, requests: u64) {
        while self.submitted < requests {
            while self.submitted < requests && self.submitted - self.ended < 40 {
                self.submit();
            }
            self.step();
            self.step();
            self.wait();
        }
    }
}

#[test]
fn a_hundred_thousand_requests_allocate_nothing_after_a_warm_up() {
    let mut config = Config::host(40);
    config.page_tokens = 8;
    config.max_sequences = 16;
    config.token_budget = 64;
    config.max_sequence_tokens = 64;
    config.max_saved_pages = 8;
    config.max_draft_tokens = 20;
    let mut scheduler = Scheduler::new(config).unwrap();
    scheduler.set_costs(Costs {
        prefill_token: Duration::from_micros(100),
        restore_page: Duration::from_micros(500),
        ..Costs::default()
    });
    let mut caller = Caller {
        scheduler,
        now: Duration::ZERO,
        random: 1,
        submitted: 0,
        ended: 0,
        tokens: 0,
        live: VecDeque::with_capacity(200),
        prompt: Vec::with_capacity(100),
        outcomes: [Vec::with_capacity(16), Vec::with_capacity(16)],
        in_flight: VecDeque::with_capacity(4),
    };

    caller.run(WARM_UP);
    caller.scheduler.audit().unwrap();
    let (allocations, live) = (ALLOCATIONS.get(), LIVE_BYTES.get());
    caller.run(REQUESTS);

    assert_eq!((ALLOCATIONS.get(), LIVE_BYTES.get()), (allocations, live));
    let stats = caller.scheduler.stats();
    assert!(
        stats.preemptions > 100
            && stats.cached_tokens > REQUESTS
            && stats.accepted_draft_tokens > REQUESTS / 10,
        "{stats:?}"
    );
    while !caller.scheduler.is_idle() {
        caller.step();
        caller.wait();
        caller.now += Duration::from_millis(10); // deadlines end those that are paused
    }
    caller.scheduler.schedule(caller.now);
    caller.scheduler.audit().unwrap();
    assert_eq!((caller.submitted, caller.ended), (REQUESTS, REQUESTS));
    assert!(caller.tokens > 2 * REQUESTS, "{} tokens", caller.tokens);
    assert_eq!(caller.scheduler.stats().held_pages, 0);
}
