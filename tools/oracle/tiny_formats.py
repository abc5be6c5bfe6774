#!/usr/bin/env python3
"""Writes one tiny llama model for each weight format, all matrices in that format, with the logits of
forward.py: NAME.gguf and NAME.golden as tiny_models.py writes them.

Run: python tools/oracle/tiny_formats.py --out FOLDER [--only NAME]   (needs numpy and gguf==0.19.0)
"""

import argparse
import pathlib
import sys

import gguf
import numpy as np
from gguf.quants import dequantize

import extra_types  # noqa: F401  (registers Q1_0 and Q2_0)
import forward

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "golden"))
import quant as golden  # noqa: E402

DIM, HEADS, KV_HEADS, VOCABULARY, TOKENS = 256, 4, 2, 80, 24
HEAD_DIM = DIM // HEADS
# name: (rows, cols); all columns are multiples of 256
MATRICES = {
    "token_embd": (VOCABULARY, DIM), "output": (VOCABULARY, DIM),
    "blk.0.attn_q": (DIM, DIM), "blk.0.attn_k": (KV_HEADS * HEAD_DIM, DIM),
    "blk.0.attn_v": (KV_HEADS * HEAD_DIM, DIM), "blk.0.attn_output": (DIM, DIM),
    "blk.0.ffn_gate": (DIM, DIM), "blk.0.ffn_up": (DIM, DIM), "blk.0.ffn_down": (DIM, DIM),
}


def set_scales(name, blocks, values):
    """Writes f16 `values` (blocks, scales of a block) where the format keeps its scales."""
    bits = np.asarray(values, np.float16).view(np.uint16)
    if name == "IQ1_M":  # spread over the top nibbles of four words
        words = blocks[:, 48:56].view(np.uint16)
        words[:] = (words & 0x0FFF) | ((bits >> np.array([0, 4, 8, 12], np.uint16)) & 15) << 12
        return
    for i, offset in enumerate(golden.SCALES[name]):
        blocks[:, offset:offset + 2] = bits[:, i:i + 1].copy().view(np.uint8)


def random_weights(name, rows, cols, deviation, rng):
    """(rows, bytes of a row) of random codes, scaled so that the weights have about this standard
    deviation and mean 0."""
    elements, size = golden.sizes(name)
    if not golden.SCALES[name] and size <= 4 or name == "F16":
        values = (rng.normal(size=(rows, cols)) * deviation).astype(np.float32)
        if name == "F32":
            return values.view(np.uint8)
        return (values.astype(np.float16).view(np.uint8) if name == "F16"
                else np.ascontiguousarray(values.view(np.uint8).reshape(rows, cols, 4)[..., 2:])
                ).reshape(rows, -1)
    kind = gguf.GGMLQuantizationType[name]
    blocks = rng.integers(0, 256, (rows * cols // elements, size), dtype=np.uint8)
    count, scales = len(blocks), len(golden.SCALES[name])
    if name == "MXFP4":
        blocks[:, 0] = rng.integers(121, 124, count)  # 2^-6 … 2^-4
    elif name == "NVFP4":
        blocks[:, :4] = rng.integers(8, 24, (count, 4))  # 2^-6 … 2^-4
    elif scales:
        unit = np.ones((count, scales), np.float16)
        if scales == 2:  # w = d * codes + m * offset: the m that makes the mean 0
            set_scales(name, blocks, unit * [1, 0])
            codes = dequantize(blocks, kind)
            set_scales(name, blocks, unit * [0, 1])
            unit = unit * [1, -codes.mean() / dequantize(blocks, kind).mean()]
        set_scales(name, blocks, unit)
        scale = deviation / dequantize(blocks, kind).std()
        # of either sign, because the codes alone need not have mean 0
        signs = rng.choice([-1, 1], (count, 1))
        set_scales(name, blocks, unit * scale * signs * rng.uniform(0.5, 1.5, (count, 1)))
    return blocks.reshape(rows, -1)


def write_model(path, name, rng):
    kind = gguf.GGMLQuantizationType[name]
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(1)
    writer.add_context_length(128)
    writer.add_embedding_length(DIM)
    writer.add_feed_forward_length(DIM)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(VOCABULARY)
    writer.add_rope_dimension_count(HEAD_DIM)
    writer.add_tokenizer_model("none")
    for matrix, (rows, cols) in MATRICES.items():
        data = random_weights(name, rows, cols, 1.5 / np.sqrt(DIM), rng)
        if name in ("F32", "F16"):
            data = data.view(np.dtype("f4" if name == "F32" else "f2"))
        writer.add_tensor(f"{matrix}.weight", data, raw_dtype=kind)
    for norm in ("output_norm", "blk.0.attn_norm", "blk.0.ffn_norm"):
        writer.add_tensor(f"{norm}.weight", rng.uniform(0.5, 1.5, DIM).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", required=True, type=pathlib.Path)
    parser.add_argument("--only", choices=list(golden.SCALES))
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    for name in [args.only] if args.only else golden.SCALES:
        rng = np.random.default_rng(golden.sizes(name))
        path = args.out / f"{name}.gguf"
        write_model(path, name, rng)
        tokens = rng.integers(0, VOCABULARY, TOKENS, dtype=np.int32)
        logits = forward.Model(path).logits(tokens)
        header = np.array([TOKENS, VOCABULARY], np.uint32)
        path.with_suffix(".golden").write_bytes(
            header.tobytes() + tokens.tobytes() + logits.tobytes())
        print(f"{name}: logits within ±{np.abs(logits).max():.2f}, "
              f"standard deviation {logits.std():.2f}")


if __name__ == "__main__":
    main()
