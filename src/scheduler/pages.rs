//! Which pages of the KV cache are held, cached and free: the same rules as the engine's
//! (`cuda/src/llm/engine/page_pool.h`), so that the scheduler knows what a step will find without asking.
//!
//! ```text
//!            take                      release, not shareable
//!   free  ----------->  held  ------------------------------------>  free
//!                       |  ^
//!      release, keyed   |  |  share
//!                       v  |
//!                      cached  --- take, least recently used first --->  held (key forgotten)
//! ```

use super::NONE;
use super::keys::PageKey;

/// What a key stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Lookup {
    Absent,
    /// A step in flight, or the one being planned, computes this page.
    Computing,
    /// This page can be shared.
    Ready(u32),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// No key.
    Plain,
    /// In the table of keys, not found by its key yet: a row in flight computes it.
    Computing,
    /// Shareable.
    Ready,
}

#[derive(Debug, Clone)]
struct Page {
    references: u32,
    state: State,
    key: PageKey,
    next_in_bucket: u32,
    /// Neighbours in the order of last use, of cached pages.
    older: u32,
    newer: u32,
}

#[derive(Debug)]
pub(super) struct PagePool {
    pages: Vec<Page>,
    free: Vec<u32>,
    buckets: Vec<u32>, // (a power of two) first page of each bucket
    oldest: u32,
    newest: u32,
    cached: u32,
}

impl PagePool {
    pub fn new(count: u32) -> Self {
        let page = Page {
            references: 0,
            state: State::Plain,
            key: PageKey::default(),
            next_in_bucket: NONE,
            older: NONE,
            newer: NONE,
        };
        let mut pool = Self {
            pages: vec![page; count as usize],
            free: Vec::with_capacity(count as usize),
            buckets: vec![NONE; (count as usize).next_power_of_two()],
            oldest: NONE,
            newest: NONE,
            cached: 0,
        };
        pool.clear();
        pool
    }

    /// Forgets every page and every owner.
    pub fn clear(&mut self) {
        for page in &mut self.pages {
            page.references = 0;
            page.state = State::Plain;
        }
        self.buckets.fill(NONE);
        self.free.clear();
        self.free.extend((0..self.pages.len() as u32).rev());
        (self.oldest, self.newest, self.cached) = (NONE, NONE, 0);
    }

    pub fn total(&self) -> u32 {
        self.pages.len() as u32
    }

    pub fn free(&self) -> u32 {
        self.free.len() as u32
    }

    /// Pages with a key and without an owner.
    pub fn cached(&self) -> u32 {
        self.cached
    }

    pub fn held(&self) -> u32 {
        self.total() - self.available()
    }

    /// Pages that `take` can give.
    pub fn available(&self) -> u32 {
        self.free() + self.cached
    }

    pub fn is_cached(&self, page: u32) -> bool {
        self.pages[page as usize].references == 0
    }

    pub fn find(&self, key: &PageKey) -> Lookup {
        let mut page = self.buckets[self.bucket(key)];
        while page != NONE {
            let entry = &self.pages[page as usize];
            if entry.key == *key {
                return match entry.state {
                    State::Ready => Lookup::Ready(page),
                    _ => Lookup::Computing,
                };
            }
            page = entry.next_in_bucket;
        }
        Lookup::Absent
    }

    /// A page with one owner and unknown contents: a free one, else the cached one that was used least
    /// recently. None if all are held.
    pub fn take(&mut self) -> Option<u32> {
        let page = match self.free.pop() {
            Some(page) => page,
            None if self.oldest != NONE => {
                let page = self.oldest;
                self.unlink_used(page);
                self.forget_key(page);
                page
            }
            None => return None,
        };
        self.pages[page as usize].references = 1;
        Some(page)
    }

    /// One more owner of a page that `find` has returned, or of a full page of a sequence.
    pub fn share(&mut self, page: u32) {
        if self.pages[page as usize].references == 0 {
            debug_assert_eq!(self.pages[page as usize].state, State::Ready);
            self.unlink_used(page);
        }
        self.pages[page as usize].references += 1;
    }

