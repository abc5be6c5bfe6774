//! Draft tokens: what is guessed of each request, how often guesses hold, and how many of them a step verifies.

use std::time::Duration;

use super::{Costs, SMALL_STEP_TOKENS, Token};

/// Most draft tokens of a row.
pub const MAX_DRAFTS: usize = 15;

/// Weight of a guess relative to the one after it.
const KEPT: f64 = 0.95;

/// A step with drafts must promise so much more than one without: measured costs are not exact.
const MARGIN: f64 = 1.02;

/// Guesses of the next tokens of a request.
#[derive(Debug, Clone, Copy)]
pub(super) struct Guesses {
    tokens: [Token; MAX_DRAFTS],
    count: u8,
    /// Guesses that were right, and all; the latest count most.
    right: f64,
    all: f64,
}

impl Guesses {
    pub const NONE: Self = Self {
        tokens: [0; MAX_DRAFTS],
        count: 0,
        // As if one of two had been right.
        right: 1.0,
        all: 2.0,
    };

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
            return;
        };
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

    /// With drafts.
    fn lone_time(&self, drafts: u32, costs: &Costs) -> f64 {
        let rows = self.decode_rows + drafts;
        costs
            .step_time(rows, self.prompt_tokens, true)
            .as_secs_f64()
    }
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
    let draft_time = costs.decode_row.as_secs_f64();
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
        for (step, row, lone) in [(1_500, 80, 60), (10_000, 3_000, 100), (900, 10, 0)] {
            let costs = costs(step, row, lone);
            for acceptance in [0.05, 0.2, 0.5, 0.7, 0.9, 0.97] {
                let rate = |count: u32| {
                    let lone = if count > 0 { lone } else { 0 };
                    expected(acceptance, count) / (step + row * u64::from(1 + count) + lone) as f64
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
        assert_eq!((guesses.tokens(), guesses.acceptance()), (&[][..], 0.5));
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
