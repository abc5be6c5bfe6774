//! Draft tokens: what is guessed of each request, how often guesses hold, and how many of them a step verifies.

use std::time::Duration;

use super::table::{Entry, State};
use super::{Costs, RequestId, SMALL_STEP_TOKENS, Scheduler, Token};

/// Most draft tokens of a row.
pub const MAX_DRAFTS: usize = 15;

/// Weight of a guess relative to the one after it.
const KEPT: f64 = 0.95;

/// A step with drafts must promise so much more than one without: measured costs are not exact.
const MARGIN: f64 = 1.02;

/// Tokens after which a text gets a guess that is not worth its time, since it may have become worth it.
const TOKENS_WITHOUT_GUESS: u32 = 256;

/// They are more if one guess for each row takes more than this part of a step: a source that computes guesses has to
/// catch up with these tokens first.
const GUESS_PART: f64 = 1.0 / 16.0;

/// Guesses of the next tokens of a request.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Guesses {
    tokens: [Token; MAX_DRAFTS],
    count: u8,
    /// Those that the source computes at any time, which takes time; 0: it has guesses or not.
    computed: u8,
    /// Tokens since the last guess.
    unguessed: u32,
    /// Guesses that were right, and all; the latest count most.
    right: f64,
    all: f64,
}

impl Guesses {
    pub const NONE: Self = Self {
        tokens: [0; MAX_DRAFTS],
        count: 0,
        computed: 0,
        unguessed: 0,
        // As if three of four had been right, with the weight of two: short texts end before they
        // show a rate of their own (docs/lab/2026-11-23-drafts.md).
        right: 1.5,
        all: 2.0,
    };

    /// The source computes up to `most` at any time; 0: it has guesses or not.
    pub fn compute(&mut self, most: u32) {
        self.computed = most.min(MAX_DRAFTS as u32) as u8;
    }

    /// Most that the source computes; 0 if it does not compute them.
    pub fn most_computed(&self) -> u32 {
        self.computed.into()
    }

    /// Whether it is time to guess one token more, although it is not worth it: the text is one of `rows`.
    pub fn are_overdue(&self, rows: u32, costs: &Costs) -> bool {
        let step = costs.step_time(rows, 0, false).as_secs_f64();
        let guesses = (costs.guess * rows).as_secs_f64();
        let part = guesses / step.max(1e-9);
        let steps = f64::from(TOKENS_WITHOUT_GUESS) * (part / GUESS_PART).max(1.0);
        self.computed > 0 && f64::from(self.unguessed) >= steps
    }

    /// How many there will be when `sampling` more tokens are known, and the probability that there are any.
    pub fn later(&self, sampling: u32) -> (u32, f64) {
        match (self.computed, sampling) {
            (0, 0) => (self.count.into(), 1.0),
            (0, _) => {
                let left = u32::from(self.count).saturating_sub(sampling);
                (left, self.acceptance())
            }
            (most, _) => (most.into(), 1.0),
        }
    }

    /// Replaces them.
    pub fn set(&mut self, tokens: &[Token]) {
        let count = tokens.len().min(MAX_DRAFTS);
        self.tokens[..count].copy_from_slice(&tokens[..count]);
        self.count = count as u8;
    }

    pub fn tokens(&self) -> &[Token] {
        &self.tokens[..usize::from(self.count)]
    }

    /// Compares the next token with its guess, whether a step has verified it or not. The guesses after a wrong one
    /// are dropped.
    pub fn take(&mut self, token: Token) {
        let Some(&guess) = self.tokens().first() else {
            self.unguessed = self.unguessed.saturating_add(1);
            return;
        };
        self.unguessed = 0;
        let is_right = guess == token;
        self.right = KEPT * self.right + f64::from(u8::from(is_right));
        self.all = KEPT * self.all + 1.0;
        self.tokens.copy_within(1.., 0);
        self.count = if is_right { self.count - 1 } else { 0 };
    }

    /// Probability that a guess holds if those before it do.
    pub fn acceptance(&self) -> f64 {
        self.right / self.all
    }
}

/// A row that may have drafts.
#[derive(Debug, Clone, Copy)]
pub(super) struct Candidate {
    /// Its place in the plan.
    pub row: u32,
    /// Probability that a draft holds if those before it do.
    pub acceptance: f64,
    /// Probability that there are any.
    pub weight: f64,
    /// Most drafts that it may have.
    pub limit: u32,
    /// Drafts that it gets.
    pub count: u32,
}

