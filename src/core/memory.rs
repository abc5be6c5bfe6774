//! Typed, bounds-checked device memory, views of it, and pinned host memory.

use std::alloc::{Layout, alloc_zeroed};
use std::fmt;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut, Range};
use std::ptr::NonNull;
use std::sync::{Mutex, MutexGuard};

use crate::core::callback::lock_outside_callbacks;
use crate::core::context::CudaContext;
use crate::core::error::{Error, ErrorKind, Result, call};
use crate::core::ledger::Purpose;
use crate::core::native_text::as_native;
use crate::core::residency::Place;
use crate::ffi;

mod sealed {
    pub trait Sealed {}
}

/// Types that device memory may hold: plain numbers, for which every bit pattern is a value.
///
/// # Safety
/// Implementors have no padding and no invalid bit pattern, and `pattern` returns their bytes in little-endian
/// order.
pub unsafe trait DeviceRepr: sealed::Sealed + Copy + Send + Sync + 'static {
    /// Zero: all bytes are zero.
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

/// `len` elements of device memory. Every access is checked against its bounds; offsets count elements. Copies
/// wait until they are done, so nothing borrowed stays in use. Concurrent reads from several threads are
/// serialized: copies, digests, kernels of the catalogue and matrix products. Other kernels do not wait: their launch,
/// and a read while their host function runs, is [`ErrorKind::Busy`] if another thread uses the buffer.
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
///
/// The compiler refuses writes to elements that are being read,
///
/// ```compile_fail,E0502
/// # fn main() -> worker_cuda::Result<()> {
/// let mut buffer = worker_cuda::CudaContext::host()?.alloc_from(&[1u8, 2, 3, 4])?;
/// let window = buffer.view(0..2)?;
/// buffer.fill(0)?;
/// window.to_vec()?;
/// # Ok(())
/// # }
/// ```
///
/// two writable windows at the same time,
///
/// ```compile_fail,E0499
/// # fn main() -> worker_cuda::Result<()> {
/// let mut buffer = worker_cuda::CudaContext::host()?.alloc_from(&[1u8, 2, 3, 4])?;
/// let mut one = buffer.view_mut(0..2)?;
/// let mut two = buffer.view_mut(2..4)?;
/// one.fill(0)?;
/// # Ok(())
/// # }
/// ```
///
/// a window of dropped memory,
///
/// ```compile_fail,E0505
/// # fn main() -> worker_cuda::Result<()> {
/// let buffer = worker_cuda::CudaContext::host()?.alloc_from(&[1u8, 2, 3, 4])?;
/// let window = buffer.view(0..2)?;
/// drop(buffer);
/// window.to_vec()?;
/// # Ok(())
/// # }
/// ```
///
/// and elements with invalid bit patterns or padding.
///
/// ```compile_fail,E0277
/// # fn main() -> worker_cuda::Result<()> {
/// let flags = worker_cuda::CudaContext::host()?.alloc::<bool>(4)?;
/// # Ok(())
/// # }
/// ```
pub struct SafeCudaPtr<T: DeviceRepr> {
    handle: ffi::wcuda_buffer,
    len: usize,
    context: CudaContext,
    /// The library refuses overlapping calls on one buffer; shared readers are serialized here.
    turn: Mutex<()>,
    element: PhantomData<T>,
}

impl CudaContext {
    /// Allocates `len` zeros (at least one).
    pub fn alloc<T: DeviceRepr>(&self, len: usize) -> Result<SafeCudaPtr<T>> {
        self.alloc_tagged(len, "")
    }

    /// As [`alloc`](Self::alloc), with a name for the ledger.
    pub fn alloc_tagged<T: DeviceRepr>(&self, len: usize, tag: &str) -> Result<SafeCudaPtr<T>> {
        self.alloc_with(len, tag, ffi::WCUDA_BUFFER_ZEROED)
    }

    /// Allocates `len` elements (at least one) without initializing them: they may hold data of an earlier buffer.
    /// This saves the time for zeroing if all of it is overwritten anyway.
    ///
    /// # Safety
    /// Every element is written before it is read by any means: copies, digests, kernels, views.
    ///
    /// ```
    /// # fn main() -> worker_cuda::Result<()> {
    /// let context = worker_cuda::CudaContext::host()?;
    /// // SAFETY: all of it is written by the next line.
    /// let mut buffer = unsafe { context.alloc_uninit::<u32>(3, "") }?;
    /// buffer.copy_from(&[1, 2, 3])?;
    /// # Ok(())
    /// # }
    /// ```
    pub unsafe fn alloc_uninit<T: DeviceRepr>(
        &self,
        len: usize,
        tag: &str,
    ) -> Result<SafeCudaPtr<T>> {
        self.alloc_with(len, tag, 0)
    }

