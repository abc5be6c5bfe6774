"""Whole models on the CPU backend and in llama.cpp, in turns.

cpu_peer.py --bench FOLDER --peer FOLDER --isa avx2,avx512 --threads N --rounds N NAME=FILE…

FOLDER of --bench holds e2e_bench and host_limits_bench; that of --peer cpu_peer and for each instruction set
libggml-cpu-ISA.so. Both engines load a model once and are then asked in turns for a prefill of 512 and a decode of
--tokens after it. Printed are medians of tokens/s, their ratio, and of ours the share of what this machine can do: of
the 16-bit multiply-adds between registers in a prefill, of the bytes read from memory in a decode.
"""

import argparse
import os
import pathlib
import statistics
import subprocess
import time

PROMPT = 512


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

    def end(self):
        self.process.stdin.close()
        self.process.wait()


def measure(ours, peer, tokens, rounds):
    rates = {}
    for turn in range(rounds + 1):
        engines = (("ours", ours), ("peer", peer))
        for name, engine in engines if turn % 2 else engines[::-1]:
            for work, count in (("prefill", PROMPT), ("decode", tokens)):
                rate = engine.rate(work, count)
                if turn > 0:  # the first one warms up
                    rates.setdefault((work, name), []).append(rate)
    return {key: statistics.median(values) for key, values in rates.items()}


def limits(bench, threads):
    output = subprocess.run([bench / "host_limits_bench", str(threads)], check=True, text=True, capture_output=True)
    return {name: float(value) for name, value, _ in (line.split() for line in output.stdout.splitlines())}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bench", type=pathlib.Path, required=True)
    parser.add_argument("--peer", type=pathlib.Path, required=True)
    parser.add_argument("--isa", default="avx2,avxvnni,avx512")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("models", nargs="+", metavar="NAME=FILE")
    args = parser.parse_args()
    can = limits(args.bench, args.threads)
    print(", ".join(f"{name} {value:.0f}" for name, value in can.items()), "GMAC/s;", args.threads, "threads")
    print("load average", *os.getloadavg())
    titles = "prefill", "peer", "ratio", "of peak", "decode", "peer", "ratio", "of read", "MB over file"
    print(f"{'':8} {'':20}" + "".join(f"{title:>9}" for title in titles[:-1]), titles[-1])
    for isa in args.isa.split(","):
        if isa not in can:
            continue
        for name, path in (model.split("=", 1) for model in args.models):
            ours = Engine([args.bench / "e2e_bench", "--serve", path, str(args.threads)], isa)
            if ours.ready[0] != isa:
                raise RuntimeError(f"ours runs {ours.ready[0]}, not {isa}")
            library = args.peer / f"libggml-cpu-{isa}.so"
            peer = Engine([args.peer / "cpu_peer", library, "serve", path, str(args.threads)], isa)
            found = measure(ours, peer, args.tokens, args.rounds)
            size, elements = int(ours.ready[1]), int(ours.ready[3])
            over = ours.memory() - os.path.getsize(path) / (1 << 20)
            cells = []
            for work in ("prefill", "decode"):
                mine, its = found[work, "ours"], found[work, "peer"]
                share = mine * size * 1e-9 / can["read"] if work == "decode" else mine * elements * 1e-9 / can[isa]
                cells.append(f"{mine:9.1f}{its:9.1f}{mine / its:9.2f}{share:9.0%}")
            print(f"{isa:8} {name:20}{''.join(cells)}{over:9.0f}", flush=True)
            ours.end()
            peer.end()


if __name__ == "__main__":
    main()
