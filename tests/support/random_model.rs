//! Tiny models of random weights with a vocabulary.
#![allow(dead_code)] // each test file uses what it needs

use worker_cuda::text::{TokenType, Vocabulary};
use worker_cuda::{CudaContext, Gguf, Model};

use gguf_file::GgufFile;

#[path = "gguf_file.rs"]
pub mod gguf_file;

const LENGTH: u64 = 32;
const HIDDEN: u64 = 64;

/// Sixty-four tokens: token i is the character '!' + i, but 62 has two characters.
pub fn letters() -> Vocabulary {
    let mut tokens: Vec<String> = (0..64u8)
        .map(|i| char::from(b'!' + i).to_string())
        .collect();
    tokens[62] = "!\"".into();
    Vocabulary {
        model: "gpt2".into(),
        tokens,
        merges: vec!["! \"".into()],
        eos_id: Some(63),
        ..Vocabulary::default()
    }
}

/// A file of a model with one layer whose weights are random numbers of a seed.
pub fn random_file(vocabulary: &Vocabulary, seed: u64) -> Gguf {
    let mut state = seed;
    let mut values = |count: u64, scale: f32| -> Vec<f32> {
        let mut next = || {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            ((state >> 40) as f32 / (1u64 << 23) as f32 - 1.0) * scale
        };
        (0..count).map(|_| next()).collect()
    };
    let count = vocabulary.tokens.len() as u64;
    let texts = |list: &[String]| -> Vec<u8> {
        let text = |text: &String| gguf_file::text(text);
        list.iter().flat_map(text).collect()
    };
    let merges = vocabulary.merges.len() as u64;
    let mut file = GgufFile::new()
        .u32("llama.block_count", 1)
        .u32("llama.context_length", 2048)
        .u32("llama.embedding_length", LENGTH as u32)
        .u32("llama.feed_forward_length", HIDDEN as u32)
        .u32("llama.attention.head_count", 2)
        .entry(
            "llama.attention.layer_norm_rms_epsilon",
            6,
            &1e-5f32.to_le_bytes(),
        )
        .string("tokenizer.ggml.model", &vocabulary.model)
        .string("tokenizer.ggml.pre", &vocabulary.pre)
        .array(
            "tokenizer.ggml.tokens",
            8,
            count,
            &texts(&vocabulary.tokens),
        )
        .array(
            "tokenizer.ggml.merges",
            8,
            merges,
            &texts(&vocabulary.merges),
        );
    if !vocabulary.token_types.is_empty() {
        let number = |kind: &TokenType| match kind {
            TokenType::Unknown => 2i32,
            TokenType::Control => 3,
            TokenType::UserDefined => 4,
            TokenType::Unused => 5,
            TokenType::Byte => 6,
            TokenType::Normal => 1,
        };
        let kinds = vocabulary.token_types.iter();
        let kinds: Vec<u8> = kinds.flat_map(|kind| number(kind).to_le_bytes()).collect();
        file = file.array("tokenizer.ggml.token_type", 5, count, &kinds);
    }
    for (name, id) in [
        ("bos", vocabulary.bos_id),
        ("eos", vocabulary.eos_id),
        ("eot", vocabulary.eot_id),
    ] {
        if let Some(id) = id {
            file = file.u32(&format!("tokenizer.ggml.{name}_token_id"), id);
        }
    }
    let mut tensor = |file: GgufFile, name: &str, dimensions: &[u64], scale: f32| {
        let values = values(dimensions.iter().product(), scale);
        file.tensor_f32(&format!("{name}.weight"), dimensions, &values)
    };
    file = tensor(file, "token_embd", &[LENGTH, count], 1.0);
    file = tensor(file, "output", &[LENGTH, count], 1.0);
    for (name, dimensions) in [
        ("attn_q", [LENGTH, LENGTH]),
        ("attn_k", [LENGTH, LENGTH]),
        ("attn_v", [LENGTH, LENGTH]),
        ("attn_output", [LENGTH, LENGTH]),
        ("ffn_gate", [LENGTH, HIDDEN]),
        ("ffn_up", [LENGTH, HIDDEN]),
        ("ffn_down", [HIDDEN, LENGTH]),
    ] {
        file = tensor(file, &format!("blk.0.{name}"), &dimensions, 0.5);
    }
    for name in ["output_norm", "blk.0.attn_norm", "blk.0.ffn_norm"] {
        let ones = vec![1.0; LENGTH as usize];
        file = file.tensor_f32(&format!("{name}.weight"), &[LENGTH], &ones);
    }
    Gguf::from_bytes(file.bytes()).expect("a file")
}

pub fn random_model(context: &CudaContext, vocabulary: &Vocabulary, seed: u64) -> Model {
    Model::load(context, &random_file(vocabulary, seed)).expect("it loads")
}
