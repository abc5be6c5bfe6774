//! GGUF files: metadata and tensors, validated once when opened.

use std::fmt;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

use crate::core::error::{ErrorKind, Result, call};
use crate::core::native_text::{as_bytes, as_native, as_str, bytes_as_native, static_text};
use crate::ffi;

pub use self::source::ReadAt;
pub use self::value::{Array, ArrayElement, Value, ValueType};

mod source;
mod value;

/// An open GGUF file. Cheap to clone.
///
/// ```no_run
/// # fn main() -> worker_cuda::Result<()> {
/// let gguf = worker_cuda::Gguf::open("model.gguf")?;
/// println!("{}", gguf.str("general.architecture")?.unwrap_or("?"));
/// for tensor in gguf.tensors() {
///     let tensor = tensor?;
///     println!("{} {:?} {} bytes", tensor.name, tensor.dimensions, tensor.bytes);
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Gguf(Arc<Inner>);

struct Inner {
    /// Declared, and so dropped, before the source that it reads from.
    handle: Handle,
    info: GgufInfo,
    source: source::Owner,
}

struct Handle(ffi::wcuda_gguf);

impl Drop for Handle {
    fn drop(&mut self) {
        // SAFETY: legal on any thread.
        unsafe { ffi::wcuda_gguf_close(self.0) }
    }
}

/// Properties of the whole file.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct GgufInfo {
    /// Version of the format, 2 or 3.
    pub version: u32,
    /// Number of metadata entries.
    pub metadata_count: u64,
    /// Number of tensors.
    pub tensor_count: u64,
    /// Total size of all parts.
    pub file_bytes: u64,
    /// Total size of all tensors, without padding.
    pub tensor_bytes: u64,
    /// Alignment of tensor data within the file.
    pub alignment: u32,
    /// Number of parts; 1 for a file that is not split.
    pub split_count: u32,
}

/// One tensor of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Tensor<'a> {
    /// Index in file order.
    pub index: u64,
    /// The name.
    pub name: &'a str,
    /// ggml type id, see [`tensor_type`].
    pub type_id: u32,
    /// One to four dimensions; the first is contiguous.
    pub dimensions: Vec<u64>,
    /// Product of the dimensions.
    pub element_count: u64,
    /// Size in the file.
    pub bytes: u64,
    /// Index of the part that contains it.
    pub split_index: u32,
    /// Offset from the start of its part.
    pub file_offset: u64,
}

/// Properties of a ggml tensor type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TensorType {
    /// ggml type id.
    pub id: u32,
    /// The name, for example "Q4_K".
    pub name: &'static str,
    /// Elements of one block.
    pub block_elements: u32,
    /// Bytes of one block.
    pub block_bytes: u32,
    /// Whether a model may have weights of this type.
    pub is_loadable: bool,
}

/// Returns the properties of a ggml type id; removed and unknown ids are [`ErrorKind::NotFound`].
pub fn tensor_type(id: u32) -> Result<TensorType> {
    let mut info = ffi::wcuda_tensor_type_info::init();
    // SAFETY: `info` is valid and sized.
    call(|error| unsafe { ffi::wcuda_tensor_type_info_get(id, &mut info, error) })?;
    Ok(TensorType {
        id: info.r#type,
        // SAFETY: the header promises static text.
        name: unsafe { static_text(info.name) },
        block_elements: info.block_elements,
        block_bytes: info.block_bytes,
        is_loadable: info.is_loadable != 0,
    })
}

