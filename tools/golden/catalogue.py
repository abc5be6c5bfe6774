"""Golden vectors of the catalogue's kernels, computed by numpy in double precision from inputs that are
rounded to each type first. Writes cuda/tests/data/catalogue.bin:

    u32 cases; each: u8 bytes and name, u8 type (0 f32, 1 f16, 2 bf16), u8 arguments, f32 absolute and
    relative tolerance; each argument: u8 role (0 read, 1 written, 2 both, 3 integer, 4 factor), then for
    integers i64, for factors f32, for buffers u32 elements, the elements of the type (read, both), and
    the expected values as f32 (written, both). Roles 5 and 6 are written as i32 and f32 whatever the type, 7 is
    read as i32. Little-endian.

Tolerances: relative, eight steps of f32 or one of the narrower type; absolute, 2e-6 of the largest sum of
magnitudes that a result is made of.
"""

import pathlib
import struct

import numpy as np

ROOT = pathlib.Path(__file__).parents[2]
RELATIVE = {0: 8 * 2.0**-23, 1: 2.0**-10, 2: 2.0**-7}
READ, WRITTEN, BOTH, INTEGER, FACTOR, WRITTEN_I32, WRITTEN_F32, READ_I32 = range(8)
ROLES = {"in": READ, "out": WRITTEN, "both": BOTH, "out i32": WRITTEN_I32, "out f32": WRITTEN_F32, "in i32": READ_I32}


def round_to(values, kind):
    """Values as the type holds them, in double precision, and their bytes."""
    values = np.asarray(values, np.float32)
    if kind == 0:
        return values.astype(np.float64), values.tobytes()
    if kind == 1:
        half = values.astype(np.float16)
        return half.astype(np.float64), half.tobytes()
    bits = values.view(np.uint32).astype(np.uint64)
    bits = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    return (bits.astype(np.uint32) << 16).view(np.float32).astype(np.float64), bits.tobytes()


class Cases:
    def __init__(self):
        self.cases = []
        self.random = np.random.default_rng(20261121)

    def normal(self, *shape):
        return self.random.standard_normal(shape)

    def positive(self, *shape):
        return self.random.uniform(0.1, 2.0, shape)

    def add(self, name, formula, arguments, kinds=(0, 1, 2), scale=1.0):
        """`arguments`: ("in", values), ("out",), ("both", values), int or float, in the signature's order.
        `formula` takes inputs, integers and factors in that order and returns the outputs."""
        for kind in kinds:
            given, packed = [], []
            for argument in arguments:
                if isinstance(argument, (int, np.integer)):
                    given.append(int(argument))
                elif isinstance(argument, float):
                    given.append(float(np.float32(argument)))
                elif argument[0] == "in i32":
                    given.append(np.asarray(argument[1]))
                    packed.append(np.asarray(argument[1], "<i4").tobytes())
                elif not argument[0].startswith("out"):
                    values, raw = round_to(argument[1], kind)
                    given.append(values)
                    packed.append(raw)
            results = formula(*given)
            results = list(results) if isinstance(results, tuple) else [results]
            peak = scale if np.isscalar(scale) else float(scale(*given))
            case = struct.pack("<B", len(name)) + name.encode()
            case += struct.pack("<BBff", kind, len(arguments), 2e-6 * peak, RELATIVE[kind])
            for argument in arguments:
                if isinstance(argument, (int, np.integer)):
                    case += struct.pack("<Bq", INTEGER, argument)
                elif isinstance(argument, float):
                    case += struct.pack("<Bf", FACTOR, argument)
                else:
                    role = ROLES[argument[0]]
                    case += struct.pack("<B", role)
                    expected = None if role in (READ, READ_I32) else np.ravel(results.pop(0))
                    is_input = role in (READ, BOTH, READ_I32)
                    count = np.size(argument[1]) if is_input else expected.size
                    case += struct.pack("<I", count)
                    if is_input:
                        case += packed.pop(0)
                    if expected is not None:
                        case += expected.astype("<f4").tobytes()
            assert not results and not packed, name
            self.cases.append(case)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def gelu(x):
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def rms_norm(x, gamma, eps):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * gamma


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def windows(x, kh, kw, stride, pad, fill):
    """(batch, channels, oh, ow, kh, kw)"""
    x = np.pad(x, ((0, 0), (0, 0), (pad, pad), (pad, pad)), constant_values=fill)
    view = np.lib.stride_tricks.sliding_window_view(x, (kh, kw), axis=(2, 3))
    return view[:, :, ::stride, ::stride]


