//! A tiny model whose answers and embeddings are known.

use std::path::Path;

use gguf_file::GgufFile;

#[path = "../../../tests/support/gguf_file.rs"]
pub mod gguf_file;

/// Values of a hidden state.
pub const LENGTH: u32 = 32;

/// The row of a token in the embedding table. Other weights are zeros, so the token's hidden state has its direction.
pub fn row(token: u32) -> Vec<f32> {
    (0..LENGTH).map(|i| (token + i) as f32).collect()
}

/// Writes a model whose every answer is token 0, `text`, and whose embeddings have this pooling. Returns its path.
pub fn model_that_answers(name: &str, text: &str, pooling: Option<u32>) -> String {
    write(name, &file_that_answers(text, pooling))
}

/// Writes a draft head for such a model. It guesses token 0 always.
pub fn head_of_answers(name: &str) -> String {
    let ones = vec![1.0; LENGTH as usize];
    let mut file = GgufFile::of("eagle3")
        .u32("eagle3.block_count", 1)
        .u32("eagle3.context_length", 64)
        .u32("eagle3.embedding_length", LENGTH)
        .u32("eagle3.feed_forward_length", LENGTH)
        .u32("eagle3.attention.head_count", 1)
        .u32("eagle3.target_hidden_size", LENGTH)
        .u32("eagle3.vocab_size", 5)
        .array(
            "eagle3.target_layers",
            4,
            3,
            &[0u32, 1, 1].map(u32::to_le_bytes).concat(),
        )
        .entry(
            "eagle3.attention.layer_norm_rms_epsilon",
            6,
            &1e-5f32.to_le_bytes(),
        );
    let (one, two, three) = (
        u64::from(LENGTH),
        2 * u64::from(LENGTH),
        3 * u64::from(LENGTH),
    );
    for (tensor, cols) in [
        ("fc", three),
        ("blk.0.attn_q", two),
        ("blk.0.attn_k", two),
        ("blk.0.attn_v", two),
        ("blk.0.attn_output", one),
        ("blk.0.ffn_gate", one),
        ("blk.0.ffn_up", one),
        ("blk.0.ffn_down", one),
    ] {
        let zeros = vec![0.0; (cols * one) as usize];
        file = file.tensor_f32(&format!("{tensor}.weight"), &[cols, one], &zeros);
    }
    for tensor in [
        "output_norm",
        "blk.0.attn_norm",
        "blk.0.attn_norm_2",
        "blk.0.ffn_norm",
    ] {
        file = file.tensor_f32(&format!("{tensor}.weight"), &[one], &ones);
    }
    write(name, &file)
}

/// Writes a file for a test. Returns its path.
pub fn write(name: &str, file: &GgufFile) -> String {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::write(&path, file.bytes()).expect("a temporary file");
    path.to_str().expect("UTF-8").to_owned()
}

/// What is in the file of such a model.
pub fn file_that_answers(text: &str, pooling: Option<u32>) -> GgufFile {
    let square = vec![0.0; (LENGTH * LENGTH) as usize];
    let ones = vec![1.0; LENGTH as usize];
    let tokens = [text, "<unk>", "</s>", "a", "\u{2581}"];
    let types: Vec<u8> = [1i32, 2, 3, 1, 1]
        .iter()
        .flat_map(|t| t.to_le_bytes())
        .collect();
    let mut file = GgufFile::new()
        .u32("llama.block_count", 1)
        .u32("llama.context_length", 64)
        .u32("llama.embedding_length", LENGTH)
        .u32("llama.feed_forward_length", LENGTH)
        .u32("llama.attention.head_count", 1)
        .entry(
            "llama.attention.layer_norm_rms_epsilon",
            6,
            &1e-5f32.to_le_bytes(),
        )
        .string("tokenizer.ggml.model", "llama")
        .strings("tokenizer.ggml.tokens", &tokens)
        .array("tokenizer.ggml.scores", 6, tokens.len() as u64, &[0; 4 * 5])
        .array("tokenizer.ggml.token_type", 5, tokens.len() as u64, &types)
        .u32("tokenizer.ggml.eos_token_id", 2)
        .u32("tokenizer.ggml.unknown_token_id", 1);
    if let Some(pooling) = pooling {
        file = file.u32("llama.pooling_type", pooling);
    }
    let dimensions = [u64::from(LENGTH), tokens.len() as u64];
    let table: Vec<f32> = (0..tokens.len() as u32).flat_map(row).collect();
    file = file.tensor_f32("token_embd.weight", &dimensions, &table);
    file = file.tensor_f32("output.weight", &dimensions, &vec![0.0; table.len()]);
    for name in [
        "attn_q",
        "attn_k",
        "attn_v",
        "attn_output",
        "ffn_gate",
        "ffn_up",
        "ffn_down",
    ] {
        let dimensions = [u64::from(LENGTH); 2];
        file = file.tensor_f32(&format!("blk.0.{name}.weight"), &dimensions, &square);
    }
    for name in ["output_norm", "blk.0.attn_norm", "blk.0.ffn_norm"] {
        file = file.tensor_f32(&format!("{name}.weight"), &[u64::from(LENGTH)], &ones);
    }
    file
}