impl Gguf {
    /// Opens a file. The other parts of a split model are found next to it.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let mut source = ffi::wcuda_source::init();
        source.kind = ffi::WCUDA_SOURCE_PATH;
        source.path = bytes_as_native(path.as_os_str().as_bytes());
        Self::open_source(source, source::Owner::Nothing)
    }

    /// Opens the file of a descriptor. The descriptor is duplicated, and its offset does not move.
    pub fn from_fd(fd: impl AsFd) -> Result<Self> {
        let mut source = ffi::wcuda_source::init();
        source.kind = ffi::WCUDA_SOURCE_FD;
        source.fd = fd.as_fd().as_raw_fd();
        Self::open_source(source, source::Owner::Nothing)
    }

    /// Opens a file that is in memory.
    pub fn from_bytes(bytes: impl Into<Arc<[u8]>>) -> Result<Self> {
        let bytes = bytes.into();
        let mut source = ffi::wcuda_source::init();
        source.kind = ffi::WCUDA_SOURCE_MEMORY;
        source.data = bytes.as_ptr().cast();
        source.size = bytes.len() as u64;
        Self::open_source(source, source::Owner::Bytes(bytes))
    }

    /// Opens a file that a reader of yours provides. A panic in the reader is resumed in the call that caused the
    /// read.
    pub fn from_reader(reader: impl ReadAt + 'static) -> Result<Self> {
        let (native, owner) = source::from_reader(Box::new(reader));
        Self::open_source(native, owner)
    }

    fn open_source(mut source: ffi::wcuda_source, owner: source::Owner) -> Result<Self> {
        if source.kind != ffi::WCUDA_SOURCE_FD {
            source.fd = -1;
        }
        let mut handle = ffi::wcuda_gguf::zeroed();
        // SAFETY: `source` is valid for the call, and `owner` keeps what outlasts it.
        owner.run(|| call(|error| unsafe { ffi::wcuda_gguf_open(&source, &mut handle, error) }))?;
        let handle = Handle(handle);
        let mut info = ffi::wcuda_gguf_info::init();
        // SAFETY: `info` is valid and sized.
        call(|error| unsafe { ffi::wcuda_gguf_info_get(handle.0, &mut info, error) })?;
        let info = GgufInfo {
            version: info.version,
            metadata_count: info.metadata_count,
            tensor_count: info.tensor_count,
            file_bytes: info.file_bytes,
            tensor_bytes: info.tensor_bytes,
            alignment: info.alignment,
            split_count: info.split_count,
        };
        Ok(Self(Arc::new(Inner {
            handle,
            info,
            source: owner,
        })))
    }

    /// Properties of the whole file.
    pub fn info(&self) -> &GgufInfo {
        &self.0.info
    }

    /// The tensor at an index in file order.
    pub fn tensor_at(&self, index: u64) -> Result<Tensor<'_>> {
        let mut tensor = ffi::wcuda_gguf_tensor::init();
        let mut count = 0;
        // SAFETY: `tensor` is valid and sized, `count` is valid.
        call(|error| unsafe {
            ffi::wcuda_gguf_tensor_list(self.handle(), index, &mut tensor, 1, &mut count, error)
        })?;
        check_index(index, count)?;
        self.tensor_from_native(index, &tensor)
    }

    /// All tensors in file order.
    pub fn tensors(&self) -> impl ExactSizeIterator<Item = Result<Tensor<'_>>> {
        (0..self.0.info.tensor_count as usize).map(|index| self.tensor_at(index as u64))
    }

    /// The tensor of this name, if it exists.
    pub fn tensor(&self, name: &str) -> Result<Option<Tensor<'_>>> {
        for tensor in self.tensors() {
            let tensor = tensor?;
            if tensor.name == name {
                return Ok(Some(tensor));
            }
        }
        Ok(None)
    }

    /// Reads bytes of a tensor's data as they are in the file.
    pub fn read_tensor(&self, index: u64, offset: u64, target: &mut [u8]) -> Result<()> {
        let (data, bytes) = (target.as_mut_ptr().cast(), target.len() as u64);
        self.0.source.run(|| {
            // SAFETY: `target` is valid for `bytes` bytes.
            call(|error| unsafe {
                ffi::wcuda_gguf_tensor_read(self.handle(), index, offset, data, bytes, error)
            })
        })
    }

    /// Expands `target.len()` elements, starting at `first`, to f32. Both numbers are multiples of the type's block
    /// size.
    pub fn dequantize_tensor(&self, index: u64, first: u64, target: &mut [f32]) -> Result<()> {
        let (data, count) = (target.as_mut_ptr(), target.len() as u64);
        self.0.source.run(|| {
            // SAFETY: `target` is valid for `count` floats.
            call(|error| unsafe {
                ffi::wcuda_gguf_tensor_dequantize(self.handle(), index, first, count, data, error)
            })
        })
    }

    /// The metadata entry at an index in file order, with its key.
    pub fn metadata_at(&self, index: u64) -> Result<(&str, Value<'_>)> {
        let mut native = ffi::wcuda_gguf_value::init();
        let mut count = 0;
        // SAFETY: `native` is valid and sized, `count` is valid.
        call(|error| unsafe {
            ffi::wcuda_gguf_value_list(self.handle(), index, &mut native, 1, &mut count, error)
        })?;
        check_index(index, count)?;
        // SAFETY: the text is valid as long as the handle, which `self` keeps.
        let key = unsafe { as_str(native.key) }?;
        Ok((key, Value::from_native(self, index, &native)?))
    }

    /// All metadata in file order.
    pub fn metadata(&self) -> impl ExactSizeIterator<Item = Result<(&str, Value<'_>)>> {
        (0..self.0.info.metadata_count as usize).map(|index| self.metadata_at(index as u64))
    }

    /// The value of this key, if it exists.
    pub fn value(&self, key: &str) -> Result<Option<Value<'_>>> {
        let mut native = ffi::wcuda_gguf_value::init();
        // SAFETY: `key` and `native` are valid for the call.
        let found = call(|error| unsafe {
            ffi::wcuda_gguf_value_find(self.handle(), as_native(key), &mut native, error)
        });
        match found {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
            Ok(()) => {
                let index = self.index_of(key, &native)?;
                Value::from_native(self, index, &native).map(Some)
            }
        }
    }

    /// The index of a key's entry: arrays are read by index, which a search by key does not return.
    fn index_of(&self, key: &str, found: &ffi::wcuda_gguf_value) -> Result<u64> {
        if found.r#type != ffi::WCUDA_GGUF_ARRAY {
            return Ok(0);
        }
        for index in 0..self.0.info.metadata_count {
            let mut native = ffi::wcuda_gguf_value::init();
            let mut count = 0;
            // SAFETY: `native` is valid and sized, `count` is valid.
            call(|error| unsafe {
                ffi::wcuda_gguf_value_list(self.handle(), index, &mut native, 1, &mut count, error)
            })?;
            // SAFETY: the text is valid as long as the handle.
            if unsafe { as_bytes(native.key) } == key.as_bytes() {
                return Ok(index);
            }
        }
        let message = format!("key '{key}' was found but is at no index");
        Err(crate::core::error::Error::new(ErrorKind::Internal, message))
    }

    fn tensor_from_native(
        &self,
        index: u64,
        tensor: &ffi::wcuda_gguf_tensor,
    ) -> Result<Tensor<'_>> {
        let dimensions = tensor
            .dimensions
            .iter()
            .take(tensor.dimension_count as usize);
        Ok(Tensor {
            index,
            // SAFETY: the text is valid as long as the handle, which `self` keeps.
            name: unsafe { as_str(tensor.name) }?,
            type_id: tensor.r#type,
            dimensions: dimensions.copied().collect(),
            element_count: tensor.element_count,
            bytes: tensor.bytes,
            split_index: tensor.split_index,
            file_offset: tensor.file_offset,
        })
    }

    pub(crate) fn handle(&self) -> ffi::wcuda_gguf {
        self.0.handle.0
    }

    /// Runs a native call that may read the file, then reports an error or a panic of the reader.
    pub(crate) fn run_reading<R>(&self, native: impl FnOnce() -> Result<R>) -> Result<R> {
        self.0.source.run(native)
    }
}

impl fmt::Debug for Gguf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Gguf").field(&self.0.info).finish()
    }
}

/// Checks an index: the native functions return nothing, without an error, for an index equal to the length.
fn check_index(index: u64, count: u64) -> Result<()> {
    if index < count {
        return Ok(());
    }
    let message = format!("index {index} of {count} entries");
    Err(crate::core::error::Error::new(
        ErrorKind::OutOfRange,
        message,
    ))
}
