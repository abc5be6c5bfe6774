//! Time of `schedule` and `apply` for a step of 256 sequences, with 10,000 requests in the queue. Requests
//! end and others are admitted meanwhile. `./dev bench` runs it.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use worker_cuda::scheduler::{
    Config, EventKind, Request, RowOutcome, Scheduler, StepOutcome, Token,
};

const SEQUENCES: usize = 256;
const QUEUED: u32 = 10_000;
const STEPS: usize = 4_000;
const WARM_UP: usize = 1_000;
const TARGET: Duration = Duration::from_micros(50);

/// Submits requests of 32 tenants until so many wait.
fn fill_queue(scheduler: &mut Scheduler, submitted: &mut u32) {
    while scheduler.stats().waiting < QUEUED {
        let number = *submitted;
        let prompt: [Token; 48] = std::array::from_fn(|at| number.wrapping_mul(31) + at as Token);
        let mut request = Request::new(&prompt);
        request.max_tokens = Some(100 + number % 100);
        request.tenant = number % 32;
        request.priority = (number % 3) as u8;
        scheduler
            .submit(&request, Duration::ZERO)
            .expect("room in the queue");
        *submitted += 1;
    }
}

fn main() {
    let mut config = Config::cuda(16_384);
    config.max_queued = QUEUED + 1;
    let mut scheduler = Scheduler::new(config).expect("a configuration that works");
    let mut submitted = 0;
    let (mut times, mut rows, mut ended) = (Vec::new(), 0, 0);
    let mut in_flight = VecDeque::new();
    for step in 0..WARM_UP + STEPS {
        fill_queue(&mut scheduler, &mut submitted);
        let begin = Instant::now();
        let plan = scheduler.schedule(Duration::ZERO);
        let mut spent = begin.elapsed();

        let samples: Vec<RowOutcome> = plan
            .rows()
            .iter()
            .map(|row| RowOutcome::Ok(row.samples.then_some(7)))
            .collect();
        if step >= WARM_UP {
            rows += samples.len();
        }
        in_flight.push_back((plan.step(), samples));
        if in_flight.len() == 2 {
            let (number, outcomes) = in_flight.pop_front().expect("two steps");
            let begin = Instant::now();
            let events = scheduler
                .apply(number, StepOutcome::Done(&outcomes), Duration::ZERO)
                .expect("the oldest step");
            ended += events
                .filter(|event| matches!(event.kind, EventKind::Ended(_)))
                .count();
            spent += begin.elapsed();
        }
        if step >= WARM_UP {
            times.push(spent);
        }
    }
    assert!(
        rows > STEPS * SEQUENCES * 9 / 10,
        "{rows} rows in {STEPS} steps"
    );
    assert!(ended > 1_000, "{ended} requests ended");
    times.sort_unstable();
    let median = times[times.len() / 2];
    println!(
        "schedule + apply, {} rows a step, {QUEUED} queued: minimum {:.1} us, median {:.1} us, \
         99 % {:.1} us; target {} us: {}",
        rows / STEPS,
        times[0].as_secs_f64() * 1e6,
        median.as_secs_f64() * 1e6,
        times[times.len() * 99 / 100].as_secs_f64() * 1e6,
        TARGET.as_micros(),
        if median <= TARGET { "met" } else { "missed" },
    );
}