    fn alloc_with<T: DeviceRepr>(
        &self,
        len: usize,
        tag: &str,
        flags: u32,
    ) -> Result<SafeCudaPtr<T>> {
        let mut options = ffi::wcuda_buffer_options::init();
        options.purpose = Purpose::User.to_native();
        options.bytes = byte_count::<T>(len)?;
        options.tag = as_native(tag);
        options.flags = flags;
        let mut handle = ffi::wcuda_buffer::zeroed();
        // SAFETY: `options` and the tag are valid for the call.
        call(|error| unsafe {
            ffi::wcuda_buffer_create(self.handle(), &options, &mut handle, error)
        })?;
        Ok(self.wrap(handle, len))
    }

    /// Adds memory of this device that the caller allocated to the ledger, and applies a buffer's checks to it.
    /// Dropping the buffer waits for the work that uses it and frees nothing.
    ///
    /// # Safety
    /// `address` points to `len` elements of memory that outlives the buffer. Nothing else uses this memory while a
    /// call on the buffer runs, and every bit pattern written there is a valid `T`.
    pub unsafe fn borrow_memory<T: DeviceRepr>(
        &self,
        address: *mut T,
        len: usize,
        tag: &str,
    ) -> Result<SafeCudaPtr<T>> {
        let mut options = ffi::wcuda_buffer_options::init();
        options.bytes = byte_count::<T>(len)?;
        options.tag = as_native(tag);
        let mut handle = ffi::wcuda_buffer::zeroed();
        // SAFETY: `options` and the tag are valid for the call, the memory by this function's contract.
        call(|error| unsafe {
            ffi::wcuda_buffer_borrow(self.handle(), address.cast(), &options, &mut handle, error)
        })?;
        Ok(self.wrap(handle, len))
    }

    fn wrap<T: DeviceRepr>(&self, handle: ffi::wcuda_buffer, len: usize) -> SafeCudaPtr<T> {
        SafeCudaPtr {
            handle,
            len,
            context: self.clone(),
            turn: Mutex::new(()),
            element: PhantomData,
        }
    }

    /// Takes ownership of a buffer's handle; its size must be a multiple of `T`'s.
    pub(crate) fn wrap_buffer<T: DeviceRepr>(
        &self,
        handle: ffi::wcuda_buffer,
    ) -> Result<SafeCudaPtr<T>> {
        let mut bytes = 0;
        // SAFETY: `bytes` is valid.
        let sized = call(|error| unsafe { ffi::wcuda_buffer_size_get(handle, &mut bytes, error) });
        let width = size_of::<T>() as u64;
        let buffer = self.wrap(handle, (bytes / width) as usize);
        sized?;
        if bytes % width == 0 {
            return Ok(buffer);
        }
        let message = format!("{bytes} bytes are no whole elements of {width}");
        Err(Error::new(ErrorKind::InvalidArgument, message))
    }

    /// Allocates `size` zero bytes on this context's device, limited only by its memory and budgets.
    pub fn allocate_vram(&self, size: u64) -> Result<SafeCudaPtr<u8>> {
        let len = usize::try_from(size).unwrap_or(usize::MAX); // which is refused
        self.alloc(len)
    }

    /// Allocates a copy of `source`, which must not be empty.
    pub fn alloc_from<T: DeviceRepr>(&self, source: &[T]) -> Result<SafeCudaPtr<T>> {
        self.alloc_from_tagged(source, "")
    }

    pub(crate) fn alloc_from_tagged<T: DeviceRepr>(
        &self,
        source: &[T],
        tag: &str,
    ) -> Result<SafeCudaPtr<T>> {
        // SAFETY: the buffer is as long as `source`; on an error it is dropped unread.
        let mut buffer = unsafe { self.alloc_uninit(source.len(), tag) }?;
        buffer.copy_from(source)?;
        Ok(buffer)
    }
}

impl<T: DeviceRepr> SafeCudaPtr<T> {
    /// Number of elements.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Never true: an allocation has at least one element.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Size in bytes.
    pub fn size(&self) -> u64 {
        (self.len * size_of::<T>()) as u64
    }

