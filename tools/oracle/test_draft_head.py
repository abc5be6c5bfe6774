#!/usr/bin/env python3
"""Checks draft_head.py: against an entry-by-entry computation with a KV cache, closed forms and the golden files
of tiny_heads.py; and that every part of the tiny heads shows in their logits.

Run: python tools/oracle/test_draft_head.py   (needs numpy and gguf==0.19.0)
"""

import sys

import numpy as np

import forward
import tiny_heads
from draft_head import DraftHead, rounded_to_bf16
from test_forward import MODELS, read_golden

# Of logits in f32, within ±8; both sides are f64, in other orders of summation. Measured: below 1e-6.
TOLERANCE = 5e-5
# What a part of a head changes in some logit at least. Measured: 1.3; keys and values in f16 change 3e-3.
VISIBLE = 1.0


def largest_error(a, b):
    """The largest difference; infinite where only one is finite."""
    a, b = np.asarray(a), np.asarray(b)
    if a.shape != b.shape or (np.isfinite(a) != np.isfinite(b)).any():
        return np.inf
    finite = np.isfinite(a)
    return np.abs(a[finite] - b[finite]).max(initial=0)


def read_head_golden(path):
    """tokens (m), logits (m - 1, V), [(start, drafts (d), logits (d, V))]"""
    data, offset = path.read_bytes(), 0

    def take(kind, *shape):
        nonlocal offset
        values = np.frombuffer(data, kind, int(np.prod(shape)), offset).reshape(shape)
        offset += values.nbytes
        return values

    count, vocabulary, start_count, draft_count = map(int, take("<u4", 4))
    tokens, logits = take("<i4", count), take("<f4", count - 1, vocabulary)
    starts = take("<i4", start_count)
    drafted = [(int(start), take("<i4", draft_count), take("<f4", draft_count, vocabulary)) for start in starts]
    if offset != len(data):
        raise ValueError(f"{path}: {len(data) - offset} bytes too many")
    return tokens, logits, drafted


