//! Models that the tests run: tiny ones of random weights, and a real one where it is present.
#![allow(dead_code)] // each test file uses what it needs

use std::path::{Path, PathBuf};

use worker_cuda::*;

/// All tiny models, by name.
pub fn tiny_models() -> Vec<PathBuf> {
    let folder = folder();
    let mut paths: Vec<PathBuf> = std::fs::read_dir(&folder)
        .unwrap_or_else(|error| panic!("{}: {error}", folder.display()))
        .map(|entry| entry.expect("an entry").path())
        .filter(|path| {
            path.extension()
                .is_some_and(|extension| extension == "gguf")
        })
        .collect();
    paths.sort();
    assert!(!paths.is_empty(), "no models in {}", folder.display());
    paths
}

/// The tiny model that most tests use: 64 tokens, 256 positions.
pub fn tiny_path() -> PathBuf {
    folder().join("llama.gguf")
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .ancestors()
        .take(2) // the package, the workspace
        .map(|folder| folder.join("cuda/tests/data/models"))
        .find(|folder| folder.is_dir())
        .expect("the folder of the tiny models")
}

/// A context with two threads, so that a test machine with many is not flooded.
pub fn host() -> CudaContext {
    let builder = CudaContext::builder()
        .backend(Backend::Host)
        .host_threads(2);
    builder.open().expect("the host backend is always there")
}

pub fn tiny() -> Model {
    Model::load(&host(), &Gguf::open(tiny_path()).expect("the tiny model")).expect("it loads")
}

/// Values of a numpy forward pass (tools/oracle/test_forward.py): (tokens, embedding length)
pub fn golden_hidden_states(model: &Path) -> Vec<f32> {
    let bytes = std::fs::read(model.with_extension("hidden")).expect("a file of hidden states");
    let values = bytes.chunks_exact(4).map(|value| value.try_into().unwrap());
    values.map(f32::from_le_bytes).collect()
}

/// Tokens and f32 logits (tokens, vocabulary) that belong to a tiny model.
pub fn golden(model: &Path) -> (Vec<Token>, Vec<f32>) {
    let bytes = std::fs::read(model.with_extension("golden")).expect("a golden file");
    let words: Vec<u32> = bytes
        .chunks_exact(4)
        .map(|word| u32::from_le_bytes(word.try_into().unwrap()))
        .collect();
    let (count, vocabulary) = (words[0] as usize, words[1] as usize);
    assert_eq!(words.len(), 2 + count + count * vocabulary);
    let logits = words[2 + count..]
        .iter()
        .map(|&word| f32::from_bits(word))
        .collect();
    (words[2..2 + count].to_vec(), logits)
}
