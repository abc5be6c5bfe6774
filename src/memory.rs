//! Checked device memory and pinned host memory, typed.

use std::fmt;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut, Range};
use std::ptr::NonNull;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::context::CudaContext;
use crate::error::{Error, ErrorKind, Result, call};
use crate::ffi;
use crate::ledger::Purpose;
use crate::native_text::as_native;

mod sealed {
    pub trait Sealed {}
}

/// Types that device memory may hold: plain numbers, for which every bit pattern is a value.
///
/// # Safety
/// Implementors have no padding and no invalid bit pattern, and `pattern` has their bytes, little
/// end first.
pub unsafe trait DeviceRepr: sealed::Sealed + Copy + Send + Sync + 'static {
    /// Zero, all of whose bytes are zero.
    const ZERO: Self;

    /// The value's bytes as the low bytes of an integer.
    fn pattern(self) -> u64;
}

macro_rules! device_repr {
    ($($number:ty => $pattern:expr,)*) => {$(
        impl sealed::Sealed for $number {}
        // SAFETY: a number of fixed width, valid for all bit patterns.
        unsafe impl DeviceRepr for $number {
            const ZERO: Self = 0 as $number;

            fn pattern(self) -> u64 {
                let pattern: fn($number) -> u64 = $pattern;
                pattern(self)
            }
        }
    )*};
}

device_repr! {
    u8 => |value| value.into(),
    i8 => |value| (value as u8).into(),
    u16 => |value| value.into(),
    i16 => |value| (value as u16).into(),
    u32 => |value| value.into(),
    i32 => |value| (value as u32).into(),
    u64 => |value| value,
    i64 => |value| value as u64,
    f32 => |value| value.to_bits().into(),
    f64 => |value| value.to_bits(),
}

/// `len` elements of device memory. Every access is checked against its bounds; offsets count
/// elements. Copies wait until they are done, so nothing borrowed stays in use. Reads from several
/// threads at once take turns.
///
/// ```
/// # fn main() -> worker_cuda::Result<()> {
/// let context = worker_cuda::CudaContext::host()?;
/// let mut buffer = context.alloc::<f32>(4)?;
/// buffer.copy_from(&[1.0, 2.0, 3.0, 4.0])?;
/// buffer.write_at(1, &[0.5])?;
/// assert_eq!(buffer.to_vec()?, [1.0, 0.5, 3.0, 4.0]);
/// # Ok(())
/// # }
/// ```
pub struct SafeCudaPtr<T: DeviceRepr> {
    handle: ffi::wcuda_buffer,
    len: usize,
    context: CudaContext,
    /// The library refuses calls on one buffer that overlap; shared readers take turns here.
    turn: Mutex<()>,
    element: PhantomData<T>,
}

impl CudaContext {
    /// Allocates `len` elements (at least one), contents undefined.
    pub fn alloc<T: DeviceRepr>(&self, len: usize) -> Result<SafeCudaPtr<T>> {
        self.alloc_tagged(len, "")
    }

    /// The same, with a name for the ledger.
    pub fn alloc_tagged<T: DeviceRepr>(&self, len: usize, tag: &str) -> Result<SafeCudaPtr<T>> {
        let mut options = ffi::wcuda_buffer_options::init();
        options.purpose = Purpose::User.to_native();
        options.bytes = byte_count::<T>(len)?;
        options.tag = as_native(tag);
        let mut handle = ffi::wcuda_buffer::zeroed();
        // SAFETY: `options` and the tag are valid for the call.
        call(|error| unsafe {
            ffi::wcuda_buffer_create(self.handle(), &options, &mut handle, error)
        })?;
        Ok(SafeCudaPtr {
            handle,
            len,
            context: self.clone(),
            turn: Mutex::new(()),
            element: PhantomData,
        })
    }

    /// Allocates `len` zeros.
    pub fn alloc_zeroed<T: DeviceRepr>(&self, len: usize) -> Result<SafeCudaPtr<T>> {
        let mut buffer = self.alloc(len)?;
        buffer.fill(T::ZERO)?;
        Ok(buffer)
    }

    /// Allocates a copy of `source`, which must not be empty.
    pub fn alloc_from<T: DeviceRepr>(&self, source: &[T]) -> Result<SafeCudaPtr<T>> {
        let mut buffer = self.alloc(source.len())?;
        buffer.copy_from(source)?;
        Ok(buffer)
    }
}

impl<T: DeviceRepr> SafeCudaPtr<T> {
    /// Elements.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Never true: an allocation has at least one element.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Size in bytes.
    pub fn byte_len(&self) -> u64 {
        (self.len * size_of::<T>()) as u64
    }

    /// The context it was allocated from.
    pub fn context(&self) -> &CudaContext {
        &self.context
    }

