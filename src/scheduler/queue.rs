//! Requests that wait: by priority with ageing, then in turns between tenants, then in order of arrival.

use std::time::Duration;

use super::NONE;
use super::request::MAX_PRIORITY;
use super::table::Entry;

const LEVELS: usize = MAX_PRIORITY as usize + 1;

/// Time after which a waiting request moves up by one priority.
pub(super) const AGEING: Duration = Duration::from_secs(1);

/// A tenant's debt is at most this many rounds.
const MAX_DEBT_ROUNDS: i64 = 4;

/// The priority at `now` of a request of this rank. A rank is the time of arrival plus [`AGEING`] times
/// the priority: that order never changes while priorities age.
pub(super) fn level(rank: Duration, now: Duration) -> u8 {
    let left = rank
        .saturating_sub(now)
        .as_nanos()
        .div_ceil(AGEING.as_nanos());
    left.min(u128::from(MAX_PRIORITY)) as u8
}

#[derive(Debug, Clone)]
struct Tenant {
    /// First and last entry of each priority, in order of arrival.
    heads: [u32; LEVELS],
    tails: [u32; LEVELS],
    queued: u32,
    /// Tokens that may be computed for this tenant before it is the next one's turn; negative: a debt.
    deficit: i64,
    /// The plan in which its first request cannot be admitted.
    blocked_in: u64,
}

/// Deficit round-robin: a tenant is served until its deficit is used up; when those of all tenants that
/// wait at the same priority are, each grows by the quantum.
#[derive(Debug)]
pub(super) struct Queue {
    tenants: Vec<Tenant>,
    quantum: i64,
    turn: u32,
    len: u32,
}

impl Queue {
    pub fn new(tenants: u32, quantum: u32) -> Self {
        let tenant = Tenant {
            heads: [NONE; LEVELS],
            tails: [NONE; LEVELS],
            queued: 0,
            deficit: 0,
            blocked_in: 0,
        };
        Self {
            tenants: vec![tenant; tenants as usize],
            quantum: i64::from(quantum),
            turn: 0,
            len: 0,
        }
    }

    pub fn len(&self) -> u32 {
        self.len
    }

    /// Inserts an entry by its time of arrival. Only preempted ones have others behind them.
    pub fn push(&mut self, entries: &mut [Entry], index: u32) {
        let entry = &entries[index as usize];
        let (order, level) = (entry.order(), entry.priority as usize);
        let tenant = &mut self.tenants[entry.tenant as usize];
        let (mut before, mut after) = (tenant.tails[level], NONE);
        if before != NONE && entries[before as usize].order() > order {
            (before, after) = (NONE, tenant.heads[level]);
            while entries[after as usize].order() < order {
                (before, after) = (after, entries[after as usize].next);
            }
        }
        entries[index as usize].previous = before;
        entries[index as usize].next = after;
        match before {
            NONE => tenant.heads[level] = index,
            before => entries[before as usize].next = index,
        }
        match after {
            NONE => tenant.tails[level] = index,
            after => entries[after as usize].previous = index,
        }
        tenant.queued += 1;
        self.len += 1;
    }

    pub fn remove(&mut self, entries: &mut [Entry], index: u32) {
        let Entry {
            previous,
            next,
            tenant,
            priority,
            ..
        } = entries[index as usize];
        let (tenant, level) = (&mut self.tenants[tenant as usize], priority as usize);
        match previous {
            NONE => tenant.heads[level] = next,
            previous => entries[previous as usize].next = next,
        }
        match next {
            NONE => tenant.tails[level] = previous,
            next => entries[next as usize].previous = previous,
        }
        tenant.queued -= 1;
        self.len -= 1;
        if tenant.queued == 0 {
            tenant.deficit = 0;
        }
    }

    /// The first request of a tenant.
    fn head(&self, entries: &[Entry], tenant: &Tenant) -> Option<u32> {
        let waiting = tenant.heads.iter().filter(|&&head| head != NONE);
        waiting
            .copied()
            .min_by_key(|&head| entries[head as usize].order())
    }

    /// The request to admit next in plan number `plan`.
    pub fn pick(&mut self, entries: &[Entry], now: Duration, plan: u64) -> Option<u32> {
        let mut lowest = u8::MAX;
        for tenant in &self.tenants {
            if let Some(head) = self.candidate(entries, tenant, plan) {
                lowest = lowest.min(level(entries[head as usize].rank, now));
            }
        }
        if lowest == u8::MAX {
            return None;
        }
        let at_lowest = |queue: &Self, tenant: &Tenant| {
            queue
                .candidate(entries, tenant, plan)
                .filter(|&head| level(entries[head as usize].rank, now) == lowest)
        };

        let count = self.tenants.len() as u32;
        let mut missing = i64::MAX;
        for offset in 0..count {
            let number = (self.turn + offset) % count;
            let tenant = &self.tenants[number as usize];
            if let Some(head) = at_lowest(self, tenant) {
                if tenant.deficit > 0 {
                    self.turn = number;
                    return Some(head);
                }
                missing = missing.min(1 - tenant.deficit);
            }
        }
        // All are used up: as many rounds as the first of them needs. The turn moves on.
        let grown = (missing + self.quantum - 1) / self.quantum * self.quantum;
        let mut picked = None;
        for offset in 1..=count {
            let number = (self.turn + offset) % count;
            if let Some(head) = at_lowest(self, &self.tenants[number as usize]) {
                let tenant = &mut self.tenants[number as usize];
                tenant.deficit += grown;
                if picked.is_none() && tenant.deficit > 0 {
                    picked = Some((number, head));
                }
            }
        }
        let (number, head) = picked?;
        self.turn = number;
        Some(head)
    }

    fn candidate(&self, entries: &[Entry], tenant: &Tenant, plan: u64) -> Option<u32> {
        if tenant.queued == 0 || tenant.blocked_in == plan {
            return None;
        }
        self.head(entries, tenant)
    }

    /// Passes over a tenant for the rest of plan number `plan`.
    pub fn block(&mut self, tenant: u32, plan: u64) {
        self.tenants[tenant as usize].blocked_in = plan;
    }

    /// Tokens were computed for a tenant. A tenant of whose requests none waits pays nothing.
    pub fn charge(&mut self, tenant: u32, tokens: u32) {
        let quantum = self.quantum;
        let tenant = &mut self.tenants[tenant as usize];
        if tenant.queued > 0 {
            tenant.deficit = (tenant.deficit - i64::from(tokens)).max(-MAX_DEBT_ROUNDS * quantum);
        }
    }
}
