#!/usr/bin/env python3
"""What FP8 e4m3 operands of the linear layers would cost in fidelity: forward.py with rounded operands, in numpy.
Products and sums are f32, so that only the rounding of the operands counts; no kernel of the engine takes part.

Run: python tools/oracle/fp8_simulation.py --model F [--tokens T.json] [--positions N] [--reference R.npy] [--head] FORM …
FORM is ACTIVATIONS,WEIGHTS[,MATRICES]. ACTIVATIONS and WEIGHTS are f32 (exact), f16, or
  e4m3 or int8  round to nearest, ties to even, times a scale for each row (a token, an output): amax / 448 or 127
  …/128         a scale for each row and 128 inputs
  …x2           a second term of the same scale for what the first leaves (e4m3)
  …p2           the scale is rounded up to a power of two
  such as e4m3/128x2p2. MATRICES is a regular expression, found in the names such as blk.0.attn_q.weight of the
  matrices that are rounded, without it all of the blocks; the others have exact operands. --head prints each form
  with the output head rounded, too.
The other options are those of fidelity.py compare, and so is the output. Needs numpy and gguf==0.19.0.
"""

import argparse
import pathlib
import re
import time

import numpy as np

import fidelity
import forward

LARGEST = {"e4m3": 448, "int8": 127}


def e4m3(x):
    """The nearest value of float8_e4m3fn as f32, ties to even; larger magnitudes become 448."""
    bits = x.view(np.uint32)
    bits = bits + np.uint32(0x7FFFF) + ((bits >> np.uint32(20)) & np.uint32(1))
    normal = (bits & np.uint32(0xFFF00000)).view(np.float32)  # 3 bits of fraction
    subnormal = np.rint(x * np.float32(512)) * np.float32(1 / 512)
    return np.clip(np.where(np.abs(x) < np.float32(2**-6), subnormal, normal), -448, 448)


def rounded(x, form):
    """x (rows, inputs) f32 as operands of this form, times their scales again."""
    if form in ("f32", "f16"):
        return x.astype({"f32": np.float32, "f16": np.float16}[form]).astype(np.float32, copy=False)
    kind, inputs, twice, power = re.fullmatch(r"(e4m3|int8)(?:/(\d+))?(x2)?(p2)?", form).groups()
    step = int(inputs or x.shape[1])
    nearest = e4m3 if kind == "e4m3" else np.rint
    out = np.empty_like(x)
    for first in range(0, x.shape[1], step):
        part = x[:, first:first + step]
        scale = np.abs(part).max(axis=1, keepdims=True) / np.float32(LARGEST[kind])
        scale[scale == 0] = 1
        if power:
            scale = np.exp2(np.ceil(np.log2(scale)))
        part = part / scale
        terms = nearest(part)
        if twice:
            terms += nearest(part - terms)
        out[:, first:first + step] = terms * scale
    return out


class Model(forward.Model):
    """forward.Model whose linear layers round their operands where a form says so."""

    def __init__(self, path):
        super().__init__(path)
        self.exact_tensor = self.file.tensor
        self.file.tensor = self.tensor
        forward.linear = self.linear

    def set_form(self, activations, weights, pattern=r"^blk\."):
        self.form = activations, weights, re.compile(pattern)
        self.matrices = {}  # rounded, by name
        self.activations = {}  # form by id of such a matrix

    def matrix(self, name, exact):
        if name not in self.matrices:
            self.matrices[name] = rounded(exact, self.form[1])
            self.activations[id(self.matrices[name])] = self.form[0]
        return self.matrices[name]

    def tensor(self, name):
        exact = self.exact_tensor(name)
        is_matrix = exact is not None and exact.ndim == 2 and name.startswith("blk.")
        return self.matrix(name, exact) if is_matrix and self.form[2].search(name) else exact

    def linear(self, x, weight, bias=None):
        y = rounded(x, self.activations.get(id(weight), "f32")) @ weight.T
        return y if bias is None else y + bias

    def head(self, hidden, rounds):
        weight = self.output_weight()
        return self.linear(hidden, self.matrix("head", weight) if rounds else weight, self.exact_tensor("output.bias"))


def read_arguments(description, flags=()):
    """The options of a simulation; its texts as {name: tokens}; and the logits that forms are compared with."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--tokens", type=pathlib.Path, default=fidelity.DATA / "tokens.json")
    parser.add_argument("--positions", type=int, default=fidelity.LENGTH)
    parser.add_argument("--reference", type=pathlib.Path)
    for flag in flags:
        parser.add_argument(flag, action="store_true")
    parser.add_argument("forms", nargs="+", metavar="FORM")
    args = parser.parse_args()
    sequences = {name: tokens[:args.positions] for name, tokens in fidelity.read_tokens(args.tokens).items()}
    return args, sequences, fidelity.reference_logits(args.model, list(sequences.values()), args.reference, "float32")


def main():
    args, sequences, reference = read_arguments(__doc__, ["--head"])
    model = Model(args.model)
    for form in args.forms:
        model.set_form(*form.split(",", 2))
        begin = time.time()
        hidden = [model.hidden_states(tokens) for tokens in sequences.values()]
        for rounds in (False, True) if args.head else (False,):
            print(f"== {form}{', head too' if rounds else ''} ({time.time() - begin:.0f} s)")
            states = iter(hidden)
            fidelity.compare(reference, sequences, lambda _: model.head(next(states), rounds))


if __name__ == "__main__":
    main()