    /// One owner less. The pages of a sequence are released last page first, so that the last page of
    /// a chain is evicted before those that it depends on.
    pub fn release(&mut self, page: u32) {
        let entry = &mut self.pages[page as usize];
        debug_assert!(entry.references > 0);
        entry.references -= 1;
        if entry.references > 0 {
            return;
        }
        if entry.state == State::Ready {
            entry.older = self.newest;
            entry.newer = NONE;
            match self.newest {
                NONE => self.oldest = page,
                newest => self.pages[newest as usize].newer = page,
            }
            self.newest = page;
            self.cached += 1;
        } else {
            self.forget_key(page);
            self.free.push(page);
        }
    }

    /// Announces that the owner of a page computes what `key` stands for, unless another page has the
    /// key already.
    pub fn announce(&mut self, page: u32, key: &PageKey) {
        if self.find(key) == Lookup::Absent {
            self.insert_key(page, key, State::Computing);
        }
    }

    /// Withdraws an announcement whose page was not computed.
    pub fn withdraw(&mut self, page: u32) {
        if self.pages[page as usize].state == State::Computing {
            self.forget_key(page);
        }
    }

    /// Makes a computed page shareable; false if another page has the key, or if this one has it
    /// already.
    pub fn publish(&mut self, page: u32, key: &PageKey) -> bool {
        match self.pages[page as usize].state {
            State::Ready => false,
            State::Computing => {
                debug_assert_eq!(self.pages[page as usize].key, *key);
                self.pages[page as usize].state = State::Ready;
                true
            }
            State::Plain => {
                let absent = self.find(key) == Lookup::Absent;
                if absent {
                    self.insert_key(page, key, State::Ready);
                }
                absent
            }
        }
    }

    fn bucket(&self, key: &PageKey) -> usize {
        key.number() as usize & (self.buckets.len() - 1)
    }

    fn insert_key(&mut self, page: u32, key: &PageKey, state: State) {
        let bucket = self.bucket(key);
        let entry = &mut self.pages[page as usize];
        entry.key = *key;
        entry.state = state;
        entry.next_in_bucket = self.buckets[bucket];
        self.buckets[bucket] = page;
    }

    fn forget_key(&mut self, page: u32) {
        if self.pages[page as usize].state == State::Plain {
            return;
        }
        self.pages[page as usize].state = State::Plain;
        let bucket = self.bucket(&self.pages[page as usize].key);
        let next = self.pages[page as usize].next_in_bucket;
        if self.buckets[bucket] == page {
            self.buckets[bucket] = next;
            return;
        }
        let mut before = self.buckets[bucket];
        while self.pages[before as usize].next_in_bucket != page {
            before = self.pages[before as usize].next_in_bucket;
        }
        self.pages[before as usize].next_in_bucket = next;
    }

    /// Takes a cached page out of the order of last use.
    fn unlink_used(&mut self, page: u32) {
        let Page { older, newer, .. } = self.pages[page as usize];
        match older {
            NONE => self.oldest = newer,
            older => self.pages[older as usize].newer = newer,
        }
        match newer {
            NONE => self.newest = older,
            newer => self.pages[newer as usize].older = older,
        }
        self.cached -= 1;
    }

