//! An engine without a model, for tests of the scheduler. Its pages hold what was really written, and the
//! token that a row samples is a hash of all that its sequence can read: a page that was lost, shared or
//! overwritten by mistake shows in the text. It panics where a real engine would refuse a call.
#![allow(dead_code)] // each test file uses what it needs

use std::collections::{HashMap, HashSet, VecDeque};
use std::time::Duration;

use worker_cuda::scheduler::{
    Costs, MAX_DRAFTS, PageKey, Plan, RequestId, Row, RowOutcome, Stats, Token,
};

/// Sampled tokens are below this.
pub const VOCABULARY: u32 = 29;

const UNWRITTEN: u64 = u64::MAX;

struct Page {
    cells: Vec<u64>, // (page_tokens)
    references: u32,
    key: Option<PageKey>,
    salt: u32,
}

struct Sequence {
    request: RequestId,
    salt: u32,
    pages: Vec<usize>,
    length: usize,
    sampled: Option<Token>,
    rows_in_flight: u32,
    /// The row in flight has drafts.
    has_drafts: bool,
    /// A row in flight failed; the rows that continue it are skipped.
    has_failed: bool,
}

struct RowInFlight {
    serial: u64,
    /// Forks that were made since, of what it computes.
    forks: Vec<u64>,
    first_position: usize,
    /// Positions of the sequence without the drafts that do not hold.
    kept: usize,
    outcome: RowOutcome,
}

struct StepInFlight {
    number: u64,
    rows: Vec<RowInFlight>,
    fails: bool,
    duration: Duration,
}

/// How a step ended, as a caller passes it to the scheduler.
pub enum Finished {
    Done(Vec<RowOutcome>),
    Failed,
}

pub struct SimulatedEngine {
    page_tokens: usize,
    pages: Vec<Page>,
    free: Vec<usize>,
    used: VecDeque<usize>, // keyed pages without an owner, least recently used first
    keyed: HashMap<PageKey, usize>,
    sequences: HashMap<u64, Sequence>, // by serial number
    numbers: HashMap<u32, u64>,        // serial number of each sequence of a plan
    next_serial: u64,
    saved: HashMap<RequestId, Vec<u64>>,
    lost: HashSet<RequestId>,
    in_flight: VecDeque<StepInFlight>,
    costs: Costs,
    is_broken: bool,
}

/// The token that follows `tokens`, computed without pages.
pub fn solo_token(tokens: &[Token]) -> Token {
    let cells = tokens
        .iter()
        .enumerate()
        .map(|(position, &token)| cell(position, token));
    sample(cells)
}