impl Candidate {
    /// Gives it the drafts that are expected to yield at least `least` tokens each. Returns their number and their
    /// yield.
    fn take(&mut self, least: f64) -> (u32, f64) {
        let (mut yields, mut next) = (0.0, self.weight * self.acceptance);
        self.count = 0;
        while self.count < self.limit && next >= least {
            yields += next;
            next *= self.acceptance;
            self.count += 1;
        }
        (self.count, yields)
    }
}

/// A step without drafts.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct PlainStep {
    /// Rows that sample.
    pub sampled: u32,
    pub decode_rows: u32,
    pub prompt_tokens: u32,
}

impl PlainStep {
    pub fn time(&self, costs: &Costs) -> Duration {
        costs.step_time(self.decode_rows, self.prompt_tokens, false)
    }

    /// With drafts, which are guessed before.
    fn lone_time(&self, drafts: u32, costs: &Costs) -> f64 {
        let rows = self.decode_rows + drafts;
        let step = costs.step_time(rows, self.prompt_tokens, true);
        (step + costs.guess * drafts).as_secs_f64()
    }
}

impl Scheduler {
    /// The guesses of this request are computed when they are wanted: up to `most` at any time, each of which takes
    /// [`Costs::guess`]. [`wanted_guesses`](Self::wanted_guesses) says how many. With 0, as by default, they are looked up.
    pub fn expect_guesses(&mut self, id: RequestId, most: u32) {
        if let Some(index) = self.find(id) {
            self.entries[index as usize].guesses.compute(most);
        }
    }

    /// The sequence of a request, if it has one.
    pub fn sequence(&self, id: RequestId) -> Option<u32> {
        match self.entries[self.find(id)? as usize].state {
            State::Running(sequence) => Some(sequence),
            _ => None,
        }
    }

    /// Replaces `wanted` by the requests for which guesses should be computed and [proposed](Self::propose) before the
    /// next plan, with their numbers. None while a step is in flight, except for a single one now and then, which shows
    /// what more would be worth.
    pub fn wanted_guesses(&mut self, wanted: &mut Vec<(RequestId, u32)>) {
        let step = self.find_candidates();
        if !self.in_flight.is_empty() || !choose(&mut self.candidates, &step, &self.costs) {
            for candidate in &mut self.candidates {
                candidate.count = 0;
            }
        }
        let mut budget = self.draft_budget(&step, step.decode_rows);
        wanted.clear();
        for candidate in &self.candidates {
            let entry = &self.entries[candidate.row as usize];
            let due = u32::from(entry.guesses.are_overdue(step.decode_rows, &self.costs));
            let count = candidate.count.min(budget);
            budget -= count;
            if entry.guesses.most_computed() > 0 && count.max(due) > 0 {
                wanted.push((entry.id(candidate.row), count.max(due)));
            }
        }
    }

    /// Finds the texts that may have drafts when the step in flight has ended, by their entries. Returns the step after
    /// it.
    pub(super) fn find_candidates(&mut self) -> PlainStep {
        self.candidates.clear();
        let mut next = PlainStep::default();
        for &index in &self.running {
            let entry = &self.entries[index as usize];
            if !entry.is_ready() || !entry.is_decoding() {
                continue;
            }
            next.sampled += 1;
            next.decode_rows += 1;
            // If the token in flight is the one that was guessed, there will be more guesses.
            let (count, weight) = entry.guesses.later(entry.sampling);
            let limit = entry.draft_room().min(count);
            if limit > 0 {
                self.candidates.push(Candidate {
                    row: index,
                    acceptance: entry.guesses.acceptance(),
                    weight,
                    limit,
                    count: 0,
                });
            }
        }
        next
    }

    /// Replaces `wanted` by the requests of which the next plan would verify more guesses if they were
    /// [allowed](Self::allow_drafts), with the numbers of guesses. None while a step is in flight.
    pub fn wanted_drafts(&mut self, wanted: &mut Vec<(RequestId, u32)>) {
        wanted.clear();
        if !self.in_flight.is_empty() || self.config.max_draft_tokens == 0 {
            return;
        }
        let step = self.find_candidates();
        let costs = self.costs.of_computed_guesses();
        if !choose(&mut self.candidates, &step, &costs) {
            return;
        }
        for candidate in &self.candidates {
            let entry = &self.entries[candidate.row as usize];
            let count = candidate.count.min(entry.guesses.tokens().len() as u32);
            if count > entry.draft_limit() {
                wanted.push((entry.id(candidate.row), count));
            }
        }
    }

