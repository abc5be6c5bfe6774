//! The engine thread: plans step n + 1 while step n runs.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::drafter;
use super::engine::{StepEngine, StepResults};
use super::event::Error;
use super::state::{Core, GuidedRow, SampledRows, Shared};
use super::stats::State;
use crate::core::callback::{caught, drop_caught};
use crate::core::error::{Error as EngineError, ErrorKind, Result};
use crate::llm::generate::costs::CostMeter;
use crate::llm::step::{LateRow, Sampling};
use crate::scheduler::{Plan, RequestId, STEPS_IN_FLIGHT, StepOutcome};

/// Bounds of the machine's time that a step waits for masks; between them it is half of the last step.
const LEAST_MASK_WAIT: Duration = Duration::from_micros(500);
const MOST_MASK_WAIT: Duration = Duration::from_millis(5);

/// A step that the engine computes, or that it refused.
struct InFlight {
    number: u64,
    rows: u32,
    tokens: u32,
    /// Rows that continue a text by one token, and their drafts.
    decode_rows: u32,
    submitted: Duration,
    begun: Instant,
    /// No step was in flight when it was planned, and the engine thread had not waited for requests.
    is_lone: bool,
    refused: Option<EngineError>,
    guided: Vec<GuidedRow>,
}

/// Drives the engine until the service ends or the device is lost.
pub(super) fn run(shared: &Shared, mut engine: Box<dyn StepEngine>) {
    let ended = caught(|| drive(shared, engine.as_mut()));
    let lost = match ended {
        Some(Ok(())) => None,
        Some(Err(error)) => Some(error),
        None => Some(EngineError::new(
            ErrorKind::Internal,
            "the engine thread panicked",
        )),
    };
    drop_caught(engine);
    shared.update(|core, now| {
        core.stats.state = State::Stopped;
        if let Some(error) = lost {
            core.stats.state = State::Lost;
            let error = Arc::new(error);
            core.fault = Some(error.clone());
            core.end_all(&Error::DeviceLost(error), now);
        }
    });
    let mut core = shared.lock();
    core.dispatcher = None;
    core.masks.close();
}

fn drive(shared: &Shared, engine: &mut dyn StepEngine) -> Result<()> {
    let mut in_flight = VecDeque::with_capacity(STEPS_IN_FLIGHT);
    let mut results = StepResults::default();
    let mut plan = Plan::default();
    let mut sampled = SampledRows::default();
    let mut late: Vec<RequestId> = Vec::new(); // rows of the latest step that are not sampled
    let (mut last_end, mut last_instant) = (Duration::ZERO, Instant::now());
    let mut has_waited = true; // for requests
    let mut mask_wait = LEAST_MASK_WAIT;
    let mut costs = CostMeter::new(shared.limits.restore_page);
    // Since the last step ended.
    let mut guess_time = Duration::ZERO;
    let mut wanted = Vec::new();
    let mut followed = Vec::new(); // requests whose drafts wait for masks
    let mut may_reopen = true;
    let mut core = shared.lock();
    loop {
        let is_refused = in_flight
            .back()
            .is_some_and(|step: &InFlight| step.refused.is_some());
        let may_plan = !is_refused && in_flight.len() < STEPS_IN_FLIGHT;
        if let Some(step) = in_flight
            .back_mut()
            .filter(|_| may_plan && !late.is_empty())
        {
            core = shared.wait_for_masks(core, &late, Core::waits_for_mask, mask_wait);
            let samplings = core.late_samplings(&late);
            drop(core);
            let rows: Vec<_> = samplings.iter().map(late_row).collect();
            step.refused = engine.sample(&rows).err();
            late.clear();
            core = shared.lock();
            continue;
        }
        if may_plan && !followed.is_empty() {
            core = shared.wait_for_masks(core, &followed, Core::waits_for_drafts, mask_wait);
            followed.clear();
        }
        let now = shared.clock.now();
        if core.drain_until.is_some_and(|until| until <= now) {
            core.end_all(&Error::ShutDown, now);
        }
        core.end_late(now);
        let mut was_submitted = false;
        if may_plan {
            core.scheduler.schedule_into(now, &mut plan);
            late.extend(
                plan.rows()
                    .iter()
                    .filter(|row| row.is_late)
                    .map(|row| row.request),
            );
            if !plan.rows().is_empty() {
                core.miss_masks(&late);
            }
            sampled.fill(&plan, &core.requests);
            core.flush(now, None, None);
            if !plan.is_empty() {
                // Requests come and go while the engine takes the step.
                drop(core);
                let is_lone = in_flight.is_empty() && !has_waited;
                let step = match submit(&plan, &mut sampled, engine, (now, is_lone)) {
                    Err(error) if error.kind() == ErrorKind::DeviceLost => {
                        let error = reopen(engine, &mut may_reopen, error)?;
                        in_flight.clear();
                        has_waited = true;
                        core = shared.lock();
                        core.restart(error, shared.clock.now());
                        continue;
                    }
                    submitted => submitted?,
                };
                core = shared.lock();
                for request in engine.lost_saves() {
                    core.scheduler.lose_saved(request);
                }
                if step.is_none() {
                    continue; // what came meanwhile may have rows
                }
                (was_submitted, has_waited) = (true, false);
                if step.as_ref().is_some_and(|step| step.refused.is_some()) {
                    late.clear();
                }
                in_flight.extend(step);
            }
        }
        if in_flight.is_empty() {
            if core.drain_until.is_some() && core.scheduler.is_idle() {
                return Ok(());
            }
            let expiry = core.scheduler.next_expiry();
            let times = [expiry, core.drain_until, core.next_late()];
            core = shared.wait(core, times.into_iter().flatten().min());
            has_waited = true;
        } else if !was_submitted || in_flight.len() == STEPS_IN_FLIGHT {
            drop(core);
            let Some(step) = in_flight.pop_front() else {
                return Ok(());
            };
            results.clear();
            let waited = match step.refused {
                Some(error) => Err(error),
                None => engine.wait(&mut results),
            };
            let waited = match waited {
                Err(error) if error.kind() == ErrorKind::DeviceLost => {
                    let error = reopen(engine, &mut may_reopen, error)?;
                    in_flight.clear();
                    late.clear();
                    has_waited = true;
                    core = shared.lock();
                    core.restart(error, shared.clock.now());
                    continue;
                }
                waited => waited,
            };
            let now = shared.clock.now();
            core = shared.lock();
            let begin = step.submitted.max(last_end);
            let full_begin = if step.is_lone { last_end } else { begin };
            last_end = now;
            let since = std::mem::replace(&mut last_instant, Instant::now()).max(step.begun);
            mask_wait = ((last_instant - since) / 2).clamp(LEAST_MASK_WAIT, MOST_MASK_WAIT);
            if waited.is_err() {
                in_flight.clear();
                late.clear();
            }
            core.check_crossings(&step.guided, results.outcomes(), now);
            let duration = now.saturating_sub(begin);
            // Guesses may have slowed down a step that was in flight.
            let is_slowed = !step.is_lone && guess_time > Duration::ZERO;
            if waited.is_ok() && !results.is_captured && !is_slowed {
                let (rows, prompt_tokens) = (step.decode_rows, step.tokens - step.decode_rows);
                let full_duration = now.saturating_sub(full_begin + guess_time);
                costs.add(rows, prompt_tokens, step.is_lone, full_duration);
                core.scheduler.set_costs(costs.costs());
            }
            let measured = (duration, step.rows, step.tokens);
            apply(&mut core, step.number, waited, &results, now, measured)?;
            let computed;
            let may_draft = in_flight.is_empty();
            (core, computed, guess_time) =
                drafter::guess(shared, core, &mut wanted, &mut followed, may_draft, engine);
            costs.add_guesses(computed, guess_time);
            if computed > 0 {
                core.scheduler.set_costs(costs.costs());
            }
        }
    }
}

