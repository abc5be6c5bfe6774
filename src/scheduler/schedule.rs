//! Plans a step.

use std::time::Duration;

use super::drafts::{Candidate, PlainStep, choose};
use super::pages::Lookup;
use super::queue::level;
use super::table::{Borrowed, Saved, State};
use super::{
    Admission, EndReason, Event, EventKind, Fork, PageSharing, Plan, RequestId, Restore, Row,
    RowInFlight, STEPS_IN_FLIGHT, Save, Scheduler, Span,
};

/// What a step still has to give to prompts.
struct Budget {
    tokens: u32,
    pages: u32,
}

impl Scheduler {
    /// Plans the next step. Without rows there is nothing to compute, or steps in flight must be reported first. The
    /// plan is empty if two steps are in flight, or one that has drafts or after which there should be drafts.
    pub fn schedule(&mut self, now: Duration) -> &Plan {
        let now = self.advance(now);
        self.plan.clear();
        self.plan.step = self.next_step;
        if self.in_flight.len() == STEPS_IN_FLIGHT || self.waits_for_step() {
            return &self.plan;
        }
        self.plan_count += 1;
        self.expire(now);
        if self.lacks_room {
            self.preempt_paused();
        }
        let was_preempted = self.make_room(now);
        let decode_rows = self.plan_decode_rows();
        let mut budget = self.prefill_budget(decode_rows);
        self.plan_prefill_rows(&mut budget);
        self.lacks_room = !was_preempted && !self.admit(&mut budget, now);
        // Nothing was taken yet, so that something may be released still.
        while self.plan.rows.is_empty() && self.lacks_room && self.preempt_paused() {
            let mut budget = self.prefill_budget(0);
            self.lacks_room = !self.admit(&mut budget, now);
        }
        self.plan_drafts();
        self.take_pending();
        self.start_step();
        &self.plan
    }

    /// [`schedule`](Self::schedule) into a plan of the caller, which can be carried out while other threads
    /// submit and cancel.
    pub fn schedule_into(&mut self, now: Duration, plan: &mut Plan) {
        self.schedule(now);
        std::mem::swap(&mut self.plan, plan);
    }

    /// Ends requests whose time is over.
    fn expire(&mut self, now: Duration) {
        while let Some((time, index)) = self.timers.first() {
            if time > now {
                return;
            }
            let entry = &self.entries[index as usize];
            let reason = if entry.deadline <= now {
                EndReason::Deadline
            } else if entry.paused_until.is_some_and(|until| until <= now) {
                EndReason::PauseTimeout
            } else {
                EndReason::QueueTimeout
            };
            self.end(index, reason);
        }
    }

    /// Preempts sequences until there is a page for each row that needs one to continue its text, and
    /// one for the most urgent sequence, whatever it computes. All of this comes before the first page
    /// is taken, as in the engine.
    fn make_room(&mut self, now: Duration) -> bool {
        let mut was_preempted = false;
        while self.pages_to_continue() > self.pool.available() {
            let Some(victim) = self.victim(now) else {
                break;
            };
            self.preempt(victim);
            was_preempted = true;
        }
        was_preempted
    }

    /// Preempts a paused sequence, for a request that waits for pages or for a sequence.
    fn preempt_paused(&mut self) -> bool {
        let mut running = self.running.iter().copied().rev();
        let paused = running.find(|&index| self.entries[index as usize].paused_until.is_some());
        if let Some(index) = paused {
            self.preempt(index);
        }
        paused.is_some()
    }

    fn pages_to_continue(&self) -> u32 {
        let urgent = self.most_urgent();
        let mut pages = 0;
        for &index in &self.running {
            let entry = &self.entries[index as usize];
            let must_continue = entry.is_decoding() || Some(index) == urgent;
            if entry.is_ready() && must_continue {
                pages += u32::from(entry.computed.is_multiple_of(self.config.page_tokens));
            }
        }
        pages
    }

    /// The sequence that is never preempted: the oldest of the highest priority that is not paused.
    fn most_urgent(&self) -> Option<u32> {
        let mut running = self.running.iter().copied();
        running.find(|&index| self.entries[index as usize].paused_until.is_none())
    }

