//! Text functions for `worker_cuda_compat.h`, the C interface of an older worker.
//!
//! C programs that call `cuda_inference_start` need functions that convert text to tokens and back. A program
//! that also links this crate installs the crate's tokenizers with [`install_text`].
//!
//! ```
//! worker_cuda::compat::install_text();
//! // From here on C code of this process can call cuda_inference_start.
//! worker_cuda::compat::remove_text();
//! ```

use std::ffi::{CStr, c_char, c_void};
use std::fs::{self, Metadata};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use crate::core::callback::caught;
use crate::ffi;
use crate::llm::gguf::Gguf;
use crate::llm::text::{EncodeOptions, Tokenizer};

/// Maximum of cached tokenizers; the least recently used is dropped first.
const KEPT_MAX: usize = 4;

/// Cached tokenizers, the most recently used last.
static TOKENIZERS: Mutex<Vec<Kept>> = Mutex::new(Vec::new());

/// The tokenizer of a file.
struct Kept {
    path: PathBuf,
    identity: Identity,
    tokenizer: Arc<Tokenizer>,
}

/// Distinguishes a file from another file at the same path.
#[derive(Clone, Debug, PartialEq)]
struct Identity {
    bytes: u64,
    modified: Option<SystemTime>,
    /// Device and inode, if the system has them.
    place: (u64, u64),
}

impl Identity {
    fn of(path: &Path) -> Option<Self> {
        let metadata = fs::metadata(path).ok()?;
        Some(Self {
            bytes: metadata.len(),
            modified: metadata.modified().ok(),
            place: place_of(&metadata),
        })
    }
}

#[cfg(unix)]
fn place_of(metadata: &Metadata) -> (u64, u64) {
    use std::os::unix::fs::MetadataExt;
    (metadata.dev(), metadata.ino())
}
#[cfg(not(unix))]
fn place_of(_: &Metadata) -> (u64, u64) {
    (0, 0)
}

/// Installs the crate's tokenizers as the text functions of this process. A model's tokenizer is read from its file
/// when it is first needed, and again if the file was replaced; four are cached.
pub fn install_text() {
    // SAFETY: both functions have the types declared and live as long as the process; `user` is unused.
    unsafe { ffi::wcuda_compat_set_text(Some(encode), Some(decode), std::ptr::null_mut()) }
}

/// Removes the text functions, whichever code installed them, and drops the cached tokenizers.
pub fn remove_text() {
    // SAFETY: null functions are legal.
    unsafe { ffi::wcuda_compat_set_text(None, None, std::ptr::null_mut()) }
    kept().clear();
}

fn kept() -> std::sync::MutexGuard<'static, Vec<Kept>> {
    TOKENIZERS.lock().unwrap_or_else(PoisonError::into_inner)
}