/// Opens a lost device again, once in the life of a service. Returns why it was lost; an error if it stays so.
fn reopen(
    engine: &mut dyn StepEngine,
    may_reopen: &mut bool,
    lost: EngineError,
) -> Result<EngineError> {
    if !std::mem::take(may_reopen) {
        return Err(lost);
    }
    match engine.reopen() {
        Ok(()) => Ok(lost),
        Err(error) => Err(lost.with_context(format!("not opened again ({error})"))),
    }
}

fn late_row(sampling: &Option<Arc<Sampling>>) -> LateRow<'_> {
    sampling
        .as_ref()
        .map_or(LateRow::Hold, |sampling| LateRow::Sample(&sampling.mask))
}

/// Starts a step. None if there is nothing to compute.
fn submit(
    plan: &Plan,
    sampled: &mut SampledRows,
    engine: &mut dyn StepEngine,
    (submitted, is_lone): (Duration, bool),
) -> Result<Option<InFlight>> {
    let begun = Instant::now();
    let taken = engine.submit(plan, sampled);
    if plan.rows().is_empty() {
        // What a plan without rows does cannot be reported as a failed step.
        return taken.map(|()| None);
    }
    Ok(Some(InFlight {
        number: plan.step(),
        rows: plan.rows().len() as u32,
        tokens: plan.token_count(),
        decode_rows: plan
            .rows()
            .iter()
            .filter(|row| row.token_count == 1)
            .count() as u32
            + plan.draft_count(),
        submitted,
        begun,
        is_lone,
        refused: taken.err(),
        guided: std::mem::take(&mut sampled.guided),
    }))
}

fn apply(
    core: &mut Core,
    number: u64,
    waited: Result<()>,
    results: &StepResults,
    now: Duration,
    measured: (Duration, u32, u32),
) -> Result<()> {
    core.stats.last_progress = now;
    core.take_hidden_states(results);
    core.take_scores(results);
    let outcome = match &waited {
        Ok(()) => StepOutcome::Done(results.outcomes()),
        Err(_) => StepOutcome::Failed,
    };
    // The events are read by `flush`, which has the outputs that belong to them.
    core.scheduler
        .report(number, outcome, now)
        .map_err(|error| EngineError::new(ErrorKind::Internal, error.to_string()))?;
    match waited {
        Ok(()) => {
            core.stats.steps += 1;
            core.flush(now, Some(results), Some(measured));
            Ok(())
        }
        Err(error) => {
            core.stats.engine_faults += 1;
            core.fault = Some(Arc::new(error));
            core.flush(now, None, None);
            Ok(())
        }
    }
}