    /// Paused ones first, then by lowest priority, fewest computed tokens, latest arrival.
    fn victim(&self, now: Duration) -> Option<u32> {
        let urgent = self.most_urgent();
        let others = self.running.iter().filter(|&&index| Some(index) != urgent);
        others.copied().max_by_key(|&index| {
            let entry = &self.entries[index as usize];
            (
                entry.paused_until.is_some(),
                level(entry.rank, now),
                std::cmp::Reverse(entry.computed),
                entry.serial,
            )
        })
    }

    /// Takes the sequence of a request, which waits in the queue again.
    fn preempt(&mut self, index: u32) {
        self.totals.preemptions += 1;
        let State::Running(sequence) = self.entries[index as usize].state else {
            return;
        };
        let pages = self.sequences[sequence as usize].pages.len() as u32;
        let entry = &mut self.entries[index as usize];
        let has_room = self.saved_pages + pages <= self.config.max_saved_pages;
        let is_worth_it = self.costs.prefer_restore(pages, entry.computed);
        if has_room && is_worth_it && entry.max_tokens > 0 {
            self.saved_pages += pages;
            entry.saved = Some(Saved {
                tokens: entry.computed,
                pages,
                step: self.next_step,
            });
            let request = entry.id(index);
            self.plan.saves.push(Save {
                request,
                sequence,
                page_count: pages,
            });
        }
        self.give_back_sequence(index);
        self.enqueue_again(index);
    }

    /// Puts a request that lost its sequence back into the queue, at its old place.
    pub(super) fn enqueue_again(&mut self, index: u32) {
        let entry = &mut self.entries[index as usize];
        (entry.computed, entry.borrowed) = (0, None);
        entry.is_rolled_back &= entry.rows_in_flight > 0;
        entry.is_held &= entry.rows_in_flight > 0;
        entry.state = State::Parked;
        self.queue_or_park(index);
    }

    /// One row for each request that lacks one token; returns their number.
    fn plan_decode_rows(&mut self) -> u32 {
        for at in 0..self.running.len() {
            let index = self.running[at];
            let entry = &self.entries[index as usize];
            let has_page = !entry.computed.is_multiple_of(self.config.page_tokens)
                || self.pool.available() > 0;
            if entry.is_ready() && entry.is_decoding() && has_page {
                self.plan_row(index, entry.computed + 1);
            }
        }
        self.plan.rows.len() as u32
    }

    /// What prompts may use of this step and of the pages.
    fn prefill_budget(&self, decode_rows: u32) -> Budget {
        let rest = self.config.token_budget - decode_rows;
        let tokens = match self.config.itl_target {
            Some(target) if decode_rows > 0 => {
                let within = self.costs.prefill_tokens(target, decode_rows);
                rest.min(within.max(self.config.prefill_floor()))
            }
            _ => rest,
        };
        let pages = self.pool.available();
        Budget { tokens, pages }
    }

    /// Rows of requests that have a sequence and lack more than one token.
    fn plan_prefill_rows(&mut self, budget: &mut Budget) {
        for at in 0..self.running.len() {
            let index = self.running[at];
            let entry = &self.entries[index as usize];
            if entry.is_ready() && !entry.is_decoding() {
                self.plan_prefill_row(index, budget);
            }
        }
    }

    /// As many tokens as the budget has, up to a page boundary or the last token.
    fn plan_prefill_row(&mut self, index: u32, budget: &mut Budget) {
        let entry = &self.entries[index as usize];
        let (first, end) = (entry.computed, entry.tokens.len);
        let held = first.div_ceil(self.config.page_tokens);
        let on_pages = u64::from(held + budget.pages) * u64::from(self.config.page_tokens);
        let reached = u64::from(first) + u64::from(budget.tokens);
        let reached = reached.min(on_pages).min(u64::from(end)) as u32;
        let reached = match reached {
            reached if reached == end => end,
            reached => reached / self.config.page_tokens * self.config.page_tokens,
        };
        if reached > first {
            budget.tokens -= reached - first;
            budget.pages -= reached.div_ceil(self.config.page_tokens) - held;
            self.plan_row(index, reached);
        }
    }