class Cached:
    """The head in f64, one entry at a time, from the numbers in its file; keys and values of earlier entries
    are kept. Uses nothing of forward.Decoder."""

    def __init__(self, head):
        metadata = head.file.metadata
        self.weights = {name: head.file.tensor(name).astype(np.float64) for name in head.file.raw if name != "d2t"}
        self.heads = metadata["eagle3.attention.head_count"]
        self.kv_heads = metadata["eagle3.attention.head_count_kv"]
        self.size = metadata["eagle3.rope.dimension_count"]
        self.base = metadata["eagle3.rope.freq_base"]
        self.normed_residual = metadata.get("eagle3.norm_before_residual", False)
        self.normed_features = metadata.get("eagle3.norm_before_fc", False)
        self.target, self.target_layers = head.target, metadata["eagle3.target_layers"]
        of_target = head.target.file.tensor
        self.embedding = self.weights.get("token_embd.weight", of_target("token_embd.weight"))
        self.output = self.weights.get("output.weight", of_target("output.weight"))
        self.ids = head.file.raw["d2t"].data if "d2t" in head.file.raw else range(len(self.output))
        self.keys, self.values = [], []

    def norm(self, x, name):
        return x / np.sqrt(x @ x / len(x) + tiny_heads.EPSILON) * self.weights[f"{name}.weight"]

    def matrix(self, x, name):
        return np.array([row @ x for row in self.weights[f"{name}.weight"]])

    def turned(self, x):
        """x (heads, size) turned as the next entry's, adjacent values as complex numbers"""
        frequencies = np.array([self.base ** (-2 * pair / self.size) for pair in range(self.size // 2)])
        frequencies /= self.weights.get("rope_freqs.weight", np.ones(self.size // 2))
        pairs = (x[:, 0::2] + 1j * x[:, 1::2]) * np.exp(1j * len(self.keys) * frequencies)
        return np.stack([pairs.real, pairs.imag], axis=2).reshape(x.shape)

    def features(self, tokens):
        """(m, 3 * target's dim); bf16 has 8 bits of precision, and np.round rounds ties to even"""
        inputs = self.target.layer_inputs(tokens)
        low, middle, high = (inputs[layer].astype(np.float32) for layer in self.target_layers)
        mantissas, exponents = np.frexp(np.hstack([low, middle, high]).astype(np.float64))
        return np.ldexp(np.round(mantissas * 256), exponents - 8)

    def state(self, feature):
        """g of one position's features (3 * target's dim)"""
        return self.matrix(self.norm(feature, "enc.output_norm") if self.normed_features else feature, "fc")

    def append(self, token, state):
        """x (dim) of the next entry"""
        h = self.norm(state, "blk.0.attn_norm_2")
        inputs = np.concatenate([self.norm(self.embedding[token].astype(np.float64), "blk.0.attn_norm"), h])
        query = self.turned(self.matrix(inputs, "blk.0.attn_q").reshape(self.heads, self.size))
        key = self.turned(self.matrix(inputs, "blk.0.attn_k").reshape(self.kv_heads, self.size))
        self.keys.append(key)
        self.values.append(self.matrix(inputs, "blk.0.attn_v").reshape(self.kv_heads, self.size))
        mixed = []
        for head in range(self.heads):
            kv = head * self.kv_heads // self.heads
            weights = np.exp([query[head] @ key[kv] / np.sqrt(self.size) for key in self.keys])
            mixed.append(sum(w * value[kv] for w, value in zip(weights, self.values)) / weights.sum())
        x = (h if self.normed_residual else state) + self.matrix(np.concatenate(mixed), "blk.0.attn_output")
        h = self.norm(x, "blk.0.ffn_norm")
        gate = self.matrix(h, "blk.0.ffn_gate")
        return x + self.matrix(gate / (1 + np.exp(-gate)) * self.matrix(h, "blk.0.ffn_up"), "blk.0.ffn_down")

    def logits(self, x):
        """(target's vocabulary) of one entry's x"""
        scattered = np.full(len(self.embedding), -np.inf)
        for target_id, row in zip(self.ids, self.output):
            scattered[target_id] = row @ self.norm(x, "output_norm")
        return scattered


class Changed:
    """Within it, a tensor of the file, or an attribute of the head, has another value."""

    def __init__(self, head, tensor=None, **attributes):
        self.places = [(vars(head), name, value) for name, value in attributes.items()]
        if tensor:
            head.file.tensor(tensor[0])
            self.places.append((head.file.cache, *tensor))

    def __enter__(self):
        self.kept = [(place, name, place[name]) for place, name, _ in self.places]
        for place, name, value in self.places:
            place[name] = value

    def __exit__(self, *_):
        for place, name, value in self.kept:
            place[name] = value


def check_rounding():
    """bf16 has 8 bits of precision: next to 1 its values are 1/128 apart, above, and 1/256, below."""
    yield "bf16 rounds to nearest, ties to even", all(
        rounded_to_bf16(np.array([sign * x], np.float32))[0] == sign * expected for sign in (1, -1) for x, expected in (
            (0.0, 0.0), (1.0, 1.0), (1 + 1 / 256, 1.0), (1 + 1 / 256 + 2**-23, 1 + 1 / 128),
            (1 + 3 / 256, 1 + 1 / 64), (1 + 3 / 256 - 2**-23, 1 + 1 / 128), (1 - 1 / 512, 1.0),
            (2 - 2**-23, 2.0), (3 * 2.0**-130, 3 * 2.0**-130))), ""


def check_layer_inputs():
    """A model cut after its first layer ends with what the second layer has as its input."""
    model = forward.Model(MODELS / "llama.gguf")
    tokens, expected = read_golden(MODELS / "llama.golden")
    first, second, last = model.layer_inputs(tokens)
    yield "layer 0 has the embedding as its input", (first == model.file.tensor("token_embd.weight")[tokens]).all(), ""
    last = forward.rms_norm(last, model.file.tensor("output_norm.weight"), model.epsilon)
    error = largest_error(last @ model.file.tensor("output.weight").T, expected)
    yield "after the last layer, the norm and the output give the logits", error <= TOLERANCE, f"{error:.2e}"
    model.layers = 1
    yield "layer 1 has the output of layer 0 as its input", (model.layer_inputs(tokens)[-1] == second).all(), ""


def check_golden(name, head):
    tokens, logits, drafted = read_head_golden(tiny_heads.TARGET / f"{name}.golden")
    expected_tokens, _ = read_golden(MODELS / f"{tiny_heads.HEADS[name].target}.golden")
    errors = [largest_error(tokens, expected_tokens), largest_error(head.logits(tokens), logits)]
    for start, drafts, rows in drafted:
        again, rows_again = head.draft(tokens, start, len(drafts))
        errors += [largest_error(again, drafts), largest_error(rows_again, rows), largest_error(rows[0], logits[start])]
    good = max(errors) <= TOLERANCE and tuple(start for start, _, _ in drafted) == tiny_heads.STARTS
    yield "the golden file is recomputed", good, f"{max(errors):.2e}"
    margin = min(tiny_heads.margin(rows) for _, _, rows in drafted)
    yield "no draft is a close call", margin > tiny_heads.MARGIN, f"smallest margin {margin:.3f}"


def check_entry_by_entry(head, tokens):
    cached, error, whole = Cached(head), 0, head.logits(tokens)
    features = cached.features(tokens)
    for entry in range(len(tokens) - 1):
        x = cached.append(tokens[entry + 1], cached.state(features[entry]))
        error = max(error, largest_error(cached.logits(x), whole[entry]))
    yield "entry by entry: the same logits", error <= TOLERANCE, f"{error:.2e}"

    start, count = 20, 5
    drafts, rows = head.draft(tokens, start, count)
    cached, again = Cached(head), []
    for entry in range(start + 1):
        x = cached.append(tokens[entry + 1], cached.state(features[entry]))
    for row in rows:
        error = max(error, largest_error(cached.logits(x), row))
        again.append(int(cached.logits(x).argmax()))
        x = cached.append(again[-1], x)
    yield "entry by entry: the same drafts", error <= TOLERANCE and again == drafts, f"{error:.2e}"

    later = tokens.copy()
    later[start + 2:] = later[start + 2:][::-1]
    same = head.draft(later, start, count)
    yield "later tokens have no influence", same[0] == drafts and largest_error(same[1], rows) <= TOLERANCE, ""


def check_closed_form(head, tokens):
    """Without attention and feed-forward network, x is the residual, and the embedding has no influence."""
    weight = head.file.tensor
    f = head.features(tokens)[:-1].astype(np.float64)
    if head.norm_before_fc:
        f = f / np.sqrt((f**2).mean(1, keepdims=True) + tiny_heads.EPSILON) * weight("enc.output_norm.weight")
    x = f @ weight("fc.weight").T
    if head.norm_before_residual:
        x = x / np.sqrt((x**2).mean(1, keepdims=True) + tiny_heads.EPSILON) * weight("blk.0.attn_norm_2.weight")
    normed = x / np.sqrt((x**2).mean(1, keepdims=True) + tiny_heads.EPSILON) * weight("output_norm.weight")
    attention, network = "blk.0.attn_output.weight", "blk.0.ffn_down.weight"
    with Changed(head, (attention, 0 * weight(attention))), Changed(head, (network, 0 * weight(network))):
        error = largest_error(head.logits(tokens)[:, head.target_ids], normed @ head.output.T)
    yield "without a layer, the logits are those of the residual", error <= TOLERANCE, f"{error:.2e}"


def check_parts_show(head, tokens):
    """Gains and divisors become 1, matrices 0; flags the opposite."""
    whole = head.logits(tokens)
    changes = {}
    for name in head.file.raw:
        if name in ("d2t", "token_embd.weight", "output.weight"):  # the head's attributes
            continue
        values = head.file.tensor(name)
        with Changed(head, (name, np.ones_like(values) if values.ndim == 1 else np.zeros_like(values))):
            if name == "rope_freqs.weight":
                with Changed(head, frequencies=head.rope_frequencies()[0]):
                    changes[name] = largest_error(head.logits(tokens), whole)
            else:
                changes[name] = largest_error(head.logits(tokens), whole)
    attributes = [dict(embedding=head.embedding[::-1]), dict(output=head.output[::-1]),
                  dict(norm_before_residual=not head.norm_before_residual),
                  dict(target_layers=head.target_layers[::-1]), dict(arch="qwen3"),  # pairs of rope
                  dict(frequencies=head.frequencies / 2)]
    if head.norm_before_fc:
        attributes.append(dict(norm_before_fc=False))
    for attribute in attributes:
        with Changed(head, **attribute):
            changes[next(iter(attribute))] = largest_error(head.logits(tokens), whole)
    least = min(changes, key=changes.get)
    yield "every part shows in the logits", changes[least] >= VISIBLE, f"least {least}: {changes[least]:.2f}"
    with Changed(head, kv_type=np.float16):
        rounded = largest_error(head.logits(tokens), whole)
    yield "keys and values in f16 show a little", 1e-4 < rounded < tiny_heads.MARGIN / 2, f"{rounded:.1e}"


def checks():
    """(name, whether it holds, a figure)"""
    yield from check_rounding()
    yield from check_layer_inputs()
    for name, described in tiny_heads.HEADS.items():
        target = forward.Model(MODELS / f"{described.target}.gguf", np.float64, np.float64)
        head = DraftHead(tiny_heads.TARGET / f"{name}.gguf", target, np.float64)
        tokens, _ = read_golden(MODELS / f"{described.target}.golden")
        for group in (check_golden(name, head), check_entry_by_entry(head, tokens), check_closed_form(head, tokens),
                      check_parts_show(head, tokens)):
            for what, good, figure in group:
                yield f"{name}: {what}", good, figure


def main():
    passed = failed = 0
    for what, good, figure in checks():
        passed, failed = passed + bool(good), failed + (not good)
        print(f"{'ok  ' if good else 'FAIL'} {what}" + (f" ({figure})" if figure else ""))
    print(f"{passed} passed, {failed} failed")
    sys.exit(1 if failed or not passed else 0)


if __name__ == "__main__":
    main()