def im2col(x, kh, kw, stride, pad):
    w = windows(x, kh, kw, stride, pad, 0.0)
    batch, channels, oh, ow = w.shape[:4]
    return w.transpose(0, 1, 4, 5, 2, 3).reshape(batch, channels * kh * kw, oh * ow)


def col2im(columns, shape, kh, kw, stride, pad):
    batch, channels, h, w = shape
    out = np.zeros((batch, channels, h + 2 * pad, w + 2 * pad))
    oh, ow = (h + 2 * pad - kh) // stride + 1, (w + 2 * pad - kw) // stride + 1
    columns = columns.reshape(batch, channels, kh, kw, oh, ow)
    for y in range(kh):
        for x in range(kw):
            out[:, :, y : y + stride * oh : stride, x : x + stride * ow : stride] += columns[:, :, y, x]
    return out[:, :, pad : pad + h, pad : pad + w]


def rope(x, offset):
    seq, d = x.shape
    angle = (np.arange(seq) + offset)[:, None] * 10000.0 ** (-np.arange(0, d, 2) / d)
    out = np.empty_like(x)
    out[:, 0::2] = x[:, 0::2] * np.cos(angle) - x[:, 1::2] * np.sin(angle)
    out[:, 1::2] = x[:, 0::2] * np.sin(angle) + x[:, 1::2] * np.cos(angle)
    return out


def element_wise(cases):
    unary = {
        "relu": lambda x: np.maximum(x, 0), "sigmoid": sigmoid, "tanh": np.tanh, "gelu": gelu,
        "gelu_fast": lambda x: x * sigmoid(1.702 * x), "silu": lambda x: x * sigmoid(x),
        "copy": lambda x: x, "elementwise_exp": np.exp,
    }  # fmt: skip
    binary = {
        "vector_add": np.add, "tensor_add": np.add, "vector_sub": np.subtract, "vector_mul": np.multiply,
        "swiglu": lambda a, b: a * sigmoid(a) * b,
    }  # fmt: skip
    for n in (1, 301):
        for name, f in unary.items():
            cases.add(name, lambda x, n, f=f: f(x), [("in", 3 * cases.normal(n)), ("out",), n])
        for name, f in binary.items():
            arguments = [("in", cases.normal(n)), ("in", cases.normal(n)), ("out",), n]
            cases.add(name, lambda a, b, n, f=f: f(a, b), arguments)
        arguments = [("in", cases.normal(n)), ("in", cases.positive(n)), ("out",), n]
        cases.add("vector_div", lambda a, b, n: a / b, arguments)
        cases.add("vector_scale", lambda x, s, n: x * s, [("in", cases.normal(n)), ("out",), 1.7, n])
        arguments = [0.3, ("in", cases.normal(n)), ("both", cases.normal(n)), n]
        cases.add("saxpy", lambda s, x, y, n: s * x + y, arguments)
        cases.add("fill", lambda v, n: np.full(n, v), [("out",), 0.25, n])
    arguments = [("in", cases.normal(5, 7)), ("in", cases.normal(7)), ("out",), 5, 7]
    cases.add("broadcast_add", lambda x, b, m, n: x + b, arguments)
    for name, shape, axis in (("batch_norm", (5, 7), (7,)), ("batch_norm2d", (2, 3, 11), (3,))):
        tail = [cases.normal(*axis), cases.normal(*axis), cases.normal(*axis), cases.positive(*axis)]

        def formula(x, gamma, beta, mean, variance, *rest, shape=shape):
            along = (slice(None),) + (None,) * (len(shape) - 2) if len(shape) == 3 else (slice(None),)
            g, b, m, v = (each[along] for each in (gamma, beta, mean, variance))
            return (x - m) / np.sqrt(v + rest[-1]) * g + b

        arguments = [("in", cases.normal(*shape))] + [("in", each) for each in tail]
        arguments += [("out",), *shape, 1e-5]
        cases.add(name, formula, arguments, (0,) if name == "batch_norm2d" else (0, 1, 2), 8.0)