    /// Adds the row that computes up to position `end`, and takes its pages.
    fn plan_row(&mut self, index: u32, end: u32) {
        let entry = &mut self.entries[index as usize];
        let State::Running(sequence) = entry.state else {
            return;
        };
        let page_tokens = self.config.page_tokens;
        let first = entry.computed;
        let start = self.plan.tokens.len() as u32;
        if first < entry.tokens.len {
            self.tokens
                .read(&mut entry.tokens, first, end, &mut self.plan.tokens);
        }
        let samples = end >= entry.tokens.len && entry.max_tokens > 0;
        let is_late = samples && entry.generated() + entry.sampling >= entry.allowed;
        self.plan.rows.push(Row {
            request: entry.id(index),
            sequence,
            first_position: first,
            token_count: end - first,
            tokens: Span {
                start,
                end: self.plan.tokens.len() as u32,
            },
            samples,
            is_late,
            drafts: Span::default(),
        });
        let pages = &mut self.sequences[sequence as usize].pages;
        while (pages.len() as u32) < end.div_ceil(page_tokens) {
            // The caller has checked that there is one.
            pages.extend(self.pool.take());
        }
        if self.config.page_sharing != PageSharing::None {
            for page in first / page_tokens..end.min(entry.tokens.len) / page_tokens {
                let key = self.tokens.key(&mut entry.tokens, page);
                self.pool.announce(pages[page as usize], &key);
            }
        }
        entry.computed = end;
        entry.sampling += u32::from(samples);
        entry.late += u32::from(is_late);
        entry.rows_in_flight += 1;
        self.charge(index);
    }

    /// Lets the tenant pay for the computed positions.
    pub(super) fn charge(&mut self, index: u32) {
        let entry = &mut self.entries[index as usize];
        let unpaid = entry.computed.saturating_sub(entry.charged);
        entry.charged += unpaid;
        self.queue.charge(entry.tenant, unpaid);
    }

    /// Whether the step in flight has drafts, or the next one should have some: then it is not known which tokens the
    /// next one continues.
    fn waits_for_step(&mut self) -> bool {
        let Some(step) = self.in_flight.first() else {
            return false;
        };
        if !step.drafts.is_empty() {
            return true;
        }
        if self.config.max_draft_tokens == 0 {
            return false;
        }
        let next = self.find_candidates();
        choose(&mut self.candidates, &next, &self.costs)
    }

    /// Adds drafts to the rows, with the tokens and pages that no other row needs.
    fn plan_drafts(&mut self) {
        if !self.in_flight.is_empty() || self.config.max_draft_tokens == 0 {
            return;
        }
        self.candidates.clear();
        let mut step = PlainStep::default();
        for (row, planned) in (0..).zip(&self.plan.rows) {
            let entry = &self.entries[planned.request.index() as usize];
            step.sampled += u32::from(planned.samples);
            match planned.token_count {
                1 => step.decode_rows += 1,
                tokens => step.prompt_tokens += tokens,
            }
            if planned.token_count == 1 && planned.samples && !planned.is_late {
                self.candidates.push(Candidate {
                    row,
                    acceptance: entry.guesses.acceptance(),
                    weight: 1.0,
                    limit: entry.draft_limit(),
                    count: 0,
                });
            }
        }
        let costs = self.costs.of_computed_guesses();
        if !choose(&mut self.candidates, &step, &costs) {
            return;
        }
        let mut budget = Budget {
            tokens: self.draft_budget(&step, self.plan.token_count()),
            pages: self.pool.available().saturating_sub(self.promised_pages()),
        };
        for at in 0..self.candidates.len() {
            let Candidate { row, count, .. } = self.candidates[at];
            self.draft_row(row as usize, count, &mut budget);
        }
    }

    /// Adds up to `count` drafts to a row.
    fn draft_row(&mut self, row: usize, count: u32, budget: &mut Budget) {
        let page_tokens = self.config.page_tokens;
        let row = &mut self.plan.rows[row];
        let entry = &mut self.entries[row.request.index() as usize];
        let pages = &mut self.sequences[row.sequence as usize].pages;
        let held = pages.len() as u32;
        let on_pages = u64::from(held + budget.pages) * u64::from(page_tokens);
        let free = on_pages - u64::from(entry.computed);
        let count = u64::from(count.min(budget.tokens)).min(free) as u32;
        if count == 0 {
            return;
        }
        let start = self.plan.tokens.len();
        let guesses = &entry.guesses.tokens()[..count as usize];
        self.plan.tokens.extend_from_slice(guesses);
        row.drafts = span(start, self.plan.tokens.len());
        (entry.drafted, entry.run_limit) = (count, u32::MAX);
        for _ in held..(entry.computed + count).div_ceil(page_tokens) {
            pages.extend(self.pool.take());
            budget.pages -= 1;
        }
        budget.tokens -= count;
    }