    /// Overwrites all; `source` must be as long as the buffer.
    pub fn copy_from(&mut self, source: &[T]) -> Result<()> {
        self.expect_len("source", source.len())?;
        self.write_at(0, source)
    }

    /// Reads all; `target` must be as long as the buffer.
    pub fn copy_to(&self, target: &mut [T]) -> Result<()> {
        self.expect_len("target", target.len())?;
        self.read_at(0, target)
    }

    /// Reads all into a new vector.
    pub fn to_vec(&self) -> Result<Vec<T>> {
        let mut target = vec![T::ZERO; self.len];
        self.read_at(0, &mut target)?;
        Ok(target)
    }

    /// Overwrites `source.len()` elements from `offset` on.
    pub fn write_at(&mut self, offset: usize, source: &[T]) -> Result<()> {
        let (offset, bytes) = self.byte_range(offset, source.len())?;
        // SAFETY: `source` is valid for `bytes` bytes, and the call waits.
        call(|error| unsafe {
            ffi::wcuda_buffer_write(self.handle, offset, source.as_ptr().cast(), bytes, error)
        })
    }

    /// Reads `target.len()` elements from `offset` on.
    pub fn read_at(&self, offset: usize, target: &mut [T]) -> Result<()> {
        let (offset, bytes) = self.byte_range(offset, target.len())?;
        let _turn = self.take_turn();
        // SAFETY: `target` is valid for `bytes` bytes, and every bit pattern is a `T`.
        call(|error| unsafe {
            ffi::wcuda_buffer_read(
                self.handle,
                offset,
                target.as_mut_ptr().cast(),
                bytes,
                error,
            )
        })
    }

    /// Sets every element to `value`.
    pub fn fill(&mut self, value: T) -> Result<()> {
        self.fill_range(0..self.len, value)
    }

    /// Sets the elements of `range` to `value`.
    pub fn fill_range(&mut self, range: Range<usize>, value: T) -> Result<()> {
        let (offset, bytes) = self.checked_range(&range)?;
        let width = size_of::<T>() as u32;
        // SAFETY: legal while nobody else uses the buffer, which `&mut` holds.
        call(|error| unsafe {
            ffi::wcuda_buffer_fill(self.handle, offset, bytes, value.pattern(), width, error)
        })
    }

    /// Copies `len` elements from another buffer of the same context, on the device.
    pub fn copy_from_device(
        &mut self,
        offset: usize,
        source: &Self,
        source_offset: usize,
        len: usize,
    ) -> Result<()> {
        let (target_offset, bytes) = self.byte_range(offset, len)?;
        let (source_offset, _) = source.byte_range(source_offset, len)?;
        let _turn = source.take_turn();
        // SAFETY: `&mut` holds the target, the turn the source.
        call(|error| unsafe {
            ffi::wcuda_buffer_copy(
                self.handle,
                target_offset,
                source.handle,
                source_offset,
                bytes,
                error,
            )
        })
    }

    /// Copies `len` elements from `source` to `target` within this buffer; the two ranges must not
    /// overlap.
    pub fn copy_within(&mut self, source: usize, target: usize, len: usize) -> Result<()> {
        let (source, bytes) = self.byte_range(source, len)?;
        let (target, _) = self.byte_range(target, len)?;
        // SAFETY: `&mut` holds the buffer; the library refuses ranges that overlap.
        call(|error| unsafe {
            ffi::wcuda_buffer_copy(self.handle, target, self.handle, source, bytes, error)
        })
    }

    /// BLAKE3 of the elements' bytes in `range`, computed on the device.
    pub fn digest(&self, range: Range<usize>) -> Result<[u8; 32]> {
        let (offset, bytes) = self.checked_range(&range)?;
        let _turn = self.take_turn();
        let mut digest = [0; 32];
        // SAFETY: `digest` has the 32 bytes that are written.
        call(|error| unsafe {
            ffi::wcuda_buffer_digest(self.handle, offset, bytes, digest.as_mut_ptr(), error)
        })?;
        Ok(digest)
    }

    pub(crate) fn raw_handle(&self) -> ffi::wcuda_buffer {
        self.handle
    }

    pub(crate) fn take_turn(&self) -> MutexGuard<'_, ()> {
        self.turn.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn expect_len(&self, what: &str, len: usize) -> Result<()> {
        if len == self.len {
            return Ok(());
        }
        let message = format!("{what} has {len} elements, the buffer {}", self.len);
        Err(Error::new(ErrorKind::InvalidArgument, message))
    }

    pub(crate) fn checked_range(&self, range: &Range<usize>) -> Result<(u64, u64)> {
        let len = range.end.checked_sub(range.start).ok_or_else(|| {
            let message = format!("the range {}..{} is reversed", range.start, range.end);
            Error::new(ErrorKind::InvalidArgument, message)
        })?;
        self.byte_range(range.start, len)
    }

