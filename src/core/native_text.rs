//! Text across the C boundary: fixed-size fields, static texts and borrowed strings.

use std::ffi::{CStr, c_char};

use crate::core::error::{Error, ErrorKind, Result};
use crate::ffi::wcuda_string;

/// Text of a NUL-terminated field of fixed size; bytes that are not UTF-8 are replaced.
pub(crate) fn fixed_text(field: &[c_char]) -> String {
    let bytes: Vec<u8> = field
        .iter()
        .map(|&c| c as u8)
        .take_while(|&b| b != 0)
        .collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

/// A static text of the library; "" for null or for invalid UTF-8.
///
/// # Safety
/// `text` is null or points to a NUL-terminated text that lives as long as the process.
pub(crate) unsafe fn static_text(text: *const c_char) -> &'static str {
    if text.is_null() {
        return "";
    }
    // SAFETY: by this function's contract.
    unsafe { CStr::from_ptr(text) }.to_str().unwrap_or("")
}

/// A Rust text as an argument; valid as long as `text` is.
pub(crate) fn as_native(text: &str) -> wcuda_string {
    bytes_as_native(text.as_bytes())
}

/// Bytes as an argument; valid as long as `bytes` are.
pub(crate) fn bytes_as_native(bytes: &[u8]) -> wcuda_string {
    wcuda_string {
        data: bytes.as_ptr().cast(),
        bytes: bytes.len() as u64,
    }
}

/// The bytes of a borrowed text.
///
/// # Safety
/// `text` is valid for reads throughout `'a`.
pub(crate) unsafe fn as_bytes<'a>(text: wcuda_string) -> &'a [u8] {
    if text.data.is_null() || text.bytes == 0 {
        return &[];
    }
    // SAFETY: by this function's contract.
    unsafe { std::slice::from_raw_parts(text.data.cast(), text.bytes as usize) }
}

/// A borrowed text as UTF-8, which the library guarantees; anything else is an error.
///
/// # Safety
/// `text` is valid for reads throughout `'a`.
pub(crate) unsafe fn as_str<'a>(text: wcuda_string) -> Result<&'a str> {
    // SAFETY: by this function's contract.
    let bytes = unsafe { as_bytes(text) };
    std::str::from_utf8(bytes).map_err(|error| {
        Error::new(
            ErrorKind::Malformed,
            format!("text of {} bytes: {error}", bytes.len()),
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fixed_text_stops_at_nul_or_at_the_end() {
        let full = [b'a' as c_char; 4];
        assert_eq!(fixed_text(&full), "aaaa");
        assert_eq!(fixed_text(&[b'a' as c_char, 0, b'b' as c_char]), "a");
        assert_eq!(fixed_text(&[0x80u8 as c_char, 0]), "\u{fffd}");
    }

    #[test]
    fn borrowed_text_comes_back_whole() {
        let text = "grün\0x";
        // SAFETY: `text` is static.
        assert_eq!(unsafe { as_str(as_native(text)) }.unwrap(), text);
        // SAFETY: null is allowed.
        assert_eq!(unsafe { as_bytes(wcuda_string::zeroed()) }, b"");
        // SAFETY: the bytes are static.
        assert!(unsafe { as_str(bytes_as_native(b"\xff")) }.is_err());
    }
}
