//! Token ids with the vocabulary of a real file, SmolLM2's, against llama-cpp-python.
//!
//! tests/data/tokens/smollm2.json is made by tools/golden/tokens.py. The file is named by
//! WCUDA_TEST_MODEL; without one the tests say so and pass.
#![cfg(feature = "text")]

use std::path::PathBuf;

use serde_json::Value;
use worker_cuda::Gguf;
use worker_cuda::text::{DecodeOptions, EncodeOptions, Tokenizer};

use real_model::real_model;

#[path = "support/real_model.rs"]
mod real_model;

fn data(name: &str) -> Value {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("tests/data/tokens")
        .join(name);
    let bytes = std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    serde_json::from_slice(&bytes).unwrap()
}

fn texts(value: &Value) -> Vec<String> {
    let list = value.as_array().unwrap().iter();
    list.map(|v| v.as_str().unwrap().to_owned()).collect()
}

fn ids(value: &Value) -> Vec<u32> {
    let list = value.as_array().unwrap().iter();
    list.map(|v| u32::try_from(v.as_u64().unwrap()).unwrap())
        .collect()
}

fn model_file() -> Option<Gguf> {
    Some(Gguf::open(real_model()?).unwrap())
}

#[test]
fn ids_equal_llama_cpp() {
    let Some(gguf) = model_file() else { return };
    let tokenizer = Tokenizer::from_gguf(&gguf).unwrap();
    let golden = data("smollm2.json");

    for on in [false, true] {
        let options = EncodeOptions {
            add_special: on,
            parse_special: on,
        };
        let key = format!("add_special={0},parse_special={0}", u8::from(on));
        for (text, expected) in texts(&data("corpus.json"))
            .iter()
            .zip(golden[&key].as_array().unwrap())
        {
            let got = tokenizer.encode(text, options).unwrap();

            assert_eq!(got, ids(expected), "{text:?}, {key}");
        }
    }
}

#[test]
fn text_comes_back_but_for_bytes_without_a_token() {
    let Some(gguf) = model_file() else { return };
    let tokenizer = Tokenizer::from_gguf(&gguf).unwrap();
    let without_token: String = (0..=255u8)
        .filter(|&byte| {
            tokenizer
                .encode(&char::from(byte).to_string(), EncodeOptions::default())
                .unwrap()
                .is_empty()
        })
        .map(char::from)
        .collect();

    for text in texts(&data("corpus.json")) {
        let ids = tokenizer.encode(&text, EncodeOptions::default()).unwrap();
        let back = tokenizer.decode(&ids, DecodeOptions::default()).unwrap();

        let expected = text.replace(|c| without_token.contains(c), "");
        if !text.contains("rare") {
            assert_eq!(back, expected);
        }
    }
}
