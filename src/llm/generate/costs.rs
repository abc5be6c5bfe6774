//! What steps take, learned from those that ran.

use std::array;
use std::time::Duration;

use crate::scheduler::{Costs, SMALL_STEP_TOKENS, SmallSteps};

/// Weight of a step relative to the one after it.
const KEPT: f64 = 0.98;

/// Part of a cost that is forgotten with each step if the latest steps say nothing of it.
const FORGOTTEN: f64 = 0.002;

/// Quantities that vary too little to learn from, of the sum of their squares.
const NEGLIGIBLE: f64 = 1e-6;

/// Explains the time of a step as a constant, a time for each decode row or draft, one for each prompt token and one for
/// a step that did not overlap with the one before, by least squares over the latest steps. None of the four is
/// negative.
#[derive(Debug)]
pub(super) struct CostMeter {
    /// Sums over steps of products of two quantities: 1, decode rows and drafts, prompt tokens, 1 if it was alone.
    products: [[f64; 4]; 4],
    /// Sums of each quantity times the step's seconds.
    times: [f64; 4],
    /// Seconds for each quantity.
    seconds: [f64; 4],
    /// Sums over steps without prompt tokens: 1, decode rows and drafts, their squares.
    rows: [f64; 3],
    /// Steps without prompt tokens by their rows and drafts, (overlapped or lone, rows).
    small: [[Mean; SMALL_STEP_TOKENS + 1]; 2],
    guess: Mean,
    restore_page: Duration,
}

/// The mean of the latest values, for some time.
#[derive(Debug, Default, Clone, Copy)]
struct Mean {
    seconds: f64,
    weight: f64,
}

impl Mean {
    fn add(&mut self, seconds: f64) {
        self.weight = (self.weight + 1.0).min(10.0);
        self.seconds += (seconds - self.seconds) / self.weight;
    }

    /// Zero if it is too old.
    fn get(&self) -> Duration {
        match self.weight < 0.3 {
            true => Duration::ZERO,
            false => Duration::from_secs_f64(self.seconds),
        }
    }
}

impl CostMeter {
    pub fn new(restore_page: Duration) -> Self {
        Self {
            products: [[0.0; 4]; 4],
            times: [0.0; 4],
            seconds: [0.0; 4],
            rows: [0.0; 3],
            small: Default::default(),
            guess: Mean::default(),
            restore_page,
        }
    }

    /// Learns from a step: its decode rows with their drafts, its prompt tokens, and whether none was in flight when it
    /// was planned.
    pub fn add(&mut self, rows: u32, prompt_tokens: u32, is_lone: bool, duration: Duration) {
        let step = [
            1.0,
            f64::from(rows),
            f64::from(prompt_tokens),
            f64::from(u8::from(is_lone)),
        ];
        self.products =
            array::from_fn(|i| array::from_fn(|j| KEPT * self.products[i][j] + step[i] * step[j]));
        self.times = array::from_fn(|i| KEPT * self.times[i] + step[i] * duration.as_secs_f64());
        // One coordinate after the other, from the last solution on. What may be either is a cost of the step, so that
        // drafts are tried until their cost is known.
        for i in [0, 2, 1, 3].repeat(4) {
            let square = self.products[i][i];
            if square > NEGLIGIBLE {
                let of_others: f64 = (0..4)
                    .filter(|&j| j != i)
                    .map(|j| self.products[i][j] * self.seconds[j])
                    .sum();
                self.seconds[i] = ((self.times[i] - of_others) / square).max(0.0);
            }
        }
        if prompt_tokens == 0 {
            let row_powers = [1.0, step[1], step[1] * step[1]];
            self.rows = array::from_fn(|i| KEPT * self.rows[i] + row_powers[i]);
            self.forget();
            for mean in self
                .small
                .as_flattened_mut()
                .iter_mut()
                .chain([&mut self.guess])
            {
                mean.weight *= 1.0 - FORGOTTEN;
            }
            if let Some(mean) = self.small[usize::from(is_lone)].get_mut(rows as usize) {
                mean.add(duration.as_secs_f64());
            }
        }
    }

    /// Learns from guesses that were computed, of one or several texts at once.
    pub fn add_guesses(&mut self, count: usize, duration: Duration) {
        if count > 0 {
            self.guess.add(duration.as_secs_f64() / count as f64);
        }
    }

    /// A few slow steps may have made drafts look expensive. Without drafts nothing would correct that, so the costs on
    /// which drafts depend fall until some are tried again.
    fn forget(&mut self) {
        let [count, sum, squares] = self.rows;
        let mean = sum / count;
        let are_alike = squares / count - mean * mean < 1e-3 * mean * mean;
        if are_alike {
            let part = FORGOTTEN * self.seconds[1];
            self.seconds[1] -= part;
            self.seconds[0] += part * mean;
        }
        if self.products[3][3] < 0.1 {
            self.seconds[3] *= 1.0 - FORGOTTEN;
        }
    }

