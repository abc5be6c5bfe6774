//! GGUF files: metadata, tensors and every kind of source.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use worker_cuda::gguf::{ReadAt, Value, ValueType, tensor_type};
use worker_cuda::*;

use gguf_file::{GgufFile, text};

#[path = "support/forget.rs"]
mod forget;
#[path = "support/gguf_file.rs"]
mod gguf_file;

fn sample() -> GgufFile {
    let values: Vec<f32> = (0..12).map(|i| i as f32 * 0.5).collect();
    GgufFile::new()
        .u32("llama.block_count", 2)
        .entry("test.u8", 0, &[200])
        .entry("test.i8", 1, &[0x80])
        .entry("test.i64", 11, &(-5i64).to_le_bytes())
        .entry("test.u64", 10, &u64::MAX.to_le_bytes())
        .entry("test.f32", 6, &1.5f32.to_le_bytes())
        .entry("test.f64", 12, &(-0.25f64).to_le_bytes())
        .entry("test.bool", 7, &[1])
        .string("test.text", "grün")
        .strings("test.words", &["a", "", "日本"])
        .array(
            "test.numbers",
            5,
            3,
            &[1, 0, 0, 0, 255, 255, 255, 255, 3, 0, 0, 0],
        )
        .array("test.flags", 7, 2, &[1, 0])
        .tensor_f32("first", &[4, 3], &values)
        .tensor_f32("second", &[2], &[8.0, 9.0])
}

fn temporary(name: &str, bytes: &[u8]) -> std::path::PathBuf {
    let path = std::env::temp_dir().join(format!("{name}-{}.gguf", std::process::id()));
    std::fs::write(&path, bytes).expect("a file in the temporary folder");
    path
}

#[test]
fn metadata_comes_back_typed() {
    let gguf = Gguf::from_bytes(sample().bytes()).unwrap();
    assert_eq!(gguf.info().version, 3);
    assert_eq!(gguf.str("general.architecture").unwrap(), Some("llama"));
    assert_eq!(gguf.u32("llama.block_count").unwrap(), Some(2));
    assert_eq!(gguf.u32("test.u8").unwrap(), Some(200));
    assert_eq!(gguf.u64("test.u64").unwrap(), Some(u64::MAX));
    assert_eq!(gguf.f32("test.f32").unwrap(), Some(1.5));
    assert_eq!(gguf.f32("test.f64").unwrap(), Some(-0.25));
    assert_eq!(gguf.bool("test.bool").unwrap(), Some(true));
    assert_eq!(gguf.str("test.text").unwrap(), Some("grün"));
    assert!(matches!(
        gguf.value("test.i8").unwrap(),
        Some(Value::I8(-128))
    ));
    assert_eq!(gguf.value("test.i64").unwrap().unwrap().as_i64(), Some(-5));
    assert_eq!(gguf.u32("test.absent").unwrap(), None);
    let mistaken = gguf.u32("test.text").unwrap_err();
    assert_eq!(mistaken.kind(), ErrorKind::Malformed);
    assert!(mistaken.message().contains("test.text"));
    assert!(gguf.u32("test.u64").is_err(), "too large");
}

#[test]
fn arrays_come_back_by_key_and_in_parts() {
    let gguf = Gguf::from_bytes(sample().bytes()).unwrap();
    let words = gguf.array("test.words").unwrap().unwrap();
    assert_eq!((words.element_type(), words.len()), (ValueType::String, 3));
    assert_eq!(words.strings().unwrap(), ["a", "", "日本"]);
    assert_eq!(words.strings_in(2..3).unwrap(), ["日本"]);
    assert_eq!(
        words.strings_in(2..4).unwrap_err().kind(),
        ErrorKind::OutOfRange
    );
    assert!(words.numbers::<u8>().is_err());
    let numbers = gguf.array("test.numbers").unwrap().unwrap();
    assert_eq!(numbers.numbers::<i32>().unwrap(), [1, -1, 3]);
    assert_eq!(numbers.integers().unwrap(), [1, -1, 3]);
    assert!(numbers.numbers::<u32>().is_err());
    assert_eq!(
        gguf.array("test.flags").unwrap().unwrap().bools().unwrap(),
        [true, false]
    );
}

