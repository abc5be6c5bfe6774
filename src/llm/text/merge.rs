//! Byte-pair merging: neighbours become one token, the best pair first, until no pair is a token.

use std::cmp::Ordering;
use std::collections::{BinaryHeap, HashMap};

use crate::core::error::{Error, ErrorKind, Result};

/// A token that is not known (yet).
pub(crate) const NO_TOKEN: u32 = u32::MAX;
/// No neighbour.
const NONE: u32 = u32::MAX;

/// A run of text that is one token so far. `bytes` is 0 once its left neighbour has taken it.
#[derive(Clone, Copy)]
pub(crate) struct Symbol {
    begin: u32,
    bytes: u32,
    previous: u32,
    next: u32,
    /// Its id, or [`NO_TOKEN`].
    pub(crate) id: u32,
}

impl Symbol {
    /// The run itself.
    pub(crate) fn text<'t>(&self, text: &'t str) -> &'t str {
        &text[self.begin as usize..(self.begin + self.bytes) as usize]
    }
}

/// What two neighbours may become.
pub(crate) trait Pairs {
    /// The priority and the id of `left` and `right` together, whose text is `both`. Greater priorities
    /// go first, and of equal ones the leftmost.
    fn join(&self, left: u32, right: u32, both: &str) -> Option<(u32, u32)>;

    /// Whether `id` is a step to longer tokens only, and is split again where it stays.
    fn is_unused(&self, _id: u32) -> bool {
        false
    }
}

/// Two neighbours that may merge.
struct Candidate {
    priority: u32,
    left: u32,
    right: u32,
    id: u32,
    /// Length of both together; another length means that one of them has changed since.
    bytes: u32,
}

impl Ord for Candidate {
    fn cmp(&self, other: &Self) -> Ordering {
        let by_priority = self.priority.cmp(&other.priority);
        by_priority.then(other.left.cmp(&self.left))
    }
}

impl PartialOrd for Candidate {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Candidate {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Candidate {}

/// Room for the work of [`Merger::merge`], kept between calls.
#[derive(Default)]
pub(crate) struct Merger {
    symbols: Vec<Symbol>,
    queue: BinaryHeap<Candidate>,
    /// Of each unused token that could be made: the bytes of the left one of the pair, the last time.
    splits: HashMap<u32, u32>,
}

impl Merger {
    /// Makes the tokens of `text`: at first one for each of its `characters` (id, bytes), then merged.
    /// O(n log n).
    pub(crate) fn merge(
        &mut self,
        text: &str,
        characters: impl Iterator<Item = (u32, usize)>,
        pairs: &impl Pairs,
    ) -> Result<()> {
        if u32::try_from(text.len()).is_err() {
            return Err(Error::new(
                ErrorKind::LimitExceeded,
                format!(
                    "{} bytes of text in one piece, at most {} are accepted",
                    text.len(),
                    u32::MAX
                ),
            ));
        }
        self.start(characters);
        for right in 1..self.symbols.len() as u32 {
            self.offer(text, right - 1, right, pairs);
        }
        while let Some(candidate) = self.queue.pop() {
            let left = self.symbols[candidate.left as usize];
            let right = self.symbols[candidate.right as usize];
            if left.bytes == 0 || right.bytes == 0 || left.bytes + right.bytes != candidate.bytes {
                continue;
            }
            self.symbols[candidate.right as usize].bytes = 0;
            let merged = &mut self.symbols[candidate.left as usize];
            merged.bytes = candidate.bytes;
            merged.next = right.next;
            merged.id = candidate.id;
            if right.next != NONE {
                self.symbols[right.next as usize].previous = candidate.left;
            }
            self.offer(text, left.previous, candidate.left, pairs);
            self.offer(text, candidate.left, right.next, pairs);
        }
        Ok(())
    }

    /// The tokens that [`Merger::merge`] made, in order.
    pub(crate) fn symbols(&self) -> impl Iterator<Item = Symbol> + '_ {
        let live = |symbol: &&Symbol| symbol.bytes != 0;
        self.symbols.iter().filter(live).copied()
    }

    /// Bytes of the left one of the two tokens that the unused token `id` was last made of.
    pub(crate) fn split_of(&self, id: u32) -> Option<usize> {
        self.splits.get(&id).map(|&bytes| bytes as usize)
    }

    /// One symbol a character, linked in order.
    fn start(&mut self, characters: impl Iterator<Item = (u32, usize)>) {
        self.symbols.clear();
        self.queue.clear();
        self.splits.clear();
        let mut begin = 0;
        for (index, (id, bytes)) in (0u32..).zip(characters) {
            self.symbols.push(Symbol {
                begin,
                bytes: bytes as u32,
                previous: index.checked_sub(1).unwrap_or(NONE),
                next: index + 1,
                id,
            });
            begin += bytes as u32;
        }
        if let Some(last) = self.symbols.last_mut() {
            last.next = NONE;
        }
    }

    /// Puts the pair in the queue if both together are a token.
    fn offer(&mut self, text: &str, left: u32, right: u32, pairs: &impl Pairs) {
        if left == NONE || right == NONE {
            return;
        }
        let (a, b) = (self.symbols[left as usize], self.symbols[right as usize]);
        let bytes = a.bytes + b.bytes;
        let both = &text[a.begin as usize..(a.begin + bytes) as usize];
        if let Some((priority, id)) = pairs.join(a.id, b.id, both) {
            if pairs.is_unused(id) {
                self.splits.insert(id, a.bytes);
            }
            self.queue.push(Candidate {
                priority,
                left,
                right,
                id,
                bytes,
            });
        }
    }
}