    /// Number of the device that holds it.
    pub fn device(&self) -> Result<i32> {
        self.context.device()
    }

    /// Where the memory is, as reported by the driver.
    pub fn place(&self) -> Result<Place> {
        let mut place = 0;
        // SAFETY: legal on any thread; the output is valid.
        call(|error| unsafe { ffi::wcuda_buffer_place_get(self.handle, &mut place, error) })?;
        Ok(Place::from_native(place))
    }

    /// The address on the device, for calls of other libraries.
    ///
    /// # Safety
    /// The address is valid until this value is dropped. On CUDA the host must not read from it. Accesses through
    /// it are neither checked nor waited for: they must not overlap with calls on this value, must end before it
    /// is dropped, and must leave bit patterns that are a valid `T`.
    pub unsafe fn as_raw(&self) -> Result<*mut T> {
        let mut address = std::ptr::null_mut();
        // SAFETY: legal on any thread; the output is valid.
        call(|error| unsafe { ffi::wcuda_buffer_address_get(self.handle, &mut address, error) })?;
        Ok(address.cast())
    }

    /// A read-only window of the elements in `range`.
    ///
    /// ```
    /// # fn main() -> worker_cuda::Result<()> {
    /// # let context = worker_cuda::CudaContext::host()?;
    /// let buffer = context.alloc_from(&[1u8, 2, 3, 4])?;
    /// assert_eq!(buffer.view(1..3)?.to_vec()?, [2, 3]);
    /// assert!(buffer.view(1..5).is_err());
    /// # Ok(())
    /// # }
    /// ```
    pub fn view(&self, range: Range<usize>) -> Result<CudaView<'_, T>> {
        self.checked_range(&range)?;
        Ok(CudaView {
            buffer: self,
            range,
        })
    }

    /// A writable window of the elements in `range`.
    pub fn view_mut(&mut self, range: Range<usize>) -> Result<CudaViewMut<'_, T>> {
        self.checked_range(&range)?;
        Ok(CudaViewMut {
            buffer: self,
            range,
        })
    }

    /// The context it was allocated from.
    pub fn context(&self) -> &CudaContext {
        &self.context
    }

    /// Overwrites all elements; `source` must be as long as the buffer.
    pub fn copy_from(&mut self, source: &[T]) -> Result<()> {
        expect_len("source", source.len(), "buffer", self.len)?;
        self.write_at(0, source)
    }

    /// Reads all elements; `target` must be as long as the buffer.
    pub fn copy_to(&self, target: &mut [T]) -> Result<()> {
        expect_len("target", target.len(), "buffer", self.len)?;
        self.read_into(0, target)
    }

    /// Reads all elements into a new vector.
    pub fn to_vec(&self) -> Result<Vec<T>> {
        self.read_at(0, self.len)
    }

    /// Overwrites `source.len()` elements, starting at `offset`.
    pub fn write_at(&mut self, offset: usize, source: &[T]) -> Result<()> {
        let (offset, bytes) = self.byte_range(offset, source.len())?;
        // SAFETY: `source` is valid for `bytes` bytes, and the call waits.
        call(|error| unsafe {
            ffi::wcuda_buffer_write(self.handle, offset, source.as_ptr().cast(), bytes, error)
        })
    }

    /// Reads `len` elements, starting at `offset`, into a new vector; [`ErrorKind::OutOfHostMemory`] without memory for it.
    pub fn read_at(&self, offset: usize, len: usize) -> Result<Vec<T>> {
        self.byte_range(offset, len)?; // before memory is taken
        let mut target = zeros(len)?;
        self.read_into(offset, &mut target)?;
        Ok(target)
    }

    /// Reads `target.len()` elements, starting at `offset`.
    pub fn read_into(&self, offset: usize, target: &mut [T]) -> Result<()> {
        let (offset, bytes) = self.byte_range(offset, target.len())?;
        let _turn = self.take_turn()?;
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
        let _turn = source.take_turn()?;
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
        let _turn = self.take_turn()?;
        let mut digest = [0; 32];
        // SAFETY: `digest` has the 32 bytes that are written.
        call(|error| unsafe {
            ffi::wcuda_buffer_digest(self.handle, offset, bytes, digest.as_mut_ptr(), error)
        })?;
        Ok(digest)
    }

    /// Chaining values of BLAKE3 over the elements' bytes in `range`, computed on the device: one for each MiB, of
    /// which the last may be shorter. The bytes count as a part of a longer input that begins at the input's MiB
    /// `first_piece`: see [`join_digest_pieces`].
    pub fn digest_pieces(&self, range: Range<usize>, first_piece: u64) -> Result<Vec<[u8; 32]>> {
        let (offset, bytes) = self.checked_range(&range)?;
        let count = bytes.div_ceil(ffi::WCUDA_DIGEST_PIECE_BYTES);
        let mut pieces = vec![[0; 32]; count as usize];
        let _turn = self.take_turn()?;
        // SAFETY: `pieces` has the room that is said.
        call(|error| unsafe {
            ffi::wcuda_buffer_digest_pieces(
                self.handle,
                offset,
                bytes,
                first_piece,
                pieces.as_mut_ptr().cast(),
                count,
                error,
            )
        })?;
        Ok(pieces)
    }

    /// Each id is issued once.
    pub(crate) fn raw_handle(&self) -> ffi::wcuda_buffer {
        self.handle
    }

    /// Held by a thread that reads the buffer.
    pub(crate) fn turn(&self) -> &Mutex<()> {
        &self.turn
    }

    /// Waits until no other thread reads the buffer.
    pub(crate) fn take_turn(&self) -> Result<MutexGuard<'_, ()>> {
        lock_outside_callbacks(&self.turn)
    }

    pub(crate) fn checked_range(&self, range: &Range<usize>) -> Result<(u64, u64)> {
        let len = range.end.checked_sub(range.start).ok_or_else(|| {
            let message = format!("the range {}..{} is reversed", range.start, range.end);
            Error::new(ErrorKind::InvalidArgument, message)
        })?;
        self.byte_range(range.start, len)
    }

    /// Offset and length in bytes. The end is checked here so that no product can overflow.
    pub(crate) fn byte_range(&self, offset: usize, len: usize) -> Result<(u64, u64)> {
        let width = size_of::<T>();
        if offset.checked_add(len).is_some_and(|end| end <= self.len) {
            return Ok(((offset * width) as u64, (len * width) as u64));
        }
        Err(past_end(offset, len, "buffer", self.len))
    }
}

