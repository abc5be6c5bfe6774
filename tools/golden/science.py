"""Golden vectors of examples/kernels-science by numpy in double precision, from inputs rounded to each
kernel's types. Writes tests/data/science.json: cases of a kernel's name, a tolerance relative to the
greatest magnitude of a result and 1, and arguments in its order: {"in": [...]}, {"out": [expected]},
{"both": [...], "out": [expected]} or {"value": number}.
"""

import json
import pathlib

import numpy as np

ROOT = pathlib.Path(__file__).parents[2]
F32, F64 = 2e-6, 1e-14


class Cases:
    def __init__(self):
        self.cases = []
        self.random = np.random.default_rng(20261122)

    def add(self, kernel, tolerance, *arguments):
        plain = lambda x: np.ravel(np.asarray(x)).tolist()  # noqa: E731
        packed = []
        for argument in arguments:
            if isinstance(argument, tuple):
                packed.append(dict(zip(argument[0].split("+"), map(plain, argument[1:]))))
            else:
                packed.append({"value": argument})
        self.cases.append({"kernel": kernel, "tolerance": tolerance, "arguments": packed})

    def normal(self, *shape, f32=True):
        x = self.random.standard_normal(shape)
        return x.astype(np.float32).astype(np.float64) if f32 else x

    def shares(self, *shape):
        p = self.random.uniform(0.0, 1.0, shape)
        p[p < 0.15] = 0.0  # what is left out of sums
        p.flat[0] = 0.5
        return (p / p.sum()).astype(np.float32).astype(np.float64)


def entropy_terms(q, p):
    is_in = (q > 1e-10) & (p > 1e-10)
    return np.where(is_in, q * np.log(np.where(is_in, q, 1.0) / np.where(is_in, p, 1.0)), 0.0)


def inference(c, n):
    q, p = c.shares(n), c.shares(n)
    kl = entropy_terms(q, p).sum()
    c.add("kl_divergence", F32, ("in", q), ("in", p), ("out", [kl]), n)
    c.add("free_energy", F32, ("in", q), ("in", p), 1.25, ("out", [kl - 1.25]), n)
    a, b = c.normal(n), c.normal(n)
    c.add("elementwise_multiply", F32, ("in", a), ("in", b), ("out", a * b), n)
    c.add("normalize", F32, ("both+out", np.abs(a), np.abs(a) / np.abs(a).sum()), n)
    x, y, z = (c.normal(n, f32=False) for _ in range(3))
    precision = np.abs(z) + 0.1
    c.add("prediction_error", F64, ("out", precision * (x - y)), ("in", x), ("in", y), ("in", precision), n)
    c.add("belief_update", F64, ("both+out", x, x - 0.3 * y), ("in", y), 0.3, n)
    c.add("precision_weight", F64, ("out", precision * x), ("in", x), ("in", precision), n)
    vq, vp = np.abs(c.normal(n, f32=False)), precision
    vq[0] = 0.0  # floored
    floored = np.maximum(vq, 1e-10)
    gaussian = 0.5 * (floored / vp + (x - y) ** 2 / vp - 1 - np.log(floored / vp))
    c.add("kl_gaussian", 10 * F64, ("in", x), ("in", vq), ("in", y), ("in", vp), ("out", [gaussian.sum()]), n)
    likely = -0.5 * (precision * x**2 + np.log(2 * np.pi / precision))
    c.add("accuracy", 10 * F64, ("in", x), ("in", precision), ("out", [likely.sum()]), n)
    c.add("sum_reduction", 10 * F64, ("in", x), ("out", [x.sum()]), n)
    c.add("axpby", F64, ("both+out", y, 1.5 * x - 0.5 * y), ("in", x), 1.5, -0.5, n)
    c.add("velocity_update", F64, ("both+out", x, 0.9 * x - 0.1 * y), ("in", y), 0.9, 0.1, n)


def matrices(c, m, n):
    a = c.normal(m, n, f32=False)
    for transpose in (0, 1):
        rows, op = ((m, a), (n, a.T))[transpose]
        x, y = c.normal(m + n - rows, f32=False), c.normal(rows, f32=False)
        result = 1.25 * op @ x - 0.75 * y
        c.add("gemv", 10 * F64, ("both+out", y, result), ("in", a), ("in", x), m, n, 1.25, -0.75, transpose)
    x = c.normal(n, f32=False)
    c.add("hierarchical_project", 10 * F64, ("out", a @ x), ("in", a), ("in", x), m, n)


