//! What steps take, learned from those that ran.

use std::array;
use std::time::Duration;

use crate::scheduler::Costs;

/// Weight of a step relative to the one after it.
const KEPT: f64 = 0.98;

/// Quantities that vary too little to learn from, of the sum of their squares.
const NEGLIGIBLE: f64 = 1e-6;

/// Explains the time of a step as a constant, a time for each decode row and a time for each prompt token, by least
/// squares over the latest steps. None of the three is negative.
#[derive(Debug)]
pub(super) struct CostMeter {
    /// Sums over steps of products of two quantities: 1, decode rows, prompt tokens.
    products: [[f64; 3]; 3],
    /// Sums of each quantity times the step's seconds.
    times: [f64; 3],
    /// Seconds for each quantity.
    seconds: [f64; 3],
    restore_page: Duration,
}

impl CostMeter {
    pub fn new(restore_page: Duration) -> Self {
        Self {
            products: [[0.0; 3]; 3],
            times: [0.0; 3],
            seconds: [0.0; 3],
            restore_page,
        }
    }

    /// Learns from a step.
    pub fn add(&mut self, decode_rows: u32, prompt_tokens: u32, duration: Duration) {
        let step = [1.0, f64::from(decode_rows), f64::from(prompt_tokens)];
        self.products =
            array::from_fn(|i| array::from_fn(|j| KEPT * self.products[i][j] + step[i] * step[j]));
        self.times = array::from_fn(|i| KEPT * self.times[i] + step[i] * duration.as_secs_f64());
        // One coordinate after the other, from the last solution on.
        for i in [2, 1, 0].repeat(4) {
            let square = self.products[i][i];
            if square > NEGLIGIBLE {
                let of_others: f64 = (0..3)
                    .filter(|&j| j != i)
                    .map(|j| self.products[i][j] * self.seconds[j])
                    .sum();
                self.seconds[i] = ((self.times[i] - of_others) / square).max(0.0);
            }
        }
    }

    pub fn costs(&self) -> Costs {
        let [step, decode_row, prefill_token] = self.seconds.map(Duration::from_secs_f64);
        Costs {
            step,
            decode_row,
            prefill_token,
            restore_page: self.restore_page,
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
            meter.add(rows, tokens, micros(exact * noise));
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
            meter.add(24, 0, micros(3000.0));
        }
        let costs = meter.costs();
        assert_near(costs.step + costs.decode_row * 24, 3000.0);
        assert!(costs.prefill_token > Duration::ZERO);
    }
}
