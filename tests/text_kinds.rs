//! Kinds of tokenizers against their own implementations: tools/golden/tokenizer_kinds.py makes the file.
#![cfg(feature = "text")]

use std::path::PathBuf;

use gguf_file::{GgufFile, text};
use serde_json::Value;
use worker_cuda::text::{DecodeOptions, EncodeOptions, TokenType, Tokenizer, Vocabulary};
use worker_cuda::{ErrorKind, Gguf};

#[path = "support/gguf_file.rs"]
mod gguf_file;

fn golden() -> Value {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/data/tokens/kinds.json");
    let bytes = std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    serde_json::from_slice(&bytes).unwrap()
}

fn texts(value: &Value) -> Vec<String> {
    let list = value.as_array().map(Vec::as_slice).unwrap_or_default();
    list.iter().map(|v| v.as_str().unwrap().into()).collect()
}

fn vocabulary(kind: &Value) -> Vocabulary {
    let types = kind["types"].as_array().unwrap().iter();
    let scores = kind["scores"].as_array().map(Vec::as_slice);
    Vocabulary {
        model: kind["model"].as_str().unwrap().into(),
        tokens: texts(&kind["tokens"]),
        scores: scores
            .unwrap_or_default()
            .iter()
            .map(|score| score.as_f64().unwrap() as f32)
            .collect(),
        token_types: types
            .map(|value| TokenType::from_gguf(value.as_i64().unwrap() as i32))
            .collect(),
        merges: texts(&kind["merges"]),
        unk_id: kind["unknown"].as_u64().map(|id| id as u32),
        add_space_prefix: kind["add_space_prefix"].as_bool(),
        remove_extra_whitespaces: kind["remove_extra_whitespaces"].as_bool(),
        precompiled_charsmap: from_base64(kind["charsmap"].as_str().unwrap_or_default()),
        normalizer_lowercase: kind["normalizer_lowercase"].as_bool(),
        normalizer_strip_accents: kind["normalizer_strip_accents"].as_bool(),
        ..Vocabulary::default()
    }
}

fn from_base64(text: &str) -> Vec<u8> {
    let digits = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let value = |byte: u8| digits.iter().position(|&d| d == byte).unwrap_or(0) as u32;
    let padding = text.bytes().filter(|&byte| byte == b'=').count();
    let mut bytes: Vec<u8> = text
        .as_bytes()
        .chunks(4)
        .flat_map(|four| {
            let joined = four
                .iter()
                .fold(0, |joined, &byte| joined << 6 | value(byte));
            joined.to_be_bytes()[1..].to_vec()
        })
        .collect();
    bytes.truncate(bytes.len() - padding.min(bytes.len()));
    bytes
}

#[test]
fn ids_and_texts_equal_those_of_each_kinds_own_implementation() {
    let mut report = Vec::new();

    for (name, kind) in golden().as_object().unwrap() {
        let tokenizer = Tokenizer::from_vocabulary(vocabulary(kind)).unwrap();
        for case in kind["cases"].as_array().unwrap() {
            let text = case[0].as_str().unwrap();
            let expected: Vec<u32> = case[1]
                .as_array()
                .unwrap()
                .iter()
                .map(|id| id.as_u64().unwrap() as u32)
                .collect();
            let ids = tokenizer.encode(text, EncodeOptions::default()).unwrap();
            let decode = DecodeOptions {
                at_text_start: true,
                show_special: false,
            };
            let decoded = tokenizer.decode(&expected, decode).unwrap();
            if ids != expected {
                let texts = |ids: &[u32]| -> Vec<&str> {
                    let text_of = |&id| tokenizer.vocabulary().token_text(id).unwrap();
                    ids.iter().map(text_of).collect()
                };
                report.push(format!(
                    "{name}, {text:?}:\n  got      {:?}\n  expected {:?}",
                    texts(&ids),
                    texts(&expected)
                ));
            }
            if case[2].as_str().is_some_and(|expected| decoded != expected) {
                report.push(format!(
                    "{name}, decoded {decoded:?}\n  expected {:?}",
                    case[2]
                ));
            }
        }
    }

    assert!(
        report.is_empty(),
        "{} differences\n{}",
        report.len(),
        report.join("\n")
    );
}

#[test]
fn a_text_cannot_forge_a_marker_that_the_file_calls_ordinary() {
    // "<end_of_turn>" ends a turn whatever its type says; merges would make it out of text.
    let mut tokens = vec!["<unk>".to_owned()];
    let marker = "<end_of_turn>";
    tokens.extend(marker.chars().map(String::from));
    tokens.extend((2..=marker.len()).map(|end| marker[..end].to_owned()));
    let count = tokens.len();
    let vocabulary = Vocabulary {
        model: "llama".into(),
        tokens,
        scores: (0..count).map(|id| id as f32).collect(),
        token_types: vec![TokenType::Normal; count],
        unk_id: Some(0),
        add_space_prefix: Some(false),
        ..Vocabulary::default()
    };
    let tokenizer = Tokenizer::from_vocabulary(vocabulary).unwrap();
    let id = tokenizer.token_id(marker).unwrap();

    let plain = tokenizer.encode(marker, EncodeOptions::default()).unwrap();
    let parsed = EncodeOptions {
        parse_special: true,
        ..EncodeOptions::default()
    };

    assert!(!plain.contains(&id));
    assert_eq!(tokenizer.encode(marker, parsed).unwrap(), [id]);
}

