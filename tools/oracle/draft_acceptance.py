#!/usr/bin/env python3
"""How often a draft token would hold, by the rule of the engine and by rejection sampling, in numpy.

Run: python tools/oracle/draft_acceptance.py --model F [--positions N] [--bits B,…] [--temperature T,…]
The draft model is the model itself with the matrices of its layers rounded to B bits: to nearest, with a scale for
each row and 32 inputs. p and q are the probabilities of model and draft model at each position of the texts of
tests/data/fidelity. Printed are means over all positions:
  greedy       p of the likeliest token of q: the engine's rule, and rejection sampling of such a draft
  own draw     sum of p q: the engine's rule, if the draft is drawn from q by itself
  same draw    the engine's rule, if the draft is drawn from q by the draw of its position, as the engine draws:
               by sums over ascending ids
  same noise   how often the same Gumbel noise chooses the same token of p and q (8 draws at each position)
  rejection    sum of min(p, q): rejection sampling of a draft that is drawn from q, the most of any rule
Needs numpy and gguf==0.19.0.
"""

import argparse

import numpy as np

import fidelity
import forward

DRAWS = 8


def coarse(x, bits):
    """x (rows, inputs), rounded to `bits` bits with a scale for each row and 32 inputs."""
    largest = 2 ** (bits - 1) - 0.5  # levels lie at odd multiples of half a step
    groups = x.reshape(x.shape[0], -1, 32)
    step = np.abs(groups).max(axis=2, keepdims=True) / np.float32(largest)
    step[step == 0] = 1
    levels = np.clip(np.floor(groups / step) + np.float32(0.5), -largest, largest)
    return (levels * step).reshape(x.shape)


class CoarseModel(forward.Model):
    def __init__(self, path, bits):
        super().__init__(path)
        exact, known = self.file.tensor, {}

        def tensor(name):
            value = exact(name)
            if value is None or value.ndim != 2 or not name.startswith("blk."):
                return value
            if name not in known:
                known[name] = coarse(value, bits)
            return known[name]

        self.file.tensor = tensor


def accepted(target, draft, generator):
    """Means of the five rules at positions whose log probabilities are `target` and `draft` (n, vocabulary)."""
    p, q = np.exp(target), np.exp(draft)
    rows = np.arange(len(p))
    ends = [np.cumsum(x.astype(np.float64), axis=1) for x in (p, q)]
    begins = [np.pad(x[:, :-1], ((0, 0), (1, 0))) for x in ends]
    overlap = np.maximum(np.minimum(*ends) - np.maximum(*begins), 0).sum(axis=1)
    same = 0.0
    for _ in range(DRAWS):
        noise = -np.log(generator.exponential(size=p.shape).astype(np.float32))
        same += np.mean((target + noise).argmax(axis=1) == (draft + noise).argmax(axis=1)) / DRAWS
    return np.array([p[rows, draft.argmax(axis=1)].mean(), (p * q).sum(axis=1).mean(), overlap.mean(),
                     same, np.minimum(p, q).sum(axis=1).mean()])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--positions", type=int, default=fidelity.LENGTH)
    parser.add_argument("--bits", default="4,3,2")
    parser.add_argument("--temperature", default="1,0.7")
    args = parser.parse_args()
    texts = fidelity.read_tokens(fidelity.DATA / "tokens.json")
    sequences = [tokens[:args.positions] for tokens in texts.values()]
    exact = [forward.Model(args.model).logits(tokens).astype(np.float32) for tokens in sequences]
    print("bits  temperature   greedy  own draw  same draw  same noise  rejection")
    for bits in map(int, args.bits.split(",")):
        model = CoarseModel(args.model, bits)
        drafts = [model.logits(tokens).astype(np.float32) for tokens in sequences]
        for temperature in map(float, args.temperature.split(",")):
            generator, means = np.random.default_rng(1), np.zeros(5)
            for target, draft in zip(exact, drafts):
                for first in range(0, len(target), 64):
                    part = slice(first, first + 64)
                    logs = [fidelity.log_softmax(x[part] / np.float32(temperature)).astype(np.float32)
                            for x in (target, draft)]
                    means += accepted(*logs, generator) * len(logs[0])
            means /= sum(map(len, exact))
            print(f"{bits:4} {temperature:12.2g} {means[0]:8.3f} {means[1]:9.3f} {means[2]:10.3f} "
                  f"{means[3]:11.3f} {means[4]:10.3f}")


if __name__ == "__main__":
    main()
