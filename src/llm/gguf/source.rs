//! The source of an open GGUF file, kept alive while the library may read it.

use std::ffi::c_void;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use crate::core::callback::ParkedPanic;
use crate::core::error::Result;
use crate::ffi;

/// A file of fixed size that can be read at any offset, from several threads at once.
pub trait ReadAt: Send + Sync {
    /// Size in bytes; called once.
    fn size(&self) -> u64;

    /// Fills all of `target` with the bytes at `offset`, or fails.
    fn read_exact_at(&self, target: &mut [u8], offset: u64) -> io::Result<()>;
}

impl ReadAt for std::fs::File {
    fn size(&self) -> u64 {
        self.metadata().map_or(0, |metadata| metadata.len())
    }

    fn read_exact_at(&self, target: &mut [u8], offset: u64) -> io::Result<()> {
        std::os::unix::fs::FileExt::read_exact_at(self, target, offset)
    }
}

impl ReadAt for Vec<u8> {
    fn size(&self) -> u64 {
        self.len() as u64
    }

    fn read_exact_at(&self, target: &mut [u8], offset: u64) -> io::Result<()> {
        let range = usize::try_from(offset).ok().and_then(|start| {
            let end = start.checked_add(target.len())?;
            self.get(start..end)
        });
        target.copy_from_slice(range.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }
}

pub(super) enum Owner {
    /// The library has opened the file and needs nothing else.
    Nothing,
    #[expect(dead_code, reason = "held, not read: the library has its address")]
    Bytes(Arc<[u8]>),
    Reader(Arc<Reader>),
}

pub(super) struct Reader {
    read_at: Box<dyn ReadAt>,
    panic: ParkedPanic,
    /// The first error since the last call that may read.
    failure: Mutex<Option<io::Error>>,
}

pub(super) fn from_reader(read_at: Box<dyn ReadAt>) -> (ffi::wcuda_source, Owner) {
    let mut source = ffi::wcuda_source::init();
    source.kind = ffi::WCUDA_SOURCE_CALLBACK;
    source.size = read_at.size();
    source.read = Some(trampoline);
    let reader = Arc::new(Reader {
        read_at,
        panic: ParkedPanic::default(),
        failure: Mutex::new(None),
    });
    source.user = Arc::as_ptr(&reader) as *mut c_void;
    (source, Owner::Reader(reader))
}

impl Owner {
    /// Runs a native call that may read, resumes a panic of the reader, and attaches the reader's error to that of
    /// the call.
    pub(super) fn run<R>(&self, native: impl FnOnce() -> Result<R>) -> Result<R> {
        let outcome = native();
        let Self::Reader(reader) = self else {
            return outcome;
        };
        reader.panic.resume();
        let failure = reader
            .failure
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        match (outcome, failure) {
            (Err(error), Some(failure)) => {
                let context = format!("the reader reported '{failure}'");
                Err(error.with_source(Box::new(failure)).with_context(context))
            }
            (outcome, _) => outcome,
        }
    }
}

/// # Safety
/// `user` is the `Reader` of `from_reader`, and `target` is valid for writes of `bytes` bytes.
unsafe extern "C" fn trampoline(
    user: *mut c_void,
    offset: u64,
    target: *mut c_void,
    bytes: u64,
) -> i32 {
    // SAFETY: the reader lives as long as the library may call this; only shared access to it.
    let reader = unsafe { &*user.cast::<Reader>() };
    if bytes == 0 {
        return 0;
    }
    // SAFETY: valid for writes by this function's contract; zeroed so that the reader never sees
    // memory that was not set.
    let target = unsafe {
        std::ptr::write_bytes(target.cast::<u8>(), 0, bytes as usize);
        std::slice::from_raw_parts_mut(target.cast::<u8>(), bytes as usize)
    };
    match reader
        .panic
        .guard(|| reader.read_at.read_exact_at(target, offset))
    {
        Some(Ok(())) => 0,
        Some(Err(error)) => {
            let mut failure = reader
                .failure
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            failure.get_or_insert(error);
            1
        }
        None => 1,
    }
}
