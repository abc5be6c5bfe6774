//! Use of sealed memory: reading, passing to kernels, loading.

use std::fmt;
use std::io;
use std::ops::Range;
use std::sync::{Arc, Weak};

use super::error::{VramError, VramResult};
use super::manager::{Sealed, VramManager};
use super::shard::SealedShard;
use crate::compute::module::GpuArg;
use crate::core::memory::DeviceRepr;
use crate::llm::gguf::ReadAt;

/// A read-only range of a sealed shard.
///
/// ```
/// use worker_cuda::seal::{VramConfig, VramManager};
/// use worker_cuda::{CudaContext, GpuArg, GpuCompute, KernelSpec};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let config = VramConfig::new(b"a token of at least thirty-two bytes");
/// let mut manager = VramManager::with_context(CudaContext::host()?, config)?;
/// let shard = manager.seal_model(&[1, 0, 0, 0, 2, 0, 0, 0], 0)?;
///
/// let compute = GpuCompute::with_context(manager.context())?;
/// compute.register(
///     KernelSpec::new("sum")
///         .read::<u32>("x", [2.into()])
///         .write::<u32>("y", [1.into()])
///         .host(|call| {
///             call.slice_mut::<u32>(1)?[0] = call.slice::<u32>(0)?.iter().sum();
///             Ok(())
///         }),
/// )?;
/// let mut sum = compute.device().allocate::<u32>(1)?;
/// let weights = manager.view(&shard)?;
/// compute.run("sum", &[weights.arg::<u32>()?, GpuArg::from(&mut sum)])?;
/// assert_eq!(sum.to_vec()?, [3]);
/// assert_eq!(weights.range(4, 4)?.read()?, [2, 0, 0, 0]);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct SealedView<'a> {
    manager: &'a VramManager,
    shard: &'a SealedShard,
    sealed: &'a Sealed,
    range: Range<u64>,
}

impl<'a> SealedView<'a> {
    pub(super) fn new(
        manager: &'a VramManager,
        shard: &'a SealedShard,
        sealed: &'a Sealed,
    ) -> Self {
        Self {
            manager,
            shard,
            sealed,
            range: 0..sealed.memory.size(),
        }
    }

    /// Number of bytes.
    pub fn len(&self) -> u64 {
        self.range.end - self.range.start
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.range.is_empty()
    }

    /// The range of `bytes` bytes at `offset` within this one.
    pub fn range(&self, offset: u64, bytes: u64) -> VramResult<Self> {
        match offset.checked_add(bytes) {
            Some(end) if end <= self.len() => Ok(Self {
                range: self.range.start + offset..self.range.start + end,
                ..self.clone()
            }),
            _ => Err(VramError::InvalidInput(format!(
                "{bytes} bytes at {offset} pass the end of a view of {}",
                self.len()
            ))),
        }
    }

    /// Copies the range to the host, after verifying it and the rest of the MiBs that contain it.
    pub fn read(&self) -> VramResult<Vec<u8>> {
        self.verify()?;
        let (start, len) = (self.range.start as usize, self.len() as usize);
        Ok(self.sealed.memory.read_at(start, len)?)
    }

    /// Verifies that the bytes, and the rest of the MiBs that contain them, are unchanged.
    pub fn verify(&self) -> VramResult<()> {
        self.manager
            .verify_range(self.shard, self.range.start, self.len())
    }

    /// A kernel argument that reads the range as elements of `T`, after the fast check
    /// ([`VramManager::check_sealed`]). Offset and size must be multiples of the element's size.
    pub fn arg<T: DeviceRepr>(&self) -> VramResult<GpuArg<'a>> {
        self.manager.check_sealed(self.shard)?;
        let width = size_of::<T>() as u64;
        if !self.range.start.is_multiple_of(width) || !self.len().is_multiple_of(width) {
            return Err(VramError::InvalidInput(format!(
                "{} bytes at {} are no whole elements of {width}",
                self.len(),
                self.range.start
            )));
        }
        Ok(GpuArg::elements::<T>(
            &self.sealed.memory,
            self.range.start,
            self.len(),
        ))
    }
}

impl fmt::Debug for SealedView<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SealedView")
            .field("shard", self.shard)
            .field("range", &self.range)
            .finish()
    }
}

/// Reads a sealed shard at any offset and verifies each MiB when it is read; see [`VramManager::reader`].
pub struct SealedReader {
    /// The manager owns the memory.
    sealed: Weak<Sealed>,
    bytes: u64,
}

impl SealedReader {
    pub(super) fn new(sealed: &Arc<Sealed>) -> Self {
        Self {
            sealed: Arc::downgrade(sealed),
            bytes: sealed.memory.size(),
        }
    }
}

impl ReadAt for SealedReader {
    fn size(&self) -> u64 {
        self.bytes
    }

    fn read_exact_at(&self, target: &mut [u8], offset: u64) -> io::Result<()> {
        let sealed = self.sealed.upgrade().ok_or_else(|| {
            io::Error::new(io::ErrorKind::NotFound, VramError::IntegrityViolation)
        })?;
        // Runs on another thread: the library reads a file inside a callback, where its own calls are refused.
        let read = std::thread::scope(|scope| {
            let thread = std::thread::Builder::new();
            let read = thread.spawn_scoped(scope, || sealed.read_into(offset, target))?;
            read.join()
                .map_err(|_| io::Error::other("the thread that reads panicked"))
        })?;
        read.map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
    }
}

impl fmt::Debug for SealedReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SealedReader")
            .field("bytes", &self.bytes)
            .finish_non_exhaustive()
    }
}