#[test]
fn metadata_is_listed_in_file_order() {
    let gguf = Gguf::from_bytes(sample().bytes()).unwrap();
    let keys: Vec<&str> = gguf.metadata().map(|entry| entry.unwrap().0).collect();
    assert_eq!(keys[..2], ["general.architecture", "llama.block_count"]);
    assert_eq!(keys.len() as u64, gguf.info().metadata_count);
    assert!(gguf.metadata_at(keys.len() as u64).is_err());
}

#[test]
fn tensors_are_listed_found_read_and_expanded() {
    let gguf = Gguf::from_bytes(sample().bytes()).unwrap();
    let names: Vec<&str> = gguf.tensors().map(|tensor| tensor.unwrap().name).collect();
    assert_eq!(names, ["first", "second"]);
    let first = gguf.tensor("first").unwrap().unwrap();
    assert_eq!(
        (first.dimensions.as_slice(), first.bytes),
        ([4, 3].as_slice(), 48)
    );
    assert_eq!(gguf.tensor("third").unwrap(), None);

    let mut bytes = [0; 8];
    gguf.read_tensor(first.index, 4, &mut bytes).unwrap();
    assert_eq!(bytes[..4], 0.5f32.to_le_bytes());
    let mut floats = [0.0; 2];
    gguf.dequantize_tensor(1, 0, &mut floats).unwrap();
    assert_eq!(floats, [8.0, 9.0]);

    assert_eq!(
        gguf.read_tensor(1, 4, &mut bytes).unwrap_err().kind(),
        ErrorKind::OutOfRange,
        "12 bytes of 8"
    );
    assert!(gguf.read_tensor(2, 0, &mut bytes).is_err());
}

#[test]
fn all_sources_see_the_same_file() {
    let bytes = sample().bytes();
    let path = temporary("sources", &bytes);
    let file = std::fs::File::open(&path).unwrap();
    let opened = [
        Gguf::open(&path).unwrap(),
        Gguf::from_fd(&file).unwrap(),
        Gguf::from_bytes(bytes.clone()).unwrap(),
        Gguf::from_reader(bytes.clone()).unwrap(),
        Gguf::from_reader(file).unwrap(),
    ];
    std::fs::remove_file(&path).unwrap();
    for gguf in opened {
        assert_eq!(gguf.info().file_bytes, bytes.len() as u64);
        assert_eq!(gguf.str("test.text").unwrap(), Some("grün"));
        let mut floats = [0.0; 2];
        gguf.dequantize_tensor(1, 0, &mut floats).unwrap();
        assert_eq!(floats, [8.0, 9.0]);
    }
}

#[test]
fn bad_files_are_errors_with_reasons() {
    let absent = Gguf::open("/nonexistent/model.gguf").unwrap_err();
    assert_eq!(absent.kind(), ErrorKind::Io);
    assert_eq!(absent.native_code(), 2, "ENOENT");
    assert_eq!(
        Gguf::from_bytes(b"GGML".to_vec()).unwrap_err().kind(),
        ErrorKind::Malformed
    );
    assert!(Gguf::from_bytes(Vec::new()).is_err());
    let bytes = sample().bytes();
    for end in (0..bytes.len() - 32).step_by(7) {
        assert!(
            Gguf::from_bytes(bytes[..end].to_vec()).is_err(),
            "prefix of {end} bytes"
        );
    }
    let bad_text =
        GgufFile::new().entry("test.bad", 8, &[&1u64.to_le_bytes()[..], &[0xff]].concat());
    assert!(
        Gguf::from_bytes(bad_text.bytes()).is_err(),
        "text that is not UTF-8"
    );
    let twice = GgufFile::new()
        .string("test.key", "a")
        .entry("test.key", 8, &text("b"));
    assert!(
        Gguf::from_bytes(twice.bytes()).is_err(),
        "a key that is there twice"
    );
}

struct Faulty {
    bytes: Vec<u8>,
    fail: Arc<AtomicBool>,
    panic: bool,
}

impl ReadAt for Faulty {
    fn size(&self) -> u64 {
        self.bytes.len() as u64
    }

    fn read_exact_at(&self, target: &mut [u8], offset: u64) -> io::Result<()> {
        if self.fail.load(Ordering::Relaxed) {
            assert!(!self.panic, "the reader panics");
            return Err(io::Error::other("the disk is wet"));
        }
        self.bytes.read_exact_at(target, offset)
    }
}

