//! The ledger of a context: allocations by purpose, and budgets.

use crate::core::context::CudaContext;
use crate::core::error::{Result, call};
use crate::core::native_text::fixed_text;
use crate::ffi;

/// What memory is held for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Purpose {
    /// In queries: all device memory together (not [`Purpose::Staging`], which is host memory, nor
    /// [`Purpose::Borrowed`]).
    Any,
    /// Weights of models.
    Weights,
    /// Keys and values of sequences.
    Kv,
    /// Activations, logits, sampling.
    Scratch,
    /// Loaded modules.
    Module,
    /// Pinned host memory.
    Staging,
    /// Buffers that the program allocated.
    User,
    /// Memory that the caller owns, see [`CudaContext::borrow_memory`]. It counts in no other sum and in no budget.
    Borrowed,
    /// A purpose that this version of the crate does not know.
    Unknown(i32),
}

impl Purpose {
    pub(crate) fn to_native(self) -> i32 {
        match self {
            Self::Any => ffi::WCUDA_PURPOSE_ANY,
            Self::Weights => ffi::WCUDA_PURPOSE_WEIGHTS,
            Self::Kv => ffi::WCUDA_PURPOSE_KV,
            Self::Scratch => ffi::WCUDA_PURPOSE_SCRATCH,
            Self::Module => ffi::WCUDA_PURPOSE_MODULE,
            Self::Staging => ffi::WCUDA_PURPOSE_STAGING,
            Self::User => ffi::WCUDA_PURPOSE_USER,
            Self::Borrowed => ffi::WCUDA_PURPOSE_BORROWED,
            Self::Unknown(purpose) => purpose,
        }
    }

    pub(crate) fn from_native(purpose: i32) -> Self {
        match purpose {
            ffi::WCUDA_PURPOSE_ANY => Self::Any,
            ffi::WCUDA_PURPOSE_WEIGHTS => Self::Weights,
            ffi::WCUDA_PURPOSE_KV => Self::Kv,
            ffi::WCUDA_PURPOSE_SCRATCH => Self::Scratch,
            ffi::WCUDA_PURPOSE_MODULE => Self::Module,
            ffi::WCUDA_PURPOSE_STAGING => Self::Staging,
            ffi::WCUDA_PURPOSE_USER => Self::User,
            ffi::WCUDA_PURPOSE_BORROWED => Self::Borrowed,
            other => Self::Unknown(other),
        }
    }
}

/// Sums of the ledger for one purpose.
///
/// ```
/// use worker_cuda::{CudaContext, Purpose};
/// # fn main() -> worker_cuda::Result<()> {
/// let context = CudaContext::host()?;
/// let buffer = context.alloc::<u8>(1000)?;
/// let memory = context.memory(Purpose::User)?;
/// assert_eq!((memory.current_bytes, memory.allocation_count), (1000, 1));
/// # drop(buffer);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct MemoryInfo {
    /// The requested purpose.
    pub purpose: Purpose,
    /// Held now.
    pub current_bytes: u64,
    /// Largest value of `current_bytes` so far.
    pub peak_bytes: u64,
    /// Live allocations.
    pub allocation_count: u64,
    /// Allocations ever made.
    pub total_allocation_count: u64,
    /// Budget of the context; 0: none.
    pub budget_bytes: u64,
    /// Free on the device, as reported by the driver; on the host backend the capacity minus what is held.
    pub device_free_bytes: u64,
    /// Total memory of the device.
    pub device_total_bytes: u64,
    /// Budget of this purpose, see [`CudaContext::set_budget`]; 0: none.
    pub purpose_budget_bytes: u64,
}

/// One live allocation.
///
/// ```
/// # fn main() -> worker_cuda::Result<()> {
/// let context = worker_cuda::CudaContext::host()?;
/// let buffer = context.alloc_tagged::<u8>(1000, "table")?;
/// let entries = context.ledger()?;
/// assert_eq!((entries[0].bytes, entries[0].tag.as_str()), (1000, "table"));
/// # drop(buffer);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LedgerEntry {
    /// Its size.
    pub bytes: u64,
    /// 1 for the context's first allocation.
    pub sequence_number: u64,
    /// Its purpose.
    pub purpose: Purpose,
    /// The name given by its owner, cut to 63 bytes.
    pub tag: String,
}

impl CudaContext {
    /// Sums of the ledger for one purpose, or for all.
    pub fn memory(&self, purpose: Purpose) -> Result<MemoryInfo> {
        let mut info = ffi::wcuda_memory_info::init();
        // SAFETY: `info` is valid and sized.
        call(|error| unsafe {
            ffi::wcuda_context_memory_get(self.handle(), purpose.to_native(), &mut info, error)
        })?;
        Ok(MemoryInfo {
            purpose: Purpose::from_native(info.purpose),
            current_bytes: info.current_bytes,
            peak_bytes: info.peak_bytes,
            allocation_count: info.allocation_count,
            total_allocation_count: info.total_allocation_count,
            budget_bytes: info.budget_bytes,
            device_free_bytes: info.device_free_bytes,
            device_total_bytes: info.device_total_bytes,
            purpose_budget_bytes: info.purpose_budget_bytes,
        })
    }

    /// Device memory that can still be allocated, as reported by the driver.
    pub fn get_free_vram(&self) -> Result<u64> {
        Ok(self.memory(Purpose::Any)?.device_free_bytes)
    }

    /// Total memory of the device.
    pub fn get_total_vram(&self) -> Result<u64> {
        Ok(self.memory(Purpose::Any)?.device_total_bytes)
    }

    /// Limits the bytes that a purpose may hold, in addition to the context's own budget; 0: no limit. An
    /// allocation past the limit fails with [`ErrorKind::OverBudget`](crate::ErrorKind) before the driver is called.
    /// Existing allocations stay.
    pub fn set_budget(&self, purpose: Purpose, bytes: u64) -> Result<()> {
        // SAFETY: legal on any thread.
        call(|error| unsafe {
            ffi::wcuda_context_budget_set(self.handle(), purpose.to_native(), bytes, error)
        })
    }

    /// The live allocations, oldest first: at any time the list of what would leak. Allocations that are still
    /// live when the last clone of the context is dropped are logged as warnings.
    pub fn ledger(&self) -> Result<Vec<LedgerEntry>> {
        let mut entries: Vec<ffi::wcuda_ledger_entry> = Vec::new();
        loop {
            let mut count = 0;
            // SAFETY: the pointer is valid for as many entries as are said.
            call(|error| unsafe {
                ffi::wcuda_context_ledger_list(
                    self.handle(),
                    0,
                    entries.as_mut_ptr(),
                    entries.len() as u64,
                    &mut count,
                    error,
                )
            })?;
            let grew = count as usize > entries.len();
            entries.resize(count as usize, ffi::wcuda_ledger_entry::init());
            if !grew {
                break;
            }
        }
        Ok(entries.iter().map(LedgerEntry::from_native).collect())
    }
}

impl LedgerEntry {
    pub(crate) fn from_native(entry: &ffi::wcuda_ledger_entry) -> Self {
        Self {
            bytes: entry.bytes,
            sequence_number: entry.sequence_number,
            purpose: Purpose::from_native(entry.purpose),
            tag: fixed_text(&entry.tag),
        }
    }
}
