//! Typed metadata values of a GGUF file.

use std::fmt;
use std::ops::Range;

use super::Gguf;
use crate::core::error::{Error, ErrorKind, Result, call};
use crate::core::memory::DeviceRepr;
use crate::core::native_text::as_str;
use crate::ffi;

/// Type of a metadata value, or of an array's elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[allow(missing_docs)] // the names of the format
pub enum ValueType {
    U8,
    I8,
    U16,
    I16,
    U32,
    I32,
    F32,
    Bool,
    String,
    Array,
    U64,
    I64,
    F64,
    /// A type that this version of the crate does not know.
    Unknown(i32),
}

impl ValueType {
    fn from_native(value_type: i32) -> Self {
        match value_type {
            ffi::WCUDA_GGUF_U8 => Self::U8,
            ffi::WCUDA_GGUF_I8 => Self::I8,
            ffi::WCUDA_GGUF_U16 => Self::U16,
            ffi::WCUDA_GGUF_I16 => Self::I16,
            ffi::WCUDA_GGUF_U32 => Self::U32,
            ffi::WCUDA_GGUF_I32 => Self::I32,
            ffi::WCUDA_GGUF_F32 => Self::F32,
            ffi::WCUDA_GGUF_BOOL => Self::Bool,
            ffi::WCUDA_GGUF_STRING => Self::String,
            ffi::WCUDA_GGUF_ARRAY => Self::Array,
            ffi::WCUDA_GGUF_U64 => Self::U64,
            ffi::WCUDA_GGUF_I64 => Self::I64,
            ffi::WCUDA_GGUF_F64 => Self::F64,
            other => Self::Unknown(other),
        }
    }
}

/// One metadata value.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
#[allow(missing_docs)] // the names of the format
pub enum Value<'a> {
    U8(u8),
    I8(i8),
    U16(u16),
    I16(i16),
    U32(u32),
    I32(i32),
    F32(f32),
    Bool(bool),
    String(&'a str),
    Array(Array<'a>),
    U64(u64),
    I64(i64),
    F64(f64),
}

impl<'a> Value<'a> {
    pub(super) fn from_native(
        gguf: &'a Gguf,
        index: u64,
        native: &ffi::wcuda_gguf_value,
    ) -> Result<Self> {
        Ok(match ValueType::from_native(native.r#type) {
            ValueType::U8 => Self::U8(native.value_u64 as u8),
            ValueType::I8 => Self::I8(native.value_i64 as i8),
            ValueType::U16 => Self::U16(native.value_u64 as u16),
            ValueType::I16 => Self::I16(native.value_i64 as i16),
            ValueType::U32 => Self::U32(native.value_u64 as u32),
            ValueType::I32 => Self::I32(native.value_i64 as i32),
            ValueType::F32 => Self::F32(native.value_f64 as f32),
            ValueType::Bool => Self::Bool(native.value_u64 != 0),
            // SAFETY: the text is valid as long as the handle, which `gguf` keeps.
            ValueType::String => Self::String(unsafe { as_str(native.value_string) }?),
            ValueType::Array => Self::Array(Array {
                gguf,
                index,
                element_type: ValueType::from_native(native.element_type),
                len: native.element_count,
            }),
            ValueType::U64 => Self::U64(native.value_u64),
            ValueType::I64 => Self::I64(native.value_i64),
            ValueType::F64 => Self::F64(native.value_f64),
            ValueType::Unknown(other) => {
                let message = format!("metadata entry {index} has the unknown type {other}");
                return Err(Error::new(ErrorKind::Unsupported, message));
            }
        })
    }

    /// The type of the value.
    pub fn value_type(&self) -> ValueType {
        match self {
            Self::U8(_) => ValueType::U8,
            Self::I8(_) => ValueType::I8,
            Self::U16(_) => ValueType::U16,
            Self::I16(_) => ValueType::I16,
            Self::U32(_) => ValueType::U32,
            Self::I32(_) => ValueType::I32,
            Self::F32(_) => ValueType::F32,
            Self::Bool(_) => ValueType::Bool,
            Self::String(_) => ValueType::String,
            Self::Array(_) => ValueType::Array,
            Self::U64(_) => ValueType::U64,
            Self::I64(_) => ValueType::I64,
            Self::F64(_) => ValueType::F64,
        }
    }

    /// A non-negative integer of any width.
    pub fn as_u64(&self) -> Option<u64> {
        match *self {
            Self::U8(value) => Some(value.into()),
            Self::U16(value) => Some(value.into()),
            Self::U32(value) => Some(value.into()),
            Self::U64(value) => Some(value),
            Self::I8(value) => value.try_into().ok(),
            Self::I16(value) => value.try_into().ok(),
            Self::I32(value) => value.try_into().ok(),
            Self::I64(value) => value.try_into().ok(),
            _ => None,
        }
    }

    /// An integer of any width whose value fits.
    pub fn as_i64(&self) -> Option<i64> {
        match *self {
            Self::I8(value) => Some(value.into()),
            Self::I16(value) => Some(value.into()),
            Self::I32(value) => Some(value.into()),
            Self::I64(value) => Some(value),
            _ => self.as_u64()?.try_into().ok(),
        }
    }

    /// A float of either width.
    pub fn as_f64(&self) -> Option<f64> {
        match *self {
            Self::F32(value) => Some(value.into()),
            Self::F64(value) => Some(value),
            _ => None,
        }
    }

    /// A boolean.
    pub fn as_bool(&self) -> Option<bool> {
        match *self {
            Self::Bool(value) => Some(value),
            _ => None,
        }
    }

    /// A text.
    pub fn as_str(&self) -> Option<&'a str> {
        match *self {
            Self::String(value) => Some(value),
            _ => None,
        }
    }

    /// An array.
    pub fn as_array(&self) -> Option<Array<'a>> {
        match *self {
            Self::Array(value) => Some(value),
            _ => None,
        }
    }
}

