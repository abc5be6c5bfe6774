//! Text for `worker_cuda_compat.h`, the C interface of an older worker.
//!
//! C programs that call `cuda_inference_start` need functions that turn text into tokens and back. A
//! program that also links this crate installs its tokenizers for them with [`install_text`].

use std::collections::HashMap;
use std::ffi::{CStr, c_char, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use crate::core::callback::discard;
use crate::ffi;
use crate::llm::gguf::Gguf;
use crate::llm::text::{EncodeOptions, Tokenizer};

/// Tokenizers by the path of their model, kept for the life of the process.
static TOKENIZERS: Mutex<Option<HashMap<PathBuf, Arc<Tokenizer>>>> = Mutex::new(None);

/// Installs the crate's tokenizers as the text functions of this process. The tokenizer of a model is
/// read from its file once.
pub fn install_text() {
    // SAFETY: both functions have the types declared and live as long as the process; `user` is unused.
    unsafe { ffi::wcuda_compat_set_text(Some(encode), Some(decode), std::ptr::null_mut()) }
}

/// Takes the text functions away, whoever installed them.
pub fn remove_text() {
    // SAFETY: null functions are legal.
    unsafe { ffi::wcuda_compat_set_text(None, None, std::ptr::null_mut()) }
}

fn tokenizer(path: &CStr) -> Option<Arc<Tokenizer>> {
    let path = path_of(path)?;
    let mut guard = TOKENIZERS.lock().unwrap_or_else(PoisonError::into_inner);
    let known = guard.get_or_insert_with(HashMap::new);
    if let Some(tokenizer) = known.get(&path) {
        return Some(tokenizer.clone());
    }
    let tokenizer = Arc::new(Tokenizer::from_gguf(&Gguf::open(&path).ok()?).ok()?);
    known.insert(path, tokenizer.clone());
    Some(tokenizer)
}

#[cfg(unix)]
fn path_of(path: &CStr) -> Option<PathBuf> {
    use std::os::unix::ffi::OsStrExt;
    Some(std::ffi::OsStr::from_bytes(path.to_bytes()).into())
}
#[cfg(not(unix))]
fn path_of(path: &CStr) -> Option<PathBuf> {
    path.to_str().ok().map(PathBuf::from)
}

/// Runs a callback's body; a panic or None is a failure.
fn guard(body: impl FnOnce() -> Option<i32>) -> i32 {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(value) => value.unwrap_or(ffi::WCUDA_COMPAT_FAILED),
        Err(payload) => {
            discard(payload);
            ffi::WCUDA_COMPAT_FAILED
        }
    }
}

unsafe extern "C" fn encode(
    _user: *mut c_void,
    model_path: *const c_char,
    text: *const c_char,
    tokens: *mut i32,
    capacity: u32,
) -> i32 {
    guard(|| {
        // SAFETY: the header promises NUL-terminated text that outlives the call.
        let (path, text) = unsafe { (CStr::from_ptr(model_path), CStr::from_ptr(text)) };
        let options = EncodeOptions {
            add_special: true,
            parse_special: false,
        };
        let ids = tokenizer(path)?.encode(text.to_str().ok()?, options).ok()?;
        if ids.len() > capacity as usize {
            return None;
        }
        for (index, &id) in ids.iter().enumerate() {
            // SAFETY: `tokens` has room for `capacity`, and index is below it.
            unsafe { tokens.add(index).write(i32::try_from(id).ok()?) };
        }
        i32::try_from(ids.len()).ok()
    })
}

unsafe extern "C" fn decode(
    _user: *mut c_void,
    model_path: *const c_char,
    token: i32,
    bytes: *mut c_char,
    capacity: u32,
) -> i32 {
    guard(|| {
        // SAFETY: the header promises NUL-terminated text that outlives the call.
        let tokenizer = tokenizer(unsafe { CStr::from_ptr(model_path) })?;
        let id = u32::try_from(token).ok()?;
        if tokenizer.is_end_of_generation(id) {
            return Some(ffi::WCUDA_COMPAT_END);
        }
        if tokenizer.is_special(id) {
            return Some(0);
        }
        let piece = tokenizer.token_bytes(id)?;
        if piece.len() > capacity as usize {
            return None;
        }
        // SAFETY: `bytes` has room for `capacity` bytes, and the piece is no longer.
        unsafe { std::ptr::copy_nonoverlapping(piece.as_ptr().cast(), bytes, piece.len()) };
        i32::try_from(piece.len()).ok()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_are_values() {
        let mut tokens = [0i32; 4];
        // SAFETY: all pointers are valid and sized as said.
        let count = unsafe {
            encode(
                std::ptr::null_mut(),
                c"/no/such/model.gguf".as_ptr(),
                c"text".as_ptr(),
                tokens.as_mut_ptr(),
                4,
            )
        };
        assert_eq!(count, ffi::WCUDA_COMPAT_FAILED);
        assert_eq!(guard(|| panic!("expected")), ffi::WCUDA_COMPAT_FAILED);
    }

    #[test]
    fn text_is_installed_and_taken_away() {
        install_text();
        // SAFETY: takes nothing.
        assert!(unsafe { ffi::wcuda_compat_text_get() }.encode.is_some());
        remove_text();
        // SAFETY: takes nothing.
        assert!(unsafe { ffi::wcuda_compat_text_get() }.decode.is_none());
    }
}
