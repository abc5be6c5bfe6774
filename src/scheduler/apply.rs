//! Takes the results of a step.

use std::time::Duration;
use std::vec::Drain;

use super::table::State;
use super::{
    ApplyError, EndReason, Event, EventKind, PageSharing, Publish, RowInFlight, RowOutcome,
    Scheduler, Span, Step, StepOutcome, Token, Truncation,
};

/// Late masks in a row that end a request.
const MAX_HELD_ROWS: u32 = 3;

/// Failed steps that end a request.
const MAX_FAULTS: u32 = 2;

impl Scheduler {
    /// Takes the outcome of the oldest step in flight. Returns the events since the last call, see
    /// [`events`](Self::events). Rows of requests that have ended meanwhile report nothing.
    pub fn apply(
        &mut self,
        step: u64,
        outcome: StepOutcome<'_>,
        now: Duration,
    ) -> Result<Drain<'_, Event>, ApplyError> {
        self.report(step, outcome, now)?;
        Ok(self.events.drain(..))
    }

    /// The same, and leaves the events to [`events`](Self::events).
    pub fn report(
        &mut self,
        step: u64,
        outcome: StepOutcome<'_>,
        now: Duration,
    ) -> Result<(), ApplyError> {
        self.check_outcome(step, outcome)?;
        self.advance(now);
        match outcome {
            StepOutcome::Done(outcomes) => {
                let step = self.in_flight.remove(0);
                self.complete_forks(&step, outcomes);
                for (at, (row, &outcome)) in step.rows.iter().zip(outcomes).enumerate() {
                    let drafts = &step.drafts[row.drafts.start as usize..][..row.drafts.len()];
                    self.apply_row(at as u32, row, drafts, outcome);
                }
                self.spare_steps.push(step);
            }
            StepOutcome::Failed => {
                let oldest = self.in_flight[0].number;
                self.recompute_all(oldest);
            }
        }
        Ok(())
    }

    /// The engine was replaced, whether steps are in flight or not: these have failed, and all saved sequences are lost.
    pub fn lose_engine(&mut self, now: Duration) {
        self.advance(now);
        self.recompute_all(0);
    }

    fn check_outcome(&self, step: u64, outcome: StepOutcome<'_>) -> Result<(), ApplyError> {
        let oldest = self.in_flight.first();
        let Some(oldest) = oldest.filter(|oldest| oldest.number == step) else {
            let oldest = oldest.map(|oldest| oldest.number);
            return Err(ApplyError::NotTheOldest { step, oldest });
        };
        let StepOutcome::Done(outcomes) = outcome else {
            return Ok(());
        };
        if outcomes.len() != oldest.rows.len() {
            return Err(ApplyError::RowCount {
                outcomes: outcomes.len(),
                rows: oldest.rows.len(),
            });
        }
        for (row, (planned, outcome)) in oldest.rows.iter().zip(outcomes).enumerate() {
            let samples = planned.samples;
            if matches!(outcome, RowOutcome::Ok(token) if token.is_some() != samples) {
                return Err(ApplyError::Sampled { row, samples });
            }
            let drafts = planned.drafts.len() as u32;
            match *outcome {
                RowOutcome::Drafted { .. } if !samples => {
                    return Err(ApplyError::Sampled { row, samples });
                }
                RowOutcome::Drafted { held, .. } if held > drafts => {
                    return Err(ApplyError::Drafts { row, held, drafts });
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Forks that were made while this step was in flight have what it computed, or have lost it.
    fn complete_forks(&mut self, step: &Step, outcomes: &[RowOutcome]) {
        for at in 0..self.running.len() {
            let index = self.running[at];
            let entry = &mut self.entries[index as usize];
            let Some(borrowed) = entry.borrowed.take() else {
                continue;
            };
            let (admission, kept) = (entry.admission, entry.prompt_tokens - 1);
            let mut rows = step.rows.iter().zip(outcomes);
            let row = rows.find(|(row, _)| row.request == borrowed.request);
            if let Some((_, RowOutcome::Ok(_) | RowOutcome::Drafted { .. })) = row {
                // The request of the row may have ended.
                self.publish(index, admission, borrowed.first_position, kept);
            } else {
                self.roll_back_to(index, borrowed.first_position);
            }
        }
    }

    fn apply_row(&mut self, at: u32, row: &RowInFlight, drafts: &[Token], outcome: RowOutcome) {
        let held = match outcome {
            RowOutcome::Drafted { held, .. } => &drafts[..held as usize],
            _ => &[],
        };
        self.totals.draft_tokens += drafts.len() as u64;
        self.totals.accepted_draft_tokens += held.len() as u64;
        let Some(index) = self.find(row.request) else {
            return; // it ended while the step ran
        };
        let entry = &mut self.entries[index as usize];
        let is_dropped = row.samples && entry.sampling <= entry.dropped;
        entry.dropped -= u32::from(is_dropped);
        entry.rows_in_flight -= 1;
        entry.sampling -= u32::from(row.samples);
        entry.late -= u32::from(row.is_late);
        entry.is_held &= !row.is_late;
        entry.drafted -= drafts.len() as u32;
        let continues_failed = std::mem::take(&mut entry.is_rolled_back);
        match outcome {
            RowOutcome::Ok(_) | RowOutcome::Drafted { .. } if continues_failed => {
                self.roll_back(index, row);
            }
            RowOutcome::Ok(_) | RowOutcome::Drafted { .. } if is_dropped => {
                self.drop_token(index, row);
            }
            RowOutcome::Ok(token) => self.take_tokens(index, at, row, held, token),
            RowOutcome::Drafted { token, .. } => {
                self.take_tokens(index, at, row, held, Some(token));
            }
            RowOutcome::Held => {
                entry.held_rows += 1;
                if entry.held_rows == MAX_HELD_ROWS {
                    self.end(index, EndReason::Held);
                } else {
                    self.roll_back(index, row);
                }
            }
            RowOutcome::Skipped => self.roll_back(index, row),
            RowOutcome::EmptyMask => self.end(index, EndReason::EmptyMask),
            RowOutcome::NotFinite => self.end(index, EndReason::NotFinite),
        }
    }

    /// Takes the drafts that hold and the token after them. After each, the row has computed one more position.
    fn take_tokens(
        &mut self,
        index: u32,
        at: u32,
        row: &RowInFlight,
        held: &[Token],
        last: Option<Token>,
    ) {
        self.entries[index as usize].held_rows = 0;
        let (mut first, mut end) = (row.first_position, row.first_position + row.token_count);
        let drafts = row.drafts.len() as u32;
        for (offset, token) in (0..).zip(held.iter().copied().map(Some).chain([last])) {
            self.publish(index, row.admission, first, end);
            self.take_token(index, (at, offset, drafts), token);
            if drafts == 0 || self.find(row.request).is_none() {
                return;
            }
            let entry = &mut self.entries[index as usize];
            if offset == held.len() as u32 {
                break;
            }
            if offset + 1 == entry.run_limit {
                // The engine's sequence has the drafts that hold.
                self.truncate(index, row);
                break;
            }
            (first, end) = (end, end + 1);
            entry.computed = end;
        }
        self.charge(index);
        if let State::Running(sequence) = self.entries[index as usize].state {
            self.trim(sequence, end); // of the drafts that do not hold
        }
    }

    /// Makes the pages that a row has filled shareable, if the request still has the sequence of this admission.
    fn publish(&mut self, index: u32, admission: u32, first: u32, end: u32) {
        let page_tokens = self.config.page_tokens;
        let entry = &mut self.entries[index as usize];
        let State::Running(sequence) = entry.state else {
            return;
        };
        if entry.admission != admission || self.config.page_sharing == PageSharing::None {
            return;
        }
        for page in first / page_tokens..end / page_tokens {
            let key = self.tokens.key(&mut entry.tokens, page);
            let held = self.sequences[sequence as usize].pages[page as usize];
            let is_new = self.pool.publish(held, &key);
            if !is_new {
                continue;
            }
            let start = self.pending.keys.len() as u32;
            self.pending.keys.push(key);
            match self.pending.publishes.last_mut() {
                Some(last)
                    if last.sequence == sequence
                        && last.first_page + last.keys.len() as u32 == page =>
                {
                    last.keys.end += 1;
                }
                _ => self.pending.publishes.push(Publish {
                    sequence,
                    first_page: page,
                    keys: Span {
                        start,
                        end: start + 1,
                    },
                }),
            }
        }
    }

    /// Takes a token from its row, place in the row and number of drafts.
    fn take_token(
        &mut self,
        index: u32,
        (row, offset, drafts): (u32, u32, u32),
        token: Option<Token>,
    ) {
        let entry = &mut self.entries[index as usize];
        let Some(token) = token else {
            let is_complete = entry.max_tokens == 0 && entry.computed == entry.tokens.len;
            if is_complete && entry.rows_in_flight == 0 {
                self.end(index, EndReason::Length);
            }
            return;
        };
        if entry.stops_at(token, &self.config.end_tokens) {
            self.end(index, EndReason::EndToken(token));
            return;
        }
        entry.guesses.take(token);
        self.tokens.push(&mut entry.tokens, token);
        let kind = EventKind::Token {
            token,
            index: entry.generated() - 1,
            row,
            offset,
            drafts,
        };
        let request = entry.id(index);
        self.events.push(Event { request, kind });
        let is_complete = entry.generated() == entry.max_tokens;
        let is_full = entry.is_context_bound;
        self.queue_or_park(index);
        if is_complete {
            self.end(
                index,
                if is_full {
                    EndReason::ContextFull
                } else {
                    EndReason::Length
                },
            );
        }
    }

    /// The row was planned before fewer tokens were allowed: it is repeated when its token may be drawn.
    fn drop_token(&mut self, index: u32, row: &RowInFlight) {
        self.roll_back(index, row);
        let entry = &mut self.entries[index as usize];
        // Without its sequence too: the engine does not know that the row in flight continues a dropped token.
        entry.is_rolled_back = entry.rows_in_flight > 0;
        self.truncate(index, row);
    }

    /// Shortens the engine's sequence to what is computed.
    fn truncate(&mut self, index: u32, row: &RowInFlight) {
        let entry = &self.entries[index as usize];
        if let State::Running(sequence) = entry.state
            && entry.admission == row.admission
        {
            let token_count = entry.computed;
            self.pending.truncations.push(Truncation {
                sequence,
                token_count,
            });
        }
    }

    /// Forgets what a row should have computed, and all after it.
    fn roll_back(&mut self, index: u32, row: &RowInFlight) {
        let entry = &mut self.entries[index as usize];
        if entry.admission != row.admission {
            return;
        }
        if let Some(saved) = &mut entry.saved {
            saved.tokens = saved.tokens.min(row.first_position);
        }
        self.roll_back_to(index, row.first_position);
    }

    fn roll_back_to(&mut self, index: u32, position: u32) {
        let entry = &mut self.entries[index as usize];
        if let State::Running(sequence) = entry.state {
            entry.is_rolled_back = entry.rows_in_flight > 0;
            entry.computed = entry.computed.min(position);
            let computed = entry.computed;
            self.trim(sequence, computed);
        }
    }

    /// The engine lost everything: sequences are computed again, or end if this is the second time. What was saved in
    /// step `oldest` or later is lost too.
    fn recompute_all(&mut self, oldest: u64) {
        while let Some(step) = self.in_flight.pop() {
            for row in &step.rows {
                if let Some(index) = self.find(row.request) {
                    let entry = &mut self.entries[index as usize];
                    (entry.rows_in_flight, entry.sampling) = (0, 0);
                    (entry.dropped, entry.is_rolled_back) = (0, false);
                    (entry.late, entry.is_held) = (0, false);
                    entry.drafted = 0;
                }
            }
            self.spare_steps.push(step);
        }
        for index in 0..self.entries.len() {
            let saved = self.entries[index].saved;
            if saved.is_some_and(|saved| saved.step >= oldest) {
                self.drop_saved(index as u32); // it may be wrong
            }
        }
        while let Some(&index) = self.running.last() {
            self.give_back_sequence(index);
            let entry = &mut self.entries[index as usize];
            entry.faults += 1;
            if entry.faults == MAX_FAULTS {
                self.end(index, EndReason::EngineFault);
            } else {
                self.enqueue_again(index);
            }
        }
        self.pool.clear();
        self.pending.publishes.clear();
        self.pending.truncations.clear();
        self.pending.keys.clear();
        self.pending.releases.clear();
        self.pending.resets_engine = true;
    }
}