/// Types to which an array of numbers can be copied.
pub trait ArrayElement: DeviceRepr {
    /// The array's element type.
    const TYPE: ValueType;
}

macro_rules! array_elements {
    ($($number:ty => $type:ident,)*) => {$(
        impl ArrayElement for $number {
            const TYPE: ValueType = ValueType::$type;
        }
    )*};
}

array_elements! {
    u8 => U8, i8 => I8, u16 => U16, i16 => I16, u32 => U32,
    i32 => I32, u64 => U64, i64 => I64, f32 => F32, f64 => F64,
}

/// An array of metadata; its elements are read on request.
#[derive(Clone, Copy)]
pub struct Array<'a> {
    gguf: &'a Gguf,
    index: u64,
    element_type: ValueType,
    len: u64,
}

impl<'a> Array<'a> {
    /// Type of the elements.
    pub fn element_type(&self) -> ValueType {
        self.element_type
    }

    /// Number of elements.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether the array is empty.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// All elements of an array of exactly this element type.
    pub fn numbers<T: ArrayElement>(&self) -> Result<Vec<T>> {
        self.expect_type(T::TYPE)?;
        self.copy_raw(0..self.len)
    }

    /// All elements of an array of integers of any width.
    pub fn integers(&self) -> Result<Vec<i64>> {
        fn wide<T: ArrayElement + Into<i64>>(array: &Array<'_>) -> Result<Vec<i64>> {
            Ok(array.numbers::<T>()?.into_iter().map(Into::into).collect())
        }
        match self.element_type {
            ValueType::U8 => wide::<u8>(self),
            ValueType::I8 => wide::<i8>(self),
            ValueType::U16 => wide::<u16>(self),
            ValueType::I16 => wide::<i16>(self),
            ValueType::U32 => wide::<u32>(self),
            ValueType::I32 => wide::<i32>(self),
            ValueType::I64 => self.numbers(),
            ValueType::U64 => self.numbers::<u64>()?.into_iter().map(narrow_u64).collect(),
            other => Err(mismatch("integers", other)),
        }
    }

    /// All elements of an array of booleans.
    pub fn bools(&self) -> Result<Vec<bool>> {
        self.expect_type(ValueType::Bool)?;
        Ok(self
            .copy_raw::<u8>(0..self.len)?
            .into_iter()
            .map(|byte| byte != 0)
            .collect())
    }