    /// Drafts that a step may have next to `tokens`.
    pub(super) fn draft_budget(&self, step: &PlainStep, tokens: u32) -> u32 {
        let within = self.config.itl_target.map_or(u32::MAX, |target| {
            self.costs.draft_tokens(target, step.time(&self.costs))
        });
        self.config
            .token_budget
            .saturating_sub(tokens)
            .min(self.config.max_draft_tokens)
            .min(within)
    }
}

impl Entry {
    /// Drafts that can be of use to the row after those in flight. Where late rows are allowed, drafts may be allowed
    /// when the tokens before them are known.
    fn draft_room(&self) -> u32 {
        let most = match self.may_be_late {
            true => self.max_tokens,
            false => self.max_tokens.min(self.allowed),
        };
        most.saturating_sub(self.generated() + self.sampling + 1)
    }

    /// Drafts that the row of the next token may have.
    pub fn draft_limit(&self) -> u32 {
        let most = self.max_tokens.min(self.allowed.saturating_add(self.ahead));
        let room = most.saturating_sub(self.generated() + 1);
        room.min(self.guesses.tokens().len() as u32)
    }
}

/// The number of drafts for a step of one row that continues a text: at most `limit`, which there are with probability
/// `weight`.
#[cfg(feature = "text")]
pub(crate) fn choose_one(guesses: &Guesses, limit: u32, weight: f64, costs: &Costs) -> u32 {
    let mut one = [Candidate {
        row: 0,
        acceptance: guesses.acceptance(),
        weight,
        limit,
        count: 0,
    }];
    let step = PlainStep {
        sampled: 1,
        decode_rows: 1,
        prompt_tokens: 0,
    };
    choose(&mut one, &step, costs);
    one[0].count
}

/// Gives each candidate the number of drafts with which the step is expected to sample the most tokens per time; none
/// if the plain step does, which overlaps with the step before. A row with k drafts of acceptance a is expected to
/// sample (1 - a^(k+1)) / (1 - a) tokens, so its j-th draft yields a^j. Returns whether any has drafts.
///
/// Among more rows than small steps have, a draft belongs to the best choice if its yield per time is at least that of
/// the whole step. The yield of a step is found by iteration (Dinkelbach's): each choice by the yield of the last one is
/// at least as good, and the best one is reached after a few.
pub(super) fn choose(candidates: &mut [Candidate], step: &PlainStep, costs: &Costs) -> bool {
    if step.decode_rows as usize <= SMALL_STEP_TOKENS {
        return choose_few(candidates, step, costs);
    }
    let plain_time = step.time(costs).as_secs_f64();
    let lone_time = step.lone_time(0, costs);
    let draft_time = (costs.decode_row + costs.guess).as_secs_f64();
    let sampled = f64::from(step.sampled);
    let mut rate = match lone_time {
        0.0 => 0.0, // unknown: every draft is worth it
        time => sampled / time,
    };
    loop {
        let (mut tokens, mut time) = (sampled, lone_time);
        for candidate in &mut *candidates {
            let (count, yields) = candidate.take(rate * draft_time);
            tokens += yields;
            time += draft_time * f64::from(count);
        }
        if time == 0.0 {
            break;
        }
        let better = tokens / time;
        if better > rate * (1.0 + 1e-9) {
            rate = better;
            continue;
        }
        if tokens * plain_time < MARGIN * sampled * time {
            candidates
                .iter_mut()
                .for_each(|candidate| candidate.count = 0);
        }
        break;
    }
    candidates.iter().any(|candidate| candidate.count > 0)
}