    /// Admits requests while there is room; false if the next one lacks a sequence or pages.
    fn admit(&mut self, budget: &mut Budget, now: Duration) -> bool {
        budget.pages = budget.pages.saturating_sub(self.promised_pages());
        while budget.tokens > 0 {
            let Some(index) = self.queue.pick(&self.entries, now, self.plan_count) else {
                return true;
            };
            if self.free_sequences.is_empty() {
                return false;
            }
            let entry = &self.entries[index as usize];
            let tenant = entry.tenant;
            if entry.rows_in_flight > 0 {
                self.queue.block(tenant, self.plan_count);
                continue;
            }
            let admitted = match entry.saved {
                Some(saved) => self.restore(index, saved, budget),
                None => match self.fork_source(index) {
                    Source::None => self.admit_from_cache(index, budget),
                    Source::Computing => Admitted::WaitsForPage,
                    Source::Sequence(parent, borrowed) => {
                        self.fork(index, parent, borrowed, budget)
                    }
                },
            };
            match admitted {
                Admitted::Yes => {}
                Admitted::WaitsForPage => self.queue.block(tenant, self.plan_count),
                Admitted::LacksBudget => return true,
                Admitted::LacksPages => return false,
            }
        }
        true
    }

    /// Pages that prompts in progress will still take.
    fn promised_pages(&self) -> u32 {
        let mut pages = 0;
        for &index in &self.running {
            let entry = &self.entries[index as usize];
            let all = entry.tokens.len.max(entry.computed);
            pages += all.div_ceil(self.config.page_tokens)
                - entry.computed.div_ceil(self.config.page_tokens);
        }
        pages
    }

    /// Whether `pages` can be promised, and a row of `tokens` or of a page be planned. Sequences that
    /// run need some pages for growing.
    fn room(&self, pages: u32, tokens: u32, budget: &Budget) -> Admitted {
        let reserve = if self.running.is_empty() {
            0
        } else {
            self.config.reserve_pages()
        };
        if u64::from(pages) + u64::from(reserve) > u64::from(budget.pages) {
            Admitted::LacksPages
        } else if tokens.min(self.config.page_tokens) > budget.tokens {
            Admitted::LacksBudget
        } else {
            Admitted::Yes
        }
    }

    fn admit_from_cache(&mut self, index: u32, budget: &mut Budget) -> Admitted {
        let page_tokens = self.config.page_tokens;
        let entry = &mut self.entries[index as usize];
        let key_start = self.plan.keys.len();
        // One token at least has to be computed.
        let full = if entry.use_cache {
            (entry.tokens.len - 1) / page_tokens
        } else {
            0
        };
        let (mut found, mut unowned) = (0, 0);
        while found < full {
            let key = self.tokens.key(&mut entry.tokens, found);
            match self.pool.find(&key) {
                Lookup::Ready(page) => unowned += u32::from(self.pool.is_cached(page)),
                Lookup::Computing => {
                    self.plan.keys.truncate(key_start);
                    return Admitted::WaitsForPage;
                }
                Lookup::Absent => break,
            }
            self.plan.keys.push(key);
            found += 1;
        }
        let entry = &mut self.entries[index as usize];
        let cached = found * page_tokens;
        let pages = entry.tokens.len.div_ceil(page_tokens) - found;
        let lacks = entry.tokens.len - cached;
        let room = self.room(pages + unowned, lacks, budget);
        if room != Admitted::Yes {
            self.plan.keys.truncate(key_start);
            return room;
        }

        let sequence = self.start_sequence(index);
        for key in &self.plan.keys[key_start..] {
            if let Lookup::Ready(page) = self.pool.find(key) {
                self.pool.share(page);
                self.sequences[sequence as usize].pages.push(page);
            }
        }
        let token_start = self.plan.tokens.len();
        let entry = &mut self.entries[index as usize];
        self.tokens
            .read(&mut entry.tokens, 0, cached, &mut self.plan.tokens);
        self.plan.admissions.push(Admission {
            request: entry.id(index),
            sequence,
            keys: span(key_start, self.plan.keys.len()),
            tokens: span(token_start, self.plan.tokens.len()),
        });
        self.begin(index, cached);
        self.plan_first_row(index, pages, unowned, budget);
        Admitted::Yes
    }

