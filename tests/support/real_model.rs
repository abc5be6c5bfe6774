//! The real model of the tests, where one is provided.
#![allow(dead_code)] // a test file that includes this may have no test for it

use std::path::{Path, PathBuf};

/// The file that `WCUDA_TEST_MODEL` names. Without the variable: the file that `./dev` fetches, or `None`, after
/// printing why the test does nothing.
///
/// # Panics
///
/// If the variable names a file that does not exist.
pub fn real_model() -> Option<PathBuf> {
    let fetched = Path::new(env!("CARGO_MANIFEST_DIR"))
        .ancestors()
        .take(2) // the package, the workspace
        .map(|folder| folder.join(".cache/models/SmolLM2-135M-Instruct.Q4_1.gguf"))
        .find(|path| path.exists());
    choose(
        std::env::var_os("WCUDA_TEST_MODEL").map(PathBuf::from),
        fetched,
    )
}

fn choose(named: Option<PathBuf>, fetched: Option<PathBuf>) -> Option<PathBuf> {
    if let Some(path) = named {
        assert!(
            path.exists(),
            "WCUDA_TEST_MODEL names {}, which does not exist",
            path.display()
        );
        return Some(path);
    }
    if fetched.is_none() {
        println!("skipped: no real model; WCUDA_TEST_MODEL names none");
    }
    fetched
}

#[test]
#[should_panic(expected = "WCUDA_TEST_MODEL names /nowhere/model.gguf, which does not exist")]
fn a_named_model_that_is_missing_is_an_error() {
    choose(Some("/nowhere/model.gguf".into()), None);
}

#[test]
fn a_named_model_is_taken_before_the_fetched_one() {
    let named = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml"));
    assert_eq!(
        choose(Some(named.clone()), Some("/nowhere/fetched.gguf".into())),
        Some(named)
    );
}
