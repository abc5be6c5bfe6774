#!/usr/bin/env python3
"""Writes cuda/tests/data/models: tiny random models of each family with the logits of `transformers`.

Run: python tools/oracle/tiny_models.py   (needs torch, transformers and gguf==0.19.0; see make_models.sh)

NAME.gguf    f32 weights, as a converter of llama.cpp would write them
NAME.golden  uint32 token count n, uint32 vocabulary v, int32 tokens (n), f32 logits (n, v)
"""

import math
import pathlib

import gguf
import numpy as np
import torch
import transformers as tf

TARGET = pathlib.Path(__file__).resolve().parents[2] / "cuda" / "tests" / "data" / "models"
TOKENS = 48

SHAPE = dict(hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
             num_key_value_heads=2, head_dim=16, vocab_size=64, max_position_embeddings=256,
             rms_norm_eps=1e-5, tie_word_embeddings=False, attn_implementation="eager")
PLAIN = dict(rope_type="default", rope_theta=10000.0)
LLAMA3 = dict(rope_type="llama3", rope_theta=10000.0, factor=8.0, low_freq_factor=1.0,
              high_freq_factor=4.0, original_max_position_embeddings=64)
LINEAR = dict(rope_type="linear", rope_theta=10000.0, factor=4.0)
YARN = dict(rope_type="yarn", rope_theta=10000.0, factor=4.0, original_max_position_embeddings=64)

# heads * head_dim is hidden_size in every qwen2
QWEN2 = dict(hidden_size=48, num_attention_heads=3, num_key_value_heads=1)

# name: transformers' configuration class, GGUF architecture, differences from SHAPE
MODELS = {
    "llama": (tf.LlamaConfig, "llama", dict(head_dim=32)),
    "llama-tied-odd-sizes": (tf.LlamaConfig, "llama", dict(
        hidden_size=36, intermediate_size=41, num_attention_heads=3, num_key_value_heads=1,
        head_dim=12, vocab_size=67, tie_word_embeddings=True)),
    "llama-biases": (tf.LlamaConfig, "llama", dict(attention_bias=True, mlp_bias=True)),
    "llama-rope-llama3": (tf.LlamaConfig, "llama", dict(rope_parameters=LLAMA3)),
    "llama-rope-linear": (tf.LlamaConfig, "llama", dict(rope_parameters=LINEAR)),
    "llama-rope-yarn": (tf.LlamaConfig, "llama", dict(rope_parameters=YARN)),
    "llama-window": (tf.MistralConfig, "llama", dict(sliding_window=9)),
    "qwen2": (tf.Qwen2Config, "qwen2", dict(
        QWEN2, rope_parameters=dict(PLAIN, rope_theta=1e6), tie_word_embeddings=True)),
    "qwen2-rope-yarn": (tf.Qwen2Config, "qwen2", dict(QWEN2, rope_parameters=YARN)),
    "qwen3": (tf.Qwen3Config, "qwen3", dict(
        head_dim=32, rope_parameters=dict(PLAIN, rope_theta=1e6))),
    "qwen3-tied": (tf.Qwen3Config, "qwen3", dict(tie_word_embeddings=True)),
}


def make_model(config_class, changes, seed):
    """A model with weights so large that every part of it shows in the logits."""
    config = config_class(**{**SHAPE, "rope_parameters": PLAIN, **changes})
    model = tf.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if parameter.ndim == 1:
                parameter.copy_(0.3 * noise + (0 if name.endswith("bias") else 1))
            elif "embed_tokens" in name:
                parameter.copy_(noise / (4 if config.tie_word_embeddings else 1))
            else:
                parameter.copy_(1.5 * noise / math.sqrt(parameter.shape[1]))
    return model.eval()


def permuted(values, heads):
    """Rows of a query or key weight reordered from pairs (i, i + n/2) to pairs (2i, 2i + 1)."""
    shape = values.shape
    return values.reshape(heads, 2, shape[0] // heads // 2, *shape[1:]).swapaxes(1, 2).reshape(shape)


def llama3_factors(config):
    """(head_dim / 2) divisors of the rope frequencies."""
    rope, dim = config.rope_parameters, config.head_dim
    frequencies = rope["rope_theta"] ** (-np.arange(0, dim, 2) / dim)
    turns = rope["original_max_position_embeddings"] * frequencies / (2 * math.pi)
    low, high = rope["low_freq_factor"], rope["high_freq_factor"]
    smooth = np.clip((turns - low) / (high - low), 0, 1)
    return (1 / ((1 - smooth) / rope["factor"] + smooth)).astype(np.float32)


def write_gguf(path, model, arch):
    config = model.config
    writer = gguf.GGUFWriter(path, arch)
    writer.add_name(path.stem)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    if head_dim * config.num_attention_heads != config.hidden_size:
        writer.add_key_length(head_dim)
        writer.add_value_length(head_dim)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(config.vocab_size)
    writer.add_tokenizer_model("none")
    rope = config.rope_parameters
    writer.add_rope_freq_base(rope["rope_theta"])
    writer.add_rope_dimension_count(head_dim)
    if rope["rope_type"] in ("linear", "yarn"):
        writer.add_rope_scaling_type(gguf.RopeScalingType(rope["rope_type"]))
        writer.add_rope_scaling_factor(rope["factor"])
    if rope["rope_type"] == "yarn":
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
    if rope["rope_type"] == "llama3":
        writer.add_tensor("rope_freqs.weight", llama3_factors(config))
    if arch == "llama" and getattr(config, "sliding_window", None):
        writer.add_sliding_window(config.sliding_window)

    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH[arch.upper()], config.num_hidden_layers)
    for name, parameter in model.named_parameters():
        values = parameter.detach().numpy()
        if arch == "llama" and ".q_proj." in name:
            values = permuted(values, config.num_attention_heads)
        if arch == "llama" and ".k_proj." in name:
            values = permuted(values, config.num_key_value_heads)
        writer.add_tensor(names.get_name(name, try_suffixes=(".weight", ".bias")),
                          np.ascontiguousarray(values))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main():
    TARGET.mkdir(parents=True, exist_ok=True)
    for seed, (name, (config_class, arch, changes)) in enumerate(MODELS.items()):
        model = make_model(config_class, changes, seed)
        write_gguf(TARGET / f"{name}.gguf", model, arch)
        tokens = np.random.default_rng(seed).integers(0, model.config.vocab_size, TOKENS, np.int32)
        with torch.no_grad():
            logits = model(torch.from_numpy(tokens.astype(np.int64))[None]).logits[0].numpy()
        header = np.array([TOKENS, model.config.vocab_size], np.uint32)
        (TARGET / f"{name}.golden").write_bytes(
            header.tobytes() + tokens.tobytes() + logits.astype(np.float32).tobytes())
        print(f"{name}: logits from {logits.min():.2f} to {logits.max():.2f}")


if __name__ == "__main__":
    main()