/// The same for few rows: adds the draft with the highest yield, one after the other, and keeps the best number.
fn choose_few(candidates: &mut [Candidate], step: &PlainStep, costs: &Costs) -> bool {
    let plain_time = step.time(costs).as_secs_f64();
    let sampled = f64::from(step.sampled);
    let (mut tokens, mut drafts) = (sampled, 0);
    // Tokens and time of the best choice; times may be zero.
    let (mut best, mut best_drafts) = ((MARGIN * sampled, plain_time), 0);
    let next = |candidate: &Candidate| {
        let yields = candidate.weight * candidate.acceptance.powi(candidate.count as i32 + 1);
        (candidate.count < candidate.limit).then_some(yields)
    };
    for candidate in &mut *candidates {
        candidate.count = 0;
    }
    for is_last in [false, true] {
        // Once to find the number, and once more up to it.
        let most = if is_last { best_drafts } else { u32::MAX };
        while drafts < most {
            let open = candidates
                .iter_mut()
                .filter_map(|one| Some((next(one)?, one)));
            let Some((yields, one)) = open.max_by(|(a, _), (b, _)| a.total_cmp(b)) else {
                break;
            };
            one.count += 1;
            drafts += 1;
            tokens += yields;
            let time = step.lone_time(drafts, costs);
            if tokens * best.1 >= best.0 * time && tokens > best.0 {
                (best, best_drafts) = ((tokens, time), drafts);
            }
        }
        if !is_last {
            candidates.iter_mut().for_each(|one| one.count = 0);
            drafts = 0;
        }
    }
    best_drafts > 0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn costs(step: u64, row: u64, lone: u64) -> Costs {
        Costs {
            step: Duration::from_micros(step),
            decode_row: Duration::from_micros(row),
            lone_step: Duration::from_micros(lone),
            ..Costs::default()
        }
    }

    fn candidate(acceptance: f64, limit: u32) -> Candidate {
        Candidate {
            row: 0,
            acceptance,
            weight: 1.0,
            limit,
            count: 0,
        }
    }

    fn rows(count: u32) -> PlainStep {
        PlainStep {
            sampled: count,
            decode_rows: count,
            prompt_tokens: 0,
        }
    }

    /// The formula: expected tokens of a row with `count` drafts.
    fn expected(acceptance: f64, count: u32) -> f64 {
        (1.0 - acceptance.powi(count as i32 + 1)) / (1.0 - acceptance)
    }

    #[test]
    fn one_row_gets_the_number_with_the_best_expectation_over_time() {
        for (step, row, lone, guess) in [
            (1_500, 80, 60, 0),
            (1_500, 80, 60, 150),
            (10_000, 3_000, 100, 0),
            (10_000, 300, 100, 2_000),
            (900, 10, 0, 0),
            (900, 10, 0, 700),
        ] {
            let mut costs = costs(step, row, lone);
            costs.guess = Duration::from_micros(guess);
            for acceptance in [0.05, 0.2, 0.5, 0.7, 0.9, 0.97] {
                let rate = |count: u32| {
                    let lone = if count > 0 { lone } else { 0 };
                    let time = step + lone + row + (row + guess) * u64::from(count);
                    expected(acceptance, count) / time as f64
                };
                let best = (0..=15).max_by(|&a, &b| rate(a).total_cmp(&rate(b)));
                let best = best.unwrap();
                let mut one = [candidate(acceptance, 15)];
                choose(&mut one, &rows(1), &costs);
                if rate(best) > MARGIN * rate(0) {
                    assert_eq!(one[0].count, best, "{costs:?} {acceptance}");
                } else {
                    assert_eq!(one[0].count, 0, "{costs:?} {acceptance}");
                }
            }
        }
    }

    #[test]
    fn several_rows_get_what_is_best_for_all_together() {
        let costs = costs(2_000, 150, 100);
        let acceptances = [0.3, 0.6, 0.85];
        let rate = |counts: [u32; 3]| {
            let tokens: f64 = (0..3).map(|i| expected(acceptances[i], counts[i])).sum();
            let drafts: u32 = counts.iter().sum();
            tokens / f64::from(2_000 + 150 * (3 + drafts) + 100)
        };
        let all = (0..6).flat_map(|a| (0..6).flat_map(move |b| (0..6).map(move |c| [a, b, c])));
        let best = all.max_by(|&a, &b| rate(a).total_cmp(&rate(b))).unwrap();

        let mut three = acceptances.map(|acceptance| candidate(acceptance, 5));
        assert!(choose(&mut three, &rows(3), &costs));
        assert_eq!(three.map(|candidate| candidate.count), best);
    }

    #[test]
    fn no_drafts_where_rows_cost_as_much_as_steps_or_the_overlap_is_worth_more() {
        let mut one = [candidate(0.9, 15)];
        assert!(!choose(&mut one, &rows(1), &costs(0, 1_000, 0)));
        assert!(!choose(&mut one, &rows(1), &costs(100, 0, 100_000)));
        // One stream of 64 that guesses well does not pay for the lost overlap of all.
        assert!(!choose(&mut one, &rows(64), &costs(1_600, 43, 400)));
        assert!(choose(&mut one, &rows(1), &costs(1_600, 43, 400)));
        let mut none = [candidate(0.0, 15)];
        assert!(!choose(&mut none, &rows(1), &costs(1_600, 43, 0)));
    }

    #[test]
    fn the_longer_a_guess_takes_the_fewer_there_are() {
        let number = |rows_of_step: u32, guess: u64| {
            let mut costs = costs(2_000, 20, 100);
            costs.guess = Duration::from_micros(guess);
            let mut one = [candidate(0.8, 15)];
            choose(&mut one, &rows(rows_of_step), &costs);
            one[0].count
        };
        let numbers = [0, 100, 400, 1_000, 1_800].map(|guess| number(1, guess));
        assert!(numbers.is_sorted_by(|a, b| a > b), "{numbers:?}");
        assert_eq!(numbers[4], 0);
        // Among more rows than small steps have.
        let numbers = [0, 10, 200].map(|guess| number(20, guess));
        assert!(numbers.is_sorted_by(|a, b| a > b), "{numbers:?}");
        assert_eq!(numbers[2], 0);
    }

    #[test]
    fn computed_guesses_are_there_at_any_time_and_overdue_after_some_tokens() {
        let mut guesses = Guesses::NONE;
        guesses.compute(40);
        let mut costs = costs(1_000, 0, 0);
        costs.guess = Duration::from_micros(10);
        assert_eq!(guesses.most_computed(), MAX_DRAFTS as u32);
        assert_eq!(guesses.later(1), (MAX_DRAFTS as u32, 1.0));
        for _ in 0..TOKENS_WITHOUT_GUESS {
            assert!(!guesses.are_overdue(1, &costs));
            guesses.take(7);
        }
        assert!(guesses.are_overdue(1, &costs));
        assert!(guesses.are_overdue(6, &costs));
        assert!(!guesses.are_overdue(7, &costs), "they would take longer");
        guesses.set(&[7]);
        guesses.take(7);
        assert!(!guesses.are_overdue(1, &costs));

        let mut found = Guesses::NONE;
        found.set(&[1, 2, 3]);
        assert_eq!(found.later(0), (3, 1.0));
        assert_eq!(found.later(1), (2, found.acceptance()));
        assert!((0..300).all(|_| {
            found.take(9);
            !found.are_overdue(1, &costs)
        }));
    }

    #[test]
    fn a_step_that_takes_longer_from_some_number_of_rows_on_has_fewer() {
        let mut costs = costs(900, 100, 0);
        for rows in 0..=SMALL_STEP_TOKENS {
            let micros = if rows <= 4 { 1_000 } else { 2_500 };
            costs.small_steps.lone[rows] = Duration::from_micros(micros);
        }
        let mut one = [candidate(0.8, 15)];
        assert!(choose(&mut one, &rows(1), &costs));
        assert_eq!(one[0].count, 3);
        // With many drafts that hold, the larger step is worth it.
        let mut one = [candidate(0.99, 15)];
        assert!(choose(&mut one, &rows(1), &costs));
        assert_eq!(one[0].count, 15);
    }

    #[test]
    fn unknown_costs_try_every_draft() {
        let mut one = [candidate(0.5, 7)];
        assert!(choose(&mut one, &rows(1), &Costs::default()));
        assert_eq!(one[0].count, 7);
        assert!(choose(&mut one, &rows(1), &costs(1_000, 0, 0)));
        assert_eq!(one[0].count, 7);
    }

    #[test]
    fn guesses_that_were_not_verified_are_counted_too() {
        let mut guesses = Guesses::NONE;
        assert_eq!((guesses.tokens(), guesses.acceptance()), (&[][..], 0.75));
        guesses.set(&[1, 2, 3, 4]);
        guesses.take(1);
        guesses.take(2);
        assert_eq!(guesses.tokens(), [3, 4]);
        assert!(guesses.acceptance() > 0.7);
        guesses.take(9);
        guesses.take(4);
        assert_eq!(guesses.tokens(), [0; 0]);
        for round in 0..2_000 {
            guesses.set(&[round]);
            guesses.take(if round % 10 < 3 { round } else { round + 1 });
        }
        assert!((guesses.acceptance() - 0.3).abs() < 0.15);
        guesses.set(&[5; 40]);
        assert_eq!(guesses.tokens().len(), MAX_DRAFTS);
    }
}
