#!/usr/bin/env python3
"""An independent forward pass in f32 numpy: logits of every position of given tokens, for any GGUF file
of the architectures llama, qwen2 and qwen3. Says what the engine ought to compute; shares nothing with it.

Run: python forward.py --model F.gguf --tokens T.json --out logits.npy
T.json is {"sequences": [[token ids], …]}. The output is f32 (positions of all sequences, vocabulary). Weights are kept as f32: four bytes a parameter.
"""

import argparse
import json
import math

import numpy as np
from gguf import GGUFReader
from gguf.quants import dequantize

import extra_types  # noqa: F401  (registers Q1_0 and Q2_0)


class File:
    """Metadata by key, tensors by name as `compute_type` in numpy order (rows, cols)."""

    def __init__(self, path, compute_type=np.float32):
        self.compute_type = compute_type
        reader = GGUFReader(path)
        self.metadata = {name: field.contents() for name, field in reader.fields.items()
                         if not name.startswith("tokenizer.")}
        self.raw = {tensor.name: tensor for tensor in reader.tensors}
        self.cache = {}

    def tensor(self, name):
        """None if the file has no such tensor."""
        if name not in self.raw:
            return None
        if name not in self.cache:
            tensor = self.raw[name]
            values = dequantize(tensor.data, tensor.tensor_type).astype(self.compute_type, copy=False)
            self.cache[name] = values.reshape(tensor.shape[::-1])
        return self.cache[name]


def rms_norm(x, gain, epsilon):
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + np.float32(epsilon)) * gain


def silu(x):
    with np.errstate(over="ignore"):
        return x / (1 + np.exp(-x))


def linear(x, weight, bias=None):
    y = x @ weight.T
    return y if bias is None else y + bias


