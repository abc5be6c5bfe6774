#!/usr/bin/env python3
"""Writes cuda/tests/data/heads: tiny random EAGLE-3 draft heads for models of cuda/tests/data/models, with the
logits and greedy drafts of draft_head.py.

Run: python tools/oracle/tiny_heads.py   (needs numpy and gguf==0.19.0)

NAME.gguf    f32 weights (the head's own embedding is f16), as a converter of llama.cpp would write them
NAME.golden  little-endian, no padding:
             uint32 token count m, uint32 target's vocabulary V, uint32 start count s, uint32 drafts d
             int32  tokens (m), those of the target's golden file
             f32    logits (m - 1, V) of the entries of these tokens; -inf for tokens the head cannot draft
             int32  starts (s): entries after which the head drafts
             then for each start
               int32  drafts (d)
               f32    logits (d, V) that the drafts are the largest of; the first row is that of the entry
Computed in f64, keys and values too; features are rounded to bf16. Logits are then rounded to f32.
"""

import dataclasses
import math
import pathlib

import gguf
import numpy as np

import draft_head
import forward
from test_forward import MODELS, read_golden

TARGET = MODELS.parent / "heads"
STARTS, DRAFTS = (5, 20, 46), 5
EPSILON, HEAD_DIM = 1e-5, 16
# The engine stores keys and values as f16; smaller margins between the first and the second logit could change drafts.
MARGIN = 0.05


@dataclasses.dataclass
class Head:
    target: str
    target_layers: list
    seed: int
    dim: int
    heads: int
    kv_heads: int
    feed_forward: int
    draft_vocabulary: int = 0  # with d2t
    own_embedding: bool = False
    own_output: bool = False
    rope_factors: tuple = ()  # (HEAD_DIM / 2) divisors of the frequencies
    flags: dict = dataclasses.field(default_factory=dict)  # those not in the file are false


HEADS = {
    "llama-head": Head(
        target="llama", target_layers=[0, 1, 2], seed=268, dim=32, heads=4, kv_heads=2, feed_forward=20,
        draft_vocabulary=40, own_output=True),
    "qwen3-head": Head(
        target="qwen3", target_layers=[1, 1, 2], seed=31, dim=48, heads=3, kv_heads=1, feed_forward=17,
        own_embedding=True, own_output=True, rope_factors=(1, 1, 1.6, 5, 8, 8, 8, 8),
        flags=dict(norm_before_residual=True, norm_before_fc=True)),
    "llama-head-bare": Head(
        target="llama", target_layers=[0, 1, 2], seed=381, dim=32, heads=2, kv_heads=1, feed_forward=16,
        flags=dict(norm_before_residual=False, norm_before_fc=False)),
}


def make_tensors(head, target_dim, vocabulary):
    """Name: values; so large that every part shows in the logits."""
    rng = np.random.default_rng(head.seed)

    def matrix(rows, cols, deviation=1.5):
        return (deviation / math.sqrt(cols) * rng.normal(size=(rows, cols))).astype(np.float32)

    def gain(size):
        return (1 + 0.3 * rng.normal(size=size)).astype(np.float32)

    n, queries, keys = head.dim, head.heads * HEAD_DIM, head.kv_heads * HEAD_DIM
    tensors = {
        "fc.weight": matrix(n, 3 * target_dim),
        "blk.0.attn_norm.weight": gain(n),
        "blk.0.attn_norm_2.weight": gain(n),
        "blk.0.attn_q.weight": matrix(queries, 2 * n),
        "blk.0.attn_k.weight": matrix(keys, 2 * n),
        "blk.0.attn_v.weight": matrix(keys, 2 * n),
        "blk.0.attn_output.weight": matrix(n, queries, 4.5),  # or the residual outweighs the token
        "blk.0.ffn_norm.weight": gain(n),
        "blk.0.ffn_gate.weight": matrix(head.feed_forward, n),
        "blk.0.ffn_up.weight": matrix(head.feed_forward, n),
        "blk.0.ffn_down.weight": matrix(n, head.feed_forward),
        "output_norm.weight": gain(n),
    }
    if head.flags.get("norm_before_fc"):
        tensors["enc.output_norm.weight"] = gain(3 * target_dim)
    if head.own_output:
        tensors["output.weight"] = matrix(head.draft_vocabulary or vocabulary, n)
    if head.draft_vocabulary:
        ids = rng.choice(vocabulary, head.draft_vocabulary, replace=False)
        tensors["d2t"] = np.sort(ids).astype(np.int64)
    if head.own_embedding:
        tensors["token_embd.weight"] = rng.normal(size=(vocabulary, n)).astype(np.float16)
    if head.rope_factors:
        tensors["rope_freqs.weight"] = np.array(head.rope_factors, np.float32)
    return tensors


def write_gguf(path, head, target):
    writer = gguf.GGUFWriter(path, "eagle3")
    writer.add_name(path.stem)
    writer.add_block_count(1)
    writer.add_context_length(256)
    writer.add_embedding_length(head.dim)
    writer.add_feed_forward_length(head.feed_forward)
    writer.add_head_count(head.heads)
    writer.add_head_count_kv(head.kv_heads)
    if head.heads * HEAD_DIM != head.dim:
        writer.add_key_length(HEAD_DIM)
        writer.add_value_length(HEAD_DIM)
    writer.add_layer_norm_rms_eps(EPSILON)
    vocabulary = len(target.file.tensor("token_embd.weight"))
    writer.add_vocab_size(vocabulary)
    writer.add_tokenizer_model("none")
    writer.add_rope_freq_base(10000.0)
    writer.add_rope_dimension_count(HEAD_DIM)
    writer.add_array("eagle3.target_layers", head.target_layers)
    writer.add_uint32("eagle3.target_hidden_size", target.dim)
    for name, value in head.flags.items():
        writer.add_bool(f"eagle3.{name}", value)
    for name, values in make_tensors(head, target.dim, vocabulary).items():
        writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def margin(rows):
    """The smallest difference between the first and the second logit of a row."""
    largest = np.sort(rows, axis=1)[:, -2:]
    return (largest[:, 1] - largest[:, 0]).min()


def main():
    TARGET.mkdir(parents=True, exist_ok=True)
    for name, head in HEADS.items():
        path = TARGET / f"{name}.gguf"
        target = forward.Model(MODELS / f"{head.target}.gguf", np.float64, np.float64)
        write_gguf(path, head, target)
        tokens, _ = read_golden(MODELS / f"{head.target}.golden")
        computed = draft_head.DraftHead(path, target, np.float64)
        logits = computed.logits(tokens)
        drafted = [computed.draft(tokens, start, DRAFTS) for start in STARTS]
        smallest = min(margin(rows) for _, rows in drafted)
        if smallest <= MARGIN:
            raise SystemExit(f"{name}: margin {smallest:.3f}: choose another seed")
        with open(path.with_suffix(".golden"), "wb") as file:
            file.write(np.array([len(tokens), logits.shape[1], len(STARTS), DRAFTS], "<u4"))
            file.write(tokens.astype("<i4"))
            file.write(logits.astype("<f4"))
            file.write(np.array(STARTS, "<i4"))
            for drafts, rows in drafted:
                file.write(np.array(drafts, "<i4"))
                file.write(rows.astype("<f4"))
        finite = logits[np.isfinite(logits)]
        print(f"{name}: logits from {finite.min():.2f} to {finite.max():.2f}, smallest margin {smallest:.3f}, "
              f"drafts {[drafts for drafts, _ in drafted]}")


if __name__ == "__main__":
    main()
