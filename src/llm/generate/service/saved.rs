//! Preempted sequences in pinned memory.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use super::model_engine::PAGE_TOKENS;
use crate::core::context::CudaContext;
use crate::core::error::{Error, ErrorKind, Result};
use crate::core::memory::PinnedBuffer;
use crate::core::stream::PendingCopy;
use crate::llm::engine::{Engine, Sequence, Token};
use crate::scheduler::{RequestId, Save};

/// Pages of the sequence whose restoring is measured.
const MEASURED_PAGES: u32 = 8;

/// Sequences outside the KV cache. Their memory is allocated when it is needed first, and used again.
pub(super) struct SavedSequences {
    context: CudaContext,
    page_bytes: usize,
    max_pages: u32,
    /// Pages of all memory below.
    allocated: u32,
    saved: HashMap<RequestId, Copy>,
    /// Only their memory is still needed.
    ending: Vec<Copy>,
    unused: Vec<PinnedBuffer<u8>>,
    lost: Vec<RequestId>,
}

struct Copy {
    pending: PendingCopy<u8>,
    pages: u32,
}

impl SavedSequences {
    pub fn new(context: &CudaContext, page_bytes: usize, max_pages: u32) -> Self {
        Self {
            context: context.clone(),
            page_bytes,
            max_pages,
            allocated: 0,
            saved: HashMap::new(),
            ending: Vec::new(),
            unused: Vec::new(),
            lost: Vec::new(),
        }
    }

    /// The time to restore a page, on an engine without steps in flight: the least of some trials.
    pub fn measure(&mut self, engine: &mut Engine, max_tokens: u32) -> Result<Duration> {
        let pages = max_tokens.div_ceil(PAGE_TOKENS).min(MEASURED_PAGES);
        let pages = pages.min(self.max_pages);
        if pages == 0 {
            return Ok(Duration::ZERO);
        }
        let Some(mut memory) = self.memory(pages) else {
            return Ok(Duration::ZERO);
        };
        let tokens = vec![0; (pages * PAGE_TOKENS).min(max_tokens) as usize];
        let mut least = Duration::MAX;
        for _ in 0..3 {
            let sequence = engine.create_sequence()?;
            let begin = Instant::now();
            memory = engine.restore(&sequence, &tokens, memory)?.wait()?;
            least = least.min(begin.elapsed());
        }
        self.unused.push(memory);
        Ok(least / pages)
    }

    /// Queues a copy of a sequence. Without memory for it, the sequence is lost.
    pub fn save(&mut self, engine: &mut Engine, sequence: &Sequence, save: &Save) {
        let Some(memory) = self.memory(save.page_count) else {
            return self.lost.push(save.request);
        };
        let pages = self.pages(&memory);
        match engine.save(sequence, memory) {
            Ok(pending) => drop(self.saved.insert(save.request, Copy { pending, pages })),
            Err(_) => {
                self.allocated -= pages;
                self.lost.push(save.request);
            }
        }
    }

    /// The saves that failed since the last call.
    pub fn take_lost(&mut self) -> Vec<RequestId> {
        std::mem::take(&mut self.lost)
    }

    /// Queues the copy of the first positions of a saved sequence into an empty one.
    pub fn restore(
        &mut self,
        engine: &mut Engine,
        sequence: &Sequence,
        request: RequestId,
        tokens: &[Token],
    ) -> Result<()> {
        let saved = self.saved.remove(&request);
        let Copy { pending, pages } = saved.ok_or_else(|| {
            let message = "a plan restores a sequence that was not saved";
            Error::new(ErrorKind::Internal, message)
        })?;
        self.allocated -= pages; // until the memory is back
        // Saved before an earlier step, which has ended or runs.
        let pending = engine.restore(sequence, tokens, pending.wait()?)?;
        self.allocated += pages;
        self.ending.push(Copy { pending, pages });
        Ok(())
    }

    pub fn drop_saved(&mut self, request: RequestId) {
        self.ending.extend(self.saved.remove(&request));
    }

    /// Pinned memory for so many pages, or more.
    fn memory(&mut self, pages: u32) -> Option<PinnedBuffer<u8>> {
        self.collect();
        let bytes = pages as usize * self.page_bytes;
        let unused = self.unused.iter().enumerate();
        let fits = unused.filter(|(_, memory)| memory.len() >= bytes);
        if let Some((at, _)) = fits.min_by_key(|(_, memory)| memory.len()) {
            return Some(self.unused.swap_remove(at));
        }
        let wanted = pages.next_power_of_two().min(self.max_pages);
        while self.allocated + wanted > self.max_pages {
            let memory = self.unused.pop()?;
            self.allocated -= self.pages(&memory);
        }
        let wanted_bytes = wanted as usize * self.page_bytes;
        let memory = self.context.alloc_pinned(wanted_bytes).ok()?;
        self.allocated += wanted;
        Some(memory)
    }

    /// Takes back the memory of copies that are done.
    fn collect(&mut self) {
        for copy in std::mem::take(&mut self.ending) {
            match copy.pending.is_done() {
                Ok(false) => self.ending.push(copy),
                _ => match copy.pending.wait() {
                    Ok(memory) => self.unused.push(memory),
                    Err(_) => self.allocated -= copy.pages,
                },
            }
        }
    }

    fn pages(&self, memory: &PinnedBuffer<u8>) -> u32 {
        (memory.len() / self.page_bytes) as u32
    }
}