/// A vector of zeros. A device may have more memory than the host, so that there may be none for a copy.
pub(crate) fn zeros<T: DeviceRepr>(len: usize) -> Result<Vec<T>> {
    let bytes = byte_count::<T>(len)?;
    if bytes == 0 {
        return Ok(Vec::new());
    }
    let none = |_| {
        let message = format!("the host has no memory for {len} elements, {bytes} bytes");
        Error::new(ErrorKind::OutOfHostMemory, message)
    };
    let layout = Layout::array::<T>(len).map_err(|_| none(()))?;
    // SAFETY: the layout has bytes.
    let data = NonNull::new(unsafe { alloc_zeroed(layout) })
        .ok_or(())
        .map_err(none)?;
    // SAFETY: the global allocator gave `len` elements for this layout, and zero is a `T`.
    Ok(unsafe { Vec::from_raw_parts(data.as_ptr().cast(), len, len) })
}

/// The BLAKE3 digest of an input of more than one MiB, from the chaining values of all its MiBs
/// ([`SafeCudaPtr::digest_pieces`]).
pub fn join_digest_pieces(pieces: &[[u8; 32]]) -> Result<[u8; 32]> {
    let mut digest = [0; 32];
    // SAFETY: `pieces` is valid for its length, and `digest` has the 32 bytes that are written.
    call(|error| unsafe {
        ffi::wcuda_digest_join(
            pieces.as_ptr().cast(),
            pieces.len() as u64,
            digest.as_mut_ptr(),
            error,
        )
    })?;
    Ok(digest)
}

/// A read-only window into a [`SafeCudaPtr`]. Offsets count from its start.
///
/// ```
/// # fn main() -> worker_cuda::Result<()> {
/// let context = worker_cuda::CudaContext::host()?;
/// let buffer = context.alloc_from(&[1.0f32, 2.0, 3.0, 4.0])?;
/// let window = buffer.view(1..3)?;
/// assert_eq!(window.to_vec()?, [2.0, 3.0]);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct CudaView<'a, T: DeviceRepr> {
    buffer: &'a SafeCudaPtr<T>,
    range: Range<usize>,
}

