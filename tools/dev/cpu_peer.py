"""Whole models on the CPU backend and in llama.cpp, in turns.

cpu_peer.py --bench FOLDER --peer FOLDER --isa avx2,avx512 --threads N --rounds N [--rows FILE] [--busy NAME,…] NAME=FILE…

FOLDER of --bench holds e2e_bench and host_limits_bench; that of --peer cpu_peer and for each instruction set
libggml-cpu-ISA.so. Both engines load a model once and are then asked in turns for a prefill of 512 and a decode of
--tokens after it. Printed are medians of tokens/s, their ratio, and of ours the share of what this machine can do: of
the multiply-adds between registers in a prefill (in f32 for float weights, else of 16 bits), of the bytes read from
memory in a decode.

"MB more" is the largest resident memory of ours beyond the file and the used part of the KV cache. For the models of
--busy, "busy" is the share of the speed that a prefill and a decode of ours keep next to a process that occupies one
of the processors they run on. Exit status 1: one of them is beyond MEMORY or BUSY.

--rows: rows that this file has are not measured again; new ones are appended to it.
"""

import argparse
import os
import pathlib
import statistics
import subprocess
import sys
import time

PROMPT = 512
PAGE = 64  # tokens
MEMORY = 100  # MB
BUSY = 0.45
FLOATS = "F32", "F16", "BF16"


class Engine:
    """A process that serves a model; the first line it writes says that it is ready."""

    def __init__(self, command, isa):
        environment = dict(os.environ, WCUDA_MAX_ISA=isa, OMP_WAIT_POLICY="")
        if not environment["OMP_WAIT_POLICY"]:
            del environment["OMP_WAIT_POLICY"]  # the peer's default, whatever this shell has
        self.process = subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.ready = self.read()

    def read(self):
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self.process.args[0]} ended with status {self.process.wait()}")
        return line.split()

    def rate(self, work, tokens):
        print(work, tokens, file=self.process.stdin, flush=True)
        seconds = float(self.read()[0])
        time.sleep(0.02)  # its threads may wait for more work before they sleep
        return tokens / seconds

    def memory(self):
        """Largest resident size so far, in MB."""
        status = pathlib.Path(f"/proc/{self.process.pid}/status").read_text()
        return int(status.split("VmHWM:")[1].split()[0]) / 1024

    def pin(self, processors):
        for task in os.listdir(f"/proc/{self.process.pid}/task"):
            os.sched_setaffinity(int(task), processors)

    def end(self):
        self.process.stdin.close()
        self.process.wait()


WORKS = "prefill", "decode"


def measure(ours, peer, tokens, rounds):
    """{(work, "ours" or "peer"): median of tokens/s}"""
    rates = {}
    for turn in range(rounds + 1):
        engines = (("ours", ours), ("peer", peer))
        for name, engine in engines if turn % 2 else engines[::-1]:
            for work, count in zip(WORKS, (PROMPT, tokens)):
                rate = engine.rate(work, count)
                if turn > 0:  # the first one warms up
                    rates.setdefault((work, name), []).append(rate)
    return {key: statistics.median(values) for key, values in rates.items()}


def measure_busy(engine, tokens, rounds, processors):
    """Share of the speed kept by prefill and decode on these processors, of which another process occupies the first."""
    engine.pin(processors)
    rates = {}
    for _ in range(rounds):
        for is_busy in (False, True):
            loop = f"import os; os.sched_setaffinity(0, {processors[:1]})\nwhile True: pass" if is_busy else ""
            other = subprocess.Popen([sys.executable, "-c", loop])
            time.sleep(0.2)
            for work, count in zip(WORKS, (PROMPT, tokens)):
                rates.setdefault((work, is_busy), []).append(engine.rate(work, count))
            other.kill()
            other.wait()
    return [statistics.median(rates[work, True]) / statistics.median(rates[work, False]) for work in WORKS]


def limits(bench, threads):
    output = subprocess.run([bench / "host_limits_bench", str(threads)], check=True, text=True, capture_output=True)
    return {name: float(value) for name, value, _ in (line.split() for line in output.stdout.splitlines())}


def measure_row(args, can, isa, name, path):
    """The row of the table, and what it says against the promises."""
    ours = Engine([args.bench / "e2e_bench", "--serve", path, str(args.threads)], isa)
    if ours.ready[0] != isa:
        raise RuntimeError(f"ours runs {ours.ready[0]}, not {isa}")
    library = args.peer / f"libggml-cpu-{isa}.so"
    peer = Engine([args.peer / "cpu_peer", library, "serve", path, str(args.threads)], isa)
    found = measure(ours, peer, args.tokens, args.rounds)
    peer.end()
    size, elements, page_bytes = (int(ours.ready[i]) for i in (1, 3, 5))
    pages = -(-(PROMPT + args.tokens) // PAGE)
    over = ours.memory() - (os.path.getsize(path) + pages * page_bytes) / (1 << 20)
    peak = can["avx512-f32" if isa == "avx512" else "avx2-f32"] if name in FLOATS else can[isa]
    cells = []
    for work in WORKS:
        mine, its = found[work, "ours"], found[work, "peer"]
        share = mine * size * 1e-9 / can["read"] if work == "decode" else mine * elements * 1e-9 / peak
        cells.append(f"{mine:9.1f}{its:9.1f}{mine / its:9.2f}{share:9.0%}")
    row, failures = f"{isa:8} {name:20}{''.join(cells)}{over:9.0f}", []
    if over > MEMORY:
        failures.append(f"{isa} {name}: {over:.0f} MB beyond the file and the KV cache, at most {MEMORY} are promised")
    if name in args.busy.split(","):
        processors = sorted(os.sched_getaffinity(0))[: args.threads]
        shares = measure_busy(ours, args.tokens, args.rounds, processors)
        row += "".join(f"{share:9.0%}" for share in shares)
        if min(shares) < BUSY:
            failures.append(f"{isa} {name}: keeps {min(shares):.0%} next to a busy loop, {BUSY:.0%} are promised")
    ours.end()
    return row, failures


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bench", type=pathlib.Path, required=True)
    parser.add_argument("--peer", type=pathlib.Path, required=True)
    parser.add_argument("--isa", default="avx2,avxvnni,avx512")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--rows", type=pathlib.Path)
    parser.add_argument("--busy", default="")
    parser.add_argument("models", nargs="+", metavar="NAME=FILE")
    args = parser.parse_args()
    can = limits(args.bench, args.threads)
    print(", ".join(f"{name} {value:.0f}" for name, value in can.items()), "GMAC/s;", args.threads, "threads")
    print("load average", *os.getloadavg())
    titles = "prefill", "peer", "ratio", "of peak", "decode", "peer", "ratio", "of read", "MB more", "busy"
    print(f"{'':8} {'':20}" + "".join(f"{title:>9}" for title in titles))
    rows = args.rows.read_text().splitlines() if args.rows and args.rows.exists() else []
    done = {tuple(row.split()[:2]): row for row in rows}
    failures = []
    for isa in (isa for isa in args.isa.split(",") if isa in can):
        for name, path in (model.split("=", 1) for model in args.models):
            row = done.get((isa, name))
            if row is None:
                row, found = measure_row(args, can, isa, name, path)
                failures += found
                if args.rows and not found:
                    with args.rows.open("a") as file:
                        print(row, file=file)
            print(row, flush=True)
    if failures:
        sys.exit("\n".join(failures))


if __name__ == "__main__":
    main()