    /// The sequence of another copy that has the prompt, as far as a fork needs it, when the rows of this step begin.
    fn fork_source(&self, index: u32) -> Source {
        let entry = &self.entries[index as usize];
        let kept = entry.prompt_tokens - 1;
        let may_fork = entry.use_cache || entry.serial != entry.first_copy;
        if !may_fork || kept == 0 || entry.generated() > 0 {
            return Source::None;
        }
        let first = (entry.rank, entry.first_copy);
        let entries = &self.entries;
        let before = self
            .running
            .partition_point(|&other| entries[other as usize].order() < first);
        let mut source = Source::None;
        for &other in &self.running[before..] {
            let copy = &entries[other as usize];
            let State::Running(sequence) = copy.state else {
                continue;
            };
            if copy.first_copy != entry.first_copy {
                break;
            }
            let request = copy.id(other);
            let planned = self.plan.rows.iter().find(|row| row.request == request);
            let length = planned.map_or(copy.computed, |row| row.first_position);
            if copy.borrowed.is_some() {
                continue; // what it was forked from in this plan follows
            }
            let borrowed = self.in_flight_below(request, kept);
            // A row that is held is lost already.
            let is_safe = borrowed.is_none_or(|borrowed| {
                !copy.is_held
                    && borrowed
                        .first_position
                        .is_multiple_of(self.config.page_tokens)
            });
            if length >= kept && is_safe {
                return Source::Sequence(sequence, borrowed);
            }
            if copy.rows_in_flight > 0 {
                source = Source::Computing;
            }
        }
        source
    }

    /// The row in flight of a request that computes positions below `position`.
    fn in_flight_below(&self, request: RequestId, position: u32) -> Option<Borrowed> {
        let mut rows = self.in_flight.iter().flat_map(|step| &step.rows);
        let row = rows.find(|row| row.request == request && row.first_position < position)?;
        Some(Borrowed {
            request,
            first_position: row.first_position,
        })
    }

    /// Admits a copy as a fork of sequence `parent`.
    fn fork(
        &mut self,
        index: u32,
        parent: u32,
        borrowed: Option<Borrowed>,
        budget: &mut Budget,
    ) -> Admitted {
        let room = self.room(1, 1, budget);
        if room != Admitted::Yes {
            return room;
        }
        let sequence = self.start_sequence(index);
        let entry = &mut self.entries[index as usize];
        let kept = entry.prompt_tokens - 1;
        entry.borrowed = borrowed;
        self.plan.forks.push(Fork {
            request: entry.id(index),
            sequence,
            parent,
            token_count: kept,
        });
        for at in 0..(kept / self.config.page_tokens) as usize {
            let page = self.sequences[parent as usize].pages[at];
            self.pool.share(page);
            self.sequences[sequence as usize].pages.push(page);
        }
        self.begin(index, kept);
        self.plan_first_row(index, 1, 0, budget);
        Admitted::Yes
    }

    /// A sequence without rows has these first positions, which other requests have computed.
    fn begin(&mut self, index: u32, cached: u32) {
        let entry = &mut self.entries[index as usize];
        entry.computed = cached;
        entry.charged = entry.charged.max(cached);
        let prompt = entry.prompt_tokens;
        if !std::mem::replace(&mut entry.was_started, true) {
            entry.cached_tokens = cached;
            self.report_start(index, prompt, cached);
        }
    }

