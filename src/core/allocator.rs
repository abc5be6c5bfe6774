//! Device memory by ids, for programs that keep numbers instead of owners.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::core::callback::lock_outside_callbacks;
use crate::core::context::CudaContext;
use crate::core::error::{Error, ErrorKind, Result};
use crate::core::ledger::Purpose;
use crate::core::memory::SafeCudaPtr;

/// Identifies one allocation of one [`CudaVramAllocator`]. It is not an address: it contains a generation, so the id
/// of a freed allocation never identifies a later one that uses the same memory.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct AllocationId(u64);

impl AllocationId {
    /// The id as a number, for logs and tables. Its bits have no meaning.
    pub fn as_u64(self) -> u64 {
        self.0
    }

    /// An id from [`as_u64`](Self::as_u64). Calls with any other number fail.
    pub fn from_u64(id: u64) -> Self {
        Self(id)
    }
}

impl fmt::Debug for AllocationId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AllocationId({:#018x})", self.0)
    }
}

type Shared = Arc<Mutex<SafeCudaPtr<u8>>>;

/// Allocations of one device, by id. Every call may be made from any thread; calls on different
/// allocations do not wait for each other. Dropping it frees what is left.
///
/// ```
/// # fn main() -> worker_cuda::Result<()> {
/// # let context = worker_cuda::CudaContext::host()?;
/// let allocator = worker_cuda::CudaVramAllocator::with_context(context);
/// let id = allocator.allocate(1024)?;
/// allocator.copy_to_vram(id, 1000, b"hello")?;
/// assert_eq!(allocator.copy_from_vram(id, 1000, 5)?, b"hello");
/// allocator.deallocate(id)?;
/// assert!(allocator.copy_from_vram(id, 1000, 5).is_err()); // stale for good
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct CudaVramAllocator {
    context: CudaContext,
    allocations: Mutex<HashMap<AllocationId, Shared>>,
}

impl CudaVramAllocator {
    /// Opens CUDA device `ordinal`. It is an error if there is none.
    pub fn new(ordinal: i32) -> Result<Self> {
        CudaContext::new(ordinal).map(Self::with_context)
    }

    /// Allocates from an open context, whose budgets apply.
    pub fn with_context(context: CudaContext) -> Self {
        Self {
            context,
            allocations: Mutex::default(),
        }
    }

    /// The device it allocates on.
    pub fn context(&self) -> &CudaContext {
        &self.context
    }

    /// Allocates `size` zero bytes (at least one).
    pub fn allocate(&self, size: u64) -> Result<AllocationId> {
        self.allocate_tagged(size, "")
    }

    /// As [`allocate`](Self::allocate), with a name for the ledger.
    pub fn allocate_tagged(&self, size: u64, tag: &str) -> Result<AllocationId> {
        let len = usize::try_from(size).unwrap_or(usize::MAX); // which is refused
        let buffer = self.context.alloc_tagged(len, tag)?;
        // The library never issues an id twice: it holds kind, generation and index in a table of the library.
        let id = AllocationId(buffer.raw_handle().id);
        self.table().insert(id, Arc::new(Mutex::new(buffer)));
        Ok(id)
    }

    /// Frees an allocation after the calls that use it have finished.
    pub fn deallocate(&self, id: AllocationId) -> Result<()> {
        let removed = self.table().remove(&id);
        removed.map(drop).ok_or_else(|| stale(id))
    }

    /// Writes `source` at byte `offset`.
    pub fn copy_to_vram(&self, id: AllocationId, offset: u64, source: &[u8]) -> Result<()> {
        let buffer = self.find(id)?;
        lock_outside_callbacks(&buffer)?.write_at(index(offset), source)
    }

    /// Reads `size` bytes at byte `offset`.
    pub fn copy_from_vram(&self, id: AllocationId, offset: u64, size: u64) -> Result<Vec<u8>> {
        let buffer = self.find(id)?;
        lock_outside_callbacks(&buffer)?.read_at(index(offset), index(size))
    }

    /// Size of an allocation, as requested.
    pub fn size_of(&self, id: AllocationId) -> Result<u64> {
        let buffer = self.find(id)?;
        Ok(lock_outside_callbacks(&buffer)?.size())
    }

    /// Number of live allocations.
    pub fn allocation_count(&self) -> usize {
        self.table().len()
    }

    /// Bytes that can still be allocated: the smaller of the device's free memory and the rest of the context's
    /// budget.
    pub fn available_vram(&self) -> Result<u64> {
        let memory = self.context.memory(Purpose::Any)?;
        let left = match memory.budget_bytes {
            0 => u64::MAX,
            budget => budget.saturating_sub(memory.current_bytes),
        };
        Ok(memory.device_free_bytes.min(left))
    }

    /// Total memory of the device.
    pub fn total_vram(&self) -> Result<u64> {
        self.context.get_total_vram()
    }

    fn find(&self, id: AllocationId) -> Result<Shared> {
        self.table().get(&id).cloned().ok_or_else(|| stale(id))
    }

    fn table(&self) -> MutexGuard<'_, HashMap<AllocationId, Shared>> {
        lock(&self.allocations)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// An offset past the address space becomes one that is refused with its number.
fn index(bytes: u64) -> usize {
    usize::try_from(bytes).unwrap_or(usize::MAX)
}

fn stale(id: AllocationId) -> Error {
    let message = format!("{id:?} is no live allocation of this allocator");
    Error::new(ErrorKind::InvalidHandle, message)
}
