//! Tokens of all requests in one arena of blocks, each as long as a page, with the pages' keys.

use super::keys::PageKey;
use super::{NONE, Token};

/// Blocks of `page_tokens` tokens, linked per request. Freed blocks are used again, so that the memory
/// is that of the most tokens there ever were at once.
#[derive(Debug)]
pub(super) struct TokenStore {
    page_tokens: usize,
    tokens: Vec<Token>, // (blocks, page_tokens)
    keys: Vec<PageKey>, // (blocks); of full blocks
    next: Vec<u32>,     // (blocks)
    free: u32,
}

/// The tokens of one request: positions 0 to `len - 1`.
#[derive(Debug, Clone, Copy)]
pub(super) struct TokenList {
    head: u32,
    tail: u32,
    pub len: u32,
    /// Key of the last full block, or the root of the chain.
    key: PageKey,
    /// The block read last: (its index in the list, its number).
    cursor: (u32, u32),
}

impl TokenList {
    pub fn new(root: PageKey) -> Self {
        Self {
            head: NONE,
            tail: NONE,
            len: 0,
            key: root,
            cursor: (0, NONE),
        }
    }
}

impl TokenStore {
    pub fn new(page_tokens: u32, blocks: usize) -> Self {
        let mut store = Self {
            page_tokens: page_tokens as usize,
            tokens: Vec::new(),
            keys: Vec::new(),
            next: Vec::new(),
            free: NONE,
        };
        store.grow(blocks.max(1));
        store
    }

    fn grow(&mut self, blocks: usize) {
        let first = self.next.len();
        self.tokens.resize((first + blocks) * self.page_tokens, 0);
        self.keys.resize(first + blocks, PageKey::default());
        self.next.resize(first + blocks, NONE);
        for block in (first..first + blocks).rev() {
            self.next[block] = self.free;
            self.free = block as u32;
        }
    }

    fn take(&mut self) -> u32 {
        if self.free == NONE {
            self.grow(self.next.len());
        }
        let block = self.free;
        self.free = std::mem::replace(&mut self.next[block as usize], NONE);
        block
    }

    /// Appends one token; a block that becomes full gets its key.
    pub fn push(&mut self, list: &mut TokenList, token: Token) {
        let offset = list.len as usize % self.page_tokens;
        if offset == 0 {
            let block = self.take();
            match list.tail {
                NONE => list.head = block,
                tail => self.next[tail as usize] = block,
            }
            list.tail = block;
        }
        let first = list.tail as usize * self.page_tokens;
        self.tokens[first + offset] = token;
        list.len += 1;
        if offset + 1 == self.page_tokens {
            list.key = list.key.next(&self.tokens[first..first + self.page_tokens]);
            self.keys[list.tail as usize] = list.key;
        }
    }

    pub fn clear(&mut self, list: &mut TokenList) {
        if list.head != NONE {
            self.next[list.tail as usize] = self.free;
            self.free = list.head;
        }
        *list = TokenList::new(list.key);
    }

    /// The block with page `index` of a list, which has it.
    fn block(&self, list: &mut TokenList, index: u32) -> u32 {
        if index == (list.len - 1) / self.page_tokens as u32 {
            return list.tail;
        }
        let (mut at, mut block) = match list.cursor {
            (at, block) if block != NONE && at <= index => (at, block),
            _ => (0, list.head),
        };
        while at < index {
            block = self.next[block as usize];
            at += 1;
        }
        list.cursor = (at, block);
        block
    }

    /// The key of page `index`, which is full.
    pub fn key(&self, list: &mut TokenList, index: u32) -> PageKey {
        debug_assert!((index + 1) * self.page_tokens as u32 <= list.len);
        self.keys[self.block(list, index) as usize]
    }

    /// Appends tokens `first` to `end - 1` of a list to `out`.
    pub fn read(&self, list: &mut TokenList, first: u32, end: u32, out: &mut Vec<Token>) {
        let mut at = first as usize;
        while at < end as usize {
            let block = self.block(list, (at / self.page_tokens) as u32) as usize;
            let offset = at % self.page_tokens;
            let count = (self.page_tokens - offset).min(end as usize - at);
            let start = block * self.page_tokens + offset;
            out.extend_from_slice(&self.tokens[start..start + count]);
            at += count;
        }
    }

    /// Blocks in use: all less the free ones. For checks.
    pub fn used_blocks(&self) -> usize {
        let mut free = 0;
        let mut block = self.free;
        while block != NONE {
            free += 1;
            block = self.next[block as usize];
        }
        self.next.len() - free
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_share_an_arena_and_read_back_what_was_pushed() {
        let mut store = TokenStore::new(4, 1);
        let root = PageKey([9; 32]);
        let mut even = TokenList::new(root);
        let mut odd = TokenList::new(root);
        for i in 0..21 {
            store.push(&mut even, 2 * i);
            store.push(&mut odd, 2 * i + 1);
        }

        let mut out = Vec::new();
        store.read(&mut even, 7, 21, &mut out); // forward
        store.read(&mut even, 0, 2, &mut out); // and back before the cursor
        assert_eq!(
            out[..14],
            [14, 16, 18, 20, 22, 24, 26, 28, 30, 32, 34, 36, 38, 40]
        );
        assert_eq!(out[14..], [0, 2]);
        let second = root.next(&[1, 3, 5, 7]).next(&[9, 11, 13, 15]);
        assert_eq!(store.key(&mut odd, 1), second);

        assert_eq!(store.used_blocks(), 12);
        store.clear(&mut even);
        assert_eq!(store.used_blocks(), 6);
        assert_eq!(even.len, 0);
        let blocks = store.next.len();
        let mut third = TokenList::new(root);
        for i in 0..24 {
            store.push(&mut third, i);
        }
        assert_eq!(store.next.len(), blocks, "freed blocks are used again");
        let mut out = Vec::new();
        store.read(&mut third, 0, 24, &mut out);
        assert_eq!(out, (0..24).collect::<Vec<Token>>());
    }
}