def reductions(cases):
    for n in (1, 257, 5003):
        kinds = (0, 1, 2) if n < 1000 else (0,)
        x = cases.normal(n)
        add = lambda name, f, values, scale: cases.add(  # noqa: E731
            name, lambda x, n: f(x), [("in", values), ("out",), n], kinds, scale)
        add("reduce_sum", np.sum, x, lambda x, n: np.abs(x).sum())
        add("reduce_max", np.max, x, 1.0)
        add("reduce_min", np.min, x, 1.0)
        near_one = 1 + 0.02 * cases.normal(n) if n < 1000 else 1 + 0.001 * cases.normal(n)
        add("reduce_product", np.prod, near_one, lambda x, n: 5.0 * max(1.0, abs(np.prod(x))))
        p = cases.positive(n)
        p[n // 2 :: 3] = 0 if n > 1 else p[0]
        entropy = lambda p: -(p[p > 0] * np.log(p[p > 0])).sum()  # noqa: E731
        add("shannon_entropy", entropy, p / p.sum(), 8.0)
        arguments = [("in", x), ("in", cases.normal(n)), ("out",), n]
        cases.add("dot_product", lambda a, b, n: a @ b, arguments, kinds,
                  lambda a, b, n: np.abs(a * b).sum())  # fmt: skip


def rows(cases):
    for m, n in ((1, 1), (3, 257), (1, 1031)):
        kinds = (0, 1, 2) if n < 1000 else (0,)
        x = cases.normal(m, n)
        cases.add("softmax", lambda x, m, n: softmax(x), [("in", 3 * x), ("out",), m, n], kinds)
        share = lambda x, m, n: x / x.sum(-1, keepdims=True)  # noqa: E731
        cases.add("normalize", share, [("in", cases.positive(m, n)), ("out",), m, n], kinds)
        gamma, beta = cases.normal(n), cases.normal(n)
        layer = lambda x, g, b, m, n, eps: (  # noqa: E731
            (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + eps) * g + b)
        arguments = [("in", x), ("in", gamma), ("in", beta), ("out",), m, n, 1e-5]
        cases.add("layer_norm", layer, arguments, kinds, 8.0)
        arguments = [("in", x), ("in", gamma), ("out",), m, n, 1e-6]
        cases.add("rms_norm", lambda x, g, m, n, eps: rms_norm(x, g, eps), arguments, kinds, 4.0)
        arguments = [("in", x), ("in", cases.normal(m, n)), ("in", gamma), ("out",), ("out",), m, n, 1e-6]
        added = lambda x, r, g, m, n, eps: (x + r, rms_norm(x + r, g, eps))  # noqa: E731
        cases.add("fused_add_norm", added, arguments, kinds, 4.0)
        cosine = lambda a, b, m, n: (a * b).sum(-1) / np.sqrt(  # noqa: E731
            (a * a).sum(-1) * (b * b).sum(-1))
        arguments = [("in", x), ("in", cases.normal(m, n)), ("out",), m, n]
        cases.add("batch_cosine_similarity", cosine, arguments, kinds, 2.0)


def matrices(cases):
    relu = lambda x: np.maximum(x, 0)  # noqa: E731
    same = lambda x: x  # noqa: E731
    for m, k, n in ((1, 1, 1), (17, 33, 9), (129, 19, 131)):
        kinds = (0, 1, 2) if m < 100 else (0,)
        a, b, bias = cases.normal(m, k), cases.normal(k, n), cases.normal(n)
        scale = lambda a, b, *rest: (np.abs(a) @ np.abs(b)).max() + 3  # noqa: E731
        plain = [("in", a), ("in", b), ("out",), m, k, n]
        cases.add("matrix_multiply", lambda a, b, m, k, n: a @ b, plain, kinds, scale)
        if m > 100:
            continue
        cases.add("fused_matmul_relu", lambda a, b, m, k, n: relu(a @ b), plain, kinds, scale)
        for name, act in (("linear", same), ("fused_linear_relu", relu), ("fused_linear_gelu", gelu)):
            arguments = [("in", a), ("in", b), ("in", bias), ("out",), m, k, n]
            cases.add(name, lambda a, b, c, m, k, n, act=act: act(a @ b + c), arguments, kinds, scale)
        transposed = [("in", a), ("out",), m, k]
        cases.add("matrix_transpose", lambda a, m, k: a.T, transposed, kinds)
    arguments = [("in", cases.normal(3, 5, 7)), ("in", cases.normal(3, 7, 4)), ("out",), 3, 5, 7, 4]
    cases.add("batch_matmul", lambda a, b, *dims: a @ b, arguments, scale=16.0)
    arguments = [("in", cases.normal(6, 10)), ("out",), 6, 10, 1000]
    cases.add("rope_encoding", lambda x, s, d, offset: rope(x, offset), arguments, scale=4.0)


def images(cases):
    for (kh, kw, stride, pad), (h, w) in (((3, 2, 1, 0), (6, 5)), ((3, 3, 2, 1), (7, 8)), ((1, 1, 1, 0), (1, 1))):
        batch, channels, filters = 2, 3, 4
        x = cases.normal(batch, channels, h, w)
        shape = (batch, channels, h, w)
        spread = [kh, kw, stride, pad]
        weight, bias = cases.normal(filters, channels, kh, kw), cases.normal(filters)
        conv = lambda x, f, b, *dims, s=spread: (  # noqa: E731
            np.einsum("bcyxij,fcij->bfyx", windows(x, *s, 0.0), f) + b[None, :, None, None])
        arguments = [("in", x), ("in", weight), ("in", bias), ("out",), *shape, filters, *spread]
        cases.add("conv2d", conv, arguments, (0,), 40.0)
        arguments = [("in", x), ("out",), *shape, *spread]
        most = lambda x, *dims, s=spread: windows(x, *s, -np.inf).max((-1, -2))  # noqa: E731
        cases.add("max_pool2d", most, arguments, (0,))
        mean = lambda x, *dims, s=spread: windows(x, *s, 0.0).mean((-1, -2))  # noqa: E731
        cases.add("avg_pool2d", mean, arguments, (0,), 4.0)
        cases.add("im2col", lambda x, *dims, s=spread: im2col(x, *s), arguments, (0,))
        columns = cases.normal(*im2col(x, *spread).shape)
        back = lambda c, *dims, s=spread, shape=shape: col2im(c, shape, *s)  # noqa: E731
        cases.add("col2im", back, [("in", columns), ("out",), *shape, *spread], (0,), 8.0)


def philox(seed, index):
    """Words `index` of Philox4x32-10, four a block."""
    block = index // 4
    low = np.uint64(0xFFFFFFFF)
    words = [(block & 0xFFFFFFFF).astype(np.uint64), (block >> 32).astype(np.uint64)]
    words += [np.zeros_like(words[0])] * 2
    keys = [seed & 0xFFFFFFFF, seed >> 32]
    for _ in range(10):
        a, b = np.uint64(0xD2511F53) * words[0], np.uint64(0xCD9E8D57) * words[2]
        high_a, high_b = a >> np.uint64(32), b >> np.uint64(32)
        words = [high_b ^ words[1] ^ np.uint64(keys[0]), b & low,
                 high_a ^ words[3] ^ np.uint64(keys[1]), a & low]  # fmt: skip
        keys = [(keys[0] + 0x9E3779B9) & 0xFFFFFFFF, (keys[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return np.choose(index % 4, words)


def unit(seed, index):
    return (philox(seed, index) >> np.uint64(8)).astype(np.float64) * 2.0**-24


def draws(cases):
    # Random123, kat_vectors, philox4x32 10, counter and key 0.
    assert [hex(word) for word in philox(0, np.arange(4))] == ["0x6627e8d5", "0xe169c58d", "0xbc57ac4c", "0x9b00dbd8"]

    def normal(mean, deviation, n, seed, offset):
        index = np.arange(n) + offset
        even = index & ~1
        radius = np.sqrt(-2 * np.log(1 - unit(seed, even)))
        angle = 2 * np.pi * unit(seed, even + 1)
        return mean + deviation * radius * np.where(index == even, np.cos(angle), np.sin(angle))

    def categorical(p, rows, width, seed, offset):
        sums = np.cumsum(p, axis=1)
        wanted = unit(seed, np.arange(rows) + offset)[:, None] * sums[:, -1:]
        assert np.abs(sums - wanted).min() > 1e-5
        return np.minimum((sums <= wanted).sum(1), width - 1)

    for n, seed, offset in ((1, 7, 0), (301, 0x123456789ABCDE, 5), (64, 3, (1 << 34) + 3)):
        uniform = lambda low, high, n, seed, offset: (  # noqa: E731
            low + (high - low) * unit(seed, np.arange(n) + offset))
        cases.add("uniform", uniform, [("out",), -2.0, 3.0, n, seed, offset], scale=3.0)
        cases.add("normal", normal, [("out",), 0.5, 2.0, n, seed, offset], scale=6.0)
    weights = cases.positive(40, 9)
    arguments = [("in", weights), ("out i32",), 40, 9, 11, 2]
    cases.add("categorical", categorical, arguments)


def attention(q, k, v, batch, seq, d, heads, causal):
    """(batch, seq, d) and the softmax's (batch, heads, seq, seq)."""
    split = lambda x: x.reshape(batch, seq, heads, d // heads).transpose(0, 2, 1, 3)  # noqa: E731
    scores = split(q) @ split(k).transpose(0, 1, 3, 2) / np.sqrt(d // heads)
    if causal:
        scores = np.where(np.tril(np.ones((seq, seq), bool)), scores, -np.inf)
    weights = softmax(scores)
    return (weights @ split(v)).transpose(0, 2, 1, 3), weights


def top_k(x, rows, width, k):
    order = np.argsort(-x, axis=1, kind="stable")[:, :k]
    return order, np.take_along_axis(softmax(x), order, 1)


def transformer(cases):
    for batch, seq, d, heads in ((1, 1, 1, 1), (2, 7, 12, 3), (1, 261, 5, 1)):
        kinds = (0, 1, 2) if seq < 100 else (0,)
        for causal in (0, 1) if seq < 100 else (1,):
            arguments = [("in", cases.normal(batch, seq, d)) for _ in range(3)]
            arguments += [("out",), ("out f32",), batch, seq, d, heads, causal]
            cases.add("multi_head_attention", attention, arguments, kinds, 8.0)
    # Equal values, below zero and as zeros, are in the order of their places.
    for rows_, width, k in ((1, 1, 1), (3, 301, 5), (2, 9, 9), (1, 5003, 40)):
        logits = np.round(4 * cases.normal(rows_, width)) / 4 if width < 400 else 3 * cases.normal(rows_, width)
        logits[:, 0] = -0.0
        kinds = (0, 1, 2) if width < 400 else (0,)
        arguments = [("in", logits), ("out i32",), ("out",), rows_, width, k]
        cases.add("top_k_sampling", top_k, arguments, kinds)
    for batch, seq, vocab, d in ((1, 1, 1, 1), (2, 5, 11, 7)):
        ids = cases.random.integers(0, vocab, (batch, seq))
        arguments = [("in i32", ids), ("in", cases.normal(vocab, d)), ("out",), batch, seq, vocab, d]
        cases.add("embedding_lookup", lambda ids, table, *dims: table[ids], arguments)
    # Other names of what has its cases above.
    x = cases.normal(41)
    cases.add("tanh_activation", lambda x, n: np.tanh(x), [("in", x), ("out",), 41])
    cases.add("gelu_activation", lambda x, n: gelu(x), [("in", 3 * x), ("out",), 41])
    normalized = lambda x, m, n: np.exp(x) / np.exp(x).sum(-1, keepdims=True)  # noqa: E731
    cases.add("fused_exp_normalize", normalized, [("in", cases.normal(1, 700)), ("out",), 1, 700])
    arguments = [("in", cases.normal(5, 9)), ("in", cases.normal(9, 6)), ("out",), 5, 9, 6]
    cases.add("matmul", lambda a, b, m, k, n: a @ b, arguments, scale=30.0)


def main():
    cases = Cases()
    cases.add("noop", lambda: (), [], (0,))
    for part in (element_wise, reductions, rows, matrices, images, draws, transformer):
        part(cases)
    data = struct.pack("<I", len(cases.cases)) + b"".join(cases.cases)
    path = ROOT / "cuda/tests/data/catalogue.bin"
    path.write_bytes(data)
    print(f"{len(cases.cases)} cases, {len(data)} bytes")


if __name__ == "__main__":
    main()
