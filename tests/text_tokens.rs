//! Token ids and words against llama-cpp-python, mistral-common, sentencepiece and dashscope.
//!
//! The files under tests/data/tokens are made by tools/golden/tokens.py.
#![cfg(feature = "text")]

use std::collections::BTreeSet;
use std::path::PathBuf;

use serde_json::Value;
use worker_cuda::text::{EncodeOptions, TokenType, Tokenizer, Vocabulary, pre_tokenizer_names};

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

/// The texts whose ids differ, with both.
fn differences(
    tokenizer: &Tokenizer,
    options: EncodeOptions,
    expected: &Value,
    original: impl Fn(u32) -> u32,
) -> Vec<String> {
    let corpus = texts(&data("corpus.json"));
    let expected = expected.as_array().unwrap();
    assert_eq!(corpus.len(), expected.len());
    let mut found = Vec::new();
    for (text, expected) in corpus.iter().zip(expected) {
        let got: Vec<u32> = tokenizer
            .encode(text, options)
            .unwrap()
            .into_iter()
            .map(&original)
            .collect();
        if got != ids(expected) {
            found.push(format!(
                "{text:?}\n  got      {got:?}\n  expected {expected}"
            ));
        }
    }
    found
}

/// All bytes, all pairs of bytes that occur, and some runs: the ids show where words end.
fn pair_vocabulary(pre: &str, corpus: &[String]) -> Vocabulary {
    let characters: Vec<char> = byte_characters();
    let mut pairs = BTreeSet::new();
    for text in corpus {
        let neighbours = text.as_bytes().windows(2);
        pairs.extend(neighbours.map(|pair| u32::from(pair[0]) << 8 | u32::from(pair[1])));
    }
    let mut pairs: Vec<u32> = pairs.into_iter().collect();
    pairs.sort_by_key(|pair| pair.wrapping_mul(2_654_435_761));
    let mut merges: Vec<(String, String)> = pairs
        .into_iter()
        .map(|pair| {
            let [.., a, b] = pair.to_be_bytes();
            (
                characters[usize::from(a)].into(),
                characters[usize::from(b)].into(),
            )
        })
        .collect();
    for half in [2, 4, 8, 16, 32] {
        for byte in b" \n\t" {
            let run = characters[usize::from(*byte)].to_string().repeat(half);
            merges.push((run.clone(), run));
        }
    }
    let mut tokens: Vec<String> = characters.iter().map(char::to_string).collect();
    tokens.extend(merges.iter().map(|(a, b)| format!("{a}{b}")));
    Vocabulary {
        model: "gpt2".into(),
        pre: pre.into(),
        tokens,
        merges: merges.iter().map(|(a, b)| format!("{a} {b}")).collect(),
        ..Vocabulary::default()
    }
}

/// The printable character of each byte, as GPT-2 chose them.
fn byte_characters() -> Vec<char> {
    let mut rest = 256..;
    (0..256u32)
        .map(|byte| match byte {
            33..=126 | 161..=172 | 174..=255 => byte,
            _ => rest.next().unwrap(),
        })
        .map(|code| char::from_u32(code).unwrap())
        .collect()
}

#[test]
fn every_pre_tokenizer_cuts_as_its_reference() {
    let golden = data("pre_tokenizers.json");
    let corpus = texts(&data("corpus.json"));
    let mut report = Vec::new();

    for (name, expected) in golden.as_object().unwrap() {
        let expected = match expected.as_str() {
            Some(same) => &golden[same],
            None => expected,
        };
        assert!(pre_tokenizer_names().any(|known| known == name));
        let tokenizer = Tokenizer::from_vocabulary(pair_vocabulary(name, &corpus)).unwrap();
        for (text, expected) in corpus.iter().zip(expected.as_array().unwrap()) {
            let got = tokenizer.encode(text, EncodeOptions::default()).unwrap();
            if got != ids(expected) {
                report.push(format!("{name}: {text:?}"));
            }
        }
    }

    assert!(report.is_empty(), "{}", report.join("\n"));
}

/// A reduced vocabulary of tools/golden/tokens.py: the ids in it index `ids`, the original ones.
fn reduced(golden: &Value, model: &str, pre: &str) -> (Tokenizer, Vec<u32>) {
    let vocabulary = Vocabulary {
        model: model.into(),
        pre: pre.into(),
        tokens: texts(&golden["tokens"]),
        merges: golden.get("merges").map(texts).unwrap_or_default(),
        scores: golden.get("scores").map_or_else(Vec::new, |scores| {
            let list = scores.as_array().unwrap().iter();
            list.map(|score| score.as_f64().unwrap() as f32).collect()
        }),
        token_types: golden.get("types").map_or_else(Vec::new, |types| {
            let list = ids(types).into_iter();
            list.map(|t| TokenType::from_gguf(t as i32)).collect()
        }),
        unk_id: (model == "llama").then_some(0),
        ..Vocabulary::default()
    };
    let tokenizer = Tokenizer::from_vocabulary(vocabulary).unwrap();
    (tokenizer, ids(&golden["ids"]))
}

/// The ids of a reduced vocabulary are those of the reference in `file`.
fn assert_reference_ids(file: &str, model: &str, pre: &str) {
    let golden = data(file);
    let (tokenizer, original) = reduced(&golden, model, pre);

    let differences = differences(
        &tokenizer,
        EncodeOptions::default(),
        &golden["expected"],
        |id| original[id as usize],
    );

    assert!(differences.is_empty(), "{}", differences.join("\n"));
}

#[test]
fn tekken_ids_equal_mistral_common() {
    assert_reference_ids("tekken.json", "gpt2", "tekken");
}

#[test]
fn qwen2_ids_equal_dashscope() {
    assert_reference_ids("qwen2.json", "gpt2", "qwen2");
}

#[test]
fn sentencepiece_ids_equal_sentencepiece() {
    assert_reference_ids("sentencepiece.json", "llama", "");
}