class Decoder:
    """Attention and feed-forward network of the layers of a GGUF file. Keys and values are rounded to kv_type,
    everything else is compute_type."""

    def __init__(self, path, architectures, kv_type, compute_type):
        self.file = File(path, compute_type)
        self.kv_type = kv_type
        self.compute_type = compute_type
        self.arch = self.file.metadata["general.architecture"]
        if self.arch not in architectures:
            raise ValueError(f"architecture {self.arch} is not known here")
        self.layers = self.key("block_count")
        self.heads = self.key("attention.head_count")
        self.kv_heads = self.key("attention.head_count_kv", self.heads)
        self.dim = self.key("embedding_length")
        self.head_dim = self.key("attention.key_length", self.dim // self.heads)
        self.epsilon = self.key("attention.layer_norm_rms_epsilon")
        self.window = self.key("attention.sliding_window", 0)
        self.rope_dim = self.key("rope.dimension_count", self.head_dim)
        self.frequencies, self.magnitude = self.rope_frequencies()

    def key(self, name, default=None):
        value = self.file.metadata.get(f"{self.arch}.{name}", default)
        if value is None:
            raise KeyError(f"{self.arch}.{name}")
        return value

    def rope_frequencies(self):
        """(rope_dim / 2) radians a position, and the factor on cos and sin."""
        base = float(self.key("rope.freq_base", 10000.0))
        pairs = np.arange(self.rope_dim // 2, dtype=np.float64)
        frequencies = base ** (-2 * pairs / self.rope_dim)
        factors = self.file.tensor("rope_freqs.weight")  # Llama 3
        if factors is not None:
            frequencies /= factors
        kind = self.key("rope.scaling.type", "none")
        if kind == "none":
            return frequencies, 1.0
        factor = float(self.key("rope.scaling.factor"))
        if kind == "linear":
            return frequencies / factor, 1.0
        if kind != "yarn":
            raise ValueError(f"rope scaling {kind} is not known here")
        # arXiv 2309.00071: dimensions that turn often are kept, those that turn less than once are
        # interpolated, with a ramp between
        context = float(self.key("rope.scaling.original_context_length"))

        def dimension_turning(turns):
            return self.rope_dim * math.log(context / (turns * 2 * math.pi)) / (2 * math.log(base))

        low = max(math.floor(dimension_turning(self.key("rope.scaling.yarn_beta_fast", 32.0))), 0)
        high = min(math.ceil(dimension_turning(self.key("rope.scaling.yarn_beta_slow", 1.0))),
                   self.rope_dim - 1)
        interpolated = np.clip((pairs - low) / max(high - low, 0.001), 0, 1)
        magnitude = (1 + 0.1 * math.log(factor)) * self.key("rope.scaling.attn_factor", 1.0)
        return frequencies * (1 - interpolated) + frequencies / factor * interpolated, magnitude

    def rope(self, x):
        """x (n, heads, head_dim), position i in row i: turned by pairs."""
        angles = np.arange(x.shape[0])[:, None] * self.frequencies
        cos = (np.cos(angles) * self.magnitude).astype(self.compute_type)[:, None]
        sin = (np.sin(angles) * self.magnitude).astype(self.compute_type)[:, None]
        out = x.copy()
        half = self.rope_dim // 2
        if self.arch in ("llama", "eagle3"):  # pairs (0, 1), (2, 3), …
            first, second = np.s_[..., 0:self.rope_dim:2], np.s_[..., 1:self.rope_dim:2]
        else:  # pairs (0, half), (1, half + 1), …
            first, second = np.s_[..., :half], np.s_[..., half:self.rope_dim]
        out[first] = x[first] * cos - x[second] * sin
        out[second] = x[first] * sin + x[second] * cos
        return out

    def cached(self, k, v):
        """Keys and values (n, kv_heads, head_dim) as the cache returns them."""
        return (x.astype(self.kv_type).astype(self.compute_type) for x in (k, v))

    def attention(self, h, block):
        """h (n, inputs of attn_q) normed; block ("attn_q.weight" …) → tensors of the layer."""
        n, group = h.shape[0], self.heads // self.kv_heads

        def heads(name, count):
            y = linear(h, block(f"attn_{name}.weight"), block(f"attn_{name}.bias"))
            return y.reshape(n, count, self.head_dim)

        q, k, v = heads("q", self.heads), heads("k", self.kv_heads), heads("v", self.kv_heads)
        if block("attn_q_norm.weight") is not None:
            q = rms_norm(q, block("attn_q_norm.weight"), self.epsilon)
            k = rms_norm(k, block("attn_k_norm.weight"), self.epsilon)
        q, k = self.rope(q), self.rope(k)
        k, v = self.cached(k, v)
        position = np.arange(n)
        hidden = position[None] > position[:, None]
        if self.window:
            hidden |= position[None] <= position[:, None] - self.window
        out = np.empty((n, self.heads, self.head_dim), self.compute_type)
        for head in range(self.heads):
            scores = q[:, head] @ k[:, head // group].T * np.float32(1 / math.sqrt(self.head_dim))
            scores[hidden] = -np.inf
            scores = np.exp(scores - scores.max(axis=1, keepdims=True))
            out[:, head] = scores / scores.sum(axis=1, keepdims=True) @ v[:, head // group]
        return linear(out.reshape(n, -1), block("attn_output.weight"), block("attn_output.bias"))

    def feed_forward(self, x, block):
        """x (n, dim) before the layer's norm."""
        h = rms_norm(x, block("ffn_norm.weight"), self.epsilon)
        gate = linear(h, block("ffn_gate.weight"), block("ffn_gate.bias"))
        up = linear(h, block("ffn_up.weight"), block("ffn_up.bias"))
        return linear(silu(gate) * up, block("ffn_down.weight"), block("ffn_down.bias"))


class Model(Decoder):
    """Teacher-forced logits of a GGUF file. Keys and values are rounded to kv_type, all arrays are compute_type."""

    def __init__(self, path, kv_type=np.float32, compute_type=np.float32):
        super().__init__(path, ("llama", "qwen2", "qwen3"), kv_type, compute_type)

    def layer_inputs(self, tokens):
        """The residual stream of the n tokens of one sequence, (n, dim) each: at the input of every
        layer, then after the last layer."""
        tensor = self.file.tensor
        inputs = [tensor("token_embd.weight")[np.asarray(tokens)]]
        for layer in range(self.layers):

            def block(name, layer=layer):
                return tensor(f"blk.{layer}.{name}")

            x = inputs[-1]
            x = x + self.attention(rms_norm(x, block("attn_norm.weight"), self.epsilon), block)
            inputs.append(x + self.feed_forward(x, block))
        return inputs

    def hidden_states(self, tokens):
        """(n, dim) after the final norm, of the n tokens of one sequence."""
        return rms_norm(self.layer_inputs(tokens)[-1], self.file.tensor("output_norm.weight"), self.epsilon)

    def output_weight(self):
        """(vocabulary, dim)"""
        output = self.file.tensor("output.weight")
        return self.file.tensor("token_embd.weight") if output is None else output

    def logits(self, tokens):
        """(n, vocabulary) of the n tokens of one sequence."""
        return linear(self.hidden_states(tokens), self.output_weight(), self.file.tensor("output.bias"))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True)
    parser.add_argument("--tokens", required=True)
    parser.add_argument("--out", required=True)
    args = parser.parse_args()
    with open(args.tokens, encoding="utf-8") as file:
        sequences = json.load(file)["sequences"]
    model = Model(args.model)
    np.save(args.out, np.concatenate([model.logits(sequence) for sequence in sequences]))


if __name__ == "__main__":
    main()
