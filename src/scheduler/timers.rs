//! The times at which requests expire: a binary heap that knows where each request is.

use std::time::Duration;

use super::NONE;

/// A time that never comes.
pub(super) const NEVER: Duration = Duration::MAX;

/// Requests by the time at which they expire; equal times by number of the entry.
#[derive(Debug, Default)]
pub(super) struct Timers {
    heap: Vec<(Duration, u32)>,
    positions: Vec<u32>, // (entries) index in `heap`, or NONE
}

impl Timers {
    pub fn with_capacity(entries: usize) -> Self {
        Self {
            heap: Vec::with_capacity(entries),
            positions: Vec::with_capacity(entries),
        }
    }

    /// Sets the time of an entry, instead of an earlier one; `NEVER` removes it.
    pub fn set(&mut self, entry: u32, time: Duration) {
        if self.positions.len() <= entry as usize {
            self.positions.resize(entry as usize + 1, NONE);
        }
        let mut at = self.positions[entry as usize] as usize;
        if time == NEVER {
            if at != NONE as usize {
                self.remove(at);
            }
            return;
        }
        if at == NONE as usize {
            at = self.heap.len();
            self.heap.push((time, entry));
            self.positions[entry as usize] = at as u32;
        }
        self.heap[at].0 = time;
        self.restore_order(at);
    }

    /// The earliest time, and its entry.
    pub fn first(&self) -> Option<(Duration, u32)> {
        self.heap.first().copied()
    }

    fn remove(&mut self, at: usize) {
        let (_, entry) = self.heap.swap_remove(at);
        self.positions[entry as usize] = NONE;
        if at < self.heap.len() {
            self.positions[self.heap[at].1 as usize] = at as u32;
            self.restore_order(at);
        }
    }

    fn restore_order(&mut self, mut at: usize) {
        while at > 0 && self.heap[at] < self.heap[(at - 1) / 2] {
            self.swap(at, (at - 1) / 2);
            at = (at - 1) / 2;
        }
        loop {
            let Some(child) = [2 * at + 1, 2 * at + 2]
                .into_iter()
                .filter(|&child| child < self.heap.len())
                .min_by_key(|&child| self.heap[child])
            else {
                return;
            };
            if self.heap[at] <= self.heap[child] {
                return;
            }
            self.swap(at, child);
            at = child;
        }
    }

    fn swap(&mut self, a: usize, b: usize) {
        self.heap.swap(a, b);
        self.positions[self.heap[a].1 as usize] = a as u32;
        self.positions[self.heap[b].1 as usize] = b as u32;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn the_first_is_the_earliest_whatever_was_set_and_removed_before() {
        let mut timers = Timers::default();
        let mut expected = BTreeSet::new();
        let mut times = [NEVER; 40];
        let mut random = 1u64;
        for _ in 0..4000 {
            random = random
                .wrapping_mul(6364136223846793005)
                .wrapping_add(1442695040888963407);
            let entry = (random >> 33) as usize % 40;
            let time = match (random >> 40) % 5 {
                0 => NEVER,
                _ => Duration::from_millis((random >> 50) % 50),
            };
            expected.remove(&(times[entry], entry as u32));
            times[entry] = time;
            if time != NEVER {
                expected.insert((time, entry as u32));
            }

            timers.set(entry as u32, time);

            assert_eq!(timers.first(), expected.first().copied());
        }
    }
}