fn cell(position: usize, token: Token) -> u64 {
    (u64::from(token) << 32 | position as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 1
}

fn sample(cells: impl Iterator<Item = u64>) -> Token {
    let mixed = cells.fold(7, |sum: u64, cell| {
        (sum.rotate_left(23) ^ cell).wrapping_mul(0xd134_2543_de82_ef95)
    });
    (mixed >> 33) as u32 % VOCABULARY
}

impl SimulatedEngine {
    pub fn new(page_tokens: u32, page_count: u32, costs: Costs) -> Self {
        let page = |_| Page {
            cells: vec![UNWRITTEN; page_tokens as usize],
            references: 0,
            key: None,
            salt: 0,
        };
        Self {
            page_tokens: page_tokens as usize,
            pages: (0..page_count).map(page).collect(),
            free: (0..page_count as usize).collect(),
            used: VecDeque::new(),
            keyed: HashMap::new(),
            sequences: HashMap::new(),
            numbers: HashMap::new(),
            next_serial: 0,
            saved: HashMap::new(),
            lost: HashSet::new(),
            in_flight: VecDeque::new(),
            costs,
            is_broken: false,
        }
    }

    /// Carries out a plan. `fault` is asked for the outcome of each row that should not end well, and
    /// the whole step fails if `fails`.
    pub fn execute(
        &mut self,
        plan: &Plan,
        salt_of: impl Fn(RequestId) -> u32,
        mut fault: impl FnMut(&Row) -> Option<RowOutcome>,
        fails: bool,
    ) {
        if plan.resets_engine() {
            self.reset();
        }
        assert!(!self.is_broken, "a failed engine was not reset");
        for publish in plan.publishes() {
            let serial = self.numbers[&publish.sequence];
            for (offset, key) in plan.keys(publish.keys).iter().enumerate() {
                let page = self.sequences[&serial].pages[publish.first_page as usize + offset];
                assert!(
                    self.keyed.insert(*key, page).is_none(),
                    "the key has a page already"
                );
                assert!(
                    self.pages[page].key.replace(*key).is_none(),
                    "the page has a key already"
                );
                assert!(
                    !self.pages[page].cells.contains(&UNWRITTEN),
                    "the page is not full"
                );
            }
        }
        for truncation in plan.truncations() {
            let serial = self.numbers[&truncation.sequence];
            self.truncate(serial, truncation.token_count as usize);
        }
        for save in plan.saves() {
            let sequence = &self.sequences[&self.numbers[&save.sequence]];
            assert_eq!(sequence.request, save.request);
            let cells = (0..sequence.length)
                .map(|at| self.read(sequence, at))
                .collect();
            assert!(
                self.saved.insert(save.request, cells).is_none(),
                "saved twice"
            );
            assert!(plan.releases().contains(&save.sequence));
        }
        for number in plan.releases() {
            let serial = self.numbers.remove(number).expect("a sequence to release");
            let pages = self.sequences.remove(&serial).unwrap().pages;
            self.release(&pages);
        }
        for request in plan.dropped_saves() {
            let was_saved = self.saved.remove(request).is_some() || self.lost.contains(request);
            assert!(was_saved, "nothing was saved");
        }
        for admission in plan.admissions() {
            let keys = plan.keys(admission.keys);
            let tokens = plan.tokens(admission.tokens);
            assert_eq!(tokens.len(), keys.len() * self.page_tokens);
            let salt = salt_of(admission.request);
            let serial = self.create(admission.request, admission.sequence, salt);
            for key in keys {
                let page = *self.keyed.get(key).expect("a cached page");
                assert_eq!(self.pages[page].salt, salt, "pages are shared across salts");
                if self.pages[page].references == 0 {
                    self.used.retain(|&other| other != page);
                }
                self.pages[page].references += 1;
                self.sequences.get_mut(&serial).unwrap().pages.push(page);
            }
            self.sequences.get_mut(&serial).unwrap().length = tokens.len();
            self.expect_contents(serial, tokens);
        }
        for restore in plan.restores() {
            let mut cells = self
                .saved
                .remove(&restore.request)
                .expect("a saved sequence");
            assert!(cells.len() >= restore.token_count as usize);
            cells.truncate(restore.token_count as usize);
            let salt = salt_of(restore.request);
            let serial = self.create(restore.request, restore.sequence, salt);
            for cell in cells {
                self.append(serial, cell);
            }
            self.expect_contents(serial, plan.tokens(restore.tokens));
        }
        for fork in plan.forks() {
            let salt = salt_of(fork.request);
            let serial = self.create(fork.request, fork.sequence, salt);
            self.fork(
                self.numbers[&fork.parent],
                serial,
                fork.token_count as usize,
            );
        }
        if !plan.rows().is_empty() {
            self.submit(plan, &mut fault, fails);
        }
    }

    /// Fills a sequence with the first `length` positions of another one: shares full pages, copies the rest.
    fn fork(&mut self, parent: u64, serial: u64, length: usize) {
        let source = &self.sequences[&parent];
        assert_eq!(source.salt, self.sequences[&serial].salt);
        assert!(length <= source.length, "the parent is too short");
        assert!(!source.has_drafts, "a row with drafts is in flight");
        let full = length / self.page_tokens;
        let shared = source.pages[..full].to_vec();
        let rest: Vec<u64> = (full * self.page_tokens..length)
            .map(|at| self.read(source, at))
            .collect();
        let has_failed = source.has_failed;
        for &page in &shared {
            self.pages[page].references += 1;
        }
        let fork = self.sequences.get_mut(&serial).unwrap();
        (fork.length, fork.pages) = (shared.len() * self.page_tokens, shared);
        for cell in rest {
            self.append(serial, cell);
        }
        for row in self.in_flight.iter_mut().flat_map(|step| &mut step.rows) {
            assert!(
                !row.forks.contains(&parent),
                "a fork of what is not certain"
            );
            if row.serial == parent && row.first_position < length {
                row.forks.push(serial);
                self.sequences.get_mut(&serial).unwrap().has_failed = has_failed;
            }
        }
    }

    fn submit(
        &mut self,
        plan: &Plan,
        fault: &mut impl FnMut(&Row) -> Option<RowOutcome>,
        fails: bool,
    ) {
        assert!(self.in_flight.len() < 2, "a third step is in flight");
        let rows = plan.rows();
        let mut step = StepInFlight {
            number: plan.step(),
            rows: Vec::new(),
            fails: fails || self.in_flight.back().is_some_and(|step| step.fails),
            duration: self.costs.step,
        };
        if self.in_flight.is_empty() {
            step.duration += self.costs.lone_step;
        }
        for row in rows {
            let serial = self.numbers[&row.sequence];
            let sequence = self.sequences.get_mut(&serial).unwrap();
            assert_eq!(
                sequence.request, row.request,
                "another request has the sequence"
            );
            assert_eq!(
                sequence.length, row.first_position as usize,
                "the row leaves a gap"
            );
            assert!(!sequence.has_drafts, "a row with drafts is in flight");
            sequence.rows_in_flight += 1;
            let skipped = sequence.has_failed;
            let fed = [sequence.sampled.take().unwrap_or(0)];
            let tokens = match plan.tokens(row.tokens) {
                [] => &fed,
                tokens => tokens,
            };
            assert_eq!(tokens.len(), row.token_count as usize);
            for (offset, &token) in tokens.iter().enumerate() {
                self.append(serial, cell(row.first_position as usize + offset, token));
            }
            let outcome = if skipped {
                Some(RowOutcome::Skipped)
            } else {
                fault(row)
            };
            let mut token = row.samples.then(|| self.sample(serial));
            let drafts = plan.tokens(row.drafts);
            assert!(drafts.len() <= MAX_DRAFTS);
            assert!(drafts.is_empty() || row.samples && !row.is_late);
            let (mut held, mut holds) = (0, true);
            for &draft in drafts {
                let position = self.sequences[&serial].length;
                self.append(serial, cell(position, draft));
                holds &= token == Some(draft);
                if holds {
                    (held, token) = (held + 1, Some(self.sample(serial)));
                }
            }
            let outcome = outcome.unwrap_or(match token {
                Some(token) if !drafts.is_empty() => RowOutcome::Drafted { held, token },
                token => RowOutcome::Ok(token),
            });
            let sequence = self.sequences.get_mut(&serial).unwrap();
            sequence.has_drafts = !drafts.is_empty();
            match outcome {
                RowOutcome::Ok(token) => sequence.sampled = token,
                RowOutcome::Drafted { token, .. } => sequence.sampled = Some(token),
                _ => sequence.has_failed = true,
            }
            step.duration += self.costs.decode_row * drafts.len() as u32;
            step.duration += match row.token_count {
                1 => self.costs.decode_row,
                tokens => self.costs.prefill_token * tokens,
            };
            step.rows.push(RowInFlight {
                serial,
                forks: Vec::new(),
                first_position: row.first_position as usize,
                kept: (row.first_position + row.token_count + held) as usize,
                outcome,
            });
        }
        self.in_flight.push_back(step);
    }

    /// Waits for the oldest step: its number, how long it ran, and its outcome.
    pub fn wait(&mut self) -> (u64, Duration, Finished) {
        let step = self.in_flight.pop_front().expect("a step in flight");
        if step.fails {
            self.is_broken = true;
            self.in_flight.clear();
            return (step.number, step.duration, Finished::Failed);
        }
        for row in &step.rows {
            let has_failed = !matches!(row.outcome, RowOutcome::Ok(_) | RowOutcome::Drafted { .. });
            for &fork in row.forks.iter().filter(|_| has_failed) {
                if self.sequences.contains_key(&fork) {
                    self.truncate(fork, row.first_position);
                }
            }
            if !self.sequences.contains_key(&row.serial) {
                continue;
            }
            if has_failed {
                self.truncate(row.serial, row.first_position);
            } else if let RowOutcome::Drafted { token, .. } = row.outcome {
                self.truncate(row.serial, row.kept);
                self.sequences.get_mut(&row.serial).unwrap().sampled = Some(token);
            }
            let sequence = self.sequences.get_mut(&row.serial).unwrap();
            sequence.rows_in_flight -= 1;
            sequence.has_drafts = false;
            sequence.has_failed |= has_failed;
            sequence.has_failed &= sequence.rows_in_flight > 0;
        }
        let outcomes = step.rows.iter().map(|row| row.outcome).collect();
        (step.number, step.duration, Finished::Done(outcomes))
    }

    /// Compares the pages with what the scheduler believes, and the owners of sequences with the
    /// requests that may have one.
    pub fn check(&self, stats: &Stats, is_live: impl Fn(RequestId) -> bool) {
        let held = self.pages.iter().filter(|page| page.references > 0).count();
        let found = (self.free.len(), self.used.len(), held);
        let believed = (stats.free_pages, stats.cached_pages, stats.held_pages);
        let believed = (
            believed.0 as usize,
            believed.1 as usize,
            believed.2 as usize,
        );
        assert_eq!(
            found, believed,
            "(free, cached, held) in the engine and in the scheduler"
        );
        assert_eq!(found.0 + found.1 + found.2, self.pages.len());
        let mut references = vec![0; self.pages.len()];
        for sequence in self.sequences.values() {
            assert!(is_live(sequence.request), "an ended request has a sequence");
            for &page in &sequence.pages {
                references[page] += 1;
            }
        }
        let counted: Vec<u32> = self.pages.iter().map(|page| page.references).collect();
        assert_eq!(references, counted, "references and owners of each page");
    }

    /// Forgets what was saved of a request.
    pub fn lose_saved(&mut self, request: RequestId) {
        assert!(self.saved.remove(&request).is_some(), "nothing was saved");
        self.lost.insert(request);
    }

    pub fn sequence_count(&self) -> usize {
        self.sequences.len()
    }

    pub fn saved_count(&self) -> usize {
        self.saved.len()
    }

    fn create(&mut self, request: RequestId, number: u32, salt: u32) -> u64 {
        self.next_serial += 1;
        let sequence = Sequence {
            request,
            salt,
            pages: Vec::new(),
            length: 0,
            sampled: None,
            rows_in_flight: 0,
            has_drafts: false,
            has_failed: false,
        };
        self.sequences.insert(self.next_serial, sequence);
        let replaced = self.numbers.insert(number, self.next_serial);
        assert!(replaced.is_none(), "sequence {number} is in use");
        self.next_serial
    }

    /// Writes the next position of a sequence, on a new page where one begins.
    fn append(&mut self, serial: u64, value: u64) {
        let sequence = self.sequences.get_mut(&serial).unwrap();
        let (index, offset) = (
            sequence.length / self.page_tokens,
            sequence.length % self.page_tokens,
        );
        if index == sequence.pages.len() {
            let page = self
                .free
                .pop()
                .or_else(|| self.used.pop_front())
                .expect("a free page");
            if let Some(key) = self.pages[page].key.take() {
                self.keyed.remove(&key);
            }
            self.pages[page].references = 1;
            self.pages[page].salt = sequence.salt;
            self.pages[page].cells.fill(UNWRITTEN);
            sequence.pages.push(page);
        }
        let page = &mut self.pages[sequence.pages[index]];
        assert_eq!(
            page.references, 1,
            "a page that can be written has one owner"
        );
        assert!(page.key.is_none(), "a shared page is not written");
        page.cells[offset] = value;
        sequence.length += 1;
    }

    fn truncate(&mut self, serial: u64, length: usize) {
        let sequence = self.sequences.get_mut(&serial).unwrap();
        sequence.length = sequence.length.min(length);
        sequence.sampled = None;
        let kept = sequence.length.div_ceil(self.page_tokens);
        let pages = sequence.pages.split_off(kept.min(sequence.pages.len()));
        self.release(&pages);
    }

    /// What follows all that a sequence has.
    fn sample(&self, serial: u64) -> Token {
        let sequence = &self.sequences[&serial];
        sample((0..sequence.length).map(|at| self.read(sequence, at)))
    }

    fn read(&self, sequence: &Sequence, position: usize) -> u64 {
        let page = sequence.pages[position / self.page_tokens];
        self.pages[page].cells[position % self.page_tokens]
    }

    fn expect_contents(&self, serial: u64, tokens: &[Token]) {
        let sequence = &self.sequences[&serial];
        for (position, &token) in tokens.iter().enumerate() {
            let found = self.read(sequence, position);
            assert_eq!(
                found,
                cell(position, token),
                "contents of position {position}"
            );
        }
    }

    fn release(&mut self, pages: &[usize]) {
        for &page in pages.iter().rev() {
            self.pages[page].references -= 1;
            if self.pages[page].references == 0 {
                match self.pages[page].key {
                    Some(_) => self.used.push_back(page),
                    None => self.free.push(page),
                }
            }
        }
    }

    fn reset(&mut self) {
        for page in &mut self.pages {
            page.references = 0;
            page.key = None;
        }
        self.free = (0..self.pages.len()).collect();
        self.used.clear();
        self.keyed.clear();
        self.sequences.clear();
        self.numbers.clear();
        self.in_flight.clear();
        self.is_broken = false;
    }
}
