"""The host backend's digest and matrix product compared with numpy's: host_compare.py BENCH [THREADS].

BENCH is host_compute_bench. Runs it and numpy five times in turn, each with THREADS threads (1 unless given), and
prints the best turns and ratios. The product should reach half of numpy's BLAS, the digest 1.5 GB/s on one thread.
"""

import os
import statistics
import subprocess
import sys
import time

TURNS = 5
THREADS = sys.argv[2] if len(sys.argv) > 2 else "1"
for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[name] = THREADS  # read when numpy is imported

import numpy  # noqa: E402


def ours() -> dict[tuple[str, int], float]:
    """Rates by what and size."""
    out = subprocess.run([sys.argv[1], THREADS], check=True, capture_output=True, text=True).stdout
    lines = (line.split() for line in out.splitlines())
    return {(what, int(size)): float(rate) for what, size, rate, _ in lines}


def numpys(n: int) -> float:
    """GFLOP/s of a product of n x n f32, the median of as many runs as the bench makes."""
    a = numpy.full((n, n), 0.5, numpy.float32)
    b = numpy.full((n, n), 2.0, numpy.float32)
    c = numpy.empty_like(a)
    numpy.matmul(a, b, out=c)
    assert (c == n).all()
    seconds = []
    for _ in range(20 if n > 512 else 200):
        start = time.perf_counter()
        numpy.matmul(a, b, out=c)
        seconds.append(time.perf_counter() - start)
    return 2e-9 * n**3 / statistics.median(seconds)


def main() -> None:
    rates: dict[tuple[str, int], list[float]] = {}
    theirs: dict[int, list[float]] = {}
    for _ in range(TURNS):
        for key, rate in ours().items():
            rates.setdefault(key, []).append(rate)
            if key[0] == "matmul":
                theirs.setdefault(key[1], []).append(numpys(key[1]))
    print(f"threads {THREADS}, best of {TURNS} turns, numpy {numpy.__version__}")
    for (what, size), values in rates.items():
        rate = max(values)
        if what == "matmul":
            other = max(theirs[size])
            print(f"matmul {size}  {rate:7.1f} GFLOP/s, numpy {other:7.1f}, ratio {rate / other:.2f}")
        else:
            print(f"BLAKE3 of {size >> 20} MiB  {rate:.2f} GB/s")


main()