    /// Offset and length in bytes; the end is checked here so that no product can wrap.
    pub(crate) fn byte_range(&self, offset: usize, len: usize) -> Result<(u64, u64)> {
        let width = size_of::<T>();
        if offset.checked_add(len).is_some_and(|end| end <= self.len) {
            return Ok(((offset * width) as u64, (len * width) as u64));
        }
        let message = format!(
            "{len} elements at {offset} pass the end of a buffer of {}",
            self.len
        );
        Err(Error::new(ErrorKind::OutOfRange, message))
    }
}

impl<T: DeviceRepr> Drop for SafeCudaPtr<T> {
    fn drop(&mut self) {
        // SAFETY: legal on any thread; `&mut self` shows that no call is running.
        unsafe { ffi::wcuda_buffer_destroy(self.handle) }
    }
}

impl<T: DeviceRepr> fmt::Debug for SafeCudaPtr<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "SafeCudaPtr<{}>({} elements)",
            std::any::type_name::<T>(),
            self.len
        )
    }
}

/// `len` elements of page-locked host memory, for fast copies; on the host backend ordinary memory.
/// Starts zeroed and is used as a slice.
pub struct PinnedBuffer<T: DeviceRepr> {
    handle: ffi::wcuda_pinned,
    data: NonNull<T>,
    len: usize,
    context: CudaContext,
}

// SAFETY: the memory belongs to this value alone, like a `Box<[T]>`; `T` is Send and Sync, and
// destroying is legal on any thread.
unsafe impl<T: DeviceRepr> Send for PinnedBuffer<T> {}
// SAFETY: as above; shared access only reads.
unsafe impl<T: DeviceRepr> Sync for PinnedBuffer<T> {}

impl CudaContext {
    /// Allocates `len` zeros of pinned memory (at least one), counted as [`Purpose::Staging`].
    pub fn alloc_pinned<T: DeviceRepr>(&self, len: usize) -> Result<PinnedBuffer<T>> {
        let bytes = byte_count::<T>(len)?;
        let mut handle = ffi::wcuda_pinned::zeroed();
        // SAFETY: `handle` is valid.
        call(|error| unsafe {
            ffi::wcuda_pinned_create(self.handle(), bytes, &mut handle, error)
        })?;
        let mut buffer = PinnedBuffer {
            handle,
            data: NonNull::dangling(),
            len: 0,
            context: self.clone(),
        };
        let (mut data, mut size) = (std::ptr::null_mut(), 0);
        // SAFETY: both outputs are valid.
        call(|error| unsafe { ffi::wcuda_pinned_data_get(handle, &mut data, &mut size, error) })?;
        match NonNull::new(data.cast::<T>()) {
            Some(data) if size >= bytes && data.is_aligned() => {
                buffer.data = data;
                buffer.len = len;
                Ok(buffer)
            }
            _ => {
                let message = format!("{size} bytes of pinned memory in place of {bytes}");
                Err(Error::new(ErrorKind::Internal, message))
            }
        }
    }
}

impl<T: DeviceRepr> PinnedBuffer<T> {
    pub(crate) fn raw_handle(&self) -> ffi::wcuda_pinned {
        self.handle
    }

    /// The context it was allocated from.
    pub fn context(&self) -> &CudaContext {
        &self.context
    }
}

impl<T: DeviceRepr> Deref for PinnedBuffer<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: `len` elements, zeroed at first, valid until destroyed.
        unsafe { std::slice::from_raw_parts(self.data.as_ptr(), self.len) }
    }
}

impl<T: DeviceRepr> DerefMut for PinnedBuffer<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as above, and `&mut self` is exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.data.as_ptr(), self.len) }
    }
}

impl<T: DeviceRepr> Drop for PinnedBuffer<T> {
    fn drop(&mut self) {
        // SAFETY: legal on any thread; no slice of it is borrowed any more.
        unsafe { ffi::wcuda_pinned_destroy(self.handle) }
    }
}

impl<T: DeviceRepr> fmt::Debug for PinnedBuffer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "PinnedBuffer<{}>({} elements)",
            std::any::type_name::<T>(),
            self.len
        )
    }
}

fn byte_count<T>(len: usize) -> Result<u64> {
    // isize::MAX bounds what a slice of the same length could be.
    len.checked_mul(size_of::<T>())
        .filter(|&bytes| bytes <= isize::MAX as usize)
        .map_or_else(
            || {
                let message = format!("{len} elements of {} bytes overflow", size_of::<T>());
                Err(Error::new(ErrorKind::InvalidArgument, message))
            },
            |bytes| Ok(bytes as u64),
        )
}