    fn restore(&mut self, index: u32, saved: Saved, budget: &mut Budget) -> Admitted {
        let page_tokens = self.config.page_tokens;
        let entry = &self.entries[index as usize];
        let lacks = entry.tokens.len - saved.tokens;
        let room = self.room(entry.tokens.len.div_ceil(page_tokens), lacks, budget);
        if room != Admitted::Yes {
            return room;
        }

        let sequence = self.start_sequence(index);
        let restored = saved.tokens.div_ceil(page_tokens);
        for _ in 0..restored {
            self.sequences[sequence as usize]
                .pages
                .extend(self.pool.take());
        }
        self.saved_pages -= saved.pages;
        let token_start = self.plan.tokens.len();
        let entry = &mut self.entries[index as usize];
        entry.saved = None;
        entry.computed = saved.tokens;
        self.tokens
            .read(&mut entry.tokens, 0, saved.tokens, &mut self.plan.tokens);
        self.plan.restores.push(Restore {
            request: entry.id(index),
            sequence,
            token_count: saved.tokens,
            tokens: span(token_start, self.plan.tokens.len()),
        });
        let pages = entry.tokens.len.div_ceil(page_tokens) - restored;
        self.plan_first_row(index, pages, restored, budget);
        Admitted::Yes
    }

    /// Gives a request from the queue a sequence.
    fn start_sequence(&mut self, index: u32) -> u32 {
        self.queue.remove(&mut self.entries, index);
        let order = self.entries[index as usize].order();
        let entries = &self.entries;
        let at = self
            .running
            .partition_point(|&other| entries[other as usize].order() < order);
        self.running.insert(at, index);
        let sequence = self.free_sequences.pop().unwrap_or_default(); // the caller has checked
        let entry = &mut self.entries[index as usize];
        entry.state = State::Running(sequence);
        entry.admission = entry.admission.wrapping_add(1);
        sequence
    }

    /// Plans the first row of an admission, which has promised `pages` and taken `taken`.
    fn plan_first_row(&mut self, index: u32, pages: u32, taken: u32, budget: &mut Budget) {
        budget.pages -= taken;
        let after = budget.pages - pages;
        self.plan_prefill_row(index, budget);
        budget.pages = after;
    }

    fn report_start(&mut self, index: u32, prompt_tokens: u32, cached_tokens: u32) {
        let tenant = self.entries[index as usize].tenant;
        self.count_new(tenant, prompt_tokens, false);
        self.totals.queried_tokens += u64::from(prompt_tokens);
        self.totals.cached_tokens += u64::from(cached_tokens);
        self.set_timer(index);
        let request = self.entries[index as usize].id(index);
        let kind = EventKind::Started { cached_tokens };
        self.events.push(Event { request, kind });
    }

    /// Moves what happened since the last plan into this one.
    fn take_pending(&mut self) {
        self.plan.resets_engine = std::mem::take(&mut self.pending.resets_engine);
        self.plan.truncations.append(&mut self.pending.truncations);
        self.plan.releases.append(&mut self.pending.releases);
        self.plan
            .dropped_saves
            .append(&mut self.pending.dropped_saves);
        let offset = self.plan.keys.len() as u32;
        for mut publish in self.pending.publishes.drain(..) {
            publish.keys.start += offset;
            publish.keys.end += offset;
            self.plan.publishes.push(publish);
        }
        self.plan.keys.append(&mut self.pending.keys);
    }

    /// Notes the rows of the plan as in flight.
    fn start_step(&mut self) {
        if self.plan.rows.is_empty() {
            return;
        }
        let mut step = self.spare_steps.pop().unwrap_or_default();
        step.number = self.next_step;
        step.rows.clear();
        step.drafts.clear();
        for row in &self.plan.rows {
            let start = step.drafts.len();
            step.drafts.extend_from_slice(self.plan.tokens(row.drafts));
            let entry = &self.entries[row.request.index() as usize];
            step.rows.push(RowInFlight {
                request: row.request,
                admission: entry.admission,
                first_position: row.first_position,
                token_count: row.token_count,
                samples: row.samples,
                is_late: row.is_late,
                drafts: span(start, step.drafts.len()),
            });
        }
        self.in_flight.push(step);
        self.next_step += 1;
    }
}

/// What a copy may be a fork of.
enum Source {
    None,
    /// Another copy computes the prompt.
    Computing,
    /// This sequence.
    Sequence(u32, Option<Borrowed>),
}

/// Whether a request was admitted, or why not.
#[derive(PartialEq)]
enum Admitted {
    Yes,
    /// Another row computes its next page, or its prompt for another copy.
    WaitsForPage,
    LacksBudget,
    LacksPages,
}

fn span(start: usize, end: usize) -> Span {
    Span {
        start: start as u32,
        end: end as u32,
    }
}