fn tokenizer(path: &CStr) -> Option<Arc<Tokenizer>> {
    let path = path_of(path)?;
    let identity = Identity::of(&path)?;
    let mut kept = kept();
    let same = |entry: &Kept| entry.path == path && entry.identity == identity;
    let entry = match kept.iter().position(same) {
        Some(index) => kept.remove(index),
        None => Kept {
            tokenizer: Arc::new(Tokenizer::from_gguf(&Gguf::open(&path).ok()?).ok()?),
            path: path.clone(),
            identity,
        },
    };
    kept.retain(|other| other.path != path);
    if kept.len() >= KEPT_MAX {
        kept.remove(0);
    }
    let tokenizer = entry.tokenizer.clone();
    kept.push(entry);
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
    caught(body).flatten().unwrap_or(ffi::WCUDA_COMPAT_FAILED)
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

    /// A file with a vocabulary of the letters a and b and `extra`.
    fn write_model(path: &Path, extra: &str) {
        let text = |value: &str| {
            let mut bytes = (value.len() as u64).to_le_bytes().to_vec();
            bytes.extend(value.as_bytes());
            bytes
        };
        let tokens = ["<unk>", "</s>", "a", "b", extra];
        let mut file = b"GGUF\x03\0\0\0".to_vec();
        file.extend(0u64.to_le_bytes());
        file.extend(6u64.to_le_bytes());
        for (key, value) in [
            ("general.architecture", "llama"),
            ("tokenizer.ggml.model", "llama"),
        ] {
            file.extend([text(key), 8u32.to_le_bytes().to_vec(), text(value)].concat());
        }
        let array = |key: &str, element_type: u32, elements: Vec<u8>| {
            let mut entry = [text(key), 9u32.to_le_bytes().to_vec()].concat();
            entry.extend(element_type.to_le_bytes());
            entry.extend((tokens.len() as u64).to_le_bytes());
            entry.extend(elements);
            entry
        };
        let texts = tokens.iter().flat_map(|token| text(token)).collect();
        file.extend(array("tokenizer.ggml.tokens", 8, texts));
        let scores = (0..5)
            .flat_map(|score| (score as f32).to_le_bytes())
            .collect();
        file.extend(array("tokenizer.ggml.scores", 6, scores));
        let types = [2i32, 3, 1, 1, 1]
            .iter()
            .flat_map(|kind| kind.to_le_bytes());
        file.extend(array("tokenizer.ggml.token_type", 5, types.collect()));
        let eos = [
            text("tokenizer.ggml.eos_token_id"),
            4u32.to_le_bytes().to_vec(),
        ]
        .concat();
        file.extend(eos);
        file.extend(1u32.to_le_bytes());
        file.resize(file.len().next_multiple_of(32), 0);
        // A new file, not the old one written over.
        let fresh = path.with_extension("new");
        fs::write(&fresh, file).unwrap();
        fs::rename(&fresh, path).unwrap();
    }

    /// The ids of `text` by the installed functions.
    fn ids(path: &CStr, text: &CStr) -> Vec<i32> {
        // SAFETY: takes nothing.
        let installed = unsafe { ffi::wcuda_compat_text_get() };
        let mut tokens = [0i32; 16];
        // SAFETY: all pointers are valid and sized as said.
        let count = unsafe {
            installed.encode.unwrap()(
                installed.user,
                path.as_ptr(),
                text.as_ptr(),
                tokens.as_mut_ptr(),
                16,
            )
        };
        assert!(count >= 0, "{count}");
        tokens[..count as usize].to_vec()
    }

    #[test]
    fn installed_text_encodes_decodes_and_notices_a_replaced_file() {
        let folder = std::env::temp_dir().join(format!("wcuda-compat-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let file = folder.join("model.gguf");
        write_model(&file, "\u{2581}ab");
        let path = std::ffi::CString::new(file.to_str().unwrap()).unwrap();
        install_text();

        assert_eq!(ids(&path, c"b"), [1, 3]);
        // SAFETY: takes nothing.
        let installed = unsafe { ffi::wcuda_compat_text_get() };
        let decode = installed.decode.unwrap();
        let mut bytes = [0 as c_char; 8];
        let mut decoded = |token: i32| {
            // SAFETY: all pointers are valid and sized as said.
            unsafe { decode(installed.user, path.as_ptr(), token, bytes.as_mut_ptr(), 8) }
        };
        assert_eq!(decoded(4), 3, "' ab'");
        assert_eq!(decoded(1), ffi::WCUDA_COMPAT_END);
        assert_eq!(decoded(9), ffi::WCUDA_COMPAT_FAILED);
        assert_eq!(
            bytes[..3].iter().map(|&b| b as u8).collect::<Vec<_>>(),
            b" ab"
        );

        write_model(&file, "\u{2581}b");
        let after = ids(&path, c"b");
        for index in 0..2 * KEPT_MAX {
            let other = folder.join(format!("{index}.gguf"));
            write_model(&other, "x");
            let other = std::ffi::CString::new(other.to_str().unwrap()).unwrap();
            ids(&other, c"a");
        }
        let kept_count = kept().len();
        remove_text();
        fs::remove_dir_all(&folder).unwrap();

        assert_eq!(after, [1, 4]);
        assert_eq!(kept_count, KEPT_MAX);
        assert!(kept().is_empty());
        // SAFETY: takes nothing.
        assert!(unsafe { ffi::wcuda_compat_text_get() }.decode.is_none());
    }
}
