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

/// Random numbers of a seed, within ± a scale.
fn random_values(seed: u64) -> impl FnMut(u64, f32) -> Vec<f32> {
    let mut state = seed;
    move |count, scale| {
        let mut next = || {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            ((state >> 40) as f32 / (1u64 << 23) as f32 - 1.0) * scale
        };
        (0..count).map(|_| next()).collect()
    }
}

/// A file without tensors.
fn vocabulary_file(vocabulary: &Vocabulary) -> GgufFile {
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
    file
}

/// Matrices of a layer.
const LAYER: [(&str, [u64; 2]); 7] = [
    ("attn_q", [LENGTH, LENGTH]),
    ("attn_k", [LENGTH, LENGTH]),
    ("attn_v", [LENGTH, LENGTH]),
    ("attn_output", [LENGTH, LENGTH]),
    ("ffn_gate", [LENGTH, HIDDEN]),
    ("ffn_up", [LENGTH, HIDDEN]),
    ("ffn_down", [HIDDEN, LENGTH]),
];

/// A file of a model with one layer whose weights are random numbers of a seed.
pub fn random_file(vocabulary: &Vocabulary, seed: u64) -> Gguf {
    let mut values = random_values(seed);
    let count = vocabulary.tokens.len() as u64;
    let mut file = vocabulary_file(vocabulary);
    let mut tensor = |file: GgufFile, name: &str, dimensions: &[u64], scale: f32| {
        let values = values(dimensions.iter().product(), scale);
        file.tensor_f32(&format!("{name}.weight"), dimensions, &values)
    };
    file = tensor(file, "token_embd", &[LENGTH, count], 1.0);
    file = tensor(file, "output", &[LENGTH, count], 1.0);
    for (name, dimensions) in LAYER {
        file = tensor(file, &format!("blk.0.{name}"), &dimensions, 0.5);
    }
    load_file(file)
}

/// Adds norms that change nothing.
fn load_file(mut file: GgufFile) -> Gguf {
    for name in ["output_norm", "blk.0.attn_norm", "blk.0.ffn_norm"] {
        let ones = vec![1.0; LENGTH as usize];
        file = file.tensor_f32(&format!("{name}.weight"), &[LENGTH], &ones);
    }
    Gguf::from_bytes(file.bytes()).expect("a file")
}

/// A draft head of a model: its output has `drafted` tokens, every third one of the vocabulary, whose guesses are as good
/// as none.
pub fn random_head(target: &Model, drafted: u64, seed: u64) -> Model {
    let mut values = random_values(seed);
    let info = target.info();
    let width = u64::from(info.embedding_length);
    let mut file = head_file(target, LENGTH);
    for (name, dimensions) in [
        ("fc", [3 * width, LENGTH]),
        ("token_embd", [LENGTH, info.vocabulary_size.into()]),
        ("output", [LENGTH, drafted]),
        ("blk.0.attn_q", [2 * LENGTH, LENGTH]),
        ("blk.0.attn_k", [2 * LENGTH, LENGTH]),
        ("blk.0.attn_v", [2 * LENGTH, LENGTH]),
        ("blk.0.attn_output", [LENGTH, LENGTH]),
        ("blk.0.ffn_gate", [LENGTH, HIDDEN]),
        ("blk.0.ffn_up", [LENGTH, HIDDEN]),
        ("blk.0.ffn_down", [HIDDEN, LENGTH]),
    ] {
        let values = values(dimensions.iter().product(), 0.5);
        file = file.tensor_f32(&format!("{name}.weight"), &dimensions, &values);
    }
    let tokens: Vec<u8> = (0..drafted)
        .flat_map(|token| (3 * token).to_le_bytes())
        .collect();
    load_head(file.tensor("d2t", 27, &[drafted], &tokens), target)
}

/// A draft head that guesses the token after the last feature again: right where a text repeats one token.
pub fn repeating_head(target: &Model) -> Model {
    let width = u64::from(target.info().embedding_length);
    let mut file = head_file(target, width);
    let last_third = (0..width).flat_map(|row| {
        (0..3 * width).map(move |column| f32::from(u8::from(column == 2 * width + row)))
    });
    let last_third: Vec<f32> = last_third.collect();
    file = file.tensor_f32("fc.weight", &[3 * width, width], &last_third);
    for (name, dimensions) in [
        ("attn_q", [2 * width, width]),
        ("attn_k", [2 * width, width]),
        ("attn_v", [2 * width, width]),
        ("attn_output", [width, width]),
        ("ffn_gate", [width, HIDDEN]),
        ("ffn_up", [width, HIDDEN]),
        ("ffn_down", [HIDDEN, width]),
    ] {
        let zeros = vec![0.0; dimensions.iter().product::<u64>() as usize];
        file = file.tensor_f32(&format!("blk.0.{name}.weight"), &dimensions, &zeros);
    }
    load_head(file, target)
}

fn head_file(target: &Model, width: u64) -> GgufFile {
    let info = target.info();
    let layers = [0, info.layer_count / 2, info.layer_count];
    let layers: Vec<u8> = layers
        .iter()
        .flat_map(|layer| layer.to_le_bytes())
        .collect();
    let mut file = GgufFile::of("eagle3")
        .u32("eagle3.block_count", 1)
        .u32("eagle3.context_length", 2048)
        .u32("eagle3.embedding_length", width as u32)
        .u32("eagle3.feed_forward_length", HIDDEN as u32)
        .u32("eagle3.attention.head_count", 2)
        .u32("eagle3.attention.key_length", (width / 2) as u32)
        .u32("eagle3.attention.value_length", (width / 2) as u32)
        .u32("eagle3.target_hidden_size", info.embedding_length)
        .u32("eagle3.vocab_size", info.vocabulary_size)
        .array("eagle3.target_layers", 4, 3, &layers)
        .entry(
            "eagle3.attention.layer_norm_rms_epsilon",
            6,
            &1e-5f32.to_le_bytes(),
        );
    for name in ["attn_norm", "attn_norm_2", "ffn_norm"] {
        let ones = vec![1.0; width as usize];
        file = file.tensor_f32(&format!("blk.0.{name}.weight"), &[width], &ones);
    }
    file.tensor_f32("output_norm.weight", &[width], &vec![1.0; width as usize])
}

fn load_head(file: GgufFile, target: &Model) -> Model {
    let gguf = Gguf::from_bytes(file.bytes()).expect("a file");
    let builder = Model::builder(target.context(), &gguf);
    builder.target(target).load().expect("it loads")
}

/// A model with one layer that changes nothing, which repeats the last token.
pub fn repeating_model(context: &CudaContext, vocabulary: &Vocabulary) -> Model {
    let mut values = random_values(7);
    let count = vocabulary.tokens.len() as u64;
    let table = values(LENGTH * count, 1.0);
    let mut file = vocabulary_file(vocabulary)
        .tensor_f32("token_embd.weight", &[LENGTH, count], &table)
        .tensor_f32("output.weight", &[LENGTH, count], &table);
    for (name, dimensions) in LAYER {
        let zeros = vec![0.0; dimensions.iter().product::<u64>() as usize];
        file = file.tensor_f32(&format!("blk.0.{name}.weight"), &dimensions, &zeros);
    }
    Model::load(context, &load_file(file)).expect("it loads")
}

pub fn random_model(context: &CudaContext, vocabulary: &Vocabulary, seed: u64) -> Model {
    Model::load(context, &random_file(vocabulary, seed)).expect("it loads")
}