/// A writable window into a [`SafeCudaPtr`]. Offsets count from its start.
///
/// ```
/// # fn main() -> worker_cuda::Result<()> {
/// let context = worker_cuda::CudaContext::host()?;
/// let mut buffer = context.alloc::<u16>(4)?;
/// buffer.view_mut(1..3)?.copy_from(&[5, 6])?;
/// assert_eq!(buffer.to_vec()?, [0, 5, 6, 0]);
/// # Ok(())
/// # }
/// ```
pub struct CudaViewMut<'a, T: DeviceRepr> {
    buffer: &'a mut SafeCudaPtr<T>,
    range: Range<usize>,
}

macro_rules! reading_window {
    ($name:ident) => {
        impl<T: DeviceRepr> $name<'_, T> {
            /// Number of elements.
            pub fn len(&self) -> usize {
                self.range.len()
            }

            /// Whether it has no elements.
            pub fn is_empty(&self) -> bool {
                self.range.is_empty()
            }

            /// Reads all elements into a new vector.
            pub fn to_vec(&self) -> Result<Vec<T>> {
                self.read_at(0, self.len())
            }

            /// Reads all elements; `target` must be as long as the window.
            pub fn copy_to(&self, target: &mut [T]) -> Result<()> {
                expect_len("target", target.len(), "window", self.len())?;
                self.buffer.read_into(self.range.start, target)
            }

            /// Reads `len` elements, starting at `offset`, into a new vector.
            pub fn read_at(&self, offset: usize, len: usize) -> Result<Vec<T>> {
                let offset = offset_in(&self.range, offset, len)?;
                self.buffer.read_at(offset, len)
            }

            /// BLAKE3 of the bytes of all elements, computed on the device.
            pub fn digest(&self) -> Result<[u8; 32]> {
                self.buffer.digest(self.range.clone())
            }
        }

        impl<T: DeviceRepr> fmt::Debug for $name<'_, T> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(
                    f,
                    "{}({:?} of {:?})",
                    stringify!($name),
                    self.range,
                    self.buffer
                )
            }
        }
    };
}

reading_window!(CudaView);
reading_window!(CudaViewMut);

impl<T: DeviceRepr> CudaViewMut<'_, T> {
    /// Overwrites all elements; `source` must be as long as the window.
    pub fn copy_from(&mut self, source: &[T]) -> Result<()> {
        expect_len("source", source.len(), "window", self.len())?;
        self.buffer.write_at(self.range.start, source)
    }

    /// Overwrites `source.len()` elements, starting at `offset`.
    pub fn write_at(&mut self, offset: usize, source: &[T]) -> Result<()> {
        let offset = offset_in(&self.range, offset, source.len())?;
        self.buffer.write_at(offset, source)
    }

    /// Sets every element to `value`.
    pub fn fill(&mut self, value: T) -> Result<()> {
        self.buffer.fill_range(self.range.clone(), value)
    }
}

/// Where `len` elements at `offset` of a window lie in its buffer.
fn offset_in(range: &Range<usize>, offset: usize, len: usize) -> Result<usize> {
    match offset.checked_add(len) {
        Some(end) if end <= range.len() => Ok(range.start + offset),
        _ => Err(past_end(offset, len, "window", range.len())),
    }
}

fn past_end(offset: usize, len: usize, of: &str, size: usize) -> Error {
    let message = format!("{len} elements at {offset} pass the end of a {of} of {size}");
    Error::new(ErrorKind::OutOfRange, message)
}

fn expect_len(what: &str, len: usize, of: &str, expected: usize) -> Result<()> {
    if len == expected {
        return Ok(());
    }
    let message = format!("{what} has {len} elements, the {of} {expected}");
    Err(Error::new(ErrorKind::InvalidArgument, message))
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

/// `len` elements of page-locked host memory for fast copies; ordinary memory on the host backend. Initially
/// zero, accessed as a slice.
///
/// ```
/// # fn main() -> worker_cuda::Result<()> {
/// let context = worker_cuda::CudaContext::host()?;
/// let mut pinned = context.alloc_pinned::<f32>(2)?;
/// pinned.copy_from_slice(&[1.0, 2.0]);
/// let mut buffer = context.alloc::<f32>(2)?;
/// let pinned = buffer.write_async(0, pinned, None)?.wait()?;
/// assert_eq!(buffer.to_vec()?, pinned[..]);
/// # Ok(())
/// # }
/// ```
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
    // The limit is isize::MAX, as for a slice of the same length.
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