    /// Compares every list and count with the owners of each page, given by how often it is held, and with whether steps
    /// in flight may compute pages.
    pub fn audit(&self, owners: &[u32], may_compute: bool) -> Result<(), String> {
        let mut seen = vec![0; self.pages.len()];
        for &page in &self.free {
            seen[page as usize] += 1;
        }
        let (mut page, mut older, mut cached) = (self.oldest, NONE, 0);
        while page != NONE {
            let entry = &self.pages[page as usize];
            if entry.older != older || entry.state != State::Ready {
                return Err(format!("page {page} is misplaced in the order of last use"));
            }
            seen[page as usize] += 1;
            cached += 1;
            (older, page) = (page, entry.newer);
        }
        if cached != self.cached || older != self.newest {
            return Err(format!(
                "{cached} pages are cached, {} counted",
                self.cached
            ));
        }
        for (page, entry) in self.pages.iter().enumerate() {
            let expected = if owners[page] == 0 { 1 } else { 0 };
            if entry.references != owners[page] || seen[page] != expected {
                return Err(format!(
                    "page {page} has {} references, {} owners and is listed {} times",
                    entry.references, owners[page], seen[page]
                ));
            }
            let found = self.find(&entry.key);
            let right = match entry.state {
                State::Plain => true,
                State::Computing => {
                    may_compute && found == Lookup::Computing && entry.references > 0
                }
                State::Ready => found == Lookup::Ready(page as u32),
            };
            if !right {
                return Err(format!("the key of page {page} finds {found:?}"));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(number: u8) -> PageKey {
        PageKey([number; 32])
    }

    #[test]
    fn least_recently_used_pages_go_first_and_the_end_of_a_chain_before_its_start() {
        let mut pool = PagePool::new(4);
        let chain: Vec<u32> = (0..3).map(|_| pool.take().unwrap()).collect();
        for (number, &page) in chain.iter().enumerate() {
            assert!(pool.publish(page, &key(number as u8)));
        }
        for &page in chain.iter().rev() {
            pool.release(page);
        }
        assert_eq!((pool.free(), pool.cached(), pool.held()), (1, 3, 0));

        pool.take().unwrap(); // the free one
        assert_eq!(pool.take(), Some(chain[2]));
        assert_eq!(pool.find(&key(2)), Lookup::Absent);
        assert_eq!(pool.find(&key(1)), Lookup::Ready(chain[1]));

        pool.share(chain[1]);
        assert_eq!(pool.take(), Some(chain[0]), "a shared page is not evicted");
        assert_eq!(pool.take(), None);
        assert_eq!((pool.free(), pool.cached(), pool.held()), (0, 0, 4));
    }

    #[test]
    fn one_page_per_key_and_none_before_it_is_published() {
        let mut pool = PagePool::new(3);
        let (a, b) = (pool.take().unwrap(), pool.take().unwrap());

        pool.announce(a, &key(1));
        assert_eq!(pool.find(&key(1)), Lookup::Computing);
        pool.announce(b, &key(1));
        assert!(!pool.publish(b, &key(1)), "the key belongs to page a");
        assert!(pool.publish(a, &key(1)));
        assert!(!pool.publish(a, &key(1)));
        assert_eq!(pool.find(&key(1)), Lookup::Ready(a));

        pool.announce(b, &key(2));
        pool.withdraw(b);
        assert_eq!(pool.find(&key(2)), Lookup::Absent);
        pool.announce(b, &key(2));
        pool.release(b);
        assert_eq!(
            pool.find(&key(2)),
            Lookup::Absent,
            "its owner left before it was computed"
        );
        assert_eq!((pool.free(), pool.cached(), pool.held()), (2, 0, 1));
        pool.audit(&[1, 0, 0], true).unwrap();
    }

    #[test]
    fn keys_of_one_bucket_are_found_and_removed_one_by_one() {
        let mut pool = PagePool::new(4); // 4 buckets: these keys share one
        let keys = [key(4), key(8), key(12), key(16)];
        let pages: Vec<u32> = keys
            .iter()
            .map(|key| {
                let page = pool.take().unwrap();
                pool.publish(page, key);
                page
            })
            .collect();

        for order in [1, 3, 0, 2] {
            assert_eq!(pool.find(&keys[order]), Lookup::Ready(pages[order]));
            pool.release(pages[order]);
            assert_eq!(pool.take(), Some(pages[order])); // evicts it
            assert_eq!(pool.find(&keys[order]), Lookup::Absent);
        }
        pool.audit(&[1; 4], true).unwrap();
        pool.clear();
        assert_eq!(pool.free(), 4);
        pool.audit(&[0; 4], true).unwrap();
    }
}