#[test]
fn failures_of_a_reader_come_back_with_its_own_words() {
    let fail = Arc::new(AtomicBool::new(false));
    let reader = Faulty {
        bytes: sample().bytes(),
        fail: fail.clone(),
        panic: false,
    };
    let gguf = Gguf::from_reader(reader).unwrap();
    let mut floats = [0.0; 2];
    gguf.dequantize_tensor(1, 0, &mut floats).unwrap();

    fail.store(true, Ordering::Relaxed);
    let error = gguf.dequantize_tensor(1, 0, &mut floats).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Io);
    assert!(error.to_string().contains("the disk is wet"), "{error}");
    assert!(std::error::Error::source(&error).is_some());

    fail.store(false, Ordering::Relaxed);
    gguf.dequantize_tensor(1, 0, &mut floats).unwrap();
}

#[test]
fn panic_of_a_reader_continues_in_the_call_that_read() {
    let fail = Arc::new(AtomicBool::new(false));
    let reader = Faulty {
        bytes: sample().bytes(),
        fail: fail.clone(),
        panic: true,
    };
    let gguf = Gguf::from_reader(reader).unwrap();
    fail.store(true, Ordering::Relaxed);
    let mut bytes = [0; 4];
    let caught = catch_unwind(AssertUnwindSafe(|| gguf.read_tensor(0, 0, &mut bytes)));
    assert_eq!(
        *caught.unwrap_err().downcast_ref::<&str>().unwrap(),
        "the reader panics"
    );
    fail.store(false, Ordering::Relaxed);
    gguf.read_tensor(0, 0, &mut bytes).unwrap();
}

/// A reader that calls back into the library.
struct Nested {
    bytes: Vec<u8>,
    seen: Arc<std::sync::Mutex<Option<ErrorKind>>>,
}

impl ReadAt for Nested {
    fn size(&self) -> u64 {
        self.bytes.len() as u64
    }

    fn read_exact_at(&self, target: &mut [u8], offset: u64) -> io::Result<()> {
        let outcome = CancelHandle::new().map(drop);
        *self.seen.lock().unwrap() = outcome.err().map(|error| error.kind());
        self.bytes.read_exact_at(target, offset)
    }
}

#[test]
fn calls_from_inside_a_reader_are_refused() {
    let seen = Arc::new(std::sync::Mutex::new(None));
    Gguf::from_reader(Nested {
        bytes: sample().bytes(),
        seen: seen.clone(),
    })
    .unwrap();
    assert_eq!(*seen.lock().unwrap(), Some(ErrorKind::Reentrant));
}

/// A reader that counts how often one is dropped.
struct Counted {
    bytes: Vec<u8>,
    drops: Arc<AtomicUsize>,
}

impl ReadAt for Counted {
    fn size(&self) -> u64 {
        self.bytes.len() as u64
    }

    fn read_exact_at(&self, target: &mut [u8], offset: u64) -> io::Result<()> {
        self.bytes.read_exact_at(target, offset)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.drops.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn a_reader_lives_as_long_as_any_clone_of_its_file() {
    let drops = Arc::new(AtomicUsize::new(0));
    let open = || {
        Gguf::from_reader(Counted {
            bytes: sample().bytes(),
            drops: drops.clone(),
        })
        .unwrap()
    };
    let dropped = || drops.load(Ordering::Relaxed);
    let (first, clone) = (open(), open());
    drop(first);
    assert_eq!(dropped(), 1);

    forget::forget(clone.clone());
    let mut bytes = [0; 8];
    clone.read_tensor(1, 0, &mut bytes).unwrap();
    drop(clone);
    assert_eq!(dropped(), 1, "the forgotten clone may still read");
    assert_eq!(bytes[..4], 8.0f32.to_le_bytes());
}

#[test]
fn tensor_types_are_known_by_id() {
    let q4_k = tensor_type(12).unwrap();
    assert_eq!(
        (q4_k.name, q4_k.block_elements, q4_k.block_bytes),
        ("Q4_K", 256, 144)
    );
    assert!(q4_k.is_loadable);
    assert!(
        !tensor_type(9).unwrap().is_loadable,
        "Q8_1 holds no weights"
    );
    assert_eq!(
        tensor_type(4).unwrap_err().kind(),
        ErrorKind::NotFound,
        "removed"
    );
    assert_eq!(tensor_type(1000).unwrap_err().kind(), ErrorKind::NotFound);
}
