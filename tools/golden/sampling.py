#!/usr/bin/env python3
"""Golden tokens for the sampler: the rules of ops/sampling.h, written again in float64 numpy.

Writes cuda/tests/data/sampling.txt. Decisions that float32 could turn the other way (a sum within 1e-5
of its border) are avoided by trying the next seed, so the host and the GPU must agree exactly on tokens.
Usage: tools/golden/sampling.py [output]
"""
import sys
from pathlib import Path

import numpy as np

MARGIN = 1e-5
U32 = np.uint64(0xFFFFFFFF)


def philox(counter, key):
    """Philox4x32-10 of four counter words and two key words, as Python integers."""
    c, k = list(counter), list(key)
    for _ in range(10):
        a, b = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [(b >> 32) ^ c[1] ^ k[0], b & 0xFFFFFFFF, (a >> 32) ^ c[3] ^ k[1], a & 0xFFFFFFFF]
        k = [(k[0] + 0x9E3779B9) & 0xFFFFFFFF, (k[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return c


def uniform(seed, position):
    out = philox([position, 0, 0, 0], [seed & 0xFFFFFFFF, seed >> 32])
    return ((out[0] << 32) | out[1]) / 2.0**64


def hash32(x):
    """A mixing function that the test repeats in C++ (lowbias32)."""
    x = x & U32
    x ^= x >> np.uint64(16)
    x = x * np.uint64(0x7FEB352D) & U32
    x ^= x >> np.uint64(15)
    x = x * np.uint64(0x846CA68B) & U32
    return x ^ (x >> np.uint64(16))


def make_logits(vocabulary, salt, steps, scale):
    """Logits on a grid of `steps` values of width scale / 256: few steps make ties."""
    h = hash32(np.arange(vocabulary, dtype=np.uint64) + np.uint64(salt) * np.uint64(0x9E3779B9))
    return (h % np.uint64(steps)).astype(np.float64) * scale / 256.0


class Near(Exception):
    """A decision too close to its border to be the same in float32."""


def cut(order, p, share):
    """Length of the shortest beginning of `order` with a sum of at least share."""
    total = p.sum()
    sums = np.cumsum(p[order])
    if np.any(np.abs(sums[:-1] - share * total) < MARGIN * total):
        raise Near
    return int(np.argmax(sums >= share * total)) + 1


def sample(logits, c):
    """Returns (status, token, logprob, [(token, logprob)])."""
    n = len(logits)
    if not np.all(logits < np.inf):
        return 3, -1, 0.0, []
    l = logits.copy()
    for token, value in c["bias"]:
        l[token] += value
    if c["mask"] is not None:
        l[~c["mask"]] = -np.inf
    r, f, pr = c["repetition"] or 1.0, c["frequency"], c["presence"]
    if (r, f, pr) != (1.0, 0.0, 0.0):
        position = c["position"]
        window = c["history"][max(c["from"], position - (c["last_n"] or 64)):position]
        for token in set(window):
            l[token] = l[token] / r if l[token] > 0 else l[token] * r
            l[token] -= f * window.count(token) + pr
    top = l.max()
    if top == -np.inf:
        return 2, -1, 0.0, []
    logprobs = l - top - np.log(np.exp(l - top).sum())
    order = np.lexsort((np.arange(n), -l))
    order = order[l[order] > -np.inf]
    best = [(int(t), float(logprobs[t])) for t in order[:c["top_logprobs"]]]
    t = c["temperature"]
    if t == 0:
        return 0, int(order[0]), float(logprobs[order[0]]), best
    y = (top - l) / t
    ids = np.arange(n)[np.exp(-y) > 2.0**-39]
    if c["top_k"] and c["top_k"] < len(ids):
        ranked = ids[np.lexsort((ids, y[ids]))]
        ids = np.sort(ranked[:c["top_k"]])
    if 0 < c["typical"] < 1:
        p = np.exp(-y[ids])
        score = np.abs(y[ids] - (p * y[ids]).sum() / p.sum())
        ranked = np.lexsort((ids, score))
        gaps = np.diff(score[ranked])
        if np.any((gaps < 1e-6) & (np.diff(y[ids][ranked]) != 0)):
            raise Near
        ids = np.sort(ids[ranked[:cut(ranked, p, c["typical"])]])
    if 0 < c["top_p"] < 1:
        p = np.exp(-y[ids])
        ranked = np.lexsort((ids, y[ids]))
        ids = np.sort(ids[ranked[:cut(ranked, p, c["top_p"])]])
    if c["min_p"] > 0:
        p = np.exp(-y[ids])
        if np.any(np.abs(p - c["min_p"] * p.max()) < MARGIN * c["min_p"]):
            raise Near
        ids = ids[p >= c["min_p"] * p.max()]
    sums = np.cumsum(np.exp(-y[ids]))
    target = uniform(c["seed"], c["position"]) * sums[-1]
    if np.any(np.abs(sums[:-1] - target) < MARGIN * sums[-1]):
        raise Near
    token = int(ids[np.argmax(sums > target)])
    return 0, token, float(logprobs[token]), best


def cases(rng):
    """Every combination that matters, each with random numbers on f32 grids."""
    grids = [(1, 5), (31, 7), (32, 4096), (33, 64), (1000, 4096), (4099, 40), (49152, 4096)]
    for index in range(240):
        vocabulary, steps = grids[index % len(grids)]
        on = rng.random(10) < 0.45
        pick = lambda bit, *values: float(np.float32(rng.choice(values))) if on[bit] else 0.0
        position = int(rng.integers(0, 200))
        c = {
            "vocabulary": vocabulary, "salt": int(rng.integers(1, 1 << 30)), "steps": steps,
            "scale": int(rng.choice([1, 4, 16])), "position": position,
            "seed": int(rng.integers(0, 1 << 63)),
            "temperature": float(np.float32(rng.choice([0.0, 0.25, 0.7, 1.0, 1.5]))),
            "top_k": int(rng.integers(1, vocabulary + 3)) if on[0] and rng.random() < 0.5
                     else (int(rng.choice([1, 5, 40])) if on[0] else 0),
            "typical": pick(1, 0.2, 0.5, 0.95), "top_p": pick(2, 0.1, 0.5, 0.9, 0.99),
            "min_p": pick(3, 0.01, 0.1, 0.5), "repetition": pick(4, 0.75, 1.125, 1.5),
            "frequency": pick(5, -0.25, 0.5, 1.0), "presence": pick(6, -0.5, 0.25, 1.0),
            "last_n": int(rng.choice([0, 1, 16, 4096])), "from": int(rng.choice([0, 0, 20])),
            "top_logprobs": int(rng.choice([0, 1, 5, 20])),
            "history_salt": int(rng.integers(1, 1 << 30)), "bias_count": 0, "mask_salt": 0,
        }
        if on[7]:
            c["bias_count"] = int(min(vocabulary, rng.integers(1, 9)))
        if on[8]:
            c["mask_salt"] = int(rng.integers(1, 1 << 30))
        yield c


def fill(c):
    """Arrays that the C++ test derives from the salts in the same way."""
    v = c["vocabulary"]
    h = hash32(np.arange(c["position"], dtype=np.uint64) + np.uint64(c["history_salt"]))
    c["history"] = [int(t) for t in h % np.uint64(min(v, 60))]
    bias = [-np.inf, -1.5, 0.25, 2.0, -3.0, 4.5, -0.125, 1.0]
    c["bias"] = [(i * v // c["bias_count"], bias[i]) for i in range(c["bias_count"])]
    c["mask"] = None
    if c["mask_salt"]:
        h = hash32(np.arange(v, dtype=np.uint64) + np.uint64(c["mask_salt"]))
        c["mask"] = h % np.uint64(3) != 0
    return c


def main():
    assert philox([0] * 4, [0] * 2)[0] == 0x6627E8D5
    target = Path(__file__).resolve().parents[2] / "cuda/tests/data/sampling.txt"
    if len(sys.argv) > 1:
        target = Path(sys.argv[1])
    lines = ["# tools/golden/sampling.py: parameters, then status token logprob and alternatives"]
    for c in cases(np.random.default_rng(20240607)):
        logits = make_logits(c["vocabulary"], c["salt"], c["steps"], c["scale"])
        for _ in range(100):
            try:
                status, token, logprob, best = sample(logits, fill(c))
                break
            except Near:
                c["seed"] += 1
                c["position"] += 1
        else:
            continue
        keys = [k for k in c if k not in ("history", "bias", "mask")]
        words = [f"{k}={c[k]!r}" for k in keys if c[k]]
        words += [f"status={status}", f"token={token}", f"logprob={logprob:.9g}"]
        words += [f"top={t}:{p:.9g}" for t, p in best]
        lines.append(" ".join(words))
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text("\n".join(lines) + "\n")
    print(f"{target}: {len(lines) - 1} cases, {target.stat().st_size} bytes")


if __name__ == "__main__":
    main()