def neurons(c, n):
    previous, current = c.normal(n), c.normal(n)
    leak, threshold = 0.875, 0.5
    v = leak * previous + current
    assert np.abs(v - threshold).min() > 1e-4
    spikes = v >= threshold
    c.add("leaky_integrate_fire", F32, ("out", np.where(spikes, 0.0, v)), ("in", previous), ("in", current),
          leak, threshold, ("out", spikes.astype(int)), n)  # fmt: skip
    state = (1 - leak) * previous + leak * np.tanh(current)
    c.add("reservoir_update", F32, ("out", state), ("in", previous), ("in", current), leak, n)
    m = n // 2 + 1
    w = c.random.uniform(0, 1, (m, n)).astype(np.float32).astype(np.float64)
    pre, post = np.abs(c.normal(m)), np.abs(c.normal(n))
    t_pre, t_post = c.normal(m), c.normal(n)
    t_post[0] = t_pre[0]
    later = t_post[None, :] - t_pre[:, None]
    change = np.where(later > 0, np.exp(-np.abs(later) / 0.5), np.where(later < 0, -np.exp(-np.abs(later) / 2.0), 0))
    result = np.clip(w + 0.5 * pre[:, None] * post[None, :] * change, 0, 1)
    c.add("stdp_update", F32, ("both+out", w, result), ("in", pre), ("in", post), ("in", t_pre), ("in", t_post),
          0.5, 0.5, 2.0, m, n)  # fmt: skip


def mechanics(c, n):
    phase, frequency, coupling = 3 * c.normal(n), c.normal(n), c.normal(n, n)
    pull = (coupling * np.sin(phase[None, :] - phase[:, None])).sum(1)
    result = phase + 0.125 * (frequency + 2.0 / n * pull)
    c.add("kuramoto_evolution", 2 * F32, ("in", phase), ("in", frequency), ("in", coupling), ("out", result), n,
          0.125, 2.0)  # fmt: skip
    c.add("entropy_production", F32, ("in", phase), ("out", [(phase**2 / 1.5).sum()]), 1.5, n)
    mean = np.exp(1j * phase).mean()
    c.add("order_parameter", F32, ("in", phase), ("out", [mean.real]), ("out", [mean.imag]), n)


def information(c, n):
    joint = c.shares(n, n)
    px, py = (joint.sum(axis).astype(np.float32).astype(np.float64) for axis in (1, 0))
    mutual = entropy_terms(joint, px[:, None] * py[None, :]).sum()
    c.add("mutual_information", 2 * F32, ("in", joint), ("in", px), ("in", py), ("out", [mutual]), n)
    c.add("conditional_entropy", F32, ("in", joint), ("in", py), ("out", [-entropy_terms(joint, py[None, :]).sum()]),
          n, n)  # fmt: skip
    x, y, bins = c.normal(40 * n), c.normal(40 * n), n
    away = lambda v: np.abs((v + 1) / 2 * bins - np.round((v + 1) / 2 * bins)) > 1e-4  # noqa: E731
    is_clear = away(x) & away(y)  # of borders, where rounding decides
    x = np.concatenate([[-1.0, 1.0, 0.3], x[is_clear]]).astype(np.float32).astype(np.float64)  # two on the range's ends, one outside
    y = np.concatenate([[1.0, -1.0, 5.0], y[is_clear]])
    counts, _, _ = np.histogram2d(x, y, bins, ((-1, 1), (-1, 1)))
    start = c.random.integers(0, 5, (bins, bins))
    c.add("histogram_2d", 0, ("in", x), ("in", y), ("both+out", start, start + counts.astype(int)), -1.0, 1.0,
          x.size, bins)  # fmt: skip
    series, dim, tau = c.normal(5 * n), 3, n
    rows = 5 * n - (dim - 1) * tau
    result = np.stack([series[d * tau : d * tau + rows] for d in range(dim)], 1)
    c.add("time_delayed_embedding", 1e-15, ("in", series), ("out", result), 5 * n, dim, tau)


def qubits(c, count):
    dim = 1 << count
    state = c.normal(dim) + 1j * c.normal(dim)
    places = np.arange(dim)

    def add(kernel, result, *numbers):
        c.add(kernel, F32, ("both+out", state.real, result.real), ("both+out", state.imag, result.imag), *numbers, dim)

    for qubit in {0, count - 1, count // 2}:
        bit = 1 << qubit
        is_one = (places & bit) != 0
        other = state[places ^ bit]
        add("hadamard_gate", np.where(is_one, other - state, state + other) / np.sqrt(2), qubit)
        add("pauli_x_gate", other, qubit)
        add("phase_gate", np.where(is_one, state * np.exp(0.75j), state), qubit, 0.75)
        control = (qubit + 1) % count
        if count > 1:
            add("cnot_gate", np.where((places >> control & 1) == 1, other, state), control, qubit)
    c.add("quantum_measurement", F32, ("in", state.real), ("in", state.imag), ("out", np.abs(state) ** 2), dim)


def main():
    c = Cases()
    for n in (1, 37, 300):
        inference(c, n)
        neurons(c, n) if n < 100 else None
    for m, n in ((1, 1), (13, 5), (4, 270)):
        matrices(c, m, n)
    for n in (1, 19):
        mechanics(c, n)
        information(c, n)
    for count in (1, 2, 5):
        qubits(c, count)
    path = ROOT / "tests/data/science.json"
    lines = ",\n".join(json.dumps(case, separators=(",", ":")) for case in c.cases)
    path.write_text('{"cases":[\n' + lines + "\n]}\n")
    print(f"{len(c.cases)} cases, {path.stat().st_size} bytes")


if __name__ == "__main__":
    main()
