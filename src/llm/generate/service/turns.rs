use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound::{Excluded, Unbounded};

/// Waiting work of tenants who take turns, each with one piece. The work of one tenant keeps its order.
#[derive(Debug)]
pub struct Turns<T> {
    waiting: BTreeMap<u32, VecDeque<T>>,
    last_tenant: u32,
}

impl<T> Default for Turns<T> {
    fn default() -> Self {
        Self {
            waiting: BTreeMap::new(),
            last_tenant: 0,
        }
    }
}

impl<T> Turns<T> {
    /// Adds the last piece of work of a tenant.
    pub fn push(&mut self, tenant: u32, work: T) {
        self.waiting.entry(tenant).or_default().push_back(work);
    }

    /// Takes the first piece of the next tenant for whom `may_come` is true, and returns it with the tenant.
    pub fn pop(&mut self, may_come: impl Fn(u32) -> bool) -> Option<(u32, T)> {
        let later = self.waiting.range((Excluded(self.last_tenant), Unbounded));
        let others = self.waiting.range(..=self.last_tenant);
        let mut tenants = later.chain(others).map(|(&tenant, _)| tenant);
        let tenant = tenants.find(|&tenant| may_come(tenant))?;
        let own = self.waiting.get_mut(&tenant)?;
        let work = own.pop_front()?;
        if own.is_empty() {
            self.waiting.remove(&tenant);
        }
        self.last_tenant = tenant;
        Some((tenant, work))
    }

    /// Pieces of all tenants.
    pub fn len(&self) -> usize {
        self.waiting.values().map(VecDeque::len).sum()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Pieces of one tenant.
    pub fn len_of(&self, tenant: u32) -> usize {
        self.waiting.get(&tenant).map_or(0, VecDeque::len)
    }

    /// Takes all pieces, tenant by tenant.
    pub fn take_all(&mut self) -> impl Iterator<Item = T> + use<T> {
        std::mem::take(&mut self.waiting).into_values().flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tenants_take_turns_and_some_may_be_passed_over() {
        let mut turns = Turns::default();
        for (tenant, work) in [(7, 'a'), (7, 'b'), (7, 'c'), (0, 'd'), (9, 'e'), (0, 'f')] {
            turns.push(tenant, work);
        }
        assert_eq!((turns.len(), turns.len_of(7), turns.len_of(8)), (6, 3, 0));
        assert_eq!(turns.pop(|_| true), Some((7, 'a')));
        assert_eq!(turns.pop(|tenant| tenant != 9), Some((0, 'd')));
        assert_eq!(turns.pop(|_| false), None);
        let rest: String = std::iter::from_fn(|| turns.pop(|_| true))
            .map(|(_, work)| work)
            .collect();
        assert_eq!(rest, "befc");
        assert!(turns.is_empty());
        turns.push(3, 'g');
        turns.push(1, 'h');
        assert!(turns.take_all().eq(['h', 'g']));
        assert!(turns.is_empty());
    }
}