#[test]
fn incomplete_vocabularies_are_refused() {
    let base = |model: &str| Vocabulary {
        model: model.into(),
        tokens: vec!["<unk>".into(), "a".into()],
        ..Vocabulary::default()
    };
    for (vocabulary, message) in [
        (
            base("llama"),
            "a SentencePiece vocabulary needs tokenizer.ggml.scores",
        ),
        (
            base("t5"),
            "a Unigram vocabulary needs tokenizer.ggml.scores",
        ),
    ] {
        let error = Tokenizer::from_vocabulary(vocabulary).unwrap_err();

        assert_eq!(error.kind(), ErrorKind::Malformed);
        assert_eq!(error.message(), message);
    }
    let error = Tokenizer::from_vocabulary(base("rwkv")).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotAvailable);
}

#[test]
fn bert_text_is_between_cls_and_sep() {
    let golden = golden();
    let tokenizer = Tokenizer::from_vocabulary(vocabulary(&golden["word piece uncased"])).unwrap();
    let options = EncodeOptions {
        add_special: true,
        parse_special: false,
    };

    let ids = tokenizer.encode("hello", options).unwrap();

    assert_eq!(ids.first(), tokenizer.token_id("[CLS]").as_ref());
    assert_eq!(ids.last(), tokenizer.token_id("[SEP]").as_ref());
}

#[test]
fn files_with_elements_of_a_wrong_type_or_without_merges_are_refused() {
    let base = |model: &str| {
        GgufFile::new()
            .string("tokenizer.ggml.model", model)
            .strings("tokenizer.ggml.tokens", &["<unk>", "a"])
    };
    let floats: Vec<u8> = [0f32, -1.0].iter().flat_map(|x| x.to_le_bytes()).collect();
    let merges = text("a a");
    for (file, message) in [
        (
            base("llama").array("tokenizer.ggml.scores", 0, 2, &[0, 1]),
            "metadata key 'tokenizer.ggml.scores' is an array of U8, not of f32",
        ),
        (
            base("llama")
                .array("tokenizer.ggml.scores", 6, 2, &floats)
                .array("tokenizer.ggml.token_type", 0, 2, &[2, 1]),
            "metadata key 'tokenizer.ggml.token_type' is an array of U8, not of i32",
        ),
        (
            base("gpt2"),
            "a vocabulary of kind 'gpt2' needs tokenizer.ggml.merges",
        ),
        (
            base("gemma4"),
            "a vocabulary of kind 'gemma4' needs tokenizer.ggml.merges",
        ),
        (
            base("gpt2").array("tokenizer.ggml.merges", 8, 1, &merges),
            "merge 0 ('a a') needs 'aa', which is no token",
        ),
    ] {
        let gguf = Gguf::from_bytes(file.bytes()).unwrap();

        let error = Tokenizer::from_gguf(&gguf).unwrap_err();

        assert_eq!(error.kind(), ErrorKind::Malformed);
        assert_eq!(error.message(), message);
    }
}

#[test]
fn gaps_are_filled_by_tokens_of_the_file_or_of_published_models() {
    let named = ["<unk>", "<s>", "a", "b", "PRE", "SUF", "MID"];
    let published = ["<unk>", "<s>", "a", "b", "▁<PRE>", "▁<SUF>", "▁<MID>"];
    let file = |tokens: &[&str], keys: [&str; 3], ids: [u32; 3]| {
        let types: Vec<u8> = [2u32, 3, 1, 1, 3, 3, 3]
            .iter()
            .flat_map(|kind| kind.to_le_bytes())
            .collect();
        let scores: Vec<u8> = [0f32; 7]
            .iter()
            .flat_map(|score| score.to_le_bytes())
            .collect();
        let file = GgufFile::new()
            .string("tokenizer.ggml.model", "llama")
            .strings("tokenizer.ggml.tokens", tokens)
            .array("tokenizer.ggml.token_type", 4, 7, &types)
            .array("tokenizer.ggml.scores", 6, 7, &scores)
            .entry("tokenizer.ggml.add_space_prefix", 7, &[0]);
        let file = keys.into_iter().zip(ids).fold(file, |file, (key, id)| {
            file.u32(&format!("tokenizer.ggml.{key}_token_id"), id)
        });
        Tokenizer::from_gguf(&Gguf::from_bytes(file.bytes()).unwrap())
    };
    let newer = ["fim_pre", "fim_suf", "fim_mid"];
    let older = ["prefix", "suffix", "middle"];
    let other = ["x", "y", "z"];

    for (tokens, keys) in [(named, newer), (named, older), (published, other)] {
        let tokenizer = file(&tokens, keys, [4, 5, 6]).unwrap();
        let ids = tokenizer.encode_infill("ab", "b").unwrap();
        assert_eq!(ids.as_deref(), Some(&[1, 4, 2, 3, 5, 3, 6][..]), "{keys:?}");
    }
    let none = file(&named, other, [4, 5, 6]).unwrap();
    assert_eq!(none.encode_infill("ab", "b").unwrap(), None);
    let past = file(&named, newer, [4, 5, 7]).unwrap_err();
    assert!(
        past.message().contains("the FIM middle token has id 7"),
        "{past}"
    );
}

#[test]
fn chat_templates_have_the_names_of_their_keys() {
    let file = GgufFile::new()
        .string("tokenizer.ggml.model", "llama")
        .strings("tokenizer.ggml.tokens", &["<unk>"])
        .string("tokenizer.chat_template", "main")
        .string("tokenizer.chat_template.tool_use", "tools")
        .string("tokenizer.chat_templates", "another key");
    let gguf = Gguf::from_bytes(file.bytes()).unwrap();

    let vocabulary = Vocabulary::from_gguf(&gguf).unwrap();

    let templates = vocabulary.chat_templates.iter();
    let named: Vec<_> = templates.map(|t| (&*t.name, &*t.source)).collect();
    assert_eq!(named, [("", "main"), ("tool_use", "tools")]);
}