    /// All elements of an array of texts.
    pub fn strings(&self) -> Result<Vec<&'a str>> {
        self.strings_in(0..self.len)
    }

    /// The texts of a range of elements.
    pub fn strings_in(&self, range: Range<u64>) -> Result<Vec<&'a str>> {
        self.expect_type(ValueType::String)?;
        let count = self.checked_count(&range)?;
        let mut texts = vec![ffi::wcuda_string::zeroed(); count];
        // SAFETY: `texts` is valid for `count` entries.
        call(|error| unsafe {
            ffi::wcuda_gguf_array_strings(
                self.gguf.handle(),
                self.index,
                range.start,
                count as u64,
                texts.as_mut_ptr(),
                error,
            )
        })?;
        // SAFETY: the texts are valid as long as the handle, which the file `'a` keeps.
        texts
            .into_iter()
            .map(|text| unsafe { as_str(text) })
            .collect()
    }

    fn copy_raw<T: DeviceRepr>(&self, range: Range<u64>) -> Result<Vec<T>> {
        let count = self.checked_count(&range)?;
        let mut target = vec![T::ZERO; count];
        let bytes = size_of_val(target.as_slice()) as u64;
        // SAFETY: `target` is valid for `bytes` bytes, and every bit pattern is a `T`.
        call(|error| unsafe {
            ffi::wcuda_gguf_array_copy(
                self.gguf.handle(),
                self.index,
                range.start,
                count as u64,
                target.as_mut_ptr().cast(),
                bytes,
                error,
            )
        })?;
        Ok(target)
    }

    /// Checked here, because the result is allocated before the library is called.
    fn checked_count(&self, range: &Range<u64>) -> Result<usize> {
        if range.start <= range.end && range.end <= self.len {
            return Ok((range.end - range.start) as usize);
        }
        let message = format!("{}..{} of an array of {}", range.start, range.end, self.len);
        Err(Error::new(ErrorKind::OutOfRange, message))
    }

    fn expect_type(&self, wanted: ValueType) -> Result<()> {
        if self.element_type == wanted {
            return Ok(());
        }
        Err(mismatch(&format!("{wanted:?}"), self.element_type))
    }
}

impl fmt::Debug for Array<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}[{}]", self.element_type, self.len)
    }
}

fn narrow_u64(value: u64) -> Result<i64> {
    value.try_into().map_err(|_| {
        Error::new(
            ErrorKind::OutOfRange,
            format!("array element {value} passes 2^63 - 1"),
        )
    })
}

fn mismatch(wanted: &str, found: ValueType) -> Error {
    let message = format!("an array of {found:?} instead of {wanted}");
    Error::new(ErrorKind::Malformed, message)
}

/// Typed access by key. An absent key is None; a value of another type is [`ErrorKind::Malformed`].
impl Gguf {
    /// A text.
    pub fn str(&self, key: &str) -> Result<Option<&str>> {
        self.typed(key, "text", |value| value.as_str())
    }

    /// An integer of any width whose value fits.
    pub fn u32(&self, key: &str) -> Result<Option<u32>> {
        self.typed(key, "u32", |value| value.as_u64()?.try_into().ok())
    }

    /// A non-negative integer of any width.
    pub fn u64(&self, key: &str) -> Result<Option<u64>> {
        self.typed(key, "u64", |value| value.as_u64())
    }

    /// A float of either width.
    pub fn f32(&self, key: &str) -> Result<Option<f32>> {
        self.typed(key, "float", |value| {
            value.as_f64().map(|value| value as f32)
        })
    }

    /// A boolean.
    pub fn bool(&self, key: &str) -> Result<Option<bool>> {
        self.typed(key, "bool", |value| value.as_bool())
    }

    /// An array.
    pub fn array(&self, key: &str) -> Result<Option<Array<'_>>> {
        self.typed(key, "array", |value| value.as_array())
    }

    fn typed<'a, R>(
        &'a self,
        key: &str,
        wanted: &str,
        convert: impl FnOnce(Value<'a>) -> Option<R>,
    ) -> Result<Option<R>> {
        let Some(value) = self.value(key)? else {
            return Ok(None);
        };
        let found = value.value_type();
        convert(value).map(Some).ok_or_else(|| {
            let message = format!("metadata key '{key}' is {found:?}, not {wanted}");
            Error::new(ErrorKind::Malformed, message)
        })
    }
}
