"""An independent EAGLE-3 draft head in numpy: logits and greedy drafts of a GGUF file of the architecture
eagle3 for a target of forward.py. Says what the engine ought to compute; shares nothing with it.

Features of position q are the target's residual stream at the inputs of three layers, rounded to bf16. The head
reduces them to a state g_q and has one decoder layer over entries:

    entry      0         1        …   q           q + 1       q + 2
    token     t_1       t_2       …  t_{q+1}      d_1         d_2         embedded, normed: left half of the input
    state     g_0       g_1       …  g_q          x_q         x_{q+1}     normed: right half; also the residual
    output    x_0       x_1       …  x_q          x_{q+1}     …           → norm → logits; d_1 = argmax of entry q
              └──── from the target ────┘         └── drafted: the state is the output of the entry before

The source of the method: arXiv 2503.01840. The tensors are those of llama.cpp's converter.
"""

import numpy as np

import forward


def rounded_to_bf16(x):
    """f32 array rounded to bf16, to nearest, ties to even. Finite values only."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    bits = (bits + 0x7FFF + (bits >> 16 & 1)) & np.uint32(0xFFFF0000)
    return bits.view(np.float32)


class DraftHead(forward.Decoder):
    """Computes in the type that the target (a forward.Model) computes in. Keys and values of the head are rounded
    to kv_type, those of the target to the target's.

    A target that computes in f32 has features that depend on the order of its sums: a value next to the middle of
    two bf16 values is rounded to either. Measured with the tiny models, the same prefixes in batches of other
    sizes: up to 21 of 110 000 values differ; one such value changes a logit by up to 3e-2. In f64 none differs.
    """

    def __init__(self, path, target, kv_type=np.float32):
        super().__init__(path, ("eagle3",), kv_type, target.compute_type)
        self.target = target
        self.target_layers = self.key("target_layers")
        self.norm_before_residual = self.key("norm_before_residual", False)
        self.norm_before_fc = self.key("norm_before_fc", False)
        embedding, output = self.file.tensor("token_embd.weight"), self.file.tensor("output.weight")
        self.embedding = target.file.tensor("token_embd.weight") if embedding is None else embedding
        self.output = target.output_weight() if output is None else output
        self.vocabulary = len(target.file.tensor("token_embd.weight"))
        self.target_ids = np.arange(self.vocabulary)  # of each draft token
        if "d2t" in self.file.raw:
            self.target_ids = self.file.raw["d2t"].data
        expected = {"block_count": (self.layers, 1), "target_layers": (len(self.target_layers), 3),
                    "target_hidden_size": (self.key("target_hidden_size"), target.dim),
                    "rows of output": (len(self.output), len(self.target_ids))}
        for name, (found, needed) in expected.items():
            if found != needed:
                raise ValueError(f"{path}: {name} is {found}, needed is {needed}")

    def block(self, name):
        return self.file.tensor(f"blk.0.{name}")

    def features(self, tokens):
        """(m, 3 * target's dim) f32, bf16 values, of the m tokens of one sequence"""
        inputs = self.target.layer_inputs(tokens)
        return rounded_to_bf16(np.concatenate([inputs[layer] for layer in self.target_layers], axis=1))

    def target_states(self, tokens):
        """g (m, dim) of the m tokens of one sequence"""
        features = self.features(tokens)
        if self.norm_before_fc:
            features = forward.rms_norm(features, self.file.tensor("enc.output_norm.weight"), self.epsilon)
        return forward.linear(features, self.file.tensor("fc.weight"))

    def outputs(self, tokens, states):
        """x (entries, dim) of entries with these tokens (entries) and states (entries, dim)"""
        e = forward.rms_norm(self.embedding[np.asarray(tokens)], self.block("attn_norm.weight"), self.epsilon)
        h = forward.rms_norm(states, self.block("attn_norm_2.weight"), self.epsilon)
        x = h if self.norm_before_residual else states
        x = x + self.attention(np.concatenate([e, h], axis=1), self.block)
        return x + self.feed_forward(x, self.block)

    def logits_of(self, x):
        """(entries, target's vocabulary) f32 of outputs x (entries, dim); -inf for tokens the head cannot draft"""
        logits = np.full((len(x), self.vocabulary), -np.inf, np.float32)
        h = forward.rms_norm(x, self.file.tensor("output_norm.weight"), self.epsilon)
        logits[:, self.target_ids] = forward.linear(h, self.output)
        return logits

    def logits(self, tokens):
        """(m - 1, target's vocabulary) of the entries that the m tokens of one sequence make"""
        return self.logits_of(self.outputs(tokens[1:], self.target_states(tokens)[:-1]))

    def draft(self, tokens, entry, count):
        """Greedy drafts (count) after an entry of the sequence, and the logits (count, target's vocabulary)
        that they are the largest of. Tokens past entry + 1 have no influence."""
        entry_tokens = list(tokens[1:entry + 2])
        states = self.target_states(tokens)[:entry + 1]
        drafts, rows = [], []
        for _ in range(count):
            x = self.outputs(entry_tokens, states)
            rows.append(self.logits_of(x[-1:])[0])
            drafts.append(int(rows[-1].argmax()))
            entry_tokens.append(drafts[-1])
            states = np.concatenate([states, x[-1:]])
        return drafts, np.stack(rows)