    pub fn costs(&self) -> Costs {
        let [step, decode_row, prefill_token, lone_step] =
            self.seconds.map(Duration::from_secs_f64);
        Costs {
            step,
            decode_row,
            prefill_token,
            restore_page: self.restore_page,
            lone_step,
            guess: self.guess.get(),
            small_steps: SmallSteps {
                overlapped: self.small[0].map(|mean| mean.get()),
                lone: self.small[1].map(|mean| mean.get()),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn micros(count: f64) -> Duration {
        Duration::from_secs_f64(count * 1e-6)
    }

    /// Steps of 0 to 32 decode rows and 0 to 255 prompt tokens, with 10 % of noise.
    fn learn(meter: &mut CostMeter, steps: u32, step: f64, row: f64, token: f64) {
        for number in 0..steps {
            let (rows, tokens) = (number * 7 % 33, (number * 91 % 512).saturating_sub(256));
            let exact = step + row * f64::from(rows) + token * f64::from(tokens);
            let noise = 0.9 + 0.2 * f64::from(number * 37 % 100) / 100.0;
            meter.add(rows, tokens, false, micros(exact * noise));
        }
    }

    fn assert_near(found: Duration, micros: f64) {
        let found = found.as_secs_f64() * 1e6;
        assert!((found / micros - 1.0).abs() < 0.1, "{found} for {micros}");
    }

    #[test]
    fn costs_are_those_of_the_latest_steps() {
        let mut meter = CostMeter::new(micros(7.0));
        assert_eq!(meter.costs().prefill_token, Duration::ZERO);
        for (step, row, token) in [(5000.0, 200.0, 100.0), (900.0, 50.0, 30.0)] {
            learn(&mut meter, 600, step, row, token);
            let costs = meter.costs();
            assert_near(costs.step, step);
            assert_near(costs.decode_row, row);
            assert_near(costs.prefill_token, token);
            assert_eq!(costs.restore_page, micros(7.0));
        }
    }

    #[test]
    fn steps_of_one_kind_are_predicted_and_leave_the_cost_of_a_prompt() {
        let mut meter = CostMeter::new(Duration::ZERO);
        learn(&mut meter, 300, 1000.0, 10.0, 20.0);
        for _ in 0..20_000 {
            meter.add(24, 0, false, micros(3000.0));
        }
        let costs = meter.costs();
        assert_near(costs.step + costs.decode_row * 24, 3000.0);
        assert!(costs.prefill_token > Duration::ZERO);
    }

    #[test]
    fn costs_of_drafts_that_were_once_slow_are_forgotten() {
        let mut meter = CostMeter::new(Duration::ZERO);
        for _ in 0..100 {
            meter.add(1, 0, false, micros(1500.0));
        }
        for _ in 0..20 {
            meter.add(9, 0, true, micros(60_000.0));
        }
        assert!(meter.costs().decode_row + meter.costs().lone_step > micros(5_000.0));
        for number in 0..5_000 {
            meter.add(1, 0, false, micros(1500.0));
            if number % 100 == 0 {
                meter.add(0, 40, false, micros(2000.0));
            }
        }
        let costs = meter.costs();
        assert_near(costs.step + costs.decode_row, 1500.0);
        assert!(costs.decode_row < micros(150.0), "{costs:?}");
        assert!(costs.lone_step < micros(150.0), "{costs:?}");
    }

    #[test]
    fn small_steps_have_their_own_costs_until_they_are_old() {
        let mut meter = CostMeter::new(Duration::ZERO);
        let kernel = |rows: u32| if rows <= 4 { 1000.0 } else { 3000.0 };
        for number in 0..400 {
            let rows = 1 + number % 8;
            meter.add(rows, 0, rows > 1, micros(kernel(rows)));
        }
        let costs = meter.costs().small_steps;
        assert_near(costs.overlapped[1], 1000.0);
        assert_near(costs.lone[4], 1000.0);
        assert_near(costs.lone[5], 3000.0);
        assert_eq!((costs.lone[1], costs.lone[9]), Default::default());
        for _ in 0..3_000 {
            meter.add(1, 0, false, micros(1000.0));
        }
        let costs = meter.costs().small_steps;
        assert_eq!(costs.lone[5], Duration::ZERO);
        assert_near(costs.overlapped[1], 1000.0);
    }

    #[test]
    fn one_row_says_nothing_of_drafts_until_some_are_tried() {
        let mut meter = CostMeter::new(Duration::ZERO);
        meter.add(0, 200, false, micros(9000.0));
        for _ in 0..200 {
            meter.add(1, 0, false, micros(1500.0));
        }
        let costs = meter.costs();
        assert_near(costs.step, 1500.0);
        assert!(costs.decode_row < micros(10.0), "{costs:?}");
        for drafts in 0..200 {
            let drafts = drafts % 9;
            let exact = 1420.0 + 80.0 * f64::from(1 + drafts);
            let is_lone = drafts > 0;
            let lone = if is_lone { 150.0 } else { 0.0 };
            meter.add(1 + drafts, 0, is_lone, micros(exact + lone));
        }
        let costs = meter.costs();
        assert_near(costs.decode_row, 80.0);
        assert_near(costs.step + costs.decode_row + costs.lone_step, 1650.0);
    }
}
